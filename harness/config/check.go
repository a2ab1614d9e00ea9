package config

import (
	"fmt"
	"slices"
	"strings"
)

// check reports what no single key shows: it looks at the merged state of all layers.
func check(m settings, kinds []string, f *faults) {
	checkRoutes(m, f)
	checkModels(m, f)
	checkAgents(m, kinds, f)
	checkProviders(m, kinds, f)
	checkProducts(m, f)
	checkModes(m, f)
	checkRoot(m, f)
	checkServers(m, f)
	checkStore(m, f)
}

// checkRoot: the form of the root's answer is a matter of the call, not of the
// configuration, where whoever reads the answer would not expect it.
func checkRoot(m settings, f *faults) {
	if s, ok := m["agents."+DefaultAgent+".outputSchema"]; ok {
		f.at(s.source, s.key, "the root's own answer takes its form from the flag --output-schema")
	}
}

func checkRoutes(m settings, f *faults) {
	for _, name := range m.entries("routes") {
		at := m["routes."+name].source
		if builtinIndex(name) < 0 {
			for _, need := range []string{"dialect", "baseURL"} {
				if _, ok := m["routes."+name+"."+need]; !ok {
					f.at(at, "routes."+name, "a route of your own needs %s", need)
				}
			}
		}
		seen := map[string]string{}
		for _, s := range m.sorted() {
			if len(s.names) == 2 && s.names[0] == name && strings.HasPrefix(s.key, "routes.") {
				low := strings.ToLower(s.names[1])
				if other, twice := seen[low]; twice {
					f.at(s.source, s.key, "is the same header as %q", other)
				}
				seen[low] = s.names[1]
			}
			if name == DemoRoute && len(s.names) > 0 && s.names[0] == name && strings.HasPrefix(s.key, "routes.") && s.source.Kind != FromDefault {
				f.at(s.source, s.key, "the embedded demo cannot be configured")
			}
		}
	}
}

// checkModels refuses references to routes that do not exist. A model id is the endpoint's to refuse.
func checkModels(m settings, f *faults) {
	routes := m.entries("routes")
	for _, s := range m.sorted() {
		ref, ok := s.value.(ModelRef)
		if section, _, _ := strings.Cut(s.key, "."); ok && len(s.names) > 0 && IsProduct(m.kindOf(section, s.names[0])) {
			continue // the product's own word
		}
		if ok && !slices.Contains(routes, ref.Route) {
			f.at(s.source, s.key, "%s", unknownRoute(ref.Route, routes))
		}
	}
}

func unknownRoute(name string, routes []string) string {
	return fmt.Sprintf("unknown route %q; the routes are %s", name, strings.Join(routes, ", "))
}

// modelTools are the tool names that this program gives to models itself.
func modelTools() []string {
	return []string{
		"send_message", "list_agents", "interrupt_agent", "report", "structured_output", "job_output", "job_list", "job_kill",
		"bash", "read", "list", "write", "edit", "search",
	}
}

// checkAgents wants a known kind for each and a name that makes a tool's, and nothing about delegation for the root.
func checkAgents(m settings, kinds []string, f *faults) {
	for _, name := range m.entries("agents") {
		key := "agents." + name
		if name == DefaultAgent {
			for _, own := range []string{"provider", "maxDepth", "background", "backgroundMode"} {
				if s, ok := m[key+"."+own]; ok {
					f.at(s.source, s.key, "%s is the root agent, which nobody delegates to", name)
				}
			}
			continue
		}
		if _, problem := parseTool(agentToolPrefix + name); problem != "" {
			f.at(m[key].source, key, "the name makes no tool name: %s", problem)
		}
		known := slices.DeleteFunc(m.agentProviders(), func(name string) bool {
			kind := name
			if entry, ok := m["providers."+name+".provider"]; ok {
				kind = entry.value.(string)
			}
			return !slices.Contains(kinds, kind)
		})
		if kind := m[key+".provider"]; !slices.Contains(known, kind.value.(string)) {
			f.at(kind.source, kind.key, "unknown provider %q; this program has %s", kind.value, strings.Join(known, ", "))
		}
	}
}

// checkProviders wants a known kind for each, and one tool name for one tool (seam TOOL-01, TOOL-37).
func checkProviders(m settings, kinds []string, f *faults) {
	taken := map[string]string{}
	for _, name := range modelTools() {
		taken[name] = "one of this program's own tools"
	}
	for _, name := range m.entries("agents") {
		if name != DefaultAgent {
			taken[agentToolPrefix+name] = fmt.Sprintf("the tool of agent %s (%s)", name, m["agents."+name].source)
		}
	}
	for _, name := range m.entries("providers") {
		kind, ok := m["providers."+name+".provider"]
		switch {
		case !ok:
			f.at(m["providers."+name].source, "providers."+name, "needs provider, one of %s", strings.Join(kinds, ", "))
		case !slices.Contains(kinds, kind.value.(string)):
			f.at(kind.source, kind.key, "unknown provider %q; this program has %s", kind.value, strings.Join(kinds, ", "))
		}
		tool := m["providers."+name+".toolName"]
		if owner, twice := taken[tool.value.(string)]; twice {
			at := tool.source
			if at.Kind == FromDefault {
				at = m["providers."+name].source
			}
			f.at(at, tool.key, "tool name %q is already %s; give this one its own toolName", tool.value, owner)
		}
		taken[tool.value.(string)] = "the tool of provider " + name
	}
}

// checkModes: a continuable child gives no single answer that could have a form.
func checkModes(m settings, f *faults) {
	for _, section := range []string{"agents", "providers"} {
		for _, name := range m.entries(section) {
			key := section + "." + name
			schema, ok := m[key+".outputSchema"]
			if mode := m[key+".backgroundMode"]; ok && mode.value == ModeContinuable {
				f.at(schema.source, schema.key, "a continuable child (%s) has no single answer to give a form to; leave out one of the two", mode.key)
			}
		}
	}
}

// checkStore drops what the memory store has no use for, and refuses it when the same file names both.
func checkStore(m settings, f *faults) {
	driver := m["store.driver"]
	if driver.value != DriverMemory {
		return
	}
	for _, key := range []string{"store.path", "store.synchronous"} {
		s := m[key]
		if s.source.File != "" && s.source.File == driver.source.File {
			f.at(s.source, key, "the memory driver has no use for it")
		}
		delete(m, key)
	}
}

// build makes the typed form. Every value was parsed by the rule that sets it.
func build(m settings) Config {
	c := Config{Routes: map[string]Route{}, Agents: map[string]Agent{}, Providers: map[string]Provider{}, MCP: map[string]MCPServer{}}
	for _, s := range m.sorted() {
		if s.at.rule.set != nil {
			s.at.rule.set(&c, s.names, s.value)
		}
	}
	return c
}
