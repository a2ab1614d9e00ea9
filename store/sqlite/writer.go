package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/session"
)

// Writer is the one writer of a session. It is safe for concurrent use.
type Writer struct {
	s     *Store
	id    session.ID
	num   int64
	epoch int64

	fenced atomic.Bool
	closed atomic.Bool
	given  atomic.Bool            // Close was called: nothing of it is left but the row's owner, which the store gives up
	lost   atomic.Pointer[func()] // told once, when the session was taken over
	mu     sync.Mutex             // held by Close and Discard; no other method takes it
}

// usable returns why nothing can be written any more, or nil.
func (w *Writer) usable() error {
	if w.fenced.Load() {
		return &session.FencedError{ID: w.id}
	}
	if w.given.Load() || w.closed.Load() || w.s.closed.Load() {
		return fmt.Errorf("session %s: writer: %w", w.id, session.ErrClosed)
	}
	return nil
}

// OnLost implements session.LossNotifier.
func (w *Writer) OnLost(fn func()) {
	w.lost.Store(&fn)
	if w.fenced.Load() {
		w.fence()
	}
}

// fence notes that another owner has the session.
func (w *Writer) fence() {
	w.fenced.Store(true)
	if fn := w.lost.Swap(nil); fn != nil {
		(*fn)()
	}
}

// Append implements session.Writer (core D21).
func (w *Writer) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if err := w.usable(); err != nil {
		return err
	}
	if err := contiguous(w.id, head, events); err != nil {
		return err
	}
	op := &appendOp{w: w, head: head, count: int64(len(events)), events: encodeRows(events), cells: splitCells(cells, head+int64(len(events)))}
	return w.s.submit(ctx, w.name("append to"), &request{op: op, durable: true})
}

// Head implements session.Writer.
func (w *Writer) Head(ctx context.Context) (int64, error) {
	if w.closed.Load() {
		return 0, fmt.Errorf("session %s: writer: %w", w.id, session.ErrClosed)
	}
	return w.s.head(ctx, w.id, w.num)
}

// Check implements session.Writer.
func (w *Writer) Check(ctx context.Context) error {
	if err := w.usable(); err != nil {
		return err
	}
	return w.s.check(ctx, w)
}

// Discard implements session.Writer.
func (w *Writer) Discard(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usable(); err != nil {
		return err
	}
	return w.s.submit(ctx, w.name("discard"), &request{op: &discardOp{w: w}, durable: true})
}

// Close implements session.Writer. The end of ctx does not keep it from giving
// the session up. If that fails, Close may be called again, and the store goes on
// trying with its heartbeats.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		return nil
	}
	w.given.Store(true)
	err := w.s.submit(context.WithoutCancel(ctx), w.name("close"), &request{op: &closeOp{w: w}})
	if errors.Is(err, session.ErrClosed) {
		err = nil // the store gave everything up when it was closed
	}
	if err == nil {
		w.closed.Store(true)
	}
	return err
}

func (w *Writer) name(op string) string { return op + " session " + string(w.id) }

// contiguous checks that events follow on first.
func contiguous(id session.ID, first int64, events []session.Event) error {
	for i := range events {
		if want := first + int64(i); events[i].Seq != want {
			return fmt.Errorf("session %s: events to store are not contiguous: seq %d where %d was due", id, events[i].Seq, want)
		}
	}
	return nil
}

var (
	_ session.Writer       = (*Writer)(nil)
	_ session.LossNotifier = (*Writer)(nil)
)
