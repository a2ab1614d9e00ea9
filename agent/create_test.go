package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// The order of a creation (core L40–L42): who is called when, and what they can see.
func TestCreateOrder(t *testing.T) {
	bubble(t, func(w *world) {
		var order []string
		var id session.ID
		note := func(what string) {
			_, liveSession := w.sessions.Get(id)
			_, liveAgent := w.reg.Get(id)
			order = append(order, fmt.Sprintf("%s: session %t, agent %t", what, liveSession, liveAgent))
		}
		w.sessions.AddHooks(session.Hooks{
			Created:  func(*session.Session) error { note("session created"); return nil },
			Disposed: func(*session.Session) { note("session disposed") },
		})
		w.reg.AddHooks(agent.Hooks{
			Created:  func(*agent.Agent) error { note("agent created"); return nil },
			Disposed: func(*agent.Agent) { note("agent disposed") },
			Inbox:    func(_ *agent.Agent, e agent.InboxEvent) { note("inbox " + string(e.Message.ID)) },
			Status:   func(_ *agent.Agent, s agent.Status) { note(string(s)) },
		})
		h, err := w.reg.Create(w.ctx, agent.Create{
			Options: options(),
			Setup: func(ctx context.Context, a *agent.Agent) error {
				id = a.ID()
				w.same("initiator", true, agent.Initiator(ctx) == a)
				a.OnDispose(func() { note("first teardown") })
				a.OnDispose(func() { note("second teardown") })
				note("setup")
				// What setup sends runs, but not before there is an agent to see.
				w.ok(a.Followup(msg("m1")))
				synctest.Wait()
				return nil
			},
			Commit: func() error { note("commit"); return nil },
		})
		w.ok(err)
		w.idle(h.Agent())
		w.ok(h.Dispose(w.ctx))
		w.same("order", []string{
			"setup: session false, agent false",
			"commit: session false, agent false",
			"session created: session true, agent true",
			"agent created: session true, agent true",
			"inbox m1: session true, agent true",
			"running: session true, agent true",
			"inbox m1: session true, agent true",
			"idle: session true, agent true",
			"second teardown: session true, agent true",
			"first teardown: session true, agent true",
			"agent disposed: session true, agent false",
			"session disposed: session false, agent false",
		}, order)
	})
}

// creation is one way in which a create or a resume can end at one of its waits.
type creation struct {
	name string
	// arm makes it fail; it returns what to do while the wait is reached, or nil
	arm  func(w *world, f *failpoint)
	want error
}

type failpoint struct {
	cancel context.CancelCauseFunc
	owner  *agent.Agent
	create agent.Create
	// during runs while the creation waits at reached
	reached chan struct{}
	during  func()
	undo    []func()
}

// stop makes Setup (or a hook) wait for ctx at the failpoint.
func (f *failpoint) wait(ctx context.Context) error {
	close(f.reached)
	<-ctx.Done()
	return context.Cause(ctx)
}

