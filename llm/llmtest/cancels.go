package llmtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

func cancelCases() []suiteCase {
	cases := []suiteCase{
		{"a call whose ctx has ended", []Kind{Say}, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, Answer{{Kind: Say, Text: "never"}})
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errors.New("too late"))
			wantAborted(t, s.call(t, ctx, s.ask("hi")), "too late")
		}},
		{"a consumer that stops (M15)", []Kind{Stall, Leaving}, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, Answer{{Kind: Say, Text: "a", Pieces: 1}, {Kind: Stall}})
			s.stopAtText(t)
			s.left(t)
		}},
		{"a consumer that stops in a flood (M15)", []Kind{Say, Leaving}, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, Answer{{Kind: Say, Text: strings.Repeat("flood", 1<<20), Pieces: 1 << 10}, {Kind: Stall}})
			s.stopAtText(t)
			s.left(t)
		}},
	}
	for _, row := range []struct {
		name  string
		begin Answer
	}{{"while it is silent", nil}, {"amid the answer", Answer{{Kind: Say, Text: "so far"}}}} {
		cases = append(cases, suiteCase{"cancel " + row.name + " (M15, M28)", []Kind{Stall, Do}, func(t *testing.T, f Factory) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			stop := Step{Kind: Do, Func: func() { cancel(errors.New("enough of this")) }}
			s := f.Open(t, Options{}, append(append(Answer{}, row.begin...), stop, Step{Kind: Stall}))
			r := s.call(t, ctx, s.ask("hi"))
			wantAborted(t, r, "enough of this")
			if s.Left != nil {
				s.left(t)
			}
		}})
	}
	return cases
}

func wantAborted(t testing.TB, r result, cause string) {
	t.Helper()
	if f := r.finish.Failure; r.finish.Kind != llm.FinishAborted || f == nil || f.Code != llm.CodeAborted || f.Message != cause {
		t.Errorf("finish %q, want aborted for %q: %+v", r.finish.Kind, cause, f)
	}
}

func (s Subject) left(t testing.TB) {
	t.Helper()
	if err := s.Left(t.Context(), 1); err != nil {
		t.Errorf("the endpoint did not see the client leave: %v", err)
	}
}

func sizeCases() []suiteCase {
	return []suiteCase{
		{"an answer of 5 MB in one piece", []Kind{Say}, func(t *testing.T, f Factory) {
			big := strings.Repeat("0123456789abcdef", 5<<16)
			s := f.Open(t, Options{}, Answer{{Kind: Say, Text: big}})
			r := s.call(t, t.Context(), s.ask("hi"))
			if r.text != big || r.finish.Kind != llm.FinishStop {
				t.Errorf("%d bytes, finish %q: %+v", len(r.text), r.finish.Kind, r.finish.Failure)
			}
		}},
		{"10,000 deltas", []Kind{Say}, func(t *testing.T, f Factory) {
			text := strings.Repeat("0123456789", 10_000)
			s := f.Open(t, Options{}, Answer{{Kind: Say, Text: text, Pieces: 10_000}})
			r := s.call(t, t.Context(), s.ask("hi"))
			if r.text != text || r.deltas < 10_000 || r.finish.Kind != llm.FinishStop {
				t.Errorf("%d bytes in %d chunks, finish %q: %+v", len(r.text), r.deltas, r.finish.Kind, r.finish.Failure)
			}
		}},
		{"arguments of 1 MB", []Kind{Call}, func(t *testing.T, f Factory) {
			args := `{"text":"` + strings.Repeat("x", 1<<20) + `"}`
			s := f.Open(t, Options{}, Answer{{Kind: Call, Calls: []ToolCall{{"read", args}}, Pieces: 100}})
			s.call(t, t.Context(), s.ask("hi")).want(t, llm.FinishToolCalls, message.ToolCall("", "read", args))
		}},
		{"a slow reader is no silent peer (M28)", []Kind{Say, IdleTimeout}, testSlowReader},
	}
}

// testSlowReader: only time in which the endpoint owes something counts. The answer
// is far larger than what fits between the two.
func testSlowReader(t *testing.T, f Factory) {
	text := strings.Repeat("0123456789abcdef", 1<<18) // 4 MB
	s := f.Open(t, Options{IdleTimeout: shortIdle}, Answer{{Kind: Say, Text: text, Pieces: 64}})
	taken := 0
	r := s.callSlowly(t, t.Context(), s.ask("hi"), func(c llm.Chunk) {
		if taken++; taken%20 == 0 {
			<-time.After(2 * shortIdle)
		}
	})
	if r.text != text || r.finish.Kind != llm.FinishStop {
		t.Errorf("%d bytes, finish %q: %+v", len(r.text), r.finish.Kind, r.finish.Failure)
	}
}

// stopAtText makes a call and stops ranging at the first text.
func (s Subject) stopAtText(t testing.TB) {
	t.Helper()
	for c, err := range s.Adapter.Stream(t.Context(), s.ask("hi")) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Kind == llm.ChunkTextDelta {
			return
		}
	}
	t.Error("the call ended without text")
}
