package subagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// parent is an agent that has continuable children: what the manager remembers of it
// while it lives. The manager's lock guards it.
type parent struct {
	agent *agent.Agent
	// reading is open while somebody reads what an earlier process left owed; read says
	// that this was done.
	reading chan struct{}
	read    bool
	// sent are the notices of this process that its log has not taken yet; nil without any.
	sent map[message.ID]bool
	// owed are those that wait for an occasion, in the order in which they came up.
	owed []*owed
}

// owed is a notice that the parent was not sent, or did not take.
type owed struct {
	note message.Message
	when occasion
}

// occasion is when an owed notice goes out.
type occasion uint8

const (
	// onTurn: with the next turn that something else opens. It was discarded unread, or
	// could not be sent.
	onTurn occasion = iota
	// onRelease: not while the call that waited for the outcome may still tell it.
	onRelease
	// onLook: as soon as it is certain that the log has not taken the outcome.
	onLook
)

// parentLocked returns the record of a live agent, following its inbox from now on. That
// of an agent that has left meanwhile is nobody's to remember.
func (m *manager) parentLocked(a *agent.Agent) *parent {
	k := keyOf(a)
	p := m.parents[k]
	if p != nil {
		return p
	}
	p = &parent{agent: a, read: !a.Resumed()}
	a.ShareHooks(&m.parentHooks)
	// Whoever is still live now tells that hook.
	if _, live := m.agents.Live(a); live {
		m.parents[k] = p
	}
	return p
}

// inboxMoved follows the notices in a parent's inbox. One that is discarded unread is
// owed again, under the same id (design § 4).
func (m *manager) inboxMoved(a *agent.Agent, e agent.InboxEvent) {
	if e.Message.Source.Kind != message.SourceSubagentSettled || e.Change == agent.InboxEnqueue {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.parents[keyOf(a)]
	if p == nil {
		return
	}
	// It may be one that an earlier process has sent.
	p.forgetSent(e.Message.ID)
	if e.Change == agent.InboxDiscard && !p.owes(e.Message.ID) {
		p.owed = append(p.owed, &owed{note: e.Message, when: onTurn})
	}
}

// remind sends what is owed on the occasion of a turn that is about to open, quietly, so
// that this turn takes it.
func (m *manager) remind(a *agent.Agent, _ int64) ([]session.Draft, error) {
	m.sendOwed(a, false, func(o *owed) bool { return o.when != onRelease })
	return nil, nil
}

// lookAgain sends what a call that is over should have carried to the parent's log, and
// did not: it was cancelled, or its result was replaced (amendment P41).
func (m *manager) lookAgain(a *agent.Agent) {
	m.sendOwed(a, true, func(o *owed) bool { return o.when == onLook })
}

// idled is lookAgain for a parent whose status has changed.
func (m *manager) idled(a *agent.Agent, st agent.Status) {
	if st == agent.Idle {
		m.lookAgain(a)
	}
}

// parentGone forgets a parent that is gone.
func (m *manager) parentGone(a *agent.Agent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.parents, keyOf(a))
}

func (m *manager) sendOwed(a *agent.Agent, wake bool, due func(*owed) bool) {
	m.mu.Lock()
	p := m.parents[keyOf(a)]
	if p == nil {
		m.mu.Unlock()
		return
	}
	var now, later []*owed
	for _, o := range p.owed {
		switch {
		case !due(o):
			later = append(later, o)
		case !p.agent.Session().Took(o.note.ID):
			now = append(now, o)
			p.noteSent(o.note.ID)
		}
	}
	p.owed = later
	m.mu.Unlock()
	for _, o := range now {
		m.sendNotice(p, o.note, wake)
	}
}

// sendNotice sends what was noted as sent. A parent that takes nothing any more will
// find out when it is next opened; of one whose log fails, the next turn asks again (seam
// NOTE-15, NOTE-16).
func (m *manager) sendNotice(p *parent, note message.Message, wake bool) {
	target := session.NextStep
	if queuedReport(p.agent.Session(), note.Source.Details().SenderSessionID) {
		// A child's reports come before its settlement (amendment P14).
		target = session.NextTurn
	}
	err := p.agent.Send(note, target, wake)
	if err == nil {
		return
	}
	disposed := errors.Is(err, agent.ErrDisposed)
	m.mu.Lock()
	p.forgetSent(note.ID)
	if !disposed {
		p.owed = append(p.owed, &owed{note: note, when: onTurn})
	}
	m.mu.Unlock()
	if !disposed {
		m.svc.fault("a parent could not be told of its subagent's end", err, "agent", string(p.agent.ID()), "message", string(note.ID))
	}
}

