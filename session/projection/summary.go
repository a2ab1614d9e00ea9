package projection

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
)

// Summary is what the built-in units tell of one session. A nil field is not told:
// no unit of that key is registered, its value says that there is none, or, for a
// record, there is no checkpoint to be trusted.
type Summary struct {
	Identity *Identity
	Usage    *Usage
	Title    *Title
	State    *State
	// Last is the time of the last event that was folded, in ms since the epoch; for a
	// record, of the last write to its log.
	Last int64
}

// Timing is how long the session has worked, zero where nothing tells.
func (s *Summary) Timing() Timing {
	if s.State == nil {
		return Timing{}
	}
	return s.State.Timing(s.Last)
}

// SummaryOf returns what a record's checkpoints tell, without any log.
func SummaryOf(rec *session.Record) Summary {
	return Summary{Identity: identityOf(rec), Usage: usageOf(rec), Title: titleOf(rec), State: stateOf(rec), Last: rec.UpdatedAt}
}

// Live returns the values of a session in memory as its own cells hold them: nothing
// of its log is looked at (core D25, D30). Only where the cells do not cover every
// unit that is registered now, since the session was prepared without them, its own
// events are folded, once for each call.
//
// An error says that a registered unit, of whatever key, cannot be folded over this
// log; what the others tell is in the Summary all the same. Or it says why the log could
// not be read, where that is needed; ctx bounds that.
func (r *Registry) Live(ctx context.Context, s *session.Session) (sum Summary, err error) {
	now := r.current()
	told := false
	s.View(func(sc session.Cells, _, last int64) {
		c, ok := sc.(*cells)
		if !ok {
			return
		}
		var fault string
		if fault, told = c.cover(now); !told {
			return
		}
		sum = c.set.summary(c.values)
		sum.Last = last
		if fault != "" {
			err = &session.CorruptError{ID: s.ID(), Seq: -1, Err: fmt.Errorf("projection unit %q cannot be folded over the log", fault)}
		}
	})
	if told {
		return sum, err
	}
	if err := s.Load(ctx); err != nil {
		return Summary{}, fmt.Errorf("fold session %s: %w", s.ID(), err)
	}
	h := s.Header()
	f := newFolding(now, &h)
	for e := range s.Events(h.SeedLength) {
		f.apply(&e, e.Payload())
	}
	return f.summary(), f.fault
}

// cover reports whether the cells hold every unit of a set, and names one of these
// that panicked.
func (c *cells) cover(want *set) (fault string, ok bool) {
	if c.set == want && c.faulty == 0 {
		return "", true
	}
	for i := range want.units {
		u := &want.units[i]
		at := c.set.index(u.Key)
		if at < 0 || c.set.units[at].Version != u.Version {
			return "", false
		}
		if c.faulty&(1<<at) != 0 {
			fault = u.Key
		}
	}
	return fault, true
}

func (s *set) summary(values []Value) (sum Summary) {
	for i := range s.units {
		switch v := values[i].(type) {
		case *Identity:
			sum.Identity = v
		case *Usage:
			sum.Usage = v
		case *Title:
			sum.Title = v
		case *State:
			sum.State = v
		}
	}
	return sum
}

// folding moves every unit of a set over one log.
type folding struct {
	id     session.ID
	set    *set
	values []Value
	last   int64
	fault  error // the first unit that cannot be folded over this log
}

func newFolding(s *set, h *session.Header) *folding {
	f := &folding{id: h.ID, set: s, values: make([]Value, len(s.units)), last: h.CreatedAt}
	for i := range s.units {
		f.values[i] = s.units[i].Init(h)
	}
	return f
}

func (f *folding) apply(e *session.Event, p session.Payload) {
	for _, i := range f.set.of(e.Type) {
		v, err := f.set.units[i].step(f.values[i], e, p)
		if err != nil && f.fault == nil {
			f.fault = &session.CorruptError{ID: f.id, Seq: e.Seq, Err: err}
		}
		f.values[i] = v
	}
	f.last = e.Time
}

func (f *folding) summary() Summary {
	sum := f.set.summary(f.values)
	sum.Last = f.last
	return sum
}
