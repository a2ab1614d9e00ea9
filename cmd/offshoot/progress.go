package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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

// progress shows on stderr what the tree of agents is doing: one tree that is
// redrawn on a terminal, plain lines otherwise.
type progress struct {
	w     io.Writer
	live  bool // a terminal: redraw
	quiet bool
	now   func() time.Time
	size  func() (width, height int)

	mu     sync.Mutex // guards following
	root   *node
	nodes  map[session.ID]*node  // of no agent: those are gone when they are disposed
	names  map[session.ID]string // what children are called that have no node yet
	kept   int                   // nodes of agents that are gone
	drawn  int                   // lines of the last drawing
	frame  int
	paused int
	halted bool             // the run is being stopped
	last   *message.Failure // the newest failure of a model call

	stopTick chan struct{}
	ticking  sync.WaitGroup
}

type node struct {
	label   string
	depth   int
	parent  *node
	kids    []*node
	gone    bool  // disposed
	folded  int   // finished nodes below that are only counted
	spent   int64 // their tokens
	started time.Time
	ended   time.Time
	running bool
	failed  bool
	stopped bool // ended because the run was being stopped
	doing   string
	tokens  int64
	calls   map[string]string // running tool calls: id to description
	order   []string
}

const (
	// maxNodes is how many agents are kept apart; finished ones beyond are counted.
	maxNodes   = 500
	tick       = 100 * time.Millisecond
	spinner    = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
	wrapOff    = "\x1b[?7l"
	wrapOn     = "\x1b[?7h"
	clearBelow = "\x1b[J"
)

func newProgress(w io.Writer, live, quiet bool, size func() (int, int)) *progress {
	p := &progress{w: w, live: live && !quiet, quiet: quiet, now: time.Now, size: size,
		nodes: map[session.ID]*node{}, names: map[session.ID]string{}, stopTick: make(chan struct{})}
	if p.live {
		p.ticking.Go(p.run)
	}
	return p
}

// run redraws until stop; stop joins it.
func (p *progress) run() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-p.stopTick:
			return
		case <-t.C:
			p.mu.Lock()
			p.frame++
			p.draw()
			p.mu.Unlock()
		}
	}
}

// stop ends the display and leaves the final tree standing.
func (p *progress) stop() {
	close(p.stopTick)
	p.ticking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw()
	p.drawn = 0
	p.quiet = true
}

// halt says that the run is being stopped: who ends from now on did not finish.
func (p *progress) halt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halted = true
}

// pause keeps the terminal free for somebody else until resume is called.
func (p *progress) pause() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.paused++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.paused--
	}
}

// note prints a line for people above the tree.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		return
	}
	p.erase()
	p.print(printable(fmt.Sprintf(format, args...)) + "\n")
	p.draw()
}

// started is a hook of the seam: it learns what a child is called. The child's
// first live events may come before it or after it.
func (p *progress) started(e subagent.StartEdge) {
	if e.Label == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		return
	}
	name := printable(clip(e.Label, 60))
	if n := p.nodes[e.ID]; n != nil {
		n.label = name
		return
	}
	p.names[e.ID] = name
}

// observe takes one live event.
func (p *progress) observe(e agent.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case agent.EventMissed:
		return
	case agent.EventRetry:
		p.last = e.Retry
	case agent.EventFailed:
		f := llm.FailureOf(e.Err)
		p.last = &f
	}
	if p.quiet {
		return
	}
	id, n := e.Agent.ID(), p.of(e.Agent)
	switch e.Kind {
	case agent.EventStatus:
		n.running = e.Status == agent.Running
		if n.running && n.started.IsZero() {
			n.started = p.now()
		}
		if !n.running {
			n.stopped = p.halted
			n.ended, n.doing = p.now(), ""
			p.line(n, fmt.Sprintf("idle after %s, %s tokens", n.elapsed(p.now()), count(n.tokens)))
		} else {
			n.ended = time.Time{}
		}
	case agent.EventChunk:
		n.doing = doing(e.Chunk, n.doing)
	case agent.EventMessage:
		n.doing = ""
		if e.Usage != nil {
			n.tokens += e.Usage.Total()
		}
	case agent.EventToolStarted:
		d := printable(clip(e.Call.Describe(), 60))
		n.calls[e.Call.ID] = d
		n.order = append(n.order, e.Call.ID)
		p.line(n, d)
	case agent.EventToolEnded:
		n.toolEnded(e.Call)
		if e.Failed {
			p.line(n, printable(clip(e.Call.Describe(), 60))+" failed")
		}
	case agent.EventToolRefused:
		n.doing = printable(clip(e.Call.Name, 60)) + " was refused"
		p.line(n, printable(clip(fmt.Sprintf("%s was refused: %v", e.Call.Name, e.Err), 200)))
	case agent.EventRetry:
		n.doing = "waiting to try again: " + printable(clip(e.Retry.Message, 60))
		p.line(n, n.doing)
	case agent.EventFailed:
		n.failed = true
		p.line(n, "failed: "+printable(clip(p.last.Message, 200)))
	case agent.EventDisposed:
		n.running = false
		if n.ended.IsZero() {
			n.ended = p.now()
		}
		p.forget(id, n)
	}
}

