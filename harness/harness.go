// Package harness is the composition root: a configuration goes in, a running
// system comes out, and Close takes it apart in reverse. It decides nothing that a
// part below could decide; it is where the parts meet. Floor 7.
package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/llm/openai"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/files"
	"github.com/offshoot-dev/offshoot/tool/mcp"
	"github.com/offshoot-dev/offshoot/tool/shell"
)

// Options say what a Harness is made of. Config is required.
type Options struct {
	Config *config.Effective
	// Env is where keys are read from when a call is made; nil is an empty environment.
	Env config.Environ
	// Permission is the ceiling of the run; empty is read-only.
	Permission config.Permission
	// Approver answers questions under the permission "ask"; nil refuses them.
	Approver tool.Approver
	// Store overrides the configured store; the Harness closes it, and so does an Open
	// that fails.
	Store session.Store
	// Adapters adds models, before the configured routes are registered; a route
	// that it takes is left to it.
	Adapters func(*llm.Registry) error
	// Variables are those that a template persona may name beside provider, model and
	// cwd; the rules are those of prompt.Scope.AddVariable.
	Variables map[string]func() (string, bool)
	// HTTPClient makes the model calls; nil is a client of each adapter's own.
	HTTPClient *http.Client
	// UserAgent is sent to models.
	UserAgent string
	// Compacted is told of every compaction: see compact.Config.Done. nil is nobody.
	Compacted func(*agent.Agent, compact.Result, error)
	// NoServers starts none of the configured MCP servers, and no product: for whoever
	// assembles a system to look at it. The tools of the servers are not there then, and
	// filters may name them; variables that products take from Env may be missing.
	NoServers bool
	// DemoPace is how long the demo model waits between two pieces of an answer.
	DemoPace time.Duration
	// Logger gets what nobody can be told otherwise; nil discards it.
	Logger *slog.Logger
}

// Harness is a running system. Its fields are set by Open and must not be changed.
type Harness struct {
	Store       session.Store
	Projections *projection.Registry
	Sessions    *session.Registry
	Models      *llm.Registry
	Tools       *tool.Registry
	Prompts     *prompt.Registry
	Agents      *agent.Registry
	Compactor   *compact.Compactor
	Subagents   *subagent.Service
	// Host is how people act on continuable children; no tool gets it.
	Host *subagent.Host
	Jobs *job.Registry

	opts  Options
	names []string     // every tool there is, before any filter
	plan  []delegation // the delegation tools
	// jobTools are there if any delegation tool may run jobs in the background, and
	// followTools if any starts continuable children.
	jobTools, followTools []string
	local                 *shell.Local // the executor of commands, or nil
	servers               []*mcp.Set   // the MCP servers
	products              []productProvider
	unopened              []string       // how the names of tools begin whose servers were not started
	close                 []func() error // in the order of opening

	closing sync.Once
	closed  error // the outcome of Close
}

