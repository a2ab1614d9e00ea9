package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The kinds of provider whose children are products of their own, in other processes.
const (
	KindACP        = "acp"
	KindCodex      = "codex"
	KindClaudeCode = "claude-code"
	KindDSH        = "dsh"
)

func productKinds() []string { return []string{KindACP, KindCodex, KindClaudeCode, KindDSH} }

// Kinds are all kinds of provider.
func Kinds() []string { return slices.Concat(localKinds(), productKinds()) }

// IsProduct reports whether the children of a kind of provider are products of their own.
func IsProduct(kind string) bool { return slices.Contains(productKinds(), kind) }

// Product is how a provider's product is started. Which fields mean something depends on its kind: see productKeys.
type Product struct {
	Command string            // looked up in PATH, or absolute; empty: the product's own
	Args    []string          // nil: the product's own
	Env     map[string]string // merged into an environment without secrets; the values may be secret
	EnvFrom map[string]string // variables of the product, each by the variable of this program that holds its value
	Dir     string            // absolute; empty: the folder of whoever delegates

	Permission      Permission    // deny, ask or allow: what its requests for leave get
	Mode            string        // of an ACP agent, by its id; empty: its own
	ReadOnlyMode    string        // of an ACP agent: the one in which it changes nothing; empty: none
	ModelProvider   string        // the product's own name of who serves its model; empty: its own
	StartTimeout    time.Duration // up to the end of the handshake
	ApprovalTimeout time.Duration // of one question to a person
}

// productKeys are the keys of an entry of providers that say something to a kind of product, beside toolName, description,
// background and what every product takes.
func productKeys(kind string) []string {
	switch kind {
	case KindACP:
		return []string{"mode", "readOnlyMode"}
	case KindCodex:
		return []string{"model", "modelProvider", "persona", "outputSchema"}
	case KindClaudeCode:
		return []string{"model", "persona", "outputSchema"}
	case KindDSH:
		return []string{"model", "modelProvider", "maxTokens"}
	}
	return nil
}

// anyProduct are the keys that every product takes and no child of this process does; optional are those that only some take.
func anyProduct() []string {
	return []string{"command", "args", "env", "envFrom", "cwd", "permission", "startTimeout", "approvalTimeout"}
}

func optional() []string {
	return []string{"mode", "readOnlyMode", "model", "modelProvider", "persona", "outputSchema", "maxTokens", "toolFilter"}
}

func productRules() []rule {
	row := func(key string, read rule, set func(*Product, any)) rule {
		read.path, read.policy = "providers.*."+key, trusted
		read.set = func(c *Config, names []string, v any) {
			edit(c.Providers, names[0], func(p *Provider) { set(&p.Product, v) })
		}
		return read
	}
	table := func(key string, value parser, field func(*Product) *map[string]string) []rule {
		return []rule{
			{path: "providers.*." + key, names: parseVariableName},
			{path: "providers.*." + key + ".*", read: text(value), policy: trusted, set: func(c *Config, names []string, v any) {
				edit(c.Providers, names[0], func(p *Provider) { putText(field(&p.Product), names[1], v) })
			}},
		}
	}
	return slices.Concat(
		[]rule{
			row("command", rule{read: text(parseProgram)}, func(p *Product, v any) { p.Command = string(v.(program)) }),
			row("args", rule{read: argumentList}, func(p *Product, v any) { p.Args = v.(arguments) }),
		},
		table("env", parseSecret, func(p *Product) *map[string]string { return &p.Env }),
		table("envFrom", parseReference, func(p *Product) *map[string]string { return &p.EnvFrom }),
		[]rule{
			row("cwd", rule{read: text(parseLine), folder: true}, func(p *Product, v any) { p.Dir = v.(string) }),
			row("permission", rule{read: text(oneOf(string(PermissionDeny), string(PermissionAsk), string(PermissionAllow)))},
				func(p *Product, v any) { p.Permission = Permission(v.(string)) }),
			row("mode", rule{read: text(parseLine)}, func(p *Product, v any) { p.Mode = v.(string) }),
			row("readOnlyMode", rule{read: text(parseLine)}, func(p *Product, v any) { p.ReadOnlyMode = v.(string) }),
			row("modelProvider", rule{read: text(parseLine)}, func(p *Product, v any) { p.ModelProvider = v.(string) }),
			row("startTimeout", rule{read: text(parseDuration)}, func(p *Product, v any) { p.StartTimeout = v.(time.Duration) }),
			row("approvalTimeout", rule{read: text(parseDuration)}, func(p *Product, v any) { p.ApprovalTimeout = v.(time.Duration) }),
		},
	)
}

// putText puts a text of any kind into a table, which it makes.
func putText(table *map[string]string, name string, v any) {
	if *table == nil {
		*table = map[string]string{}
	}
	switch v := v.(type) {
	case secret:
		(*table)[name] = string(v)
	case variable:
		(*table)[name] = string(v)
	}
}

// kindOf is the kind of the provider that an entry of providers or agents names: an agent names a kind of this process, an
// entry of providers that is a product, or a product that needs no entry.
func (m settings) kindOf(section, name string) string {
	said, ok := m[section+"."+name+".provider"]
	if !ok {
		return ""
	}
	kind, _ := said.value.(string)
	if section == "agents" && !slices.Contains(localKinds(), kind) {
		if entry, ok := m["providers."+kind+".provider"]; ok {
			kind, _ = entry.value.(string)
		}
	}
	return kind
}

