package session_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// core S1, S2, S3, S16, S17; G1, G3.
func TestParseEnvelope_S1(t *testing.T) {
	const ok = `{"type":"turn/start","seq":0,"time":5,"data":{"turn":1}}`
	for _, tc := range []struct {
		name, line, want string // want is the line as it is written again; "" for an error
	}{
		{"plain", ok, ok},
		{"any order and white space", " { \"data\" : { \"turn\" : 1 } ,\n\"seq\":0,\"time\":5,\"type\":\"turn/start\"} ", ok},
		{"meaningful zeros", `{"type":"a","seq":0,"time":0,"data":{}}`, `{"type":"a","seq":0,"time":0,"data":{}}`},
		{"negative time", `{"type":"a","seq":0,"time":-1,"data":{}}`, `{"type":"a","seq":0,"time":-1,"data":{}}`},
		{"ignorable", `{"type":"a","seq":1,"time":0,"ignorable":true,"data":{}}`, `{"type":"a","seq":1,"time":0,"ignorable":true,"data":{}}`},
		{"append", `{"type":"a","seq":1,"time":0,"surfaceOp":"append","data":{}}`, `{"type":"a","seq":1,"time":0,"surfaceOp":"append","data":{}}`},
		{"replace", `{"type":"a","seq":9,"time":0,"surfaceOp":{"end":3,"op":"replace","start":0},"sourceEventSeqs":[0,3],"data":{}}`, `{"type":"a","seq":9,"time":0,"surfaceOp":{"op":"replace","start":0,"end":3},"sourceEventSeqs":[0,3],"data":{}}`},
		{"empty sources", `{"type":"a","seq":9,"time":0,"sourceEventSeqs":[],"data":{}}`, `{"type":"a","seq":9,"time":0,"sourceEventSeqs":[],"data":{}}`},
		{"payload bytes survive", `{"type":"a","seq":0,"time":0,"data":{"s":"<&>\u00e9é\/","n":1.50,"e":1E3}}`, `{"type":"a","seq":0,"time":0,"data":{"s":"<&>\u00e9é\/","n":1.50,"e":1E3}}`},

		{"another key", `{"type":"a","seq":0,"time":0,"data":{},"id":"x"}`, ""},
		{"another key's case", `{"Type":"a","seq":0,"time":0,"data":{}}`, ""},
		{"key twice", `{"type":"a","seq":0,"seq":0,"time":0,"data":{}}`, ""},
		{"no type", `{"seq":0,"time":0,"data":{}}`, ""},
		{"empty type", `{"type":"","seq":0,"time":0,"data":{}}`, ""},
		{"no seq", `{"type":"a","time":0,"data":{}}`, ""},
		{"no time", `{"type":"a","seq":0,"data":{}}`, ""},
		{"no data", `{"type":"a","seq":0,"time":0}`, ""},
		{"negative seq", `{"type":"a","seq":-1,"time":0,"data":{}}`, ""},
		{"fractional seq", `{"type":"a","seq":1.0,"time":0,"data":{}}`, ""},
		{"seq as a string", `{"type":"a","seq":"0","time":0,"data":{}}`, ""},
		{"null seq", `{"type":"a","seq":null,"time":0,"data":{}}`, ""},
		{"unsafe time", `{"type":"a","seq":0,"time":9007199254740992,"data":{}}`, ""},
		{"ignorable false", `{"type":"a","seq":0,"time":0,"ignorable":false,"data":{}}`, ""},
		{"ignorable null", `{"type":"a","seq":0,"time":0,"ignorable":null,"data":{}}`, ""},
		{"unknown operation", `{"type":"a","seq":0,"time":0,"surfaceOp":"prepend","data":{}}`, ""},
		{"operation is null", `{"type":"a","seq":0,"time":0,"surfaceOp":null,"data":{}}`, ""},
		{"append as an object", `{"type":"a","seq":0,"time":0,"surfaceOp":{"op":"append"},"data":{}}`, ""},
		{"replace without end", `{"type":"a","seq":0,"time":0,"surfaceOp":{"op":"replace","start":0},"data":{}}`, ""},
		{"replace without op", `{"type":"a","seq":0,"time":0,"surfaceOp":{"start":0,"end":0},"data":{}}`, ""},
		{"replace with more", `{"type":"a","seq":0,"time":0,"surfaceOp":{"op":"replace","start":0,"end":0,"x":0},"data":{}}`, ""},
		{"sources of text", `{"type":"a","seq":0,"time":0,"sourceEventSeqs":["0"],"data":{}}`, ""},
		{"negative source", `{"type":"a","seq":0,"time":0,"sourceEventSeqs":[-1],"data":{}}`, ""},
		{"sources are null", `{"type":"a","seq":0,"time":0,"sourceEventSeqs":null,"data":{}}`, ""},
		{"data behind the event", ok + `{}`, ""},
		{"an array", `[` + ok + `]`, ""},
		{"nothing", ``, ""},
		{"duplicate key deep down", `{"type":"a","seq":0,"time":0,"data":{"a":[{"b":1,"b":1}]}}`, ""},
		{"minus zero deep down", `{"type":"a","seq":0,"time":0,"data":{"a":-0}}`, ""},
		{"unsafe integer deep down", `{"type":"a","seq":0,"time":0,"data":{"a":9007199254740993}}`, ""},
		{"unpaired surrogate deep down", `{"type":"a","seq":0,"time":0,"data":{"a":"\ud800"}}`, ""},
		{"invalid UTF-8 deep down", "{\"type\":\"a\",\"seq\":0,\"time\":0,\"data\":{\"a\":\"\xff\"}}", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := session.ParseEnvelope([]byte(tc.line))
			switch {
			case tc.want == "" && err == nil:
				t.Errorf("accepted as %s", e.AppendEnvelope(nil))
			case tc.want != "" && err != nil:
				t.Error(err)
			case tc.want != "":
				if got := string(e.AppendEnvelope(nil)); got != tc.want {
					t.Errorf("got  %s\nwant %s", got, tc.want)
				}
			}
		})
	}
}

