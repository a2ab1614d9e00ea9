//go:build unix

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

// toolNamesOf are the tools that a request offers.
func toolNamesOf(r fakemodel.Request) []string {
	var names []string
	for _, d := range r.Tools {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return names
}

// hand is a directive that calls the tool of an agent.
func hand(agent, prompt string) string {
	return strings.Replace(delegation("a look", prompt), "[[fake:tool subagent ", "[[fake:tool subagent_"+agent+" ", 1)
}

// TestAgentFiles: an agent file of each kind is a tool that the model sees and calls; the
// child has the file's persona, letter by letter, its tools and its limits, and no more
// (COMP-08, COMP-11, COMP-36, TOOL-40).
func TestAgentFiles(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.DeepSeek)
	w.write(filepath.Join(w.home, "config.yaml"), "model: deepseek:fake-model\nagents: {claude: true}\n")
	w.write(".offshoot/agents/reviewer.md", "---\ndescription: Reads a diff.\ntools: {allow: [read]}\nmaxTokens: 77\n---\nReview {{this}}, never edit.\n")
	w.write(".claude/agents/debugger.md", "---\nname: debugger\ndescription: Finds causes.\ntools: Grep, Bash(go test:*)\n---\nDebug {{that}}.\n")
	w.write("a.txt", "alpha\n")
	e := w.ok("run", hand("reviewer", `[[fake:tool read {"path":"a.txt"}]] [[fake:tool bash {"command":"touch made"}]] [[fake:reply reviewed]]`)+
		hand("debugger", "[[fake:reply debugged]]")+"[[fake:reply {{match:reviewed}}, {{match:debugged}}]]")
	if e.stdout != "reviewed, debugged\n" {
		t.Errorf("%v", e)
	}
	if want := "debugger.md: agent debugger: not taken over: tool \"Bash(go test:*)\"\n"; strings.Count(e.stderr, want) != 1 {
		t.Errorf("the loss is not told once: %v", e)
	}
	seen := map[string]bool{}
	for _, r := range s.Requests() {
		tools, system := toolNamesOf(r), string(r.Messages[0].Content)
		switch {
		case strings.Contains(system, "Review {{this}}, never edit."):
			seen["reviewer"] = true
			if !slices.Equal(tools, []string{"read"}) || r.MaxTokens != 77 {
				t.Errorf("the reviewer has %v and %d tokens", tools, r.MaxTokens)
			}
		case strings.Contains(system, "Debug {{that}}."):
			seen["debugger"] = true
			if !slices.Equal(tools, []string{"search"}) {
				t.Errorf("the debugger has %v", tools)
			}
		default:
			seen["root"] = true
			if !slices.Contains(tools, "subagent_reviewer") || !slices.Contains(tools, "subagent_debugger") {
				t.Errorf("the root has %v", tools)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("requests of %v", seen)
	}
	w.verify()
	_, children := w.tree()
	var refused []string
	for _, c := range children {
		for _, r := range payloads[*session.ToolResult](t, c) {
			refused = append(refused, r.ErrorCode)
		}
	}
	if diff := cmp.Diff([]string{"", "UNKNOWN_TOOL"}, refused); diff != "" {
		t.Errorf("what the reviewer's calls came to: %s", diff)
	}
}

// TestAgentFilesHostile: what the files of a folder that is not trusted ask for beyond what
// agents are made of is refused before anything runs, and what they may ask for stays
// below the run's permission and the person's own filter (design § 4, Trust).
func TestAgentFilesHostile(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	for i, keys := range []string{
		"baseURL: http://127.0.0.1:9/v1", "env: {A: b}", "routes: {openai: {baseURL: 'http://127.0.0.1:9'}}", "provider: claudecode", "permissions: {mode: allow}",
		"template: true", "maxDepth: provider-managed", "maxDepth: 99", "command: [sh]", "model: evil:m",
	} {
		w.write(".offshoot/agents/helper.md", "---\ndescription: Helps.\n"+keys+"\n---\nHelp.\n")
		e := w.run("run", "[[fake:reply no]]")
		if want := fmt.Sprintf("config %s:3: ", filepath.Join(w.cwd, ".offshoot", "agents", "helper.md")); e.code != exitUsage || e.stdout != "" || !strings.Contains(e.stderr, want) {
			t.Errorf("%d, %s: %v", i, keys, e)
		}
	}
	if s.Total() != 0 {
		t.Errorf("%d requests left", s.Total())
	}

	w.write(filepath.Join(w.home, "config.yaml"), "model: openai:fake-model\ntools: {deny: [bash]}\n")
	w.write(".offshoot/agents/helper.md", "---\ndescription: Helps.\ntools: {allow: [bash, write, read]}\n---\nHelp {{me}}.\n")
	e := w.ok("run", "--permission", "read-only", hand("helper", `[[fake:tool bash {"command":"touch made"}]] [[fake:tool write {"path":"made","content":"x"}]] [[fake:reply tried]]`)+"[[fake:reply {{match:tried}}]]")
	if e.stdout != "tried\n" {
		t.Errorf("%v", e)
	}
	for _, r := range s.Requests() {
		if tools := toolNamesOf(r); slices.Contains(tools, "bash") {
			t.Errorf("a request offers %v", tools)
		}
	}
	if made, err := filepath.Glob(filepath.Join(w.cwd, "made")); err != nil || len(made) > 0 {
		t.Errorf("the child wrote: %v, %v", made, err)
	}
	_, children := w.tree()
	if len(children) != 1 {
		t.Fatalf("%d children", len(children))
	}
	var codes []string
	for _, r := range payloads[*session.ToolResult](t, children[0]) {
		codes = append(codes, r.ErrorCode)
	}
	if diff := cmp.Diff([]string{"UNKNOWN_TOOL", "DENIED"}, codes); diff != "" {
		t.Errorf("what the child's calls came to: %s", diff)
	}
}
