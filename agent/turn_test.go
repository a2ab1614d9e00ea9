package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// The order of a healthy turn (core S14, S15 as design § 4 supersedes it, L16,
// L19, L39): the claim lies in one hold with what it became.
func TestHealthyTurnOrder(t *testing.T) {
	bubble(t, func(w *world) {
		w.register("read", false, func(context.Context, *tool.Call) (any, error) { return "data", nil })
		w.model.script(uses("read"), say("done"))
		a := w.create()
		w.ask(a, "m1")
		w.ask(a, "m2")
		w.logged(a, 0,
			"inbox turn +m1",
			"turn 1",
			"inbox turn -1@0", "step 1.1", "user m1",
			"header initial test:m1", "request-context",
			"assistant read(c1)",
			"call c1 read", "result c1",
			"step-end 1.1",
			"step 1.2",
			`assistant "done"`,
			"step-end 1.2",
			"end 1 completed",
			"inbox turn +m2",
			"turn 2",
			"inbox turn -1@0", "step 2.1", "user m2",
			`assistant "ok"`,
			"step-end 2.1",
			"end 2 completed",
		)
		w.same("statuses (L3)", []agent.Status{agent.Running, agent.Idle, agent.Running, agent.Idle}, w.rec.statuses(a))
	})
}

// An answer without content is still one message, and it is not model-visible
// (core S9g, S19).
func TestEmptyAnswer(t *testing.T) {
	bubble(t, func(w *world) {
		w.model.script(func(c *call) { c.finish(llm.FinishStop) }, say("x"))
		a := w.create()
		w.ask(a, "m1")
		w.ask(a, "m2")
		w.same("answers", []string{"assistant", `assistant "x"`}, lines(a, "assistant"))
	})
}

// What the pre-step chain does to the batch (core L17, L18; design § 4).
func TestPreStepChain(t *testing.T) {
	type hook = func(ctx context.Context, p *agent.PreStep) error
	once := func(fn hook) hook {
		done := false
		return func(ctx context.Context, p *agent.PreStep) error {
			if done {
				return nil
			}
			done = true
			return fn(ctx, p)
		}
	}
	for name, c := range map[string]struct {
		hook hook
		want []string // the first turn, behind turn/start
	}{
		"reject is blocked and the batch is gone": {
			func(_ context.Context, p *agent.PreStep) error { p.Reject(); return nil },
			[]string{"inbox turn -1@0", "end 1 blocked"},
		},
		"drop all is an empty step": {
			func(_ context.Context, p *agent.PreStep) error { p.Messages = nil; return nil },
			[]string{"inbox turn -1@0", "end 1 completed"},
		},
		"rewrite and add": {
			func(_ context.Context, p *agent.PreStep) error {
				m := p.Messages[0]
				m.Content = []message.Block{message.Text("rewritten")}
				p.Messages = []message.Message{m, msg("extra")}
				return nil
			},
			[]string{"inbox turn -1@0", "step 1.1", "user m1", "user extra", "header initial test:m1", "request-context", `assistant "ok"`, "step-end 1.1", "end 1 completed"},
		},
		"an error fails the turn": {
			func(context.Context, *agent.PreStep) error { return errBoom },
			[]string{"inbox turn -1@0", "end 1 error UNKNOWN"},
		},
		"so does a panic": {
			func(context.Context, *agent.PreStep) error { panic("ouch") },
			[]string{"inbox turn -1@0", "end 1 error UNKNOWN"},
		},
		"so does a batch that the log refuses": {
			func(_ context.Context, p *agent.PreStep) error { p.Messages[0].ID = ""; return nil },
			[]string{"inbox turn -1@0", "end 1 error UNKNOWN"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				a := w.create(func(a *agent.Agent) { a.AddHooks(agent.Hooks{PreStep: once(c.hook)}) })
				w.ok(a.Followup(msg("m1")))
				w.ok(a.Followup(msg("m2")))
				w.idle(a)
				got := trace(a.Session())
				start, end := -1, -1
				for i, l := range got {
					switch {
					case l == "turn 1":
						start = i + 1
					case strings.HasPrefix(l, "end 1"):
						end = i + 1
					}
				}
				// The second send may fall anywhere into the first turn.
				var turn []string
				for _, l := range got[start:end] {
					if l != "inbox turn +m2" {
						turn = append(turn, l)
					}
				}
				w.same("first turn", c.want, turn)
				// P08: what was accepted behind a failed or rejected turn gets its own.
				w.same("last line", "end 2 completed", got[len(got)-1])
			})
		})
	}
}

