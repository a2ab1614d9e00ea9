package subagent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// OWN-01…07, SET-01, SET-08, SET-09, SET-10, CONT-20, F-21: a parent that waits is the same idle agent until the
// handle of its last child is given up, whatever fails on the way; a root owns nobody and
// stays.
func TestWaiting_OWN03(t *testing.T) {
	for _, fails := range []bool{false, true} {
		faulty := storetest.NewFaulty(memory.New())
		inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
			var owned []session.ID
			l.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) {
				if e.Parent != l.parent {
					owned = l.Service.OwnedBy(e.Parent.ID())
					if !slices.Contains(owned, e.ID) {
						t.Error("CONT-20, OWN-02: it is not owned before it can run")
					}
				}
			}}, nil)
			g := l.hold("work")
			disk := make(chan struct{})
			mid, leaf, works := l.pair("work")
			m := l.liveAgent(mid.Child)
			faulty.Plan(func(p storetest.Point) storetest.Fault {
				f := storetest.Fault{}
				if p.Op == storetest.OpRelease && p.ID == leaf.Child {
					f.Wait = func(context.Context) { <-disk }
					if fails {
						f.Err = errBoom
					}
				}
				return f
			})
			close(works.open)
			synctest.Wait()
			if l.liveAgent(mid.Child) != m || m.Status() != agent.Idle || l.Service.OwnedBy(l.parent.ID()) != nil {
				t.Error("OWN-03, OWN-04: it does not wait as it should")
			}
			// A wake while it waits.
			l.followup(mid.Child, "meanwhile")
			synctest.Wait()
			if l.liveAgent(mid.Child) != m {
				t.Error("SET-10: another agent")
			}
			close(g.open)
			synctest.Wait()
			if d := cmp.Diff([]session.ID{leaf.Child}, l.Service.OwnedBy(mid.Child)); d != "" || !l.Service.Entry(leaf.Child) {
				t.Errorf("OWN-05, SET-12: while the leaf is given up:\n%s", d)
			}
			close(disk)
			synctest.Wait()
			l.gone(mid.Child, leaf.Child)
			if left := l.Service.Rests(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			l.liveAgent(l.parent.ID()) // OWN-04
			if err := faulty.Settle(t.Context()); err != nil {
				t.Error(err)
			}
			want := []string{"completed: work is done"}
			if fails {
				want = []string{"error (ACTIVATION_TEARDOWN_FAILED)"}
			}
			if d := cmp.Diff(want, l.ends(leaf.Child)); d != "" {
				t.Errorf("TEAR-09: where giving it up fails is %v:\n%s", fails, d)
			}
			for _, id := range []session.ID{mid.Child, leaf.Child} {
				if rec, _, err := faulty.Inspect(t.Context(), id); err != nil || rec.Owner != nil {
					t.Errorf("SET-09: %s is stored as %+v: %v", id, rec.Owner, err)
				}
			}
		})
	}
}

// OWN-08, OWN-09, OWN-10, GO-03, GO-04: what stands below a one-shot child is owned by nobody above it, and is still
// found below them when that child is gone.
func TestBelowAOneShot_OWN08(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		l.hold("hold")
		works := l.hold("mid works")
		mid := l.start("mid", "mid works")
		run := l.Start(t, t.Context(), spawn.DefaultName, subagent.Request{Parent: l.liveAgent(mid.Child), Prompt: say("hold")})
		shot, _ := run.Local()
		leaf := l.startBelow(shot, "leaf", "hold")
		if owned := l.Service.OwnedBy(mid.Child); len(owned) > 0 {
			t.Errorf("OWN-08: the parent of the one-shot child owns %v", owned)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(works.open)
		synctest.Wait()
		l.gone(mid.Child)
		l.liveAgent(leaf.Child)
		if err := subagent.NewInterrupter(l.Service).Interrupt(l.Parent(t), leaf.Child); !errors.Is(err, subagent.ErrUnauthorized) {
			t.Errorf("a stranger: %v", err)
		}
		if err := l.Service.DrainDescendants(l.parent)(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.gone(leaf.Child)
	})
}

