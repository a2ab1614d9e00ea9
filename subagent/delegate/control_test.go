package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// MSG-01, MSG-02, MSG-05, IA-01, IA-06, LA-01, LA-03, LA-12, INT-07: what the model gets to
// know. The tools need no delegation tool, nor each other, and no interrupter is no tool.
func TestControlDefinitions_MSG05(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		if defs := delegate.Control(s.Service, nil); len(defs) != 1 || defs[0].Name != "send_message" {
			t.Errorf("without an interrupter: %+v", defs)
		}
		defs := append(delegate.Control(s.Service, subagent.NewInterrupter(s.Service)), delegate.List(s.Service)...)
		for i, want := range []struct {
			name       string
			parameters string
			required   int
			says       []string
		}{
			{"send_message", "message subagent_id", 2, []string{"next turn", "does not redirect", "No answer is returned", "was not delivered", "comes to you by itself"}},
			{"interrupt_agent", "agent_id", 1, []string{"Only the open turn", "stay parked", "not affected", "before the turn has actually stopped"}},
			{"list_agents", "after scope", 0, []string{"`ready`", "resumes it", "do not call it again and again", "last line says how to get the next"}},
		} {
			d := defs[i]
			var schema struct {
				Properties map[string]struct{ Type string } `json:"properties"`
				Required   []string                         `json:"required"`
			}
			if err := json.Unmarshal(d.Parameters, &schema); err != nil {
				t.Fatal(err)
			}
			for _, p := range strings.Fields(want.parameters) {
				if schema.Properties[p].Type != "string" {
					t.Errorf("%s: no parameter %s", want.name, p)
				}
			}
			if d.Name != want.name || len(schema.Properties) != len(strings.Fields(want.parameters)) || len(schema.Required) != want.required {
				t.Errorf("%s %s", d.Name, d.Parameters)
			}
			for _, word := range want.says {
				if !strings.Contains(d.Description, word) {
					t.Errorf("%s does not say %q:\n%s", d.Name, word, d.Description)
				}
			}
			if strings.Contains(d.Description, "job") {
				t.Errorf("%s speaks of jobs", d.Name)
			}
			unregister, err := s.Tools.Root().Register(d)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { // MSG-09, LA-13
				unregister()
				if s.Tools.Root().Toolset().Lookup(d.Name) != nil {
					t.Errorf("%s is still there", d.Name)
				}
			}()
		}
		if got := visible(s); got != "interrupt_agent list_agents send_message" {
			t.Errorf("tools = %q", got)
		}
		for i, line := range []string{"message to x y", "interrupt x", "subagents descendants"} {
			args := []string{`{"subagent_id":"x\n y","message":"m"}`, `{"agent_id":"x"}`, `{"scope":"descendants"}`}[i]
			if got := defs[i].Describe([]byte(args)); got != line {
				t.Errorf("described as %q, want %q", got, line)
			}
		}
	})
}

// MSG-03, MSG-06, AUTH-03, AUTH-07: only the direct parent's messages reach a child.
func TestSendMessageAuthority_MSG06(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		n.Answer("go", scripted.Step{starts("one", "below")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("below", scripted.Step{starts("two", "deep")}, scripted.Step{scripted.SayLiteral("good")})
		n.tell("go")
		args := `{"subagent_id":"` + string(n.child("two")) + `","message":"psst"}`
		for name, caller := range map[string]*agent.Agent{"a stranger": n.Parent(t), "an ancestor": n.parent} {
			r := execute(t.Context(), n.System, caller, "send_message", args)
			if r.Code != "UNAUTHORIZED" || !strings.HasPrefix(resultText(r), "Error: the message was not delivered: ") || !strings.HasSuffix(resultText(r), "list_agents shows them.") {
				t.Errorf("%s: %s %q", name, r.Code, resultText(r))
			}
		}
		if d := cmp.Diff([]string{"user: deep", "says: noted", "settled: completed"}, n.log(n.child("two"))); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
	})
}

// MSG-08, LA-10: the end of the call reaches the service.
func TestControlCancelled_MSG08(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		n.Answer("go", scripted.Step{starts("one", "work")}, scripted.Step{scripted.SayLiteral("good")})
		n.tell("go")
		enough := errors.New("enough")
		n.Tools.Root().AddExecute(func(ctx context.Context, _ *tool.Call, next func(context.Context) (any, error)) (any, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(enough)
			return next(ctx)
		})
		// The wrapper ends what the body gets, so the body is not even begun.
		for name, args := range map[string]string{"send_message": `{"subagent_id":"` + string(n.child("one")) + `","message":"m"}`, "list_agents": `{}`} {
			if r := execute(t.Context(), n.System, n.parent, name, args); r.Code != tool.CodeAbortedBeforeDispatch {
				t.Errorf("%s: %s %q", name, r.Code, resultText(r))
			}
		}
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(enough)
		for name, args := range map[string]string{"send_message": `{"subagent_id":"` + string(n.child("one")) + `","message":"m"}`, "list_agents": `{}`} {
			d := n.Tools.Root().Toolset().Lookup(name)
			_, err := d.Execute(ended, &tool.Call{Name: name, Args: []byte(args), Caller: n.parent})
			if !errors.Is(err, enough) {
				t.Errorf("%s: %v", name, err)
			}
		}
		synctest.Wait()
		if got := n.log(n.child("one")); len(got) != 3 {
			t.Errorf("the child's log: %q", got)
		}
	})
}

