package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/respjson"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/ssestream"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
	"github.com/offshoot-dev/offshoot/message"
)

// answer turns the events of one response into chunks (core M3-M5).
type answer struct {
	yield func(llm.Chunk, error) bool
	// stopped says that the consumer stopped ranging.
	stopped bool
	// prefix is the print of the request.
	prefix string

	blocks []*block         // by block index
	open   map[int64]*block // by the wire's index
	calls  bool
	usage  *message.Usage
	reason string
}

// block is one block of the answer. It is announced with its first content, so
// that a block without any leaves no trace.
type block struct {
	typ       message.BlockType
	index     int // -1 until it is announced
	content   strings.Builder
	signature strings.Builder
	data      string          // of redacted thinking
	input     json.RawMessage // what a tool call began with
	id, name  string
}

func (a *answer) send(c llm.Chunk) {
	if !a.stopped && !a.yield(c, nil) {
		a.stopped = true
	}
}

func (a *answer) finish(f *llm.Finish) { a.send(llm.Chunk{Kind: llm.ChunkFinish, Finish: f}) }

// read passes on the whole stream. It returns its finish, an error when it broke,
// or neither when the consumer stopped. A stream that ends before message_stop is
// io.ErrUnexpectedEOF, however properly the connection was closed.
func (a *answer) read(res *http.Response, body *wire.Body) (*llm.Finish, error) {
	events := ssestream.NewDecoder(res)
	for events.Next() {
		event := events.Event()
		done, err := a.event(event.Type, bytes.TrimSpace(event.Data))
		switch {
		case err != nil:
			return nil, body.Judge(err)
		case a.stopped:
			return nil, nil
		case done:
			body.Complete()
			return a.complete(), nil
		}
	}
	return nil, body.Ended(events.Err())
}

// event handles one event and reports whether it was the last. Events of unknown
// kinds are passed over: the API announces that there will be more of them.
func (a *answer) event(kind string, data []byte) (done bool, err error) {
	switch kind {
	case "ping":
		return false, nil
	case "error":
		return false, wire.StreamFailure(data)
	}
	if len(data) == 0 || data[0] != '{' {
		return false, wire.Fail(llm.CodeMalformedResponse, fmt.Sprintf("the server sent an event that is no object: %s", data))
	}
	var e sdk.MessageStreamEventUnion
	if err := json.Unmarshal(data, &e); err != nil {
		return false, wire.Fail(llm.CodeMalformedResponse, fmt.Sprintf("the server sent an event that is not JSON: %s", data))
	}
	if e.Type == "" {
		e.Type = kind
	}
	switch e.Type {
	case "message_start":
		a.count(&e.Message.Usage)
	case "content_block_start":
		a.begin(e.Index, &e.ContentBlock)
	case "content_block_delta":
		a.delta(e.Index, &e.Delta)
	case "content_block_stop":
		a.end(e.Index)
	case "message_delta":
		if e.Delta.StopReason != "" {
			a.reason = string(e.Delta.StopReason)
		}
		a.recount(&e.Usage)
	case "message_stop":
		return true, nil
	case "error", "":
		return false, a.unnamed(e.Type, data)
	}
	return false, nil
}

// unnamed judges an object that does not say which event it is, or that it is an
// error: proxies put the errors of the API behind a good status.
func (a *answer) unnamed(kind string, data []byte) error {
	var e struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &e) == nil && (kind == "error" || (len(e.Error) > 0 && string(e.Error) != "null")) {
		return wire.StreamFailure(data)
	}
	return wire.Fail(llm.CodeMalformedResponse, fmt.Sprintf("the server sent an event without a type: %s", data))
}

// begin notes the start of a block. Blocks of unknown kinds, which belong to the
// vendor's own tools, are passed over whole.
func (a *answer) begin(index int64, start *sdk.ContentBlockStartEventContentBlockUnion) {
	b := &block{index: -1}
	switch start.Type {
	case "text":
		b.typ = message.BlockText
	case "thinking", "redacted_thinking":
		b.typ = message.BlockReasoning
	case "tool_use":
		b.typ = message.BlockToolCall
	default:
		return
	}
	a.end(index) // a server that forgot to say so
	if a.open == nil {
		a.open = make(map[int64]*block)
	}
	a.open[index] = b
	switch start.Type {
	case "text":
		a.grow(b, start.Text)
	case "thinking":
		a.grow(b, start.Thinking)
		a.sign(b, start.Signature)
	case "redacted_thinking":
		if b.data = start.Data; b.data != "" {
			a.announce(b)
		}
	case "tool_use":
		a.calls = true
		b.id, b.name, b.input = start.ID, start.Name, json.RawMessage(start.JSON.Input.Raw())
		a.announce(b)
		a.send(llm.Chunk{Kind: llm.ChunkToolCallDelta, Index: b.index, ID: b.id, Name: b.name})
	}
}

func (a *answer) delta(index int64, d *sdk.MessageStreamEventUnionDelta) {
	b := a.open[index]
	if b == nil {
		return
	}
	switch {
	case d.Type == "text_delta" && b.typ == message.BlockText:
		a.grow(b, d.Text)
	case d.Type == "thinking_delta" && b.typ == message.BlockReasoning:
		a.grow(b, d.Thinking)
	case d.Type == "signature_delta" && b.typ == message.BlockReasoning:
		a.sign(b, d.Signature)
	case d.Type == "input_json_delta" && b.typ == message.BlockToolCall:
		a.grow(b, d.PartialJSON)
	}
}

