package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// staff defines agents in every way there is.
func staff(t *testing.T) *home {
	h := newHome(t)
	h.write(filepath.Join(h.dir, "config.yaml"), "version: 1\nmodel: vllm\ntools: {deny: [write]}\nagents:\n  claude: true\n  default: {persona: \"You lead, {{cwd}}.\"}\n  twin: {description: \"Like you.\", provider: fork}\n")
	h.write(filepath.Join(h.dir, "agents", "writer.md"), "---\ndescription: Writes.\nmodel: ollama:big\ntemplate: true\n---\nYou write in {{cwd}}.\n")
	h.write(filepath.Join(h.work, ".offshoot", "agents", "reviewer.md"), "---\ndescription: Reads a diff.\ntools:\n  allow: [read, write, subagent_writer]\nmaxTokens: 900\n---\n\nYou review.\n\nYou never edit {{anything}}.\n")
	h.write(filepath.Join(h.work, ".claude", "agents", "debugger.md"), "---\nname: debugger\ndescription: Finds causes.\ntools: Read, WebFetch\nmodel: sonnet\n---\nYou find causes.\n")
	return h
}

const debuggerNote = "offshoot: WORK/.claude/agents/debugger.md: agent debugger: not taken over: model sonnet (it has its parent's), tool WebFetch\n"

// The definitions with the places that they come from, and what each comes to.
func TestAgentsGolden(t *testing.T) {
	h := staff(t)
	before := snapshot(t, filepath.Dir(h.dir))
	for name, args := range map[string][]string{
		"agents-list.txt":      {"agents", "list"},
		"agents-list.jsonl":    {"agents", "list", "--json"},
		"agents-reviewer.txt":  {"agents", "show", "reviewer"},
		"agents-reviewer.json": {"agents", "show", "reviewer", "--json"},
		"agents-twin.txt":      {"agents", "show", "twin"},
		"agents-writer.txt":    {"agents", "show", "writer"},
		"agents-debugger.txt":  {"agents", "show", "debugger"},
		"agents-default.txt":   {"agents", "show", "default"},
		"agents-check.txt":     {"agents", "check"},
	} {
		o := h.run(args...)
		note := ""
		if args[1] != "show" || args[2] == "debugger" {
			note = debuggerNote
		}
		if o.code != exitOK || h.plain(o.errOut) != note {
			t.Errorf("%v: %d, %s", args, o.code, o.errOut)
		}
		golden(t, name, h.plain(o.out))
	}
	if snapshot(t, filepath.Dir(h.dir)) != before {
		t.Error("looking at agents changed files")
	}
	if o := h.run("agents", "show", "nobody"); o.code != exitUsage || !strings.Contains(o.errOut, `no agent is named "nobody"; there are debugger, default, reviewer, twin, writer`) {
		t.Errorf("%d, %s", o.code, o.errOut)
	}
	if o := h.run("__complete", "agents", "show", "r"); !strings.HasPrefix(o.out, "reviewer\n") {
		t.Errorf("completion: %q", o.out)
	}
	if o := newHome(t).run("agents", "list"); o.code != exitOK || o.out != "" || o.errOut != "offshoot: no agent is defined\n" {
		t.Errorf("%+v", o)
	}
}

// Every fault of every file is told with its line, whichever part finds it; a run
// starts nothing then.
func TestAgentsCheckFaults(t *testing.T) {
	h := staff(t)
	h.env["OPENAI_API_KEY"] = ""
	dir := filepath.Join(h.work, ".offshoot", "agents")
	h.write(filepath.Join(dir, "a.md"), "---\ntools: {allow: [read, raed, wirte]}\n---\n")
	h.write(filepath.Join(dir, "b.md"), "---\n\nmodel: openai:gpt\n---\n")
	h.write(filepath.Join(dir, "c.md"), "---\ntools:\n  deny: [bash, Bash]\n---\n")
	tools := "; there are [bash edit job_kill job_list job_output list read search subagent subagent_a subagent_b subagent_c subagent_debugger subagent_reviewer subagent_twin subagent_writer write]\n"
	want := "offshoot: config WORK/.offshoot/agents/b.md:3: agents.b.model: route openai needs a key: set OPENAI_API_KEY\n" +
		"offshoot: config WORK/.offshoot/agents/a.md:2: agents.a.tools.allow: no tool is named \"raed\"" + tools +
		"offshoot: config WORK/.offshoot/agents/a.md:2: agents.a.tools.allow: no tool is named \"wirte\"" + tools +
		"offshoot: config WORK/.offshoot/agents/c.md:3: agents.c.tools.deny: no tool is named \"Bash\"" + tools
	for _, args := range [][]string{{"agents", "check"}, {"run", "--model", "demo", "x"}} {
		o := h.run(args...)
		got := strings.ReplaceAll(h.plain(o.errOut), debuggerNote, "")
		if diff := cmp.Diff(want, got); diff != "" || o.code != exitUsage || o.out != "" {
			t.Errorf("%v: code %d, %q %s", args, o.code, o.out, diff)
		}
	}
	h.write(filepath.Join(dir, "c.md"), "---\nprovider: magic\n---\n")
	h.write(filepath.Join(dir, "d.md"), "You do this.\n")
	want = "offshoot: config WORK/.offshoot/agents/c.md:2: agents.c.provider: a folder that is not trusted may not start another product (magic); run \"offshoot trust WORK\" to trust this folder\n" +
		"offshoot: config WORK/.offshoot/agents/c.md:2: agents.c.provider: unknown provider \"magic\"; this program has spawn, fork, codex, claude-code\n" +
		"offshoot: config WORK/.offshoot/agents/d.md:1: an agent file begins with a line --- and its keys in YAML\n" +
		"offshoot: config WORK/.offshoot/agents/e.md:2: agents.e.model: unknown route \"nope\"; the routes are anthropic, openai, deepseek, openrouter, ollama, vllm, llamacpp, demo\n" +
		"offshoot: config WORK/.offshoot/agents/b.md:3: agents.b.model: route openai needs a key: set OPENAI_API_KEY\n" +
		strings.ReplaceAll("offshoot: config WORK/.offshoot/agents/a.md:2: agents.a.tools.allow: no tool is named \"raed\""+tools+
			"offshoot: config WORK/.offshoot/agents/a.md:2: agents.a.tools.allow: no tool is named \"wirte\""+tools, "subagent_debugger", "subagent_d subagent_debugger subagent_e")
	h.write(filepath.Join(dir, "e.md"), "---\nmodel: nope:x\ntools: {deny: [subagent_d]}\n---\n")
	o := h.run("agents", "check")
	if diff := cmp.Diff(want, strings.ReplaceAll(h.plain(o.errOut), debuggerNote, "")); diff != "" || o.code != exitUsage {
		t.Errorf("code %d %s", o.code, diff)
	}
	if matches, err := filepath.Glob(filepath.Join(h.dir, "*.db*")); err != nil || len(matches) > 0 {
		t.Errorf("something was stored: %v, %v", matches, err)
	}
}

