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
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func (l *nest) report(child *agent.Agent, text string, how subagent.Delivery) message.ID {
	l.t.Helper()
	id, err := l.Service.Report(l.t.Context(), child, say(text), how)
	if err != nil {
		l.t.Fatalf("report %q: %v", text, err)
	}
	return id
}

// kinds returns the kinds of messages that entered each turn of a log, with the steps apart.
func kinds(s *session.Session) (turns []string) {
	for e := range s.Events(s.Header().SeedLength) {
		switch p := e.Payload().(type) {
		case *session.TurnStart:
			turns = append(turns, "")
		case *session.StepStart:
			turns[len(turns)-1] += "|"
		case *session.UserMessage:
			if p.Message.Source.Kind != message.SourcePlugin {
				turns[len(turns)-1] += " " + strings.TrimPrefix(string(p.Message.Source.Kind), "subagent-")
			}
		}
	}
	return turns
}

// REP-04…08, REP-11, REP-12, REP-19, P10, P13, P14, F-45, B-39, AMB-22: where a report goes under
// each delivery, to a parent that is idle and to one that is at work; the child's
// settlement comes behind its reports under all of them.
func TestReportDelivery_REP06(t *testing.T) {
	for _, tc := range []struct {
		how  subagent.Delivery
		busy bool
		want []string // turns of the parent
		idle bool     // the parent stays idle until the child has settled
	}{
		{subagent.DeliverQuiet, false, []string{"| report report settled"}, true},
		{subagent.DeliverQuiet, true, []string{"| user| report report settled"}, false},
		{subagent.DeliverWakeup, false, []string{"| report", "| report", "| settled"}, false},
		{subagent.DeliverWakeup, true, []string{"| user", "| report", "| report", "| settled"}, false},
		{subagent.DeliverNextStep, false, []string{"| report", "| report", "| settled"}, false},
		{subagent.DeliverNextStep, true, []string{"| user| report report settled"}, false},
	} {
		t.Run(string(tc.how)+map[bool]string{true: ", busy"}[tc.busy], func(t *testing.T) {
			inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
				g, gp := &scripted.Gate{}, &scripted.Gate{}
				l.Answer("go", holding(g, "done"))
				l.Answer("work", holding(gp, "worked"))
				if tc.busy {
					if err := l.parent.Followup(agent.UserText("work")); err != nil {
						t.Fatal(err)
					}
				}
				acc := l.start("worker", "go")
				synctest.Wait()
				c, _ := l.Agents.Get(acc.Child)
				calls := l.Adapter.Started()
				one := l.report(c, "one", tc.how)
				if s := stored(t, l, l.parent.ID()); len(s.Inbox(session.NextStep))+len(s.Inbox(session.NextTurn))+entered(s)[one] != 1 {
					t.Error("B-39: it is not in the stored log when the call returns")
				}
				synctest.Wait()
				two := l.report(c, "two", tc.how)
				synctest.Wait()
				if idle := l.parent.Status() == agent.Idle && l.Adapter.Started() == calls; tc.idle && !idle {
					t.Error("REP-06: it woke the parent")
				}
				if c.Status() != agent.Running {
					t.Error("REP-09: the report ended the child's turn")
				}
				l.followup(acc.Child, "and this") // it goes on and takes more work
				g.Open()
				synctest.Wait()
				gp.Open()
				synctest.Wait()
				if d := cmp.Diff(tc.want, kinds(l.parent.Session())); d != "" {
					t.Errorf("the parent's turns:\n%s", d)
				}
				var got []message.ID
				for e := range l.parent.Session().Events(0) {
					p, ok := e.Payload().(*session.UserMessage)
					if !ok || p.Message.Source.Kind != message.SourceSubagentReport {
						continue
					}
					got = append(got, p.Message.ID)
					if src := p.Message.Source; src.Details().Form != message.FormRelay || src.Details().SenderSessionID != string(acc.Child) || p.Message.Role != message.RoleUser {
						t.Errorf("source %+v", src)
					}
					if c := p.Message.Content; len(c) != 2 || c[1].Text != "one" && c[1].Text != "two" || !strings.Contains(c[0].Text, string(acc.Child)) {
						t.Errorf("content %+v", c)
					}
				}
				if d := cmp.Diff([]message.ID{one, two}, got); d != "" {
					t.Errorf("the reports:\n%s", d)
				}
				if got := l.said(acc.Child); !slices.Contains(got, "user: and this") && !slices.Contains(got, "coordinator: and this") {
					t.Errorf("the child's log: %q", got)
				}
			})
		})
	}
}

