package job_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// promises is a world whose agents come with a log that promises jobs: a turn of
// theirs calls the tool promise, whose results name them.
func promises(t *testing.T, o subagenttest.Options, fn func(t *testing.T, w *world, parent func(ids ...string) *agent.Agent)) {
	t.Helper()
	o.Tools = append(o.Tools, tool.Definition{
		Name: "promise", Description: "names a job", Parameters: []byte(`{"type":"object","properties":{"id":{"type":"string"}}}`),
		Execute: func(_ context.Context, c *tool.Call) (any, error) {
			c.SetMeta([]byte(`{"kind":"background","jobId":` + strings.TrimSuffix(strings.TrimPrefix(string(c.Args), `{"id":`), "}") + `}`))
			return "promised", nil
		},
	})
	in(t, o, job.Config{}, func(t *testing.T, w *world) {
		fn(t, w, func(ids ...string) *agent.Agent {
			t.Helper()
			a := w.Parent(t)
			w.promise = ids
			w.say(a, "promise")
			return a
		})
	})
}

// special is the answer to a message that asks for a special one, or nil.
func (w *world) special(req *llm.Request) scripted.Step {
	switch last := req.Messages[len(req.Messages)-1]; message.JoinText(last.Content) {
	case "fail":
		return scripted.Step{scripted.Fail("AUTH", "no key")}
	case "refuse":
		return scripted.Step{scripted.Refuse("no")}
	case "overrun":
		return scripted.Step{scripted.SayLiteral("so far"), scripted.MaxTokens()}
	case "promise":
	default:
		return nil
	}
	var step scripted.Step
	for _, id := range w.promise {
		step = append(step, scripted.CallLiteral("promise", fmt.Sprintf(`{"id":%q}`, id)))
	}
	return step
}

// noticeOf is what a log may hold as the notice of a job, whoever wrote it.
func noticeOf(id string) message.Message {
	m := agent.UserText("x")
	m.ID = message.ID("job:" + id)
	m.Source = message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: job.Plugin, Form: message.FormNotice, Summary: "s"})
	return m
}

