package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
	"github.com/offshoot-dev/offshoot/tool"
)

// trial is one run of an operation over a store with faults. caller is the context
// of whoever asks; the faults may end it.
type trial struct {
	*world
	faulty *storetest.Faulty
	back   *memory.Backend
	caller context.Context
	leave  context.CancelCauseFunc

	accepted  map[message.ID]bool // for good
	refused   map[message.ID]bool // for good
	uncertain map[message.ID]bool
}

func newTrial(t testing.TB) *trial {
	inner := memory.New()
	w := &world{TB: t, ctx: t.Context(), model: &model{}, rec: &recorder{t: t}}
	tr := &trial{world: w, faulty: storetest.NewFaulty(inner), back: inner.Backend(), accepted: map[message.ID]bool{}, refused: map[message.ID]bool{}, uncertain: map[message.ID]bool{}}
	w.other = tr.faulty
	w.open()
	w.register("work", false, func(context.Context, *tool.Call) (any, error) { return "done", nil })
	tr.caller, tr.leave = context.WithCancelCause(t.Context())
	return tr
}

// accept asks for a durable acceptance and keeps account of the answer.
func (tr *trial) accept(a *agent.Agent, id message.ID) error {
	err := a.Accept(tr.caller, msg(string(id)), session.NextTurn)
	switch {
	case err == nil:
		tr.accepted[id] = true
	case errors.Is(err, agent.ErrUncertain):
		tr.uncertain[id] = true
	default:
		tr.refused[id] = true
	}
	return err
}

// make creates root "s".
func (tr *trial) make() (*agent.Handle, error) {
	return tr.reg.Create(tr.caller, agent.Create{Options: options(), Session: session.New{ID: "s"}, Setup: func(_ context.Context, a *agent.Agent) error {
		return a.Inject(msg("injected"))
	}})
}

type operation struct {
	before func(tr *trial) error
	run    func(tr *trial) error
}

func faultyOperations() map[string]operation {
	nothing := func(*trial) error { return nil }
	// crashed leaves a root whose process died in a tool, with a message queued.
	crashed := func(tr *trial) error {
		h, err := tr.make()
		if err != nil {
			return err
		}
		a := h.Agent()
		started := make(chan struct{})
		_, err = a.Tools().Register(tool.Definition{Name: "hold", Description: "holds", Parameters: []byte(`{"type":"object"}`), Execute: func(ctx context.Context, _ *tool.Call) (any, error) {
			close(started)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}})
		if err != nil {
			return err
		}
		tr.model.script(uses("hold"))
		if err := a.Followup(msg("first")); err != nil {
			return err
		}
		<-started
		if err := tr.accept(a, "queued"); err != nil {
			return err
		}
		// From here on nothing reaches the disk: the process is dead.
		dead := errors.New("dead")
		tr.faulty.Plan(func(storetest.Point) storetest.Fault { return storetest.Fault{Err: dead} })
		if err := h.Release(tr.ctx); !errors.Is(err, dead) {
			return fmt.Errorf("the release of a dead process: %w", err)
		}
		tr.rec.dead("s")
		tr.faulty.Plan(nil)
		return tr.faulty.Settle(tr.ctx)
	}
	return map[string]operation{
		"create": {nothing, func(tr *trial) error {
			h, err := tr.make()
			if err != nil {
				return err
			}
			return errors.Join(h.Agent().Session().Flush(tr.caller), h.Release(tr.ctx))
		}},
		"create a child": {nothing, func(tr *trial) error {
			h, err := tr.make()
			if err != nil {
				return err
			}
			root := h.Agent()
			ferr := root.Session().Flush(tr.caller)
			_, err = tr.reg.Create(tr.caller, agent.Create{Owner: root, Options: options(), Session: session.New{
				ID: "child", ParentSession: "s", Root: "s", Origin: session.OriginSubagent, DelegationDepth: 1,
			}})
			if c, ok := tr.reg.Get("child"); ok {
				err = errors.Join(err, c.Session().Flush(tr.caller))
			}
			return errors.Join(ferr, err, h.Dispose(tr.ctx))
		}},
		"accept": {nothing, func(tr *trial) error {
			h, err := tr.make()
			if err != nil {
				return err
			}
			tr.model.script(uses("work"))
			err = tr.accept(h.Agent(), "first")
			err = errors.Join(err, h.Agent().WhenIdle(tr.ctx))
			err = errors.Join(err, tr.accept(h.Agent(), "second"))
			err = errors.Join(err, h.Agent().WhenIdle(tr.ctx))
			return errors.Join(err, h.Dispose(tr.ctx))
		}},
		"resume": {crashed, func(tr *trial) error {
			h, err := tr.reg.Resume(tr.caller, agent.Resume{ID: "s", Options: options()})
			if err != nil {
				return err
			}
			h.Agent().Wake()
			err = h.Agent().WhenIdle(tr.ctx)
			return errors.Join(err, h.Release(tr.ctx))
		}},
		"dispose": {nothing, func(tr *trial) error {
			h, err := tr.make()
			if err != nil {
				return err
			}
			a := h.Agent()
			tr.model.script(func(c *call) { c.hang() })
			err = tr.accept(a, "first")
			synctest.Wait() // it hangs in the model, if it got there
			errs := []error{err, a.Followup(msg("second")), a.Inject(msg("third"))}
			done := make(chan error, 2)
			go func() { done <- h.Dispose(tr.ctx) }()
			go func() { done <- h.Release(tr.ctx) }()
			return errors.Join(append(errs, <-done, <-done)...)
		}},
	}
}

