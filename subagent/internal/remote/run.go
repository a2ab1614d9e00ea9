package remote

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// run implements subagent.Run for a child in another process.
type run struct {
	child *Child
	link  Link
	talk  Talk

	unfollow func() bool // ends the following of Start's ctx
	unbind   func()      // ends the bond to the parent's life
	giveUp   context.CancelCauseFunc

	mu        sync.Mutex // guards following
	isSettled bool
	result    subagent.Result
	closing   chan struct{} // made by the first Close, closed when it is complete
	closeErr  error

	driven  chan struct{} // closed when the turn is over, in one way or another
	settled chan struct{} // closed when result is final
	over    chan struct{} // closed when nothing of the turn runs any more
}

var _ subagent.Run = (*run)(nil)

// interruptBound is how long a product may take to be told of a cancel and to end its turn
// for it, before its process is ended.
const interruptBound = time.Second

var (
	errClosed = errors.New("the run was closed")
	errGone   = errors.New("the parent is being disposed")
)

// bind ties the run to the caller's ctx and to the parent's life, and starts the turn.
func (r *run) bind(ctx context.Context) error {
	c := r.child
	lasting := context.WithoutCancel(ctx)
	turn, giveUp := context.WithCancelCause(lasting)
	r.giveUp = giveUp
	r.unfollow = context.AfterFunc(ctx, func() { c.cancel(context.Cause(ctx)) })
	bound := make(chan struct{}) // closed when unbind is set
	unbind, err := c.req.Parent.AddWork(agent.Work{
		Stop: func() { c.cancel(errGone) },
		Join: func() {
			<-bound
			// Its owner may never close it.
			if err := r.Close(lasting); err != nil {
				c.product.log("close", err)
			}
		},
	})
	if err != nil {
		r.unfollow()
		giveUp(err)
		return err
	}
	r.unbind = unbind
	close(bound)
	go r.drive(turn)
	go r.attend(turn)
	return nil
}

// drive takes the turn to its end.
func (r *run) drive(ctx context.Context) {
	defer close(r.driven)
	out, err := r.talk.Turn(ctx)
	if err != nil {
		out = r.broken(ctx, err)
	}
	r.settle(out)
}

// attend waits for a cancel, settles the result without the product's help (seam OOPX-07),
// and gives the product a moment to stop by itself.
func (r *run) attend(turn context.Context) {
	defer close(r.over)
	defer r.giveUp(nil)
	select {
	case <-r.driven:
		return
	case <-r.child.cancelled.Done():
	}
	if !r.settle(Outcome{Reason: subagent.StopAborted, Text: r.talk.Said()}) {
		<-r.driven
		return
	}
	ctx, stop := context.WithTimeout(turn, interruptBound)
	defer stop()
	switch err := r.talk.Interrupt(ctx); {
	case errors.Is(err, ErrNoInterrupt):
		stop()
	case err != nil:
		r.child.product.log("interrupt", err)
	}
	select {
	case <-r.driven:
	case <-ctx.Done():
	}
	r.giveUp(context.Cause(r.child.cancelled))
	<-r.driven
}

// broken is the outcome of a turn whose end was not seen.
func (r *run) broken(ctx context.Context, err error) Outcome {
	if context.Cause(r.child.cancelled) == nil {
		r.child.product.log("turn", err)
	}
	msg := Words(err)
	if exit, ended := exited(ctx, r.link, err); ended {
		msg = "the product's process ended in the middle of its work: " + exitWords(exit)
	}
	return Outcome{Reason: subagent.StopError, Text: r.talk.Said(), Diagnostic: msg}
}

// settle fixes the result and reports whether this call did.
func (r *run) settle(out Outcome) bool {
	res := r.child.result(out)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isSettled {
		return false
	}
	// A cancel that came first stays what happened, whatever broke behind it (seam OOPX-06),
	// and however the product ended for it.
	if r.child.cancelled.Err() != nil {
		res.StopReason, res.Diagnostic = subagent.StopAborted, ""
	}
	r.isSettled, r.result = true, res
	close(r.settled)
	return true
}

// result maps an outcome. A success without an answer is none, and neither is one whose
// answer has not the form that was asked for.
func (c *Child) result(out Outcome) subagent.Result {
	res := subagent.Result{Output: []message.Block{}, StopReason: out.Reason, Diagnostic: subagent.Diagnostic(out.Diagnostic)}
	blank := strings.TrimSpace(out.Text) == ""
	if !blank {
		res.Output = []message.Block{message.Text(out.Text)}
	}
	var fault string
	if c.Schema != nil && out.Structured != nil {
		value, err := c.Schema.Validate(out.Structured)
		if res.Structured = value; err != nil {
			res.Structured, fault = nil, "the answer does not have the form that was asked for"
			c.product.log("answer", err)
		}
	}
	switch {
	case out.Reason == subagent.StopAborted:
		res.Diagnostic = ""
	case out.Reason != subagent.StopCompleted:
	case fault != "":
	case c.Schema != nil && res.Structured == nil:
		fault = "there is no answer in the form that was asked for"
	case c.Schema == nil && blank:
		fault = "the agent ended without an answer"
	}
	if out.Reason == subagent.StopCompleted {
		if res.Diagnostic = ""; fault != "" {
			res.StopReason, res.Diagnostic = subagent.StopError, fault
		}
	}
	return res
}

// Said returns the text so far of a run that Start returned.
func Said(of subagent.Run) string { return of.(*run).talk.Said() }

// ID implements subagent.Run.
func (r *run) ID() session.ID { return r.child.ID }

// Local implements subagent.Run.
func (r *run) Local() (*agent.Agent, bool) { return nil, false }

// Wait implements subagent.Run.
func (r *run) Wait(ctx context.Context) (subagent.Result, error) {
	select {
	case <-r.settled:
		return r.result, nil
	default:
	}
	select {
	case <-r.settled:
		return r.result, nil
	case <-ctx.Done():
		return subagent.Result{}, context.Cause(ctx)
	}
}

// Close implements subagent.Run.
func (r *run) Close(ctx context.Context) error {
	r.mu.Lock()
	first := r.closing == nil
	if first {
		r.closing = make(chan struct{})
	}
	done := r.closing
	r.mu.Unlock()
	if first {
		r.child.cancel(errClosed)
		go r.release(context.WithoutCancel(ctx)) // joined by every Close through closing
	}
	select {
	case <-done:
		return r.closeErr
	default:
	}
	select {
	case <-done:
		return r.closeErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release ends the product and everything of the run. ctx has no end.
func (r *run) release(ctx context.Context) {
	defer close(r.closing)
	<-r.over
	r.unfollow()
	leave := true
	select {
	case <-r.link.Done():
		leave = false
	default:
	}
	r.closeErr = r.child.product.end(ctx, r.link, r.talk, leave)
	r.unbind()
}
