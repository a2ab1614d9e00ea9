package session_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Which sequences are legal, and the rule that the last event of an illegal one
// breaks (core S11–S14, I4, I5, I6, I11, I14; the shorthand is explained at script).
var grammarCases = []struct{ name, log, rule string }{
	{"S15 a healthy turn", "i T1 q S1.1 u h x k1.1 a1.1:c c1.1:c r1.1:c s1.1 S1.2 a1.2 s1.2 t1", ""},
	{"S12 a turn without steps", "T1 t1 T2 t2", ""},
	{"S12 user message outside a turn", "u T1 t1 u", ""},
	{"I4 turn numbers begin at 1", "T2", "I4"},
	{"I4 turn numbers begin at 1, not 0", "T0", "I4"},
	{"I4 turn numbers do not skip", "T1 t1 T3", "I4"},
	{"I4 turn numbers do not repeat", "T1 t1 T1", "I4"},
	{"I4 turns do not overlap", "T1 T2", "I4"},
	{"I4 turn end without a turn", "t1", "I4"},
	{"I4 turn end of another turn", "T1 t2", "I4"},
	{"I4 turn end twice", "T1 t1 t1", "I4"},
	{"I4 turn end inside a step", "T1 S1.1 t1", "I4"},
	{"I4 step outside a turn", "S1.1", "I4"},
	{"I4 step after its turn", "T1 t1 S1.1", "I4"},
	{"I4 step of another turn", "T1 S2.1", "I4"},
	{"I4 step numbers begin at 1", "T1 S1.2", "I4"},
	{"I4 step numbers do not skip", "T1 S1.1 s1.1 S1.3", "I4"},
	{"I4 step numbers begin again in each turn", "T1 S1.1 s1.1 t1 T2 S2.1 s2.1 t2", ""},
	{"I4 steps do not overlap", "T1 S1.1 S1.2", "I4"},
	{"I4 step end without a step", "T1 s1.1", "I4"},
	{"I4 step end of another step", "T1 S1.1 s1.2", "I4"},

	{"I5 chunk outside a step", "T1 k1.1", "I5"},
	{"I5 chunk of another step", "T1 S1.1 k1.2", "I5"},
	{"I5 assistant message outside a step", "T1 a1.1", "I5"},
	{"I5 assistant message of another turn", "T1 S1.1 a2.1", "I5"},
	{"I5 tool call outside a step", "T1 c1.1:c", "I5"},
	{"I5 tool call of another step", "T1 S1.1 a1.1:c c1.2:c", "I5"},
	{"I5 call id twice in one message", "T1 S1.1 a1.1:c,c", "I5"},
	{"I5 call dispatched twice", "T1 S1.1 a1.1:c c1.1:c c1.1:c", "I5"},
	{"S13 result without a call", "T1 S1.1 a1.1:c r1.1:c", "I5"},
	{"S13 never-started result without a call", "T1 S1.1 a1.1:c n1.1:c s1.1", ""},
	{"S13 never-started result of nobody's call", "T1 S1.1 a1.1:c n1.1:d", "I5"},
	{"S13 result twice", "T1 S1.1 a1.1:c c1.1:c r1.1:c r1.1:c", "I5"},
	{"S13 result outside a step", "T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 r1.1:c", "I5"},
	{"S13 a call of an earlier step is not this step's", "T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 S1.2 r1.2:c", "I5"},
	{"S13 step end with a call that has no result", "T1 S1.1 a1.1:c,d c1.1:c r1.1:c s1.1", "S13"},
	{"S13 parallel calls answered in any order", "T1 S1.1 a1.1:c,d c1.1:c c1.1:d r1.1:d r1.1:c s1.1", ""},
	{"D45 a spill before its result", "T1 S1.1 a1.1:c c1.1:c z1.1:c r1.1:c s1.1 t1", ""},
	{"D45 spills of parallel calls", "T1 S1.1 a1.1:c,d c1.1:c c1.1:d z1.1:d r1.1:d z1.1:c r1.1:c s1.1", ""},
	{"D45 spill outside a step", "T1 z1.1:c", "I5"},
	{"D45 spill in another step", "T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 S1.2 z1.1:c", "I5"},
	{"D45 spill of an earlier step's call", "T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 S1.2 z1.2:c", "I5"},
	{"D45 spill of a call that was not dispatched", "T1 S1.1 a1.1:c z1.1:c", "I5"},
	{"D45 spill behind its result", "T1 S1.1 a1.1:c c1.1:c r1.1:c z1.1:c", "I5"},
	{"D45 spill twice", "T1 S1.1 a1.1:c c1.1:c z1.1:c z1.1:c", "I5"},
	{"D45 spilled again in the next step", "T1 S1.1 a1.1:c c1.1:c z1.1:c r1.1:c s1.1 S1.2 a1.2:c c1.2:c z1.2:c r1.2:c s1.2", ""},
	{"S13 a spill is no result", "T1 S1.1 a1.1:c c1.1:c z1.1:c s1.1", "S13"},
	{"S13 an id may come again in another step", "T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 S1.2 a1.2:c c1.2:c r1.2:c s1.2", ""},
	{"I5 todos outside a turn", "w", "I5"},
	{"I5 todos between steps", "T1 w t1", ""},
	{"I5 request header outside a turn", "h", "I5"},
	{"I5 request context outside a turn", "x", "I5"},

	{"I11 retries", "T1 S1.1 y1.1:a,1,p Y1.1:a,1 y1.1:b,2,p Y1.1:b,2 a1.1 s1.1 t1", ""},
	{"I11 retry outside a step", "T1 y1.1:a,1,p", "I11"},
	{"I11 the first retry is number 1", "T1 S1.1 y1.1:a,2,p", "I11"},
	{"I11 retries do not skip", "T1 S1.1 y1.1:a,1,p Y1.1:a,1 y1.1:b,3,p", "I11"},
	{"I11 retries do not repeat", "T1 S1.1 y1.1:a,1,p Y1.1:a,1 y1.1:b,1,p", "I11"},
	{"I11 a route switch restarts the count, M18", "T1 S1.1 y1.1:a,1,p Y1.1:a,1 y1.1:b,1,q Y1.1:b,1", ""},
	{"I11 a new step restarts the count", "T1 S1.1 y1.1:a,1,p Y1.1:a,1 s1.1 S1.2 y1.2:b,1,p", ""},
	{"I11 a retry starts that was not announced", "T1 S1.1 Y1.1:a,1", "I11"},
	{"I11 another retry starts", "T1 S1.1 y1.1:a,1,p Y1.1:b,1", "I11"},
	{"I11 a retry starts twice", "T1 S1.1 y1.1:a,1,p Y1.1:a,1 Y1.1:a,1", "I11"},
	{"I11 cancelled while waiting, M19", "T1 S1.1 y1.1:a,1,p s1.1 t1", ""},
	{"I11 a retry starts in the next step", "T1 S1.1 y1.1:a,1,p s1.1 S1.2 Y1.2:a,1", "I11"},

	{"I14 standalone", "P0:a u p:a", ""},
	{"I14 standalone across turns", "P0:a T1 t1 p:a", ""},
	{"I14 inside a turn", "T1 P1:a m:a p1:a t1", ""},
	{"I14 two at once", "P0:a P0:b", "I14"},
	{"I14 closes another", "P0:a p:b", "I14"},
	{"I14 closes none", "p:a", "I14"},
	{"I14 names a turn that is not open", "P1:a", "I14"},
	{"I14 names another turn", "T1 P2:a", "I14"},
	{"I14 ends in another turn than it began in", "T1 P1:a p0:a", "I14"},
	{"I14 a second summary", "T1 P1:a m:a m:a", "I14"},
	{"I14 a summary of another compaction", "T1 P1:a m:b", "I14"},
	{"I14 a summary outside", "T1 m:a", "I14"},
	{"I14 crosses the end of its turn", "T1 P1:a t1", "I14"},
	{"S38 a repair leaves it open", "T1 P1:a ti1 E P0:b p0:b", ""},
	{"S38 stale only behind an end-seed", "T1 P1:a ti1 P0:b", "I14"},
	{"I6 end-seed anywhere", "E T1 E S1.1 E a1.1 s1.1 t1 E", ""},
}

