package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// crowd is a tree of continuable children that many actors act on at once.
type crowd struct {
	*subagenttest.System
	t     *testing.T
	roots []session.ID

	mu       sync.Mutex                // guards following
	parents  map[session.ID]session.ID // of the children that were started
	accepted map[message.ID]promise
	refused  map[string]error    // by the text that was sent
	stale    []*agent.Agent      // agents that were the live ones of their ids once
	replaced map[session.ID]bool // roots that are just being replaced
	said     int
	happened map[string]int
}

// promise is a message that was accepted.
type promise struct {
	log  session.ID // whose inbox it is in
	text string
}

var errLate = errors.New("the caller has waited long enough")

func newCrowd(t *testing.T, seed uint64) *crowd {
	slow := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	nap := func(most time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(slow.Int64N(int64(most)))
	}
	faulty := storetest.NewFaulty(memory.New())
	faulty.Plan(func(storetest.Point) storetest.Fault {
		d := nap(300 * time.Microsecond)
		return storetest.Fault{Wait: func(context.Context) { <-time.After(d) }}
	})
	c := &crowd{
		t: t, parents: map[session.ID]session.ID{}, accepted: map[message.ID]promise{}, refused: map[string]error{},
		replaced: map[session.ID]bool{}, happened: map[string]int{},
	}
	c.System = subagenttest.NewSystem(t, subagenttest.Options{Store: faulty, Projections: units(t)})
	c.Otherwise(scripted.Step{scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
		select {
		case <-time.After(nap(3 * time.Millisecond)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		return scripted.Step{scripted.SayLiteral("done")}, nil
	})})
	c.Register(t, spawn.New(""))
	for i := range 3 {
		id := session.ID(fmt.Sprintf("root%d", i))
		c.roots = append(c.roots, id)
		a := c.NewAgent(t, agent.Create{Session: session.New{ID: id}, Options: subagenttest.ParentOptions()})
		if err := a.Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *crowd) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.happened[what]++
}

// text returns words that nobody has said before.
func (c *crowd) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said++
	return fmt.Sprintf("work %d.", c.said)
}

// answered notes how a delivery ended.
func (c *crowd) answered(what string, id message.ID, log session.ID, text string, err error, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.accepted[id] = promise{log, text}
		c.happened[what]++
		return
	}
	c.refused[text] = err
	c.happened[what+" refused"]++
	var se *subagent.Error
	switch {
	case errors.Is(err, errLate):
	case !errors.As(err, &se):
		c.t.Errorf("%s: %v", what, err)
	case se.Code == subagent.CodeUnauthorized, se.Code == subagent.CodeActivationClosing, se.Code == subagent.CodeDraining, se.Code == subagent.CodeParentUnavailable:
	case se.Code == subagent.CodeDuplicateChild && what == "start":
	case se.Code == subagent.CodeNotResumable && !known:
	default:
		c.t.Errorf("%s: %s: %v", what, se.Code, err)
	}
}

// actor is one of the crowd.
type actor struct {
	*crowd
	rnd *rand.Rand
}

func pick[T any](r *rand.Rand, list []T) (v T, ok bool) {
	if len(list) == 0 {
		return v, false
	}
	return list[r.IntN(len(list))], true
}

// child returns any child that there ever was, and its parent.
func (a *actor) child() (id, parent session.ID, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, ok = pick(a.rnd, slices.Sorted(maps.Keys(a.parents)))
	return id, a.parents[id], ok
}

// anybody returns an agent: a live one, or sometimes one that was.
func (a *actor) anybody() *agent.Agent {
	a.mu.Lock()
	old, ok := pick(a.rnd, a.stale)
	a.mu.Unlock()
	if ok && a.rnd.IntN(8) == 0 {
		return old
	}
	who, _ := pick(a.rnd, a.Agents.List())
	if who != nil {
		a.mu.Lock()
		a.stale = append(a.stale, who)
		a.mu.Unlock()
	}
	return who
}

func (a *actor) nap(most time.Duration) { <-time.After(time.Duration(a.rnd.Int64N(int64(most)))) }

