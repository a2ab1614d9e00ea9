package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// file writes an agent file; name is below the folder "$HOME" or "$WORK".
func (p *place) file(name, text string) *place {
	p.t.Helper()
	path := p.long(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.t.Fatal(err)
	}
	return p.write(path, text)
}

func (p *place) long(s string) string {
	return filepath.FromSlash(strings.NewReplacer("$HOME", p.home, "$WORK", p.work).Replace(s))
}

const (
	userFile    = "$HOME/agents/reviewer.md"
	projectFile = "$WORK/.offshoot/agents/reviewer.md"
)

// TestAgentFile: every key and the body arrive in the entry of that name, each with its file and line; what a file does not
// say is as for an entry (seam TOOL-40, COMP-36: the body is literal).
func TestAgentFile(t *testing.T) {
	p := newPlace(t).file(projectFile, "\uFEFF---\r\ndescription: Reads a diff.\r\nprovider: fork\r\nmodel: ollama:qwen3\r\ntools:\r\n  allow: [read, list]\r\n  deny: [list]\r\nmaxTokens: 900\r\nmaxDepth: 1\r\nbackgroundMode: continuable\r\n---\r\n\r\nYou review {{code}}.\r\n\r\n  Indented.\r\n\r\n").
		file("$WORK/.offshoot/agents/bare.md", "---\n---\n").
		file("$WORK/.offshoot/agents/keyed.md", "---\ntemplate: false\npersona: In a key.\noutputSchema: {type: object}\n---  \n").
		file("$WORK/.offshoot/agents/notes.txt", "not an agent").
		file("$WORK/.offshoot/agents/.hidden.md", "not an agent")
	e := p.load()
	want := map[string]config.Agent{
		"default": {Name: "default"},
		"reviewer": {
			Name: "reviewer", Description: ptr("Reads a diff."), Provider: "fork", Persona: ptr("You review {{code}}.\n\n  Indented."), Template: new(bool),
			Tools: &config.Filter{Allow: []string{"read", "list"}, Deny: []string{"list"}}, Model: &config.ModelRef{Route: "ollama", Model: "qwen3"},
			MaxTokens: ptr(900), MaxDepth: config.Depth{Max: 1}, BackgroundMode: config.ModeContinuable,
		},
		"bare":  {Name: "bare", Provider: "spawn", MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeOneShot},
		"keyed": {Name: "keyed", Provider: "spawn", Persona: ptr("In a key."), Template: new(bool), OutputSchema: []byte(`{"type":"object"}`), MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeOneShot},
	}
	if diff := cmp.Diff(want, e.Config.Agents); diff != "" {
		t.Error(diff)
	}
	for key, want := range map[string]string{
		"agents.reviewer":             "project $WORK/.offshoot/agents/reviewer.md:1",
		"agents.reviewer.description": "project $WORK/.offshoot/agents/reviewer.md:2",
		"agents.reviewer.tools.deny":  "project $WORK/.offshoot/agents/reviewer.md:7",
		"agents.reviewer.persona":     "project $WORK/.offshoot/agents/reviewer.md:13",
		"agents.keyed.template":       "project $WORK/.offshoot/agents/keyed.md:2",
		"agents.bare.maxDepth":        "default",
	} {
		if src, _ := e.Source(key); p.short(src.String()) != want {
			t.Errorf("%s is from %s, want %s", key, src, want)
		}
	}
	var order []string
	for _, f := range e.Agents {
		order = append(order, f.Agent)
	}
	if diff := cmp.Diff([]string{"bare", "keyed", "reviewer"}, order); diff != "" || len(e.Notes) > 0 {
		t.Errorf("%s, notes %v", diff, e.Notes)
	}
	if got := text(e, "agents.reviewer.persona"); p.short(got) != `"You review {{code}}.\n\n  Indented."  # project $WORK/.offshoot/agents/reviewer.md:13` {
		t.Errorf("explained as %s", got)
	}
}