func (a *answer) announce(b *block) {
	if b.index >= 0 {
		return
	}
	b.index = len(a.blocks)
	a.blocks = append(a.blocks, b)
	a.send(llm.Chunk{Kind: llm.ChunkBlockStart, Index: b.index, BlockType: b.typ})
}

// grow adds to the content of a block. An empty piece opens no block (core M25).
func (a *answer) grow(b *block, s string) {
	if s == "" {
		return
	}
	a.announce(b)
	b.content.WriteString(s)
	c := llm.Chunk{Kind: llm.ChunkTextDelta, Index: b.index, Text: s}
	switch b.typ {
	case message.BlockReasoning:
		c.Kind = llm.ChunkReasoningDelta
	case message.BlockToolCall:
		c = llm.Chunk{Kind: llm.ChunkToolCallDelta, Index: b.index, ID: b.id, Arguments: s}
	}
	a.send(c)
}

// sign adds to the signature of a thinking block. A block of nothing else counts:
// its thoughts are withheld and are still wanted back.
func (a *answer) sign(b *block, s string) {
	if s != "" {
		a.announce(b)
		b.signature.WriteString(s)
	}
}

// end closes a block. A tool call whose arguments did not come in pieces has those
// that it began with.
func (a *answer) end(index int64) {
	b := a.open[index]
	if b == nil {
		return
	}
	delete(a.open, index)
	if b.typ == message.BlockToolCall && b.content.Len() == 0 && len(b.input) > 0 && b.input[0] == '{' {
		a.grow(b, string(b.input))
	}
	if b.index < 0 {
		return
	}
	content := message.Block{Type: b.typ, Text: b.content.String()}
	if b.typ == message.BlockToolCall {
		content = message.ToolCall(b.id, b.name, b.content.String())
	}
	a.send(llm.Chunk{Kind: llm.ChunkBlockEnd, Index: b.index, Block: &content})
}

// complete closes what is still open, reports the usage and returns the finish.
func (a *answer) complete() *llm.Finish {
	for len(a.open) > 0 {
		var first int64 = -1
		for index := range a.open {
			if first < 0 || index < first {
				first = index
			}
		}
		a.end(first)
	}
	if a.usage != nil {
		a.send(llm.Chunk{Kind: llm.ChunkUsage, Usage: a.usage})
	}
	fin := a.ending()
	if fin.Failure == nil {
		fin.Replay = a.replayOf()
	}
	return fin
}

// ending maps the stop reason (core M4, M26, amendment P31). Where a server says
// end_turn although the model called tools, or the reverse, the blocks decide. An
// answer that filled the context window is one that was cut. A paused turn waits
// for tools that run at the vendor's, none of which was asked for, so it is an
// error under its own name.
func (a *answer) ending() *llm.Finish {
	switch a.reason {
	case "refusal":
		return &llm.Finish{Kind: llm.FinishRefusal}
	case "max_tokens", "model_context_window_exceeded":
		return &llm.Finish{Kind: llm.FinishMaxTokens}
	case "end_turn", "stop_sequence", "tool_use", "":
		switch {
		case len(a.blocks) == 0:
			return llm.Failed(message.Failure{Code: llm.CodeEmptyResponse, Message: "the model's answer was empty"})
		case a.calls:
			return &llm.Finish{Kind: llm.FinishToolCalls}
		default:
			return &llm.Finish{Kind: llm.FinishStop}
		}
	default:
		return llm.Failed(message.Failure{Code: wire.ReasonCode(a.reason), Message: fmt.Sprintf("the model stopped for the reason %q", a.reason)})
	}
}

// count takes the counters that the answer begins with. They are disjoint as they
// come: input_tokens are the uncached ones (core M5, M27).
func (a *answer) count(u *sdk.Usage) {
	f := &u.JSON
	a.counters(map[string]respjson.Field{
		"input": f.InputTokens, "output": f.OutputTokens, "read": f.CacheReadInputTokens, "write": f.CacheCreationInputTokens,
		"thinking": u.OutputTokensDetails.JSON.ThinkingTokens,
	})
}

// recount takes the counters of a message_delta, which are totals, not additions.
func (a *answer) recount(u *sdk.MessageDeltaUsage) {
	f := &u.JSON
	a.counters(map[string]respjson.Field{
		"input": f.InputTokens, "output": f.OutputTokens, "read": f.CacheReadInputTokens, "write": f.CacheCreationInputTokens,
		"thinking": u.OutputTokensDetails.JSON.ThinkingTokens,
	})
}

// counters notes the counters that are present; a later one replaces an earlier.
func (a *answer) counters(fields map[string]respjson.Field) {
	for name, field := range fields {
		var n int64
		if !field.Valid() || json.Unmarshal([]byte(field.Raw()), &n) != nil {
			continue
		}
		if a.usage == nil {
			a.usage = new(message.Usage)
		}
		n = max(n, 0)
		switch u := a.usage; name {
		case "input":
			u.InputTokens = n
		case "output":
			u.OutputTokens = n
		case "read":
			u.CacheReadTokens, u.HasCacheRead = n, true
		case "write":
			u.CacheWriteTokens, u.HasCacheWrite = n, true
		case "thinking":
			u.ReasoningTokens, u.HasReasoning = n, true
		}
	}
}
