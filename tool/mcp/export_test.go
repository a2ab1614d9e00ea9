package mcp

import (
	"io"
	"time"
)

// Stream is what a server is reached over.
type Stream = io.ReadWriteCloser

// Dialed is a server that is reached over a stream of the test's own.
func Dialed(s Server, dial func() (Stream, error)) Server {
	s.dial = dial
	return s
}

// Dial returns how a server is reached.
func Dial(s Server) func() (Stream, error) { return s.dial }

// Patient is a server whose stream of notifications is waited for so long.
func Patient(s Server, d time.Duration) Server {
	s.patience = d
	return s
}
