package subagent_test

import (
	"context"
	"errors"
	"strings"
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
	"github.com/offshoot-dev/offshoot/tool"
)

// waitingTool is a tool that starts a child and waits for what it comes to. It says so in its
// result if takes is set, and fails when it is told to behind the wait.
func waitingTool(svc func() *subagent.Service, takes bool, behind func(context.Context) error) tool.Definition {
	return tool.Definition{
		Name: "wait", Description: "waits", Parameters: []byte(`{"type":"object"}`),
		Output: tool.Output{
			Render: func(v any) ([]message.Block, error) {
				s := v.(subagent.Settlement)
				return []message.Block{message.Text("it said " + message.JoinText(s.Output))}, nil
			},
			Meta: func(v any) ([]byte, error) {
				if !takes {
					return nil, nil
				}
				return session.SettledMeta(v.(subagent.Settlement).ID), nil
			},
		},
		Execute: func(ctx context.Context, c *tool.Call) (any, error) {
			w, err := svc().StartAwaited(ctx, spawn.DefaultName, subagent.ContinuableRequest{ID: "c", Label: "c", Prompt: say("dig"), Parent: c.Caller.(*agent.Agent)})
			if err != nil {
				return nil, err
			}
			defer w.Release()
			s, err := w.Wait(ctx)
			if err == nil && behind != nil {
				err = behind(ctx)
			}
			return s, err
		},
	}
}

// P41, design § 4: a parent that waits in a call for what a child comes to gets no notice
// meanwhile. A result that carries the outcome takes it; however else the call ends, the
// notice comes as usual, once: a crash before the result is stored, too.
func TestAwaited_P41(t *testing.T) {
	result := func(p session.Payload) bool {
		_, ok := p.(*session.ToolResult)
		return ok
	}
	stop := func(p *process) {
		if err := p.parent.Cancel(session.Cause{Kind: session.CauseUser}, true); err != nil {
			p.t.Error(err)
		}
	}
	for _, tc := range []struct {
		name  string
		takes bool
		fails bool             // behind the wait
		cut   cut              // at the write of the result
		stop  func(p *process) // while it waits
		late  func(p *process) // behind the wait, in the call
		wants []string         // turns of the root, see kinds; nil: not looked at
		heard int              // how often the notice entered
	}{
		{name: "the result takes it", takes: true, wants: []string{"| user|"}},
		{name: "the result does not say so", wants: []string{"| user|| settled"}, heard: 1},
		{name: "the call fails behind the wait", takes: true, fails: true, wants: []string{"| user|| settled"}, heard: 1},
		{name: "the call is cancelled behind the wait", takes: true, late: stop, wants: []string{"| user", "| settled"}, heard: 1},
		{name: "the call is cancelled", takes: true, stop: stop, wants: []string{"| user", "| settled"}, heard: 1},
		{name: "killed before the result is stored", takes: true, cut: before, heard: 1},
		{name: "killed behind it", takes: true, cut: behind},
		{name: "the process ends", takes: true, stop: func(p *process) { p.stop() }, heard: 1},
		{name: "killed while it waits", takes: true, stop: (*process).crash, heard: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				var p *process
				o := subagenttest.Options{Tools: []tool.Definition{waitingTool(func() *subagent.Service { return p.Service }, tc.takes, func(ctx context.Context) error {
					if tc.late != nil {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					if tc.fails {
						return errors.New("the answer was replaced")
					}
					return nil
				})}}
				p = m.boot(o, func(_ int, id session.ID, events []session.Event) cut {
					if id == "root" && holds(events, result) {
						return tc.cut
					}
					return goOn
				})
				g := &scripted.Gate{}
				p.Answer("dig", holding(g, "dug"))
				p.Answer("ask", scripted.Step{scripted.CallLiteral("wait", "{}")}, scripted.Step{scripted.SayLiteral("thanks")})
				if err := p.parent.Followup(agent.UserText("ask")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if tc.stop != nil {
					tc.stop(p)
					synctest.Wait()
				}
				g.Open()
				synctest.Wait()
				if tc.late != nil {
					tc.late(p)
					synctest.Wait()
				}
				if tc.wants != nil {
					if d := cmp.Diff(tc.wants, kinds(p.parent.Session())); d != "" {
						t.Errorf("the root's turns:\n%s\n%q", d, p.said("root"))
					}
				}
				if tc.stop == nil || !strings.HasPrefix(tc.name, "the process") {
					p.crash()
				}
				q := m.boot(subagenttest.Options{}, nil)
				q.recover()
				q.parent.Wake()
				synctest.Wait()
				q.stop()
				if n := entered(m.stored("root"))[session.SettlementID("c", 1)]; n != tc.heard {
					t.Errorf("the notice entered %d times, want %d: %q", n, tc.heard, m.said("root"))
				}
				if !m.stored("root").Took(session.SettlementID("c", 1)) {
					t.Error("the root has not taken it")
				}
				m.quiet()
			})
		})
	}
}

