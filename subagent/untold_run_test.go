package subagent_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// untoldProvider publishes a run that cannot say who it is.
type untoldProvider struct{ closed atomic.Int32 }

func (*untoldProvider) Name() string                        { return "broken" }
func (*untoldProvider) Capabilities() subagent.Capabilities { return subagent.Capabilities{} }
func (*untoldProvider) InheritsParentContext() bool         { return false }
func (p *untoldProvider) Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
	return untoldRun{p: p}, nil
}

type untoldRun struct {
	subagent.Run
	p *untoldProvider
}

func (untoldRun) ID() session.ID { panic("no id today") }
func (r untoldRun) Close(context.Context) error {
	r.p.closed.Add(1)
	return nil
}

// A run that panics when it is asked who it is is closed, the start fails, and
// the service can be closed (OBS-01, RUN-08).
func TestStartClosesARunThatCannotBeTold(t *testing.T) {
	s := subagenttest.NewSystem(t, subagenttest.Options{})
	p := &untoldProvider{}
	s.Register(t, p)
	run, err := s.Service.Start(t.Context(), "broken", subagenttest.Request(s.Parent(t), "go"))
	if err == nil || run != nil {
		t.Fatalf("run %v, error %v", run, err)
	}
	if n := p.closed.Load(); n != 1 {
		t.Errorf("the run was closed %d times", n)
	}
	if err := s.Service.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
