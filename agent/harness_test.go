package agent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/tool"
)

// world is one composition: a real session registry on a store that can be held
// up and made to fail, a model that plays what the test says, and recorders.
// Whatever a scenario does, finish checks what must hold after each of them.
type world struct {
	testing.TB
	ctx      context.Context
	store    *gateStore    // nil: live only
	other    session.Store // used in place of store, if not nil
	sessions *session.Registry
	models   *llm.Registry
	tools    *tool.Registry
	prompts  *prompt.Registry
	reg      *agent.Registry
	model    *model
	rec      *recorder
	config   agent.Config
	validate func(session.Event) error
	lossy    map[session.ID]bool // sessions whose last write failed, and it was told
}

// bubble runs a scenario under a fake clock, with a leak check, on a store and
// without one.
func bubble(t *testing.T, fn func(w *world)) {
	t.Helper()
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("stored=%t", stored), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, stored, agent.Config{})
				fn(w)
				w.finish()
			})
		})
	}
}

// stored is bubble with a store only.
func stored(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true, agent.Config{})
		fn(w)
		w.finish()
	})
}

func newWorld(t testing.TB, withStore bool, cfg agent.Config) *world {
	w := &world{TB: t, ctx: t.Context(), model: &model{}, rec: &recorder{t: t}, config: cfg}
	if withStore {
		w.store = &gateStore{Store: memory.New()}
	}
	w.open()
	// A scenario that fails half-way must not look like a leak as well.
	t.Cleanup(func() {
		for _, stop := range w.rec.stops {
			stop()
		}
	})
	return w
}

// validated is a world whose logs refuse what fn refuses.
func validated(t testing.TB, fn func(session.Event) error) *world {
	w := newWorld(t, true, agent.Config{})
	w.validate = fn
	return w
}

// open builds the registries on the world's store: also what a restart does.
func (w *world) open() {
	w.Helper()
	sc := session.Config{Validators: []session.Validator{func(_ *session.Header, e session.Event) error {
		if w.validate == nil {
			return nil
		}
		return w.validate(e)
	}}, CheckpointFrom: 1}
	if w.store != nil {
		sc.Store = w.store
	}
	if w.other != nil {
		sc.Store = w.other
	}
	var err error
	w.sessions, err = session.NewRegistry(w.ctx, sc)
	w.ok(err)
	w.models = &llm.Registry{Strict: true, RetryFor: w.model.policy}
	for _, route := range []string{"test", "other"} {
		_, err = w.models.Register(w.model, route)
		w.ok(err)
	}
	w.tools, w.prompts = tool.New(), prompt.New()
	cfg := w.config
	cfg.Sessions, cfg.Models, cfg.Tools, cfg.Prompts = w.sessions, w.models, w.tools, w.prompts
	cfg.Logger = slog.New(slog.NewTextHandler(testWriter{w.TB}, nil))
	w.reg, err = agent.NewRegistry(w.ctx, cfg)
	w.ok(err)
	w.model.head = w.head
	w.rec.attach(w.reg, w.sessions)
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("unexpected error: %v", err)
	}
}

func (w *world) head(id string) int64 {
	a, ok := w.reg.Get(session.ID(id))
	if !ok {
		w.Errorf("a request of %s, which is not live", id)
		return 0
	}
	return a.Session().Head()
}

// options choose the scripted model.
func options() agent.Options { return agent.Options{Provider: "test", Model: "m1"} }

// create makes a root agent.
func (w *world) create(setup ...func(*agent.Agent)) *agent.Agent {
	w.Helper()
	h, err := w.reg.Create(w.ctx, agent.Create{Options: options(), Setup: setups(setup)})
	w.ok(err)
	return h.Agent()
}

func setups(list []func(*agent.Agent)) func(context.Context, *agent.Agent) error {
	return func(_ context.Context, a *agent.Agent) error {
		for _, fn := range list {
			fn(a)
		}
		return nil
	}
}

func (w *world) child(owner *agent.Agent) *agent.Agent {
	w.Helper()
	h, err := w.reg.Create(w.ctx, agent.Create{Owner: owner, Options: options(), Session: session.New{
		ParentSession: owner.ID(), Root: owner.Session().Root(), Origin: session.OriginSubagent, DelegationDepth: 1,
	}})
	w.ok(err)
	return h.Agent()
}

