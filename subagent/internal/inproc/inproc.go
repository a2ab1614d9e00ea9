// Package inproc drives one-shot children that live in this process: what spawn
// and fork have in common. They differ only in the seed that they pass. Floor 6.
package inproc

import (
	"context"
	"errors"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// Start creates and publishes a child of req.Parent, submits the prompt, and
// returns the run (seam DRV). seed is what the child inherits, or nil. Depth and
// policies are read before anything waits (seam DRV-03).
func Start(ctx context.Context, req *subagent.ResolvedRequest, seed *session.Seed) (subagent.Run, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if req.Schema == nil && req.OutputSchema != nil {
		return nil, errors.New("the request's output schema was not parsed: children are started through the service")
	}
	r := &run{settled: make(chan struct{})}
	if err := r.create(ctx, req, seed); err != nil {
		return nil, err
	}
	r.follow(ctx)
	r.submit(req.Prompt)
	return r, nil
}

// create makes the child and publishes it.
func (r *run) create(ctx context.Context, req *subagent.ResolvedRequest, seed *session.Seed) error {
	parent := req.Parent
	depth, err := compose.ChildDepth(parent, req.MaxDepth)
	if err != nil {
		return err
	}
	child := compose.Child{Policy: compose.Capture(parent), Persona: req.Persona, Filter: req.ToolFilter}
	ps := parent.Session()
	r.handle, err = parent.Registry().Create(ctx, agent.Create{
		Session: session.New{
			Cwd: parent.Cwd(), ParentSession: ps.ID(), Origin: session.OriginSubagent, DelegationDepth: depth,
			Root: ps.Root(), Seed: seed,
			// A child whose turn never opened leaves nothing behind (seam DES-29).
			Deferred: true,
		},
		Options: compose.Options(parent.Options(), req.Model, depth),
		Owner:   parent, Delegated: true,
		Setup: func(ctx context.Context, a *agent.Agent) error {
			if err := child.Setup(ctx, a); err != nil {
				return err
			}
			if req.Schema != nil {
				// Behind the filter, which does not reach the child's own tools (seam SO-26).
				answer, err := structured.Attach(a, req.Schema)
				if err != nil {
					return err
				}
				r.answer = answer
			}
			r.with, _ = a.Session().Watch(&r.outcome)
			a.AddHooks(agent.Hooks{TurnOpen: describe(req.Descriptor), Failed: r.failed, Rest: r.rested})
			return nil
		},
	})
	if err != nil {
		return err
	}
	r.agent = r.handle.Agent()
	return nil
}

// describe puts the descriptor into the log when the child's first turn opens,
// whatever becomes of that turn (amendment P19).
func describe(d *session.DescriptorEvent) func(*agent.Agent, int64) ([]session.Draft, error) {
	return func(a *agent.Agent, _ int64) ([]session.Draft, error) {
		if a.Session().Descriptor() != nil {
			return nil, nil
		}
		return []session.Draft{{Payload: d}}, nil
	}
}

// reason maps the turn that accounts for the work.
func reason(end *session.TurnEnd) subagent.StopReason {
	if end == nil {
		return subagent.StopError
	}
	return subagent.ReasonOf(end, subagent.StopError)
}
