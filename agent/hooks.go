package agent

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/offshoot-dev/offshoot/internal/hooks"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// Hooks extend the loop. They run synchronously, in the order of registration,
// those of the registry before those of the agent, without locks, and with panics
// contained. They may call the agent's non-blocking operations. Hooks of different
// agents run at the same time. A nil field is skipped.
type Hooks struct {
	// Created runs when an agent was published; an error vetoes it (core L40):
	// hooks behind the one that vetoes do not hear of the agent.
	Created func(*Agent) error
	// Disposed runs when an announced agent left the registry: nothing of it is
	// told afterwards (core I7).
	Disposed func(*Agent)
	// Rest runs whenever the agent has become Quiescent: a turn, a maintenance job, an
	// Accept, or the building of the agent is over and nothing follows at once. By the
	// time of the call it may be at work again. It runs in the order of what the agent
	// tells, as Status and Inbox do, and must not wait for the agent.
	Rest func(*Agent)
	// Status runs on every change of the public status (core L3).
	Status func(*Agent, Status)
	// Inbox runs for every message that is enqueued, dequeued (claimed) or
	// discarded, in the order of the log (amendment P09). Status and Inbox hooks of
	// one agent never overlap: what happens while one runs is told by whoever called
	// it, so another caller's Send may return a little before its hooks have run.
	Inbox func(*Agent, InboxEvent)

	// TurnOpen returns drafts that enter the log in one hold with turn/start.
	TurnOpen func(a *Agent, turn int64) ([]session.Draft, error)
	// StepDue runs when a step is due, before its prompt is assembled and the pre-step
	// chain is asked: what changes the surface of the log so that the step fits does it
	// here. incoming is what was claimed for it, and must not be modified. An error
	// fails the turn.
	StepDue func(ctx context.Context, a *Agent, turn int64, incoming []session.Queued) error
	// PreStep may rewrite or reject what enters a step (core L17). An error fails
	// the turn.
	PreStep func(ctx context.Context, p *PreStep) error
	// Request may replace the configuration of a model call (core L39).
	Request func(ctx context.Context, a *Agent, c *llm.CallConfig) error
	// RequestError is asked when a call failed for good: true makes another
	// attempt in the same step (core L39).
	RequestError func(ctx context.Context, a *Agent, f message.Failure, attempt int) bool
	// TurnStopping runs when a turn is about to end as end; it may steer or inject,
	// which makes another step instead (core L20). The turn stays open until it
	// returns, which it does soon after ctx ends.
	TurnStopping func(ctx context.Context, a *Agent, end session.EndKind)

	// Chunk sees the live stream. It must be quick: it runs between two chunks.
	Chunk func(*Agent, llm.Chunk)
	// ToolStarted and ToolEnded bracket every dispatched call.
	ToolStarted func(*Agent, *tool.Call)
	ToolEnded   func(*Agent, *tool.Call, tool.Result)
	// Failed runs when a turn ended in error and nobody cancelled it (core L23).
	Failed func(*Agent, error)
}

// PreStep is what the pre-step chain decides on.
type PreStep struct {
	Agent *Agent
	Turn  int64
	// Step is the number that the step would have.
	Step int64
	// Messages are what would enter; a hook may add, drop or rewrite.
	Messages []message.Message

	rejected bool
}

// Reject keeps the step from starting: the turn ends as blocked and what was
// claimed is gone (core L18). Later hooks are not asked.
func (p *PreStep) Reject() { p.rejected = true }

// InboxChange says what happened to a message. The names are the seeds'.
type InboxChange string

// The inbox changes.
const (
	InboxEnqueue InboxChange = "agent/inbox/enqueue"
	InboxDequeue InboxChange = "agent/inbox/dequeue"
	InboxDiscard InboxChange = "agent/inbox/discard"
)

// InboxEvent is one change of an inbox.
type InboxEvent struct {
	Change  InboxChange
	Target  session.Target
	Message message.Message
	Turn    int64 // of a dequeue
}

// PanicError is a panic that was contained (core G10).
type PanicError struct {
	Where string
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Where, e.Value) }

