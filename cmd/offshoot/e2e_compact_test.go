//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

// newLongWorld is a world whose model has a window of 10,000 tokens by the
// configuration, and answers to every prompt with reads of files, one after the other,
// before it is done. The endpoint refuses what is longer than the window.
func newLongWorld(t *testing.T, route string, reads int) (*world, *fakemodel.Server, *atomic.Int64) {
	t.Helper()
	w, s := newForkWorld(t, route)
	w.route(fakemodel.Dialect(route), "maxRetries: 0", "contextWindow: 10000")
	sums, next := &atomic.Int64{}, &atomic.Int64{}
	s.SetScript(func(r fakemodel.Request) fakemodel.Reply {
		last := r.Messages[len(r.Messages)-1]
		switch n := next.Add(1); {
		case len(r.Body) > 40_000+reads*300: // as JSON, with the calls and the tools
			return fakemodel.Reply{fakemodel.Failure("context-length")}
		case last.Role == "user" && strings.Contains(last.Text, "The conversation has become long."):
			return fakemodel.Reply{fakemodel.Text(fmt.Sprintf("summary number %d", sums.Add(1)))}
		case last.Role == "user" && strings.Contains(last.Text, "in one word"):
			return fakemodel.Reply{fakemodel.Text("seven")}
		case n >= int64(reads):
			next.Store(0)
			return fakemodel.Reply{fakemodel.Text("all of them were read")}
		default:
			return fakemodel.Reply{fakemodel.ToolCall{Name: "read", Arguments: fmt.Sprintf(`{"path":"f%d.txt"}`, n%10)}}
		}
	})
	for i := range 10 {
		w.write(fmt.Sprintf("f%d.txt", i), strings.Repeat(fmt.Sprintf("line of file %d\n", i), 350))
	}
	return w, s, sums
}

// core D38, D39, over both wires: a run that reads far more than its model's window
// holds goes on to its end; what was summed up stays in the log; "sessions compact" does
// the same for a session that is stored, a follow-up goes on from the summary, and what
// it all cost is counted.
func TestCompaction_D38(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"openai", "anthropic"} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			w, s, sums := newLongWorld(t, route, 30)
			e := w.ok("run", "read all the files and count the doors")
			if e.stdout != "all of them were read\n" || sums.Load() < 3 {
				t.Fatalf("%d summaries: %v", sums.Load(), e)
			}
			if n := strings.Count(e.stderr, "agent: summed up "); n != int(sums.Load()) {
				t.Errorf("%d of %d summaries were told: %s", n, sums.Load(), e.stderr)
			}
			root, _ := w.tree()
			id := string(root.Header.ID)
			w.verify()
			_, spent, _ := strings.Cut(e.stderr, "agent: idle after ")
			_, spent, _ = strings.Cut(strings.TrimSuffix(spent, " tokens\n"), ", ")
			if list := w.here("sessions", "list").stdout; !strings.Contains(e.stderr, "agent: summed up ") || spent == "" || !strings.Contains(list, " "+spent+" ") {
				t.Errorf("the run told of %q tokens, the list is\n%s\n%s", spent, list, e.stderr)
			}
			show := w.here("sessions", "show", id)
			for _, want := range []string{"summary number 1\n", "read all the files and count the doors", " summed up by " + route + ":fake-model", "line of file 9"} {
				if !strings.Contains(show.stdout, want) {
					t.Errorf("the transcript lacks %q", want)
				}
			}
			all := s.Requests()
			body := string(all[len(all)-1].Body)
			if !strings.Contains(body, "read all the files and count the doors") || !strings.Contains(body, fmt.Sprintf("summary number %d", sums.Load())) || strings.Contains(body, "summary number 1\\n") {
				t.Errorf("the last request is %s", clip(body, 2000))
			}

			before := w.logs()
			e = w.ok("sessions", "compact", id, "--json")
			var got struct {
				SessionID                       session.ID
				Messages, Before, After, Window int64
				Model                           string
				Usage                           map[string]int64
			}
			if err := json.Unmarshal([]byte(e.stdout), &got); err != nil {
				t.Fatal(err)
			}
			if got.SessionID != root.Header.ID || got.Messages < 2 || got.After >= got.Before || got.Window != 10_000 || got.Model != route+":fake-model" || got.Usage["outputTokens"] == 0 {
				t.Errorf("%s", e.stdout)
			}
			w.grew(before)
			w.verify()
			if e := w.ok("resume", id, "how many doors, in one word?"); e.stdout != "seven\n" {
				t.Errorf("%v", e)
			}
			all = s.Requests()
			if body := string(all[len(all)-1].Body); !strings.Contains(body, fmt.Sprintf("summary number %d", sums.Load())) {
				t.Errorf("the request of the follow-up is %s", clip(body, 2000))
			}
			if e := w.run("sessions", "compact", id, "--model", "none:x"); e.code != 2 || !strings.Contains(e.stderr, "none") {
				t.Errorf("a route that is none: %v", e)
			}
		})
	}
}

