package spawn_test

import (
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func subject(t testing.TB, s *subagenttest.System) subagenttest.Subject {
	return subagenttest.Local(t, s, spawn.New(""))
}

// in runs a test in a bubble with a system in which spawn is registered.
func in(t *testing.T, o subagenttest.Options, fn func(t *testing.T, s *subagenttest.System)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := subagenttest.NewSystem(t, o)
		s.Register(t, spawn.New(""))
		fn(t, s)
	})
}

func start(t *testing.T, s *subagenttest.System, req subagent.Request) subagent.Run {
	t.Helper()
	return s.Start(t, t.Context(), spawn.DefaultName, req)
}

// child returns the agent behind a run.
func child(t *testing.T, run subagent.Run) *agent.Agent {
	t.Helper()
	a, ok := run.Local()
	if !ok {
		t.Fatal("the run has no local agent")
	}
	return a
}

func say(text string) scripted.Step { return scripted.Step{scripted.SayLiteral(text)} }

func ptr[T any](v T) *T { return &v }

// CAP-09, CAP-12: spawn can do all of it.
func TestCapabilities(t *testing.T) {
	p := spawn.New("")
	if got, want := p.Capabilities(), (subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}); got != want {
		t.Errorf("capabilities = %+v, want %+v", got, want)
	}
	if p.InheritsParentContext() {
		t.Error("a spawned child inherits no conversation")
	}
}

func TestConformance(t *testing.T) { subagenttest.Run(t, subject) }
