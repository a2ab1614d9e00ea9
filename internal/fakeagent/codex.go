package fakeagent

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// codex is Codex's app server. Its own words beyond those of Play and Faults:
//
//	session=sandbox, policy, reviewer, network, model, provider, folder, kept
//	                 the thread differs in that from what was asked for
//	session=asks     a question of an MCP server comes before the thread is there
//	prompt=asks      a request that nobody knows in place of the answer
//	noise late       the turn ends before its request is answered
//	noise marked     the answer is marked as final, and another message comes behind it
//	noise renamed    the turn begins under another name than its request is answered with
//	noise withdraw   leave for a command is asked for and no longer wanted
//	noise summary    the answer is in the end of the turn alone
//	noise ask METHOD another request than one for a command is made; its answer is said
//	noise alien      a turn that nobody asked for ends, and one of another thread
//	end JSON         a turn that failed, with that as its codexErrorInfo
//	end interrupted  an interrupt that nobody asked for
//	end again        a second end behind the first
//	end nameless     an end that names no turn
//	end asking       a request that nobody knows, and in one piece with it the end
//	end asking-late  the same the other way round
//	end forgetful    a turn that failed, whose end does not say how; another turn's failure before it
func codex(a *Agent) int {
	s := &codexServer{Agent: a, answers: map[string]chan codexAnswer{}}
	defer s.turns.Wait()
	for {
		line, ok := a.Next()
		if !ok {
			return 0
		}
		var m codexMessage
		if json.Unmarshal(line, &m) == nil {
			s.take(m)
		}
	}
}

// codexMessage is what a client sends.
type codexMessage struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Cwd, ApprovalPolicy, ApprovalsReviewer, Sandbox, Model, ModelProvider string
		Ephemeral                                                             bool
		ThreadID, TurnID                                                      string
		Input                                                                 []struct{ Text string }
		OutputSchema                                                          json.RawMessage
	}
	codexAnswer
}

type codexAnswer struct {
	Result json.RawMessage
	Error  *struct{ Code int }
}

// codexServer is one app server, which has one thread and in it one turn at a time.
type codexServer struct {
	*Agent

	turns  sync.WaitGroup
	greets int // initialize, then initialized
	cwd    string

	mu        sync.Mutex // guards following
	requests  int
	answers   map[string]chan codexAnswer
	interrupt func()
}

const (
	codexThread = "thread-1"
	codexTurnID = "turn-1"
)

func (s *codexServer) take(m codexMessage) {
	result := func(v any) { s.Send(object{"id": m.ID, "result": v}) }
	refuse := func(code int) {
		s.Send(object{"id": m.ID, "error": object{"code": code, "message": "the secret of the fake"}})
	}
	fail := func() { refuse(-32603) }
	switch {
	case m.Method == "":
		s.mu.Lock()
		waiting := s.answers[string(m.ID)]
		delete(s.answers, string(m.ID))
		s.mu.Unlock()
		if waiting != nil {
			waiting <- m.codexAnswer
		}
	case m.Method == "initialize" && s.greets == 0:
		switch {
		case s.Strike(Handshake, fail):
		case s.BadVersion():
			result(object{"userAgent": 9})
		default:
			s.greets = 1
			result(object{"userAgent": "offshoot/9.8.7 (Fake\nOS) unknown", "codexHome": "/nowhere", "platformFamily": "unix", "platformOs": "linux"})
		}
	case m.Method == "initialized" && s.greets == 1:
		s.greets = 2
		s.Send(object{"method": "configWarning", "params": object{"summary": "the secret of the fake"}})
	case s.greets < 2:
		refuse(-32600)
	case m.Method == "thread/start":
		if !s.Strike(Session, fail) {
			s.thread(m, result, refuse)
		}
	case m.Method == "turn/start" && m.Params.ThreadID == codexThread && len(m.Params.Input) == 1:
		if s.Strike(Prompt, fail) {
			return
		}
		if s.At[Prompt] == "asks" {
			s.Send(object{"id": 99, "method": "attestation/generate", "params": object{}})
			return
		}
		p, err := s.Play(m.Params.Input[0].Text)
		if err != nil {
			fail()
			return
		}
		interrupted := make(chan struct{})
		s.mu.Lock()
		s.interrupt = sync.OnceFunc(func() { close(interrupted) })
		s.mu.Unlock()
		schema := len(m.Params.OutputSchema) > 0
		s.turns.Go(func() { s.turn(p, schema, interrupted, result) })
	case m.Method == "turn/interrupt" && m.Params.ThreadID == codexThread && m.Params.TurnID == codexTurnID:
		s.mu.Lock()
		interrupt := s.interrupt
		s.mu.Unlock()
		result(object{})
		interrupt()
	default:
		refuse(-32600)
	}
}

