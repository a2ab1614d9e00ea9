package tool

import (
	"context"
	"slices"

	"github.com/offshoot-dev/offshoot/message"
)

// Guard is a deny-only predicate (core T10): nil lets the call pass, an error
// refuses it with that text. Guards run after the pre-execute hooks and cannot
// grant what another hook or guard refused. A panic refuses.
type Guard func(ctx context.Context, call *Call) error

// PreExecute answers before a call runs (core T13). All hooks are asked; any deny
// wins, else any ask, else the call is allowed. A hook can only judge: changing
// the Call it is shown has no effect on what runs (core T14). A panic denies.
type PreExecute func(ctx context.Context, call *Call) Decision

// Execute wraps the body (core T12). It must call next at most once and may give it
// another context: that one is fused with the caller's, so that the body ends
// when either does. What it returns is taken as the body's value or error. Should
// it return before the body has, the pipeline still waits for the body (core T17).
type Execute func(ctx context.Context, call *Call, next func(ctx context.Context) (any, error)) (any, error)

// PostExecute judges what a body that was started has come to (core T15). result
// is a snapshot and must not be modified. A panic turns the result into an error.
type PostExecute func(ctx context.Context, call *Call, result Result) PostDecision

// Observer sees every final result, also that of a call that was refused or whose
// tool is unknown. It cannot change it (core T21); a panic is contained and
// reported to ExecOptions.OnFault.
type Observer func(ctx context.Context, call *Call, result Result)

type verdict int

const (
	verdictAllow verdict = iota
	verdictAsk
	verdictDeny
)

// Decision is the answer of a PreExecute hook. The zero value allows.
type Decision struct {
	verdict verdict
	reason  string
}

// Allow lets a call pass.
func Allow() Decision { return Decision{} }

// Deny refuses a call. The model reads reason.
func Deny(reason string) Decision { return Decision{verdictDeny, reason} }

// Ask puts the call to the approver. The person reads reason.
func Ask(reason string) Decision { return Decision{verdictAsk, reason} }

// PostDecision is the answer of a PostExecute hook. The zero value accepts the
// result as it is.
type PostDecision struct {
	// Block turns the result into an error with the text Feedback and drops every
	// context message.
	Block    bool
	Feedback string
	// Content, if not nil, replaces what the model reads.
	Content []message.Block
	// Value, if HasValue, replaces the value of a success: it is validated again,
	// and rendered again unless Content is set. On an error it has no effect.
	Value    any
	HasValue bool
	// Contexts are handed to the model after the results of the step.
	Contexts []message.Message
}

// Block returns a PostDecision that blocks the result.
func Block(feedback string) PostDecision { return PostDecision{Block: true, Feedback: feedback} }

// hook gives a callback an identity, so that it is removed by handle.
type hook[T any] struct{ fn T }

// hookSet is one layer's hooks in order of registration. Its slices are replaced,
// never changed in place.
type hookSet struct {
	guards    []*hook[Guard]
	pre       []*hook[PreExecute]
	execute   []*hook[Execute]
	post      []*hook[PostExecute]
	observers []*hook[Observer]
}

func (h *hookSet) empty() bool {
	return len(h.guards)+len(h.pre)+len(h.execute)+len(h.post)+len(h.observers) == 0
}

// AddGuard adds a guard to this layer; remove takes it out again. Guards of the
// global scope run first, then down to this one.
func (s *Scope) AddGuard(fn Guard) (remove func()) {
	return addHook(s, fn, func(h *hookSet) *[]*hook[Guard] { return &h.guards })
}

// AddPreExecute adds a pre-execute hook to this layer; remove takes it out again.
// Hooks of the global scope run first.
func (s *Scope) AddPreExecute(fn PreExecute) (remove func()) {
	return addHook(s, fn, func(h *hookSet) *[]*hook[PreExecute] { return &h.pre })
}

// AddExecute adds a wrapper to this layer; remove takes it out again. Wrappers of
// the global scope are outermost.
func (s *Scope) AddExecute(fn Execute) (remove func()) {
	return addHook(s, fn, func(h *hookSet) *[]*hook[Execute] { return &h.execute })
}

// AddPostExecute adds a post-execute hook to this layer; remove takes it out again.
// Hooks of the nearest layer run first, those of the global scope see the outcome
// of all others.
func (s *Scope) AddPostExecute(fn PostExecute) (remove func()) {
	return addHook(s, fn, func(h *hookSet) *[]*hook[PostExecute] { return &h.post })
}

// AddObserver adds a result observer to this layer; remove takes it out again.
// Observers of the global scope run first.
func (s *Scope) AddObserver(fn Observer) (remove func()) {
	return addHook(s, fn, func(h *hookSet) *[]*hook[Observer] { return &h.observers })
}

// addHook has no error: a closed scope runs no call, so there is nothing that a
// hook could miss there.
func addHook[T any](s *Scope, fn T, list func(*hookSet) *[]*hook[T]) (remove func()) {
	h := &hook[T]{fn: fn}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return func() {}
	}
	if s.hooks == nil {
		s.hooks = &hookSet{}
	}
	l := list(s.hooks)
	*l = append(slices.Clip(*l), h)
	s.chain = nil
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hooks == nil {
			return // the scope was closed
		}
		l := list(s.hooks)
		if i := slices.Index(*l, h); i >= 0 {
			*l = slices.Delete(slices.Clone(*l), i, i+1)
			s.chain = nil
		}
	}
}

// chain is the immutable list of hooks that apply to a call, in the order in which
// they run. A call keeps the one it was dispatched with.
type chain struct {
	base *chain
	hookSet
}

func (s *Scope) hookChain() *chain {
	var base *chain
	if s.parent != nil {
		base = s.parent.hookChain()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.hooks
	if own == nil {
		own = &hookSet{}
	}
	if base != nil && own.empty() {
		return base
	}
	if s.chain == nil || s.chain.base != base {
		c := &chain{base: base, hookSet: *own}
		if base != nil {
			c.guards = slices.Concat(base.guards, own.guards)
			c.pre = slices.Concat(base.pre, own.pre)
			c.execute = slices.Concat(base.execute, own.execute)
			c.post = slices.Concat(own.post, base.post)
			c.observers = slices.Concat(base.observers, own.observers)
		}
		s.chain = c
	}
	return s.chain
}
