package projection_test

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

func (s *shelf) Inspect(_ context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	if err := s.fail[id]; err != nil {
		return session.Record{}, nil, err
	}
	rec := session.Record{Header: session.Header{ID: id, SeedLength: s.seed}, Head: s.head}
	return rec, values(s.events), nil
}

// Live, from the cells and without them, SummaryOf and Inspect tell the same of every
// log, and what each unit's own fold tells (core D25, D28, D30).
func TestSummariesAgree(t *testing.T) {
	same := cmp.AllowUnexported(projection.Usage{}, projection.State{})
	rapid.Check(t, func(rt *rapid.T) {
		l, seed := drawLog(rt)
		r := registry(t)
		rec := record(l, seed)
		restore := func(cfg session.Config) *session.Session {
			s, err := sessions(t, cfg).Restore(rec, values(l.events))
			if err != nil {
				rt.Fatalf("the drawn log is not legal: %v", err)
			}
			return s
		}
		s := restore(session.Config{NewCells: r.NewCells})
		live, err := r.Live(t.Context(), s)
		if err != nil {
			rt.Fatal(err)
		}
		for _, u := range projection.BuiltIn() {
			snap, err := r.Fold(t.Context(), s, u.Key)
			if err != nil {
				rt.Fatal(err)
			}
			var got any
			switch u.Key {
			case session.CellIdentity:
				got = live.Identity
			case session.CellUsage:
				got = live.Usage
			case session.CellTitle:
				got = live.Title
			case session.CellState:
				got = live.State
			}
			if diff := cmp.Diff(snap.Value, got, same); diff != "" {
				rt.Fatalf("%s (-fold +live):\n%s", u.Key, diff)
			}
		}
		if n := len(l.events); int64(n) > seed && live.Last != l.events[n-1].Time {
			rt.Fatalf("the last event is of %d, not %d", l.events[n-1].Time, live.Last)
		}
		bare, err := r.Live(t.Context(), restore(session.Config{}))
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(live, bare, same); diff != "" {
			rt.Fatalf("folded anew (-cells +log):\n%s", diff)
		}
		in := r.Inspect(t.Context(), &shelf{events: l.events, seed: seed, head: int64(len(l.events))}, "s")
		if in.Err != nil || in.Fault != nil {
			rt.Fatal(in.Err, in.Fault)
		}
		if diff := cmp.Diff(live, in.Summary, same); diff != "" {
			rt.Fatalf("inspected (-cells +log):\n%s", diff)
		}
		if int64(len(l.events)) == seed {
			return // no batch, so no cells
		}
		cells := r.NewCells(&rec.Header)
		for e := range s.Events(seed) {
			cells.Apply(&e)
		}
		rec.Cells, rec.UpdatedAt = cells.Take(rec.Head), live.Last
		if diff := cmp.Diff(live, projection.SummaryOf(&rec), same); diff != "" {
			rt.Fatalf("from the record (-cells +record):\n%s", diff)
		}
	})
}

