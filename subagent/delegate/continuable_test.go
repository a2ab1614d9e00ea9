package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

var background = delegate.Config{Background: true}

const ack = "started subagent #one\nIt works by itself, and a message tells you when it is done; give it more work with send_message and this id. " +
	"The id is that of an agent, not of a background job."

// TOOL-30, TOOL-36, TOOL-39, CONT-21, CONT-22, MSG-01, MSG-03, MSG-04: a delegation answers
// with the child's id, the outcome comes as a message, and the child takes more work. No
// job is created: there is no registry of jobs here.
func TestContinuable_TOOL30(t *testing.T) {
	for name, args := range map[string]string{"omitted": "", "true": `,"run_in_background":true`} {
		t.Run(name, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
				n.Answer("go", scripted.Step{scripted.CallLiteral("subagent", `{"description":"one","prompt":"map it"`+args+`}`)}, scripted.Step{scripted.SayLiteral("started it")})
				n.Answer("map it", scripted.Step{late(), scripted.SayLiteral("mapped")})
				n.Answer("more", scripted.Step{n.calls(delegate.SendTool, `{"subagent_id":"#one","message":"and the tests"}`)}, scripted.Step{scripted.SayLiteral("sent it")})
				n.Answer("and the tests", scripted.Step{late(), scripted.SayLiteral("tested")})
				n.tell("go")
				n.tell("more")
				want := []string{
					"user: map it", "says: mapped", "settled: completed",
					"coordinator: and the tests", "says: tested", "settled: completed",
				}
				if d := cmp.Diff(want, n.log(n.child("one"))); d != "" {
					t.Errorf("the child's log:\n%s", d)
				}
				want = []string{
					"user: go", `result {"kind":"continuable","subagentId":"#one"}: ` + ack, "says: started it",
					"subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:mapped", "says: started it",
					"user: more", `result {"messageId":"ID","subagentId":"#one"}: message ID is queued as the next turn of subagent #one`, "says: sent it",
					"subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:tested", "says: sent it",
				}
				if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
					t.Errorf("the parent's log:\n%s", d)
				}
			})
		})
	}
}

// P15: without notices nothing is promised, neither in the tool's text nor in its answer.
func TestContinuableUnnoticed(t *testing.T) {
	inNest(t, subagenttest.Options{NoNotices: true}, background, func(t *testing.T, n *nest) {
		n.Answer("go", scripted.Step{starts("one", "map it")}, scripted.Step{scripted.SayLiteral("started it")})
		n.tell("go")
		want := []string{"user: go", `result {"kind":"continuable","subagentId":"#one"}: ` + strings.Replace(ack, ", and a message tells you when it is done", "", 1), "says: started it"}
		if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
		if text := n.Tools.Root().Toolset().Lookup("subagent").Description; !strings.Contains(text, "No message comes by itself") {
			t.Errorf("the text:\n%s", text)
		}
		for _, d := range n.Tools.Root().Specs() {
			if strings.Contains(d.Description, "comes to you by itself") {
				t.Errorf("%s promises a notice:\n%s", d.Name, d.Description)
			}
		}
	})
}

