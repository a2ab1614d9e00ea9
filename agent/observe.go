package agent

import (
	"sync"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
)

// EventKind discriminates an Event.
type EventKind uint8

// The kinds of live events. EventMissed stands for events that an observer was
// too slow for; what is durable of them is in the logs.
const (
	EventCreated EventKind = iota
	EventDisposed
	EventStatus
	EventChunk
	EventMessage
	EventToolStarted
	EventToolEnded
	// EventToolRefused is a call that never started: Err says why.
	EventToolRefused
	EventRetry
	EventFailed
	EventMissed
)

// Event is one live observation. Facts are in the log; events only let a person
// watch.
type Event struct {
	Kind   EventKind
	Agent  *Agent
	Status Status
	Chunk  llm.Chunk
	Call   *tool.Call
	Failed bool             // a tool call that failed
	Usage  *message.Usage   // of a finished model call
	Retry  *message.Failure // the failure that is about to be retried
	Err    error
	// Missed counts the events that an EventMissed stands for.
	Missed int
	// Behind says, for an EventMissed, from where to read the logs of the agents that
	// the dropped events were of: all agents of them if at most MaxBehind were
	// concerned. Unnamed counts the dropped events of further agents: of those every
	// log is to be read from where the observer last read it.
	Behind  []Behind
	Unnamed int

	seq int64 // of the first event of the log that it tells of; 0 if there is none
}

// MaxBehind bounds Event.Behind.
const MaxBehind = 64

// Behind is an agent that an observer missed events of. Reading its log from Seq
// on shows everything durable that they told of. Seq is the lowest one that a
// dropped event stands for, or, for those that are no events of the log, such as
// chunks, the head at the time.
type Behind struct {
	Agent *Agent
	Seq   int64
}

// lifecycle events are never dropped.
func (e *Event) lifecycle() bool {
	return e.Kind == EventCreated || e.Kind == EventDisposed || e.Kind == EventStatus
}

// observer is one asynchronous listener: a bounded queue and the goroutine that
// empties it, joined by its stop function.
type observer struct {
	fn   func(Event)
	size int

	mu     sync.Mutex // guards following
	queue  []Event
	missed Event // an EventMissed under way, if its Missed is not 0
	closed bool
	wake   chan struct{}
	done   chan struct{}
}

// Observe calls fn for live events of all agents, in order, on a goroutine of its
// own. At most size events wait; beyond that, events other than lifecycle edges
// are dropped, and the next EventMissed says how many and from where to read the
// logs instead. stop delivers what waits, ends
// the goroutine, and returns when it is gone; it must not be called from fn.
func (r *Registry) Observe(size int, fn func(Event)) (stop func()) {
	o := &observer{fn: fn, size: max(size, 1), wake: make(chan struct{}, 1), done: make(chan struct{})}
	remove := r.observers.Add(o)
	go o.run(r)
	var once sync.Once
	return func() {
		once.Do(func() {
			remove()
			o.mu.Lock()
			o.closed = true
			o.mu.Unlock()
			o.signal()
		})
		<-o.done
	}
}

func (o *observer) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *observer) put(e Event) {
	o.mu.Lock()
	switch {
	case o.closed:
		o.mu.Unlock()
		return
	case len(o.queue) >= o.size && !e.lifecycle():
		o.missLocked(&e)
		o.mu.Unlock()
		return
	case o.missed.Missed > 0:
		o.queue = append(o.queue, o.missed)
		o.missed = Event{}
	}
	o.queue = append(o.queue, e)
	o.mu.Unlock()
	o.signal()
}

func (o *observer) missLocked(e *Event) {
	m := &o.missed
	m.Kind = EventMissed
	m.Missed++
	seq := e.seq
	if seq == 0 {
		seq = e.Agent.session.Head()
	}
	for i := range m.Behind {
		if b := &m.Behind[i]; b.Agent == e.Agent {
			b.Seq = min(b.Seq, seq)
			return
		}
	}
	if len(m.Behind) == MaxBehind {
		m.Unnamed++
		return
	}
	m.Behind = append(m.Behind, Behind{e.Agent, seq})
}

func (o *observer) run(r *Registry) {
	defer close(o.done)
	tell := func(e Event) {
		if err := contain("observer", func() error { o.fn(e); return nil }); err != nil {
			r.cfg.Logger.Error("observer failed", "error", err)
		}
	}
	for {
		o.mu.Lock()
		batch, missed, closed := o.queue, o.missed, o.closed
		o.queue, o.missed = nil, Event{}
		o.mu.Unlock()
		for _, e := range batch {
			tell(e)
		}
		if missed.Missed > 0 {
			tell(missed)
		}
		switch {
		case len(batch) > 0 || missed.Missed > 0:
		case closed:
			return
		default:
			<-o.wake
		}
	}
}

func (r *Registry) observe(e Event) {
	for _, o := range r.observers.All() {
		o.put(e)
	}
}
