package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// CallInput is one call as the model wrote it.
type CallInput struct {
	// ID is the model's call id, Name the tool it named.
	ID   string
	Name string
	// Args is the raw argument text. Blank counts as {}.
	Args string
	// Caller is the exact live agent, or nil.
	Caller Caller
	// Cwd is the caller's working directory, or "".
	Cwd        string
	Turn, Step int
}

// ExecOptions is what the caller of the pipeline supplies. The zero value runs
// calls without an approver.
type ExecOptions struct {
	// Approver answers questions; nil refuses them as unavailable.
	Approver Approver
	// NeverAsk refuses every question without putting it.
	NeverAsk bool
	// ApprovalTimeout is how long a question stands; 0 is as long as the call.
	ApprovalTimeout time.Duration
	// Log, if set, records every question and outcome.
	Log ApprovalLog
	// Path holds the ids of the agents from the root to the caller. It is copied
	// when a question is put.
	Path []string
	// BeforeBody, if set, runs immediately before the body. Its error keeps the body
	// from starting: the result has that error's code, or TOOL_NOT_STARTED.
	BeforeBody func(ctx context.Context, call *Call) error
	// Limit bounds the model-visible text in bytes: 0 is DefaultLimit, negative is
	// no bound.
	Limit int
	// OnFault, if set, is told of panics that were contained (*PanicError) and of
	// other faults that no result can carry. It may be called concurrently.
	OnFault func(err error)
}

func (o *ExecOptions) limit() int {
	if o.Limit == 0 {
		return DefaultLimit
	}
	return o.Limit
}

// Pending is a call that passed every check and may run.
type Pending struct {
	call Call
	sink sink
	args string // the frozen arguments; call.Args holds the same bytes
	// seen is the copy of call that hooks get, nil while there are no hooks.
	seen  *Call
	tool  *Compiled
	chain *chain
	opts  ExecOptions
	ran   atomic.Bool
}

// Execute prepares and runs one call (core T12). It always returns a result; ctx
// ends the call.
func (s *Scope) Execute(ctx context.Context, in CallInput, opts ExecOptions) Result {
	p, refused := s.Prepare(ctx, in, opts)
	if refused != nil {
		return *refused
	}
	return p.Run(ctx)
}

// Prepare does everything that comes before the body: it takes the snapshot,
// checks that ctx has not ended, that the scope sees the tool and that the
// arguments satisfy its schema, asks the pre-execute hooks and, if they want it,
// the approver, and then the guards (core T12, T13, T33). It returns either a call
// that may run or the final result of one that may not, never both. The agent loop
// prepares the calls of a step in the model's order, one after another.
func (s *Scope) Prepare(ctx context.Context, in CallInput, opts ExecOptions) (*Pending, *Result) {
	p := &Pending{opts: opts, args: in.Args}
	if strings.TrimSpace(in.Args) == "" {
		p.args = "{}"
	}
	p.call = Call{
		ID: in.ID, Name: in.Name, Args: []byte(p.args), Caller: in.Caller, Cwd: in.Cwd,
		Turn: in.Turn, Step: in.Step, Limit: max(opts.limit(), 0), sink: &p.sink,
	}
	if p.chain = s.hookChain(); !p.chain.empty() {
		p.seen = p.call.copy()
	}
	p.tool = s.Toolset().lookup(in.Name)
	if p.tool != nil {
		p.sink.def = p.tool.def
	}
	if refused, ok := s.check(ctx, p); !ok {
		return nil, p.finish(ctx, refused)
	}
	if refused := p.intercept(ctx); refused != nil {
		return nil, p.finish(ctx, *refused)
	}
	return p, nil
}

// check does what needs no hook.
func (s *Scope) check(ctx context.Context, p *Pending) (Result, bool) {
	if ctx.Err() != nil || s.isClosed() {
		return notDispatched(), false
	}
	if p.tool == nil {
		// The same text whether the tool is hidden or never was (core T8).
		return ErrorResult(CodeUnknownTool, fmt.Sprintf("there is no tool named %q", p.call.Name)), false
	}
	err := jsonx.Validate(p.call.Args)
	if err != nil {
		return ErrorResult(CodeInvalidArgs, fmt.Sprintf("the arguments of %s are not valid JSON: %v", p.call.Name, err)), false
	}
	if err = validate(p.tool.params, p.call.Args); err != nil {
		return ErrorResult(CodeInvalidArgs, fmt.Sprintf("the arguments of %s do not fit its parameters:\n%v", p.call.Name, err)), false
	}
	return Result{}, true
}

// intercept runs the pre-execute hooks, the approval and the guards. It returns
// the refusal, or nil.
func (p *Pending) intercept(ctx context.Context) *Result {
	refuse := func(code, msg string) *Result {
		r := ErrorResult(code, msg)
		return &r
	}
	var asks []string
	for _, h := range p.chain.pre {
		var d Decision
		if err := contain("pre-execute hook", func() { d = h.fn(ctx, p.seen) }); err != nil {
			p.fault(err)
			return refuse(CodeInternal, "not run: a check of this call failed: "+err.Error())
		}
		switch d.verdict {
		case verdictDeny:
			return refuse(CodeDenied, "not allowed: "+d.reason)
		case verdictAsk:
			asks = append(asks, d.reason)
		}
	}
	if len(asks) > 0 {
		if err := p.approve(ctx, strings.Join(asks, "; ")); err != nil {
			if ctx.Err() != nil {
				r := notDispatched()
				return &r
			}
			return refuse(err.Code, err.Msg)
		}
	}
	for _, h := range p.chain.guards {
		var gerr error
		if err := contain("guard", func() { gerr = h.fn(ctx, p.seen) }); err != nil {
			p.fault(err)
			return refuse(CodeInternal, "not run: a guard of this call failed: "+err.Error())
		}
		if gerr != nil {
			code := CodeDenied
			if te, ok := errors.AsType[*Error](gerr); ok && te.Code != "" {
				code = te.Code
			}
			return refuse(code, "not allowed: "+gerr.Error())
		}
	}
	return nil
}

