package subagenttest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// The model that the agents of a System use unless they say otherwise.
const (
	Route = "scripted"
	Model = "model-1"
)

// Options vary a System. The zero value is a live-only system without tools.
type Options struct {
	// Store keeps the logs; nil keeps them in memory only. The caller closes it
	// after the test.
	Store    session.Store
	Tools    []tool.Definition
	Approver tool.Approver
	// Identity and Persona are the deployment's sections.
	Identity, Persona string
	MaxDepth          *int64
	MaxChildren       int
	MaxLive           int
	// MaxParallelTools is as in agent.Config.
	MaxParallelTools int
	// Projections are the units that sessions carry along and that the service lists
	// by; nil leaves both out.
	Projections *projection.Registry
	// Validators and CheckpointFrom are as in session.Config.
	Validators     []session.Validator
	CheckpointFrom int64
	// Adapter answers instead of the answers given with Answer.
	Adapter llm.Adapter
	Logger  *slog.Logger
	// NoNotices is as in subagent.Config.
	NoNotices bool
	// Unwatched leaves the companion out, for benchmarks.
	Unwatched bool
}

// System is everything that a provider lives in, with a model that answers from
// a script. It closes itself at the end of the test and reports what was left
// behind. In a testing/synctest bubble it is made within the bubble.
type System struct {
	Sessions *session.Registry
	Models   *llm.Registry
	Tools    *tool.Registry
	Prompts  *prompt.Registry
	Agents   *agent.Registry
	Service  *subagent.Service
	// Host acts for people on continuable children.
	Host      *subagent.Host
	Lifecycle *Lifecycle
	// Adapter is the scripted model behind Answer.
	Adapter *scripted.Adapter

	mu      sync.Mutex // guards following
	answers map[string][]scripted.Step
	other   []scripted.Step
	crashed bool
	failing bool
}

// NewSystem returns a running system.
func NewSystem(t testing.TB, o Options) *System {
	t.Helper()
	s := &System{Models: &llm.Registry{Strict: true}, Tools: tool.New(), Prompts: prompt.New(), answers: map[string][]scripted.Step{}}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("set up the system: %v", err)
		}
	}
	ctx := context.WithoutCancel(t.Context())
	var err error
	cfg := session.Config{Store: o.Store, Validators: o.Validators, Logger: o.Logger, CheckpointFrom: o.CheckpointFrom}
	if o.Projections != nil {
		cfg.NewCells = o.Projections.NewCells
	}
	s.Sessions, err = session.NewRegistry(ctx, cfg)
	check(err)
	s.Adapter = scripted.New(scripted.Script{
		{Name: "answers", Repeat: true, Steps: []scripted.Step{{scripted.Func(s.answer)}}},
		{Name: "summaries", Purpose: llm.PurposeCompaction, Repeat: true, Steps: []scripted.Step{{scripted.Func(s.answer)}}},
	}, scripted.Options{})
	if o.Adapter == nil {
		o.Adapter = s.Adapter
	}
	_, err = s.Models.Register(o.Adapter, Route)
	check(err)
	for _, def := range o.Tools {
		_, err = s.Tools.Root().Register(def)
		check(err)
	}
	if o.Identity == "" {
		o.Identity = "You are an agent."
	}
	_, err = s.Prompts.Root().Add(prompt.Identity(o.Identity))
	check(err)
	_, err = s.Prompts.Root().Add(prompt.Persona(o.Persona, false))
	check(err)
	s.Agents, err = agent.NewRegistry(ctx, agent.Config{
		Sessions: s.Sessions, Models: s.Models, Tools: s.Tools, Prompts: s.Prompts,
		Approver: o.Approver, MaxLive: o.MaxLive, MaxParallelTools: o.MaxParallelTools, Logger: o.Logger,
	})
	check(err)
	s.Host = &subagent.Host{}
	s.Service, err = subagent.New(ctx, subagent.Config{
		Agents: s.Agents, Projections: o.Projections, MaxDepth: o.MaxDepth, MaxChildren: o.MaxChildren, Host: s.Host, NoNotices: o.NoNotices, Logger: o.Logger,
	})
	check(err)
	if !o.Unwatched {
		s.Lifecycle = Watch(t, s.Service)
	}
	t.Cleanup(func() { s.close(t, ctx) })
	return s
}

