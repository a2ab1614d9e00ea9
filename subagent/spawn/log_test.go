package spawn_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// spy records what a store is asked to create, and fails on demand.
type spy struct {
	*memory.Store
	fail func() error

	mu      sync.Mutex // guards created
	created map[session.ID][]session.Type
}

func newSpy() *spy { return &spy{Store: memory.New(), created: map[session.ID][]session.Type{}} }

func (s *spy) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	if s.fail != nil && h.Origin == session.OriginSubagent {
		if err := s.fail(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	for _, e := range first {
		s.created[h.ID] = append(s.created[h.ID], e.Type)
	}
	s.mu.Unlock()
	return s.Store.Create(ctx, h, m, first, cells)
}

// stored returns the subagents that the store lists.
func (s *spy) stored(t *testing.T) []session.ID {
	t.Helper()
	l, err := s.List(t.Context(), session.Filter{Origin: session.OriginSubagent}, session.Page{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []session.ID
	for _, r := range l.Records {
		ids = append(ids, r.Header.ID)
	}
	return ids
}

// DES-01, DES-20, DES-21, P19: where the descriptor stands, in the log and in the
// store.
func TestDES21Placement(t *testing.T) {
	store := newSpy()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("hello", say("hi"))
		req := subagenttest.Request(s.Parent(t), "hello")
		req.Label = ptr("greet")
		run := start(t, s, req)
		log := child(t, run).Session()
		subagenttest.Await(t, run)
		want := "agent/inbox/spliced turn/start subagent/descriptor agent/inbox/spliced step/start user/message user/message " +
			"request/header request/context assistant/message step/end turn/end"
		if got := subagenttest.Trace(log); got != want {
			t.Errorf("log:\n%s\nwant:\n%s", got, want)
		}
		for e := range log.Events(0) {
			if e.Type != session.TypeDescriptor {
				continue
			}
			if e.Op != session.OpNone || e.Ignorable {
				t.Errorf("DES-20: the descriptor has op %v, ignorable %v", e.Op, e.Ignorable)
			}
			d := e.Payload().(*session.DescriptorEvent).Descriptor
			if diff := cmp.Diff(session.Descriptor{Version: 2, Mode: "one-shot", Provider: "spawn", Label: ptr("greet")}, d); diff != "" {
				t.Errorf("descriptor:\n%s", diff)
			}
		}
		first := store.created[run.ID()]
		if !slices.Contains(first, session.TypeTurnStart) || !slices.Contains(first, session.TypeDescriptor) {
			t.Errorf("the row was created with %v, want the turn's start and the descriptor in that batch", first)
		}
		for _, m := range s.Adapter.Calls()[0].Request.Messages {
			if strings.Contains(message.JoinText(m.Content), "one-shot") {
				t.Error("DES-20: the descriptor reached the model")
			}
		}
		rec, events, err := store.Inspect(t.Context(), run.ID())
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		for _, err := range events {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != log.Head() || rec.Meta.Root != rec.Header.ParentSession {
			t.Errorf("%d events are stored of %d, root %s", n, log.Head(), rec.Meta.Root)
		}
	})
}

// P19, DRV-12: a turn whose every step is rejected has its descriptor all the same.
func TestP19Rejected(t *testing.T) {
	store := newSpy()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		s.Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error { p.Reject(); return nil }})
		run := start(t, s, subagenttest.Request(s.Parent(t), "hello"))
		log := child(t, run).Session()
		res := subagenttest.Await(t, run)
		if res.StopReason != subagent.StopRefusal || len(res.Output) != 0 || res.Output == nil {
			t.Errorf("result = %+v, want refusal without output", res)
		}
		if got, want := subagenttest.Trace(log), "agent/inbox/spliced turn/start subagent/descriptor agent/inbox/spliced turn/end"; got != want {
			t.Errorf("log:\n%s\nwant:\n%s", got, want)
		}
		if ids := store.stored(t); len(ids) != 1 || !slices.Contains(store.created[run.ID()], session.TypeDescriptor) {
			t.Errorf("stored = %v, created with %v", ids, store.created[run.ID()])
		}
	})
}

