package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

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

// holding is a step that waits for a gate and then says something.
func holding(g *scripted.Gate, text string) scripted.Step {
	return scripted.Step{scripted.StallUntil(g), scripted.SayLiteral(text)}
}

// journal is a log for people that a test reads.
type journal struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// heard returns the text of the notices in a log, in order.
func heard(lines []string) (notices []string) {
	for _, line := range lines {
		if text, ok := strings.CutPrefix(line, "subagent-settled: "); ok {
			notices = append(notices, text)
		}
	}
	return notices
}

// NOTE-01, NOTE-02, NOTE-03, NOTE-04, NOTE-06, NOTE-07, NOTE-08, EVT-21, EVT-24, F-16, F-22, F-41, INT-17,
// OBS-19, B-15, B-32: what a parent hears of each way in which a child can end. Whoever tells it,
// the process in which that happened or the next one from the log, says the same.
func TestNoticeOutcomes(t *testing.T) {
	var reject, fail atomic.Bool
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, l *process) session.ID
		want []string // behind the child's name
	}{
		{"finished, told or not by a report", func(_ *testing.T, l *process) session.ID { return l.start("c", "say").Child },
			[]string{"has finished.\nIts closing message:said"}},
		{"without a word", func(_ *testing.T, l *process) session.ID { return l.start("c", "nothing").Child },
			[]string{"has finished.\nIt left no closing message."}},
		{"out of room", func(_ *testing.T, l *process) session.ID { return l.start("c", "long").Child },
			[]string{"ran out of room: its answer reached the token limit and is not complete.\nIts closing message:so far"}},
		{"declined", func(_ *testing.T, l *process) session.ID { return l.start("c", "bad").Child },
			[]string{"declined the work.\nIts closing message:no"}},
		{"failed", func(_ *testing.T, l *process) session.ID { return l.start("c", "fail").Child },
			[]string{"failed: SERVER_ERROR: broke\nIt left no closing message."}},
		{"rejected before its first step", func(_ *testing.T, l *process) session.ID {
			reject.Store(true)
			id := l.start("c", "say").Child
			synctest.Wait()
			reject.Store(false)
			return id
		}, []string{"declined the work.\nIt left no closing message."}},
		{"failed before a step, behind a turn that was fine", func(_ *testing.T, l *process) session.ID {
			g := &scripted.Gate{}
			l.Answer("slow", holding(g, "fine"))
			id := l.start("c", "slow").Child
			l.followup(id, "say")
			synctest.Wait()
			fail.Store(true)
			g.Open()
			synctest.Wait()
			fail.Store(false)
			return id
		}, []string{"failed: UNKNOWN: no disk\nIts closing message:fine"}},
		{"an epoch that says nothing does not repeat what was said before", func(_ *testing.T, l *process) session.ID {
			id := l.start("c", "say").Child
			synctest.Wait()
			l.followup(id, "nothing")
			return id
		}, []string{"has finished.\nIts closing message:said", "has finished.\nIt left no closing message."}},
		{"interrupted in its turn, with a queue", func(t *testing.T, l *process) session.ID {
			id := l.start("c", "hang").Child
			l.followup(id, "say")
			synctest.Wait()
			if err := l.Host.Interrupt(l.parent.ID(), id); err != nil {
				t.Error(err)
			}
			return id
		}, []string{"was stopped before it was done. 1 message(s) that were sent to it were not taken up.\nIt left no closing message."}},
		{"drained in its turn, with a queue", func(t *testing.T, l *process) session.ID {
			id := l.start("c", "hang").Child
			l.followup(id, "say")
			l.followup(id, "say")
			synctest.Wait()
			if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, id); err != nil {
				t.Error(err)
			}
			return id
		}, []string{"was stopped before it was done. 2 message(s) that were sent to it were not taken up.\nIt left no closing message."}},
		{"what was discarded counts once", func(t *testing.T, l *process) session.ID {
			id := l.start("c", "hang").Child
			l.followup(id, "say")
			synctest.Wait()
			if err := subagent.NewChildDrainer(l.Service).Drain(t.Context(), l.parent, id); err != nil {
				t.Error(err)
			}
			l.followup(id, "say")
			return id
		}, []string{
			"was stopped before it was done. 1 message(s) that were sent to it were not taken up.\nIt left no closing message.",
			"has finished.\nIts closing message:said",
		}},
		{"drained before its first step", func(t *testing.T, l *process) session.ID {
			remove := l.Agents.AddHooks(agent.Hooks{Inbox: func(a *agent.Agent, e agent.InboxEvent) {
				if e.Change == agent.InboxEnqueue && a != l.parent {
					if err := a.Cancel(session.Cause{Kind: session.CauseParent}, false); err != nil {
						t.Error(err)
					}
				}
			}})
			id := l.start("c", "say").Child
			synctest.Wait()
			remove()
			return id
		}, []string{"was stopped before it was done. 1 message(s) that were sent to it were not taken up.\nIt left no closing message."}},
	} {
		for name, silent := range map[string]bool{"at once": false, "by the next process": true} {
			t.Run(tc.name+", "+name, func(t *testing.T) {
				onMachine(t, func(t *testing.T, m *machine) {
					p := m.boot(subagenttest.Options{NoNotices: silent}, nil)
					p.Answer("say", scripted.Step{scripted.SayLiteral("said")})
					p.Answer("nothing", scripted.Step{scripted.Empty()})
					p.Answer("long", scripted.Step{scripted.SayLiteral("so far"), scripted.MaxTokens()})
					p.Answer("bad", scripted.Step{scripted.Refuse("no")})
					p.Answer("fail", scripted.Step{scripted.Fail("SERVER_ERROR", "broke")})
					p.Answer("hang", scripted.Step{scripted.Hang()})
					p.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, s *agent.PreStep) error {
						switch {
						case s.Agent == p.parent:
						case reject.Load():
							s.Reject()
						case fail.Load():
							return errors.New("no disk")
						}
						return nil
					}})
					id := tc.run(t, p)
					synctest.Wait()
					name := `Subagent "c" (` + string(id) + ") "
					if silent {
						if got := heard(p.said("root")); got != nil {
							t.Errorf("P15: the root heard %q", got)
						}
						p.crash()
						p = m.boot(subagenttest.Options{}, nil)
						p.recover()
						synctest.Wait()
					}
					got := heard(p.said("root"))
					for i := range got {
						got[i] = strings.TrimPrefix(got[i], name)
					}
					if d := cmp.Diff(tc.want, got); d != "" {
						t.Errorf("the root heard:\n%s", d)
					}
				})
			})
		}
	}
}

