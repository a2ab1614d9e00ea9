package jsonl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// MaxLine is the longest line that a Reader takes: 64 MiB of text in one event,
// each byte of it escaped in six, fits with room to spare.
const MaxLine = 400 << 20

// maxHeader is the longest header line.
const maxHeader = 1 << 20

// Error says where in which file something is wrong.
type Error struct {
	Name string // of the file
	Line int    // from 1; 0 for the file as a whole
	Err  error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Torn is a last line that was cut, as a writer that died leaves it.
type Torn struct {
	Line  int
	Bytes int64
}

// Reader reads the logs of one stream. It is not safe for concurrent use.
type Reader struct {
	name string
	r    *bufio.Reader
	most int    // the longest line of an event
	buf  []byte // the line that was read last, unless an event took it
	long int    // length of the last line that an event took

	line   int   // number of the line that was read last
	offset int64 // where the next line begins
	start  int64 // where the header line that was read last began
	ended  bool  // nothing follows the line that was read last

	header []byte // a header line that ended the events before it
	at     int64  // where it began
	id     session.ID
	open   bool // a header was read and its events were not
	torn   *Torn
	failed error
}

const (
	bufferSize = 64 << 10 // of what is read ahead; a longer line is long
	longSlack  = 64       // by how much a long line may be longer than the one before: a seq grows by a digit
)

// NewReader returns a Reader of r. name is what errors call it.
func NewReader(r io.Reader, name string) *Reader {
	return &Reader{name: name, r: bufio.NewReaderSize(r, bufferSize), most: MaxLine}
}

// Next reads the next header. io.EOF says that there is none, an *Error that the
// next line is no header. The events of the log before must have been read.
func (r *Reader) Next() (session.Header, error) {
	if r.failed != nil {
		return session.Header{}, r.failed
	}
	if r.open {
		return session.Header{}, r.fail(errors.New("the events of the log before were not read"))
	}
	line, at := r.header, r.at
	r.header = nil
	if line == nil {
		at = r.offset
		var err error
		if line, err = r.read(maxHeader); err != nil {
			return session.Header{}, err
		}
	}
	h, err := parseHeader(line)
	if err != nil {
		return h, r.fail(err)
	}
	r.id, r.start, r.open, r.torn = h.ID, at, true, nil
	return h, nil
}

// Events yields the events of the log whose header Next returned, packed rows
// expanded. Their seqs are checked, and nothing of what they say. An error ends the
// sequence and the Reader with it. It may be ranged over once.
func (r *Reader) Events() iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		if r.failed != nil || !r.open {
			return
		}
		r.open = false
		next := int64(0)
		for {
			at := r.offset
			line, err := r.read(r.most)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(session.Event{}, err)
				return
			}
			if next, err = r.take(line, at, next, yield); err != nil {
				if !errors.Is(err, errStop) {
					yield(session.Event{}, r.fail(err))
				} else {
					r.failed = r.where(errors.New("reading stopped in the middle of a log"))
				}
				return
			}
			if r.header != nil || r.torn != nil {
				return
			}
		}
	}
}

// errStop says that whoever ranges over events wants no more.
var errStop = errors.New("stop")

// take reads one line of events. next is the seq that comes next.
func (r *Reader) take(line []byte, at, next int64, yield func(session.Event, error) bool) (int64, error) {
	give := func(e session.Event) error {
		if e.Seq != next {
			return r.corrupt(next, fmt.Errorf("expected seq %d, found %d", next, e.Seq))
		}
		next++
		if !yield(e, nil) {
			return errStop
		}
		return nil
	}
	e, err := r.parse(line)
	if err == nil {
		if e.Type == headerType || isRow(string(e.Type)) {
			return next, r.corrupt(next, fmt.Errorf("%q is no type of an event", e.Type))
		}
		return next, give(e)
	}
	typ := ""
	if whole := typeOf(line, &typ); whole != nil {
		if r.ended && cut(line) {
			r.torn = &Torn{Line: r.line, Bytes: r.offset - at}
			return next, nil
		}
		return next, r.corrupt(next, whole)
	}
	switch {
	case typ == headerType:
		r.header, r.at = bytes.Clone(line), at
		return next, nil
	case isRow(typ):
		row, err := parseRow(typ, line)
		if err != nil {
			return next, r.corrupt(next, fmt.Errorf("packed row %s: %w", typ, err))
		}
		return next, row.expand(give)
	}
	return next, r.corrupt(next, err)
}

