package session_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// childHolds are the holds of a one-shot child that answers at once, as the loop
// appends them.
func childHolds(header *session.RequestHeader, descriptor *session.DescriptorEvent) [][]session.Draft {
	prompt := userMessage("m1", strings.Repeat("Look at the parser and say what it does. ", 5))
	answer := reply(1, 1, "a1", message.Text(strings.Repeat("It reads events and folds them. ", 10)))
	answer.Usage = &message.Usage{InputTokens: 1200, OutputTokens: 80, CacheReadTokens: 1000, HasCacheRead: true}
	return [][]session.Draft{
		drafts(&session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{prompt}}),
		drafts(&session.TurnStart{Turn: 1}, descriptor),
		drafts(&session.InboxSpliced{Target: session.NextTurn, Removed: 1}, &session.StepStart{Turn: 1, Step: 1}, &session.UserMessage{Message: prompt}),
		drafts(header, &session.RequestContext{Provider: "p", Model: "m", ContextWindow: 128000}),
		drafts(answer),
		drafts(&session.StepEnd{Turn: 1, Step: 1}),
		drafts(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}),
	}
}

func benchHeader() *session.RequestHeader {
	h := session.RequestHeader{Config: session.CallConfig{Provider: "p", Model: "m"}, System: strings.Repeat("You are careful. ", 90), Reason: session.HeaderInitial}
	for i := range 7 {
		h.Tools = append(h.Tools, session.ToolSpec{Name: fmt.Sprint("tool", i), Description: strings.Repeat("does things ", 10), Parameters: []byte(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)})
	}
	return session.NewRequestHeader(h)
}

// BenchmarkAppend appends the events of one child to a fresh session: encode,
// validate, fold. One operation is one child of 11 events.
func BenchmarkAppend(b *testing.B) {
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		b.Fatal(err)
	}
	descriptor, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn"})
	if err != nil {
		b.Fatal(err)
	}
	holds := childHolds(benchHeader(), descriptor)
	events := 0
	for _, h := range holds {
		events += len(h)
	}
	run := func(b *testing.B, cfg session.Config) {
		reg := newRegistry(b, cfg)
		b.ReportAllocs()
		for b.Loop() {
			s, err := reg.Prepare(b.Context(), session.New{})
			if err != nil {
				b.Fatal(err)
			}
			for _, h := range holds {
				if _, err := s.Append(h...); err != nil {
					b.Fatal(err)
				}
			}
			if err := reg.Abandon(b.Context(), s); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
	}
	b.Run("child", func(b *testing.B) { run(b, session.Config{}) })
	b.Run("child with cells", func(b *testing.B) {
		run(b, session.Config{NewCells: func(h *session.Header) session.Cells { return units.NewCells(h) }})
	})
}

// longLog is a log of n events, tool-using turns of two steps each.
func longLog(tb testing.TB, n int) *session.Session {
	s := newSession(tb)
	text := strings.Repeat("some text of an ordinary length. ", 8)
	for turn := int64(1); s.Head() < int64(n); turn++ {
		id := fmt.Sprint(turn)
		mustAppend(tb, s,
			insert(session.NextTurn, 0, "m"+id), &session.TurnStart{Turn: turn}, &session.InboxSpliced{Target: session.NextTurn, Removed: 1},
			&session.StepStart{Turn: turn, Step: 1}, say("m"+id, text),
			reply(turn, 1, "a"+id, message.Text(text), message.ToolCall("c"+id, "read", `{"path":"a/b/c.go"}`)),
			&session.ToolCall{Turn: turn, Step: 1, CallID: "c" + id, Name: "read", Arguments: `{"path":"a/b/c.go"}`},
			outcome(turn, 1, "c"+id, text, ""), &session.StepEnd{Turn: turn, Step: 1},
			&session.StepStart{Turn: turn, Step: 2}, reply(turn, 2, "b"+id, message.Text(text)), &session.StepEnd{Turn: turn, Step: 2},
			&session.TurnEnd{Turn: turn, Kind: session.EndCompleted},
		)
	}
	return s
}

// BenchmarkOpen rebuilds and validates a stored log of 10,000 events from the
// bytes of its batches.
func BenchmarkOpen(b *testing.B) {
	s := longLog(b, 10_000)
	head := s.Head()
	var all []session.Event
	for e := range s.Events(0) {
		all = append(all, e)
	}
	data := session.AppendBatch(nil, all)
	reg := newRegistry(b, session.Config{})
	rec := recordOf(s, head)
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		var buf []session.Event
		for b.Loop() {
			var err error
			if buf, err = session.ParseBatch(buf[:0], "s", data, 0, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse and rebuild", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		var kept *session.Session
		for b.Loop() {
			events, err := session.ParseBatch(make([]session.Event, 0, head), "s", data, 0, 0)
			if err != nil {
				b.Fatal(err)
			}
			if kept, err = reg.Restore(rec, sequence(events)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(head), "ns/event")
		runtime.KeepAlive(kept)
	})
}

// BenchmarkFork seeds a child with the prefix of a 10,000-event parent.
func BenchmarkFork(b *testing.B) {
	s := longLog(b, 10_000)
	reg := newRegistry(b, session.Config{})
	b.ReportAllocs()
	for b.Loop() {
		child, err := reg.Prepare(b.Context(), session.New{Seed: &session.Seed{Prefix: s.Prefix()}})
		if err != nil {
			b.Fatal(err)
		}
		if err := reg.Abandon(b.Context(), child); err != nil {
			b.Fatal(err)
		}
	}
}
