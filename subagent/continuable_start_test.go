package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// preparer is a provider whose preparation is a function.
type preparer struct {
	*subagenttest.Scripted
	prepare func(ctx context.Context, p subagent.Preparation) (*session.Seed, error)
}

func (p *preparer) PrepareContinuable(ctx context.Context, prep subagent.Preparation) (*session.Seed, error) {
	return p.prepare(ctx, prep)
}

func (l *nest) preparer(name string, fn func(ctx context.Context, p subagent.Preparation) (*session.Seed, error)) {
	l.Register(l.t, &preparer{&subagenttest.Scripted{ProviderName: name}, fn})
}

// payload decodes an event that the store yielded.
func (l *nest) payload(e session.Event) session.Payload {
	l.t.Helper()
	p, err := l.Sessions.PayloadOf(e)
	if err != nil {
		l.t.Fatalf("event %d: %v", e.Seq, err)
	}
	return p
}

// log returns the events of a stored log behind what it inherited.
func (l *nest) log(id session.ID) (h session.Header, own []session.Event) {
	l.t.Helper()
	rec, events, err := l.Sessions.Store().Inspect(context.WithoutCancel(l.t.Context()), id)
	if err != nil {
		l.t.Fatal(err)
	}
	for e, err := range events {
		if err != nil {
			l.t.Fatal(err)
		}
		if e.Seq >= rec.Header.SeedLength {
			own = append(own, e)
		}
	}
	return rec.Header, own
}

func (l *nest) untouched(agents int) {
	l.t.Helper()
	if n := len(l.Agents.List()); n != agents {
		l.t.Errorf("%d agents are live, not %d", n, agents)
	}
	if left := l.Service.Rests(); len(left) > 0 {
		l.t.Errorf("left: %q", left)
	}
	if edges := l.Lifecycle.Edges(); len(edges) > 0 {
		l.t.Errorf("told: %+v", edges)
	}
}

