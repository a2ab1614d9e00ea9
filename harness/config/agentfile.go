package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// An agent file defines one agent: NAME.md defines the agent NAME. It begins with a line "---", then come keys in YAML, those
// of an entry "agents.NAME" of a configuration file, then a second line "---". What follows is the agent's persona, without
// the blank lines around it; a file with a body has no key persona. The body is literal text unless the file says
// "template: true" (seam COMP-36).
//
// A file is one more layer of the entry agents.NAME: the user's files are laid over the user's configuration file, the
// project's over the project's. That one side defines an agent both in a file and in an entry is an error that names both.

// ProjectAgents is the folder of the project's agent files, below the working directory. The user's are in the folder
// "agents" beside the user's configuration file.
const ProjectAgents = ".offshoot/agents"

// What is read of a folder of agent files; a repository that somebody else wrote may hold anything.
const (
	maxAgentBytes   = 128 << 10
	maxAgentFiles   = 100
	maxAgentEntries = 1000
)

// claudeKey is the key beside the agents' names that lets the agent files of Claude Code be read.
const claudeKey = "claude"

// AgentFile is a file that defines an agent.
type AgentFile struct {
	Path   string     `json:"path"`
	Kind   SourceKind `json:"kind"`
	Agent  string     `json:"agent"`
	Claude bool       `json:"claude,omitempty"` // it is one of Claude Code's
}

// Note says what of a file was left out although nothing is wrong with it.
type Note struct {
	File string `json:"file"`
	Text string `json:"text"`
}

// String is "FILE: TEXT".
func (n Note) String() string { return n.File + ": " + n.Text }

// agentLoader lays agent files over the settings of one load.
type agentLoader struct {
	e       *Effective
	m       settings
	tree    *place
	home    string
	f       *faults
	folders []agentFolder
}

// agentFolder is one folder of agent files, and those that were named beside it.
type agentFolder struct {
	path   string // empty: only extra
	kind   SourceKind
	claude bool
	extra  []string
}

// agentText is a file that was read: UTF-8 text with "\n" at the ends of its lines.
type agentText struct {
	path  string
	data  []byte
	extra bool
}

func newAgentLoader(o LoadOptions, e *Effective, m settings, tree *place, home string, f *faults) *agentLoader {
	l := &agentLoader{e: e, m: m, tree: tree, home: home, f: f}
	user := ""
	if o.ConfigFile == "" {
		user = filepath.Join(filepath.Dir(e.Files[0].Path), "agents")
	}
	claude := absolute(o.Env, "CLAUDE_CONFIG_DIR", home, ".claude")
	if claude != "" {
		claude = filepath.Join(claude, "agents")
	}
	l.folders = []agentFolder{
		{path: user, kind: FromUser},
		{path: filepath.Join(e.Cwd, filepath.FromSlash(ProjectAgents)), kind: FromProject},
		{path: claude, kind: FromUser, claude: true},
		{path: filepath.Join(e.Cwd, ".claude", "agents"), kind: FromProject, claude: true},
	}
	for _, file := range o.AgentFiles {
		file = filepath.Clean(file)
		kind, claude := FromUser, strings.HasSuffix(filepath.ToSlash(filepath.Dir(file)), "/.claude/agents")
		if rel, err := filepath.Rel(e.Cwd, file); err == nil && filepath.IsLocal(rel) {
			kind = FromProject
		}
		i := slices.IndexFunc(l.folders, func(d agentFolder) bool { return d.kind == kind && d.claude == claude })
		l.folders[i].extra = append(l.folders[i].extra, file)
	}
	return l
}

// own lays the agent files of one side over the settings.
func (l *agentLoader) own(kind SourceKind) {
	for _, d := range l.folders {
		if d.kind != kind || d.claude {
			continue
		}
		named := map[string]bool{}
		for _, text := range l.read(d, l.f.add) {
			base := filepath.Base(text.path)
			if named[base] && !text.extra {
				continue
			}
			named[base] = true
			l.define(d, text)
		}
	}
}

