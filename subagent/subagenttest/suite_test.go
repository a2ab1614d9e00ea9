package subagenttest_test

import (
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// remote makes the scripted provider a subject.
func remote(caps subagent.Capabilities) subagenttest.Factory {
	return func(testing.TB, *subagenttest.System) subagenttest.Subject {
		var mu sync.Mutex
		children := map[string]subagenttest.Child{}
		p := &subagenttest.Scripted{Caps: caps, Play: func(req *subagent.ResolvedRequest) subagenttest.Play {
			mu.Lock()
			defer mu.Unlock()
			c := children[message.JoinText(req.Prompt)]
			var said []message.Block
			if c.Text != "" {
				said = []message.Block{message.Text(c.Text)}
			}
			return subagenttest.Play{Result: subagent.Result{Output: said, StopReason: c.End}, Partial: said, Hold: c.Hold}
		}}
		return subagenttest.Subject{
			Provider: p, Active: p.Active, PartialText: true,
			Script: func(prompt string, c subagenttest.Child) {
				mu.Lock()
				defer mu.Unlock()
				children[prompt] = c
			},
			Reasons: []subagent.StopReason{subagent.StopError, subagent.StopMaxTokens, subagent.StopRefusal, "overrun"},
		}
	}
}

func TestScripted(t *testing.T) {
	t.Run("no capability", func(t *testing.T) { subagenttest.Run(t, remote(subagent.Capabilities{})) })
	t.Run("all capabilities", func(t *testing.T) {
		subagenttest.Run(t, remote(subagent.Capabilities{OutputSchema: true, DepthLimit: true, ToolFilter: true, Persona: true}))
	})
}
