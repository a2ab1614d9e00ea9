package fork_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// slow is a store whose appends wait at a gate while there is one.
type slow struct {
	*memory.Store
	gate    chan struct{} // nil: no waiting
	reached chan struct{}
	err     error
}

func (s *slow) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	w, err := s.Store.Create(ctx, h, m, first, cells)
	if err != nil {
		return nil, err
	}
	return &slowWriter{w, s}, nil
}

type slowWriter struct {
	session.Writer
	s *slow
}

func (w *slowWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if gate := w.s.gate; gate != nil {
		close(w.s.reached)
		w.s.gate = nil
		<-gate
	}
	if w.s.err != nil {
		return w.s.err
	}
	return w.Writer.Append(ctx, head, events, cells)
}

// FORK-02, COMP-26, DRV-03 and design § 4, A seed is a Prefix: what the child gets is
// fixed when Start is called. Start then waits until the parent's log is stored up to
// the cut, and what the parent does meanwhile is its own.
func TestSnapshotAtStart(t *testing.T) {
	store := &slow{Store: memory.New()}
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("one", say("the first answer"))
		s.Answer("two", say("the second answer"))
		s.Answer("count", say("42"))
		parent := s.Parent(t)
		turn(t, parent, "one")
		cut := parent.Session().Head()
		sandbox := func(mode string) {
			if _, err := parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: mode}}); err != nil {
				t.Error(err)
			}
		}
		sandbox("before")
		if parent.Session().Durable() >= cut {
			t.Fatal("the turn's end is stored already, so that nothing is waited for")
		}
		store.gate, store.reached = make(chan struct{}), make(chan struct{})
		gate := store.gate
		started := make(chan subagent.Run)
		go func() {
			started <- s.Start(t, t.Context(), fork.DefaultName, subagenttest.Request(parent, "count"))
		}()
		<-store.reached
		sandbox("meanwhile")
		if err := parent.Followup(agent.UserText("two")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(s.Agents.List()); n != 1 {
			t.Errorf("%d agents while the parent's log is being stored, want the parent", n)
		}
		close(gate)
		run := <-started
		child, _ := run.Local()
		subagenttest.Await(t, run)
		log := child.Session()
		if got := log.Header().SeedLength; got != cut {
			t.Errorf("seedLength = %d, want %d", got, cut)
		}
		if _, mode := log.Policies(); mode != "before" {
			t.Errorf("sandbox = %q, want that of the call", mode)
		}
		if diff := cmp.Diff([]string{"one", "the first answer", "count"}, asked(t, s, run.ID())); diff != "" {
			t.Errorf("its request:\n%s", diff)
		}
		verified(t, store)
	})
}

// RUN-03, DRV-17, H10: the parent's log cannot be stored, or the caller gives up
// meanwhile. Nothing is left, and the next fork succeeds.
func TestParentCannotBeStored(t *testing.T) {
	store := &slow{Store: memory.New()}
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("one", say("the first answer"))
		s.Answer("count", say("42"))
		parent := s.Parent(t)
		turn(t, parent, "one")
		full := errors.New("the disk is full")
		store.err = full
		if _, err := s.Service.Start(t.Context(), fork.DefaultName, subagenttest.Request(parent, "count")); !errors.Is(err, full) {
			t.Errorf("Start = %v, want the store's failure", err)
		}
		store.err = nil
		store.gate, store.reached = make(chan struct{}), make(chan struct{})
		gate := store.gate
		go func() {
			if err := parent.Session().Flush(t.Context()); err != nil {
				t.Errorf("flush: %v", err)
			}
		}()
		<-store.reached // somebody else's write is under way
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error)
		go func() {
			_, err := s.Service.Start(ctx, fork.DefaultName, subagenttest.Request(parent, "count"))
			failed <- err
		}()
		synctest.Wait()
		cancel(stop)
		if err := <-failed; !errors.Is(err, stop) {
			t.Errorf("Start = %v, want the cause", err)
		}
		close(gate)
		synctest.Wait()
		if len(s.Agents.List()) != 1 || len(s.Sessions.List()) != 1 || len(s.Lifecycle.Edges()) != 0 || len(children(t, store, parent.ID())) != 0 {
			t.Error("something is left")
		}
		res, log := forked(t, s, parent, "count")
		if res.StopReason != subagent.StopCompleted || log.Header().SeedLength == 0 {
			t.Errorf("the next fork ended as %+v with seedLength %d", res, log.Header().SeedLength)
		}
	})
}
