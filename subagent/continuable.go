package subagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// ContinuablePreparer is implemented by a Provider under which continuable children can
// begin. It contributes what the child inherits and nothing else: it never gets hold of
// the child, and a cold resume does not ask it (seam CONT-15, CONT-16, FUP-14).
type ContinuablePreparer interface {
	// PrepareContinuable returns the seed of a new child, or nil for an empty
	// conversation. It is called for several children at once. ctx ends with the caller's
	// until the child has accepted its prompt.
	PrepareContinuable(ctx context.Context, p Preparation) (*session.Seed, error)
}

// Preparation is all that a provider learns of a continuable child (amendment P18).
type Preparation struct {
	ID     session.ID
	Parent *agent.Agent
}

// ContinuableRequest is what a caller asks for when it starts a continuable child. The
// four capabilities of a provider do not bound it, since the service composes the child
// (seam CAP-06).
type ContinuableRequest struct {
	// ID is a session id that the caller has reserved for the child; "" mints one.
	ID session.ID
	// Label is a short name for people and lists, stored with the child. It is mandatory.
	Label string
	// Prompt becomes the child's first user message, as it is.
	Prompt []message.Block
	// Parent is the live agent that delegates; it is mandatory.
	Parent *agent.Agent
	// Model overrides what the child inherits. Its MaxTokens and ReasoningEffort are not
	// restored by a cold resume (seam FUP-17).
	Model Model
	// MaxDepth is an absolute cap: the child's depth must not exceed it.
	MaxDepth *int64
	// ToolFilter narrows the tools that the child inherits.
	ToolFilter *session.ToolFilter
	// Persona replaces the deployment's for this child alone.
	Persona *Persona
}

// Accepted names a continuable child and the message that it has accepted.
type Accepted struct {
	Child   session.ID
	Message message.ID
}

// StartContinuable begins a continuable child on the named provider and returns when its
// inbox has accepted the prompt: the accepting record is stored, and neither a turn nor
// a model request is waited for (amendment P06). From then on the child is the service's
// own; ctx governs nothing any more (seam CAN-05, CAN-09). What it comes to reaches the
// parent as a message, the settlement notice, and the child takes more work by Followup.
//
// An error means that no child is left: no agent, no ownership, nothing stored, nobody to
// hear of (seam RB). Errors, checked in this order: CodeDraining; CodeInvalidRequest and
// CodeUnauthorized for a parent that is missing or not the exact live agent;
// CodeNoProvider; CodeUnsupportedCapability for a provider that is no
// ContinuablePreparer; CodePersistenceUnavailable; a *DepthTypeError; CodeInvalidRequest
// for a prompt, a label or a filter; CodeDuplicateChild; the depth errors and
// CodeLimitReached; the cause of ctx's end; then whatever fails on the way, with the
// provider's own failures passed on.
func (s *Service) StartContinuable(ctx context.Context, provider string, req ContinuableRequest) (Accepted, error) {
	return s.m.start(ctx, provider, req, nil)
}

// Followup gives a continuable child its next work, as the exact live agent that is its
// direct parent: no id, source or message stands for that (seam AUTH). The message
// becomes one turn of its own, behind those that wait. It goes to the child wherever that
// is: running, waiting for its own children, or only stored, in which case it is resumed
// (seam FUP). source is kept with the message and grants nothing.
//
// It returns the message's id once the accepting record is stored; ctx ends with that.
// Errors: CodeInvalidRequest; CodeUnauthorized; CodeDraining; CodeActivationClosing;
// CodeNotResumable for a child that is not there, not continuable, or cannot be read or
// built; CodePersistenceUnavailable; CodeOwnedElsewhere with the process that holds the
// child's tree; CodeOwnershipConflict where an agent of that id is live that this service
// does not manage; CodeLimitReached; the cause of ctx's end. Nothing was accepted then.
func (s *Service) Followup(ctx context.Context, parent *agent.Agent, child session.ID, content []message.Block, source message.Source) (message.ID, error) {
	if parent == nil {
		return "", errorf(CodeInvalidRequest, "follow up %s: a parent agent is required", child)
	}
	return s.m.deliver(ctx, delivery{parent: parent, parentID: parent.ID(), child: child, content: content, source: source})
}

