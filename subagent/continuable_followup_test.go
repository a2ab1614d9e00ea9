package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// gate is an answer that waits.
type gate struct{ open chan struct{} }

// hold makes the answer to a prompt wait until the gate is opened or the turn is stopped.
func (l *nest) hold(prompt string) *gate {
	g := &gate{open: make(chan struct{})}
	l.Answer(prompt, scripted.Step{scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
		select {
		case <-g.open:
			return scripted.Step{scripted.SayLiteral(prompt + " is done")}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})})
	return g
}

// startBelow starts a child of any live agent.
func (l *nest) startBelow(parent *agent.Agent, label, prompt string) subagent.Accepted {
	l.t.Helper()
	acc, err := l.Service.StartContinuable(l.t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: label, Prompt: say(prompt), Parent: parent})
	if err != nil {
		l.t.Fatalf("start %s: %v", label, err)
	}
	return acc
}

// pair starts a child, and one below it with a prompt; the first works until its gate is
// opened.
func (l *nest) pair(prompt string) (mid, leaf subagent.Accepted, g *gate) {
	l.t.Helper()
	g = l.hold("mid works")
	mid = l.start("mid", "mid works")
	leaf = l.startBelow(l.liveAgent(mid.Child), "leaf", prompt)
	return mid, leaf, g
}

func (l *nest) liveAgent(id session.ID) *agent.Agent {
	l.t.Helper()
	a, ok := l.Agents.Get(id)
	if !ok {
		l.t.Fatalf("%s is not live", id)
	}
	return a
}

func (l *nest) gone(ids ...session.ID) {
	l.t.Helper()
	for _, id := range ids {
		if _, live := l.Agents.Get(id); live || l.Service.Entry(id) {
			l.t.Errorf("%s is still resident", id)
		}
	}
}

func (l *nest) logs(id session.ID, want ...string) {
	l.t.Helper()
	if d := cmp.Diff(want, l.said(id)); d != "" {
		l.t.Errorf("the log of %s:\n%s", id, d)
	}
}

// FUP-01…05, FUP-07…09, FUP-19, FUP-31, FUP-32, FUP-33, OWN-03, OWN-07, SET-10, AUTH-07, B-03, B-32, B-33, PUB-34,
// amendments P08, P09, P17: a waiting child is woken where it is, whatever a message's source says; a resume opens nobody
// else, and does not hang on its provider or its caller.
func TestFollowupWaiting_FUP05(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		deep := l.hold("deep")
		mid, leaf, works := l.pair("deep")
		m := l.liveAgent(mid.Child)
		close(works.open)
		synctest.Wait()
		if m.Status() != agent.Idle || len(l.Service.OwnedBy(mid.Child)) != 1 {
			t.Fatalf("the parent does not wait: %v, owns %v", m.Status(), l.Service.OwnedBy(mid.Child))
		}
		source := message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay, SenderSessionID: "somebody else"})
		ids := map[message.ID]bool{mid.Message: true}
		for i := range 3 {
			id, err := l.Service.Followup(t.Context(), l.parent, mid.Child, say(fmt.Sprint("more ", i)), source)
			if err != nil {
				t.Fatal(err)
			}
			ids[id] = true
		}
		if _, err := l.Service.Followup(t.Context(), m, leaf.Child, say("again"), source); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(ids) != 4 || l.liveAgent(mid.Child) != m || len(l.Lifecycle.Edges()) != 2 || len(l.Service.OwnedBy(mid.Child)) != 1 {
			t.Errorf("FUP-05, FUP-07, OWN-07: ids %v, edges %d", ids, len(l.Lifecycle.Edges()))
		}
		kept := 0
		for e := range m.Session().Events(0) {
			if p, ok := e.Payload().(*session.UserMessage); ok && p.Message.Source.Details().SenderSessionID == "somebody else" {
				kept++
			}
		}
		if kept != 3 {
			t.Errorf("FUP-09: the source is kept %d times", kept)
		}
		close(deep.open)
		synctest.Wait()
		l.gone(mid.Child, leaf.Child)
		l.logs(leaf.Child, "user: deep", "answer: deep is done", "coordinator: again", "answer: noted", "settled: completed")
		ctx, cancel := context.WithCancelCause(t.Context())
		if _, err := l.Service.Followup(ctx, l.parent, mid.Child, say("deep"), source); err != nil {
			t.Fatal(err)
		}
		cancel(errGone) // CAN-19
		synctest.Wait()
		if n := len(l.ends(leaf.Child)); n != 1 {
			t.Errorf("FUP-19: the child of a resumed child had %d residencies", n)
		}
		got := l.said(mid.Child)
		if d := cmp.Diff([]string{"coordinator: deep", "answer: deep is done", "settled: completed"}, got[len(got)-3:]); d != "" {
			t.Errorf("CAN-19, FUP-33:\n%s", d)
		}
	})
}