func creations() []creation {
	setup := func(f *failpoint) {
		f.create.Setup = func(ctx context.Context, a *agent.Agent) error {
			if err := a.Inject(msg("left")); err != nil {
				return err
			}
			return f.wait(ctx)
		}
	}
	hookVeto := func(w *world, f *failpoint, fn func(*agent.Agent) error) {
		once := false
		f.undo = append(f.undo, w.reg.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
			if once || a == f.owner {
				return nil
			}
			once = true
			return fn(a)
		}}))
	}
	sessionVeto := func(w *world, f *failpoint, fn func(*session.Session) error) {
		once := false
		f.undo = append(f.undo, w.sessions.AddHooks(session.Hooks{Created: func(s *session.Session) error {
			if once {
				return nil
			}
			once = true
			return fn(s)
		}}))
	}
	return []creation{
		{"ctx ended before", func(_ *world, f *failpoint) { f.cancel(errBoom) }, errBoom},
		{"setup fails", func(_ *world, f *failpoint) {
			f.create.Setup = func(context.Context, *agent.Agent) error { return errBoom }
		}, errBoom},
		{"setup panics", func(_ *world, f *failpoint) {
			f.create.Setup = func(context.Context, *agent.Agent) error { panic(errBoom) }
		}, nil},
		{"ctx ends in setup", func(_ *world, f *failpoint) { setup(f); f.during = func() { f.cancel(errBoom) } }, errBoom},
		{"owner closes in setup", func(_ *world, f *failpoint) { setup(f); f.during = func() { f.owner.CloseAdmission(false) } }, agent.ErrDisposed},
		{"setup ignores the end of ctx", func(_ *world, f *failpoint) {
			f.create.Setup = func(context.Context, *agent.Agent) error { f.cancel(errBoom); return nil }
			f.create.Commit = func() error { return errors.New("it was committed") }
		}, errBoom},
		{"agent disposed in setup", func(_ *world, f *failpoint) {
			f.create.Setup = func(ctx context.Context, a *agent.Agent) error {
				if err := a.Dispose(ctx, false); !errors.Is(err, agent.ErrSelfDispose) {
					return fmt.Errorf("dispose inside setup: %w", err)
				}
				a.CloseAdmission(false)
				return f.wait(ctx)
			}
		}, agent.ErrDisposed},
		{"commit fails", func(_ *world, f *failpoint) { f.create.Commit = func() error { return errBoom } }, errBoom},
		{"commit panics", func(_ *world, f *failpoint) { f.create.Commit = func() error { panic(errBoom) } }, nil},
		{"owner closes in commit", func(_ *world, f *failpoint) {
			f.create.Commit = func() error { f.owner.CloseAdmission(false); return nil }
		}, agent.ErrDisposed},
		{"session hook vetoes", func(w *world, f *failpoint) {
			sessionVeto(w, f, func(*session.Session) error { return errBoom })
		}, errBoom},
		{"session hook panics", func(w *world, f *failpoint) {
			sessionVeto(w, f, func(*session.Session) error { panic(errBoom) })
		}, nil},
		{"session hook disposes", func(w *world, f *failpoint) {
			sessionVeto(w, f, func(s *session.Session) error {
				a, _ := w.reg.Get(s.ID())
				a.CloseAdmission(false)
				return nil
			})
		}, agent.ErrDisposed},
		{"agent hook vetoes", func(w *world, f *failpoint) {
			hookVeto(w, f, func(*agent.Agent) error { return errBoom })
		}, errBoom},
		{"agent hook panics", func(w *world, f *failpoint) {
			hookVeto(w, f, func(*agent.Agent) error { panic(errBoom) })
		}, nil},
		{"agent hook disposes", func(w *world, f *failpoint) {
			hookVeto(w, f, func(a *agent.Agent) error { a.CloseAdmission(false); return nil })
		}, agent.ErrDisposed},
		{"owner closes while announced", func(w *world, f *failpoint) {
			hookVeto(w, f, func(*agent.Agent) error { f.owner.CloseAdmission(true); return nil })
		}, agent.ErrDisposed},
		{"ctx ends while announced", func(w *world, f *failpoint) {
			hookVeto(w, f, func(*agent.Agent) error { f.cancel(errBoom); return nil })
		}, errBoom},
		{"owner is closed", func(_ *world, f *failpoint) { f.owner.CloseAdmission(false) }, agent.ErrDisposed},
		{"the id is taken", func(_ *world, f *failpoint) { f.create.Session.ID = f.owner.ID() }, session.ErrExists},
		{"the header is bad", func(_ *world, f *failpoint) { f.create.Session.Cwd = "relative" }, nil},
		{"the seed is open", func(_ *world, f *failpoint) {
			// Creation gets the raw log of somebody in mid-turn (amendment P20).
			f.create.Session.Seed = &session.Seed{Events: []session.Event{session.RawEvent(session.Event{Type: session.TypeTurnStart}, []byte(`{"turn":1}`))}}
		}, nil},
	}
}

