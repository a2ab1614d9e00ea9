package llm

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// Registry maps routes to adapters. Its zero value is an empty registry. It is
// safe for concurrent use; the exported fields are set before the first use and
// not changed afterwards. It must not be copied.
type Registry struct {
	// RetryFor gives the retry policy of a route; nil means the default policy for
	// every route.
	RetryFor func(provider string) Policy
	// Strict turns a stream that breaks the grammar (core I10) into a failure with
	// code STREAM_GRAMMAR. Tests and conformance suites set it.
	Strict bool
	// Logger hears of observers that panic; nil means nobody does.
	Logger *slog.Logger

	mu        sync.Mutex // routes, paces, observers, nextID
	routes    map[string]*registration
	paces     map[string]*Pace // of the routes that were called, whoever holds them
	observers map[int]func()
	nextID    int
}

type registration struct{ adapter Adapter }

// Register claims routes for an adapter, all or none of them: a route that is
// taken, or named twice, fails with code DUPLICATE_ADAPTER (core M10).
//
// unregister gives back the routes that this registration still holds. It stops
// new preparations and leaves prepared calls alone; it may be called many times.
func (r *Registry) Register(adapter Adapter, routes ...string) (unregister func(), err error) {
	return r.claim("register", false, adapter, routes)
}

// Replace claims routes in one step from whoever holds them; no call can observe
// a route without an adapter meanwhile (core M10). Calls that were prepared before
// keep their adapter, and the previous holder's other routes stay with it.
func (r *Registry) Replace(adapter Adapter, routes ...string) (unregister func(), err error) {
	return r.claim("replace", true, adapter, routes)
}

func (r *Registry) claim(op string, replace bool, adapter Adapter, routes []string) (func(), error) {
	if adapter == nil || len(routes) == 0 {
		return nil, codedError(CodeInvalidRequest, op+" adapter: an adapter and at least one route are needed")
	}
	routes = slices.Clone(routes)
	r.mu.Lock()
	for i, route := range routes {
		_, taken := r.routes[route]
		switch {
		case route == "":
			r.mu.Unlock()
			return nil, codedError(CodeInvalidRequest, op+" adapter: a route has no name")
		case slices.Contains(routes[:i], route):
			r.mu.Unlock()
			return nil, codedError(CodeDuplicateAdapter, fmt.Sprintf("%s adapter: route %q is named twice", op, route))
		case taken && !replace:
			r.mu.Unlock()
			return nil, codedError(CodeDuplicateAdapter, fmt.Sprintf("%s adapter: route %q has an adapter already", op, route))
		}
	}
	if r.routes == nil {
		r.routes = make(map[string]*registration)
	}
	reg := &registration{adapter: adapter}
	for _, route := range routes {
		r.routes[route] = reg
	}
	r.mu.Unlock()
	r.notify()
	return func() { r.release(reg, routes) }, nil
}

func (r *Registry) release(reg *registration, routes []string) {
	r.mu.Lock()
	changed := false
	for _, route := range routes {
		if r.routes[route] == reg {
			delete(r.routes, route)
			changed = true
		}
	}
	r.mu.Unlock()
	if changed {
		r.notify()
	}
}

// Providers returns the routes that have an adapter, sorted.
func (r *Registry) Providers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, 0, len(r.routes))
	for route := range r.routes {
		names = append(names, route)
	}
	slices.Sort(names)
	return names
}

// OnChange calls fn after every change of the routes, on the goroutine that made
// the change and outside all locks. fn reads Providers: of two changes at the same
// time either may be heard first. A panic of fn is contained. remove ends it; a
// call that is already under way may still arrive.
func (r *Registry) OnChange(fn func()) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.observers == nil {
		r.observers = make(map[int]func())
	}
	id := r.nextID
	r.nextID++
	r.observers[id] = fn
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.observers, id)
	}
}

func (r *Registry) notify() {
	r.mu.Lock()
	ids := make([]int, 0, len(r.observers))
	for id := range r.observers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	fns := make([]func(), len(ids))
	for i, id := range ids {
		fns[i] = r.observers[id]
	}
	r.mu.Unlock()
	for _, fn := range fns {
		r.observe(fn)
	}
}

func (r *Registry) observe(fn func()) {
	defer func() {
		if p := recover(); p != nil && r.Logger != nil {
			r.Logger.Error("llm registry: an observer panicked", "panic", p)
		}
	}()
	fn()
}

func (r *Registry) lookup(route string) (Adapter, *Pace, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reg, ok := r.routes[route]
	if !ok {
		return nil, nil, false
	}
	pace := r.paces[route]
	if pace == nil {
		if r.paces == nil {
			r.paces = make(map[string]*Pace)
		}
		pace = new(Pace)
		r.paces[route] = pace
	}
	return reg.adapter, pace, true
}
