// Package subagenttest is what a provider of the subagent seam is tested with: a
// conformance suite (Run), a whole small system to run it in (NewSystem), a
// scripted provider that stands in for any transport (Scripted), and the
// companion that watches the stream of lifecycle events in every test (Watch).
//
// It is an ordinary package, so that third parties run the same suite. Floor T.
package subagenttest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// Lifecycle is the companion for core I15 and I16 and seam EVT-29. It watches a
// service from the moment of Watch and reports every breach to the test at once.
type Lifecycle struct {
	t   testing.TB
	svc *subagent.Service

	mu        sync.Mutex // guards following
	providers []string
	seen      map[string]bool
	open      map[string]subagent.StartEdge
	edges     []Edge
	published map[session.ID]session.ID // agents that were announced, with the parents that they record
}

// Edge is one lifecycle event in the order in which it was told. End is nil for a
// start.
type Edge struct {
	Start subagent.StartEdge
	End   *subagent.EndEdge
}

// Watch attaches the companion to a service. What is registered already counts as
// added; the children that it hears of were created later.
func Watch(t testing.TB, svc *subagent.Service) *Lifecycle {
	l := &Lifecycle{t: t, svc: svc, providers: svc.Providers(), seen: map[string]bool{}, open: map[string]subagent.StartEdge{}, published: map[session.ID]session.ID{}}
	svc.AddHooks(subagent.Hooks{ProviderAdded: l.added, ProviderRemoved: l.removed, Started: l.started, Ended: l.ended}, nil)
	svc.Agents().AddHooks(agent.Hooks{Created: l.created, Disposed: l.disposed})
	return l
}

func (l *Lifecycle) breach(rule, format string, args ...any) {
	l.t.Errorf("%s: %s", rule, fmt.Sprintf(format, args...))
}

func (l *Lifecycle) added(p subagent.Provider) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := p.Name()
	if slices.Contains(l.providers, name) {
		l.breach("I15", "provider %q was added while one of that name is there", name)
	}
	l.providers = append(l.providers, name)
	if got, ok := l.svc.Provider(name); !ok || got.Name() != name {
		l.breach("REG-09", "provider %q was announced before it resolves", name)
	}
	return nil
}

func (l *Lifecycle) removed(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.providers, name)
	if i < 0 {
		l.breach("I15", "provider %q was removed without having been added", name)
		return
	}
	l.providers = slices.Delete(l.providers, i, i+1)
}

func (l *Lifecycle) started(e subagent.StartEdge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.RunID == "" || e.Provider == "" || e.ID == "" || e.Parent == nil && e.Epoch == 0:
		l.breach("I15", "a start is incomplete: %+v", e)
	case l.seen[e.RunID]:
		l.breach("I15", "run id %s was used before", e.RunID)
	}
	for _, o := range l.open {
		if o.ID == e.ID {
			l.breach("I16", "child %s has two runs at once", e.ID)
		}
	}
	l.seen[e.RunID] = true
	l.open[e.RunID] = e
	l.edges = append(l.edges, Edge{Start: e})
	_, live := l.svc.Agents().Get(e.ID)
	parent, published := l.published[e.ID]
	switch {
	case live && !e.Local:
		l.breach("I15", "run %s is not local, but agent %s is live", e.RunID, e.ID)
	case !published && e.Local:
		l.breach("I15", "run %s is local, but no agent %s was published", e.RunID, e.ID)
	case e.Local && e.Parent != nil && parent != e.Parent.ID():
		l.breach("I15", "agent %s records %s as its parent, not %s", e.ID, parent, e.Parent.ID())
	}
}

func (l *Lifecycle) ended(e subagent.EndEdge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	start, ok := l.open[e.RunID]
	switch {
	case !ok:
		l.breach("I15", "the end of run %s has no open start", e.RunID)
	case start != e.StartEdge:
		l.breach("I15", "the edges of run %s differ: %+v, %+v", e.RunID, start, e.StartEdge)
	case e.StopReason == "":
		l.breach("I15", "the end of run %s has no stop reason", e.RunID)
	case e.Failure != nil && (e.StopReason != subagent.StopError || e.Output != nil || e.Failure.Code == "" || e.Failure.Text == ""):
		l.breach("I15", "the end of run %s carries a failure and is not an error without output: %+v", e.RunID, e)
	case e.Output != nil && len(e.Output) == 0:
		l.breach("EVT-11", "the end of run %s carries an empty output", e.RunID)
	}
	delete(l.open, e.RunID)
	l.edges = append(l.edges, Edge{Start: e.StartEdge, End: &e})
}

func (l *Lifecycle) created(a *agent.Agent) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published[a.ID()] = a.Session().Header().ParentSession
	return nil
}

func (l *Lifecycle) disposed(a *agent.Agent) {
	for _, b := range l.svc.Agents().List() {
		if b.Owner() == a {
			l.breach("I16", "agent %s was disposed before its child %s", a.ID(), b.ID())
		}
	}
}

// Edges returns what was told so far.
func (l *Lifecycle) Edges() []Edge {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.edges)
}

// Settled reports every run whose pair is not closed. Call it when nothing runs.
func (l *Lifecycle) Settled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		l.breach("I15", "the pair of run %s on %q (child %s) was never closed", e.RunID, e.Provider, e.ID)
	}
}
