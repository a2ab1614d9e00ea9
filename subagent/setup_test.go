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
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// fitting registers a contribution that notes what becomes of it, by name and child.
func (w *watch) fitting(l *nest, name string, fail error) (remove func() error) {
	return l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
		if name == "broken" {
			w.note("try " + name)
			return nil, fail
		}
		w.note("install " + name + " " + string(a.ID()))
		return func() error {
			w.note("release " + name + " " + string(a.ID()))
			return fail
		}, nil
	})
}

// SETUP-01…04, SETUP-07…09, SETUP-13, SETUP-14, DSP-06, B-40: contributions are installed in the order of
// registration, behind what a child is composed of and before anybody sees it, in new and in
// resumed children and in no others; a removal takes them back at once, a registration
// counts from the next residency on.
func TestSetup_SETUP01(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		w := &watch{}
		l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
			if _, live := l.Agents.Get(a.ID()); live || a.Session().Descriptor() == nil && !a.Resumed() {
				t.Error("SETUP-01: it is visible, or not composed yet")
			}
			return nil, nil
		})
		removeOne := w.fitting(l, "one", nil)
		w.fitting(l, "two", nil)
		c, d := l.below(l.parent, "c"), l.below(l.parent, "d")
		run := l.Start(t, t.Context(), spawn.DefaultName, subagenttest.Request(l.parent, "hang"))
		want := []string{"one c", "two c", "one d", "two d"}
		if diff := cmp.Diff(want, w.list("install")); diff != "" {
			t.Errorf("installed:\n%s", diff)
		}
		removeThree := w.fitting(l, "three", nil)
		if err := errors.Join(removeOne(), removeOne(), removeThree()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"one c", "one d"}, w.list("release")); diff != "" {
			t.Errorf("SETUP-07: released:\n%s", diff)
		}
		if c.Status() != agent.Running || d.Status() != agent.Running {
			t.Error("a removal stopped a child")
		}
		w.fitting(l, "four", nil)
		if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "c"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"one c", "one d", "two c"}, w.list("release")); diff != "" {
			t.Errorf("SETUP-14: released:\n%s", diff)
		}
		l.followup("c", "hang")
		synctest.Wait()
		want = append(want, "two c", "four c")
		if diff := cmp.Diff(want, w.list("install")); diff != "" {
			t.Errorf("installed:\n%s", diff)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := l.Service.Close(t.Context()); err != nil {
			t.Error(err)
		}
		released := w.list("release")
		for i, name := range released {
			if slices.Contains(released[:i], name) && name != "two c" {
				t.Errorf("DSP-06: %s was released twice: %q", name, released)
			}
		}
		if len(released) != len(w.list("install")) {
			t.Errorf("installed %q, released %q", w.list("install"), released)
		}
	})
}

// SETUP-05, SETUP-06, RB: a contribution that fails takes back those before it, all of them, and the
// child; those behind it do not run; its failure is what the caller gets. Also where it panics, and for
// a child that is resumed.
func TestSetupFails_SETUP05(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		j := &journal{}
		inNest(t, subagenttest.Options{Logger: j.logger()}, func(t *testing.T, l *nest) {
			var id session.ID
			if resumed {
				id = l.start("worker", "go").Child
				synctest.Wait()
			}
			w := &watch{}
			stuck, broken := errors.New("stuck"), errors.New("broken")
			w.fitting(l, "one", stuck)
			w.fitting(l, "two", stuck)
			remove := w.fitting(l, "broken", broken)
			w.fitting(l, "three", nil)
			agents, edges := len(l.Agents.List()), len(l.Lifecycle.Edges())
			try := func() error {
				if resumed {
					_, err := l.Service.Followup(t.Context(), l.parent, id, say("more"), message.UserSource())
					return err
				}
				req := l.request("c", "go")
				req.ID = "c"
				_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
				return err
			}
			err := try()
			if !errors.Is(err, broken) || errors.Is(err, stuck) {
				t.Errorf("error %v", err)
			}
			installed, released := w.list("install"), w.list("release")
			slices.Reverse(released)
			if d := cmp.Diff(installed, released); d != "" || len(installed) != 2 {
				t.Errorf("installed %q, released %q", installed, released)
			}
			if !strings.Contains(j.String(), "stuck") {
				t.Error("what failed on the way is not logged")
			}
			if found, err := l.store.Exists(t.Context(), "c"); len(l.Agents.List()) != agents || len(l.Lifecycle.Edges()) != edges || found || err != nil {
				t.Error("something is left")
			}
			if err := remove(); err != nil {
				t.Error(err)
			}
			panics := l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) { panic("no") })
			if err := try(); err == nil || !strings.Contains(err.Error(), "panicked: no") {
				t.Errorf("a panic: %v", err)
			}
			if err := panics(); err != nil {
				t.Error(err)
			}
		})
	}
}

