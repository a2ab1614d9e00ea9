package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// ends returns the end edges of a child, in one line each.
func (l *nest) ends(id session.ID) (lines []string) {
	for _, e := range l.Lifecycle.Edges() {
		if e.Start.ID == id && e.End != nil {
			line := string(e.End.StopReason)
			if e.End.Output != nil {
				line += ": " + message.JoinText(e.End.Output)
			}
			if e.End.Failure != nil {
				line += " (" + e.End.Failure.Code + ")"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// onTurn calls fn before the nth turn of a child opens.
func (l *nest) onTurn(nth int64, fn func(a *agent.Agent)) {
	l.Agents.AddHooks(agent.Hooks{TurnOpen: func(a *agent.Agent, turn int64) ([]session.Draft, error) {
		if !a.Root() && turn == nth {
			fn(a)
		}
		return nil, nil
	}})
}

// pre gives a child's steps to fn.
func (l *nest) pre(fn func(p *agent.PreStep) error) {
	l.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error {
		if p.Agent.Root() {
			return nil
		}
		return fn(p)
	}})
}

// EVT-10, EVT-11, EVT-24…28, EVT-21, F-16, F-22, F-36, F-42, OUT-02, OBS-14, AMB-16, AMB-32: what an epoch ends with, on
// the edge and in the log, from the turns that account for its work and from nothing
// before it.
func TestEpochReason_EVT24(t *testing.T) {
	drop := func(a *agent.Agent) {
		// Whoever has power over the agent, not the seam.
		if err := a.Cancel(session.Cause{Kind: session.CauseParent}, false); err != nil {
			panic(err)
		}
	}
	reject := func(text string) func(p *agent.PreStep) error {
		return func(p *agent.PreStep) error {
			for _, m := range p.Messages {
				if message.JoinText(m.Content) == text {
					p.Reject()
				}
			}
			return nil
		}
	}
	for _, tc := range []struct {
		name  string
		model []scripted.Step // answers "begin"
		set   func(l *nest)
		then  []string // follow-ups while the first turn runs
		stop  bool     // a person stops the turn
		want  string   // the end edge
	}{
		{name: "completed", want: "completed: noted"},
		{name: "token ceiling", model: []scripted.Step{{scripted.SayLiteral("par"), scripted.MaxTokens()}}, want: "max-tokens: par"},
		{name: "failed", model: []scripted.Step{{scripted.Fail("BAD", "it broke")}}, want: "error"},
		{name: "refused by the model", model: []scripted.Step{{scripted.Refuse("no")}}, want: "refusal: no"},
		{name: "rejected before any step", set: func(l *nest) { l.pre(reject("begin")) }, want: "refusal"},
		{name: "the chain failed", set: func(l *nest) { l.pre(func(*agent.PreStep) error { return errBoom }) }, want: "error"},
		{name: "EVT-26 nothing entered", set: func(l *nest) {
			l.pre(func(p *agent.PreStep) error { p.Messages = nil; return nil })
		}, want: "completed"},
		{name: "EVT-25 cancelled before any turn", set: func(l *nest) { l.onTurn(1, drop) }, want: "aborted"},
		{name: "INT-17 interrupted before its first step", set: func(l *nest) {
			l.onTurn(1, func(a *agent.Agent) {
				if err := l.Host.Interrupt(l.parent.ID(), a.ID()); err != nil {
					panic(err)
				}
			})
		}, want: "aborted"},
		{name: "EVT-25 dropped behind a clean turn", then: []string{"second"}, set: func(l *nest) { l.onTurn(2, drop) }, want: "aborted: begin is done"},
		{name: "EVT-27 dropped behind a failure", model: []scripted.Step{{scripted.Fail("BAD", "it broke")}}, then: []string{"second"}, set: func(l *nest) { l.onTurn(2, drop) }, want: "error"},
		{name: "EVT-27 dropped behind a ceiling", model: []scripted.Step{{scripted.SayLiteral("par"), scripted.MaxTokens()}}, then: []string{"second"}, set: func(l *nest) { l.onTurn(2, drop) }, want: "max-tokens: par"},
		{name: "EVT-28 a drop before the accounting turn closed", then: []string{"second"}, set: func(l *nest) {
			var once sync.Once
			l.Agents.AddHooks(agent.Hooks{TurnStopping: func(_ context.Context, a *agent.Agent, _ session.EndKind) {
				if a.Root() {
					return
				}
				once.Do(func() {
					for _, q := range a.Session().Inbox(session.NextTurn) {
						if err := a.Discard(q.Message.ID); err != nil {
							panic(err)
						}
					}
				})
			}})
		}, want: "completed: begin is done"},
		{name: "EVT-28 rejected behind a clean turn", then: []string{"second"}, set: func(l *nest) { l.pre(reject("second")) }, want: "refusal: begin is done"},
		{name: "recovered behind a failure", then: []string{"fail", "third"}, want: "completed: noted"},
		{name: "interrupted", model: []scripted.Step{{scripted.Hang()}}, stop: true, want: "aborted"},
		{name: "F-36 an empty end", model: []scripted.Step{{scripted.SayLiteral("the answer"), scripted.Call("look", "{}")}, {scripted.Empty()}}, want: "completed: the answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inNest(t, subagenttest.Options{Tools: []tool.Definition{idle("look")}}, func(t *testing.T, l *nest) {
				var g *gate
				if len(tc.then) > 0 && tc.model == nil {
					g = l.hold("begin")
				} else if tc.model != nil {
					l.Answer("begin", tc.model...)
				}
				l.Answer("fail", scripted.Step{scripted.Fail("BAD", "it broke")})
				if tc.set != nil {
					tc.set(l)
				}
				if len(tc.then) > 0 && g == nil {
					// Before the first turn can end.
					l.onTurn(1, func(a *agent.Agent) {
						for _, text := range tc.then {
							m := agent.UserText(text)
							if err := a.Followup(m); err != nil {
								t.Error(err)
							}
						}
					})
				}
				acc := l.start("worker", "begin")
				if g != nil {
					for _, text := range tc.then {
						l.followup(acc.Child, text)
					}
					close(g.open)
				}
				synctest.Wait()
				if tc.stop {
					if err := l.Host.Interrupt(l.parent.ID(), acc.Child); err != nil {
						t.Error(err)
					}
					synctest.Wait()
				}
				l.gone(acc.Child)
				if d := cmp.Diff([]string{tc.want}, l.ends(acc.Child)); d != "" {
					t.Errorf("%q\n%s", l.said(acc.Child), d)
				}
				said := l.said(acc.Child)
				reason, _, _ := strings.Cut(tc.want, ":")
				if said[len(said)-1] != "settled: "+reason {
					t.Errorf("the log: %q", said)
				}
			})
		})
	}
	for kind, want := range map[session.EndKind]subagent.StopReason{
		session.EndCompleted: subagent.StopCompleted, session.EndMaxTokens: subagent.StopMaxTokens, session.EndAborted: subagent.StopAborted,
		session.EndBlocked: subagent.StopRefusal, session.EndRefusal: subagent.StopRefusal, session.EndError: subagent.StopError,
		session.EndInterrupted: subagent.StopAborted, "of tomorrow": subagent.StopError,
	} {
		if got := subagent.ReasonOf(&session.TurnEnd{Kind: kind}, subagent.StopAborted); got != want {
			t.Errorf("EVT-24: %s is %s", kind, got)
		}
	}
	if got := subagent.ReasonOf(&session.TurnEnd{Kind: session.EndInterrupted}, subagent.StopError); got != subagent.StopError {
		t.Errorf("OBS-14: of a one-shot child it is %s", got)
	}
}

