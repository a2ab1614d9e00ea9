package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// policy says what the file of a folder that is not trusted may do with a key.
type policy uint8

const (
	free     policy = iota // set it
	narrow                 // lower it, or switch it off
	off                    // switch it off, whatever the user says
	children               // set it to a provider that stays in this process
	refused                // nothing; stands at a top-level key
	trusted                // nothing; stands at a value
)

// rule is one row of the schema: the pattern of a key ("*" stands for a name), how its value is read and where it goes.
// A row without read is a section; rows below it need no row for the sections above them.
type rule struct {
	path   string
	read   func(n *yaml.Node) (value any, line int, problem string)
	policy policy
	set    func(c *Config, names []string, value any)

	filter bool   // a section that must name allow or deny (seam COMP-13, TOOL-23)
	names  parser // for a section of named entries: what a name looks like
	folder bool   // a value that is a path: it is meant from the folder of its file
}

// schema is the whole configuration, in the order in which it is explained.
func schema() []rule {
	rules := []rule{
		{path: "version", read: number(oneVersion), set: func(c *Config, _ []string, v any) { c.Version = v.(int) }},
		{path: "model", read: text(parseModel), set: func(c *Config, _ []string, v any) { c.Model = ptr(v.(ModelRef)) }},
	}
	return slices.Concat(rules, routeRules(), toolRules(), agentRules(), providerRules(), productRules(), subagentRules(), mcpRules(), compactionRules(), limitRules(), storeRules())
}

func oneVersion(s string) (any, string) {
	if s != "1" {
		return nil, "this program reads version 1 only"
	}
	return 1, ""
}

func routeRules() []rule {
	row := func(key string, read func(*yaml.Node) (any, int, string), set func(*Route, any)) rule {
		return rule{path: "routes.*." + key, read: read, set: func(c *Config, names []string, v any) {
			edit(c.Routes, names[0], func(r *Route) { set(r, v) })
		}}
	}
	return []rule{
		{path: "routes", policy: refused, names: parseName},
		{path: "routes.*", set: func(c *Config, names []string, _ any) {
			edit(c.Routes, names[0], func(r *Route) { r.Name, r.BuiltIn = names[0], builtinIndex(names[0]) >= 0 })
		}},
		row("dialect", text(oneOf(Dialects()...)), func(r *Route, v any) { r.Dialect = v.(string) }),
		row("baseURL", text(parseEndpoint), func(r *Route, v any) { r.BaseURL = string(v.(endpoint)) }),
		row("keyEnv", text(parseVariable), func(r *Route, v any) { r.KeyEnv = v.(string) }),
		row("model", text(parseModelID), func(r *Route, v any) { r.Model = v.(string) }),
		{path: "routes.*.headers", names: parseHeaderName},
		{path: "routes.*.headers.*", read: text(parseHeaderValue), set: func(c *Config, names []string, v any) {
			edit(c.Routes, names[0], func(r *Route) {
				if r.Headers == nil {
					r.Headers = map[string]string{}
				}
				r.Headers[names[1]] = string(v.(secret))
			})
		}},
		row("idleTimeout", text(parseDuration), func(r *Route, v any) { r.IdleTimeout = v.(time.Duration) }),
		row("maxRetries", number(wholeNumber(0)), func(r *Route, v any) { r.MaxRetries = v.(int) }),
		row("contextWindow", number(wholeNumber(leastWindow)), func(r *Route, v any) { r.ContextWindow = v.(int) }),
	}
}

// leastWindow is less than any model has, and more than a mistaken unit would say.
const leastWindow = 1000

func compactionRules() []rule {
	return []rule{{path: "compaction.auto", read: boolean, policy: narrow, set: func(c *Config, _ []string, v any) { c.Compaction.Auto = v.(bool) }}}
}

