package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// The driver's memory of a value stays what it was when the next row comes, when the
// rows are closed, and when others are read after that: what a log is made of is not
// copied again.
func TestBlobIsKept(t *testing.T) {
	path := newPath(t)
	mustOpen(t, path, normal)
	raw(t, path, func(db *sql.DB) error {
		const query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<8) SELECT CAST(printf('%.*c', ?1, char(64+?2+i)) AS BLOB) FROM n"
		var got []sqlite.Blob
		size := []int{100, 5000, 2 << 20}
		for i := range size {
			rows, err := db.QueryContext(t.Context(), query, size[i], 8*i)
			if err != nil {
				return err
			}
			for rows.Next() {
				var b sqlite.Blob
				if err := rows.Scan(&b); err != nil {
					return errors.Join(err, rows.Close())
				}
				got = append(got, b)
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
		}
		if len(got) != 8*len(size) {
			return fmt.Errorf("%d rows", len(got))
		}
		for i, b := range got {
			if string(b) != strings.Repeat(string(rune(64+i+1)), size[i/8]) {
				t.Errorf("value %d has become %d bytes of %.20q", i, len(b), b)
			}
		}
		return nil
	})
	var b sqlite.Blob
	if err := b.Scan("text"); err == nil {
		t.Error("text passes for a batch")
	}
}

// What was taken of a log stays in memory only as long as its taker holds it, not
// while the next is read: of long events that is most of what a reader needs.
func TestTakenEventsAreFree(t *testing.T) {
	s := mustOpen(t, newPath(t), normal)
	w := create(t, s, "s", 1)
	for seq := int64(1); seq < 12; seq += 3 { // of the batches of two events and of one, several are read at a time
		if err := errors.Join(w.Append(t.Context(), seq, events(seq, 2, 300_000), nil), w.Append(t.Context(), seq+2, events(seq+2, 1, 200_000), nil)); err != nil {
			t.Fatal(err)
		}
	}
	var before []weak.Pointer[byte]
	for e, err := range s.ReadFrom(t.Context(), session.ID("s"), 1) {
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, weak.Make(&e.Data()[0]))
		if e.Seq%3 == 2 {
			continue // its batch came along with the one before
		}
		runtime.GC()
		for i, p := range before[:len(before)-1] {
			if p.Value() != nil {
				t.Errorf("event %d is in memory when event %d was read", i+1, e.Seq)
			}
		}
	}
	if len(before) != 12 {
		t.Errorf("%d events", len(before))
	}
}
