package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// op is one thing that a client does to an agent, after a pause.
type op struct {
	Kind  string
	Agent int
	Keep  bool
	Pause time.Duration
}

// plan is a whole random scenario, drawn before it runs: what clients do at the
// same time, how the model answers, how slow the store is, which writes fail.
type scenario struct {
	Clients [][]op
	Answers []string
	Slow    []time.Duration
	Faults  []int // indexes of writes
	Unknown bool  // a failed write was stored all the same
}

func drawScenario(rt *rapid.T) scenario {
	kinds := []string{"followup", "steer", "inject", "accept", "accept-step", "cancel", "discard", "dispose", "resume", "wake", "maintain", "idle"}
	pause := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, 3 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second})
	ops := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) op {
		return op{
			Kind:  rapid.SampledFrom(kinds).Draw(rt, "kind"),
			Agent: rapid.IntRange(0, 2).Draw(rt, "agent"),
			Keep:  rapid.Bool().Draw(rt, "keep"),
			Pause: pause.Draw(rt, "pause"),
		}
	}), 1, 25)
	return scenario{
		Clients: rapid.SliceOfN(ops, 1, 4).Draw(rt, "clients"),
		Answers: rapid.SliceOfN(rapid.SampledFrom([]string{"text", "slow", "tools", "defer", "fail", "retry", "hang", "cut"}), 1, 12).Draw(rt, "answers"),
		Slow:    rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 5 * time.Millisecond}), 1, 5).Draw(rt, "slow"),
		Faults:  rapid.SliceOfN(rapid.IntRange(0, 40), 0, 3).Draw(rt, "faults"),
		Unknown: rapid.Bool().Draw(rt, "unknown"),
	}
}

// Random operations of several clients on three agents, one owning another, with
// disposals and resumptions in between. Beside what holds after every scenario:
// over the whole log every id is enqueued once and leaves at most once; a refused
// Accept never ran, an accepted one is there (core L6–L15, L24–L28, L48; amendments
// P06, P08, P09).
func TestRandomOperations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sc := drawScenario(rt)
		c := &collector{TB: t}
		synctest.Test(t, func(t *testing.T) {
			c.ctx = t.Context()
			defer c.stopped()
			newClerk(c, sc).run()
		})
		if len(c.faults) > 0 {
			rt.Fatalf("%s", strings.Join(c.faults, "\n"))
		}
	})
}

// collector is a testing.TB that keeps what failed, so that rapid can shrink it.
type collector struct {
	testing.TB
	ctx    context.Context
	mu     sync.Mutex // guards following
	faults []string
}

type fatal struct{}

func (c *collector) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}
func (c *collector) Error(args ...any)                 { c.Errorf("%s", fmt.Sprintln(args...)) }
func (c *collector) Fatalf(format string, args ...any) { c.Errorf(format, args...); panic(fatal{}) }
func (c *collector) Log(...any)                        {}
func (c *collector) Helper()                           {}
func (c *collector) Cleanup(func())                    {}
func (c *collector) Context() context.Context          { return c.ctx }

// stopped ends a scenario that was given up.
func (c *collector) stopped() {
	if p := recover(); p != nil {
		if _, ok := p.(fatal); !ok {
			panic(p)
		}
	}
}

// clerk runs a scenario and keeps book.
type clerk struct {
	*world
	sc scenario

	mu     sync.Mutex // guards following
	ids    []session.ID
	agents []*agent.Agent
	sent   map[message.ID]int  // by an agent's number
	kept   map[message.ID]bool // accepted for good
	refuse map[message.ID]bool
	next   int
	writes int
	calls  int
}

func newClerk(t testing.TB, sc scenario) *clerk {
	k := &clerk{world: newWorld(t, true, agent.Config{}), sc: sc, sent: map[message.ID]int{}, kept: map[message.ID]bool{}, refuse: map[message.ID]bool{}}
	k.lossy = map[session.ID]bool{}
	k.register("work", true, func(ctx context.Context, _ *tool.Call) (any, error) {
		select {
		case <-time.After(4 * time.Millisecond):
		case <-ctx.Done():
		}
		return "ok", nil
	})
	k.register("defer", true, func(_ context.Context, c *tool.Call) (any, error) {
		c.DeferContext(k.mint(-1))
		return "ok", nil
	})
	k.store.gate(k.slow, k.fault)
	k.model.fallback = k.answer
	return k
}

