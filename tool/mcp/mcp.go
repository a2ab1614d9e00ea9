// Package mcp gives agents the tools of MCP servers: programs that are spoken to
// over their standard streams, and services that are spoken to over streamable HTTP.
//
// A Set is one server with its tools. They are registered in a tool scope as
// SERVER_TOOL and go through the pipeline like any other: arguments are validated
// here, results are bounded there. A tool whose schema cannot be enforced is left out,
// with a note. What the server itself says of a tool is its word alone: it counts as
// changing something unless the server says that it only reads and the configuration
// believes that.
//
// A server that dies makes the calls that it was running fail, with an error that names
// it; none of them is made again. The next call starts it once more, one start a call.
// Close ends everything: the whole process tree, or the session. Floor 6.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/tool"
)

// Bounds of a server.
const (
	// DefaultTimeout bounds one call.
	DefaultTimeout = 2 * time.Minute
	// DefaultStart bounds a start: the process, the handshake and the list of tools.
	DefaultStart = 30 * time.Second
	// MaxTools is how many tools of one server there may be behind its filter.
	MaxTools = 256
	// MaxDescription bounds the description of a tool in bytes; it is cut to that.
	MaxDescription = 4 << 10
	// MaxSchema bounds the schema of a tool in bytes; a tool with a longer one is left out.
	MaxSchema = 128 << 10
	// MaxMessage bounds one message of a server in bytes; a longer one ends its connection.
	MaxMessage = 16 << 20
)

// maxServerName leaves room in a tool's name for the tool's own.
const maxServerName = 32

// Server says how a server is reached: Command or URL.
type Server struct {
	// Name stands before the names of the tools: 1 to 32 ASCII letters, digits and '-',
	// with a letter or digit first. Without a '_' in it, no two servers' tools can meet.
	Name string

	// Command is the program, looked up in PATH if it has no separator. Its environment
	// is this process's without secrets, with Env merged into it. Dir is its working
	// directory; "" is this process's, or for a server of one agent that agent's.
	Command string
	Args    []string
	Env     map[string]string
	Dir     string

	// URL is the endpoint of a streamable HTTP server. Headers are sent with every
	// request, to that host alone: a redirection is not followed.
	URL     string
	Headers map[string]string

	// Timeout bounds a call; 0 is DefaultTimeout. Start bounds a start; 0 is DefaultStart.
	Timeout time.Duration
	Start   time.Duration
	// TrustHints believes the server when it says that a tool only reads: the tool is
	// then allowed under "read-only", and may run beside others.
	TrustHints bool
	// Allow and Deny choose tools by the server's own names. A nil Allow is all. A name
	// that the server does not offer is an error.
	Allow []string
	Deny  []string

	dial     func() (io.ReadWriteCloser, error) // in the place of Command, in tests
	patience time.Duration                      // in the place of the constant, in tests
}

// Options are what a Set needs of its surroundings. The zero value is usable.
type Options struct {
	// Logger is told of tools that are left out, restarts, and changes that were not
	// taken; nil discards it.
	Logger *slog.Logger
	// Version is this program's version, which the server is told.
	Version string
	// Bind ties the server of one agent to it: stop is called when the agent begins to end
	// and must not block, join waits until nothing of the server is left. It is
	// required by Isolated, and unused otherwise. Its error fails the call that needed the
	// server.
	Bind func(caller tool.Caller, stop, join func()) error
}

func (o Options) version() string {
	if o.Version == "" {
		return "dev"
	}
	return o.Version
}

// LeftOut is a tool that the server offers and nobody gets.
type LeftOut struct {
	// Tool is the server's own name of it.
	Tool string
	// Why is the fault, in one line.
	Why string
}

// Set is one server and its tools. All methods may be called concurrently.
type Set struct {
	base     context.Context // that of Connect, which its end does not end
	server   Server
	opts     Options
	isolated bool

	shared *client // nil if isolated

	registering sync.Mutex // guards following, and is held while the scope is changed

	scope   *tool.Scope // nil until Register, and again after Close
	admit   func(name string) bool
	entries map[string]entry

	mu sync.Mutex // guards following

	offers  []*offer // by name
	left    []LeftOut
	about   string
	closed  bool
	clients map[tool.Caller]*client // of agents; only if isolated

	closing sync.Once
	ended   error // the outcome of Close
}

// entry is a tool that is registered.
type entry struct {
	offer      *offer
	unregister func()
}

