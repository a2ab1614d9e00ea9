package job

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// owner is an agent with what it owns. Its fields but init, turnstile and running
// are guarded by the registry's lock.
type owner struct {
	agent   *agent.Agent
	init    sync.Once
	running sync.WaitGroup
	// turnstile lets one notice at a time through, so that what one decides and sends
	// comes before what the next one decides.
	turnstile chan struct{}
	unhook    func()

	holds bool             // its turns stay open while jobs run
	ended bool             // the disposal has begun
	jobs  []*job           // in order of start
	last  map[string]int64 // the last number of each kind
	past  past             // what the log names of earlier jobs
	moves int              // starts and told ends
	moved chan struct{}    // closed with each of them

	wakes waker
}

// owner returns the record of a live agent; the first call makes it. The error is
// ErrNoOwner, or why the agent's log, which names the jobs of earlier processes, cannot be
// read.
func (r *Registry) owner(a *agent.Agent) (*owner, error) {
	if a == nil {
		return nil, ErrNoOwner
	}
	if live, ok := r.cfg.Agents.Live(a); !ok || live != a {
		return nil, ErrNoOwner
	}
	if err := a.Session().Load(r.ctx); err != nil {
		return nil, fmt.Errorf("the jobs of agent %s: %w", a.ID(), err)
	}
	r.mu.Lock()
	o := r.owners[a]
	if o == nil {
		o = &owner{agent: a, turnstile: make(chan struct{}, 1), moved: make(chan struct{}), last: map[string]int64{}, wakes: newWaker()}
		r.owners[a] = o
	}
	r.mu.Unlock()
	o.init.Do(func() { r.adopt(o) })
	return o, nil
}

// adopt binds the jobs to their owner's life and reads what its log says of others.
func (r *Registry) adopt(o *owner) {
	seen := readPast(o.agent.Session())
	r.mu.Lock()
	o.past = seen
	for id := range seen {
		kind, n := split(id)
		o.last[kind] = max(o.last[kind], n)
	}
	r.mu.Unlock()
	o.unhook = o.agent.AddHooks(agent.Hooks{Inbox: func(_ *agent.Agent, e agent.InboxEvent) { r.inboxMoved(o, &e) }})
	stop := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		o.stopLocked()
	}
	_, err := o.agent.AddWork(agent.Work{Stop: stop, Join: func() {
		o.running.Wait()
		r.forget(o)
	}})
	if err != nil { // it is being disposed: it gets no job any more
		stop()
		r.forget(o)
	}
}

func (r *Registry) forget(o *owner) {
	o.unhook()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owners, o.agent)
}

// Hold keeps the turns of a open while jobs of it run, as it is with a delegated
// agent: for one whose single answer somebody waits for. The error is ErrNoOwner.
func (r *Registry) Hold(a *agent.Agent) error {
	o, err := r.owner(a)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	o.holds = true
	return nil
}

