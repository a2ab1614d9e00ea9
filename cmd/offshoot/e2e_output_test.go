//go:build unix

package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// TestStalledOutput: a reader that takes nothing holds up neither the agents nor
// the first interrupt.
func TestStalledOutput(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	p := w.prepare("run", "[[fake:big 1000000 1000]] [[fake:tool list {}]] [[fake:stall]]", "--json")
	p.cmd.Stdout = nil
	r, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.begin()
	if _, err := s.WaitRequest(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGINT)
	e := p.wait()
	if e.code != 130 || !strings.Contains(e.stderr, "write the answer: "+errStalled.Error()) {
		t.Errorf("%v", e)
	}
	_ = r.Close() // Wait has closed it
	root, _ := w.tree()
	if diff := cmp.Diff([]string{"aborted"}, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
	w.verify()
	w.followUp(root.Header.ID)
}

// TestSlowOutput: what a slow reader missed of the live chunks is counted; the
// events are all there, in order, and the result is last.
func TestSlowOutput(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	const deltas = 6000
	p := w.prepare("run", fmt.Sprintf("[[fake:big 6000000 %d]] [[fake:tool list {}]] [[fake:gate read]] [[fake:reply done]]", deltas), "--json")
	stdout := p.pipeStdout()
	p.begin()
	if _, err := s.WaitRequest(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	stdout.until(`"assistant.chunk.dropped"`)
	s.Release("read")
	e := p.wait()
	if e.code != 0 {
		t.Fatalf("%v", e)
	}
	all := parseOutput(t, e.stdout)
	seen, dropped := 0, 0
	for _, l := range all {
		switch l.Type {
		case "assistant.chunk":
			seen++
		case "assistant.chunk.dropped":
			dropped += l.Count
		}
	}
	if seen < 1000 || dropped < 1000 || seen+dropped < deltas {
		t.Errorf("%d chunks were written, %d counted as dropped", seen, dropped)
	}
	root, _ := w.tree()
	if diff := cmp.Diff(root.lines, streamed(all)[root.Header.ID]); diff != "" {
		t.Errorf("events (-stored +streamed):\n%s", brief(diff))
	}
	if last := all[len(all)-1]; last.Type != "result" || last.StopReason != "completed" || *last.Text != "done" {
		t.Errorf("the result: %+v", last)
	}
}

// TestBrokenOutputOfRepair: stdout that cannot be written is noticed although the
// first events are those of the repair, before there is an agent.
func TestBrokenOutputOfRepair(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.killAt("after:turn/start", "run", "[[fake:reply one]]")
	root, _ := w.tree()
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	p := w.prepare("resume", string(root.Header.ID), "[[fake:stall]]", "--json")
	p.cmd.Stdout = out
	p.begin()
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if e := p.wait(); e.code != 1 || !strings.Contains(e.stderr, "write the answer: ") {
		t.Errorf("%v", e)
	}
	w.verify()
}

// TestStopWhileOpening: signals and the time limit are heard before there is
// anything to cancel, and the result says so.
func TestStopWhileOpening(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, kill string
		args       []string
		signals    []syscall.Signal
		code       int
		stderr     string
		result     string
	}{
		{name: "interrupt", kill: killStuck, signals: []syscall.Signal{syscall.SIGINT}, code: 130, stderr: "stopped by interrupt", result: "aborted"},
		{name: "terminate twice", kill: killDeaf, signals: []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, code: 143},
		{name: "timeout", kill: killStuck, args: []string{"--timeout", "2s"}, code: 1, stderr: "timed out after 2s", result: "aborted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.ok("run", "[[fake:reply one]]")
			root, _ := w.tree()
			p := w.with(killEnv, tt.kill).prepare(append([]string{"resume", string(root.Header.ID), "go on", "--json"}, tt.args...)...)
			stderr := p.pipeStderr()
			p.begin()
			stderr.until("the store is stuck")
			for i, s := range tt.signals {
				if i > 0 {
					stderr.until("once more stops at once")
				}
				p.signal(s)
			}
			e := p.wait()
			if e.code != tt.code || !strings.Contains(e.stderr, tt.stderr) {
				t.Errorf("%v", e)
			}
			wantResult(t, e, tt.result)
			w.followUp(root.Header.ID)
		})
	}
}

// wantResult checks the last line; "" is no line at all.
func wantResult(t *testing.T, e ended, stopReason string) {
	t.Helper()
	all := parseOutput(t, e.stdout)
	switch {
	case stopReason == "" && len(all) == 0:
	case stopReason == "" || len(all) == 0 || all[len(all)-1].Type != "result" || all[len(all)-1].StopReason != stopReason:
		t.Errorf("want the result %q: %v", stopReason, e)
	}
}

// TestResultOfNothing: --json always has a result once the session is known.
func TestResultOfNothing(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.ok("run", delegation("a child", "[[fake:reply a]]")+"[[fake:reply b]]")
	root, children := w.tree()
	e := w.ok("resume", string(root.Header.ID), "--json", "--quiet")
	if e.stderr != "" {
		t.Errorf("want nothing on stderr: %v", e)
	}
	wantResult(t, e, "nothing")
	e = w.run("resume", string(children[0].Header.ID), "go on", "--json")
	if e.code != 1 {
		t.Errorf("%v", e)
	}
	wantResult(t, e, "error")
	if e := w.run("resume", string(children[0].Header.ID), "go on"); e.code != 1 || e.stdout != "" {
		t.Errorf("%v", e)
	}
}

// TestRawAnswer: a pipe gets the model's bytes.
func TestRawAnswer(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	if e := w.ok("run", "[[fake:reply a \x1b[31mb\n\tc]]"); e.stdout != "a \x1b[31mb\n\tc\n" {
		t.Errorf("%v", e)
	}
}

// stuckWriter takes nothing until it is let go.
type stuckWriter struct {
	once        sync.Once
	stuck, free chan struct{}
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.stuck) })
	<-w.free
	return len(b), nil
}

// What waits for a reader is bounded, also when chunks and events take turns.
func TestOutputIsBounded(t *testing.T) {
	w := &stuckWriter{stuck: make(chan struct{}), free: make(chan struct{})}
	o := newLineWriter(w, nil, func() {})
	line := make([]byte, 1<<10)
	o.chunk("a", line)
	<-w.stuck // nothing leaves the queue from here on
	for range 20_000 {
		o.chunk("a", line)
		o.chunk("b", line)
	}
	o.mu.Lock()
	held, items, dropped := o.held, len(o.queue), o.last["a"].dropped+o.last["b"].dropped
	o.mu.Unlock()
	// As many lines as there is room for, and one count for each session.
	if room := maxHeldChunks >> 10; held != maxHeldChunks || items != room+2 || dropped != int64(40_000-room) {
		t.Errorf("%d bytes in %d items wait, %d were dropped", held, items, dropped)
	}
	close(w.free)
	if err := o.finish(nil, nil); err != nil {
		t.Error(err)
	}
}
