package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// display is how a run is shown.
type display struct {
	live    bool // a terminal that can be redrawn
	tty     bool // a terminal of any kind: its width bounds the summary
	quiet   bool
	verbose bool
	size    func() (width, height int) // of the terminal
}

// progress shows on stderr what the tree of agents is doing: one tree that is
// redrawn on a terminal, plain lines otherwise, and at the end a line for each
// child. What it tells of an agent comes from that agent's log, from which nothing is
// dropped; live events only say what it is doing. A terminal that takes nothing
// holds up no agent: the hooks take mu alone.
type progress struct {
	display
	w   io.Writer
	now func() time.Time

	out    sync.Mutex // guards w and following; taken before mu
	free   *sync.Cond // paused has become 0
	drawn  int        // lines of the last drawing
	paused int
	over   bool // nothing is shown any more

	mu     sync.Mutex // guards following and all nodes; never held while writing
	root   *node
	nodes  map[session.ID]*node // of those that more will be heard of
	kept   int                  // nodes of agents that are gone
	frame  int
	last   *message.Failure // the newest failure of a model call
	spoken []*node          // those that said something which is not shown yet
	hushed bool             // nobody says anything any more

	stopTick chan struct{}
	wake     chan struct{} // something is in spoken, or hushed
	ticking  sync.WaitGroup
}

// node is what is known of one agent.
type node struct {
	id       session.ID // "" of a run that is in no session here
	agent    *agent.Agent
	label    string // what it is shown as
	named    string // its own label
	number   int    // behind a label that others have too, or 0
	depth    int
	parent   *node
	kids     []*node
	folded   int   // finished nodes below that are only counted
	spent    int64 // their tokens
	provider string
	lasting  bool // a continuable child, which may come back
	model    string
	tokens   int64
	calls    int64 // tool calls that were made
	started  time.Time
	ended    time.Time
	running  bool
	end      session.EndKind     // of its last turn
	stop     subagent.StopReason // what its parent was told
	run      bool                // its parent will be told
	disposed bool
	gone     bool // nothing more will be heard of it

	doing string
	tools map[string]string // running tool calls: id to description
	order []string

	voice  voice
	queued bool // it is in spoken
}

const (
	// maxNodes is how many agents are kept apart; finished ones beyond are counted.
	maxNodes   = 500
	tick       = 100 * time.Millisecond
	spinner    = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	wrapOff    = "\x1b[?7l"
	wrapOn     = "\x1b[?7h"
	clearBelow = "\x1b[J"
	// maxLabel and maxModel bound, in runes, what models and configurations call things.
	maxLabel = 60
	maxModel = 40
)

// newProgress returns a display on w that works until stop is called.
func newProgress(w io.Writer, d display) *progress {
	d.live = d.live && !d.quiet
	p := &progress{display: d, w: w, now: time.Now, nodes: map[session.ID]*node{},
		stopTick: make(chan struct{}), wake: make(chan struct{}, 1)}
	p.free = sync.NewCond(&p.out)
	if p.live {
		p.ticking.Go(p.redraw)
	}
	if p.verbose {
		p.ticking.Go(p.speak)
	}
	return p
}

// redraw draws until stop; stop joins it.
func (p *progress) redraw() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-p.stopTick:
			return
		case <-t.C:
			p.mu.Lock()
			p.frame++
			p.mu.Unlock()
			p.out.Lock()
			p.draw()
			p.out.Unlock()
		}
	}
}

// stop shows what was said and not shown yet, and ends the display with the
// summary. Where there is none, the tree is left standing.
func (p *progress) stop() {
	p.hush()
	close(p.stopTick)
	p.ticking.Wait()
	p.out.Lock()
	defer p.out.Unlock()
	if summary := p.summary(); summary != "" && !p.quiet {
		p.erase()
		p.print(summary)
	} else {
		p.draw()
	}
	p.drawn, p.over = 0, true
}

// pause keeps the terminal free for somebody else until resume is called.
func (p *progress) pause() (resume func()) {
	p.out.Lock()
	defer p.out.Unlock()
	p.erase()
	p.paused++
	return func() {
		p.out.Lock()
		defer p.out.Unlock()
		if p.paused--; p.paused == 0 {
			p.free.Broadcast()
		}
	}
}

// note prints a line for people above the tree.
func (p *progress) note(format string, args ...any) {
	p.out.Lock()
	defer p.out.Unlock()
	p.above(printable(fmt.Sprintf(format, args...)) + "\n")
}

