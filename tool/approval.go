package tool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// ApprovalOutcome is how a question to a person ended (core T13).
type ApprovalOutcome string

// The outcomes. Only ApprovalAllowedOnce lets the call go on; any other value,
// known or not, refuses it.
const (
	ApprovalAllowedOnce ApprovalOutcome = "allowed-once"
	ApprovalRejected    ApprovalOutcome = "rejected"
	ApprovalCancelled   ApprovalOutcome = "cancelled"
	ApprovalUnavailable ApprovalOutcome = "unavailable"
)

// ApprovalOption is one answer that a person is offered.
type ApprovalOption struct {
	ID      string
	Label   string
	Outcome ApprovalOutcome
}

// ApprovalRequest is one question. It is a snapshot of the call: later changes
// alter neither the question nor what runs (core T33). It must not be modified.
type ApprovalRequest struct {
	// ID is unique.
	ID string
	// Tool, CallID, Args and Cwd are the call's; Args is JSON.
	Tool   string
	CallID string
	Args   []byte
	Cwd    string
	// Summary is a short line for people about the call.
	Summary string
	// Reason says why the question is put.
	Reason string
	// Path holds the ids of the agents from the root to the caller.
	Path []string
	// Deadline is when the question lapses; zero is never.
	Deadline time.Time
	// Options are the answers to offer.
	Options []ApprovalOption
}

// Approver puts a question to a person.
type Approver interface {
	// Approve returns the outcome. It must return soon after ctx ends; ctx ends
	// with the call and at the request's deadline. An error counts as
	// ApprovalUnavailable. It may be called concurrently.
	Approve(ctx context.Context, req *ApprovalRequest) (ApprovalOutcome, error)
}

// ApprovalLog records questions and their outcome. A failure of either refuses the
// call: no decision takes effect that is not on record.
type ApprovalLog interface {
	Asked(call *Call, req *ApprovalRequest) error
	Decided(call *Call, req *ApprovalRequest, outcome ApprovalOutcome) error
}

var errApprovalLapsed = errors.New("nobody answered in time")

func newApprovalRequest(call *Call, opts *ExecOptions, reason string) *ApprovalRequest {
	c := call.copy()
	req := &ApprovalRequest{
		ID: rand.Text(), Tool: c.Name, CallID: c.ID, Args: c.Args, Cwd: c.Cwd,
		Summary: call.Describe(), Reason: reason, Path: append([]string(nil), opts.Path...),
		Options: []ApprovalOption{
			{ID: "allow", Label: "Allow this once", Outcome: ApprovalAllowedOnce},
			{ID: "reject", Label: "Reject", Outcome: ApprovalRejected},
		},
	}
	if opts.ApprovalTimeout > 0 {
		req.Deadline = time.Now().Add(opts.ApprovalTimeout)
	}
	return req
}

// approve asks and returns nil if the call may go on, else the refusal.
func (p *Pending) approve(ctx context.Context, reason string) *Error {
	req := newApprovalRequest(&p.call, &p.opts, reason)
	if log := p.opts.Log; log != nil {
		if err := p.logApproval(func() error { return log.Asked(&p.call, req) }); err != nil {
			return err
		}
	}
	outcome, text := p.putQuestion(ctx, req)
	if log := p.opts.Log; log != nil {
		if err := p.logApproval(func() error { return log.Decided(&p.call, req, outcome) }); err != nil {
			return err
		}
	}
	if outcome == ApprovalAllowedOnce {
		return nil
	}
	return &Error{Code: CodeDenied, Msg: text}
}

func (p *Pending) logApproval(record func() error) *Error {
	var err error
	if perr := contain("approval log", func() { err = record() }); perr != nil {
		p.fault(perr)
		err = perr
	}
	if err == nil {
		return nil
	}
	return &Error{Code: CodeInternal, Msg: fmt.Sprintf("not run: the approval could not be recorded: %v", err), Err: err}
}

// putQuestion returns the outcome and, for a refusal, what the model reads.
func (p *Pending) putQuestion(ctx context.Context, req *ApprovalRequest) (ApprovalOutcome, string) {
	const need = "not run: this call needs a person's approval"
	if p.call.Caller == nil {
		return ApprovalUnavailable, need + ", and it comes from no agent that could ask for it"
	}
	outcome, why, fault := PutQuestion(ctx, p.opts.Approver, p.opts.NeverAsk, req)
	if fault != nil {
		p.fault(fault)
	}
	switch {
	case outcome == ApprovalAllowedOnce:
		return outcome, ""
	case why != "":
		return outcome, need + ", and " + why
	case outcome == ApprovalRejected:
		return outcome, "not run: a person was asked to approve this call and rejected it"
	case outcome == ApprovalCancelled:
		return outcome, "not run: the question whether to approve this call was dismissed without an answer"
	default:
		return outcome, fmt.Sprintf("not run: the approval ended as %q, which allows nothing", outcome)
	}
}

