package fakeagent

import (
	"encoding/json"
	"sync"
)

// object is one JSON object.
type object = map[string]any

// dsh is the SDK server of a DSH runtime (core § 8). Its sessions are named by the client.
// There is no interrupt: what holds a turn is left by the end of the input alone.
func dsh(a *Agent) int {
	var turns sync.WaitGroup
	defer turns.Wait()
	for {
		line, ok := a.Next()
		if !ok {
			return 0
		}
		var req struct {
			ID     json.RawMessage
			Method string
			Params struct {
				SessionID     string
				ContentBlocks []struct{ Text string }
			}
		}
		if json.Unmarshal(line, &req) != nil {
			continue
		}
		answer := func(result any) { a.Send(object{"jsonrpc": "2.0", "id": req.ID, "result": result}) }
		fail := func() {
			a.Send(object{"jsonrpc": "2.0", "id": req.ID, "error": object{"code": -32603, "message": "the secret of the fake"}})
		}
		switch req.Method {
		case "initialize":
			switch {
			case a.Strike(Handshake, fail):
			case a.BadVersion():
				answer(object{})
			default:
				answer(object{"serverInfo": object{"name": "fake\nruntime", "version": "0.0.1"}})
			}
		case "session/prompt":
			if a.Strike(Session, fail) || a.Strike(Prompt, fail) {
				continue
			}
			p, err := a.Play(req.Params.ContentBlocks[0].Text)
			if err != nil {
				fail()
				continue
			}
			turns.Go(func() { a.dshTurn(req.Params.SessionID, p, answer) })
		case "shutdown":
			answer(object{})
			a.Leave()
			return 0
		default:
			fail()
		}
	}
}

// dshTurn plays a prompt. Its answer comes in the middle of what it brings about, as it may.
func (a *Agent) dshTurn(session string, p Play, answer func(any)) {
	send := func(session, kind string, data any) {
		a.Send(object{"jsonrpc": "2.0", "method": "session.event", "params": object{
			"sessionId": session, "event": object{"type": kind, "seq": 0, "time": 0, "data": data},
		}})
	}
	status := func(s string) {
		a.Send(object{"jsonrpc": "2.0", "method": "session.status", "params": object{"sessionId": session, "status": s}})
	}
	status("idle") // of before
	send(session, "agent/inbox/spliced", object{"inserted": []object{{"id": "somebody else's"}}})
	send(session, "turn/end", object{"turn": 0, "reason": object{"kind": "aborted"}}) // not of this prompt
	send(session, "agent/inbox/spliced", object{"inserted": []object{{"id": "m1"}}})
	if p.Noise != "late" {
		answer(object{"messageId": "m1"})
	}
	status("running")
	send(session, "turn/start", object{"turn": 1})
	send(session, "step/start", object{"turn": 1, "step": 1})
	end, said := a.Act(p, Turn{
		Say: func(piece string) {
			send(session, "assistant/chunk", object{"turn": 1, "step": 1, "chunk": object{"type": "text-delta", "index": 0, "text": piece}})
			send("child of "+session, "assistant/message", object{"message": object{"content": []object{{"type": "text", "text": "not mine"}}}})
		},
		Noise: func() {
			a.Send(object{"jsonrpc": "2.0", "method": "fake/notice", "params": object{"sessionId": session}})
		},
	})
	switch end {
	case "gone":
		return
	case "", "completed":
		send(session, "assistant/message", object{"message": object{"content": []object{
			{"type": "reasoning", "text": "hidden"}, {"type": "text", "text": said},
		}}})
		send(session, "turn/end", object{"turn": 1, "reason": object{"kind": "completed"}})
	case "error":
		send(session, "turn/end", object{"turn": 1, "reason": object{"kind": "error", "error": object{"code": "SERVER", "status": 500, "message": "the secret of the fake"}}})
	case "nothing": // no turn at all
	default:
		send(session, "turn/end", object{"turn": 1, "reason": object{"kind": end}})
	}
	if p.Noise == "late" {
		status("idle")
		answer(object{"messageId": "m1"})
		return
	}
	status("idle")
}
