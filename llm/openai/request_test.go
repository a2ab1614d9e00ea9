package openai_test

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
	"github.com/offshoot-dev/offshoot/llm/openai"
	"github.com/offshoot-dev/offshoot/message"
)

var update = flag.Bool("update", false, "rewrite the golden request bodies")

// schema has what encoders like to change: order, white space, number spelling,
// characters that HTML would escape, a large integer.
const schema = `{"type":"object","properties":{"z":{"type":"string","pattern":"^<a&b>$"},"a":{"const":1.50},"n":{"maximum":9007199254740993}},"required":["z"],"$defs":{},"additionalProperties":false}`

// history has every shape of message that a session can hold.
func history() []message.Message {
	user := func(content ...message.Block) message.Message {
		return message.Message{Role: message.RoleUser, Content: content}
	}
	model := func(content ...message.Block) message.Message {
		return message.Message{Role: message.RoleAssistant, Content: content}
	}
	foreign := message.Block{Type: "hologram", Raw: []byte(`{"type":"hologram"}`)}
	return []message.Message{
		user(message.Text("first"), foreign, message.Text("second")),
		model(message.Reasoning("I think <b> & \u2028 \"so\"\n\t"), message.Text("Looking."), message.ToolCall("c1", "read", `{"path": "a", "n": 1.50}`), message.ToolCall("c2", "list", " ")),
		user(
			message.ToolResult("c1", []message.Block{message.Text("line 1"), message.Text("line 2")}, false),
			message.Text("a note beside the results"),
			message.ToolResult("c2", nil, true),
		),
		model(message.Reasoning("only reasoning")),
		user(message.Text("go on")),
		model(message.ToolCall("c3", "read", `{"cut`)),
		user(message.ToolResult("c3", []message.Block{message.Text("the arguments are no JSON"), foreign}, true)),
		user(foreign),
		model(foreign),
		user(message.Text("")),
		model(message.Text("a"), message.Text("b")),
	}
}

func body(t *testing.T, config openai.Config, req *llm.Request) []byte {
	t.Helper()
	var got []byte
	a := serve(t, config, func(w http.ResponseWriter, r *http.Request) {
		var err error
		if got, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		sse(said("x"), done)(w, r)
	})
	if r := collect(t, t.Context(), a, req); r.Finish.Kind != llm.FinishStop {
		t.Fatalf("finish %q: %+v", r.Finish.Kind, r.Finish.Failure)
	}
	return got
}

