package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Ownership at run time is not lineage (core L46), and the registry's views.
func TestRegistryViews(t *testing.T) {
	bubble(t, func(w *world) {
		root := w.create()
		child := w.child(root)
		grand := w.child(child)
		other := w.create()
		w.same("roots", 2, len(w.reg.Roots()))
		w.same("all", 4, len(w.reg.List()))
		w.same("path", []string{root.SessionID(), child.SessionID(), grand.SessionID()}, grand.Path())
		w.same("owner", true, grand.Owner() == child)
		if a, ok := w.reg.Get(other.ID()); !ok || a != other {
			t.Error("Get does not find a live agent")
		}
		w.same("root of a child", []bool{true, false}, []bool{root.Root(), child.Root()})
	})
}

// MaxLive bounds what lives and what is being made; a place comes back with the end
// of its holder, or of a creation that failed (core H9, H10).
func TestMaxLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false, agent.Config{MaxLive: 2})
		a := w.create()
		w.create()
		var limit *agent.LimitError
		if _, err := w.reg.Create(w.ctx, agent.Create{}); !errors.As(err, &limit) || limit.Limit != 2 {
			t.Errorf("a third agent: %v", err)
		}
		w.ok(a.Dispose(w.ctx, false))
		for range 3 {
			if _, err := w.reg.Create(w.ctx, agent.Create{Setup: func(context.Context, *agent.Agent) error { return errBoom }}); !errors.Is(err, errBoom) {
				t.Errorf("a creation that fails: %v", err)
			}
			if _, err := w.reg.Create(w.ctx, agent.Create{Session: session.New{Cwd: "relative"}}); err == nil {
				t.Error("a bad header was accepted")
			}
		}
		w.create()
		w.finish()
	})
}

// Close refuses, cancels creations under way, disposes the rest and keeps queues
// (core L47); from inside an activity it would wait for itself.
func TestRegistryClose(t *testing.T) {
	bubble(t, func(w *world) {
		root := w.create()
		child := w.child(root)
		w.ok(root.Inject(msg("kept")))
		reached := make(chan struct{})
		w.model.script(func(c *call) {
			if err := w.reg.Close(c.ctx); !errors.Is(err, agent.ErrSelfDispose) {
				t.Errorf("close from inside: %v", err)
			}
			close(reached)
			c.hang()
		})
		w.ok(child.Followup(msg("m1")))
		<-reached
		building, finish := make(chan struct{}), make(chan struct{})
		res := make(chan error)
		go func() {
			_, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Setup: func(ctx context.Context, _ *agent.Agent) error {
				close(building)
				<-ctx.Done()
				<-finish
				return nil
			}})
			res <- err
		}()
		<-building
		closed := make(chan error, 2)
		for range 2 {
			go func() { closed <- w.reg.Close(w.ctx) }()
		}
		synctest.Wait()
		w.same("closed while somebody builds", 0, len(closed))
		close(finish)
		if err := <-res; !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("a creation under way: %v", err)
		}
		w.ok(<-closed)
		w.ok(<-closed)
		if _, err := w.reg.Create(w.ctx, agent.Create{}); !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("create after close: %v", err)
		}
		w.same("kept", 1, len(root.Session().Inbox(session.NextStep)))
		w.same("child", []string{"end 1 aborted disposed"}, lines(child, "end"))
		w.same("agents", 0, len(w.reg.List()))
	})
}

func TestNewRegistryNeedsItsParts(t *testing.T) {
	if _, err := agent.NewRegistry(t.Context(), agent.Config{}); err == nil || !strings.Contains(err.Error(), "required") {
		t.Errorf("an empty configuration: %v", err)
	}
}

// Observers are told later, in order, never lose an edge, and know what they missed.
func TestObserve(t *testing.T) {
	bubble(t, func(w *world) {
		l := newLatch()
		var got []string
		var behind []agent.Behind
		first := true
		stop := w.reg.Observe(3, func(e agent.Event) {
			if first {
				first = false
				w.ok(l.wait(w.ctx))
			}
			got = append(got, fmt.Sprint(e.Kind, " ", e.Status, " ", e.Missed))
			behind = append(behind, e.Behind...)
		})
		a := w.create()
		<-l.reached
		w.model.script(func(c *call) {
			for range 5 {
				c.text("x")
			}
			c.finish(llm.FinishStop)
		})
		w.ask(a, "m1")
		w.ok(a.Dispose(w.ctx, false))
		close(l.open)
		synctest.Wait()
		stop()
		stop()
		chunk := fmt.Sprint(agent.EventChunk, "  0")
		want := []string{
			fmt.Sprint(agent.EventCreated, "  0"), fmt.Sprint(agent.EventStatus, " running 0"), chunk, chunk,
			fmt.Sprint(agent.EventMissed, "  16"), fmt.Sprint(agent.EventStatus, " idle 0"), fmt.Sprint(agent.EventDisposed, "  0"),
		}
		w.same("observed", want, got)
		// Read the log from there (design § 3): the answer that was missed is in it.
		if len(behind) != 1 || behind[0].Agent != a {
			t.Fatalf("behind: %v", behind)
		}
		if e, ok := a.Session().Event(behind[0].Seq); !ok || e.Type != session.TypeAssistantMessage {
			t.Errorf("the log is to be read from %v on", e.Type)
		}
	})
}

