package spawn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// OUT-01…06, OUT-08, DRV-11, DRV-12, DRV-20, RUN-06, RUN-15: reason and output by
// what the child's model does.
func TestOutcome(t *testing.T) {
	call := scripted.Call("a", "{}")
	refused := scripted.Fail(llm.CodeInvalidRequest, "the endpoint refused it")
	for _, c := range []struct {
		name   string
		steps  []scripted.Step
		reason subagent.StopReason
		output []message.Block
		diag   string
	}{
		{"OUT-01 the last message", []scripted.Step{{scripted.SayLiteral("first"), call}, say("last")}, "completed", []message.Block{message.Text("last")}, ""},
		{"OUT-02 an empty one is skipped", []scripted.Step{{scripted.SayLiteral("first"), call}, {scripted.Empty()}}, "completed",
			[]message.Block{message.Text("first"), message.ToolCall("call-0-0", "a", "{}")}, ""},
		{"OUT-03 blocks count, not text", []scripted.Step{{scripted.Reason("hm")}}, "completed", []message.Block{message.Reasoning("hm")}, ""},
		{"OUT-04 a message wins over streamed text", []scripted.Step{{scripted.SayLiteral("first"), call}, {scripted.SayLiteral("second"), refused}}, "error",
			[]message.Block{message.Text("first"), message.ToolCall("call-0-0", "a", "{}")}, "INVALID_REQUEST: the endpoint refused it"},
		{"OUT-05 streamed text alone", []scripted.Step{{scripted.Reason("hm"), scripted.SayLiteral("half an ans"), refused}}, "error", []message.Block{message.Text("half an ans")}, "INVALID_REQUEST: the endpoint refused it"},
		{"OUT-05 reasoning is no text", []scripted.Step{{scripted.Reason("hm"), refused}}, "error", []message.Block{}, "INVALID_REQUEST: the endpoint refused it"},
		{"OUT-06 neither", []scripted.Step{{refused}}, "error", []message.Block{}, "INVALID_REQUEST: the endpoint refused it"},
		{"OUT-06 nothing said", []scripted.Step{{scripted.Empty()}}, "completed", []message.Block{}, ""},
		{"OUT-08 truncated", []scripted.Step{{scripted.SayLiteral("half"), scripted.MaxTokens()}}, "max-tokens", []message.Block{message.Text("half")}, ""},
		{"DRV-20 declined", []scripted.Step{{scripted.Refuse("I will not.")}}, "refusal", []message.Block{message.Text("I will not.")}, ""},
		{"DRV-20 declined without a word", []scripted.Step{{scripted.Refuse("")}}, "refusal", []message.Block{}, ""},
		{"a broken stream", []scripted.Step{{scripted.SayLiteral("half"), scripted.Raw(llm.Chunk{Kind: llm.ChunkTextDelta, Index: 7, Text: "x"})}}, "error", []message.Block{message.Text("half")}, "STREAM_GRAMMAR"},
		{"a panicking adapter", []scripted.Step{{scripted.Panic("boom")}}, "error", []message.Block{}, "boom"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{Tools: tools("a")}, func(t *testing.T, s *subagenttest.System) {
				s.Answer("hello", c.steps...)
				run := start(t, s, subagenttest.Request(s.Parent(t), "hello"))
				res := subagenttest.Await(t, run)
				if diff := cmp.Diff(c.output, res.Output); diff != "" || res.Output == nil {
					t.Errorf("output:\n%s", diff)
				}
				if res.StopReason != c.reason || !strings.Contains(res.Diagnostic, c.diag) || c.diag == "" && res.Diagnostic != "" {
					t.Errorf("reason %q, diagnostic %q, want %q and %q", res.StopReason, res.Diagnostic, c.reason, c.diag)
				}
				if res.Structured != nil {
					t.Error("RUN-12: a structured value without a schema")
				}
			})
		})
	}
}

// DRV-12: a turn that took the prompt and entered nothing accounts for no work.
func TestDRV12NothingEntered(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error { p.Messages = nil; return nil }})
		res := subagenttest.Await(t, start(t, s, subagenttest.Request(s.Parent(t), "hello")))
		if res.StopReason != subagent.StopError || res.Diagnostic == "" {
			t.Errorf("result = %+v, want an error that says so", res)
		}
	})
}

