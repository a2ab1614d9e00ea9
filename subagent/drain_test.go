package subagent_test

import (
	"context"
	"errors"
	"reflect"
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
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// below starts a child of any agent that hangs in its first turn.
func (l *nest) below(parent *agent.Agent, id session.ID) *agent.Agent {
	l.t.Helper()
	l.Answer("hang", scripted.Step{scripted.SayLiteral("so far"), scripted.Hang()})
	_, err := l.Service.StartContinuable(l.t.Context(), spawn.DefaultName, subagent.ContinuableRequest{ID: id, Label: string(id), Prompt: say("hang"), Parent: parent})
	if err != nil {
		l.t.Fatalf("start %s: %v", id, err)
	}
	synctest.Wait()
	a, live := l.Agents.Get(id)
	if !live {
		l.t.Fatalf("%s is not live", id)
	}
	return a
}

// watch notes who is cancelled and who is gone, in order.
type watch struct {
	mu  sync.Mutex // guards got
	got []string
}

func (w *watch) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, s)
}

func (w *watch) list(prefix string) (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.got {
		if rest, ok := strings.CutPrefix(s, prefix+" "); ok {
			list = append(list, rest)
		}
	}
	return list
}

// watching follows agents: work bound to one is stopped when it is cancelled.
func (l *nest) watching(w *watch, list ...*agent.Agent) {
	l.t.Helper()
	for _, a := range list {
		if _, err := a.AddWork(agent.Work{Stop: func() { w.note("stop " + string(a.ID())) }, Join: func() {}}); err != nil {
			l.t.Fatal(err)
		}
		a.AddHooks(agent.Hooks{Disposed: func(a *agent.Agent) { w.note("gone " + string(a.ID())) }})
	}
}

func (l *nest) live(ids ...session.ID) (list []string) {
	for _, id := range ids {
		if _, ok := l.Agents.Get(id); ok {
			list = append(list, string(id))
		}
	}
	return list
}

// TEAR-01, TEAR-02, TEAR-12, SCOPE-01…05, SCOPE-07…10, SCOPE-12, SCOPE-16, F-28, CONT-20: a drain below
// exact agents. The stop goes down before the call returns, ancestors first; the release
// comes up, children first; what is beside it goes on; admission below stays closed until
// that exact agent is gone.
func TestDrainDescendants_SCOPE(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		other := l.Parent(t)
		a := l.below(l.parent, "a")
		b := l.below(a, "b")
		c := l.below(b, "c")
		x := l.below(other, "x")
		w := &watch{}
		l.watching(w, c, b, a)
		waitA := l.Service.DrainDescendants(a, a) // a itself is retained
		if d := cmp.Diff([]string{"b", "c"}, w.list("stop")); d != "" {
			t.Errorf("stopped when the call returns, ancestors first:\n%s", d)
		}
		waitB := l.Service.DrainDescendants(a)
		for _, wait := range []func(context.Context) error{waitA, waitB, waitA} {
			if err := wait(t.Context()); err != nil {
				t.Errorf("drain: %v", err)
			}
		}
		if d := cmp.Diff([]string{"c", "b"}, w.list("gone")); d != "" {
			t.Errorf("released, children first:\n%s", d)
		}
		if d := cmp.Diff([]string{"a", "x"}, l.live("a", "b", "c", "x")); d != "" {
			t.Errorf("live:\n%s", d)
		}
		if end, _ := stored(t, l, "b").LastEnd(); end == nil || end.Cause.Kind != session.CauseParent {
			t.Errorf("CAN-17: b ended %+v", end)
		}
		if a.Status() != agent.Running || x.Status() != agent.Running {
			t.Error("an agent was stopped that is not below the root of the drain")
		}
		// Nobody was woken by what the drained children came to.
		if n := len(a.Session().Inbox(session.NextStep)); n != 1 {
			t.Errorf("%d notices wait", n)
		}
		_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: "d", Prompt: say("go"), Parent: a})
		wantCode(t, err, subagent.CodeDraining)
		_, err = l.Service.Followup(t.Context(), a, "b", say("more"), message.UserSource())
		wantCode(t, err, subagent.CodeDraining)
		// Beside it everything goes on: a itself takes work, its siblings begin.
		l.followup("a", "go on")
		l.below(l.parent, "sibling")
		l.below(x, "y")
		if s, err := l.store.Exists(t.Context(), "c"); !s || err != nil {
			t.Errorf("TEAR-12: c is stored: %v, %v", s, err)
		}

		// A later one of the same id is another agent, and is not affected; nor is what
		// was drained, below it.
		if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "a"); err != nil {
			t.Fatal(err)
		}
		l.followup("a", "hang")
		synctest.Wait()
		a2, _ := l.Agents.Get("a")
		if a2 == nil || a2 == a {
			t.Fatal("a did not come back")
		}
		if _, err := l.Service.Followup(t.Context(), a2, "b", say("hang"), message.UserSource()); err != nil {
			t.Errorf("follow up b: %v", err)
		}
		// Agents that are not live count for nothing.
		if err := l.Service.DrainDescendants(a)(t.Context()); err != nil {
			t.Error(err)
		}
		if err := l.Service.DrainDescendants()(t.Context()); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"a", "b", "sibling", "x", "y"}, l.live("a", "b", "sibling", "x", "y")); d != "" {
			t.Errorf("live:\n%s", d)
		}
	})
}

