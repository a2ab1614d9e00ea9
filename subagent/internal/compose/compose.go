// Package compose makes a child agent out of its parent and a request: depth,
// model options, the policy that delegation pins, persona and tool filter. It is
// shared by every way in which a child comes to live in this process and decides
// nothing about its life. Floor 4.
package compose

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// DepthError refuses a child beyond a cap (seam ERR-03, DEP-06).
type DepthError struct {
	Depth int64 // the depth that the child would have
	Cap   int64
}

func (e *DepthError) Error() string {
	return fmt.Sprintf("delegation depth %d exceeds the cap of %d", e.Depth, e.Cap)
}

// DepthRangeError refuses a child whose depth cannot be represented (seam DEP-08).
type DepthRangeError struct{ Parent int64 }

func (e *DepthRangeError) Error() string {
	return fmt.Sprintf("delegation depth below a parent at depth %d is out of range", e.Parent)
}

// DepthTypeError refuses a malformed cap or run-time depth (seam REQ-02, DEP-07).
type DepthTypeError struct {
	What  string
	Value int64
}

func (e *DepthTypeError) Error() string {
	return fmt.Sprintf("%s must be an integer from 0 to 2^53-1, not %d", e.What, e.Value)
}

// CheckDepthCap checks the domain of a cap; nil is no cap.
func CheckDepthCap(maxDepth *int64) error {
	if maxDepth != nil && (*maxDepth < 0 || *maxDepth > jsonx.MaxSafe) {
		return &DepthTypeError{What: "maxDepth", Value: *maxDepth}
	}
	return nil
}

// Effective returns the delegation depth of an agent: the greater of its durable
// header and its run-time option (seam DEP-01, DEP-04).
func Effective(a *agent.Agent) (int64, error) {
	depth := a.Session().Header().DelegationDepth
	if opt := a.Options().Depth; opt != nil {
		if *opt < 0 || *opt > jsonx.MaxSafe {
			return 0, &DepthTypeError{What: "the parent's run-time depth", Value: *opt}
		}
		depth = max(depth, *opt)
	}
	return depth, nil
}

// ChildDepth returns the depth of a child of parent and checks it against an
// absolute, inclusive cap (seam DEP-02, DEP-06, DEP-08).
func ChildDepth(parent *agent.Agent, maxDepth *int64) (int64, error) {
	if err := CheckDepthCap(maxDepth); err != nil {
		return 0, err
	}
	depth, err := Effective(parent)
	if err != nil {
		return 0, err
	}
	if depth >= jsonx.MaxSafe {
		return 0, &DepthRangeError{Parent: depth}
	}
	depth++
	if maxDepth != nil && depth > *maxDepth {
		return 0, &DepthError{Depth: depth, Cap: *maxDepth}
	}
	return depth, nil
}

// Model overrides parts of the parent's model options. Zero fields inherit.
type Model struct {
	Provider, Model string
	ReasoningEffort string
	MaxTokens       int64
}

// Options returns a child's options: the parent's route, model and token cap,
// overridden field by field, and the child's depth (seam COMP-05, DEP-03). A
// reasoning effort is the route's own and does not travel to another model.
func Options(parent agent.Options, over Model, depth int64) agent.Options {
	o := agent.Options{Provider: parent.Provider, Model: parent.Model, MaxTokens: parent.MaxTokens, Depth: &depth}
	if over.Provider != "" {
		o.Provider = over.Provider
	}
	if over.Model != "" {
		o.Model = over.Model
	}
	if o.Provider == parent.Provider && o.Model == parent.Model {
		o.ReasoningEffort, o.Temperature = parent.ReasoningEffort, parent.Temperature
	}
	if over.ReasoningEffort != "" {
		o.ReasoningEffort = over.ReasoningEffort
	}
	if over.MaxTokens != 0 {
		o.MaxTokens = over.MaxTokens
	}
	return o
}

// Policy is what a delegation pins in the child's log.
type Policy struct {
	sandbox string
	pin     bool
}

// Capture reads the parent's policies at the delegation call, before anything
// waits: a later switch of the parent does not affect this child (seam COMP-23…26).
// A parent that may not ask has no child that may, whoever could answer, and
// whatever an inherited prefix says from before.
func Capture(parent *agent.Agent) Policy {
	approval, sandbox := parent.Session().Policies()
	return Policy{sandbox: sandbox, pin: parent.Registry().Approves() || approval == string(tool.PolicyNever)}
}

// Persona is a child's persona: a template, or text that stays as it is (seam COMP-36).
type Persona struct {
	Text    string
	Literal bool
}

// Child is what belongs to one child alone.
type Child struct {
	Policy  Policy
	Persona *Persona
	Filter  *session.ToolFilter
}

// Setup composes a child, which was created as Delegated, before it is published: policy
// events behind any seed, persona and filter (seam COMP-08…16, COMP-27, DRV-04).
func (c Child) Setup(_ context.Context, a *agent.Agent) error {
	var drafts []session.Draft
	if c.Policy.sandbox != "" {
		drafts = append(drafts, session.Draft{Payload: &session.SandboxMode{Mode: c.Policy.sandbox, Delegated: true}})
	}
	if c.Policy.pin {
		drafts = append(drafts, session.Draft{Payload: &session.ApprovalPolicy{Policy: string(tool.PolicyNever), Delegated: true}})
	}
	if drafts != nil {
		if _, err := a.Session().Append(drafts...); err != nil {
			return err
		}
	}
	if c.Persona != nil {
		if _, err := a.Prompts().Add(prompt.Persona(c.Persona.Text, c.Persona.Literal)); err != nil {
			return err
		}
	}
	if c.Filter != nil {
		f := tool.Filter{}
		if c.Filter.Allow != nil {
			f.Allow = &c.Filter.Allow
		}
		if c.Filter.Deny != nil {
			f.Deny = &c.Filter.Deny
		}
		if err := a.Tools().Restrict(f); err != nil {
			return fmt.Errorf("tool filter: %w", err)
		}
	}
	return nil
}
