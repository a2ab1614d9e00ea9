package session_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

func goldenLines(f *testing.F) [][]byte {
	data, err := os.ReadFile(filepath.Join("testdata", "events.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(data), []byte("\n"))
}

// What is accepted is written again to bytes that read back to themselves.
func FuzzParseEnvelope(f *testing.F) {
	for _, line := range goldenLines(f) {
		f.Add(line)
	}
	reg := newRegistry(f, session.Config{})
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := session.ParseEnvelope(line)
		if err != nil {
			return
		}
		once := e.AppendEnvelope(nil)
		if bytes.ContainsAny(once, "\n\r") {
			t.Fatalf("an envelope of several lines: %q", once)
		}
		again, err := session.ParseEnvelope(once)
		if err != nil {
			t.Fatalf("%s: %v", once, err)
		}
		if twice := again.AppendEnvelope(nil); !bytes.Equal(once, twice) {
			t.Fatalf("%s\n%s", once, twice)
		}
		// Payloads of any type are read without a panic.
		_, _ = reg.PayloadOf(e)
	})
}

// A batch that is accepted is the bytes that its events are written to.
func FuzzParseBatch(f *testing.F) {
	lines := goldenLines(f)
	f.Add(append(bytes.Join(lines, []byte("\n")), '\n'), int64(0), int64(0))
	f.Add(append(bytes.Join(lines[3:6], []byte("\n")), '\n'), int64(3), int64(4))
	f.Add(lines[0], int64(0), int64(0))
	f.Fuzz(func(t *testing.T, data []byte, first, from int64) {
		events, err := session.ParseBatch(nil, "s", data, first, from)
		for i, e := range events {
			if e.Seq != max(first, from)+int64(i) {
				t.Fatalf("event %d has seq %d", i, e.Seq)
			}
		}
		if err != nil {
			return
		}
		once := session.AppendBatch(nil, events)
		again, err := session.ParseBatch(nil, "s", once, max(first, from), 0)
		if len(events) == 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if twice := session.AppendBatch(nil, again); !bytes.Equal(once, twice) {
			t.Fatalf("%s\n%s", once, twice)
		}
	})
}

// What is accepted reads back to itself.
func FuzzDescriptor(f *testing.F) {
	for _, line := range goldenLines(f)[:4] {
		e, err := session.ParseEnvelope(line)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.Data())
	}
	f.Add([]byte(`{"version":3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := session.ParseDescriptor(data)
		if err != nil {
			return
		}
		once := d.AppendJSON(nil)
		again, err := session.ParseDescriptor(once)
		if err != nil {
			t.Fatalf("%s: %v", once, err)
		}
		if twice := again.AppendJSON(nil); !bytes.Equal(once, twice) {
			t.Fatalf("%s\n%s", once, twice)
		}
		if _, err := session.NewDescriptor(d); err != nil {
			t.Fatalf("%s: %v", once, err)
		}
	})
}

// A log that is accepted is written again byte for byte, as a whole and as the
// seed of another, and its folds take it without a panic.
func FuzzReplay(f *testing.F) {
	lines := goldenLines(f)
	f.Add(append(bytes.Join(lines, []byte("\n")), '\n'), uint8(0))
	f.Add(append(bytes.Join(lines[:20], []byte("\n")), '\n'), uint8(3))
	reg := newRegistry(f, session.Config{})
	f.Fuzz(func(t *testing.T, data []byte, seed uint8) {
		events, err := session.ParseBatch(nil, "s", data, 0, 0)
		if err != nil {
			return
		}
		want := session.AppendBatch(nil, events)
		rec := session.Record{Header: session.Header{ID: "s", SeedLength: int64(seed)}, Meta: session.Meta{Root: "s"}, Head: int64(len(events))}
		_, verifyErr := reg.Verify(rec, sequence(events))
		s, err := reg.Restore(rec, sequence(events))
		if (err == nil) != (verifyErr == nil) {
			t.Fatalf("restore: %v; verify: %v", err, verifyErr)
		}
		if err != nil {
			return
		}
		if got := export(s); got != string(want) {
			t.Fatalf("written again as\n%s\nwant\n%s", got, want)
		}
		var o session.Outcome
		for e := range s.Events(0) {
			o.Apply(&e)
		}
		o.Output()
		s.History()
		if _, open, _ := s.LastTurn(); open {
			return
		}
		heir, err := reg.Prepare(t.Context(), session.New{Seed: &session.Seed{Events: events}})
		if err != nil {
			t.Fatalf("as a seed: %v", err)
		}
		defer func() { _ = reg.Abandon(t.Context(), heir) }() // there is no store that could fail
		var inherited []session.Event
		for e := range heir.Events(0) {
			if e.Seq < heir.Header().SeedLength {
				inherited = append(inherited, e)
			}
		}
		again, err := session.ParseBatch(nil, "s", session.AppendBatch(nil, inherited), 0, 0)
		if err != nil || len(again) != len(events) {
			t.Fatalf("as a seed: %d of %d events, %v", len(again), len(events), err)
		}
	})
}
