package llmtest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// schema has what encoders like to change.
const schema = `{"type":"object","properties":{"z":{"type":"string","pattern":"^<a&b>$"},"n":{"maximum":9007199254740993}},"required":["z"],"additionalProperties":false}`

// result is what a consumer gets of one call.
type result struct {
	blocks []message.Block
	text   string
	finish llm.Finish
	usage  *message.Usage
	deltas int
}

// ask returns a request with one prompt and two tools.
func (s Subject) ask(text string) *llm.Request {
	return &llm.Request{
		Provider: s.Provider, Model: s.Model, System: "Be <brief>.", SessionID: "s1",
		Tools:    []llm.ToolSpec{{Name: "read", Description: "reads <files>", Parameters: []byte(schema)}, {Name: "list", Description: "lists"}},
		Messages: []message.Message{user("m1", message.Text(text))},
	}
}

func user(id message.ID, content ...message.Block) message.Message {
	return message.Message{ID: id, Role: message.RoleUser, Content: content, Source: message.UserSource()}
}

// answered returns an answer as the message that a log would hold.
func (s Subject) answered(id message.ID, r result) message.Message {
	source := message.NewSource(message.SourceModel, message.SourceDetails{Provider: s.Provider, Model: s.Model, ReplayState: r.finish.Replay.Encode()})
	return message.Message{ID: id, Role: message.RoleAssistant, Content: r.blocks, Source: source}
}

// call makes a call and checks what holds for all: the stream is legal (core I10),
// the request stays as it was, the counters make sense (core M5), a failure is one
// clear line, and a replay state survives being stored (core M8).
func (s Subject) call(t testing.TB, ctx context.Context, req *llm.Request) result {
	t.Helper()
	return s.callSlowly(t, ctx, req, func(llm.Chunk) {})
}

// callSlowly is call with a consumer that does something with each chunk.
func (s Subject) callSlowly(t testing.TB, ctx context.Context, req *llm.Request, consume func(llm.Chunk)) result {
	t.Helper()
	var (
		assembler llm.Assembler
		grammar   llm.Grammar
		failed    *llm.Finish
		r         result
	)
	before := cloneRequest(req)
	for c, err := range s.Adapter.Stream(ctx, req) {
		if err != nil {
			failed = llm.Failed(llm.FailureOf(err))
			break
		}
		if fault := grammar.Add(c); fault != nil {
			t.Fatal(fault)
		}
		if fault := assembler.Add(c); fault != nil {
			t.Fatal(fault)
		}
		r.deltas++
		consume(c)
	}
	if diff := cmp.Diff(before, req); diff != "" {
		t.Errorf("the adapter changed the request (-before +after):\n%s", diff)
	}
	r.blocks, r.text, r.finish = assembler.Blocks(), assembler.Text(), assembler.Finish()
	if failed != nil {
		r.finish = *failed
	} else if fault := grammar.End(); fault != nil {
		t.Fatal(fault)
	}
	if u, ok := assembler.Usage(); ok {
		r.usage = &u
		checkUsage(t, u)
	}
	s.checkFailure(t, r.finish.Failure)
	checkReplay(t, r)
	return r
}

func checkUsage(t testing.TB, u message.Usage) {
	t.Helper()
	if u.InputTokens < 0 || u.OutputTokens < 0 || u.CacheReadTokens < 0 || u.CacheWriteTokens < 0 || u.ReasoningTokens < 0 || u.ReasoningTokens > u.OutputTokens {
		t.Errorf("the counters make no sense: %+v", u)
	}
}

func (s Subject) checkFailure(t testing.TB, f *message.Failure) {
	t.Helper()
	switch {
	case f == nil:
	case f.Code == "" || f.Message == "" || strings.ContainsAny(f.Message, "\r\n"):
		t.Errorf("a failure needs a code and one line of text: %+v", *f)
	case s.Secret != "" && strings.Contains(f.Message, s.Secret):
		t.Errorf("the failure shows the secret: %q", f.Message)
	}
}

func checkReplay(t testing.TB, r result) {
	t.Helper()
	state := r.finish.Replay.Encode()
	if state == nil {
		return
	}
	back, err := llm.DecodeReplay(state)
	if err != nil {
		t.Errorf("the replay state cannot be read back: %v", err)
	}
	if diff := cmp.Diff(r.finish.Replay, back); diff != "" {
		t.Errorf("the replay state changes when it is stored (-made +stored):\n%s", diff)
	}
	if len(back.Blocks) != len(r.blocks) && back.Blocks != nil {
		t.Errorf("%d replay entries for %d blocks", len(back.Blocks), len(r.blocks))
	}
}

func cloneRequest(req *llm.Request) *llm.Request {
	c := *req
	c.Messages = slices.Clone(req.Messages)
	for i := range c.Messages {
		c.Messages[i].Content = cloneBlocks(c.Messages[i].Content)
		c.Messages[i].Source = c.Messages[i].Source.With(func(d *message.SourceDetails) { d.ReplayState = slices.Clone(d.ReplayState) })
	}
	c.Tools = slices.Clone(req.Tools)
	for i := range c.Tools {
		c.Tools[i].Parameters = slices.Clone(c.Tools[i].Parameters)
	}
	c.Stop = slices.Clone(req.Stop)
	return &c
}

func cloneBlocks(blocks []message.Block) []message.Block {
	out := slices.Clone(blocks)
	for i := range out {
		out[i].Content = cloneBlocks(out[i].Content)
		out[i].Raw = slices.Clone(out[i].Raw)
	}
	return out
}

// toolCalls returns the calls of an answer.
func (r result) toolCalls() []message.Block {
	var calls []message.Block
	for _, b := range r.blocks {
		if b.Type == message.BlockToolCall {
			calls = append(calls, b)
		}
	}
	return calls
}

// want checks how a call ended and what it said; ids of calls are the endpoint's.
func (r result) want(t testing.TB, kind llm.FinishKind, blocks ...message.Block) {
	t.Helper()
	if r.finish.Kind != kind {
		t.Errorf("finish %q, want %q: %+v", r.finish.Kind, kind, r.finish.Failure)
	}
	got := slices.Clone(r.blocks)
	seen := map[string]bool{}
	for i := range got {
		if got[i].Type != message.BlockToolCall {
			continue
		}
		if got[i].ID == "" || seen[got[i].ID] {
			t.Errorf("call %d has id %q: it must have one of its own", i, got[i].ID)
		}
		seen[got[i].ID] = true
		got[i].ID = ""
	}
	if len(got) == 0 && len(blocks) == 0 {
		return
	}
	if diff := cmp.Diff(blocks, got); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
}
