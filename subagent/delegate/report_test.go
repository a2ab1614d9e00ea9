package delegate_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// reports lets the children of a nest report.
func (n *nest) reports(how subagent.Delivery) (remove func() error) {
	n.t.Helper()
	setup, err := delegate.Report(n.Service, how)
	if err != nil {
		n.t.Fatal(err)
	}
	return n.Service.AddSetup(setup)
}

// reporting is a call of the tool.
func reporting(text string) scripted.Part {
	return scripted.CallLiteral("report", `{"output":"`+text+`"}`)
}

// sees returns the tools of the last request that a prompt led to, and its sections.
func (n *nest) sees(prompt string) (tools []string, sections []string) {
	n.t.Helper()
	var last *llm.Request
	for _, c := range n.Adapter.Calls() {
		if scripted.PromptText(c.Request) == prompt {
			last = c.Request
		}
	}
	if last == nil {
		n.t.Fatalf("no request has the prompt %q", prompt)
	}
	for _, spec := range last.Tools {
		tools = append(tools, spec.Name)
	}
	return tools, strings.Split(last.System, "\n\n")
}

const duty = "Before you finish, call `report` once"

func obliged(sections []string) bool {
	return slices.ContainsFunc(sections, func(s string) bool { return strings.Contains(s, duty) })
}

// RT-01, RT-04…07, SETUP-03, SETUP-04: the tool and the section are there for continuable
// children alone, new and resumed, whatever they may inherit, at the section's place. A
// root and a one-shot child have neither, and cannot call it.
func TestReportScope_RT01(t *testing.T) {
	inNest(t, subagenttest.Options{}, delegate.Config{Background: true, ToolFilter: &session.ToolFilter{Allow: []string{}}}, func(t *testing.T, n *nest) {
		for _, s := range []prompt.Section{{Name: "before", Order: 116.9, Text: "before"}, {Name: "behind", Order: 117.1, Text: "behind"}} {
			if _, err := n.Prompts.Root().Add(s); err != nil {
				t.Fatal(err)
			}
		}
		n.reports("")
		mount(t, n.System, delegate.Config{Provider: "spawn", ToolName: "once"})
		n.Answer("go", scripted.Step{starts("one", "filtered"), scripted.CallLiteral("once", `{"description":"shot","prompt":"a shot"}`), reporting("x")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("a shot", scripted.Step{reporting("x")}, scripted.Step{scripted.SayLiteral("good")})
		n.Answer("more", scripted.Step{n.calls(delegate.SendTool, `{"subagent_id":"#one","message":"again"}`)}, scripted.Step{scripted.SayLiteral("good")})
		n.tell("go")
		n.tell("more")
		for _, prompt := range []string{"filtered", "again"} {
			tools, sections := n.sees(prompt)
			if !slices.Equal(tools, []string{"report"}) {
				t.Errorf("RT-04: %q: the child's tools are %q", prompt, tools)
			}
			i := slices.Index(sections, "before")
			if i < 0 || !strings.Contains(sections[i+1], duty) || sections[i+2] != "behind" {
				t.Errorf("RT-06: %q: the child's sections are %q", prompt, sections)
			}
		}
		for _, prompt := range []string{"go", "a shot"} {
			if tools, sections := n.sees(prompt); slices.Contains(tools, "report") || obliged(sections) {
				t.Errorf("RT-07: %q: %q %q", prompt, tools, sections)
			}
		}
		if texts, codes := results(n.parent.Session()); codes[2] != tool.CodeUnknownTool {
			t.Errorf("RT-01: the parent reports: %q %q", codes, texts)
		}
	})
}

// RT-02, RT-03, RT-08, RT-09, RT-13, REP-04…08, REP-11, P14, P16: a report reaches the parent
// as the deployment has it, before the settlement, and the model has no say in that. The
// default is the nearest step. Not reporting is allowed.
func TestReport_RT03(t *testing.T) {
	const (
		one     = "subagent-report: Report of subagent \"one\" (#one), which goes on working:found it"
		two     = "subagent-report: Report of subagent \"one\" (#one), which goes on working:and this"
		settled = "subagent-settled: Subagent \"one\" (#one) has finished.\nIts closing message:done"
	)
	for how, want := range map[subagent.Delivery][]string{
		"":                       {one, "says: ok", two, "says: ok", settled, "says: ok"},
		subagent.DeliverNextStep: {one, "says: ok", two, "says: ok", settled, "says: ok"},
		subagent.DeliverWakeup:   {one, "says: ok", two, "says: ok", settled, "says: ok"},
		subagent.DeliverQuiet:    {one, two, settled, "says: ok"},
	} {
		t.Run(string(how), func(t *testing.T) {
			inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
				n.reports(how)
				n.Answer("go", scripted.Step{starts("one", "search")}, scripted.Step{scripted.SayLiteral("ok")})
				n.Answer("search", scripted.Step{late(), reporting("found it")}, scripted.Step{late(), reporting("and this")}, scripted.Step{late(), scripted.SayLiteral("done")})
				n.Answer("dumb", scripted.Step{starts("two", "say nothing")}, scripted.Step{scripted.SayLiteral("ok")})
				n.tell("go")
				got := n.log(n.parent.ID())
				if d := cmp.Diff(want, got[3:]); d != "" {
					t.Errorf("the parent's log:\n%s", d)
				}
				ack := `result {"messageId":"ID"}: reported as message ID; go on, or finish with your final answer`
				if d := cmp.Diff([]string{"user: search", ack, ack, "says: done", "settled: completed"}, n.log(n.child("one"))); d != "" {
					t.Errorf("the child's log:\n%s", d)
				}
				n.tell("dumb")
				if d := cmp.Diff([]string{"user: say nothing", "says: noted", "settled: completed"}, n.log(n.child("two"))); d != "" {
					t.Errorf("RT-13: the log of one that does not report:\n%s", d)
				}
			})
		})
	}
}

