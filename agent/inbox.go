package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Followup queues m for a turn of its own and wakes the agent (core L7).
func (a *Agent) Followup(m message.Message) error { return a.Send(m, session.NextTurn, true) }

// Steer queues m for the next step and wakes the agent (core L7).
func (a *Agent) Steer(m message.Message) error { return a.Send(m, session.NextStep, true) }

// Inject queues m for the next step and wakes nobody (core L7).
func (a *Agent) Inject(m message.Message) error { return a.Send(m, session.NextStep, false) }

// Send puts m at the end of an inbox list. When it returns nil the insertion is
// an event of the log, and with wake the agent already counts as running: nobody
// can observe it idle with a message that will run (core L8, L12, L13, L34). The
// message is claimed only once that event is durable; Accept waits for that.
//
// During maintenance and while the agent is built the status stays idle, and the
// wake is served when that ends; WhenIdle waits through both. A creation that fails
// leaves nothing of what was sent.
//
// On a session that was imported with work in its queue nothing wakes, and nothing
// overtakes that work, until a waking message of source user is sent
// (session.Session.Parked): what others send before is accepted and waits.
//
// The caller mints m and its id. A waking send while the current activity is
// already cancelled goes to the next-turn list and runs afterwards. Errors:
// ErrDisposed, an id that is pending already, an invalid message.
func (a *Agent) Send(m message.Message, target session.Target, wake bool) error {
	_, err := a.insert(m, target, wake, nil)
	a.deliver()
	return err
}

// insert appends the splice and, but for an Accept, wakes. The caller delivers.
func (a *Agent) insert(m message.Message, target session.Target, wake bool, acc *Acceptance) (seq int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return 0, fmt.Errorf("send to agent %s: %w", a.ID(), ErrDisposed)
	}
	add := a.session.Append
	if acc != nil {
		if a.phase == phaseBuilding {
			// A creation that fails must leave nothing stored (core H10).
			return 0, fmt.Errorf("send to agent %s: %w", a.ID(), ErrBuilding)
		}
		// The first acceptance creates the row (design § 4).
		add = a.session.AppendEstablish
	}
	// Decided before the insertion, so that a cancel which the insertion provokes
	// cannot change it (core L12).
	if wake && a.act != nil && a.act.cause != nil {
		target = session.NextTurn
	}
	p := &session.InboxSpliced{
		Target: target, Start: int64(len(a.session.Inbox(target))), Inserted: []message.Message{m}, NoWake: !wake,
	}
	if seq, err = add(session.Draft{Payload: p}); err != nil {
		return 0, fmt.Errorf("send to agent %s: %w", a.ID(), err)
	}
	a.noteInboxLocked(noteEnqueue, target, &p.Inserted[0], 0)
	switch {
	case acc != nil:
		a.accepting = append(a.accepting, acc)
	case wake:
		a.wakeLocked()
	}
	return seq, nil
}

// wakeLocked starts the driver, or leaves a latch for when the current activity,
// which cannot serve the wake, has converged (core L12, L27).
func (a *Agent) wakeLocked() {
	switch {
	case a.session.Parked():
		// Accepted, and waits behind what was imported until a person sends.
	case a.phase == phaseIdle:
		a.startLocked()
	case a.phase != phaseRunning || a.act.cause != nil:
		a.act.latch = true
	}
}

// Acceptance is a send that Begin began. The agent's lock guards its state.
type Acceptance struct {
	agent *Agent
	id    message.ID
	seq   int64 // of its splice
	wake  bool
	state acceptState
}

type acceptState uint8

const (
	acceptSyncing   acceptState = iota // the message waits, its sync is under way
	acceptStored                       // the sync is done
	acceptClaimed                      // a turn took it, so it was durable
	acceptDiscarded                    // removed like any other message
	acceptShut                         // removed because admission closed before the sync was done
)

// resolve notes what became of a message that an Accept may be waiting for.
func (a *Agent) resolve(id message.ID, state acceptState) {
	for _, acc := range a.accepting {
		if acc.id == id {
			acc.state = state
		}
	}
}

// Accept is a waking Send that returns once the message is durable: accepted for
// good. The sync is not on ctx, which ends with acceptance, and the wake follows
// it (design § 4); until then the agent is not quiescent. On a deferred session it
// also ends the deferral.
//
// If the sync fails, or the agent's admission closes meanwhile, the message is
// cancelled and does not run here. The error, of the sync, ErrDisposed or both, is
// returned once the cancellation is durable too, or when neither is stored: then
// the message never runs. Otherwise it is ErrUncertain as well: the message is
// stored and its cancellation is not, or the store cannot tell what it holds, so it
// may run after a restart. A plain Cancel meanwhile does not undo an acceptance
// whose sync succeeds: the message was accepted, then discarded.
//
// Before anything is done, the error is that of ctx, or one of Send's, or
// ErrBuilding if the agent is not published yet.
func (a *Agent) Accept(ctx context.Context, m message.Message, target session.Target) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	acc, err := a.Begin(m, target, true)
	if err != nil {
		return err
	}
	return acc.Finish(ctx)
}

