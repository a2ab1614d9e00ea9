package subagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// Config configures a Service.
type Config struct {
	Agents *agent.Registry
	// Projections are the units that listings read by; the service adds those that it
	// needs, and takes them back when it is closed. nil leaves the service without
	// listings.
	Projections *projection.Registry
	// MaxDepth bounds the depth of every child of the deployment, whatever a
	// request says (seam DEP-14). nil is no bound.
	MaxDepth *int64
	// MaxChildren bounds the runs of one parent that are not settled together with its
	// continuable children that are resident; 0 is no bound.
	MaxChildren int
	// Host, if set, is bound to the service: the one way in which people act on
	// continuable children.
	Host *Host
	// NoNotices sends no settlement notices: a child that settles tells its parent
	// nothing by itself then (amendment P15).
	NoNotices bool
	// Logger gets what nobody can be told otherwise; nil discards it.
	Logger *slog.Logger
}

// Service is the seam. It is safe for concurrent use. What it does with continuable
// children stands with StartContinuable.
type Service struct {
	cfg   Config
	ctx   context.Context
	units []func() // take back what is registered elsewhere

	schemas schemas
	m       *manager
	setups  setups
	end     sync.Once // begins the drain of Close
	drained chan struct{}
	endErr  error // of the drain; final when drained is closed

	mu        sync.Mutex // guards following
	providers []*registration
	notices   []*notice                             // changes of providers that were not told yet
	telling   bool                                  // somebody is telling them
	hooks     []*hookEntry                          // replaced, never changed in place
	open      map[*agent.Agent]map[*ticket]struct{} // runs that are not known to be settled, if MaxChildren bounds them
	tickets   int                                   // Starts under way and watchers
	closed    bool
	idle      chan struct{} // made by the first Close, closed when closed and no ticket is out
}

// New returns a service. ctx carries values for what outlives its callers; its
// end has no effect.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if cfg.Agents == nil {
		return nil, errors.New("subagent service: Agents is required")
	}
	if err := compose.CheckDepthCap(cfg.MaxDepth); err != nil {
		return nil, fmt.Errorf("subagent service: %w", err)
	}
	if cfg.MaxChildren < 0 {
		return nil, fmt.Errorf("subagent service: MaxChildren must not be negative, and is %d", cfg.MaxChildren)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg, ctx: context.WithoutCancel(ctx), open: map[*agent.Agent]map[*ticket]struct{}{}, drained: make(chan struct{})}
	s.m = newManager(s)
	// Registry hooks, not those of a parent: until then nothing knows that it is one, and
	// they come before what an agent's own hooks make of the end of its turn.
	s.units = append(s.units, cfg.Agents.AddHooks(agent.Hooks{TurnOpen: s.m.woken, TurnStopping: s.m.stopping}))
	if cfg.Projections != nil {
		if err := s.register(); err != nil {
			s.unregister()
			return nil, err
		}
	}
	if cfg.Host != nil && !cfg.Host.m.CompareAndSwap(nil, s.m) {
		s.unregister()
		return nil, errors.New("subagent service: Host is bound to another service")
	}
	return s, nil
}

// register adds the projection units that the service needs.
func (s *Service) register() error {
	// Who a child is, and what it does and for how long (seam PROJ-04).
	for _, u := range []projection.Unit{projection.IdentityUnit(), projection.StateUnit()} {
		unregister, err := s.cfg.Projections.Register(u)
		if err != nil {
			return fmt.Errorf("subagent service: %w", err)
		}
		s.units = append(s.units, unregister)
	}
	return nil
}

func (s *Service) unregister() {
	for _, fn := range s.units {
		fn()
	}
}

// Agents returns the agent registry.
func (s *Service) Agents() *agent.Registry { return s.cfg.Agents }

// Notices reports whether a continuable child that settles tells its parent so.
func (s *Service) Notices() bool { return !s.cfg.NoNotices }

// Lister returns what lists the subagents of a session, a page at a time too. It does
// not end with the service.
func (s *Service) Lister() Lister {
	return Lister{Sessions: s.cfg.Agents.Sessions(), Projections: s.cfg.Projections}
}

// ListChildren lists the direct subagents of a session; see Lister.
func (s *Service) ListChildren(ctx context.Context, parent session.ID) ([]Row, error) {
	return s.Lister().ListChildren(ctx, parent)
}

// ListDescendants lists the tree of subagents below a session; see Lister.
func (s *Service) ListDescendants(ctx context.Context, root session.ID) ([]Row, error) {
	return s.Lister().ListDescendants(ctx, root)
}