// caller returns a context that may end at any moment.
func (a *actor) caller() (context.Context, func()) {
	ctx := context.WithoutCancel(a.t.Context())
	if a.rnd.IntN(4) > 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := time.AfterFunc(time.Duration(a.rnd.Int64N(int64(time.Millisecond))), func() { cancel(errLate) })
	return ctx, func() { stop.Stop(); cancel(nil) }
}

func (a *actor) act() {
	ctx, done := a.caller()
	defer done()
	ok := func(what string, err error) {
		var se *subagent.Error
		switch {
		case err == nil:
			a.count(what)
		case errors.Is(err, errLate), errors.As(err, &se) && (se.Code == subagent.CodeUnauthorized || se.Code == subagent.CodeNotResumable || se.Code == subagent.CodeDraining || se.Code == subagent.CodeActivationClosing):
			a.count(what + " refused")
		default:
			a.t.Errorf("%s: %v", what, err)
		}
	}
	switch n := a.rnd.IntN(100); {
	case n < 25:
		parent := a.anybody()
		if parent == nil || len(parent.Path()) > 4 {
			return
		}
		req := subagent.ContinuableRequest{Label: "worker", Prompt: say(a.text()), Parent: parent}
		if a.rnd.IntN(3) == 0 {
			req.ID = session.ID(fmt.Sprintf("reserved%d", a.rnd.IntN(40)))
		}
		acc, err := a.Service.StartContinuable(ctx, spawn.DefaultName, req)
		a.answered("start", acc.Message, acc.Child, message.JoinText(req.Prompt), err, false)
		if err == nil {
			a.mu.Lock()
			a.parents[acc.Child] = parent.ID()
			a.mu.Unlock()
		}
	case n < 60:
		id, parent, there := a.child()
		if !there {
			return
		}
		text := a.text()
		who, live := a.Agents.Get(parent)
		if !live || a.rnd.IntN(6) == 0 {
			who = a.anybody()
		}
		if who == nil {
			return
		}
		mid, err := a.Service.Followup(ctx, who, id, say(text), message.UserSource())
		a.answered("follow-up", mid, id, text, err, true)
		if err == nil && who.ID() != parent {
			a.t.Errorf("AUTH-03: %s gave work to %s, a child of %s", who.ID(), id, parent)
		}
	case n < 70:
		id, parent, there := a.child()
		if !there {
			return
		}
		wrong := a.rnd.IntN(5) == 0
		if wrong {
			parent = "nobody"
		}
		text := a.text()
		mid, err := a.Host.Send(ctx, parent, id, say(text))
		a.answered("host's send", mid, id, text, err, true)
		if err == nil && wrong {
			a.t.Errorf("AUTH-12: a message for %s in the name of nobody", id)
		}
	case n < 76:
		id, parent, there := a.child()
		if !there {
			return
		}
		if a.rnd.IntN(2) == 0 {
			ok("host's interrupt", a.Host.Interrupt(parent, id))
		} else if who := a.anybody(); who != nil {
			ok("interrupt", subagent.NewInterrupter(a.Service).Interrupt(who, id))
		}
	case n < 81:
		id, parent, there := a.child()
		who, live := a.Agents.Get(parent)
		if !there || !live {
			return
		}
		ok("selected drain", subagent.NewChildDrainer(a.Service).Drain(ctx, who, id))
	case n < 84:
		id, parent, there := a.child()
		if !there {
			return
		}
		ok("host's close", a.Host.Close(ctx, parent, id))
	case n < 93:
		who := a.anybody()
		if who == nil || who.Root() {
			return
		}
		text := a.text()
		how, _ := pick(a.rnd, []subagent.Delivery{subagent.DeliverQuiet, subagent.DeliverWakeup, subagent.DeliverNextStep})
		mid, err := a.Service.Report(ctx, who, say(text), how)
		a.answered("report", mid, who.Session().Header().ParentSession, text, err, true)
	case n < 97:
		a.replace(a.rnd.IntN(3) == 0)
	default:
		if who := a.anybody(); who != nil && !who.Root() {
			// Somebody who has nothing to do with the seam.
			if err := who.Dispose(ctx, true); err != nil && !errors.Is(err, errLate) {
				a.t.Errorf("dispose: %v", err)
			}
		}
	}
}

