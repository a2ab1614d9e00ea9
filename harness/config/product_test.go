package config_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness/config"
)

const products = `providers:
  codex:
    provider: codex
    command: ./bin/codex
    args: [app-server]
    env: {A: "1"}
    envFrom: {KEY: MY_KEY}
    cwd: sub
    permission: ask
    model: gpt-5
    modelProvider: mine
    startTimeout: 10s
    approvalTimeout: 1m
    persona: You are careful.
  editor: {provider: acp, command: opencode, args: [acp], mode: build, readOnlyMode: plan, toolName: editor, background: false}
agents:
  reviewer: {provider: codex, persona: You review., model: "o:1"}
  writer: {provider: claude-code}
  helper: {provider: spawn}
`

// Products stand beside the agents of this program, whose tool is there in any case.
func TestProducts(t *testing.T) {
	p := newPlace(t).user(products)
	e := p.load()
	dir := filepath.Dir(e.Files[0].Path)
	persona, managed := "You are careful.", config.Depth{Managed: true}
	want := map[string]config.Provider{
		"codex": {
			Name: "codex", Provider: "codex", ToolName: "subagent_codex", Persona: &persona, Model: &config.ModelRef{Route: "gpt-5"},
			MaxDepth: managed, Background: true, BackgroundMode: config.ModeOneShot,
			Product: config.Product{
				Command: filepath.Join(dir, "bin/codex"), Args: []string{"app-server"}, Env: map[string]string{"A": "1"},
				EnvFrom: map[string]string{"KEY": "MY_KEY"}, Dir: filepath.Join(dir, "sub"), Permission: config.PermissionAsk,
				ModelProvider: "mine", StartTimeout: 10 * time.Second, ApprovalTimeout: time.Minute,
			},
		},
		"editor": {
			Name: "editor", Provider: "acp", ToolName: "editor", MaxDepth: managed, BackgroundMode: config.ModeOneShot,
			Product: config.Product{
				Command: "opencode", Args: []string{"acp"}, Mode: "build", ReadOnlyMode: "plan", Permission: config.PermissionDeny,
				StartTimeout: time.Minute, ApprovalTimeout: 10 * time.Minute,
			},
		},
		"spawn": {
			Name: "spawn", Provider: "spawn", ToolName: "subagent", MaxDepth: config.Depth{Max: 3}, Background: true, BackgroundMode: config.ModeOneShot,
		},
	}
	if diff := cmp.Diff(want, e.Config.Providers); diff != "" {
		t.Error(diff)
	}
	var names []string
	for name, p := range e.Config.Products() {
		names = append(names, name+"/"+p.Registered())
	}
	if diff := cmp.Diff([]string{"claude-code/claude-code", "codex/codex", "editor/editor"}, slices.Sorted(slices.Values(names))); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]config.Depth{"reviewer": managed, "writer": managed, "helper": {Max: 3}} {
		if got := e.Config.Agents[name].MaxDepth; got != want {
			t.Errorf("agent %s: maxDepth %s, want %s", name, got, want)
		}
	}
	environ, err := e.ProductEnv("codex", config.MapEnviron(map[string]string{"MY_KEY": "k"}))
	if diff := cmp.Diff(map[string]string{"A": "1", "KEY": "k"}, environ); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err = e.ProductEnv("codex", config.MapEnviron(nil)); err == nil || p.short(err.Error()) != "config $HOME/config.yaml:7: providers.codex.envFrom.KEY: MY_KEY is not set" {
		t.Error(err)
	}
	for key, want := range map[string]string{"providers.codex.env.A": "(hidden)", "providers.codex.envFrom.KEY.value": "not set"} {
		if got := text(e, key); !strings.HasPrefix(got, want) {
			t.Errorf("%s is shown as %q, want %q", key, got, want)
		}
	}
}

