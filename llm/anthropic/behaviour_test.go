package anthropic_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/message"
)

type behaviour struct {
	name    string
	handler http.HandlerFunc
	blocks  []message.Block
	kind    llm.FinishKind
	// failure without its message; words must be in that message.
	failure message.Failure
	words   []string
	usage   *message.Usage
}

var clock = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func failing(code string, status int) message.Failure {
	return message.Failure{Code: code, Status: status, RequestID: "req-7"}
}

func answers() []behaviour {
	small := &message.Usage{InputTokens: 3, OutputTokens: 9}
	begun := &message.Usage{InputTokens: 3, OutputTokens: 1}
	x := []message.Block{message.Text("x")}
	call := []message.Block{message.ToolCall("c1", "read", `{"path":"a"}`)}
	tool := start(0, `{"type":"tool_use","id":"c1","name":"read","input":{}}`)
	return []behaviour{
		{name: "stop sequence", kind: llm.FinishStop, blocks: x, usage: small, handler: sse(opening(), said(0, "x"), stop("stop_sequence"), done)},
		{name: "the counters of the cache (M5, M27)", kind: llm.FinishStop, blocks: x,
			usage: &message.Usage{InputTokens: 10, CacheReadTokens: 60, CacheWriteTokens: 30, OutputTokens: 20, ReasoningTokens: 5, HasCacheRead: true, HasCacheWrite: true, HasReasoning: true},
			handler: sse(event("message_start", `"message":{"usage":{"input_tokens":10,"cache_creation_input_tokens":30,"cache_read_input_tokens":60,"output_tokens":2}}`), said(0, "x"),
				event("message_delta", `"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":20,"output_tokens_details":{"thinking_tokens":5}}`), done)},
		{name: "counters that come again are totals", kind: llm.FinishStop, blocks: x, usage: &message.Usage{InputTokens: 12, OutputTokens: 9},
			handler: sse(opening(), said(0, "x"), event("message_delta", `"delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":12,"output_tokens":9}`), done)},
		{name: "no usage at all", kind: llm.FinishStop, blocks: x, handler: sse(said(0, "x"), event("message_delta", `"delta":{"stop_reason":"end_turn"}`), done)},
		{name: "end_turn with a call is a call", kind: llm.FinishToolCalls, blocks: call, usage: small,
			handler: sse(opening(), tool, delta(0, `"type":"input_json_delta","partial_json":"{\"path\":\"a\"}"`), end(0), stop("end_turn"), done)},
		{name: "tool_use without a call is a stop", kind: llm.FinishStop, blocks: x, usage: small, handler: sse(opening(), said(0, "x"), stop("tool_use"), done)},
		{name: "a call without arguments", kind: llm.FinishToolCalls, blocks: []message.Block{message.ToolCall("c1", "read", `{}`)}, usage: small,
			handler: sse(opening(), tool, delta(0, `"type":"input_json_delta","partial_json":""`), end(0), stop("tool_use"), done)},
		{name: "a call whose arguments come at once", kind: llm.FinishToolCalls, blocks: call, usage: small,
			handler: sse(opening(), start(0, `{"type":"tool_use","id":"c1","name":"read","input":{"path":"a"}}`), end(0), stop("tool_use"), done)},
		{name: "the context window is full: a cut answer", kind: llm.FinishMaxTokens, blocks: x, usage: small, handler: sse(opening(), said(0, "x"), stop("model_context_window_exceeded"), done)},
		{name: "refusal keeps the text (P31)", kind: llm.FinishRefusal, blocks: x, usage: small, handler: sse(opening(), said(0, "x"), stop("refusal"), done)},
		{name: "refusal without a word (P31)", kind: llm.FinishRefusal, usage: small, handler: sse(opening(), stop("refusal"), done)},
		{name: "a paused turn is an error by name", kind: llm.FinishError, blocks: x, usage: small, failure: failing("PAUSE_TURN", 0), words: []string{"pause_turn"},
			handler: sse(opening(), said(0, "x"), stop("pause_turn"), done)},
		{name: "no stop reason is a stop (M28)", kind: llm.FinishStop, blocks: x, usage: begun, handler: sse(opening(), said(0, "x"), done)},
		{name: "empty (M28)", kind: llm.FinishError, usage: small, failure: failing(llm.CodeEmptyResponse, 0), handler: sse(opening(), stop("end_turn"), done)},
		{name: "blocks without content (M28)", kind: llm.FinishError, usage: small, failure: failing(llm.CodeEmptyResponse, 0),
			handler: sse(opening(), start(0, `{"type":"text","text":""}`), end(0), start(1, `{"type":"thinking","thinking":"","signature":""}`), end(1), stop("end_turn"), done)},
		{name: "text at the start of a block, blocks that are not closed", kind: llm.FinishStop, blocks: []message.Block{message.Text("ab"), message.Text("c")}, usage: small,
			handler: sse(opening(), start(0, `{"type":"text","text":"a"}`), delta(0, `"type":"text_delta","text":"b"`), start(1, `{"type":"text","text":"c"}`), stop("end_turn"), done)},
		{name: "deltas of another kind or no block", kind: llm.FinishStop, blocks: x, usage: small,
			handler: sse(opening(), delta(5, `"type":"text_delta","text":"lost"`), start(0, `{"type":"text","text":"x"}`), delta(0, `"type":"input_json_delta","partial_json":"{}"`), delta(0, `"type":"citations_delta","citation":{}`), end(0), end(0), stop("end_turn"), done)},
		{name: "unknown kinds, nulls, comments and CRLF", kind: llm.FinishStop, blocks: x, usage: small,
			handler: sse(": hello\n\n", "retry: 10\n\n", opening(), event("surprise", `"x":[1]`), start(0, `{"type":"server_tool_use","id":"s","name":"web_search","input":{}}`), delta(0, `"type":"input_json_delta","partial_json":"{}"`), end(0),
				strings.ReplaceAll(said(1, "x"), "\n", "\r\n"), event("message_delta", `"delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null},"usage":{"output_tokens":9,"server_tool_use":null},"error":null`), done)},
		{name: "events without names, and no blank line at the end", kind: llm.FinishStop, blocks: x, usage: begun,
			handler: sse("data: {\"type\":\"ping\"}\n\n", strings.ReplaceAll(opening()+said(0, "x"), "event: ", ": "), `data: {"type":"message_stop"}`)},
	}
}

