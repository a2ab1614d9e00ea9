package anthropic_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
)

// pipeTransport answers with the bytes of a pipe, without sockets.
type pipeTransport struct{ serve func(w *io.PipeWriter) }

func (p pipeTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	go func() {
		p.serve(w)
		_ = w.Close()
	}()
	stop := context.AfterFunc(req.Context(), func() { _ = r.CloseWithError(req.Context().Err()) })
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Request: req,
		Body: struct {
			io.Reader
			io.Closer
		}{r, closer(func() error { stop(); return r.Close() })},
	}, nil
}

type closer func() error

func (c closer) Close() error { return c() }

func pipeAdapter(t testing.TB, serve func(w *io.PipeWriter)) *anthropic.Adapter {
	t.Helper()
	a, err := anthropic.New(anthropic.Config{BaseURL: "http://model.test", APIKey: testKey, HTTPClient: &http.Client{Transport: pipeTransport{serve}}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func write(t testing.TB, w *io.PipeWriter, s string) {
	if _, err := io.WriteString(w, s); err != nil {
		t.Errorf("the reader is gone: %v", err)
	}
}

// The default of 300 s measures one outstanding read: a ping starts it anew (core
// M28).
func TestIdleTimeoutMeasuresTheGap(t *testing.T) {
	t.Run("pings keep it alive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := pipeAdapter(t, func(w *io.PipeWriter) {
				for range 10 {
					<-time.After(299 * time.Second)
					write(t, w, event("ping", ""))
				}
				<-time.After(299 * time.Second)
				write(t, w, opening()+said(0, "late")+stop("end_turn")+done)
			})
			if r := collect(t, t.Context(), a, ask("hi")); r.Text != "late" || r.Finish.Kind != llm.FinishStop {
				t.Errorf("%+v", r)
			}
		})
	})
	t.Run("a gap of 300 s ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			a := pipeAdapter(t, func(w *io.PipeWriter) {
				write(t, w, opening()+said(0, "so far"))
				<-release
			})
			begin := time.Now()
			r := collect(t, t.Context(), a, ask("hi"))
			if r.Text != "so far" || r.Finish.Failure == nil || r.Finish.Failure.Code != llm.CodeTimeout || time.Since(begin) != anthropic.DefaultIdleTimeout {
				t.Errorf("after %v: %+v", time.Since(begin), r)
			}
			close(release)
		})
	})
	t.Run("a server that keeps the connection after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			a := pipeAdapter(t, func(w *io.PipeWriter) {
				write(t, w, opening()+said(0, "x")+stop("end_turn")+done)
				<-release
			})
			begin := time.Now()
			if r := collect(t, t.Context(), a, ask("hi")); r.Finish.Kind != llm.FinishStop || time.Since(begin) > time.Second {
				t.Errorf("after %v: %+v", time.Since(begin), r)
			}
			close(release)
		})
	})
}

