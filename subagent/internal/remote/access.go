package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/tool"
)

// Access is what one child may do. It is fixed when the child is started.
type Access struct {
	// ReadOnly: the product must run in a mode of its own in which it changes nothing; its
	// requests are denied then.
	ReadOnly bool
	// Permission is what its requests for leave get.
	Permission external.Permission
}

// access lays the policy in force for the parent over what is configured (design § 4,
// Trust).
func (p *Product) access(parent *agent.Agent) Access {
	policy := tool.PolicyAllow
	if p.Config.Policy != nil {
		policy = p.Config.Policy(parent)
	}
	approval, sandbox := parent.Session().Policies()
	a := Access{Permission: p.Config.Permission}
	switch tool.Narrow(policy, approval, sandbox) {
	case tool.PolicyAllow:
		if a.Permission == external.Ask && tool.Narrow(tool.PolicyAsk, approval, sandbox) != tool.PolicyAsk {
			a.Permission = external.Deny
		}
	case tool.PolicyAsk:
		if a.Permission == external.Allow {
			a.Permission = external.Ask
		}
	default:
		a = Access{ReadOnly: true, Permission: external.Deny}
	}
	return a
}

// Forbidden is the refusal to start a product that cannot be kept within what is
// permitted. why says what it lacks, and what could be changed.
func (c *Child) Forbidden(why string) error {
	return &subagent.Error{Code: subagent.CodeForbidden, Msg: c.product.Config.Name + ": " + why}
}

// Question is a product's request for leave.
type Question struct {
	// Tool is the product's own word for what it wants to use, and CallID its id for this
	// use; "" if it gave none.
	Tool, CallID string
	// Args is what it wants to do, as JSON, for the person who decides.
	Args []byte
	// Summary is what that comes to, in a line. Of Tool, CallID and Summary a person and the
	// log get what Clean leaves.
	Summary string
	// Lasting is how long a yes holds, such as "until its turn ends", for a product that does
	// not ask for this once alone; "" is once.
	Lasting string
}

// Verdict is the decision on a Question.
type Verdict int

// The verdicts.
const (
	Rejected Verdict = iota
	// Allowed is for this once.
	Allowed
	// Cancelled: there is no decision, because the run was cancelled or the question was
	// dismissed.
	Cancelled
)

// Ask decides on a question as Access says; a person is asked until ctx ends, the run is
// cancelled, or the time for an answer is over. Question and decision stand in the parent's
// log. It may be called for several questions at once. Those of a probe are rejected and
// stand nowhere: it has no parent.
func (c *Child) Ask(ctx context.Context, q Question) Verdict {
	switch c.Access.Permission {
	case external.Allow:
		return c.decide(ctx, q, tool.ApprovalAllowedOnce)
	case external.Ask:
		return c.decide(ctx, q, "")
	}
	return c.decide(ctx, q, tool.ApprovalRejected)
}

// Refused records a question that the product has refused by itself, since it was started
// with the order to refuse what it would have to ask for.
func (c *Child) Refused(ctx context.Context, q Question) { c.decide(ctx, q, tool.ApprovalRejected) }

// decide puts a question on record with its decision, which "" leaves to a person.
func (c *Child) decide(ctx context.Context, q Question, decided tool.ApprovalOutcome) Verdict {
	if c.Probe {
		return Rejected
	}
	p, parent := c.product, c.req.Parent
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(c.cancelled, func() { stop(context.Cause(c.cancelled)) })()
	reason, allow := fmt.Sprintf("the agent %s asks for it", p.Config.Name), "Allow this once"
	if q.Lasting != "" {
		reason, allow = reason+"; a yes holds "+q.Lasting, "Allow "+q.Lasting
	}
	req := &tool.ApprovalRequest{
		ID: rand.Text(), Tool: p.Config.Name + ":" + Clean(q.Tool), CallID: Clean(q.CallID), Args: bytes.Clone(q.Args), Cwd: c.Dir,
		Summary: Clean(q.Summary), Reason: reason, Path: append(parent.Path(), string(c.ID)),
		Deadline: time.Now().Add(p.Config.ApprovalTimeout),
		Options: []tool.ApprovalOption{
			{ID: "allow", Label: allow, Outcome: tool.ApprovalAllowedOnce},
			{ID: "reject", Label: "Reject", Outcome: tool.ApprovalRejected},
		},
	}
	if req.Args == nil {
		req.Args = []byte("{}")
	}
	if ctx.Err() != nil || c.cancelled.Err() != nil {
		decided = tool.ApprovalCancelled
	}
	outcome, err := parent.Approve(ctx, req, decided)
	if err != nil {
		p.log("approval", err)
		return Rejected
	}
	switch outcome {
	case tool.ApprovalAllowedOnce:
		return Allowed
	case tool.ApprovalCancelled:
		return Cancelled
	}
	return Rejected
}