// RT-05, CONT-22: a child reports where there is no other tool of the seam at all.
func TestReportAlone_RT05(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		setup, err := delegate.Report(s.Service, subagent.DeliverQuiet)
		if err != nil {
			t.Fatal(err)
		}
		s.Service.AddSetup(setup)
		s.Answer("search", scripted.Step{reporting("found it")}, scripted.Step{scripted.SayLiteral("done")})
		parent := s.Parent(t)
		if _, err := s.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: "one", Prompt: say("search"), Parent: parent}); err != nil {
			t.Fatal(err)
		}
		s.Otherwise(scripted.Step{scripted.SayLiteral("ok")})
		synctest.Wait()
		history, _ := parent.Session().History()
		if got := message.JoinText(history[0].Content); !strings.HasSuffix(got, "which goes on working:found it") {
			t.Errorf("the parent reads %q", got)
		}
	})
}

// REP-12, P14: a busy parent reads the reports before the settlement, in each mode.
func TestReportBeforeSettlement_P14(t *testing.T) {
	for _, how := range []subagent.Delivery{subagent.DeliverNextStep, subagent.DeliverWakeup, subagent.DeliverQuiet} {
		t.Run(string(how), func(t *testing.T) {
			inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
				n.reports(how)
				n.Answer("go", scripted.Step{starts("one", "search")}, scripted.Step{late(), scripted.SayLiteral("ok")})
				n.Answer("search", scripted.Step{reporting("found it")}, scripted.Step{scripted.SayLiteral("done")})
				n.tell("go")
				var got []string
				for _, line := range n.log(n.parent.ID()) {
					if kind, _, _ := strings.Cut(line, ":"); strings.HasPrefix(kind, "subagent-") {
						got = append(got, kind)
					}
				}
				if !slices.Equal(got, []string{"subagent-report", "subagent-settled"}) {
					t.Errorf("the parent reads %q", got)
				}
			})
		})
	}
}

