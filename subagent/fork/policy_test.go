package fork_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// nobody answers no question.
type nobody struct{}

func (nobody) Approve(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	return tool.ApprovalUnavailable, errors.New("nobody is there")
}

// COMP-23, COMP-24, COMP-27…30: the policies of the inherited events are the
// parent's of then. What the delegation pins stands behind them and holds; a fork
// never widens.
func TestPolicyOverTheSeed(t *testing.T) {
	mode := func(m string) session.Payload { return &session.SandboxMode{Mode: m} }
	approval := func(p string) session.Payload { return &session.ApprovalPolicy{Policy: p} }
	for _, c := range []struct {
		name          string
		approver      bool
		before, after []session.Payload // the parent's switches within the seed and behind it
		own           string            // policy events in the child's own suffix
		policy, mode  string            // what holds for the child
	}{
		{"COMP-34 nothing was ever said", false, nil, nil, "", "", ""},
		{"COMP-30 an unswitched parent", true, nil, nil, "approval/policy never", "never", ""},
		{"COMP-27 the pin beats the seed's policy", true, []session.Payload{approval("ask")}, nil, "approval/policy never", "never", ""},
		{"COMP-27 the parent's newer mode beats the seed's", false, []session.Payload{mode("off")}, []session.Payload{mode("read-only")}, "sandbox/mode read-only", "", "read-only"},
		{"COMP-23 a mode of the seed is pinned anew", false, []session.Payload{mode("read-only")}, nil, "sandbox/mode read-only", "", "read-only"},
		{"a parent that stopped asking since", false, []session.Payload{approval("ask")}, []session.Payload{approval("never")}, "approval/policy never", "never", ""},
		{"all of it", true, []session.Payload{approval("ask"), mode("off")}, []session.Payload{mode("read-only")}, "sandbox/mode read-only approval/policy never", "never", "read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := subagenttest.Options{}
			if c.approver {
				o.Approver = nobody{}
			}
			in(t, o, func(t *testing.T, s *subagenttest.System) {
				s.Answer("one", say("the first answer"))
				s.Answer("count", say("42"))
				parent := s.Parent(t)
				set := func(list []session.Payload) {
					for _, p := range list {
						if _, err := parent.Session().Append(session.Draft{Payload: p}); err != nil {
							t.Fatal(err)
						}
					}
				}
				set(c.before)
				turn(t, parent, "one")
				set(c.after)
				head := parent.Session().Head()
				_, log := forked(t, s, parent, "count")
				var own []string
				for e := range log.Events(log.Header().SeedLength) {
					switch p := e.Payload().(type) {
					case *session.SandboxMode:
						own = append(own, string(e.Type), p.Mode)
					case *session.ApprovalPolicy:
						own = append(own, string(e.Type), p.Policy)
					default:
						continue
					}
					if e.Seq < log.FirstLive() {
						t.Errorf("COMP-28: %s at %d counts as replayed", e.Type, e.Seq)
					}
				}
				if got := strings.Join(own, " "); got != c.own {
					t.Errorf("policy events of its own: %q, want %q", got, c.own)
				}
				if policy, mode := log.Policies(); policy != c.policy || mode != c.mode {
					t.Errorf("policies %q and %q, want %q and %q", policy, mode, c.policy, c.mode)
				}
				if parent.Session().Head() != head {
					t.Error("COMP-33: the parent's log changed")
				}
			})
		})
	}
}
