package subagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// revive makes the child of a delivery resident from its stored log, or returns nil where
// somebody else has begun to meanwhile. What it is comes from its own log alone: neither
// the provider nor the parent is asked (seam FUP-14…16).
func (m *manager) revive(ctx context.Context, d *delivery, path []key) (*activation, error) {
	h, tree, err := m.lookUp(ctx, d.child, d.parentID)
	if err != nil {
		return nil, err
	}
	parent := d.parent
	if parent == nil {
		// For a person's message the parent is not loaded, and known where it is live.
		parent, _ = m.agents.Get(d.parentID)
	}
	act, err := m.open(ctx, &h, tree, parent, path, nil)
	if act == nil || err != nil {
		return nil, err
	}
	// What its own children came to while it was away comes before what it is to do now.
	if err := m.attend(ctx, act.agent); err != nil {
		m.svc.fault("what the subagents of a resumed agent came to could not be read", err, "agent", string(h.ID))
	}
	return act, nil
}

// lookUp returns the header of a stored child and the root of its tree, before anything of it is opened. What is
// not a child of parentID tells nothing but that (seam AUTH-04, AUTH-06).
func (m *manager) lookUp(ctx context.Context, child, parentID session.ID) (h session.Header, tree session.ID, err error) {
	foreign := func(h session.Header) error {
		if h.ParentSession != parentID {
			return errorf(CodeUnauthorized, "subagent %s is not a child of %s", child, parentID)
		}
		return nil
	}
	if s, live := m.agents.Sessions().Get(child); live {
		if err := foreign(s.Header()); err != nil {
			return h, "", err
		}
		if m.managed(child) {
			return s.Header(), s.Root(), nil // somebody else has begun to open it, or just let it go
		}
		if _, still := m.agents.Sessions().Get(child); still {
			return h, "", errorf(CodeOwnershipConflict, "subagent %s is live here, but it is nobody's to continue: a one-shot child, or opened by something else", child)
		}
	}
	store := m.agents.Sessions().Store()
	if store == nil {
		return h, "", errorf(CodePersistenceUnavailable, "subagent %s is not live, and sessions are not stored", child)
	}
	var rec session.Record
	err = contain(func() (err error) {
		rec, _, err = store.Inspect(ctx, child)
		return err
	})
	switch {
	case err != nil && context.Cause(ctx) != nil:
		return h, "", context.Cause(ctx)
	case errors.Is(err, session.ErrNotFound):
		return h, "", errorf(CodeNotResumable, "there is no subagent %s", child)
	case err != nil:
		return h, "", notResumable(child, err)
	}
	if err := foreign(rec.Header); err != nil {
		return h, "", err
	}
	if rec.Header.Origin != session.OriginSubagent {
		return h, "", errorf(CodeNotResumable, "session %s is no subagent", child)
	}
	if id, ok := projection.IdentityOf(&rec); ok && id.Mode != session.ModeContinuable {
		return h, "", errOneShot(child)
	}
	return rec.Header, rec.Meta.Root, nil
}

func errOneShot(child session.ID) error {
	return errorf(CodeNotResumable, "subagent %s was started for one task and takes no further message; do not try it again: start another subagent", child)
}

func notResumable(child session.ID, err error) error {
	return &Error{Code: CodeNotResumable, Msg: fmt.Sprintf("subagent %s cannot be resumed", child), Err: err}
}

func elsewhere(child session.ID, err error) error {
	return &Error{Code: CodeOwnedElsewhere, Msg: fmt.Sprintf("subagent %s belongs to another process now", child), Err: err}
}

// managed reports whether there is an entry of that id.
func (m *manager) managed(id session.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[id] != nil
}

// open makes a stored child resident. parent is nil where it is not live. so, if not nil,
// is what its log must say, or it is errNotDue. The Activation is held; nil says that
// there is an entry already.
func (m *manager) open(ctx context.Context, h *session.Header, tree session.ID, parent *agent.Agent, path []key, so func(*session.Session) bool) (*activation, error) {
	m.mu.Lock()
	if m.over || m.entries[h.ID] != nil {
		over := m.over
		m.mu.Unlock()
		if over {
			return nil, errOver
		}
		return nil, nil
	}
	act, err := m.enlistLocked(h.ID, h.ParentSession, tree)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	b := birth{parent: parent, path: path}
	if parent != nil {
		b.above = parent.Path()
	} else {
		b.above = []string{string(h.ParentSession)}
	}
	cwd := ""
	if parent != nil {
		cwd = parent.Options().Cwd
	}
	b.compose = func(ctx context.Context, a *agent.Agent) error {
		if so != nil && !so(a.Session()) {
			return errNotDue
		}
		d, literal, err := composition(a.Session())
		if err != nil {
			return err
		}
		b.provider = d.Provider
		if d.Label != nil {
			b.label = *d.Label
		}
		o := agent.Options{Cwd: cwd}
		if d.AgentProvider != nil {
			o.Provider = *d.AgentProvider
		}
		if d.AgentModel != nil {
			o.Model = *d.AgentModel
		}
		depth := a.Session().Header().DelegationDepth
		o.Depth = &depth
		a.Declare(o)
		child := compose.Child{Filter: d.ToolFilter}
		if d.Persona != nil {
			child.Persona = &Persona{Text: *d.Persona, Literal: literal}
		}
		return child.Setup(ctx, a)
	}
	b.create = func(ctx context.Context, setup func(context.Context, *agent.Agent) error, commit func() error) (*agent.Handle, error) {
		return m.agents.Resume(ctx, agent.Resume{ID: h.ID, Above: b.above, Delegated: true, Setup: setup, Commit: commit})
	}
	if err := m.bear(ctx, act, &b); err != nil {
		return nil, resumeError(ctx, h.ID, err)
	}
	return act, nil
}

// composition reads what a continuable child is made of from its own suffix (seam DES-18):
// the first descriptor there, which no later one can rewrite (seam DES-17).
func composition(s *session.Session) (d *session.Descriptor, literal bool, err error) {
	first, mark := s.Composition()
	switch {
	case first == nil:
		return nil, false, errors.New("its log has no descriptor of its own")
	case first.Err != nil:
		return nil, false, first.Err
	case first.Descriptor.Mode != session.ModeContinuable:
		return nil, false, errOneShot(s.ID())
	}
	return &first.Descriptor, mark != nil && mark.Literal, nil
}

// resumeError says why a stored child could not be made resident (seam FUP-20).
func resumeError(ctx context.Context, child session.ID, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return cause
	}
	if e, ok := asError[*Error](err); ok {
		return e
	}
	if e, ok := asError[*session.OwnedError](err); ok {
		return elsewhere(child, e)
	}
	if e, ok := asError[*agent.LimitError](err); ok {
		return &Error{Code: CodeLimitReached, Err: e}
	}
	return notResumable(child, err)
}
