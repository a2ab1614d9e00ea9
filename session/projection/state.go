package projection

import (
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// The activities that a log can tell.
const (
	// Idle: no turn is open and nothing that wakes waits.
	Idle = "idle"
	// Running: a turn is open. Without a live owner (session.Record.Live) it was
	// interrupted.
	Running = "running"
	// Queued: no turn is open, and accepted work that wakes waits for one.
	Queued = "queued"
	// Parked is Queued where the work came in with an imported log and waits for a
	// person (session.Session.Parked).
	Parked = "parked"
	// Interrupted is never stored: it is what State.Activity makes of Running.
	Interrupted = "interrupted"
)

// State is what a session is doing as of its log.
type State struct {
	// State is Idle, Running, Queued or Parked.
	State string
	// Turn is the last turn that was opened in the session's own events, or 0.
	Turn int64
	// Reason is how the last closed turn ended, or "".
	Reason session.EndKind
	// Waiting counts accepted messages that no turn has claimed, Waking those of
	// them that were sent to wake.
	Waiting, Waking int64
	// Imported says that the log, or its beginning, came from elsewhere.
	Imported bool
	// Epoch counts the own settled events, and Settled is the stop reason of the last,
	// or "" (design § 4, Settlement is derived). Unsettled says that a turn was opened
	// since; without a settled event, at all.
	Epoch     int64
	Settled   string
	Unsettled bool

	open bool
	// spent is the time of the closed turns and since the start of the open one,
	// or 0 (see Timing).
	spent, since int64
	// One byte for each waiting message of a list, so that a splice can be told
	// apart by position.
	nextTurn, nextStep string
	// sent counts what a person has sent since the import and nobody cancelled.
	sent int64
}

// Activity combines the state with whether a live process holds the session
// (session.Record.Live): a running session without one was interrupted.
func (s State) Activity(live bool) string {
	if s.State == Running && !live {
		return Interrupted
	}
	return s.State
}

// The marks: what wakes, and what does not; in an imported log also what a person
// sent since then, and what came with it of the first two kinds.
const (
	wakes        = "w"
	waits        = "-"
	sent         = "s"
	foreignWakes = "f"
	foreignWaits = "q"
)

// StateUnit folds turns and the inbox into a *State, and with them the time that
// was spent in turns (see State.Timing).
func StateUnit() Unit {
	zero := &State{State: Idle}
	return Unit{
		Key: session.CellState, Version: cellVersion,
		Types:  []session.Type{session.TypeTurnStart, session.TypeTurnEnd, session.TypeInboxSpliced, session.TypeImported, session.TypeDescriptor, session.TypeSettled},
		Init:   func(*session.Header) Value { return zero },
		Apply:  applyState,
		Append: appendState,
		Parse:  parser(parseState),
	}
}

func applyState(v Value, e *session.Event, p session.Payload) Value {
	old, ok := v.(*State)
	if !ok {
		return v
	}
	next := *old
	switch p := p.(type) {
	case *session.TurnStart:
		next.open, next.Turn, next.Unsettled = true, p.Turn, true
		next.since = max(e.Time, 1)
	case *session.TurnEnd:
		next.account(e.Time)
		next.open, next.Reason = false, p.Kind
	case *session.DescriptorEvent:
		next.spent = 0
	case *session.Settled:
		next.Epoch, next.Settled, next.Unsettled = min(next.Epoch+1, jsonx.MaxSafe), p.StopReason, false
	case *session.InboxSpliced:
		list := &next.nextTurn
		if p.Target == session.NextStep {
			list = &next.nextStep
		}
		*list = next.splice(*list, p)
	case *session.Imported:
		next.Imported, next.sent = true, 0
		alien := strings.NewReplacer(wakes, foreignWakes, sent, foreignWakes, waits, foreignWaits)
		next.nextTurn, next.nextStep = alien.Replace(next.nextTurn), alien.Replace(next.nextStep)
	}
	next.derive()
	if next == *old {
		return v
	}
	changed := next // not next itself: what is unchanged costs no memory
	return &changed
}

func (s *State) splice(list string, p *session.InboxSpliced) string {
	// The log checks splices; a fold over a log that was not checked stays in bounds.
	start := min(max(p.Start, 0), int64(len(list)))
	end := start + min(max(p.Removed, 0), int64(len(list))-start)
	var add strings.Builder
	for i := range p.Inserted {
		switch {
		case p.NoWake:
			add.WriteString(waits)
		case s.Imported && p.Inserted[i].Source.Kind == message.SourceUser:
			add.WriteString(sent)
			s.sent++
		default:
			add.WriteString(wakes)
		}
	}
	if p.Canceled {
		s.sent -= int64(strings.Count(list[start:end], sent))
	}
	return list[:start] + add.String() + list[end:]
}

// derive computes the visible fields.
func (s *State) derive() {
	s.Waiting, s.Waking = int64(len(s.nextTurn)+len(s.nextStep)), 0
	foreign := false
	for _, list := range [...]string{s.nextTurn, s.nextStep} {
		for i := range len(list) {
			switch list[i : i+1] {
			case wakes, sent:
				s.Waking++
			case foreignWakes:
				s.Waking++
				foreign = true
			case foreignWaits:
				foreign = true
			}
		}
	}
	switch {
	case s.open:
		s.State = Running
	case s.Waking > 0 && foreign && s.sent == 0:
		s.State = Parked
	case s.Waking > 0:
		s.State = Queued
	default:
		s.State = Idle
	}
}

func appendState(buf []byte, v Value) []byte {
	s, ok := v.(*State)
	if !ok {
		return append(buf, "null"...)
	}
	buf = jsonx.AppendStringField(append(buf, '{'), "state", s.State)
	buf = jsonx.AppendIntField(buf, "turn", s.Turn)
	if s.Reason != "" {
		buf = jsonx.AppendStringField(buf, "reason", string(s.Reason))
	}
	buf = jsonx.AppendIntField(buf, "queued", s.Waiting)
	if s.nextTurn != "" {
		buf = jsonx.AppendStringField(buf, "nextTurn", s.nextTurn)
	}
	if s.nextStep != "" {
		buf = jsonx.AppendStringField(buf, "nextStep", s.nextStep)
	}
	if s.Imported {
		buf = jsonx.AppendIntField(jsonx.AppendTrueField(buf, "imported"), "sent", s.sent)
	}
	if s.spent > 0 {
		buf = jsonx.AppendIntField(buf, "settledMs", s.spent)
	}
	if s.since > 0 {
		buf = jsonx.AppendIntField(buf, "since", s.since)
	}
	if s.Epoch > 0 {
		buf = jsonx.AppendIntField(buf, "epoch", s.Epoch)
		if s.Settled != "" {
			buf = jsonx.AppendStringField(buf, "settled", s.Settled)
		}
		if s.Unsettled {
			buf = jsonx.AppendTrueField(buf, "unsettled")
		}
	}
	return append(buf, '}')
}

func parseState(_ *session.Header, data []byte) (*State, error) {
	s := &State{}
	var stated string
	queued := int64(-1)
	err := jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		switch key {
		case "state":
			return setString(&stated, raw)
		case "turn":
			return setInt(&s.Turn, raw)
		case "reason":
			return setString(&s.Reason, raw)
		case "queued":
			return setInt(&queued, raw)
		case "nextTurn":
			return setString(&s.nextTurn, raw)
		case "nextStep":
			return setString(&s.nextStep, raw)
		case "imported":
			s.Imported, err = jsonx.Bool(raw)
			return err
		case "sent":
			return setInt(&s.sent, raw)
		case "settledMs":
			return setInt(&s.spent, raw)
		case "since":
			return setInt(&s.since, raw)
		case "epoch":
			return setInt(&s.Epoch, raw)
		case "settled":
			return setString(&s.Settled, raw)
		case "unsettled":
			s.Unsettled, err = jsonx.Bool(raw)
			return err
		}
		return jsonx.UnknownKey(key)
	})
	if err != nil {
		return nil, err
	}
	for _, list := range []string{s.nextTurn, s.nextStep} {
		if strings.Trim(list, wakes+waits+sent+foreignWakes+foreignWaits) != "" {
			return nil, fmt.Errorf("inbox list %q holds unknown marks", list)
		}
	}
	switch {
	case s.Epoch == 0 && (s.Settled != "" || s.Unsettled):
		return nil, fmt.Errorf("an end %q of no epoch", s.Settled)
	case s.Epoch == 0:
		s.Unsettled = s.Turn > 0
	}
	s.open = stated == Running
	s.derive()
	if s.State != stated || s.Waiting != queued {
		return nil, fmt.Errorf("state %q with %d queued contradicts its lists", stated, queued)
	}
	return s, nil
}

// StateOf returns the state that a record's checkpoint holds; false means that it
// does not tell.
func StateOf(rec *session.Record) (State, bool) { return value(stateOf(rec)) }

func stateOf(rec *session.Record) *State { return of(rec, session.CellState, parseState) }
