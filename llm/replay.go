package llm

import (
	"encoding/json"
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// Encode returns the replay state as one JSON object, the form in which
// message.Source.ReplayState carries it:
//
//	{"response":…,"blocks":[…]}
//
// An absent part is left out; a nil entry of Blocks is null. It returns nil for a
// nil or empty state. The parts must be valid JSON and go out unchanged.
func (r *Replay) Encode() []byte {
	if r == nil || (r.Response == nil && r.Blocks == nil) {
		return nil
	}
	n := len(r.Response) + 32
	for _, b := range r.Blocks {
		n += len(b) + 5
	}
	buf := append(make([]byte, 0, n), '{')
	if r.Response != nil {
		buf = jsonx.AppendRawField(buf, "response", r.Response)
	}
	if r.Blocks != nil {
		buf = append(jsonx.AppendKey(buf, "blocks"), '[')
		for i, b := range r.Blocks {
			if i > 0 {
				buf = append(buf, ',')
			}
			if b == nil {
				buf = append(buf, "null"...)
				continue
			}
			buf = append(buf, b...)
		}
		buf = append(buf, ']')
	}
	return append(buf, '}')
}

// DecodeReplay reads what Encode wrote. The parts alias no part of data; nil data
// gives nil. A state of another shape is an error: an adapter that did not write
// it cannot use it.
func DecodeReplay(data []byte) (*Replay, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var wire struct {
		Response json.RawMessage   `json:"response"`
		Blocks   []json.RawMessage `json:"blocks"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, fmt.Errorf("decode replay state: %w", err)
	}
	r := &Replay{Response: wire.Response}
	if wire.Blocks != nil {
		r.Blocks = make([][]byte, len(wire.Blocks))
		for i, b := range wire.Blocks {
			if string(b) != "null" {
				r.Blocks[i] = b
			}
		}
	}
	return r, nil
}