// tellParent tells the parent, if it is live, what an epoch came to: while it still owns
// the child, so that it cannot settle before it has read that (seam NOTE-11, NOTE-12).
func (m *manager) tellParent(act *activation, e *epochEnd) {
	set := m.settlement(act, e)
	m.mu.Lock()
	a, live := m.agents.Get(act.parent)
	held := act.waiter.settledLocked(set, e.open)
	if !live || e.open || act.ending.process || m.svc.cfg.NoNotices {
		m.mu.Unlock()
		return
	}
	p := m.parentLocked(a)
	note := set.Message()
	switch {
	case held && e.settled:
		p.owed = append(p.owed, &owed{note: note, when: onRelease})
		fallthrough
	case held, m.graph.Closing(keyOf(a)), p.has(note.ID):
		m.mu.Unlock()
		return
	}
	p.noteSent(note.ID)
	if above := m.resident[keyOf(a)]; above != nil {
		above.told = true // whatever it was opened for, it has work now
	}
	m.mu.Unlock()
	quiet := act.ending.quiet || e.foreign && waitsForPerson(a.Session())
	m.sendNotice(p, note, !quiet)
}

// waitsForPerson reports whether what came in with a session is to wake nobody there: an
// import runs nothing by itself, and no person has sent anything since.
func waitsForPerson(s *session.Session) bool { return s.Imported() && !s.Adopted() }

// has reports whether a notice needs not be sent: it was sent, is owed already, or was
// taken. Whoever reads the logs of children may have come first.
func (p *parent) has(id message.ID) bool {
	return p.sent[id] || p.owes(id) || p.agent.Session().Took(id)
}

func (p *parent) noteSent(id message.ID) {
	if p.sent == nil {
		p.sent = map[message.ID]bool{}
	}
	p.sent[id] = true
}

func (p *parent) forgetSent(id message.ID) {
	if delete(p.sent, id); len(p.sent) == 0 {
		p.sent = nil
	}
}

func queuedReport(s *session.Session, child string) bool {
	for _, q := range s.Inbox(session.NextTurn) {
		if src := &q.Message.Source; src.Kind == message.SourceSubagentReport && src.Details().SenderSessionID == child {
			return true
		}
	}
	return false
}

// attend makes sure that what an agent's children came to in earlier processes was read
// before the agent deals with children again, and sent to it (design § 4: on resume, wake
// or start).
func (m *manager) attend(ctx context.Context, a *agent.Agent) error {
	_, err := m.recall(ctx, a, false)
	return err
}

// woken is attend for an agent of an earlier process that begins to work, whoever wakes
// it: what is found goes into the turn that opens.
func (m *manager) woken(a *agent.Agent, _ int64) ([]session.Draft, error) {
	if !a.Resumed() || m.closed() {
		return nil, nil
	}
	if err := m.attend(m.svc.ctx, a); err != nil {
		// The turn goes on, and the next one asks again.
		m.svc.fault("what the subagents of a resumed agent came to could not be read", err, "agent", string(a.ID()))
	}
	return nil, nil
}

