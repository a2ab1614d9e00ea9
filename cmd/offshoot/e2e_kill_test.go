//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

// killed is the exit code of a process that SIGKILL ended, as a shell tells it.
const killed = 128 + int(syscall.SIGKILL)

// What a run of the two prompts leaves in the root's log when nothing disturbs it.
const (
	killText  = "ask one [[fake:reply first answer]]"
	killTools = `ask two [[fake:tool bash {"command":"echo ran >> ran.txt"}]] [[fake:tool read {"path":"ran.txt"}]] [[fake:reply tools done]]`

	untilRequest = "agent/inbox/spliced turn/start agent/inbox/spliced step/start user/message request/header request/context "
	textTypes    = untilRequest + "assistant/message step/end turn/end"
	toolTypes    = untilRequest + "assistant/message tool/call tool/result tool/call tool/result step/end " +
		"step/start assistant/message step/end turn/end"
)

type killCase struct {
	name, kill string
	prompt     string
	stored     int      // events that the root's log holds at death; 0: no session at all
	state      string   // what a listing says then
	goesOn     bool     // the message is still queued, so a bare resume runs it
	ends       []string // of the root's turns after that resume
	codes      []string // of its failed tool results after that resume
	ran        int      // how often the command ran
}

// TestKill ends the process with SIGKILL at every named point (design § 8; core
// D3, D23, S35–S39, L45): what was accepted is there, what was claimed is history
// and is not run again, what was not claimed runs, and the log goes on.
func TestKill(t *testing.T) {
	t.Parallel()
	const unknown, notStarted = session.CodeToolOutcomeUnknown, session.CodeToolNotStarted
	for _, tt := range []killCase{
		{name: "after create", kill: "created", prompt: killText},
		{name: "accepting splice, before its sync", kill: "lose:agent/inbox/spliced", prompt: killText},
		{name: "accepting splice, after its sync", kill: "after:agent/inbox/spliced", prompt: killText, stored: 1, state: "queued", goesOn: true, ends: []string{"completed"}},
		{name: "turn start", kill: "turn", prompt: killText, stored: 2, state: "interrupted", goesOn: true, ends: []string{"interrupted", "completed"}},
		{name: "claim", kill: "claim", prompt: killText, stored: 1, state: "queued", goesOn: true, ends: []string{"completed"}},
		{name: "header flush, in the store", kill: "after:request/header", prompt: killText, stored: 7, state: "interrupted", ends: []string{"interrupted"}},
		{name: "header flush, as the request leaves", kill: "request", prompt: killText, stored: 7, state: "interrupted", ends: []string{"interrupted"}},
		{name: "mid-stream", kill: "chunk", prompt: killText, stored: 7, state: "interrupted", ends: []string{"interrupted"}},
		{name: "answer, before its sync", kill: "lose:assistant/message", prompt: killText, stored: 7, state: "interrupted", ends: []string{"interrupted"}},
		{name: "before step end", kill: "before:step/end", prompt: killText, stored: 8, state: "interrupted", ends: []string{"interrupted"}},
		{name: "before turn end", kill: "before:turn/end", prompt: killText, stored: 9, state: "interrupted", ends: []string{"interrupted"}},
		{name: "after turn end", kill: "after:turn/end", prompt: killText, stored: 10, state: "idle", ends: []string{"completed"}},

		{name: "before tool call", kill: "before:tool/call", prompt: killTools, stored: 8, state: "interrupted", ends: []string{"interrupted"}, codes: []string{notStarted, notStarted}},
		{name: "tool call flush", kill: "after:tool/call", prompt: killTools, stored: 9, state: "interrupted", ends: []string{"interrupted"}, codes: []string{unknown, notStarted}},
		{name: "mid-tool", kill: "body", prompt: killTools, stored: 9, state: "interrupted", ends: []string{"interrupted"}, codes: []string{unknown, notStarted}, ran: 1},
		// The program is the parent of the command's supervisor, or of the command where there is none.
		{name: "mid-tool, by the tool", prompt: strings.Replace(killTools, `ran.txt"`, `ran.txt; kill -9 $(awk '/^PPid/{print $2}' /proc/$PPID/status || echo $PPID); sleep 60"`, 1), stored: 9, state: "interrupted",
			ends: []string{"interrupted"}, codes: []string{unknown, notStarted}, ran: 1},
		{name: "tool result, before its sync", kill: "lose:tool/result", prompt: killTools, stored: 9, state: "interrupted", ends: []string{"interrupted"}, codes: []string{unknown, notStarted}, ran: 1},
		{name: "between two tools", kill: "upto:tool/result", prompt: killTools, stored: 10, state: "interrupted", ends: []string{"interrupted"}, codes: []string{notStarted}, ran: 1},
		{name: "before step end, with results", kill: "before:step/end", prompt: killTools, stored: 12, state: "interrupted", ends: []string{"interrupted"}, ran: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.killAt(tt.kill, "run", tt.prompt, "--permission", "allow")
			w.verify()
			if tt.stored == 0 {
				if logs := w.logs(); len(logs) != 0 {
					t.Fatalf("%d sessions are stored: %v", len(logs), logs[0].types())
				}
				// The home is good for the next one.
				w.ok("run", "[[fake:reply fine]]")
				w.verify()
				return
			}
			w.checkKilled(&tt)
		})
	}
}

