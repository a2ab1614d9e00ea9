package projection_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// drawLog draws a legal log, with descriptors of every kind in it, and how many
// of its events are inherited.
func drawLog(t *rapid.T) (*log, int64) {
	l := &log{}
	seed := int64(0)
	var turn, step, id int
	turnOpen, stepOpen := false, false
	lists := map[string]int{"next-turn": 0, "next-step": 0}
	msg := func() string {
		id++
		kind := rapid.SampledFrom([]string{`{"kind":"user"}`, `{"kind":"plugin","plugin":"p","form":"notice"}`}).Draw(t, "source")
		text := rapid.SampledFrom([]string{"", " ", "hello", strings.Repeat("long text ", 20)}).Draw(t, "text")
		return fmt.Sprintf(`{"id":"m%d","role":"user","content":[{"type":"text","text":%q}],"source":%s}`, id, text, kind)
	}
	for range rapid.IntRange(1, 60).Draw(t, "length") {
		target := rapid.SampledFrom([]string{"next-turn", "next-step"}).Draw(t, "target")
		switch rapid.IntRange(0, 12).Draw(t, "event") {
		case 0:
			if !turnOpen {
				turn, step, turnOpen = turn+1, 0, true
				l.add(session.TypeTurnStart, `{"turn":%d}`, turn)
			} else if !stepOpen {
				step, stepOpen = step+1, true
				l.add(session.TypeStepStart, `{"turn":%d,"step":%d}`, turn, step)
			}
		case 1:
			if stepOpen {
				stepOpen = false
				l.add(session.TypeStepEnd, `{"turn":%d,"step":%d}`, turn, step)
			} else if turnOpen {
				turnOpen = false
				reason := rapid.SampledFrom([]string{"completed", "error", "interrupted"}).Draw(t, "reason")
				l.add(session.TypeTurnEnd, `{"turn":%d,"reason":{"kind":%q}}`, turn, reason)
			}
		case 2:
			wake := rapid.SampledFrom([]string{"", `,"wake":false`}).Draw(t, "wake")
			l.add(session.TypeInboxSpliced, `{"target":%q,"start":%d,"inserted":[%s]%s}`, target, rapid.IntRange(0, lists[target]).Draw(t, "start"), msg(), wake)
			lists[target]++
		case 3:
			if n := lists[target]; n > 0 {
				start := rapid.IntRange(0, n-1).Draw(t, "start")
				removed := rapid.IntRange(1, n-start).Draw(t, "removed")
				outcome := rapid.SampledFrom([]string{"", `,"outcome":"canceled"`}).Draw(t, "outcome")
				l.add(session.TypeInboxSpliced, `{"target":%q,"start":%d,"removedCount":%d,"inserted":[]%s}`, target, start, removed, outcome)
				lists[target] -= removed
			}
		case 4:
			l.add(session.TypeUserMessage, "%s", msg())
		case 5, 6:
			if stepOpen {
				usage := ""
				if rapid.Bool().Draw(t, "usage") {
					usage = fmt.Sprintf(`,"usage":{"inputTokens":%d,"outputTokens":%d}`, rapid.IntRange(0, 9).Draw(t, "in"), rapid.IntRange(0, 9).Draw(t, "out"))
				}
				l.add(session.TypeAssistantMessage, `{"turn":%d,"step":%d,"message":{"id":"a%d","role":"assistant","content":[],"source":{"kind":"model","provider":"p","model":"m"}}%s}`, turn, step, len(l.events), usage)
			}
		case 7:
			l.add(session.TypeDescriptor, "%s", rapid.SampledFrom([]string{goodDescriptor, `{"version":2,"mode":"one-shot","provider":"q"}`, `{"version":2}`, `{"version":3}`, `[]`}).Draw(t, "descriptor"))
		case 8:
			l.add(session.TypeTitle, `{"title":%q}`, rapid.SampledFrom([]string{"", "A", "B"}).Draw(t, "title"))
		case 9:
			l.add(session.TypeSandboxMode, `{"mode":"x"}`)
		case 11:
			l.add(session.TypeImported, `{}`)
		case 12:
			output := rapid.SampledFrom([]string{"", `,"outputSeq":0`}).Draw(t, "output")
			l.add(session.TypeSettled, `{"epoch":%d,"stopReason":%q%s}`, rapid.IntRange(0, 3).Draw(t, "epoch"), rapid.SampledFrom([]string{"completed", "aborted", ""}).Draw(t, "stop"), output)
		case 10:
			if !turnOpen && seed == 0 {
				// What was queued for the ancestor is not in the heir's inbox.
				seed = int64(len(l.events))
				clear(lists)
			}
		}
	}
	if len(l.events) == 0 {
		l.add(session.TypeEndSeed, `{}`)
	}
	at := int64(1)
	for i := range l.events {
		at += rapid.Int64Range(-1, 9).Draw(t, "pause") // clocks are set back, too
		l.events[i].Time = at
	}
	return l, seed
}

