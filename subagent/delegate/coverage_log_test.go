package delegate_test

import (
	"slices"
	"testing"

	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// core S9i; TOOL-36: each result of a delegation is one block that answers one call
// and cites its seq, whether the child succeeded or not, and whichever ended first.
func TestS9iResultsCiteTheirCalls(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: "spawn"})
		s.Answer("root", scripted.Step{delegates("one"), delegates("two"), scripted.CallLiteral("subagent", `{}`)}, scripted.Step{scripted.SayLiteral("done")})
		s.Answer("one", scripted.Step{scripted.SayLiteral("1")})
		s.Answer("two", scripted.Step{scripted.Refuse("no")})
		root := s.Parent(t)
		run(t, root, "root")
		calls := map[string]int64{}
		results := 0
		for e := range root.Session().Events(0) {
			switch p := e.Payload().(type) {
			case *session.ToolCall:
				calls[p.CallID] = e.Seq
			case *session.ToolResult:
				results++
				id := p.Message.Source.Details().CallID
				seq, called := calls[id]
				if !called || !slices.Equal(e.Sources(), []int64{seq}) {
					t.Errorf("the result of %s cites %v, its call stands at %d (%v)", id, e.Sources(), seq, called)
				}
				if c := p.Message.Content; len(c) != 1 || c[0].Type != message.BlockToolResult || c[0].ToolCallID != id || c[0].IsError != (p.ErrorCode != "") {
					t.Errorf("the result of %s: %+v with code %q", id, c, p.ErrorCode)
				}
			}
		}
		if len(calls) != 3 || results != 3 {
			t.Errorf("%d calls, %d results, want 3 of each", len(calls), results)
		}
	})
}
