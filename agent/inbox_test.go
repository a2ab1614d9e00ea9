package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// The claim at a turn boundary is the whole next-step list and one next-turn
// message, between steps the next-step list (core L6, L7, L11).
func TestClaimOrder(t *testing.T) {
	bubble(t, func(w *world) {
		l := newLatch()
		w.register("hold", false, func(ctx context.Context, _ *tool.Call) (any, error) { return "ok", l.wait(ctx) })
		w.model.script(uses("hold"))
		a := w.create()
		w.ok(a.Inject(msg("i1")))
		w.ok(a.Send(msg("n0"), session.NextTurn, false))
		w.ok(a.Followup(msg("m1")))
		<-l.reached
		w.ok(a.Followup(msg("m2")))
		w.ok(a.Steer(msg("s1")))
		w.ok(a.Inject(msg("i2")))
		close(l.open)
		w.idle(a)
		w.same("course", []string{
			"turn 1", "step 1.1", "user i1", "user n0", "step 1.2", "user s1", "user i2", "end 1 completed",
			"turn 2", "step 2.1", "user m1", "end 2 completed",
			"turn 3", "step 3.1", "user m2", "end 3 completed",
		}, lines(a, "turn", "step ", "user", "end"))
	})
}

// Input that wakes nobody waits (core L15, amendments P13, P43), says so in the
// log, and is claimed first by whatever wakes next.
func TestQuietInput(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		w.ok(a.Inject(msg("q1")))
		synctest.Wait()
		w.same("status", agent.Idle, a.Status())
		w.same("nothing to wake for", false, a.Wake())
		w.logged(a, 0, "inbox step +q1 nowake")
		w.ask(a, "m1")
		w.same("users", []string{"user q1", "user m1"}, lines(a, "user"))

		// Landing behind the last step of a turn it opens none (P13).
		w.ok(a.Inject(msg("q2")))
		synctest.Wait()
		w.same("status", agent.Idle, a.Status())
		w.same("ends", []string{"end 1 completed"}, lines(a, "end"))
	})
}

// What arrives when the turn is over: a steer opens a new one, an injection waits
// (core L21, amendment P13).
func TestBehindTheLastStep(t *testing.T) {
	for wake, want := range map[bool][]string{
		true:  {"turn 1", "user m1", "end 1 completed", "turn 2", "user late", "end 2 completed"},
		false: {"turn 1", "user m1", "end 1 completed"},
	} {
		bubble(t, func(w *world) {
			a := w.create()
			sent := false
			_, stop := a.Session().Watch(&fold{func(e *session.Event) {
				if _, ok := e.Payload().(*session.TurnEnd); ok && !sent {
					sent = true
					go func() { w.ok(a.Send(msg("late"), session.NextStep, wake)) }()
				}
			}})
			defer stop()
			w.ask(a, "m1")
			synctest.Wait()
			w.idle(a)
			w.same("course", want, lines(a, "turn", "user", "end"))
			w.same("nothing to wake for", false, a.Wake())
		})
	}
}

type fold struct{ apply func(*session.Event) }

func (f *fold) Apply(e *session.Event) { f.apply(e) }

// What an inbox refuses changes nothing (core L6, L8, L10).
func TestRefusedInput(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		w.ok(a.Inject(msg("m1")))
		before := a.Session().Head()
		bad := msg("m2")
		bad.Role = message.RoleAssistant
		blank := msg("")
		for name, err := range map[string]error{
			"pending already, same list":  a.Inject(msg("m1")),
			"pending already, other list": a.Followup(msg("m1")),
			"role":                        a.Followup(bad),
			"no id":                       a.Followup(blank),
			"accept":                      a.Accept(w.ctx, msg("m1"), session.NextTurn),
			"list":                        a.Send(msg("m3"), "next-week", true),
			"discard of nothing":          a.Discard("m9"),
		} {
			if err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
		w.same("events", before, a.Session().Head())
		w.same("status", agent.Idle, a.Status())
		w.ok(a.Discard("m1"))
		w.ok(a.Inject(msg("m1")))
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
		w.logged(a, 0, "inbox step +m1 nowake", "inbox step -1@0 canceled", "inbox step +m1 nowake", "inbox step -1@0 canceled")
		if !a.Quiescent() {
			t.Error("the agent is not quiescent")
		}
	})
}