func TestParseBatch(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, script(t, "T1 S1.1 u a1.1 s1.1 t1")...)
	var all []session.Event
	for e := range s.Events(0) {
		all = append(all, e)
	}
	data := session.AppendBatch(nil, all[2:])
	for from := int64(0); from <= 7; from++ {
		got, err := session.ParseBatch(nil, "s", data, 2, from)
		if err != nil {
			t.Fatal(err)
		}
		if want := all[min(max(from, 2), 6):]; string(session.AppendBatch(nil, got)) != string(session.AppendBatch(nil, want)) {
			t.Errorf("from %d: %d events, want %d", from, len(got), len(want))
		}
	}
	var corrupt *session.CorruptError
	if _, err := session.ParseBatch(nil, "s", data, 3, 0); !errors.As(err, &corrupt) || corrupt.Seq != 3 {
		t.Errorf("shifted: %v", err)
	}
	if _, err := session.ParseBatch(nil, "s", data[:len(data)-1], 2, 0); !errors.As(err, &corrupt) || corrupt.Seq != 5 {
		t.Errorf("torn: %v", err)
	}
	if got, err := session.ParseBatch(nil, "s", nil, 0, 0); got != nil || err != nil {
		t.Errorf("empty: %v, %v", got, err)
	}
}

// core S7, S8: what this build does not know, on the read side.
func TestUnknownTypes_S7(t *testing.T) {
	line := func(typ, more string) string {
		return `{"type":"` + typ + `","seq":0,"time":0` + more + `,"data":{"x":1}}`
	}
	extra := session.Config{ExtraTypes: []session.ExtraType{{Type: "acme/mark"}, {Type: "acme/hint", Ignorable: true}}}
	for _, tc := range []struct {
		name, line string
		cfg        session.Config
		supported  bool
	}{
		{"unknown", line("acme/mark", ""), session.Config{}, false},
		{"unknown but ignorable", line("acme/mark", `,"ignorable":true`), session.Config{}, true},
		{"registered", line("acme/mark", ""), extra, true},
		{"reserved", line("plan/mode", ""), session.Config{}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reg := newRegistry(t, tc.cfg)
			s, err := reg.Restore(session.Record{Header: session.Header{ID: "s"}, Head: 1}, sequence(parseLog(t, tc.line)))
			var unsupported *session.UnsupportedError
			var corrupt *session.CorruptError
			switch {
			case tc.supported && err != nil:
				t.Fatal(err)
			case !tc.supported && (!errors.As(err, &unsupported) || errors.As(err, &corrupt) || unsupported.ID != "s" || unsupported.Seq != 0):
				t.Fatalf("error %v", err)
			case tc.supported:
				if got := strings.TrimSpace(export(s)); got != tc.line {
					t.Errorf("got  %s\nwant %s", got, tc.line)
				}
			}
		})
	}
	reg := newRegistry(t, extra)
	s := prepare(t, reg, session.New{})
	mustAppend(t, s, &session.Opaque{Type: "acme/hint", Data: []byte("{\n  \"a b\": [1, 2]\n}")})
	if got := export(s); !strings.Contains(got, `"ignorable":true,"data":{"a b":[1,2]}`) {
		t.Errorf("an extra type was written as %s", got)
	}
	mustAppend(t, s, &session.Opaque{Type: "other/hint", Skip: true, Data: []byte(`{}`)})
	for _, bad := range []session.Type{"", session.TypeTurnStart, "plan/mode"} {
		if _, err := session.NewRegistry(t.Context(), session.Config{ExtraTypes: []session.ExtraType{{Type: bad}}}); err == nil {
			t.Errorf("extra type %q was taken", bad)
		}
	}
}

