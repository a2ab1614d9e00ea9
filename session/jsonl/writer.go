package jsonl

import (
	"bufio"
	"io"
	"iter"
	"strconv"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// headerType is the member "type" of a header line.
const headerType = "session"

// Writer writes logs. It is not safe for concurrent use.
type Writer struct {
	w *bufio.Writer
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 64<<10)} }

// Write writes one log: the header, then the events as they come. It keeps one
// event in memory. An error of events ends it with that error; what was written by
// then is no whole log.
func (w *Writer) Write(h *session.Header, events iter.Seq2[session.Event, error]) error {
	if _, err := w.w.Write(append(AppendHeader(nil, h), '\n')); err != nil {
		return err
	}
	for e, err := range events {
		if err != nil {
			return err
		}
		if err := e.WriteEnvelope(w.w); err != nil {
			return err
		}
	}
	return nil
}

// Flush hands on what is buffered. To be called last.
func (w *Writer) Flush() error { return w.w.Flush() }

// AppendHeader appends a header line without its line feed. Unlike a stored header
// it always tells the delegation depth: other readers require it.
func AppendHeader(buf []byte, h *session.Header) []byte {
	buf = append(append(buf, `{"type":"`+headerType+`",`...), h.AppendJSON(nil)[1:]...)
	if h.DelegationDepth == 0 {
		buf = jsonx.AppendKey(buf[:len(buf)-1], "delegationDepth")
		buf = append(strconv.AppendInt(buf, 0, 10), '}')
	}
	return buf
}