// CONT-08, CONT-09, CONT-12, CONT-14, RB-01, RB-05, RB-06, DEP-09, DEP-10, DES-10, CAP-07,
// AUTH-11, OBS-03, OBS-17, AMB-27, amendments P03, P35: what refuses a start, in this
// order, before the provider is asked and before anything is made: each request has every
// fault behind its own too.
func TestContinuableStartRefused_CONT14(t *testing.T) {
	inNest(t, subagenttest.Options{MaxDepth: ptr(int64(3))}, func(t *testing.T, l *nest) {
		asked := 0
		l.preparer("asked", func(context.Context, subagent.Preparation) (*session.Seed, error) {
			asked++
			return nil, nil
		})
		oneShot := &subagenttest.Scripted{ProviderName: "one-shot"}
		l.Register(t, oneShot)
		gone := l.Parent(t)
		if err := gone.Dispose(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		stored := l.start("stored", "begin").Child
		synctest.Wait()
		viewed, err := l.Sessions.Prepare(t.Context(), session.New{ID: "viewed"})
		if err != nil {
			t.Fatal(err)
		}
		detach, err := l.Sessions.Enter(viewed)
		if err != nil {
			t.Fatal(err)
		}
		before, edges := len(l.Agents.List()), len(l.Lifecycle.Edges())
		deep := l.NewAgent(t, agent.Create{Options: agent.Options{Provider: subagenttest.Route, Model: subagenttest.Model, Depth: ptr(int64(3))}})
		before++
		bad := session.ToolFilter{}
		var depth *subagent.DepthError
		var domain *subagent.DepthTypeError
		code := func(c subagent.Code) func(error) bool {
			return func(err error) bool { return errors.Is(err, &subagent.Error{Code: c}) }
		}
		for _, tc := range []struct {
			name     string
			provider string
			req      subagent.ContinuableRequest
			want     func(error) bool
		}{
			{"no parent", "nobody", subagent.ContinuableRequest{}, code(subagent.CodeInvalidRequest)},
			{"a parent that is gone", "nobody", subagent.ContinuableRequest{Parent: gone}, code(subagent.CodeUnauthorized)},
			{"no provider", "nobody", subagent.ContinuableRequest{Parent: l.parent}, code(subagent.CodeNoProvider)},
			{"one-shot only", "one-shot", subagent.ContinuableRequest{Parent: l.parent}, code(subagent.CodeUnsupportedCapability)},
			{"cap domain", "asked", subagent.ContinuableRequest{Parent: l.parent, MaxDepth: ptr(int64(-1))}, func(err error) bool { return errors.As(err, &domain) }},
			{"no prompt", "asked", subagent.ContinuableRequest{Parent: l.parent, ID: stored, Label: "x"}, code(subagent.CodeInvalidRequest)},
			{"no label", "asked", subagent.ContinuableRequest{Parent: l.parent, ID: stored, Prompt: say("x")}, code(subagent.CodeInvalidRequest)},
			{"an empty filter", "asked", subagent.ContinuableRequest{Parent: l.parent, ID: stored, Prompt: say("x"), Label: "x", ToolFilter: &bad}, code(subagent.CodeInvalidRequest)},
			{"a live id", "asked", subagent.ContinuableRequest{Parent: deep, ID: l.parent.ID(), Prompt: say("x"), Label: "\xff", MaxDepth: ptr(int64(3))}, code(subagent.CodeDuplicateChild)},
			{"the id of a live session without an agent", "asked", subagent.ContinuableRequest{Parent: deep, ID: "viewed", Prompt: say("x"), Label: "\xff", MaxDepth: ptr(int64(3))}, code(subagent.CodeDuplicateChild)},
			{"a stored id", "asked", subagent.ContinuableRequest{Parent: deep, ID: stored, Prompt: say("x"), Label: "\xff", MaxDepth: ptr(int64(3))}, code(subagent.CodeDuplicateChild)},
			{"the cap", "asked", subagent.ContinuableRequest{Parent: deep, Prompt: say("x"), Label: "\xff", MaxDepth: ptr(int64(3))}, func(err error) bool {
				return errors.As(err, &depth) && depth.Depth == 4 && depth.Cap == 3
			}},
			{"the deployment's bound", "asked", subagent.ContinuableRequest{Parent: deep, Prompt: say("x"), Label: "\xff"}, code(subagent.CodeLimitReached)},
			{"text that is no JSON", "asked", subagent.ContinuableRequest{Parent: l.parent, Prompt: say("x"), Label: "\xff"}, code(subagent.CodeInvalidRequest)},
			{"a filter that is no JSON", "asked", subagent.ContinuableRequest{Parent: l.parent, Prompt: say("x"), Label: "x", ToolFilter: &session.ToolFilter{Deny: []string{"\xff"}}}, code(subagent.CodeInvalidRequest)},
		} {
			acc, err := l.Service.StartContinuable(t.Context(), tc.provider, tc.req)
			if !tc.want(err) || acc != (subagent.Accepted{}) {
				t.Errorf("%s: %v, %v", tc.name, acc, err)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errGone)
		if _, err := l.Service.StartContinuable(ctx, "asked", l.request("x", "x")); !errors.Is(err, errGone) {
			t.Errorf("CAN-05: the caller has left: %v", err)
		}
		l.Service.CloseAdmission()
		_, err = l.Service.StartContinuable(t.Context(), "nobody", subagent.ContinuableRequest{})
		wantCode(t, err, subagent.CodeDraining)
		if n := len(oneShot.Starts()); asked > 0 || n > 0 {
			t.Errorf("a provider was asked %d times, and started %d runs", asked, n)
		}
		if n := len(l.Agents.List()); n != before || len(l.Lifecycle.Edges()) != edges || len(l.Service.Rests()) > 0 {
			t.Errorf("%d agents, not %d; left: %q", n, before, l.Service.Rests())
		}
		if err := detach(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// CAP-08, REQ-12: a provider of both kinds starts one-shot children without its preparation and
// continuable ones without its Start, and a one-shot child has no Activation.
func TestBothKinds_CAP08(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		prepared := 0
		both := &preparer{&subagenttest.Scripted{ProviderName: "both"}, func(context.Context, subagent.Preparation) (*session.Seed, error) {
			prepared++
			return nil, nil
		}}
		l.Register(t, both)
		run := l.Start(t, t.Context(), "both", subagenttest.Request(l.parent, "go"))
		if prepared > 0 || len(both.Starts()) != 1 || l.Service.Entry(run.ID()) {
			t.Errorf("a one-shot start: prepared %d times, %d runs", prepared, len(both.Starts()))
		}
		subagenttest.Await(t, run)
		local := l.Start(t, t.Context(), spawn.DefaultName, subagenttest.Request(l.parent, "go"))
		if l.Service.Entry(local.ID()) {
			t.Error("REQ-12: a one-shot child has an Activation")
		}
		subagenttest.Await(t, local)
		if _, err := l.Service.StartContinuable(t.Context(), "both", l.request("worker", "go")); err != nil {
			t.Error(err)
		}
		if prepared != 1 || len(both.Starts()) != 1 {
			t.Errorf("a continuable start: prepared %d times, %d runs", prepared, len(both.Starts()))
		}
		synctest.Wait()
	})
}

// DES-12, CONT-14, CONT-25, COMP-26: what a child is made of is what its caller and its parent said when the call came, and
// not what they say while it is looked whether the id is free, or while the provider prepares.
func TestCapturedAtTheCall_DES12(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty, Tools: []tool.Definition{idle("look"), idle("burn")}}, func(t *testing.T, l *nest) {
		sandbox := func(mode string) {
			if _, err := l.parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: mode}}); err != nil {
				t.Error(err)
			}
		}
		if err := l.parent.Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		seed := slices.Collect(l.parent.Session().Events(0))
		cut := len(seed)
		sandbox("before")
		prompt, persona := say("begin"), &subagent.Persona{Text: "You are careful.", Literal: true}
		filter := &session.ToolFilter{Deny: []string{"burn"}}
		req := subagent.ContinuableRequest{ID: "child", Label: "worker", Prompt: prompt, Parent: l.parent, ToolFilter: filter, Persona: persona, MaxDepth: ptr(int64(1))}
		var looked, prepared bool
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			if p.Op != storetest.OpExists || p.ID != "child" {
				return storetest.Fault{}
			}
			return storetest.Fault{Then: func() {
				looked = true
				if prepared {
					clear(seed) // the provider goes on with what is its own (CONT-25)
				}
				sandbox("while it looks")
				prompt[0].Text, persona.Text, filter.Deny[0], *req.MaxDepth = "spoiled", "Spoiled.", "look", 0
			}}
		})
		l.preparer("slow", func(context.Context, subagent.Preparation) (*session.Seed, error) {
			prepared = true
			sandbox("while it prepares")
			return &session.Seed{Events: seed}, nil
		})
		if _, err := l.Service.StartContinuable(t.Context(), "slow", req); err != nil || !looked || !prepared {
			t.Fatalf("looked %v, prepared %v: %v", looked, prepared, err)
		}
		a := l.liveAgent("child")
		if _, mode := a.Session().Policies(); mode != "before" {
			t.Errorf("COMP-26: the sandbox is %q", mode)
		}
		if n := a.Session().Header().SeedLength; n != int64(cut) || seed[0].Type != "" {
			t.Errorf("CONT-25: the child inherits %d of %d events", n, cut)
		}
		d := a.Session().Descriptor()
		if d == nil || *d.Descriptor.Persona != "You are careful." || !slices.Equal(d.Descriptor.ToolFilter.Deny, []string{"burn"}) {
			t.Errorf("DES-12: the descriptor is %+v", d)
		}
		synctest.Wait()
		l.logs("child", "user: begin", "answer: noted", "settled: completed")
	})
}