// IA-02, IA-03, IA-06, INT-01…06, INT-09, P43: an interrupt ends the open turn with the cause
// parent, also of a grandchild; what waits stays, and the next message runs it first.
func TestInterruptAgent_IA02(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		hang := scripted.Step{scripted.Hang()}
		n.Answer("go", scripted.Step{starts("one", "below")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("below", scripted.Step{starts("two", "deep")}, hang)
		n.Answer("deep", hang)
		send := func(text string) scripted.Part {
			return n.calls(delegate.SendTool, `{"subagent_id":"#one","message":"`+text+`"}`)
		}
		n.Answer("send", scripted.Step{send("first"), send("second")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("stop", scripted.Step{n.calls(delegate.InterruptTool, `{"agent_id":"#one"}`)}, scripted.Step{scripted.SayLiteral("stopped")})
		n.Answer("stop it too", scripted.Step{n.calls(delegate.InterruptTool, `{"agent_id":"#two"}`)}, scripted.Step{scripted.SayLiteral("stopped")})
		n.Answer("wake", scripted.Step{send("third")}, scripted.Step{scripted.SayLiteral("good")})
		n.tell("go")
		n.tell("send")
		n.tell("stop")
		one, two := n.child("one"), n.child("two")
		if a, live := n.Agents.Get(two); !live || a.Status() != agent.Running {
			t.Error("INT-06: the interrupted child's own child does not go on")
		}
		if a, live := n.Agents.Get(one); !live || a.Status() != agent.Idle {
			t.Error("INT-04: the interrupted child is not there, idle")
		}
		s, _ := n.Agents.Sessions().Get(one)
		end, _ := s.LastEnd()
		if end.Kind != session.EndAborted || end.Cause.Kind != session.CauseParent {
			t.Errorf("the turn ended as %+v", end)
		}
		if got := n.log(n.parent.ID()); got[len(got)-2] != `result {"agentId":"#one"}: an interrupt of subagent #one was requested; if it is in a turn, that turn ends soon` {
			t.Errorf("IA-03: the parent's log: %q", got)
		}
		n.tell("wake")
		got := n.log(one)
		want := []string{"end: aborted", "coordinator: first", "says: noted", "coordinator: second", "says: noted", "coordinator: third", "says: noted"}
		if d := cmp.Diff(want, got[len(got)-len(want):]); d != "" {
			t.Errorf("INT-05: the child's log:\n%s", d)
		}
		n.tell("stop it too")
		if d := cmp.Diff([]string{"user: deep", "end: aborted", "settled: aborted"}, n.log(two)); d != "" {
			t.Errorf("INT-09: the grandchild's log:\n%s", d)
		}
	})
}

// IA-03, IA-04, INT-11…13: who may not, and targets that are not there.
func TestInterruptRefused_IA04(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		n.Answer("go", scripted.Step{starts("one", "hang"), starts("two", "hang"), starts("done", "be quick")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("hang", scripted.Step{scripted.Hang()})
		n.tell("go")
		one, _ := n.Agents.Get(n.child("one"))
		two, _ := n.Agents.Get(n.child("two"))
		for _, c := range []struct {
			name   string
			caller *agent.Agent
			target session.ID
			code   string
		}{
			{"itself", one, one.ID(), "UNAUTHORIZED"},
			{"a sibling", two, one.ID(), "UNAUTHORIZED"},
			{"its parent", one, n.parent.ID(), ""}, // no continuable child: nothing is there to stop
			{"a stranger", n.Parent(t), one.ID(), "UNAUTHORIZED"},
			{"unknown", n.parent, "nobody", ""},
			{"settled", n.parent, n.child("done"), ""},
		} {
			r := execute(t.Context(), n.System, c.caller, "interrupt_agent", `{"agent_id":"`+string(c.target)+`"}`)
			switch {
			case r.Code != c.code:
				t.Errorf("%s: %s %q", c.name, r.Code, resultText(r))
			case c.code == "" && !strings.Contains(resultText(r), "was requested"):
				t.Errorf("IA-03 %s: %q", c.name, resultText(r))
			}
		}
		synctest.Wait()
		if one.Status() != agent.Running || two.Status() != agent.Running {
			t.Error("somebody was interrupted")
		}
		if _, live := n.Agents.Get(n.child("done")); live {
			t.Error("INT-16: an interrupt resumed a child")
		}
	})
}

// LA-02, LA-04 (P26), LA-05…09, P25: who is listed, what each is doing, and how deep.
func TestListAgents_LA02(t *testing.T) {
	inNest(t, subagenttest.Options{Store: memory.New()}, background, func(t *testing.T, n *nest) {
		list := func(args string) string {
			t.Helper()
			r := execute(t.Context(), n.System, n.parent, "list_agents", args)
			if r.IsError {
				t.Fatal(resultText(r))
			}
			return n.plain(resultText(r))
		}
		if got := list(`{}`); got != "(no subagents)" {
			t.Errorf("LA-07: %q", got)
		}
		mount(t, n.System, delegate.Config{Provider: "spawn", ToolName: "once"})
		hang := scripted.Step{scripted.Hang()}
		// One after another, for the order of creation: a run in the foreground, a child that
		// waits for its own, and one that is done.
		n.Answer("1", scripted.Step{scripted.CallLiteral("once", `{"description":"shot","prompt":"delegate"}`)}, scripted.Step{scripted.SayLiteral("ok")})
		n.Answer("delegate", scripted.Step{starts("of a shot", "below a shot")}, scripted.Step{scripted.SayLiteral("ok")})
		n.Answer("2", scripted.Step{starts("wide\n label", "wait for mine")}, scripted.Step{scripted.SayLiteral("ok")})
		n.Answer("wait for mine", scripted.Step{starts("leaf", "hang")}, scripted.Step{scripted.SayLiteral("ok")})
		n.Answer("hang", hang)
		n.Answer("3", scripted.Step{starts("done", "be quick")}, scripted.Step{scripted.SayLiteral("ok")})
		n.Answer("4", scripted.Step{starts("busy", "hang")}, scripted.Step{scripted.SayLiteral("ok")})
		for _, prompt := range []string{"1", "2", "3", "4"} {
			n.tell(prompt)
		}
		lost := n.NewAgent(t, agent.Create{Options: subagenttest.ParentOptions(), Session: session.New{Origin: session.OriginSubagent, ParentSession: n.parent.ID(), Root: n.parent.ID(), DelegationDepth: 1}})
		if err := lost.Followup(agent.UserText("x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := lost.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		shot := session.ID("")
		for _, row := range n.rows() {
			if row.Mode == session.ModeOneShot {
				shot = row.ID
			}
		}
		wide := string(n.child("wide\n label"))
		name := func(text string) string {
			return strings.NewReplacer("#wide\n label", "WIDE", wide, "WIDE", "#shot", "SHOT", string(shot), "SHOT").Replace(text)
		}
		want := "WIDE [idle] — wide label\n#done [ready] — done\n#busy [running] — busy\nID [diagnostic: corrupt]"
		if got := name(list(`{}`)); got != want {
			t.Errorf("children:\n%s\nwant:\n%s", got, want)
		}
		if got := name(list(`{"scope":"children"}`)); got != want {
			t.Errorf("children:\n%s\nwant:\n%s", got, want)
		}
		want = "#of a shot [ready] parent SHOT depth 2 — of a shot\n" +
			"WIDE [idle] parent PARENT depth 1 — wide label\n#leaf [running] parent WIDE depth 2 — leaf\n" +
			"#done [ready] parent PARENT depth 1 — done\n#busy [running] parent PARENT depth 1 — busy\nID [diagnostic: corrupt] parent PARENT depth 1"
		if got := name(list(`{"scope":"descendants"}`)); got != want {
			t.Errorf("descendants:\n%s\nwant:\n%s", got, want)
		}
	})
}

// LA-08: a long list comes in parts that hold every child once, in order, also where most
// are dropped; each part says how to get the next.
func TestListAgentsPages_LA08(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		mount(t, n.System, delegate.Config{Provider: "spawn", ToolName: "once"})
		for range 60 {
			if r := execute(t.Context(), n.System, n.parent, "once", task); r.IsError {
				t.Fatal(resultText(r))
			}
		}
		for range 120 {
			if r := execute(t.Context(), n.System, n.parent, "subagent", task); r.IsError {
				t.Fatal(resultText(r))
			}
		}
		synctest.Wait()
		var want []string
		for _, row := range n.rows() {
			if row.Mode == session.ModeContinuable {
				want = append(want, string(row.ID))
			}
		}
		for _, scope := range []string{"children", "descendants"} {
			var got []string
			after, parts := "", 0
			for parts == 0 || after != "" {
				args, err := json.Marshal(map[string]string{"scope": scope, "after": after})
				if err != nil {
					t.Fatal(err)
				}
				r := execute(t.Context(), n.System, n.parent, "list_agents", string(args))
				if r.IsError {
					t.Fatal(resultText(r))
				}
				parts++
				after = ""
				before := len(got)
				for _, line := range strings.Split(resultText(r), "\n") {
					if more, ok := strings.CutPrefix(line, "There is more: call list_agents with "); ok {
						if strings.Contains(more, `scope "descendants"`) != (scope == "descendants") {
							t.Errorf("%s: %q", scope, line)
						}
						after = strings.Split(more[strings.Index(more, "after "):], `"`)[1]
						continue
					}
					id, _, _ := strings.Cut(line, " ")
					got = append(got, id)
				}
				if after != "" && len(got)-before < 50 {
					t.Errorf("%s: part %d has only %d lines", scope, parts, len(got)-before)
				}
			}
			if d := cmp.Diff(want, got); d != "" || parts < 2 {
				t.Errorf("%s in %d parts:\n%s", scope, parts, d)
			}
		}
	})
}
