package subagent

import (
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
)

// Event is one live observation of the service. Exactly one field is set.
type Event struct {
	Started *StartEdge
	Ended   *EndEdge
	// ProviderAdded and ProviderRemoved name the provider.
	ProviderAdded   string
	ProviderRemoved string
}

// Observe calls fn for what happens on the seam, in order, on a goroutine of its
// own: a start before its end, possibly after the child is gone. Unlike hooks,
// observers hold nobody up, and may block. With a parent they see that agent's
// delegations alone. Since no log holds these events, none is ever dropped: what
// waits is bounded by what the observer lags behind (seam EVT-32, amendment P39).
//
// Panics of fn are contained and logged. stop delivers what waits, ends the
// goroutine, and returns when it is gone; it must not be called from fn.
func (s *Service) Observe(fn func(Event), parent *agent.Agent) (stop func()) {
	o := &observer{more: make(chan struct{}, 1), gone: make(chan struct{})}
	remove := s.AddHooks(Hooks{
		ProviderAdded:   func(p Provider) error { o.put(Event{ProviderAdded: p.Name()}); return nil },
		ProviderRemoved: func(name string) { o.put(Event{ProviderRemoved: name}) },
		Started:         func(e StartEdge) { o.put(Event{Started: &e}) },
		Ended:           func(e EndEdge) { o.put(Event{Ended: &e}) },
	}, parent)
	go func() {
		defer close(o.gone)
		for e := range o.events {
			s.tell("observer", func() { fn(e) })
		}
	}()
	return sync.OnceFunc(func() {
		remove()
		o.stop()
		<-o.gone
	})
}

// observer is the queue between hooks and one observing function.
type observer struct {
	more chan struct{} // has a value when the queue was added to, or stopped
	gone chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex // guards following
	queue   []Event
	stopped bool
}

func (o *observer) put(e Event) {
	o.mu.Lock()
	o.queue = append(o.queue, e)
	o.mu.Unlock()
	o.wake()
}

func (o *observer) stop() {
	o.mu.Lock()
	o.stopped = true
	o.mu.Unlock()
	o.wake()
}

func (o *observer) wake() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// events yields what is put until the observer is stopped and the queue is empty.
func (o *observer) events(yield func(Event) bool) {
	for {
		o.mu.Lock()
		batch, stopped := o.queue, o.stopped
		o.queue = nil
		o.mu.Unlock()
		for _, e := range batch {
			if !yield(e) {
				return
			}
		}
		switch {
		case len(batch) > 0:
		case stopped:
			return
		default:
			<-o.more
		}
	}
}
