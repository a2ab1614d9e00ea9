package scripted_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
)

// answer is what a consumer made of one stream.
type answer struct {
	Blocks  []message.Block
	Kind    llm.FinishKind
	Code    string
	Failure message.Failure
	Usage   message.Usage
	HasUse  bool
	Replay  *llm.Replay
	Deltas  int
	Err     error
}

// ask ranges over one call and holds it to the grammar (core I10), except that a
// yielded error ends a stream in place of a finish.
func ask(t testing.TB, ctx context.Context, a llm.Adapter, req *llm.Request) answer {
	t.Helper()
	var grammar llm.Grammar
	var asm llm.Assembler
	var out answer
	for c, err := range a.Stream(ctx, req) {
		if err != nil {
			out.Err = err
			out.Code = llm.CodeOf(err)
			out.Blocks = asm.Interrupted()
			return out
		}
		if err := grammar.Add(c); err != nil {
			t.Fatal(err)
		}
		if err := asm.Add(c); err != nil {
			t.Fatal(err)
		}
		switch c.Kind {
		case llm.ChunkTextDelta, llm.ChunkReasoningDelta, llm.ChunkToolCallDelta:
			out.Deltas++
		}
	}
	if err := grammar.End(); err != nil {
		t.Fatal(err)
	}
	f := asm.Finish()
	out.Blocks, out.Kind, out.Replay = asm.Blocks(), f.Kind, f.Replay
	out.Usage, out.HasUse = asm.Usage()
	if f.Failure != nil {
		out.Failure, out.Code = *f.Failure, f.Failure.Code
	}
	return out
}

func user(id, text string) message.Message {
	return message.Message{ID: message.ID(id), Role: message.RoleUser, Content: []message.Block{message.Text(text)}, Source: message.UserSource()}
}

func assistant(blocks ...message.Block) message.Message {
	return message.Message{Role: message.RoleAssistant, Content: blocks, Source: message.Source{Kind: message.SourceModel}}
}

func result(callID, text string) message.Message {
	return message.Message{Role: message.RoleUser, Source: message.NewSource(message.SourceTool, message.SourceDetails{CallID: callID}),
		Content: []message.Block{message.ToolResult(callID, []message.Block{message.Text(text)}, false)}}
}

func request(messages ...message.Message) *llm.Request {
	return &llm.Request{Provider: "scripted", Model: "m", SessionID: "s", Messages: messages}
}

func one(parts ...scripted.Part) *scripted.Adapter {
	return scripted.New(scripted.Script{{Steps: []scripted.Step{parts}}}, scripted.Options{})
}