// FUP-31, P08, EVT-24, EVT-27: neither a rejected nor a failed turn strands what was accepted behind it.
func TestNothingIsStranded_FUP31(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		g := l.hold("begin")
		l.Answer("fail", scripted.Step{scripted.Fail("BAD", "it broke")})
		l.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error {
			for _, m := range p.Messages {
				if message.JoinText(m.Content) == "blocked" {
					p.Reject()
				}
			}
			return nil
		}})
		var changes []string
		l.Agents.AddHooks(agent.Hooks{Inbox: func(a *agent.Agent, e agent.InboxEvent) {
			if a == l.parent {
				return
			}
			changes = append(changes, strings.TrimPrefix(string(e.Change), "agent/inbox/")+" "+message.JoinText(e.Message.Content))
		}})
		acc := l.start("worker", "begin")
		for _, text := range []string{"blocked", "fail", "last"} {
			l.followup(acc.Child, text)
		}
		close(g.open)
		synctest.Wait()
		l.logs(acc.Child, "user: begin", "answer: begin is done", "end: blocked", "coordinator: fail", "end: error", "coordinator: last", "answer: noted", "settled: completed")
		want := []string{"enqueue begin", "enqueue blocked", "enqueue fail", "enqueue last", "dequeue begin", "dequeue blocked", "dequeue fail", "dequeue last"}
		slices.Sort(want)
		slices.Sort(changes)
		if d := cmp.Diff(want, changes); d != "" {
			t.Errorf("FUP-32, P09:\n%s", d)
		}
	})
}

// FUP-11…13, AUTH-02…06, AUTH-09, OBS-05, OBS-17, F-25: who is refused, and what each is told. One who may not
// learns nothing about the child.
func TestFollowupRefused_AUTH02(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		g := l.hold("begin")
		acc := l.start("worker", "begin")
		sibling := l.start("sibling", "begin")
		synctest.Wait()
		lower := l.startBelow(l.liveAgent(acc.Child), "lower", "begin")
		stranger := l.Parent(t)
		cold := l.start("cold", "go").Child
		shot := l.Start(t, t.Context(), spawn.DefaultName, subagent.Request{Parent: l.parent, Prompt: say("begin")})
		synctest.Wait()
		l.gone(cold)
		h, err := l.Agents.Resume(t.Context(), agent.Resume{ID: cold})
		if err != nil {
			t.Fatal(err)
		}
		viewed := h.Agent() // nobody's Activation
		try := func(what string, who *agent.Agent, child session.ID, text string, want subagent.Code, says string) {
			t.Helper()
			synctest.Wait()
			before := map[session.ID]int64{}
			for _, s := range l.Sessions.List() {
				before[s.ID()] = s.Head()
			}
			id, err := l.Service.Followup(t.Context(), who, child, say(text), message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay, SenderSessionID: string(l.parent.ID())}))
			if text == "" {
				_, err = l.Service.Followup(t.Context(), who, child, nil, message.UserSource())
			}
			var se *subagent.Error
			if !errors.As(err, &se) || se.Code != want || !strings.Contains(err.Error(), says) || id != "" {
				t.Errorf("%s: %q, %v; want %s", what, id, err, want)
			}
			for _, s := range l.Sessions.List() {
				if s.Head() != before[s.ID()] {
					t.Errorf("%s: the log of %s has grown", what, s.ID())
				}
			}
		}
		s := l.liveAgent(sibling.Child)
		try("AUTH-03: a sibling", s, acc.Child, "x", subagent.CodeUnauthorized, "not a child of")
		try("AUTH-03: an ancestor", l.parent, lower.Child, "x", subagent.CodeUnauthorized, "not a child of")
		try("AUTH-07: a stranger with the parent's name in the source", stranger, acc.Child, "x", subagent.CodeUnauthorized, "not a child of")
		try("AUTH-03: itself", l.liveAgent(acc.Child), acc.Child, "x", subagent.CodeUnauthorized, "not a child of")
		try("FUP-11: nobody", l.parent, "nobody", "x", subagent.CodeNotResumable, "no subagent")
		try("OBS-17: nothing", l.parent, acc.Child, "", subagent.CodeInvalidRequest, "empty")
		try("no child", l.parent, "", "x", subagent.CodeInvalidRequest, "")
		try("FUP-21, OBS-05: opened by somebody else", l.parent, cold, "x", subagent.CodeOwnershipConflict, string(cold))
		try("FUP-21: a live one-shot", l.parent, shot.ID(), "x", subagent.CodeOwnershipConflict, "")
		if l.liveAgent(cold) != viewed {
			t.Error("FUP-21: the live agent is another one")
		}
		if err := errors.Join(viewed.Dispose(t.Context(), true), shot.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		try("FUP-12: a stored one-shot", l.parent, shot.ID(), "x", subagent.CodeNotResumable, "do not try it again")
		try("AUTH-06: a one-shot of somebody else", stranger, shot.ID(), "x", subagent.CodeUnauthorized, "not a child of")
		try("AUTH-04: a cold child of somebody else", stranger, cold, "x", subagent.CodeUnauthorized, "not a child of")
		try("a root", l.parent, stranger.ID(), "x", subagent.CodeUnauthorized, "not a child of")
		l.followup(cold, "and yet") // FUP-22
		// AUTH-02: the same id is not the same agent.
		if err := l.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if h, err = l.Agents.Resume(t.Context(), agent.Resume{ID: l.parent.ID(), Options: subagenttest.ParentOptions()}); err != nil {
			t.Fatal(err)
		}
		try("AUTH-02: replaced", l.parent, acc.Child, "x", subagent.CodeUnauthorized, "not the live agent")
		_, err = l.Service.StartContinuable(t.Context(), spawn.DefaultName, l.request("x", "x"))
		wantCode(t, err, subagent.CodeUnauthorized)
		l.parent = h.Agent()
		l.followup(acc.Child, "from the new one")
		close(g.open)
		synctest.Wait()
	})
}