// start is StartContinuable. waiter, if not nil, gets the settlement instead of the parent.
func (m *manager) start(ctx context.Context, provider string, req ContinuableRequest, waiter *Awaited) (acc Accepted, err error) {
	p, err := m.resolve(provider, &req)
	if err != nil {
		return acc, err
	}
	// Before anything waits: a later switch of the parent does not reach this child (seam COMP-26).
	policy := compose.Capture(req.Parent)
	if err := m.attend(ctx, req.Parent); err != nil {
		return acc, err
	}
	id := req.ID
	if id == "" {
		id = session.NewID()
	} else if err := m.free(ctx, id); err != nil {
		return acc, err
	}
	depth, err := m.svc.childDepth(req.Parent, req.MaxDepth)
	if err != nil {
		return acc, err
	}
	options := compose.Options(req.Parent.Options(), req.Model, depth)
	descriptor, err := describe(provider, &req, &options)
	if err != nil {
		return acc, err
	}
	if err := context.Cause(ctx); err != nil {
		return acc, err
	}
	act, err := m.reserve(id, req.Parent)
	if err != nil {
		return acc, err
	}
	b := birth{parent: req.Parent, provider: provider, label: req.Label, path: m.path(req.Parent), above: req.Parent.Path(), fresh: true}
	seed, err := m.prepare(ctx, act, p, provider, b.path, Preparation{ID: id, Parent: req.Parent})
	if err != nil {
		m.forget(act)
		return acc, err
	}
	ps := req.Parent.Session()
	child := compose.Child{Policy: policy, Persona: req.Persona, Filter: req.ToolFilter}
	b.compose = func(ctx context.Context, a *agent.Agent) error {
		if err := child.Setup(ctx, a); err != nil {
			return err
		}
		drafts := []session.Draft{{Payload: descriptor}}
		if req.Persona != nil && req.Persona.Literal {
			drafts = append(drafts, session.Draft{Payload: &session.Persona{Literal: true}})
		}
		_, err := a.Session().Append(drafts...)
		return err
	}
	b.create = func(ctx context.Context, setup func(context.Context, *agent.Agent) error, commit func() error) (*agent.Handle, error) {
		return m.agents.Create(ctx, agent.Create{
			Session: session.New{
				ID: id, Cwd: req.Parent.Cwd(), ParentSession: ps.ID(), Origin: session.OriginSubagent, DelegationDepth: depth,
				// Nothing is stored before the child has accepted its prompt (seam RB-19).
				Root: ps.Root(), Seed: seed, Deferred: true,
			},
			Options: options, Above: b.above, Delegated: true, Setup: setup, Commit: commit,
		})
	}
	if err := m.bear(ctx, act, &b); err != nil {
		return acc, startError(ctx, provider, id, err)
	}
	msg := message.Message{ID: agent.NewMessageID(), Role: message.RoleUser, Content: req.Prompt, Source: message.UserSource()}
	m.mu.Lock()
	if act.waiter = waiter; waiter != nil {
		waiter.act = act
	}
	m.mu.Unlock()
	if err := m.submit(ctx, act, req.Parent, func() []key { return b.path }, msg); err != nil {
		if waiter != nil {
			// What others have given the child settles with a notice.
			waiter.Release()
		}
		return acc, err
	}
	return Accepted{Child: id, Message: msg.ID}, nil
}

// resolve checks a request and detaches it from its caller.
func (m *manager) resolve(provider string, req *ContinuableRequest) (ContinuablePreparer, error) {
	refuse := func(code Code, format string, args ...any) (ContinuablePreparer, error) {
		return nil, errorf(code, "start continuable subagent on %q: %s", provider, fmt.Sprintf(format, args...))
	}
	if m.closed() {
		return nil, errOver
	}
	if req.Parent == nil {
		return refuse(CodeInvalidRequest, "a parent agent is required")
	}
	if _, live := m.agents.Live(req.Parent); !live {
		return refuse(CodeUnauthorized, "the parent %s is not the live agent of that id", req.Parent.ID())
	}
	p, ok := m.svc.Provider(provider)
	if !ok {
		return nil, errorf(CodeNoProvider, "no subagent provider is named %q", provider)
	}
	preparer, ok := p.(ContinuablePreparer)
	if !ok {
		return nil, errorf(CodeUnsupportedCapability, "subagent provider %q does not support continuable children", provider)
	}
	if m.agents.Sessions().Store() == nil {
		return refuse(CodePersistenceUnavailable, "sessions are not stored, so there is nothing to continue from")
	}
	if err := compose.CheckDepthCap(req.MaxDepth); err != nil {
		return nil, err
	}
	switch {
	case emptyContent(req.Prompt):
		return refuse(CodeInvalidRequest, "the prompt is empty")
	case req.Label == "":
		return refuse(CodeInvalidRequest, "a label is required")
	case req.ToolFilter != nil && req.ToolFilter.Allow == nil && req.ToolFilter.Deny == nil:
		return refuse(CodeInvalidRequest, "the tool filter has neither allow nor deny")
	}
	if err := session.CheckMessage(&message.Message{ID: "prompt", Role: message.RoleUser, Content: req.Prompt, Source: message.UserSource()}); err != nil {
		return nil, &Error{Code: CodeInvalidRequest, Msg: fmt.Sprintf("start continuable subagent on %q", provider), Err: err}
	}
	req.Prompt = cloneBlocks(req.Prompt)
	req.MaxDepth = clonePointer(req.MaxDepth)
	req.Persona = clonePointer(req.Persona)
	if f := req.ToolFilter; f != nil {
		req.ToolFilter = &session.ToolFilter{Allow: slices.Clone(f.Allow), Deny: slices.Clone(f.Deny)}
	}
	return preparer, nil
}