// Clear empties next-step, then next-turn, also when idle, and opens no turn
// (core L10, L24, L26).
func TestClearWhenIdle(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		w.ok(a.Send(msg("n1"), session.NextTurn, false))
		w.ok(a.Inject(msg("i1")))
		w.ok(a.Inject(msg("i2")))
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, true))
		w.same("kept", int64(3), a.Session().Head())
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
		w.logged(a, 3, "inbox step -2@0 canceled", "inbox turn -1@0 canceled")
	})
}

// Send has made the agent running when it returns (core L34, G7), and Followup
// from a hook or a tool of the agent itself does not deadlock (core G6).
func TestStatusIsSynchronous(t *testing.T) {
	bubble(t, func(w *world) {
		w.register("send", false, func(_ context.Context, c *tool.Call) (any, error) {
			return "ok", c.Caller.(*agent.Agent).Followup(msg("from-tool"))
		})
		w.model.script(uses("send"))
		chained := false
		var seen []agent.Status
		a := w.create()
		a.AddHooks(agent.Hooks{Status: func(a *agent.Agent, s agent.Status) {
			seen = append(seen, s)
			if s == agent.Idle && !chained {
				chained = true
				w.ok(a.Followup(msg("from-hook")))
			}
		}})
		l := newLatch()
		a.AddHooks(agent.Hooks{TurnOpen: func(_ *agent.Agent, turn int64) ([]session.Draft, error) {
			if turn > 1 {
				return nil, nil
			}
			return nil, l.wait(w.ctx)
		}})
		w.ok(a.Followup(msg("m1")))
		w.same("status after Send", agent.Running, a.Status())
		close(l.open)
		w.idle(a)
		w.same("users", []string{"user m1", "user from-tool", "user from-hook"}, lines(a, "user"))
		w.same("statuses", []agent.Status{agent.Running, agent.Idle, agent.Running, agent.Idle}, seen)
	})
}

// WhenIdle goes on when nothing follows at once (core L31), and its ctx bounds the
// wait alone.
func TestWhenIdle(t *testing.T) {
	bubble(t, func(w *world) {
		l := newLatch()
		w.model.script(func(c *call) { w.ok(l.wait(c.ctx)); say("x")(c) })
		a := w.create()
		w.ok(a.Followup(msg("m1")))
		w.ok(a.Followup(msg("m2")))
		<-l.reached
		ctx, cancel := context.WithCancelCause(w.ctx)
		cancel(errBoom)
		if err := a.WhenIdle(ctx); !errors.Is(err, errBoom) {
			t.Errorf("WhenIdle with an ended ctx: %v", err)
		}
		close(l.open)
		w.idle(a)
		w.same("ends", []string{"end 1 completed", "end 2 completed"}, lines(a, "end"))
		w.ok(a.WhenIdle(ctx))
	})
}

