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
	hooks := s.hooks
	s.mu.Unlock()
	unregister = sync.OnceFunc(func() { s.remove(reg) })
	for _, e := range hooks {
		if e.hooks.ProviderAdded == nil || !e.concerns(nil) {
			continue
		}
		if err := contain(func() error { return e.hooks.ProviderAdded(p) }); err != nil {
			unregister()
			return nil, fmt.Errorf("register subagent provider %q: %w", reg.name, err)
		}
	}
	return unregister, nil
}

func (s *Service) remove(reg *registration) {
	s.mu.Lock()
	s.providers = slices.DeleteFunc(slices.Clone(s.providers), func(r *registration) bool { return r == reg })
	hooks := s.hooks
	s.mu.Unlock()
	for _, e := range hooks {
		if e.hooks.ProviderRemoved != nil && e.concerns(nil) {
			s.tell("provider removed", func() { e.hooks.ProviderRemoved(reg.name) })
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
