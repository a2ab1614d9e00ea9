package harness_test

import (
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/claudecode"
	"github.com/offshoot-dev/offshoot/subagent/codex"
	"github.com/offshoot-dev/offshoot/subagent/dsh"
	"github.com/offshoot-dev/offshoot/subagent/external"
)

// Products are providers with their own tools, whose texts say who plays the agent; nothing
// of them need be installed.
func TestProductsAreMounted(t *testing.T) {
	eff := configured(t, `providers:
  rt: {provider: dsh, command: no-such-program}
  any: {provider: acp, command: no-such-program, mode: work, readOnlyMode: look}
  codex: {provider: codex, command: no-such-program, modelProvider: p}
  said: {provider: dsh, command: no-such-program, description: Knows the ropes.}
agents:
  far: {provider: rt, model: some-model}
  cc: {provider: claude-code, model: some-model}
`)
	h, err := harness.Open(t.Context(), harness.Options{Config: eff, Store: memory.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for tool, want := range map[string]string{
		"subagent_rt": "The subagent is the agent harness rt: a program of its own", "subagent_said": "Knows the ropes.",
		"subagent_any":   "The subagent is the agent any: a program of its own",
		"subagent_codex": "The subagent is Codex, a coding agent",
		"subagent_far":   "The subagent is the agent harness rt: a program of its own", "subagent": "",
		"subagent_cc": "The subagent is Claude Code",
	} {
		c := h.Tools.Root().Toolset().Lookup(tool)
		if c == nil {
			t.Errorf("there is no tool %s", tool)
		} else if !strings.Contains(c.Description, want) || want == "" && strings.Contains(c.Description, "The subagent is") {
			t.Errorf("%s: %s", tool, c.Description)
		}
	}
	if got := strings.Join(h.Subagents.Providers(), " "); !strings.Contains(got, "rt") || !strings.Contains(got, "said") {
		t.Errorf("the providers are %s", got)
	}
}

// REG-22: what each is called where nobody says otherwise.
func TestProductNames_REG22(t *testing.T) {
	base := external.Config{Command: "x"}
	one, err := codex.New(codex.Config{Config: base})
	if err != nil {
		t.Fatal(err)
	}
	two, err := claudecode.New(claudecode.Config{Config: base})
	if err != nil {
		t.Fatal(err)
	}
	three, err := dsh.New(dsh.Config{Config: base})
	if err != nil {
		t.Fatal(err)
	}
	for want, p := range map[string]subagent.Provider{"codex": one, "claude-code": two, "dsh-sdk": three} {
		if p.Name() != want {
			t.Errorf("%q, want %q", p.Name(), want)
		}
		if p.InheritsParentContext() {
			t.Errorf("%s says that its children see the parent's conversation", want)
		}
	}
}

// A persona of a product may name what is known of the product, and no variable of the
// program's own: that is told when the system is opened, not at the first delegation.
func TestProductPersonas(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"providers: {codex: {provider: codex, persona: 'You work in {{cwd}} as {{model}} of {{provider}}.'}}", ""},
		{"providers: {codex: {provider: codex, persona: 'It is {{day}}.'}}", `providers.codex.persona: "{{day}}"`},
		{"agents: {far: {provider: codex, persona: 'It is {{day}}.'}}", `agents.far.persona: "{{day}}"`},
		{"agents: {near: {provider: spawn, persona: 'It is {{day}}.'}}", ""},
	} {
		h, err := harness.Open(t.Context(), harness.Options{
			Config: configured(t, c.text), Store: memory.New(), Variables: map[string]func() (string, bool){"day": func() (string, bool) { return "today", true }},
		})
		if err == nil {
			err = h.Close(t.Context())
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
