package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/internal/hooks"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// Status is what the world may know of an agent's phase (core L1).
type Status string

// The two statuses. Maintenance reads as idle.
const (
	Idle    Status = "idle"
	Running Status = "running"
)

// Options choose the model of an agent. Zero fields are undeclared.
type Options struct {
	Provider, Model string
	ReasoningEffort string
	Temperature     *float64
	MaxTokens       int64
	// Cwd is the folder to work in where the session's own, which its header names,
	// is not of this machine; "" is the session's own. Children work in it too.
	Cwd string
	// Depth is the run-time delegation depth; the seam alone sets and reads it
	// (seam DEP-13). The header's depth counts where it is greater.
	Depth *int64
}

// Errors of an agent's operations.
var (
	// ErrDisposed: the agent is being disposed or is gone; nothing was accepted.
	ErrDisposed = errors.New("agent is disposed")
	// ErrBusy: the operation needs an idle agent.
	ErrBusy = errors.New("agent is running")
	// ErrSelfDispose: an agent's own activity asked for its disposal and would wait for itself.
	ErrSelfDispose = errors.New("an agent cannot be disposed from within its own activity")
	// ErrBuilding: the agent is not published yet, and may never be.
	ErrBuilding = errors.New("agent is still being built")
	// ErrUncertain: an Accept failed, and so did the write of its cancellation: the
	// message is stored, or may be, and may run after a restart.
	ErrUncertain = errors.New("the outcome is not certain")
	// ErrNotPending: the message does not wait in the inbox, or was claimed already.
	ErrNotPending = errors.New("message is not pending")
)

// Agent is a live agent. Its identity is the pointer: an id proves nothing.
type Agent struct {
	reg     *Registry
	session *session.Session
	owner   *Agent
	above   []string // see Create.Above
	tools   *tool.Scope
	prompts *prompt.Scope
	hooks   hooks.List[Hooks]
	options Options
	resumed bool

	mu sync.Mutex // guards following; never held while waiting or calling out

	phase     phase
	act       *activity // nil exactly while the phase is idle
	closing   bool
	keep      bool   // what waits in the inbox outlives the disposal
	claimed   [2]int // messages at the head of the lists that a pre-step chain holds
	children  map[*Agent]struct{}
	work      []*Work       // runs for it beyond its turns
	stopped   bool          // they were told to stop
	partial   string        // text streamed by an attempt that left no message
	accepting []*Acceptance // those that are not finished
	notes     []note        // what hooks and observers are still to be told, in order
	fewNotes  [4]note       // room for those that are taken before somebody tells them, nearly always
	telling   bool          // somebody is telling them
	audible   bool          // the agent was announced: it may be told of
	untold    chan struct{} // done of the last activity, while its end is not told

	gone chan struct{} // made by the first Dispose, closed when it is complete
	err  error         // its outcome

	// Set while the agent is built, read by its disposal.
	unwind    []func() // scope teardown, run last to first
	detach    func(context.Context) error
	entered   bool
	announced bool     // Created hooks were called: Disposed hooks are owed
	observed  bool     // observers were told of the creation
	unreached []*Hooks // Created hooks behind the one that vetoed

	// Only the driver touches these.
	asked   bool              // a request was made by this loop instance
	vars    map[string]string // what the prompt is assembled from
	system  string            // the prompt of the current step
	ctxText string            // the newest runtime context in the history, as of ctxSeen messages
	ctxGen  int64
	ctxSeen int
}

type phase uint8

const (
	phaseIdle phase = iota
	// phaseBuilding lasts from the first line of a creation to its return: who
	// disposes the agent meanwhile waits for that.
	phaseBuilding
	phaseMaintenance
	phaseRunning
)

// activity is one turn, one maintenance job, or the building of the agent. A turn
// that follows at once is an activity of its own.
type activity struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	cause  *session.Cause // the first one; nil while nobody cancelled
	latch  bool           // a wake arrived that this activity cannot serve
	done   chan struct{}
}

// NewMessageID returns a fresh message id.
func NewMessageID() message.ID { return message.ID(uuid.NewString()) }

// UserText returns a message as a person would have typed it.
func UserText(text string) message.Message {
	return message.Message{ID: NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.Text(text)}, Source: message.UserSource()}
}

// ID returns the id that the agent shares with its session.
func (a *Agent) ID() session.ID { return a.session.ID() }

// SessionID implements tool.Caller.
func (a *Agent) SessionID() string { return string(a.session.ID()) }

// Root implements tool.Caller: no other agent is above this one at run time.
func (a *Agent) Root() bool { return a.owner == nil && len(a.above) == 0 }

// Owner returns the agent that owns this one at run time, or nil. Ownership is
// independent of the durable lineage (core L46).
func (a *Agent) Owner() *Agent { return a.owner }

// Path returns the ids of those above the agent, the outermost first, and its own.
func (a *Agent) Path() []string {
	n := 0
	top := a
	for b := a; b != nil; b = b.owner {
		n++
		top = b
	}
	path := make([]string, len(top.above)+n)
	copy(path, top.above)
	n = len(path)
	for b := a; b != nil; b = b.owner {
		n--
		path[n] = b.SessionID()
	}
	return path
}