// CONT-12, FUP-34, ERR-02, amendment P24: without a store nothing continues.
func TestContinuableNeedsAStore_FUP34(t *testing.T) {
	in(t, subagenttest.Options{Projections: units(t)}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, &preparer{&subagenttest.Scripted{ProviderName: "p"}, func(context.Context, subagent.Preparation) (*session.Seed, error) {
			t.Error("the provider was asked")
			return nil, nil
		}})
		parent := s.Parent(t)
		_, err := s.Service.StartContinuable(t.Context(), "p", subagent.ContinuableRequest{Label: "x", Prompt: say("x"), Parent: parent, MaxDepth: ptr(int64(-1))})
		wantCode(t, err, subagent.CodePersistenceUnavailable)
		_, err = s.Service.Followup(t.Context(), parent, "child", say("x"), message.UserSource())
		wantCode(t, err, subagent.CodePersistenceUnavailable)
		if rows, err := s.Service.ListChildren(t.Context(), parent.ID()); err != nil || len(rows) > 0 || len(s.Agents.List()) != 1 {
			t.Errorf("listed: %v, %v", rows, err)
		}
	})
}

// CONT-15…18, CAN-06, P18, OBS-17: a provider learns the id and the parent, and its
// context ends with the caller's until acceptance alone; preparations do not touch each
// other.
func TestPreparation_CONT15(t *testing.T) {
	if n := reflect.TypeFor[subagent.Preparation]().NumField(); n != 2 {
		t.Errorf("CONT-15: a preparation tells %d things", n)
	}
	if _, ok := reflect.TypeFor[subagent.ContinuableRequest]().FieldByName("OutputSchema"); ok {
		t.Error("CONT-24: a continuable request has an output schema")
	}
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		gates := map[session.ID]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
		var mu sync.Mutex
		kept := map[session.ID]context.Context{}
		l.preparer("gated", func(ctx context.Context, p subagent.Preparation) (*session.Seed, error) {
			mu.Lock()
			kept[p.ID] = ctx
			mu.Unlock()
			if p.Parent != l.parent {
				t.Error("the parent is another one")
			}
			select {
			case <-gates[p.ID]:
				return nil, nil
			case <-ctx.Done():
				return nil, fmt.Errorf("mine: %w", ctx.Err())
			}
		})
		leave := map[session.ID]context.CancelCauseFunc{}
		got := map[session.ID]chan error{}
		for _, id := range []session.ID{"a", "b"} {
			var ctx context.Context
			ctx, leave[id] = context.WithCancelCause(t.Context())
			got[id] = make(chan error, 1)
			req := l.request("worker", "begin")
			req.ID = id
			go func() {
				_, err := l.Service.StartContinuable(ctx, "gated", req)
				got[id] <- err
			}()
		}
		synctest.Wait()
		if _, live := l.Agents.Get("a"); live || kept["a"] == nil || kept["b"] == nil {
			t.Error("preparations do not overlap, or a child is live before its own is over")
		}
		req := l.request("worker", "begin")
		req.ID = "b"
		_, err := l.Service.StartContinuable(t.Context(), "gated", req)
		wantCode(t, err, subagent.CodeDuplicateChild) // CONT-10
		leave["a"](errGone)
		synctest.Wait()
		if err := <-got["a"]; err != errGone { //nolint:errorlint // the exact cause
			t.Errorf("CAN-06: the one that was left: %v", err)
		}
		if kept["b"].Err() != nil {
			t.Error("CONT-18: the sibling's preparation ended")
		}
		if found, _ := l.store.Exists(t.Context(), "a"); found {
			t.Error("CAN-06: a session is stored")
		}
		close(gates["b"])
		synctest.Wait()
		if err := <-got["b"]; err != nil {
			t.Error(err)
		}
		leave["b"](errGone)
		synctest.Wait()
		if cause := context.Cause(kept["b"]); errors.Is(cause, errGone) {
			t.Errorf("P18: the provider sees that the caller has left afterwards: %v", cause)
		}
		if d := cmp.Diff([]string{"user: begin", "answer: noted", "settled: completed"}, l.said("b")); d != "" {
			t.Errorf("CAN-09: the child's log:\n%s", d)
		}
	})
}

