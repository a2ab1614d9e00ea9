package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

const claudeFile = "$WORK/.claude/agents/reviewer.md"

// claude loads one agent file of Claude Code, and returns the tools that its agent may have and the notes.
func (p *place) claude(text string) (tools []string, notes []string) {
	p.t.Helper()
	e := p.file(claudeFile, text).load()
	for _, n := range e.Notes {
		notes = append(notes, strings.TrimPrefix(p.short(n.String()), claudeFile+": "))
	}
	a, ok := e.Config.Agents["reviewer"]
	if !ok {
		return nil, notes
	}
	if a.Tools == nil || a.Tools.Allow == nil || a.Tools.Deny != nil {
		p.t.Fatalf("the filter of a file that is not ours must be an allow list: %+v", a.Tools)
	}
	return a.Tools.Allow, notes
}

// TestClaudeFile: such files are read only when the person says so; what they say is literal, and comes with its place.
func TestClaudeFile(t *testing.T) {
	p := newPlace(t).file(claudeFile, "---\nname: reviewer\ndescription: Use it. Examples: \\n<example>a: b</example>\ntools: Read, Grep\ncolor: red\n---\nYou review {{code}}.\n")
	if e := p.load(); len(e.Config.Agents) != 1 || len(e.Notes) > 0 {
		t.Errorf("taken without being asked for: %+v, %v", e.Config.Agents, e.Notes)
	}
	p.user("agents: {claude: true}\n")
	e := p.load()
	want := config.Agent{
		Name: "reviewer", Description: ptr(`Use it. Examples: \n<example>a: b</example>`), Provider: "spawn", Persona: ptr("You review {{code}}."), Template: new(bool),
		Tools: &config.Filter{Allow: []string{"read", "search"}}, MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeOneShot,
	}
	if diff := cmp.Diff(want, e.Config.Agents["reviewer"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]config.Note{{File: p.long(claudeFile), Text: "agent reviewer: not taken over: color"}}, e.Notes); diff != "" {
		t.Error(diff)
	}
	if src, _ := e.Source("agents.reviewer.tools.allow"); p.short(src.String()) != "project "+claudeFile+":4" {
		t.Errorf("the tools are from %s", src)
	}
}