// Open builds a system. On error nothing is left open, and Options.Store is closed,
// whatever the error is: it belongs to the Harness from the call on. Errors of the
// configuration are *config.Error; those of the store name its path. ctx bounds the
// opening alone.
func Open(ctx context.Context, o Options) (_ *Harness, err error) {
	h := &Harness{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.unwind())
		}
	}()
	if o.Store != nil {
		h.Store = o.Store
		h.onClose(func() error { return h.Store.Close(context.WithoutCancel(ctx)) })
	}
	if o.Config == nil {
		return nil, errors.New("harness: Config is required")
	}
	if o.Env == nil {
		o.Env = config.MapEnviron(nil)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h.opts = o
	// What only the configuration can be wrong about comes before the store, so that
	// a mistake makes no file. Servers come before the filters that name their tools, and
	// end behind every agent.
	for _, part := range []func(context.Context) error{
		h.openModels, h.openTools, h.openPrompts, h.openServers, h.planDelegation, h.openStore, h.openSessions, h.openAgents, h.openDelegation,
	} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// OpenStore opens the store that a configuration names.
func OpenStore(ctx context.Context, c config.Store) (session.Store, error) {
	switch c.Driver {
	case config.DriverMemory:
		return memory.New(), nil
	case config.DriverSQLite:
		opt := sqlite.Options{}
		if c.Synchronous == "normal" {
			opt.Synchronous = sqlite.Normal
		}
		return sqlite.Open(ctx, c.Path, opt)
	}
	return nil, fmt.Errorf("harness: store driver %q is unknown", c.Driver)
}

func (h *Harness) openStore(ctx context.Context) (err error) {
	if h.Store != nil {
		return nil
	}
	if h.Store, err = OpenStore(ctx, h.opts.Config.Config.Store); err != nil {
		return err
	}
	h.onClose(func() error { return h.Store.Close(context.WithoutCancel(ctx)) })
	return nil
}

func (h *Harness) openSessions(ctx context.Context) (err error) {
	if h.Projections, err = projection.NewRegistry(projection.BuiltIn()...); err != nil {
		return err
	}
	h.Sessions, err = session.NewRegistry(ctx, session.Config{Store: h.Store, NewCells: h.Projections.NewCells, Logger: h.opts.Logger})
	return err
}

func (h *Harness) openModels(context.Context) error {
	cfg := h.opts.Config.Config
	h.Models = &llm.Registry{Logger: h.opts.Logger, RetryFor: func(route string) llm.Policy {
		p := llm.Policy{Key: route}
		if r, ok := cfg.Routes[route]; ok {
			if p.MaxRetries = r.MaxRetries; p.MaxRetries == 0 {
				p.MaxRetries = -1
			}
		}
		return p
	}}
	if h.opts.Adapters != nil {
		if err := h.opts.Adapters(h.Models); err != nil {
			return err
		}
	}
	for _, name := range h.opts.Config.RouteNames() {
		if slices.Contains(h.Models.Providers(), name) {
			continue
		}
		a, err := h.adapter(cfg.Routes[name])
		if err != nil {
			return h.opts.Config.Fault("routes."+name, "%v", err)
		}
		if n := cfg.Routes[name].ContextWindow; n > 0 {
			a = windowed{a, int64(n)}
		}
		if _, err := h.Models.Register(a, name); err != nil {
			return err
		}
	}
	return nil
}

func (h *Harness) adapter(r config.Route) (llm.Adapter, error) {
	if r.Dialect == config.DemoRoute {
		return scripted.Demo(scripted.DemoOptions{Pace: h.opts.DemoPace}), nil
	}
	var keyFunc func() (string, error)
	if r.KeyEnv != "" {
		keyFunc = func() (string, error) {
			key, _ := r.Key(h.opts.Env)
			return key, nil
		}
	}
	if r.Dialect == config.DialectAnthropic {
		return anthropic.New(anthropic.Config{
			BaseURL: r.BaseURL, APIKeyFunc: keyFunc, NoKey: keyFunc == nil, HTTPClient: h.opts.HTTPClient, Headers: r.Headers,
			IdleTimeout: r.IdleTimeout, UserAgent: h.opts.UserAgent,
		})
	}
	return openai.New(openai.Config{
		Dialect: r.Dialect, BaseURL: r.BaseURL, APIKeyFunc: keyFunc, NoKey: keyFunc == nil, HTTPClient: h.opts.HTTPClient, Headers: r.Headers,
		IdleTimeout: r.IdleTimeout, UserAgent: h.opts.UserAgent,
	})
}

// windowed is an adapter whose models have the window that the configuration says.
type windowed struct {
	llm.Adapter
	window int64
}

// Model implements llm.Adapter. An answer's own bound cannot exceed the window.
func (w windowed) Model(provider, model string) llm.ModelInfo {
	info := w.Adapter.Model(provider, model)
	info.ContextWindow = w.window
	info.DefaultMaxTokens = min(info.DefaultMaxTokens, w.window/4)
	return info
}

func (h *Harness) openTools(context.Context) error {
	cfg := h.opts.Config.Config
	h.Tools = tool.New()
	var slot shell.Slot // a composition has at most one shell executor (core T32)
	var defs []tool.Definition
	if cfg.Tools.Files.Enabled {
		defs = append(defs, files.Tools(files.Options{Spill: func(ctx context.Context, call *tool.Call, ref session.SpillRef) (string, error) {
			return h.Agents.ReadSpill(ctx, call.Caller, ref) // there is an agent before anybody calls
		}})...)
	}
	if cfg.Tools.Shell.Enabled {
		h.local = &shell.Local{}
		if _, err := slot.Mount(h.local); err != nil {
			return err
		}
		more, err := shell.Tools(slot.Mounted(), shell.Options{
			DefaultTimeout: min(shell.DefaultTimeout, cfg.Tools.Shell.Timeout), MaxTimeout: cfg.Tools.Shell.Timeout,
			MaxOutput: cfg.Tools.Shell.MaxOutputBytes,
		})
		if err != nil {
			return err
		}
		defs = append(defs, more...)
	}
	for _, d := range defs {
		h.names = append(h.names, d.Name)
		if !h.admits(d.Name) {
			continue
		}
		if _, err := h.Tools.Root().Register(d); err != nil {
			return err
		}
	}
	h.Tools.Root().AddPreExecute(tool.PermissionGate(h.policy))
	return nil
}

// admits applies the deployment's own filter, which restricts every agent.
func (h *Harness) admits(name string) bool {
	f := h.opts.Config.Config.Tools.Filter
	return (f.Allow == nil || slices.Contains(f.Allow, name)) && !slices.Contains(f.Deny, name)
}

// policy is the narrower of the run's ceiling and of what the caller's own log
// says (design § 4, Trust): no event of a log, and least of all of one that was
// imported, allows what the run does not.
func (h *Harness) policy(call *tool.Call) tool.Policy {
	p := h.permission()
	a, ok := call.Caller.(*agent.Agent)
	if !ok {
		return p
	}
	approval, sandbox := a.Session().Policies()
	return tool.Narrow(p, approval, sandbox)
}

// permission is the ceiling of the run.
func (h *Harness) permission() tool.Policy {
	if h.opts.Permission == "" {
		return tool.PolicyReadOnly
	}
	return tool.Policy(h.opts.Permission)
}

func (h *Harness) openPrompts(context.Context) error {
	h.Prompts = prompt.New()
	if _, err := h.Prompts.Root().Add(prompt.Identity(prompt.DefaultIdentity)); err != nil {
		return err
	}
	// The slot is always there, so that a child's persona shadows it (core P3).
	if _, err := h.Prompts.Root().Add(prompt.Persona("", false)); err != nil {
		return err
	}
	for _, name := range sorted(h.opts.Variables) {
		if _, err := h.Prompts.Root().AddVariable(name, h.opts.Variables[name]); err != nil {
			return err
		}
	}
	return nil
}

func (h *Harness) openAgents(ctx context.Context) (err error) {
	l := h.opts.Config.Config.Limits
	h.Agents, err = agent.NewRegistry(ctx, agent.Config{
		Sessions: h.Sessions, Models: h.Models, Tools: h.Tools, Prompts: h.Prompts,
		Approver: h.opts.Approver, MaxParallelTools: l.MaxParallelTools, MaxResultBytes: l.MaxToolResultBytes,
		MaxSpillBytes: l.MaxSpillBytes, MaxLive: l.MaxLive, Logger: h.opts.Logger,
	})
	if err != nil {
		return err
	}
	h.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error {
		if l.MaxTurnSteps > 0 && p.Step > int64(l.MaxTurnSteps) {
			return &llm.Error{Failure: message.Failure{Code: "LIMIT_REACHED", Message: fmt.Sprintf(
				"the turn has taken %d steps, the most that limits.maxTurnSteps allows", l.MaxTurnSteps)}}
		}
		return nil
	}})
	h.onClose(func() error { return h.Agents.Close(context.WithoutCancel(ctx)) })
	h.Compactor, err = compact.New(compact.Config{
		Agents: h.Agents, Models: h.Models, Manual: !h.opts.Config.Config.Compaction.Auto, Done: h.opts.Compacted, Logger: h.opts.Logger,
	})
	if err != nil {
		return err
	}
	h.onClose(func() error { h.Compactor.Close(); return nil })
	return nil
}