// ask sends a prompt for a turn of its own and waits until the agent is idle.
func (w *world) ask(a *agent.Agent, id string) {
	w.Helper()
	w.ok(a.Followup(msg(id)))
	w.idle(a)
}

func (w *world) idle(a *agent.Agent) {
	w.Helper()
	w.ok(a.WhenIdle(w.ctx))
}

func msg(id string) message.Message {
	m := agent.UserText("text of " + id)
	m.ID = message.ID(id)
	return m
}

// register adds a global tool.
func (w *world) register(name string, safe bool, fn func(ctx context.Context, c *tool.Call) (any, error)) {
	w.Helper()
	d := tool.Definition{Name: name, Description: "does " + name, Parameters: []byte(`{ "type": "object" }`), Execute: fn}
	if safe {
		d.ConcurrencySafe = func([]byte) bool { return true }
	}
	_, err := w.tools.Root().Register(d)
	w.ok(err)
}

// model is an llm.Adapter whose calls are played by functions, one a call in
// order; a further call is answered with the text "ok".
type model struct {
	mu       sync.Mutex // guards following
	steps    []func(c *call)
	requests []request
	head     func(id string) int64
	policies map[string]llm.Policy
	window   int64
	deflt    int64
	fallback func(c *call) // answers when the script is played
}

// request is what a call was made with, and where its session's log stood.
type request struct {
	req  *llm.Request
	head int64
}

func (m *model) script(steps ...func(c *call)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = append(m.steps, steps...)
}

func (m *model) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests)
}

func (m *model) policy(route string) llm.Policy {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.policies[route]
}

func (m *model) Model(string, string) llm.ModelInfo {
	return llm.ModelInfo{ContextWindow: m.window, DefaultMaxTokens: m.deflt}
}

func (m *model) Stream(ctx context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		m.mu.Lock()
		head := m.head
		m.mu.Unlock()
		at := head(req.SessionID)
		m.mu.Lock()
		m.requests = append(m.requests, request{req, at})
		play := m.fallback
		if play == nil {
			play = say("ok")
		}
		if len(m.steps) > 0 {
			play, m.steps = m.steps[0], m.steps[1:]
		}
		m.mu.Unlock()
		play(&call{ctx: ctx, req: req, yield: yield})
	}
}

// call plays one answer.
type call struct {
	ctx   context.Context
	req   *llm.Request
	yield func(llm.Chunk, error) bool
	index int
	calls int
}

func (c *call) put(k llm.Chunk) { c.yield(k, nil) }

// delta starts a block and leaves it open.
func (c *call) delta(typ message.BlockType, kind llm.ChunkKind, text string) {
	c.put(llm.Chunk{Kind: llm.ChunkBlockStart, Index: c.index, BlockType: typ})
	c.put(llm.Chunk{Kind: kind, Index: c.index, Text: text})
	c.index++
}

func (c *call) text(s string) {
	b := message.Text(s)
	i := c.index
	c.delta(message.BlockText, llm.ChunkTextDelta, s)
	c.put(llm.Chunk{Kind: llm.ChunkBlockEnd, Index: i, Block: &b})
}

func (c *call) use(id, name, args string) {
	b := message.ToolCall(id, name, args)
	c.put(llm.Chunk{Kind: llm.ChunkBlockStart, Index: c.index, BlockType: message.BlockToolCall})
	c.put(llm.Chunk{Kind: llm.ChunkToolCallDelta, Index: c.index, ID: id, Name: name, Arguments: args})
	c.put(llm.Chunk{Kind: llm.ChunkBlockEnd, Index: c.index, Block: &b})
	c.index++
	c.calls++
}

func (c *call) finish(kind llm.FinishKind) {
	c.put(llm.Chunk{Kind: llm.ChunkUsage, Usage: &message.Usage{InputTokens: 3, OutputTokens: 2}})
	c.put(llm.Chunk{Kind: llm.ChunkFinish, Finish: &llm.Finish{Kind: kind}})
}

func (c *call) fail(f message.Failure) {
	c.put(llm.Chunk{Kind: llm.ChunkFinish, Finish: llm.Failed(f)})
}

// hang waits for the end of the call.
func (c *call) hang() {
	<-c.ctx.Done()
	c.put(llm.Chunk{Kind: llm.ChunkFinish, Finish: llm.Aborted(c.ctx)})
}

