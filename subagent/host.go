package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// Host is how people act on continuable children: a child is named by (parent id, child
// id), and the pair must be the child's durable parentage (amendment P07). The composition
// root mints it by naming one in Config.Host; nobody gets it from a Service, so that no
// tool, provider or peer can have it. The zero Host answers CodeContinuationUnavailable.
// It is safe for concurrent use.
type Host struct{ m atomic.Pointer[manager] }

func (h *Host) manager() (*manager, error) {
	m := h.m.Load()
	if m == nil {
		return nil, errorf(CodeContinuationUnavailable, "no subagent service is bound to this host")
	}
	return m, nil
}

// Send gives a child a message of a person: one turn of its own, as Service.Followup, but
// with the source user. The parent needs not be live and is not loaded; a live one owns
// the child as usual. Errors: as Followup.
func (h *Host) Send(ctx context.Context, parent, child session.ID, content []message.Block) (message.ID, error) {
	m, err := h.manager()
	if err != nil {
		return "", err
	}
	return m.deliver(ctx, delivery{parentID: parent, child: child, content: content, source: message.UserSource()})
}

// Interrupt stops the turn that a child is in, with the cause user. What waits in its
// inbox stays there in order, until something wakes it; nothing is disposed, and what is
// below it goes on (seam INT). When it returns, the stop is under way. A child that is not
// resident is no error. CodeUnauthorized: a resident child is another one's.
func (h *Host) Interrupt(parent, child session.ID) error {
	m, err := h.manager()
	if err != nil {
		return err
	}
	return m.interrupt(child, session.CauseUser, func(act *activation) error {
		if act.parent != parent {
			return errorf(CodeUnauthorized, "subagent %s is not a child of %s", child, parent)
		}
		return nil
	})
}

// Close ends a child, with all that is below it, and returns when it is released. What
// waits in their inboxes is discarded, also where they are not resident, so that nothing
// of them goes on when their tree is next opened; a service without projections passes
// over descendants that are not resident. Their logs stay. A descendant that cannot be
// opened ends the call. Errors: as Followup and ChildDrainer.Drain.
func (h *Host) Close(ctx context.Context, parent, child session.ID) error {
	m, err := h.manager()
	if err != nil {
		return err
	}
	if err := m.parentage(ctx, parent, child); err != nil {
		return err
	}
	if m.svc.cfg.Projections != nil {
		rows, err := m.svc.ListDescendants(ctx, child)
		if err != nil {
			return err
		}
		for _, row := range slices.Backward(rows) {
			if row.Kind == RowChild && row.Mode == session.ModeContinuable && !m.managed(row.ID) && mayBeDue(row.Summary().State) {
				if err := m.closeOne(ctx, row.Parent, row.ID); err != nil {
					return err
				}
			}
		}
	}
	return m.closeOne(ctx, parent, child)
}

// parentage refuses a pair that is not a child's durable parentage.
func (m *manager) parentage(ctx context.Context, parent, child session.ID) error {
	m.mu.Lock()
	act := m.entries[child]
	m.mu.Unlock()
	if act == nil {
		_, _, err := m.lookUp(ctx, child, parent)
		return err
	}
	if act.parent != parent {
		return errorf(CodeUnauthorized, "subagent %s is not a child of %s", child, parent)
	}
	return nil
}

// closeOne is Close for one child and what is resident below it.
func (m *manager) closeOne(ctx context.Context, parent, child session.ID) error {
	if !m.managed(child) {
		act, err := m.reopen(ctx, parent, child, func(s *session.Session) bool { return waits(s) > 0 || s.Epochs().Worked })
		if err != nil {
			return err
		}
		if act != nil {
			m.accepted(act) // its parent is told of the end
			m.mu.Lock()
			m.unholdLocked(act)
			begun := m.endLocked([]*activation{act}, nil, ending{cause: session.Cause{Kind: session.CauseUser}})
			m.openLocked(act)
			m.mu.Unlock()
			m.end(begun)
			return m.waitFor([]*activation{act})(ctx)
		}
	}
	return m.drainChildren(ctx, parent, session.CauseUser, child)
}