func TestGrammar(t *testing.T) {
	for _, tc := range grammarCases {
		t.Run(tc.name, func(t *testing.T) {
			payloads := script(t, tc.log)
			check := func(err error) {
				t.Helper()
				var broken *session.InvariantError
				switch {
				case tc.rule == "" && err != nil:
					t.Errorf("refused: %v", err)
				case tc.rule != "" && err == nil:
					t.Errorf("accepted, want a breach of %s", tc.rule)
				case tc.rule != "" && (!errors.As(err, &broken) || broken.Rule != tc.rule):
					t.Errorf("refused with %v, want a breach of %s", err, tc.rule)
				case tc.rule != "" && broken.Seq != int64(len(payloads)-1):
					t.Errorf("seq %d is blamed, want %d", broken.Seq, len(payloads)-1)
				}
			}
			// One by one.
			s := newSession(t)
			for i, p := range payloads {
				_, err := s.Append(session.Draft{Payload: p})
				if i == len(payloads)-1 {
					check(err)
				} else if err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
			}
			// In one hold: all or nothing.
			batch := newSession(t)
			_, err := batch.Append(drafts(payloads...)...)
			check(err)
			if err != nil {
				if h := batch.Head(); h != 0 {
					t.Errorf("%d events of a refused hold are in the log", h)
				}
				return
			}
			if a, b := export(s), export(batch); a != b {
				t.Errorf("one by one and in one hold differ:\n%s\n%s", a, b)
			}
			// Read back.
			if _, err := newRegistry(t, session.Config{}).Verify(recordOf(s, s.Head()), sequence(rawEvents(t, s))); err != nil {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

// core S13: what a scheduler fault of another writer left is readable.
func TestMissingResultIsReadable_S13(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, script(t, "T1 S1.1 a1.1:c n1.1:c s1.1 t1")...)
	lines := strings.Split(strings.TrimSpace(export(s)), "\n")
	lines = append(lines[:3], lines[4:]...) // without the result
	events := parseLog(t, strings.Join(lines, "\n"))
	if _, err := newRegistry(t, session.Config{}).Verify(recordOf(s, int64(len(events))), sequence(events)); err != nil {
		t.Error(err)
	}
}

// parseLog reads envelopes, one a line, and numbers them anew.
func parseLog(t testing.TB, text string) []session.Event {
	t.Helper()
	var out []session.Event
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		e, err := session.ParseEnvelope([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		e.Seq = int64(len(out))
		out = append(out, e)
	}
	return out
}

// core S16–S18, I6: the rules that one event can break by itself.
func TestSurfaceRules_I6(t *testing.T) {
	const setup = "T1 S1.1 u u u a1.1:c,d c1.1:c c1.1:d r1.1:c r1.1:d s1.1" // u at 2, 3, 4; a at 5; r at 8, 9
	replace := func(start, end int64) session.SurfaceOp {
		return session.SurfaceOp{Kind: session.OpReplace, Start: start, End: end}
	}
	add := session.SurfaceOp{Kind: session.OpAppend}
	rewritten := func(call string, fail bool) *session.ToolResult {
		p := outcome(1, 1, call, "pruned", "")
		p.Message.Content[0].IsError = fail
		return p
	}
	for _, tc := range []struct {
		name  string
		draft session.Draft
		ok    bool
	}{
		{"S16 append is the default", session.Draft{Payload: say("x", "")}, true},
		{"S16 others carry no operation", session.Draft{Payload: &session.TodoWrite{}, Op: add}, false},
		{"S16 others carry no sources", session.Draft{Payload: &session.TodoWrite{}, Sources: []int64{0}}, false},
		{"S17 replace one", session.Draft{Payload: say("x", ""), Op: replace(3, 3), Sources: []int64{3}}, true},
		{"S17 replace a range", session.Draft{Payload: say("x", ""), Op: replace(2, 5), Sources: []int64{2, 3, 4, 5}}, true},
		{"S17 start behind end", session.Draft{Payload: say("x", ""), Op: replace(4, 2), Sources: []int64{2, 3, 4}}, false},
		{"S17 start is no node", session.Draft{Payload: say("x", ""), Op: replace(0, 3), Sources: []int64{0, 2, 3}}, false},
		{"S17 end is no node", session.Draft{Payload: say("x", ""), Op: replace(3, 6), Sources: []int64{3, 4, 5, 6}}, false},
		{"S17 end lies ahead", session.Draft{Payload: say("x", ""), Op: replace(3, 99), Sources: []int64{3, 4}}, false},
		{"S18 a shadowed node is not cited", session.Draft{Payload: say("x", ""), Op: replace(2, 4), Sources: []int64{2, 4}}, false},
		{"S18 no sources at all", session.Draft{Payload: say("x", ""), Op: replace(2, 2)}, false},
		{"S18 more than the shadowed nodes", session.Draft{Payload: say("x", ""), Op: replace(2, 2), Sources: []int64{2, 0, 5}}, true},
		{"S18 source twice", session.Draft{Payload: say("x", ""), Sources: []int64{2, 3, 2}}, false},
		{"S18 source is itself", session.Draft{Payload: say("x", ""), Sources: []int64{11}}, false},
		{"S18 source is negative", session.Draft{Payload: say("x", ""), Sources: []int64{-1}}, false},
		{"S18 empty sources", session.Draft{Payload: say("x", ""), Sources: []int64{}}, false},
		{"S18 a tool result is rewritten", session.Draft{Payload: rewritten("c", false), Op: replace(8, 8), Sources: []int64{8}}, true},
		{"S18 as another call's", session.Draft{Payload: rewritten("d", false), Op: replace(8, 8), Sources: []int64{8}}, false},
		{"S18 as a failure", session.Draft{Payload: rewritten("c", true), Op: replace(8, 8), Sources: []int64{8}}, false},
		{"S18 over two results", session.Draft{Payload: rewritten("c", false), Op: replace(8, 9), Sources: []int64{8, 9}}, false},
		{"S18 over a message", session.Draft{Payload: rewritten("c", false), Op: replace(2, 2), Sources: []int64{2}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			mustAppend(t, s, script(t, setup)...)
			before, gen := s.History()
			_, err := s.Append(tc.draft)
			var broken *session.InvariantError
			switch {
			case tc.ok && err != nil:
				t.Fatal(err)
			case !tc.ok && (!errors.As(err, &broken) || broken.Rule != "I6"):
				t.Fatalf("refused with %v, want a breach of I6", err)
			case tc.ok:
				return
			}
			after, gen2 := s.History()
			if len(before) != len(after) || gen != gen2 || s.Head() != 11 {
				t.Error("a refused event left something behind")
			}
		})
	}
	t.Run("S18 an assistant message may cite an empty list", func(t *testing.T) {
		s := newSession(t)
		mustAppend(t, s, script(t, "T1 S1.1")...)
		if _, err := s.Append(session.Draft{Payload: reply(1, 1, "a"), Sources: []int64{}}); err != nil {
			t.Fatal(err)
		}
		if got := export(s); !strings.Contains(got, `"sourceEventSeqs":[]`) {
			t.Errorf("the empty list was lost:\n%s", got)
		}
	})
	t.Run("I5 a result is rewritten only inside a turn", func(t *testing.T) {
		s := newSession(t)
		mustAppend(t, s, script(t, setup+" t1")...)
		_, err := s.Append(session.Draft{Payload: rewritten("c", false), Op: replace(8, 8), Sources: []int64{8}})
		var broken *session.InvariantError
		if !errors.As(err, &broken) || broken.Rule != "I5" {
			t.Errorf("refused with %v, want a breach of I5", err)
		}
	})
}

// A hold is checked as its events come one after the other: a replacement sees
// what the hold itself did to the surface.
func TestReplacementsInOneHold(t *testing.T) {
	replace := func(p session.Payload, start, end int64, sources ...int64) session.Draft {
		return session.Draft{Payload: p, Op: session.SurfaceOp{Kind: session.OpReplace, Start: start, End: end}, Sources: sources}
	}
	s := newSession(t)
	mustAppend(t, s, script(t, "u u u")...)
	_, err := s.Append(replace(say("x", "x"), 0, 1, 0, 1), replace(say("y", "y"), 1, 1, 1))
	var broken *session.InvariantError
	if !errors.As(err, &broken) || broken.Rule != "I6" || broken.Seq != 4 {
		t.Fatalf("a node that the hold itself shadowed was replaced: %v", err)
	}
	if s.Head() != 3 {
		t.Fatalf("head is %d", s.Head())
	}
	if _, err := s.Append(session.Draft{Payload: say("z", "z")}, replace(say("w", "w"), 2, 3, 2, 3)); err != nil {
		t.Fatalf("a node that the hold itself appended was not found: %v", err)
	}
	msgs, gen := s.History()
	if got := strings.Join(texts(msgs), " "); got != "m0:text m0 m1:text m1 w:w" || gen != 1 {
		t.Errorf("history %q, generation %d", got, gen)
	}
}

// What an append takes, a reader takes: values that no codec reads back are
// refused, and leave nothing behind (core S3, G3).
func TestAppendRefusesWhatNobodyCanRead_S3(t *testing.T) {
	nan, minusZero := math.NaN(), math.Copysign(0, -1)
	usage := func(u message.Usage) *session.AssistantMessage {
		p := reply(1, 1, "a")
		p.Usage = &u
		return p
	}
	source := func(s message.Source) *session.UserMessage {
		p := say("x", "x")
		p.Message.Source = s
		return p
	}
	block := func(b message.Block) *session.UserMessage {
		p := say("x", "x")
		p.Message.Content = []message.Block{b}
		return p
	}
	meta := outcome(1, 1, "c", "x", "")
	meta.Meta = []byte(`{"a":1`)
	noRole := say("x", "x")
	noRole.Message.Role = message.RoleAssistant
	two := outcome(1, 1, "c", "x", "")
	two.Message.Content = append(two.Message.Content, message.Text("x"))
	other := outcome(1, 1, "c", "x", "")
	other.Message.Source = other.Message.Source.With(func(d *message.SourceDetails) { d.CallID = "d" })
	header := func(h session.RequestHeader) []session.Payload {
		h.Reason = session.HeaderInitial
		return []session.Payload{&h, session.NewRequestHeader(h)}
	}
	cases := map[string][]session.Payload{
		"invalid UTF-8":              {say("x", "a\xffb"), &session.Title{Title: "\xc3"}},
		"invalid UTF-8 in a header":  header(session.RequestHeader{System: "a\xffb"}),
		"NaN":                        header(session.RequestHeader{Config: session.CallConfig{Temperature: &nan}}),
		"minus zero":                 header(session.RequestHeader{Config: session.CallConfig{Temperature: &minusZero}}),
		"a negative limit":           header(session.RequestHeader{Config: session.CallConfig{MaxTokens: -1}}),
		"an unsafe integer":          header(session.RequestHeader{Config: session.CallConfig{MaxTokens: 1 << 53}}),
		"a tool without an object":   header(session.RequestHeader{Tools: []session.ToolSpec{{Name: "t", Parameters: []byte(`[]`)}}}),
		"a negative count":           {usage(message.Usage{InputTokens: -1})},
		"an unsafe count":            {usage(message.Usage{OutputTokens: 1 << 53})},
		"a failure's negative delay": {&session.TurnEnd{Turn: 1, Kind: session.EndError, Failure: &message.Failure{RetryAfterMS: -1}}},
		"a negative window":          {&session.RequestContext{ContextWindow: -1}},
		"a negative epoch":           {&session.Settled{Epoch: -1, OutputSeq: -1}},
		"a negative splice":          {&session.InboxSpliced{Target: session.NextTurn, Start: -1, Inserted: []message.Message{userMessage("x", "")}}, &session.InboxSpliced{Target: session.NextTurn, Removed: -1}},
		"an unknown list":            {&session.InboxSpliced{Target: "x", Inserted: []message.Message{userMessage("x", "")}}},
		"a broken source":            {source(message.NewSource("odd", message.SourceDetails{Raw: []byte(`{"kind":`)})), source(message.Source{})},
		"a broken replay state":      {source(message.NewSource(message.SourceModel, message.SourceDetails{ReplayState: []byte(`-0`)}))},
		"a broken block":             {block(message.Block{Type: "odd", Raw: []byte(`{"a":1,"a":2}`)}), block(message.Block{}), block(message.ToolCall("", "n", ""))},
		"broken meta":                {meta},
		"the wrong role":             {noRole},
		"two blocks in a result":     {two},
		"a result of another call":   {other},
		"an unknown type":            {&session.Opaque{Type: "odd/thing", Data: []byte(`{}`)}},
		"no object":                  {&session.Opaque{Type: "odd/thing", Skip: true, Data: []byte(`1`)}},
		"a known type in disguise":   {&session.Opaque{Type: session.TypeTurnStart, Data: []byte(`{"turn":7}`)}},
		"an unknown todo status":     {&session.TodoWrite{Todos: []session.Todo{{Status: "odd"}}}},
	}
	for name, payloads := range cases {
		t.Run(name, func(t *testing.T) {
			for i, p := range payloads {
				s := newSession(t)
				mustAppend(t, s, script(t, "T1 S1.1 a1.1:c c1.1:c")...)
				before := export(s)
				if _, err := s.Append(session.Draft{Payload: p}); err == nil {
					t.Errorf("payload %d was accepted: %s", i, export(s)[len(before):])
				}
				if export(s) != before {
					t.Errorf("payload %d left something behind", i)
				}
			}
		})
	}
}

func verify(t *testing.T, s *session.Session) session.Report {
	t.Helper()
	rep, err := newRegistry(t, session.Config{}).Verify(recordOf(s, s.Head()), sequence(rawEvents(t, s)))
	if err != nil {
		t.Error(err)
	}
	return rep
}