// DES-22, DRV-08: exactly once, though the run has several turns.
func TestDES22Once(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		hold := make(chan struct{})
		s.Answer("hello", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("first")})
		s.Answer("more", say("second"))
		run := start(t, s, subagenttest.Request(s.Parent(t), "hello"))
		a := child(t, run)
		synctest.Wait()
		if err := a.Followup(agent.UserText("more")); err != nil {
			t.Fatal(err)
		}
		close(hold)
		res := subagenttest.Await(t, run)
		if got := message.JoinText(res.Output); got != "second" {
			t.Errorf("output = %q, want that of the last turn", got)
		}
		trace := subagenttest.Trace(a.Session())
		if n := strings.Count(trace, "subagent/descriptor"); n != 1 || strings.Count(trace, "turn/start") != 2 {
			t.Errorf("%d descriptors in:\n%s", n, trace)
		}
	})
}

// DES-29, DRV-07, DRV-05, CAN-01, CAN-02: cancelled at every place of Start where
// somebody looks. A child whose turn never opened leaves no row.
func TestDES29CancelledEverywhere(t *testing.T) {
	store := newSpy()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		stop := errors.New("stop")
		parent := s.Parent(t)
		if err := parent.Session().Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Answer("hello", say("hi"))
		var announced []session.ID
		s.Sessions.AddHooks(session.Hooks{Created: func(l *session.Session) error { announced = append(announced, l.ID()); return nil }})
		unborn, unopened := 0, 0
		for n := 1; ; n++ {
			announced = nil
			ctx := subagenttest.NewTripwire(t.Context(), n, stop)
			run, err := s.Service.Start(ctx, "spawn", subagenttest.Request(parent, "hello"))
			if err != nil {
				if !errors.Is(err, stop) {
					t.Errorf("look %d: %v", n, err)
				}
				if len(announced) == 0 {
					unborn++
				}
			} else {
				log := child(t, run).Session()
				res := subagenttest.Await(t, run)
				trace := subagenttest.Trace(log)
				opened := strings.Contains(trace, "turn/start")
				stored := slices.Contains(store.stored(t), run.ID())
				switch {
				case stored != opened:
					t.Errorf("look %d: stored %v, log: %s", n, stored, trace)
				case !opened && (res.StopReason != subagent.StopAborted || len(res.Output) != 0):
					t.Errorf("look %d: result = %+v, want aborted with an empty output", n, res)
				case trace == "" && res.StopReason == subagent.StopAborted:
					unopened++ // DRV-07: the prompt was never submitted
				}
			}
			synctest.Wait()
			if live := s.Agents.List(); len(live) != 1 {
				t.Errorf("look %d: %d agents are live, want the parent", n, len(live))
			}
			for _, id := range store.stored(t) {
				if rec, _, err := store.Inspect(t.Context(), id); err != nil || rec.Owner != nil {
					t.Errorf("look %d: child %s is still owned: %v, %v", n, id, rec.Owner, err)
				}
			}
			if !ctx.Tripped() {
				break
			}
		}
		if unborn == 0 || unopened == 0 {
			t.Errorf("%d starts failed without an announcement, %d runs never saw their prompt: want both", unborn, unopened)
		}
	})
}