// TOOL-03, TOOL-11, TOOL-32, TOOL-34: what the model gets to know of each form.
func TestContinuableDefinition_TOOL32(t *testing.T) {
	for name, bg := range map[string]bool{"background": true, "foreground": false} {
		inNest(t, subagenttest.Options{}, delegate.Config{Background: bg}, func(t *testing.T, n *nest) {
			d := n.Tools.Root().Toolset().Lookup("subagent")
			var schema struct {
				Properties map[string]struct{ Type string } `json:"properties"`
				Required   []string                         `json:"required"`
			}
			if err := json.Unmarshal(d.Parameters, &schema); err != nil {
				t.Fatal(err)
			}
			if got := schema.Properties["run_in_background"].Type; bg && got != "boolean" || !bg && got != "" || len(schema.Required) != 2 {
				t.Errorf("%s: parameters = %s", name, d.Parameters)
			}
			for _, promise := range []string{"job_output", "job_kill", "answers you once"} {
				if strings.Contains(d.Description, promise) {
					t.Errorf("%s: the text promises %q:\n%s", name, promise, d.Description)
				}
			}
			says := []string{"send_message", "not a background job", "empty conversation"}
			if bg {
				says = append(says, "a message with its closing words comes to you by itself", "`run_in_background` to false")
			}
			for _, word := range says {
				if !strings.Contains(d.Description, word) {
					t.Errorf("%s: the text does not say %q:\n%s", name, word, d.Description)
				}
			}
			if !d.ConcurrencySafe([]byte(`{"description":"d","prompt":"p","run_in_background":false}`)) {
				t.Errorf("%s: TOOL-11: not every call may overlap others", name)
			}
			lines := map[string]string{`{"description":"d","prompt":"p"}`: "d (in the background)", `{"description":"d","prompt":"p","run_in_background":false}`: "d"}
			for args, want := range lines {
				if !bg {
					want = "d"
				}
				if got := d.Describe([]byte(args)); got != want {
					t.Errorf("%s: described as %q, want %q", name, got, want)
				}
			}
		})
	}
}

// TOOL-29, OBS-09, CONT-24, CAP-06, TOOL-37: what fails at the mount. A tool that always
// waits starts continuable children all the same, so it needs a provider that has them.
func TestContinuableMount_TOOL29(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		n.Register(t, capable())
		n.Register(t, bare{spawn.New("bare")})
		for _, c := range []struct {
			name string
			cfg  delegate.Config
			says string
		}{
			{"TOOL-29 no preparer", delegate.Config{Provider: "scripted", ToolName: "x", Background: true}, `provider "scripted" has no continuable subagents`},
			{"OBS-09 no preparer, in the foreground", delegate.Config{Provider: "scripted", ToolName: "x"}, `provider "scripted" has no continuable subagents`},
			{"CONT-24 a schema", delegate.Config{Provider: "spawn", ToolName: "x", OutputSchema: []byte(countSchema)}, "no outputSchema"},
			{"TOOL-37 the name of a section", delegate.Config{Provider: "later", ToolName: "taken", Background: true, Prompts: n.Prompts.Root()}, "tool:taken"},
		} {
			if c.cfg.Provider == "later" {
				first := c.cfg
				first.Continuable = true
				mount(t, n.System, first) // its provider is not there, its name is
			}
			c.cfg.Continuable = true
			if _, err := delegate.Mount(n.Service, n.Tools.Root(), c.cfg, nil); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: Mount = %v, want one that says %q", c.name, err, c.says)
			}
		}
		mount(t, n.System, delegate.Config{Provider: "bare", ToolName: "bare", Continuable: true, Persona: &subagent.Persona{Text: "p"}, ToolFilter: &session.ToolFilter{Allow: []string{}}})
		if r := execute(t.Context(), n.System, n.parent, "bare", task); r.IsError {
			t.Errorf("CAP-06: %q", resultText(r))
		}
	})
}

// bare is a provider of continuable children that has no capability.
type bare struct{ *spawn.Provider }

func (bare) Capabilities() subagent.Capabilities { return subagent.Capabilities{} }