// PutQuestion puts a question to an approver, until ctx ends or the request's deadline,
// and returns its outcome. why says why there was no answer, where there was none: never
// is set, so that nobody is asked, the approver is nil, or it failed. fault is the panic
// of an approver, which counts as a failure. Nothing is recorded.
func PutQuestion(ctx context.Context, a Approver, never bool, req *ApprovalRequest) (outcome ApprovalOutcome, why string, fault error) {
	switch {
	case never:
		return ApprovalRejected, "for this agent every approval is refused without asking", nil
	case a == nil:
		return ApprovalUnavailable, "nobody is there who could give it", nil
	}
	if !req.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, req.Deadline, errApprovalLapsed)
		defer cancel()
	}
	var err error
	if fault = contain("approver", func() { outcome, err = a.Approve(ctx, req) }); fault != nil {
		err = fault
	}
	switch {
	case err == nil && (outcome == ApprovalAllowedOnce || outcome == ApprovalRejected):
		return outcome, "", nil
	case errors.Is(context.Cause(ctx), errApprovalLapsed):
		return ApprovalUnavailable, "nobody answered in time", fault
	case ctx.Err() != nil, err == nil && outcome == ApprovalCancelled:
		return ApprovalCancelled, "", fault
	case err != nil:
		return ApprovalUnavailable, fmt.Sprintf("asking for it failed: %v", err), fault
	case outcome == ApprovalUnavailable:
		return ApprovalUnavailable, "nobody is there who could give it", nil
	default:
		return outcome, "", nil
	}
}

// Policy says what an agent may do without being asked.
type Policy string

// The policies. A tool that declares itself ReadOnly is allowed under every one.
const (
	// PolicyAsk asks a person before any other tool runs.
	PolicyAsk Policy = "ask"
	// PolicyAllow allows everything.
	PolicyAllow Policy = "allow"
	// PolicyDeny refuses every other tool.
	PolicyDeny Policy = "deny"
	// PolicyReadOnly refuses every other tool because the session is read-only.
	PolicyReadOnly Policy = "read-only"
	// PolicyNever is PolicyAsk for an agent whose questions are refused without
	// being put (an agent below another; see also ExecOptions.NeverAsk).
	PolicyNever Policy = "never"
)

// Narrow returns what a policy leaves of itself under the approval policy and the
// sandbox mode that a log holds; "" is nothing said. It never returns more than p.
//
// A log's words are those of the sandboxed runtimes that share its format, and this
// package has no sandbox: read-only keeps its meaning; under workspace-write, which
// bounds writes to a folder, a person decides about each call; danger-full-access
// takes nothing away. The approval policy never refuses what would be asked. A word
// that is not known takes as much as the narrowest one.
func Narrow(p Policy, approval, sandbox string) Policy {
	switch sandbox {
	case "", "danger-full-access":
	case "workspace-write":
		if p == PolicyAllow {
			p = PolicyAsk
		}
	default: // read-only
		if p == PolicyAllow || p == PolicyAsk {
			p = PolicyReadOnly
		}
	}
	switch approval {
	case "", "ask":
	default: // never
		if p == PolicyAsk {
			p = PolicyNever
		}
	}
	return p
}

// PermissionGate returns a hook that applies the policy that policy returns for a
// call. A policy it does not know refuses.
func PermissionGate(policy func(call *Call) Policy) PreExecute {
	return func(_ context.Context, call *Call) Decision {
		p := policy(call)
		switch p {
		case PolicyAllow:
			return Allow()
		case PolicyAsk, PolicyDeny, PolicyReadOnly, PolicyNever:
			if call.ReadOnly() {
				return Allow()
			}
		}
		switch p {
		case PolicyAsk:
			return Ask("the permission policy asks before a tool that can change something")
		case PolicyDeny:
			return Deny(fmt.Sprintf("the permission policy denies %s; tools that only read are allowed", call.Name))
		case PolicyReadOnly:
			return Deny(fmt.Sprintf("this session is read-only, and %s can change something", call.Name))
		case PolicyNever:
			return Deny(fmt.Sprintf("%s needs a person's approval, and for this agent every approval is refused without asking; report what you need instead of trying again", call.Name))
		default:
			return Deny(fmt.Sprintf("the permission policy %q is not known", string(p)))
		}
	}
}
