package fakemodel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMain proves that no goroutine outlives the servers and clients of the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open starts a server that ends with the test.
func open(t *testing.T, opts fakemodel.Options) *fakemodel.Server {
	t.Helper()
	s, err := fakemodel.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// client returns an HTTP client whose connections end with the test.
func client(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

type msg = map[string]any

func user(text string) msg { return msg{"role": "user", "content": text} }

func calls(ids ...string) msg {
	var list []msg
	for _, id := range ids {
		list = append(list, msg{"id": id, "type": "function", "function": msg{"name": "f", "arguments": "{}"}})
	}
	return msg{"role": "assistant", "content": "", "tool_calls": list}
}

func result(id, text string) msg { return msg{"role": "tool", "tool_call_id": id, "content": text} }

// body is a streaming request that asks for usage.
func body(t *testing.T, messages ...msg) []byte {
	t.Helper()
	b, err := json.Marshal(msg{
		"model": "m", "stream": true, "stream_options": msg{"include_usage": true}, "messages": messages,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// send starts a request; the caller reads and closes the response.
func send(ctx context.Context, t *testing.T, s *fakemodel.Server, payload []byte) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/chat/completions", bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k")
	return client(t).Do(req)
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// ask sends the messages and reads the whole answer.
func ask(t *testing.T, s *fakemodel.Server, messages ...msg) answer {
	t.Helper()
	return exchange(t, s, body(t, messages...))
}

func exchange(t *testing.T, s *fakemodel.Server, payload []byte) answer {
	t.Helper()
	resp, err := send(t.Context(), t, s, payload)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); closeErr != nil {
		t.Fatal(closeErr)
	}
	return answer{resp.StatusCode, resp.Header, string(b), err}
}
