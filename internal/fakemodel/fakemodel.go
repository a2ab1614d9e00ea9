// Package fakemodel is a model endpoint for tests and manual runs: an HTTP server on loopback that speaks the
// streaming chat-completions wire (POST {base}/chat/completions answered in server-sent events, GET {base}/models)
// in the dialects of the vendors and servers that matter, and beside it Anthropic's Messages wire
// (POST {base}/messages) and OpenAI's Responses wire (POST {base}/responses), and that misbehaves exactly as it is told.
//
// What it answers is decided per request by a [Script], which returns a [Reply]: a list of declarative steps, from
// plain text over interleaved tool calls to a cut connection. A reply that sends content and then ends is closed as
// the dialect closes it (finish reason, usage, [DONE]); a step that ends the exchange, such as [Status] or [Cut],
// stands last. Without a Script the server obeys directives in the prompt (see [Directives]) and otherwise echoes,
// so a real binary can be driven through every behaviour with no code at all.
//
// The server is strict as the real ones are: unless told otherwise it refuses a history whose tool calls and tool
// results do not match, so that a harness whose log is no longer legal for the next request is found out (core M24).
//
// It never fails quietly: a script that runs out, a malformed directive and a step out of place are answered with
// an error that names fakemodel. The package does not import testing. Floor T.
package fakemodel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// maxBody bounds a request body, in bytes. It is far above what a real endpoint accepts.
const maxBody = 256 << 20

// errClosed is what a waiter gets when the server closes under it.
var errClosed = errors.New("fakemodel: server closed")

// Options configures a [Server]. The zero value is an OpenAI endpoint on a free loopback port that obeys directives
// and echoes.
type Options struct {
	// Addr is the TCP address to listen on; empty means 127.0.0.1:0.
	Addr string
	// Dialect is whose wire is imitated; empty means [OpenAI].
	Dialect Dialect
	// Script decides every answer; nil means Directives(Echo).
	Script Script
	// Key, when not empty, must be presented as a bearer token, or on the Messages wire as x-api-key; anything else is
	// answered as [Unauthorized].
	Key string
	// Models is what GET /models lists. When not empty, a request for any other model is answered as [UnknownModel];
	// when empty, every model is served and one is listed, "fake-model".
	Models []string
	// ReasoningField overrides the dialect's name of the reasoning delta, for servers that changed it between
	// versions (vLLM: reasoning_content, later reasoning).
	ReasoningField string
	// Lenient turns off the checks of the request's history and tools.
	Lenient bool
	// Discard makes the server count requests without keeping them, for long manual runs: Requests is then empty
	// and WaitRequest fails.
	Discard bool
}

// Server is a running fake endpoint. Its methods are safe for concurrent use. Whoever opened it closes it.
type Server struct {
	opts   Options
	url    string
	http   *http.Server
	ln     net.Listener
	once   sync.Once
	conns  sync.WaitGroup // connections whose goroutine may still run
	closed chan struct{}  // closed first of all by Close: stalls end on it
	served chan struct{}  // closed when the accept loop has returned

	mu       sync.Mutex
	script   Script
	total    int // chat requests so far
	requests []Request
	attempts map[[32]byte]int
	thoughts map[string]string // the reasoning that preceded each generated tool call id (core M24)
	cached   map[string]bool   // the prefixes of Messages requests that are in the prompt cache
	gates    map[string]chan struct{}
	inFlight int
	maxIn    int
	changed  chan struct{} // closed and replaced whenever total or inFlight changes
	serveErr error
}

// Open starts a server and returns once it listens. The error names the address that could not be had, or the
// unknown dialect.
func Open(opts Options) (*Server, error) {
	if opts.Addr == "" {
		opts.Addr = "127.0.0.1:0"
	}
	d, err := ParseDialect(string(opts.Dialect))
	if err != nil {
		return nil, err
	}
	opts.Dialect = d
	if opts.Script == nil {
		opts.Script = Directives(Echo)
	}
	ln, err := net.Listen("tcp", opts.Addr)
	if err != nil {
		return nil, fmt.Errorf("fakemodel: listen on %s: %w", opts.Addr, err)
	}
	s := &Server{
		opts:     opts,
		url:      "http://" + ln.Addr().String(),
		ln:       ln,
		closed:   make(chan struct{}),
		served:   make(chan struct{}),
		script:   opts.Script,
		attempts: map[[32]byte]int{},
		thoughts: map[string]string{},
		cached:   map[string]bool{},
		gates:    map[string]chan struct{}{},
		changed:  make(chan struct{}),
	}
	s.http = &http.Server{
		Handler:   s.routes(),
		ConnState: s.connState,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	go s.serve()
	return s, nil
}

func (s *Server) serve() {
	defer close(s.served)
	if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		s.mu.Lock()
		s.serveErr = fmt.Errorf("fakemodel: serve %s: %w", s.url, err)
		s.mu.Unlock()
	}
}

