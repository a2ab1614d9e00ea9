package harness_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/message"
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
	// Whatever still runs while the agents end finds the door shut already.
	remote := &remoteProvider{}
	if _, err := h.Subagents.Register(remote); err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	h.Agents.AddHooks(agent.Hooks{Disposed: func(a *agent.Agent) {
		_, err := h.Subagents.Start(t.Context(), "remote", subagent.Request{Parent: a, Prompt: []message.Block{message.Text("x")}})
		late <- err
	}})
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
	if err := <-late; !errors.Is(err, subagent.ErrDraining) {
		t.Errorf("a delegation amid the teardown: %v", err)
	}
	if _, err := h.Subagents.Start(t.Context(), "spawn", subagent.Request{Parent: root.Agent()}); err == nil {
		t.Error("a closed system took a delegation")
	}
}

// remoteProvider stands for children in other processes.
type remoteProvider struct{}

func (*remoteProvider) Name() string                        { return "remote" }
func (*remoteProvider) Capabilities() subagent.Capabilities { return subagent.Capabilities{} }
func (*remoteProvider) InheritsParentContext() bool         { return false }
func (*remoteProvider) Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
	return nil, errors.New("it was asked to start")
}