func (s *codexServer) thread(m codexMessage, result func(any), refuse func(int)) {
	p := m.Params
	sandbox, known := map[string]string{
		"": "readOnly", "read-only": "readOnly", "workspace-write": "workspaceWrite", "danger-full-access": "dangerFullAccess",
	}[p.Sandbox]
	switch p.ApprovalPolicy {
	case "", "untrusted", "on-request", "never":
	default:
		known = false
	}
	if !known || p.Cwd == "" {
		refuse(-32600)
		return
	}
	s.cwd = p.Cwd
	answer := object{
		"thread": object{"id": codexThread, "ephemeral": p.Ephemeral && s.At[Session] != "kept", "status": object{"type": "idle"}},
		"cwd":    p.Cwd, "approvalPolicy": p.ApprovalPolicy, "approvalsReviewer": p.ApprovalsReviewer,
		"sandbox": object{"type": sandbox, "networkAccess": s.At[Session] == "network"},
		"model":   "fake-model", "modelProvider": "fake",
	}
	if p.Model != "" {
		answer["model"] = p.Model
	}
	if p.ModelProvider != "" {
		answer["modelProvider"] = p.ModelProvider
	}
	switch s.At[Session] {
	case "version":
		answer = object{"thread": "none"}
	case "sandbox":
		answer["sandbox"] = object{"type": "dangerFullAccess"}
	case "policy":
		answer["approvalPolicy"] = object{"granular": object{"rules": true}}
	case "reviewer":
		answer["approvalsReviewer"] = "auto_review"
	case "model":
		answer["model"] = "another"
	case "provider":
		answer["modelProvider"] = "openai"
	case "folder":
		answer["cwd"] = "/"
	}
	if s.At[Session] == "asks" {
		s.turns.Go(func() {
			if _, ok := s.ask("mcpServer/elicitation/request", object{"threadId": codexThread, "turnId": nil, "serverName": "m"}); ok {
				result(answer)
			}
		})
		return
	}
	result(answer)
	s.notify("thread/started", object{"thread": object{"id": codexThread, "parentThreadId": nil}})
}

func (s *codexServer) notify(method string, params object) {
	s.Send(object{"method": method, "params": params, "emittedAtMs": 0})
}

// ask makes a request and returns the answer, and false at the end of the input.
func (s *codexServer) ask(method string, params object) (codexAnswer, bool) {
	answer := make(chan codexAnswer, 1)
	s.mu.Lock()
	id := s.requests
	s.requests++
	s.answers[fmt.Sprint(id)] = answer
	s.mu.Unlock()
	params["itemId"] = fmt.Sprint("call-", id)
	s.Send(object{"id": id, "method": method, "params": params})
	select {
	case got := <-answer:
		s.notify("serverRequest/resolved", object{"threadId": codexThread, "requestId": id})
		return got, true
	case <-s.ended:
		return codexAnswer{}, false
	}
}

