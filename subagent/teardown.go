package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// ending is how Activations end.
type ending struct {
	// keep leaves what waits in the inbox where it is: a settlement, and the end of the
	// process. Otherwise it is discarded.
	keep bool
	// process is the end of the process: nobody is told any more, and what was accepted
	// and not run stays part of the epoch.
	process bool
	// quiet tells the parent without waking it: nothing is to begin there.
	quiet bool
	// alone leaves what is below agents in between as it is: a settlement.
	alone bool
	cause session.Cause
}

// endLocked begins the disposal of Activations, ancestors first, and returns those for
// which this call began it; all that converge on one share its completion (seam DSP-03).
// making are entries that are not resident yet: they are given up, and waited for. end
// must follow without the lock.
func (m *manager) endLocked(acts, making []*activation, e ending) (begun []*activation) {
	switch {
	case e.cause.Kind != "":
	case e.process:
		// Nobody stopped it: what waits is not parked (design § 4).
		e.cause = session.Cause{Kind: session.CauseDisposed}
	default:
		e.cause = session.Cause{Kind: session.CauseParent}
	}
	// Those whose end began earlier know already what they wait for: nothing was let in
	// below them since.
	fresh := make(map[key]*activation, len(acts))
	end := m.graph.Seal
	if e.alone {
		end = m.graph.Close
	}
	for _, act := range acts {
		if end(act.key) {
			fresh[act.key] = act
			act.ending = &e
			begun = append(begun, act)
			m.running.Add(1)
		}
	}
	wait := func(act *activation, path []key) {
		for _, k := range path {
			if above := fresh[k]; above != nil {
				above.waits = append(above.waits, act)
				return
			}
		}
	}
	if len(acts) > 1 {
		for _, act := range acts {
			path, _ := m.graph.Path(act.key)
			wait(act, path)
		}
	}
	for _, act := range making {
		wait(act, act.path)
		if act.givenUp == nil {
			act.givenUp = e.why(act.id)
		}
		if act.abort != nil {
			act.abort(act.givenUp)
		}
	}
	return begun
}

// why is the error of whoever is making a child that is given up.
func (e *ending) why(id session.ID) error {
	switch {
	case e.process:
		return errOver
	case e.quiet:
		return errDrained
	}
	return errorf(CodeActivationClosing, "subagent %s is being closed", id)
}

// belowLocked adds to Activations what is below them, resident or in the making.
func (m *manager) belowLocked(acts []*activation) (all, making []*activation) {
	if len(acts) == 0 {
		return nil, nil
	}
	keys := make([]key, len(acts))
	for i, act := range acts {
		keys[i] = act.key
	}
	all = acts
	for _, k := range m.graph.Below(keys...) {
		if act := m.resident[k]; act.handle != nil && !slices.Contains(acts, act) {
			all = append(all, act)
		}
	}
	for _, act := range m.entries {
		if act.handle == nil && m.graph.Under(act.path, keys...) {
			making = append(making, act)
		}
	}
	return all, making
}

// end goes on behind endLocked: the stop goes down the whole tree before anybody waits
// (seam TEAR-01, SCOPE-04, SCOPE-05), then all end at once, children first.
func (m *manager) end(begun []*activation) {
	for _, act := range begun {
		if err := act.agent.Seal(act.ending.cause, act.ending.keep); err != nil {
			m.svc.fault("a subagent could not be cancelled", err, "agent", string(act.id))
		}
	}
	for _, act := range begun {
		go m.complete(act)
	}
}

// complete ends one Activation. drainAll joins it.
func (m *manager) complete(act *activation) {
	defer m.running.Done()
	var errs []error
	m.mu.Lock()
	waits := act.waits
	m.mu.Unlock()
	for _, w := range waits {
		<-m.released(w)
		if w.err != nil {
			errs = append(errs, w.err)
		}
	}
	told := m.settleHolds(act)
	if err := act.agent.WhenIdle(m.svc.ctx); err != nil {
		errs = append(errs, err)
	}
	e := act.ending
	if !e.keep {
		// What the cancelled turn still put into the inbox.
		if err := act.agent.Cancel(e.cause, false); err != nil {
			errs = append(errs, err)
		}
	}
	var done epochEnd
	if err := contain(func() error { done = m.conclude(act, told); return nil }); err != nil {
		// Nobody knows what it came to (seam TEAR-08).
		done = epochEnd{epoch: act.epoch, reason: StopError, failure: err.Error(), seq: -1}
		errs = append(errs, fmt.Errorf("what the epoch came to: %w", err))
	}
	if act.fresh && !told {
		// The child never came to be (seam RB-19).
		if act.left = act.agent.Session().Withdraw(m.svc.ctx); act.left != nil {
			errs = append(errs, act.left)
		}
	}
	if _, err := act.setup.release(); err != nil {
		errs = append(errs, err)
	}
	if err := m.dispose(act, e.keep); unsaved(err) {
		// As with the flush before, nothing depends on it (seam TEAR-07).
		m.svc.fault("the end of a subagent could not be stored", err, "agent", string(act.id))
	} else if err != nil {
		errs = append(errs, err)
	}
	if errs != nil {
		act.err = &Error{Code: CodeActivationTeardownFailed, Msg: fmt.Sprintf("closing subagent %s", act.id), Err: errors.Join(errs...)}
	}
	if told {
		// The disposal has flushed once more.
		done.settled = done.settled || done.seq >= 0 && act.agent.Session().Durable() > done.seq
		m.tellParent(act, &done)
	}
	above := m.release(act)
	m.tellEnd(act, &done)
	// Only now may another epoch of the child begin: its start is told behind this end.
	m.mu.Lock()
	m.delistLocked(act)
	m.releasedLocked(act)
	m.mu.Unlock()
	if above != nil {
		m.ask(above)
	}
	if act.err != nil && e.keep && !e.process {
		// Nobody waits for an ordinary settlement (seam SET-13).
		m.svc.fault("the end of a subagent failed", act.err, "agent", string(act.id))
	}
}