// everything is a legal log with every payload type in each of its forms.
func everything(t testing.TB) []session.Draft {
	temperature := 0.7
	descriptor := func(d session.Descriptor) *session.DescriptorEvent {
		p, err := session.NewDescriptor(d)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	text := func(s string) *string { return &s }
	failure := &message.Failure{Message: "too many <requests> & more", Code: "RATE_LIMIT", Status: 429, RetryAfterMS: 1500, RequestID: "req-1"}
	user := func(id string, src message.Source, blocks ...message.Block) *session.UserMessage {
		return &session.UserMessage{Message: message.Message{ID: message.ID(id), Role: message.RoleUser, Content: blocks, Source: src}}
	}
	full := reply(1, 1, "a1", message.Reasoning("think"), message.Text("say \"é\" \u2028 \x01"), message.ToolCall("c1", "read", `{"path": "x"}`), message.ToolCall("c2", "bash", ``), message.ToolCall("c3", "bash", ``))
	full.Message.Source = full.Message.Source.With(func(d *message.SourceDetails) {
		d.ReplayState = []byte("{ \"blocks\": [ {\"sig\": \"a b\\\" c\"} ] }\n")
	})
	full.Usage = &message.Usage{InputTokens: 10, OutputTokens: 20, CacheReadTokens: 0, CacheWriteTokens: 3, ReasoningTokens: 4, HasCacheRead: true, HasCacheWrite: true, HasReasoning: true}
	partial := reply(1, 2, "a2", message.Text("par"))
	partial.Interrupted = true
	partial.Usage = &message.Usage{}
	image := message.Block{Type: message.BlockImage, Raw: []byte(`{"id": "att-1"}`)}
	failed := outcome(1, 1, "c2", "no", "TOOL_FAILED")
	failed.Meta = []byte(`{"settled": ["a", 1.50]}`)
	answered := outcome(1, 1, "c1", "contents", "")
	answered.Message.Content[0].Content = append(answered.Message.Content[0].Content, image)
	quiet := insert(session.NextStep, 0, "q2")
	quiet.NoWake = true
	list := drafts(
		descriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn"}),
		descriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn", Label: text("")}),
		descriptor(session.Descriptor{
			Mode: session.ModeContinuable, Provider: "fork", Label: text("reader"), AgentProvider: text("p"), AgentModel: text("m"),
			Persona: text("You {{x}}"), ToolFilter: &session.ToolFilter{Allow: []string{}, Deny: []string{"bash"}},
		}),
		descriptor(session.Descriptor{Mode: session.ModeContinuable, Provider: "fork", Label: text("r"), ToolFilter: &session.ToolFilter{Allow: []string{"read", "list"}}}),
		&session.Persona{Literal: true}, &session.Persona{},
		&session.ApprovalPolicy{Policy: "ask"}, &session.ApprovalPolicy{Policy: "never", Delegated: true},
		&session.SandboxMode{Mode: "read-only"}, &session.SandboxMode{Mode: "off", Delegated: true},
		&session.EndSeed{}, &session.Title{Title: "A title"},
		insert(session.NextTurn, 0, "q1", "q3"), quiet,
		&session.TurnStart{Turn: 1},
		&session.InboxSpliced{Target: session.NextTurn, Removed: 1},
		&session.InboxSpliced{Target: session.NextTurn, Removed: 1, Canceled: true},
		&session.StepStart{Turn: 1, Step: 1},
		user("q1", message.UserSource(), message.Text("look"), image, message.Block{Type: "video", Raw: []byte(`{"type": "video", "n": 1}`)}),
		user("u2", message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: "env", Form: message.FormSnapshot, Sections: []message.SnapshotSection{{Name: "cwd", Text: "/"}}}), message.Text("cwd /")),
		user("u3", message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay, SenderSessionID: "parent"}), message.Text("go on")),
		user("u4", message.NewSource(message.SourceSubagentReport, message.SourceDetails{Form: message.FormRelay, SenderSessionID: "child"})),
		user("u5", message.NewSource(message.SourceSubagentSettled, message.SourceDetails{Form: message.FormNotice, SenderSessionID: "child", Summary: "done"}), message.Text("done")),
		user("u6", message.NewSource("team", message.SourceDetails{Raw: []byte(`{"kind": "team", "member": 3}`)}), message.Text("hi")),
		session.NewRequestHeader(session.RequestHeader{
			Config:        session.CallConfig{Provider: "p", Model: "m", ReasoningEffort: "high", Temperature: &temperature, MaxTokens: 100, Stop: []string{"a", ""}},
			DefaultEffort: true, DefaultMaxTokens: true, System: "You are <b>",
			Tools:  []session.ToolSpec{{Name: "read", Description: "reads", Parameters: []byte("{\n  \"type\": \"object\"\n}")}},
			Reason: session.HeaderInitial,
		}),
		&session.RequestContext{Provider: "p", Model: "m", ContextWindow: 128000},
		&session.AssistantChunk{Turn: 1, Step: 1, Chunk: []byte(`{"type":"text-delta","index":0,"text":"sa"}`)},
		&session.Retry{RetryID: "y1", Turn: 1, Step: 1, Provider: "p", PolicyKey: "k", Attempt: 1, MaxRetries: 5, DelayMS: 500, Failure: *failure},
		&session.RetryStarted{RetryID: "y1", Turn: 1, Step: 1, Attempt: 1},
		&session.Retry{RetryID: "y2", Turn: 1, Step: 1, Provider: "q", PolicyKey: "k", Always: true, Attempt: 1, Failure: message.Failure{Message: "x", Code: "SERVER"}},
		&session.RetryStarted{RetryID: "y2", Turn: 1, Step: 1, Attempt: 1},
		full,
		&session.ToolCall{Turn: 1, Step: 1, CallID: "c1", Name: "read", Arguments: `{"path": "x"}`},
		&session.ApprovalAsked{ID: "ap1", ToolName: "read", CallID: "c1", Reason: "outside"}, &session.ApprovalDecided{ID: "ap1", Outcome: "allowed-once"},
		&session.ApprovalAsked{ID: "ap2", ToolName: "bash"}, &session.ApprovalDecided{ID: "ap2", Outcome: "rejected"},
		answered,
		&session.ToolCall{Turn: 1, Step: 1, CallID: "c2", Name: "bash"},
		spill(1, 1, "c2", 15, 0, "no \"<é>\"\n\x01", "", "\u2028\t"),
		failed,
		&session.ToolCall{Turn: 1, Step: 1, CallID: "c3", Name: "bash"},
		spill(1, 1, "c3", 18, 7, "all but seven"),
		outcome(1, 1, "c3", "al..en", ""),
		&session.TodoWrite{Todos: []session.Todo{{Content: "one", Status: "completed"}, {Content: "two", Status: "in_progress"}, {Content: "three", Status: "pending"}}},
		&session.StepEnd{Turn: 1, Step: 1},
		&session.StepStart{Turn: 1, Step: 2},
		session.NewRequestHeader(session.RequestHeader{Config: session.CallConfig{Provider: "p", Model: "m"}, Reason: session.HeaderChange}),
		&session.RequestContext{Provider: "p", Model: "m"},
		partial,
		&session.StepEnd{Turn: 1, Step: 2},
		&session.CompactionStart{CompactionID: "k1", SourceCommandID: "cmd", Turn: 1},
		&session.CompactionRequest{CompactionID: "k1", Start: 18, End: 20, Config: session.CallConfig{Provider: "p", Model: "m", MaxTokens: 8192}, Message: userMessage("ask", "sum up")},
		&session.CompactionSummary{
			CompactionID: "k1", SourceCommandID: "cmd", Summary: []message.Block{message.Text("in short")}, Shadowed: session.Shadowed{Seqs: []int64{20, 18}, Tokens: 7},
			Provider: "p", Model: "m", MaxTokens: 8192, Usage: &message.Usage{InputTokens: 9, OutputTokens: 2}, ModelCall: true,
			RawOutput: []message.Block{message.Reasoning("hm"), message.Text("in short")},
		},
		&session.CompactionPrune{Shadowed: session.Shadowed{Seqs: []int64{18}}},
		&session.CompactionEnd{CompactionID: "k1", SourceCommandID: "cmd", Turn: 1},
		&session.TurnEnd{Turn: 1, Kind: session.EndAborted, Cause: session.Cause{Kind: session.CauseHook, Reason: "no more"}},
		&session.CompactionStart{CompactionID: "k2"}, &session.CompactionEnd{CompactionID: "k2", Error: "busy"},
		&session.Settled{Epoch: 1, StopReason: "completed", OutputSeq: 0}, &session.Settled{Epoch: 2, StopReason: "aborted", OutputSeq: -1},
	)
	for i, end := range []session.TurnEnd{
		{Kind: session.EndCompleted}, {Kind: session.EndAborted, Cause: session.Cause{Kind: session.CauseUser}}, {Kind: session.EndAborted, Cause: session.Cause{Kind: session.CauseParent}},
		{Kind: session.EndAborted, Cause: session.Cause{Kind: session.CauseDisposed}}, {Kind: session.EndAborted, Cause: session.Cause{Kind: session.CauseLegacy}}, {Kind: session.EndBlocked},
		{Kind: session.EndError, Failure: failure}, {Kind: session.EndMaxTokens}, {Kind: session.EndRefusal}, {Kind: session.EndInterrupted}, {Kind: "odd"},
	} {
		end.Turn = int64(i + 2)
		list = append(list, drafts(&session.TurnStart{Turn: end.Turn}, &end)...)
	}
	for i := range list {
		if list[i].Payload == full {
			list[i].Sources = []int64{26}
		}
	}
	return append(list,
		session.Draft{Payload: say("sum", "summary"), Op: session.SurfaceOp{Kind: session.OpReplace, Start: 18, End: 20}, Sources: []int64{18, 19, 20}},
		session.Draft{Payload: &session.Imported{}},
	)
}

