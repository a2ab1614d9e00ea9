package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

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

// EVT-01…04, EVT-06, EVT-08, EVT-10, EVT-31, EVT-32, P39: one pair, in order, with
// one identity, for a run that has settled before its start is told.
func TestPair(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		remove := s.Register(t, spawn.New("helper"))
		parent := s.Parent(t)
		s.Answer("hello", scripted.Step{scripted.SayLiteral("hi")})
		var told []string
		var child *agent.Agent
		inStart := false
		s.Service.AddHooks(subagent.Hooks{
			Started: func(e subagent.StartEdge) {
				if !inStart {
					t.Error("EVT-32: told after Start returned")
				}
				var ok bool
				if child, ok = s.Agents.Get(e.ID); !ok || child.Owner() != parent {
					t.Error("EVT-02: the registry does not resolve the child")
				}
				synctest.Wait() // the child runs meanwhile, and completes
				told = append(told, "start "+e.Provider+" "+e.Label)
			},
			Ended: func(e subagent.EndEdge) {
				told = append(told, "end "+string(e.StopReason)+" "+message.JoinText(e.Output))
			},
		}, nil)
		req := subagenttest.Request(parent, "hello")
		req.Label = ptr("greet")
		inStart = true
		run := s.Start(t, t.Context(), "helper", req)
		inStart = false
		remove() // provenance outlives the registration (EVT-06)
		*req.Label = "changed"
		synctest.Wait()
		if diff := cmp.Diff([]string{"start helper greet", "end completed hi"}, told); diff != "" {
			t.Errorf("told:\n%s", diff)
		}
		subagenttest.Await(t, run)
		if local, _ := run.Local(); local != child {
			t.Error("the edge's child is not the run's")
		}
		edges := s.Lifecycle.Edges()
		if len(edges) != 2 || edges[1].End == nil || edges[0].Start != edges[1].Start {
			t.Fatalf("edges = %+v", edges)
		}
		if e := edges[0].Start; !e.Local || e.ID != run.ID() || e.Parent != parent {
			t.Errorf("start = %+v", e)
		}
	})
}

// EVT-03: a run id is fresh though provider and child id repeat.
func TestEVT03FreshRunID(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		p := &recorder{Scripted: &subagenttest.Scripted{}}
		s.Register(t, p)
		parent := s.Parent(t)
		run := s.Start(t, t.Context(), "scripted", subagenttest.Request(parent, "x"))
		subagenttest.Await(t, run)
		synctest.Wait()
		s.Register(t, again{&subagenttest.Scripted{ProviderName: "again"}, run})
		subagenttest.Await(t, s.Start(t, t.Context(), "again", subagenttest.Request(parent, "x")))
		synctest.Wait()
		edges := s.Lifecycle.Edges()
		if len(edges) != 4 || edges[0].Start.ID != edges[2].Start.ID || edges[0].Start.RunID == edges[2].Start.RunID {
			t.Errorf("edges = %+v", edges)
		}
	})
}

// again hands out the same run each time.
type again struct {
	*subagenttest.Scripted
	run subagent.Run
}

func (a again) Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
	return a.run, nil
}

