package tool

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
)

var (
	errTimeout   = errors.New("tool timeout")
	errBodyTwice = errors.New("an execute hook called next more than once")
	errBodyLate  = errors.New("an execute hook called next after it had returned")
)

// body runs a call's body inside its execute hooks. It starts the body at most
// once and makes sure that nothing of it runs when runChain returns (core T17).
type body struct {
	p      *Pending
	caller context.Context // the call's own, for one runChain only

	mu sync.Mutex // guards following

	begun    bool // the innermost stage was entered
	executed bool // the tool's own code was entered
	closed   bool // runChain is about to return: the body may not start any more
	value    any  // what the tool's own code returned
	err      error
	late     bool          // it returned behind its timeout, and that is the result
	done     chan struct{} // closed when a begun stage has returned; nil without hooks
}

// started reports whether the tool's own code ran.
func (b *body) started() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.executed
}

func (b *body) runChain(ctx context.Context) (value any, err error) {
	hooks := b.p.chain.execute
	if len(hooks) == 0 {
		return b.run(ctx)
	}
	b.done = make(chan struct{})
	value, err = b.wrap(ctx, hooks)
	b.mu.Lock()
	b.closed = true
	begun := b.begun
	b.mu.Unlock()
	if begun {
		<-b.done
	}
	return value, err
}

// wrap calls hooks[0] around the rest.
func (b *body) wrap(ctx context.Context, hooks []*hook[Execute]) (value any, err error) {
	if len(hooks) == 0 {
		return b.run(ctx)
	}
	next := func(inner context.Context) (any, error) {
		inner, stop := fuse(inner, b.caller)
		defer stop()
		return b.wrap(inner, hooks[1:])
	}
	if perr := contain("execute hook", func() { value, err = hooks[0].fn(ctx, b.p.seen, next) }); perr != nil {
		return nil, perr
	}
	return value, err
}

// fuse returns a context with ctx's values that ends when ctx or caller does.
func fuse(ctx, caller context.Context) (context.Context, func()) {
	if ctx == caller {
		return ctx, func() {}
	}
	fused, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(caller, func() { cancel(context.Cause(caller)) })
	return fused, func() {
		stop()
		cancel(nil)
	}
}

// returned reports whether a value and an error are those of the tool's own code, not
// of a hook around it.
func (b *body) returned(value any, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.executed || b.late {
		return false
	}
	return len(b.p.chain.execute) == 0 || same(value, b.value) && same(err, b.err)
}

// same compares without the panic of a type that cannot be compared.
func same(a, b any) bool {
	if a == nil || b == nil {
		return a == b
	}
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// run is the innermost stage: BeforeBody, the declared timeout, the body (core T20).
func (b *body) run(ctx context.Context) (any, error) {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return nil, errBodyLate
	case b.begun:
		b.mu.Unlock()
		return nil, errBodyTwice
	}
	b.begun = true
	b.mu.Unlock()
	if b.done != nil {
		defer close(b.done)
	}
	p := b.p
	if fn := p.opts.BeforeBody; fn != nil {
		var err error
		if perr := contain("BeforeBody", func() { err = fn(ctx, &p.call) }); perr != nil {
			err = perr
		}
		if err != nil {
			return nil, notStarted(err)
		}
	}
	if ctx.Err() != nil {
		return nil, &Error{Code: CodeAbortedBeforeDispatch, Msg: "the call was cancelled before it started"}
	}
	b.mu.Lock()
	b.executed = true
	b.mu.Unlock()
	def := p.tool.def
	if def.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, def.Timeout, errTimeout)
		defer cancel()
	}
	var value any
	var err error
	if perr := contain("tool "+def.Name, func() { value, err = def.Execute(ctx, &p.call) }); perr != nil {
		return nil, perr
	}
	timedOut := def.Timeout > 0 && b.caller.Err() == nil && errors.Is(context.Cause(ctx), errTimeout)
	timedOut = timedOut && (err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, errTimeout))
	b.mu.Lock()
	b.value, b.err, b.late = value, err, timedOut
	b.mu.Unlock()
	if timedOut {
		return nil, &Error{Code: CodeTimeout, Msg: fmt.Sprintf("%s did not finish within %v", def.Name, def.Timeout), Err: context.DeadlineExceeded}
	}
	return value, err
}

// notStarted gives a refusal of BeforeBody a code.
func notStarted(err error) error {
	if te, ok := errors.AsType[*Error](err); ok && te.Code != "" {
		return err
	}
	return &Error{Code: CodeNotStarted, Msg: "not run: " + err.Error(), Err: err}
}
