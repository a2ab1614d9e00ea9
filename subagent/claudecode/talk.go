package claudecode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// The ids of the requests that this side makes.
const (
	initializeID = "initialize"
	interruptID  = "interrupt"
)

// maxQuestions bounds the questions that are open at once.
const maxQuestions = 64

// What the product is told of a refusal. It goes on without.
const (
	denied    = "The permission for this was denied."
	undecided = "There was no decision on a permission for this."
)

// talk is the conversation with one process of the product.
type talk struct {
	p      *Provider
	child  *remote.Child
	link   remote.Link
	stream *rpcconn.Stream
	mode   string

	life      context.Context // of questions: ends with the turn
	end       context.CancelFunc
	questions sync.WaitGroup

	mu          sync.Mutex // guards following
	ready       chan struct{}
	about       string // "" before the product has answered the handshake
	pid         int    // as it says; 0 if it did not
	prompted    bool
	interrupted bool
	session     string // "" before the product has named it
	modeSeen    bool
	said        said
	refused     map[string]bool
	open        map[string]context.CancelFunc // questions, by the ids of their requests
	over        chan struct{}                 // closed when the turn has ended, or cannot go on
	ended       bool
	outcome     remote.Outcome
	fault       error
}

var _ remote.Talk = (*talk)(nil)

