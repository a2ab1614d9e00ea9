package openai_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/openai"
	"github.com/offshoot-dev/offshoot/message"
)

// reasoningField is the field by which each dialect's server sends reasoning.
var reasoningField = map[string]string{
	"deepseek": "reasoning_content", "openrouter": "reasoning", "ollama": "reasoning", "vllm": "reasoning_content", "llamacpp": "reasoning_content",
}

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

func failing(code string, status int) message.Failure {
	return message.Failure{Code: code, Status: status, RequestID: "req-7"}
}

var clock = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func answers() []behaviour {
	parallel := []message.Block{message.ToolCall("c1", "read", `{"path":"a"}`), message.ToolCall("c2", "list", `{}`)}
	return []behaviour{
		{name: "reply (M21, M25)", kind: llm.FinishStop, blocks: []message.Block{message.Text("Hello, world")},
			handler: sse(delta(`"role":"assistant","content":"","reasoning_content":"","reasoning":""`, ""), said("Hello, "), said("world"), stop("stop"), done)},
		{name: "usage in a trailing chunk without choices (M25, M27)", kind: llm.FinishStop, blocks: []message.Block{message.Text("x")},
			usage: &message.Usage{InputTokens: 60, CacheReadTokens: 40, OutputTokens: 9, ReasoningTokens: 3, HasCacheRead: true, HasReasoning: true},
			handler: sse(said("x"), stop("stop"),
				usageEvent(`"prompt_tokens":100,"completion_tokens":9,"total_tokens":109,"prompt_tokens_details":{"cached_tokens":40},"completion_tokens_details":{"reasoning_tokens":3}`), done)},
		{name: "usage with the cache hits in DeepSeek's own field (M27)", kind: llm.FinishStop, blocks: []message.Block{message.Text("x")},
			usage:   &message.Usage{InputTokens: 1, CacheReadTokens: 2, OutputTokens: 1, HasCacheRead: true},
			handler: sse(said("x"), stop("stop"), usageEvent(`"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_cache_hit_tokens":2`), done)},
		{name: "usage that does not add up (M27)", kind: llm.FinishStop, blocks: []message.Block{message.Text("x")},
			usage:   &message.Usage{CacheReadTokens: 9, HasCacheRead: true},
			handler: sse(said("x"), stop("stop"), usageEvent(`"prompt_tokens":3,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":9}`), done)},
		{name: "parallel tool calls with split arguments (M25)", kind: llm.FinishToolCalls, blocks: append([]message.Block{message.Text("Let me look.")}, parallel...),
			handler: sse(said("Let me look."), called(0, "c1", "read", ""), called(0, "", "", `{"pa`), called(1, "c2", "list", `{`), called(0, "", "", `th":"a"}`), called(1, "", "", `}`), stop("tool_calls"), done)},
		{name: "parallel tool calls that are all numbered 0", kind: llm.FinishToolCalls, blocks: parallel,
			handler: sse(called(0, "c1", "read", `{"path":"a"}`), called(0, "c2", "list", `{}`), stop("stop"), done)},
		{name: "a tool call without an id", kind: llm.FinishToolCalls, blocks: []message.Block{message.ToolCall("call_resp1_0", "list", `{}`)},
			handler: sse(called(0, "", "list", `{`), called(0, "", "", `}`), stop("tool_calls"), done)},
		{name: "length cut (M8, M26)", kind: llm.FinishMaxTokens, blocks: []message.Block{message.Text("so far")},
			handler: sse(said("so far"), called(0, "c1", "read", `{"pat`), stop("length"), done)},
		{name: "refusal in a field of its own (P31)", kind: llm.FinishRefusal, blocks: []message.Block{message.Text("I will not.")},
			handler: sse(delta(`"content":null,"refusal":"I will "`, ""), delta(`"refusal":"not."`, ""), stop("stop"), done)},
		{name: "content filter keeps the text (P31)", kind: llm.FinishRefusal, blocks: []message.Block{message.Text("Well, ")},
			handler: sse(said("Well, "), stop("content_filter"), done)},
		{name: "no finish reason is a stop (M28)", kind: llm.FinishStop, blocks: []message.Block{message.Text("x")}, handler: sse(said("x"), done)},
		{name: "empty (M28)", kind: llm.FinishError, failure: failing(llm.CodeEmptyResponse, 0), handler: sse(delta(`"role":"assistant","content":""`, ""), stop("stop"), done)},
		{name: "nothing but the end (M28)", kind: llm.FinishError, failure: failing(llm.CodeEmptyResponse, 0), handler: sse(done)},
		{name: "another finish reason (M26)", kind: llm.FinishError, blocks: []message.Block{message.Text("x")}, failure: failing("INSUFFICIENT_SYSTEM_RESOURCE", 0),
			handler: sse(said("x"), stop("insufficient_system_resource"), done)},
		{name: "unknown fields, nulls, comments, other choices and CRLF", kind: llm.FinishStop, blocks: []message.Block{message.Text("ab")},
			handler: sse(": hello\n\n", "retry: 10\nid: 3\n\n", strings.ReplaceAll(said("a"), "\n", "\r\n"),
				"data:{\"id\":\"resp1\",\"error\":null,\"x\":[{}],\"usage\":null,\"choices\":[{\"index\":0,\"logprobs\":null,\"delta\":{\"content\":\"b\",\"tool_calls\":null,\"function_call\":null,\"extra\":{\"deep\":[1]}},\"finish_reason\":null}]}\n\n",
				`data: {"choices":[{"index":1,"delta":{"content":"other"}}]}`+"\n\n", stop("stop"), done)},
		{name: "the last event lacks its blank line", kind: llm.FinishStop, blocks: []message.Block{message.Text("x")}, handler: sse(said("x"), stop("stop"), "data: [DONE]")},
	}
}