// CONT-10, CONT-17, RB-02, RB-03, RB-20, CONT-25, P21, FORK-13: what a provider hands over is
// checked before anything is made, and its own failures and panics reach the caller; an
// id that was taken while it prepared is refused.
func TestBadPreparation_RB20(t *testing.T) {
	for _, tc := range []struct {
		name string
		seed *session.Seed
		fn   func(l *nest)
		want string
	}{
		{"a gap", &session.Seed{Events: events(1, session.TypeTurnStart)}, nil, "seq"},
		{"an open turn", &session.Seed{Events: events(0, session.TypeTurnStart)}, nil, "turn"},
		{"an open step", &session.Seed{Events: events(0, session.TypeTurnStart, session.TypeStepStart)}, nil, "ends inside turn 1"},
		{"no JSON", &session.Seed{Events: []session.Event{session.RawEvent(session.Event{Type: session.TypeTurnStart, Seq: 0, Time: 1}, []byte(`{"turn":1e999}`))}}, nil, "number out of range"},
		{"failed", nil, func(*nest) { panic(errBoom) }, "boom"},
		{"taken", nil, func(l *nest) { l.NewAgent(l.t, agent.Create{Session: session.New{ID: "child"}}) }, "exists already"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
				l.preparer("odd", func(context.Context, subagent.Preparation) (*session.Seed, error) {
					if tc.fn != nil {
						tc.fn(l)
					}
					return tc.seed, nil
				})
				req := l.request("worker", "begin")
				req.ID = "child"
				_, err := l.Service.StartContinuable(t.Context(), "odd", req)
				if err == nil || !strings.Contains(err.Error(), tc.want) || tc.name != "taken" && !strings.Contains(err.Error(), "odd") {
					t.Errorf("said: %v", err)
				}
				if tc.name == "taken" {
					wantCode(t, err, subagent.CodeDuplicateChild)
					l.untouched(2)
				} else {
					l.untouched(1)
					if found, _ := l.store.Exists(t.Context(), "child"); found {
						t.Error("a session is stored")
					}
				}
			})
		})
	}
}

// RB-07, COMP-12: a filter that names a tool which is not there is found when the child is composed. The error says
// which, and no child is left or was told of.
func TestUnknownTool_RB07(t *testing.T) {
	inNest(t, subagenttest.Options{Tools: []tool.Definition{idle("look")}}, func(t *testing.T, l *nest) {
		req := l.request("worker", "begin")
		req.ID, req.ToolFilter = "child", &session.ToolFilter{Allow: []string{"look", "lok"}}
		acc, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
		if err == nil || !strings.Contains(err.Error(), "unknown tools: lok") || acc != (subagent.Accepted{}) {
			t.Errorf("said: %v, %v", acc, err)
		}
		l.untouched(1)
		if found, err := l.store.Exists(t.Context(), "child"); found || err != nil {
			t.Errorf("stored: %v, %v", found, err)
		}
		req.ToolFilter.Allow = []string{"look"}
		if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil {
			t.Errorf("the next one: %v", err)
		}
		synctest.Wait()
	})
}

// events returns the beginning of a log: a turn, and a step in it.
func events(from int64, types ...session.Type) (list []session.Event) {
	data := map[session.Type]string{session.TypeTurnStart: `{"turn":1}`, session.TypeStepStart: `{"turn":1,"step":1}`}
	for i, typ := range types {
		list = append(list, session.RawEvent(session.Event{Type: typ, Seq: from + int64(i), Time: 1}, []byte(data[typ])))
	}
	return list
}

