package fork_test

import (
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// in runs a test in a bubble with a system in which fork is registered.
func in(t *testing.T, o subagenttest.Options, fn func(t *testing.T, s *subagenttest.System)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := subagenttest.NewSystem(t, o)
		s.Register(t, fork.New(""))
		fn(t, s)
	})
}

func say(text string) scripted.Step { return scripted.Step{scripted.SayLiteral(text)} }

// turn gives an agent a turn in which it says what was prepared for the prompt.
func turn(t *testing.T, a *agent.Agent, prompt string) {
	t.Helper()
	if err := a.Followup(agent.UserText(prompt)); err != nil {
		t.Fatal(err)
	}
	if err := a.WhenIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, s *subagenttest.System, parent *agent.Agent, prompt string) (subagent.Run, *agent.Agent) {
	t.Helper()
	run := s.Start(t, t.Context(), fork.DefaultName, subagenttest.Request(parent, prompt))
	child, ok := run.Local()
	if !ok {
		t.Fatal("the run has no local agent")
	}
	return run, child
}

// forked is start and its result. What the child left is its log.
func forked(t *testing.T, s *subagenttest.System, parent *agent.Agent, prompt string) (subagent.Result, *session.Session) {
	t.Helper()
	run, child := start(t, s, parent, prompt)
	return subagenttest.Await(t, run), child.Session()
}

// REG-22, CAP-09, CAP-12: the names that it registers under, and that it can do all of it.
func TestCapabilities(t *testing.T) {
	p := fork.New("")
	if got, want := p.Capabilities(), (subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}); got != want {
		t.Errorf("capabilities = %+v, want %+v", got, want)
	}
	if !p.InheritsParentContext() {
		t.Error("a forked child inherits the conversation")
	}
	if p.Name() != "fork" || fork.New("twin").Name() != "twin" {
		t.Errorf("names %q, %q", p.Name(), fork.New("twin").Name())
	}
}

func TestConformance(t *testing.T) {
	subagenttest.Run(t, func(t testing.TB, s *subagenttest.System) subagenttest.Subject {
		return subagenttest.Local(t, s, fork.New(""))
	})
}
