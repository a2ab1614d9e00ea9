package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// Names of errors in a result, the "name" beside the code (core T16).
const (
	NameToolError    = "ToolError"
	NameAbortError   = "AbortError"
	NameTimeoutError = "TimeoutError"
	NamePanicError   = "PanicError"
)

// Result is what a call has come to. Every failure is a Result (core T16). It is
// final: whoever receives one must not modify it.
type Result struct {
	// Content is what the model reads: never nil, valid UTF-8, and bounded.
	Content []message.Block
	// Cut is what Content was cut from, or nil. Whoever keeps that text somewhere
	// gives the model Cut.Content instead, which says where: the agent loop keeps it
	// in the log.
	Cut *Cut
	// IsError marks a failure; Code and Name are then set. The content of a failure
	// is "Error: <message>".
	IsError bool
	Code    string
	Name    string
	// Meta is lossless compact JSON for the result event, or nil.
	Meta []byte
	// Value is what the body returned, nil on failure.
	Value any
	// Contexts reach the model after all results of the step (core T19).
	Contexts []message.Message
	// Conclude says that the turn ends after this step. Never on a failure (core T18).
	Conclude bool
}

// ErrorResult returns the result of a call that failed with a code and a message.
// The loop uses it for calls that never reached the pipeline.
func ErrorResult(code, msg string) Result {
	return failure(&Error{Code: code, Msg: msg}, NameToolError)
}

func failure(err *Error, name string) Result {
	code := err.Code
	if code == "" {
		code = CodeToolFailed
	}
	switch code {
	case CodeAborted, CodeAbortedBeforeDispatch:
		name = NameAbortError
	case CodeTimeout:
		name = NameTimeoutError
	}
	return Result{
		Content: []message.Block{message.Text("Error: " + err.Error())},
		IsError: true, Code: code, Name: name,
	}
}

// PanicError is a panic of code that the pipeline called and contained (core G10).
type PanicError struct {
	// Where says whose code it was.
	Where string
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Where, e.Value) }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// contain runs fn and turns its panic into a *PanicError.
func contain(where string, fn func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Where: where, Value: v, Stack: debug.Stack()}
		}
	}()
	fn()
	return nil
}

// bodyFailure maps what a body or a wrapper returned as its error. ctx is the
// caller's.
func (p *Pending) bodyFailure(ctx context.Context, err error) Result {
	if pe, ok := errors.AsType[*PanicError](err); ok {
		p.fault(pe)
		return failure(&Error{Code: CodeInternal, Msg: pe.Error()}, NamePanicError)
	}
	if te, ok := errors.AsType[*Error](err); ok {
		return failure(&Error{Code: te.Code, Msg: err.Error()}, NameToolError)
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Cause(ctx))) {
		return aborted()
	}
	return failure(&Error{Code: CodeToolFailed, Msg: err.Error()}, NameToolError)
}

func aborted() Result {
	return failure(&Error{Code: CodeAborted, Msg: "the call was cancelled while it ran"}, NameAbortError)
}

func notDispatched() Result {
	return failure(&Error{Code: CodeAbortedBeforeDispatch, Msg: "the call was cancelled before it started"}, NameAbortError)
}

// success validates and renders a value (core T12).
func (p *Pending) success(value any) Result {
	def := p.tool.def
	invalid := func(err error) Result {
		if pe, ok := errors.AsType[*PanicError](err); ok {
			p.fault(pe)
		}
		return failure(&Error{Code: CodeInvalidToolOutput, Msg: fmt.Sprintf("tool %s returned a value that breaks its own contract: %v", def.Name, err)}, NameToolError)
	}
	r := Result{Value: value}
	var encoded []byte
	var err error
	if p.tool.output != nil {
		if encoded, err = p.encode(value); err != nil {
			return invalid(err)
		}
		if err := validate(p.tool.output, encoded); err != nil {
			return invalid(err)
		}
	}
	if r.Content, err = p.render(value, encoded); err != nil {
		return invalid(err)
	}
	if def.Output.Meta != nil {
		if perr := contain("meta of tool "+def.Name, func() { r.Meta, err = def.Output.Meta(value) }); perr != nil {
			err = perr
		}
		if err == nil && r.Meta != nil {
			r.Meta, err = jsonx.Compact(r.Meta)
		}
		if err != nil {
			return invalid(err)
		}
	}
	return r
}

func (p *Pending) encode(value any) (encoded []byte, err error) {
	if perr := contain("encoding the value of tool "+p.call.Name, func() { encoded, err = encodeJSON(value) }); perr != nil {
		err = perr
	}
	return encoded, err
}

func (p *Pending) render(value any, encoded []byte) (content []message.Block, err error) {
	if render := p.tool.def.Output.Render; render != nil {
		if perr := contain("renderer of tool "+p.call.Name, func() { content, err = render(value) }); perr != nil {
			err = perr
		}
		return slices.Clone(content), err
	}
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		return []message.Block{message.Text(v)}, nil
	case []message.Block:
		return slices.Clone(v), nil
	}
	if encoded == nil {
		if encoded, err = p.encode(value); err != nil {
			return nil, err
		}
	}
	return []message.Block{message.Text(string(encoded))}, nil
}

// snapshot returns a Result that a hook may keep without reaching r.
func (r *Result) snapshot() Result {
	s := *r
	s.Content = slices.Clone(r.Content)
	s.Contexts = slices.Clone(r.Contexts)
	s.Meta = bytes.Clone(r.Meta)
	return s
}
