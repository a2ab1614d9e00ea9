package agent

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/tool"
)

// Approve decides on a question of somebody who works for the agent beyond its own tool
// calls, such as a child in another process, and records question and decision in the
// agent's log. decided is the outcome where it stands already; "" puts the question as for
// the agent's own calls: to the registry's approver, until ctx ends or the request's
// deadline, and to nobody if the log pins the approval policy "never". Only
// tool.ApprovalAllowedOnce allows.
//
// An error says that it could not be recorded: then nothing is allowed, whatever was
// decided.
func (a *Agent) Approve(ctx context.Context, req *tool.ApprovalRequest, decided tool.ApprovalOutcome) (tool.ApprovalOutcome, error) {
	unrecorded := func(err error) (tool.ApprovalOutcome, error) {
		return tool.ApprovalUnavailable, fmt.Errorf("the approval could not be recorded: %w", err)
	}
	log := approvalLog{a}
	call := &tool.Call{ID: req.CallID, Name: req.Tool}
	if err := log.Asked(call, req); err != nil {
		return unrecorded(err)
	}
	outcome := decided
	if outcome == "" {
		var fault error
		if outcome, _, fault = tool.PutQuestion(ctx, a.reg.cfg.Approver, a.neverAsk(), req); fault != nil {
			a.log().Error("approver fault", "error", fault)
		}
	}
	if err := log.Decided(call, req, outcome); err != nil {
		return unrecorded(err)
	}
	return outcome, nil
}