// SCOPE-11: descendants are found through who they were made below, also when an
// intermediate agent has left the registry.
func TestDrainBelowWhoIsGone_SCOPE11(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		g := &scripted.Gate{}
		l.Answer("once", holding(g, "done"))
		run := l.Start(t, t.Context(), spawn.DefaultName, subagenttest.Request(l.parent, "once"))
		one, _ := run.Local()
		l.below(one, "below")
		g.Open()
		subagenttest.Await(t, run)
		if d := cmp.Diff([]string{"below"}, l.live(run.ID(), "below")); d != "" {
			t.Fatalf("live:\n%s", d)
		}
		if err := l.Service.DrainDescendants(l.parent)(t.Context()); err != nil {
			t.Error(err)
		}
		if got := l.live("below"); got != nil {
			t.Errorf("live: %q", got)
		}
	})
}

// slowProvider prepares behind a gate.
type slowProvider struct {
	subagent.Provider
	gate chan struct{}
}

func (p *slowProvider) Name() string { return "slow" }
func (p *slowProvider) PrepareContinuable(ctx context.Context, _ subagent.Preparation) (*session.Seed, error) {
	select {
	case <-p.gate:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// DRAIN-02, DRAIN-08, SCOPE-06, SEL-03, P33: a start that is in the making when a drain
// begins is given up, at every point of it, and waited for. Nothing of it is left.
func TestDrainStartInTheMaking_DRAIN02(t *testing.T) {
	drains := map[string]func(*testing.T, *nest) error{
		"all": func(t *testing.T, l *nest) error { return l.Service.Close(t.Context()) },
		"scope": func(t *testing.T, l *nest) error {
			return l.Service.DrainDescendants(l.parent)(t.Context())
		},
		"selected": func(t *testing.T, l *nest) error {
			return subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "c")
		},
	}
	points := map[string]func(l *nest, at func()){
		"preparing": nil, // see below
		"composing": func(l *nest, at func()) {
			l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) { at(); return nil, nil })
		},
		"published": func(l *nest, at func()) {
			l.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
				if a.ID() == "c" {
					at()
				}
				return nil
			}})
		},
		"told of": func(l *nest, at func()) {
			l.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) { at() }}, nil)
		},
	}
	for how, drain := range drains {
		for where, hook := range points {
			t.Run(how+", "+where, func(t *testing.T) {
				inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
					slow := &slowProvider{spawn.New("slow"), make(chan struct{})}
					l.Register(t, slow)
					arrived, gate := make(chan struct{}), make(chan struct{})
					var once sync.Once
					if hook != nil {
						close(slow.gate)
						hook(l, func() { once.Do(func() { close(arrived); <-gate }) })
					}
					var err error
					started := make(chan struct{})
					go func() {
						defer close(started)
						req := l.request("c", "go")
						req.ID = "c"
						_, err = l.Service.StartContinuable(t.Context(), "slow", req)
					}()
					if hook != nil {
						<-arrived
					}
					synctest.Wait()
					drained := make(chan error, 1)
					go func() { drained <- drain(t, l) }()
					synctest.Wait()
					if hook != nil {
						select {
						case derr := <-drained:
							t.Errorf("the drain did not wait: %v", derr)
							drained <- nil
						default:
						}
					}
					close(gate)
					<-started
					if derr := <-drained; derr != nil {
						t.Errorf("drain: %v", derr)
					}
					code := subagent.CodeDraining
					if how == "selected" {
						code = subagent.CodeActivationClosing
					}
					wantCode(t, err, code)
					if got := l.live("c"); got != nil {
						t.Errorf("live: %q", got)
					}
					if found, err := l.store.Exists(t.Context(), "c"); found || err != nil {
						t.Errorf("stored: %v, %v", found, err)
					}
					if got := heard(l.said(l.parent.ID())); got != nil {
						t.Errorf("NOTE-17: the parent heard %q", got)
					}
					if how == "selected" {
						l.start("again", "go") // admission is open
					}
				})
			})
		}
	}
}

