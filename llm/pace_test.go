package llm_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// Twenty calls that left together and were refused together return one by one, not
// before the vendor's delay, and count as one refusal (M16, M17).
func TestPaceSpreadsThoseRefusedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		var places [20]llm.Place
		for i := range places {
			var wait time.Duration
			if wait, places[i] = p.Enter(llm.Place{}); wait != 0 {
				t.Fatalf("call %d waits %v although nobody was refused", i, wait)
			}
		}
		for i := range places {
			var wait time.Duration
			wait, places[i] = p.Refused(places[i], time.Second)
			if want := time.Second + time.Duration(i)*100*time.Millisecond; wait != want {
				t.Errorf("call %d waits %v, want %v", i, wait, want)
			}
		}
		if wait, _ := p.Enter(llm.Place{}); wait != 3*time.Second {
			t.Errorf("a newcomer waits %v, want 3s: behind all that wait already", wait)
		}
		time.Sleep(time.Second)
		if wait, _ := p.Enter(places[0]); wait != 0 {
			t.Errorf("the first waits %v more after its turn came", wait)
		}
	})
}

// A refusal of a paced call doubles the distance and moves whoever waits; answers
// take it back until nothing is left of it.
func TestPaceAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		_, a := p.Enter(llm.Place{})
		_, b := p.Enter(llm.Place{})
		_, a = p.Refused(a, time.Second)
		_, b = p.Refused(b, time.Second)
		time.Sleep(time.Second)
		if wait, _ := p.Enter(a); wait != 0 {
			t.Fatalf("the first waits %v more", wait)
		}
		if wait, _ := p.Refused(a, 5*time.Second); wait != 5*time.Second {
			t.Errorf("refused again it waits %v, want 5s", wait)
		}
		time.Sleep(100 * time.Millisecond)
		wait, b := p.Enter(b)
		if wait != 5*time.Second+100*time.Millisecond {
			t.Errorf("who waited meanwhile waits %v, want 5.1s: 200ms behind the first", wait)
		}
		for range 3 {
			p.Answered(b) // 200, 100, 50, 25 ms
		}
		time.Sleep(time.Minute)
		_, _ = p.Enter(llm.Place{})
		if wait, _ := p.Enter(llm.Place{}); wait != 25*time.Millisecond {
			t.Errorf("after three answers the distance is %v, want 25ms", wait)
		}
		p.Answered(b)
		for range 3 {
			if wait, _ := p.Enter(llm.Place{}); wait != 0 {
				t.Errorf("after four answers a call still waits %v", wait)
			}
		}
	})
}

// A refusal makes the line anew: what was given out before it holds nobody up. Forty
// callers of a vendor that takes one call in 200 ms are all served soon.
func TestPaceLeavesNoGhosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, every, after = 40, 200 * time.Millisecond, 500 * time.Millisecond
		var p llm.Pace
		var mu sync.Mutex // guards free
		var free time.Time
		start := time.Now()
		var all sync.WaitGroup
		var together sync.WaitGroup
		together.Add(callers)
		for range callers {
			all.Go(func() {
				_, place := p.Enter(llm.Place{})
				together.Done()
				together.Wait()
				for {
					for {
						var wait time.Duration
						if wait, place = p.Enter(place); wait == 0 {
							break
						}
						time.Sleep(wait)
					}
					mu.Lock()
					now := time.Now()
					served := !now.Before(free)
					if served {
						free = now.Add(every)
					}
					mu.Unlock()
					if served {
						p.Answered(place)
						return
					}
					var wait time.Duration
					wait, place = p.Refused(place, after)
					time.Sleep(wait)
				}
			})
		}
		all.Wait()
		if took, ideal := time.Since(start), callers*every; took > 4*ideal {
			t.Errorf("all are served after %v, the vendor alone needs %v", took, ideal)
		}
	})
}

// An answer to a call that left before the refusal takes nothing back.
func TestPaceIgnoresLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p llm.Pace
		_, early := p.Enter(llm.Place{})
		_, refused := p.Enter(llm.Place{})
		_, _ = p.Refused(refused, 30*time.Second)
		for range 4 {
			p.Answered(early)
		}
		if wait, _ := p.Enter(llm.Place{}); wait < 30*time.Second {
			t.Errorf("a newcomer waits %v, and the vendor asked for 30s", wait)
		}
	})
}

// The distance is bounded, and a place in one line is none in another.
func TestPaceBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p, q llm.Pace
		_, place := p.Enter(llm.Place{})
		for range 40 {
			_, place = p.Refused(place, 0)
		}
		time.Sleep(time.Hour)
		_, _ = p.Enter(llm.Place{})
		if wait, _ := p.Enter(llm.Place{}); wait != time.Second {
			t.Errorf("the distance grew to %v, want 1s", wait)
		}
		_, there := q.Enter(llm.Place{})
		_, _ = q.Refused(there, time.Second)
		if wait, _ := q.Enter(place); wait != time.Second+100*time.Millisecond {
			t.Errorf("a place of another route waits %v, want 1.1s", wait)
		}
	})
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
