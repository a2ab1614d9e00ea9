package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// Acceptance waits for the accepting record alone (amendment P06): with turn/start,
// the batch and the request held back it still returns, and it is durable then.
func TestAcceptWaitsForTheRecordAlone(t *testing.T) {
	stored(t, func(w *world) {
		l := newLatch()
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{TurnOpen: func(*agent.Agent, int64) ([]session.Draft, error) { return nil, l.wait(w.ctx) }})
		})
		w.ok(a.Accept(w.ctx, msg("m1"), session.NextTurn))
		w.same("status", agent.Running, a.Status())
		w.same("stored", int64(1), a.Session().Durable())
		w.same("in the store", []string{"inbox turn +m1"}, w.storedLines(a.ID()))
		<-l.reached
		close(l.open)
		w.idle(a)
		w.same("ends", []string{"end 1 completed"}, lines(a, "end"))
	})
}

// storedLines is the trace of what the store holds.
func (w *world) storedLines(id session.ID) []string {
	w.Helper()
	out := []string{}
	for e, err := range w.store.ReadFrom(w.ctx, id, 0) {
		if errors.Is(err, session.ErrNotFound) {
			return out
		}
		w.ok(err)
		p, err := w.sessions.PayloadOf(e)
		w.ok(err)
		out = append(out, lineOf(&e, p))
	}
	return out
}

// The caller's ctx ends with acceptance (amendment P10, core G8): the sync decides,
// whatever becomes of the caller.
func TestAcceptIsNotOnTheCallersContext(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		ctx, cancel := context.WithCancelCause(w.ctx)
		l := newLatch()
		first := true
		w.store.gate(func(string, []session.Event) error {
			if !first {
				return nil
			}
			first = false
			return l.wait(w.ctx)
		}, nil)
		res := make(chan error)
		go func() { res <- a.Accept(ctx, msg("m1"), session.NextTurn) }()
		<-l.reached
		if a.Quiescent() {
			t.Error("quiescent while an acceptance is under way")
		}
		w.same("status before the wake", agent.Idle, a.Status())
		cancel(errBoom)
		synctest.Wait()
		close(l.open)
		w.ok(<-res)
		w.idle(a)
		w.store.healthy()
		w.same("users", []string{"user m1"}, lines(a, "user"))
		if err := a.Accept(ctx, msg("m2"), session.NextTurn); !errors.Is(err, errBoom) {
			t.Errorf("accept with an ended ctx: %v", err)
		}
		w.same("nothing of m2", []string{"user m1"}, lines(a, "user"))
	})
}

// What can happen to the sync (design § 4): the message runs exactly if Accept
// returns nil.
func TestAcceptOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		before, after error // of the write that holds the splice
		head          error // of reading the head back
		ok            bool
		lines         []string
	}{
		"the write fails": {before: errBoom, lines: []string{"inbox turn +m1", "inbox turn -1@0 canceled"}},
		// The store may have it: reading the head back settles that.
		"the outcome is unknown, but it is stored":       {after: errBoom, ok: true},
		"the outcome is unknown, and so is the head":     {after: errBoom, head: errBoom, lines: []string{"inbox turn +m1", "inbox turn -1@0 canceled"}},
		"another process owns the session now":           {before: &session.FencedError{ID: "x"}, lines: []string{"inbox turn +m1", "inbox turn -1@0 canceled"}},
		"the write did not happen and the head is known": {before: fmt.Errorf("disk: %w", errBoom), lines: []string{"inbox turn +m1", "inbox turn -1@0 canceled"}},
	} {
		t.Run(name, func(t *testing.T) {
			stored(t, func(w *world) {
				a := w.create()
				w.ask(a, "m0") // the row exists
				from := int(a.Session().Head())
				n := 0
				head := c.head
				w.store.mu.Lock()
				w.store.heads = func() error {
					err := head
					head = nil
					return err
				}
				w.store.mu.Unlock()
				w.store.gate(func(op string, _ []session.Event) error {
					if op != "append" {
						return nil
					}
					if n++; n == 1 {
						return c.before
					}
					return nil
				}, func(string) error {
					if n == 1 {
						return c.after
					}
					return nil
				})
				err := a.Accept(w.ctx, msg("m1"), session.NextTurn)
				w.idle(a)
				if (err == nil) != c.ok {
					t.Errorf("accept: %v", err)
				}
				if c.ok {
					w.same("users", []string{"user m0", "user m1"}, lines(a, "user"))
					return
				}
				w.logged(a, from, c.lines...)
				var fenced *session.FencedError
				if errors.As(err, &fenced) {
					return // the end of it reports that, too
				}
				w.store.healthy()
				w.ok(a.Dispose(w.ctx, false))
			})
		})
	}
}

