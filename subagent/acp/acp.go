// Package acp is the provider of children that are agents of any vendor behind the Agent
// Client Protocol, version 1: an agent in a process of its own that is spoken to over its
// standard input and output, in line-delimited JSON-RPC.
//
// Each child has a process of its own, with one session and one prompt. The agent is told
// the folder to work in and the text of the prompt, and nothing else of the parent. The
// protocol has no persona, no answer in the form of a schema, no filter of tools and no cap
// on depth, so the provider advertises none of them. There is no command that fits all
// agents: Command and Name are mandatory.
//
// An agent asks for leave when it wants to, which depends on the mode that its session is
// in. What it asks is answered as the permission says: under external.Allow with leave for
// this once, or for good if it offers nothing less; under external.Ask by a person, to the
// same options, who is told which it is; under external.Deny with a refusal. Asking is the agent's own habit and
// nothing enforces it: an agent whose mode lets it run commands unasked runs them, under
// Deny too. Config.Mode chooses another mode. Where the parent may only read, the agent is
// started in Config.ReadOnlyMode, or not at all, and if it leaves that mode, the run fails and it is killed.
//
// The provider offers the agent neither files nor terminals of its own: the agent uses what
// it has. An agent may report a failure of its model as a turn that ended well, with the
// failure as its answer; that cannot be told from outside. Floor 6.
package acp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// The bounds of a Config that says nothing else.
const (
	// DefaultEOFGrace is what the slowest known agent needs to end by itself, and some.
	DefaultEOFGrace = 2500 * time.Millisecond
	DefaultGrace    = 2 * time.Second
)

// Config configures a Provider. Name and Command are mandatory.
type Config struct {
	external.Config
	// Mode is the id of the mode that sessions are put into; "" leaves the agent's own. A
	// start fails if the agent does not offer it.
	Mode string
	// ReadOnlyMode is the id of the mode in which the agent changes nothing. It takes the
	// place of Mode where the parent may only read; "" refuses such starts. That the agent
	// keeps to it is the agent's word: some run commands in such a mode, unasked unless they
	// are configured to ask.
	ReadOnlyMode string
}

// Provider implements subagent.Provider. It is safe for concurrent use.
type Provider struct {
	cfg     Config
	product remote.Product
	room    int // for what an agent says in a turn, in bytes
}

var _ subagent.Provider = (*Provider)(nil)

// New returns a provider. An error names the field that makes no sense.
func New(cfg Config) (*Provider, error) {
	var err error
	if cfg.Config, err = cfg.Check(); err != nil {
		return nil, fmt.Errorf("acp: %w", err)
	}
	switch {
	case cfg.Name == "":
		return nil, errors.New("acp: Name is required: many agents speak this protocol")
	case cfg.Command == "":
		return nil, errors.New("acp: Command is required: many agents speak this protocol")
	}
	cfg.EOFGrace = cmp.Or(cfg.EOFGrace, DefaultEOFGrace)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	p := &Provider{cfg: cfg, room: remote.MaxAnswer}
	p.product = remote.Product{
		Config: cfg.Config, Install: "Give the command that starts an agent which speaks the Agent Client Protocol.",
		Command: p.command, Open: p.open,
	}
	return p, nil
}

// Name implements subagent.Provider.
func (p *Provider) Name() string { return p.cfg.Name }

// Capabilities implements subagent.Provider: there are none (seam CAP-10).
func (p *Provider) Capabilities() subagent.Capabilities { return subagent.Capabilities{} }

// InheritsParentContext implements subagent.Provider: a child sees nothing of its parent.
func (p *Provider) InheritsParentContext() bool { return false }

// Start implements subagent.Provider.
func (p *Provider) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	return p.product.Start(ctx, req)
}

// Probe starts the agent in a folder, makes the handshake with a session in the configured
// mode, and ends it.
func (p *Provider) Probe(ctx context.Context, dir string) (external.Report, error) {
	return p.product.Probe(ctx, dir)
}

// Abort kills every agent without any grace, and what is started later: for a program that is
// told to end at once.
func (p *Provider) Abort() error { return p.product.Abort() }

// command refuses a start that cannot be kept within what is permitted.
func (p *Provider) command(_ context.Context, c *remote.Child) (remote.Command, error) {
	if c.Access.ReadOnly && p.cfg.ReadOnlyMode == "" {
		return remote.Command{}, c.Forbidden("only reading is permitted here, and readOnlyMode does not say in which of its modes this agent only reads")
	}
	return remote.Command{}, nil
}
