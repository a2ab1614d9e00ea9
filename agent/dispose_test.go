package agent_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// Dispose is memoised: concurrent callers get the same completion and the same
// error, a caller's ctx bounds its wait alone (core L48, G9).
func TestDisposeIsMemoised(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		w.ask(a, "m1")
		l := newLatch()
		w.store.gate(func(op string, _ []session.Event) error {
			if op == "close" {
				return errors.Join(l.wait(w.ctx), errBoom)
			}
			return nil
		}, nil)
		res := make(chan error, 5)
		for range 4 {
			go func() { res <- a.Dispose(w.ctx, false) }()
		}
		<-l.reached
		ctx, cancel := context.WithCancelCause(w.ctx)
		cancel(context.DeadlineExceeded)
		if err := a.Dispose(ctx, true); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that gives up: %v", err)
		}
		close(l.open)
		var first error
		for range 4 {
			err := <-res
			if !errors.Is(err, errBoom) || first != nil && !errors.Is(err, first) {
				t.Errorf("dispose: %v, and before %v", err, first)
			}
			first = err
		}
		// Also with an ended ctx: it is over.
		if err := a.Dispose(ctx, false); !errors.Is(err, first) {
			t.Errorf("dispose afterwards: %v", err)
		}
	})
}

// What teardown does to the queue (design § 4), in every phase of the agent; the
// turn is closed in the log before the session goes (core L49), nothing is accepted
// any more, and nothing can be registered (L51).
func TestDisposeMatrix(t *testing.T) {
	for _, ph := range phases {
		for _, keep := range []bool{false, true} {
			t.Run(ph.name, func(t *testing.T) {
				stored(t, func(w *world) {
					a := w.create()
					s := &stall{make(chan struct{}), make(chan struct{})}
					ph.prime(w, a, s)
					w.ok(a.Followup(msg("m1")))
					<-s.reached
					w.ok(a.Followup(msg("m2")))
					done := make(chan error)
					go func() { done <- a.Dispose(w.ctx, keep) }()
					synctest.Wait()
					if err := a.Followup(msg("m3")); !errors.Is(err, agent.ErrDisposed) {
						t.Errorf("send to a closing agent: %v", err)
					}
					if err := a.Accept(w.ctx, msg("m3"), session.NextStep); !errors.Is(err, agent.ErrDisposed) {
						t.Errorf("accept by a closing agent: %v", err)
					}
					w.same("wake of a closing agent", false, a.Wake())
					if _, ok := w.reg.Get(a.ID()); !ok {
						t.Error("the agent left before its activity ended")
					}
					close(s.open)
					w.ok(<-done)
					want := 0
					if keep {
						want = 1
						if ph.unclaimed || ph.name == "pre-step chain" {
							// What no step has entered is kept, claimed or not.
							want = 2
						}
					}
					w.same("left in the inbox", want, len(a.Session().Inbox(session.NextTurn)))
					if ends := lines(a, "end"); !ph.unclaimed && len(ends) != 1 {
						t.Errorf("ends: %v", ends)
					}
					x := tool.Definition{Name: "x", Parameters: []byte(`{"type":"object"}`), Execute: func(context.Context, *tool.Call) (any, error) { return "", nil }}
					if _, err := a.Tools().Register(x); !errors.Is(err, tool.ErrClosed) {
						t.Errorf("a tool on a disposed agent: %v", err)
					}
					if _, err := a.Prompts().Add(prompt.Section{Name: "x"}); !errors.Is(err, prompt.ErrClosed) {
						t.Errorf("a section on a disposed agent: %v", err)
					}
					if err := a.Followup(msg("m4")); !errors.Is(err, agent.ErrDisposed) {
						t.Errorf("send to a disposed agent: %v", err)
					}
				})
			})
		}
	}
}

// What a tool of the cancelled turn deferred is discarded with the rest, or kept
// with it.
func TestDisposeDiscardsLateContexts(t *testing.T) {
	for keep, want := range map[bool]int{false: 0, true: 1} {
		bubble(t, func(w *world) {
			l := newLatch()
			w.register("defer", false, func(_ context.Context, c *tool.Call) (any, error) {
				c.DeferContext(msg("ctx"))
				return "ok", nil
			})
			w.register("hold", false, func(ctx context.Context, _ *tool.Call) (any, error) { _ = l.wait(ctx); return "ok", nil })
			w.model.script(uses("defer", "hold"))
			a := w.create()
			w.ok(a.Followup(msg("m1")))
			<-l.reached
			w.ok(a.Dispose(w.ctx, keep))
			w.same("left", want, len(a.Session().Inbox(session.NextStep)))
		})
	}
}