// Admission that closes before the sync is done takes the message back (amendment
// P06, RB-21, design § 4), whether the queue is kept or not; a plain cancel does
// not: the message was accepted, then discarded.
func TestAcceptAgainstTeardown(t *testing.T) {
	cause := session.Cause{Kind: session.CauseUser}
	for name, c := range map[string]struct {
		do   func(w *world, a *agent.Agent)
		want error
		line string
	}{
		"close":                {func(_ *world, a *agent.Agent) { a.CloseAdmission(false) }, agent.ErrDisposed, "inbox turn -1@0 canceled"},
		"end of the process":   {func(_ *world, a *agent.Agent) { a.CloseAdmission(true) }, agent.ErrDisposed, "inbox turn -1@0 canceled"},
		"cancel":               {func(w *world, a *agent.Agent) { w.ok(a.Cancel(cause, false)) }, nil, "inbox turn -1@0 canceled"},
		"discard":              {func(w *world, a *agent.Agent) { w.ok(a.Discard("m1")) }, nil, "inbox turn -1@0 canceled"},
		"interrupt (L25)":      {func(w *world, a *agent.Agent) { w.ok(a.Cancel(cause, true)) }, nil, "turn 1"},
		"another send (L6)":    {func(w *world, a *agent.Agent) { w.ok(a.Inject(msg("q"))) }, nil, "inbox step +q nowake"},
		"a wake has to wait":   {func(w *world, a *agent.Agent) { w.same("woken", false, a.Wake()) }, nil, "turn 1"},
		"a send wakes at once": {func(w *world, a *agent.Agent) { w.ok(a.Followup(msg("q"))) }, nil, "inbox turn +q"},
	} {
		t.Run(name, func(t *testing.T) {
			stored(t, func(w *world) {
				a := w.create()
				l := newLatch()
				first := true
				w.store.gate(func(string, []session.Event) error {
					if !first {
						return nil
					}
					first = false
					return l.wait(w.ctx)
				}, nil)
				res := make(chan error)
				go func() { res <- a.Accept(w.ctx, msg("m1"), session.NextTurn) }()
				<-l.reached
				c.do(w, a)
				synctest.Wait()
				close(l.open)
				if err := <-res; !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("accept: %v", err)
				}
				w.idle(a)
				w.same("what followed", c.line, trace(a.Session())[1])
				if ran := len(lines(a, "user m1")) == 1; ran != (c.want == nil && c.line != "inbox turn -1@0 canceled") {
					t.Errorf("m1 ran: %t", ran)
				}
				w.ok(a.Dispose(w.ctx, false))
				w.store.healthy()
			})
		})
	}
}

// A sync that fails for the acceptor but not for the turn that claims the message
// meanwhile: it was durable, so it is accepted.
func TestAcceptThatATurnMadeDurable(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		w.ask(a, "m0")
		l := newLatch()
		n := 0
		w.store.gate(func(op string, _ []session.Event) error {
			if op != "append" {
				return nil
			}
			if n++; n == 1 {
				w.ok(l.wait(w.ctx))
				return errBoom
			}
			return nil
		}, nil)
		res := make(chan error)
		go func() { res <- a.Accept(w.ctx, msg("m1"), session.NextStep) }()
		<-l.reached
		w.ok(a.Followup(msg("m2"))) // a turn that wants both
		synctest.Wait()
		close(l.open)
		err := <-res
		w.idle(a)
		w.store.healthy()
		ran := len(lines(a, "user m1")) == 1
		if (err == nil) != ran {
			t.Errorf("accept: %v, but m1 ran: %t\n%v", err, ran, trace(a.Session()))
		}
	})
}

