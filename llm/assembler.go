package llm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/message"
)

// Assembler turns the chunks of one stream into one assistant message. Its zero
// value is ready; it must not be copied after the first Add and is not safe for
// concurrent use. Everything it returns is the caller's.
//
// It is forgiving (core M7): a delta opens its block when no start did, a missing
// end closes with what the deltas said, and a stream without a finish has stopped.
// An explicit block-end is authoritative over the deltas before it. Grammar is the
// strict counterpart.
type Assembler struct {
	size int // bytes of text, reasoning and arguments so far

	order  []*partial // by block index
	last   *partial   // the block of the previous chunk
	runs   []textRun
	usage  *message.Usage
	finish *Finish

	// Storage for the common small answer, so that it costs no allocation.
	first    partial
	orderBuf [4]*partial
	runsBuf  [2]textRun
}

// partial is a block in the making.
type partial struct {
	index   int
	typ     message.BlockType
	content pieces // text, reasoning or argument text
	id      string
	name    string
	end     *message.Block
	ended   bool
}

// textRun says that the text deltas up to length end of a block arrived in one
// piece. Runs keep the order of arrival without holding the text twice.
type textRun struct {
	block *partial
	end   int
}

// pieces joins strings; a single one is kept as it is.
type pieces struct {
	one  string
	many []byte
}

func (p *pieces) add(s string) {
	switch {
	case s == "":
	case p.many != nil:
		if len(p.many)+len(s) > cap(p.many) {
			p.many = slices.Grow(p.many, max(len(s), len(p.many))) // append grows large slices by a quarter only
		}
		p.many = append(p.many, s...)
	case p.one == "":
		p.one = s
	default:
		p.many = make([]byte, 0, max(64, 2*(len(p.one)+len(s))))
		p.many = append(append(p.many, p.one...), s...)
		p.one = ""
	}
}

func (p *pieces) len() int { return len(p.one) + len(p.many) }

func (p *pieces) String() string {
	if p.many != nil {
		return string(p.many)
	}
	return p.one
}

// MaxAnswer bounds what one answer may hold of text, reasoning and arguments, in
// bytes. A model that does not stop is a fault of its endpoint, and must not cost
// the process its memory.
const MaxAnswer = 64 << 20

// sane brings counters that no model can mean into the range of the log: a number
// that is off is no reason to lose an answer.
func sane(u message.Usage) message.Usage {
	const most = 1<<53 - 1
	for _, n := range []*int64{&u.InputTokens, &u.OutputTokens, &u.CacheReadTokens, &u.CacheWriteTokens, &u.ReasoningTokens} {
		*n = min(max(*n, 0), most)
	}
	return u
}

// Add takes the next chunk. It keeps the strings and blocks of the chunk, which
// must not be modified afterwards. The error, an *Error with code
// MALFORMED_RESPONSE, is for what has no meaning at all: an unknown chunk kind, a
// negative index, a delta of another type than its block, anything after the
// finish. The chunk is then ignored.
func (a *Assembler) Add(c Chunk) error {
	if a.finish != nil {
		return malformed("%s after the finish", c.Kind)
	}
	if a.size += len(c.Text) + len(c.Arguments); a.size > MaxAnswer {
		return malformed("the answer is longer than %d bytes", MaxAnswer)
	}
	switch c.Kind {
	case ChunkBlockStart:
		_, err := a.block(c, c.BlockType)
		return err
	case ChunkTextDelta:
		b, err := a.block(c, message.BlockText)
		if err != nil || b.ended {
			return err
		}
		b.content.add(c.Text)
		a.noteText(b)
		return nil
	case ChunkReasoningDelta:
		b, err := a.block(c, message.BlockReasoning)
		if err != nil || b.ended {
			return err
		}
		b.content.add(c.Text)
		return nil
	case ChunkToolCallDelta:
		b, err := a.block(c, message.BlockToolCall)
		if err != nil || b.ended {
			return err
		}
		if b.id == "" {
			b.id = c.ID
		}
		if b.name == "" {
			b.name = c.Name
		}
		b.content.add(c.Arguments)
		return nil
	case ChunkBlockEnd:
		return a.endBlock(c)
	case ChunkUsage:
		if c.Usage != nil {
			u := sane(*c.Usage)
			a.usage = &u
		}
		return nil
	case ChunkFinish:
		f := Finish{Kind: FinishStop}
		if c.Finish != nil {
			f = *c.Finish
		}
		a.finish = &f
		return nil
	default:
		return malformed("unknown chunk kind %q", c.Kind)
	}
}

func malformed(format string, args ...any) error {
	return codedError(CodeMalformedResponse, "assemble the answer: "+fmt.Sprintf(format, args...))
}

func (a *Assembler) endBlock(c Chunk) error {
	typ := message.BlockType("")
	if c.Block != nil {
		typ = c.Block.Type
	}
	b, err := a.block(c, typ)
	if err != nil {
		return err
	}
	if b.ended {
		return malformed("block %d ended twice", c.Index)
	}
	b.ended = true
	b.end = c.Block
	return nil
}

