package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
)

func acceptedWork(kind storeKind) string { return "continuable child " + kind.name + ", to accepted" }
func settledWork(kind storeKind, n int) string {
	return fmt.Sprintf("continuable child %s, to settled and its parent told, %s at once", kind.name, thousands(n))
}
func coldWork(events int) string {
	return fmt.Sprintf("follow-up to a cold child of %s events, to accepted", thousands(events))
}
func parkedWork(n int) string {
	return fmt.Sprintf("waiting continuable child, heap beyond its log (%s)", thousands(n))
}
func cancelWork(kind storeKind, n int) string {
	return fmt.Sprintf("cancel at the root of %s live descendants %s, to the last settled", thousands(n), kind.name)
}

const (
	workToRunning = "follow-up to a running child in memory, to accepted"
	workToWaiting = "follow-up to a waiting child in memory, to accepted"
)

// gates hold agents in a model call: those whose prompt names a gate wait for it.
type gates struct {
	mu   sync.Mutex
	open map[string]chan struct{}
}

// forget lets the next agent of that name wait at a new gate. Nobody waits at it any more.
func (g *gates) forget(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, name)
}

func (g *gates) of(name string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = map[string]chan struct{}{}
	}
	if g.open[name] == nil {
		g.open[name] = make(chan struct{})
	}
	return g.open[name]
}

// script answers at once, but for prompts that begin with "hold " and name a gate.
func (g *gates) script() scripted.Script {
	step := scripted.Func(func(ctx context.Context, req *llm.Request) (scripted.Step, error) {
		if name, held := strings.CutPrefix(scripted.PromptText(req), "hold "); held {
			select {
			case <-g.of(name):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		return scripted.Step{scripted.SayLiteral("The answer is 42.")}, nil
	})
	return scripted.Script{{Repeat: true, Steps: []scripted.Step{{step}}}}
}

func continuation(parent *agent.Agent, prompt string) subagent.ContinuableRequest {
	return subagent.ContinuableRequest{Label: "find the answer", Parent: parent, Prompt: []message.Block{message.Text(prompt)}}
}

func (r *rig) begin(ctx context.Context, parent *agent.Agent, prompt string) (*agent.Agent, error) {
	acc, err := r.service.StartContinuable(ctx, spawn.DefaultName, continuation(parent, prompt))
	if err != nil {
		return nil, err
	}
	a, live := r.agents.Get(acc.Child)
	if !live {
		return nil, fmt.Errorf("child %s is not live", acc.Child)
	}
	return a, nil
}

// starts measures continuable children from their start.
func starts(kind storeKind, counts ...int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		store, err := kind.open(ctx, b)
		if err != nil {
			return err
		}
		r, err := newRig(ctx, store)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close(ctx)) }()
		err = b.measure(acceptedWork(kind), 1, func(p *probe) error {
			p.pause()
			parent, err := r.newAgent(ctx)
			if err != nil {
				return err
			}
			p.start()
			_, err = r.service.StartContinuable(ctx, spawn.DefaultName, continuation(parent, "What is the answer?"))
			p.pause()
			return errors.Join(err, r.host.Settled(ctx, parent.ID()), parent.WhenIdle(ctx), parent.Dispose(ctx, false))
		})
		for _, n := range counts {
			if err != nil {
				return err
			}
			err = b.measure(settledWork(kind, n), n, func(p *probe) error {
				p.pause()
				parent, err := r.newAgent(ctx)
				if err != nil {
					return err
				}
				p.start()
				before := syncs(store)
				err = atOnce(n, func(int) error {
					_, err := r.service.StartContinuable(ctx, spawn.DefaultName, continuation(parent, "What is the answer?"))
					return err
				})
				err = errors.Join(err, r.host.Settled(ctx, parent.ID()), parent.WhenIdle(ctx))
				p.pause()
				p.count("syncs", syncs(store)-before)
				return errors.Join(err, parent.Dispose(ctx, false))
			})
		}
		return err
	}
}