// GO-02, DSP-04, RB-15: a drain can be begun from inside a hook, of the child that it ends too; it
// does not wait there, and whoever waits later gets the same end.
func TestDrainFromHooks_GO02(t *testing.T) {
	for _, tc := range []string{"start", "enqueue", "status", "turn", "tool", "end"} {
		t.Run(tc, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
				var waits []func(context.Context) error
				var once sync.Once
				inserted := 0
				drain := func(where string, a *agent.Agent) {
					if where == tc && (a == nil || a != l.parent) {
						once.Do(func() { waits = append(waits, l.Service.DrainDescendants(l.parent)) })
					}
				}
				l.Service.AddHooks(subagent.Hooks{
					Started: func(subagent.StartEdge) { drain("start", nil) },
					Ended:   func(subagent.EndEdge) { drain("end", nil) },
				}, nil)
				l.Agents.AddHooks(agent.Hooks{
					Inbox: func(a *agent.Agent, e agent.InboxEvent) {
						if a != l.parent && e.Change == agent.InboxEnqueue {
							inserted++
						}
						drain("enqueue", a)
					},
					Status:   func(a *agent.Agent, _ agent.Status) { drain("status", a) },
					TurnOpen: func(a *agent.Agent, _ int64) ([]session.Draft, error) { drain("turn", a); return nil, nil },
					StepDue: func(_ context.Context, a *agent.Agent, _ int64, _ []session.Queued) error {
						drain("tool", a)
						return nil
					},
				})
				_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, l.request("worker", "go"))
				synctest.Wait()
				if (tc == "start" || tc == "enqueue") && err == nil {
					t.Error("the start was accepted")
				}
				if (inserted == 0) != (tc == "start") {
					t.Errorf("RB-15: %d messages were inserted", inserted)
				}
				if err != nil {
					wantCode(t, err, subagent.CodeDraining)
				}
				if len(waits) != 1 {
					t.Fatalf("%d drains", len(waits))
				}
				if err := waits[0](t.Context()); err != nil {
					t.Error(err)
				}
				if n := len(l.Agents.List()); n != 1 {
					t.Errorf("%d agents are live", n)
				}
				if e := l.Lifecycle.Edges(); len(e) != 2 {
					t.Errorf("edges: %+v", e)
				}
			})
		})
	}
}

// frailty makes the release of some children fail.
func (l *nest) frailty(ids map[session.ID]error) {
	l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
		return func() error { return ids[a.ID()] }, nil
	})
}

