package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

func ptr[T any](v T) *T { return &v }

func in(t *testing.T, o subagenttest.Options, fn func(t *testing.T, s *subagenttest.System)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, subagenttest.NewSystem(t, o)) })
}

// mount mounts a tool for good and fails the test on any fault.
func mount(t *testing.T, s *subagenttest.System, cfg delegate.Config) (unmount func()) {
	t.Helper()
	unmount, err := delegate.Mount(s.Service, s.Tools.Root(), cfg, func(err error) { t.Errorf("fault: %v", err) })
	if err != nil {
		t.Fatalf("mount: %v", err)
	}
	return unmount
}

// capable is a scripted provider that a default tool can be mounted on.
func capable() *subagenttest.Scripted {
	return &subagenttest.Scripted{Caps: subagent.Capabilities{DepthLimit: true, ToolFilter: true, Persona: true}}
}

func visible(s *subagenttest.System) string {
	var names []string
	for _, spec := range s.Tools.Root().Specs() {
		names = append(names, spec.Name)
	}
	return strings.Join(names, " ")
}

const task = `{"description":"count the files","prompt":"Count them."}`

// execute calls the tool as an agent.
func execute(ctx context.Context, s *subagenttest.System, caller tool.Caller, name, args string) tool.Result {
	return s.Tools.Root().Execute(ctx, tool.CallInput{ID: "c1", Name: name, Args: args, Caller: caller}, tool.ExecOptions{})
}

func resultText(r tool.Result) string { return message.JoinText(r.Content) }

// TOOL-01, TOOL-02, TOOL-03, TOOL-04, TOOL-11: what the model gets to know.
func TestDefinition(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		fresh, fork := capable(), capable()
		fork.ProviderName, fork.Inherits = "fork", true
		s.Register(t, fresh)
		s.Register(t, fork)
		mount(t, s, delegate.Config{Provider: "scripted"})
		mount(t, s, delegate.Config{Provider: "fork", ToolName: "subagent_fork", Description: "For reviews."})
		if got := visible(s); got != "subagent subagent_fork" {
			t.Fatalf("tools = %q", got)
		}
		set := s.Tools.Root().Toolset()
		a, b := set.Lookup("subagent"), set.Lookup("subagent_fork")
		var schema struct {
			Properties map[string]struct{ Type string } `json:"properties"`
			Required   []string                         `json:"required"`
		}
		if err := json.Unmarshal(a.Parameters, &schema); err != nil {
			t.Fatal(err)
		}
		if len(schema.Properties) != 2 || schema.Properties["description"].Type != "string" || schema.Properties["prompt"].Type != "string" || len(schema.Required) != 2 {
			t.Errorf("TOOL-03: parameters = %s", a.Parameters)
		}
		const empty, inherits = "empty conversation", "completed turns"
		if !strings.Contains(a.Description, empty) || strings.Contains(a.Description, inherits) {
			t.Errorf("TOOL-04: a fresh provider's text:\n%s", a.Description)
		}
		if !strings.Contains(b.Description, inherits) || !strings.Contains(b.Description, "not the turn you are in") || strings.Contains(b.Description, empty) {
			t.Errorf("TOOL-04: an inheriting provider's text:\n%s", b.Description)
		}
		if !strings.HasPrefix(b.Description, "For reviews.\n") {
			t.Errorf("the description is not the first line:\n%s", b.Description)
		}
		if !a.ConcurrencySafe([]byte(task)) || !a.ConcurrencySafe(nil) {
			t.Error("TOOL-11: not every call is safe to run in parallel")
		}
		if got := a.Describe([]byte(task)); got != "count the files" {
			t.Errorf("describe = %q", got)
		}
		if got := a.Describe([]byte("nonsense")); got != "" {
			t.Errorf("describe of nonsense = %q", got)
		}
	})
}