// What goes wrong in an inspection is told as what it is: the store's, the log's, or a
// unit's; and one does not hide the others (seam LIST-24, LIST-25, LIST-26; core D11).
func TestInspectFaults(t *testing.T) {
	bad := counter(1)
	bad.Key, bad.Types = "bad", []session.Type{session.TypeSandboxMode}
	bad.Apply = func(projection.Value, *session.Event, session.Payload) projection.Value { panic("boom") }
	r := registry(t, append(projection.BuiltIn(), bad)...)
	log := logOf(line{session.TypeDescriptor, goodDescriptor}, line{session.TypeTurnStart, `{"turn":1}`})
	broken := errors.New("broken")
	with := func(lines ...line) []session.Event { return append(slices.Clone(log.events), tail(lines...)...) }
	gap := slices.Clone(log.events)
	gap[1].Seq = 5
	for _, tc := range []struct {
		name       string
		store      *shelf
		err, fault bool
	}{
		{"healthy", &shelf{events: log.events, head: 2}, false, false},
		{"the store fails", &shelf{fail: map[session.ID]error{"s": broken}}, true, false},
		{"the log is too short", &shelf{events: log.events, head: 3}, true, false},
		{"the log has a gap", &shelf{events: gap, head: 2}, true, false},
		{"a payload makes no sense", &shelf{events: with(line{session.TypeTurnEnd, `{"turn":"one"}`}), head: 3}, false, true},
		{"a payload that concerns no unit", &shelf{events: with(line{session.TypeStepStart, `nonsense`}), head: 3}, false, false},
		{"a unit panics", &shelf{events: with(line{session.TypeSandboxMode, `{"mode":"x"}`}), head: 3}, false, true},
		{"inherited, it concerns nobody", &shelf{events: logOf(line{session.TypeSandboxMode, `{"mode":"x"}`}, line{session.TypeDescriptor, goodDescriptor}).events, seed: 1, head: 2}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := r.Inspect(t.Context(), tc.store, "s")
			if (in.Err != nil) != tc.err || (in.Fault != nil) != tc.fault {
				t.Errorf("error %v, fault %v", in.Err, in.Fault)
			}
			if tc.err && tc.store.fail != nil && !errors.Is(in.Err, broken) {
				t.Errorf("the store's error is lost: %v", in.Err)
			}
			if !tc.err && !tc.fault && in.Summary.Identity == nil {
				t.Error("no identity")
			}
		})
	}
	if in := r.Inspect(t.Context(), nil, "s"); in.Err == nil {
		t.Error("a store that panics is no error")
	}
	many := &shelf{events: log.events, head: 2, fail: map[session.ID]error{"b": broken}}
	got, err := r.InspectAll(t.Context(), many, []session.ID{"a", "b", "c"})
	if err != nil || len(got) != 3 || got[0].Err != nil || !errors.Is(got[1].Err, broken) || got[2].Err != nil || got[2].Header.ID != "c" {
		t.Errorf("%+v, %v", got, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := r.InspectAll(ctx, many, []session.ID{"a"}); !errors.Is(err, broken) {
		t.Errorf("after the end: %v", err)
	}
}

// tail are events that follow the two of a log.
func tail(lines ...line) []session.Event {
	l := &log{events: make([]session.Event, 2)}
	for _, x := range lines {
		l.add(x.typ, "%s", x.data)
	}
	return l.events[2:]
}

// A value that was read from a log holds nothing of the memory that the log was read
// into: a listing keeps its values, and a store reads many events into one piece.
func TestColdValuesHoldNoLog(t *testing.T) {
	lines := []line{
		{session.TypeDescriptor, `{"version":2,"mode":"one-shot","provider":"spawn","label":"a label of its own"}`},
		{session.TypeTitle, `{"title":"a title of its own"}`},
		{session.TypeTurnStart, `{"turn":1}`},
		{session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"aborted","reason":{"kind":"hook","reason":"a reason of its own"}}}`},
	}
	r := registry(t)
	keep := map[string]any{} // what is kept of each way of reading, as a caller does
	batches := map[string]weak.Pointer[[1 << 16]byte]{}
	// batch reads the log as a store does, into one piece of memory.
	batch := func(name string) *shelf {
		buf := new([1 << 16]byte)
		batches[name] = weak.Make(buf)
		var events []session.Event
		at := 0
		for _, e := range logOf(lines...).events {
			n := copy(buf[at:], e.Data())
			events = append(events, session.RawEvent(e, buf[at:at+n:at+n]))
			at += n
		}
		return &shelf{events: events, head: int64(len(events))}
	}
	keep["inspect"] = r.Inspect(t.Context(), batch("inspect"), "s")
	for _, u := range r.Units() {
		s := batch(u.Key)
		snap, err := r.Read(t.Context(), s, session.Record{Header: session.Header{ID: "s"}, Meta: session.Meta{Root: "s"}, Head: s.head}, u.Key)
		if err != nil {
			t.Fatal(err)
		}
		keep[u.Key] = snap
	}
	runtime.GC()
	for name, p := range batches {
		if p.Value() != nil {
			t.Errorf("%s: the value holds on to the batch", name)
		}
	}
	for name, want := range map[string]string{session.CellIdentity: "a label of its own", session.CellTitle: "a title of its own"} {
		if got := string(keep[name].(projection.Snapshot).AppendJSON(nil)); !strings.Contains(got, want) {
			t.Errorf("%s is %s", name, got)
		}
	}
	if in := keep["inspect"].(projection.Inspection); in.Err != nil || in.Fault != nil || in.Summary.Identity == nil || in.Summary.Identity.Label == nil {
		t.Errorf("inspected: %+v", in)
	}
}
