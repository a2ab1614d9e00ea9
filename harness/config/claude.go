package config

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The agent files of Claude Code are another program's: nothing that they say or are stops a start, also where something
// cannot be read; what has no counterpart here is told in one note for each file, and no file is given more than it asks
// for. Only a file that was named beside those of the folders must be one. The rules:
//
//   - name, description and the body are taken; the body is literal.
//   - tools and disallowedTools go through the table below. A tool that is not in it, or only with a pattern in parentheses,
//     is not given. No list at all means "what the conversation has" there: here it is the table's tools, less what the root
//     agent's own filter hides. Delegation tools are never among them, as there.
//   - model: the parent's is used, whichever is named, since the file names no route.
//   - permissionMode: the run's own permission holds. With "plan", or a mode that is not known, and with "isolation", which
//     would keep the agent off the files of the folder, only the tools that read are left.
//   - hooks may forbid what the tools allow, and nothing here runs them: such a file is not taken at all, nor is one that is
//     switched off.
//
// Every definition of our own stands above them: a file that defines the same agent is left out with a note.

// claudeTools are the tools that have a counterpart, in the order in which they are given.
func claudeTools() []struct{ theirs, ours string } {
	return []struct{ theirs, ours string }{
		{"Bash", "bash"}, {"Read", "read"}, {"LS", "list"}, {"Glob", "list"}, {"Grep", "search"},
		{"Write", "write"}, {"Edit", "edit"}, {"MultiEdit", "edit"},
	}
}

// readingTools are those of the table that change nothing.
func readingTools() []string { return []string{"read", "list", "search"} }

func (l *agentLoader) note(file, format string, args ...any) {
	l.e.Notes = append(l.e.Notes, Note{File: file, Text: fmt.Sprintf(format, args...)})
}

// claude lays Claude Code's agent files under what is defined already: the user's, and over them the project's.
func (l *agentLoader) claude() {
	on := l.m["agents."+claudeKey].value.(bool)
	ours := map[string]bool{}
	for _, name := range l.m.entries("agents") {
		ours[name] = true
	}
	for _, d := range l.folders {
		if !d.claude {
			continue
		}
		if !on {
			d.path = ""
		}
		taken := map[string]agentText{}
		for _, text := range l.read(d, l.unread(d)) {
			c := &claudeFile{l: l, r: &reader{tree: l.tree, file: text.path, kind: d.kind, home: l.home, f: l.f}}
			name, problem := c.translate(text)
			old, twice := taken[name]
			switch {
			case problem != "":
				l.note(text.path, "is not taken: %s", problem)
			case ours[name]:
				l.note(text.path, "is not taken: agent %s is already defined by %s", name, l.m["agents."+name].source)
			case twice && old.extra && !text.extra: // it was named in the place of this one
			case twice:
				l.note(text.path, "is not taken: agent %s is already defined by %s", name, old.path)
			default:
				taken[name] = text
				l.m.merge(c.r.out)
				l.e.Agents = append(l.e.Agents, AgentFile{Path: text.path, Kind: d.kind, Agent: name, Claude: true})
				if len(c.lost) > 0 {
					l.note(text.path, "agent %s: not taken over: %s", name, c.losses())
				}
			}
		}
	}
}

// unread notes what could not be read of a folder. What was named beside it is at fault instead.
func (l *agentLoader) unread(d agentFolder) func(*Error) {
	return func(e *Error) {
		if e.Kind == KindIO && slices.Contains(d.extra, e.File) {
			l.f.add(e)
			return
		}
		text := e.Msg
		if e.Line > 0 {
			text = fmt.Sprintf("line %d: %s", e.Line, text)
		}
		if e.Err != nil {
			text += ": " + e.Err.Error()
		}
		l.note(e.File, "is not taken: %s", text)
	}
}

// claudeFile is one file in translation.
type claudeFile struct {
	l    *agentLoader
	r    *reader // of what it becomes
	lost []string
}

// maxLosses is how many of them one note names.
const maxLosses = 12

func (c *claudeFile) lose(format string, args ...any) {
	c.lost = append(c.lost, fmt.Sprintf(format, args...))
}

