package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// Session is one log with the folds that follow it. See the package comment for
// its concurrency. A Session comes from a Registry.
type Session struct {
	reg    *Registry
	header Header
	root   ID
	base   *Prefix // what the log inherits, or nil
	// firstLive is the length of the log when this process constructed it (core
	// S24): on a resume that is the whole stored log.
	firstLive int64
	// checking marks a log that is only held against the rules (see Registry.Verify).
	checking bool
	// announced is guarded by the registry's lock.
	announced announcement

	mu sync.Mutex // guards following

	// While checking: the session opened a turn of its own.
	ran    bool
	closed bool

	events []Event // the events from seq from on
	from   int64   // base.Len(), or where the log stood when it was opened and not read
	cold   *cold   // of a log that was not read yet
	arena  []byte  // where payloads are encoded
	lean   int     // how many of events stay as they are, see leanLocked

	g       grammar
	surf    surface
	box     inbox
	hdr     *RequestHeader
	reqCtx  *RequestContext
	cut     cut // the state at the last turn/end
	own     *DescriptorEvent
	made    composition
	policy  *ApprovalPolicy
	sandbox *SandboxMode
	title   string
	spilled int64 // bytes of the own ToolSpill events
	epochs  Epochs
	end     *TurnEnd // the last own one, or nil
	endSeq  int64
	took    map[message.ID]bool // settlements; nil until there is one
	cells   Cells
	folds   []*watch

	signal chan struct{} // closed and replaced on every change someone waits for; may be nil

	// Write-behind. durable events are stored; writing says that one write is
	// under way, and wrote is closed when it ends.
	writer    Writer
	durable   int64
	free      int64 // events below it are claimable whatever is stored
	wrote     chan struct{}
	lost      error
	kept      int64          // the head at which a checkpoint to be opened from is stored, or 0
	losing    sync.WaitGroup // tells of a loss that the store found; close joins it
	timer     *time.Timer    // ends the write-behind window; nil while the log is quiet
	deferred  bool           // nothing may be stored before AppendEstablish
	writing   bool
	uncertain bool // the last write's outcome is not known
	resumed   bool // it was stored before this process prepared it
	withdrawn bool // nothing is stored any more (see Withdraw)
	armed     bool
}

// cut is what a Prefix shares: the log's length and folds right behind a turn/end.
type cut struct {
	len    int64
	turn   int64
	surf   surface
	hdr    *RequestHeader
	reqCtx *RequestContext

	policy  *ApprovalPolicy
	sandbox *SandboxMode
	title   string
}

// Cells computes the checkpoints that travel with a session's batches (core
// D25, D28, D29) over its own suffix: inherited events are the ancestor's.
// Package projection implements it. The methods run under the log's lock and
// must not call back.
type Cells interface {
	Fold
	// Take returns the cells that changed since they were last taken; each is as
	// of seq head-1. A cell that Untake was not called for counts as stored.
	Take(head int64) []Checkpoint
	// Untake says that the cells of the last Take were not stored.
	Untake()
}

// Draft is an event to be appended. A zero Op on a surface type means append.
type Draft struct {
	Payload Payload
	Op      SurfaceOp
	Sources []int64
}

// ID returns the session's id.
func (s *Session) ID() ID { return s.header.ID }

// Header returns the session's header.
func (s *Session) Header() Header { return s.header }

// Root returns the id of the tree's root.
func (s *Session) Root() ID { return s.root }

// Meta returns what a store keeps of the session beside its header.
func (s *Session) Meta() Meta {
	m := Meta{Root: s.root}
	if s.base != nil {
		m.Prefix = PrefixRef{ID: s.base.owner, Len: s.base.Len()}
	}
	return m
}

// FirstLive returns the length of the log when this process constructed it: the
// seq of the first event that can be live here (core S24).
func (s *Session) FirstLive() int64 { return s.firstLive }