// define lays one agent file over the settings.
func (l *agentLoader) define(d agentFolder, text agentText) {
	at := func(line int) Source { return Source{Kind: d.kind, File: text.path, Line: line} }
	name, problem := agentName(strings.TrimSuffix(filepath.Base(text.path), ".md"))
	if problem != "" {
		l.f.at(at(0), "", "%s", problem)
		return
	}
	key := "agents." + name
	if old, twice := l.m[key]; twice && old.source.Kind == d.kind {
		l.f.at(at(1), key, "is already defined by %s; keep one of them", old.source)
		return
	}
	r := &reader{tree: l.tree, file: text.path, kind: d.kind, home: l.home, f: l.f}
	section := []string{"agents", name}
	r.add(section, nil, 1)
	front, body, line, problem := splitFrontMatter(text.data)
	if problem != "" {
		l.f.at(at(line), "", "%s", problem)
		l.m.merge(r.out)
		return
	}
	if root := parseDocument(text.path, front, l.f); root != nil {
		r.walk(root, l.tree.kid("agents").star, section)
	}
	said := func(key string) int { return slices.IndexFunc(r.out, func(s setting) bool { return s.key == key }) }
	persona := said(key + ".persona")
	if body != "" && persona >= 0 {
		l.f.at(at(line), "", "the text below the keys is the persona, and the key persona is on line %d; keep one of them", r.out[persona].source.Line)
	} else if body != "" {
		if _, problem := parseText(body); problem != "" {
			l.f.at(at(line), "", "the persona %s", problem)
		}
		persona = len(r.out)
		r.add(append(slices.Clip(section), "persona"), body, line)
	}
	if persona >= 0 && said(key+".template") < 0 {
		r.add(append(slices.Clip(section), "template"), false, r.out[persona].source.Line)
	}
	if d.kind == FromProject && !l.e.Trusted {
		distrustValues(r, l.m, plea(l.e.Cwd))
	}
	l.m.merge(r.out)
	l.e.Agents = append(l.e.Agents, AgentFile{Path: text.path, Kind: d.kind, Agent: name})
}

// agentName takes the name of an agent that has a tool of its own.
func agentName(name string) (string, string) {
	if _, problem := parseName(name); problem != "" {
		return "", "the name of the agent: " + problem
	}
	if _, problem := parseTool(agentToolPrefix + name); problem != "" {
		return "", "the name of the agent makes no tool name: " + problem
	}
	switch name {
	case DefaultAgent:
		return "", "default is the root agent: define it in a configuration file, under agents.default"
	case claudeKey:
		return "", "claude is no name of an agent: agents.claude is a key of its own"
	}
	return name, ""
}

// splitFrontMatter takes the two parts of an agent file apart. front begins with an empty line in the place of the fence, so
// that its lines count as the file's; body is without the blank lines around it, and line is where it begins. With a problem,
// line is where that is, or 0.
func splitFrontMatter(data []byte) (front []byte, body string, line int, problem string) {
	const fence = "---"
	lines := strings.Split(string(data), "\n")
	is := func(s string) bool { return strings.TrimRight(s, " \t") == fence }
	if !is(lines[0]) {
		return nil, "", 1, "an agent file begins with a line --- and its keys in YAML"
	}
	end := 1 + slices.IndexFunc(lines[1:], is)
	if end == 0 {
		return nil, "", 1, "the keys that begin here have no line --- at their end"
	}
	front = []byte("\n" + strings.Join(lines[1:end], "\n"))
	lines, line = lines[end+1:], end+2
	for len(lines) > 0 && strings.TrimSpace(lines[0]) == "" {
		lines, line = lines[1:], line+1
	}
	return front, strings.TrimRight(strings.Join(lines, "\n"), " \t\n"), line, ""
}

// read returns the files of a folder in the order of their names, those that were named beside it first. What keeps a file
// from being read is told to refuse. A folder that is not there has no files.
func (l *agentLoader) read(d agentFolder, tell func(*Error)) []agentText {
	refuse := func(e *Error) { tell(l.escape(d.kind, e)) }
	var texts []agentText
	one := func(fsys fs.FS, name, full string, extra bool) {
		data, err := readAgentFile(fsys, name, full)
		if err != nil {
			refuse(err)
			return
		}
		texts = append(texts, agentText{full, data, extra})
	}
	for _, file := range d.extra {
		fsys, dir, done, err := l.open(d.kind, filepath.Dir(file))
		if err != nil {
			refuse(err)
			continue
		}
		if filepath.Ext(file) != ".md" {
			refuse(&Error{Kind: KindUsage, File: file, Msg: "is no agent file: its name does not end in .md"})
		} else {
			one(fsys, path.Join(dir, filepath.Base(file)), file, true)
		}
		done()
	}
	if d.path == "" {
		return texts
	}
	fsys, dir, done, err := l.open(d.kind, d.path)
	if err != nil {
		refuse(err)
		return texts
	}
	defer done()
	for _, name := range listAgentFiles(fsys, dir, d.path, refuse) {
		if full := filepath.Join(d.path, name); !slices.Contains(d.extra, full) { // else it was read above
			one(fsys, path.Join(dir, name), full, false)
		}
	}
	return texts
}

