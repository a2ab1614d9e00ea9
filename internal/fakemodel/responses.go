package fakemodel

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// responsesWire is the dialect of everything that is answered to POST /responses, as messagesWire is of /messages.
const responsesWire Dialect = "responses"

// serveResponses answers POST /responses. The request is shown to the script in the terms of the chat wire: the
// instructions as a message of role system, what one answer of the model consisted of as one message.
func (s *Server) serveResponses(w http.ResponseWriter, r *http.Request) {
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	req, custom := newResponsesRequest(r, body)
	if readErr != nil {
		req.Err = fmt.Errorf("read the body: %w", readErr)
	}
	script := s.begin(&req)
	defer s.end(req)
	st := &stream{
		s: s, d: responsesWire, req: req,
		ctx: r.Context(), w: w, rc: http.NewResponseController(w),
	}
	st.own = &responses{st: st, custom: custom}
	s.conclude(st, st.answer(s.decide(r, st, script)))
}

// responsesRequest is what of a Responses request the server reads.
type responsesRequest struct {
	Model        string          `json:"model"`
	Instructions string          `json:"instructions"`
	Input        json.RawMessage `json:"input"`
	Tools        []struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      bool            `json:"strict"`
	} `json:"tools"`
	Stream          bool `json:"stream"`
	MaxOutputTokens int  `json:"max_output_tokens"`
	Reasoning       struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
}

// responsesItem is one item of the input.
type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
}

// newResponsesRequest decodes what arrived. custom are the names of the tools that take text instead of JSON.
func newResponsesRequest(r *http.Request, body []byte) (Request, map[string]bool) {
	req := Request{
		Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body, IncludeUsage: true,
		exchange: &exchange{gone: make(chan struct{}), done: make(chan struct{})},
	}
	custom := map[string]bool{}
	var wire responsesRequest
	if err := json.Unmarshal(body, &wire); err != nil {
		req.Err = fmt.Errorf("decode the body: %w", err)
		return req, custom
	}
	req.print = sha256.Sum256([]byte(wire.Model + "\x00" + string(wire.Input)))
	req.Model, req.Stream, req.MaxTokens, req.ReasoningEffort = wire.Model, wire.Stream, wire.MaxOutputTokens, wire.Reasoning.Effort
	for _, t := range wire.Tools {
		if t.Name == "" {
			continue // one that the vendor runs
		}
		custom[t.Name] = t.Type == "custom"
		req.Tools = append(req.Tools, Tool{Name: t.Name, Description: t.Description, Parameters: t.Parameters, Strict: t.Strict})
	}
	if wire.Instructions != "" {
		text, _ := json.Marshal(wire.Instructions) // a string cannot fail
		req.Messages = append(req.Messages, Message{Role: "system", Text: wire.Instructions, Content: text})
	}
	messages, err := responsesMessages(wire.Input)
	req.Messages = append(req.Messages, messages...)
	req.Err = err
	return req, custom
}

// responsesMessages is the input in the terms of the chat wire.
func responsesMessages(raw json.RawMessage) ([]Message, error) {
	if len(raw) > 0 && raw[0] == '"' {
		text, err := contentText(raw)
		return []Message{{Role: "user", Text: text, Content: raw}}, err
	}
	var items []responsesItem
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, fmt.Errorf("decode input: %w", err)
	}
	var all []Message
	// answer returns the message of the model that the items belong to which follow one another.
	answer := func() *Message {
		if len(all) == 0 || all[len(all)-1].Role != "assistant" {
			all = append(all, Message{Role: "assistant"})
		}
		return &all[len(all)-1]
	}
	for i, item := range items {
		switch item.Type {
		case "message", "":
			text, err := responsesText(item.Content)
			if err != nil {
				return all, fmt.Errorf("decode input[%d].content: %w", i, err)
			}
			if item.Role == "assistant" {
				m := answer()
				m.Text, m.Content = m.Text+text, item.Content
				continue
			}
			all = append(all, Message{Role: item.Role, Text: text, Content: item.Content})
		case "function_call", "custom_tool_call":
			m := answer()
			m.ToolCalls = append(m.ToolCalls, ToolCall{ID: item.CallID, Name: item.Name, Arguments: item.Arguments + item.Input})
		case "function_call_output", "custom_tool_call_output":
			text, err := responsesText(item.Output)
			if err != nil {
				text = string(item.Output)
			}
			all = append(all, Message{Role: "tool", Text: text, Content: item.Output, ToolCallID: item.CallID})
		}
	}
	return all, nil
}

// responsesText is the text of a content, whose parts have other types here than on the chat wire.
func responsesText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || raw[0] != '[' {
		return contentText(raw)
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, p := range parts {
		text.WriteString(p.Text)
	}
	return text.String(), nil
}

// responses is one answer being given on the Responses wire.
type responses struct {
	st     *stream
	custom map[string]bool

	index int    // of the next item
	open  string // the type of the content that is open: output_text, refusal or none
	said  strings.Builder
	items []object
}