// CAN-18: a cancel from the inbox notification. Whether the turn opens is a race;
// the outcome is not, and what has no turn has no row.
func TestCAN18CancelledFromInbox(t *testing.T) {
	store := newSpy()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		s.Answer("hello", scripted.Step{scripted.Hang()})
		var cancel context.CancelFunc
		direct := false
		s.Agents.AddHooks(agent.Hooks{Inbox: func(a *agent.Agent, e agent.InboxEvent) {
			if a.Owner() == nil || e.Change != agent.InboxEnqueue {
				return
			}
			if direct {
				// Somebody else's cancel, which the run hears of from the log alone.
				if err := a.Cancel(session.Cause{Kind: session.CauseUser}, false); err != nil {
					t.Error(err)
				}
				return
			}
			cancel()
		}})
		for i := range 40 {
			direct = i%2 == 0
			var ctx context.Context
			ctx, cancel = context.WithCancel(t.Context())
			run := s.Start(t, ctx, "spawn", subagenttest.Request(parent, "hello"))
			log := child(t, run).Session()
			res := subagenttest.Await(t, run)
			if res.StopReason != subagent.StopAborted {
				t.Errorf("result = %+v, want aborted; log: %s", res, subagenttest.Trace(log))
			}
			if opened := strings.Contains(subagenttest.Trace(log), "turn/start"); opened != slices.Contains(store.stored(t), run.ID()) {
				t.Errorf("opened %v and stored disagree", opened)
			}
			cancel()
		}
	})
}

// Every append of a child can be refused: nothing hangs, nothing is left, and what
// failed is told on the channel where it belongs (DRV-09, DRV-17, RUN-06, RUN-10).
func TestEveryAppendRefused(t *testing.T) {
	refused := errors.New("refused by the test")
	approver := silent{t}
	for _, c := range []struct {
		typ    session.Type
		start  bool                // Start fails
		lost   bool                // the result fails
		reason subagent.StopReason // else, with a diagnostic that says
		says   string
	}{
		{typ: session.TypeSandboxMode, start: true},
		{typ: session.TypeApprovalPolicy, start: true},
		{typ: session.TypeInboxSpliced, lost: true},
		{typ: session.TypeTurnStart, reason: subagent.StopError, says: refused.Error()},
		{typ: session.TypeDescriptor, reason: subagent.StopError, says: refused.Error()},
		{typ: session.TypeStepStart, reason: subagent.StopError, says: refused.Error()},
		{typ: session.TypeUserMessage, reason: subagent.StopError, says: refused.Error()},
		{typ: session.TypeRequestHeader, reason: subagent.StopError, says: refused.Error()},
		{typ: session.TypeAssistantMessage, reason: subagent.StopError, says: refused.Error()},
		{typ: session.TypeStepEnd, reason: subagent.StopError, says: "could not be recorded"},
		{typ: session.TypeTurnEnd, reason: subagent.StopError, says: "could not be recorded"},
	} {
		t.Run(string(c.typ), func(t *testing.T) {
			store := newSpy()
			o := subagenttest.Options{Store: store, Approver: approver, Validators: []session.Validator{func(h *session.Header, e session.Event) error {
				if h.Origin == session.OriginSubagent && e.Type == c.typ {
					return refused
				}
				return nil
			}}}
			in(t, o, func(t *testing.T, s *subagenttest.System) {
				s.Answer("hello", say("hi"))
				parent := s.Parent(t)
				if _, err := parent.Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: "read-only"}}); err != nil {
					t.Fatal(err)
				}
				run, err := s.Service.Start(t.Context(), "spawn", subagenttest.Request(parent, "hello"))
				if c.start {
					if !errors.Is(err, refused) {
						t.Fatalf("Start = %v, want the refusal", err)
					}
				} else if err != nil {
					t.Fatal(err)
				} else {
					log := child(t, run).Session()
					res, err := run.Wait(t.Context())
					switch {
					case c.lost != (err != nil), err != nil && !errors.Is(err, refused):
						t.Errorf("Wait = %+v, %v, want lost %v", res, err, c.lost)
					case !c.lost && (res.StopReason != c.reason || !strings.Contains(res.Diagnostic, c.says)):
						t.Errorf("result = %+v, want %s with a diagnostic of %q", res, c.reason, c.says)
					}
					if live, ok := s.Agents.Get(run.ID()); !ok || live.ID() != run.ID() {
						t.Error("DRV-09: the child is gone before Close")
					}
					if err := run.Close(t.Context()); err != nil {
						t.Errorf("Close = %v", err)
					}
					opened := strings.Contains(subagenttest.Trace(log), "turn/start")
					if stored := len(store.stored(t)) == 1; stored != opened {
						t.Errorf("DES-29: stored %v; log: %s", stored, subagenttest.Trace(log))
					}
				}
				synctest.Wait()
				if n := len(s.Agents.List()); n != 1 {
					t.Errorf("%d agents are live, want the parent", n)
				}
				if n := len(s.Sessions.List()); n != 1 {
					t.Errorf("%d sessions are live, want the parent's", n)
				}
			})
		})
	}
}

