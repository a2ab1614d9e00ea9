package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// frail is a run that a test takes apart: it settles when it is closed.
type frail struct {
	id      func() session.ID
	wait    func(ctx context.Context) (subagent.Result, error)
	close   func() error
	closes  int
	settled chan struct{}
}

func newFrail() *frail {
	f := &frail{settled: make(chan struct{})}
	f.id = func() session.ID { return "frail" }
	f.wait = func(ctx context.Context) (subagent.Result, error) {
		select {
		case <-f.settled:
			return subagent.Result{StopReason: subagent.StopAborted, Output: text("so far")}, nil
		case <-ctx.Done():
			return subagent.Result{}, context.Cause(ctx)
		}
	}
	f.close = func() error { return nil }
	return f
}

func (f *frail) ID() session.ID                                        { return f.id() }
func (f *frail) Local() (*agent.Agent, bool)                           { return nil, false }
func (f *frail) Wait(ctx context.Context) (_ subagent.Result, _ error) { return f.wait(ctx) }
func (f *frail) Close(context.Context) error {
	if f.closes++; f.closes == 1 {
		close(f.settled)
	}
	return f.close()
}

// RUN-08, TOOL-17: a run is closed exactly once, whatever its own code does, and what
// went wrong is told, with the panic's stack in the log.
func TestConclude(t *testing.T) {
	stop, stuck := errors.New("stop"), errors.New("it does not let go")
	settles := func(context.Context) (subagent.Result, error) {
		return subagent.Result{StopReason: subagent.StopCompleted, Output: text("answer")}, nil
	}
	for _, c := range []struct {
		name                string
		wait                func(context.Context) (subagent.Result, error)
		close               func() error
		ended               bool // ctx is
		said, wait1, close1 string
	}{
		{name: "completed", wait: settles, said: "answer"},
		{name: "not released", wait: settles, close: func() error { return stuck }, said: "answer", close1: "it does not let go"},
		{name: "Wait panics", wait: func(context.Context) (subagent.Result, error) { panic("no wait") }, wait1: "Wait of the run panicked: no wait"},
		{name: "Close panics", wait: settles, close: func() error { panic("no close") }, said: "answer", close1: "Close of the run panicked: no close"},
		{name: "ctx ends first", ended: true, said: "so far"},
		{name: "ctx ends first, not released", ended: true, close: func() error { return stuck }, said: "so far", close1: "it does not let go"},
		// Nothing says that it settles: who waited again would wait for ever.
		{name: "ctx ends first, and Close panics", ended: true, close: func() error { panic("no close") },
			wait: func(ctx context.Context) (subagent.Result, error) {
				<-ctx.Done()
				return subagent.Result{}, context.Cause(ctx)
			},
			wait1: "stop", close1: "Close of the run panicked: no close"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			in(t, subagenttest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *subagenttest.System) {
				f := newFrail()
				if c.wait != nil {
					f.wait = c.wait
				}
				if c.close != nil {
					f.close = c.close
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if c.ended {
					cancel(stop)
				}
				res, waitErr, closeErr := s.Service.Conclude(ctx, f)
				for what, got := range map[string][2]string{
					"output": {message.JoinText(res.Output), c.said}, "Wait": {words(waitErr), c.wait1}, "Close": {words(closeErr), c.close1},
				} {
					if got[0] != got[1] {
						t.Errorf("%s = %q, want %q", what, got[0], got[1])
					}
				}
				if f.closes != 1 {
					t.Errorf("the run was closed %d times", f.closes)
				}
				if panics := strings.Contains(c.wait1+c.close1, "panicked"); strings.Contains(log.String(), "conclude_test.go") != panics {
					t.Errorf("the log:\n%s", &log)
				}
			})
		})
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Other code that ends its goroutine leaves nothing behind either: no open run, no
// place that is taken, no start whose end is not told.
func TestGoexit(t *testing.T) {
	in(t, subagenttest.Options{MaxChildren: 1}, func(t *testing.T, s *subagenttest.System) {
		f := newFrail()
		f.wait = func(context.Context) (subagent.Result, error) { runtime.Goexit(); panic("not reached") }
		starts := 0
		s.Register(t, careless{Scripted: &subagenttest.Scripted{}, caps: func() subagent.Capabilities { return subagent.Capabilities{} },
			start: func(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
				if starts++; starts == 1 {
					runtime.Goexit()
				}
				return f, nil
			}})
		req := subagenttest.Request(s.Parent(t), "x")
		beside := func(fn func()) {
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				fn()
			}()
			<-gone
		}
		beside(func() { _, _ = s.Service.Start(t.Context(), "scripted", req) })
		run := s.Start(t, t.Context(), "scripted", req) // refused, if the place were taken
		beside(func() { _, _, _ = s.Service.Conclude(t.Context(), run) })
		if f.closes != 1 {
			t.Errorf("the run was closed %d times", f.closes)
		}
		synctest.Wait()
		edges := s.Lifecycle.Edges()
		if len(edges) != 2 || edges[1].End == nil || edges[1].End.StopReason != subagent.StopError || !strings.Contains(edges[1].End.Failure.Text, "instead of returning") {
			t.Errorf("edges = %+v", edges)
		}
	})
}

// careless returns what it likes.
type careless struct {
	*subagenttest.Scripted
	caps  func() subagent.Capabilities
	start func(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error)
}

func (c careless) Capabilities() subagent.Capabilities { return c.caps() }
func (c careless) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	return c.start(ctx, req)
}

// RUN-08, OBS-01: of a start that failed nothing is left, also where its provider
// returned a run together with the error; what its release says is told beside it.
func TestStartWithARunAndAnError(t *testing.T) {
	broken, stuck := errors.New("out of paper"), errors.New("it does not let go")
	for _, c := range []struct {
		name     string
		closeErr error
		want     string
	}{
		{"released", nil, "out of paper"},
		{"not released", stuck, "out of paper\nthe run of a start that failed could not be released: it does not let go"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{MaxChildren: 1}, func(t *testing.T, s *subagenttest.System) {
				f := newFrail()
				f.close = func() error { return c.closeErr }
				s.Register(t, careless{Scripted: &subagenttest.Scripted{}, caps: func() subagent.Capabilities { return subagent.Capabilities{} },
					start: func(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) { return f, broken }})
				parent := s.Parent(t)
				run, err := s.Service.Start(t.Context(), "scripted", subagenttest.Request(parent, "x"))
				if run != nil || !errors.Is(err, broken) || c.closeErr != nil && !errors.Is(err, c.closeErr) || err.Error() != c.want {
					t.Errorf("Start = %v, %v", run, err)
				}
				if c.closeErr == nil && err != broken { //nolint:errorlint // passed on as it is
					t.Errorf("the provider's failure was wrapped: %T", err)
				}
				if f.closes != 1 {
					t.Errorf("the run was closed %d times", f.closes)
				}
				synctest.Wait()
				if edges := s.Lifecycle.Edges(); len(edges) != 0 {
					t.Errorf("edges = %+v", edges)
				}
			})
		})
	}
}

// A provider that panics when it is asked what it can do fails the start alone.
func TestStartCapabilitiesPanic(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, careless{Scripted: &subagenttest.Scripted{}, caps: func() subagent.Capabilities { panic("who knows") }})
		run, err := s.Service.Start(t.Context(), "scripted", subagenttest.Request(s.Parent(t), "x"))
		if run != nil || err == nil || err.Error() != `subagent provider "scripted" panicked: who knows` {
			t.Errorf("Start = %v, %v", run, err)
		}
	})
}
