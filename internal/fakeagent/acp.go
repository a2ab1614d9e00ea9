package fakeagent

import (
	"encoding/json"
	"strings"
	"sync"
)

// acp is an agent of the Agent Client Protocol, version 1. It has one session, in which it
// has the modes "work" and "look"; in "look" it runs no command, and asks for none. Its
// arguments vary that:
//
//	modes=options   the modes are the values of a configuration option
//	modes=none      there are none
//	modes=stuck     as options, and choosing one changes nothing
//	modes=wander    as options, and it leaves the one that was chosen at once
//	offers=KIND,…   the kinds of option of a request for leave, in this order; their ids are
//	                the kinds in capital letters. Without it: all kinds, those for good first.
//	login           it wants somebody to log in with it
//
// It greets before the answer to session/new, and again before that to session/set_mode.
// Beside what it says, every turn has thoughts, an echo of the prompt, and pieces of
// another session. More kinds of noise: "messages" gives the answer a message of its own
// between others; "stray" says and asks something after the end of the turn; "request"
// asks the client to read a file and says what came of it; "mode" leaves the mode; "broken"
// sends a piece of the answer without a content; "picture" one that is no text; "silent"
// tells nothing of a command before it asks for leave.
func acp(a *Agent) int {
	s := &acpAgent{Agent: a, mode: "work", waiting: map[string]chan json.RawMessage{}}
	defer s.turns.Wait()
	for {
		line, ok := a.Next()
		if !ok {
			return 0
		}
		var m acpMessage
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		if m.Method == "" {
			s.answered(string(m.ID), line)
			continue
		}
		s.take(m)
	}
}

const acpSession = "sess 1"

type acpAgent struct {
	*Agent
	turns sync.WaitGroup
	mode  string // only the goroutine that reads uses it

	mu          sync.Mutex // guards following
	asked       int
	waiting     map[string]chan json.RawMessage
	interrupted chan struct{} // of the turn
}

type acpMessage struct {
	ID     json.RawMessage
	Method string
	Params struct {
		ProtocolVersion int
		Cwd             string
		McpServers      []any
		SessionID       string
		ModeID          string
		ConfigID, Value string
		Prompt          []struct{ Type, Text string }
	}
}

// arg returns the value of an argument.
func (s *acpAgent) arg(name string) string {
	for _, a := range s.Args {
		if key, value, _ := strings.Cut(a, "="); key == name {
			return value
		}
	}
	return ""
}

func (s *acpAgent) update(session string, update object) {
	s.Send(object{"jsonrpc": "2.0", "method": "session/update", "params": object{"sessionId": session, "update": update}})
}

func (s *acpAgent) say(text, message string) {
	u := object{"sessionUpdate": "agent_message_chunk", "content": object{"type": "text", "text": text}}
	if message != "" {
		u["messageId"] = message
	}
	s.update(acpSession, u)
}

func (s *acpAgent) take(m acpMessage) {
	answer := func(result any) { s.Send(object{"jsonrpc": "2.0", "id": m.ID, "result": result}) }
	failWith := func(code int) {
		s.Send(object{"jsonrpc": "2.0", "id": m.ID, "error": object{"code": code, "message": "the secret of the fake"}})
	}
	fail := func() { failWith(-32603) }
	switch m.Method {
	case "initialize":
		v := 1
		if s.BadVersion() || m.Params.ProtocolVersion != 1 {
			v = 2
		}
		if !s.Strike(Handshake, fail) {
			answer(object{"protocolVersion": v, "agentCapabilities": object{}, "agentInfo": object{"name": "fake\nagent", "version": "0.1"}})
		}
	case "session/new":
		switch {
		case s.Strike(Session, fail):
		case m.Params.Cwd == "" || m.Params.McpServers == nil:
			failWith(-32602)
		case s.has("login"):
			failWith(-32000)
		default:
			s.say("Hello! ", "")
			answer(s.opened())
		}
	case "session/set_mode", "session/set_config_option":
		mode := m.Params.ModeID + m.Params.Value
		if mode != "work" && mode != "look" || m.Params.SessionID != acpSession || m.Method == "session/set_mode" == (s.arg("modes") != "") {
			failWith(-32602)
			return
		}
		s.say("I am here. ", "")
		if s.arg("modes") != "stuck" {
			s.mode = mode
		}
		answer(object{"configOptions": s.options()})
		if s.arg("modes") == "wander" {
			s.mode = "work"
			s.update(acpSession, object{"sessionUpdate": "config_option_update", "configOptions": s.options()})
		}
	case "session/prompt":
		if s.Strike(Prompt, fail) {
			return
		}
		p, err := s.Play(m.Params.Prompt[0].Text)
		if err != nil || m.Params.SessionID != acpSession || len(m.Params.Prompt) != 1 || m.Params.Prompt[0].Type != "text" {
			failWith(-32602)
			return
		}
		interrupted := make(chan struct{})
		s.mu.Lock()
		s.interrupted = interrupted
		s.mu.Unlock()
		mode := s.mode
		s.turns.Go(func() { s.turn(p, mode, interrupted, answer, fail) })
	case "session/cancel":
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.interrupted != nil {
			close(s.interrupted)
			s.interrupted = nil
		}
	default:
		failWith(-32601)
	}
}

func (s *acpAgent) has(word string) bool {
	for _, a := range s.Args {
		if a == word {
			return true
		}
	}
	return false
}

