package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/harness/supervise"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/tool"
)

func newConfigCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the effective configuration and where it comes from",
		Long: "Prints every value with its source, the routes to models with their default models, the\n" +
			"model that a run would use and why, the providers of subagents with what they can do, and\n" +
			"the tools that each agent would see. Keys are never printed, only whether they are set.\n\n" +
			"--json writes one object: configuration, routes, model or modelError, providers, supervised,\n" +
			"agents.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			o, fault := a.overview(cmd.Context(), eff)
			if asJSON {
				err = a.writeOverviewJSON(o)
			} else {
				err = a.writeOverview(o)
			}
			return errors.Join(fault, err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object")
	return cmd
}

// overview is what the command shows, in its form for JSON.
type overview struct {
	Configuration *config.Effective `json:"configuration"`
	Routes        []routeView       `json:"routes"`
	Model         *modelView        `json:"model,omitempty"`
	ModelError    string            `json:"modelError,omitempty"`
	Providers     []providerView    `json:"providers"`
	// Supervised says that processes end with everything they started, whatever happens to
	// this program (package supervise).
	Supervised bool        `json:"supervised"`
	Agents     []agentView `json:"agents"`
}

type routeView struct {
	Name    string `json:"name"`
	Dialect string `json:"dialect"`
	BaseURL string `json:"baseURL,omitempty"`
	KeyEnv  string `json:"keyEnv,omitempty"`
	Key     string `json:"key"` // set, not set or not needed
	Model   string `json:"model,omitempty"`
}

type modelView struct {
	Ref    string        `json:"ref"`
	Source config.Source `json:"source"`
	Why    string        `json:"why"`
}

type providerView struct {
	Name string `json:"name"`
	// Product is the kind of product whose processes the children are; empty for agents of
	// this program.
	Product         string       `json:"product,omitempty"`
	Capabilities    capabilities `json:"capabilities"`
	InheritsContext bool         `json:"inheritsParentContext"`
}

type capabilities struct {
	OutputSchema bool `json:"outputSchema"`
	DepthLimit   bool `json:"depthLimit"`
	ToolFilter   bool `json:"toolFilter"`
	Persona      bool `json:"persona"`
}

// agentView is one kind of agent: the root, or what a delegation tool starts.
type agentView struct {
	Name     string   `json:"name"`
	Tool     string   `json:"tool,omitempty"` // the delegation tool; empty for the root
	Provider string   `json:"provider,omitempty"`
	Product  string   `json:"product,omitempty"`
	MaxDepth string   `json:"maxDepth,omitempty"`
	Tools    []string `json:"tools"` // empty for a product, which has its own
}

// overview assembles what there is to show. The fault is that of a configuration
// of which no system can be made; the overview has what could be found out then.
func (a *app) overview(ctx context.Context, eff *config.Effective) (*overview, error) {
	o := &overview{Configuration: eff, Providers: []providerView{}, Agents: []agentView{}, Supervised: supervise.Active()}
	for _, name := range eff.RouteNames() {
		o.Routes = append(o.Routes, a.route(eff, eff.Config.Routes[name]))
	}
	if choice, err := config.ChooseModel(eff, a.env); err != nil {
		_, lines := explain(err)
		o.ModelError = strings.Join(lines, "; ")
	} else {
		o.Model = &modelView{Ref: choice.Ref.String(), Source: choice.Source, Why: why(choice)}
	}
	return o, a.assemble(ctx, eff, func(h *harness.Harness) error { return o.assembled(h, eff) })
}

func (a *app) route(eff *config.Effective, r config.Route) routeView {
	v := routeView{Name: r.Name, Dialect: r.Dialect, KeyEnv: r.KeyEnv, Key: "not needed", Model: r.Model}
	for _, value := range eff.Values {
		// The configuration's own rendering hides a password.
		if value.Key == "routes."+r.Name+".baseURL" {
			v.BaseURL = value.Text
			if plain, err := strconv.Unquote(value.Text); err == nil {
				v.BaseURL = plain
			}
		}
	}
	if r.KeyEnv != "" {
		v.Key = "not set"
		if _, ok := r.Key(a.env); ok {
			v.Key = "set"
		}
	}
	return v
}

// why words the reason of a choice.
func why(c config.Choice) string {
	switch {
	case c.Source.Kind == config.FromDefault && c.Ref.Route == config.DemoRoute:
		return "the embedded demo: there is no key, no --model and no configuration file"
	case c.Source.Kind == config.FromEnv && c.Source.Name == c.Route.KeyEnv:
		return c.Source.Name + " is set, and no model was named"
	}
	return c.Source.String()
}

