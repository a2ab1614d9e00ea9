package compact_test

import (
	"fmt"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// BenchmarkStepDue is what every step pays: for a short conversation, and for one of
// 10,000 messages that is far from its window, as it was held and as it was read back.
func BenchmarkStepDue(b *testing.B) {
	for _, bc := range []struct {
		name    string
		turns   int
		mute    bool
		resumed bool
	}{
		{"short", 2, false, false},
		{"long", 5000, false, false},
		{"long/not-reported", 5000, true, false},
		{"long/read-back", 5000, false, true},
		{"long/read-back/not-reported", 5000, true, true},
	} {
		b.Run(bc.name, func(b *testing.B) {
			m := &model{window: 1 << 30, told: 1 << 30, mute: bc.mute}
			m.session = func(string) *session.Session { return nil }
			m.forget = true
			m.answer = func(*llm.Request) ([]message.Block, error) { return say("ok, and so on and so forth"), nil }
			s := subagenttest.NewSystem(b, subagenttest.Options{Adapter: m, Unwatched: true, Store: memory.New()})
			h, err := s.Agents.Create(b.Context(), agent.Create{Options: subagenttest.ParentOptions()})
			if err != nil {
				b.Fatal(err)
			}
			a := h.Agent()
			for i := range bc.turns {
				if err := a.Followup(agent.UserText(fmt.Sprintf("said %d", i))); err != nil {
					b.Fatal(err)
				}
				if err := a.WhenIdle(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			if bc.resumed {
				id := a.ID()
				if err := h.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
				if h, err = s.Agents.Resume(b.Context(), agent.Resume{ID: id, Options: subagenttest.ParentOptions()}); err != nil {
					b.Fatal(err)
				}
				a = h.Agent()
			}
			c, err := compact.New(compact.Config{Agents: s.Agents, Models: s.Models})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			b.ReportAllocs()
			for b.Loop() {
				if err := c.StepDue(b.Context(), a, 1, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCompact is a whole compaction of a conversation of 10,000 messages by a model
// that needs no time.
func BenchmarkCompact(b *testing.B) {
	m := &model{window: 1 << 30, told: 1 << 20, forget: true}
	m.session = func(string) *session.Session { return nil }
	m.answer = func(*llm.Request) ([]message.Block, error) { return say("ok, and so on and so forth"), nil }
	m.summary = func(int, *llm.Request) ([]message.Block, error) { return say("in short"), nil }
	s := subagenttest.NewSystem(b, subagenttest.Options{Adapter: m, Unwatched: true})
	parent := s.Parent(b)
	for i := range 5000 {
		if err := parent.Followup(agent.UserText(fmt.Sprintf("said %d", i))); err != nil {
			b.Fatal(err)
		}
		if err := parent.WhenIdle(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	c, err := compact.New(compact.Config{Agents: s.Agents, Models: s.Models, Manual: true})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	m.told = 10_000
	prefix := parent.Session().Prefix()
	for b.Loop() {
		b.StopTimer()
		h, err := s.Agents.Create(b.Context(), agent.Create{Options: subagenttest.ParentOptions(), Session: session.New{ParentSession: parent.ID(), Root: parent.Session().Root(), Seed: &session.Seed{Prefix: prefix}}})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := c.Compact(b.Context(), h.Agent()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := h.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
