package projection

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
)

// Follower holds the values of every unit for one live session and moves them
// with its log (core D25). It costs no goroutine. It is safe for concurrent use.
type Follower struct {
	set  *set
	with func(func())
	stop func()

	// Guarded by the session's lock.
	values  []Snapshot
	faults  []error
	next    int64           // seq of the next event to be folded
	pending []session.Event // events that came while the log was folded; nil once caught up
	behind  bool
}

// Follow folds the log of a session once and follows it from there, until Stop or
// the session's end. It must not be called from code that runs under a log's lock. The
// error is why the log cannot be read, as of session.Session.Load.
func (r *Registry) Follow(ctx context.Context, s *session.Session) (*Follower, error) {
	if err := s.Load(ctx); err != nil {
		return nil, fmt.Errorf("follow session %s: %w", s.ID(), err)
	}
	h := s.Header()
	f := &Follower{set: r.current(), next: h.SeedLength, behind: true}
	f.values = make([]Snapshot, len(f.set.units))
	f.faults = make([]error, len(f.set.units))
	for i := range f.set.units {
		u := &f.set.units[i]
		f.values[i] = Snapshot{Value: u.Init(&h), AsOf: h.SeedLength - 1, unit: u}
	}
	// Nothing else touches the values while behind is set, so the log is folded
	// without its lock; what is appended meanwhile waits in pending.
	f.with, f.stop = s.Watch(f)
	for e := range s.Events(h.SeedLength) {
		f.fold(&e)
	}
	f.with(func() {
		for i := range f.pending {
			f.fold(&f.pending[i])
		}
		f.behind, f.pending = false, nil
	})
	return f, nil
}

// Apply implements session.Fold.
func (f *Follower) Apply(e *session.Event) {
	if f.behind {
		f.pending = append(f.pending, *e)
		return
	}
	f.fold(e)
}

func (f *Follower) fold(e *session.Event) {
	if e.Seq != f.next {
		return // folded already, while catching up
	}
	f.next++
	for _, i := range f.set.of(e.Type) {
		if f.faults[i] == nil {
			f.values[i].Value, f.faults[i] = f.set.units[i].step(f.values[i].Value, e, e.Payload())
		}
	}
}

// Snapshot returns a unit's value as of the session's head. Errors:
// ErrUnknownUnit; the fault of a unit that cannot be folded over this log.
func (f *Follower) Snapshot(key string) (s Snapshot, err error) {
	i := f.set.index(key)
	if i < 0 {
		return s, fmt.Errorf("projection unit %q: %w", key, ErrUnknownUnit)
	}
	f.with(func() {
		s, err = f.values[i], f.faults[i]
		s.AsOf = f.next - 1
	})
	if err != nil {
		return Snapshot{}, err
	}
	return s, nil
}

// Stop ends the following. Snapshots stay as they are then.
func (f *Follower) Stop() { f.stop() }
