package agent_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// imported makes a root of a log that came from elsewhere with work in its queue: two
// messages for a turn each and one for a step.
func (w *world) imported() *agent.Agent {
	w.Helper()
	h := session.Header{ID: "imported", Cwd: "/p"}
	var events []session.Event
	for i, id := range []string{"f1", "f2", "fs"} {
		p := session.InboxSpliced{Target: session.NextTurn, Start: int64(i), Inserted: []message.Message{msg(id)}}
		if id == "fs" {
			p.Target, p.Start = session.NextStep, 0
		}
		data := fmt.Appendf(nil, `{"target":%q,"start":%d,"inserted":[%s]}`, p.Target, p.Start, session.AppendMessage(nil, &p.Inserted[0]))
		events = append(events, session.RawEvent(session.Event{Type: session.TypeInboxSpliced, Seq: int64(i), Time: 1}, data))
	}
	all := func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
	rep, err := w.sessions.CheckImport(h, all)
	w.ok(err)
	in := &session.Import{Header: h, Root: h.ID, Head: rep.Events}
	w.ok(w.sessions.Import(w.ctx, in, all))
	w.ok(w.sessions.Release(w.ctx, in))
	handle, err := w.reg.Resume(w.ctx, agent.Resume{ID: h.ID, Options: options()})
	w.ok(err)
	return handle.Agent()
}

// from is a message that no person sent.
func from(id string) message.Message {
	m := msg(id)
	m.Source = message.NewSource(message.SourceSubagentSettled, message.SourceDetails{Form: message.FormNotice, SenderSessionID: "kid", Summary: "done"})
	return m
}

// What an import brought in its queue runs neither at the opening nor for what
// anybody but a person sends, and nothing overtakes it; when a person sends it runs
// first, in its order.
func TestImportedQueueIsParked(t *testing.T) {
	stored(t, func(w *world) {
		a := w.imported()
		if a.Wake() {
			t.Error("the opening found something to run")
		}
		w.ok(a.Followup(from("n1")))
		w.ok(a.Accept(w.ctx, from("n2"), session.NextStep))
		w.ok(a.RunMaintenance(w.ctx, func(ctx context.Context) error { return a.Followup(from("n3")) }))
		synctest.Wait()
		if a.Status() != agent.Idle || len(lines(a, "turn"))+len(lines(a, "user")) != 0 || w.model.count() != 0 {
			t.Fatalf("it ran: %v", lines(a, ""))
		}
		w.ok(a.Accept(w.ctx, msg("p"), session.NextTurn))
		w.idle(a)
		w.same("order", []string{"user fs", "user n2", "user f1", "user f2", "user n1", "user n3", "user p"}, lines(a, "user"))
		// From now on the session is like any other.
		w.ok(a.Followup(from("n4")))
		w.idle(a)
		w.same("last", "user n4", lines(a, "user")[7])
	})
}

// A person's message that is taken back before a turn claims it leaves everything as
// it was: the turn that it opened takes nothing.
func TestImportedQueueStaysParked(t *testing.T) {
	stored(t, func(w *world) {
		a := w.imported()
		remove := a.AddHooks(agent.Hooks{TurnOpen: func(*agent.Agent, int64) ([]session.Draft, error) {
			return nil, a.Discard("p")
		}})
		w.ok(a.Accept(w.ctx, msg("p"), session.NextTurn))
		w.idle(a)
		w.same("ends", []string{"end 1 completed"}, lines(a, "end 1"))
		if len(lines(a, "user")) != 0 || w.model.count() != 0 || !a.Session().Parked() || a.Wake() {
			t.Errorf("it ran: %v", lines(a, ""))
		}
		remove()
		w.ask(a, "p2")
		w.same("order", []string{"user fs", "user f1", "user f2", "user p2"}, lines(a, "user"))
	})
}

// A person's message that could not be stored was not sent.
func TestImportedQueueIsParkedWhenAcceptanceFails(t *testing.T) {
	stored(t, func(w *world) {
		a := w.imported()
		w.ok(a.Session().Flush(w.ctx))
		w.store.failing(errBoom)
		if err := a.Accept(w.ctx, msg("p"), session.NextTurn); err == nil {
			t.Error("accepted")
		}
		w.store.healthy()
		synctest.Wait()
		if !a.Session().Parked() || a.Wake() || w.model.count() != 0 {
			t.Errorf("it ran: %v", lines(a, ""))
		}
	})
}
