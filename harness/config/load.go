package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// ProjectFile is the name of the project's configuration file in the working directory.
const ProjectFile = "offshoot.yaml"

// Flags are the settings that a command line gave. A nil pointer is a flag that was not given.
type Flags struct {
	Model      *string // ROUTE:MODEL
	Permission *string
	Store      *string // memory, sqlite, sqlite:PATH or the path of an SQLite file
	Persona    *string // of the root agent; an empty one shadows the deployment's with nothing
	MaxTokens  *int    // of the root agent, per model call
	MaxDepth   *int    // for limits.maxDepth and for every provider and agent with a cap of ours
	Delegate   *string // spawn or fork: the provider behind the tool "subagent"
}

// LoadOptions says what Load reads.
type LoadOptions struct {
	Cwd        string   // the folder that is worked in; required, must exist
	Env        Environ  // nil: an empty environment
	Flags      Flags    //
	ConfigFile string   // read in the place of the user's file and agent files, and must then exist; empty: the user's, if there are any
	AgentFiles []string // agent files to read beside those of the folders, each in the place of the one that defines the same agent
	DataDir    string   // empty: as Dirs says
	Trusted    *bool    // the embedding program's own word about the folder; nil: the list of trusted folders
	Providers  []string // the kinds of provider that this program has; nil: all of them
}

// File is a configuration file that Load looked for.
type File struct {
	Path  string     `json:"path"`
	Kind  SourceKind `json:"kind"`
	Found bool       `json:"found"`
}

// Effective is a merged configuration and where each of its values came from. It is not changed after Load; any number of
// goroutines may read it.
type Effective struct {
	Config  Config
	Values  []Value     // every value, ordered as Text prints them
	Files   []File      // the user's file, then the project's
	Agents  []AgentFile // the agent files that were taken, in the order in which they were laid over one another
	Notes   []Note      // what was left out of agent files of Claude Code
	DataDir string      // absolute
	Cwd     string      // absolute
	Trusted bool        // whether the folder is trusted: no provider of another product is started where it is not

	sources map[string]Source // by key, sections included
	stated  bool              // Trusted is the word of an embedding program
}

// Configured reports whether there is a configuration file at all.
func (e *Effective) Configured() bool {
	return slices.ContainsFunc(e.Files, func(f File) bool { return f.Found })
}

// Load reads the configuration of a run. It reads files and changes nothing. The error joins every fault that was found, each
// an *Error, ordered by file and line; Faults takes it apart.
func Load(o LoadOptions) (*Effective, error) {
	e, err := LoadPartial(o)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// LoadPartial is Load for whoever looks for faults and runs nothing: when only agent files are at fault, what is left of the
// configuration comes with the error, so that a caller can find out what else is wrong. The agents of those files are in it
// with the values that are right.
func LoadPartial(o LoadOptions) (*Effective, error) {
	e, err := places(o)
	if err != nil {
		return nil, err
	}
	tree, f, home := schemaTree(), &faults{}, userHome(o.Env)
	m := defaults(tree, e.DataDir)
	agents := newAgentLoader(o, e, m, tree, home, f)
	for i := range e.Files {
		file := &e.Files[i]
		data, found, err := readFile(file.Path)
		if err == nil && !found && i == 0 && o.ConfigFile != "" {
			err = &Error{Kind: KindUsage, File: file.Path, Msg: "there is no such file"}
		}
		if err != nil {
			f.add(Faults(err)[0])
			agents.own(file.Kind)
			continue
		}
		file.Found = found
		if root := parseDocument(file.Path, data, f); root != nil {
			r := &reader{tree: tree, file: file.Path, kind: file.Kind, home: home, f: f}
			r.walk(root, tree, nil)
			if file.Kind == FromProject && !e.Trusted {
				distrust(r, root, m, e.Cwd)
			}
			m.merge(r.out)
		}
		agents.own(file.Kind)
	}
	agents.claude()
	complete(tree, m)
	m.fromEnv(tree, o.Env, e.Cwd, home, f)
	m.fromFlags(tree, o.Flags, e.Cwd, home, f)
	if e.agentsAlone(f) {
		kinds := o.Providers
		if kinds == nil {
			kinds = Kinds()
		}
		check(m, kinds, f)
	}
	if !e.agentsAlone(f) {
		return nil, f.err()
	}
	e.Config = build(m)
	e.Values = explain(tree, m, o.Env)
	e.sources = map[string]Source{}
	for key, s := range m {
		e.sources[key] = s.source
	}
	return e, f.err()
}

// agentsAlone reports whether every fault stands in a file of agents.
func (e *Effective) agentsAlone(f *faults) bool {
	return !slices.ContainsFunc(f.list, func(fault *Error) bool {
		return fault.File == "" || slices.ContainsFunc(e.Files, func(f File) bool { return f.Path == fault.File })
	})
}

// places finds the folders and files, and whether the folder is trusted.
func places(o LoadOptions) (*Effective, error) {
	e := &Effective{DataDir: o.DataDir}
	user := o.ConfigFile
	if e.DataDir == "" || user == "" {
		p, err := Dirs(o.Env)
		if err != nil {
			return nil, err
		}
		if e.DataDir == "" {
			e.DataDir = p.Data
		}
		if user == "" {
			user = p.ConfigFile
		}
	}
	if o.Cwd == "" {
		return nil, &Error{Kind: KindUsage, Msg: "no working directory was given"}
	}
	for _, path := range []*string{&e.DataDir, &user, &o.Cwd} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return nil, &Error{Kind: KindUsage, File: *path, Msg: "cannot be made absolute", Err: err}
		}
		*path = abs
	}
	e.Cwd = o.Cwd
	if info, err := os.Stat(e.Cwd); err != nil {
		return nil, &Error{Kind: KindUsage, File: e.Cwd, Msg: "the working directory cannot be used", Err: unwrapPath(err)}
	} else if !info.IsDir() {
		return nil, &Error{Kind: KindUsage, File: e.Cwd, Msg: "the working directory is not a folder"}
	}
	e.Files = []File{
		{Path: user, Kind: FromUser},
		{Path: filepath.Join(e.Cwd, ProjectFile), Kind: FromProject},
	}
	if o.Trusted != nil {
		e.Trusted, e.stated = *o.Trusted, true
		return e, nil
	}
	trusted, err := Trusted(e.DataDir, e.Cwd)
	if err != nil {
		return nil, err
	}
	e.Trusted = trusted
	return e, nil
}

