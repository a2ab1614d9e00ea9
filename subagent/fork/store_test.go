package fork_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func openDB(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	db, err := sqlite.Open(t.Context(), path, sqlite.Options{Synchronous: sqlite.Normal})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// on runs fn on a system over the database, and leaves a closed database behind.
func on(t *testing.T, path string, fn func(s *subagenttest.System, store session.Store)) {
	t.Helper()
	db := openDB(t, path)
	t.Run("on "+filepath.Base(path), func(t *testing.T) {
		s := subagenttest.NewSystem(t, subagenttest.Options{Store: db})
		s.Register(t, fork.New(""))
		fn(s, db)
	})
	if err := db.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// appendTurn stores a completed turn in which a person said text.
func appendTurn(t *testing.T, l *session.Session, n int64, text string) {
	t.Helper()
	m := agent.UserText(text)
	answer := message.Message{ID: agent.NewMessageID(), Role: message.RoleAssistant, Content: []message.Block{message.Text("I see.")}, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: subagenttest.Route, Model: subagenttest.Model})}
	var drafts []session.Draft
	for _, p := range []session.Payload{
		&session.TurnStart{Turn: n}, &session.StepStart{Turn: n, Step: 1}, &session.UserMessage{Message: m},
		&session.AssistantMessage{Turn: n, Step: 1, Message: answer}, &session.StepEnd{Turn: n, Step: 1}, &session.TurnEnd{Turn: n, Kind: session.EndCompleted},
	} {
		drafts = append(drafts, session.Draft{Payload: p})
	}
	if _, err := l.Append(drafts...); err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func sizeOf(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// design § 4, A seed is a Prefix: 100 forks of a parent of 50 MiB add less than
// 5 MiB to the database, and live at the same time in less memory than one copy.
func TestHundredForksOfALargeParent(t *testing.T) {
	const (
		mib   = 1 << 20
		turns = 50
		forks = 100
	)
	path := filepath.Join(t.TempDir(), "s.db")
	var id session.ID
	on(t, path, func(s *subagenttest.System, _ session.Store) {
		parent := s.Parent(t)
		id = parent.ID()
		for n := range int64(turns) {
			appendTurn(t, parent.Session(), n+1, fmt.Sprint(n)+strings.Repeat(" words", mib/6))
		}
	})
	before := sizeOf(t, filepath.Dir(path))
	if before < turns*mib {
		t.Fatalf("the parent takes %d bytes", before)
	}
	var head int64
	on(t, path, func(s *subagenttest.System, store session.Store) {
		h, err := s.Agents.Resume(t.Context(), agent.Resume{ID: id, Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		parent := h.Agent()
		head = parent.Session().Prefix().Len()
		hold := make(chan struct{})
		asking := make(chan struct{}, forks)
		s.Answer("count", scripted.Step{scripted.Func(func(context.Context, *llm.Request) (scripted.Step, error) {
			asking <- struct{}{}
			<-hold
			return say("42"), nil
		})})
		empty := heap()
		var runs []subagent.Run
		for range forks {
			run, _ := start(t, s, parent, "count")
			runs = append(runs, run)
		}
		for range forks {
			<-asking // all of them are in the middle of a model call
		}
		used := heap() - empty
		t.Logf("%d live forks use %d KiB of memory", forks, used>>10)
		if used > turns*mib/2 {
			t.Errorf("%d forks of %d MiB use %d KiB of memory", forks, turns, used>>10)
		}
		close(hold)
		for _, run := range runs {
			if res := subagenttest.Await(t, run); res.StopReason != subagent.StopCompleted {
				t.Fatalf("a fork ended as %+v", res)
			}
		}
		for _, rec := range children(t, store, id) {
			if rec.Meta.Prefix != (session.PrefixRef{ID: id, Len: head}) || rec.Head <= head {
				t.Fatalf("a fork is stored as %+v", rec)
			}
		}
	})
	grown := sizeOf(t, filepath.Dir(path)) - before
	t.Logf("%d forks of %d MiB added %d KiB, %d bytes each", forks, before/mib, grown>>10, grown/forks)
	if grown >= 5*mib {
		t.Errorf("%d forks added %d KiB to the database", forks, grown>>10)
	}
	db := openDB(t, path)
	if l, err := db.List(t.Context(), session.Filter{Parent: id}, session.Page{}); err != nil || len(l.Records) != forks {
		t.Errorf("%d children are stored, %v", len(l.Records), err)
	}
	if err := db.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// logs returns every stored log as it is exported.
func logs(t *testing.T, store session.Store) map[session.ID]string {
	t.Helper()
	l, err := store.List(t.Context(), session.Filter{}, session.Page{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[session.ID]string{}
	for _, rec := range l.Records {
		var b strings.Builder
		for e, err := range store.ReadFrom(t.Context(), rec.Header.ID, 0) {
			if err != nil {
				t.Fatal(err)
			}
			b.Write(e.AppendEnvelope(nil))
			b.WriteByte('\n')
		}
		all[rec.Header.ID] = b.String()
	}
	return all
}

func permutations(ids []session.ID) (all [][]session.ID) {
	if len(ids) < 2 {
		return [][]session.ID{ids}
	}
	for i := range ids {
		rest := slices.Delete(slices.Clone(ids), i, i+1)
		for _, p := range permutations(rest) {
			all = append(all, append([]session.ID{ids[i]}, p...))
		}
	}
	return all
}

// design § 4, A seed is a Prefix: a parent, two forks of it at different cuts and a
// fork of one of those are deleted in every order. What is left reads as before, byte
// for byte, holds against every rule, and can be opened to go on.
func TestDeletedInAnyOrder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.db")
	var ids []session.ID
	on(t, path, func(s *subagenttest.System, _ session.Store) {
		for _, prompt := range []string{"one", "two", "early", "late", "more", "deep"} {
			s.Answer(prompt, say("The answer to "+prompt+"."))
		}
		parent := s.Parent(t)
		turn(t, parent, "one")
		_, early := forked(t, s, parent, "early")
		turn(t, parent, "two")
		run, late := start(t, s, parent, "late")
		if err := late.WhenIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
		turn(t, late, "more")
		_, deep := forked(t, s, late, "deep")
		subagenttest.Await(t, run)
		ids = []session.ID{parent.ID(), early.ID(), late.ID(), deep.ID()}
	})
	template, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, order := range permutations(ids) {
		path := filepath.Join(dir, fmt.Sprint(i, ".db"))
		if err := os.WriteFile(path, template, 0o600); err != nil {
			t.Fatal(err)
		}
		db := openDB(t, path)
		want := logs(t, db)
		if len(want) != 4 {
			t.Fatalf("%d sessions are stored, want 4", len(want))
		}
		for _, id := range order {
			if err := db.Delete(t.Context(), id); err != nil {
				t.Fatalf("order %v: delete %s: %v", order, id, err)
			}
			delete(want, id)
			got := logs(t, db)
			for id, log := range want {
				if got[id] != log {
					t.Fatalf("order %v: without %s the log of %s is another:\n%s", order, id, id, got[id])
				}
			}
			if len(got) != len(want) {
				t.Fatalf("order %v: %d sessions are left, want %d", order, len(got), len(want))
			}
			verified(t, db)
		}
		if err := db.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The last of a chain goes on by itself.
	db := openDB(t, path)
	for _, id := range ids[:3] {
		if err := db.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	on(t, path, func(s *subagenttest.System, store session.Store) {
		h, err := s.Agents.Resume(t.Context(), agent.Resume{ID: ids[3], Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		s.Answer("go on", say("Going on."))
		turn(t, h.Agent(), "go on")
		if got := asked(t, s, ids[3]); len(got) != 11 || got[0] != "one" || got[10] != "go on" {
			t.Errorf("its request holds %q", got)
		}
		verified(t, store)
	})
}

// Creating a fork costs the same whatever the parent's log holds.
func TestCreationDoesNotGrow(t *testing.T) {
	cost := func(turns int64) (allocs float64) {
		s := subagenttest.NewSystem(t, subagenttest.Options{Unwatched: true})
		parent := s.Parent(t)
		for n := range turns {
			appendTurn(t, parent.Session(), n+1, "words")
		}
		seed := &session.Seed{Prefix: parent.Session().Prefix()}
		return testing.AllocsPerRun(20, func() {
			child, err := s.Sessions.Prepare(t.Context(), session.New{ParentSession: parent.ID(), Root: parent.ID(), Seed: seed, Deferred: true})
			if err == nil {
				err = s.Sessions.Abandon(t.Context(), child)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	if small, large := cost(2), cost(2000); large > small+1 {
		t.Errorf("a fork of 12,000 events makes %v allocations, one of 12 events %v", large, small)
	}
}