// TOOL-05…08, REG-23: the tool follows its provider.
func TestFollowsProvider(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		want := func(step, names string) {
			t.Helper()
			if got := visible(s); got != names {
				t.Errorf("%s: tools = %q, want %q", step, got, names)
			}
		}
		unmount := mount(t, s, delegate.Config{Provider: "scripted"})
		want("TOOL-05 not registered yet", "")
		other := capable()
		other.ProviderName = "other"
		s.Register(t, other)
		want("TOOL-07 another provider", "")
		remove := s.Register(t, capable())
		want("TOOL-05 registered", "subagent")
		set := s.Tools.Root().Toolset()
		third := capable()
		third.ProviderName = "third"
		s.Register(t, third)()
		if s.Tools.Root().Toolset() != set {
			t.Error("TOOL-07: another provider changed the tools")
		}
		remove()
		want("TOOL-06 gone", "")
		fork := capable()
		fork.Inherits = true
		remove = s.Register(t, fork)
		if d := s.Tools.Root().Toolset().Lookup("subagent"); d == nil || !strings.Contains(d.Description, "completed turns") {
			t.Error("TOOL-06: the wording was not derived again")
		}
		unmount()
		unmount()
		want("TOOL-08 unmounted", "")
		if _, ok := s.Service.Provider("scripted"); !ok {
			t.Error("TOOL-08: the provider went too")
		}
		remove()
		s.Register(t, capable())
		want("TOOL-08 after the unmount", "")
		mount(t, s, delegate.Config{Provider: "absent"})() // unmounted while it waits
		absent := capable()
		absent.ProviderName = "absent"
		s.Register(t, absent)
		want("TOOL-08 unmounted while waiting", "")
	})
}

// The tool is there exactly while the provider is, however fast that changes.
func TestFollowsProviderConcurrently(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		unmount := mount(t, s, delegate.Config{Provider: "scripted"})
		var g sync.WaitGroup
		for range 4 {
			g.Go(func() {
				for range 50 {
					if remove, err := s.Service.Register(capable()); err == nil {
						remove()
					}
				}
			})
		}
		g.Wait()
		if got := visible(s); got != "" {
			t.Errorf("tools = %q, want none", got)
		}
		s.Register(t, capable())
		if got := visible(s); got != "subagent" {
			t.Errorf("tools = %q, want the tool", got)
		}
		unmount()
	})
}

// TOOL-21, TOOL-22, TOOL-24, TOOL-25, TOOL-28, TOOL-41, TOOL-42: what reaches the
// service.
func TestRequest(t *testing.T) {
	byPointer := cmp.Comparer(func(a, b *agent.Agent) bool { return a == b })
	for _, c := range []struct {
		name string
		cfg  delegate.Config
		want subagent.Request
	}{
		{"TOOL-24 TOOL-41 the default cap", delegate.Config{}, subagent.Request{MaxDepth: ptr(int64(3))}},
		{"TOOL-24 a cap", delegate.Config{MaxDepth: ptr(int64(7))}, subagent.Request{MaxDepth: ptr(int64(7))}},
		{"TOOL-25 provider-managed", delegate.Config{ProviderManaged: true}, subagent.Request{}},
		{"TOOL-21 all of it", delegate.Config{
			Model: subagent.Model{Provider: "p", Model: "m", MaxTokens: 5}, Persona: &subagent.Persona{}, ToolFilter: &session.ToolFilter{Allow: []string{}, Deny: []string{"x"}},
		}, subagent.Request{
			Model: subagent.Model{Provider: "p", Model: "m", MaxTokens: 5}, Persona: &subagent.Persona{}, ToolFilter: &session.ToolFilter{Allow: []string{}, Deny: []string{"x"}}, MaxDepth: ptr(int64(3)),
		}},
		{"TOOL-22 deny alone", delegate.Config{ToolFilter: &session.ToolFilter{Deny: []string{"x"}}}, subagent.Request{ToolFilter: &session.ToolFilter{Deny: []string{"x"}}, MaxDepth: ptr(int64(3))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				p := capable()
				s.Register(t, p)
				parent := s.Parent(t)
				c.cfg.Provider = "scripted"
				mount(t, s, c.cfg)
				if c.cfg.Persona != nil { // TOOL-42: the policy is fixed
					c.cfg.Persona.Text = "changed"
					c.cfg.ToolFilter.Deny[0] = "changed"
				}
				if r := execute(t.Context(), s, parent, "subagent", task); r.IsError || resultText(r) != "done" {
					t.Errorf("result = %+v", r)
				}
				c.want.Parent, c.want.Label, c.want.Prompt = parent, ptr("count the files"), []message.Block{message.Text("Count them.")}
				if diff := cmp.Diff(c.want, p.Starts()[0].Request, byPointer); diff != "" {
					t.Errorf("request:\n%s", diff)
				}
				if c.cfg.Persona != nil {
					c.want.ToolFilter.Deny[0] = "x"
				}
			})
		})
	}
}

