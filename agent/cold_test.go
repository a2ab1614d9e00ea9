package agent_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
)

// resumeCold leaves an agent stored that had one turn, and resumes it without its log
// being read; what reads the log from then on fails with err, if there is one.
func resumeCold(w *world, err error) (*agent.Handle, int) {
	h, cerr := w.reg.Create(w.ctx, agent.Create{Options: options()})
	w.ok(cerr)
	w.ask(h.Agent(), "m1")
	w.ok(h.Release(w.ctx))
	if err != nil {
		w.store.reads = func() error { return err }
	}
	h, cerr = w.reg.Resume(w.ctx, agent.Resume{ID: h.Agent().ID(), Options: options()})
	w.ok(cerr)
	return h, len(w.model.requests)
}

// A log whose middle is damaged is opened from its checkpoint and accepts; its turn fails
// with the typed error before anything of it is in the log and before a model is asked.
func TestTurnOnADamagedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true, agent.Config{})
		h, requests := resumeCold(w, &session.CorruptError{ID: "s", Seq: 3, Err: errBoom})
		a := h.Agent()
		opened := 0
		a.AddHooks(agent.Hooks{TurnOpen: func(*agent.Agent, int64) ([]session.Draft, error) { opened++; return nil, nil }})
		for i, id := range []string{"m2", "m3"} {
			w.ok(a.Accept(w.ctx, msg(id), session.NextTurn))
			w.idle(a)
			var corrupt *session.CorruptError
			failures := w.rec.failures(a)
			if len(failures) != i+1 || !errors.As(failures[i], &corrupt) || corrupt.Seq != 3 {
				t.Fatalf("the turn failed with %v", failures)
			}
		}
		w.same("requests", requests, len(w.model.requests))
		w.same("turns that were opened", 0, opened)
		w.same("what waits", 2, len(a.Session().Inbox(session.NextTurn)))
		_, open, _ := a.Session().LastTurn()
		w.same("open", false, open)
		// What was accepted is taken back in the log, as at every end.
		w.ok(h.Dispose(w.ctx))
		w.store.reads = nil
		w.ok(w.reg.Close(w.ctx))
		for _, stop := range w.rec.stops {
			stop()
		}
		w.same("stored", []string{"spliced m2", "spliced m3"}, w.spliced(a.ID()))
	})
}

// spliced says which messages of a stored log never became part of a turn.
func (w *world) spliced(id session.ID) (out []string) {
	w.Helper()
	in, ran := []string{}, map[string]bool{}
	for e, err := range w.store.ReadFrom(w.ctx, id, 0) {
		w.ok(err)
		p, err := w.sessions.PayloadOf(e)
		w.ok(err)
		switch p := p.(type) {
		case *session.InboxSpliced:
			for _, m := range p.Inserted {
				in = append(in, string(m.ID))
			}
		case *session.UserMessage:
			ran[string(p.Message.ID)] = true
		}
	}
	for _, id := range in {
		if !ran[id] {
			out = append(out, "spliced "+id)
		}
	}
	return out
}

// A store that fails while the log is read fails the turn; the next one finds the log and
// what waits.
func TestTurnReadsTheLogAgain(t *testing.T) {
	stored(t, func(w *world) {
		h, requests := resumeCold(w, errBoom)
		a := h.Agent()
		w.ok(a.Accept(w.ctx, msg("m2"), session.NextTurn))
		w.idle(a)
		if failures := w.rec.failures(a); len(failures) != 1 || !errors.Is(failures[0], errBoom) {
			t.Fatalf("the turn failed with %v", failures)
		}
		w.same("requests", requests, len(w.model.requests))
		w.store.reads = nil
		w.ask(a, "m3")
		w.same("course", []string{"turn 1", "user m1", "end 1 completed", "end-seed", "turn 2", "user m2", "end 2 completed", "turn 3", "user m3", "end 3 completed"},
			lines(a, "turn", "user", "end"))
		w.same("messages of the last request", 5, len(w.model.requests[len(w.model.requests)-1].req.Messages))
	})
}
