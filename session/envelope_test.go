package session_test

import (
	"bufio"
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/offshoot-dev/offshoot/session"
)

// WriteEnvelope writes what AppendEnvelope appends, however much of it the writer's
// buffer holds.
func TestWriteEnvelope(t *testing.T) {
	var want, got bytes.Buffer
	w := bufio.NewWriterSize(&got, 64)
	for i, size := range []int{0, 5, 20, 63, 64, 65, 5000, 1} {
		e := session.RawEvent(session.Event{Type: "x/note", Seq: int64(i), Time: 7, Ignorable: i%2 == 0}, []byte(`{"a":"`+strings.Repeat("b", size)+`"}`))
		if i%3 == 0 {
			e = e.Surface(session.SurfaceOp{Kind: session.OpReplace, Start: 1, End: 2}, []int64{1, 2})
		}
		want.Write(append(e.AppendEnvelope(nil), '\n'))
		if err := e.WriteEnvelope(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() {
		t.Errorf("got  %s\nwant %s", got.String(), want.String())
	}
	e := session.RawEvent(session.Event{Type: "x/note"}, []byte(`{"a":"`+strings.Repeat("b", 100)+`"}`))
	if err := e.WriteEnvelope(bufio.NewWriterSize(fullWriter{}, 16)); !errors.Is(err, errFull) {
		t.Errorf("a writer that fails: %v", err)
	}
}

var errFull = errors.New("full")

type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, errFull }

// A check of a log holds no event longer than it looks at it: neither its bytes nor
// what they decode to.
func TestCheckedEventsAreFree(t *testing.T) {
	r := newRegistry(t, session.Config{})
	var data []weak.Pointer[byte]
	_, err := r.CheckImport(session.Header{Version: session.FormatVersion, ID: "s"}, func(yield func(session.Event, error) bool) {
		for seq := range int64(4) {
			runtime.GC()
			for i, p := range data {
				if p.Value() != nil {
					t.Errorf("event %d is in memory when event %d is read", i, seq)
				}
			}
			e, err := session.ParseEnvelope([]byte(`{"type":"user/message","seq":` + string(rune('0'+seq)) + `,"time":1,"surfaceOp":"append","data":{"id":"m` +
				string(rune('0'+seq)) + `","role":"user","content":[{"type":"text","text":"` + strings.Repeat("x", 1<<20) + `"}],"source":{"kind":"user"}}}`))
			if err != nil {
				t.Error(err)
				return
			}
			data = append(data, weak.Make(&e.Data()[0]))
			if !yield(e, nil) {
				return
			}
		}
	})
	if err != nil || len(data) != 4 {
		t.Errorf("%d events, %v", len(data), err)
	}
}