// CAN-10…13, FUP-24, GO-05: a caller that has left gets its own cause, and writes nothing.
func TestFollowupCancelled_CAN10(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
		g := l.hold("hold")
		warm := l.start("warm", "hold").Child
		cold := l.start("cold", "begin").Child
		synctest.Wait()
		head := l.liveAgent(warm).Session().Head()
		_, before := l.log(cold)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errGone)
		for _, id := range []session.ID{warm, cold} {
			if _, err := l.Service.Followup(ctx, l.parent, id, say("x"), message.UserSource()); err != errGone { //nolint:errorlint // the exact cause
				t.Errorf("CAN-10, CAN-11: %v", err)
			}
		}
		for _, op := range []storetest.Op{storetest.OpInspect, storetest.OpOpen, storetest.OpEvents} {
			ctx, cancel := context.WithCancelCause(t.Context())
			seen := false
			faulty.Plan(func(p storetest.Point) storetest.Fault {
				if p.Op != op || p.ID != cold {
					return storetest.Fault{}
				}
				return storetest.Fault{Wait: func(ctx context.Context) {
					cancel(errGone)
					seen = ctx.Err() != nil
				}}
			})
			if _, err := l.Service.Followup(ctx, l.parent, cold, say("x"), message.UserSource()); err != errGone { //nolint:errorlint // the exact cause
				t.Errorf("CAN-12, CAN-13: left at %s: %v", op, err)
			}
			if op == storetest.OpInspect && !seen {
				t.Error("CAN-12: the store does not see the caller's end")
			}
			faulty.Plan(nil)
		}
		synctest.Wait()
		if _, after := l.log(cold); len(after) != len(before) && after[len(after)-1].Type != session.TypeEndSeed || l.liveAgent(warm).Session().Head() != head {
			t.Error("something was written")
		}
		l.gone(cold)
		close(g.open)
	})
}

