package dsh_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/dsh"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// fake returns a provider whose runtime is this test binary.
func fake(t *testing.T, faults string, change func(*dsh.Config)) *dsh.Provider {
	t.Helper()
	cfg := dsh.Config{Config: external.Config{
		Env:      map[string]string{fakeagent.As: "dsh", fakeagent.Variable: faults},
		EOFGrace: 200 * time.Millisecond, Grace: 200 * time.Millisecond,
	}}
	if change != nil {
		change(&cfg)
	}
	return provider(t, cfg)
}

// system registers a provider in a system of its own.
func system(t *testing.T, p *dsh.Provider, o subagenttest.Options) *subagenttest.System {
	t.Helper()
	s := subagenttest.NewSystem(t, o)
	s.Register(t, p)
	return s
}

// gone checks that the provider's processes have ended with the run.
func gone(t *testing.T, p *dsh.Provider) {
	t.Helper()
	if n := dsh.Active(p); n != 0 {
		t.Errorf("%d children hold a process", n)
	}
}

// W19, W20, W31, OOPX-15, OOPX-24, OOPX-25, OOPX-27: what a run comes to.
func TestRuns(t *testing.T) {
	big := strings.Repeat("x", 5<<20)
	for name, c := range map[string]struct {
		faults, prompt string
		reason         subagent.StopReason
		text           string // "" is none
		diagnostic     string
	}{
		"reply":              {prompt: "[[agent:say hello]]", reason: "completed", text: "hello"},
		"many pieces":        {prompt: "[[agent:say " + strings.Repeat("0123456789", 1000) + "]][[agent:pieces 10000]]", reason: "completed", text: strings.Repeat("0123456789", 1000)},
		"a line of 5 MB":     {prompt: "[[agent:big 5242880]]", reason: "completed", text: big},
		"reordered":          {prompt: "[[agent:say hello]][[agent:noise late]]", reason: "completed", text: "hello"},
		"garbage":            {faults: "handshake=garbage", prompt: "[[agent:say hello]][[agent:noise garbage]]", reason: "completed", text: "hello"},
		"unknown message":    {faults: "session=long", prompt: "[[agent:say hello]][[agent:noise notice]]", reason: "completed", text: "hello"},
		"blank":              {prompt: "[[agent:say   ]]", reason: "error", diagnostic: "the agent ended without an answer"},
		"nothing":            {prompt: "x", reason: "error", diagnostic: "the agent ended without an answer"},
		"token limit":        {prompt: "[[agent:say part]][[agent:end max-tokens]]", reason: "max-tokens", text: "part"},
		"aborted":            {prompt: "[[agent:say part]][[agent:end aborted]]", reason: "aborted", text: "part"},
		"failure":            {prompt: "[[agent:say part]][[agent:end error]]", reason: "error", text: "part", diagnostic: "the runtime's turn failed: SERVER (HTTP status 500)"},
		"interrupted":        {prompt: "[[agent:say part]][[agent:end interrupted]]", reason: "error", text: "part", diagnostic: "the runtime's turn was interrupted"},
		"unknown end":        {prompt: "[[agent:say part]][[agent:end unknown]]", reason: "error", text: "part", diagnostic: "the runtime's turn ended in a way that is not known"},
		"no turn":            {prompt: "[[agent:end nothing]]", reason: "error", diagnostic: "the runtime became idle without the end of a turn"},
		"dies at the prompt": {faults: "prompt=exit:3", prompt: "x", reason: "error", diagnostic: "the product's process ended in the middle of its work: exit status 3"},
		"dies mid-answer":    {prompt: "[[agent:say part]][[agent:exit 4]]", reason: "error", text: "part", diagnostic: "the product's process ended in the middle of its work: exit status 4"},
		"refuses the prompt": {faults: "prompt=error", prompt: "x", reason: "error", diagnostic: "the product answered with the error -32603"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, nil)
			s := system(t, p, subagenttest.Options{})
			res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), c.prompt)))
			if got := message.JoinText(res.Output); res.StopReason != c.reason || got != c.text || res.Diagnostic != c.diagnostic {
				t.Errorf("%s, %q, %d bytes %.40q; want %s, %q, %.40q", res.StopReason, res.Diagnostic, len(got), got, c.reason, c.diagnostic, c.text)
			}
			gone(t, p)
		})
	}
}

