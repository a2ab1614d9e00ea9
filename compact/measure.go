package compact

import (
	"slices"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// perMessage is what a message takes beside its text, in tokens (core D41).
const perMessage = 4

// imageBytes is as how much text an image counts, whose size nobody knows here.
const imageBytes = 6000

// tokens estimates what a message takes in a request: its bytes over four, and a
// little more (core D41). For ASCII that is the usual rule of characters over four; a
// character of another script counts for more, as it does with tokenizers.
func tokens(m *message.Message) int64 { return blockBytes(m.Content)/4 + perMessage }

func blockBytes(blocks []message.Block) (n int64) {
	for i := range blocks {
		b := &blocks[i]
		// What this build does not know is never shown to a model.
		n += int64(len(b.Text) + len(b.Name) + len(b.Arguments))
		if b.Type == message.BlockImage {
			n += imageBytes
		}
		if b.Content != nil {
			n += blockBytes(b.Content)
		}
	}
	return n
}

// fixed estimates the part of every request that no compaction changes.
func fixed(h *session.RequestHeader) (n int64) {
	if h == nil {
		return 0
	}
	n = int64(len(h.System))
	for i := range h.Tools {
		t := &h.Tools[i]
		n += int64(len(t.Name) + len(t.Description) + len(t.Parameters))
	}
	return n / 4
}

func nodeTokens(nodes []session.Node) (n int64) {
	for i := range nodes {
		if m := nodes[i].Message; m != nil {
			n += tokens(m)
		}
	}
	return n
}

// gauge follows the size of one agent's history, so that a long one is not read again
// at every step. Only the agent's activity touches it.
type gauge struct {
	gen    int64
	seen   int
	tokens int64

	// read is the head of the log that the following is as of: what the vendor counted of
	// the last answer and everything before it, and an estimate of what came since.
	// known is false where it reported nothing, and after a replacement, which the last
	// answer did not see.
	read, counted, since int64
	known                bool

	// retry is the size below which no automatic compaction is tried again after one
	// that failed; 0 for none.
	retry int64
	// turn and step are those that were made possible after they had been too long.
	turn, step int64
}

// fewMessages is up to how many messages are counted anew each time.
const fewMessages = 24

func (c *Compactor) history(a *agent.Agent) (n int64) {
	msgs, gen := a.Session().History()
	if len(msgs) <= fewMessages {
		for i := range msgs {
			n += tokens(&msgs[i])
		}
		return n
	}
	g := c.gauge(a)
	if g.gen != gen || g.seen > len(msgs) {
		g.gen, g.seen, g.tokens = gen, 0, 0
	}
	for ; g.seen < len(msgs); g.seen++ {
		g.tokens += tokens(&msgs[g.seen])
	}
	return g.tokens
}

func (c *Compactor) gauge(a *agent.Agent) *gauge {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gauges[a]
	if g == nil {
		g = &gauge{}
		c.gauges[a] = g
	}
	return g
}

// replays reports whether an answer holds anything of what the model thought.
func replays(m *message.Message) bool {
	return m.Source.Details().ReplayState != nil || slices.ContainsFunc(m.Content, func(b message.Block) bool { return b.Type == message.BlockReasoning })
}

// lookBack bounds how many events are read to find the last answer.
const lookBack = 512

// follow reads on to the head of the log.
func (g *gauge) follow(s *session.Session) {
	head := s.Head()
	if g.read < head-lookBack {
		g.read, g.known = head-lookBack, false
	}
	for ; g.read < head; g.read++ {
		e, _ := s.Event(g.read)
		switch e.Op {
		case session.OpNone:
			continue
		case session.OpReplace:
			g.known = false
			continue
		case session.OpAppend:
		}
		switch p := e.Payload().(type) {
		case *session.AssistantMessage:
			if p.Usage != nil && !p.Interrupted {
				g.counted, g.since, g.known = p.Usage.Total(), 0, true
				if !replays(&p.Message) { // what it thought is in no other request
					g.counted -= p.Usage.ReasoningTokens
				}
				continue
			}
			g.since += tokens(&p.Message)
		case *session.UserMessage:
			g.since += tokens(&p.Message)
		case *session.ToolResult:
			g.since += tokens(&p.Message)
		}
	}
}