// Nothing of a deferred session is stored before its first acceptance, which
// creates the row (design § 4); without one it leaves nothing (seam DES-29).
func TestAcceptEstablishes(t *testing.T) {
	stored(t, func(w *world) {
		make := func() *agent.Agent {
			h, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Session: session.New{Deferred: true}})
			w.ok(err)
			return h.Agent()
		}
		a, b := make(), make()
		w.ok(a.Inject(msg("q")))
		w.ok(a.Session().Flush(w.ctx))
		w.same("before", []string{}, w.storedLines(a.ID()))
		w.ok(a.Accept(w.ctx, msg("m1"), session.NextTurn))
		w.same("after", []string{"inbox step +q nowake", "inbox turn +m1"}, w.storedLines(a.ID())[:2])
		w.idle(a)
		w.ok(b.Dispose(w.ctx, false))
		w.same("never accepted", []string{}, w.storedLines(b.ID()))
	})
}

// A follow-up on a deferred session is stored with the batch of its turn, without
// a sync of its own (design § 4, one-shots).
func TestDeferredTurnEstablishes(t *testing.T) {
	stored(t, func(w *world) {
		var writes [][]session.Event
		w.store.gate(func(op string, events []session.Event) error {
			if op == "create" || op == "append" {
				writes = append(writes, events)
			}
			return nil
		}, nil)
		h, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Session: session.New{Deferred: true}})
		w.ok(err)
		w.ask(h.Agent(), "m1")
		first := []string{}
		for _, e := range writes[0] {
			first = append(first, line(e))
		}
		w.same("first write", []string{"inbox turn +m1", "turn 1", "inbox turn -1@0", "step 1.1", "user m1", "header initial test:m1", "request-context"}, first)
		w.store.healthy()
	})
}

// The same against a failing sync (design § 4): only an error that is not
// ErrUncertain says that the message never runs.
func TestAcceptUncertain(t *testing.T) {
	const kept, lost = "inbox turn +m1", "inbox turn -1@0 canceled"
	for name, c := range map[string]struct {
		stored    bool  // the write of the message takes effect
		err       error // and returns this
		head      error // of reading the head back
		later     error // of every later write
		shut      bool  // admission closes during the sync
		stuck     bool  // the cancellation cannot be logged
		uncertain bool
		want      []error
		lines     []string // what the store holds in the end
	}{
		"shut, stored, the cancellation too":      {stored: true, shut: true, want: []error{agent.ErrDisposed}, lines: []string{kept, lost}},
		"shut, stored, the cancellation is not":   {stored: true, shut: true, later: errDisk, uncertain: true, want: []error{agent.ErrDisposed, errDisk}, lines: []string{kept}},
		"shut, and nobody knows":                  {stored: true, err: errBoom, head: errDisk, shut: true, uncertain: true, want: []error{agent.ErrDisposed, errBoom, errDisk}, lines: []string{kept}},
		"shut, nobody knows, and it is not there": {err: errBoom, head: errDisk, shut: true, uncertain: true, want: []error{agent.ErrDisposed, errBoom}, lines: nil},
		"shut, nothing is stored":                 {err: errBoom, later: errNotStored, shut: true, want: []error{agent.ErrDisposed, errBoom, errDisk}, lines: nil},
		"nobody knows":                            {stored: true, err: errBoom, head: errDisk, uncertain: true, want: []error{errBoom, errDisk}, lines: []string{kept}},
		"nothing is stored":                       {err: errBoom, later: errNotStored, want: []error{errBoom, errDisk}, lines: nil},
		"it cannot be cancelled":                  {err: errBoom, stuck: true, uncertain: true, want: []error{errBoom, errVeto}, lines: []string{kept}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := validated(t, func(e session.Event) error {
					if p, ok := e.Payload().(*session.InboxSpliced); ok && p.Canceled && c.stuck {
						return errVeto
					}
					return nil
				})
				a := w.create()
				w.ask(a, "m0") // the row exists
				w.ok(a.Session().Flush(w.ctx))
				from := len(w.storedLines(a.ID()))
				l := newLatch()
				n := 0
				w.store.gate(func(op string, _ []session.Event) error {
					if op != "append" {
						return nil
					}
					if n++; n > 1 {
						return c.later
					}
					w.ok(l.wait(w.ctx))
					if !c.stored {
						return c.err
					}
					return nil
				}, func(string) error {
					if n == 1 {
						return c.err
					}
					return nil
				})
				w.store.mu.Lock()
				w.store.heads = func() error { return c.head }
				w.store.mu.Unlock()
				res := make(chan error)
				go func() { res <- a.Accept(w.ctx, msg("m1"), session.NextTurn) }()
				<-l.reached
				if c.shut {
					a.CloseAdmission(true)
				}
				close(l.open)
				err := <-res
				if errors.Is(err, agent.ErrUncertain) != c.uncertain || errors.Is(err, agent.ErrDisposed) != c.shut {
					t.Errorf("accept: %v", err)
				}
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("accept: %v is not %v", err, want)
					}
				}
				synctest.Wait()
				got := w.storedLines(a.ID())[from:]
				if !slices.Equal(got, c.lines) {
					t.Errorf("stored: %v", got)
				}
				w.store.mu.Lock()
				w.store.heads = nil
				w.store.mu.Unlock()
				if c.later == nil && c.head == nil {
					w.store.healthy()
				}
				w.finish()
			})
		})
	}
}