// Wait returns what the child's last epoch came to. One that is at work is waited for; so
// is one that an earlier process left with work that can run, which is opened for it. A
// child that was never settled and has nothing to do is CodeNotResumable. Errors: as
// Followup.
func (h *Host) Wait(ctx context.Context, parent, child session.ID) (Settlement, error) {
	m, err := h.manager()
	if err != nil {
		return Settlement{}, err
	}
	return m.wait(ctx, parent, child)
}

func (m *manager) wait(ctx context.Context, parent, child session.ID) (Settlement, error) {
	for {
		m.mu.Lock()
		act := m.entries[child]
		m.mu.Unlock()
		if act == nil {
			var err error
			if act, err = m.reopen(ctx, parent, child, due); err != nil {
				return Settlement{}, err
			}
			if act == nil {
				break
			}
			m.goOn(act, true)
		}
		if act.parent != parent {
			return Settlement{}, errorf(CodeUnauthorized, "subagent %s is not a child of %s", child, parent)
		}
		select {
		case <-m.released(act):
		case <-ctx.Done():
			return Settlement{}, context.Cause(ctx)
		}
	}
	if m.managed(child) {
		return m.wait(ctx, parent, child)
	}
	last := int64(0)
	list, err := m.settlements(ctx, child, func(epoch int64) bool { last = max(last, epoch); return true })
	if err != nil {
		return Settlement{}, notResumable(child, err)
	}
	if len(list) == 0 {
		return Settlement{}, errorf(CodeNotResumable, "subagent %s has done nothing yet", child)
	}
	return list[len(list)-1], nil
}

// Skipped is a child that could not be opened.
type Skipped struct {
	ID  session.ID
	Err error
}

// Recovered is what Recover found to do.
type Recovered struct {
	// Reopened are the children that go on, parents first.
	Reopened []session.ID
	// Notices is how many settlements the root was sent that its log had not taken.
	Notices int
	Skipped []Skipped
}

// Recover lets a tree go on that an earlier process left, whose root was opened just now:
// parents first, every continuable child whose epoch was cut is opened again in that
// epoch, and so is every other one with accepted work that can run; each runs what it had
// accepted. A child whose own children came to something that it has not taken is opened for
// that; so are those above a child that goes on, which own it then and hear what it comes to.
// What an interrupt or an import parked stays parked; one-shot children are
// never opened. The root is sent what its children came to and it has not taken, with a
// wake; what else waits in its own inbox is for the caller to wake (agent.Agent.Wake). A
// child that cannot be opened is skipped. An error says that the tree could not be read.
func (h *Host) Recover(ctx context.Context, root *agent.Agent) (Recovered, error) {
	var r Recovered
	m, err := h.manager()
	if err != nil {
		return r, err
	}
	if _, live := m.agents.Live(root); !live {
		return r, errorf(CodeUnauthorized, "recover: the root is not a live agent")
	}
	rows, err := m.svc.ListDescendants(ctx, root.ID())
	if err != nil {
		return r, err
	}
	plan, err := m.plan(ctx, rows, &r)
	if err != nil {
		return r, err
	}
	// All are held until the last is open: a parent must not settle before its children
	// are back.
	var opened []*activation
	goOn := func() {
		for _, act := range opened {
			m.goOn(act, plan[act.id] == planDue)
		}
	}
	for i := range rows {
		row := &rows[i]
		why := plan[row.ID]
		if why == "" {
			continue
		}
		so := due
		if why != planDue {
			so = nil
		}
		act, err := m.openStored(ctx, row.Parent, row.ID, so)
		switch {
		case context.Cause(ctx) != nil:
			goOn()
			return r, context.Cause(ctx)
		case err != nil:
			r.Skipped = append(r.Skipped, Skipped{row.ID, err})
		case act != nil:
			opened = append(opened, act)
			r.Reopened = append(r.Reopened, row.ID)
		}
	}
	r.Notices, err = m.recall(ctx, root, true)
	goOn()
	return r, err
}

// planned is why a child is opened when its tree goes on.
type planned string

