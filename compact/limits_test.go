package compact_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// summaries counts the requests for a summary.
func (m *model) summaries() (n int) {
	for i := range m.requests {
		if m.requests[i].Purpose == llm.PurposeCompaction {
			n++
		}
	}
	return n
}

// Where what every request holds leaves little of a small window, there is not a
// summary with every step: each of them is worth its price, and makes room.
func TestSmallWindow_D38(t *testing.T) {
	for _, tc := range []struct {
		name               string
		system, most       int
		bytes, summary     int
		steps, wantAtLeast int
	}{
		{"half of it taken", 18_000, 24, 800, 6000, 60, 2},
		{"three quarters of it taken", 26_000, 8, 400, 1000, 60, 0},
		{"nearly all of it taken", 32_000, 2, 4, 1000, 60, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &model{window: 12_000, told: 9_000} // what the endpoint takes is of no matter here
			m.answer = func(*llm.Request) ([]message.Block, error) {
				if n := len(m.requests) - m.summaries(); n < tc.steps {
					return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", tc.bytes)}, nil
				}
				return say("done"), nil
			}
			m.summary = func(_ int, req *llm.Request) ([]message.Block, error) {
				return say(strings.Repeat("s", min(tc.summary, 4*int(req.MaxTokens)))), nil
			}
			o := subagenttest.Options{Tools: []tool.Definition{look()}, Persona: strings.Repeat("p", tc.system)}
			in(t, m, o, compact.Config{}, func(t *testing.T, w *world) {
				a := w.Parent(t)
				w.prompt(a, "look at all of it")
				if e := end(a); e.Kind != session.EndCompleted {
					t.Fatalf("the turn ended %s: %+v", e.Kind, e.Failure)
				}
				if n := m.summaries(); n > tc.most || n < tc.wantAtLeast {
					t.Errorf("%d summaries in %d steps", n, tc.steps)
				}
				if n := len(w.done); n > 25 {
					t.Errorf("told of %d compactions in %d steps", n, tc.steps)
				}
				for i, r := range w.sums {
					if w.done[i] == nil && (r.After >= r.Before || r.After >= 7_200 && tc.system < 30_000) {
						t.Errorf("compaction %d: %+v", i, r)
					}
				}
				w.verify(a)
			})
		})
	}
}

// A summary that is no shorter than what it would replace replaces nothing.
func TestSummaryThatGainsNothing_D41(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	m.summary = func(int, *llm.Request) ([]message.Block, error) { return say(strings.Repeat("s", 14_000)), nil }
	in(t, m, subagenttest.Options{}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 6, 4000)
		_, before := a.Session().History()
		res, err := w.c.Compact(t.Context(), a)
		var cerr *compact.Error
		if !errors.As(err, &cerr) || cerr.Code != compact.CodeNothing || res.Summed != 0 || res.Usage.OutputTokens == 0 {
			t.Errorf("%+v, %v", res, err)
		}
		if _, after := a.Session().History(); after != before {
			t.Error("the conversation changed")
		}
		w.verify(a)
	})
}

