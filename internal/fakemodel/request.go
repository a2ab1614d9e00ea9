package fakemodel

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Request is one chat request as it arrived, with a parsed view of its body. It is a value; what it refers to must
// not be modified.
type Request struct {
	// N is the position in order of arrival at the server, from 1.
	N int
	// Attempt counts, from 1, the requests with exactly this model and these messages: 2 is the first retry. Callers
	// that send identical conversations at the same time share the count.
	Attempt int

	Method string
	Path   string
	Header http.Header
	Body   []byte
	// Err says why the body could not be decoded; the fields below are then incomplete.
	Err error

	Model    string
	Messages []Message
	Tools    []Tool
	Stream   bool
	// IncludeUsage is stream_options.include_usage.
	IncludeUsage bool
	// MaxTokens is max_completion_tokens, or else max_tokens; 0 when neither was sent.
	MaxTokens int
	// ReasoningEffort is reasoning_effort.
	ReasoningEffort string
	// Thinking is thinking.type, DeepSeek's switch: enabled or disabled.
	Thinking string

	print    [32]byte
	exchange *exchange
}

// exchange is the live part of a request, shared by all copies of it.
type exchange struct {
	gone chan struct{}
	done chan struct{}
}

// Message is one message of a request.
type Message struct {
	Role string
	// Text is the content when it is a string, and its text parts joined when it is a list.
	Text string
	// Content is the content as it was sent; nil when absent, "null" when null.
	Content json.RawMessage
	// Reasoning is reasoning_content, or else reasoning, as replayed by the client.
	Reasoning string
	// ToolCalls are the calls of an assistant message.
	ToolCalls []ToolCall
	// ToolCallID is the call that a tool message answers.
	ToolCallID string
}

// Tool is one function offered by a request.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage
	Strict      bool
}

// Gone returns a channel that is closed once the server has seen the client leave before its reply was complete. It
// stays open when the reply was completed, was cut by the script, or was ended by [Server.Close].
func (r Request) Gone() <-chan struct{} { return r.exchange.gone }

// Done returns a channel that is closed when the server has finished with the request, however it ended.
func (r Request) Done() <-chan struct{} { return r.exchange.done }

// Position returns how many assistant messages the request holds: where its conversation stands. It needs no memory
// of earlier requests, so a script keyed by it survives a restart of either side.
func (r Request) Position() int {
	n := 0
	for _, m := range r.Messages {
		if m.Role == "assistant" {
			n++
		}
	}
	return n
}

// LastUserText returns the text of the last message whose role is user, or "".
func (r Request) LastUserText() string {
	for i := len(r.Messages) - 1; i >= 0; i-- {
		if r.Messages[i].Role == "user" {
			return r.Messages[i].Text
		}
	}
	return ""
}

// ToolResults returns the tool messages after the last assistant message: what the latest calls brought.
func (r Request) ToolResults() []Message {
	var results []Message
	for i := len(r.Messages) - 1; i >= 0 && r.Messages[i].Role != "assistant"; i-- {
		if r.Messages[i].Role == "tool" {
			results = append([]Message{r.Messages[i]}, results...)
		}
	}
	return results
}

// wireRequest is what of a request body the server reads.
type wireRequest struct {
	Model               string          `json:"model"`
	Messages            json.RawMessage `json:"messages"`
	Tools               []wireTool      `json:"tools"`
	Stream              bool            `json:"stream"`
	MaxTokens           int             `json:"max_tokens"`
	MaxCompletionTokens int             `json:"max_completion_tokens"`
	ReasoningEffort     string          `json:"reasoning_effort"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Thinking struct {
		Type string `json:"type"`
	} `json:"thinking"`
}

type wireTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      bool            `json:"strict"`
	} `json:"function"`
}

type wireMessage struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	ReasoningContent string          `json:"reasoning_content"`
	Reasoning        string          `json:"reasoning"`
	ToolCallID       string          `json:"tool_call_id"`
	ToolCalls        []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// newRequest decodes what arrived; a body that does not decode is told in Err.
func newRequest(r *http.Request, body []byte) Request {
	req := Request{
		Method:   r.Method,
		Path:     r.URL.Path,
		Header:   r.Header.Clone(),
		Body:     body,
		exchange: &exchange{gone: make(chan struct{}), done: make(chan struct{})},
	}
	var wire wireRequest
	if err := json.Unmarshal(body, &wire); err != nil {
		req.Err = fmt.Errorf("decode the body: %w", err)
		return req
	}
	req.print = sha256.Sum256([]byte(wire.Model + "\x00" + string(wire.Messages)))
	req.Model = wire.Model
	req.Stream = wire.Stream
	req.IncludeUsage = wire.StreamOptions.IncludeUsage
	req.ReasoningEffort = wire.ReasoningEffort
	req.Thinking = wire.Thinking.Type
	req.MaxTokens = wire.MaxCompletionTokens
	if req.MaxTokens == 0 {
		req.MaxTokens = wire.MaxTokens
	}
	for _, t := range wire.Tools {
		req.Tools = append(req.Tools, Tool(t.Function))
	}
	req.Messages, req.Err = decodeMessages(wire.Messages)
	return req
}

func decodeMessages(raw json.RawMessage) ([]Message, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var wire []wireMessage
	if err := json.Unmarshal(raw, &wire); err != nil {
		return nil, fmt.Errorf("decode messages: %w", err)
	}
	messages := make([]Message, 0, len(wire))
	for i, w := range wire {
		text, err := contentText(w.Content)
		if err != nil {
			return messages, fmt.Errorf("decode messages[%d].content: %w", i, err)
		}
		m := Message{
			Role:       w.Role,
			Text:       text,
			Content:    w.Content,
			Reasoning:  w.ReasoningContent,
			ToolCallID: w.ToolCallID,
		}
		if m.Reasoning == "" {
			m.Reasoning = w.Reasoning
		}
		for _, c := range w.ToolCalls {
			m.ToolCalls = append(m.ToolCalls, ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		messages = append(messages, m)
	}
	return messages, nil
}

func contentText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '"' {
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, p := range parts {
		if p.Type == "text" {
			text.WriteString(p.Text)
		}
	}
	return text.String(), nil
}