// NOTE-04, NOTE-05: a reason that nobody knows reads as unfinished; the source names the
// child; the line for people is bounded, and so is what the child said.
func TestNoticeMessage_NOTE05(t *testing.T) {
	s := subagent.Settlement{ID: "settled:c:1", Child: "c", Label: strings.Repeat("ü\n", 200), StopReason: "paused"}
	m := s.Message()
	if text := message.JoinText(m.Content); !strings.Contains(text, "ended before it was done (paused)") {
		t.Errorf("it says %q", text)
	}
	src := m.Source
	if src.Kind != message.SourceSubagentSettled || src.Details().Form != message.FormNotice || src.Details().SenderSessionID != "c" || m.Role != message.RoleUser || m.ID != s.ID {
		t.Errorf("message %+v", m)
	}
	for _, reason := range []subagent.StopReason{"paused", subagent.StopCompleted, subagent.StopMaxTokens} {
		s.StopReason = reason
		sum := s.Message().Source.Details().Summary
		if n := utf8.RuneCountInString(sum); n != 120 || strings.Contains(sum, "\n") || !utf8.ValidString(sum) {
			t.Errorf("the summary has %d characters: %q", n, sum)
		}
	}
	s.Output = []message.Block{message.Text("begins " + strings.Repeat("é", 40_000) + " ends"), {Type: message.BlockReasoning, Text: "secret"}, message.Text("")}
	blocks := s.Message().Content
	said := blocks[len(blocks)-1].Text
	if len(blocks) != 2 || len(said) > 64<<10 || !utf8.ValidString(said) || !strings.HasPrefix(said, "begins é") || !strings.HasSuffix(said, "é ends") || !strings.Contains(said, "bytes left out") {
		t.Errorf("%d blocks, the last with %d bytes", len(blocks), len(said))
	}
}