// contain runs fn and turns a panic into a *PanicError.
func contain(where string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Where: where, Value: p, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// each calls fn for every hook set that concerns the agent until fn says stop.
func (a *Agent) each(fn func(*Hooks) (more bool)) {
	for _, l := range [2]*hooks.List[Hooks]{&a.reg.hooks, &a.hooks} {
		for _, h := range l.All() {
			if !fn(h) {
				return
			}
		}
	}
}

// tell calls an observing hook and logs what it did wrong.
func (a *Agent) tell(where string, fn func()) {
	if err := contain(where, func() error { fn(); return nil }); err != nil {
		a.log().Error("hook failed", "hook", where, "error", err)
	}
}

func (a *Agent) log() *slog.Logger { return a.reg.cfg.Logger.With("agent", string(a.ID())) }

// note is one thing that hooks and observers are told of. Notes are taken under
// the agent's lock, in one hold with what they report, and told without it, so
// their order is that of the log and of the phases (core L3, G6; amendment P09).
type note struct {
	kind     noteKind
	observed bool // of a status: observers have it already
	nextStep bool // of a message: the list that it was put into or taken from; otherwise the next turn's
	message  *message.Message
	turn     int64         // of a dequeue
	done     chan struct{} // closed when everything before it was told
}

func (n *note) target() session.Target {
	if n.nextStep {
		return session.NextStep
	}
	return session.NextTurn
}

// noteLocked puts a note behind the others.
func (a *Agent) noteLocked(n note) {
	if a.notes == nil {
		a.notes = a.fewNotes[:0]
	}
	a.notes = append(a.notes, n)
}

// noteInboxLocked notes what became of a message.
func (a *Agent) noteInboxLocked(kind noteKind, target session.Target, m *message.Message, turn int64) {
	a.noteLocked(note{kind: kind, nextStep: target == session.NextStep, message: m, turn: turn})
}

// noteStatusLocked notes a change of the public status. Observers get it at once: who
// tells the hooks may be another goroutine than the driver, whose own events follow.
func (a *Agent) noteStatusLocked(s Status) {
	kind := noteIdle
	if s == Running {
		kind = noteRunning
	}
	a.noteLocked(note{kind: kind, observed: a.audible})
	if a.audible {
		a.reg.observe(Event{Kind: EventStatus, Agent: a, Status: s})
	}
}

type noteKind uint8

const (
	noteIdle noteKind = iota
	noteRunning
	noteEnqueue
	noteDequeue
	noteDiscard
	noteDone // an activity is over
	noteRest // nothing of the agent runs
	noteGone // the agent left the registry
)

// maxIdleNotes bounds what an agent at work keeps of its queue while it is empty.
const maxIdleNotes = 16

// deliver tells what is noted. One goroutine at a time does: what others note
// meanwhile, or a hook that it calls, it tells too, and their deliver returns at
// once. Nothing is told before the agent was announced.
func (a *Agent) deliver() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.telling {
		return
	}
	if !a.audible {
		a.forgoLocked()
		return
	}
	a.telling = true
	for i := 0; i < len(a.notes); i++ {
		n := a.notes[i]
		if n.done == a.untold {
			a.untold = nil
		}
		a.mu.Unlock()
		a.tellNote(&n)
		a.mu.Lock()
	}
	a.telling = false
	clear(a.notes)
	a.notes = a.notes[:0]
	if a.quiescentLocked() || cap(a.notes) > maxIdleNotes {
		a.notes = nil
	}
}

// forgoLocked lets those go on who wait for what is not told.
func (a *Agent) forgoLocked() {
	for i := range a.notes {
		n := &a.notes[i]
		if n.done == nil {
			continue
		}
		if n.done == a.untold {
			a.untold = nil
		}
		close(n.done)
		n.done = nil
	}
}

func (a *Agent) tellNote(n *note) {
	switch n.kind {
	case noteIdle:
		a.tellStatus(Idle, n.observed)
	case noteRunning:
		a.tellStatus(Running, n.observed)
	case noteEnqueue:
		a.tellInbox(InboxEnqueue, n)
	case noteDequeue:
		a.tellInbox(InboxDequeue, n)
	case noteDiscard:
		a.tellInbox(InboxDiscard, n)
	case noteRest:
		a.each(func(h *Hooks) bool {
			if h.Rest != nil {
				a.tell("rest", func() { h.Rest(a) })
			}
			return true
		})
	case noteGone:
		a.each(func(h *Hooks) bool {
			if h.Disposed != nil && !slices.Contains(a.unreached, h) {
				a.tell("disposed", func() { h.Disposed(a) })
			}
			return true
		})
		if a.observed {
			a.reg.observe(Event{Kind: EventDisposed, Agent: a})
		}
	}
	if n.done != nil {
		close(n.done)
	}
}

func (a *Agent) tellStatus(s Status, observed bool) {
	a.each(func(h *Hooks) bool {
		if h.Status != nil {
			a.tell("status", func() { h.Status(a, s) })
		}
		return true
	})
	if !observed {
		a.reg.observe(Event{Kind: EventStatus, Agent: a, Status: s})
	}
}

func (a *Agent) tellInbox(c InboxChange, n *note) {
	a.each(func(h *Hooks) bool {
		if h.Inbox != nil {
			a.tell("inbox", func() {
				h.Inbox(a, InboxEvent{Change: c, Target: n.target(), Message: *n.message, Turn: n.turn})
			})
		}
		return true
	})
}

func (a *Agent) notifyChunk(c llm.Chunk) {
	a.each(func(h *Hooks) bool {
		if h.Chunk != nil {
			a.tell("chunk", func() { h.Chunk(a, c) })
		}
		return true
	})
	a.reg.observe(Event{Kind: EventChunk, Agent: a, Chunk: c})
}

func (a *Agent) notifyToolStarted(c *tool.Call, seq int64) {
	a.each(func(h *Hooks) bool {
		if h.ToolStarted != nil {
			a.tell("tool started", func() { h.ToolStarted(a, c) })
		}
		return true
	})
	a.reg.observe(Event{Kind: EventToolStarted, Agent: a, Call: c, seq: seq})
}

func (a *Agent) notifyToolEnded(c *tool.Call, r tool.Result) {
	a.each(func(h *Hooks) bool {
		if h.ToolEnded != nil {
			a.tell("tool ended", func() { h.ToolEnded(a, c, r) })
		}
		return true
	})
	a.reg.observe(Event{Kind: EventToolEnded, Agent: a, Call: c, Failed: r.IsError})
}