// RT-09, RT-15, RT-02, REP-03, REP-15: what is refused: a delivery that is none at the load, a report
// that says nothing, and one that nobody can get.
func TestReportRefused_RT15(t *testing.T) {
	store := memory.New()
	inNest(t, subagenttest.Options{Store: store}, background, func(t *testing.T, n *nest) {
		if _, err := delegate.Report(n.Service, "steer"); err == nil || !strings.Contains(err.Error(), `"steer"`) {
			t.Errorf("RT-09: %v", err)
		}
		n.reports("")
		n.Answer("go", scripted.Step{starts("one", "search")}, scripted.Step{scripted.SayLiteral("ok")})
		n.Answer("search", scripted.Step{reporting(""), scripted.CallLiteral("report", `{"output":"x","to":"root"}`)}, scripted.Step{scripted.SayLiteral("done")})
		n.Answer("orphan", scripted.Step{reporting("hello")}, scripted.Step{scripted.SayLiteral("done")})
		n.tell("go")
		one := n.child("one")
		got := n.log(one)
		if got[1] != "result INVALID_ARGS: Error: the report is blank: say what the agent that started you shall know" || !strings.HasPrefix(got[2], "result INVALID_ARGS: ") {
			t.Errorf("RT-15, RT-02: %q", got)
		}
		if err := n.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Host.Send(t.Context(), n.parent.ID(), one, say("orphan")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := "result PARENT_UNAVAILABLE: Error: the report was not delivered: the parent of subagent #one is not live\nNobody got the report: put it into your final answer instead."
		if got := n.log(one); got[len(got)-3] != want {
			t.Errorf("REP-03: %q", got)
		}
	})
}

// RT-10, RT-11: the tool and the section come and go together.
func TestReportInstallation_RT10(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		setup, err := delegate.Report(n.Service, "")
		if err != nil {
			t.Fatal(err)
		}
		free := func(what string, a *agent.Agent) {
			t.Helper()
			remove, err := a.Prompts().Add(prompt.Section{Name: "tool:report"})
			if err != nil {
				t.Errorf("%s: the section is there: %v", what, err)
				return
			}
			remove()
		}
		taken := n.Parent(t)
		own := delegate.Control(n.Service, nil)[0]
		own.Name = "report"
		if _, err := taken.Tools().Register(own); err != nil {
			t.Fatal(err)
		}
		if _, err := setup(t.Context(), taken); err == nil || !strings.Contains(err.Error(), "taken") {
			t.Errorf("RT-10: %v", err)
		}
		free("RT-10", taken)
		a := n.Parent(t)
		release, err := setup(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if a.Tools().Toolset().Lookup("report") == nil {
			t.Error("the tool is not there")
		}
		if err := release(); err != nil || a.Tools().Toolset().Lookup("report") != nil {
			t.Errorf("RT-11: %v", err)
		}
		free("RT-11", a)

		// A child in whose scope the name is taken does not come to be.
		n.Service.AddSetup(func(_ context.Context, child *agent.Agent) (func() error, error) {
			unregister, err := child.Tools().Register(own)
			return func() error { unregister(); return nil }, err
		})
		remove := n.Service.AddSetup(setup)
		if r := execute(t.Context(), n.System, n.parent, "subagent", task); !r.IsError || !strings.Contains(resultText(r), "report tool: register tool") {
			t.Errorf("RT-10: %s %q", r.Code, resultText(r))
		}
		if rows := n.rows(); len(rows) != 0 || len(n.Agents.List()) != 3 {
			t.Errorf("RT-10: rows %+v", rows)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
}

// RT-12, SETUP-07, SETUP-09: unloading takes tool and section from children that work, and
// loading again gives them to the next alone.
func TestReportUnloaded_RT12(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		remove := n.reports("")
		n.Answer("go", scripted.Step{starts("one", "search")}, scripted.Step{scripted.SayLiteral("ok")})
		gate := make(chan struct{})
		n.Answer("search", scripted.Step{subagenttest.Hold(gate), reporting("early")}, scripted.Step{subagenttest.Hold(gate), scripted.SayLiteral("done")})
		n.tell("go")
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		a, _ := n.Agents.Get(n.child("one"))
		if a.Tools().Toolset().Lookup("report") != nil {
			t.Error("RT-12: the child still has the tool")
		}
		n.reports("")
		close(gate)
		synctest.Wait()
		tools, sections := n.sees("search")
		if slices.Contains(tools, "report") || obliged(sections) {
			t.Errorf("RT-12: the child still sees them: %q %q", tools, sections)
		}
		if got := n.log(n.child("one")); got[1] != `result UNKNOWN_TOOL: Error: there is no tool named "report"` {
			t.Errorf("RT-12: %q", got)
		}
		n.Answer("next", scripted.Step{starts("two", "look")}, scripted.Step{scripted.SayLiteral("ok")})
		n.tell("next")
		if tools, sections := n.sees("look"); !slices.Contains(tools, "report") || !obliged(sections) {
			t.Errorf("SETUP-09: the next child: %q %q", tools, sections)
		}
	})
}

// SETUP-10, TOOL-35: the tool is unloaded while a child is in the making: that child does
// not come to be, and the model is told what to do.
func TestReportRevoked_SETUP10(t *testing.T) {
	inNest(t, subagenttest.Options{}, background, func(t *testing.T, n *nest) {
		remove := n.reports("")
		n.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) { return nil, remove() })
		r := execute(t.Context(), n.System, n.parent, "subagent", task)
		if r.Code != "ACTIVATION_SETUP_REVOKED" || !strings.HasSuffix(resultText(r), "\nNothing was started: call again.") {
			t.Errorf("result = %s %q", r.Code, resultText(r))
		}
		if rows := n.rows(); len(rows) != 0 {
			t.Errorf("rows: %+v", rows)
		}
	})
}