func breakages() []behaviour {
	reset := func(w http.ResponseWriter, r *http.Request) {
		sse(said("so far"))(w, r)
		panic(http.ErrAbortHandler)
	}
	partial := []message.Block{message.Text("so far")}
	return []behaviour{
		{name: "clean EOF before the end (M28)", kind: llm.FinishError, blocks: partial, failure: failing(llm.CodeStreamClosed, 0), handler: sse(said("so far"), stop("stop"))},
		{name: "clean EOF within an event (M28)", kind: llm.FinishError, blocks: partial, failure: failing(llm.CodeStreamClosed, 0), handler: sse(said("so far"), `data: {"choices":[{"del`)},
		{name: "clean EOF at once (M28)", kind: llm.FinishError, failure: failing(llm.CodeStreamClosed, 0), handler: sse()},
		{name: "cut stream (M28)", kind: llm.FinishError, blocks: partial, failure: failing(llm.CodeStreamClosed, 0), handler: reset},
		{name: "garbage (M28)", kind: llm.FinishError, blocks: partial, failure: failing(llm.CodeMalformedResponse, 0), handler: sse(said("so far"), "data: {oh no}\n\n", done)},
		{name: "an event that is no object (M28)", kind: llm.FinishError, failure: failing(llm.CodeMalformedResponse, 0), handler: sse("data: 17\n\n", done)},
		{name: "error object in the stream (M28)", kind: llm.FinishError, blocks: partial, failure: failing(llm.CodeServer, 0), words: []string{"overloaded"},
			handler: sse(said("so far"), `data: {"error":{"message":"overloaded, sorry","type":"server_error","code":null}}`+"\n\n")},
		{name: "error object with a status", kind: llm.FinishError, failure: failing(llm.CodeRateLimit, 429), words: []string{"slow down"},
			handler: sse(`data: {"id":"resp1","choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":429,"message":"slow down"}}`+"\n\n", done)},
		{name: "error object with a type", kind: llm.FinishError, failure: failing(llm.CodeContextWindow, 0), words: []string{"too much"},
			handler: sse(`data: {"error":{"message":"too much","type":"invalid_request_error","code":"context_length_exceeded"}}`+"\n\n", done)},
		{name: "error as a text", kind: llm.FinishError, failure: failing(llm.CodeServer, 0), words: []string{"runner died"}, handler: sse(`data: {"error":"the runner died"}` + "\n\n")},
		{name: "error as an event", kind: llm.FinishError, failure: failing(llm.CodeServer, 0), words: []string{"kaputt"}, handler: sse("event: error\ndata: {\"message\":\"kaputt\"}\n\n")},
		{name: "error as an object of that name", kind: llm.FinishError, failure: failing(llm.CodeInvalidRequest, 400), words: []string{"bad"},
			handler: sse(`data: {"object":"error","message":"bad","type":"BadRequestError","code":400}` + "\n\n")},
	}
}

