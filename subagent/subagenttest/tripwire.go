package subagenttest

import (
	"context"
	"sync"
)

// Tripwire is a context that ends when somebody looks at it for the nth time: to
// cancel at every place where an operation could notice, count n up from 1 until
// the operation is over before it trips.
type Tripwire struct {
	context.Context
	cancel context.CancelCauseFunc
	cause  error

	mu   sync.Mutex // guards left
	left int
}

// NewTripwire returns a context that ends with cause at its nth look.
func NewTripwire(ctx context.Context, n int, cause error) *Tripwire {
	w := &Tripwire{left: n, cause: cause}
	w.Context, w.cancel = context.WithCancelCause(ctx)
	return w
}

func (w *Tripwire) look() {
	w.mu.Lock()
	w.left--
	trip := w.left == 0
	w.mu.Unlock()
	if trip {
		w.cancel(w.cause)
	}
}

// Tripped reports whether it has ended so.
func (w *Tripwire) Tripped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left <= 0
}

// Done implements context.Context.
func (w *Tripwire) Done() <-chan struct{} { w.look(); return w.Context.Done() }

// Err implements context.Context.
func (w *Tripwire) Err() error { w.look(); return w.Context.Err() }

// Value implements context.Context. It counts as a look, since context.Cause asks
// for a value.
func (w *Tripwire) Value(key any) any { w.look(); return w.Context.Value(key) }
