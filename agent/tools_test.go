package agent_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// bench is a set of tools that hold until they are let go, and say how they ran.
type bench struct {
	mu   sync.Mutex // guards following
	log  []string
	open map[string]chan struct{}
	now  int
	most int
}

func newBench() *bench { return &bench{open: map[string]chan struct{}{}} }

func (b *bench) gate(id string) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[id] == nil {
		b.open[id] = make(chan struct{})
	}
	return b.open[id]
}

func (b *bench) run(ctx context.Context, c *tool.Call) (any, error) {
	b.mu.Lock()
	b.log = append(b.log, "start "+c.ID)
	b.now++
	b.most = max(b.most, b.now)
	b.mu.Unlock()
	select {
	case <-b.gate(c.ID):
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, "end "+c.ID)
	b.now--
	return "data of " + c.ID, context.Cause(ctx)
}

// release lets a body go and waits until everybody has come to rest.
func (b *bench) release(ids ...string) {
	for _, id := range ids {
		close(b.gate(id))
		synctest.Wait()
	}
}

func (b *bench) entries() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.log)
}

// Bodies overlap where the tool allows it, an exclusive call is a barrier, and
// results are committed in the model's order whatever the order of ending (core
// L39, Tool scheduling).
func TestToolScheduling(t *testing.T) {
	bubble(t, func(w *world) {
		b := newBench()
		w.register("safe", true, b.run)
		w.register("alone", false, b.run)
		w.model.script(uses("safe", "safe", "alone", "safe", "safe"))
		a := w.create()
		w.ok(a.Followup(msg("m1")))
		synctest.Wait()
		w.same("c1 and c2 overlap", []string{"start c1", "start c2"}, sorted(b.entries()))
		b.release("c2")
		w.same("no result of c2 in front of that of c1", []string{}, lines(a, "result"))
		b.release("c1")
		w.same("c3 runs alone", "start c3", b.entries()[4])
		w.same("results", []string{"result c1", "result c2"}, lines(a, "result"))
		b.release("c3")
		w.same("c4 and c5 overlap", []string{"start c4", "start c5"}, sorted(b.entries()[6:]))
		b.release("c5", "c4")
		w.idle(a)
		w.same("results", []string{"result c1", "result c2", "result c3", "result c4", "result c5"}, lines(a, "result"))
	})
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

// At most ten bodies of a step overlap by default, and the pool rolls.
func TestToolPool(t *testing.T) {
	bubble(t, func(w *world) {
		b := newBench()
		w.register("safe", true, b.run)
		names := make([]string, 13)
		for i := range names {
			names[i] = "safe"
		}
		w.model.script(uses(names...))
		a := w.create()
		w.ok(a.Followup(msg("m1")))
		synctest.Wait()
		w.same("started", 10, len(b.entries()))
		b.release("c4")
		w.same("the pool rolls", "start c11", b.entries()[11])
		for i := range names {
			if i != 3 {
				b.release(fmt.Sprintf("c%d", i+1))
			}
		}
		w.idle(a)
		w.same("most at once", 10, b.most)
		w.same("results", 13, len(lines(a, "result")))
	})
}

// An abort starts nothing more, waits for what runs, commits its results, and
// answers the rest (core L39, T17).
func TestAbortDuringTools(t *testing.T) {
	bubble(t, func(w *world) {
		b := newBench()
		w.register("safe", true, b.run)
		w.register("fail", true, func(ctx context.Context, c *tool.Call) (any, error) {
			<-ctx.Done()
			return nil, tool.Errorf("MINE", "own failure")
		})
		w.register("slow", true, func(ctx context.Context, c *tool.Call) (any, error) {
			_, _ = b.run(ctx, c) // only the bench's log matters
			<-b.gate("late")
			return "success", nil
		})
		w.register("alone", false, b.run)
		w.model.script(uses("safe", "fail", "slow", "alone", "nope"))
		a := w.create()
		w.ok(a.Followup(msg("m1")))
		synctest.Wait()
		w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
		synctest.Wait()
		w.same("a body that goes on is waited for", agent.Running, a.Status())
		b.release("late")
		w.idle(a)
		w.same("calls and results", []string{
			"call c1 safe", "call c2 fail", "call c3 slow", "call c4 alone",
			"result c1 ABORTED", "result c2 MINE", "result c3 ABORTED", "result c4 ABORTED_BEFORE_DISPATCH",
			"call c5 nope", "result c5 ABORTED_BEFORE_DISPATCH",
		}, lines(a, "call", "result"))
	})
}

// A failure of one call is a result like any other (core T16, G10).
func TestToolFailures(t *testing.T) {
	bubble(t, func(w *world) {
		w.register("panics", true, func(context.Context, *tool.Call) (any, error) { panic("ouch") })
		w.register("fails", false, func(context.Context, *tool.Call) (any, error) { return nil, errBoom })
		_, err := w.tools.Root().Register(tool.Definition{
			Name: "strict", Description: "d", Parameters: []byte(`{"type":"object","required":["x"]}`),
			Execute: func(context.Context, *tool.Call) (any, error) { return "never", nil },
		})
		w.ok(err)
		w.model.script(func(c *call) {
			uses("panics", "fails", "nope")(&call{ctx: c.ctx, yield: func(k llm.Chunk, err error) bool {
				if k.Kind == "finish" || k.Kind == "usage" {
					return true
				}
				return c.yield(k, err)
			}})
			c.index = 3
			c.use("c4", "strict", "{}")
			c.use("c5", "strict", "not json")
			c.finish("tool-calls")
		})
		a := w.create()
		w.ask(a, "m1")
		w.same("results", []string{
			"result c1 INTERNAL", "result c2 TOOL_FAILED", "result c3 UNKNOWN_TOOL", "result c4 INVALID_ARGS", "result c5 INVALID_ARGS",
		}, lines(a, "result"))
		w.same("end", []string{"end 1 completed"}, lines(a, "end"))
	})
}

// Contexts that tools defer reach the model after all results, in the order of the
// calls, and wake nobody (core T19); a call that concludes ends the turn, unless
// input waits (T18).
func TestDeferAndConclude(t *testing.T) {
	for _, withContext := range []bool{false, true} {
		t.Run(fmt.Sprintf("context=%t", withContext), func(t *testing.T) {
			bubble(t, func(w *world) {
				w.register("finish", true, func(_ context.Context, c *tool.Call) (any, error) {
					c.ConcludeTurn()
					if withContext {
						c.DeferContext(msg("ctx-" + c.ID))
					}
					return "ok", nil
				})
				w.register("failing", true, func(_ context.Context, c *tool.Call) (any, error) {
					c.ConcludeTurn()
					c.DeferContext(msg("ctx-" + c.ID))
					return nil, errBoom
				})
				w.model.script(uses("finish", "failing", "finish"))
				a := w.create()
				w.ask(a, "m1")
				want := []string{"step 1.1", "user m1", "result c1", "result c2 TOOL_FAILED", "result c3"}
				if withContext {
					want = append(want, "inbox step +ctx-c1 nowake", "inbox step +ctx-c3 nowake", "inbox step -2@0", "step 1.2", "user ctx-c1", "user ctx-c3")
				}
				w.same("course", append(want, "end 1 completed"), lines(a, "step ", "user", "result", "inbox step", "end"))
			})
		})
	}
	t.Run("only failed", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.register("failing", false, func(_ context.Context, c *tool.Call) (any, error) { c.ConcludeTurn(); return nil, errBoom })
			w.model.script(uses("failing"))
			a := w.create()
			w.ask(a, "m1")
			w.same("course", []string{"step 1.1", "step 1.2", "end 1 completed"}, lines(a, "step ", "end"))
		})
	})
}