// Append appends the drafts in one hold of the log: either all of them or, with
// an error, none. It returns the seq of the first. No flush cuts the hold apart.
//
// Payloads and what they point to must not be modified afterwards. Errors: an
// *InvariantError, an invalid payload, a Validator's veto, or ErrClosed; where the log was
// not loaded and a draft opens a turn or stands on the surface, those of Load.
func (s *Session) Append(drafts ...Draft) (int64, error) {
	return s.append(s.reg.nowMS(), drafts)
}

// AppendFunc is Append for drafts that must know where they will stand: build gets
// the seq that the first of them will have. It runs under the log's lock, must be
// quick, and must not call the session. It is called again where the log had to be loaded
// for what it built.
func (s *Session) AppendFunc(build func(first int64) []Draft) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	drafts := build(s.g.head)
	moved, err := s.readyLocked(drafts)
	if err != nil {
		return 0, err
	}
	if moved {
		drafts = build(s.g.head)
	}
	return s.appendLocked(s.reg.nowMS(), drafts)
}

func (s *Session) append(now int64, drafts []Draft) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.readyLocked(drafts); err != nil {
		return 0, err
	}
	return s.appendLocked(now, drafts)
}

func (s *Session) appendLocked(now int64, drafts []Draft) (int64, error) {
	if s.closed {
		return 0, fmt.Errorf("session %s: append: %w", s.header.ID, ErrClosed)
	}
	first := s.g.head
	g := s.g
	box := s.box
	mark, arena := len(s.events), s.arena
	// A replacement in a batch sees what the events before it did to the surface.
	surf, scratch := &s.surf, surface{}
	if len(drafts) > 1 && slices.ContainsFunc(drafts, func(d Draft) bool { return d.Op.Kind == OpReplace }) {
		scratch = s.surf.snapshot()
		surf = &scratch
	}
	committed := false
	defer func() {
		// Nothing of a refused batch stays, also when a validator panicked.
		if !committed {
			clear(s.events[mark:])
			s.events, s.arena = s.events[:mark], arena
		}
	}()
	for i := range drafts {
		s.events = append(s.events, Event{Seq: first + int64(i), Time: now})
		e := &s.events[len(s.events)-1]
		info, err := s.encode(e, &drafts[i])
		if err != nil {
			return 0, err
		}
		if rule, msg := g.next(e, info, surf); rule != "" {
			return 0, &InvariantError{ID: s.header.ID, Seq: e.Seq, Type: e.Type, Rule: rule, Msg: msg}
		}
		switch p := e.payload.(type) {
		case *InboxSpliced:
			if err := box.check(p); err != nil {
				return 0, &InvariantError{ID: s.header.ID, Seq: e.Seq, Type: e.Type, Rule: "L10", Msg: err.Error()}
			}
			box.apply(e.Seq, p)
		case *Imported:
			box.imported(e.Seq)
		}
		for _, v := range s.reg.cfg.Validators {
			if err := v(&s.header, *e); err != nil {
				return 0, fmt.Errorf("session %s: %s at seq %d refused: %w", s.header.ID, e.Type, e.Seq, err)
			}
		}
		if surf == &scratch {
			scratch.apply(e)
		}
	}
	s.g, s.box, committed = g, box, true
	for i := mark; i < len(s.events); i++ {
		s.apply(&s.events[i])
	}
	s.broadcast()
	s.armLocked()
	return first, nil
}

