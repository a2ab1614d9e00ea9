package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// stall is where the matrix holds an agent up: it does not look at ctx, so that a
// wake can arrive while the activity is cancelled and has not converged.
type stall struct{ reached, open chan struct{} }

func (s *stall) hold() {
	close(s.reached)
	<-s.open
}

// phases of an activity. start brings an agent that was sent m1 to the place where
// it holds; course is what the log says of turn 1 when it was cancelled there.
var phases = []struct {
	name   string
	prime  func(w *world, a *agent.Agent, s *stall)
	course []string
	// unclaimed: the cancel came before m1 was claimed
	unclaimed bool
}{
	{
		name: "turn opening",
		prime: func(_ *world, a *agent.Agent, s *stall) {
			var remove func()
			remove = a.AddHooks(agent.Hooks{TurnOpen: func(*agent.Agent, int64) ([]session.Draft, error) {
				remove()
				s.hold()
				return nil, nil
			}})
		},
		unclaimed: true,
	},
	{
		name: "pre-step chain",
		prime: func(_ *world, a *agent.Agent, s *stall) {
			var remove func()
			remove = a.AddHooks(agent.Hooks{PreStep: func(context.Context, *agent.PreStep) error { remove(); s.hold(); return nil }})
		},
		course: []string{"turn 1", "end 1 aborted user"},
	},
	{
		name: "request hook",
		prime: func(_ *world, a *agent.Agent, s *stall) {
			var remove func()
			remove = a.AddHooks(agent.Hooks{Request: func(context.Context, *agent.Agent, *llm.CallConfig) error { remove(); s.hold(); return nil }})
		},
		course: []string{"turn 1", "step 1.1", "user m1", "header initial test:m1", "end 1 aborted user"},
	},
	{
		name:   "model silent",
		prime:  func(w *world, _ *agent.Agent, s *stall) { w.model.script(func(c *call) { s.hold(); c.hang() }) },
		course: []string{"turn 1", "step 1.1", "user m1", "header initial test:m1", "end 1 aborted user"},
	},
	{
		name: "mid-stream",
		prime: func(w *world, _ *agent.Agent, s *stall) {
			w.model.script(func(c *call) {
				c.delta(message.BlockText, llm.ChunkTextDelta, "half ")
				c.use("c1", "read", "{}")
				s.hold()
				c.hang()
			})
		},
		course: []string{"turn 1", "step 1.1", "user m1", "header initial test:m1", `assistant "half " interrupted`, "end 1 aborted user"},
	},
	{
		name: "tool running",
		prime: func(w *world, _ *agent.Agent, s *stall) {
			w.register("read", false, func(context.Context, *tool.Call) (any, error) { s.hold(); return "data", nil })
			w.model.script(uses("read", "read"))
		},
		course: []string{
			"turn 1", "step 1.1", "user m1", "header initial test:m1", "assistant read(c1) read(c2)",
			"call c1 read", "result c1 ABORTED", "call c2 read", "result c2 ABORTED_BEFORE_DISPATCH", "end 1 aborted user",
		},
	},
	{
		name: "answer complete, not recorded",
		prime: func(w *world, _ *agent.Agent, s *stall) {
			w.model.script(func(c *call) { say("whole")(c); s.hold() })
		},
		course: []string{"turn 1", "step 1.1", "user m1", "header initial test:m1", `assistant "whole"`, "end 1 completed"},
	},
	{
		name: "calls complete, not recorded",
		prime: func(w *world, _ *agent.Agent, s *stall) {
			w.register("read", false, func(context.Context, *tool.Call) (any, error) { return "data", nil })
			w.model.script(func(c *call) { uses("read")(c); s.hold() })
		},
		course: []string{
			"turn 1", "step 1.1", "user m1", "header initial test:m1", "assistant read(c1)",
			"call c1 read", "result c1 ABORTED_BEFORE_DISPATCH", "end 1 aborted user",
		},
	},
	{
		name: "turn stopping",
		prime: func(_ *world, a *agent.Agent, s *stall) {
			var remove func()
			remove = a.AddHooks(agent.Hooks{TurnStopping: func(context.Context, *agent.Agent, session.EndKind) { remove(); s.hold() }})
		},
		course: []string{"turn 1", "step 1.1", "user m1", "header initial test:m1", `assistant "ok"`, "end 1 completed"},
	},
}