// needsNoEntry reports whether agents may name a kind of product without an entry of providers.
func needsNoEntry(kind string) bool { return kind == KindCodex || kind == KindClaudeCode }

// agentProviders are the names that an agent may give as its provider.
func (m settings) agentProviders() []string {
	names := localKinds()
	for _, name := range m.entries("providers") {
		if IsProduct(m.kindOf("providers", name)) {
			names = append(names, name)
		}
	}
	for _, kind := range productKinds() {
		if _, taken := m["providers."+kind]; needsNoEntry(kind) && !taken {
			names = append(names, kind)
		}
	}
	return names
}

// completeProducts adds the defaults of products.
func completeProducts(tree *place, m settings) {
	for _, name := range m.entries("providers") {
		if !IsProduct(m.kindOf("providers", name)) {
			continue
		}
		key := "providers." + name
		m.fill(tree, key+".toolName", agentToolPrefix+name)
		m.fill(tree, key+".maxDepth", Depth{Managed: true})
		m.fill(tree, key+".permission", string(PermissionDeny))
		m.fill(tree, key+".startTimeout", time.Minute)
		m.fill(tree, key+".approvalTimeout", 10*time.Minute)
	}
	for _, name := range m.entries("agents") {
		if IsProduct(m.kindOf("agents", name)) {
			m.fill(tree, "agents."+name+".maxDepth", Depth{Managed: true})
		}
	}
}

// checkProducts wants of each entry what its kind of provider can do, and nothing else.
func checkProducts(m settings, f *faults) {
	for _, name := range m.entries("providers") {
		key, kind := "providers."+name, m.kindOf("providers", name)
		if !IsProduct(kind) {
			for _, k := range append(anyProduct(), "mode", "readOnlyMode", "modelProvider") {
				if s, ok := m[key+"."+k]; ok {
					f.at(s.source, s.key, "means nothing for a provider whose children are part of this program (%s)", kind)
				}
			}
			continue
		}
		if slices.Contains(localKinds(), name) {
			f.at(m[key].source, key, "the name %s is that of a provider of this program", name)
		}
		if _, ok := m[key+".command"]; !ok && !needsNoEntry(kind) {
			f.at(m[key].source, key, "needs command: the program that speaks %s", kind)
		}
		for _, k := range optional() {
			if s, ok := m[key+"."+k]; ok && !slices.Contains(productKeys(kind), k) {
				f.at(s.source, s.key, "%s cannot be told this; it takes %s", kind, strings.Join(productKeys(kind), ", "))
			}
		}
		checkOneShot(m, key, kind, f)
		seen := map[string]string{}
		for _, s := range m.sorted() {
			if len(s.names) != 2 || s.isSection() || !strings.HasPrefix(s.key, key+".env") {
				continue
			}
			if other, twice := seen[s.names[1]]; twice {
				f.at(s.source, s.key, "is set by %s already", other)
			}
			seen[s.names[1]] = s.key
		}
	}
	for _, name := range m.entries("agents") {
		key, kind := "agents."+name, m.kindOf("agents", name)
		if !IsProduct(kind) {
			continue
		}
		for _, k := range []string{"tools", "model", "persona", "outputSchema", "maxTokens"} {
			if s, ok := m[key+"."+k]; ok && !slices.Contains(productKeys(kind), k) {
				f.at(s.source, s.key, "an agent that %s plays cannot be told this", kind)
			}
		}
		checkOneShot(m, key, kind, f)
	}
}

// checkOneShot: a product takes one task, and how far it delegates is its own affair.
func checkOneShot(m settings, key, kind string, f *faults) {
	if s := m[key+".backgroundMode"]; s.value == ModeContinuable {
		f.at(s.source, s.key, "%s takes one task a child; a continuable child is one of this program", kind)
	}
	if s, ok := m[key+".maxDepth"]; ok && s.value != (Depth{Managed: true}) {
		f.at(s.source, s.key, "how far %s delegates is its own affair: %s", kind, ProviderManaged)
	}
}

// Products returns the providers whose children are products: the entries of that kind, and those that an agent names and
// that need no entry. Their names are those in the registry of providers.
func (c *Config) Products() map[string]Provider {
	all := map[string]Provider{}
	for name, p := range c.Providers {
		if IsProduct(p.Provider) {
			all[name] = p
		}
	}
	for _, a := range c.Agents {
		if _, there := all[a.Provider]; !there && IsProduct(a.Provider) {
			all[a.Provider] = Provider{Name: a.Provider, Provider: a.Provider, Product: Product{Permission: PermissionDeny}}
		}
	}
	return all
}

// Registered is the name of the provider in the registry: that of the entry for a product, else the kind.
func (p Provider) Registered() string {
	if IsProduct(p.Provider) {
		return p.Name
	}
	return p.Provider
}

// ProductEnv returns the environment of a product, with what it takes from variables of env. A variable that is not set is an
// *Error of KindUsage that stands where it is named.
func (e *Effective) ProductEnv(name string, env Environ) (map[string]string, error) {
	p := e.Config.Providers[name].Product
	all := maps.Clone(p.Env)
	if all == nil {
		all = map[string]string{}
	}
	for _, target := range slices.Sorted(maps.Keys(p.EnvFrom)) {
		value, ok := env.get(p.EnvFrom[target])
		if !ok {
			return nil, e.Fault(fmt.Sprintf("providers.%s.envFrom.%s", name, target), "%s is not set", p.EnvFrom[target])
		}
		all[target] = value
	}
	return all, nil
}
