package subagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"weak"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/internal/owners"
)

// manager holds the Activations of continuable children: one residency each, from the
// moment when a child is made or resumed until its agent is disposed. It is the service's
// own; providers, tools and children never see it.
//
// A waiting child costs no goroutine. Whatever may change what a child is doing ends in
// ask, the one gate at which residency is derived and settlement decided.
type manager struct {
	svc    *Service
	agents *agent.Registry

	running sync.WaitGroup // goroutines that end Activations

	mu       sync.Mutex // guards following; an agent's or a log's lock may be taken below it
	graph    owners.Graph[key]
	entries  map[session.ID]*activation // those that are made, resident, or being disposed
	resident map[key]*activation        // those of them that have an agent in the graph
	children map[session.ID]int         // how many entries each session is the parent of
	trees    map[session.ID]int         // and the root of
	parents  map[key]*parent
	held     map[key]bool  // agents whose turns stay open, see Service.Hold
	moved    chan struct{} // closed and replaced whenever an entry leaves, and by stir
	over     bool          // admission is closed for good

	// What every child's agent has, and every one that has children. They are constant.
	childHooks, parentHooks agent.Hooks
}

// key stands for an exact agent and does not keep it alive (seam OWN-09, GO-03, GO-04).
type key = weak.Pointer[agent.Agent]

func keyOf(a *agent.Agent) key { return weak.Make(a) }

func newManager(s *Service) *manager {
	m := &manager{
		svc: s, agents: s.cfg.Agents, entries: map[session.ID]*activation{}, resident: map[key]*activation{},
		children: map[session.ID]int{}, trees: map[session.ID]int{}, parents: map[key]*parent{}, held: map[key]bool{}, moved: make(chan struct{}),
	}
	// Whoever else disposes the agent ends the Activation with it.
	m.childHooks = agent.Hooks{Failed: m.failed, Disposed: m.lost, Rest: m.rested}
	m.parentHooks = agent.Hooks{
		Inbox: m.inboxMoved, TurnOpen: m.remind, Status: m.idled, Disposed: m.parentGone,
		TurnStopping: func(_ context.Context, a *agent.Agent, _ session.EndKind) { m.lookAgain(a) },
	}
	return m
}

// activation is one residency of a continuable child. There may be many thousands that
// wait: what few of them need for a moment is made then.
type activation struct {
	id     session.ID
	parent session.ID // its durable direct parent
	tree   session.ID // the root of its tree

	// Set before it is open, and constant then.
	agent           *agent.Agent
	handle          *agent.Handle
	key             key
	runID           string
	provider, label string
	delegator       *agent.Agent // its parent, or nil where that was not live
	epoch           int64
	hooks           []*hookEntry // who was told of the start
	setup           *setupBatch  // nil where nothing was installed

	// What the epoch comes to; guarded by the log's lock, see with.
	fold epochFold
	with func(func())

	// Guarded by the manager's lock.
	failure error                   // why a turn failed
	path    []key                   // whom it is made below
	abort   context.CancelCauseFunc // ends the step of the making that is under way
	givenUp error                   // why it is not to be made any more
	holds   int                     // deliveries under way: it does not settle meanwhile
	waiter  *Awaited
	ending  *ending       // nil before its end
	waits   []*activation // released before it
	opened  chan struct{} // closed when it is open; these three are nil until somebody waits
	unheld  chan struct{} // closed when holds gets 0
	gone    chan struct{} // closed when it is released
	entered bool          // it is in the graph
	open    bool          // it takes messages, or will not come to be
	told    bool          // somebody has an id of this epoch: its end is told
	over    bool          // it is released

	fresh bool // constant: its session is new, and until it has accepted something nothing of it is stored

	err  error // of its disposal; final when it is released
	left error // why something of a child that never came to be may be stored; likewise
}

// edge opens the pair of lifecycle edges.
func (act *activation) edge() StartEdge {
	return StartEdge{
		RunID: act.runID, Provider: act.provider, ID: act.id, Local: true, Parent: act.delegator, Label: act.label, Epoch: act.epoch,
	}
}

// released returns what is closed when an Activation is released.
func (m *manager) released(act *activation) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return act.releasedLocked()
}

func (act *activation) releasedLocked() <-chan struct{} {
	if act.gone == nil {
		act.gone = make(chan struct{})
		if act.over {
			close(act.gone)
		}
	}
	return act.gone
}

