package config

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// setting is one value of one layer. A section has no value: its setting says that it was written.
type setting struct {
	key    string // dotted
	names  []string
	at     *place
	rank   string
	value  any
	source Source
}

func (s setting) isSection() bool { return s.at.rule.read == nil }

// settings is the merged state, by dotted key.
type settings map[string]setting

func (m settings) put(tree *place, path []string, value any, src Source) {
	at, names, rank := tree.find(path)
	key := strings.Join(path, ".")
	m[key] = setting{key: key, names: names, at: at, rank: rank, value: value, source: src}
}

// set puts a value of ours under a key of the schema whose names hold no dot.
func (m settings) set(tree *place, key string, value any, src Source) {
	m.put(tree, strings.Split(key, "."), value, src)
}

// fill sets a default where nothing was set.
func (m settings) fill(tree *place, key string, value any) {
	if _, ok := m[key]; !ok {
		m.set(tree, key, value, Source{Kind: FromDefault})
	}
}

// sorted lists the settings in the order in which they are explained; a section comes before what is in it.
func (m settings) sorted() []setting {
	list := make([]setting, 0, len(m))
	for _, s := range m {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b setting) int { return strings.Compare(a.rank, b.rank) })
	return list
}

// entries lists the names directly below a section of named entries.
func (m settings) entries(section string) []string {
	var names []string
	for _, s := range m.sorted() {
		if len(s.names) == 1 && s.isSection() && s.key == section+"."+s.names[0] {
			names = append(names, s.names[0])
		}
	}
	return names
}

// reader turns the mapping of one file into settings.
type reader struct {
	tree *place
	file string
	kind SourceKind
	home string // for "~/" in a path
	out  []setting
	f    *faults
}

func (r *reader) source(line int) Source { return Source{Kind: r.kind, File: r.file, Line: line} }

// walk reads the mapping n, which stands at the given place and path. Its depth is bounded by the schema.
func (r *reader) walk(n *yaml.Node, at *place, path []string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		below := append(slices.Clip(path), key.Value)
		src := r.source(key.Line)
		next := at.kid(key.Value)
		if next == nil && at.star != nil {
			if _, problem := at.rule.names(key.Value); problem != "" {
				r.f.at(src, strings.Join(path, "."), "%s", problem)
				continue
			}
			next = at.star
		}
		if next == nil {
			where := "at the top level"
			if len(path) > 0 {
				where = "in " + strings.Join(path, ".")
			}
			r.f.at(src, "", "unknown key %q %s; known here: %s", key.Value, where, at.allowed())
			continue
		}
		r.entry(key, value, next, below, next == at.star)
	}
}