// unsaved reports whether all that is wrong is that events could not be stored.
func unsaved(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each level is looked at
	case *session.UnsavedError:
		return true
	case interface{ Unwrap() error }:
		return unsaved(e.Unwrap())
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(part error) bool { return !unsaved(part) })
	}
	return false
}

func (m *manager) dispose(act *activation, keep bool) error {
	if keep {
		return act.handle.Release(m.svc.ctx)
	}
	return act.handle.Dispose(m.svc.ctx)
}

// settleHolds waits until no delivery is under way, which a closed admission makes sure
// is soon, and reports whether anybody has an id of this epoch.
func (m *manager) settleHolds(act *activation) (told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for act.holds > 0 {
		m.awaitHoldsLocked(act)
	}
	return act.told
}

// awaitHoldsLocked lets go of the lock until no delivery is under way.
func (m *manager) awaitHoldsLocked(act *activation) {
	if act.unheld == nil {
		act.unheld = make(chan struct{})
	}
	unheld := act.unheld
	m.mu.Unlock()
	<-unheld
	m.mu.Lock()
}

// release takes a disposed Activation out of the graph, whatever went wrong on the way
// (seam OWN-05, OWN-06), and returns its owner if that may settle now.
func (m *manager) release(act *activation) (above *activation) {
	m.mu.Lock()
	delete(m.resident, act.key)
	owner, _, emptied, err := m.graph.Release(act.key)
	if emptied {
		above = m.resident[owner]
	}
	m.mu.Unlock()
	if err != nil {
		m.svc.fault("a subagent was released before what it owns", err, "agent", string(act.id))
	}
	return above
}

// tellEnd closes the pair of lifecycle edges, for those that were told of the start.
func (m *manager) tellEnd(act *activation, done *epochEnd) {
	if act.hooks == nil {
		return
	}
	if act.err != nil {
		// The log keeps what the epoch came to; the edge tells the fault (amendment P34).
		m.svc.tellEnded(act.edge(), act.hooks, Result{}, act.err)
		return
	}
	m.svc.tellEnded(act.edge(), act.hooks, Result{Output: done.output, StopReason: done.reason}, nil)
}

// rollback ends a held Activation that nothing was accepted for. One that somebody else
// has given work meanwhile goes on with that. What goes wrong on the way does not hide why
// it is rolled back (seam RB-17); left says that something of a child that never came to
// be may be stored.
func (m *manager) rollback(act *activation) (left error) {
	m.mu.Lock()
	m.unholdLocked(act)
	for act.holds > 0 && !m.graph.Closing(act.key) {
		m.awaitHoldsLocked(act)
	}
	if act.open && act.told && !m.graph.Closing(act.key) {
		m.mu.Unlock()
		m.ask(act)
		return nil
	}
	// A resumed child keeps what waits in its log: only the resume is taken back.
	all, making := m.belowLocked([]*activation{act})
	begun := m.endLocked(all, making, ending{keep: !act.fresh})
	m.openLocked(act)
	m.mu.Unlock()
	m.end(begun)
	<-m.released(act)
	if act.err != nil {
		m.svc.fault("taking back a subagent failed", act.err, "agent", string(act.id))
	}
	return act.left
}

// cut begins the end of what is below the roots, or of everything without any. The
// returned function waits for it.
func (m *manager) cut(e ending, roots ...*agent.Agent) (wait func(context.Context) error) {
	m.mu.Lock()
	keys := make([]key, 0, len(roots))
	for _, r := range roots {
		k := keyOf(r)
		keys = append(keys, k)
		// Whoever is still live tells the hook that takes it back.
		if _, live := m.agents.Live(r); live {
			m.graph.Shut(k)
		}
	}
	if len(roots) == 0 {
		m.over = true
		m.graph.ShutAll()
	}
	var acts, making, all []*activation
	for _, k := range m.graph.Below(keys...) {
		if act := m.resident[k]; act.handle != nil {
			acts = append(acts, act)
		}
	}
	for _, act := range m.entries {
		if act.handle == nil && act.abort != nil && (len(roots) == 0 || m.graph.Under(act.path, keys...)) {
			making = append(making, act)
		}
	}
	begun := m.endLocked(acts, making, e)
	all = append(acts, making...)
	m.mu.Unlock()
	m.end(begun)
	return m.waitFor(all)
}

