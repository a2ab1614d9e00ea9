package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// mount mounts a small file system in memory for the test.
func mount(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("mounting a small tmpfs needs privileges that are missing here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func wantLine(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: error %q, want one line with %q", what, err, want)
	}
}

// On a full disk an append fails clearly and stores nothing; what was
// acknowledged stays, and the session goes on once there is room.
func TestFullDisk(t *testing.T) {
	dir := mount(t, "size=2m")
	s := mustOpen(t, filepath.Join(dir, "s.db"), sqlite.Options{})
	w := create(t, s, "s", 1)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	head := int64(1)
	var err error
	for err == nil {
		if err = w.Append(t.Context(), head, events(head, 4, 8000), nil); err == nil {
			head += 4
		}
	}
	wantLine(t, "append", err, "append to session s: store "+s.Path()+": the disk is full")
	if got, err := w.Head(t.Context()); err != nil || got != head {
		t.Fatalf("head is %d, %v; %d were acknowledged", got, err, head)
	}
	if n := length(t, s, "s"); n != head {
		t.Fatalf("%d events, %d were acknowledged", n, head)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), head, events(head, 4, 8000), nil); err != nil {
		t.Fatalf("append when there is room again: %v", err)
	}
}

// What does not fit fails alone, although it shares a transaction with others.
func TestFullDiskFailsOnlyTheBigOne(t *testing.T) {
	dir := mount(t, "size=3m")
	s := mustOpen(t, filepath.Join(dir, "s.db"), sqlite.Options{})
	big, small := create(t, s, "big", 1), create(t, s, "small", 1)
	for i := range int64(8) {
		done := make(chan error, 1)
		go func() { done <- big.Append(t.Context(), 1, events(1, 1, 8<<20), nil) }()
		if err := small.Append(t.Context(), 1+i, events(1+i, 1, 0), nil); err != nil {
			t.Fatalf("the small append: %v", err)
		}
		wantLine(t, "the big append", <-done, "the disk is full")
	}
	if n := length(t, s, "small"); n != 9 {
		t.Errorf("%d events", n)
	}
	if n := length(t, s, "big"); n != 1 {
		t.Errorf("%d events", n)
	}
}

// A disk that is full from the start leaves nothing half-made behind.
func TestFullDiskAtCreation(t *testing.T) {
	dir := mount(t, "size=16k")
	path := filepath.Join(dir, "s.db")
	_, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	wantLine(t, "open", err, "the disk is full")
}

// A home on a read-only file system: writing is refused in one line; reading
// works where the engine can, and says so where it cannot.
func TestReadOnlyFileSystem(t *testing.T) {
	dir := mount(t, "size=8m")
	path := filepath.Join(dir, "s.db")
	s := mustOpen(t, path, normal)
	create(t, s, "s", 1)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("remounting needs privileges that are missing here: %v", err)
	}
	_, err := sqlite.Open(t.Context(), path, normal)
	wantLine(t, "open", err, "read-only")
	_, err = sqlite.Open(t.Context(), filepath.Join(dir, "new", "s.db"), normal)
	wantLine(t, "open a new store", err, "the file system is read-only")
	// The companions lie beside the file, so the engine has nothing to make.
	ro, err := sqlite.OpenReadOnly(t.Context(), path, normal)
	if err != nil {
		t.Fatal(err)
	}
	if n := length(t, ro, "s"); n != 1 {
		t.Errorf("%d events", n)
	}
	if err := ro.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// The owner may be a process of another PID namespace or boot: then only the
// heartbeat counts. One of this host that is a zombie, or whose number was given
// to another process, is dead at once, whatever its heartbeat says.
func TestLiveness(t *testing.T) {
	for _, tt := range []struct {
		name, set string
		dead      bool
	}{
		{"this process", `pid=pid`, false},
		{"another start time", `started='1'`, true},
		{"no such process", `pid=1073741823`, true},
		{"elsewhere, fresh", `host='other', pid=1073741823`, false},
		{"elsewhere, old", `host='other', heartbeat=heartbeat-16000`, true},
		{"here, old", `uptime=uptime-16000`, true},
		{"here, not old enough", `uptime=uptime-9000`, false},
		{"here, the clock went forward", `heartbeat=heartbeat-7200000`, false},
		{"here, the clock went back", `heartbeat=heartbeat+7200000`, false},
		{"here, of an older build, old", `uptime=0, heartbeat=heartbeat-16000`, true},
		{"here, of an older build, not old enough", `uptime=0, heartbeat=heartbeat-9000`, false},
		{"elsewhere, the clock went back", `host='other', heartbeat=heartbeat+60000`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := newPath(t)
			create(t, mustOpen(t, path, normal), "s", 1)
			s := mustOpen(t, path, normal)
			change(t, path, `UPDATE owners SET `+tt.set)
			rec, _, err := s.Inspect(t.Context(), "s")
			if err != nil || rec.Live == tt.dead {
				t.Errorf("live %v, %v", rec.Live, err)
			}
			_, err = s.Open(t.Context(), "s")
			var owned *session.OwnedError
			if errors.As(err, &owned) == tt.dead {
				t.Errorf("open: %v", err)
			}
		})
	}
}
