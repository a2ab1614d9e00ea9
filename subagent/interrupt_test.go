package subagent_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// INT-01…07, P43, SET-15, OBS-04, B-04, CAN-17, NOTE-08: an interrupt stops the turn that a
// child is in and nothing else. What was claimed into it is not queued again; what waits
// stays, in order, and starts nothing: the child may settle with it, and holds nobody up.
// The next wake runs it first.
func TestInterrupt_INT01(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		l.Answer("lead", scripted.Step{scripted.SayLiteral("leading"), scripted.Hang()})
		parent := l.below(l.parent, "p")
		started := func() {
			t.Helper()
			if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{ID: "c", Label: "c", Prompt: say("lead"), Parent: parent}); err != nil {
				t.Fatal(err)
			}
		}
		started()
		synctest.Wait()
		c, _ := l.Agents.Get("c")
		grandchild := l.below(c, "g")
		send := func(text string) message.ID {
			t.Helper()
			id, err := l.Service.Followup(t.Context(), parent, "c", say(text), message.UserSource())
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		second, third := send("second"), send("third")
		if err := l.Host.Interrupt("p", "c"); err != nil {
			t.Fatal(err)
		}
		if err := l.Host.Interrupt("p", "c"); err != nil { // again, while it is under way
			t.Fatal(err)
		}
		synctest.Wait()
		if b, live := l.Agents.Get("c"); !live || b != c || c.Status() != agent.Idle || grandchild.Status() != agent.Running {
			t.Errorf("INT-06: it waits for its own child: live %v, %s, %s", live, c.Status(), grandchild.Status())
		}
		end, _ := c.Session().LastEnd()
		if end.Kind != session.EndAborted || end.Cause.Kind != session.CauseUser {
			t.Errorf("the turn ended %+v", end)
		}
		var ids []message.ID
		for _, q := range c.Session().Inbox(session.NextTurn) {
			ids = append(ids, q.Message.ID)
		}
		if d := cmp.Diff([]message.ID{second, third}, ids); d != "" {
			t.Errorf("what waits:\n%s", d)
		}
		// A later send runs what was parked first.
		fourth := send("fourth")
		synctest.Wait()
		var order []message.ID
		for e := range c.Session().Events(0) {
			if p, ok := e.Payload().(*session.UserMessage); ok && slices.Contains([]message.ID{second, third, fourth}, p.Message.ID) {
				order = append(order, p.Message.ID)
			}
		}
		if d := cmp.Diff([]message.ID{second, third, fourth}, order); d != "" {
			t.Errorf("what ran:\n%s", d)
		}

		// Interrupted with a queue and without a child of its own it settles, and so does
		// its parent when that is done: nobody is held up.
		if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), c, "g"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := l.live("c"); got != nil {
			t.Errorf("live: %q", got)
		}
		send("lead")
		synctest.Wait()
		parked := send("parked")
		if err := l.Host.Interrupt("p", "c"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Host.Interrupt(l.parent.ID(), "p"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := l.live("c", "p"); got != nil {
			t.Errorf("SET-15: live: %q", got)
		}
		s := stored(t, l, "c")
		if q := s.Inbox(session.NextTurn); len(q) != 1 || q[0].Message.ID != parked {
			t.Errorf("what is stored waits: %+v", q)
		}
		if e := s.Epochs(); e.Last.StopReason != string(subagent.StopAborted) {
			t.Errorf("it settled as %s", e.Last.StopReason)
		}
	})
}

// INT-08…16, AUTH-12: who may interrupt whom, and that nobody else is even looked at. What is
// not resident is no error, and nothing is resumed for it.
func TestInterruptAuthority_INT07(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		stranger, gone := l.Parent(t), l.Parent(t)
		if err := gone.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		a := l.below(l.parent, "a")
		b := l.below(a, "b")
		c := l.below(b, "c")
		sibling := l.below(a, "sibling")
		run := l.Start(t, t.Context(), spawn.DefaultName, subagenttest.Request(l.parent, "hang"))
		once, _ := run.Local()
		synctest.Wait()
		done := l.start("done", "go")
		synctest.Wait()
		agents := len(l.Agents.List())
		i := subagent.NewInterrupter(l.Service)
		for _, tc := range []struct {
			name   string
			err    error
			refuse bool
		}{
			{"nobody asks", i.Interrupt(nil, "c"), true},
			{"who is gone asks", i.Interrupt(gone, "nobody"), true},
			{"of itself", i.Interrupt(c, "c"), true},
			{"of itself, no child", i.Interrupt(stranger, stranger.ID()), true},
			{"a sibling", i.Interrupt(sibling, "b"), true},
			{"a child of its parent", i.Interrupt(c, "b"), true},
			{"a stranger", i.Interrupt(stranger, "c"), true},
			{"another address", l.Host.Interrupt(l.parent.ID(), "b"), true},
			{"no parent", l.Host.Interrupt("", "b"), true},
			{"unknown", i.Interrupt(l.parent, "nobody"), false},
			{"unknown address", l.Host.Interrupt("a", "nobody"), false},
			{"settled", i.Interrupt(l.parent, done.Child), false},
			{"settled address", l.Host.Interrupt(l.parent.ID(), done.Child), false},
			{"a one-shot child", i.Interrupt(l.parent, run.ID()), false},
			{"a one-shot address", l.Host.Interrupt(l.parent.ID(), run.ID()), false},
		} {
			if tc.refuse {
				wantCode(t, tc.err, subagent.CodeUnauthorized)
			} else if tc.err != nil {
				t.Errorf("%s: %v", tc.name, tc.err)
			}
		}
		synctest.Wait()
		for _, x := range []*agent.Agent{a, b, c, sibling, once} {
			if x.Status() != agent.Running {
				t.Errorf("%s was stopped", x.ID())
			}
		}
		if n := len(l.Agents.List()); n != agents {
			t.Errorf("INT-16: %d agents are live, of %d", n, agents)
		}
		// An ancestor at any depth; the cause is the parent's.
		if err := i.Interrupt(l.parent, "c"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if end, _ := stored(t, l, "c").LastEnd(); end == nil || end.Cause.Kind != session.CauseParent {
			t.Errorf("c ended %+v", end)
		}
		if a.Status() != agent.Running || b.Status() != agent.Running {
			t.Error("its ancestors were stopped")
		}
		// The address form needs no live parent (INT-08).
		if err := l.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := l.Host.Interrupt(l.parent.ID(), "a"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if a.Status() != agent.Idle {
			t.Error("a was not stopped")
		}
		// No manager: an unbound host says so.
		wantCode(t, new(subagent.Host).Interrupt("a", "b"), subagent.CodeContinuationUnavailable)
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
