package compact

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// What a compaction goes by (core D38, D39).
const (
	// triggerShare and keepShare are hundredths of the window: from where on a
	// conversation is compacted, and how much of its newest part stays.
	triggerShare = 80
	keepShare    = 16
	// estimateShare is what of the window a request for a summary is planned to fill, in
	// hundredths: estimates are no counts.
	estimateShare = 95
	// A tool's result with more than pruneOver code points keeps pruneHead and pruneTail.
	pruneOver = 8192
	pruneHead = 4096
	pruneTail = 1024
	// MaxSummary bounds a summary, in tokens; it is a quarter of what the rest of every
	// request leaves of the window, if that is less.
	MaxSummary = 8192
)

// Config configures a Compactor. Agents and Models are required.
type Config struct {
	Agents *agent.Registry
	Models *llm.Registry
	// Manual leaves out what happens by itself: only Compact compacts.
	Manual bool
	// Done, if not nil, is told of every compaction that changed a conversation, and of
	// every one that failed (err). It is called on the goroutine of the agent's turn or of
	// Compact, and must be quick.
	Done func(a *agent.Agent, r Result, err error)
	// Logger gets what nobody can be told otherwise; nil discards it.
	Logger *slog.Logger
}

// Result tells what a compaction did. Sizes are estimates of the next request, in
// tokens, as those are that decide when to compact.
type Result struct {
	Before, After int64
	// Window is the model's, in tokens, or 0 where it is not known.
	Window int64
	// Pruned counts the results of tools that were shortened, Summed the messages that a
	// summary took the place of.
	Pruned, Summed int
	// Usage is what the summaries cost.
	Usage message.Usage
}

// Compactor keeps the agents of a composition within the windows of their models. It
// is safe for concurrent use.
type Compactor struct {
	cfg    Config
	unhook func()

	mu        sync.Mutex // guards following; nothing is called out to under it
	gauges    map[*agent.Agent]*gauge
	restaters []*restater
}

type restater struct {
	plugin string
	text   func(*agent.Agent) string
}

// New returns a Compactor that watches the agents of cfg.Agents until it is closed.
func New(cfg Config) (*Compactor, error) {
	if cfg.Agents == nil || cfg.Models == nil {
		return nil, errors.New("compactor: Agents and Models are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Compactor{cfg: cfg, gauges: map[*agent.Agent]*gauge{}}
	h := agent.Hooks{Disposed: c.forget}
	if !cfg.Manual {
		h.StepDue, h.RequestError = c.stepDue, c.tooLong
	}
	c.unhook = cfg.Agents.AddHooks(h)
	return c, nil
}

// Close ends the watching. Compactions under way go on: they belong to their agents.
func (c *Compactor) Close() { c.unhook() }

func (c *Compactor) forget(a *agent.Agent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.gauges, a)
}

// Register makes text be asked after each summary what the agent must go on knowing
// and would learn from nowhere else, running jobs for instance: it is said once, in
// the same hold of the log as the summary, as a notice of plugin; not at all where the
// same words still stand in the part that stays. "" is nothing. text is
// called on the goroutine of the agent's activity and must be quick. unregister takes
// the registration back.
func (c *Compactor) Register(plugin string, text func(*agent.Agent) string) (unregister func()) {
	r := &restater{plugin, text}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restaters = append(slices.Clip(c.restaters), r)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.restaters = slices.DeleteFunc(slices.Clone(c.restaters), func(o *restater) bool { return o == r })
	}
}

// Compact sums up the conversation of an idle agent now, however short it is, but for
// its newest part; what waits in the inbox waits until it is done. It returns when the
// log is stored. The error is an *Error; the cause of ctx's end is in it.
func (c *Compactor) Compact(ctx context.Context, a *agent.Agent) (r Result, err error) {
	err = a.RunMaintenance(ctx, func(ctx context.Context) error {
		if err := a.Session().Load(ctx); err != nil {
			return (&work{ctx: ctx}).fault(CodePersistence, err)
		}
		w := c.work(ctx, a, 0, nil)
		w.always = true
		err := w.run()
		r = w.result
		if err != nil {
			return err
		}
		if err := a.Session().Flush(ctx); err != nil {
			return w.fault(CodePersistence, err)
		}
		return nil
	})
	var e *Error
	switch {
	case err == nil:
		return r, nil
	case errors.As(err, &e):
		return r, e
	case errors.Is(err, agent.ErrBusy), errors.Is(err, agent.ErrDisposed), errors.Is(err, agent.ErrBuilding):
		return r, &Error{CodeBusy, err}
	}
	return r, &Error{CodeCommit, err}
}

// small is below what size no conversation is looked at closely, in tokens.
const small = 1000

// stepDue compacts when the next request comes near the window (core D38). A failure
// does not fail the step, which may still fit: it is logged, and another attempt is
// made when the conversation has grown. So it is where a compaction could not bring the
// conversation below where the next would be due.
func (c *Compactor) stepDue(ctx context.Context, a *agent.Agent, turn int64, incoming []session.Queued) error {
	size := c.history(a)
	for i := range incoming {
		size += tokens(&incoming[i].Message)
	}
	if size += fixed(a.Session().RequestHeader()); size < small {
		return nil
	}
	w := c.work(ctx, a, turn, incoming)
	g := w.gauge
	if !w.full() {
		g.retry = 0
		return nil
	}
	if w.size() < g.retry {
		return nil
	}
	err := w.run()
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return cause
	}
	g.retry = 0
	if err != nil || w.full() {
		g.retry = w.size() + w.window/leastPart
	}
	return nil
}

// tooLong makes room after a request that was too long, once for each step, and has it
// made again if that changed anything (core D40).
func (c *Compactor) tooLong(ctx context.Context, a *agent.Agent, f message.Failure, _ int) bool {
	if f.Code != llm.CodeContextWindow {
		return false
	}
	s := a.Session()
	turn, open, step := s.LastTurn()
	w := c.work(ctx, a, turn, nil)
	g := w.gauge
	if !open || g.turn == turn && g.step == step {
		return false
	}
	g.turn, g.step = turn, step
	_, before := s.History()
	w.overflow()
	_ = w.run() // it was logged; what counts is whether anything changed
	_, after := s.History()
	return after != before && ctx.Err() == nil
}

// restate returns the notices that follow a summary, but for what stands unchanged in
// the part that stays.
func (c *Compactor) restate(a *agent.Agent, stays []session.Node) (list []message.Message) {
	c.mu.Lock()
	restaters := c.restaters
	c.mu.Unlock()
	for _, r := range restaters {
		text := r.text(a)
		if text == "" || slices.ContainsFunc(stays, func(n session.Node) bool {
			return n.Message != nil && n.Message.Source.Details().Plugin == r.plugin && message.JoinText(n.Message.Content) == text
		}) {
			continue
		}
		list = append(list, message.Message{
			ID: agent.NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.Text(text)},
			Source: message.NewSource(message.SourcePlugin, message.SourceDetails{
				Plugin: r.plugin, Form: message.FormNotice, Summary: fmt.Sprintf("said again after a summary (%s)", r.plugin),
			}),
		})
	}
	return list
}
