// Package owners is the ownership of continuable children as pure data: which
// Activations there are, which of them waits for which, below whom each was made, and
// where nothing new may begin. It has no goroutine, lock, clock or I/O; whoever uses it
// holds a lock of its own around every call, and tells it what happens to agents.
//
// An Activation is one residency of a continuable child. It is known by a key that
// stands for the exact live agent, so that an agent with the same id that comes later is
// another one. Keys of agents that have no Activation (roots, one-shot children) appear
// only in paths.
//
// Nothing here is a state machine: what an Activation is doing is derived, at one gate,
// from whether its agent is quiescent, which it is not while a message that it accepted
// is still to run, and from the children that it owns (design § 4, Derive, do not
// shadow). Floor 4.
package owners

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Errors of a Graph. They tell why something is refused; nothing has changed then.
var (
	// ErrPresent: the key has an Activation already (seam OWN-01).
	ErrPresent = errors.New("there is an Activation of it already")
	// ErrAbsent: the key has no Activation.
	ErrAbsent = errors.New("there is no Activation of it")
	// ErrClosing: the Activation, or the one that would own it, is being disposed
	// (seam RB-12, DRAIN-07).
	ErrClosing = errors.New("the Activation is being disposed")
	// ErrDraining: nothing new may begin there any more (seam DRAIN-01, SCOPE-04).
	ErrDraining = errors.New("nothing may begin here any more")
	// ErrOwns: an Activation that owns children cannot be released (seam OWN-05).
	ErrOwns = errors.New("it still owns children")
	// ErrCircle: an agent cannot be below itself.
	ErrCircle = errors.New("it would be below itself")
)

// Residency is what an Activation is doing (seam SET-01).
type Residency uint8

// The residencies.
const (
	// Running: its agent has work under way.
	Running Residency = iota
	// Waiting: it is quiescent and owns children that are not released.
	Waiting
	// Settled: it is quiescent and owns nothing: it ends.
	Settled
)

func (r Residency) String() string {
	switch r {
	case Running:
		return "running"
	case Waiting:
		return "waiting"
	case Settled:
		return "settled"
	}
	return fmt.Sprintf("residency %d", uint8(r))
}

// Graph holds the Activations of one manager. The zero value is empty and ready. It is
// not safe for concurrent use.
type Graph[K comparable] struct {
	acts    map[K]*activation[K]
	entered uint64
	shut    map[K]struct{} // below these nothing may begin
	over    bool           // nothing may begin anywhere
}

type activation[K comparable] struct {
	seq     uint64 // in which place it entered
	path    []K    // whom it was made below, nearest first, as far as they were live then
	owns    int    // how many are released before it: those that it begins the path of, and that are owned
	owned   bool
	closing bool
	sealed  bool // nothing begins below it at any depth
}

// Enter makes an Activation of key. path names the agents that it is made below, from
// its direct parent up to a root, as they are live at that moment: it is what scopes and
// authority go by from then on, also when agents in between have gone (seam OWN-08…10,
// SCOPE-11). If the direct parent has an Activation, that owns the new one from here on
// and cannot settle before it is released (seam OWN-02, CONT-20); a parent without one
// is in no set (seam OWN-04). path is copied.
//
// Errors: ErrPresent; ErrDraining below a path where nothing may begin; ErrClosing when
// the parent is being disposed; ErrCircle.
func (g *Graph[K]) Enter(key K, path []K) error {
	if g.acts[key] != nil {
		return ErrPresent
	}
	if err := g.Admits(path); err != nil {
		return err
	}
	if g.above(path, func(k K) bool { return k == key }) {
		return ErrCircle
	}
	if g.acts == nil {
		g.acts = map[K]*activation[K]{}
	}
	g.entered++
	a := &activation[K]{seq: g.entered, path: slices.Clone(path)}
	g.acts[key] = a
	g.own(a)
	return nil
}

// Deliver notes that the direct parent, which path begins with, gives an Activation
// work: it is owned by that parent again, at most once (seam OWN-02, OWN-07), and is
// below that path from now on, since a root may be another agent than it was. path is
// empty where the parent is not live, which leaves everything as it is. path is copied.
//
// Errors: ErrAbsent; ErrClosing when it or the parent is being disposed; ErrDraining;
// ErrCircle.
func (g *Graph[K]) Deliver(key K, path []K) error {
	a := g.acts[key]
	switch {
	case a == nil:
		return ErrAbsent
	case a.closing:
		return ErrClosing
	}
	if len(path) == 0 {
		return g.Admits(a.path)
	}
	if err := g.Admits(path); err != nil {
		return err
	}
	if g.above(path, func(k K) bool { return k == key }) {
		return ErrCircle
	}
	if len(a.path) > 0 && a.path[0] != path[0] {
		g.disown(a)
	}
	a.path = slices.Clone(path)
	g.own(a)
	return nil
}

// own notes that an Activation is owned by the one that its path begins with.
func (g *Graph[K]) own(a *activation[K]) {
	if a.owned || len(a.path) == 0 {
		return
	}
	if p := g.acts[a.path[0]]; p != nil {
		p.owns++
		a.owned = true
	}
}

func (g *Graph[K]) disown(a *activation[K]) {
	if a.owned {
		g.acts[a.path[0]].owns-- // it is there until it owns nothing
		a.owned = false
	}
}

// above reports whether is holds for anybody on path, or on the paths of those of them
// that have an Activation: these may know of more, since they can have been given work
// by another root since.
func (g *Graph[K]) above(path []K, is func(K) bool) bool {
	var seen map[K]struct{}
	for queue := path; len(queue) > 0; {
		k := queue[0]
		queue = queue[1:]
		if _, ok := seen[k]; ok {
			continue
		}
		if is(k) {
			return true
		}
		if seen == nil {
			seen = map[K]struct{}{}
		}
		seen[k] = struct{}{}
		if a := g.acts[k]; a != nil && len(a.path) > 0 {
			queue = append(slices.Clip(queue), a.path...)
		}
	}
	return false
}

