package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/session"
)

// Dispose ends the agent and returns when nothing of it runs any more: admission
// closes at once, its activity is cancelled, then its children end, then it does;
// what it appended is stored; its registrations and its session go (core L48–L52,
// L54). It is memoised: every caller waits for the same completion and gets the
// same error. ctx bounds only the wait, the disposal goes on without it.
//
// Unless keepInbox is set, what waits in the inbox is discarded. Called from the
// agent's own activity it would wait for itself: ErrSelfDispose.
func (a *Agent) Dispose(ctx context.Context, keepInbox bool) error {
	for b := Initiator(ctx); b != nil; b = b.owner {
		if b == a {
			return fmt.Errorf("agent %s: %w", a.ID(), ErrSelfDispose)
		}
	}
	if finish := a.beginDispose(keepInbox); finish != nil {
		if ctx.Done() == nil {
			finish() // the wait is not bounded, and needs no goroutine
		} else {
			go finish() // joined by every Dispose through gone
		}
	}
	select {
	case <-a.gone:
		return a.err
	default:
	}
	select {
	case <-a.gone:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CloseAdmission starts the disposal without waiting for it: nothing is accepted
// any more and the activity is cancelled when it returns. Hooks may call it.
func (a *Agent) CloseAdmission(keepInbox bool) {
	if finish := a.beginDispose(keepInbox); finish != nil {
		go finish() // joined by every Dispose through gone
	}
}

// Seal closes the agent's admission as its disposal does, and cancels with a cause,
// but leaves the agent in the registry: whoever is to dispose it can still read what it
// came to. Nothing is accepted, adopted or woken any more; what is being accepted is
// cancelled, and, unless keepInbox is set, so is what waits. It does not wait. Of several
// causes the first one stands. The error is that of the log.
func (a *Agent) Seal(cause session.Cause, keepInbox bool) error {
	err := errors.Join(a.seal(cause, keepInbox), a.stopWork())
	a.deliver()
	return err
}

// Retire closes the admission of an agent that is Quiescent, and reports whether it was:
// whatever is sent afterwards is refused, and nothing that was sent before is under way.
// What waits without having woken it stays. It does no I/O and calls no hook.
func (a *Agent) Retire() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.quiescentLocked() {
		return false
	}
	a.closing = true
	return true
}

// stopWork tells the work of a closing agent, once, to stop.
func (a *Agent) stopWork() error {
	a.mu.Lock()
	work := a.work // complete: a closing agent takes no more
	if a.stopped {
		work = nil
	}
	a.stopped = true
	a.mu.Unlock()
	var errs []error
	for _, w := range work {
		errs = append(errs, contain("stop of an agent's work", func() error { w.Stop(); return nil }))
	}
	return errors.Join(errs...)
}

func (a *Agent) seal(cause session.Cause, keepInbox bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closing, a.keep = true, keepInbox
	err := a.shutLocked()
	if !keepInbox {
		err = errors.Join(err, a.clearLocked())
	}
	if act := a.act; act != nil && act.cause == nil && a.phase != phaseBuilding {
		act.cause = &cause
		act.cancel(cause)
	}
	return err
}

// beginDispose begins the disposal, unless that was done before, and returns what does
// the rest of it, or nil.
func (a *Agent) beginDispose(keepInbox bool) (finish func()) {
	a.mu.Lock()
	errs, first := a.shut(keepInbox)
	a.mu.Unlock()
	if !first {
		return nil
	}
	return a.stopTree(errs, keepInbox)
}

// startDispose goes on behind the first shut.
func (a *Agent) startDispose(errs []error, keepInbox bool) {
	finish := a.stopTree(errs, keepInbox)
	go finish() // joined by every Dispose through gone
}

// Work is what runs for an agent beyond its turns, and ends with it.
type Work struct {
	// Stop is called once, when the agent's disposal begins or it is sealed, while its
	// activity and its children are being cancelled. It must not block, and hooks may be its callers.
	Stop func()
	// Join returns when nothing of the work runs any more. The disposal waits for it
	// behind the agent's children, before the agent's scopes and its session go.
	Join func()
}

// AddWork binds work to the agent's life. Once the disposal has begun nothing is
// bound any more: ErrDisposed, and neither function is called. remove ends the bond of
// work that is over before; it does nothing once the disposal has begun.
func (a *Agent) AddWork(w Work) (remove func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return nil, fmt.Errorf("agent %s: %w", a.ID(), ErrDisposed)
	}
	bound := &w
	a.work = append(a.work, bound)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.closing {
			return
		}
		a.work = slices.DeleteFunc(a.work, func(other *Work) bool { return other == bound })
	}, nil
}