// REP-12, P14 over a restart: a report that waits for a turn of its own is read before
// what the next process finds out about its child.
func TestReportBeforeSettlementOverRestart_REP12(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
			if id == "c" && holds(events, isSettled) {
				return behind
			}
			return goOn
		})
		g := &scripted.Gate{}
		p.Answer("go", holding(g, "done"))
		p.Answer("work", scripted.Step{scripted.Hang()})
		if err := p.parent.Followup(agent.UserText("work")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		req := p.request("c", "go")
		req.ID = "c"
		acc, err := p.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c, _ := p.Agents.Get("c")
		p.report(c, "one", subagent.DeliverWakeup)
		g.Open()
		synctest.Wait()
		p.crash()
		q := m.boot(subagenttest.Options{}, nil)
		if r := q.recover(); r.Notices != 1 {
			t.Errorf("recovered %+v", r)
		}
		q.parent.Wake()
		synctest.Wait()
		turns := kinds(q.parent.Session())
		if d := cmp.Diff([]string{"| report", "| settled"}, turns[len(turns)-2:]); d != "" {
			t.Errorf("the parent's turns:\n%s", d)
		}
		q.stop()
		m.atRest(acc)
	})
}

// REP-02, REP-13, REP-14, B-41: a report goes to the direct parent alone, and a managed one does not
// settle before the wake.
func TestReportNested_REP13(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		a := l.below(l.parent, "a")
		b := l.below(a, "b")
		if err := l.Host.Interrupt(l.parent.ID(), "a"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		hold := make(chan struct{})
		l.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error {
			if p.Agent == a {
				<-hold
			}
			return nil
		}})
		id := l.report(b, "found", subagent.DeliverNextStep)
		if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), a, "b"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := l.live("a"); got == nil {
			t.Error("REP-14: the parent settled with a report to read")
		}
		close(hold)
		synctest.Wait()
		if n := entered(stored(t, l, "a"))[id]; n != 1 {
			t.Errorf("the parent read it %d times", n)
		}
		if n := entered(l.parent.Session())[id]; n != 0 {
			t.Error("the root read it")
		}
	})
}