// W23, W29, OOPX-08, OOPX-11, OOPX-27: a start that fails says where, in fixed words.
func TestStartFails(t *testing.T) {
	for name, c := range map[string]struct {
		faults string
		change func(*dsh.Config)
		want   string
	}{
		"dies at once":       {faults: "start=exit:7", want: "handshake: the program ended: exit status 7"},
		"dies when asked":    {faults: "handshake=exit:8", want: "handshake: the program ended: exit status 8"},
		"silent":             {faults: "start=silent", want: "handshake: it was not ready within 300ms"},
		"silent when asked":  {faults: "handshake=silent", want: "handshake: it was not ready within 300ms"},
		"refuses":            {faults: "handshake=error", want: "handshake: the product answered with the error -32603"},
		"is something else":  {faults: "handshake=version", want: "handshake: the answer to initialize does not name the runtime"},
		"is not installed":   {change: func(c *dsh.Config) { c.Command = "no-such-program" }, want: `find the program: "no-such-program" is not installed, or not in PATH. Give the command that starts a DSH runtime with its SDK server.`},
		"is deaf to its end": {faults: "handshake=silent ignore=eof ignore=term", want: "handshake: it was not ready within 300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, func(cfg *dsh.Config) {
				if cfg.StartTimeout = time.Minute; strings.Contains(c.faults, "silent") {
					cfg.StartTimeout = 300 * time.Millisecond
				}
				if c.change != nil {
					c.change(cfg)
				}
			})
			s := system(t, p, subagenttest.Options{})
			_, err := s.Service.Start(t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "x"))
			if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), p.Name()+": "+c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if got, want := errors.Is(err, external.ErrNotFound), name == "is not installed"; got != want {
				t.Errorf("ErrNotFound: %v, want %v", got, want)
			}
			gone(t, p)
		})
	}
}

// W32, OOPX-06, OOPX-07, OOPX-10: a cancel settles at once with what was said, whatever the
// runtime does; Close returns when its processes are gone.
func TestCancel(t *testing.T) {
	for name, c := range map[string]struct{ faults, prompt, text string }{
		"silent":          {prompt: "[[agent:hang]]"},
		"mid-stream":      {prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
		"deaf to its end": {faults: "ignore=eof ignore=term", prompt: "[[agent:say part]][[agent:hang]]", text: "part"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, c.faults, nil)
			s := system(t, p, subagenttest.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			run := s.Start(t, ctx, p.Name(), subagenttest.Request(s.Parent(t), c.prompt))
			for dsh.Said(run) != c.text {
				<-time.After(time.Millisecond)
			}
			cancel()
			res := subagenttest.Await(t, run)
			if got := message.JoinText(res.Output); res.StopReason != subagent.StopAborted || got != c.text || res.Diagnostic != "" {
				t.Errorf("%+v, want aborted with %q", res, c.text)
			}
			gone(t, p)
		})
	}
}