// FUP-23, FUP-24, SET-08, SET-12, F-21, CONT-10: one side wins against the end of an
// epoch. What comes too late waits for the release and resumes; who leaves meanwhile gets
// the cause, and an admission that closes meanwhile is seen.
func TestFollowupDuringDisposal_FUP23(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
		disk := make(chan struct{})
		var once sync.Once
		begin := l.hold("begin")
		acc := l.start("worker", "begin")
		first := l.liveAgent(acc.Child)
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			f := storetest.Fault{}
			if p.Op == storetest.OpRelease && p.ID == acc.Child {
				once.Do(func() { f.Wait = func(context.Context) { <-disk } })
			}
			return f
		})
		close(begin.open)
		synctest.Wait() // it settles, up to the release
		if !l.Service.Entry(acc.Child) {
			t.Fatal("SET-12: the entry left before its disposal ended")
		}
		more := l.hold("more")
		got := make(chan error, 3)
		ctx, leave := context.WithCancelCause(t.Context())
		for _, ctx := range []context.Context{t.Context(), t.Context(), ctx} {
			go func() {
				_, err := l.Service.Followup(ctx, l.parent, acc.Child, say("more"), message.UserSource())
				got <- err
			}()
		}
		req := l.request("again", "x")
		req.ID = acc.Child
		_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
		wantCode(t, err, subagent.CodeDuplicateChild)
		synctest.Wait()
		if len(got) > 0 {
			t.Errorf("one did not wait: %v", <-got)
		}
		leave(errGone)
		synctest.Wait()
		if err := <-got; err != errGone { //nolint:errorlint // the exact cause
			t.Errorf("FUP-24: %v", err)
		}
		close(disk)
		synctest.Wait()
		if err := errors.Join(<-got, <-got); err != nil {
			t.Error(err)
		}
		close(more.open)
		synctest.Wait()
		l.logs(acc.Child, "user: begin", "answer: begin is done", "settled: completed", "user: more", "answer: more is done", "user: more", "answer: more is done", "settled: completed")
		if b, live := l.Agents.Get(acc.Child); live || b == first {
			t.Error("it did not settle again")
		}
		if n := len(l.Lifecycle.Edges()); n != 4 {
			t.Errorf("EVT-15: %d edges", n)
		}
	})
}

// FUP-24: an admission that closes while a follow-up waits for the release of its child refuses it, and nothing is
// resumed.
func TestAdmissionClosesMeanwhile_FUP24(t *testing.T) {
	for name, shut := range map[string]func(*nest){
		"below the parent": func(l *nest) { l.Service.DrainDescendants(l.parent) },
		"of everything":    func(l *nest) { l.Service.CloseAdmission() },
	} {
		t.Run(name, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
				hold := make(chan struct{})
				l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) {
					return func() error { <-hold; return nil }, nil
				})
				acc := l.start("worker", "begin")
				synctest.Wait() // it settles, up to the release of its setup
				got := make(chan error, 1)
				go func() {
					_, err := l.Service.Followup(t.Context(), l.parent, acc.Child, say("more"), message.UserSource())
					got <- err
				}()
				synctest.Wait()
				if len(got) > 0 {
					t.Fatalf("it did not wait: %v", <-got)
				}
				shut(l)
				close(hold)
				wantCode(t, <-got, subagent.CodeDraining)
				synctest.Wait()
				l.gone(acc.Child)
				if n := len(l.Lifecycle.Edges()); n != 2 {
					t.Errorf("%d edges", n)
				}
				l.logs(acc.Child, "user: begin", "answer: noted", "settled: completed")
			})
		})
	}
}

