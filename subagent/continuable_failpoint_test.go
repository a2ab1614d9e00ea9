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
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

var (
	errBoom = errors.New("boom")
	errGone = errors.New("the caller is gone")
)

const (
	rootID  session.ID = "root"
	midID   session.ID = "mid"
	childID session.ID = "child"
)

// trap is a system in which everything that an operation on the child waits for, and
// everybody who is told of it on the way, is a point at which something can go wrong.
type trap struct {
	*subagenttest.System
	t      *testing.T
	faulty *storetest.Faulty
	mem    *memory.Store

	root, parent *agent.Agent
	ctx          context.Context // the caller's
	leave        context.CancelCauseFunc
	revoke       func() error // takes the setup contribution back
	drains       []<-chan error

	mu     sync.Mutex // guards following
	armed  bool
	points []string
	fault  func(n int, what string) storetest.Fault
}

// newTrap returns a process over a backend.
func newTrap(t *testing.T, b *memory.Backend) *trap {
	w := &trap{t: t, mem: b.Open()}
	w.faulty = storetest.NewFaulty(w.mem)
	w.System = subagenttest.NewSystem(t, subagenttest.Options{Store: w.faulty, Projections: units(t)})
	w.Otherwise(scripted.Step{scripted.SayLiteral("noted")})
	w.Answer("hold", scripted.Step{scripted.Hang()})
	w.faulty.Plan(func(p storetest.Point) storetest.Fault { return w.meet("store " + string(p.Op) + " " + string(p.ID)) })
	w.Register(t, &trapped{spawn.New(""), w})
	w.revoke = w.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
		if a.ID() != childID {
			return nil, nil
		}
		return nil, w.told("setup")
	})
	w.Sessions.AddHooks(session.Hooks{Created: func(s *session.Session) error {
		if s.ID() != childID {
			return nil
		}
		return w.told("session created")
	}})
	w.Agents.AddHooks(agent.Hooks{
		Created: func(a *agent.Agent) error {
			if a.ID() != childID {
				return nil
			}
			return w.told("agent created")
		},
		Inbox: func(a *agent.Agent, e agent.InboxEvent) {
			if a.ID() == childID && e.Change == agent.InboxEnqueue && message.JoinText(e.Message.Content) == "work" {
				if err := w.told("enqueue"); err != nil {
					panic(err)
				}
			}
		},
	})
	w.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) {
		if e.ID != childID {
			return
		}
		if err := w.told("start edge"); err != nil {
			panic(err)
		}
	}}, nil)
	w.ctx, w.leave = context.WithCancelCause(t.Context())
	return w
}

// trapped is a provider that waits at a point.
type trapped struct {
	*spawn.Provider
	w *trap
}

func (p *trapped) PrepareContinuable(_ context.Context, prep subagent.Preparation) (*session.Seed, error) {
	if prep.ID != childID {
		return nil, nil
	}
	return nil, p.w.told("prepare")
}

func (w *trap) meet(what string) storetest.Fault {
	w.mu.Lock()
	if !w.armed {
		w.mu.Unlock()
		return storetest.Fault{}
	}
	n := len(w.points)
	w.points = append(w.points, what)
	fault := w.fault
	w.mu.Unlock()
	if fault == nil {
		return storetest.Fault{}
	}
	return fault(n, what)
}

// told is a point outside the store.
func (w *trap) told(what string) error {
	f := w.meet(what)
	if f.Wait != nil {
		f.Wait(w.ctx)
	}
	if f.Then != nil {
		f.Then()
	}
	if f.Panic != nil {
		panic(f.Panic)
	}
	return f.Err
}

func (w *trap) arm(fault func(n int, what string) storetest.Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.points, w.fault = true, nil, fault
}

func (w *trap) disarm() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.fault = false, nil
	return w.points
}

// later runs what waits, up to where it waits.
func (w *trap) later(fn func() error) {
	done := make(chan error, 1)
	w.drains = append(w.drains, done)
	go func() { done <- fn() }()
	synctest.Wait()
}