// above prints whole lines above the tree. p.out is held.
func (p *progress) above(lines string) {
	if p.quiet || p.over {
		return
	}
	p.erase()
	p.print(lines)
	p.draw()
}

// watch makes p follow the agents and the delegations of a system. It returns a
// function that waits until what was observed is shown.
func (p *progress) watch(agents *agent.Registry, runs *subagent.Service) (stop func()) {
	stop = agents.Observe(4096, p.observe)
	if p.quiet {
		return stop
	}
	hooks := agent.Hooks{Created: p.created, Disposed: p.disposed}
	if p.verbose {
		hooks.Chunk = p.chunk
	}
	agents.AddHooks(hooks)
	runs.AddHooks(subagent.Hooks{Started: p.started, Ended: p.ended}, nil)
	return stop
}

// created is a hook: it follows an agent from before its first event on.
func (p *progress) created(a *agent.Agent) error {
	// A continuable child has no owner among the agents.
	owner := a.Session().Header().ParentSession
	if o := a.Owner(); o != nil {
		owner = o.ID()
	}
	if a.Root() {
		owner = ""
	}
	p.mu.Lock()
	n := p.back(a.ID())
	if n == nil {
		n = p.add(a.ID(), owner)
	}
	n.id, n.agent = a.ID(), a
	if o := a.Options(); o.Model != "" {
		n.asked(o.Provider, o.Model)
	}
	p.mu.Unlock()
	a.Session().Watch(&follower{p: p, n: n, s: a.Session()})
	return nil
}

// back returns the node of a continuable child that is opened once more, or nil. p.mu is
// held.
func (p *progress) back(id session.ID) *node {
	n := p.nodes[id]
	if n == nil && p.root != nil {
		p.root.each(func(k *node) {
			if k.id == id && k.gone {
				n = k
			}
		})
		if n != nil {
			p.nodes[id] = n
			p.kept--
		}
	}
	if n != nil {
		n.gone, n.disposed, n.stop, n.end, n.tools = false, false, "", "", map[string]string{}
	}
	return n
}

// disposed is a hook: an agent that has done nothing, as one that was vetoed, is no
// child to be told of.
func (p *progress) disposed(a *agent.Agent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[a.ID()]
	if n == nil || n.agent != a || n.parent == nil || !n.started.IsZero() {
		return
	}
	delete(p.nodes, a.ID())
	n.parent.kids = slices.DeleteFunc(n.parent.kids, func(k *node) bool { return k == n })
}

// follower moves a node by the log of its agent.
type follower struct {
	p *progress
	n *node
	s *session.Session
}

// Apply implements session.Fold.
func (f *follower) Apply(e *session.Event) {
	p, n := f.p, f.n
	p.mu.Lock()
	defer p.mu.Unlock()
	switch t := e.Payload().(type) {
	case *session.TurnStart:
		if n.started.IsZero() {
			n.started = p.now()
		}
		n.running, n.ended, n.end = true, time.Time{}, ""
	case *session.TurnEnd:
		n.running, n.ended, n.end, n.doing = false, p.now(), t.Kind, ""
	case *session.DescriptorEvent:
		if t.Err == nil {
			n.provider = printable(clip(t.Descriptor.Provider, maxLabel))
			if t.Descriptor.Label != nil {
				p.name(n, *t.Descriptor.Label)
			}
		}
	case *session.RequestHeader:
		n.asked(t.Config.Provider, t.Config.Model)
	case *session.AssistantMessage:
		if t.Usage != nil {
			n.tokens += t.Usage.Total()
		}
	case *session.ToolCall:
		n.calls++
	case *session.CompactionStart:
		n.doing = "summing up the conversation"
	case *session.CompactionSummary:
		if t.Usage != nil {
			n.tokens += t.Usage.Total()
		}
	case *session.CompactionEnd:
		n.doing = ""
	}
	if p.verbose && n.parent != nil {
		n.voice.logged(f.s, e)
		p.queue(n)
	}
}

// compacted is a hook of the composition: it tells what became of a conversation. A
// failure is a remark of its own; what it cost is in the log.
func (p *progress) compacted(a *agent.Agent, r compact.Result, _ error) {
	p.mu.Lock()
	n := p.nodes[a.ID()]
	p.mu.Unlock()
	what := ""
	switch {
	case n == nil:
	case r.Summed > 0:
		what = "summed up " + plural(int64(r.Summed), "message")
	case r.Pruned > 0:
		what = "shortened " + plural(int64(r.Pruned), "long result")
	}
	if what != "" {
		p.line(n, fmt.Sprintf("%s: about %s tokens, before %s", what, thousands(r.After), thousands(r.Before)))
	}
}