// ticket is one admitted start: from the admission until the end edge was told.
type ticket struct {
	parent *agent.Agent
	run    Run // nil while Start is under way
}

// errProbe is the cause of the wait that only asks whether a run has settled.
var errProbe = errors.New("the run has not settled")

// admit lets a start of parent in, or says why not.
func (s *Service) admit(parent *agent.Agent) (*ticket, error) {
	t := &ticket{parent: parent}
	for probed := false; ; probed = true {
		// Both kinds of children are counted in one hold, as enlistLocked does.
		s.m.mu.Lock()
		s.mu.Lock()
		resident := s.m.children[parent.ID()]
		full := s.cfg.MaxChildren > 0 && resident+len(s.open[parent]) >= s.cfg.MaxChildren
		s.m.mu.Unlock()
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, errorf(CodeDraining, "the subagent service is closing")
		case !full:
			s.tickets++
			if s.cfg.MaxChildren > 0 {
				if s.open[parent] == nil {
					s.open[parent] = map[*ticket]struct{}{}
				}
				s.open[parent][t] = struct{}{}
			}
			s.mu.Unlock()
			return t, nil
		case probed:
			n := resident + len(s.open[parent])
			s.mu.Unlock()
			return nil, errorf(CodeLimitReached, "limit reached: agent %s has %d subagents at work, the most that it may have at once", parent.ID(), n)
		}
		// The watchers may lag behind a holder who has seen its result already.
		out := make(map[*ticket]Run, len(s.open[parent]))
		for o := range s.open[parent] {
			if o.run != nil {
				out[o] = o.run
			}
		}
		s.mu.Unlock()
		for o, run := range out {
			if s.settled(run) {
				s.leave(o)
			}
		}
	}
}

// runs counts the runs of a parent that are not known to be settled.
func (s *Service) runs(parent session.ID) int {
	a, live := s.cfg.Agents.Get(parent)
	if !live {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open[a])
}

// settled asks a run without waiting.
func (s *Service) settled(run Run) bool {
	ctx, cancel := context.WithCancelCause(s.ctx)
	cancel(errProbe)
	err := contain(func() error {
		_, err := run.Wait(ctx)
		return err
	})
	return !errors.Is(err, errProbe)
}

// bind tells a ticket its run.
func (s *Service) bind(t *ticket, run Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.run = run
}

// leave takes a run that has settled out of the count of its parent.
func (s *Service) leave(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(t)
}

func (s *Service) leaveLocked(t *ticket) {
	if set := s.open[t.parent]; set != nil {
		if delete(set, t); len(set) == 0 {
			delete(s.open, t.parent)
		}
	}
}

// done ends a ticket.
func (s *Service) done(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(t)
	s.tickets--
	s.restLocked()
}

func (s *Service) restLocked() {
	if s.closed && s.tickets == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// CloseAdmission refuses new starts from now on. It does not wait, and hooks may
// call it: the first step of every teardown.
func (s *Service) CloseAdmission() {
	s.m.shut()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// Close refuses new starts, ends every continuable child, children first, and returns
// when they are released, every run has settled and its end was told, or with the cause
// of ctx's end. What waits in the inboxes of continuable children is kept, for when they
// are opened again. It cancels no run: those belong to whoever holds them, and one-shot
// children end with the agents that own them.
//
// The error is CodeActivationTeardownFailed with whatever failed, after everything ended.
func (s *Service) Close(ctx context.Context) error {
	s.CloseAdmission()
	s.end.Do(func() {
		// Joined by every Close through drained.
		go func() {
			s.endErr = s.m.drain()
			close(s.drained)
		}()
	})
	select {
	case <-s.drained:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := s.closeRuns(ctx); err != nil {
		return err
	}
	return s.endErr
}

// closeRuns waits until no ticket is out.
func (s *Service) closeRuns(ctx context.Context) error {
	s.mu.Lock()
	if s.tickets == 0 {
		s.mu.Unlock()
		s.unregister()
		return nil
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		s.unregister()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// panicError is a panic that was contained.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panicked: %v", e.value) }

func contain(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return fn()
}

// fault logs what nobody can be told otherwise.
func (s *Service) fault(msg string, err error, args ...any) {
	args = append(args, "error", err)
	var pe *panicError
	if errors.As(err, &pe) {
		args = append(args, "stack", string(pe.stack))
	}
	s.cfg.Logger.Error(msg, args...)
}
