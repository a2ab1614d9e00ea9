// Package claudecode is the provider of children that are runs of Claude Code: the program
// claude, without a terminal, driven over standard input and output in its own line-delimited
// JSON.
//
// Each child has a process of its own, with one prompt, whose session is not kept. The prompt
// is for the model: one that begins like a command of the product is none. A persona is added
// to the product's own system prompt and does not replace it, since that tells the model how to
// use its tools; a persona is only a part of what an agent of this program is told, too. The
// answer in the form of a schema is the product's own structured output. The product has tools
// and subagents of its own, which cannot be filtered or counted from here.
//
// What a permission means for it:
//
//   - external.Deny: it runs in its mode dontAsk, in which it refuses by itself whatever it
//     would have to ask for. Each refusal is recorded.
//   - external.Ask and external.Allow: it runs in its mode default and asks over the connection;
//     a permission is for this one use, never for longer.
//   - Where only reading is permitted: dontAsk, with the tools that read and no others, without
//     MCP servers, hooks, skills and plugins, and without the folder's own settings and
//     instructions.
//
// What it holds to be harmless, such as reading in its folder, what the person's settings allow
// already, and in a folder that the product itself trusts what those of the folder allow, it
// does without asking. It runs the hooks and the MCP servers of every folder that it is started
// in, trusted by it or not: Config.Trust is what keeps it from folders. It is never started with
// its permissions bypassed, and a start or a run fails if it does not say that it is in the mode
// that was asked for. A run that fails because the product did not keep to its protocol has it
// killed at once, with all that it started.
//
// The end of its input does not end it while a turn runs, so it is soon asked to end. A socket
// that it leaves behind when it is killed is removed, unless this program is killed too. Floor 6.
package claudecode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// The defaults of a Config.
const (
	DefaultName    = "claude-code"
	DefaultCommand = "claude"
	// DefaultEOFGrace is short: an idle product ends within it, and one at work does not end.
	DefaultEOFGrace = 500 * time.Millisecond
	DefaultGrace    = 3 * time.Second
)

// Config configures a Provider.
//
// Args replace everything that the product is told in its arguments: they must have it speak
// the protocol in the permission mode that the permission needs (dontAsk for external.Deny, else
// default). With Args a model, a bound on turns, a persona and a schema cannot be given to it,
// and it is not started where only reading is permitted.
type Config struct {
	external.Config
	// Model is the model or its alias; "" is the product's choice. A request's Model.Model comes
	// before it; nothing else of a request's Model means something to the product.
	Model string
	// MaxTurns bounds how often the model is called; 0 does not.
	MaxTurns int
}

// Provider implements subagent.Provider. It is safe for concurrent use.
type Provider struct {
	cfg     Config
	product remote.Product
	room    int // for what is kept of what the product says, in bytes
}

var _ subagent.Provider = (*Provider)(nil)

// New returns a provider. An error names the field that makes no sense.
func New(cfg Config) (*Provider, error) {
	var err error
	if cfg.Config, err = cfg.Check(); err != nil {
		return nil, fmt.Errorf("claudecode: %w", err)
	}
	switch {
	case cfg.MaxTurns < 0:
		return nil, fmt.Errorf("claudecode: MaxTurns is negative: %d", cfg.MaxTurns)
	case cfg.Args != nil && cfg.Model != "":
		return nil, errors.New("claudecode: Model cannot be given beside Args, which are all arguments")
	case cfg.Args != nil && cfg.MaxTurns != 0:
		return nil, errors.New("claudecode: MaxTurns cannot be given beside Args, which are all arguments")
	}
	cfg.Name = cmp.Or(cfg.Name, DefaultName)
	cfg.Command = cmp.Or(cfg.Command, DefaultCommand)
	cfg.EOFGrace = cmp.Or(cfg.EOFGrace, DefaultEOFGrace)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	p := &Provider{cfg: cfg, room: remote.MaxAnswer}
	p.product = remote.Product{
		Config:  cfg.Config,
		Model:   cfg.Model,
		Install: "Claude Code is installed with npm install -g @anthropic-ai/claude-code.",
		Command: p.command, Open: p.open,
	}
	return p, nil
}

