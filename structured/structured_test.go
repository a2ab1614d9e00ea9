package structured_test

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
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

const countSchema = `{"type": "object", "properties": {"n": {"type": "integer"}, "why": {"type": "string"}}, "required": ["n"], "additionalProperties": false}`

// world is a system in a bubble with the tools look, which may overlap, and touch,
// which may not; ran lists what was run.
type world struct {
	*testing.T
	*subagenttest.System
	ran    []string
	refuse func(session.Event) error // nil refuses nothing
}

func bubble(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		define := func(name string, safe bool) tool.Definition {
			return tool.Definition{
				Name: name, Parameters: []byte(`{"type":"object"}`), ConcurrencySafe: func([]byte) bool { return safe },
				Execute: func(context.Context, *tool.Call) (any, error) {
					w.ran = append(w.ran, name)
					return name + " is done", nil
				},
			}
		}
		w.System = subagenttest.NewSystem(t, subagenttest.Options{
			Identity: "You count.", Tools: []tool.Definition{define("look", true), define("touch", false)},
			Validators: []session.Validator{func(_ *session.Header, e session.Event) error {
				if w.refuse == nil {
					return nil
				}
				return w.refuse(e)
			}},
		})
		fn(w)
	})
}

// attached returns a root that answers in the form of a schema.
func (w *world) attached(schema string) (*agent.Agent, *structured.Output) {
	w.Helper()
	s, err := structured.Parse([]byte(schema))
	if err != nil {
		w.Fatal(err)
	}
	var out *structured.Output
	a := w.NewAgent(w.T, agent.Create{Options: subagenttest.ParentOptions(), Setup: func(_ context.Context, a *agent.Agent) error {
		out, err = structured.Attach(a, s)
		return err
	}})
	return a, out
}