// The whole body of a rich request, per dialect (core M21-M24, M29).
func TestRequestBodies(t *testing.T) {
	temperature := 0.5
	full := &llm.Request{
		Provider: "route", Model: "vendor/model:tag", System: "Be <brief>.", Messages: history(), Temperature: &temperature, MaxTokens: 1000, Stop: []string{"END"},
		ReasoningEffort: "high", SessionID: "s1",
		Tools: []llm.ToolSpec{{Name: "read", Description: "reads <files>", Parameters: []byte(schema)}, {Name: "list"}},
	}
	off := ask("hi")
	off.ReasoningEffort = "off"
	for _, dialect := range openai.Dialects() {
		for name, req := range map[string]*llm.Request{"full": full, "off": off, "plain": ask("hi")} {
			t.Run(dialect+"/"+name, func(t *testing.T) {
				got := body(t, openai.Config{Dialect: dialect}, req)
				var indented bytes.Buffer
				if err := json.Indent(&indented, got, "", "  "); err != nil {
					t.Fatalf("%v in %s", err, got)
				}
				indented.WriteByte('\n')
				file := filepath.Join("testdata", "requests", dialect+"-"+name+".json")
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

// A schema goes out byte for byte: nothing lost, reordered or respelled (core M29).
func TestToolParametersAreUnchanged(t *testing.T) {
	req := ask("hi")
	req.Tools = []llm.ToolSpec{{Name: "t", Parameters: []byte(schema)}}
	if got := body(t, openai.Config{Dialect: "openai"}, req); !bytes.Contains(got, []byte(`"parameters":`+schema)) {
		t.Errorf("body %s\nlacks %s", got, schema)
	}
}

// Reasoning of every earlier turn comes back as it was (core M24).
func TestReasoningIsReplayedByteExact(t *testing.T) {
	reasoning := "a\u2028<&>\"\\ \x00\x1f\U0001F600 trailing \n"
	req := ask("hi")
	for range 3 {
		req.Messages = append(req.Messages, message.Message{Role: message.RoleAssistant, Content: []message.Block{message.Reasoning(reasoning)}}, req.Messages[0])
	}
	var got struct {
		Messages []struct {
			Role      string
			Content   *string
			Reasoning string `json:"reasoning_content"`
		}
	}
	if err := json.Unmarshal(body(t, openai.Config{Dialect: "deepseek"}, req), &got); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range got.Messages {
		if m.Role != "assistant" {
			continue
		}
		n++
		if m.Reasoning != reasoning || m.Content == nil || *m.Content != "" {
			t.Errorf("replayed %q with content %v", m.Reasoning, m.Content)
		}
	}
	if n != 3 {
		t.Errorf("%d answers replayed", n)
	}
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	image := ask("look")
	image.Messages[0].Content = append(image.Messages[0].Content, message.Block{Type: message.BlockImage, Raw: []byte(`{"attachment":"img-9"}`)})
	nested := ask("look")
	nested.Messages[0].Content = []message.Block{message.ToolResult("c", []message.Block{{Type: message.BlockImage, Raw: []byte(`"img-9"`)}}, false)}
	tool := ask("x")
	tool.Tools = []llm.ToolSpec{{Name: "bent", Parameters: []byte(`{"type":`)}}
	for name, tt := range map[string]struct {
		req  *llm.Request
		word string
	}{"image": {image, "img-9"}, "image in a tool result": {nested, "img-9"}, "a schema that is no JSON": {tool, "bent"}} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, openai.Config{Dialect: "openai"}, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
			f := collect(t, t.Context(), a, tt.req).Finish.Failure
			if f == nil || f.Code != llm.CodeInvalidRequest || !strings.Contains(f.Message, tt.word) {
				t.Errorf("failure %+v", f)
			}
		})
	}
}

// Headers, and that none of the SDK's environment variables reaches another vendor.
func TestHeaders(t *testing.T) { // M21
	t.Setenv("OPENAI_API_KEY", "sk-from-the-environment")
	t.Setenv("OPENAI_ADMIN_KEY", "sk-admin-from-the-environment")
	t.Setenv("OPENAI_BASE_URL", "http://192.0.2.1/never")
	t.Setenv("OPENAI_ORG_ID", "org-from-the-environment")
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-From: the-environment")
	for key, want := range map[string]string{testKey: "Bearer " + testKey, "": ""} {
		var got *http.Request
		a := serve(t, openai.Config{Dialect: "ollama", UserAgent: "offshoot/1.2.3", Headers: map[string]string{"X-Title": "t"}, APIKeyFunc: func() (string, error) { return key, nil }},
			func(w http.ResponseWriter, r *http.Request) {
				got = r.Clone(r.Context())
				sse(said("x"), done)(w, r)
			})
		if r := collect(t, t.Context(), a, ask("hi")); r.Finish.Kind != llm.FinishStop {
			t.Fatalf("%+v", r.Finish.Failure)
		}
		if got.Method != "POST" || got.URL.Path != "/v1/chat/completions" {
			t.Errorf("%s %s", got.Method, got.URL)
		}
		for name, want := range map[string]string{
			"Authorization": want, "User-Agent": "offshoot/1.2.3", "X-Title": "t", "Accept": "text/event-stream", "Content-Type": "application/json",
			"Openai-Organization": "", "X-From": "",
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