// Folding eagerly, refolding from the start and going on from any checkpoint that
// was taken anywhere lead to the same value (core D24, D25, D28, D30).
func TestEagerFoldEqualsRefold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, seed := drawLog(rt)
		head := int64(len(l.events))
		r := registry(t)
		reg := sessions(t, session.Config{})
		rec := record(l, seed)
		s, err := reg.Restore(rec, values(l.events))
		if err != nil {
			rt.Fatalf("the drawn log is not legal: %v", err)
		}

		// Eager: as a live session does it, with batches cut at random and some of
		// them failing.
		cells := r.NewCells(&rec.Header)
		stored := map[string]session.Checkpoint{}
		batched := int64(0) // the head that the last batch left
		cut := rapid.Int64Range(seed, head).Draw(rt, "cut")
		for e := range s.Events(seed) {
			if e.Seq >= cut {
				break
			}
			cells.Apply(&e)
			if rapid.Bool().Draw(rt, "flush") {
				batch := cells.Take(e.Seq + 1)
				if rapid.Bool().Draw(rt, "fails") {
					cells.Untake()
					continue
				}
				batched = e.Seq + 1
				for _, c := range batch {
					stored[c.Key] = c
				}
			}
		}
		for _, c := range stored {
			rec.Cells = append(rec.Cells, c)
		}

		store := &shelf{events: l.events}
		for _, u := range r.Units() {
			live, err := r.Fold(t.Context(), s, u.Key)
			if err != nil {
				rt.Fatal(err)
			}
			want := string(live.AppendJSON(nil))
			refold, err := r.Read(t.Context(), store, record(l, seed), u.Key)
			if err != nil {
				rt.Fatal(err)
			}
			if got := string(refold.AppendJSON(nil)); got != want {
				rt.Fatalf("%s: refold %s, eager %s", u.Key, got, want)
			}
			if u.Key == session.CellIdentity {
				continue // see below: a stored identity is final
			}
			from, err := r.Read(t.Context(), store, rec, u.Key)
			if err != nil {
				rt.Fatal(err)
			}
			if got := string(from.AppendJSON(nil)); got != want {
				rt.Fatalf("%s: from the checkpoint %s, eager %s", u.Key, got, want)
			}
		}

		// A record as it stood after its last batch, whenever that was, is exact.
		if old := rec; len(stored) > 0 {
			old.Head = batched
			shelf := &shelf{events: l.events[:batched]}
			for _, u := range r.Units() {
				got, err := r.Read(t.Context(), shelf, old, u.Key)
				if err != nil {
					rt.Fatal(err)
				}
				old := old
				old.Cells = nil
				want, err := r.Read(t.Context(), shelf, old, u.Key)
				if err != nil {
					rt.Fatal(err)
				}
				if got, want := string(got.AppendJSON(nil)), string(want.AppendJSON(nil)); got != want {
					rt.Fatalf("%s as of head %d: from its cell %s, refold %s", u.Key, batched, got, want)
				}
			}
		}

		// Exact: a batch that is stored to the head leaves nothing to be read.
		for e := range s.Events(cut) {
			cells.Apply(&e)
		}
		for _, c := range cells.Take(head) {
			stored[c.Key] = c
		}
		rec.Cells = nil
		for _, c := range stored {
			rec.Cells = append(rec.Cells, c)
		}
		if head == seed {
			return
		}
		state, ok := projection.StateOf(&rec)
		live, err := r.Fold(t.Context(), s, session.CellState)
		if err != nil || !ok {
			rt.Fatal(ok, err)
		}
		opts := cmp.AllowUnexported(projection.State{}, projection.Usage{})
		if diff := cmp.Diff(live.Value, &state, opts); diff != "" {
			rt.Fatalf("StateOf (-fold +record):\n%s", diff)
		}
		if state.State != projection.Running && (state.State == projection.Parked) != (state.Waking > 0 && s.Parked()) || state.Imported != s.Imported() {
			rt.Fatalf("the state is %+v, and the session's inbox parked: %v", state, s.Parked())
		}
		epochs, stop := s.Epochs(), ""
		if epochs.Last != nil {
			stop = epochs.Last.StopReason
		}
		if state.Epoch != epochs.Settled || state.Settled != stop || state.Unsettled != epochs.Worked {
			rt.Fatalf("the state is %+v, and the session's epochs are %+v", state, epochs)
		}
		usage, ok := projection.UsageOf(&rec)
		live, err = r.Fold(t.Context(), s, session.CellUsage)
		if err != nil || !ok {
			rt.Fatal(ok, err)
		}
		if diff := cmp.Diff(live.Value, &usage, opts); diff != "" {
			rt.Fatalf("UsageOf (-fold +record):\n%s", diff)
		}
		identity, ok := projection.IdentityOf(&rec)
		live, err = r.Fold(t.Context(), s, session.CellIdentity)
		if err != nil {
			rt.Fatal(err)
		}
		if want := live.Value.(*projection.Identity); ok != (want != nil) || ok && cmp.Diff(*want, identity) != "" {
			rt.Fatalf("IdentityOf %+v, %v; the fold has %+v", identity, ok, want)
		}
	})
}

