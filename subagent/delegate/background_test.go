package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

const inBackground = `{"description":"count the files","prompt":"Count them.","run_in_background":true}`

// jobs adds a registry of jobs with its tools.
func jobs(t *testing.T, s *subagenttest.System) *job.Registry {
	t.Helper()
	r, err := job.New(t.Context(), job.Config{Agents: s.Agents, MaxJobs: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range job.Tools(r) {
		if _, err := s.Tools.Root().Register(d); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// begin starts a background delegation and returns the job's id.
func begin(t *testing.T, ctx context.Context, s *subagenttest.System, parent *agent.Agent) string {
	t.Helper()
	r := execute(ctx, s, parent, "subagent", inBackground)
	id, ok := strings.CutPrefix(resultText(r), "started background subagent job ")
	if r.IsError || !ok {
		t.Fatalf("result = %+v", r)
	}
	if got := string(r.Meta); got != `{"kind":"background","jobId":"`+id+`"}` {
		t.Errorf("meta = %s", got)
	}
	return id
}

// ended waits for a job and returns its state and what a model reads of it.
func ended(t *testing.T, s *subagenttest.System, r *job.Registry, parent *agent.Agent, id string) (job.State, string) {
	t.Helper()
	i, err := r.Wait(t.Context(), parent, id)
	if err != nil {
		t.Fatal(err)
	}
	got := execute(t.Context(), s, parent, job.OutputTool, `{"job_id":"`+id+`"}`)
	head, text, _ := strings.Cut(resultText(got), "\n")
	if got.IsError || head != id+": "+string(i.State)+" (count the files)" {
		t.Errorf("%s: %+v", job.OutputTool, got)
	}
	return i.State, text
}

// BG-01, TOOL-03, TOOL-34, TOOL-40: the parameter is there exactly if it is enabled,
// and foreground is the default.
func TestBG01Definition(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		r := jobs(t, s)
		s.Register(t, capable())
		mount(t, s, delegate.Config{Provider: "scripted", Background: true, Jobs: r})
		mount(t, s, delegate.Config{Provider: "scripted", ToolName: "never", Jobs: r})
		set := s.Tools.Root().Toolset()
		var schema struct {
			Properties map[string]struct{ Type string } `json:"properties"`
			Required   []string                         `json:"required"`
		}
		if err := json.Unmarshal(set.Lookup("subagent").Parameters, &schema); err != nil {
			t.Fatal(err)
		}
		if schema.Properties["run_in_background"].Type != "boolean" || len(schema.Properties) != 3 || len(schema.Required) != 2 {
			t.Errorf("TOOL-03: %s", set.Lookup("subagent").Parameters)
		}
		if d := set.Lookup("subagent").Description; !strings.Contains(d, "job_output") || strings.Contains(set.Lookup("never").Description, "job_output") {
			t.Errorf("texts:\n%s", d)
		}
		if got := set.Lookup("subagent").Describe([]byte(inBackground)); got != "count the files (in the background)" {
			t.Errorf("describe = %q", got)
		}
		parent := s.Parent(t)
		for _, args := range []string{task, `{"description":"d","prompt":"p","run_in_background":false}`} {
			if res := execute(t.Context(), s, parent, "subagent", args); res.IsError || resultText(res) != "done" {
				t.Errorf("foreground: %+v", res)
			}
		}
		if res := execute(t.Context(), s, parent, "never", inBackground); res.Code != tool.CodeInvalidArgs {
			t.Errorf("TOOL-34: a forced true: %+v", res)
		}
		if len(r.List(parent)) != 0 {
			t.Errorf("jobs: %+v", r.List(parent))
		}
	})
}

// BG-02, BG-03, D43: without a registry, without a tool to read a job with, and
// beyond the bound, no child is started.
func TestBG02Preflight(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		r := jobs(t, s)
		p := capable()
		hold := make(chan struct{})
		p.Play = func(*subagent.ResolvedRequest) subagenttest.Play { return subagenttest.Play{Hold: hold} }
		s.Register(t, p)
		mount(t, s, delegate.Config{Provider: "scripted", Background: true, Jobs: r})
		mount(t, s, delegate.Config{Provider: "scripted", ToolName: "jobless", Background: true})
		blind := s.NewAgent(t, agent.Create{Options: subagenttest.ParentOptions(), Setup: func(_ context.Context, a *agent.Agent) error {
			return a.Tools().Restrict(tool.Filter{Deny: &[]string{job.OutputTool}})
		}})
		parent := s.Parent(t)
		call := func(a *agent.Agent, name string) tool.Result {
			return a.Tools().Execute(t.Context(), tool.CallInput{ID: "c", Name: name, Args: inBackground, Caller: a}, tool.ExecOptions{})
		}
		if res := call(parent, "jobless"); !res.IsError || !strings.Contains(resultText(res), "job.New") {
			t.Errorf("BG-03: %+v", res)
		}
		if res := call(blind, "subagent"); res.Code != tool.CodeDenied || !strings.Contains(resultText(res), job.OutputTool) {
			t.Errorf("BG-02: %+v", res)
		}
		if n := len(p.Starts()); n != 0 {
			t.Errorf("%d children were started", n)
		}
		begin(t, t.Context(), s, parent)
		begin(t, t.Context(), s, parent)
		if res := call(parent, "subagent"); res.Code != "LIMIT_REACHED" || !strings.Contains(resultText(res), "2 background jobs") {
			t.Errorf("D43: %+v", res)
		}
		synctest.Wait()
		if n := len(p.Starts()); n != 2 {
			t.Errorf("%d children were started", n)
		}
		close(hold)
	})
}

