package scripted_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
)

func TestTemplates(t *testing.T) {
	history := []message.Message{
		user("u", "start id=prompt-7"),
		assistant(message.ToolCall("a", "read", "{}")), result("a", "old"),
		assistant(message.ToolCall("b", "read", "{}"), message.ToolCall("c", "spawn", "{}")),
		// Results may come in any order.
		result("c", `{"id":"kid-1","list":[{"n":5},"q\"x"],"obj":{"k":true}}`), result("b", "line \"one\"\nid=result-9 a{2}"),
	}
	for _, tc := range []struct{ in, want, code string }{
		{in: "plain {{ text }} {{other:x}}", want: "plain {{ text }} {{other:x}}"},
		{in: "{{result:read}}", want: "line \"one\"\nid=result-9 a{2}"},
		{in: "{{result:2:id}} {{result:spawn:list.0.n}} {{result:2:list.1}} {{result:2:obj}}", want: `kid-1 5 q"x {"k":true}`},
		{in: `{{match:id=(\S+)}}`, want: "result-9"},
		{in: `{{match:id=\w+-\d{1}}}`, want: "id=result-9"},
		{in: `{{match:a\{2\}}}}`, want: "a{2}}"},
		{in: `{{request:id=(prompt-\d)}}`, want: "prompt-7"},
		{in: `{{request:persona (\w+)}}`, want: "Ada"},
		{in: `{{request:nowhere}}`, code: scripted.CodeCapture},
		{in: `{{match:prompt}}`, code: scripted.CodeCapture},
		{in: `{{result:write}}`, code: scripted.CodeCapture},
		{in: `{{result:3}}`, code: scripted.CodeCapture},
		{in: `{{result:1:id}}`, code: scripted.CodeCapture},
		{in: `{{result:2:list.9}}`, code: scripted.CodeCapture},
		{in: `{{result:2:none}}`, code: scripted.CodeCapture},
	} {
		req := request(history...)
		req.System = "persona Ada"
		a := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.Say(tc.in)}}}}, scripted.Options{})
		got := ask(t, t.Context(), a, req)
		if got.Code != tc.code || (tc.code == "" && got.Blocks[0].Text != tc.want) {
			t.Errorf("%s: got %+v, want %q %s", tc.in, got, tc.want, tc.code)
		}
	}
	// In arguments a capture is escaped within a string and raw outside of one.
	a := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{
		{scripted.Call("t", `{"text":"<{{result:read}}>","n":{{result:2:list.0.n}},"o":{{result:2:obj}}}`)},
	}}}, scripted.Options{})
	got := ask(t, t.Context(), a, request(history...))
	if want := `{"text":"<line \"one\"\nid=result-9 a{2}>","n":5,"o":{"k":true}}`; got.Blocks[0].Arguments != want {
		t.Errorf("arguments %s, want %s", got.Blocks[0].Arguments, want)
	}
	if got.Blocks[0].ID != "call-2-0" {
		t.Errorf("call id %q", got.Blocks[0].ID)
	}
}

// A conversation is found by what is asked, the step by the assistant messages in
// the request, and any instance of the adapter answers the same (design § 8).
func TestMatchingIsStateless(t *testing.T) {
	script := scripted.Script{
		{Name: "rest", Repeat: true, Steps: []scripted.Step{{scripted.Say("rest")}}},
		{Name: "persona", Match: scripted.All(scripted.System("reviewer"), scripted.Not(scripted.HasTool("bash"))), Steps: []scripted.Step{{scripted.Say("p0")}, {scripted.Say("p1")}}},
		{Name: "regexp", Match: scripted.FirstPrompt(regexp.MustCompile(`^survey \d+$`)), Steps: []scripted.Step{{scripted.Say("r0")}, {scripted.Say("r1")}}},
		{Name: "follow-up", Match: scripted.LastPrompt("and now"), SincePrompt: true, Steps: []scripted.Step{{scripted.Say("f0")}, {scripted.Say("f1")}}},
		{Name: "any", Match: scripted.AnyText("needle"), Repeat: true, Steps: []scripted.Step{{scripted.Say("n")}}},
		{Name: "title", Purpose: llm.PurposeTitle, Steps: []scripted.Step{{scripted.Say("title")}}},
	}
	reviewer := func(r *llm.Request) *llm.Request { r.System = "you are a reviewer"; return r }
	title := request(user("u", "survey 7"))
	title.Purpose = llm.PurposeTitle
	relay := user("k", "and now this")
	relay.Source = message.Source{Kind: message.SourceCoordinator}
	notice := user("n", "and now a notice")
	notice.Source = message.Source{Kind: message.SourcePlugin}
	said := assistant(message.Text("x"))
	for _, tc := range []struct {
		name string
		req  *llm.Request
		want string
	}{
		{"persona", reviewer(request(user("u", "hello"))), "p0"},
		{"persona, second", reviewer(request(user("u", "hello"), said, notice)), "p1"},
		{"regexp", request(user("u", "survey 7")), "r0"},
		{"regexp, follow-up", request(user("u", "survey 7"), said, user("v", "more")), "r1"},
		{"follow-up", request(user("u", "hello"), said, said, relay), "f0"},
		{"follow-up, second", request(user("u", "hello"), said, said, relay, said), "f1"},
		{"tool result", request(user("u", "hello"), assistant(message.ToolCall("a", "read", "")), result("a", "a needle")), "n"},
		{"everything else", request(user("u", "hello"), said, said, said), "rest"},
		{"no message at all", request(), "rest"},
		{"purpose", title, "title"},
	} {
		for range 2 {
			got := ask(t, t.Context(), scripted.New(script, scripted.Options{}), tc.req)
			if len(got.Blocks) != 1 || got.Blocks[0].Text != tc.want {
				t.Errorf("%s: %+v, want %q", tc.name, got, tc.want)
			}
		}
	}
}

