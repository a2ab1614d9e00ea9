package anthropic_test

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
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/message"
)

const testKey = "sk-ant-test-0123456789"

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
	return &llm.Request{Provider: "route", Model: "claude-opus-5-5", Messages: []message.Message{user(message.Text(text))}}
}

func user(content ...message.Block) message.Message {
	return message.Message{Role: message.RoleUser, Content: content, Source: message.UserSource()}
}

// answered returns an answer as the message that a log would hold.
func answered(r result) message.Message {
	return message.Message{Role: message.RoleAssistant, Content: r.Blocks, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "route", Model: "claude-opus-5-5", ReplayState: r.Finish.Replay.Encode()})}
}

// serve starts a server and an adapter for it.
func serve(t testing.TB, config anthropic.Config, handler http.HandlerFunc) *anthropic.Adapter {
	t.Helper()
	config.BaseURL = newServer(t, handler)
	if config.APIKey == "" {
		config.APIKey = testKey
	}
	a, err := anthropic.New(config)
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
		w.Header().Set("Request-Id", "req-7")
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
		w.Header().Set("Request-Id", "req-7")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// event is one named event with its members.
func event(kind, members string) string {
	if members != "" {
		members = "," + members
	}
	return fmt.Sprintf("event: %s\ndata: {\"type\":%q%s}\n\n", kind, kind, members)
}

const done = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"

func opening() string {
	return event("message_start", `"message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}`)
}

func start(index int, block string) string {
	return event("content_block_start", fmt.Sprintf(`"index":%d,"content_block":%s`, index, block))
}

func delta(index int, fields string) string {
	return event("content_block_delta", fmt.Sprintf(`"index":%d,"delta":{%s}`, index, fields))
}

func end(index int) string { return event("content_block_stop", fmt.Sprintf(`"index":%d`, index)) }

func stop(reason string) string {
	return event("message_delta", `"delta":{"stop_reason":`+quote(reason)+`,"stop_sequence":null},"usage":{"output_tokens":9}`)
}

// said is one whole text block.
func said(index int, text string) string {
	return start(index, `{"type":"text","text":""}`) + delta(index, `"type":"text_delta","text":`+quote(text)) + end(index)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// vendorError is an error body of the API.
func vendorError(kind, text string) string {
	return `{"type":"error","error":{"type":` + quote(kind) + `,"message":` + quote(text) + `},"request_id":"req-7"}`
}

func secretFree(t *testing.T, f *message.Failure) {
	t.Helper()
	if f != nil && (strings.Contains(f.Message, testKey) || strings.ContainsAny(f.Message, "\n\r")) {
		t.Errorf("the failure holds the key or a line break: %q", f.Message)
	}
}

// newServer starts a server and returns its URL.
func newServer(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}
