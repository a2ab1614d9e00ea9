package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
	"github.com/offshoot-dev/offshoot/message"
)

// answer turns the events of one response into chunks (core M25-M27).
type answer struct {
	dialect *dialect
	yield   func(llm.Chunk, error) bool
	// stopped says that the consumer stopped ranging.
	stopped bool

	id        string
	blocks    []*block // by block index
	text      *block
	reasoning *block
	calls     map[int64]*block // by the wire's index
	usage     *openai.CompletionUsage
	reason    string
	refused   bool
}

// block is one block of the answer; content is its text or argument text.
type block struct {
	index    int
	typ      message.BlockType
	content  strings.Builder
	id, name string
	// generated says that the server gave no id.
	generated bool
}

func (a *answer) send(c llm.Chunk) bool {
	if !a.stopped && !a.yield(c, nil) {
		a.stopped = true
	}
	return !a.stopped
}

func (a *answer) finish(f *llm.Finish) { a.send(llm.Chunk{Kind: llm.ChunkFinish, Finish: f}) }

// read passes on the whole stream. It returns its finish, an error when it broke,
// or neither when the consumer stopped. A stream that ends before its last event
// is io.ErrUnexpectedEOF, however properly the connection was closed.
func (a *answer) read(res *http.Response, body *wire.Body) (*llm.Finish, error) {
	events := ssestream.NewDecoder(res)
	for events.Next() {
		event := events.Event()
		data := bytes.TrimSpace(event.Data)
		if string(data) == "[DONE]" {
			body.Complete()
			return a.complete(), nil
		}
		if err := a.event(event.Type, data); err != nil {
			return nil, body.Judge(err)
		}
		if a.stopped {
			return nil, nil
		}
	}
	return nil, body.Ended(events.Err())
}

func (a *answer) event(typ string, data []byte) error {
	if typ == "error" {
		return wire.StreamFailure(data)
	}
	var chunk openai.ChatCompletionChunk
	if len(data) == 0 || data[0] != '{' {
		return wire.Fail(llm.CodeMalformedResponse, fmt.Sprintf("the server sent an event that is no chunk: %s", data))
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return wire.Fail(llm.CodeMalformedResponse, fmt.Sprintf("the server sent an event that is not JSON: %s", data))
	}
	extra := chunk.JSON.ExtraFields
	if present(extra["error"]) || (chunk.Object == "error" && present(extra["message"])) {
		return wire.StreamFailure(data)
	}
	if a.id == "" {
		a.id = chunk.ID
	}
	if chunk.JSON.Usage.Valid() {
		usage := chunk.Usage
		a.usage = &usage
	}
	for i := range chunk.Choices {
		if c := &chunk.Choices[i]; c.Index == 0 {
			a.delta(&c.Delta)
			if c.FinishReason != "" {
				a.reason = c.FinishReason
			}
		}
	}
	return nil
}

// present reports whether a field has a value: vendors also send null.
func present(f respjson.Field) bool { return f.Raw() != "" && f.Raw() != respjson.Null }

// delta passes on one delta. An empty string opens no block (core M25).
func (a *answer) delta(d *openai.ChatCompletionChunkChoiceDelta) {
	for _, name := range a.dialect.reasoningIn {
		if s := stringField(d.JSON.ExtraFields[name]); s != "" {
			if a.reasoning == nil {
				a.reasoning = a.open(message.BlockReasoning)
			}
			a.reasoning.content.WriteString(s)
			a.send(llm.Chunk{Kind: llm.ChunkReasoningDelta, Index: a.reasoning.index, Text: s})
			break
		}
	}
	a.textDelta(d.Content)
	if d.Refusal != "" {
		a.refused = true
		a.textDelta(d.Refusal)
	}
	for i := range d.ToolCalls {
		a.callDelta(&d.ToolCalls[i])
	}
}

func stringField(f respjson.Field) string {
	if !present(f) {
		return ""
	}
	var s string
	if json.Unmarshal([]byte(f.Raw()), &s) != nil {
		return "" // another type under a known name is an unknown field
	}
	return s
}

func (a *answer) textDelta(s string) {
	if s == "" {
		return
	}
	if a.text == nil {
		a.text = a.open(message.BlockText)
	}
	a.text.content.WriteString(s)
	a.send(llm.Chunk{Kind: llm.ChunkTextDelta, Index: a.text.index, Text: s})
}

