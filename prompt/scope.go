package prompt

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Registry owns the root layer and every layer below it. It is safe for concurrent use.
type Registry struct {
	root    *Scope
	scratch sync.Pool // *scratch
	// delegated makes the layer of Delegated, once.
	delegated func() (*Scope, error)
	// recent is the latest result of any view before transforms. It is memory that others
	// may share, and decides nothing.
	recent atomic.Pointer[Assembly]

	mu       sync.Mutex // guards every scope's layer and closed, and the fields below
	sequence uint64     // of registrations, breaks ties of order
	// holders: which scopes registered a variable, to refuse a second one along any chain.
	holders map[string][]*Scope
}

// New returns a registry with an empty root layer.
func New() *Registry {
	reg := &Registry{holders: make(map[string][]*Scope)}
	reg.scratch.New = func() any { return new(scratch) }
	reg.root = &Scope{reg: reg}
	reg.delegated = sync.OnceValues(func() (*Scope, error) {
		s := reg.root.Child()
		_, err := s.AddContext(Delegation())
		return s, err
	})
	return reg
}

// Root returns the layer that every scope sees.
func (r *Registry) Root() *Scope { return r.root }

// Delegated returns the layer under the root that states the delegation. Those of delegated
// children stand under it, and share what it has prepared. It fails with ErrClosed where the
// root is closed.
func (r *Registry) Delegated() (*Scope, error) { return r.delegated() }

// Scope is one layer and, through its parents, all that is visible from it. Its methods are
// safe for concurrent use. A scope that registers nothing costs its own few words: it
// shares what its parent has prepared. It holds nothing that must be given back, but a
// scope that is no longer needed should be closed, since its variables keep their names.
type Scope struct {
	reg    *Registry
	parent *Scope

	// changes counts the changes of this layer. It is written under reg.mu.
	changes atomic.Uint64
	view    atomic.Pointer[view]

	closed bool
	layer  *layer // nil before something is registered
}

// layer is what one scope has registered itself.
type layer struct {
	sections   []*entry
	contexts   []*entry
	variables  []*variable
	transforms []*transform
}

func (l *layer) ownSections() *[]*entry { return &l.sections }
func (l *layer) ownContexts() *[]*entry { return &l.contexts }

// layerLocked returns the layer to register something in.
func (s *Scope) layerLocked() *layer {
	if s.layer == nil {
		s.layer = &layer{}
	}
	return s.layer
}

// entry is a registered section or context.
type entry struct {
	kind     string
	name     string
	order    float64
	sequence uint64
	text     template
	render   func(RenderContext) (string, error)
	literal  bool
	complete bool
}

type variable struct {
	name  string
	value func() (string, bool)
}

type transform struct {
	apply func(*Assembly) error
}

// Child opens a new, empty layer under s. The parent does not keep it. Under a closed scope
// the child is as good as closed.
func (s *Scope) Child() *Scope { return &Scope{reg: s.reg, parent: s} }

// Close drops what this layer registered. Afterwards Add and Assemble, here and in every
// scope below, fail with ErrClosed. Close is idempotent and does not wait for an assembly
// that is under way.
func (s *Scope) Close() {
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if l := s.layer; l != nil {
		for _, v := range l.variables {
			s.reg.releaseLocked(v.name, s)
		}
		*l = layer{} // whoever takes out what it has registered finds nothing
	}
	s.view.Store(nil)
	s.changes.Add(1)
}

// Add registers a section in this layer (core P1). It fails with ErrDuplicate when the layer
// has one of that name, with ErrInvalid, or with ErrClosed. The text is not judged here: a
// template that cannot be filled fails the assembly. remove is idempotent and concerns this
// registration only; assemblies under way still see the section.
func (s *Scope) Add(sec Section) (remove func(), err error) {
	return s.addEntry((*layer).ownSections, &entry{
		kind: "section", name: sec.Name, order: sec.Order, text: compile(sec.Text, sec.Literal || sec.Render != nil),
		render: sec.Render, literal: sec.Literal, complete: sec.Complete,
	})
}

