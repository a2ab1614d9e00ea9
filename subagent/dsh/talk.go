package dsh

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// talk is the conversation with one runtime.
type talk struct {
	conn    *rpcconn.Conn
	session string // the wire's own id, which nobody else sees
	prompt  string
	about   string
	room    int // for early, and for a message that is being streamed, in bytes

	mu      sync.Mutex // guards following
	receipt string     // the id of the accepted prompt; "" until it is answered
	early   []event    // what came before that, up to the receipt's own event
	waiting int        // how many bytes early has
	account account
	ended   bool
	fault   error
	giveUp  context.CancelCauseFunc // ends the sending of the prompt
	over    chan struct{}           // closed when the interval has ended or is broken
}

var _ remote.Talk = (*talk)(nil)

// event is one event of the session, or "idle".
type event struct {
	kind string
	data json.RawMessage
}

// idle stands for the status that ends the interval.
const idle = "idle"

// eventSize is what an event takes beside its text, in bytes.
const eventSize = 64

// account is what the interval from the receipt on came to.
type account struct {
	began  bool
	last   string          // the text of the last message that has some
	deltas strings.Builder // what the attempt under way has streamed since
	end    *turnEnd
}

type turnEnd struct {
	Kind  string
	Error struct {
		Code   string
		Status json.Number
	}
}

