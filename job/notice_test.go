package job_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/job"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// D43, L7: an idle owner is woken by its one notice, a busy one takes it into its
// open turn.
func TestD43Notice(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.say(a, "begin")
		idle := w.start(a, "while idle")
		idle.finish()
		wantNotices(t, a, "turn 2: test-1")
		busy := w.start(a, "while busy")
		w.say(a, "hold")
		busy.finish()
		wantNotices(t, a, "turn 2: test-1", "waits: test-2")
		close(w.hold)
		synctest.Wait()
		wantNotices(t, a, "turn 2: test-1", "turn 3: test-2")
		if turn, open, _ := a.Session().LastTurn(); turn != 3 || open {
			t.Errorf("turn %d, open %t: the notice of a busy owner opened a turn", turn, open)
		}
	})
}

// D43, H9: at most 3 wakes without user input; what comes later is seen with the
// next one. A notice that an open turn took is no wake.
func TestD43WakeBound(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.say(a, "begin")
		for range 4 {
			w.start(a, "alone").finish()
		}
		wantNotices(t, a, "turn 2: test-1", "turn 3: test-2", "turn 4: test-3", "waits: test-4")
		busy := w.start(a, "busy")
		w.say(a, "hold") // user input: it takes what waits, and wakes are granted again
		busy.finish()
		close(w.hold)
		synctest.Wait()
		for range 4 {
			w.start(a, "alone").finish()
		}
		wantNotices(t, a, "turn 2: test-1", "turn 3: test-2", "turn 4: test-3", "turn 5: test-4", "turn 5: test-5",
			"turn 6: test-6", "turn 7: test-7", "turn 8: test-8", "waits: test-9")
	})
}

// D43: the last wake waits for the last job, so that no notice of a batch that is
// larger than the bound is left unseen.
func TestD43Batch(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.say(a, "begin")
		var gates []gate
		for i := range 6 {
			gates = append(gates, w.start(a, fmt.Sprint(i)))
		}
		quiet := make(chan error, 1)
		go func() { quiet <- w.jobs.WhenQuiet(t.Context(), a) }()
		for _, g := range gates[:5] {
			g.finish()
		}
		wantNotices(t, a, "turn 2: test-1", "turn 3: test-2", "waits: test-3", "waits: test-4", "waits: test-5")
		select {
		case err := <-quiet:
			t.Fatalf("quiet with a job at work: %v", err)
		default:
		}
		gates[5].finish()
		if err := <-quiet; err != nil {
			t.Error(err)
		}
		wantNotices(t, a, "turn 2: test-1", "turn 3: test-2", "turn 4: test-3", "turn 4: test-4", "turn 4: test-5", "turn 4: test-6")
	})
}

// A job that begins in the turn which somebody waits for is waited for too.
func TestWhenQuietSeesNewJobs(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.start(a, "before").finish()
		w.say(a, "hold")
		quiet := make(chan error, 1)
		go func() { quiet <- w.jobs.WhenQuiet(t.Context(), a) }()
		synctest.Wait()
		g := w.start(a, "begun in the turn")
		close(w.hold)
		synctest.Wait()
		select {
		case err := <-quiet:
			t.Errorf("quiet with a job at work: %v", err)
		default:
		}
		g.finish()
		if err := <-quiet; err != nil {
			t.Error(err)
		}
	})
}

// All at once, many times: every job is told exactly once, and nothing is left
// waiting once it is quiet.
func TestD43Concurrent(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		for range 20 {
			w.say(a, "begin")
			var gates []gate
			for range 8 {
				gates = append(gates, w.start(a, "x"))
			}
			for _, g := range gates {
				g.open <- job.Outcome{State: job.Completed, Text: "r"}
			}
			if err := w.jobs.WhenQuiet(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[message.ID]int{}
		for e := range a.Session().Events(0) {
			if p, ok := e.Payload().(*session.UserMessage); ok && p.Message.Source.Details().Plugin == job.Plugin {
				seen[p.Message.ID]++
			}
		}
		for i := range 160 {
			if n := seen[message.ID(fmt.Sprintf("job:test-%d", i+1))]; n != 1 {
				t.Errorf("job %d was told %d times", i+1, n)
			}
		}
		if left := a.Session().Inbox(session.NextStep); len(left) != 0 {
			t.Errorf("%d notices wait", len(left))
		}
		if got := w.jobs.List(a); len(got) != 100 {
			t.Errorf("%d ended jobs are kept", len(got))
		}
		if r := w.call(a, job.OutputTool, `{"job_id":"test-1"}`); !r.IsError || !contains(r.Content, "not kept any more") {
			t.Errorf("the oldest: %+v", r)
		}
	})
}

// BG-14: an owner's disposal kills its jobs, whatever they do meanwhile, and waits
// for them; a job that comes to its end tells a closing owner nothing.
func TestBG14OwnerEnds(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a, b := w.Parent(t), w.Parent(t)
		slow, why := make(chan struct{}), ""
		if _, err := w.jobs.Start(a, job.Spec{Kind: "test", Run: func(ctx context.Context) job.Outcome {
			<-ctx.Done()
			<-slow
			why = context.Cause(ctx).Error()
			return job.Outcome{State: job.Killed}
		}}); err != nil {
			t.Fatal(err)
		}
		w.start(a, "second")
		other := w.start(b, "another owner's")
		gone := make(chan error, 1)
		go func() { gone <- a.Dispose(context.WithoutCancel(t.Context()), true) }()
		synctest.Wait()
		select {
		case err := <-gone:
			t.Fatalf("the owner is gone before its job: %v", err)
		default:
		}
		close(slow)
		if err := <-gone; err != nil || why == "" {
			t.Errorf("%v, killed with %q", err, why)
		}
		wantNotices(t, a)
		if i, err := w.jobs.Get(b, other.id); err != nil || i.State != job.Running {
			t.Errorf("another owner's job: %+v, %v", i, err)
		}
		// The end of the process ends them all.
		w.jobs.CloseAdmission()
		if _, err := w.jobs.Start(b, job.Spec{Kind: "test", Run: func(context.Context) job.Outcome { return job.Outcome{} }}); err == nil {
			t.Error("a job was started while the registry closes")
		}
		other.finish()
		wantNotices(t, b)
		w.jobs.Close()
	})
}