// replace puts another agent in the place of a root; what is below it may be drained
// before.
func (a *actor) replace(drain bool) {
	id := a.roots[a.rnd.IntN(len(a.roots))]
	a.mu.Lock()
	busy := a.replaced[id]
	a.replaced[id] = true
	a.mu.Unlock()
	if busy {
		return
	}
	ctx := context.WithoutCancel(a.t.Context())
	old, live := a.Agents.Get(id)
	if !live {
		a.t.Errorf("root %s is not live", id)
		return
	}
	if drain {
		if err := a.Service.DrainDescendants(old)(ctx); err != nil {
			a.t.Errorf("scoped drain: %v", err)
		}
		a.count("scoped drain")
	}
	if err := old.Dispose(ctx, true); err != nil {
		a.t.Errorf("dispose root %s: %v", id, err)
	}
	a.nap(2 * time.Millisecond)
	if _, err := a.Agents.Resume(ctx, agent.Resume{ID: id, Options: subagenttest.ParentOptions()}); err != nil {
		a.t.Errorf("resume root %s: %v", id, err)
	}
	a.count("replacement")
	a.mu.Lock()
	a.stale = append(a.stale, old)
	a.replaced[id] = false
	a.mu.Unlock()
}

// Many actors act on one forest at once: parents, strangers and people start, follow up,
// interrupt, drain, close and report, while roots are replaced, agents are disposed by
// others, and everybody settles. Every accepted message is taken or discarded exactly
// once, what was refused never ran, no session has two Activations, and in the end
// nothing is owned by anybody (seam FUP-22, FUP-23, FUP-32, AUTH-01…03, AUTH-05, AUTH-07,
// OWN-01, OWN-06, SET-02, SET-04, SET-12, DSP-03, EVT-15, EVT-29, GO-11…13; amendments
// P07, P09; core I16, Q7).
func TestContinuableWalk_GO13(t *testing.T) {
	seeds, each := 1, 8
	if soak {
		seeds, each = 20, 16
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, seed)
				var actors sync.WaitGroup
				for i := range uint64(64) {
					a := &actor{c, rand.New(rand.NewPCG(seed, i+2))}
					actors.Go(func() {
						for range each {
							a.nap(4 * time.Millisecond)
							a.act()
						}
					})
				}
				actors.Wait()
				c.audit()
				if soak && seed == 0 || testing.Verbose() {
					t.Logf("happened: %v", c.happened)
				}
			})
		})
	}
}

func (c *crowd) audit() {
	t := c.t
	ctx := context.WithoutCancel(t.Context())
	settle := func() { <-time.After(time.Minute); synctest.Wait() }
	settle()
	if left := c.Service.Rests(); len(left) > 0 {
		t.Errorf("left when all have settled: %q", left)
	}
	// What an interrupt parked runs with the next wake.
	for _, id := range slices.Sorted(maps.Keys(c.parents)) {
		text := c.text()
		mid, err := c.Host.Send(ctx, c.parents[id], id, say(text))
		c.answered("last word", mid, id, text, err, true)
		settle()
	}
	for _, id := range c.roots {
		a, _ := c.Agents.Get(id)
		if _, err := c.Host.Recover(ctx, a); err != nil {
			t.Errorf("recover %s: %v", id, err)
		}
		settle()
		if err := a.Followup(agent.UserText("last word")); err != nil {
			t.Error(err)
		}
		settle()
	}
	if left := c.Service.Rests(); len(left) > 0 {
		t.Errorf("left in the end: %q", left)
	}
	for _, id := range append(slices.Sorted(maps.Keys(c.parents)), c.roots...) {
		c.auditLog(id)
	}
	for id := range c.parents {
		if _, live := c.Agents.Get(id); live {
			t.Errorf("%s is still live", id)
		}
	}
	for id, p := range c.accepted {
		if p.log != "" {
			t.Errorf("message %s (%s) was accepted and stands in no log", id, p.text)
		}
	}
	for _, id := range c.roots {
		a, _ := c.Agents.Get(id)
		for child, parent := range c.parents {
			if parent != id {
				continue
			}
			_, events, err := c.Sessions.Store().Inspect(ctx, child)
			if err != nil {
				t.Fatal(err)
			}
			for e, err := range events {
				if err != nil {
					t.Fatal(err)
				}
				payload, err := c.Sessions.PayloadOf(e)
				if err != nil {
					t.Fatal(err)
				}
				if p, ok := payload.(*session.Settled); ok && !a.Session().Took(session.SettlementID(child, p.Epoch)) {
					t.Errorf("%s was never told of epoch %d of %s", id, p.Epoch, child)
				}
			}
		}
		if err := a.Dispose(ctx, true); err != nil {
			t.Error(err)
		}
	}
	if n := c.Service.Parents(); n > 0 {
		t.Errorf("%d parents are remembered", n)
	}
}