// stopping keeps the turn of a delegated agent open while jobs of it run: its answer
// is what its last turn says, so it must have seen what it waits for. The notice
// enters the turn's next step. A root becomes idle, and is woken.
func (r *Registry) stopping(ctx context.Context, a *agent.Agent, end session.EndKind) {
	for end == session.EndCompleted && len(a.Session().Inbox(session.NextStep)) == 0 {
		r.mu.Lock()
		o := r.owners[a]
		if o == nil || a.Root() && !o.holds || o.untoldLocked() == 0 {
			r.mu.Unlock()
			return
		}
		moved := o.moved
		r.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

func (o *owner) stopLocked() {
	o.ended = true
	for _, j := range o.jobs {
		j.stopLocked(ownerGone)
	}
}

func (o *owner) moveLocked() {
	o.moves++
	close(o.moved)
	o.moved = make(chan struct{})
}

// toldLocked says that nothing of j is to come any more. Who sees that sees also what
// is kept because of it.
func (o *owner) toldLocked(j *job) {
	j.told = true
	o.trimLocked()
	o.moveLocked()
}

// openLocked counts the jobs that are not over; those that are stopping are not.
func (o *owner) openLocked() (n int) {
	for _, j := range o.jobs {
		if !j.info.State.Ended() {
			n++
		}
	}
	return n
}

// untoldLocked counts the jobs whose owner still has their notice to come.
func (o *owner) untoldLocked() (n int) {
	for _, j := range o.jobs {
		if !j.told {
			n++
		}
	}
	return n
}

// trimLocked lets the oldest ended jobs go.
func (o *owner) trimLocked() {
	extra := -maxKept
	for _, j := range o.jobs {
		if j.told {
			extra++
		}
	}
	o.jobs = slices.DeleteFunc(o.jobs, func(j *job) bool {
		if extra <= 0 || !j.told {
			return false
		}
		extra--
		return true
	})
}

func (o *owner) findLocked(id string) *job {
	for _, j := range o.jobs {
		if j.info.ID == id {
			return j
		}
	}
	return nil
}

// unknownLocked says why there is no job of an id (seam TOOL-39).
func (o *owner) unknownLocked(id string) error {
	why := ""
	kind, n := split(id)
	known, named := o.past[id]
	switch {
	case named && known.inherited:
		why = fmt.Sprintf("job %s belongs to the agent whose conversation you began with: only that agent can read or kill it", id)
	case named:
		why = fmt.Sprintf("job %s is gone: it was started by an earlier process, jobs end with their process, and its result cannot be read any more; "+
			"start the work again if you still need it", id)
	case n > 0 && n <= o.last[kind]:
		why = fmt.Sprintf("job %s ended long ago, and its result is not kept any more", id)
	case uuid.Validate(id) == nil:
		why = fmt.Sprintf("%s is the id of an agent, not of a background job: job ids look like subagent-1", id)
	default:
		why = fmt.Sprintf("you have no background job %q", oneLine(id, maxLabel))
	}
	if ids := o.idsLocked(); len(ids) > 0 {
		why += "; your jobs: " + strings.Join(ids, ", ")
	}
	return &UnknownError{ID: id, Why: why}
}

func (o *owner) idsLocked() []string {
	var ids []string
	for _, j := range o.jobs {
		ids = append(ids, j.info.ID)
	}
	return ids
}

// maxWakes is how often in a row notices alone may wake an idle owner (core D43).
const maxWakes = 3

// waker counts the wakes of an owner since the last input that came from a person
// or another agent. A notice that may wake spends one when it is sent; if a turn that
// was open already takes it, or one that another notice opened, it gets it back.
type waker struct {
	spent   int
	granted map[message.ID]int64 // waking notices that wait: the turn that was open when they were sent, or 0
	turn    int64                // the last turn that took something
	charged bool                 // it was opened by a notice
}

func newWaker() waker { return waker{granted: map[message.ID]int64{}} }

// grant decides whether a notice may wake; others are the jobs whose notices are
// still to come. The last wake waits for the last job, so that no notice of a batch
// is left unseen.
func (w *waker) grant(id message.ID, openTurn int64, others int) bool {
	if w.spent >= maxWakes || w.spent == maxWakes-1 && others > 0 {
		return false
	}
	w.spent++
	w.granted[id] = openTurn
	return true
}

func (w *waker) refuse(id message.ID) {
	if _, ok := w.granted[id]; ok {
		delete(w.granted, id)
		w.spent--
	}
}

// taken notes what a turn took.
func (w *waker) taken(m *message.Message, turn int64) {
	if turn != w.turn {
		w.turn, w.charged = turn, false
	}
	if m.Source.Kind == message.SourceUser || m.Source.Kind == message.SourceCoordinator {
		w.spent = len(w.granted)
		return
	}
	open, ok := w.granted[m.ID]
	switch {
	case !ok:
	case open == turn || w.charged:
		w.refuse(m.ID)
	default:
		delete(w.granted, m.ID)
		w.charged = true
	}
}

func (r *Registry) inboxMoved(o *owner, e *agent.InboxEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Change {
	case agent.InboxDequeue:
		o.wakes.taken(&e.Message, e.Turn)
	case agent.InboxDiscard:
		o.wakes.refuse(e.Message.ID)
	}
}
