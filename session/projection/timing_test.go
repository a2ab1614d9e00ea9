package projection_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// at is an event at a time.
type at struct {
	time int64
	line
}

func timed(lines ...at) *log {
	l := &log{}
	for i, x := range lines {
		l.add(x.typ, "%s", x.data)
		l.events[i].Time = x.time
	}
	return l
}

// core D33; seam PROJ-04, PROJ-05, PROJ-06, PROJ-07.
func TestTiming_D33(t *testing.T) {
	start := func(time int64) at { return at{time, line{session.TypeTurnStart, `{"turn":1}`}} }
	end := func(time int64) at {
		return at{time, line{session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"completed"}}`}}
	}
	descriptor := func(time int64) at { return at{time, line{session.TypeDescriptor, goodDescriptor}} }
	other := func(time int64) at { return at{time, line{session.TypeTitle, `{"title":"T"}`}} }
	for _, tc := range []struct {
		name string
		seed int64
		log  *log
		want projection.Timing
	}{
		{"PROJ-04 an empty log", 0, timed(), projection.Timing{}},
		{"PROJ-07 other events before any turn", 0, timed(other(5), descriptor(9)), projection.Timing{}},
		{"PROJ-07 an end without a turn", 0, timed(end(5), other(7)), projection.Timing{}},
		{"PROJ-06 turns add up, pauses do not", 0, timed(descriptor(1), start(10), end(14), other(50), start(100), end(103)), projection.Timing{Settled: 7}},
		{"PROJ-06 a clock that was set back takes nothing away", 0, timed(start(10), end(14), start(100), end(90)), projection.Timing{Settled: 4}},
		{"PROJ-06 an open turn, up to the latest event", 0, timed(start(10), end(14), start(20), other(29)), projection.Timing{Settled: 4, Since: 20, Through: 29}},
		{"PROJ-06 an open turn whose clock was set back", 0, timed(start(20), other(12)), projection.Timing{Since: 20, Through: 20}},
		{"PROJ-05 the descriptor in mid-turn: the turn counts from its own start", 0, timed(start(10), descriptor(15), end(30)), projection.Timing{Settled: 20}},
		{"PROJ-05 turns closed before the descriptor do not count", 0, timed(start(10), end(20), descriptor(30), start(40), end(45)), projection.Timing{Settled: 5}},
		{"PROJ-05 every descriptor begins anew", 0, timed(start(10), descriptor(11), end(20), descriptor(21), start(30), descriptor(31), end(33)), projection.Timing{Settled: 3}},
		{"PROJ-05 a descriptor that cannot be read begins anew, too", 0, timed(start(10), end(20), at{21, line{session.TypeDescriptor, `{"version":3}`}}, start(30), end(31)), projection.Timing{Settled: 1}},
		{"inherited turns are the ancestor's", 3, timed(start(1), descriptor(2), end(9), start(10), descriptor(11), end(12)), projection.Timing{Settled: 2}},
		{"without a descriptor every turn counts", 0, timed(start(10), end(20), start(30), end(31)), projection.Timing{Settled: 11}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := record(tc.log, tc.seed)
			snap, err := registry(t).Read(t.Context(), &shelf{events: tc.log.events}, rec, session.CellState)
			if err != nil {
				t.Fatal(err)
			}
			last := int64(0)
			if n := len(tc.log.events); n > 0 {
				last = tc.log.events[n-1].Time
			}
			if got := snap.Value.(*projection.State).Timing(last); got != tc.want {
				t.Errorf("timing %+v, want %+v", got, tc.want)
			}
			if want := tc.want.Settled + tc.want.Through - tc.want.Since; tc.want.Total() != want {
				t.Errorf("total %d, want %d", tc.want.Total(), want)
			}
			// The checkpoint brings the same.
			rec.Cells = []session.Checkpoint{{Key: session.CellState, Version: 1, Seq: rec.Head - 1, Value: snap.AppendJSON(nil)}}
			if rec.Head == tc.seed {
				return // there is none of an empty log
			}
			if s, ok := projection.StateOf(&rec); !ok || s.Timing(last) != tc.want {
				t.Errorf("from the checkpoint: %+v, %v", s.Timing(last), ok)
			}
		})
	}
}
