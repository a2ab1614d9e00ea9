package llm_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// enter takes a turn and returns how long that took.
func enter(t *testing.T, p *llm.Pace) (llm.Turn, time.Duration) {
	t.Helper()
	start := time.Now()
	turn, waited, err := p.Enter(t.Context())
	took := time.Since(start)
	if err != nil || waited != (took > 0) || !turn.Of(p) {
		t.Errorf("Enter: waited %v for %v, %v", waited, took, err)
	}
	return turn, took
}

// Calls that left together and were refused together are one refusal: nobody goes
// before the delay is over, then they go one by one, a newcomer behind those who
// wait (M16, M17).
func TestPaceSpreadsThoseRefusedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		turns := make([]llm.Turn, 20)
		for i := range turns {
			var took time.Duration
			if turns[i], took = enter(t, &p); took != 0 {
				t.Fatalf("call %d waits %v although nobody was refused", i, took)
			}
		}
		for _, turn := range turns {
			p.Refused(turn, time.Second)
		}
		start := time.Now()
		var all sync.WaitGroup
		for i := range len(turns) + 1 {
			all.Go(func() {
				enter(t, &p)
				if at, want := time.Since(start), time.Second+time.Duration(i)*100*time.Millisecond; at != want {
					t.Errorf("call %d goes at %v, want %v", i, at, want)
				}
			})
			synctest.Wait() // in the line
		}
		all.Wait()
	})
}

// A refusal of a call that left after the last one doubles the distance and holds up
// whoever waits; answers to such calls take it back until nothing is left of it.
func TestPaceAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		first, _ := enter(t, &p)
		late, _ := enter(t, &p)
		p.Refused(first, time.Second)
		second, took := enter(t, &p)
		if took != time.Second {
			t.Errorf("the retry waits %v, want 1s", took)
		}
		var others sync.WaitGroup
		others.Go(func() {
			if _, took := enter(t, &p); took != 5*time.Second {
				t.Errorf("who waited at the refusal waits %v, want 5s", took)
			}
		})
		synctest.Wait()
		p.Refused(second, 5*time.Second)
		p.Refused(late, time.Second) // tells nothing new of the distance, and shortens nothing
		others.Go(func() {
			if _, took := enter(t, &p); took != 5*time.Second+200*time.Millisecond {
				t.Errorf("the one behind waits %v, want 5.2s", took)
			}
		})
		others.Wait()
	})
}

// An answer takes an eighth of the distance, and one to a call that left before the last refusal
// takes nothing back: neither the distance nor the vendor's delay.
func TestPaceAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		early, _ := enter(t, &p)
		refused, _ := enter(t, &p)
		p.Refused(refused, 30*time.Second)
		for range 4 {
			p.Answered(early)
		}
		_, took := enter(t, &p)
		if took != 30*time.Second {
			t.Errorf("a newcomer waits %v, and the vendor asked for 30s", took)
		}
		for want := 100 * time.Millisecond; want >= 25*time.Millisecond; want -= want / 8 {
			turn, took := enter(t, &p)
			if took != want {
				t.Errorf("a call waits %v, want %v", took, want)
			}
			p.Answered(turn)
		}
		for range 3 {
			if _, took := enter(t, &p); took != 0 {
				t.Errorf("a call still waits %v", took)
			}
		}
	})
}

// Who gives up leaves the line to those behind, and a call that is not made again
// takes no place in it.
func TestPaceLeavesNoGhosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		turn, _ := enter(t, &p)
		for range 5 {
			p.Refused(turn, 0)
			turn, _ = enter(t, &p)
		}
		gone, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				if _, waited, err := p.Enter(gone); !waited || !errors.Is(err, errGone) {
					t.Errorf("waited %v, %v", waited, err)
				}
			})
		}
		synctest.Wait()
		all.Go(func() {
			// The distance is bounded, and nobody else is left.
			if _, took := enter(t, &p); took != time.Second {
				t.Errorf("the last in the line waits %v, want 1s", took)
			}
		})
		synctest.Wait()
		cancel(errGone)
		all.Wait()
		for range 40 {
			p.Refused(turn, 0)
		}
		if _, took := enter(t, &p); took != time.Second {
			t.Errorf("behind refusals for good a call waits %v, want 1s", took)
		}
	})
}

var errGone = errors.New("the caller is gone")

// Forty callers of a vendor that takes one call in 200 ms are all served soon.
func TestPaceServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, every, after = 40, 200 * time.Millisecond, 500 * time.Millisecond
		var p llm.Pace
		var mu sync.Mutex // guards free
		var free time.Time
		start := time.Now()
		var all, together sync.WaitGroup
		together.Add(callers)
		for range callers {
			all.Go(func() {
				turn, _ := enter(t, &p)
				together.Done()
				together.Wait()
				for {
					mu.Lock()
					now := time.Now()
					served := !now.Before(free)
					if served {
						free = now.Add(every)
					}
					mu.Unlock()
					if served {
						p.Answered(turn)
						return
					}
					p.Refused(turn, after)
					<-time.After(after)
					turn, _ = enter(t, &p)
				}
			})
		}
		all.Wait()
		if took, ideal := time.Since(start), callers*every; took > 4*ideal {
			t.Errorf("all are served after %v, the vendor alone needs %v", took, ideal)
		}
	})
}

// A turn of one route is none of another.
func TestPaceTurns(t *testing.T) {
	var p, q llm.Pace
	turn, _, err := p.Enter(t.Context())
	if err != nil || turn.Of(&q) || (llm.Turn{}).Of(&p) {
		t.Errorf("%v of the other: %v", err, turn.Of(&q))
	}
}

func TestCrowded(t *testing.T) {
	for _, c := range []struct {
		f    message.Failure
		want bool
	}{
		{message.Failure{Code: llm.CodeRateLimit, Status: 429}, true},
		{message.Failure{Code: llm.CodeRateLimit}, true},
		{message.Failure{Code: llm.CodeServer, Status: 503}, true},
		{message.Failure{Code: llm.CodeServer, Status: 529}, true},
		{message.Failure{Code: llm.CodeServer, Status: 500}, false},
		{message.Failure{Code: llm.CodeTransport}, false},
		{message.Failure{}, false},
	} {
		if got := llm.Crowded(c.f); got != c.want {
			t.Errorf("%+v: %v, want %v", c.f, got, c.want)
		}
	}
}

// All calls of a route share one pace, also across a change of the adapter; other
// routes have their own.
func TestPaceIsTheRoutes(t *testing.T) {
	reg := new(llm.Registry)
	must := func(_ func(), err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	of := func(route string) *llm.Pace {
		t.Helper()
		p, err := reg.Prepare(llm.CallConfig{Provider: route, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		return p.Pace
	}
	must(reg.Register(&adapter{}, "a", "b"))
	first, other := of("a"), of("b")
	must(reg.Replace(&adapter{}, "a"))
	if of("a") != first || other == first || of("b") != other {
		t.Error("the routes do not have one pace each")
	}
}