// FUP-33, P17: a child that was resumed belongs to the service as a new one does. It goes on though its provider is
// unloaded, its parent is disposed and its caller is gone.
func TestResumedIsTheServices_FUP33(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		unload := l.Register(t, spawn.New("maker"))
		acc, err := l.Service.StartContinuable(t.Context(), "maker", l.request("worker", "begin"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.gone(acc.Child)
		g := l.hold("more")
		ctx, leave := context.WithCancelCause(t.Context())
		if _, err := l.Service.Followup(ctx, l.parent, acc.Child, say("more"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a := l.liveAgent(acc.Child)
		if a.Owner() != nil {
			t.Errorf("it is owned by %v", a.Owner())
		}
		leave(errGone)
		unload()
		if err := l.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if l.liveAgent(acc.Child) != a || a.Status() != agent.Running {
			t.Error("it was stopped")
		}
		close(g.open)
		synctest.Wait()
		l.logs(acc.Child, "user: begin", "answer: noted", "settled: completed", "user: more", "answer: more is done", "settled: completed")
	})
}

// AUTH-05, AUTH-04: a parent that is replaced while its child is being resumed has no
// authority any more; the message is in no log, and the resumed child is let go.
// P07, AUTH-08, AUTH-12, FUP-01: a person is not refused there, needs no live parent and loads none; a parent that
// has come meanwhile owns the child.
func TestParentReplacedMeanwhile_AUTH05(t *testing.T) {
	for _, person := range []bool{false, true} {
		faulty := storetest.NewFaulty(memory.New())
		inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
			m, lf, works := l.pair("begin")
			mid, leaf := m.Child, lf.Child
			g := l.hold("held")
			close(works.open)
			synctest.Wait()
			l.gone(mid, leaf)
			disk := make(chan struct{})
			faulty.Plan(func(p storetest.Point) storetest.Fault {
				if p.Op == storetest.OpOpen && p.ID == leaf {
					return storetest.Fault{Wait: func(context.Context) { <-disk }}
				}
				return storetest.Fault{}
			})
			got := make(chan error, 1)
			if person {
				go func() {
					_, err := l.Host.Send(t.Context(), mid, leaf, say("held"))
					got <- err
				}()
				synctest.Wait()
				if _, live := l.Agents.Get(mid); live {
					t.Error("P07: the parent was loaded")
				}
				l.followup(mid, "come") // now it is live, while its child is being opened
				synctest.Wait()
				l.gone(mid)
				h := l.hold("stay")
				l.followup(mid, "stay")
				synctest.Wait()
				close(disk)
				synctest.Wait()
				if err := <-got; err != nil {
					t.Fatal(err)
				}
				close(h.open)
				synctest.Wait()
				if !slices.Contains(l.Service.OwnedBy(mid), leaf) {
					t.Error("P07: the live parent does not own the child that a person has woken")
				}
				close(g.open)
				synctest.Wait()
				l.gone(mid, leaf)
				got := l.said(leaf)
				if d := cmp.Diff([]string{"user: held", "answer: held is done", "settled: completed"}, got[len(got)-3:]); d != "" {
					t.Errorf("the leaf:\n%s", d)
				}
				return
			}
			h := l.hold("stay")
			l.followup(mid, "stay")
			synctest.Wait()
			old := l.liveAgent(mid)
			go func() {
				_, err := l.Service.Followup(t.Context(), old, leaf, say("lost"), message.UserSource())
				got <- err
			}()
			synctest.Wait()
			close(h.open)
			synctest.Wait() // it settles
			h = l.hold("stay")
			l.followup(mid, "stay")
			synctest.Wait()
			if l.liveAgent(mid) == old {
				t.Fatal("the parent was not replaced")
			}
			close(disk)
			synctest.Wait()
			wantCode(t, <-got, subagent.CodeUnauthorized)
			l.gone(leaf)
			if slices.ContainsFunc(l.said(leaf), func(s string) bool { return strings.Contains(s, "lost") }) {
				t.Errorf("AUTH-05: the leaf's log is %q", l.said(leaf))
			}
			close(h.open)
			synctest.Wait()
			l.gone(mid)
		})
	}
}

// AUTH-12, P07, B-02: a person names the durable parentage, by both ids.
func TestHostNamesThePair_AUTH12(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		acc := l.start("worker", "begin")
		synctest.Wait()
		if err := l.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		_, err := l.Host.Send(t.Context(), "somebody", acc.Child, say("x"))
		wantCode(t, err, subagent.CodeUnauthorized)
		wantCode(t, l.Host.Close(t.Context(), "somebody", acc.Child), subagent.CodeUnauthorized)
		at := l.hold("from a person") // else it may be over before it is to be interrupted
		if _, err := l.Host.Send(t.Context(), l.parent.ID(), acc.Child, say("from a person")); err != nil {
			t.Fatal(err)
		}
		wantCode(t, l.Host.Interrupt("somebody", acc.Child), subagent.CodeUnauthorized)
		close(at.open)
		synctest.Wait()
		l.logs(acc.Child, "user: begin", "answer: noted", "settled: completed", "user: from a person", "answer: from a person is done", "settled: completed")
		if _, live := l.Agents.Get(l.parent.ID()); live {
			t.Error("P07: the parent was loaded")
		}
		var none subagent.Host
		_, err = none.Send(t.Context(), l.parent.ID(), acc.Child, say("x"))
		wantCode(t, err, subagent.CodeContinuationUnavailable) // CONT-11, FUP-28
	})
}