// TEAR-03, TEAR-08…11, ERR-04, SCOPE-14, SEL-07, DRAIN-06, EVT-20, P34, F-16, DSP-05: what fails at the end of one
// child keeps no other from ending, is reported when all have ended, and stands on the end
// edge; the parent hears the child's own reason.
func TestDrainFailures_TEAR03(t *testing.T) {
	first, second, third := errors.New("first fault"), errors.New("second fault"), errors.New("third fault")
	for name, drain := range map[string]func(*testing.T, *nest) error{
		"all":   func(t *testing.T, l *nest) error { return l.Service.Close(t.Context()) },
		"scope": func(t *testing.T, l *nest) error { return l.Service.DrainDescendants(l.parent)(t.Context()) },
		"selected": func(t *testing.T, l *nest) error {
			return subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "a", "c")
		},
		"host": func(t *testing.T, l *nest) error {
			return errors.Join(l.Host.Close(t.Context(), l.parent.ID(), "a"), l.Host.Close(t.Context(), l.parent.ID(), "c"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := faultyNest(t)
				faults := map[session.ID]error{"a": third, "b": first, "c": second}
				l.frailty(faults)
				a := l.below(l.parent, "a")
				l.below(a, "b")
				c := l.below(l.parent, "c")
				c.AddHooks(agent.Hooks{Disposed: func(*agent.Agent) { panic("contained") }})
				err := drain(t, l)
				wantCode(t, err, subagent.CodeActivationTeardownFailed)
				if !errors.Is(err, subagent.ErrReleaseFailed) {
					t.Errorf("the error does not tell what failed: %v", err)
				}
				for _, want := range []error{first, second, third} {
					if !errors.Is(err, want) || !strings.Contains(err.Error(), want.Error()) {
						t.Errorf("the error does not tell %v: %v", want, err)
					}
				}
				if got := l.live("a", "b", "c"); got != nil {
					t.Errorf("live: %q", got)
				}
				ends := map[session.ID]*subagent.EndEdge{}
				for _, e := range l.Lifecycle.Edges() {
					if e.End != nil {
						ends[e.End.ID] = e.End
					}
				}
				// That of its child and its own, both (TEAR-10).
				for id, texts := range map[session.ID][]string{"a": {"first fault", "third fault"}, "b": {"first fault"}, "c": {"second fault"}} {
					e := ends[id]
					if e == nil || e.StopReason != subagent.StopError || e.Output != nil || e.Failure == nil || e.Failure.Code != string(subagent.CodeActivationTeardownFailed) || slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Failure.Text, text) }) {
						t.Errorf("the end of %s: %+v", id, e)
					}
				}
				synctest.Wait()
				got := heard(l.said(l.parent.ID()))
				if name == "all" {
					if got != nil {
						t.Errorf("the parent heard %q", got)
					}
					clear(faults)
					return
				}
				for _, text := range got {
					if !strings.Contains(text, "was stopped before it was done.") || strings.Contains(text, "fault") {
						t.Errorf("the parent heard %q", text)
					}
				}
			})
		})
	}
}

// SET-13, NOTE-06, P34: the same behind an ordinary settlement: nobody is told but the log for people.
func TestSettlementFails_SET13(t *testing.T) {
	j := &journal{}
	inNest(t, subagenttest.Options{Logger: j.logger()}, func(t *testing.T, l *nest) {
		l.frailty(map[session.ID]error{"c": errors.New("stuck")})
		l.Answer("go", scripted.Step{scripted.SayLiteral("done")})
		req := l.request("c", "go")
		req.ID = "c"
		if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !strings.Contains(j.String(), "stuck") {
			t.Errorf("logged: %s", j)
		}
		if got := heard(l.said(l.parent.ID())); len(got) != 1 || !strings.Contains(got[0], "has finished.\nIts closing message:done") {
			t.Errorf("the parent heard %q", got)
		}
		e := l.Lifecycle.Edges()
		if len(e) != 2 || e[1].End.Failure == nil || e[1].End.Output != nil {
			t.Errorf("edges: %+v", e)
		}
		if s := l.said("c"); s[len(s)-1] != "settled: completed" {
			t.Errorf("its log: %q", s)
		}
	})
}