// SETUP-08, SETUP-10, SETUP-11, SETUP-12, SETUP-16: a contribution that is withdrawn while a child is made, by itself or
// by others, before or behind it, or at the last moment: the child does not come to be,
// nobody hears of it, and nothing is released twice.
func TestSetupRevoked_SETUP10(t *testing.T) {
	for _, when := range []string{"itself", "the one before", "the one behind", "at the end", "by another goroutine"} {
		t.Run(when, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
				w := &watch{}
				removes := map[string]func() error{}
				revoke := func(name string) {
					if err := removes[name](); err != nil {
						t.Error(err)
					}
				}
				removes["first"] = w.fitting(l, "first", nil)
				removes["middle"] = l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
					w.note("install middle " + string(a.ID()))
					switch when {
					case "itself":
						revoke("middle")
					case "the one before":
						revoke("first")
					case "the one behind":
						revoke("last")
					case "by another goroutine":
						done := make(chan struct{})
						go func() { defer close(done); revoke("first") }()
						<-done
					}
					return func() error { w.note("release middle " + string(a.ID())); return nil }, nil
				})
				removes["last"] = w.fitting(l, "last", nil)
				if when == "at the end" {
					l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) {
						revoke("last")
						return nil, nil
					})
				}
				created := 0
				l.Agents.AddHooks(agent.Hooks{Created: func(*agent.Agent) error { created++; return nil }})
				req := l.request("c", "go")
				req.ID = "c"
				_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
				if when == "the one behind" {
					// It had not begun: the child never had it.
					if err != nil || len(w.list("install")) != 2 {
						t.Errorf("start: %v, installed %q", err, w.list("install"))
					}
					return
				}
				wantCode(t, err, subagent.CodeActivationSetupRevoked)
				installed, released := w.list("install"), w.list("release")
				slices.Sort(installed)
				slices.Sort(released)
				if d := cmp.Diff(installed, released); d != "" {
					t.Errorf("installed and released:\n%s", d)
				}
				if found, err := l.store.Exists(t.Context(), "c"); created != 0 || len(l.Lifecycle.Edges()) != 0 || found || err != nil || l.live("c") != nil {
					t.Error("something of the child is left")
				}
			})
		})
	}
}

// SETUP-15: a removal and the end of a child release everything, whatever fails, and tell it
// once, together; what the one has released the other does not.
func TestSetupReleaseFails_SETUP15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := faultyNest(t)
		w := &watch{}
		one, two := errors.New("fault one"), errors.New("fault two")
		remove := w.fitting(l, "one", one)
		w.fitting(l, "two", two)
		w.fitting(l, "three", nil)
		l.below(l.parent, "c")
		l.below(l.parent, "d")
		err := remove()
		wantCode(t, err, subagent.CodeActivationReleaseFailed)
		if n := strings.Count(err.Error(), "fault one"); n != 2 {
			t.Errorf("it tells %d faults: %v", n, err)
		}
		if again := remove(); !errors.Is(again, one) || len(w.list("release")) != 2 {
			t.Errorf("remove again: %v, released %q", again, w.list("release"))
		}
		err = subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "c", "d")
		wantCode(t, err, subagent.CodeActivationTeardownFailed)
		if !errors.Is(err, subagent.ErrReleaseFailed) || !errors.Is(err, two) || errors.Is(err, one) {
			t.Errorf("drain: %v", err)
		}
		released := w.list("release")
		slices.Sort(released)
		if d := cmp.Diff([]string{"one c", "one d", "three c", "three d", "two c", "two d"}, released); d != "" {
			t.Errorf("released:\n%s", d)
		}
	})
}

// Removals, starts and ends at once: every installation is released exactly once. Run with
// -race.
func TestSetupRaces(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		var mu sync.Mutex
		balance := map[int]int{}
		released := 0
		var wg sync.WaitGroup
		l.Answer("go", scripted.Step{scripted.SayLiteral("done")})
		for i := range 8 {
			wg.Go(func() {
				remove := l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) {
					mu.Lock()
					defer mu.Unlock()
					n := len(balance)
					balance[n] = 1
					return func() error {
						mu.Lock()
						defer mu.Unlock()
						balance[n]--
						released++
						return nil
					}, nil
				})
				req := l.request(fmt.Sprint(i), "go")
				if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil && !errors.Is(err, subagent.ErrSetupRevoked) {
					t.Errorf("start: %v", err)
				}
				if err := remove(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		for n, left := range balance {
			if left != 0 {
				t.Errorf("installation %d was released %d times", n, 1-left)
			}
		}
		if released != len(balance) {
			t.Errorf("%d installations, %d releases", len(balance), released)
		}
	})
}