var (
	errDisk      = errors.New("disk")
	errVeto      = errors.New("veto")
	errNotStored = fmt.Errorf("%w: %w", errDisk, session.ErrClosed) // and that is known
)

// While an agent is built nothing can be accepted: its creation may still fail and
// must leave nothing behind then (core H10).
func TestAcceptWhileBuilding(t *testing.T) {
	stored(t, func(w *world) {
		accept := func(a *agent.Agent) {
			if err := a.Accept(w.ctx, msg("m1"), session.NextTurn); !errors.Is(err, agent.ErrBuilding) {
				t.Errorf("accept by an agent that is being built: %v", err)
			}
			w.same("logged", []string{}, trace(a.Session()))
		}
		w.reg.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error { accept(a); return nil }})
		w.ok(w.create(accept).Accept(w.ctx, msg("m1"), session.NextTurn))
		_, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Setup: func(_ context.Context, a *agent.Agent) error {
			accept(a)
			return errBoom
		}})
		if !errors.Is(err, errBoom) {
			t.Errorf("create: %v", err)
		}
		l, err := w.store.List(w.ctx, session.Filter{}, session.Page{})
		w.ok(err)
		w.same("rows", 1, len(l.Records))
	})
}

// The first acceptance and the end of the deferral are one: a refused one ends
// nothing, and no turn takes a message before it is stored (design § 4).
func TestAcceptEstablishesInOneHold(t *testing.T) {
	stored(t, func(w *world) {
		h, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Session: session.New{Deferred: true}})
		w.ok(err)
		a := h.Agent()
		w.ok(a.Inject(msg("q")))
		if err := a.Accept(w.ctx, msg("q"), session.NextTurn); err == nil {
			t.Error("an id that is pending was accepted again")
		}
		w.same("deferred", true, a.Session().Deferred())
		w.same("before", []string{}, w.storedLines(a.ID()))

		l := newLatch()
		w.store.gate(func(op string, _ []session.Event) error {
			if op == "create" {
				return l.wait(w.ctx)
			}
			return nil
		}, nil)
		res := make(chan error)
		w.ok(a.RunMaintenance(w.ctx, func(context.Context) error {
			w.ok(a.Steer(msg("m2"))) // for a turn that would take m1 as well
			go func() { res <- a.Accept(w.ctx, msg("m1"), session.NextTurn) }()
			<-l.reached
			return nil
		}))
		synctest.Wait()
		w.same("taken before it is stored", []string{}, lines(a, "inbox turn -", "user"))
		close(l.open)
		w.ok(<-res)
		w.idle(a)
		w.store.healthy()
		w.same("users", []string{"user q", "user m2", "user m1"}, lines(a, "user"))
	})
}
