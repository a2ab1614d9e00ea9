package projection

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
)

// Inspection is what one reading of a stored log told.
type Inspection struct {
	// Header is the session's as it was read.
	Header  session.Header
	Summary Summary
	// Err is why the log could not be read: the store's error, or a log that is not
	// what its record says. The other fields mean nothing then.
	Err error
	// Fault says that the log could be read up to an event which a registered unit, of
	// whatever key, cannot be folded over; the rest was not looked at. Summary means
	// nothing then.
	Fault error
}

// Inspect reads a stored session once, without changing anything, and folds every
// registered unit over its own events; checkpoints are not looked at (core D30).
func (r *Registry) Inspect(ctx context.Context, store session.Store, id session.ID) Inspection {
	return r.current().inspect(ctx, store, id, &decoder{})
}

// InspectAll is Inspect for several sessions: one result for each, in order. At most
// ReadLimit are read at once (core D31), and one that fails does not hide the
// others. The error is the cause of ctx's end, whatever was read by then.
func (r *Registry) InspectAll(ctx context.Context, store session.Store, ids []session.ID) ([]Inspection, error) {
	s, dec := r.current(), &decoder{}
	out := make([]Inspection, len(ids))
	err := bounded(ctx, len(ids), func(i int) { out[i] = s.inspect(ctx, store, ids[i], dec) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *set) inspect(ctx context.Context, store session.Store, id session.ID, dec *decoder) (in Inspection) {
	defer func() {
		if x := recover(); x != nil {
			// A store of somebody else's; a unit's panics do not come up to here.
			in.Err = fmt.Errorf("inspect session %s: store panicked: %v", id, x)
		}
	}()
	rec, events, err := store.Inspect(ctx, id)
	if err != nil {
		return Inspection{Err: err}
	}
	in.Header = rec.Header
	f := newFolding(s, &rec.Header)
	next := int64(0)
	for e, err := range events {
		if err == nil && e.Seq != next {
			err = &session.CorruptError{ID: id, Seq: e.Seq, Err: fmt.Errorf("expected seq %d", next)}
		}
		if err != nil {
			return Inspection{Err: fmt.Errorf("inspect session %s: %w", id, err)}
		}
		next++
		if e.Seq < rec.Header.SeedLength {
			continue
		}
		var p session.Payload
		if len(s.of(e.Type)) > 0 {
			if p, err = dec.payload(ctx, e); err != nil {
				in.Fault = &session.CorruptError{ID: id, Seq: e.Seq, Err: err}
				return in
			}
		}
		if f.apply(&e, p); f.fault != nil {
			in.Fault = f.fault
			return in
		}
	}
	if next < rec.Head {
		return Inspection{Err: &session.CorruptError{ID: id, Seq: next, Err: fmt.Errorf("the log ends before its %d events", rec.Head)}}
	}
	for i := range f.values {
		f.values[i] = s.units[i].detach(&rec.Header, f.values[i])
	}
	in.Summary = f.summary()
	return in
}