// EVT-21, F-22, EVT-15: an epoch that brings nothing forth says so, whatever the one before it said.
func TestEpochBoundary_EVT21(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		acc := l.start("worker", "begin")
		synctest.Wait()
		l.pre(func(p *agent.PreStep) error { p.Reject(); return nil })
		l.followup(acc.Child, "more")
		synctest.Wait()
		if d := cmp.Diff([]string{"completed: noted", "refusal"}, l.ends(acc.Child)); d != "" {
			t.Error(d)
		}
		edges := l.Lifecycle.Edges()
		if len(edges) != 4 || edges[0].Start.RunID == edges[2].Start.RunID || edges[0].Start.Epoch != 1 || edges[2].Start.Epoch != 2 || !edges[2].Start.Local {
			t.Errorf("EVT-15: %+v", edges)
		}
	})
}

// EVT-19, EVT-22, EVT-23, TEAR-05…07, P34, F-18, F-19, B-08: the order of an epoch's end: the turn is cancelled and over, the end is
// in the log, and every hook takes part in storing it while the child is still
// registered, whatever another does; then the parent is told, the ownership goes, and the
// edge is told last.
func TestEpochOrder_EVT23(t *testing.T) {
	var log bytes.Buffer
	inNest(t, subagenttest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, l *nest) {
		var order []string
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		l.Service.AddHooks(subagent.Hooks{Ended: func(e subagent.EndEdge) {
			if e.Parent != l.parent {
				note("edge")
				if len(l.Service.OwnedBy(e.Parent.ID())) > 0 {
					t.Error("EVT-23: the edge is told before the ownership went")
				}
			}
		}}, nil)
		l.hold("hang")
		mid, leaf, works := l.pair("hang")
		close(works.open)
		synctest.Wait()
		flush := func(name string, err error) session.Hooks {
			return session.Hooks{Flush: func(_ context.Context, s *session.Session) error {
				if s.ID() != leaf.Child {
					return nil
				}
				note("flush " + name)
				a, live := l.Agents.Get(s.ID())
				if !live || a.Status() != agent.Idle {
					t.Errorf("TEAR-05, EVT-22: at the flush the child is live %v, %v", live, a.Status())
				}
				if end, _ := s.LastEnd(); end == nil || s.Epochs().Last == nil {
					t.Error("TEAR-05: the flush does not cover the last events")
				}
				return err
			}}
		}
		l.Sessions.AddHooks(flush("one", errBoom))
		l.Sessions.AddHooks(flush("two", nil))
		l.liveAgent(mid.Child).AddHooks(agent.Hooks{Inbox: func(_ *agent.Agent, e agent.InboxEvent) {
			if e.Change == agent.InboxEnqueue && e.Message.Source.Kind == message.SourceSubagentSettled {
				note("told")
				if len(l.Service.OwnedBy(mid.Child)) != 1 {
					t.Error("EVT-23: the ownership went before the parent was told")
				}
			}
		}})
		l.Agents.AddHooks(agent.Hooks{Disposed: func(a *agent.Agent) {
			if a.ID() == leaf.Child {
				note("disposed")
			}
		}})
		if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.liveAgent(mid.Child), leaf.Child); err != nil {
			t.Errorf("TEAR-07: the drain: %v", err)
		}
		synctest.Wait()
		if d := cmp.Diff([]string{"flush one", "flush two", "disposed", "told", "edge"}, order); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"aborted"}, l.ends(leaf.Child)); d != "" {
			t.Errorf("TEAR-07: the edge:\n%s", d)
		}
		if !strings.Contains(log.String(), errBoom.Error()) {
			t.Errorf("TEAR-07: the failed flush is not logged: %s", log.String())
		}
		l.gone(mid.Child)
	})
}

