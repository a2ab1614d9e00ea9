package acp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// talk is the conversation with one agent.
type talk struct {
	child *remote.Child
	link  remote.Link
	conn  *rpcconn.Conn
	about string
	// readOnly is the mode that the session must stay in, or "".
	readOnly string

	// turn ends with the turn; see errNoTurn. sent is closed when the prompt is written.
	turn    context.Context
	endTurn context.CancelCauseFunc
	sent    chan struct{}

	mu      sync.Mutex // guards following
	session string     // "" until the agent named it
	open    bool       // the turn: what comes now belongs to it
	stopped bool       // nothing is begun any more
	strayed bool       // the session has left readOnly
	held    bool       // the session is in readOnly, and must stay there
	garbled bool       // a line that is no message was told of
	answer  answer
	calls   map[string]toolCall // those that are not over, for who is asked about one
}

var _ remote.Talk = (*talk)(nil)

// maxCalls bounds what is remembered of an agent that never says that a call is over.
const maxCalls = 256

var errNoTurn = errors.New("there is no turn that it could belong to")

// open makes the handshake, a session, and puts that into its mode.
func (p *Provider) open(ctx context.Context, c *remote.Child, link remote.Link) (remote.Talk, error) {
	t := &talk{child: c, link: link, sent: make(chan struct{}), calls: map[string]toolCall{}, answer: answer{room: p.room}}
	t.turn, t.endTurn = context.WithCancelCause(context.WithoutCancel(ctx))
	mode := p.cfg.Mode
	if c.Access.ReadOnly {
		mode, t.readOnly = p.cfg.ReadOnlyMode, p.cfg.ReadOnlyMode
	}
	t.conn = rpcconn.New(ctx, link.Stdout(), link.Stdin(), rpcconn.Config{
		Notification: t.notified, Request: t.requested, Fault: t.garbage,
	})
	t.conn.Start()
	if err := t.handshake(ctx, mode); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *talk) handshake(ctx context.Context, mode string) error {
	raw, err := t.conn.Call(ctx, methodInitialize, object{
		"protocolVersion": version,
		// Notices keep what an agent has to say beside the answer out of it.
		"clientCapabilities": object{"session": object{"notices": object{}}},
		"clientInfo":         object{"name": "offshoot", "version": "dev"},
	})
	if err != nil {
		return err
	}
	hello, err := decodeInitialized(raw)
	if err != nil {
		return err
	}
	t.about = hello.about
	raw, err = t.conn.Call(ctx, methodNew, object{"cwd": t.child.Dir, "mcpServers": []object{}})
	if failure := new(rpcconn.Error); errors.As(err, &failure) && failure.Code == codeLogin {
		return &remote.Fault{Msg: fmt.Sprintf("the agent wants somebody to log in with it first (error %d)", codeLogin), Err: err}
	}
	if err != nil {
		return err
	}
	s, err := decodeOpened(raw)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.session = s.session
	t.mu.Unlock()
	if mode == "" {
		return nil
	}
	if !s.offers(mode) {
		return &remote.Fault{
			Msg: fmt.Sprintf("the agent does not offer the mode %q", mode),
			Err: fmt.Errorf("it offers %q", s.modes),
		}
	}
	method, params := methodSetMode, object{"sessionId": s.session, "modeId": mode}
	if s.option != "" {
		method, params = methodSetOption, object{"sessionId": s.session, "configId": s.option, "value": mode}
	}
	sent, err := t.conn.Send(ctx, method, params, t.hold)
	if err != nil {
		return err
	}
	if raw, err = sent.Wait(ctx); err != nil {
		return err
	}
	if s.option != "" && decodeMode(raw) != mode {
		return remote.Faultf("the agent did not go into the mode %q", mode)
	}
	return nil
}

// hold has the session stay in the mode that it was just put into, if that is for a reason.
func (t *talk) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = t.readOnly != ""
}

// Turn implements remote.Talk. An agent that may do more than it was started for does nothing
// any more when it returns.
func (t *talk) Turn(ctx context.Context) (remote.Outcome, error) {
	out, err := t.converse(ctx)
	t.mu.Lock()
	strayed := t.strayed
	t.mu.Unlock()
	if strayed {
		err = errors.Join(err, t.link.Kill())
	}
	return out, err
}

// converse sends the prompt and waits for its answer.
func (t *talk) converse(ctx context.Context) (remote.Outcome, error) {
	t.mu.Lock()
	t.open = !t.stopped
	session, begun := t.session, t.open
	t.mu.Unlock()
	if !begun {
		return remote.Outcome{Reason: subagent.StopAborted}, nil
	}
	defer t.end()
	sent, err := t.conn.Send(ctx, methodPrompt, object{
		"sessionId": session, "prompt": []object{{"type": "text", "text": t.child.Prompt}},
	}, t.end)
	close(t.sent)
	if err != nil {
		return remote.Outcome{}, err
	}
	raw, err := sent.Wait(ctx)
	if err != nil {
		return remote.Outcome{}, err
	}
	reason, diagnostic, err := decodeStop(raw)
	if err != nil {
		return remote.Outcome{}, err
	}
	return remote.Outcome{Reason: reason, Text: t.Said(), Diagnostic: diagnostic}, nil
}