// BG-09…12, T24: how a run ends is how its job ends, and it is released first.
func TestBG09Outcome(t *testing.T) {
	broken := errors.New("out of paper")
	text := func(s string) []message.Block { return []message.Block{message.Text(s)} }
	value := []byte(`{"n":9007199254740991}`)
	for _, c := range []struct {
		name   string
		play   subagenttest.Play
		state  job.State
		says   string
		schema string
		mute   bool // the provider does not hand on that a schema was asked for
	}{
		{name: "completed", play: subagenttest.Play{Result: subagent.Result{Output: text("42 files")}}, state: job.Completed, says: "42 files"},
		{name: "T30 a value", schema: countSchema, play: subagenttest.Play{Result: subagent.Result{Output: text("here it is"), Structured: value}}, state: job.Completed, says: string(value)},
		{name: "T30 a value, not released", schema: countSchema, play: subagenttest.Play{Result: subagent.Result{Output: text("here it is"), Structured: value}, CloseErr: broken}, state: job.Failed,
			says: "the subagent could not be released: * out of paper\nOutput:\n" + string(value)},
		{name: "SO-18 text for a value", schema: countSchema, mute: true, play: subagenttest.Play{Result: subagent.Result{Output: text("there are 42")}}, state: job.Failed,
			says: "the subagent failed\nDiagnostic: there is no output in the form that was asked for"},
		{name: "completed without a word", play: subagenttest.Play{}, state: job.Completed, says: "The subagent finished without saying anything."},
		{name: "aborted", play: subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopAborted, Output: text("some")}}, state: job.Killed, says: "the subagent was cancelled"},
		{name: "error", play: subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopError, Output: text("some"), Diagnostic: "AUTH: no key"}}, state: job.Failed, says: "the subagent failed\nDiagnostic: AUTH: no key"},
		{name: "max-tokens", play: subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopMaxTokens, Output: text("some")}}, state: job.Failed, says: "the subagent hit its token limit before it was done"},
		{name: "refusal", play: subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopRefusal}}, state: job.Failed, says: "the subagent declined the task"},
		{name: "unknown", play: subagenttest.Play{Result: subagent.Result{StopReason: "tired"}}, state: job.Failed, says: "the subagent ended abnormally (tired)"},
		{name: "BG-11 result", play: subagenttest.Play{Err: broken}, state: job.Failed, says: "the subagent's result was lost: out of paper"},
		{name: "BG-11 release", play: subagenttest.Play{Result: subagent.Result{Output: text("42 files")}, CloseErr: broken}, state: job.Failed, says: "the subagent could not be released: * out of paper\nOutput:\n42 files"},
		{name: "BG-11 both", play: subagenttest.Play{Err: broken, CloseErr: broken}, state: job.Failed, says: "the subagent's result was lost: out of paper\nthe subagent could not be released: * out of paper"},
		{name: "release of an aborted run", play: subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopAborted}, CloseErr: broken}, state: job.Failed, says: "the subagent was cancelled\nthe subagent could not be released: * out of paper"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				r := jobs(t, s)
				p := capable()
				p.Play = func(*subagent.ResolvedRequest) subagenttest.Play { return c.play }
				cfg := delegate.Config{Provider: "scripted", Background: true, Jobs: r}
				if c.schema != "" {
					p.Caps.OutputSchema, cfg.OutputSchema = true, []byte(c.schema)
				}
				if c.mute {
					s.Register(t, mute{p})
				} else {
					s.Register(t, p)
				}
				mount(t, s, cfg)
				parent := s.Parent(t)
				id := begin(t, t.Context(), s, parent)
				if _, err := r.Wait(t.Context(), parent, id); err != nil {
					t.Fatal(err)
				}
				if p.Active() != 0 {
					t.Error("BG-10: the job is over and its run is not released")
				}
				state, got := ended(t, s, r, parent, id)
				before, after, wild := strings.Cut(c.says, "*")
				if state != c.state || !wild && got != c.says || !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) {
					t.Errorf("%s, %q", state, got)
				}
			})
		})
	}
}