// stopTree stops what runs, down the whole tree, and returns what waits for that and
// does the rest.
func (a *Agent) stopTree(errs []error, keepInbox bool) (finish func()) {
	// The stop goes down the whole tree before anybody waits (core L52).
	a.mu.Lock()
	children := make([]*Agent, 0, len(a.children))
	for c := range a.children {
		children = append(children, c)
	}
	work := a.work // complete: a closing agent takes no more
	a.mu.Unlock()
	for _, c := range children {
		c.CloseAdmission(keepInbox)
	}
	if err := a.stopWork(); err != nil {
		errs = append(errs, err)
	}
	a.deliver()
	return func() { a.finishDispose(errs, children, work) }
}

// shut closes admission and cancels what the agent does; the caller holds the
// agent's lock. It reports whether it was the first to do so.
func (a *Agent) shut(keepInbox bool) (errs []error, first bool) {
	if a.gone != nil {
		return nil, false
	}
	a.gone = make(chan struct{})
	a.closing, a.keep = true, keepInbox
	if err := a.shutLocked(); err != nil {
		errs = append(errs, err)
	}
	if !keepInbox {
		if err := a.clearLocked(); err != nil {
			errs = append(errs, err)
		}
	}
	act := a.act
	switch {
	case act == nil:
	case a.phase == phaseBuilding:
		act.cancel(fmt.Errorf("agent %s: %w", a.ID(), ErrDisposed))
	case act.cause == nil:
		cause := session.Cause{Kind: session.CauseDisposed}
		act.cause = &cause
		act.cancel(cause)
	}
	return errs, true
}

// finishDispose ends with the closing of gone, which every Dispose waits for.
func (a *Agent) finishDispose(errs []error, children []*Agent, work []*Work) {
	r := a.reg
	ctx := r.ctx
	for _, c := range children {
		<-c.gone
		if c.err != nil {
			errs = append(errs, c.err)
		}
	}
	for _, w := range work {
		if err := contain("end of an agent's work", func() error { w.Join(); return nil }); err != nil {
			errs = append(errs, err)
		}
	}
	if err := a.WhenIdle(ctx); err != nil {
		errs = append(errs, err)
	}
	if err := a.clearLate(); err != nil {
		errs = append(errs, err)
	}
	if a.entered {
		// Every durable write that an injection began has settled before the agent
		// leaves the registry (core L54).
		if err := a.session.Flush(ctx); err != nil {
			a.log().Error("final flush", "error", err)
		}
	}
	for _, fn := range slices.Backward(append([]func(){a.tools.Close, a.prompts.Close}, a.unwind...)) {
		if err := contain("scope teardown", func() error { fn(); return nil }); err != nil {
			errs = append(errs, err)
		}
	}
	if a.entered {
		r.mu.Lock()
		delete(r.live, a.ID())
		r.mu.Unlock()
	}
	a.sayGone()
	var err error
	if a.detach != nil {
		err = a.detach(ctx)
	} else {
		err = r.cfg.Sessions.Abandon(ctx, a.session)
	}
	if err != nil {
		errs = append(errs, err)
	}
	if a.owner != nil {
		a.owner.disown(a)
	}
	r.release()
	a.err = errors.Join(errs...)
	close(a.gone)
	r.agents.Done()
}

// clearLate discards what the cancelled activity still put into the inbox: the
// contexts that its tools deferred.
func (a *Agent) clearLate() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keep {
		return nil
	}
	return a.clearLocked()
}

// sayGone tells the Disposed hooks behind everything else, and waits for that.
func (a *Agent) sayGone() {
	if !a.announced {
		return
	}
	done := make(chan struct{})
	a.mu.Lock()
	if !a.audible {
		// The creation was vetoed: nobody else has heard of the agent.
		a.notes, a.audible = a.notes[:0], true
	}
	a.noteLocked(note{kind: noteGone, done: done})
	a.mu.Unlock()
	a.deliver()
	<-done
}

// OnDispose registers scope teardown, run when the agent is idle for good, last
// registered first. It may be called during Setup only.
func (a *Agent) OnDispose(fn func()) { a.unwind = append(a.unwind, fn) }

// Close refuses new agents, disposes all that live, keeping their inboxes, and
// returns when nothing of any of them runs, creations and disposals under way
// included, whoever began them (core L47).
//
// ctx does not bound it, since what it would leave behind could not be joined by
// anybody. Called from an agent's own activity it would wait for itself:
// ErrSelfDispose. A hook must not call it.
func (r *Registry) Close(ctx context.Context) error {
	if b := Initiator(ctx); b != nil && b.reg == r {
		return fmt.Errorf("close agent registry: %w", ErrSelfDispose)
	}
	r.mu.Lock()
	r.closed = true
	for c := range r.making {
		c.cancel(fmt.Errorf("agent registry: %w", ErrDisposed))
	}
	r.mu.Unlock()
	var errs []error
	for {
		roots := r.Roots()
		if len(roots) == 0 {
			break
		}
		for _, a := range roots {
			a.CloseAdmission(true)
		}
		for _, a := range roots {
			<-a.gone
			if a.err != nil {
				errs = append(errs, a.err)
			}
		}
	}
	r.made.Wait()
	r.agents.Wait()
	r.unhook()
	return errors.Join(errs...)
}