func TestParts(t *testing.T) {
	text, reason, call := message.Text, message.Reasoning, message.ToolCall
	for _, tc := range []struct {
		name  string
		parts []scripted.Part
		want  answer
	}{
		{"say", []scripted.Part{scripted.Say("hi")}, answer{Blocks: []message.Block{text("hi")}, Kind: llm.FinishStop, Deltas: 1}},
		{"texts join", []scripted.Part{scripted.Say("a"), scripted.Say("b"), scripted.Break(), scripted.SayLiteral("{{result:x}}")},
			answer{Blocks: []message.Block{text("ab"), text("{{result:x}}")}, Kind: llm.FinishStop, Deltas: 3}},
		{"reason, say, parallel calls", []scripted.Part{scripted.Reason("hm"), scripted.Say("ok"), scripted.Call("read", `{"path":"a"}`), scripted.CallLiteral("list", "not json")},
			answer{Blocks: []message.Block{reason("hm"), text("ok"), call("call-0-0", "read", `{"path":"a"}`), call("call-0-1", "list", "not json")}, Kind: llm.FinishToolCalls, Deltas: 4}},
		{"call function", []scripted.Part{scripted.CallFunc("read", func(r *llm.Request) (string, error) { return `"` + scripted.PromptText(r) + `"`, nil })},
			answer{Blocks: []message.Block{call("call-0-0", "read", `"go"`)}, Kind: llm.FinishToolCalls, Deltas: 1}},
		{"split between runes", []scripted.Part{scripted.Split(3), scripted.Say("äöü€"), scripted.Call("t", "abcdef")},
			answer{Blocks: []message.Block{text("äöü€"), call("call-0-0", "t", "abcdef")}, Kind: llm.FinishToolCalls, Deltas: 6}},
		{"split of too little", []scripted.Part{scripted.Split(9), scripted.Say("ab"), scripted.Call("t", "")},
			answer{Blocks: []message.Block{text("ab"), call("call-0-0", "t", "")}, Kind: llm.FinishToolCalls, Deltas: 3}},
		{"function", []scripted.Part{scripted.Func(func(_ context.Context, r *llm.Request) (scripted.Step, error) {
			return scripted.Step{scripted.Say(r.Model)}, nil
		}), scripted.Say("!")}, answer{Blocks: []message.Block{text("m!")}, Kind: llm.FinishStop, Deltas: 2}},
		{"max tokens drops calls (M8)", []scripted.Part{scripted.Say("part"), scripted.Call("t", "{"), scripted.MaxTokens()},
			answer{Blocks: []message.Block{text("part")}, Kind: llm.FinishMaxTokens, Deltas: 2}},
		{"refuse (P31)", []scripted.Part{scripted.Refuse("no")}, answer{Blocks: []message.Block{text("no")}, Kind: llm.FinishRefusal, Deltas: 1}},
		{"empty", []scripted.Part{scripted.Empty()}, answer{Blocks: []message.Block{}, Kind: llm.FinishStop}},
		{"fail (M4)", []scripted.Part{scripted.Say("par"), scripted.FailWith(message.Failure{Code: llm.CodeRateLimit, Message: "slow down", Status: 429, RetryAfterMS: 7})},
			answer{Blocks: []message.Block{text("par")}, Kind: llm.FinishError, Deltas: 1, Code: llm.CodeRateLimit,
				Failure: message.Failure{Code: llm.CodeRateLimit, Message: "slow down", Status: 429, RetryAfterMS: 7}}},
		{"replay state (M8)", []scripted.Part{scripted.ReplayState(&llm.Replay{Response: []byte(`{}`), Blocks: [][]byte{[]byte(`1`)}}), scripted.Say("x")},
			answer{Blocks: []message.Block{text("x")}, Kind: llm.FinishStop, Deltas: 1, Replay: &llm.Replay{Response: []byte(`{}`), Blocks: [][]byte{[]byte(`1`)}}}},
		{"raw", []scripted.Part{scripted.Say("a"), scripted.Raw(
			llm.Chunk{Kind: llm.ChunkBlockStart, Index: 1, BlockType: message.BlockText}, llm.Chunk{Kind: llm.ChunkBlockStart, Index: 2, BlockType: message.BlockText},
			llm.Chunk{Kind: llm.ChunkTextDelta, Index: 2, Text: "c"}, llm.Chunk{Kind: llm.ChunkTextDelta, Index: 1, Text: "b"},
			llm.Chunk{Kind: llm.ChunkBlockEnd, Index: 2, Block: &message.Block{Type: message.BlockText, Text: "c"}},
			llm.Chunk{Kind: llm.ChunkBlockEnd, Index: 1, Block: &message.Block{Type: message.BlockText, Text: "b"}}), scripted.Say("d")},
			answer{Blocks: []message.Block{text("a"), text("b"), text("c"), text("d")}, Kind: llm.FinishStop, Deltas: 4}},
		{"raw finish", []scripted.Part{scripted.Raw(llm.Chunk{Kind: llm.ChunkFinish, Finish: &llm.Finish{Kind: llm.FinishRefusal}}), scripted.Say("never")},
			answer{Kind: llm.FinishRefusal}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ask(t, t.Context(), one(tc.parts...), request(user("u", "go")))
			got.Usage, got.HasUse = message.Usage{}, false
			if len(got.Blocks) == 0 {
				got.Blocks, tc.want.Blocks = nil, nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCutAndErrors(t *testing.T) {
	got := ask(t, t.Context(), one(scripted.Say("half"), scripted.Cut()), request(user("u", "go")))
	if got.Code != llm.CodeStreamClosed || got.Err == nil || len(got.Blocks) != 1 || got.Blocks[0].Text != "half" {
		t.Errorf("cut: %+v", got)
	}
	boom := errors.New("boom")
	got = ask(t, t.Context(), one(scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) { return nil, boom })), request(user("u", "go")))
	if !errors.Is(got.Err, boom) {
		t.Errorf("error of a function: %v", got.Err)
	}
	// A stream may end without anything; only the grammar minds (core M7).
	n := 0
	for c, err := range one(scripted.Say("x"), scripted.EndSilently()).Stream(t.Context(), request(user("u", "go"))) {
		if err != nil {
			t.Errorf("error %v", err)
		}
		n++
		if c.Kind == llm.ChunkFinish {
			t.Error("EndSilently sent a finish")
		}
	}
	if n != 2 {
		t.Errorf("%d chunks, want the start and the delta", n)
	}
	// Panics reach the caller of the adapter, which contains them (core M12).
	var r llm.Registry
	if _, err := r.Register(one(scripted.Panic("ouch")), "scripted"); err != nil {
		t.Fatal(err)
	}
	p, err := r.Prepare(llm.CallConfig{Provider: "scripted", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range p.Stream(t.Context(), request(user("u", "go"))) {
		if err != nil {
			t.Errorf("error %v", err)
		}
		if c.Finish == nil || c.Finish.Failure == nil || !strings.Contains(c.Finish.Failure.Message, "ouch") {
			t.Errorf("panic became %+v", c)
		}
	}
}

func TestUsage(t *testing.T) {
	req := request(user("u", strings.Repeat("x", 400)))
	req.System = strings.Repeat("y", 40)
	if got := ask(t, t.Context(), one(scripted.Say("12345678")), req); got.Usage.InputTokens != 110 || got.Usage.OutputTokens != 2 || !got.HasUse {
		t.Errorf("estimated usage %+v", got.Usage)
	}
	want := message.Usage{InputTokens: 1, OutputTokens: 2, CacheReadTokens: 3, HasCacheRead: true}
	if got := ask(t, t.Context(), one(scripted.Usage(want), scripted.Say("a")), req); got.Usage != want {
		t.Errorf("given usage %+v", got.Usage)
	}
	if got := ask(t, t.Context(), one(scripted.NoUsage(), scripted.Say("a")), req); got.HasUse {
		t.Errorf("usage %+v, want none", got.Usage)
	}
	if got := ask(t, t.Context(), one(scripted.Usage(want), scripted.Fail(llm.CodeServer, "x")), req); got.Usage != want {
		t.Errorf("usage of a failed call %+v", got.Usage)
	}
}

// What is wrong with a script fails the call that meets it, by name.
func TestInvalidSteps(t *testing.T) {
	var nested func(context.Context, *llm.Request) (scripted.Step, error)
	nested = func(context.Context, *llm.Request) (scripted.Step, error) {
		return scripted.Step{scripted.Func(nested)}, nil
	}
	for name, parts := range map[string][]scripted.Part{
		"no parts":       {},
		"zero":           {{}},
		"after the end":  {scripted.MaxTokens(), scripted.Say("x")},
		"bad regexp":     {scripted.Say("{{match:(}}")},
		"open reference": {scripted.Call("t", `{"a":"{{result:x"}`)},
		"result 0":       {scripted.Say("{{result:0}}")},
		"no result name": {scripted.Say("{{result:}}")},
		"delay, no sleep": {
			scripted.Delay(time.Second)},
		"endless nesting": {scripted.Func(nested)},
	} {
		a := one(parts...)
		if got := ask(t, t.Context(), a, request(user("u", "go"))); got.Code != scripted.CodeInvalid || got.Kind != llm.FinishError {
			t.Errorf("%s: %+v", name, got)
		}
		if a.Done() == nil {
			t.Errorf("%s: Done is content", name)
		}
	}
}

func TestFailTimes(t *testing.T) {
	a := one(scripted.FailTimes(2, message.Failure{Code: llm.CodeServer}), scripted.FailTimes(1, message.Failure{Code: llm.CodeTimeout}), scripted.Say("at last"))
	var got []string
	for _, session := range []string{"s", "s", "s", "other", "s"} {
		req := request(user("u", "go"))
		req.SessionID = session
		r := ask(t, t.Context(), a, req)
		if r.Code == "" {
			r.Code = r.Blocks[0].Text
		}
		got = append(got, r.Code)
	}
	if diff := cmp.Diff([]string{llm.CodeServer, llm.CodeServer, llm.CodeTimeout, llm.CodeServer, "at last"}, got); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if err := a.Done(); err != nil {
		t.Errorf("Done minds failures on purpose: %v", err)
	}
}

// The attempts that are remembered are bounded.
func TestFailTimesForgets(t *testing.T) {
	a := scripted.New(scripted.Script{{Steps: []scripted.Step{{scripted.FailTimes(1, message.Failure{Code: llm.CodeServer}), scripted.Say("x")}}}}, scripted.Options{Record: -1})
	askAs := func(n int) string {
		req := request(user("u", "go"))
		req.SessionID = fmt.Sprint(n)
		return ask(t, t.Context(), a, req).Code
	}
	for i := range 4097 {
		if askAs(i) != llm.CodeServer {
			t.Fatalf("session %d did not fail at first", i)
		}
	}
	if askAs(4096) != "" || askAs(0) != llm.CodeServer {
		t.Error("want the newest remembered and the oldest forgotten")
	}
	if len(a.Calls()) != 0 {
		t.Error("calls were recorded")
	}
}

func TestGate(t *testing.T) {
	var gate scripted.Gate // declared outside of the bubble
	synctest.Test(t, func(t *testing.T) {
		a := one(scripted.Say("a"), scripted.StallUntil(&gate), scripted.Say("b"))
		var answers [3]answer
		ended := make(chan struct{}, len(answers))
		for i := range answers {
			go func() {
				answers[i] = ask(t, t.Context(), a, request(user("u", "go")))
				ended <- struct{}{}
			}()
		}
		if err := a.WaitInFlight(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if err := gate.WaitArrivals(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if a.InFlight() != 3 || gate.Waiting() != 3 || len(ended) != 0 {
			t.Errorf("in flight %d, waiting %d, ended %d", a.InFlight(), gate.Waiting(), len(ended))
		}
		gate.Open()
		gate.Open()
		for range answers {
			<-ended
		}
		for _, got := range answers {
			if got.Kind != llm.FinishStop || len(got.Blocks) != 1 || got.Blocks[0].Text != "ab" {
				t.Errorf("after the gate: %+v", got)
			}
		}
		if a.InFlight() != 0 || a.MaxInFlight() != 3 || a.Started() != 3 || gate.Waiting() != 0 {
			t.Errorf("in flight %d, at most %d, started %d", a.InFlight(), a.MaxInFlight(), a.Started())
		}
		// An open gate stays open.
		if got := ask(t, t.Context(), a, request(user("u", "go"))); got.Kind != llm.FinishStop {
			t.Errorf("open gate: %+v", got)
		}
	})
}

// The end of ctx ends every wait at once, as aborted (core M15, M28).
func TestContextEnds(t *testing.T) {
	for name, part := range map[string]scripted.Part{
		"hang": scripted.Hang(), "delay": scripted.Delay(time.Hour),
		"function": scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := scripted.New(scripted.Script{{Steps: []scripted.Step{{scripted.Say("x"), part, scripted.Say("y")}}}}, scripted.Options{Sleep: scripted.Sleep})
				cause := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				done := make(chan answer)
				go func() { done <- ask(t, ctx, a, request(user("u", "go"))) }()
				synctest.Wait()
				cancel(cause)
				got := <-done
				if got.Kind != llm.FinishAborted || got.Code != llm.CodeAborted || got.Failure.Message != "enough" || len(got.Blocks) != 1 {
					t.Errorf("%+v", got)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := ask(t, ctx, one(scripted.Say("x")), request(user("u", "go"))); got.Kind != llm.FinishAborted || len(got.Blocks) != 0 {
		t.Errorf("ctx that had ended: %+v", got)
	}
	if err := one(scripted.Say("x")).WaitCalls(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitCalls: %v", err)
	}
}

// A consumer that stops gets nothing more (core M15).
func TestConsumerStops(t *testing.T) {
	parts := []scripted.Part{scripted.Reason("r"), scripted.Split(2), scripted.Say("text"), scripted.Call("t", "args")}
	total := 0
	for _, err := range one(parts...).Stream(t.Context(), request(user("u", "go"))) {
		if err != nil {
			t.Errorf("error %v", err)
		}
		total++
	}
	for stop := 1; stop <= total; stop++ {
		a := one(parts...)
		n := 0
		a.Stream(t.Context(), request(user("u", "go")))(func(llm.Chunk, error) bool { n++; return n < stop })
		if n != stop || a.InFlight() != 0 {
			t.Errorf("stopped after %d, heard %d", stop, n)
		}
	}
}

func TestDelayAndPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := scripted.New(scripted.Script{{Steps: []scripted.Step{{scripted.Delay(time.Second), scripted.Split(4), scripted.Say("four")}}}},
			scripted.Options{Sleep: scripted.Sleep, Pace: time.Millisecond})
		start := time.Now()
		ask(t, t.Context(), a, request(user("u", "go")))
		if took := time.Since(start); took != 1004*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestCallsAreABoundedRing(t *testing.T) {
	a := scripted.New(scripted.Script{{Name: "c", Repeat: true, Steps: []scripted.Step{{scripted.Say("x")}}}}, scripted.Options{Record: 3})
	for i := range 5 {
		ask(t, t.Context(), a, request(user(fmt.Sprint(i), "go")))
		var ids []string
		for _, c := range a.Calls() {
			ids = append(ids, string(c.Request.Messages[0].ID))
		}
		want := []string{"0", "1", "2", "3", "4"}[max(0, i-2) : i+1]
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Errorf("after %d (-want +got):\n%s", i+1, diff)
		}
	}
	if c := a.Calls()[0]; c.Conversation != "c" || c.Position != 0 || a.Started() != 5 {
		t.Errorf("record %+v of %d", c, a.Started())
	}
}

// A recorded history is a script that says the same again (core Q13).
func TestRecorded(t *testing.T) {
	history := []message.Message{
		user("u", "go"),
		assistant(message.Reasoning("hm {{result:x}}"), message.Text("a"), message.Text("b"), message.ToolCall("id-1", "read", `{ "p" : 1 }`)),
		result("id-1", "r"), assistant(), assistant(message.Text("end")),
	}
	a := scripted.New(scripted.Script{{Steps: scripted.Recorded(history)}}, scripted.Options{})
	for i := range history {
		if history[i].Role != message.RoleAssistant {
			continue
		}
		got := ask(t, t.Context(), a, request(history[:i]...))
		if diff := cmp.Diff(history[i].Content, got.Blocks); diff != "" && len(history[i].Content)+len(got.Blocks) > 0 {
			t.Errorf("message %d (-want +got):\n%s", i, diff)
		}
	}
	if err := a.Done(); err != nil {
		t.Error(err)
	}
}

func TestModelAndCallID(t *testing.T) {
	a := scripted.New(scripted.Script{{Steps: []scripted.Step{{scripted.Call("t", "{}")}}}}, scripted.Options{
		Info:   llm.ModelInfo{ContextWindow: 9},
		CallID: func(r *llm.Request, position, n int) string { return fmt.Sprintf("%s.%d.%d", r.SessionID, position, n) },
	})
	if a.Model("x", "y").ContextWindow != 9 {
		t.Error("Options.Info is not what Model answers")
	}
	if got := ask(t, t.Context(), a, request(user("u", "go"))); got.Blocks[0].ID != "s.0.0" {
		t.Errorf("call id %q", got.Blocks[0].ID)
	}
}
