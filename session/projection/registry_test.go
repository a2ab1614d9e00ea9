package projection_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// counter counts events of all types.
func counter(version int) projection.Unit {
	return projection.Unit{
		Key: "count", Version: version,
		Init:   func(*session.Header) projection.Value { return int64(0) },
		Apply:  func(v projection.Value, _ *session.Event, _ session.Payload) projection.Value { return v.(int64) + 1 },
		Append: func(buf []byte, v projection.Value) []byte { return fmt.Append(buf, v) },
		Parse: func(_ *session.Header, data []byte) (projection.Value, error) {
			var n int64
			_, err := fmt.Sscan(string(data), &n)
			return n, err
		},
	}
}

func TestRegisterIsCounted_D26(t *testing.T) {
	r := registry(t)
	has := func() bool {
		for _, u := range r.Units() {
			if u.Key == "count" {
				return true
			}
		}
		return false
	}
	first, err := r.Register(counter(1))
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Register(counter(1))
	if err != nil {
		t.Fatal(err)
	}
	var version *projection.VersionError
	if _, err := r.Register(counter(2)); !errors.As(err, &version) || version.Have != 1 || version.Want != 2 {
		t.Errorf("another version: %v", err)
	}
	first()
	first()
	if !has() {
		t.Error("the unit left while it was still registered")
	}
	second()
	if has() {
		t.Error("the unit stayed behind its last registration")
	}
	if _, err := r.Register(counter(2)); err != nil {
		t.Errorf("another version after the first left: %v", err)
	}
	if _, err := r.Register(projection.Unit{Key: "x"}); err == nil {
		t.Error("a unit without functions was taken")
	}
}