// REP-14: a report is work of its parent as other messages are: where that was opened only to hear of its child, it
// has an end of its own then, also in a deployment without notices.
func TestReportToWhoWasOpenedToHear_REP14(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		silent := subagenttest.Options{NoNotices: true}
		p := m.boot(silent, nil)
		p.three()
		mid, _ := p.Agents.Get("mid")
		if _, err := p.Service.Followup(t.Context(), mid, "leaf", say("more"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		p.crash()
		p = m.boot(silent, nil)
		if _, err := p.Host.Send(t.Context(), "root", "mid", say("never mind the leaf")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.stop()
		before := m.stored("mid").Epochs().Settled
		p = m.boot(silent, nil)
		g := &scripted.Gate{}
		p.Answer("more", holding(g, "found it"))
		p.recover()
		synctest.Wait()
		leaf, live := p.Agents.Get("leaf")
		if !live || p.live("mid") == nil {
			t.Fatal("mid and leaf are not both live")
		}
		id := p.report(leaf, "so far", subagent.DeliverWakeup)
		g.Open()
		synctest.Wait()
		if got := p.live("mid", "leaf"); got != nil {
			t.Errorf("live: %q", got)
		}
		s := m.stored("mid")
		if e := s.Epochs(); entered(s)[id] != 1 || e.Settled != before+1 || e.Worked {
			t.Errorf("mid read it %d times; its epochs were %d, are %+v", entered(s)[id], before, e)
		}
		p.stop()
	})
}

// REP-01, REP-03, REP-15…18, REP-20, REP-21, REP-23, REP-24, P16, SCOPE-13, CAN-14, CAN-20, P10, B-37, OBS-17: who can
// report, in the order of the checks; what is refused leaves nothing.
func TestReportRefused_REP15(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		c := l.below(l.parent, "c")
		run := l.Start(t, t.Context(), spawn.DefaultName, subagenttest.Request(l.parent, "hang"))
		once, _ := run.Local()
		synctest.Wait()
		before := l.parent.Session().Head()
		cause := errors.New("enough")
		over, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		report := func(ctx context.Context, a *agent.Agent, text string, how subagent.Delivery) error {
			id, err := l.Service.Report(ctx, a, say(text), how)
			if (err == nil) != (id != "") {
				t.Errorf("id %q with %v", id, err)
			}
			return err
		}
		for _, how := range []subagent.Delivery{"", "wake", "Quiet"} {
			wantCode(t, report(over, once, "x", how), subagent.CodeInvalidRequest)
		}
		wantCode(t, report(over, once, "", subagent.DeliverQuiet), subagent.CodeInvalidRequest)
		if _, err := l.Service.Report(t.Context(), c, nil, subagent.DeliverQuiet); !errors.Is(err, subagent.ErrInvalidRequest) {
			t.Errorf("no content: %v", err)
		}
		if err := report(over, once, "x", subagent.DeliverQuiet); !errors.Is(err, cause) {
			t.Errorf("CAN-14: %v", err)
		}
		for name, a := range map[string]*agent.Agent{"nobody": nil, "a root": l.parent, "a one-shot child": once} {
			if err := report(t.Context(), a, "x", subagent.DeliverQuiet); !errors.Is(err, subagent.ErrUnauthorized) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, "c"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantCode(t, report(t.Context(), c, "x", subagent.DeliverQuiet), subagent.CodeUnauthorized) // it is stale
		stays := make(chan struct{})
		l.Answer("does not listen", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
			<-stays
			return scripted.Step{scripted.SayLiteral("over")}, nil
		})})
		l.followup("c", "does not listen")
		synctest.Wait()
		wantCode(t, report(t.Context(), c, "x", subagent.DeliverQuiet), subagent.CodeUnauthorized) // another bears its id
		c, _ = l.Agents.Get("c")
		for e := range l.parent.Session().Events(before) {
			if s, ok := e.Payload().(*session.InboxSpliced); ok && len(s.Inserted) > 0 && s.Inserted[0].Source.Kind == message.SourceSubagentReport {
				t.Error("a refused report is in the parent's log")
			}
		}
		// The drain comes before whose child it is.
		wait := l.Service.DrainDescendants(l.parent)
		wantCode(t, report(t.Context(), c, "x", subagent.DeliverQuiet), subagent.CodeDraining)
		close(stays)
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	// The parent: gone, being disposed, or not able to write.
	for name, spoil := range map[string]func(t *testing.T, l *nest, broken *bool){
		"gone": func(t *testing.T, l *nest, _ *bool) {
			if err := l.parent.Dispose(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		},
		"being disposed": func(t *testing.T, l *nest, _ *bool) {
			hold := make(chan struct{})
			t.Cleanup(func() { close(hold) })
			if _, err := l.parent.AddWork(agent.Work{Stop: func() {}, Join: func() { <-hold }}); err != nil {
				t.Fatal(err)
			}
			l.parent.CloseAdmission(true)
		},
		"it cannot write": func(_ *testing.T, _ *nest, broken *bool) { *broken = true },
	} {
		t.Run(name, func(t *testing.T) {
			broken := false
			inNest(t, subagenttest.Options{Validators: []session.Validator{func(h *session.Header, e session.Event) error {
				if s, ok := e.Payload().(*session.InboxSpliced); ok && broken && h.ParentSession == "" && len(s.Inserted) > 0 {
					return errors.New("no more room")
				}
				return nil
			}}}, func(t *testing.T, l *nest) {
				c := l.below(l.parent, "c")
				spoil(t, l, &broken)
				_, err := l.Service.Report(t.Context(), c, say("x"), subagent.DeliverNextStep)
				wantCode(t, err, subagent.CodeParentUnavailable)
				if broken && !strings.Contains(err.Error(), "no more room") {
					t.Errorf("REP-18: the cause is lost: %v", err)
				}
				if n := len(l.parent.Session().Inbox(session.NextStep)); n != 0 {
					t.Errorf("%d messages wait", n)
				}
				if c.Status() != agent.Running {
					t.Error("the child was stopped")
				}
				broken = false
			})
		})
	}
}

