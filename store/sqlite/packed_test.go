package sqlite_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// A listing gets a row as one value with a separator between its fields. What a field
// holds is never mistaken for one: in an id, in a checkpoint, in a header that is
// damaged, whatever stands around it.
func TestFieldsHoldSeparators(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, sqlite.Options{})
	const root = session.ID("\x1froot\x1f-")
	type stored struct {
		id    session.ID
		cells []session.Checkpoint
	}
	all := []stored{
		{root, nil},
		{"\x1f\x1f-\x1f--\x1f", []session.Checkpoint{{Key: session.CellUsage, Version: 1, Seq: 0, Value: []byte("\"\x1f\"")}}},
		{"damaged", nil},
		{"plain", []session.Checkpoint{
			{Key: session.CellIdentity, Version: 2, Seq: 1, Value: []byte(`{"mode":"m"}`)},
			{Key: session.CellState, Version: 3, Seq: 0, Value: []byte("\x1f-\x1f")},
		}},
	}
	for i, st := range all {
		h := header(st.id, int64(i+1))
		if st.id != root {
			h.ParentSession, h.Origin, h.DelegationDepth = root, session.OriginSubagent, 1
		}
		w, err := s.Create(t.Context(), h, session.Meta{Root: root}, events(0, 2, 0), st.cells)
		if err == nil {
			err = w.Close(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change(t, path, "UPDATE sessions SET header=CAST('{\x1f-' AS BLOB) WHERE id='damaged'")
	l, err := s.List(t.Context(), session.Filter{}, session.Page{Children: true})
	if err != nil || len(l.Records) != len(all) {
		t.Fatalf("%d records, %v", len(l.Records), err)
	}
	for i, st := range all {
		rec := l.Records[i]
		if rec.Header.ID != st.id || rec.Header.CreatedAt != int64(i+1) || (rec.Child != "") != (st.id == root) {
			t.Errorf("row %d is %q of %d, with the child %q; want %q", i, rec.Header.ID, rec.Header.CreatedAt, rec.Child, st.id)
		}
		var corrupt *session.CorruptError
		if st.id == "damaged" {
			if !errors.As(rec.Err, &corrupt) || rec.Header.ParentSession != root {
				t.Errorf("the damaged row: %v, child of %q", rec.Err, rec.Header.ParentSession)
			}
			continue
		}
		if rec.Err != nil || rec.Meta.Root != root || rec.Head != 2 {
			t.Errorf("%q: %v, of the tree %q, head %d", st.id, rec.Err, rec.Meta.Root, rec.Head)
		}
		if diff := cmp.Diff(st.cells, rec.Cells); diff != "" {
			t.Errorf("%q: checkpoints (-want +got):\n%s", st.id, diff)
		}
		rec.Child = ""
		in, _, err := s.Inspect(t.Context(), st.id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(rec, in); diff != "" {
			t.Errorf("%q: inspected (-listed +inspected):\n%s", st.id, diff)
		}
	}
}
