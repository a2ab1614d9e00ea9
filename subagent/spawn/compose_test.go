package spawn_test

import (
	"context"
	"errors"
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
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// COMP-01…03, COMP-05, COMP-06: what the child inherits.
func TestInherits(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("hello", say("hi"))
		for _, c := range []struct {
			name   string
			cwd    string
			parent agent.Options
			over   subagent.Model
			want   agent.Options
			reason subagent.StopReason
		}{
			{"all", "/home/here", agent.Options{Provider: "scripted", Model: "m", MaxTokens: 7, ReasoningEffort: "off"}, subagent.Model{}, agent.Options{Provider: "scripted", Model: "m", MaxTokens: 7, ReasoningEffort: "off"}, "completed"},
			{"overridden field by field", "", agent.Options{Provider: "scripted", Model: "m", MaxTokens: 7, ReasoningEffort: "off"}, subagent.Model{Model: "n", MaxTokens: 9}, agent.Options{Provider: "scripted", Model: "n", MaxTokens: 9}, "completed"},
			{"COMP-06 nothing is invented", "", agent.Options{}, subagent.Model{}, agent.Options{}, "error"},
		} {
			parent := s.NewAgent(t, agent.Create{Session: session.New{Cwd: c.cwd}, Options: c.parent})
			req := subagenttest.Request(parent, "hello")
			req.Model = c.over
			run := start(t, s, req)
			a := child(t, run)
			c.want.Depth = ptr(int64(1))
			if diff := cmp.Diff(c.want, a.Options()); diff != "" {
				t.Errorf("%s: options:\n%s", c.name, diff)
			}
			h := a.Session().Header()
			if h.Cwd != c.cwd || h.ParentSession != parent.ID() || h.ID == parent.ID() || h.Origin != "subagent" || h.SeedLength != 0 || a.Session().Root() != parent.ID() {
				t.Errorf("%s: header = %+v", c.name, h)
			}
			if res := subagenttest.Await(t, run); res.StopReason != c.reason {
				t.Errorf("%s: ended as %q (%s)", c.name, res.StopReason, res.Diagnostic)
			}
		}
	})
}

// requestOf returns the first request that an agent made.
func requestOf(t *testing.T, s *subagenttest.System, id session.ID) *llm.Request {
	t.Helper()
	for _, c := range s.Adapter.Calls() {
		if c.Request.SessionID == string(id) {
			return c.Request
		}
	}
	t.Fatalf("agent %s made no request", id)
	return nil
}

// COMP-08…10, COMP-36: personas.
func TestPersona(t *testing.T) {
	const deployment = "You serve the deployment."
	for _, c := range []struct {
		name    string
		persona *subagent.Persona
		want    string // in the system prompt; "": the turn fails
	}{
		{"COMP-09 omitted", nil, "You are an agent.\n\n" + deployment},
		{"COMP-08 replaced", &subagent.Persona{Text: "You count."}, "You are an agent.\n\nYou count."},
		{"COMP-09 empty", &subagent.Persona{}, "You are an agent."},
		{"COMP-10 interpolated", &subagent.Persona{Text: "You are {{model}}."}, "You are an agent.\n\nYou are model-1."},
		{"COMP-10 an unknown variable", &subagent.Persona{Text: "You are {{nobody}}."}, ""},
		{"COMP-36 literal", &subagent.Persona{Text: "Say {{nobody}}.", Literal: true}, "You are an agent.\n\nSay {{nobody}}."},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{Persona: deployment}, func(t *testing.T, s *subagenttest.System) {
				parent := s.Parent(t)
				s.Answer("hello", say("hi"))
				req := subagenttest.Request(parent, "hello")
				sibling := start(t, s, req)
				req.Persona = c.persona
				run := start(t, s, req)
				res := subagenttest.Await(t, run)
				subagenttest.Await(t, sibling)
				if c.want == "" {
					if res.StopReason != subagent.StopError || !strings.Contains(res.Diagnostic, "nobody") {
						t.Errorf("result = %+v, want an error that names the variable", res)
					}
					return
				}
				if got := requestOf(t, s, run.ID()).System; got != c.want {
					t.Errorf("system prompt = %q, want %q", got, c.want)
				}
				if err := parent.Followup(agent.UserText("hello")); err != nil {
					t.Fatal(err)
				}
				if err := parent.WhenIdle(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, id := range []session.ID{parent.ID(), sibling.ID()} {
					if got := requestOf(t, s, id).System; !strings.Contains(got, deployment) {
						t.Errorf("another agent's system prompt = %q", got)
					}
				}
			})
		})
	}
}

