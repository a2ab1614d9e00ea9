package compact_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// last returns the last message of a request.
func last(req *llm.Request) *message.Message { return &req.Messages[len(req.Messages)-1] }

// core D38, D39, D41: five hundred turns, with a call each and now and then a long
// result, stay within a window of 32k tokens, whether the vendor reports what it counted
// or not and also where a byte is far more than a quarter of a token. No call is parted
// from its result, no request is refused, what is registered is said once after each
// summary, and every request can be rebuilt from the log.
func TestFiveHundredTurns_D38(t *testing.T) {
	const window = 32_768
	for _, tc := range []struct {
		name  string
		turns int
		m     *model
	}{
		{"reported", 500, &model{}},
		{"not reported", 250, &model{mute: true}},
		{"a token is two bytes", 250, &model{perByte: 0.5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := tc.m
			m.window, m.told = window, window
			m.answer = func(req *llm.Request) ([]message.Block, error) {
				if l := last(req); l.Source.Kind == message.SourceTool {
					return say("done with " + strings.Fields(message.JoinText(l.Content[0].Content))[0]), nil
				}
				n := len(m.requests)
				bytes := 1500
				if n%7 == 0 {
					bytes = 20_000
				}
				return []message.Block{message.Text("I look."), calls(fmt.Sprintf("c%d", n), fmt.Sprintf("thing%d", n), bytes)}, nil
			}
			m.summary = func(n int, _ *llm.Request) ([]message.Block, error) {
				return []message.Block{message.Reasoning("hm"), message.Text(fmt.Sprintf("summary %d %s", n, strings.Repeat("s", 3000)))}, nil
			}
			in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{}, func(t *testing.T, w *world) {
				w.c.Register("jobs", func(*agent.Agent) string { return "job-1 is running" })
				w.c.Register("quiet", func(*agent.Agent) string { return "" })
				a := w.Parent(t)
				for i := range tc.turns {
					w.prompt(a, fmt.Sprintf("prompt %d", i))
					if e := end(a); e.Kind != session.EndCompleted {
						t.Fatalf("turn %d ended %s: %+v", i, e.Kind, e.Failure)
					}
				}
				if m.refused > 0 {
					t.Errorf("%d requests were too long", m.refused)
				}
				summaries, prunes, restated := 0, 0, 0
				for e := range a.Session().Events(0) {
					switch p := e.Payload().(type) {
					case *session.CompactionSummary:
						summaries++
					case *session.CompactionPrune:
						prunes++
					case *session.CompactionEnd:
						if p.Error != "" {
							t.Errorf("compaction failed: %s", p.Error)
						}
					case *session.UserMessage:
						if p.Message.Source.Details().Plugin == "jobs" {
							restated++
						}
					}
				}
				if summaries < 5 || prunes == 0 {
					t.Errorf("%d summaries and %d shortened results in %d turns", summaries, prunes, tc.turns)
				}
				if restated > summaries || restated < 5 {
					t.Errorf("what is registered was said %d times after %d summaries", restated, summaries)
				}
				for i := range m.requests {
					r := &m.requests[i]
					if r.Purpose == "" && i > 0 && m.requests[i-1].Purpose == llm.PurposeCompaction {
						if n := strings.Count(text(&r.Request), "job-1 is running"); n != 1 {
							t.Errorf("the request behind a summary names the job %d times", n)
						}
					}
				}
				w.verify(a)
				t.Logf("%d requests, %d summaries, %d shortened results", len(m.requests), summaries, prunes)
			})
		})
	}
}

// talk makes turns of n bytes each.
func (w *world) talk(a *agent.Agent, turns, bytes int) {
	w.t.Helper()
	for i := range turns {
		w.prompt(a, fill(fmt.Sprintf("said%d", i), bytes))
	}
}

