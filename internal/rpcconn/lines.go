package rpcconn

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// DefaultMaxLine bounds a line if nothing else is said: real products send lines of
// some megabytes.
const DefaultMaxLine = 64 << 20

const (
	readBuffer = 64 << 10
	keptBuffer = 1 << 20 // a longer line's memory is given back
	jsonSpace  = " \t\r\n"
)

// Reader splits a stream into lines. It is used from one goroutine.
type Reader struct {
	r    *bufio.Reader
	max  int
	long []byte // a line that does not fit into r's buffer
	err  error  // sticky
}

// NewReader returns a Reader of lines of at most max bytes without their
// terminator; 0 is DefaultMaxLine.
func NewReader(r io.Reader, max int) *Reader {
	if max <= 0 {
		max = DefaultMaxLine
	}
	// No larger than a line: what is too long must be found before its end comes.
	return &Reader{r: bufio.NewReaderSize(r, min(readBuffer, max+1)), max: max}
}

// Next returns the next line that is not blank, without its terminator and the white
// space around it. It is valid until the next call. A last line without terminator
// is no line: the error is io.ErrUnexpectedEOF then, and io.EOF if there is none. A
// line that is too long is a *LineTooLongError, which is found without reading all
// of it. Errors are final.
func (l *Reader) Next() ([]byte, error) {
	for l.err == nil {
		if line, ok := l.next(); ok {
			if line = bytes.Trim(line, jsonSpace); len(line) > 0 {
				return line, nil
			}
		}
	}
	return nil, l.err
}

func (l *Reader) next() (line []byte, ok bool) {
	l.long = l.long[:0]
	if cap(l.long) > keptBuffer {
		l.long = nil
	}
	for {
		part, err := l.r.ReadSlice('\n')
		size := len(l.long) + len(part)
		if err == nil {
			size-- // the terminator
		}
		if size > l.max {
			l.err = &LineTooLongError{Max: l.max}
			return nil, false
		}
		switch {
		case err == nil && len(l.long) == 0:
			return part, true
		case err == nil:
			l.long = append(l.long, part...)
			return l.long, true
		case errors.Is(err, bufio.ErrBufferFull):
			l.long = append(l.long, part...)
		case errors.Is(err, io.EOF) && len(bytes.Trim(l.long, jsonSpace))+len(bytes.Trim(part, jsonSpace)) > 0:
			l.err = io.ErrUnexpectedEOF
			return nil, false
		default:
			l.err = err
			return nil, false
		}
	}
}
