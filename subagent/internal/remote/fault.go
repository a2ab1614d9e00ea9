package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/internal/rpcconn"
)

// Fault is a failure with words that anybody may read. They hold nothing that a product
// wrote, but for numbers and the names that its protocol defines.
type Fault struct {
	Msg string
	// Err is what is behind it, for the program's log alone.
	Err error
}

// Error is the words alone.
func (f *Fault) Error() string { return f.Msg }

func (f *Fault) Unwrap() error { return f.Err }

// Faultf returns a Fault.
func Faultf(format string, args ...any) *Fault { return &Fault{Msg: fmt.Sprintf(format, args...)} }

// Words says what failed in fixed words.
func Words(err error) string {
	var fault *Fault
	var answer *rpcconn.Error
	var long *rpcconn.LineTooLongError
	var line *rpcconn.Fault
	var write *rpcconn.WriteError
	var crash *rpcconn.PanicError
	var errno syscall.Errno
	switch {
	case errors.As(err, &fault):
		return fault.Msg
	case errors.As(err, &answer):
		return fmt.Sprintf("the product answered with the error %d", answer.Code)
	case errors.As(err, &long):
		return fmt.Sprintf("the product sent a line of more than %d bytes", long.Max)
	case errors.As(err, &line):
		return fmt.Sprintf("the product sent a line that its protocol has no place for (%s)", line.Kind)
	case errors.As(err, &write):
		return "the product takes no input any more"
	case errors.As(err, &crash):
		return "what the product sent could not be handled"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the product closed the connection"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStartTimeout):
		return "the product did not answer in time"
	case errors.As(err, &errno):
		return "the system says: " + errno.Error()
	}
	return "it failed for a reason that is in the program's log alone"
}

// exitWords says how a process ended.
func exitWords(e proc.Exit) string {
	if e.Signal != "" {
		return "signal " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// log tells the logger of a failure, whose text it bounds. A logger that fails changes
// nothing (seam OOPX-05).
func (p *Product) log(what string, err error) {
	defer func() { _ = recover() }()
	s := err.Error()
	var fault *Fault
	if errors.As(err, &fault) && fault.Err != nil {
		s += ": " + fault.Err.Error()
	}
	if len(s) > maxLogged {
		s = s[:maxLogged]
	}
	p.Config.Logger.Warn("agent in another process", "provider", p.Config.Name, "stage", what, "error", s)
}

const maxLogged = 1024

// Log tells the logger of a fault in what a child's product does that nobody else is told
// of, at a stage in one word. The text may hold what the product wrote.
func (c *Child) Log(stage string, err error) { c.product.log(stage, err) }