// A context that the log refuses is a fault of the turn; the log stays balanced.
func TestBadDeferredContext(t *testing.T) {
	bubble(t, func(w *world) {
		w.register("bad", false, func(_ context.Context, c *tool.Call) (any, error) {
			c.DeferContext(message.Message{})
			return "ok", nil
		})
		w.model.script(uses("bad"))
		a := w.create()
		w.ask(a, "m1")
		w.same("course", []string{"result c1", "step-end 1.1", "end 1 error UNKNOWN"}, lines(a, "result", "step-end", "end"))
	})
}

// The call is on disk before its body starts, or the body does not start (core
// D23b); a cancel that falls into that flush is ABORTED_BEFORE_DISPATCH.
func TestFlushBeforeBody(t *testing.T) {
	for _, op := range []string{"append", "check", "cancel"} {
		t.Run(op, func(t *testing.T) {
			stored(t, func(w *world) {
				ran := false
				w.register("act", false, func(context.Context, *tool.Call) (any, error) { ran = true; return "ok", nil })
				w.model.script(uses("act"))
				a := w.create()
				armed := false
				a.AddHooks(agent.Hooks{ToolStarted: func(a *agent.Agent, _ *tool.Call) { armed = true }})
				w.store.gate(func(at string, _ []session.Event) error {
					if !armed {
						return nil
					}
					armed = armed && at != op && at != "append"
					switch {
					case op == "cancel" && at == "append":
						w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
						return nil
					case at == op:
						return errBoom
					}
					return nil
				}, nil)
				w.ask(a, "m1")
				w.store.healthy()
				want := "result c1 TOOL_NOT_STARTED"
				if op == "cancel" {
					want = "result c1 ABORTED_BEFORE_DISPATCH"
				}
				w.same("result", []string{want}, lines(a, "result"))
				if ran {
					t.Error("the body ran")
				}
			})
		})
	}
}

