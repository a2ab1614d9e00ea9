package main

import (
	"bytes"
	"strings"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// eventLine is the line of a stored event.
func eventLine(buf []byte, id session.ID, e *session.Event) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "type", "session.event")
	buf = jsonx.AppendStringField(buf, "sessionId", string(id))
	return append(e.AppendEnvelope(jsonx.AppendKey(buf, "event")), '}')
}

// droppedLine stands for chunks that stdout's reader was too slow for.
func droppedLine(buf []byte, id session.ID, n int64) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "type", "assistant.chunk.dropped")
	buf = jsonx.AppendStringField(buf, "sessionId", string(id))
	return append(jsonx.AppendIntField(buf, "count", n), '}')
}

// chunkLine is the line of a live chunk; a chunk is in no log.
func chunkLine(buf []byte, id session.ID, c *llm.Chunk) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "type", "assistant.chunk")
	buf = jsonx.AppendStringField(buf, "sessionId", string(id))
	buf = append(jsonx.AppendKey(buf, "chunk"), '{')
	buf = jsonx.AppendStringField(buf, "type", string(c.Kind))
	switch c.Kind {
	case llm.ChunkBlockStart:
		buf = jsonx.AppendIntField(buf, "index", int64(c.Index))
		buf = jsonx.AppendStringField(buf, "blockType", string(c.BlockType))
	case llm.ChunkTextDelta, llm.ChunkReasoningDelta:
		buf = jsonx.AppendIntField(buf, "index", int64(c.Index))
		buf = jsonx.AppendStringField(buf, "text", c.Text)
	case llm.ChunkToolCallDelta:
		buf = jsonx.AppendIntField(buf, "index", int64(c.Index))
		buf = jsonx.AppendStringField(buf, "id", c.ID)
		if c.Name != "" {
			buf = jsonx.AppendStringField(buf, "name", c.Name)
		}
		buf = jsonx.AppendStringField(buf, "argumentsDelta", c.Arguments)
	case llm.ChunkBlockEnd:
		buf = jsonx.AppendIntField(buf, "index", int64(c.Index))
		if c.Block != nil {
			block := session.AppendBlocks(nil, []message.Block{*c.Block})
			buf = jsonx.AppendRawField(buf, "block", block[1:len(block)-1])
		}
	case llm.ChunkUsage:
		if c.Usage != nil {
			buf = appendUsage(jsonx.AppendKey(buf, "usage"), *c.Usage)
		}
	case llm.ChunkFinish:
		if c.Finish != nil {
			buf = jsonx.AppendStringField(append(jsonx.AppendKey(buf, "reason"), '{'), "kind", string(c.Finish.Kind))
			if f := c.Finish.Failure; f != nil {
				buf = jsonx.AppendStringField(append(jsonx.AppendKey(buf, "failure"), '{'), "message", f.Message)
				buf = append(jsonx.AppendStringField(buf, "code", f.Code), '}')
			}
			buf = append(buf, '}')
		}
	}
	buf = append(buf, '}', '}')
	// A model's bytes need not be UTF-8; a line of JSON does.
	return bytes.ToValidUTF8(buf, []byte("\uFFFD"))
}

func appendUsage(buf []byte, u message.Usage) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "inputTokens", u.InputTokens)
	buf = jsonx.AppendIntField(buf, "outputTokens", u.OutputTokens)
	buf = jsonx.AppendIntField(buf, "cacheReadTokens", u.CacheReadTokens)
	buf = jsonx.AppendIntField(buf, "cacheWriteTokens", u.CacheWriteTokens)
	return append(jsonx.AppendIntField(buf, "reasoningTokens", u.ReasoningTokens), '}')
}

// result is the last line of a run, and what its exit code follows from.
type result struct {
	sessionID  session.ID
	stopReason string
	text       string
	structured []byte // the captured value of a run with a schema, or nil
	model      string
	usage      message.Usage
}

func resultLine(buf []byte, r *result) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "type", "result")
	buf = jsonx.AppendStringField(buf, "sessionId", string(r.sessionID))
	buf = jsonx.AppendStringField(buf, "stopReason", r.stopReason)
	buf = jsonx.AppendStringField(buf, "text", r.text)
	if r.structured != nil {
		buf = jsonx.AppendRawField(buf, "structured", r.structured)
	}
	buf = jsonx.AppendStringField(buf, "model", r.model)
	return append(appendUsage(jsonx.AppendKey(buf, "usage"), r.usage), '}')
}

// tally follows what a run leaves in the logs of its tree: the tokens of all, the
// last text of the root.
type tally struct {
	mu    sync.Mutex // guards following
	usage message.Usage
	text  string
}

// watch is a Created hook: it follows a session from its first live event on.
func (t *tally) watch(a *agent.Agent) { a.Session().Watch(&tallyFold{t: t, root: a.Root()}) }

type tallyFold struct {
	t    *tally
	root bool
}

// Apply implements session.Fold.
func (f *tallyFold) Apply(e *session.Event) {
	var usage *message.Usage
	text := ""
	switch p := e.Payload().(type) {
	case *session.AssistantMessage:
		usage, text = p.Usage, message.JoinText(p.Message.Content)
	case *session.CompactionSummary:
		usage = p.Usage
	default:
		return
	}
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	if usage != nil {
		f.t.usage = f.t.usage.Add(*usage)
	}
	if f.root && strings.TrimSpace(text) != "" {
		f.t.text = text
	}
}

func (t *tally) read() (message.Usage, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.usage, t.text
}
