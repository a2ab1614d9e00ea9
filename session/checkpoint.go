package session

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// CheckpointFrom is from how many events on a session leaves a checkpoint when it is
// closed: shorter logs are read as fast as anything beside them.
const CheckpointFrom = 500

// cellResume is the checkpoint that a long log at rest is opened from, without its
// events: what the folds of Session come to at its seq, but for those that only a loaded
// log has (the surface, the last request, the cut). It is trusted at the head alone: any
// event behind it makes it stale.
//
// Its value is {"sum":…,"state":{…}}; the sum is that of the state in the words of
// appendState, so that a value which was damaged, or moved here from another log or
// place, is told from one that is none of these. Who loads the log finds out whether it
// follows from it.
//
// The version changes with everything that a fold of Session makes of a log, too: a value
// of an earlier build would be taken for a corruption.
const (
	cellResume    = "resume"
	resumeVersion = 1
)

// ResumableCells is an optional ability of Cells. Without it a session leaves no
// checkpoint to be opened from, and is opened from none.
type ResumableCells interface {
	Cells
	// Refresh has the next Take return every cell. It returns false where one of them
	// has no value that could be stored.
	Refresh() bool
	// Resume takes over the stored values, each of which must be as of seq Head-1 of the
	// record and of this build's version. It returns false, and the cells are good for
	// nothing, when one is not.
	Resume(rec *Record) bool
}

// atRest reports whether the log stands where a checkpoint may: nothing is open, so that
// no rule asks for more than appendState says.
func (s *Session) atRest() bool {
	return s.g.head > 0 && !s.g.turnOpen && s.g.compaction == "" && s.box.claims == nil
}

// leaveLocked returns the checkpoint that a session leaves behind which is about to end,
// or false if it is to leave none. It makes the cells complete, too.
func (s *Session) leaveLocked() (Checkpoint, bool) {
	from := s.reg.cfg.CheckpointFrom
	switch {
	case from < 0 || s.g.head < max(from, s.header.SeedLength) || s.kept == s.g.head || !s.atRest():
		return Checkpoint{}, false
	case s.cold != nil && s.cold.err != nil:
		return Checkpoint{}, false // nothing of such a log is vouched for
	case s.own != nil && s.own.Err == nil && s.own.Descriptor.Mode == ModeOneShot:
		return Checkpoint{}, false // it takes no further message, however long a log it inherited
	case s.base != nil && s.end == nil:
		return Checkpoint{}, false // a fork that came to nothing
	}
	if s.cells != nil {
		c, ok := s.cells.(ResumableCells)
		if !ok || !c.Refresh() {
			return Checkpoint{}, false
		}
	}
	state := s.appendState(nil)
	value := jsonx.AppendIntField([]byte{'{'}, "sum", int64(crc32.ChecksumIEEE(state)))
	value = append(jsonx.AppendRawField(value, "state", state), '}')
	return Checkpoint{Key: cellResume, Version: resumeVersion, Seq: s.g.head - 1, Value: value}, true
}

// takeLocked returns the checkpoints that go with the next batch, and whether the one to be
// opened from is among them: with the last batch of a session that was closed.
func (s *Session) takeLocked() (cells []Checkpoint, left bool) {
	var c Checkpoint
	if s.closed {
		c, left = s.leaveLocked()
	}
	if s.cells != nil {
		cells = s.cells.Take(s.g.head)
	}
	if left {
		cells = append(slices.Clip(cells), c)
	}
	return cells, left
}

// leave stores the checkpoint of a closed session all of whose events are stored, unless
// one went with the last batch. A failure costs the next opening some time, and nothing
// else: it is logged.
func (s *Session) leave(ctx context.Context) {
	s.mu.Lock()
	s.idleLocked()
	w, head := s.writer, s.g.head
	if w == nil || s.lost != nil || s.withdrawn || s.deferred || s.durable != head {
		s.mu.Unlock()
		return
	}
	cells, left := s.takeLocked()
	if !left {
		s.mu.Unlock()
		return
	}
	s.writing, s.wrote = true, nil
	s.mu.Unlock()
	err := contain("store", func() error { return w.Append(ctx, head, nil, cells) })
	s.mu.Lock()
	s.writing = false
	if s.wrote != nil {
		close(s.wrote)
	}
	s.mu.Unlock()
	if err != nil {
		s.reg.cfg.Logger.Warn("a session leaves no checkpoint to be opened from", "session", string(s.header.ID), "error", err)
	}
}

