package subagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/internal/stack"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// Start begins a one-shot child on the named provider and returns its run, which
// the caller must Close. ctx is the run's cancellation channel until its result
// settles (amendment P04).
//
// Checked in this order, before the provider is called and before any event
// (seam REQ-01): the parent, the provider, its capabilities (outputSchema,
// depthLimit, toolFilter, persona), the domain of MaxDepth, the schema, the tool
// filter, the prompt, the descriptor, the end of ctx, the deployment's MaxDepth
// and MaxChildren. A provider's own failure is passed on as it is; a run that came
// with it is closed, and what went wrong with that is joined to it.
func (s *Service) Start(ctx context.Context, provider string, req Request) (Run, error) {
	stack.Grow() // callers that start many at once do so on new goroutines
	return s.start(ctx, provider, &req)
}

// start is Start on a stack that is big enough.
func (s *Service) start(ctx context.Context, provider string, req *Request) (Run, error) {
	p, resolved, err := s.resolve(ctx, provider, *req)
	if err != nil {
		return nil, err
	}
	t, err := s.admit(resolved.Parent)
	if err != nil {
		return nil, err
	}
	watched := false
	defer func() {
		if !watched { // also where the provider ends the goroutine
			s.done(t)
		}
	}()
	run, err := s.dispatch(ctx, p, resolved)
	if err != nil {
		return nil, err
	}
	s.bind(t, run.Run)
	watched = true
	s.announce(t, provider, resolved, run)
	return run.Run, nil
}

// published is a run with what its edges say of it.
type published struct {
	Run
	id    session.ID
	local bool
}

// dispatch calls the provider, and asks the run that it returned who it is.
func (s *Service) dispatch(ctx context.Context, p Provider, req *ResolvedRequest) (run published, err error) {
	name := req.Descriptor.Descriptor.Provider
	err = s.provided(name, func() (err error) {
		if run.Run, err = p.Start(ctx, req); err == nil && run.Run != nil {
			run.id = run.ID()
			_, run.local = run.Local()
		}
		return err
	})
	switch {
	case err == nil && run.Run == nil:
		return published{}, fmt.Errorf("subagent provider %q returned no run", name)
	case err == nil:
		return run, nil
	case run.Run != nil:
		// Whether it came with the error or panicked when it was asked who it is: nobody
		// else will ever close it.
		if cerr := s.provided(name, func() error { return run.Close(context.WithoutCancel(ctx)) }); cerr != nil {
			err = errors.Join(err, fmt.Errorf("the run of a start that failed could not be released: %w", cerr))
		}
	}
	return published{}, err
}

// provided calls code of a provider. A panic of it is logged and is the error.
func (s *Service) provided(name string, fn func() error) error {
	err := contain(fn)
	if pe, ok := asError[*panicError](err); ok {
		s.fault("subagent provider failed", err, "provider", name)
		return fmt.Errorf("subagent provider %q %w", name, pe)
	}
	return err
}

// notifier is a run that says itself when its result has settled, as those in this
// process do. For others a goroutine waits.
type notifier interface {
	// Notify calls fn once, behind the settlement of the result: at once where that has
	// settled. It may do so on any goroutine, with no lock held that the run needs; fn
	// does not block.
	Notify(fn func())
}

// announce tells the start of a run and has its end told.
func (s *Service) announce(t *ticket, provider string, req *ResolvedRequest, run published) {
	hooks := s.listeners()
	n, notifies := run.Run.(notifier)
	if notifies && len(hooks) == 0 { // nobody is to be told
		n.Notify(func() { s.done(t) })
		return
	}
	edge := StartEdge{RunID: uuid.NewString(), Provider: provider, ID: run.id, Local: run.local, Parent: t.parent}
	if req.Label != nil {
		edge.Label = *req.Label
	}
	for _, e := range hooks {
		if e.hooks.Started != nil && e.concerns(t.parent) {
			s.tell("subagent/start", func() { e.hooks.Started(edge) })
		}
	}
	if !notifies {
		go s.watch(t, edge, hooks)
		return
	}
	// The hooks are called apart from whoever brought the settlement about.
	n.Notify(func() { go s.watch(t, edge, hooks) })
}

// watch closes the pair of lifecycle edges when the result settles. Service.Close
// joins it.
func (s *Service) watch(t *ticket, start StartEdge, hooks []*hookEntry) {
	defer s.done(t)
	var res Result
	err := errors.New("the run's Wait ended its goroutine instead of returning")
	// Deferred for that: who was told of the start is told of the end.
	defer func() { s.tellEnded(start, hooks, res, err) }()
	err = contain(func() (err error) {
		res, err = t.run.Wait(s.ctx)
		return err
	})
}

