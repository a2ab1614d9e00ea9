package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/store/storetest"
)

// normal are the options of tests whose subject is not durability. No heartbeat
// falls into them.
var normal = sqlite.Options{Synchronous: sqlite.Normal, Heartbeat: time.Hour}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "home", "sessions.db") }

// mustOpen opens a store that is closed with the test.
func mustOpen(t testing.TB, path string, opt sqlite.Options) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

// raw runs statements on a store's file beside the store.
func raw(t testing.TB, path string, fn func(db *sql.DB) error) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fn(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func change(t testing.TB, path, text string, args ...any) {
	t.Helper()
	raw(t, path, func(db *sql.DB) error {
		_, err := db.ExecContext(t.Context(), text, args...)
		return err
	})
}

// dump returns every row of every table.
func dump(t testing.TB, path string) string {
	t.Helper()
	var b strings.Builder
	raw(t, path, func(db *sql.DB) error {
		for _, table := range []string{"owners", "sessions", "batches", "checkpoints"} {
			rows, err := db.QueryContext(t.Context(), "SELECT * FROM "+table)
			if err != nil {
				return err
			}
			cols, err := rows.Columns()
			if err != nil {
				return errors.Join(err, rows.Close())
			}
			vals := make([]any, len(cols))
			ptrs := make([]any, len(cols))
			for i := range vals {
				ptrs[i] = &vals[i]
			}
			for rows.Next() {
				if err := rows.Scan(ptrs...); err != nil {
					return errors.Join(err, rows.Close())
				}
				fmt.Fprintf(&b, "%s %q\n", table, vals)
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	return b.String()
}

func factory() storetest.Factory {
	path := func(s session.Store) string { return s.(*sqlite.Store).Path() }
	return storetest.Factory{
		Open: func(t testing.TB) session.Store {
			s, err := sqlite.Open(t.Context(), newPath(t), normal)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Second: func(t testing.TB, s session.Store) session.Store {
			o, err := sqlite.Open(t.Context(), path(s), normal)
			if err != nil {
				t.Fatal(err)
			}
			return o
		},
		Kill: func(t testing.TB, s session.Store) {
			change(t, path(s), `UPDATE owners SET pid=1073741823, started='never' WHERE id=?`, s.(*sqlite.Store).Owner().ID)
		},
		Age: func(t testing.TB, s session.Store, d time.Duration) {
			s.(*sqlite.Store).Age(d)
			change(t, path(s), `UPDATE owners SET heartbeat=?, uptime=max(uptime-?, 1) WHERE id=?`, time.Now().Add(-d).UnixMilli(), d.Milliseconds(), s.(*sqlite.Store).Owner().ID)
		},
		Damage: func(t testing.TB, s session.Store, id session.ID) {
			change(t, path(s), `UPDATE sessions SET header=CAST('{"version":0,' AS BLOB) WHERE id=?`, string(id))
		},
		Dump: func(t testing.TB, s session.Store) string { return dump(t, path(s)) },
	}
}

// D22: the suite that every store passes.
func TestConformance(t *testing.T) { storetest.Run(t, factory()) }

func header(id session.ID, at int64) session.Header {
	return session.Header{Version: session.FormatVersion, ID: id, CreatedAt: at, Cwd: "/home/u"}
}

// events returns n events from seq first on, of about size bytes each.
func events(first, n int64, size int) []session.Event {
	out := make([]session.Event, 0, n)
	pad := strings.Repeat("x", max(size-100, 0))
	for seq := first; seq < first+n; seq++ {
		out = append(out, session.RawEvent(session.Event{Type: "assistant/message", Seq: seq, Time: 1700000000000},
			fmt.Appendf(nil, `{"n":%d,"text":"%s"}`, seq, pad)))
	}
	return out
}

func create(t testing.TB, s session.Store, id session.ID, n int64) session.Writer {
	t.Helper()
	w, err := s.Create(t.Context(), header(id, 1), session.Meta{Root: id}, events(0, n, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// length reads a whole log, checks that it is contiguous, and returns its length.
func length(t testing.TB, s session.Store, id session.ID) int64 {
	t.Helper()
	n := int64(0)
	for e, err := range s.ReadFrom(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != n {
			t.Fatalf("seq %d where %d was due", e.Seq, n)
		}
		n++
	}
	return n
}

// D20: owner-only modes, marks, and durability as promised, read back.
func TestFile(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{Heartbeat: time.Hour})
	create(t, s, "s", 1)
	if runtime.GOOS != "windows" {
		for name, want := range map[string]os.FileMode{"": 0o700, "sessions.db": 0o600, "sessions.db-wal": 0o600, "sessions.db-shm": 0o600} {
			info, err := os.Stat(filepath.Join(filepath.Dir(path), name))
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("%q has mode %o, want %o", name, got, want)
			}
		}
	}
	raw(t, path, func(db *sql.DB) error {
		for pragma, want := range map[string]string{"application_id": "1332106088", "user_version": "1", "journal_mode": "wal"} {
			var got string
			if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
				return err
			}
			if got != want {
				t.Errorf("%s is %s, want %s", pragma, got, want)
			}
		}
		return nil
	})
	if n, err := s.Synchronous(); err != nil || n != 2 {
		t.Errorf("synchronous is %d, %v", n, err)
	}
	// A commit that need not sync must not leave the next one unsynced.
	w := create(t, s, "u", 1)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	create(t, s, "v", 1)
	if n, err := s.Synchronous(); err != nil || n != 2 {
		t.Errorf("synchronous after a creation is %d, %v", n, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 3 {
		t.Errorf("files left: %v, %v", entries, err)
	}
}

// A file that was readable by others is closed to them.
func TestFileModeTightened(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such modes here")
	}
	path := newPath(t)
	if err := mustOpen(t, path, normal).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, path, normal)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
}

// One clear line for each way in which a file cannot be a store.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	foreign := filepath.Join(dir, "foreign.db")
	change(t, foreign, `CREATE TABLE t(a); PRAGMA application_id=7`)
	store := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := mustOpen(t, p, normal).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		change(t, p, text)
		return p
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, path, want string }{
		{"not a database", file("text.db", strings.Repeat("this is no database\n", 100)), "not an Offshoot store: the file is not a database"},
		{"another program's database", foreign, "not an Offshoot store (application id 0x7)"},
		{"a newer build's", store("newer.db", `PRAGMA user_version=2`), "version 2 was written by a newer build (this one reads 1)"},
		{"an older build's", store("older.db", `PRAGMA user_version=0`), "version 0 has no migration path to 1"},
		{"a folder", filepath.Join(dir, "folder.db"), "a folder stands in place of the file"},
		{"a file in place of a folder", filepath.Join(file("plain", "x"), "home", "s.db"), "a file stands in place of a folder of its path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, open := range map[string]func(context.Context, string, sqlite.Options) (*sqlite.Store, error){"Open": sqlite.Open, "OpenReadOnly": sqlite.OpenReadOnly} {
				_, err := open(t.Context(), tt.path, normal)
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.path) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: error %q, want one line with %q and the path", name, err, tt.want)
				}
			}
		})
	}
}

