package subagent_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// nest is a system with a store, a spawn provider and a parent.
type nest struct {
	*subagenttest.System
	t      *testing.T
	store  *memory.Store
	parent *agent.Agent
}

func units(t testing.TB) *projection.Registry {
	t.Helper()
	r, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inNest runs fn in a bubble, with an answer to whatever has none of its own.
func inNest(t *testing.T, o subagenttest.Options, fn func(t *testing.T, l *nest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &nest{t: t, store: memory.New()}
		if o.Store == nil {
			o.Store = l.store
		}
		if o.Projections == nil {
			o.Projections = units(t)
		}
		l.System = subagenttest.NewSystem(t, o)
		l.Register(t, spawn.New(""))
		l.Otherwise(scripted.Step{scripted.SayLiteral("noted")})
		l.parent = l.Parent(t)
		fn(t, l)
	})
}

func say(s string) []message.Block { return []message.Block{message.Text(s)} }

func (l *nest) request(label, prompt string) subagent.ContinuableRequest {
	return subagent.ContinuableRequest{Label: label, Prompt: say(prompt), Parent: l.parent}
}

func (l *nest) start(label, prompt string) subagent.Accepted {
	l.t.Helper()
	acc, err := l.Service.StartContinuable(l.t.Context(), spawn.DefaultName, l.request(label, prompt))
	if err != nil {
		l.t.Fatalf("start %s: %v", label, err)
	}
	return acc
}

func (l *nest) followup(child session.ID, prompt string) message.ID {
	l.t.Helper()
	id, err := l.Service.Followup(l.t.Context(), l.parent, child, say(prompt), message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay, SenderSessionID: string(l.parent.ID())}))
	if err != nil {
		l.t.Fatalf("follow up %s: %v", child, err)
	}
	return id
}

// said returns the user messages and answers of a stored log, one line each.
func (l *nest) said(id session.ID) []string {
	l.t.Helper()
	return said(l.t, l.Agents.Sessions(), id)
}

func said(t testing.TB, reg *session.Registry, id session.ID) []string {
	t.Helper()
	s, live := reg.Get(id)
	if !live {
		rec, events, err := reg.Store().Inspect(context.WithoutCancel(t.Context()), id)
		if err != nil {
			t.Fatalf("inspect %s: %v", id, err)
		}
		if s, err = reg.Restore(rec, events); err != nil {
			t.Fatalf("read %s: %v", id, err)
		}
	}
	var lines []string
	for e := range s.Events(s.Header().SeedLength) {
		switch p := e.Payload().(type) {
		case *session.UserMessage:
			if p.Message.Source.Kind != message.SourcePlugin {
				lines = append(lines, string(p.Message.Source.Kind)+": "+message.JoinText(p.Message.Content))
			}
		case *session.AssistantMessage:
			lines = append(lines, "answer: "+message.JoinText(p.Message.Content))
		case *session.TurnEnd:
			if p.Kind != session.EndCompleted {
				lines = append(lines, "end: "+string(p.Kind))
			}
		case *session.Settled:
			lines = append(lines, "settled: "+p.StopReason)
		}
	}
	return lines
}

// CONT-01…06, CONT-20, CONT-23, SET-09, NOTE-01, NOTE-05, NOTE-09, FUP-06, FUP-07, FUP-09,
// EVT-15, EVT-19, DES-05, DES-26: a child takes a prompt, settles, tells its parent, and
// is resumed from its log by a follow-up.
func TestContinuable(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		looked := make(chan struct{})
		l.Answer("map the code", scripted.Step{subagenttest.Hold(looked), scripted.SayLiteral("mapped")})
		l.Answer("and the tests", scripted.Step{scripted.SayLiteral("tested")})
		acc := l.start("cartographer", "map the code")
		if _, live := l.Agents.Get(acc.Child); !live {
			t.Error("the child is not live when it has accepted its prompt")
		}
		close(looked)
		synctest.Wait()
		if _, live := l.Agents.Get(acc.Child); live {
			t.Error("the child did not settle")
		}
		l.followup(acc.Child, "and the tests")
		synctest.Wait()
		want := []string{
			"user: map the code", "answer: mapped", "settled: completed",
			"coordinator: and the tests", "answer: tested", "settled: completed",
		}
		if d := cmp.Diff(want, l.said(acc.Child)); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
		name := `Subagent "cartographer" (` + string(acc.Child) + `)`
		want = []string{
			"subagent-settled: " + name + " has finished.\nIts closing message:mapped", "answer: noted",
			"subagent-settled: " + name + " has finished.\nIts closing message:tested", "answer: noted",
		}
		if d := cmp.Diff(want, l.said(l.parent.ID())); d != "" {
			t.Errorf("the parent's log:\n%s", d)
		}
		edges := l.Lifecycle.Edges()
		if len(edges) != 4 || edges[0].Start.RunID == edges[2].Start.RunID || edges[2].Start.Epoch != 2 || edges[3].End == nil {
			t.Errorf("edges: %+v", edges)
		}
	})
}

