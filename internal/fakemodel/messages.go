package fakemodel

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// messagesWire is the dialect of everything that is answered to POST /messages. It is no choice of whoever opens a
// server: every server answers both wires.
const messagesWire Dialect = "messages"

// serveMessages answers POST /messages. The request is shown to the script in the terms of the chat wire: the system
// prompt as a message of role system, each tool result as a message of role tool, what was thought as Reasoning.
func (s *Server) serveMessages(w http.ResponseWriter, r *http.Request) {
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	req, wire := newMessagesRequest(r, body)
	if readErr != nil {
		req.Err = fmt.Errorf("read the body: %w", readErr)
	}
	script := s.begin(&req)
	defer s.end(req)
	st := &stream{
		s: s, d: messagesWire, req: req,
		ctx: r.Context(), w: w, rc: http.NewResponseController(w),
	}
	st.own = &messages{st: st, wire: wire}
	s.conclude(st, st.answer(s.decide(r, st, script)))
}

// requestIDHeader is the header that carries the id of a request.
func (d Dialect) requestIDHeader() string {
	if d == messagesWire {
		return "Request-Id"
	}
	return "X-Request-Id"
}

// messagesRequest is what of a Messages request the server reads.
type messagesRequest struct {
	Model     string            `json:"model"`
	System    json.RawMessage   `json:"system"`
	Messages  []messagesMessage `json:"messages"`
	Tools     []json.RawMessage `json:"tools"`
	Stream    bool              `json:"stream"`
	MaxTokens *int              `json:"max_tokens"`
	Thinking  struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	} `json:"thinking"`
	OutputConfig struct {
		Effort string `json:"effort"`
	} `json:"output_config"`
	Temperature json.RawMessage `json:"temperature"`
	version     string
}

type messagesMessage struct {
	Role    string
	Content []messagesBlock
	raw     json.RawMessage
}

// messagesBlock is one block; a string is a text block.
type messagesBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	Cache     json.RawMessage `json:"cache_control"`

	raw json.RawMessage
}

// UnmarshalJSON keeps the content as it was sent.
func (m *messagesMessage) UnmarshalJSON(data []byte) error {
	var wire struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	blocks, err := messagesBlocks(wire.Content)
	*m = messagesMessage{Role: wire.Role, Content: blocks, raw: wire.Content}
	return err
}

func messagesBlocks(raw json.RawMessage) ([]messagesBlock, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] == '"' {
		text, err := contentText(raw)
		block, _ := json.Marshal(map[string]string{"type": "text", "text": text}) // two strings cannot fail
		return []messagesBlock{{Type: "text", Text: text, raw: block}}, err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	blocks := make([]messagesBlock, len(all))
	for i := range all {
		if err := json.Unmarshal(all[i], &blocks[i]); err != nil {
			return nil, err
		}
		blocks[i].raw = all[i]
	}
	return blocks, nil
}

func newMessagesRequest(r *http.Request, body []byte) (Request, messagesRequest) {
	req := Request{
		Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body,
		exchange: &exchange{gone: make(chan struct{}), done: make(chan struct{})},
	}
	var wire messagesRequest
	var whole struct {
		Messages json.RawMessage `json:"messages"`
	}
	if err := errors.Join(json.Unmarshal(body, &wire), json.Unmarshal(body, &whole)); err != nil {
		req.Err = fmt.Errorf("decode the body: %w", err)
		return req, wire
	}
	wire.version = r.Header.Get("Anthropic-Version")
	req.print = sha256.Sum256([]byte(wire.Model + "\x00" + string(whole.Messages)))
	req.Model, req.Stream, req.IncludeUsage = wire.Model, wire.Stream, true
	req.Thinking, req.ReasoningEffort = wire.Thinking.Type, wire.OutputConfig.Effort
	if wire.MaxTokens != nil {
		req.MaxTokens = *wire.MaxTokens
	}
	for _, raw := range wire.Tools {
		var t struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			InputSchema json.RawMessage `json:"input_schema"`
		}
		if err := json.Unmarshal(raw, &t); err != nil {
			req.Err = fmt.Errorf("decode tools: %w", err)
		}
		req.Tools = append(req.Tools, Tool{Name: t.Name, Description: t.Description, Parameters: t.InputSchema})
	}
	if text, err := contentText(wire.System); err != nil {
		req.Err = fmt.Errorf("decode system: %w", err)
	} else if text != "" {
		req.Messages = append(req.Messages, Message{Role: "system", Text: text, Content: wire.System})
	}
	for _, m := range wire.Messages {
		req.Messages = append(req.Messages, m.view()...)
	}
	return req, wire
}

