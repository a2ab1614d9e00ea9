package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/tool"
)

const (
	// DefaultMaxJobs bounds the jobs of one owner that are not over (core D43).
	DefaultMaxJobs = 10
	// maxKept bounds the ended jobs of one owner whose results are kept.
	maxKept = 100
	// maxLabel bounds a label, in runes.
	maxLabel = 80
	// maxNumber is the largest number of a job.
	maxNumber = jsonx.MaxSafe
)

// Config configures a Registry.
type Config struct {
	// Agents are the possible owners; it is required.
	Agents *agent.Registry
	// MaxJobs bounds the jobs of one owner that are not over; 0 is DefaultMaxJobs.
	MaxJobs int
	// MaxText bounds a job's result in bytes; 0 is tool.DefaultLimit.
	MaxText int
	// Logger gets what nobody can be told otherwise; nil discards it.
	Logger *slog.Logger
}

// Registry holds the jobs of a composition. It is safe for concurrent use.
type Registry struct {
	cfg Config
	ctx context.Context

	mu      sync.Mutex // guards following, and every owner and job; nothing is called out to under it
	owners  map[*agent.Agent]*owner
	shut    bool
	sending int           // notices under way
	sent    chan struct{} // made by who waits for them, closed when there are none
	jobs    sync.WaitGroup
	unhook  func()
}

// job is one job. Its fields but done are guarded by the registry's lock.
type job struct {
	info Info
	kill context.CancelCauseFunc
	told bool          // the owner has its notice, or gets none
	done chan struct{} // closed when the state is final
}

// New returns a registry. ctx carries values for the jobs; its end has no effect.
func New(ctx context.Context, cfg Config) (*Registry, error) {
	if cfg.Agents == nil {
		return nil, errors.New("job registry: Agents is required")
	}
	if cfg.MaxJobs < 0 {
		return nil, fmt.Errorf("job registry: MaxJobs must not be negative, and is %d", cfg.MaxJobs)
	}
	if cfg.MaxJobs == 0 {
		cfg.MaxJobs = DefaultMaxJobs
	}
	if cfg.MaxText < 0 {
		return nil, fmt.Errorf("job registry: MaxText must not be negative, and is %d", cfg.MaxText)
	}
	if cfg.MaxText == 0 {
		cfg.MaxText = tool.DefaultLimit
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Registry{cfg: cfg, ctx: context.WithoutCancel(ctx), owners: map[*agent.Agent]*owner{}}
	// Of the registry, so that it comes before what an agent's own hooks make of the
	// end of its turn.
	r.unhook = cfg.Agents.AddHooks(agent.Hooks{TurnStopping: r.stopping})
	return r, nil
}

// validKind admits lower-case letters, digits and hyphens.
func validKind(kind string) bool {
	return kind != "" && strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Start begins a job of a and returns its id, <kind>-N, which no other job of that
// owner has, nor any that its log names, whatever process that one ran in. The label
// is made one line and cut to 80 runes. Errors: ErrNoOwner, also of an agent that is
// gone; agent.ErrDisposed while it is going; ErrClosing, a *LimitError, a malformed
// spec, a kind whose numbers are used up. With an error nothing was started.
func (r *Registry) Start(a *agent.Agent, s Spec) (id string, err error) {
	if !validKind(s.Kind) || s.Run == nil {
		return "", fmt.Errorf("start background job: kind %q with body %t is malformed", s.Kind, s.Run != nil)
	}
	o, err := r.owner(a)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.shut:
		return "", ErrClosing
	case o.ended:
		return "", fmt.Errorf("start background job: %w", agent.ErrDisposed)
	case o.openLocked() >= r.cfg.MaxJobs:
		return "", &LimitError{Limit: r.cfg.MaxJobs}
	case o.last[s.Kind] >= maxNumber:
		return "", fmt.Errorf("start background job: the numbers of the kind %q are used up", s.Kind)
	}
	o.last[s.Kind]++
	ctx, kill := context.WithCancelCause(r.ctx)
	j := &job{
		info: Info{ID: fmt.Sprintf("%s-%d", s.Kind, o.last[s.Kind]), Kind: s.Kind, Label: oneLine(s.Label, maxLabel), State: Running},
		kill: kill, done: make(chan struct{}),
	}
	o.jobs = append(o.jobs, j)
	o.moveLocked()
	o.running.Add(1)
	r.jobs.Add(1)
	go r.run(ctx, o, j, s.Run)
	return j.info.ID, nil
}

// run is joined by the owner's disposal, and by Close.
func (r *Registry) run(ctx context.Context, o *owner, j *job, body func(context.Context) Outcome) {
	defer r.jobs.Done()
	defer o.running.Done()
	out := Outcome{Failed, "the job ended its goroutine instead of returning"}
	// Deferred for runtime.Goexit: whoever waits for the job must see it end.
	defer func() { r.settle(o, j, out) }()
	out = r.contain(o, j, func() Outcome { return body(ctx) })
}

// settle makes an outcome that of the job, and tells its owner.
func (r *Registry) settle(o *owner, j *job, out Outcome) {
	if out.State != Completed && out.State != Killed && out.State != Failed {
		out = Outcome{Failed, fmt.Sprintf("the job ended in the state %q, which is none to end in", out.State)}
	}
	r.mu.Lock()
	j.info.State = out.State
	j.info.Text = tool.Clip(strings.ToValidUTF8(out.Text, "\uFFFD"), r.cfg.MaxText)
	r.mu.Unlock()
	j.kill(nil)
	close(j.done)
	r.tell(o, j)
}

func (r *Registry) contain(o *owner, j *job, body func() Outcome) (out Outcome) {
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Logger.Error("background job panicked", "agent", string(o.agent.ID()), "job", j.info.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			out = Outcome{Failed, fmt.Sprintf("the job panicked: %v", p)}
		}
	}()
	return body()
}

