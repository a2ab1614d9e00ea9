package projection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/offshoot-dev/offshoot/session"
)

// ReadLimit is how many logs ReadAll reads at once (core D31).
const ReadLimit = 4

// Snapshot is a unit's value as of an event of a log (core D27).
type Snapshot struct {
	Value Value
	// AsOf is the seq of the last event that the value accounts for, or -1.
	AsOf int64

	unit *Unit
}

// AppendJSON appends the value as the unit encodes it; null for a zero Snapshot.
func (s Snapshot) AppendJSON(buf []byte) []byte {
	if s.unit == nil {
		return append(buf, "null"...)
	}
	return s.unit.Append(buf, s.Value)
}

// Newer returns the one of two snapshots that accounts for more of the log: what
// a consumer keeps when a snapshot and live updates cross (core D27).
func (s Snapshot) Newer(t Snapshot) Snapshot {
	if t.AsOf > s.AsOf {
		return t
	}
	return s
}

// Read returns a unit's value for a stored session: the record's checkpoint if it
// can be trusted, moved on by what the log holds behind it; the fold of the
// session's own events otherwise (core D28, D30). A checkpoint that is missing,
// ahead of the log, of another version, null or damaged is passed over silently.
// Nothing is written back.
//
// Errors: ErrUnknownUnit, rec.Err, the store's, *session.CorruptError for a log
// that the unit cannot be folded over, the cause of ctx's end.
func (r *Registry) Read(ctx context.Context, store session.Store, rec session.Record, key string) (Snapshot, error) {
	u, err := r.unit(key)
	if err != nil {
		return Snapshot{}, err
	}
	if rec.Err != nil {
		return Snapshot{}, rec.Err
	}
	s, done := u.checkpoint(&rec)
	if done {
		return s, nil
	}
	return u.read(ctx, store, &rec, s, &decoder{})
}

// Result is the outcome of one record of a ReadAll.
type Result struct {
	Snapshot Snapshot
	Err      error // as of Read
}

