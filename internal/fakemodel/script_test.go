package fakemodel_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// summary is what a client makes of a stream: its parts, in order of their first delta.
func summary(t *testing.T, got answer) []string {
	t.Helper()
	if got.status != 200 {
		var failure struct {
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(got.body), &failure); err != nil {
			t.Fatalf("%v: %s", err, got.body)
		}
		return []string{failure.Error.Message}
	}
	var parts []string
	open := ""
	add := func(key, text string) {
		if key != open {
			parts = append(parts, key+":")
			open = key
		}
		parts[len(parts)-1] += text
	}
	for _, payload := range data(got.body) {
		if payload == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content          string `json:"content"`
					ReasoningContent string `json:"reasoning_content"`
					Refusal          string `json:"refusal"`
					ToolCalls        []struct {
						Index    int `json:"index"`
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				} `json:"delta"`
				Finish string `json:"finish_reason"`
			} `json:"choices"`
			Error *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(payload), &chunk); err != nil {
			add("garbage", "")
			continue
		}
		if chunk.Error != nil {
			add("error", chunk.Error.Message)
		}
		for _, c := range chunk.Choices {
			for key, text := range map[string]string{"text": c.Delta.Content, "think": c.Delta.ReasoningContent, "refusal": c.Delta.Refusal} {
				if text != "" {
					add(key, text)
				}
			}
			for _, call := range c.Delta.ToolCalls {
				if call.Function.Name != "" {
					open = ""
					add("call "+call.Function.Name, "")
				}
				parts[len(parts)-1] += call.Function.Arguments
			}
			if c.Finish != "" {
				add("finish", c.Finish)
			}
		}
	}
	if !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
		parts = append(parts, "no [DONE]")
	}
	return parts
}

