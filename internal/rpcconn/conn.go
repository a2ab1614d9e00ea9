package rpcconn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// DefaultMaxRequests is how many requests of the peer may be open if nothing else is said.
const DefaultMaxRequests = 256

// Config is how a Conn behaves. The functions are called one at a time, in the order
// of the wire, from the goroutine that reads: nothing is read until they return, so
// they must not wait for a call on the same Conn nor close it, but may end it. One
// that panics ends the connection with a *PanicError. Any of them may be nil.
type Config struct {
	// Dialect is what is written.
	Dialect Dialect
	// MaxLine bounds lines in both directions; 0 is DefaultMaxLine.
	MaxLine int
	// ID returns the id of this side's nth call, counted from 0: a JSON number or string,
	// different for each n. It may be called concurrently. nil counts from 0.
	ID func(n uint64) json.RawMessage
	// Notification takes a notification. Without it they are dropped.
	Notification func(Notification)
	// Request is told of a request of the peer and returns what answers it, which then
	// runs in a goroutine of its own. What must be known before a later line is seen is
	// done in Request itself. Without it, or if it returns nil, the peer is told that
	// there is no such method.
	Request func(Request) Answer
	// MaxRequests is how many requests may be open at once; 0 is DefaultMaxRequests. One
	// more ends the connection with a *Fault.
	MaxRequests int
	// Fault is told of a line that is no message, or one with an id that does not belong
	// there. If it returns nil, the line is skipped; otherwise the connection ends with
	// what it returns. Without it, it ends with the fault.
	Fault func(*Fault) error
}

// Notification is a message that wants no answer.
type Notification struct {
	Method string
	// Params is the raw member, nil if absent. It is the receiver's to keep.
	Params json.RawMessage
}

// Request is a message of the peer that wants an answer.
type Request struct {
	// ID is a JSON number or string as the peer wrote it, and goes back so.
	ID     json.RawMessage
	Method string
	// Params is the raw member, nil if absent. It is the receiver's to keep.
	Params json.RawMessage
}

// Answer produces the answer to one request. Its ctx has the values of New's and ends
// with the connection, with the *ClosedError as its cause; the answer must return
// then, since Close waits for it.
//
// A nil error sends the result, as encoding/json writes it. An error in whose tree is
// an *Error sends that; any other sends its text with CodeInternal.
type Answer func(ctx context.Context) (result any, err error)

// Conn is one peer of JSON-RPC. Its methods may be called concurrently.
type Conn struct {
	cfg    Config
	stream *Stream
	ctx    context.Context // of answers
	cancel context.CancelCauseFunc
	calls  atomic.Uint64

	mu        sync.Mutex // guards following
	pending   map[string]*Pending
	abandoned map[string]struct{} // calls that were given up; an answer may still come
	open      map[string]struct{} // requests of the peer that are not answered
	answering int
	answers   sync.WaitGroup // added to by the reader only
}

// New returns a peer that reads from r and writes to w; see NewStream for what that
// asks of them. Of ctx only the values count, and only for answers. Nothing happens
// before Start.
func New(ctx context.Context, r io.ReadCloser, w io.WriteCloser, cfg Config) *Conn {
	if cfg.ID == nil {
		cfg.ID = func(n uint64) json.RawMessage { return strconv.AppendUint(nil, n, 10) }
	}
	if cfg.MaxRequests <= 0 {
		cfg.MaxRequests = DefaultMaxRequests
	}
	c := &Conn{
		cfg: cfg, pending: map[string]*Pending{}, abandoned: map[string]struct{}{}, open: map[string]struct{}{},
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.stream = NewStream(r, w, cfg.MaxLine, c.take)
	c.stream.ending = c.cancel
	return c
}

// StringIDs returns ids for Config.ID that are strings: the prefix and 32 hexadecimal
// digits, which no other connection uses.
func StringIDs(prefix string) func(n uint64) json.RawMessage {
	var own [8]byte
	_, _ = rand.Read(own[:]) // never fails
	return func(n uint64) json.RawMessage {
		return strconv.AppendQuote(nil, fmt.Sprintf("%s%x%016x", prefix, own, n))
	}
}

// Start begins to read and to write. A second call does nothing.
func (c *Conn) Start() { c.stream.Start() }

// Call sends a request and returns the raw result, nil if the answer has none. params
// is written as encoding/json does and left out if it is nil.
//
// When ctx ends, the call is given up and its cause returned; the peer is told
// nothing, and its answer is dropped. Other errors are *Error (the peer's answer),
// *LineTooLongError, *WriteError, and *ClosedError.
func (c *Conn) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	sent, err := c.Send(ctx, method, params, nil)
	if err != nil {
		return nil, err
	}
	return sent.Wait(ctx)
}

// Pending is a call whose request is written.
type Pending struct {
	conn    *Conn
	method  string
	key     string
	answer  chan message
	arrived func()
}

