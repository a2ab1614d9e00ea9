package llm

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/message"
)

// CallConfig is what a call is prepared from: the part of a Request that chooses
// and tunes the model.
type CallConfig struct {
	Provider        string
	Model           string
	ReasoningEffort string
	Temperature     *float64
	MaxTokens       int64
	Stop            []string
}

// Apply writes the configuration into a request that is still being built.
func (c CallConfig) Apply(req *Request) {
	req.Provider = c.Provider
	req.Model = c.Model
	req.ReasoningEffort = c.ReasoningEffort
	req.Temperature = c.Temperature
	req.MaxTokens = c.MaxTokens
	req.Stop = c.Stop
}

// Defaults marks the fields of a prepared call that the adapter's knowledge of the
// model filled in; the caller had left them empty.
type Defaults struct {
	ReasoningEffort bool
	MaxTokens       bool
}

// Prepared is one model call, bound to the adapter that held the route when it was
// prepared: a later Replace or unregister does not touch it (core M11). The
// exported fields are for reading. It must not be copied.
type Prepared struct {
	// Config is the configuration with the model's defaults filled in.
	Config   CallConfig
	Defaults Defaults
	// ContextWindow is the model's window in tokens, or 0 when it is not known.
	ContextWindow int64
	// Retry is the policy of the route. Each attempt prepares a call of its own.
	Retry Policy
	// Pace is the route's, shared by all calls of the registry. Never nil.
	Pace *Pace

	adapter Adapter
	strict  bool
	used    atomic.Bool
}

// Prepare resolves a configuration against the adapter of its route. The errors
// are *Error values: INVALID_REQUEST without provider or model, NO_ADAPTER for a
// route that nobody holds, UNSUPPORTED_REASONING_EFFORT (core M11, M13). "off" is
// an effort of every model. Nothing of config is retained.
func (r *Registry) Prepare(config CallConfig) (*Prepared, error) {
	if config.Provider == "" || config.Model == "" {
		return nil, codedError(CodeInvalidRequest, fmt.Sprintf("prepare call: provider %q and model %q must both be set", config.Provider, config.Model))
	}
	adapter, pace, ok := r.lookup(config.Provider)
	if !ok {
		return nil, codedError(CodeNoAdapter, fmt.Sprintf("prepare call: no adapter for route %q", config.Provider))
	}
	info, err := modelInfo(adapter, config)
	if err != nil {
		return nil, err
	}
	p := &Prepared{Config: config, ContextWindow: info.ContextWindow, Pace: pace, adapter: adapter, strict: r.Strict}
	p.Config.Stop = slices.Clone(config.Stop)
	if config.Temperature != nil {
		t := *config.Temperature
		p.Config.Temperature = &t
	}
	if p.Config.ReasoningEffort == "" && info.DefaultEffort != "" {
		p.Config.ReasoningEffort = info.DefaultEffort
		p.Defaults.ReasoningEffort = true
	}
	if p.Config.MaxTokens == 0 && info.DefaultMaxTokens > 0 {
		p.Config.MaxTokens = info.DefaultMaxTokens
		p.Defaults.MaxTokens = true
	}
	if e := p.Config.ReasoningEffort; e != "" && e != "off" && info.Efforts != nil && !slices.Contains(info.Efforts, e) {
		return nil, codedError(CodeUnsupportedEffort,
			fmt.Sprintf("prepare call: %s:%s does not take reasoning effort %q (it takes %q)", config.Provider, config.Model, e, info.Efforts))
	}
	if r.RetryFor != nil {
		p.Retry = r.RetryFor(config.Provider)
	}
	return p, nil
}

// modelInfo asks the adapter and contains its panic (core M12).
func modelInfo(adapter Adapter, config CallConfig) (info ModelInfo, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = codedError(CodeUnknown, fmt.Sprintf("prepare call: the adapter of route %q panicked: %v", config.Provider, v))
		}
	}()
	return adapter.Model(config.Provider, config.Model), nil
}