// CONT-25, DES-23…25, DES-27, DES-18, FORK-04, FORK-08…10: a child inherits what the
// provider prepared at its creation, detached, with its own events behind it; a resume
// replays that and nothing newer.
func TestSeededChild_FORK08(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		for name, p := range map[string]subagent.ContinuablePreparer{"fork": fork.New(""), "spawn": spawn.New("")} {
			if seed, err := p.PrepareContinuable(t.Context(), subagent.Preparation{ID: "x", Parent: l.parent}); seed != nil || err != nil {
				t.Errorf("FORK-09, FORK-10: %s prepares %v, %v", name, seed, err)
			}
		}
		l.Register(t, fork.New(""))
		ask := func(text string) {
			if err := l.parent.Followup(agent.UserText(text)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		ask("one")
		ask("two")
		cut := l.parent.Session().Head()
		var requests []*llm.Request
		l.Otherwise(scripted.Step{scripted.Func(func(_ context.Context, req *llm.Request) (scripted.Step, error) {
			requests = append(requests, req)
			return scripted.Step{scripted.SayLiteral("noted")}, nil
		})})
		acc, err := l.Service.StartContinuable(t.Context(), fork.DefaultName, l.request("twin", "three"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ask("newer")
		requests = nil
		l.followup(acc.Child, "four")
		synctest.Wait()
		h, own := l.log(acc.Child)
		if h.SeedLength != cut || len(own) == 0 || own[0].Seq != cut {
			t.Errorf("DES-24: the seed is %d long, not %d", h.SeedLength, cut)
		}
		var order []string
		var turns []int64
		for _, e := range own {
			switch p := l.payload(e).(type) {
			case *session.DescriptorEvent:
				order = append(order, "descriptor")
			case *session.InboxSpliced:
				if len(p.Inserted) > 0 {
					order = append(order, "inserted")
				}
			case *session.TurnStart:
				order = append(order, "turn")
				turns = append(turns, p.Turn)
			}
		}
		if d := cmp.Diff([]string{"descriptor", "inserted", "turn", "inserted", "turn"}, order); d != "" {
			t.Errorf("DES-23, DES-26:\n%s", d)
		}
		last, _, _ := l.parent.Session().LastTurn()
		if d := cmp.Diff([]int64{3, 4}, turns); d != "" {
			t.Errorf("DES-25: the parent is at turn %d:\n%s", last, d)
		}
		var told []string
		for _, m := range requests[0].Messages {
			if m.Source.Kind == message.SourceUser && m.Role == message.RoleUser {
				told = append(told, message.JoinText(m.Content))
			}
		}
		if !slices.Contains(told, "two") || slices.Contains(told, "newer") || !slices.Contains(told, "three") {
			t.Errorf("FORK-08: the resumed child was told %q", told)
		}
		// Raw events are the child's own from then on.
		raw := slices.Collect(l.parent.Session().Events(0))[:cut]
		l.preparer("raw", func(context.Context, subagent.Preparation) (*session.Seed, error) {
			return &session.Seed{Events: raw}, nil
		})
		l.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
			if a.ID() == "raw" {
				clear(raw)
			}
			return nil
		}})
		req := l.request("raw", "begin")
		req.ID = "raw"
		if _, err := l.Service.StartContinuable(t.Context(), "raw", req); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s, _ := l.log("raw"); s.SeedLength != cut {
			t.Errorf("CONT-25: the seed is %d long", s.SeedLength)
		}
		if d := cmp.Diff([]string{"user: begin", "answer: noted", "settled: completed"}, l.said("raw")); d != "" {
			t.Errorf("the log:\n%s", d)
		}
	})
}

