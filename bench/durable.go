package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// recorder is a store that remembers what it was asked to write, so that the same
// can be written again without the agents above it.
type recorder struct {
	session.Store

	mu    sync.Mutex // guards logs and those in it
	logs  []*writes
	since int // logs before this one belong to the preparation
}

// writes is what one session wrote, in order.
type writes struct {
	header session.Header
	meta   session.Meta
	calls  []batch // the first is the creation's
	mark   int     // calls before this one belong to the preparation
	closed bool
}

type batch struct {
	head   int64
	events []session.Event
	cells  []session.Checkpoint
}

// Create implements session.Store.
func (r *recorder) Create(ctx context.Context, h session.Header, meta session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	w, err := r.Store.Create(ctx, h, meta, first, cells)
	if err != nil {
		return nil, err
	}
	log := &writes{header: h, meta: meta, calls: []batch{{events: slices.Clone(first), cells: slices.Clone(cells)}}}
	r.mu.Lock()
	r.logs = append(r.logs, log)
	r.mu.Unlock()
	return &recordedWriter{w, r, log}, nil
}

type recordedWriter struct {
	session.Writer
	r   *recorder
	log *writes
}

// Append implements session.Writer.
func (w *recordedWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	err := w.Writer.Append(ctx, head, events, cells)
	if err == nil {
		w.r.mu.Lock()
		w.log.calls = append(w.log.calls, batch{head, slices.Clone(events), slices.Clone(cells)})
		w.r.mu.Unlock()
	}
	return err
}

// Close implements session.Writer.
func (w *recordedWriter) Close(ctx context.Context) error {
	w.r.mu.Lock()
	w.log.closed = true
	w.r.mu.Unlock()
	return w.Writer.Close(ctx)
}

// prepared ends the preparation: it is not measured when it is written again.
func (r *recorder) prepared() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = len(r.logs)
	for _, log := range r.logs {
		log.mark = len(log.calls)
	}
}

// player writes a recording to a store.
type player struct {
	store   session.Store
	writers map[*writes]session.Writer
}

func (p *player) create(ctx context.Context, log *writes) (session.Writer, error) {
	return p.store.Create(ctx, log.header, log.meta, log.calls[0].events, log.calls[0].cells)
}

func appendAll(ctx context.Context, w session.Writer, calls []batch) error {
	for _, c := range calls {
		if err := w.Append(ctx, c.head, c.events, c.cells); err != nil {
			return err
		}
	}
	return nil
}

// prepare writes what belongs to the preparation.
func (p *player) prepare(ctx context.Context, r *recorder) error {
	p.writers = map[*writes]session.Writer{}
	for _, log := range r.logs[:r.since] {
		w, err := p.create(ctx, log)
		if err != nil {
			return err
		}
		p.writers[log] = w
		if err := appendAll(ctx, w, log.calls[1:max(1, log.mark)]); err != nil {
			return err
		}
	}
	return nil
}

// play writes the rest of one session.
func (p *player) play(ctx context.Context, log *writes) error {
	if w, ok := p.writers[log]; ok {
		return appendAll(ctx, w, log.calls[max(1, log.mark):])
	}
	w, err := p.create(ctx, log)
	if err != nil {
		return err
	}
	if err := appendAll(ctx, w, log.calls[1:]); err != nil {
		return err
	}
	return w.Close(ctx)
}

const (
	workStep      = "durable step: a turn of one step, 1 agent on SQLite"
	workStepAlone = "  the store alone: the same batches one after the other"
	workOwn       = "one-shot child's batches, the store alone, %s at once"
)

// durableSteps is how many steps a sample of the durable step has.
const durableSteps = 64

