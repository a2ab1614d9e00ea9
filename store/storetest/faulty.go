package storetest

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/offshoot-dev/offshoot/session"
)

// Op is an operation of a store or of one of its writers.
type Op string

// The operations of a Faulty that something can go wrong at. OpEvents is the
// reading of a log that Inspect or ReadFrom returned; OpRelease is Writer.Close.
const (
	OpCreate  Op = "create"
	OpOpen    Op = "open"
	OpInspect Op = "inspect"
	OpEvents  Op = "events"
	OpExists  Op = "exists"
	OpList    Op = "list"
	OpDelete  Op = "delete"
	OpAppend  Op = "append"
	OpHead    Op = "head"
	OpCheck   Op = "check"
	OpDiscard Op = "discard"
	OpRelease Op = "release"
)

// Writes reports whether the operation changes what is stored, so that it can fail
// with an outcome that nobody knows.
func (o Op) Writes() bool {
	switch o {
	case OpCreate, OpOpen, OpDelete, OpAppend, OpDiscard, OpRelease:
		return true
	}
	return false
}

// Point is one operation on its way to the store.
type Point struct {
	Op Op
	// N is how many operations came before, whatever their kind.
	N  int
	ID session.ID // "" for List
}

func (p Point) String() string { return fmt.Sprintf("%s %s (operation %d)", p.Op, p.ID, p.N) }

// Fault is what happens at a point; the zero value is nothing.
type Fault struct {
	// Wait runs first, with the operation's ctx: it blocks, is slow, ends contexts.
	Wait func(ctx context.Context)
	// After says that the operation takes effect before Then, Panic and Err: its
	// outcome is unknown to the caller. A log that is read then ends half-way.
	After bool
	// Then runs when the operation has had its effect.
	Then func()
	// Panic, if not nil, is what the operation panics with; Err what it returns.
	Panic any
	Err   error
}

// Faulty is a store that fails as it is told to, over one that works. It keeps the
// promises that a store makes of failures: ownership that a failed operation left
// behind is given up by itself (Settle), and an Open in this process does not trip
// over it. It is safe for concurrent use.
type Faulty struct {
	session.Store // the one that works

	mu     sync.Mutex // guards following
	plan   func(Point) Fault
	points []Point
	loose  map[session.ID]session.Writer
}

// NewFaulty returns a Faulty over a store, without faults.
func NewFaulty(s session.Store) *Faulty {
	return &Faulty{Store: s, loose: map[session.ID]session.Writer{}}
}

// Plan replaces what goes wrong from now on; nil is nothing. fn is called once for
// each operation, in their order, and under no lock of the store's. The operations
// are counted anew.
func (f *Faulty) Plan(fn func(Point) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan, f.points = fn, nil
}

// Points returns the operations since the last Plan.
func (f *Faulty) Points() []Point {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Point(nil), f.points...)
}

// Settle gives up what failed operations left owned.
func (f *Faulty) Settle(ctx context.Context) error {
	f.mu.Lock()
	loose := f.loose
	f.loose = map[session.ID]session.Writer{}
	f.mu.Unlock()
	for id, w := range loose {
		if err := w.Close(ctx); err != nil {
			return fmt.Errorf("give up session %s: %w", id, err)
		}
	}
	return nil
}

func (f *Faulty) leave(id session.ID, w session.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loose[id] = w
}

func (f *Faulty) recover(ctx context.Context, id session.ID) error {
	f.mu.Lock()
	w := f.loose[id]
	delete(f.loose, id)
	f.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.Close(context.WithoutCancel(ctx))
}

func (f *Faulty) meet(op Op, id session.ID) Fault {
	f.mu.Lock()
	p := Point{Op: op, N: len(f.points), ID: id}
	f.points = append(f.points, p)
	plan := f.plan
	f.mu.Unlock()
	if plan == nil {
		return Fault{}
	}
	return plan(p)
}

// do runs an operation with its fault. undo is called when it had its effect and
// the caller does not learn of it.
func (f *Faulty) do(ctx context.Context, op Op, id session.ID, fn func() error, undo func()) error {
	fault := f.meet(op, id)
	if fault.Wait != nil {
		fault.Wait(ctx)
	}
	if !fault.After && fault.Panic != nil {
		panic(fault.Panic)
	}
	if !fault.After && fault.Err != nil {
		return fault.Err
	}
	if err := fn(); err != nil {
		return err
	}
	if undo != nil && (fault.Panic != nil || fault.Err != nil) {
		undo()
	}
	if fault.Then != nil {
		fault.Then()
	}
	if fault.Panic != nil {
		panic(fault.Panic)
	}
	return fault.Err
}