// A chain that is held up keeps the claimed messages in the queue and blocks
// nobody (design § 4, Claimed exactly once).
func TestChainHoldsTheClaim(t *testing.T) {
	bubble(t, func(w *world) {
		l := newLatch()
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{PreStep: func(ctx context.Context, p *agent.PreStep) error {
				if p.Turn == 1 && p.Step == 1 {
					return l.wait(ctx)
				}
				return nil
			}})
		})
		w.ok(a.Steer(msg("s1")))
		<-l.reached
		w.ok(a.Steer(msg("s2")))
		w.ok(a.Followup(msg("m1")))
		if err := a.Discard("s1"); !errors.Is(err, agent.ErrNotPending) {
			t.Errorf("discarding what a chain holds: %v", err)
		}
		w.ok(a.Session().Flush(w.ctx))
		w.same("lists while the chain runs", []int{2, 1}, []int{len(a.Session().Inbox(session.NextStep)), len(a.Session().Inbox(session.NextTurn))})
		w.ok(a.Discard("s2"))
		w.ok(a.Steer(msg("s3")))
		close(l.open)
		w.idle(a)
		w.same("users", []string{"user s1", "user s3", "user m1"}, lines(a, "user"))
	})
}

// A turn that nothing is left for closes without a step (core L13, L18).
func TestTurnWithoutInput(t *testing.T) {
	bubble(t, func(w *world) {
		l := newLatch()
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{TurnOpen: func(*agent.Agent, int64) ([]session.Draft, error) {
				return nil, l.wait(w.ctx)
			}})
		})
		w.ok(a.Followup(msg("m1")))
		<-l.reached
		w.ok(a.Discard("m1"))
		close(l.open)
		w.idle(a)
		w.logged(a, 0, "inbox turn +m1", "inbox turn -1@0 canceled", "turn 1", "end 1 completed")
		if n := w.model.count(); n != 0 {
			t.Errorf("%d requests were made for nothing", n)
		}
	})
}

// Input between steps, and input when the turn is about to end (core L11, L15, L20).
func TestTurnStoppingSteers(t *testing.T) {
	bubble(t, func(w *world) {
		n := 0
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{TurnStopping: func(_ context.Context, a *agent.Agent, _ session.EndKind) {
				if n++; n == 1 {
					w.ok(a.Steer(msg("again")))
				}
				if n == 2 {
					w.ok(a.Inject(msg("quietly")))
				}
			}})
		})
		w.ask(a, "m1")
		w.same("turns, steps, users", []string{
			"turn 1", "step 1.1", "user m1", "step-end 1.1", "step 1.2", "user again", "step-end 1.2",
			"step 1.3", "user quietly", "step-end 1.3", "end 1 completed",
		}, lines(a, "turn", "step", "user", "end"))
		if n != 3 {
			t.Errorf("the hooks were asked %d times", n)
		}
	})
}

// A tentative ending whose next pre-step yields nothing stands (core L20).
func TestTentativeEndingStands(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{
				TurnStopping: func(_ context.Context, a *agent.Agent, _ session.EndKind) { w.ok(a.Inject(msg("dropped"))) },
				PreStep: func(_ context.Context, p *agent.PreStep) error {
					if p.Step == 2 {
						p.Messages = nil
					}
					return nil
				},
			})
		})
		w.model.script(ends("cut", llm.FinishMaxTokens))
		w.ask(a, "m1")
		w.same("tail", []string{"step-end 1.1", "inbox step +dropped nowake", "inbox step -1@0", "end 1 max-tokens"}, trace(a.Session())[8:])
	})
}