func tools(names ...string) []tool.Definition {
	var defs []tool.Definition
	for _, name := range names {
		defs = append(defs, tool.Definition{
			Name: name, Description: "Does " + name + ".", Parameters: []byte(`{"type":"object"}`),
			Execute: func(context.Context, *tool.Call) (any, error) { return name + " ran", nil },
		})
	}
	return defs
}

func toolNames(req *llm.Request) []string {
	names := []string{}
	for _, t := range req.Tools {
		names = append(names, t.Name)
	}
	return names
}

// COMP-11, COMP-13, COMP-14, DES-16: a filter hides the tools and refuses the calls.
func TestToolFilter(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter *session.ToolFilter
		want   []string
	}{
		{"none", nil, []string{"a", "b", "c"}},
		{"allow", &session.ToolFilter{Allow: []string{"b", "a"}}, []string{"a", "b"}},
		{"deny", &session.ToolFilter{Deny: []string{"b"}}, []string{"a", "c"}},
		{"COMP-14 allow, then deny", &session.ToolFilter{Allow: []string{"a", "b"}, Deny: []string{"b"}}, []string{"a"}},
		{"COMP-13 allow nothing", &session.ToolFilter{Allow: []string{}}, []string{}},
		{"deny nothing", &session.ToolFilter{Deny: []string{}}, []string{"a", "b", "c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{Tools: tools("a", "b", "c")}, func(t *testing.T, s *subagenttest.System) {
				s.Answer("hello", scripted.Step{scripted.Call("a", "{}"), scripted.Call("b", "{}"), scripted.Call("c", "{}")}, say("done"))
				parent := s.Parent(t)
				req := subagenttest.Request(parent, "hello")
				req.ToolFilter = c.filter
				run := start(t, s, req)
				log := child(t, run).Session()
				subagenttest.Await(t, run)
				if diff := cmp.Diff(c.want, toolNames(requestOf(t, s, run.ID()))); diff != "" {
					t.Errorf("tools in the request:\n%s", diff)
				}
				ran := []string{}
				for e := range log.Events(0) {
					r, ok := e.Payload().(*session.ToolResult)
					if !ok {
						continue
					}
					text := message.JoinText(r.Message.Content[0].Content)
					if name, ok := strings.CutSuffix(text, " ran"); ok {
						ran = append(ran, name)
					} else if r.ErrorCode != tool.CodeUnknownTool {
						t.Errorf("COMP-11: a hidden tool answered %q (%s)", text, r.ErrorCode)
					}
				}
				if diff := cmp.Diff(c.want, ran); diff != "" {
					t.Errorf("tools that ran:\n%s", diff)
				}
				if n := len(parent.Tools().Specs()); n != 3 {
					t.Errorf("the parent sees %d tools, want 3", n)
				}
			})
		})
	}
}

// COMP-07, COMP-14, COMP-15: the view is live, own tools are exempt, and nothing of
// the parent's own scope is inherited.
func TestToolScopes(t *testing.T) {
	in(t, subagenttest.Options{Tools: tools("a", "b")}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		if _, err := parent.Tools().Register(tools("of_parent")[0]); err != nil {
			t.Fatal(err)
		}
		if err := parent.Tools().Restrict(tool.Filter{Deny: &[]string{"a"}}); err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		s.Answer("hello", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("hi")})
		names := func(run subagent.Run) []string {
			var names []string
			for _, spec := range child(t, run).Tools().Specs() {
				names = append(names, spec.Name)
			}
			return names
		}
		req := subagenttest.Request(parent, "hello")
		plain := start(t, s, req)
		req.ToolFilter = &session.ToolFilter{Deny: []string{"a"}}
		deny := start(t, s, req)
		req.ToolFilter = &session.ToolFilter{Allow: []string{"a"}}
		allow := start(t, s, req)
		if _, err := child(t, allow).Tools().Register(tools("own")[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Tools.Root().Register(tools("later")[0]); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name string
			run  subagent.Run
			want []string
		}{
			{"COMP-07 without a filter", plain, []string{"a", "b", "later"}},
			{"COMP-14 deny", deny, []string{"b", "later"}},
			{"COMP-14 COMP-15 allow", allow, []string{"a", "own"}},
		} {
			if diff := cmp.Diff(c.want, names(c.run)); diff != "" {
				t.Errorf("%s:\n%s", c.name, diff)
			}
		}
		close(hold)
		for _, run := range []subagent.Run{plain, deny, allow} {
			subagenttest.Await(t, run)
		}
	})
}