// Within returns what of an agent's filter is left under the deployment's own, which
// hides its tools from everybody: a hidden tool cannot be allowed, and need not be
// denied. Whether the names exist was checked by Open. f is not changed.
func (h *Harness) Within(f config.Filter) config.Filter {
	hidden := func(name string) bool { return !h.admits(name) || h.isUnopened(name) }
	if f.Allow != nil {
		f.Allow = slices.DeleteFunc(append([]string{}, f.Allow...), hidden)
	}
	if f.Deny != nil {
		f.Deny = slices.DeleteFunc(append([]string{}, f.Deny...), hidden)
	}
	return f
}

// isUnopened reports whether a name is that of a tool whose server was not started.
func (h *Harness) isUnopened(name string) bool {
	return slices.ContainsFunc(h.unopened, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// planDelegation decides on the delegation tools, and checks the filters against
// every tool there is and the personas against every variable. All faults are told together.
func (h *Harness) planDelegation(context.Context) error {
	var fault error
	h.plan, fault = h.delegations()
	jobs, continuable := false, false
	for i := range h.plan {
		t := &h.plan[i]
		h.names = append(h.names, t.cfg.ToolName)
		if t.cfg.Continuable {
			continuable = continuable || h.admits(t.cfg.ToolName)
			continue
		}
		// Nobody could read what such a tool would start (seam BG-02).
		t.cfg.Background = t.cfg.Background && h.admits(job.OutputTool)
		jobs = jobs || t.cfg.Background && h.admits(t.cfg.ToolName)
	}
	if jobs {
		h.jobTools = []string{job.OutputTool, job.ListTool, job.KillTool}
		h.names = append(h.names, h.jobTools...)
	}
	if continuable {
		h.followTools = []string{delegate.SendTool, delegate.ListTool, delegate.ReportTool}
		if h.opts.Config.Config.Subagents.Interrupt {
			h.followTools = append(h.followTools, delegate.InterruptTool)
		}
		h.names = append(h.names, h.followTools...)
	}
	return errors.Join(fault, h.checkFilters(), h.checkPersonas())
}

func (h *Harness) openDelegation(ctx context.Context) (err error) {
	cfg := h.opts.Config.Config
	depth := int64(cfg.Limits.MaxDepth)
	h.Host = &subagent.Host{}
	h.Subagents, err = subagent.New(ctx, subagent.Config{
		Agents: h.Agents, Projections: h.Projections, MaxDepth: &depth, MaxChildren: cfg.Limits.MaxChildren,
		Host: h.Host, NoNotices: !cfg.Subagents.Notices, Logger: h.opts.Logger,
	})
	if err != nil {
		return err
	}
	h.Compactor.Register(subagent.Plugin, h.Subagents.Restate)
	if h.Jobs, err = job.New(ctx, job.Config{
		Agents: h.Agents, MaxJobs: cfg.Limits.MaxJobs, MaxText: min(cfg.Limits.MaxSpillBytes, maxJobText), Logger: h.opts.Logger,
	}); err != nil {
		return err
	}
	h.Compactor.Register(job.Plugin, h.Jobs.Restate)
	for _, d := range job.Tools(h.Jobs) {
		if slices.Contains(h.jobTools, d.Name) && h.admits(d.Name) {
			if _, err := h.Tools.Root().Register(d); err != nil {
				return err
			}
		}
	}
	for _, p := range []subagent.Provider{spawn.New(""), fork.New("")} {
		if _, err := h.Subagents.Register(p); err != nil {
			return err
		}
	}
	if err := h.openProducts(); err != nil {
		return err
	}
	if err := h.openFollowing(); err != nil {
		return err
	}
	for _, t := range h.plan {
		if !h.admits(t.cfg.ToolName) {
			continue
		}
		t.cfg.Jobs, t.cfg.Prompts = h.Jobs, h.Prompts.Root()
		if _, err := delegate.Mount(h.Subagents, h.Tools.Root(), t.cfg, func(err error) {
			h.opts.Logger.Error("delegation tool is not mounted", "error", err)
		}); err != nil {
			return h.opts.Config.Fault(t.key, "%v", err)
		}
	}
	return nil
}

// openFollowing mounts what continuable children are dealt with by, and what they report
// with.
func (h *Harness) openFollowing() error {
	if h.followTools == nil {
		return nil
	}
	cfg := h.opts.Config.Config.Subagents
	var interrupter *subagent.Interrupter
	if cfg.Interrupt {
		interrupter = subagent.NewInterrupter(h.Subagents)
	}
	for _, d := range append(delegate.Control(h.Subagents, interrupter), delegate.List(h.Subagents)...) {
		if !h.admits(d.Name) {
			continue
		}
		if _, err := h.Tools.Root().Register(d); err != nil {
			return err
		}
	}
	if !h.admits(delegate.ReportTool) {
		return nil
	}
	setup, err := delegate.Report(h.Subagents, subagent.Delivery(cfg.ReportDelivery))
	if err != nil {
		return h.opts.Config.Fault("subagents.reportDelivery", "%v", err)
	}
	h.Subagents.AddSetup(setup)
	return nil
}

// maxJobText bounds what is kept of a background job's result: where a read is too
// long for the model, the log keeps the text of that read as of any other.
const maxJobText = 1 << 20

type delegation struct {
	key string
	cfg delegate.Config
}

// delegations lists the delegation tools: one for each configured provider, and
// one for each agent definition but the root's.
func (h *Harness) delegations() ([]delegation, error) {
	cfg := h.opts.Config.Config
	var list []delegation
	var errs []error
	for _, name := range sorted(cfg.Providers) {
		p, personaKey := cfg.Delegation(name)
		key := "providers." + name
		d := delegate.Config{Provider: p.Registered(), ToolName: p.ToolName, Background: p.Background, Continuable: p.BackgroundMode == config.ModeContinuable}
		bound(&d, p.MaxDepth)
		if config.IsProduct(p.Provider) {
			p.Model, p.MaxTokens = nil, nil // its provider has them
			if p.Description == nil {
				p.Description = playedBy(p.Provider, name)
			}
		}
		errs = append(errs, h.fill(&d, key, personaKey, p.Description, p.Persona, p.ToolFilter, p.Model, p.MaxTokens, p.OutputSchema))
		list = append(list, delegation{key, d})
	}
	products := cfg.Products()
	for _, name := range sorted(cfg.Agents) {
		if name == config.DefaultAgent {
			continue
		}
		a, personaKey := cfg.Subagent(name)
		key := "agents." + name
		d := delegate.Config{
			Provider: a.Provider, ToolName: a.ToolName(), Background: a.Background == nil || *a.Background,
			Continuable: a.BackgroundMode == config.ModeContinuable,
		}
		bound(&d, a.MaxDepth)
		if p, product := products[a.Provider]; product {
			if a.Model != nil {
				d.Model.Model, a.Model = a.Model.String(), nil // the product's own word for it
			}
			if a.Description == nil {
				a.Description = playedBy(p.Provider, a.Provider)
			}
		}
		errs = append(errs, h.fill(&d, key, personaKey, a.Description, a.Persona, a.Tools, a.Model, a.MaxTokens, a.OutputSchema))
		list = append(list, delegation{key, d})
	}
	return list, errors.Join(errs...)
}

// bound sets the cap of a delegation tool.
func bound(d *delegate.Config, limit config.Depth) {
	d.ProviderManaged = limit.Managed
	if !limit.Managed {
		depth := int64(limit.Max)
		d.MaxDepth = &depth
	}
}

func (h *Harness) fill(d *delegate.Config, key, personaKey string, description, persona *string, filter *config.Filter, model *config.ModelRef, maxTokens *int, schema []byte) error {
	d.OutputSchema = schema
	if description != nil {
		d.Description = *description
	}
	if persona != nil {
		d.Persona = &subagent.Persona{Text: *persona, Literal: h.Literal(personaKey)}
	}
	if filter != nil {
		f := h.Within(*filter)
		d.ToolFilter = &session.ToolFilter{Allow: f.Allow, Deny: f.Deny}
	}
	if model != nil {
		c, err := h.opts.Config.Resolve(*model, key+".model", h.opts.Env)
		if err != nil {
			return err
		}
		d.Model.Provider, d.Model.Model = c.Ref.Route, c.Ref.Model
	}
	if maxTokens != nil {
		d.Model.MaxTokens = int64(*maxTokens)
	}
	return nil
}

// Literal tells whether nothing is interpolated in the persona under key: a text that
// came with a folder which the person has not trusted is input, and that of an agent
// file is literal unless the file says otherwise (design § 4, Trust; seam COMP-36).
func (h *Harness) Literal(key string) bool {
	src, ok := h.opts.Config.Source(key)
	if ok && src.Kind == config.FromProject && !h.opts.Config.Trusted {
		return true
	}
	name, isAgent := strings.CutPrefix(strings.TrimSuffix(key, ".persona"), "agents.")
	template := h.opts.Config.Config.Agents[name].Template
	return isAgent && template != nil && !*template
}

// checkFilters refuses a filter that names a tool which does not exist.
func (h *Harness) checkFilters() error {
	cfg := h.opts.Config.Config
	var errs []error
	check := func(key string, f config.Filter) {
		for _, list := range []struct {
			key   string
			names []string
		}{{"allow", f.Allow}, {"deny", f.Deny}} {
			for _, name := range list.names {
				if name == delegate.ReportTool && key != "tools" && slices.Contains(h.names, name) {
					errs = append(errs, h.opts.Config.Fault(key+"."+list.key, "every continuable child has %q, and no filter of agents gives or hides it; tools.deny leaves it out for all", name))
				} else if !slices.Contains(h.names, name) && !h.isUnopened(name) {
					known := slices.Clone(h.names)
					slices.Sort(known)
					errs = append(errs, h.opts.Config.Fault(key+"."+list.key, "no tool is named %q; there are %v", name, known))
				}
			}
		}
	}
	check("tools", cfg.Tools.Filter)
	for _, name := range sorted(cfg.Agents) {
		if f := cfg.Agents[name].Tools; f != nil {
			check("agents."+name+".tools", *f)
		}
	}
	for _, name := range sorted(cfg.Providers) {
		if f := cfg.Providers[name].ToolFilter; f != nil {
			check("providers."+name+".toolFilter", *f)
		}
	}
	return errors.Join(errs...)
}

// checkPersonas refuses a persona that no agent could ever be given: a template with a
// variable that nothing fills in.
func (h *Harness) checkPersonas() error {
	cfg := h.opts.Config.Config
	products := cfg.Products()
	var errs []error
	check := func(key string, persona *string, product bool) {
		if persona == nil {
			return
		}
		scope, known := h.Prompts.Root(), sorted(h.opts.Variables)
		if product { // which gets a text, made of what is known of it
			scope, known = prompt.New().Root(), nil
		}
		err := scope.Check(prompt.Persona(*persona, h.Literal(key)))
		if e, ok := errors.AsType[*prompt.VariableError](err); ok {
			known = append(known, prompt.VarCwd, prompt.VarModel, prompt.VarProvider)
			slices.Sort(known)
			err = h.opts.Config.Fault(key, "%q: %v; the variables are %s", "{{"+e.Variable+"}}", e.Problem, strings.Join(known, ", "))
		}
		errs = append(errs, err)
	}
	for _, name := range sorted(cfg.Agents) {
		_, product := products[cfg.Agents[name].Provider]
		check("agents."+name+".persona", cfg.Agents[name].Persona, product)
	}
	for _, name := range sorted(cfg.Providers) {
		_, product := products[name]
		check("providers."+name+".persona", cfg.Providers[name].Persona, product)
	}
	return errors.Join(errs...)
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Abort kills every command that an agent runs, every MCP server and every product, without any grace:
// for a program that is told to end at once and will not Close. Nothing else is touched.
func (h *Harness) Abort() error {
	var errs []error
	if h.local != nil {
		errs = append(errs, h.local.Abort())
	}
	for _, set := range h.servers {
		errs = append(errs, set.Abort())
	}
	for _, p := range h.products {
		errs = append(errs, p.Abort())
	}
	return errors.Join(errs...)
}

func (h *Harness) onClose(fn func() error) { h.close = append(h.close, fn) }

func (h *Harness) unwind() error {
	var errs []error
	for _, fn := range slices.Backward(h.close) {
		errs = append(errs, fn())
	}
	h.close = nil
	return errors.Join(errs...)
}

// Close refuses new delegations, stops every root, ends every agent with its background
// jobs, continuable children deepest first, keeping what waits in their inboxes, waits
// until the delegations have told their ends, and closes the store.
// It returns when nothing of the system runs any more; ctx only carries values. It
// is memoised: every caller waits for the same completion and gets the same error.
func (h *Harness) Close(ctx context.Context) error {
	h.closing.Do(func() { h.closed = h.end(context.WithoutCancel(ctx)) })
	return h.closed
}

// end is Close without its memory.
func (h *Harness) end(ctx context.Context) error {
	h.Jobs.CloseAdmission()
	h.Subagents.CloseAdmission()
	// The roots take nothing any more before anything below them ends: what their children
	// come to now they find out when they are next opened.
	var roots []*agent.Agent
	var errs []error
	ended := make(chan struct{})
	for _, a := range h.Agents.Roots() {
		if a.Root() {
			// It leaves when what is below it has ended (seam SCOPE-16), unless somebody disposes it already.
			if _, err := a.AddWork(agent.Work{Stop: func() {}, Join: func() { <-ended }}); err != nil && !errors.Is(err, agent.ErrDisposed) {
				errs = append(errs, err)
			}
			a.CloseAdmission(true)
			roots = append(roots, a)
		}
	}
	// Continuable children belong to the service; one-shot runs settle when their agents
	// are gone.
	errs = append(errs, h.Subagents.Close(ctx))
	close(ended)
	for _, a := range roots {
		errs = append(errs, a.Dispose(ctx, true))
	}
	errs = append(errs, h.Agents.Close(ctx))
	h.Jobs.Close()
	return errors.Join(append(errs, h.unwind())...)
}