// TOOL-33, TOOL-08: the guidance is there for agents that see the tool, at its place, and
// as long as the tool is mounted.
func TestGuidance_TOOL33(t *testing.T) {
	inNest(t, subagenttest.Options{}, delegate.Config{}, func(t *testing.T, n *nest) {
		root := n.Prompts.Root()
		for _, s := range []prompt.Section{{Name: "before", Order: 116.4, Text: "before"}, {Name: "behind", Order: 116.6, Text: "behind"}} {
			if _, err := root.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		remove := n.Register(t, spawn.New("more"))
		unmount := mount(t, n.System, delegate.Config{Provider: "more", ToolName: "helper", Continuable: true, Background: true, Prompts: root})
		mount(t, n.System, delegate.Config{Provider: "more", ToolName: "waiter", Continuable: true, Prompts: root})
		filtered := n.NewAgent(t, agent.Create{Options: subagenttest.ParentOptions(), Setup: func(_ context.Context, a *agent.Agent) error {
			return a.Tools().Restrict(tool.Filter{Deny: &[]string{"helper"}})
		}})
		want := func(what string, a *agent.Agent, there bool) {
			t.Helper()
			if err := a.Followup(agent.UserText(what)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			calls := n.Adapter.Calls()
			var parts []string
			for part := range strings.SplitSeq(calls[len(calls)-1].Request.System, "\n\n") {
				switch {
				case strings.Contains(part, "Start subagents with `helper` in the background"):
					parts = append(parts, "helper")
				case part == "before" || part == "behind":
					parts = append(parts, part)
				case strings.Contains(part, "waiter"):
					t.Errorf("%s: a tool that always waits has guidance: %q", what, part)
				}
			}
			expect := []string{"before", "behind"}
			if there {
				expect = []string{"before", "helper", "behind"}
			}
			if !slices.Equal(parts, expect) {
				t.Errorf("%s: the sections are %q, want %q", what, parts, expect)
			}
		}
		want("visible", n.parent, true)
		want("filtered out", filtered, false)
		remove()
		want("the provider is gone", n.parent, false)
		n.Register(t, spawn.New("more"))
		want("it is back", n.parent, true)
		unmount()
		want("unmounted", n.parent, false)
		if err := root.Check(prompt.Section{Name: "x", Text: "{{cwd}}"}); err != nil {
			t.Error(err)
		}
		if _, err := root.Add(prompt.Section{Name: "tool:helper"}); err != nil {
			t.Errorf("TOOL-08: the section is still there: %v", err)
		}
	})
}

// TOOL-10, TOOL-34, MSG-07, IA-05, LA-11 and what else never reaches the service.
func TestContinuableRefused_TOOL34(t *testing.T) {
	inNest(t, subagenttest.Options{}, delegate.Config{}, func(t *testing.T, n *nest) {
		mount(t, n.System, delegate.Config{Provider: "spawn", ToolName: "either", Continuable: true, Background: true})
		gone := n.Parent(t)
		if err := gone.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, c := range []struct {
			name   string
			ctx    context.Context
			caller tool.Caller
			tool   string
			args   string
			code   string
			says   string
		}{
			{"TOOL-34 background", t.Context(), n.parent, "subagent", `{"description":"d","prompt":"p","run_in_background":true}`, tool.CodeInvalidArgs, "run_in_background"},
			{"TOOL-10 no agent", t.Context(), nil, "either", task, tool.CodeDenied, "live agent"},
			{"a dead agent", t.Context(), gone, "either", task, tool.CodeDenied, "live agent"},
			{"no description", t.Context(), n.parent, "either", `{"description":" ","prompt":"p"}`, tool.CodeInvalidArgs, "description"},
			{"no prompt", t.Context(), n.parent, "either", `{"description":"d","prompt":" "}`, tool.CodeInvalidArgs, "prompt"},
			{"CAN-04 cancelled", ended, n.parent, "either", task, tool.CodeAbortedBeforeDispatch, "cancelled"},
			{"MSG-07 no agent", t.Context(), nil, "send_message", `{"subagent_id":"x","message":"m"}`, tool.CodeDenied, "live agent"},
			{"MSG-02 no id", t.Context(), n.parent, "send_message", `{"message":"m"}`, tool.CodeInvalidArgs, "subagent_id"},
			{"MSG-02 an empty message", t.Context(), n.parent, "send_message", `{"subagent_id":"x","message":"\n"}`, tool.CodeInvalidArgs, "blank"},
			{"IA-05 no agent", t.Context(), nil, "interrupt_agent", `{"agent_id":"x"}`, tool.CodeDenied, "live agent"},
			{"IA-01 no id", t.Context(), n.parent, "interrupt_agent", `{}`, tool.CodeInvalidArgs, "agent_id"},
			{"LA-11 no agent", t.Context(), nil, "list_agents", `{}`, tool.CodeDenied, "live agent"},
			{"LA-03 another scope", t.Context(), n.parent, "list_agents", `{"scope":"all"}`, tool.CodeInvalidArgs, "scope"},
			{"a place that is none", t.Context(), n.parent, "list_agents", `{"after":"page 2"}`, "INVALID_REQUEST", "Correct the call"},
			{"MSG-06 nobody", t.Context(), n.parent, "send_message", `{"subagent_id":"x","message":"m"}`, "NOT_RESUMABLE", "there is no subagent x\nCheck the id."},
		} {
			r := execute(c.ctx, n.System, c.caller, c.tool, c.args)
			if !r.IsError || r.Code != c.code || !strings.Contains(resultText(r), c.says) {
				t.Errorf("%s: result = %s %q, want %s that says %q", c.name, r.Code, resultText(r), c.code, c.says)
			}
		}
		// Past the schema, too.
		_, err := n.Tools.Root().Toolset().Lookup("subagent").Execute(t.Context(), &tool.Call{Name: "subagent", Args: []byte(`{"description":"d","prompt":"p","run_in_background":true}`), Caller: n.parent})
		if err == nil || !strings.Contains(err.Error(), "does not run in the background") {
			t.Errorf("TOOL-34: %v", err)
		}
		if rows := n.rows(); len(rows) != 0 {
			t.Errorf("there are %d children", len(rows))
		}
	})
}

// CONT-12, ERR-02: what the model reads where no subagent can be continued, and at the bounds.
func TestContinuableUnavailable(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: "spawn", Continuable: true, Background: true})
		r := execute(t.Context(), s, s.Parent(t), "subagent", task)
		if r.Code != "PERSISTENCE_UNAVAILABLE" || !strings.HasSuffix(resultText(r), "\nSubagents that can be continued are not available in this program: do the work yourself, or use another tool.") {
			t.Errorf("result = %s %q", r.Code, resultText(r))
		}
	})
	inNest(t, subagenttest.Options{}, delegate.Config{Background: true, MaxDepth: ptr(int64(0))}, func(t *testing.T, n *nest) {
		r := execute(t.Context(), n.System, n.parent, "subagent", task)
		if r.Code != "LIMIT_REACHED" || resultText(r) != "Error: you work at delegation depth 0 and the limit is 0: no further delegation is possible, do this work yourself" {
			t.Errorf("TOOL-44: result = %s %q", r.Code, resultText(r))
		}
	})
}