// OUT-08, L28, DRV-13, DRV-14, CAN-03: cancelled in mid-stream, the partial answer
// is kept, and the cause is the parent's, on the request and in the log.
func TestDRV14Cause(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		var cause error
		s.Answer("hello", scripted.Step{scripted.SayLiteral("half an ans"), scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return scripted.Step{scripted.Hang()}, nil
		})})
		ctx, cancel := context.WithCancel(t.Context())
		run := s.Start(t, ctx, "spawn", subagenttest.Request(s.Parent(t), "hello"))
		log := child(t, run).Session()
		synctest.Wait()
		cancel()
		res := subagenttest.Await(t, run)
		if res.StopReason != subagent.StopAborted || message.JoinText(res.Output) != "half an ans" || res.Diagnostic != "" {
			t.Errorf("result = %+v", res)
		}
		if c, ok := cause.(session.Cause); !ok || c.Kind != session.CauseParent { //nolint:errorlint // the very cause
			t.Errorf("the request ended with %v, want the parent's cause", cause)
		}
		for e := range log.Events(0) {
			if end, ok := e.Payload().(*session.TurnEnd); ok && (end.Kind != session.EndAborted || end.Cause.Kind != session.CauseParent) {
				t.Errorf("turn/end = %+v", end)
			}
		}
	})
}

// DRV-08: what steers the child meanwhile belongs to the run.
func TestDRV08Steered(t *testing.T) {
	in(t, subagenttest.Options{Tools: tools("a")}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		s.Answer("hello", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("first")})
		s.Answer("and this", say("steered"))
		run := start(t, s, subagenttest.Request(s.Parent(t), "hello"))
		synctest.Wait()
		if err := child(t, run).Steer(agent.UserText("and this")); err != nil {
			t.Fatal(err)
		}
		close(hold)
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopCompleted || message.JoinText(res.Output) != "steered" {
			t.Errorf("result = %+v", res)
		}
		prompts := 0
		for e := range child(t, run).Session().Events(0) {
			if p, ok := e.Payload().(*session.InboxSpliced); ok {
				for _, m := range p.Inserted {
					if message.JoinText(m.Content) == "hello" {
						prompts++
						if m.Source.Kind != message.SourceUser || p.Target != session.NextTurn {
							t.Errorf("REQ-11: the prompt came as %+v to %s", m.Source, p.Target)
						}
					}
				}
			}
		}
		if prompts != 1 {
			t.Errorf("the prompt was submitted %d times", prompts)
		}
	})
}

// REQ-11: the blocks of the prompt reach the model as they are.
func TestREQ11Blocks(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		blocks := []message.Block{message.Text("one "), message.Text("two"), {Type: message.BlockImage, Raw: []byte(`{"uri":"x"}`)}}
		s.Answer("one two", say("hi"))
		req := subagenttest.Request(s.Parent(t), "")
		req.Prompt = blocks
		run := start(t, s, req)
		subagenttest.Await(t, run)
		for _, m := range requestOf(t, s, run.ID()).Messages {
			if m.Source.Kind == message.SourceUser {
				if diff := cmp.Diff(blocks, m.Content); diff != "" {
					t.Errorf("the child's user message:\n%s", diff)
				}
			}
		}
	})
}

// RUN-13, RUN-14: the bound of a diagnostic, as the holder of a run sees it.
func TestRUN13Diagnostic(t *testing.T) {
	for _, c := range []struct {
		name  string
		text  string // the failure's, behind "AUTH: "
		whole bool
	}{
		{"RUN-14 at the bound", strings.Repeat("x", 4096-6), true},
		{"one byte more", strings.Repeat("x", 4096-5), false},
		{"RUN-13 on a rune boundary", strings.Repeat("日本語", 1000), false},
		{"four-byte runes", "a" + strings.Repeat("🌱", 2000), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				s.Answer("hello", scripted.Step{scripted.Fail(llm.CodeAuth, c.text)})
				got := subagenttest.Await(t, start(t, s, subagenttest.Request(s.Parent(t), "hello"))).Diagnostic
				full := "AUTH: " + c.text
				switch {
				case len(got) > 4096 || !utf8.ValidString(got):
					t.Errorf("%d bytes, valid UTF-8 %v", len(got), utf8.ValidString(got))
				case c.whole && got != full:
					t.Error("changed, though it fits")
				case !c.whole && (len(got) < 4090 || !strings.HasSuffix(got, "[…cut]") || !strings.HasPrefix(full, strings.TrimSuffix(got, " […cut]"))):
					t.Errorf("cut to %d bytes: …%q", len(got), got[len(got)-20:])
				}
			})
		})
	}
}