// killAt runs the command up to its end by SIGKILL.
func (w *world) killAt(kill string, args ...string) {
	w.t.Helper()
	if e := w.with(killEnv, kill).run(args...); e.code != killed || e.stdout != "" {
		w.t.Fatalf("not killed at %q: %v", kill, e)
	}
}

// checkKilled looks at a log that a SIGKILL cut, resumes it, and looks again.
func (w *world) checkKilled(tt *killCase) {
	t := w.t
	t.Helper()
	root, _ := w.tree()
	all := strings.Fields(textTypes)
	if len(tt.codes) > 0 || tt.ran > 0 {
		all = strings.Fields(toolTypes)
	}
	if diff := cmp.Diff(all[:tt.stored], root.types()); diff != "" {
		t.Fatalf("the log at death (-want +got):\n%s", diff)
	}
	if list := w.here("sessions", "list", "--json"); !strings.Contains(list.stdout, `"state":"`+tt.state+`"`) {
		t.Errorf("want the state %s: %v", tt.state, list)
	}
	before := w.logs()
	repaired := w.repairedCopy(before)

	id := string(root.Header.ID)
	e := w.run("resume", id, "--permission", "allow")
	switch {
	case e.code != 0:
		t.Fatalf("%v", e)
	case tt.goesOn && e.stdout != "first answer\n":
		t.Errorf("the queued message did not run: %v", e)
	case !tt.goesOn && (e.stdout != "" || !strings.Contains(e.stderr, "session "+id+" owes nothing")):
		t.Errorf("want nothing to do: %v", e)
	}
	w.verify()
	w.grew(before)
	root, _ = w.tree()
	// Repairing the same log twice gives the same bytes (core S37).
	if n := len(repaired); len(root.lines) < n || !slices.Equal(root.lines[:n], repaired) {
		t.Errorf("two repairs differ:\n%s\nand\n%s", strings.Join(repaired, "\n"), strings.Join(root.lines, "\n"))
	}
	if got := said(t, root, tt.prompt); got != 1 {
		t.Errorf("the message is %d times in the history", got)
	}
	if diff := cmp.Diff(tt.ends, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(tt.codes, codes(t, root)); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	w.followUp(root.Header.ID)
	if n := w.count("ran.txt"); n != tt.ran {
		t.Errorf("the command ran %d times", n)
	}
}

// codes are the codes of the failed tool results.
func codes(t *testing.T, l *storedLog) []string {
	t.Helper()
	var list []string
	for _, r := range payloads[*session.ToolResult](t, l) {
		if r.ErrorCode != "" {
			list = append(list, r.ErrorCode)
		}
	}
	return list
}

// count returns the number of lines of a file in the cwd.
func (w *world) count(name string) int {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.cwd, name))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}

// repairedCopy opens the only session in a copy of the home and kills that
// process too. It returns the repaired log.
func (w *world) repairedCopy(before []*storedLog) []string {
	w.t.Helper()
	other := *w
	other.home = filepath.Join(w.t.TempDir(), "home")
	if err := os.CopyFS(other.home, os.DirFS(w.home)); err != nil {
		w.t.Fatal(err)
	}
	other.with("OFFSHOOT_HOME", other.home).killAt("created", "resume", string(before[0].Header.ID))
	return other.grew(before)[0].lines
}