func (w *trap) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// give starts or resumes the root and, with a managed parent, the child that works
// between them.
func (w *trap) give(resume, managed bool) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	var h *agent.Handle
	var err error
	if resume {
		h, err = w.Agents.Resume(ctx, agent.Resume{ID: rootID, Options: subagenttest.ParentOptions()})
	} else {
		h, err = w.Agents.Create(ctx, agent.Create{Session: session.New{ID: rootID}, Options: subagenttest.ParentOptions()})
	}
	w.check(err)
	if !resume {
		w.check(h.Agent().Followup(agent.UserText("hello")))
		synctest.Wait()
	}
	w.root = h.Agent()
	w.parent = w.root
	if managed {
		w.hold(resume)
	}
}

// hold makes the managed parent resident: at work, until it is stopped.
func (w *trap) hold(stored bool) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	var err error
	if stored {
		_, err = w.Service.Followup(ctx, w.root, midID, say("hold"), message.UserSource())
	} else {
		_, err = w.Service.StartContinuable(ctx, spawn.DefaultName, subagent.ContinuableRequest{ID: midID, Label: "mid", Prompt: say("hold"), Parent: w.root})
	}
	w.check(err)
	w.parent, _ = w.Agents.Get(midID)
	synctest.Wait()
}

func (w *trap) start(ctx context.Context, parent *agent.Agent, id session.ID) (message.ID, error) {
	acc, err := w.Service.StartContinuable(ctx, spawn.DefaultName, subagent.ContinuableRequest{ID: id, Label: "worker", Prompt: say("work"), Parent: parent})
	if err == nil && acc.Child != id {
		w.t.Errorf("CONT-07: started %s", acc.Child)
	}
	return acc.Message, err
}

func (w *trap) followup(ctx context.Context, parent *agent.Agent, id session.ID) (message.ID, error) {
	return w.Service.Followup(ctx, parent, id, say("work"), message.UserSource())
}

// trapOperation is one operation that the table goes through.
type trapOperation struct {
	managed, resumed bool
	cold             bool // a follow-up to a stored child; otherwise a start
	cut              bool // the stored child was cut in a turn
}

func (o trapOperation) String() string {
	var s []string
	for _, p := range []struct {
		is   bool
		name string
	}{{!o.cold, "start"}, {o.cold, "follow-up"}, {o.cut, "cut"}, {o.managed, "managed"}, {o.resumed, "resumed"}} {
		if p.is {
			s = append(s, p.name)
		}
	}
	return strings.Join(s, " ")
}

// prepare brings about what the operation begins with.
func (o trapOperation) prepare(t *testing.T, b *memory.Backend) *trap {
	w := newTrap(t, b)
	w.give(false, o.managed)
	if o.cold {
		ctx := context.WithoutCancel(t.Context())
		prompt := "first"
		if o.cut {
			prompt = "hold"
		}
		_, err := w.Service.StartContinuable(ctx, spawn.DefaultName, subagent.ContinuableRequest{ID: childID, Label: "worker", Prompt: say(prompt), Parent: w.parent})
		w.check(err)
		synctest.Wait()
	}
	if o.resumed {
		// The process dies, and another goes on.
		w.check(w.root.Session().Flush(t.Context()))
		if o.cut {
			c, _ := w.Agents.Get(childID)
			w.check(c.Session().Flush(t.Context()))
		}
		w.mem.Kill()
		w.Crashed()
		w = newTrap(t, b)
		w.give(true, o.managed)
	}
	w.flush()
	return w
}

// flush stores what is pending, so that no timer writes in the middle.
func (w *trap) flush() {
	w.t.Helper()
	synctest.Wait()
	for _, a := range w.Agents.List() {
		w.check(a.Session().Flush(w.t.Context()))
	}
}

