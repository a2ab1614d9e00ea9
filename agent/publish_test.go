package agent_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// Whoever has found an agent while it is built cannot make it run once its creation
// has failed: nothing waits for ever, nothing is stored (core H10, L40, L44).
func TestVetoAgainstSend(t *testing.T) {
	stored(t, func(w *world) {
		var wg sync.WaitGroup
		w.reg.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
			w.ok(a.Followup(msg("early")))
			started := make(chan struct{})
			for i := range 2 {
				wg.Go(func() {
					started <- struct{}{}
					for !a.Quiescent() { // until the moment in which the building ends
						if a.Wake() {
							t.Error("an agent whose creation failed was woken")
						}
					}
					if err := a.Followup(msg(fmt.Sprintf("late%d", i))); !errors.Is(err, agent.ErrDisposed) {
						t.Errorf("send to an agent whose creation failed: %v", err)
					}
				})
			}
			<-started
			<-started
			return errBoom
		}})
		for range 200 {
			if _, err := w.reg.Create(w.ctx, agent.Create{Options: options()}); !errors.Is(err, errBoom) {
				t.Fatalf("create: %v", err)
			}
			wg.Wait()
		}
		l, err := w.store.List(w.ctx, session.Filter{}, session.Page{})
		w.ok(err)
		w.same("rows", 0, len(l.Records))
		w.same("requests", 0, w.model.count())
		w.rec.forget()
	})
}

// forget drops what was recorded: none of it came to be.
func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.told)
	r.seen = nil
}

// A disposal at the end of a creation comes before its row is due, and the creation
// fails, or after its publication (core H10).
func TestDisposeAtTheEndOfACreation(t *testing.T) {
	stored(t, func(w *world) {
		var wg sync.WaitGroup
		w.reg.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
			w.ok(a.Inject(msg("early")))
			started := make(chan struct{})
			for range 2 {
				wg.Go(func() {
					started <- struct{}{}
					for a.Session().Deferred() && !a.Quiescent() {
						runtime.Gosched()
					}
					a.CloseAdmission(true)
				})
			}
			<-started
			<-started
			return nil
		}})
		created := 0
		for range 600 {
			switch h, err := w.reg.Create(w.ctx, agent.Create{Options: options()}); {
			case err == nil:
				created++
				w.ok(h.Release(w.ctx))
			case !errors.Is(err, agent.ErrDisposed):
				t.Fatalf("create: %v", err)
			}
			wg.Wait()
		}
		l, err := w.store.List(w.ctx, session.Filter{}, session.Page{Limit: 2000})
		w.ok(err)
		w.same("rows", created, len(l.Records))
		w.rec.forget()
	})
}
