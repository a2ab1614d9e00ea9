// Package fork is the provider of children that go on from their parent's
// conversation: a child begins with the parent's completed turns, shared and not
// copied, and answers a prompt of its own behind them.
//
// The cut lies behind the parent's last turn/end at the moment of Start. The turn
// that the parent is in, and with it the call that delegates, is never part of it;
// neither is what waits in the parent's inbox. A parent without a completed turn
// gives an ordinary fresh child (seam FORK-03, amendment P40).
//
// What passes to the child is the conversation alone: no tools, restrictions or
// authority (seam FORK-06). Policies that the inherited events set are overruled by
// what the delegation pins behind them (seam COMP-27).
//
// # The model's prompt cache
//
// A request's prefix is its tools, its system prompt and its messages up to the
// cut. It is byte for byte that of the parent's requests while model, tools and
// persona are the same, so that a vendor's cache of the parent's prefix serves the
// child: whatever the child gets beside, the statement about its permissions and
// the prompt, stands in messages behind the cut, and a depth cap takes no tool
// away. A request's Model, Persona, ToolFilter or OutputSchema ends that. A parent
// whose persona or filter is its own gives no part of it to a child; whoever wants
// the cache then names both in the request, as the composition root does for the
// root agent's.
//
// Floor 6.
package fork

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/inproc"
)

// DefaultName is the name under which the provider registers by default.
const DefaultName = "fork"

// Provider implements subagent.Provider.
type Provider struct{ name string }

// New returns the provider; an empty name is DefaultName.
func New(name string) *Provider {
	if name == "" {
		name = DefaultName
	}
	return &Provider{name: name}
}

// Name implements subagent.Provider.
func (p *Provider) Name() string { return p.name }

// Capabilities implements subagent.Provider.
func (p *Provider) Capabilities() subagent.Capabilities {
	return subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}
}

// InheritsParentContext implements subagent.Provider: a forked child sees the
// parent's completed turns.
func (p *Provider) InheritsParentContext() bool { return true }

// Start implements subagent.Provider. The cut is taken before anything waits: what
// the parent completes meanwhile is not in it.
func (p *Provider) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	seed, err := completed(ctx, req.Parent)
	if err != nil {
		return nil, err
	}
	return inproc.Start(ctx, req, seed)
}

// completed returns the completed turns of an agent, or nil without any. The error is why
// its log cannot be read.
func completed(ctx context.Context, a *agent.Agent) (*session.Seed, error) {
	if err := a.Session().Load(ctx); err != nil {
		return nil, fmt.Errorf("fork agent %s: %w", a.ID(), err)
	}
	if prefix := a.Session().Prefix(); prefix != nil {
		return &session.Seed{Prefix: prefix}, nil
	}
	return nil, nil
}

// PrepareContinuable implements subagent.ContinuablePreparer: a continuable child inherits
// the same once, at its start; what it is resumed with later is its own log alone (seam
// FORK-08…10).
func (p *Provider) PrepareContinuable(ctx context.Context, prep subagent.Preparation) (*session.Seed, error) {
	return completed(ctx, prep.Parent)
}

var (
	_ subagent.Provider            = (*Provider)(nil)
	_ subagent.ContinuablePreparer = (*Provider)(nil)
)
