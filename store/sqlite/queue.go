package sqlite

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// States of a request.
const (
	waiting int32 = iota
	taken         // by the worker: its outcome is the transaction's
	dropped       // by its caller, whose ctx ended
)

// operation is one write. It runs inside a transaction that others share.
type operation interface {
	// run returns a refusal, after which the transaction goes on with the others
	// and which must have changed nothing that others could trip over; or a
	// failure of the backend, after which the transaction is rolled back.
	run(t *tx) (refusal, failure error)
}

// request is an operation on its way through the queue.
type request struct {
	op      operation
	durable bool // its commit must sync
	owns    bool // it makes this process an owner, which needs its row
	state   atomic.Int32
	refused error
	failed  error
	done    chan struct{}
}

// tx is a transaction under way.
type tx struct {
	*writeConn
	s    *Store
	now  time.Time
	beat bool // the owner row was renewed
	// held are the changes to Store.held that the commit brings; nil is given up.
	held map[int64]*Writer
	// fenced are writers found to have lost their session.
	fenced []*Writer
}

// holder returns the writer of this process for a session, or nil.
func (t *tx) holder(num int64) *Writer {
	if w, ok := t.held[num]; ok {
		return w
	}
	return t.s.held[num]
}

// user returns the writer of this process that works on a session, or nil: one that
// was closed, though the row could not be given up, works on nothing.
func (t *tx) user(num int64) *Writer {
	if w := t.holder(num); w != nil && !w.given.Load() {
		return w
	}
	return nil
}

// submit queues an operation and waits for its outcome. If ctx ends before the
// worker picked it up, it is dropped; after that ctx no longer matters.
func (s *Store) submit(ctx context.Context, name string, r *request) error {
	if s.ro {
		return &Error{Op: name, Path: s.path, Err: ErrReadOnly}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r.done = make(chan struct{})
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return session.ErrClosed
	}
	s.inflight.Add(1)
	s.queue = append(s.queue, r)
	s.mu.Unlock()
	defer s.leave()
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is pending, and takes this one along
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.state.CompareAndSwap(waiting, dropped) {
			return ctx.Err()
		}
		<-r.done
	}
	if r.failed != nil {
		return s.wrap(name, r.failed)
	}
	return r.refused
}

// work is the store's goroutine: it owns the write connection.
func (s *Store) work() {
	ticker := time.NewTicker(s.opt.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-s.wake:
			for batch := s.take(); len(batch) > 0; batch = s.take() {
				s.commit(batch)
			}
		case <-ticker.C:
			if len(s.held) > 0 && s.beatDue(s.opt.Now()) {
				// A failure lets the deadline pass, and then Check meets it.
				_ = s.transact(nil, true)
			}
		case <-s.stop:
			return
		}
	}
}

// take empties the queue and keeps what its callers still want.
func (s *Store) take() []*request {
	s.mu.Lock()
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()
	return slices.DeleteFunc(batch, func(r *request) bool {
		return !r.state.CompareAndSwap(waiting, taken)
	})
}

// commit runs the requests in one transaction. If that fails as a whole, each
// gets its own, so that the one that cannot be stored (too big for what is left
// of the disk, say) does not fail the others; each checks the stored head in its
// own statement, so nothing can be stored twice. After an I/O error nothing is
// tried again: what the disk holds is unknown then.
func (s *Store) commit(batch []*request) {
	err := s.transact(batch, false)
	if err != nil && len(batch) > 1 && code(err) != codeIOErr {
		for i := range batch {
			batch[i].failed = s.transact(batch[i:i+1], false)
		}
	} else {
		for _, r := range batch {
			r.failed = err
		}
	}
	for _, r := range batch {
		close(r.done)
	}
}

// transact runs one transaction to its end and takes over what it changed.
func (s *Store) transact(batch []*request, beat bool) error {
	if s.write == nil || s.write.broken {
		if err := s.reopen(); err != nil {
			return err
		}
	}
	durable := false
	for _, r := range batch {
		durable = durable || r.durable
		beat = beat || r.owns
		r.refused = nil
	}
	t := &tx{writeConn: s.write, s: s, now: s.opt.Now()}
	if err := t.beginTx(durable); err != nil {
		return err
	}
	if err := t.runAll(batch, beat); err != nil {
		t.rollbackTx()
		return err
	}
	if err := t.commitTx(); err != nil {
		s.doubt.Store(true)
		return err
	}
	if durable {
		s.doubt.Store(false)
		s.commits.Add(1)
		s.requests.Add(int64(len(batch)))
	} else {
		s.unsynced.Add(1)
	}
	t.publish()
	return nil
}

func (t *tx) runAll(batch []*request, beat bool) error {
	if (beat || len(t.s.held) > 0) && t.s.beatDue(t.now) {
		if err := t.renew(); err != nil {
			return err
		}
	}
	for _, r := range batch {
		var err error
		if r.refused, err = r.op.run(t); err != nil {
			return err
		}
	}
	return nil
}

// publish takes over, after the commit, what the transaction found and changed.
func (t *tx) publish() {
	for num, w := range t.held {
		old := t.s.held[num]
		switch {
		case w != nil:
			t.s.held[num] = w
			switch {
			case old == nil:
			case old.given.Load():
				old.closed.Store(true)
			default:
				old.fence() // taken over, given up there, and now opened anew
			}
		case old != nil:
			delete(t.s.held, num)
			old.closed.Store(true)
		}
	}
	for _, w := range t.fenced {
		w.fence()
		if t.s.held[w.num] == w {
			delete(t.s.held, w.num)
		}
	}
	if t.beat {
		t.s.lastBeat.Store(&t.now)
	}
}

// reopen replaces a write connection whose state is unknown.
func (s *Store) reopen() error {
	if s.write != nil {
		_ = s.write.close() // it is broken; what matters is the new one
		s.write = nil
	}
	c, err := newWriteConn(s.ctx, s.path, s.opt)
	if err != nil {
		return err
	}
	s.write = c
	return nil
}
