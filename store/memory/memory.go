// Package memory keeps sessions in this process's memory, with the semantics of
// a store on disk: for tests, demonstrations, and programs that need no more.
//
// Of an event it keeps the bytes, which it shares and does not copy, and not what was
// decoded: that is memory which a log at rest does not need. A Store value is an
// owner; several on one Backend stand for several processes. There is no
// goroutine: an owner counts as alive until it is closed, or until a test says
// otherwise with Kill or Age. Floor 6.
package memory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"time"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// Store is a session.Store in memory. It is safe for concurrent use.
type Store struct {
	b      *Backend
	id     string
	socket string
	now    func() time.Time

	// The backend's mutex guards these.
	closed bool
	dead   bool
	beat   time.Time // zero: renewed all the time
}

// Option configures a Store.
type Option func(*Store)

// WithSocket names the control socket that the store's owner tells others.
func WithSocket(addr string) Option { return func(s *Store) { s.socket = addr } }

// WithClock replaces time.Now.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// New returns a store on a backend of its own.
func New(opts ...Option) *Store { return NewBackend().Open(opts...) }

// Open returns a further store, another owner, on the backend.
func (b *Backend) Open(opts ...Option) *Store {
	b.mu.Lock()
	b.owners++
	s := &Store{b: b, id: "memory-" + strconv.Itoa(b.owners), now: time.Now}
	b.mu.Unlock()
	for _, o := range opts {
		o(s)
	}
	return s
}

// Kill makes the others see the store's process as gone, as a crash would. It is
// for tests.
func (s *Store) Kill() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.dead = true
}

// Age makes the store's last heartbeat lie d in the past, as if its process had
// been paused. Check renews it. It is for tests.
func (s *Store) Age(d time.Duration) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.beat = s.now().Add(-d)
}

// Damage makes a stored session's row unreadable with the given error, which is
// to be a *session.CorruptError or *session.UnsupportedError. It is for tests.
func (b *Backend) Damage(id session.ID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.sessions[id]; r != nil {
		r.damaged = err
	}
}

// Backend returns what the store keeps its sessions in.
func (s *Store) Backend() *Backend { return s.b }

// heartbeat, alive, owning and snapshot need the mutex.
func (s *Store) heartbeat(now time.Time) time.Time {
	if s.beat.IsZero() {
		return now
	}
	return s.beat
}

func (s *Store) alive(now time.Time) bool {
	return !s.dead && !s.closed && now.Sub(s.heartbeat(now)) < takeoverAge
}

func (s *Store) owning(now time.Time) bool { return now.Sub(s.heartbeat(now)) < deadline }

func (s *Store) snapshot(now time.Time) session.Owner {
	return session.Owner{ID: s.id, Host: "memory", PID: os.Getpid(), Socket: s.socket, Heartbeat: s.heartbeat(now)}
}

// begin takes the mutex for a call, unless the call is moot.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.b.mu.Lock()
	if s.closed {
		s.b.mu.Unlock()
		return session.ErrClosed
	}
	return nil
}

// Create implements session.Store.
func (s *Store) Create(ctx context.Context, h session.Header, meta session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	switch {
	case h.ID == "":
		return nil, errors.New("create session: the header has no id")
	case meta.Prefix.Len < 0 || (meta.Prefix.Len > 0 && meta.Prefix.ID == ""):
		return nil, fmt.Errorf("create session %s: prefix of %d events of %q makes no sense", h.ID, meta.Prefix.Len, meta.Prefix.ID)
	}
	if meta.Root == "" {
		meta.Root = h.ID
	}
	if err := contiguous(h.ID, meta.Prefix.Len, first); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	if s.b.sessions[h.ID] != nil {
		return nil, fmt.Errorf("create session %s: %w", h.ID, session.ErrExists)
	}
	prefix, err := s.b.resolve(h.ID, meta.Prefix)
	if err != nil {
		return nil, err
	}
	now := s.now()
	if err := s.b.claimTree(s, h.ID, meta.Root, now); err != nil {
		return nil, err
	}
	r := &row{
		header: h, root: meta.Root, prefix: prefix, prefixLen: meta.Prefix.Len,
		updated: now.UnixMilli(),
	}
	r.add(first)
	r.put(cells)
	s.b.add(r)
	return r.take(s, h.ID), nil
}