// assembled fills in what only the assembled system can tell.
func (o *overview) assembled(h *harness.Harness, eff *config.Effective) error {
	products := eff.Config.Products()
	for _, name := range h.Subagents.Providers() {
		p, ok := h.Subagents.Provider(name)
		if !ok {
			continue
		}
		c := p.Capabilities()
		o.Providers = append(o.Providers, providerView{
			Name: name, Product: products[name].Provider, Capabilities: capabilities{c.OutputSchema, c.DepthLimit, c.ToolFilter, c.Persona},
			InheritsContext: p.InheritsParentContext(),
		})
	}
	cfg := eff.Config
	add := func(v agentView, f *config.Filter) error {
		if v.Tool != "" && h.Tools.Root().Toolset().Lookup(v.Tool) == nil {
			return nil // no agent has the tool that would start it
		}
		if v.Product = products[v.Provider].Provider; v.Product != "" {
			v.Tools = []string{}
			o.Agents = append(o.Agents, v)
			return nil
		}
		var err error
		if v.Tools, err = visible(h, f); err != nil {
			return fmt.Errorf("agent %s: %w", v.Name, err)
		}
		o.Agents = append(o.Agents, v)
		return nil
	}
	errs := []error{add(agentView{Name: config.DefaultAgent}, cfg.Agents[config.DefaultAgent].Tools)}
	for _, name := range slices.Sorted(maps.Keys(cfg.Providers)) {
		p, _ := cfg.Delegation(name)
		errs = append(errs, add(agentView{
			Name: name, Tool: p.ToolName, Provider: p.Registered(), MaxDepth: p.MaxDepth.String(),
		}, p.ToolFilter))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Agents)) {
		if name != config.DefaultAgent {
			def, _ := cfg.Subagent(name)
			errs = append(errs, add(agentView{
				Name: name, Tool: def.ToolName(), Provider: def.Provider, MaxDepth: def.MaxDepth.String(),
			}, def.Tools))
		}
	}
	return errors.Join(errs...)
}

// visible lists the tools that an agent under a filter sees.
func visible(h *harness.Harness, f *config.Filter) ([]string, error) {
	scope := h.Tools.Root().Child()
	defer scope.Close()
	if f != nil {
		r, left := tool.Filter{}, h.Within(*f)
		if left.Allow != nil {
			r.Allow = &left.Allow
		}
		if left.Deny != nil {
			r.Deny = &left.Deny
		}
		if err := scope.Restrict(r); err != nil {
			return nil, err
		}
	}
	names := []string{}
	for _, d := range scope.Visible() {
		names = append(names, d.Name)
	}
	return names, nil
}

func (a *app) writeOverviewJSON(o *overview) error {
	line, err := encode(o)
	if err == nil {
		_, err = a.stdout.Write(append(line, '\n'))
	}
	return err
}

func (a *app) writeOverview(o *overview) error {
	p := &paper{w: a.stdout}
	eff := o.Configuration
	p.line("# configuration; later files, the environment and flags win")
	p.put(legible(eff.Text()))
	p.line("\n# files")
	for _, f := range eff.Files {
		state := ""
		if !f.Found {
			state = " (not there)"
		}
		p.line("%-8s %s%s", f.Kind, printable(f.Path), state)
	}
	for _, f := range eff.Agents {
		p.line("%-8s %s", f.Kind, printable(f.Path))
	}
	for _, n := range eff.Notes {
		p.line("note     %s", printable(n.String()))
	}
	trusted := "not trusted"
	if eff.Trusted {
		trusted = "trusted"
	}
	p.line("%-8s %s", "data", printable(eff.DataDir))
	p.line("%-8s %s (%s)", "folder", printable(eff.Cwd), trusted)

	p.line("\n# routes")
	t := newTable(writerFunc(func(b []byte) (int, error) {
		p.put(string(b))
		return len(b), p.err
	}))
	errs := []error{cells(t, "ROUTE", "DIALECT", "ENDPOINT", "KEY", "DEFAULT MODEL")}
	for _, r := range o.Routes {
		key := r.Key
		if r.KeyEnv != "" {
			key = r.KeyEnv + " " + key
		}
		errs = append(errs, cells(t, r.Name, r.Dialect, r.BaseURL, key, r.Model))
	}
	errs = append(errs, t.Flush())

	p.line("\n# model")
	if o.Model != nil {
		p.line("%s (%s)", printable(o.Model.Ref), printable(o.Model.Why))
	} else {
		p.line("none (%s)", printable(o.ModelError))
	}
	p.line("\n# providers")
	for _, v := range o.Providers {
		p.line("%s: %s", printable(v.Name), v.describe())
	}
	p.line("\n# processes")
	if o.Supervised {
		p.line("they end with everything that they started, also when this program is killed")
	} else {
		p.line("their process groups are ended; what leaves its group, and what runs when this program is killed, is not")
	}
	p.line("\n# agents and the tools that they see")
	if servers := slices.Sorted(maps.Keys(eff.Config.MCP)); len(servers) > 0 {
		p.line("# without those of MCP servers (%s), which are not started here; offshoot doctor counts them", strings.Join(servers, ", "))
	}
	for _, v := range o.Agents {
		how := "root"
		if v.Tool != "" {
			how = fmt.Sprintf("by %s, provider %s, depth up to %s", v.Tool, v.Provider, v.MaxDepth)
			if v.MaxDepth == config.ProviderManaged {
				how = fmt.Sprintf("by %s, provider %s, depth as it allows", v.Tool, v.Provider)
			}
		}
		tools := strings.Join(v.Tools, ", ")
		switch {
		case v.Product != "":
			tools = "its own"
		case tools == "":
			tools = "none"
		}
		p.line("%s (%s): %s", printable(v.Name), printable(how), printable(tools))
	}
	return errors.Join(append(errs, p.err)...)
}

func (v *providerView) describe() string {
	c := v.Capabilities
	text := strings.Join(external.Features(subagent.Capabilities{
		OutputSchema: c.OutputSchema, DepthLimit: c.DepthLimit, ToolFilter: c.ToolFilter, Persona: c.Persona,
	}), ", ")
	if text == "" {
		text = "no option"
	}
	if v.InheritsContext {
		return text + "; children see the parent's conversation"
	}
	text += "; children start fresh"
	if v.Product != "" {
		text += ", each a process of its own (" + v.Product + ")"
	}
	return text
}

var _ json.Marshaler = (*config.Effective)(nil)
