package subagenttest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
)

// Child says what one child of the provider under test is to do.
type Child struct {
	// Text is what it says; "" is nothing.
	Text string
	// Structured is what it tries once to hand in as its answer, where one in the form
	// of a schema is asked for; "" is nothing.
	Structured string
	// Hold, if set, keeps it at work after it said Text, until Hold is closed or it
	// is cancelled.
	Hold <-chan struct{}
	// Deaf is how long a held child goes on after it was cancelled, as if it had not
	// noticed.
	Deaf time.Duration
	// Panic makes its model panic after it said Text, or whatever comes closest: a
	// crash of the child.
	Panic bool
	// End is how it ends of itself; "" is completed. A provider that cannot make
	// its children end so skips that through Subject.Reasons.
	End subagent.StopReason
}

// Subject is one provider under test with the means to script its children.
type Subject struct {
	Provider subagent.Provider
	// Script makes children behave that are started with exactly this prompt. It is
	// called before they are started. All of Child must be obeyed, but for End.
	Script func(prompt string, c Child)
	// Local says that runs expose the exact child agent.
	Local bool
	// Active returns how many children hold resources of the provider; it is 0
	// when every run is closed.
	Active func() int
	// Reasons are the ways, beside completed, in which its children can be made to
	// end of themselves.
	Reasons []subagent.StopReason
	// PartialText says that the text of a child that did not complete is kept.
	PartialText bool
}

// Factory makes the subject in a fresh system. It does not register the provider.
type Factory func(t testing.TB, s *System) Subject

// Run checks a provider's one-shot contract. Every case has a system of its own
// and runs in a testing/synctest bubble, which is the leak check too. It runs
// twice: with a parent that never had a turn, and "past" with one in the state of
// a real delegation: a completed turn, an open one, and a message that waits since
// before that.
func Run(t *testing.T, f Factory) {
	for _, c := range cases() {
		for _, past := range []bool{false, true} {
			name := c.name
			if past {
				name += " past"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sys := NewSystem(t, Options{})
					r := &rig{T: t, System: sys, Subject: f(t, sys)}
					r.name = r.Provider.Name()
					r.unregister = sys.Register(t, r.Provider)
					r.parent = sys.Parent(t)
					if past {
						r.live(r.parent)
					}
					c.run(r)
					synctest.Wait()
					r.idle()
				})
			})
		}
	}
}

// What a parent with a past says, and what waits for it.
const (
	parentSaid  = "the parent's own answer"
	parentsWork = "work that waits for the parent"
)

// live gives a parent a completed turn, an open one and a waiting message, which
// is accepted within the first turn: so what a child may inherit holds it.
func (r *rig) live(parent parentAgent) {
	r.Helper()
	first := make(chan struct{})
	r.Answer("earlier", scripted.Step{Hold(first), scripted.SayLiteral(parentSaid)})
	r.Answer("now", scripted.Step{Hold(make(chan struct{}))})
	for _, prompt := range []string{"earlier", "now", parentsWork} {
		if err := parent.Followup(agent.UserText(prompt)); err != nil {
			r.Fatal(err)
		}
		synctest.Wait()
	}
	close(first)
	synctest.Wait()
}

type testCase struct {
	name string
	run  func(*rig)
}

// rig is one case: the system, the subject in it, and a parent.
type rig struct {
	*testing.T
	*System
	Subject

	name       string
	parent     parentAgent
	unregister func()
}

// idle checks that nothing of any child is left.
func (r *rig) idle() {
	r.Helper()
	if n := r.Active(); n != 0 {
		r.Errorf("%d children hold resources, want none", n)
	}
	for _, a := range r.Agents.List() {
		if a != r.parent {
			r.Errorf("agent %s is still live", a.ID())
		}
	}
	if n := len(r.Sessions.List()); n > 1 {
		r.Errorf("%d sessions are live, want the parent's", n)
	}
	r.Lifecycle.Settled()
}

// start starts a child that does c.
func (r *rig) start(ctx context.Context, prompt string, c Child) subagent.Run {
	r.Helper()
	r.Script(prompt, c)
	return r.Start(r.T, ctx, r.name, Request(r.parent, prompt))
}

// result waits for a run without closing it.
func (r *rig) result(run subagent.Run) subagent.Result {
	r.Helper()
	res, err := run.Wait(r.Context())
	if err != nil {
		r.Fatalf("wait: %v", err)
	}
	if res.Output == nil {
		r.Error("the output is nil, want an empty list where there is none (RUN)")
	}
	return res
}

func (r *rig) close(run subagent.Run) {
	r.Helper()
	if err := run.Close(r.Context()); err != nil {
		r.Errorf("close: %v", err)
	}
}

// want checks reason and text of a result.
func (r *rig) want(res subagent.Result, reason subagent.StopReason, text string) {
	r.Helper()
	if res.StopReason != reason {
		r.Errorf("stop reason = %q (%s), want %q", res.StopReason, res.Diagnostic, reason)
	}
	if got := message.JoinText(res.Output); got != text {
		r.Errorf("output = %q, want %q", got, text)
	}
}
