package job

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// Recover tells an agent that was resumed of the jobs that went with an earlier
// process before their ends reached it: one notice for each, so that it does not
// wait for what will never come. It is derived from the log, so a second call finds
// nothing. With wake the agent takes them up at once; otherwise they enter with
// whatever opens its next turn. It returns how many there were. The error is
// ErrNoOwner or that of agent.Agent.Send; what was not sent is owed again.
func (r *Registry) Recover(a *agent.Agent, wake bool) (n int, err error) {
	o, err := r.owner(a)
	if err != nil {
		return 0, err
	}
	o.turnstile <- struct{}{}
	defer func() { <-o.turnstile }()
	r.mu.Lock()
	var lost []string
	for id, j := range o.past {
		if !j.inherited && !j.told {
			lost = append(lost, id)
		}
	}
	slices.SortFunc(lost, func(a, b string) int { return cmp.Compare(o.past[a].seq, o.past[b].seq) })
	r.mu.Unlock()
	for i, id := range lost {
		m := notice(id, "job lost: "+id, fmt.Sprintf("Background job %s is lost: the process that ran it ended before you were told how it ended, "+
			"and its result cannot be read. Start the work again if you still need it.", id))
		if err := a.Send(m, session.NextStep, wake && i == len(lost)-1); err != nil {
			return n, err
		}
		r.mu.Lock()
		j := o.past[id]
		j.told = true
		o.past[id] = j
		r.mu.Unlock()
		n++
	}
	return n, nil
}
