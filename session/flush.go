package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// WriteDelay is the longest time that an event waits for its store (core D3). A
// flush or a waking send goes at once.
const WriteDelay = 200 * time.Millisecond

// asError is errors.As without the reflection of a generic target at each call site.
func asError[E error](err error, target *E) bool { return errors.As(err, target) }

// Flush returns when every event that was appended before the call is stored for
// good, or with the error of the write that failed. Without a store it returns
// nil at once; so do a deferred session that was not established yet and one that
// was withdrawn, since nothing of them is to be stored.
//
// Events that were appended meanwhile ride along. ctx bounds only the wait for a
// write that somebody else began: a write of one's own is never abandoned, since
// its outcome would be unknown. After a failure the batch is kept, and the next
// flush or append tries again (core D4).
//
// An error that is ErrUnknownOutcome says that some of the events may be stored, as
// does the cause of ctx's end; any other, that what Durable does not count is not.
func (s *Session) Flush(ctx context.Context) error {
	s.mu.Lock()
	target := s.g.head
	s.mu.Unlock()
	if err := s.flushTo(ctx, target); !errors.Is(err, ErrWithdrawn) {
		return err
	}
	return nil
}

// FlushTo is Flush for the events below target, which somebody is to be promised: of
// a session that was withdrawn it returns ErrWithdrawn.
func (s *Session) FlushTo(ctx context.Context, target int64) error { return s.flushTo(ctx, target) }

func (s *Session) flushTo(ctx context.Context, target int64) error {
	for {
		s.mu.Lock()
		if s.durableLocked() >= target {
			s.mu.Unlock()
			return nil
		}
		if s.withdrawn {
			s.mu.Unlock()
			return fmt.Errorf("session %s: %w", s.header.ID, ErrWithdrawn)
		}
		// A write that runs decides what is stored, also when the session was lost since.
		if s.lost != nil && !s.writing {
			err := s.lost
			if s.uncertain && !errors.Is(err, ErrUnknownOutcome) {
				err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
			}
			s.mu.Unlock()
			return err
		}
		if s.writing {
			ch := s.wroteLocked()
			s.mu.Unlock()
			select {
			case <-ch:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := s.writeLocked(ctx); err != nil { // unlocks
			return err
		}
	}
}

// writeLocked stores everything that is pending. It is called with the lock held
// and no write under way, and returns without the lock.
func (s *Session) writeLocked(ctx context.Context) error {
	head, end := s.durable, s.g.head
	w := write{
		s: s, writer: s.writer, head: head, end: end,
		batch: s.events[head-s.from : end-s.from : end-s.from], uncertain: s.uncertain,
	}
	left := false
	w.cells, left = s.takeLocked()
	s.writing, s.wrote = true, nil
	s.disarmLocked()
	s.mu.Unlock()

	// A caller that gives up must not leave a write whose outcome nobody learns.
	err := w.run(context.WithoutCancel(ctx))

	s.mu.Lock()
	if s.writer == nil && w.writer != nil {
		s.listen(w.writer)
	}
	s.durable, s.writer, s.uncertain = w.head, w.writer, w.uncertain
	if left && err == nil {
		s.kept = end
	}
	lost := false
	if err != nil {
		if s.cells != nil {
			s.cells.Untake()
		}
		var fenced *FencedError
		if asError(err, &fenced) {
			lost = s.loseLocked(err)
		}
		err = fmt.Errorf("session %s: storing events %d to %d: %w", s.header.ID, head, end-1, err)
	}
	s.broadcast()
	s.mu.Unlock()
	if lost {
		s.reg.hooks.fenced(s)
	}
	if head < w.head {
		// The next write begins only afterwards, so these come in seq order.
		s.reg.hooks.stored(s, head, w.head)
	}
	s.mu.Lock()
	s.writing = false
	if s.wrote != nil {
		close(s.wrote)
	}
	if err == nil || s.g.head > end {
		// After a failure only an event that is not part of the failed batch starts
		// another attempt (core D4).
		s.armLocked()
	}
	s.mu.Unlock()
	return err
}

// idleLocked returns when no write is under way, with the lock held as before.
func (s *Session) idleLocked() {
	for s.writing {
		ch := s.wroteLocked()
		s.mu.Unlock()
		<-ch
		s.mu.Lock()
	}
}

// wroteLocked returns what is closed when the write under way is over. Nearly no write
// has anybody who waits for it.
func (s *Session) wroteLocked() <-chan struct{} {
	if s.wrote == nil {
		s.wrote = make(chan struct{})
	}
	return s.wrote
}

// write is one attempt to store the events from head to end.
type write struct {
	s         *Session
	writer    Writer // nil before the row exists
	head, end int64  // head moves up to what is known to be stored
	batch     []Event
	cells     []Checkpoint
	uncertain bool // an earlier write's outcome is not known
}

func (w *write) run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			// A store of somebody else's; whether it wrote anything has to be read back.
			w.uncertain = true
			err = fmt.Errorf("store panicked: %v (%w)", p, ErrUnknownOutcome)
		}
	}()
	if w.uncertain {
		if err := w.settle(ctx); err != nil {
			return fmt.Errorf("an earlier write: %w: %w", ErrUnknownOutcome, err)
		}
		if w.head == w.end {
			return nil
		}
	}
	if w.writer == nil {
		if w.writer, err = w.s.reg.cfg.Store.Create(ctx, w.s.header, w.s.Meta(), w.batch, w.cells); err != nil {
			w.writer = nil
		}
	} else {
		err = w.writer.Append(ctx, w.head, w.batch, w.cells)
	}
	switch {
	case err == nil:
		w.head = w.end
		return nil
	case decided(err):
		return err
	}
	if headErr := w.settle(ctx); headErr != nil {
		w.uncertain = true
		return fmt.Errorf("%w (and %w: %w)", err, ErrUnknownOutcome, headErr)
	}
	if w.head == w.end {
		return nil
	}
	return err
}

