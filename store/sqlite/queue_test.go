package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// Several appends that wait at the same time share one sync; one that is refused
// does not fail the others.
func TestGroupCommit(t *testing.T) {
	s := mustOpen(t, newPath(t), sqlite.Options{Heartbeat: time.Hour})
	const writers, steps = 32, 10
	ws := make([]session.Writer, writers)
	for i := range ws {
		ws[i] = create(t, s, session.ID(fmt.Sprintf("s%02d", i)), 1)
	}
	lone := s.Stats()
	if lone.Commits != writers || lone.Requests != writers {
		t.Fatalf("one after the other: %+v", lone)
	}
	var g sync.WaitGroup
	errs := make([]error, writers)
	for i, w := range ws {
		g.Go(func() {
			for n := range int64(steps) {
				if i == 0 { // always refused
					var c *session.ConflictError
					if err := w.Append(t.Context(), 7, events(7, 1, 0), nil); !errors.As(err, &c) {
						errs[i] = fmt.Errorf("refused append: %w", err)
					}
					continue
				}
				if err := w.Append(t.Context(), 1+n, events(1+n, 1, 0), nil); err != nil {
					errs[i] = err
				}
			}
		})
	}
	g.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	commits, requests := st.Commits-lone.Commits, st.Requests-lone.Requests
	t.Logf("%d steps of %d sessions in %d syncs", requests, writers, commits)
	if requests != writers*steps || commits > requests/2 {
		t.Errorf("%d requests took %d commits", requests, commits)
	}
	for i := 1; i < writers; i++ {
		if n := length(t, s, session.ID(fmt.Sprintf("s%02d", i))); n != 1+steps {
			t.Errorf("s%02d has %d events", i, n)
		}
	}
}

// Giving a session up and heartbeats need no sync of their own.
func TestUnsyncedWrites(t *testing.T) {
	s := mustOpen(t, newPath(t), sqlite.Options{Heartbeat: time.Hour})
	w := create(t, s, "s", 1)
	before := s.Stats()
	s.Age(12 * time.Second)
	if err := w.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := s.Stats()
	if after.Commits != before.Commits || after.Unsynced != before.Unsynced+2 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// queuedContext tells when its end is first waited for: the store does that once
// a request stands in the queue.
type queuedContext struct {
	context.Context
	once   sync.Once
	queued chan struct{}
}

func (c *queuedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.queued) })
	return c.Context.Done()
}

// A caller whose ctx ends while its request waits is let go, and the request is
// never run; one that was picked up runs to its end.
func TestCancelWhileWaiting(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{Heartbeat: time.Hour, BusyTimeout: time.Minute})
	w := create(t, s, "s", 1)
	v := create(t, s, "v", 1)
	// Another process holds the write lock, so the first append stands in the
	// middle of its transaction and the second waits in the queue.
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	picked, waiting := make(chan error, 1), make(chan error, 1)
	first := &queuedContext{Context: ctx, queued: make(chan struct{})}
	go func() { picked <- w.Append(first, 1, events(1, 1, 0), nil) }()
	<-first.queued
	for s.Waiting() > 0 { // until the worker has it
		runtime.Gosched()
	}
	second := &queuedContext{Context: ctx, queued: make(chan struct{})}
	go func() { waiting <- v.Append(second, 1, events(1, 1, 0), nil) }()
	<-second.queued
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("the waiting append: %v", err)
	}
	if _, err := lock.ExecContext(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lock.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-picked; err != nil {
		t.Errorf("the append that was picked up: %v", err)
	}
	if err := v.Append(t.Context(), 1, events(1, 1, 0), nil); err != nil {
		t.Errorf("the dropped append was stored: %v", err)
	}
}

// The heartbeat goes on while sessions are held, at its interval, and lets the
// owner's deadline never pass; an owner of nothing writes nothing. All
// goroutines end with the store, or the bubble would say so.
func TestHeartbeat(t *testing.T) {
	path := newPath(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{Synchronous: sqlite.Normal})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if st := s.Stats(); st != (sqlite.Stats{}) {
			t.Errorf("an owner of nothing wrote: %+v", st)
		}
		w := create(t, s, "s", 1)
		o, err := sqlite.Open(t.Context(), path, sqlite.Options{Synchronous: sqlite.Normal})
		if err != nil {
			t.Fatal(err)
		}
		before := s.Stats()
		for range 30 {
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if age := time.Since(s.Owner().Heartbeat); age > 8*time.Second {
				t.Fatalf("the heartbeat is %v old", age)
			}
			if err := w.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Stats().Unsynced - before.Unsynced; n < 6 || n > 13 {
			t.Errorf("%d heartbeats in a minute", n)
		}
		var owned *session.OwnedError
		if _, err := o.Open(t.Context(), "s"); !errors.As(err, &owned) {
			t.Errorf("open by another: %v", err)
		}
		if err := errors.Join(s.Close(t.Context()), o.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}

// An owner past its deadline that cannot renew is told so, and goes on once it can.
func TestCheckFailsWhenItCannotRenew(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{Heartbeat: time.Hour, BusyTimeout: 10 * time.Millisecond})
	w := create(t, s, "s", 1)
	raw(t, path, func(db *sql.DB) error {
		lock, err := db.Conn(t.Context())
		if err != nil {
			return err
		}
		if _, err := lock.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
			return err
		}
		if err := w.Check(t.Context()); err != nil {
			t.Errorf("check before the deadline: %v", err)
		}
		s.Age(12 * time.Second)
		if err := w.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "locked by another process") {
			t.Errorf("check past the deadline: %v", err)
		}
		_, err = lock.ExecContext(t.Context(), "COMMIT")
		return errors.Join(err, lock.Close())
	})
	if err := w.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