// TOOL-35: a start that is cancelled leaves neither an agent nor a stored session; its
// sibling is not touched.
func TestCancelledStart_TOOL35(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		p := &slow{Provider: spawn.New("slow")}
		n.Register(t, p)
		mount(t, n.System, delegate.Config{Provider: "slow", ToolName: "slow", Continuable: true, Background: true})
		ctx, cancel := context.WithCancelCause(t.Context())
		cancelled, sibling := make(chan tool.Result, 1), make(chan tool.Result, 1)
		p.hold = make(chan struct{})
		go func() { cancelled <- execute(ctx, n.System, n.parent, "slow", `{"description":"one","prompt":"p"}`) }()
		go func() {
			sibling <- execute(t.Context(), n.System, n.parent, "slow", `{"description":"two","prompt":"p"}`)
		}()
		synctest.Wait()
		cancel(errors.New("enough"))
		r := <-cancelled
		if r.Code != tool.CodeAborted {
			t.Errorf("the cancelled call: %s %q", r.Code, resultText(r))
		}
		close(p.hold)
		if r := <-sibling; r.IsError {
			t.Errorf("the sibling: %q", resultText(r))
		}
		synctest.Wait()
		rows := n.rows()
		if len(rows) != 1 || *rows[0].Label != "two" {
			t.Errorf("rows: %+v", rows)
		}
	})
}

