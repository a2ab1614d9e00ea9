package fork_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// asked returns the texts of the first request that a session's agent made.
func asked(t *testing.T, s *subagenttest.System, id session.ID) []string {
	t.Helper()
	for _, c := range s.Adapter.Calls() {
		if c.Request.SessionID != string(id) {
			continue
		}
		var texts []string
		for _, m := range c.Request.Messages {
			if m.Source.Kind != message.SourcePlugin {
				texts = append(texts, message.JoinText(m.Content))
			}
		}
		return texts
	}
	t.Fatalf("session %s made no request", id)
	return nil
}

// children returns the stored children of a session, oldest first.
func children(t *testing.T, store session.Store, parent session.ID) []session.Record {
	t.Helper()
	l, err := store.List(t.Context(), session.Filter{Parent: parent}, session.Page{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Records
}

// FORK-01…05, P40, S33, DRV-19: delegations by a model's own call, in its first turn
// and in its second. The turn that delegates is never part of what the child gets.
func TestFORK02DelegatedMidTurn(t *testing.T) {
	store := memory.New()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		if _, err := delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: fork.DefaultName}, nil); err != nil {
			t.Fatal(err)
		}
		call := scripted.Step{scripted.SayLiteral("I delegate."), scripted.CallLiteral("subagent", `{"description":"count","prompt":"count"}`)}
		s.Answer("one", call, say("first done"))
		s.Answer("two", call, say("second done"))
		s.Answer("count", say("42"))
		parent := s.Parent(t)
		turn(t, parent, "one")
		cut := parent.Session().Head()
		turn(t, parent, "two")

		kids := children(t, store, parent.ID())
		if len(kids) != 2 {
			t.Fatalf("%d children are stored, want 2", len(kids))
		}
		fresh, second := kids[0], kids[1]
		if fresh.Header.SeedLength != 0 || fresh.Meta.Prefix.Len != 0 || strings.Contains(string(fresh.Header.AppendJSON(nil)), "seedLength") {
			t.Errorf("FORK-03: the child of a first turn has header %s and prefix %+v", fresh.Header.AppendJSON(nil), fresh.Meta.Prefix)
		}
		if diff := cmp.Diff([]string{"count"}, asked(t, s, fresh.Header.ID)); diff != "" {
			t.Errorf("FORK-03: its request:\n%s", diff)
		}
		if second.Header.SeedLength != cut || second.Meta.Prefix != (session.PrefixRef{ID: parent.ID(), Len: cut}) {
			t.Errorf("FORK-05: header %+v, prefix %+v, want %d events of %s", second.Header, second.Meta.Prefix, cut, parent.ID())
		}
		if diff := cmp.Diff([]string{"one", "I delegate.", "", "first done", "count"}, asked(t, s, second.Header.ID)); diff != "" {
			t.Errorf("FORK-01: the request of the second child:\n%s", diff)
		}
		for _, kid := range kids {
			if types := logTypes(t, store, kid.Header.ID); strings.Contains(types, "session/end-seed") != (kid.Header.SeedLength > 0) {
				t.Errorf("P40: the log of a child with seedLength %d is %s", kid.Header.SeedLength, types)
			}
		}
		verified(t, store)
	})
}

func logTypes(t *testing.T, store session.Store, id session.ID) string {
	t.Helper()
	var types []string
	for e, err := range store.ReadFrom(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, string(e.Type))
	}
	return strings.Join(types, " ")
}

// verified holds every stored log against the rules.
func verified(t *testing.T, store session.Store) {
	t.Helper()
	reg, err := session.NewRegistry(t.Context(), session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := store.List(t.Context(), session.Filter{}, session.Page{})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range l.Records {
		rec, events, err := store.Inspect(t.Context(), row.Header.ID)
		if err == nil {
			_, err = reg.Verify(rec, events)
		}
		if err != nil {
			t.Errorf("session %s: %v", row.Header.ID, err)
		}
	}
}

// C385, DES-18, DES-24, DES-25, FORK-07, LIST-41: a fork of a fork. Before its first
// turn it has no identity, for an ancestor's is none, and then its own.
func TestForkOfAFork(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("root", say("I am the root."))
		s.Answer("first", say("I am the first."))
		s.Answer("more", say("The first again."))
		s.Answer("second", scripted.Step{scripted.Empty()})
		units, err := projection.NewRegistry(projection.BuiltIn()...)
		if err != nil {
			t.Fatal(err)
		}
		identity := func(l *session.Session) string {
			snap, err := units.Fold(t.Context(), l, session.CellIdentity)
			if err != nil {
				t.Fatal(err)
			}
			return string(snap.AppendJSON(nil))
		}
		parent := s.Parent(t)
		turn(t, parent, "root")
		labelled := func(of *agent.Agent, prompt, label string) (subagent.Run, *agent.Agent) {
			req := subagenttest.Request(of, prompt)
			req.Label = &label
			run := s.Start(t, t.Context(), fork.DefaultName, req)
			a, _ := run.Local()
			return run, a
		}
		firstRun, first := labelled(parent, "first", "the first")
		synctest.Wait()
		turn(t, first, "more")

		unborn := ""
		s.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
			unborn = identity(a.Session())
			return nil
		}})
		secondRun, second := labelled(first, "second", "the second")
		res := subagenttest.Await(t, secondRun)
		log := second.Session()
		if res.StopReason != subagent.StopCompleted || len(res.Output) != 0 {
			t.Errorf("FORK-07: a grandchild that says nothing ended as %+v", res)
		}
		if diff := cmp.Diff([]string{"root", "I am the root.", "first", "I am the first.", "more", "The first again.", "second"}, asked(t, s, log.ID())); diff != "" {
			t.Errorf("its request:\n%s", diff)
		}
		if unborn != "null" {
			t.Errorf("before its first turn it goes by %s", unborn)
		}
		if got := identity(log); !strings.Contains(got, `"label":"the second"`) {
			t.Errorf("it goes by %s", got)
		}
		if d := log.Descriptor(); d == nil || *d.Descriptor.Label != "the second" {
			t.Errorf("DES-18: its descriptor is %+v", d)
		}
		if h := log.Header(); h.ParentSession != first.ID() || h.DelegationDepth != 2 || log.Root() != parent.ID() ||
			log.Meta().Prefix != (session.PrefixRef{ID: first.ID(), Len: first.Session().Head()}) {
			t.Errorf("header %+v, root %s, prefix %+v", h, log.Root(), log.Meta().Prefix)
		}
		if n, _, _ := log.LastTurn(); n != 4 {
			t.Errorf("DES-25: its turn is number %d, want 4", n)
		}

		// A fork in its first turn hands on what it has itself.
		third, grand := labelled(first, "second", "the third")
		hold := make(chan struct{})
		s.Answer("busy", scripted.Step{subagenttest.Hold(hold)})
		busyRun, busy := labelled(parent, "busy", "busy")
		synctest.Wait()
		deepRun, deep := labelled(busy, "second", "deep")
		if got, want := deep.Session().Meta().Prefix, (session.PrefixRef{ID: parent.ID(), Len: busy.Session().Header().SeedLength}); got != want {
			t.Errorf("the prefix of the child of a first turn is %+v, want %+v", got, want)
		}
		close(hold)
		for _, run := range []subagent.Run{deepRun, busyRun, third, firstRun} {
			subagenttest.Await(t, run)
		}
		if id := identity(grand.Session()); !strings.Contains(id, "the third") {
			t.Errorf("a sibling goes by %s", id)
		}
	})
}