// free refuses an id that is taken (seam CONT-08…10): preparing the session asks again.
func (m *manager) free(ctx context.Context, id session.ID) error {
	taken := m.known(id)
	if !taken {
		err := contain(func() (err error) {
			taken, err = m.agents.Sessions().Store().Exists(ctx, id)
			return err
		})
		switch {
		case err != nil && context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("start continuable subagent %s: %w", id, err)
		}
	}
	if taken {
		return errDuplicate(id)
	}
	return nil
}

func errDuplicate(id session.ID) error {
	return errorf(CodeDuplicateChild, "start continuable subagent: a session with the id %s exists already", id)
}

// childDepth returns the depth of a child of parent within a cap and the deployment's.
func (s *Service) childDepth(parent *agent.Agent, maxDepth *int64) (int64, error) {
	depth, err := compose.ChildDepth(parent, maxDepth)
	if err == nil && s.cfg.MaxDepth != nil && depth > *s.cfg.MaxDepth {
		err = errorf(CodeLimitReached, "limit reached: a subagent at delegation depth %d is beyond the deployment's bound of %d", depth, *s.cfg.MaxDepth)
	}
	return depth, err
}

// describe makes the descriptor of a new child: what a cold resume composes it from
// (seam DES-05…09).
func describe(provider string, req *ContinuableRequest, o *agent.Options) (*session.DescriptorEvent, error) {
	d := session.Descriptor{Mode: session.ModeContinuable, Provider: provider, Label: &req.Label, ToolFilter: req.ToolFilter}
	if o.Provider != "" {
		d.AgentProvider = &o.Provider
	}
	if o.Model != "" {
		d.AgentModel = &o.Model
	}
	if req.Persona != nil {
		d.Persona = &req.Persona.Text
	}
	e, err := session.NewDescriptor(d)
	if err != nil {
		return nil, &Error{Code: CodeInvalidRequest, Msg: fmt.Sprintf("start continuable subagent on %q", provider), Err: err}
	}
	return e, nil
}

// prepare asks the provider for the seed. A drain meanwhile ends ctx.
func (m *manager) prepare(ctx context.Context, act *activation, p ContinuablePreparer, name string, path []key, prep Preparation) (*session.Seed, error) {
	ctx, done, err := m.making(ctx, act, path)
	if err != nil {
		return nil, err
	}
	defer done()
	var seed *session.Seed
	err = m.svc.provided(name, func() (err error) {
		seed, err = p.PrepareContinuable(ctx, prep)
		return err
	})
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	if seed != nil {
		// What the provider does with its slice later is no concern of the child.
		seed = &session.Seed{Prefix: seed.Prefix, Events: slices.Clone(seed.Events)}
		if seed.Prefix == nil && len(seed.Events) == 0 {
			seed = nil
		}
	}
	return seed, nil
}

// startError says why a child did not come to be. ctx's end comes out as its cause.
func startError(ctx context.Context, provider string, id session.ID, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return cause
	}
	if e, ok := asError[*Error](err); ok {
		return e
	}
	if e, ok := asError[*agent.LimitError](err); ok {
		return &Error{Code: CodeLimitReached, Err: e}
	}
	if errors.Is(err, session.ErrExists) {
		return errDuplicate(id)
	}
	return fmt.Errorf("start continuable subagent %s on %q: %w", id, provider, err)
}