// settle reads back how far the log is stored after a write of unknown outcome.
func (w *write) settle(ctx context.Context) error {
	if w.writer == nil {
		stored, err := w.s.reg.cfg.Store.Exists(ctx, w.s.header.ID)
		if err != nil {
			return err
		}
		if !stored {
			w.uncertain = false
			return nil
		}
		if w.writer, err = w.s.reg.cfg.Store.Open(ctx, w.s.header.ID); err != nil {
			w.writer = nil
			return err
		}
	}
	at, err := w.writer.Head(ctx)
	if err != nil {
		return err
	}
	if at < w.head || at > w.end {
		return &ConflictError{ID: w.s.header.ID, Want: w.head, Head: at}
	}
	w.batch, w.head, w.uncertain = w.batch[at-w.head:], at, false
	return nil
}

// decided reports whether a failed write is known not to have happened.
func decided(err error) bool {
	var conflict *ConflictError
	var fenced *FencedError
	var owned *OwnedError
	var prefix *PrefixError
	return errors.Is(err, ErrClosed) || errors.Is(err, ErrExists) || asError(err, &conflict) ||
		asError(err, &fenced) || asError(err, &owned) || asError(err, &prefix)
}

// armLocked starts the write-behind window if something is pending and none runs.
// The window is fixed: later events do not move it (core D3).
func (s *Session) armLocked() {
	if s.armed || s.writing || s.closed || s.withdrawn || s.lost != nil || s.durableLocked() >= s.g.head {
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(s.reg.cfg.WriteDelay, s.expire)
	} else {
		s.timer.Reset(s.reg.cfg.WriteDelay)
	}
}

func (s *Session) disarmLocked() {
	if s.armed {
		s.armed = false
		s.timer.Stop()
	}
}