// A task that takes half the window does not make an agent useless: what fits of it is
// said again, says that it is not all, and where all of it can be read.
func TestLongTask_D42(t *testing.T) {
	task := "Count the things. " + strings.Repeat("Ä thing. ", 6_500) + "Exactly 42 of them."
	m := &model{window: 32_768, told: 32_768}
	m.answer = func(*llm.Request) ([]message.Block, error) {
		if n := len(m.requests) - m.summaries(); n < 80 {
			return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", 4000)}, nil
		}
		return say("42"), nil
	}
	m.summary = func(_ int, req *llm.Request) ([]message.Block, error) {
		return say(strings.Repeat("s", 4*int(req.MaxTokens))), nil
	}
	reads := tool.Definition{
		Name: tool.ReadName, Description: "Reads.", ReadOnly: true, Parameters: []byte(`{"type":"object"}`),
		Execute: func(context.Context, *tool.Call) (any, error) { return "", errors.New("not called") },
	}
	o := subagenttest.Options{Tools: []tool.Definition{look(), reads}, Persona: strings.Repeat("p", 32_000)}
	in(t, m, o, compact.Config{}, func(t *testing.T, w *world) {
		if _, err := w.Service.Register(spawn.New("")); err != nil {
			t.Fatal(err)
		}
		label := "count"
		run, err := w.Service.Start(t.Context(), "spawn", subagent.Request{Parent: w.Parent(t), Label: &label, Prompt: []message.Block{message.Text(task)}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := run.Wait(t.Context())
		if err != nil || res.StopReason != subagent.StopCompleted {
			t.Fatalf("the child ended %s: %v, %v", res.StopReason, err, w.done)
		}
		child, _ := run.Local()
		w.verify(child)
		if n := m.summaries(); n < 2 || n > 40 || m.refused > 0 {
			t.Errorf("%d summaries, %d requests too long", n, m.refused)
		}
		for i, r := range w.sums { // the task and the summary share what the prompt leaves
			if w.done[i] == nil && r.After > 25_000 {
				t.Errorf("compaction %d: %+v", i, r)
			}
		}
		for i, r := range m.requests {
			body := text(&r.Request)
			if r.Purpose == "" && (!strings.Contains(body, "Count the things. ") || !strings.Contains(body, "Exactly 42 of them.")) {
				t.Errorf("request %d lacks the beginning or the end of the task", i)
			}
		}
		body := text(&m.requests[len(m.requests)-1].Request)
		if !strings.Contains(body, "The task that you were created for, as far as there is room for it:\n<task>\nCount") || !strings.Contains(body, " characters left out here; the tool read shows the whole text at the path ") {
			t.Errorf("the last request does not say that the task is cut: %.300s", body)
		}
		_, at, _ := strings.Cut(body, "the whole text at the path ")
		at, _, _ = strings.Cut(at, " ")
		ref, err := session.ParseSpillRef(at)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := w.Agents.ReadSpill(t.Context(), child, ref); got != task || err != nil {
			t.Errorf("the task reads as %d bytes: %v", len(got), err)
		}
		if n := len(body); n > 32_768*4 {
			t.Errorf("the last request has %d bytes", n)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A prompt that is longer than what is said again of an open turn is not lost: its
// beginning and its end are.
func TestLongPromptOfAnOpenTurn_D39(t *testing.T) {
	m := &model{window: 32_768, told: 32_768}
	m.answer = func(*llm.Request) ([]message.Block, error) {
		if n := len(m.requests) - m.summaries(); n < 40 {
			return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", 6000)}, nil
		}
		return say("done"), nil
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.prompt(a, "read this: "+strings.Repeat("words ", 8_000)+" and tell me the colour")
		if e := end(a); e.Kind != session.EndCompleted || m.summaries() == 0 || m.refused > 0 {
			t.Fatalf("the turn ended %s: %+v after %d summaries", e.Kind, e.Failure, m.summaries())
		}
		body := text(&m.requests[len(m.requests)-1].Request)
		if !strings.Contains(body, "What you were told last, as far as there is room for it:\n<request>\nread this: words") || !strings.Contains(body, " and tell me the colour\n</request>") {
			t.Errorf("the last request is %.300s", body)
		}
		w.verify(a)
	})
}

// A conversation that is many times as long as the window is brought into it before one
// step, in as many parts as that takes.
func TestManyTimesTheWindow(t *testing.T) {
	m := &model{window: 1_000_000, told: 1_000_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 60, 16_000)
		m.window, m.told = 16_000, 16_000
		w.prompt(a, "go on")
		if e := end(a); e.Kind != session.EndCompleted || m.refused > 0 || m.summaries() < 20 {
			t.Fatalf("ended %s after %d summaries, %d requests were too long", e.Kind, m.summaries(), m.refused)
		}
		if len(w.sums) != 1 || w.sums[0].After > 12_800 || w.sums[0].Summed < 115 || w.sums[0].Usage.InputTokens < 200_000 {
			t.Errorf("%+v", w.sums)
		}
	})
}

// Whoever registered something and panics fails the turn, and no more: the bracket is
// closed, so the turn ends and the next one runs.
func TestPanicWhileSummingUp(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		unregister := w.c.Register("jobs", func(*agent.Agent) string { panic("ouch") })
		a := w.Parent(t)
		w.talk(a, 16, 4000)
		if e := end(a); e.Kind != session.EndError || !strings.Contains(e.Failure.Message, "ouch") {
			t.Fatalf("the turn ended %s: %+v", e.Kind, e.Failure)
		}
		unregister()
		w.talk(a, 2, 4000)
		if e := end(a); e.Kind != session.EndCompleted || len(w.sums) != 1 {
			t.Errorf("the next turn ended %s: %+v, %+v", e.Kind, e.Failure, w.sums)
		}
		w.verify(a)
	})
}

// An attempt that failed does not put off the next one once the conversation became
// short meanwhile.
func TestFailureIsForgotten(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, mute: true, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	m.summary = func(int, *llm.Request) ([]message.Block, error) {
		return nil, &llm.Error{Failure: message.Failure{Code: llm.CodeInvalidRequest, Message: "no"}}
	}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 16, 4000)
		w.prompt(a, fill("much", 4000)) // the next attempt would be made at more than 18,000 tokens
		if len(w.done) != 1 || w.done[0] == nil {
			t.Fatalf("%v", w.done)
		}
		m.summary = func(int, *llm.Request) ([]message.Block, error) { return say("in short"), nil }
		if _, err := w.c.Compact(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		for len(w.done) == 2 && len(m.requests) < 100 {
			w.prompt(a, fill("more", 2400))
		}
		if got := w.sums[2].Before; got < 16_000 || got > 17_000 {
			t.Errorf("the next compaction came at %d tokens", got)
		}
	})
}