// Name implements subagent.Provider.
func (p *Provider) Name() string { return p.cfg.Name }

// Capabilities implements subagent.Provider. The product's tools have names of its own, and
// how far its subagents delegate is its own affair.
func (p *Provider) Capabilities() subagent.Capabilities {
	return subagent.Capabilities{OutputSchema: true, Persona: true}
}

// InheritsParentContext implements subagent.Provider: a child sees nothing of its parent.
func (p *Provider) InheritsParentContext() bool { return false }

// Start implements subagent.Provider.
func (p *Provider) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	return p.product.Start(ctx, req)
}

// Probe starts the product in a folder, makes the handshake and ends it.
func (p *Provider) Probe(ctx context.Context, dir string) (external.Report, error) {
	return p.product.Probe(ctx, dir)
}

// Abort kills every product without any grace, and what is started later: for a program that is
// told to end at once.
func (p *Provider) Abort() error { return p.product.Abort() }

// The product's permission modes that are asked for. It takes default also where its help
// calls it manual.
const (
	modeDontAsk = "dontAsk"
	modeDefault = "default"
	modePlan    = "plan" // the product's model may enter it, which permits less than default
)

// mode is the permission mode for what a child may do.
func mode(a remote.Access) string {
	if a.ReadOnly || a.Permission == external.Deny {
		return modeDontAsk
	}
	return modeDefault
}

// readers are the product's tools that change nothing and reach nothing but files.
func readers() []string { return []string{"Read", "Grep", "Glob"} }

// structuredTool is the tool by which the product takes an answer in the form of a schema.
const structuredTool = "StructuredOutput"

// command returns what the product is started with. Values that come from elsewhere are one
// argument with their option, so that none is read as an option.
func (p *Provider) command(_ context.Context, c *remote.Child) (remote.Command, error) {
	cmd := remote.Command{Env: map[string]string{
		"CLAUDECODE":                           "", // else it takes itself for a part of the product that this program may run in
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
		"DISABLE_AUTOUPDATER":                  "1",
	}}
	model := p.cfg.Model
	if m := c.Model().Model; m != "" {
		model = m
	}
	if p.cfg.Args != nil {
		switch {
		case c.Access.ReadOnly:
			return cmd, c.Forbidden("only reading is permitted here, and its configured arguments leave no place for what keeps it to that: configure none")
		case model != "" || c.Persona != nil || c.Schema != nil:
			return cmd, &subagent.Error{
				Code: subagent.CodeInvalidRequest, Msg: p.cfg.Name,
				Err: errors.New("its configured arguments leave no place for a model, a persona or a schema: configure none"),
			}
		}
		return cmd, nil
	}
	cmd.Args = []string{
		"-p", "--output-format=stream-json", "--verbose", "--input-format=stream-json", "--include-partial-messages",
		"--permission-prompt-tool=stdio", "--permission-mode=" + mode(c.Access),
		"--disallowedTools=AskUserQuestion", "--no-session-persistence",
	}
	if c.Access.ReadOnly {
		cmd.Args = append(cmd.Args,
			"--tools="+strings.Join(readers(), ","), "--strict-mcp-config", `--settings={"disableAllHooks":true}`,
			"--setting-sources=user", "--disable-slash-commands")
		cmd.Env["CLAUDE_CODE_SAFE_MODE"] = "1" // versions that know it start no plugins
	}
	if model != "" {
		cmd.Args = append(cmd.Args, "--model="+model)
	}
	if p.cfg.MaxTurns > 0 {
		cmd.Args = append(cmd.Args, "--max-turns="+strconv.Itoa(p.cfg.MaxTurns))
	}
	if c.Persona != nil {
		cmd.Args = append(cmd.Args, "--append-system-prompt="+*c.Persona)
	}
	if c.Schema != nil {
		cmd.Args = append(cmd.Args, "--json-schema="+string(c.Schema.JSON()))
	}
	return cmd, nil
}