func (k *clerk) mint(agent int) message.Message {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	m := msg(fmt.Sprintf("m%d", k.next))
	if agent >= 0 {
		k.sent[m.ID] = agent
	}
	return m
}

// slow holds a write up and fails it if it is due to.
func (k *clerk) slow(op string, _ []session.Event) error {
	if op != "append" && op != "create" {
		return nil
	}
	k.mu.Lock()
	n := k.writes
	k.writes++
	k.mu.Unlock()
	<-time.After(k.sc.Slow[n%len(k.sc.Slow)])
	if slices.Contains(k.sc.Faults, n) && !k.sc.Unknown {
		return errBoom
	}
	return nil
}

func (k *clerk) fault(op string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if op == "append" && k.sc.Unknown && slices.Contains(k.sc.Faults, k.writes-1) {
		return errBoom
	}
	return nil
}

func (k *clerk) answer(c *call) {
	k.mu.Lock()
	kind := k.sc.Answers[k.calls%len(k.sc.Answers)]
	if k.calls++; k.calls > 80 {
		kind = "text" // a model that only calls tools would never be done
	}
	k.mu.Unlock()
	switch kind {
	case "slow":
		c.delta(message.BlockText, llm.ChunkTextDelta, "some")
		select {
		case <-time.After(10 * time.Millisecond):
		case <-c.ctx.Done():
			c.hang()
			return
		}
		b := message.Text("some")
		c.put(llm.Chunk{Kind: llm.ChunkBlockEnd, Block: &b})
		c.finish(llm.FinishStop)
	case "tools":
		uses("work", "work", "nope")(c)
	case "defer":
		uses("defer", "work")(c)
	case "fail":
		fails(llm.CodeAuth)(c)
	case "retry":
		fails(llm.CodeServer)(c)
	case "hang":
		select {
		case <-time.After(time.Second):
			fails(llm.CodeTimeout)(c)
		case <-c.ctx.Done():
			c.hang()
		}
	case "cut":
		ends("x", llm.FinishMaxTokens)(c)
	default:
		say("x")(c)
	}
}

func (k *clerk) run() {
	k.agents = []*agent.Agent{k.create(), nil, k.create()}
	k.agents[1] = k.child(k.agents[0])
	for _, a := range k.agents {
		k.ids = append(k.ids, a.ID())
	}
	var wg sync.WaitGroup
	for _, ops := range k.sc.Clients {
		wg.Go(func() {
			for _, o := range ops {
				if o.Pause > 0 {
					<-time.After(o.Pause)
				}
				k.do(o)
			}
		})
	}
	wg.Wait()
	synctest.Wait()
	k.store.healthy()
	k.settle()
	k.finish()
	k.audit()
}

func (k *clerk) at(i int) *agent.Agent {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.agents[i]
}

