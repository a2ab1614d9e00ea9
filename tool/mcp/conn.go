package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/offshoot-dev/offshoot/tool"
)

var (
	errEnding = errors.New("it is being ended")
	// errUnsent marks a request that found its connection over and was not sent.
	errUnsent = errors.New("the request was not sent")
)

// settle is how long a failed call waits to learn that its connection is over: the two
// are told by different goroutines of the library.
const settle = time.Second

// client is a server that may be started more than once, shared by all agents or of one.
type client struct {
	set    *Set
	dir    string
	adopts bool // whether its list of tools is the Set's

	// gate holds a token while the server is started or the client is closed.
	gate chan struct{}
	// life ends when the client begins to end; with it end starts and calls.
	life   context.Context
	cancel context.CancelCauseFunc

	mu sync.Mutex // guards following

	conn   *conn // the last one, maybe dead
	link   link  // of the last start
	failed int   // starts that failed
	err    error // of the last of them
	killed bool

	closing sync.Once
	ended   error // the outcome of close
}

func newClient(s *Set, dir string, adopts bool) *client {
	c := &client{set: s, dir: dir, adopts: adopts, gate: make(chan struct{}, 1)}
	c.life, c.cancel = context.WithCancelCause(s.base)
	return c
}

// get returns the live connection; if there is none, it starts the server, once.
// Callers that wait for a start share its outcome.
func (c *client) get(ctx context.Context) (*conn, error) {
	c.mu.Lock()
	failed := c.failed
	live := c.conn
	c.mu.Unlock()
	if live != nil && !live.over() {
		return live, nil
	}
	select {
	case c.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.life.Done():
		return nil, c.set.errorf("%w", context.Cause(c.life))
	}
	defer func() { <-c.gate }()
	c.mu.Lock()
	live, since, err := c.conn, c.failed > failed, c.err
	c.mu.Unlock()
	switch {
	case c.life.Err() != nil:
		return nil, c.set.errorf("%w", context.Cause(c.life))
	case since:
		return nil, err
	case live != nil && !live.over():
		return live, nil
	}
	if live != nil {
		live.end() // it is over, and is joined before there is another
		c.set.opts.Logger.Warn("an MCP server is started again", "because", live.err)
	}
	next, err := c.start(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // or it is the end of this call alone
			c.failed, c.err = c.failed+1, err
		}
		return nil, err
	}
	c.conn = next
	return next, nil
}

// start starts the server and takes its tools.
func (c *client) start(ctx context.Context) (*conn, error) {
	s := c.set
	ctx, cancel := context.WithTimeoutCause(ctx, s.server.Start, fmt.Errorf("it did not answer within %v", s.server.Start))
	defer cancel()
	ctx, stop := joinContexts(ctx, c.life)
	defer stop()
	if err := ctx.Err(); err != nil {
		return nil, s.errorf("%w", context.Cause(ctx))
	}
	l, err := c.dial()
	if err != nil {
		return nil, s.errorf("it cannot be started: %w", err)
	}
	n := &conn{client: c, link: l, changed: make(chan struct{}, 1), gone: make(chan struct{}), dead: make(chan struct{})}
	n.life, n.cancel = context.WithCancelCause(c.life)
	opts := &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}, Logger: s.opts.Logger}
	if c.adopts {
		opts.ToolListChangedHandler = func(context.Context, *sdk.ToolListChangedRequest) { n.noteChange() }
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "offshoot", Version: s.opts.version()}, opts)
	unbind := l.bind(ctx)
	n.session, err = client.Connect(ctx, l.transport(), nil)
	unbind()
	if err != nil {
		endErr := l.end(func() {})
		n.cancel(errEnding)
		return nil, errors.Join(s.errorf("it cannot be connected: %w", n.why(ctx, err)), endErr)
	}
	n.running.Go(n.watch)
	if c.adopts {
		if err := s.adopt(ctx, n); err != nil {
			n.end()
			return nil, err
		}
		n.running.Go(n.follow)
	}
	return n, nil
}

// dial makes the way to the server. The caller holds the gate.
func (c *client) dial() (link, error) {
	l, err := c.set.newLink(c.dir)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.link = l // which close ends, whatever comes of it here
	killed := c.killed
	c.mu.Unlock()
	if killed {
		return nil, errors.Join(errEnding, l.kill())
	}
	return l, nil
}

// stop begins the end; it does not block.
func (c *client) stop() { c.cancel(errEnding) }

// close ends the server and returns when nothing of it runs. It is memoised.
func (c *client) close() error {
	c.closing.Do(func() {
		c.stop()
		c.gate <- struct{}{} // a start under way ends with life
		defer func() { <-c.gate }()
		c.mu.Lock()
		last, l := c.conn, c.link
		c.mu.Unlock()
		if last != nil {
			last.end()
		}
		if l != nil {
			if err := l.end(func() {}); err != nil {
				c.ended = c.set.errorf("%w", err)
			}
		}
	})
	return c.ended
}