// EVT-09…12, P34: how each kind of ending looks on the edge.
func TestEndEdge(t *testing.T) {
	lost := errors.New("the connection is gone")
	for _, c := range []struct {
		name string
		play subagenttest.Play
		want subagent.EndEdge
	}{
		{"EVT-10 completed", subagenttest.Play{Result: subagent.Result{Output: text("answer")}}, subagent.EndEdge{StopReason: subagent.StopCompleted, Output: text("answer")}},
		{"EVT-11 no output", subagenttest.Play{}, subagent.EndEdge{StopReason: subagent.StopCompleted}},
		{"EVT-12 a diagnostic is no output", subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopError, Diagnostic: "why"}}, subagent.EndEdge{StopReason: subagent.StopError}},
		{"OUT-08 partial", subagenttest.Play{Result: subagent.Result{StopReason: subagent.StopMaxTokens, Output: text("ans")}}, subagent.EndEdge{StopReason: subagent.StopMaxTokens, Output: text("ans")}},
		{"RUN-07 an unknown reason", subagenttest.Play{Result: subagent.Result{StopReason: "overrun"}}, subagent.EndEdge{StopReason: "overrun"}},
		{"EVT-09 lost", subagenttest.Play{Err: lost}, subagent.EndEdge{StopReason: subagent.StopError, Failure: &subagent.Failure{Code: "UNKNOWN", Text: lost.Error()}}},
		{"P34 a seam failure", subagenttest.Play{Err: &subagent.Error{Code: subagent.CodeOwnedElsewhere, Msg: "held"}}, subagent.EndEdge{StopReason: subagent.StopError, Failure: &subagent.Failure{Code: "OWNED_ELSEWHERE", Text: "held"}}},
		{"P34 a model failure", subagenttest.Play{Err: &llm.Error{Failure: message.Failure{Code: "QUOTA", Message: "spent"}}}, subagent.EndEdge{StopReason: subagent.StopError, Failure: &subagent.Failure{Code: "QUOTA", Text: "spent"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
				s.Register(t, &subagenttest.Scripted{Play: func(*subagent.ResolvedRequest) subagenttest.Play { return c.play }})
				run := s.Start(t, t.Context(), "scripted", subagenttest.Request(s.Parent(t), "x"))
				if err := run.Close(t.Context()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				edges := s.Lifecycle.Edges()
				if len(edges) != 2 || edges[1].End == nil {
					t.Fatalf("edges = %+v", edges)
				}
				got := *edges[1].End
				if got.Local || got.StartEdge != edges[0].Start {
					t.Errorf("identity = %+v, want %+v, not local", got.StartEdge, edges[0].Start)
				}
				got.StartEdge = subagent.StartEdge{}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("end edge:\n%s", diff)
				}
			})
		})
	}
}

// A run whose Wait panics is a failure on the edge, and no crash.
func TestPanickingRun(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, broken{&subagenttest.Scripted{}})
		s.Start(t, t.Context(), "scripted", subagenttest.Request(s.Parent(t), "x"))
		synctest.Wait()
		edges := s.Lifecycle.Edges()
		if len(edges) != 2 || edges[1].End == nil || edges[1].End.Failure == nil || !strings.Contains(edges[1].End.Failure.Text, "no wait") {
			t.Errorf("edges = %+v", edges)
		}
	})
}

type broken struct{ *subagenttest.Scripted }

func (b broken) Start(context.Context, *subagent.ResolvedRequest) (subagent.Run, error) {
	return brokenRun{}, nil
}

type brokenRun struct{ subagent.Run }

func (brokenRun) ID() session.ID                                      { return "broken" }
func (brokenRun) Local() (*agent.Agent, bool)                         { return nil, false }
func (brokenRun) Wait(context.Context) (res subagent.Result, _ error) { panic("no wait") }

// EVT-13: hooks of a parent see that parent's delegations only, both edges.
func TestEVT13ParentHooks(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, &subagenttest.Scripted{})
		one, two := s.Parent(t), s.Parent(t)
		var told []string
		watch := func(name string, p *agent.Agent) (remove func()) {
			return s.Service.AddHooks(subagent.Hooks{
				Started: func(subagent.StartEdge) { told = append(told, name+" start") },
				Ended: func(e subagent.EndEdge) {
					if e.Parent != p && p != nil {
						t.Errorf("%s sees a delegation of another parent", name)
					}
					told = append(told, name+" end")
				},
			}, p)
		}
		watch("all", nil)
		removeOne := watch("one", one)
		watch("two", two)
		run := func(p *agent.Agent) {
			subagenttest.Await(t, s.Start(t, t.Context(), "scripted", subagenttest.Request(p, "x")))
			synctest.Wait()
		}
		run(one)
		run(two)
		removeOne()
		run(one)
		want := []string{"all start", "one start", "all end", "one end", "all start", "two start", "all end", "two end", "all start", "all end"}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("told:\n%s", diff)
		}
	})
}

