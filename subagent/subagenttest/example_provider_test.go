package subagenttest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// What follows, up to the test, is a whole provider: its children are calls of a Go
// function.

type function struct {
	child func(ctx context.Context, prompt string) (string, error)
	open  atomic.Int64
}

func (*function) Name() string                        { return "function" }
func (*function) Capabilities() subagent.Capabilities { return subagent.Capabilities{} }
func (*function) InheritsParentContext() bool         { return false }

func (p *function) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx) // the caller's ctx cancels until the result settles
	r := &functionRun{id: session.NewID(), settled: make(chan struct{})}
	r.release = sync.OnceFunc(func() { cancel(); <-r.settled; p.open.Add(-1) })
	p.open.Add(1)
	go func() {
		defer close(r.settled)
		defer func() {
			if v := recover(); v != nil {
				r.result = subagent.Result{StopReason: subagent.StopError, Output: []message.Block{}, Diagnostic: fmt.Sprint("panic: ", v)}
			}
		}()
		said, err := p.child(ctx, message.JoinText(req.Prompt))
		switch {
		case err == nil:
			r.result = subagent.Result{StopReason: subagent.StopCompleted, Output: []message.Block{message.Text(said)}}
		case ctx.Err() != nil:
			r.result = subagent.Result{StopReason: subagent.StopAborted, Output: []message.Block{}}
		default:
			r.result = subagent.Result{StopReason: subagent.StopError, Output: []message.Block{}, Diagnostic: err.Error()}
		}
	}()
	return r, nil
}

type functionRun struct {
	id      session.ID
	settled chan struct{} // closed when result is there
	result  subagent.Result
	release func() // cancels, waits, gives up what the child holds; once
}

func (r *functionRun) ID() session.ID              { return r.id }
func (r *functionRun) Local() (*agent.Agent, bool) { return nil, false }
func (r *functionRun) Close(context.Context) error { r.release(); return nil }
func (r *functionRun) Wait(ctx context.Context) (subagent.Result, error) {
	select {
	case <-r.settled:
	case <-ctx.Done():
		select {
		case <-r.settled: // both: the result is what counts
		default:
			return subagent.Result{}, context.Cause(ctx)
		}
	}
	return r.result, nil
}

// The end of the provider.

// A provider of one's own, in fewer than sixty lines, keeps the whole contract.
func TestProviderOfOnesOwn(t *testing.T) {
	subagenttest.Run(t, func(testing.TB, *subagenttest.System) subagenttest.Subject {
		var children sync.Map // prompt to subagenttest.Child
		p := &function{child: func(ctx context.Context, prompt string) (string, error) {
			v, _ := children.Load(prompt)
			c, _ := v.(subagenttest.Child)
			if c.Hold != nil {
				select {
				case <-c.Hold:
				case <-ctx.Done():
					<-time.After(c.Deaf)
					return "", context.Cause(ctx)
				}
			}
			if c.Panic {
				panic("out of order")
			}
			if c.End != "" {
				return "", errors.New("the child failed")
			}
			return c.Text, nil
		}}
		return subagenttest.Subject{
			Provider: p, Active: func() int { return int(p.open.Load()) }, Reasons: []subagent.StopReason{subagent.StopError},
			Script: func(prompt string, c subagenttest.Child) { children.Store(prompt, c) },
		}
	})
}