func (n *node) asked(provider, model string) {
	n.model = printable(clip(provider+":"+model, maxModel))
}

// started is a hook of the seam. A run that is no agent of this process is known by
// its edges alone.
func (p *progress) started(e subagent.StartEdge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[e.ID]
	if !e.Local {
		owner := session.ID("")
		if e.Parent != nil {
			owner = e.Parent.ID()
		}
		n = p.add(remote(&e), owner)
		n.provider, n.started, n.running, n.disposed = printable(clip(e.Provider, maxLabel)), p.now(), true, true
	}
	if n == nil {
		return
	}
	n.run = true
	if e.Epoch > 0 {
		n.lasting, n.provider = true, printable(clip(e.Provider, maxLabel))
	}
	p.name(n, e.Label)
}

// remote is the key of a run that is in no session of this process: the ids of such
// runs are unique for their parent only.
func remote(e *subagent.StartEdge) session.ID { return session.ID("run " + e.RunID) }

// ended is a hook of the seam: it learns what a child's parent is told.
func (p *progress) ended(e subagent.EndEdge) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := e.ID
	if !e.Local {
		id = remote(&e.StartEdge)
	}
	n := p.nodes[id]
	if n == nil {
		return
	}
	n.stop, n.run = e.StopReason, false
	if !e.Local {
		n.running, n.ended = false, p.now()
		if p.verbose {
			n.voice.all(message.JoinText(e.Output))
			p.queue(n)
		}
	}
	p.settle(id, n)
}

// observe takes one live event.
func (p *progress) observe(e agent.Event) {
	if n, text := p.see(&e); text != "" {
		p.line(n, text)
	}
}

// see returns the plain line that tells of an event, or "".
func (p *progress) see(e *agent.Event) (*node, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case agent.EventMissed:
		return nil, ""
	case agent.EventRetry:
		p.last = e.Retry
	case agent.EventFailed:
		f := llm.FailureOf(e.Err)
		p.last = &f
	}
	n := p.nodes[e.Agent.ID()]
	if n == nil || n.agent != e.Agent {
		return nil, "" // or it has come back meanwhile
	}
	switch e.Kind {
	case agent.EventStatus:
		if e.Status != agent.Running {
			n.doing = ""
			return n, fmt.Sprintf("idle after %s, %s tokens", n.elapsed(p.now()), count(n.tokens))
		}
	case agent.EventChunk:
		n.doing = doing(e.Chunk, n.doing)
	case agent.EventMessage:
		n.doing = ""
	case agent.EventToolStarted:
		d := printable(clip(e.Call.Describe(), 60))
		n.tools[e.Call.ID] = d
		n.order = append(n.order, e.Call.ID)
		return n, d
	case agent.EventToolEnded:
		n.toolEnded(e.Call)
		if e.Failed {
			return n, printable(clip(e.Call.Describe(), 60)) + " failed"
		}
	case agent.EventToolRefused:
		n.doing = printable(clip(e.Call.Name, 60)) + " was refused"
		return n, printable(clip(fmt.Sprintf("%s was refused: %v", e.Call.Name, e.Err), 200))
	case agent.EventRetry:
		n.doing = "waiting to try again: " + printable(clip(e.Retry.Message, 60))
		return n, n.doing
	case agent.EventFailed:
		return n, "failed: " + printable(clip(p.last.Message, 200))
	case agent.EventDisposed:
		n.running, n.disposed = false, true
		if n.ended.IsZero() && !n.started.IsZero() {
			n.ended = p.now()
		}
		p.settle(e.Agent.ID(), n)
	}
	return nil, ""
}

// settle forgets an agent that is disposed, once its parent was told of its end.
// Beyond maxNodes it folds finished leaves, the oldest first, into counts of their
// parents.
func (p *progress) settle(id session.ID, n *node) {
	if !n.disposed || n.run || n.gone {
		return
	}
	n.gone = true
	n.tools, n.order, n.agent = nil, nil, nil
	// What nothing else looks up needs no entry: a disposed agent has no more events,
	// and no more children.
	delete(p.nodes, id)
	if n.parent == nil {
		return
	}
	for p.kept++; p.kept+len(p.nodes) > maxNodes && p.root.fold(); p.kept-- {
	}
}