// Begin is the first half of Accept, or, without wake, of one that wakes nobody: the
// message is appended, and the agent counts as busy until Finish has returned. It does
// no I/O and calls no hook, so that it can be the last line of a check that holds a
// lock. Finish must follow at once, without that lock, exactly once. Errors: those of
// Send, and ErrBuilding.
func (a *Agent) Begin(m message.Message, target session.Target, wake bool) (*Acceptance, error) {
	acc := &Acceptance{agent: a, id: m.ID, wake: wake}
	var err error
	if acc.seq, err = a.insert(m, target, wake, acc); err != nil {
		return nil, err
	}
	return acc, nil
}

// Finish is the second half of Accept: it waits for the sync, which is not on ctx, wakes
// the agent if that was asked for, and returns what Accept returns.
func (acc *Acceptance) Finish(ctx context.Context) error {
	a := acc.agent
	ctx = context.WithoutCancel(ctx)
	a.deliver()
	defer a.accepted(acc)
	err := a.session.FlushTo(ctx, acc.seq+1)
	err, stuck := a.decide(acc, err)
	a.deliver()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("accept message %s: %w", acc.id, err)
	ferr := a.session.Flush(ctx)
	stored := a.session.Durable() > acc.seq
	switch {
	case stuck:
		return fmt.Errorf("%w: %w: it could not be cancelled and may be stored", errors.Join(err, ferr), ErrUncertain)
	case ferr == nil:
		return err
	case stored:
		return fmt.Errorf("%w: %w: it is stored, but its cancellation is not: %w", err, ErrUncertain, ferr)
	case errors.Is(ferr, session.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w: it may be stored without its cancellation: %w", err, ErrUncertain, ferr)
	}
	return fmt.Errorf("%w (neither it nor its cancellation is stored: %w)", err, ferr)
}

// decide settles an acceptance whose sync has ended with err: it wakes the agent
// and returns nil, or cancels the message and returns why it is not accepted. stuck
// says that the cancellation could not be logged.
func (a *Agent) decide(acc *Acceptance, err error) (_ error, stuck bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch acc.state {
	case acceptShut:
		return errors.Join(fmt.Errorf("agent %s: %w", a.ID(), ErrDisposed), err), false
	case acceptClaimed:
		// Somebody else's sync made it durable.
		return nil, false
	case acceptDiscarded:
		return err, false
	}
	target, at, ok := a.findLocked(acc.id)
	held := ok && at < a.claimed[listIndex(target)]
	switch {
	case err == nil:
		acc.state = acceptStored
		if acc.wake && ok && !held && !a.closing {
			a.wakeLocked()
		}
		return nil, false
	case held:
		return nil, false // a turn is claiming it, so it was durable
	case ok:
		if rerr := a.removeLocked(target, at); rerr != nil {
			return errors.Join(err, rerr), true
		}
	}
	return err, false
}

func (a *Agent) accepted(acc *Acceptance) {
	a.mu.Lock()
	a.accepting = slices.DeleteFunc(a.accepting, func(b *Acceptance) bool { return b == acc })
	a.restLocked()
	a.mu.Unlock()
	a.deliver()
}

// shutLocked cancels what is being accepted: admission closes before its sync is
// done. What a turn is claiming was durable and stays.
func (a *Agent) shutLocked() error {
	var errs []error
	for _, acc := range a.accepting {
		if acc.state != acceptSyncing {
			continue
		}
		target, at, ok := a.findLocked(acc.id)
		if !ok || at < a.claimed[listIndex(target)] {
			continue
		}
		if err := a.removeLocked(target, at); err != nil {
			errs = append(errs, err)
			continue
		}
		acc.state = acceptShut
	}
	return errors.Join(errs...)
}

// findLocked returns where a pending message stands.
func (a *Agent) findLocked(id message.ID) (target session.Target, at int, ok bool) {
	for _, target := range [2]session.Target{session.NextTurn, session.NextStep} {
		for i, q := range a.session.Inbox(target) {
			if q.Message.ID == id {
				return target, i, true
			}
		}
	}
	return "", 0, false
}

// removeLocked cancels one message.
func (a *Agent) removeLocked(target session.Target, at int) error {
	m := &a.session.Inbox(target)[at].Message
	_, err := a.session.Append(session.Draft{Payload: &session.InboxSpliced{Target: target, Start: int64(at), Removed: 1, Canceled: true}})
	if err != nil {
		return fmt.Errorf("discard message %s: %w", m.ID, err)
	}
	a.discardedLocked(target, m)
	return nil
}

func (a *Agent) discardedLocked(target session.Target, m *message.Message) {
	a.resolve(m.ID, acceptDiscarded)
	a.noteInboxLocked(noteDiscard, target, m, 0)
}

// Discard removes a pending message from the inbox, recorded as cancelled. A
// message that a turn has claimed, or is claiming, is ErrNotPending.
func (a *Agent) Discard(id message.ID) error {
	err := a.discard(id)
	a.deliver()
	return err
}

func (a *Agent) discard(id message.ID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	target, at, ok := a.findLocked(id)
	if !ok || at < a.claimed[listIndex(target)] {
		return fmt.Errorf("discard message %s: %w", id, ErrNotPending)
	}
	return a.removeLocked(target, at)
}

// Cancel ends the current activity with a cause; the first cause wins for the
// recorded ending. Without keepInbox everything that waits is discarded, also
// when the agent is idle; messages that the running turn has claimed, or is
// claiming, belong to that turn (core L24–L27). It does not wait.
func (a *Agent) Cancel(cause session.Cause, keepInbox bool) error {
	cause.Reason = strings.ToValidUTF8(cause.Reason, "\uFFFD")
	err := a.cancel(cause, keepInbox)
	a.deliver()
	return err
}

func (a *Agent) cancel(cause session.Cause, keepInbox bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if !keepInbox {
		err = a.clearLocked()
	}
	act := a.act
	if act == nil {
		return err
	}
	if !keepInbox {
		act.latch = false
	}
	// A creation under way is no activity of the agent: only its disposal ends it.
	if act.cause == nil && a.phase != phaseBuilding {
		act.cause = &cause
		act.cancel(cause)
	}
	return err
}

// clearLocked empties next-step, then next-turn, but for what is being claimed (core L10).
func (a *Agent) clearLocked() error {
	var drafts []session.Draft
	lists := [2]session.Target{session.NextStep, session.NextTurn}
	var dropped [2][]session.Queued
	for i, target := range lists {
		start := a.claimed[listIndex(target)]
		if dropped[i] = a.session.Inbox(target)[start:]; len(dropped[i]) > 0 {
			drafts = append(drafts, session.Draft{Payload: &session.InboxSpliced{
				Target: target, Start: int64(start), Removed: int64(len(dropped[i])), Canceled: true,
			}})
		}
	}
	if drafts == nil {
		return nil
	}
	if _, err := a.session.Append(drafts...); err != nil {
		return fmt.Errorf("clear inbox of agent %s: %w", a.ID(), err)
	}
	for i, target := range lists {
		for j := range dropped[i] {
			a.discardedLocked(target, &dropped[i][j].Message)
		}
	}
	return nil
}

func listIndex(t session.Target) int {
	if t == session.NextStep {
		return 1
	}
	return 0
}

// Wake starts the driver if something waits that can run: what a resumed agent
// still owes. It reports whether there was anything. What is parked (see
// session.Session.Parked) cannot run.
func (a *Agent) Wake() bool {
	woken := a.wake()
	a.deliver()
	return woken
}

func (a *Agent) wake() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing || a.phase != phaseIdle || !a.pendingLocked() {
		return false
	}
	a.startLocked()
	return true
}

