package job_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// world is a system whose model says "ok" to everything, but waits for hold before
// it answers a message that says "hold".
type world struct {
	*subagenttest.System
	t    *testing.T
	jobs *job.Registry
	hold chan struct{}

	promise  []string // the jobs that the answer to "promise" names
	requests atomic.Int32
}

// in runs fn in a bubble, which is the leak check too.
func in(t *testing.T, o subagenttest.Options, cfg job.Config, fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, hold: make(chan struct{})}
		o.Adapter = scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.Func(w.answer)}}}}, scripted.Options{})
		w.System = subagenttest.NewSystem(t, o)
		cfg.Agents = w.Agents
		var err error
		if w.jobs, err = job.New(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		for _, d := range job.Tools(w.jobs) {
			if _, err := w.Tools.Root().Register(d); err != nil {
				t.Fatal(err)
			}
		}
		fn(t, w)
	})
}

func (w *world) answer(ctx context.Context, req *llm.Request) (scripted.Step, error) {
	w.requests.Add(1)
	if step := w.special(req); step != nil {
		return step, nil
	}
	step := scripted.Step{scripted.SayLiteral("ok")}
	if last := req.Messages[len(req.Messages)-1]; strings.Contains(message.JoinText(last.Content), "hold") {
		step = append(scripted.Step{subagenttest.Hold(w.hold)}, step...)
	}
	return step, nil
}

// gate is a job that runs until it is let go, or killed.
type gate struct {
	id   string
	open chan job.Outcome
}

func (w *world) start(a *agent.Agent, label string) gate {
	w.t.Helper()
	g := gate{open: make(chan job.Outcome, 1)}
	var err error
	g.id, err = w.jobs.Start(a, job.Spec{Kind: "test", Label: label, Run: func(ctx context.Context) job.Outcome {
		select {
		case out := <-g.open:
			return out
		case <-ctx.Done():
			return job.Outcome{State: job.Killed, Text: context.Cause(ctx).Error()}
		}
	}})
	if err != nil {
		w.t.Fatalf("start %s: %v", label, err)
	}
	return g
}

// finish ends the job and returns when its notice is told and what it woke has run.
func (g gate) finish() {
	g.open <- job.Outcome{State: job.Completed, Text: "the result"}
	synctest.Wait()
}

// say gives the agent input as a person would, and waits until it is idle.
func (w *world) say(a *agent.Agent, text string) {
	w.t.Helper()
	if err := a.Followup(agent.UserText(text)); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// notices lists the job notices of a log: in the history as "turn N: job", those
// that wait as "waits: job".
func notices(t *testing.T, a *agent.Agent) (list []string) {
	t.Helper()
	turn := int64(0)
	for e := range a.Session().Events(0) {
		switch p := e.Payload().(type) {
		case *session.TurnStart:
			turn = p.Turn
		case *session.UserMessage:
			if s := p.Message.Source; s.Kind == message.SourcePlugin && s.Details().Plugin == job.Plugin {
				if s.Details().Form != message.FormNotice || s.Details().Summary == "" || len([]rune(s.Details().Summary)) > 120 {
					t.Errorf("M2: source %+v", s)
				}
				list = append(list, fmt.Sprintf("turn %d: %s", turn, strings.TrimPrefix(string(p.Message.ID), "job:")))
			}
		}
	}
	for _, q := range a.Session().Inbox(session.NextStep) {
		list = append(list, "waits: "+strings.TrimPrefix(string(q.Message.ID), "job:"))
	}
	return list
}

func wantNotices(t *testing.T, a *agent.Agent, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, notices(t, a)); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

func (w *world) call(a tool.Caller, name, args string) tool.Result {
	return w.Tools.Root().Execute(w.t.Context(), tool.CallInput{ID: "c", Name: name, Args: args, Caller: a}, tool.ExecOptions{})
}

// D43: ids, states, the bound (what is stopping counts), and results that stay.
func TestD43Bound(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{MaxJobs: 2, MaxText: 200}, func(t *testing.T, w *world) {
		a, b := w.Parent(t), w.Parent(t)
		slow, released := make(chan struct{}), make(chan struct{})
		id, err := w.jobs.Start(a, job.Spec{Kind: "test", Label: " two\nlines ", Run: func(ctx context.Context) job.Outcome {
			<-ctx.Done()
			<-slow
			close(released)
			return job.Outcome{State: job.Killed, Text: context.Cause(ctx).Error()}
		}})
		if err != nil || id != "test-1" {
			t.Fatalf("%q, %v", id, err)
		}
		second := w.start(a, "second")
		if other := w.start(b, "another owner's"); second.id != "test-2" || other.id != "test-1" {
			t.Errorf("ids %q, %q: they are counted per owner", second.id, other.id)
		}
		var limit *job.LimitError
		refused := job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { t.Error("a refused job ran"); return job.Outcome{} }}
		if _, err := w.jobs.Start(a, refused); !errors.As(err, &limit) || limit.Limit != 2 {
			t.Errorf("beyond the bound: %v", err)
		}
		if i, err := w.jobs.Kill(a, id, "not needed"); err != nil || i.State != job.Stopping || i.Label != "two lines" {
			t.Errorf("kill: %+v, %v", i, err)
		}
		if i, err := w.jobs.Kill(a, id, "again"); err != nil || i.State != job.Stopping {
			t.Errorf("second kill: %+v, %v", i, err)
		}
		if _, err := w.jobs.Start(a, refused); !errors.As(err, &limit) {
			t.Errorf("a job that is stopping does not count: %v", err)
		}
		close(slow)
		i, err := w.jobs.Wait(t.Context(), a, id)
		if err != nil || i.State != job.Killed || i.Text != "not needed" {
			t.Errorf("%+v, %v", i, err)
		}
		select {
		case <-released:
		default:
			t.Error("it was over before what it held was released")
		}
		if third := w.start(a, "third"); third.id != "test-3" {
			t.Errorf("id %q", third.id)
		}
		second.open <- job.Outcome{State: job.Failed, Text: strings.Repeat("long ", 100)}
		if i, err = w.jobs.Wait(t.Context(), a, second.id); err != nil || i.State != job.Failed || len(i.Text) > 200 || !strings.Contains(i.Text, "left out") {
			t.Errorf("%+v, %v", i, err)
		}
		if again, err := w.jobs.Get(a, second.id); err != nil || again != i {
			t.Errorf("a final read is not repeatable: %+v, %v", again, err)
		}
		if i, err := w.jobs.Kill(a, second.id, ""); err != nil || i.State != job.Failed {
			t.Errorf("kill of what is over: %+v, %v", i, err)
		}
		panics, err := w.jobs.Start(a, job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { panic("out of order") }})
		if err != nil {
			t.Fatal(err)
		}
		if i, err := w.jobs.Wait(t.Context(), a, panics); err != nil || i.State != job.Failed || !strings.Contains(i.Text, "out of order") {
			t.Errorf("a panic: %+v, %v", i, err)
		}
	})
}