// Hooks see pairs: one that comes late is not told an end without a start, and one
// that was removed is told nothing more.
func TestEVT29WholePairs(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		s.Register(t, &subagenttest.Scripted{Play: func(*subagent.ResolvedRequest) subagenttest.Play { return subagenttest.Play{Hold: hold} }})
		removed := s.Service.AddHooks(subagent.Hooks{Ended: func(subagent.EndEdge) { t.Error("a removed hook was told") }}, nil)
		run := s.Start(t, t.Context(), "scripted", subagenttest.Request(s.Parent(t), "x"))
		s.Service.AddHooks(subagent.Hooks{Ended: func(subagent.EndEdge) { t.Error("a late hook was told an end without a start") }}, nil)
		removed()
		close(hold)
		subagenttest.Await(t, run)
	})
}

// EVT-14, EVT-30: hooks change nothing, whatever they do.
func TestEVT14Contained(t *testing.T) {
	var log bytes.Buffer
	in(t, subagenttest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		s.Answer("hello", scripted.Step{scripted.SayLiteral("hi")})
		after := 0
		s.Service.AddHooks(subagent.Hooks{
			Started: func(subagent.StartEdge) { panic("start") },
			Ended: func(e subagent.EndEdge) {
				e.Output[0].Text = "edited"
				panic(unprintable{})
			},
		}, nil)
		s.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) { after++ }, Ended: func(e subagent.EndEdge) {
			after++
			if got := message.JoinText(e.Output); got != "hi" {
				t.Errorf("EVT-30: a later hook sees the output %q", got)
			}
		}}, nil)
		run := s.Start(t, t.Context(), "spawn", subagenttest.Request(s.Parent(t), "hello"))
		synctest.Wait()
		res := subagenttest.Await(t, run)
		if message.JoinText(res.Output) != "hi" || res.StopReason != subagent.StopCompleted {
			t.Errorf("result = %+v", res)
		}
		if after != 2 {
			t.Errorf("later hooks ran %d times, want 2", after)
		}
		if n := strings.Count(log.String(), "subagent hook failed"); n != 2 {
			t.Errorf("%d failures were logged, want 2", n)
		}
	})
}

// A hook may start and cancel: it is called without any lock.
func TestHooksMayCallBack(t *testing.T) {
	in(t, subagenttest.Options{MaxChildren: 2}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, &subagenttest.Scripted{})
		parent := s.Parent(t)
		nested := false
		s.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) {
			if nested {
				return
			}
			nested = true
			subagenttest.Await(t, s.Start(t, t.Context(), "scripted", subagenttest.Request(parent, "inner")))
			s.Service.Providers()
		}}, nil)
		subagenttest.Await(t, s.Start(t, t.Context(), "scripted", subagenttest.Request(parent, "outer")))
	})
}