const (
	// planDue: it has something to go on with.
	planDue planned = "due"
	// planOwed: children of its own came to something that its log has not taken.
	planOwed planned = "owed"
	// planAbove: it is above one that goes on, and is to hear what that comes to.
	planAbove planned = "above"
)

// plan decides which of the listed children are opened. What cannot be read is skipped.
func (m *manager) plan(ctx context.Context, rows []Row, r *Recovered) (map[session.ID]planned, error) {
	plan := map[session.ID]planned{}
	byID := map[session.ID]*Row{}
	parked := map[session.ID]bool{}
	for i := range rows {
		row := &rows[i]
		if row.Kind != RowChild || row.Mode != session.ModeContinuable || m.managed(row.ID) {
			continue
		}
		byID[row.ID] = row
		if !mayBeDue(row.Summary().State) && !row.HasChildren {
			continue
		}
		s, err := m.readOnly(ctx, row.ID)
		switch {
		case context.Cause(ctx) != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			r.Skipped = append(r.Skipped, Skipped{row.ID, notResumable(row.ID, err)})
			delete(byID, row.ID)
			continue
		}
		if parked[row.ID] = s.Parked(); parked[row.ID] {
			continue
		}
		if due(s) {
			plan[row.ID] = planDue
		} else if row.HasChildren && !m.svc.cfg.NoNotices {
			owing, err := m.owing(ctx, s)
			if err != nil {
				return nil, err
			}
			if newer(owing, s) {
				plan[row.ID] = planOwed
			}
		}
		if plan[row.ID] == "" {
			continue
		}
		for up := byID[row.Parent]; up != nil && plan[up.ID] == "" && !parked[up.ID]; up = byID[up.Parent] {
			plan[up.ID] = planAbove
		}
	}
	return plan, nil
}

// newer reports whether a child of s came to something after s itself had settled: what was
// there before, and was not taken, was discarded, and waits for the next wake.
func newer(owing []Settlement, s *session.Session) bool {
	e, ok := s.Event(s.Epochs().LastSeq)
	return slices.ContainsFunc(owing, func(o Settlement) bool { return !ok || o.at > e.Time })
}

// mayBeDue says what a checkpoint can tell of due.
func mayBeDue(st *projection.State) bool { return st == nil || st.Unsettled || st.Waking > 0 }

// due reports whether a stored child is to go on by itself: a crash cut its epoch, or
// accepted work waits that nobody parked.
func due(s *session.Session) bool {
	if s.Parked() {
		return false
	}
	return s.Epochs().Worked || waits(s) > 0 && !stopped(s)
}

// waits counts what waits in an inbox and was sent to wake.
func waits(s *session.Session) (n int) {
	for _, t := range inboxes {
		for _, q := range s.Inbox(t) {
			if q.Wake {
				n++
			}
		}
	}
	return n
}

// reopen makes a stored child resident if what its log says is so; it is held then.
func (m *manager) reopen(ctx context.Context, parent, child session.ID, so func(*session.Session) bool) (*activation, error) {
	h, tree, err := m.lookUp(ctx, child, parent)
	if err != nil {
		return nil, err
	}
	s, err := m.readOnly(ctx, child)
	if err != nil {
		return nil, notResumable(child, err)
	}
	if !so(s) {
		return nil, nil
	}
	return m.openFrom(ctx, &h, tree, so)
}

// openStored is open by ids; so is as there.
func (m *manager) openStored(ctx context.Context, parent, child session.ID, so func(*session.Session) bool) (*activation, error) {
	h, tree, err := m.lookUp(ctx, child, parent)
	if err != nil {
		return nil, err
	}
	return m.openFrom(ctx, &h, tree, so)
}

