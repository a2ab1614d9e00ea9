package projection

import "github.com/offshoot-dev/offshoot/internal/jsonx"

// Timing is how long a subagent has worked: the time of its turns, as its events'
// clock tells it, without the pauses between them (core D33; seam PROJ-05…07). It
// is part of the state: the same events move both, so one checkpoint holds them.
//
// The subagent's descriptor begins the account. A turn that is open when it arrives
// counts from its own start, one that was closed before it does not count at all,
// and a further descriptor begins anew. A session without one counts every turn.
type Timing struct {
	// Settled is the sum over the closed turns, in ms. None of them counts less than 0.
	Settled int64
	// Since is when the open turn started and Through the time of the last event
	// that was folded, in ms since the epoch; both are 0 when no turn is open.
	Since, Through int64
}

// Total is the time of all turns, in ms, the open one up to its last event.
func (t Timing) Total() int64 { return t.Settled + t.Through - t.Since }

// Timing returns the time that was spent in turns. last is the time of the last
// event that the state accounts for. What a checkpoint of a build that kept no time
// stands for is not counted.
func (s State) Timing(last int64) Timing {
	t := Timing{Settled: s.spent}
	if s.since > 0 {
		t.Since, t.Through = s.since, max(last, s.since)
	}
	return t
}

// account closes the open turn, if there is one.
func (s *State) account(at int64) {
	if s.since > 0 {
		s.spent = min(s.spent+max(at-s.since, 0), jsonx.MaxSafe)
	}
	s.since = 0
}
