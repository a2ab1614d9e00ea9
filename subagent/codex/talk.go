package codex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// talk is the conversation with one Codex: a thread with one turn.
type talk struct {
	child *remote.Child
	conn  *rpcconn.Conn
	about string
	// asking ends with the turn: nobody is asked for what is over.
	asking     context.Context
	stopAsking context.CancelFunc
	named      chan struct{} // closed when turn is known
	over       chan struct{} // closed when the turn has ended or is broken

	mu sync.Mutex // guards following
	// threads are the own one and those that Codex's agent has started below it.
	thread  string
	threads map[string]bool
	// sent: the prompt was or is being sent. turn is what its turn is called.
	sent        bool
	turn        string
	interrupted bool
	account     account
	// changes are the edits under way, by item: a request for leave names the item alone.
	changes   map[string]json.RawMessage
	questions map[string]context.CancelFunc // what is being decided, by the request's id
	giveUp    context.CancelCauseFunc       // ends the sending of the prompt
	ended     bool
	outcome   remote.Outcome
	fault     error
}

var _ remote.Talk = (*talk)(nil)

func newTalk(ctx context.Context, c *remote.Child) *talk {
	t := &talk{
		child: c, named: make(chan struct{}), over: make(chan struct{}),
		threads: map[string]bool{}, changes: map[string]json.RawMessage{}, questions: map[string]context.CancelFunc{},
	}
	t.asking, t.stopAsking = context.WithCancel(context.WithoutCancel(ctx))
	return t
}

// begin names the thread.
func (t *talk) begin(thread string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.thread = thread
	t.threads[thread] = true
}

// About implements remote.Talk.
func (t *talk) About() string { return t.about }

// Close implements remote.Talk.
func (t *talk) Close() error {
	t.stopAsking()
	return t.conn.Close()
}

// Said implements remote.Talk.
func (t *talk) Said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.account.said()
}