// connState counts connections: StateNew is reported by the accept loop before the connection's goroutine starts,
// the final state by that goroutine as its last act.
func (s *Server) connState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.conns.Done()
	case http.StateActive, http.StateIdle:
	}
}

// routes serves the API under /v1 and at the root, since some vendors' base URLs have no version in them.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, base := range []string{"", "/v1"} {
		mux.HandleFunc("POST "+base+"/chat/completions", s.serveChat)
		mux.HandleFunc("POST "+base+"/messages", s.serveMessages)
		mux.HandleFunc("POST "+base+"/responses", s.serveResponses)
		mux.HandleFunc("GET "+base+"/models", s.serveModels)
	}
	return mux
}

// URL returns the API's base, http://host:port/v1, without a trailing slash.
func (s *Server) URL() string { return s.url + "/v1" }

// Origin returns http://host:port, for clients that append the version themselves (OLLAMA_HOST, ANTHROPIC_BASE_URL).
// The API answers there without /v1 too.
func (s *Server) Origin() string { return s.url }

// Close stops listening, cuts every connection, ends every stall and returns when no goroutine of the server runs.
// It may be called many times and from many goroutines; each call returns only after the end.
func (s *Server) Close() {
	s.once.Do(func() {
		close(s.closed)
		// The only error is that of closing the listener, which is gone either way.
		_ = s.http.Close()
		<-s.served
		s.conns.Wait()
	})
}

// Wait blocks until ctx ends or Close is called, and returns nil; or until the server can no longer accept, and
// returns why.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.served:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.serveErr
	}
}

// SetScript replaces the script; requests already decided keep their reply.
func (s *Server) SetScript(script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// Release opens the gate of that name, for every [Gate] step that waits at it now or comes to it later.
func (s *Server) Release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := s.gateLocked(name)
	select {
	case <-gate:
	default:
		close(gate)
	}
}

func (s *Server) gate(name string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gateLocked(name)
}

func (s *Server) gateLocked(name string) chan struct{} {
	gate, ok := s.gates[name]
	if !ok {
		gate = make(chan struct{})
		s.gates[name] = gate
	}
	return gate
}

// Requests returns the chat requests received so far, in order of arrival, the refused ones included. What they
// hold is shared with the server and must not be modified.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// WaitRequest blocks until the n-th chat request (from 1) has arrived and returns it. It fails when ctx ends, the
// server closes, or the server keeps no requests.
func (s *Server) WaitRequest(ctx context.Context, n int) (Request, error) {
	var found Request
	err := s.await(ctx, func() (bool, error) {
		switch {
		case n < 1:
			return false, errors.New("requests count from 1")
		case s.opts.Discard:
			return false, errors.New("requests are not kept")
		case len(s.requests) < n:
			return false, nil
		}
		found = s.requests[n-1]
		return true, nil
	})
	if err != nil {
		return Request{}, fmt.Errorf("fakemodel: wait for request %d: %w", n, err)
	}
	return found, nil
}

// WaitInFlight blocks until at least n chat requests are being answered at the same time. With replies that wait at
// a [Gate] it proves that n callers run in parallel.
func (s *Server) WaitInFlight(ctx context.Context, n int) error {
	err := s.await(ctx, func() (bool, error) { return s.inFlight >= n, nil })
	if err != nil {
		return fmt.Errorf("fakemodel: wait for %d requests in flight: %w", n, err)
	}
	return nil
}

// WaitIdle blocks until no chat request is being answered.
func (s *Server) WaitIdle(ctx context.Context) error {
	err := s.await(ctx, func() (bool, error) { return s.inFlight == 0, nil })
	if err != nil {
		return fmt.Errorf("fakemodel: wait for the end of all requests: %w", err)
	}
	return nil
}

// await calls ready under the lock, at once and after every change, until it reports true or an error.
func (s *Server) await(ctx context.Context, ready func() (bool, error)) error {
	for {
		s.mu.Lock()
		ok, err := ready()
		changed := s.changed
		s.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.closed:
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// InFlight returns how many chat requests are being answered now.
func (s *Server) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight
}

// MaxInFlight returns the most chat requests that were being answered at the same time so far.
func (s *Server) MaxInFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxIn
}

// Total returns how many chat requests have arrived so far.
func (s *Server) Total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// begin numbers and records a request, and returns the script that decides it.
func (s *Server) begin(req *Request) Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	req.N = s.total
	s.attempts[req.print]++
	req.Attempt = s.attempts[req.print]
	if !s.opts.Discard {
		s.requests = append(s.requests, *req)
	}
	s.inFlight++
	s.maxIn = max(s.maxIn, s.inFlight)
	s.announceLocked()
	return s.script
}

func (s *Server) end(req Request) {
	close(req.exchange.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	s.announceLocked()
}

func (s *Server) announceLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) closing() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}
