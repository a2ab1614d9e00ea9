package openai_test

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
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/openai"
)

// A caller's cancel reaches the server at once, whether it is silent before the
// headers or after them, or in the midst of its answer; and nothing is left running
// (core M15, M28).
func TestCancel(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	stages := map[string]func(w http.ResponseWriter, r *http.Request){
		"before the headers": func(http.ResponseWriter, *http.Request) {},
		"silent after the headers": func(w http.ResponseWriter, r *http.Request) {
			sse(": thinking\n\n")(w, r)
		},
		"in the midst": func(w http.ResponseWriter, r *http.Request) { sse(said("so "), said("far"))(w, r) },
	}
	for name, begin := range stages {
		for _, by := range []string{"context", "consumer"} {
			if by == "consumer" && name != "in the midst" {
				continue // a consumer that gets nothing cannot stop ranging
			}
			t.Run(name+" by "+by, func(t *testing.T) {
				waiting, gone := make(chan struct{}), make(chan struct{})
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					begin(w, r)
					close(waiting)
					<-r.Context().Done()
					close(gone)
				}))
				defer server.Close()
				a, err := openai.New(openai.Config{Dialect: "openai", BaseURL: server.URL, APIKey: testKey})
				if err != nil {
					t.Fatal(err)
				}
				defer a.CloseIdleConnections()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if by == "consumer" {
					for c, err := range a.Stream(ctx, ask("hi")) {
						if err != nil {
							t.Errorf("error %v", err)
						}
						if c.Kind == llm.ChunkTextDelta {
							break
						}
					}
				} else {
					go func() {
						<-waiting
						cancel(errors.New("enough of this"))
					}()
					f := collect(t, ctx, a, ask("hi")).Finish
					if f.Kind != llm.FinishAborted || f.Failure.Code != llm.CodeAborted || f.Failure.Message != "enough of this" {
						t.Errorf("finish %q: %+v", f.Kind, f.Failure)
					}
				}
				<-gone
			})
		}
	}
}

// The idle timer on a real socket: before the headers, and within the answer.
func TestIdleServer(t *testing.T) { // M28
	for name, begin := range map[string]http.HandlerFunc{"silent": func(http.ResponseWriter, *http.Request) {}, "stalled": sse(said("so far")), "stalled error body": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, `{"err`)
		w.(http.Flusher).Flush()
	}} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			a := serve(t, openai.Config{Dialect: "deepseek", IdleTimeout: 30 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				begin(w, r)
				<-r.Context().Done()
				close(gone)
			})
			f := collect(t, t.Context(), a, ask("hi")).Finish
			if f.Kind != llm.FinishError || f.Failure.Code != llm.CodeTimeout || !strings.Contains(f.Failure.Message, "127.0.0.1") {
				t.Errorf("finish %q: %+v", f.Kind, f.Failure)
			}
			<-gone
		})
	}
}

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

