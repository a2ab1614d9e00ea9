package scenario_test

import (
	"context"
	"iter"
	"path/filepath"
	"sync"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// faults are what a story makes go wrong in logs and stores.
type faults struct {
	mu     sync.Mutex // guards following
	refuse map[session.Type]error
	write  error         // what the store says to every write about a subagent
	gate   chan struct{} // where writes wait, if not nil

	subs map[session.ID]bool // the sessions of subagents that were created

	read     map[session.ID]error // what the store says once to who reads a log
	readGate chan struct{}        // where readers of logs wait, if not nil
	readers  int                  // how many logs are being read
	reads    int                  // how many were read since they were counted last
}

// reading is called before a log is read, and what it returns behind it.
func (f *faults) reading(ctx context.Context, id session.ID) (done func(), err error) {
	f.mu.Lock()
	gate := f.readGate
	f.readers++
	f.reads++
	err = f.read[id]
	delete(f.read, id)
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return func() { f.set(func(f *faults) { f.readers-- }) }, err
}

// validate is the session.Validator of every story. It concerns subagents alone.
func (f *faults) validate(h *session.Header, e session.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.Origin != session.OriginSubagent {
		return nil
	}
	return f.refuse[e.Type]
}

// store is the story's store: one of ours, with faults.
type store struct {
	session.Store
	faults *faults
}

func (f *faults) writing(ctx context.Context, subagent bool) error {
	f.mu.Lock()
	err, gate := f.write, f.gate
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if subagent {
		return err
	}
	return nil
}

// Create implements session.Store.
func (s *store) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	sub := h.Origin == session.OriginSubagent
	if err := s.faults.writing(ctx, sub); err != nil {
		return nil, err
	}
	w, err := s.Store.Create(ctx, h, m, first, cells)
	if sub && err == nil {
		s.faults.set(func(f *faults) {
			if f.subs == nil {
				f.subs = map[session.ID]bool{}
			}
			f.subs[h.ID] = true
		})
	}
	return s.wrap(w, sub), err
}

// Open implements session.Store.
func (s *store) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	w, err := s.Store.Open(ctx, id)
	sub := false
	s.faults.set(func(f *faults) { sub = f.subs[id] })
	return s.wrap(w, sub), err
}

// Inspect implements session.Store.
func (s *store) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	done, err := s.faults.reading(ctx, id)
	defer done()
	if err != nil {
		return session.Record{}, nil, err
	}
	return s.Store.Inspect(ctx, id)
}

func (s *store) wrap(w session.Writer, subagent bool) session.Writer {
	if w == nil {
		return nil
	}
	return &writer{w, s.faults, subagent}
}

type writer struct {
	session.Writer
	faults   *faults
	subagent bool
}

// Append implements session.Writer.
func (w *writer) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if err := w.faults.writing(ctx, w.subagent); err != nil {
		return err
	}
	return w.Writer.Append(ctx, head, events, cells)
}

// openStore opens the store that the story asked for, as another process would if it
// was open before.
func (w *world) openStore() session.Store {
	w.t.Helper()
	var s session.Store
	switch w.storeKind {
	case "":
		return nil
	case "memory":
		if w.backend == nil {
			w.backend = memory.NewBackend()
		}
		s = w.backend.Open()
	case "sqlite":
		if w.file == "" {
			w.file = filepath.Join(w.t.TempDir(), "story.db")
		}
		db, err := sqlite.Open(context.WithoutCancel(w.t.Context()), w.file, sqlite.Options{})
		w.check(err)
		s = db
	}
	// Registered before the system's own, so that it is closed behind it.
	w.t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(w.t.Context())); err != nil {
			w.t.Errorf("close the store: %v", err)
		}
	})
	w.inner = s
	return &store{s, &w.faults}
}

var (
	_ session.Store  = (*store)(nil)
	_ session.Writer = (*writer)(nil)
)
