// Package codex is the provider of children that are threads of OpenAI's Codex: each child
// has a process "codex app-server --stdio" of its own, which speaks line-delimited JSON-RPC
// over standard input and output, with one ephemeral thread and one turn.
//
// Codex is told the folder, the prompt, and what the request says: a model, a persona as
// developer instructions, the form of the answer as an output schema. Codex hands a schema
// to the model as a strict one, which allows less than this program does; what the model's
// vendor refuses is a failed turn. Everything else, the account too, comes from Codex's own
// configuration in CODEX_HOME. A variable whose name looks like a secret, OPENAI_API_KEY
// for one, reaches Codex only through Config.Env.
//
// What a permission is for Codex:
//
//   - external.Deny, and a parent that may only read: the sandbox "read-only" with the
//     approval policy "on-request". Commands run, and cannot write or use the network. What
//     Codex asks for beyond that is declined, and the turn goes on.
//   - external.Ask: the sandbox "read-only" with the policy "untrusted". A person is asked
//     for every change of a file and every command but those that Codex takes for harmless.
//     A command that is allowed runs in the sandbox first, and outside of it, once, when
//     Codex sees that the sandbox has refused something. Rarely, on a machine that is busy,
//     it does not see that: then the command has failed, and Codex is told of what.
//   - external.Allow: the sandbox "workspace-write" with the policy "on-request". Codex writes
//     in the folder and in the folders for temporary files without asking; what it asks for
//     beyond that, such as a command outside of the sandbox, is accepted, each time once.
//
// Where Codex asks for more permissions instead of one action, they hold for the turn at most,
// which is the child's only one.
//
// A Codex that answers that it works under another sandbox, policy or reviewer than it was
// asked for, as a managed configuration may have it, is not used. The sandbox is that of
// Codex and holds the commands and edits of its model: not the MCP servers, hooks and rules
// that somebody has put into Codex's own configuration. Questions of those servers, and of
// the model to the user, are always declined. A request that this package does not know
// fails the run.
//
// Codex has no cap on depth and no filter of tools that could be set from here, a token
// limit and a refusal of the model are failed turns without a reason of their own, and a
// prompt has at most 1,048,576 characters. Floor 6.
package codex

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// The defaults of a Config.
const (
	DefaultName    = "codex"
	DefaultCommand = "codex"
	// DefaultEOFGrace is short: Codex ends some milliseconds after its input.
	DefaultEOFGrace = 500 * time.Millisecond
	DefaultGrace    = 2 * time.Second
)

// MaxPrompt is how many characters Codex takes as a prompt.
const MaxPrompt = 1 << 20

// Config configures a Provider. The zero value starts the program "codex", which it needs in
// PATH, and denies what it asks for.
type Config struct {
	external.Config
	// Model is the model, and ModelProvider Codex's own name of who serves it; "" is what
	// Codex's configuration says. A request's Model.Model comes before Model. A Codex that
	// says it uses another one is not used. A Codex that cannot read its configuration goes on
	// with its vendor's defaults, unless ModelProvider names one that only that configuration
	// has.
	Model, ModelProvider string
	// Overrides are settings of Codex's configuration for these children alone, by their
	// dotted names; the values are what JSON can carry. What a permission stands for cannot
	// be overridden so.
	Overrides map[string]any
}

// Provider implements subagent.Provider. It is safe for concurrent use.
type Provider struct {
	cfg       Config
	overrides json.RawMessage
	product   remote.Product
}

var _ subagent.Provider = (*Provider)(nil)

// New returns a provider. An error names the field that makes no sense.
func New(cfg Config) (*Provider, error) {
	var err error
	if cfg.Config, err = cfg.Check(); err != nil {
		return nil, fmt.Errorf("codex: %w", err)
	}
	p := &Provider{}
	if len(cfg.Overrides) > 0 {
		// Encoded at once, so that the caller's map may change.
		if p.overrides, err = json.Marshal(cfg.Overrides); err != nil {
			return nil, fmt.Errorf("codex: Overrides: %w", err)
		}
	}
	cfg.Name = cmp.Or(cfg.Name, DefaultName)
	cfg.Command = cmp.Or(cfg.Command, DefaultCommand)
	cfg.EOFGrace = cmp.Or(cfg.EOFGrace, DefaultEOFGrace)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	p.cfg = cfg
	p.product = remote.Product{
		Config: cfg.Config, Model: cfg.Model, Install: `Install it with "npm install -g @openai/codex", or give its path.`,
		Command: p.command, Open: p.open,
	}
	return p, nil
}

// Name implements subagent.Provider.
func (p *Provider) Name() string { return p.cfg.Name }

// Capabilities implements subagent.Provider.
func (p *Provider) Capabilities() subagent.Capabilities {
	return subagent.Capabilities{OutputSchema: true, Persona: true}
}

// InheritsParentContext implements subagent.Provider: a child sees nothing of its parent.
func (p *Provider) InheritsParentContext() bool { return false }

// Start implements subagent.Provider.
func (p *Provider) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	return p.product.Start(ctx, req)
}

// Probe starts Codex in a folder, makes the handshake with a thread that only reads, and ends
// it.
func (p *Provider) Probe(ctx context.Context, dir string) (external.Report, error) {
	return p.product.Probe(ctx, dir)
}

// Abort kills every Codex without any grace, and what is started later: for a program that is
// told to end at once.
func (p *Provider) Abort() error { return p.product.Abort() }