// COMP-12, COMP-17: a filter that names what is not there leaves nothing.
func TestCOMP12UnknownName(t *testing.T) {
	store := newSpy()
	in(t, subagenttest.Options{Store: store, Tools: tools("a")}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		s.Agents.AddHooks(agent.Hooks{Created: func(*agent.Agent) error { t.Error("an agent was announced"); return nil }})
		for _, f := range []*session.ToolFilter{{Allow: []string{"a", "nope"}}, {Deny: []string{"nope"}}} {
			req := subagenttest.Request(parent, "hello")
			req.ToolFilter = f
			var unknown *tool.UnknownToolsError
			if _, err := s.Service.Start(t.Context(), "spawn", req); !errors.As(err, &unknown) || !slices.Equal(unknown.Names, []string{"nope"}) {
				t.Errorf("Start = %v, want the unknown name", err)
			}
		}
		if len(s.Agents.List()) != 1 || len(s.Sessions.List()) != 1 || len(store.stored(t)) != 0 || len(s.Lifecycle.Edges()) != 0 {
			t.Error("something is left")
		}
	})
}

// COMP-22…31, COMP-34: what delegation pins.
func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		name     string
		approver bool
		sandbox  []string // the parent's switches
		want     string
	}{
		{"COMP-34 neither service", false, nil, ""},
		{"COMP-24 COMP-29 an approver is mounted", true, nil, "approval/policy never"},
		{"COMP-23 the parent switched", false, []string{"off", "read-only"}, "sandbox/mode read-only"},
		{"both", true, []string{"read-only"}, "sandbox/mode read-only approval/policy never"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := subagenttest.Options{}
			if c.approver {
				o.Approver = silent{t}
			}
			in(t, o, func(t *testing.T, s *subagenttest.System) {
				parent := s.Parent(t)
				for _, mode := range c.sandbox {
					if _, err := parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: mode}}); err != nil {
						t.Fatal(err)
					}
				}
				head := parent.Session().Head()
				checked := false
				s.Sessions.AddHooks(session.Hooks{Created: func(l *session.Session) error {
					if approval, sandbox := l.Policies(); (approval == "never") != c.approver || (sandbox != "") != (c.sandbox != nil) {
						t.Errorf("COMP-16: announced with policies %q and %q", approval, sandbox)
					}
					checked = true
					return nil
				}})
				s.Answer("hello", say("hi"))
				run := start(t, s, subagenttest.Request(parent, "hello"))
				var got []string
				log := child(t, run).Session()
				for e := range log.Events(0) {
					switch p := e.Payload().(type) {
					case *session.SandboxMode:
						got = append(got, string(e.Type), p.Mode)
						if !p.Delegated || e.Seq < log.Header().SeedLength || e.Seq < log.FirstLive() {
							t.Errorf("COMP-23 COMP-28: %+v at %d is not a live event of the delegation", p, e.Seq)
						}
					case *session.ApprovalPolicy:
						got = append(got, string(e.Type), p.Policy)
						if !p.Delegated || e.Seq < log.Header().SeedLength || e.Seq < log.FirstLive() {
							t.Errorf("COMP-24 COMP-28: %+v at %d is not a live event of the delegation", p, e.Seq)
						}
					case *session.InboxSpliced:
						if len(got) != 2*strings.Count(c.want, "/") {
							t.Error("COMP-27: a policy event stands behind the prompt")
						}
					}
				}
				if s := strings.Join(got, " "); s != c.want {
					t.Errorf("policy events = %q, want %q", s, c.want)
				}
				if !checked || parent.Session().Head() != head {
					t.Error("COMP-33: the parent's log changed")
				}
				if _, err := log.Append(session.Draft{Payload: &session.SandboxMode{Mode: "own"}}); err != nil {
					t.Fatal(err)
				}
				if _, sandbox := log.Policies(); sandbox != "own" {
					t.Errorf("COMP-31: the child's own switch gives %q", sandbox)
				}
				subagenttest.Await(t, run)
			})
		})
	}
}

// COMP-26: policies are read at the call, before anything waits.
func TestCOMP26CapturedAtTheCall(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		sandbox := func(mode string) {
			if _, err := parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: mode}}); err != nil {
				t.Error(err)
			}
		}
		sandbox("before")
		s.Answer("hello", say("hi"))
		s.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error { sandbox("after"); return nil }})
		run := start(t, s, subagenttest.Request(parent, "hello"))
		if _, mode := child(t, run).Session().Policies(); mode != "before" {
			t.Errorf("sandbox = %q", mode)
		}
		subagenttest.Await(t, run)
	})
}