// AddContext registers a context in this layer (core P6); the rules are those of Add.
func (s *Scope) AddContext(c Context) (remove func(), err error) {
	return s.addEntry((*layer).ownContexts, &entry{
		kind: "context", name: c.Name, order: c.Order, text: compile(c.Text, c.Literal || c.Render != nil),
		render: c.Render, literal: c.Literal,
	})
}

func (s *Scope) addEntry(own func(*layer) *[]*entry, e *entry) (remove func(), err error) {
	fail := func(err error) (func(), error) {
		return nil, fmt.Errorf("add %s %q: %w", e.kind, e.name, err)
	}
	if e.name == "" {
		return fail(fmt.Errorf("%w: no name", ErrInvalid))
	}
	if math.IsNaN(e.order) {
		return fail(fmt.Errorf("%w: order is not a number", ErrInvalid))
	}
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	if s.closedLocked() {
		return fail(ErrClosed)
	}
	list := own(s.layerLocked())
	if slices.ContainsFunc(*list, func(have *entry) bool { return have.name == e.name }) {
		return fail(ErrDuplicate)
	}
	s.reg.sequence++
	e.sequence = s.reg.sequence
	return addLocked(s, list, e, nil), nil
}

// AddVariable registers a variable (core P4). name is [a-z][a-z0-9_]*, is none of those that
// the agent loop supplies, and is registered in no scope above or below this one: else
// ErrInvalid or ErrDuplicate. value is asked at most once per assembly that uses the
// variable, without any lock; false means that there is no value now, which fails that
// assembly.
func (s *Scope) AddVariable(name string, value func() (string, bool)) (remove func(), err error) {
	fail := func(err error) (func(), error) {
		return nil, fmt.Errorf("add variable %q: %w", name, err)
	}
	switch {
	case !isVariableName(name):
		return fail(fmt.Errorf("%w: want [a-z][a-z0-9_]*", ErrInvalid))
	case value == nil:
		return fail(fmt.Errorf("%w: no value function", ErrInvalid))
	case isSupplied(name):
		return fail(fmt.Errorf("%w: the agent supplies it", ErrDuplicate))
	}
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	if s.closedLocked() {
		return fail(ErrClosed)
	}
	for _, other := range s.reg.holders[name] {
		if s.under(other) || other.under(s) {
			return fail(ErrDuplicate)
		}
	}
	s.reg.holders[name] = append(s.reg.holders[name], s)
	v := &variable{name: name, value: value}
	return addLocked(s, &s.layerLocked().variables, v, func() { s.reg.releaseLocked(name, s) }), nil
}

// Check tells whether the text of a section can be filled from this scope as it is now: nil,
// or a *VariableError for a malformed group or a variable that neither the agent loop
// supplies nor this scope or one above it has. Nothing is registered and no function is
// asked, so that a variable without a value passes, and so does a section that is rendered
// by a function. It fails with ErrClosed on a closed scope, and is safe for concurrent use.
func (s *Scope) Check(sec Section) error {
	t := compile(sec.Text, sec.Literal || sec.Render != nil)
	v, err := s.currentView()
	if err != nil {
		return fmt.Errorf("check section %q: %w", sec.Name, err)
	}
	bad := func(variable string, problem error) error {
		return &VariableError{Kind: "section", Name: sec.Name, Variable: variable, Problem: problem}
	}
	if t.malformed != nil {
		return bad(excerpt(*t.malformed), ErrMalformedGroup)
	}
	for _, h := range t.holes {
		known := func(have *variable) bool { return have.name == h.name }
		if !isSupplied(h.name) && !slices.ContainsFunc(v.variables, known) {
			return bad(h.name, ErrUnknownVariable)
		}
	}
	return nil
}

// AddTransform adds a link to the interception chain (core P7), which runs on every
// assembly after rendering: layers from the root down, within a layer as registered. A
// transform edits Sections and Contexts; System follows from the sections, and editing it
// instead is an error. A complete section may be edited but neither lost, emptied nor
// introduced. Blank parts are dropped. An error or a panic fails the assembly. The transform
// must not keep the Assembly.
func (s *Scope) AddTransform(apply func(*Assembly) error) (remove func(), err error) {
	if apply == nil {
		return nil, fmt.Errorf("add transform: %w: no function", ErrInvalid)
	}
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	if s.closedLocked() {
		return nil, fmt.Errorf("add transform: %w", ErrClosed)
	}
	return addLocked(s, &s.layerLocked().transforms, &transform{apply: apply}, nil), nil
}