// encode makes e, which has its seq and time, the event of a draft. Its payload's bytes
// lie in the arena.
func (s *Session) encode(e *Event, d *Draft) (*typeInfo, error) {
	typ := d.Payload.EventType()
	fail := func(err error) (*typeInfo, error) {
		return nil, fmt.Errorf("session %s: append %s: %w", s.header.ID, typ, err)
	}
	info := s.reg.types[typ]
	ignorable := false
	if info == nil {
		op, ok := d.Payload.(*Opaque)
		if !ok || !op.Skip {
			return fail(errors.New("unknown event type"))
		}
		info = &typeInfo{typ: typ, ignorable: true}
	} else if _, ok := d.Payload.(*Opaque); ok && info.decode != nil {
		return fail(errors.New("an event of this type needs its typed payload"))
	}
	ignorable = info.ignorable
	if c, ok := d.Payload.(checker); ok {
		if err := c.check(); err != nil {
			return fail(err)
		}
	}
	if p, ok := d.Payload.(*ToolSpill); ok && p.Session != s.header.ID {
		return fail(fmt.Errorf("it was made for session %s", p.Session))
	}
	data := encodedAlready(d.Payload)
	if data == nil {
		if room := cap(s.arena); room == 0 || room-len(s.arena) < min(512, room/8) {
			s.arena = make([]byte, 0, s.arenaSize())
		}
		start := len(s.arena)
		s.arena = d.Payload.appendJSON(s.arena)
		data = s.arena[start:len(s.arena):len(s.arena)]
		if !utf8.Valid(data) {
			return fail(errors.New("text is not valid UTF-8"))
		}
		if bytes.IndexByte(data, '\n') >= 0 {
			// Raw JSON with line breaks: a stored event is one line.
			var err error
			if data, err = jsonx.Compact(data); err != nil {
				return fail(err)
			}
		}
	}
	op := d.Op
	if info.surface && op.Kind == OpNone {
		op.Kind = OpAppend
	}
	e.Type, e.Ignorable, e.data, e.payload = typ, ignorable, data, d.Payload
	e.surface(op, d.Sources)
	return info, nil
}

// encodedAlready returns the bytes of a payload that holds them itself, or nil.
func encodedAlready(p Payload) []byte {
	switch p := p.(type) {
	case *RequestHeader:
		return p.encoded // shared by every log with this header
	case *DescriptorEvent:
		return p.raw
	case *ToolSpill:
		return p.encoded // large: neither in the arena nor encoded under the lock
	}
	return nil
}

// arenaSize doubles from what the payloads of a one-shot child fit into, and a piece of
// memory is, to 64 KiB, so that a short log stays small and a long one allocates rarely.
func (s *Session) arenaSize() int {
	return min(max(2<<10, cap(s.arena)*2), 64<<10)
}

// apply moves the folds over a checked event that stands in the log.
func (s *Session) apply(e *Event) {
	switch p := e.payload.(type) {
	case *UserMessage, *AssistantMessage, *ToolResult:
		s.surf.apply(e)
	case *RequestHeader:
		s.hdr = p
	case *RequestContext:
		s.reqCtx = p
	case *ApprovalPolicy:
		s.policy = p
	case *SandboxMode:
		s.sandbox = p
	case *Title:
		s.title = p.Title
	case *TurnEnd:
		s.cut = cut{
			len: e.Seq + 1, turn: p.Turn, surf: s.surf.snapshot(), hdr: s.hdr, reqCtx: s.reqCtx,
			policy: s.policy, sandbox: s.sandbox, title: s.title,
		}
	}
	if e.Seq >= s.header.SeedLength {
		s.applyOwn(e)
		if s.cells != nil {
			s.cells.Apply(e)
		}
	}
	for _, w := range s.folds {
		w.fold.Apply(e)
	}
}

// watch is one attachment of a fold; its identity is the pointer.
type watch struct{ fold Fold }

// Watch attaches a fold that is moved by every event from now on. with reads it
// under the log's lock and must not call the session; stop detaches it.
func (s *Session) Watch(f Fold) (with func(func()), stop func()) {
	w := &watch{fold: f}
	s.mu.Lock()
	s.folds = append(slices.Clip(s.folds), w)
	s.mu.Unlock()
	with = func(fn func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fn()
	}
	stop = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.folds = slices.DeleteFunc(slices.Clone(s.folds), func(o *watch) bool { return o == w })
	}
	return with, stop
}

// Spilled returns how many bytes the session's own ToolSpill events take, encoded.
func (s *Session) Spilled() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spilled
}