// SET-02…07, EVT-25, F-20, F-23, GO-09: an accepted message counts before anybody is told of it, and lets go of the
// child when it is claimed, discarded, or could not be accepted, from whatever hook.
func TestAcceptedCounts_SET05(t *testing.T) {
	type trial struct {
		name string
		hook func(a *agent.Agent, e agent.InboxEvent) error
		want string
		runs bool
	}
	for _, tc := range []trial{
		{"claimed", nil, "completed: noted", true},
		{"SET-05 discarded in its own insertion", func(a *agent.Agent, e agent.InboxEvent) error { return a.Discard(e.Message.ID) }, "aborted: begin is done", false},
		{"SET-06 everything discarded in its insertion", func(a *agent.Agent, _ agent.InboxEvent) error {
			return a.Cancel(session.Cause{Kind: session.CauseParent}, false)
		}, "aborted", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
				g := l.hold("begin")
				acc := l.start("worker", "begin")
				a := l.liveAgent(acc.Child)
				synctest.Wait()
				older := l.followup(acc.Child, "older")
				outcome := map[message.ID]agent.InboxChange{}
				a.AddHooks(agent.Hooks{Inbox: func(a *agent.Agent, e agent.InboxEvent) {
					if e.Change != agent.InboxEnqueue {
						outcome[e.Message.ID] = e.Change
						return
					}
					if a.Quiescent() {
						t.Error("SET-03: the child counts as quiescent")
					}
					if tc.hook != nil && message.JoinText(e.Message.Content) == "more" {
						if err := tc.hook(a, e); err != nil {
							t.Error(err)
						}
					}
				}})
				if tc.name == "SET-05 discarded in its own insertion" {
					if err := a.Discard(older); err != nil {
						t.Fatal(err)
					}
				}
				id := l.followup(acc.Child, "more")
				close(g.open)
				synctest.Wait()
				l.gone(acc.Child)
				if outcome[id] == "" || outcome[older] == "" || (outcome[id] == agent.InboxDequeue) != tc.runs {
					t.Errorf("SET-04: %v", outcome)
				}
				want := tc.want
				if strings.HasPrefix(tc.name, "SET-05") {
					// Both drops lie before the end of the turn that accounts for the work.
					want = "completed: begin is done"
				}
				if d := cmp.Diff([]string{want}, l.ends(acc.Child)); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// SET-07, RB-16, RB-21, P06: a follow-up to a resident child whose record cannot be stored is not accepted and
// never runs; the child goes on, takes the next one and settles.
func TestWarmFollowupFails_RB21(t *testing.T) {
	for name, wait := range map[string]bool{"running": false, "waiting": true} {
		faulty := storetest.NewFaulty(memory.New())
		t.Run(name, func(t *testing.T) {
			inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
				g := l.hold("deep")
				mid, _, works := l.pair("deep")
				if wait {
					close(works.open)
				}
				synctest.Wait()
				m := l.liveAgent(mid.Child)
				failed := false
				faulty.Plan(func(p storetest.Point) storetest.Fault {
					if p.Op == storetest.OpAppend && p.ID == mid.Child && !failed {
						failed = true
						return storetest.Fault{Err: errBoom}
					}
					return storetest.Fault{}
				})
				id, err := l.Service.Followup(t.Context(), l.parent, mid.Child, say("lost"), message.UserSource())
				if !errors.Is(err, errBoom) || id != "" || !failed {
					t.Errorf("it said %q, %v", id, err)
				}
				synctest.Wait()
				if l.liveAgent(mid.Child) != m || len(m.Session().Inbox(session.NextTurn)) > 0 {
					t.Error("SET-07: another agent, or the message still waits")
				}
				l.followup(mid.Child, "next")
				if !wait {
					close(works.open)
				}
				close(g.open)
				synctest.Wait()
				l.gone(mid.Child)
				said := strings.Join(l.said(mid.Child), "\n")
				if strings.Contains(said, "lost") || !strings.Contains(said, "coordinator: next\nanswer: noted") {
					t.Errorf("the log: %s", said)
				}
				for i, e := range l.Lifecycle.Edges() {
					if e.Start.ID == mid.Child && e.End == nil && i > 0 {
						t.Error("another epoch began")
					}
				}
			})
		})
	}
}

// SET-11: a child in maintenance that has accepted a message is not settled, nor is one before the maintenance is
// over.
func TestMaintenance_SET11(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		g := l.hold("deep")
		mid, leaf, works := l.pair("deep")
		close(works.open)
		synctest.Wait()
		m := l.liveAgent(mid.Child)
		over := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- m.RunMaintenance(t.Context(), func(context.Context) error { <-over; return nil })
		}()
		synctest.Wait()
		close(g.open)
		synctest.Wait()
		l.gone(leaf.Child)
		if l.liveAgent(mid.Child) != m {
			t.Error("SET-11: it was settled in its maintenance")
		}
		l.followup(mid.Child, "more")
		synctest.Wait()
		if m.Status() != agent.Idle {
			t.Errorf("the status is %v", m.Status())
		}
		close(over)
		synctest.Wait()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.gone(mid.Child)
		if said := strings.Join(l.said(mid.Child), "\n"); !strings.Contains(said, "coordinator: more") {
			t.Errorf("the log: %s", said)
		}
	})
}

