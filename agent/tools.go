package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// batch runs the tool calls of one step (core L39, Tool scheduling): checks one
// after another in the model's order, bodies overlapping where the tool allows,
// results committed in the model's order.
type batch struct {
	t     *turn
	calls []message.Block
	seqs  []int64 // of tool/call

	mu      sync.Mutex // guards following
	results []*outcome
	next    int // the first call whose result is not in the log
	err     error

	bodies sync.WaitGroup
	slots  chan struct{}
}

// outcome is what a call has come to. Once it is in the log only what the end of the
// step needs is left of it.
type outcome struct {
	tool.Result
	spill *session.ToolSpill // the text that the result was cut from, or nil
}

// runTools returns whether a call concluded the turn.
func (t *turn) runTools(calls []message.Block) (conclude bool, err error) {
	b := &batch{t: t, calls: calls, seqs: make([]int64, len(calls)), results: make([]*outcome, len(calls)),
		slots: make(chan struct{}, t.agent.reg.cfg.MaxParallelTools)}
	// Whatever happens, no body outlives the step.
	defer b.bodies.Wait()
	for i := range calls {
		if err := b.fault(b.dispatch(i)); err != nil {
			return false, err
		}
	}
	b.bodies.Wait()
	if err := b.fault(nil); err != nil {
		return false, err
	}
	var contexts []message.Message
	for _, r := range b.results {
		conclude = conclude || r.Conclude
		contexts = append(contexts, r.Contexts...)
	}
	for _, m := range contexts {
		if err := t.agent.deferred(m); err != nil {
			return false, err
		}
	}
	return conclude, nil
}

// deferred puts a message of a tool into the next step; a closing agent still
// takes it, since the turn that it belongs to is still being recorded.
func (a *Agent) deferred(m message.Message) error {
	defer a.deliver()
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &session.InboxSpliced{
		Target: session.NextStep, Start: int64(len(a.session.Inbox(session.NextStep))), Inserted: []message.Message{m}, NoWake: true,
	}
	if _, err := a.session.Append(session.Draft{Payload: p}); err != nil {
		return fmt.Errorf("deferred context %s: %w", m.ID, err)
	}
	a.noteInboxLocked(noteEnqueue, session.NextStep, &p.Inserted[0], 0)
	return nil
}

// dispatch logs call i, checks it, and starts its body.
func (b *batch) dispatch(i int) error {
	t, a := b.t, b.t.agent
	c := &b.calls[i]
	seq, err := a.session.Append(session.Draft{Payload: &session.ToolCall{
		Turn: t.number, Step: t.step, CallID: c.ID, Name: c.Name, Arguments: c.Arguments,
	}})
	if err != nil {
		return err
	}
	b.seqs[i] = seq
	in := tool.CallInput{
		ID: c.ID, Name: c.Name, Args: c.Arguments, Caller: a, Cwd: a.Cwd(),
		Turn: int(t.number), Step: int(t.step),
	}
	pending, refused := a.tools.Prepare(t.ctx(), in, a.execOptions())
	if refused != nil {
		a.reg.observe(Event{Kind: EventToolRefused, Agent: a, Err: errors.New(message.JoinText(refused.Content)),
			seq: seq, Call: &tool.Call{ID: c.ID, Name: c.Name, Args: []byte(c.Arguments), Caller: a, Turn: in.Turn, Step: in.Step}})
		return b.finish(i, *refused)
	}
	if !pending.ConcurrencySafe() {
		// A barrier: everything before it ends first, nothing after it starts.
		b.bodies.Wait()
		b.start(i, pending)
		b.bodies.Wait()
		return b.fault(nil)
	}
	select {
	case b.slots <- struct{}{}:
	case <-t.ctx().Done():
		// The pipeline has let it pass, but it never got a place in the pool.
		return b.finish(i, tool.ErrorResult(tool.CodeAbortedBeforeDispatch, "the turn was cancelled before this call was started"))
	}
	b.start(i, pending)
	return nil
}

// start runs a body on a goroutine of its own. What goes wrong is read where the
// batch goes on.
func (b *batch) start(i int, p *tool.Pending) {
	safe := p.ConcurrencySafe()
	b.bodies.Go(func() {
		returned := false
		defer func() {
			if safe {
				<-b.slots
			}
			if !returned {
				// runtime.Goexit, for instance by a test helper inside a tool.
				_ = b.fault(fmt.Errorf("tool %q ended its goroutine instead of returning", b.calls[i].Name))
			}
		}()
		_ = b.fault(contain("tool scheduling", func() error { return b.run(i, p) }))
		returned = true
	})
}

