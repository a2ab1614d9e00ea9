package session

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/internal/hooks"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// Config configures a Registry. The zero value is a live-only registry.
type Config struct {
	// Store keeps the logs; nil keeps them in memory only.
	Store Store
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// NewCells makes the checkpoint cells of a session, or is nil.
	NewCells func(h *Header) Cells
	// Validators may veto an append before it is committed (core S4). They run
	// under the log's lock, must not call the session, and must be quick.
	Validators []Validator
	// ExtraTypes adds event types to the vocabulary (core S8).
	ExtraTypes []ExtraType
	// CheckpointFrom is from how many events on a session that ends at rest leaves a
	// checkpoint, so that it is opened without its log being read; 0 is CheckpointFrom, and
	// below 0 none leaves any.
	CheckpointFrom int64
	// WriteDelay is how long write-behind may hold events back; 0 is WriteDelay.
	WriteDelay time.Duration
	// Logger gets what nobody can be told otherwise; nil discards it.
	Logger *slog.Logger
}

// Validator checks an event before it is committed.
type Validator func(h *Header, e Event) error

// Hooks are called synchronously, in the order of their registration, with
// panics contained. They may call non-blocking operations of the session.
type Hooks struct {
	// Created runs when a session becomes live; an error vetoes it (core S29).
	Created func(*Session) error
	// Disposed runs when a session that was announced left the registry.
	Disposed func(*Session)
	// Stored runs after the events from seq from up to to were stored, in order
	// for each session.
	Stored func(s *Session, from, to int64)
	// Fenced runs when another process took the session over.
	Fenced func(*Session)
	// Flush takes part in Registry.Flush.
	Flush func(context.Context, *Session) error
}

// Registry prepares sessions and holds the live ones (core S27–S31, D1–D8). It
// is safe for concurrent use.
type Registry struct {
	cfg   Config
	types typeTable
	// typesSum tells the vocabulary from others.
	typesSum int64
	hooks    hookList
	ctx      context.Context

	mu       sync.Mutex // guards following
	live     map[ID]*Session
	retiring map[ID]*Session      // left live, but not all of it is stored yet
	busy     map[ID]chan struct{} // ids being prepared, live or retiring; nil until one waits, closed when free
	closed   bool
}