// The failpoint table (Q11; core L43, L44, H10): fail or cancel at every wait of a
// creation; afterwards nothing of it is live or stored, announcements are paired,
// and the next creation under the same id succeeds.
func TestCreateFailpoints(t *testing.T) {
	for _, c := range creations() {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				owner := w.create()
				ctx, cancel := context.WithCancelCause(w.ctx)
				f := &failpoint{cancel: cancel, owner: owner, reached: make(chan struct{}), create: agent.Create{
					Owner: owner, Options: options(), Session: session.New{ID: "child", Root: owner.ID()},
					Setup: func(_ context.Context, a *agent.Agent) error { return a.Inject(msg("left")) },
				}}
				c.arm(w, f)
				events := w.rec.count()
				res := make(chan error)
				go func() {
					h, err := w.reg.Create(ctx, f.create)
					if err == nil {
						err = errors.Join(h.Dispose(w.ctx), errors.New("it succeeded"))
						w.Errorf("create: %v", err)
					}
					res <- err
				}()
				if f.during != nil {
					<-f.reached
					f.during()
				}
				err := <-res
				if c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("create: %v, want %v", err, c.want)
				}
				for _, undo := range f.undo {
					undo()
				}
				if _, ok := w.reg.Get("child"); ok {
					t.Error("the agent is live")
				}
				if _, ok := w.sessions.Get("child"); ok {
					t.Error("the session is live")
				}
				synctest.Wait()
				if w.store != nil {
					time.Sleep(time.Second) // write-behind, if there is anything left to write
					if stored, err := w.store.Exists(w.ctx, "child"); err != nil || stored {
						t.Errorf("a row is left behind: %t, %v", stored, err)
					}
				}
				w.rec.forgetVetoed(events)
				again := agent.Create{Options: options(), Session: session.New{ID: "child"}}
				h, err := w.reg.Create(w.ctx, again)
				w.ok(err)
				w.ask(h.Agent(), "m1")
				w.ok(h.Dispose(w.ctx))
			})
		})
	}
}

// count and forgetVetoed: an agent whose creation failed before or while it was
// announced has told Disposed to those alone that heard of it.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *recorder) forgetVetoed(from int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, t := range r.told {
		if a != nil && t.created != t.disposed && a.ID() == "child" {
			r.t.Errorf("I7: %d created, %d disposed for a creation that failed", t.created, t.disposed)
		}
		if a != nil && a.ID() == "child" {
			delete(r.told, a)
		}
	}
	r.seen = append(r.seen[:from:from], filterChild(r.seen[from:])...)
}

func filterChild(list []*session.Session) []*session.Session {
	var out []*session.Session
	for _, s := range list {
		if s.ID() != "child" {
			out = append(out, s)
		}
	}
	return out
}

// Hooks behind the one that vetoes hear neither of the creation nor of its end.
func TestVetoPairs(t *testing.T) {
	bubble(t, func(w *world) {
		var heard []string
		veto := false
		for i := range 3 {
			w.reg.AddHooks(agent.Hooks{
				Created: func(*agent.Agent) error {
					heard = append(heard, fmt.Sprintf("created %d", i))
					if i == 1 && veto {
						return errBoom
					}
					return nil
				},
				Disposed: func(*agent.Agent) { heard = append(heard, fmt.Sprintf("disposed %d", i)) },
			})
		}
		veto = true
		if _, err := w.reg.Create(w.ctx, agent.Create{Options: options()}); !errors.Is(err, errBoom) {
			t.Errorf("create: %v", err)
		}
		w.same("heard", []string{"created 0", "created 1", "disposed 0", "disposed 1"}, heard)
		veto = false
		w.create()
	})
}