// TestAgentFileLayers: a file is one more layer of the entry, so the project's is laid over the user's key by key and a
// filter only narrows; a definition of one side stands in one place.
func TestAgentFileLayers(t *testing.T) {
	p := newPlace(t).user("agents: {quick: {description: from the entry, tools: {allow: [read, list]}}}\n").
		file(userFile, "---\ndescription: the user's\ntools: {allow: [read, list], deny: [bash]}\ntemplate: true\n---\nYou are {{name}}.").
		file(projectFile, "---\ntools: {allow: [read, bash]}\n---\nYou read.").
		file("$WORK/.offshoot/agents/quick.md", "---\ntools: {allow: [list, bash]}\n---\n")
	got := p.load().Config.Agents
	want := map[string]config.Agent{
		"default": {Name: "default"},
		"reviewer": {
			Name: "reviewer", Description: ptr("the user's"), Provider: "spawn", Persona: ptr("You read."), Template: new(bool),
			Tools: &config.Filter{Allow: []string{"read"}, Deny: []string{"bash"}}, MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeOneShot,
		},
		"quick": {Name: "quick", Description: ptr("from the entry"), Provider: "spawn", Tools: &config.Filter{Allow: []string{"list"}}, MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeOneShot},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	p.file("$HOME/agents/quick.md", "---\n---\n")
	p.project("agents:\n  reviewer: {}\n")
	if diff := cmp.Diff([]string{
		"config $HOME/agents/quick.md:1: agents.quick: is already defined by user $HOME/config.yaml:1; keep one of them",
		"config $WORK/.offshoot/agents/reviewer.md:1: agents.reviewer: is already defined by project $WORK/offshoot.yaml:2; keep one of them",
	}, p.faults()); diff != "" {
		t.Error(diff)
	}
	// A configuration file that was named stands in the place of all that is the user's.
	p.o.ConfigFile = p.long("$HOME/other.yaml")
	p.write(p.o.ConfigFile, "version: 1\n").project("version: 1\n")
	if a := p.load().Config.Agents["reviewer"]; a.Description != nil || *a.Persona != "You read." {
		t.Errorf("unexpected: %+v", a)
	}
}

// TestAgentFileRefusals: everything that a file may not say or be, with its line; nothing of it is taken.
func TestAgentFileRefusals(t *testing.T) {
	const at = "config " + projectFile + ":"
	tests := []struct{ name, text, want string }{
		{"empty", " ", "1: an agent file begins with a line --- and its keys in YAML"},
		{"no keys", "You review.\n", "1: an agent file begins with a line ---"},
		{"not closed", "---\ndescription: x\n", "1: the keys that begin here have no line --- at their end"},
		{"syntax", "---\n\ndescription: a: b\n---\n", "3: is not valid YAML"},
		{"list", "---\n- a\n---\n", "2: the file must be a mapping"},
		{"unknown key", "---\ndescription: x\ncolour: red\n---\n", `3: unknown key "colour" in agents.reviewer; known here: description, provider, persona, template, tools, model, maxTokens,`},
		{"unknown key deeper", "---\ntools:\n  alow: [read]\n---\n", `3: unknown key "alow" in agents.reviewer.tools; known here: allow, deny`},
		{"another tool's list", "---\ntools: Read, Grep\n---\n", "2: agents.reviewer.tools: must be a mapping of keys to values, not text"},
		{"filter of nothing", "---\ntools: {}\n---\n", "2: agents.reviewer.tools: must name allow or deny"},
		{"unknown route", "---\n\nmodel: gpt:5\n---\n", `3: agents.reviewer.model: unknown route "gpt"; the routes are anthropic,`},
		{"unknown provider", "---\nprovider: magic\n---\n", `2: agents.reviewer.provider: unknown provider "magic"; this program has spawn, fork`},
		{"schema", "---\n\noutputSchema: {type: array}\n---\n", "3: agents.reviewer.outputSchema: is not supported"},
		{"persona twice", "---\npersona: a\n---\n\nb\n", "5: the text below the keys is the persona, and the key persona is on line 2; keep one of them"},
		{"anchor", "---\ndescription: &a x\n---\n", "2: anchor &a"},
		{"duplicate", "---\nmodel: vllm\nmodel: vllm\n---\n", `3: duplicate key "model"; it is already on line 2`},
		{"latin-1", "---\n---\ncaf\xe9\n", "3: is not UTF-8 text"},
		{"binary", "\x7fELF\x00\x00", "1: holds the control character U+007F"},
		{"escape", "---\n---\nx\n\x1b[2J", "4: holds the control character U+001B"},
		{"old line end", "---\n---\na\rb", "3: the persona must not hold the control character U+000D"},
		{"large", "---\n---\n" + strings.Repeat("x", 128<<10), "is larger than 131072 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t).file(projectFile, tt.text).trust()
			got := p.faults()
			want := at + tt.want
			if strings.HasPrefix(tt.want, "is ") {
				want = "config " + projectFile + ": " + tt.want
			}
			if len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), want)
			}
		})
	}
}