// callDelta passes on a piece of a tool call. Pieces belong together by the wire's
// index; some servers number all calls 0, and there a new id with a name begins a
// new call.
func (a *answer) callDelta(d *openai.ChatCompletionChunkChoiceDeltaToolCall) {
	b := a.calls[d.Index]
	if b != nil && d.ID != "" && d.ID != b.id && d.Function.Name != "" && !b.generated {
		b = nil
	}
	first := b == nil
	if first {
		b = a.open(message.BlockToolCall)
		b.id = d.ID
		if b.id == "" {
			b.generated = true
			b.id = fmt.Sprintf("call_%s_%d", a.id, b.index)
		}
		if a.calls == nil {
			a.calls = make(map[int64]*block)
		}
		a.calls[d.Index] = b
	}
	c := llm.Chunk{Kind: llm.ChunkToolCallDelta, Index: b.index, ID: b.id, Arguments: d.Function.Arguments}
	if b.name == "" {
		b.name = d.Function.Name
		c.Name = b.name
	}
	if !first && c.Name == "" && c.Arguments == "" {
		return
	}
	b.content.WriteString(d.Function.Arguments)
	a.send(c)
}

func (a *answer) open(typ message.BlockType) *block {
	b := &block{index: len(a.blocks), typ: typ}
	a.blocks = append(a.blocks, b)
	a.send(llm.Chunk{Kind: llm.ChunkBlockStart, Index: b.index, BlockType: typ})
	return b
}

// complete closes the blocks and reports the usage, which may have come after the
// last delta (core M25), and returns the finish.
func (a *answer) complete() *llm.Finish {
	for _, b := range a.blocks {
		content := message.Block{Type: b.typ, Text: b.content.String()}
		if b.typ == message.BlockToolCall {
			content = message.ToolCall(b.id, b.name, b.content.String())
		}
		a.send(llm.Chunk{Kind: llm.ChunkBlockEnd, Index: b.index, Block: &content})
	}
	if a.usage != nil {
		usage := mapUsage(a.usage)
		a.send(llm.Chunk{Kind: llm.ChunkUsage, Usage: &usage})
	}
	return a.ending()
}

// ending maps the finish reason (core M26, M28, amendment P31). Where a server
// says "stop" although the model called tools, or the reverse, the blocks decide.
func (a *answer) ending() *llm.Finish {
	switch a.reason {
	case "content_filter":
		return &llm.Finish{Kind: llm.FinishRefusal}
	case "length":
		return &llm.Finish{Kind: llm.FinishMaxTokens}
	case "stop", "tool_calls", "":
		switch {
		case a.refused:
			return &llm.Finish{Kind: llm.FinishRefusal}
		case len(a.blocks) == 0:
			return llm.Failed(message.Failure{Code: llm.CodeEmptyResponse, Message: "the model's answer was empty"})
		case len(a.calls) > 0:
			return &llm.Finish{Kind: llm.FinishToolCalls}
		default:
			return &llm.Finish{Kind: llm.FinishStop}
		}
	default:
		return llm.Failed(message.Failure{Code: wire.ReasonCode(a.reason), Message: fmt.Sprintf("the model stopped for the reason %q", a.reason)})
	}
}

// mapUsage makes the counters disjoint: prompt_tokens includes what came from the
// cache (core M27).
func mapUsage(u *openai.CompletionUsage) message.Usage {
	out := message.Usage{OutputTokens: max(u.CompletionTokens, 0)}
	if details := &u.PromptTokensDetails; details.JSON.CachedTokens.Valid() {
		out.CacheReadTokens, out.HasCacheRead = max(details.CachedTokens, 0), true
	} else if hit := u.JSON.ExtraFields["prompt_cache_hit_tokens"]; present(hit) {
		var n int64
		if json.Unmarshal([]byte(hit.Raw()), &n) == nil {
			out.CacheReadTokens, out.HasCacheRead = max(n, 0), true
		}
	}
	if details := &u.PromptTokensDetails; details.JSON.CacheWriteTokens.Valid() {
		out.CacheWriteTokens, out.HasCacheWrite = max(details.CacheWriteTokens, 0), true
	}
	out.InputTokens = max(u.PromptTokens-out.CacheReadTokens-out.CacheWriteTokens, 0)
	if details := &u.CompletionTokensDetails; details.JSON.ReasoningTokens.Valid() {
		out.ReasoningTokens, out.HasReasoning = max(details.ReasoningTokens, 0), true
	}
	return out
}
