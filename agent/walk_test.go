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

	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
)

// inboxWalk is one client of one agent, whose process dies and comes back. It keeps
// account of what it was told of each message.
type inboxWalk struct {
	*trial
	rt      *rapid.T
	inner   *memory.Store
	h       *agent.Handle // nil while nothing is live
	serial  int
	answers []string
	calls   int
	sent    []message.ID
	mayDrop map[message.ID]bool // somebody asked for the end of what waits
	log     []string            // of the last instance, while none is live
}

// fresh forgets a session that has run to its end, so that no log grows without end.
func (k *inboxWalk) fresh() {
	k.end()
	k.sent, k.mayDrop = nil, map[message.ID]bool{}
	k.accepted, k.refused, k.uncertain = map[message.ID]bool{}, map[message.ID]bool{}, map[message.ID]bool{}
	k.boot(memory.New())
	k.doResume(k.rt)
}

func newInboxWalk(c *collector, rt *rapid.T, answers []string) *inboxWalk {
	inner := memory.New()
	w := &world{TB: c, ctx: c.ctx, model: &model{}, rec: &recorder{t: c}}
	tr := &trial{world: w, back: inner.Backend(), accepted: map[message.ID]bool{}, refused: map[message.ID]bool{}, uncertain: map[message.ID]bool{}}
	tr.caller, tr.leave = context.WithCancelCause(c.ctx)
	k := &inboxWalk{trial: tr, rt: rt, answers: answers, mayDrop: map[message.ID]bool{}}
	k.model.fallback = k.answer
	k.boot(inner)
	return k
}

// boot begins a process on the backend.
func (k *inboxWalk) boot(s *memory.Store) {
	k.inner, k.faulty = s, storetest.NewFaulty(s)
	k.other = k.faulty
	k.rec = &recorder{t: k.TB}
	k.open()
}

func (k *inboxWalk) answer(c *call) {
	k.model.mu.Lock()
	kind := k.answers[k.calls%len(k.answers)]
	k.calls++
	k.model.mu.Unlock()
	switch kind {
	case "fail":
		fails(llm.CodeAuth)(c)
	case "slow":
		select {
		case <-time.After(50 * time.Millisecond):
			say("late")(c)
		case <-c.ctx.Done():
			c.hang()
		}
	case "cut":
		ends("x", llm.FinishMaxTokens)(c)
	default:
		say("x")(c)
	}
}

func (k *inboxWalk) mint() message.ID {
	k.serial++
	id := message.ID(fmt.Sprintf("m%d", k.serial))
	k.sent = append(k.sent, id)
	return id
}

func (k *inboxWalk) live() *agent.Agent {
	if k.h == nil {
		k.rt.Skip("nothing is live")
	}
	return k.h.Agent()
}

// tolerate passes over the errors that a fault or a disposal explains.
func (k *inboxWalk) tolerate(what string, err error, targets ...error) {
	if err == nil || strings.Contains(err.Error(), errBoom.Error()) {
		return
	}
	for _, t := range targets {
		if errors.Is(err, t) {
			return
		}
	}
	k.Fatalf("%s: %v", what, err)
}

func (k *inboxWalk) doAccept(rt *rapid.T) {
	a, id := k.live(), k.mint()
	target := rapid.SampledFrom([]session.Target{session.NextTurn, session.NextStep}).Draw(rt, "target")
	err := a.Accept(k.ctx, msg(string(id)), target)
	switch {
	case err == nil:
		k.accepted[id] = true
	case errors.Is(err, agent.ErrUncertain):
		k.uncertain[id] = true
	default:
		k.refused[id] = true
	}
	k.tolerate("accept", err)
}

func (k *inboxWalk) doSend(rt *rapid.T) {
	a, id := k.live(), k.mint()
	send := rapid.SampledFrom([]func(message.Message) error{a.Followup, a.Steer, a.Inject}).Draw(rt, "send")
	k.tolerate("send", send(msg(string(id))))
}

func (k *inboxWalk) drop() {
	for _, id := range k.sent {
		k.mayDrop[id] = true
	}
}

func (k *inboxWalk) doCancel(rt *rapid.T) {
	a := k.live()
	keep := rapid.Bool().Draw(rt, "keep")
	if !keep {
		k.drop()
	}
	k.tolerate("cancel", a.Cancel(session.Cause{Kind: session.CauseUser}, keep))
}

func (k *inboxWalk) doDiscard(rt *rapid.T) {
	a := k.live()
	waiting := a.Session().Inbox(session.NextTurn)
	if len(waiting) == 0 {
		rt.Skip("nothing waits")
	}
	id := waiting[rapid.IntRange(0, len(waiting)-1).Draw(rt, "which")].Message.ID
	k.mayDrop[id] = true
	k.tolerate("discard", a.Discard(id), agent.ErrNotPending)
}

func (k *inboxWalk) doWait(rt *rapid.T) {
	<-time.After(rapid.SampledFrom([]time.Duration{time.Millisecond, 60 * time.Millisecond, time.Second}).Draw(rt, "wait"))
	synctest.Wait()
}