// fold turns one finished leaf below n into a count and reports whether there was one.
func (n *node) fold() bool {
	for i, k := range n.kids {
		if k.fold() {
			return true
		}
		if k.gone && len(k.kids) == 0 {
			n.folded += 1 + k.folded
			n.spent += k.tokens + k.spent
			n.kids = append(n.kids[:i:i], n.kids[i+1:]...)
			return true
		}
	}
	return false
}

func (n *node) toolEnded(c *tool.Call) {
	delete(n.tools, c.ID)
	n.order = slices.DeleteFunc(n.order, func(id string) bool { return id == c.ID })
}

func doing(c llm.Chunk, was string) string {
	switch c.Kind {
	case llm.ChunkTextDelta:
		return "writing"
	case llm.ChunkReasoningDelta:
		return "thinking"
	case llm.ChunkToolCallDelta:
		return "calling a tool"
	}
	return was
}

func (p *progress) add(id, owner session.ID) *node {
	n := &node{tools: map[string]string{}, label: "agent"}
	p.nodes[id] = n
	parent := p.nodes[owner]
	switch {
	case p.root == nil:
		p.root = n
		return n
	case parent == nil && owner == "":
		return n
	case parent == nil:
		parent = p.root // its own parent is not at work
	}
	n.parent, n.depth, n.label = parent, parent.depth+1, "subagent"
	parent.kids = append(parent.kids, n)
	return n
}

// name gives a child its label, with a number behind it where another one has it
// already: lines of both may stand in turn.
func (p *progress) name(n *node, label string) {
	label = strings.TrimSpace(printable(clip(label, maxLabel)))
	if label == "" || n.named == label {
		return
	}
	n.named = label
	most := 0
	if p.root != nil {
		p.root.each(func(k *node) {
			if k != n && k.named == label {
				most = max(most, k.number, 1)
			}
		})
	}
	n.label = label
	if most > 0 {
		n.number = most + 1
		n.label = fmt.Sprintf("%s (%d)", label, n.number)
	}
}

// each calls fn for n and all below it, parents first.
func (n *node) each(fn func(*node)) {
	fn(n)
	for _, k := range n.kids {
		k.each(fn)
	}
}

// failure returns the newest failure of a model call, or nil.
func (p *progress) failure() *message.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

func (n *node) elapsed(now time.Time) string {
	if n.started.IsZero() {
		return "0.0s"
	}
	if !n.ended.IsZero() {
		now = n.ended
	}
	d := now.Sub(n.started)
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

func count(n int64) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%.0fk", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}

// line prints one plain line, behind what the agent has said before; on a terminal
// the tree says it instead.
func (p *progress) line(n *node, text string) {
	p.out.Lock()
	defer p.out.Unlock()
	if p.live || p.quiet || p.over {
		return
	}
	if p.verbose && p.paused == 0 {
		p.utter(n)
	}
	p.mu.Lock()
	head := n.indent() + n.label
	p.mu.Unlock()
	p.print(head + ": " + text + "\n")
}

func (n *node) indent() string { return strings.Repeat("  ", min(n.depth, maxIndent)) }

// print writes for people; a display that fails is no reason to fail a run.
func (p *progress) print(s string) { _, _ = io.WriteString(p.w, s) }

func (p *progress) erase() {
	if p.live && p.drawn > 0 {
		p.print(fmt.Sprintf("\x1b[%dA\r%s", p.drawn, clearBelow))
		p.drawn = 0
	}
}

// draw draws the tree in the place of the last drawing. p.out is held.
func (p *progress) draw() {
	if !p.live || p.paused > 0 || p.over {
		return
	}
	width, height := p.size()
	var lines []string
	p.mu.Lock()
	if p.root != nil {
		p.render(p.root, "", "", width, &lines)
	}
	p.mu.Unlock()
	if len(lines) == 0 {
		return
	}
	if most := max(height-2, 3); len(lines) > most {
		rest := len(lines) - most
		lines = append(lines[:most:most], fmt.Sprintf("… %d more", rest))
	}
	var b strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", p.drawn)
	}
	b.WriteString(wrapOff)
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString(clearBelow + wrapOn)
	p.print(b.String())
	p.drawn = len(lines)
}

