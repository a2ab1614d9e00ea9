package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// core D21: one write is one transaction and, but for long events, one row; no row is
// longer than about a MiB unless a single event is. So neither SQLite's bound on a
// value nor a reader's memory depends on how much is written at once.
func TestRowsAreBounded(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, normal)
	w := create(t, s, "s", 2)
	var batch []session.Event
	for _, size := range []int{300_000, 300_000, 300_000, 3 << 20, 200, 200, 1_000_000, 100_000, 200} {
		batch = append(batch, events(2+int64(len(batch)), 1, size)...)
	}
	if err := w.Append(t.Context(), 2, batch, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 11, events(11, 3, 500), nil); err != nil {
		t.Fatal(err)
	}
	if n := length(t, s, "s"); n != 14 {
		t.Errorf("%d events are read", n)
	}
	var got []string
	raw(t, path, func(db *sql.DB) error {
		rows, err := db.QueryContext(t.Context(), "SELECT first_seq, count, length(data) > 1200000 FROM batches ORDER BY first_seq")
		if err != nil {
			return err
		}
		for rows.Next() {
			var first, count int
			var long bool
			if err := rows.Scan(&first, &count, &long); err != nil {
				return errors.Join(err, rows.Close())
			}
			got = append(got, fmt.Sprintf("%d+%d %v", first, count, long))
		}
		return errors.Join(rows.Err(), rows.Close())
	})
	want := []string{"0+2 false", "2+3 false", "5+1 true", "6+3 false", "9+2 false", "11+3 false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// A row that cannot be read stands in its place by its own columns; if those are not to be
// had, the listing fails rather than put it at the beginning of time.
func TestPlaceOfARow(t *testing.T) {
	s := mustOpen(t, newPath(t), normal)
	w := create(t, s, "s", 1)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := session.Header{ID: "s"}
	if err := s.Place(t.Context(), 1, &h); err != nil || h.CreatedAt == 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if err := s.Place(t.Context(), 2, &h); err == nil {
		t.Error("a row that is not there has a place")
	}
}
