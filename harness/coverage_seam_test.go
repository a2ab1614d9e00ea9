package harness_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// seam REG-24, TOOL-09; amendment P01: a composition without delegation is complete.
// Agents, tools, stores and models work, and no subagent tool is offered.
func TestREG24WithoutDelegation(t *testing.T) {
	home, work := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(home, "config.yaml"): "version: 1\nproviders: {}\n",
		filepath.Join(work, "a.txt"):       "alpha\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	model := scripted.New(scripted.Script{{Steps: []scripted.Step{
		{scripted.Call("read", `{"path":"a.txt"}`), scripted.Call("subagent", `{"description":"d","prompt":"p"}`)},
		{scripted.Say("It says {{result:read}}")},
	}}}, scripted.Options{})
	eff, err := config.Load(config.LoadOptions{Cwd: work, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home})})
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New()
	h, err := harness.Open(t.Context(), harness.Options{
		Config: eff, Store: store,
		Adapters: func(r *llm.Registry) error { _, err := r.Register(model, "script"); return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), work, config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}})
	if err != nil {
		t.Fatal(err)
	}
	a := root.Agent()
	if err := a.Followup(agent.UserText("What does a.txt say?")); err != nil {
		t.Fatal(err)
	}
	if err := a.WhenIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	var tools []string
	for _, spec := range model.Calls()[0].Request.Tools {
		tools = append(tools, spec.Name)
	}
	if slices.Contains(tools, "subagent") || !slices.Contains(tools, "read") || !slices.Contains(tools, "bash") {
		t.Errorf("the model is offered %v", tools)
	}
	history, _ := a.Session().History()
	var results []message.Block
	for _, m := range history {
		for _, b := range m.Content {
			if b.Type == message.BlockToolResult {
				results = append(results, b)
			}
		}
	}
	if len(results) != 2 || results[0].IsError || message.JoinText(results[0].Content) != "alpha\n" || !results[1].IsError {
		t.Errorf("results %+v, want the file, and a refusal of the tool that is not there", results)
	}
	if got, want := message.JoinText(history[len(history)-1].Content), "It says alpha\n"; got != want {
		t.Errorf("answer (-want +got):\n%s", cmp.Diff(want, got))
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