// A cancel during the handshake leaves nothing (W29, OOPX-08).
func TestCancelledStart(t *testing.T) {
	p := fake(t, "handshake=silent", nil)
	s := system(t, p, subagenttest.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	time.AfterFunc(100*time.Millisecond, func() { cancel(stop) })
	if _, err := s.Service.Start(ctx, p.Name(), subagenttest.Request(s.Parent(t), "x")); !errors.Is(err, stop) {
		t.Errorf("%v, want the cause", err)
	}
	gone(t, p)
}

// W10, W28, OOPX-20: what the runtime is told, and what of the parent it is told.
func TestInitialize(t *testing.T) {
	dir := t.TempDir()
	p := fake(t, "", func(c *dsh.Config) {
		c.Dir, c.ModelProvider, c.Model, c.MaxTokens = dir, "p", "m", 9
		c.Env[fakeagent.Variable] = "record=" + dir + "/lines"
	})
	s := system(t, p, subagenttest.Options{})
	req := subagenttest.Request(s.Parent(t), "[[agent:say hi]]")
	req.Model.Model = "other"
	if res := subagenttest.Await(t, s.Start(t, t.Context(), p.Name(), req)); res.StopReason != subagent.StopCompleted {
		t.Fatalf("%+v", res)
	}
	lines, err := os.ReadFile(dir + "/lines")
	if err != nil {
		t.Fatal(err)
	}
	want := `"method":"initialize","params":{"cwd":"` + dir + `","provider":"p","model":"other","maxTokens":9}`
	if first, _, _ := bytes.Cut(lines, []byte("\n")); !strings.Contains(string(first), want) || !strings.Contains(string(first), `"id":"req_`) {
		t.Errorf("%s, want %s", first, want)
	}
	// W12, W24: the runtime is told before its input ends.
	if last := lines[bytes.LastIndexByte(bytes.TrimSpace(lines), '\n')+1:]; !strings.Contains(string(last), `"method":"shutdown"`) {
		t.Errorf("the last that it was sent is %s, want shutdown", last)
	}
}

// OOPX-21: a cap that makes no sense is refused, also without the configuration.
func TestNew(t *testing.T) {
	for want, cfg := range map[string]dsh.Config{
		"Command is required":        {},
		"MaxTokens -1":               {Config: external.Config{Command: "x"}, MaxTokens: -1},
		"MaxTokens 9007199254740992": {Config: external.Config{Command: "x"}, MaxTokens: 1 << 53},
		"Grace is negative":          {Config: external.Config{Command: "x", Grace: -1}},
		"permission":                 {Config: external.Config{Command: "x", Permission: "all"}},
		"no such file":               {Config: external.Config{Command: "x", Dir: "/no/such"}},
	} {
		if _, err := dsh.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A runtime that acts without asking is started only where that is permitted (design § 4,
// Trust); every decision stands in the parent's log.
func TestPermission(t *testing.T) {
	answer := func(o tool.ApprovalOutcome) tool.Approver { return approver(o) }
	for name, c := range map[string]struct {
		permission external.Permission
		policy     tool.Policy
		approver   tool.Approver
		want       string // of the refusal; "" is a start
		decided    string // the decision on record; "" is none
	}{
		"allowed":             {permission: external.Allow},
		"denied":              {permission: external.Deny, want: "a DSH runtime asks for no permission"},
		"asked, allowed":      {permission: external.Ask, approver: answer(tool.ApprovalAllowedOnce), decided: "allowed-once"},
		"asked, rejected":     {permission: external.Ask, approver: answer(tool.ApprovalRejected), want: "nobody agreed", decided: "rejected"},
		"asked, dismissed":    {permission: external.Ask, approver: answer(tool.ApprovalCancelled), want: "was dismissed", decided: "cancelled"},
		"asked, nobody there": {permission: external.Ask, want: "nobody agreed", decided: "unavailable"},
		"ceiling asks":        {permission: external.Allow, policy: tool.PolicyAsk, approver: answer(tool.ApprovalRejected), want: "nobody agreed", decided: "rejected"},
		"ceiling denies":      {permission: external.Allow, policy: tool.PolicyDeny, want: "only reading is permitted"},
		"ceiling reads":       {permission: external.Allow, policy: tool.PolicyReadOnly, want: "only reading is permitted"},
		"ceiling never asks":  {permission: external.Allow, policy: tool.PolicyNever, want: "only reading is permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake(t, "", func(cfg *dsh.Config) {
				cfg.Permission = c.permission
				if c.policy != "" {
					cfg.Policy = func(*agent.Agent) tool.Policy { return c.policy }
				}
			})
			s := system(t, p, subagenttest.Options{Approver: c.approver})
			parent := s.Parent(t)
			run, err := s.Service.Start(t.Context(), p.Name(), subagenttest.Request(parent, "[[agent:say hi]]"))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if res := subagenttest.Await(t, run); res.StopReason != subagent.StopCompleted {
					t.Errorf("%+v", res)
				}
			} else if !errors.Is(err, subagent.ErrForbidden) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			var decided string
			for e := range parent.Session().Events(0) {
				if d, ok := e.Payload().(*session.ApprovalDecided); ok {
					decided += d.Outcome
				}
			}
			if decided != c.decided {
				t.Errorf("decided %q, want %q", decided, c.decided)
			}
			gone(t, p)
		})
	}
}

type approver tool.ApprovalOutcome

func (a approver) Approve(_ context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	if len(req.Path) != 2 || req.Deadline.IsZero() || req.Tool != "dsh-sdk:start" {
		return "", errors.New("not the question that was expected")
	}
	return tool.ApprovalOutcome(a), nil
}

