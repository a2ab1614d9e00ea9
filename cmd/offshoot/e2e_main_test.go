//go:build unix

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/harness/supervise"
	"github.com/offshoot-dev/offshoot/internal/fakeagent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/tool"
)

// The end-to-end tests run the command as a process of its own: signals, exit
// codes, streams and files are real. The program under test is the test binary,
// which is the command when e2eEnv is set.
const (
	e2eEnv  = "OFFSHOOT_E2E"
	killEnv = "OFFSHOOT_E2E_KILL" // see newKiller
)

func TestMain(m *testing.M) {
	supervise.Main()
	fakeagent.Become()
	if _, ok := os.LookupEnv(e2eEnv); ok {
		os.Exit(offshoot())
	}
	code := m.Run()
	if plainDir != "" {
		if err := os.RemoveAll(plainDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// offshoot is main, with a killer where one is asked for.
func offshoot() int {
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		env: config.OSEnviron, getwd: os.Getwd, now: time.Now, build: debug.ReadBuildInfo,
	}
	if spec, ok := os.LookupEnv(killEnv); ok {
		k := newKiller(spec)
		a.configure, a.opened = k.configure, k.opened
	}
	return a.execute(context.Background(), os.Args[1:])
}

// killer ends its own process with SIGKILL at a named point.
type killer struct {
	point string
	child bool // in a delegated session only; otherwise in the root only
	typ   session.Type

	nth    int64 // of the points that count
	writes atomic.Int64
}

// The points. Those with a type concern the first batch of events that holds one.
const (
	killCreated = "created" // the agent is published, nothing is stored
	killTurn    = "turn"    // turn/start is stored, the claim is in memory only
	killClaim   = "claim"   // inside the pre-step chain
	killRequest = "request" // the request is about to leave
	killChunk   = "chunk"   // in the middle of a stream
	killBody    = "body"    // inside a tool that has done its work
	killStuck   = "stuck"   // nobody dies, but the store answers nothing until it is told to stop
	killDeaf    = "deaf"    // not even then
	killNothing = "hang"    // nobody dies, but a session never retires
	killLose    = "lose"    // before the batch is stored
	killBefore  = "before"  // what stands before the event is stored, it is not
	killUpTo    = "upto"    // the event is stored, what follows is not
	killAfter   = "after"   // the batch is stored, and nobody was told

	// Those that name the number of a write in this process instead of a type, of whatever
	// session it is.
	killWrite   = "write"   // before it is stored
	killWritten = "written" // when it is stored, and nobody was told
)

// newKiller reads POINT[:TYPE][@child].
func newKiller(spec string) *killer {
	k := &killer{}
	spec, k.child = strings.CutSuffix(spec, "@child")
	point, typ, _ := strings.Cut(spec, ":")
	k.point, k.typ = point, session.Type(typ)
	if point == killWrite || point == killWritten {
		// A number that cannot be read is that of no write.
		k.nth, _ = strconv.ParseInt(typ, 10, 64)
	}
	return k
}

func (k *killer) at(point string, child bool) bool { return k.point == point && k.child == child }

// die does not return.
func die() {
	// It fails for no process that exists.
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (k *killer) configure(o *harness.Options) {
	if k.point == killRequest && !k.child {
		o.HTTPClient = &http.Client{Transport: deadly{}}
	}
	stuck := k.point == killStuck || k.point == killDeaf
	if k.typ == "" && !stuck {
		return
	}
	store, err := harness.OpenStore(context.Background(), o.Config.Config.Store)
	if err != nil {
		return // the command finds the same fault and words it
	}
	if stuck {
		o.Store = &stuckStore{Store: store, deaf: k.point == killDeaf}
		return
	}
	o.Store = &deadlyStore{Store: store, k: k}
}

// stuckStore opens no session.
type stuckStore struct {
	session.Store
	deaf bool
}

func (s *stuckStore) Open(ctx context.Context, _ session.ID) (session.Writer, error) {
	if _, err := os.Stderr.WriteString("the store is stuck\n"); err != nil {
		return nil, err
	}
	if s.deaf {
		select {}
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// deadly is a transport over which no request ever leaves.
type deadly struct{}

func (deadly) RoundTrip(*http.Request) (*http.Response, error) {
	die()
	return nil, nil
}

func (k *killer) opened(h *harness.Harness) {
	hooks := agent.Hooks{
		Created: func(a *agent.Agent) error {
			if k.at(killCreated, !a.Root()) {
				die()
			}
			return nil
		},
		PreStep: func(ctx context.Context, p *agent.PreStep) error {
			switch child := !p.Agent.Root(); {
			case k.at(killTurn, child):
				if err := p.Agent.Session().Flush(ctx); err != nil {
					return err
				}
				die()
			case k.at(killClaim, child):
				die()
			}
			return nil
		},
		Chunk: func(a *agent.Agent, c llm.Chunk) {
			if c.Kind == llm.ChunkTextDelta && k.at(killChunk, !a.Root()) {
				die()
			}
		},
	}
	h.Agents.AddHooks(hooks)
	h.Sessions.AddHooks(session.Hooks{Disposed: func(*session.Session) {
		if k.point == killNothing {
			select {}
		}
	}})
	h.Tools.Root().AddExecute(func(ctx context.Context, call *tool.Call, next func(context.Context) (any, error)) (any, error) {
		result, err := next(ctx)
		if a, ok := call.Caller.(*agent.Agent); ok && k.at(killBody, !a.Root()) {
			die()
		}
		return result, err
	})
}

// deadlyStore kills around the batch that holds the first event of a type.
type deadlyStore struct {
	session.Store
	k *killer
}

func (s *deadlyStore) Create(ctx context.Context, h session.Header, meta session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	w := &deadlyWriter{k: s.k, child: h.ParentSession != ""}
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		return nil, err
	}
	w.cells = units.NewCells(&h)
	err = w.store(0, first, cells, func(events []session.Event, cells []session.Checkpoint) (err error) {
		w.Writer, err = s.Store.Create(ctx, h, meta, events, cells)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (s *deadlyStore) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	rec, _, err := s.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	w := &deadlyWriter{k: s.k, child: rec.Header.ParentSession != ""}
	if w.Writer, err = s.Store.Open(ctx, id); err != nil {
		return nil, err
	}
	return w, nil
}

type deadlyWriter struct {
	session.Writer
	k     *killer
	child bool
	// cells fold what was stored, for a batch that is cut; nil for a log that this
	// process did not begin, which is not cut.
	mu    sync.Mutex
	cells session.Cells
}

func (w *deadlyWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	return w.store(head, events, cells, func(events []session.Event, cells []session.Checkpoint) error {
		return w.Writer.Append(ctx, head, events, cells)
	})
}

func (w *deadlyWriter) store(head int64, events []session.Event, cells []session.Checkpoint, next func([]session.Event, []session.Checkpoint) error) error {
	if w.k.nth > 0 {
		hit := w.k.writes.Add(1) == w.k.nth
		if hit && w.k.point == killWrite {
			die()
		}
		err := next(events, cells)
		if hit {
			die()
		}
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := -1
	for i := range events {
		if w.child == w.k.child && events[i].Type == w.k.typ {
			at = i
			break
		}
	}
	cut := len(events)
	switch {
	case at < 0:
	case w.k.point == killLose:
		die()
	case w.k.point == killBefore:
		cut = at
	case w.k.point == killUpTo:
		cut = at + 1
	}
	if at >= 0 && cut == 0 {
		die()
	}
	if w.cells != nil {
		for i := range events[:cut] {
			w.cells.Apply(&events[i])
		}
	}
	if cut < len(events) {
		events, cells = events[:cut], w.cells.Take(head+int64(cut))
	}
	err := next(events, cells)
	if err == nil && at >= 0 {
		die()
	}
	return err
}