// Send sends a request and returns when it is written: what is written after that
// reaches the peer behind it. params, ctx and the errors are as in Call. arrived, if
// any, is called when the answer comes, in the order of the wire, as the functions of
// Config are; it is not called for a call that was given up or whose connection ended.
// The caller must Wait.
func (c *Conn) Send(ctx context.Context, method string, params any, arrived func()) (*Pending, error) {
	id := c.cfg.ID(c.calls.Add(1) - 1)
	key, ok := idKey(id)
	if !ok {
		return nil, fmt.Errorf("call %s: the id %s is neither a number nor a string", method, id)
	}
	line, err := c.cfg.Dialect.outgoing(id, method, params)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	p := &Pending{conn: c, method: method, key: key, answer: make(chan message, 1), arrived: arrived}
	c.mu.Lock()
	_, twice := c.pending[key]
	if !twice {
		c.pending[key] = p
	}
	c.mu.Unlock()
	if twice {
		return nil, fmt.Errorf("call %s: the id %s is in use", method, id)
	}
	if err := c.stream.write(ctx, line); err != nil {
		if m, ok := c.giveUp(p, ctx.Err() != nil); ok { // answered all the same
			p.answer <- m
			return p, nil
		}
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	return p, nil
}

// Wait returns the answer, as Call does. It is called once.
func (p *Pending) Wait(ctx context.Context) (json.RawMessage, error) {
	var err error
	select {
	case m := <-p.answer:
		return m.outcome(p.method)
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-p.conn.stream.Done():
		err = p.conn.stream.Err()
	}
	if m, ok := p.conn.giveUp(p, true); ok {
		return m.outcome(p.method)
	}
	return nil, fmt.Errorf("call %s: %w", p.method, err)
}

// giveUp removes a call, unless its answer has just come. A call that the peer may
// have got is remembered, so that its answer is no fault.
func (c *Conn) giveUp(p *Pending, sent bool) (message, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, p.key)
	select {
	case m := <-p.answer:
		return m, true
	default:
	}
	if sent {
		c.abandoned[p.key] = struct{}{}
	}
	return message{}, false
}

func (m message) outcome(method string) (json.RawMessage, error) {
	if m.err != nil {
		return nil, fmt.Errorf("call %s: %w", method, m.err)
	}
	return m.result, nil
}

// Notify sends a notification and returns when it is written. params is as in Call,
// and so are the errors.
func (c *Conn) Notify(ctx context.Context, method string, params any) error {
	line, err := c.cfg.Dialect.outgoing(nil, method, params)
	if err == nil {
		err = c.stream.write(ctx, line)
	}
	if err != nil {
		return fmt.Errorf("notify %s: %w", method, err)
	}
	return nil
}

// take handles one line.
func (c *Conn) take(line []byte) error {
	m, fault := decode(line)
	if fault == nil {
		switch m.kind {
		case notification:
			if c.cfg.Notification != nil {
				c.cfg.Notification(Notification{Method: m.method, Params: m.params})
			}
			return nil
		case request:
			fault = c.begin(m, line)
		case response:
			fault = c.answered(m, line)
		}
	}
	switch {
	case fault == nil:
		return nil
	case c.cfg.Fault == nil || fault.Kind == FaultTooMany:
		return fault
	default:
		return c.cfg.Fault(fault)
	}
}

// answered hands an answer to the call that waits for it.
func (c *Conn) answered(m message, line []byte) *Fault {
	c.mu.Lock()
	waiting, ok := c.pending[m.key]
	_, late := c.abandoned[m.key]
	delete(c.abandoned, m.key)
	c.mu.Unlock()
	switch {
	case !ok && !late:
		return faultOf(FaultUnknownID, line)
	case !ok:
		return nil
	}
	if waiting.arrived != nil {
		waiting.arrived()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[m.key] != waiting { // given up meanwhile
		delete(c.abandoned, m.key)
		return nil
	}
	delete(c.pending, m.key)
	waiting.answer <- m // it has room
	return nil
}

// begin starts the answer to a request.
func (c *Conn) begin(m message, line []byte) *Fault {
	c.mu.Lock()
	_, twice := c.open[m.key]
	full := c.answering >= c.cfg.MaxRequests
	if !twice && !full {
		c.open[m.key] = struct{}{}
		c.answering++
	}
	c.mu.Unlock()
	switch {
	case full:
		return faultOf(FaultTooMany, line)
	case twice:
		return faultOf(FaultDuplicateID, line)
	}
	var answer Answer
	if c.cfg.Request != nil {
		answer = c.cfg.Request(Request{ID: m.id, Method: m.method, Params: m.params})
	}
	if answer == nil {
		answer = func(context.Context) (any, error) { return nil, MethodNotFound(m.method) }
	}
	c.answers.Go(func() { c.answer(m, answer) })
	return nil
}

// answer runs one answer and sends what comes of it.
func (c *Conn) answer(m message, answer Answer) {
	var result any
	var failure error
	if err := contain(func() error { result, failure = answer(c.ctx); return nil }); err != nil {
		c.End(err)
	}
	line, err := c.cfg.Dialect.answer(m.id, result, wireError(failure))
	if err != nil { // what does not encode is a failure that does
		line, err = c.cfg.Dialect.answer(m.id, nil, &Error{Code: CodeInternal, Message: err.Error()})
	}
	c.mu.Lock()
	delete(c.open, m.key) // the peer may use the id again once it has the answer
	c.mu.Unlock()
	if err == nil {
		err = c.stream.write(c.ctx, line)
	}
	if broken := new(WriteError); err != nil && !errors.As(err, &broken) {
		// The peer waits for an answer that can never be sent, which is the end, unless
		// it was that already. A broken pipe is the stream's to settle.
		c.End(err)
	}
	c.mu.Lock()
	c.answering--
	c.mu.Unlock()
}

func wireError(err error) *Error {
	if err == nil {
		return nil
	}
	if own := new(Error); errors.As(err, &own) {
		return own
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// End ends the connection with a cause, unless it has ended already: both sides are
// closed, calls fail, answers are cancelled, nothing more is handed over. It waits
// for nothing and may be called from anywhere.
func (c *Conn) End(cause error) { c.stream.End(cause) }

// Close ends the connection with ErrClosed, if it has not ended, and returns when no
// goroutine of it runs. It must not be called from a function of Config or from an
// Answer, which it waits for. The error is that of closing the two sides.
func (c *Conn) Close() error {
	err := c.stream.Close()
	c.answers.Wait()
	return err
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.stream.Done() }

// Err returns nil before the end and the *ClosedError after it.
func (c *Conn) Err() error { return c.stream.Err() }