// core D39: start, the request, then in one hold the summary, at once the message that
// replaces everything but the newest part and says so, what is said again, and the end
// last. The request replays what is summed up with the same system prompt and tools.
func TestSequence_D39(t *testing.T) {
	m := &model{window: 100_000, told: 100_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
		w.c.Register("jobs", func(*agent.Agent) string { return "job-1 is running" })
		a := w.Parent(t)
		w.talk(a, 6, 20_000) // 30,000 tokens, of which 16,000 stay
		before, _ := a.Session().Surface()
		head := a.Session().Head()
		res, err := w.c.Compact(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"compaction/start", "compaction/request", "compaction/summary", "user/message", "user/message", "compaction/end"}
		if d := cmp.Diff(want, types(a.Session(), head)); d != "" {
			t.Fatalf("events (-want +got):\n%s", d)
		}
		start, _ := a.Session().Event(head)
		sum, _ := a.Session().Event(head + 2)
		checkpoint, _ := a.Session().Event(head + 3)
		restated, _ := a.Session().Event(head + 4)
		p := sum.Payload().(*session.CompactionSummary)
		if st := start.Payload().(*session.CompactionStart); st.Turn != 0 || st.CompactionID != p.CompactionID {
			t.Errorf("start %+v", st)
		}
		var seqs []int64
		for _, n := range before[:len(p.Shadowed.Seqs)] {
			seqs = append(seqs, n.Seq)
		}
		if d := cmp.Diff(seqs, p.Shadowed.Seqs); d != "" {
			t.Errorf("what the summary stands for is not the oldest part:\n%s", d)
		}
		if kept := len(before) - len(seqs); kept < 2 || kept > 8 {
			t.Errorf("%d of %d messages stay", kept, len(before))
		}
		if from, to := checkpoint.Replaces(); from != seqs[0] || to != seqs[len(seqs)-1] || !slices.Equal(checkpoint.Sources(), append(slices.Clone(seqs), sum.Seq)) {
			t.Errorf("the replacement goes from %d to %d and cites %v", from, to, checkpoint.Sources())
		}
		u := checkpoint.Payload().(*session.UserMessage).Message
		body := message.JoinText(u.Content)
		if !strings.HasPrefix(body, "<compacted-summary>\n") || !strings.HasSuffix(body, "\nsummary 0\n</compacted-summary>") {
			t.Errorf("checkpoint %q", body)
		}
		if strings.Contains(body, "<request>") {
			t.Error("what a turn that is over was asked is kept")
		}
		if !p.ModelCall || p.Usage == nil || len(p.RawOutput) != 1 || message.JoinText(p.RawOutput) != "summary 0" || p.Shadowed.Tokens < 10_000 {
			t.Errorf("summary %+v", p)
		}
		if want := fmt.Sprintf(`{"kind":"plugin","plugin":"compact","compactionId":%q}`, p.CompactionID); string(u.Source.Details().Raw) != want {
			t.Errorf("source %s, want %s", u.Source.Details().Raw, want)
		}
		if r := restated.Payload().(*session.UserMessage).Message; message.JoinText(r.Content) != "job-1 is running" || r.Source.Details().Form != message.FormNotice {
			t.Errorf("said again: %+v", r)
		}
		asked, step := m.requests[len(m.requests)-1], m.requests[0]
		if asked.Purpose != llm.PurposeCompaction || asked.MaxTokens != compact.MaxSummary || asked.System != step.System || len(asked.Tools) != len(step.Tools) || len(asked.Messages) != len(seqs)+1 {
			t.Errorf("the request for a summary: purpose %q, at most %d tokens, %d tools, %d messages", asked.Purpose, asked.MaxTokens, len(asked.Tools), len(asked.Messages))
		}
		if res.Summed != len(seqs) || res.Before < 30_000 || res.After > 17_500 || res.Window != 100_000 || res.Usage.InputTokens != asked.size {
			t.Errorf("result %+v", res)
		}
		// The next step goes on from there, and what the summary took is still in the log.
		w.prompt(a, "go on")
		next := m.requests[len(m.requests)-1]
		if !strings.Contains(text(&next.Request), "summary 0") || strings.Contains(text(&next.Request), "said0 ") {
			t.Error("the next request does not begin with the summary alone")
		}
		if said, _ := a.Session().Event(seqs[0]); !strings.Contains(message.JoinText(said.Payload().(*session.UserMessage).Message.Content), "said0") {
			t.Error("the log lost what was summed up")
		}
		w.verify(a)
	})
}