func faultKinds() map[string]func(tr *trial) storetest.Fault {
	gone := errors.New("the caller is gone")
	return map[string]func(tr *trial) storetest.Fault{
		"fails before": func(*trial) storetest.Fault { return storetest.Fault{Err: errBoom} },
		"fails after":  func(*trial) storetest.Fault { return storetest.Fault{Err: errBoom, After: true} },
		"panics":       func(*trial) storetest.Fault { return storetest.Fault{Panic: errBoom} },
		"panics after": func(*trial) storetest.Fault { return storetest.Fault{Panic: errBoom, After: true} },
		"caller gone": func(tr *trial) storetest.Fault {
			return storetest.Fault{Wait: func(context.Context) { tr.leave(gone) }}
		},
		"caller gone after": func(tr *trial) storetest.Fault {
			return storetest.Fault{After: true, Then: func() { tr.leave(gone) }}
		},
		"slow": func(*trial) storetest.Fault {
			return storetest.Fault{Wait: func(context.Context) { <-time.After(time.Hour) }}
		},
		"lost": func(*trial) storetest.Fault {
			return storetest.Fault{Err: &session.FencedError{ID: "s"}}
		},
	}
}

// The failpoint table of the agents' lifecycle (Q11): every operation of the store
// under a creation, an acceptance, a resumption and a disposal goes wrong in every
// way, once, for good, and twice. Afterwards nothing is live or owned, what is told
// is paired, what was accepted is stored and runs at most once, what was refused
// never does, and the session can be gone on with (core H10, L43–L45, L48–L54;
// design § 4).
func TestStoreFailpoints(t *testing.T) {
	for name, op := range faultyOperations() {
		t.Run(name, func(t *testing.T) {
			var points int
			run := func(what string, plan func(tr *trial, p storetest.Point) storetest.Fault) {
				synctest.Test(t, func(t *testing.T) {
					tr := newTrial(t)
					tr.ok(op.before(tr))
					tr.faulty.Plan(func(p storetest.Point) storetest.Fault { return plan(tr, p) })
					err := op.run(tr)
					met := tr.faulty.Points()
					if what == "" {
						tr.ok(err)
						points = len(met)
					}
					tr.audit()
					if t.Failed() {
						t.Fatalf("%s: the operation said: %v\nit met %v", what, err, met)
					}
				})
			}
			run("", func(*trial, storetest.Point) storetest.Fault { return storetest.Fault{} })
			if points < 3 {
				t.Fatalf("only %d operations of the store", points)
			}
			for n := range points {
				for kind, fault := range faultKinds() {
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
					for _, second := range []string{"fails before", "fails after"} {
						for m := n + 1; m <= n+2; m++ {
							run(fmt.Sprintf("%s at %d, %s at %d", kind, n, second, m), func(tr *trial, p storetest.Point) storetest.Fault {
								switch p.N {
								case n:
									return fault(tr)
								case m:
									return faultKinds()[second](tr)
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

// audit checks what must hold however the operation ended.
func (tr *trial) audit() {
	tr.Helper()
	tr.faulty.Plan(nil)
	tr.model.mu.Lock()
	tr.model.steps = nil // what the script still had for a turn that never came
	tr.model.mu.Unlock()
	tr.same("live agents", 0, len(tr.reg.List()))
	tr.same("live sessions", 0, len(tr.sessions.List()))
	tr.ok(tr.faulty.Settle(tr.ctx))
	<-time.After(time.Hour) // whatever would still write, writes
	for _, id := range []session.ID{"s", "child"} {
		tr.auditStored(id)
	}
	// It can be gone on with: in another process, and here.
	other := tr.back.Open()
	exists, err := other.Exists(tr.ctx, "s")
	tr.ok(err)
	var h *agent.Handle
	if exists {
		w, err := other.Open(tr.ctx, "s")
		if err != nil {
			tr.Errorf("another process cannot have it: %v", err)
			return
		}
		tr.ok(w.Close(tr.ctx))
		h, err = tr.reg.Resume(tr.ctx, agent.Resume{ID: "s", Options: options()})
		if err != nil {
			tr.Errorf("resume afterwards: %v", err)
			return
		}
		h.Agent().Wake()
	} else if h, err = tr.reg.Create(tr.ctx, agent.Create{Options: options(), Session: session.New{ID: "s"}}); err != nil {
		tr.Errorf("create afterwards: %v", err)
		return
	}
	tr.ok(other.Close(tr.ctx))
	tr.ask(h.Agent(), "afterwards")
	tr.auditMessages(h.Agent().Session())
	tr.ok(h.Dispose(tr.ctx))
	tr.ok(tr.reg.Close(tr.ctx))
	for _, stop := range tr.rec.stops {
		stop()
	}
	tr.rec.check(tr.world)
}

// auditStored compares what is stored with the newest log of that id.
func (tr *trial) auditStored(id session.ID) {
	tr.Helper()
	rec, events, err := tr.faulty.Store.Inspect(tr.ctx, id)
	if errors.Is(err, session.ErrNotFound) {
		if len(tr.accepted) > 0 && id == "s" {
			tr.Errorf("%d messages were accepted, and there is no row", len(tr.accepted))
		}
		return
	}
	tr.ok(err)
	if rec.Owner != nil {
		tr.Errorf("%s is still owned by %s", id, rec.Owner)
	}
	var have []session.Event
	var got, want []string
	for e, err := range events {
		tr.ok(err)
		have = append(have, e)
		got = append(got, string(e.AppendEnvelope(nil)))
	}
	if _, err := tr.sessions.Verify(rec, seq2(have)); err != nil {
		tr.Errorf("what is stored of %s: %v", id, err)
	}
	for _, s := range tr.rec.seen {
		if s.ID() == id {
			want = want[:0]
			for e := range s.Events(0) {
				want = append(want, string(e.AppendEnvelope(nil)))
			}
		}
	}
	if want != nil && (len(got) > len(want) || !slices.Equal(got, want[:len(got)])) {
		tr.Errorf("%s is stored as\n%s\nits log is\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// auditMessages reads what became of each message in the whole log.
func (tr *trial) auditMessages(s *session.Session) {
	tr.Helper()
	in, ran := map[message.ID]int{}, map[message.ID]int{}
	for e := range s.Events(0) {
		switch p := e.Payload().(type) {
		case *session.InboxSpliced:
			for _, m := range p.Inserted {
				in[m.ID]++
			}
		case *session.UserMessage:
			ran[p.Message.ID]++
		}
	}
	for id, n := range ran {
		if n > 1 {
			tr.Errorf("%s ran %d times", id, n)
		}
	}
	for id := range tr.accepted {
		if in[id] != 1 {
			tr.Errorf("%s was accepted and is in the log %d times", id, in[id])
		}
	}
	for id := range tr.refused {
		if ran[id] != 0 {
			tr.Errorf("%s was refused and ran", id)
		}
	}
}

// dead takes the sessions of an id out of the account: their process is dead.
func (r *recorder) dead(id session.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = slices.DeleteFunc(r.seen, func(s *session.Session) bool { return s.ID() == id })
	for s := range r.live {
		if s.ID() == id {
			delete(r.live, s)
		}
	}
	for a := range r.told {
		if a != nil && a.ID() == id {
			delete(r.told, a)
		}
	}
}
