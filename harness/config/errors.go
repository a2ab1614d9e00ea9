package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind says what sort of fault an Error is, so that a command can choose its exit code.
type Kind string

const (
	// KindUsage is a fault in what the person wrote: a key, a value, a variable, a flag, a missing folder or file that was
	// named explicitly.
	KindUsage Kind = "usage"
	// KindIO is a file that exists but cannot be read or written.
	KindIO Kind = "io"
)

// Error is one fault of a configuration. File and Line name where it stands when it stands in a file; Origin names the
// environment variable or flag otherwise ("env OFFSHOOT_MODEL", "flag --model"). Key is the dotted key path and may be
// empty. The text never holds a secret.
type Error struct {
	Kind   Kind
	File   string
	Line   int // counted from 1; 0 when unknown
	Origin string
	Key    string
	Msg    string
	Err    error // the cause, if any
}

// Error is "config FILE:LINE: KEY: MESSAGE", without the parts that are empty.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("config")
	switch {
	case e.File != "" && e.Line > 0:
		fmt.Fprintf(&b, " %s:%d", e.File, e.Line)
	case e.File != "":
		b.WriteString(" " + e.File)
	case e.Origin != "":
		b.WriteString(" " + e.Origin)
	}
	b.WriteString(": ")
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Msg)
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause, if any.
func (e *Error) Unwrap() error { return e.Err }

// Faults returns every *Error inside err, in order: those of a joined error as well as a single one. It returns nil for an
// error that holds none.
func Faults(err error) []*Error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		var all []*Error
		for _, one := range joined.Unwrap() {
			all = append(all, Faults(one)...)
		}
		return all
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return []*Error{e}
	}
	return nil
}

// maxFaults bounds how many faults of one load are reported: a hostile file must not fill a terminal.
const maxFaults = 50

// faults collects the faults of one load.
type faults struct{ list []*Error }

func (f *faults) add(e *Error) { f.list = append(f.list, e) }

// at adds a usage fault that stands where src points.
func (f *faults) at(src Source, key, format string, args ...any) {
	f.add(src.fault(key, fmt.Sprintf(format, args...)))
}

func (f *faults) empty() bool { return len(f.list) == 0 }

// err joins the faults, those of one file ordered by line, the files in the order in which they were read.
func (f *faults) err() error {
	if f.empty() {
		return nil
	}
	rank := map[string]int{}
	for _, e := range f.list {
		if _, seen := rank[e.File]; !seen {
			rank[e.File] = len(rank)
		}
	}
	slices.SortStableFunc(f.list, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(rank[a.File], rank[b.File]), cmp.Compare(a.Line, b.Line))
	})
	list := f.list
	if len(list) > maxFaults {
		more := len(list) - maxFaults
		list = append(slices.Clip(list[:maxFaults]), &Error{Kind: KindUsage, Msg: fmt.Sprintf("%d more faults", more)})
	}
	joined := make([]error, len(list))
	for i, e := range list {
		joined[i] = e
	}
	return errors.Join(joined...)
}
