package anthropic_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/message"
)

var update = flag.Bool("update", false, "rewrite the golden request bodies")

// schema has what encoders like to change: order, white space, number spelling,
// characters that HTML would escape, a large integer.
const schema = `{"type":"object","properties":{"z":{"type":"string","pattern":"^<a&b>$"},"a":{"const":1.50},"n":{"maximum":9007199254740993}},"required":["z"],"$defs":{},"additionalProperties":false}`

// history has every shape of message that a session can hold.
func history() []message.Message {
	model := func(content ...message.Block) message.Message {
		return message.Message{Role: message.RoleAssistant, Content: content}
	}
	foreign := message.Block{Type: "hologram", Raw: []byte(`{"type":"hologram"}`)}
	thought := model(message.Reasoning("I think <b> & \u2028 \"so\"\n\t"), message.Text("Looking."), message.Reasoning(""),
		message.ToolCall("c1", "read", `{"path": "a", "n": 1.50}`), message.ToolCall("c2", "list", " "))
	thought.Source = message.NewSource(message.SourceModel, message.SourceDetails{Provider: "route", Model: "m", ReplayState: (&llm.Replay{
		Response: []byte(`{"prefix":"other"}`),
		Blocks:   [][]byte{[]byte(`{"type":"thinking","thinking":"I think <b> & \u2028 \"so\"\n\t","signature":"c2ln"}`), nil, []byte(`{"type":"redacted_thinking","data":"ZGF0YQ=="}`), nil, nil},
	}).Encode()})
	return []message.Message{
		user(message.Text("first"), foreign, message.Text("second")),
		user(message.Text("third, of the same role")),
		thought,
		user(message.ToolResult("c1", []message.Block{message.Text("line 1"), message.Text("line 2")}, false), message.Text("a note beside the results")),
		user(message.ToolResult("c2", nil, true)),
		model(message.Reasoning("only reasoning, unsigned")),
		user(message.Text("go on")),
		model(message.ToolCall("c3", "read", `{"cut`)),
		user(message.ToolResult("c3", []message.Block{message.Text(" \n"), foreign}, true)),
		model(message.Text("a"), message.Text(" \n"), message.Text("b")),
		model(foreign),
		model(message.Text("c, of the same role")),
		user(foreign),
		user(message.Text("")),
		user(message.Text("and?")),
	}
}

// body returns what goes out for a request.
func body(t *testing.T, config anthropic.Config, req *llm.Request) []byte {
	t.Helper()
	var got []byte
	a := serve(t, config, func(w http.ResponseWriter, r *http.Request) {
		var err error
		if got, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		sse(opening(), said(0, "x"), stop("end_turn"), done)(w, r)
	})
	if r := collect(t, t.Context(), a, req); r.Finish.Kind != llm.FinishStop {
		t.Fatalf("finish %q: %+v", r.Finish.Kind, r.Finish.Failure)
	}
	return got
}