func (m *manager) openFrom(ctx context.Context, h *session.Header, tree session.ID, so func(*session.Session) bool) (*activation, error) {
	parent := h.ParentSession
	for {
		m.mu.Lock()
		above := m.entries[parent]
		m.mu.Unlock()
		d := delivery{parentID: parent}
		p, live := m.agents.Get(parent)
		if !live {
			p = nil
		}
		act, err := m.open(ctx, h, tree, p, m.pathOf(&d), so)
		if errors.Is(err, errNotDue) {
			return nil, nil
		}
		if !errors.Is(err, ErrActivationClosing) {
			return act, err
		}
		// Its parent may be settling: when it is gone, the child comes back without it.
		if above == nil || !m.settling(above) {
			return nil, err
		}
		select {
		case <-m.released(above):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// settling reports whether the end of an Activation has begun. One that somebody still
// delivers to does not count: that may be the caller, who must not wait for it.
func (m *manager) settling(act *activation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return act.handle != nil && act.holds == 0 && (m.resident[act.key] != act || m.graph.Closing(act.key))
}

// errNotDue says that somebody else has dealt with a child since its log was read.
var errNotDue = errors.New("nothing is to be done any more")

// goOn lets a child that was opened again run what it has accepted, behind what its own
// children came to and it has not taken. owes says that somebody waits for it: whoever got
// the ids that an earlier process gave out. Otherwise it has an epoch only if it hears of
// something.
func (m *manager) goOn(act *activation, owes bool) {
	wake := !stopped(act.agent.Session())
	n, err := m.recall(m.svc.ctx, act.agent, wake)
	if err != nil {
		m.svc.fault("what the subagents of a resumed agent came to could not be read", err, "agent", string(act.id))
	}
	if owes || n > 0 {
		m.accepted(act)
	}
	if wake {
		act.agent.Wake()
	}
	m.mu.Lock()
	m.openLocked(act)
	m.mu.Unlock()
	m.unhold(act)
}

// Settled returns when no continuable child below the root of a tree is resident, or with
// the cause of ctx's end. Children that begin meanwhile are waited for.
func (h *Host) Settled(ctx context.Context, root session.ID) error {
	m, err := h.manager()
	if err != nil {
		return err
	}
	for {
		m.mu.Lock()
		n, moved := m.trees[root], m.moved
		m.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Interrupter lets an agent stop the current turn of a continuable child below it. It
// overrides the seam's rule that nobody stops a child's turn from outside, so it stands on
// a type of its own, which a deployment may leave out (amendment P11).
type Interrupter struct{ m *manager }

// NewInterrupter returns the interrupter of a service.
func NewInterrupter(s *Service) *Interrupter { return &Interrupter{s.m} }

// Interrupt is Host.Interrupt for the exact live agent that is an ancestor of the target,
// at any depth, with the cause parent (seam INT-07…12). Who calls is checked before the
// target is looked at; a target that is unknown, settled or a one-shot child is no error.
// Errors: CodeUnauthorized.
func (i *Interrupter) Interrupt(caller *agent.Agent, target session.ID) error {
	m := i.m
	if caller == nil {
		return errorf(CodeUnauthorized, "interrupt %s: a calling agent is required", target)
	}
	if _, live := m.agents.Live(caller); !live {
		return errorf(CodeUnauthorized, "interrupt %s: the caller is not the live agent of its id", target)
	}
	if caller.ID() == target {
		return errorf(CodeUnauthorized, "interrupt %s: an agent cannot interrupt itself", target)
	}
	k := keyOf(caller)
	return m.interrupt(target, session.CauseParent, func(act *activation) error {
		if !m.graph.Descends(act.key, k) {
			return errorf(CodeUnauthorized, "subagent %s is not below %s", target, caller.ID())
		}
		return nil
	})
}

// interrupt stops the turn of a resident child, if allowed, which is asked under the
// manager's lock, says so.
func (m *manager) interrupt(target session.ID, cause session.CauseKind, allowed func(*activation) error) error {
	m.mu.Lock()
	act := m.entries[target]
	if act == nil || act.handle == nil {
		m.mu.Unlock()
		return nil
	}
	err := allowed(act)
	closing := m.graph.Closing(act.key)
	m.mu.Unlock()
	if err != nil || closing {
		return err
	}
	if err := act.agent.Cancel(session.Cause{Kind: cause}, true); err != nil {
		return fmt.Errorf("interrupt %s: %w", target, err)
	}
	return nil
}