func (s *acpAgent) opened() object {
	o := object{"sessionId": acpSession}
	switch s.arg("modes") {
	case "":
		o["modes"] = object{"currentModeId": s.mode, "availableModes": []object{{"id": "work", "name": "Work"}, {"id": "look", "name": "Look"}}}
	case "options", "stuck", "wander":
		o["configOptions"] = s.options()
	}
	return o
}

func (s *acpAgent) options() []any {
	return []any{
		"an option that makes no sense",
		object{"id": "fast", "name": "Fast", "type": "boolean", "currentValue": true},
		object{"id": "how", "name": "Mode", "category": "mode", "type": "select", "currentValue": s.mode, "options": []object{
			{"group": "all", "name": "All", "options": []object{{"value": "work", "name": "Work"}, {"value": "look", "name": "Look"}}},
		}},
	}
}

// request sends a request and returns the line with its answer, or nil if there will be none.
func (s *acpAgent) request(method string, params object) json.RawMessage {
	s.mu.Lock()
	id, answer := s.asked, make(chan json.RawMessage, 1)
	s.asked++
	key, _ := json.Marshal(id)
	s.waiting[string(key)] = answer
	s.mu.Unlock()
	s.Send(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	select {
	case line := <-answer:
		return line
	case <-s.ended:
		return nil
	}
}

func (s *acpAgent) answered(id string, line json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer, ok := s.waiting[id]; ok {
		delete(s.waiting, id)
		answer <- line
	}
}

// ask asks leave for a command.
func (s *acpAgent) ask(command string, quiet bool) string {
	call := object{"toolCallId": "call 1", "title": "Run\n" + command, "kind": "execute", "rawInput": object{"command": command}}
	if !quiet {
		s.update(acpSession, object{"sessionUpdate": "tool_call", "toolCallId": "call 1", "title": call["title"], "kind": "execute", "status": "pending", "rawInput": call["rawInput"]})
		call = object{"toolCallId": "call 1"}
	}
	kinds := []string{"allow_always", "allow_once", "reject_always", "reject_once"}
	if k := s.arg("offers"); k != "" {
		kinds = strings.Split(k, ",")
	}
	var options []object
	for _, kind := range kinds {
		options = append(options, object{"optionId": strings.ToUpper(kind), "name": kind, "kind": kind})
	}
	var m struct {
		Result struct {
			Outcome struct{ Outcome, OptionID string }
		}
	}
	line := s.request("session/request_permission", object{"sessionId": acpSession, "toolCall": call, "options": options})
	_ = json.Unmarshal(line, &m) // else it allows nothing
	switch o := m.Result.Outcome; {
	case o.Outcome == "selected" && strings.HasPrefix(o.OptionID, "ALLOW_"):
		return "allowed"
	case o.Outcome == "selected":
		return "rejected"
	}
	return "cancelled"
}

// turn plays a prompt.
func (s *acpAgent) turn(p Play, mode string, interrupted chan struct{}, answer func(any), fail func()) {
	piece := object{"type": "text", "text": "not the answer "}
	s.update(acpSession, object{"sessionUpdate": "user_message_chunk", "content": piece})
	s.update(acpSession, object{"sessionUpdate": "agent_thought_chunk", "content": piece})
	s.update("another session", object{"sessionUpdate": "agent_message_chunk", "content": piece})
	if mode == "look" && p.Run != "" {
		p.Text, p.Run = "may not "+p.Text, ""
	}
	message := ""
	switch p.Noise {
	case "messages":
		message = "m2"
		s.say("Warning: all is well. ", "")
		s.say("I will think about it.", "m1")
	case "mode":
		s.update(acpSession, object{"sessionUpdate": "current_mode_update", "currentModeId": "work"})
	case "broken":
		s.update(acpSession, object{"sessionUpdate": "agent_message_chunk"})
	case "picture":
		s.update(acpSession, object{"sessionUpdate": "agent_message_chunk", "content": object{"type": "image", "data": "", "mimeType": "image/png"}})
	case "request":
		var m struct{ Error struct{ Code int } }
		if line := s.request("fs/read_text_file", object{"sessionId": acpSession, "path": "/etc/hostname"}); json.Unmarshal(line, &m) == nil && m.Error.Code == -32601 {
			p.Text = "no such method; " + p.Text
		}
	}
	end, _ := s.Act(p, Turn{
		Interrupted: interrupted,
		Say:         func(piece string) { s.say(piece, message) },
		Noise: func() {
			s.update(acpSession, object{"sessionUpdate": "fake_notice", "content": 7})
			s.Send(object{"jsonrpc": "2.0", "method": "_fake/notice", "params": object{"sessionId": acpSession}})
		},
		Ask: func(command string) string { return s.ask(command, p.Noise == "silent") },
	})
	if p.Noise == "messages" {
		s.say(" \n", "m3")
	}
	switch end {
	case "gone":
		return
	case "error":
		fail()
		return
	case "nothing":
		answer(object{})
		return
	case "", "completed":
		end = "end_turn"
	case "max-tokens":
		end = "max_tokens"
	case "aborted":
		end = "cancelled"
	}
	answer(object{"stopReason": end})
	if p.Noise == "stray" {
		s.say(" An afterthought.", "")
		s.ask("true", true)
	}
}