func (w *world) ask(a *agent.Agent, prompt string) {
	w.Helper()
	if err := a.Followup(agent.UserText(prompt)); err != nil {
		w.Fatal(err)
	}
	if err := a.WhenIdle(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// course tells what happened in a log, as far as these tests look at it.
func course(a *agent.Agent) (lines []string) {
	for e := range a.Session().Events(0) {
		switch p := e.Payload().(type) {
		case *session.UserMessage:
			if p.Message.Source.Details().Plugin == structured.Plugin {
				lines = append(lines, "reminded")
			}
		case *session.AssistantMessage:
			lines = append(lines, "asked")
		case *session.ToolResult:
			line := message.JoinText(p.Message.Content[0].Content)
			if p.ErrorCode != "" {
				line = p.ErrorCode
			}
			lines = append(lines, line)
		case *session.TurnEnd:
			lines = append(lines, string(p.Kind))
		}
	}
	return lines
}

func say(text string) scripted.Step { return scripted.Step{scripted.SayLiteral(text)} }

func use(args string) scripted.Part { return scripted.CallLiteral(structured.ToolName, args) }

const ok = `{"recorded":true}`

// SO-08, SO-14, SO-15, SO-17, SO-18, SO-19, T27, T28, T30: what the model does, what
// comes of it, and how often it is asked.
func TestCourse(t *testing.T) {
	look, touch := scripted.CallLiteral("look", "{}"), scripted.CallLiteral("touch", "{}")
	for _, c := range []struct {
		name  string
		steps []scripted.Step
		want  []string
		ran   string
		value string
	}{
		{"SO-07 SO-14 at once", []scripted.Step{{use(`{"n":1}`)}}, []string{"asked", ok, "completed"}, "", `{"n":1}`},
		{"text beside the call", []scripted.Step{{scripted.SayLiteral("here"), use(`{"n":1}`)}}, []string{"asked", ok, "completed"}, "", `{"n":1}`},
		{"after work", []scripted.Step{{look}, {use(`{"n":1}`)}}, []string{"asked", "look is done", "asked", ok, "completed"}, "look", `{"n":1}`},
		{"SO-08 corrected", []scripted.Step{{use(`{"n":"1"}`)}, {use(`{"n":1`)}, {use(``)}, {use(`{"n":1}`)}},
			[]string{"asked", "INVALID_ARGS", "asked", "INVALID_ARGS", "asked", "INVALID_ARGS", "asked", ok, "completed"}, "", `{"n":1}`},
		{"SO-08 SO-18 never corrected", []scripted.Step{{use(`{"n":"1"}`)}, say("it does not work")},
			[]string{"asked", "INVALID_ARGS", "asked", "reminded", "asked", "completed"}, "", ""},
		{"SO-18 it only talks", []scripted.Step{say("one")}, []string{"asked", "reminded", "asked", "completed"}, "", ""},
		{"SO-18 it talks, then hands in", []scripted.Step{say("one"), {use(`{"n":1}`)}}, []string{"asked", "reminded", "asked", ok, "completed"}, "", `{"n":1}`},
		{"SO-18 it talks, works and talks", []scripted.Step{say("one"), {look}, say("two")},
			[]string{"asked", "reminded", "asked", "look is done", "asked", "completed"}, "look", ""},
		{"SO-18 it says nothing", []scripted.Step{{scripted.Empty()}}, []string{"asked", "reminded", "asked", "completed"}, "", ""},
		{"SO-15 SO-17 between other calls", []scripted.Step{{look, touch, use(`{"n":1}`), look, touch, use(`{"n":2}`)}},
			[]string{"asked", "look is done", "touch is done", ok, "DENIED", "DENIED", "DENIED", "completed"}, "look touch", `{"n":1}`},
		{"SO-08 SO-13 twice in one answer, the first one bad", []scripted.Step{{use(`{"n":"1"}`), use(`{"n":2}`)}},
			[]string{"asked", "INVALID_ARGS", ok, "completed"}, "", `{"n":2}`},
		{"cut in the middle of its arguments", []scripted.Step{{use(`{"n":1`), scripted.MaxTokens()}}, []string{"asked", "max-tokens"}, "", ""},
		{"cut behind whole arguments", []scripted.Step{{use(`{"n":1}`), scripted.MaxTokens()}}, []string{"asked", "max-tokens"}, "", ""},
		{"SO-19 declined", []scripted.Step{{scripted.Refuse("no")}}, []string{"asked", "refusal"}, "", ""},
		{"SO-19 failed", []scripted.Step{{scripted.Fail(llm.CodeAuth, "no")}}, []string{"error"}, "", ""},
		{"SO-19 failed after it was reminded", []scripted.Step{say("one"), {scripted.Fail(llm.CodeAuth, "no")}}, []string{"asked", "reminded", "error"}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.Answer("count", c.steps...)
				a, out := w.attached(countSchema)
				w.ask(a, "count")
				if diff := cmp.Diff(c.want, course(a)); diff != "" {
					t.Errorf("course (-want +got):\n%s", diff)
				}
				if got := strings.Join(w.ran, " "); got != c.ran {
					t.Errorf("ran %q, want %q", got, c.ran)
				}
				if got := string(out.Value()); got != c.value {
					t.Errorf("value = %s, want %s", got, c.value)
				}
				missing := out.Missing()
				if (missing == nil) != (c.value != "") {
					t.Errorf("missing = %v", missing)
				}
				if told := slices.Contains(c.want, "reminded"); missing != nil && told != strings.Contains(missing.Error(), "told to") {
					t.Errorf("missing = %q, it was reminded: %v", missing, told)
				}
			})
		})
	}
}

// SO-02, SO-03, SO-04, SO-05, T2, T27: what the model is given.
func TestSO02Request(t *testing.T) {
	bubble(t, func(w *world) {
		for _, s := range []prompt.Section{{Name: "before", Order: 189, Text: "Before."}, {Name: "after", Order: 191, Text: "After."}} {
			if _, err := w.Prompts.Root().Add(s); err != nil {
				t.Fatal(err)
			}
		}
		w.Answer("count", scripted.Step{use(`{"n":1}`)})
		w.Answer("plain", say("fine"))
		a, _ := w.attached(countSchema)
		w.ask(a, "count")
		plain := w.Parent(t)
		w.ask(plain, "plain")
		calls := w.Adapter.Calls()
		req := calls[0].Request
		var names []string
		for _, spec := range req.Tools {
			names = append(names, spec.Name)
		}
		if diff := cmp.Diff([]string{"look", "structured_output", "touch"}, names); diff != "" {
			t.Errorf("SO-05: tools (-want +got):\n%s", diff)
		}
		// The request holds schemas without white space; that of a definition is verbatim.
		if got, want := string(req.Tools[1].Parameters), strings.ReplaceAll(countSchema, " ", ""); got != want {
			t.Errorf("SO-02: parameters = %s", got)
		}
		if got := string(a.Tools().Toolset().Lookup(structured.ToolName).Parameters); got != countSchema {
			t.Errorf("SO-02: the definition's parameters = %s", got)
		}
		at := func(text string) int { return strings.Index(req.System, text) }
		if at("You count.") != 0 || at("Before.") < 0 || at("structured_output") < at("Before.") || at("After.") < at("structured_output") {
			t.Errorf("SO-04: the prompt is\n%s", req.System)
		}
		other := calls[1].Request
		if strings.Contains(other.System, "structured_output") || len(other.Tools) != 2 {
			t.Errorf("SO-03: another agent's request has %d tools and the prompt\n%s", len(other.Tools), other.System)
		}
	})
}