// RUN-16, DSP-02, DSP-05: cancel and Close at any time, from any number of places.
// Completed stays completed; everything is released once.
func TestCancelRaces(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		s.Answer("hello", say("hi"))
		counts := map[subagent.StopReason]int{}
		for range 300 {
			ctx, cancel := context.WithCancel(t.Context())
			run := s.Start(t, ctx, "spawn", subagenttest.Request(parent, "hello"))
			log := child(t, run).Session()
			var g sync.WaitGroup
			results := make([]subagent.Result, 3)
			g.Go(cancel)
			for i := range results {
				g.Go(func() {
					res, err := run.Wait(t.Context())
					if err != nil {
						t.Error(err)
					}
					results[i] = res
				})
			}
			for range 2 {
				g.Go(func() {
					if err := run.Close(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			g.Wait()
			if !cmp.Equal(results[0], results[1]) || !cmp.Equal(results[0], results[2]) {
				t.Errorf("results differ: %+v", results)
			}
			completed := false
			for e := range log.Events(0) {
				if end, ok := e.Payload().(*session.TurnEnd); ok {
					completed = end.Kind == session.EndCompleted
				}
			}
			if completed != (results[0].StopReason == subagent.StopCompleted) {
				t.Errorf("the log says completed %v, the run ended as %q", completed, results[0].StopReason)
			}
			counts[results[0].StopReason]++
		}
		if counts[subagent.StopError] != 0 {
			t.Errorf("endings: %v, want no error", counts)
		}
	})
}

// RUN-16: a cancel between the last answer and the end of the turn comes too late.
func TestRUN16CancelledAtTheEnd(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		ctx, cancel := context.WithCancel(t.Context())
		s.Agents.AddHooks(agent.Hooks{TurnStopping: func(ctx context.Context, a *agent.Agent, _ session.EndKind) {
			cancel()
			<-ctx.Done() // the cancel has reached the child
		}})
		s.Answer("hello", say("hi"))
		res := subagenttest.Await(t, s.Start(t, ctx, "spawn", subagenttest.Request(s.Parent(t), "hello")))
		if res.StopReason != subagent.StopCompleted || message.JoinText(res.Output) != "hi" {
			t.Errorf("result = %+v, want completed", res)
		}
	})
}

// DRV-15: a parent that is gone, or going, gets no child.
func TestDRV15ParentGone(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		gone, going := s.Parent(t), s.Parent(t)
		if err := gone.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		s.Sessions.AddHooks(session.Hooks{Created: func(*session.Session) error { t.Error("a session was announced"); return nil }})
		refuse := func(parent *agent.Agent) {
			if _, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, "hello")); !errors.Is(err, agent.ErrDisposed) {
				t.Errorf("Start = %v, want that the parent is disposed", err)
			}
		}
		refuse(gone)
		going.CloseAdmission(false)
		refuse(going)
		if err := going.Dispose(t.Context(), false); err != nil {
			t.Error(err)
		}
	})
}

// DRV-16: the parent is disposed while the child is being made, at each point where
// somebody can do that.
func TestDRV16ParentDisposedMeanwhile(t *testing.T) {
	for _, point := range []string{"setup", "session created", "agent created"} {
		t.Run(point, func(t *testing.T) {
			var parent *agent.Agent
			dispose := func(at string) {
				if at == point && parent != nil {
					parent.CloseAdmission(false)
				}
			}
			o := subagenttest.Options{Approver: silent{t}, Validators: []session.Validator{func(h *session.Header, e session.Event) error {
				if e.Type == session.TypeApprovalPolicy {
					// Not from here, under the log's lock: beside the rest of the setup.
					go dispose("setup")
				}
				return nil
			}}}
			in(t, o, func(t *testing.T, s *subagenttest.System) {
				parent = s.Parent(t)
				s.Sessions.AddHooks(session.Hooks{Created: func(*session.Session) error { dispose("session created"); return nil }})
				agents := 0
				s.Agents.AddHooks(agent.Hooks{
					Created:  func(*agent.Agent) error { agents++; dispose("agent created"); return nil },
					Disposed: func(a *agent.Agent) { agents-- },
				})
				agents++ // the parent's disposal is told too
				s.Answer("hello", say("hi"))
				run, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, "hello"))
				switch {
				case err == nil && point == "setup":
					// The disposal came last: then it ended the child.
					if _, err := run.Wait(t.Context()); err != nil && !errors.Is(err, agent.ErrDisposed) {
						t.Error(err)
					}
					if err := run.Close(t.Context()); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, agent.ErrDisposed):
					t.Errorf("Start = %v, want that the parent is disposed", err)
				}
				if err := parent.Dispose(t.Context(), false); err != nil {
					t.Error(err)
				}
				if agents != 0 || len(s.Agents.List()) != 0 || len(s.Sessions.List()) != 0 || err != nil && len(s.Lifecycle.Edges()) != 0 {
					t.Errorf("left: %d unpaired announcements, %v, %v, %v", agents, s.Agents.List(), s.Sessions.List(), s.Lifecycle.Edges())
				}
			})
		})
	}
}