// The order on disk at the moment the body starts (core D23b, G6.4).
func TestCallIsDurableInsideTheBody(t *testing.T) {
	stored(t, func(w *world) {
		var have []string
		w.register("act", false, func(_ context.Context, c *tool.Call) (any, error) {
			have = w.storedLines(session.ID(c.Caller.SessionID()))
			return "ok", nil
		})
		w.model.script(uses("act"))
		a := w.create()
		w.ask(a, "m1")
		w.same("last stored event", "call c1 act", have[len(have)-1])
	})
}

type approver struct {
	mu   sync.Mutex
	asks []tool.ApprovalRequest
	say  func(ctx context.Context) (tool.ApprovalOutcome, error)
}

func (p *approver) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	p.mu.Lock()
	p.asks = append(p.asks, *req)
	p.mu.Unlock()
	return p.say(ctx)
}

// Approvals are asked and decided in the caller's log, on one snapshot (core T13,
// T33, T25; seam COMP-24).
func TestApprovals(t *testing.T) {
	always := func(o tool.ApprovalOutcome) func(context.Context) (tool.ApprovalOutcome, error) {
		return func(context.Context) (tool.ApprovalOutcome, error) { return o, nil }
	}
	for name, c := range map[string]struct {
		say    func(context.Context) (tool.ApprovalOutcome, error)
		policy string // what the log says
		cancel bool
		want   []string
		asked  int
	}{
		"allowed":  {say: always(tool.ApprovalAllowedOnce), want: []string{"asked act", "decided allowed-once", "result c1"}, asked: 1},
		"rejected": {say: always(tool.ApprovalRejected), want: []string{"asked act", "decided rejected", "result c1 DENIED"}, asked: 1},
		"panics":   {say: func(context.Context) (tool.ApprovalOutcome, error) { panic("ouch") }, want: []string{"asked act", "decided unavailable", "result c1 DENIED"}, asked: 1},
		"ask":      {say: always(tool.ApprovalAllowedOnce), policy: "ask", want: []string{"asked act", "decided allowed-once", "result c1"}, asked: 1},
		"unknown":  {say: always(tool.ApprovalAllowedOnce), policy: "on-tuesdays", want: []string{"asked act", "decided rejected", "result c1 DENIED"}},
		"never":    {say: always(tool.ApprovalAllowedOnce), policy: string(tool.PolicyNever), want: []string{"asked act", "decided rejected", "result c1 DENIED"}},
		"cancelled": {
			say: func(ctx context.Context) (tool.ApprovalOutcome, error) {
				<-ctx.Done()
				return tool.ApprovalCancelled, nil
			},
			cancel: true, want: []string{"asked act", "decided cancelled", "result c1 ABORTED_BEFORE_DISPATCH"}, asked: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &approver{say: c.say}
				w := newWorld(t, true, agent.Config{Approver: p})
				w.register("act", false, func(context.Context, *tool.Call) (any, error) { return "ok", nil })
				w.tools.Root().AddPreExecute(func(context.Context, *tool.Call) tool.Decision { return tool.Ask("why not") })
				root := w.create()
				h, err := w.reg.Create(w.ctx, agent.Create{Owner: root, Options: options(), Session: session.New{Cwd: "/tmp"}, Setup: func(_ context.Context, a *agent.Agent) error {
					if c.policy == "" {
						return nil
					}
					_, err := a.Session().Append(session.Draft{Payload: &session.ApprovalPolicy{Policy: c.policy, Delegated: true}})
					return err
				}})
				w.ok(err)
				a := h.Agent()
				w.model.script(uses("act"))
				w.ok(a.Followup(msg("m1")))
				synctest.Wait()
				if c.cancel {
					w.ok(a.Cancel(session.Cause{Kind: session.CauseUser}, false))
				}
				w.idle(a)
				w.same("course", c.want, lines(a, "asked", "decided", "result"))
				w.same("questions", c.asked, len(p.asks))
				if c.asked > 0 {
					w.same("path", []string{root.SessionID(), a.SessionID()}, p.asks[0].Path)
					w.same("cwd", "/tmp", p.asks[0].Cwd)
				}
				w.same("root", []bool{true, false}, []bool{root.Root(), a.Root()})
				w.finish()
			})
		})
	}
}