func pipeAdapter(t testing.TB, config openai.Config, serve func(w *io.PipeWriter)) *openai.Adapter {
	t.Helper()
	config.HTTPClient = &http.Client{Transport: pipeTransport{serve}}
	config.APIKey = testKey
	config.BaseURL = "http://model.test/v1"
	a, err := openai.New(config)
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

// The default of 300 s measures one outstanding read: comments start it anew, and
// neither a long answer nor a slow consumer is a silent peer (core M28).
func TestIdleTimeoutMeasuresTheGap(t *testing.T) {
	t.Run("comments keep it alive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := pipeAdapter(t, openai.Config{Dialect: "openrouter"}, func(w *io.PipeWriter) {
				for range 10 {
					<-time.After(299 * time.Second)
					write(t, w, ": PROCESSING\n\n")
				}
				<-time.After(299 * time.Second)
				write(t, w, said("late")+done)
			})
			if r := collect(t, t.Context(), a, ask("hi")); r.Text != "late" || r.Finish.Kind != llm.FinishStop {
				t.Errorf("%+v", r)
			}
		})
	})
	t.Run("a gap of 300 s ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			stop := make(chan struct{})
			a := pipeAdapter(t, openai.Config{Dialect: "openrouter"}, func(w *io.PipeWriter) {
				write(t, w, said("so far"))
				<-stop
			})
			begin := time.Now()
			r := collect(t, t.Context(), a, ask("hi"))
			if r.Text != "so far" || r.Finish.Failure == nil || r.Finish.Failure.Code != llm.CodeTimeout || time.Since(begin) != openai.DefaultIdleTimeout {
				t.Errorf("after %v: %+v", time.Since(begin), r)
			}
			close(stop)
		})
	})
	t.Run("a slow reader is no silent peer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := pipeAdapter(t, openai.Config{Dialect: "openrouter"}, func(w *io.PipeWriter) {
				for range 3 {
					write(t, w, said("x"))
				}
				write(t, w, stop("stop")+done)
			})
			var last llm.Chunk
			for c, err := range a.Stream(t.Context(), ask("hi")) {
				if err != nil {
					t.Errorf("error %v", err)
				}
				<-time.After(time.Hour)
				last = c
			}
			if last.Finish == nil || last.Finish.Kind != llm.FinishStop {
				t.Errorf("last chunk %+v", last)
			}
		})
	})
	t.Run("a server that keeps the connection after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			stop := make(chan struct{})
			a := pipeAdapter(t, openai.Config{Dialect: "openrouter"}, func(w *io.PipeWriter) {
				write(t, w, said("x")+done)
				<-stop
			})
			begin := time.Now()
			if r := collect(t, t.Context(), a, ask("hi")); r.Finish.Kind != llm.FinishStop || time.Since(begin) > time.Second {
				t.Errorf("after %v: %+v", time.Since(begin), r)
			}
			close(stop)
		})
	})
}

func TestLargeAnswers(t *testing.T) {
	word := strings.Repeat("0123456789", 50)
	t.Run("5 MB in one line", func(t *testing.T) {
		big := strings.Repeat(word, 10_000)
		a := serve(t, openai.Config{Dialect: "openai"}, sse(said(big), stop("stop"), done))
		if r := collect(t, t.Context(), a, ask("hi")); r.Text != big || r.Finish.Kind != llm.FinishStop {
			t.Errorf("%d bytes, finish %q: %+v", len(r.Text), r.Finish.Kind, r.Finish.Failure)
		}
	})
	t.Run("10,000 deltas", func(t *testing.T) {
		event := said(word)
		a := serve(t, openai.Config{Dialect: "openai"}, func(w http.ResponseWriter, r *http.Request) {
			sse(": go\n\n")(w, r)
			for range 10_000 {
				_, _ = io.WriteString(w, event)
			}
			_, _ = io.WriteString(w, done)
		})
		if r := collect(t, t.Context(), a, ask("hi")); len(r.Text) != 10_000*len(word) || r.Finish.Kind != llm.FinishStop {
			t.Errorf("%d bytes, finish %q: %+v", len(r.Text), r.Finish.Kind, r.Finish.Failure)
		}
	})
	t.Run("a line beyond all measure", func(t *testing.T) {
		a := serve(t, openai.Config{Dialect: "openai"}, func(w http.ResponseWriter, r *http.Request) {
			sse("data: ")(w, r)
			for range 70_000 { // 35 MB
				if _, err := io.WriteString(w, word); err != nil {
					return
				}
			}
		})
		if f := collect(t, t.Context(), a, ask("hi")).Finish.Failure; f == nil || f.Code != llm.CodeMalformedResponse {
			t.Errorf("failure %+v", f)
		}
	})
}