func refusals() []behaviour {
	openaiError := func(message, typ, code string) string {
		return fmt.Sprintf(`{"error":{"message":%s,"type":%s,"param":null,"code":%s}}`, quote(message), quote(typ), quote(code))
	}
	waiting := func(f message.Failure, ms int64) message.Failure { f.RetryAfterMS = ms; return f }
	rows := []struct {
		name    string
		handler http.HandlerFunc
		failure message.Failure
		words   []string
	}{
		{"400", refuse(400, openaiError("no such parameter", "invalid_request_error", "x")), failing(llm.CodeInvalidRequest, 400), []string{"no such parameter"}},
		{"401", refuse(401, openaiError("Incorrect API key provided: "+testKey, "invalid_request_error", "invalid_api_key")), failing(llm.CodeAuth, 401), []string{"[redacted]"}},
		{"403", refuse(403, `{"error":"no"}`), failing(llm.CodeAuth, 403), nil},
		{"402", refuse(402, openaiError("Insufficient Balance", "unknown_error", "invalid_request_error")), failing(llm.CodeQuota, 402), []string{"Insufficient Balance"}},
		{"429 with quota wording", refuse(429, openaiError("You exceeded your current quota, please check your plan and billing details.", "insufficient_quota", "insufficient_quota")), failing(llm.CodeQuota, 429), nil},
		{"429 that mentions billing", refuse(429, openaiError("Rate limit reached for m. Add a payment method at https://platform.openai.com/account/billing", "requests", "rate_limit_exceeded")), failing(llm.CodeRateLimit, 429), nil},
		{"429 with a quota per minute", refuse(429, openaiError("Quota exceeded: 10 requests per minute", "", "")), failing(llm.CodeRateLimit, 429), nil},
		{"429 with seconds", refuse(429, "{}", "Retry-After", "7"), waiting(failing(llm.CodeRateLimit, 429), 7_000), nil},
		{"429 with a fraction", refuse(429, "{}", "Retry-After", "0.25"), waiting(failing(llm.CodeRateLimit, 429), 250), nil},
		{"429 with milliseconds", refuse(429, "{}", "Retry-After", "9", "Retry-After-Ms", "120"), waiting(failing(llm.CodeRateLimit, 429), 120), nil},
		{"429 with a date", refuse(429, "{}", "Retry-After", clock.Add(90*time.Second).Format(http.TimeFormat)), waiting(failing(llm.CodeRateLimit, 429), 90_000), nil},
		{"429 with a date in the past", refuse(429, "{}", "Retry-After", clock.Add(-time.Hour).Format(http.TimeFormat)), failing(llm.CodeRateLimit, 429), nil},
		{"429 with zero", refuse(429, "{}", "Retry-After", "0"), failing(llm.CodeRateLimit, 429), nil},
		{"429 with a negative", refuse(429, "{}", "Retry-After", "-5"), failing(llm.CodeRateLimit, 429), nil},
		{"429 with nonsense", refuse(429, "{}", "Retry-After", "NaN"), failing(llm.CodeRateLimit, 429), nil},
		{"413", refuse(413, "{}"), failing(llm.CodeInvalidRequest, 413), nil},
		{"404", refuse(404, `{"error":{"message":"model \"some-model\" not found"}}`), failing("HTTP_404", 404), []string{"not found"}},
		{"422", refuse(422, `{"detail":[{"loc":["body"],"msg":"field required"}]}`), failing("HTTP_422", 422), []string{"field required"}},
		{"500", refuse(500, `{"error":{"message":"oops"}}`), failing(llm.CodeServer, 500), []string{"HTTP 500", "oops"}},
		{"503 that asks to wait", refuse(503, "", "Retry-After", "2"), waiting(failing(llm.CodeServer, 503), 2_000), nil},
		{"502 with a web page", refuse(502, "<html><body><h1>502</h1>"+strings.Repeat("<p>", 50_000), "Content-Type", "text/html"), failing(llm.CodeServer, 502), []string{"HTTP 502 Bad Gateway", "web page"}},
		{"500 with plain text", refuse(500, "line one\nline two", "Content-Type", "text/plain"), failing(llm.CodeServer, 500), []string{"line one line two"}},
		{"200 with a web page", refuse(200, "<!doctype html>", "Content-Type", "text/html"), failing(llm.CodeMalformedResponse, 0), []string{"base URL"}},
		{"200 with a whole answer", refuse(200, `{"choices":[]}`), failing(llm.CodeMalformedResponse, 0), []string{"not with an event stream"}},
		{"200 with an error", refuse(200, `{"error":{"message":"sick","code":503}}`), failing(llm.CodeServer, 503), []string{"sick"}},
	}
	for _, wording := range []string{ // OpenAI, vLLM, llama.cpp, OpenRouter, DeepSeek, and others behind gateways
		"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
		"'max_tokens' or 'max_completion_tokens' is too large: 300. This model's maximum context length is 256 tokens and your request has 12 input tokens",
		"the request exceeds the available context size (4096 tokens), try increasing it",
		"This endpoint's maximum context length is 32768 tokens. Please reduce the length of either one",
		"Your input exceeds the context window of this model.",
		"prompt is too long: 210000 tokens > 200000 maximum",
	} {
		rows = append(rows, struct {
			name    string
			handler http.HandlerFunc
			failure message.Failure
			words   []string
		}{"400: " + wording, refuse(400, openaiError(wording, "invalid_request_error", "")), failing(llm.CodeContextWindow, 400), nil})
	}
	var out []behaviour
	for _, r := range rows {
		out = append(out, behaviour{name: "HTTP " + r.name + " (M28)", kind: llm.FinishError, handler: r.handler, failure: r.failure, words: r.words})
	}
	return out
}