func expect(t *testing.T, got answer, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, summary(t, got)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func said(text string) []string { return []string{"text:" + text, "finish:stop"} }

func TestSequence(t *testing.T) {
	s := open(t, fakemodel.Options{Script: fakemodel.Sequence(fakemodel.Reply{fakemodel.Text("one")}, fakemodel.Reply{fakemodel.Text("two")})})
	expect(t, ask(t, s, user("a")), said("one")...)
	expect(t, ask(t, s, user("b")), said("two")...)
	expect(t, ask(t, s, user("c")), "fakemodel: script exhausted: no reply for request index 2 of 2")
}

func TestByPositionAndMatch(t *testing.T) {
	s := open(t, fakemodel.Options{Script: fakemodel.Match(
		fakemodel.Rule{Contains: "left", Script: fakemodel.ByPosition(fakemodel.Reply{fakemodel.Text("l0")}, fakemodel.Reply{fakemodel.Text("l1")})},
		fakemodel.Rule{Contains: "right", Script: fakemodel.ByAttempt(fakemodel.Always(fakemodel.RateLimited), fakemodel.Echo)},
	)})
	said1 := msg{"role": "assistant", "content": "l0"}
	expect(t, ask(t, s, user("left"), said1, user("left again")), said("l1")...)
	expect(t, ask(t, s, user("left")), said("l0")...)
	expect(t, ask(t, s, user("right")), "Rate limit reached for m on requests per min (RPM): Limit 3, Used 3, Requested 1.")
	expect(t, ask(t, s, user("right")), said("right")...)
	expect(t, ask(t, s, user("right")), said("right")...)
	expect(t, ask(t, s, user("up")), `fakemodel: no rule matches the user text "up"`)
}

// TestDirectives has every verb as its client sees it.
func TestDirectives(t *testing.T) {
	for _, tt := range []struct {
		prompt string
		want   []string
	}{
		{"no directive", said("no directive")},
		{"[[fake:reply hello there]]", said("hello there")},
		{"say [[fake:think hm]] and [[fake:reply hi]].", []string{"think:hm", "text:hi", "finish:stop"}},
		{`[[fake:tool f {"a":"]]","b":[[1]]}]]`, []string{`call f:{"a":"]]","b":[[1]]}`, "finish:tool_calls"}},
		{`[[fake:tool f]]`, []string{`call f:{}`, "finish:tool_calls"}},
		{`[[fake:tool f {not json]]`, []string{`call f:{not json`, "finish:tool_calls"}},
		{`[[fake:think t]] [[fake:tool f {}]][[fake:tool g {}]] [[fake:reply later]]`, []string{"think:t", "call f:{}", "call g:{}", "finish:tool_calls"}},
		{`[[fake:tool subagent {"prompt":"[[fake:tool ls {\"p\":1}]] [[fake:reply kid]]"}]]`, []string{`call subagent:{"prompt":"[[fake:tool ls {\"p\":1}]] [[fake:reply kid]]"}`, "finish:tool_calls"}},
		{"[[fake:reply say [[fake:reply x]] twice]]", said("say [[fake:reply x]] twice")},
		{"[[fake:length cut he]] [[fake:reply rest]]", []string{"text:cut he", "finish:length"}},
		{`[[fake:length-tool f {"a":1}]]`, []string{`call f:{"a`, "finish:length"}},
		{"[[fake:refusal]]", []string{"finish:content_filter"}},
		{"[[fake:refusal I will not]]", []string{"text:I will not", "finish:content_filter"}},
		{"[[fake:big 12 3]]", said("xxxxxxxxxxxx")},
		{"[[fake:usage prompt=5]][[fake:headers]][[fake:comment c]][[fake:delay 1ns]][[fake:reply x]]", said("x")},
		{"[[fake:empty]]", []string{"finish:stop"}},
		{"[[fake:eof]]", []string{"no [DONE]"}},
		{"[[fake:reply x]] [[fake:garbage]]", []string{"text:x", "garbage:", "no [DONE]"}},
		{"[[fake:reply x]] [[fake:midstream-error out of luck]]", []string{"text:x", "error:out of luck", "no [DONE]"}},
		{"[[fake:fail context-length]]", []string{"This model's maximum context length is 131072 tokens. However, you requested 140000 tokens (139000 in the messages, 1000 in the completion)."}},
		{"[[fake:status 503]]", []string{"The engine is currently overloaded, please try again later."}},
		{"[[fake:status 402]]", []string{"Insufficient Balance"}},
		{"[[fake:sing]]", []string{"fakemodel: directive sing: unknown verb"}},
		{"[[fake:reply open", []string{`fakemodel: directive reply is not closed: "open"`}},
		{"[[fake:status teapot]]", []string{`fakemodel: directive status: "teapot" is no status code from 200 to 599`}},
		{"[[fake:reply {{match:x}}]]", []string{`fakemodel: directive reply: match: "x" is in no tool result`}},
	} {
		t.Run(tt.prompt, func(t *testing.T) {
			s := open(t, fakemodel.Options{Dialect: fakemodel.DeepSeek})
			expect(t, ask(t, s, user(tt.prompt)), tt.want...)
		})
	}
}

// TestDirectiveConversation walks a prompt through tool results, a notice in between, and the turn after it.
func TestDirectiveConversation(t *testing.T) {
	s := open(t, fakemodel.Options{})
	prompt := user(`[[fake:tool f {}]] [[fake:tool f {}]] [[fake:tool f {"id":"{{match:id=(\\w+)}}"}]] [[fake:next]] [[fake:tool g {"id":"{{match:id=(\\S+)}}"}]] [[fake:reply got {{match:.+}}]]`)
	expect(t, ask(t, s, user("before"), prompt), `fakemodel: directive tool: match: "id=(\\w+)" is in no tool result`)
	history := []msg{prompt, calls("c1", "c2"), result("c1", "none"), result("c2", `id=a"b`), user("a notice")}
	expect(t, ask(t, s, history...), `call g:{"id":"a\"b"}`, "finish:tool_calls")
	history = append(history, calls("c3"), result("c3", "the end"))
	expect(t, ask(t, s, history...), said("got the end")...)
	history = append(history, msg{"role": "assistant", "content": "got the end"}, user("thanks"))
	expect(t, ask(t, s, history...), said("thanks")...)
	expect(t, ask(t, s, append(history, user("[[fake:reply anew]]"))...), said("anew")...)
}

// TestDirectiveTimes: a fault that passes lets the retry through, and only the retry of the same request.
func TestDirectiveTimes(t *testing.T) {
	s := open(t, fakemodel.Options{})
	prompt := user("[[fake:status 429 Retry-After=date:5 times=2]] [[fake:reply half]] [[fake:eof times=3]] [[fake:reply done]]")
	for range 2 {
		got := ask(t, s, prompt)
		if got.status != 429 || !strings.HasSuffix(got.header.Get("Retry-After"), " GMT") {
			t.Fatalf("%+v", got)
		}
	}
	expect(t, ask(t, s, prompt), "text:half", "no [DONE]")
	expect(t, ask(t, s, prompt), said("halfdone")...)
	if got := ask(t, s, user("other"), prompt); got.status != 429 {
		t.Errorf("another conversation: %+v", got)
	}
}

// TestCheck refuses what real endpoints refuse, and nothing else (core M24).
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name     string
		messages []msg
		want     string // "" means accepted
	}{
		{"balanced", []msg{{"role": "system", "content": "s"}, user("a"), calls("x", "y"), result("y", ""), result("x", ""), user("b")}, ""},
		{"reasoning-only turn with empty content", []msg{user("a"), {"role": "assistant", "content": ""}, user("b")}, ""},
		{"none", nil, "must not be empty"},
		{"call without result", []msg{user("a"), calls("x", "y"), result("x", "")}, "these had none: y"},
		{"user before the result", []msg{user("a"), calls("x"), user("b"), result("x", "")}, "these had none: x"},
		{"result without call", []msg{user("a"), result("x", "")}, "must be a response to a preceding message"},
		{"second result", []msg{user("a"), calls("x"), result("x", ""), result("x", "")}, "must be a response to a preceding message"},
		{"null content", []msg{user("a"), {"role": "assistant", "content": nil}}, "content or tool_calls must be set"},
		{"null user", []msg{{"role": "user"}}, "got null"},
		{"odd role", []msg{{"role": "robot", "content": "a"}}, `invalid value "robot"`},
		{"twice the same id", []msg{user("a"), calls("x", "x")}, "occurs twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, fakemodel.Options{})
			got := ask(t, s, tt.messages...)
			if tt.want == "" && got.status != 200 || tt.want != "" && (got.status != 400 || !strings.Contains(strings.ReplaceAll(got.body, `\"`, `"`), tt.want)) {
				t.Errorf("%d %s", got.status, got.body)
			}
			lenient := open(t, fakemodel.Options{Lenient: true})
			if got := ask(t, lenient, tt.messages...); got.status != 200 {
				t.Errorf("lenient: %d %s", got.status, got.body)
			}
		})
	}
	s := open(t, fakemodel.Options{})
	for payload, want := range map[string]string{
		`{"model":`: "unexpected end",
		`{"model":"m","messages":[{"role":"user","content":"a"}]}`:                                                                                                                 "only stream: true",
		`{"stream":true,"messages":[{"role":"user","content":"a"}]}`:                                                                                                               "model parameter",
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a b"}}]}`:                                           "function.name",
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a","parameters":{}}}]}`:                             "must be of type",
		`{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}]}`: "occurs twice",
		`{"model":"m","stream":true,"messages":[{"role":"user","content":3}]}`:                                                                                                     "messages[0].content",
	} {
		if got := exchange(t, s, []byte(payload)); got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %s", payload, got.status, got.body)
		}
	}
}

// TestReasoningReplay: DeepSeek's tool-call turns must come back with the very reasoning they were streamed with
// (core M24).
func TestReasoningReplay(t *testing.T) {
	s := open(t, fakemodel.Options{Dialect: fakemodel.DeepSeek, Script: fakemodel.Always(fakemodel.Split(3, fakemodel.Reasoning("a  plan\n")), fakemodel.ToolCall{Name: "f", Arguments: "{}"})})
	first := ask(t, s, user("go"))
	_, after, ok := strings.Cut(first.body, `"id":"call_`)
	if !ok {
		t.Fatal(first.body)
	}
	id := "call_" + after[:strings.Index(after, `"`)]
	turn := calls(id)
	if got := ask(t, s, user("go"), turn, result(id, "r")); got.status != 400 || !strings.Contains(got.body, "must be passed back") {
		t.Errorf("without reasoning: %d %s", got.status, got.body)
	}
	turn["reasoning_content"] = "a  plan\n"
	second := ask(t, s, user("go"), turn, result(id, "r"))
	if second.status != 200 || strings.Contains(second.body, id) {
		t.Errorf("with reasoning: %d %s", second.status, second.body)
	}
}
