package fakeagent

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// claude is one process of Claude Code without a terminal, which speaks its stream of JSON
// and its control protocol. Its arguments mean what they mean there.
type claude struct {
	a               *Agent
	mode            string
	tools           []string
	partial, schema bool

	mu          sync.Mutex // guards following
	interrupted chan struct{}
	answers     map[string]chan json.RawMessage
	asked       int
	denials     []object
	status      int
}

const claudeSession = "11111111-2222-3333-4444-555555555555"

func claudeCode(a *Agent) int {
	c := &claude{a: a, mode: "default", tools: []string{"Task", "Bash", "Read", "Write"}, answers: map[string]chan json.RawMessage{}}
	for i, arg := range a.Args {
		name, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(a.Args) {
			value = a.Args[i+1]
		}
		switch name {
		case "--permission-mode":
			c.mode = value
		case "--tools":
			c.tools = strings.Split(value, ",")
		case "--include-partial-messages":
			c.partial = true
		case "--json-schema":
			c.schema = true
			c.tools = append(c.tools, "StructuredOutput")
		}
	}
	if dir := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "cc-socks"); len(dir) > len("cc-socks") {
		socket, err := net.Listen("unix", filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock"))
		if err != nil {
			return 2
		}
		if !a.IgnoreEOF {
			defer socket.Close() //nolint:errcheck // it removes the socket
		}
	}
	var turns sync.WaitGroup
	for {
		line, ok := a.Next()
		if !ok {
			turns.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.status
		}
		var m struct {
			Type      string
			RequestID string `json:"request_id"`
			Request   struct{ Subtype string }
			Response  struct {
				RequestID string `json:"request_id"`
				Response  json.RawMessage
			}
			Message struct{ Content []struct{ Text string } }
		}
		if json.Unmarshal(line, &m) != nil {
			a.Quit(1)
			continue
		}
		switch m.Type {
		case "control_request":
			c.request(m.RequestID, m.Request.Subtype)
		case "control_response":
			c.mu.Lock()
			if answer := c.answers[m.Response.RequestID]; answer != nil {
				answer <- m.Response.Response
				delete(c.answers, m.Response.RequestID)
			}
			c.mu.Unlock()
		case "user":
			c.mu.Lock()
			c.interrupted = make(chan struct{})
			c.mu.Unlock()
			turns.Go(func() { c.turn(m.Message.Content[0].Text) })
		}
	}
}

// request answers a request of the client's.
func (c *claude) request(id, subtype string) {
	answer := func(subtype, key string, value any) {
		c.a.Send(object{"type": "control_response", "response": object{"subtype": subtype, "request_id": id, key: value}})
	}
	switch subtype {
	case "initialize":
		if c.a.Strike(Handshake, func() { answer("error", "error", "the secret of the fake") }) {
			return
		}
		version := "2.9.9"
		if c.a.BadVersion() {
			version = "1.0.128"
		}
		answer("success", "response", object{
			"claude_code_version": version, "pid": os.Getpid(), "commands": []object{{"name": "cost"}}, "current_permission_mode": c.mode,
		})
	case "interrupt":
		c.mu.Lock()
		if c.interrupted != nil {
			select {
			case <-c.interrupted:
			default:
				close(c.interrupted)
			}
		}
		c.mu.Unlock()
		answer("success", "response", object{"still_queued": []string{}})
	default:
		answer("error", "error", "Unsupported control request subtype")
	}
}

// emit sends a message of the session.
func (c *claude) emit(kind string, rest object) {
	rest["type"], rest["session_id"] = kind, claudeSession
	if _, has := rest["parent_tool_use_id"]; !has {
		rest["parent_tool_use_id"] = nil
	}
	c.a.Send(rest)
}

func (c *claude) spoken(id string, content object, rest object) {
	if rest == nil {
		rest = object{}
	}
	rest["message"] = object{"id": id, "role": "assistant", "content": []object{content}}
	c.emit("assistant", rest)
}

// turn plays one prompt, which is what the text says unless it is a command.
func (c *claude) turn(prompt string) {
	if c.a.Strike(Session, func() { c.result(object{"subtype": "success", "is_error": true, "result": "the secret of the fake"}) }) {
		return
	}
	c.emit("system", object{"subtype": "init", "permissionMode": c.mode, "tools": c.tools, "mcp_servers": []object{}})
	if c.a.Strike(Prompt, func() {
		c.result(object{"subtype": "error_during_execution", "is_error": true, "errors": []string{"the secret of the fake"}})
	}) {
		return
	}
	p, err := c.a.Play(prompt)
	switch {
	case strings.HasPrefix(prompt, "/"):
		c.result(object{"subtype": "success", "is_error": false, "result": "that was a command"})
		return
	case err != nil:
		c.result(object{"subtype": "success", "is_error": true, "result": err.Error()})
		return
	}
	c.mu.Lock()
	interrupted := c.interrupted
	c.mu.Unlock()
	c.spoken("msg_0", object{"type": "text", "text": "I begin."}, nil)
	c.event(object{"type": "message_start", "message": object{"id": "msg_1"}})
	end, said := c.a.Act(p, Turn{
		Interrupted: interrupted,
		Say: func(piece string) {
			c.event(object{"type": "content_block_delta", "delta": object{"type": "thinking_delta", "thinking": "hidden"}})
			c.event(object{"type": "content_block_delta", "delta": object{"type": "text_delta", "text": piece}})
			if c.partial {
				c.emit("stream_event", object{"parent_tool_use_id": "toolu_9", "event": object{"type": "content_block_delta", "delta": object{"type": "text_delta", "text": "not mine"}}})
			}
			c.spoken("msg_9", object{"type": "text", "text": "not mine"}, object{"parent_tool_use_id": "toolu_9"})
		},
		Noise: func() { c.a.Send(object{"type": "fake_notice", "subtype": 7}) },
		Ask:   func(command string) string { return c.ask(command, interrupted) },
	})
	if end == "gone" {
		return
	}
	if said != "" {
		c.spoken("msg_1", object{"type": "text", "text": said}, nil)
	}
	c.end(p, end, said)
	if p.Noise == "late" {
		c.spoken("msg_2", object{"type": "text", "text": "too late"}, nil)
		c.result(object{"subtype": "success", "is_error": false, "result": "too late"})
	}
}