// slow holds preparations back.
type slow struct {
	*spawn.Provider
	hold chan struct{}
}

func (p *slow) PrepareContinuable(ctx context.Context, prep subagent.Preparation) (*session.Seed, error) {
	select {
	case <-p.hold:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return p.Provider.PrepareContinuable(ctx, prep)
}

// TOOL-45 (P41), TOOL-14…16: a call that waits answers with the child's id and what its
// epoch came to, and takes the settlement: the parent hears nothing more of it, not even
// in the next process. The child can be continued all the same.
func TestWaits_TOOL45(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer scripted.Step
		want   string
	}{
		{"completed", scripted.Step{scripted.SayLiteral("mapped")}, ": subagent #one has finished:\nmapped"},
		{"without a word", scripted.Step{scripted.Empty()}, ": subagent #one has finished without saying anything."},
		{"failed", scripted.Step{scripted.SayLiteral("half"), scripted.Fail(llm.CodeAuth, "no")}, "TOOL_FAILED: Error: subagent #one failed\nDiagnostic: AUTH: no\nPartial output:\nhalf"},
		{"truncated", scripted.Step{scripted.SayLiteral("half"), scripted.MaxTokens()}, "TOOL_FAILED: Error: subagent #one hit its token limit before it was done\nPartial output:\nhalf"},
		{"declined", scripted.Step{scripted.Refuse("no")}, "TOOL_FAILED: Error: subagent #one declined the task\nPartial output:\nno"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := memory.New()
			inNest(t, subagenttest.Options{Store: store}, background, func(t *testing.T, n *nest) {
				n.Answer("go", scripted.Step{awaits("one", "map it")}, scripted.Step{scripted.SayLiteral("good")})
				n.Answer("map it", c.answer)
				n.Answer("again", scripted.Step{awaits("two", "more")}, scripted.Step{scripted.SayLiteral("good")})
				n.tell("go")
				code, text, _ := strings.Cut(c.want, ":")
				want := []string{"user: go", "result " + code + `{"settled":"settled:#one:1"}:` + text, "says: good"}
				if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
					t.Errorf("the parent's log:\n%s", d)
				}
				if _, live := n.Agents.Get(n.child("one")); live {
					t.Error("the child did not settle")
				}
				// Another process over the same store: what the log has taken is not told again.
				if err := n.parent.Dispose(t.Context(), true); err != nil {
					t.Fatal(err)
				}
				next := newNest(t, subagenttest.Options{Store: store}, background)
				next.Answer("again", scripted.Step{awaits("two", "more")}, scripted.Step{scripted.SayLiteral("good")})
				h, err := next.Agents.Resume(t.Context(), agent.Resume{ID: n.parent.ID(), Options: subagenttest.ParentOptions()})
				if err != nil {
					t.Fatal(err)
				}
				next.parent = h.Agent()
				if r, err := next.Host.Recover(t.Context(), next.parent); err != nil || r.Notices != 0 || len(r.Reopened) != 0 {
					t.Errorf("recover: %+v, %v", r, err)
				}
				next.tell("again")
				want = append(want, "user: again", `result {"settled":"settled:#two:1"}: subagent #two has finished:`+"\nnoted", "says: good")
				if d := cmp.Diff(want, next.log(next.parent.ID())); d != "" {
					t.Errorf("the parent's log in the next process:\n%s", d)
				}
			})
		})
	}
}