// NewRegistry returns a registry. ctx carries values for writes that nobody
// waits for; its end has no effect. An error names an invalid extra type.
func NewRegistry(ctx context.Context, cfg Config) (*Registry, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.WriteDelay == 0 {
		cfg.WriteDelay = WriteDelay
	}
	if cfg.CheckpointFrom == 0 {
		cfg.CheckpointFrom = CheckpointFrom
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	types, err := newTypeTable(cfg.ExtraTypes)
	if err != nil {
		return nil, err
	}
	return &Registry{
		cfg: cfg, types: types, typesSum: types.sum(), ctx: context.WithoutCancel(ctx), hooks: hookList{log: cfg.Logger},
		live: map[ID]*Session{}, retiring: map[ID]*Session{}, busy: map[ID]chan struct{}{},
	}, nil
}

// nowMS is the time for the log, within the numbers that a log can hold: a clock that
// was never set must not make a log that nobody can read.
func (r *Registry) nowMS() int64 { return min(max(r.cfg.Now().UnixMilli(), 0), jsonx.MaxSafe) }

// Store returns the registry's store, or nil.
func (r *Registry) Store() Store { return r.cfg.Store }

// NewID returns a fresh random id. It sorts by time of creation and is lower
// case, so that it survives every file system (core S31).
func NewID() ID {
	// Without randomness, the one failure there is, nothing that follows could be trusted.
	return ID(uuid.Must(uuid.NewV7()).String())
}

// AddHooks registers hooks and returns a function that removes them.
func (r *Registry) AddHooks(h Hooks) (remove func()) { return r.hooks.Add(&h) }

// New describes a session to be prepared.
type New struct {
	// ID is the session's id; "" mints one.
	ID ID
	// Cwd, ParentSession, Origin, DelegationDepth and AgentPreset go into the header.
	Cwd             string
	ParentSession   ID
	Origin          string
	DelegationDepth int64
	AgentPreset     string
	// Root is the id of the tree's root; "" makes the session a root itself.
	Root ID
	// Seed is what the session inherits, or nil. The owner of a Prefix is stored up
	// to the cut before the session is built, since a store takes no other (design § 4).
	Seed *Seed
	// Deferred keeps everything out of the store until Establish: a session that
	// never came to be leaves nothing behind (design § 4).
	Deferred bool
}

// Prepare builds an unpublished session: it can be appended to, but nobody can
// find it and no observer sees it (core S27). Whoever prepared it enters it, or
// calls Abandon. The id is reserved from here on; ErrExists says it is taken. ctx
// bounds the waits for the store.
func (r *Registry) Prepare(ctx context.Context, n New) (*Session, error) {
	id := n.ID
	if id == "" {
		id = NewID()
	}
	if err := r.reserve(id); err != nil {
		return nil, err
	}
	s, err := r.fresh(ctx, n, id)
	if err != nil {
		r.release(id)
		return nil, err
	}
	return s, nil
}

// fresh builds a session whose id was reserved. The store is asked before there is a
// session that could store itself: it may take longer than the write-behind window.
func (r *Registry) fresh(ctx context.Context, n New, id ID) (*Session, error) {
	if r.cfg.Store != nil && n.ID != "" {
		var stored bool
		err := contain("store", func() (err error) {
			stored, err = r.cfg.Store.Exists(ctx, id)
			return err
		})
		if err == nil && stored {
			err = fmt.Errorf("session %s: %w", id, ErrExists)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := r.storePrefix(ctx, n.Seed); err != nil {
		return nil, fmt.Errorf("session %s: seed: %w", id, err)
	}
	return r.build(n, id)
}

// storePrefix makes the owner of a prefix durable up to the cut, also one that is on
// its way out. One that is gone was stored when it left, or the store will refuse its
// heir.
func (r *Registry) storePrefix(ctx context.Context, seed *Seed) error {
	if r.cfg.Store == nil || seed == nil || seed.Prefix.Len() == 0 {
		return nil
	}
	p := seed.Prefix
	r.mu.Lock()
	owner := r.live[p.owner]
	if owner == nil {
		owner = r.retiring[p.owner]
	}
	r.mu.Unlock()
	if owner == nil {
		return nil
	}
	if owner.Deferred() {
		return fmt.Errorf("session %s, whose events it is, has nothing stored yet", p.owner)
	}
	return owner.FlushTo(ctx, p.Len())
}

// fewEvents are those of a one-shot child that calls no tool.
const fewEvents = 12

func (r *Registry) build(n New, id ID) (*Session, error) {
	s := &Session{reg: r, root: n.Root, deferred: n.Deferred, header: Header{
		Version: FormatVersion, ID: id, CreatedAt: r.nowMS(), Cwd: n.Cwd, ParentSession: n.ParentSession,
		Origin: n.Origin, DelegationDepth: n.DelegationDepth, AgentPreset: n.AgentPreset,
	}}
	if s.root == "" {
		s.root = id
	}
	if err := s.header.check(); err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	if r.cfg.NewCells != nil {
		s.cells = r.cfg.NewCells(&s.header)
	}
	s.events = make([]Event, 0, fewEvents)
	if n.Seed == nil {
		return s, nil
	}
	if err := s.seed(n.Seed); err != nil {
		return nil, fmt.Errorf("session %s: seed: %w", id, err)
	}
	s.durable = s.base.Len()
	if err := s.endSeed(); err != nil {
		return nil, err
	}
	s.firstLive = s.g.head
	return s, nil
}

// endSeed marks the end of what the session was constructed with, unless the log
// ends in such a mark already (core S26).
func (s *Session) endSeed() error {
	s.mu.Lock()
	last, _ := s.tipLocked()
	s.mu.Unlock()
	if last.typ == TypeEndSeed {
		return nil
	}
	_, err := s.Append(Draft{Payload: &EndSeed{}})
	return err
}

// PrepareStored opens a stored session for going on with it: it takes ownership,
// reads the log, commits the repair of a crash, and returns the session
// unpublished (core S35–S39, D8). A second prepare of the same id waits for the
// first to publish or abandon, and then finds it live (ErrExists).
//
// Where a checkpoint of the session stands at the head of its log, as a long one that
// ended at rest leaves it, the log is not read now: see Session.Load.
//
// Errors: ErrNotFound, ErrIncomplete, *OwnedError, *CorruptError, *UnsupportedError,
// *InvariantError, the cause of ctx's end.
func (r *Registry) PrepareStored(ctx context.Context, id ID) (*Session, error) {
	if r.cfg.Store == nil {
		return nil, fmt.Errorf("session %s: no store: %w", id, ErrNotFound)
	}
	if err := r.reserveWait(ctx, id); err != nil {
		return nil, err
	}
	var s *Session
	err := contain("store", func() (err error) {
		s, err = r.open(ctx, id)
		return err
	})
	if err != nil {
		r.release(id)
		return nil, err
	}
	return s, nil
}

func (r *Registry) open(ctx context.Context, id ID) (_ *Session, err error) {
	w, err := r.cfg.Store.Open(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	opened := false
	var s *Session
	defer func() {
		if !opened { // after a panic of the store too
			if s != nil {
				s.abandon()
			}
			err = errors.Join(err, contain("store", func() error { return w.Close(context.WithoutCancel(ctx)) }))
		}
	}()
	rec, events, err := r.cfg.Store.Inspect(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if err := rec.Incomplete(); err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	if s = r.thaw(&rec); s == nil {
		if s, err = r.rebuild(rec, events, false); err != nil {
			return nil, err
		}
	}
	s.writer, s.durable, s.resumed = w, s.g.head, true
	s.listen(w)
	if err = s.repair(ctx); err != nil {
		return nil, err
	}
	s.firstLive = s.g.head
	if err = s.endSeed(); err != nil {
		return nil, err
	}
	opened = true
	return s, nil
}

// rebuild replays a stored log into a session.
// With checking set the session keeps what the rules need and nothing else: not
// the events, not the messages.
func (r *Registry) rebuild(rec Record, events iter.Seq2[Event, error], checking bool) (*Session, error) {
	s, err := r.blank(rec, checking)
	if err != nil {
		return nil, err
	}
	if !checking {
		s.expect(rec.Head)
	}
	if rec.Head >= aheadFrom {
		events = readAhead(events)
	}
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		if err := s.take(e); err != nil {
			return nil, err
		}
	}
	s.g.replay = false
	return s, s.whole()
}

// blank returns a session that takes a log from the beginning.
func (r *Registry) blank(rec Record, checking bool) (*Session, error) {
	s := &Session{reg: r, root: rec.Meta.Root, header: rec.Header, checking: checking}
	if rec.Header.Version != FormatVersion {
		return nil, versionError(rec.Header.ID, rec.Header.Version)
	}
	if r.cfg.NewCells != nil {
		s.cells = r.cfg.NewCells(&s.header)
	}
	s.g.replay = true
	return s, nil
}

// expect makes room for a log of that many events.
func (s *Session) expect(events int64) {
	s.events = make([]Event, 0, events+8)
	s.surf.expect(events)
}

// whole refuses a log that ends before what it says it inherited.
func (s *Session) whole() error {
	if s.g.head < s.header.SeedLength {
		return &CorruptError{ID: s.header.ID, Seq: s.g.head, Err: fmt.Errorf("seedLength is %d", s.header.SeedLength)}
	}
	return nil
}

// reserve claims an id for a session under construction.
func (r *Registry) reserve(id ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("session %s: registry: %w", id, ErrClosed)
	}
	if _, taken := r.busy[id]; taken {
		return fmt.Errorf("session %s: %w", id, ErrExists)
	}
	r.busy[id] = nil
	return nil
}

// reserveWait is reserve that waits while the id is being prepared or retired.
func (r *Registry) reserveWait(ctx context.Context, id ID) error {
	for {
		r.mu.Lock()
		ch, taken := r.busy[id]
		closed, live := r.closed, r.live[id] != nil
		if !taken && !closed {
			r.busy[id] = nil
			r.mu.Unlock()
			return nil
		}
		if taken && ch == nil {
			ch = make(chan struct{})
			r.busy[id] = ch
		}
		r.mu.Unlock()
		switch {
		case closed:
			return fmt.Errorf("session %s: registry: %w", id, ErrClosed)
		case live:
			return fmt.Errorf("session %s: %w", id, ErrExists)
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *Registry) release(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch := r.busy[id]; ch != nil {
		close(ch)
	}
	delete(r.busy, id)
}

// Abandon gives up a prepared session that was not entered. What a store holds
// of it stays as it is.
func (r *Registry) Abandon(ctx context.Context, s *Session) error {
	w := s.abandon()
	defer r.release(s.header.ID)
	if w == nil {
		return nil
	}
	return contain("store", func() error { return w.Close(context.WithoutCancel(ctx)) })
}

// abandon ends the log without storing what is pending, and returns its writer.
func (s *Session) abandon() Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.disarmLocked()
	s.broadcast()
	s.idleLocked()
	return s.writer
}

// Enter makes a prepared session live. It returns the function that ends it:
// detach takes exactly this session out of the registry, tells Disposed hooks if
// it was announced, stores what is pending, and gives up ownership; it is
// idempotent, every caller gets the same result, and the id stays reserved until
// it is done (core S28, D6).
func (r *Registry) Enter(s *Session) (detach func(context.Context) error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("session %s: registry: %w", s.header.ID, ErrClosed)
	}
	ch, prepared := r.busy[s.header.ID]
	if r.live[s.header.ID] != nil || !prepared {
		return nil, fmt.Errorf("session %s: %w", s.header.ID, ErrExists)
	}
	r.live[s.header.ID] = s
	// The reservation stays until the session has retired, but those who wait for
	// the preparation learn that it is over.
	if ch != nil {
		close(ch)
	}
	r.busy[s.header.ID] = nil
	l := &leaving{r: r, s: s}
	return l.detach, nil
}

// leaving is the end of a session's life, for all who ask for it.
type leaving struct {
	r *Registry
	s *Session

	mu     sync.Mutex
	began  bool
	over   bool
	done   chan struct{} // nil until a second one waits, closed when it is over
	result error
}

func (l *leaving) detach(ctx context.Context) error {
	l.mu.Lock()
	if !l.began {
		l.began = true
		l.mu.Unlock()
		err := l.r.detach(ctx, l.s)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over, l.result = true, err
		if l.done != nil {
			close(l.done)
		}
		return err
	}
	if !l.over && l.done == nil {
		l.done = make(chan struct{})
	}
	done := l.done
	l.mu.Unlock()
	if done != nil {
		<-done
	}
	return l.result
}

func (r *Registry) detach(ctx context.Context, s *Session) error {
	r.mu.Lock()
	delete(r.live, s.header.ID)
	r.retiring[s.header.ID] = s
	a := &s.announced
	tell := a.begun && !a.running
	a.detached = true
	r.mu.Unlock()
	if tell {
		r.hooks.disposed(s)
	}
	err := s.close(ctx)
	r.mu.Lock()
	delete(r.retiring, s.header.ID)
	r.mu.Unlock()
	r.release(s.header.ID)
	return err
}

// announcement is that of a session.
type announcement struct {
	begun    bool
	running  bool // the Created hooks are being told
	detached bool // the session left: the Disposed hooks come when those were told
}

// Announce tells the Created hooks of an entered session. An error is the first
// veto; the caller detaches then, which closes the pair. If a hook, or somebody
// else meanwhile, detached the session, the Disposed hooks are told when all
// Created hooks were, and the error is ErrNotLive (core S29).
func (r *Registry) Announce(s *Session) error {
	r.mu.Lock()
	if r.live[s.header.ID] != s {
		r.mu.Unlock()
		return fmt.Errorf("announce session %s: %w", s.header.ID, ErrNotLive)
	}
	a := &s.announced
	a.begun, a.running = true, true
	r.mu.Unlock()
	err := r.hooks.created(s)
	r.mu.Lock()
	a.running = false
	gone := a.detached
	r.mu.Unlock()
	if gone {
		r.hooks.disposed(s)
		if err == nil {
			err = ErrNotLive
		}
	}
	if err != nil {
		return fmt.Errorf("announce session %s: %w", s.header.ID, err)
	}
	return nil
}

// Get returns a live session.
func (r *Registry) Get(id ID) (*Session, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.live[id]
	return s, s != nil
}

// List returns the live sessions in order of creation time, then id.
func (r *Registry) List() []*Session {
	r.mu.Lock()
	list := make([]*Session, 0, len(r.live))
	for _, s := range r.live {
		list = append(list, s)
	}
	r.mu.Unlock()
	slices.SortFunc(list, func(a, b *Session) int { return CompareHeaders(&a.header, &b.header) })
	return list
}

// Resident returns, in no order, the live sessions and those that left the registry
// but are not done storing. So whatever of a session is to be kept is in it, or in
// the store as it is read afterwards, or in both: none falls through in between.
func (r *Registry) Resident() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*Session, 0, len(r.live)+len(r.retiring))
	for _, s := range r.live {
		list = append(list, s)
	}
	for _, s := range r.retiring {
		list = append(list, s)
	}
	return list
}

// CompareHeaders orders by creation time, then by the bytes of the id (core D34, seam GO-08).
func CompareHeaders(a, b *Header) int {
	switch {
	case a.CreatedAt < b.CreatedAt:
		return -1
	case a.CreatedAt > b.CreatedAt:
		return 1
	case a.ID < b.ID:
		return -1
	case a.ID > b.ID:
		return 1
	}
	return 0
}

// Flush makes a live session's events durable and lets the Flush hooks take
// part; it waits for all of them before it returns the first failure. It reports
// whether anybody took part: false means that nothing was stored, since there is
// no store (core S30, D5).
func (r *Registry) Flush(ctx context.Context, s *Session) (bool, error) {
	if live, ok := r.Get(s.header.ID); !ok || live != s {
		return false, fmt.Errorf("flush session %s: %w", s.header.ID, ErrNotLive)
	}
	took, hookErr := r.hooks.flush(ctx, s)
	if r.cfg.Store == nil {
		return took, hookErr
	}
	err := s.Flush(ctx)
	if err == nil {
		err = hookErr
	}
	return true, err
}

// Close refuses new sessions from now on and returns the sessions that are still
// live: whoever owns them detaches them before the store is closed (core D7).
func (r *Registry) Close() []*Session {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	return r.List()
}

// hookList dispatches hooks in order, to those that are registered when it begins.
type hookList struct {
	log *slog.Logger
	hooks.List[Hooks]
}

// contain turns a panic of somebody else's code into an error.
func contain(whose string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panicked: %v", whose, p)
		}
	}()
	return fn()
}

