package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// A process that was thought dead learns of the take-over from its own heartbeat:
// the live session is told, so that its tree is cancelled although it appends
// nothing just then (design, Ownership).
func TestHeartbeatTellsOfATakeOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	var ahead atomic.Int64
	open := func(shift *atomic.Int64) *sqlite.Store {
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{Synchronous: sqlite.Normal, Heartbeat: 20 * time.Millisecond, Now: func() time.Time {
			now := time.Now()
			if shift != nil {
				now = now.Add(time.Duration(shift.Load()))
			}
			return now
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	paused := open(nil)
	fenced := make(chan *session.Session, 1)
	reg, err := session.NewRegistry(t.Context(), session.Config{Store: paused})
	if err != nil {
		t.Fatal(err)
	}
	reg.AddHooks(session.Hooks{Fenced: func(s *session.Session) { fenced <- s }})
	s, err := reg.Prepare(t.Context(), session.New{Cwd: "/"})
	if err != nil {
		t.Fatal(err)
	}
	detach, err := reg.Enter(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(session.Draft{Payload: &session.TurnStart{Turn: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}

	ahead.Store(int64(time.Hour)) // for the taker the owner's heartbeat is long past
	if _, err := open(&ahead).Open(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	if got := <-fenced; got != s {
		t.Errorf("told of session %s", got.ID())
	}
	var lost *session.FencedError
	if err := s.CheckOwner(t.Context()); !errors.As(err, &lost) {
		t.Errorf("the owner's check says %v", err)
	}
	if err := detach(t.Context()); err != nil {
		t.Error(err)
	}
}

// Closed by the last process, the file alone is the whole store: a copy of it
// lacks nothing.
func TestCloseFoldsTheLogIn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, path, sqlite.Options{})
	reg, err := session.NewRegistry(t.Context(), session.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	live, err := reg.Prepare(t.Context(), session.New{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	detach, err := reg.Enter(live)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := live.Append(session.Draft{Payload: &session.TurnStart{Turn: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(detach(t.Context()), s.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if rec, _, err := mustOpen(t, copied, sqlite.Options{}).Inspect(t.Context(), "a"); err != nil || rec.Head != 1 {
		t.Errorf("the copy holds %d events, error %v", rec.Head, err)
	}
}

// QuickCheck tells a sound file from a damaged one.
func TestQuickCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, path, sqlite.Options{})
	if err := s.QuickCheck(t.Context()); err != nil {
		t.Errorf("a new file: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 2 * 4096; i < 3*4096 && i < len(data); i++ {
		data[i] = 0xAA
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := sqlite.OpenReadOnly(t.Context(), path, sqlite.Options{})
	if err != nil {
		return // refused at once: just as good
	}
	if err := damaged.QuickCheck(t.Context()); err == nil {
		t.Error("the damage was not seen")
	}
	if err := damaged.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