// A complete answer leaves its connection for the next call.
func TestConnectionsAreReused(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(sse(opening(), said(0, "x"), done))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	a, err := anthropic.New(anthropic.Config{BaseURL: server.URL, APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	defer a.CloseIdleConnections()
	for range 5 {
		if f := collect(t, t.Context(), a, ask("hi")).Finish; f.Kind != llm.FinishStop {
			t.Fatalf("%+v", f.Failure)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for 5 calls", n)
	}
}

func TestUnreachable(t *testing.T) { // M28
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := anthropic.New(anthropic.Config{BaseURL: "http://" + host + "/?secret=hunter2", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	f := collect(t, t.Context(), a, ask("hi")).Finish.Failure
	if f == nil || f.Code != llm.CodeTransport || !strings.HasPrefix(f.Message, "anthropic: cannot reach "+host+": ") || !strings.Contains(f.Message, "refused") || strings.Contains(f.Message, "hunter2") {
		t.Errorf("failure %+v", f)
	}
}

// Keys are judged before anything goes out, and never shown (core M28).
func TestCredentials(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-ant-environment")
	tests := []struct {
		name   string
		config anthropic.Config
		code   string // "" where the call is made
	}{
		{"none", anthropic.Config{}, llm.CodeMissingCredential},
		{"a bearer token instead", anthropic.Config{Headers: map[string]string{"authorization": "Bearer other"}}, ""},
		{"a header instead", anthropic.Config{Headers: map[string]string{"x-api-key": "other"}}, ""},
		{"the keyring is locked", anthropic.Config{APIKeyFunc: func() (string, error) { return "", errors.New("locked") }}, llm.CodeMissingCredential},
		{"line break", anthropic.Config{APIKey: testKey + "\n"}, llm.CodeInvalidCredential},
		{"not ASCII", anthropic.Config{APIKey: "sk-ключ"}, llm.CodeInvalidCredential},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			calls := 0
			tt.config.BaseURL = newServer(t, func(w http.ResponseWriter, r *http.Request) {
				calls++
				sse(opening(), said(0, "x"), done)(w, r)
			})
			a, err := anthropic.New(tt.config)
			if err != nil {
				t.Fatal(err)
			}
			defer a.CloseIdleConnections()
			f := collect(t, t.Context(), a, ask("hi")).Finish
			secretFree(t, f.Failure)
			if tt.code == "" {
				if f.Kind != llm.FinishStop || calls != 1 {
					t.Errorf("finish %q after %d calls: %+v", f.Kind, calls, f.Failure)
				}
				return
			}
			if f.Failure == nil || f.Failure.Code != tt.code || calls != 0 {
				t.Errorf("after %d calls: %+v", calls, f.Failure)
			}
		})
	}
}

// A secret that a server repeats is cut out wherever it stands.
func TestSecretsAreRedacted(t *testing.T) {
	leak := testKey + " and hdr-987654321 " + strings.Repeat("x", 470) + testKey
	for name, handler := range map[string]http.HandlerFunc{
		"error": refuse(400, vendorError("invalid_request_error", leak)), "text": refuse(500, leak), "stream error": sse("event: error\ndata: " + vendorError("api_error", leak) + "\n\n"),
		"garbage": sse("data: " + leak + "\n\n"), "stop reason": sse(opening(), said(0, "x"), stop(leak), done),
	} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, anthropic.Config{Headers: map[string]string{"X-Proxy-Token": "Bearer hdr-987654321"}}, handler)
			f := collect(t, t.Context(), a, ask("hi")).Finish.Failure
			if f == nil {
				t.Fatal("no failure")
			}
			for _, secret := range []string{testKey, testKey[:12], "hdr-98765"} {
				if strings.Contains(strings.ToLower(f.Message+f.Code), strings.ToLower(secret)) {
					t.Errorf("%q holds %q", f.Message+f.Code, secret)
				}
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for name, base := range map[string]string{
		"credentials": "https://user:hunter2@api.test", "no host": "/v1", "another scheme": "ftp://api.test", "no URL": "http://hunter2\x7f",
	} {
		if a, err := anthropic.New(anthropic.Config{BaseURL: base}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
}

// bodyTransport answers every call with one body.
type bodyTransport func() io.Reader

func (b bodyTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(b()), Request: req}, nil
}

func bodyAdapter(t testing.TB, reader func() io.Reader) *anthropic.Adapter {
	t.Helper()
	a, err := anthropic.New(anthropic.Config{APIKey: testKey, HTTPClient: &http.Client{Transport: bodyTransport(reader)}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// FuzzStream feeds arbitrary bytes as a response body: the stream stays legal (core
// I10), ends well only after a message_stop, and does not depend on how the bytes
// are cut into reads.
func FuzzStream(f *testing.F) {
	f.Add(opening() + said(0, "hello") + start(1, `{"type":"tool_use","id":"c","name":"n","input":{}}`) + delta(1, `"type":"input_json_delta","partial_json":"{}"`) + end(1) + stop("tool_use") + done)
	f.Add(": c\r\n\r\n" + start(0, `{"type":"thinking"}`) + delta(0, `"type":"thinking_delta","thinking":"t"`) + delta(0, `"type":"signature_delta","signature":"s"`) + start(0, `{"type":"redacted_thinking","data":"d"}`) + done)
	f.Add("event: error\ndata: {\"error\":[1]}\n\n")
	f.Add("data: {\"type\":\"message_start\",\"message\":[],\"usage\":7}\n\ndata: {\"type\":\"message_stop\"}")
	f.Add(start(-3, `{"type":"text","text":5}`) + start(9, `{"type":"tool_use","input":[]}`) + stop("max_tokens") + done)
	f.Fuzz(func(t *testing.T, body string) {
		run := func(reader func() io.Reader) result {
			return collect(t, context.Background(), bodyAdapter(t, reader), ask("hi"))
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
		if whole.Finish.Kind != llm.FinishError && !strings.Contains(body, "message_stop") {
			t.Errorf("finish %q without message_stop", whole.Finish.Kind)
		}
	})
}

func BenchmarkStream(b *testing.B) {
	var body strings.Builder
	body.WriteString(opening() + start(0, `{"type":"text","text":""}`))
	for range 1000 {
		body.WriteString(delta(0, `"type":"text_delta","text":"hello there"`))
	}
	body.WriteString(end(0) + stop("end_turn") + done)
	a := bodyAdapter(b, func() io.Reader { return strings.NewReader(body.String()) })
	b.ReportAllocs()
	for b.Loop() {
		for _, err := range a.Stream(b.Context(), ask("hi")) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