func toolRules() []rule {
	return []rule{
		{path: "tools.shell.enabled", read: boolean, policy: narrow, set: func(c *Config, _ []string, v any) { c.Tools.Shell.Enabled = v.(bool) }},
		{path: "tools.shell.timeout", read: text(parseDuration), policy: narrow, set: func(c *Config, _ []string, v any) { c.Tools.Shell.Timeout = v.(time.Duration) }},
		{path: "tools.shell.maxOutputBytes", read: number(wholeNumber(1)), policy: narrow, set: func(c *Config, _ []string, v any) { c.Tools.Shell.MaxOutputBytes = v.(int) }},
		{path: "tools.files.enabled", read: boolean, policy: narrow, set: func(c *Config, _ []string, v any) { c.Tools.Files.Enabled = v.(bool) }},
		{path: "tools.allow", read: toolList, set: func(c *Config, _ []string, v any) { c.Tools.Filter.Allow = v.([]string) }},
		{path: "tools.deny", read: toolList, set: func(c *Config, _ []string, v any) { c.Tools.Filter.Deny = v.([]string) }},
		{path: "permissions", policy: refused},
		{path: "permissions.mode", read: text(oneOf(permissionNames()...)), set: func(c *Config, _ []string, v any) { c.Permissions.Mode = Permission(v.(string)) }},
	}
}

func agentRules() []rule {
	row := func(key string, read func(*yaml.Node) (any, int, string), p policy, set func(*Agent, any)) rule {
		return rule{path: "agents.*." + key, read: read, policy: p, set: func(c *Config, names []string, v any) {
			edit(c.Agents, names[0], func(a *Agent) { set(a, v) })
		}}
	}
	return []rule{
		{path: "agents", names: parseName},
		{path: "agents." + claudeKey, read: boolean, policy: narrow, set: func(c *Config, _ []string, v any) { c.Claude = v.(bool) }},
		{path: "agents.*", set: func(c *Config, names []string, _ any) {
			edit(c.Agents, names[0], func(a *Agent) { a.Name = names[0] })
		}},
		row("description", text(parseText), free, func(a *Agent, v any) { a.Description = ptr(v.(string)) }),
		row("provider", text(parseName), children, func(a *Agent, v any) { a.Provider = v.(string) }),
		row("persona", text(parseText), free, func(a *Agent, v any) { a.Persona = ptr(v.(string)) }),
		row("template", boolean, off, func(a *Agent, v any) { a.Template = ptr(v.(bool)) }),
		{path: "agents.*.tools", filter: true},
		row("tools.allow", toolList, free, func(a *Agent, v any) { allow(&a.Tools, v) }),
		row("tools.deny", toolList, free, func(a *Agent, v any) { deny(&a.Tools, v) }),
		row("model", text(parseModel), free, func(a *Agent, v any) { a.Model = ptr(v.(ModelRef)) }),
		row("maxTokens", number(wholeNumber(1)), narrow, func(a *Agent, v any) { a.MaxTokens = ptr(v.(int)) }),
		row("outputSchema", outputSchema, free, func(a *Agent, v any) { a.OutputSchema = []byte(v.(jsonText)) }),
		row("maxDepth", depth, narrow, func(a *Agent, v any) { a.MaxDepth = v.(Depth) }),
		row("background", boolean, narrow, func(a *Agent, v any) { a.Background = ptr(v.(bool)) }),
		row("backgroundMode", text(parseMode), narrow, func(a *Agent, v any) { a.BackgroundMode = v.(BackgroundMode) }),
	}
}