// Nobody can wait for itself: disposal from inside an agent's own activity is
// refused, also that of its owners, and leaves everything running; CloseAdmission
// does not wait and is allowed (core G9).
func TestSelfDispose(t *testing.T) {
	bubble(t, func(w *world) {
		var root, child *agent.Agent
		w.register("suicide", false, func(ctx context.Context, c *tool.Call) (any, error) {
			for _, a := range []*agent.Agent{child, root} {
				if err := a.Dispose(ctx, false); !errors.Is(err, agent.ErrSelfDispose) {
					t.Errorf("dispose of %s from inside: %v", a.ID(), err)
				}
			}
			return "still here", nil
		})
		w.register("leave", false, func(ctx context.Context, c *tool.Call) (any, error) {
			child.CloseAdmission(false)
			<-ctx.Done()
			return "gone", nil
		})
		root = w.create()
		child = w.child(root)
		w.model.script(uses("suicide"), uses("leave"))
		w.ask(child, "m1")
		w.ok(child.Dispose(w.ctx, false))
		w.same("course", []string{"result c1", "result c1 ABORTED", "end 1 aborted disposed"}, lines(child, "result", "end"))
		// An agent may dispose what it owns.
		second := w.child(root)
		w.register("kill", false, func(ctx context.Context, _ *tool.Call) (any, error) { return "ok", second.Dispose(ctx, false) })
		w.model.script(uses("kill"))
		w.ask(root, "m2")
		w.same("result", []string{"result c1"}, lines(root, "result"))
	})
}

// The stop goes down the tree before anybody waits, and the children go first
// (core L52): none is left, none is parentless for a moment.
func TestDisposeTree(t *testing.T) {
	bubble(t, func(w *world) {
		root := w.create()
		mid := w.child(root)
		leaves := []*agent.Agent{w.child(mid), w.child(mid)}
		all := append([]*agent.Agent{root, mid}, leaves...)
		var mu sync.Mutex // hooks of several agents run at once
		var gone []string
		w.reg.AddHooks(agent.Hooks{Disposed: func(a *agent.Agent) {
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, a.SessionID())
			if o := a.Owner(); o != nil {
				if _, ok := w.reg.Live(o); !ok {
					t.Errorf("%s outlived its owner", a.ID())
				}
			}
		}})
		s := &stall{make(chan struct{}), make(chan struct{})}
		cancelled := make(chan struct{}, 4)
		for _, a := range all {
			reached := make(chan struct{})
			w.model.script(func(c *call) {
				close(reached)
				<-c.ctx.Done()
				cancelled <- struct{}{}
				<-s.open
				c.hang()
			})
			w.ok(a.Followup(msg("m-" + a.SessionID())))
			<-reached
		}
		done := make(chan error)
		go func() { done <- root.Dispose(w.ctx, false) }()
		// Everybody is told before the first one has converged.
		for range all {
			<-cancelled
		}
		if _, err := w.reg.Create(w.ctx, agent.Create{Owner: mid, Options: options()}); !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("a child of a closing owner: %v", err)
		}
		synctest.Wait()
		w.same("gone while they hold", 0, len(gone))
		close(s.open)
		w.ok(<-done)
		w.same("root last, its child before", []string{mid.SessionID(), root.SessionID()}, gone[2:])
		w.same("alive", 0, len(w.reg.List()))
	})
}

// A failure at any boundary of a disposal is reported and stops nothing (core H1, L52).
func TestDisposeFailpoints(t *testing.T) {
	for _, op := range []string{"append", "close", "teardown", "child"} {
		t.Run(op, func(t *testing.T) {
			stored(t, func(w *world) {
				root := w.create(func(a *agent.Agent) {
					if op == "teardown" {
						a.OnDispose(func() { panic(errBoom) })
					}
				})
				child := w.child(root)
				w.ask(root, "m1")
				w.ask(child, "m2")
				w.ok(root.Inject(msg("i1")))
				w.store.gate(func(at string, events []session.Event) error {
					switch {
					case at == op:
						return errBoom
					case op == "child" && at == "close":
						op = "done" // the child's comes first
						return errBoom
					}
					return nil
				}, nil)
				err := root.Dispose(w.ctx, false)
				if err == nil {
					t.Error("the failure was swallowed")
				}
				if op != "teardown" && !errors.Is(err, errBoom) {
					t.Errorf("dispose: %v", err)
				}
				w.same("alive", 0, len(w.reg.List()))
				w.same("sessions", 0, len(w.sessions.List()))
				w.store.gate(func(string, []session.Event) error { return nil }, nil)
				h, err := w.reg.Resume(w.ctx, agent.Resume{ID: root.ID(), Options: options()})
				w.ok(err)
				w.ask(h.Agent(), "m3")
				w.ok(h.Dispose(w.ctx))
			})
		})
	}
}

