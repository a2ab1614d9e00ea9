package acp_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

type approver func(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error)

func (f approver) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	return f(ctx, req)
}

func answers(o tool.ApprovalOutcome) tool.Approver {
	return approver(func(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) { return o, nil })
}

// decisions are the questions and decisions in an agent's log.
func decisions(a *agent.Agent) string {
	var words []string
	for e := range a.Session().Events(0) {
		switch e := e.Payload().(type) {
		case *session.ApprovalAsked:
			words = append(words, e.ToolName+" "+e.CallID)
		case *session.ApprovalDecided:
			words = append(words, e.Outcome)
		}
	}
	return strings.Join(words, ", ")
}

// OOPX-14: a request for leave gets what is permitted: what it is about happens or does not,
// by the option of the right kind, and the decision stands in the parent's log.
func TestPermission(t *testing.T) {
	const asked = "agent:execute call 1, "
	for name, c := range map[string]struct {
		permission external.Permission
		policy     tool.Policy
		approver   tool.Approver
		offers     string
		verdict    string // what the agent understood
		sent       string // the outcome that it was sent; "" is a dismissal
		log        string
	}{
		"allowed":                {permission: external.Allow, verdict: "allowed", sent: "ALLOW_ONCE", log: asked + "allowed-once"},
		"allowed, for good only": {permission: external.Allow, offers: "reject_once,allow_always", verdict: "allowed", sent: "ALLOW_ALWAYS", log: asked + "allowed-once"},
		"allowed, not offered":   {permission: external.Allow, offers: "reject_once,who_knows", verdict: "cancelled", log: asked + "rejected"},
		"denied":                 {permission: external.Deny, verdict: "rejected", sent: "REJECT_ONCE", log: asked + "rejected"},
		"denied, for good only":  {permission: external.Deny, offers: "allow_once,reject_always", verdict: "cancelled", log: asked + "rejected"},
		"by default":             {verdict: "rejected", sent: "REJECT_ONCE", log: asked + "rejected"},
		"asked, allowed":         {permission: external.Ask, approver: answers(tool.ApprovalAllowedOnce), verdict: "allowed", sent: "ALLOW_ONCE", log: asked + "allowed-once"},
		"asked, rejected":        {permission: external.Ask, approver: answers(tool.ApprovalRejected), verdict: "rejected", sent: "REJECT_ONCE", log: asked + "rejected"},
		"asked, dismissed":       {permission: external.Ask, approver: answers(tool.ApprovalCancelled), verdict: "cancelled", log: asked + "cancelled"},
		"asked, nobody there":    {permission: external.Ask, verdict: "rejected", sent: "REJECT_ONCE", log: asked + "unavailable"},
		"the ceiling asks":       {permission: external.Allow, policy: tool.PolicyAsk, approver: answers(tool.ApprovalRejected), verdict: "rejected", sent: "REJECT_ONCE", log: asked + "rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, "", func(cfg *acp.Config) {
				cfg.Permission, cfg.Args = c.permission, []string{"offers=" + c.offers}
				if c.policy != "" {
					cfg.Policy = func(*agent.Agent) tool.Policy { return c.policy }
				}
			})
			s := f.system(t, subagenttest.Options{Approver: c.approver})
			parent := s.Parent(t)
			res := subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(parent, "[[agent:run touch done]][[agent:say so]]")))
			if got := message.JoinText(res.Output); got != c.verdict+" so" {
				t.Errorf("the agent says %q, want %q", got, c.verdict)
			}
			if _, err := os.Stat(filepath.Join(f.dir, "done")); (err == nil) != (c.verdict == "allowed") {
				t.Errorf("the file: %v", err)
			}
			want := `"result":{"outcome":{"outcome":"cancelled"}}`
			if c.sent != "" {
				want = `"result":{"outcome":{"optionId":"` + c.sent + `","outcome":"selected"}}`
			}
			if sent := f.sent(t); !strings.Contains(sent, want) {
				t.Errorf("it was sent\n%s\nwant %s", sent, want)
			}
			if got := decisions(parent); got != c.log {
				t.Errorf("the log holds %s, want %s", got, c.log)
			}
			f.gone(t)
		})
	}
}

// What a person is asked: the agent's words for the call, also those from before the request.
func TestQuestion(t *testing.T) {
	for _, noise := range []string{"", "[[agent:noise silent]]"} {
		var got *tool.ApprovalRequest
		f := newFake(t, "", func(c *acp.Config) { c.Permission = external.Ask })
		s := f.system(t, subagenttest.Options{Approver: approver(func(_ context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
			got = req
			return tool.ApprovalRejected, nil
		})})
		subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:run ls -l]][[agent:say so]]"+noise)))
		if got == nil || got.Tool != "agent:execute" || got.CallID != "call 1" || got.Summary != "Run ls -l" || string(got.Args) != `{"command":"ls -l"}` || got.Cwd != f.dir {
			t.Errorf("%q: %+v", noise, got)
		}
	}
}

// A person is told where a yes holds for longer than this once.
func TestLasting(t *testing.T) {
	for offers, want := range map[string]string{
		"allow_always,allow_once":  "Allow this once",
		"allow_always,reject_once": "Allow for good, since the agent offers nothing less",
	} {
		var got *tool.ApprovalRequest
		f := newFake(t, "", func(c *acp.Config) { c.Permission, c.Args = external.Ask, []string{"offers=" + offers} })
		s := f.system(t, subagenttest.Options{Approver: approver(func(_ context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
			got = req
			return tool.ApprovalRejected, nil
		})})
		subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:run ls]]")))
		if got == nil || got.Options[0].Label != want || strings.Contains(got.Reason, "for good") != strings.Contains(want, "for good") {
			t.Errorf("%s: %+v, want %s", offers, got, want)
		}
	}
}