// addLocked appends item to a list of s and returns the function that takes it out again.
func addLocked[T comparable](s *Scope, list *[]T, item T, release func()) (remove func()) {
	*list = append(*list, item)
	s.changes.Add(1)
	return func() {
		s.reg.mu.Lock()
		defer s.reg.mu.Unlock()
		i := slices.Index(*list, item)
		if i < 0 {
			return // removed before, or the scope was closed
		}
		*list = slices.Delete(*list, i, i+1)
		if release != nil {
			release()
		}
		s.changes.Add(1)
	}
}

func (r *Registry) releaseLocked(name string, s *Scope) {
	rest := slices.DeleteFunc(r.holders[name], func(have *Scope) bool { return have == s })
	if len(rest) == 0 {
		delete(r.holders, name)
		return
	}
	r.holders[name] = rest
}

// under reports whether s is other or stands below it.
func (s *Scope) under(other *Scope) bool {
	for ; s != nil; s = s.parent {
		if s == other {
			return true
		}
	}
	return false
}

func (s *Scope) closedLocked() bool {
	for ; s != nil; s = s.parent {
		if s.closed {
			return true
		}
	}
	return false
}

// view is all that is visible from one scope at one moment, merged and sorted. It is
// immutable but for last.
type view struct {
	stamp      uint64
	sections   []*entry
	contexts   []*entry
	variables  []*variable
	transforms []*transform
	complete   *entry
	invalid    error
	dynamic    bool // has a render function

	// last is the latest result before transforms; parts that come out the same are shared.
	last atomic.Pointer[Assembly]
}

// stamp tells whether anything along the chain changed: the counters only grow, so their sum
// is that of a view only if each is. A change that comes while the sum is taken may be
// missed, one that came before the call is not.
func (s *Scope) stamp() uint64 {
	var sum uint64
	for ; s != nil; s = s.parent {
		sum += s.changes.Load()
	}
	return sum
}

func (s *Scope) currentView() (*view, error) {
	for s.parent != nil && s.changes.Load() == 0 {
		s = s.parent // nothing of its own was ever registered: it sees what its parent sees
	}
	stamp := s.stamp()
	if v := s.view.Load(); v != nil && v.stamp == stamp {
		return v, nil
	}
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	if s.closedLocked() {
		return nil, ErrClosed
	}
	v := s.buildLocked()
	s.view.Store(v)
	return v, nil
}

func (s *Scope) buildLocked() *view {
	v := &view{stamp: s.stamp()}
	var sections, contexts int
	for at := s; at != nil; at = at.parent {
		if l := at.layer; l != nil {
			sections, contexts = sections+len(l.sections), contexts+len(l.contexts)
		}
	}
	v.sections, v.contexts = make([]*entry, 0, sections), make([]*entry, 0, contexts)
	for at := s; at != nil; at = at.parent {
		l := at.layer
		if l == nil {
			continue
		}
		v.sections = unshadowed(v.sections, l.sections)
		v.contexts = unshadowed(v.contexts, l.contexts)
		v.variables = append(v.variables, l.variables...)
		v.transforms = slices.Concat(l.transforms, v.transforms)
	}
	slices.SortFunc(v.sections, compareEntries)
	slices.SortFunc(v.contexts, compareEntries)
	for _, e := range v.sections {
		v.dynamic = v.dynamic || e.render != nil
		if !e.complete {
			continue
		}
		if v.complete != nil {
			v.invalid = fmt.Errorf("sections %q and %q: %w", v.complete.name, e.name, ErrTwoComplete)
		}
		v.complete = e
	}
	for _, e := range v.contexts {
		v.dynamic = v.dynamic || e.render != nil
	}
	return v
}

// unshadowed adds to the nearer entries those farther ones whose names they do not take.
func unshadowed(nearer, farther []*entry) []*entry {
	taken := nearer
	for _, e := range farther {
		if !slices.ContainsFunc(taken, func(n *entry) bool { return n.name == e.name }) {
			nearer = append(nearer, e)
		}
	}
	return nearer
}

func compareEntries(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.sequence, b.sequence))
}