// What a kind of provider cannot be told is refused where it stands (CAP-01, OOPX-04).
func TestProductFaults(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no command":            {"providers: {a: {provider: acp}}", "1: providers.a: needs command: the program that speaks acp"},
		"foreign key":           {"providers: {a: {provider: codex, mode: x}}", "1: providers.a.mode: codex cannot be told this; it takes model, modelProvider, persona, outputSchema"},
		"persona":               {"providers: {a: {provider: dsh, command: x, persona: y}}", "1: providers.a.persona: dsh cannot be told this; it takes model, modelProvider, maxTokens"},
		"tool filter":           {"providers: {a: {provider: codex, toolFilter: {deny: [bash]}}}", ""},
		"local":                 {"providers: {a: {provider: spawn, command: x}}", "1: providers.a.command: means nothing for a provider whose children are part of this program (spawn)"},
		"local name":            {"providers: {fork: {provider: codex}}", "1: providers.fork: the name fork is that of a provider of this program"},
		"continuable":           {"providers: {a: {provider: codex, backgroundMode: continuable}}", "1: providers.a.backgroundMode: codex takes one task a child; a continuable child is one of this program"},
		"depth":                 {"providers: {a: {provider: codex, maxDepth: 2}}", "1: providers.a.maxDepth: how far codex delegates is its own affair: provider-managed"},
		"timeout":               {"providers: {a: {provider: codex, startTimeout: 0s}}", "1: providers.a.startTimeout: must be a duration of at least 1ms, such as \"90s\" or \"2m\""},
		"permission":            {"providers: {a: {provider: codex, permission: read-only}}", ""},
		"variable twice":        {"providers: {a: {provider: codex, env: {A: b}, envFrom: {A: C}}}", "1: providers.a.envFrom.A: is set by providers.a.env.A already"},
		"agent of nobody":       {"agents: {a: {provider: acp}}", `1: agents.a.provider: unknown provider "acp"; this program has spawn, fork, codex, claude-code`},
		"agent's tools":         {"agents: {a: {provider: codex, tools: {deny: [bash]}}}", "1: agents.a.tools: an agent that codex plays cannot be told this"},
		"agent that goes on":    {"agents: {a: {provider: codex, backgroundMode: continuable}}", "1: agents.a.backgroundMode: codex takes one task a child; a continuable child is one of this program"},
		"agent of a local name": {"providers: {mine: {provider: spawn, toolName: x}}\nagents: {a: {provider: mine}}", `2: agents.a.provider: unknown provider "mine"; this program has spawn, fork, codex, claude-code`},
	} {
		t.Run(name, func(t *testing.T) {
			got := newPlace(t).user(c.text).faults()
			if len(got) == 0 || c.want != "" && got[0] != "config $HOME/config.yaml:"+c.want {
				t.Errorf("%q", got)
			}
		})
	}
}

// A folder that is not trusted starts no product and changes none (design § 4, Trust).
func TestUntrustedProducts(t *testing.T) {
	const plea = ` is not taken from a folder that is not trusted; run "offshoot trust $WORK" to trust this folder`
	user := "providers: {codex: {provider: codex}}"
	for _, key := range []string{
		"command: x", "args: [x]", "env: {A: b}", "envFrom: {A: B}", "cwd: x", "permission: allow", "startTimeout: 1s", "approvalTimeout: 1s", "modelProvider: x",
	} {
		p := newPlace(t).user(user).project("providers: {codex: {" + key + "}}")
		if got := p.faults(); len(got) != 1 || !strings.HasSuffix(got[0], plea) {
			t.Errorf("%s: %q", key, got)
		}
		if got := p.trust().faults(); got != nil {
			t.Errorf("%s, trusted: %q", key, got)
		}
	}
	got := newPlace(t).user(user).project("agents: {a: {provider: codex}}").faults()
	if len(got) != 1 || got[0] != `config $WORK/offshoot.yaml:1: agents.a.provider: a folder that is not trusted may not start another product (codex); run "offshoot trust $WORK" to trust this folder` {
		t.Errorf("%q", got)
	}
}