// TOOL-23, TOOL-26, TOOL-27: what fails at mount, without leaving a hook behind.
func TestMountRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  delegate.Config
		caps subagent.Capabilities
		says string
	}{
		{"no provider", delegate.Config{}, subagent.Capabilities{}, "no provider"},
		{"TOOL-23 an empty filter", delegate.Config{Provider: "scripted", ToolFilter: &session.ToolFilter{}}, subagent.Capabilities{ToolFilter: true, DepthLimit: true}, "neither allow nor deny"},
		{"TOOL-26 no depth limit", delegate.Config{Provider: "scripted"}, subagent.Capabilities{}, "provider-managed"},
		{"no tool filter", delegate.Config{Provider: "scripted", ToolFilter: &session.ToolFilter{Deny: []string{}}}, subagent.Capabilities{DepthLimit: true}, "toolFilter"},
		{"no persona", delegate.Config{Provider: "scripted", Persona: &subagent.Persona{}}, subagent.Capabilities{DepthLimit: true}, "persona"},
		{"TOOL-27 a negative cap", delegate.Config{Provider: "scripted", MaxDepth: ptr(int64(-1))}, subagent.Capabilities{DepthLimit: true}, "maxDepth"},
		{"TOOL-27 an unsafe cap", delegate.Config{Provider: "scripted", MaxDepth: ptr(int64(1 << 53))}, subagent.Capabilities{DepthLimit: true}, "maxDepth"},
		{"both caps", delegate.Config{Provider: "scripted", MaxDepth: ptr(int64(1)), ProviderManaged: true}, subagent.Capabilities{DepthLimit: true}, "maxDepth"},
		{"a bad name", delegate.Config{Provider: "scripted", ToolName: "no good"}, subagent.Capabilities{DepthLimit: true}, "no good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				remove := s.Register(t, &subagenttest.Scripted{Caps: c.caps})
				_, err := delegate.Mount(s.Service, s.Tools.Root(), c.cfg, nil)
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "delegation tool") {
					t.Errorf("Mount = %v, want one that says %q", err, c.says)
				}
				remove()
				s.Register(t, capable())
				if got := visible(s); got != "" {
					t.Errorf("tools = %q: a refused mount came back", got)
				}
			})
		})
	}
}

// TOOL-38, TOOL-37: a tool that a later provider cannot serve, or whose name is
// taken by then, stays away alone and says why; the provider stays.
func TestTOOL38LateFault(t *testing.T) {
	for name, late := range map[string]struct {
		caps subagent.Capabilities
		says string
	}{
		"no depth limit": {subagent.Capabilities{}, "provider-managed"},
		"name taken":     {subagent.Capabilities{DepthLimit: true}, "taken"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				var faults []error
				if late.caps.DepthLimit {
					p := capable()
					p.ProviderName = "first"
					s.Register(t, p)
					mount(t, s, delegate.Config{Provider: "first"})
				}
				before := visible(s)
				if _, err := delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: "scripted"}, func(err error) { faults = append(faults, err) }); err != nil {
					t.Fatal(err)
				}
				remove := s.Register(t, &subagenttest.Scripted{Caps: late.caps})
				if len(faults) != 1 || !strings.Contains(faults[0].Error(), late.says) || visible(s) != before {
					t.Errorf("faults = %v, tools = %q", faults, visible(s))
				}
				if _, ok := s.Service.Provider("scripted"); !ok {
					t.Error("the provider was unregistered")
				}
				if !late.caps.DepthLimit { // a better provider of the same name is welcome
					remove()
					s.Register(t, capable())
					if visible(s) != "subagent" {
						t.Error("the tool did not come with the provider that can serve it")
					}
				}
			})
		})
	}
}