func (l *hookList) warn(name string, s *Session, err error) {
	if err != nil {
		l.log.Error("session hook failed", "hook", name, "session", string(s.header.ID), "error", err)
	}
}

func (l *hookList) created(s *Session) error {
	for _, h := range l.All() {
		if h.Created != nil {
			if err := contain("hook", func() error { return h.Created(s) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *hookList) disposed(s *Session) {
	for _, h := range l.All() {
		if h.Disposed != nil {
			l.warn("disposed", s, contain("hook", func() error { h.Disposed(s); return nil }))
		}
	}
}

func (l *hookList) stored(s *Session, from, to int64) {
	for _, h := range l.All() {
		if h.Stored != nil {
			l.warn("stored", s, contain("hook", func() error { h.Stored(s, from, to); return nil }))
		}
	}
}

func (l *hookList) fenced(s *Session) {
	for _, h := range l.All() {
		if h.Fenced != nil {
			l.warn("fenced", s, contain("hook", func() error { h.Fenced(s); return nil }))
		}
	}
}

func (l *hookList) flush(ctx context.Context, s *Session) (took bool, first error) {
	for _, h := range l.All() {
		if h.Flush != nil {
			took = true
			if err := contain("hook", func() error { return h.Flush(ctx, s) }); err != nil && first == nil {
				first = err
			}
		}
	}
	return took, first
}