// fault notes a fault of the scheduling itself and returns the first one: nothing
// more is started then, what runs is drained (core L39, Tool scheduling).
func (b *batch) fault(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	return b.err
}

func (b *batch) run(i int, p *tool.Pending) error {
	a := b.t.agent
	a.notifyToolStarted(p.Call(), b.seqs[i])
	r := p.Run(b.t.ctx())
	a.notifyToolEnded(p.Call(), r)
	return b.finish(i, r)
}

// finish takes the result of call i and appends every result that is due.
func (b *batch) finish(i int, r tool.Result) error {
	o := &outcome{Result: r}
	if r.Cut != nil {
		o.spill = b.spill(i, r.Cut)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results[i] = o
	for b.next < len(b.results) && b.results[b.next] != nil {
		if err := b.commit(b.next); err != nil {
			return err
		}
		b.next++
	}
	return nil
}

func (b *batch) commit(i int) error {
	t := b.t
	r := b.results[i]
	id := b.calls[i].ID
	p := &session.ToolResult{
		Turn: t.number, Step: t.step, ErrorName: r.Name, ErrorCode: r.Code, Meta: r.Meta,
		Message: message.Message{
			ID: NewMessageID(), Role: message.RoleUser,
			Content: []message.Block{message.ToolResult(id, r.Content, r.IsError)},
			Source:  message.NewSource(message.SourceTool, message.SourceDetails{CallID: id}),
		},
	}
	d := session.Draft{Sources: []int64{b.seqs[i]}, Payload: p}
	if r.spill != nil && t.agent.session.Spilled()+r.spill.Encoded() > t.agent.reg.cfg.MaxSpilledBytes {
		r.spill = nil // the result says that the rest is left out, and names nothing
	}
	var err error
	if r.spill == nil {
		_, err = t.agent.session.Append(d)
	} else {
		// In one hold: the result names the seq of the event in front of it, for an agent
		// that has the tool to read it with.
		_, err = t.agent.session.AppendFunc(func(first int64) []session.Draft {
			if t.agent.tools.Toolset().Lookup(tool.ReadName) != nil {
				ref := session.SpillRef{Session: t.agent.ID(), Seq: first}
				p.Message.Content[0].Content = r.Cut.Content(ref.String(), int(r.spill.Omitted))
			}
			return []session.Draft{{Payload: r.spill}, d}
		})
	}
	*r = outcome{Result: tool.Result{Contexts: r.Contexts, Conclude: r.Conclude}}
	return err
}

// execOptions is what the pipeline gets from the loop: the log must hold the call
// before its body starts, and this process must still own it (core D23b).
func (a *Agent) execOptions() tool.ExecOptions {
	o := tool.ExecOptions{
		Approver: a.reg.cfg.Approver, ApprovalTimeout: a.reg.cfg.ApprovalTimeout, Log: approvalLog{a}, Path: a.Path(),
		NeverAsk: a.neverAsk(), Limit: a.reg.cfg.MaxResultBytes,
		BeforeBody: a.beforeBody,
		OnFault:    func(err error) { a.log().Error("tool pipeline fault", "error", err) },
	}
	return o
}

// neverAsk: an agent whose log pins the policy "never" has its questions refused
// without being put (seam COMP-24, COMP-25); so has one whose log says what this
// build does not know.
func (a *Agent) neverAsk() bool {
	policy, _ := a.session.Policies()
	return tool.Narrow(tool.PolicyAsk, policy, "") == tool.PolicyNever
}

func (a *Agent) beforeBody(ctx context.Context, _ *tool.Call) error {
	err := a.session.CheckOwner(ctx)
	if err == nil {
		err = a.session.Flush(ctx)
	}
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		// The cancel ended the wait. One that came otherwise the pipeline sees itself.
		return tool.Errorf(tool.CodeAbortedBeforeDispatch, "the turn was cancelled before this call was started")
	}
	return err
}

// approvalLog records questions and answers in the caller's log.
type approvalLog struct{ a *Agent }

// Asked implements tool.ApprovalLog.
func (l approvalLog) Asked(call *tool.Call, req *tool.ApprovalRequest) error {
	_, err := l.a.session.Append(session.Draft{Payload: &session.ApprovalAsked{ID: req.ID, ToolName: call.Name, CallID: call.ID, Reason: req.Reason}})
	return err
}

// Decided implements tool.ApprovalLog.
func (l approvalLog) Decided(_ *tool.Call, req *tool.ApprovalRequest, outcome tool.ApprovalOutcome) error {
	_, err := l.a.session.Append(session.Draft{Payload: &session.ApprovalDecided{ID: req.ID, Outcome: string(outcome)}})
	return err
}