// Maintenance runs on an idle agent only, is not seen, and latches wakes (core L1,
// L29).
func TestMaintenance(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		err := a.RunMaintenance(w.ctx, func(context.Context) error {
			w.ok(a.Followup(msg("m1")))
			w.same("status in maintenance", agent.Idle, a.Status())
			if a.Quiescent() {
				t.Error("quiescent in maintenance")
			}
			if err := a.RunMaintenance(w.ctx, nil); !errors.Is(err, agent.ErrBusy) {
				t.Errorf("maintenance inside maintenance: %v", err)
			}
			synctest.Wait()
			w.same("events", int64(1), a.Session().Head())
			return errBoom
		})
		if !errors.Is(err, errBoom) {
			t.Errorf("the job's error: %v", err)
		}
		w.idle(a)
		w.same("ends", []string{"end 1 completed"}, lines(a, "end"))

		// A cancel without the queue drops the latch with it; one with it keeps both.
		for _, keep := range []bool{false, true} {
			id := message.ID(map[bool]string{false: "dropped", true: "kept"}[keep])
			w.ok(a.RunMaintenance(w.ctx, func(ctx context.Context) error {
				w.ok(a.Followup(msg(string(id))))
				w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, keep))
				w.same("the job's ctx", error(session.Cause{Kind: session.CauseUser}), context.Cause(ctx))
				return nil
			}))
			w.idle(a)
		}
		w.same("users", []string{"user m1", "user kept"}, lines(a, "user"))

		ctx, cancel := context.WithCancelCause(w.ctx)
		err = a.RunMaintenance(ctx, func(ctx context.Context) error { cancel(errBoom); <-ctx.Done(); return context.Cause(ctx) })
		if !errors.Is(err, errBoom) {
			t.Errorf("the caller's cancel: %v", err)
		}
		var p *agent.PanicError
		if err := a.RunMaintenance(w.ctx, func(context.Context) error { panic("ouch") }); !errors.As(err, &p) {
			t.Errorf("a panic of the job: %v", err)
		}
		l := newLatch()
		w.model.script(func(c *call) { w.ok(l.wait(c.ctx)); say("x")(c) })
		w.ok(a.Followup(msg("m2")))
		<-l.reached
		if err := a.RunMaintenance(w.ctx, nil); !errors.Is(err, agent.ErrBusy) {
			t.Errorf("maintenance while running: %v", err)
		}
		close(l.open)
		w.idle(a)
		w.ok(a.Dispose(w.ctx, false))
		if err := a.RunMaintenance(w.ctx, nil); !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("maintenance of a disposed agent: %v", err)
		}
	})
}

// Only durable messages are claimed: a send whose splice is not stored yet is
// stored first, and nothing behind it overtakes it (design § 4).
func TestClaimWaitsForTheStore(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		l := newLatch()
		held := false
		w.store.gate(func(op string, _ []session.Event) error {
			if held {
				return nil
			}
			held = true
			return l.wait(w.ctx)
		}, nil)
		w.ok(a.Followup(msg("m1")))
		<-l.reached
		synctest.Wait()
		w.same("before the sync", []string{"inbox turn +m1", "turn 1"}, trace(a.Session()))
		// What comes now is not in that write, so it is not in that claim.
		w.ok(a.Steer(msg("s1")))
		close(l.open)
		w.idle(a)
		w.store.healthy()
		w.same("course", []string{"step 1.1", "user m1", "step 1.2", "user s1", "end 1 completed"}, lines(a, "step ", "user", "end"))
	})
}

// A store that fails stops the agent without spinning; the message stays and is
// run once the store is back (amendment P08 with core D23).
func TestStoreFailureParks(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		w.store.failing(errBoom)
		w.ok(a.Followup(msg("m1")))
		w.ok(a.Followup(msg("m2")))
		w.idle(a)
		w.same("still waiting", 2, len(a.Session().Inbox(session.NextTurn)))
		w.same("requests", 0, w.model.count())
		if n := len(lines(a, "turn")); n > 2 {
			t.Errorf("%d turns were tried", n)
		}
		w.store.healthy()
		w.same("woken", true, a.Wake())
		w.idle(a)
		w.same("users", []string{"user m1", "user m2"}, lines(a, "user"))
	})
}

// A flush that fails in front of a request fails the turn, and nothing leaves (core D23a).
func TestFlushBeforeRequest(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		w.store.gate(func(_ string, events []session.Event) error {
			for _, e := range events {
				if e.Type == session.TypeRequestHeader {
					return errBoom
				}
			}
			return nil
		}, nil)
		w.ask(a, "m1")
		w.same("requests", 0, w.model.count())
		w.same("course", []string{"user m1", "header initial test:m1", "end 1 error UNKNOWN"}, lines(a, "user", "header", "end", "assistant"))
		w.store.failFor("check", errBoom)
		w.ask(a, "m2")
		w.same("requests while ownership is unconfirmed", 0, w.model.count())
		w.store.healthy()
		w.ask(a, "m3")
		w.same("ends", []string{"end 1 error UNKNOWN", "end 2 error UNKNOWN", "end 3 completed"}, lines(a, "end"))
	})
}
