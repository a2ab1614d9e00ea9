package spawn_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

const countSchema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`

// counts asks a child of parent for an answer in the form of countSchema.
func counts(parent *agent.Agent, prompt string) subagent.Request {
	req := subagenttest.Request(parent, prompt)
	req.OutputSchema = []byte(countSchema)
	return req
}

func handIn(args string) scripted.Part { return scripted.CallLiteral(structured.ToolName, args) }

// users returns the messages that a child got, each by its source.
func users(s *session.Session) (sources []string) {
	for e := range s.Events(0) {
		if p, ok := e.Payload().(*session.UserMessage); ok {
			sources = append(sources, string(p.Message.Source.Kind)+p.Message.Source.Details().Plugin)
		}
	}
	return sources
}

// SO-01, SO-08, SO-18, SO-19, SO-21, RUN-12, RUN-13, T30: what a run with a schema
// ends with.
func TestSO18Result(t *testing.T) {
	const never, twice = "the agent ended without calling structured_output", ", also after it was told to"
	for _, c := range []struct {
		name     string
		steps    []scripted.Step
		reason   subagent.StopReason
		value    string
		said     string
		diag     string
		requests int
	}{
		{"SO-01 handed in", []scripted.Step{{scripted.SayLiteral("done"), handIn(` {"n": 1} `)}}, "completed", `{"n":1}`, "done", "", 1},
		{"SO-08 corrected", []scripted.Step{{handIn(`{"n":"1"}`)}, {handIn(`{"n":1}`)}}, "completed", `{"n":1}`, "", "", 2},
		{"SO-18 it only talks", []scripted.Step{say("there are 3"), say("as I said: 3")}, "error", "", "there are 3\n\nas I said: 3", never + twice, 2},
		{"SO-18 it hands in once it was told", []scripted.Step{say("there are 3"), {handIn(`{"n":3}`)}}, "completed", `{"n":3}`, "", "", 2},
		{"SO-18 it says the same again", []scripted.Step{say("there are 3")}, "error", "", "there are 3", never + twice, 2},
		{"SO-18 it then says nothing", []scripted.Step{say("there are 3"), {scripted.Empty()}}, "error", "", "there are 3", never + twice, 2},
		{"SO-18 it says nothing", []scripted.Step{{scripted.Empty()}}, "error", "", "", never + twice, 2},
		{"SO-18 its arguments never fit", []scripted.Step{{handIn(`{}`)}, {handIn(`{"n":1.5}`)}, say("I give up")}, "error", "", "I give up", never + twice, 4},
		{"SO-19 cut in its arguments", []scripted.Step{{scripted.SayLiteral("here"), handIn(`{"n":`), scripted.MaxTokens()}}, "max-tokens", "", "here", "", 1},
		{"SO-19 declined", []scripted.Step{{scripted.Refuse("no")}}, "refusal", "", "no", "", 1},
		{"SO-19 failed", []scripted.Step{{scripted.SayLiteral("hm"), scripted.Fail(llm.CodeAuth, "no")}}, "error", "", "hm", "AUTH: no", 1},
		{"SO-19 failed once it was told", []scripted.Step{say("3"), {scripted.Fail(llm.CodeAuth, "no")}}, "error", "", "3", "AUTH: no", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				s.Answer("count", c.steps...)
				run := start(t, s, counts(s.Parent(t), "count"))
				log := child(t, run).Session()
				res := subagenttest.Await(t, run)
				if res.StopReason != c.reason || string(res.Structured) != c.value || res.Diagnostic != c.diag {
					t.Errorf("result = %q, %s, diagnostic %q\nwant %q, %s, %q", res.StopReason, res.Structured, res.Diagnostic, c.reason, c.value, c.diag)
				}
				if got := message.JoinText(res.Output); got != c.said || res.Output == nil {
					t.Errorf("output = %q, want %q", got, c.said)
				}
				if n := len(s.Adapter.Calls()); n != c.requests {
					t.Errorf("%d requests, want %d", n, c.requests)
				}
				got := strings.Join(users(log), " ")
				if told := strings.Contains(got, structured.Plugin); told != (c.diag == never+twice || strings.Contains(c.name, "told")) || strings.Count(got, structured.Plugin) > 1 {
					t.Errorf("the child got messages of %q", got)
				}
				if d := log.Descriptor().Descriptor; strings.Contains(string(d.AppendJSON(nil)), "chema") {
					t.Error("the schema is in the descriptor: it belongs to one run")
				}
			})
		})
	}
}

// SO-21: a captured value stands beside whatever the run ends as.
func TestSO21BesideAnotherReason(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		// Input that waits behind the answer makes another step, in which it fails.
		s.Answer("count", scripted.Step{handIn(`{"n":1}`)})
		s.Answer("more", scripted.Step{scripted.Fail(llm.CodeAuth, "no")})
		parent := s.Parent(t)
		s.Tools.Root().AddPreExecute(func(_ context.Context, call *tool.Call) tool.Decision {
			if a, ok := call.Caller.(*agent.Agent); ok && call.Name == structured.ToolName {
				if err := a.Steer(agent.UserText("more")); err != nil {
					t.Error(err)
				}
			}
			return tool.Allow()
		})
		res := subagenttest.Await(t, start(t, s, counts(parent, "count")))
		if res.StopReason != subagent.StopError || res.Diagnostic != "AUTH: no" || string(res.Structured) != `{"n":1}` {
			t.Errorf("result = %+v", res)
		}
	})
}

// SO-20, RUN-16: a cancel that finds a turn which ended well without an answer makes
// it aborted; one that finds an answer changes nothing.
func TestSO20CancelledAtTheEnd(t *testing.T) {
	for _, c := range []struct {
		step   scripted.Step
		reason subagent.StopReason
		value  string
	}{{say("there are 3"), "aborted", ""}, {scripted.Step{handIn(`{"n":3}`)}, "completed", `{"n":3}`}} {
		in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
			ctx, cancel := context.WithCancel(t.Context())
			// The child is idle, and nobody has looked at the result: that waits for this hook.
			s.Agents.AddHooks(agent.Hooks{Status: func(a *agent.Agent, st agent.Status) {
				if st == agent.Idle && a.Owner() != nil {
					cancel()
					synctest.Wait()
				}
			}})
			s.Answer("count", c.step)
			res := subagenttest.Await(t, s.Start(t, ctx, spawn.DefaultName, counts(s.Parent(t), "count")))
			if res.StopReason != c.reason || res.Diagnostic != "" || string(res.Structured) != c.value {
				t.Errorf("result = %+v, want %s and %q", res, c.reason, c.value)
			}
		})
	}
}

// SO-20, SO-18, CAN-03: cancelled while it is being reminded.
func TestSO20CancelledReminded(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("count", say("there are 3"), scripted.Step{scripted.SayLiteral("well"), scripted.Hang()})
		ctx, cancel := context.WithCancel(t.Context())
		run := s.Start(t, ctx, spawn.DefaultName, counts(s.Parent(t), "count"))
		synctest.Wait()
		cancel()
		res := subagenttest.Await(t, run)
		if res.StopReason != subagent.StopAborted || message.JoinText(res.Output) != "well" || res.Structured != nil {
			t.Errorf("result = %+v", res)
		}
	})
}

// SO-23, SO-26, REG-15, COMP-15: neither a filter that names it not, nor one that
// admits nothing, nor the removal of the provider takes the tool away; the end of the
// run does. SO-28: nor does the caller change the schema.
func TestSO26Filtered(t *testing.T) {
	for _, filter := range []*session.ToolFilter{nil, {Allow: []string{}}, {Allow: []string{"a"}}, {Deny: []string{"a", "b"}}} {
		synctest.Test(t, func(t *testing.T) {
			s := subagenttest.NewSystem(t, subagenttest.Options{Tools: tools("a", "b")})
			remove := s.Register(t, spawn.New(""))
			hold := make(chan struct{})
			s.Answer("count", scripted.Step{subagenttest.Hold(hold), handIn(`{"n":"x"}`)}, scripted.Step{handIn(`{"n":1}`)})
			req := counts(s.Parent(t), "count")
			req.ToolFilter = filter
			run := start(t, s, req)
			copy(req.OutputSchema, strings.ReplaceAll(countSchema, "integer", "string "))
			remove()
			a := child(t, run)
			if a.Tools().Toolset().Lookup(structured.ToolName) == nil {
				t.Errorf("SO-26: the filter %+v takes the tool away", filter)
			}
			close(hold)
			res := subagenttest.Await(t, run)
			if res.StopReason != subagent.StopCompleted || string(res.Structured) != `{"n":1}` {
				t.Errorf("with the filter %+v: %+v", filter, res)
			}
			if names := a.Tools().Specs(); len(names) != 0 {
				t.Errorf("SO-23: %v outlive the run", names)
			}
			if r := a.Tools().Execute(t.Context(), tool.CallInput{Name: structured.ToolName, Args: `{"n":2}`, Caller: a}, tool.ExecOptions{}); r.Code != tool.CodeAbortedBeforeDispatch {
				t.Errorf("SO-23: a call when the run is over: %+v", r)
			}
		})
	}
}

// SO-03, SO-27: children that run at once have each their own schema, and the parent
// has none.
func TestSO03Children(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		s.Answer("one", scripted.Step{subagenttest.Hold(hold), handIn(`{"n":1}`)})
		s.Answer("two", scripted.Step{subagenttest.Hold(hold), handIn(`{"s":"x"}`)})
		parent := s.Parent(t)
		first, second := counts(parent, "one"), counts(parent, "two")
		second.OutputSchema = []byte(`{"type":"object","properties":{"s":{"type":"string"}},"required":["s"],"additionalProperties":false}`)
		a, b := start(t, s, first), start(t, s, second)
		synctest.Wait()
		close(hold)
		got := []string{string(subagenttest.Await(t, a).Structured), string(subagenttest.Await(t, b).Structured)}
		if diff := cmp.Diff([]string{`{"n":1}`, `{"s":"x"}`}, got); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		if len(parent.Tools().Specs()) != 0 {
			t.Error("the parent sees the tool of its children")
		}
	})
}

// CAP-01, CAP-12: each of the sixteen requests is served, every feature that it carries
// at once, and no other.
func TestCAP12Sixteen(t *testing.T) {
	for need := range 16 {
		in(t, subagenttest.Options{Tools: tools("a", "b"), Persona: "The deployment's."}, func(t *testing.T, s *subagenttest.System) {
			schema, depth, filter, persona := need&1 != 0, need&2 != 0, need&4 != 0, need&8 != 0
			req := subagenttest.Request(s.Parent(t), "count")
			want := subagent.Result{StopReason: subagent.StopCompleted, Output: []message.Block{message.Text("3")}}
			s.Answer("count", say("3"))
			if schema {
				req.OutputSchema = []byte(countSchema)
				s.Answer("count", scripted.Step{scripted.SayLiteral("3"), handIn(`{"n":3}`)})
				want.Structured = []byte(`{"n":3}`)
			}
			if depth {
				req.MaxDepth = ptr(int64(1))
			}
			if filter {
				req.ToolFilter = &session.ToolFilter{Deny: []string{"b"}}
			}
			if persona {
				req.Persona = &subagent.Persona{Text: "The child's."}
			}
			got := subagenttest.Await(t, start(t, s, req))
			got.Output = got.Output[:1] // the call stands behind the text
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("request %04b (-want +got):\n%s", need, diff)
			}
			wire := s.Adapter.Calls()[0].Request
			var names []string
			for _, spec := range wire.Tools {
				names = append(names, spec.Name)
			}
			wantNames := "a"
			if !filter {
				wantNames += " b"
			}
			if schema {
				wantNames += " " + structured.ToolName
			}
			if strings.Join(names, " ") != wantNames || strings.Contains(wire.System, "The child's.") != persona || strings.Contains(wire.System, "The deployment's.") == persona {
				t.Errorf("request %04b: tools %q, prompt %q", need, names, wire.System)
			}
			// The cap is in force exactly where it was asked for.
			if depth {
				*req.MaxDepth = 0
			}
			if run, err := s.Service.Start(t.Context(), spawn.DefaultName, req); depth == (err == nil) {
				t.Errorf("request %04b with a cap of 0: %v", need, err)
			} else if err == nil {
				subagenttest.Await(t, run)
			}
		})
	}
}
