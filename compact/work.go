package compact

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// work is one compaction. Estimates are scaled so that they agree with what the vendor
// reported of the last request, where it reported more.
type work struct {
	c    *Compactor
	ctx  context.Context
	a    *agent.Agent
	s    *session.Session
	turn int64 // 0 outside a turn
	cfg  llm.CallConfig

	gauge *gauge

	window int64 // of the model, or what is taken for it; 0: there is no bound that anybody knows
	limit  int64 // from where on there is something to do, where there is a window
	fixed  int64
	coming int64   // what enters with the step
	scale  float64 // of estimates, at least 1
	always bool    // whatever the size is
	whole  int64   // the conversation before the first part was summed up, where there is no window

	result Result
}

func (c *Compactor) work(ctx context.Context, a *agent.Agent, turn int64, incoming []session.Queued) *work {
	w := &work{c: c, ctx: ctx, a: a, s: a.Session(), turn: turn, cfg: a.CallConfig(), gauge: c.gauge(a), scale: 1}
	w.fixed = fixed(w.s.RequestHeader())
	for i := range incoming {
		w.coming += tokens(&incoming[i].Message)
	}
	answer := int64(0)
	// A route that nobody holds fails the step itself, in words.
	if p, err := c.cfg.Models.Prepare(w.cfg); err == nil {
		w.window, answer = p.ContextWindow, p.Config.MaxTokens
		w.cfg.ReasoningEffort = p.Config.ReasoningEffort // the log tells of the adapter's own too
	}
	w.result.Window = w.window
	// Earlier than at the share where the answer's own bound would not fit any more.
	w.limit = max(min(w.window*triggerShare/100, w.window-answer), w.window/2)
	w.measure()
	return w
}

// maxScale is that of a tokenizer that makes a token of every byte.
const maxScale = 4

// measure fits the estimates to what the vendor counted. What it counted beyond a short
// conversation is its own addition to every request.
func (w *work) measure() {
	g := w.gauge
	g.follow(w.s)
	if g.known {
		switch estimate := w.fixed + w.c.history(w.a) - g.since; {
		case g.counted <= estimate:
		case estimate < w.window/8:
			w.fixed += g.counted - estimate
		default:
			w.scale = min(float64(g.counted)/float64(estimate), maxScale)
		}
	}
	w.result.Before = w.size()
	w.result.After = w.result.Before
}

// size estimates the next request.
func (w *work) size() int64 { return w.scaled(w.fixed + w.coming + w.c.history(w.a)) }

// full reports whether the next request is as long as one that has to be compacted.
func (w *work) full() bool { return w.window > 0 && w.size() >= w.limit }

func (w *work) scaled(n int64) int64   { return int64(float64(n) * w.scale) }
func (w *work) unscaled(n int64) int64 { return int64(float64(n) / w.scale) }

// overflow takes the size of the request that was too long for the window, if that is
// less than the window that the model is known for.
func (w *work) overflow() {
	w.always = true
	if n := w.size(); w.window == 0 || n < w.window {
		w.window = n
	}
	w.limit = w.window * triggerShare / 100
}

const (
	// maxRounds bounds the summaries of one compaction. More than one are made when the
	// conversation is too long to be summed up at once, as long as each of them makes it
	// shorter by leastGain hundredths of the window.
	maxRounds = 64
	leastGain = 2
	// leastPart is what part of the window a summary must have to take the place of, and may
	// have itself, however little room there is. It is also how much a conversation grows
	// before it is compacted again, where the last time did not help.
	leastPart = 16
	// leastBound is the shortest summary, in tokens, that is asked for in a window that turns
	// out to be smaller than it is known for.
	leastBound = 256
)

// run compacts and tells of it.
func (w *work) run() error {
	err := w.shrink()
	w.result.After = w.size()
	var e *Error
	if nothing := errors.As(err, &e) && e.Code == CodeNothing; err != nil && !nothing && w.turn > 0 { // of Compact the caller is told
		w.c.cfg.Logger.Warn("compaction failed", "agent", string(w.a.ID()), "error", err)
	}
	if w.c.cfg.Done != nil && (err != nil || w.result.Pruned+w.result.Summed > 0) {
		w.c.cfg.Done(w.a, w.result, err)
	}
	return err
}