// BG-04…08: from the call on the child belongs to its job: the call's own end is
// nothing to it, a kill reaches it while it starts and while it works.
func TestBG05Kill(t *testing.T) {
	for _, c := range []struct {
		name       string
		publishing func(ctx context.Context) error
		reason     string
		state      job.State
		says       string
	}{
		{name: "BG-06 at work", reason: "found it elsewhere", state: job.Killed, says: "found it elsewhere"},
		{name: "BG-06 without a reason", state: job.Killed, says: job.DefaultReason},
		{name: "BG-05 while it starts", reason: "enough", state: job.Killed, says: "enough", publishing: func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}},
		{name: "BG-08 a rollback that fails", reason: "enough", state: job.Failed, says: "the rollback failed", publishing: func(ctx context.Context) error {
			<-ctx.Done()
			return errors.Join(context.Cause(ctx), errors.New("the rollback failed"))
		}},
		{name: "BG-07 a start that fails", state: job.Failed, says: "the subagent was not started: no room", publishing: func(context.Context) error {
			return errors.New("no room")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				r := jobs(t, s)
				p := capable()
				p.Publishing = c.publishing
				p.Play = func(*subagent.ResolvedRequest) subagenttest.Play {
					return subagenttest.Play{Hold: make(chan struct{}), Deaf: time.Second}
				}
				s.Register(t, p)
				mount(t, s, delegate.Config{Provider: "scripted", Background: true, Jobs: r})
				parent := s.Parent(t)
				ctx, cancel := context.WithCancel(t.Context())
				id := begin(t, ctx, s, parent)
				cancel()
				synctest.Wait()
				if i, err := r.Get(parent, id); err != nil || i.State.Ended() == (c.name[:5] != "BG-07") {
					t.Errorf("BG-04: after the call's end: %+v, %v", i, err)
				}
				args, err := json.Marshal(map[string]string{"job_id": id, "reason": c.reason})
				if err != nil {
					t.Fatal(err)
				}
				if res := execute(t.Context(), s, parent, job.KillTool, string(args)); res.IsError {
					t.Errorf("kill: %+v", res)
				}
				if state, got := ended(t, s, r, parent, id); state != c.state || !strings.Contains(got, c.says) {
					t.Errorf("%s, %q", state, got)
				}
				if p.Active() != 0 {
					t.Error("a run is left")
				}
			})
		})
	}
}

// BG-14, TOOL-36, D44: with children of this process: the parent's log has the call,
// its result and the notice; disposing the parent ends and awaits the child.
func TestBG14Spawn(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		r := jobs(t, s)
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: spawn.DefaultName, Background: true, Jobs: r})
		hold := make(chan struct{})
		s.Answer("Go.", scripted.Step{scripted.CallLiteral("subagent", inBackground)}, scripted.Step{scripted.SayLiteral("working on it")})
		s.Answer("Count them.", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("42 files")})
		parent := s.Parent(t)
		if err := parent.Followup(agent.UserText("Go.")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if parent.Status() != agent.Idle || len(s.Agents.List()) != 2 {
			t.Fatalf("status %s, %d agents", parent.Status(), len(s.Agents.List()))
		}
		close(hold)
		if err := r.WhenQuiet(t.Context(), parent); err != nil {
			t.Fatal(err)
		}
		if state, got := ended(t, s, r, parent, "subagent-1"); state != job.Completed || got != "42 files" {
			t.Errorf("%s, %q", state, got)
		}
		if n := len(s.Agents.List()); n != 1 {
			t.Errorf("%d agents are live", n)
		}
		var told []string
		for e := range parent.Session().Events(0) {
			switch p := e.Payload().(type) {
			case *session.ToolResult:
				told = append(told, message.JoinText(p.Message.Content[0].Content))
			case *session.UserMessage:
				told = append(told, message.JoinText(p.Message.Content))
			case *session.DescriptorEvent:
				t.Error("TOOL-36: a descriptor of the child is in the parent's log")
			}
		}
		if got := strings.Join(told, "\n"); got != "Go.\nstarted background subagent job subagent-1\n"+
			"Background job subagent-1 (count the files) is over: completed. Its result can be read with job_output." {
			t.Errorf("the parent's log:\n%s", got)
		}
		s.Answer("Count them.", scripted.Step{subagenttest.Hold(make(chan struct{}))})
		if err := parent.Followup(agent.UserText("Go.")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := parent.Dispose(t.Context(), false); err != nil {
			t.Error(err)
		}
		if n := len(s.Agents.List()); n != 0 {
			t.Errorf("%d agents are live", n)
		}
	})
}