// plea tells a person what to do about the folder.
func plea(cwd string) string { return `; run "offshoot trust ` + cwd + `" to trust this folder` }

// distrust reports what the file of a folder that is not trusted may not say. base is what stands without the file.
func distrust(r *reader, root *yaml.Node, base settings, cwd string) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key := root.Content[i]
		if at := r.tree.kid(key.Value); at != nil && at.rule.policy == refused {
			r.f.at(r.source(key.Line), key.Value, "is not taken from a folder that is not trusted%s", plea(cwd))
		}
	}
	distrustValues(r, base, plea(cwd))
}

func distrustValues(r *reader, base settings, plea string) {
	for _, s := range r.out {
		switch s.at.rule.policy {
		case children:
			if kind := s.value.(string); !slices.Contains(localKinds(), kind) {
				r.f.at(s.source, s.key, "a folder that is not trusted may not start another product (%s)%s", kind, plea)
			}
		case trusted:
			r.f.at(s.source, s.key, "is not taken from a folder that is not trusted%s", plea)
		case off:
			if s.value.(bool) {
				r.f.at(s.source, s.key, "a folder that is not trusted may not switch this on%s", plea)
			}
		case narrow:
			old, ok := base[s.key]
			if !ok && len(s.names) == 1 && strings.HasSuffix(s.key, ".maxDepth") {
				old, ok = setting{value: Depth{Max: defaultDepth}}, true
			}
			if isSwitch(s.value) && ok && widens(old.value, s.value) {
				r.f.at(s.source, s.key, "a folder that is not trusted may not switch this on%s", plea)
			} else if ok && widens(old.value, s.value) {
				r.f.at(s.source, s.key, "a folder that is not trusted may only lower this limit (%s)%s", render(old.value), plea)
			}
		}
	}
}

// isSwitch reports whether a value says whether something happens, not how much of it.
func isSwitch(v any) bool {
	switch v.(type) {
	case bool, BackgroundMode:
		return true
	}
	return false
}

// widens reports whether going from old to now allows more.
func widens(old, now any) bool {
	switch now := now.(type) {
	case int:
		return now > old.(int)
	case time.Duration:
		return now > old.(time.Duration)
	case bool:
		return now && !old.(bool)
	case BackgroundMode:
		return now == ModeContinuable && old.(BackgroundMode) != ModeContinuable
	case Depth:
		old := old.(Depth)
		return !old.Managed && (now.Managed || now.Max > old.Max)
	}
	return true
}