// core D24: events that concern no unit cost no allocation.
func TestApplyAllocatesNothingForOtherEvents(t *testing.T) {
	r := registry(t)
	cells := r.NewCells(&session.Header{ID: "s"})
	for _, e := range benchEvents(t) {
		switch e.Type {
		case session.TypeStepStart, session.TypeStepEnd, session.TypeToolCall:
			if n := testing.AllocsPerRun(100, func() { cells.Apply(&e) }); n != 0 {
				t.Errorf("%s: %v allocations", e.Type, n)
			}
		}
	}
}

// benchEvents are the events of a one-shot child that calls one tool.
func benchEvents(t testing.TB) []session.Event {
	l := &log{}
	l.add(session.TypeInboxSpliced, `{"target":"next-turn","start":0,"inserted":[{"id":"m1","role":"user","content":[{"type":"text","text":"look around"}],"source":{"kind":"user"}}]}`)
	l.add(session.TypeTurnStart, `{"turn":1}`)
	l.add(session.TypeDescriptor, goodDescriptor)
	l.add(session.TypeInboxSpliced, `{"target":"next-turn","start":0,"removedCount":1,"inserted":[]}`)
	l.add(session.TypeStepStart, `{"turn":1,"step":1}`)
	l.add(session.TypeUserMessage, `{"id":"m1","role":"user","content":[{"type":"text","text":"look around"}],"source":{"kind":"user"}}`)
	l.add(session.TypeRequestHeader, `{"header":{"config":{"provider":"p","model":"m"}},"reason":"initial"}`)
	l.add(session.TypeAssistantMessage, `{"turn":1,"step":1,"message":{"id":"a1","role":"assistant","content":[{"type":"tool-call","id":"c1","name":"list","arguments":"{}"}],"source":{"kind":"model","provider":"p","model":"m"}},"usage":{"inputTokens":10,"outputTokens":5}}`)
	l.add(session.TypeToolCall, `{"turn":1,"step":1,"callId":"c1","name":"list","arguments":"{}"}`)
	l.add(session.TypeToolResult, `{"turn":1,"step":1,"message":{"id":"r1","role":"user","content":[{"type":"tool-result","toolCallId":"c1","content":[{"type":"text","text":"a b c"}]}],"source":{"kind":"tool","callId":"c1"}}}`)
	l.add(session.TypeStepEnd, `{"turn":1,"step":1}`)
	l.add(session.TypeStepStart, `{"turn":1,"step":2}`)
	l.add(session.TypeAssistantMessage, `{"turn":1,"step":2,"message":{"id":"a2","role":"assistant","content":[{"type":"text","text":"done"}],"source":{"kind":"model","provider":"p","model":"m"}},"usage":{"inputTokens":20,"outputTokens":5}}`)
	l.add(session.TypeStepEnd, `{"turn":1,"step":2}`)
	l.add(session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"completed"}}`)
	s, err := sessions(t, session.Config{}).Restore(record(l, 0), values(l.events))
	if err != nil {
		t.Fatal(err)
	}
	var out []session.Event
	for e := range s.Events(0) {
		out = append(out, e)
	}
	return out
}

// BenchmarkApply folds the events of one child through the built-in units.
func BenchmarkApply(b *testing.B) {
	events := benchEvents(b)
	r := registry(b)
	h := &session.Header{ID: "s"}
	b.Run("child", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			cells := r.NewCells(h)
			for i := range events {
				cells.Apply(&events[i])
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
	})
	b.Run("other", func(b *testing.B) {
		cells := r.NewCells(h)
		e := events[4]
		b.ReportAllocs()
		for b.Loop() {
			cells.Apply(&e)
		}
	})
	b.Run("child with one Take", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			cells := r.NewCells(h)
			for i := range events {
				cells.Apply(&events[i])
			}
			cells.Take(int64(len(events)))
		}
	})
}

// BenchmarkOf reads one row of a listing.
func BenchmarkOf(b *testing.B) {
	events := benchEvents(b)
	r := registry(b)
	rec := session.Record{Header: session.Header{ID: "s"}, Head: int64(len(events))}
	cells := r.NewCells(&rec.Header)
	for i := range events {
		cells.Apply(&events[i])
	}
	rec.Cells = cells.Take(rec.Head)
	b.ReportAllocs()
	for b.Loop() {
		_, ok1 := projection.IdentityOf(&rec)
		_, ok2 := projection.UsageOf(&rec)
		_, ok3 := projection.TitleOf(&rec)
		_, ok4 := projection.StateOf(&rec)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			b.Fatal("a cell is missing")
		}
	}
}
