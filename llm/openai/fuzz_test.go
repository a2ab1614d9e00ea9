package openai_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/openai"
)

// bodyTransport answers every call with one body.
type bodyTransport func() io.Reader

func (b bodyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(b()), Request: req}, nil
}

// FuzzStream feeds arbitrary bytes as a response body: the stream stays legal (core
// I10), says "stop" only after a [DONE], and does not depend on how the bytes are
// cut into reads.
func FuzzStream(f *testing.F) {
	f.Add(said("hello") + called(0, "c1", "n", "{}") + stop("tool_calls") + usageEvent(`"prompt_tokens":3`) + done)
	f.Add(": c\r\n\r\n" + said("a") + "data: {\"choices\":[{\"delta\":")
	f.Add("event: error\ndata: {\"error\":[1]}\n\n")
	f.Add("data: {\"error\":{\"message\":{},\"code\":[],\"type\":3}}\n\n")
	f.Add("data: {\"choices\":{\"0\":null},\"usage\":[]}\n\ndata: [DONE]")
	f.Add(delta(`"reasoning_content":5,"content":[],"tool_calls":[{"index":-1,"function":null},null]`, "length") + done)
	f.Fuzz(func(t *testing.T, body string) {
		run := func(reader func() io.Reader) result {
			a, err := openai.New(openai.Config{Dialect: "deepseek", APIKey: testKey, HTTPClient: &http.Client{Transport: bodyTransport(reader)}})
			if err != nil {
				t.Fatal(err)
			}
			return collect(t, context.Background(), a, ask("hi"))
		}
		whole := run(func() io.Reader { return strings.NewReader(body) })
		bytewise := run(func() io.Reader { return iotest.OneByteReader(strings.NewReader(body)) })
		if diff := cmp.Diff(whole, bytewise); diff != "" {
			t.Errorf("read whole and byte by byte (-whole +bytewise):\n%s", diff)
		}
		dataErr := run(func() io.Reader { return iotest.DataErrReader(strings.NewReader(body)) })
		if diff := cmp.Diff(whole, dataErr); diff != "" {
			t.Errorf("the end with the last bytes (-apart +together):\n%s", diff)
		}
		if whole.Finish.Kind != llm.FinishError && !strings.Contains(body, "[DONE]") {
			t.Errorf("finish %q without [DONE]", whole.Finish.Kind)
		}
	})
}

// refusalTransport answers every call with one status, wait and body.
type refusalTransport struct {
	status           int
	wait, kind, body string
}

func (r refusalTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: r.status, Header: http.Header{"Content-Type": {r.kind}, "Retry-After": {r.wait}},
		Body: io.NopCloser(strings.NewReader(r.body)), Request: req,
	}, nil
}

// FuzzRefusal feeds arbitrary refusals: whatever a server says in place of a stream
// is one failure with a code and a text, whose wait the log can hold (core M28).
func FuzzRefusal(f *testing.F) {
	f.Add(429, "7", "application/json", `{"error":{"message":"slow down","type":"rate_limit","code":null}}`)
	f.Add(503, "Fri, 31 Dec 9999 23:59:59 GMT", "text/html", `<html>`)
	f.Add(400, "1e308", "", `[{"error":"context length"}]`)
	f.Add(200, "-1", "application/json", `{"error":{"code":"529","message":{"a":1}}}`)
	f.Add(402, "NaN", "application/json", `{"detail":["x"],"message":5}`)
	f.Add(301, "", "text/event-stream", `{"message":"\ud800"}`)
	f.Fuzz(func(t *testing.T, status int, wait, kind, body string) {
		if status < 200 || status > 599 || status == 200 && strings.Contains(kind, "event-stream") {
			t.Skip("no refusal")
		}
		a, err := openai.New(openai.Config{Dialect: "deepseek", APIKey: testKey, HTTPClient: &http.Client{Transport: refusalTransport{status, wait, kind, body}}})
		if err != nil {
			t.Fatal(err)
		}
		r := collect(t, context.Background(), a, ask("hi"))
		if r.Finish.Kind != llm.FinishError || r.Finish.Failure == nil {
			t.Fatalf("a refusal ended as %q", r.Finish.Kind)
		}
		fail := r.Finish.Failure
		if fail.Code == "" || fail.Message == "" || fail.RetryAfterMS < 0 || fail.RetryAfterMS > 1<<53-1 || fail.Status < 0 || strings.Contains(fail.Message, testKey) {
			t.Errorf("failure %+v", fail)
		}
	})
}

func BenchmarkStream(b *testing.B) {
	body := strings.Repeat(said("hello there"), 1000) + stop("stop") + done
	a, err := openai.New(openai.Config{Dialect: "deepseek", APIKey: testKey, HTTPClient: &http.Client{Transport: bodyTransport(func() io.Reader { return strings.NewReader(body) })}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range a.Stream(b.Context(), ask("hi")) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
