// Package dsh is the provider of children that are sessions of a DSH runtime: another
// agent harness, in a process of its own, that serves its SDK over standard input and
// output as line-delimited JSON-RPC (core § 8).
//
// Each child has a runtime of its own, with one session and one prompt. The runtime is
// told the folder, the model and its cap on tokens, and nothing else of the parent. It has
// no persona, no answer in the form of a schema, no filter of tools and no cap on depth that
// could be set from here, so the provider advertises none of them.
//
// The runtime asks for no permission: it does what its own configuration lets it do. So it
// is started only under external.Allow, or under external.Ask once a person has agreed to
// the start, and never where the parent may only read.
//
// The wire has no cancel: a child that is cancelled is settled at once, and its runtime is
// shut down when the run is closed. Floor 6.
package dsh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// The defaults of a Config (core W35).
const (
	DefaultName          = "dsh-sdk"
	DefaultModelProvider = "deepseek-official"
	DefaultModel         = "deepseek-v4-flash"
	// DefaultEOFGrace is long, since the runtime takes seconds to end while a tool runs.
	DefaultEOFGrace = 6 * time.Second
	DefaultGrace    = 3 * time.Second
)

// Config configures a Provider. Command is mandatory.
type Config struct {
	external.Config
	// ModelProvider is the runtime's own name of who serves the model, and Model the model.
	// A request's Model.Model comes before Model.
	ModelProvider, Model string
	// MaxTokens bounds each answer of the model; 0 leaves it to the runtime.
	MaxTokens int64
}

// Provider implements subagent.Provider. It is safe for concurrent use.
type Provider struct {
	cfg     Config
	product remote.Product
	room    int // for what is kept of what the runtime says, in bytes
}

var _ subagent.Provider = (*Provider)(nil)

// New returns a provider. An error names the field that makes no sense.
func New(cfg Config) (*Provider, error) {
	var err error
	if cfg.Config, err = cfg.Check(); err != nil {
		return nil, fmt.Errorf("dsh: %w", err)
	}
	switch {
	case cfg.Command == "":
		return nil, errors.New("dsh: Command is required")
	case cfg.MaxTokens < 0 || cfg.MaxTokens > jsonx.MaxSafe:
		return nil, fmt.Errorf("dsh: MaxTokens %d is no positive integer that JSON can carry", cfg.MaxTokens) // seam OOPX-21
	}
	cfg.Name = cmp.Or(cfg.Name, DefaultName)
	cfg.ModelProvider = cmp.Or(cfg.ModelProvider, DefaultModelProvider)
	cfg.Model = cmp.Or(cfg.Model, DefaultModel)
	cfg.EOFGrace = cmp.Or(cfg.EOFGrace, DefaultEOFGrace)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	p := &Provider{cfg: cfg, room: remote.MaxAnswer}
	p.product = remote.Product{
		Config: cfg.Config, Install: "Give the command that starts a DSH runtime with its SDK server.",
		Command: p.command, Open: p.open,
	}
	return p, nil
}

// Name implements subagent.Provider.
func (p *Provider) Name() string { return p.cfg.Name }

// Capabilities implements subagent.Provider: there are none (core W27).
func (p *Provider) Capabilities() subagent.Capabilities { return subagent.Capabilities{} }

// InheritsParentContext implements subagent.Provider: a child sees nothing of its parent.
func (p *Provider) InheritsParentContext() bool { return false }

// Start implements subagent.Provider.
func (p *Provider) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	return p.product.Start(ctx, req)
}

// Probe starts a runtime in a folder, makes the handshake and ends it.
func (p *Provider) Probe(ctx context.Context, dir string) (external.Report, error) {
	return p.product.Probe(ctx, dir)
}

// Abort kills every runtime without any grace, and what is started later: for a program that is
// told to end at once.
func (p *Provider) Abort() error { return p.product.Abort() }

// command refuses a start that cannot be kept within what is permitted.
func (p *Provider) command(ctx context.Context, c *remote.Child) (remote.Command, error) {
	switch {
	case c.Probe:
	case c.Access.ReadOnly:
		return remote.Command{}, c.Forbidden("only reading is permitted here, and a DSH runtime has no mode in which it only reads")
	case c.Access.Permission == external.Deny:
		return remote.Command{}, c.Forbidden("a DSH runtime asks for no permission, so denying its requests would deny nothing; it is started with the permission allow, or with ask, which asks before each start")
	case c.Access.Permission == external.Ask:
		args, err := json.Marshal(struct {
			Folder string `json:"folder"`
			Prompt string `json:"prompt"`
		}{c.Dir, c.Prompt})
		if err != nil {
			return remote.Command{}, err
		}
		switch c.Ask(ctx, remote.Question{Tool: "start", Args: args, Summary: "start a runtime that acts without asking, in " + c.Dir}) {
		case remote.Allowed:
		case remote.Cancelled:
			if err := context.Cause(ctx); err != nil {
				return remote.Command{}, err
			}
			return remote.Command{}, c.Forbidden("the question whether it may be started was dismissed")
		default:
			return remote.Command{}, c.Forbidden("a DSH runtime acts without asking, and nobody agreed to its start")
		}
	}
	return remote.Command{}, nil
}

// open makes the handshake, which the runtime answers when all of it is ready (core W10).
func (p *Provider) open(ctx context.Context, c *remote.Child, link remote.Link) (remote.Talk, error) {
	t := &talk{session: string(session.NewID()), over: make(chan struct{}), prompt: c.Prompt, room: p.room}
	t.conn = rpcconn.New(ctx, link.Stdout(), link.Stdin(), rpcconn.Config{
		ID: rpcconn.StringIDs("req_"), Notification: t.take,
		Fault: func(*rpcconn.Fault) error { return nil }, // core W2
	})
	t.conn.Start()
	params := struct {
		Cwd       string `json:"cwd"`
		Provider  string `json:"provider"`
		Model     string `json:"model"`
		MaxTokens int64  `json:"maxTokens,omitempty"`
	}{c.Dir, p.cfg.ModelProvider, p.cfg.Model, p.cfg.MaxTokens}
	if m := c.Model(); m.Model != "" {
		params.Model = m.Model
	}
	raw, err := t.conn.Call(ctx, "initialize", params)
	var answer struct {
		ServerInfo *struct{ Name, Version string }
	}
	switch {
	case err != nil:
	case json.Unmarshal(rpcconn.Object(raw), &answer) != nil || answer.ServerInfo == nil:
		err = remote.Faultf("the answer to initialize does not name the runtime")
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.about = strings.TrimSpace(answer.ServerInfo.Name + " " + answer.ServerInfo.Version)
	return t, nil
}
