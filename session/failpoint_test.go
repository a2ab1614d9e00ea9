package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
)

// trial is one run of an operation with faults, and the account that is kept of it.
type trial struct {
	*testing.T
	ctx   context.Context
	end   context.CancelCauseFunc // of ctx
	store *storetest.Faulty
	back  *memory.Backend
	units *projection.Registry
	reg   *session.Registry

	mu     sync.Mutex // guards following
	paired map[*session.Session]int
	acked  map[*session.Session]int64 // what a flush said is stored
	seen   []*session.Session
	// withdrew are those that were withdrawn without an error.
	withdrew map[*session.Session]bool
}

func newTrial(t *testing.T) *trial {
	inner := memory.New()
	tr := &trial{T: t, store: storetest.NewFaulty(inner), back: inner.Backend(), paired: map[*session.Session]int{}, acked: map[*session.Session]int64{}, withdrew: map[*session.Session]bool{}}
	tr.ctx, tr.end = context.WithCancelCause(t.Context())
	var err error
	if tr.units, err = projection.NewRegistry(projection.BuiltIn()...); err != nil {
		t.Fatal(err)
	}
	tr.reg = newRegistry(t, session.Config{Store: tr.store, Now: time.Now, NewCells: tr.units.NewCells})
	tr.reg.AddHooks(session.Hooks{
		Created:  func(s *session.Session) error { tr.count(s, 1); return nil },
		Disposed: func(s *session.Session) { tr.count(s, -1) },
		Stored: func(s *session.Session, from, to int64) {
			if to <= from {
				tr.Errorf("told that %d..%d is stored", from, to)
			}
		},
	})
	return tr
}

func (tr *trial) count(s *session.Session, n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.paired[s] += n
}

// know keeps account of a session, whatever becomes of it.
func (tr *trial) know(s *session.Session) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.seen = append(tr.seen, s)
}

// flush flushes and notes what that promised.
func (tr *trial) flush(ctx context.Context, s *session.Session) error {
	target := s.Head()
	err := s.Flush(ctx)
	if err == nil {
		tr.mu.Lock()
		tr.acked[s] = max(tr.acked[s], target)
		tr.mu.Unlock()
	} else if !errors.Is(err, session.ErrUnknownOutcome) && !errors.Is(err, errGone) {
		// Any other error says that what Durable does not count is not stored, but for a
		// write that somebody else has begun since: it counts when it is over, or leaves
		// the outcome unknown.
		s.Quiet(func(durable int64, uncertain bool) {
			if n := tr.stored(s.ID()); n > durable && !uncertain {
				tr.Errorf("%d events are stored, %d count, and the error is %v", n, durable, err)
			}
		})
	}
	return err
}

// withdraw withdraws a session, and lets the write-behind window pass with an event
// that is appended behind it.
func (tr *trial) withdraw(s *session.Session) error {
	if _, err := s.Append(drafts(say(fmt.Sprintf("late-%d", s.Head()), "x"))...); err != nil {
		return err
	}
	err := s.Withdraw(tr.ctx)
	if err != nil && !strings.Contains(err.Error(), "session s:") {
		tr.Errorf("the error names no session: %v", err)
	}
	if err == nil {
		tr.gone(s)
	}
	if _, err := s.Append(drafts(say(fmt.Sprintf("later-%d", s.Head()), "x"))...); err != nil {
		return err
	}
	before := tr.stored(s.ID())
	<-time.After(2 * session.WriteDelay)
	if n := tr.stored(s.ID()); n > before {
		tr.Errorf("%d events were stored, and of the withdrawn session %d are", before, n)
	}
	if err == nil {
		tr.gone(s)
	}
	tr.mu.Lock()
	tr.withdrew[s] = tr.withdrew[s] || err == nil
	delete(tr.acked, s) // it is taken back
	tr.mu.Unlock()
	return err
}