func providerRules() []rule {
	row := func(key string, read func(*yaml.Node) (any, int, string), p policy, set func(*Provider, any)) rule {
		return rule{path: "providers.*." + key, read: read, policy: p, set: func(c *Config, names []string, v any) {
			edit(c.Providers, names[0], func(p *Provider) { set(p, v) })
		}}
	}
	return []rule{
		{path: "providers", names: parseName},
		{path: "providers.*", set: func(c *Config, names []string, _ any) {
			edit(c.Providers, names[0], func(p *Provider) { p.Name = names[0] })
		}},
		row("provider", text(parseName), children, func(p *Provider, v any) { p.Provider = v.(string) }),
		row("toolName", text(parseTool), free, func(p *Provider, v any) { p.ToolName = v.(string) }),
		row("description", text(parseText), free, func(p *Provider, v any) { p.Description = ptr(v.(string)) }),
		row("persona", text(parseText), free, func(p *Provider, v any) { p.Persona = ptr(v.(string)) }),
		{path: "providers.*.toolFilter", filter: true},
		row("toolFilter.allow", toolList, free, func(p *Provider, v any) { allow(&p.ToolFilter, v) }),
		row("toolFilter.deny", toolList, free, func(p *Provider, v any) { deny(&p.ToolFilter, v) }),
		row("model", text(parseModel), free, func(p *Provider, v any) { p.Model = ptr(v.(ModelRef)) }),
		row("maxTokens", number(wholeNumber(1)), narrow, func(p *Provider, v any) { p.MaxTokens = ptr(v.(int)) }),
		row("outputSchema", outputSchema, free, func(p *Provider, v any) { p.OutputSchema = []byte(v.(jsonText)) }),
		row("maxDepth", depth, narrow, func(p *Provider, v any) { p.MaxDepth = v.(Depth) }),
		row("background", boolean, narrow, func(p *Provider, v any) { p.Background = v.(bool) }),
		row("backgroundMode", text(parseMode), narrow, func(p *Provider, v any) { p.BackgroundMode = v.(BackgroundMode) }),
	}
}

func subagentRules() []rule {
	return []rule{
		{path: "subagents.reportDelivery", read: text(parseDelivery), set: func(c *Config, _ []string, v any) { c.Subagents.ReportDelivery = v.(ReportDelivery) }},
		{path: "subagents.notices", read: boolean, policy: narrow, set: func(c *Config, _ []string, v any) { c.Subagents.Notices = v.(bool) }},
		{path: "subagents.interrupt", read: boolean, policy: narrow, set: func(c *Config, _ []string, v any) { c.Subagents.Interrupt = v.(bool) }},
	}
}

// leastResult leaves room for the line that says what is missing in a result;
// mostSpill is what every store can take as one event (tool.MaxSpill).
const (
	leastResult = 1 << 10
	mostSpill   = 64 << 20
)

func limitRules() []rule {
	within := func(key string, least, most int, field func(*Limits) *int) rule {
		return rule{path: "limits." + key, read: number(numberWithin(least, most)), policy: narrow,
			set: func(c *Config, _ []string, v any) { *field(&c.Limits) = v.(int) }}
	}
	row := func(key string, least int, field func(*Limits) *int) rule { return within(key, least, maxInt, field) }
	return []rule{
		row("maxDepth", 0, func(l *Limits) *int { return &l.MaxDepth }),
		row("maxChildren", 1, func(l *Limits) *int { return &l.MaxChildren }),
		row("maxLive", 1, func(l *Limits) *int { return &l.MaxLive }),
		row("maxJobs", 1, func(l *Limits) *int { return &l.MaxJobs }),
		row("maxParallelTools", 1, func(l *Limits) *int { return &l.MaxParallelTools }),
		row("maxToolResultBytes", leastResult, func(l *Limits) *int { return &l.MaxToolResultBytes }),
		within("maxSpillBytes", leastResult, mostSpill, func(l *Limits) *int { return &l.MaxSpillBytes }),
		row("maxTurnSteps", 1, func(l *Limits) *int { return &l.MaxTurnSteps }),
	}
}

func storeRules() []rule {
	return []rule{
		{path: "store", policy: refused},
		{path: "store.driver", read: text(oneOf(DriverSQLite, DriverMemory)), set: func(c *Config, _ []string, v any) { c.Store.Driver = v.(string) }},
		{path: "store.path", read: text(parseLine), folder: true, set: func(c *Config, _ []string, v any) { c.Store.Path = v.(string) }},
		{path: "store.synchronous", read: text(oneOf("full", "normal")), set: func(c *Config, _ []string, v any) { c.Store.Synchronous = v.(string) }},
		{path: "recovery", policy: refused},
		{path: "recovery.onStart", read: text(oneOf("none")), set: func(c *Config, _ []string, v any) { c.Recovery.OnStart = v.(string) }},
	}
}