// D43: nobody but the exact live owner reads, lists, kills or starts.
func TestD43OwnerFence(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a, b, gone := w.Parent(t), w.Parent(t), w.Parent(t)
		g := w.start(a, "mine")
		if err := gone.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{job.OutputTool, job.KillTool} {
			if r := w.call(b, name, `{"job_id":"test-1"}`); !r.IsError || !strings.Contains(message.JoinText(r.Content), "you have no background job") {
				t.Errorf("%s of another agent's job: %+v", name, r)
			}
			for _, caller := range []tool.Caller{nil, gone} {
				if r := w.call(caller, name, `{"job_id":"test-1"}`); r.Code != tool.CodeDenied {
					t.Errorf("%s without a live agent: %+v", name, r)
				}
			}
		}
		if r := w.call(b, job.ListTool, `{}`); message.JoinText(r.Content) != "You have no background jobs." {
			t.Errorf("list of another agent: %+v", r)
		}
		for _, c := range []*agent.Agent{gone, nil} {
			if _, err := w.jobs.Start(c, job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { return job.Outcome{} }}); !errors.Is(err, job.ErrNoOwner) {
				t.Errorf("start without a live owner: %v", err)
			}
		}
		if i, err := w.jobs.Get(a, g.id); err != nil || i.State != job.Running {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

// BG-13, TOOL-39: what the model reads.
func TestBG13Tools(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.say(a, "hold")
		one, two := w.start(a, "first"), w.start(a, "second")
		read := func(name, args string) string {
			r := w.call(a, name, args)
			if r.IsError {
				t.Errorf("%s: %+v", name, r)
			}
			return message.JoinText(r.Content)
		}
		if got := read(job.OutputTool, `{"job_id":"test-1"}`); !strings.HasPrefix(got, "test-1: running (first)\n") {
			t.Errorf("before the end: %q", got)
		}
		one.finish()
		for range 2 {
			if got := read(job.OutputTool, `{"job_id":"test-1"}`); got != "test-1: completed (first)\nthe result" {
				t.Errorf("after the end: %q", got)
			}
		}
		if got := read(job.ListTool, `{}`); got != "test-1: completed (first)\ntest-2: running (second)" {
			t.Errorf("list: %q", got)
		}
		if got := read(job.KillTool, `{"job_id":"test-2"}`); !strings.HasPrefix(got, "test-2: stopping (second)\n") {
			t.Errorf("kill: %q", got)
		}
		synctest.Wait()
		if got := read(job.OutputTool, `{"job_id":"test-2"}`); got != "test-2: killed (second)\n"+job.DefaultReason {
			t.Errorf("killed without a reason: %q", got)
		}
		for id, says := range map[string]string{
			two.id + "0":   `you have no background job "test-20"; your jobs: test-1, test-2`,
			string(a.ID()): "is the id of an agent, not of a background job: job ids look like subagent-1",
			"nonsense":     "you have no background job",
		} {
			if r := w.call(a, job.OutputTool, `{"job_id":"`+id+`"}`); !r.IsError || !strings.Contains(message.JoinText(r.Content), says) {
				t.Errorf("%s: %+v", id, r)
			}
		}
		close(w.hold)
	})
}
