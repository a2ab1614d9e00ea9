package harness_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// The model's prompt cache: whatever persona and filter the root agent has, and
// whether its persona is a template or text, a fork's requests have the same system
// prompt and tools, and begin with the root's messages; on every level.
func TestForkGoesOnAsTheRoot(t *testing.T) {
	const file = "agents:\n  default: {persona: 'Root on {{model}}.', tools: {deny: [write, edit]}}\nproviders:\n  main: {provider: fork}\n"
	for name, trusted := range map[string]bool{"a template": true, "text": false} {
		t.Run(name, func(t *testing.T) {
			work := t.TempDir()
			if err := os.WriteFile(filepath.Join(work, "offshoot.yaml"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			eff, err := config.Load(config.LoadOptions{Cwd: work, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home}), Trusted: &trusted})
			if err != nil {
				t.Fatal(err)
			}
			model := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{
				{scripted.Say("a first answer")},
				{scripted.Call("subagent", `{"description":"d","prompt":"deeper"}`)}, // of the root
				{scripted.Say("done")},
			}}}, scripted.Options{})
			h, err := harness.Open(t.Context(), harness.Options{
				Config: eff, Store: memory.New(),
				Adapters: func(r *llm.Registry) error { _, err := r.Register(model, "script"); return err },
			})
			if err != nil {
				t.Fatal(err)
			}
			root, err := h.NewRoot(t.Context(), work, config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}})
			if err != nil {
				t.Fatal(err)
			}
			for _, prompt := range []string{"one", "two"} {
				if err := root.Agent().Followup(agent.UserText(prompt)); err != nil {
					t.Fatal(err)
				}
				if err := root.Agent().WhenIdle(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
			calls := model.Calls()
			first, depths := calls[0].Request, map[string]bool{}
			for _, c := range calls {
				depths[c.Request.SessionID] = true
				if c.Request.System != first.System {
					t.Errorf("a system prompt is\n%s\nand that of the root\n%s", c.Request.System, first.System)
				}
				if diff := cmp.Diff(first.Tools, c.Request.Tools); diff != "" {
					t.Errorf("tools:\n%s", diff)
				}
				if diff := cmp.Diff(first.Messages[0], c.Request.Messages[0]); diff != "" {
					t.Errorf("the first message:\n%s", diff)
				}
			}
			if len(depths) < 3 {
				t.Errorf("%d agents made requests, want the root, a fork and a fork of it", len(depths))
			}
		})
	}
}
