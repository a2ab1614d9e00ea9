package llm

import (
	"net/http"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/message"
)

// The distance that a Pace puts between two calls: where it begins, the most it
// grows to, and below what it is given up.
const (
	paceFirst = 100 * time.Millisecond
	paceMost  = time.Second
	paceLeast = 25 * time.Millisecond
)

// Pace spreads the calls of one route in time while its vendor says that there are
// too many of them. Everybody who calls the route shares it, so that twenty
// children which met one 429 do not come back together and meet the next (core
// M16, M17).
//
// While nobody was refused it costs one lock and delays nothing. A refusal makes
// everybody wait as long as the vendor asked for, and then go one by one: the
// distance begins at 100 ms, doubles with each refusal of a call that left after the
// last one, up to 1 s, and halves with each answer to such a call, until below 25 ms
// it is gone. Who waited at a refusal lines up anew: places given out before it do
// not count.
//
// Its zero value is ready. It is safe for concurrent use and starts no goroutine:
// whoever calls waits by itself. It must not be copied.
type Pace struct {
	mu    sync.Mutex // all below
	epoch uint64     // counts the refusals that changed something
	gap   time.Duration
	until time.Time // what the vendor asked for: nobody goes earlier
	next  time.Time // the first place that is free
}

// Place is a caller's place in the line of a Pace, good for one call. The zero
// value is none.
type Place struct {
	of    *Pace
	epoch uint64
}

// Enter returns how long a caller with that place has to wait before it calls, and
// the place it has from then on. A caller that has waited enters again with what
// it got: nothing is left to wait for, unless a refusal moved the line meanwhile.
func (p *Pace) Enter(place Place) (time.Duration, Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	here := Place{of: p, epoch: p.epoch}
	if place == here || p.gap == 0 && p.until.IsZero() {
		return 0, here
	}
	now := time.Now()
	if p.gap == 0 && !now.Before(p.until) {
		p.until = time.Time{}
		return 0, here
	}
	return p.take(now, 0), here
}

// Refused tells that the vendor refused the call which was made at place for there
// being too many, and that it is to be made again after delay at the earliest. It
// returns how long to wait, at least delay, and the new place.
func (p *Pace) Refused(place Place, delay time.Duration) (time.Duration, Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if place == (Place{of: p, epoch: p.epoch}) {
		// Calls that left before somebody else's refusal tell nothing new.
		p.epoch++
		p.gap = min(max(2*p.gap, paceFirst), paceMost)
		p.next = now
	}
	if t := now.Add(delay); t.After(p.until) {
		p.until = t
	}
	return p.take(now, delay), Place{of: p, epoch: p.epoch}
}

// Answered tells that the call which was made at place was answered. One that left
// before the last refusal says nothing about the time after it.
func (p *Pace) Answered(place Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if place != (Place{of: p, epoch: p.epoch}) {
		return
	}
	if p.gap /= 2; p.gap < paceLeast {
		p.gap = 0
	}
}

// take gives out the next place that is at least delay away.
func (p *Pace) take(now time.Time, delay time.Duration) time.Duration {
	at := now.Add(delay)
	for _, t := range [...]time.Time{p.until, p.next} {
		if t.After(at) {
			at = t
		}
	}
	p.next = at.Add(p.gap)
	return at.Sub(now)
}

// Crowded reports whether a failure says that the vendor has too many calls: a rate
// limit, or an overload (503, and 529 of vendors that have one).
func Crowded(f message.Failure) bool {
	const overloaded = 529
	return f.Code == CodeRateLimit || f.Status == http.StatusServiceUnavailable || f.Status == overloaded
}
