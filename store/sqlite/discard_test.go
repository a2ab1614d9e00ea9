package sqlite_test

import (
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// A deletion by the session's writer that fails half-way leaves everything as it was,
// and the writer at work (D21).
func TestDiscardFailsAsAWhole(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{Synchronous: sqlite.Normal})
	w := create(t, s, "s", 2)
	cells := []session.Checkpoint{{Key: "k", Seq: 2, Value: []byte(`1`)}}
	if err := w.Append(t.Context(), 2, events(2, 1, 0), cells); err != nil {
		t.Fatal(err)
	}
	before := dump(t, path)
	change(t, path, `CREATE TRIGGER kept BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'it is kept'); END`)
	if err := w.Discard(t.Context()); err == nil || !strings.Contains(err.Error(), "discard session s") || !strings.Contains(err.Error(), path) {
		t.Errorf("discard: %v", err)
	}
	if after := dump(t, path); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	if err := w.Check(t.Context()); err != nil {
		t.Errorf("the writer: %v", err)
	}
	change(t, path, `DROP TRIGGER kept`)
	if err := w.Append(t.Context(), 3, events(3, 1, 0), nil); err != nil {
		t.Errorf("the writer: %v", err)
	}
	if err := w.Discard(t.Context()); err != nil {
		t.Errorf("discard again: %v", err)
	}
	if rest := dump(t, path); strings.Contains(rest, "assistant/message") {
		t.Errorf("left are\n%s", rest)
	}
	// Its heartbeat finds nothing amiss.
	beat(t, s, "t")
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
