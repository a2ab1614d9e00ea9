package subagent_test

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent"
)

// fatal is what the helpers need of a test, be it an ordinary one or one of rapid.
type fatal interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// lab is the place of a listing: live sessions, a store or none, and units.
type lab struct {
	fatal
	ctx   context.Context
	store *probe // nil: live only
	reg   *session.Registry
	units *projection.Registry
	clock int64
	ends  map[session.ID]func(context.Context) error // of what is live
	subagent.Lister
}

func newLab(f fatal, ctx context.Context, store session.Store, more ...projection.Unit) *lab {
	f.Helper()
	l := &lab{fatal: f, ctx: ctx, clock: 1000, ends: map[session.ID]func(context.Context) error{}}
	var err error
	if l.units, err = projection.NewRegistry(append(projection.BuiltIn(), more...)...); err != nil {
		f.Fatal(err)
	}
	cfg := session.Config{NewCells: l.units.NewCells, Now: func() time.Time { l.clock++; return time.UnixMilli(l.clock) }, WriteDelay: time.Hour}
	if store != nil {
		l.store = &probe{Store: store}
		cfg.Store = l.store
	}
	if l.reg, err = session.NewRegistry(ctx, cfg); err != nil {
		f.Fatal(err)
	}
	l.Lister = subagent.Lister{Sessions: l.reg, Projections: l.units}
	return l
}

// labs runs a test on every kind of store; without one, everything stays live.
func labs(t *testing.T, fn func(t *testing.T, l *lab)) {
	t.Helper()
	for _, kind := range []string{"live only", "memory", "sqlite"} {
		t.Run(kind, func(t *testing.T) { fn(t, newLab(t, t.Context(), openStore(t, kind))) })
	}
}

func openStore(t *testing.T, kind string) session.Store {
	t.Helper()
	var store session.Store
	switch kind {
	case "live only":
		return nil
	case "memory":
		store = memory.New()
	case "sqlite":
		var err error
		store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), sqlite.Options{Synchronous: sqlite.Normal})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return store
}

// childOf describes a session of the given parent that was delegated to.
func childOf(id, parent string) session.New {
	return session.New{ID: session.ID(id), ParentSession: session.ID(parent), Root: "root", Origin: session.OriginSubagent, DelegationDepth: 1}
}

// ordinary describes a session that names a parent but was not delegated to.
func ordinary(id, parent string) session.New {
	return session.New{ID: session.ID(id), ParentSession: session.ID(parent), Root: "root"}
}

// live enters a session and appends to it.
func (l *lab) live(n session.New, payloads ...session.Payload) *session.Session {
	l.Helper()
	s, err := l.reg.Prepare(l.ctx, n)
	if err != nil {
		l.Fatal(err)
	}
	end, err := l.reg.Enter(s)
	if err != nil {
		l.Fatal(err)
	}
	l.ends[s.ID()] = end
	l.append(s, payloads...)
	return s
}

func (l *lab) append(s *session.Session, payloads ...session.Payload) {
	l.Helper()
	for _, p := range payloads {
		d := session.Draft{Payload: p}
		if _, err := s.Append(d); err != nil {
			l.Fatal(err)
		}
	}
}

// end takes a live session out; a store keeps it.
func (l *lab) end(id session.ID) {
	l.Helper()
	end := l.ends[id]
	delete(l.ends, id)
	if err := end(l.ctx); err != nil {
		l.Fatalf("end %s: %v", id, err)
	}
}

// cold stores a session, or leaves it live where there is no store. It reports
// whether it is live.
func (l *lab) cold(n session.New, payloads ...session.Payload) bool {
	l.Helper()
	l.live(n, payloads...)
	if l.store == nil {
		return true
	}
	l.end(n.ID)
	return false
}

// raw stores a session as it is, whatever the rules say.
func (l *lab) raw(h session.Header, cells []session.Checkpoint, lines ...string) {
	l.Helper()
	l.clock++
	h.CreatedAt = l.clock
	if h.Origin == "" {
		h.Origin = session.OriginSubagent
	}
	var events []session.Event
	for i, line := range lines {
		events = append(events, rawEvent(int64(i), h.CreatedAt, line))
	}
	w, err := l.store.Create(l.ctx, h, session.Meta{Root: "root"}, events, cells)
	if err != nil {
		l.Fatal(err)
	}
	if err := w.Close(l.ctx); err != nil {
		l.Fatal(err)
	}
}

// rawEvent makes an event of a line of a raw log.
func rawEvent(seq, at int64, line string) session.Event {
	typ, data, _ := strings.Cut(line, " ")
	return session.RawEvent(session.Event{Type: session.Type(typ), Seq: seq, Time: at}, []byte(data))
}