// parse reads an event. One of a long line keeps the line, which is what an event
// costs that is megabytes; others get a copy, and the line is used again.
func (r *Reader) parse(line []byte) (session.Event, error) {
	if len(line) < bufferSize || cap(line)-len(line) > len(line)/3 {
		return session.ParseEnvelope(line)
	}
	e, err := session.TakeEnvelope(line)
	if err == nil {
		r.buf, r.long = nil, len(line)
	}
	return e, err
}

// cut reports whether a line is the beginning of an object, as a writer that died
// leaves it at the end: perhaps with the zeroes by which some file systems say that
// a file grew and its bytes did not come.
func cut(line []byte) bool {
	line = bytes.TrimRight(line, "\x00")
	var whole json.RawMessage
	err := json.NewDecoder(bytes.NewReader(line)).Decode(&whole)
	return err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF)
}

// Line returns the number of the line that was read last, from 1.
func (r *Reader) Line() int { return r.line }

// Start returns where the header line that Next read last begins: a Reader that
// begins to read there reads that log first.
func (r *Reader) Start() int64 { return r.start }

// Torn returns the cut last line of the log whose events were read last, or nil.
func (r *Reader) Torn() *Torn { return r.torn }

func (r *Reader) where(err error) error { return &Error{Name: r.name, Line: r.line, Err: err} }

func (r *Reader) fail(err error) error {
	r.failed = r.where(err)
	return r.failed
}

func (r *Reader) corrupt(seq int64, err error) error {
	return &session.CorruptError{ID: r.id, Seq: seq, Err: err}
}

// read returns the next line without its line feed, until the next call. io.EOF says
// that nothing is left.
func (r *Reader) read(most int) ([]byte, error) {
	line := r.buf[:0]
	defer func() { r.buf = line }()
	for {
		part, err := r.r.ReadSlice('\n')
		if len(line)+len(part) > most+1 {
			r.line++
			return nil, r.fail(&session.UnsupportedError{ID: r.id, Seq: -1, Msg: fmt.Sprintf("a line is longer than the %d bytes that this build reads", most)})
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if cap(line) < r.long { // often the next long line is as long as the one before
				line = append(make([]byte, 0, r.long+longSlack), line...)
			}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			r.line++
			return nil, r.fail(err)
		case len(line) == 0:
			return nil, io.EOF
		}
		break
	}
	r.line++
	r.offset += int64(len(line))
	_, err := r.r.Peek(1)
	r.ended = err == io.EOF
	return bytes.TrimSuffix(line, []byte{'\n'}), nil
}

// typeOf reads the member "type" of a line. The error says that the line is no
// object of lossless JSON.
func typeOf(line []byte, dst *string) error {
	return jsonx.ReadObject(line, func(key string, raw []byte) error {
		if key == "type" {
			// One that is no string is none of those that are looked for.
			*dst, _ = jsonx.String(raw)
		}
		return nil
	})
}

// parseHeader reads a header line: the header's own members, and the type.
func parseHeader(line []byte) (session.Header, error) {
	typ := ""
	if err := typeOf(line, &typ); err != nil {
		return session.Header{}, &session.CorruptError{Seq: -1, Err: fmt.Errorf("the first line is no header: %w", err)}
	}
	bare := []byte{'{'}
	err := jsonx.ReadObject(line, func(key string, raw []byte) error {
		if key != "type" {
			if len(bare) > 1 {
				bare = append(bare, ',')
			}
			bare = append(append(jsonx.AppendString(bare, key), ':'), raw...)
		}
		return nil
	})
	if err != nil {
		return session.Header{}, &session.CorruptError{Seq: -1, Err: err}
	}
	if typ != headerType {
		return session.Header{}, &session.CorruptError{Seq: -1, Err: fmt.Errorf("the first line is no header: its type is %q", typ)}
	}
	return session.ParseHeader(append(bare, '}'))
}
