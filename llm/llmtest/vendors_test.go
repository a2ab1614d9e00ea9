package llmtest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/llm/llmtest"
	"github.com/offshoot-dev/offshoot/llm/openai"
)

const key = "sk-test-0123456789"

type closer interface{ CloseIdleConnections() }

// overFake returns a factory whose endpoint is a fakemodel server of that dialect.
func overFake(dialect fakemodel.Dialect, lacks []llmtest.Kind, adapter func(*fakemodel.Server, llmtest.Options) (llm.Adapter, error)) llmtest.Factory {
	return llmtest.Factory{Lacks: lacks, Open: func(t testing.TB, o llmtest.Options, answers ...llmtest.Answer) llmtest.Subject {
		t.Helper()
		var replies []fakemodel.Reply
		for _, a := range answers {
			replies = append(replies, fakeReply(a))
		}
		server, err := fakemodel.Open(fakemodel.Options{Dialect: dialect, Key: key, Script: fakemodel.Sequence(replies...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		a, err := adapter(server, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.(closer).CloseIdleConnections)
		return llmtest.Subject{
			Adapter: a, Provider: "route", Model: "claude-opus-5-5", Secret: key, Calls: server.Total,
			Left: func(ctx context.Context, n int) error {
				r, err := server.WaitRequest(ctx, n)
				if err != nil {
					return err
				}
				select {
				case <-r.Gone():
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			},
		}
	}}
}

func fakeReply(answer llmtest.Answer) fakemodel.Reply {
	var out fakemodel.Reply
	for _, step := range answer {
		n := max(step.Pieces, 1)
		switch step.Kind {
		case llmtest.Say:
			out = append(out, fakemodel.Split(n, fakemodel.Text(step.Text)))
		case llmtest.Think:
			if step.Text == "" {
				out = append(out, fakemodel.Reasoning(""))
				continue
			}
			out = append(out, fakemodel.Split(n, fakemodel.Reasoning(step.Text)))
		case llmtest.Withhold:
			out = append(out, fakemodel.Redacted(step.Text))
		case llmtest.Call:
			var calls []fakemodel.ToolCall
			for _, c := range step.Calls {
				calls = append(calls, fakemodel.ToolCall{Name: c.Name, Arguments: c.Arguments, Deltas: n})
			}
			out = append(out, fakemodel.Parallel(calls...))
		case llmtest.Foreign:
			out = append(out, fakemodel.Foreign{})
		case llmtest.Report:
			u := step.Usage
			out = append(out, fakemodel.Usage{Prompt: u.Prompt, Cached: u.Cached, Completion: u.Completion, Reasoning: u.Reasoning})
		case llmtest.Do:
			out = append(out, fakemodel.Do(func(context.Context) { step.Func() }))
		case llmtest.Length:
			out = append(out, fakemodel.Length)
		case llmtest.Refuse:
			out = append(out, fakemodel.Refusal(step.Text))
		case llmtest.Empty:
		case llmtest.Reject:
			failure := fakemodel.Failure(step.Reason)
			if step.Reason == llmtest.Overloaded {
				failure = fakemodel.Unavailable
			}
			if step.RetryAfter != "" {
				out = append(out, failure.With("Retry-After", step.RetryAfter))
				continue
			}
			out = append(out, failure)
		case llmtest.Break:
			out = append(out, fakemodel.ErrorChunk{Message: step.Text})
		case llmtest.Cut:
			out = append(out, fakemodel.Cut{})
		case llmtest.End:
			out = append(out, fakemodel.CleanEOF{})
		case llmtest.Garbage:
			out = append(out, fakemodel.Garbage)
		case llmtest.Stall:
			out = append(out, fakemodel.Stall{})
		default:
			panic(fmt.Sprintf("no step is of kind %q", step.Kind))
		}
	}
	return out
}

func TestOpenAI(t *testing.T) {
	for _, dialect := range openai.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			lacks := []llmtest.Kind{llmtest.Withhold, llmtest.Images}
			if dialect == "openai" {
				lacks = append(lacks, llmtest.Think) // it is secret there
			}
			llmtest.Run(t, overFake(fakemodel.Dialect(dialect), lacks, func(s *fakemodel.Server, o llmtest.Options) (llm.Adapter, error) {
				return openai.New(openai.Config{Dialect: dialect, BaseURL: s.URL(), APIKey: key, IdleTimeout: o.IdleTimeout})
			}))
		})
	}
}

func TestAnthropic(t *testing.T) {
	llmtest.Run(t, overFake("", []llmtest.Kind{llmtest.Images}, func(s *fakemodel.Server, o llmtest.Options) (llm.Adapter, error) {
		return anthropic.New(anthropic.Config{BaseURL: s.Origin(), APIKey: key, IdleTimeout: o.IdleTimeout})
	}))
}
