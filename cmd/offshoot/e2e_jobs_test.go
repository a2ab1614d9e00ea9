//go:build unix

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// inBackground is a directive that delegates to a background job.
func inBackground(description, prompt string) string {
	args, err := json.Marshal(map[string]any{"description": description, "prompt": prompt, "run_in_background": true})
	if err != nil {
		panic(err) // strings and a boolean
	}
	return "[[fake:tool subagent " + string(args) + "]][[fake:next]]"
}

// heard lists what entered a log's history, turn by turn: the first words of each
// message of a job, "user" for input.
func heard(t *testing.T, l *storedLog) []string {
	t.Helper()
	var all []string
	for _, m := range payloads[*session.UserMessage](t, l) {
		switch s := m.Message.Source; {
		case s.Details().Plugin == "job":
			all = append(all, s.Details().Summary)
		case s.Kind == message.SourceUser:
			all = append(all, "user")
		}
	}
	return all
}

// TestJobs: a root starts two background children, does something else, and ends its
// turn; run goes on until both are told and read (seam BG-01, core D43).
func TestJobs(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	w.write("a.txt", "alpha\n")
	prompt := inBackground("first", "[[fake:gate a]] [[fake:reply the first answer]]") +
		inBackground("second", "[[fake:gate b]] [[fake:reply the second answer]]") +
		`[[fake:tool list {}]] [[fake:reply I wait]] [[fake:next]]` +
		`[[fake:tool job_output {"job_id":"subagent-2"}]] [[fake:reply {{match:the second.*}}]] [[fake:next]]` +
		`[[fake:tool job_list {}]] [[fake:tool job_output {"job_id":"subagent-1"}]] [[fake:reply at last {{match:the first.*}}]]`
	p := w.prepare("run", prompt)
	stderr := p.pipeStderr()
	p.begin()
	stderr.until("agent: first (in the background)")
	stderr.until("agent: idle")
	s.Release("b")
	stderr.until("second: idle")
	stderr.until("agent: idle")
	s.Release("a")
	stderr.until("first: idle")
	e := p.wait()
	if e.code != 0 || e.stdout != "at last the first answer\n" {
		t.Errorf("%v", e)
	}
	w.verify()
	root, children := w.tree()
	if diff := cmp.Diff([]string{
		"user", "job completed: subagent-2 (second)", "job completed: subagent-1 (first)",
	}, heard(t, root)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if got := results(t, root); len(got) != 6 || got[0] != "started background subagent job subagent-1" ||
		got[4] != "subagent-1: completed (first)\nsubagent-2: completed (second)" || got[5] != "subagent-1: completed (first)\nthe first answer" {
		t.Errorf("results %q", got)
	}
	if got := ends(t, root); !slices.Equal(got, []string{"completed", "completed", "completed"}) || len(children) != 2 {
		t.Errorf("turn ends %v, %d children", got, len(children))
	}
	w.followUp(root.Header.ID)
}

// TestJobsKilled: a model kills its job; with --json the result comes behind the
// turn that the notice woke.
func TestJobsKilled(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	prompt := inBackground("stuck", "[[fake:stall]]") +
		`[[fake:tool job_output {"job_id":"subagent-1"}]] [[fake:tool job_output {"job_id":"subagent-9"}]] [[fake:next]]` +
		`[[fake:tool job_kill {"job_id":"subagent-1","reason":"not needed"}]] [[fake:reply killed it]] [[fake:next]] [[fake:reply it is over]] [[fake:next]] [[fake:reply it is over]]`
	e := w.ok("run", prompt, "--json")
	got := lines(e.stdout)
	if result := got[len(got)-1]; !strings.Contains(result, `"stopReason":"completed"`) {
		t.Errorf("the result: %s", result)
	}
	w.verify()
	root, children := w.tree()
	if diff := cmp.Diff([]string{"user", "job killed: subagent-1 (stuck)"}, heard(t, root)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	said := results(t, root)
	if len(said) != 4 || !strings.HasPrefix(said[1], "subagent-1: running (stuck)") || !strings.Contains(said[2], "your jobs: subagent-1") || !strings.HasPrefix(said[3], "subagent-1: stopping (stuck)") {
		t.Errorf("results %q", said)
	}
	for _, c := range children {
		if got := ends(t, c); !slices.Equal(got, []string{"aborted"}) {
			t.Errorf("the child ended as %v", got)
		}
	}
	w.followUp(root.Header.ID)
}

// TestJobsStopped: whatever ends the run while a job is at work, nothing of it is
// left, the root is not woken any more, and a resumed root is told what it lost.
func TestJobsStopped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		flags  []string
		code   int
		says   string
		ends   []string // the child's turns
	}{
		{name: "interrupt", signal: syscall.SIGINT, code: 130, says: "stopped by interrupt", ends: []string{"aborted"}},
		{name: "terminate", signal: syscall.SIGTERM, code: 143, says: "stopped by terminated", ends: []string{"aborted"}},
		{name: "time limit", flags: []string{"--timeout", "2s"}, code: 1, says: "timed out after 2s", ends: []string{"aborted"}},
		{name: "kill", signal: syscall.SIGKILL, code: 137},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			prompt := inBackground("stuck", "[[fake:reply I began]] [[fake:stall]]") +
				"[[fake:reply I wait]] [[fake:next]] [[fake:reply so it is lost]]"
			p := w.prepare(append([]string{"run", prompt}, tt.flags...)...)
			stderr := p.pipeStderr()
			p.begin()
			stderr.until("agent: idle")
			if tt.signal != 0 {
				p.signal(tt.signal)
			}
			e := p.wait()
			if e.code != tt.code || !strings.Contains(e.stderr, tt.says) {
				t.Errorf("want exit %d: %v", tt.code, e)
			}
			root, children := w.tree()
			if tt.signal != syscall.SIGKILL {
				w.verify()
				for _, c := range children {
					if got := ends(t, c); !slices.Equal(got, tt.ends) {
						t.Errorf("the child ended as %v", got)
					}
				}
				if got := ends(t, root); !slices.Equal(got, []string{"completed"}) {
					t.Errorf("turn ends %v", got)
				}
				if got := heard(t, root); !slices.Equal(got, []string{"user"}) {
					t.Errorf("messages %q: a stopped root was told something", got)
				}
			}
			// What a killed process had not stored yet of its last turn is asked for again.
			if e := w.ok("resume", string(root.Header.ID)); e.stdout != "so it is lost\n" && (tt.signal != syscall.SIGKILL || e.stdout != "I wait\n") {
				t.Errorf("%v", e)
			}
			root, _ = w.tree()
			if diff := cmp.Diff([]string{"user", "job lost: subagent-1"}, heard(t, root)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if e := w.ok("resume", string(root.Header.ID)); e.stdout != "" || !strings.Contains(e.stderr, "owes nothing") {
				t.Errorf("%v", e)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// TestJobsThatWakeNoMore: what comes after the third wake in a row waits for the next
// turn, and both run and a bare resume say so (core D43).
func TestJobsThatWakeNoMore(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	// Each job outlives the turn that starts it.
	again := inBackground("again", "[[fake:delay 300ms]] [[fake:reply x]]") + "[[fake:reply so be it]] [[fake:next]]"
	const waits = "owes nothing and has 1 notice for its next turn"
	e := w.ok("run", strings.Repeat(again, 4))
	if !strings.Contains(e.stderr, "1 notice for the agent's next turn") {
		t.Errorf("%v", e)
	}
	root, _ := w.tree()
	if e := w.ok("resume", string(root.Header.ID)); !strings.Contains(e.stderr, waits) || e.stdout != "" {
		t.Errorf("%v", e)
	}
	w.followUp(root.Header.ID)
	root, _ = w.tree()
	if got := ends(t, root); len(got) != 5 || len(heard(t, root)) != 6 {
		t.Errorf("turns %v, messages %q", got, heard(t, root))
	}
}

// TestJobsBeforeTheAnswer: an agent that is asked for one answer in a form is not
// reminded of it while its jobs run; the answer has seen them.
func TestJobsBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.write("s.json", `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	prompt := inBackground("count", "[[fake:delay 300ms]] [[fake:reply 42]]") + "[[fake:reply I wait]] [[fake:next]]" +
		`[[fake:tool job_output {"job_id":"subagent-1"}]] [[fake:next]] [[fake:tool structured_output {"n":42}]]`
	e := w.ok("run", prompt, "--output-schema", "s.json")
	root, _ := w.tree()
	if got := heard(t, root); e.stdout != "{\"n\":42}\n" || !slices.Equal(got, []string{"user", "job completed: subagent-1 (count)"}) || len(ends(t, root)) != 1 {
		t.Errorf("%v\nmessages %q", e, got)
	}
	for _, m := range payloads[*session.UserMessage](t, root) {
		if m.Message.Source.Details().Plugin == "structured-output" {
			t.Error("it was reminded while its job ran")
		}
	}
	w.verify()
}

// TestJobsOfAChild: a child that ends its turn while its own job runs answers when it
// has seen that job's end. Without background the tools are not there.
func TestJobsOfAChild(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	child := inBackground("deep", "[[fake:gate deep]] [[fake:reply from below]]") +
		`[[fake:reply not yet]] [[fake:next]] [[fake:tool job_output {"job_id":"subagent-1"}]] [[fake:reply I got it]]`
	p := w.prepare("run", delegation("middle", child)+"[[fake:reply {{match:I got.*}}]]")
	stderr := p.pipeStderr()
	p.begin()
	stderr.until("middle: deep (in the background)")
	// The root, the middle one twice, the deepest.
	if _, err := s.WaitRequest(bounded(t), 4); err != nil {
		t.Fatal(err)
	}
	s.Release("deep")
	if e := p.wait(); e.code != 0 || e.stdout != "I got it\n" {
		t.Errorf("%v", e)
	}
	w.verify()
	_, children := w.tree()
	if got := results(t, children[0]); len(got) != 2 || got[1] != "subagent-1: completed (deep)\nfrom below" || len(ends(t, children[0])) != 1 {
		t.Errorf("the child read %q in turns %v", got, ends(t, children[0]))
	}

	w.write("offshoot.yaml", "providers: {main: {provider: spawn, background: false}}\n")
	e := w.ok("run", inBackground("x", "[[fake:reply x]]")+"[[fake:reply {{match:.*run_in_background.*}}]]")
	if !strings.Contains(e.stdout, "run_in_background") {
		t.Errorf("%v", e)
	}
	all := s.Requests()
	for _, tool := range all[len(all)-1].Tools {
		if strings.HasPrefix(tool.Name, "job_") {
			t.Errorf("the tool %s is offered", tool.Name)
		}
	}
}
