package fakemodel_test

import (
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

// TestDialectWire fixes every byte of one rich answer in each dialect (core M25, M27).
func TestDialectWire(t *testing.T) {
	reply := fakemodel.Reply{
		fakemodel.Split(2, fakemodel.Reasoning("hmmm")),
		fakemodel.Split(2, fakemodel.Text("héé <b>")),
		fakemodel.Parallel(
			fakemodel.ToolCall{ID: "c1", Name: "read", Arguments: `{"path":"a"}`, Deltas: 2},
			fakemodel.ToolCall{ID: "c2", Name: "list", Arguments: `{}`, Deltas: 1},
		),
		fakemodel.Usage{Prompt: 100, Cached: 60, Completion: 20, Reasoning: 5},
	}
	for _, d := range fakemodel.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			s := open(t, fakemodel.Options{Dialect: d, Script: fakemodel.Always(reply...)})
			got := ask(t, s, user("hi"))
			if got.err != nil || got.status != http.StatusOK {
				t.Fatalf("status %d, error %v", got.status, got.err)
			}
			if ct := got.header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
				t.Errorf("content type %q", ct)
			}
			golden := filepath.Join("testdata", string(d)+".sse")
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
			checkEvents(t, got.body)
		})
	}
}

// checkEvents asserts that a stream is made of comments and JSON events and ends with [DONE].
func checkEvents(t *testing.T, stream string) {
	t.Helper()
	events := strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n")
	for i, event := range events {
		data, ok := strings.CutPrefix(event, "data: ")
		switch {
		case !ok && strings.HasPrefix(event, ": "):
		case !ok:
			t.Errorf("event %d is neither data nor a comment: %q", i, event)
		case i == len(events)-1:
			if data != "[DONE]" {
				t.Errorf("the last event is %q", data)
			}
		case !json.Valid([]byte(data)):
			t.Errorf("event %d is not JSON: %q", i, data)
		}
	}
}

// data returns the payloads of a stream's events.
func data(stream string) []string {
	var all []string
	for line := range strings.Lines(stream) {
		if payload, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: "); ok {
			all = append(all, payload)
		}
	}
	return all
}

