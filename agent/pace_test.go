package agent_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Twenty agents that meet one 429 share what it told: they come back after the
// vendor's delay, one by one, one that begins meanwhile waits behind them, and all
// are served by a vendor that takes ten calls a second (M16, M17).
func TestTwentyAgentsMeetOneRateLimit(t *testing.T) {
	const agents, every, after = 20, 100 * time.Millisecond, time.Second
	bubble(t, func(w *world) {
		var mu sync.Mutex // guards following
		var free time.Time
		var served []time.Duration
		calls, refused := 0, 0
		together := make(chan struct{}) // closed when all are on their way
		start := time.Now()
		w.model.fallback = func(c *call) {
			mu.Lock()
			if calls++; calls == agents {
				close(together)
			}
			mu.Unlock()
			<-together
			mu.Lock()
			now := time.Now()
			ok := !now.Before(free)
			if ok {
				free = now.Add(every)
				served = append(served, now.Sub(start))
			} else {
				refused++
			}
			mu.Unlock()
			if ok {
				say("ok")(c)
				return
			}
			c.fail(message.Failure{Code: llm.CodeRateLimit, Status: 429, Message: "slow down", RetryAfterMS: after.Milliseconds()})
		}
		var all []*agent.Agent
		ask := func() {
			a := w.create()
			all = append(all, a)
			w.ok(a.Accept(t.Context(), msg(fmt.Sprintf("m%d", len(all))), session.NextTurn))
		}
		for range agents {
			ask()
		}
		<-time.After(every / 2)
		ask() // its first call would be served now, but the route has been told to wait
		for _, a := range all {
			w.idle(a)
			w.same("end", []string{"end 1 completed"}, lines(a, "end"))
		}
		// Now and then one is refused again, which is how the vendor's pace is found.
		if extra := refused - (agents - 1); extra < 0 || extra > agents/5 {
			t.Errorf("%d calls were refused, of %d that left together", refused, agents)
		}
		if last := all[agents]; len(lines(last, "retry")) != 0 {
			t.Errorf("the latecomer was refused: %q", lines(last, "retry"))
		}
		for i, d := range slices.Sorted(slices.Values(served)) {
			if want := after + time.Duration(i-1)*every; i > 0 && d < want {
				t.Errorf("call %d was served after %v, not before %v was due", i, d, want)
			}
		}
		// Answers take the distance back: in the end nobody waits any more.
		took := func() time.Duration {
			mu.Lock()
			free = time.Time{} // the vendor takes anything
			mu.Unlock()
			begun := time.Now()
			ask()
			w.idle(all[len(all)-1])
			return time.Since(begun)
		}
		for range 40 {
			took()
		}
		if d := took(); d != 0 {
			t.Errorf("after so many answers a call takes %v", d)
		}
	})
}

// An agent that waits for its place in the line is cancelled at once, and its turn
// is closed (M19).
func TestCancelWhilePaced(t *testing.T) {
	bubble(t, func(w *world) {
		w.model.script(fails(llm.CodeRateLimit))
		first := w.create()
		w.ok(first.Accept(t.Context(), msg("m1"), session.NextTurn))
		<-time.After(100 * time.Millisecond)
		second := w.create()
		w.ok(second.Accept(t.Context(), msg("m2"), session.NextTurn))
		<-time.After(100 * time.Millisecond)
		start := time.Now()
		w.ok(second.Cancel(session.Cause{Kind: session.CauseUser}, false))
		w.idle(second)
		if d := time.Since(start); d != 0 {
			t.Errorf("the cancel took %v", d)
		}
		w.same("end", []string{"end 1 aborted user"}, lines(second, "end"))
		w.idle(first)
		w.same("calls", 2, w.model.count())
	})
}
