package tool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrClosed is the cause when something is registered in a closed scope (core L51).
var ErrClosed = errors.New("the scope is closed")

// Registry holds the global layer of tools and everything nested below it. It is
// a value: a process may have any number. All methods of a Registry and of its
// scopes may be called concurrently.
type Registry struct{ root Scope }

// New returns an empty registry.
func New() *Registry { return &Registry{} }

// Root returns the global scope.
func (r *Registry) Root() *Scope { return &r.root }

// Scope is one layer of the registry: its own tools, what it restricts of the
// layers above, and its hooks (core T4). The nearest layer wins by name.
//
// No callback runs while a scope's lock is held.
type Scope struct {
	parent *Scope // nil: the global scope

	mu sync.Mutex // guards following

	closed  bool
	own     []*Compiled // in order of registration
	filters []filter
	hooks   *hookSet // nil until one is added
	tools   *Toolset // cache of Toolset, valid while its base is the parent's
	chain   *chain   // cache of hookChain, likewise
}

// Child returns a new, empty layer below s. A child agent's scope is a child of
// the global scope: it sees global tools and none of its parent agent's scoped
// ones (core T9). It costs one allocation; nothing is compiled again.
func (s *Scope) Child() *Scope { return &Scope{parent: s} }

// Register compiles def and adds it to this layer. A second tool of the same name
// in one layer is an error, and so is any registration after Close. The returned
// function takes the tool out again: calls that are already prepared go on, new
// ones find it no more. It may be called more than once.
func (s *Scope) Register(def Definition) (unregister func(), err error) {
	c, err := Compile(def)
	if err != nil {
		return nil, err
	}
	return s.RegisterCompiled(c)
}

// RegisterCompiled is Register for a definition that was compiled before, so that
// many scopes can share one compilation.
func (s *Scope) RegisterCompiled(c *Compiled) (unregister func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.def.Name
	if s.closed {
		return nil, fmt.Errorf("register tool %q: %w", name, ErrClosed)
	}
	if slices.ContainsFunc(s.own, func(o *Compiled) bool { return o.def.Name == name }) {
		return nil, fmt.Errorf("register tool %q: the name is taken in this scope", name)
	}
	// The slot is a pointer of its own, so that removing this registration never
	// removes a later one of the same definition.
	entry := &Compiled{def: c.def, params: c.params, output: c.output}
	s.own = append(slices.Clip(s.own), entry)
	s.tools = nil
	return func() { s.unregister(entry) }, nil
}

func (s *Scope) unregister(entry *Compiled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.own, entry); i >= 0 {
		s.own = slices.Delete(slices.Clone(s.own), i, i+1)
		s.tools = nil
	}
}

// Close empties the layer and refuses every later registration, restriction and
// call (core L51). Calls that are already prepared are not affected. Scopes below
// a closed one see no tools any more. It may be called more than once.
func (s *Scope) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.own, s.filters, s.hooks, s.tools, s.chain = nil, nil, nil, nil, nil
}

func (s *Scope) isClosed() bool {
	for ; s != nil; s = s.parent {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return true
		}
	}
	return false
}

// Spec is what a model gets to know of a tool, and nothing else (core T2).
type Spec struct {
	Name        string
	Description string
	// Parameters is the JSON Schema as registered. It must not be modified.
	Parameters []byte
}

// Toolset is the immutable list of tools that a scope sees at one moment. As long
// as nothing relevant changes, a scope returns the same *Toolset, so pointer
// equality means "the same tools".
type Toolset struct {
	base    *Toolset
	entries []*Compiled // by name
	defs    []*Definition
	specs   []Spec
}

// Definitions returns the tools sorted by name. The slice must not be modified.
func (t *Toolset) Definitions() []*Definition { return t.defs }

// Specs returns what a model gets to know, sorted by name. The slice must not be
// modified.
func (t *Toolset) Specs() []Spec { return t.specs }

// Lookup returns the definition of a name, or nil.
func (t *Toolset) Lookup(name string) *Definition {
	if c := t.lookup(name); c != nil {
		return c.def
	}
	return nil
}

func (t *Toolset) lookup(name string) *Compiled {
	i, ok := slices.BinarySearchFunc(t.entries, name, func(c *Compiled, name string) int {
		return strings.Compare(c.def.Name, name)
	})
	if !ok {
		return nil
	}
	return t.entries[i]
}

func (t *Toolset) names() []string {
	names := make([]string, len(t.defs))
	for i, d := range t.defs {
		names[i] = d.Name
	}
	return names
}

func newToolset(base *Toolset, entries []*Compiled) *Toolset {
	t := &Toolset{base: base, entries: entries,
		defs: make([]*Definition, len(entries)), specs: make([]Spec, len(entries))}
	for i, c := range entries {
		t.defs[i] = c.def
		t.specs[i] = Spec{Name: c.def.Name, Description: c.def.Description, Parameters: c.def.Parameters}
	}
	return t
}

// Toolset returns the tools that this scope sees now: its own, and those of the
// layers above that neither an own tool of that name shadows nor a restriction
// hides (core T4, T6, T8). Unchanged, it costs no allocation; a layer without
// tools and restrictions of its own shares the list of the layer above.
func (s *Scope) Toolset() *Toolset {
	var base *Toolset
	if s.parent != nil {
		base = s.parent.Toolset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &Toolset{}
	}
	if base != nil && len(s.own) == 0 && len(s.filters) == 0 {
		return base
	}
	if s.tools == nil || s.tools.base != base {
		s.tools = newToolset(base, s.mergeLocked(base))
	}
	return s.tools
}

func (s *Scope) mergeLocked(base *Toolset) []*Compiled {
	entries := slices.Clone(s.own)
	if base != nil {
		for _, c := range base.entries {
			shadowed := slices.ContainsFunc(s.own, func(o *Compiled) bool { return o.def.Name == c.def.Name })
			if !shadowed && s.admitsLocked(c.def.Name) {
				entries = append(entries, c)
			}
		}
	}
	slices.SortFunc(entries, func(a, b *Compiled) int { return strings.Compare(a.def.Name, b.def.Name) })
	return entries
}

// Visible returns the definitions that this scope sees, sorted by name. The slice
// must not be modified.
func (s *Scope) Visible() []*Definition { return s.Toolset().Definitions() }

// Specs returns what a model may know of the tools that this scope sees, sorted
// by name (core T2). The slice must not be modified.
func (s *Scope) Specs() []Spec { return s.Toolset().Specs() }
