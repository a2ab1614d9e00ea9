package rpcconn

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrClosed is the cause of a connection that its owner closed.
var ErrClosed = errors.New("closed by its owner")

// ClosedError says that the connection has ended and why. All that waited for the
// connection get the same one.
type ClosedError struct {
	// Cause is the first thing that ended it: ErrClosed, io.EOF,
	// io.ErrUnexpectedEOF (the stream ended inside a line, which was dropped), a
	// *LineTooLongError, a *Fault, a *WriteError, a *PanicError, an error of the
	// stream's reader, or what the owner gave to End or returned.
	Cause error
}

func (e *ClosedError) Error() string { return "the connection has ended: " + e.Cause.Error() }
func (e *ClosedError) Unwrap() error { return e.Cause }

// LineTooLongError is a line over the bound, in either direction.
type LineTooLongError struct {
	// Max is the bound, in bytes without the terminator.
	Max int
}

func (e *LineTooLongError) Error() string { return fmt.Sprintf("a line of over %d bytes", e.Max) }

// WriteError says that a line could not be written. The peer may have got a part of
// it, and gets nothing after it.
type WriteError struct{ Err error }

func (e *WriteError) Error() string { return "write a line: " + e.Err.Error() }
func (e *WriteError) Unwrap() error { return e.Err }

// PanicError says that a function of the owner's panicked while it handled what the
// peer sent.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("a handler panicked: %v\n%s", e.Value, e.Stack)
}

// FaultKind says what is wrong with a line.
type FaultKind string

// The kinds of fault.
const (
	FaultSyntax      FaultKind = "no JSON object"          // not JSON, or not an object
	FaultShape       FaultKind = "no message"              // neither request, nor answer, nor notification
	FaultUnknownID   FaultKind = "unknown id"              // the answer to a call that was never made, or a second one
	FaultDuplicateID FaultKind = "id in use"               // a request with the id of one that is not answered yet
	FaultTooMany     FaultKind = "too many requests"       // more open requests of the peer than Config.MaxRequests
	faultExcerpt               = 1 << 10                   // bytes of the line that a Fault keeps
	errorFallback              = "the peer gave no reason" // of an error without a message
)

// Fault is a line that the protocol has no place for.
type Fault struct {
	Kind FaultKind
	// Size is the line's length in bytes and Excerpt how it begins. The excerpt is
	// the peer's own text and is not part of the error's.
	Size    int
	Excerpt string
}

func (f *Fault) Error() string {
	return fmt.Sprintf("a line of %d bytes from the peer: %s", f.Size, f.Kind)
}

// The codes of JSON-RPC that this package uses itself.
const (
	CodeMethodNotFound = -32601
	CodeInternal       = -32603
)

// Error is the failure of a call as it goes over the wire: what the peer answered,
// or what an Answer wants it to be told.
type Error struct {
	// Code is 0 if the peer gave none that is an integer.
	Code    int64
	Message string
	// Data is the raw member, nil if absent.
	Data json.RawMessage
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return e.Message
	}
	return fmt.Sprintf("%s (%d)", e.Message, e.Code)
}

// MethodNotFound returns the error for a method that is not served.
func MethodNotFound(method string) *Error {
	return &Error{Code: CodeMethodNotFound, Message: "method not found: " + method}
}
