package subagent

import (
	"context"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// ReasonOf maps the turn that accounts for a child's work to a stop reason: the one table
// of one-shot children and of epochs (core L37; seam DRV-12, EVT-24). interrupted is what
// a turn that a crash cut counts as: StopError for a one-shot child, whose work is lost,
// StopAborted for an epoch, which can go on (seam AMB-16).
func ReasonOf(end *session.TurnEnd, interrupted StopReason) StopReason {
	switch end.Kind {
	case session.EndCompleted:
		return StopCompleted
	case session.EndMaxTokens:
		return StopMaxTokens
	case session.EndAborted:
		return StopAborted
	case session.EndBlocked, session.EndRefusal:
		return StopRefusal
	case session.EndInterrupted:
		return interrupted
	}
	return StopError
}

// epochEnd is what an epoch came to.
type epochEnd struct {
	epoch   int64
	reason  StopReason
	output  []message.Block
	failure string // why it failed, or ""
	unread  int    // messages that were sent to it and that no turn took
	seq     int64  // of its subagent/settled, or -1
	// settled says that subagent/settled is stored; only then does the epoch count as
	// over. open says that it is not over: it goes on when the child is next opened.
	settled, open bool
	// foreign says that all that ran of it ran elsewhere: the log was imported since.
	foreign bool
}

// epochFold follows an epoch of a child: what it comes to, and what was sent to it and
// never taken up.
type epochFold struct {
	outcome session.Outcome
	// What waits in next-turn and next-step: whether it counts as sent to the child.
	waiting [2][]bool
	dropped int  // how many of those were cancelled
	foreign bool // the log was imported, and no turn was opened since
}

// foldEpoch returns the fold of the epoch that goes on or begins with a session. The error
// is why its log cannot be read.
func foldEpoch(ctx context.Context, s *session.Session) (f epochFold, err error) {
	from := s.Header().SeedLength
	if e := s.Epochs(); e.Last != nil {
		from = e.LastSeq + 1
	}
	fromInbox := func() {
		for i, t := range inboxes {
			for _, q := range s.Inbox(t) {
				f.waiting[i] = append(f.waiting[i], forChild(&q.Message))
			}
		}
	}
	if untouched(s, from) {
		fromInbox()
		return f, nil
	}
	if err := s.Load(ctx); err != nil {
		return f, err
	}
	// What waits is that of the inbox, unless something moved in it since: then it is that
	// of the beginning, which the whole log tells.
	moved := false
	for e := range s.Events(from) {
		moved = moved || e.Type == session.TypeInboxSpliced
	}
	start := s.Header().SeedLength
	if !moved {
		start = from
		fromInbox()
	}
	// One that a crash cut goes on, with what came before in it.
	for e := range s.Events(start) {
		if moved && e.Seq == from {
			f.begin()
		}
		f.Apply(&e)
	}
	return f, nil
}

// untouched reports whether a session's log says nothing of an epoch that begins at from.
// Only what came since the session was opened is looked at, which needs no reading.
func untouched(s *session.Session, from int64) bool {
	if from < s.FirstLive() {
		return false
	}
	for e := range s.Events(from) {
		if e.Type == session.TypeTurnStart || e.Type == session.TypeInboxSpliced {
			return false
		}
	}
	return true
}

// begin forgets all but what waits.
func (f *epochFold) begin() { f.outcome, f.dropped, f.foreign = session.Outcome{}, 0, false }

// Apply implements session.Fold.
func (f *epochFold) Apply(e *session.Event) {
	f.outcome.Apply(e)
	var p *session.InboxSpliced
	switch q := e.Payload().(type) {
	case *session.Imported:
		f.foreign = true
		return
	case *session.TurnStart:
		f.foreign = false
		return
	case *session.InboxSpliced:
		p = q
	default:
		return
	}
	list := &f.waiting[0]
	if p.Target == session.NextStep {
		list = &f.waiting[1]
	}
	if p.Canceled && len(p.Inserted) == 0 {
		f.dropped += count((*list)[p.Start : p.Start+p.Removed])
	}
	added := make([]bool, len(p.Inserted))
	for i := range p.Inserted {
		added[i] = forChild(&p.Inserted[i])
	}
	*list = slices.Replace(*list, int(p.Start), int(p.Start+p.Removed), added...)
}

// unread counts what was sent to the child and no turn took.
func (f *epochFold) unread() int { return f.dropped + count(f.waiting[0]) + count(f.waiting[1]) }

func count(list []bool) (n int) {
	for _, yes := range list {
		if yes {
			n++
		}
	}
	return n
}

// forChild tells what somebody sent to a child from what its own tools and its own
// children left in its inbox.
func forChild(m *message.Message) bool {
	switch m.Source.Kind {
	case message.SourcePlugin, message.SourceTool, message.SourceModel, message.SourceSubagentReport, message.SourceSubagentSettled:
		return false
	}
	return true
}

// inboxes are the lists of an inbox.
var inboxes = [2]session.Target{session.NextTurn, session.NextStep}

// conclude finds out what an epoch came to, while its agent is still registered, and makes
// that part of the child's log. told says that somebody waits for it.
func (m *manager) conclude(act *activation, told bool) epochEnd {
	s := act.agent.Session()
	m.mu.Lock()
	failure := act.failure
	m.mu.Unlock()
	e := epochEnd{epoch: act.epoch, seq: -1}
	seq := int64(-1)
	var end *session.TurnEnd
	dropped := false
	act.with(func() {
		o := &act.fold.outcome
		end, dropped = o.End(), o.DroppedUnrun()
		e.output, seq, _ = o.Output()
		e.unread, e.foreign = act.fold.unread(), act.fold.foreign
	})
	if e.output == nil {
		if text := act.agent.StreamedText(); text != "" {
			e.output = []message.Block{message.Text(text)}
		}
	}
	waking := waits(s)
	e.reason, e.failure = epochReason(end, failure, dropped || waking > 0)
	if !told {
		return e
	}
	if act.ending.process && waking > 0 && !stopped(s) {
		// What was accepted and is still to run belongs to this epoch: it goes on under the
		// same number when the child is opened again.
		e.open = true
		return e
	}
	at, err := s.Append(session.Draft{Payload: &session.Settled{Epoch: e.epoch, StopReason: string(e.reason), OutputSeq: seq}})
	if err == nil {
		e.seq = at
		_, err = m.agents.Sessions().Flush(m.svc.ctx, s)
		e.settled = s.Durable() > at
	}
	if err != nil {
		// Neither the reason nor the end of a drain depends on it (seam TEAR-07).
		m.svc.fault("the final flush of a subagent failed", err, "agent", string(act.id))
	}
	return e
}

// stopped reports whether an interrupt parked what waits: the last turn was stopped by a
// person or a parent, and nothing that wakes was sent since (spec amendments, who goes on
// after a crash).
func stopped(s *session.Session) bool {
	end, at := s.LastEnd()
	if end == nil || end.Kind != session.EndAborted || end.Cause.Kind != session.CauseUser && end.Cause.Kind != session.CauseParent {
		return false
	}
	for _, t := range inboxes {
		for _, q := range s.Inbox(t) {
			if q.Wake && q.Seq > at {
				return false
			}
		}
	}
	return true
}

// epochReason derives why an epoch ended (seam EVT-24…28, INT-17). unrun says that
// accepted work will not run in it.
func epochReason(end *session.TurnEnd, failure error, unrun bool) (reason StopReason, why string) {
	switch {
	case end == nil && failure != nil:
		return StopError, failure.Error()
	case end == nil && unrun:
		return StopAborted, ""
	case end == nil:
		return StopCompleted, ""
	}
	reason = ReasonOf(end, StopAborted)
	if reason == StopCompleted && unrun {
		reason = StopAborted
	}
	if end.Failure != nil {
		why = end.Failure.Code + ": " + end.Failure.Message
	}
	return reason, why
}

// Settlement is what an epoch of a continuable child came to.
type Settlement struct {
	// ID is that of the notice: where a tool result carries the outcome to the parent
	// instead, its meta is session.SettledMeta(ID), which takes the settlement.
	ID    message.ID
	Child session.ID
	Label string
	// Epoch counts the residencies of the child, from 1.
	Epoch      int64
	StopReason StopReason
	// Output is the child's final output, or nil. It must not be modified.
	Output []message.Block
	// Failure says why it failed, for StopError; Unread counts the messages that were sent
	// to it and that it never took up: they were discarded, or wait for its next epoch.
	Failure string
	Unread  int

	at int64 // when it was stored, in ms; 0 for one of this process
}

func (m *manager) settlement(act *activation, e *epochEnd) Settlement {
	id := session.SettlementID(act.id, e.epoch)
	if !e.settled {
		id = message.ID(fmt.Sprintf("unsaved:%s:%s", act.id, act.runID))
	}
	return Settlement{
		ID: id, Child: act.id, Label: act.label, Epoch: e.epoch, StopReason: e.reason,
		Output: e.output, Failure: e.failure, Unread: e.unread,
	}
}

// headline is the outcome in one line (seam NOTE-04).
func (s *Settlement) headline() string {
	name := fmt.Sprintf("Subagent %q (%s)", s.Label, s.Child)
	switch s.StopReason {
	case StopCompleted:
		return name + " has finished."
	case StopAborted:
		return name + " was stopped before it was done."
	case StopMaxTokens:
		return name + " ran out of room: its answer reached the token limit and is not complete."
	case StopRefusal:
		return name + " declined the work."
	case StopError:
		if s.Failure != "" {
			return name + " failed: " + s.Failure
		}
		return name + " failed."
	}
	return fmt.Sprintf("%s ended before it was done (%s).", name, s.StopReason)
}

// maxNoticeText bounds the child's own words in a notice, in bytes of each block: of more,
// head and tail are told.
const maxNoticeText = 64 << 10

// Message is the notice: what the parent's model reads (seam NOTE-01, NOTE-05).
func (s *Settlement) Message() message.Message {
	head := s.headline()
	if s.Unread > 0 {
		head += fmt.Sprintf(" %d message(s) that were sent to it were not taken up.", s.Unread)
	}
	var said []message.Block
	for _, b := range s.Output {
		if b.Type == message.BlockText && b.Text != "" {
			b.Text = tool.Clip(b.Text, maxNoticeText)
			said = append(said, b)
		}
	}
	if said == nil {
		head += "\nIt left no closing message."
	} else {
		head += "\nIts closing message:"
	}
	return message.Message{
		ID: s.ID, Role: message.RoleUser, Content: append([]message.Block{message.Text(head)}, said...),
		Source: message.NewSource(message.SourceSubagentSettled, message.SourceDetails{
			Form: message.FormNotice, SenderSessionID: string(s.Child), Summary: summary(s),
		}),
	}
}

// summary is the line of a notice for people, of at most 120 characters.
func summary(s *Settlement) string {
	word := map[StopReason]string{
		StopCompleted: "finished", StopAborted: "stopped", StopMaxTokens: "ran out of room", StopRefusal: "declined", StopError: "failed",
	}[s.StopReason]
	if word == "" {
		word = "ended"
	}
	const most = 120
	text := "subagent " + word + ": "
	return text + oneLine(s.Label, most-len(text))
}