// SET-01, P43: what was put in without a wake pins nobody, stays in the log, and is
// claimed first by the next wake.
func TestQuietWorkPinsNobody_P43(t *testing.T) {
	inNest(t, subagenttest.Options{NoNotices: true}, func(t *testing.T, l *nest) {
		g := l.hold("deep")
		mid, _, works := l.pair("deep")
		close(works.open)
		synctest.Wait()
		if err := l.liveAgent(mid.Child).Inject(agent.UserText("quiet")); err != nil {
			t.Fatal(err)
		}
		close(g.open)
		synctest.Wait()
		l.gone(mid.Child)
		l.followup(mid.Child, "loud")
		synctest.Wait()
		l.gone(mid.Child)
		l.logs(mid.Child, "user: mid works", "answer: mid works is done", "settled: completed", "user: quiet", "coordinator: loud", "answer: noted", "settled: completed")
	})
}

// SET-16, B-09, P35: how many children one agent has at once, and how many agents there are, is bounded, with an error
// of its own, and what has settled leaves room.
func TestBounds_SET16(t *testing.T) {
	inNest(t, subagenttest.Options{MaxChildren: 2, MaxLive: 4}, func(t *testing.T, l *nest) {
		g := l.hold("hold")
		a := l.start("a", "hold")
		l.start("b", "hold")
		_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, l.request("c", "hold"))
		wantCode(t, err, subagent.CodeLimitReached)
		l.startBelow(l.liveAgent(a.Child), "d", "hold")
		_, err = l.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: "e", Prompt: say("hold"), Parent: l.liveAgent(a.Child)})
		wantCode(t, err, subagent.CodeLimitReached) // of the live agents
		close(g.open)
		synctest.Wait()
		l.start("c", "hold")
		synctest.Wait()
		if left := l.Service.Rests(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}

// OWN-10: a lineage that leads back to where it began, as a damaged log may have it, ends there.
func TestLineageInACircle_OWN10(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		var list [2]*agent.Agent
		for i, parent := range []session.ID{"b", "a"} {
			list[i] = l.NewAgent(t, agent.Create{
				Session: session.New{ID: session.ID("ab"[i : i+1]), ParentSession: parent, Origin: session.OriginSubagent, DelegationDepth: 1},
				Options: subagenttest.ParentOptions(),
			})
		}
		l.hold("hold")
		c := l.startBelow(list[0], "c", "hold")
		i := subagent.NewInterrupter(l.Service)
		for _, above := range list {
			if err := i.Interrupt(above, c.Child); err != nil {
				t.Errorf("%s is above it: %v", above.ID(), err)
			}
		}
		wantCode(t, i.Interrupt(l.parent, c.Child), subagent.CodeUnauthorized)
		if err := l.Service.DrainDescendants(list[1])(t.Context()); err != nil {
			t.Error(err)
		}
		l.gone(c.Child)
	})
}

// OBS-11, CONT-08…10: whether an id is taken is asked for by its key.
func TestReservedIDIsLookedUp_OBS11(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
		faulty.Plan(nil)
		req := l.request("worker", "begin")
		req.ID = "mine"
		if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil {
			t.Fatal(err)
		}
		for _, p := range faulty.Points() {
			if p.Op == storetest.OpList || p.Op == storetest.OpInspect {
				t.Errorf("the store was asked for %s", p)
			}
		}
		synctest.Wait()
	})
}

// OWN-08, SEL-02, RB-12: while a child is drained with all that is below it, nothing begins there any more, also not
// below a one-shot child in between, which ends last.
func TestNothingBeginsBelowADrain_OWN08(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
		l.hold("hold")
		mid := l.start("mid", "hold")
		run := l.Start(t, t.Context(), spawn.DefaultName, subagent.Request{Parent: l.liveAgent(mid.Child), Prompt: say("hold")})
		shot, _ := run.Local()
		synctest.Wait()
		disk := make(chan struct{})
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			if p.Op == storetest.OpAppend && p.ID == mid.Child {
				return storetest.Fault{Wait: func(context.Context) { <-disk }}
			}
			return storetest.Fault{}
		})
		drained := make(chan error, 1)
		go func() {
			drained <- subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, mid.Child)
		}()
		synctest.Wait()
		if len(drained) > 0 {
			t.Fatal("the drain is over")
		}
		_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: "late", Prompt: say("hold"), Parent: shot})
		wantCode(t, err, subagent.CodeActivationClosing)
		close(disk)
		if err := errors.Join(<-drained, run.Close(t.Context())); err != nil {
			t.Error(err)
		}
		if left := l.Service.Rests(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}
