package harness_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// seam COMP-36, amendment P42, design § 4 Trust: a persona that came with a folder
// which nobody trusts is text, for the root and for a child; the person's own is a
// template.
func TestCOMP36PersonaOfAFolderIsText(t *testing.T) {
	const personas = "agents:\n  default: {persona: 'Root on {{model}}.'}\n  helper: {description: Helps., persona: 'Child on {{model}}.'}\n"
	for name, c := range map[string]struct {
		file    string // below the parent of home and work
		trusted bool
		want    string // in place of the group
	}{
		"a folder that is not trusted": {"work/offshoot.yaml", false, "{{model}}"},
		"a trusted folder":             {"work/offshoot.yaml", true, "any"},
		"the person's own file":        {"home/config.yaml", false, "any"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			home, work := filepath.Join(base, "home"), filepath.Join(base, "work")
			for _, dir := range []string{home, work} {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(base, c.file), []byte(personas), 0o600); err != nil {
				t.Fatal(err)
			}
			eff, err := config.Load(config.LoadOptions{Cwd: work, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home}), Trusted: &c.trusted})
			if err != nil {
				t.Fatal(err)
			}
			model := scripted.New(scripted.Script{
				{Match: scripted.FirstPrompt("help"), Steps: []scripted.Step{{scripted.Say("helped")}}},
				{Steps: []scripted.Step{{scripted.Call("subagent_helper", `{"description":"d","prompt":"help"}`)}, {scripted.Say("done")}}},
			}, scripted.Options{})
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
			if err := root.Agent().Followup(agent.UserText("go")); err != nil {
				t.Fatal(err)
			}
			if err := root.Agent().WhenIdle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
			var who []string
			for _, call := range model.Calls() {
				for _, name := range []string{"Root", "Child"} {
					if strings.Contains(call.Request.System, name+" on "+c.want+".") {
						who = append(who, name)
					}
				}
			}
			if got := strings.Join(who, " "); got != "Root Child Root" {
				t.Errorf("the personas with %q reached the requests of %q", c.want, got)
			}
		})
	}
}
