package subagent_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// After a summary an agent is told of its children that have not settled, and of no
// others: of those that settled it was told before, and others' are none of its business.
func TestRestate(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		var gate scripted.Gate
		l.Answer("dig", scripted.Step{scripted.StallUntil(&gate), scripted.SayLiteral("dug")})
		done := l.start("done", "begin")
		synctest.Wait()
		first, second := l.start("first\n hole", "dig"), l.start("second hole", "dig")
		synctest.Wait()
		want := "Subagents that you started and that have not settled:\n" +
			"- " + string(first.Child) + " (first hole): running\n" +
			"- " + string(second.Child) + " (second hole): running\n" +
			"You get a message when one of them settles."
		if d := cmp.Diff(want, l.Service.Restate(l.parent)); d != "" {
			t.Errorf("beside %s (-want +got):\n%s", done.Child, d)
		}
		if got := l.Service.Restate(l.Parent(t)); got != "" {
			t.Errorf("another agent is told %q", got)
		}
		gate.Open()
		synctest.Wait()
		if got := l.Service.Restate(l.parent); got != "" {
			t.Errorf("when all have settled it is told %q", got)
		}
	})
}

// An agent whose single answer is waited for ends its turn when it has seen what its
// children came to: in that turn, not in one that follows.
func TestHold(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		var gate scripted.Gate
		l.Answer("dig", scripted.Step{scripted.StallUntil(&gate), scripted.SayLiteral("dug")})
		l.Service.Hold(l.parent)
		acc := l.start("worker", "dig")
		if err := l.parent.Accept(t.Context(), agent.UserText("go on"), session.NextTurn); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, open, _ := l.parent.Session().LastTurn(); !open {
			t.Error("the turn ended before the child had settled")
		}
		// What a child reports meanwhile is read at once.
		child, _ := l.Agents.Get(acc.Child)
		if _, err := l.Service.Report(t.Context(), child, say("half a hole"), subagent.DeliverNextStep); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := l.said(l.parent.ID()); len(got) != 4 {
			t.Errorf("the parent has not read the report: %q", got)
		}
		gate.Open()
		synctest.Wait()
		if turn, open, _ := l.parent.Session().LastTurn(); open || turn != 1 {
			t.Errorf("turn %d, open %t", turn, open)
		}
		if got := l.said(l.parent.ID()); len(got) != 6 {
			t.Errorf("the parent's log: %q", got)
		}
	})
}

// What is left for a child is accepted and does not run here; whoever opens the child
// next runs it in the epoch that it was accepted in.
func TestLeave(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		acc := l.start("worker", "begin")
		synctest.Wait()
		if _, err := l.Host.Leave(t.Context(), "somebody", acc.Child, say("later")); err == nil {
			t.Error("it was left in the name of another parent")
		}
		if _, err := l.Host.Leave(t.Context(), l.parent.ID(), acc.Child, say("later")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, live := l.Agents.Get(acc.Child); live {
			t.Error("the child is live")
		}
		want := []string{"user: begin", "answer: noted", "settled: completed"}
		if d := cmp.Diff(want, l.said(acc.Child)); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
		set, err := l.Host.Wait(t.Context(), l.parent.ID(), acc.Child)
		if err != nil || set.Epoch != 2 || set.StopReason != subagent.StopCompleted {
			t.Errorf("settled as %+v, %v", set, err)
		}
		want = append(want, "user: later", "answer: noted", "settled: completed")
		if d := cmp.Diff(want, l.said(acc.Child)); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
	})
}
