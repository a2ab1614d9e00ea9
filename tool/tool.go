// Package tool is the contract between an agent and what it can do: tool
// definitions, the scoped registry with its restrictions, the guarded pipeline
// that runs one call, and approvals.
//
// A tool author fills in a Definition and registers it in a Scope. The agent
// loop asks its scope which tools a model may see and runs calls through the
// pipeline. Floor 2.
package tool

import (
	"context"
	"time"

	"github.com/offshoot-dev/offshoot/message"
)

// Definition is one tool (core T1). It must not be modified after registration.
type Definition struct {
	// Name is ASCII, unique within its scope, and what the model calls.
	Name string
	// Description is what the model reads.
	Description string
	// Parameters is the JSON Schema of the arguments, an object schema. It is
	// compiled at registration; a malformed schema is refused there.
	Parameters []byte
	// Output is the mandatory contract of the value that Execute returns.
	Output Output
	// Execute runs one call. It must return soon after ctx ends; the pipeline
	// waits for it in any case (core T17). args is validated against Parameters.
	// A returned error becomes an error result; use *Error to give it a code. A
	// panic is contained and becomes an error result.
	Execute func(ctx context.Context, call *Call) (any, error)
	// Finalize, if set, rewrites the model-visible content once, last.
	Finalize func(call *Call, content []message.Block, isError bool) []message.Block
	// Timeout bounds Execute; 0 is no bound. It must not be negative.
	Timeout time.Duration
	// ConcurrencySafe says that a call with these arguments may overlap others of
	// the same step. nil means never.
	ConcurrencySafe func(args []byte) bool
	// ReadOnly says that no call of this tool changes anything outside the
	// session: such a tool stays allowed under the permission "read-only".
	ReadOnly bool
	// Describe, if set, gives a short line for people, e.g. "read go.mod".
	Describe func(args []byte) string
}

// Output is the contract of a tool's value.
type Output struct {
	// Schema, if not nil, is a JSON Schema that the value's JSON must satisfy.
	// A value that does not is INVALID_TOOL_OUTPUT.
	Schema []byte
	// Render turns the value into what the model reads. nil takes a string as
	// one text block, []message.Block as it is, and anything else as its JSON.
	Render func(value any) ([]message.Block, error)
	// Meta, if set, gives lossless JSON for the result event's meta field.
	Meta func(value any) ([]byte, error)
}

// Call is one execution. Its fields are a snapshot taken when the call was
// dispatched; nobody changes them afterwards (amendment P38).
type Call struct {
	// ID is the model's call id; Name the tool; Args the frozen arguments.
	ID   string
	Name string
	Args []byte
	// Caller is the exact live agent that calls, or nil for an agentless call.
	Caller Caller
	// Cwd is the caller's working directory, or "".
	Cwd string
	// Turn and Step locate the call in the caller's log.
	Turn, Step int
	// Limit is the bound on the model-visible text of the result in bytes, 0 for
	// none: a tool that shows a window of something larger stays below it.
	Limit int

	sink *sink
}

// Caller is the agent behind a call. Authority is the exact live object: a
// registry confirms a Caller by identity, never by its id (design § 4).
type Caller interface {
	// SessionID is the id that the agent shares with its session.
	SessionID() string
	// Root reports whether no other agent owns this one at run time: only such
	// an agent may ask a person (core T25).
	Root() bool
}

// Error is a failure with a stable code, shown to the model as
// "Error: <message>" (core T16).
type Error struct {
	Code string
	Msg  string
	Err  error
}

func (e *Error) Error() string {
	if e.Msg == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Msg
}

func (e *Error) Unwrap() error { return e.Err }

// Result codes (core T16).
const (
	CodeUnknownTool           = "UNKNOWN_TOOL"
	CodeInvalidArgs           = "INVALID_ARGS"
	CodeInvalidToolOutput     = "INVALID_TOOL_OUTPUT"
	CodeAborted               = "ABORTED"
	CodeAbortedBeforeDispatch = "ABORTED_BEFORE_DISPATCH"
	CodeTimeout               = "TIMEOUT"
	CodeDenied                = "DENIED"
	CodeInternal              = "INTERNAL"
	CodeToolFailed            = "TOOL_FAILED"
	CodeNotStarted            = "TOOL_NOT_STARTED"
	CodeOutcomeUnknown        = "TOOL_OUTCOME_UNKNOWN"
)

// Errorf returns an *Error with a code and a formatted message.
func Errorf(code, format string, args ...any) error { return newError(code, format, args...) }

// DeferContext hands the model a message after all results of the step, in the
// order of the calls (core T19). It has no effect when the call fails or is blocked.
func (c *Call) DeferContext(m message.Message) {
	if c.sink != nil {
		c.sink.deferContext(m)
	}
}

// ConcludeTurn marks that the turn ends after this step if the call succeeds
// (core T18).
func (c *Call) ConcludeTurn() {
	if c.sink != nil {
		c.sink.concludeTurn()
	}
}
