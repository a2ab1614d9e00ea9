package subagent

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/agent"
)

type registration struct {
	name     string
	provider Provider
}

// Register adds a provider under its name. The returned function removes exactly
// this registration, once: new starts on the name fail from then on, runs that
// were handed out are not touched (seam REG). Errors: ErrDuplicateProvider, an
// empty name, or the failure of a ProviderAdded hook, after which the name is
// free again.
func (s *Service) Register(p Provider) (unregister func(), err error) {
	if p == nil {
		return nil, errorf(CodeInvalidRequest, "register subagent provider: there is none")
	}
	reg := &registration{name: p.Name(), provider: p}
	if reg.name == "" {
		return nil, errorf(CodeInvalidRequest, "register subagent provider: the name is empty")
	}
	s.mu.Lock()
	if s.find(reg.name) != nil {
		s.mu.Unlock()
		return nil, errorf(CodeDuplicateProvider, "subagent provider %q is registered already", reg.name)
	}
	s.providers = append(slices.Clip(s.providers), reg)
	n := &notice{reg: reg, added: true, hooks: s.hooks, told: make(chan struct{})}
	s.publishLocked(n) // unlocks
	<-n.told
	if n.err != nil {
		return nil, fmt.Errorf("register subagent provider %q: %w", reg.name, n.err)
	}
	return sync.OnceFunc(func() { s.remove(reg, nil) }), nil
}

// remove takes a registration out; hooks are told, or if nil all there are.
func (s *Service) remove(reg *registration, hooks []*hookEntry) {
	s.mu.Lock()
	s.providers = slices.DeleteFunc(slices.Clone(s.providers), func(r *registration) bool { return r == reg })
	if hooks == nil {
		hooks = s.hooks
	}
	s.publishLocked(&notice{reg: reg, hooks: hooks, told: make(chan struct{})}) // unlocks
}

// notice is one change of the registry that hooks are to be told.
type notice struct {
	reg   *registration
	added bool
	hooks []*hookEntry
	told  chan struct{} // closed when they were
	err   error         // the veto of an addition
}

// publishLocked has a change told in the order in which the changes were made: by
// this caller, or by the one who is telling already. It is called with the lock
// held and returns without it.
func (s *Service) publishLocked(n *notice) {
	s.notices = append(s.notices, n)
	if s.telling {
		s.mu.Unlock()
		return
	}
	s.telling = true
	for len(s.notices) > 0 {
		next := s.notices[0]
		s.notices = s.notices[1:]
		s.mu.Unlock()
		s.tellNotice(next)
		close(next.told)
		s.mu.Lock()
	}
	s.telling = false
	s.mu.Unlock()
}

func (s *Service) tellNotice(n *notice) {
	for i, e := range n.hooks {
		switch {
		case !e.concerns(nil):
		case n.added && e.hooks.ProviderAdded != nil:
			if n.err = contain(func() error { return e.hooks.ProviderAdded(n.reg.provider) }); n.err != nil {
				// Those who heard of it hear that it is gone (seam REG-11).
				s.remove(n.reg, n.hooks[:i+1])
				return
			}
		case !n.added && e.hooks.ProviderRemoved != nil:
			s.tell("provider removed", func() { e.hooks.ProviderRemoved(n.reg.name) })
		}
	}
}

func (s *Service) find(name string) *registration {
	for _, r := range s.providers {
		if r.name == name {
			return r
		}
	}
	return nil
}

// Provider returns the provider registered under a name.
func (s *Service) Provider(name string) (Provider, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.find(name); r != nil {
		return r.provider, true
	}
	return nil, false
}

// Providers returns the registered names in order of registration.
func (s *Service) Providers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, len(s.providers))
	for i, r := range s.providers {
		names[i] = r.name
	}
	return names
}

type hookEntry struct {
	hooks   Hooks
	parent  *agent.Agent // nil: all
	removed atomic.Bool
}

// concerns reports whether the hooks are still registered and see what belongs to
// parent; nil asks for those that are not tied to one.
func (e *hookEntry) concerns(parent *agent.Agent) bool {
	return !e.removed.Load() && (e.parent == nil || e.parent == parent)
}

// AddHooks registers hooks. With a parent, only Started and Ended are called, and
// only for that agent's own delegations (seam EVT-13). Hooks see pairs: the end of
// a run reaches those that were told of its start.
func (s *Service) AddHooks(h Hooks, parent *agent.Agent) (remove func()) {
	e := &hookEntry{hooks: h, parent: parent}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(slices.Clip(s.hooks), e)
	return func() {
		e.removed.Store(true)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hooks = slices.DeleteFunc(slices.Clone(s.hooks), func(f *hookEntry) bool { return f == e })
	}
}

// listeners returns the hooks that are registered now, as one immutable list.
func (s *Service) listeners() []*hookEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks
}

// tell calls an observing hook and logs what it did wrong.
func (s *Service) tell(what string, fn func()) {
	if err := contain(func() error { fn(); return nil }); err != nil {
		s.fault("subagent hook failed", err, "hook", what)
	}
}

// asError is errors.As that returns the target.
func asError[E error](err error) (e E, ok bool) {
	ok = errors.As(err, &e)
	return e, ok
}
