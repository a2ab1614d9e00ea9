package anthropic

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"slices"
	"strconv"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// fingerprint is a print of what was sent so far, without the marks of the cache.
//
// Newer models refuse a thinking block of an earlier turn once the tools, the
// system prompt or a message before it have changed: an agent that was forked with
// tools of its own, or whose history was pruned, could never be answered again.
// Each answer's replay state therefore holds the print of the request that it
// answered, and thinking whose print does not recur is left out, which those
// models allow.
type fingerprint struct{ h hash.Hash }

func newPrint() *fingerprint { return &fingerprint{h: sha256.New()} }

// add adds a record. Lengths go first, so that no two sequences collide.
func (f *fingerprint) add(fields ...string) {
	for _, s := range fields {
		_, _ = io.WriteString(f.h, strconv.Itoa(len(s))+":"+s) // a hash never fails
	}
	_, _ = io.WriteString(f.h, "\n")
}

func (f *fingerprint) sum() string { return hex.EncodeToString(f.h.Sum(nil)[:16]) }

// replayResponse is llm.Replay.Response.
type replayResponse struct {
	Prefix string `json:"prefix"`
}

// thinkingBlock and redactedBlock are the entries of llm.Replay.Blocks: the blocks
// as the API wants them back.
type thinkingBlock struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
}

type redactedBlock struct {
	Type string `json:"type"`
	Data string `json:"data"`
}

// replayOf returns what is needed to send the answer back, or nil when it holds no
// thinking (core M8).
func (a *answer) replayOf() *llm.Replay {
	entries := make([][]byte, len(a.blocks))
	signed := false
	for i, b := range a.blocks {
		switch {
		case b.data != "":
			entries[i] = encodeJSON(redactedBlock{Type: "redacted_thinking", Data: b.data})
		case b.signature.Len() > 0:
			entries[i] = encodeJSON(thinkingBlock{Type: "thinking", Thinking: b.content.String(), Signature: b.signature.String()})
		}
		signed = signed || entries[i] != nil
	}
	if !signed {
		return nil
	}
	return &llm.Replay{Response: encodeJSON(replayResponse{Prefix: a.prefix}), Blocks: entries}
}

// encodeJSON encodes values that cannot fail.
func encodeJSON(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return nil
	}
	return bytes.TrimSpace(buf.Bytes())
}

// foreign reports whether an entry is neither nil nor a block that the API gave out.
// The log may come from anywhere, and the API would refuse every later request that
// holds such a thing.
func foreign(entry []byte) bool {
	if entry == nil {
		return false
	}
	var kind, signature, data string
	err := jsonx.ReadObject(entry, func(key string, raw []byte) (err error) {
		switch key {
		case "type":
			kind, err = jsonx.String(raw)
		case "signature":
			signature, err = jsonx.String(raw)
		case "data":
			data, err = jsonx.String(raw)
		case "thinking":
			_, err = jsonx.String(raw)
		}
		return err
	})
	switch {
	case err != nil:
		return true
	case kind == "thinking":
		return signature == ""
	}
	return kind != "redacted_thinking" || data == ""
}

// thoughts returns the blocks to send for the reasoning of an earlier answer, one
// entry per block of its content, or nil when none can be sent: the answer came by
// another route, which signs differently, it was interrupted before its signature,
// or what was sent before it has changed.
func (e *encoder) thoughts(m *message.Message) [][]byte {
	source := m.Source.Details()
	if source.Provider != e.provider || len(source.ReplayState) == 0 {
		return nil
	}
	state, err := llm.DecodeReplay(source.ReplayState)
	if err != nil || len(state.Blocks) != len(m.Content) || slices.ContainsFunc(state.Blocks, foreign) {
		return nil // another adapter's state
	}
	var response replayResponse
	if state.Response == nil || json.Unmarshal(state.Response, &response) != nil || response.Prefix == "" {
		return nil
	}
	if e.model.bound && response.Prefix != e.print.sum() {
		return nil
	}
	return state.Blocks
}
