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
	vouches  bool // meta says something of what the body returned
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

func (s *sink) setMeta(meta []byte, vouches bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.meta, s.hasMeta, s.vouches = bytes.Clone(meta), true, vouches
	}
}

// close makes later requests void: what the sink holds is final then.
func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
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
		c.sink.setMeta(meta, false)
	}
}

// SetOutcomeMeta is SetMeta for a meta that vouches for what the model reads: that it is
// the outcome of something which nobody needs to tell the model again. It reaches the
// result only together with what the body returned, a value or an error. A success that
// the end of ctx displaced, a result that a hook replaced or blocked, and one that broke
// the tool's contract are without it; so is a value behind an execute hook that cannot be
// compared with what the body returned.
func (c *Call) SetOutcomeMeta(meta []byte) {
	if c.sink != nil {
		c.sink.setMeta(meta, true)
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
