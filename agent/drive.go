package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/stack"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
)

// drive runs turns until nothing is due, then leaves (core L4, L21, L27). It is
// the only place that ends a running activity.
func (a *Agent) drive(act *activity) {
	stack.Grow()
	for act != nil {
		end := a.turn(act)
		act = a.afterTurn(act, end)
		a.deliver()
	}
}

// afterTurn decides what follows a turn, in one hold with the status change. A
// turn that ended by itself is followed by one for whatever is due (core L21,
// amendment P08); after a cancel only a wake that came later counts (L27), and a
// disposed agent runs nothing any more.
func (a *Agent) afterTurn(act *activity, end turnResult) (next *activity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claimed = [2]int{}
	goOn := !a.closing && a.pendingLocked()
	switch {
	case act.cause != nil:
		goOn = goOn && act.latch && act.cause.Kind != session.CauseDisposed
	case end == turnStuck:
		goOn = false
	}
	if goOn {
		// A fresh scope; a latch on the old one is spent (core L21).
		next = a.newActivity()
		a.act = next
	} else {
		a.act, a.phase, a.untold = nil, phaseIdle, act.done
		a.vars = nil // an agent that waits may wait long
		a.noteStatusLocked(Idle)
	}
	// Who waits for idleness goes on when the status was told.
	a.noteLocked(note{kind: noteDone, done: act.done})
	a.restLocked()
	act.cancel(nil)
	return next
}

type turnResult uint8

const (
	turnEnded turnResult = iota
	// turnStuck: the turn could not even claim; trying again at once would fail
	// the same way.
	turnStuck
)

// turn runs one turn and closes it whatever happens (core L16–L23).
func (a *Agent) turn(act *activity) (result turnResult) {
	if act.ctx.Err() != nil {
		return turnStuck
	}
	last, open, _ := a.session.LastTurn()
	if open {
		a.fail(fmt.Errorf("turn %d of agent %s is open already; the log needs a repair", last, a.ID()), 0)
		return turnStuck
	}
	t := &turn{agent: a, act: act, number: last + 1}
	// What the log holds is read here or not at all: nothing of a turn begins, and no
	// model is asked, before it is known that it can be.
	err := a.session.Load(act.ctx)
	if err == nil {
		err = contain("driver", t.open)
	}
	if err == nil {
		err = contain("driver", t.run)
	}
	if !t.opened {
		// No turn, no trace in the log (core L16).
		if act.ctx.Err() == nil {
			a.fail(err, 0)
		}
		return turnStuck
	}
	at := a.session.Head() // the failure is told in the log from here on
	if cerr := contain("driver", func() error { return t.close(err) }); cerr != nil {
		a.log().Error("the turn could not be closed", "turn", t.number, "error", cerr)
		return turnStuck
	}
	if t.failed {
		a.fail(err, at)
	}
	if err != nil && !t.consumed {
		return turnStuck
	}
	return turnEnded
}

// fail tells of a failure; seq is where the log tells of it, 0 if it does not.
func (a *Agent) fail(err error, seq int64) {
	if err == nil {
		return
	}
	a.each(func(h *Hooks) bool {
		if h.Failed != nil {
			a.tell("failed", func() { h.Failed(a, err) })
		}
		return true
	})
	a.reg.observe(Event{Kind: EventFailed, Agent: a, Err: err, seq: seq})
}

// turn is the state of one turn in progress. Only the driver touches it.
type turn struct {
	agent    *Agent
	act      *activity
	number   int64
	step     int64
	opened   bool
	stepOpen bool
	closed   bool
	failed   bool // ended as an error, and nobody cancelled
	consumed bool // a claim became history or was consumed by the turn's end

	claim  claim
	ending *session.TurnEnd // what the turn would end with; max-tokens sticks (core L22)
}

// claim is what the pre-step chain holds: messages that still stand at the head
// of their lists (design § 4, Claimed exactly once).
type claim struct {
	n        [2]int
	messages []session.Queued
}

