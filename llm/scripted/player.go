package scripted

import (
	"context"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// maxNesting bounds steps whose functions return steps with functions.
const maxNesting = 16

// player is one call under way. All that the consumer may keep of it is written
// once: the blocks, the usage and the finish live in it, so that an answer of one
// block needs no other memory.
type player struct {
	adapter *Adapter
	ctx     context.Context
	req     *llm.Request
	yield   func(llm.Chunk, error) bool

	conversation, position int
	split                  int
	nesting                int
	failTimes              int // how many FailTimes parts were played

	// over says that nothing more may be yielded.
	over bool

	block *message.Block // the open one
	first message.Block
	index int // of the open or else the next block
	calls int
	bytes int // of output

	usage              message.Usage
	usageSet, usageOff bool
	end                llm.Finish
}

func (p *player) play(step Step) {
	p.nesting++
	defer func() { p.nesting-- }()
	if p.nesting > maxNesting {
		p.fault(CodeInvalid, "scripted model: functions return steps with functions more than %d deep", maxNesting)
		return
	}
	if len(step) == 0 {
		p.fault(CodeInvalid, "scripted model: step %d of conversation %q has no parts", p.position+1, p.adapter.name(p.conversation))
		return
	}
	for i := range step {
		switch part := &step[i]; {
		case part.err != nil:
			p.fault(CodeInvalid, "scripted model: step %d of conversation %q, part %d: %w", p.position+1, p.adapter.name(p.conversation), i+1, part.err)
		case part.play == nil:
			p.fault(CodeInvalid, "scripted model: step %d of conversation %q, part %d is the zero Part", p.position+1, p.adapter.name(p.conversation), i+1)
		case part.ends && i != len(step)-1:
			p.fault(CodeInvalid, "scripted model: step %d of conversation %q goes on after part %d, which ends the answer", p.position+1, p.adapter.name(p.conversation), i+1)
		}
		if p.over {
			return
		}
	}
	for i := range step {
		step[i].play(p)
		if p.over {
			return
		}
	}
}

// complete finishes an answer that no part has ended.
func (p *player) complete() {
	switch {
	case p.over:
	case p.calls > 0:
		p.finish(llm.FinishToolCalls)
	default:
		p.finish(llm.FinishStop)
	}
}

// emit yields a chunk unless the call is over.
func (p *player) emit(c llm.Chunk) {
	if p.over {
		return
	}
	if p.ctx.Err() != nil {
		p.abort()
		return
	}
	if !p.yield(c, nil) {
		p.over = true
	}
}

// last yields the chunk that ends the stream.
func (p *player) last(f *llm.Finish) {
	if p.over {
		return
	}
	p.over = true
	p.yield(llm.Chunk{Kind: llm.ChunkFinish, Finish: f}, nil)
}

func (p *player) abort() { p.last(llm.Aborted(p.ctx)) }

// fail ends the call with a failure. An open block stays open.
func (p *player) fail(f message.Failure) {
	if p.usageSet {
		p.emit(llm.Chunk{Kind: llm.ChunkUsage, Usage: &p.usage})
	}
	p.last(llm.Failed(f))
}

// failWith ends the call with an error, which the caller of the adapter turns into
// a failure.
func (p *player) failWith(err error) {
	switch {
	case p.over:
	case p.ctx.Err() != nil:
		p.abort()
	default:
		p.over = true
		p.yield(llm.Chunk{}, err)
	}
}

// fault is a failure of the script itself. format takes %w.
func (p *player) fault(code, format string, args ...any) {
	if p.over {
		return
	}
	f := message.Failure{Code: code, Message: fmt.Errorf(format, args...).Error()}
	p.adapter.book.fault(&f)
	p.fail(f)
}

func (p *player) finish(kind llm.FinishKind) {
	p.closeBlock()
	if !p.usageOff {
		if !p.usageSet {
			p.usage = message.Usage{InputTokens: estimate(p.req), OutputTokens: tokens(p.bytes)}
		}
		p.emit(llm.Chunk{Kind: llm.ChunkUsage, Usage: &p.usage})
	}
	p.end.Kind = kind
	p.last(&p.end)
}

func (p *player) sleep(d time.Duration) {
	if p.adapter.options.Sleep == nil {
		p.fault(CodeInvalid, "scripted model: a wait of %v needs Options.Sleep", d)
		return
	}
	if err := p.adapter.options.Sleep(p.ctx, d); err != nil {
		p.failWith(err)
	}
}

func (p *player) pace() {
	if d := p.adapter.options.Pace; d > 0 && !p.over {
		p.sleep(d)
	}
}

func (p *player) expand(t template) (string, bool) {
	s, err := t.expand(p.req)
	if err != nil {
		p.fault(CodeCapture, "scripted model: step %d of conversation %q: %w", p.position+1, p.adapter.name(p.conversation), err)
		return "", false
	}
	return s, true
}

// openBlock starts the next block.
func (p *player) openBlock(typ message.BlockType) {
	p.closeBlock()
	p.block = &p.first
	if p.first.Type != "" {
		p.block = new(message.Block)
	}
	p.block.Type = typ
	p.emit(llm.Chunk{Kind: llm.ChunkBlockStart, Index: p.index, BlockType: typ})
}

// closeBlock ends the open block, if there is one. Blocks are closed late, so that
// a stall, a failure or a cut meets one that is still open.
func (p *player) closeBlock() {
	if p.block == nil {
		return
	}
	b, index := p.block, p.index
	p.block = nil
	p.index++
	p.emit(llm.Chunk{Kind: llm.ChunkBlockEnd, Index: index, Block: b})
}

func (p *player) text(typ message.BlockType, s string) {
	if p.block == nil || p.block.Type != typ {
		p.openBlock(typ)
	}
	kind := llm.ChunkTextDelta
	if typ == message.BlockReasoning {
		kind = llm.ChunkReasoningDelta
	}
	if p.block.Text == "" {
		p.block.Text = s
	} else {
		p.block.Text += s
	}
	p.bytes += len(s)
	for n := p.split; s != "" && !p.over; n-- {
		piece := head(s, n)
		s = s[len(piece):]
		p.pace()
		p.emit(llm.Chunk{Kind: kind, Index: p.index, Text: piece})
	}
}

func (p *player) call(id, tool, args string) {
	if id == "" {
		id = p.callID()
	}
	p.calls++
	p.openBlock(message.BlockToolCall)
	p.block.ID, p.block.Name, p.block.Arguments = id, tool, args
	p.bytes += len(tool) + len(args)
	c := llm.Chunk{Kind: llm.ChunkToolCallDelta, Index: p.index, ID: id, Name: tool}
	for n := p.split; !p.over; n-- {
		c.Arguments = head(args, n)
		args = args[len(c.Arguments):]
		p.pace()
		p.emit(c)
		if args == "" {
			return
		}
		c.Name = ""
	}
}

// callID counts positions in the whole request even where the conversation does
// not: within one history no two calls share an id.
func (p *player) callID() string {
	position := Position(p.req)
	if f := p.adapter.options.CallID; f != nil {
		return f(p.req, position, p.calls)
	}
	return "call-" + strconv.Itoa(position) + "-" + strconv.Itoa(p.calls)
}

func (p *player) raw(c llm.Chunk) {
	if c.Kind == llm.ChunkFinish {
		if !p.over {
			p.over = true
			p.yield(c, nil)
		}
		return
	}
	p.closeBlock()
	p.emit(c)
	switch c.Kind {
	case llm.ChunkUsage:
		p.usageOff = true
		return
	case llm.ChunkToolCallDelta:
		p.calls++
	}
	p.index = max(p.index, c.Index+1)
}

// head returns the first of n pieces of s of about the same size, cut at a rune
// boundary. It is s itself for n below 2.
func head(s string, n int) string {
	if n < 2 {
		return s
	}
	at := min(max(len(s)/n, 1), len(s))
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return s[:at]
}

func tokens(bytes int) int64 { return int64(bytes+3) / 4 }

// estimate guesses the input tokens of a request.
func estimate(req *llm.Request) int64 {
	n := len(req.System)
	for i := range req.Tools {
		t := &req.Tools[i]
		n += len(t.Name) + len(t.Description) + len(t.Parameters)
	}
	for i := range req.Messages {
		n += blockBytes(req.Messages[i].Content)
	}
	return tokens(n)
}

func blockBytes(blocks []message.Block) int {
	n := 0
	for i := range blocks {
		b := &blocks[i]
		n += len(b.Text) + len(b.Name) + len(b.Arguments) + len(b.Raw) + blockBytes(b.Content)
	}
	return n
}