// open makes the handshake. The product answers it once its settings are read.
func (p *Provider) open(ctx context.Context, c *remote.Child, link remote.Link) (remote.Talk, error) {
	t := &talk{
		p: p, child: c, link: link, mode: mode(c.Access),
		ready: make(chan struct{}), over: make(chan struct{}),
		refused: map[string]bool{}, open: map[string]context.CancelFunc{},
	}
	t.life, t.end = context.WithCancel(context.WithoutCancel(ctx))
	t.stream = rpcconn.NewStream(link.Stdout(), link.Stdin(), 0, t.take)
	t.stream.Start()
	err := t.send(ctx, object{"type": "control_request", "request_id": initializeID, "request": object{"subtype": "initialize"}})
	if err == nil {
		select {
		case <-t.ready:
		case <-t.over:
		case <-t.stream.Done():
			err = t.stream.Err()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	t.mu.Lock()
	err = cmp.Or(t.fault, err)
	t.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

type object = map[string]any

func (t *talk) send(ctx context.Context, message object) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return t.stream.Write(ctx, line)
}

// Turn implements remote.Talk. Where the conversation is broken off, the product is ended
// before it returns: nothing is known of what it would do.
func (t *talk) Turn(ctx context.Context) (remote.Outcome, error) {
	defer t.end()
	out, err := t.turn(ctx)
	t.mu.Lock()
	broken := t.fault != nil
	t.mu.Unlock()
	if broken {
		err = errors.Join(err, t.link.Close(context.WithoutCancel(ctx)))
	}
	return out, err
}

func (t *talk) turn(ctx context.Context) (remote.Outcome, error) {
	t.mu.Lock()
	interrupted := t.interrupted
	t.prompted = !interrupted && !t.ended
	send := t.prompted
	t.mu.Unlock()
	switch {
	case interrupted:
		return remote.Outcome{Reason: subagent.StopAborted}, nil
	case send:
		text := t.child.Prompt
		if strings.HasPrefix(text, "/") {
			text = "\n" + text // it would be a command of the product
		}
		if err := t.send(ctx, object{
			"type": "user", "session_id": "", "parent_tool_use_id": nil,
			"message": object{"role": "user", "content": []object{{"type": "text", "text": text}}},
		}); err != nil {
			return remote.Outcome{}, err
		}
	}
	select {
	case <-t.over:
	case <-t.stream.Done():
		select {
		case <-t.over: // it came before the end
		default:
			return remote.Outcome{}, t.stream.Err()
		}
	case <-ctx.Done():
		return remote.Outcome{}, context.Cause(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcome, t.fault
}

// take is told of every line, in the order of the wire. What it does not know is nothing: the
// product adds messages with every version.
func (t *talk) take(line []byte) error {
	var m struct{ Type, Subtype string }
	if json.Unmarshal(line, &m) != nil {
		t.p.cfg.Logger.Warn("a line from an agent in another process is no message", "provider", t.p.cfg.Name, "bytes", len(line))
		return nil
	}
	var refusals []remote.Question
	t.mu.Lock()
	if !t.ended {
		switch m.Type {
		case "control_response":
			t.answered(line)
		case "control_request":
			refusals = t.asked(line)
		case "control_cancel_request":
			t.withdrawn(line)
		case "system":
			refusals = t.system(m.Subtype, line)
		case "stream_event":
			t.streamed(line)
		case "assistant":
			t.spoken(line)
		case "result":
			refusals = t.result(line)
		}
	}
	if t.fault != nil {
		t.finish() // whatever came behind it (seam OOPX-26)
	}
	t.mu.Unlock()
	for _, q := range refusals {
		t.child.Refused(t.life, q)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended && t.outcome.Reason != "" {
		t.finish() // what it has refused is on record by now
	}
	return nil
}

// fail breaks the conversation off; the caller holds mu, as of the methods below.
func (t *talk) fail(format string, args ...any) {
	if t.fault == nil {
		t.fault = remote.Faultf(format, args...)
	}
	t.ended = true
}

// finish releases who waits for the turn.
func (t *talk) finish() {
	select {
	case <-t.over:
	default:
		close(t.over)
	}
}

// decode reads a message whose form the protocol fixes.
func (t *talk) decode(line []byte, what string, into any) bool {
	if json.Unmarshal(line, into) == nil {
		return true
	}
	t.fail("the product sent a malformed message (%s)", what)
	return false
}

// answered takes the answer to a request of this side. That to an interrupt is the end of the
// turn.
func (t *talk) answered(line []byte) {
	var m struct {
		Response struct {
			Subtype   string
			RequestID string `json:"request_id"`
			Response  struct {
				PID     int    `json:"pid"`
				Version string `json:"claude_code_version"`
				Mode    string `json:"current_permission_mode"`
			}
		}
	}
	if !t.decode(line, "control_response", &m) || m.Response.RequestID != initializeID || t.about != "" {
		return
	}
	r := m.Response.Response
	switch major, _, _ := strings.Cut(r.Version, "."); {
	case m.Response.Subtype != "success":
		t.fail("the product refused the handshake")
		return
	case r.Version != "" && !atLeast(major, 2):
		t.fail("this version of the product is too old; version 2 is needed")
		return
	}
	t.seeMode(r.Mode)
	t.pid, t.about = r.PID, remote.Clean("Claude Code "+r.Version)
	close(t.ready)
}

func atLeast(number string, least int) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n >= least
}

// seeMode checks the permission mode that the product says it is in.
func (t *talk) seeMode(mode string) {
	if mode == "" {
		return
	}
	if mode == "manual" {
		mode = modeDefault
	}
	if mode != t.mode && (mode != modePlan || !t.modeSeen) {
		t.fail("the product is not in the permission mode that was asked for (%s)", t.mode)
		return
	}
	t.modeSeen = true
}

// system takes what the product says of itself.
func (t *talk) system(subtype string, line []byte) []remote.Question {
	switch subtype {
	case "init":
		var m struct {
			SessionID string `json:"session_id"`
			Mode      string `json:"permissionMode"`
			Tools     []string
			Servers   []json.RawMessage `json:"mcp_servers"`
		}
		if !t.decode(line, "init", &m) {
			return nil
		}
		t.seeMode(m.Mode)
		if t.child.Access.ReadOnly && (len(m.Servers) > 0 || slices.ContainsFunc(m.Tools, func(name string) bool {
			return name != structuredTool && !slices.Contains(readers(), name)
		})) {
			t.fail("the product has more than the tools that read, which were asked for")
		}
		t.session = m.SessionID
	case "status":
		var m struct {
			Mode string `json:"permissionMode"`
		}
		if t.decode(line, "status", &m) {
			t.seeMode(m.Mode)
		}
	case "permission_denied":
		var m denial
		if t.decode(line, "permission_denied", &m) {
			return t.deniedItself(m)
		}
	}
	return nil
}

// denial is a refusal of the product's own.
type denial struct {
	Tool string `json:"tool_name"`
	ID   string `json:"tool_use_id"`
}

// deniedItself returns what is to be recorded of a refusal, once for each use of a tool. Where
// the product asks, it has told of what it was refused already.
func (t *talk) deniedItself(d denial) []remote.Question {
	if t.mode != modeDontAsk || d.ID != "" && t.refused[d.ID] {
		return nil
	}
	t.refused[d.ID] = true
	return []remote.Question{{Tool: d.Tool, CallID: d.ID}}
}

func question(tool, id string, input json.RawMessage) remote.Question {
	return remote.Question{Tool: tool, CallID: id, Args: input, Summary: remote.Clean(tool + " " + string(input))}
}

// said is what the product's model has said so far: the last of its messages with text.
type said struct {
	id       string // of the message that text is of
	text     strings.Builder
	streamed bool   // text is from pieces
	coming   string // the id of the message that is streamed now
	fault    string // why the last message is one of the product's own; "" if it is not
}

// add takes a piece of a message, and reports whether the message fits into room bytes with it.
func (s *said) add(id, text string, streamed bool, room int) bool {
	switch {
	case text == "", id == s.id && s.streamed && !streamed:
		return true // a message of which everything was there in pieces
	case id != s.id || s.text.Len() == 0:
		s.text.Reset()
		s.id, s.streamed = id, streamed
	}
	if s.text.Len()+len(text) > room {
		return false
	}
	s.text.WriteString(text)
	return true
}

// say adds to what the product's model has said.
func (t *talk) say(id, text string, streamed bool) {
	if !t.said.add(id, text, streamed, t.p.room) {
		t.fail("the product said more than can be kept")
	}
}

// streamed takes a piece of a message. Those of the product's subagents are not this child's.
func (t *talk) streamed(line []byte) {
	var m struct {
		Parent *string `json:"parent_tool_use_id"`
		Event  struct {
			Type    string
			Message struct{ ID string }
			Delta   struct{ Type, Text string }
		}
	}
	if json.Unmarshal(line, &m) != nil || m.Parent != nil {
		return
	}
	switch e := m.Event; e.Type {
	case "message_start":
		t.said.coming = e.Message.ID
	case "content_block_delta":
		if e.Delta.Type == "text_delta" {
			t.say(t.said.coming, e.Delta.Text, true)
		}
	}
}

// spoken takes a message, or a block of one, of the product's model or of a subagent's.
func (t *talk) spoken(line []byte) {
	var m struct {
		Parent  *string `json:"parent_tool_use_id"`
		Error   string
		Message struct {
			ID      string
			Content []struct{ Type, Text string }
		}
	}
	if !t.decode(line, "assistant", &m) {
		return
	}
	if m.Parent == nil {
		t.said.fault = m.Error
	}
	for _, b := range m.Message.Content {
		if b.Type == "text" && m.Parent == nil && m.Error == "" {
			t.say(m.Message.ID, b.Text, false)
		}
	}
}

// asked takes a request of the product's.
func (t *talk) asked(line []byte) []remote.Question {
	var m struct {
		ID      string `json:"request_id"`
		Request struct {
			Subtype string
			Tool    string `json:"tool_name"`
			UseID   string `json:"tool_use_id"`
			Input   json.RawMessage
		}
	}
	if !t.decode(line, "control_request", &m) {
		return nil
	}
	r := m.Request
	switch r.Subtype {
	case "can_use_tool":
		var fields map[string]json.RawMessage
		if m.ID == "" || r.Tool == "" || json.Unmarshal(r.Input, &fields) != nil || fields == nil || t.open[m.ID] != nil {
			t.fail("the product sent a malformed message (can_use_tool)")
			return nil
		}
		if len(t.open) >= maxQuestions {
			t.fail("the product has more than %d questions at once", maxQuestions)
			return nil
		}
		ctx, cancel := context.WithCancel(t.life)
		t.open[m.ID] = cancel
		t.refused[r.UseID] = true // or allowed: either way it will be on record
		t.questions.Go(func() { t.decide(ctx, m.ID, question(r.Tool, r.UseID, r.Input)) })
	case "elicitation":
		t.reply(m.ID, object{"action": "decline"})
		return []remote.Question{{Tool: "elicitation"}}
	default: // seam OOPX-16, OOPX-26
		t.questions.Go(func() {
			t.write(object{"type": "control_response", "response": object{
				"subtype": "error", "request_id": m.ID, "error": "this is not supported",
			}})
		})
		t.fail("the product made a request that this program does not know")
	}
	return nil
}

// decide answers a question, unless it is withdrawn.
func (t *talk) decide(ctx context.Context, id string, q remote.Question) {
	verdict := t.child.Ask(ctx, q)
	t.mu.Lock()
	cancel, open := t.open[id]
	delete(t.open, id)
	t.mu.Unlock()
	if !open {
		return
	}
	cancel()
	answer := object{"behavior": "deny", "message": denied}
	switch verdict {
	case remote.Allowed:
		answer = object{"behavior": "allow", "updatedInput": json.RawMessage(q.Args)}
	case remote.Cancelled:
		answer["message"] = undecided
	}
	t.write(success(id, answer))
}

func success(id string, answer object) object {
	return object{"type": "control_response", "response": object{"subtype": "success", "request_id": id, "response": answer}}
}

// reply answers a request at once, without holding up what comes behind it.
func (t *talk) reply(id string, answer object) {
	t.questions.Go(func() { t.write(success(id, answer)) })
}

// write sends an answer. A turn that has ended needs none.
func (t *talk) write(message object) {
	if err := t.send(t.life, message); err != nil && t.life.Err() == nil {
		t.stream.End(err)
	}
}

// withdrawn ends a question that needs no answer any more.
func (t *talk) withdrawn(line []byte) {
	var m struct {
		ID string `json:"request_id"`
	}
	if !t.decode(line, "control_cancel_request", &m) {
		return
	}
	if cancel, open := t.open[m.ID]; open {
		delete(t.open, m.ID)
		cancel()
	}
}

// result takes the end of the turn, which is the first that comes.
func (t *talk) result(line []byte) (refusals []remote.Question) {
	var m struct {
		Subtype    string
		IsError    *bool `json:"is_error"`
		Result     *string
		StopReason string          `json:"stop_reason"`
		Terminal   string          `json:"terminal_reason"`
		Status     json.Number     `json:"api_error_status"`
		Session    string          `json:"session_id"`
		Structured json.RawMessage `json:"structured_output"`
		Denials    []denial        `json:"permission_denials"`
	}
	if !t.decode(line, "result", &m) {
		return nil
	}
	failed := m.IsError == nil || *m.IsError
	switch {
	case !t.prompted:
		t.fail("the product ended a turn that had not begun")
	case m.IsError == nil, m.Subtype == "success" && m.Result == nil:
		t.fail("the product sent a malformed message (result)")
	case t.session != "" && m.Session != t.session:
		t.fail("the product ended the turn of another session")
	case !t.modeSeen:
		t.fail("the product did not say in which permission mode it runs")
	}
	if t.fault != nil {
		return nil
	}
	for _, d := range m.Denials {
		refusals = append(refusals, t.deniedItself(d)...)
	}
	t.ended = true
	out := remote.Outcome{Reason: subagent.StopError, Text: t.said.text.String()}
	switch {
	case m.StopReason == "refusal":
		out.Reason = subagent.StopRefusal
	case t.said.fault == "max_output_tokens", m.StopReason == "max_tokens":
		out.Reason = subagent.StopMaxTokens
	case t.interrupted && strings.HasPrefix(m.Terminal, "aborted_"):
		out.Reason = subagent.StopAborted
	case m.Subtype == "success" && !failed:
		out.Reason, out.Text = subagent.StopCompleted, *m.Result
		if string(m.Structured) != "null" {
			out.Structured = m.Structured
		}
	case m.Subtype == "success":
		out.Diagnostic = "the product could not get an answer of its model: " + oneOf(t.said.fault, faults())
		if n, err := m.Status.Int64(); err == nil && n > 0 {
			out.Diagnostic += fmt.Sprintf(" (HTTP status %d)", n)
		}
	default:
		out.Diagnostic = "the product's turn failed: " + oneOf(m.Subtype, failures())
	}
	t.outcome = out
	return refusals
}

// oneOf keeps a word of a vocabulary that the protocol closes (seam OOPX-24).
func oneOf(word string, known []string) string {
	if slices.Contains(known, word) {
		return word
	}
	return "unknown"
}

// faults are why the product has no answer of its model.
func faults() []string {
	return []string{
		"authentication_failed", "oauth_org_not_allowed", "billing_error", "rate_limit", "overloaded", "invalid_request",
		"model_not_found", "server_error", "max_output_tokens",
	}
}

// failures are the ends of a turn without a result.
func failures() []string {
	return []string{"error_during_execution", "error_max_turns", "error_max_budget_usd", "error_max_structured_output_retries"}
}

// Said implements remote.Talk.
func (t *talk) Said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.said.text.String()
}

// Interrupt implements remote.Talk. The turn's end is the product's answer to it (seam
// OOPX-28: only an open turn is interrupted).
func (t *talk) Interrupt(ctx context.Context) error {
	t.mu.Lock()
	t.interrupted = true
	open := t.prompted && !t.ended
	t.mu.Unlock()
	if !open {
		return nil
	}
	return t.send(ctx, object{"type": "control_request", "request_id": interruptID, "request": object{"subtype": "interrupt"}})
}

// About implements remote.Talk.
func (t *talk) About() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.about
}

// Close implements remote.Talk. That a pipe was closed before is no fault.
func (t *talk) Close() error {
	t.end()
	_ = t.stream.Close()
	t.questions.Wait()
	t.mu.Lock()
	pid := t.pid
	t.mu.Unlock()
	if err := t.p.sweep(pid); err != nil {
		t.p.cfg.Logger.Warn("the socket that an agent in another process left cannot be removed", "provider", t.p.cfg.Name, "error", err)
	}
	return nil
}
