package config

import (
	"fmt"
	"strings"
)

// SourceKind names the layer that a value came from.
type SourceKind string

// The layers, weakest first.
const (
	FromDefault SourceKind = "default"
	FromUser    SourceKind = "user"
	FromProject SourceKind = "project"
	FromEnv     SourceKind = "env"
	FromFlag    SourceKind = "flag"
)

// Source is where a value came from: File and Line for the two files, Name for a variable or a flag. Also names the other
// sources of a value that several layers made together (tool filters).
type Source struct {
	Kind SourceKind `json:"kind"`
	File string     `json:"file,omitempty"`
	Line int        `json:"line,omitempty"`
	Name string     `json:"name,omitempty"`
	Also []Source   `json:"also,omitempty"`
}

// String is "default", "user FILE:LINE", "project FILE:LINE", "env NAME" or "flag --NAME"; joined sources are separated by
// " and ".
func (s Source) String() string {
	var b strings.Builder
	for _, a := range s.Also {
		b.WriteString(a.String() + " and ")
	}
	b.WriteString(string(s.Kind))
	switch {
	case s.File != "":
		fmt.Fprintf(&b, " %s:%d", s.File, s.Line)
	case s.Name != "":
		b.WriteString(" " + s.Name)
	}
	return b.String()
}

// fault is a usage Error that stands where s points.
func (s Source) fault(key, msg string) *Error {
	e := &Error{Kind: KindUsage, File: s.File, Line: s.Line, Key: key, Msg: msg}
	if s.File == "" && s.Name != "" {
		e.Origin = string(s.Kind) + " " + s.Name
	}
	return e
}