// D43: only what Start could have given is a job of the log: another spelling of a
// number would be a second job of that number, and one too large would be counted on
// from.
func TestPastIDs(t *testing.T) {
	bad := []string{"test-0", "test-+3", "test-03", "test--0", "test-1e3", "test-9007199254740992", "test-9223372036854775807", "test-18446744073709551617", "Test-4", "te st-4", "-4", "test"}
	promises(t, subagenttest.Options{}, func(t *testing.T, w *world, parent func(...string) *agent.Agent) {
		a := parent(bad...)
		for _, id := range bad {
			if err := a.Inject(noticeOf(id)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := w.jobs.Recover(a, false); n != 0 || err != nil {
			t.Errorf("recover: %d, %v", n, err)
		}
		for _, id := range bad {
			var unknown *job.UnknownError
			if _, err := w.jobs.Get(a, id); !errors.As(err, &unknown) || unknown.Why != fmt.Sprintf("you have no background job %q", id) {
				t.Errorf("get %s: %v", id, err)
			}
		}
		if g := w.start(a, "first"); g.id != "test-1" {
			t.Errorf("the next id is %q", g.id)
		}
	})
}

// D43: the largest number that a log can hold is not counted on from, and other kinds
// are not concerned.
func TestPastLargestID(t *testing.T) {
	promises(t, subagenttest.Options{}, func(t *testing.T, w *world, parent func(...string) *agent.Agent) {
		a := parent("test-9007199254740991", "other-9007199254740990")
		spec := job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { t.Error("it ran"); return job.Outcome{} }}
		if id, err := w.jobs.Start(a, spec); err == nil || !strings.Contains(err.Error(), "used up") {
			t.Errorf("start: %q, %v", id, err)
		}
		spec.Kind, spec.Run = "other", func(context.Context) job.Outcome { return job.Outcome{State: job.Completed} }
		if id, err := w.jobs.Start(a, spec); err != nil || id != "other-9007199254740991" {
			t.Errorf("start: %q, %v", id, err)
		}
		if id, err := w.jobs.Start(a, spec); err == nil {
			t.Errorf("start: %q", id)
		}
		if got := w.jobs.List(a); len(got) != 1 {
			t.Errorf("jobs: %+v", got)
		}
	})
}

// D43: the notices of two jobs that were lost are taken by one turn, in one request;
// with no wake they wait. Once told, nothing is owed.
func TestRecoverWakesOnce(t *testing.T) {
	for _, wake := range []bool{true, false} {
		promises(t, subagenttest.Options{}, func(t *testing.T, w *world, parent func(...string) *agent.Agent) {
			a := parent("test-1", "test-2")
			before := w.requests.Load()
			a.AddHooks(agent.Hooks{Inbox: func(_ *agent.Agent, e agent.InboxEvent) {
				if e.Change == agent.InboxEnqueue && e.Message.ID == "job:test-1" {
					synctest.Wait() // whom this one woke has begun before the next one is sent
				}
			}})
			if n, err := w.jobs.Recover(a, wake); n != 2 || err != nil {
				t.Errorf("recover: %d, %v", n, err)
			}
			synctest.Wait()
			want, requests := []string{"turn 2: test-1", "turn 2: test-2"}, int32(1)
			if !wake {
				want, requests = []string{"waits: test-1", "waits: test-2"}, 0
			}
			wantNotices(t, a, want...)
			if got := w.requests.Load() - before; got != requests {
				t.Errorf("%d requests were made, want %d", got, requests)
			}
			if n, err := w.jobs.Recover(a, wake); n != 0 || err != nil {
				t.Errorf("recover again: %d, %v", n, err)
			}
		})
	}
}

// An owner that is told to stop is not woken again, by what an earlier process lost
// neither: it is told, and the next turn takes it.
func TestRecoverBehindCloseAdmission(t *testing.T) {
	promises(t, subagenttest.Options{}, func(t *testing.T, w *world, parent func(...string) *agent.Agent) {
		a := parent("test-1")
		w.jobs.CloseAdmission()
		if n, err := w.jobs.Recover(a, true); n != 1 || err != nil {
			t.Errorf("recover: %d, %v", n, err)
		}
		synctest.Wait()
		wantNotices(t, a, "waits: test-1")
	})
}

// What a log promised before it was imported is owed by nobody here; what was promised
// since is.
func TestImportedPromises(t *testing.T) {
	promises(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, w *world, parent func(...string) *agent.Agent) {
		a := parent("test-1", "test-2")
		if _, err := a.Session().Append(session.Draft{Payload: &session.Imported{}}); err != nil {
			t.Fatal(err)
		}
		w.promise = []string{"test-5"}
		w.say(a, "promise")
		if n, err := w.jobs.Recover(a, false); n != 1 || err != nil {
			t.Errorf("recover: %d, %v", n, err)
		}
		wantNotices(t, a, "waits: test-5")
		// The numbers are taken all the same, and the model is told what became of them.
		if g := w.start(a, "next"); g.id != "test-6" {
			t.Errorf("the next id is %q", g.id)
		}
		if r := w.call(a, job.OutputTool, `{"job_id":"test-2"}`); !r.IsError || !contains(r.Content, "jobs end with their process") {
			t.Errorf("read: %+v", r)
		}
	})
}

// A job ends in one of the final states or failed; how it did not end, its text says.
func TestOutcomeStates(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		got := map[job.State]string{}
		for _, s := range []job.State{"", job.Running, job.Stopping, "weird"} {
			id, err := w.jobs.Start(a, job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { return job.Outcome{State: s, Text: "fine"} }})
			if err != nil {
				t.Fatal(err)
			}
			i, err := w.jobs.Wait(t.Context(), a, id)
			if err != nil || i.State != job.Failed {
				t.Errorf("%q: %+v, %v", s, i, err)
			}
			got[s] = i.Text
		}
		want := map[job.State]string{}
		for s := range got {
			want[s] = fmt.Sprintf("the job ended in the state %q, which is none to end in", s)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("texts (-want +got):\n%s", diff)
		}
	})
}