// drafts appends the splices that take the claimed messages out of the queue.
func (c *claim) drafts(to []session.Draft) []session.Draft {
	for _, target := range [2]session.Target{session.NextStep, session.NextTurn} {
		if n := c.n[listIndex(target)]; n > 0 {
			to = append(to, session.Draft{Payload: &session.InboxSpliced{Target: target, Removed: int64(n)}})
		}
	}
	return to
}

func (t *turn) ctx() context.Context { return t.act.ctx }

// open appends turn/start, with what TurnOpen hooks add, in one hold.
func (t *turn) open() error {
	drafts := []session.Draft{{Payload: &session.TurnStart{Turn: t.number}}}
	var err error
	t.agent.each(func(h *Hooks) bool {
		if h.TurnOpen == nil {
			return true
		}
		var more []session.Draft
		err = contain("turn open hook", func() (err error) {
			more, err = h.TurnOpen(t.agent, t.number)
			return err
		})
		for i := range more {
			if err == nil && more[i].Payload == nil {
				err = errors.New("turn open hook: a draft has no payload")
			}
		}
		drafts = append(drafts, more...)
		return err == nil
	})
	if err != nil {
		return err
	}
	if err := context.Cause(t.ctx()); err != nil {
		return err
	}
	if _, err := t.agent.session.AppendEstablish(drafts...); err != nil {
		return err
	}
	t.opened = true
	return nil
}

// run takes steps until the turn has an ending. The ending is left in t.ending,
// or the turn was closed already; an error is the failure of the turn.
func (t *turn) run() error {
	for first := true; ; first = false {
		entered, err := t.enter(first)
		if err != nil || t.closed {
			return err
		}
		if !entered {
			return nil
		}
		end, err := t.modelStep()
		if err != nil {
			return err
		}
		if err := t.endStep(); err != nil {
			return err
		}
		if t.ending == nil || t.ending.Kind != session.EndMaxTokens {
			// A step that wants to see results takes an earlier ending back (core L22).
			t.ending = end
		}
		if err := context.Cause(t.ctx()); err != nil {
			if end != nil {
				// What is complete is not relabelled by a cancel that came too late.
				return nil
			}
			return err
		}
		if t.ending != nil && len(t.agent.session.Inbox(session.NextStep)) == 0 {
			t.stopping()
			if len(t.agent.session.Inbox(session.NextStep)) == 0 {
				return nil
			}
		}
	}
}

func (t *turn) stopping() {
	t.agent.each(func(h *Hooks) bool {
		if h.TurnStopping != nil {
			t.agent.tell("turn stopping", func() { h.TurnStopping(t.ctx(), t.agent, t.ending.Kind) })
		}
		return true
	})
}

// enter claims input and opens a step with it. It returns false when the turn
// ends here: with what t.ending says, or, if the chain rejected or nothing was
// left to enter, closed already.
func (t *turn) enter(first bool) (bool, error) {
	a := t.agent
	if err := t.take(first); err != nil {
		return false, err
	}
	if len(t.claim.messages) > 0 || !first && t.ending == nil {
		if err := t.stepDue(); err != nil {
			return false, err
		}
	}
	system, ctxMsg, err := a.assemble()
	if err != nil {
		return false, err
	}
	p := &PreStep{Agent: a, Turn: t.number, Step: t.step + 1}
	n := len(t.claim.messages)
	if ctxMsg.ID != "" {
		n++
	}
	p.Messages = make([]message.Message, 0, n)
	for i := range t.claim.messages {
		p.Messages = append(p.Messages, t.claim.messages[i].Message)
	}
	if ctxMsg.ID != "" && (len(p.Messages) > 0 || !first && t.ending == nil) {
		p.Messages = append(p.Messages, ctxMsg)
	}
	if err := t.preStep(p); err != nil {
		return false, err
	}
	if err := context.Cause(t.ctx()); err != nil {
		return false, err
	}
	switch {
	case p.rejected:
		return false, t.end(&session.TurnEnd{Turn: t.number, Kind: session.EndBlocked})
	case first && len(p.Messages) == 0:
		return false, t.end(&session.TurnEnd{Turn: t.number, Kind: session.EndCompleted})
	case t.ending != nil && len(p.Messages) == 0:
		return false, t.end(t.ending)
	}
	drafts := t.claim.drafts(make([]session.Draft, 0, len(p.Messages)+3))
	drafts = append(drafts, session.Draft{Payload: &session.StepStart{Turn: t.number, Step: t.step + 1}})
	entering := make([]session.UserMessage, len(p.Messages))
	for i := range p.Messages {
		entering[i].Message = p.Messages[i]
		drafts = append(drafts, session.Draft{Payload: &entering[i]})
	}
	if err := t.commit(drafts); err != nil {
		return false, err
	}
	t.step++
	t.stepOpen = true
	a.system = system
	return true, nil
}

