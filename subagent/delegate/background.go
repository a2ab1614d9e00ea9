package delegate

import (
	"context"
	"errors"
	"strings"

	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// jobKind begins the ids of the jobs.
const jobKind = "subagent"

// background starts the delegation as a job of its parent and returns the job's id
// (seam BG-01). Whether the parent can follow a job is settled before any child is
// started (seam BG-02, BG-03, TOOL-34). From here on the call's ctx means nothing to
// the child (seam BG-04).
func (m *mount) background(call *tool.Call, req subagent.Request) (any, error) {
	switch {
	case !m.cfg.Background:
		return nil, notInBackground(call)
	case m.cfg.Jobs == nil:
		return nil, tool.Errorf(tool.CodeInternal, "%s cannot run in the background: the program has no registry of jobs (job.New)", call.Name)
	case req.Parent.Tools().Toolset().Lookup(job.OutputTool) == nil:
		return nil, tool.Errorf(tool.CodeDenied, "you have no tool %s to read a background job with: call %s without run_in_background", job.OutputTool, call.Name)
	}
	id, err := m.cfg.Jobs.Start(req.Parent, job.Spec{
		Kind: jobKind, Label: *req.Label,
		Run: func(ctx context.Context) job.Outcome { return m.work(ctx, req) },
	})
	var limit *job.LimitError
	switch {
	case errors.As(err, &limit):
		return nil, &tool.Error{Code: string(subagent.CodeLimitReached), Err: err, Msg: "the subagent was not started: " + limit.Error()}
	case err != nil:
		return nil, &tool.Error{Code: tool.CodeToolFailed, Err: err, Msg: "the subagent was not started: " + err.Error()}
	}
	call.SetMeta(job.StartedMeta(id))
	return "started background subagent job " + id, nil
}

// work is the body of the job. Its ctx is the run's: a kill reaches the child while
// it is started and while it works, with the reason as the cause (seam BG-05, BG-06).
func (m *mount) work(ctx context.Context, req subagent.Request) job.Outcome {
	run, err := m.svc.Start(ctx, m.cfg.Provider, req)
	if err != nil {
		var killed *job.KillError
		if errors.As(context.Cause(ctx), &killed) && causedOnlyBy(err, killed) {
			return job.Outcome{State: job.Killed, Text: killed.Reason}
		}
		// What else went wrong, such as undoing the start, is a failure also of a job
		// that was being killed (seam BG-07, BG-08).
		return job.Outcome{State: job.Failed, Text: startError(err).Error()}
	}
	res, err, closeErr := m.svc.Conclude(context.WithoutCancel(ctx), run)
	return outcome(ctx, m.held(res), err, closeErr)
}

// causedOnlyBy reports whether every cause that an error ends in is the kill.
func causedOnlyBy(err error, kill *job.KillError) bool {
	switch e := err.(type) { //nolint:errorlint // each level is looked at
	case nil:
		return true
	case *job.KillError:
		return e == kill
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if !causedOnlyBy(part, kill) {
				return false
			}
		}
		return true
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return causedOnlyBy(inner, kill)
		}
	}
	return err == context.Canceled //nolint:errorlint // nothing is wrapped in it any more
}

// outcome maps how a run ended, after it was released (seam BG-09…12). A failure has
// the reason and the provider's word on it, but no partial output; a release that
// failed is told beside the result, and makes the job fail (core T24).
func outcome(ctx context.Context, res subagent.Result, waitErr, closeErr error) job.Outcome {
	out := message.JoinText(res.Output)
	var lines []string
	state := job.Failed
	switch {
	case waitErr != nil:
		lines = append(lines, "the subagent's result was lost: "+waitErr.Error())
	case res.StopReason == subagent.StopCompleted:
		state = job.Completed
		if res.Structured != nil {
			out = string(res.Structured)
		}
		if strings.TrimSpace(out) == "" {
			out = "The subagent finished without saying anything."
		}
	case res.StopReason == subagent.StopAborted:
		state = job.Killed
		var killed *job.KillError
		if errors.As(context.Cause(ctx), &killed) {
			lines = append(lines, killed.Reason)
		} else {
			lines = append(lines, headline("the subagent", res.StopReason))
		}
	default:
		lines = append(lines, headline("the subagent", res.StopReason))
	}
	if waitErr == nil && res.StopReason != subagent.StopCompleted && res.Diagnostic != "" {
		lines = append(lines, "Diagnostic: "+res.Diagnostic)
	}
	if closeErr != nil {
		state = job.Failed
		lines = append(lines, "the subagent could not be released: "+closeErr.Error())
	}
	if waitErr == nil && res.StopReason == subagent.StopCompleted {
		if closeErr != nil {
			lines = append(lines, "Output:")
		}
		lines = append(lines, out)
	}
	return job.Outcome{State: state, Text: strings.Join(lines, "\n")}
}