func TestUnmatchedAndExhausted(t *testing.T) {
	a := scripted.New(scripted.Script{{Name: "only", Match: scripted.LastPrompt("known"), Steps: []scripted.Step{{scripted.Say("x")}, {scripted.Say("y")}}}}, scripted.Options{})
	got := ask(t, t.Context(), a, request(user("u", "something else")))
	if got.Kind != llm.FinishError || got.Code != scripted.CodeUnmatched || !strings.Contains(got.Failure.Message, `"something else"`) || !strings.Contains(got.Failure.Message, "scripted:m") {
		t.Errorf("unmatched: %+v", got)
	}
	said := assistant(message.Text("x"))
	got = ask(t, t.Context(), a, request(user("u", "known"), said, said))
	if got.Kind != llm.FinishError || got.Code != scripted.CodeExhausted || !strings.Contains(got.Failure.Message, `"only" has 2 steps and was asked for number 3`) {
		t.Errorf("exhausted: %+v", got)
	}
	if llm.Retryable(scripted.CodeUnmatched) || llm.Retryable(scripted.CodeExhausted) {
		t.Error("the script's own failures are retried")
	}
	ask(t, t.Context(), a, request(user("u", "known")))
	if diff := cmp.Diff([]string{`conversation "only", step 2 of 2`}, a.Unused()); diff != "" {
		t.Errorf("unused (-want +got):\n%s", diff)
	}
	if err := a.Done(); err == nil || !strings.Contains(err.Error(), "step 2 of 2") || !strings.Contains(err.Error(), "something else") {
		t.Errorf("Done: %v", err)
	}
}

// Roots without a matcher get their conversations in the order of their first
// calls; who has one keeps it (core Q9).
func TestFirstCallOrder(t *testing.T) {
	script := scripted.Script{
		{FirstCall: true, Steps: []scripted.Step{{scripted.Say("a0")}, {scripted.Say("a1")}}},
		{FirstCall: true, Steps: []scripted.Step{{scripted.Say("b0")}}},
		{Match: scripted.LastPrompt("child"), Steps: []scripted.Step{{scripted.Say("c")}}},
	}
	a := scripted.New(script, scripted.Options{})
	said := assistant(message.Text("x"))
	in := func(session string, r *llm.Request) *llm.Request { r.SessionID = session; return r }
	for _, step := range []struct {
		req  *llm.Request
		want string
	}{
		{in("", request(user("u1", "one"))), "a0"},
		{in("k", request(user("k1", "child"))), "c"},
		{in("s2", request(user("u2", "two"))), "b0"},
		{in("", request(user("u1", "one"), said)), "a1"},
		{in("s2", request(user("u9", "first prompt compacted away"))), "b0"},
		{in("s3", request(user("u3", "three"))), ""},
	} {
		got := ask(t, t.Context(), a, step.req)
		if step.want == "" {
			if got.Code != scripted.CodeUnmatched {
				t.Errorf("a third root: %+v", got)
			}
			continue
		}
		if len(got.Blocks) != 1 || got.Blocks[0].Text != step.want {
			t.Errorf("%s: %+v, want %q", step.req.SessionID, got, step.want)
		}
	}
	if got := a.Unused(); got != nil {
		t.Errorf("unused %v", got)
	}
}