func (t *turn) stepDue() (err error) {
	t.agent.each(func(h *Hooks) bool {
		if h.StepDue != nil {
			err = contain("step due hook", func() error { return h.StepDue(t.ctx(), t.agent, t.number, t.claim.messages) })
		}
		return err == nil
	})
	return err
}

func (t *turn) preStep(p *PreStep) (err error) {
	t.agent.each(func(h *Hooks) bool {
		if h.PreStep != nil {
			err = contain("pre-step hook", func() error { return h.PreStep(t.ctx(), p) })
		}
		return err == nil && !p.rejected
	})
	return err
}

// take claims in memory: at a turn boundary the whole next-step list and one
// next-turn message, between steps the next-step list (core L11). Only messages
// whose acceptance is durable are claimed; what is not yet is made so first.
func (t *turn) take(first bool) error {
	a := t.agent
	s := a.session
	a.mu.Lock()
	need := a.unsafeLocked(first)
	a.mu.Unlock()
	if need > 0 {
		if err := s.FlushTo(t.ctx(), need); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.act.cause != nil {
		// What was not claimed yet stays where the cancel left it (core L25).
		return *t.act.cause
	}
	c := claim{}
	if s.Parked() {
		// What ended the parking was taken back before this turn could claim it.
		t.claim = c
		return nil
	}
	next := s.Inbox(session.NextStep)
	for c.n[1] < len(next) && a.safeLocked(&next[c.n[1]]) {
		c.messages = append(c.messages, next[c.n[1]])
		c.n[1]++
	}
	if first {
		if list := s.Inbox(session.NextTurn); len(list) > 0 && a.safeLocked(&list[0]) {
			c.n[0] = 1
			c.messages = append(c.messages, list[0])
		}
	}
	a.claimed = c.n
	t.claim = c
	return nil
}

// commit appends what the claim became, in one hold of the log, and lets go of it.
func (t *turn) commit(drafts []session.Draft) error {
	err := t.append(drafts)
	t.agent.deliver()
	return err
}

func (t *turn) append(drafts []session.Draft) error {
	a := t.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.session.Append(drafts...); err != nil {
		return err
	}
	a.claimed = [2]int{}
	c := t.claim
	t.claim = claim{}
	for i := range c.messages {
		t.consumed = true
		target := session.NextStep
		if i >= c.n[1] {
			target = session.NextTurn
		}
		m := &c.messages[i].Message
		a.resolve(m.ID, acceptClaimed)
		a.noteInboxLocked(noteDequeue, target, m, t.number)
	}
	return nil
}

// end closes the turn together with what the claim became.
func (t *turn) end(e *session.TurnEnd) error {
	e.Turn = t.number
	if err := t.commit(append(t.claim.drafts(nil), session.Draft{Payload: e})); err != nil {
		return err
	}
	t.closed = true
	return nil
}

func (t *turn) endStep() error {
	if _, err := t.agent.session.Append(session.Draft{Payload: &session.StepEnd{Turn: t.number, Step: t.step}}); err != nil {
		return err
	}
	t.stepOpen = false
	return nil
}

// close ends the turn in the log, whatever state an error left it in (core L23).
func (t *turn) close(err error) error {
	if t.closed {
		return nil
	}
	a := t.agent
	var drafts []session.Draft
	if t.stepOpen {
		// Only a failure of our own leaves calls unanswered here (core S13).
		drafts = append(a.session.Unanswered(), session.Draft{Payload: &session.StepEnd{Turn: t.number, Step: t.step}})
	}
	end := t.ending
	a.mu.Lock()
	cause := t.act.cause
	kept := a.closing && a.keep && cause != nil && cause.Kind == session.CauseDisposed
	a.mu.Unlock()
	if kept {
		// The end of the process takes nothing that no step has entered (design § 4): it
		// waits at its place for the next one, as after a crash.
		t.claim = claim{}
	}
	drafts = t.claim.drafts(drafts)
	switch {
	case err == nil && end != nil:
	case cause != nil:
		end = &session.TurnEnd{Kind: session.EndAborted, Cause: *cause}
	case err != nil:
		f := failureOf(err)
		end = &session.TurnEnd{Kind: session.EndError, Failure: &f}
		t.failed = true
	default:
		end = &session.TurnEnd{Kind: session.EndCompleted}
	}
	end.Turn = t.number
	if cerr := t.commit(append(drafts, session.Draft{Payload: end})); cerr != nil {
		return errors.Join(err, cerr)
	}
	t.closed, t.stepOpen = true, false
	return nil
}

// failureOf turns the error of a turn into what the log says of it (core L23).
func failureOf(err error) message.Failure { return sane(llm.FailureOf(err)) }

// sane makes a failure that an adapter reported fit for the log.
func sane(f message.Failure) message.Failure {
	f.Message = strings.ToValidUTF8(f.Message, "\uFFFD")
	f.Code = strings.ToValidUTF8(f.Code, "\uFFFD")
	f.RequestID = strings.ToValidUTF8(f.RequestID, "\uFFFD")
	f.Status, f.RetryAfterMS = max(f.Status, 0), max(f.RetryAfterMS, 0)
	return f
}

// assemble renders the system prompt for the next step and the runtime context
// message if it changed (core P4–P6); that message has no id if it did not.
func (a *Agent) assemble() (system string, ctxMsg message.Message, err error) {
	if a.vars == nil {
		a.vars = a.promptVars()
	}
	set := a.tools.Toolset()
	as, err := a.prompts.Assemble(a.vars, promptOptions(a, set))
	if err != nil {
		return "", message.Message{}, fmt.Errorf("system prompt: %w", err)
	}
	retained := a.retainedContext()
	text, send := as.NextContext(retained)
	if !send {
		return as.System, message.Message{}, nil
	}
	sections := make([]message.SnapshotSection, 0, len(as.Contexts))
	for _, c := range as.Contexts {
		sections = append(sections, message.SnapshotSection{Name: c.Name, Text: c.Text})
	}
	return as.System, message.Message{
		ID: NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.Text(text)},
		Source: message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: contextPlugin, Form: message.FormSnapshot, Sections: sections}),
	}, nil
}