// turn plays a prompt.
func (s *codexServer) turn(p Play, schema bool, interrupted <-chan struct{}, result func(any)) {
	inTurn := func(more object) object {
		of := object{"threadId": codexThread, "turnId": codexTurnID}
		for k, v := range more {
			of[k] = v
		}
		return of
	}
	begun := func() {
		result(object{"turn": object{"id": codexTurnID, "status": "inProgress", "items": []any{}, "error": nil}})
	}
	if p.Noise == "renamed" {
		s.notify("turn/started", object{"threadId": codexThread, "turn": object{"id": "turn-2", "status": "inProgress"}})
	}
	if p.Noise != "late" {
		begun()
	}
	s.notify("turn/started", object{"threadId": codexThread, "turn": object{"id": codexTurnID, "status": "inProgress"}})
	item := func(id, text string, phase any) object {
		return object{"type": "agentMessage", "id": id, "text": text, "phase": phase}
	}
	say := func(id, text string) {
		s.notify("item/agentMessage/delta", inTurn(object{"itemId": id, "delta": text}))
	}
	whole := func(id, text string, phase any) {
		s.notify("item/started", inTurn(object{"item": item(id, "", phase)}))
		say(id, text)
		s.notify("item/completed", inTurn(object{"item": item(id, text, phase)}))
	}
	s.notify("item/started", inTurn(object{"item": object{"type": "userMessage", "id": "user", "content": []any{}, "text": []int{1}}}))
	whole("note-1", "I look around.", "commentary")
	whole("note-2", "I think.", "a phase of tomorrow")
	s.notify("item/completed", object{"threadId": "thread-of-another", "turnId": "turn-9", "item": item("alien", "not mine", "final_answer")})
	s.notify("item/completed", object{"threadId": codexThread, "turnId": "turn-of-before", "item": item("alien", "not mine", "final_answer")})
	if p.Noise == "alien" {
		for _, id := range [][2]string{{"thread-of-another", codexTurnID}, {codexThread, "turn-of-before"}} {
			s.notify("turn/completed", object{"threadId": id[0], "turn": object{"id": id[1], "status": "completed"}})
		}
	}
	if p.Noise == "withdraw" {
		s.Send(object{"id": 99, "method": "item/commandExecution/requestApproval", "params": inTurn(object{"itemId": "call-99", "command": "true", "cwd": s.cwd})})
		s.notify("serverRequest/resolved", object{"threadId": codexThread, "requestId": 99})
	}
	if method, asks := strings.CutPrefix(p.Noise, "ask "); asks {
		p.Text = s.other(method, inTurn) + " " + p.Text
	}
	s.notify("item/started", inTurn(object{"item": item("answer", "", nil)}))
	end, said := s.Act(p, Turn{
		Interrupted: interrupted, Dir: s.cwd,
		Say:   func(piece string) { say("answer", piece) },
		Noise: func() { s.notify("fake/notice", object{"threadId": codexThread, "turn": 7}) },
		Ask: func(command string) string {
			got, ok := s.ask("item/commandExecution/requestApproval", inTurn(object{
				"command": command, "cwd": s.cwd, "reason": nil,
				"availableDecisions": []any{"accept", object{"acceptWithExecpolicyAmendment": object{}}, "cancel"},
			}))
			if !ok {
				return "cancelled"
			}
			return codexVerdict(got)
		},
	})
	if end == "gone" {
		return
	}
	turn := object{"id": codexTurnID, "items": []any{}, "error": nil}
	failed := func(info any) {
		fault := object{"message": "the secret of the fake", "codexErrorInfo": info, "additionalDetails": "the secret of the fake"}
		s.notify("error", inTurn(object{"error": fault, "willRetry": false}))
		turn["status"], turn["error"] = "failed", fault
	}
	switch {
	case end == "aborted", end == "interrupted":
		turn["status"] = "interrupted"
	case end == "error":
		failed("internalServerError")
	case end == "max-tokens":
		s.notify("item/completed", inTurn(object{"item": item("answer", said, nil)}))
		failed("other")
	case strings.HasPrefix(end, "{"), strings.HasPrefix(end, `"`), end == "null":
		failed(json.RawMessage(end))
	case end == "refusal":
		turn["status"] = "completed"
	case end == "unknown":
		turn["status"] = "exploded"
	case end == "forgetful":
		failed("internalServerError")
		s.notify("error", object{"threadId": codexThread, "turnId": "turn-of-before", "error": object{"codexErrorInfo": "unauthorized"}})
		turn["error"] = object{"message": "the secret of the fake", "codexErrorInfo": nil}
	case end == "nameless":
		turn["id"], turn["status"] = "", "completed"
	default:
		turn["status"] = "completed"
		s.conclude(p, schema, said, turn, inTurn, whole)
	}
	ask := `{"id":99,"method":"attestation/generate","params":{}}`
	over := `{"method":"turn/completed","params":{"threadId":"thread-1","turn":{"id":"turn-1","status":"completed"}}}`
	switch end {
	case "asking":
		s.Line(ask + "\n" + over)
		return
	case "asking-late":
		s.Line(over + "\n" + ask)
		return
	}
	s.notify("turn/completed", object{"threadId": codexThread, "turn": turn})
	if p.Noise == "late" {
		begun()
	}
	if end == "again" {
		turn["status"] = "failed"
		s.notify("turn/completed", object{"threadId": codexThread, "turn": turn})
	}
}