// COMP-25: an escalation of a child is rejected without asking anybody, on record.
func TestCOMP25NeverAsks(t *testing.T) {
	in(t, subagenttest.Options{Approver: silent{t}, Tools: tools("danger")}, func(t *testing.T, s *subagenttest.System) {
		s.Tools.Root().AddPreExecute(func(context.Context, *tool.Call) tool.Decision { return tool.Ask("it is dangerous") })
		s.Answer("hello", scripted.Step{scripted.Call("danger", "{}")}, say("could not"))
		run := start(t, s, subagenttest.Request(s.Parent(t), "hello"))
		log := child(t, run).Session()
		subagenttest.Await(t, run)
		var decided []string
		for e := range log.Events(0) {
			switch p := e.Payload().(type) {
			case *session.ApprovalAsked:
				decided = append(decided, "asked "+p.ToolName)
			case *session.ApprovalDecided:
				decided = append(decided, "decided "+p.Outcome)
			case *session.ToolResult:
				decided = append(decided, "result "+p.ErrorCode)
			}
		}
		if diff := cmp.Diff([]string{"asked danger", "decided rejected", "result DENIED"}, decided); diff != "" {
			t.Errorf("record:\n%s", diff)
		}
	})
}

// COMP-22: the statement is there, in the runtime context and not in the system
// prompt, and only for children.
func TestCOMP22Delegation(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		s.Answer("hello", say("hi"))
		run := start(t, s, subagenttest.Request(parent, "hello"))
		subagenttest.Await(t, run)
		req := requestOf(t, s, run.ID())
		if strings.Contains(req.System, prompt.DelegationContext) {
			t.Error("the statement is part of the system prompt")
		}
		n := 0
		for _, m := range req.Messages {
			if strings.Contains(message.JoinText(m.Content), prompt.DelegationContext) {
				n++
				if m.Source.Kind != message.SourcePlugin || len(m.Source.Details().Sections) != 1 || m.Source.Details().Sections[0].Name != "subagent:delegation" {
					t.Errorf("source = %+v", m.Source)
				}
			}
		}
		if n != 1 {
			t.Errorf("the statement stands in %d messages, want 1", n)
		}
		if err := parent.Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, m := range requestOf(t, s, parent.ID()).Messages {
			if strings.Contains(message.JoinText(m.Content), prompt.DelegationContext) {
				t.Error("the parent has the statement")
			}
		}
	})
}

// COMP-16, RUN-02, RUN-03, RUN-18: everything is composed before anybody can see the
// child, and what is seen is an ordinary agent.
func TestCOMP16ComposedFirst(t *testing.T) {
	in(t, subagenttest.Options{Tools: tools("a", "b")}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		hold := make(chan struct{})
		s.Answer("hello", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("hi")})
		var told []string
		s.Sessions.AddHooks(session.Hooks{
			Created:  func(*session.Session) error { told = append(told, "session created"); return nil },
			Disposed: func(*session.Session) { told = append(told, "session disposed") },
		})
		s.Agents.AddHooks(agent.Hooks{
			Created: func(a *agent.Agent) error {
				told = append(told, "agent created")
				if n := len(a.Tools().Specs()); n != 1 {
					t.Errorf("announced with %d tools", n)
				}
				as, err := a.Prompts().Assemble(map[string]string{"model": "m"}, prompt.AssembleOptions{})
				if err != nil || !strings.Contains(as.System, "You count.") || len(as.Contexts) != 1 {
					t.Errorf("announced with the prompt %+v, %v", as, err)
				}
				return nil
			},
			Disposed: func(*agent.Agent) { told = append(told, "agent disposed") },
		})
		s.Service.AddHooks(subagent.Hooks{
			Started: func(subagent.StartEdge) { told = append(told, "start") },
			Ended:   func(subagent.EndEdge) { told = append(told, "end") },
		}, nil)
		req := subagenttest.Request(parent, "hello")
		req.ToolFilter, req.Persona = &session.ToolFilter{Allow: []string{"a"}}, &subagent.Persona{Text: "You count."}
		run := start(t, s, req)
		a := child(t, run)
		synctest.Wait()
		if !slices.Contains(s.Agents.List(), a) || a.Status() != agent.Running || a.Owner() != parent || a.Session().Head() == 0 {
			t.Error("RUN-18: the child is no ordinary running agent")
		}
		close(hold)
		synctest.Wait()
		subagenttest.Await(t, run)
		want := []string{"session created", "agent created", "start", "end", "agent disposed", "session disposed"}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("told:\n%s", diff)
		}
	})
}
