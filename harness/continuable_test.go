package harness_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
)

// lasting opens a system with the configuration of a user on a scripted model.
func lasting(t *testing.T, text string, model llm.Adapter, store session.Store) (*harness.Harness, error) {
	t.Helper()
	home, work := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte("version: 1\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	eff, err := config.Load(config.LoadOptions{Cwd: work, Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": home, "HOME": home})})
	if err != nil {
		t.Fatal(err)
	}
	return harness.Open(t.Context(), harness.Options{
		Config: eff, Store: store,
		Adapters: func(r *llm.Registry) error { _, err := r.Register(model, "script"); return err },
	})
}

var script = config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}}

// TOOL-40, RT-01, RT-09, P11: with a continuable delegation tool come those for its
// children; each can be left out by the deployment, and only a child has the report.
func TestContinuableTools(t *testing.T) {
	const on = "providers: {main: {provider: spawn, backgroundMode: continuable}}\n"
	for _, tt := range []struct {
		name, config string
		root, child  []string
	}{
		{"one-shot", "", []string{"job_kill", "job_list", "job_output", "subagent"}, nil},
		{"continuable", on, []string{"interrupt_agent", "list_agents", "send_message", "subagent"}, []string{"interrupt_agent", "list_agents", "report", "send_message", "subagent"}},
		{"an agent", "agents: {a: {backgroundMode: continuable}}\nproviders: {}\n", []string{"interrupt_agent", "list_agents", "send_message", "subagent_a"}, nil},
		{"both kinds", on + "agents: {a: {}}\n",
			[]string{"interrupt_agent", "job_kill", "job_list", "job_output", "list_agents", "send_message", "subagent", "subagent_a"},
			[]string{"interrupt_agent", "job_kill", "job_list", "job_output", "list_agents", "report", "send_message", "subagent", "subagent_a"}},
		{"no interrupt", on + "subagents: {interrupt: false}\n", []string{"list_agents", "send_message", "subagent"}, []string{"list_agents", "report", "send_message", "subagent"}},
		{"a filter of the deployment", on + "tools: {deny: [report, list_agents]}\n", []string{"interrupt_agent", "send_message", "subagent"}, []string{"interrupt_agent", "send_message", "subagent"}},
		{"the tool is hidden", on + "tools: {deny: [subagent]}\n", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var child []string
			model := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.Say("done")}}}}, scripted.Options{})
			h, err := lasting(t, tt.config, model, memory.New())
			if err != nil {
				t.Fatal(err)
			}
			h.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
				if !a.Root() {
					child = delegationTools(a)
				}
				return nil
			}})
			root, err := h.NewRoot(t.Context(), "/", script)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.root, delegationTools(root.Agent())); diff != "" {
				t.Errorf("the root (-want +got):\n%s", diff)
			}
			if tt.child != nil {
				if _, err := h.Subagents.StartContinuable(t.Context(), "spawn", subagent.ContinuableRequest{Label: "x", Prompt: []message.Block{message.Text("x")}, Parent: root.Agent()}); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tt.child, child); diff != "" {
				t.Errorf("the child (-want +got):\n%s", diff)
			}
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	// A filter that could have no effect is a mistake.
	for text, want := range map[string]string{
		on + "agents: {a: {tools: {deny: [report]}}}\n":                          `agents.a.tools.deny: every continuable child has "report"`,
		"tools: {deny: [send_message]}\n":                                        `tools.deny: no tool is named "send_message"`,
		on + "subagents: {interrupt: false}\ntools: {deny: [interrupt_agent]}\n": `tools.deny: no tool is named "interrupt_agent"`,
	} {
		_, err := lasting(t, text, scripted.New(nil, scripted.Options{}), memory.New())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// delegationTools are the tools of an agent that have to do with delegation, sorted.
func delegationTools(a *agent.Agent) []string {
	var names []string
	for _, d := range a.Tools().Toolset().Definitions() {
		if !slices.Contains([]string{"bash", "read", "list", "write", "edit", "search"}, d.Name) {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Design § 4 (what teardown does to the queue), SCOPE-16, SCOPE-17, DRAIN-04: Close stops a root that is at work, ends
// what is below it, and disposes it last; it keeps what waits for a child behind the turn that it cuts, and the next
// process goes on with that in the same epoch.
func TestCloseKeepsContinuable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gate scripted.Gate
		model := scripted.New(scripted.Script{
			{Match: scripted.FirstPrompt("dig"), Steps: []scripted.Step{{scripted.StallUntil(&gate), scripted.Say("dug")}, {scripted.Say("dug on")}}},
			{Match: scripted.FirstPrompt("hello"), Steps: []scripted.Step{{scripted.StallUntil(&gate), scripted.Say("hello")}}, Repeat: true},
			{Repeat: true, Steps: []scripted.Step{{scripted.Say("done")}}},
		}, scripted.Options{})
		const cfg = "providers: {main: {provider: spawn, backgroundMode: continuable}}\n"
		store := memory.New()
		open := func() *harness.Harness {
			h, err := lasting(t, cfg, model, keep{store})
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		h := open()
		root, err := h.NewRoot(t.Context(), "/", script)
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Agent().Accept(t.Context(), agent.UserText("hello"), session.NextTurn); err != nil {
			t.Fatal(err)
		}
		acc, err := h.Subagents.StartContinuable(t.Context(), "spawn", subagent.ContinuableRequest{Label: "x", Prompt: []message.Block{message.Text("dig")}, Parent: root.Agent()})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := h.Host.Send(t.Context(), root.Agent().ID(), acc.Child, []message.Block{message.Text("and more")}); err != nil {
			t.Fatal(err)
		}
		var order []session.ID
		h.Agents.AddHooks(agent.Hooks{Disposed: func(a *agent.Agent) {
			if order = append(order, a.ID()); len(order) == 1 && root.Agent().Status() != agent.Idle {
				t.Error("SCOPE-17: the root works on while what is below it ends")
			}
		}})
		if root.Agent().Status() != agent.Running {
			t.Error("the root is not at work")
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if !slices.Equal(order, []session.ID{acc.Child, root.Agent().ID()}) {
			t.Errorf("SCOPE-16: they ended in the order %q", order)
		}
		if live := h.Agents.List(); len(live) > 0 {
			t.Errorf("%d agents are live", len(live))
		}

		gate.Open()
		h = open()
		defer func() {
			if err := h.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if err := store.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		again, err := h.ResumeRoot(t.Context(), root.Agent().ID(), script)
		if err != nil {
			t.Fatal(err)
		}
		found, err := h.Host.Recover(t.Context(), again.Agent())
		if err != nil || !slices.Equal(found.Reopened, []session.ID{acc.Child}) {
			t.Errorf("%+v, %v", found, err)
		}
		set, err := h.Host.Wait(t.Context(), again.Agent().ID(), acc.Child)
		if err != nil || set.Epoch != 1 || set.StopReason != subagent.StopCompleted || set.Unread != 0 {
			t.Errorf("settled as %+v, %v", set, err)
		}
		synctest.Wait()
	})
}

// keep is a store that outlives the systems which use it.
type keep struct{ session.Store }

func (keep) Close(context.Context) error { return nil }
