package sqlite_test

import (
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// stuck returns a store that owns session "s", whose writer was closed in vain; told
// counts how often that writer was told of a loss.
func stuck(t *testing.T, path string) (s *sqlite.Store, w session.Writer, told *atomic.Int64) {
	t.Helper()
	s = mustOpen(t, path, sqlite.Options{Synchronous: sqlite.Normal, Heartbeat: time.Hour, BusyTimeout: 10 * time.Millisecond})
	w, told = create(t, s, "s", 1), &atomic.Int64{}
	w.(session.LossNotifier).OnLost(func() { told.Add(1) })
	raw(t, path, func(db *sql.DB) error {
		lock, err := db.Conn(t.Context())
		if err != nil {
			return err
		}
		if _, err := lock.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
			return err
		}
		if err := w.Close(t.Context()); err == nil {
			t.Error("closed, although nothing could be written")
		}
		_, err = lock.ExecContext(t.Context(), "ROLLBACK")
		return errors.Join(err, lock.Close())
	})
	if err := w.Append(t.Context(), 1, events(1, 1, 0), nil); !errors.Is(err, session.ErrClosed) {
		t.Errorf("append behind a close that failed: %v", err)
	}
	return s, w, told
}

// beat has the next transaction renew the owner row, and makes one.
func beat(t *testing.T, s *sqlite.Store, id session.ID) {
	t.Helper()
	s.Age(8 * time.Second)
	create(t, s, id, 1)
}

// closed checks that a writer that was closed in vain is closed, and was told nothing.
func closed(t *testing.T, w session.Writer, told *atomic.Int64) {
	t.Helper()
	if _, err := w.Head(t.Context()); !errors.Is(err, session.ErrClosed) {
		t.Errorf("the writer is not closed: %v", err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Errorf("close again: %v", err)
	}
	if n := told.Load(); n != 0 {
		t.Errorf("a writer that was closed was told %d times that it lost its session", n)
	}
}

// A session that could not be given up is given up by a later heartbeat, so that another
// process can have it while this one lives (D20).
func TestCloseFailsAndTheHeartbeatReleases(t *testing.T) {
	path := newPath(t)
	s, w, told := stuck(t, path)
	other := mustOpen(t, path, normal)
	var owned *session.OwnedError
	if _, err := other.Open(t.Context(), "s"); !errors.As(err, &owned) {
		t.Fatalf("open before the heartbeat: %v", err)
	}
	beat(t, s, "t")
	taken, err := other.Open(t.Context(), "s")
	if err != nil {
		t.Fatalf("open behind the heartbeat: %v", err)
	}
	closed(t, w, told)
	if err := taken.Append(t.Context(), 1, events(1, 1, 0), nil); err != nil {
		t.Error(err)
	}
	// Only that one was given up.
	if _, err := other.Open(t.Context(), "t"); !errors.As(err, &owned) {
		t.Errorf("open of a session that is at work: %v", err)
	}
}

// This process can have such a session again at once; the writer from before has ended
// by its close, and not because somebody took its session.
func TestCloseFailsAndTheSessionIsOpenedAgain(t *testing.T) {
	s, w, told := stuck(t, newPath(t))
	again, err := s.Open(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	closed(t, w, told)
	beat(t, s, "t")
	if err := again.Append(t.Context(), 1, events(1, 1, 0), nil); err != nil {
		t.Errorf("the new writer: %v", err)
	}
	if n := told.Load(); n != 0 {
		t.Errorf("told %d times", n)
	}
}

// Such a session can be deleted; nothing of its writer is left behind.
func TestCloseFailsAndTheSessionIsDeleted(t *testing.T) {
	s, w, told := stuck(t, newPath(t))
	if err := s.Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	closed(t, w, told)
	beat(t, s, "t") // may have the row's number
	if n := told.Load(); n != 0 {
		t.Errorf("told %d times", n)
	}
}
