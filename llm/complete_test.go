package llm_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// plays is an adapter that answers its nth call with the nth finish.
type plays struct {
	finishes []*llm.Finish
	calls    []llm.Request
	at       []time.Duration
	began    time.Time
}

func (p *plays) Model(string, string) llm.ModelInfo { return llm.ModelInfo{DefaultMaxTokens: 7} }

func (p *plays) Stream(_ context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		n := len(p.calls)
		p.calls, p.at = append(p.calls, *req), append(p.at, time.Since(p.began))
		fin := p.finishes[min(n, len(p.finishes)-1)]
		if fin.Kind == llm.FinishStop {
			text := message.Text("in short")
			usage := message.Usage{InputTokens: 5, OutputTokens: 2}
			if !yield(llm.Chunk{Kind: llm.ChunkBlockEnd, Block: &text}, nil) || !yield(llm.Chunk{Kind: llm.ChunkUsage, Usage: &usage}, nil) {
				return
			}
		}
		yield(llm.Chunk{Kind: llm.ChunkFinish, Finish: fin}, nil)
	}
}

// A call beside the loop is made again like a step of one (core M16), with its purpose
// (M6), and ends at what is not retried.
func TestComplete_M6_M16(t *testing.T) {
	busy := llm.Failed(message.Failure{Code: llm.CodeServer, Message: "busy"})
	full := llm.Failed(message.Failure{Code: llm.CodeContextWindow, Message: "too long"})
	stop := &llm.Finish{Kind: llm.FinishStop}
	for _, tc := range []struct {
		name     string
		finishes []*llm.Finish
		calls    int
		code     string
	}{
		{"answered", []*llm.Finish{stop}, 1, ""},
		{"answered at the third attempt", []*llm.Finish{busy, busy, stop}, 3, ""},
		{"too long is not tried again", []*llm.Finish{full, stop}, 1, llm.CodeContextWindow},
		{"given up after two retries", []*llm.Finish{busy}, 3, llm.CodeServer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &plays{finishes: tc.finishes, began: time.Now()}
				r := &llm.Registry{RetryFor: func(string) llm.Policy { return llm.Policy{MaxRetries: 2, Jitter: -1} }}
				if _, err := r.Register(a, "p"); err != nil {
					t.Fatal(err)
				}
				got, err := r.Complete(t.Context(), llm.CallConfig{Provider: "p", Model: "m"}, llm.Request{System: "s", Purpose: llm.PurposeCompaction}, nil)
				if llm.CodeOf(err) != tc.code || len(a.calls) != tc.calls {
					t.Fatalf("%d calls and error %v, want %d and code %q", len(a.calls), err, tc.calls, tc.code)
				}
				for i, c := range a.calls {
					if c.Purpose != llm.PurposeCompaction || c.System != "s" || c.Model != "m" || c.MaxTokens != 7 {
						t.Errorf("call %d: %+v", i, c)
					}
					if want := []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond}[i]; a.at[i] != want {
						t.Errorf("call %d after %v, want %v", i, a.at[i], want)
					}
				}
				if err == nil && (message.JoinText(got.Content) != "in short" || got.Finish != llm.FinishStop || got.Usage == nil || got.Usage.OutputTokens != 2) {
					t.Errorf("answer %+v", got)
				}
			})
		})
	}
	t.Run("cancelled while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := &plays{finishes: []*llm.Finish{busy}, began: time.Now()}
			r := &llm.Registry{}
			if _, err := r.Register(a, "p"); err != nil {
				t.Fatal(err)
			}
			cause := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(200*time.Millisecond, func() { cancel(cause) })
			if _, err := r.Complete(ctx, llm.CallConfig{Provider: "p", Model: "m"}, llm.Request{}, nil); !errors.Is(err, cause) || len(a.calls) != 1 {
				t.Errorf("error %v after %d calls", err, len(a.calls))
			}
		})
	})
}
