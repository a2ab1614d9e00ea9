package delegate_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// frail is a provider whose runs panic when they are waited for.
type frail struct{ *subagenttest.Scripted }

func (f frail) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	run, err := f.Scripted.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return frailRun{run}, nil
}

type frailRun struct{ subagent.Run }

func (frailRun) Wait(context.Context) (res subagent.Result, _ error) { panic("no wait") }

// TOOL-17, BG-10: a run whose own code panics is a failed delegation, and is closed
// like any other, in the foreground and as a job.
func TestPanickingRun(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		r := jobs(t, s)
		p := frail{capable()}
		s.Register(t, p)
		mount(t, s, delegate.Config{Provider: "scripted", Background: true, Jobs: r})
		parent := s.Parent(t)
		const says = "the subagent's result was lost: Wait of the run panicked: no wait"
		res := execute(t.Context(), s, parent, "subagent", task)
		if res.Code != tool.CodeToolFailed || resultText(res) != "Error: "+says {
			t.Errorf("result = %s %q", res.Code, resultText(res))
		}
		if n := p.Active(); n != 0 {
			t.Errorf("TOOL-17: %d runs are not closed", n)
		}
		if state, got := ended(t, s, r, parent, begin(t, t.Context(), s, parent)); state != job.Failed || got != says {
			t.Errorf("%s, %q", state, got)
		}
		if n := p.Active(); n != 0 {
			t.Errorf("BG-10: %d runs are not closed", n)
		}
	})
}

// asked is a provider whose capabilities are what a test says.
type asked struct {
	*subagenttest.Scripted
	caps func() subagent.Capabilities
}

func (a asked) Capabilities() subagent.Capabilities { return a.caps() }

func panicking() asked {
	return asked{capable(), func() subagent.Capabilities { panic("who knows") }}
}

// TOOL-38: a provider that panics when it is asked what it can do cannot be served:
// a mount says so and leaves nothing behind, and one that comes later stays registered.
func TestPanickingProvider(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		const says = `delegation tool "subagent": provider "scripted" panicked: who knows`
		remove := s.Register(t, panicking())
		if _, err := delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: "scripted"}, nil); err == nil || err.Error() != says {
			t.Errorf("Mount = %v", err)
		}
		remove()
		s.Register(t, capable())()
		if got := visible(s); got != "" {
			t.Errorf("tools = %q: a refused mount came back", got)
		}
		var faults []string
		if _, err := delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: "scripted"}, func(err error) { faults = append(faults, err.Error()) }); err != nil {
			t.Fatal(err)
		}
		s.Register(t, panicking())
		if len(faults) != 1 || faults[0] != says || visible(s) != "" {
			t.Errorf("faults = %q, tools = %q", faults, visible(s))
		}
	})
}

// TOOL-08: an unmount while the tool is being made for a provider that has just come
// is for good.
func TestUnmountAmidFollowing(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		unmount := mount(t, s, delegate.Config{Provider: "scripted"})
		reached, open := make(chan struct{}), make(chan struct{})
		p := asked{capable(), nil}
		p.caps = func() subagent.Capabilities {
			close(reached)
			<-open
			return p.Caps
		}
		done := make(chan error, 1)
		go func() {
			_, err := s.Service.Register(p)
			done <- err
		}()
		<-reached
		unmount()
		close(open)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := visible(s); got != "" {
			t.Errorf("tools = %q after the unmount", got)
		}
	})
}

// TOOL-07: nobody's tools change where the tool stays what it is, as it is when a
// provider is replaced before its going is told.
func TestFollowingChangesNothing(t *testing.T) {
	replace := func(t *testing.T, s *subagenttest.System, next *subagenttest.Scripted) (before, after *tool.Toolset) {
		done := make(chan error, 1)
		// Before the mount, so that it comes before what the mount makes of it.
		s.Service.AddHooks(subagent.Hooks{ProviderRemoved: func(string) {
			go func() {
				_, err := s.Service.Register(next)
				done <- err
			}()
			synctest.Wait() // it is registered, and waits to be told
		}}, nil)
		remove := s.Register(t, capable())
		mount(t, s, delegate.Config{Provider: "scripted"})
		before = s.Tools.Root().Toolset()
		remove()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return before, s.Tools.Root().Toolset()
	}
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		next := capable()
		if before, after := replace(t, s, next); before != after {
			t.Error("the tools changed")
		}
		res := execute(t.Context(), s, s.Parent(t), "subagent", task)
		if res.IsError || len(next.Starts()) != 1 {
			t.Errorf("the tool does not reach the new provider: %s", resultText(res))
		}
	})
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		next := capable()
		next.Inherits = true
		if _, after := replace(t, s, next); !strings.Contains(after.Lookup("subagent").Description, "completed turns") {
			t.Error("TOOL-06: the wording was not derived again")
		}
	})
}