// resolve finds the session whose own event the last one of a prefix is.
func (b *Backend) resolve(id session.ID, p session.PrefixRef) (*row, error) {
	if p.Len == 0 {
		return nil, nil
	}
	r := b.sessions[p.ID]
	switch {
	case r == nil:
		return nil, &session.PrefixError{ID: id, Prefix: p, Head: -1}
	case r.head() < p.Len:
		return nil, &session.PrefixError{ID: id, Prefix: p, Head: r.head()}
	}
	for r.prefix != nil && p.Len <= r.prefixLen {
		r = r.prefix
	}
	return r, nil
}

// Open implements session.Store (core D18).
func (s *Store) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	r := s.b.sessions[id]
	if r == nil {
		return nil, fmt.Errorf("open session %s: %w", id, session.ErrNotFound)
	}
	if r.owner == s {
		return nil, fmt.Errorf("open session %s: this process has it open: %w", id, session.ErrExists)
	}
	if err := s.b.claimTree(s, id, r.root, s.now()); err != nil {
		return nil, err
	}
	return r.take(s, id), nil
}

// Inspect implements session.Store.
func (s *Store) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	if err := s.begin(ctx); err != nil {
		return session.Record{}, nil, err
	}
	defer s.b.mu.Unlock()
	r := s.b.sessions[id]
	if r == nil {
		return session.Record{}, nil, fmt.Errorf("inspect session %s: %w", id, session.ErrNotFound)
	}
	if r.damaged != nil {
		return session.Record{}, nil, r.damaged
	}
	return r.record(s.now(), true), r.segments(0).all(ctx), nil
}

// ReadFrom implements session.Store.
func (s *Store) ReadFrom(ctx context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	err := s.begin(ctx)
	if err == nil {
		defer s.b.mu.Unlock()
		if r := s.b.sessions[id]; r != nil {
			return r.segments(max(seq, 0)).all(ctx)
		}
		err = session.ErrNotFound
	}
	err = fmt.Errorf("read session %s: %w", id, err)
	return func(yield func(session.Event, error) bool) { yield(session.Event{}, err) }
}

func (g *segment) all(ctx context.Context) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for ; g != nil; g = g.next {
			if err := ctx.Err(); err != nil {
				yield(session.Event{}, err)
				return
			}
			for _, b := range g.batches {
				if b[0].Seq >= g.end {
					break
				}
				for _, e := range b {
					if e.Seq >= g.from && e.Seq < g.end && !yield(e, nil) {
						return
					}
				}
			}
		}
	}
}

// Exists implements session.Store.
func (s *Store) Exists(ctx context.Context, id session.ID) (bool, error) {
	if err := s.begin(ctx); err != nil {
		return false, err
	}
	defer s.b.mu.Unlock()
	return s.b.sessions[id] != nil, nil
}

// Delete implements session.Store.
func (s *Store) Delete(ctx context.Context, id session.ID) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.b.mu.Unlock()
	r := s.b.sessions[id]
	if r == nil {
		return fmt.Errorf("delete session %s: %w", id, session.ErrNotFound)
	}
	now := s.now()
	for o := range r.tree.owners {
		if o == s || o.alive(now) {
			return fmt.Errorf("delete session %s: %w (%s)", id, session.ErrInUse, o.snapshot(now))
		}
	}
	if r.owner != nil {
		r.fence()
	}
	s.b.bequeath(r)
	s.b.remove(r)
	return nil
}

// Close implements session.Store.
func (s *Store) Close(context.Context) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, r := range s.b.sessions {
		if r.owner == s {
			r.release()
		}
	}
	return nil
}

// contiguous checks that events follow on first.
func contiguous(id session.ID, first int64, events []session.Event) error {
	for i := range events {
		if want := first + int64(i); events[i].Seq != want {
			return fmt.Errorf("session %s: events to store are not contiguous: seq %d where %d was due", id, events[i].Seq, want)
		}
	}
	return nil
}

// errFound ends a walk that has what it looked for.
var errFound = errors.New("found")

// stateOf returns the string member "state" of a CellState checkpoint, or "".
func stateOf(value []byte) string {
	state := ""
	// Whatever else the object holds is not the store's business.
	_ = jsonx.ReadObject(value, func(key string, raw []byte) (err error) {
		if key == "state" {
			if state, err = jsonx.String(raw); err == nil {
				err = errFound
			}
		}
		return err
	})
	return state
}

var _ session.Store = (*Store)(nil)