// Connect starts a server, or opens a session with it, and asks for its tools. ctx
// bounds that alone, within Server.Start. The caller must Close the Set. Every error
// names the server; a server that could not be used is ended by then.
func Connect(ctx context.Context, server Server, opts Options) (*Set, error) {
	s, err := newSet(ctx, server, opts)
	if err != nil {
		return nil, err
	}
	s.shared = newClient(s, s.server.Dir, true)
	if _, err := s.shared.get(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Isolated is Connect for a server of which each agent gets its own. One is started to
// ask for its tools and ended again; an agent's is started by the agent's first call,
// and ends with the agent. The tools are those of the first: a change that an agent's
// own server announces is not followed.
func Isolated(ctx context.Context, server Server, opts Options) (*Set, error) {
	s, err := newSet(ctx, server, opts)
	if err != nil {
		return nil, err
	}
	if opts.Bind == nil {
		return nil, s.errorf("a server of each agent needs Options.Bind")
	}
	s.isolated = true
	probe := newClient(s, s.server.Dir, false)
	c, err := probe.get(ctx)
	if err == nil {
		var offers []*offer
		var left []LeftOut
		if offers, left, err = s.list(ctx, c, true); err == nil {
			s.take(offers, left, c)
		}
	}
	if err = errors.Join(err, probe.close()); err != nil {
		return nil, err
	}
	return s, nil
}

func newSet(ctx context.Context, server Server, opts Options) (*Set, error) {
	s := &Set{base: context.WithoutCancel(ctx), server: server, opts: opts, entries: map[string]entry{}, clients: map[tool.Caller]*client{}}
	if err := checkServer(&server); err != nil {
		return nil, s.errorf("%w", err)
	}
	if s.opts.Logger == nil {
		s.opts.Logger = slog.New(slog.DiscardHandler)
	}
	s.opts.Logger = s.opts.Logger.With("mcp", server.Name)
	if s.server.Timeout == 0 {
		s.server.Timeout = DefaultTimeout
	}
	if s.server.Start == 0 {
		s.server.Start = DefaultStart
	}
	s.server.Args, s.server.Allow, s.server.Deny = slices.Clone(server.Args), slices.Clone(server.Allow), slices.Clone(server.Deny)
	s.server.Env, s.server.Headers = maps.Clone(server.Env), maps.Clone(server.Headers)
	return s, nil
}

func checkServer(s *Server) error {
	if s.Name == "" || len(s.Name) > maxServerName || s.Name[0] == '-' || strings.ContainsFunc(s.Name, func(r rune) bool { return r == '_' || !plain(r) }) {
		return fmt.Errorf("the name is not 1 to %d letters, digits and '-'", maxServerName)
	}
	if s.Timeout < 0 || s.Start < 0 {
		return errors.New("a negative bound")
	}
	if s.dial == nil && (s.Command == "") == (s.URL == "") {
		return errors.New("one of command and URL is needed")
	}
	if s.URL == "" {
		if len(s.Headers) > 0 {
			return errors.New("headers are for a server with a URL")
		}
		return nil
	}
	if len(s.Args)+len(s.Env) > 0 || s.Dir != "" {
		return errors.New("arguments, environment and folder are for a server with a command")
	}
	if u, err := url.Parse(s.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("the URL is not an absolute http or https URL") // it may hold a password
	}
	for name := range s.Headers {
		if own := textproto.CanonicalMIMEHeaderKey(name); strings.HasPrefix(own, "Mcp-") ||
			slices.Contains([]string{"Accept", "Content-Type", "Content-Length", "Host", "Last-Event-Id"}, own) {
			return fmt.Errorf("the header %s belongs to the protocol", own)
		}
	}
	return nil
}

// errorf returns an error that names the server.
func (s *Set) errorf(format string, args ...any) error {
	return fmt.Errorf("MCP server %q: %w", s.server.Name, fmt.Errorf(format, args...))
}

// Name returns the server's name.
func (s *Set) Name() string { return s.server.Name }

// About says what answered: name and version of the server's program, and the version
// of the protocol.
func (s *Set) About() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.about
}

// Tools returns the names of the tools, sorted.
func (s *Set) Tools() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, len(s.offers))
	for i, o := range s.offers {
		names[i] = o.name
	}
	return names
}

// LeftOut returns the tools that the server offers and nobody gets because they cannot
// be used. What the filter hides is not among them.
func (s *Set) LeftOut() []LeftOut {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.left)
}

// Register adds the tools to a scope, and from then on keeps them as the server says.
// admit, if not nil, says which of them the scope gets, by their names there. A name
// that the scope has already is an error that names both, and then nothing is
// registered. It may succeed once.
func (s *Set) Register(scope *tool.Scope, admit func(name string) bool) error {
	s.registering.Lock()
	defer s.registering.Unlock()
	if s.scope != nil {
		return s.errorf("its tools are registered already")
	}
	s.scope, s.admit = scope, admit
	err := s.sync()
	if err != nil {
		s.withdraw()
		s.scope = nil
	}
	return err
}

