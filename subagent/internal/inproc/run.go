package inproc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
)

// run implements subagent.Run for a child in this process.
type run struct {
	handle  *agent.Handle
	agent   *agent.Agent
	outcome session.Outcome // guarded by the child's log: see with
	with    func(func())
	answer  *structured.Output // nil unless the request has a schema

	mu        sync.Mutex  // guards following; no call leaves with it held
	stop      func() bool // ends the following of Start's ctx
	submitted bool        // the prompt was handed over, or never will be
	cancelled bool
	isSettled bool
	failure   error // why a turn failed, for one that left no record
	result    subagent.Result
	err       error
	notify    []func()      // called when the result settles
	closing   chan struct{} // made by the first Close, closed when it is complete
	closeErr  error

	settled chan struct{} // closed when result and err are final
}

var _ subagent.Run = (*run)(nil)

// ID implements subagent.Run.
func (r *run) ID() session.ID { return r.agent.ID() }

// Local implements subagent.Run.
func (r *run) Local() (*agent.Agent, bool) { return r.agent, true }

// follow makes the end of ctx cancel the run until its result settles. An end that
// fell between publication and here cancels it at once (seam DRV-07).
func (r *run) follow(ctx context.Context) {
	stop := context.AfterFunc(ctx, r.cancel)
	r.mu.Lock()
	r.stop = stop
	r.mu.Unlock()
	if ctx.Err() != nil {
		r.cancel()
	}
}

// submit hands the prompt to the child, unless the run is cancelled already.
func (r *run) submit(prompt []message.Block) {
	r.handOver(prompt)
	// It may have come to rest before the run could know that nothing is to follow.
	r.rested(r.agent)
}

func (r *run) handOver(prompt []message.Block) {
	r.mu.Lock()
	if r.cancelled {
		r.submitted = true
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	err := r.agent.Followup(message.Message{
		ID: agent.NewMessageID(), Role: message.RoleUser, Content: prompt, Source: message.UserSource(),
	})
	r.mu.Lock()
	r.submitted = true
	cancelled := r.cancelled
	if err != nil && !cancelled && !r.isSettled {
		r.err = fmt.Errorf("submit the prompt: %w", err)
	}
	r.mu.Unlock()
	if cancelled {
		// The cancel may have come before the prompt was there to be dropped.
		r.cancelAgent()
	}
}

// cancel ends the child's remaining work. Where none is left the result stands as
// it is, whether somebody has looked at it or not (seam RUN-16), but for a missing
// answer, which the cancel then accounts for (seam SO-20).
func (r *run) cancel() {
	r.mu.Lock()
	submitted := r.submitted
	r.mu.Unlock()
	if submitted && r.agent.Quiescent() {
		r.settle(true)
		return
	}
	r.mu.Lock()
	if r.isSettled || r.cancelled {
		r.mu.Unlock()
		return
	}
	r.cancelled = true
	r.mu.Unlock()
	r.cancelAgent()
}

func (r *run) cancelAgent() {
	err := r.agent.Cancel(session.Cause{Kind: session.CauseParent}, false)
	if err == nil || errors.Is(err, session.ErrClosed) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isSettled && r.err == nil {
		r.err = fmt.Errorf("cancel the child: %w", err)
	}
}

// failed keeps what a turn failed of: one that could not be opened says it nowhere
// else.
func (r *run) failed(_ *agent.Agent, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

// rested settles the result when nothing of the child runs any more behind its
// prompt. The child's Rest hook calls it.
func (r *run) rested(a *agent.Agent) {
	r.mu.Lock()
	submitted := r.submitted
	r.mu.Unlock()
	if submitted && a.Quiescent() {
		r.settle(false)
	}
}

// Wait implements subagent.Run.
func (r *run) Wait(ctx context.Context) (subagent.Result, error) {
	select {
	case <-r.settled:
		return r.result, r.err
	default:
	}
	select {
	case <-r.settled:
		return r.result, r.err
	case <-ctx.Done():
		return subagent.Result{}, context.Cause(ctx)
	}
}

// Notify calls fn once, when the result has settled, on whatever goroutine brought
// that about; at once where it has settled before. fn does not block.
func (r *run) Notify(fn func()) {
	r.mu.Lock()
	if !r.isSettled {
		r.notify = append(r.notify, fn)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	fn()
}

// settle fixes the result from the child's own suffix of the log (seam DRV-11…13,
// OUT). The child is idle; late says that a cancel found it so.
func (r *run) settle(late bool) {
	select {
	case <-r.settled:
		return
	default:
	}
	var seen struct {
		end     *session.TurnEnd
		output  []message.Block
		dropped bool
	}
	r.with(func() {
		seen.end, seen.dropped = r.outcome.End(), r.outcome.DroppedUnrun()
		seen.output, _, _ = r.outcome.Output()
	})
	end, output := seen.end, seen.output
	if output == nil {
		output = []message.Block{}
		if text := r.agent.StreamedText(); text != "" {
			output = []message.Block{message.Text(text)}
		}
	}
	// A prompt that was dropped, or put aside at the end of the process, before any
	// turn took it: nothing failed (seam CAN-18).
	log := r.agent.Session()
	_, open, _ := log.LastTurn()
	unrun := end == nil && !open && (seen.dropped || len(log.Inbox(session.NextTurn)) > 0)
	res := subagent.Result{Output: output, StopReason: reason(end)}
	var missing error
	var instead []message.Block
	if r.answer != nil {
		// The value stands beside whatever the reason is (seam SO-21). Where it is the
		// only thing that lacks, all that was said instead is attached (seam SO-18).
		res.Structured, missing, instead = r.answer.Value(), r.answer.Missing(), r.answer.Instead(output)
	}
	r.mu.Lock()
	if r.isSettled {
		r.mu.Unlock()
		return
	}
	r.isSettled = true
	switch {
	case res.StopReason == subagent.StopCompleted && missing == nil:
	case res.StopReason == subagent.StopCompleted && (r.cancelled || late):
		res.StopReason = subagent.StopAborted
	case res.StopReason == subagent.StopCompleted:
		res.StopReason, res.Diagnostic, res.Output = subagent.StopError, subagent.Diagnostic(missing.Error()), instead
	case r.cancelled || unrun && r.failure == nil:
		res.StopReason = subagent.StopAborted
	case res.StopReason == subagent.StopError:
		res.Diagnostic = diagnose(end, open, r.failure)
	}
	if r.err == nil {
		r.result = res
	}
	stop, notify := r.stop, r.notify
	r.notify = nil
	close(r.settled)
	r.mu.Unlock()
	if stop != nil {
		stop()
	}
	for _, fn := range notify {
		fn()
	}
}

func diagnose(end *session.TurnEnd, open bool, failure error) string {
	switch {
	case open:
		// Only a log that takes no more events leaves a turn so (core L23).
		return "the end of the subagent's turn could not be recorded"
	case end != nil && end.Failure != nil:
		return subagent.Diagnostic(end.Failure.Code + ": " + end.Failure.Message)
	case failure != nil:
		return subagent.Diagnostic(failure.Error())
	case end == nil:
		return "the subagent ended without taking up its prompt"
	}
	return ""
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
		r.cancel()
		if ctx.Done() == nil {
			r.release(ctx)
		} else {
			// Joined by every Close through closing.
			go r.release(context.WithoutCancel(ctx))
		}
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

// release settles the result while the child is still registered, then disposes
// it. ctx has no end.
func (r *run) release(ctx context.Context) {
	defer close(r.closing)
	err := r.agent.WhenIdle(ctx)
	r.settle(false)
	r.closeErr = errors.Join(err, r.handle.Dispose(ctx))
}