// pendingLocked reports whether a new turn is due (amendment P13): next-turn is
// not empty, or something in next-step was sent to wake. What is still being
// accepted does not count: its Accept wakes. Nothing is due while the inbox is parked.
func (a *Agent) pendingLocked() bool {
	if a.session.Parked() {
		return false
	}
	for _, target := range [2]session.Target{session.NextTurn, session.NextStep} {
		for _, q := range a.session.Inbox(target) {
			if (q.Wake || target == session.NextTurn) && !a.syncingLocked(q.Message.ID) {
				return true
			}
		}
	}
	return false
}

func (a *Agent) syncingLocked(id message.ID) bool {
	return slices.ContainsFunc(a.accepting, func(acc *Acceptance) bool { return acc.id == id && acc.state == acceptSyncing })
}

// unsafeLocked returns the head that has to be stored before everything that a
// turn would take may be claimed, or 0 if it may already.
func (a *Agent) unsafeLocked(first bool) (need int64) {
	look := func(list []session.Queued) {
		for i := range list {
			if !a.safeLocked(&list[i]) {
				need = max(need, list[i].Seq+1)
			}
		}
	}
	look(a.session.Inbox(session.NextStep))
	if next := a.session.Inbox(session.NextTurn); first {
		look(next[:min(len(next), 1)])
	}
	return need
}

// safeLocked reports whether a message may be claimed (see session.Claimable). The
// acceptance that ended a deferral is not safe before it is stored itself.
func (a *Agent) safeLocked(q *session.Queued) bool {
	if a.syncingLocked(q.Message.ID) {
		return q.Seq < a.session.Durable()
	}
	return q.Seq < a.session.Claimable()
}