// TestClaudeTools: a list that cannot be taken over narrows and never widens, and each loss is told (seam COMP-13: an empty
// list hides everything).
func TestClaudeTools(t *testing.T) {
	all := []string{"bash", "read", "list", "search", "write", "edit"}
	reading := []string{"read", "list", "search"}
	tests := []struct {
		name, user, keys string
		tools            []string // nil: not taken
		note             string   // "" for none
	}{
		{name: "table", keys: "tools: Bash, Read, LS, Glob, Grep, Write, Edit, MultiEdit", tools: all},
		{name: "list", keys: "tools: [Read, 'Glob']", tools: []string{"read", "list"}},
		{name: "none given", keys: "description: x", tools: all},
		{name: "none given, the root has fewer", user: "agents: {claude: true, default: {tools: {allow: [read, bash, write], deny: [bash]}}}", keys: "", tools: []string{"read", "write"}},
		{name: "none given, no shell", user: "agents: {claude: true}\ntools: {shell: {enabled: false}}", keys: "", tools: all[1:]},
		{name: "no files", user: "agents: {claude: true}\ntools: {files: {enabled: false}}", keys: "tools: Bash, Read", tools: []string{"bash"}},
		{name: "empty", keys: "tools:", tools: []string{}},
		{name: "empty list", keys: "tools: []", tools: []string{}},
		{name: "unknown only", keys: "tools: WebFetch, mcp__github__issue", tools: []string{}, note: "agent reviewer: not taken over: tool WebFetch, tool mcp__github__issue"},
		{name: "star", keys: "tools: *", tools: []string{}, note: `agent reviewer: not taken over: tool "*"`},
		{name: "pattern", keys: "tools: Read, Bash(git log:*, git diff)", tools: []string{"read"}, note: `agent reviewer: not taken over: tool "Bash(git log:*, git diff)"`},
		{name: "open pattern", keys: "tools: Bash(git, Read", tools: []string{}, note: `agent reviewer: not taken over: tool "Bash(git, Read"`},
		{name: "other spelling", keys: "tools: bash, READ", tools: []string{}, note: "agent reviewer: not taken over: tool bash, tool READ"},
		{name: "delegation", keys: "tools: Read, Task, Agent(helper)", tools: []string{"read"}, note: `agent reviewer: not taken over: tool Task, tool "Agent(helper)"`},
		{name: "mapping", keys: "tools: {Bash: true}", tools: []string{}, note: `agent reviewer: not taken over: tool a mapping`},
		{name: "denied", keys: "tools: Read, Write, Edit\ndisallowedTools: Write", tools: []string{"read", "edit"}},
		{name: "denied of all", keys: "disallowedTools: [Bash, WebFetch]", tools: all[1:], note: "agent reviewer: not taken over: disallowed tool WebFetch"},
		{name: "denied in part", keys: "disallowedTools: Bash(rm:*)", tools: all[1:], note: `agent reviewer: not taken over: disallowed tool "Bash(rm:*)" (all of bash is)`},
		{name: "plan", keys: "permissionMode: plan", tools: reading, note: "agent reviewer: not taken over: permissionMode plan (the tools that only read are left)"},
		{name: "mode to come", keys: "tools: Read, Bash\npermissionMode: strict", tools: []string{"read"}, note: "agent reviewer: not taken over: permissionMode strict (the tools that only read are left)"},
		{name: "bypass", keys: "tools: Bash\npermissionMode: bypassPermissions", tools: []string{"bash"}, note: "agent reviewer: not taken over: permissionMode bypassPermissions (the run's permission holds)"},
		{name: "worktree", keys: "isolation: worktree", tools: reading, note: "agent reviewer: not taken over: isolation worktree (the tools that only read are left)"},
		{name: "model", keys: "tools: Read\nmodel: opus\nskills: [a]\nmaxTurns: 3", tools: []string{"read"}, note: "agent reviewer: not taken over: model opus (it has its parent's), skills, maxTurns"},
		{name: "inherits its model", keys: "tools: Read\nmodel: inherit", tools: []string{"read"}},
		{name: "hooks", keys: "tools: Bash\nhooks:\n  PreToolUse: [{matcher: Bash}]", note: "is not taken: its hooks may forbid what its tools allow, and nothing here runs them"},
		{name: "no hooks", keys: "tools: Read\nhooks: {}", tools: []string{"read"}},
		{name: "switched off", keys: "disabled: true", note: "is not taken: it is switched off"},
		{name: "duplicate", keys: "tools: Read\ntools: Bash", note: `is not taken: line 4: duplicate key "tools"; it is already on line 3`},
		{name: "no YAML", keys: "tools: [Read", note: "is not taken: line 3: is not valid YAML: did not find expected ',' or ']'"},
		{name: "many", keys: "tools: " + strings.Repeat("X, ", 20), tools: []string{}, note: "agent reviewer: not taken over: " + strings.Repeat("tool X, ", 12) + "and 8 more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.user == "" {
				tt.user = "agents: {claude: true}"
			}
			tools, notes := newPlace(t).user(tt.user).claude("---\nname: reviewer\n" + tt.keys + "\n---\nx\n")
			if diff := cmp.Diff(tt.tools, tools); diff != "" {
				t.Errorf("tools: %s", diff)
			}
			var want []string
			if tt.note != "" {
				want = []string{tt.note}
			}
			if diff := cmp.Diff(want, notes); diff != "" {
				t.Errorf("notes: %s", diff)
			}
		})
	}
}

