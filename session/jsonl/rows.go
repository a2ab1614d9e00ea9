package jsonl

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// The types of packed rows, and what they pack.
const (
	rowText      = "text-chunks"
	rowReasoning = "reasoning-chunks"
	rowToolCall  = "tool-call-chunks"
)

func isRow(typ string) bool { return typ == rowText || typ == rowReasoning || typ == rowToolCall }

// row is one packed row. The raw parts alias its line and are valid JSON.
type row struct {
	seq, time    int64
	before, mid  []byte // what stands before and behind the text in each chunk's payload
	gaps, pieces []byte // arrays
}

// parseRow reads and checks a whole row, so that expand cannot fail.
func parseRow(typ string, line []byte) (*row, error) {
	r := &row{}
	var data []byte
	err := members(line, []string{"type", "seq0", "time0", "data"}, nil, func(key string, raw []byte) (err error) {
		switch key {
		case "seq0":
			r.seq, err = jsonx.Natural(raw)
		case "time0":
			r.time, err = jsonx.Int(raw)
		case "data":
			data = raw
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var turn, step int64
	var index, id, name []byte
	required, optional := []string{"turn", "step", "index", "dt", "texts"}, []string(nil)
	if typ == rowToolCall {
		required, optional = []string{"turn", "step", "index", "dt", "id", "args"}, []string{"name"}
	}
	err = members(data, required, optional, func(key string, raw []byte) (err error) {
		switch key {
		case "turn":
			turn, err = jsonx.Natural(raw)
		case "step":
			step, err = jsonx.Natural(raw)
		case "index":
			index = raw
			_, err = jsonx.Natural(raw)
		case "id":
			id = raw
			_, err = jsonx.String(raw)
		case "name":
			name = raw
			_, err = jsonx.String(raw)
		case "dt":
			r.gaps = raw
		case "texts", "args":
			r.pieces = raw
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	kind, text := "text-delta", "text"
	switch typ {
	case rowReasoning:
		kind = "reasoning-delta"
	case rowToolCall:
		kind, text = "tool-call-delta", "argumentsDelta"
	}
	b := fmt.Appendf(nil, `{"turn":%d,"step":%d,"chunk":{"type":%q,"index":%s`, turn, step, kind, index)
	if id != nil {
		b = jsonx.AppendRawField(b, "id", id)
	}
	if name != nil {
		b = jsonx.AppendRawField(b, "name", name)
	}
	r.before, r.mid = jsonx.AppendKey(b, text), []byte("}}")
	return r, nil
}

// check counts the pieces and walks the times.
func (r *row) check() error {
	n, gaps := int64(0), int64(0)
	if err := jsonx.ReadArray(r.pieces, func(raw []byte) error {
		n++
		if raw[0] != '"' {
			return errors.New("a piece is no string")
		}
		return nil
	}); err != nil {
		return err
	}
	at := r.time
	if err := jsonx.ReadArray(r.gaps, func(raw []byte) error {
		gaps++
		gap, err := jsonx.Int(raw)
		if at += gap; err == nil && (at > jsonx.MaxSafe || at < -jsonx.MaxSafe) {
			err = fmt.Errorf("time %d is out of range", at)
		}
		return err
	}); err != nil {
		return fmt.Errorf("dt: %w", err)
	}
	switch {
	case n == 0:
		return errors.New("it packs nothing")
	case gaps != n-1:
		return fmt.Errorf("%d gaps lie between %d pieces", gaps, n)
	case r.seq > jsonx.MaxSafe-n:
		return fmt.Errorf("seq %d is out of range", r.seq)
	}
	return nil
}

// expand gives the events one by one: a row may pack very many.
func (r *row) expand(give func(session.Event) error) error {
	seq, at, gaps := r.seq, r.time, numbers(r.gaps)
	return jsonx.WalkArray(r.pieces, func(piece []byte) error {
		if seq > r.seq {
			at += gaps()
		}
		data := make([]byte, 0, len(r.before)+len(piece)+len(r.mid))
		data = append(append(append(data, r.before...), piece...), r.mid...)
		e := session.RawEvent(session.Event{Type: session.TypeAssistantChunk, Seq: seq, Time: at}, data)
		seq++
		return give(e)
	})
}

// numbers returns a function that returns the integers of an array that was
// checked, one at each call.
func numbers(array []byte) func() int64 {
	i := 1 // behind the bracket
	return func() int64 {
		for array[i] != '-' && (array[i] < '0' || array[i] > '9') {
			i++
		}
		start := i
		for i++; array[i] >= '0' && array[i] <= '9'; i++ {
		}
		n, _ := strconv.ParseInt(string(array[start:i]), 10, 64) // it was read before
		return n
	}
}

// members reads a closed object: it has every required member, and no other than
// those and the optional ones.
func members(data []byte, required, optional []string, set func(key string, raw []byte) error) error {
	missing := map[string]bool{}
	for _, key := range required {
		missing[key] = true
	}
	known := map[string]bool{}
	for _, key := range append(optional, required...) {
		known[key] = true
	}
	err := jsonx.ReadObject(data, func(key string, raw []byte) error {
		if !known[key] {
			return jsonx.UnknownKey(key)
		}
		delete(missing, key)
		if err := set(key, raw); err != nil {
			return fmt.Errorf("member %q: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range required {
		if missing[key] {
			return fmt.Errorf("member %q is missing", key)
		}
	}
	return nil
}
