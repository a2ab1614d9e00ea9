package session

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// Type names an event type, e.g. "turn/start".
type Type string

// SurfaceOp says what a surface event does to the surface: append to it, or
// replace the nodes from Start to End, which are seqs of events that stand on it
// and are compared by position, not by number (core S16–S18). The zero value is
// "no surface event".
type SurfaceOp struct {
	Kind       OpKind
	Start, End int64 // for OpReplace
}

// OpKind discriminates a SurfaceOp.
type OpKind uint8

// The kinds of surface operation.
const (
	OpNone OpKind = iota
	OpAppend
	OpReplace
)

// Event is one entry of a log: immutable, passed by value. Seq is its index in
// the log. Slices it hands out must not be modified.
type Event struct {
	Type Type
	Seq  int64
	Time int64 // ms since the epoch; for people, never for ordering (core G15)

	data    []byte  // canonical JSON of the payload
	payload Payload // decoded payload, or nil when it was not decoded yet
	cites   *cites  // of the few that have any; logs hold millions of events

	// Op is what the event does to the surface; see Replaces.
	Op        OpKind
	Ignorable bool // a reader that does not know Type may skip it
	valid     bool // data is known to be lossless JSON
}

// cites is what an event says of others.
type cites struct {
	start, end int64   // of OpReplace
	sources    []int64 // may be empty, but not nil, where that was said
}

// Replaces returns the seqs of the first and the last surface node that an event with
// OpReplace takes the place of.
func (e *Event) Replaces() (start, end int64) {
	if e.cites == nil {
		return 0, 0
	}
	return e.cites.start, e.cites.end
}

// Sources returns the seqs that a surface event cites; nil when it cites nothing and
// says nothing about it. An assistant message may cite an empty list. It must not be
// modified.
func (e *Event) Sources() []int64 {
	if e.cites == nil {
		return nil
	}
	return e.cites.sources
}

// Surface returns the event with what it does to the surface and what it cites. Like
// RawEvent it is for stores and importers, and validates nothing. The slice is kept.
func (e Event) Surface(op SurfaceOp, sources []int64) Event {
	e.surface(op, sources)
	return e
}

func (e *Event) surface(op SurfaceOp, sources []int64) {
	e.Op, e.cites = op.Kind, nil
	if op.Kind == OpReplace || sources != nil {
		e.cites = &cites{op.Start, op.End, sources}
	}
}

// Data returns the payload's canonical JSON. It must not be modified.
func (e *Event) Data() []byte { return e.data }

// RawEvent builds an event from its parts without any validation; data must be
// lossless JSON. It is for stores and importers; a log validates what it takes.
func RawEvent(e Event, data []byte) Event {
	e.data, e.payload, e.valid = data, nil, false
	return e
}

// Undecoded returns a copy of events with the bytes of their payloads alone: the form for
// a store that keeps events in memory, where what they were made from need not stay.
func Undecoded(events []Event) []Event {
	out := make([]Event, len(events))
	for i := range events {
		out[i] = events[i]
		out[i].payload = nil
	}
	return out
}

// AppendEnvelope appends the event as one JSON object, the form in which it is
// stored, exported and streamed (core S1).
func (e *Event) AppendEnvelope(buf []byte) []byte {
	return append(append(e.appendHead(buf), e.data...), '}')
}

// WriteEnvelope writes what AppendEnvelope appends, and a line feed, without a copy of
// the payload, which may be long. The error is w's.
func (e *Event) WriteEnvelope(w *bufio.Writer) error {
	// A bufio.Writer keeps its error: the last write tells of all of them.
	_, _ = w.Write(e.appendHead(w.AvailableBuffer()))
	_, _ = w.Write(e.data)
	_, err := w.WriteString("}\n")
	return err
}

// appendHead appends an envelope up to the payload.
func (e *Event) appendHead(buf []byte) []byte {
	buf = append(buf, `{"type":`...)
	buf = jsonx.AppendString(buf, string(e.Type))
	buf = append(buf, `,"seq":`...)
	buf = strconv.AppendInt(buf, e.Seq, 10)
	buf = append(buf, `,"time":`...)
	buf = strconv.AppendInt(buf, e.Time, 10)
	if e.Ignorable {
		buf = append(buf, `,"ignorable":true`...)
	}
	switch e.Op {
	case OpAppend:
		buf = append(buf, `,"surfaceOp":"append"`...)
	case OpReplace:
		buf = append(buf, `,"surfaceOp":{"op":"replace","start":`...)
		start, end := e.Replaces()
		buf = strconv.AppendInt(buf, start, 10)
		buf = append(buf, `,"end":`...)
		buf = strconv.AppendInt(buf, end, 10)
		buf = append(buf, '}')
	case OpNone:
	}
	if sources := e.Sources(); sources != nil {
		buf = appendSeqs(append(buf, `,"sourceEventSeqs":`...), sources)
	}
	return append(buf, `,"data":`...)
}

func appendSeqs(buf []byte, seqs []int64) []byte {
	buf = append(buf, '[')
	for i, n := range seqs {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = strconv.AppendInt(buf, n, 10)
	}
	return append(buf, ']')
}

// ParseEnvelope reads one exported event strictly: no unknown or duplicate key,
// lossless JSON. The payload itself is decoded when a log takes the event.
func ParseEnvelope(line []byte) (Event, error) {
	e, err := parseEnvelope(line)
	if err != nil {
		return e, err
	}
	e.data, err = jsonx.Compact(e.data)
	return e, err
}

