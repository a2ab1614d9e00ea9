package session

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

// cold is the part of a log that was not read when the session was opened: everything
// below Session.from. What the folds need of it, its checkpoint has told (see checkpoint.go).
type cold struct {
	told []byte // what the checkpoint says, in this build's own words
	last tip    // the last event

	loading chan struct{} // closed when the reading under way is over; nil without one
	err     error         // why the log cannot be read, for good
}

// tip is the last event of a log, as far as somebody asks for it.
type tip struct {
	typ  Type
	time int64
}

// Load makes the whole log readable: who needs what was stored before the session was
// opened calls it first, since the readers of a log (History, Surface, Event, Events,
// Prefix, RequestHeader, RequestContext) cannot say that it could not be read. What was
// appended since, from FirstLive on, can be read without it. Of a log that is in memory
// it returns nil at once, and a log that was loaded stays so.
//
// The log is replayed by every rule, and what the session was opened with must follow
// from it. Errors: *CorruptError, *UnsupportedError, *InvariantError, which are the same at
// each call; the store's failures and the end of ctx, after which a further call tries
// again. Nothing that was there before is lost by an error.
//
// A reader that is called first all the same loads the log itself. If that fails it
// returns nothing, and the session is lost for this process as one that another process
// took over is: CheckOwner and every flush return the error, so that no model is asked
// and nothing is stored on the ground of what nobody has read.
func (s *Session) Load(ctx context.Context) error {
	for {
		s.mu.Lock()
		c := s.cold
		if c == nil || c.err != nil {
			s.mu.Unlock()
			if c == nil {
				return nil
			}
			return c.err
		}
		if ch := c.loading; ch != nil {
			s.mu.Unlock()
			select {
			case <-ch:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		c.loading = make(chan struct{})
		from := s.from
		s.mu.Unlock()

		var whole *Session
		err := contain("store", func() (err error) {
			whole, err = s.reread(ctx, from, c.told)
			return err
		})

		s.mu.Lock()
		close(c.loading)
		c.loading = nil
		if err == nil {
			s.warmLocked(whole)
		} else if final(err) {
			c.err = err
		}
		s.mu.Unlock()
		if err != nil && context.Cause(ctx) != nil && !final(err) {
			return context.Cause(ctx)
		}
		return err
	}
}

// final reports whether a log that could not be read for such a reason never can.
func final(err error) bool {
	var corrupt *CorruptError
	var unsupported *UnsupportedError
	var invariant *InvariantError
	return asError(err, &corrupt) || asError(err, &unsupported) || asError(err, &invariant)
}

// reread replays the stored log up to from into a session of its own, and holds what
// follows from it against what the checkpoint has told.
func (s *Session) reread(ctx context.Context, from int64, told []byte) (*Session, error) {
	w, err := s.reg.blank(Record{Header: s.header, Meta: Meta{Root: s.root}}, false)
	if err != nil {
		return nil, err
	}
	w.expect(from)
	events := s.reg.cfg.Store.ReadFrom(ctx, s.header.ID, 0)
	if from >= aheadFrom {
		events = readAhead(events)
	}
	for e, err := range events {
		if err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
		if w.g.head == from {
			break // appended since
		}
		if err := w.take(e); err != nil {
			return nil, err
		}
	}
	w.g.replay = false
	if w.g.head < from {
		return nil, &CorruptError{ID: s.header.ID, Seq: w.g.head, Err: fmt.Errorf("the log ends before its %d events", from)}
	}
	if err := w.whole(); err != nil {
		return nil, err
	}
	if !w.atRest() || !bytes.Equal(w.appendState(nil), told) {
		return nil, &CorruptError{ID: s.header.ID, Seq: -1, Err: fmt.Errorf("checkpoint %q says what does not follow from the log", cellResume)}
	}
	return w, nil
}

// warmLocked takes over the log that was read, with what was appended since.
func (s *Session) warmLocked(w *Session) {
	for _, e := range s.events {
		s.reg.types.complete(&e)
		w.apply(&e)
	}
	// A write that is under way has its own slice of them.
	s.lean += len(w.events)
	s.events, s.from = append(w.events, s.events...), w.from
	s.surf, s.hdr, s.reqCtx, s.cut = w.surf, w.hdr, w.reqCtx, w.cut
	// The values that were stored may be those of another build; these follow from the log.
	s.cells = w.cells
	s.cold = nil
}

// needLocked makes the events from seq on readable for a reader that has no error to
// return. It gives up the lock meanwhile, and reports whether they are.
func (s *Session) needLocked(seq int64) bool {
	if s.cold == nil || seq >= s.from {
		return true
	}
	s.mu.Unlock()
	err := s.Load(s.reg.ctx)
	s.mu.Lock()
	if err == nil {
		return true
	}
	if s.loseLocked(fmt.Errorf("session %s: its log was asked for and cannot be read: %w", s.header.ID, err)) {
		s.reg.cfg.Logger.Error("a log was asked for and cannot be read", "session", string(s.header.ID), "error", err)
	}
	return false
}

// readyLocked loads the log where drafts need it: what stands on the surface, and a turn,
// which leaves a cut. It gives up the lock meanwhile, and then reports it.
func (s *Session) readyLocked(drafts []Draft) (moved bool, err error) {
	if s.cold == nil || !slices.ContainsFunc(drafts, func(d Draft) bool { return needsLog(d.Payload) }) {
		return false, nil
	}
	s.mu.Unlock()
	err = s.Load(s.reg.ctx)
	s.mu.Lock()
	if err != nil {
		return true, fmt.Errorf("session %s: append: %w", s.header.ID, err)
	}
	return true, nil
}

func needsLog(p Payload) bool {
	switch p.(type) {
	case *TurnStart, *UserMessage, *AssistantMessage, *ToolResult:
		return true
	}
	return false
}

// tipLocked returns the last event; false of an empty log.
func (s *Session) tipLocked() (t tip, ok bool) {
	switch n := len(s.events); {
	case n > 0:
		e := &s.events[n-1]
		return tip{e.Type, e.Time}, true
	case s.cold != nil:
		return s.cold.last, true
	case s.g.head > 0:
		e := s.base.at(s.g.head-1, s.from, nil)
		return tip{e.Type, e.Time}, true
	}
	return tip{}, false
}