// auditLog checks what a log says of its inbox.
func (c *crowd) auditLog(id session.ID) {
	t := c.t
	ctx := context.WithoutCancel(t.Context())
	if s, live := c.Sessions.Get(id); live {
		if err := s.Flush(ctx); err != nil {
			t.Error(err)
		}
	}
	rec, events, err := c.Sessions.Store().Inspect(ctx, id)
	if err != nil {
		t.Errorf("inspect %s: %v", id, err)
		return
	}
	var all []session.Event
	for e, err := range events {
		if err != nil {
			t.Errorf("read %s: %v", id, err)
			return
		}
		all = append(all, e)
	}
	if _, err := c.Sessions.Verify(rec, seqOf(all)); err != nil {
		t.Errorf("the log of %s: %v", id, err)
	}
	lists := map[session.Target][]message.Message{}
	in, out, ran := map[message.ID]int{}, map[message.ID]int{}, map[message.ID]int{}
	descriptors := 0
	for i := range all {
		payload, err := c.Sessions.PayloadOf(all[i])
		if err != nil {
			t.Errorf("event %d of %s: %v", all[i].Seq, id, err)
		}
		switch p := payload.(type) {
		case *session.InboxSpliced:
			list := lists[p.Target]
			for _, m := range list[p.Start : p.Start+p.Removed] {
				out[m.ID]++
			}
			for _, m := range p.Inserted {
				in[m.ID]++
			}
			lists[p.Target] = slices.Concat(list[:p.Start], p.Inserted, list[p.Start+p.Removed:])
		case *session.UserMessage:
			ran[p.Message.ID]++
			text := message.JoinText(p.Message.Content)
			for said, err := range c.refused {
				if strings.Contains(text, said) {
					t.Errorf("%s ran %q, which was refused: %v", id, said, err)
				}
			}
		case *session.DescriptorEvent:
			descriptors++
		}
	}
	if _, child := c.parents[id]; child && descriptors != 1 {
		t.Errorf("DES-26: %s has %d descriptors", id, descriptors)
	}
	for mid := range in {
		notice := strings.HasPrefix(string(mid), "settled:")
		if !notice && (in[mid] != 1 || out[mid] != 1) || in[mid] != out[mid] {
			t.Errorf("message %s of %s went in %d times and out %d times", mid, id, in[mid], out[mid])
		}
		if ran[mid] > 1 {
			t.Errorf("message %s of %s ran %d times", mid, id, ran[mid])
		}
	}
	for mid, p := range c.accepted {
		if p.log == id {
			if in[mid] != 1 {
				t.Errorf("message %s (%s) was accepted by %s, and went in %d times", mid, p.text, id, in[mid])
			}
			c.accepted[mid] = promise{text: p.text}
		}
	}
}

func seqOf(events []session.Event) func(func(session.Event, error) bool) {
	return func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}