func (o trapOperation) run(w *trap) (message.ID, error) {
	if o.cold {
		return w.followup(w.ctx, w.parent, childID)
	}
	return w.start(w.ctx, w.parent, childID)
}

// mishap is what goes wrong at a point.
type mishap struct {
	fault func(w *trap, o trapOperation, what string) (f storetest.Fault, applies bool)
	// want tells what the caller must be told; nil is success. told is whether the
	// message stands in the inbox by then.
	want func(o trapOperation, what string, told bool) []error
	// ends says that nothing more begins below this root, in this process.
	ends bool
}

func isStore(what string) bool { return strings.HasPrefix(what, "store ") }

func storeWrites(what string) bool {
	return isStore(what) && storetest.Op(strings.Fields(what)[1]).Writes()
}

// contained are the points whose failure is nobody's business (EVT-14).
func contained(what string) bool { return what == "start edge" || what == "enqueue" }

func mishaps() map[string]mishap {
	any := []error{nil}
	fails := func(f storetest.Fault) mishap {
		return mishap{
			fault: func(_ *trap, _ trapOperation, what string) (storetest.Fault, bool) {
				return f, !f.After || isStore(what)
			},
			want: func(o trapOperation, what string, _ bool) []error {
				switch {
				case contained(what), o.cold && !o.resumed && strings.HasPrefix(what, "store list"):
					return nil
				case o.cold && strings.HasPrefix(what, "store list"):
					return any // the parent's list, or that of the child, which is no reason to refuse it
				case f.After && f.Panic != nil && storeWrites(what):
					return any
				case f.After && (strings.HasPrefix(what, "store append") || strings.HasPrefix(what, "store create")):
					return nil // the head was read back: it is stored
				case f.After && strings.HasPrefix(what, "store events"):
					return any
				}
				return []error{errBoom}
			},
		}
	}
	does := func(fn func(w *trap, o trapOperation), want func(o trapOperation, what string, told bool) []error) mishap {
		return mishap{ends: true, want: want, fault: func(w *trap, o trapOperation, _ string) (storetest.Fault, bool) {
			return storetest.Fault{Wait: func(context.Context) { fn(w, o) }}, true
		}}
	}
	closing := []error{subagent.ErrActivationClosing, subagent.ErrUnauthorized}
	all := map[string]mishap{
		"fails":        fails(storetest.Fault{Err: errBoom}),
		"fails after":  fails(storetest.Fault{Err: errBoom, After: true}),
		"panics":       fails(storetest.Fault{Panic: errBoom}),
		"panics after": fails(storetest.Fault{Panic: errBoom, After: true}),
		"is lost": {
			ends: true,
			fault: func(_ *trap, _ trapOperation, what string) (storetest.Fault, bool) {
				return storetest.Fault{Err: &session.FencedError{ID: childID}}, storeWrites(what)
			},
			want: func(trapOperation, string, bool) []error { return any },
		},
		"is owned elsewhere": {
			fault: func(_ *trap, _ trapOperation, what string) (storetest.Fault, bool) {
				return storetest.Fault{Err: &session.OwnedError{ID: childID}}, strings.HasPrefix(what, "store open "+string(childID))
			},
			want: func(trapOperation, string, bool) []error { return []error{subagent.ErrOwnedElsewhere} },
		},
		"slow": {
			fault: func(*trap, trapOperation, string) (storetest.Fault, bool) {
				return storetest.Fault{Wait: func(context.Context) { <-time.After(time.Hour) }}, true
			},
			want: func(trapOperation, string, bool) []error { return nil },
		},
		"the caller leaves": {
			fault: func(w *trap, _ trapOperation, _ string) (storetest.Fault, bool) {
				return storetest.Fault{Wait: func(context.Context) { w.leave(errGone) }}, true
			},
			want: func(_ trapOperation, _ string, told bool) []error {
				if told {
					return nil // CAN-09, CAN-19: the sync decides
				}
				return []error{errGone}
			},
		},
		"setup revoked": {
			fault: func(w *trap, _ trapOperation, what string) (storetest.Fault, bool) {
				return storetest.Fault{Then: func() { w.check(w.revoke()) }}, what == "setup"
			},
			want: func(trapOperation, string, bool) []error { return []error{subagent.ErrSetupRevoked} },
		},
		"interrupted": {
			fault: func(w *trap, _ trapOperation, _ string) (storetest.Fault, bool) {
				return storetest.Fault{Wait: func(context.Context) { w.check(w.Host.Interrupt(w.parent.ID(), childID)) }}, true
			},
			want: func(trapOperation, string, bool) []error { return nil },
		},
		"scoped drain": does(func(w *trap, _ trapOperation) {
			wait := w.Service.DrainDescendants(w.root)
			w.later(func() error { return wait(context.Background()) })
		}, func(o trapOperation, _ string, _ bool) []error {
			if o.managed {
				// The parent goes too, and may be gone by then.
				return append(closing, subagent.ErrDraining)
			}
			return []error{subagent.ErrDraining}
		}),
		"whole drain": does(func(w *trap, _ trapOperation) {
			w.later(func() error { return w.Service.Close(context.Background()) })
		}, func(trapOperation, string, bool) []error { return []error{subagent.ErrDraining} }),
		"the parent closes": does(func(w *trap, o trapOperation) {
			if o.managed {
				w.later(func() error { return subagent.NewChildDrainer(w.Service).Drain(context.Background(), w.root, midID) })
				return
			}
			w.later(func() error { return w.root.Dispose(context.Background(), true) })
		}, func(o trapOperation, _ string, told bool) []error {
			if told && !o.managed {
				return nil // it was the exact live parent when the message went in
			}
			return closing
		}),
		"the parent is replaced": does(func(w *trap, o trapOperation) {
			if o.managed {
				return
			}
			w.check(w.root.Dispose(context.Background(), true))
			_, err := w.Agents.Resume(context.Background(), agent.Resume{ID: rootID, Options: subagenttest.ParentOptions()})
			w.check(err)
		}, func(o trapOperation, _ string, told bool) []error {
			if o.managed || told {
				return nil
			}
			return []error{subagent.ErrUnauthorized}
		}),
	}
	return all
}