// core D38: results of tools that are longer than 8,192 code points and were read
// already keep 4,096 of their head and 1,024 of their tail; if that is enough there is
// no summary. The whole result stays readable. What the model has not read yet is not
// touched.
func TestPrune_D38(t *testing.T) {
	names := []string{"first", "short", "umlauts", "unread"}
	m := &model{window: 22_000, told: 22_000}
	m.answer = func(req *llm.Request) ([]message.Block, error) {
		switch n := len(m.requests); n {
		case 1, 2, 3, 4:
			bytes := []int{0, 40_000, 8_192, 9_000, 20_000}[n]
			return []message.Block{calls(fmt.Sprintf("c%d", n), names[n-1], bytes)}, nil
		}
		return say("done"), nil
	}
	reads := tool.Definition{
		Name: tool.ReadName, Description: "Reads.", ReadOnly: true, Parameters: []byte(`{"type":"object"}`),
		Execute: func(context.Context, *tool.Call) (any, error) { return "", errors.New("not called") },
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look(), reads}}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.prompt(a, "look at all of it")
		if e := end(a); e.Kind != session.EndCompleted {
			t.Fatalf("the turn ended %s: %+v", e.Kind, e.Failure)
		}
		s := a.Session()
		var whole []session.Event
		var short []*session.ToolResult
		var pruned []int64
		for e := range s.Events(0) {
			switch p := e.Payload().(type) {
			case *session.ToolResult:
				if e.Op == session.OpAppend {
					whole = append(whole, e)
					continue
				}
				short = append(short, p)
				from, to := e.Replaces()
				if before, _ := s.Event(e.Seq - 1); before.Type != session.TypeCompactionPrune || from != to || !slices.Equal(e.Sources(), []int64{from, e.Seq - 1}) {
					t.Errorf("a result is replaced behind %s, from %d to %d, citing %v", before.Type, from, to, e.Sources())
				}
			case *session.CompactionPrune:
				pruned = append(pruned, p.Shadowed.Seqs...)
			case *session.CompactionSummary:
				t.Error("there was a summary, though shortening was enough")
			}
		}
		if want := []int64{whole[0].Seq, whole[2].Seq}; !slices.Equal(pruned, want) {
			t.Fatalf("the results at %v were shortened, want %v", pruned, want)
		}
		was := message.JoinText(whole[0].Payload().(*session.ToolResult).Message.Content[0].Content)
		now := message.JoinText(short[0].Message.Content[0].Content)
		if !strings.HasPrefix(now, was[:4096]+"\n[... 34880 characters left out") || !strings.HasSuffix(now, "...]\n"+was[len(was)-1024:]) {
			t.Errorf("the shortened result is %.60q … %.60q", now[4090:], now[len(now)-1060:])
		}
		ref := session.SpillRef{Session: a.ID(), Seq: whole[0].Seq}
		if !strings.Contains(now, "at the path "+ref.String()+" ") {
			t.Errorf("the shortened result does not say where the whole is: %q", now[4096:4300])
		}
		if got, err := w.Agents.ReadSpill(t.Context(), a, ref); err != nil || got != was {
			t.Errorf("the whole result reads as %d bytes, error %v", len(got), err)
		}
		if r := short[0]; r.Message.Source.Details().CallID != "c1" || r.Step != 1 {
			t.Errorf("the shortened result is of call %s in step %d", r.Message.Source.Details().CallID, r.Step)
		}
		w.verify(a)
	})
}

// core D38: how many code points stay is counted in code points.
func TestPruneCountsCodePoints_D38(t *testing.T) {
	got, ok := compact.Shorten(strings.Repeat("ä", 8193))
	if want := strings.Repeat("ä", 4096) + "|3073|" + strings.Repeat("ä", 1024); !ok || got != want {
		t.Errorf("8,193 umlauts become %d bytes, %v", len(got), ok)
	}
	if _, ok := compact.Shorten(strings.Repeat("ä", 8192)); ok {
		t.Error("8,192 umlauts, which are 16,384 bytes, are shortened")
	}
}

