package openai_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/openai"
	"github.com/offshoot-dev/offshoot/message"
)

// The same behaviours against a server that somebody else wrote, in each vendor's
// own shapes and words, and strict about the history that it is sent.
func TestAgainstFakeModel(t *testing.T) {
	text := func(s string) []message.Block { return []message.Block{message.Text(s)} }
	tests := []struct {
		prompt string
		kind   llm.FinishKind
		code   string
		blocks []message.Block
	}{
		{"[[fake:reply hello]]", llm.FinishStop, "", text("hello")},
		{"[[fake:length cut off]]", llm.FinishMaxTokens, "", text("cut off")},
		{`[[fake:length-tool read {"path":"a"}]]`, llm.FinishMaxTokens, "", []message.Block{}},
		{"[[fake:refusal I will not]]", llm.FinishRefusal, "", text("I will not")},
		{"[[fake:refusal]]", llm.FinishRefusal, "", nil},
		{"[[fake:empty]]", llm.FinishError, llm.CodeEmptyResponse, nil},
		{"[[fake:eof]]", llm.FinishError, llm.CodeStreamClosed, nil},
		{"[[fake:reply part]] [[fake:eof]]", llm.FinishError, llm.CodeStreamClosed, text("part")},
		{"[[fake:reply part]] [[fake:cut]]", llm.FinishError, llm.CodeStreamClosed, text("part")},
		{"[[fake:reply part]] [[fake:midstream-error sorry]]", llm.FinishError, llm.CodeServer, text("part")},
		{"[[fake:garbage]]", llm.FinishError, llm.CodeMalformedResponse, nil},
		{"[[fake:html]]", llm.FinishError, "", nil},
		{"[[fake:fail bad-request]]", llm.FinishError, llm.CodeInvalidRequest, nil},
		{"[[fake:fail context-length]]", llm.FinishError, llm.CodeContextWindow, nil},
		{"[[fake:fail unauthorized]]", llm.FinishError, llm.CodeAuth, nil},
		{"[[fake:fail forbidden]]", llm.FinishError, llm.CodeAuth, nil},
		{"[[fake:fail quota]]", llm.FinishError, llm.CodeQuota, nil},
		{"[[fake:fail too-large]]", llm.FinishError, llm.CodeInvalidRequest, nil},
		{"[[fake:fail rate-limited Retry-After=3]]", llm.FinishError, llm.CodeRateLimit, nil},
		{"[[fake:fail server-error]]", llm.FinishError, llm.CodeServer, nil},
		{"[[fake:fail unavailable]]", llm.FinishError, llm.CodeServer, nil},
	}
	for _, dialect := range openai.Dialects() {
		server, err := fakemodel.Open(fakemodel.Options{Dialect: fakemodel.Dialect(dialect), Key: testKey})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		a, err := openai.New(openai.Config{Dialect: dialect, BaseURL: server.URL(), APIKey: testKey})
		if err != nil {
			t.Fatal(err)
		}
		defer a.CloseIdleConnections()
		for _, tt := range tests {
			t.Run(dialect+"/"+strings.Trim(tt.prompt, "[]"), func(t *testing.T) {
				got := collect(t, t.Context(), a, ask(tt.prompt))
				if got.Finish.Kind != tt.kind || (tt.code != "" && got.Finish.Failure.Code != tt.code) {
					t.Errorf("finish %q, want %q %s: %+v", got.Finish.Kind, tt.kind, tt.code, got.Finish.Failure)
				}
				if diff := cmp.Diff(tt.blocks, got.Blocks); diff != "" && tt.code != llm.CodeMalformedResponse {
					t.Errorf("blocks (-want +got):\n%s", diff)
				}
			})
		}
		t.Run(dialect+"/conversation", func(t *testing.T) { // M24
			req := ask(`[[fake:think hmm]] [[fake:tool read {"path":"a"}]] [[fake:tool list {}]] [[fake:reply done]]`)
			req.Tools = []llm.ToolSpec{{Name: "read", Parameters: []byte(schema)}, {Name: "list"}}
			first := collect(t, t.Context(), a, req)
			if first.Finish.Kind != llm.FinishToolCalls {
				t.Fatalf("finish %q: %+v", first.Finish.Kind, first.Finish.Failure)
			}
			req.Messages = append(req.Messages, message.Message{Role: message.RoleAssistant, Content: first.Blocks})
			results := 0
			for _, b := range first.Blocks {
				if b.Type == message.BlockToolCall {
					results++
					req.Messages = append(req.Messages, message.Message{Role: message.RoleUser, Content: []message.Block{message.ToolResult(b.ID, nil, false)}})
				}
			}
			second := collect(t, t.Context(), a, req)
			if results != 2 || second.Text != "done" || second.Finish.Kind != llm.FinishStop {
				t.Errorf("after %d results: %+v %+v", results, second, second.Finish.Failure)
			}
		})
	}
}