// entry reads one value or section.
func (r *reader) entry(key, value *yaml.Node, at *place, path []string, named bool) {
	dotted := strings.Join(path, ".")
	if at.rule.read != nil {
		if isNull(value) {
			r.f.at(r.source(key.Line), dotted, "has no value")
			return
		}
		v, line, problem := at.rule.read(value)
		if problem != "" {
			r.f.at(r.source(line), dotted, "%s", problem)
			return
		}
		if at.rule.folder {
			v = absolutePath(v.(string), filepath.Dir(r.file), r.home)
		}
		if c, ok := v.(program); ok && strings.ContainsAny(string(c), `/\`) {
			v = program(absolutePath(string(c), filepath.Dir(r.file), r.home))
		}
		r.add(path, v, key.Line)
		return
	}
	switch {
	case isNull(value) && !named && !at.rule.filter:
		return // a section whose keys are all commented out says nothing
	case isNull(value):
	case value.Kind != yaml.MappingNode:
		r.f.at(r.source(value.Line), dotted, "must be a mapping of keys to values, not %s", describe(value))
		return
	}
	if at.rule.filter && len(value.Content) == 0 {
		r.f.at(r.source(key.Line), dotted, "must name allow or deny; leave it out to restrict nothing")
		return
	}
	r.add(path, nil, key.Line)
	r.walk(value, at, path)
}

func (r *reader) add(path []string, value any, line int) {
	m := settings{}
	m.put(r.tree, path, value, r.source(line))
	r.out = append(r.out, m[strings.Join(path, ".")])
}

// defaultDepth is the cap of a provider that names none (seam TOOL-24).
const defaultDepth = 3

// The providers whose children stay in this process, and the tool of a provider that names none (seam TOOL-02).
const (
	spawnKind   = "spawn"
	forkKind    = "fork"
	defaultTool = "subagent"
)

func localKinds() []string { return []string{spawnKind, forkKind} }

// defaults is the weakest layer.
func defaults(tree *place, dataDir string) settings {
	m := settings{}
	m.fill(tree, "version", 1)
	for _, b := range BuiltinRoutes() {
		m.fill(tree, "routes."+b.Name, nil)
		m.fill(tree, "routes."+b.Name+".dialect", b.Dialect)
		m.fill(tree, "routes."+b.Name+".model", b.Model)
		if b.BaseURL != "" {
			m.fill(tree, "routes."+b.Name+".baseURL", endpoint(b.BaseURL))
		}
		if b.KeyEnv != "" {
			m.fill(tree, "routes."+b.Name+".keyEnv", b.KeyEnv)
		}
	}
	m.fill(tree, "tools.shell.enabled", true)
	m.fill(tree, "tools.shell.timeout", 2*time.Minute)
	m.fill(tree, "tools.shell.maxOutputBytes", 8<<20)
	m.fill(tree, "tools.files.enabled", true)
	m.fill(tree, "agents."+claudeKey, false)
	m.fill(tree, "agents."+DefaultAgent, nil)
	m.fill(tree, "mcp", nil)
	m.fill(tree, "subagents.reportDelivery", ReportNextStep)
	m.fill(tree, "subagents.notices", true)
	m.fill(tree, "subagents.interrupt", true)
	m.fill(tree, "compaction.auto", true)
	m.fill(tree, "limits.maxDepth", 8)
	m.fill(tree, "limits.maxChildren", 64)
	m.fill(tree, "limits.maxLive", 256)
	m.fill(tree, "limits.maxJobs", 10)
	m.fill(tree, "limits.maxParallelTools", 10)
	m.fill(tree, "limits.maxToolResultBytes", 64<<10)
	m.fill(tree, "limits.maxSpillBytes", 16<<20)
	m.fill(tree, "limits.maxTurnSteps", 200)
	m.fill(tree, "store.driver", DriverSQLite)
	m.fill(tree, "store.path", filepath.Join(dataDir, "offshoot.db"))
	m.fill(tree, "store.synchronous", "full")
	m.fill(tree, "recovery.onStart", "none")
	return m
}

// complete adds the defaults that depend on what the files named.
func complete(tree *place, m settings) {
	for _, name := range m.entries("routes") {
		if name != DemoRoute {
			m.fill(tree, "routes."+name+".idleTimeout", 5*time.Minute)
			m.fill(tree, "routes."+name+".maxRetries", 5)
		}
	}
	completeProducts(tree, m)
	local := false // whether a tool starts agents of this program
	for _, name := range m.entries("providers") {
		local = local || !IsProduct(m.kindOf("providers", name))
	}
	if _, said := m["providers"]; !said || !local && len(m.entries("providers")) > 0 {
		m.fill(tree, "providers", nil)
		m.fill(tree, "providers.spawn", nil)
		m.fill(tree, "providers.spawn.provider", spawnKind)
	}
	for _, name := range m.entries("providers") {
		m.fill(tree, "providers."+name+".toolName", defaultTool)
		m.fill(tree, "providers."+name+".maxDepth", Depth{Max: defaultDepth})
		m.fill(tree, "providers."+name+".background", true)
		m.fill(tree, "providers."+name+".backgroundMode", ModeOneShot)
	}
	for _, name := range m.entries("mcp") {
		m.fill(tree, "mcp."+name+".timeout", 2*time.Minute)
		m.fill(tree, "mcp."+name+".isolate", false)
		m.fill(tree, "mcp."+name+".trustHints", false)
	}
	for _, name := range m.entries("agents") {
		if name != DefaultAgent {
			m.fill(tree, "agents."+name+".provider", spawnKind)
			m.fill(tree, "agents."+name+".maxDepth", Depth{Max: defaultDepth})
			m.fill(tree, "agents."+name+".backgroundMode", ModeOneShot)
		}
	}
}

// merge lays the settings of a file over m. Tool filters combine: a restriction is never lifted by a later layer.
func (m settings) merge(layer []setting) {
	for _, s := range layer {
		old, ok := m[s.key]
		if names, list := s.value.([]string); ok && list {
			s.value = combine(s.key, old.value.([]string), names)
			s.source.Also = append(slices.Clone(old.source.Also), Source{Kind: old.source.Kind, File: old.source.File, Line: old.source.Line})
		}
		m[s.key] = s
	}
}

func combine(key string, old, names []string) []string {
	both := []string{}
	if strings.HasSuffix(key, "deny") {
		both = append(both, old...)
		for _, n := range names {
			if !slices.Contains(old, n) {
				both = append(both, n)
			}
		}
		return both
	}
	for _, n := range names {
		if slices.Contains(old, n) {
			both = append(both, n)
		}
	}
	return both
}

// fromEnv lays the environment over m.
func (m settings) fromEnv(tree *place, env Environ, cwd, home string, f *faults) {
	put := func(name, key string, parse parser) {
		text, ok := env.get(name)
		if !ok {
			return
		}
		src := Source{Kind: FromEnv, Name: name}
		v, problem := parse(text)
		if problem != "" {
			f.at(src, "", "%s", problem)
			return
		}
		m.set(tree, key, v, src)
	}
	put(EnvModel, "model", parseModel)
	for _, b := range BuiltinRoutes() {
		parse := parseEndpoint
		if b.Name == "ollama" {
			parse = parseOllama
		}
		put(b.BaseEnv, "routes."+b.Name+".baseURL", parse)
	}
	put(EnvPermission, "permissions.mode", oneOf(permissionNames()...))
	if text, ok := env.get(EnvStore); ok {
		m.setStore(tree, text, cwd, home, Source{Kind: FromEnv, Name: EnvStore}, f)
	}
}

// fromFlags lays the flags over m.
func (m settings) fromFlags(tree *place, flags Flags, cwd, home string, f *faults) {
	put := func(name, key string, text *string, parse parser) {
		if text == nil {
			return
		}
		src := Source{Kind: FromFlag, Name: name}
		v, problem := parse(*text)
		if problem != "" {
			f.at(src, "", "%s", problem)
			return
		}
		m.set(tree, key, v, src)
	}
	put("--model", "model", flags.Model, parseModel)
	put("--permission", "permissions.mode", flags.Permission, oneOf(permissionNames()...))
	put("--persona", "agents."+DefaultAgent+".persona", flags.Persona, parseText)
	put("--max-tokens", "agents."+DefaultAgent+".maxTokens", digits(flags.MaxTokens), wholeNumber(1))
	put("--max-depth", "limits.maxDepth", digits(flags.MaxDepth), wholeNumber(0))
	for _, section := range []string{"agents", "providers"} {
		for _, name := range m.entries(section) {
			key := section + "." + name + ".maxDepth"
			if depth, ok := m[key].value.(Depth); ok && !depth.Managed && f.empty() {
				put("--max-depth", key, digits(flags.MaxDepth), parseDepth)
			}
		}
	}
	if flags.Delegate != nil {
		src, bound := Source{Kind: FromFlag, Name: "--delegate"}, false
		for _, name := range m.entries("providers") {
			if m["providers."+name+".toolName"].value == defaultTool {
				put(src.Name, "providers."+name+".provider", flags.Delegate, oneOf(localKinds()...))
				bound = true
			}
		}
		if !bound {
			f.at(src, "", "no configured provider has the tool %q, which it is about", defaultTool)
		}
	}
	if flags.Store != nil {
		m.setStore(tree, *flags.Store, cwd, home, Source{Kind: FromFlag, Name: "--store"}, f)
	}
}

func digits(n *int) *string {
	if n == nil {
		return nil
	}
	return ptr(fmt.Sprint(*n))
}

// setStore reads the short form of a store: memory, sqlite, sqlite:PATH, or the path of an SQLite file.
func (m settings) setStore(tree *place, text, cwd, home string, src Source, f *faults) {
	path := ""
	switch rest, named := strings.CutPrefix(text, DriverSQLite+":"); {
	case text == DriverMemory:
		m.set(tree, "store.driver", DriverMemory, src)
		return
	case text == DriverSQLite:
	case named && rest != "":
		path = rest
	case !named && !strings.Contains(text, "://") && strings.ContainsAny(text, `./\`):
		path = text
	default:
		f.at(src, "", "unknown store; write %s, %s, %s:PATH or the path of an SQLite file", DriverMemory, DriverSQLite, DriverSQLite)
		return
	}
	m.set(tree, "store.driver", DriverSQLite, src)
	if path != "" {
		m.set(tree, "store.path", absolutePath(path, cwd, home), src)
	}
}

// absolutePath reads a path that a person wrote: below dir, or below the home folder after "~/".
func absolutePath(path, dir, home string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && home != "" {
		return filepath.Join(home, rest)
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

func userHome(env Environ) string { return homeDir(env, runtime.GOOS) }