// toResident measures follow-ups to children that are there.
func toResident(ctx context.Context, b *bench) (err error) {
	g := &gates{}
	r, err := newRigOf(ctx, memory.New(), g.script(), 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	parent, err := r.newAgent(ctx)
	if err != nil {
		return err
	}
	content := []message.Block{message.Text("What is the answer?")}
	round := 0
	err = b.measure(workToRunning, 64, func(p *probe) error {
		p.pause()
		round++
		name := fmt.Sprint("running ", round)
		child, err := r.begin(ctx, parent, "hold "+name)
		if err != nil {
			return err
		}
		p.start()
		for range 64 {
			if _, err := r.service.Followup(ctx, parent, child.ID(), content, message.UserSource()); err != nil {
				return err
			}
		}
		p.pause()
		close(g.of(name))
		return r.host.Settled(ctx, parent.ID())
	})
	if err != nil {
		return err
	}
	return b.measure(workToWaiting, 1, func(p *probe) error {
		p.pause()
		round++
		name := fmt.Sprint("waiting ", round)
		child, err := r.wait(ctx, g, parent, name)
		if err != nil {
			return err
		}
		p.start()
		_, err = r.service.Followup(ctx, parent, child.ID(), content, message.UserSource())
		p.pause()
		close(g.of(name))
		return errors.Join(err, r.host.Settled(ctx, parent.ID()))
	})
}

// wait makes a child that waits for a child of its own, which the gate of that name
// holds. Nothing is left of the gate that held the child itself until it had that one:
// what the bench keeps is not the child's.
func (r *rig) wait(ctx context.Context, g *gates, parent *agent.Agent, name string) (*agent.Agent, error) {
	const first = "first"
	child, err := r.begin(ctx, parent, "hold "+first)
	if err != nil {
		return nil, err
	}
	if _, err := r.begin(ctx, child, "hold "+name); err != nil {
		return nil, err
	}
	close(g.of(first))
	defer g.forget(first)
	return child, child.WhenIdle(ctx)
}

// toCold measures from the follow-up to a stored child to its acceptance. Each child is
// followed up in turn, so that its log grows little.
func toCold(events int64, copies int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		const root = session.ID("root")
		name := fmt.Sprintf("cold-%d", events)
		childID := func(i int) session.ID { return session.ID(fmt.Sprintf("child-%02d", i)) }
		dir, err := b.fixture(ctx, name, func(reg *session.Registry) error {
			err := storeSession(ctx, reg, session.New{ID: root}, func(s *session.Session) error { return fill(ctx, s, 10) })
			for i := 0; i < copies && err == nil; i++ {
				err = storeChild(ctx, reg, root, childID(i), events)
			}
			return err
		})
		if err != nil {
			return err
		}
		own := filepath.Join(b.dir, fmt.Sprintf("%s-%d", name, pid()))
		if err := os.CopyFS(own, os.DirFS(dir)); err != nil {
			return err
		}
		db, err := sqlite.Open(ctx, filepath.Join(own, dbName), sqlite.Options{})
		if err != nil {
			return err
		}
		r, err := newRig(ctx, db)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close(ctx)) }()
		h, err := r.agents.Resume(ctx, agent.Resume{ID: root, Options: agent.Options{Provider: route, Model: model}})
		if err != nil {
			return err
		}
		parent := h.Agent()
		content := []message.Block{message.Text("And now?")}
		i := 0
		return b.measure(coldWork(int(events)), 1, func(p *probe) error {
			i++
			_, err := r.service.Followup(ctx, parent, childID(i%copies), content, message.UserSource())
			p.pause()
			return errors.Join(err, r.host.Settled(ctx, root), parent.WhenIdle(ctx))
		})
	}
}

// storeChild leaves a continuable child stored that has settled once.
func storeChild(ctx context.Context, reg *session.Registry, root, id session.ID, events int64) error {
	label, provider, m := "find the answer", route, model
	d, err := session.NewDescriptor(session.Descriptor{
		Mode: session.ModeContinuable, Provider: spawn.DefaultName, Label: &label, AgentProvider: &provider, AgentModel: &m,
	})
	if err != nil {
		return err
	}
	n := session.New{ID: id, ParentSession: root, Root: root, Origin: session.OriginSubagent, DelegationDepth: 1}
	return storeSession(ctx, reg, n, func(s *session.Session) error {
		if _, err := s.Append(drafts(d)...); err != nil {
			return err
		}
		if err := fill(ctx, s, events-1); err != nil {
			return err
		}
		_, err := s.Append(drafts(&session.Settled{Epoch: 1, StopReason: string(subagent.StopCompleted), OutputSeq: -1})...)
		return err
	})
}