// NOTE-09, NOTE-10, B-16: an idle parent gets a turn; a busy one joins it to its nearest
// step, and what comes together shares that.
func TestNoticeBusyParent_NOTE10(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		g := &scripted.Gate{}
		l.Answer("work", holding(g, "worked"))
		if err := l.parent.Followup(agent.UserText("work")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		one, two := l.start("one", "go"), l.start("two", "go")
		synctest.Wait()
		g.Open()
		synctest.Wait()
		turns, steps := 0, 0
		for e := range l.parent.Session().Events(0) {
			switch e.Payload().(type) {
			case *session.TurnStart:
				turns++
			case *session.StepStart:
				steps++
			}
		}
		n := entered(l.parent.Session())
		if turns != 1 || steps != 2 || n[session.SettlementID(one.Child, 1)] != 1 || n[session.SettlementID(two.Child, 1)] != 1 {
			t.Errorf("%d turns, %d steps, %q", turns, steps, l.said(l.parent.ID()))
		}
	})
}

// NOTE-11, NOTE-12, EVT-20, EVT-22, EVT-23, TEAR-04, F-18, F-19, F-21: the order in which a
// child ends. Its settled event is stored while it is registered, then it goes; its parent is
// told while it still owns it, and hears before the end edge; a parent in maintenance does
// not settle before it has read that.
func TestNoticeOrder_EVT20(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		gate, maintained := make(chan struct{}), make(chan struct{})
		var a *agent.Agent
		w := &watch{}
		note := func(s string) { w.note("told " + s) }
		p.Service.AddHooks(subagent.Hooks{Ended: func(e subagent.EndEdge) {
			_, live := p.Agents.Get(e.ID)
			note("end " + e.Label + map[bool]string{true: ", live"}[live])
		}}, nil)
		p.Agents.AddHooks(agent.Hooks{
			Inbox: func(b *agent.Agent, e agent.InboxEvent) {
				if e.Message.Source.Kind == message.SourceSubagentSettled {
					note(strings.TrimPrefix(string(e.Change), "agent/inbox/") + " to " + string(b.ID()))
				}
			},
			Disposed: func(b *agent.Agent) {
				if e := m.stored(b.ID()).Epochs(); e.Settled == 1 && !e.Worked {
					note("gone " + string(b.ID()))
				}
			},
			Status: func(b *agent.Agent, s agent.Status) {
				// The parent in the middle goes into maintenance when its turn is over.
				if a == nil && s == agent.Idle && b.ID() == "a" {
					a = b
					go func() {
						if err := b.RunMaintenance(context.Background(), func(context.Context) error { <-gate; return nil }); err != nil {
							t.Error(err)
						}
						close(maintained)
					}()
				}
			},
		})
		g := &scripted.Gate{}
		p.Answer("dig", holding(g, "dug"))
		p.work()
		if a == nil || a.Status() != agent.Idle {
			t.Fatal("the middle is not idle")
		}
		g.Open()
		synctest.Wait()
		if _, live := p.Agents.Get("a"); !live {
			t.Error("NOTE-12: it settled while it had something to read")
		}
		want := []string{"gone a-child", "enqueue to a", "end below"}
		if d := cmp.Diff(want, w.list("told")); d != "" {
			t.Errorf("told:\n%s", d)
		}
		close(gate)
		<-maintained
		synctest.Wait()
		want = append(want, "dequeue to a", "gone a", "enqueue to root", "end lead", "dequeue to root")
		told := w.list("told")
		slices.Sort(want[3:])
		slices.Sort(told[3:])
		if d := cmp.Diff(want, told); d != "" {
			t.Errorf("told:\n%s", d)
		}
		p.stop()
		m.atRest()
	})
}