type turnStart struct {
	ThreadID     string          `json:"threadId"`
	Input        []input         `json:"input"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
}

type input struct {
	Type         string     `json:"type"`
	Text         string     `json:"text"`
	TextElements []struct{} `json:"text_elements"`
}

// Turn implements remote.Talk.
func (t *talk) Turn(ctx context.Context) (remote.Outcome, error) {
	defer t.stopAsking()
	out, err := t.converse(ctx)
	t.mu.Lock()
	fault, turn := t.fault, t.turn
	t.mu.Unlock()
	if fault == nil {
		return out, err
	}
	if turn != "" {
		// Codex may well go on, and what it does is of no use any more.
		ctx, stop := context.WithTimeout(ctx, stopBound)
		defer stop()
		if err := t.interrupt(ctx, turn); err != nil {
			fault = &remote.Fault{Msg: remote.Words(fault), Err: errors.Join(fault, err)}
		}
	}
	return remote.Outcome{}, fault
}

// stopBound is how long Codex may take to be told that its turn has failed here.
const stopBound = time.Second

// converse sends the prompt and waits for the end of its turn, or for what breaks it.
func (t *talk) converse(ctx context.Context) (remote.Outcome, error) {
	calling, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	t.mu.Lock()
	t.sent, t.giveUp = true, giveUp
	fault := t.fault
	t.mu.Unlock()
	if fault != nil {
		return remote.Outcome{}, fault
	}
	prompt := turnStart{ThreadID: t.thread, Input: []input{{Type: "text", Text: t.child.Prompt, TextElements: []struct{}{}}}}
	if t.child.Schema != nil {
		prompt.OutputSchema = t.child.Schema.JSON()
	}
	raw, err := t.conn.Call(calling, "turn/start", prompt)
	if err != nil {
		return remote.Outcome{}, err
	}
	var started struct{ Turn struct{ ID string } }
	if json.Unmarshal(rpcconn.Object(raw), &started) != nil || started.Turn.ID == "" {
		return remote.Outcome{}, remote.Faultf("the answer to turn/start names no turn")
	}
	t.mu.Lock()
	if !t.name(started.Turn.ID) {
		// Also if it has ended: it was another one's end.
		t.fault = remote.Faultf("Codex calls the turn by two names")
		fault = t.fault
	}
	t.mu.Unlock()
	if fault != nil {
		return remote.Outcome{}, fault
	}
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
	return t.outcome, nil
}

// name names the turn, and reports whether it is not called otherwise already: the thread
// has but one. The caller holds mu.
func (t *talk) name(turn string) bool {
	if t.turn == "" {
		t.turn = turn
		close(t.named)
	}
	return t.turn == turn
}

// Interrupt implements remote.Talk (seam OOPX-28).
func (t *talk) Interrupt(ctx context.Context) error {
	select {
	case <-t.named:
	case <-t.over:
		return nil
	case <-t.conn.Done():
		return t.conn.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.mu.Lock()
	turn, ended := t.turn, t.ended
	t.interrupted = true
	t.mu.Unlock()
	if ended {
		return nil
	}
	return t.interrupt(ctx, turn)
}

func (t *talk) interrupt(ctx context.Context, turn string) error {
	_, err := t.conn.Call(ctx, "turn/interrupt", map[string]string{"threadId": t.thread, "turnId": turn})
	return err
}

// fail ends the turn with a fault, unless it has ended. The caller holds mu.
func (t *talk) fail(err error) { t.end(remote.Outcome{}, err) }

func (t *talk) end(out remote.Outcome, err error) {
	if t.ended {
		return
	}
	t.ended, t.outcome, t.fault = true, out, err
	t.stopAsking()
	if err != nil && t.giveUp != nil {
		t.giveUp(err)
	}
	close(t.over)
}

// params are the members that the notifications and requests have in common.
type params struct {
	ThreadID string
	TurnID   string
	Thread   struct{ ID, ParentThreadID string }
	Turn     json.RawMessage
	Item     json.RawMessage
	ItemID   string
	Delta    string
	Error    struct{ CodexErrorInfo json.RawMessage }

	RequestID json.RawMessage
}

// take is told of every notification, in the order of the wire. Those of other threads and
// turns, and those that are not known, are none of this child's (seam OOPX-28).
func (t *talk) take(n rpcconn.Notification) {
	var p params
	switch n.Method {
	case "thread/started", "turn/started", "item/started", "item/completed", "item/agentMessage/delta", "error", "turn/completed", "serverRequest/resolved":
	default:
		return
	}
	malformed := json.Unmarshal(rpcconn.Object(n.Params), &p) != nil
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return
	case malformed:
		t.fail(malformedFault(n.Method))
		return
	}
	switch n.Method {
	case "thread/started":
		if t.threads[p.Thread.ParentThreadID] {
			t.threads[p.Thread.ID] = true
		}
		return
	case "serverRequest/resolved":
		if stop := t.questions[string(p.RequestID)]; stop != nil {
			stop()
		}
		return
	case "item/started", "item/completed":
		if t.threads[p.ThreadID] {
			t.change(p.Item, n.Method == "item/completed")
		}
	}
	if !t.sent || p.ThreadID != t.thread {
		return
	}
	var turn turn
	if len(p.Turn) > 0 {
		if json.Unmarshal(p.Turn, &turn) != nil || turn.ID == "" {
			t.fail(malformedFault(n.Method))
			return
		}
		p.TurnID = turn.ID
	}
	if p.TurnID == "" || !t.name(p.TurnID) {
		return
	}
	switch n.Method {
	case "item/agentMessage/delta":
		if !t.account.delta(p.ItemID, p.Delta) {
			t.fail(remote.ErrTooMuch)
		}
	case "item/started", "item/completed":
		m, err := messageOf(p.Item)
		if err != nil {
			t.fail(malformedFault(n.Method))
			return
		}
		t.account.message(m, n.Method == "item/completed")
	case "error":
		t.account.category = category(p.Error.CodexErrorInfo)
	case "turn/completed":
		t.completed(turn)
	}
}

func malformedFault(method string) *remote.Fault {
	return remote.Faultf("what Codex sent with %s is malformed", method)
}

// maxChanges is how many edits under way are remembered.
const maxChanges = 64

// change remembers what an edit changes until it is over. The caller holds mu.
func (t *talk) change(item json.RawMessage, over bool) {
	var c struct {
		Type, ID string
		Changes  json.RawMessage
	}
	switch {
	case json.Unmarshal(item, &c) != nil || c.Type != "fileChange":
	case over:
		delete(t.changes, c.ID)
	case len(t.changes) < maxChanges:
		t.changes[c.ID] = c.Changes
	}
}

// turn is how Codex describes one.
type turn struct {
	ID, Status string
	Error      struct{ CodexErrorInfo json.RawMessage }
	Items      []json.RawMessage
}

// completed ends the turn as Codex says. The caller holds mu.
func (t *talk) completed(turn turn) {
	out := remote.Outcome{}
	switch turn.Status {
	case "completed":
		if t.account.answer() == "" {
			t.recall(turn.Items)
		}
		out.Reason = subagent.StopCompleted
		if out.Text = t.account.answer(); t.child.Schema != nil && strings.TrimSpace(out.Text) != "" {
			out.Structured = []byte(out.Text)
		}
	case "interrupted":
		out = remote.Outcome{Reason: subagent.StopAborted, Text: t.account.said()}
		if !t.interrupted {
			out.Reason, out.Diagnostic = subagent.StopError, "Codex's turn was interrupted, which nobody here asked for"
		}
	case "failed":
		if info := turn.Error.CodexErrorInfo; len(info) > 0 && string(info) != "null" {
			t.account.category = category(info)
		}
		if t.account.category == "" {
			t.account.category = unknown
		}
		out = remote.Outcome{Reason: subagent.StopError, Text: t.account.said(), Diagnostic: "Codex's turn failed: " + t.account.category}
	default:
		t.fail(remote.Faultf("Codex's turn ended in a way that is not known"))
		return
	}
	t.end(out, nil)
}

// recall takes the messages of a turn that were not told by themselves. The caller holds mu.
func (t *talk) recall(items []json.RawMessage) {
	for _, raw := range items {
		if m, err := messageOf(raw); err == nil {
			t.account.message(m, true)
		}
	}
}

// asked is told of every request of Codex's, in the order of the wire.
func (t *talk) asked(r rpcconn.Request) rpcconn.Answer {
	ask, known := questions()[r.Method]
	t.mu.Lock()
	defer t.mu.Unlock()
	var p params
	switch {
	case !known:
		// Codex is told so, and what becomes of its turn does not count any more (seam
		// OOPX-16, OOPX-26).
		t.fail(remote.Faultf("Codex asked for something that it cannot be given"))
		return nil
	case json.Unmarshal(rpcconn.Object(r.Params), &p) != nil:
		t.fail(malformedFault(r.Method))
		return nil
	case ask.granted == nil: // it is declined, whoever asks
	case !t.threads[p.ThreadID], p.ThreadID == t.thread && p.TurnID != "" && (!t.sent || !t.name(p.TurnID)):
		t.fail(remote.Faultf("Codex asked on behalf of a thread or a turn that is not this one"))
		return nil
	}
	q := remote.Question{Tool: ask.tool, CallID: p.ItemID, Args: without(r.Params), Summary: ask.summary(r.Params, t.child.Dir), Lasting: ask.lasting}
	if changes := t.changes[p.ItemID]; r.Method == fileChange && changes != nil {
		q.Args = with(q.Args, "changes", changes)
		q.Summary = edits(changes)
	}
	id := string(r.ID)
	ctx, stop := context.WithCancel(t.asking)
	t.questions[id] = stop
	return func(context.Context) (any, error) {
		defer func() {
			stop()
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.questions, id)
		}()
		switch {
		case ask.granted == nil:
			t.child.Refused(ctx, q)
		case t.child.Ask(ctx, q) == remote.Allowed:
			return ask.granted(r.Params), nil
		}
		return ask.declined, nil
	}
}

// fileChange is the request for leave to edit.
const fileChange = "item/fileChange/requestApproval"

// question is how a kind of request is put and answered.
type question struct {
	tool, lasting string // see remote.Question
	summary       func(params json.RawMessage, dir string) string
	// granted is the answer when it is allowed, once; nil: it is never allowed.
	granted  func(params json.RawMessage) any
	declined any
}

// questions are the requests that are known, by their methods. To decline lets the turn go
// on; to cancel, which Codex has as well, would end it.
func questions() map[string]question {
	accept := func(json.RawMessage) any { return map[string]string{"decision": "accept"} }
	decline := map[string]string{"decision": "decline"}
	line := func(s string) func(json.RawMessage, string) string {
		return func(json.RawMessage, string) string { return s }
	}
	return map[string]question{
		"item/commandExecution/requestApproval": {"command", "", command, accept, decline},
		fileChange:                              {"edit", "", line("edit files"), accept, decline},
		"item/permissions/requestApproval": {
			"permissions", "until its turn ends", line("more permissions for this turn"), grant,
			map[string]any{"permissions": struct{}{}, "scope": "turn"},
		},
		"item/tool/requestUserInput": {
			"question", "", line("a question to the user"), nil, map[string]any{"answers": struct{}{}},
		},
		"mcpServer/elicitation/request": {
			"elicitation", "", line("a question of an MCP server"), nil,
			map[string]any{"action": "decline", "content": nil, "_meta": nil},
		},
	}
}

// command is the summary of a command.
func command(raw json.RawMessage, dir string) string {
	var p struct{ Command, Cwd string }
	if json.Unmarshal(raw, &p) != nil || p.Command == "" {
		return "something beside a command" // such as an access to the network
	}
	if p.Cwd == "" || p.Cwd == dir {
		return p.Command
	}
	return p.Command + " in " + p.Cwd
}

// edits is the summary of an edit.
func edits(changes json.RawMessage) string {
	var list []struct{ Path string }
	if json.Unmarshal(changes, &list) != nil || len(list) == 0 {
		return "edit files"
	}
	if len(list) == 1 {
		return "edit " + list[0].Path
	}
	return fmt.Sprintf("edit %s and %d others", list[0].Path, len(list)-1)
}

// grant gives what was asked for, until the turn ends.
func grant(raw json.RawMessage) any {
	var p struct{ Permissions json.RawMessage }
	if json.Unmarshal(raw, &p) != nil {
		p.Permissions = nil
	}
	return map[string]any{"permissions": rpcconn.Object(p.Permissions), "scope": "turn"}
}

// without leaves out what says nothing to the person who decides: whose request it is, when
// it came, and what else could be answered.
func without(params json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(rpcconn.Object(params), &members) != nil {
		return params
	}
	for _, name := range []string{
		"threadId", "turnId", "itemId", "approvalId", "startedAtMs", "environmentId", "kind",
		"availableDecisions", "proposedExecpolicyAmendment", "proposedNetworkPolicyAmendments",
	} {
		delete(members, name)
	}
	maps.DeleteFunc(members, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	out, err := json.Marshal(members)
	if err != nil {
		return params
	}
	return out
}

// with returns an object with one more member.
func with(object json.RawMessage, name string, value json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(rpcconn.Object(object), &members) != nil {
		return object
	}
	members[name] = value
	out, err := json.Marshal(members)
	if err != nil {
		return object
	}
	return out
}

// message is an item that is a message of the agent. The zero value is an item of another
// kind.
type message struct {
	ID, Text string
	Phase    *string
}

func messageOf(item json.RawMessage) (message, error) {
	var kind struct{ Type string }
	var m message
	if err := json.Unmarshal(item, &kind); err != nil || kind.Type != "agentMessage" {
		return m, err
	}
	err := json.Unmarshal(item, &m)
	if err == nil && m.ID == "" {
		err = errors.New("a message without an id")
	}
	return m, err
}

// What an answer may be marked as. Every other mark is one of something on the way there.
const final = "final_answer"

// account is what was said in the turn (seam OOPX-23).
type account struct {
	final, unmarked string
	// open is the message that is being streamed, hidden if it is marked as none of the
	// answer.
	open     string
	hidden   bool
	deltas   strings.Builder
	category string // of the last failure that was told
}

// message takes a message that has begun or is complete.
func (a *account) message(m message, complete bool) {
	switch {
	case m.ID == "":
		return
	case !complete:
		a.begin(m.ID)
		a.hidden = m.Phase != nil && *m.Phase != final
		return
	case a.open == m.ID:
		a.begin("")
	}
	switch {
	case strings.TrimSpace(m.Text) == "":
	case m.Phase == nil:
		a.unmarked = m.Text
	case *m.Phase == final:
		a.final = m.Text
	}
}

func (a *account) begin(id string) {
	a.open, a.hidden = id, false
	a.deltas.Reset()
}

// delta takes a piece of a message, and reports whether it does not become too long.
func (a *account) delta(id, text string) bool {
	if id != a.open {
		a.begin(id)
	}
	a.deltas.WriteString(text)
	return a.deltas.Len() <= remote.MaxAnswer
}

// answer is what the turn came to.
func (a *account) answer() string {
	if a.final != "" {
		return a.final
	}
	return a.unmarked
}

// said is the answer so far: what is being said is newer than what was.
func (a *account) said() string {
	if s := a.deltas.String(); !a.hidden && strings.TrimSpace(s) != "" {
		return s
	}
	return a.answer()
}

// unknown is the category of every failure that is not in the vocabulary.
const unknown = "unknown"

// categories are Codex's words for failures (seam OOPX-24).
func categories() []string {
	return []string{
		"contextWindowExceeded", "sessionBudgetExceeded", "usageLimitExceeded", "rateLimitExceeded", "flexUnavailable",
		"serverOverloaded", "modelNotFound", "policyCapacityUnavailable", "cyberPolicy", "bioPolicy",
		"misalignmentPolicyViolation", "tooManyDenials", "internalServerError", "unauthorized", "badRequest",
		"threadRollbackFailed", "sandboxError", "inferenceHookDenied", "other",
		"httpConnectionFailed", "responseStreamConnectionFailed", "responseStreamDisconnected",
		"responseTooManyFailedAttempts", "activeTurnNotSteerable",
	}
}

// category is the word for a failure: a string, or the one member of an object that may hold
// the status of an HTTP response.
func category(raw json.RawMessage) string {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		if slices.Contains(categories(), word) {
			return word
		}
		return unknown
	}
	var detail map[string]json.RawMessage
	if json.Unmarshal(raw, &detail) != nil || len(detail) != 1 {
		return unknown
	}
	for word, raw := range detail {
		if !slices.Contains(categories(), word) {
			return unknown
		}
		var d struct{ HTTPStatusCode *int }
		if err := json.Unmarshal(raw, &d); err == nil && d.HTTPStatusCode != nil && *d.HTTPStatusCode >= 100 && *d.HTTPStatusCode <= 999 {
			return fmt.Sprintf("%s (HTTP status %d)", word, *d.HTTPStatusCode)
		}
		return word
	}
	return unknown
}