// SEL-01…06, CAN-17, TEAR-05, TEAR-13, F-18: selected children of one exact parent. All are looked at
// before any is touched; what waits in their inboxes is discarded; admission stays open.
func TestDrainSelected_SEL(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		d := subagent.NewChildDrainer(l.Service)
		other := l.Parent(t)
		a := l.below(l.parent, "a")
		b := l.below(a, "b")
		l.below(l.parent, "sibling")
		l.below(other, "x")
		queued := l.followup("a", "later")
		w := &watch{}
		l.watching(w, b, a)
		err := d.Drain(t.Context(), l.parent, "a", "x")
		wantCode(t, err, subagent.CodeUnauthorized)
		err = d.Drain(t.Context(), l.parent, "a", "b") // a grandchild is another's child
		wantCode(t, err, subagent.CodeUnauthorized)
		wantCode(t, d.Drain(t.Context(), nil), subagent.CodeUnauthorized)
		if got := w.list("stop"); got != nil {
			t.Errorf("SEL-05: stopped %q", got)
		}
		if err := d.Drain(t.Context(), l.parent, "a", "nobody", "a"); err != nil {
			t.Errorf("drain: %v", err)
		}
		if d := cmp.Diff([]string{"a", "b"}, w.list("stop")); d != "" {
			t.Errorf("stopped:\n%s", d)
		}
		if d := cmp.Diff([]string{"b", "a"}, w.list("gone")); d != "" {
			t.Errorf("gone:\n%s", d)
		}
		if d := cmp.Diff([]string{"sibling", "x"}, l.live("a", "b", "sibling", "x")); d != "" {
			t.Errorf("live:\n%s", d)
		}
		want := []string{"user: hang", "end: aborted", "settled: aborted"}
		got := slices.DeleteFunc(l.said("a"), func(s string) bool { return strings.HasPrefix(s, "answer") })
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
		end, _ := stored(t, l, "a").LastEnd()
		if end.Cause.Kind != session.CauseParent {
			t.Errorf("the cause is %+v", end.Cause)
		}
		// The child takes work again, and what was discarded does not come back.
		l.followup("a", "again")
		synctest.Wait()
		if n := entered(stored(t, l, "a")); n[queued] != 0 {
			t.Error("a discarded message ran")
		}
		if err := other.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		wantCode(t, d.Drain(t.Context(), other), subagent.CodeUnauthorized)
		wantCode(t, d.Drain(t.Context(), other, "x"), subagent.CodeUnauthorized)
		// ctx bounds the wait alone.
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("no time")
		cancel(cause)
		sibling, _ := l.Agents.Get("sibling")
		hold := make(chan struct{})
		if _, err := sibling.AddWork(agent.Work{Stop: func() {}, Join: func() { <-hold }}); err != nil {
			t.Fatal(err)
		}
		if err := d.Drain(ctx, l.parent, "sibling"); !errors.Is(err, cause) {
			t.Errorf("drain without time: %v", err)
		}
		close(hold)
		synctest.Wait()
		if got := l.live("sibling"); got != nil {
			t.Errorf("live: %q", got)
		}
	})
}

// DRAIN-01, DRAIN-03…05, DRAIN-07, DRAIN-09, DRAIN-10, SCOPE-17, F-26: the end of the process. Admission closes at
// once; everything ends, children first; what was accepted is kept; roots are stopped by
// their own close before anybody waits.
func TestDrainAll_DRAIN(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		a := p.below(p.parent, "a")
		b := p.below(a, "b")
		queued := p.followup("a", "later")
		w := &watch{}
		p.watching(w, b, a)
		if err := p.parent.Followup(agent.UserText("hang")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		calls := p.Adapter.Started()
		hold := make(chan struct{})
		if _, err := b.AddWork(agent.Work{Stop: func() {}, Join: func() { <-hold }}); err != nil {
			t.Fatal(err)
		}
		p.Service.CloseAdmission()
		_, err := p.Service.StartContinuable(t.Context(), spawn.DefaultName, p.request("c", "go"))
		wantCode(t, err, subagent.CodeDraining)
		_, err = p.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: "c", Prompt: say("go"), Parent: b})
		wantCode(t, err, subagent.CodeDraining)
		_, err = p.Service.Followup(t.Context(), p.parent, "a", say("more"), message.UserSource())
		wantCode(t, err, subagent.CodeDraining)
		_, err = p.Service.Report(t.Context(), a, say("so far"), subagent.DeliverQuiet)
		wantCode(t, err, subagent.CodeDraining)
		if got := w.list("stop"); got != nil {
			t.Errorf("stopped %q by closing admission alone", got)
		}
		p.parent.CloseAdmission(true)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			p.stop()
		}()
		synctest.Wait()
		if d := cmp.Diff([]string{"a", "b"}, w.list("stop")); d != "" {
			t.Errorf("stopped, ancestors first:\n%s", d)
		}
		if got := w.list("gone"); got != nil || p.parent.Status() != agent.Idle {
			t.Errorf("gone: %q, the root is %s", got, p.parent.Status())
		}
		close(hold)
		<-stopped
		if d := cmp.Diff([]string{"b", "a"}, w.list("gone")); d != "" {
			t.Errorf("released, children first:\n%s", d)
		}
		if n := p.Adapter.Started(); n != calls {
			t.Errorf("F-26: %d model calls while the process ended", n-calls)
		}
		s := m.stored("a")
		if n := len(s.Inbox(session.NextTurn)); n != 1 || s.Inbox(session.NextTurn)[0].Message.ID != queued || s.Epochs().Settled != 0 {
			t.Errorf("%d messages wait in a, epochs %+v", n, s.Epochs())
		}
		if err := p.Service.Close(t.Context()); err != nil {
			t.Errorf("close again: %v", err)
		}
		q := m.boot(subagenttest.Options{}, nil)
		if r := q.recover(); !slices.Equal(r.Reopened, []session.ID{"a"}) {
			t.Errorf("recovered %+v", r)
		}
		q.parent.Wake()
		synctest.Wait()
		q.stop()
		m.atRest(subagent.Accepted{Child: "a", Message: queued})
	})
}

