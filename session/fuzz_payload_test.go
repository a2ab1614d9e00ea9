package session_test

import (
	"bytes"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// FuzzPayload: whatever stands in an event of a core type, its decoder does not
// panic; what it takes can be appended again, and that reads back to itself (S9, G1).
func FuzzPayload(f *testing.F) {
	types := session.Types()
	index := map[session.Type]uint8{}
	for i, typ := range types {
		index[typ] = uint8(i)
		f.Add(uint8(i), []byte(`{"turn":1,"step":1}`))
	}
	for _, line := range goldenLines(f) {
		e, err := session.ParseEnvelope(line)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(index[e.Type], e.Data())
	}
	reg := newRegistry(f, session.Config{})
	f.Fuzz(func(t *testing.T, n uint8, data []byte) {
		typ := types[int(n)%len(types)]
		p, err := reg.PayloadOf(session.RawEvent(session.Event{Type: typ}, data))
		if err != nil {
			return
		}
		once, err := session.Encoded(p)
		if err != nil {
			t.Fatalf("%s: %s was read, but may not be appended: %v", typ, data, err)
		}
		if err := jsonx.Validate(once); err != nil {
			t.Fatalf("%s: %s is written as %s: %v", typ, data, once, err)
		}
		again, err := reg.PayloadOf(session.RawEvent(session.Event{Type: typ}, once))
		if err != nil {
			t.Fatalf("%s: %s is written as %s: %v", typ, data, once, err)
		}
		if twice, err := session.Encoded(again); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s: %s is written as\n%s, then as\n%s, %v", typ, data, once, twice, err)
		}
	})
}