func trapOperations() []trapOperation {
	return []trapOperation{
		{}, {managed: true}, {resumed: true},
		{cold: true}, {cold: true, managed: true}, {cold: true, resumed: true},
		{cold: true, resumed: true, cut: true}, {cold: true, resumed: true, managed: true, cut: true},
	}
}

// The failpoint table of continuable children: at every wait before acceptance, and at
// every hook on the way, something fails, the caller leaves, or the parent, the
// descendants or everything is closed. Afterwards nothing of a child that was not
// accepted is left, and the next operation succeeds (seam RB-02…04, RB-07…12, RB-14…19,
// RB-21, CAN-05…09, CAN-11…13, CAN-19, EVT-16, EVT-18, FUP-20, AUTH-04, AUTH-05, OBS-02,
// F-24, F-29; amendments P06, P10; design § 4, Accepted means durable).
func TestContinuableFailpoints_RB(t *testing.T) {
	for i, o := range trapOperations() {
		t.Run(o.String(), func(t *testing.T) {
			var points []string
			synctest.Test(t, func(t *testing.T) {
				w := o.prepare(t, memory.NewBackend())
				w.arm(nil)
				_, err := o.run(w)
				points = w.disarm()
				w.check(err)
			})
			told := slices.Index(points, "enqueue")
			for _, must := range []string{"setup", "session created", "agent created", "start edge", "enqueue"} {
				if !slices.Contains(points, must) {
					t.Fatalf("the points are %q: without %s", points, must)
				}
			}
			last := told
			for i := told; i < len(points) && !strings.HasPrefix(points[i], "store append") && !strings.HasPrefix(points[i], "store create"); i++ {
				last = i
			}
			points = points[:last+2] // up to the accepting sync
			for name, m := range mishaps() {
				for n, what := range points {
					sample := 7*n + len(name) + i
					if !soak && i != 0 && i != 4 && sample%4 != 0 {
						continue
					}
					run := func(what string, also func(i int) bool) {
						if !soak && also != nil && (sample+len(what))%6 != 0 {
							return
						}
						t.Run(fmt.Sprintf("%s at %d %s", name, n, what), func(t *testing.T) {
							synctest.Test(t, func(t *testing.T) {
								o.try(t, m, also, n, n >= told)
							})
						})
					}
					run(what, nil)
					if name == "fails" || name == "fails after" || name == "panics after" || name == "is lost" {
						run(what+" and on", func(i int) bool { return i > n })
						run(what+" and next", func(i int) bool { return i == n+1 })
						run(what+" and next but one", func(i int) bool { return i == n+2 })
					}
				}
			}
		})
	}
}