// core S38, D39: a process that is killed at any point of a compaction leaves a log that
// goes on: the turn was interrupted, and either the conversation is as it was, or the
// summary stands for its oldest part. A later compaction is none the worse.
func TestKilledInACompaction_S38(t *testing.T) {
	t.Parallel()
	for _, kill := range []string{
		"before:compaction/start", "after:compaction/request", "lose:compaction/summary", "before:compaction/end", "after:compaction/end",
	} {
		t.Run(kill, func(t *testing.T) {
			t.Parallel()
			w, _, sums := newLongWorld(t, "openai", 12)
			w.killAt(kill, "run", "read all the files")
			root, _ := w.tree()
			id := string(root.Header.ID)
			w.verify()
			before := w.logs()
			if e := w.ok("resume", id, "how many doors, in one word?"); e.stdout != "seven\n" {
				t.Fatalf("%v", e)
			}
			w.grew(before)
			w.ok("sessions", "compact", id)
			w.verify()
			root, _ = w.tree()
			types := strings.Join(root.types(), " ")
			if sums.Load() == 0 || !strings.Contains(types, "compaction/summary user/message compaction/end") {
				t.Errorf("%d summaries were asked for; the log is %s", sums.Load(), types)
			}
		})
	}
}

// compaction.auto switches it off: then the request that is too long fails, as the
// endpoint words it, and nothing was summed up.
func TestCompactionSwitchedOff(t *testing.T) {
	t.Parallel()
	w, _, sums := newLongWorld(t, "openai", 30)
	w.write("offshoot.yaml", "compaction: {auto: false}\n")
	e := w.run("run", "read all the files")
	if e.code != 1 || !strings.Contains(e.stderr, "CONTEXT_WINDOW_EXCEEDED") || sums.Load() != 0 {
		t.Errorf("%d summaries: %v", sums.Load(), e)
	}
}

// core D38: a job that runs is known behind a summary, by the first request that follows.
func TestCompactionNamesRunningJobs_D38(t *testing.T) {
	t.Parallel()
	w, s, sums := newLongWorld(t, "openai", 30)
	const job = `- subagent-1 (count the doors): running`
	var steps, told atomic.Int64
	s.SetScript(func(r fakemodel.Request) fakemodel.Reply {
		last := r.Messages[len(r.Messages)-1]
		switch {
		case slices.ContainsFunc(r.Messages, func(m fakemodel.Message) bool { return m.Role == "user" && strings.Contains(m.Text, "an errand") }):
			return fakemodel.Reply{fakemodel.Gate("errand"), fakemodel.Text("seven doors")}
		case last.Role == "user" && strings.Contains(last.Text, "The conversation has become long."):
			return fakemodel.Reply{fakemodel.Text(fmt.Sprintf("summary number %d", sums.Add(1)))}
		}
		if sums.Load() > 0 && strings.Count(string(r.Body), job) == 1 {
			told.Add(1)
		}
		switch n := steps.Add(1); {
		case n == 1:
			return fakemodel.Reply{fakemodel.ToolCall{Name: "subagent", Arguments: `{"description":"count the doors","prompt":"an errand","run_in_background":true}`}}
		case sums.Load() < 2:
			return fakemodel.Reply{fakemodel.ToolCall{Name: "read", Arguments: fmt.Sprintf(`{"path":"f%d.txt"}`, n%10)}}
		}
		s.Release("errand")
		return fakemodel.Reply{fakemodel.Text("all of them were read")}
	})
	if e := w.ok("run", "read all the files"); e.stdout != "all of them were read\n" || told.Load() == 0 {
		t.Errorf("%d requests behind %d summaries name the job: %v", told.Load(), sums.Load(), e)
	}
	w.verify()
}

// core D38: so is a continuable child that has not settled; of one that has, the agent was
// told before.
func TestCompactionNamesContinuableChildren_D38(t *testing.T) {
	t.Parallel()
	w, s, sums := newLongWorld(t, "openai", 30)
	w.write("offshoot.yaml", "providers: {main: {provider: spawn, backgroundMode: continuable}}\n")
	var steps, told atomic.Int64
	s.SetScript(func(r fakemodel.Request) fakemodel.Reply {
		last := r.Messages[len(r.Messages)-1]
		switch {
		case slices.ContainsFunc(r.Messages, func(m fakemodel.Message) bool { return m.Role == "user" && strings.Contains(m.Text, "an errand") }):
			return fakemodel.Reply{fakemodel.Gate("errand"), fakemodel.Text("seven doors")}
		case last.Role == "user" && strings.Contains(last.Text, "The conversation has become long."):
			return fakemodel.Reply{fakemodel.Text(fmt.Sprintf("summary number %d", sums.Add(1)))}
		}
		if sums.Load() > 0 && strings.Count(string(r.Body), "(count the doors): running") == 1 {
			told.Add(1)
		}
		switch n := steps.Add(1); {
		case n == 1:
			return fakemodel.Reply{fakemodel.ToolCall{Name: "subagent", Arguments: `{"description":"count the doors","prompt":"an errand"}`}}
		case sums.Load() < 2:
			return fakemodel.Reply{fakemodel.ToolCall{Name: "read", Arguments: fmt.Sprintf(`{"path":"f%d.txt"}`, n%10)}}
		}
		s.Release("errand")
		return fakemodel.Reply{fakemodel.Text("all of them were read")}
	})
	if e := w.ok("run", "read all the files"); e.stdout != "all of them were read\n" || told.Load() == 0 {
		t.Errorf("%d requests behind %d summaries name the child: %v", told.Load(), sums.Load(), e)
	}
	w.verify()
}