// withdrawn checks a session that was withdrawn and detached.
func (tr *trial) withdrawn(s *session.Session) error {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.withdrew[s] {
		tr.gone(s)
	}
	return nil
}

// gone checks that nothing of a session is stored.
func (tr *trial) gone(s *session.Session) {
	tr.Helper()
	found, err := tr.store.Store.Exists(context.WithoutCancel(tr.ctx), s.ID())
	if found || err != nil {
		tr.Errorf("withdrawn, and stored: %v, %v", found, err)
	}
}

// stored returns how many events the store holds, 0 for no row.
func (tr *trial) stored(id session.ID) int64 {
	rec, _, err := tr.store.Store.Inspect(context.WithoutCancel(tr.ctx), id)
	if errors.Is(err, session.ErrNotFound) {
		return 0
	}
	if err != nil {
		tr.Errorf("inspect: %v", err)
	}
	return rec.Head
}

// publish enters and announces a prepared session, or gives it up.
func (tr *trial) publish(s *session.Session) (detach func(context.Context) error, err error) {
	tr.know(s)
	if detach, err = tr.reg.Enter(s); err != nil {
		return nil, errors.Join(err, tr.reg.Abandon(tr.ctx, s))
	}
	if err = tr.reg.Announce(s); err != nil {
		return nil, errors.Join(err, detach(tr.ctx))
	}
	return detach, nil
}

var (
	errFault = errors.New("the disk is on fire")
	errGone  = errors.New("the caller is gone")
)