// TOOL-45: several calls of one message wait at the same time; a tool without Background
// waits without being asked to.
func TestWaitsTogether_TOOL45(t *testing.T) {
	inNest(t, subagenttest.Options{}, delegate.Config{}, func(t *testing.T, n *nest) {
		hold := make(chan struct{})
		n.Answer("go", scripted.Step{starts("one", "slow"), starts("two", "fast")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("slow", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("1")})
		n.Answer("fast", scripted.Step{scripted.SayLiteral("2")})
		n.tell("go")
		if n.parent.Status() != agent.Running {
			t.Error("the parent does not wait")
		}
		close(hold)
		synctest.Wait()
		want := []string{
			"user: go", `result {"settled":"settled:#one:1"}: subagent #one has finished:` + "\n1",
			`result {"settled":"settled:#two:1"}: subagent #two has finished:` + "\n2", "says: good",
		}
		if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
	})
}

// TOOL-45: the end of the call ends the wait alone. The child goes on, and its outcome comes
// as a notice when it settles.
func TestCancelledWait_TOOL45(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		hold := make(chan struct{})
		n.Answer("go", scripted.Step{awaits("one", "map it")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("map it", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("mapped")})
		n.tell("go")
		if err := n.parent.Cancel(session.Cause{Kind: session.CauseUser}, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{
			"user: go",
			`result ABORTED{"kind":"continuable","subagentId":"#one"}: Error: the call was cancelled while it waited. Subagent #one was started and goes on, ` +
				"and a message will tell you what it came to; do not start the work again.",
			"end: aborted",
		}
		if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
		if a, live := n.Agents.Get(n.child("one")); !live || a.Status() != agent.Running {
			t.Error("the child does not go on")
		}
		close(hold)
		synctest.Wait()
		want = append(want, "subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:mapped", "says: good")
		if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
	})
}

// TOOL-45: an outcome that does not reach the model with the result of the call comes as a
// notice behind it: a hook replaced or blocked the result, or stood in for the tool.
func TestReplacedResult_TOOL45(t *testing.T) {
	post := func(d tool.PostDecision) func(*tool.Scope) {
		return func(s *tool.Scope) {
			s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision { return d })
		}
	}
	around := func(value any, err error) func(*tool.Scope) {
		return func(s *tool.Scope) {
			s.AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
				_, _ = next(ctx)
				return value, err
			})
		}
	}
	for _, c := range []struct {
		name   string
		hook   func(*tool.Scope)
		result string
	}{
		{"blocked", post(tool.Block("secret")), "result DENIED: Error: secret"},
		{"another text", post(tool.PostDecision{Content: say("withheld")}), "result : withheld"},
		{"another value", post(tool.PostDecision{Value: "withheld", HasValue: true}), "result : withheld"},
		{"wrapped", around("withheld", nil), "result : withheld"},
		{"wrapped with a failure", around(nil, errors.New("withheld")), "result TOOL_FAILED: Error: withheld"},
		{"a panic", func(s *tool.Scope) {
			s.AddPostExecute(func(context.Context, *tool.Call, tool.Result) tool.PostDecision { panic("oops") })
		}, "result INTERNAL: Error: a check of this result failed: post-execute hook panicked: oops"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
				c.hook(n.parent.Tools())
				n.Answer("go", scripted.Step{awaits("one", "map it")}, scripted.Step{scripted.SayLiteral("hm")})
				n.Answer("map it", scripted.Step{scripted.SayLiteral("mapped")})
				n.tell("go")
				want := []string{"user: go", c.result, "says: hm", "subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:mapped", "says: hm"}
				if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
					t.Errorf("the parent's log:\n%s", d)
				}
			})
		})
	}
}

// TOOL-45, core T17: the call is cancelled when the child has settled already: what the
// model gets to read is the cancellation, so the notice is owed.
func TestDisplacedResult_TOOL45(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		n.parent.Tools().AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
			v, err := next(ctx)
			if cerr := n.parent.Cancel(session.Cause{Kind: session.CauseUser}, false); cerr != nil {
				t.Error(cerr)
			}
			return v, err
		})
		n.Answer("go", scripted.Step{awaits("one", "map it")}, scripted.Step{scripted.SayLiteral("hm")})
		n.Answer("map it", scripted.Step{scripted.SayLiteral("mapped")})
		n.tell("go")
		want := []string{
			"user: go", "result ABORTED: Error: the call was cancelled while it ran", "end: aborted",
			"subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:mapped", "says: hm",
		}
		if d := cmp.Diff(want, n.log(n.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
	})
}