// View calls fn under the log's lock with the session's cells, or nil where it has
// none, the log's head, and the time of its last own event, that of the session's
// creation before the first. fn must be quick and must not call the session.
func (s *Session) View(fn func(c Cells, head, last int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.header.CreatedAt
	if t, ok := s.tipLocked(); ok && s.g.head > s.header.SeedLength {
		last = t.time
	}
	fn(s.cells, s.g.head, last)
}

// Head returns the number of events, inherited ones included.
func (s *Session) Head() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.g.head
}

// Durable returns how many events are stored for good. Without a store, and
// before a deferred session is established, nothing can be lost that was
// promised, and it is the head. Of a withdrawn session it is what was inherited.
func (s *Session) Durable() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.durableLocked()
}

// Claimable returns the head below which a queued message's splice must lie for
// the message to be claimed (design § 4): the durable head, or, for a session
// whose row is created by a later batch, what was there when it was established.
func (s *Session) Claimable() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.durableLocked(), s.free)
}

func (s *Session) durableLocked() int64 {
	switch {
	case s.reg.cfg.Store == nil:
		return s.g.head
	case s.withdrawn:
		return s.base.Len()
	case s.deferred:
		return s.g.head
	}
	return s.durable
}

// History returns the messages that the surface derives (core S19) and the
// surface's generation. The slice is a snapshot and must not be modified.
func (s *Session) History() ([]message.Message, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needLocked(0)
	return slices.Clip(s.surf.msgs), s.surf.gen
}

// Node is one entry of the surface.
type Node struct {
	Seq int64
	// Message is what the event gives to the history; nil for an answer without content.
	Message *message.Message
}

// Surface returns the nodes that History is derived from, in their order, and the
// surface's generation. The messages must not be modified.
func (s *Session) Surface() ([]Node, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needLocked(0)
	nodes := make([]Node, len(s.surf.nodes))
	for i, n := range s.surf.nodes {
		nodes[i].Seq = n.seq
		if n.msg >= 0 {
			nodes[i].Message = &s.surf.msgs[n.msg]
		}
	}
	return nodes, s.surf.gen
}

// Inbox returns the messages that wait in a list, in order. It must not be modified.
func (s *Session) Inbox(t Target) []Queued {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box.list(t)
}

// Parked reports whether what waits in the inbox must wait for a person: some of
// it came in with an imported log, and since then no person has sent a message
// that wakes (its source is user; one that was cancelled before a turn took it does
// not count). Until then nothing that waits may run, behind the parked ones neither:
// an import is data, and runs nothing by itself. Then all of it runs in its order.
//
// Whatever opens sessions to let them go on, at a start or after a crash, asks
// this first, and so does whatever wakes one for what it or a child of it owes.
func (s *Session) Parked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box.parked()
}

// Imported reports whether the log, or its beginning, came from elsewhere.
func (s *Session) Imported() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box.mark > 0
}

// Adopted reports whether a person has sent a message that wakes since the last import
// (see Parked).
func (s *Session) Adopted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box.sent > 0
}

// LastTurn returns the number of the last turn, whether it is still open, and, if it
// is, the step of it that was started last.
func (s *Session) LastTurn() (turn int64, open bool, step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.g.turn, s.g.turnOpen, s.g.step
}

// RequestHeader returns the header of the last request, or nil.
func (s *Session) RequestHeader() *RequestHeader {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needLocked(0)
	return s.hdr
}

// RequestContext returns the last logged request context, or nil.
func (s *Session) RequestContext() *RequestContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needLocked(0)
	return s.reqCtx
}

// composition is what a session's own events say of how it was composed.
type composition struct {
	first   *DescriptorEvent
	persona *Persona
	ran     bool // a turn was opened behind the descriptor: nothing can be added
}

// Composition returns the first descriptor in the session's own suffix, which no later
// one can rewrite (seam DES-17), and the mark of its persona, the last before the first
// turn behind it (amendment P42); nil where there is none. Neither must be modified.
func (s *Session) Composition() (*DescriptorEvent, *Persona) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made.first, s.made.persona
}