// operations are what the table fails, each with what was there before. They do
// what their callers owe: whoever prepared a session abandons or detaches it.
func operations() map[string]struct{ before, run func(tr *trial) error } {
	seed := func(tr *trial, text string) error {
		s, err := tr.reg.Prepare(tr.ctx, session.New{ID: "s"})
		if err != nil {
			return err
		}
		if _, err := s.Append(drafts(script(tr, text)...)...); err != nil {
			return err
		}
		return errors.Join(s.Flush(tr.ctx), tr.reg.Abandon(tr.ctx, s))
	}
	create := func(tr *trial, n session.New) (*session.Session, func(context.Context) error, error) {
		s, err := tr.reg.Prepare(tr.ctx, n)
		if err != nil {
			return nil, nil, err
		}
		detach, err := tr.publish(s)
		return s, detach, err
	}
	nothing := func(*trial) error { return nil }
	return map[string]struct{ before, run func(tr *trial) error }{
		"create": {nothing, func(tr *trial) error {
			s, detach, err := create(tr, session.New{ID: "s", Deferred: true})
			if err != nil {
				return err
			}
			if _, err := s.AppendEstablish(drafts(script(tr, "i T1")...)...); err != nil {
				return errors.Join(err, detach(tr.ctx))
			}
			return errors.Join(tr.flush(tr.ctx, s), detach(tr.ctx))
		}},
		"create with a prefix": {nothing, func(tr *trial) error {
			parent, detach, err := create(tr, session.New{ID: "parent"})
			if err != nil {
				return err
			}
			if _, err := parent.Append(drafts(script(tr, "u T1 t1")...)...); err != nil {
				return errors.Join(err, detach(tr.ctx))
			}
			err = tr.flush(tr.ctx, parent)
			child, leave, cerr := create(tr, session.New{ID: "s", Root: "parent", ParentSession: "parent", Seed: &session.Seed{Prefix: parent.Prefix()}})
			if cerr != nil {
				return errors.Join(err, cerr, detach(tr.ctx))
			}
			return errors.Join(err, tr.flush(tr.ctx, child), leave(tr.ctx), detach(tr.ctx))
		}},
		"resume": {func(tr *trial) error { return seed(tr, "i T1 q S1.1 u a1.1:c1 c1.1:c1") }, func(tr *trial) error {
			s, err := tr.reg.PrepareStored(tr.ctx, "s")
			if err != nil {
				return err
			}
			detach, err := tr.publish(s)
			if err != nil {
				return err
			}
			_, err = s.Append(drafts(script(tr, "T2 t2")...)...)
			return errors.Join(err, tr.flush(tr.ctx, s), detach(tr.ctx))
		}},
		// The row is there, and more is to come.
		"withdraw": {nothing, func(tr *trial) error {
			s, detach, err := create(tr, session.New{ID: "s", Deferred: true})
			if err != nil {
				return err
			}
			if _, err := s.AppendEstablish(drafts(script(tr, "i")...)...); err != nil {
				return errors.Join(err, detach(tr.ctx))
			}
			return errors.Join(tr.flush(tr.ctx, s), tr.withdraw(s), detach(tr.ctx), tr.withdrawn(s))
		}},
		// While the batch with the row is on its way, and a second caller meanwhile.
		"withdraw during a write": {nothing, func(tr *trial) error {
			s, detach, err := create(tr, session.New{ID: "s", Deferred: true})
			if err != nil {
				return err
			}
			if _, err := s.AppendEstablish(drafts(script(tr, "i")...)...); err != nil {
				return errors.Join(err, detach(tr.ctx))
			}
			errs := make([]error, 3)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := s.FlushTo(tr.ctx, s.Head()); !errors.Is(err, session.ErrWithdrawn) {
					errs[0] = err
				}
			})
			synctest.Wait() // the write began, unless a fault ended it
			for i := range 2 {
				wg.Go(func() { errs[i+1] = tr.withdraw(s) })
			}
			wg.Wait()
			return errors.Join(append(errs, detach(tr.ctx), tr.withdrawn(s))...)
		}},
		// The window's own write, a flush behind it, and one write more.
		"append": {nothing, func(tr *trial) error {
			s, detach, err := create(tr, session.New{ID: "s"})
			if err != nil {
				return err
			}
			var errs []error
			for _, text := range []string{"u T1", "S1.1 a1.1", "s1.1 t1"} {
				_, err = s.Append(drafts(script(tr, text)...)...)
				errs = append(errs, err)
				after(2 * session.WriteDelay)
			}
			errs = append(errs, s.CheckOwner(tr.ctx), tr.flush(tr.ctx, s))
			return errors.Join(append(errs, detach(tr.ctx))...)
		}},
		// Several at once, one of them impatient.
		"flush": {nothing, func(tr *trial) error {
			s, detach, err := create(tr, session.New{ID: "s"})
			if err != nil {
				return err
			}
			errs := make([]error, 4)
			for round := range 2 {
				var wg sync.WaitGroup
				for i := range 3 {
					if _, err := s.Append(drafts(say(fmt.Sprintf("m%d-%d", round, i), "x"))...); err != nil {
						tr.Error(err)
					}
					wg.Go(func() {
						ctx := tr.ctx
						if i == 2 {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeoutCause(ctx, time.Minute, errGone)
							defer cancel()
						}
						if err := tr.flush(ctx, s); err != nil {
							errs[i] = err
						}
					})
				}
				wg.Wait()
			}
			_, errs[3] = tr.reg.Flush(tr.ctx, s)
			return errors.Join(append(errs, detach(tr.ctx))...)
		}},
		"dispose": {nothing, func(tr *trial) error {
			s, detach, err := create(tr, session.New{ID: "s"})
			if err != nil {
				return err
			}
			err = tr.flush(tr.ctx, s)
			if _, err := s.Append(drafts(script(tr, "u T1 t1")...)...); err != nil {
				tr.Error(err)
			}
			errs := make([]error, 3)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { errs[i] = detach(tr.ctx) })
			}
			wg.Wait()
			for _, e := range errs {
				if fmt.Sprint(e) != fmt.Sprint(errs[0]) {
					tr.Errorf("detach says %v and %v", errs[0], e)
				}
			}
			return errors.Join(err, errs[0])
		}},
	}
}

