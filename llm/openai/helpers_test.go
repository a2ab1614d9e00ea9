package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/openai"
	"github.com/offshoot-dev/offshoot/message"
)

const testKey = "sk-test-0123456789"

// result is what a consumer gets of one call.
type result struct {
	Blocks []message.Block
	Text   string
	Finish llm.Finish
	Usage  *message.Usage
}

// collect makes a call and checks that the stream is legal (core I10).
func collect(t testing.TB, ctx context.Context, a llm.Adapter, req *llm.Request) result {
	t.Helper()
	var (
		as llm.Assembler
		g  llm.Grammar
	)
	for c, err := range a.Stream(ctx, req) {
		if err != nil {
			t.Fatalf("the adapter yielded an error: %v", err)
		}
		if err := g.Add(c); err != nil {
			t.Fatal(err)
		}
		if err := as.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.End(); err != nil {
		t.Fatal(err)
	}
	r := result{Blocks: as.Blocks(), Text: as.Text(), Finish: as.Finish()}
	if u, ok := as.Usage(); ok {
		r.Usage = &u
	}
	return r
}

func ask(text string) *llm.Request {
	return &llm.Request{Provider: "route", Model: "some-model", Messages: []message.Message{{ID: "m1", Role: message.RoleUser, Content: []message.Block{message.Text(text)}}}}
}

// serve starts a server and an adapter for it.
func serve(t testing.TB, config openai.Config, handler http.HandlerFunc) *openai.Adapter {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	config.BaseURL = server.URL + "/v1"
	if config.APIKey == "" {
		config.APIKey = testKey
	}
	a, err := openai.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.CloseIdleConnections)
	return a
}

// sse answers with a stream of events, each of them sent at once.
func sse(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server that answers early would break the upload
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.Header().Set("X-Request-Id", "req-7")
		for _, e := range events {
			if _, err := io.WriteString(w, e); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func refuse(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // as in sse
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", "req-7")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const done = "data: [DONE]\n\n"

// delta is an event with one delta and, if reason is not empty, its finish reason.
func delta(fields, reason string) string {
	end := "null"
	if reason != "" {
		end = quote(reason)
	}
	return fmt.Sprintf("data: {\"id\":\"resp1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{%s},\"finish_reason\":%s}]}\n\n", fields, end)
}

func said(text string) string { return delta(`"content":`+quote(text), "") }

func called(index int, id, name, args string) string {
	fields := fmt.Sprintf(`"tool_calls":[{"index":%d`, index)
	if id != "" {
		fields += `,"id":` + quote(id) + `,"type":"function"`
	}
	fields += `,"function":{`
	if name != "" {
		fields += `"name":` + quote(name) + `,`
	}
	return delta(fields+`"arguments":`+quote(args)+`}}]`, "")
}

func stop(reason string) string { return delta("", reason) }

func usageEvent(fields string) string {
	return `data: {"id":"resp1","object":"chat.completion.chunk","choices":[],"usage":{` + fields + "}}\n\n"
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func secretFree(t *testing.T, f *message.Failure) {
	t.Helper()
	if f == nil {
		return
	}
	if strings.Contains(f.Message, testKey) || strings.ContainsAny(f.Message, "\n\r") {
		t.Errorf("the failure holds the key or a line break: %q", f.Message)
	}
}