// Whoever waits for a job sees it end, also where its body ends its goroutine.
func TestGoexit(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		id, err := w.jobs.Start(a, job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { runtime.Goexit(); return job.Outcome{} }})
		if err != nil {
			t.Fatal(err)
		}
		if i, err := w.jobs.Wait(t.Context(), a, id); err != nil || i.State != job.Failed || !strings.Contains(i.Text, "instead of returning") {
			t.Errorf("%+v, %v", i, err)
		}
		if err := w.jobs.WhenQuiet(t.Context(), a); err != nil {
			t.Error(err)
		}
		wantNotices(t, a, "turn 1: test-1")
	})
}

// A delegated agent whose turn does not complete does not hold it for its jobs: no
// step more could see them.
func TestChildThatFails(t *testing.T) {
	for prompt, want := range map[string]session.EndKind{"fail": session.EndError, "refuse": session.EndRefusal, "overrun": session.EndMaxTokens} {
		in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
			child := w.NewAgent(t, agent.Create{Options: subagenttest.ParentOptions(), Owner: w.Parent(t)})
			g := w.start(child, "at work")
			w.say(child, prompt)
			if child.Status() != agent.Idle {
				t.Errorf("%s: a child waits for its job", prompt)
			}
			if i, err := w.jobs.Get(child, g.id); err != nil || i.State != job.Running {
				t.Errorf("%s: %+v, %v", prompt, i, err)
			}
			var ends []session.EndKind
			for e := range child.Session().Events(0) {
				if p, ok := e.Payload().(*session.TurnEnd); ok {
					ends = append(ends, p.Kind)
				}
			}
			if len(ends) != 1 || ends[0] != want {
				t.Errorf("%s: the turn ends as %q", prompt, ends)
			}
		})
	}
}

// Close kills what runs, waits until it has released what it holds, and refuses what
// comes afterwards; no turn waits for a job any more.
func TestCloseWithAJob(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		slow := make(chan struct{})
		why := ""
		id, err := w.jobs.Start(a, job.Spec{Kind: "test", Run: func(ctx context.Context) job.Outcome {
			<-ctx.Done()
			<-slow
			why = context.Cause(ctx).Error()
			return job.Outcome{State: job.Killed, Text: why}
		}})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			w.jobs.Close()
		}()
		synctest.Wait()
		if i, err := w.jobs.Get(a, id); err != nil || i.State != job.Stopping {
			t.Errorf("while it is closed: %+v, %v", i, err)
		}
		select {
		case <-closed:
			t.Fatal("closed with a job at work")
		default:
		}
		close(slow)
		<-closed
		if why == "" {
			t.Error("closed before the job was over")
		}
		if i, err := w.jobs.Get(a, id); err != nil || i.State != job.Killed || i.Text != why {
			t.Errorf("%+v, %v", i, err)
		}
		if _, err := w.jobs.Start(a, job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { return job.Outcome{} }}); !errors.Is(err, job.ErrClosing) {
			t.Errorf("start: %v", err)
		}
		wantNotices(t, a)
	})
}

// Of an owner that is gone nothing is kept.
func TestOwnerIsForgotten(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a, b := w.Parent(t), w.Parent(t)
		w.start(a, "over").finish()
		w.start(a, "at work")
		w.start(b, "another owner's")
		if got := w.jobs.List(a); len(got) != 2 {
			t.Fatalf("jobs: %+v", got)
		}
		if err := a.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if got := w.jobs.List(a); got != nil {
			t.Errorf("jobs of an agent that is gone: %+v", got)
		}
		if got := w.jobs.List(b); len(got) != 1 {
			t.Errorf("jobs of another agent: %+v", got)
		}
	})
}

// A bound that is none is refused.
func TestConfigRefused(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		for says, cfg := range map[string]job.Config{
			"Agents": {}, "MaxJobs": {Agents: w.Agents, MaxJobs: -1}, "MaxText": {Agents: w.Agents, MaxText: -1},
		} {
			if _, err := job.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", says, err)
			}
		}
	})
}
