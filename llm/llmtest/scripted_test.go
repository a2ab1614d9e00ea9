package llmtest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/llmtest"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
)

// The scripted model has no wire: what happens on one it cannot play.
func TestScripted(t *testing.T) {
	llmtest.Run(t, llmtest.Factory{
		Open: func(_ testing.TB, _ llmtest.Options, answers ...llmtest.Answer) llmtest.Subject {
			var calls atomic.Int64
			next := scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
				return scriptedStep(answers[calls.Add(1)-1]), nil
			})
			a := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{{next}}}}, scripted.Options{})
			return llmtest.Subject{Adapter: a, Provider: "demo", Model: "m", Calls: func() int { return int(calls.Load()) }}
		},
		Lacks: []llmtest.Kind{
			llmtest.Withhold, llmtest.Foreign, llmtest.Empty, llmtest.Reject, llmtest.End, llmtest.Garbage, llmtest.Leaving, llmtest.IdleTimeout,
		},
	})
}

func scriptedStep(answer llmtest.Answer) scripted.Step {
	var out scripted.Step
	for _, step := range answer {
		if step.Pieces > 0 {
			out = append(out, scripted.Split(step.Pieces))
		}
		switch step.Kind {
		case llmtest.Say:
			out = append(out, scripted.SayLiteral(step.Text))
		case llmtest.Think:
			out = append(out, scripted.Reason(step.Text))
		case llmtest.Call:
			for _, c := range step.Calls {
				out = append(out, scripted.CallLiteral(c.Name, c.Arguments))
			}
		case llmtest.Report:
			u := step.Usage
			out = append(out, scripted.Usage(message.Usage{
				InputTokens: int64(u.Prompt - u.Cached), CacheReadTokens: int64(u.Cached), HasCacheRead: true,
				OutputTokens: int64(u.Completion), ReasoningTokens: int64(u.Reasoning), HasReasoning: true,
			}))
		case llmtest.Do:
			out = append(out, scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
				step.Func()
				return scripted.Step{scripted.Split(1)}, nil
			}))
		case llmtest.Length:
			out = append(out, scripted.MaxTokens())
		case llmtest.Refuse:
			out = append(out, scripted.Refuse(step.Text))
		case llmtest.Break:
			out = append(out, scripted.Fail(llm.CodeServer, step.Text))
		case llmtest.Cut:
			out = append(out, scripted.Cut())
		case llmtest.Stall:
			out = append(out, scripted.Hang())
		}
	}
	return out
}