// SO-03, SO-06, SO-22: the tool is nobody else's; agents that run at once have each
// their own schema.
func TestSO03Scoped(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("plain", scripted.Step{use(`{"n":1}`)}, say("I cannot"))
		w.Answer("one", scripted.Step{use(`{"n":1}`)}, say("failed"))
		w.Answer("two", scripted.Step{use(`{"n":1}`)}, scripted.Step{use(`{"s":"x"}`)})
		plain := w.Parent(t)
		one, first := w.attached(countSchema)
		two, second := w.attached(`{"type":"object","properties":{"s":{"type":"string"}},"required":["s"],"additionalProperties":false}`)
		for a, prompt := range map[*agent.Agent]string{plain: "plain", one: "one", two: "two"} {
			if err := a.Followup(agent.UserText(prompt)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"asked", "UNKNOWN_TOOL", "asked", "completed"}, course(plain)); diff != "" {
			t.Errorf("SO-22 (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"asked", "INVALID_ARGS", "asked", ok, "completed"}, course(two)); diff != "" {
			t.Errorf("the second (-want +got):\n%s", diff)
		}
		if a, b := string(first.Value()), string(second.Value()); a != `{"n":1}` || b != `{"s":"x"}` {
			t.Errorf("values %s and %s", a, b)
		}
		if r := one.Tools().Execute(w.Context(), tool.CallInput{Name: structured.ToolName, Args: `{"n":2}`}, tool.ExecOptions{}); r.Code != tool.CodeDenied {
			t.Errorf("SO-15: a call behind the turn = %+v", r)
		}
		if r := w.Tools.Root().Execute(w.Context(), tool.CallInput{Name: structured.ToolName, Args: `{"n":2}`}, tool.ExecOptions{}); r.Code != tool.CodeUnknownTool {
			t.Errorf("SO-22: an agentless call = %+v", r)
		}
	})
}

// The value is what the model wrote, but for white space: no number, no key order and
// no escape changes.
func TestValueIsExact(t *testing.T) {
	const wrote = " { \"z\" : 9007199254740991 , \"a\": -1.50, \"e\":1e2, \"s\":\"<\\u00e9 \\/ \\\"x\\\" \u2028>\", \"o\": {\"b\":[ ],\"a\":null} } "
	const want = "{\"z\":9007199254740991,\"a\":-1.50,\"e\":1e2,\"s\":\"<\\u00e9 \\/ \\\"x\\\" \u2028>\",\"o\":{\"b\":[],\"a\":null}}"
	for args, want := range map[string]string{wrote: want, "": "{}", " \n": "{}"} {
		bubble(t, func(w *world) {
			w.Answer("count", scripted.Step{use(args)})
			a, out := w.attached(`{"type":"object"}`)
			w.ask(a, "count")
			if got := string(out.Value()); got != want {
				t.Errorf("value = %s, want %s", got, want)
			}
		})
	}
	for _, lossy := range []string{`{"n":9007199254740993}`, `{"n":1,"n":2}`, `{"n":-0}`, `{"s":"\ud800"}`, `{"n":1e999}`, `{"n":1} {}`} {
		bubble(t, func(w *world) {
			w.Answer("count", scripted.Step{use(lossy)}, say("no"))
			a, out := w.attached(`{"type":"object"}`)
			w.ask(a, "count")
			if out.Value() != nil || course(a)[1] != "INVALID_ARGS" {
				t.Errorf("%s: value %s, course %q", lossy, out.Value(), course(a))
			}
		})
	}
}

// SO-08: the model reads where each fault is and what is wrong there.
func TestSO08Reasons(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("count", scripted.Step{use(`{"n":"1","why":2,"x":3}`)}, scripted.Step{use(`{"n":1}`)})
		a, _ := w.attached(countSchema)
		w.ask(a, "count")
		history, _ := a.Session().History()
		text := message.JoinText(history[2].Content[0].Content)
		for _, want := range []string{"Error: the arguments of structured_output do not fit", "at /n: ", "integer", "at /why: ", "string", "'x'"} {
			if !strings.Contains(text, want) {
				t.Errorf("the model reads %q, which lacks %q", text, want)
			}
		}
	})
}