func (k *clerk) do(o op) {
	a := k.at(o.Agent)
	tolerate := func(what string, err error, targets ...error) {
		for _, t := range targets {
			if errors.Is(err, t) {
				return
			}
		}
		if err != nil {
			k.Errorf("%s: %v", what, err)
		}
	}
	send := func(target session.Target, wake bool) {
		m := k.mint(o.Agent)
		if err := a.Send(m, target, wake); err != nil {
			tolerate("send", err, agent.ErrDisposed)
			k.mu.Lock()
			delete(k.sent, m.ID)
			k.mu.Unlock()
		}
	}
	accept := func(target session.Target) {
		m := k.mint(o.Agent)
		err := a.Accept(k.ctx, m, target)
		tolerate("accept", err, agent.ErrDisposed, errBoom)
		k.mu.Lock()
		defer k.mu.Unlock()
		switch {
		case err == nil:
			k.kept[m.ID] = true
		case !errors.Is(err, agent.ErrUncertain):
			delete(k.sent, m.ID)
			k.refuse[m.ID] = true
		}
	}
	switch o.Kind {
	case "followup":
		send(session.NextTurn, true)
	case "steer":
		send(session.NextStep, true)
	case "inject":
		send(session.NextStep, false)
	case "accept":
		accept(session.NextTurn)
	case "accept-step":
		accept(session.NextStep)
	case "cancel":
		tolerate("cancel", a.Cancel(session.Cause{Kind: session.CauseUser}, o.Keep), session.ErrClosed)
	case "discard":
		for _, q := range a.Session().Inbox(session.NextTurn) {
			tolerate("discard", a.Discard(q.Message.ID), agent.ErrNotPending, session.ErrClosed)
		}
	case "dispose":
		err := a.Dispose(k.ctx, o.Keep)
		tolerate("dispose", err, errBoom)
		if err != nil {
			// What it could not store is lost, and it says so.
			k.mu.Lock()
			defer k.mu.Unlock()
			k.lossy[k.ids[o.Agent]] = true
			if o.Agent == 0 {
				k.lossy[k.ids[1]] = true
			}
		}
	case "resume":
		k.resume(o.Agent)
	case "wake":
		a.Wake()
	case "maintain":
		tolerate("maintenance", a.RunMaintenance(k.ctx, func(context.Context) error { <-time.After(time.Millisecond); return nil }), agent.ErrBusy, agent.ErrDisposed)
	case "idle":
		ctx, cancel := context.WithTimeout(k.ctx, time.Hour)
		defer cancel()
		tolerate("idle", a.WhenIdle(ctx))
	}
}

// resume replaces an agent that is gone.
func (k *clerk) resume(i int) {
	r := agent.Resume{ID: k.ids[i], Options: options()}
	if i == 1 {
		r.Owner = k.at(0)
	}
	h, err := k.reg.Resume(k.ctx, r)
	switch {
	case err == nil:
		k.mu.Lock()
		k.agents[i] = h.Agent()
		k.mu.Unlock()
	case errors.Is(err, session.ErrExists), errors.Is(err, session.ErrNotFound), errors.Is(err, agent.ErrDisposed), errors.Is(err, errBoom):
	default:
		k.Errorf("resume: %v", err)
	}
}

// settle lets everything come to rest.
func (k *clerk) settle() {
	for i := range k.agents {
		ctx, cancel := context.WithTimeout(k.ctx, time.Hour)
		if err := k.at(i).WhenIdle(ctx); err != nil {
			k.Errorf("agent %d does not come to rest: %v", i, err)
		}
		cancel()
	}
}

// audit reads the logs as a whole.
func (k *clerk) audit() {
	in, out, ran := map[message.ID]int{}, map[message.ID]int{}, map[message.ID]int{}
	done := map[session.ID]bool{}
	for _, s := range slices.Backward(k.rec.seen) { // the newest instance holds the whole log
		if done[s.ID()] {
			continue
		}
		done[s.ID()] = true
		lists := map[session.Target][]message.ID{}
		for e := range s.Events(0) {
			switch p := e.Payload().(type) {
			case *session.InboxSpliced:
				l := lists[p.Target]
				for _, id := range l[p.Start : p.Start+p.Removed] {
					out[id]++
				}
				var ins []message.ID
				for _, m := range p.Inserted {
					in[m.ID]++
					ins = append(ins, m.ID)
				}
				lists[p.Target] = slices.Concat(l[:p.Start], ins, l[p.Start+p.Removed:])
			case *session.UserMessage:
				ran[p.Message.ID]++
			}
		}
	}
	for id, agent := range k.sent {
		lost := k.lossy[k.ids[agent]] && !k.kept[id]
		if in[id] != 1 && !lost || out[id] > in[id] || ran[id] > out[id] {
			k.Errorf("%s was enqueued %d times, left %d times, ran %d times", id, in[id], out[id], ran[id])
		}
	}
	for id := range k.refuse {
		if in[id] > 1 || ran[id] != 0 || in[id] != out[id] {
			k.Errorf("%s was refused, but was enqueued %d times, left %d times, ran %d times", id, in[id], out[id], ran[id])
		}
	}
}
