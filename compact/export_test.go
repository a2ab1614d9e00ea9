package compact

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// Cuts says where a surface may be parted, Tokens what a message counts.
func Cuts(nodes []session.Node) []bool { return cuts(nodes) }
func Tokens(m *message.Message) int64  { return tokens(m) }

// StepDue is the hook that every step asks.
func (c *Compactor) StepDue(ctx context.Context, a *agent.Agent, turn int64, incoming []session.Queued) error {
	return c.stepDue(ctx, a, turn, incoming)
}

// Shorten shortens the text of a tool's result; "|n|" stands for what is left out.
func Shorten(text string) (string, bool) {
	content, ok := shorten([]message.Block{message.Text(text)}, pruneOver, pruneHead, pruneTail, func(runes int) string { return fmt.Sprintf("|%d|", runes) })
	return message.JoinText(content), ok
}
