// Package storetest is the conformance suite of session.Store: what every
// backend must do, in the words of the contract (design § 4; core D1–D8 where
// they concern a store, D11, D12, D18, D21–D23). It is an ordinary package, so
// that backends from elsewhere can run it. It imports no store. Floor T.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// Factory makes the stores under test. The hooks but Open are optional; a test
// that needs a missing one is skipped and says so.
type Factory struct {
	// Open returns a store on an empty backend of its own. Tests close it.
	Open func(t testing.TB) session.Store
	// Second returns another owner on the backend of s, as another process would
	// have it. It must work after s was closed, too: that is how a test reopens.
	Second func(t testing.TB, s session.Store) session.Store
	// Kill makes the process that owns s look gone to the others, at once.
	Kill func(t testing.TB, s session.Store)
	// Age makes the last heartbeat of s lie d in the past, for s and the others.
	Age func(t testing.TB, s session.Store, d time.Duration)
	// Damage makes the stored row of a session unreadable.
	Damage func(t testing.TB, s session.Store, id session.ID)
	// Dump returns everything that a reader must leave as it is.
	Dump func(t testing.TB, s session.Store) string
}

// Run runs the suite.
func Run(t *testing.T, f Factory) {
	t.Run("Create", func(t *testing.T) { testCreate(t, f) })
	t.Run("Append", func(t *testing.T) { testAppend(t, f) })
	t.Run("Read", func(t *testing.T) { testRead(t, f) })
	t.Run("Cells", func(t *testing.T) { testCells(t, f) })
	t.Run("Lifetime", func(t *testing.T) { testLifetime(t, f) })
	t.Run("Concurrent", func(t *testing.T) { testConcurrent(t, f) })
	t.Run("Ownership", func(t *testing.T) { testOwnership(t, f) })
	t.Run("Prefix", func(t *testing.T) { testPrefix(t, f) })
	t.Run("Delete", func(t *testing.T) { testDelete(t, f) })
	t.Run("Discard", func(t *testing.T) { testDiscard(t, f) })
	t.Run("List", func(t *testing.T) { testList(t, f) })
	t.Run("ReadersChangeNothing", func(t *testing.T) { testReadersChangeNothing(t, f) })
	t.Run("Model", func(t *testing.T) { testModel(t, f) })
}

// rig is a store under test with helpers that fail the test.
type rig struct {
	testing.TB
	session.Store
	ctx context.Context
}

func open(t testing.TB, f Factory) *rig {
	t.Helper()
	return wrap(t, f.Open(t))
}

// second opens another owner on a store's backend, or skips the test.
func (r *rig) second(f Factory) *rig {
	r.Helper()
	if f.Second == nil {
		r.Skip("the factory has no second owner")
	}
	return wrap(r.TB, f.Second(r.TB, r.Store))
}

func wrap(t testing.TB, s session.Store) *rig {
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	return &rig{TB: t, Store: s, ctx: t.Context()}
}

// header returns a header whose creation time is its number.
func header(id session.ID, at int64) session.Header {
	return session.Header{Version: session.FormatVersion, ID: id, CreatedAt: at, Cwd: "/home/u"}
}

// events returns n events from seq first on.
func events(first, n int64) []session.Event {
	out := make([]session.Event, 0, n)
	for seq := first; seq < first+n; seq++ {
		out = append(out, event(seq, fmt.Sprintf(`{"turn":%d,"text":"a <b> & \u2028"}`, seq)))
	}
	return out
}

func event(seq int64, data string) session.Event {
	return session.RawEvent(session.Event{Type: "turn/start", Seq: seq, Time: 1000 + seq}, []byte(data))
}

// create makes a root session of n events.
func (r *rig) create(id session.ID, n int64) session.Writer {
	r.Helper()
	return r.createMeta(header(id, 1), session.Meta{Root: id}, n)
}

// createMeta makes a session with n events beyond its prefix.
func (r *rig) createMeta(h session.Header, m session.Meta, n int64) session.Writer {
	r.Helper()
	w, err := r.Create(r.ctx, h, m, events(m.Prefix.Len, n), nil)
	if err != nil {
		r.Fatalf("create %s: %v", h.ID, err)
	}
	return w
}

func (r *rig) open(id session.ID) session.Writer {
	r.Helper()
	w, err := r.Open(r.ctx, id)
	if err != nil {
		r.Fatalf("open %s: %v", id, err)
	}
	return w
}

func (r *rig) append(w session.Writer, head, n int64) {
	r.Helper()
	if err := w.Append(r.ctx, head, events(head, n), nil); err != nil {
		r.Fatalf("append at %d: %v", head, err)
	}
}

func (r *rig) close(w session.Writer) {
	r.Helper()
	if err := w.Close(r.ctx); err != nil {
		r.Fatalf("close writer: %v", err)
	}
}

func (r *rig) delete(id session.ID) {
	r.Helper()
	if err := r.Delete(r.ctx, id); err != nil {
		r.Fatalf("delete %s: %v", id, err)
	}
}

// log reads a whole log through Inspect, and the record with it.
func (r *rig) log(id session.ID) (session.Record, []session.Event) {
	r.Helper()
	rec, seq, err := r.Inspect(r.ctx, id)
	if err != nil {
		r.Fatalf("inspect %s: %v", id, err)
	}
	return rec, r.collect(seq)
}

func (r *rig) collect(seq iter.Seq2[session.Event, error]) []session.Event {
	r.Helper()
	var out []session.Event
	for e, err := range seq {
		if err != nil {
			r.Fatalf("reading events after %d: %v", len(out), err)
		}
		out = append(out, e)
	}
	return out
}

// wantLog checks a session's whole log, and its head.
func (r *rig) wantLog(id session.ID, want []session.Event) {
	r.Helper()
	rec, got := r.log(id)
	if diff := cmp.Diff(lines(want), lines(got)); diff != "" {
		r.Fatalf("log of %s (-want +got):\n%s", id, diff)
	}
	if rec.Head != int64(len(want)) {
		r.Fatalf("head of %s is %d, want %d", id, rec.Head, len(want))
	}
}

// lines returns the envelopes of events.
func lines(events []session.Event) []string {
	out := make([]string, 0, len(events))
	for i := range events {
		out = append(out, string(events[i].AppendEnvelope(nil)))
	}
	return out
}

// ids returns the ids of records.
func ids(records []session.Record) string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.Header.ID))
	}
	return strings.Join(out, " ")
}

// wantIs fails unless err is the sentinel.
func wantIs(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}

// wantAs fails unless err is of type E, which it returns.
// refused is wantAs for whom the error's type is enough.
func refused[E error](t testing.TB, what string, err error) {
	t.Helper()
	_ = wantAs[E](t, what, err)
}

func wantAs[E error](t testing.TB, what string, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("%s: got error %v, want a %T", what, err, e)
	}
	return e
}
