package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// Closing a store closes its files, also those of connections that were replaced:
// the engine keeps them open as long as one statement is (core D7).
func TestCloseLeavesNoFileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	for round := range 3 {
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		id := session.ID([]string{"a", "b", "c"}[round])
		w := create(t, s, id, 1)
		for head := int64(1); head < 4; head++ {
			s.BreakWriter() // the next write replaces the connection
			if err := w.Append(t.Context(), head, events(head, 1, 0), nil); err != nil {
				t.Fatal(err)
			}
		}
		if n := length(t, s, id); n != 4 {
			t.Errorf("%d events", n)
		}
		if n := len(openFiles(path)); n > 5 { // of a writer and a reader
			t.Errorf("%d files are open of a store at work: %q", n, openFiles(path))
		}
		if _, err := s.List(t.Context(), session.Filter{}, session.Page{}); err != nil {
			t.Error(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if open := openFiles(path); len(open) != 0 {
			t.Errorf("round %d: still open: %q", round, open)
		}
	}
	ro, err := sqlite.OpenReadOnly(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := length(t, ro, "a"); n != 4 {
		t.Errorf("%d events", n)
	}
	if err := ro.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if open := openFiles(path); len(open) != 0 {
		t.Errorf("after reading: still open: %q", open)
	}
}