// parked measures what waiting children hold beyond their logs, each of which waits for a
// child of its own that is held in a model call: the difference to as many children that are
// so held, less what the same logs hold when they are live with nothing around them.
func parked(counts ...int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		for _, n := range counts {
			for range b.samples {
				s, err := b.parkedSample(ctx, n)
				if err != nil {
					return err
				}
				if err := b.out.Encode(s); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func (b *bench) parkedSample(ctx context.Context, n int) (_ sample, err error) {
	g := &gates{}
	// What a store holds in memory is not the child's.
	db, err := b.newDB(ctx)
	if err != nil {
		return sample{}, err
	}
	r, err := newRigOf(ctx, db, g.script(), 0)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	parent, err := r.newAgent(ctx)
	if err != nil {
		return sample{}, err
	}
	heap, goroutines := settled()
	// What is written behind is still under way when a child has come to rest.
	atRest := func() (heap, goroutines float64) {
		time.Sleep(2 * session.WriteDelay)
		return settled()
	}
	for range n {
		if _, err := r.begin(ctx, parent, "hold all"); err != nil {
			return sample{}, err
		}
	}
	held, heldGoroutines := atRest()
	began := time.Now()
	logs := make([]*session.Session, 0, n)
	for range n {
		child, err := r.wait(ctx, g, parent, "all")
		if err != nil {
			return sample{}, err
		}
		logs = append(logs, child.Session())
	}
	took := time.Since(began)
	heapAfter, goroutinesAfter := atRest()
	each := func(after, middle, before float64) float64 { return (after - middle - (middle - before)) / float64(n) }
	all, running := each(heapAfter, held, heap), each(goroutinesAfter, heldGoroutines, goroutines)
	log, err := bareLogs(ctx, db, logs)
	if err != nil {
		return sample{}, err
	}
	return sample{
		Work: parkedWork(n), Wall: float64(took) / float64(n), Bytes: all - log,
		Values: map[string]float64{"B in all": all, "B of its log": log, "goroutines": running},
	}, nil
}

// bareLogs returns what each of the logs holds when it is live and nobody's: as many others
// with the same events.
func bareLogs(ctx context.Context, db session.Store, logs []*session.Session) (each float64, err error) {
	reg, err := newSessions(ctx, db)
	if err != nil {
		return 0, err
	}
	leave := make([]func(context.Context) error, 0, len(logs))
	defer func() {
		for _, detach := range leave {
			err = errors.Join(err, detach(context.WithoutCancel(ctx)))
		}
	}()
	before, _ := settled()
	for _, log := range logs {
		h := log.Header()
		s, err := reg.Prepare(ctx, session.New{
			ID: "bare-" + h.ID, Cwd: h.Cwd, ParentSession: h.ParentSession, Root: log.Root(), Origin: h.Origin, DelegationDepth: h.DelegationDepth,
		})
		if err != nil {
			return 0, err
		}
		detach, err := reg.Enter(s)
		if err != nil {
			return 0, err
		}
		leave = append(leave, detach)
		for e := range log.Events(0) {
			if _, err := s.Append(session.Draft{Payload: e.Payload(), Sources: e.Sources()}); err != nil {
				return 0, err
			}
		}
	}
	time.Sleep(2 * session.WriteDelay) // see atRest
	after, _ := settled()
	return (after - before) / float64(len(logs)), nil
}

// cancels measures the end of everything below a root.
func cancels(kind storeKind, counts ...int) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) (err error) {
		store, err := kind.open(ctx, b)
		if err != nil {
			return err
		}
		g := &gates{}
		r, err := newRigOf(ctx, store, g.script(), 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close(ctx)) }()
		for _, n := range counts {
			err := b.measure(cancelWork(kind, n), 1, func(p *probe) error {
				p.pause()
				parent, err := r.newAgent(ctx)
				if err != nil {
					return err
				}
				err = atOnce(n, func(int) error {
					_, err := r.begin(ctx, parent, "hold for ever")
					return err
				})
				if err != nil {
					return err
				}
				p.start()
				err = r.service.DrainDescendants(parent)(ctx)
				p.pause()
				return errors.Join(err, parent.Dispose(ctx, false))
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}
