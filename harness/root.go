package harness

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// ErrNotRoot refuses to resume a session that was delegated. One that was imported
// without its parent is the root of its tree.
var ErrNotRoot = errors.New("session belongs to a delegated child: resume its root instead")

// Setup adds to what a root is made of, before anybody can see it: see
// agent.Create. An example is structured.Attach.
type Setup = func(ctx context.Context, a *agent.Agent) error

// NewRoot creates a root agent in cwd, which must be absolute, on the model that
// the configuration chose. more runs behind the harness's own setup.
func (h *Harness) NewRoot(ctx context.Context, cwd string, model config.Choice, more ...Setup) (*agent.Handle, error) {
	return h.Agents.Create(ctx, agent.Create{
		Session: session.New{Cwd: cwd},
		Options: h.rootOptions(model.Ref.Route, model.Ref.Model),
		Setup:   h.setup(more),
	})
}

// ResumeRoot goes on with a stored root session on a model. What
// waits in its inbox is not woken by that, see agent.Agent.Wake; and it is not told
// of the background jobs that an earlier process took with it, see
// job.Registry.Recover. more is as in NewRoot. Errors: ErrNotRoot and those of
// agent.Registry.Resume.
func (h *Harness) ResumeRoot(ctx context.Context, id session.ID, model config.Choice, more ...Setup) (*agent.Handle, error) {
	return h.ResumeRootIn(ctx, id, "", model, more...)
}

// ResumeRootIn is ResumeRoot in another folder than the session's own, for a session
// that was written on another machine. cwd is absolute; "" is the session's own.
//
// The root alone is opened: no child of it, and nothing is woken for what a child
// owes or is owed. Whoever comes to open children here asks session.Session.Parked
// of each, the root included, before anything of an imported tree runs.
func (h *Harness) ResumeRootIn(ctx context.Context, id session.ID, cwd string, model config.Choice, more ...Setup) (*agent.Handle, error) {
	rec, _, err := h.Store.Inspect(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("resume session %s: %w", id, err)
	}
	if rec.Meta.Root != id {
		return nil, fmt.Errorf("resume session %s: %w (%s)", id, ErrNotRoot, rec.Meta.Root)
	}
	o := h.rootOptions(model.Ref.Route, model.Ref.Model)
	o.Cwd = cwd
	return h.Agents.Resume(ctx, agent.Resume{ID: id, Options: o, Setup: h.setup(more)})
}

// setup runs the root's own setup and then more.
func (h *Harness) setup(more []Setup) Setup {
	return func(ctx context.Context, a *agent.Agent) error {
		for _, fn := range append([]Setup{h.setupRoot}, more...) {
			if err := fn(ctx, a); err != nil {
				return err
			}
		}
		return nil
	}
}

func (h *Harness) rootOptions(route, model string) agent.Options {
	o := agent.Options{Provider: route, Model: model}
	if n := h.opts.Config.Config.Agents[config.DefaultAgent].MaxTokens; n != nil {
		o.MaxTokens = int64(*n)
	}
	return o
}

// setupRoot registers what belongs to the root alone: its persona and its filter.
func (h *Harness) setupRoot(_ context.Context, a *agent.Agent) error {
	def := h.opts.Config.Config.Agents[config.DefaultAgent]
	if def.Persona != nil {
		if _, err := a.Prompts().Add(prompt.Persona(*def.Persona, h.Literal("agents.default.persona"))); err != nil {
			return err
		}
	}
	if def.Tools == nil {
		return nil
	}
	f := tool.Filter{}
	left := h.Within(*def.Tools)
	if left.Allow != nil {
		f.Allow = &left.Allow
	}
	if left.Deny != nil {
		f.Deny = &left.Deny
	}
	return a.Tools().Restrict(f)
}