// core S9, S10, S11, S17: the wire shape of every payload is fixed by a golden
// file, and what was written reads back to the same value and the same bytes.
func TestWireShape_S9(t *testing.T) {
	s := newSession(t)
	list := everything(t)
	if _, err := s.Append(list...); err != nil {
		t.Fatal(err)
	}
	got := export(s)
	golden := filepath.Join("testdata", "events.jsonl")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("wire shape (-golden +got):\n%s", diff)
	}

	same := cmp.Options{
		cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(session.RequestHeader{}, session.DescriptorEvent{}, session.ToolSpill{}),
		// Raw JSON is written compactly.
		cmp.FilterValues(func(a, b []byte) bool { return len(a)+len(b) > 0 },
			cmp.Transformer("compact", func(b []byte) string { return strings.Join(strings.Fields(string(b)), "") })),
		cmp.Transformer("source", func(s message.Source) any { return []any{s.Kind, s.Details()} }),
	}
	reg := newRegistry(t, session.Config{})
	for i, line := range strings.Split(strings.TrimSpace(got), "\n") {
		e, err := session.ParseEnvelope([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if again := string(e.AppendEnvelope(nil)); again != line {
			t.Errorf("written again: %s\nwant: %s", again, line)
		}
		p, err := reg.PayloadOf(e)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		wantPayload := list[i].Payload
		if d, ok := p.(*session.DescriptorEvent); ok && d.Err != nil {
			t.Error(d.Err)
		}
		if diff := cmp.Diff(wantPayload, p, same); diff != "" {
			t.Errorf("%s (-written +read):\n%s", e.Type, diff)
		}
	}

	verify(t, s)
	back, err := reg.Restore(recordOf(s, s.Head()), sequence(rawEvents(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	if export(back) != got {
		t.Error("the log that was read back is written differently")
	}
	h1, _ := s.History()
	h2, _ := back.History()
	if diff := cmp.Diff(h1, h2, same); diff != "" {
		t.Errorf("history (-live +read back):\n%s", diff)
	}
	if !s.RequestHeader().Equal(back.RequestHeader()) {
		t.Error("the request header differs after reading back")
	}
}

// core S7, S9: the golden log holds every type that this package names.
func TestWireShapeIsComplete_S7(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "payload.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t)
	if _, err := s.Append(everything(t)...); err != nil {
		t.Fatal(err)
	}
	log := export(s)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != "Type" {
			return true
		}
		found++
		if typ := spec.Values[0].(*ast.BasicLit).Value; !strings.Contains(log, `{"type":`+typ+`,`) {
			t.Errorf("%s does not occur", typ)
		}
		return true
	})
	if found < 28 {
		t.Errorf("found only %d types", found)
	}
}

// core S3, G2: what the log holds does not follow its giver's later changes where
// it says so, and the log's bytes are its own.
func TestLogOwnsItsBytes_G2(t *testing.T) {
	s := newSession(t)
	data := []byte(`{"a":1}`)
	mustAppend(t, s, &session.Opaque{Type: "plan/mode", Data: data})
	before := export(s)
	copy(data, `{"b":2}`)
	if export(s) != before {
		t.Error("the event changed with the caller's slice")
	}
	for i := range 200 { // arenas fill up and are replaced
		mustAppend(t, s, &session.Title{Title: strings.Repeat("x", i)})
	}
	if !strings.HasPrefix(export(s), before) {
		t.Error("an early event changed")
	}
	// A refused event's bytes are reused; those before it are not.
	e, _ := s.Event(s.Head() - 1)
	last := string(e.Data())
	if _, err := s.Append(session.Draft{Payload: &session.Title{Title: "refused"}}, session.Draft{Payload: &session.TurnStart{Turn: 9}}); err == nil {
		t.Fatal("accepted")
	}
	mustAppend(t, s, &session.Title{Title: "next"})
	if string(e.Data()) != last {
		t.Error("an event that was handed out changed")
	}
}

// core S4: a validator's veto leaves the log unchanged.
func TestValidatorVetoes_S4(t *testing.T) {
	veto := errors.New("no")
	var seen []string
	reg := newRegistry(t, session.Config{Validators: []session.Validator{
		func(h *session.Header, e session.Event) error {
			seen = append(seen, fmt.Sprint(h.ID, " ", e.Seq, " ", e.Type, " ", e.Payload() != nil))
			return nil
		},
		func(_ *session.Header, e session.Event) error {
			if e.Type == session.TypeTitle {
				return veto
			}
			return nil
		},
	}})
	s := prepare(t, reg, session.New{ID: "s"})
	mustAppend(t, s, script(t, "T1 S1.1 u")...)
	before := export(s)
	history, _ := s.History()
	_, err := s.Append(drafts(insert(session.NextTurn, 0, "q"), say("x", "x"), &session.Title{})...)
	if !errors.Is(err, veto) {
		t.Fatal(err)
	}
	after, _ := s.History()
	if export(s) != before || len(after) != len(history) || len(s.Inbox(session.NextTurn)) != 0 || s.Title() != "" {
		t.Error("a vetoed hold left something behind")
	}
	mustAppend(t, s, script(t, "a1.1 s1.1 t1")...)
	if len(seen) == 0 || seen[0] != "s 0 turn/start true" {
		t.Errorf("the validator saw %q", seen)
	}
	verify(t, s)
}

// core S6: a session that ended takes no more events.
func TestAppendAfterTheEnd_S6(t *testing.T) {
	reg := newRegistry(t, session.Config{})
	s := prepare(t, reg, session.New{})
	detach := enter(t, reg, s)
	if err := detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(drafts(say("x", "x"))...); !errors.Is(err, session.ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if err := s.Wait(t.Context(), 0, false); !errors.Is(err, session.ErrClosed) {
		t.Errorf("wait: %v", err)
	}
}

// What other writers put into compaction events, and what none may: an end without a
// turn and a summary without the model's whole answer are older; a checkpoint's source
// has a member of its own, which is kept.
func TestCompactionReads_S10(t *testing.T) {
	shadow := `"shadowedRange":{"start":4,"end":2},"shadowedSeqs":[4,3,2],"shadowedTokenCount":9`
	reg := newRegistry(t, session.Config{})
	for _, tc := range []struct {
		name, typ, data string
		want            session.Payload
		fault           string
	}{
		{"end without a turn", "compaction/end", `{"compactionId":"k"}`, &session.CompactionEnd{CompactionID: "k"}, ""},
		{"end outside a turn", "compaction/end", `{"compactionId":"k","sourceCommandId":"c","turn":null,"error":"busy"}`,
			&session.CompactionEnd{CompactionID: "k", SourceCommandID: "c", Error: "busy"}, ""},
		{"summary of an earlier writer", "compaction/summary", `{` + shadow + `,"provider":"p","model":"m"}`,
			&session.CompactionSummary{Provider: "p", Model: "m", Shadowed: session.Shadowed{Seqs: []int64{4, 3, 2}, Tokens: 9}}, ""},
		{"prune", "compaction/prune", `{` + shadow + `}`, &session.CompactionPrune{Shadowed: session.Shadowed{Seqs: []int64{4, 3, 2}, Tokens: 9}}, ""},
		{"range that is none of its seqs", "compaction/prune", `{"shadowedRange":{"start":4,"end":3},"shadowedSeqs":[4,3,2],"shadowedTokenCount":9}`, nil, "shadowedRange is 4 to 3"},
		{"nothing shadowed", "compaction/prune", `{"shadowedRange":{"start":4,"end":3},"shadowedSeqs":[],"shadowedTokenCount":9}`, nil, "nothing is shadowed"},
		{"no range", "compaction/summary", `{"shadowedSeqs":[4],"shadowedTokenCount":9,"provider":"p","model":"m"}`, nil, "shadowedRange"},
		{"unknown member", "compaction/prune", `{` + shadow + `,"compactionId":"k"}`, nil, "compactionId"},
		{"negative count", "compaction/prune", `{"shadowedRange":{"start":4,"end":4},"shadowedSeqs":[4],"shadowedTokenCount":-1}`, nil, "shadowedTokenCount"},
		{"checkpoint", "user/message", `{"id":"u","role":"user","content":[],"source":{"kind":"plugin","plugin":"compact","compactionId":"k"}}`,
			&session.UserMessage{Message: message.Message{ID: "u", Role: message.RoleUser, Source: message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: "compact", Raw: []byte(`{"kind":"plugin","plugin":"compact","compactionId":"k"}`)})}}, ""},
		{"a person's source has nothing of its own", "user/message", `{"id":"u","role":"user","content":[],"source":{"kind":"user","compactionId":"k"}}`, nil, "compactionId"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := session.ParseEnvelope([]byte(`{"type":"` + tc.typ + `","seq":0,"time":1,"data":` + tc.data + `}`))
			if err != nil {
				t.Fatal(err)
			}
			p, err := reg.PayloadOf(e)
			if tc.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fault) {
					t.Fatalf("error %v, want one that names %q", err, tc.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, p, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("payload (-want +got):\n%s", diff)
			}
			if u, ok := p.(*session.UserMessage); ok {
				if again := string(session.AppendMessage(nil, &u.Message)); again != tc.data {
					t.Errorf("written again: %s", again)
				}
			}
		})
	}
}