// A persona that no agent could be given is a fault of its file, told before anything runs
// (core P4); a literal one is text, whatever stands in it.
func TestAgentsCheckPersonas(t *testing.T) {
	h := newHome(t)
	h.write(filepath.Join(h.dir, "config.yaml"), "version: 1\nagents:\n  default:\n    persona: \"You lead {{team}}.\"\n"+
		"  copy: {provider: fork}\nproviders:\n  aide: {provider: spawn, toolName: aide, persona: \"{{ cwd }}\"}\n")
	h.write(filepath.Join(h.dir, "agents", "writer.md"), "---\ntemplate: true\n---\nYou write in {{cwd}}\non {{mode}}.\n")
	h.write(filepath.Join(h.dir, "agents", "plain.md"), "---\n---\nYou fill in {{anything}}.\n")
	variables := "; the variables are cwd, model, provider\n"
	want := "offshoot: config HOME/config.yaml:4: agents.default.persona: \"{{team}}\": unknown variable" + variables +
		"offshoot: config HOME/agents/writer.md:4: agents.writer.persona: \"{{mode}}\": unknown variable" + variables +
		"offshoot: config HOME/config.yaml:7: providers.aide.persona: \"{{ cwd }}\": malformed variable group, want {{name}} with name like [a-z][a-z0-9_]*" + variables
	for _, args := range [][]string{{"agents", "check"}, {"run", "--model", "demo", "x"}} {
		o := h.run(args...)
		if diff := cmp.Diff(want, h.plain(o.errOut)); diff != "" || o.code != exitUsage || o.out != "" {
			t.Errorf("%v: code %d, %q %s", args, o.code, o.out, diff)
		}
	}
	if matches, err := filepath.Glob(filepath.Join(h.dir, "*.db*")); err != nil || len(matches) > 0 {
		t.Errorf("something was stored: %v, %v", matches, err)
	}
}

// A file can be checked before it is put where it counts.
func TestAgentsCheckFile(t *testing.T) {
	h := staff(t)
	h.write(filepath.Join(h.work, "drafts", "reviewer.md"), "---\ntools: {allow: [list, subagent_writer]}\n---\nDraft.\n")
	h.write(filepath.Join(h.work, "drafts", "bad.md"), "---\ncolour: red\n---\n")
	o := h.run("agents", "check", "drafts/reviewer.md")
	if o.code != exitOK || !strings.Contains(h.plain(o.out), "WORK/drafts/reviewer.md:1") || strings.Contains(o.out, "writer.md") {
		t.Errorf("%+v", o)
	}
	// One that is the user's, below a project's of the same name, counts as well; so does
	// a path that is not in its shortest form.
	mine := filepath.Join(filepath.Dir(h.work), "drafts", "reviewer.md")
	h.write(mine, "---\nmaxTokens: 1000\n---\nMine.\n")
	o = h.run("agents", "check", filepath.Dir(mine)+"/../drafts/reviewer.md")
	if o.code != exitOK || !strings.Contains(o.out, "subagent_reviewer ") || strings.Contains(o.out, "writer") {
		t.Errorf("%+v", o)
	}
	o = h.run("agents", "check", "drafts/bad.md", "drafts/gone.md")
	if o.code != exitFailure || !strings.Contains(h.plain(o.errOut), `drafts/bad.md:2: unknown key "colour"`) || !strings.Contains(h.plain(o.errOut), "WORK/drafts/gone.md: cannot be read") {
		t.Errorf("%+v", o)
	}
}