var (
	errOver    = errorf(CodeDraining, "the subagent service is closing")
	errDrained = errorf(CodeDraining, "nothing may begin below this agent any more: its subagents are being drained")
)

// refusalLocked turns what the graph says into an error of the seam.
func (m *manager) refusalLocked(id session.ID, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, owners.ErrDraining) && m.over:
		return errOver
	case errors.Is(err, owners.ErrDraining):
		return errDrained
	case errors.Is(err, owners.ErrClosing):
		return errorf(CodeActivationClosing, "subagent %s, or the one that would own it, is being closed", id)
	}
	return &Error{Code: CodeOwnershipConflict, Msg: fmt.Sprintf("subagent %s", id), Err: err}
}

// shut refuses whatever would begin from now on.
func (m *manager) shut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	m.graph.ShutAll()
	m.stirLocked()
}

func (m *manager) closed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// known reports whether a session of that id is live here or in the making.
func (m *manager) known(id session.ID) bool {
	m.mu.Lock()
	_, entry := m.entries[id]
	m.mu.Unlock()
	if entry {
		return true
	}
	if _, live := m.agents.Get(id); live {
		return true
	}
	_, live := m.agents.Sessions().Get(id)
	return live
}

// path returns whom a child of a is below, nearest first, as far as they are live
// (seam OWN-10).
func (m *manager) path(a *agent.Agent) []key {
	var path []key
	seen := map[session.ID]bool{}
	for a != nil && !seen[a.ID()] {
		seen[a.ID()] = true
		path = append(path, keyOf(a))
		a, _ = m.agents.Get(a.Session().Header().ParentSession)
	}
	return path
}

// reserve claims the id of a new child, which no delivery finds before it is ready.
func (m *manager) reserve(id session.ID, parent *agent.Agent) (*activation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return nil, errOver
	}
	if m.entries[id] != nil {
		return nil, errDuplicate(id)
	}
	return m.enlistLocked(id, parent.ID(), parent.Session().Root())
}

func (m *manager) enlistLocked(id, parent, tree session.ID) (*activation, error) {
	if most := m.svc.cfg.MaxChildren; most > 0 {
		if n := m.children[parent] + m.svc.runs(parent); n >= most {
			return nil, errorf(CodeLimitReached, "limit reached: agent %s has %d subagents at work, the most that it may have at once", parent, n)
		}
	}
	act := &activation{id: id, parent: parent, tree: tree}
	m.entries[id] = act
	m.children[parent]++
	m.trees[tree]++
	return act, nil
}

// forget takes back an entry that did not become resident.
func (m *manager) forget(act *activation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delistLocked(act)
	m.releasedLocked(act)
}

// openLocked lets messages in: what the Activation was made for is in its inbox, so that
// nothing comes before it, or it has come to nothing.
func (m *manager) openLocked(act *activation) {
	act.open = true
	if act.opened != nil {
		close(act.opened)
		act.opened = nil
	}
}

// delistLocked lets a new Activation of the same id begin.
func (m *manager) delistLocked(act *activation) {
	delete(m.entries, act.id)
	if m.children[act.parent]--; m.children[act.parent] == 0 {
		delete(m.children, act.parent)
	}
}

func (m *manager) releasedLocked(act *activation) {
	m.openLocked(act)
	if m.trees[act.tree]--; m.trees[act.tree] == 0 {
		delete(m.trees, act.tree)
	}
	act.over = true
	if act.gone != nil {
		close(act.gone)
	}
	m.stirLocked()
}