// sync makes the scope have what the server offers. The caller holds registering.
func (s *Set) sync() error {
	s.mu.Lock()
	offers := s.offers
	s.mu.Unlock()
	wanted := map[string]*offer{}
	for _, o := range offers {
		if s.admit == nil || s.admit(o.name) {
			wanted[o.name] = o
		}
	}
	for name, e := range s.entries {
		if o := wanted[name]; o == nil || o.remote != e.offer.remote || o.print != e.offer.print {
			e.unregister()
			delete(s.entries, name)
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, there := s.entries[name]; there {
			continue
		}
		o := wanted[name]
		unregister, err := s.scope.RegisterCompiled(o.compiled)
		if err != nil {
			errs = append(errs, s.errorf("its tool %q: %w", o.remote, err))
			continue
		}
		s.entries[name] = entry{o, unregister}
	}
	return errors.Join(errs...)
}

// withdraw takes every tool out of the scope. The caller holds registering.
func (s *Set) withdraw() {
	for name, e := range s.entries {
		e.unregister()
		delete(s.entries, name)
	}
}

// take makes offers what the server offers.
func (s *Set) take(offers []*offer, left []LeftOut, c *conn) {
	s.mu.Lock()
	s.offers, s.left, s.about = offers, left, c.about()
	s.mu.Unlock()
	for _, l := range left {
		s.opts.Logger.Warn("a tool of an MCP server is left out", "tool", l.Tool, "why", l.Why)
	}
}

// adopt takes the tools of a server that has just started.
func (s *Set) adopt(ctx context.Context, c *conn) error {
	offers, left, err := s.list(ctx, c, true)
	if err != nil {
		return err
	}
	s.take(offers, left, c)
	s.registering.Lock()
	defer s.registering.Unlock()
	if s.scope == nil {
		return nil
	}
	return s.sync()
}

// refresh takes the tools of a server that said that they changed. What cannot be
// taken leaves those that there are.
func (s *Set) refresh(ctx context.Context, c *conn) {
	offers, left, err := s.list(ctx, c, false)
	if err == nil {
		s.take(offers, left, c)
		s.registering.Lock()
		if s.scope != nil {
			err = s.sync()
		}
		s.registering.Unlock()
	}
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.Error("the changed tools of an MCP server are not taken", "error", err)
	}
}

// clientOf returns the server for a call.
func (s *Set) clientOf(call *tool.Call) (*client, error) {
	if !s.isolated {
		return s.shared, nil
	}
	if call.Caller == nil {
		return nil, s.errorf("each agent has its own, and this call is no agent's")
	}
	s.mu.Lock()
	c := s.clients[call.Caller]
	if c != nil || s.closed {
		s.mu.Unlock()
		if c == nil {
			return nil, s.errorf("%w", errEnding)
		}
		return c, nil
	}
	dir := s.server.Dir
	if dir == "" && s.server.URL == "" {
		dir = call.Cwd
	}
	c = newClient(s, dir, false)
	s.clients[call.Caller] = c
	s.mu.Unlock()
	err := s.opts.Bind(call.Caller, c.stop, func() {
		if err := s.release(call.Caller, c); err != nil {
			s.opts.Logger.Error("the MCP server of an agent", "error", err)
		}
	})
	if err != nil {
		return nil, errors.Join(s.errorf("%w", err), s.release(call.Caller, c))
	}
	return c, nil
}

// release ends the server of an agent.
func (s *Set) release(caller tool.Caller, c *client) error {
	err := c.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[caller] == c {
		delete(s.clients, caller)
	}
	return err
}

// every returns the servers that there are.
func (s *Set) every() []*client {
	if s.shared != nil {
		return []*client{s.shared}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.clients))
}

// Close takes the tools out of their scope, fails the calls that run, and ends the
// server or every agent's: a process is told by the end of its input, then asked, then
// killed with its whole tree; a session is deleted, for which the service gets a second,
// and whether it is told before of each call that ran is left to chance. It returns when
// nothing of them runs here any more. It is memoised.
func (s *Set) Close() error {
	s.closing.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		clients := s.every()
		for _, c := range clients {
			c.stop()
		}
		var errs []error
		for _, c := range clients {
			errs = append(errs, c.close())
		}
		s.registering.Lock()
		s.withdraw()
		s.scope = nil
		s.registering.Unlock()
		s.ended = errors.Join(errs...)
	})
	return s.ended
}

// Abort kills the processes of the server without any grace, and starts none any more:
// for a program that ends at once. The Set must still be closed if it does not.
func (s *Set) Abort() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs []error
	for _, c := range s.every() {
		errs = append(errs, c.kill())
	}
	return errors.Join(errs...)
}
