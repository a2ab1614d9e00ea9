// Package spawn is the provider of fresh children in this process: a child starts
// with an empty conversation and knows of its parent only what the prompt says.
// Floor 6.
package spawn

import (
	"context"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/inproc"
)

// DefaultName is the name under which the provider registers by default.
const DefaultName = "spawn"

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

// InheritsParentContext implements subagent.Provider: a spawned child does not
// see the parent's conversation.
func (p *Provider) InheritsParentContext() bool { return false }

// Start implements subagent.Provider.
func (p *Provider) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	return inproc.Start(ctx, req, nil)
}

// PrepareContinuable implements subagent.ContinuablePreparer: nothing is inherited.
func (p *Provider) PrepareContinuable(context.Context, subagent.Preparation) (*session.Seed, error) {
	return nil, nil
}

var (
	_ subagent.Provider            = (*Provider)(nil)
	_ subagent.ContinuablePreparer = (*Provider)(nil)
)