// A question that is open when the run is cancelled is answered as cancelled, to the person
// and to the agent, and before the end of its input.
func TestCancelledQuestion(t *testing.T) {
	f := newFake(t, "", func(c *acp.Config) { c.Permission = external.Ask })
	open, closed := make(chan struct{}), make(chan struct{})
	s := f.system(t, subagenttest.Options{Approver: approver(func(ctx context.Context, _ *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
		close(open)
		<-ctx.Done()
		close(closed)
		return tool.ApprovalCancelled, nil
	})})
	parent := s.Parent(t)
	ctx, cancel := context.WithCancel(t.Context())
	run := s.Start(t, ctx, f.Name(), subagenttest.Request(parent, "[[agent:run touch done]][[agent:say part]][[agent:hang]]"))
	<-open
	cancel()
	<-closed
	if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
		t.Errorf("%+v", res)
	}
	if sent := f.sent(t); !strings.Contains(sent, `"result":{"outcome":{"outcome":"cancelled"}}`) || !strings.Contains(sent, `"method":"session/cancel"`) {
		t.Errorf("it was sent\n%s\nwant the dismissal and the cancel", sent)
	}
	if got, want := decisions(parent), "agent:execute call 1, cancelled"; got != want {
		t.Errorf("the log holds %s, want %s", got, want)
	}
	if _, err := os.Stat(filepath.Join(f.dir, "done")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
	f.gone(t)
}

// What is asked behind the end of the turn is nobody's affair any more: the question is
// dismissed, on record, whatever is permitted.
func TestStrayQuestion(t *testing.T) {
	f := newFake(t, "", func(c *acp.Config) { c.Permission = external.Allow })
	s := f.system(t, subagenttest.Options{})
	parent := s.Parent(t)
	run := s.Start(t, t.Context(), f.Name(), subagenttest.Request(parent, "[[agent:say so]][[agent:noise stray]]"))
	if res, err := run.Wait(t.Context()); err != nil || res.StopReason != subagent.StopCompleted || message.JoinText(res.Output) != "so" {
		t.Errorf("%+v, %v", res, err)
	}
	products.Until(t, "the answer", func() bool { return strings.Contains(f.sent(t), `"result":{"outcome":{"outcome":"cancelled"}}`) })
	if got, want := decisions(parent), "agent:execute call 1, cancelled"; got != want {
		t.Errorf("the log holds %s, want %s", got, want)
	}
	if err := run.Close(t.Context()); err != nil {
		t.Error(err)
	}
	f.gone(t)
}

// Where the parent may only read, the agent is put into the mode that does, whatever else is
// configured, and stays there; without one it is not started (design § 4, Trust).
func TestReadOnly(t *testing.T) {
	for _, policy := range []tool.Policy{tool.PolicyReadOnly, tool.PolicyDeny} {
		read := func(c *acp.Config) {
			c.Permission, c.Mode = external.Allow, "work"
			c.Policy = func(*agent.Agent) tool.Policy { return policy }
		}
		t.Run(string(policy), func(t *testing.T) {
			f := newFake(t, "", func(c *acp.Config) { read(c); c.ReadOnlyMode = "look" })
			s := f.system(t, subagenttest.Options{})
			res := subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:run touch done]][[agent:say so]]")))
			if got := message.JoinText(res.Output); got != "may not so" {
				t.Errorf("the agent says %q", got)
			}
			if _, err := os.Stat(filepath.Join(f.dir, "done")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file: %v", err)
			}
			f.gone(t)
		})
		t.Run(string(policy)+" without a mode", func(t *testing.T) {
			f := newFake(t, "", read)
			s := f.system(t, subagenttest.Options{})
			_, err := s.Service.Start(t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "x"))
			if !errors.Is(err, subagent.ErrForbidden) || !strings.Contains(err.Error(), "readOnlyMode") {
				t.Errorf("%v, want a refusal that names the key", err)
			}
			if _, err := os.Stat(f.lines); !errors.Is(err, os.ErrNotExist) {
				t.Error("an agent was started")
			}
		})
		for when, c := range map[string]struct{ modes, noise string }{"in the turn": {"", "mode"}, "before": {"modes=wander", ""}} {
			t.Run(string(policy)+" left "+when, func(t *testing.T) {
				f := newFake(t, "ignore=eof ignore=term", func(cfg *acp.Config) { read(cfg); cfg.ReadOnlyMode, cfg.Args = "look", []string{c.modes} })
				s := f.system(t, subagenttest.Options{})
				var link remote.Link
				acp.Launch(f.Provider, func(cfg proc.Config) (_ remote.Link, err error) {
					link, err = proc.Start(cfg)
					return link, err
				})
				run := s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:noise "+c.noise+"]][[agent:say so]][[agent:hang]]"))
				res, err := run.Wait(t.Context())
				if err != nil {
					t.Error(err)
				}
				select {
				case <-link.Done():
				default:
					t.Error("the agent goes on after it was found out")
				}
				if err := run.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if res.StopReason != subagent.StopError || res.Diagnostic != "the agent left the mode in which it only reads" {
					t.Errorf("%+v", res)
				}
				f.gone(t)
			})
		}
	}
}
