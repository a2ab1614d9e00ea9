package subagent

import (
	"context"

	"github.com/offshoot-dev/offshoot/agent"
)

// Awaited is a continuable child whose first epoch somebody waits for in a call (amendment
// P41): while they do, the parent gets no notice.
type Awaited struct {
	Accepted
	m   *manager
	act *activation

	settled chan struct{} // closed when it is known what the epoch came to

	// Guarded by the manager's lock.
	got      Settlement
	open     bool // the process ends before the epoch
	released bool
}

// StartAwaited is StartContinuable for a caller that waits for what the child comes to.
// The caller must call Release, on every path.
func (s *Service) StartAwaited(ctx context.Context, provider string, req ContinuableRequest) (*Awaited, error) {
	w := &Awaited{m: s.m, settled: make(chan struct{})}
	acc, err := s.m.start(ctx, provider, req, w)
	if err != nil {
		return nil, err
	}
	w.Accepted = acc
	return w, nil
}

// Wait returns the settlement of the epoch, or the cause of ctx's end, which ends the wait
// alone: the child goes on. It is CodeDraining where the process ends before the epoch.
func (w *Awaited) Wait(ctx context.Context) (Settlement, error) {
	select {
	case <-w.settled:
	default:
		select {
		case <-w.settled:
		case <-ctx.Done():
			return Settlement{}, context.Cause(ctx)
		}
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.open {
		return Settlement{}, errOver
	}
	return w.got, nil
}

// Release ends the wait. If the child has not settled, its notice will go out as usual.
// If it has, the notice goes out unless the parent's log turns out to have taken the
// outcome by the end of its turn: with a tool result whose meta is
// session.SettledMeta(Settlement.ID).
func (w *Awaited) Release() {
	m := w.m
	m.mu.Lock()
	if w.released {
		m.mu.Unlock()
		return
	}
	w.released = true
	var p *parent
	if a, live := m.agents.Get(w.act.parent); live {
		p = m.parents[keyOf(a)]
	}
	if p != nil {
		for _, o := range p.owed {
			if o.note.ID == w.got.ID && o.when == onRelease {
				o.when = onLook
			}
		}
	}
	m.mu.Unlock()
	// A parent that is in a turn looks at its end: until then the result is on its way.
	if p != nil && p.agent.Status() == agent.Idle {
		m.lookAgain(p.agent)
	}
}

// settledLocked hands over what the epoch came to, and reports whether somebody waits
// for it. open says that it is not over.
func (w *Awaited) settledLocked(s Settlement, open bool) (held bool) {
	if w == nil {
		return false
	}
	w.got, w.open = s, open
	close(w.settled)
	return !w.released
}