// A run in this process says itself when it has settled: no goroutine waits for that,
// and hooks are told by one of their own, which may wait for the run's release.
func TestNobodyWaitsForALocalRun(t *testing.T) {
	for _, hooked := range []bool{false, true} {
		t.Run(fmt.Sprint("hooks ", hooked), func(t *testing.T) {
			var log bytes.Buffer
			o := subagenttest.Options{MaxChildren: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			in(t, o, func(t *testing.T, s *subagenttest.System) {
				s.Register(t, spawn.New(""))
				open := make(chan struct{})
				s.Answer("hello", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
					<-open
					return scripted.Step{scripted.SayLiteral("hi")}, nil
				})})
				parent := s.Parent(t)
				var run subagent.Run
				ended := 0
				if hooked {
					s.Service.AddHooks(subagent.Hooks{Ended: func(e subagent.EndEdge) {
						ended++
						if err := run.Close(context.Background()); err != nil || message.JoinText(e.Output) != "hi" {
							t.Errorf("the end with %q, and the release: %v", message.JoinText(e.Output), err)
						}
					}}, nil)
				}
				run = s.Start(t, t.Context(), "spawn", subagenttest.Request(parent, "hello"))
				synctest.Wait()
				all := make([]byte, 1<<20)
				all = all[:runtime.Stack(all, true)]
				if stacks := string(all); !strings.Contains(stacks, "agent.(*Agent).drive") || strings.Contains(stacks, "subagent.(*Service)") {
					t.Errorf("while the child works there run\n%s", stacks)
				}
				close(open)
				synctest.Wait()
				if want := map[bool]int{true: 1}[hooked]; ended != want {
					t.Errorf("the end was told %d times, want %d", ended, want)
				}
				// Nothing but the settlement made room for the next.
				again := s.Start(t, t.Context(), "spawn", subagenttest.Request(parent, "hello"))
				for _, r := range []subagent.Run{run, again} {
					if res := subagenttest.Await(t, r); res.StopReason != subagent.StopCompleted {
						t.Errorf("a run ended as %+v", res)
					}
				}
				synctest.Wait()
				if log.Len() > 0 {
					t.Errorf("logged:\n%s", log.String())
				}
			})
		})
	}
}

// Limits and the service's own end (P35; design § 4, Bounded).
func TestMaxChildren(t *testing.T) {
	in(t, subagenttest.Options{MaxChildren: 2}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		s.Register(t, &subagenttest.Scripted{Play: func(req *subagent.ResolvedRequest) subagenttest.Play {
			return subagenttest.Play{Hold: hold}
		}})
		parent, other := s.Parent(t), s.Parent(t)
		req := subagenttest.Request(parent, "x")
		runs := []subagent.Run{s.Start(t, t.Context(), "scripted", req), s.Start(t, t.Context(), "scripted", req)}
		_, err := s.Service.Start(t.Context(), "scripted", req)
		wantCode(t, err, subagent.CodeLimitReached)
		runs = append(runs, s.Start(t, t.Context(), "scripted", subagenttest.Request(other, "x")))
		close(hold)
		// Whoever has seen a result may start the next one at once.
		if _, err := runs[0].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			run := s.Start(t, t.Context(), "scripted", req)
			if _, err := run.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run)
		}
		for _, run := range runs {
			subagenttest.Await(t, run)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	if _, err := subagent.New(t.Context(), subagent.Config{}); err == nil {
		t.Error("a service without agents was made")
	}
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		if _, err := subagent.New(t.Context(), subagent.Config{Agents: s.Agents, MaxChildren: -1}); err == nil {
			t.Error("a negative bound was taken")
		}
	})
}

// Close refuses at once and joins what was accepted.
func TestServiceClose(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		s.Register(t, &subagenttest.Scripted{Play: func(*subagent.ResolvedRequest) subagenttest.Play { return subagenttest.Play{Hold: hold} }})
		parent := s.Parent(t)
		run := s.Start(t, t.Context(), "scripted", subagenttest.Request(parent, "x"))
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(stop)
		if err := s.Service.Close(ctx); !errors.Is(err, stop) {
			t.Errorf("Close with an ended ctx = %v, want the cause", err)
		}
		_, err := s.Service.Start(t.Context(), "scripted", subagenttest.Request(parent, "x"))
		wantCode(t, err, subagent.CodeDraining)
		done := make(chan error, 2)
		for range 2 {
			go func() {
				err := s.Service.Close(t.Context())
				if edges := s.Lifecycle.Edges(); edges[len(edges)-1].End == nil {
					t.Error("Close returned before the end was told")
				}
				done <- err
			}()
		}
		synctest.Wait()
		if len(done) != 0 {
			t.Error("Close returned while a run is at work")
		}
		close(hold)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		subagenttest.Await(t, run)
	})
}
