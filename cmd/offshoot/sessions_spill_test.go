package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// spillLog is a turn with one result that was cut, as the agent loop writes it.
func spillLog(id session.ID, text string) []session.Draft {
	return []session.Draft{
		draft(&session.TurnStart{Turn: 1}), draft(&session.StepStart{Turn: 1, Step: 1}), user("u1", "Print it all.", message.UserSource()), header("gpt-x"),
		says(1, 1, "a1", nil, message.ToolCall("k1", "bash", `{"command":"cat all"}`)),
		draft(&session.ToolCall{Turn: 1, Step: 1, CallID: "k1", Name: "bash", Arguments: `{"command":"cat all"}`}),
		draft(session.NewToolSpill(session.ToolSpill{Session: id, Turn: 1, Step: 1, CallID: "k1", Bytes: int64(len(text))}, []string{text})),
		toolResult(1, 1, "k1", text[:20]+"…", "", nil),
		draft(&session.StepEnd{Turn: 1, Step: 1}), draft(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}),
	}
}

// core D45: people see one line for a result that was kept whole, and all of it when
// they ask for it; every view of a log with such an event stays readable.
func TestShowSpill_D45(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	text := strings.Repeat("all \x1b[31mred\x1b[0m <&>\tü\n", 400<<10/24)
	a.write(session.New{ID: "main"}, spillLog("main", text)...)
	s, err := a.reg.PrepareStored(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	prefix := s.Prefix()
	if err := a.reg.Abandon(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	a.write(session.New{ID: "fork", Seed: &session.Seed{Prefix: prefix}})
	a.close()

	note := fmt.Sprintf("· #1 bash was cut for the model; all its %s bytes: spill:main/6\n", thousands(int64(len(text))))
	for _, id := range []string{"main", "fork"} {
		got := h.must("sessions", "show", id)
		if strings.Count(got, note) != 1 || len(got) > 4000 {
			t.Errorf("show %s: %d bytes:\n%.3000s", id, len(got), got)
		}
		events := strings.Split(h.must("sessions", "show", id, "--events"), "\n")
		if !strings.Contains(events[6], `tool/spill ignorable  {"turn":1,"step":1,"callId":"k1","sessionId":"main","bytes":`) || len(events[6]) > 1000 {
			t.Errorf("events of %s: %d bytes: %.1000s", id, len(events[6]), events[6])
		}
		raw := strings.SplitAfter(h.must("sessions", "show", id, "--events", "--json"), "\n")
		if len(raw[6]) < len(text) || h.must("sessions", "show", id, "--event", "6", "--json") != raw[6] {
			t.Errorf("the event of %s alone is not the %d bytes that it is in the log", id, len(raw[6]))
		}
		if got := h.must("sessions", "show", id, "--event", "6"); got != text {
			t.Errorf("the text of %s: %d of %d bytes", id, len(got), len(text))
		}
		if got := h.must("sessions", "show", id, "--json"); len(got) > 8000 || strings.Count(got, `"type":"tool/result"`) != 1 {
			t.Errorf("show %s --json: %d bytes", id, len(got))
		}
	}
	if got := h.must("sessions", "show", "main", "--event", "0"); got != "{\"turn\":1}\n" {
		t.Errorf("event 0: %q", got)
	}
	if got := h.must("sessions", "verify"); !strings.Contains(got, "2 sessions, 21 events, 2 turns: no fault") {
		t.Errorf("verify: %s", got)
	}
	h.must("sessions", "tree")
	h.must("sessions", "list")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"main", "--event", "99"}, 1, "session main has no event 99: its log has 10 events"},
		{[]string{"main", "--event", "-1"}, 2, "flag --event: -1 is no place in a log"},
		{[]string{"main", "--event", "6", "--events"}, 2, "give one of them"},
		{[]string{"none", "--event", "6"}, 1, "not found"},
	} {
		o := h.run(append([]string{"sessions", "show"}, c.args...)...)
		if o.code != c.code || o.out != "" || !strings.Contains(o.errOut, c.want) || strings.Count(o.errOut, "\n") != 1 {
			t.Errorf("%v: %d, %q, %q", c.args, o.code, o.out, o.errOut)
		}
	}
}

// A spill that says something else than it holds is damage.
func TestVerifySpill(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	a.raw(session.Header{ID: "bad", CreatedAt: epoch}, "bad", nil,
		rawEvent(session.TypeTurnStart, `{"turn":1}`), rawEvent(session.TypeStepStart, `{"turn":1,"step":1}`),
		rawEvent(session.TypeToolCall, `{"turn":1,"step":1,"callId":"k1","name":"bash","arguments":""}`),
		rawEvent(session.TypeToolSpill, `{"turn":1,"step":1,"callId":"k1","sessionId":"bad","bytes":4,"texts":["abc"]}`))
	a.close()
	checkFaults(t, h.run("sessions", "verify"), []string{"session bad is corrupt at seq 3: tool/spill: a spill of 4 bytes"})
}