// durableStep measures steps of one agent on SQLite and, step by step in turn with
// them, the same batches written to a store of their own, so that whatever the disk
// does besides falls on both alike. Their ratio is that of the medians: one slow sync
// outweighs many.
func durableStep(ctx context.Context, b *bench) error {
	ends := make([]int, 0, durableSteps)
	rec, err := record(ctx, b, func(rec *recorder, _ *rig, a *agent.Agent) error {
		for range durableSteps {
			if err := turn(ctx, a); err != nil {
				return err
			}
			ends = append(ends, len(rec.snapshot().logs[0].calls))
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range b.samples + 1 {
		whole, alone, err := b.stepSamples(ctx, rec, ends)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // the first warms up
		}
		if err := errors.Join(b.out.Encode(whole), b.out.Encode(alone)); err != nil {
			return err
		}
	}
	return nil
}

// stepSamples measures an agent's steps and the recorded ones. The batches of a
// recorded step end before the call that ends has for it.
func (b *bench) stepSamples(ctx context.Context, rec *recorder, ends []int) (whole, alone sample, err error) {
	db, err := b.newDB(ctx)
	if err != nil {
		return whole, alone, err
	}
	r, err := newRig(ctx, db)
	if err != nil {
		return whole, alone, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	a, err := r.newAgent(ctx)
	if err == nil {
		err = turn(ctx, a)
	}
	if err != nil {
		return whole, alone, err
	}
	bare, err := b.newDB(ctx)
	if err != nil {
		return whole, alone, err
	}
	defer func() { err = errors.Join(err, bare.Close(context.WithoutCancel(ctx))) }()
	play := &player{store: bare}
	if err := play.prepare(ctx, rec); err != nil {
		return whole, alone, err
	}
	log := rec.logs[0]
	step, own := newProbe(), newProbe()
	var steps, owns []float64
	from, mine, its := log.mark, syncs(db), syncs(bare)
	for _, end := range ends {
		step.start()
		if err := turn(ctx, a); err != nil {
			return whole, alone, err
		}
		steps = append(steps, step.pause())
		own.start()
		if err := appendAll(ctx, play.writers[log], log.calls[from:end]); err != nil {
			return whole, alone, err
		}
		owns = append(owns, own.pause())
		step.ops++
		own.ops++
		from = end
	}
	step.count("syncs", syncs(db)-mine)
	own.count("syncs", syncs(bare)-its)
	whole, alone = step.done(workStep), own.done(workStepAlone)
	whole.Values["ratio"], whole.Values["CPU ratio"] = middle(steps)/middle(owns), whole.CPU/alone.CPU
	return whole, alone, nil
}

// record notes what the work of agents writes.
func record(ctx context.Context, b *bench, work func(*recorder, *rig, *agent.Agent) error) (_ *recorder, err error) {
	db, err := b.newDB(ctx)
	if err != nil {
		return nil, err
	}
	rec := &recorder{Store: db}
	r, err := newRig(ctx, rec)
	if err != nil {
		return nil, err
	}
	a, err := r.newAgent(ctx)
	if err == nil {
		err = turn(ctx, a) // the first step is the one that writes the header
	}
	if err == nil {
		rec.prepared()
		err = work(rec, r, a)
	}
	// What the end of the agents writes is not part of the work.
	done := rec.snapshot()
	return done, errors.Join(err, r.close(ctx))
}

// snapshot copies the recording as it is now.
func (r *recorder) snapshot() *recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &recorder{since: r.since}
	for _, log := range r.logs {
		c := *log
		c.calls = slices.Clone(c.calls)
		s.logs = append(s.logs, &c)
	}
	return s
}

func turns(ctx context.Context, a *agent.Agent, n int) error {
	for range n {
		if err := turn(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// replay measures a recording on an empty database.
func (b *bench) replay(ctx context.Context, rec *recorder, work string, ops int, fn func(*player) error) (_ sample, err error) {
	db, err := b.newDB(ctx)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	play := &player{store: db}
	if err := play.prepare(ctx, rec); err != nil {
		return sample{}, fmt.Errorf("%s: prepare: %w", work, err)
	}
	return b.once().take(work, ops, func(p *probe) error {
		before := syncs(db)
		err := fn(play)
		p.count("syncs", syncs(db)-before)
		return err
	})
}

// once takes samples of a single call.
func (b *bench) once() *bench {
	c := *b
	c.sample = time.Nanosecond
	return &c
}

// ownShare writes the batches of one-shot children by themselves: what of a child's
// time is the store's.
func ownShare(ctx context.Context, b *bench) error {
	const children = 100
	for _, n := range []int{1, children} {
		rec, err := record(ctx, b, func(_ *recorder, r *rig, a *agent.Agent) error {
			req := request(a)
			for range children / n {
				if err := atOnce(n, func(int) error { return r.oneShot(ctx, req) }); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		logs := rec.logs[rec.since:]
		work := fmt.Sprintf("  "+workOwn, thousands(n))
		for i := range b.samples + 1 {
			s, err := b.replay(ctx, rec, work, len(logs), func(p *player) error {
				for group := range slices.Chunk(logs, n) {
					if err := atOnce(len(group), func(i int) error { return p.play(ctx, group[i]) }); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			if i == 0 {
				continue
			}
			if err := b.out.Encode(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// groupCommit measures steps of several resident agents at once: the more there
// are, the more of them share a sync.
func groupCommit(ctx context.Context, b *bench) error {
	for _, n := range concurrency() {
		if err := groupCommitOf(ctx, b, n); err != nil {
			return err
		}
	}
	return nil
}

func concurrency() []int { return []int{1, 4, 16, 64, 256} }

func commitWork(n int) string {
	if n == 1 {
		return "group commit: a step by 1 agent"
	}
	return fmt.Sprintf("group commit: a step each by %d agents at once", n)
}

func groupCommitOf(ctx context.Context, b *bench, n int) (err error) {
	db, err := b.newDB(ctx)
	if err != nil {
		return err
	}
	r, err := newRig(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	agents := make([]*agent.Agent, n)
	for i := range agents {
		if agents[i], err = r.newAgent(ctx); err != nil {
			return err
		}
	}
	return b.measure(commitWork(n), n, func(p *probe) error {
		before := db.Stats()
		err := atOnce(n, func(i int) error { return turn(ctx, agents[i]) })
		after := db.Stats()
		p.count("syncs", float64(after.Commits-before.Commits))
		p.count("writes", float64(after.Requests-before.Requests))
		return err
	})
}
