package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// Writer is the one writer of a session. It is safe for concurrent use.
type Writer struct {
	s     *Store
	r     *row
	id    session.ID
	epoch int64

	// The backend's mutex guards these.
	fenced bool
	closed bool
}

// begin takes the mutex for a call, unless the call is moot.
func (w *Writer) begin(ctx context.Context) error {
	if err := w.s.begin(ctx); err != nil {
		return err
	}
	var err error
	switch {
	case w.fenced:
		err = &session.FencedError{ID: w.id}
	case w.closed:
		err = fmt.Errorf("session %s: writer: %w", w.id, session.ErrClosed)
	}
	if err != nil {
		w.s.b.mu.Unlock()
	}
	return err
}

// Append implements session.Writer (core D21).
func (w *Writer) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if err := contiguous(w.id, head, events); err != nil {
		return err
	}
	if err := w.begin(ctx); err != nil {
		return err
	}
	defer w.s.b.mu.Unlock()
	if w.r.writer != w || w.r.epoch != w.epoch {
		w.fenced = true
		return &session.FencedError{ID: w.id}
	}
	if now := w.r.head(); now != head {
		return &session.ConflictError{ID: w.id, Want: head, Head: now}
	}
	w.r.add(events)
	if len(events) > 0 {
		w.r.updated = w.s.now().UnixMilli()
	}
	w.r.put(cells)
	return nil
}

// Head implements session.Writer.
func (w *Writer) Head(ctx context.Context) (int64, error) {
	if err := w.s.begin(ctx); err != nil {
		return 0, err
	}
	defer w.s.b.mu.Unlock()
	switch {
	case w.closed:
		return 0, fmt.Errorf("session %s: writer: %w", w.id, session.ErrClosed)
	case w.s.b.sessions[w.id] != w.r:
		return 0, fmt.Errorf("read the head of session %s: %w", w.id, session.ErrNotFound)
	}
	return w.r.head(), nil
}

// Check implements session.Writer.
func (w *Writer) Check(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	defer w.s.b.mu.Unlock()
	if now := w.s.now(); !w.s.owning(now) {
		w.s.beat = time.Time{} // renewed; the epochs were never out of sight
	}
	return nil
}

// Discard implements session.Writer.
func (w *Writer) Discard(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	defer w.s.b.mu.Unlock()
	switch {
	case w.r.writer != w || w.r.epoch != w.epoch:
		w.fenced = true
		return &session.FencedError{ID: w.id}
	case w.r.referrers > 0:
		return fmt.Errorf("discard session %s: %w: it is the prefix of another", w.id, session.ErrInUse)
	case len(w.s.b.children[w.id]) > 0:
		return fmt.Errorf("discard session %s: %w: it has children", w.id, session.ErrInUse)
	}
	w.closed = true
	w.r.release()
	w.s.b.remove(w.r)
	return nil
}

// Close implements session.Writer.
func (w *Writer) Close(context.Context) error {
	w.s.b.mu.Lock()
	defer w.s.b.mu.Unlock()
	if w.closed || w.s.closed {
		return nil
	}
	w.closed = true
	if w.r.writer == w {
		w.r.release()
	}
	return nil
}

var _ session.Writer = (*Writer)(nil)
