package subagenttest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// cleanups is breaches whose cleanups the test runs itself.
type cleanups struct {
	breaches
	fns []func()
}

func (c *cleanups) Cleanup(fn func()) { c.fns = append(c.fns, fn) }

// What an agent's end fails with fails the test that the system belongs to, unless the
// test took the store away and nothing else is wrong.
func TestSystemReportsTheEndOfAgents(t *testing.T) {
	const broken, lost = "out of order", "taken over by another process"
	for _, c := range []struct {
		name          string
		panics, crash bool
		told          bool // that the store was taken away
		want          string
	}{
		{name: "a healthy end"},
		{name: "a panic", panics: true, want: broken},
		{name: "an unexpected loss", crash: true, want: lost},
		{name: "a crash", crash: true, told: true},
		{name: "a crash and a panic", panics: true, crash: true, told: true, want: broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &cleanups{breaches: breaches{TB: t}}
			store := memory.New()
			s := subagenttest.NewSystem(b, subagenttest.Options{Unwatched: true, Store: store})
			a := s.NewAgent(b, agent.Create{Options: subagenttest.ParentOptions(), Setup: func(_ context.Context, a *agent.Agent) error {
				if c.panics {
					a.OnDispose(func() { panic(broken) })
				}
				return nil
			}})
			if c.told {
				s.Crashed()
			}
			if c.crash {
				take := func() error {
					store.Kill()
					_, err := store.Backend().Open().Open(t.Context(), a.ID())
					return err
				}
				if err := errors.Join(a.Inject(agent.UserText("stored")), a.Session().Flush(t.Context()), take(), a.Inject(agent.UserText("not stored"))); err != nil {
					t.Fatal(err)
				}
			}
			for _, fn := range slices.Backward(b.fns) {
				fn()
			}
			if len(b.got) != min(len(c.want), 1) || !strings.Contains(strings.Join(b.got, ""), c.want) {
				t.Errorf("reported = %q, want %q", b.got, c.want)
			}
		})
	}
}