// making admits a step of the making of an entry, which a drain ends: ctx has its cause
// then. done must be called when the step is over.
func (m *manager) making(ctx context.Context, act *activation, path []key) (_ context.Context, done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if act.givenUp != nil {
		return nil, nil, act.givenUp
	}
	if err := m.refusalLocked(act.id, m.graph.Admits(path)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	act.path, act.abort = path, cancel
	return ctx, func() { cancel(nil) }, nil
}

// birth is how an Activation comes to be.
type birth struct {
	parent          *agent.Agent // nil where it is not live
	provider, label string
	path            []key
	above           []string // ids of those above it, outermost first
	fresh           bool
	// compose makes the child what it is, create publishes it: agent.Registry.Create or
	// Resume.
	compose func(ctx context.Context, a *agent.Agent) error
	create  func(ctx context.Context, setup func(context.Context, *agent.Agent) error, commit func() error) (*agent.Handle, error)
}

// bear makes an entry resident and tells the start of its epoch. It is held then: whoever
// made it submits what it is to do, or rolls it back. On error the entry is forgotten,
// and nothing of the child is left.
func (m *manager) bear(ctx context.Context, act *activation, b *birth) error {
	ctx, done, err := m.making(ctx, act, b.path)
	if err != nil {
		m.forget(act)
		return err
	}
	defer done()
	act.fresh = b.fresh
	setup := func(ctx context.Context, a *agent.Agent) error { return m.compose(ctx, act, a, b.compose) }
	commit := func() error {
		if err := act.setup.commit(); err != nil {
			return err
		}
		// Owned before it can run (seam OWN-02, CONT-20).
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.refusalLocked(act.id, m.graph.Enter(act.key, b.path)); err != nil {
			return err
		}
		act.entered = true
		m.resident[act.key] = act
		return nil
	}
	h, err := b.create(ctx, setup, commit)
	if err != nil {
		m.unmake(act)
		// Whatever the end of ctx made of what was under way (seam CAN-13).
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	act.runID, act.provider, act.label, act.delegator = uuid.NewString(), b.provider, b.label, b.parent
	act.epoch = h.Agent().Session().Epochs().Settled + 1
	m.mu.Lock()
	act.handle = h
	act.holds = 1
	act.abort = nil
	err = context.Cause(ctx)
	if err == nil {
		err = m.refusalLocked(act.id, m.graph.Admits(b.path))
	}
	m.mu.Unlock()
	if err != nil {
		if left := m.rollback(act); left != nil {
			err = fmt.Errorf("%w; %v", err, left) //nolint:errorlint // said, but not what the caller is to go by
		}
		return err
	}
	m.tellStart(act)
	return nil
}

// compose makes an unpublished agent the child of an entry.
func (m *manager) compose(ctx context.Context, act *activation, a *agent.Agent, base func(context.Context, *agent.Agent) error) error {
	act.agent, act.key = a, keyOf(a)
	if err := base(ctx, a); err != nil {
		return err
	}
	var err error
	if act.setup, err = m.svc.setups.apply(ctx, a, m.svc.fault); err != nil {
		return err
	}
	if act.setup != nil {
		// If the creation fails, the agent's own teardown is what releases them.
		a.OnDispose(func() {
			if first, err := act.setup.release(); first && err != nil {
				m.svc.fault("releasing the setup of a subagent failed", err, "agent", string(act.id))
			}
		})
	}
	s := a.Session()
	if act.fold, err = foldEpoch(ctx, s); err != nil {
		return err
	}
	act.with, _ = s.Watch(&act.fold)
	a.ShareHooks(&m.childHooks)
	return nil
}

// failed keeps why the last turn of a child's agent failed.
func (m *manager) failed(a *agent.Agent, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if act := m.resident[keyOf(a)]; act != nil {
		act.failure = err
	}
}

// unmake forgets an entry whose agent did not come to be.
func (m *manager) unmake(act *activation) {
	m.mu.Lock()
	var owner key
	var err error
	emptied := false
	if act.entered {
		delete(m.resident, act.key)
		m.graph.Close(act.key)
		owner, _, emptied, err = m.graph.Release(act.key)
	}
	m.delistLocked(act)
	m.releasedLocked(act)
	above := m.resident[owner]
	m.mu.Unlock()
	if err != nil {
		m.svc.fault("a subagent that was not made owns children", err, "agent", string(act.id))
	}
	if emptied && above != nil {
		m.ask(above)
	}
}

// tellStart opens the pair of lifecycle edges, before anything is submitted (seam EVT-19).
func (m *manager) tellStart(act *activation) {
	act.hooks = m.svc.listeners()
	for _, e := range act.hooks {
		if e.hooks.Started != nil && e.concerns(act.delegator) {
			m.svc.tell("subagent/start", func() { e.hooks.Started(act.edge()) })
		}
	}
}

// submit gives a new Activation what it was made for, and takes it back if that is
// refused. path is asked under the manager's lock.
func (m *manager) submit(ctx context.Context, act *activation, parent *agent.Agent, path func() []key, msg message.Message) error {
	m.mu.Lock()
	acc, err := m.beginLocked(ctx, act, parent, path(), msg)
	if err == nil {
		m.openLocked(act)
	}
	m.mu.Unlock()
	if err == nil {
		if err = acc.Finish(ctx); err == nil {
			m.accepted(act)
			m.unhold(act)
			return nil
		}
		err = m.refused(act, err)
	}
	if left := m.rollback(act); left != nil {
		// seam RB-17, RB-19
		err = fmt.Errorf("%w; %v", err, left) //nolint:errorlint // said, but not what the caller is to go by
	}
	return err
}

// beginLocked is the last look before a message is in the inbox: between it and that
// nothing happens (seam FUP-25). It does not hold the Activation.
func (m *manager) beginLocked(ctx context.Context, act *activation, parent *agent.Agent, path []key, msg message.Message) (*agent.Acceptance, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if parent != nil {
		if err := m.authorizedLocked(act, parent); err != nil {
			return nil, err
		}
	}
	// A drain is the reason that counts, also where it has begun to end the child already
	// (seam RB-15, SCOPE-12).
	below := path
	if below == nil {
		below, _ = m.graph.Path(act.key)
	}
	if err := m.refusalLocked(act.id, m.graph.Admits(below)); errors.Is(err, ErrDraining) {
		return nil, err
	}
	if err := m.refusalLocked(act.id, m.graph.Deliver(act.key, path)); err != nil {
		return nil, err
	}
	acc, err := act.agent.Begin(msg, session.NextTurn, true)
	if errors.Is(err, agent.ErrDisposed) {
		return nil, &Error{Code: CodeActivationClosing, Msg: fmt.Sprintf("subagent %s is being closed", act.id), Err: err}
	}
	return acc, err
}

// authorizedLocked refuses who is not the exact live direct parent (seam AUTH-01…05).
func (m *manager) authorizedLocked(act *activation, parent *agent.Agent) error {
	if _, live := m.agents.Live(parent); !live {
		return errorf(CodeUnauthorized, "subagent %s takes work from its live parent alone, and %s is not the live agent of that id", act.id, parent.ID())
	}
	if act.parent != parent.ID() {
		return errorf(CodeUnauthorized, "subagent %s is not a child of %s", act.id, parent.ID())
	}
	return nil
}

// accepted notes that somebody has got an id of the epoch.
func (m *manager) accepted(act *activation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	act.told = true
}

// refused says why a message that was in the inbox already is not accepted.
func (m *manager) refused(act *activation, err error) error {
	if !errors.Is(err, agent.ErrDisposed) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over || errors.Is(m.graph.Admits(act.path), owners.ErrDraining) {
		return &Error{Code: CodeDraining, Msg: fmt.Sprintf("subagent %s was drained before it had accepted the message", act.id), Err: err}
	}
	return &Error{Code: CodeActivationClosing, Msg: fmt.Sprintf("subagent %s was closed before it had accepted the message", act.id), Err: err}
}

// unhold ends a delivery.
func (m *manager) unhold(act *activation) {
	m.mu.Lock()
	m.unholdLocked(act)
	m.mu.Unlock()
	m.ask(act)
}

func (m *manager) unholdLocked(act *activation) {
	if act.holds--; act.holds == 0 && act.unheld != nil {
		close(act.unheld)
		act.unheld = nil
	}
}

// ask is the gate: it derives what an Activation is doing, and opens its settlement if
// it is doing nothing and owns nothing (seam SET-01, SET-08). Whatever may have been the
// last thing that kept one resident calls it; asking too often costs nothing.
func (m *manager) ask(act *activation) {
	m.mu.Lock()
	begun := m.askLocked(act)
	m.mu.Unlock()
	m.end(begun)
}

// rested is ask for the Activation of an agent that has become quiescent.
func (m *manager) rested(a *agent.Agent) {
	m.mu.Lock()
	begun := m.askLocked(m.resident[keyOf(a)])
	m.mu.Unlock()
	m.end(begun)
}

func (m *manager) askLocked(act *activation) (begun []*activation) {
	if act == nil || act.handle == nil || act.holds > 0 || m.graph.Closing(act.key) || m.resident[act.key] != act ||
		m.graph.Residency(act.key, true) != owners.Settled || !act.agent.Retire() {
		return nil
	}
	return m.endLocked([]*activation{act}, nil, ending{keep: true, alone: true})
}

// lost ends an Activation whose agent was disposed by somebody else.
func (m *manager) lost(a *agent.Agent) {
	m.mu.Lock()
	act := m.resident[keyOf(a)]
	if act == nil || act.handle == nil || m.graph.Closing(act.key) {
		m.mu.Unlock()
		return
	}
	all, making := m.belowLocked([]*activation{act})
	begun := m.endLocked(all, making, ending{keep: true})
	m.mu.Unlock()
	m.end(begun)
}

// delivery is a message for a child that exists.
type delivery struct {
	// parent is the exact agent whose authority it is; nil for the Host, who names the
	// parent by its id.
	parent   *agent.Agent
	parentID session.ID
	child    session.ID
	content  []message.Block
	source   message.Source
	leave    bool // nothing is to run of it here, see Host.Leave
}

// deliver routes a message to where its child is (seam FUP).
func (m *manager) deliver(ctx context.Context, d delivery) (message.ID, error) {
	if d.child == "" {
		return "", errorf(CodeInvalidRequest, "follow up: no subagent is named")
	}
	if emptyContent(d.content) {
		return "", errorf(CodeInvalidRequest, "follow up subagent %s: the message is empty", d.child)
	}
	msg := message.Message{ID: agent.NewMessageID(), Role: message.RoleUser, Content: cloneBlocks(d.content), Source: d.source}
	if err := session.CheckMessage(&msg); err != nil {
		return "", &Error{Code: CodeInvalidRequest, Msg: fmt.Sprintf("follow up subagent %s", d.child), Err: err}
	}
	if d.parent != nil {
		if _, live := m.agents.Live(d.parent); !live {
			return "", errorf(CodeUnauthorized, "follow up subagent %s: %s is not the live agent of that id", d.child, d.parent.ID())
		}
		if err := m.attend(ctx, d.parent); err != nil {
			return "", err
		}
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		m.mu.Lock()
		act := m.entries[d.child]
		path := m.pathOf(&d)
		switch {
		case m.over:
			m.mu.Unlock()
			return "", errOver
		case act == nil:
			if err := m.refusalLocked(d.child, m.graph.Admits(path)); err != nil {
				m.mu.Unlock()
				return "", err
			}
			m.mu.Unlock()
			act, err := m.revive(ctx, &d, path)
			if err != nil {
				return "", err
			}
			if act == nil {
				continue // somebody else came first
			}
			// Its parent may have come, or be below others, meanwhile.
			now := func() []key { return m.pathOf(&d) }
			if d.leave {
				err = m.leave(ctx, act, now, msg)
			} else {
				err = m.submit(ctx, act, d.parent, now, msg)
			}
			if err != nil {
				return "", err
			}
			return msg.ID, nil
		case act.parent != d.parentID:
			m.mu.Unlock()
			return "", errorf(CodeUnauthorized, "subagent %s is not a child of %s", d.child, d.parentID)
		case !act.open || m.graph.Closing(act.key):
			// In the making, or on its way out: one side has won, and it is waited for which.
			if err := m.refusalLocked(d.child, m.graph.Admits(path)); err != nil {
				m.mu.Unlock()
				return "", err
			}
			if !act.open && act.opened == nil {
				act.opened = make(chan struct{})
			}
			opened, gone := act.opened, act.releasedLocked() // the first is nil where it is open
			m.mu.Unlock()
			select {
			case <-opened:
			case <-gone:
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		default:
			acc, err := m.beginLocked(ctx, act, d.parent, path, msg)
			if err == nil {
				act.holds++
			}
			m.mu.Unlock()
			if err != nil {
				return "", err
			}
			if err = acc.Finish(ctx); err == nil {
				m.accepted(act)
			} else {
				err = m.refused(act, err)
			}
			m.unhold(act)
			if err != nil {
				return "", err
			}
			return msg.ID, nil
		}
	}
}

// pathOf returns below whom the child of a delivery is: below its live parent.
func (m *manager) pathOf(d *delivery) []key {
	p := d.parent
	if p == nil {
		p, _ = m.agents.Get(d.parentID)
	}
	if p == nil {
		return nil
	}
	return m.path(p)
}
