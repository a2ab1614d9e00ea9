package delegate_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// D43: jobs do not outlive the process. A resumed owner is told once of those whose
// ends it has not seen; their ids are not used again; a read says what became of
// them; and a fork does not take its parent's for its own.
func TestJobsAreNotDurable(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		r := jobs(t, s)
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: spawn.DefaultName, Background: true, Jobs: r})
		const stuck = `{"description":"stuck","prompt":"Hold.","run_in_background":true}`
		s.Answer("Go.", scripted.Step{scripted.CallLiteral("subagent", inBackground), scripted.CallLiteral("subagent", stuck)}, scripted.Step{scripted.SayLiteral("waiting")})
		s.Answer("Count them.", scripted.Step{scripted.SayLiteral("42 files")})
		s.Answer("Hold.", scripted.Step{subagenttest.Hold(make(chan struct{}))})
		first := s.Parent(t)
		if err := first.Followup(agent.UserText("Go.")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the first job's notice has been seen, the second one is at work
		if err := first.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		h, err := s.Agents.Resume(t.Context(), agent.Resume{ID: first.ID(), Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		parent := h.Agent()
		for i, want := range []int{1, 0} {
			if n, err := r.Recover(parent, i == 0); err != nil || n != want {
				t.Errorf("recover %d: %d, %v", i, n, err)
			}
		}
		synctest.Wait()
		last := ""
		for e := range parent.Session().Events(0) {
			if p, ok := e.Payload().(*session.UserMessage); ok {
				last = message.JoinText(p.Message.Content)
			}
		}
		if lost := strings.Fields(last); len(lost) < 5 || strings.Join(lost[3:5], " ") != "is lost:" || parent.Status() != agent.Idle {
			t.Errorf("the last message: %q", last)
		}
		names := []string{"subagent-1", "subagent-2"}
		for _, id := range names {
			if res := execute(t.Context(), s, parent, job.OutputTool, `{"job_id":"`+id+`"}`); !res.IsError || !strings.Contains(resultText(res), "jobs end with their process") {
				t.Errorf("%s: %+v", id, res)
			}
		}
		if id := begin(t, t.Context(), s, parent); id != "subagent-3" {
			t.Errorf("the next job is %q", id)
		}
		if err := r.WhenQuiet(t.Context(), parent); err != nil {
			t.Fatal(err)
		}
		fork := s.NewAgent(t, agent.Create{Options: subagenttest.ParentOptions(), Owner: parent, Session: session.New{Seed: &session.Seed{Prefix: parent.Session().Prefix()}}})
		if n, err := r.Recover(fork, false); err != nil || n != 0 {
			t.Errorf("a fork: %d, %v", n, err)
		}
		if res := execute(t.Context(), s, fork, job.OutputTool, `{"job_id":"subagent-2"}`); !res.IsError || !strings.Contains(resultText(res), "whose conversation you began with") {
			t.Errorf("a fork reads: %+v", res)
		}
	})
}
