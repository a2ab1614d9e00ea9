package tool

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/offshoot-dev/offshoot/message"
)

// sink collects what a running body asks for besides its value. It is shared by
// the copies of a Call that the body and the hooks see.
type sink struct {
	def *Definition // nil for a call of an unknown tool

	mu sync.Mutex // guards following

	closed   bool // the body has returned: later requests are void
	contexts []message.Message
	conclude bool
	meta     []byte
	hasMeta  bool
}

func (s *sink) deferContext(m message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.contexts = append(s.contexts, m)
	}
}

func (s *sink) concludeTurn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conclude = true
	}
}

func (s *sink) setMeta(meta []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.meta, s.hasMeta = bytes.Clone(meta), true
	}
}

// collect closes the sink and hands over what it holds.
func (s *sink) collect() (contexts []message.Message, conclude bool, meta []byte, hasMeta bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.contexts, s.conclude, s.meta, s.hasMeta
}

func newError(code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), Err: err}
}

// SetMeta gives the lossless JSON of the result event's meta field from inside a
// body. It stands in for Output.Meta and, unlike that, also reaches the result of
// a call that fails. The last call wins; after the body has returned it has no
// effect. meta is copied. JSON that is not lossless fails the call with
// INVALID_TOOL_OUTPUT, unless it failed anyway; then it is left out.
func (c *Call) SetMeta(meta []byte) {
	if c.sink != nil {
		c.sink.setMeta(meta)
	}
}

// ReadOnly reports whether the called tool declares that it changes nothing
// outside the session. It is false for a tool that is not known.
func (c *Call) ReadOnly() bool {
	return c.sink != nil && c.sink.def != nil && c.sink.def.ReadOnly
}

// Describe returns a short line for people about this call: what the tool's own
// Describe says, or else the tool's name.
func (c *Call) Describe() string {
	if c.sink == nil || c.sink.def == nil || c.sink.def.Describe == nil {
		return c.Name
	}
	var line string
	if err := contain("describe of tool "+c.Name, func() { line = c.sink.def.Describe(c.Args) }); err != nil || line == "" {
		return c.Name
	}
	return line
}

// copy returns a Call that hooks may see: writing to its arguments reaches
// neither the body nor an approval (core T14, T33).
func (c *Call) copy() *Call {
	d := *c
	d.Args = bytes.Clone(c.Args)
	return &d
}