// TOOL-10, CAN-04, TOOL-34: calls that never reach the provider.
func TestCallRefused(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		p := capable()
		s.Register(t, p)
		mount(t, s, delegate.Config{Provider: "scripted"})
		parent, gone := s.Parent(t), s.Parent(t)
		if err := gone.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, c := range []struct {
			name   string
			ctx    context.Context
			caller tool.Caller
			args   string
			code   string
			says   string
		}{
			{"TOOL-10 no agent", t.Context(), nil, task, tool.CodeDenied, "live agent"},
			{"a dead agent", t.Context(), gone, task, tool.CodeDenied, "live agent"},
			{"an impostor", t.Context(), impostor{parent}, task, tool.CodeDenied, "live agent"},
			{"CAN-04 cancelled", ended, parent, task, tool.CodeAbortedBeforeDispatch, "cancelled"},
			{"TOOL-34 background", t.Context(), parent, `{"description":"d","prompt":"p","run_in_background":true}`, tool.CodeInvalidArgs, "run_in_background"},
			{"no prompt", t.Context(), parent, `{"description":"d"}`, tool.CodeInvalidArgs, "prompt"},
			{"a blank prompt", t.Context(), parent, `{"description":"d","prompt":" \n"}`, tool.CodeInvalidArgs, "blank"},
		} {
			r := execute(c.ctx, s, c.caller, "subagent", c.args)
			if !r.IsError || r.Code != c.code || !strings.Contains(resultText(r), c.says) {
				t.Errorf("%s: result = %s %q, want %s that says %q", c.name, r.Code, resultText(r), c.code, c.says)
			}
		}
		if n := len(p.Starts()); n != 0 {
			t.Errorf("the provider was called %d times", n)
		}
	})
}

// impostor has a live agent's id and is not that agent.
type impostor struct{ a *agent.Agent }

func (i impostor) SessionID() string { return i.a.SessionID() }
func (i impostor) Root() bool        { return i.a.Root() }