// TestAnswerShapes has the well-formed answers that are not plain success (core M25, M26, M28; Q8).
func TestAnswerShapes(t *testing.T) {
	const opening = `{"id":"chatcmpl-fake-1","object":"chat.completion.chunk","created":1767225600,"model":"m","service_tier":"default","system_fingerprint":"fp_fake","choices":`
	const first = opening + `[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}`
	finish := func(reason string) string {
		return opening + `[{"index":0,"delta":{},"logprobs":null,"finish_reason":"` + reason + `"}],"usage":null}`
	}
	delta := func(d string) string {
		return opening + `[{"index":0,"delta":` + d + `,"logprobs":null,"finish_reason":null}],"usage":null}`
	}
	noUsage := fakemodel.Usage{Omit: true}
	for _, tt := range []struct {
		name  string
		steps fakemodel.Reply
		want  []string
	}{
		{"length", fakemodel.Reply{fakemodel.Text("par"), fakemodel.Length, noUsage},
			[]string{first, delta(`{"content":"par"}`), finish("length"), "[DONE]"}},
		{"length amid a call", fakemodel.Reply{fakemodel.ToolCall{ID: "c", Name: "f", Arguments: `{"a":"`, Deltas: 1}, fakemodel.Length, noUsage},
			[]string{first,
				delta(`{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]}`),
				delta(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":\""}}]}`),
				finish("length"), "[DONE]"}},
		{"content filter", fakemodel.Reply{fakemodel.ContentFilter, noUsage},
			[]string{first, finish("content_filter"), "[DONE]"}},
		{"refusal", fakemodel.Reply{fakemodel.Refusal("no"), noUsage},
			[]string{first, delta(`{"refusal":"no"}`), finish("stop"), "[DONE]"}},
		{"secret reasoning", fakemodel.Reply{fakemodel.Reasoning("hm"), fakemodel.Text("a"), noUsage},
			[]string{first, delta(`{"content":"a"}`), finish("stop"), "[DONE]"}},
		{"empty", fakemodel.Reply{noUsage}, []string{first, finish("stop"), "[DONE]"}},
		{"no finish reason", fakemodel.Reply{fakemodel.Text("a"), fakemodel.Finish(""), noUsage},
			[]string{first, delta(`{"content":"a"}`), "[DONE]"}},
		{"only done", fakemodel.Reply{fakemodel.Done{}}, []string{"[DONE]"}},
		{"empty body", fakemodel.Reply{fakemodel.CleanEOF{}}, nil},
		{"clean end before done", fakemodel.Reply{fakemodel.Text("a"), fakemodel.CleanEOF{}},
			[]string{first, delta(`{"content":"a"}`)}},
		{"odd finish", fakemodel.Reply{fakemodel.Finish("insufficient_system_resource"), noUsage},
			[]string{first, finish("insufficient_system_resource"), "[DONE]"}},
		{"error in the stream", fakemodel.Reply{fakemodel.Text("a"), fakemodel.ErrorChunk{Message: "boom"}},
			[]string{first, delta(`{"content":"a"}`), `{"error":{"message":"boom","type":"server_error","param":null,"code":null}}`}},
		{"usage at once behind finish", fakemodel.Reply{fakemodel.Stop, fakemodel.Usage{Prompt: 3, Completion: 1}, fakemodel.CleanEOF{}},
			[]string{first, finish("stop"), opening + `[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}`}},
		{"status out of place", fakemodel.Reply{fakemodel.Text("a"), fakemodel.Status{Code: 500}},
			[]string{first, delta(`{"content":"a"}`), `{"error":{"message":"fakemodel: status 500 comes after the stream was opened","type":"fakemodel_error","param":null,"code":"fakemodel"}}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, fakemodel.Options{Script: fakemodel.Always(tt.steps...)})
			got := ask(t, s, user("hi"))
			if got.err != nil || got.status != http.StatusOK {
				t.Fatalf("status %d, error %v", got.status, got.err)
			}
			if diff := cmp.Diff(tt.want, data(got.body)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestErrorChunks has the forms that an error in the middle of a stream takes where it differs from OpenAI's.
func TestErrorChunks(t *testing.T) {
	for d, want := range map[fakemodel.Dialect][]string{
		fakemodel.OpenRouter: {`{"id":"gen-fake-1","provider":"Fake","object":"chat.completion.chunk","created":1767225600,"model":"m","error":{"code":"server_error","message":"boom"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error","native_finish_reason":"error","logprobs":null}]}`, "[DONE]"},
		fakemodel.VLLM:       {`{"error":{"message":"boom","type":"server_error","param":null,"code":500}}`, "[DONE]"},
		fakemodel.LlamaCpp:   {`{"error":{"message":"boom","type":"server_error","param":null,"code":500}}`},
	} {
		s := open(t, fakemodel.Options{Dialect: d, Script: fakemodel.Always(fakemodel.ErrorChunk{Message: "boom"})})
		if diff := cmp.Diff(want, data(ask(t, s, user("hi")).body)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", d, diff)
		}
	}
}

// TestUsageOnlyWhenAsked: only OpenRouter sends usage unasked, and llama.cpp none of its own (core M21).
func TestUsageOnlyWhenAsked(t *testing.T) {
	for _, d := range fakemodel.Dialects() {
		s := open(t, fakemodel.Options{Dialect: d})
		unasked := exchange(t, s, []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`)).body
		asked := ask(t, s, user("hi")).body
		const mark = `"prompt_tokens"`
		if got, want := strings.Contains(unasked, mark), d == fakemodel.OpenRouter; got != want {
			t.Errorf("%s: usage unasked: %v", d, got)
		}
		if got, want := strings.Contains(asked, mark), d != fakemodel.LlamaCpp; got != want {
			t.Errorf("%s: usage asked: %v", d, got)
		}
	}
}

// TestFailures has the status of every failure in every dialect, and an error body in its form (core M28).
func TestFailures(t *testing.T) {
	statuses := map[fakemodel.Failure]int{
		fakemodel.BadRequest: 400, fakemodel.ContextLength: 400, fakemodel.Unauthorized: 401, fakemodel.Forbidden: 403,
		fakemodel.Quota: 429, fakemodel.UnknownModel: 404, fakemodel.TooLarge: 413, fakemodel.RateLimited: 429,
		fakemodel.ServerError: 500, fakemodel.Unavailable: 503,
	}
	own := map[fakemodel.Dialect]map[fakemodel.Failure]int{
		fakemodel.DeepSeek:   {fakemodel.Quota: 402, fakemodel.UnknownModel: 400},
		fakemodel.OpenRouter: {fakemodel.Quota: 402, fakemodel.UnknownModel: 400},
	}
	for _, d := range fakemodel.Dialects() {
		for _, f := range fakemodel.Failures() {
			s := open(t, fakemodel.Options{Dialect: d, Script: fakemodel.Always(f.With("Retry-After", "7"))})
			got := ask(t, s, user("hi"))
			want := statuses[f]
			if special, ok := own[d][f]; ok {
				want = special
			}
			if got.status != want || got.header.Get("Retry-After") != "7" || got.header.Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: status %d (want %d), header %v", d, f, got.status, want, got.header)
			}
			var body struct {
				Error json.RawMessage `json:"error"`
			}
			if err := json.Unmarshal([]byte(got.body), &body); err != nil || len(body.Error) == 0 {
				t.Errorf("%s %s: body %q: %v", d, f, got.body, err)
			}
			s.Close()
		}
	}
}

// TestStatus has headers, bodies and retry hints as they are scripted, sane or not (core M28).
func TestStatus(t *testing.T) {
	for _, retry := range []string{"2", "Wed, 21 Oct 2026 07:28:00 GMT", "0", "-5", "soon"} {
		s := open(t, fakemodel.Options{Script: fakemodel.Always(fakemodel.Status{
			Code: 429, Header: map[string]string{"Retry-After": retry},
		})})
		got := ask(t, s, user("hi"))
		if got.status != 429 || got.header.Get("Retry-After") != retry || !strings.Contains(got.body, "Rate limit reached for m") {
			t.Errorf("%s: %+v", retry, got)
		}
	}
	s := open(t, fakemodel.Options{Script: fakemodel.Always(fakemodel.Status{Code: 418, Body: "short and stout", Header: map[string]string{"Content-Type": "text/plain"}})})
	if got := ask(t, s, user("hi")); got.status != 418 || got.body != "short and stout" || got.header.Get("Content-Type") != "text/plain" {
		t.Errorf("%+v", got)
	}
	s.SetScript(fakemodel.Always(fakemodel.NotAStream()))
	if got := ask(t, s, user("hi")); got.status != 200 || !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") || !strings.HasPrefix(got.body, "<!doctype") {
		t.Errorf("%+v", got)
	}
}

// TestFraming has what lies between the events: comments, broken JSON, raw bytes, and cuts at any byte.
func TestFraming(t *testing.T) {
	s := open(t, fakemodel.Options{Script: fakemodel.Always(
		fakemodel.Fragment(1), fakemodel.Comment("keep-alive"), fakemodel.Raw("event: x\r\n\r\n"), fakemodel.Garbage, fakemodel.Text("é"),
	)})
	got := ask(t, s, user("hi"))
	if !strings.HasPrefix(got.body, ": keep-alive\n\nevent: x\r\n\r\n"+string(fakemodel.Garbage)+"data: {") || !strings.Contains(got.body, `{"content":"é"}`) || got.err != nil {
		t.Errorf("%v %q", got.err, got.body)
	}
	if json.Valid([]byte(strings.TrimPrefix(strings.TrimSpace(string(fakemodel.Garbage)), "data: "))) {
		t.Error("garbage is valid JSON")
	}
}

// TestModels serves the list of models and refuses the others, under both bases.
func TestModels(t *testing.T) {
	s := open(t, fakemodel.Options{Models: []string{"a", "b"}, Key: "k"})
	for _, base := range []string{s.URL(), s.Origin()} {
		for key, want := range map[string]string{
			"k": `{"object":"list","data":[{"id":"a","object":"model","created":1767225600,"owned_by":"fakemodel"},{"id":"b","object":"model","created":1767225600,"owned_by":"fakemodel"}]}`,
			"x": `{"error":{"message":"Incorrect API key provided.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`,
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := client(t).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if string(b) != want {
				t.Errorf("models with key %s: %s", key, b)
			}
		}
	}
	if got := ask(t, s, user("hi")); got.status != 404 || !strings.Contains(got.body, "model_not_found") {
		t.Errorf("model m: %+v", got)
	}
	if n := s.Total(); n != 1 {
		t.Errorf("%d chat requests", n)
	}
}