// A disposal waits for the durable write that an idle injection began, before the
// agent leaves the registry (core L54, amendment P37).
func TestDisposeWaitsForInjection(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		l := newLatch()
		first := true
		w.store.gate(func(op string, _ []session.Event) error {
			if !first {
				return nil
			}
			first = false
			return l.wait(w.ctx)
		}, nil)
		w.ok(a.Inject(msg("i1")))
		<-l.reached // the write-behind window has passed
		done := make(chan error)
		go func() { done <- a.Dispose(w.ctx, true) }()
		synctest.Wait()
		if _, ok := w.reg.Get(a.ID()); !ok {
			t.Error("the agent left while its injection was being stored")
		}
		close(l.open)
		w.ok(<-done)
		w.store.healthy()
		w.same("stored", []string{"inbox step +i1 nowake"}, w.storedLines(a.ID()))
	})
}

// Maintenance and disposal: the job is cancelled and waited for.
func TestDisposeDuringMaintenance(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		started := make(chan struct{})
		res := make(chan error)
		go func() {
			res <- a.RunMaintenance(w.ctx, func(ctx context.Context) error {
				if err := a.Dispose(ctx, false); !errors.Is(err, agent.ErrSelfDispose) {
					t.Errorf("dispose from inside: %v", err)
				}
				close(started)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		<-started
		w.ok(a.Followup(msg("latched")))
		w.ok(a.Dispose(w.ctx, true))
		w.same("cause", error(session.Cause{Kind: session.CauseDisposed}), <-res)
		w.same("kept, not run", []string{"inbox turn +latched"}, trace(a.Session()))
	})
}

// Close waits for disposals that others began, to their end: who closes the store
// behind it cuts no flush off (core L47).
func TestCloseWaitsForADisposal(t *testing.T) {
	for _, at := range []string{"disposed hook", "close"} {
		t.Run(at, func(t *testing.T) {
			stored(t, func(w *world) {
				l := newLatch()
				if at == "close" {
					w.store.gate(func(op string, _ []session.Event) error {
						if op == at {
							return l.wait(w.ctx)
						}
						return nil
					}, nil)
				} else {
					w.reg.AddHooks(agent.Hooks{Disposed: func(*agent.Agent) { w.ok(l.wait(w.ctx)) }})
				}
				a := w.create()
				w.ask(a, "m1")
				disposed, closed := make(chan error, 1), make(chan error, 1)
				go func() { disposed <- a.Dispose(w.ctx, false) }()
				<-l.reached
				go func() { closed <- w.reg.Close(w.ctx) }()
				synctest.Wait()
				w.same("closed while a disposal runs", 0, len(closed))
				close(l.open)
				w.ok(<-disposed)
				w.ok(<-closed)
			})
		})
	}
}

// Work that is bound to an agent is stopped when the disposal begins and awaited
// before the session goes; a closing agent takes none (design § 4, Admission closes
// before waiting starts).
func TestDisposeEndsWork(t *testing.T) {
	stored(t, func(w *world) {
		owner := w.create()
		a := w.child(owner)
		stopped, over := make(chan struct{}), make(chan struct{})
		w.ok(bind(a, agent.Work{Stop: func() { close(stopped) }, Join: func() { <-over }}))
		w.ok(bind(a, agent.Work{Stop: func() { panic("out of order") }, Join: func() {}}))
		gone := make(chan error, 1)
		go func() { gone <- owner.Dispose(w.ctx, false) }()
		<-stopped
		synctest.Wait()
		if _, live := a.Registry().Get(a.ID()); !live {
			t.Error("the agent left the registry before its work was over")
		}
		if _, err := a.AddWork(agent.Work{Stop: func() { t.Error("stopped") }, Join: func() { t.Error("joined") }}); !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("work for a closing agent: %v", err)
		}
		close(over)
		var panicked *agent.PanicError
		if err := <-gone; !errors.As(err, &panicked) {
			t.Errorf("dispose: %v", err)
		}
	})
}

func bind(a *agent.Agent, w agent.Work) error {
	_, err := a.AddWork(w)
	return err
}

// Work that is over before its agent is neither stopped nor joined, and holds nothing.
func TestWorkRemoved(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		stops := 0
		remove, err := a.AddWork(agent.Work{Stop: func() { w.Error("stopped") }, Join: func() { w.Error("joined") }})
		w.ok(err)
		late, err := a.AddWork(agent.Work{Stop: func() { stops++ }, Join: func() {}})
		w.ok(err)
		remove()
		remove()
		w.ok(a.Dispose(w.ctx, false))
		late() // no fault
		w.same("stops of what was kept", 1, stops)
	})
}