// The cancel matrix (Q5; core L12, L23–L28): phase × keepInbox × a wake during the
// convergence.
func TestCancelMatrix(t *testing.T) {
	for _, ph := range phases {
		for _, keep := range []bool{false, true} {
			for _, wake := range []string{"none", "followup", "steer"} {
				t.Run(fmt.Sprintf("%s/keep=%t/wake=%s", ph.name, keep, wake), func(t *testing.T) {
					bubble(t, func(w *world) {
						a := w.create()
						s := &stall{make(chan struct{}), make(chan struct{})}
						ph.prime(w, a, s)
						w.ok(a.Followup(msg("m1")))
						<-s.reached
						w.ok(a.Followup(msg("m2")))
						// A next-step message would join a turn that is about to stop.
						if ph.name != "turn stopping" {
							w.ok(a.Inject(msg("i1")))
						}
						w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, keep))
						switch wake {
						case "followup":
							w.ok(a.Followup(msg("w1")))
						case "steer":
							w.ok(a.Steer(msg("w1")))
						}
						// The first cause wins, and a later cancel that keeps the queue changes nothing.
						w.ok(a.Cancel(session.Cause{Kind: session.CauseParent}, true))
						synctest.Wait()
						w.same("status until it converged", agent.Running, a.Status())
						close(s.open)
						w.idle(a)
						checkAfterCancel(w, a, ph.course, ph.name == "turn stopping", ph.unclaimed, keep, wake != "none")
						if n := len(w.rec.failures(a)); n != 0 {
							t.Errorf("a cancel was told as a failure: %v", w.rec.failures(a))
						}
						w.same("one stretch of running", []agent.Status{agent.Running, agent.Idle}, w.rec.statuses(a))
					})
				})
			}
		}
	}
}

func checkAfterCancel(w *world, a *agent.Agent, course []string, noInject, unclaimed, keep, wake bool) {
	w.Helper()
	want := append([]string{}, course...)
	turn := 1
	if course != nil {
		turn = 2
	}
	// ran lists the users of each turn behind the cancelled one.
	var ran [][]string
	var left []string
	kept := []string{"m2"}
	if unclaimed {
		kept = []string{"m1", "m2"}
	}
	switch {
	case keep && wake:
		// The next wake runs first what was parked.
		for i, m := range append(kept, "w1") {
			users := []string{m}
			if i == 0 && !noInject {
				users = []string{"i1", m}
			}
			ran = append(ran, users)
		}
	case keep:
		left = kept
		if !noInject {
			left = append([]string{"i1"}, kept...)
		}
	case wake:
		ran = [][]string{{"w1"}}
	}
	first := course == nil
	for _, users := range ran {
		want = append(want, fmt.Sprintf("turn %d", turn), fmt.Sprintf("step %d.1", turn))
		for _, u := range users {
			want = append(want, "user "+u)
		}
		if first || turn == 2 && len(course) == 2 {
			want = append(want, "header initial test:m1")
			first = false
		}
		want = append(want, `assistant "ok"`, fmt.Sprintf("end %d completed", turn))
		turn++
	}
	got := lines(a, "turn", "step ", "user", "header", "assistant", "call", "result", "end")
	w.same("course", strings.Join(want, "\n"), strings.Join(got, "\n"))
	var queued []string
	for _, target := range []session.Target{session.NextStep, session.NextTurn} {
		for _, q := range a.Session().Inbox(target) {
			queued = append(queued, string(q.Message.ID))
		}
	}
	w.same("left in the inbox", left, queued)
}

// A cancel that falls between turn/start and the claim claims nothing (core L25).
func TestCancelBeforeTheClaim(t *testing.T) {
	for keep, left := range map[bool]int{false: 0, true: 1} {
		stored(t, func(w *world) {
			a := w.create()
			s := &stall{make(chan struct{}), make(chan struct{})}
			first := true
			w.store.gate(func(string, []session.Event) error {
				if first {
					first = false
					s.hold()
				}
				return nil
			}, nil)
			w.ok(a.Followup(msg("m1")))
			<-s.reached
			w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, keep))
			close(s.open)
			w.idle(a)
			w.store.healthy()
			w.same("course", []string{"turn 1", "end 1 aborted user"}, lines(a, "turn", "user", "end"))
			w.same("left", left, len(a.Session().Inbox(session.NextTurn)))
		})
	}
}

// Every cause is recorded as it was given (core S11).
func TestCancelCauses(t *testing.T) {
	for _, cause := range []session.Cause{
		{Kind: session.CauseUser}, {Kind: session.CauseParent}, {Kind: session.CauseHook, Reason: "because\xff"}, {Kind: session.CauseDisposed},
	} {
		t.Run(string(cause.Kind), func(t *testing.T) {
			bubble(t, func(w *world) {
				a := w.create()
				reached := make(chan struct{})
				w.model.script(func(c *call) { close(reached); c.hang() })
				w.ok(a.Followup(msg("m1")))
				<-reached
				w.ok(a.Followup(msg("m2")))
				w.ok(a.Cancel(cause, true))
				w.idle(a)
				w.same("ends", []string{"end 1 aborted " + string(cause.Kind)}, lines(a, "end"))
			})
		})
	}
}