// tellEnded tells the end of a run to those that were told of its start.
func (s *Service) tellEnded(start StartEdge, hooks []*hookEntry, res Result, err error) {
	end := EndEdge{StartEdge: start}
	if err != nil {
		if _, ok := asError[*panicError](err); ok {
			s.fault("subagent run failed", err, "provider", start.Provider, "run", string(start.ID))
		}
		end.StopReason = StopError
		end.Failure = &Failure{Code: codeOf(err), Text: err.Error()}
	} else {
		end.StopReason = res.StopReason
	}
	for _, e := range hooks {
		if e.hooks.Ended == nil || !e.concerns(start.Parent) {
			continue
		}
		own := end
		if end.Failure == nil && len(res.Output) > 0 {
			// A listener that edits its copy changes neither what the caller receives nor
			// what the other listeners see.
			own.Output = cloneBlocks(res.Output)
		}
		s.tell("subagent/end", func() { e.hooks.Ended(own) })
	}
}

func codeOf(err error) string {
	if se, ok := asError[*Error](err); ok {
		return string(se.Code)
	}
	if code := llm.CodeOf(err); code != "" {
		return code
	}
	return llm.CodeUnknown
}

// resolve validates a request and detaches it from its caller.
func (s *Service) resolve(ctx context.Context, provider string, req Request) (Provider, *ResolvedRequest, error) {
	refuse := func(code Code, format string, args ...any) (Provider, *ResolvedRequest, error) {
		return nil, nil, errorf(code, "start subagent on %q: %s", provider, fmt.Sprintf(format, args...))
	}
	if req.Parent == nil {
		return refuse(CodeInvalidRequest, "a parent agent is required")
	}
	p, ok := s.Provider(provider)
	if !ok {
		return nil, nil, errorf(CodeNoProvider, "no subagent provider is named %q", provider)
	}
	missing := ""
	if err := s.provided(provider, func() error { missing = missingCapability(p.Capabilities(), &req); return nil }); err != nil {
		return nil, nil, err
	}
	if missing != "" {
		return nil, nil, errorf(CodeUnsupportedCapability, "subagent provider %q does not support %s", provider, missing)
	}
	if err := compose.CheckDepthCap(req.MaxDepth); err != nil {
		return nil, nil, err
	}
	var schema *structured.Schema
	if req.OutputSchema != nil {
		var err error
		if schema, err = s.schemas.parse(req.OutputSchema); err != nil {
			return nil, nil, &Error{Code: CodeUnsupportedSchema, Msg: fmt.Sprintf("start subagent on %q", provider), Err: err}
		}
	}
	if req.ToolFilter != nil && req.ToolFilter.Allow == nil && req.ToolFilter.Deny == nil {
		return refuse(CodeInvalidRequest, "the tool filter has neither allow nor deny")
	}
	if len(req.Prompt) == 0 {
		return refuse(CodeInvalidRequest, "the prompt is empty")
	}
	d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: provider, Label: req.Label})
	if err != nil {
		return nil, nil, &Error{Code: CodeInvalidRequest, Msg: fmt.Sprintf("start subagent on %q", provider), Err: err}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, nil, err
	}
	if s.cfg.MaxDepth != nil {
		if _, err := s.childDepth(req.Parent, nil); err != nil {
			return nil, nil, err
		}
	}
	return p, &ResolvedRequest{Request: detach(req), Descriptor: d, Schema: schema}, nil
}

// missingCapability returns the name of the first feature that the request needs
// and the provider lacks (seam CAP-04).
func missingCapability(c Capabilities, req *Request) string {
	switch {
	case req.OutputSchema != nil && !c.OutputSchema:
		return "outputSchema"
	case req.MaxDepth != nil && !c.DepthLimit:
		return "depthLimit"
	case req.ToolFilter != nil && !c.ToolFilter:
		return "toolFilter"
	case req.Persona != nil && !c.Persona:
		return "persona"
	}
	return ""
}

// detach copies what a caller could change after the call (seam REQ-14, SO-28).
func detach(req Request) Request {
	req.Prompt = cloneBlocks(req.Prompt)
	req.OutputSchema = bytes.Clone(req.OutputSchema)
	req.Label = clonePointer(req.Label)
	req.MaxDepth = clonePointer(req.MaxDepth)
	req.Persona = clonePointer(req.Persona)
	if f := req.ToolFilter; f != nil {
		req.ToolFilter = &session.ToolFilter{Allow: slices.Clone(f.Allow), Deny: slices.Clone(f.Deny)}
	}
	return req
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func cloneBlocks(blocks []message.Block) []message.Block {
	if blocks == nil {
		return nil
	}
	out := make([]message.Block, len(blocks))
	for i := range blocks {
		out[i] = blocks[i]
		out[i].Content = cloneBlocks(blocks[i].Content)
		out[i].Raw = bytes.Clone(blocks[i].Raw)
	}
	return out
}
