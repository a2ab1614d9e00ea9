package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// place is a home, a project folder and an environment for one test.
type place struct {
	t          *testing.T
	home, work string
	env        map[string]string
	o          config.LoadOptions
}

func newPlace(t *testing.T) *place {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, home: filepath.Join(root, "home"), work: filepath.Join(root, "work")}
	for _, dir := range []string{p.home, p.work} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.env = map[string]string{"OFFSHOOT_HOME": p.home, "HOME": root}
	p.o = config.LoadOptions{Cwd: p.work, Env: config.MapEnviron(p.env)}
	return p
}

func (p *place) user(text string) *place { return p.write(filepath.Join(p.home, "config.yaml"), text) }
func (p *place) project(text string) *place {
	return p.write(filepath.Join(p.work, "offshoot.yaml"), text)
}

func (p *place) write(path, text string) *place {
	p.t.Helper()
	if text == "" {
		return p
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return p
}

func (p *place) trust() *place {
	p.t.Helper()
	if _, err := config.Trust(p.home, p.work); err != nil {
		p.t.Fatal(err)
	}
	return p
}

func (p *place) load() *config.Effective {
	p.t.Helper()
	e, err := config.Load(p.o)
	if err != nil {
		p.t.Fatalf("load: %v", err)
	}
	return e
}

// faults loads and returns the error's lines with the folders abbreviated.
func (p *place) faults() []string {
	p.t.Helper()
	_, err := config.Load(p.o)
	if err == nil {
		return nil
	}
	lines := strings.Split(p.short(err.Error()), "\n")
	if got := len(config.Faults(err)); got != len(lines) {
		p.t.Errorf("%d faults for %d lines: %q", got, len(lines), lines)
	}
	return lines
}

func (p *place) short(s string) string {
	return strings.NewReplacer(p.home, "$HOME", p.work, "$WORK").Replace(s)
}

func text(e *config.Effective, key string) string {
	for _, v := range e.Values {
		if v.Key == key {
			return fmt.Sprintf("%s  # %s", v.Text, v.Source)
		}
	}
	return ""
}

// TestDefaults: a machine without anything configured.
func TestDefaults(t *testing.T) {
	p := newPlace(t)
	e := p.load()
	c := e.Config
	if e.Configured() || e.Trusted || c.Version != 1 || c.Model != nil || c.Permissions.Mode != "" {
		t.Errorf("unexpected: configured %v, trusted %v, %+v", e.Configured(), e.Trusted, c)
	}
	// TOOL-02, TOOL-24, TOOL-40: one delegation tool with the defaults of the tool's own table.
	want := map[string]config.Provider{"spawn": {Name: "spawn", Provider: "spawn", ToolName: "subagent", MaxDepth: config.Depth{Max: 3}, Background: true, BackgroundMode: config.ModeOneShot}}
	if diff := cmp.Diff(want, c.Providers); diff != "" {
		t.Error(diff)
	}
	wantStore := config.Store{Driver: "sqlite", Path: filepath.Join(p.home, "offshoot.db"), Synchronous: "full"}
	if diff := cmp.Diff(wantStore, c.Store); diff != "" {
		t.Error(diff)
	}
	// RT-09, AMB-29: a report wakes unless somebody says otherwise.
	if diff := cmp.Diff(config.Subagents{ReportDelivery: config.ReportNextStep, Notices: true, Interrupt: true}, c.Subagents); diff != "" {
		t.Error(diff)
	}
	if c.Limits.MaxParallelTools != 10 || c.Limits.MaxJobs != 10 || len(c.Routes) != len(config.BuiltinRoutes()) || c.Routes["deepseek"].Model != "deepseek-v4-flash" {
		t.Errorf("unexpected limits or routes: %+v %+v", c.Limits, c.Routes)
	}
	if c.Routes["demo"].BaseURL != "" || c.Routes["openai"].IdleTimeout != 5*time.Minute {
		t.Errorf("unexpected routes: %+v", c.Routes)
	}
}

// TestTyped: every key arrives in its typed place, with presence kept (COMP-09, COMP-13, TOOL-22, TOOL-25).
func TestTyped(t *testing.T) {
	p := newPlace(t).user(`
model: local:llama3:8b
routes:
  local: {dialect: vllm, baseURL: "http://gpu:9000/v1/", keyEnv: LOCAL_KEY, headers: {X-Team: blue}, model: m, idleTimeout: 10s, maxRetries: 0, contextWindow: 32768}
  ollama: {model: qwen3:8b}
tools: {shell: {enabled: false, timeout: 90s, maxOutputBytes: 1000}, files: {enabled: true}, deny: [bash]}
permissions: {mode: read-only}
agents:
  default: {persona: ""}
  claude: true
  reviewer: {description: reads, provider: fork, persona: You review., template: false, tools: {allow: []}, model: ollama, maxTokens: 900, maxDepth: 0, background: false,
    outputSchema: {type: object, description: 'x: "y"', properties: {n: {type: number, enum: [1, -2.50, null, true, "1"]}, "yes": {type: array, items: {}}}, required: [n]}}
  plain:
  lasting: {backgroundMode: continuable}
providers:
  spawn: {provider: spawn, maxDepth: provider-managed, backgroundMode: continuable}
  deep: {provider: spawn, toolName: deep, description: d, persona: "", toolFilter: {deny: [write]}, model: "ollama:a:b", maxTokens: 1, maxDepth: 0, background: false, outputSchema: {type: object}}
mcp: {}
subagents: {reportDelivery: quiet, notices: false, interrupt: false}
compaction: {auto: false}
limits: {maxDepth: 0, maxChildren: 1, maxLive: 2, maxJobs: 6, maxParallelTools: 3, maxToolResultBytes: 1024, maxSpillBytes: 2000, maxTurnSteps: 5}
store: {driver: sqlite, path: data/s.db, synchronous: normal}
recovery: {onStart: none}
`)
	got := p.load().Config
	ref := func(route, model string) *config.ModelRef { return &config.ModelRef{Route: route, Model: model} }
	for name := range got.Routes {
		if name != "local" && name != "ollama" {
			delete(got.Routes, name)
		}
	}
	want := config.Config{
		Version: 1,
		Model:   ref("local", "llama3:8b"), // the route ends at the first colon
		Routes: map[string]config.Route{
			"local":  {Name: "local", Dialect: "vllm", BaseURL: "http://gpu:9000/v1", KeyEnv: "LOCAL_KEY", Headers: map[string]string{"X-Team": "blue"}, Model: "m", IdleTimeout: 10 * time.Second, ContextWindow: 32768},
			"ollama": {Name: "ollama", Dialect: "ollama", BaseURL: "http://127.0.0.1:11434/v1", Model: "qwen3:8b", IdleTimeout: 5 * time.Minute, MaxRetries: 5, BuiltIn: true},
		},
		Tools: config.Tools{
			Shell:  config.ShellTool{Timeout: 90 * time.Second, MaxOutputBytes: 1000},
			Files:  config.FilesTool{Enabled: true},
			Filter: config.Filter{Deny: []string{"bash"}},
		},
		Permissions: config.Permissions{Mode: config.PermissionReadOnly},
		Agents: map[string]config.Agent{
			"default": {Name: "default", Persona: new(string)},
			"plain":   {Name: "plain", Provider: "spawn", MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeOneShot},
			"lasting": {Name: "lasting", Provider: "spawn", MaxDepth: config.Depth{Max: 3}, BackgroundMode: config.ModeContinuable},
			"reviewer": {Name: "reviewer", Description: ptr("reads"), Provider: "fork", Persona: ptr("You review."), Template: new(bool), Tools: &config.Filter{Allow: []string{}}, Model: ref("ollama", ""), MaxTokens: ptr(900), Background: new(bool), BackgroundMode: config.ModeOneShot,
				OutputSchema: []byte(`{"type":"object","description":"x: \"y\"","properties":{"n":{"type":"number","enum":[1,-2.50,null,true,"1"]},"yes":{"type":"array","items":{}}},"required":["n"]}`)},
		},
		Claude: true,
		Providers: map[string]config.Provider{
			"spawn": {Name: "spawn", Provider: "spawn", ToolName: "subagent", MaxDepth: config.Depth{Managed: true}, Background: true, BackgroundMode: config.ModeContinuable},
			"deep":  {Name: "deep", Provider: "spawn", ToolName: "deep", Description: ptr("d"), Persona: new(string), ToolFilter: &config.Filter{Deny: []string{"write"}}, Model: ref("ollama", "a:b"), MaxTokens: ptr(1), BackgroundMode: config.ModeOneShot, OutputSchema: []byte(`{"type":"object"}`)},
		},
		Subagents: config.Subagents{ReportDelivery: config.ReportQuiet},
		MCP:       map[string]config.MCPServer{},
		Limits:    config.Limits{MaxChildren: 1, MaxLive: 2, MaxJobs: 6, MaxParallelTools: 3, MaxToolResultBytes: 1024, MaxSpillBytes: 2000, MaxTurnSteps: 5},
		Store:     config.Store{Driver: "sqlite", Path: filepath.Join(p.home, "data", "s.db"), Synchronous: "normal"},
		Recovery:  config.Recovery{OnStart: "none"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func ptr[T any](v T) *T { return &v }

// TestPrecedence: defaults, user, project, environment, flags; the later wins.
func TestPrecedence(t *testing.T) {
	layers := func(p *place, n int, user, project string, env map[string]string, flags config.Flags) {
		if n > 0 {
			p.user(user)
		}
		if n > 1 {
			p.project(project)
		}
		if n > 2 {
			for k, v := range env {
				p.env[k] = v
			}
		}
		if n > 3 {
			p.o.Flags = flags
		}
		p.trust()
	}
	tests := []struct {
		key           string
		user, project string
		env           map[string]string
		flags         config.Flags
		want          [5]string
	}{
		{
			key: "model", user: "model: openai:u", project: "model: vllm:p",
			env: map[string]string{"OFFSHOOT_MODEL": "ollama:e"}, flags: config.Flags{Model: ptr("deepseek:f")},
			want: [5]string{
				"(not set)  # default", "openai:u  # user $HOME/config.yaml:1", "vllm:p  # project $WORK/offshoot.yaml:1",
				"ollama:e  # env OFFSHOOT_MODEL", "deepseek:f  # flag --model",
			},
		},
		{
			key: "permissions.mode", user: "\npermissions: {mode: allow}", project: "permissions:\n  mode: deny",
			env: map[string]string{"OFFSHOOT_PERMISSION": "ask"}, flags: config.Flags{Permission: ptr("read-only")},
			want: [5]string{
				"(ask on a terminal, read-only elsewhere)  # default", "allow  # user $HOME/config.yaml:2",
				"deny  # project $WORK/offshoot.yaml:2", "ask  # env OFFSHOOT_PERMISSION", "read-only  # flag --permission",
			},
		},
		{
			key: "store.path", user: "store: {path: /u.db}", project: "store: {path: p.db}",
			env: map[string]string{"OFFSHOOT_STORE": "sqlite:e"}, flags: config.Flags{Store: ptr("./f.db")},
			want: [5]string{
				"$HOME/offshoot.db  # default", "/u.db  # user $HOME/config.yaml:1", "$WORK/p.db  # project $WORK/offshoot.yaml:1",
				"$WORK/e  # env OFFSHOOT_STORE", "$WORK/f.db  # flag --store",
			},
		},
		{
			key: "store.driver", user: "store: {driver: memory}", project: "store: {driver: sqlite}",
			env: map[string]string{"OFFSHOOT_STORE": "memory"}, flags: config.Flags{Store: ptr("sqlite")},
			want: [5]string{
				"sqlite  # default", "memory  # user $HOME/config.yaml:1", "sqlite  # project $WORK/offshoot.yaml:1",
				"memory  # env OFFSHOOT_STORE", "sqlite  # flag --store",
			},
		},
		{
			key: "routes.openai.baseURL", user: "routes: {openai: {baseURL: 'http://u'}}", project: "routes: {openai: {baseURL: 'http://p/'}}",
			env: map[string]string{"OPENAI_BASE_URL": "http://e/v1/"},
			want: [5]string{
				"https://api.openai.com/v1  # default", "http://u  # user $HOME/config.yaml:1", "http://p  # project $WORK/offshoot.yaml:1",
				"http://e/v1  # env OPENAI_BASE_URL", "http://e/v1  # env OPENAI_BASE_URL",
			},
		},
		{
			key: "agents.default.persona", user: "agents: {default: {persona: u}}", project: "agents: {default: {persona: p}}",
			flags: config.Flags{Persona: ptr("")},
			want: [5]string{
				"", "u  # user $HOME/config.yaml:1", "p  # project $WORK/offshoot.yaml:1", "p  # project $WORK/offshoot.yaml:1",
				`""  # flag --persona`,
			},
		},
		{
			key: "agents.default.maxTokens", user: "agents: {default: {maxTokens: 1}}", project: "agents: {default: {maxTokens: 2}}",
			flags: config.Flags{MaxTokens: ptr(3)},
			want: [5]string{
				"", "1  # user $HOME/config.yaml:1", "2  # project $WORK/offshoot.yaml:1", "2  # project $WORK/offshoot.yaml:1", "3  # flag --max-tokens",
			},
		},
		{
			key: "providers.a.provider", user: "providers: {a: {provider: fork}}", project: "providers: {a: {provider: spawn}}",
			flags: config.Flags{Delegate: ptr("fork")},
			want: [5]string{
				"", "fork  # user $HOME/config.yaml:1", "spawn  # project $WORK/offshoot.yaml:1", "spawn  # project $WORK/offshoot.yaml:1", "fork  # flag --delegate",
			},
		},
		{
			key: "providers.spawn.maxDepth", user: "providers: {spawn: {provider: spawn, maxDepth: 1}}", project: "providers: {spawn: {maxDepth: 2}}",
			flags: config.Flags{MaxDepth: ptr(0)},
			want: [5]string{
				"3  # default", "1  # user $HOME/config.yaml:1", "2  # project $WORK/offshoot.yaml:1", "2  # project $WORK/offshoot.yaml:1", "0  # flag --max-depth",
			},
		},
		{
			key: "limits.maxDepth", user: "limits: {maxDepth: 4}", project: "limits: {maxDepth: 5}", flags: config.Flags{MaxDepth: ptr(6)},
			want: [5]string{
				"8  # default", "4  # user $HOME/config.yaml:1", "5  # project $WORK/offshoot.yaml:1", "5  # project $WORK/offshoot.yaml:1", "6  # flag --max-depth",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.key, func(t *testing.T) {
			var got [5]string
			for n := range got {
				p := newPlace(t)
				layers(p, n, tt.user, tt.project, tt.env, tt.flags)
				got[n] = p.short(text(p.load(), tt.key))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestFiltersCombine: the filters of two files restrict together, whoever is trusted.
func TestFiltersCombine(t *testing.T) {
	p := newPlace(t).user("tools: {allow: [read, bash, list], deny: [bash]}\n").project("tools:\n  allow: [bash, read]\n  deny: [write]\n")
	e := p.load()
	want := config.Filter{Allow: []string{"bash", "read"}, Deny: []string{"bash", "write"}}
	if diff := cmp.Diff(want, e.Config.Tools.Filter); diff != "" {
		t.Error(diff)
	}
	got := p.short(text(e, "tools.deny"))
	if want := "[bash, write]  # user $HOME/config.yaml:1 and project $WORK/offshoot.yaml:3"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestProviderManagedKeepsItsMeaning: --max-depth lowers the caps that are ours, and the deployment's bound always.
func TestProviderManagedKeepsItsMeaning(t *testing.T) {
	p := newPlace(t).user("providers: {a: {provider: spawn, maxDepth: provider-managed}, b: {provider: spawn, toolName: b}}\n"+
		"agents: {default: {}, plain: {}, deep: {maxDepth: 5}, managed: {maxDepth: provider-managed}}").file("$WORK/.offshoot/agents/filed.md", "---\nmaxDepth: 2\n---\n")
	p.o.Flags.MaxDepth = ptr(1)
	c := p.load().Config
	if !c.Providers["a"].MaxDepth.Managed || c.Limits.MaxDepth != 1 {
		t.Errorf("got %+v, limit %d", c.Providers["a"].MaxDepth, c.Limits.MaxDepth)
	}
	got := map[string]config.Depth{"provider b": c.Providers["b"].MaxDepth}
	for name, a := range c.Agents {
		got[name] = a.MaxDepth
	}
	want := map[string]config.Depth{"provider b": {Max: 1}, "default": {}, "plain": {Max: 1}, "deep": {Max: 1}, "filed": {Max: 1}, "managed": {Managed: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("depths (-want +got):\n%s", diff)
	}
}

// TestDelegation: --delegate is about the provider behind the tool subagent and no other; a fork that says nothing else has
// the persona and the filter of the root agent.
func TestDelegation(t *testing.T) {
	p := newPlace(t).user("agents: {default: {persona: root, tools: {deny: [bash]}}}\n" +
		"providers:\n  a: {provider: spawn}\n  b: {provider: spawn, toolName: b}\n  c: {provider: fork, toolName: c, persona: own}\n  d: {provider: fork, toolName: d, toolFilter: {allow: []}}\n")
	p.o.Flags.Delegate = ptr("fork")
	c := p.load().Config
	rootFilter, none := &config.Filter{Deny: []string{"bash"}}, &config.Filter{Allow: []string{}}
	for name, want := range map[string]struct {
		kind, persona, key string
		filter             *config.Filter
	}{
		"a": {"fork", "root", "agents.default.persona", rootFilter},
		"b": {"spawn", "", "providers.b.persona", nil},
		"c": {"fork", "own", "providers.c.persona", rootFilter},
		"d": {"fork", "root", "agents.default.persona", none},
	} {
		got, key := c.Delegation(name)
		persona := ""
		if got.Persona != nil {
			persona = *got.Persona
		}
		if got.Provider != want.kind || persona != want.persona || key != want.key || !cmp.Equal(got.ToolFilter, want.filter) {
			t.Errorf("%s: got %s with persona %q (%s) and filter %+v", name, got.Provider, persona, key, got.ToolFilter)
		}
	}
	if c.Providers["a"].Persona != nil {
		t.Error("the entry itself was changed")
	}
}

// TestNoProviders: an empty mapping is an answer, a key without value is none.
func TestNoProviders(t *testing.T) {
	if got := newPlace(t).user("providers: {}").load().Config.Providers; len(got) != 0 {
		t.Errorf("providers: {} gave %v", got)
	}
	if got := newPlace(t).user("providers:\n").load().Config.Providers; len(got) != 1 {
		t.Errorf("providers without value gave %v", got)
	}
}

// TestFiles: what is at the place of a configuration file.
func TestFiles(t *testing.T) {
	t.Run("empty files count as configuration", func(t *testing.T) {
		p := newPlace(t).user("# nothing yet\n")
		if !p.load().Configured() {
			t.Error("not configured")
		}
	})
	t.Run("folder", func(t *testing.T) {
		p := newPlace(t)
		if err := os.Mkdir(filepath.Join(p.work, "offshoot.yaml"), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(p.o)
		var fault *config.Error
		if !errors.As(err, &fault) || fault.Kind != config.KindIO || fault.Msg != "is not a regular file" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("too large", func(t *testing.T) {
		p := newPlace(t).project(strings.Repeat("#", 1<<20+1))
		if got := p.faults(); len(got) != 1 || !strings.Contains(got[0], "larger than") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("named but absent", func(t *testing.T) {
		p := newPlace(t)
		p.o.ConfigFile = filepath.Join(p.home, "other.yaml")
		if diff := cmp.Diff([]string{"config $HOME/other.yaml: there is no such file"}, p.faults()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("named replaces the user's", func(t *testing.T) {
		p := newPlace(t).user("nonsense: 1")
		p.o.ConfigFile = filepath.Join(p.home, "other.yaml")
		p.write(p.o.ConfigFile, "model: vllm")
		if got := p.load().Config.Model; got == nil || got.Route != "vllm" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("missing cwd", func(t *testing.T) {
		p := newPlace(t)
		p.o.Cwd += "/gone"
		got := p.faults()
		if diff := cmp.Diff([]string{"config $WORK/gone: the working directory cannot be used: no such file or directory"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestFaultsAreSortedAndBounded: all faults of both files, by file and line.
func TestFaultsAreSortedAndBounded(t *testing.T) {
	p := newPlace(t).
		user("limits: {maxDepth: -1}\nstrore: {}\nmodel: 5\n").
		project("store: {}\nnope: 1\nversion: 2\n")
	p.o.Flags.Permission = ptr("maybe")
	want := []string{
		"config $HOME/config.yaml:1: limits.maxDepth: must be a whole number from 0 to 2147483647",
		`config $HOME/config.yaml:2: unknown key "strore" at the top level; known here: version, model, routes, tools, permissions, agents, providers, subagents, mcp, compaction, limits, store, recovery`,
		"config $HOME/config.yaml:3: model: must be text, not a number",
		`config $WORK/offshoot.yaml:1: store: is not taken from a folder that is not trusted; run "offshoot trust $WORK" to trust this folder`,
		`config $WORK/offshoot.yaml:2: unknown key "nope" at the top level; known here: version, model, routes, tools, permissions, agents, providers, subagents, mcp, compaction, limits, store, recovery`,
		"config $WORK/offshoot.yaml:3: version: this program reads version 1 only",
		`config flag --permission: unknown value "maybe"; must be one of ask, allow, deny, read-only`,
	}
	if diff := cmp.Diff(want, p.faults()); diff != "" {
		t.Error(diff)
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "k%d: 1\n", i)
	}
	got := newPlace(t).user(many.String()).faults()
	if len(got) != 51 || got[50] != "config: 950 more faults" {
		t.Errorf("%d faults, the last %q", len(got), got[len(got)-1])
	}
}

func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	for name, text := range map[string]string{"config.yaml": "model: ollama:x\nlimits: {maxLive: 9}\n", "offshoot.yaml": "agents: {default: {persona: p}}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	o := config.LoadOptions{Cwd: dir, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": dir})}
	for b.Loop() {
		if _, err := config.Load(o); err != nil {
			b.Fatal(err)
		}
	}
}