// A complete answer leaves its connection for the next call.
func TestConnectionsAreReused(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(sse(said("x"), done))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	a, err := openai.New(openai.Config{Dialect: "ollama", BaseURL: server.URL})
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
	a, err := openai.New(openai.Config{Dialect: "openai", BaseURL: "http://" + host + "/v1?secret=hunter2", APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	f := collect(t, t.Context(), a, ask("hi")).Finish.Failure
	if f == nil || f.Code != llm.CodeTransport || !strings.HasPrefix(f.Message, "openai: cannot reach "+host+": ") || !strings.Contains(f.Message, "refused") || strings.Contains(f.Message, "hunter2") {
		t.Errorf("failure %+v", f)
	}
}

func TestServerThatHangsUp(t *testing.T) { // M28
	a := serve(t, openai.Config{Dialect: "openai"}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if f := collect(t, t.Context(), a, ask("hi")).Finish.Failure; f == nil || f.Code != llm.CodeTransport || !strings.Contains(f.Message, "127.0.0.1") {
		t.Errorf("failure %+v", f)
	}
}

// Keys are judged before anything goes out, and never shown (core M28).
func TestCredentials(t *testing.T) {
	tests := []struct {
		name   string
		config openai.Config
		code   string // "" where the call is made
	}{
		{"none", openai.Config{Dialect: "openai"}, llm.CodeMissingCredential},
		{"none needed", openai.Config{Dialect: "vllm"}, ""},
		{"a header instead", openai.Config{Dialect: "openai", Headers: map[string]string{"authorization": "Bearer other"}}, ""},
		{"the keyring is locked", openai.Config{Dialect: "deepseek", APIKeyFunc: func() (string, error) { return "", errors.New("locked") }}, llm.CodeMissingCredential},
		{"line break", openai.Config{Dialect: "openai", APIKey: testKey + "\n"}, llm.CodeInvalidCredential},
		{"not ASCII", openai.Config{Dialect: "ollama", APIKey: "sk-ключ"}, llm.CodeInvalidCredential},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls++
				sse(said("x"), done)(w, r)
			}))
			defer server.Close()
			tt.config.BaseURL = server.URL
			a, err := openai.New(tt.config)
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
	const header = "Bearer hdr-987654321"
	leak := testKey + " and hdr-987654321 " + strings.Repeat("x", 470) + testKey
	for name, handler := range map[string]http.HandlerFunc{
		"error": refuse(400, `{"error":{"message":`+quote(leak)+`}}`), "text": refuse(500, leak), "stream error": sse(`data: {"error":` + quote(leak) + "}\n\n"),
		"garbage": sse("data: " + leak + "\n\n"), "finish reason": sse(said("x"), stop(leak), done),
	} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, openai.Config{Dialect: "openai", Headers: map[string]string{"X-Proxy-Token": header}}, handler)
			f := collect(t, t.Context(), a, ask("hi")).Finish.Failure
			if f == nil {
				t.Fatal("no failure")
			}
			for _, secret := range []string{testKey, testKey[:10], "hdr-98765"} {
				if strings.Contains(strings.ToLower(f.Message+f.Code), strings.ToLower(secret)) {
					t.Errorf("%q holds %q", f.Message+f.Code, secret)
				}
			}
			if len(f.Message) > 520 {
				t.Errorf("a message of %d bytes", len(f.Message))
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for name, config := range map[string]openai.Config{
		"no dialect":      {},
		"unknown dialect": {Dialect: "klingon"},
		"credentials":     {Dialect: "openai", BaseURL: "https://user:hunter2@api.test"},
		"no host":         {Dialect: "openai", BaseURL: "/v1"},
		"another scheme":  {Dialect: "openai", BaseURL: "ftp://api.test"},
		"no URL":          {Dialect: "openai", BaseURL: "http://hunter2\x7f"},
	} {
		if a, err := openai.New(config); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
}

func TestModels(t *testing.T) { // M13, M23
	a, err := openai.New(openai.Config{Dialect: "deepseek"})
	if err != nil {
		t.Fatal(err)
	}
	var r llm.Registry
	if _, err := r.Register(a, "deepseek"); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"deepseek-v4-flash", "deepseek-v4-pro"} {
		p, err := r.Prepare(llm.CallConfig{Provider: "deepseek", Model: model, ReasoningEffort: "max"})
		if err != nil || p.ContextWindow != 1_000_000 || p.Config.MaxTokens != 256_000 || !p.Defaults.MaxTokens {
			t.Errorf("%s: %+v, %v", model, p, err)
		}
	}
	if p, err := r.Prepare(llm.CallConfig{Provider: "deepseek", Model: "deepseek-next"}); err != nil || p.Config.MaxTokens != 0 {
		t.Errorf("a model that is not in the table: %+v, %v", p, err)
	}
	if _, err := r.Prepare(llm.CallConfig{Provider: "deepseek", Model: "deepseek-v4-pro", ReasoningEffort: "medium"}); llm.CodeOf(err) != llm.CodeUnsupportedEffort {
		t.Errorf("effort medium: %v", err)
	}
}
