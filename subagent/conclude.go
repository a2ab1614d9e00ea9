package subagent

import (
	"context"
	"fmt"
)

// Conclude waits for a run's result and closes the run: exactly once, and on every
// path (seam RUN-08, TOOL-17). If ctx ends first, it is closing the run that gives
// it the result, which is waited for then; the release is not bounded by ctx.
//
// The errors are those of Run.Wait and Run.Close. A panic of either is contained and
// logged, and is its error: what other code does wrong leaves no run behind.
func (s *Service) Conclude(ctx context.Context, run Run) (res Result, waitErr, closeErr error) {
	detached := context.WithoutCancel(ctx)
	wait := func(ctx context.Context) error {
		return s.asked("Wait", func() (err error) {
			res, err = run.Wait(ctx)
			return err
		})
	}
	func() {
		// Deferred, since code that is not ours may also end the goroutine.
		defer func() {
			closeErr = s.asked("Close", func() error { return run.Close(detached) })
		}()
		waitErr = wait(ctx)
	}()
	if waitErr == nil || ctx.Err() == nil {
		return res, waitErr, closeErr
	}
	for _, err := range []error{waitErr, closeErr} {
		if _, ok := asError[*panicError](err); ok {
			return res, waitErr, closeErr // nothing says that such a run ever settles
		}
	}
	// The wait may have ended rather than the run.
	return res, wait(detached), closeErr
}

// asked calls a method of a run. A panic of it is logged and is the error.
func (s *Service) asked(method string, fn func() error) error {
	err := contain(fn)
	if pe, ok := asError[*panicError](err); ok {
		s.fault("subagent run failed", err, "method", method)
		return fmt.Errorf("%s of the run %w", method, pe)
	}
	return err
}