// NOTE-13…15 as design § 4 has it, TEAR-13: a parent that is closing is sent nothing, and
// finds what its child came to when it is next opened; one that is not live too. Nothing is
// logged about that.
func TestNoticeClosingParent(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *process){
		"the middle is closed": func(t *testing.T, p *process) {
			if err := p.Host.Close(t.Context(), "root", "a"); err != nil {
				t.Error(err)
			}
		},
		"the process ends": func(*testing.T, *process) {},
	} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				j := &journal{}
				p := m.boot(subagenttest.Options{Logger: j.logger()}, nil)
				p.Answer("dig", scripted.Step{scripted.SayLiteral("so far"), scripted.Hang()})
				p.work()
				end(t, p)
				synctest.Wait()
				for e := range m.stored("a").Events(0) {
					if s, ok := e.Payload().(*session.InboxSpliced); ok && len(s.Inserted) > 0 && isNotice(s.Inserted[0].ID) {
						t.Error("a notice was put into what is closing")
					}
				}
				if n := m.stored("a-child").Epochs().Settled; n != map[string]int64{"the middle is closed": 1}[name] {
					t.Errorf("%d epochs", n)
				}
				p.stop()
				if s := j.String(); s != "" {
					t.Errorf("logged: %s", s)
				}
				q := m.boot(subagenttest.Options{}, nil)
				q.recover()
				q.parent.Wake()
				synctest.Wait()
				q.followup("a", "go on") // who has heard of nothing yet hears it now
				synctest.Wait()
				q.stop()
				m.atRest()
				m.quiet()
			})
		})
	}
}

// NOTE-15, NOTE-16: a parent that is gone is passed over in silence; one that cannot take
// the message is logged. The child ends as it would have, and nothing is lost.
func TestNoticeParentFails_NOTE16(t *testing.T) {
	for name, gone := range map[string]bool{"gone": true, "being disposed": true, "it cannot be written": false} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				j := &journal{}
				broken := !gone
				p := m.boot(subagenttest.Options{Logger: j.logger(), Validators: []session.Validator{func(h *session.Header, e session.Event) error {
					if s, ok := e.Payload().(*session.InboxSpliced); ok && broken && h.ID == "root" && len(s.Inserted) > 0 {
						return errors.New("no more room")
					}
					return nil
				}}}, nil)
				g := &scripted.Gate{}
				p.Answer("go", holding(g, "done"))
				acc := p.start("worker", "go")
				synctest.Wait()
				held := make(chan struct{})
				switch name {
				case "gone":
					if err := p.parent.Dispose(t.Context(), true); err != nil {
						t.Fatal(err)
					}
				case "being disposed":
					if _, err := p.parent.AddWork(agent.Work{Stop: func() {}, Join: func() { <-held }}); err != nil {
						t.Fatal(err)
					}
					p.parent.CloseAdmission(true)
				}
				g.Open()
				synctest.Wait()
				close(held)
				synctest.Wait()
				edges := p.Lifecycle.Edges()
				if len(edges) != 2 || edges[1].End.StopReason != subagent.StopCompleted || message.JoinText(edges[1].End.Output) != "done" {
					t.Errorf("edges: %+v", edges)
				}
				if logged := j.String(); (logged == "") != gone || !gone && !strings.Contains(logged, "no more room") {
					t.Errorf("logged %q", logged)
				}
				want := 1
				if broken {
					// The next turn tries again.
					broken, want = false, 0
					if err := p.parent.Accept(t.Context(), agent.UserText("next"), session.NextTurn); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if err := p.parent.Session().Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				p.crash()
				q := m.boot(subagenttest.Options{}, nil)
				if r := q.recover(); r.Notices != want {
					t.Errorf("recovered %+v", r)
				}
				synctest.Wait()
				q.stop()
				m.atRest(acc)
			})
		})
	}
}