// view is a message in the terms of the chat wire.
func (m messagesMessage) view() []Message {
	var all []Message
	main := Message{Role: m.Role, Content: m.raw}
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			main.Text += b.Text
		case "thinking":
			main.Reasoning += b.Thinking
		case "tool_use":
			main.ToolCalls = append(main.ToolCalls, ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case "tool_result":
			text, err := contentText(b.Content)
			if err != nil {
				text = string(b.Content)
			}
			all = append(all, Message{Role: "tool", Text: text, Content: b.Content, ToolCallID: b.ToolUseID})
		}
	}
	if len(all) == 0 || main.Text != "" {
		all = append(all, main)
	}
	return all
}

// prefixes returns, for each block of the request in the order of the vendor's cache (tools, system, messages), a
// print of everything up to it, whether the cache is asked to remember it there, and its size in tokens. cuts holds
// for each message how many blocks stand before it.
func (r messagesRequest) prefixes() (prints []string, marked []bool, tokens []int, cuts []int) {
	sum, size := sha256.New(), 0
	add := func(kind string, raw json.RawMessage) {
		var block map[string]any
		if json.Unmarshal(raw, &block) == nil {
			_, mark := block["cache_control"]
			delete(block, "cache_control")
			plain, _ := json.Marshal(block) // it was decoded from JSON
			size += len(plain)
			_, _ = fmt.Fprintf(sum, "%s %d %s\n", kind, len(plain), plain) // a hash never fails
			marked = append(marked, mark)
		} else {
			size += len(raw)
			_, _ = fmt.Fprintf(sum, "%s %d %s\n", kind, len(raw), raw) // a hash never fails
			marked = append(marked, false)
		}
		prints = append(prints, hex.EncodeToString(sum.Sum(nil)[:12]))
		tokens = append(tokens, (size+3)/4)
	}
	for _, t := range r.Tools {
		add("tool", t)
	}
	system, _ := messagesBlocks(r.System) // it was decoded before
	for _, b := range system {
		add("system", b.raw)
	}
	for _, m := range r.Messages {
		cuts = append(cuts, len(prints))
		for _, b := range m.Content {
			add(m.Role, b.raw)
		}
	}
	return prints, marked, tokens, cuts
}

// lookback is how many blocks the vendor's cache goes back from a breakpoint.
const lookback = 20

// cache plays the vendor's prompt cache: it returns the usage of a request, and remembers its breakpoints.
func (s *Server) cache(r messagesRequest) Usage {
	prints, marked, tokens, _ := r.prefixes()
	s.mu.Lock()
	defer s.mu.Unlock()
	var u Usage
	last := 0
	for i := range prints {
		if !marked[i] {
			continue
		}
		last = tokens[i]
		for j := i; j >= max(0, i-lookback); j-- {
			if s.cached[r.Model+" "+prints[j]] {
				u.Cached = max(u.Cached, tokens[j])
				break
			}
		}
	}
	for i := range prints {
		if marked[i] {
			s.cached[r.Model+" "+prints[i]] = true
		}
	}
	u.Written = last - u.Cached
	if n := len(tokens); n > 0 {
		u.Prompt = tokens[n-1]
	}
	return u
}

