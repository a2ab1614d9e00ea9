package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/offshoot-dev/offshoot/harness/config"
)

// The exit codes. 130 and 143 belong to signals.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// exitError is an error that brings its own exit code. A nil err says nothing
// more: what there is to say was said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is an error about what the person asked for.
func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// report writes an error to stderr, one line for each fault, and returns the exit
// code.
func (a *app) report(err error) int {
	code, lines := explain(err)
	for _, line := range lines {
		// Nothing is left to be done when stderr cannot be written.
		_, _ = io.WriteString(a.stderr, "offshoot: "+line+"\n")
	}
	return code
}

// explain returns the exit code of an error and its lines. Of joined errors each
// has a line of its own, and the code is that of a usage error only when all
// are: a failure is what a second attempt with other words would meet again.
func explain(err error) (code int, lines []string) {
	switch e := err.(type) { //nolint:errorlint // each level decides by itself what the levels below it are
	case nil:
		return exitOK, nil
	case *exitError:
		_, lines = explain(e.err)
		return e.code, lines
	case *config.Error:
		code = exitFailure
		if e.Kind == config.KindUsage {
			code = exitUsage
		}
		return code, []string{oneLine(e.Error())}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			c, more := explain(one)
			lines = append(lines, more...)
			if code == exitOK || c == exitFailure {
				code = c
			}
		}
		if joined(err.Error(), e.Unwrap()) {
			return code, lines
		}
		return code, []string{oneLine(err.Error())}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			code, _ = explain(inner)
			return code, []string{oneLine(err.Error())}
		}
	}
	return exitFailure, []string{oneLine(err.Error())}
}

// joined tells errors.Join from an error that words its causes itself.
func joined(text string, errs []error) bool {
	parts := make([]string, len(errs))
	for i, err := range errs {
		parts[i] = err.Error()
	}
	return text == strings.Join(parts, "\n")
}

// oneLine folds what an error says over several lines into one.
func oneLine(text string) string {
	var parts []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return printable(strings.Join(parts, "; "))
}
