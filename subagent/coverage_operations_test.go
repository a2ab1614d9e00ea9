package subagent_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func methods(of reflect.Type) (names []string) {
	for m := range of.Methods() {
		names = append(names, m.Name)
	}
	return names
}

// RUN-01: a run has an id, perhaps an agent, one result and its release, and nothing
// else: it is neither steered nor resumed nor sent to.
func TestRUN01Operations(t *testing.T) {
	want := []string{"Close", "ID", "Local", "Wait"}
	if diff := cmp.Diff(want, methods(reflect.TypeFor[subagent.Run]())); diff != "" {
		t.Errorf("operations of a run (-want +got):\n%s", diff)
	}
}

// REG-17, CAN-16, P11: neither the service nor a provider has an operation that
// resumes, cancels, steers, interrupts or disposes a child. Such operations stand on
// interfaces of their own, which a deployment may leave out.
func TestCAN16NoPowerOverAcceptedWork(t *testing.T) {
	forbidden := []string{"resume", "cancel", "steer", "interrupt", "dispose", "abort", "stop", "kill"}
	for _, of := range []reflect.Type{reflect.TypeFor[*subagent.Service](), reflect.TypeFor[subagent.Provider](), reflect.TypeFor[*spawn.Provider]()} {
		names := methods(of)
		if len(names) == 0 {
			t.Errorf("%v: no operation was found", of)
		}
		for _, name := range names {
			if slices.ContainsFunc(forbidden, func(word string) bool { return strings.Contains(strings.ToLower(name), word) }) {
				t.Errorf("%v has the operation %s", of, name)
			}
		}
	}
}

// EVT-01: nothing is told while a start is pending, also to hooks of that parent
// alone; once it is published the start is told.
func TestEVT01NothingWhilePending(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		p := &waiting{Scripted: &subagenttest.Scripted{}, reached: make(chan struct{}), open: make(chan struct{})}
		s.Register(t, p)
		parent := s.Parent(t)
		told := 0
		s.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) {
			told++
			if e.Parent != parent {
				t.Errorf("told of a child of %v", e.Parent)
			}
		}}, parent)
		done := make(chan subagent.Run)
		go func() { done <- s.Start(t, t.Context(), "scripted", subagenttest.Request(parent, "x")) }()
		<-p.reached
		synctest.Wait()
		if n := len(s.Lifecycle.Edges()); n != 0 || told != 0 {
			t.Errorf("%d edges were told, %d to the parent's own hook, while the start was pending", n, told)
		}
		close(p.open)
		subagenttest.Await(t, <-done)
		synctest.Wait()
		if n := len(s.Lifecycle.Edges()); n != 2 || told != 1 {
			t.Errorf("%d edges were told, %d starts to the parent's own hook, want a pair and 1", n, told)
		}
	})
}

// waiting publishes when it is let go.
type waiting struct {
	*subagenttest.Scripted
	reached, open chan struct{}
}

func (w *waiting) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	close(w.reached)
	<-w.open
	return w.Scripted.Start(ctx, req)
}

// COMP-21, DEP-13: an agent that nobody delegated has no lineage, no pinned policy
// and no depth, whatever its options say: the loop only keeps the number for the seam.
func TestDEP13LoopKeepsDepthOnly(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		o := subagenttest.ParentOptions()
		o.Depth = ptr(int64(7))
		a := s.NewAgent(t, agent.Create{Options: o})
		h := a.Session().Header()
		approval, sandbox := a.Session().Policies()
		if h.DelegationDepth != 0 || h.ParentSession != "" || h.Origin != "" || h.AgentPreset != "" || approval+sandbox != "" {
			t.Errorf("header %+v, policies %q and %q", h, approval, sandbox)
		}
		if got := a.Options().Depth; got == nil || *got != 7 {
			t.Errorf("option %v", got)
		}
	})
}
