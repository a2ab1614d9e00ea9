package rpcconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"runtime/debug"
	"sync"
	"time"
)

// settleTime is how long a stream that cannot be written to any more is still read:
// a peer that is about to end may have sent its last words already.
const settleTime = time.Second

// Stream is lines both ways. Its methods may be called concurrently.
type Stream struct {
	r    io.ReadCloser
	w    io.WriteCloser
	max  int
	line func([]byte) error
	// ending, if any, is told of the end.
	ending func(cause error)

	out    chan *frame
	broken chan struct{} // closed when a write has failed
	ended  chan struct{} // closed when the stream has ended

	writeErr *WriteError  // before broken is closed
	err      *ClosedError // before ended is closed

	startOnce sync.Once
	endOnce   sync.Once
	closeErr  error // after endOnce
	running   sync.WaitGroup
}

// frame is a line on its way.
type frame struct {
	line []byte     // with its terminator
	done chan error // has room for the outcome
}

// NewStream returns a stream that reads from r and writes to w, which may be one and
// the same, and which it owns: it closes both when it ends. Closing must end a Read
// or Write in progress, as it does for pipes and network connections.
//
// line is called for every line that is not blank, without the white space around
// it, one at a time and in order; nothing is read until it returns, so it must not
// wait for anything that only a later line brings. It may use the line until it
// returns. If it returns an error or panics, the stream ends with that. maxLine
// bounds lines in both directions; 0 is DefaultMaxLine.
//
// Nothing happens before Start.
func NewStream(r io.ReadCloser, w io.WriteCloser, maxLine int, line func(line []byte) error) *Stream {
	if maxLine <= 0 {
		maxLine = DefaultMaxLine
	}
	return &Stream{
		r: r, w: w, max: maxLine, line: line,
		out: make(chan *frame), broken: make(chan struct{}), ended: make(chan struct{}),
	}
}

// Start begins to read and to write. A second call does nothing.
func (s *Stream) Start() {
	s.startOnce.Do(func() {
		s.running.Go(s.readAll)
		s.running.Go(s.writeAll)
	})
}

func (s *Stream) readAll() {
	lines := NewReader(s.r, s.max)
	for {
		line, err := lines.Next()
		if s.Err() != nil {
			return // whoever ended it wants nothing more
		}
		if err == nil {
			err = contain(func() error { return s.line(line) })
		}
		if err != nil {
			s.End(err)
			return
		}
	}
}

// writeAll writes one line after the other. It stands between those who write and
// the pipe, so that none of them is held by a peer that does not read.
func (s *Stream) writeAll() {
	for {
		select {
		case f := <-s.out:
			_, err := s.w.Write(f.line)
			f.done <- err
			if err != nil {
				s.breakOff(err)
				return
			}
		case <-s.ended:
			return
		}
	}
}

// breakOff refuses further lines and gives the reader time to come to the end by itself.
func (s *Stream) breakOff(err error) {
	s.writeErr = &WriteError{Err: err}
	close(s.broken)
	settle := time.NewTimer(settleTime)
	defer settle.Stop()
	select {
	case <-s.ended:
	case <-settle.C:
		s.End(s.writeErr)
	}
}

// Write sends one line, which must not hold a line break, and returns when it is
// written as a whole. Lines of concurrent callers never mix. The line may be reused
// afterwards.
//
// When ctx ends first, its cause is returned; the line is then either not sent at
// all or sent completely later. Other errors are *LineTooLongError, *WriteError
// after the first write that failed, and *ClosedError.
func (s *Stream) Write(ctx context.Context, line []byte) error {
	if bytes.IndexByte(line, '\n') >= 0 {
		return errors.New("write a line: it has a line break inside")
	}
	buf := make([]byte, 0, len(line)+1)
	return s.write(ctx, append(append(buf, line...), '\n'))
}

// write sends a line that has its terminator. It keeps the slice.
func (s *Stream) write(ctx context.Context, line []byte) error {
	if len(line)-1 > s.max {
		return &LineTooLongError{Max: s.max}
	}
	if err := s.Err(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f := &frame{line: line, done: make(chan error, 1)}
	select {
	case s.out <- f:
	case <-s.broken:
		return s.writeErr
	case <-s.ended:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-f.done:
		return s.written(err)
	case <-s.ended:
	case <-ctx.Done():
	}
	select {
	case err := <-f.done: // at the same moment
		return s.written(err)
	default:
	}
	if err := s.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// written returns the outcome of a write: what the end of the stream cut off is the
// end's doing.
func (s *Stream) written(err error) error {
	if err == nil {
		return nil
	}
	if ended := s.Err(); ended != nil {
		return ended
	}
	return &WriteError{Err: err}
}

// End ends the stream with a cause, unless it has ended already: both sides are
// closed, nothing more is handed over, and whoever waits is released. It does not
// wait for what is still running, so that the line function may call it.
func (s *Stream) End(cause error) {
	s.endOnce.Do(func() {
		s.err = &ClosedError{Cause: cause}
		close(s.ended)
		if s.ending != nil {
			s.ending(s.err)
		}
		s.closeErr = errors.Join(closeQuietly(s.w), closeQuietly(s.r))
	})
}

// closeQuietly forgives that it was closed before: by the owner of a process, or as
// the other half of one connection.
func closeQuietly(c io.Closer) error {
	err := c.Close()
	if errors.Is(err, fs.ErrClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// Close ends the stream with ErrClosed, if it has not ended, and returns when no
// goroutine of it runs. It must not be called from the line function. The error is
// that of closing the two sides.
func (s *Stream) Close() error {
	s.End(ErrClosed)
	s.running.Wait()
	return s.closeErr
}

// Done is closed when the stream has ended. The line function may still be running.
func (s *Stream) Done() <-chan struct{} { return s.ended }

// Err returns nil before the end and the *ClosedError after it.
func (s *Stream) Err() error {
	select {
	case <-s.ended:
		return s.err
	default:
		return nil
	}
}

// contain makes an error of a panic: a handler that is broken ends its connection,
// not the program.
func contain(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}