func (w *work) shrink() error {
	if w.turn > 0 {
		if err := w.prune(); err != nil {
			return err
		}
		// After a request that was too long nobody knows how much is enough.
		if w.result.Pruned > 0 && !w.full() && !w.always {
			return nil
		}
	}
	most := int64(0) // what of the conversation one request for a summary may replay; 0: what the window allows
	var err error
	for again, n := true, 0; again && n < maxRounds; n++ {
		before := w.size()
		again, err = w.sum(&most)
		if err == nil && before-w.size() < w.window*leastGain/100 {
			break
		}
	}
	if w.result.Summed > 0 && llm.CodeOf(err) == llm.CodeContextWindow {
		return nil // what could be summed up was
	}
	return err
}

// stays returns where the part of the surface begins that is kept: its newest part, and
// in any case what the model has not answered yet.
func (w *work) stays(nodes []session.Node, legal []bool) int {
	keep := w.window * keepShare / 100
	if w.window == 0 {
		w.whole = max(w.whole, w.scaled(nodeTokens(nodes)))
		keep = w.whole * keepShare / 100
	} else { // where the rest of every request leaves little room, less than that
		keep = max(min(keep, (w.limit-w.scaled(w.fixed+w.coming))/4), 0)
	}
	return min(tail(nodes, legal, w.unscaled(keep)), unread(nodes, legal))
}