// EVT-20, TEAR-08, TEAR-09, SET-13, OWN-06, P34: where taking a child down fails, its agent goes all the
// same, nobody above is pinned, the edge is the failure without the output, and the log
// and the notice keep what the epoch came to. Of an ordinary end it is logged.
func TestTeardownFails_TEAR08(t *testing.T) {
	var log bytes.Buffer
	inNest(t, subagenttest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, l *nest) {
		l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
			return func() error {
				if a.Session().Header().ParentSession != l.parent.ID() {
					return errBoom
				}
				return nil
			}, nil
		})
		mid, leaf, works := l.pair("begin")
		close(works.open)
		synctest.Wait()
		l.gone(mid.Child, leaf.Child)
		if _, live := l.Sessions.Get(leaf.Child); live {
			t.Error("TEAR-08: the session is still live")
		}
		if d := cmp.Diff([]string{"error (ACTIVATION_TEARDOWN_FAILED)"}, l.ends(leaf.Child)); d != "" {
			t.Errorf("EVT-20:\n%s", d)
		}
		l.logs(leaf.Child, "user: begin", "answer: noted", "settled: completed")
		if said := strings.Join(l.said(mid.Child), "\n"); !strings.Contains(said, "has finished.") || !strings.HasSuffix(said, "settled: completed") {
			t.Errorf("the parent's log: %s", said)
		}
		if !strings.Contains(log.String(), errBoom.Error()) {
			t.Errorf("SET-13: it is not logged: %s", log.String())
		}
	})
}

// RB-17: what goes wrong while a child is taken back does not hide why it is: the caller gets that, and the other is
// logged.
func TestRollbackFails_RB17(t *testing.T) {
	j := &journal{}
	inNest(t, subagenttest.Options{Logger: j.logger()}, func(t *testing.T, l *nest) {
		l.frailty(map[session.ID]error{"child": errBoom})
		ctx, leave := context.WithCancelCause(t.Context())
		l.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) { leave(errGone) }}, nil)
		req := l.request("worker", "begin")
		req.ID = "child"
		if _, err := l.Service.StartContinuable(ctx, "spawn", req); err != errGone { //nolint:errorlint // the exact cause
			t.Errorf("it said %v", err)
		}
		l.gone("child")
		if !strings.Contains(j.String(), errBoom.Error()) {
			t.Errorf("logged: %s", j)
		}
		if found, err := l.store.Exists(t.Context(), "child"); found || err != nil {
			t.Errorf("stored: %v, %v", found, err)
		}
	})
}

// EVT-16, EVT-17, EVT-18, RB-13, RB-14, RB-18, CAN-08: what a start edge that was told has for an end where nothing was
// accepted, and that the parent is told nothing of such a child.
func TestUnacceptedEpoch_EVT18(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		ctx, leave := context.WithCancelCause(t.Context())
		remove := l.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) { leave(errGone) }}, nil)
		l.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) { panic(errBoom) }}, nil)
		req := l.request("worker", "begin")
		req.ID = "child"
		if _, err := l.Service.StartContinuable(ctx, "spawn", req); err != errGone { //nolint:errorlint // the exact cause
			t.Errorf("RB-14: %v", err)
		}
		remove()
		synctest.Wait()
		if d := cmp.Diff([]string{"completed"}, l.ends("child")); d != "" {
			t.Errorf("EVT-18:\n%s", d)
		}
		if n := l.parent.Session().Head(); n != 0 {
			t.Errorf("RB-18: the parent's log has %d events", n)
		}
		if _, err := l.Service.StartContinuable(t.Context(), "spawn", req); err != nil {
			t.Errorf("EVT-14, OBS-02: the next one: %v", err)
		}
		synctest.Wait()
		l.logs("child", "user: begin", "answer: noted", "settled: completed")
		if err := l.Service.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_, err := l.Service.StartContinuable(t.Context(), "spawn", req)
		if !errors.Is(err, subagent.ErrDraining) {
			t.Error(err)
		}
	})
}
