package delegate_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// delegates is a call of the tool.
func delegates(prompt string) scripted.Part {
	return scripted.CallLiteral("subagent", fmt.Sprintf(`{"description":"%s","prompt":"%s"}`, prompt, prompt))
}

// run gives a prompt to an agent and waits until it is done.
func run(t *testing.T, a *agent.Agent, prompt string) {
	t.Helper()
	if err := a.Followup(agent.UserText(prompt)); err != nil {
		t.Fatal(err)
	}
	if err := a.WhenIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// results returns the tool results of a log, text by text.
func results(s *session.Session) (texts, codes []string) {
	for e := range s.Events(0) {
		if r, ok := e.Payload().(*session.ToolResult); ok {
			texts = append(texts, message.JoinText(r.Message.Content[0].Content))
			codes = append(codes, r.ErrorCode)
		}
	}
	return texts, codes
}

// TOOL-12, TOOL-36, DRV-18, DRV-19: two delegations of one message overlap; the
// parent's log holds the calls and their results, in the model's order.
func TestTOOL36Log(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: "spawn"})
		hold := make(chan struct{})
		s.Answer("root", scripted.Step{delegates("one"), delegates("two")}, scripted.Step{scripted.SayLiteral("both done")})
		s.Answer("one", scripted.Step{subagenttest.Hold(hold), scripted.SayLiteral("1")})
		s.Answer("two", scripted.Step{scripted.SayLiteral("2"), subagenttest.Hold(hold)})
		root := s.Parent(t)
		done := make(chan struct{})
		go func() { defer close(done); run(t, root, "root") }()
		synctest.Wait()
		if n := s.Adapter.InFlight(); n != 2 {
			t.Errorf("TOOL-12: %d children are at work, want 2", n)
		}
		close(hold)
		<-done
		texts, codes := results(root.Session())
		if !slices.Equal(texts, []string{"1", "2"}) || !slices.Equal(codes, []string{"", ""}) {
			t.Errorf("results = %q %q", texts, codes)
		}
		want := "agent/inbox/spliced turn/start agent/inbox/spliced step/start user/message request/header request/context assistant/message " +
			"tool/call tool/call tool/result tool/result step/end step/start assistant/message step/end turn/end"
		if got := subagenttest.Trace(root.Session()); got != want {
			t.Errorf("log:\n%s\nwant:\n%s", got, want)
		}
	})
}

// DEP-12, TOOL-44: three levels delegate, the fourth sees the tool and is refused.
func TestNested(t *testing.T) {
	store := memory.New()
	in(t, subagenttest.Options{Store: store}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: "spawn"})
		// Each level hands on what the level below it answered.
		handOn := scripted.Step{scripted.Say("{{result:subagent}} <- ")}
		for i := range 3 {
			s.Answer(fmt.Sprint("level ", i), scripted.Step{delegates(fmt.Sprint("level ", i+1))}, handOn)
		}
		s.Answer("level 3", scripted.Step{delegates("level 4")}, handOn)
		root := s.Parent(t)
		run(t, root, "level 0")
		history, _ := root.Session().History()
		got := message.JoinText(history[len(history)-1].Content)
		want := "Error: you work at delegation depth 3 and the limit is 3: no further delegation is possible, do this work yourself <-  <-  <-  <- "
		if got != want {
			t.Errorf("answer = %q, want %q", got, want)
		}
		l, err := store.List(t.Context(), session.Filter{Root: root.ID()}, session.Page{})
		if err != nil {
			t.Fatal(err)
		}
		parent := session.ID("")
		for i, r := range l.Records {
			if r.Header.DelegationDepth != int64(i) || r.Header.ParentSession != parent {
				t.Errorf("session %d: %+v", i, r.Header)
			}
			parent = r.Header.ID
		}
		if len(l.Records) != 4 {
			t.Errorf("%d sessions are stored, want 4", len(l.Records))
		}
		for _, c := range s.Adapter.Calls() {
			if len(c.Request.Tools) != 1 {
				t.Error("DEP-12: the tool is hidden from an agent at the cap")
			}
		}
	})
}

// A cancel at the root ends the whole tree, children first; nothing stays.
func TestCancelTree(t *testing.T) {
	in(t, subagenttest.Options{Store: memory.New()}, func(t *testing.T, s *subagenttest.System) {
		s.Register(t, spawn.New(""))
		mount(t, s, delegate.Config{Provider: "spawn"})
		s.Answer("level 0", scripted.Step{delegates("level 1"), delegates("level 1")})
		s.Answer("level 1", scripted.Step{delegates("leaf"), delegates("leaf")})
		s.Answer("leaf", scripted.Step{scripted.SayLiteral("so far"), scripted.Hang()})
		root := s.Parent(t)
		if err := root.Followup(agent.UserText("level 0")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(s.Agents.List()); n != 7 {
			t.Fatalf("%d agents are live, want 7", n)
		}
		if err := root.Cancel(session.Cause{Kind: session.CauseUser}, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(s.Agents.List()); n != 1 {
			t.Errorf("%d agents are live, want the root", n)
		}
		texts, codes := results(root.Session())
		if !slices.Equal(codes, []string{"ABORTED", "ABORTED"}) || !strings.HasPrefix(texts[0], "Error: the subagent was cancelled") {
			t.Errorf("results = %q %q", texts, codes)
		}
		for _, e := range s.Lifecycle.Edges() {
			if e.End != nil && e.End.StopReason != "aborted" {
				t.Errorf("%s ended as %q", e.Start.ID, e.End.StopReason)
			}
		}
	})
}

// TOOL-43: many delegations of one message over one SQLite store all settle, more
// than the bodies that may overlap.
func TestTOOL43SQLite(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "sessions.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	s := subagenttest.NewSystem(t, subagenttest.Options{Store: store})
	s.Register(t, spawn.New(""))
	mount(t, s, delegate.Config{Provider: "spawn"})
	const n = 24
	var calls scripted.Step
	var want []string
	for i := range n {
		prompt := fmt.Sprint("part ", i)
		calls = append(calls, delegates(prompt))
		want = append(want, fmt.Sprint("answer ", i))
		answer := scripted.Step{scripted.SayLiteral(want[i])}
		if i%6 == 5 {
			answer = scripted.Step{scripted.Fail(llm.CodeAuth, "no")}
			want[i] = "Error: the subagent failed\nDiagnostic: AUTH: no"
		}
		s.Answer(prompt, answer)
	}
	s.Answer("root", calls, scripted.Step{scripted.SayLiteral("all done")})
	root := s.Parent(t)
	run(t, root, "root")
	texts, _ := results(root.Session())
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("results:\n%s", diff)
	}
	l, err := store.List(t.Context(), session.Filter{Parent: root.ID()}, session.Page{})
	if err != nil || len(l.Records) != n {
		t.Fatalf("%d children are stored, %v, want %d", len(l.Records), err, n)
	}
	for _, r := range l.Records {
		if r.Owner != nil {
			t.Errorf("child %s is still owned", r.Header.ID)
		}
		_, events, err := store.Inspect(t.Context(), r.Header.ID)
		if err != nil {
			t.Fatal(err)
		}
		var types []session.Type
		for e, err := range events {
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, e.Type)
		}
		if !slices.Contains(types, session.TypeDescriptor) || types[len(types)-1] != session.TypeTurnEnd {
			t.Errorf("child %s: log = %v", r.Header.ID, types)
		}
	}
}
