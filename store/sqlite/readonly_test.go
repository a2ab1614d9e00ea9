package sqlite_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// snapshot tells names, modes, times and contents of everything in a folder, but
// of the shared memory, which is no data.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %v", e.Name(), info.Mode())
		if !strings.HasSuffix(e.Name(), "-shm") {
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, " %v %d %x", info.ModTime(), len(data), data)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// readAll reads everything that `sessions list|show|verify` read.
func readAll(t *testing.T, s session.Store) {
	t.Helper()
	l, err := s.List(t.Context(), session.Filter{}, session.Page{Newest: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Records) != 2 {
		t.Fatalf("%d sessions", len(l.Records))
	}
	for _, r := range l.Records {
		_, seq, err := s.Inspect(t.Context(), r.Header.ID)
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		for _, err := range seq {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != r.Head {
			t.Fatalf("%s: %d events, head %d", r.Header.ID, n, r.Head)
		}
	}
}

// D12: a store opened for reading changes no byte, no time and no name, whether
// the log was folded into the file by a proper end or was left by a crash.
func TestReadOnlyChangesNothing(t *testing.T) {
	clean := newPath(t)
	s := mustOpen(t, clean, normal)
	w := create(t, s, "s", 3)
	create(t, s, "u", 3)
	if err := w.Append(t.Context(), 3, events(3, 20, 500), nil); err != nil {
		t.Fatal(err)
	}
	// What a crash leaves: the files as they are while a process has them open.
	crashed := newPath(t)
	if err := os.Mkdir(filepath.Dir(crashed), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, ext := range []string{"", "-wal", "-shm"} {
		data, err := os.ReadFile(clean + ext)
		if err == nil {
			err = os.WriteFile(crashed+ext, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"closed": clean, "crashed": crashed} {
		t.Run(name, func(t *testing.T) {
			before := snapshot(t, filepath.Dir(path))
			r, err := sqlite.OpenReadOnly(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			readAll(t, r)
			for op, err := range map[string]error{
				"create": func() error {
					_, err := r.Create(t.Context(), header("x", 1), session.Meta{Root: "x"}, nil, nil)
					return err
				}(),
				"open":   func() error { _, err := r.Open(t.Context(), "s"); return err }(),
				"delete": r.Delete(t.Context(), "s"),
			} {
				if !errors.Is(err, sqlite.ErrReadOnly) || !strings.Contains(err.Error(), "read") {
					t.Errorf("%s: %v", op, err)
				}
			}
			if err := r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := snapshot(t, filepath.Dir(path)); after != before {
				t.Errorf("files changed\nbefore: %.300s\nafter:  %.300s", before, after)
			}
		})
	}
}

// A store opened for reading sees what another writes meanwhile, and is not in
// its way.
func TestReadOnlyBesideWriter(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, normal)
	w := create(t, s, "s", 1)
	r, err := sqlite.OpenReadOnly(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 1, events(1, 4, 0), nil); err != nil {
		t.Fatal(err)
	}
	if n := length(t, r, "s"); n != 5 {
		t.Errorf("%d events", n)
	}
	rec, _, err := r.Inspect(t.Context(), "s")
	if err != nil || rec.Owner == nil || !rec.Live {
		t.Errorf("owner %v, live %v, %v", rec.Owner, rec.Live, err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 5, events(5, 1, 0), nil); err != nil {
		t.Fatal(err)
	}
}

// Reading makes no store.
func TestReadOnlyMakesNothing(t *testing.T) {
	path := newPath(t)
	_, err := sqlite.OpenReadOnly(t.Context(), path, sqlite.Options{})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
	// A creation that was cut off before its first transaction.
	empty := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlite.OpenReadOnly(t.Context(), empty, sqlite.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

// A path is a path, whatever characters it has.
func TestOddPaths(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("some of these are no file names here")
	}
	for _, name := range []string{"a b", "q?mode=memory&x=1", "h#h", "p%41%", "ü", "semi;colon'quote\""} {
		path := filepath.Join(t.TempDir(), name, "s.db")
		s := mustOpen(t, path, normal)
		create(t, s, "s", 1)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("%q: %v", name, err)
		}
		r, err := sqlite.OpenReadOnly(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if n := length(t, r, "s"); n != 1 {
			t.Errorf("%q: %d events", name, n)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Inspect holds a bounded piece of a log, not the log.
func TestInspectIsBounded(t *testing.T) {
	s := mustOpen(t, newPath(t), normal)
	w := create(t, s, "s", 0)
	const batches, perBatch, size = 32, 32, 32 << 10 // 32 MiB
	for i := range int64(batches) {
		if err := w.Append(t.Context(), i*perBatch, events(i*perBatch, perBatch, size), nil); err != nil {
			t.Fatal(err)
		}
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	base, peak := m.HeapAlloc, uint64(0)
	n := 0
	for e, err := range s.ReadFrom(t.Context(), "s", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n%perBatch == 0 {
			runtime.GC()
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
		if !bytes.HasPrefix(e.Data(), []byte(`{"n":`)) {
			t.Fatalf("event %d is %.40s", n, e.Data())
		}
	}
	if n != batches*perBatch {
		t.Fatalf("%d events", n)
	}
	if got := int64(peak) - int64(base); got > 8<<20 {
		t.Errorf("%d MiB live while reading", got>>20)
	}
}
