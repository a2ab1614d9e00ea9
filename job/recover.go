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
// wait for what will never come. Those are the jobs that a tool result of its own log
// names (StartedMeta), unless a notice of their end stands in the log or waits, or the
// log was imported since: so a second call finds nothing. With wake the last notice
// wakes the agent, so that one turn takes them all, and it is none of the wakes that
// are bounded; without, and behind CloseAdmission, they enter with whatever opens its
// next turn. n is how many were sent. The error is ErrNoOwner or that of
// agent.Agent.Send; what was not sent stays owed.
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
		r.mu.Lock()
		r.sending++
		last := wake && i == len(lost)-1 && !r.shut
		r.mu.Unlock()
		err := a.Send(m, session.NextStep, last)
		r.mu.Lock()
		r.sentLocked()
		if err == nil {
			j := o.past[id]
			j.told = true
			o.past[id] = j
			n++
		}
		r.mu.Unlock()
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