// design § 4, FUP-32's exception: a notice that is discarded unread is owed again under the
// same id. It wakes nobody, and goes out with the next turn; or in the next process.
func TestNoticeDiscarded(t *testing.T) {
	discard := splices(func(p *session.InboxSpliced) bool { return p.Canceled })
	for name, tc := range map[string]struct {
		crash  bool // right behind the discard
		before bool // the notice was sent by an earlier process
	}{
		"in this process":               {},
		"and the process is killed":     {crash: true},
		"sent by an earlier process":    {before: true},
		"of an earlier one, and killed": {before: true, crash: true},
	} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				at := func(_ int, id session.ID, events []session.Event) cut {
					if tc.crash && id == "root" && holds(events, discard) {
						return behind
					}
					return goOn
				}
				busy := func(p *process) {
					p.Answer("work", scripted.Step{scripted.Hang()})
					if err := p.parent.Followup(agent.UserText("work")); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				first := at
				if tc.before {
					first = nil
				}
				p := m.boot(subagenttest.Options{}, first)
				busy(p)
				acc := p.start("worker", "go")
				synctest.Wait()
				if tc.before {
					p.stop()
					p = m.boot(subagenttest.Options{}, at)
					// It knows of its children, and finds that this waits already.
					if r := p.recover(); r.Notices != 0 {
						t.Errorf("recovered %+v", r)
					}
				}
				if n := len(p.parent.Session().Inbox(session.NextStep)); n != 1 {
					t.Fatalf("%d messages wait", n)
				}
				if err := p.parent.Cancel(session.Cause{Kind: session.CauseUser}, false); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if p.parent.Status() != agent.Idle || entered(p.parent.Session())[session.SettlementID(acc.Child, 1)] != 0 {
					t.Error("what was discarded came back by itself")
				}
				if tc.crash {
					if err := p.parent.Session().Flush(t.Context()); err == nil {
						t.Error("the process was not killed")
					}
					p.crash()
					p = m.boot(subagenttest.Options{}, nil)
				}
				// The next turn of any kind takes it, in its first step.
				if err := p.parent.Followup(agent.UserText("next")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				lines := p.said("root")
				lines = lines[len(lines)-3:]
				if heard(lines) == nil || !slices.Contains(lines, "user: next") || lines[2] != "answer: noted" {
					t.Errorf("the root's log: %q", p.said("root"))
				}
				p.stop()
				m.atRest(acc)
				m.quiet()
			})
		})
	}
}

// design § 4, Settlement is derived: while a child is being released its parent reads the
// logs of its children. It hears of the child once, whoever comes first.
func TestNoticeNaturalAndReconciled(t *testing.T) {
	for name, discard := range map[string]bool{"taken": false, "discarded": true} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				p := m.boot(subagenttest.Options{NoNotices: true}, nil)
				acc := p.start("worker", "go")
				synctest.Wait()
				p.stop()
				q := m.boot(subagenttest.Options{}, nil)
				gate := make(chan struct{})
				q.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) {
					return func() error { <-gate; return nil }, nil
				})
				if _, err := q.Host.Send(t.Context(), "root", acc.Child, say("again")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // its settlement is stored, and it is held up
				if n := m.stored(acc.Child).Epochs().Settled; n != 2 {
					t.Fatalf("%d epochs", n)
				}
				if discard {
					q.parent.AddHooks(agent.Hooks{PreStep: func(context.Context, *agent.PreStep) error { <-gate; return nil }})
				}
				if r := q.recover(); r.Notices != 2 {
					t.Errorf("recovered %+v", r)
				}
				synctest.Wait()
				close(gate)
				synctest.Wait()
				q.parent.Wake()
				synctest.Wait()
				q.stop()
				m.atRest(acc)
				m.quiet()
			})
		})
	}
}