// command refuses what Codex would refuse once it runs.
func (p *Provider) command(_ context.Context, c *remote.Child) (remote.Command, error) {
	if n := utf8.RuneCountInString(c.Prompt); n > MaxPrompt {
		err := fmt.Errorf("the prompt has %d characters, and Codex takes at most %d", n, MaxPrompt)
		return remote.Command{}, &subagent.Error{Code: subagent.CodeInvalidRequest, Msg: p.cfg.Name, Err: err}
	}
	return remote.Command{Args: []string{"app-server", "--stdio"}}, nil
}

// mode is what Codex is told about what it may do.
type mode struct {
	sandbox, answered string // the latter is how Codex words the former in its answer
	approval          string
}

func modeOf(a remote.Access) mode {
	switch {
	case a.ReadOnly, a.Permission == external.Deny:
		return mode{"read-only", readOnly, "on-request"}
	case a.Permission == external.Ask:
		return mode{"read-only", readOnly, "untrusted"}
	}
	return mode{"workspace-write", "workspaceWrite", "on-request"}
}

// readOnly is Codex's word for a sandbox in which nothing is written, nor the network used.
const readOnly = "readOnly"

// reviewer has this program decide on what Codex asks, and no agent of Codex's.
const reviewer = "user"

type threadStart struct {
	Cwd                   string          `json:"cwd"`
	Ephemeral             bool            `json:"ephemeral"`
	ApprovalPolicy        string          `json:"approvalPolicy"`
	ApprovalsReviewer     string          `json:"approvalsReviewer"`
	Sandbox               string          `json:"sandbox"`
	DeveloperInstructions *string         `json:"developerInstructions,omitempty"`
	Model                 string          `json:"model,omitempty"`
	ModelProvider         string          `json:"modelProvider,omitempty"`
	Config                json.RawMessage `json:"config,omitempty"`
}

// open makes the handshake: Codex is greeted and starts a thread.
func (p *Provider) open(ctx context.Context, c *remote.Child, link remote.Link) (remote.Talk, error) {
	t := newTalk(ctx, c)
	t.conn = rpcconn.New(ctx, link.Stdout(), link.Stdin(), rpcconn.Config{
		Dialect: rpcconn.Bare, Notification: t.take, Request: t.asked,
	})
	t.conn.Start()
	if err := p.greet(ctx, c, t); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (p *Provider) greet(ctx context.Context, c *remote.Child, t *talk) error {
	raw, err := t.conn.Call(ctx, "initialize", map[string]any{
		"clientInfo":   map[string]string{"name": "offshoot", "title": "Offshoot", "version": "1"},
		"capabilities": map[string]bool{"experimentalApi": false, "requestAttestation": false},
	})
	if err != nil {
		return err
	}
	var self struct{ UserAgent string }
	if json.Unmarshal(rpcconn.Object(raw), &self) != nil || self.UserAgent == "" {
		return remote.Faultf("the answer to initialize does not name Codex's version")
	}
	t.about = about(self.UserAgent)
	if err := t.conn.Notify(ctx, "initialized", nil); err != nil {
		return err
	}
	m := modeOf(c.Access)
	params := threadStart{
		Cwd: c.Dir, Ephemeral: true, ApprovalPolicy: m.approval, ApprovalsReviewer: reviewer, Sandbox: m.sandbox,
		DeveloperInstructions: c.Persona, Model: p.cfg.Model, ModelProvider: p.cfg.ModelProvider, Config: p.overrides,
	}
	if model := c.Model().Model; model != "" {
		params.Model = model
	}
	if raw, err = t.conn.Call(ctx, "thread/start", params); err != nil {
		return err
	}
	var started threadStarted
	if json.Unmarshal(rpcconn.Object(raw), &started) != nil || started.Thread.ID == "" {
		return remote.Faultf("the answer to thread/start names no thread")
	}
	if err := started.check(m, params); err != nil {
		return err
	}
	t.begin(started.Thread.ID)
	return nil
}

// about makes a name and a version of what Codex calls its user agent, which begins with
// the name that it was given for its client.
func about(userAgent string) string {
	first, _, _ := strings.Cut(userAgent, " ")
	if _, version, found := strings.Cut(first, "/"); found && version != "" {
		return remote.Clean("Codex " + version)
	}
	return remote.Clean(userAgent)
}

// threadStarted is what Codex answers to threadStart.
type threadStarted struct {
	Thread struct {
		ID        string
		Ephemeral bool
	}
	Cwd, Model, ModelProvider string
	ApprovalPolicy            any // an object for a policy in detail
	ApprovalsReviewer         string
	Sandbox                   struct {
		Type          string
		NetworkAccess any // a word in some sandboxes
	}
}

// check refuses a thread that does not work as it was asked to.
func (s *threadStarted) check(m mode, params threadStart) error {
	other := func(what, asked string) error {
		return remote.Faultf("Codex does not work with the %s that it was asked for, which is %q; its own or a managed configuration may forbid it", what, asked)
	}
	switch {
	case s.Sandbox.Type != m.answered, m.answered == readOnly && s.Sandbox.NetworkAccess == true:
		return other("sandbox", m.sandbox)
	case s.ApprovalPolicy != m.approval:
		return other("approval policy", m.approval)
	case s.ApprovalsReviewer != reviewer:
		return other("reviewer of approvals", reviewer)
	case params.Model != "" && s.Model != params.Model:
		return other("model", params.Model)
	case params.ModelProvider != "" && s.ModelProvider != params.ModelProvider:
		return other("model provider", params.ModelProvider)
	case !s.Thread.Ephemeral:
		return remote.Faultf("Codex keeps the thread, which it was asked not to")
	case !sameFolder(s.Cwd, params.Cwd):
		return remote.Faultf("Codex works in another folder than it was asked to")
	}
	return nil
}

func sameFolder(a, b string) bool {
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