// max-tokens sticks, also through a step that uses tools (core L22); a plain
// ending does not: the model sees the results of a later step's tools.
func TestStickyMaxTokens(t *testing.T) {
	for kind, want := range map[llm.FinishKind][]string{
		llm.FinishMaxTokens: {"turn 1", "step 1.1", "step 1.2", "end 1 max-tokens"},
		llm.FinishStop:      {"turn 1", "step 1.1", "step 1.2", "step 1.3", "end 1 completed"},
		llm.FinishRefusal:   {"turn 1", "step 1.1", "step 1.2", "step 1.3", "end 1 completed"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, func(w *world) {
				w.register("read", false, func(context.Context, *tool.Call) (any, error) { return "data", nil })
				steered := false
				a := w.create(func(a *agent.Agent) {
					a.AddHooks(agent.Hooks{TurnStopping: func(_ context.Context, a *agent.Agent, end session.EndKind) {
						if !steered {
							if told := map[llm.FinishKind]session.EndKind{llm.FinishMaxTokens: session.EndMaxTokens, llm.FinishStop: session.EndCompleted, llm.FinishRefusal: session.EndRefusal}; end != told[kind] {
								t.Errorf("L20: the hook is told %q", end)
							}
							steered = true
							w.ok(a.Steer(msg("more")))
						}
					}})
				})
				w.model.script(ends("one", kind), uses("read"))
				w.ask(a, "m1")
				w.same("course", want, lines(a, "turn", "step ", "end"))
			})
		})
	}
}

// The endings that a model causes. A cut or refused answer runs no tools.
func TestModelEndings(t *testing.T) {
	cut := func(kind llm.FinishKind) func(*call) {
		return func(c *call) { c.text("so far"); c.use("c1", "read", "{}"); c.finish(kind) }
	}
	for name, c := range map[string]struct {
		play func(*call)
		want []string
	}{
		"stop":              {say("x"), []string{`assistant "x"`, "end 1 completed"}},
		"max-tokens":        {cut(llm.FinishMaxTokens), []string{`assistant "so far"`, "end 1 max-tokens"}},
		"refusal":           {cut(llm.FinishRefusal), []string{`assistant "so far"`, "end 1 refusal"}},
		"tool calls w/o":    {ends("x", llm.FinishToolCalls), []string{`assistant "x"`, "end 1 completed"}},
		"failure":           {fails(llm.CodeAuth), []string{"end 1 error AUTH"}},
		"stray abort (L30)": {func(c *call) { c.put(llm.Chunk{Kind: llm.ChunkFinish, Finish: llm.Aborted(c.ctx)}) }, []string{"end 1 error ABORTED"}},
		"adapter panics":    {func(*call) { panic("ouch") }, []string{"end 1 error UNKNOWN"}},
		"adapter errs":      {func(c *call) { c.yield(llm.Chunk{}, errBoom) }, []string{"end 1 error UNKNOWN"}},
		"no finish":         {func(c *call) { c.text("x") }, []string{"end 1 error STREAM_GRAMMAR"}},
		"odd failure": {func(c *call) {
			c.fail(message.Failure{Code: "ODD\xff", Message: "a\xffb", Status: -1, RetryAfterMS: -5, RequestID: "\xfe"})
		}, []string{"end 1 error ODD\uFFFD"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.register("read", false, func(context.Context, *tool.Call) (any, error) { return "data", nil })
				w.model.script(c.play)
				a := w.create()
				w.ask(a, "m1")
				w.same("course", c.want, lines(a, "assistant", "end", "call", "result"))
				failed := strings.Contains(c.want[len(c.want)-1], " error ")
				if n := len(w.rec.failures(a)); (n == 1) != failed {
					t.Errorf("%d failures were told (L23)", n)
				}
				// The agent survives, and the next request is legal.
				w.ask(a, "m2")
			})
		})
	}
}

// Text that was streamed by an attempt that left no message (seam OUT-05).
func TestStreamedText(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		w.model.script(func(c *call) {
			c.delta(message.BlockText, llm.ChunkTextDelta, "half an ans")
			c.fail(message.Failure{Code: llm.CodeAuth, Message: "no"})
		})
		w.ask(a, "m1")
		w.same("streamed", "half an ans", a.StreamedText())
		w.ask(a, "m2")
		w.same("streamed after a message", "", a.StreamedText())
	})
}