// Turn implements remote.Talk (core W19, W31).
func (t *talk) Turn(ctx context.Context) (remote.Outcome, error) {
	calling, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	t.mu.Lock()
	t.giveUp = giveUp
	fault := t.fault
	t.mu.Unlock()
	if fault != nil {
		return remote.Outcome{}, fault
	}
	raw, err := t.conn.Call(calling, "session/prompt", map[string]any{
		"sessionId": t.session, "contentBlocks": []map[string]string{{"type": "text", "text": t.prompt}},
	})
	if err != nil {
		return remote.Outcome{}, err
	}
	var accepted struct{ MessageID string }
	if json.Unmarshal(rpcconn.Object(raw), &accepted) != nil || accepted.MessageID == "" {
		return remote.Outcome{}, remote.Faultf("the runtime's answer to the prompt names no message")
	}
	t.accepted(accepted.MessageID)
	select {
	case <-t.over:
	case <-t.conn.Done():
		select {
		case <-t.over: // it came before the end
		default:
			return remote.Outcome{}, t.conn.Err()
		}
	case <-ctx.Done():
		return remote.Outcome{}, context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fault != nil {
		return remote.Outcome{}, t.fault
	}
	return t.account.outcome(), nil
}

// accepted begins the interval at the prompt's receipt.
func (t *talk) accepted(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.receipt = id
	early := t.early
	t.early, t.waiting = nil, 0
	for _, e := range early {
		t.put(e)
	}
}

// take is told of every notification, in the order of the wire. Those of other sessions,
// such as the runtime's own subagents, are not this child's.
func (t *talk) take(n rpcconn.Notification) {
	var p struct {
		SessionID string
		Status    string
		Event     json.RawMessage
	}
	if json.Unmarshal(rpcconn.Object(n.Params), &p) != nil || p.SessionID != t.session {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n.Method {
	case "session.status":
		if p.Status == idle {
			t.put(event{kind: idle})
		}
	case "session.event":
		var e struct {
			Type string
			Data json.RawMessage
		}
		if json.Unmarshal(rpcconn.Object(p.Event), &e) != nil || e.Type == "" {
			t.fail(remote.Faultf("the runtime sent an event that is none")) // core W20
			return
		}
		t.put(event{e.Type, e.Data})
	}
}

// put takes one event of the session; the caller holds mu.
func (t *talk) put(e event) {
	switch {
	case t.ended:
	case t.receipt == "":
		if t.waiting += eventSize + len(e.kind) + len(e.data); t.waiting > t.room {
			t.fail(errTooMuch())
			return
		}
		t.early = append(t.early, e)
	case !t.account.began:
		t.account.began = e.kind == "agent/inbox/spliced" && inserts(e.data, t.receipt)
	case e.kind == idle:
		t.ended = true
		close(t.over)
	default:
		if !t.account.add(e, t.room) {
			t.fail(errTooMuch())
		}
	}
}

func errTooMuch() error { return remote.Faultf("the runtime said more than can be kept") }

func (t *talk) fail(err error) {
	if !t.ended {
		t.ended, t.fault, t.early = true, err, nil
		if t.giveUp != nil {
			t.giveUp(err)
		}
		close(t.over)
	}
}

// inserts reports whether a splice put a message into the inbox.
func inserts(data json.RawMessage, id string) bool {
	var p struct{ Inserted []struct{ ID string } }
	return json.Unmarshal(data, &p) == nil && slices.ContainsFunc(p.Inserted, func(m struct{ ID string }) bool { return m.ID == id })
}

// add folds one event, and reports whether a message that is being streamed fits into room
// bytes. What is malformed in it says nothing (seam OOPX-15).
func (a *account) add(e event, room int) bool {
	switch e.kind {
	case "step/start", "llm/retry":
		a.deltas.Reset()
	case "assistant/chunk":
		var p struct{ Chunk struct{ Type, Text string } }
		if json.Unmarshal(e.data, &p) == nil && p.Chunk.Type == "text-delta" {
			if a.deltas.Len()+len(p.Chunk.Text) > room {
				return false
			}
			a.deltas.WriteString(p.Chunk.Text)
		}
	case "assistant/message":
		var p struct {
			Message struct{ Content []struct{ Type, Text string } }
		}
		if json.Unmarshal(e.data, &p) != nil {
			return true
		}
		var text strings.Builder
		for _, b := range p.Message.Content {
			if b.Type == "text" {
				text.WriteString(b.Text)
			}
		}
		if text.Len() > 0 {
			a.last = text.String()
			a.deltas.Reset()
		}
	case "turn/end":
		var p struct{ Reason turnEnd }
		if a.end = nil; json.Unmarshal(e.data, &p) == nil {
			a.end = &p.Reason
		}
	}
	return true
}

// text is the answer: what was streamed behind the last message that had some, for a
// message that came to nothing, and else that message.
func (a *account) text() string {
	if a.deltas.Len() > 0 {
		return a.deltas.String()
	}
	return a.last
}

// outcome maps the last end of a turn (seam OOPX-15).
func (a *account) outcome() remote.Outcome {
	out := remote.Outcome{Reason: subagent.StopError, Text: a.text()}
	if a.end == nil {
		out.Diagnostic = "the runtime became idle without the end of a turn"
		return out
	}
	switch a.end.Kind {
	case "completed":
		out.Reason = subagent.StopCompleted
	case "max-tokens":
		out.Reason = subagent.StopMaxTokens
	case "aborted":
		out.Reason = subagent.StopAborted
	case "error":
		out.Diagnostic = "the runtime's turn failed: " + category(a.end.Error.Code)
		if n, err := a.end.Error.Status.Int64(); err == nil && n > 0 {
			out.Diagnostic += fmt.Sprintf(" (HTTP status %d)", n)
		}
	case "interrupted":
		out.Diagnostic = "the runtime's turn was interrupted"
	default:
		out.Diagnostic = "the runtime's turn ended in a way that is not known"
	}
	return out
}

// category keeps the codes of model failures that the runtime shares (core M28), and
// nothing else that may stand there (seam OOPX-24).
func category(code string) string {
	known := []string{
		"AUTH", "CONTENT_FILTER", "CONTEXT_WINDOW_EXCEEDED", "EMPTY_RESPONSE", "INVALID_REQUEST", "QUOTA", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT",
	}
	if slices.Contains(known, code) {
		return code
	}
	return "unknown"
}

// Said implements remote.Talk.
func (t *talk) Said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.account.text()
}

// Interrupt implements remote.Talk: the wire has none (core W17).
func (t *talk) Interrupt(context.Context) error { return remote.ErrNoInterrupt }

// Leave implements remote.Leaver (core W12, W24).
func (t *talk) Leave(ctx context.Context) error {
	_, err := t.conn.Call(ctx, "shutdown", struct{}{})
	return err
}

// About implements remote.Talk.
func (t *talk) About() string { return remote.Clean(t.about) }

// Close implements remote.Talk. That a pipe was closed before is no fault.
func (t *talk) Close() error {
	_ = t.conn.Close()
	return nil
}