// DSP-03, DSP-05, DSP-06, SCOPE-10: whatever ends a child, and however many do at once, it
// ends once, and all of them learn of the same end.
func TestDrainsConverge_DSP03(t *testing.T) {
	fault := errors.New("stuck")
	synctest.Test(t, func(t *testing.T) {
		l := faultyNest(t)
		var mu sync.Mutex
		releases := map[session.ID]int{}
		remove := l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
			return func() error {
				mu.Lock()
				defer mu.Unlock()
				releases[a.ID()]++
				return fault
			}, nil
		})
		a := l.below(l.parent, "a")
		b := l.below(a, "b")
		w := &watch{}
		l.watching(w, a, b)
		hold := make(chan struct{})
		if _, err := b.AddWork(agent.Work{Stop: func() {}, Join: func() { <-hold }}); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 6)
		go func() { errs <- l.Service.DrainDescendants(l.parent)(t.Context()) }()
		go func() { errs <- l.Service.DrainDescendants(l.parent)(t.Context()) }()
		go func() { errs <- subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "a") }()
		go func() { errs <- subagent.NewChildDrainer(l.Service).Drain(t.Context(), a, "b") }()
		go func() { errs <- l.Host.Close(t.Context(), l.parent.ID(), "a") }()
		go func() { errs <- l.Service.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-errs:
			t.Errorf("a drain did not wait: %v", err)
			errs <- err
		default:
		}
		close(hold)
		for range cap(errs) {
			wantCode(t, <-errs, subagent.CodeActivationTeardownFailed)
		}
		if err := remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
		if d := cmp.Diff(map[session.ID]int{"a": 1, "b": 1}, releases); d != "" {
			t.Errorf("released:\n%s", d)
		}
		if got := w.list("gone"); !slices.Equal(got, []string{"b", "a"}) {
			t.Errorf("gone: %q", got)
		}
		if e := l.Lifecycle.Edges(); len(e) != 4 {
			t.Errorf("edges: %+v", e)
		}
		err := l.Service.Close(t.Context())
		if n := strings.Count(err.Error(), "closing subagent b"); !errors.Is(err, fault) || n != 2 {
			t.Errorf("close again: of b it tells %d times: %v", n, err)
		}
	})
}

// A follow-up and the last disposal: whichever is first, an accepted message runs once.
func TestFollowupAgainstDisposal(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		hold := make(chan struct{})
		remove := l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) {
			return func() error { <-hold; return nil }, nil
		})
		acc := l.start("worker", "go")
		synctest.Wait()
		a, live := l.Agents.Get(acc.Child)
		if !live {
			t.Fatal("it is gone already")
		}
		if s := stored(t, l, acc.Child); s.Epochs().Settled != 1 {
			t.Fatal("it does not settle")
		}
		var id message.ID
		done := make(chan struct{})
		go func() { id = l.followup(acc.Child, "more"); close(done) }()
		synctest.Wait()
		if id != "" {
			t.Error("what is being released took a message")
		}
		// Interrupts and reports meanwhile change nothing (INT-14, REP-16).
		if err := l.Host.Interrupt(l.parent.ID(), acc.Child); err != nil {
			t.Error(err)
		}
		wantCode(t, l.Host.Interrupt("nobody", acc.Child), subagent.CodeUnauthorized)
		_, err := l.Service.Report(t.Context(), a, say("x"), subagent.DeliverQuiet)
		wantCode(t, err, subagent.CodeActivationClosing)
		close(hold)
		<-done
		synctest.Wait()
		if n := entered(stored(t, l, acc.Child))[id]; n != 1 {
			t.Errorf("the message entered %d times", n)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
		if e := l.Lifecycle.Edges(); len(e) != 4 || e[3].End.StopReason != subagent.StopCompleted {
			t.Errorf("edges: %+v", e)
		}
	})
}