func (k *inboxWalk) doIdle(*rapid.T) {
	ctx, cancel := context.WithTimeout(k.ctx, time.Hour)
	defer cancel()
	if err := k.live().WhenIdle(ctx); err != nil {
		k.Fatalf("it does not come to rest: %v", err)
	}
}

func (k *inboxWalk) doWake(*rapid.T) { k.live().Wake() }

func (k *inboxWalk) doFault(rt *rapid.T) {
	from := rapid.IntRange(0, 3).Draw(rt, "from")
	to := from + rapid.IntRange(1, 4).Draw(rt, "count")
	f := rapid.SampledFrom([]storetest.Fault{{Err: errBoom}, {Err: errBoom, After: true}, {Panic: errBoom}, {Panic: errBoom, After: true},
		{Wait: func(context.Context) { <-time.After(70 * time.Millisecond) }},
	}).Draw(rt, "fault")
	k.faulty.Plan(func(p storetest.Point) storetest.Fault {
		if p.N >= from && p.N < to {
			return f
		}
		return storetest.Fault{}
	})
}

// doEnd ends the agent: at the end of the process, or for good.
func (k *inboxWalk) doEnd(rt *rapid.T) {
	a := k.live()
	keep := rapid.IntRange(0, 3).Draw(rt, "keep") > 0
	if !keep {
		k.drop()
	}
	err := a.Dispose(k.ctx, keep)
	k.tolerate("dispose", err)
	k.gone(a, err == nil)
}

func (k *inboxWalk) doCrash(rt *rapid.T) {
	if rapid.Bool().Draw(rt, "rarely") {
		rt.Skip("not now")
	}
	k.inner.Kill()
	k.faulty.Plan(func(storetest.Point) storetest.Fault { return storetest.Fault{Err: errBoom} })
	if k.h != nil {
		a := k.h.Agent()
		_ = a.Dispose(k.ctx, true) // the process is dead; only its goroutines have to end
		k.gone(a, false)
	}
	k.stop()
	k.boot(k.inner.Backend().Open())
}

func (k *inboxWalk) stop() {
	_ = k.reg.Close(k.ctx) // as above
	for _, stop := range k.rec.stops {
		stop()
	}
}

// gone looks at what is stored of an agent that ended; all says that everything is.
func (k *inboxWalk) gone(a *agent.Agent, all bool) {
	k.h = nil
	k.log = k.log[:0]
	for e := range a.Session().Events(0) {
		k.log = append(k.log, string(e.AppendEnvelope(nil)))
	}
	got, ok := k.stored()
	if !ok {
		if all && a.Session().Head() > 0 && !a.Session().Deferred() || len(k.accepted) > 0 {
			k.Fatalf("there is no row")
		}
		return
	}
	if len(got) > len(k.log) || !slices.Equal(got, k.log[:len(got)]) || all && len(got) != len(k.log) {
		k.Fatalf("stored is\n%s\nthe log was\n%s", strings.Join(got, "\n"), strings.Join(k.log, "\n"))
	}
}

// stored reads the log back and checks it.
func (k *inboxWalk) stored() (lines []string, ok bool) {
	rec, events, err := k.inner.Inspect(k.ctx, "s")
	if errors.Is(err, session.ErrNotFound) {
		return nil, false
	}
	if err != nil {
		k.Fatalf("inspect: %v", err)
	}
	var raw []session.Event
	for e, err := range events {
		if err != nil {
			k.Fatalf("read: %v", err)
		}
		raw, lines = append(raw, e), append(lines, string(e.AppendEnvelope(nil)))
	}
	if _, err := k.sessions.Verify(rec, seq2(raw)); err != nil {
		k.Fatalf("verify: %v", err)
	}
	return lines, true
}

// doResume goes on with what is stored, or begins where nothing is.
func (k *inboxWalk) doResume(rt *rapid.T) {
	if k.h != nil {
		if _, err := k.reg.Resume(k.ctx, agent.Resume{ID: "s", Options: options()}); !errors.Is(err, session.ErrExists) {
			k.Fatalf("a second resume: %v", err)
		}
		return
	}
	before, ok := k.stored()
	var err error
	if ok {
		k.h, err = k.reg.Resume(k.ctx, agent.Resume{ID: "s", Options: options()})
	} else {
		k.h, err = k.reg.Create(k.ctx, agent.Create{Options: options(), Session: session.New{ID: "s"}})
	}
	k.tolerate("resume", err)
	if err != nil {
		k.h = nil
		return
	}
	if err := k.h.Agent().Session().Load(k.ctx); err != nil {
		k.tolerate("load", err)
		k.tolerate("release", k.h.Release(k.ctx))
		k.h = nil
		return
	}
	var now []string
	for e := range k.h.Agent().Session().Events(0) {
		now = append(now, string(e.AppendEnvelope(nil)))
	}
	if len(now) < len(before) || !slices.Equal(now[:len(before)], before) {
		k.Fatalf("resumed is\n%s\nstored was\n%s", strings.Join(now, "\n"), strings.Join(before, "\n"))
	}
	k.account(k.h.Agent().Session(), false)
}

