package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// Seal ends what an agent does and lets nothing in, and leaves the agent where it is; its
// work is told to stop once, whoever disposes it afterwards (design § 4, Admission closes
// before waiting starts).
func TestSeal(t *testing.T) {
	for _, keep := range []bool{true, false} {
		bubble(t, func(w *world) {
			a := w.create()
			stops := 0
			w.ok(bind(a, agent.Work{Stop: func() { stops++ }, Join: func() {}}))
			w.model.script(func(c *call) { c.hang() })
			w.ok(a.Followup(msg("m1")))
			synctest.Wait()
			w.ok(a.Followup(msg("m2")))
			w.ok(a.Seal(session.Cause{Kind: session.CauseParent}, keep))
			w.idle(a)
			if err := a.Followup(msg("m3")); !errors.Is(err, agent.ErrDisposed) {
				t.Errorf("a sealed agent takes a message: %v", err)
			}
			if a.Wake() {
				t.Error("a sealed agent is woken")
			}
			if live, ok := w.reg.Get(a.ID()); !ok || live != a {
				t.Error("a sealed agent left the registry")
			}
			if end, _ := a.Session().LastEnd(); end.Kind != session.EndAborted || end.Cause.Kind != session.CauseParent {
				t.Errorf("the turn ended as %+v", end)
			}
			want := 0
			if keep {
				want = 1
			}
			w.same("what waits", want, len(a.Session().Inbox(session.NextTurn)))
			w.ok(a.Dispose(w.ctx, keep))
			w.same("how often the work was told to stop", 1, stops)
		})
	}
}

// Retire closes an agent exactly when nothing of it is under way, whatever waits without
// having woken it.
func TestRetire(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		busy := func(what string) {
			t.Helper()
			if a.Retire() {
				t.Errorf("an agent retires %s", what)
			}
		}
		l := newLatch()
		w.model.script(func(c *call) { w.ok(l.wait(c.ctx)); c.text("done") })
		w.ok(a.Followup(msg("m1")))
		<-l.reached
		busy("in a turn")
		close(l.open)
		w.idle(a)
		w.ok(a.RunMaintenance(w.ctx, func(context.Context) error { busy("in maintenance"); return nil }))
		acc, err := a.Begin(msg("m2"), session.NextStep, false)
		w.ok(err)
		busy("while a message is being accepted")
		w.ok(acc.Finish(w.ctx))
		if !a.Retire() || a.Retire() != true {
			t.Error("an idle agent does not retire")
		}
		if err := a.Inject(msg("m3")); !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("a retired agent takes a message: %v", err)
		}
		w.same("what waits", 1, len(a.Session().Inbox(session.NextStep)))
		w.ok(a.Dispose(w.ctx, true))
	})
}

// Begin appends and nothing more: the agent is busy, nothing runs and no hook hears of it
// until Finish; one that wakes nobody lets nothing run behind it either.
func TestBegin(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		heard := 0
		a.AddHooks(agent.Hooks{Inbox: func(*agent.Agent, agent.InboxEvent) { heard++ }})
		for _, wake := range []bool{false, true} {
			before := heard
			acc, err := a.Begin(msg(map[bool]string{false: "quiet", true: "waking"}[wake]), session.NextTurn, wake)
			w.ok(err)
			synctest.Wait()
			if a.Quiescent() || a.Status() != agent.Idle || heard != before {
				t.Errorf("wake %v: between the halves: quiescent %v, %s, %d events", wake, a.Quiescent(), a.Status(), heard-before)
			}
			w.ok(acc.Finish(w.ctx))
			w.idle(a)
			if !a.Quiescent() {
				t.Errorf("wake %v: still busy", wake)
			}
			w.same("turns", map[bool]int{false: 0, true: 1}[wake], min(w.model.count(), 1))
		}
	})
}

// Rest tells whenever an agent has come to rest: behind its making, a turn, a
// maintenance job, and a message that wakes nobody.
func TestRest(t *testing.T) {
	bubble(t, func(w *world) {
		rests := 0
		var quiescent []bool
		a := w.create(func(b *agent.Agent) {
			b.AddHooks(agent.Hooks{Rest: func(*agent.Agent) { rests++; quiescent = append(quiescent, b.Quiescent()) }})
		})
		told := func(what string, fn func()) {
			t.Helper()
			before := rests
			fn()
			synctest.Wait()
			if rests == before {
				t.Errorf("nobody was told of the rest behind %s", what)
			}
		}
		synctest.Wait()
		if rests != 1 {
			t.Errorf("%d rests behind the making", rests)
		}
		told("a turn", func() { w.ask(a, "m1") })
		told("maintenance", func() { w.ok(a.RunMaintenance(w.ctx, func(context.Context) error { return nil })) })
		told("a quiet message", func() {
			acc, err := a.Begin(msg("m2"), session.NextStep, false)
			w.ok(err)
			w.ok(acc.Finish(w.ctx))
		})
		told("an acceptance", func() { w.ok(a.Accept(w.ctx, msg("m3"), session.NextTurn)) })
		for i, q := range quiescent {
			if !q {
				t.Errorf("rest %d was told of a busy agent", i)
			}
		}
	})
}

// An agent that nobody owns at run time, and that stands below others all the same, is no
// root, and its path says below whom.
func TestAbove(t *testing.T) {
	bubble(t, func(w *world) {
		h, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Above: []string{"top", "middle"}})
		w.ok(err)
		a := h.Agent()
		child := w.child(a)
		if a.Root() || a.Owner() != nil || child.Root() {
			t.Error("it passes for a root")
		}
		w.same("its path", []string{"top", "middle", a.SessionID()}, a.Path())
		w.same("its child's path", []string{"top", "middle", a.SessionID(), child.SessionID()}, child.Path())
		w.ok(h.Dispose(w.ctx))
	})
}