// Cwd returns the folder that the agent works in, or "".
func (a *Agent) Cwd() string {
	if a.options.Cwd != "" {
		return a.options.Cwd
	}
	return a.session.Header().Cwd
}

// Session returns the agent's log.
func (a *Agent) Session() *session.Session { return a.session }

// Tools returns the agent's own tool scope.
func (a *Agent) Tools() *tool.Scope { return a.tools }

// Prompts returns the agent's own prompt scope.
func (a *Agent) Prompts() *prompt.Scope { return a.prompts }

// Options returns what the agent was declared with.
func (a *Agent) Options() Options { return a.options }

// Declare replaces what the agent was declared with, for one whose log says what it is.
// It may be called during Setup only.
func (a *Agent) Declare(o Options) { a.options = o }

// Registry returns the registry that the agent lives in.
func (a *Agent) Registry() *Registry { return a.reg }

// Resumed reports whether the agent goes on with a stored session.
func (a *Agent) Resumed() bool { return a.resumed }

// AddHooks registers hooks for this agent alone, behind those of the registry.
func (a *Agent) AddHooks(h Hooks) (remove func()) { return a.hooks.Add(&h) }

// ShareHooks is AddHooks for one set of hooks that many agents have in common, and that
// goes by the agent which it is called with. The set is kept as it is: it must not be
// modified, and an agent takes it once.
func (a *Agent) ShareHooks(h *Hooks) (remove func()) { return a.hooks.Add(h) }

// Status returns the public status.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.statusLocked()
}

func (a *Agent) statusLocked() Status {
	if a.phase == phaseRunning {
		return Running
	}
	return Idle
}

// Quiescent reports whether nothing runs and no accepted send is under way. It
// does not look at parked messages (core L32).
func (a *Agent) Quiescent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.quiescentLocked()
}

func (a *Agent) quiescentLocked() bool { return a.phase == phaseIdle && len(a.accepting) == 0 }

// restLocked notes that the agent is quiescent, if it is.
func (a *Agent) restLocked() {
	if a.quiescentLocked() {
		a.noteLocked(note{kind: noteRest})
	}
}

// StreamedText returns the text that the last model attempt streamed without
// leaving a message, or "" (seam OUT-05; it lives in memory only).
func (a *Agent) StreamedText() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.partial
}

func (a *Agent) newActivity() *activity {
	ctx, cancel := context.WithCancelCause(withInitiator(a.reg.ctx, a))
	return &activity{ctx: ctx, cancel: cancel, done: make(chan struct{})}
}

// startLocked begins a running activity; the driver goroutine is joined through
// its done channel by Dispose.
func (a *Agent) startLocked() {
	a.act = a.newActivity()
	a.phase = phaseRunning
	a.noteStatusLocked(Running)
	go a.drive(a.act)
}

// RunMaintenance runs job while the agent is idle and stays so for the world:
// wakes that arrive meanwhile are served afterwards (core L29). The job's ctx ends
// with ctx and with a Cancel; its values are not those of ctx. ErrBusy says that
// the agent is not idle.
func (a *Agent) RunMaintenance(ctx context.Context, job func(context.Context) error) error {
	act, err := a.beginMaintenance()
	if err != nil {
		return fmt.Errorf("maintenance of agent %s: %w", a.ID(), err)
	}
	stop := context.AfterFunc(ctx, func() { act.cancel(context.Cause(ctx)) })
	err = contain("maintenance", func() error { return job(act.ctx) })
	stop()
	a.endQuiet(act)
	return err
}

func (a *Agent) beginMaintenance() (*activity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closing:
		return nil, ErrDisposed
	case a.phase != phaseIdle:
		return nil, ErrBusy
	}
	a.act, a.phase = a.newActivity(), phaseMaintenance
	return a.act, nil
}

// endQuiet ends an activity that the public status does not show and serves a
// wake that it held up.
func (a *Agent) endQuiet(act *activity) {
	a.mu.Lock()
	a.quietLocked(act)
	a.mu.Unlock()
	a.deliver()
}

func (a *Agent) quietLocked(act *activity) {
	a.phase, a.act = phaseIdle, nil
	if act.latch && !a.closing && a.pendingLocked() {
		a.startLocked()
	}
	a.restLocked()
	act.cancel(nil)
	close(act.done)
}

// WhenIdle returns when no activity runs, none follows at once (core L31), and the
// idle status was told; or with the cause of ctx's end. A hook must not wait here.
func (a *Agent) WhenIdle(ctx context.Context) error {
	for {
		a.mu.Lock()
		done := a.untold
		if a.act != nil {
			done = a.act.done
		}
		a.mu.Unlock()
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type initiatorKey struct{}

// withInitiator names the agent whose activity a context belongs to (core L5). It
// helps to find who acts; it is no authority.
func withInitiator(ctx context.Context, a *Agent) context.Context {
	return context.WithValue(ctx, initiatorKey{}, a)
}

// Initiator returns the agent whose activity ctx belongs to, or nil.
func Initiator(ctx context.Context) *Agent {
	a, _ := ctx.Value(initiatorKey{}).(*Agent)
	return a
}
