package subagent

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Hold keeps the turns of a open while continuable children of it are resident: for one
// whose single answer somebody waits for, so that the answer has seen what they came to.
// Each notice or report makes one more step of the turn. It ends with the agent.
func (s *Service) Hold(a *agent.Agent) {
	m, k := s.m, keyOf(a)
	m.mu.Lock()
	m.held[k] = true
	m.mu.Unlock()
	a.AddHooks(agent.Hooks{
		Inbox: func(_ *agent.Agent, e agent.InboxEvent) {
			if e.Change == agent.InboxEnqueue {
				m.stir()
			}
		},
		Disposed: func(*agent.Agent) {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.held, k)
		},
	})
}

// stir has whoever waits for a change look again.
func (m *manager) stir() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stirLocked()
}

func (m *manager) stirLocked() {
	close(m.moved)
	m.moved = make(chan struct{})
}

// stopping is a hook of the registry, so that it comes before what an agent's own hooks
// make of the end of its turn.
func (m *manager) stopping(ctx context.Context, a *agent.Agent, end session.EndKind) {
	for end == session.EndCompleted {
		m.mu.Lock()
		wait, moved := m.held[keyOf(a)] && m.children[a.ID()] > 0 && !m.over, m.moved
		m.mu.Unlock()
		if !wait || len(a.Session().Inbox(session.NextStep)) > 0 {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// Leave gives a child a message as Send does, and lets nothing run: it is accepted, and
// waits in the child's log for whoever opens the child next. A child that is resident
// already takes it up at once. Errors: as Send.
func (h *Host) Leave(ctx context.Context, parent, child session.ID, content []message.Block) (message.ID, error) {
	m, err := h.manager()
	if err != nil {
		return "", err
	}
	return m.deliver(ctx, delivery{parentID: parent, child: child, content: content, source: message.UserSource(), leave: true})
}

// leave is submit for a message that is to wait. The child is idle, and stays so for the
// world until it is gone: its epoch goes on when it is next opened. path is asked under
// the manager's lock.
func (m *manager) leave(ctx context.Context, act *activation, path func() []key, msg message.Message) error {
	err := act.agent.RunMaintenance(ctx, func(context.Context) error {
		m.mu.Lock()
		acc, err := m.beginLocked(ctx, act, nil, path(), msg)
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if err := acc.Finish(ctx); err != nil {
			return m.refused(act, err)
		}
		m.accepted(act)
		m.mu.Lock()
		m.unholdLocked(act)
		begun := m.endLocked([]*activation{act}, nil, ending{keep: true, process: true, cause: session.Cause{Kind: session.CauseDisposed}})
		m.openLocked(act)
		m.mu.Unlock()
		m.end(begun)
		return nil
	})
	if err != nil {
		if left := m.rollback(act); left != nil {
			err = fmt.Errorf("%w; %v", err, left) //nolint:errorlint // said, but not what the caller is to go by
		}
		return err
	}
	<-m.released(act)
	if act.err != nil {
		// It was accepted all the same.
		m.svc.fault("the end of a subagent failed", fmt.Errorf("leave a message: %w", act.err), "agent", string(act.id))
	}
	return nil
}
