package session

import (
	"context"
	"errors"
	"fmt"
)

// Withdraw takes a session back whose creation failed after its deferral had ended:
// what it would have stored is dropped for good, and if it has a row already, or may
// have one, that is deleted (design § 4, Accepted means durable; seam RB-19). It
// waits for a write that is under way; the end of ctx has no effect, since what was
// begun must not be left half done. Of a session that has left the registry already the
// row is taken once more to be deleted, if it is still that of this session. It is
// called from no hook.
//
// From the call on nothing of the session is stored, by whatever it is asked for:
// FlushTo returns ErrWithdrawn, and so does CheckOwner, so that no turn of it goes
// on; Flush has nothing to store and returns nil. Events can still be appended, in
// memory. Detaching it stores nothing.
//
// An error says that a row of the session may be left; a further call tries again.
// It wraps ErrInUse if another session has it as its prefix or is stored as its
// child, and *FencedError if another process took the session over. A session that
// was stored before this process prepared it is no failed creation: ErrExists, and
// nothing has happened. Without a store there is nothing to be deleted.
func (s *Session) Withdraw(ctx context.Context) error {
	s.mu.Lock()
	if s.resumed {
		s.mu.Unlock()
		return fmt.Errorf("session %s: it was stored before, and is not withdrawn: %w", s.header.ID, ErrExists)
	}
	s.withdrawn = true
	s.disarmLocked()
	s.broadcast()
	s.idleLocked()
	w := s.writer
	if w == nil && !s.uncertain {
		s.mu.Unlock()
		return nil
	}
	s.writing, s.wrote = true, make(chan struct{})
	s.mu.Unlock()

	w, err := s.unstore(context.WithoutCancel(ctx), w)

	s.mu.Lock()
	s.writer = w
	if err == nil {
		s.uncertain = false
	}
	var fenced *FencedError
	lost := asError(err, &fenced) && s.loseLocked(err)
	s.mu.Unlock()
	if lost {
		s.reg.hooks.fenced(s)
	}
	s.mu.Lock()
	s.writing = false
	close(s.wrote)
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("session %s: it was withdrawn, but a row of it may be left in the store: %w", s.header.ID, err)
	}
	return nil
}

// unstore deletes the session's row. It returns the writer that still holds it, or nil.
func (s *Session) unstore(ctx context.Context, w Writer) (_ Writer, err error) {
	if w == nil {
		if w, err = s.adopt(ctx); w == nil {
			return nil, err
		}
	}
	err = contain("store", func() error { return w.Discard(ctx) })
	if errors.Is(err, ErrClosed) {
		// The session has left, and its writer with it.
		return nil, s.retake(ctx)
	}
	if err == nil {
		return nil, nil
	}
	// Whatever failed: this attempt may have succeeded, or an earlier one.
	stored, readErr := s.stored(ctx)
	if readErr != nil || stored {
		return w, errors.Join(err, readErr)
	}
	// It is gone, and with it what the writer held. What that says of its own end
	// leaves no row.
	if err := contain("store", func() error { return w.Close(ctx) }); err != nil {
		s.reg.cfg.Logger.Warn("the writer of a withdrawn session was not closed", "session", string(s.header.ID), "error", err)
	}
	return nil, nil
}

// retake deletes the row that a closed writer has left.
func (s *Session) retake(ctx context.Context) error {
	w, err := s.adopt(ctx)
	if w == nil {
		return err
	}
	if err = contain("store", func() error { return w.Discard(ctx) }); err == nil {
		return nil
	}
	return errors.Join(err, contain("store", func() error { return w.Close(ctx) }))
}

// adopt opens the row that a creation of unknown outcome left; nil without an error
// says that there is none.
func (s *Session) adopt(ctx context.Context) (w Writer, err error) {
	found, err := s.stored(ctx)
	if err != nil || !found {
		return nil, err
	}
	err = contain("store", func() (err error) {
		w, err = s.reg.cfg.Store.Open(ctx, s.header.ID)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return w, err
}

// stored reports whether the store holds this very session. One that somebody else
// made under the same id is not to be touched.
func (s *Session) stored(ctx context.Context) (found bool, err error) {
	err = contain("store", func() (err error) {
		// It settles an unknown outcome, which Inspect does not.
		if found, err = s.reg.cfg.Store.Exists(ctx, s.header.ID); err != nil || !found {
			return err
		}
		rec, _, err := s.reg.cfg.Store.Inspect(ctx, s.header.ID)
		if errors.Is(err, ErrNotFound) {
			found, err = false, nil
		}
		found = found && (err != nil || rec.Header == s.header)
		return err
	})
	return found, err
}
