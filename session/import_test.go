package session_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// How much of a log is missing is told as the store tells it; where it cannot tell, the
// session is as little opened, and the error says why.
func TestIncompleteDamaged(t *testing.T) {
	for value, want := range map[string]string{
		`{"events":9}`: "3 of its 9 events are stored", `{"events":3}`: "", `{"events":-1}`: `checkpoint "import" is damaged: `, `{`: `checkpoint "import" is damaged: `,
		`{}`: `field "events" is missing`, `{"event":3}`: `unknown key "event"`,
	} {
		rec := session.Record{Head: 3, Cells: []session.Checkpoint{{Key: "title"}, {Key: "import", Value: []byte(value)}}}
		err := rec.Incomplete()
		if want == "" && err == nil {
			continue
		}
		if !errors.Is(err, session.ErrIncomplete) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "-1") && !strings.Contains(value, "-1") {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}

// What came in with an import waits until a person sends a message that wakes; one
// that is taken back before a turn took it counts for nothing; another import parks
// anew.
func TestParked(t *testing.T) {
	of := func(id string, kind message.SourceKind) *session.InboxSpliced {
		p := insert(session.NextTurn, 0, id)
		if p.Inserted[0].Source.Kind = kind; kind != message.SourceUser {
			p.Inserted[0].Source = p.Inserted[0].Source.With(func(d *message.SourceDetails) { d.SenderSessionID = "x" })
		}
		return p
	}
	quiet := insert(session.NextStep, 0, "quiet")
	quiet.NoWake = true
	claim := func(start, n int64) *session.InboxSpliced {
		return &session.InboxSpliced{Target: session.NextTurn, Start: start, Removed: n}
	}
	cancel := func(start, n int64) *session.InboxSpliced {
		p := claim(start, n)
		p.Canceled = true
		return p
	}
	person := of("person", message.SourceUser)
	for _, tt := range []struct {
		name   string
		events []session.Payload
		want   bool
	}{
		{"nothing was imported", []session.Payload{person}, false},
		{"nothing was queued", []session.Payload{&session.Imported{}}, false},
		{"queued here", []session.Payload{&session.Imported{}, of("a", message.SourceCoordinator)}, false},
		{"came queued", []session.Payload{of("a", message.SourceUser), &session.Imported{}}, true},
		{"came queued without a wake", []session.Payload{quiet, &session.Imported{}}, true},
		{"another agent sent", []session.Payload{of("a", message.SourceUser), &session.Imported{}, of("b", message.SourceCoordinator)}, true},
		{"a child reported", []session.Payload{of("a", message.SourceUser), &session.Imported{}, of("b", message.SourceSubagentSettled)}, true},
		{"a person put something by", []session.Payload{of("a", message.SourceUser), &session.Imported{}, quiet}, true},
		{"a person sent", []session.Payload{of("a", message.SourceUser), &session.Imported{}, person}, false},
		{"a person sent, and a turn took it", []session.Payload{of("a", message.SourceUser), &session.Imported{}, person, claim(0, 1)}, false},
		{"a person took it back", []session.Payload{of("a", message.SourceUser), &session.Imported{}, person, cancel(0, 1)}, true},
		{"a person sent twice and took one back", []session.Payload{of("a", message.SourceUser), &session.Imported{}, person, of("more", message.SourceUser), cancel(0, 1)}, false},
		{"what came was taken away", []session.Payload{of("a", message.SourceUser), &session.Imported{}, cancel(0, 1)}, false},
		{"imported again", []session.Payload{of("a", message.SourceUser), &session.Imported{}, person, &session.Imported{}}, true},
	} {
		s := newSession(t)
		mustAppend(t, s, tt.events...)
		verify(t, s)
		back, err := newRegistry(t, session.Config{}).Restore(recordOf(s, s.Head()), sequence(rawEvents(t, s)))
		if err != nil {
			t.Fatal(err)
		}
		if s.Parked() != tt.want || back.Parked() != tt.want {
			t.Errorf("%s: parked %v, read back %v", tt.name, s.Parked(), back.Parked())
		}
	}
}

// The fold of the parking agrees with a naive reading of the log.
func TestParkedMatchesOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSession(t)
		type waiting struct{ foreign, sent bool }
		var queue []waiting
		imported, sent := false, 0
		for i := range rapid.IntRange(1, 40).Draw(rt, "length") {
			switch n := len(queue); rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				p := insert(session.NextTurn, int64(n), fmt.Sprint("m", i))
				person := rapid.Bool().Draw(rt, "person")
				if !person {
					p.Inserted[0].Source = message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: "p"})
				}
				mustAppend(t, s, p)
				queue = append(queue, waiting{sent: person && imported})
				if person && imported {
					sent++
				}
			case 1, 2:
				if n == 0 {
					continue
				}
				at := rapid.IntRange(0, n-1).Draw(rt, "at")
				k := rapid.IntRange(1, n-at).Draw(rt, "number")
				cancelled := rapid.Bool().Draw(rt, "cancelled")
				mustAppend(t, s, &session.InboxSpliced{Target: session.NextTurn, Start: int64(at), Removed: int64(k), Canceled: cancelled})
				for _, w := range queue[at : at+k] {
					if cancelled && w.sent {
						sent--
					}
				}
				queue = append(queue[:at:at], queue[at+k:]...)
			case 3:
				mustAppend(t, s, &session.Imported{})
				imported, sent = true, 0
				for j := range queue {
					queue[j] = waiting{foreign: true}
				}
			}
			want := false
			for _, w := range queue {
				want = want || w.foreign && sent == 0
			}
			if s.Parked() != want || s.Imported() != imported {
				rt.Fatalf("event %d: parked %v, imported %v, want %v, %v", i, s.Parked(), s.Imported(), want, imported)
			}
		}
		verify(t, s)
	})
}

