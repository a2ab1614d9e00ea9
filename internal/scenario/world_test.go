package scenario_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/shell"
)

// A world is the system of one story while it is played, with what the story calls
// its parts by. Steps run one after another on the test's goroutine; hooks and the
// calls that a step leaves running report into it.
type world struct {
	t    *testing.T
	at   string // file and line of the step at hand
	opts subagenttest.Options
	sys  *subagenttest.System // made by the first step that needs it

	storeKind string
	backend   *memory.Backend // of the memory store
	file      string          // of the sqlite store
	inner     session.Store   // the open one, without faults
	faults    faults

	agents    map[string]*agent.Agent
	runs      map[string]*run
	calls     map[string]*call
	setups    map[string]func() error // withdraw
	providers map[string]*provider
	mounts    map[string]func()
	tools     map[string]func() // unregister
	gates     map[string]chan struct{}
	asking    map[string]string // tools that ask before they run, with the reason
	shells    shell.Slot
	gone      map[string]*agent.Agent // of an earlier process

	names names

	hearing atomic.Bool // of faults

	mu       sync.Mutex                 // guards following
	answers  map[string][]scripted.Step // by prompt, and those of unasked and untold
	era      int                        // how often the system was made
	born     map[session.ID]*agent.Agent
	lasting  map[session.ID]bool // children that are continuable
	taken    map[string]bool     // messages that a call was told of
	told     []*told
	news     []string // what is no matter of one child, in order
	last     []string // the same, of what comes after the children
	triggers []trigger
	ops      []*op
	heads    map[*agent.Agent]int64      // how far the turns of an agent were told
	made     map[session.ID]subagent.Run // by providers
	returned map[session.ID]bool         // runs that Start has returned
}

// run is a run that the story started.
type run struct {
	name   string
	cancel context.CancelCauseFunc
	run    subagent.Run // nil until Start returned it
	req    subagent.Request
	closed bool
}

type provider struct {
	remote     *subagenttest.Scripted // nil for a provider in this process
	plays      map[string]subagenttest.Play
	unregister func()

	// Of one under which continuable children can begin.
	preparing   string // the gate at which preparations wait
	deaf        bool   // to the end of their contexts
	prepFailing string
	seed        []session.Event
	prepared    []preparation // guarded by the world's mu
}

// op is a call that a step made; it may go on while later steps run.
type op struct {
	name  string
	out   []string
	done  bool
	fresh bool // of the step at hand
}

// trigger is something that happens once, in the middle of something else.
type trigger struct {
	when string
	do   func()
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, agents: map[string]*agent.Agent{}, runs: map[string]*run{}, calls: map[string]*call{}, providers: map[string]*provider{},
		setups: map[string]func() error{}, lasting: map[session.ID]bool{}, taken: map[string]bool{},
		mounts: map[string]func(){}, tools: map[string]func(){}, gates: map[string]chan struct{}{},
		answers: map[string][]scripted.Step{}, asking: map[string]string{},
		names: newNames(), born: map[session.ID]*agent.Agent{}, heads: map[*agent.Agent]int64{}, made: map[session.ID]subagent.Run{}, returned: map[session.ID]bool{},
	}
}

// fatal ends the story: a step cannot be played.
func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s: %s", w.at, fmt.Sprintf(format, args...))
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.fatal("%v", err)
	}
}

// system returns the running system, made at the first call.
func (w *world) system() *subagenttest.System {
	w.t.Helper()
	if w.sys != nil {
		return w.sys
	}
	w.opts.Store = w.openStore()
	var err error
	w.opts.Projections, err = projection.NewRegistry(projection.BuiltIn()...)
	w.check(err)
	w.opts.Validators = []session.Validator{w.faults.validate}
	w.opts.Logger = slog.New(faultLog{slog.DiscardHandler, w})
	w.sys = subagenttest.NewSystem(w.t, w.opts)
	w.sys.Otherwise(scripted.Step{scripted.Func(w.answer)})
	w.mu.Lock()
	w.era++
	w.mu.Unlock()
	w.listen(w.era)
	w.sys.Tools.Root().AddPreExecute(func(_ context.Context, c *tool.Call) tool.Decision {
		w.mu.Lock()
		defer w.mu.Unlock()
		if reason, ok := w.asking[c.Name]; ok {
			return tool.Ask(reason)
		}
		return tool.Allow()
	})
	return w.sys
}

