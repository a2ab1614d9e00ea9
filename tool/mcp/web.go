package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// webLink is the exchanges with a streamable HTTP server.
type webLink struct {
	server *Server
	client *http.Client
	round  *roundTripper

	ending sync.Once
}

func newWebLink(base context.Context, s *Server) (link, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, errors.New("the URL is not one") // it may hold a password
	}
	own, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		own = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	l := &webLink{server: s, round: &roundTripper{
		next: own.Clone(), origin: u.Scheme + "://" + u.Host, headers: s.Headers, patience: patience,
	}}
	if s.patience > 0 {
		l.round.patience = s.patience
	}
	l.round.life, l.round.cut = context.WithCancel(base)
	l.client = &http.Client{
		Transport:     l.round,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l, nil
}

func (l *webLink) transport() sdk.Transport {
	return &sdk.StreamableClientTransport{Endpoint: l.server.URL, HTTPClient: l.client, MaxEventSize: MaxMessage}
}

func (l *webLink) bind(ctx context.Context) func() {
	stop := context.AfterFunc(ctx, l.round.cut)
	return func() { stop() }
}

func (l *webLink) end(closeSession func()) error {
	timer := time.AfterFunc(farewell, l.round.cut)
	closeSession()
	timer.Stop()
	l.ending.Do(l.round.close)
	return nil
}

func (l *webLink) kill() error {
	l.round.cut()
	return nil
}

func (l *webLink) fate() string { return "" }

func (l *webLink) words() string { return "" }

// roundTripper makes the exchanges of one session: with its headers, bounded, and ended
// with it.
type roundTripper struct {
	next    *http.Transport
	origin  string
	headers map[string]string
	// patience is how long the server may take to begin the stream in which it tells of
	// changes; one that takes longer is used without.
	patience time.Duration

	life context.Context
	cut  context.CancelFunc

	mu        sync.Mutex     // held while an exchange is counted in
	exchanges sync.WaitGroup // those whose bodies are open
}

// enter counts an exchange in, unless the session has ended.
func (r *roundTripper) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return errEnding
	}
	r.exchanges.Add(1)
	return nil
}

// close ends every exchange and waits for them.
func (r *roundTripper) close() {
	r.mu.Lock()
	r.cut()
	r.mu.Unlock()
	r.exchanges.Wait()
	r.next.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper.
func (r *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if origin := req.URL.Scheme + "://" + req.URL.Host; origin != r.origin {
		return nil, fmt.Errorf("a request to %s, which is not the server", origin)
	}
	if err := r.enter(); err != nil {
		if req.Method == http.MethodGet {
			return noStream(req), nil
		}
		return nil, err
	}
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(r.life, cancel)
	req = req.Clone(ctx)
	for name, value := range r.headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", "offshoot")
	waited := func() bool { return true }
	if req.Method == http.MethodGet {
		waited = time.AfterFunc(r.patience, cancel).Stop
	}
	res, err := r.next.RoundTrip(req)
	if inTime := waited(); err != nil {
		stop()
		cancel()
		r.exchanges.Done()
		if req.Method == http.MethodGet && (!inTime || r.life.Err() != nil) {
			return noStream(req), nil
		}
		return nil, err
	}
	b := &body{ReadCloser: res.Body, left: MaxMessage, done: func() {
		stop()
		cancel()
		r.exchanges.Done()
	}}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == "text/event-stream" {
		b.left = -1 // the library bounds each event of a stream
	}
	res.Body = b
	return res, nil
}

// noStream is the answer of a server that has no stream of its own to give. A GET asks
// for one, and the library asks again and again, past the end of its context, when it
// gets no answer at all.
func noStream(req *http.Request) *http.Response {
	return &http.Response{
		Status: "405 Method Not Allowed", StatusCode: http.StatusMethodNotAllowed, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}
}

// body is the body of a response, with a bound.
type body struct {
	io.ReadCloser
	left int64 // -1: no bound
	once sync.Once
	done func()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.left < 0 {
		return b.ReadCloser.Read(p)
	}
	if b.left == 0 {
		return 0, fmt.Errorf("it sent a message of %d bytes or more", MaxMessage)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.done)
	return err
}