// recall is attend that says how many notices it sent, and wakes the agent with the last.
func (m *manager) recall(ctx context.Context, a *agent.Agent, wake bool) (n int, err error) {
	for {
		m.mu.Lock()
		p := m.parentLocked(a)
		switch {
		case p.read || m.svc.cfg.NoNotices || m.agents.Sessions().Store() == nil:
			m.mu.Unlock()
			return 0, nil
		case p.reading == nil:
			p.reading = make(chan struct{})
			m.mu.Unlock()
			var n int
			err := contain(func() (err error) {
				n, err = m.reconcile(ctx, p, wake)
				return err
			})
			m.mu.Lock()
			close(p.reading)
			p.reading, p.read = nil, err == nil
			m.mu.Unlock()
			switch cause := context.Cause(ctx); {
			case err != nil && cause != nil:
				err = cause // exactly (seam CAN-12)
			case err != nil:
				err = fmt.Errorf("what the subagents of %s came to could not be read: %w", a.ID(), err)
			}
			return n, err
		}
		reading := p.reading
		m.mu.Unlock()
		select {
		case <-reading:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// reconcile sends a parent the settlements that its log has not taken.
func (m *manager) reconcile(ctx context.Context, p *parent, wake bool) (int, error) {
	s := p.agent.Session()
	owing, err := m.owing(ctx, s)
	if err != nil {
		return 0, err
	}
	wake = wake && !waitsForPerson(s)
	m.mu.Lock()
	var now []message.Message
	for i := range owing {
		note := owing[i].Message()
		if p.has(note.ID) {
			continue // this process has told it meanwhile
		}
		p.noteSent(note.ID)
		now = append(now, note)
	}
	m.mu.Unlock()
	for i, note := range now {
		m.sendNotice(p, note, wake && i == len(now)-1)
	}
	return len(now), nil
}

func (p *parent) owes(id message.ID) bool {
	for _, o := range p.owed {
		if o.note.ID == id {
			return true
		}
	}
	return false
}

// owing returns the settlements of a session's children that its log has neither taken
// nor in its inbox, in the order of the children. Of a child that cannot be read it is
// logged that it was passed over.
func (m *manager) owing(ctx context.Context, s *session.Session) ([]Settlement, error) {
	waiting := map[message.ID]bool{}
	for _, t := range inboxes {
		for _, q := range s.Inbox(t) {
			waiting[q.Message.ID] = true
		}
	}
	var list []Settlement
	w := &walk{ctx: ctx, store: m.agents.Sessions().Store()}
	var failed error
	err := w.records(session.Filter{Parent: s.ID(), Origin: session.OriginSubagent}, session.Page{Limit: storedPage}, func(recs []session.Record) bool {
		for i := range recs {
			child := recs[i].Header.ID
			missing := func(epoch int64) bool {
				id := session.SettlementID(child, epoch)
				return !waiting[id] && !s.Took(id)
			}
			if !mayOwe(&recs[i], missing) {
				continue
			}
			more, err := m.settlements(ctx, child, missing)
			switch {
			case errors.Is(err, session.ErrNotFound): // deleted meanwhile
			case unreadable(err):
				m.svc.fault("what a subagent came to cannot be read, and its parent is not told", err, "agent", string(child))
			case err != nil:
				failed = err
				return false
			}
			list = append(list, more...)
		}
		return true
	})
	return list, errors.Join(err, failed)
}

// mayOwe reports whether the log of a child has to be read for the epochs that are
// missing: its checkpoints tell, where there are any.
func mayOwe(rec *session.Record, missing func(epoch int64) bool) bool {
	if id, ok := projection.IdentityOf(rec); ok && id.Mode != session.ModeContinuable {
		return false
	}
	st, ok := projection.StateOf(rec)
	if !ok {
		return true
	}
	for epoch := int64(1); epoch <= st.Epoch; epoch++ {
		if missing(epoch) {
			return true
		}
	}
	return false
}

// unreadable tells a log that is damaged, or of another version, from one that could not
// be read this time.
func unreadable(err error) bool {
	if _, ok := asError[*session.CorruptError](err); ok {
		return true
	}
	_, ok := asError[*session.UnsupportedError](err)
	return ok
}

// settlements reads what epochs of a stored child came to from its log.
func (m *manager) settlements(ctx context.Context, child session.ID, want func(epoch int64) bool) ([]Settlement, error) {
	s, err := m.readOnly(ctx, child)
	if err != nil {
		return nil, err
	}
	label := ""
	if d := s.Descriptor(); d != nil && d.Descriptor.Label != nil {
		label = *d.Descriptor.Label
	}
	var list []Settlement
	var f epochFold
	for e := range s.Events(s.Header().SeedLength) {
		f.Apply(&e)
		p, ok := e.Payload().(*session.Settled)
		if !ok {
			continue
		}
		if want(p.Epoch) {
			set := Settlement{
				ID: session.SettlementID(child, p.Epoch), Child: child, Label: label, Epoch: p.Epoch, StopReason: StopReason(p.StopReason), at: e.Time,
				Unread: f.unread(),
			}
			if p.OutputSeq >= 0 {
				set.Output, _, _ = f.outcome.Output()
			}
			if end := f.outcome.End(); end != nil && end.Failure != nil {
				set.Failure = end.Failure.Code + ": " + end.Failure.Message
			}
			list = append(list, set)
		}
		f.begin()
	}
	return list, nil
}

// readOnly reads a stored session without opening it.
func (m *manager) readOnly(ctx context.Context, id session.ID) (s *session.Session, err error) {
	err = contain(func() error {
		rec, events, err := m.agents.Sessions().Store().Inspect(ctx, id)
		if err != nil {
			return err
		}
		s, err = m.agents.Sessions().Restore(rec, events)
		return err
	})
	return s, err
}
