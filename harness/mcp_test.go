package harness_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// mcpServer writes an MCP server that has the tools look, which answers with the id of
// its process, and odd, whose schema nobody can enforce. It notes each start in a file
// beside it, and returns its path.
func mcpServer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server")
	const script = `#!/bin/sh
echo $$ >>"$0.starts"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
  *'"method":"initialize"'*) body='"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"9"}}';;
  *'"method":"tools/list"'*) body='"result":{"tools":[{"name":"look","description":"Looks.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"odd","inputSchema":{"type":"object","$ref":"http://x/y"}}]}';;
  *'"method":"tools/call"'*) body="\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"process $$ $GIVEN\"}]}";;
  *) body='"error":{"code":-32601,"message":"unknown"}';;
  esac
  [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$body"
done
`
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// started lists the processes that a server was started as.
func started(t *testing.T, server string) []string {
	t.Helper()
	data, err := os.ReadFile(server + ".starts")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

func running(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// withServer opens a system with an MCP server and a script for a model.
func withServer(t *testing.T, text string, script scripted.Script) (*harness.Harness, *agent.Handle) {
	t.Helper()
	eff := configured(t, text)
	h, err := harness.Open(t.Context(), harness.Options{
		Config: eff, Env: config.MapEnviron(map[string]string{"THE_TOKEN": "given"}), Store: memory.New(), Permission: config.PermissionAllow,
		Adapters: func(r *llm.Registry) error {
			_, err := r.Register(scripted.New(script, scripted.Options{}), "script")
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), t.TempDir(), config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := root.Agent().Followup(agent.UserText("Look.")); err != nil {
		t.Fatal(err)
	}
	if err := root.Agent().WhenIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h, root
}

// results are the calls and results of an agent's log.
func results(a *agent.Agent) (list []string) {
	for e := range a.Session().Events(0) {
		if p, ok := e.Payload().(*session.ToolResult); ok {
			list = append(list, message.JoinText(p.Message.Content[0].Content))
		}
	}
	return list
}

// looks is a root that looks twice, and has a child that looks.
func looks() scripted.Script {
	return scripted.Script{
		{Name: "child", Match: scripted.FirstPrompt("You look"), Steps: []scripted.Step{
			{scripted.Call("eye_look", `{}`)},
			{scripted.Say("{{result:eye_look}}")},
		}},
		{Name: "root", Steps: []scripted.Step{
			{scripted.Call("eye_look", `{}`)},
			{scripted.Call("subagent", `{"description":"Look","prompt":"You look"}`)},
			{scripted.Call("eye_look", `{}`)},
			{scripted.Say("done")},
		}},
	}
}

// All agents of a process share a server, and it ends with the system.
func TestMCPServerIsShared(t *testing.T) {
	server := mcpServer(t)
	h, root := withServer(t, fmt.Sprintf("mcp: {eye: {command: %s, envFrom: {GIVEN: THE_TOKEN}}}", server), looks())
	pids := started(t, server)
	if len(pids) != 1 {
		t.Fatalf("started as %v", pids)
	}
	want := "process " + pids[0] + " given"
	if diff := cmp.Diff([]string{want, want, want}, results(root.Agent())); diff != "" {
		t.Error(diff)
	}
	if !running(pids[0]) {
		t.Error("the server is gone before the system")
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if running(pids[0]) {
		t.Error("the server outlives the system")
	}
}

// With isolate, each agent has a server of its own, from its first call to its end.
func TestMCPServerOfEachAgent(t *testing.T) {
	server := mcpServer(t)
	h, root := withServer(t, fmt.Sprintf("mcp: {eye: {command: %s, isolate: true}}", server), looks())
	pids := started(t, server)
	if len(pids) != 3 {
		t.Fatalf("started as %v: once for its tools, once for the root, once for the child", pids)
	}
	of := func(i int) string { return "process " + pids[i] + " " }
	if diff := cmp.Diff([]string{of(1), of(2), of(1)}, results(root.Agent())); diff != "" {
		t.Error(diff)
	}
	if running(pids[0]) || !running(pids[1]) || running(pids[2]) {
		t.Errorf("of %v the root's alone runs: %v %v %v", pids, running(pids[0]), running(pids[1]), running(pids[2]))
	}
	if err := root.Dispose(t.Context()); err != nil {
		t.Error(err)
	}
	if running(pids[1]) {
		t.Error("the root's server outlives it")
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Filters see the tools of servers like any others.
func TestMCPToolsAndFilters(t *testing.T) {
	server := mcpServer(t)
	open := func(text string, noServers bool) (*harness.Harness, error) {
		return harness.Open(t.Context(), harness.Options{Config: configured(t, text), Store: memory.New(), NoServers: noServers})
	}
	line := fmt.Sprintf("mcp: {eye: {command: %s}}\n", server)
	_, err := open(line+"agents: {default: {tools: {allow: [eye_lok]}}}", false)
	if err == nil || !strings.Contains(err.Error(), `:3: agents.default.tools.allow: no tool is named "eye_lok"; there are [bash edit eye_look `) {
		t.Errorf("error %v", err)
	}
	for _, pid := range started(t, server) {
		if running(pid) {
			t.Error("a server is left by an opening that failed")
		}
	}
	h, err := open(line+"tools: {deny: [eye_look]}", false)
	if err != nil {
		t.Fatal(err)
	}
	if h.Tools.Root().Toolset().Lookup("eye_look") != nil {
		t.Error("a denied tool is there")
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	before := len(started(t, server))
	h, err = open(line+"agents: {default: {tools: {allow: [eye_look, read]}}}", true)
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), t.TempDir(), config.Choice{Ref: config.ModelRef{Route: "demo", Model: "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := root.Agent().Tools().Visible(); len(got) != 1 || got[0].Name != "read" {
		t.Errorf("without servers it sees %v", got)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if len(started(t, server)) != before {
		t.Error("a server was started that nobody wanted")
	}
}

// A server that cannot be used fails the opening, and the fault stands where it is
// configured.
func TestMCPServerThatFails(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"mcp:\n  eye:\n    command: /nowhere/at/all\n", `:3: mcp.eye: MCP server "eye": it cannot be started: `},
		{"mcp:\n  eye:\n    command: sh\n    envFrom: {A: NOT_SET}\n", ":5: mcp.eye.envFrom.A: NOT_SET is not set"},
	} {
		_, err := harness.Open(t.Context(), harness.Options{Config: configured(t, test.text), Store: memory.New()})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v", err)
		}
	}
}

func TestProbeServer(t *testing.T) {
	server := mcpServer(t)
	eff := configured(t, fmt.Sprintf("mcp: {eye: {command: %s, trustHints: true}, none: {command: no-such-program-here}}", server))
	r, err := harness.ProbeServer(t.Context(), eff, "eye", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Found != server || r.About != "sh 9, protocol 2025-06-18" || !cmp.Equal(r.Tools, []string{"eye_look"}) || len(r.LeftOut) != 1 || r.LeftOut[0].Tool != "odd" {
		t.Errorf("%+v", r)
	}
	for _, pid := range started(t, server) {
		if running(pid) {
			t.Error("it was not ended")
		}
	}
	if _, err := harness.ProbeServer(t.Context(), eff, "none", nil); err == nil || !strings.Contains(err.Error(), "mcp.none.command: ") {
		t.Errorf("error %v", err)
	}
}