// What a model says may not spoil the log: ids that are missing or stand twice,
// names that are missing, bytes that are no text.
func TestModelOutputIsMadeFit(t *testing.T) {
	bubble(t, func(w *world) {
		var ran []string
		w.register("read", false, func(_ context.Context, c *tool.Call) (any, error) { ran = append(ran, c.ID); return "data", nil })
		w.model.script(func(c *call) {
			c.text("a\xffb")
			c.use("x", "read", "{}")
			c.use("x", "read", " ")
			c.use("", "read", "")
			c.use("y", "", "{}")
			c.use("z", "read", "{\"\xff")
			c.finish(llm.FinishToolCalls)
		})
		a := w.create()
		w.ask(a, "m1")
		w.same("results", []string{"result x", "result x-2", "result call", "result y UNKNOWN_TOOL", "result z INVALID_ARGS"}, lines(a, "result"))
		w.same("ran", []string{"x", "x-2", "call"}, ran)
	})
}

// A failing or rejected turn strands nothing (amendment P08); each of the
// messages gets a turn of its own, in order.
func TestFollowOnTurns(t *testing.T) {
	bubble(t, func(w *world) {
		l := newLatch()
		w.model.script(func(c *call) { w.ok(l.wait(c.ctx)); c.fail(message.Failure{Code: llm.CodeAuth, Message: "no"}) }, fails(llm.CodeAuth), say("fine"))
		a := w.create()
		w.ok(a.Followup(msg("m1")))
		<-l.reached
		w.ok(a.Followup(msg("m2")))
		w.ok(a.Followup(msg("m3")))
		close(l.open)
		w.idle(a)
		w.same("course", []string{
			"turn 1", "user m1", "end 1 error AUTH", "turn 2", "user m2", "end 2 error AUTH", "turn 3", "user m3", "end 3 completed",
		}, lines(a, "turn", "user", "end"))
		w.same("statuses: one run, no flicker", []agent.Status{agent.Running, agent.Idle}, w.rec.statuses(a))
	})
}

// The system prompt fails a turn, not the agent (core P4), and is assembled once a
// step for all its attempts (core P5).
func TestPromptFailure(t *testing.T) {
	bubble(t, func(w *world) {
		a := w.create()
		remove, err := a.Prompts().Add(prompt.Section{Name: "s", Text: "{{nope}}"})
		w.ok(err)
		w.ask(a, "m1")
		remove()
		renders := 0
		_, err = a.Prompts().Add(prompt.Section{Name: "s", Render: func(rc prompt.RenderContext) (string, error) {
			renders++
			m, _ := rc.Vars("model")
			return "You are " + m, nil
		}})
		w.ok(err)
		w.model.script(fails(llm.CodeServer), say("x"))
		w.ask(a, "m2")
		w.same("ends", []string{"end 1 error UNKNOWN", "end 2 completed"}, lines(a, "end"))
		w.same("system", "You are m1", w.model.requests[0].req.System)
		if renders != 1 {
			t.Errorf("the prompt was rendered %d times", renders)
		}
	})
}

// Runtime context is sent when it changed, and not again (core P6).
func TestRuntimeContext(t *testing.T) {
	bubble(t, func(w *world) {
		text := "sunny"
		a := w.create(func(a *agent.Agent) {
			_, err := a.Prompts().AddContext(prompt.Context{Name: "weather", Render: func(prompt.RenderContext) (string, error) { return text, nil }})
			w.ok(err)
		})
		w.register("look", false, func(context.Context, *tool.Call) (any, error) { text = "rain"; return "ok", nil })
		w.ask(a, "m1")
		w.ask(a, "m2")
		w.model.script(uses("look"), say("x"))
		w.ask(a, "m3")
		w.ask(a, "m4")
		w.same("users", []string{"user m1", "context", "user m2", "user m3", "context", "user m4"}, lines(a, "user", "context"))
	})
}