// Two processes may find the same new file; here two stores do, many times.
func TestOpenNewFileTogether(t *testing.T) {
	for range 10 {
		path := newPath(t)
		var g sync.WaitGroup
		stores := make([]*sqlite.Store, 4)
		errs := make([]error, len(stores))
		for i := range stores {
			g.Go(func() { stores[i], errs[i] = sqlite.Open(t.Context(), path, normal) })
		}
		g.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for i, s := range stores {
			create(t, s, session.ID(fmt.Sprint("s", i)), 1)
		}
		for _, s := range stores {
			if n := length(t, s, "s0"); n != 1 {
				t.Fatalf("s0 has %d events", n)
			}
		}
		for _, s := range stores {
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A write connection whose state is unknown is replaced, and nothing is lost.
func TestBrokenConnectionIsReplaced(t *testing.T) {
	s := mustOpen(t, newPath(t), normal)
	w := create(t, s, "s", 1)
	s.BreakWriter()
	if err := w.Append(t.Context(), 1, events(1, 2, 0), nil); err != nil {
		t.Fatal(err)
	}
	s.BreakWriter()
	if n := length(t, s, "s"); n != 3 {
		t.Fatalf("%d events", n)
	}
}

// Faults in the log are *session.CorruptError where they lie (core D11).
func TestDamagedLog(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		seq        int64 // what is read before the fault
	}{
		{"a batch is missing", `DELETE FROM batches WHERE first_seq=2`, 2},
		{"the first batch is missing", `DELETE FROM batches WHERE first_seq=0`, 0},
		{"the last batch is missing", `DELETE FROM batches WHERE first_seq=4`, 4},
		{"a batch is cut off", `UPDATE batches SET data=substr(data, 1, length(data)-5) WHERE first_seq=2`, 2},
		{"a batch says more than it holds", `UPDATE batches SET count=3 WHERE first_seq=4`, 4},
		{"events of another seq", `UPDATE batches SET data=(SELECT data FROM batches WHERE first_seq=0) WHERE first_seq=2`, 2},
		{"the prefix's owner is missing", `UPDATE sessions SET prefix_id='none', prefix_len=2`, 0},
		{"a prefix that goes in circles", `UPDATE sessions SET prefix_id='s', prefix_len=2`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mustOpen(t, newPath(t), normal)
			w := create(t, s, "s", 2)
			for head := int64(2); head < 6; head += 2 {
				if err := w.Append(t.Context(), head, events(head, 2, 0), nil); err != nil {
					t.Fatal(err)
				}
			}
			change(t, s.Path(), tt.text)
			n := int64(0)
			var fault error
			for _, err := range s.ReadFrom(t.Context(), "s", 0) {
				if fault = err; err == nil {
					n++
				}
			}
			var corrupt *session.CorruptError
			if !errors.As(fault, &corrupt) || corrupt.ID != "s" || n != tt.seq {
				t.Fatalf("read %d events, then %v; want %d, then a CorruptError", n, fault, tt.seq)
			}
		})
	}
}

// Rows of owners that crashed without a session do not pile up.
func TestDeadOwnersAreDropped(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, normal)
	for i := range 5 {
		change(t, path, `INSERT INTO owners VALUES(?, 'elsewhere', 1, '', '', 0, 0)`, fmt.Sprint("dead", i))
	}
	create(t, s, "s", 1)
	if got := strings.Count(dump(t, path), "owners "); got != 1 {
		t.Errorf("%d owner rows", got)
	}
}

// A row that a creation of unknown outcome left in this process's name, without a
// writer, can be deleted and opened.
func TestOwnedWithoutWriter(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, normal)
	for _, id := range []session.ID{"a", "b"} {
		if err := create(t, s, id, 1).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	create(t, s, "held", 1)
	change(t, path, `UPDATE sessions SET owner=? WHERE id<>'held'`, s.Owner().ID)
	if err := s.Delete(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	w, err := s.Open(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 1, events(1, 1, 0), nil); err != nil {
		t.Error(err)
	}
}