// A tool gets the exact live agent (design § 4, Authority), and ToolStarted and
// ToolEnded bracket what was dispatched.
func TestCallerIsTheLiveAgent(t *testing.T) {
	bubble(t, func(w *world) {
		var order []string
		w.register("act", false, func(ctx context.Context, c *tool.Call) (any, error) {
			live, ok := w.reg.Live(c.Caller)
			if !ok || live != agent.Initiator(ctx) {
				t.Errorf("the caller %v is not the live agent", c.Caller)
			}
			order = append(order, "body")
			return "ok", nil
		})
		a := w.create()
		a.AddHooks(agent.Hooks{
			ToolStarted: func(_ *agent.Agent, c *tool.Call) { order = append(order, "started "+c.ID) },
			ToolEnded: func(_ *agent.Agent, c *tool.Call, r tool.Result) {
				order = append(order, fmt.Sprintf("ended %s %t", c.ID, r.IsError))
			},
		})
		w.model.script(uses("act", "nope"))
		w.ask(a, "m1")
		w.same("order", []string{"started c1", "body", "ended c1 false"}, order)
		if _, ok := w.reg.Live(fakeCaller{a.SessionID()}); ok {
			t.Error("an id was taken for an agent")
		}
		w.ok(a.Dispose(w.ctx, false))
		if _, ok := w.reg.Live(a); ok {
			t.Error("a disposed agent counts as live")
		}
	})
}

type fakeCaller struct{ id string }

func (f fakeCaller) SessionID() string { return f.id }
func (f fakeCaller) Root() bool        { return true }

// A fault of the scheduling itself drains what runs and ends the turn; what is
// unanswered then gets the result that a repair would give, but for its text: the
// process goes on (core S13).
func TestSchedulerFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := false
		w := validated(t, func(e session.Event) error {
			if p, ok := e.Payload().(*session.ToolCall); ok && refuse && p.CallID == "c2" {
				refuse = false
				return errBoom
			}
			return nil
		})
		b := newBench()
		w.register("safe", true, b.run)
		w.model.script(uses("safe", "safe", "safe"))
		a := w.create()
		refuse = true
		w.ok(a.Followup(msg("m1")))
		synctest.Wait()
		b.release("c1")
		w.idle(a)
		w.same("course", []string{
			"call c1 safe", "result c1", "result c2 TOOL_NOT_STARTED", "result c3 TOOL_NOT_STARTED", "step-end 1.1", "end 1 error UNKNOWN",
		}, lines(a, "call", "result", "step-end", "end"))
		for e := range a.Session().Events(0) {
			if p, ok := e.Payload().(*session.ToolResult); ok && p.ErrorCode == session.CodeToolNotStarted {
				text := message.JoinText(p.Message.Content[0].Content)
				if !strings.Contains(text, "internal fault") || strings.Contains(text, "process") {
					t.Errorf("the model reads %q", text)
				}
			}
		}
		if f := w.rec.failures(a); len(f) != 1 || !errors.Is(f[0], errBoom) {
			t.Errorf("failures: %v", f)
		}
		w.ask(a, "m2") // the next request is legal
		w.finish()
	})
}

// A tool that ends its goroutine instead of returning is a fault of the step, not
// the end of the agent: the turn ends as an error and the next one runs (G10).
func TestToolEndsItsGoroutine(t *testing.T) {
	for _, safe := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, true, agent.Config{})
			w.register("gone", safe, func(context.Context, *tool.Call) (any, error) {
				runtime.Goexit()
				return nil, nil
			})
			w.model.script(uses("gone"))
			a := w.create()
			w.ok(a.Followup(msg("m1")))
			w.idle(a)
			if f := w.rec.failures(a); len(f) != 1 || !strings.Contains(f[0].Error(), `"gone"`) {
				t.Errorf("failures: %v", f)
			}
			w.ask(a, "m2")
			w.finish()
		})
	}
}

// Whoever watches learns of a call that was refused before it started.
func TestObserversHearOfRefusedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, true, agent.Config{})
		refused := make(chan string, 4)
		stop := w.reg.Observe(64, func(e agent.Event) {
			if e.Kind == agent.EventToolRefused {
				refused <- e.Call.Name + ": " + e.Err.Error()
			}
		})
		w.model.script(uses("nosuch"))
		a := w.create()
		w.ask(a, "m1")
		stop()
		if got := <-refused; !strings.HasPrefix(got, "nosuch: Error: ") {
			t.Errorf("heard %q", got)
		}
		w.finish()
	})
}