// The whole body of a rich request, for a model of each kind and one that is not
// in the table.
func TestRequestBodies(t *testing.T) {
	one := 1.0
	full := &llm.Request{
		Provider: "route", System: "Be <brief>.", Messages: history(), Temperature: &one, MaxTokens: 20_000, Stop: []string{"END"}, ReasoningEffort: "high", SessionID: "s1",
		Tools: []llm.ToolSpec{{Name: "list"}, {Name: "read", Description: "reads <files>", Parameters: []byte(schema)}},
	}
	off := ask("hi")
	off.ReasoningEffort = "off"
	for name, req := range map[string]*llm.Request{"full": full, "off": off, "plain": ask("hi")} {
		for _, model := range []string{"claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5-20261007", "claude-opus-4-8", "claude-haiku-4-5", "vendor/model:tag"} {
			if name == "off" && model == "claude-opus-5-5" {
				continue // it cannot be turned off
			}
			file := strings.NewReplacer("/", "-", ":", "-").Replace(model) + "-" + name + ".json"
			t.Run(file, func(t *testing.T) {
				r := *req
				r.Model = model
				var indented bytes.Buffer
				if err := json.Indent(&indented, body(t, anthropic.Config{}, &r), "", "  "); err != nil {
					t.Fatal(err)
				}
				indented.WriteByte('\n')
				file := filepath.Join("testdata", "requests", file)
				if *update {
					if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, indented.Bytes(), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), indented.String()); diff != "" {
					t.Errorf("body (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// A schema goes out as it is: nothing lost, reordered or respelled, but for the
// escapes that the SDK prefers.
func TestToolParametersAreUnchanged(t *testing.T) {
	req := ask("hi")
	req.Tools = []llm.ToolSpec{{Name: "t", Parameters: []byte(schema)}}
	plain := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&")
	if got := plain.Replace(string(body(t, anthropic.Config{}, req))); !strings.Contains(got, `"input_schema":`+schema) {
		t.Errorf("body %s\nlacks %s", got, schema)
	}
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	image := ask("look")
	image.Messages[0].Content = append(image.Messages[0].Content, message.Block{Type: message.BlockImage, Raw: []byte(`{"attachment":"img-9"}`)})
	nested := ask("look")
	nested.Messages[0].Content = []message.Block{message.ToolResult("c", []message.Block{{Type: message.BlockImage, Raw: []byte(`"img-9"`)}}, false)}
	tool := ask("x")
	tool.Tools = []llm.ToolSpec{{Name: "bent", Parameters: []byte(`{"type":`)}}
	half, hot := 0.5, ask("x")
	hot.Temperature = &half
	never, odd := ask("x"), ask("x")
	never.ReasoningEffort, odd.ReasoningEffort = "off", "utmost"
	for name, tt := range map[string]struct {
		req        *llm.Request
		code, word string
	}{
		"image":                                {image, llm.CodeInvalidRequest, "img-9"},
		"image in a tool result":               {nested, llm.CodeInvalidRequest, "img-9"},
		"a schema that is no JSON":             {tool, llm.CodeInvalidRequest, "bent"},
		"a temperature":                        {hot, llm.CodeInvalidRequest, "0.5"},
		"off for a model that always thinks":   {never, llm.CodeUnsupportedEffort, "always thinks"},
		"an effort that the model cannot take": {odd, llm.CodeUnsupportedEffort, "utmost"},
	} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, anthropic.Config{}, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
			f := collect(t, t.Context(), a, tt.req).Finish.Failure
			if f == nil || f.Code != tt.code || !strings.Contains(f.Message, tt.word) {
				t.Errorf("failure %+v", f)
			}
		})
	}
}

// A bound that leaves no room for thinking wins over the effort.
func TestThinkingBudget(t *testing.T) {
	for _, tt := range []struct {
		effort    string
		maxTokens int64
		want      int64
	}{{"low", 0, 4_096}, {"high", 0, 16_000}, {"high", 64_000, 24_576}, {"high", 4_000, 2_000}, {"high", 2_000, 0}, {"", 0, 0}} {
		req := ask("hi")
		req.Model, req.ReasoningEffort, req.MaxTokens = "claude-sonnet-4-5-20250929", tt.effort, tt.maxTokens
		var got struct {
			Thinking struct {
				Type         string
				BudgetTokens int64 `json:"budget_tokens"`
			}
		}
		if err := json.Unmarshal(body(t, anthropic.Config{}, req), &got); err != nil {
			t.Fatal(err)
		}
		if got.Thinking.BudgetTokens != tt.want || (tt.want > 0) != (got.Thinking.Type == "enabled") {
			t.Errorf("%q within %d: %+v, want %d", tt.effort, tt.maxTokens, got.Thinking, tt.want)
		}
	}
}

func TestModels(t *testing.T) { // M13
	a, err := anthropic.New(anthropic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var r llm.Registry
	if _, err := r.Register(a, "anthropic"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		model     string
		window    int64
		maxTokens int64
	}{{"claude-sonnet-5-5", 1_000_000, 64_000}, {"claude-haiku-4-5-20251001", 200_000, 32_000}, {"claude-9", 0, 0}, {"claude-haiku-4-5-fast", 0, 0}} {
		p, err := r.Prepare(llm.CallConfig{Provider: "anthropic", Model: tt.model, ReasoningEffort: "medium"})
		if err != nil || p.ContextWindow != tt.window || p.Config.MaxTokens != tt.maxTokens {
			t.Errorf("%s: %+v, %v", tt.model, p, err)
		}
	}
	if _, err := r.Prepare(llm.CallConfig{Provider: "anthropic", Model: "claude-haiku-4-5", ReasoningEffort: "max"}); llm.CodeOf(err) != llm.CodeUnsupportedEffort {
		t.Errorf("effort max: %v", err)
	}
}

// Headers, and that none of the SDK's environment variables reaches whichever
// server this is.
func TestHeaders(t *testing.T) {
	for _, name := range []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"} {
		t.Setenv(name, "sk-from-the-environment")
	}
	t.Setenv("ANTHROPIC_BASE_URL", "http://192.0.2.1/never")
	t.Setenv("ANTHROPIC_CUSTOM_HEADERS", "X-From: the-environment")
	for _, base := range []string{"", "/v1", "/v1/", "/gateway", "/gateway/v1"} {
		var got *http.Request
		server := newServer(t, func(w http.ResponseWriter, r *http.Request) {
			got = r.Clone(r.Context())
			sse(opening(), said(0, "x"), stop("end_turn"), done)(w, r)
		})
		a, err := anthropic.New(anthropic.Config{
			BaseURL: server + base, APIKeyFunc: func() (string, error) { return testKey, nil }, UserAgent: "offshoot/1.2.3", Headers: map[string]string{"X-Title": "t"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.CloseIdleConnections)
		if r := collect(t, t.Context(), a, ask("hi")); r.Finish.Kind != llm.FinishStop {
			t.Fatalf("%+v", r.Finish.Failure)
		}
		if want := strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/v1") + "/v1/messages"; got.Method != "POST" || got.URL.Path != want {
			t.Errorf("%s %s, want %s", got.Method, got.URL, want)
		}
		for name, want := range map[string]string{
			"X-Api-Key": testKey, "Authorization": "", "User-Agent": "offshoot/1.2.3", "X-Title": "t", "Accept": "text/event-stream", "Content-Type": "application/json",
			"Anthropic-Version": "2026-10-21", "X-From": "",
		} {
			if v := got.Header.Get(name); v != want {
				t.Errorf("header %s = %q, want %q", name, v, want)
			}
		}
		for name, v := range got.Header {
			if strings.HasPrefix(name, "X-Stainless") || strings.Contains(strings.Join(v, ""), "environment") {
				t.Errorf("header %s: %q went out", name, v)
			}
		}
	}
}