// end closes the turn: what the agent says from now on is not of it, and what it asks is not
// answered any more.
func (t *talk) end() {
	t.mu.Lock()
	t.open, t.stopped = false, true
	t.mu.Unlock()
	t.endTurn(errNoTurn)
}

// Said implements remote.Talk.
func (t *talk) Said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answer.text()
}

// Interrupt implements remote.Talk. An agent ignores the cancel of a prompt that it has not
// got, so the prompt goes first (seam OOPX-28).
func (t *talk) Interrupt(ctx context.Context) error {
	t.mu.Lock()
	t.stopped = true
	session, open := t.session, t.open
	t.mu.Unlock()
	if !open {
		return nil
	}
	select {
	case <-t.sent:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return t.conn.Notify(ctx, methodCancel, object{"sessionId": session})
}

// About implements remote.Talk.
func (t *talk) About() string { return t.about }

// Close implements remote.Talk. That a pipe was closed before is no fault.
func (t *talk) Close() error {
	t.end()
	return t.conn.Close()
}

// garbage forgives lines that are no JSON at all, as programs write them that the agent
// runs, and no message that is out of place (seam OOPX-25).
func (t *talk) garbage(fault *rpcconn.Fault) error {
	if fault.Kind != rpcconn.FaultSyntax {
		return fault
	}
	t.mu.Lock()
	first := !t.garbled
	t.garbled = true
	t.mu.Unlock()
	if first {
		t.child.Log("read", fmt.Errorf("the agent wrote a line that is no message, and maybe more of them: %w: %q", fault, fault.Excerpt))
	}
	return nil
}

// notified takes the updates of this session. Other notifications are nothing to a client
// of this protocol.
func (t *talk) notified(n rpcconn.Notification) {
	if n.Method != methodUpdate {
		return
	}
	u, err := decodeUpdate(n.Params)
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.session == "" || u.session != t.session {
		return
	}
	switch {
	case u.tool != nil && u.tool.over:
		delete(t.calls, u.tool.id)
	case u.tool != nil:
		if len(t.calls) > maxCalls {
			clear(t.calls)
		}
		t.calls[u.tool.id] = t.calls[u.tool.id].with(*u.tool)
	}
	if t.held && u.mode != "" && u.mode != t.readOnly {
		t.strayed = true
		t.conn.End(remote.Faultf("the agent left the mode in which it only reads"))
		return
	}
	if !t.open {
		return // a greeting, or an afterthought
	}
	switch {
	case err != nil:
		t.conn.End(err)
	case u.chunk != nil && !t.answer.add(*u.chunk):
		t.conn.End(remote.ErrTooMuch)
	}
}

// requested answers requests for leave and knows no others: this client advertises none.
func (t *talk) requested(r rpcconn.Request) rpcconn.Answer {
	if r.Method != methodPermission {
		return nil
	}
	p, ok := decodePermission(r.Params)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok || p.session != t.session {
		return func(context.Context) (any, error) {
			return nil, &rpcconn.Error{Code: codeParams, Message: "no such session, or no tool call"}
		}
	}
	p.call = t.calls[p.call.id].with(p.call)
	belongs := t.open
	return func(ctx context.Context) (any, error) {
		outcome := object{"outcome": "cancelled"}
		if id, ok := t.decide(ctx, p, belongs); ok {
			outcome = object{"outcome": "selected", "optionId": id}
		}
		return object{"outcome": outcome}, nil
	}
}

// decide chooses the option to answer with; none is a dismissal (seam OOPX-14). What belongs
// to no turn is dismissed, on record.
func (t *talk) decide(ctx context.Context, p permission, belongs bool) (id string, ok bool) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(t.turn, func() { stop(context.Cause(t.turn)) })()
	if !belongs {
		stop(errNoTurn)
	}
	q := p.call.question()
	allow, may := p.choose("allow_once")
	if !may {
		if allow, may = p.choose("allow_always"); may {
			q.Lasting = "for good, since the agent offers nothing less"
		}
	}
	if !may { // nothing that a yes could mean
		t.child.Refused(ctx, q)
		return "", false
	}
	switch t.child.Ask(ctx, q) {
	case remote.Allowed:
		return allow, true
	case remote.Rejected:
		return p.choose("reject_once")
	default:
		return "", false
	}
}