// end closes what the story left open, and complains about what it should not have.
func (w *world) end() {
	for _, name := range sorted(w.runs) {
		if r := w.runs[name]; r.run != nil && !r.closed {
			w.t.Errorf("%s: run %s was never closed", w.at, name)
		}
	}
	for _, o := range w.pending() {
		w.t.Errorf("%s: %s never returned", w.at, o)
	}
}

func (w *world) pending() (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.ops {
		if !o.done {
			names = append(names, o.name)
		}
	}
	return names
}

func (w *world) agent(name string) *agent.Agent {
	w.t.Helper()
	a := w.agents[name]
	if a == nil {
		w.fatal("no agent is named %q; there are %s", name, strings.Join(sorted(w.agents), ", "))
	}
	return a
}

func (w *world) startedRun(name string) *run {
	w.t.Helper()
	r := w.runs[name]
	if r == nil {
		w.fatal("no run is named %q; there are %s", name, strings.Join(sorted(w.runs), ", "))
	}
	if r.run == nil {
		w.fatal("run %q was not started", name)
	}
	return r
}

// gate returns a gate by its name; the first mention makes it.
func (w *world) gate(name string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gates[name] == nil {
		w.gates[name] = make(chan struct{})
	}
	return w.gates[name]
}

// call runs fn beside the story until it returns; its lines appear in the outcome of
// the step during which it does. What it does is observable at the next quiescence.
func (w *world) call(name string, fn func() []string) {
	o := &op{name: name, fresh: true}
	w.mu.Lock()
	w.ops = append(w.ops, o)
	w.mu.Unlock()
	go func() {
		out := fn()
		w.mu.Lock()
		defer w.mu.Unlock()
		o.out, o.done = out, true
	}()
}

// say adds a line to the outcome of the step at hand.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news = append(w.news, fmt.Sprintf(format, args...))
}

// play plays a step and returns its outcome, when nothing goes on by itself any more.
func (w *world) play(path string, st *step) []string {
	w.at = fmt.Sprintf("%s:%d", path, st.line)
	st.run(w)
	synctest.Wait()
	lines := w.outcome()
	for i := range lines {
		lines[i] = w.names.normal(lines[i])
	}
	return lines
}

// outcome collects what happened since the last one: what is no matter of a child in
// the order in which it was told, then child by child, then the turns of agents that
// are no children, then the calls that returned.
func (w *world) outcome() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range byName(w, w.lasting) {
		w.follow(id)
	}
	w.nameChildren()
	lines := w.news
	w.news = nil
	lines = append(lines, w.lanes()...)
	for _, name := range sorted(w.agents) {
		if a := w.agents[name]; a.Session().Header().Origin == "" {
			for _, turn := range w.ends(a) {
				lines = append(lines, name+" ends "+turn)
			}
		}
	}
	slices.SortFunc(w.last, compareNames) // agents of one step end in any order
	lines = append(lines, w.last...)
	w.last = nil
	w.ops = slices.DeleteFunc(w.ops, func(o *op) bool {
		switch {
		case o.done:
			w.nameMessages(o.out)
			lines = append(lines, o.out...)
		case o.fresh:
			lines = append(lines, o.name+" has not returned")
		}
		o.fresh = false
		return o.done
	})
	return lines
}

// ends tells the turns of an agent that ended since it was last asked. The lock is held.
func (w *world) ends(a *agent.Agent) (turns []string) {
	said := "nothing"
	for e := range a.Session().Events(w.heads[a]) {
		switch p := e.Payload().(type) {
		case *session.TurnStart:
			said = "nothing"
		case *session.AssistantMessage:
			said = blocks(p.Message.Content)
		case *session.TurnEnd:
			turns = append(turns, fmt.Sprintf("turn %d: %s, saying %s", p.Turn, turnEnd(p), said))
			w.heads[a] = e.Seq + 1
		}
	}
	return turns
}

func (w *world) trigger(when string) {
	w.mu.Lock()
	var due []func()
	w.triggers = slices.DeleteFunc(w.triggers, func(t trigger) bool {
		if t.when == when {
			due = append(due, t.do)
		}
		return t.when == when
	})
	w.mu.Unlock()
	for _, do := range due {
		do()
	}
}