// A turn that cannot open leaves no trace, and is not tried again (core L16).
func TestTurnCannotOpen(t *testing.T) {
	for name, hook := range map[string]func(*agent.Agent, int64) ([]session.Draft, error){
		"error":      func(*agent.Agent, int64) ([]session.Draft, error) { return nil, errBoom },
		"panic":      func(*agent.Agent, int64) ([]session.Draft, error) { panic("ouch") },
		"no payload": func(*agent.Agent, int64) ([]session.Draft, error) { return make([]session.Draft, 1), nil },
		"illegal": func(*agent.Agent, int64) ([]session.Draft, error) {
			return []session.Draft{{Payload: &session.StepEnd{Turn: 1, Step: 1}}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				var remove func()
				a := w.create(func(a *agent.Agent) { remove = a.AddHooks(agent.Hooks{TurnOpen: hook}) })
				w.ask(a, "m1")
				w.logged(a, 0, "inbox turn +m1")
				if n := len(w.rec.failures(a)); n != 1 {
					t.Errorf("%d failures were told", n)
				}
				remove()
				w.same("something waits", true, a.Wake())
				w.idle(a)
				w.same("ends", []string{"end 1 completed"}, lines(a, "end"))
			})
		})
	}
}

// P4, P10: agents that were declared differently have different variables, also one after the other.
func TestVariablesOfEachAgent_P10(t *testing.T) {
	bubble(t, func(w *world) {
		if _, err := w.prompts.Root().Add(prompt.Identity("{{provider}} {{model}} {{cwd}}")); err != nil {
			w.Fatal(err)
		}
		for _, o := range []agent.Options{
			{Provider: "test", Model: "m1", Cwd: "/a"}, {Provider: "test", Model: "m1", Cwd: "/b"},
			{Provider: "test", Model: "m2", Cwd: "/b"}, {Provider: "other", Model: "m2", Cwd: "/b"}, {Provider: "test", Model: "m1", Cwd: "/a"},
		} {
			h, err := w.reg.Create(w.ctx, agent.Create{Options: o})
			w.ok(err)
			w.ask(h.Agent(), "m-"+string(h.Agent().ID()))
			w.same("system", o.Provider+" "+o.Model+" "+o.Cwd, w.model.requests[len(w.model.requests)-1].req.System)
		}
	})
}

// Observing hooks and observers cannot hurt the loop (core G10, H5).
func TestPanickingObservers(t *testing.T) {
	bubble(t, func(w *world) {
		w.register("read", true, func(context.Context, *tool.Call) (any, error) { return "data", nil })
		stop := w.reg.Observe(4, func(agent.Event) { panic("observer") })
		defer stop()
		a := w.create(func(a *agent.Agent) {
			a.AddHooks(agent.Hooks{
				Disposed:     func(*agent.Agent) { panic("disposed") },
				Status:       func(*agent.Agent, agent.Status) { panic("status") },
				Inbox:        func(*agent.Agent, agent.InboxEvent) { panic("inbox") },
				TurnStopping: func(context.Context, *agent.Agent, session.EndKind) { panic("stopping") },
				Chunk:        func(*agent.Agent, llm.Chunk) { panic("chunk") },
				ToolStarted:  func(*agent.Agent, *tool.Call) { panic("started") },
				ToolEnded:    func(*agent.Agent, *tool.Call, tool.Result) { panic("ended") },
				Failed:       func(*agent.Agent, error) { panic("failed") },
				RequestError: func(context.Context, *agent.Agent, message.Failure, int) bool { panic("request error") },
			})
		})
		w.model.script(uses("read"), say("x"), fails(llm.CodeAuth))
		w.ask(a, "m1")
		w.ask(a, "m2")
		w.same("ends", []string{"end 1 completed", "end 2 error AUTH"}, lines(a, "end"))
	})
}

// A panic in the driver itself is the end of a turn, not of the process, and no
// lock stays behind (core G10).
func TestDriverPanic(t *testing.T) {
	for _, at := range []session.Type{session.TypeTurnStart, session.TypeUserMessage, session.TypeRequestHeader, session.TypeAssistantMessage, session.TypeToolResult, session.TypeStepEnd} {
		t.Run(string(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := false
				w := validated(t, func(e session.Event) error {
					if e.Type == at && !done {
						done = true
						panic("ouch")
					}
					return nil
				})
				w.register("read", true, func(context.Context, *tool.Call) (any, error) { return "data", nil })
				w.model.script(uses("read"))
				a := w.create()
				w.ask(a, "m1")
				if n := len(w.rec.failures(a)); n != 1 {
					t.Errorf("%d failures were told", n)
				}
				w.ask(a, "m2")
				w.same("the last turn", "end", lines(a, "end")[len(lines(a, "end"))-1][:3])
				w.finish()
			})
		})
	}
}