// A cancelled answer keeps what a person could see of it, and its usage (core L28).
func TestInterruptedPartial(t *testing.T) {
	for name, c := range map[string]struct {
		play func(*call)
		want []string
	}{
		"text":      {func(c *call) { c.text("seen") }, []string{`assistant "seen" interrupted`}},
		"reasoning": {func(c *call) { c.delta(message.BlockReasoning, llm.ChunkReasoningDelta, "hm") }, []string{`assistant "hm" interrupted`}},
		"blank":     {func(c *call) { c.text(" \n") }, []string{}},
		"a call":    {func(c *call) { c.use("c1", "read", "{}") }, []string{}},
		"a call and text": {func(c *call) {
			c.use("c1", "read", "{}")
			c.text("seen")
			c.put(llm.Chunk{Kind: llm.ChunkUsage, Usage: &message.Usage{InputTokens: 9, OutputTokens: 1}})
		}, []string{`assistant "seen" interrupted`}},
		"nothing": {func(*call) {}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				a := w.create()
				reached := make(chan struct{})
				w.model.script(func(k *call) { c.play(k); close(reached); k.hang() })
				w.ok(a.Followup(msg("m1")))
				<-reached
				w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
				w.idle(a)
				w.same("answers", c.want, lines(a, "assistant"))
				w.ask(a, "m2") // the next request is legal
			})
		})
	}
}

// A cancel while a retry waits ends the turn at once, balanced (core M19).
func TestCancelInRetryWait(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		w.model.script(fails(llm.CodeServer))
		w.ok(a.Followup(msg("m1")))
		synctest.Wait()
		start := time.Now()
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
		w.idle(a)
		if d := time.Since(start); d != 0 {
			t.Errorf("the cancelled wait took %v", d)
		}
		w.same("course", []string{"step 1.1", "user m1", "step-end 1.1", "end 1 aborted user"}, lines(a, "step", "user", "end", "retry-started"))
	})
}

// Without a running activity a cancel has none to end (core L26), and a wake latch
// that was dropped with the queue does not come back (core L24).
func TestCancelDropsTheLatch(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		s := &stall{make(chan struct{}), make(chan struct{})}
		w.model.script(func(c *call) { s.hold(); c.hang() })
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
		w.logged(a, 0)
		w.ok(a.Followup(msg("m1")))
		<-s.reached
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, true))
		w.ok(a.Steer(msg("w1")))
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
		w.ok(a.Send(msg("n1"), session.NextTurn, false))
		close(s.open)
		w.idle(a)
		w.same("users", []string{"user m1"}, lines(a, "user"))
		w.same("events of w1: next-turn, then gone", []string{"inbox turn +w1", "inbox turn -1@0 canceled", "inbox turn +n1 nowake"}, lines(a, "inbox turn")[2:])
	})
}

// A cancel by a hook of the very insertion: the classification was made before it
// (core L12).
func TestCancelProvokedByInsertion(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		a.AddHooks(agent.Hooks{Inbox: func(a *agent.Agent, e agent.InboxEvent) {
			if e.Message.ID == "s1" && e.Change == agent.InboxEnqueue {
				w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, true))
			}
		}})
		s := &stall{make(chan struct{}), make(chan struct{})}
		w.model.script(func(c *call) { s.hold(); c.hang() })
		w.ok(a.Followup(msg("m1")))
		<-s.reached
		w.ok(a.Steer(msg("s1")))
		close(s.open)
		w.idle(a)
		w.same("s1 is a next-step message and parked", 1, len(a.Session().Inbox(session.NextStep)))
		w.same("ends", []string{"end 1 aborted user"}, lines(a, "end"))
	})
}

// A take-over by another process cancels the whole tree and keeps its queues
// (design § 4, Ownership).
func TestFencedCancelsTheTree(t *testing.T) {
	stored(t, func(w *world) {
		root := w.create()
		w.ask(root, "m0")
		child := w.child(root)
		stranger := w.create()
		for _, a := range []*agent.Agent{root, child, stranger} {
			reached := make(chan struct{})
			w.model.script(func(c *call) { close(reached); c.hang() })
			w.ok(a.Followup(msg("m-" + string(a.ID()))))
			<-reached
		}
		w.store.gate(func(op string, _ []session.Event) error {
			if op == "append" {
				return &session.FencedError{ID: root.ID()}
			}
			return nil
		}, nil)
		w.ok(root.Inject(msg("i1")))
		if err := root.Session().Flush(w.ctx); err == nil {
			t.Error("the flush of a fenced session succeeded")
		}
		w.idle(root)
		w.idle(child)
		w.same("stranger", agent.Running, stranger.Status())
		w.same("root", "end 2 aborted hook", lines(root, "end")[1])
		w.same("child", []string{"end 1 aborted hook"}, lines(child, "end"))
		w.same("kept", 1, len(root.Session().Inbox(session.NextStep)))
	})
}
