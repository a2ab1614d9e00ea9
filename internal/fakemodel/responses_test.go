package fakemodel_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// askResponses sends a Responses request and reads the whole answer.
func askResponses(t *testing.T, s *fakemodel.Server, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/responses", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k")
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

// responsesBody is a request with that input and more members.
func responsesBody(input, more string) string {
	return `{"model":"m","stream":true` + more + `,"input":` + input + `}`
}

// TestResponsesWire fixes every byte of one rich answer on the Responses wire.
func TestResponsesWire(t *testing.T) {
	s := open(t, fakemodel.Options{Key: "k", Script: fakemodel.Always(
		fakemodel.Reasoning("hmmm"), fakemodel.Split(2, fakemodel.Text("héé <b>")), fakemodel.Foreign{}, fakemodel.Refusal("no"),
		fakemodel.Parallel(
			fakemodel.ToolCall{ID: "c1", Name: "read", Arguments: `{"path":"a"}`},
			fakemodel.ToolCall{ID: "c2", Name: "patch", Arguments: "*** any text"},
		),
		fakemodel.Usage{Prompt: 100, Cached: 60, Completion: 20, Reasoning: 5},
	)})
	got := askResponses(t, s, responsesBody(`"hi"`, `,"tools":[{"type":"function","name":"read","parameters":{"type":"object"}},{"type":"custom","name":"patch"},{"type":"web_search"}]`))
	if got.err != nil || got.status != http.StatusOK || got.header.Get("X-Request-Id") != "req_fake_1" {
		t.Fatalf("%+v", got)
	}
	golden := filepath.Join("testdata", "responses.sse")
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

// TestResponsesEnds: how an answer ends on the Responses wire.
func TestResponsesEnds(t *testing.T) {
	s := open(t, fakemodel.Options{})
	for prompt, want := range map[string]string{
		"[[fake:reply hi]]":            `"status":"completed","model":"m","output":[{"id":"msg_`,
		"[[fake:empty]]":               `"status":"completed","model":"m","output":[],"usage":{"input_tokens":0,`,
		"[[fake:length part]]":         `"incomplete_details":{"reason":"max_output_tokens"}`,
		"[[fake:refusal]]":             `"incomplete_details":{"reason":"content_filter"}`,
		"[[fake:refusal no]]":          `"content":[{"type":"refusal","refusal":"no"}]`,
		"[[fake:midstream-error bad]]": `"error":{"code":"server_error","message":"bad"}`,
		"[[fake:status 500]]":          `{"error":{"message":"The server had an error while processing your request.","type":"server_error",`,
	} {
		if got := askResponses(t, s, responsesBody(`"`+prompt+`"`, "")); got.err != nil || !strings.Contains(got.body, want) {
			t.Errorf("%s: %+v, want %s", prompt, got, want)
		}
	}
}

// TestResponsesView: scripts and directives see a Responses request as they see any other.
func TestResponsesView(t *testing.T) {
	s := open(t, fakemodel.Options{})
	got := askResponses(t, s, responsesBody(`[{"type":"message","role":"developer","content":[{"type":"input_text","text":"dev"}]},
		{"role":"user","content":[{"type":"input_text","text":"[[fake:tool f {}]] [[fake:reply got {{match:o.t}}]]"}]},
		{"type":"reasoning","summary":[]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"t"}]},
		{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"custom_tool_call","call_id":"d","name":"g","input":"x"},
		{"type":"function_call_output","call_id":"c","output":"out"},
		{"type":"custom_tool_call_output","call_id":"d","output":[{"type":"input_text","text":"more"}]}]`,
		`,"instructions":"sys","reasoning":{"effort":"low"},"max_output_tokens":9`))
	if got.status != http.StatusOK || !strings.Contains(got.body, `"text":"got out"`) {
		t.Errorf("%+v", got)
	}
	r := s.Requests()[0]
	var view []string
	for _, m := range r.Messages {
		line := m.Role + ":" + m.Text
		for _, c := range m.ToolCalls {
			line += " " + c.Name + c.Arguments
		}
		view = append(view, line)
	}
	want := []string{"system:sys", "developer:dev", "user:[[fake:tool f {}]] [[fake:reply got {{match:o.t}}]]", `assistant:t f{} gx`, "tool:out", "tool:more"}
	if diff := cmp.Diff(want, view); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
	if r.MaxTokens != 9 || r.ReasoningEffort != "low" || r.Position() != 1 {
		t.Errorf("%+v", r)
	}
}

// TestResponsesRefusals: what the real endpoint refuses is refused.
func TestResponsesRefusals(t *testing.T) {
	s := open(t, fakemodel.Options{})
	for body, want := range map[string]string{
		`{"model":"m","stream":true}`:  "decode input",
		`{"stream":true,"input":"hi"}`: "missing required parameter: 'model'",
		`{"model":"m","input":"hi"}`:   "only stream: true is served",
		`{`:                            "decode the body",
		responsesBody(`[]`, ""):        "missing required parameter: 'input'",
		responsesBody(`[{"type":"message","role":"user","content":5}]`, ""):                                         "decode input[0].content",
		responsesBody(`[{"type":"function_call","call_id":"c","name":"f"}]`, ""):                                    "must be followed by tool messages",
		responsesBody(`[{"type":"function_call_output","call_id":"c","output":"x"}]`, ""):                           "must be a response to a preceding message",
		responsesBody(`"hi"`, `,"tools":[{"type":"function","name":"a b"}]`):                                        "it must match",
		responsesBody(`[{"role":"user","content":"x"},{"type":"custom_tool_call","call_id":"c","name":"a b"}]`, ""): "must be followed by tool messages",
	} {
		if got := askResponses(t, s, body); got.status != http.StatusBadRequest || !strings.Contains(got.body, want) {
			t.Errorf("%s: %+v, want %s", body, got, want)
		}
	}
}