// TestAgentFileNames: a name makes a tool's name, and one tool has one name (seam TOOL-37).
func TestAgentFileNames(t *testing.T) {
	long := strings.Repeat("a", 56)
	p := newPlace(t).user("providers:\n  a: {provider: spawn, toolName: subagent_reviewer}\n").file(projectFile, "---\n---\n")
	if diff := cmp.Diff([]string{
		`config $HOME/config.yaml:2: providers.a.toolName: tool name "subagent_reviewer" is already the tool of agent reviewer (project $WORK/.offshoot/agents/reviewer.md:1); give this one its own toolName`,
	}, p.faults()); diff != "" {
		t.Error(diff)
	}
	p = newPlace(t)
	const dir = "$WORK/.offshoot/agents/"
	for _, name := range []string{"Reviewer", "a b", "../x", "default", "claude", long} {
		p.file(dir+filepath.Base(name)+".md", "---\n---\n")
	}
	p.file(dir+"upper.MD", "---\n---\n").file(dir+"sub/x.md", "---\n---\n")
	if err := os.Mkdir(p.long(dir+"folder.md"), 0o700); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(p.faults(), "\n")
	for _, want := range []string{
		`Reviewer.md: the name of the agent: "Reviewer" is not a name`,
		`a b.md: the name of the agent: "a b" is not a name`,
		"default.md: default is the root agent",
		"claude.md: claude is no name of an agent",
		long + ".md: the name of the agent makes no tool name",
		"upper.MD: is no agent file: its name must end in .md",
		"sub: is a folder",
		"folder.md: is not a regular file",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no fault %q in\n%s", want, got)
		}
	}
	p = newPlace(t).user("agents:\n  " + long + ": {}\n  default: {provider: spawn, maxDepth: 1}\n  claude: {}\n")
	want := []string{"config $HOME/config.yaml:4: agents.claude: must be true or false, not a mapping"}
	if diff := cmp.Diff(want, p.faults()); diff != "" {
		t.Error(diff)
	}
	p.user("agents:\n  " + long + ": {}\n  default: {provider: spawn, maxDepth: 1}\n")
	got = strings.Join(p.faults(), "\n")
	for _, want := range []string{"config.yaml:2: agents." + long + ": the name makes no tool name", "config.yaml:3: agents.default.provider: default is the root agent", "config.yaml:3: agents.default.maxDepth: default is the root agent"} {
		if !strings.Contains(got, want) {
			t.Errorf("no fault %q in\n%s", want, got)
		}
	}
}

// TestAgentFilesBounded: a folder may hold anything; what is read of it is bounded, and all of it is told.
func TestAgentFilesBounded(t *testing.T) {
	p := newPlace(t)
	for i := range 101 {
		p.file(fmt.Sprintf("$WORK/.offshoot/agents/a%d.md", i), "---\n---\n")
	}
	want := []string{"config $WORK/.offshoot/agents: holds too much: at most 100 agent files, and 1000 files of any kind"}
	if diff := cmp.Diff(want, p.faults()); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(p.long("$WORK/.offshoot/agents/a7.md")); err != nil {
		t.Fatal(err)
	}
	if got := len(p.load().Config.Agents); got != 101 {
		t.Errorf("%d agents, want 100 and the root", got)
	}
	for i := range 901 {
		p.file(fmt.Sprintf("$WORK/.offshoot/agents/%d.txt", i), "x")
	}
	if diff := cmp.Diff(want, p.faults()); diff != "" {
		t.Error(diff)
	}
}

// TestAgentFileTrust: the files of a folder that is not trusted stay within what its offshoot.yaml may say (design, "Trust").
func TestAgentFileTrust(t *testing.T) {
	const plea = `; run "offshoot trust $WORK" to trust this folder`
	tests := []struct {
		name, user, text string
		untrusted        string // the one fault, "" when it is taken
	}{
		{name: "what an agent is", text: "---\ndescription: d\nprovider: fork\nmodel: ollama:x\ntools: {allow: [read, bash]}\nmaxTokens: 7\nmaxDepth: 2\ntemplate: false\n---\nYou are {{name}}."},
		{name: "template", text: "---\ntemplate: true\n---\nYou are {{name}}.", untrusted: "2: agents.reviewer.template: a folder that is not trusted may not switch this on" + plea},
		{
			name: "template of the user's too", user: "agents: {reviewer: {template: true}}", text: "---\ntemplate: true\n---\nx",
			untrusted: "2: agents.reviewer.template: a folder that is not trusted may not switch this on" + plea,
		},
		{name: "another product", text: "---\nprovider: codex\n---\n", untrusted: "2: agents.reviewer.provider: a folder that is not trusted may not start another product (codex)" + plea},
		{name: "depth", text: "---\nmaxDepth: 4\n---\n", untrusted: "2: agents.reviewer.maxDepth: a folder that is not trusted may only lower this limit (3)" + plea},
		{name: "any depth", text: "---\nmaxDepth: provider-managed\n---\n", untrusted: "2: agents.reviewer.maxDepth: a folder that is not trusted may only lower this limit (3)" + plea},
		{
			name: "the user's tokens", user: "agents: {reviewer: {maxTokens: 5}}", text: "---\nmaxTokens: 6\n---\n",
			untrusted: "2: agents.reviewer.maxTokens: a folder that is not trusted may only lower this limit (5)" + plea,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t).user(tt.user).file(projectFile, tt.text)
			p.o.Providers = []string{"spawn", "fork", "codex"}
			var want []string
			if tt.untrusted != "" {
				want = []string{"config " + projectFile + ":" + tt.untrusted}
			}
			if diff := cmp.Diff(want, p.faults()); diff != "" {
				t.Errorf("not trusted: %s", diff)
			}
			p.trust()
			if got := p.faults(); got != nil {
				t.Errorf("trusted: %q", got)
			}
		})
	}
	// Keys of the run are keys of no agent, trusted or not.
	p := newPlace(t).file(projectFile, "---\nbaseURL: https://evil.example/v1\nenv: {A: b}\npermissions: {mode: allow}\ncommand: rm\nstore: {path: x}\n---\n").trust()
	got := p.faults()
	for i, key := range []string{"baseURL", "env", "permissions", "command", "store"} {
		if want := fmt.Sprintf("config %s:%d: unknown key %q in agents.reviewer;", projectFile, i+2, key); len(got) != 5 || !strings.HasPrefix(got[i], want) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	if got := newPlace(t).project("agents: {claude: true}").faults(); len(got) != 1 || !strings.Contains(got[0], "agents.claude: a folder that is not trusted may not switch this on") {
		t.Errorf("claude: %q", got)
	}
}

