package scenario_test

import (
	"context"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// listen has the world hear of what happens in the system; once the story has another
// one, this one is not listened to any more.
func (w *world) listen(era int) {
	s := w.sys
	hear := func(fn func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.era == era {
			fn()
		}
	}
	s.Agents.AddHooks(agent.Hooks{
		Created: func(a *agent.Agent) error {
			h := a.Session().Header()
			if h.Origin != session.OriginSubagent {
				return nil
			}
			again := w.known(a.ID())
			hear(func() {
				w.follow(a.ID())
				w.born[a.ID()], w.heads[a] = a, a.Session().Head()
				w.created(a.ID(), h.ParentSession, again)
			})
			if !again {
				w.trigger("created")
			}
			return nil
		},
		Disposed: func(a *agent.Agent) {
			h := a.Session().Header()
			how := " is disposed"
			if slices.ContainsFunc(s.Agents.List(), func(b *agent.Agent) bool { return b.Session().Header().ParentSession == a.ID() }) {
				how = " is disposed, before its children"
			}
			hear(func() {
				if h.Origin == session.OriginSubagent {
					w.disposed(a.ID(), h.ParentSession, how)
					return
				}
				w.last = append(w.last, w.names.name(a.ID())+how)
			})
		},
	})
	s.Service.AddHooks(subagent.Hooks{
		ProviderAdded: func(p subagent.Provider) error {
			hear(func() { w.news = append(w.news, fmt.Sprintf("provider %s arrives", p.Name())) })
			return nil
		},
		ProviderRemoved: func(name string) {
			hear(func() { w.news = append(w.news, fmt.Sprintf("provider %s leaves", name)) })
		},
		Started: func(e subagent.StartEdge) {
			_, live := s.Agents.Get(e.ID)
			hear(func() { w.started(e, live, w.returned[e.ID]) })
		},
		Ended: func(e subagent.EndEdge) { hear(func() { w.settled(e) }) },
	}, nil)
}

// known reports whether the story has heard of a session already: it is resumed.
func (w *world) known(id session.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.born[id] != nil
}

// approver answers questions about tool calls as the story says, and tells of each.
type approver struct {
	w       *world
	outcome tool.ApprovalOutcome
	gate    string
}

// Approve implements tool.Approver.
func (a *approver) Approve(ctx context.Context, r *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	a.w.mu.Lock()
	path := make([]string, len(r.Path))
	for i, id := range r.Path {
		path[i] = a.w.names.name(session.ID(id))
	}
	a.w.news = append(a.w.news, fmt.Sprintf("the approver is asked: %s %s in %s by %v, %s", r.Tool, r.Args, r.Cwd, path, r.Reason))
	open := a.w.gates[a.gate]
	a.w.mu.Unlock()
	if a.gate == "" {
		return a.outcome, nil
	}
	select {
	case <-open:
		return a.outcome, nil
	case <-ctx.Done():
		return tool.ApprovalCancelled, nil
	}
}

var _ tool.Approver = (*approver)(nil)