// Get returns one job of a. The error is ErrNoOwner or an *UnknownError: another
// agent's job is as unknown as one that never was.
func (r *Registry) Get(a *agent.Agent, id string) (Info, error) {
	o, err := r.owner(a)
	if err != nil {
		return Info{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	j := o.findLocked(id)
	if j == nil {
		return Info{}, o.unknownLocked(id)
	}
	return j.info, nil
}

// List returns the jobs of a in the order of their start: all that are not over,
// and the ended ones that are kept. The texts are left out.
func (r *Registry) List(a *agent.Agent) []Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[a]
	if o == nil {
		return nil
	}
	list := make([]Info, len(o.jobs))
	for i, j := range o.jobs {
		list[i] = j.info
		list[i].Text = ""
	}
	return list
}

// Kill ends a job of a, with DefaultReason if reason is blank, and returns it as it
// stands then: Stopping, until its body has released everything and said how it
// ended. Killing a job that is stopping or over changes nothing. Errors as of Get.
func (r *Registry) Kill(a *agent.Agent, id, reason string) (Info, error) {
	o, err := r.owner(a)
	if err != nil {
		return Info{}, err
	}
	if strings.TrimSpace(reason) == "" {
		reason = DefaultReason
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	j := o.findLocked(id)
	if j == nil {
		return Info{}, o.unknownLocked(id)
	}
	j.stopLocked(strings.ToValidUTF8(reason, "\uFFFD"))
	return j.info, nil
}

func (j *job) stopLocked(reason string) {
	if j.info.State == Running {
		j.info.State = Stopping
		j.kill(&KillError{Reason: reason})
	}
}

// Wait returns a job of a when it is over and everything it held is released.
// Errors as of Get, or the cause of ctx's end.
func (r *Registry) Wait(ctx context.Context, a *agent.Agent, id string) (Info, error) {
	o, err := r.owner(a)
	if err != nil {
		return Info{}, err
	}
	r.mu.Lock()
	j := o.findLocked(id)
	if j == nil {
		defer r.mu.Unlock()
		return Info{}, o.unknownLocked(id)
	}
	r.mu.Unlock()
	select {
	case <-j.done:
	case <-ctx.Done():
		return Info{}, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.info, nil
}

// WhenQuiet returns when a is idle, every job of it is over, and what their notices
// woke has run too; or with the cause of ctx's end. A hook must not wait here.
func (r *Registry) WhenQuiet(ctx context.Context, a *agent.Agent) error {
	look := func() (moves int, open bool, moved <-chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if o := r.owners[a]; o != nil {
			return o.moves, o.untoldLocked() > 0, o.moved
		}
		return 0, false, nil
	}
	for {
		before, open, moved := look()
		if err := a.WhenIdle(ctx); err != nil {
			return err
		}
		after, _, _ := look()
		switch {
		case before != after:
		case !open:
			return nil
		default:
			select {
			case <-moved:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// CloseAdmission refuses new jobs and tells of no end from now on: an owner that is
// told to stop must not be woken again. It returns when the notices under way are in
// the inboxes. Jobs go on. A hook must not call it.
func (r *Registry) CloseAdmission() {
	r.mu.Lock()
	r.shut = true
	if r.sending == 0 {
		r.mu.Unlock()
		return
	}
	if r.sent == nil {
		r.sent = make(chan struct{})
	}
	sent := r.sent
	r.mu.Unlock()
	<-sent
}

// Close refuses new jobs, kills all that run, and returns when nothing of them does.
func (r *Registry) Close() {
	r.CloseAdmission()
	r.mu.Lock()
	for _, o := range r.owners {
		o.stopLocked()
	}
	r.mu.Unlock()
	r.jobs.Wait()
	r.unhook()
}

// oneLine makes a text of one line with at most n runes.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return s
}