func (p *progress) render(n *node, head, tail string, width int, lines *[]string) {
	*lines = append(*lines, p.row(n, head, width))
	if n.folded > 0 {
		branch := "├─ "
		if len(n.kids) == 0 {
			branch = "└─ "
		}
		*lines = append(*lines, fit(fmt.Sprintf("%s%s… %d more, finished · %s tokens", tail, branch, n.folded, count(n.spent)), width))
	}
	for i, k := range n.kids {
		if i == len(n.kids)-1 {
			p.render(k, tail+"└─ ", tail+"   ", width, lines)
		} else {
			p.render(k, tail+"├─ ", tail+"│  ", width, lines)
		}
	}
}

// leastLabel and leastModel are how many cells of them are shown whatever else there is.
const (
	leastLabel = 12
	leastModel = 8
)

// row is the line of one agent in the tree: what it is called, the figures, and
// where there is room what it is doing.
func (p *progress) row(n *node, head string, width int) string {
	head += p.mark(n) + " "
	figures := fmt.Sprintf(" · %s tokens · %s · %s", count(n.tokens), plural(n.calls, "call"), n.elapsed(p.now()))
	room := width - columns(head) - columns(figures)
	if n.model != "" {
		model := n.model
		if width > 0 {
			model = fit(model, max(leastModel, room-columns(" · ")-min(columns(n.label), leastLabel)))
		}
		figures = " · " + model + figures
	}
	what := n.doing
	if len(n.order) > 0 {
		what = n.tools[n.order[len(n.order)-1]]
		if len(n.order) > 1 {
			what = fmt.Sprintf("%s (+%d)", what, len(n.order)-1)
		}
	}
	if what != "" {
		what = " · " + what
	}
	label := n.label
	if width > 0 {
		label = fit(label, max(leastLabel, width-columns(head)-columns(figures)))
	}
	line := fit(head+label+figures, width)
	if width < 1 {
		return line + what
	}
	if room = width - columns(line); room < leastLabel {
		return line
	}
	return line + fit(what, room)
}

// mark shows how an agent is.
func (p *progress) mark(n *node) string {
	switch how := n.how(); {
	case n.running:
		frames := []rune(spinner)
		return string(frames[p.frame%len(frames)])
	case n.started.IsZero():
		return "○" // it has not begun, which is not to have finished
	case how == string(session.EndCompleted):
		return "✓"
	case how == string(session.EndAborted), how == "":
		return "■"
	}
	return "✗"
}

// how words how a node ended: as its parent was told, else as its last turn did, "" where
// nothing tells.
func (n *node) how() string {
	if n.stop != "" {
		return string(n.stop)
	}
	return string(n.end)
}

// remarks keeps what the parts can tell nobody else until the run is over: the
// display is not torn, and what the run's own error says is not said twice.
type remarks struct {
	mu   sync.Mutex // guards following
	list []remark
	lost int
}

type remark struct {
	text string
	err  error // may be nil
}

const maxRemarks = 100

func (r *remarks) add(m remark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) == maxRemarks {
		r.lost++
		return
	}
	r.list = append(r.list, m)
}

// tell prints one line for each remark that told does not say already.
func (r *remarks) tell(w io.Writer, told error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.list {
		if m.err == nil || novel(m.err, told) != nil {
			// Nothing is left to be done when it cannot be written.
			_, _ = fmt.Fprintln(w, "offshoot: "+oneLine(m.text))
		}
	}
	if r.lost > 0 {
		_, _ = fmt.Fprintf(w, "offshoot: %d more remarks\n", r.lost)
	}
	r.list, r.lost = nil, 0
}

// remarkHandler is the slog.Handler of a remarks.
type remarkHandler struct {
	to    *remarks
	attrs []slog.Attr
}

func (h *remarkHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (h *remarkHandler) Handle(_ context.Context, rec slog.Record) error {
	m := remark{text: rec.Message}
	var about []string
	note := func(a slog.Attr) bool {
		v := a.Value.Resolve()
		if err, ok := v.Any().(error); ok && m.err == nil {
			m.err = err
		} else {
			about = append(about, a.Key+" "+v.String())
		}
		return true
	}
	for _, a := range h.attrs {
		note(a)
	}
	rec.Attrs(note)
	if len(about) > 0 {
		m.text += " (" + strings.Join(about, ", ") + ")"
	}
	if m.err != nil {
		m.text += ": " + m.err.Error()
	}
	h.to.add(m)
	return nil
}

func (h *remarkHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &remarkHandler{h.to, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

// WithGroup is of no use to people.
func (h *remarkHandler) WithGroup(string) slog.Handler { return h }
