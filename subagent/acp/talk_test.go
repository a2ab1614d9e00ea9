package acp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/acp"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// OOPX-28: a cancel that comes before the prompt was sent keeps it from being sent, and none
// is told of a turn that is over.
func TestInterruptWithoutTurn(t *testing.T) {
	for _, over := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			lines := filepath.Join(t.TempDir(), "lines")
			link := fakeagent.Launch(proc.Config{}, fakeagent.Named("acp"), fakeagent.Parse, fakeagent.Faults{Record: lines})
			talk, err := acp.Open(t.Context(), provider(t, acp.Config{}), &remote.Child{Dir: "/", Prompt: "[[agent:say hi]]"}, link)
			if err != nil {
				t.Fatal(err)
			}
			turn := func() subagent.StopReason {
				out, err := talk.Turn(t.Context())
				if err != nil {
					t.Error(err)
				}
				return out.Reason
			}
			want, reason := subagent.StopAborted, subagent.StopReason("")
			if over {
				want, reason = subagent.StopCompleted, turn()
			}
			if err := talk.Interrupt(t.Context()); err != nil {
				t.Error(err)
			}
			if !over {
				reason = turn()
			}
			if err := link.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if err := talk.Close(); err != nil {
				t.Error(err)
			}
			sent, err := os.ReadFile(lines)
			if err != nil {
				t.Fatal(err)
			}
			if prompted := strings.Contains(string(sent), "session/prompt"); reason != want || prompted != over || strings.Contains(string(sent), "session/cancel") {
				t.Errorf("%s; it was sent\n%s", reason, sent)
			}
		})
	}
}

// An implementation of the protocol that is not ours reads what an agent is sent.
func TestSDKReads(t *testing.T) {
	if sdk.ProtocolVersionNumber != 1 {
		t.Errorf("the SDK speaks version %d", sdk.ProtocolVersionNumber)
	}
	f := newFake(t, "", func(c *acp.Config) { c.Mode, c.Permission = "work", external.Allow })
	s := f.system(t, subagenttest.Options{})
	subagenttest.Await(t, s.Start(t, t.Context(), f.Name(), subagenttest.Request(s.Parent(t), "[[agent:run true]][[agent:say hi]]")))
	seen := 0
	for line := range strings.Lines(f.sent(t)) {
		var m struct {
			Method string
			Params json.RawMessage
			Result json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		var into interface{ Validate() error }
		raw := m.Params
		switch m.Method {
		case sdk.AgentMethodInitialize:
			into = &sdk.InitializeRequest{}
		case sdk.AgentMethodSessionNew:
			into = &sdk.NewSessionRequest{}
		case sdk.AgentMethodSessionSetMode:
			into = &sdk.SetSessionModeRequest{}
		case sdk.AgentMethodSessionPrompt:
			into = &sdk.PromptRequest{}
		case "":
			raw, into = m.Result, &sdk.RequestPermissionResponse{}
		default:
			t.Fatalf("an unknown message: %s", line)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if err := into.Validate(); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if p, ok := into.(*sdk.RequestPermissionResponse); ok && (p.Outcome.Selected == nil || p.Outcome.Selected.OptionId != "ALLOW_ONCE") {
			t.Errorf("the SDK reads another outcome in %s", line)
		}
		seen++
	}
	if seen != 5 {
		t.Errorf("%d messages, want 5", seen)
	}
}
