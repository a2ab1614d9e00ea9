package spawn_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// fixture is the fixed one that design § 7 measures with: seven tools, a system
// prompt of 1.5 KB, one text answer, everything logged.
func fixture(b *testing.B, store session.Store) (*subagenttest.System, subagent.Request) {
	o := subagenttest.Options{
		Store: store, Unwatched: true, Identity: strings.Repeat("You are careful. ", 1500/17),
		Adapter: scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.SayLiteral("The answer is 42.")}}}}, scripted.Options{Record: -1}),
	}
	for i := range 7 {
		o.Tools = append(o.Tools, tool.Definition{
			Name: fmt.Sprintf("tool_%d", i), Description: strings.Repeat("It does what its name says. ", 4),
			Parameters: []byte(`{"type":"object","properties":{"path":{"type":"string","description":"Where."},"limit":{"type":"integer"}},"required":["path"],"additionalProperties":false}`),
			Execute:    func(context.Context, *tool.Call) (any, error) { return "", nil },
		})
	}
	s := subagenttest.NewSystem(b, o)
	s.Register(b, spawn.New(""))
	parent := s.Parent(b)
	req := subagenttest.Request(parent, "What is the answer?")
	label := "find the answer"
	req.Label = &label
	return s, req
}

func oneShot(ctx context.Context, s *subagenttest.System, req subagent.Request) error {
	run, err := s.Service.Start(ctx, spawn.DefaultName, req)
	if err != nil {
		return err
	}
	res, err := run.Wait(ctx)
	if err != nil {
		return err
	}
	if res.StopReason != subagent.StopCompleted {
		return fmt.Errorf("ended as %s: %s", res.StopReason, res.Diagnostic)
	}
	return run.Close(context.WithoutCancel(ctx))
}

// BenchmarkOneShot is one child from Start to the end of Close. With "at once" an
// operation is still one child.
func BenchmarkOneShot(b *testing.B) {
	stores := []struct {
		name string
		open func(b *testing.B) session.Store
	}{
		{"live", func(*testing.B) session.Store { return nil }},
		{"memory", func(b *testing.B) session.Store {
			s := memory.New()
			b.Cleanup(func() { _ = s.Close(context.WithoutCancel(b.Context())) }) // nothing to lose
			return s
		}},
		{"sqlite", func(b *testing.B) session.Store {
			s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "sessions.db"), sqlite.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := s.Close(context.WithoutCancel(b.Context())); err != nil {
					b.Error(err)
				}
			})
			return s
		}},
	}
	for _, store := range stores {
		for _, children := range []int{1, 100, 1000} {
			b.Run(fmt.Sprintf("%s/at once=%d", store.name, children), func(b *testing.B) {
				s, req := fixture(b, store.open(b))
				ctx := b.Context()
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					if children == 1 {
						if err := oneShot(ctx, s, req); err != nil {
							b.Fatal(err)
						}
						continue
					}
					if n++; n%children != 0 {
						continue // one round does an operation of each child
					}
					var g sync.WaitGroup
					for range children {
						g.Go(func() {
							if err := oneShot(ctx, s, req); err != nil {
								b.Error(err)
							}
						})
					}
					g.Wait()
				}
			})
		}
	}
}
