package llm

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/message"
)

// Grammar checks that a stream is legal (core I10): every block starts before its
// deltas, ends at most once with a block of its own type, and takes the next free
// index; at most one usage chunk; a finish that is last. Blocks may interleave.
// A stream that ends as aborted or error may leave blocks open and need not fill
// them; every other finish closes all of them first, and a replay state that it
// carries has one entry per block.
//
// The Assembler tolerates more (core M7). Grammar is for tests, conformance
// suites and strict registries. Its zero value is ready; it is not safe for
// concurrent use. After the first fault every call returns that fault.
type Grammar struct {
	blocks   []grammarBlock
	open     int
	usage    bool
	finished bool
	fault    error
}

type grammarBlock struct {
	typ   message.BlockType
	ended bool
}

// Add checks the next chunk.
func (g *Grammar) Add(c Chunk) error {
	if g.fault == nil {
		g.fault = g.check(c)
	}
	return g.fault
}

// End checks that the stream may end here.
func (g *Grammar) End() error {
	if g.fault == nil && !g.finished {
		g.fault = grammarFault("the stream ended without a finish")
	}
	return g.fault
}

func grammarFault(format string, args ...any) error {
	return codedError(CodeStreamGrammar, "stream grammar: "+fmt.Sprintf(format, args...))
}

func (g *Grammar) check(c Chunk) error {
	if g.finished {
		return grammarFault("%s after the finish", c.Kind)
	}
	switch c.Kind {
	case ChunkBlockStart:
		if c.Index != len(g.blocks) {
			return grammarFault("block-start has index %d, want %d", c.Index, len(g.blocks))
		}
		if c.BlockType == "" {
			return grammarFault("block-start %d has no block type", c.Index)
		}
		g.blocks = append(g.blocks, grammarBlock{typ: c.BlockType})
		g.open++
		return nil
	case ChunkTextDelta:
		return g.delta(c, message.BlockText)
	case ChunkReasoningDelta:
		return g.delta(c, message.BlockReasoning)
	case ChunkToolCallDelta:
		return g.delta(c, message.BlockToolCall)
	case ChunkBlockEnd:
		return g.end(c)
	case ChunkUsage:
		if c.Usage == nil {
			return grammarFault("usage chunk without usage")
		}
		if g.usage {
			return grammarFault("a second usage chunk")
		}
		g.usage = true
		return nil
	case ChunkFinish:
		return g.finish(c.Finish)
	default:
		return grammarFault("unknown chunk kind %q", c.Kind)
	}
}

func (g *Grammar) opened(c Chunk) (*grammarBlock, error) {
	if c.Index < 0 || c.Index >= len(g.blocks) {
		return nil, grammarFault("%s for block %d, which was not started", c.Kind, c.Index)
	}
	b := &g.blocks[c.Index]
	if b.ended {
		return nil, grammarFault("%s for block %d, which has ended", c.Kind, c.Index)
	}
	return b, nil
}

func (g *Grammar) delta(c Chunk, want message.BlockType) error {
	b, err := g.opened(c)
	if err != nil {
		return err
	}
	if b.typ != want {
		return grammarFault("%s in block %d of type %q", c.Kind, c.Index, b.typ)
	}
	return nil
}

func (g *Grammar) end(c Chunk) error {
	b, err := g.opened(c)
	if err != nil {
		return err
	}
	if c.Block == nil {
		return grammarFault("block-end %d has no block", c.Index)
	}
	if c.Block.Type != b.typ {
		return grammarFault("block-end %d has a block of type %q, want %q", c.Index, c.Block.Type, b.typ)
	}
	b.ended = true
	g.open--
	return nil
}

func (g *Grammar) finish(f *Finish) error {
	if f == nil {
		return grammarFault("finish chunk without a finish")
	}
	failed := false
	switch f.Kind {
	case FinishStop, FinishToolCalls, FinishMaxTokens, FinishRefusal:
	case FinishAborted, FinishError:
		failed = true
	default:
		return grammarFault("unknown finish kind %q", f.Kind)
	}
	if failed != (f.Failure != nil) {
		return grammarFault("finish %s: a failure is set for aborted and error, and for these only", f.Kind)
	}
	if !failed && g.open > 0 {
		return grammarFault("finish %s while %d blocks are open", f.Kind, g.open)
	}
	if !failed && f.Replay != nil && f.Replay.Blocks != nil && len(f.Replay.Blocks) != len(g.blocks) {
		return grammarFault("finish %s: %d replay entries for %d blocks", f.Kind, len(f.Replay.Blocks), len(g.blocks))
	}
	g.finished = true
	return nil
}
