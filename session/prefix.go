package session

import (
	"errors"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// Prefix is a validated cut of a session right behind a turn/end: the events up
// to there, shared, and the folds at that point. It is opaque and immutable; a
// child seeded with it copies nothing (design § 4). A nil *Prefix is empty.
type Prefix struct {
	owner  ID // the stored session that a store must name
	root   ID
	parent *Prefix // what the owner itself inherits
	events []Event // the owner's own events up to the cut
	cut    cut
}

// Len returns the number of events.
func (p *Prefix) Len() int64 {
	if p == nil {
		return 0
	}
	return p.cut.len
}

// Owner returns the id of the stored session that the prefix belongs to.
func (p *Prefix) Owner() ID { return p.owner }

// at returns an event of a log that begins with the prefix and has own from seq from on.
func (p *Prefix) at(seq, from int64, own []Event) Event {
	for seq < from {
		p, own = p.parent, p.events
		from = p.Len()
	}
	return own[seq-from]
}

// Prefix returns the cut behind the last turn/end, or nil when no turn was
// completed (core S33): the open turn is never part of it. A cut within what the
// session itself inherited is that inherited prefix.
func (s *Session) Prefix() *Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.needLocked(0)
	if s.cut.len == 0 {
		return nil
	}
	n := s.base.Len()
	if s.cut.len <= n {
		return s.base
	}
	own := s.events[:s.cut.len-n]
	s.lean = max(s.lean, len(own)) // what others share stays as it is
	return &Prefix{owner: s.header.ID, root: s.root, parent: s.base, events: slices.Clip(own), cut: s.cut}
}

// Seed is what a session inherits at its creation: a Prefix, or raw events. Raw
// events are validated, must be balanced, and are detached from the caller's
// slice; SeedLength of the header counts them (core S24–S26, amendments P20, P21).
type Seed struct {
	Prefix *Prefix
	Events []Event
}

// seed takes over a seed in a session under construction.
func (s *Session) seed(seed *Seed) error {
	if seed.Prefix != nil {
		p := seed.Prefix
		s.base, s.from = p, p.Len()
		s.g = grammar{head: p.cut.len, turn: p.cut.turn}
		s.surf, s.hdr, s.reqCtx = p.cut.surf, p.cut.hdr, p.cut.reqCtx
		s.policy, s.sandbox, s.title = p.cut.policy, p.cut.sandbox, p.cut.title
		s.cut = p.cut
		s.header.SeedLength = p.cut.len
		return nil
	}
	if n := int64(len(seed.Events)); n > 0 {
		s.header.SeedLength = n
		if err := s.replay(seed.Events); err != nil {
			return err
		}
	}
	if !s.g.balanced() {
		return &InvariantError{ID: s.header.ID, Seq: s.g.head, Type: TypeTurnStart, Rule: "S25", Msg: fmt.Sprintf("the seed ends inside turn %d", s.g.turn)}
	}
	return nil
}

// replay takes events that were written elsewhere, by the same rules as appends.
// Nothing of them is shared with the giver, and payloads are decoded from the
// bytes again, whatever the events carried.
func (s *Session) replay(events []Event) error {
	s.g.replay = true
	defer func() { s.g.replay = false }()
	for i := range events {
		e := events[i]
		data, err := jsonx.Compact(e.data)
		if err == nil && (e.Time < -jsonx.MaxSafe || e.Time > jsonx.MaxSafe) {
			err = fmt.Errorf("time %d is out of range", e.Time)
		}
		if err != nil {
			return &CorruptError{ID: s.header.ID, Seq: e.Seq, Err: fmt.Errorf("%s: %w", e.Type, err)}
		}
		e = RawEvent(e, data)
		start, end := e.Replaces()
		e = e.Surface(SurfaceOp{e.Op, start, end}, slices.Clone(e.Sources()))
		e.valid = true
		if err := s.take(e); err != nil {
			return err
		}
	}
	return nil
}

// take validates one event that was read back and puts it into the log. After an
// error the session is good for nothing.
func (s *Session) take(read Event) error {
	if s.checking {
		s.events = s.events[:0]
	}
	s.events = append(s.events, read)
	e := &s.events[len(s.events)-1]
	info, err := s.reg.types.decode(e)
	if err != nil {
		var u *UnsupportedError
		if asError(err, &u) {
			u.ID = s.header.ID
			return u
		}
		if errors.Is(err, jsonx.ErrUnknownKey) {
			// Well formed, and more than this build knows: nothing of it may get lost.
			return &UnsupportedError{ID: s.header.ID, Seq: e.Seq, Msg: err.Error()}
		}
		return &CorruptError{ID: s.header.ID, Seq: e.Seq, Err: err}
	}
	if rule, msg := s.g.next(e, info, &s.surf); rule != "" {
		return &InvariantError{ID: s.header.ID, Seq: e.Seq, Type: e.Type, Rule: rule, Msg: msg}
	}
	if e.Seq >= s.header.SeedLength {
		// What was queued for the one who was forked is not the fork's work (core L14).
		switch p := e.payload.(type) {
		case *InboxSpliced:
			if err := s.box.check(p); err != nil {
				return &InvariantError{ID: s.header.ID, Seq: e.Seq, Type: e.Type, Rule: "L14", Msg: err.Error()}
			}
			s.box.apply(e.Seq, p)
		case *Imported:
			s.box.imported(e.Seq)
		case *TurnStart:
			s.ran = s.ran || s.checking
		case *DescriptorEvent:
			if s.checking {
				s.own = p
			}
		}
	}
	if s.checking {
		s.surf.trace(e)
		if s.cells != nil && e.Seq >= s.header.SeedLength {
			s.cells.Apply(e)
		}
		*e = Event{} // may be long, and the next is read before it is taken
		return nil
	}
	s.apply(e)
	e.valid = true
	// Folded, it is seldom asked for again; what a request needs of it, the surface has.
	e.payload = nil
	s.lean = len(s.events)
	return nil
}
