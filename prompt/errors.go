package prompt

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unicode/utf8"
)

// Sentinels, found with errors.Is.
var (
	// ErrDuplicate: the name is taken in this layer or, for a variable, anywhere along the chain.
	ErrDuplicate = errors.New("name already registered")
	// ErrInvalid: what was registered can never be used.
	ErrInvalid = errors.New("invalid registration")
	// ErrClosed: the scope, or one that it stands under, is closed.
	ErrClosed = errors.New("scope is closed")
	// ErrTwoComplete: more than one visible section wants to be the whole prompt.
	ErrTwoComplete = errors.New("more than one complete section")

	// The problems of a VariableError.
	ErrUnknownVariable   = errors.New("unknown variable")
	ErrUndefinedVariable = errors.New("variable has no value")
	ErrMalformedGroup    = errors.New("malformed variable group, want {{name}} with name like [a-z][a-z0-9_]*")
)

// VariableError says which variable could not be put into which text (core P4). It fails the
// assembly, and with it the turn; the agent goes on living.
type VariableError struct {
	Kind     string // "section" or "context"
	Name     string // of the section or context
	Variable string // the variable, or the start of what stands in a malformed group
	Problem  error  // one of the sentinels above, or what the variable's own function did
}

func (e *VariableError) Error() string {
	return fmt.Sprintf("%s %q: %q: %v", e.Kind, e.Name, e.Variable, e.Problem)
}

func (e *VariableError) Unwrap() error { return e.Problem }

// PanicError is a panic of a registered function, contained.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the panic's value where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// contain turns a panic of the function that defers it into an error.
func contain(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

// excerpt shortens the inside of a malformed group, which may run over pages.
func excerpt(s string) string {
	const limit = 60
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
