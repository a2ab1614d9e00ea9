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
)

// TestSignals: the first signal cancels the tree and leaves a log that is closed
// and legal; the exit code names the signal (core L24–L28).
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, prompt string
		await        string // what is seen before the signal: on stdout, or a word in the fifo; "" is the request
		signal       syscall.Signal
		code         int
		text         string // the answer so far
		codes        []string
	}{
		{name: "interrupt while silent", prompt: "[[fake:stall]]", signal: syscall.SIGINT, code: 130},
		{name: "terminate while silent", prompt: "[[fake:stall]]", signal: syscall.SIGTERM, code: 143},
		{name: "interrupt after headers", prompt: "[[fake:headers]] [[fake:stall]]", signal: syscall.SIGINT, code: 130},
		{name: "interrupt mid-stream", prompt: "[[fake:reply half an answer]] [[fake:stall]]", await: `"text":"swer"`, signal: syscall.SIGINT, code: 130, text: "half an answer"},
		{name: "terminate mid-stream", prompt: "[[fake:reply half an answer]] [[fake:stall]]", await: `"text":"swer"`, signal: syscall.SIGTERM, code: 143, text: "half an answer"},
		{name: "interrupt in a call", prompt: `[[fake:tool read {"path":"a"}]] [[fake:tool read {"path":"b"}]] [[fake:stall]]`, signal: syscall.SIGINT, code: 130},
		{name: "interrupt a tool", prompt: `[[fake:tool bash {"command":"echo up > fifo; sleep 60"}]] [[fake:tool bash {"command":"sleep 60"}]]`, await: "fifo", signal: syscall.SIGINT, code: 130,
			codes: []string{"ABORTED", "ABORTED_BEFORE_DISPATCH"}},
		{name: "terminate while waiting to try again", prompt: "[[fake:status 429 Retry-After=9]]", await: `"llm/retry"`, signal: syscall.SIGTERM, code: 143},
		{name: "interrupt a tree", prompt: `[[fake:tool subagent {"description":"a","prompt":"[[fake:reply I began]] [[fake:stall]]"}]] [[fake:tool subagent {"description":"b","prompt":"[[fake:stall]]"}]]`,
			await: `"text":"an"`, signal: syscall.SIGINT, code: 130, codes: []string{"ABORTED", "ABORTED"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, s := newModelWorld(t, fakemodel.OpenAI)
			w.route(fakemodel.OpenAI)
			p := w.prepare("run", tt.prompt, "--json", "--permission", "allow")
			stdout, up := p.pipeStdout(), w.fifo()
			p.begin()
			switch tt.await {
			case "fifo":
				up()
			case "":
				if err := s.WaitInFlight(bounded(t), 1); err != nil {
					t.Fatal(err)
				}
			default:
				stdout.until(tt.await)
			}
			p.signal(tt.signal)
			e := p.wait()
			if e.code != tt.code {
				t.Errorf("want exit %d: %v", tt.code, e)
			}
			got := lines(e.stdout)
			result := got[len(got)-1]
			if !strings.Contains(result, `"type":"result"`) || !strings.Contains(result, `"stopReason":"aborted"`) || !strings.Contains(result, `"text":"`+tt.text+`"`) {
				t.Errorf("the result: %s", result)
			}
			w.verify()
			for _, l := range w.logs() {
				if diff := cmp.Diff([]string{"aborted"}, ends(t, l)); diff != "" {
					t.Errorf("turn ends of %s (-want +got):\n%s", l.Header.ID, diff)
				}
			}
			root, _ := w.tree()
			if diff := cmp.Diff(tt.codes, codes(t, root)); diff != "" && tt.codes != nil {
				t.Errorf("codes (-want +got):\n%s", diff)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// TestSecondSignal: a tool that will not end holds up the first interrupt; the
// second one ends the process at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	up := w.fifo()
	p := w.prepare("run", `[[fake:tool bash {"command":"trap '' TERM INT HUP; sleep 300 & echo $! > pid; echo up > fifo; while :; do sleep 1; done"}]]`, "--permission", "allow")
	stderr := p.pipeStderr()
	p.begin()
	up() // from now on the command cannot be ended softly
	p.signal(syscall.SIGINT)
	stderr.until("once more stops at once")
	p.signal(syscall.SIGINT)
	if e := p.wait(); e.code != 130 || e.stdout != "" {
		t.Errorf("%v", e)
	}
	// What the agent had running does not outlive the process.
	pid, err := os.ReadFile(filepath.Join(w.cwd, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("the command still runs: %s", stat)
	}
	w.verify()
	root, _ := w.tree()
	if got := ends(t, root); len(got) != 0 && !slices.Equal(got, []string{"aborted"}) {
		t.Errorf("the turn ended as %v", got)
	}
	w.ok("resume", string(root.Header.ID))
	w.followUp(root.Header.ID)
}

// TestSignalKeepsQueue: what waits when the process is told to end is still there
// for the next one (design § 4, What teardown does to the queue).
func TestSignalKeepsQueue(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	w.ok("run", "[[fake:reply one]]")
	root, _ := w.tree()
	id := string(root.Header.ID)
	w.killAt("after:agent/inbox/spliced", "resume", id, "[[fake:stall]]")
	p := w.start("resume", id, "[[fake:reply two]]")
	if _, err := s.WaitRequest(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGINT)
	if e := p.wait(); e.code != 130 || e.stdout != "" {
		t.Errorf("%v", e)
	}
	if e := w.ok("resume", id); e.stdout != "two\n" {
		t.Errorf("%v", e)
	}
	root, _ = w.tree()
	if diff := cmp.Diff([]string{"completed", "aborted", "completed"}, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
	w.verify()
}

// TestSignalsWhileClosing: a system that does not come to its end is left at the
// second signal.
func TestSignalsWhileClosing(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	p := w.with(killEnv, killNothing).prepare("run", "[[fake:reply done]]")
	stderr := p.pipeStderr()
	p.begin()
	stderr.until("idle")
	p.signal(syscall.SIGINT)
	stderr.until("once more stops at once")
	p.signal(syscall.SIGTERM)
	if e := p.wait(); e.code != 143 || e.stdout != "" {
		t.Errorf("%v", e)
	}
	root, _ := w.tree()
	w.followUp(root.Header.ID)
}
