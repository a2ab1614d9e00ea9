package session

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/offshoot-dev/offshoot/message"
)

// Codes of the results that a repair invents (core S36).
const (
	CodeToolNotStarted     = codeNotStarted
	CodeToolOutcomeUnknown = "TOOL_OUTCOME_UNKNOWN"
)

// The texts that a model reads in their place: after a crash, and after a fault of
// a process that goes on.
const (
	textNotStarted     = "Error: the process stopped before this call was started. Nothing was done; it is safe to call again."
	textOutcomeUnknown = "Error: the process stopped while this call was running. Its effects may or may not have happened; check before calling again."

	textFaultNotStarted = "Error: an internal fault kept this call from being started. Nothing was done; it is safe to call again."
	textFaultUnknown    = "Error: an internal fault kept the outcome of this call from being recorded. Its effects may or may not have happened; check before calling again."
)

// repairDrafts returns what closes a trailing open turn: a result for every call
// of the last assistant message that has none, in model order, then the end of
// the step and of the turn (core S36, S37). Ids and times follow from the log
// alone, so that repairing the same log twice gives the same bytes.
func (s *Session) repairDrafts() []Draft {
	if !s.g.turnOpen {
		return nil
	}
	drafts := s.unanswered(textNotStarted, textOutcomeUnknown)
	if s.g.stepOpen {
		drafts = append(drafts, Draft{Payload: &StepEnd{Turn: s.g.turn, Step: s.g.step}})
	}
	return append(drafts, Draft{Payload: &TurnEnd{Turn: s.g.turn, Kind: EndInterrupted}})
}

// Unanswered returns a result for every call of the open step that has none, in
// model order, as a crash repair would invent it, except that the text names an
// internal fault: what a loop in a live process appends when its own scheduling
// failed, so that the next request is legal (core S13).
func (s *Session) Unanswered() []Draft {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unanswered(textFaultNotStarted, textFaultUnknown)
}

func (s *Session) unanswered(notStarted, outcomeUnknown string) []Draft {
	if !s.g.stepOpen {
		return nil
	}
	var drafts []Draft
	seq := s.g.head
	for _, id := range s.g.model {
		if contains(s.g.done, id) {
			continue
		}
		code, text := CodeToolNotStarted, notStarted
		var sources []int64
		for _, c := range s.g.calls {
			if c.id == id {
				code, text, sources = CodeToolOutcomeUnknown, outcomeUnknown, []int64{c.seq}
			}
		}
		drafts = append(drafts, Draft{Sources: sources, Payload: &ToolResult{
			Turn: s.g.turn, Step: s.g.step, ErrorName: "Interrupted", ErrorCode: code,
			Message: message.Message{
				ID: message.ID(fmt.Sprintf("interrupted-tool-result-%s-%d", id, seq)), Role: message.RoleUser,
				Content: []message.Block{message.ToolResult(id, []message.Block{message.Text(text)}, true)},
				Source:  message.NewSource(message.SourceTool, message.SourceDetails{CallID: id}),
			},
		}})
		seq++
	}
	return drafts
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// repair commits the repair of a log that a crash cut, to the store first: if
// that fails the session is not handed out, so memory never gets ahead of what is
// stored (core S35, S39).
func (s *Session) repair(ctx context.Context) error {
	drafts := s.repairDrafts()
	if drafts == nil {
		return nil
	}
	s.mu.Lock()
	last, _ := s.tipLocked()
	s.mu.Unlock()
	if _, err := s.append(last.time, drafts); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	if err := s.Flush(ctx); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	return nil
}

// Report is what Verify found out about a log.
type Report struct {
	Events int64
	Turns  int64
	// OpenTurn is the number of a trailing turn that was not closed: legal, it is
	// what a crash leaves until the session is opened again. 0 for none.
	OpenTurn int64
	// Queued counts accepted messages that no turn has claimed.
	Queued int
	// Identity is why the log of a delegated session that has run does not say which
	// child it is, or nil. The conversation is whole all the same, and a session that is
	// the root of its tree needs no identity (core D32; amendments P19, P22).
	Identity error
}

// Verify replays a stored log through every rule that appends obey and returns
// the first fault: a *CorruptError, *UnsupportedError or *InvariantError. It
// needs no store, changes nothing, and keeps neither events nor messages: its
// memory grows with the number of surface events, not with their size.
func (r *Registry) Verify(rec Record, events iter.Seq2[Event, error]) (Report, error) {
	s, err := r.rebuild(rec, events, true)
	if err != nil {
		return Report{}, err
	}
	rep := s.report()
	if err := rec.Incomplete(); err != nil {
		return rep, &CorruptError{ID: rec.Header.ID, Seq: -1, Err: err}
	}
	if rep.Events != rec.Head {
		return rep, &CorruptError{ID: rec.Header.ID, Seq: rep.Events, Err: fmt.Errorf("the record counts %d events", rec.Head)}
	}
	for _, c := range rec.Cells {
		if c.Seq >= rec.Head {
			return rep, &CorruptError{ID: rec.Header.ID, Seq: c.Seq, Err: fmt.Errorf("checkpoint %q lies ahead of the log", c.Key)}
		}
	}
	return rep, nil
}

// report sums up a log that was replayed.
func (s *Session) report() Report {
	rep := Report{Events: s.g.head, Turns: s.g.turn, Queued: len(s.box.lists[0]) + len(s.box.lists[1])}
	if s.g.turnOpen {
		rep.OpenTurn = s.g.turn
	}
	if s.header.Origin == OriginSubagent && s.ran {
		switch {
		case s.own == nil:
			rep.Identity = errors.New("it was delegated and has run, but its log holds no descriptor of its own")
		case s.own.Err != nil:
			rep.Identity = s.own.Err
		}
	}
	return rep
}

// Restore rebuilds a session from a stored log for reading only: it is neither
// live nor appendable, nothing is repaired, and no ownership is taken.
func (r *Registry) Restore(rec Record, events iter.Seq2[Event, error]) (*Session, error) {
	s, err := r.rebuild(rec, events, false)
	if err != nil {
		return nil, err
	}
	s.closed = true
	return s, nil
}