// core D40: a request that is too long for a window that nobody knew is made once more
// after a compaction, once for each step; a step that is too long again fails.
func TestTooLong_D40(t *testing.T) {
	for _, tc := range []struct {
		name  string
		told  int64
		stuck bool
		end   session.EndKind
		asked int // how often the step was asked
	}{
		{"window not known", 0, false, session.EndCompleted, 2},
		{"window is less than the model is known for", 1_000_000, false, session.EndCompleted, 2},
		{"still too long", 0, true, session.EndError, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &model{window: 10_000, told: tc.told, mute: true}
			m.answer = func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }
			m.summary = func(n int, _ *llm.Request) ([]message.Block, error) {
				if tc.stuck {
					m.window = 100
				}
				return say(fmt.Sprintf("summary %d", n)), nil
			}
			in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
				a := w.Parent(t)
				w.talk(a, 4, 8_000) // 8,000 tokens
				asked := len(m.requests)
				w.prompt(a, fill("more", 8_000))
				if e := end(a); e.Kind != tc.end || e.Kind == session.EndError && e.Failure.Code != llm.CodeContextWindow {
					t.Fatalf("the turn ended %s: %+v", e.Kind, e.Failure)
				}
				steps := 0
				for _, r := range m.requests[asked:] {
					if r.Purpose == "" {
						steps++
					}
				}
				if steps != tc.asked {
					t.Errorf("the step was asked %d times, want %d", steps, tc.asked)
				}
				if n := strings.Count(text(&m.requests[len(m.requests)-1].Request), "more xxx"); n != 1 && tc.end == session.EndCompleted {
					t.Errorf("the prompt that was too long stands %d times in the request that was not", n)
				}
				w.verify(a)
			})
		})
	}
	t.Run("nothing to leave out", func(t *testing.T) {
		m := &model{window: 1_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
		in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
			a := w.Parent(t)
			w.prompt(a, fill("long", 8_000))
			if e := end(a); e.Kind != session.EndError || e.Failure.Code != llm.CodeContextWindow || len(m.requests) != 1 {
				t.Errorf("ended %s after %d requests", e.Kind, len(m.requests))
			}
			var cerr *compact.Error
			if len(w.done) != 1 || !errors.As(w.done[0], &cerr) || cerr.Code != compact.CodeNothing {
				t.Errorf("told %v", w.done)
			}
		})
	})
	t.Run("switched off", func(t *testing.T) {
		m := &model{window: 10_000, answer: func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }}
		in(t, m, subagenttest.Options{}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
			a := w.Parent(t)
			w.talk(a, 5, 8_000)
			if e := end(a); e.Kind != session.EndError || strings.Contains(strings.Join(types(a.Session(), 0), " "), "compaction") {
				t.Errorf("ended %s", e.Kind)
			}
		})
	})
}

// A summary that fails does not fail the step, which still fits; it is not tried again
// before the conversation has grown.
func TestFailureIsNoStepsFailure_D38(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, mute: true}
	m.answer = func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }
	m.summary = func(int, *llm.Request) ([]message.Block, error) {
		return nil, &llm.Error{Failure: message.Failure{Code: llm.CodeInvalidRequest, Message: "no"}}
	}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 15, 4000)
		if len(w.done) != 0 {
			t.Fatalf("%d compactions too early", len(w.done))
		}
		w.talk(a, 1, 4000) // 16,000 tokens
		for i := range 20 {
			w.prompt(a, fmt.Sprintf("small %d", i))
			if e := end(a); e.Kind != session.EndCompleted {
				t.Fatalf("turn %d ended %s: %+v", i, e.Kind, e.Failure)
			}
		}
		if n := len(w.done); n != 1 {
			t.Errorf("%d compactions were tried while the conversation grew by 200 tokens", n)
		}
		w.talk(a, 1, 5400)
		w.prompt(a, "small")
		if n := len(w.done); n != 2 {
			t.Errorf("%d compactions were tried after it grew by a sixteenth of the window", n)
		}
		w.verify(a)
	})
}

// core D39, I14: a cancel while the model sums up ends the turn as any cancel does: the
// bracket is closed before the turn, the conversation is as it was, and what was claimed
// is history or gone, as ever.
func TestCancelledWhileSummingUp_D39(t *testing.T) {
	for name, stop := range map[string]func(w *world, a *agent.Agent){
		"cancelled": func(_ *world, a *agent.Agent) { _ = a.Cancel(session.Cause{Kind: session.CauseUser}, false) },
		"closed":    func(_ *world, a *agent.Agent) { a.CloseAdmission(true) },
	} {
		t.Run(name, func(t *testing.T) {
			m := &model{window: 20_000, told: 20_000}
			m.answer = func(*llm.Request) ([]message.Block, error) { return say("ok"), nil }
			in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
				a := w.Parent(t)
				hold := make(chan struct{})
				m.summary = func(int, *llm.Request) ([]message.Block, error) {
					<-hold
					return nil, errors.New("too late")
				}
				w.talk(a, 16, 4000)
				before, _ := a.Session().Surface()
				stop(w, a)
				close(hold)
				<-time.After(time.Second)
				after, _ := a.Session().Surface()
				if len(before) != len(after) || len(before) != 30 {
					t.Errorf("the conversation has %d messages, and had %d", len(after), len(before))
				}
				all := types(a.Session(), 0)
				if tail := strings.Join(all[max(len(all)-5, 0):], " "); !strings.Contains(tail, "compaction/end ") || !strings.Contains(tail, "turn/end") {
					t.Errorf("the log ends in %s", tail)
				}
				if e := end(a); e.Kind != session.EndAborted {
					t.Errorf("the turn ended %s", e.Kind)
				}
				w.verify(a)
			})
		})
	}
}