// kill ends the process at once and starts none any more.
func (c *client) kill() error {
	c.mu.Lock()
	c.killed = true
	l := c.link
	c.mu.Unlock()
	c.stop()
	if l == nil {
		return nil
	}
	return l.kill()
}

// conn is one connection to a server, from its start to its end.
type conn struct {
	client  *client
	link    link
	session *sdk.ClientSession

	// life ends with the connection; with it end its calls.
	life   context.Context
	cancel context.CancelCauseFunc

	changed chan struct{} // holds a token when the tools have changed
	running sync.WaitGroup
	gone    chan struct{} // closed when the connection is over
	dead    chan struct{} // closed when nothing of the server is left
	err     error         // why it is over; before dead is closed
}

// over reports whether the connection is over.
func (n *conn) over() bool {
	select {
	case <-n.gone:
		return true
	default:
		return false
	}
}

// watch ends the server when its connection is over, whoever ended it.
func (n *conn) watch() {
	cause := n.session.Wait()
	close(n.gone)
	endErr := n.link.end(n.closeSession)
	ended := errors.New("it has ended")
	if n.life.Err() != nil {
		ended = context.Cause(n.life)
	}
	if fate := n.link.fate(); fate != "" {
		ended = fmt.Errorf("%w: %s", ended, fate)
	} else if cause != nil {
		ended = fmt.Errorf("%w: %w", ended, cause)
	}
	n.err = ended
	if endErr != nil {
		n.err = errors.Join(ended, endErr)
	}
	close(n.dead)
	n.cancel(ended)
}

// closeSession closes the session. What its end is worth is told by watch.
func (n *conn) closeSession() { _ = n.session.Close() }

// end ends the server and joins everything of this connection.
func (n *conn) end() {
	n.cancel(errEnding)
	// The error is that of the link, which keeps it for whoever closes the client.
	_ = n.link.end(n.closeSession)
	n.running.Wait()
}

// noteChange is told by the library and must not block.
func (n *conn) noteChange() {
	select {
	case n.changed <- struct{}{}:
	default: // a change that is not followed yet stands for this one too
	}
}

// follow takes the tools anew as often as the server says that they changed.
func (n *conn) follow() {
	for {
		select {
		case <-n.life.Done():
			return
		case <-n.changed:
			ctx, cancel := context.WithTimeout(n.life, n.client.set.server.Start)
			n.client.set.refresh(ctx, n)
			cancel()
		}
	}
}

// about says what answered.
func (n *conn) about() string {
	res := n.session.InitializeResult()
	if res == nil {
		return ""
	}
	name := "a server without a name"
	if res.ServerInfo != nil && res.ServerInfo.Name != "" {
		name = strings.TrimSpace(res.ServerInfo.Name + " " + res.ServerInfo.Version)
	}
	return tool.Clip(name, 200) + ", protocol " + res.ProtocolVersion
}

// call makes one call. An error that is errUnsent says that the server has not seen it.
func (n *conn) call(ctx context.Context, remote string, args []byte) (*sdk.CallToolResult, error) {
	inner, stop := joinContexts(ctx, n.life)
	defer stop()
	res, err := n.session.CallTool(inner, &sdk.CallToolParams{Name: remote, Arguments: json.RawMessage(args)})
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, n.explain(ctx, err)
}

// explain finds the words for a failed request: what the server answered, or else
// what became of the server.
func (n *conn) explain(ctx context.Context, err error) error {
	if answer, ok := errors.Unwrap(err).(*jsonrpc.Error); ok { //nolint:errorlint // the very answer, not what the library wraps for its own use
		return tool.Errorf(tool.CodeToolFailed, "%s (code %d)", answer.Message, answer.Code)
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-n.gone:
	case <-timer.C:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	<-n.dead
	if errors.Is(err, sdk.ErrConnectionClosed) {
		return fmt.Errorf("%w: %w", errUnsent, n.err)
	}
	return fmt.Errorf("%w; whether the request took effect is not known", n.err)
}

// why finds the words for a start that failed; the link has ended.
func (n *conn) why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if fate := n.link.fate(); fate != "" && (errors.Is(err, sdk.ErrConnectionClosed) || errors.Is(err, io.EOF)) {
		return errors.New(fate) // the library only says that it is over
	}
	if words := n.link.words(); words != "" {
		return fmt.Errorf("%w; %s", err, words)
	}
	return err
}

// joinContexts returns ctx, ended also by other, with its cause.
func joinContexts(ctx, other context.Context) (context.Context, func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() {
		stop()
		cancel(nil)
	}
}