// ReadAll is Read for the records of a listing: one result for each, in order. At
// most ReadLimit logs are read at once; records whose checkpoint is exact need
// none. A record that fails does not hide the others. The error is ErrUnknownUnit
// or, whatever was read by then, the cause of ctx's end.
func (r *Registry) ReadAll(ctx context.Context, store session.Store, recs []session.Record, key string) ([]Result, error) {
	u, err := r.unit(key)
	if err != nil {
		return nil, err
	}
	out := make([]Result, len(recs))
	var cold []int
	for i := range recs {
		done := true
		if out[i].Err = recs[i].Err; out[i].Err == nil {
			out[i].Snapshot, done = u.checkpoint(&recs[i])
		}
		if !done {
			cold = append(cold, i)
		}
	}
	dec := &decoder{}
	err = bounded(ctx, len(cold), func(n int) {
		res := &out[cold[n]]
		res.Snapshot, res.Err = u.read(ctx, store, &recs[cold[n]], res.Snapshot, dec)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// bounded calls fn for the numbers below n, at most ReadLimit at once, and returns
// when all calls have returned. After ctx's end it begins no more and returns the
// cause.
func bounded(ctx context.Context, n int, fn func(i int)) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(ReadLimit, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				fn(i)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Fold returns a unit's value for a session in memory, from its own events as
// they stand at the call. For one that is asked again and again see Follow. ctx bounds
// the reading of a log that is not in memory yet.
func (r *Registry) Fold(ctx context.Context, s *session.Session, key string) (Snapshot, error) {
	u, err := r.unit(key)
	if err != nil {
		return Snapshot{}, err
	}
	if err := s.Load(ctx); err != nil {
		return Snapshot{}, fmt.Errorf("fold session %s: %w", s.ID(), err)
	}
	h := s.Header()
	snap := Snapshot{Value: u.Init(&h), AsOf: h.SeedLength - 1, unit: u}
	for e := range s.Events(h.SeedLength) {
		if err := u.move(&snap, &e, e.Payload()); err != nil {
			return Snapshot{}, &session.CorruptError{ID: h.ID, Seq: e.Seq, Err: err}
		}
	}
	return snap, nil
}

// checkpoint returns the record's checkpoint, or the initial value where it has
// none to trust. done says that the log needs not be read.
func (u *Unit) checkpoint(rec *session.Record) (s Snapshot, done bool) {
	h := &rec.Header
	if c, ok := rec.Cell(u.Key); ok && c.Version == u.Version && c.Seq >= h.SeedLength && string(c.Value) != "null" {
		if v, err := u.parse(h, c.Value); err == nil {
			s = Snapshot{Value: v, AsOf: c.Seq, unit: u}
			return s, c.Seq == rec.Head-1 || u.Final != nil && u.Final(h, v)
		}
	}
	return Snapshot{Value: u.Init(h), AsOf: h.SeedLength - 1, unit: u}, rec.Head <= h.SeedLength
}

// exact returns the value of a record's checkpoint that stands at the head of its log.
func (u *Unit) exact(rec *session.Record) (v Value, ok bool) {
	c, ok := rec.Cell(u.Key)
	if !ok || c.Version != u.Version || c.Seq != rec.Head-1 {
		return nil, false
	}
	v = u.Init(&rec.Header)
	if text, err := u.encode(v); err == nil && string(text) == string(c.Value) {
		return v, true // many values are never more than that, and some are null
	}
	v, err := u.parse(&rec.Header, c.Value)
	return v, err == nil && string(c.Value) != "null"
}

// read moves s over the rest of the stored log.
func (u *Unit) read(ctx context.Context, store session.Store, rec *session.Record, s Snapshot, dec *decoder) (Snapshot, error) {
	id := rec.Header.ID
	for e, err := range store.ReadFrom(ctx, id, s.AsOf+1) {
		if err != nil {
			return Snapshot{}, fmt.Errorf("read %s of session %s: %w", u.Key, id, err)
		}
		if e.Seq != s.AsOf+1 {
			return Snapshot{}, &session.CorruptError{ID: id, Seq: e.Seq, Err: fmt.Errorf("expected seq %d", s.AsOf+1)}
		}
		var p session.Payload
		if u.concerns(e.Type) {
			if p, err = dec.payload(ctx, e); err != nil {
				return Snapshot{}, &session.CorruptError{ID: id, Seq: e.Seq, Err: err}
			}
		}
		if err := u.move(&s, &e, p); err != nil {
			return Snapshot{}, &session.CorruptError{ID: id, Seq: e.Seq, Err: err}
		}
	}
	if ctx.Err() != nil {
		return Snapshot{}, context.Cause(ctx)
	}
	if s.AsOf < rec.Head-1 {
		return Snapshot{}, &session.CorruptError{ID: id, Seq: s.AsOf + 1, Err: fmt.Errorf("the log ends before its %d events", rec.Head)}
	}
	s.Value = u.detach(&rec.Header, s.Value)
	return s, nil
}

// move applies the next event.
func (u *Unit) move(s *Snapshot, e *session.Event, p session.Payload) error {
	if u.concerns(e.Type) {
		v, err := u.step(s.Value, e, p)
		if err != nil {
			return err
		}
		s.Value = v
	}
	s.AsOf = e.Seq
	return nil
}

// decoder decodes payloads of events that a store yielded, and makes what it
// needs for that when it meets the first.
type decoder struct {
	once sync.Once
	reg  *session.Registry
	err  error
}

func (d *decoder) payload(ctx context.Context, e session.Event) (session.Payload, error) {
	if p := e.Payload(); p != nil {
		return p, nil
	}
	d.once.Do(func() { d.reg, d.err = session.NewRegistry(ctx, session.Config{}) })
	if d.err != nil {
		return nil, d.err
	}
	p, err := d.reg.PayloadOf(e)
	var unknown *session.UnsupportedError
	if errors.As(err, &unknown) {
		// A type that an embedding program added is for its unit to read.
		return &session.Opaque{Type: e.Type, Data: e.Data(), Skip: e.Ignorable}, nil
	}
	return p, err
}
