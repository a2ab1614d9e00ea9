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

// ShortenContent is Shorten for what is no text alone.
func ShortenContent(content []message.Block) []message.Block {
	out, _ := shorten(content, pruneOver, pruneHead, pruneTail, func(int) string { return "" })
	return out
}

// Unread and Tail say where the part begins that stays.
func Unread(nodes []session.Node) int           { return unread(nodes, cuts(nodes)) }
func Tail(nodes []session.Node, keep int64) int { return tail(nodes, cuts(nodes), keep) }

// Gauges counts the agents that are followed.
func (c *Compactor) Gauges() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.gauges)
}

// Measures is what a compaction of an idle agent goes by.
type Measures struct {
	Limit, Fixed, Size int64
	Scale              float64
}

// Measure returns it.
func (c *Compactor) Measure(ctx context.Context, a *agent.Agent) Measures {
	w := c.work(ctx, a, 0, nil)
	return Measures{w.limit, w.fixed, w.size(), w.scale}
}

// Gauge is what follows one log.
type Gauge struct{ gauge }

// Follow reads on.
func (g *Gauge) Follow(s *session.Session) (counted, since int64, known bool) {
	g.follow(s)
	return g.counted, g.since, g.known
}

// StepDue is the hook that every step asks.
func (c *Compactor) StepDue(ctx context.Context, a *agent.Agent, turn int64, incoming []session.Queued) error {
	return c.stepDue(ctx, a, turn, incoming)
}

// Shorten shortens the text of a tool's result; "|n|" stands for what is left out.
func Shorten(text string) (string, bool) {
	content, ok := shorten([]message.Block{message.Text(text)}, pruneOver, pruneHead, pruneTail, func(runes int) string { return fmt.Sprintf("|%d|", runes) })
	return message.JoinText(content), ok
}