// promptVars are variables that agents supply to their prompts. They are shared, and
// not modified.
type promptVars struct {
	provider, model, cwd string
	vars                 map[string]string
}

// promptVars returns what the agent supplies to its prompt (core P4, P10).
func (a *Agent) promptVars() map[string]string {
	provider, model, cwd := a.options.Provider, a.options.Model, a.Cwd()
	if last := a.reg.vars.Load(); last != nil && last.provider == provider && last.model == model && last.cwd == cwd {
		return last.vars
	}
	vars := map[string]string{}
	for _, v := range [...][2]string{{prompt.VarProvider, provider}, {prompt.VarModel, model}, {prompt.VarCwd, cwd}} {
		if v[1] != "" {
			vars[v[0]] = v[1]
		}
	}
	a.reg.vars.Store(&promptVars{provider, model, cwd, vars})
	return vars
}

// contextPlugin is the source of runtime context messages.
const contextPlugin = "runtime-context"

// retainedContext returns the newest runtime context that the history holds. The
// answer is kept until the surface changes by more than growing.
func (a *Agent) retainedContext() string {
	msgs, gen := a.session.History()
	from := 0
	if a.ctxGen == gen && a.ctxSeen <= len(msgs) {
		from = a.ctxSeen
	} else {
		a.ctxText = ""
	}
	for i := from; i < len(msgs); i++ {
		if s := &msgs[i].Source; s.Kind == message.SourcePlugin && s.Details().Plugin == contextPlugin {
			a.ctxText = message.JoinText(msgs[i].Content)
		}
	}
	a.ctxGen, a.ctxSeen = gen, len(msgs)
	return a.ctxText
}