// conclude sends the answer of a turn that is complete.
func (s *codexServer) conclude(p Play, schema bool, said string, turn object, inTurn func(object) object, whole func(id, text string, phase any)) {
	answer := object{"type": "agentMessage", "id": "answer", "text": said, "phase": nil}
	if p.Noise == "marked" {
		answer["phase"] = "final_answer"
	}
	switch {
	case said == "":
	case p.Noise == "summary":
		turn["items"] = []any{answer}
		return
	default:
		s.notify("item/completed", inTurn(object{"item": answer}))
	}
	if p.Noise == "marked" {
		whole("behind", "not the answer", nil)
	}
	if schema && p.Structured != "" {
		whole("structured", p.Structured, "final_answer")
	}
}

// other makes a request that is none for a command and words its answer.
func (s *codexServer) other(method string, inTurn func(object) object) string {
	params := inTurn(object{"reason": nil})
	switch method {
	case "item/fileChange/requestApproval":
		s.notify("item/started", inTurn(object{"item": object{
			"type": "fileChange", "id": "call-0", "status": "inProgress",
			"changes": []any{object{"path": s.cwd + "/f", "kind": object{"type": "add"}, "diff": "hi\n"}},
		}}))
	case "item/permissions/requestApproval":
		params["permissions"] = object{"network": object{"enabled": true}}
	case "mcpServer/elicitation/request":
		params["turnId"] = nil
	case "alien":
		method, params["threadId"] = "item/commandExecution/requestApproval", "thread-of-another"
	case "descendant":
		method, params["threadId"] = "item/commandExecution/requestApproval", "thread-below"
		s.notify("thread/started", object{"thread": object{"id": "thread-below", "parentThreadId": codexThread}})
	}
	got, ok := s.ask(method, params)
	switch {
	case !ok:
		return "gone"
	case got.Error != nil:
		return fmt.Sprint("error ", got.Error.Code)
	}
	return string(got.Result)
}

// codexVerdict is what a decision is for Act: nothing but accept allows.
func codexVerdict(a codexAnswer) string {
	var got struct{ Decision json.RawMessage }
	if a.Error != nil || json.Unmarshal(a.Result, &got) != nil {
		return "failed"
	}
	switch string(got.Decision) {
	case `"accept"`:
		return "allowed"
	case `"decline"`:
		return "rejected"
	case `"cancel"`:
		return "cancelled"
	}
	return "misunderstood"
}