// kinds are the ways in which a point goes wrong.
func kinds() map[string]func(tr *trial) storetest.Fault {
	gone := func(tr *trial) func() { return func() { tr.end(errGone) } }
	return map[string]func(tr *trial) storetest.Fault{
		"fails before": func(*trial) storetest.Fault { return storetest.Fault{Err: errFault} },
		"fails after":  func(*trial) storetest.Fault { return storetest.Fault{Err: errFault, After: true} },
		"panics":       func(*trial) storetest.Fault { return storetest.Fault{Panic: errFault} },
		"panics after": func(*trial) storetest.Fault { return storetest.Fault{Panic: errFault, After: true} },
		"caller gone":  func(tr *trial) storetest.Fault { return storetest.Fault{Wait: func(context.Context) { gone(tr)() }} },
		"caller gone after": func(tr *trial) storetest.Fault {
			return storetest.Fault{After: true, Then: gone(tr)}
		},
		"slow": func(*trial) storetest.Fault {
			return storetest.Fault{Wait: func(context.Context) { <-time.After(time.Hour) }}
		},
	}
}

// The failpoint table (Q11): each operation of the registry meets each fault at
// each of its store operations, once, for good, and in pairs. Afterwards nothing is
// live or owned, announcements are paired, what was acknowledged is stored and what
// is stored is legal, and the session can be worked on again (core D4, D6, D8, S28,
// S29, S35; design § 4).
func TestFailpoints(t *testing.T) {
	for name, op := range operations() {
		t.Run(name, func(t *testing.T) {
			points := 0
			inBubble(t, func(tr *trial) {
				if err := op.before(tr); err != nil {
					t.Fatal(err)
				}
				tr.store.Plan(nil)
				if err := op.run(tr); err != nil {
					t.Fatalf("without a fault: %v", err)
				}
				points = len(tr.store.Points())
				tr.audit("s")
			})
			if points < 3 {
				t.Fatalf("only %d operations of the store", points)
			}
			run := func(what string, plan func(tr *trial, p storetest.Point) storetest.Fault) {
				inBubble(t, func(tr *trial) {
					if err := op.before(tr); err != nil {
						t.Fatal(err)
					}
					tr.seen = nil
					tr.store.Plan(func(p storetest.Point) storetest.Fault { return plan(tr, p) })
					err := op.run(tr)
					met := tr.store.Points()
					tr.store.Plan(nil)
					tr.audit("s")
					if t.Failed() {
						t.Fatalf("%s: the operation said %v; it met %v", what, err, met)
					}
				})
			}
			for n := range points {
				for kind, fault := range kinds() {
					run(fmt.Sprintf("%s at %d", kind, n), func(tr *trial, p storetest.Point) storetest.Fault {
						if p.N == n {
							return fault(tr)
						}
						return storetest.Fault{}
					})
					run(fmt.Sprintf("%s from %d on", kind, n), func(tr *trial, p storetest.Point) storetest.Fault {
						if p.N >= n {
							return fault(tr)
						}
						return storetest.Fault{}
					})
					for m := n + 1; m <= n+3; m++ {
						for second, other := range kinds() {
							run(fmt.Sprintf("%s at %d, %s at %d", kind, n, second, m), func(tr *trial, p storetest.Point) storetest.Fault {
								switch p.N {
								case n:
									return fault(tr)
								case m:
									return other(tr)
								}
								return storetest.Fault{}
							})
						}
					}
				}
			}
		})
	}
}

func inBubble(t *testing.T, fn func(tr *trial)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t)
		fn(tr)
		after(time.Hour) // whatever is still to be written
	})
}