// Stream makes the call. The sequence can be ranged over once: a second range, of
// this or of another sequence of the same Prepared, yields one error with code
// INVALID_PREPARED_CALL, as does a request for another provider or model. These
// are the only errors that it yields.
//
// Otherwise it yields the adapter's chunks and then, unless the consumer stops
// first, exactly one finish, after the adapter has returned. Errors and panics of
// the adapter become a finish of kind error (core M12), an end of ctx one of kind
// aborted with code ABORTED and the text of context.Cause; a stream that just ends
// has stopped (core M7). A panic of the consumer passes through. The call runs on
// the ranging goroutine; ctx bounds all of it.
func (p *Prepared) Stream(ctx context.Context, req *Request) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		if p.used.Swap(true) {
			yield(Chunk{}, codedError(CodeInvalidPreparedCall, "stream: the prepared call was used already"))
			return
		}
		if req.Provider != p.Config.Provider || req.Model != p.Config.Model {
			yield(Chunk{}, codedError(CodeInvalidPreparedCall, fmt.Sprintf("stream: the call was prepared for %s:%s, not for %s:%s",
				p.Config.Provider, p.Config.Model, req.Provider, req.Model)))
			return
		}
		s := stream{yield: yield}
		if p.strict {
			s.grammar = new(Grammar)
		}
		s.run(ctx, p.adapter, req)
		if !s.stopped {
			yield(Chunk{Kind: ChunkFinish, Finish: s.ending(ctx)}, nil)
		}
	}
}

// stream is one run of an adapter.
type stream struct {
	yield   func(Chunk, error) bool
	grammar *Grammar
	// finish is set once the ending is known; nothing is passed on after that.
	finish *Finish
	// stopped says that the consumer is gone: it stopped ranging, or it panicked.
	stopped bool
	// consuming is set while the consumer runs, so that its panics are told from
	// the adapter's.
	consuming bool
}

// run ranges over the adapter and contains its panics. A panic of the consumer is
// not recovered at all, so that its stack stays whole.
func (s *stream) run(ctx context.Context, adapter Adapter, req *Request) {
	if ctx.Err() != nil {
		s.finish = Aborted(ctx)
		return
	}
	defer func() {
		if s.consuming {
			return
		}
		if v := recover(); v != nil {
			s.finish = Failed(message.Failure{Code: CodeUnknown, Message: fmt.Sprintf("the adapter of route %q panicked: %v", req.Provider, v)})
		}
	}()
	adapter.Stream(ctx, req)(func(c Chunk, err error) bool { return s.take(ctx, c, err) })
}

// take handles one chunk and reports whether the adapter shall go on.
func (s *stream) take(ctx context.Context, c Chunk, err error) bool {
	if s.finish != nil || s.stopped {
		return false
	}
	if err != nil {
		s.finish = Failed(FailureOf(err))
		return false
	}
	if s.grammar != nil {
		if fault := s.grammar.Add(c); fault != nil {
			s.finish = Failed(FailureOf(fault))
			return false
		}
	}
	if c.Kind == ChunkFinish {
		s.finish = c.Finish
		if s.finish == nil {
			s.finish = Failed(message.Failure{Code: CodeUnknown, Message: "the adapter sent a finish chunk without a finish"})
		}
		return false
	}
	if ctx.Err() != nil {
		s.finish = Aborted(ctx)
		return false
	}
	s.consuming = true
	more := s.yield(c, nil)
	s.consuming = false
	s.stopped = !more
	return more
}

// ending settles the finish: a call whose ctx ended is aborted whatever error that
// made the adapter report, but an answer that was complete by then stays one.
func (s *stream) ending(ctx context.Context) *Finish {
	f := s.finish
	ended := ctx.Err() != nil
	switch {
	case f == nil && ended:
		return Aborted(ctx)
	case f == nil && s.grammar != nil:
		return Failed(FailureOf(s.grammar.End()))
	case f == nil:
		return &Finish{Kind: FinishStop}
	case f.Kind == FinishError && ended && f.Failure != nil && f.Failure.Code == CodeStreamGrammar:
		return f
	case (f.Kind == FinishError || f.Kind == FinishAborted) && ended:
		return Aborted(ctx)
	case (f.Kind == FinishError || f.Kind == FinishAborted) && f.Failure == nil:
		return Failed(message.Failure{Code: CodeUnknown, Message: fmt.Sprintf("the adapter ended as %s and gave no reason", f.Kind)})
	default:
		return f
	}
}
