package subagent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// three starts a child and one below it, both of which work until they are killed.
func (p *process) three() {
	p.t.Helper()
	p.Answer("hang", scripted.Step{scripted.Hang()})
	for _, c := range []struct {
		parent *agent.Agent
		id     session.ID
	}{{p.parent, "mid"}, {nil, "leaf"}} {
		if c.parent == nil {
			c.parent, _ = p.Agents.Get("mid")
		}
		_, err := p.Service.StartContinuable(p.t.Context(), spawn.DefaultName, subagent.ContinuableRequest{ID: c.id, Label: string(c.id), Prompt: say("hang"), Parent: c.parent})
		if err != nil {
			p.t.Fatal(err)
		}
		synctest.Wait()
	}
}

// reopened boots a process, recovers, and lets everything come to rest.
func (m *machine) reopened(want ...session.ID) {
	m.t.Helper()
	p := m.boot(subagenttest.Options{}, nil)
	r := p.recover()
	if d := cmp.Diff(want, r.Reopened); d != "" {
		m.t.Errorf("reopened:\n%s", d)
	}
	p.parent.Wake()
	synctest.Wait()
	p.stop()
}

// Who goes on after a crash: a child that a crash cut goes on below its parent, also where
// that had settled by itself meanwhile; so what it comes to is heard at every level.
func TestRecoverBelowWhoHasSettled(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		p.three()
		p.crash()
		q := m.boot(subagenttest.Options{}, nil)
		if _, err := q.Host.Send(t.Context(), "root", "mid", say("never mind the leaf")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		q.stop()
		m.reopened("mid", "leaf")
		m.atRest()
		m.quiet()
	})
}

// A settlement whose parent was not live is heard when the tree is next opened, and so is
// what that parent then comes to (design § 4, Settlement is derived).
func TestRecoverWhoOwesHearing(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		p.work()
		p.stop()
		m.atRest()
		<-time.After(time.Second)
		q := m.boot(subagenttest.Options{}, nil)
		if _, err := q.Host.Send(t.Context(), "a", "a-child", say("dig deeper")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, live := q.Agents.Get("a"); live {
			t.Error("AUTH-12: the parent was loaded")
		}
		q.stop()
		m.reopened("a")
		m.atRest()
		m.quiet()
	})
}

// P07, AUTH-12: what a person closes does not go on, at no depth, resident or not, and
// nobody is woken to hear of it.
func TestHostClosesASubtree_AUTH12(t *testing.T) {
	for _, resident := range []bool{true, false} {
		onMachine(t, func(t *testing.T, m *machine) {
			p := m.boot(subagenttest.Options{}, nil)
			p.three()
			if !resident {
				p.crash()
				p = m.boot(subagenttest.Options{}, nil)
			}
			wantCode(t, p.Host.Close(t.Context(), "mid", "mid"), subagent.CodeUnauthorized)
			if err := p.Host.Close(t.Context(), "root", "mid"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			p.stop()
			for _, id := range []session.ID{"mid", "leaf"} {
				if e := m.stored(id).Epochs(); e.Settled != 1 || e.Worked || e.Last.StopReason != string(subagent.StopAborted) {
					t.Errorf("resident %v: %s: %+v %+v", resident, id, e, e.Last)
				}
			}
			m.reopened()
			m.quiet()
		})
	}
}