func TestBehaviours(t *testing.T) {
	for _, dialect := range openai.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			rows := append(append(answers(), breakages()...), refusals()...)
			if field := reasoningField[dialect]; field != "" {
				rows = append(rows, behaviour{
					name: "reasoning (M25)", kind: llm.FinishStop, blocks: []message.Block{message.Reasoning("hmm <so>\u2028"), message.Text("42")},
					handler: sse(delta(`"content":null,"`+field+`":"hmm "`, ""), delta(`"`+field+`":`+quote("<so>\u2028"), ""), delta(`"content":"42","`+field+`":null`, ""), stop("stop"), done),
				})
			}
			for _, tt := range rows {
				t.Run(tt.name, func(t *testing.T) {
					t.Parallel()
					a := serve(t, openai.Config{Dialect: dialect, Now: func() time.Time { return clock }}, tt.handler)
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
					if (tt.failure != message.Failure{}) {
						f := message.Failure{}
						if got.Finish.Failure != nil {
							f = *got.Finish.Failure
						}
						for _, w := range append(tt.words, dialect+": ") {
							if !strings.Contains(f.Message, w) {
								t.Errorf("message %q lacks %q", f.Message, w)
							}
						}
						f.Message = ""
						if diff := cmp.Diff(tt.failure, f); diff != "" {
							t.Errorf("failure (-want +got):\n%s", diff)
						}
					}
				})
			}
		})
	}
}
