package agent

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
)

// Create describes an agent to be made.
type Create struct {
	Session session.New
	Options Options
	// Owner is the live agent that the new one lives under: disposing it disposes
	// this one first. nil makes a root.
	Owner *Agent
	// Above names those above an agent that nobody here owns, the outermost first: whoever
	// holds the handle answers for its life, and it is no root for that (see Agent.Path
	// and Agent.Root). It must not be modified afterwards, and is not used with an Owner.
	Above []string
	// Delegated says that the agent works for another one: its prompt states the
	// delegation (core P9).
	Delegated bool
	// Setup registers what belongs to the agent alone, before anybody can see it
	// (core L41). ctx ends with the caller's, with the disposal of the owner or of
	// the agent itself, with the registry's Close, and when Create returns; its
	// Initiator is the new agent. Creation and disposal wait for Setup. A message
	// that it sends is not run before the agent is published.
	Setup func(ctx context.Context, a *Agent) error
	// Commit is the last synchronous check before publication (core L42).
	Commit func() error
}

// Resume describes a stored session to go on with.
type Resume struct {
	ID        session.ID
	Options   Options
	Owner     *Agent
	Above     []string
	Delegated bool
	Setup     func(ctx context.Context, a *Agent) error
	Commit    func() error
}

// Handle is the ownership of a live agent. Whoever holds it disposes it.
type Handle struct{ agent *Agent }

// Agent returns the agent.
func (h *Handle) Agent() *Agent { return h.agent }

// Dispose ends the agent: what waits in its inbox is discarded. See Agent.Dispose.
func (h *Handle) Dispose(ctx context.Context) error { return h.agent.Dispose(ctx, false) }

// Release ends the agent at the end of the process: what waits in its inbox is
// kept for the next one that resumes it. See Agent.Dispose.
func (h *Handle) Release(ctx context.Context) error { return h.agent.Dispose(ctx, true) }

// Create makes and publishes an agent (core L40–L44). Either everything happened,
// or nothing of it is left when the error returns, and announcements that were
// made are paired. ctx governs the creation until it returns, never the agent.
func (r *Registry) Create(ctx context.Context, c Create) (*Handle, error) {
	// Nothing is stored before the agent is published: a creation that fails leaves
	// no row behind (core H10).
	n := c.Session
	n.Deferred = true
	p := plan{owner: c.Owner, above: c.Above, delegated: c.Delegated, options: c.Options, setup: c.Setup, commit: c.Commit, establish: !c.Session.Deferred}
	h, err := r.publish(ctx, p, func(ctx context.Context) (*session.Session, error) {
		return r.cfg.Sessions.Prepare(ctx, n)
	})
	if err != nil {
		return nil, fmt.Errorf("create agent: %w", err)
	}
	return h, nil
}

// Resume publishes an agent on a stored session, repaired first where a crash cut
// it, with the same id and header (core L45). What waits in its inbox is not
// woken by that. Errors are those of session.Registry.PrepareStored and Create.
func (r *Registry) Resume(ctx context.Context, c Resume) (*Handle, error) {
	p := plan{owner: c.Owner, above: c.Above, delegated: c.Delegated, options: c.Options, setup: c.Setup, commit: c.Commit, resumed: true}
	h, err := r.publish(ctx, p, func(ctx context.Context) (*session.Session, error) {
		return r.cfg.Sessions.PrepareStored(ctx, c.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("resume agent %s: %w", c.ID, err)
	}
	return h, nil
}

// construction is one Create or Resume under way.
type construction struct{ cancel context.CancelCauseFunc }

func (r *Registry) admit(c *construction) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return fmt.Errorf("agent registry: %w", ErrDisposed)
	case r.cfg.MaxLive > 0 && r.count >= r.cfg.MaxLive:
		return &LimitError{Limit: r.cfg.MaxLive}
	}
	r.count++
	r.making[c] = struct{}{}
	r.made.Add(1)
	r.agents.Add(1)
	return nil
}

func (r *Registry) finished(c *construction) {
	r.mu.Lock()
	delete(r.making, c)
	r.mu.Unlock()
	r.made.Done()
}

// plan is what Create and Resume have in common.
type plan struct {
	owner     *Agent
	above     []string
	delegated bool
	options   Options
	setup     func(context.Context, *Agent) error
	commit    func() error
	resumed   bool
	// establish ends a deferral that this package added.
	establish bool
}