// thaw opens a session from the checkpoint at the head of its log. It returns nil where
// there is none to be trusted: the log is replayed then.
func (r *Registry) thaw(rec *Record) *Session {
	c, ok := rec.Cell(cellResume)
	if !ok || c.Version != resumeVersion || c.Seq != rec.Head-1 || rec.Head < rec.Header.SeedLength {
		return nil
	}
	s, err := r.blank(*rec, false)
	if err != nil {
		return nil // the replay says the same
	}
	if s.cells != nil {
		cells, ok := s.cells.(ResumableCells)
		if !ok || !cells.Resume(rec) {
			return nil
		}
	}
	s.g = grammar{head: rec.Head}
	s.from = rec.Head
	s.cold = &cold{}
	err = s.readCheckpoint(c.Value)
	if errors.Is(err, errOtherTypes) {
		return nil
	}
	if err != nil {
		r.cfg.Logger.Warn("a checkpoint is left alone, and the log read instead", "session", string(rec.Header.ID), "checkpoint", cellResume, "error", err)
		return nil
	}
	s.kept = rec.Head
	return s
}

// errOtherTypes says that a checkpoint is of a build with other event types: whether this
// one can read the log, only the log tells.
var errOtherTypes = errors.New("it is of a build with other event types")

// sum tells one vocabulary from another.
func (t typeTable) sum() int64 {
	var names []byte
	for _, typ := range slices.Sorted(maps.Keys(t)) {
		names = append(append(names, typ...), 0)
	}
	return int64(crc32.ChecksumIEEE(names))
}

func (s *Session) readCheckpoint(value []byte) error {
	if err := jsonx.Validate(value); err != nil {
		return err
	}
	sum := int64(-1)
	err := fields(value, []string{"sum", "state"}, func(key string, raw []byte) error {
		switch key {
		case "sum":
			return setInt(&sum, raw)
		case "state":
			return s.readState(raw)
		}
		return jsonx.UnknownKey(key)
	})
	if err != nil {
		return err
	}
	s.cold.told = s.appendState(nil)
	if sum != int64(crc32.ChecksumIEEE(s.cold.told)) {
		return errors.New("its sum is another")
	}
	return nil
}

// appendState appends what a log at rest comes to, as JSON: the same for every session
// that the same log was replayed into.
func (s *Session) appendState(buf []byte) []byte {
	last, _ := s.tipLocked()
	buf = jsonx.AppendStringField(append(buf, '{'), "session", string(s.header.ID))
	buf = jsonx.AppendIntField(buf, "head", s.g.head)
	buf = jsonx.AppendIntField(buf, "types", s.reg.typesSum)
	buf = jsonx.AppendStringField(buf, "lastType", string(last.typ))
	buf = jsonx.AppendIntField(buf, "lastTime", last.time)
	buf = jsonx.AppendIntField(buf, "turn", s.g.turn)
	payload := func(key string, p Payload) { buf = p.appendJSON(jsonx.AppendKey(buf, key)) }
	if s.own != nil {
		payload("descriptor", s.own)
	}
	if s.made.first != nil {
		payload("firstDescriptor", s.made.first)
	}
	if s.made.persona != nil {
		payload("persona", s.made.persona)
	}
	if s.made.ran {
		buf = jsonx.AppendTrueField(buf, "ran")
	}
	if s.policy != nil {
		payload("policy", s.policy)
	}
	if s.sandbox != nil {
		payload("sandbox", s.sandbox)
	}
	if s.title != "" {
		buf = jsonx.AppendStringField(buf, "title", s.title)
	}
	buf = jsonx.AppendIntField(buf, "spilled", s.spilled)
	buf = jsonx.AppendIntField(buf, "settled", s.epochs.Settled)
	if s.epochs.Last != nil {
		payload("lastSettled", s.epochs.Last)
		buf = jsonx.AppendIntField(buf, "lastSettledSeq", s.epochs.LastSeq)
	}
	if s.epochs.Worked {
		buf = jsonx.AppendTrueField(buf, "worked")
	}
	if s.end != nil {
		payload("end", s.end)
		buf = jsonx.AppendIntField(buf, "endSeq", s.endSeq)
	}
	if len(s.took) > 0 {
		took := make([]string, 0, len(s.took))
		for id := range s.took {
			took = append(took, string(id))
		}
		slices.Sort(took)
		buf = appendStrings(jsonx.AppendKey(buf, "took"), took)
	}
	buf = jsonx.AppendIntField(buf, "mark", s.box.mark)
	buf = jsonx.AppendIntField(buf, "sent", int64(s.box.sent))
	for i, key := range inboxKeys {
		if len(s.box.lists[i]) > 0 {
			buf = appendQueue(jsonx.AppendKey(buf, key), s.box.lists[i])
		}
	}
	return append(buf, '}')
}