// TestKillDuringRepair: a repair is all or nothing, and is not made twice (core S35, S39).
func TestKillDuringRepair(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kill string
		ends []string // in the log that the second death leaves
	}{
		{"lose:turn/end", nil},
		{"after:turn/end", []string{"interrupted"}},
	} {
		t.Run(tt.kill, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.killAt("body", "run", killTools, "--permission", "allow")
			before := w.logs()
			id := string(before[0].Header.ID)
			w.killAt(tt.kill, "resume", id)
			w.verify()
			after := w.grew(before)
			if diff := cmp.Diff(tt.ends, ends(t, after[0])); diff != "" {
				t.Errorf("turn ends (-want +got):\n%s", diff)
			}
			if tt.ends == nil && len(after[0].lines) != len(before[0].lines) {
				t.Error("a part of the repair is stored")
			}
			if e := w.ok("resume", id); !strings.Contains(e.stderr, "owes nothing") || !strings.Contains(e.stderr, "its last turn was interrupted") {
				t.Errorf("%v", e)
			}
			root, _ := w.tree()
			if diff := cmp.Diff([]string{"interrupted"}, ends(t, root)); diff != "" {
				t.Errorf("turn ends (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{session.CodeToolOutcomeUnknown, session.CodeToolNotStarted}, codes(t, root)); diff != "" {
				t.Errorf("codes (-want +got):\n%s", diff)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// TestKillFollowUp: the second message of a stored session is accepted or it is not.
func TestKillFollowUp(t *testing.T) {
	t.Parallel()
	const second = "ask more [[fake:reply second answer]]"
	for _, tt := range []struct {
		kill     string
		accepted bool
	}{
		{"lose:agent/inbox/spliced", false},
		{"after:agent/inbox/spliced", true},
		{"claim", true},
		{"turn", true},
	} {
		t.Run(tt.kill, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.ok("run", killText)
			before := w.logs()
			id := string(before[0].Header.ID)
			w.killAt(tt.kill, "resume", id, second)
			w.verify()
			w.grew(before)
			e := w.ok("resume", id)
			if tt.accepted != (e.stdout == "second answer\n") || tt.accepted == strings.Contains(e.stderr, "owes nothing") {
				t.Errorf("accepted %v: %v", tt.accepted, e)
			}
			root, _ := w.tree()
			if got, want := said(t, root, second) == 1, tt.accepted; got != want {
				t.Errorf("the message is in the history: %v", got)
			}
			if said(t, root, killText) != 1 {
				t.Error("the first message ran again")
			}
			w.followUp(root.Header.ID)
		})
	}
}

// TestKillWithChildren kills in one child while two others wait for their model.
func TestKillWithChildren(t *testing.T) {
	t.Parallel()
	const prompt = "three " +
		`[[fake:tool subagent {"description":"first","prompt":"one [[fake:gate go]] [[fake:tool bash {\"command\":\"echo ran >> ran.txt\"}]] [[fake:reply one done]]"}]]` +
		`[[fake:tool subagent {"description":"second","prompt":"two [[fake:gate never]]"}]]` +
		`[[fake:tool subagent {"description":"third","prompt":"three [[fake:gate never]]"}]]` +
		"[[fake:reply all done]]"
	for _, tt := range []struct {
		name, kill string
		ran        int
	}{
		{"tool call flush", "after:tool/call@child", 0},
		{"mid-tool", "body@child", 1},
		{"mid-stream", "chunk@child", 1},
		{"before step end", "before:step/end@child", 1},
		{"before turn end", "before:turn/end@child", 1},
		{"the child has ended, nobody knows", "after:turn/end@child", 1},
		{"the root has its first result", "lose:tool/result", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, s := newModelWorld(t, fakemodel.OpenAI)
			p := w.with(killEnv, tt.kill).start("run", prompt, "--permission", "allow")
			if err := s.WaitInFlight(bounded(t), 3); err != nil {
				t.Fatal(err)
			}
			s.Release("go")
			if tt.kill == "lose:tool/result" {
				// The root stores that result with whatever it stores next.
				s.Release("never")
			}
			if e := p.wait(); e.code != killed {
				t.Fatalf("%v", e)
			}
			w.verify()
			before := w.logs()
			root, children := w.tree()
			if len(children) != 3 {
				t.Fatalf("%d children are stored", len(children))
			}
			if got := payloads[*session.ToolCall](t, root); len(got) != 3 {
				t.Errorf("the root's calls: %v", got)
			}
			if e := w.ok("resume", string(root.Header.ID)); !strings.Contains(e.stderr, "owes nothing") {
				t.Errorf("%v", e)
			}
			w.verify()
			for _, l := range w.grew(before) {
				if i := slices.IndexFunc(before, func(old *storedLog) bool { return old.Header.ID == l.Header.ID }); l.child() && (i < 0 || len(l.lines) != len(before[i].lines)) {
					t.Errorf("a one-shot child was opened again: %v", l.types())
				}
			}
			root, _ = w.tree()
			if diff := cmp.Diff(slices.Repeat([]string{session.CodeToolOutcomeUnknown}, 3), codes(t, root)); diff != "" {
				t.Errorf("codes (-want +got):\n%s", diff)
			}
			if n := w.count("ran.txt"); n != tt.ran {
				t.Errorf("the command ran %d times", n)
			}
			w.followUp(root.Header.ID)
		})
	}
}