// try runs the operation with a mishap at point n and audits what is left. also names
// further points that fail.
func (o trapOperation) try(t *testing.T, m mishap, also func(int) bool, n int, told bool) {
	b := memory.NewBackend()
	w := o.prepare(t, b)
	before := w.stored(childID)
	met := ""
	w.arm(func(i int, what string) storetest.Fault {
		switch {
		case i == n:
			f, applies := m.fault(w, o, what)
			if applies {
				met = what
			}
			if !applies {
				return storetest.Fault{}
			}
			return f
		case also != nil && met != "" && also(i) && isStore(what) && strings.HasSuffix(what, string(childID)):
			return storetest.Fault{Err: errBoom, After: i%2 == 0}
		}
		return storetest.Fault{}
	})
	id, err := o.run(w)
	points := w.disarm()
	if met == "" {
		if err != nil {
			t.Fatalf("nothing went wrong, and yet: %v", err)
		}
		return
	}
	defer func() {
		if t.Failed() {
			t.Logf("%s at %s: the operation said: %v\nit met %q", o, met, err, points)
		}
	}()
	if also == nil {
		o.judge(t, err, m.want(o, met, told))
	}
	synctest.Wait()
	w.check(w.faulty.Settle(context.Background()))
	uncertain := errors.Is(err, agent.ErrUncertain)
	if err != nil {
		if id != "" {
			t.Errorf("the caller got the id %s", id)
		}
		w.nothing(before, o, uncertain || also != nil)
		if !o.cold && w.stored(childID) != nil && !strings.Contains(err.Error(), "may be left") {
			t.Error("RB-19: a log is left, and the caller was not told")
		}
	} else if !strings.Contains(strings.Join(w.stored(childID), "\n"), string(id)) {
		t.Error("P06: the message was accepted, and is not stored")
	}
	for _, d := range w.drains {
		select {
		case derr := <-d:
			if derr != nil && !errors.Is(derr, errBoom) {
				t.Errorf("the drain: %v", derr)
			}
		default:
			t.Error("the drain does not end")
		}
	}
	if err != nil {
		o.again(t, w, m.ends, uncertain || also != nil)
	}
}

func (o trapOperation) judge(t *testing.T, err error, want []error) {
	t.Helper()
	switch {
	case want == nil && err != nil:
		t.Errorf("the operation failed: %v", err)
	case want == nil:
	case err == nil && !slices.Contains(want, nil):
		t.Error("the operation succeeded")
	case !slices.Contains(want, nil) && !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) && !saysBoom(err, want):
		t.Errorf("the operation said %v, want one of %v", err, want)
	}
}

// saysBoom finds the failure where it was a panic.
func saysBoom(err error, want []error) bool {
	return err != nil && slices.Contains(want, errBoom) && strings.Contains(err.Error(), errBoom.Error())
}