// of returns the node of an agent, a new one for an agent that was not heard of.
func (p *progress) of(a *agent.Agent) *node {
	if n := p.nodes[a.ID()]; n != nil {
		return n
	}
	owner := session.ID("")
	if o := a.Owner(); o != nil {
		owner = o.ID()
	}
	return p.add(a.ID(), owner)
}

// compacted is a hook of the composition: it tells of what became of a conversation,
// and counts what that cost. A failure is a remark of its own.
func (p *progress) compacted(a *agent.Agent, r compact.Result, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		return
	}
	n := p.of(a)
	n.tokens += r.Usage.Total()
	switch {
	case r.Summed > 0:
		p.line(n, "summed up "+plural(int64(r.Summed), "message"))
	case r.Pruned > 0:
		p.line(n, "shortened "+plural(int64(r.Pruned), "long result"))
	}
}

// forget notes that an agent is gone. Beyond maxNodes it folds finished leaves,
// the oldest first, into counts of their parents.
func (p *progress) forget(id session.ID, n *node) {
	n.gone = true
	delete(p.names, id)
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
	delete(n.calls, c.ID)
	for i, id := range n.order {
		if id == c.ID {
			n.order = append(n.order[:i:i], n.order[i+1:]...)
			return
		}
	}
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
	n := &node{calls: map[string]string{}, label: "agent"}
	p.nodes[id] = n
	parent := p.nodes[owner]
	if parent == nil {
		if p.root == nil {
			p.root = n
		}
		return n
	}
	n.parent, n.depth, n.label = parent, parent.depth+1, "subagent"
	if name, ok := p.names[id]; ok {
		n.label = name
		delete(p.names, id)
	}
	parent.kids = append(parent.kids, n)
	return n
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

// line prints one plain line; on a terminal the tree says it instead.
func (p *progress) line(n *node, text string) {
	if p.live || p.quiet {
		return
	}
	p.print(strings.Repeat("  ", n.depth) + n.label + ": " + text + "\n")
}

// print writes for people; a display that fails is no reason to fail a run.
func (p *progress) print(s string) { _, _ = io.WriteString(p.w, s) }

func (p *progress) erase() {
	if p.live && p.drawn > 0 {
		p.print(fmt.Sprintf("\x1b[%dA\r%s", p.drawn, clearBelow))
		p.drawn = 0
	}
}

func (p *progress) draw() {
	if !p.live || p.quiet || p.paused > 0 || p.root == nil {
		return
	}
	_, height := p.size()
	var lines []string
	p.render(p.root, "", "", &lines)
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

func (p *progress) render(n *node, head, tail string, lines *[]string) {
	mark := "✓"
	switch {
	case n.running:
		frames := []rune(spinner)
		mark = string(frames[p.frame%len(frames)])
	case n.failed:
		mark = "✗"
	case n.stopped:
		mark = "■"
	case n.started.IsZero():
		mark = "○" // it has not begun, which is not to have finished
	}
	what := n.doing
	if len(n.order) > 0 {
		what = n.calls[n.order[len(n.order)-1]]
		if len(n.order) > 1 {
			what = fmt.Sprintf("%s (+%d)", what, len(n.order)-1)
		}
	}
	if what != "" {
		what = " · " + what
	}
	*lines = append(*lines, fmt.Sprintf("%s%s %s%s · %s · %s tokens", head, mark, n.label, what, n.elapsed(p.now()), count(n.tokens)))
	if n.folded > 0 {
		branch := "├─ "
		if len(n.kids) == 0 {
			branch = "└─ "
		}
		*lines = append(*lines, fmt.Sprintf("%s%s… %d more, finished · %s tokens", tail, branch, n.folded, count(n.spent)))
	}
	for i, k := range n.kids {
		if i == len(n.kids)-1 {
			p.render(k, tail+"└─ ", tail+"   ", lines)
		} else {
			p.render(k, tail+"├─ ", tail+"│  ", lines)
		}
	}
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
