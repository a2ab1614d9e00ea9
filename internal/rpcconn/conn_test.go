package rpcconn_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
)

// peer is the other end of a connection, driven by hand.
type peer struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

// connect starts a Conn. At the end of the test it is closed, and synctest checks
// that no goroutine of it is left.
func connect(t *testing.T, cfg rpcconn.Config) (*rpcconn.Conn, *peer) {
	t.Helper()
	ours, theirs := net.Pipe()
	c := rpcconn.New(t.Context(), ours, ours, cfg)
	c.Start()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := theirs.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, &peer{t: t, conn: theirs, r: bufio.NewReader(theirs)}
}

func (p *peer) read() string {
	p.t.Helper()
	line, err := p.r.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read %q: %v", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *peer) expect(want string) {
	p.t.Helper()
	if got := p.read(); got != want {
		p.t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func (p *peer) send(lines ...string) {
	p.t.Helper()
	if _, err := io.WriteString(p.conn, strings.Join(lines, "\n")+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// call makes a call in a goroutine of its own.
type called struct {
	result string
	err    error
}

func call(ctx context.Context, c *rpcconn.Conn, method string, params any) <-chan called {
	out := make(chan called, 1)
	go func() {
		raw, err := c.Call(ctx, method, params)
		out <- called{string(raw), err}
	}()
	return out
}

// bubble runs a test in a bubble of its own, which also proves that nothing runs on
// after it.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// ended returns the cause of a connection that has ended.
func ended(t *testing.T, c *rpcconn.Conn) error {
	t.Helper()
	<-c.Done()
	closed := new(rpcconn.ClosedError)
	if !errors.As(c.Err(), &closed) {
		t.Fatalf("the connection ended with %v", c.Err())
	}
	return closed.Cause
}

func TestWire(t *testing.T) {
	bubble(t, "JSON-RPC", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{})
		got := call(t.Context(), c, "initialize", map[string]any{"a": "<&>\u2028\n"})
		p.expect(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"a":"<&>\u2028\n"}}`)
		p.send(`{"jsonrpc":"2.0","id":0,"result":{"v": 1}}`)
		if r := <-got; r.err != nil || r.result != `{"v": 1}` {
			t.Errorf("result %+v", r)
		}
		sent := make(chan error, 1)
		go func() { sent <- c.Notify(t.Context(), "session/cancel", json.RawMessage("{\n\"s\": 1}")) }()
		p.expect(`{"jsonrpc":"2.0","method":"session/cancel","params":{"s":1}}`)
		if err := <-sent; err != nil {
			t.Error(err)
		}
		got = call(t.Context(), c, "bare", nil)
		p.expect(`{"jsonrpc":"2.0","id":1,"method":"bare"}`)
		p.send(`{"id":1}`)
		if r := <-got; r.err != nil || r.result != "" {
			t.Errorf("result %+v", r)
		}
	})
	bubble(t, "without the member jsonrpc", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{Dialect: rpcconn.Bare})
		got := call(t.Context(), c, "turn/start", nil)
		p.expect(`{"id":0,"method":"turn/start"}`)
		p.send(`{"id":0,"error":{"code":-32602,"message":"too large","data":{"input_error_code":"input_too_large"}}}`)
		r := <-got
		failure := new(rpcconn.Error)
		if !errors.As(r.err, &failure) {
			t.Fatalf("error %v", r.err)
		}
		want := &rpcconn.Error{Code: -32602, Message: "too large", Data: json.RawMessage(`{"input_error_code":"input_too_large"}`)}
		if diff := cmp.Diff(want, failure); diff != "" {
			t.Error(diff)
		}
		p.send(`{"id":0,"method":"ask"}`) // the peer counts for itself
		p.expect(`{"id":0,"error":{"code":-32601,"message":"method not found: ask"}}`)
	})
	bubble(t, "ids of one's own", func(t *testing.T) { // W4
		c, p := connect(t, rpcconn.Config{ID: rpcconn.StringIDs("req_")})
		seen := map[string]bool{}
		for range 3 {
			got := call(t.Context(), c, "m", nil)
			var m struct{ ID string }
			if err := json.Unmarshal([]byte(p.read()), &m); err != nil {
				t.Fatal(err)
			}
			if hex, ok := strings.CutPrefix(m.ID, "req_"); !ok || len(hex) != 32 || seen[m.ID] {
				t.Errorf("id %q", m.ID)
			}
			seen[m.ID] = true
			p.send(fmt.Sprintf(`{"id":%q,"result":true}`, m.ID))
			if r := <-got; r.err != nil || r.result != "true" {
				t.Errorf("result %+v", r)
			}
		}
	})
}

// Ids of the peer go back as they came; its answers find their call however they
// are ordered.
func TestRequestsAndAnswers(t *testing.T) {
	bubble(t, "ids verbatim", func(t *testing.T) {
		_, p := connect(t, rpcconn.Config{Request: func(r rpcconn.Request) rpcconn.Answer {
			return func(context.Context) (any, error) { return r.Params, nil }
		}})
		for _, id := range []string{`0`, `-5`, `1.50`, `98765432109876543210`, `"a\u0062\n"`, `"7"`, `7`} {
			p.send(`{"id":` + id + `,"method":"echo","params":{"k": [1]}}`)
			p.expect(`{"jsonrpc":"2.0","id":` + id + `,"result":{"k":[1]}}`)
		}
	})
	bubble(t, "answers at the same time, in any order", func(t *testing.T) {
		gates := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
		c, p := connect(t, rpcconn.Config{Request: func(r rpcconn.Request) rpcconn.Answer {
			return func(context.Context) (any, error) { <-gates[r.Method]; return r.Method, nil }
		}})
		p.send(`{"id":1,"method":"a"}`, `{"id":2,"method":"b"}`)
		one := call(t.Context(), c, "x", nil)
		p.expect(`{"jsonrpc":"2.0","id":0,"method":"x"}`)
		two := call(t.Context(), c, "y", nil)
		p.expect(`{"jsonrpc":"2.0","id":1,"method":"y"}`)
		close(gates["b"])
		p.expect(`{"jsonrpc":"2.0","id":2,"result":"b"}`)
		p.send(`{"id":1,"result":"Y"}`, `{"id":0,"result":"X"}`)
		if r := <-two; r.result != `"Y"` {
			t.Errorf("y: %+v", r)
		}
		if r := <-one; r.result != `"X"` {
			t.Errorf("x: %+v", r)
		}
		close(gates["a"])
		p.expect(`{"jsonrpc":"2.0","id":1,"result":"a"}`)
	})
	bubble(t, "what fails", func(t *testing.T) { // W5
		_, p := connect(t, rpcconn.Config{Request: func(r rpcconn.Request) rpcconn.Answer {
			switch r.Method {
			case "typed":
				return func(context.Context) (any, error) {
					return nil, fmt.Errorf("wrapped: %w", &rpcconn.Error{Code: -32000, Message: "sign in", Data: json.RawMessage(`[1]`)})
				}
			case "plain":
				return func(context.Context) (any, error) { return nil, errors.New("disk full") }
			case "unencodable":
				return func(context.Context) (any, error) { return func() {}, nil }
			}
			return nil
		}})
		p.send(`{"id":1,"method":"typed"}`)
		p.expect(`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"sign in","data":[1]}}`)
		p.send(`{"id":1,"method":"plain"}`)
		p.expect(`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"disk full"}}`)
		p.send(`{"id":1,"method":"unencodable"}`)
		if got := p.read(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,`) {
			t.Errorf("answer %s", got)
		}
		p.send(`{"id":1,"method":"unknown"}`)
		p.expect(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"method not found: unknown"}}`)
	})
}

// Everything is handed over in the order of the wire, requests among it, also what
// lies in one chunk with the answer to a call (OOPX-26).
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		last := make(chan struct{})
		c, p := connect(t, rpcconn.Config{
			Notification: func(n rpcconn.Notification) {
				if seen = append(seen, n.Method+string(n.Params)); n.Method == "end" {
					close(last)
				}
			},
			Request: func(r rpcconn.Request) rpcconn.Answer {
				seen = append(seen, "request "+r.Method)
				return nil
			},
			Fault: func(f *rpcconn.Fault) error { seen = append(seen, string(f.Kind)); return nil },
		})
		got := call(t.Context(), c, "m", nil)
		p.read()
		const n = 10_000
		var lines, want []string
		for i := range n {
			lines = append(lines, fmt.Sprintf(`{"method":"n","params":[%d]}`, i))
			want = append(want, fmt.Sprintf(`n[%d]`, i))
		}
		lines = append(lines, `{"id":0,"result":1}`, `{"id":4,"method":"ask"}`, `noise`, `{"method":"end"}`)
		want = append(want, "request ask", "no JSON object", "end")
		p.send(lines...)
		if r := <-got; r.err != nil {
			t.Error(r.err)
		}
		<-last
		p.expect(`{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"method not found: ask"}}`)
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFaults(t *testing.T) {
	lines := map[rpcconn.FaultKind]string{
		rpcconn.FaultSyntax:      `Warning: something`,
		rpcconn.FaultShape:       `{"id":null,"error":{}}`,
		rpcconn.FaultUnknownID:   `{"id":99,"result":1}`,
		rpcconn.FaultDuplicateID: `{"id":"held","method":"hold"}`,
	}
	hold := func(r rpcconn.Request) rpcconn.Answer {
		return func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
	}
	for kind, line := range lines {
		bubble(t, string(kind)+" ends it", func(t *testing.T) {
			c, p := connect(t, rpcconn.Config{Request: hold})
			got := call(t.Context(), c, "m", nil)
			p.read()
			p.send(`{"id":"held","method":"hold"}`, line)
			cause := ended(t, c)
			fault := new(rpcconn.Fault)
			if !errors.As(cause, &fault) || fault.Kind != kind || fault.Excerpt != line {
				t.Errorf("cause %#v", cause)
			}
			if r := <-got; !errors.Is(r.err, fault) {
				t.Errorf("the call got %v", r.err)
			}
		})
		bubble(t, string(kind)+" is forgiven", func(t *testing.T) {
			var faults []rpcconn.FaultKind
			c, p := connect(t, rpcconn.Config{Request: hold, Fault: func(f *rpcconn.Fault) error { faults = append(faults, f.Kind); return nil }})
			got := call(t.Context(), c, "m", nil)
			p.read()
			p.send(`{"id":"held","method":"hold"}`, line, `{"id":0,"result":1}`)
			if r := <-got; r.err != nil || !slices.Equal(faults, []rpcconn.FaultKind{kind}) {
				t.Errorf("%+v, faults %v", r, faults)
			}
		})
		bubble(t, string(kind)+" is judged by the owner", func(t *testing.T) {
			own := errors.New("own")
			c, p := connect(t, rpcconn.Config{Request: hold, Fault: func(*rpcconn.Fault) error { return own }})
			p.send(`{"id":"held","method":"hold"}`, line)
			if cause := ended(t, c); cause != own { //nolint:errorlint // this very one
				t.Errorf("cause %v", cause)
			}
		})
	}
	bubble(t, "a second answer to one call", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{})
		got := call(t.Context(), c, "m", nil)
		p.read()
		p.send(`{"id":0,"result":1}`, `{"id":0,"result":2}`)
		if r := <-got; r.result != "1" {
			t.Errorf("result %+v", r)
		}
		fault := new(rpcconn.Fault)
		if cause := ended(t, c); !errors.As(cause, &fault) || fault.Kind != rpcconn.FaultUnknownID {
			t.Errorf("cause %v", cause)
		}
	})
	bubble(t, "too many requests are not forgiven", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{Request: hold, MaxRequests: 2, Fault: func(*rpcconn.Fault) error { return nil }})
		p.send(`{"id":1,"method":"hold"}`, `{"id":2,"method":"hold"}`)
		synctest.Wait()
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		p.send(`{"id":3,"method":"hold"}`)
		fault := new(rpcconn.Fault)
		if cause := ended(t, c); !errors.As(cause, &fault) || fault.Kind != rpcconn.FaultTooMany {
			t.Errorf("cause %v", cause)
		}
	})
	bubble(t, "what is answered is open no more", func(t *testing.T) {
		_, p := connect(t, rpcconn.Config{MaxRequests: 1})
		for range 5 {
			p.send(`{"id":1,"method":"x"}`)
			p.expect(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"method not found: x"}}`)
			synctest.Wait()
		}
	})
	bubble(t, "answers that nobody reads count as open", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{MaxRequests: 2})
		p.send(`{"id":1,"method":"x"}`, `{"id":2,"method":"x"}`)
		synctest.Wait() // both are answered, and the pipe takes neither
		p.send(`{"id":3,"method":"x"}`)
		fault := new(rpcconn.Fault)
		if cause := ended(t, c); !errors.As(cause, &fault) || fault.Kind != rpcconn.FaultTooMany {
			t.Errorf("cause %v", cause)
		}
	})
	bubble(t, "a line that is too long", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{MaxLine: 50, Fault: func(*rpcconn.Fault) error { return nil }})
		got := call(t.Context(), c, "m", nil)
		p.read()
		go func() { _, _ = p.conn.Write([]byte(strings.Repeat("x", 60))) }() // cut off in the middle
		tooLong := new(rpcconn.LineTooLongError)
		if cause := ended(t, c); !errors.As(cause, &tooLong) || tooLong.Max != 50 {
			t.Errorf("cause %v", cause)
		}
		if r := <-got; !errors.Is(r.err, tooLong) {
			t.Errorf("the call got %v", r.err)
		}
	})
	bubble(t, "a line of ours that is too long is not sent", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{MaxLine: 50, Request: func(rpcconn.Request) rpcconn.Answer {
			return func(context.Context) (any, error) { return strings.Repeat("x", 60), nil }
		}})
		tooLong := new(rpcconn.LineTooLongError)
		if err := c.Notify(t.Context(), "m", strings.Repeat("x", 60)); !errors.As(err, &tooLong) {
			t.Errorf("notify: %v", err)
		}
		if _, err := c.Call(t.Context(), "m", strings.Repeat("x", 60)); !errors.As(err, &tooLong) {
			t.Errorf("call: %v", err)
		}
		if err := c.Err(); err != nil {
			t.Fatal(err)
		}
		p.send(`{"id":3,"method":"x"}`) // its answer cannot be sent, and the peer would wait for good
		if cause := ended(t, c); !errors.As(cause, &tooLong) {
			t.Errorf("cause %v", cause)
		}
	})
	bubble(t, "a handler that panics", func(t *testing.T) {
		for _, cfg := range []rpcconn.Config{
			{Notification: func(rpcconn.Notification) { panic("broken") }},
			{Request: func(rpcconn.Request) rpcconn.Answer { panic("broken") }},
			{Request: func(rpcconn.Request) rpcconn.Answer {
				return func(context.Context) (any, error) { panic("broken") }
			}},
			{Fault: func(*rpcconn.Fault) error { panic("broken") }},
		} {
			c, p := connect(t, cfg)
			switch {
			case cfg.Notification != nil:
				p.send(`{"method":"m"}`)
			case cfg.Request != nil:
				p.send(`{"id":1,"method":"m"}`)
			default:
				p.send(`x`)
			}
			panicked := new(rpcconn.PanicError)
			if cause := ended(t, c); !errors.As(cause, &panicked) || panicked.Value != "broken" || !strings.Contains(string(panicked.Stack), "conn_test.go") {
				t.Errorf("cause %v", cause)
			}
		}
	})
}

