package delegate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

const countSchema = `{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}`

// withSchema is capable, with the capability of an output schema too.
func withSchema() *subagenttest.Scripted {
	p := capable()
	p.Caps.OutputSchema = true
	return p
}

// TOOL-21, TOOL-42, SO-28, T22: a tool with a schema says so, and sends it with every
// start as it was at the mount.
func TestSchemaOfATool(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		p := withSchema()
		s.Register(t, p)
		schema := []byte(countSchema)
		mount(t, s, delegate.Config{Provider: "scripted", OutputSchema: schema})
		mount(t, s, delegate.Config{Provider: "scripted", ToolName: "plain"})
		copy(schema, "XXXX")
		set := s.Tools.Root().Toolset()
		with, plain := set.Lookup("subagent").Description, set.Lookup("plain").Description
		if want := "\n" + strings.ReplaceAll(countSchema, " ", ""); !strings.HasSuffix(with, want) || strings.Contains(plain, "JSON") {
			t.Errorf("the texts are\n%s\nand\n%s", with, plain)
		}
		parent := s.Parent(t)
		execute(t.Context(), s, parent, "subagent", task)
		execute(t.Context(), s, parent, "plain", task)
		if got := p.Starts(); string(got[0].OutputSchema) != countSchema || got[0].Schema == nil || got[1].OutputSchema != nil || got[1].Schema != nil {
			t.Errorf("the requests have the schemas %s and %s", got[0].OutputSchema, got[1].OutputSchema)
		}
	})
}

// T26, REQ-03: a schema that cannot be enforced, or that the provider does not take,
// fails at the mount.
func TestSchemaRefused(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, withSchema())
		poor := capable()
		poor.ProviderName = "poor"
		s.Register(t, poor)
		_, err := delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: "scripted", OutputSchema: []byte(`{"type":"object","allOf":[],"properties":{"a":{"format":"date"}}}`)}, nil)
		var faults *structured.SchemaError
		if !errors.As(err, &faults) || len(faults.Faults) != 2 {
			t.Errorf("Mount = %v", err)
		}
		_, err = delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: "poor", OutputSchema: []byte(countSchema)}, nil)
		if err == nil || !strings.Contains(err.Error(), `provider "poor" does not support outputSchema`) {
			t.Errorf("Mount = %v", err)
		}
		if got := visible(s); got != "" {
			t.Errorf("tools = %q", got)
		}
	})
}

// TOOL-13, TOOL-14, TOOL-16, T30: what the model reads of a value.
func TestSchemaResult(t *testing.T) {
	said := []message.Block{message.Text("here it is")}
	value := []byte(`{"n":9007199254740991}`)
	for _, c := range []struct {
		name, code, want string
		res              subagent.Result
	}{
		{"a value", "", `{"n":9007199254740991}`, subagent.Result{Output: said, Structured: value}},
		{"a value without a word", "", `{"n":9007199254740991}`, subagent.Result{Structured: value}},
		{"T30 a value without success", tool.CodeToolFailed,
			"Error: the subagent failed\nDiagnostic: AUTH: no\nPartial output:\nhere it is\nOutput that it had handed in by then:\n" + string(value),
			subagent.Result{StopReason: "error", Diagnostic: "AUTH: no", Output: said, Structured: value}},
		{"SO-18 no value", tool.CodeToolFailed, "Error: the subagent failed\nDiagnostic: it only talked\nPartial output:\nhere it is",
			subagent.Result{StopReason: "error", Diagnostic: "it only talked", Output: said}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				p := withSchema()
				p.Play = func(*subagent.ResolvedRequest) subagenttest.Play { return subagenttest.Play{Result: c.res} }
				s.Register(t, p)
				mount(t, s, delegate.Config{Provider: "scripted", OutputSchema: []byte(countSchema)})
				r := execute(t.Context(), s, s.Parent(t), "subagent", task)
				if resultText(r) != c.want || r.Code != c.code {
					t.Errorf("result = %s %q\nwant %q", r.Code, resultText(r), c.want)
				}
			})
		})
	}
}

// A provider that completes without the value that it was asked for does not pass
// what its child said for it.
func TestSchemaBroken(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, mute{withSchema()})
		mount(t, s, delegate.Config{Provider: "scripted", OutputSchema: []byte(countSchema)})
		r := execute(t.Context(), s, s.Parent(t), "subagent", task)
		if want := "Error: the subagent failed\nDiagnostic: there is no output in the form that was asked for\nPartial output:\ndone"; resultText(r) != want || r.Code != tool.CodeToolFailed {
			t.Errorf("result = %s %q", r.Code, resultText(r))
		}
		if !strings.Contains(string(r.Meta), `"stopReason":"error"`) {
			t.Errorf("meta = %s", r.Meta)
		}
	})
}

// mute does not hand on that a schema was asked for.
type mute struct{ *subagenttest.Scripted }

func (m mute) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	without := *req
	without.OutputSchema, without.Schema = nil, nil
	return m.Scripted.Start(ctx, &without)
}

// TOOL-36, SO-01, SO-18: the parent's model reads the JSON of one child, and of
// another why there is none.
func TestSchemaThroughSpawn(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: "spawn", OutputSchema: []byte(countSchema)})
		s.Answer("root", scripted.Step{delegates("one"), delegates("two")}, scripted.Step{scripted.Say("{{result:1}}")})
		s.Answer("one", scripted.Step{scripted.SayLiteral("counted"), scripted.CallLiteral(structured.ToolName, `{ "n" : 3 }`)})
		s.Answer("two", scripted.Step{scripted.SayLiteral("there are 3")})
		root := s.Parent(t)
		run(t, root, "root")
		texts, codes := results(root.Session())
		want := []string{`{"n":3}`, "Error: the subagent failed\nDiagnostic: the agent ended without calling structured_output, also after it was told to\nPartial output:\nthere are 3"}
		if diff := cmp.Diff(want, texts); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"", tool.CodeToolFailed}, codes); diff != "" {
			t.Errorf("codes (-want +got):\n%s", diff)
		}
		history, _ := root.Session().History()
		if got := message.JoinText(history[len(history)-1].Content); got != `{"n":3}` {
			t.Errorf("the parent's model read %q", got)
		}
	})
}