// prune shortens long results of tools: those before the part that stays, and where
// what the model has not read yet takes half the window, those in it too.
func (w *work) prune() error {
	nodes, _ := w.s.Surface()
	legal := cuts(nodes)
	at := w.stays(nodes, legal)
	if u := unread(nodes, legal); w.window > 0 && w.scaled(nodeTokens(nodes[u:])) > w.window/2 {
		at = len(nodes)
	}
	for i := range nodes[:at] {
		m := nodes[i].Message
		if m == nil || m.Source.Kind != message.SourceTool {
			continue
		}
		if err := w.pruneResult(&nodes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) pruneResult(n *session.Node) error {
	e, _ := w.s.Event(n.Seq) // it stands on the surface
	p, ok := e.Payload().(*session.ToolResult)
	if !ok {
		return nil
	}
	block := p.Message.Content[0]
	content, long := shorten(block.Content, pruneOver, pruneHead, pruneTail, func(runes int) string { return w.omitted(runes, &e, p) })
	if !long {
		return nil
	}
	short := *p
	block.Content = content
	short.Message.Content = []message.Block{block}
	_, err := w.s.AppendFunc(func(first int64) []session.Draft {
		return []session.Draft{
			{Payload: &session.CompactionPrune{Shadowed: session.Shadowed{Seqs: []int64{n.Seq}, Tokens: w.scaled(tokens(n.Message))}}},
			{Payload: &short, Op: session.SurfaceOp{Kind: session.OpReplace, Start: n.Seq, End: n.Seq}, Sources: []int64{n.Seq, first}},
		}
	})
	if err != nil {
		return &Error{CodeCommit, err}
	}
	w.result.Pruned++
	return nil
}

// omitted is the line that stands for what was taken out of a result. It names where
// the whole text can be read, to agents that have the tool for it.
func (w *work) omitted(runes int, e *session.Event, p *session.ToolResult) string {
	ref := session.SpillRef{Session: w.s.ID(), Seq: e.Seq}
	if before, ok := w.s.Event(e.Seq - 1); ok && before.Type == session.TypeToolSpill {
		if spill, ok := before.Payload().(*session.ToolSpill); ok && spill.CallID == p.Message.Source.Details().CallID {
			ref = session.SpillRef{Session: spill.Session, Seq: before.Seq}
		}
	}
	where, ok := w.readable(ref)
	if !ok {
		where = "call the tool again if you need them"
	}
	return fmt.Sprintf("\n[... %d characters left out here to make room in the conversation; %s ...]\n", runes, where)
}

// readable says where a whole text can be read, to agents that have the tool for it.
func (w *work) readable(ref session.SpillRef) (where string, ok bool) {
	if w.a.Tools().Toolset().Lookup(tool.ReadName) == nil {
		return "", false
	}
	return fmt.Sprintf("the tool %s shows the whole text at the path %s", tool.ReadName, ref), true
}

// sum makes one summary of what stands before the part that stays, or of as much of
// the oldest part as fits into a request. again says that it was not enough.
func (w *work) sum(most *int64) (again bool, err error) {
	nodes, gen := w.s.Surface()
	legal := cuts(nodes)
	limit := w.stays(nodes, legal)
	least := 0 // a summary of a summary alone is none
	if limit > 0 && isCheckpoint(nodes[0].Message) {
		least = 1
	}
	if limit <= least || !w.always && w.scaled(nodeTokens(nodes[least:limit])) < w.window/leastPart {
		if w.result.Summed+w.result.Pruned > 0 {
			return false, nil
		}
		return false, errNothing
	}
	prompt := ask()
	bound, at := w.bound(nodes[limit:]), limit
	if w.window > 0 {
		room := max(w.window*estimateShare/100-bound-w.scaled(w.fixed+tokens(&prompt)), w.window/8)
		if *most > 0 {
			room = min(room, *most)
		}
		at = head(nodes, legal, limit, w.unscaled(room))
	} else if *most > 0 {
		at = head(nodes, legal, limit, w.unscaled(*most))
	}
	if *most > 0 { // what was refused may have been so for the room that the summary asked for
		bound = min(bound, max(*most/2, leastBound))
	}
	if at <= least {
		at = next(legal, least, limit) // more than there is room for: the model may take it all the same
	}
	if at == 0 {
		return false, errNothing
	}
	err = w.bracket(nodes[:at], nodes[at:], gen, bound, prompt)
	if llm.CodeOf(err) == llm.CodeContextWindow {
		if *most = w.scaled(nodeTokens(nodes[:at])) / 2; head(nodes, legal, limit, w.unscaled(*most)) > least {
			return true, err // with a shorter part
		}
	}
	if err != nil {
		return false, err
	}
	w.always = w.always && at < limit
	return w.full() || at < limit && w.always, nil
}

var errNothing = &Error{CodeNothing, errors.New("nothing in the conversation can be left out")}

// bound returns how many tokens a summary may have that stands before those nodes: so
// many that the next request is not as long again as one that has to be compacted, if
// that leaves a summary worth its name.
func (w *work) bound(stays []session.Node) int64 {
	if w.window == 0 {
		return MaxSummary
	}
	most := min(MaxSummary, (w.window-w.scaled(w.fixed+w.coming))/4)
	least := min(MaxSummary, w.window/leastPart)
	said := int64(0)
	for _, k := range w.keep(stays) {
		said += int64(len(k.text))/4 + perMessage
	}
	room := w.limit - w.window/leastPart - w.scaled(w.fixed+w.coming+nodeTokens(stays)+said)
	return max(min(most, room), least)
}

// keep returns what is to be said again in front of those nodes: a task within a quarter
// of the window, and of the open turn what fits into an eighth.
func (w *work) keep(stays []session.Node) []kept {
	most := w.unscaled(max(w.window, w.size()) / 8)
	return keep(w.s, stays, 2*most, most, func(seq int64) string {
		if at, ok := w.readable(session.SpillRef{Session: w.s.ID(), Seq: seq}); ok {
			return at
		}
		return "the summary tells what matters of them"
	})
}

// next returns the first legal index behind at, up to limit; 0 if there is none.
func next(legal []bool, at, limit int) int {
	for i := at + 1; i <= limit; i++ {
		if legal[i] {
			return i
		}
	}
	return 0
}

func isCheckpoint(m *message.Message) bool {
	return m != nil && m.Source.Kind == message.SourcePlugin && m.Source.Details().Plugin == Plugin
}

// bracket makes one summary: start and request, the call, and in one hold of the log
// the summary, what replaces the nodes, what is said again, and the end (core D39).
func (w *work) bracket(nodes, stays []session.Node, gen, bound int64, prompt message.Message) (err error) {
	id := uuid.NewString()
	cfg := w.cfg
	cfg.MaxTokens, cfg.Stop = bound, nil
	first, last := nodes[0].Seq, nodes[len(nodes)-1].Seq
	if _, err := w.s.Append(
		session.Draft{Payload: &session.CompactionStart{CompactionID: id, Turn: w.turn}},
		session.Draft{Payload: &session.CompactionRequest{CompactionID: id, Start: first, End: last, Config: session.CallConfig(cfg), Message: prompt}},
	); err != nil {
		return &Error{CodeCommit, err}
	}
	err = errors.New("a panic") // it goes on, but a bracket that stays open would keep the turn open
	defer func() {
		if err == nil {
			return
		}
		end := &session.CompactionEnd{CompactionID: id, Turn: w.turn, Error: strings.ToValidUTF8(err.Error(), "\uFFFD")}
		if _, eerr := w.s.Append(session.Draft{Payload: end}); eerr != nil {
			err = errors.Join(err, eerr)
		}
	}()
	err = w.replace(id, cfg, nodes, stays, gen, prompt)
	return err
}

func (w *work) replace(id string, cfg llm.CallConfig, nodes, stays []session.Node, gen int64, prompt message.Message) error {
	// As before every request: whose log it is, and that what leaves is stored.
	if err := w.s.CheckOwner(w.ctx); err != nil {
		return w.fault(CodePersistence, err)
	}
	if err := w.s.Flush(w.ctx); err != nil {
		return w.fault(CodePersistence, err)
	}
	answer, err := w.c.cfg.Models.Complete(w.ctx, cfg, w.request(nodes, prompt), rand.Float64)
	if err != nil {
		return w.fault(CodeSummary, err)
	}
	text := message.JoinText(answer.Content)
	if strings.TrimSpace(text) == "" {
		return &Error{CodeSummary, fmt.Errorf("the model answered without a text (%s)", answer.Finish)}
	}
	if answer.Finish == llm.FinishRefusal {
		return &Error{CodeSummary, errors.New("the model declined to sum up the conversation")}
	}
	if _, now := w.s.Surface(); now != gen {
		return &Error{CodeChanged, errors.New("the conversation was replaced meanwhile")}
	}
	if answer.Usage != nil {
		w.result.Usage = w.result.Usage.Add(*answer.Usage)
	}
	// An endpoint that does not keep to the bound must not fill the window with a summary.
	text = tool.Clip(strings.ToValidUTF8(text, "\uFFFD"), int(8*cfg.MaxTokens))
	instead := checkpoint(id, text, w.keep(stays))
	if tokens(&instead) >= nodeTokens(nodes) {
		return &Error{CodeNothing, errors.New("the summary is no shorter than what it would replace")}
	}
	seqs := make([]int64, len(nodes))
	for i := range nodes {
		seqs[i] = nodes[i].Seq
	}
	notices := w.c.restate(w.a, stays)
	_, err = w.s.AppendFunc(func(at int64) []session.Draft {
		drafts := []session.Draft{
			{Payload: &session.CompactionSummary{
				CompactionID: id, Summary: []message.Block{message.Text(text)}, Shadowed: session.Shadowed{Seqs: seqs, Tokens: w.scaled(nodeTokens(nodes))},
				Provider: cfg.Provider, Model: cfg.Model, MaxTokens: cfg.MaxTokens, Usage: answer.Usage, RawOutput: clean(answer.Content), ModelCall: true,
			}},
			{
				Payload: &session.UserMessage{Message: instead},
				Op:      session.SurfaceOp{Kind: session.OpReplace, Start: seqs[0], End: seqs[len(seqs)-1]},
				Sources: append(slices.Sorted(slices.Values(seqs)), at), // those in order are checked fastest
			},
		}
		for _, m := range notices {
			drafts = append(drafts, session.Draft{Payload: &session.UserMessage{Message: m}})
		}
		return append(drafts, session.Draft{Payload: &session.CompactionEnd{CompactionID: id, Turn: w.turn}})
	})
	if err != nil {
		return &Error{CodeCommit, err}
	}
	w.result.Summed += len(nodes)
	return nil
}

// request replays what is to be summed up as the model saw it, so that what the vendor
// has cached of it counts.
func (w *work) request(nodes []session.Node, prompt message.Message) llm.Request {
	req := llm.Request{SessionID: w.a.SessionID(), Purpose: llm.PurposeCompaction, Messages: make([]message.Message, 0, len(nodes)+1)}
	for i := range nodes {
		if m := nodes[i].Message; m != nil {
			req.Messages = append(req.Messages, *m)
		}
	}
	req.Messages = append(req.Messages, prompt)
	if h := w.s.RequestHeader(); h != nil {
		req.System = h.System
		for i := range h.Tools {
			t := &h.Tools[i]
			req.Tools = append(req.Tools, llm.ToolSpec{Name: t.Name, Description: t.Description, Parameters: t.Parameters})
		}
	}
	return req
}

// fault words an error, which is the end of the context if that ended.
func (w *work) fault(code Code, err error) error {
	if w.ctx.Err() != nil {
		return &Error{CodeCancelled, context.Cause(w.ctx)}
	}
	return &Error{code, err}
}

// clean makes what a model said fit for the log.
func clean(blocks []message.Block) []message.Block {
	out := make([]message.Block, 0, len(blocks))
	for _, b := range blocks {
		if b.Type == message.BlockToolCall {
			continue // nobody runs it, and its parts need not be whole
		}
		b.Text = strings.ToValidUTF8(b.Text, "\uFFFD")
		out = append(out, b)
	}
	return out
}
