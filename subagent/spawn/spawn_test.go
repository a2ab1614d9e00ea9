package spawn_test

import (
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// subject makes spawn a subject: its children are agents of the system, scripted
// through the system's model.
func subject(t testing.TB, s *subagenttest.System) subagenttest.Subject {
	return subagenttest.Subject{
		Provider: spawn.New(""), Local: true, PartialText: true,
		Script: func(prompt string, c subagenttest.Child) {
			var step scripted.Step
			if c.Text != "" {
				step = append(step, scripted.SayLiteral(c.Text))
			}
			if c.Structured != "" {
				step = append(step, scripted.CallLiteral(structured.ToolName, c.Structured))
			}
			if c.Hold != nil {
				step = append(step, subagenttest.Hold(c.Hold))
			}
			switch c.End {
			case subagent.StopError:
				step = append(step, scripted.Fail(llm.CodeInvalidRequest, "the endpoint refused it"))
			case subagent.StopMaxTokens:
				step = append(step, scripted.MaxTokens())
			case subagent.StopRefusal:
				step = append(step, scripted.Refuse(""))
			case "":
				if step == nil {
					step = scripted.Step{scripted.Empty()}
				}
			default:
				t.Errorf("a spawned child cannot end as %q", c.End)
			}
			// Where an answer was refused it says its text alone, again and again.
			rest := scripted.Step{scripted.Empty()}
			if c.Text != "" {
				rest = say(c.Text)
			}
			if c.Structured == "" {
				rest = step
			}
			s.Answer(prompt, step, rest)
		},
		Active: func() int {
			n := 0
			for _, a := range s.Agents.List() {
				if a.Owner() != nil {
					n++
				}
			}
			return n
		},
		Reasons: []subagent.StopReason{subagent.StopError, subagent.StopMaxTokens, subagent.StopRefusal},
	}
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
