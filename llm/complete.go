package llm

import (
	"context"
	"time"

	"github.com/offshoot-dev/offshoot/message"
)

// Answer is what a model said in one call.
type Answer struct {
	Content []message.Block
	Finish  FinishKind
	// Usage is what the vendor reported, or nil.
	Usage *message.Usage
}

// Complete makes a call that is no step of an agent, a summary for instance, and
// returns the whole answer. config fills the part of req that chooses the model. The
// call waits in the line of its route like any other, and is made again as the
// route's policy says; random is the jitter's source, nil for none.
//
// The error is the *Error of the last attempt, or the cause of ctx's end. req and
// what it points to must not change before Complete returns.
func (r *Registry) Complete(ctx context.Context, config CallConfig, req Request, random func() float64) (Answer, error) {
	for retries := 0; ; retries++ {
		p, err := r.Prepare(config)
		if err != nil {
			return Answer{}, err
		}
		turn, _, err := p.Pace.Enter(ctx)
		if err != nil {
			return Answer{}, err
		}
		p.Config.Apply(&req)
		answer, failure := collect(ctx, p, &req)
		if failure == nil {
			p.Pace.Answered(turn)
			return answer, nil
		}
		if ctx.Err() != nil {
			return Answer{}, context.Cause(ctx)
		}
		delay, again := p.Retry.Next(retries, failure.Failure, random)
		if Crowded(failure.Failure) {
			p.Pace.Refused(turn, delay)
		}
		if !again {
			return Answer{}, failure
		}
		if err := Sleep(ctx, delay); err != nil {
			return Answer{}, err
		}
	}
}

// collect makes one attempt.
func collect(ctx context.Context, p *Prepared, req *Request) (Answer, *Error) {
	var asm Assembler
	for c, err := range p.Stream(ctx, req) {
		if err == nil {
			err = asm.Add(c)
		}
		if err != nil {
			return Answer{}, &Error{Failure: FailureOf(err), Err: err}
		}
	}
	fin := asm.Finish()
	if fin.Kind == FinishError || fin.Kind == FinishAborted {
		failed := &Error{}
		if fin.Failure != nil {
			failed.Failure = *fin.Failure
		}
		return Answer{}, failed
	}
	answer := Answer{Content: asm.Blocks(), Finish: fin.Kind}
	if u, ok := asm.Usage(); ok {
		answer.Usage = &u
	}
	return answer, nil
}

// Sleep waits for d, or until ctx ends and returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