// Wait and Release outside of a turn: the end of a ctx ends the wait alone; what was told
// stays; the release of a child that has not settled leaves the notice as it would be, that
// of one that has looks at once, and a second one does nothing.
func TestAwaitedOutsideATurn(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		g := &scripted.Gate{}
		l.Answer("go", holding(g, "done"))
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		early, err := l.Service.StartAwaited(ctx, spawn.DefaultName, l.request("early", "go"))
		if err != nil {
			t.Fatal(err)
		}
		late, err := l.Service.StartAwaited(t.Context(), spawn.DefaultName, l.request("late", "go"))
		if err != nil {
			t.Fatal(err)
		}
		cancel(cause)
		if _, err := early.Wait(ctx); !errors.Is(err, cause) {
			t.Errorf("wait: %v", err)
		}
		early.Release()
		g.Open()
		synctest.Wait()
		n := entered(l.parent.Session())
		if n[session.SettlementID(early.Child, 1)] != 1 || n[session.SettlementID(late.Child, 1)] != 0 {
			t.Errorf("the parent heard %q", l.said(l.parent.ID()))
		}
		// A turn of something else does not bring it while the call waits.
		if err := l.parent.Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 2 {
			s, err := late.Wait(ctx) // it has settled: that counts, whatever ctx says
			if err != nil || s.Child != late.Child || s.Epoch != 1 || s.StopReason != subagent.StopCompleted || message.JoinText(s.Output) != "done" || s.Label != "late" {
				t.Errorf("settlement %+v, %v", s, err)
			}
		}
		if n := entered(l.parent.Session())[session.SettlementID(late.Child, 1)]; n != 0 {
			t.Error("the parent heard of it while the call waited")
		}
		late.Release()
		late.Release()
		synctest.Wait()
		if n := entered(l.parent.Session())[session.SettlementID(late.Child, 1)]; n != 1 {
			t.Errorf("the parent heard of it %d times", n)
		}
		_, err = l.Service.StartAwaited(t.Context(), "nobody", l.request("x", "go"))
		wantCode(t, err, subagent.CodeNoProvider)
	})
}

// The release meets a parent that is storing a quiet report of another child: it is idle
// then, and hears.
func TestAwaitedReleaseBesideAReport(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		gate, arrived := make(chan struct{}), make(chan struct{})
		var p *process
		p = m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
			if id == "root" && holds(events, splices(func(p *session.InboxSpliced) bool {
				return len(p.Inserted) > 0 && p.Inserted[0].Source.Kind == message.SourceSubagentReport
			})) {
				p.cut.mu.Unlock()
				close(arrived)
				<-gate
				p.cut.mu.Lock()
			}
			return goOn
		})
		other := p.below(p.parent, "other")
		w, err := p.Service.StartAwaited(t.Context(), spawn.DefaultName, p.request("worker", "go"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		reported := make(chan struct{})
		go func() { defer close(reported); p.report(other, "so far", subagent.DeliverQuiet) }()
		<-arrived
		w.Release()
		close(gate)
		<-reported
		synctest.Wait()
		if n := entered(p.parent.Session())[session.SettlementID(w.Child, 1)]; n != 1 {
			t.Errorf("the parent heard of it %d times", n)
		}
	})
}

// P15, P41: with notices switched off a call still gets the outcome; at the end of the
// process it is told that there is none.
func TestAwaitedWithoutNotices(t *testing.T) {
	inNest(t, subagenttest.Options{NoNotices: true}, func(t *testing.T, l *nest) {
		w, err := l.Service.StartAwaited(t.Context(), spawn.DefaultName, l.request("worker", "go"))
		if err != nil {
			t.Fatal(err)
		}
		if s, err := w.Wait(t.Context()); err != nil || message.JoinText(s.Output) != "noted" {
			t.Errorf("settlement %+v, %v", s, err)
		}
		w.Release()
		synctest.Wait()
		if n := l.parent.Session().Head(); n != 0 {
			t.Errorf("the parent heard %q", l.said(l.parent.ID()))
		}
		l.Answer("hang", scripted.Step{scripted.Hang()})
		if w, err = l.Service.StartAwaited(t.Context(), spawn.DefaultName, l.request("worker", "hang")); err != nil {
			t.Fatal(err)
		}
		defer w.Release()
		l.followup(w.Child, "more") // which the epoch does not end without
		if err := l.Service.Close(t.Context()); err != nil {
			t.Error(err)
		}
		_, err = w.Wait(t.Context())
		wantCode(t, err, subagent.CodeDraining)
	})
}
