package projection_test

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// log builds a stored log from payload texts: events without decoded payloads, as
// a store yields them.
type log struct {
	events []session.Event
}

func (l *log) add(typ session.Type, data string, args ...any) {
	e := session.Event{Type: typ, Seq: int64(len(l.events)), Time: 1}
	switch typ {
	case session.TypeUserMessage, session.TypeAssistantMessage, session.TypeToolResult:
		e.Op = session.OpAppend
	}
	l.events = append(l.events, session.RawEvent(e, fmt.Appendf(nil, data, args...)))
}

const goodDescriptor = `{"version":2,"mode":"one-shot","provider":"spawn","label":"look"}`

// shelf is a store that only reads. It counts what is read of it.
type shelf struct {
	session.Store
	events []session.Event
	// seed and head are what Inspect says of the log.
	seed, head int64
	fail       map[session.ID]error
	gate       func(session.ID) // called before each read

	mu    sync.Mutex
	reads []int64 // the seq that each read began at
}

func (s *shelf) ReadFrom(_ context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		s.mu.Lock()
		s.reads = append(s.reads, seq)
		s.mu.Unlock()
		if s.gate != nil {
			s.gate(id)
		}
		if err := s.fail[id]; err != nil {
			yield(session.Event{}, err)
			return
		}
		for _, e := range s.events[min(seq, int64(len(s.events))):] {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func registry(t testing.TB, units ...projection.Unit) *projection.Registry {
	t.Helper()
	if units == nil {
		units = projection.BuiltIn()
	}
	r, err := projection.NewRegistry(units...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sessions(t testing.TB, cfg session.Config) *session.Registry {
	t.Helper()
	r, err := session.NewRegistry(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func values(events []session.Event) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func record(l *log, seedLength int64, cells ...session.Checkpoint) session.Record {
	return session.Record{
		Header: session.Header{ID: "s", SeedLength: seedLength}, Meta: session.Meta{Root: "s"},
		Head: int64(len(l.events)), Cells: cells,
	}
}

// readJSON reads a unit through the ladder and returns its value as JSON.
func readJSON(t *testing.T, l *log, seedLength int64, key string) string {
	t.Helper()
	snap, err := registry(t).Read(t.Context(), &shelf{events: l.events}, record(l, seedLength), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(snap.AppendJSON(nil))
}