func ptr[T any](v T) *T { return &v }

func edit[T any](m map[string]T, name string, change func(*T)) {
	v := m[name]
	change(&v)
	m[name] = v
}

func allow(f **Filter, v any) {
	if *f == nil {
		*f = &Filter{}
	}
	(*f).Allow = v.([]string)
}

func deny(f **Filter, v any) {
	if *f == nil {
		*f = &Filter{}
	}
	(*f).Deny = v.([]string)
}

// scalar reads one value with one of the given YAML tags.
func scalar(want string, parse parser, tags ...string) func(*yaml.Node) (any, int, string) {
	return func(n *yaml.Node) (any, int, string) {
		if n.Kind != yaml.ScalarNode || !slices.Contains(tags, n.ShortTag()) {
			return nil, n.Line, fmt.Sprintf("must be %s, not %s", want, describe(n))
		}
		v, problem := parse(n.Value)
		return v, n.Line, problem
	}
}

func text(parse parser) func(*yaml.Node) (any, int, string) {
	return scalar("text", parse, "!!str")
}

func number(parse parser) func(*yaml.Node) (any, int, string) {
	return scalar("a whole number", parse, "!!int", "!!float")
}

func boolean(n *yaml.Node) (any, int, string) {
	return scalar("true or false", parseBool, "!!bool")(n)
}

func depth(n *yaml.Node) (any, int, string) {
	return scalar("a whole number or "+ProviderManaged, parseDepth, "!!str", "!!int", "!!float")(n)
}

func toolList(n *yaml.Node) (any, int, string) {
	if n.Kind != yaml.SequenceNode {
		return nil, n.Line, "must be a list of tool names, not " + describe(n)
	}
	names := []string{} // not nil: an empty list is a list (seam COMP-13)
	for _, item := range n.Content {
		v, line, problem := text(parseTool)(item)
		if problem == "" && slices.Contains(names, v.(string)) {
			problem = fmt.Sprintf("names %q twice", v)
		}
		if problem != "" {
			return nil, line, problem
		}
		names = append(names, v.(string))
	}
	return names, n.Line, ""
}

// place is one node of the schema as a tree.
type place struct {
	key  string
	rule rule
	kids []*place // in the order of the schema
	star *place   // below a section of named entries
}

func schemaTree() *place {
	root := &place{}
	for _, r := range schema() {
		at := root
		for part := range strings.SplitSeq(r.path, ".") {
			at = at.sub(part)
		}
		at.rule = r
	}
	return root
}

// sub is the place below p for part of a pattern; it is made when it is not there.
func (p *place) sub(part string) *place {
	if part == "*" {
		if p.star == nil {
			p.star = &place{key: part}
		}
		return p.star
	}
	if kid := p.kid(part); kid != nil {
		return kid
	}
	kid := &place{key: part}
	p.kids = append(p.kids, kid)
	return kid
}

func (p *place) kid(key string) *place {
	for _, k := range p.kids {
		if k.key == key {
			return k
		}
	}
	return nil
}

// find is the place of a key path (nil when the schema has none), the names in it, and a string by which paths sort into
// the order in which they are explained.
func (p *place) find(path []string) (at *place, names []string, rank string) {
	at = p
	for _, part := range path {
		next := at.kid(part)
		switch {
		case next != nil:
			rank += fmt.Sprintf("/%02d", slices.Index(at.kids, next))
		case at.star == nil:
			return nil, nil, ""
		default:
			next, names = at.star, append(names, part)
			if i := builtinIndex(part); i >= 0 && at.key == "routes" {
				part = fmt.Sprintf("%02d", i) // the built-in ones first, in the order of their table
			}
			rank += "/" + part
		}
		at = next
	}
	return at, names, rank
}

// allowed lists the keys below p.
func (p *place) allowed() string {
	var keys []string
	for _, k := range p.kids {
		keys = append(keys, k.key)
	}
	return strings.Join(keys, ", ")
}
