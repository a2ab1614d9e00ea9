package subagenttest

import (
	"context"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
)

// Local makes a subject of a provider whose children are agents of the system,
// owned by their parent: they are scripted through the system's model.
func Local(t testing.TB, s *System, p subagent.Provider) Subject {
	return Subject{
		Provider: p, Local: true, PartialText: true,
		Script: func(prompt string, c Child) {
			step := c.step(t)
			if c.Structured == "" {
				s.Answer(prompt, step, step)
				return
			}
			// Where an answer was refused it says its text alone, again and again.
			rest := scripted.Step{scripted.Empty()}
			if c.Text != "" {
				rest = scripted.Step{scripted.SayLiteral(c.Text)}
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

// step is the one answer that makes a child of this process do c.
func (c Child) step(t testing.TB) scripted.Step {
	var step scripted.Step
	if c.Text != "" {
		step = append(step, scripted.SayLiteral(c.Text))
	}
	if c.Structured != "" {
		step = append(step, scripted.CallLiteral(structured.ToolName, c.Structured))
	}
	if c.Hold != nil {
		step = append(step, hold(c.Hold, c.Deaf))
	}
	if c.Panic {
		return append(step, scripted.Panic("out of order"))
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
		t.Errorf("a child in this process cannot end as %q", c.End)
	}
	return step
}

// Hold is a part of an answer that stays silent until ch is closed. The end of the
// call ends it as aborted.
func Hold(ch <-chan struct{}) scripted.Part { return hold(ch, 0) }

// hold is Hold that notices the end of the call only after deaf.
func hold(ch <-chan struct{}, deaf time.Duration) scripted.Part {
	return scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
		select {
		case <-ch:
			return scripted.Step{scripted.Split(1)}, nil // which says nothing
		case <-ctx.Done():
			<-time.After(deaf)
			return scripted.Step{scripted.Hang()}, nil
		}
	})
}