// CAN-16, DRAIN-05, P11: what the service offers. Nothing of it stops a turn, cancels what
// was accepted, steers, or ends a child; what does stands on types of its own.
func TestServiceSurface_CAN16(t *testing.T) {
	methods := func(v any) (names []string) {
		typ := reflect.TypeOf(v)
		for i := range typ.NumMethod() {
			switch name := typ.Method(i).Name; name {
			case "Entry", "OwnedBy", "Parents", "Rests": // of the tests alone
			default:
				names = append(names, name)
			}
		}
		return names
	}
	want := []string{
		"AddHooks", "AddSetup", "Agents", "Close", "CloseAdmission", "Conclude", "DrainDescendants", "Followup", "Hold", "ListChildren", "ListDescendants",
		"Lister", "Notices", "Observe", "Provider", "Providers", "Register", "Report", "Restate", "Start", "StartAwaited", "StartContinuable",
	}
	if d := cmp.Diff(want, methods(&subagent.Service{})); d != "" {
		t.Errorf("the service:\n%s", d)
	}
	if d := cmp.Diff([]string{"Drain"}, methods(&subagent.ChildDrainer{})); d != "" {
		t.Errorf("the drainer:\n%s", d)
	}
	if d := cmp.Diff([]string{"Interrupt"}, methods(&subagent.Interrupter{})); d != "" {
		t.Errorf("the interrupter:\n%s", d)
	}
}

// faultyNest is a nest that does not report what its service returns when it is closed.
func faultyNest(t *testing.T) *nest {
	t.Helper()
	store := memory.New()
	l := &nest{System: subagenttest.NewSystem(lenient{t}, subagenttest.Options{Store: store, Projections: units(t)}), t: t, store: store}
	l.Register(t, spawn.New(""))
	l.Otherwise(scripted.Step{scripted.SayLiteral("noted")})
	l.parent = l.Parent(t)
	return l
}

type lenient struct{ testing.TB }

func (l lenient) Errorf(format string, args ...any) {
	if !strings.HasPrefix(format, "close the service: ") {
		l.TB.Errorf(format, args...)
	}
}

// stored reads a log as it is stored.
func stored(t *testing.T, l *nest, id session.ID) *session.Session {
	t.Helper()
	return (&machine{t: t, back: l.store.Backend()}).stored(id)
}

// The same between two steps of the making, where nothing runs that could be cancelled.
func TestDrainBetweenSteps(t *testing.T) {
	for _, steps := range []int{0, 1} {
		inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
			step, err := subagent.Reserve(l.Service, "c", l.parent)
			if err != nil {
				t.Fatal(err)
			}
			for range steps {
				if err := step(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			drained := make(chan error, 1)
			go func() { drained <- subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "c") }()
			synctest.Wait()
			wantCode(t, step(t.Context()), subagent.CodeActivationClosing)
			if err := <-drained; err != nil {
				t.Error(err)
			}
		})
	}
}

// TEAR-02, DRAIN-02: a child that is being made below another is waited for before that one
// is released.
func TestDrainAboveTheMaking_TEAR02(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		a := l.below(l.parent, "a")
		gate := make(chan struct{})
		l.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) { <-gate; return nil, nil })
		started := make(chan error, 1)
		go func() {
			_, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{ID: "b", Label: "b", Prompt: say("go"), Parent: a})
			started <- err
		}()
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "a") }()
		synctest.Wait()
		if d := cmp.Diff([]string{"a"}, l.live("a")); d != "" {
			t.Errorf("live:\n%s", d)
		}
		close(gate)
		wantCode(t, <-started, subagent.CodeActivationClosing)
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if got := l.live("a", "b"); got != nil {
			t.Errorf("live: %q", got)
		}
	})
}