// TOOL-45: the process ends while a call waits. The next one runs the child on, and its
// outcome comes as a notice.
func TestWaitAtTheEnd_TOOL45(t *testing.T) {
	store := memory.New()
	inNest(t, subagenttest.Options{Store: store}, background, func(t *testing.T, n *nest) {
		n.Answer("go", scripted.Step{awaits("one", "map it")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("map it", scripted.Step{scripted.Hang()})
		n.tell("go")
		id := n.child("one")
		if _, err := n.Host.Send(t.Context(), n.parent.ID(), id, say("and more")); err != nil {
			t.Fatal(err)
		}
		if err := n.Service.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := n.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		next := newNest(t, subagenttest.Options{Store: store}, background)
		h, err := next.Agents.Resume(t.Context(), agent.Resume{ID: n.parent.ID(), Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		next.parent = h.Agent()
		if r, err := next.Host.Recover(t.Context(), next.parent); err != nil || len(r.Reopened) != 1 {
			t.Fatalf("recover: %+v, %v", r, err)
		}
		synctest.Wait()
		if d := cmp.Diff([]string{"user: map it", "end: aborted", "user: and more", "says: noted", "settled: completed"}, next.log(id)); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
		want := []string{
			"user: go",
			`result DRAINING{"kind":"continuable","subagentId":"#one"}: Error: subagent #one was started, and the program is ending before it is done. ` +
				"It goes on when this conversation is resumed, and a message will tell you what it came to; do not start the work again.",
			"says: good",
			"subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:noted", "says: noted",
		}
		if d := cmp.Diff(want, next.log(next.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
	})
}

// TOOL-45: the process is killed when the child has settled and the result of the call is not
// stored. The next one tells the outcome by a notice, once.
func TestCrashBeforeResult_TOOL45(t *testing.T) {
	store := memory.New()
	inNest(t, subagenttest.Options{Store: store}, background, func(t *testing.T, n *nest) {
		gate := make(chan struct{})
		n.parent.Tools().AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
			v, err := next(ctx)
			<-gate
			return v, err
		})
		n.Answer("go", scripted.Step{awaits("one", "map it")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("map it", scripted.Step{scripted.SayLiteral("mapped")})
		n.tell("go")
		want := []string{"user: map it", "says: mapped", "settled: completed"}
		if d := cmp.Diff(want, n.log(n.child("one"))); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
		n.Crashed()
		store.Kill()
		defer close(gate) // what the dead process still does reaches nobody
		for i, notices := range []int{1, 0} {
			next := newNest(t, subagenttest.Options{Store: store.Backend().Open()}, background)
			h, err := next.Agents.Resume(t.Context(), agent.Resume{ID: n.parent.ID(), Options: subagenttest.ParentOptions()})
			if err != nil {
				t.Fatal(err)
			}
			next.parent = h.Agent()
			if r, err := next.Host.Recover(t.Context(), next.parent); err != nil || r.Notices != notices || len(r.Reopened) != 0 {
				t.Errorf("process %d: %+v, %v", i, r, err)
			}
			synctest.Wait()
			got := next.log(next.parent.ID())
			if len(got) < 4 || got[0] != "user: go" || strings.Contains(got[1], "mapped") {
				t.Errorf("process %d: the parent's log: %q", i, got)
			}
			if d := cmp.Diff([]string{"end: interrupted", "subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:mapped", "says: noted"}, got[2:]); d != "" {
				t.Errorf("process %d: the parent's log:\n%s", i, d)
			}
			if err := next.parent.Dispose(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
	})
}