// Create implements session.Store.
func (f *Faulty) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	var w session.Writer
	err := f.do(ctx, OpCreate, h.ID, func() (err error) {
		w, err = f.Store.Create(ctx, h, m, first, cells)
		return err
	}, func() { f.leave(h.ID, w) })
	if err != nil {
		return nil, err
	}
	return &faultyWriter{Writer: w, f: f, id: h.ID}, nil
}

// Open implements session.Store.
func (f *Faulty) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	var w session.Writer
	err := f.do(ctx, OpOpen, id, func() (err error) {
		if err := f.recover(ctx, id); err != nil {
			return err
		}
		w, err = f.Store.Open(ctx, id)
		return err
	}, func() { f.leave(id, w) })
	if err != nil {
		return nil, err
	}
	return &faultyWriter{Writer: w, f: f, id: id}, nil
}

// Inspect implements session.Store.
func (f *Faulty) Inspect(ctx context.Context, id session.ID) (rec session.Record, events iter.Seq2[session.Event, error], err error) {
	err = f.do(ctx, OpInspect, id, func() (err error) {
		rec, events, err = f.Store.Inspect(ctx, id)
		return err
	}, nil)
	if err != nil {
		return session.Record{}, nil, err
	}
	return rec, f.events(ctx, id, events), nil
}

// ReadFrom implements session.Store.
func (f *Faulty) ReadFrom(ctx context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	return f.events(ctx, id, f.Store.ReadFrom(ctx, id, seq))
}

func (f *Faulty) events(ctx context.Context, id session.ID, events iter.Seq2[session.Event, error]) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		fault := f.meet(OpEvents, id)
		if fault.Wait != nil {
			fault.Wait(ctx)
		}
		fail := func() {
			if fault.Panic != nil {
				panic(fault.Panic)
			}
			if fault.Err != nil {
				yield(session.Event{}, fault.Err)
			}
		}
		faulty := fault.Panic != nil || fault.Err != nil
		if faulty && !fault.After {
			fail()
			return
		}
		n := 0
		for e, err := range events {
			if !yield(e, err) {
				return
			}
			if n++; n == 2 && faulty {
				fail()
				return
			}
		}
		if fault.Then != nil {
			fault.Then()
		}
		fail()
	}
}

// Exists implements session.Store.
func (f *Faulty) Exists(ctx context.Context, id session.ID) (found bool, err error) {
	err = f.do(ctx, OpExists, id, func() (err error) {
		found, err = f.Store.Exists(ctx, id)
		return err
	}, nil)
	return found, err
}

// List implements session.Store.
func (f *Faulty) List(ctx context.Context, filter session.Filter, p session.Page) (l session.Listing, err error) {
	err = f.do(ctx, OpList, "", func() (err error) {
		l, err = f.Store.List(ctx, filter, p)
		return err
	}, nil)
	return l, err
}

// Delete implements session.Store.
func (f *Faulty) Delete(ctx context.Context, id session.ID) error {
	return f.do(ctx, OpDelete, id, func() error {
		if err := f.Settle(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		return f.Store.Delete(ctx, id)
	}, nil)
}

type faultyWriter struct {
	session.Writer
	f  *Faulty
	id session.ID
}

func (w *faultyWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	return w.f.do(ctx, OpAppend, w.id, func() error { return w.Writer.Append(ctx, head, events, cells) }, nil)
}

func (w *faultyWriter) Head(ctx context.Context) (head int64, err error) {
	err = w.f.do(ctx, OpHead, w.id, func() (err error) {
		head, err = w.Writer.Head(ctx)
		return err
	}, nil)
	return head, err
}

func (w *faultyWriter) Check(ctx context.Context) error {
	return w.f.do(ctx, OpCheck, w.id, func() error { return w.Writer.Check(ctx) }, nil)
}

func (w *faultyWriter) Discard(ctx context.Context) error {
	return w.f.do(ctx, OpDiscard, w.id, func() error { return w.Writer.Discard(ctx) }, nil)
}

func (w *faultyWriter) Close(ctx context.Context) (err error) {
	given := false
	defer func() {
		if !given {
			w.f.leave(w.id, w.Writer)
		}
	}()
	return w.f.do(ctx, OpRelease, w.id, func() error {
		err := w.Writer.Close(ctx)
		given = err == nil
		return err
	}, nil)
}

// OnLost implements session.LossNotifier where the store below does.
func (w *faultyWriter) OnLost(fn func()) {
	if n, ok := w.Writer.(session.LossNotifier); ok {
		n.OnLost(fn)
	}
}

var (
	_ session.Store        = (*Faulty)(nil)
	_ session.LossNotifier = (*faultyWriter)(nil)
)