// audit checks what must hold when an operation is over, however it ended.
func (tr *trial) audit(id session.ID) {
	tr.Helper()
	ctx := context.WithoutCancel(tr.ctx)
	if live := tr.reg.List(); len(live) != 0 {
		tr.Errorf("%d sessions are live", len(live))
	}
	for s, n := range tr.paired {
		if n != 0 {
			tr.Errorf("S29: %s: created and disposed do not pair (%d)", s.ID(), n)
		}
	}
	if err := tr.store.Settle(ctx); err != nil {
		tr.Errorf("settle: %v", err)
	}
	for _, s := range tr.seen {
		tr.auditLog(ctx, s)
	}
	// Another process can have it, and this one again.
	other := tr.back.Open()
	defer func() {
		if err := other.Close(ctx); err != nil {
			tr.Error(err)
		}
	}()
	exists, err := other.Exists(ctx, id)
	if err != nil {
		tr.Error(err)
	}
	var s *session.Session
	if exists {
		w, err := other.Open(ctx, id)
		if err != nil {
			tr.Errorf("another process cannot have it: %v", err)
			return
		}
		if err := w.Close(ctx); err != nil {
			tr.Error(err)
		}
		s, err = tr.reg.PrepareStored(ctx, id)
		if err != nil {
			tr.Errorf("resume afterwards: %v", err)
			return
		}
	} else if s, err = tr.reg.Prepare(ctx, session.New{ID: id}); err != nil {
		tr.Errorf("create afterwards: %v", err)
		return
	}
	detach, err := tr.reg.Enter(s)
	if err != nil {
		tr.Error(err)
		return
	}
	if _, err := s.Append(drafts(say("afterwards", "x"))...); err != nil {
		tr.Error(err)
	}
	if err := errors.Join(s.Flush(ctx), detach(ctx)); err != nil {
		tr.Errorf("afterwards: %v", err)
	}
	if n := tr.stored(id); n != s.Head() {
		tr.Errorf("afterwards %d of %d events are stored", n, s.Head())
	}
}

// auditLog compares what is stored of a session with its log and what was promised.
func (tr *trial) auditLog(ctx context.Context, s *session.Session) {
	tr.Helper()
	rec, events, err := tr.store.Store.Inspect(ctx, s.ID())
	if errors.Is(err, session.ErrNotFound) {
		if n := tr.acked[s]; n > 0 {
			tr.Errorf("%s: %d events were acknowledged, and there is no row", s.ID(), n)
		}
		return
	}
	if err != nil {
		tr.Errorf("inspect: %v", err)
		return
	}
	if rec.Owner != nil {
		tr.Errorf("%s is still owned by %s", s.ID(), rec.Owner)
	}
	var have []session.Event
	for e, err := range events {
		if err != nil {
			tr.Errorf("read: %v", err)
		}
		have = append(have, e)
	}
	if int64(len(have)) < tr.acked[s] {
		tr.Errorf("%s: %d events are stored, %d were acknowledged", s.ID(), len(have), tr.acked[s])
	}
	var want, got []string
	for e := range s.Events(0) {
		want = append(want, string(e.AppendEnvelope(nil)))
	}
	for i := range have {
		got = append(got, string(have[i].AppendEnvelope(nil)))
	}
	if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
		tr.Errorf("%s is stored as\n%s\nits log is\n%s", s.ID(), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := tr.reg.Verify(rec, sequence(have)); err != nil {
		tr.Errorf("verify: %v", err)
	}
	// Each checkpoint says what the log says (core D28, D29).
	plain, err := tr.reg.Restore(rec, sequence(have))
	if err != nil {
		tr.Error(err)
		return
	}
	for _, u := range tr.units.Units() {
		cell, cerr := tr.units.Read(ctx, tr.store.Store, rec, u.Key)
		fold, ferr := tr.units.Fold(ctx, plain, u.Key)
		if a, b := string(cell.AppendJSON(nil)), string(fold.AppendJSON(nil)); cerr != nil || ferr != nil || a != b {
			tr.Errorf("%s: checkpoint %s says %s, %v; the log says %s, %v", s.ID(), u.Key, a, cerr, b, ferr)
		}
	}
}