// A delegated agent does not end its turn while its jobs run: its answer is that of
// the turn's last step, which has seen their notices. Cancelled, it does not wait.
func TestChildHolds(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		parent := w.Parent(t)
		child := w.NewAgent(t, agent.Create{Options: subagenttest.ParentOptions(), Owner: parent})
		one, two := w.start(child, "one"), w.start(child, "two")
		w.say(child, "begin")
		if child.Status() != agent.Running {
			t.Fatal("the child ended its turn while jobs of it run")
		}
		one.finish()
		wantNotices(t, child, "turn 1: test-1")
		two.finish()
		wantNotices(t, child, "turn 1: test-1", "turn 1: test-2")
		if child.Status() != agent.Idle {
			t.Error("the child does not end its turn")
		}
		if err := w.jobs.Hold(parent); err != nil {
			t.Fatal(err)
		}
		held := w.start(parent, "of a root that is held")
		w.say(parent, "begin")
		if parent.Status() != agent.Running {
			t.Error("the root does not hold its turn")
		}
		held.finish()
		wantNotices(t, parent, "turn 1: test-1")
		w.start(child, "three")
		w.say(child, "again")
		if err := child.Cancel(session.Cause{Kind: session.CauseParent}, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if child.Status() != agent.Idle {
			t.Error("a cancelled child waits for its job")
		}
	})
}

func contains(content []message.Block, text string) bool {
	return strings.Contains(message.JoinText(content), text)
}

// core D38: what a summary must not make an owner forget is which of its jobs are not
// over.
func TestRestate_D38(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		a, b := w.Parent(t), w.Parent(t)
		if got := w.jobs.Restate(a); got != "" {
			t.Errorf("without jobs: %q", got)
		}
		one, two := w.start(a, "count the doors"), w.start(a, "")
		other := w.start(b, "somebody else's")
		one.finish()
		if _, err := w.jobs.Kill(a, two.id, ""); err != nil {
			t.Fatal(err)
		}
		three := w.start(a, "count the keys")
		got := w.jobs.Restate(a)
		want := "Background jobs that you started and that are not over:\n- " + three.id + " (count the keys): running\n" +
			"You get a notice when one of them is over; then job_output reads its result. job_kill ends one before."
		synctest.Wait()
		if now := w.jobs.Restate(a); now != want {
			t.Errorf("said again:\n%s\nwant\n%s", now, want)
		}
		if !strings.Contains(got, two.id+": stopping") && got != want {
			t.Errorf("while it stops:\n%s", got)
		}
		three.finish()
		other.finish()
	})
}

// core D38: a result that a compaction shortened stands for the one it replaced: it
// names no job of the heir of a conversation, though it lies in the heir's own part.
func TestShortenedResultNamesNoJob_D38(t *testing.T) {
	in(t, subagenttest.Options{}, job.Config{}, func(t *testing.T, w *world) {
		step := func(p session.Payload) session.Draft { return session.Draft{Payload: p} }
		call := message.ToolCall("c1", "subagent", "{}")
		result := func(text string) *session.ToolResult {
			return &session.ToolResult{Turn: 1, Step: 1, Meta: job.StartedMeta("subagent-1"), Message: message.Message{
				ID: agent.NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.ToolResult("c1", []message.Block{message.Text(text)}, false)},
				Source: message.NewSource(message.SourceTool, message.SourceDetails{CallID: "c1"}),
			}}
		}
		parent := w.Parent(t)
		first, err := parent.Session().Append(
			step(&session.TurnStart{Turn: 1}), step(&session.StepStart{Turn: 1, Step: 1}),
			step(&session.AssistantMessage{Turn: 1, Step: 1, Message: message.Message{
				ID: agent.NewMessageID(), Role: message.RoleAssistant, Content: []message.Block{call}, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "p", Model: "m"}),
			}}),
			step(&session.ToolCall{Turn: 1, Step: 1, CallID: "c1", Name: "subagent", Arguments: "{}"}), step(result("a long result")),
			step(&session.StepEnd{Turn: 1, Step: 1}), step(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}),
		)
		if err != nil {
			t.Fatal(err)
		}
		heir := w.NewAgent(t, agent.Create{Session: session.New{Seed: &session.Seed{Prefix: parent.Session().Prefix()}}, Options: subagenttest.ParentOptions()})
		at := first + 4
		if _, err := heir.Session().Append(
			step(&session.TurnStart{Turn: 2}),
			session.Draft{Payload: result("short"), Op: session.SurfaceOp{Kind: session.OpReplace, Start: at, End: at}, Sources: []int64{at}},
			step(&session.TurnEnd{Turn: 2, Kind: session.EndCompleted}),
		); err != nil {
			t.Fatal(err)
		}
		if n, err := w.jobs.Recover(heir, false); n != 0 || err != nil {
			t.Errorf("the heir was told that %d jobs are lost, %v", n, err)
		}
		if _, err := w.jobs.Get(heir, "subagent-1"); err == nil || !strings.Contains(err.Error(), "belongs to the agent whose conversation you began with") {
			t.Errorf("the parent's job is %v", err)
		}
	})
}