// The same where the notice that the reading found waits, or was discarded and is owed
// again, by the time that the child is released.
func TestNoticeOwedOnce(t *testing.T) {
	for name, discard := range map[string]bool{"it waits": false, "it is owed": true} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				j := &journal{}
				p := m.boot(subagenttest.Options{NoNotices: true}, nil)
				acc := p.start("worker", "go")
				synctest.Wait()
				p.stop()
				q := m.boot(subagenttest.Options{Logger: j.logger()}, nil)
				gate := make(chan struct{})
				remove := q.Service.AddSetup(func(context.Context, *agent.Agent) (func() error, error) {
					return func() error { <-gate; return nil }, nil
				})
				if _, err := q.Host.Send(t.Context(), "root", acc.Child, say("again")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				// The turn that opens cannot read, and goes on; whoever starts a child asks again.
				q.cut.list = errors.New("not now")
				g := &scripted.Gate{}
				q.Answer("work", holding(g, "worked"))
				if err := q.parent.Followup(agent.UserText("work")); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if s := j.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "not now") {
					t.Errorf("logged: %s", s)
				}
				_, err := q.Service.StartContinuable(t.Context(), spawn.DefaultName, q.request("other", "go"))
				if err == nil || !strings.Contains(err.Error(), "not now") {
					t.Errorf("a start that cannot read: %v", err)
				}
				q.cut.list = nil
				q.Answer("hold", scripted.Step{scripted.Hang()})
				q.start("other", "hold")
				if n := len(q.parent.Session().Inbox(session.NextStep)); n != 2 {
					t.Errorf("%d notices wait", n)
				}
				if discard {
					if err := q.parent.Cancel(session.Cause{Kind: session.CauseUser}, false); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				close(gate)
				synctest.Wait()
				if discard {
					if err := q.parent.Followup(agent.UserText("next")); err != nil {
						t.Fatal(err)
					}
				}
				g.Open()
				synctest.Wait()
				if s := j.String(); strings.Count(s, "\n") != 1 {
					t.Errorf("logged: %s", s)
				}
				if err := remove(); err != nil {
					t.Error(err)
				}
				q.stop()
				q = m.boot(subagenttest.Options{}, nil)
				q.recover()
				q.parent.Wake()
				synctest.Wait()
				q.stop()
				m.atRest(acc)
			})
		})
	}
}

// A parent of an earlier process that was not recovered hears with its first turn, whoever
// wakes it (design § 4: on resume, wake or start).
func TestNoticeOnWake(t *testing.T) {
	for name, act := range map[string]func(*process){
		"a person's prompt": func(q *process) {
			if err := q.parent.Followup(agent.UserText("hello")); err != nil {
				q.t.Error(err)
			}
		},
		"a start": func(q *process) { q.start("another", "go") },
		"a follow-up": func(q *process) {
			q.followup(q.m.children()[0], "more")
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				p := m.boot(subagenttest.Options{NoNotices: true}, nil)
				acc := p.start("worker", "go")
				synctest.Wait()
				p.crash()
				q := m.boot(subagenttest.Options{}, nil)
				act(q)
				synctest.Wait()
				q.stop()
				m.atRest(acc)
				m.quiet()
			})
		})
	}
}