// TakeEnvelope is ParseEnvelope for a line that the caller gives away: the event may
// keep its memory, of which it copies nothing where it need not.
func TakeEnvelope(line []byte) (Event, error) {
	e, err := parseEnvelope(line)
	if err == nil && !jsonx.Tight(e.data) {
		e.data, err = jsonx.Compact(e.data)
	}
	return e, err
}

// parseEnvelope is ParseEnvelope for a line that AppendEnvelope wrote: the
// payload is compact already and its bytes alias line.
func parseEnvelope(line []byte) (Event, error) {
	var e Event
	var op SurfaceOp
	var sources []int64
	var has struct{ typ, seq, time, data bool }
	err := jsonx.ReadObject(line, func(key string, raw []byte) (err error) {
		switch key {
		case "type":
			has.typ = true
			var s string
			s, err = jsonx.String(raw)
			e.Type = internType(s)
		case "seq":
			has.seq = true
			e.Seq, err = jsonx.Natural(raw)
		case "time":
			has.time = true
			e.Time, err = jsonx.Int(raw)
		case "ignorable":
			e.Ignorable, err = jsonx.Bool(raw)
			if err == nil && !e.Ignorable {
				err = fmt.Errorf("may only be true")
			}
		case "surfaceOp":
			op, err = parseOp(raw)
		case "sourceEventSeqs":
			sources = []int64{}
			err = jsonx.ReadArray(raw, func(raw []byte) error {
				n, err := jsonx.Natural(raw)
				sources = append(sources, n)
				return err
			})
		case "data":
			has.data = true
			e.data, e.valid = raw, true
		default:
			err = jsonx.UnknownKey(key)
		}
		if err != nil {
			return fmt.Errorf("event field %q: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return e, err
	case !has.typ || e.Type == "":
		return e, fmt.Errorf("event has no type")
	case !has.seq:
		return e, fmt.Errorf("event has no seq")
	case !has.time:
		return e, fmt.Errorf("event has no time")
	case !has.data:
		return e, fmt.Errorf("event has no data")
	}
	return e.Surface(op, sources), nil
}

func parseOp(raw []byte) (SurfaceOp, error) {
	if raw[0] == '"' {
		s, err := jsonx.String(raw)
		if err == nil && s != "append" {
			err = fmt.Errorf("unknown operation %q", s)
		}
		return SurfaceOp{Kind: OpAppend}, err
	}
	op := SurfaceOp{Kind: OpReplace, Start: -1, End: -1}
	name := ""
	err := jsonx.ReadObject(raw, func(key string, raw []byte) (err error) {
		switch key {
		case "op":
			name, err = jsonx.String(raw)
		case "start":
			op.Start, err = jsonx.Natural(raw)
		case "end":
			op.End, err = jsonx.Natural(raw)
		default:
			err = jsonx.UnknownKey(key)
		}
		return err
	})
	if err == nil && (name != "replace" || op.Start < 0 || op.End < 0) {
		err = fmt.Errorf("operation must be replace with start and end")
	}
	return op, err
}

// AppendBatch appends events in the form in which a store keeps one batch: one
// envelope a line.
func AppendBatch(buf []byte, events []Event) []byte {
	n := 0
	for i := range events {
		n += len(events[i].data) + 96
	}
	buf = slices.Grow(buf, n)
	for i := range events {
		buf = events[i].AppendEnvelope(buf)
		buf = append(buf, '\n')
	}
	return buf
}

// ParseBatch reads what AppendBatch wrote and appends the events from seq on to
// dst. The events' payloads alias data. first is the seq that the first line
// must have. Errors are *CorruptError.
func ParseBatch(dst []Event, id ID, data []byte, first, from int64) ([]Event, error) {
	seq := first
	for len(data) > 0 {
		line, rest, ok := bytes.Cut(data, []byte{'\n'})
		if !ok {
			return dst, &CorruptError{ID: id, Seq: seq, Err: fmt.Errorf("batch ends inside an event")}
		}
		data = rest
		if seq >= from {
			e, err := parseEnvelope(line)
			if err == nil && e.Seq != seq {
				err = fmt.Errorf("expected seq %d, found %d", seq, e.Seq)
			}
			if err != nil {
				return dst, &CorruptError{ID: id, Seq: seq, Err: err}
			}
			dst = append(dst, e)
		}
		seq++
	}
	return dst, nil
}

// internType returns the constant for a known type, so that events read back do
// not each hold a string of their own.
func internType(s string) Type {
	switch Type(s) {
	case TypeTurnStart:
		return TypeTurnStart
	case TypeTurnEnd:
		return TypeTurnEnd
	case TypeStepStart:
		return TypeStepStart
	case TypeStepEnd:
		return TypeStepEnd
	case TypeUserMessage:
		return TypeUserMessage
	case TypeAssistantChunk:
		return TypeAssistantChunk
	case TypeAssistantMessage:
		return TypeAssistantMessage
	case TypeToolCall:
		return TypeToolCall
	case TypeToolResult:
		return TypeToolResult
	case TypeToolSpill:
		return TypeToolSpill
	case TypeRequestHeader:
		return TypeRequestHeader
	case TypeInboxSpliced:
		return TypeInboxSpliced
	}
	return Type(s)
}
