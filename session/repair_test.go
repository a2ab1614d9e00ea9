package session_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// crash stores what a process that died left behind.
func crash(t *testing.T, log string) *fake {
	t.Helper()
	s := newSession(t)
	mustAppend(t, s, script(t, log)...)
	f := newFake()
	f.rows["s"] = &fakeRow{header: s.Header(), meta: s.Meta(), events: rawEvents(t, s)}
	return f
}

// core S36–S38: what a repair adds to a log that a crash cut.
func TestRepair_S36(t *testing.T) {
	const notStarted, unknown = session.CodeToolNotStarted, session.CodeToolOutcomeUnknown
	result := func(call string, seq int, code string, sources string) string {
		return fmt.Sprintf("tool/result %s interrupted-tool-result-%s-%d %s", sources, call, seq, code)
	}
	for _, tc := range []struct {
		name, log string
		want      []string
	}{
		{"nothing", "", nil},
		{"balanced", "u T1 S1.1 a1.1 s1.1 t1", nil},
		{"before the step", "T1", []string{"turn/end"}},
		{"between steps", "T1 S1.1 s1.1", []string{"turn/end"}},
		{"before the answer", "T1 S1.1 u h", []string{"step/end", "turn/end"}},
		{"no calls", "T1 S1.1 a1.1", []string{"step/end", "turn/end"}},
		{"never started", "T1 S1.1 a1.1:c,d", []string{result("c", 3, notStarted, "-"), result("d", 4, notStarted, "-"), "step/end", "turn/end"}},
		{"started", "T1 S1.1 a1.1:c c1.1:c", []string{result("c", 4, unknown, "[3]"), "step/end", "turn/end"}},
		{"D45 between spill and result", "T1 S1.1 a1.1:c,d c1.1:c c1.1:d z1.1:c", []string{result("c", 6, unknown, "[3]"), result("d", 7, unknown, "[4]"), "step/end", "turn/end"}},
		{"in the model's order", "T1 S1.1 a1.1:c,d,e c1.1:e c1.1:c r1.1:e", []string{result("c", 6, unknown, "[4]"), result("d", 7, notStarted, "-"), "step/end", "turn/end"}},
		{"all answered", "T1 S1.1 a1.1:c c1.1:c r1.1:c", []string{"step/end", "turn/end"}},
		{"only the open step's calls", "T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 S1.2 a1.2:d", []string{result("d", 8, notStarted, "-"), "step/end", "turn/end"}},
		{"S38 an open bracket stays open", "T1 P1:k", []string{"turn/end"}},
		{"a pending retry", "T1 S1.1 y1.1:a,1,p", []string{"step/end", "turn/end"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := crash(t, tc.log)
			before := len(f.rows["s"].events)
			reg := newRegistry(t, session.Config{Store: f})
			s, err := reg.PrepareStored(t.Context(), "s")
			if err != nil {
				t.Fatal(err)
			}
			repaired := f.row("s").events[before:]
			var got []string
			for _, e := range repaired {
				line := string(e.Type)
				p, err := reg.PayloadOf(e)
				if err != nil {
					t.Fatal(err)
				}
				switch p := p.(type) {
				case *session.ToolResult:
					sources := "-"
					if e.Sources() != nil {
						sources = fmt.Sprint(e.Sources())
					}
					line += fmt.Sprintf(" %s %s %s", sources, p.Message.ID, p.ErrorCode)
					if !p.Message.Content[0].IsError {
						t.Error("an invented result is no error")
					}
				case *session.TurnEnd:
					if p.Kind != session.EndInterrupted {
						t.Errorf("the turn ends %q", p.Kind)
					}
				}
				if e.Time != f.rows["s"].events[before-1].Time {
					t.Errorf("S37: %s has time %d", e.Type, e.Time)
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("repair (-want +got):\n%s", diff)
			}
			// S39: stored first; S24, S26: then marked as inherited by this process.
			if s.FirstLive() != int64(before+len(repaired)) || s.Durable() != s.FirstLive() {
				t.Errorf("firstLive %d, durable %d, stored %d", s.FirstLive(), s.Durable(), before+len(repaired))
			}
			if e, ok := s.Event(s.FirstLive()); !ok || e.Type != session.TypeEndSeed {
				t.Error("the marker is missing")
			}
			turn, open, _ := s.LastTurn()
			if open {
				t.Errorf("turn %d is still open", turn)
			}
			verify(t, s)
			// The next turn is legal, a stale bracket notwithstanding.
			next := turn + 1
			mustAppend(t, s, script(t, fmt.Sprintf("P0:new p:new T%d S%d.1 a%d.1 s%d.1 t%d", next, next, next, next, next))...)
			if err := reg.Abandon(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

// core S37: repairing the same log twice, at other times, gives the same bytes.
func TestRepairIsByteStable_S37(t *testing.T) {
	repaired := func() string {
		f := crash(t, "i u T1 q S1.1 u h a1.1:c,d c1.1:c")
		reg, err := session.NewRegistry(t.Context(), session.Config{Store: f})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reg.PrepareStored(t.Context(), "s"); err != nil {
			t.Fatal(err)
		}
		return string(session.AppendBatch(nil, f.row("s").events))
	}
	a, b := repaired(), repaired()
	if a != b || !strings.Contains(a, `"kind":"interrupted"`) {
		t.Errorf("repaired differently:\n%s\n%s", a, b)
	}
}

// core S13, S36: the model reads what happened: a crash, or a fault of a process
// that goes on.
func TestUnansweredTexts_S13(t *testing.T) {
	const log = "T1 S1.1 a1.1:c,d c1.1:c"
	texts := func(drafts []session.Payload) []string {
		var out []string
		for _, p := range drafts {
			if r, ok := p.(*session.ToolResult); ok {
				text := message.JoinText(r.Message.Content[0].Content)
				head, _, _ := strings.Cut(text, ".")
				out = append(out, r.ErrorCode+" "+head)
			}
		}
		return out
	}
	s := newSession(t)
	mustAppend(t, s, script(t, log)...)
	var live, repaired []session.Payload
	for _, d := range s.Unanswered() {
		live = append(live, d.Payload)
	}
	restored, err := newRegistry(t, session.Config{Store: crash(t, log)}).PrepareStored(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	for e := range restored.Events(0) {
		repaired = append(repaired, e.Payload())
	}
	for _, c := range []struct {
		got  []session.Payload
		want []string
	}{
		{live, []string{
			"TOOL_OUTCOME_UNKNOWN Error: an internal fault kept the outcome of this call from being recorded",
			"TOOL_NOT_STARTED Error: an internal fault kept this call from being started",
		}},
		{repaired, []string{
			"TOOL_OUTCOME_UNKNOWN Error: the process stopped while this call was running",
			"TOOL_NOT_STARTED Error: the process stopped before this call was started",
		}},
	} {
		if diff := cmp.Diff(c.want, texts(c.got)); diff != "" {
			t.Errorf("texts (-want +got):\n%s", diff)
		}
	}
}

// core S35, D12: looking at a log repairs nothing.
func TestReadersRepairNothing_S35(t *testing.T) {
	f := crash(t, "i u T1 S1.1 a1.1:c c1.1:c")
	reg := newRegistry(t, session.Config{Store: f})
	rec, events, err := f.Inspect(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	rep, err := reg.Verify(rec, events)
	if err != nil {
		t.Fatal(err)
	}
	if want := (session.Report{Events: 6, Turns: 1, OpenTurn: 1, Queued: 1}); rep != want {
		t.Errorf("report %+v, want %+v", rep, want)
	}
	rec, events, err = f.Inspect(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	s, err := reg.Restore(rec, events)
	if err != nil {
		t.Fatal(err)
	}
	if _, open, _ := s.LastTurn(); !open || s.Head() != 6 {
		t.Error("the restored session was repaired")
	}
	if _, err := s.Append(drafts(say("x", "x"))...); !errors.Is(err, session.ErrClosed) {
		t.Errorf("appending to a restored session: %v", err)
	}
	if got := f.count("open") + f.count("append") + f.count("create"); got != 0 || f.head("s") != 6 {
		t.Errorf("%d writes", got)
	}
	// A live session is not repaired either.
	live := newSession(t)
	mustAppend(t, live, script(t, "T1 S1.1 a1.1:c")...)
	if live.Head() != 3 {
		t.Error("a live session was repaired")
	}
}

// core S39: without the store's word there is no repaired session.
func TestRepairFails_S39(t *testing.T) {
	f := crash(t, "T1 S1.1")
	f.setHook(func(op string) verdict {
		return verdict{skip: op == "append", err: map[string]error{"append": errDisk}[op]}
	})
	reg := newRegistry(t, session.Config{Store: f})
	if _, err := reg.PrepareStored(t.Context(), "s"); !errors.Is(err, errDisk) {
		t.Fatalf("prepared: %v", err)
	}
	if f.row("s").held {
		t.Error("ownership was kept")
	}
	f.setHook(nil)
	if _, err := reg.PrepareStored(t.Context(), "s"); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}

// core D11: what Verify names as the first fault.
func TestVerify_D11(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, script(t, "i u T1 S1.1 a1.1 s1.1 t1")...)
	head := s.Head()
	reg := newRegistry(t, session.Config{})
	var corrupt *session.CorruptError
	var broken *session.InvariantError
	var unsupported *session.UnsupportedError
	with := func(i int, line string) []session.Event {
		events := rawEvents(t, s)
		e, err := session.ParseEnvelope([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		events[i] = e
		return events
	}
	for _, tc := range []struct {
		name   string
		rec    session.Record
		events []session.Event
		target any
		seq    int64
	}{
		{"missing events", recordOf(s, head+1), rawEvents(t, s), &corrupt, head},
		{"more events", recordOf(s, head-1), rawEvents(t, s), &corrupt, head},
		{"a gap", recordOf(s, head), append(rawEvents(t, s)[:2], rawEvents(t, s)[3:]...), &broken, 3},
		{"a malformed payload", recordOf(s, head), with(2, `{"type":"turn/start","seq":2,"time":0,"data":{"turn":"1"}}`), &corrupt, 2},
		{"an illegal event", recordOf(s, head), with(2, `{"type":"turn/start","seq":2,"time":0,"data":{"turn":2}}`), &broken, 2},
		{"an impossible splice", recordOf(s, head), with(2, `{"type":"agent/inbox/spliced","seq":2,"time":0,"data":{"target":"next-turn","start":5,"removedCount":1,"inserted":[]}}`), &broken, 2},
		{"an unknown type", recordOf(s, head), with(2, `{"type":"odd","seq":2,"time":0,"data":{}}`), &unsupported, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := reg.Verify(tc.rec, sequence(tc.events))
			if !errors.As(err, tc.target) {
				t.Fatalf("error %v", err)
			}
			seq := map[any]int64{}
			if corrupt != nil {
				seq[&corrupt] = corrupt.Seq
			}
			if broken != nil {
				seq[&broken] = broken.Seq
			}
			if unsupported != nil {
				seq[&unsupported] = unsupported.Seq
			}
			if seq[tc.target] != tc.seq {
				t.Errorf("seq %d is blamed: %v", seq[tc.target], err)
			}
		})
	}
	rec := recordOf(s, head)
	rec.Header.SeedLength = head + 1
	if _, err := reg.Verify(rec, sequence(rawEvents(t, s))); !errors.As(err, &corrupt) {
		t.Errorf("a seed longer than the log: %v", err)
	}
	rec = recordOf(s, head)
	rec.Cells = []session.Checkpoint{{Key: "x", Seq: head}}
	if _, err := reg.Verify(rec, sequence(rawEvents(t, s))); !errors.As(err, &corrupt) {
		t.Errorf("a checkpoint ahead of the log: %v", err)
	}
	rec = recordOf(s, head)
	rec.Header.Version = 3
	if _, err := reg.Verify(rec, sequence(rawEvents(t, s))); !errors.As(err, &unsupported) {
		t.Errorf("a newer version: %v", err)
	}
	fault := errors.New("read error")
	_, err := reg.Verify(recordOf(s, head), func(yield func(session.Event, error) bool) { yield(session.Event{}, fault) })
	if !errors.Is(err, fault) {
		t.Errorf("a read error: %v", err)
	}
}