// TestClaudeFilesBelow: our own definitions stand above them, the project's above the user's; a file that makes no agent
// stops nothing.
func TestClaudeFilesBelow(t *testing.T) {
	p := newPlace(t).user("agents: {claude: true, mine: {}}\n").
		file(projectFile, "---\n---\nOurs.").
		file(claudeFile, "---\nname: reviewer\n---\nTheirs.").
		file("$WORK/.claude/agents/mine.md", "---\nname: mine\n---\nTheirs.").
		file("$WORK/.claude/agents/README.md", "# Agents\n").
		file("$WORK/.claude/agents/nameless.md", "---\ndescription: x\n---\n").
		file("$WORK/.claude/agents/root.md", "---\nname: default\n---\n").
		file("$WORK/.claude/agents/z.md", "---\nname: both\n---\nLater.").
		file("$WORK/.claude/agents/b.md", "---\nname: both\ntools: Read, Write\n---\nThe project's.").
		file("$WORK/.claude/agents/sub/c.md", "---\nname: c\n---\n").
		file("$HOME/claude/agents/both.md", "---\nname: both\ntools: Read, Bash\n---\nThe user's.")
	p.env["CLAUDE_CONFIG_DIR"] = p.long("$HOME/claude")
	e := p.load()
	got := e.Config.Agents
	if len(got) != 4 || *got["reviewer"].Persona != "Ours." || got["mine"].Persona != nil || *got["both"].Persona != "The project's." {
		t.Errorf("unexpected: %+v", got)
	}
	if diff := cmp.Diff([]string{"read"}, got["both"].Tools.Allow); diff != "" {
		t.Error(diff)
	}
	const dir = "$WORK/.claude/agents/"
	if diff := cmp.Diff([]string{
		dir + "sub: is not taken: is a folder; agent files are read from the folder above it alone",
		dir + "README.md: is not taken: an agent file begins with a line --- and its keys in YAML",
		dir + "mine.md: is not taken: agent mine is already defined by user $HOME/config.yaml:1",
		dir + `nameless.md: is not taken: the name of the agent: "" is not a name; a name is a lower-case letter, then lower-case letters, digits and -, at most 64 in all`,
		dir + "reviewer.md: is not taken: agent reviewer is already defined by project $WORK/.offshoot/agents/reviewer.md:1",
		dir + "root.md: is not taken: default is the root agent: define it in a configuration file, under agents.default",
		dir + "z.md: is not taken: agent both is already defined by " + dir + "b.md",
	}, p.notes()); diff != "" {
		t.Error(diff)
	}
	p = newPlace(t).user("agents: {claude: true}\n").file("$WORK/.claude/agents", "a file")
	if diff := cmp.Diff([]string{"$WORK/.claude/agents: is not taken: is not a folder"}, p.notes()); diff != "" {
		t.Error(diff)
	}
}

// TestClaudeFileNamed: a file that was named stands in the place of the folder's that makes the same agent, without a word
// about that; of two that were named the second one is told.
func TestClaudeFileNamed(t *testing.T) {
	const drafts = "$WORK/drafts/.claude/agents/"
	p := newPlace(t).user("agents: {claude: true}\n").
		file(claudeFile, "---\nname: reviewer\n---\nThe folder's.").
		file(drafts+"a.md", "---\nname: reviewer\n---\nThe draft's.").
		file(drafts+"b.md", "---\nname: reviewer\n---\nAnother draft's.")
	p.o.AgentFiles = []string{p.long(drafts + "a.md")}
	if notes := p.notes(); len(notes) > 0 {
		t.Errorf("told: %q", notes)
	}
	p.o.AgentFiles = append(p.o.AgentFiles, p.long(drafts+"b.md"))
	if diff := cmp.Diff([]string{drafts + "b.md: is not taken: agent reviewer is already defined by " + drafts + "a.md"}, p.notes()); diff != "" {
		t.Error(diff)
	}
	if got := p.load().Config.Agents["reviewer"].Persona; got == nil || *got != "The draft's." {
		t.Errorf("persona %v", got)
	}
	p.o.AgentFiles = nil
	if got := p.load().Config.Agents["reviewer"].Persona; got == nil || *got != "The folder's." {
		t.Errorf("persona %v", got)
	}
}

// notes loads the configuration and returns its notes.
func (p *place) notes() (notes []string) {
	p.t.Helper()
	for _, n := range p.load().Notes {
		notes = append(notes, p.short(n.String()))
	}
	return notes
}