func (s *System) close(t testing.TB, ctx context.Context) {
	s.mu.Lock()
	crashed, failing := s.crashed, s.failing
	s.mu.Unlock()
	// As at the end of a process: the roots stop first, then continuable children end,
	// children first (seam SCOPE-17).
	s.Service.CloseAdmission()
	var roots []*agent.Agent
	for _, a := range s.Agents.Roots() {
		if a.Root() {
			roots = append(roots, a)
			a.CloseAdmission(true)
		}
	}
	if err := s.Service.Close(ctx); err != nil && (!crashed || !fenced(err)) && (!failing || !errors.Is(err, subagent.ErrTeardownFailed)) {
		t.Errorf("close the service: %v", err)
	}
	var errs []error
	for _, a := range roots {
		errs = append(errs, a.Dispose(ctx, true))
	}
	errs = append(errs, s.Agents.Close(ctx))
	if err := errors.Join(errs...); err != nil && (!crashed || !fenced(err)) {
		t.Errorf("close the agents: %v", err)
	}
	if s.Lifecycle != nil {
		s.Lifecycle.Settled()
	}
	for _, a := range s.Agents.List() {
		t.Errorf("agent %s is still live", a.ID())
	}
	for _, live := range s.Sessions.Close() {
		t.Errorf("session %s is still live", live.ID())
	}
}

// Crashed says that the store was taken from the system, as from a process that is
// killed: that its agents cannot write their ends any more is no fault then.
func (s *System) Crashed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashed = true
}

// Failing says that children are made to fail at their end: that the service tells so when
// it is closed is no fault then.
func (s *System) Failing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = true
}

// fenced reports whether nothing is wrong but that another process owns the logs.
func fenced(err error) bool {
	if se, ok := err.(*subagent.Error); ok && se.Err != nil { //nolint:errorlint // each level is looked at
		return fenced(se.Err)
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range list.Unwrap() {
			if !fenced(part) {
				return false
			}
		}
		return true
	}
	var fe *session.FencedError
	return errors.As(err, &fe)
}

// Answer says what an agent answers to a prompt, by its exact text: one step per
// model call since that prompt, the last one again and again.
func (s *System) Answer(prompt string, steps ...scripted.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[prompt] = steps
}

// Otherwise says what an agent answers to a prompt that Answer names no answer for.
func (s *System) Otherwise(steps ...scripted.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.other = steps
}

func (s *System) answer(_ context.Context, req *llm.Request) (scripted.Step, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := scripted.PromptText(req)
	steps := s.answers[text]
	if steps == nil {
		steps = s.other
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("no answer was given for the prompt %q", text)
	}
	n := 0
	for _, m := range scripted.Turn(req) {
		if m.Role == message.RoleAssistant {
			n++
		}
	}
	return steps[min(n, len(steps)-1)], nil
}

// ParentOptions is what Parent gives its agents.
func ParentOptions() agent.Options { return agent.Options{Provider: Route, Model: Model} }

// Parent returns a new live agent without an owner.
func (s *System) Parent(t testing.TB) *agent.Agent {
	t.Helper()
	return s.NewAgent(t, agent.Create{Options: ParentOptions()})
}

// NewAgent creates an agent that lives until the end of the test or its disposal.
func (s *System) NewAgent(t testing.TB, c agent.Create) *agent.Agent {
	t.Helper()
	h, err := s.Agents.Create(context.WithoutCancel(t.Context()), c)
	if err != nil {
		t.Fatalf("create an agent: %v", err)
	}
	return h.Agent()
}

// Register adds a provider.
func (s *System) Register(t testing.TB, p subagent.Provider) (unregister func()) {
	t.Helper()
	unregister, err := s.Service.Register(p)
	if err != nil {
		t.Fatalf("register provider %q: %v", p.Name(), err)
	}
	return unregister
}

// Start starts a child on a provider and fails the test if that fails.
func (s *System) Start(t testing.TB, ctx context.Context, provider string, req subagent.Request) subagent.Run {
	t.Helper()
	run, err := s.Service.Start(ctx, provider, req)
	if err != nil {
		t.Fatalf("start on %q: %v", provider, err)
	}
	return run
}

// Request asks parent's child for text.
func Request(parent *agent.Agent, text string) subagent.Request {
	return subagent.Request{Parent: parent, Prompt: []message.Block{message.Text(text)}}
}

// Await returns the result of a run after closing it.
func Await(t testing.TB, run subagent.Run) subagent.Result {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	res, err := run.Wait(ctx)
	if err != nil {
		t.Errorf("wait for run %s: %v", run.ID(), err)
	}
	if err := run.Close(ctx); err != nil {
		t.Errorf("close run %s: %v", run.ID(), err)
	}
	return res
}

// Trace lists the types of a log's events in order, one word each.
func Trace(s *session.Session) string {
	var words []string
	for e := range s.Events(0) {
		words = append(words, string(e.Type))
	}
	return strings.Join(words, " ")
}