// CONT-01…04, CONT-07, CONT-19, CONT-21, P06, F-20: acceptance waits for the record in the store, and for
// nothing else: neither a turn, nor the message's own event, nor a request.
func TestAcceptance_P06(t *testing.T) {
	faulty := storetest.NewFaulty(memory.New())
	inNest(t, subagenttest.Options{Store: faulty}, func(t *testing.T, l *nest) {
		disk, turn := make(chan struct{}), make(chan struct{})
		faulty.Plan(func(p storetest.Point) storetest.Fault {
			if p.Op == storetest.OpCreate && p.ID == "child" {
				return storetest.Fault{Wait: func(context.Context) { <-disk }}
			}
			return storetest.Fault{}
		})
		l.Agents.AddHooks(agent.Hooks{TurnOpen: func(a *agent.Agent, _ int64) ([]session.Draft, error) {
			if a.ID() == "child" {
				<-turn
			}
			return nil, nil
		}})
		req := l.request("worker", "begin")
		req.ID = "child"
		req.Prompt = append(req.Prompt, message.Text("at once"))
		done := make(chan subagent.Accepted, 1)
		go func() {
			acc, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
			if err != nil {
				t.Error(err)
			}
			done <- acc
		}()
		synctest.Wait()
		a, live := l.Agents.Get("child")
		if !live || len(done) > 0 {
			t.Fatalf("live %v, returned %d before the record is stored", live, len(done))
		}
		if a.Quiescent() || l.Lifecycle.Edges()[0].Start.ID != "child" {
			t.Error("EVT-19, SET-02: what is accepted does not count yet")
		}
		close(disk)
		synctest.Wait()
		acc := <-done
		waiting := a.Session().Inbox(session.NextTurn)
		if acc.Child != "child" || len(waiting) != 1 || waiting[0].Message.ID != acc.Message {
			t.Errorf("accepted %+v, waiting is %+v", acc, waiting)
		}
		m := waiting[0].Message
		if m.Source.Kind != message.SourceUser || cmp.Diff(req.Prompt, m.Content) != "" {
			t.Errorf("CONT-04: the message is %+v", m)
		}
		for e := range a.Session().Events(0) {
			switch e.Payload().(type) {
			case *session.TurnStart, *session.UserMessage:
				t.Errorf("CONT-02: %s is in the log", e.Type)
			}
		}
		if n := len(l.Adapter.Calls()); n > 0 {
			t.Errorf("CONT-02: %d model requests", n)
		}
		if rec, _, err := l.store.Inspect(t.Context(), "child"); err == nil {
			t.Errorf("wrong store: %v", rec)
		}
		if rec, _, err := faulty.Inspect(t.Context(), "child"); err != nil || rec.Head != a.Session().Head() {
			t.Errorf("stored are %d of %d events: %v", rec.Head, a.Session().Head(), err)
		}
		if a.Owner() != nil || len(a.Path()) != 2 {
			t.Errorf("CONT-19: it is owned by %v, below %q", a.Owner(), a.Path())
		}
		close(turn)
		synctest.Wait()
	})
}

