package harness

import (
	"context"
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/claudecode"
	"github.com/offshoot-dev/offshoot/subagent/codex"
	"github.com/offshoot-dev/offshoot/subagent/dsh"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/tool"
)

// productProvider is a provider of children in other processes.
type productProvider interface {
	subagent.Provider
	Probe(ctx context.Context, dir string) (external.Report, error)
	Abort() error
}

// openProducts registers the configured products. None is started, and none need be
// installed, before somebody delegates to it.
func (h *Harness) openProducts() error {
	var errs []error
	products := h.opts.Config.Config.Products()
	for _, name := range sorted(products) {
		base := external.Config{Policy: h.ceiling, Logger: h.opts.Logger}
		env, err := h.opts.Config.ProductEnv(name, h.opts.Env)
		if h.opts.NoServers {
			err = nil // it will not be started
		}
		var p productProvider
		if base.Env = env; err == nil {
			p, err = newProduct(h.opts.Config, products[name], base)
		}
		if err == nil {
			_, err = h.Subagents.Register(p)
			h.products = append(h.products, p)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// newProduct makes the provider of a configured product. base has what does not come from
// the configuration, and the environment.
func newProduct(eff *config.Effective, p config.Provider, base external.Config) (productProvider, error) {
	base.Name, base.Command, base.Args, base.Dir = p.Name, p.Product.Command, p.Product.Args, p.Product.Dir
	base.Permission = external.Permission(p.Product.Permission)
	base.StartTimeout, base.ApprovalTimeout = p.Product.StartTimeout, p.Product.ApprovalTimeout
	base.Trust = func(dir string) error { return trusts(eff, dir) }
	model := ""
	if p.Model != nil {
		model = p.Model.String()
	}
	var provider productProvider
	var err error
	switch p.Provider {
	case config.KindACP:
		provider, err = acp.New(acp.Config{Config: base, Mode: p.Product.Mode, ReadOnlyMode: p.Product.ReadOnlyMode})
	case config.KindClaudeCode:
		provider, err = claudecode.New(claudecode.Config{Config: base, Model: model})
	case config.KindCodex:
		provider, err = codex.New(codex.Config{Config: base, Model: model, ModelProvider: p.Product.ModelProvider})
	case config.KindDSH:
		c := dsh.Config{Config: base, ModelProvider: p.Product.ModelProvider, Model: model}
		if p.MaxTokens != nil {
			c.MaxTokens = int64(*p.MaxTokens)
		}
		provider, err = dsh.New(c)
	default:
		err = fmt.Errorf("provider %q is no product", p.Provider)
	}
	if err != nil {
		return nil, eff.Fault("providers."+p.Name, "%v", err)
	}
	return provider, nil
}

// playedBy is what a model reads of a product whose tool has no description of its own.
func playedBy(kind, name string) *string {
	who := "the agent " + name
	switch kind {
	case config.KindCodex:
		who = "Codex, a coding agent"
	case config.KindClaudeCode:
		who = "Claude Code, a coding agent"
	case config.KindDSH:
		who = "the agent harness " + name
	}
	text := "The subagent is " + who + ": a program of its own, with its own model and its own tools, that works in the same folder as you."
	return &text
}

// trusts returns nil if products may be started in a folder.
func trusts(eff *config.Effective, dir string) error {
	switch trusted, err := eff.Trusts(dir); {
	case err != nil:
		return err
	case trusted:
		return nil
	}
	return fmt.Errorf("no other product is started in a folder that is not trusted, since it runs what the folder tells it to: run %q to trust it", "offshoot trust "+dir)
}

// ceiling is the run's policy; what the parent's log says narrows it (design § 4, Trust).
func (h *Harness) ceiling(*agent.Agent) tool.Policy { return h.permission() }

// ProductReport is what a product was found to be.
type ProductReport struct {
	external.Report
	// Features are words for what can be asked of its children beside a prompt.
	Features []string
}

// ProbeProduct starts a configured product, makes the handshake and ends it: for whoever
// looks for faults. The report holds what was found up to the error, which is
// subagent.ErrUntrustedFolder where nothing was started for that reason.
func ProbeProduct(ctx context.Context, eff *config.Effective, name string, env config.Environ) (ProductReport, error) {
	environ, err := eff.ProductEnv(name, env)
	if err != nil {
		return ProductReport{}, err
	}
	p, err := newProduct(eff, eff.Config.Products()[name], external.Config{Env: environ})
	if err != nil {
		return ProductReport{}, err
	}
	r := ProductReport{Features: external.Features(p.Capabilities())}
	r.Report, err = p.Probe(ctx, eff.Cwd)
	return r, err
}