// RUN-10, RUN-11, DRV-10: a store that fails is a failed turn with its reason on the
// result, and a failed release on Close; nothing stays.
func TestRUN10StoreFails(t *testing.T) {
	broken := errors.New("the disk is gone")
	store := newSpy()
	store.fail = func() error { return broken }
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("hello", say("hi"))
		run := start(t, s, subagenttest.Request(s.Parent(t), "hello"))
		res, err := run.Wait(t.Context())
		if err != nil || res.StopReason != subagent.StopError || !strings.Contains(res.Diagnostic, broken.Error()) {
			t.Errorf("Wait = %+v, %v, want error with the store's word", res, err)
		}
		for range 2 {
			if err := run.Close(t.Context()); !errors.Is(err, broken) {
				t.Errorf("Close = %v, want the store's failure", err)
			}
		}
		if after, err := run.Wait(t.Context()); err != nil || !cmp.Equal(res, after) {
			t.Errorf("Wait after Close = %+v, %v, want the same result", after, err)
		}
		if n := len(s.Agents.List()) + len(s.Sessions.List()); n != 2 {
			t.Error("RUN-11: the child was not released")
		}
	})
}

// DRV-10: a foreground run makes no flush of its own, so a flush hook that fails
// changes nothing.
func TestDRV10FlushHook(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		s.Sessions.AddHooks(session.Hooks{Flush: func(context.Context, *session.Session) error { return errors.New("no") }})
		s.Answer("hello", say("hi"))
		if res := subagenttest.Await(t, start(t, s, subagenttest.Request(s.Parent(t), "hello"))); res.StopReason != subagent.StopCompleted {
			t.Errorf("result = %+v", res)
		}
	})
}

// FORK-12, DRV-18, COMP-33: a spawned child starts empty, siblings are apart, and
// the parent's log is its own.
func TestDRV18Siblings(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		s.Answer("earlier", say("the parent's answer"))
		if err := parent.Followup(agent.UserText("earlier")); err != nil {
			t.Fatal(err)
		}
		if err := parent.WhenIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
		head := parent.Session().Head()
		s.Answer("one", say("1"))
		s.Answer("two", say("2"))
		a, b := start(t, s, subagenttest.Request(parent, "one")), start(t, s, subagenttest.Request(parent, "two"))
		if child(t, a).Session() == child(t, b).Session() {
			t.Error("siblings share a session")
		}
		ra, rb := subagenttest.Await(t, a), subagenttest.Await(t, b)
		if message.JoinText(ra.Output)+message.JoinText(rb.Output) != "12" {
			t.Errorf("outputs = %v, %v", ra.Output, rb.Output)
		}
		if parent.Session().Head() != head {
			t.Errorf("COMP-33: the parent's log grew: %s", subagenttest.Trace(parent.Session()))
		}
		for _, c := range s.Adapter.Calls() {
			if c.Request.SessionID == string(parent.ID()) {
				continue
			}
			for _, m := range c.Request.Messages {
				if strings.Contains(message.JoinText(m.Content), "the parent's answer") {
					t.Error("FORK-12: a spawned child sees its parent's history")
				}
			}
		}
		if err := parent.Followup(agent.UserText("earlier")); err != nil {
			t.Fatal(err)
		}
	})
}

// silent is an approver that must not be asked.
type silent struct{ t *testing.T }

func (a silent) Approve(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	a.t.Error("COMP-25: the approver was asked")
	return tool.ApprovalAllowedOnce, nil
}