// P27, FUP-06, B-05: what another process has is named as its own, and left alone.
func TestOwnedElsewhere_P27(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		acc := l.start("worker", "begin")
		synctest.Wait()
		if err := l.parent.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		other := l.store.Backend().Open(memory.WithSocket("/run/other"))
		w, err := other.Open(t.Context(), acc.Child)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Host.Send(t.Context(), l.parent.ID(), acc.Child, say("x"))
		wantCode(t, err, subagent.CodeOwnedElsewhere)
		var owned *session.OwnedError
		if !errors.As(err, &owned) || owned.Owner.Socket != "/run/other" {
			t.Errorf("the owner is not named: %v", err)
		}
		l.gone(acc.Child)
		if err := errors.Join(w.Close(t.Context()), other.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		if _, err = l.Host.Send(t.Context(), l.parent.ID(), acc.Child, say("x")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// FUP-29, FUP-30, INT-01, SET-14, P43, OBS-04, B-04: a wake behind an interrupt runs, behind what was parked, and parked work
// pins nobody.
func TestWakeBehindAnInterrupt_FUP29(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		slow := make(chan struct{})
		var turn context.Context
		l.Answer("hold", scripted.Step{scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
			turn = ctx
			<-slow // it is told to stop, and takes its time
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})})
		first, lf, works := l.pair("hold")
		mid, leaf := first.Child, lf.Child
		m := l.liveAgent(mid)
		close(works.open)
		synctest.Wait()
		if _, err := l.Service.Followup(t.Context(), m, leaf, say("parked"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Host.Interrupt(mid, leaf); err != nil {
			t.Fatal(err)
		}
		if turn.Err() == nil || l.liveAgent(leaf).Status() != agent.Running {
			t.Error("INT-01: it was not told to stop when the call returned, or was waited for")
		}
		if _, err := l.Service.Followup(t.Context(), m, leaf, say("behind"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		close(slow)
		synctest.Wait()
		l.gone(leaf, mid)
		l.logs(leaf, "user: hold", "end: aborted", "user: parked", "answer: noted", "user: behind", "answer: noted", "settled: completed")

		// Without a wake it is parked: leaf and mid settle, and the next wake runs it first.
		works = l.hold("go on")
		l.followup(mid, "go on")
		m = l.liveAgent(mid)
		if _, err := l.Service.Followup(t.Context(), m, leaf, say("hold"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := l.Service.Followup(t.Context(), m, leaf, say("parked"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		if err := l.Host.Interrupt(mid, leaf); err != nil {
			t.Fatal(err)
		}
		close(works.open)
		synctest.Wait()
		l.gone(leaf, mid)
		if _, err := l.Host.Send(t.Context(), mid, leaf, say("next")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := l.said(leaf)
		want := []string{"user: hold", "end: aborted", "settled: aborted", "user: parked", "answer: noted", "user: next", "answer: noted", "settled: completed"}
		if d := cmp.Diff(want, got[len(got)-len(want):]); d != "" {
			t.Errorf("P43:\n%s", d)
		}
	})
}

// RB-16, RB-21, FUP-22, FUP-23, P06: a delivery that fails takes back what it began for itself alone: what another was
// told is accepted runs, and its end is told. No further write ends before the first delivery has seen its own fail: the
// other's could otherwise make both durable.
func TestRollbackSparesOthers(t *testing.T) {
	for _, cold := range []bool{true, false} {
		faulty := storetest.NewFaulty(memory.New())
		inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
			req := l.request("worker", "lost")
			req.ID = "child"
			if cold {
				req.Prompt = say("begin")
				if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			disk, rest, failed := make(chan struct{}), make(chan struct{}), false
			faulty.Plan(func(p storetest.Point) storetest.Fault {
				switch {
				case p.ID != "child" || p.Op != storetest.OpAppend && p.Op != storetest.OpCreate:
					return storetest.Fault{}
				case failed:
					return storetest.Fault{Wait: func(context.Context) { <-rest }}
				}
				failed = true
				return storetest.Fault{Wait: func(context.Context) { <-disk }, Err: errBoom}
			})
			got := make(chan error, 2)
			go func() {
				var err error
				if cold {
					_, err = l.Service.Followup(t.Context(), l.parent, "child", say("lost"), message.UserSource())
				} else {
					_, err = l.Service.StartAwaited(t.Context(), spawn.DefaultName, req)
				}
				if !errors.Is(err, errBoom) {
					t.Errorf("the one that failed: %v", err)
				}
				got <- nil
			}()
			synctest.Wait()
			go func() {
				_, err := l.Service.Followup(t.Context(), l.parent, "child", say("from another"), message.UserSource())
				got <- err
			}()
			synctest.Wait()
			close(disk)
			synctest.Wait()
			close(rest)
			synctest.Wait()
			if err := errors.Join(<-got, <-got); err != nil {
				t.Errorf("the other: %v", err)
			}
			l.gone("child")
			want := []string{"user: from another", "answer: noted", "settled: completed"}
			if cold {
				want = append([]string{"user: begin", "answer: noted", "settled: completed"}, want...)
			}
			if d := cmp.Diff(want, l.said("child")); d != "" {
				t.Errorf("cold %v:\n%s", cold, d)
			}
			if told := strings.Join(l.said(l.parent.ID()), "\n"); strings.Count(told, "has finished.") != len(want)/3 {
				t.Errorf("the parent was told: %s", told)
			}
		})
	}
}

// EVT-19: what others send to a child that is just being made goes in when its start was told.
func TestOthersWaitForTheStart_EVT19(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		req := l.request("worker", "begin")
		req.ID = "child"
		told := false
		got := make(chan error, 1)
		l.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) {
			if told {
				return
			}
			go func() {
				_, err := l.Service.Followup(t.Context(), l.parent, "child", say("more"), message.UserSource())
				got <- err
			}()
			synctest.Wait()
			if a, _ := l.Agents.Get(e.ID); a.Session().Head() != 1 || len(got) > 0 {
				t.Errorf("it has %d events, and %d deliveries are done", a.Session().Head(), len(got))
			}
			told = true
		}}, nil)
		if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := <-got; err != nil || !told {
			t.Errorf("told %v: %v", told, err)
		}
	})
}

// CONT-10: of two starts that find one id free, one gets it.
func TestOneIDForTwo_CONT10(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
		look, mine := make(chan struct{}), make(chan struct{})
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			if p.Op == storetest.OpExists && p.N < 2 {
				return storetest.Fault{Wait: func(context.Context) { <-look }}
			}
			return storetest.Fault{}
		})
		l.preparer("slow", func(context.Context, subagent.Preparation) (*session.Seed, error) { <-mine; return nil, nil })
		got := make(chan error, 2)
		for range 2 {
			go func() {
				req := l.request("worker", "begin")
				req.ID = "mine"
				_, err := l.Service.StartContinuable(t.Context(), "slow", req)
				got <- err
			}()
		}
		synctest.Wait()
		close(look)
		synctest.Wait()
		wantCode(t, <-got, subagent.CodeDuplicateChild)
		close(mine)
		if err := <-got; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// A message that could not be read back is refused before anything is done: it would make a
// log that accepted it unreadable.
func TestUnreadableRefused(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		acc := l.start("worker", "go")
		synctest.Wait()
		broken := []message.Block{{Type: "theirs", Raw: []byte(`{}`)}}
		l.Answer("report", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
			child, _ := l.Agents.Get(acc.Child)
			if _, err := l.Service.Report(t.Context(), child, broken, subagent.DeliverQuiet); !errors.Is(err, subagent.ErrInvalidRequest) {
				t.Errorf("report: %v", err)
			}
			return scripted.Step{scripted.SayLiteral("reported")}, nil
		})})
		req := l.request("other", "go")
		req.Prompt = broken
		_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
		if !errors.Is(err, subagent.ErrInvalidRequest) {
			t.Errorf("start: %v", err)
		}
		nobody := message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay})
		if _, err := l.Service.Followup(t.Context(), l.parent, acc.Child, say("more"), nobody); !errors.Is(err, subagent.ErrInvalidRequest) {
			t.Errorf("follow up: %v", err)
		}
		if _, live := l.Agents.Get(acc.Child); live {
			t.Error("the child was opened for it")
		}
		l.followup(acc.Child, "report")
		synctest.Wait()
		if got := l.said(acc.Child); got[len(got)-2] != "answer: reported" {
			t.Errorf("the child's log: %q", got)
		}
	})
}