// A parent's disposal ends its children first, and their runs settle as aborted:
// in mid-turn, and before the turn opened.
func TestParentDisposedWhileRunning(t *testing.T) {
	for _, keep := range []bool{false, true} {
		in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
			s.Answer("hello", scripted.Step{scripted.SayLiteral("so far"), scripted.Hang()})
			for i := range 20 {
				parent := s.Parent(t)
				run := start(t, s, subagenttest.Request(parent, "hello"))
				if i%2 == 0 {
					synctest.Wait()
				}
				if err := parent.Dispose(t.Context(), keep); err != nil {
					t.Error(err)
				}
				if _, ok := s.Agents.Get(run.ID()); ok {
					t.Error("the child outlives its parent")
				}
				res := subagenttest.Await(t, run)
				if res.StopReason != subagent.StopAborted || i%2 == 0 && message.JoinText(res.Output) != "so far" {
					t.Errorf("keep %v: result = %+v", keep, res)
				}
			}
		})
	}
}

// The registry's own end releases every run without hanging, and settles it.
func TestRegistryClosed(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("hello", scripted.Step{scripted.Hang()})
		parent := s.Parent(t)
		var runs []subagent.Run
		for range 5 {
			runs = append(runs, start(t, s, subagenttest.Request(parent, "hello")))
		}
		if err := s.Agents.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, run := range runs {
			if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
				t.Errorf("result = %+v", res)
			}
		}
		if _, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, "hello")); err == nil {
			t.Error("Start succeeded in a closed registry")
		}
	})
}

// MaxLive counts children too (design § 4, Bounded).
func TestMaxLive(t *testing.T) {
	in(t, subagenttest.Options{MaxLive: 2}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("hello", say("hi"))
		parent := s.Parent(t)
		run := start(t, s, subagenttest.Request(parent, "hello"))
		var limit *agent.LimitError
		if _, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, "hello")); !errors.As(err, &limit) || limit.Limit != 2 {
			t.Errorf("Start = %v, want a LimitError", err)
		}
		subagenttest.Await(t, run)
		subagenttest.Await(t, start(t, s, subagenttest.Request(parent, "hello")))
	})
}

// RUN-08: a run outlives the registration of its provider and the turn of its
// parent; only its holder, or the parent's disposal, ends it.
func TestRUN08Holder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subagenttest.NewSystem(t, subagenttest.Options{})
		remove := s.Register(t, spawn.New(""))
		parent := s.Parent(t)
		hold := make(chan struct{})
		s.Answer("hello", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("hi")})
		s.Answer("turn", say("done"))
		run := start(t, s, subagenttest.Request(parent, "hello"))
		remove()
		if err := parent.Followup(agent.UserText("turn")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := parent.Cancel(session.Cause{Kind: session.CauseUser}, false); err != nil {
			t.Fatal(err)
		}
		if a, ok := s.Agents.Get(run.ID()); !ok || a.Status() != agent.Running {
			t.Error("the child is gone")
		}
		close(hold)
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopCompleted {
			t.Errorf("result = %+v", res)
		}
	})
}

// Many children at once: all settle, and each is itself.
func TestManyAtOnce(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		var g sync.WaitGroup
		for i := range 200 {
			prompt, answer := fmt.Sprint("prompt ", i), fmt.Sprint("answer ", i)
			s.Answer(prompt, say(answer))
			g.Go(func() {
				run, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, prompt))
				if err != nil {
					t.Error(err)
					return
				}
				if res := subagenttest.Await(t, run); message.JoinText(res.Output) != answer {
					t.Errorf("result = %+v, want %q", res, answer)
				}
			})
		}
		g.Wait()
	})
}