// An observer that missed a fact is sent to the event that holds it, not behind it
// (design § 3).
func TestObserveSaysFromWhereToRead(t *testing.T) {
	stored(t, func(w *world) {
		l := newLatch()
		var missed []agent.Event
		first := true
		stop := w.reg.Observe(1, func(e agent.Event) {
			if first {
				first = false
				w.ok(l.wait(w.ctx))
			}
			if e.Kind == agent.EventMissed {
				missed = append(missed, e)
			}
		})
		defer stop()
		agents := map[*agent.Agent]bool{}
		for range 3 {
			// Without a model the failure is all there is to tell.
			h, err := w.reg.Create(w.ctx, agent.Create{})
			w.ok(err)
			agents[h.Agent()] = true
		}
		<-l.reached
		for a := range agents {
			w.ask(a, "m1")
		}
		for a := range agents {
			w.ok(a.Dispose(w.ctx, false))
		}
		close(l.open)
		synctest.Wait()
		for _, e := range missed {
			for _, b := range e.Behind {
				if !agents[b.Agent] {
					t.Errorf("%s is named twice", b.Agent.ID())
				}
				delete(agents, b.Agent)
				from := []string{}
				for e := range b.Agent.Session().Events(b.Seq) {
					from = append(from, line(e))
				}
				if !slices.Contains(from, "end 1 error INVALID_REQUEST") {
					t.Errorf("from %d on the log does not tell of the failure: %v", b.Seq, from)
				}
			}
		}
		w.same("agents of which the observer knows nothing", 0, len(agents))
	})
}

// How many agents are named is bounded.
func TestObserveNamesOnlySoMany(t *testing.T) {
	stored(t, func(w *world) {
		l := newLatch()
		most, unnamed := 0, 0
		first := true
		stop := w.reg.Observe(1, func(e agent.Event) {
			if first {
				first = false
				w.ok(l.wait(w.ctx))
			}
			most, unnamed = max(most, len(e.Behind)), unnamed+e.Unnamed
		})
		defer stop()
		speak, finish := make(chan struct{}), make(chan struct{})
		w.model.fallback = func(c *call) {
			<-speak
			c.delta(message.BlockText, llm.ChunkTextDelta, "x") // two chunks
			<-finish
			c.fail(message.Failure{Code: "INVALID_REQUEST", Message: "no"})
		}
		const agents = agent.MaxBehind + 2
		for i := range agents {
			w.ok(w.create().Followup(msg(fmt.Sprintf("m%d", i))))
		}
		synctest.Wait()
		close(speak)
		synctest.Wait()
		close(finish)
		synctest.Wait()
		close(l.open)
		synctest.Wait()
		w.same("named", agent.MaxBehind, most)
		if unnamed < 2*(agents-agent.MaxBehind) {
			t.Errorf("%d events of further agents", unnamed)
		}
	})
}

// Observers hear of an agent's events in their order, also while a hook that is told of
// the status on the sender's goroutine takes its time.
func TestObserversKeepTheOrder(t *testing.T) {
	bubble(t, func(w *world) {
		var got []agent.EventKind
		stop := w.reg.Observe(64, func(e agent.Event) {
			if e.Kind == agent.EventStatus || e.Kind == agent.EventMessage {
				got = append(got, e.Kind)
			}
		})
		defer stop()
		a := w.create()
		answered := make(chan struct{})
		w.model.script(func(c *call) {
			c.text("x")
			c.finish(llm.FinishStop)
			close(answered)
		})
		a.AddHooks(agent.Hooks{Status: func(_ *agent.Agent, s agent.Status) {
			if s != agent.Running {
				return
			}
			select {
			case <-answered:
			case <-time.After(time.Second): // it is the driver that tells
			}
		}})
		w.ask(a, "m1")
		synctest.Wait()
		w.same("observed", []agent.EventKind{agent.EventStatus, agent.EventMessage, agent.EventStatus}, got)
	})
}