// DES-05…09, DES-11, DES-12, DES-16, DES-20, DES-26, DES-28, DEP-11, COMP-32, COMP-36, CAP-06, EVT-06, FUP-14…18,
// CONT-05, CONT-22, F-22, F-37…39: what a child is made of stands in its own log, as it was at the call, and a later
// process makes it of that alone: with no provider, a parent that has changed, and what
// the log does not say left out.
func TestDescriptorAndResume_DES05(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		var mu sync.Mutex
		var requests []*llm.Request
		system := func() (*subagenttest.System, *memory.Store, func()) {
			st := b.Open()
			s := subagenttest.NewSystem(t, subagenttest.Options{Store: st, Projections: units(t), Persona: "You are the deployment's.", Tools: []tool.Definition{idle("look"), idle("touch"), idle("burn")}, Approver: never{t}})
			if _, err := s.Models.Register(s.Adapter, "other"); err != nil {
				t.Fatal(err)
			}
			s.Otherwise(scripted.Step{scripted.Func(func(_ context.Context, req *llm.Request) (scripted.Step, error) {
				mu.Lock()
				defer mu.Unlock()
				requests = append(requests, req)
				return scripted.Step{scripted.SayLiteral("noted")}, nil
			})})
			return s, st, s.Register(t, spawn.New("maker"))
		}
		s, st, _ := system()
		l := &nest{System: s, t: t, store: st}
		l.parent = s.NewAgent(t, agent.Create{Session: session.New{ID: "parent", Cwd: "/w"}, Options: agent.Options{Provider: subagenttest.Route, Model: "old", MaxTokens: 77}})
		if _, err := l.parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: "read-only"}}); err != nil {
			t.Fatal(err)
		}
		if err := l.parent.Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		filter := &session.ToolFilter{Deny: []string{"burn"}}
		persona := &subagent.Persona{Text: "You are {{literally}} another.", Literal: true}
		req := subagent.ContinuableRequest{
			ID: "full", Label: "all of it", Prompt: say("begin"), Parent: l.parent, ToolFilter: filter, Persona: persona,
			Model: subagent.Model{Provider: "other", Model: "m-2", MaxTokens: 5}, MaxDepth: ptr(int64(1)),
		}
		unhook := s.Agents.AddHooks(agent.Hooks{Created: func(*agent.Agent) error {
			// The caller goes on with its own values (DES-11, DES-12).
			filter.Deny[0], persona.Text, *req.MaxDepth = "look", "Spoiled.", 0
			return nil
		}})
		if _, err := s.Service.StartContinuable(t.Context(), "maker", req); err != nil {
			t.Fatal(err)
		}
		unhook()
		bare := s.NewAgent(t, agent.Create{Session: session.New{ID: "bare"}})
		if err := bare.Followup(agent.UserText("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.StartContinuable(t.Context(), "maker", subagent.ContinuableRequest{ID: "least", Label: "least", Prompt: say("begin"), Parent: bare}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.StartContinuable(t.Context(), "maker", subagent.ContinuableRequest{ID: "none", Label: "none", Prompt: say("begin"), Parent: l.parent, ToolFilter: &session.ToolFilter{Allow: []string{}}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for id, want := range map[session.ID]string{
			"full":  `{"version":2,"mode":"continuable","provider":"maker","label":"all of it","agentProvider":"other","agentModel":"m-2","persona":"You are {{literally}} another.","toolFilter":{"deny":["burn"]}}`,
			"least": `{"version":2,"mode":"continuable","provider":"maker","label":"least"}`,
			"none":  `{"version":2,"mode":"continuable","provider":"maker","label":"none","agentProvider":"scripted","agentModel":"old","toolFilter":{"allow":[]}}`,
		} {
			_, own := l.log(id)
			got := ""
			for _, e := range own {
				if p, ok := l.payload(e).(*session.DescriptorEvent); ok {
					got += string(p.Descriptor.AppendJSON(nil))
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("DES-05, DES-06, DES-09, DES-16: the descriptor of %s:\n%s", id, d)
			}
		}
		of := func(id session.ID) (r *llm.Request) {
			mu.Lock()
			defer mu.Unlock()
			for _, q := range requests {
				if q.SessionID == string(id) {
					r = q
				}
			}
			if r == nil {
				t.Fatalf("no request of %s", id)
			}
			return r
		}
		tools := func(r *llm.Request) (names []string) {
			for _, spec := range r.Tools {
				names = append(names, spec.Name)
			}
			slices.Sort(names)
			return names
		}
		first := of("full")
		if first.MaxTokens != 5 || first.Provider != "other" || first.Model != "m-2" {
			t.Errorf("the first request: %+v", first)
		}
		counts := func(id session.ID) map[session.Type]int {
			n := map[session.Type]int{}
			_, own := l.log(id)
			for _, e := range own {
				switch e.Type {
				case session.TypeDescriptor, session.TypeApprovalPolicy, session.TypeSandboxMode, session.TypePersona:
					n[e.Type]++
				}
			}
			return n
		}
		before := counts("full")
		if before[session.TypeApprovalPolicy] != 1 || before[session.TypeSandboxMode] != 1 || before[session.TypePersona] != 1 {
			t.Errorf("F-37, F-38: the child's log has %v", before)
		}

		// Another process, whose parent is another, and whose provider is not there.
		st.Kill()
		s.Crashed()
		s, st, unregister := system()
		unregister()
		l.System, l.store = s, st
		h, err := s.Agents.Resume(t.Context(), agent.Resume{ID: "parent", Options: agent.Options{Provider: subagenttest.Route, Model: "new", MaxTokens: 99}})
		if err != nil {
			t.Fatal(err)
		}
		l.parent = h.Agent()
		synctest.Wait()
		if n := len(s.Agents.List()); n != 1 || len(s.Lifecycle.Edges()) > 0 {
			t.Errorf("FUP-19: a resumed parent has %d agents beside it", n-1)
		}
		if _, err := l.parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: "off"}}); err != nil {
			t.Fatal(err)
		}
		born := map[session.ID]*agent.Agent{}
		s.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) { born[e.ID], _ = s.Agents.Get(e.ID) }}, nil)
		l.followup("full", "go on")
		l.followup("none", "go on")
		a := born["full"]
		if o := a.Options(); o.Depth == nil || *o.Depth != 1 || o.MaxTokens != 0 || a.Cwd() != "/w" {
			t.Errorf("DEP-11, FUP-17: the resumed child's options: %+v", o)
		}
		synctest.Wait()
		again := of("full")
		if again.MaxTokens != 0 || again.Provider != "other" || again.Model != "m-2" {
			t.Errorf("FUP-15, FUP-17: the resumed request: %s %s %d", again.Provider, again.Model, again.MaxTokens)
		}
		if !strings.Contains(again.System, "You are {{literally}} another.") || strings.Contains(again.System, "deployment's") || again.System != first.System {
			t.Errorf("COMP-36, FUP-15: the resumed system prompt: %s", again.System)
		}
		if d := cmp.Diff([]string{"look", "touch"}, tools(again)); d != "" {
			t.Errorf("FUP-15: tools:\n%s", d)
		}
		if r := of("none"); len(r.Tools) > 0 || r.Model != "old" {
			t.Errorf("DES-16, FUP-15: tools %q, model %s", tools(r), r.Model)
		}
		if d := cmp.Diff(before, counts("full")); d != "" {
			t.Errorf("COMP-32, DES-26:\n%s", d)
		}
		for _, e := range s.Lifecycle.Edges() {
			if e.Start.Provider != "maker" {
				t.Errorf("EVT-06, FUP-14: provider %q", e.Start.Provider)
			}
		}
		// No route is invented (FUP-16).
		if _, err := s.Agents.Resume(t.Context(), agent.Resume{ID: "bare", Options: subagenttest.ParentOptions()}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Host.Send(t.Context(), "bare", "least", say("go on")); err != nil {
			t.Fatal(err)
		}
		a = born["least"]
		if o := a.Options(); o.Provider != "" || o.Model != "" {
			t.Errorf("FUP-16: a route was invented: %+v", o)
		}
		synctest.Wait()
	})
}