// TOOL-13…19: the texts, in their fixed order, and the run closed exactly once.
func TestResult(t *testing.T) {
	half := []message.Block{message.Reasoning("hm"), message.Text("half "), message.ToolCall("x", "y", "{}"), message.Text("way")}
	lost, stuck := errors.New("the line is dead"), errors.New("it does not let go")
	for _, c := range []struct {
		name string
		play subagenttest.Play
		code string // "": success
		want string
	}{
		{"TOOL-13 completed", subagenttest.Play{Result: subagent.Result{Output: half}}, "", "half way"},
		{"completed without a word", subagenttest.Play{}, "", "The subagent finished without saying anything."},
		{"completed with reasoning alone", subagenttest.Play{Result: subagent.Result{Output: half[:1]}}, "", "The subagent finished without saying anything."},
		{"TOOL-15 cancelled", subagenttest.Play{Result: subagent.Result{StopReason: "aborted"}}, tool.CodeAborted, "Error: the subagent was cancelled"},
		{"TOOL-15 failed", subagenttest.Play{Result: subagent.Result{StopReason: "error"}}, tool.CodeToolFailed, "Error: the subagent failed"},
		{"TOOL-15 truncated", subagenttest.Play{Result: subagent.Result{StopReason: "max-tokens"}}, tool.CodeToolFailed, "Error: the subagent hit its token limit before it was done"},
		{"TOOL-15 declined", subagenttest.Play{Result: subagent.Result{StopReason: "refusal"}}, tool.CodeToolFailed, "Error: the subagent declined the task"},
		{"TOOL-15 unknown", subagenttest.Play{Result: subagent.Result{StopReason: "overrun"}}, tool.CodeToolFailed, "Error: the subagent ended abnormally (overrun)"},
		{"TOOL-14 TOOL-16 with all parts", subagenttest.Play{Result: subagent.Result{StopReason: "error", Diagnostic: "AUTH: no", Output: half}}, tool.CodeToolFailed,
			"Error: the subagent failed\nDiagnostic: AUTH: no\nPartial output:\nhalf way"},
		{"TOOL-16 without a diagnostic", subagenttest.Play{Result: subagent.Result{StopReason: "max-tokens", Output: half}}, tool.CodeToolFailed,
			"Error: the subagent hit its token limit before it was done\nPartial output:\nhalf way"},
		{"TOOL-16 without output", subagenttest.Play{Result: subagent.Result{StopReason: "error", Diagnostic: "AUTH: no", Output: half[:1]}}, tool.CodeToolFailed,
			"Error: the subagent failed\nDiagnostic: AUTH: no"},
		{"TOOL-18 completed, not released", subagenttest.Play{Result: subagent.Result{Output: half}, CloseErr: stuck}, tool.CodeToolFailed,
			"Error: the subagent could not be released: close run ID: it does not let go\nOutput:\nhalf way"},
		{"TOOL-19 failed and not released", subagenttest.Play{Result: subagent.Result{StopReason: "error", Diagnostic: "AUTH: no", Output: half}, CloseErr: stuck}, tool.CodeToolFailed,
			"Error: the subagent failed\nDiagnostic: AUTH: no\nthe subagent could not be released: close run ID: it does not let go\nPartial output:\nhalf way"},
		{"the result is lost", subagenttest.Play{Err: lost}, tool.CodeToolFailed, "Error: the subagent's result was lost: the line is dead"},
		{"TOOL-19 lost and not released", subagenttest.Play{Err: lost, CloseErr: stuck}, tool.CodeToolFailed,
			"Error: the subagent's result was lost: the line is dead\nthe subagent could not be released: close run ID: it does not let go"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				p := capable()
				p.Play = func(*subagent.ResolvedRequest) subagenttest.Play { return c.play }
				s.Register(t, p)
				mount(t, s, delegate.Config{Provider: "scripted"})
				r := execute(t.Context(), s, s.Parent(t), "subagent", task)
				id := string(s.Lifecycle.Edges()[0].Start.ID)
				if got := strings.ReplaceAll(resultText(r), id, "ID"); got != c.want {
					t.Errorf("text:\n%s\nwant:\n%s", got, c.want)
				}
				if r.Code != c.code || r.IsError != (c.code != "") {
					t.Errorf("code = %q, want %q", r.Code, c.code)
				}
				var meta struct{ Kind, RunID, StopReason string }
				if err := json.Unmarshal(r.Meta, &meta); err != nil || meta.Kind != "foreground" || meta.RunID != id {
					t.Errorf("TOOL-13: meta = %s, %v", r.Meta, err)
				}
				if c.play.Err == nil && meta.StopReason == "" {
					t.Errorf("meta has no stop reason: %s", r.Meta)
				}
				if n := p.Active(); n != 0 {
					t.Errorf("TOOL-17: %d runs are not closed", n)
				}
			})
		})
	}
}