// open gives access to a folder by dir. In a folder that is not trusted no symbolic link leads out of it.
func (l *agentLoader) open(kind SourceKind, folder string) (fsys fs.FS, dir string, done func(), fault *Error) {
	rel, err := filepath.Rel(l.e.Cwd, folder)
	if kind != FromProject || l.e.Trusted || err != nil {
		return os.DirFS(folder), ".", func() {}, nil
	}
	root, err := os.OpenRoot(l.e.Cwd)
	if err != nil {
		return nil, "", nil, &Error{Kind: KindIO, File: l.e.Cwd, Msg: "cannot be read", Err: unwrapPath(err)}
	}
	return root.FS(), filepath.ToSlash(rel), func() { _ = root.Close() }, nil // read only: nothing is lost when it fails
}

// escape words what open keeps from being read: a symbolic link that leads out of the folder.
func (l *agentLoader) escape(kind SourceKind, e *Error) *Error {
	if kind != FromProject || l.e.Trusted || e.Kind != KindIO || e.Err == nil || errors.Is(e.Err, fs.ErrPermission) {
		return e
	}
	if _, err := os.Stat(e.File); err != nil {
		return e
	}
	return &Error{Kind: KindUsage, File: e.File, Msg: "is reached by a symbolic link out of a folder that is not trusted" + plea(l.e.Cwd)}
}

// listAgentFiles lists the names that end in .md, sorted. Hidden files and those with other endings are nobody's agents.
func listAgentFiles(fsys fs.FS, dir, full string, refuse func(*Error)) []string {
	info, err := fs.Stat(fsys, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		refuse(&Error{Kind: KindIO, File: full, Msg: "cannot be read", Err: unwrapPath(err)})
		return nil
	case !info.IsDir():
		refuse(&Error{Kind: KindIO, File: full, Msg: "is not a folder"})
		return nil
	}
	entries, err := readEntries(fsys, dir)
	if err != nil {
		refuse(&Error{Kind: KindIO, File: full, Msg: "cannot be read", Err: unwrapPath(err)})
		return nil
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		ext := path.Ext(name)
		switch {
		case strings.HasPrefix(name, "."):
		case ext == ".md":
			names = append(names, name)
		case strings.EqualFold(ext, ".md"):
			refuse(&Error{Kind: KindUsage, File: filepath.Join(full, name), Msg: "is no agent file: its name must end in .md, in small letters"})
		case e.IsDir():
			refuse(&Error{Kind: KindUsage, File: filepath.Join(full, name), Msg: "is a folder; agent files are read from the folder above it alone"})
		}
	}
	if len(entries) > maxAgentEntries || len(names) > maxAgentFiles {
		refuse(&Error{Kind: KindUsage, File: full, Msg: fmt.Sprintf("holds too much: at most %d agent files, and %d files of any kind", maxAgentFiles, maxAgentEntries)})
		return nil
	}
	slices.Sort(names)
	return names
}

// readEntries reads a folder up to one entry more than is taken.
func readEntries(fsys fs.FS, dir string) (entries []fs.DirEntry, err error) {
	f, err := fsys.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost when it fails
	folder, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, errors.New("cannot be listed")
	}
	for len(entries) <= maxAgentEntries {
		more, err := folder.ReadDir(maxAgentEntries + 1 - len(entries))
		entries = append(entries, more...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// readAgentFile reads one file as text. Only regular files are read: opening a pipe would wait for its writer.
func readAgentFile(fsys fs.FS, name, full string) ([]byte, *Error) {
	data, err := readRegular(fsys, name, full, maxAgentBytes)
	if err != nil {
		return nil, err
	}
	data = bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\uFEFF")), []byte("\r\n"), []byte("\n"))
	if line, problem := checkText(data); problem != "" {
		return nil, &Error{Kind: KindUsage, File: full, Line: line, Msg: problem}
	}
	return data, nil
}