func (c *claudeFile) losses() string {
	list := c.lost
	if more := len(list) - maxLosses; more > 0 {
		list = append(slices.Clip(list[:maxLosses]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}

// translate fills c.r with what a file becomes, and returns the agent's name.
func (c *claudeFile) translate(text agentText) (name, problem string) {
	front, body, bodyLine, problem := splitFrontMatter(text.data)
	if problem != "" {
		return "", problem
	}
	root, problem := lenientDocument(text.path, front)
	if problem != "" {
		return "", problem
	}
	keys := map[string]*yaml.Node{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		keys[root.Content[i].Value] = root.Content[i+1]
	}
	line := func(key string) int { return max(keys[key].Line, 1) }
	value := func(key string) string { // of a scalar; else what makes no sense anywhere
		if n := keys[key]; n != nil && n.Kind == yaml.ScalarNode && !isNull(n) {
			return strings.TrimSpace(n.Value)
		}
		return ""
	}
	if name, problem = agentName(value("name")); problem != "" {
		return "", problem
	}
	section := []string{"agents", name}
	add := func(key string, v any, line int) {
		c.r.add(append(slices.Clip(section), strings.Split(key, ".")...), v, line)
	}
	c.r.add(section, nil, 1)
	if description := value("description"); description != "" {
		if _, problem := parseText(description); problem != "" {
			return "", "the description " + problem
		}
		add("description", description, line("description"))
	}
	if body != "" {
		if _, problem := parseText(body); problem != "" {
			return "", "the persona " + problem
		}
		add("persona", body, bodyLine)
		add("template", false, bodyLine)
	}
	narrow := false
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch key, n := root.Content[i].Value, root.Content[i+1]; key {
		case "name", "description", "tools", "disallowedTools":
		case "hooks":
			if !isNull(n) && len(n.Content)+len(n.Value) > 0 {
				return "", "its hooks may forbid what its tools allow, and nothing here runs them"
			}
		case "disabled":
			if value(key) != "false" {
				return "", "it is switched off"
			}
		case "model":
			if v := value(key); v != "inherit" {
				c.lose("model %s (it has its parent's)", quote(v))
			}
		case "permissionMode":
			v := value(key)
			if slices.Contains([]string{"default", "acceptEdits", "auto", "bypassPermissions", "dontAsk"}, v) {
				c.lose("permissionMode %s (the run's permission holds)", v)
				continue
			}
			narrow = true
			c.lose("permissionMode %s (the tools that only read are left)", quote(v))
		case "isolation":
			narrow = true
			c.lose("isolation %s (the tools that only read are left)", quote(value(key)))
		default:
			c.lose("%s", quote(key))
		}
	}
	at := 1
	if keys["tools"] != nil {
		at = line("tools")
	}
	add("tools", nil, at)
	add("tools.allow", c.tools(keys["tools"], keys["disallowedTools"], narrow), at)
	return name, ""
}

// tools translates the two lists. The result is always a list, so that nothing is inherited beyond it.
func (c *claudeFile) tools(allow, deny *yaml.Node, narrow bool) []string {
	m := c.l.m
	var names []string
	if allow == nil {
		for _, row := range claudeTools() {
			names = append(names, row.ours)
		}
		root := "agents." + DefaultAgent + ".tools."
		if only, ok := m[root+"allow"]; ok {
			names = combine("allow", only.value.([]string), names)
		}
		if never, ok := m[root+"deny"]; ok {
			names = without(names, never.value.([]string))
		}
	} else {
		for _, theirs := range toolNames(allow) {
			ours, ok := counterpart(theirs)
			if !ok {
				c.lose("tool %s", quote(theirs))
				continue
			}
			names = append(names, ours)
		}
	}
	for _, theirs := range toolNames(deny) {
		// A pattern forbids a part of what a tool does; only all of it can be.
		whole, _, _ := strings.Cut(theirs, "(")
		ours, ok := counterpart(strings.TrimSpace(whole))
		if !ok {
			c.lose("disallowed tool %s", quote(theirs))
			continue
		}
		if whole != theirs {
			c.lose("disallowed tool %s (all of %s is)", quote(theirs), ours)
		}
		names = without(names, []string{ours})
	}
	if narrow {
		names = combine("allow", readingTools(), names)
	}
	list := []string{}
	for _, row := range claudeTools() {
		if slices.Contains(names, row.ours) && !slices.Contains(list, row.ours) && c.exists(row.ours) {
			list = append(list, row.ours)
		}
	}
	return list
}

// exists tells whether the deployment has one of the table's tools.
func (c *claudeFile) exists(tool string) bool {
	key := "tools.files.enabled"
	if tool == "bash" {
		key = "tools.shell.enabled"
	}
	return c.l.m[key].value.(bool)
}

func counterpart(theirs string) (ours string, ok bool) {
	for _, row := range claudeTools() {
		if row.theirs == theirs {
			return row.ours, true
		}
	}
	return "", false
}

func without(names, never []string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(never, n) })
}

// toolNames reads "A, B(x, y)" or a list of such texts. What is neither names one tool that no table has.
func toolNames(n *yaml.Node) []string {
	switch {
	case n == nil || isNull(n):
		return nil
	case n.Kind == yaml.SequenceNode:
		var names []string
		for _, item := range n.Content {
			names = append(names, toolNames(item)...)
		}
		return names
	case n.Kind != yaml.ScalarNode:
		return []string{describe(n)}
	}
	var names []string
	depth, from := 0, 0
	text := n.Value + ","
	for i, r := range text {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && (depth <= 0 || i == len(text)-1):
			if name := strings.TrimSpace(text[from:i]); name != "" {
				names = append(names, name)
			}
			from = i + 1
		}
	}
	return names
}

// lenientDocument parses front matter that was written for a reader which takes an unquoted text with ": " in it.
func lenientDocument(file string, front []byte) (*yaml.Node, string) {
	var first *Error
	for _, data := range [][]byte{front, quoteTexts(front)} {
		f := &faults{}
		root := parseDocument(file, data, f)
		switch {
		case f.empty() && root == nil:
			return &yaml.Node{Kind: yaml.MappingNode}, ""
		case f.empty():
			return root, ""
		case first == nil:
			first = f.list[0]
		}
	}
	return nil, fmt.Sprintf("line %d: %s", first.Line, first.Msg)
}

// quoteTexts quotes every value that stands unquoted behind its key at the beginning of a line.
func quoteTexts(front []byte) []byte {
	line := regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_-]*:)[ \t]+([^ \t"'\[{|>].*)$`)
	lines := strings.Split(string(front), "\n")
	for i, s := range lines {
		if m := line.FindStringSubmatch(s); m != nil {
			// JSON's form of a text is YAML's too; a string always has one.
			if quoted, err := json.Marshal(strings.TrimSpace(m[2])); err == nil {
				lines[i] = m[1] + " " + string(quoted)
			}
		}
	}
	return []byte(strings.Join(lines, "\n"))
}