// FORK-06, COMP-07: the conversation passes, and none of the parent's own tools,
// restrictions and sections; what the parent called stays in the history.
func TestFORK06ConversationAlone(t *testing.T) {
	def := func(name string) tool.Definition {
		return tool.Definition{Name: name, Parameters: []byte(`{"type":"object"}`), Execute: func(context.Context, *tool.Call) (any, error) { return name + " ran", nil }}
	}
	in(t, subagenttest.Options{Tools: []tool.Definition{def("shared"), def("hidden")}}, func(t *testing.T, s *subagenttest.System) {
		parent := s.Parent(t)
		if _, err := parent.Tools().Register(def("own")); err != nil {
			t.Fatal(err)
		}
		if err := parent.Tools().Restrict(tool.Filter{Deny: &[]string{"hidden"}}); err != nil {
			t.Fatal(err)
		}
		s.Answer("one", scripted.Step{scripted.Call("own", "{}")}, say("the first answer"))
		s.Answer("count", scripted.Step{scripted.Call("own", "{}"), scripted.Call("hidden", "{}")}, say("42"))
		turn(t, parent, "one")
		_, log := forked(t, s, parent, "count")
		var results []string
		for e := range log.Events(0) {
			if p, ok := e.Payload().(*session.ToolResult); ok {
				results = append(results, p.ErrorCode)
			}
		}
		if diff := cmp.Diff([]string{"", tool.CodeUnknownTool, ""}, results); diff != "" {
			t.Errorf("codes of the results, the parent's first:\n%s", diff)
		}
	})
}

// design § 4, A seed is a Prefix: the bytes of an inherited event are the parent's
// own, however many forks there are and however deep they lie.
func TestEventsAreShared(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("one", say("the first answer"))
		s.Answer("count", say("42"))
		parent := s.Parent(t)
		turn(t, parent, "one")
		run, child := start(t, s, parent, "count")
		synctest.Wait()
		deeper, grandchild := start(t, s, child, "count")
		for _, l := range []*session.Session{child.Session(), grandchild.Session()} {
			for seq := range parent.Session().Head() {
				a, _ := parent.Session().Event(seq)
				b, _ := l.Event(seq)
				if unsafe.SliceData(a.Data()) != unsafe.SliceData(b.Data()) || a.Payload() != b.Payload() {
					t.Errorf("event %d was copied", seq)
				}
			}
		}
		subagenttest.Await(t, deeper)
		subagenttest.Await(t, run)
	})
}

// design § 4, The log is the truth: a fork's request follows from its log. The header
// of the parent's requests holds for it, and is stored once for all forks.
func TestRequestIsTheLogs(t *testing.T) {
	in(t, subagenttest.Options{}, func(t *testing.T, s *subagenttest.System) {
		s.Answer("one", say("the first answer"))
		s.Answer("count", say("42"))
		parent := s.Parent(t)
		turn(t, parent, "one")
		_, log := forked(t, s, parent, "count")
		var req *llm.Request
		for _, c := range s.Adapter.Calls() {
			if c.Request.SessionID == string(log.ID()) {
				req = c.Request
			}
		}
		history, _ := log.History()
		if diff := cmp.Diff(history[:len(history)-1], req.Messages); diff != "" {
			t.Errorf("messages:\n%s", diff)
		}
		hdr := log.RequestHeader()
		if hdr == nil || hdr.System != req.System || hdr.Config.Model != req.Model {
			t.Errorf("the header %+v is not the request's", hdr)
		}
		for e := range log.Events(log.Header().SeedLength) {
			if e.Type == session.TypeRequestHeader {
				t.Error("a header that did not change was logged again")
			}
		}
	})
}