// inboxKeys are the lists of the inbox by their index.
var inboxKeys = [2]string{"nextTurn", "nextStep"}

func appendQueue(buf []byte, list []Queued) []byte {
	buf = append(buf, '[')
	for i := range list {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = jsonx.AppendIntField(append(buf, '{'), "seq", list[i].Seq)
		if list[i].Wake {
			buf = jsonx.AppendTrueField(buf, "wake")
		}
		buf = append(AppendMessage(jsonx.AppendKey(buf, "message"), &list[i].Message), '}')
	}
	return append(buf, ']')
}

// readState reads what appendState wrote into a session under construction that has its
// header, its head and a cold part.
func (s *Session) readState(data []byte) error {
	var id ID
	head, types := int64(-1), int64(-1)
	err := fields(data, []string{"session", "head", "types", "lastType", "lastTime", "turn", "spilled", "settled", "mark", "sent"}, func(key string, raw []byte) (err error) {
		switch key {
		case "session":
			return setString(&id, raw)
		case "head":
			return setInt(&head, raw)
		case "types":
			return setInt(&types, raw)
		case "lastType":
			return setString(&s.cold.last.typ, raw)
		case "lastTime":
			s.cold.last.time, err = jsonx.Int(raw)
			return err
		case "turn":
			return setInt(&s.g.turn, raw)
		case "descriptor":
			s.own, err = decodeDescriptorEvent(raw)
			return err
		case "firstDescriptor":
			s.made.first, err = decodeDescriptorEvent(raw)
			return err
		case "persona":
			s.made.persona, err = decodePersona(raw)
			return err
		case "ran":
			return setTrue(&s.made.ran, raw)
		case "policy":
			s.policy, err = decodeApprovalPolicy(raw)
			return err
		case "sandbox":
			s.sandbox, err = decodeSandboxMode(raw)
			return err
		case "title":
			return setString(&s.title, raw)
		case "spilled":
			return setInt(&s.spilled, raw)
		case "settled":
			return setInt(&s.epochs.Settled, raw)
		case "lastSettled":
			s.epochs.Last, err = decodeSettled(raw)
			return err
		case "lastSettledSeq":
			return setInt(&s.epochs.LastSeq, raw)
		case "worked":
			return setTrue(&s.epochs.Worked, raw)
		case "end":
			s.end, err = decodeTurnEnd(raw)
			return err
		case "endSeq":
			return setInt(&s.endSeq, raw)
		case "took":
			return jsonx.WalkArray(raw, func(raw []byte) error {
				id, err := jsonx.WalkString(raw)
				s.taken([]message.ID{message.ID(id)})
				return err
			})
		case "mark":
			return setInt(&s.box.mark, raw)
		case "sent":
			var n int64
			err := setInt(&n, raw)
			s.box.sent = int(n)
			return err
		case inboxKeys[0]:
			return readQueue(&s.box.lists[0], raw)
		case inboxKeys[1]:
			return readQueue(&s.box.lists[1], raw)
		}
		return jsonx.UnknownKey(key)
	})
	switch {
	case err != nil:
		return err
	case types != s.reg.typesSum:
		return errOtherTypes
	case id != s.header.ID || head != s.g.head:
		return fmt.Errorf("it is that of session %s with %d events", id, head)
	}
	return nil
}

func readQueue(list *[]Queued, data []byte) error {
	return jsonx.WalkArray(data, func(raw []byte) error {
		var q Queued
		err := fields(raw, []string{"seq", "message"}, func(key string, raw []byte) error {
			switch key {
			case "seq":
				return setInt(&q.Seq, raw)
			case "wake":
				return setTrue(&q.Wake, raw)
			case "message":
				return decodeMessage(&q.Message, raw)
			}
			return jsonx.UnknownKey(key)
		})
		*list = append(*list, q)
		return err
	})
}