// Resume goes on with the same id and header, numbering continues, what waits is
// not woken by it (core L2, L45), and every wait of it can fail.
func TestResume(t *testing.T) {
	stored(t, func(w *world) {
		h, err := w.reg.Create(w.ctx, agent.Create{Options: agent.Options{Provider: "test", Model: "m1", ReasoningEffort: "high"}, Session: session.New{Cwd: "/tmp"}})
		w.ok(err)
		a := h.Agent()
		w.ask(a, "m1")
		w.ok(a.Inject(msg("q1")))
		reached := make(chan struct{})
		w.model.script(func(c *call) { close(reached); c.hang() })
		w.ok(a.Followup(msg("m2")))
		<-reached
		w.ok(a.Followup(msg("m3")))
		w.ok(h.Release(w.ctx))
		w.same("kept", []string{"end 1 completed", "end 2 aborted disposed"}, lines(a, "end"))

		for _, fail := range []string{"open", "setup", "ctx", "commit", "hook"} {
			ctx, cancel := context.WithCancelCause(w.ctx)
			r := agent.Resume{ID: a.ID(), Options: options()}
			remove := func() {}
			switch fail {
			case "open":
				w.store.failFor("open", errBoom)
			case "setup":
				r.Setup = func(context.Context, *agent.Agent) error { return errBoom }
			case "ctx":
				r.Setup = func(ctx context.Context, _ *agent.Agent) error { cancel(errBoom); <-ctx.Done(); return nil }
			case "commit":
				r.Commit = func() error { return errBoom }
			case "hook":
				remove = w.reg.AddHooks(agent.Hooks{Created: func(*agent.Agent) error { return errBoom }})
			}
			if _, err := w.reg.Resume(ctx, r); !errors.Is(err, errBoom) {
				t.Errorf("resume with a failing %s: %v", fail, err)
			}
			cancel(nil)
			remove()
			w.store.healthy()
			if _, ok := w.sessions.Get(a.ID()); ok {
				t.Errorf("%s: the session is live", fail)
			}
		}

		h, err = w.reg.Resume(w.ctx, agent.Resume{ID: a.ID(), Options: options()})
		w.ok(err)
		b := h.Agent()
		w.same("header", a.Session().Header(), b.Session().Header())
		synctest.Wait()
		w.same("not woken", agent.Idle, b.Status())
		w.same("waiting", 1, len(b.Session().Inbox(session.NextTurn)))
		if _, err := w.reg.Resume(w.ctx, agent.Resume{ID: a.ID()}); !errors.Is(err, session.ErrExists) {
			t.Errorf("a second resume: %v", err)
		}
		w.same("woken", true, b.Wake())
		w.idle(b)
		w.same("course", []string{
			"turn 1", "user m1", "end 1 completed", "turn 2", "user q1", "user m2", "end 2 aborted disposed",
			"end-seed", "turn 3", "user m3", "end 3 completed",
		}, lines(b, "turn", "user", "end"))
		// The effort that was chosen holds on the same model; nothing else changed.
		w.same("headers", []string{"header initial test:m1"}, lines(b, "header"))
		w.same("effort", "high", w.model.requests[len(w.model.requests)-1].req.ReasoningEffort)
		w.ok(h.Dispose(w.ctx))

		h, err = w.reg.Resume(w.ctx, agent.Resume{ID: a.ID(), Options: agent.Options{Provider: "other", Model: "m1"}})
		w.ok(err)
		w.ask(h.Agent(), "m4")
		w.same("headers", []string{"header initial test:m1", "header resume other:m1"}, lines(h.Agent(), "header"))
		w.same("effort on another route", "", w.model.requests[len(w.model.requests)-1].req.ReasoningEffort)
		w.ok(h.Dispose(w.ctx))
		if _, err := w.reg.Resume(w.ctx, agent.Resume{ID: "nobody"}); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("resume of nobody: %v", err)
		}
	})
}