// sign makes the signature of a thinking block: it depends on the thoughts and on everything before the answer.
func (r messagesRequest) sign(thinking string) string {
	prints, _, _, _ := r.prefixes()
	return signature(thinking, last(prints))
}

func signature(thinking, prefix string) string {
	sum := sha256.Sum256([]byte(thinking))
	return "fake-" + hex.EncodeToString(sum[:8]) + "-" + prefix
}

func last(prints []string) string {
	if len(prints) == 0 {
		return ""
	}
	return prints[len(prints)-1]
}

func messagesFault(f Failure) fault {
	const invalid = "invalid_request_error"
	switch f {
	case BadRequest:
		return fault{400, invalid, "", "messages: Input should be a valid list"}
	case ContextLength:
		return fault{400, invalid, "", "prompt is too long: 215310 tokens > 200000 maximum"}
	case Unauthorized:
		return fault{401, "authentication_error", "", "invalid x-api-key"}
	case Forbidden:
		return fault{403, "permission_error", "", "Your API key does not have permission to use the specified resource."}
	case Quota:
		return fault{400, invalid, "", "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}
	case UnknownModel:
		return fault{404, "not_found_error", "", "model: {model}"}
	case TooLarge:
		return fault{413, "request_too_large", "", "Request exceeds the maximum size"}
	case RateLimited:
		return fault{429, "rate_limit_error", "", "This request would exceed the rate limit for your organization of 50 requests per minute."}
	case ServerError:
		return fault{500, "api_error", "", "Internal server error"}
	case Unavailable:
		return fault{529, "overloaded_error", "", "Overloaded"}
	default:
		return fault{}
	}
}

// findUsage returns the usage that a reply sets, or nil.
func findUsage(reply []Step) *Usage {
	for _, step := range slices.Backward(reply) {
		switch step := step.(type) {
		case Usage:
			return &step
		case steps:
			if u := findUsage(step); u != nil {
				return u
			}
		}
	}
	return nil
}

// check refuses what the real endpoint refuses, in words close to its own.
func (m *messages) check() error {
	r := m.wire
	switch {
	case r.Model == "":
		return errors.New("model: Field required")
	case r.MaxTokens == nil:
		return errors.New("max_tokens: Field required")
	case *r.MaxTokens < 1:
		return errors.New("max_tokens: Input should be greater than or equal to 1")
	case len(r.Messages) == 0:
		return errors.New("messages: at least one message is required")
	case r.Temperature != nil && r.version >= "2026-10-21":
		return errors.New("temperature: Extra inputs are not permitted")
	case r.Thinking.Type == "enabled" && (r.Thinking.Budget < 1024 || r.Thinking.Budget >= *r.MaxTokens):
		return fmt.Errorf("`max_tokens` must be greater than `thinking.budget_tokens`, which must be at least 1024: %d, %d", *r.MaxTokens, r.Thinking.Budget)
	case r.Messages[len(r.Messages)-1].Role != "user":
		return errors.New("this model does not support assistant message prefill: the conversation must end with a user message")
	}
	if err := checkTools(m.st.req.Tools); err != nil {
		return err
	}
	if err := r.checkMarks(); err != nil {
		return err
	}
	return r.checkHistory()
}

func (r messagesRequest) checkMarks() error {
	_, marked, _, _ := r.prefixes()
	marks := 0
	for _, m := range marked {
		if m {
			marks++
		}
	}
	if marks > 4 {
		return fmt.Errorf("a maximum of 4 blocks with cache_control may be provided, found %d", marks)
	}
	for i, t := range r.Tools {
		if !bytes.Contains(t, []byte(`"input_schema"`)) && !bytes.Contains(t, []byte(`"type"`)) {
			return fmt.Errorf("tools.%d.custom.input_schema: Field required", i)
		}
	}
	return nil
}

func (r messagesRequest) checkHistory() error {
	prints, _, _, cuts := r.prefixes()
	var open []string // calls of the last assistant message
	for i, m := range r.Messages {
		if len(m.Content) == 0 {
			return fmt.Errorf("messages.%d: all messages must have non-empty content", i)
		}
		switch m.Role {
		case "user":
			if err := m.answers(i, open); err != nil {
				return err
			}
			open = nil
		case "assistant":
			if i == 0 || len(open) > 0 {
				return unresulted(i, open)
			}
			prefix := last(prints[:cuts[i]])
			for j, b := range m.Content {
				if err := b.checkAnswer(prefix); err != nil {
					return fmt.Errorf("messages.%d.content.%d: %w", i, j, err)
				}
				if b.Type == "tool_use" {
					if name := regexp.MustCompile(toolName); !name.MatchString(b.Name) || !name.MatchString(b.ID) {
						return fmt.Errorf("messages.%d.content.%d: `tool_use` %q, %q should match %s", i, j, b.Name, b.ID, name)
					}
					if slices.Contains(open, b.ID) {
						return fmt.Errorf("messages.%d.content.%d: `tool_use` ids must be unique", i, j)
					}
					open = append(open, b.ID)
				}
			}
		default:
			return fmt.Errorf("messages.%d.role: unexpected role %q", i, m.Role)
		}
	}
	return nil
}

func unresulted(i int, ids []string) error {
	if len(ids) == 0 {
		return fmt.Errorf("messages.%d: first message must use the \"user\" role", i)
	}
	return fmt.Errorf("messages.%d: `tool_use` ids were found without `tool_result` blocks immediately after: %s", i-1, strings.Join(ids, ", "))
}

// answers checks a user message against the calls that it must answer, all of them and before anything else.
func (m messagesMessage) answers(i int, open []string) error {
	open = slices.Clone(open)
	others := false
	for j, b := range m.Content {
		switch b.Type {
		case "tool_result":
			at := slices.Index(open, b.ToolUseID)
			if at < 0 {
				return fmt.Errorf("messages.%d.content.%d: unexpected `tool_use_id` found in `tool_result` blocks: %s", i, j, b.ToolUseID)
			}
			if others {
				return fmt.Errorf("messages.%d.content.%d: `tool_result` blocks must come before other content", i, j)
			}
			open = slices.Delete(open, at, at+1)
			text, err := contentText(b.Content)
			if err == nil && len(b.Content) > 0 && strings.TrimSpace(text) == "" {
				return fmt.Errorf("messages.%d.content.%d: text content blocks must contain non-whitespace text", i, j)
			}
		case "text":
			others = true
			if strings.TrimSpace(b.Text) == "" {
				return fmt.Errorf("messages.%d.content.%d: text content blocks must contain non-whitespace text", i, j)
			}
		default:
			others = true
		}
	}
	if len(open) > 0 {
		return unresulted(i, open)
	}
	return nil
}

// checkAnswer checks one block that a client says was an answer of the model. Thinking must be signed here, and
// nothing of it or before it may have changed since.
func (b messagesBlock) checkAnswer(prefix string) error {
	switch b.Type {
	case "text":
		if strings.TrimSpace(b.Text) == "" {
			return errors.New("text content blocks must contain non-whitespace text")
		}
	case "tool_use":
		if b.ID == "" || b.Name == "" || len(b.Input) == 0 || b.Input[0] != '{' {
			return errors.New("tool_use: id, name and an input that is an object are required")
		}
	case "redacted_thinking":
		if b.Data == "" {
			return errors.New("redacted_thinking.data: Field required")
		}
	case "thinking":
		if b.Cache != nil {
			return errors.New("thinking.cache_control: Extra inputs are not permitted")
		}
		at := strings.LastIndexByte(b.Signature, '-')
		if at < 0 || signature(b.Thinking, b.Signature[at+1:]) != b.Signature {
			return errors.New("invalid `signature` in `thinking` block")
		}
		if b.Signature[at+1:] != prefix {
			return errors.New("invalid `signature` in `thinking` block: the block is bound to a different conversation")
		}
	}
	return nil
}