func (c *claude) event(event object) {
	if c.partial {
		c.emit("stream_event", object{"event": event})
	}
}

// end sends the result of a turn.
func (c *claude) end(p Play, end, said string) {
	failed := func(fault string, more object) {
		c.spoken("msg_e", object{"type": "text", "text": "API Error: the secret of the fake"}, object{"error": fault})
		more["subtype"], more["is_error"], more["result"], more["terminal_reason"] = "success", true, "API Error: the secret of the fake", "api_error"
		c.result(more)
	}
	switch end {
	case "", "completed":
		r := object{"subtype": "success", "is_error": false, "result": said, "stop_reason": "end_turn", "terminal_reason": "completed", "api_error_status": nil}
		if c.schema && p.Structured != "" {
			r["structured_output"], r["result"] = json.RawMessage(p.Structured), p.Structured
		}
		c.result(r)
	case "aborted":
		c.result(object{"subtype": "error_during_execution", "is_error": true, "errors": []string{"the secret of the fake"}, "terminal_reason": "aborted_streaming"})
	case "error":
		failed("server_error", object{"api_error_status": 500})
	case "max-tokens":
		failed("max_output_tokens", object{"api_error_status": nil})
	case "refusal":
		failed("invalid_request", object{"stop_reason": "refusal"})
	case "unknown":
		c.result(object{"subtype": "error_of_the_future", "is_error": true})
	case "new-fault":
		failed("the secret of the fake", object{"api_error_status": nil})
	default:
		c.result(object{"subtype": end, "is_error": true, "errors": []string{"the secret of the fake"}})
	}
}

// result ends a turn. The exit status tells whether it failed.
func (c *claude) result(r object) {
	c.mu.Lock()
	c.status = 0
	if failed, _ := r["is_error"].(bool); failed {
		c.status = 1
	}
	r["permission_denials"] = c.denials
	c.mu.Unlock()
	c.emit("result", r)
}

// ask asks leave for a command as the permission mode wants it.
func (c *claude) ask(command string, interrupted <-chan struct{}) string {
	c.mu.Lock()
	c.asked++
	n := strconv.Itoa(c.asked)
	answer := make(chan json.RawMessage, 1)
	c.answers["q"+n] = answer
	c.mu.Unlock()
	input := object{"command": command}
	c.spoken("msg_0", object{"type": "tool_use", "id": "toolu_" + n, "name": "Bash", "input": input}, nil)
	result := func() {
		c.emit("user", object{"message": object{"role": "user", "content": []object{{"type": "tool_result", "tool_use_id": "toolu_" + n, "content": "done"}}}})
	}
	defer result()
	switch {
	case !strings.Contains(strings.Join(c.tools, " "), "Bash"):
		return "no such tool"
	case c.mode == "dontAsk":
		c.emit("system", object{"subtype": "permission_denied", "tool_name": "Bash", "tool_use_id": "toolu_" + n, "message": "the secret of the fake"})
		c.mu.Lock()
		c.denials = append(c.denials, object{"tool_name": "Bash", "tool_use_id": "toolu_" + n, "tool_input": input})
		c.mu.Unlock()
		return "rejected"
	case c.mode == "bypassPermissions":
		return "allowed"
	}
	c.a.Send(object{"type": "control_request", "request_id": "q" + n, "request": object{
		"subtype": "can_use_tool", "tool_name": "Bash", "input": input, "tool_use_id": "toolu_" + n,
		"permission_suggestions": []object{{"type": "setMode", "mode": "acceptEdits", "destination": "session"}},
	}})
	var raw json.RawMessage
	select {
	case raw = <-answer:
	case <-interrupted:
		c.a.Send(object{"type": "control_cancel_request", "request_id": "q" + n})
		return "cancelled"
	case <-c.a.ended:
		return "cancelled"
	}
	var decision struct {
		Behavior    string
		Input       struct{ Command string } `json:"updatedInput"`
		Permissions json.RawMessage          `json:"updatedPermissions"`
		Message     string
		Interrupt   bool
	}
	switch err := json.Unmarshal(raw, &decision); {
	case err != nil, decision.Permissions != nil, decision.Interrupt:
		return "broken"
	case decision.Behavior == "allow" && decision.Input.Command == command:
		return "allowed"
	case decision.Behavior == "deny" && decision.Message != "":
		return "rejected"
	}
	return "broken"
}
