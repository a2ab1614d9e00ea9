package harness_test

import (
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
)

// Close is memoised, refuses delegations first, and every caller waits for the
// same completion.
func TestCloseIsMemoised(t *testing.T) {
	home := t.TempDir()
	eff, err := config.Load(config.LoadOptions{Cwd: home, DataDir: home, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home})})
	if err != nil {
		t.Fatal(err)
	}
	h, err := harness.Open(t.Context(), harness.Options{Config: eff, Store: memory.New()})
	if err != nil {
		t.Fatal(err)
	}
	root, err := h.NewRoot(t.Context(), home, config.Choice{Ref: config.ModelRef{Route: "demo", Model: "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() {
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if live := h.Agents.List(); len(live) != 0 {
				t.Errorf("%d agents are live", len(live))
			}
		})
	}
	g.Wait()
	if _, err := h.Subagents.Start(t.Context(), "spawn", subagent.Request{Parent: root.Agent()}); err == nil {
		t.Error("a closed system took a delegation")
	}
}
