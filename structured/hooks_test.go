package structured_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/tool"
)

// SO-09…13, T29: what a hook does with the first accepted call decides; what was
// discarded comes back with no later call, also none of the same id.
func TestSO09PostExecute(t *testing.T) {
	// Every call of every answer has the same id, as some endpoints have it.
	same := func(args string) scripted.Step {
		return scripted.Recorded([]message.Message{{Role: message.RoleAssistant, Content: []message.Block{message.ToolCall("same", structured.ToolName, args)}}})[0]
	}
	block := func(context.Context, *tool.Call, tool.Result) tool.PostDecision { return tool.Block("not good enough") }
	for _, c := range []struct {
		name  string
		hook  tool.PostExecute // of the first call
		deny  bool             // of the second call
		steps []scripted.Step
		want  []string
		value string
	}{
		{"SO-10 blocked", block, false, []scripted.Step{same(`{"n":1}`), say("then not")},
			[]string{"asked", "DENIED", "asked", "reminded", "asked", "completed"}, ""},
		{"SO-11 reworded", func(context.Context, *tool.Call, tool.Result) tool.PostDecision {
			return tool.PostDecision{Content: []message.Block{message.Text("thanks")}}
		}, false, []scripted.Step{same(`{"n":1}`)}, []string{"asked", "thanks", "completed"}, `{"n":1}`},
		{"SO-09 another value for the model", func(context.Context, *tool.Call, tool.Result) tool.PostDecision {
			return tool.PostDecision{Value: "noted", HasValue: true}
		}, false, []scripted.Step{same(`{"n":1}`)}, []string{"asked", "noted", "completed"}, `{"n":1}`},
		{"SO-12 blocked, then invalid", block, false, []scripted.Step{same(`{"n":1}`), same(`{"n":"2"}`), say("then not")},
			[]string{"asked", "DENIED", "asked", "INVALID_ARGS", "asked", "reminded", "asked", "completed"}, ""},
		{"SO-12 blocked, then denied", block, true, []scripted.Step{same(`{"n":1}`), same(`{"n":2}`), say("then not")},
			[]string{"asked", "DENIED", "asked", "DENIED", "asked", "reminded", "asked", "completed"}, ""},
		{"SO-13 blocked, then valid", block, false, []scripted.Step{same(`{"n":1}`), same(`{"n":2}`)},
			[]string{"asked", "DENIED", "asked", ok, "completed"}, `{"n":2}`},
		{"a panic of the hook", func(context.Context, *tool.Call, tool.Result) tool.PostDecision { panic("broken") }, false,
			[]scripted.Step{same(`{"n":1}`), same(`{"n":2}`)}, []string{"asked", "INTERNAL", "asked", ok, "completed"}, `{"n":2}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				calls := 0
				w.Tools.Root().AddPreExecute(func(context.Context, *tool.Call) tool.Decision {
					if calls++; calls == 2 && c.deny {
						return tool.Deny("no")
					}
					return tool.Allow()
				})
				w.Tools.Root().AddPostExecute(func(ctx context.Context, call *tool.Call, r tool.Result) tool.PostDecision {
					if calls == 1 {
						return c.hook(ctx, call, r)
					}
					return tool.PostDecision{}
				})
				w.Answer("count", c.steps...)
				a, out := w.attached(countSchema)
				w.ask(a, "count")
				if diff := cmp.Diff(c.want, course(a)); diff != "" {
					t.Errorf("course (-want +got):\n%s", diff)
				}
				if got := string(out.Value()); got != c.value {
					t.Errorf("value = %s, want %s", got, c.value)
				}
			})
		})
	}
}

// SO-16: no hook that permits everything opens what an accepted answer has closed,
// and nobody is asked about it.
func TestSO16GuardStands(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("count", scripted.Step{use(`{"n":1}`), scripted.CallLiteral("touch", "{}"), use(`{"n":2}`)})
		a, out := w.attached(countSchema)
		var asked []string
		permit := func(context.Context, *tool.Call) tool.Decision { return tool.Allow() }
		a.Tools().AddPreExecute(permit)
		w.Tools.Root().AddPreExecute(permit)
		w.Tools.Root().AddPreExecute(func(_ context.Context, call *tool.Call) tool.Decision {
			if call.Name == "touch" {
				asked = append(asked, call.Name)
				return tool.Ask("may it?")
			}
			return tool.Allow()
		})
		w.ask(a, "count")
		if diff := cmp.Diff([]string{"asked", ok, "DENIED", "DENIED", "completed"}, course(a)); diff != "" {
			t.Errorf("course (-want +got):\n%s", diff)
		}
		for e := range a.Session().Events(0) {
			if e.Type == session.TypeApprovalAsked {
				t.Error("a person was asked about a call that is refused anyway")
			}
		}
		if len(w.ran) != 0 || len(asked) != 1 || string(out.Value()) != `{"n":1}` {
			t.Errorf("ran %q, hooks saw %q, value %s", w.ran, asked, out.Value())
		}
	})
}

// T18, SO-14: input that waits behind an accepted answer is still read, with the
// answer standing and the tools closed.
func TestSteeredBehindTheAnswer(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("count", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
			a := w.Agents.List()[0]
			return scripted.Step{use(`{"n":1}`)}, a.Steer(agent.UserText("more"))
		})})
		w.Answer("more", scripted.Step{use(`{"n":2}`), scripted.CallLiteral("look", "{}")}, say("fine"))
		a, out := w.attached(countSchema)
		w.ask(a, "count")
		if diff := cmp.Diff([]string{"asked", ok, "asked", "DENIED", "DENIED", "asked", "completed"}, course(a)); diff != "" {
			t.Errorf("course (-want +got):\n%s", diff)
		}
		if got := string(out.Value()); got != `{"n":1}` || len(w.ran) != 0 {
			t.Errorf("value %s, ran %q", got, w.ran)
		}
	})
}

// A further turn has an answer of its own: its first step voids the one before,
// opens the tools, and it is reminded once itself. A turn that is blocked takes no
// step, and so leaves the answer alone.
func TestTurns(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("one", scripted.Step{use(`{"n":1}`)})
		w.Answer("two", scripted.Step{scripted.CallLiteral("look", "{}")}, say("two"))
		w.Answer("three", say("three"), scripted.Step{use(`{"n":3}`)})
		a, out := w.attached(countSchema)
		w.ask(a, "one")
		remove := a.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error { p.Reject(); return nil }})
		w.ask(a, "blocked")
		remove()
		if got := string(out.Value()); got != `{"n":1}` {
			t.Errorf("after the blocked turn the value is %s", got)
		}
		w.ask(a, "two")
		if out.Value() != nil || out.Missing() == nil {
			t.Errorf("after the second turn the value is %s, missing %v", out.Value(), out.Missing())
		}
		w.ask(a, "three")
		want := []string{
			"asked", ok, "completed", "blocked", "asked", "look is done", "asked", "reminded", "asked", "completed",
			"asked", "reminded", "asked", ok, "completed",
		}
		if diff := cmp.Diff(want, course(a)); diff != "" {
			t.Errorf("course (-want +got):\n%s", diff)
		}
		if got := string(out.Value()); got != `{"n":3}` {
			t.Errorf("value = %s", got)
		}
	})
}

// SO-18: the reminder is a message of the log that says who wrote it, and the model
// reads it.
func TestSO18Reminder(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("count", say("one"))
		a, _ := w.attached(countSchema)
		w.ask(a, "count")
		req := w.Adapter.Calls()[1].Request
		m := req.Messages[len(req.Messages)-1]
		if m.Role != message.RoleUser || m.Source.Kind != message.SourcePlugin || m.Source.Details().Plugin != structured.Plugin || m.Source.Details().Form != message.FormInstructions {
			t.Errorf("the last message is %+v", m)
		}
		if !strings.Contains(message.JoinText(m.Content), "Call structured_output now") {
			t.Errorf("it says %q", message.JoinText(m.Content))
		}
	})
}

// A reminder that a cancel overtakes starts nothing, and Settle takes it back where
// the queue is kept.
func TestReminderIsOvertaken(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("count", say("one"))
		w.Answer("again", scripted.Step{use(`{"n":1}`)})
		a, out := w.attached(countSchema)
		remove := a.AddHooks(agent.Hooks{TurnStopping: func(_ context.Context, a *agent.Agent, _ session.EndKind) {
			if err := a.Cancel(session.Cause{Kind: session.CauseUser}, true); err != nil {
				t.Error(err)
			}
		}})
		w.ask(a, "count")
		remove()
		synctest.Wait()
		if diff := cmp.Diff([]string{"asked", "aborted"}, course(a)); diff != "" {
			t.Errorf("course (-want +got):\n%s", diff)
		}
		if n := len(a.Session().Inbox(session.NextStep)); n != 1 {
			t.Fatalf("%d messages wait, want the reminder", n)
		}
		if a.Wake() {
			t.Error("the reminder alone begins a turn")
		}
		for range 2 {
			if err := out.Settle(); err != nil {
				t.Error(err)
			}
		}
		if n := len(a.Session().Inbox(session.NextStep)); n != 0 {
			t.Errorf("%d messages wait", n)
		}
		w.ask(a, "again")
		if got := string(out.Value()); got != `{"n":1}` {
			t.Errorf("value = %s", got)
		}
		if err := out.Settle(); err != nil {
			t.Error(err)
		}
	})
}

// A cancelled turn is not reminded, and a reminder that the log refuses is told with
// what is missing.
func TestReminderNotGiven(t *testing.T) {
	bubble(t, func(w *world) {
		w.Answer("count", say("one"))
		cancelled := true
		// It comes before the hook of the output.
		w.Agents.AddHooks(agent.Hooks{TurnStopping: func(_ context.Context, a *agent.Agent, _ session.EndKind) {
			if !cancelled {
				return
			}
			if err := a.Cancel(session.Cause{Kind: session.CauseUser}, true); err != nil {
				t.Error(err)
			}
		}})
		a, out := w.attached(countSchema)
		w.ask(a, "count")
		if err := out.Missing(); err == nil || strings.Contains(err.Error(), "told to") {
			t.Errorf("missing = %v", err)
		}
		cancelled = false
		w.refuse = func(e session.Event) error {
			if p, ok := e.Payload().(*session.InboxSpliced); ok && len(p.Inserted) > 0 && p.Inserted[0].Source.Details().Plugin == structured.Plugin {
				return errors.New("no room for it")
			}
			return nil
		}
		w.ask(a, "count")
		if diff := cmp.Diff([]string{"asked", "completed", "asked", "completed"}, course(a)); diff != "" {
			t.Errorf("course (-want +got):\n%s", diff)
		}
		if err := out.Missing(); err == nil || !strings.Contains(err.Error(), "could not be told to: ") || !strings.Contains(err.Error(), "no room for it") {
			t.Errorf("missing = %v", err)
		}
	})
}

// An agent has one output, and a name that is taken in its own scope is refused.
func TestAttachRefused(t *testing.T) {
	bubble(t, func(w *world) {
		s, err := structured.Parse([]byte(countSchema))
		if err != nil {
			t.Fatal(err)
		}
		a, _ := w.attached(countSchema)
		if _, err := structured.Attach(a, s); err == nil || !strings.Contains(err.Error(), structured.ToolName) {
			t.Errorf("a second Attach = %v", err)
		}
		gone := w.Parent(t)
		gone.Tools().Close()
		if _, err := structured.Attach(gone, s); !errors.Is(err, tool.ErrClosed) {
			t.Errorf("Attach in a closed scope = %v", err)
		}
	})
}