// Abort kills what would not go by itself; the run ends as after any other death.
func TestAbort(t *testing.T) {
	p := fake(t, "ignore=eof ignore=term", nil)
	s := system(t, p, subagenttest.Options{})
	run := s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "[[agent:say part]][[agent:hang]]"))
	for dsh.Said(run) != "part" {
		<-time.After(time.Millisecond)
	}
	if err := p.Abort(); err != nil {
		t.Error(err)
	}
	res := subagenttest.Await(t, run)
	if res.StopReason != subagent.StopError || res.Diagnostic != "the product's process ended in the middle of its work: signal SIGKILL" {
		t.Errorf("%+v", res)
	}
	gone(t, p)
}

// idle stands for the status that ends a turn.
const idle = "idle"

// W20, OOPX-15, OOPX-25: what a runtime's events come to. One that does not stop to talk is
// stopped, also where it never answers the prompt, and so is one whose events are none.
func TestEvents(t *testing.T) {
	const event = `{"jsonrpc":"2.0","method":"session.event","params":{"sessionId":%q,"event":%s}}`
	chunk := `{"type":"assistant/chunk","data":{"chunk":{"type":"text-delta","text":"` + strings.Repeat("x", 100) + `"}}}`
	said := func(text string) string {
		return `{"type":"assistant/chunk","data":{"chunk":{"type":"text-delta","text":"` + text + `"}}}`
	}
	const (
		ended = `{"type":"turn/end","data":{"reason":{"kind":"completed"}}}`
		retry = `{"type":"llm/retry","data":{}}`
		step  = `{"type":"step/start","data":{}}`
		bad   = `{"type":"assistant/message","data":{"message":{"content":7}}}`
	)
	const receipt = `{"type":"agent/inbox/spliced","data":{"inserted":[{"id":"m1"}]}}`
	for name, c := range map[string]struct {
		answers bool
		events  []string
		want    string // the answer of a turn that was completed, or the diagnostic
	}{
		"retried":             {answers: true, events: []string{receipt, said("wrong "), retry, said("right"), ended, idle}, want: "right"},
		"another step":        {answers: true, events: []string{receipt, said("first "), step, said("last"), ended, idle}, want: "last"},
		"a malformed message": {answers: true, events: []string{receipt, said("part"), bad, ended, idle}, want: "part"},
		"a malformed event":   {answers: true, events: []string{receipt, said("part"), "{}", ended, idle}, want: "the runtime sent an event that is none"},
		"in its turn":         {answers: true, events: append([]string{receipt}, slices.Repeat([]string{chunk}, 12)...), want: "the agent said more than can be kept"},
		"before its answer":   {events: slices.Repeat([]string{chunk}, 12), want: "the agent said more than can be kept"},
		"makes no sense":      {events: []string{`"none"`}, want: "the runtime sent an event that is none"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				talkative := func(a *fakeagent.Agent) int {
					for {
						line, ok := a.Next()
						var m struct {
							ID     json.RawMessage
							Method string
							Params struct{ SessionID string }
						}
						if !ok {
							return 0
						}
						if err := json.Unmarshal(line, &m); err != nil {
							t.Error(err)
						}
						if m.Method != "session/prompt" || c.answers {
							a.Send(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": map[string]any{"serverInfo": map[string]string{}, "messageId": "m1"}})
						}
						if m.Method == "session/prompt" {
							for _, e := range c.events {
								if e == idle {
									a.Line(fmt.Sprintf(`{"jsonrpc":"2.0","method":"session.status","params":{"sessionId":%q,"status":"idle"}}`, m.Params.SessionID))
									continue
								}
								a.Line(fmt.Sprintf(event, m.Params.SessionID, e))
							}
						}
					}
				}
				p := provider(t, dsh.Config{})
				dsh.SetRoom(p, 1000)
				dsh.Launch(p, func(cfg proc.Config) (remote.Link, error) {
					return fakeagent.Launch(cfg, talkative, nil, fakeagent.Faults{}), nil
				})
				s := system(t, p, subagenttest.Options{})
				run := s.Start(t, t.Context(), p.Name(), subagenttest.Request(s.Parent(t), "x"))
				ctx, stop := context.WithTimeout(t.Context(), time.Hour)
				defer stop()
				if res, err := run.Wait(ctx); err != nil || res.StopReason == subagent.StopCompleted && message.JoinText(res.Output) != c.want || res.StopReason != subagent.StopCompleted && res.Diagnostic != c.want {
					t.Errorf("%+v, %v; want %s", res, err, c.want)
				}
				if err := run.Close(t.Context()); err != nil {
					t.Error(err)
				}
				gone(t, p)
			})
		})
	}
}