// TestAgentFileLinks: a link is followed where the person may lay one; one that leads out of a folder that is not trusted is
// refused, whether it is the file or a folder above it.
func TestAgentFileLinks(t *testing.T) {
	const plea = `; run "offshoot trust $WORK" to trust this folder`
	link := func(p *place, to, from string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(p.long(from)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p.long(to), p.long(from)); err != nil {
			t.Fatal(err)
		}
	}
	outside := newPlace(t).file("$HOME/secret.md", "---\n---\nthe secret")
	link(outside, "$HOME/secret.md", projectFile)
	folder := newPlace(t).file("$HOME/shared/reviewer.md", "---\n---\nthe secret")
	link(folder, "$HOME/shared", "$WORK/.offshoot/agents")
	for p, where := range map[*place]string{outside: projectFile, folder: "$WORK/.offshoot/agents"} {
		want := []string{"config " + where + ": is reached by a symbolic link out of a folder that is not trusted" + plea}
		if diff := cmp.Diff(want, p.faults()); diff != "" {
			t.Error(diff)
		}
		if got := p.trust().load().Config.Agents["reviewer"].Persona; got == nil || *got != "the secret" {
			t.Errorf("trusted: %v", got)
		}
	}
	inside := newPlace(t).file("$WORK/prompts/r.md", "---\n---\nInside.").file("$HOME/dotfiles/u.md", "---\n---\nMine.")
	link(inside, "$HOME/dotfiles/u.md", "$HOME/agents/mine.md")
	if err := os.MkdirAll(inside.long("$WORK/.offshoot/agents"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../prompts/r.md", inside.long(projectFile)); err != nil {
		t.Fatal(err)
	}
	got := inside.load().Config.Agents
	if *got["reviewer"].Persona != "Inside." || *got["mine"].Persona != "Mine." {
		t.Errorf("unexpected: %+v", got)
	}
}

// TestAgentFilesNamed: files that are named beside the folders' stand in the place of those that define the same agent.
func TestAgentFilesNamed(t *testing.T) {
	p := newPlace(t).file(projectFile, "---\nbroken: 1\n---\n").file("$WORK/drafts/reviewer.md", "---\n---\nA draft.").
		file("$HOME/elsewhere/other.md", "---\ntemplate: true\n---\nMine.").file("$WORK/.claude/agents/c.md", "---\nname: helper\n---\nHelp.")
	p.o.AgentFiles = []string{p.long("$WORK/drafts/reviewer.md"), p.long("$HOME/elsewhere/other.md"), p.long("$WORK/.claude/agents/c.md")}
	e := p.load()
	got := e.Config.Agents
	if *got["reviewer"].Persona != "A draft." || *got["other"].Persona != "Mine." || *got["helper"].Persona != "Help." {
		t.Errorf("unexpected: %+v", got)
	}
	p.o.AgentFiles = []string{p.long("$WORK/gone.md"), p.long("$WORK/x.txt"), p.long(projectFile)}
	want := []string{
		"config $WORK/gone.md: cannot be read: no such file or directory",
		"config $WORK/x.txt: is no agent file: its name does not end in .md",
		`config ` + projectFile + `:2: unknown key "broken" in agents.reviewer`,
	}
	faults := p.faults()
	for i := range faults {
		faults[i], _, _ = strings.Cut(faults[i], "; known here")
	}
	if diff := cmp.Diff(want, faults); diff != "" {
		t.Error(diff)
	}
}