// F-17, CAN-12: the caller's ctx ends while it is read what is owed to the parent: the caller gets
// its cause, exactly, nothing is accepted, and the next call reads again.
func TestNoticeReadingCancelled(t *testing.T) {
	for _, call := range []string{"follow up", "start"} {
		onMachine(t, func(t *testing.T, m *machine) {
			p := m.boot(subagenttest.Options{NoNotices: true}, nil)
			acc := p.start("worker", "go")
			synctest.Wait()
			p.crash()
			q := m.boot(subagenttest.Options{}, nil)
			q.Answer("hang", scripted.Step{scripted.Hang()})
			if _, err := q.Host.Send(t.Context(), "root", acc.Child, say("hang")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			c, _ := q.Agents.Get(acc.Child)
			head := c.Session().Head()
			cause := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			q.cut.listed = func() { cancel(cause) }
			var err error
			if call == "start" {
				_, err = q.Service.StartContinuable(ctx, spawn.DefaultName, q.request("other", "go"))
			} else {
				_, err = q.Service.Followup(ctx, q.parent, acc.Child, say("more"), message.UserSource())
			}
			if err != cause { //nolint:errorlint // the very value
				t.Errorf("%s: %v", call, err)
			}
			if n := c.Session().Head(); n != head || len(m.children()) != 1 {
				t.Errorf("%s: something was accepted", call)
			}
			q.cut.listed = nil
			id := q.followup(acc.Child, "more")
			if err := q.Host.Interrupt("root", acc.Child); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			last := q.followup(acc.Child, "last")
			synctest.Wait()
			q.stop()
			m.atRest(acc, subagent.Accepted{Child: acc.Child, Message: id}, subagent.Accepted{Child: acc.Child, Message: last})
		})
	}
}

// design § 4: if the end of an epoch cannot be stored, a live parent is told under another
// id, and the epoch counts as cut; if the disposal could store it after all, it is as usual.
// TEAR-06, TEAR-07, TEAR-14, F-27, AMB-01, B-10: that changes neither the reason nor the
// outcome, and it is logged.
func TestNoticeUnsaved_TEAR07(t *testing.T) {
	for name, tc := range map[string]struct {
		fails  int // appends with the settled event
		prefix string
	}{
		"for good":              {1000, "unsaved:"},
		"until it was disposed": {1, "settled:"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New()
				store := storetest.NewFaulty(inner)
				j := &journal{}
				sys := subagenttest.NewSystem(t, subagenttest.Options{Store: store, Projections: units(t), Logger: j.logger()})
				l := &nest{System: sys, t: t}
				l.Register(t, spawn.New(""))
				l.Otherwise(scripted.Step{scripted.SayLiteral("noted")})
				l.parent = l.Parent(t)
				g := &scripted.Gate{}
				l.Answer("go", holding(g, "done"))
				acc := l.start("worker", "go")
				synctest.Wait()
				n := 0
				store.Plan(func(p storetest.Point) storetest.Fault {
					if p.Op == storetest.OpAppend && p.ID == acc.Child {
						if n++; n <= tc.fails {
							return storetest.Fault{Err: errors.New("disk full")}
						}
					}
					return storetest.Fault{}
				})
				g.Open()
				synctest.Wait()
				var ids []string
				for id := range entered(l.parent.Session()) {
					ids = append(ids, string(id))
				}
				if len(ids) != 1 || !strings.HasPrefix(ids[0], tc.prefix+string(acc.Child)+":") {
					t.Errorf("the parent heard %q", ids)
				}
				got := heard(l.said(l.parent.ID()))
				if len(got) != 1 || !strings.HasSuffix(got[0], "has finished.\nIts closing message:done") {
					t.Errorf("it says %q", got)
				}
				edges := l.Lifecycle.Edges()
				if len(edges) != 2 || edges[1].End.StopReason != subagent.StopCompleted {
					t.Errorf("edges: %+v %+v", edges, edges[1].End)
				}
				if !strings.Contains(j.String(), "disk full") {
					t.Error("it is not logged")
				}
				store.Plan(nil)
				if err := store.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
				// Of a child whose end is not stored a follow-up goes on with the same epoch.
				l.followup(acc.Child, "again")
				synctest.Wait()
				edges = l.Lifecycle.Edges()
				want := int64(2)
				if tc.prefix == "unsaved:" {
					want = 1
				}
				if len(edges) != 4 || edges[2].Start.Epoch != want {
					t.Errorf("edges: %+v", edges)
				}
				if n := entered(l.parent.Session())[session.SettlementID(acc.Child, want)]; n != 1 {
					t.Errorf("epoch %d was told %d times", want, n)
				}
			})
		})
	}
}