// The end of the caller's context is told as such, wherever it is found.
func TestCompactAfterTheEnd_D41(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	store := &failing{Store: memory.New()}
	in(t, m, subagenttest.Options{Store: store}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 6, 4000)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		m.summary = func(int, *llm.Request) ([]message.Block, error) {
			cancel(why)
			synctest.Wait()
			store.err = why // as of a store that gives up with its caller
			return say("late"), nil
		}
		_, err := w.c.Compact(ctx, a)
		var cerr *compact.Error
		if !errors.As(err, &cerr) || cerr.Code != compact.CodeCancelled || !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
		store.err = nil
		w.verify(a)
	})
}

// core D39: where a surface may be parted, against the plain words of it: no call before
// the cut that has its result behind it. Ids come again, results come late, some calls
// have no result and some results no call.
func TestCuts_D39(t *testing.T) {
	for _, tc := range []struct{ name, nodes, want string }{
		{"plain", "u a u a", "01234"},
		{"a pair", "u a:1 r:1 a", "0134"},
		{"a call of several", "u a:1:2 r:1 r:2 a", "0145"},
		{"results out of order", "a:1:2 r:2 r:1 a", "034"},
		{"interleaved", "a:1 a:2 r:1 r:2 u", "045"},
		{"nested", "a:1 a:2 r:2 r:1 u", "045"},
		{"an id comes again", "a:1 r:1 u a:1 r:1", "0235"},
		{"an id comes again before its result", "a:1 a:1 r:1", "013"},
		{"no result", "u a:1 u", "0123"},
		{"no call", "u a r:9 u a", "012345"},
		{"no call first", "r:9 a:9 r:9", "013"},
		{"an answer without content", "u - u", "0123"},
	} {
		var nodes []session.Node
		for f := range strings.FieldsSeq(tc.nodes) {
			parts := strings.Split(f, ":")
			n := session.Node{Seq: int64(len(nodes)), Message: &message.Message{Role: message.RoleUser, Content: say("x")}}
			switch parts[0] {
			case "-":
				n.Message = nil
			case "a":
				n.Message.Role = message.RoleAssistant
				for _, id := range parts[1:] {
					n.Message.Content = append(n.Message.Content, message.ToolCall(id, "look", "{}"))
				}
			case "r":
				n.Message.Content = []message.Block{message.ToolResult(parts[1], say("y"), false)}
			}
			nodes = append(nodes, n)
		}
		var got strings.Builder
		for i, ok := range compact.Cuts(nodes) {
			if ok {
				fmt.Fprint(&got, i)
			}
		}
		if got.String() != tc.want {
			t.Errorf("%s: %s may be cut at %s, want %s", tc.name, tc.nodes, got.String(), tc.want)
		}
	}
}

// core D41: what a message counts: bytes over four and four, what a model is shown alone.
func TestTokens_D41(t *testing.T) {
	for _, tc := range []struct {
		name string
		want int64
		b    []message.Block
	}{
		{"nothing", 4, nil},
		{"text", 29, say(strings.Repeat("x", 100))},
		{"other scripts count by their bytes", 54, say(strings.Repeat("ä", 100))},
		{"reasoning", 14, []message.Block{message.Reasoning(strings.Repeat("x", 40))}},
		{"call", 9, []message.Block{message.ToolCall("an id that no model reads", "name", strings.Repeat("x", 16))}},
		{"result", 14, []message.Block{message.ToolResult("id", say(strings.Repeat("x", 40)), false)}},
		{"what nobody knows", 4, []message.Block{{Type: "video", Raw: make([]byte, 4000)}}},
		{"image", 1504, []message.Block{{Type: message.BlockImage, Raw: make([]byte, 1<<20)}}},
	} {
		if got := compact.Tokens(&message.Message{Content: tc.b}); got != tc.want {
			t.Errorf("%s counts %d tokens, want %d", tc.name, got, tc.want)
		}
	}
}

// An effort that the adapter fills in is a part of the request, which the log must tell.
func TestEffortOfTheAdapter(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, effort: "medium", answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	in(t, m, subagenttest.Options{}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 6, 4000)
		if _, err := w.c.Compact(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(m.requests, func(r request) bool { return r.Purpose != "" }); m.requests[i].ReasoningEffort != "medium" {
			t.Errorf("effort %q", m.requests[i].ReasoningEffort)
		}
		w.verify(a)
	})
}
