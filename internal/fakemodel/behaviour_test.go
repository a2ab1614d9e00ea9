package fakemodel_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// TestRequestView has everything of a request that scripts and tests look at.
func TestRequestView(t *testing.T) {
	s := open(t, fakemodel.Options{})
	payload := []byte(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":9,
		"reasoning_effort":"high","thinking":{"type":"enabled"},
		"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}],
		"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"b"}]},
		{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"out"}]}`)
	for attempt := 1; attempt <= 2; attempt++ {
		if got := exchange(t, s, payload); got.status != 200 || !strings.Contains(got.body, `"content":"ab"`) {
			t.Fatalf("echo: %+v", got)
		}
		r, err := s.WaitRequest(t.Context(), attempt)
		if err != nil {
			t.Fatal(err)
		}
		if r.N != attempt || r.Attempt != attempt {
			t.Errorf("request %d: N %d, attempt %d", attempt, r.N, r.Attempt)
		}
	}
	r := s.Requests()[1]
	if r.Method != "POST" || r.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer k" || string(r.Body) != string(payload) || r.Err != nil {
		t.Errorf("request %+v", r)
	}
	if r.Model != "m" || !r.Stream || !r.IncludeUsage || r.MaxTokens != 9 || r.ReasoningEffort != "high" || r.Thinking != "enabled" {
		t.Errorf("request %+v", r)
	}
	if diff := cmp.Diff([]fakemodel.Tool{{Name: "f", Description: "d", Parameters: []byte(`{"type":"object"}`), Strict: true}}, r.Tools); diff != "" {
		t.Error(diff)
	}
	want := fakemodel.Message{Role: "assistant", Content: []byte("null"), Reasoning: "r", ToolCalls: []fakemodel.ToolCall{{ID: "c", Name: "f", Arguments: "{}"}}}
	if diff := cmp.Diff(want, r.Messages[2]); diff != "" {
		t.Error(diff)
	}
	if res := r.ToolResults(); len(res) != 1 || res[0].Text != "out" || r.Position() != 1 || r.LastUserText() != "ab" {
		t.Errorf("results %v, position %d, user %q", res, r.Position(), r.LastUserText())
	}
}

// TestCut: a connection that closes is told from a body that ends, before and behind the headers (Q8).
func TestCut(t *testing.T) {
	s := open(t, fakemodel.Options{Script: fakemodel.Always(fakemodel.Text("par"), fakemodel.Cut{})})
	got := ask(t, s, user("hi"))
	if !errors.Is(got.err, io.ErrUnexpectedEOF) || !strings.Contains(got.body, `"content":"par"`) {
		t.Errorf("cut behind text: %+v", got)
	}
	for name, cut := range map[string]fakemodel.Cut{"cut": {}, "reset": {Reset: true}} {
		s.SetScript(fakemodel.Always(cut))
		resp, err := send(t.Context(), t, s, body(t, user("hi")))
		if err == nil {
			_ = resp.Body.Close() // the test has failed already
			t.Fatalf("%s: got an answer", name)
		}
		if cut.Reset && !errors.Is(err, syscall.ECONNRESET) || !cut.Reset && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, r := range s.Requests() {
		<-r.Done()
		if isClosed(r.Gone()) {
			t.Error("a cut by the server counts as a client that left")
		}
	}
}

// TestDisconnect: the server sees a client leave, whatever it was doing (core M15).
func TestDisconnect(t *testing.T) {
	for name, tt := range map[string]struct {
		steps     fakemodel.Reply
		midstream bool
	}{
		"silent before the headers": {fakemodel.Reply{fakemodel.Stall{}}, false},
		"silent behind the headers": {fakemodel.Reply{fakemodel.Headers{}, fakemodel.Stall{}}, true},
		"silent mid-stream":         {fakemodel.Reply{fakemodel.Text("par"), fakemodel.Stall{}}, true},
		"at a gate":                 {fakemodel.Reply{fakemodel.Text("par"), fakemodel.Gate("never")}, true},
		"in a delay":                {fakemodel.Reply{fakemodel.Text("par"), fakemodel.Delay(time.Hour)}, true},
		"in a function":             {fakemodel.Reply{fakemodel.Text("par"), fakemodel.Do(func(ctx context.Context) { <-ctx.Done() })}, true},
		"talking without end":       {fakemodel.Reply{fakemodel.Repeat(1<<40, fakemodel.Text("more"))}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, fakemodel.Options{Script: fakemodel.Always(tt.steps...)})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sent := make(chan error, 1)
			go func() {
				resp, err := send(ctx, t, s, body(t, user("hi")))
				if err == nil {
					cancel()
					err = resp.Body.Close()
				}
				sent <- err
			}()
			r, err := s.WaitRequest(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if !tt.midstream {
				cancel()
			}
			<-r.Gone()
			<-r.Done()
			if err := <-sent; !tt.midstream && !errors.Is(err, context.Canceled) {
				t.Errorf("client: %v", err)
			}
			if err := s.WaitIdle(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStallReleased: silence ends with its channel or its gate, and the answer goes on.
func TestStallReleased(t *testing.T) {
	until := make(chan struct{})
	s := open(t, fakemodel.Options{Script: fakemodel.Always(
		fakemodel.Text("a"), fakemodel.Stall{Until: until}, fakemodel.Gate("g"), fakemodel.Delay(1), fakemodel.Text("b"),
	)})
	resp, err := send(t.Context(), t, s, body(t, user("hi")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end below
	lines := bufio.NewReader(resp.Body)
	for line := ""; !strings.Contains(line, `"content":"a"`); {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	close(until)
	s.Release("g")
	s.Release("g")
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.Contains(string(rest), `"content":"b"`) || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("%v %q", err, rest)
	}
	r := s.Requests()[0]
	<-r.Done()
	if isClosed(r.Gone()) {
		t.Error("a complete answer counts as a client that left")
	}
}

// TestMaxInFlight: children that run in parallel are seen to.
func TestMaxInFlight(t *testing.T) {
	const n = 8
	s := open(t, fakemodel.Options{Script: fakemodel.Always(fakemodel.Gate("all"), fakemodel.Text("x"))})
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			resp, err := send(t.Context(), t, s, body(t, user("hi")))
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close() // read to its end
		})
	}
	if err := s.WaitInFlight(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	s.Release("all")
	clients.Wait()
	ask(t, s, user("hi"))
	if err := s.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.MaxInFlight() != n || s.InFlight() != 0 || s.Total() != n+1 {
		t.Errorf("max %d, now %d, total %d", s.MaxInFlight(), s.InFlight(), s.Total())
	}
}

// TestLarge has 10,000 deltas, and one answer of 5 MB that waits for a reader who takes his time.
func TestLarge(t *testing.T) {
	s := open(t, fakemodel.Options{Script: fakemodel.Always(fakemodel.Repeat(10_000, fakemodel.Text("x")))})
	if got := ask(t, s, user("hi")); got.err != nil || len(data(got.body)) != 10_000+4 {
		t.Errorf("%v, %d events", got.err, len(data(got.body)))
	}
	s.SetScript(fakemodel.Always(fakemodel.Text(strings.Repeat("é", 5<<19)), fakemodel.Repeat(5, fakemodel.Text("tail"))))
	resp, err := send(t.Context(), t, s, body(t, user("hi")))
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for buf := make([]byte, 1000); ; {
		n, err := resp.Body.Read(buf)
		size += n
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := resp.Body.Close(); err != nil || size < 5<<20 {
		t.Errorf("%v, %d bytes", err, size)
	}
}

// TestClose ends stalls and waiters, is not taken for a client that left, and may be repeated.
func TestClose(t *testing.T) {
	s := open(t, fakemodel.Options{Script: fakemodel.Always(fakemodel.Headers{}, fakemodel.Stall{})})
	resp, err := send(t.Context(), t, s, body(t, user("hi")))
	if err != nil {
		t.Fatal(err)
	}
	waiter := make(chan error, 1)
	go func() {
		_, err := s.WaitRequest(t.Context(), 2)
		waiter <- err
	}()
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(s.Close)
	}
	closers.Wait()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the answer ended in good order")
	}
	_ = resp.Body.Close() // its read has failed as it should
	if err := <-waiter; err == nil {
		t.Error("the waiter found a request")
	}
	r := s.Requests()[0]
	<-r.Done()
	if isClosed(r.Gone()) {
		t.Error("Close counts as a client that left")
	}
	if err := s.Wait(t.Context()); err != nil {
		t.Errorf("wait: %v", err)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(s.Origin(), "http://")); err == nil {
		_ = conn.Close() // the test has failed already
		t.Error("still listening")
	}
}

// TestWaitErrors: waiters end with their context and say what they waited for.
func TestWaitErrors(t *testing.T) {
	s := open(t, fakemodel.Options{Discard: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.WaitInFlight(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := s.WaitRequest(ctx, 1); err == nil || !strings.Contains(err.Error(), "not kept") {
		t.Error(err)
	}
	if got := ask(t, s, user("hi")); got.status != http.StatusOK || len(s.Requests()) != 0 || s.Total() != 1 {
		t.Errorf("%+v", got)
	}
	if _, err := fakemodel.Open(fakemodel.Options{Dialect: "klingon"}); err == nil {
		t.Error("unknown dialect opened")
	}
	if _, err := fakemodel.Open(fakemodel.Options{Addr: strings.TrimPrefix(s.Origin(), "http://")}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("address in use: %v", err)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