// Call returns the call. It must not be modified.
func (p *Pending) Call() *Call { return &p.call }

// Definition returns the tool that will run, as it was when the call was prepared.
func (p *Pending) Definition() *Definition { return p.tool.def }

// ConcurrencySafe reports whether this call may overlap others of the same step:
// only if the tool says so for exactly these arguments.
func (p *Pending) ConcurrencySafe() bool {
	fn := p.tool.def.ConcurrencySafe
	if fn == nil {
		return false
	}
	safe := false
	if err := contain("ConcurrencySafe of tool "+p.call.Name, func() { safe = fn(p.call.Args) }); err != nil {
		p.fault(err)
		return false
	}
	return safe
}

// Run runs the body and everything behind it and returns the final result. It may
// overlap other calls. If ctx has ended already, the body does not start and the
// result is ABORTED_BEFORE_DISPATCH; a body that started is always awaited, and the
// end of ctx then only displaces a success (core T17). A Pending runs once; a
// second Run is a failure that touches nothing.
func (p *Pending) Run(ctx context.Context) Result {
	if !p.ran.CompareAndSwap(false, true) {
		return ErrorResult(CodeInternal, "this call has already run")
	}
	if ctx.Err() != nil {
		return *p.finish(ctx, notDispatched())
	}
	// Whatever a hook did with what it was shown, the body gets the snapshot.
	if string(p.call.Args) != p.args {
		p.call.Args = []byte(p.args)
	}
	b := &body{p: p, caller: ctx}
	value, err := b.runChain(ctx)
	p.sink.close()

	var r Result
	own := b.returned(value, err)
	switch {
	case err != nil:
		r = p.bodyFailure(ctx, err)
	case ctx.Err() != nil:
		r, own = aborted(), false
	default:
		r = p.success(value)
		own = own && !r.IsError
	}
	if own || !p.sink.vouches {
		p.takeMeta(&r)
	}
	if !r.IsError {
		r.Contexts, r.Conclude = p.sink.contexts, p.sink.conclude
	}
	if b.started() {
		r = p.judge(ctx, r)
	}
	return *p.finish(ctx, r)
}

// takeMeta applies what the body gave to SetMeta.
func (p *Pending) takeMeta(r *Result) {
	if !p.sink.hasMeta {
		return
	}
	compact, err := jsonx.Compact(p.sink.meta)
	if err == nil {
		r.Meta = compact
		return
	}
	err = fmt.Errorf("tool %s returned metadata that is not valid JSON: %w", p.call.Name, err)
	if r.IsError {
		p.fault(err)
		return
	}
	*r = ErrorResult(CodeInvalidToolOutput, err.Error())
}

// judge runs the post-execute hooks (core T15).
func (p *Pending) judge(ctx context.Context, r Result) Result {
	for _, h := range p.chain.post {
		var d PostDecision
		if err := contain("post-execute hook", func() { d = h.fn(ctx, p.seen, r.snapshot()) }); err != nil {
			p.fault(err)
			return failure(&Error{Code: CodeInternal, Msg: "a check of this result failed: " + err.Error()}, NamePanicError)
		}
		if d.Block {
			return ErrorResult(CodeDenied, d.Feedback)
		}
		if d.HasValue && !r.IsError {
			next := p.success(d.Value)
			if next.IsError {
				return next
			}
			next.Contexts, next.Conclude = r.Contexts, r.Conclude
			r = next
		}
		if d.Content != nil {
			r.Content = append([]message.Block(nil), d.Content...)
			if p.sink.vouches {
				r.Meta = nil
			}
		}
		if len(d.Contexts) > 0 {
			r.Contexts = append(r.Contexts[:len(r.Contexts):len(r.Contexts)], d.Contexts...)
		}
	}
	return r
}

// finish makes a result final: the last look at ctx, finalizeContent, the bound,
// the observers (core T12).
func (p *Pending) finish(ctx context.Context, r Result) *Result {
	if !r.IsError && ctx.Err() != nil {
		r = aborted()
	}
	if p.tool != nil && p.tool.def.Finalize != nil {
		var content []message.Block
		if err := contain("Finalize of tool "+p.call.Name, func() {
			content = p.tool.def.Finalize(&p.call, append([]message.Block(nil), r.Content...), r.IsError)
		}); err != nil {
			p.fault(err)
			r = failure(&Error{Code: CodeInternal, Msg: err.Error()}, NamePanicError)
		} else {
			r.Content = content
		}
	}
	r.Content, r.Cut = materialize(r.Content, p.opts.limit())
	for _, h := range p.chain.observers {
		if err := contain("result observer", func() { h.fn(ctx, p.seen, r.snapshot()) }); err != nil {
			p.fault(err)
		}
	}
	return &r
}

func (p *Pending) fault(err error) {
	if p.opts.OnFault == nil {
		return
	}
	// A panic of the fault handler itself has nowhere left to go.
	_ = contain("fault handler", func() { p.opts.OnFault(err) })
}