// CAN-20, REP-05: the end of the caller's ctx behind the acceptance changes nothing; while
// the record is being stored, neither (design § 4: the sync decides).
func TestReportCtx_CAN20(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		ctx, cancel := context.WithCancel(t.Context())
		p := m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
			if id == "root" && holds(events, splices(func(p *session.InboxSpliced) bool {
				return len(p.Inserted) > 0 && p.Inserted[0].Source.Kind == message.SourceSubagentReport
			})) {
				cancel()
			}
			return goOn
		})
		c := p.below(p.parent, "c")
		id, err := p.Service.Report(ctx, c, say("found"), subagent.DeliverWakeup)
		if err != nil || ctx.Err() == nil {
			t.Fatalf("report: %v, ctx: %v", err, ctx.Err())
		}
		synctest.Wait()
		if n := entered(p.parent.Session())[id]; n != 1 {
			t.Errorf("it was read %d times", n)
		}
		if err := subagent.NewChildDrainer(p.Service).Drain(t.Context(), p.parent, "c"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.stop()
		m.atRest()
	})
}

// A report and the disposal of its child: it is accepted before or refused, and never
// lost in between; the settlement comes behind it.
func TestReportAgainstDisposal_REP16(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		gate := make(chan struct{})
		arrived := make(chan struct{}, 1)
		var p *process
		p = m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
			if id == "root" && holds(events, splices(func(p *session.InboxSpliced) bool {
				return len(p.Inserted) > 0 && p.Inserted[0].Source.Kind == message.SourceSubagentReport
			})) {
				p.cut.mu.Unlock()
				arrived <- struct{}{}
				<-gate
				p.cut.mu.Lock()
			}
			return goOn
		})
		c := p.below(p.parent, "c")
		var id message.ID
		reported := make(chan struct{})
		go func() {
			defer close(reported)
			id = p.report(c, "found", subagent.DeliverWakeup)
		}()
		<-arrived // its record is being written
		drained := make(chan error, 1)
		go func() {
			drained <- subagent.NewChildDrainer(p.Service).Drain(t.Context(), p.parent, "c")
		}()
		synctest.Wait()
		_, err := p.Service.Report(t.Context(), c, say("late"), subagent.DeliverWakeup)
		if !errors.Is(err, subagent.ErrActivationClosing) && !errors.Is(err, subagent.ErrUnauthorized) {
			t.Errorf("a late report: %v", err)
		}
		close(gate)
		<-reported
		if err := <-drained; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := entered(p.parent.Session())[id]; n != 1 {
			t.Errorf("it was read %d times", n)
		}
		if d := cmp.Diff([]string{"| report", "| settled"}, kinds(p.parent.Session())); d != "" {
			t.Errorf("the parent's turns:\n%s", d)
		}
		p.stop()
		m.atRest()
	})
}

// REP-10, P15: nobody reports by itself, and a deployment that switched the notice off sends
// nothing at all. REP-02, P07: a parent that is not live is not loaded for a report.
func TestReportNothingImplicit_REP10(t *testing.T) {
	inNest(t, subagenttest.Options{NoNotices: true}, func(t *testing.T, l *nest) {
		l.start("worker", "go")
		synctest.Wait()
		if n := l.parent.Session().Head(); n != 0 {
			t.Errorf("%d events in the parent's log: %q", n, subagenttest.Trace(l.parent.Session()))
		}
	})
}