// A log that does not end in a whole turn is no seed, and can be imported; a length
// of time that another writer did not round is read.
func TestForeignLog(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, &session.TurnStart{Turn: 1}, &session.StepStart{Turn: 1, Step: 1})
	lines := rawEvents(t, s)
	retry, err := session.ParseEnvelope([]byte(`{"type":"llm/retry","seq":2,"time":1,"data":{"retryId":"y","turn":1,"step":1,"provider":"p","mode":"normal","policyKey":"k","retry":1,"maxRetries":5,"delayMs":500.6,"failure":{"message":"m","code":"SERVER","providerRetryAfterMs":1.25}}}`))
	if err != nil {
		t.Fatal(err)
	}
	reg := newRegistry(t, session.Config{})
	p, err := reg.PayloadOf(retry)
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := p.(*session.Retry); !ok || r.DelayMS != 501 || r.Failure.RetryAfterMS != 1 {
		t.Errorf("read as %+v", p)
	}
	rep, err := reg.CheckImport(session.Header{ID: "s"}, sequence(append(lines, retry)))
	if err != nil || rep.Events != 3 || rep.OpenTurn != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	var broken *session.InvariantError
	if _, err := reg.Prepare(t.Context(), session.New{Seed: &session.Seed{Events: lines}}); !errors.As(err, &broken) || broken.Rule != "S25" {
		t.Errorf("as a seed: %v", err)
	}
	for _, delay := range []string{"-1", "-0.5", `"1"`, "1e300", "null"} {
		e := session.RawEvent(retry, []byte(`{"retryId":"y","turn":1,"step":1,"provider":"p","mode":"normal","policyKey":"k","retry":1,"delayMs":`+delay+`,"failure":{"message":"m","code":"SERVER"}}`))
		if _, err := reg.PayloadOf(e); err == nil {
			t.Errorf("a delay of %s is read", delay)
		}
	}
}

// design § 7: a log that is only checked is not kept, however long its events are:
// nothing that the rules remember holds on to one.
func TestCheckingKeepsNoEvent(t *testing.T) {
	const size, steps = 1 << 20, 40
	text := strings.Repeat("x", size)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	seq := int64(0)
	var yield func(session.Event, error) bool
	give := func(typ session.Type, format string, args ...any) bool {
		e := session.Event{Type: typ, Seq: seq}
		if typ == session.TypeAssistantMessage || typ == session.TypeToolResult || typ == session.TypeUserMessage {
			e.Op = session.OpAppend
		}
		seq++
		return yield(session.RawEvent(e, fmt.Appendf(nil, format, args...)), nil)
	}
	var held int64
	_, err := newRegistry(t, session.Config{}).CheckImport(session.Header{ID: "s"}, func(y func(session.Event, error) bool) {
		yield = y
		before := heap()
		give(session.TypeTurnStart, `{"turn":1}`)
		for i := 1; i <= steps; i++ {
			ok := give(session.TypeStepStart, `{"turn":1,"step":%d}`, i) &&
				give(session.TypeUserMessage, `{"id":"u%d","role":"user","content":[{"type":"text","text":"%s"}],"source":{"kind":"user"}}`, i, text) &&
				give(session.TypeAssistantMessage, `{"turn":1,"step":%d,"message":{"id":"a%d","role":"assistant","content":[{"type":"text","text":"%s"},{"type":"tool-call","id":"c%d","name":"n","arguments":"{}"}],"source":{"kind":"model","provider":"p","model":"m"}}}`, i, i, text, i) &&
				give(session.TypeToolCall, `{"turn":1,"step":%d,"callId":"c%d","name":"n","arguments":"{}"}`, i, i) &&
				give(session.TypeToolResult, `{"turn":1,"step":%d,"message":{"id":"r%d","role":"user","content":[{"type":"tool-result","toolCallId":"c%d","content":[{"type":"text","text":"%s"}]}],"source":{"kind":"tool","callId":"c%d"}}}`, i, i, i, text, i) &&
				give(session.TypeStepEnd, `{"turn":1,"step":%d}`, i)
			if !ok {
				return
			}
		}
		held = heap() - before
	})
	if err != nil {
		t.Fatal(err)
	}
	if held > 10*size {
		t.Errorf("%d bytes are held of %d events of %d", held, 3*steps, size)
	}
}