// TOOL-17, TOOL-20: the call's ctx is the run's. A cancel while the child works, or
// while it is being published, leaves nothing and fails the call.
func TestTOOL20Cancelled(t *testing.T) {
	for _, publishing := range []bool{false, true} {
		in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
			p := capable()
			if publishing {
				p.Publishing = func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
			}
			p.Play = func(*subagent.ResolvedRequest) subagenttest.Play {
				return subagenttest.Play{Hold: make(chan struct{}), Partial: []message.Block{message.Text("so far")}}
			}
			s.Register(t, p)
			mount(t, s, delegate.Config{Provider: "scripted"})
			parent := s.Parent(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan tool.Result)
			go func() { done <- execute(ctx, s, parent, "subagent", task) }()
			synctest.Wait()
			if n := p.Active(); n != 0 == publishing {
				t.Errorf("%d runs are active", n)
			}
			cancel(errors.New("stop"))
			r := <-done
			if !r.IsError || r.Code != tool.CodeAborted || r.Name != tool.NameAbortError {
				t.Errorf("result = %s %s %q", r.Name, r.Code, resultText(r))
			}
			if !publishing && resultText(r) != "Error: the subagent was cancelled\nPartial output:\nso far" {
				t.Errorf("text = %q", resultText(r))
			}
			if p.Active() != 0 {
				t.Error("TOOL-17: the run was not closed")
			}
		})
	}
}

// TOOL-24, DEP-12, TOOL-44 and the limits: refusals that the model reads.
func TestRefusalTexts(t *testing.T) {
	for _, c := range []struct {
		name string
		o    subagenttest.Options
		cfg  delegate.Config
		code string
		want string
	}{
		{"TOOL-24 TOOL-44 a cap of 0", subagenttest.Options{}, delegate.Config{MaxDepth: ptr(int64(0))}, "LIMIT_REACHED",
			"Error: you work at delegation depth 0 and the limit is 0: no further delegation is possible, do this work yourself"},
		{"P35 the deployment's bound", subagenttest.Options{MaxDepth: ptr(int64(0))}, delegate.Config{}, "LIMIT_REACHED",
			"Error: the subagent was not started: limit reached: a subagent at delegation depth 1 is beyond the deployment's bound of 0\nDo this work yourself; where the limit is how many are at work at once, you can also wait until one of them is done."},
	} {
		in(t, c.o, func(t *testing.T, s *subagenttest.System) {
			p := capable()
			s.Register(t, p)
			c.cfg.Provider = "scripted"
			mount(t, s, c.cfg)
			if visible(s) != "subagent" {
				t.Errorf("%s: the tool is hidden", c.name)
			}
			r := execute(t.Context(), s, s.Parent(t), "subagent", task)
			if !r.IsError || r.Code != c.code || resultText(r) != c.want {
				t.Errorf("%s: result = %s %q\nwant %s %q", c.name, r.Code, resultText(r), c.code, c.want)
			}
		})
	}
}

// The number of children, and a provider's own refusal, as the model reads them.
func TestLimitTexts(t *testing.T) {
	in(t, subagenttest.Options{MaxChildren: 1}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		p := capable()
		p.Play = func(*subagent.ResolvedRequest) subagenttest.Play { return subagenttest.Play{Hold: hold} }
		s.Register(t, p)
		mount(t, s, delegate.Config{Provider: "scripted"})
		parent := s.Parent(t)
		done := make(chan tool.Result)
		go func() { done <- execute(t.Context(), s, parent, "subagent", task) }()
		synctest.Wait()
		r := execute(t.Context(), s, parent, "subagent", task)
		want := "Error: the subagent was not started: limit reached: agent " + parent.SessionID() + " has 1 subagents at work, the most that it may have at once\nDo this work yourself; where the limit is how many are at work at once, you can also wait until one of them is done."
		if r.Code != "LIMIT_REACHED" || resultText(r) != want {
			t.Errorf("result = %s %q", r.Code, resultText(r))
		}
		close(hold)
		<-done
		p.Publishing = func(context.Context) error { return errors.New("no transport") }
		r = execute(t.Context(), s, parent, "subagent", task)
		if r.Code != tool.CodeToolFailed || resultText(r) != "Error: the subagent was not started: no transport" {
			t.Errorf("result = %s %q", r.Code, resultText(r))
		}
	})
}