func breakages() []behaviour {
	x := []message.Block{message.Text("x")}
	reset := func(w http.ResponseWriter, r *http.Request) {
		sse(opening(), said(0, "x"))(w, r)
		panic(http.ErrAbortHandler)
	}
	broken := func(kind, text string) http.HandlerFunc {
		return sse(opening(), said(0, "x"), "event: error\ndata: "+vendorError(kind, text)+"\n\n")
	}
	return []behaviour{
		{name: "the end is missing (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeStreamClosed, 0), handler: sse(opening(), said(0, "x"), stop("end_turn"))},
		{name: "an end within an event (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeStreamClosed, 0), handler: sse(opening(), said(0, "x"), "event: message_delta\ndata: {\"type\":\"mess")},
		{name: "cut (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeStreamClosed, 0), words: []string{"127.0.0.1"}, handler: reset},
		{name: "no JSON (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeMalformedResponse, 0), handler: sse(said(0, "x"), "event: content_block_delta\ndata: {oh no}\n\n", done)},
		{name: "no object (M28)", kind: llm.FinishError, failure: failing(llm.CodeMalformedResponse, 0), handler: sse("data: 17\n\n", done)},
		{name: "no type (M28)", kind: llm.FinishError, failure: failing(llm.CodeMalformedResponse, 0), handler: sse("data: {\"id\":1}\n\n", done)},
		{name: "overloaded in the stream (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeServer, 0), words: []string{"Overloaded"}, handler: broken("overloaded_error", "Overloaded")},
		{name: "rate limit in the stream (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeRateLimit, 0), handler: broken("rate_limit_error", "slower")},
		{name: "api_error in the stream (M28)", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeServer, 0), handler: broken("api_error", "oops")},
		{name: "timeout_error in the stream", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeServer, 0), handler: broken("timeout_error", "oops")},
		{name: "billing_error in the stream", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeQuota, 0), handler: broken("billing_error", "pay")},
		{name: "invalid_request_error in the stream", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeInvalidRequest, 0), handler: broken("invalid_request_error", "no")},
		{name: "too long, said in the stream", kind: llm.FinishError, blocks: x, failure: failing(llm.CodeContextWindow, 0), handler: broken("invalid_request_error", "prompt is too long: 2 tokens > 1 maximum")},
		{name: "an error without a name", kind: llm.FinishError, failure: failing(llm.CodeServer, 0), words: []string{"kaputt"}, handler: sse(`data: {"error":{"message":"kaputt"}}` + "\n\n")},
	}
}

func refusals() []behaviour {
	waiting := func(f message.Failure, ms int64) message.Failure { f.RetryAfterMS = ms; return f }
	rows := []struct {
		status  int
		body    string
		headers []string
		failure message.Failure
		words   []string
	}{
		{400, vendorError("invalid_request_error", "max_tokens: Field required"), nil, failing(llm.CodeInvalidRequest, 400), []string{"max_tokens: Field required", "127.0.0.1"}},
		{400, vendorError("invalid_request_error", "prompt is too long: 215310 tokens > 200000 maximum"), nil, failing(llm.CodeContextWindow, 400), nil},
		{400, vendorError("invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 3"), nil, failing(llm.CodeContextWindow, 400), nil},
		{400, vendorError("invalid_request_error", "Your credit balance is too low to access the Anthropic API."), nil, failing(llm.CodeQuota, 400), nil},
		{400, vendorError("invalid_request_error", "You have reached your specified API usage limits."), nil, failing(llm.CodeQuota, 400), nil},
		{401, vendorError("authentication_error", "invalid x-api-key "+testKey), nil, failing(llm.CodeAuth, 401), []string{"[redacted]"}},
		{402, vendorError("billing_error", "pay"), nil, failing(llm.CodeQuota, 402), nil},
		{403, vendorError("permission_error", "no"), nil, failing(llm.CodeAuth, 403), nil},
		{404, vendorError("not_found_error", "model: claude-9"), nil, failing("HTTP_404", 404), []string{"model: claude-9"}},
		{413, vendorError("request_too_large", "Request exceeds the maximum size"), nil, failing(llm.CodeInvalidRequest, 413), nil},
		{429, vendorError("rate_limit_error", "slower"), []string{"Retry-After", "7"}, waiting(failing(llm.CodeRateLimit, 429), 7_000), nil},
		{429, vendorError("rate_limit_error", "slower"), []string{"Retry-After", clock.Add(90 * time.Second).Format(http.TimeFormat)}, waiting(failing(llm.CodeRateLimit, 429), 90_000), nil},
		{429, vendorError("rate_limit_error", "slower"), []string{"Retry-After", clock.Add(-time.Hour).Format(http.TimeFormat)}, failing(llm.CodeRateLimit, 429), nil},
		{500, vendorError("api_error", "Internal server error"), nil, failing(llm.CodeServer, 500), nil},
		{504, vendorError("timeout_error", "late"), nil, failing(llm.CodeServer, 504), nil},
		{529, vendorError("overloaded_error", "Overloaded"), []string{"Retry-After", "2", "X-Should-Retry", "true"}, waiting(failing(llm.CodeServer, 529), 2_000), []string{"HTTP 529: Overloaded"}},
		{502, "<html>bad gateway</html>", []string{"Content-Type", "text/html"}, failing(llm.CodeServer, 502), []string{"web page"}},
		{200, "<!doctype html>", []string{"Content-Type", "text/html"}, failing(llm.CodeMalformedResponse, 0), []string{"base URL"}},
		{200, vendorError("overloaded_error", "Overloaded"), nil, failing(llm.CodeServer, 0), []string{"Overloaded"}},
	}
	var out []behaviour
	for _, r := range rows {
		name := http.StatusText(r.status) + " " + r.body
		if len(r.headers) > 0 {
			name += " " + r.headers[1]
		}
		out = append(out, behaviour{name: "HTTP " + name + " (M28)", kind: llm.FinishError, handler: refuse(r.status, r.body, r.headers...), failure: r.failure, words: r.words})
	}
	return out
}

func TestBehaviours(t *testing.T) {
	for _, tt := range append(append(answers(), breakages()...), refusals()...) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := serve(t, anthropic.Config{Now: func() time.Time { return clock }}, tt.handler)
			got := collect(t, t.Context(), a, ask("hi"))
			if diff := cmp.Diff(tt.blocks, got.Blocks); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
			if got.Finish.Kind != tt.kind {
				t.Errorf("finish %q, want %q (%+v)", got.Finish.Kind, tt.kind, got.Finish.Failure)
			}
			if diff := cmp.Diff(tt.usage, got.Usage); diff != "" {
				t.Errorf("usage (-want +got):\n%s", diff)
			}
			secretFree(t, got.Finish.Failure)
			if (tt.failure == message.Failure{}) {
				return
			}
			f := message.Failure{}
			if got.Finish.Failure != nil {
				f = *got.Finish.Failure
			}
			for _, w := range append(tt.words, "anthropic: ") {
				if !strings.Contains(f.Message, w) {
					t.Errorf("message %q lacks %q", f.Message, w)
				}
			}
			f.Message = ""
			if diff := cmp.Diff(tt.failure, f); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
		})
	}
}
