package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/offshoot-dev/offshoot/internal/hooks"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// DefaultParallelTools bounds the tool bodies of one step that overlap.
const DefaultParallelTools = 10

// Config is what the agents of a registry share. Sessions, Models, Tools and
// Prompts are required.
type Config struct {
	Sessions *session.Registry
	Models   *llm.Registry
	Tools    *tool.Registry
	Prompts  *prompt.Registry

	// Approver answers questions about tool calls; nil refuses them.
	Approver tool.Approver
	// ApprovalTimeout is how long a question stands; 0 is as long as its call. Neither
	// it nor a bound below is negative, but for MaxResultBytes.
	ApprovalTimeout time.Duration
	// MaxParallelTools is DefaultParallelTools if 0.
	MaxParallelTools int
	// MaxResultBytes bounds the model-visible text of a tool result: tool.DefaultLimit
	// if 0, no bound if negative (see tool.ExecOptions).
	MaxResultBytes int
	// MaxSpillBytes bounds the text that the log keeps of a result that was cut for the
	// model: tool.DefaultSpill if 0, and tool.MaxSpill at most.
	MaxSpillBytes int
	// MaxSpilledBytes bounds what one session's log keeps of all of them together, in
	// encoded bytes: tool.MaxSpilled if 0.
	MaxSpilledBytes int64
	// MaxLive bounds the live agents; 0 is no bound.
	MaxLive int
	// Random is the retry jitter's source in [0, 1); nil is math/rand.
	Random func() float64
	// Logger gets what nobody can be told otherwise; nil discards it.
	Logger *slog.Logger
}

// check refuses bounds that are none.
func (c *Config) check() error {
	if c.ApprovalTimeout < 0 {
		return fmt.Errorf("ApprovalTimeout must not be negative, and is %s", c.ApprovalTimeout)
	}
	for _, l := range []struct {
		name string
		n    int64
	}{
		{"MaxParallelTools", int64(c.MaxParallelTools)},
		{"MaxSpillBytes", int64(c.MaxSpillBytes)},
		{"MaxSpilledBytes", c.MaxSpilledBytes},
		{"MaxLive", int64(c.MaxLive)},
	} {
		if l.n < 0 {
			return fmt.Errorf("%s must not be negative, and is %d", l.name, l.n)
		}
	}
	if c.MaxSpillBytes > tool.MaxSpill {
		return fmt.Errorf("MaxSpillBytes must be at most %d, and is %d", tool.MaxSpill, c.MaxSpillBytes)
	}
	return nil
}

// LimitError refuses an agent because MaxLive agents are live.
type LimitError struct{ Limit int }

func (e *LimitError) Error() string {
	return fmt.Sprintf("limit reached: %d agents are live, the most that may be", e.Limit)
}

// Registry holds the live agents. It is safe for concurrent use.
type Registry struct {
	cfg   Config
	ctx   context.Context
	hooks hooks.List[Hooks]

	mu     sync.Mutex // guards following
	live   map[session.ID]*Agent
	count  int // live agents and those under construction
	closed bool
	making map[*construction]struct{} // creates and resumes under way
	made   sync.WaitGroup             // counts them
	agents sync.WaitGroup             // counts agents from the first line of their creation to the last of their disposal
	unhook func()                     // from the session registry

	observers hooks.List[observer]

	vars    atomic.Pointer[promptVars] // the last that were made: siblings have the same
	cacheMu sync.Mutex                 // guards headers and specs
	headers []*headerEntry
	tools   []*specEntry
}

// NewRegistry returns a registry. ctx carries values for the agents' activities;
// its end has no effect.
func NewRegistry(ctx context.Context, cfg Config) (*Registry, error) {
	if cfg.Sessions == nil || cfg.Models == nil || cfg.Tools == nil || cfg.Prompts == nil {
		return nil, errors.New("agent registry: Sessions, Models, Tools and Prompts are required")
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("agent registry: %w", err)
	}
	if cfg.MaxSpillBytes == 0 {
		cfg.MaxSpillBytes = tool.DefaultSpill
	}
	if cfg.MaxSpilledBytes == 0 {
		cfg.MaxSpilledBytes = tool.MaxSpilled
	}
	if cfg.MaxParallelTools == 0 {
		cfg.MaxParallelTools = DefaultParallelTools
	}
	if cfg.Random == nil {
		cfg.Random = random
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Registry{
		cfg: cfg, ctx: context.WithoutCancel(ctx),
		live: map[session.ID]*Agent{}, making: map[*construction]struct{}{},
	}
	r.unhook = cfg.Sessions.AddHooks(session.Hooks{Fenced: r.fenced})
	return r, nil
}

// fenced cancels the whole tree of a session that another process took over.
func (r *Registry) fenced(s *session.Session) {
	for _, a := range r.List() {
		if a.session.Root() == s.Root() {
			if err := a.Cancel(session.Cause{Kind: session.CauseHook, Reason: "another process took the session over"}, true); err != nil {
				a.log().Error("cancel after a take-over", "error", err)
			}
		}
	}
}

// AddHooks registers hooks for all agents.
func (r *Registry) AddHooks(h Hooks) (remove func()) { return r.hooks.Add(&h) }

// Sessions returns the session registry.
func (r *Registry) Sessions() *session.Registry { return r.cfg.Sessions }

// Models returns the model registry.
func (r *Registry) Models() *llm.Registry { return r.cfg.Models }

// Tools returns the tool registry.
func (r *Registry) Tools() *tool.Registry { return r.cfg.Tools }

// Approves reports whether anybody can be asked about tool calls: with an
// approver mounted, delegation pins its children to the policy "never" (seam COMP-24).
func (r *Registry) Approves() bool { return r.cfg.Approver != nil }

// Get returns a live agent.
func (r *Registry) Get(id session.ID) (*Agent, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.live[id]
	return a, a != nil
}

// Live confirms that a caller is the exact live agent that it claims to be
// (design § 4, Authority): by pointer, never by id.
func (r *Registry) Live(c tool.Caller) (*Agent, bool) {
	a, ok := c.(*Agent)
	if !ok || a == nil {
		return nil, false
	}
	live, ok := r.Get(a.ID())
	return a, ok && live == a
}

// List returns the live agents in order of creation time, then id.
func (r *Registry) List() []*Agent {
	r.mu.Lock()
	list := make([]*Agent, 0, len(r.live))
	for _, a := range r.live {
		list = append(list, a)
	}
	r.mu.Unlock()
	slices.SortFunc(list, func(a, b *Agent) int {
		ha, hb := a.session.Header(), b.session.Header()
		return session.CompareHeaders(&ha, &hb)
	})
	return list
}

// Roots returns the live agents that no other agent owns.
func (r *Registry) Roots() []*Agent {
	return slices.DeleteFunc(r.List(), func(a *Agent) bool { return a.owner != nil })
}