// The ladder: core D28, D30; seam LIST-13, LIST-15, LIST-16.
func TestReadLadder_D30(t *testing.T) {
	l := logOf(
		line{session.TypeTurnStart, `{"turn":1}`}, line{session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"completed"}}`}, // inherited
		line{session.TypeEndSeed, `{}`},
		line{session.TypeDescriptor, goodDescriptor},
		line{session.TypeTurnStart, `{"turn":2}`},
		line{session.TypeTurnEnd, `{"turn":2,"reason":{"kind":"blocked"}}`},
	)
	const seed = 2
	identity := `{"mode":"one-shot","provider":"spawn","label":"look","seq":3}`
	state := `{"state":"idle","turn":2,"reason":"blocked","queued":0}`
	for _, tc := range []struct {
		name  string
		key   string
		cell  *session.Checkpoint
		reads []int64
		want  string
	}{
		{"exact", session.CellState, &session.Checkpoint{Version: 1, Seq: 5, Value: []byte(state)}, nil, state},
		{"behind", session.CellState, &session.Checkpoint{Version: 1, Seq: 4, Value: []byte(`{"state":"running","turn":2,"queued":0}`)}, []int64{5}, state},
		{"final", session.CellIdentity, &session.Checkpoint{Version: 1, Seq: 3, Value: []byte(identity)}, nil, identity},
		{"missing", session.CellState, nil, []int64{seed}, state},
		{"another version", session.CellState, &session.Checkpoint{Version: 9, Seq: 5, Value: []byte(`{"state":"running","turn":7,"queued":0}`)}, []int64{seed}, state},
		{"ahead of the log", session.CellState, &session.Checkpoint{Version: 1, Seq: 6, Value: []byte(`{"state":"running","turn":7,"queued":0}`)}, []int64{seed}, state},
		{"damaged", session.CellState, &session.Checkpoint{Version: 1, Seq: 5, Value: []byte(`{"state":"run`)}, []int64{seed}, state},
		{"contradicting itself", session.CellState, &session.Checkpoint{Version: 1, Seq: 5, Value: []byte(`{"state":"queued","turn":2,"queued":0}`)}, []int64{seed}, state},
		{"null sentinel", session.CellIdentity, &session.Checkpoint{Version: 1, Seq: 5, Value: []byte(`null`)}, []int64{seed}, identity},
		{"ancestor's, LIST-14", session.CellIdentity, &session.Checkpoint{Version: 1, Seq: 5, Value: []byte(`{"mode":"one-shot","provider":"x","seq":1}`)}, []int64{seed}, identity},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := &shelf{events: l.events}
			rec := record(l, seed)
			if tc.cell != nil {
				tc.cell.Key = tc.key
				rec.Cells = []session.Checkpoint{*tc.cell}
			}
			snap, err := registry(t).Read(t.Context(), store, rec, tc.key)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(snap.AppendJSON(nil)); got != tc.want {
				t.Errorf("value %s, want %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.reads, store.reads); diff != "" {
				t.Errorf("reads of the log (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadFaults(t *testing.T) {
	l := logOf(line{session.TypeEndSeed, `{}`}, line{session.TypeTurnStart, `{"turn":1}`})
	boom := errors.New("disk")
	rec := record(l, 0)
	r := registry(t)
	if _, err := r.Read(t.Context(), &shelf{}, rec, "nope"); !errors.Is(err, projection.ErrUnknownUnit) {
		t.Errorf("unknown unit: %v", err)
	}
	if _, err := r.Read(t.Context(), &shelf{fail: map[session.ID]error{"s": boom}}, rec, session.CellState); !errors.Is(err, boom) {
		t.Errorf("store failure: %v", err)
	}
	var corrupt *session.CorruptError
	if _, err := r.Read(t.Context(), &shelf{events: l.events[:1]}, rec, session.CellState); !errors.As(err, &corrupt) || corrupt.Seq != 1 {
		t.Errorf("short log: %v", err)
	}
	bad := logOf(line{session.TypeTurnStart, `{"turn":"x"}`})
	if _, err := r.Read(t.Context(), &shelf{events: bad.events}, record(bad, 0), session.CellState); !errors.As(err, &corrupt) {
		t.Errorf("malformed payload: %v", err)
	}
	rec.Err = boom
	if _, err := r.Read(t.Context(), &shelf{}, rec, session.CellState); !errors.Is(err, boom) {
		t.Errorf("damaged record: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(boom)
	rec.Err = nil
	if _, err := r.Read(ctx, &shelf{events: l.events}, rec, session.CellState); !errors.Is(err, boom) {
		t.Errorf("cancelled: %v", err)
	}
}

// core D31; seam LIST-17, LIST-24, LIST-25, LIST-33.
func TestReadAllIsBounded_D31(t *testing.T) {
	l := logOf(line{session.TypeDescriptor, goodDescriptor})
	boom := errors.New("disk")
	recs := make([]session.Record, 30)
	for i := range recs {
		recs[i] = record(l, 0)
		recs[i].Header.ID = session.ID(fmt.Sprint(i))
	}
	recs[3].Cells = []session.Checkpoint{{Key: session.CellIdentity, Version: 1, Seq: 0, Value: []byte(`{"mode":"one-shot","provider":"cached","seq":0}`)}}
	recs[4].Err = boom
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var now, most atomic.Int64
		store := &shelf{events: l.events, fail: map[session.ID]error{"7": boom}, gate: func(session.ID) {
			most.Store(max(most.Load(), now.Add(1)))
			<-gate
			now.Add(-1)
		}}
		var results []projection.Result
		var err error
		done := make(chan struct{})
		go func() {
			results, err = registry(t).ReadAll(t.Context(), store, recs, session.CellIdentity)
			close(done)
		}()
		synctest.Wait()
		if n := now.Load(); n != projection.ReadLimit {
			t.Errorf("%d logs are read at once, want %d", n, projection.ReadLimit)
		}
		close(gate)
		<-done
		if err != nil {
			t.Fatal(err)
		}
		if most.Load() > projection.ReadLimit || len(store.reads) != len(recs)-2 {
			t.Errorf("%d reads, at most %d at once", len(store.reads), most.Load())
		}
		for i, r := range results {
			switch {
			case i == 4 || i == 7:
				if !errors.Is(r.Err, boom) {
					t.Errorf("record %d: %v", i, r.Err)
				}
			case r.Err != nil:
				t.Errorf("record %d: %v", i, r.Err)
			case i == 3:
				if id := r.Snapshot.Value.(*projection.Identity); id.Provider != "cached" {
					t.Errorf("record 3: %+v", id)
				}
			}
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	store := &shelf{events: l.events, gate: func(session.ID) { cancel(boom) }}
	if _, err := registry(t).ReadAll(ctx, store, recs, session.CellIdentity); !errors.Is(err, boom) {
		t.Errorf("cancelled while reading: %v", err)
	}
}

// What a batch carries: every cell at first, then those that changed (core D25, D28).
func TestTake(t *testing.T) {
	r := registry(t)
	cells := r.NewCells(&session.Header{ID: "s"})
	keys := func(head int64) (out []string) {
		for _, c := range cells.Take(head) {
			if c.Seq != head-1 || c.Version != 1 {
				t.Errorf("cell %+v at head %d", c, head)
			}
			out = append(out, c.Key)
		}
		return out
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	reg := sessions(t, session.Config{})
	s, err := reg.Prepare(t.Context(), session.New{})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(p session.Payload) {
		seq, err := s.Append(session.Draft{Payload: p})
		if err != nil {
			t.Fatal(err)
		}
		e, _ := s.Event(seq)
		cells.Apply(&e)
	}
	all := []string{session.CellIdentity, session.CellUsage, session.CellTitle, session.CellState}
	want("before any event", keys(0))
	want("first", keys(1), all...)
	want("nothing changed", keys(1))
	apply(&session.TurnStart{Turn: 1})
	want("turn", keys(2), session.CellState)
	cells.Untake()
	apply(&session.Title{Title: "T"})
	want("after a failed batch", keys(3), session.CellTitle, session.CellState)
	want("taken counts as stored", keys(3))
	cells.Untake()
	want("an empty batch has nothing to give back", keys(3))
	apply(&session.Title{Title: "T"})
	want("D24: same value", keys(4))
}

// A unit that panics harms neither the log nor its siblings.
func TestFaultyUnitIsContained(t *testing.T) {
	bad := counter(1)
	bad.Apply = func(projection.Value, *session.Event, session.Payload) projection.Value { panic("boom") }
	r := registry(t, bad, projection.StateUnit())
	reg := sessions(t, session.Config{Now: func() time.Time { return time.UnixMilli(7) }})
	s, err := reg.Prepare(t.Context(), session.New{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(session.Draft{Payload: &session.TurnStart{Turn: 1}}); err != nil {
		t.Fatal(err)
	}
	e, _ := s.Event(0)
	cells := r.NewCells(&session.Header{})
	cells.Apply(&e)
	got := cells.Take(1)
	if len(got) != 1 || got[0].Key != session.CellState || string(got[0].Value) != `{"state":"running","turn":1,"queued":0,"since":7}` {
		t.Errorf("cells %+v", got)
	}
	var corrupt *session.CorruptError
	if _, err := r.Fold(t.Context(), s, "count"); !errors.As(err, &corrupt) {
		t.Errorf("fold: %v", err)
	}
	f, err := r.Follow(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	if _, err := f.Snapshot("count"); err == nil {
		t.Error("the follower serves a faulty value")
	}
	if _, err := f.Snapshot(session.CellState); err != nil {
		t.Error(err)
	}
}

// core D25, D27: whoever follows a session sees what a fold of its log gives.
func TestFollow_D25(t *testing.T) {
	r := registry(t, append(projection.BuiltIn(), counter(1))...)
	reg := sessions(t, session.Config{})
	s, err := reg.Prepare(t.Context(), session.New{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 2000
	started, done := make(chan struct{}), make(chan error)
	go func() {
		for i := range n {
			if i == n/4 {
				close(started)
			}
			if _, err := s.Append(session.Draft{Payload: &session.Title{Title: fmt.Sprint(i)}}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	<-started
	f, err := r.Follow(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got, err := f.Snapshot("count")
	if err != nil {
		t.Fatal(err)
	}
	if got.Value != int64(n) || got.AsOf != n-1 {
		t.Errorf("counted %v as of %d, want %d", got.Value, got.AsOf, n)
	}
	title, err := f.Snapshot(session.CellTitle)
	if err != nil || title.Value.(*projection.Title).Text != fmt.Sprint(n-1) {
		t.Errorf("title %+v, %v", title.Value, err)
	}
	f.Stop()
	if _, err := s.Append(session.Draft{Payload: &session.Title{Title: "later"}}); err != nil {
		t.Fatal(err)
	}
	old, err := f.Snapshot("count")
	if err != nil || old.AsOf != n-1 {
		t.Errorf("moved after Stop: %+v, %v", old, err)
	}
	live, err := r.Fold(t.Context(), s, "count")
	if err != nil {
		t.Fatal(err)
	}
	if newer := old.Newer(live); newer.AsOf != n {
		t.Errorf("D27: kept the snapshot as of %d", newer.AsOf)
	}
	if newer := live.Newer(old); newer.AsOf != n {
		t.Errorf("D27: kept the snapshot as of %d", newer.AsOf)
	}
}

// A type that an embedding program added reaches its unit on both paths.
func TestForeignType(t *testing.T) {
	const typ session.Type = "acme/mark"
	u := counter(1)
	u.Types = []session.Type{typ}
	u.Apply = func(v projection.Value, _ *session.Event, p session.Payload) projection.Value {
		return v.(int64) + int64(len(p.(*session.Opaque).Data))
	}
	r := registry(t, u)
	l := logOf(line{typ, `{"a":1}`}, line{session.TypeTurnStart, `{"turn":1}`})
	snap, err := r.Read(t.Context(), &shelf{events: l.events}, record(l, 0), "count")
	if err != nil || snap.Value != int64(7) || snap.AsOf != 1 {
		t.Errorf("read %+v, %v", snap, err)
	}
	reg := sessions(t, session.Config{ExtraTypes: []session.ExtraType{{Type: typ}}})
	s, err := reg.Prepare(t.Context(), session.New{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(session.Draft{Payload: &session.Opaque{Type: typ, Data: []byte(`{"a":1}`)}}); err != nil {
		t.Fatal(err)
	}
	if snap, err := r.Fold(t.Context(), s, "count"); err != nil || snap.Value != int64(7) {
		t.Errorf("fold %+v, %v", snap, err)
	}
}

func TestTypedReads(t *testing.T) {
	label := "look"
	rec := session.Record{Header: session.Header{ID: "s"}, Head: 5, Cells: []session.Checkpoint{
		{Key: session.CellIdentity, Version: 1, Seq: 4, Value: []byte(`{"mode":"one-shot","provider":"spawn","label":"look","seq":3}`)},
		{Key: session.CellUsage, Version: 1, Seq: 4, Value: []byte(`{"input":2,"output":1,"cacheRead":0,"cacheWrite":0,"reasoning":0,"requests":1,"provider":"p","model":"m"}`)},
		{Key: session.CellTitle, Version: 1, Seq: 4, Value: []byte(`{"title":"T"}`)},
		{Key: session.CellState, Version: 1, Seq: 4, Value: []byte(`{"state":"queued","turn":1,"reason":"error","queued":1,"nextTurn":"w"}`)},
	}}
	id, ok := projection.IdentityOf(&rec)
	if diff := cmp.Diff(projection.Identity{Mode: "one-shot", Provider: "spawn", Label: &label, Seq: 3}, id); !ok || diff != "" {
		t.Errorf("identity %v (-want +got):\n%s", ok, diff)
	}
	if u, ok := projection.UsageOf(&rec); !ok || u.Tokens != (message.Usage{InputTokens: 2, OutputTokens: 1}) || u.Requests != 1 || u.Model != "m" {
		t.Errorf("usage %+v, %v", u, ok)
	}
	if title, ok := projection.TitleOf(&rec); !ok || title.Text != "T" || title.Derived {
		t.Errorf("title %+v, %v", title, ok)
	}
	if s, ok := projection.StateOf(&rec); !ok || s.State != projection.Queued || s.Waking != 1 || s.Reason != session.EndError {
		t.Errorf("state %+v, %v", s, ok)
	}
	rec.Head = 4 // every cell lies ahead of the log now
	if _, ok := projection.StateOf(&rec); ok {
		t.Error("a checkpoint ahead of the log was trusted")
	}
}