// FUP-02…04: a running child takes follow-ups behind the turn in progress, in order.
func TestFollowupRunning_FUP02(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		gate := make(chan struct{})
		l.Answer("begin", scripted.Step{scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return scripted.Step{scripted.SayLiteral("began")}, nil
		})})
		acc := l.start("worker", "begin")
		a, _ := l.Agents.Get(acc.Child)
		l.followup(acc.Child, "second")
		l.followup(acc.Child, "third")
		synctest.Wait()
		if b, _ := l.Agents.Get(acc.Child); a != b {
			t.Error("a second agent appeared")
		}
		close(gate)
		synctest.Wait()
		want := []string{"user: begin", "answer: began", "coordinator: second", "answer: noted", "coordinator: third", "answer: noted", "settled: completed"}
		if d := cmp.Diff(want, l.said(acc.Child)); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
	})
}

// AUTH-01…03, FUP-11, AUTH-11: who may not, and what is not there.
func TestFollowupRefused_AUTH(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		acc := l.start("worker", "begin")
		synctest.Wait()
		stranger := l.Parent(t)
		for _, who := range []*agent.Agent{stranger} {
			_, err := l.Service.Followup(t.Context(), who, acc.Child, say("go"), message.UserSource())
			wantCode(t, err, subagent.CodeUnauthorized)
		}
		_, err := l.Service.Followup(t.Context(), l.parent, "nobody", say("go"), message.UserSource())
		wantCode(t, err, subagent.CodeNotResumable)
		_, err = l.Service.Followup(t.Context(), nil, acc.Child, say("go"), message.UserSource())
		wantCode(t, err, subagent.CodeInvalidRequest)
		if err := stranger.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		_, err = l.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{Label: "x", Prompt: say("go"), Parent: stranger})
		wantCode(t, err, subagent.CodeUnauthorized)
		if got := l.said(acc.Child); len(got) != 3 {
			t.Errorf("the child's log: %q", got)
		}
	})
}

// CONT-20, EVT-19, FUP-03: whoever knows the id of a child in the making sends behind what
// the child is made for, and behind the start edge; so it is with a child that is resumed.
func TestNothingOvertakesThePrompt(t *testing.T) {
	inNest(t, subagenttest.Options{}, func(t *testing.T, l *nest) {
		begin := func(start func(), prompt string) {
			gate, sent := make(chan struct{}), make(chan struct{})
			l.Answer(prompt, scripted.Step{subagenttest.Hold(gate), scripted.SayLiteral("done")})
			remove := l.Service.AddHooks(subagent.Hooks{Started: func(subagent.StartEdge) {
				go func() {
					defer close(sent)
					l.followup("kid", "early")
				}()
				synctest.Wait() // it has come as far as it can
			}}, nil)
			start()
			remove()
			<-sent
			close(gate)
			synctest.Wait()
		}
		begin(func() {
			req := l.request("kid", "prompt")
			req.ID = "kid"
			if _, err := l.Service.StartContinuable(t.Context(), spawn.DefaultName, req); err != nil {
				t.Error(err)
			}
		}, "prompt")
		begin(func() { l.followup("kid", "again") }, "again")
		want := []string{
			"user: prompt", "answer: done", "coordinator: early", "answer: noted", "settled: completed",
			"coordinator: again", "answer: done", "coordinator: early", "answer: noted", "settled: completed",
		}
		if d := cmp.Diff(want, l.said("kid")); d != "" {
			t.Errorf("the child's log:\n%s", d)
		}
	})
}