// W9: a call that is given up is forgotten, its answer too, and the connection goes on.
func TestGivenUp(t *testing.T) {
	bubble(t, "while it waits for the answer", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{})
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := call(ctx, c, "slow", nil)
		p.read()
		cancel(why)
		if r := <-got; !errors.Is(r.err, why) {
			t.Errorf("error %v", r.err)
		}
		p.send(`{"id":0,"result":"late"}`)
		got = call(t.Context(), c, "next", nil)
		p.expect(`{"jsonrpc":"2.0","id":1,"method":"next"}`)
		p.send(`{"id":1,"result":2}`)
		if r := <-got; r.err != nil || r.result != "2" {
			t.Errorf("result %+v", r)
		}
	})
	bubble(t, "while the peer does not read", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		first, second := call(ctx, c, "first", nil), call(ctx, c, "second", nil)
		noted := make(chan error, 1)
		go func() { noted <- c.Notify(ctx, "third", nil) }()
		for _, got := range []<-chan called{first, second} {
			if r := <-got; !errors.Is(r.err, context.DeadlineExceeded) {
				t.Errorf("error %v", r.err)
			}
		}
		if err := <-noted; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		// The one that was on its way is whole, the others were never sent.
		last := make(chan error, 1)
		go func() { last <- c.Notify(t.Context(), "last", nil) }()
		var m struct{ Method string }
		if err := json.Unmarshal([]byte(p.read()), &m); err != nil {
			t.Error(err)
		}
		p.expect(`{"jsonrpc":"2.0","method":"last"}`)
		// Before the connection is closed: it has told its sender by then.
		if err := <-last; err != nil {
			t.Error(err)
		}
	})
	bubble(t, "before it begins", func(t *testing.T) {
		c, _ := connect(t, rpcconn.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Call(ctx, "m", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// One end, one cause, and nothing runs after Close.
func TestEnd(t *testing.T) {
	bubble(t, "close", func(t *testing.T) {
		asked := make(chan struct{})
		var answered error
		c, p := connect(t, rpcconn.Config{Request: func(rpcconn.Request) rpcconn.Answer {
			return func(ctx context.Context) (any, error) {
				close(asked)
				<-ctx.Done()
				answered = context.Cause(ctx)
				return nil, answered
			}
		}})
		p.send(`{"id":1,"method":"ask"}`)
		<-asked
		waiting := []<-chan called{call(t.Context(), c, "a", nil)}
		p.read()
		waiting = append(waiting, call(t.Context(), c, "b", nil), call(t.Context(), c, "c", nil))
		synctest.Wait() // b is half written, c waits for it
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		closed := new(rpcconn.ClosedError)
		if !errors.As(c.Err(), &closed) || closed.Cause != rpcconn.ErrClosed { //nolint:errorlint // this very one
			t.Fatalf("ended with %v", c.Err())
		}
		for _, got := range waiting {
			if r := <-got; !errors.Is(r.err, closed) {
				t.Errorf("a call got %v", r.err)
			}
		}
		if !errors.Is(answered, closed) { // Close waited for it
			t.Errorf("the answer saw %v", answered)
		}
		if _, err := c.Call(t.Context(), "late", nil); !errors.Is(err, closed) {
			t.Errorf("a late call got %v", err)
		}
		if err := c.Notify(t.Context(), "late", nil); !errors.Is(err, closed) {
			t.Errorf("a late notification got %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, cfg := range map[string]func(entered, release chan struct{}) rpcconn.Config{
		"notification": func(entered, release chan struct{}) rpcconn.Config {
			return rpcconn.Config{Notification: func(rpcconn.Notification) { close(entered); <-release }}
		},
		"answer": func(entered, release chan struct{}) rpcconn.Config {
			return rpcconn.Config{Request: func(rpcconn.Request) rpcconn.Answer {
				return func(context.Context) (any, error) { close(entered); <-release; return nil, nil }
			}}
		},
	} {
		bubble(t, "close waits for the "+name+" that runs", func(t *testing.T) {
			entered, release := make(chan struct{}), make(chan struct{})
			c, p := connect(t, cfg(entered, release))
			p.send(map[string]string{"notification": `{"method":"m"}`, "answer": `{"id":1,"method":"m"}`}[name])
			<-entered
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
			select {
			case <-done:
				t.Error("Close returned although a handler runs")
			default:
			}
			close(release)
			<-done
		})
	}
	bubble(t, "the peer ends", func(t *testing.T) { // W6
		var seen []string
		c, p := connect(t, rpcconn.Config{Notification: func(n rpcconn.Notification) { seen = append(seen, n.Method) }})
		got := call(t.Context(), c, "m", nil)
		p.read()
		p.send(`{"method":"last"}`)
		if err := p.conn.Close(); err != nil {
			t.Error(err)
		}
		if cause := ended(t, c); cause != io.EOF { //nolint:errorlint // this very one
			t.Errorf("cause %v", cause)
		}
		if r := <-got; !errors.Is(r.err, io.EOF) {
			t.Errorf("the call got %v", r.err)
		}
		if !slices.Equal(seen, []string{"last"}) {
			t.Errorf("handed over: %v", seen)
		}
	})
	bubble(t, "the peer ends inside a line", func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{Notification: func(n rpcconn.Notification) { t.Errorf("handed over: %v", n) }})
		if _, err := io.WriteString(p.conn, `{"method":"m"}`); err != nil {
			t.Error(err)
		}
		if err := p.conn.Close(); err != nil {
			t.Error(err)
		}
		if cause := ended(t, c); cause != io.ErrUnexpectedEOF { //nolint:errorlint // this very one
			t.Errorf("cause %v", cause)
		}
	})
	bubble(t, "by the owner, from a handler", func(t *testing.T) {
		why := errors.New("a mismatched thread")
		var c *rpcconn.Conn
		count := 0
		c, p := connect(t, rpcconn.Config{Notification: func(rpcconn.Notification) { count++; c.End(why) }})
		p.send(`{"method":"m"}`, `{"method":"m"}`)
		if cause := ended(t, c); cause != why { //nolint:errorlint // this very one
			t.Errorf("cause %v", cause)
		}
		c.End(errors.New("later"))
		if err := c.Close(); err != nil || !errors.Is(c.Err(), why) || count != 1 {
			t.Errorf("%v, ended with %v after %d", err, c.Err(), count)
		}
	})
	bubble(t, "never started", func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := rpcconn.New(t.Context(), ours, ours, rpcconn.Config{})
		got := call(t.Context(), c, "m", nil)
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if r := <-got; !errors.Is(r.err, rpcconn.ErrClosed) {
			t.Errorf("the call got %v", r.err)
		}
		if _, err := theirs.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // this very one
			t.Errorf("the other side: %v", err)
		}
	})
}

// halves are two pipes, of which each side can be broken alone.
func halves(t *testing.T, cfg rpcconn.Config) (c *rpcconn.Conn, in *io.PipeWriter, out *io.PipeReader) {
	r, in := io.Pipe()
	out, w := io.Pipe()
	c = rpcconn.New(t.Context(), r, w, cfg)
	c.Start()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, in, out
}

// A peer that takes nothing more may have said its last already, so it is heard to
// its end, for a while.
func TestBrokenPipe(t *testing.T) {
	bubble(t, "what it said still counts", func(t *testing.T) {
		heard := 0
		c, in, out := halves(t, rpcconn.Config{Notification: func(rpcconn.Notification) { heard++ }})
		if err := out.CloseWithError(syscall.EPIPE); err != nil {
			t.Fatal(err)
		}
		broken := new(rpcconn.WriteError)
		for range 2 {
			if err := c.Notify(t.Context(), "m", nil); !errors.As(err, &broken) || !errors.Is(err, syscall.EPIPE) {
				t.Errorf("error %v", err)
			}
		}
		if _, err := io.WriteString(in, `{"method":"turn/completed"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		if cause := ended(t, c); cause != io.EOF || heard != 1 { //nolint:errorlint // this very one
			t.Errorf("cause %v, %d heard", cause, heard)
		}
	})
	bubble(t, "but it does not go on for good", func(t *testing.T) {
		c, in, out := halves(t, rpcconn.Config{})
		got := call(t.Context(), c, "m", nil)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := out.CloseWithError(syscall.EPIPE); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, `{"id":1,"method":"ask"}`+"\n"); err != nil { // its answer breaks
			t.Fatal(err)
		}
		broken := new(rpcconn.WriteError)
		if cause := ended(t, c); !errors.As(cause, &broken) {
			t.Errorf("cause %v", cause)
		}
		if r := <-got; !errors.Is(r.err, broken) {
			t.Errorf("the call got %v", r.err)
		}
	})
}

// Concurrent writers never mix their lines, and each line is one write (W8).
func TestWholeLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, in := io.Pipe()
		sink := &sink{}
		s := rpcconn.NewStream(r, sink, 0, func([]byte) error { return nil })
		s.Start()
		var writers sync.WaitGroup
		for i := range 50 {
			writers.Go(func() {
				if err := s.Write(t.Context(), []byte(strings.Repeat(string(rune('A'+i)), 1000+i))); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if err := s.Write(t.Context(), []byte("a\nb")); err == nil {
			t.Error("a line with a line break was taken")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if len(sink.writes) != 50 {
			t.Errorf("%d writes", len(sink.writes))
		}
		for _, got := range sink.writes {
			if n := int(got[0]-'A') + 1000; got != strings.Repeat(got[:1], n)+"\n" {
				t.Errorf("wrote %q", got)
			}
		}
		if _, err := in.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the reading side was left open: %v", err)
		}
	})
}

type sink struct{ writes []string }

func (s *sink) Write(b []byte) (int, error) {
	s.writes = append(s.writes, string(b))
	return len(b), nil
}
func (s *sink) Close() error { return nil }

// A Stream carries an envelope of its own.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		var got []string
		stop := errors.New("stop")
		s := rpcconn.NewStream(ours, ours, 0, func(line []byte) error {
			if got = append(got, string(line)); string(line) == "stop" {
				return stop
			}
			return nil
		})
		s.Start()
		sent := make(chan error, 1)
		go func() { sent <- s.Write(t.Context(), []byte(`{"type":"user"}`)) }()
		if line, err := bufio.NewReader(theirs).ReadString('\n'); line != "{\"type\":\"user\"}\n" {
			t.Errorf("read %q, %v", line, err)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(theirs, "one\n\ntwo\nstop\nthree\n"); err != nil {
			t.Error(err)
		}
		<-s.Done()
		if err := s.Close(); err != nil || !errors.Is(s.Err(), stop) || !slices.Equal(got, []string{"one", "two", "stop"}) {
			t.Errorf("%v, ended with %v, got %q", err, s.Err(), got)
		}
	})
}

// Pipes of a process: closing ends a read and a write that are in progress.
func TestPipesOfAProcess(t *testing.T) {
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(inR.Close(), outW.Close()); err != nil {
			t.Error(err)
		}
	}()
	began := make(chan struct{})
	c := rpcconn.New(t.Context(), outR, inW, rpcconn.Config{Notification: func(rpcconn.Notification) { close(began) }})
	c.Start()
	if _, err := io.WriteString(outW, `{"method":"m"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	<-began
	got := call(t.Context(), c, "m", strings.Repeat("x", 5<<20)) // more than a pipe holds
	if _, err := inR.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if r := <-got; !errors.Is(r.err, rpcconn.ErrClosed) {
		t.Errorf("the call got %v", r.err)
	}
}

// A large line passes both ways.
func TestLargeLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connect(t, rpcconn.Config{})
		text := strings.Repeat("ä", 1<<20)
		got := call(t.Context(), c, "m", text)
		if line := p.read(); !strings.HasSuffix(line, text+`"}`) {
			t.Errorf("a line of %d bytes", len(line))
		}
		p.send(`{"id":0,"result":"` + text + `"}`)
		if r := <-got; r.err != nil || r.result != `"`+text+`"` {
			t.Errorf("a result of %d bytes, %v", len(r.result), r.err)
		}
	})
}