// A log that a crash cut is repaired, and its queue survives: what was claimed is
// history and not run again, what was not is still there (design § 4, Claimed
// exactly once).
func TestResumeAfterCrash(t *testing.T) {
	stored(t, func(w *world) {
		h, err := w.reg.Create(w.ctx, agent.Create{Options: options()})
		w.ok(err)
		a := h.Agent()
		started := make(chan struct{})
		w.register("hold", false, func(ctx context.Context, _ *tool.Call) (any, error) { close(started); <-ctx.Done(); return nil, nil })
		w.model.script(uses("hold"))
		w.ok(a.Followup(msg("m1")))
		<-started
		w.ok(a.Accept(w.ctx, msg("m2"), session.NextTurn))
		// The process dies here: what follows reaches no disk.
		old := w.store
		stop := w.rec.stops[0]
		crashed := w.reg
		old.Kill()
		old.failing(errBoom)
		w.store = &gateStore{Store: old.Store.Backend().Open()}
		w.rec = &recorder{t: t}
		w.open()
		h, err = w.reg.Resume(w.ctx, agent.Resume{ID: a.ID(), Options: options()})
		w.ok(err)
		b := h.Agent()
		w.same("course", []string{"turn 1", "user m1", "call c1 hold", "result c1 TOOL_OUTCOME_UNKNOWN", "step-end 1.1", "end 1 interrupted", "end-seed"},
			lines(b, "turn", "user", "call", "result", "step-end", "end"))
		w.same("owed", true, b.Wake())
		w.idle(b)
		w.same("users", []string{"user m1", "user m2"}, lines(b, "user"))
		if err := crashed.Close(w.ctx); err == nil {
			t.Error("the crashed process could still write")
		}
		stop()
	})
}

// A seed is inherited, not run again: numbering goes on, the parent's queue stays
// the parent's (core L2, L14, S24–S26; amendment P36).
func TestSeededChild(t *testing.T) {
	stored(t, func(w *world) {
		parent := w.create()
		w.ask(parent, "m1")
		w.ok(parent.Inject(msg("q1")))
		w.ok(parent.Session().Flush(w.ctx))
		h, err := w.reg.Create(w.ctx, agent.Create{Owner: parent, Options: options(), Session: session.New{
			ParentSession: parent.ID(), Root: parent.ID(), Seed: &session.Seed{Prefix: parent.Session().Prefix()},
		}})
		w.ok(err)
		a := h.Agent()
		w.same("inbox", 0, len(a.Session().Inbox(session.NextStep)))
		w.ask(a, "m2")
		w.same("course", []string{"turn 1", "user m1", "header initial test:m1", "end 1 completed", "end-seed", "turn 2", "user m2", "end 2 completed"},
			lines(a, "turn", "user", "header", "end"))
		w.same("messages of the request", 3, len(w.model.requests[1].req.Messages))
	})
}

// A creation waits for the retirement of a session with the same id, and that wait
// can be cancelled.
func TestResumeWaitsForRetirement(t *testing.T) {
	stored(t, func(w *world) {
		a := w.create()
		w.ask(a, "m1")
		l := newLatch()
		w.store.gate(func(op string, _ []session.Event) error {
			if op == "close" {
				return l.wait(w.ctx)
			}
			return nil
		}, nil)
		go func() { w.ok(a.Dispose(w.ctx, false)) }()
		<-l.reached
		ctx, cancel := context.WithCancelCause(w.ctx)
		res := make(chan error)
		go func() { _, err := w.reg.Resume(ctx, agent.Resume{ID: a.ID(), Options: options()}); res <- err }()
		synctest.Wait()
		cancel(errBoom)
		if err := <-res; !errors.Is(err, errBoom) {
			t.Errorf("the wait was cancelled: %v", err)
		}
		go func() {
			h, err := w.reg.Resume(w.ctx, agent.Resume{ID: a.ID(), Options: options()})
			if err == nil {
				err = h.Dispose(w.ctx)
			}
			res <- err
		}()
		synctest.Wait()
		w.store.healthy()
		close(l.open)
		w.ok(<-res)
	})
}