// stored returns the stored log, one line for each event.
func (w *trap) stored(id session.ID) (lines []string) {
	w.t.Helper()
	_, events, err := w.mem.Inspect(context.Background(), id)
	if errors.Is(err, session.ErrNotFound) {
		return nil
	}
	w.check(err)
	for e, err := range events {
		w.check(err)
		lines = append(lines, string(e.AppendEnvelope(nil)))
	}
	return lines
}

// nothing checks that nothing is left of a child that accepted nothing.
func (w *trap) nothing(before []string, o trapOperation, uncertain bool) {
	t := w.t
	t.Helper()
	if _, live := w.Agents.Get(childID); live {
		t.Error("an agent is left")
	}
	if _, live := w.Sessions.Get(childID); live {
		t.Error("a session is left")
	}
	if w.Service.Entry(childID) {
		t.Error("an entry is left")
	}
	if owned := w.Service.OwnedBy(midID); len(owned) > 0 {
		t.Errorf("the parent still owns %s", owned)
	}
	if !o.managed {
		if left := w.Service.Rests(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	w.paired()
	after := w.stored(childID)
	switch {
	case uncertain:
	case !o.cold && after != nil:
		t.Errorf("RB-19: a log is left: %q", after)
	case len(after) < len(before):
		t.Errorf("the log is shorter: %d events, not %d", len(after), len(before))
	default:
		for i, line := range after {
			switch {
			case i < len(before):
				if line != before[i] {
					t.Errorf("event %d was %s, is %s", i, before[i], line)
				}
			case !isRepair(line):
				t.Errorf("the log was not left alone: %s", line)
			}
		}
		inserted := strings.Count(strings.Join(after, "\n"), `"work"`)
		if inserted > 0 && !strings.Contains(after[len(after)-1], "canceled") {
			t.Errorf("the message is left in the inbox: %q", after)
		}
	}
	if rec, _, err := w.mem.Inspect(context.Background(), childID); err == nil && rec.Owner != nil && !uncertain {
		t.Errorf("the row is still owned by %v", rec.Owner)
	}
}

// isRepair reports whether an event may be added by a resume that was taken back.
func isRepair(line string) bool {
	for _, typ := range []session.Type{session.TypeStepEnd, session.TypeTurnEnd, session.TypeEndSeed, session.TypeInboxSpliced, session.TypeAssistantMessage} {
		if strings.Contains(line, `"`+string(typ)+`"`) {
			return true
		}
	}
	return false
}

// paired checks that every start edge of the child has its end.
func (w *trap) paired() {
	w.t.Helper()
	open := 0
	for _, e := range w.Lifecycle.Edges() {
		switch {
		case e.Start.ID != childID:
		case e.End == nil:
			open++
		default:
			open--
		}
	}
	if open != 0 {
		w.t.Errorf("EVT-18: %d edges of the child are open", open)
	}
}

// again does what failed once more: here, or where this root takes nothing any more,
// in the next process.
func (o trapOperation) again(t *testing.T, w *trap, ends, ghost bool) {
	t.Helper()
	ghost = ghost && w.stored(childID) != nil && !o.cold
	if ends || ghost {
		w.mem.Kill()
		w.Crashed()
		if ghost {
			// The store would not let go of the row, and the caller was told so.
			s := w.mem.Backend().Open()
			w.check(s.Delete(context.Background(), childID))
			w.check(s.Close(context.Background()))
		}
		w = newTrap(t, w.mem.Backend())
		w.give(true, o.managed)
	} else {
		w.ctx = context.WithoutCancel(t.Context())
	}
	id, err := o.run(w)
	if err != nil {
		t.Errorf("the next operation: %v", err)
		return
	}
	synctest.Wait()
	if _, live := w.Agents.Get(childID); live {
		t.Error("the child does not settle")
	}
	ran := 0
	for _, line := range w.stored(childID) {
		if strings.Contains(line, `"`+string(session.TypeUserMessage)+`"`) && strings.Contains(line, string(id)) {
			ran++
		}
	}
	if ran != 1 {
		t.Errorf("the message of the next operation ran %d times", ran)
	}
}
