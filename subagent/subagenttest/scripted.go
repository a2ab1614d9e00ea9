package subagenttest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// Scripted is a provider without children behind it: it answers each start as it
// was told to (seam FIX). It stands for a remote transport, so its runs expose no
// agent. Set the fields before the first use.
type Scripted struct {
	// ProviderName is its registry name; "" is "scripted".
	ProviderName string
	Caps         subagent.Capabilities
	Inherits     bool
	// Play says how a child behaves; nil completes and says "done".
	Play func(req *subagent.ResolvedRequest) Play
	// Publishing, if set, is called while a start is not published yet. Its error
	// makes the start fail; it returns soon after ctx ends.
	Publishing func(ctx context.Context) error

	mu     sync.Mutex // guards following
	starts []*subagent.ResolvedRequest
	active int
}

// Play is what one child of a Scripted provider does.
type Play struct {
	// Result is how it ends, unless it is cancelled before: then it ends as aborted
	// with Partial. A zero StopReason is completed.
	Result  subagent.Result
	Partial []message.Block
	// Err makes the result fail; CloseErr the release.
	Err, CloseErr error
	// Hold, if set, keeps the child at work until it is closed.
	Hold <-chan struct{}
	// Deaf is how long a held child goes on after it was cancelled.
	Deaf time.Duration
	// Panic, if set, is what the child's model panics with, in that other process: it
	// ends as an error with Partial.
	Panic any
}

// Name implements subagent.Provider.
func (p *Scripted) Name() string {
	if p.ProviderName == "" {
		return "scripted"
	}
	return p.ProviderName
}

// Capabilities implements subagent.Provider.
func (p *Scripted) Capabilities() subagent.Capabilities { return p.Caps }

// InheritsParentContext implements subagent.Provider.
func (p *Scripted) InheritsParentContext() bool { return p.Inherits }

// Starts returns the requests that reached the provider.
func (p *Scripted) Starts() []*subagent.ResolvedRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*subagent.ResolvedRequest(nil), p.starts...)
}

// Active returns how many runs are not closed.
func (p *Scripted) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active
}

// Start implements subagent.Provider.
func (p *Scripted) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	p.mu.Lock()
	p.starts = append(p.starts, req)
	p.mu.Unlock()
	if p.Caps.DepthLimit && req.MaxDepth != nil {
		// The one depth that this provider knows is that of its own children.
		if depth := req.Parent.Session().Header().DelegationDepth + 1; depth > *req.MaxDepth {
			return nil, &subagent.DepthError{Depth: depth, Cap: *req.MaxDepth}
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if p.Publishing != nil {
		if err := p.Publishing(ctx); err != nil {
			return nil, err
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
	play := Play{Result: subagent.Result{Output: []message.Block{message.Text("done")}}}
	if p.Play != nil {
		play = p.Play(req)
	}
	if play.Result.StopReason == "" {
		play.Result.StopReason = subagent.StopCompleted
	}
	if play.Result.Output == nil {
		play.Result.Output = []message.Block{}
	}
	if req.OutputSchema != nil && play.Result.Structured == nil && play.Result.StopReason == subagent.StopCompleted {
		play.Result.Structured = []byte(`{}`)
	}
	p.mu.Lock()
	p.active++
	p.mu.Unlock()
	r := &scriptedRun{provider: p, id: session.ID("remote-" + uuid.NewString()), play: play, settled: make(chan struct{}), cancelled: make(chan struct{}), closed: make(chan struct{})}
	go r.work()
	r.stop = context.AfterFunc(ctx, r.cancel)
	return r, nil
}

// scriptedRun is a run whose child is one goroutine, joined by Close.
type scriptedRun struct {
	provider *Scripted
	id       session.ID
	play     Play
	stop     func() bool

	cancelOnce sync.Once
	cancelled  chan struct{}
	settled    chan struct{} // closed when result and err are final
	result     subagent.Result
	err        error

	closeOnce sync.Once
	closed    chan struct{}
}

func (r *scriptedRun) work() {
	defer close(r.settled)
	if r.play.Hold != nil {
		select {
		case <-r.play.Hold:
		case <-r.cancelled:
			<-time.After(r.play.Deaf)
			r.partial(subagent.StopAborted)
			return
		}
	}
	if r.play.Panic != nil {
		r.partial(subagent.StopError)
		r.result.Diagnostic = fmt.Sprintf("the child panicked: %v", r.play.Panic)
		return
	}
	if r.err = r.play.Err; r.err == nil {
		r.result = r.play.Result
	}
}

// partial is the result of a child that did not come to its end.
func (r *scriptedRun) partial(reason subagent.StopReason) {
	r.result = subagent.Result{Output: r.play.Partial, StopReason: reason}
	if r.result.Output == nil {
		r.result.Output = []message.Block{}
	}
}

func (r *scriptedRun) cancel() { r.cancelOnce.Do(func() { close(r.cancelled) }) }

// ID implements subagent.Run.
func (r *scriptedRun) ID() session.ID { return r.id }

// Local implements subagent.Run.
func (r *scriptedRun) Local() (*agent.Agent, bool) { return nil, false }

// Wait implements subagent.Run.
func (r *scriptedRun) Wait(ctx context.Context) (subagent.Result, error) {
	select {
	case <-r.settled:
		return r.result, r.err
	default:
	}
	select {
	case <-r.settled:
		return r.result, r.err
	case <-ctx.Done():
		return subagent.Result{}, context.Cause(ctx)
	}
}

// Close implements subagent.Run.
func (r *scriptedRun) Close(ctx context.Context) error {
	r.closeOnce.Do(func() {
		r.cancel()
		go func() {
			<-r.settled
			r.stop()
			r.provider.mu.Lock()
			r.provider.active--
			r.provider.mu.Unlock()
			close(r.closed)
		}()
	})
	select {
	case <-r.closed:
		return r.closeErr()
	default:
	}
	select {
	case <-r.closed:
		return r.closeErr()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *scriptedRun) closeErr() error {
	if r.play.CloseErr != nil {
		return fmt.Errorf("close run %s: %w", r.id, r.play.CloseErr)
	}
	return nil
}

var (
	_ subagent.Provider = (*Scripted)(nil)
	_ subagent.Run      = (*scriptedRun)(nil)
)