// block finds or opens the block of a chunk. typ is what the chunk says of the
// block's type, or "".
func (a *Assembler) block(c Chunk, typ message.BlockType) (*partial, error) {
	if c.Index < 0 {
		return nil, malformed("%s has index %d", c.Kind, c.Index)
	}
	b := a.last
	if b == nil || b.index != c.Index {
		b = a.find(c.Index)
		a.last = b
	}
	if b.typ == "" {
		b.typ = typ
	} else if typ != "" && typ != b.typ {
		return nil, malformed("%s of type %q in block %d of type %q", c.Kind, typ, c.Index, b.typ)
	}
	return b, nil
}

func (a *Assembler) find(index int) *partial {
	at := len(a.order)
	if at > 0 && a.order[at-1].index >= index {
		var found bool
		at, found = slices.BinarySearchFunc(a.order, index, func(p *partial, index int) int { return p.index - index })
		if found {
			return a.order[at]
		}
	}
	b := &a.first
	if a.order == nil {
		a.order = a.orderBuf[:0]
	} else {
		b = new(partial)
	}
	b.index = index
	a.order = slices.Insert(a.order, at, b)
	return b
}

func (a *Assembler) noteText(b *partial) {
	if a.runs == nil {
		a.runs = a.runsBuf[:0]
	}
	if n := len(a.runs); n > 0 && a.runs[n-1].block == b {
		a.runs[n-1].end = b.content.len()
		return
	}
	a.runs = append(a.runs, textRun{block: b, end: b.content.len()})
}

// empty reports whether nothing but a start was heard of the block.
func (p *partial) empty() bool {
	return p.end == nil && p.content.len() == 0 && p.id == "" && p.name == ""
}

func (p *partial) block() message.Block {
	if p.end != nil {
		return *p.end
	}
	switch p.typ {
	case message.BlockToolCall:
		return message.ToolCall(p.id, p.name, p.content.String())
	default:
		return message.Block{Type: p.typ, Text: p.content.String()}
	}
}

func (p *partial) blockType() message.BlockType {
	if p.end != nil {
		return p.end.Type
	}
	return p.typ
}

// kept reports whether the block is part of the message: empty ones are not, and
// neither are the tool calls of an answer that was cut (core M8).
func (a *Assembler) kept(p *partial) bool {
	if p.empty() {
		return false
	}
	cut := a.finish != nil && a.finish.Kind == FinishMaxTokens
	return !cut || p.blockType() != message.BlockToolCall
}

// Blocks returns the content of the message so far, by block index. An answer that
// was cut by max-tokens has no tool calls, since their arguments may be cut too
// (core M8).
func (a *Assembler) Blocks() []message.Block {
	if len(a.order) == 0 {
		return nil
	}
	blocks := make([]message.Block, 0, len(a.order))
	for _, p := range a.order {
		if a.kept(p) {
			blocks = append(blocks, p.block())
		}
	}
	return blocks
}

// Usage returns the usage that the stream reported, and false when it did not.
func (a *Assembler) Usage() (message.Usage, bool) {
	if a.usage == nil {
		return message.Usage{}, false
	}
	return *a.usage, true
}

// Finish returns how the stream ended, "stop" when it did not say (core M7).
// Replay.Blocks of the result has one entry per block of Blocks (core M8); a
// replay state whose entries cannot be aligned is dropped whole, since a half of
// it would corrupt the replay.
func (a *Assembler) Finish() Finish {
	if a.finish == nil {
		return Finish{Kind: FinishStop}
	}
	f := *a.finish
	if f.Replay == nil || f.Replay.Blocks == nil {
		return f
	}
	if len(f.Replay.Blocks) != len(a.order) {
		f.Replay = nil
		return f
	}
	aligned := make([][]byte, 0, len(a.order))
	for i, p := range a.order {
		if a.kept(p) {
			aligned = append(aligned, f.Replay.Blocks[i])
		}
	}
	f.Replay = &Replay{Response: f.Replay.Response, Blocks: aligned}
	return f
}

// Interrupted returns what a person could see of a stream that was stopped: the
// text and reasoning so far that is not blank, and no tool calls (core M9).
func (a *Assembler) Interrupted() []message.Block {
	var blocks []message.Block
	for _, p := range a.order {
		if t := p.blockType(); t != message.BlockText && t != message.BlockReasoning {
			continue
		}
		if b := p.block(); strings.TrimSpace(b.Text) != "" {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// Text returns all text deltas so far in the order of their arrival, joined. It is
// the text that was streamed, whatever block-ends said later (seam OUT-05).
func (a *Assembler) Text() string {
	if len(a.runs) == 0 {
		return ""
	}
	if len(a.runs) == 1 {
		return a.runs[0].block.content.String()
	}
	var out strings.Builder
	texts := map[*partial]string{}
	from := map[*partial]int{}
	for _, r := range a.runs {
		s, ok := texts[r.block]
		if !ok {
			s = r.block.content.String()
			texts[r.block] = s
		}
		out.WriteString(s[from[r.block]:r.end])
		from[r.block] = r.end
	}
	return out.String()
}
