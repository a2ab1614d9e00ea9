package mcp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/offshoot-dev/offshoot/internal/proc"
)

// link is the way to a server, beneath the library.
type link interface {
	// transport is asked for once.
	transport() sdk.Transport
	// bind ends the link when ctx does, until unbind is called: the library's own
	// handshake does not everywhere end with its context.
	bind(ctx context.Context) (unbind func())
	// end ends the server and everything of the link; closeSession closes the library's
	// session at the right moment. It is memoised.
	end(closeSession func()) error
	// kill ends a process at once.
	kill() error
	// fate says, after end, what became of the server, or "". words is what it wrote last
	// beside the protocol, or "".
	fate() string
	words() string
}

// newLink starts the server's process, or prepares its exchanges.
func (s *Set) newLink(dir string) (link, error) {
	switch {
	case s.server.dial != nil:
		stream, err := s.server.dial()
		if err != nil {
			return nil, err
		}
		return &streamLink{stream: stream, frames: newFrames(stream)}, nil
	case s.server.URL != "":
		return newWebLink(s.base, &s.server)
	}
	return newProcessLink(s.base, &s.server, dir)
}

// patience is how long an HTTP server may take to begin its stream of notifications.
const patience = 5 * time.Second

// Bounds of the end of a server.
const (
	// farewell is how long a process gets to end by itself when its input has ended, and
	// how long the deletion of a session may take.
	farewell = time.Second
	// grace is how long a process that was asked to end gets before it is killed.
	grace = time.Second
	// lastWords bounds what is kept of what a process writes to its standard error.
	lastWords = 2 << 10
)

// processLink is a child process.
type processLink struct {
	base    context.Context
	process *proc.Process
	frames  *frames
	stderr  *proc.Capture

	ending sync.Once
	err    error
	ended  string // the fate
}

func newProcessLink(base context.Context, s *Server, dir string) (link, error) {
	l := &processLink{base: base, stderr: proc.NewCapture(0, lastWords)}
	p, err := proc.Start(proc.Config{
		Path: s.Command, Args: s.Args, Dir: dir, Env: s.Env,
		StdinPipe: true, StdoutPipe: true, Stderr: l.stderr, Grace: grace,
	})
	if err != nil {
		return nil, err
	}
	l.process, l.frames = p, newFrames(p.Stdout())
	return l, nil
}

func (l *processLink) transport() sdk.Transport {
	return &sdk.IOTransport{Reader: l.frames, Writer: l.process.Stdin(), MaxLineLength: -1}
}

// bind: the library's reads and writes end with its context here, so nothing is needed.
func (l *processLink) bind(context.Context) func() { return func() {} }

func (l *processLink) end(closeSession func()) error {
	l.ending.Do(func() {
		_ = l.process.Stdin().Close() // it may be closed already
		timer := time.NewTimer(farewell)
		defer timer.Stop()
		select {
		case <-l.process.Done():
		case <-timer.C:
		}
		l.err = l.process.Close(l.base)
		exit, err := l.process.Wait(l.base)
		l.ended = l.describe(exit, err)
	})
	closeSession() // what it still wrote to has ended
	return l.err
}

// describe words the end of the process.
func (l *processLink) describe(exit proc.Exit, err error) string {
	if noise := l.frames.fault(); noise != "" {
		return noise
	}
	text := fmt.Sprintf("exit code %d", exit.Code)
	if exit.Signal != "" {
		text = "signal " + exit.Signal
	}
	if err != nil {
		text = err.Error()
	}
	if words := l.words(); words != "" {
		text += "; " + words
	}
	return text
}

func (l *processLink) words() string {
	words := strings.TrimSpace(strings.ToValidUTF8(l.stderr.Text(func(int) string { return "… " }), "\uFFFD"))
	if words == "" {
		return ""
	}
	return "it had written: " + words
}

func (l *processLink) kill() error { return l.process.Kill() }

func (l *processLink) fate() string { return l.ended }

// streamLink is a stream to a server in this process.
type streamLink struct {
	stream io.ReadWriteCloser
	frames *frames

	ending sync.Once
	err    error
}

func (l *streamLink) transport() sdk.Transport {
	return &sdk.IOTransport{Reader: l.frames, Writer: l.stream, MaxLineLength: -1}
}

func (l *streamLink) bind(context.Context) func() { return func() {} }

func (l *streamLink) end(closeSession func()) error {
	l.ending.Do(func() { l.err = l.stream.Close() })
	closeSession()
	return l.err
}

func (l *streamLink) kill() error { return l.end(func() {}) }

func (l *streamLink) fate() string { return l.frames.fault() }

func (l *streamLink) words() string { return "" }

// frames reads the messages of a stream, one a line, and fails at what is none.
// Read is called from one goroutine.
type frames struct {
	r    *bufio.Reader
	line int // bytes of the line that is being read

	mu sync.Mutex // guards following

	bad error
}

func newFrames(r io.Reader) *frames { return &frames{r: bufio.NewReaderSize(r, 32<<10)} }

// fault says what was wrong with the stream, or "".
func (f *frames) fault() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bad == nil {
		return ""
	}
	return f.bad.Error()
}

func (f *frames) fail(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad = err
	return err
}

// Read gives no more than one line at a time.
func (f *frames) Read(p []byte) (int, error) {
	if f.line == 0 {
		if err := f.begin(); err != nil {
			return 0, err
		}
	}
	if _, err := f.r.Peek(1); err != nil {
		return 0, err
	}
	part, _ := f.r.Peek(min(f.r.Buffered(), len(p))) // of what is buffered
	end := bytes.IndexByte(part, '\n')
	if end >= 0 {
		part = part[:end+1]
	}
	if f.line += len(part); f.line > MaxMessage {
		return 0, f.fail(fmt.Errorf("it sent a message of more than %d bytes", MaxMessage))
	}
	n := copy(p, part)
	_, _ = f.r.Discard(n) // it is buffered
	if end >= 0 {
		f.line = 0
	}
	return n, nil
}

// begin finds the beginning of a message.
func (f *frames) begin() error {
	for {
		next, err := f.r.Peek(1)
		switch {
		case err != nil:
			return err
		case next[0] == '{' || next[0] == '[':
			return nil
		case next[0] != ' ' && next[0] != '\t' && next[0] != '\r' && next[0] != '\n':
			noise, _ := f.r.Peek(min(f.r.Buffered(), 200))
			noise, _, _ = bytes.Cut(noise, []byte("\n"))
			return f.fail(fmt.Errorf("it wrote to its standard output what is no message: %q", noise))
		}
		_, _ = f.r.Discard(1) // it is buffered
	}
}

// Close does nothing: the stream ends with its link.
func (f *frames) Close() error { return nil }