// allListings calls every listing and returns the errors.
func allListings(l subagent.Lister, ctx context.Context, id session.ID, p subagent.ListPage) []error {
	_, children := l.ListChildren(ctx, id)
	_, descendants := l.ListDescendants(ctx, id)
	_, someChildren := l.PageChildren(ctx, id, p)
	_, someDescendants := l.PageDescendants(ctx, id, p)
	return []error{children, descendants, someChildren, someDescendants}
}

// The lines of raw logs.
const (
	turnStart = `turn/start {"turn":1}`
	turnEnd   = `turn/end {"turn":1,"reason":{"kind":"completed"}}`
	oneShot   = `subagent/descriptor {"version":2,"mode":"one-shot","provider":"spawn","label":"raw"}`
	newer     = `subagent/descriptor {"version":3,"mode":"one-shot","provider":"spawn","label":"secret"}`
	malformed = `subagent/descriptor {"version":2,"mode":"odd","provider":"spawn","label":"secret"}`
)

func descriptorOf(mode string, label ...string) session.Payload {
	d := session.Descriptor{Mode: mode, Provider: "gone"}
	if len(label) > 0 {
		d.Label = &label[0]
	}
	p, err := session.NewDescriptor(d)
	if err != nil {
		panic(err) // a mistake in the test
	}
	return p
}

// worked is a finished turn of a child with that label.
func worked(mode string, label ...string) []session.Payload {
	return []session.Payload{&session.TurnStart{Turn: 1}, descriptorOf(mode, label...), &session.TurnEnd{Turn: 1, Kind: session.EndCompleted}}
}

// rowLines tells rows in words.
func rowLines(rows []subagent.Row) []string {
	out := []string{}
	for _, r := range rows {
		words := []string{string(r.Kind), string(r.ID)}
		if r.Kind == subagent.RowChild {
			words = append(words, r.Mode, string(r.Activity))
			if r.Label != nil {
				words = append(words, fmt.Sprintf("%q", *r.Label))
			}
			if r.HasChildren {
				words = append(words, "+")
			}
			if r.Reason != "" {
				words = append(words, "WITH REASON")
			}
		} else {
			words = append(words, string(r.Reason))
			if r.Mode != "" || r.Label != nil || r.Activity != "" || r.HasChildren || r.Summary() != (projection.Summary{}) {
				words = append(words, "WITH DETAILS")
			}
		}
		if r.Depth > 0 || r.Parent != "" {
			words = append(words, fmt.Sprintf("%d<%s", r.Depth, r.Parent))
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

// wantRows compares rows with their lines.
func wantRows(t *testing.T, what string, rows []subagent.Row, err error, lines ...string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if diff := cmp.Diff(append([]string{}, lines...), rowLines(rows)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (l *lab) wantChildren(t *testing.T, what string, parent session.ID, lines ...string) {
	t.Helper()
	rows, err := l.ListChildren(t.Context(), parent)
	wantRows(t, what, rows, err, lines...)
}

// probe is a store that counts its readers and can be made to wait or fail.
type probe struct {
	session.Store

	mu       sync.Mutex // guards the counts
	lists    int
	inspects []session.ID
	reads    int

	// before is called before a read, with its name and what it reads, after behind
	// it; an error fails it.
	before, after func(op string, id session.ID) error
	// alter may change what is read.
	alter func(*session.Record, *iter.Seq2[session.Event, error])
}

func (p *probe) count(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
}

// reset forgets the counts.
func (p *probe) reset() { p.count(func() { p.lists, p.inspects, p.reads = 0, nil, 0 }) }

func call(fn func(string, session.ID) error, op string, id session.ID) error {
	if fn == nil {
		return nil
	}
	return fn(op, id)
}

func (p *probe) List(ctx context.Context, f session.Filter, page session.Page) (session.Listing, error) {
	p.count(func() { p.lists++ })
	if err := call(p.before, "list", f.Parent); err != nil {
		return session.Listing{}, err
	}
	l, err := p.Store.List(ctx, f, page)
	if err == nil {
		err = call(p.after, "list", f.Parent)
	}
	return l, err
}

func (p *probe) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	p.count(func() { p.inspects = append(p.inspects, id) })
	if err := call(p.before, "inspect", id); err != nil {
		return session.Record{}, nil, err
	}
	rec, events, err := p.Store.Inspect(ctx, id)
	if err == nil && p.alter != nil {
		p.alter(&rec, &events)
	}
	if err == nil {
		err = call(p.after, "inspect", id)
	}
	return rec, events, err
}

func (p *probe) ReadFrom(ctx context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	p.count(func() { p.reads++ })
	return p.Store.ReadFrom(ctx, id, seq)
}
