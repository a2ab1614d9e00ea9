package session

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// settledPrefix begins the id of every notice of a settled epoch.
const settledPrefix = "settled:"

// SettlementID returns the id of the notice by which a parent is told of a settled
// epoch of a child (design § 4, Settlement is derived).
func SettlementID(child ID, epoch int64) message.ID {
	return message.ID(settledPrefix + string(child) + ":" + strconv.FormatInt(epoch, 10))
}

// SettledMeta returns the Meta of a ToolResult that carries the outcome of a settled
// epoch: the log that holds it took the settlement (see Session.Took).
func SettledMeta(id message.ID) []byte {
	return append(jsonx.AppendStringField([]byte{'{'}, "settled", string(id)), '}')
}

// Epochs is what a session's own events say of its residency epochs.
type Epochs struct {
	// Settled counts the Settled events; the epoch that runs, or was cut, is one more.
	Settled int64
	// Last is the last of them, or nil, and LastSeq its seq, or -1. Last must not be
	// modified.
	Last    *Settled
	LastSeq int64
	// Worked says that a turn was opened since; without a Settled event, at all.
	Worked bool
}

// Epochs returns what the session's own events say of its epochs: what it inherited
// does not count.
func (s *Session) Epochs() Epochs {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.epochs
	if e.Last == nil {
		e.LastSeq = -1
	}
	return e
}

// LastEnd returns the end of the last turn that the session's own events closed, and
// its seq; nil and -1 when there is none. It must not be modified.
func (s *Session) LastEnd() (end *TurnEnd, seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		return nil, -1
	}
	return s.end, s.endSeq
}

// Took reports whether this log took a settlement, given the id that SettlementID
// made: its own events claimed the message of that id from the inbox, or hold a
// tool result with it as the member "settled" of its Meta, alone or in an array of
// strings. A message that was cancelled was not taken. No other id was ever taken.
func (s *Session) Took(id message.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.took[id]
}

// applyOwn moves the folds of what the session is, and of its epochs, over an event of
// the session's own.
func (s *Session) applyOwn(e *Event) {
	switch p := e.payload.(type) {
	case *DescriptorEvent:
		s.own = p
		if s.made.first == nil {
			s.made.first = p
		}
	case *Persona:
		if !s.made.ran {
			s.made.persona = p
		}
	case *TurnStart:
		s.epochs.Worked = true
		s.made.ran = s.made.first != nil
	case *TurnEnd:
		s.end, s.endSeq = p, e.Seq
	case *Settled:
		s.epochs = Epochs{Settled: s.epochs.Settled + 1, Last: p, LastSeq: e.Seq}
	case *InboxSpliced:
		// Those of the whole batch, which is committed.
		s.taken(s.box.claims)
		s.box.claims = nil
	case *ToolResult:
		s.taken(settledIn(p.Meta))
	case *ToolSpill:
		s.spilled += int64(len(e.data))
	}
}

func (s *Session) taken(ids []message.ID) {
	for _, id := range ids {
		if s.took == nil {
			s.took = map[message.ID]bool{}
		}
		s.took[id] = true
	}
}

// settledIn returns the settlements that the meta of a tool result names.
func settledIn(meta []byte) []message.ID {
	// Most have none, and may be long.
	if !bytes.Contains(meta, []byte(settledPrefix)) {
		return nil
	}
	var ids []message.ID
	add := func(raw []byte) error {
		id, err := jsonx.String(raw)
		if err == nil && strings.HasPrefix(id, settledPrefix) {
			ids = append(ids, message.ID(id))
		}
		return err
	}
	err := jsonx.ReadObject(meta, func(key string, raw []byte) error {
		switch {
		case key != "settled":
			return nil
		case raw[0] == '[':
			return jsonx.ReadArray(raw, add)
		}
		return add(raw)
	})
	if err != nil {
		return nil // of another shape: it is not ours
	}
	return ids
}

// claim notes the settlements that a splice takes out of a list for a turn.
func (b *inbox) claim(list []Queued, p *InboxSpliced) {
	if p.Canceled {
		return
	}
	for i := range list[p.Start : p.Start+p.Removed] {
		id := list[p.Start+int64(i)].Message.ID
		if !strings.HasPrefix(string(id), settledPrefix) {
			continue
		}
		if slices.ContainsFunc(p.Inserted, func(m message.Message) bool { return m.ID == id }) {
			continue // it waits on, at another place
		}
		b.claims = append(b.claims, id)
	}
}