// Descriptor returns the last descriptor in the session's own suffix, or nil
// (design § 5.4).
func (s *Session) Descriptor() *DescriptorEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// Policies returns the approval policy and sandbox mode in force; "" where the
// log says nothing.
func (s *Session) Policies() (approval, sandbox string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.policy != nil {
		approval = s.policy.Policy
	}
	if s.sandbox != nil {
		sandbox = s.sandbox.Mode
	}
	return approval, sandbox
}

// Title returns the session's title, or "".
func (s *Session) Title() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.title
}

// Event returns the event at seq; false where there is none, or it could not be read
// (see Load).
func (s *Session) Event(seq int64) (Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq < 0 || seq >= s.g.head || !s.needLocked(seq) {
		return Event{}, false
	}
	e := s.base.at(seq, s.from, s.events)
	s.reg.types.complete(&e)
	return e, true
}

// Events yields the events from seq on up to the head at the time of the call; none where
// they could not be read (see Load).
func (s *Session) Events(from int64) iter.Seq[Event] {
	from = max(from, 0)
	s.mu.Lock()
	readable := s.needLocked(from)
	base, first, own := s.base, s.from, slices.Clip(s.events)
	s.mu.Unlock()
	if !readable {
		return func(func(Event) bool) {}
	}
	return func(yield func(Event) bool) {
		end := first + int64(len(own))
		for seq := from; seq < end; seq++ {
			e := base.at(seq, first, own)
			s.reg.types.complete(&e)
			if !yield(e) {
				return
			}
		}
	}
}

// PayloadOf returns the typed payload of an event of this session's log, or
// of one that a store yielded.
func (r *Registry) PayloadOf(e Event) (Payload, error) {
	if e.payload != nil {
		return e.payload, nil
	}
	_, err := r.types.decode(&e)
	return e.payload, err
}

// Payload returns the typed payload of an event that came from a live log; it is
// nil for one that a store yielded and nobody decoded (see Registry.PayloadOf).
func (e *Event) Payload() Payload { return e.payload }

// complete fills in the payload of an event of a log, where a replay let go of it.
func (t typeTable) complete(e *Event) {
	if e.payload == nil {
		// The log took these very bytes.
		_, _ = t.decode(e)
	}
}

// decode fills in the payload of an event that was read back.
func (t typeTable) decode(e *Event) (*typeInfo, error) {
	info := t[e.Type]
	if info == nil {
		if !e.Ignorable {
			return nil, &UnsupportedError{Seq: e.Seq, Msg: fmt.Sprintf("event type %q is unknown and not ignorable", e.Type)}
		}
		info = &typeInfo{typ: e.Type, ignorable: true}
	}
	if e.payload != nil {
		return info, nil
	}
	if !e.valid {
		if err := jsonx.Validate(e.data); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Type, err)
		}
	}
	if info.decode == nil {
		op := &Opaque{Type: e.Type, Data: e.data, Skip: e.Ignorable}
		if err := op.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Type, err)
		}
		e.payload = op
		return info, nil
	}
	p, err := info.decode(e.data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Type, err)
	}
	e.payload = p
	return info, nil
}

// Wait returns when the log's head is above seq, or with the cause of ctx's end,
// or with ErrClosed when the session was closed at or below it. With stored set
// it waits for the durable head instead, and returns ErrWithdrawn when it will not
// come there.
func (s *Session) Wait(ctx context.Context, seq int64, stored bool) error {
	for {
		s.mu.Lock()
		at := s.g.head
		if stored {
			at = s.durableLocked()
		}
		if at > seq {
			s.mu.Unlock()
			return nil
		}
		if s.closed {
			s.mu.Unlock()
			return ErrClosed
		}
		if stored && s.withdrawn {
			s.mu.Unlock()
			return ErrWithdrawn
		}
		if s.signal == nil {
			s.signal = make(chan struct{})
		}
		ch := s.signal
		s.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Session) broadcast() {
	if s.signal != nil {
		close(s.signal)
		s.signal = nil
	}
}
