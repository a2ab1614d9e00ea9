package acp

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// OOPX-24, OOPX-27: whatever an agent sends is read without a fault of our own, and what is
// shown of it is one line of bounded length or a word that the protocol defines.
func FuzzMessages(f *testing.F) {
	for _, seed := range []string{
		`{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"hi"}}}`,
		`{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"image"}}}`,
		`{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","messageId":7}}`,
		`{"sessionId":"s","update":{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hidden"}}}`,
		`{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"x\ny","kind":"edit","status":"failed","rawInput":{"a":1}}}`,
		`{"sessionId":"s","update":{"sessionUpdate":"current_mode_update","currentModeId":"ask"}}`,
		`{"sessionId":"s","update":{"sessionUpdate":"config_option_update","configOptions":[7,{"id":"m","category":"mode","currentValue":"a","options":[{"value":"a"},{"group":"g","options":[{"value":"b"}]}]}]}}`,
		`{"sessionId":"s","toolCall":{"toolCallId":"c","kind":[],"title":null},"options":[{"optionId":"a","kind":"allow_once"},{"optionId":"","kind":"reject_once"}]}`,
		`{"sessionId":"s","modes":{"currentModeId":"a","availableModes":[{"id":"a"}]},"configOptions":[]}`,
		`{"protocolVersion":1,"agentInfo":{"name":"x","version":"1"}}`, `{"protocolVersion":2.5}`,
		`{"stopReason":"end_turn"}`, `{"stopReason":"the secret"}`, `{"update":[]}`, `null`, ``, `[`,
	} {
		f.Add([]byte(seed))
	}
	line := func(t *testing.T, s string) {
		t.Helper()
		if len(s) > 124 || strings.ContainsAny(s, "\n\r\x00\x1b") {
			t.Errorf("%q is shown", s)
		}
	}
	question := func(t *testing.T, c toolCall) {
		t.Helper()
		q := c.question()
		if q.Tool != "unknown" && !slices.Contains(toolKinds[:], q.Tool) {
			t.Errorf("%q is no kind of tool", q.Tool)
		}
		line(t, q.CallID)
		line(t, q.Summary)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		u, err := decodeUpdate(raw)
		if err != nil && remote.Words(err) != err.Error() {
			t.Errorf("%v is not in fixed words", err)
		}
		a := answer{room: len(raw)}
		if u.chunk != nil {
			if !a.add(*u.chunk) && len(u.chunk.text) <= len(raw) {
				t.Errorf("no room for %q", u.chunk.text)
			}
			if got := a.text(); got != u.chunk.text && strings.TrimSpace(u.chunk.text) != "" {
				t.Errorf("%q became %q", u.chunk.text, got)
			}
		}
		if u.tool != nil {
			question(t, *u.tool)
		}
		if p, ok := decodePermission(raw); ok {
			question(t, p.call)
			if id, ok := p.choose("allow_once", "allow_always"); ok && id == "" {
				t.Error("an option without an id was chosen")
			}
		}
		if o, err := decodeOpened(raw); err == nil && (o.session == "" || o.option != "" && len(raw) == 0) {
			t.Errorf("%+v", o)
		}
		if hello, err := decodeInitialized(raw); err == nil {
			line(t, hello.about)
		}
		if reason, diagnostic, err := decodeStop(raw); err == nil {
			word := strings.TrimPrefix(diagnostic, "the agent's turn ended with the stop reason ")
			if !slices.Contains([]string{"end_turn", "max_tokens", "refusal", "cancelled", "max_turn_requests", "unknown"}, word) || reason == "" {
				t.Errorf("%s: %q is shown", reason, diagnostic)
			}
		}
	})
}

// An agent cannot open messages without end either, with nothing in them.
func TestMessagesWithoutEnd(t *testing.T) {
	a := answer{room: 20}
	for i := range 30 {
		if !a.add(chunk{message: strconv.Itoa(100 + i)}) {
			return
		}
	}
	t.Errorf("%d messages are kept", len(a.messages))
}

// Who decides is shown the title of a call of which nothing else is told.
func TestQuestionWithoutInput(t *testing.T) {
	for want, c := range map[string]toolCall{
		`{"title":"rm -rf \"x\""}`: {title: `rm -rf "x"`},
		`{"command":"ls"}`:         {title: "x", input: []byte(`{"command":"ls"}`)},
		"":                         {id: "c"},
	} {
		if got := string(c.question().Args); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