func say(text string) func(*call) {
	return func(c *call) { c.text(text); c.finish(llm.FinishStop) }
}

func ends(text string, kind llm.FinishKind) func(*call) {
	return func(c *call) { c.text(text); c.finish(kind) }
}

func fails(code string) func(*call) {
	return func(c *call) { c.fail(message.Failure{Code: code, Message: "no: " + code}) }
}

// uses answers with one call of each named tool; ids are c1, c2, …
func uses(names ...string) func(*call) {
	return func(c *call) {
		for i, n := range names {
			c.use(fmt.Sprintf("c%d", i+1), n, "{}")
		}
		c.finish(llm.FinishToolCalls)
	}
}

// gateStore is a store whose writes can be held up and made to fail.
type gateStore struct {
	*memory.Store
	mu     sync.Mutex // guards following
	before func(op string, events []session.Event) error
	after  func(op string) error
	heads  func() error
	reads  func() error

	inspects func() error
}

func (s *gateStore) gate(before func(op string, events []session.Event) error, after func(op string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.after = before, after
}

func (s *gateStore) failing(err error) {
	s.gate(func(string, []session.Event) error { return err }, nil)
}

func (s *gateStore) healthy() { s.gate(nil, nil) }

func (s *gateStore) pre(op string, events []session.Event) error {
	s.mu.Lock()
	fn := s.before
	s.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(op, events)
}

func (s *gateStore) post(op string) error {
	s.mu.Lock()
	fn := s.after
	s.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(op)
}

func (s *gateStore) Create(ctx context.Context, h session.Header, meta session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	if err := s.pre("create", first); err != nil {
		return nil, err
	}
	w, err := s.Store.Create(ctx, h, meta, first, cells)
	if err != nil {
		return nil, err
	}
	return &gateWriter{w, s}, s.post("create")
}

func (s *gateStore) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	if err := s.pre("open", nil); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	w, err := s.Store.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return &gateWriter{w, s}, nil
}

func (s *gateStore) ReadFrom(ctx context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	if s.reads != nil {
		return func(yield func(session.Event, error) bool) { yield(session.Event{}, s.reads()) }
	}
	return s.Store.ReadFrom(ctx, id, seq)
}

func (s *gateStore) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	if s.inspects != nil {
		if err := s.inspects(); err != nil {
			return session.Record{}, nil, err
		}
	}
	return s.Store.Inspect(ctx, id)
}

func (s *gateStore) Exists(ctx context.Context, id session.ID) (bool, error) {
	if err := s.pre("exists", nil); err != nil {
		return false, err
	}
	return s.Store.Exists(ctx, id)
}

type gateWriter struct {
	session.Writer
	s *gateStore
}

func (w *gateWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	if err := w.s.pre("append", events); err != nil {
		return err
	}
	if err := w.Writer.Append(ctx, head, events, cells); err != nil {
		return err
	}
	return w.s.post("append")
}

func (w *gateWriter) Head(ctx context.Context) (int64, error) {
	w.s.mu.Lock()
	fn := w.s.heads
	w.s.mu.Unlock()
	if fn != nil {
		if err := fn(); err != nil {
			return 0, err
		}
	}
	return w.Writer.Head(ctx)
}

func (w *gateWriter) Check(ctx context.Context) error {
	if err := w.s.pre("check", nil); err != nil {
		return err
	}
	return w.Writer.Check(ctx)
}

func (w *gateWriter) Close(ctx context.Context) error {
	if err := w.s.pre("close", nil); err != nil {
		return errors.Join(err, w.Writer.Close(ctx))
	}
	return w.Writer.Close(ctx)
}

// failFor makes the named operation fail once.
func (s *gateStore) failFor(op string, err error) {
	var once sync.Once
	s.gate(func(at string, _ []session.Event) error {
		var out error
		if at == op {
			once.Do(func() { out = err })
		}
		return out
	}, nil)
}

// latch is a gate that a fake waits at and a test opens.
type latch struct {
	reached, open chan struct{}
}

func newLatch() *latch { return &latch{reached: make(chan struct{}), open: make(chan struct{})} }

// wait announces itself and waits for the test, or for ctx.
func (l *latch) wait(ctx context.Context) error {
	close(l.reached)
	select {
	case <-l.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errBoom = errors.New("boom")