func (w *responses) check() error {
	req := w.st.req
	switch {
	case req.Model == "":
		return errors.New("missing required parameter: 'model'")
	case len(req.Messages) == 0:
		return errors.New("missing required parameter: 'input'")
	}
	if err := checkHistory(req.Messages); err != nil {
		return err
	}
	if err := checkNames(req.Messages); err != nil {
		return err
	}
	return checkTools(req.Tools)
}

// event sends one named event.
func (w *responses) event(name string, rest ...member) error {
	body := append(object{{"type", name}}, rest...)
	b := appendJSON([]byte("event: "+name+"\ndata: "), body)
	return w.st.write(append(b, "\n\n"...))
}

// response is the object that the first and the last event carry.
func (w *responses) response(status string, rest ...member) object {
	return append(object{
		{"id", "resp_" + w.st.requestID()}, {"object", "response"}, {"created_at", created}, {"status", status},
		{"model", w.st.req.Model},
	}, rest...)
}

func (w *responses) begin() error {
	return w.event("response.created", member{"response", w.response("in_progress", member{"output", []object{}})})
}

func (w *responses) itemID() string {
	return fmt.Sprintf("msg_%s_%d", w.st.requestID(), w.index)
}

// message is the item of a text, empty or whole.
func (w *responses) message(status string) object {
	content := []object{}
	if status == "completed" {
		kind := member{"text", w.said.String()}
		if w.open == "refusal" {
			kind.name = "refusal"
		}
		content = append(content, object{{"type", w.open}, kind})
	}
	return object{{"id", w.itemID()}, {"type", "message"}, {"role", "assistant"}, {"status", status}, {"content", content}}
}

// say sends a piece of text of that type.
func (w *responses) say(kind, piece string) error {
	if err := w.st.begin(); err != nil {
		return err
	}
	if w.open != kind {
		if err := w.leave(); err != nil {
			return err
		}
		w.open = kind
		if err := w.event("response.output_item.added", member{"output_index", w.index}, member{"item", w.message("in_progress")}); err != nil {
			return err
		}
	}
	w.said.WriteString(piece)
	return w.event("response."+kind+".delta", member{"item_id", w.itemID()}, member{"output_index", w.index}, member{"content_index", 0}, member{"delta", piece})
}

// leave closes the open text.
func (w *responses) leave() error {
	if w.open == "" {
		return nil
	}
	item := w.message("completed")
	w.open = ""
	w.said.Reset()
	return w.item(item)
}

// item sends a whole item.
func (w *responses) item(item object) error {
	w.items = append(w.items, item)
	w.index++
	return w.event("response.output_item.done", member{"output_index", w.index - 1}, member{"item", item})
}

func (w *responses) text(s string) error { return w.say("output_text", s) }

func (w *responses) refusal(s string) error { return w.say("refusal", s) }

// thinking is kept by the vendor; an item without a summary says that there was some.
func (w *responses) thinking(string) error {
	if err := w.st.begin(); err != nil {
		return err
	}
	if err := w.leave(); err != nil {
		return err
	}
	return w.item(object{{"id", "rs_" + w.itemID()}, {"type", "reasoning"}, {"summary", []object{}}})
}

// calls sends tool calls, one whole item after the other: clients act on those alone.
func (w *responses) calls(p parallel) error {
	st := w.st
	if err := st.begin(); err != nil {
		return err
	}
	if err := w.leave(); err != nil {
		return err
	}
	for _, call := range p {
		if call.ID == "" {
			call.ID = st.callID(st.calls)
		}
		st.calls++
		st.outBytes += len(call.Name) + len(call.Arguments)
		kind, input := "function_call", "arguments"
		if w.custom[call.Name] {
			kind, input = "custom_tool_call", "input"
		}
		err := w.item(object{
			{"id", "fc_" + call.ID}, {"type", kind}, {"status", "completed"},
			{"call_id", call.ID}, {"name", call.Name}, {input, call.Arguments},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *responses) finish(f Finish) error {
	if err := w.st.begin(); err != nil {
		return err
	}
	if err := w.leave(); err != nil || f == "" {
		return err
	}
	counts := w.st.counts()
	status, rest := "completed", []member{{"output", w.items}}
	reason := map[Finish]string{Length: "max_output_tokens", ContentFilter: "content_filter"}[f]
	if reason != "" {
		status = "incomplete"
		rest = append(rest, member{"incomplete_details", object{{"reason", reason}}})
	}
	if !counts.Omit {
		rest = append(rest, member{"usage", object{
			{"input_tokens", counts.Prompt}, {"input_tokens_details", object{{"cached_tokens", counts.Cached}}},
			{"output_tokens", counts.Completion}, {"output_tokens_details", object{{"reasoning_tokens", counts.Reasoning}}},
			{"total_tokens", counts.Prompt + counts.Completion},
		}})
	}
	return w.event("response."+status, member{"response", w.response(status, rest...)})
}

func (w *responses) done() error { return errEnd }

func (w *responses) fail(e ErrorChunk) error {
	if e.Message == "" {
		e.Message = "The server had an error while processing your request."
	}
	if e.Code == "" {
		e.Code = "server_error"
	}
	fault := object{{"code", e.Code}, {"message", e.Message}}
	if err := w.event("response.failed", member{"response", w.response("failed", member{"error", fault})}); err != nil {
		return err
	}
	return errEnd
}
