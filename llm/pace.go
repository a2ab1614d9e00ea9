package llm

import (
	"context"
	"net/http"
	"slices"
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
// While nobody was refused it costs one lock and delays nothing. After a refusal
// nobody calls before the delay is over with which the refused call is made again,
// and then all go one by one, in the order in which they came: the distance begins
// at 100 ms, doubles with each refusal of a call that left after the last one, up to
// 1 s, and shrinks by an eighth with each answer to such a call, until below 25 ms it
// is gone: fast enough for a vendor that has recovered, and too slow for those who
// wait to be let go together.
//
// Its zero value is ready. It is safe for concurrent use and starts no goroutine. It
// must not be copied.
type Pace struct {
	mu    sync.Mutex // all below
	epoch uint64     // counts the refusals that changed something
	gap   time.Duration
	until time.Time // nobody goes earlier
	last  time.Time // when the last one went while there was a line or a distance
	line  []*seat   // who waits, in order
}

// seat is a caller's place in the line.
type seat struct{ first chan struct{} } // closed when nobody is in front

// Turn is the leave to make one call. The zero value is none.
type Turn struct {
	of    *Pace
	epoch uint64
}

// Of reports whether the turn is one of p.
func (t Turn) Of(p *Pace) bool { return t.of == p }

// Enter waits until the caller may call. waited says whether that took time. The
// error is the cause of ctx's end; then the caller has left the line.
func (p *Pace) Enter(ctx context.Context) (_ Turn, waited bool, err error) {
	p.mu.Lock()
	if len(p.line) == 0 && p.waitLocked() <= 0 {
		defer p.mu.Unlock()
		return p.goLocked(), false, nil
	}
	s := &seat{first: make(chan struct{})}
	if p.line = append(p.line, s); len(p.line) == 1 {
		close(s.first)
	}
	p.mu.Unlock()
	select {
	case <-s.first:
	case <-ctx.Done():
		p.leave(s)
		return Turn{}, true, context.Cause(ctx)
	}
	for {
		p.mu.Lock()
		wait := p.waitLocked()
		if wait <= 0 {
			defer p.mu.Unlock()
			p.leaveLocked(s)
			return p.goLocked(), true, nil
		}
		p.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C: // what it waited for may have moved
		case <-ctx.Done():
			timer.Stop()
			p.leave(s)
			return Turn{}, true, context.Cause(ctx)
		}
	}
}

// waitLocked returns how long the next one has to wait.
func (p *Pace) waitLocked() time.Duration {
	if p.gap == 0 && p.until.IsZero() {
		return 0
	}
	at := p.until
	if next := p.last.Add(p.gap); p.gap > 0 && next.After(at) {
		at = next
	}
	return time.Until(at)
}

func (p *Pace) goLocked() Turn {
	if p.gap > 0 || !p.until.IsZero() {
		p.last, p.until = time.Now(), time.Time{}
	}
	return Turn{of: p, epoch: p.epoch}
}

func (p *Pace) leave(s *seat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(s)
}

func (p *Pace) leaveLocked(s *seat) {
	i := slices.Index(p.line, s)
	p.line = slices.Delete(p.line, i, i+1)
	if i == 0 && len(p.line) > 0 {
		close(p.line[0].first)
	}
}

// Refused tells that the vendor refused the call which was made in that turn for
// there being too many, and that it is made again after delay: nobody calls before
// that. A call that is not made again has a delay of 0, and tells only that there
// are too many.
func (p *Pace) Refused(t Turn, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t == (Turn{of: p, epoch: p.epoch}) {
		// Calls that left before somebody else's refusal tell nothing new.
		p.epoch++
		p.gap = min(max(2*p.gap, paceFirst), paceMost)
	}
	if at := time.Now().Add(delay); delay > 0 && at.After(p.until) {
		p.until = at
	}
}

// Answered tells that the call which was made in that turn was answered. One that
// left before the last refusal says nothing about the time after it.
func (p *Pace) Answered(t Turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t != (Turn{of: p, epoch: p.epoch}) {
		return
	}
	if p.gap -= p.gap / 8; p.gap < paceLeast {
		p.gap = 0
	}
}

// Crowded reports whether a failure says that the vendor has too many calls: a rate
// limit, or an overload (503, and 529 of vendors that have one).
func Crowded(f message.Failure) bool {
	const overloaded = 529
	return f.Code == CodeRateLimit || f.Status == http.StatusServiceUnavailable || f.Status == overloaded
}