// account holds the whole log against what the client was told.
func (k *inboxWalk) account(s *session.Session, settled bool) {
	in, ran := map[message.ID]int{}, map[message.ID]int{}
	dropped, taken, waits := map[message.ID]bool{}, map[message.ID]bool{}, map[message.ID]bool{}
	lists := map[session.Target][]message.ID{}
	for e := range s.Events(0) {
		switch p := e.Payload().(type) {
		case *session.InboxSpliced:
			l := lists[p.Target]
			for _, id := range l[p.Start : p.Start+p.Removed] {
				// Taken, it became history, or its turn ended with it (design § 4).
				if p.Canceled {
					dropped[id] = true
				} else {
					taken[id] = true
				}
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
	for target, l := range lists {
		for i, q := range s.Inbox(target) {
			if l[i] != q.Message.ID {
				k.Fatalf("%s: %s waits at %d, the log says %s", target, q.Message.ID, i, l[i])
			}
			waits[q.Message.ID] = true
		}
	}
	for _, id := range k.sent {
		switch {
		case in[id] > 1 || ran[id] > 1 || ran[id] > in[id]:
			k.Fatalf("%s was enqueued %d times and ran %d times", id, in[id], ran[id])
		case k.refused[id] && (ran[id] > 0 || taken[id] || waits[id]):
			k.Fatalf("%s was refused, and ran %d times, waits: %v", id, ran[id], waits[id])
		case k.accepted[id] && in[id] != 1:
			k.Fatalf("%s was accepted, and is not in the log", id)
		case k.accepted[id] && dropped[id] && !k.mayDrop[id]:
			k.Fatalf("%s was accepted and dropped, and nobody asked for that", id)
		case settled && k.accepted[id] && !taken[id] && !k.mayDrop[id]:
			k.Fatalf("%s was accepted and never taken:\n%s", id, strings.Join(trace(s), "\n"))
		}
	}
}

// end lets everything run on a store that works.
func (k *inboxWalk) end() {
	k.faulty.Plan(nil)
	if k.h == nil {
		k.doResume(k.rt)
	}
	a := k.h.Agent()
	for range 3 { // a turn may be stuck on what a fault left behind
		if err := a.Session().Flush(k.ctx); err != nil {
			k.Fatalf("flush: %v", err)
		}
		a.Wake()
		k.doIdle(k.rt)
	}
	k.account(a.Session(), true)
	if err := a.Dispose(k.ctx, true); err != nil {
		k.Fatalf("dispose: %v", err)
	}
	k.gone(a, true)
	k.stop()
}

func walkInbox(t *testing.T, done *int64) func(*rapid.T) {
	return func(rt *rapid.T) {
		answers := rapid.SliceOfN(rapid.SampledFrom([]string{"text", "text", "slow", "fail", "cut"}), 1, 8).Draw(rt, "answers")
		c := &collector{TB: t}
		var other any
		synctest.Test(t, func(t *testing.T) {
			c.ctx = t.Context()
			defer func() {
				if p := recover(); p != nil {
					if _, mine := p.(fatal); !mine {
						other = p
					}
				}
			}()
			k := newInboxWalk(c, rt, answers)
			defer func() {
				// Whatever ended the walk, its goroutines must.
				k.faulty.Plan(nil)
				k.stop()
			}()
			count := func(fn func(*rapid.T)) func(*rapid.T) {
				return func(rt *rapid.T) {
					k.rt = rt
					if len(k.sent) > 60 {
						k.fresh()
					}
					fn(rt)
					*done++
				}
			}
			k.doResume(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"accept": count(k.doAccept), "accept 2": count(k.doAccept), "send": count(k.doSend), "cancel": count(k.doCancel), "discard": count(k.doDiscard),
				"wait": count(k.doWait), "idle": count(k.doIdle), "wake": count(k.doWake), "fault": count(k.doFault), "end": count(k.doEnd),
				"crash": count(k.doCrash), "resume": count(k.doResume), "resume 2": count(k.doResume),
			})
			k.rt = rt
			k.end()
		})
		if len(c.faults) > 0 {
			rt.Fatalf("%s", strings.Join(c.faults, "\n"))
		}
		if other != nil {
			panic(other)
		}
	}
}

// Random operations of a client on an agent whose process dies and comes back over
// a store that fails: what was accepted for good is enqueued once and runs once,
// unless somebody asked for its end; what was refused never runs; a claim that a
// crash cut is in the queue or in the history, never in both (core L6–L15, L24–L28,
// L45, L48; design § 4).
func TestInboxWalk(t *testing.T) {
	if soak {
		storetest.Long(t, 20, 10_000, walkInbox)
		return
	}
	var done int64
	rapid.Check(t, walkInbox(t, &done))
}