// Admits reports whether something may begin below path: nil, ErrDraining or, where the
// direct parent is being disposed or anybody above was sealed, ErrClosing.
func (g *Graph[K]) Admits(path []K) error {
	if g.over || g.above(path, func(k K) bool { _, ok := g.shut[k]; return ok }) {
		return ErrDraining
	}
	if len(path) > 0 && g.Closing(path[0]) || g.above(path, func(k K) bool { a := g.acts[k]; return a != nil && a.sealed }) {
		return ErrClosing
	}
	return nil
}

// Residency derives what the Activation is doing; quiescent is whether its agent has
// nothing under way. An Activation that there is not is settled.
func (g *Graph[K]) Residency(key K, quiescent bool) Residency {
	a := g.acts[key]
	switch {
	case a == nil:
		return Settled
	case !quiescent:
		return Running
	case a.owns > 0:
		return Waiting
	}
	return Settled
}

// Close begins the disposal of an Activation: nothing is delivered to it and nothing
// begins directly below it any more. It reports whether this call began it: of those
// who converge, one does the work.
func (g *Graph[K]) Close(key K) (first bool) {
	a := g.acts[key]
	if a == nil || a.closing {
		return false
	}
	a.closing = true
	return true
}

// Seal is Close for an Activation that ends with all that is below it: nothing begins
// there at any depth, also below agents in between that have no Activation.
func (g *Graph[K]) Seal(key K) (first bool) {
	if a := g.acts[key]; a != nil {
		a.sealed = true
	}
	return g.Close(key)
}

// Release takes a disposed Activation out: it leaves the set of its owner, whatever went
// wrong on the way (seam OWN-05, OWN-06). owner is that owner, if it has an Activation;
// emptied says that it owns nothing any more, so that its gate is to be asked. The error
// is ErrAbsent, or ErrOwns: children come first (seam TEAR-02).
func (g *Graph[K]) Release(key K) (owner K, owned, emptied bool, err error) {
	a := g.acts[key]
	switch {
	case a == nil:
		return owner, false, false, ErrAbsent
	case a.owns > 0:
		return owner, false, false, ErrOwns
	}
	delete(g.acts, key)
	if len(a.path) == 0 || g.acts[a.path[0]] == nil {
		return owner, false, false, nil
	}
	owner = a.path[0]
	g.disown(a)
	return owner, true, g.acts[owner].owns == 0, nil
}

// Shut closes admission below root for good: strictly below, root itself goes on (seam
// SCOPE-01…04, SCOPE-07). Reopen forgets it, when that exact agent has left the registry:
// one that comes later with its id is another key (seam SCOPE-08).
func (g *Graph[K]) Shut(root K) {
	if g.shut == nil {
		g.shut = map[K]struct{}{}
	}
	g.shut[root] = struct{}{}
}

// Reopen is described with Shut.
func (g *Graph[K]) Reopen(root K) { delete(g.shut, root) }

// ShutAll closes admission everywhere (seam DRAIN-01).
func (g *Graph[K]) ShutAll() { g.over = true }

// Below returns the Activations that are strictly below any of the roots, an ancestor
// before what is below it: the order in which they are cancelled (seam SCOPE-03,
// SCOPE-05, SCOPE-11). Without roots it returns all there are.
func (g *Graph[K]) Below(roots ...K) []K {
	list := make([]K, 0, len(g.acts))
	for k, a := range g.acts {
		if len(roots) == 0 || g.Under(a.path, roots...) {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, g.bySeq)
	// Who entered late may stand above who entered early.
	sorted := make([]K, 0, len(list))
	todo := make(map[K]struct{}, len(list))
	for _, k := range list {
		todo[k] = struct{}{}
	}
	var visit func(k K)
	visit = func(k K) {
		if _, ok := todo[k]; !ok {
			return
		}
		delete(todo, k)
		for _, p := range g.acts[k].path {
			visit(p)
		}
		sorted = append(sorted, k)
	}
	for _, k := range list {
		visit(k)
	}
	return sorted
}

func (g *Graph[K]) bySeq(a, b K) int { return cmp.Compare(g.acts[a].seq, g.acts[b].seq) }

// Under reports whether what is made below path would be strictly below any of the roots.
func (g *Graph[K]) Under(path []K, roots ...K) bool {
	return g.above(path, func(k K) bool { return slices.Contains(roots, k) })
}

// Descends reports whether an Activation is below an agent, at any depth: whether that
// is an ancestor of it (seam INT-09). Nobody is below itself (seam INT-11).
func (g *Graph[K]) Descends(key, ancestor K) bool {
	a := g.acts[key]
	return a != nil && g.above(a.path, func(k K) bool { return k == ancestor })
}

// Path returns whom an Activation is below, nearest first; it must not be modified. ok
// is whether there is one.
func (g *Graph[K]) Path(key K) (path []K, ok bool) {
	a := g.acts[key]
	if a == nil {
		return nil, false
	}
	return a.path, true
}

// Owned returns what an Activation owns, in the order in which it entered.
func (g *Graph[K]) Owned(key K) []K {
	var list []K
	for k, a := range g.acts {
		if a.owned && a.path[0] == key {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, g.bySeq)
	return list
}

// Closing reports whether the disposal of an Activation has begun.
func (g *Graph[K]) Closing(key K) bool {
	a := g.acts[key]
	return a != nil && a.closing
}

// Len returns how many Activations there are.
func (g *Graph[K]) Len() int { return len(g.acts) }