// waitFor returns what waits until all of them are released, and tells what failed, after
// every branch has ended (seam TEAR-03, DRAIN-06).
func (m *manager) waitFor(all []*activation) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, act := range all {
			released := m.released(act)
			select {
			case <-released:
			default:
				select {
				case <-released:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
		}
		var errs []error
		for _, act := range all {
			if act.err != nil {
				errs = append(errs, act.err)
			}
		}
		if errs == nil {
			return nil
		}
		return &Error{Code: CodeActivationTeardownFailed, Msg: "closing subagents", Err: errors.Join(errs...)}
	}
}

// DrainDescendants ends every continuable child below the given agents, which stay: no
// continuable child begins below them and none takes a message or reports any more, until
// that exact agent has left the registry (seam SCOPE). When it returns, admission is
// closed and all of them are cancelled, ancestors first; hooks may call it. What waits in
// their inboxes is discarded. Agents that are not live are passed over.
//
// The returned function waits until they are released, children first, or for the end of
// its ctx, which stops nothing. Its error is CodeActivationTeardownFailed with whatever
// failed; every one of them is released then all the same.
func (s *Service) DrainDescendants(roots ...*agent.Agent) (wait func(context.Context) error) {
	var live []*agent.Agent
	for _, r := range roots {
		if _, ok := s.cfg.Agents.Live(r); ok {
			live = append(live, r)
		}
	}
	if live == nil {
		return s.m.waitFor(nil)
	}
	for _, r := range live {
		k := keyOf(r)
		r.AddHooks(agent.Hooks{Disposed: func(*agent.Agent) {
			s.m.mu.Lock()
			defer s.m.mu.Unlock()
			s.m.graph.Reopen(k)
		}})
	}
	wait = s.m.cut(ending{quiet: true}, live...)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, r := range live {
		if _, ok := s.cfg.Agents.Live(r); !ok {
			s.m.graph.Reopen(keyOf(r)) // it left before the hook was there
		}
	}
	return wait
}

// drain ends everything, at the end of the process, and returns when nothing of it runs.
func (m *manager) drain() error {
	// No interrupt of anybody: what waits is not parked by it.
	err := m.cut(ending{keep: true, process: true, cause: session.Cause{Kind: session.CauseDisposed}})(m.svc.ctx)
	m.running.Wait()
	return err
}

// ChildDrainer releases selected children before they settle by themselves. It overrides
// the seam's rule that nobody ends a child from outside, so it stands on a type of its
// own, which a deployment may leave out (amendment P11).
type ChildDrainer struct{ m *manager }

// NewChildDrainer returns the drainer of a service.
func NewChildDrainer(s *Service) *ChildDrainer { return &ChildDrainer{s.m} }

// Drain ends the named children of parent, with all that is below them, and returns when
// they are released. What waits in their inboxes is discarded; their logs stay, and a
// later Followup resumes them. Ids that are not resident are passed over, admission
// stays open, siblings are not touched (seam SEL). ctx bounds the wait alone.
//
// Errors: CodeUnauthorized, with nothing touched, if parent is not a live agent or one of
// them is another agent's child; CodeActivationTeardownFailed.
func (d *ChildDrainer) Drain(ctx context.Context, parent *agent.Agent, children ...session.ID) error {
	if _, live := d.m.agents.Live(parent); !live {
		return errorf(CodeUnauthorized, "drain subagents: the parent is not a live agent")
	}
	return d.m.drainChildren(ctx, parent.ID(), session.CauseParent, children...)
}

func (m *manager) drainChildren(ctx context.Context, parent session.ID, cause session.CauseKind, children ...session.ID) error {
	m.mu.Lock()
	var acts, making []*activation
	for _, id := range children {
		act := m.entries[id]
		switch {
		case act == nil || slices.Contains(acts, act) || slices.Contains(making, act):
		case act.parent != parent:
			m.mu.Unlock()
			return errorf(CodeUnauthorized, "subagent %s is not a child of %s", id, parent)
		case act.handle == nil:
			making = append(making, act)
		default:
			acts = append(acts, act)
		}
	}
	acts, below := m.belowLocked(acts)
	making = append(making, below...)
	begun := m.endLocked(acts, making, ending{cause: session.Cause{Kind: cause}})
	m.mu.Unlock()
	m.end(begun)
	return m.waitFor(append(acts, making...))(ctx)
}