func (r *Registry) publish(ctx context.Context, p plan, prepare func(context.Context) (*session.Session, error)) (*Handle, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if p.owner != nil && p.owner.disposing() {
		return nil, fmt.Errorf("owner %s: %w", p.owner.ID(), ErrDisposed)
	}
	prompts := r.cfg.Prompts.Root()
	if p.delegated {
		var err error
		if prompts, err = r.cfg.Prompts.Delegated(); err != nil {
			return nil, err
		}
	}
	// The building ends with the caller, with the owner's or the agent's own
	// disposal, and with the registry (core L40).
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &construction{cancel: cancel}
	if err := r.admit(c); err != nil {
		return nil, err
	}
	defer r.finished(c)
	s, err := prepare(ctx)
	if err != nil {
		r.release()
		r.agents.Done()
		return nil, err
	}
	a := &Agent{reg: r, session: s, owner: p.owner, options: p.options, resumed: p.resumed, phase: phaseBuilding}
	if p.owner == nil {
		a.above = p.above
	}
	a.act = &activity{ctx: withInitiator(ctx, a), cancel: cancel, done: make(chan struct{})}
	a.tools = r.cfg.Tools.Root().Child()
	a.prompts = prompts.Child()
	err = a.build(&p)
	if err = a.endBuild(err, p.establish); err != nil {
		// Nothing of the agent may be left, and that does not depend on ctx.
		<-a.gone
		if a.err != nil {
			a.log().Error("undoing a failed creation", "error", a.err)
		}
		return nil, err
	}
	return &Handle{agent: a}, nil
}

// release gives back the place of an agent that is gone or never came to be.
func (r *Registry) release() {
	r.mu.Lock()
	r.count--
	r.mu.Unlock()
}

// build takes a prepared agent through setup, commit and the announcements.
func (a *Agent) build(p *plan) error {
	r, ctx := a.reg, a.act.ctx
	if a.owner != nil {
		if err := a.owner.adopt(a); err != nil {
			return err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if p.setup != nil {
		if err := contain("setup", func() error { return p.setup(ctx, a) }); err != nil {
			return err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if p.commit != nil {
		if err := contain("commit", p.commit); err != nil {
			return err
		}
	}
	detach, err := r.cfg.Sessions.Enter(a.session)
	if err != nil {
		return err
	}
	a.detach = detach
	if err := r.enter(a); err != nil {
		return err
	}
	if err := r.cfg.Sessions.Announce(a.session); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return a.announce()
}

// endBuild ends the building in one hold. After the last look at whether anybody
// ended it, either the agent is published: its deferral ends and a wake that came
// meanwhile is served; or its disposal begins before it counts as idle, so that
// nobody who has found it already can start a turn.
func (a *Agent) endBuild(err error, establish bool) error {
	var errs []error
	undo := false
	a.mu.Lock()
	act := a.act
	if err == nil && a.closing {
		err = fmt.Errorf("agent %s: %w", a.ID(), ErrDisposed)
	}
	if err == nil {
		err = context.Cause(act.ctx)
	}
	if err == nil && establish {
		_, err = a.session.AppendEstablish()
	}
	if err != nil {
		errs, undo = a.shut(true)
	}
	a.quietLocked(act)
	a.mu.Unlock()
	if undo {
		a.startDispose(errs, true)
	} else {
		a.deliver()
	}
	return err
}

func (a *Agent) disposing() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closing
}

// adopt registers a child under its owner; a closing owner takes none, so that its
// disposal sees every child there is.
func (a *Agent) adopt(child *Agent) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		return fmt.Errorf("owner %s: %w", a.ID(), ErrDisposed)
	}
	if a.children == nil {
		a.children = map[*Agent]struct{}{}
	}
	a.children[child] = struct{}{}
	return nil
}

func (a *Agent) disown(child *Agent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.children, child)
}

func (r *Registry) enter(a *Agent) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("agent registry: %w", ErrDisposed)
	}
	r.live[a.ID()] = a
	a.entered = true
	return nil
}

// announce tells the Created hooks. What was noted while the agent was built is
// told behind that.
func (a *Agent) announce() error {
	a.announced = true
	var veto error
	a.each(func(h *Hooks) bool {
		switch {
		case h.Created == nil:
		case veto != nil:
			a.unreached = append(a.unreached, h)
		default:
			veto = contain("created hook", func() error { return h.Created(a) })
		}
		return true
	})
	if veto != nil {
		return veto
	}
	a.observed = true
	a.reg.observe(Event{Kind: EventCreated, Agent: a})
	a.mu.Lock()
	a.audible = true
	a.mu.Unlock()
	a.deliver()
	return nil
}