// expire is the end of the write-behind window.
func (s *Session) expire() {
	s.mu.Lock()
	if !s.armed || s.closed || s.writing || s.lost != nil {
		s.mu.Unlock()
		return
	}
	s.armed = false
	s.timer = nil // a log that was quiet for so long may stay so
	if s.durableLocked() >= s.g.head {
		s.mu.Unlock()
		return
	}
	// A failure is kept for whoever flushes next; without a new event there is no
	// further attempt (core D4).
	if err := s.writeLocked(s.reg.ctx); err != nil {
		s.reg.cfg.Logger.Warn("write-behind failed", "session", string(s.header.ID), "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leanLocked()
}

// leanLocked lets go of what a log holds beyond its bytes when it is quiet and at rest,
// since it may stay so for long: decoded messages, which the surface has as far as a
// request needs them and which who reads the log gets decoded again, and the room that was
// left for more. Those who read the log now have the events as they were, so the new ones
// are copied; that waits until they are a good part of all.
func (s *Session) leanLocked() {
	if n := len(s.events); s.writing || s.armed || s.g.turnOpen || n-s.lean <= n/4 {
		return
	}
	events := slices.Clone(s.events)
	fresh := events[s.lean:]
	size := 0
	for i := range fresh {
		if encodedAlready(fresh[i].payload) == nil {
			size += len(fresh[i].data)
		}
	}
	packed := make([]byte, 0, size)
	for i := range fresh {
		e := &fresh[i]
		if encodedAlready(e.payload) == nil {
			start := len(packed)
			packed = append(packed, e.data...)
			e.data = packed[start:len(packed):len(packed)]
		}
		switch e.payload.(type) {
		case *InboxSpliced, *UserMessage, *AssistantMessage, *AssistantChunk, *ToolCall, *ToolResult, *ToolSpill:
			e.payload = nil
		}
	}
	s.events, s.lean, s.arena = events, len(events), nil
}

// AppendEstablish is Append that also ends the deferral of a session prepared
// with Deferred: from now on its events are stored, the whole of this hold with
// the first batch.
func (s *Session) AppendEstablish(drafts ...Draft) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.readyLocked(drafts); err != nil {
		return 0, err
	}
	first, err := s.appendLocked(s.reg.nowMS(), drafts)
	if err == nil && s.deferred {
		s.deferred, s.free = false, s.g.head
		s.armLocked()
	}
	return first, err
}

// Deferred reports whether the session was prepared with Deferred and not
// established yet.
func (s *Session) Deferred() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deferred
}

// CheckOwner confirms that this process still owns the session before something
// is started that cannot be undone (design § 4, Ownership). It is ErrWithdrawn for one
// that was withdrawn.
func (s *Session) CheckOwner(ctx context.Context) error {
	s.mu.Lock()
	w, err := s.writer, s.lost
	if err == nil && s.withdrawn {
		err = fmt.Errorf("session %s: %w", s.header.ID, ErrWithdrawn)
	}
	s.mu.Unlock()
	if w == nil || err != nil {
		return err
	}
	err = contain("store", func() error { return w.Check(ctx) })
	var fenced *FencedError
	if asError(err, &fenced) {
		s.lose(err)
	}
	return err
}

// listen has the store tell when another process takes the session over.
func (s *Session) listen(w Writer) {
	n, ok := w.(LossNotifier)
	if !ok {
		return
	}
	n.OnLost(func() {
		// Not on the store's own goroutine: a hook may append and so need it.
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.losing.Go(func() { s.lose(&FencedError{ID: s.header.ID}) })
		}
	})
}

// lose notes that another process owns the session now, and tells the hooks once:
// whoever drives the tree cancels it.
func (s *Session) lose(err error) {
	s.mu.Lock()
	news := s.loseLocked(err)
	s.mu.Unlock()
	if news {
		s.reg.hooks.fenced(s)
	}
}

func (s *Session) loseLocked(err error) (news bool) {
	if s.lost != nil {
		return false
	}
	s.lost = err
	return true
}

// close ends the log: nothing can be appended any more. It stores what is
// pending, gives up ownership, and reports both failures, the first as an *UnsavedError.
func (s *Session) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.disarmLocked()
	s.broadcast()
	target := s.g.head
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	err := s.flushTo(ctx, target)
	switch {
	case errors.Is(err, ErrWithdrawn):
		err = nil
	case err != nil:
		err = &UnsavedError{ID: s.ID(), Err: err}
	default:
		s.leave(ctx)
	}
	s.mu.Lock()
	s.idleLocked()
	w := s.writer
	s.mu.Unlock()
	s.losing.Wait()
	if w == nil {
		return err
	}
	return errors.Join(err, contain("store", func() error { return w.Close(ctx) }))
}
