package fakemodel_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// askMessages sends a Messages request and reads the whole answer.
func askMessages(t *testing.T, s *fakemodel.Server, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Origin()+"/v1/messages", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "k")
	req.Header.Set("Anthropic-Version", "2026-10-21")
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); closeErr != nil {
		t.Fatal(closeErr)
	}
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// messagesBody is a request with those messages and more members.
func messagesBody(messages, more string) string {
	return `{"model":"m","stream":true,"max_tokens":99` + more + `,"messages":` + messages + `}`
}

const hi = `[{"role":"user","content":"hi"}]`

// TestMessagesWire fixes every byte of one rich answer on the Messages wire.
func TestMessagesWire(t *testing.T) {
	s := open(t, fakemodel.Options{Key: "k", Script: fakemodel.Always(
		fakemodel.Split(2, fakemodel.Reasoning("hmmm")), fakemodel.Redacted("b64"), fakemodel.Split(2, fakemodel.Text("héé <b>")), fakemodel.Ping{}, fakemodel.Foreign{},
		fakemodel.Parallel(
			fakemodel.ToolCall{ID: "c1", Name: "read", Arguments: `{"path":"a"}`, Deltas: 2},
			fakemodel.ToolCall{ID: "c2", Name: "list", Arguments: `{}`, Deltas: 1},
		),
		fakemodel.Usage{Prompt: 100, Cached: 60, Written: 30, Completion: 20, Reasoning: 5},
	)})
	got := askMessages(t, s, messagesBody(hi, ""))
	if got.err != nil || got.status != http.StatusOK || got.header.Get("Request-Id") != "req_fake_1" {
		t.Fatalf("%+v", got)
	}
	golden := filepath.Join("testdata", "messages.sse")
	if *update {
		if err := os.WriteFile(golden, []byte(got.body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.body); diff != "" {
		t.Errorf("wire (-want +got):\n%s", diff)
	}
}

// TestMessagesView: scripts and directives see a Messages request as they see any other.
func TestMessagesView(t *testing.T) {
	s := open(t, fakemodel.Options{})
	got := askMessages(t, s, messagesBody(`[{"role":"user","content":[{"type":"text","text":"[[fake:tool f {}]] [[fake:reply got {{match:o.t}}]]"}]},
		{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"c","name":"f","input":{"a":1}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"out"}]},{"type":"text","text":"more"}]}]`,
		`,"system":[{"type":"text","text":"sys"}],"thinking":{"type":"adaptive"},"output_config":{"effort":"low"},"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}]`))
	if got.status != http.StatusOK || !strings.Contains(got.body, `"text":" o"`) || !strings.Contains(got.body, `"end_turn"`) {
		t.Fatalf("%+v", got)
	}
	r := s.Requests()[0]
	if r.Model != "m" || r.MaxTokens != 99 || r.Thinking != "adaptive" || r.ReasoningEffort != "low" || r.Position() != 1 || r.LastUserText() != "more" || len(r.ToolResults()) != 1 || r.ToolResults()[0].Text != "out" {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff([]fakemodel.Tool{{Name: "f", Description: "d", Parameters: []byte(`{"type":"object"}`)}}, r.Tools); diff != "" {
		t.Error(diff)
	}
	if r.Messages[0].Role != "system" || r.Messages[0].Text != "sys" || r.Messages[2].ToolCalls[0].Arguments != `{"a":1}` {
		t.Errorf("%+v", r.Messages)
	}
}

// TestMessagesRefusals: the server is as strict as the vendor's.
func TestMessagesRefusals(t *testing.T) {
	called := `{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]}`
	result := `{"type":"tool_result","tool_use_id":"c","content":"out"}`
	marked := `{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}`
	for name, tt := range map[string]struct{ body, word string }{
		"no max_tokens":           {`{"model":"m","stream":true,"messages":` + hi + `}`, "max_tokens"},
		"temperature":             {messagesBody(hi, `,"temperature":1`), "temperature"},
		"blank text":              {messagesBody(`[{"role":"user","content":[{"type":"text","text":" "}]}]`, ""), "non-whitespace"},
		"empty content":           {messagesBody(`[{"role":"user","content":[]}]`, ""), "non-empty"},
		"prefill":                 {messagesBody(`[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]`, ""), "prefill"},
		"assistant first":         {messagesBody(`[{"role":"assistant","content":"y"},{"role":"user","content":"x"}]`, ""), "first message"},
		"no result":               {messagesBody(`[`+called+`,{"role":"user","content":"x"}]`, ""), "without `tool_result`"},
		"result without a call":   {messagesBody(`[{"role":"user","content":[`+result+`]}]`, ""), "unexpected `tool_use_id`"},
		"result behind text":      {messagesBody(`[`+called+`,{"role":"user","content":[{"type":"text","text":"x"},`+result+`]}]`, ""), "before other content"},
		"five marks":              {messagesBody(`[{"role":"user","content":[`+strings.Repeat(marked+",", 4)+marked+`]}]`, ""), "maximum of 4"},
		"thinking without budget": {messagesBody(hi, `,"thinking":{"type":"enabled","budget_tokens":1024}`), "budget_tokens"},
		"made-up signature":       {messagesBody(`[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s-1"}]},{"role":"user","content":"x"}]`, ""), "signature"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, fakemodel.Options{})
			got := askMessages(t, s, tt.body)
			var refusal struct {
				Type  string
				Error struct{ Type, Message string }
			}
			if err := json.Unmarshal([]byte(got.body), &refusal); err != nil {
				t.Fatalf("%v in %q", err, got.body)
			}
			if got.status != 400 || refusal.Type != "error" || refusal.Error.Type != "invalid_request_error" || !strings.Contains(refusal.Error.Message, tt.word) {
				t.Errorf("%d %+v", got.status, refusal)
			}
		})
	}
}