type never struct{ t *testing.T }

func (n never) Approve(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	n.t.Error("F-38: somebody was asked")
	return "", errBoom
}

func idle(name string) tool.Definition {
	return tool.Definition{Name: name, Description: name, Parameters: []byte(`{"type":"object"}`), Execute: func(context.Context, *tool.Call) (any, error) { return "ok", nil }}
}

// DES-17, DES-18: the first descriptor of the child's own suffix says what it is, and
// neither a later one nor one that it inherited.
func TestWhichDescriptor_DES17(t *testing.T) {
	inNest(t, subagenttest.Options{Tools: []tool.Definition{idle("look"), idle("burn")}}, func(t *testing.T, l *nest) {
		l.Register(t, fork.New(""))
		other, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeContinuable, Provider: "liar", Label: ptr("liar")})
		if err != nil {
			t.Fatal(err)
		}
		l.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
			_, err := a.Session().Append(session.Draft{Payload: other})
			return nil, err
		})
		hold := make(chan struct{})
		l.Answer("wait", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
			<-hold
			return scripted.Step{scripted.SayLiteral("waited")}, nil
		})})
		req := l.request("worker", "first")
		req.ToolFilter = &session.ToolFilter{Deny: []string{"burn"}}
		acc, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
		if err != nil {
			t.Fatal(err)
		}
		l.followup(acc.Child, "wait")
		synctest.Wait()
		child, _ := l.Agents.Get(acc.Child)
		// Its fork inherits a descriptor with a filter and has one of its own without.
		twin, err := l.Service.StartContinuable(t.Context(), fork.DefaultName, subagent.ContinuableRequest{Label: "twin", Prompt: say("second"), Parent: child})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		born := map[session.ID]*agent.Agent{}
		l.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) { born[e.ID], _ = l.Agents.Get(e.ID) }}, nil)
		sees := func(id session.ID, want ...string) {
			t.Helper()
			a := born[id]
			var names []string
			for _, spec := range a.Tools().Specs() {
				names = append(names, spec.Name)
			}
			slices.Sort(names)
			if d := cmp.Diff(want, names); d != "" {
				t.Errorf("%s sees:\n%s", id, d)
			}
		}
		l.hold("more")
		if _, err := l.Service.Followup(t.Context(), child, twin.Child, say("more"), message.UserSource()); err != nil {
			t.Fatal(err)
		}
		sees(twin.Child, "burn", "look")
		close(hold)
		if err := l.Host.Interrupt(acc.Child, twin.Child); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.hold("after")
		l.followup(acc.Child, "after")
		sees(acc.Child, "look")
		synctest.Wait()
		edges := l.Lifecycle.Edges()
		if p := edges[len(edges)-1].Start.Provider; p != spawn.DefaultName {
			t.Errorf("DES-17: the provider is %q", p)
		}
	})
}

// FUP-20, OBS-20, OBS-05, FUP-11…13, P27, COMP-12: a child that cannot be made any more says why, each
// with its own code and cause; nothing is left of it, and its log is as it was.
func TestNotResumable_OBS20(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		unregister, err := l.Tools.Root().Register(idle("look"))
		if err != nil {
			t.Fatal(err)
		}
		req := l.request("worker", "begin")
		req.ToolFilter = &session.ToolFilter{Allow: []string{"look"}}
		acc, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		unregister()
		before := l.said(acc.Child)
		_, err = l.Service.Followup(t.Context(), l.parent, acc.Child, say("go on"), message.UserSource())
		wantCode(t, err, subagent.CodeNotResumable)
		if !strings.Contains(err.Error(), "look") {
			t.Errorf("OBS-20: it does not say which tool: %v", err)
		}
		if d := cmp.Diff(before, l.said(acc.Child)); d != "" || l.Service.Entry(acc.Child) || len(l.Lifecycle.Edges()) != 2 {
			t.Errorf("the log, and what is told:\n%s", d)
		}
		if _, err := l.Tools.Root().Register(idle("look")); err != nil {
			t.Fatal(err)
		}
		l.followup(acc.Child, "go on") // FUP-22: a failure poisons nothing
		synctest.Wait()

		damaged := &session.CorruptError{ID: acc.Child, Err: errBoom}
		l.store.Backend().Damage(acc.Child, damaged)
		_, err = l.Service.Followup(t.Context(), l.parent, acc.Child, say("go on"), message.UserSource())
		wantCode(t, err, subagent.CodeNotResumable)
		if !errors.Is(err, errBoom) {
			t.Errorf("FUP-13: without its cause: %v", err)
		}
	})
}
