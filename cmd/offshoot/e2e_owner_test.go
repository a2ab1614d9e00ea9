//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// TestOneOwner: while a process works on a session others can look at it and not
// go on with it; when it is gone they can at once (design § 4, Ownership).
func TestOneOwner(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	p := w.start("run", delegation("a child", "[[fake:gate go]] [[fake:reply from the child]]")+"[[fake:reply done]]")
	if err := s.WaitInFlight(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitRequest(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	root, children := w.tree()
	id := string(root.Header.ID)
	owner := fmt.Sprintf("process %d", p.cmd.Process.Pid)
	for _, args := range [][]string{{"resume", id}, {"resume", id, "[[fake:reply no]]"}} {
		e := w.run(args...)
		if e.code != 1 || e.stdout != "" {
			t.Errorf("%v", e)
		}
		wantLine(t, e, owner, nil)
	}
	w.verify()
	if e := w.ok("sessions", "list", "--json"); !strings.Contains(e.stdout, `"state":"running"`) || !strings.Contains(e.stdout, `"live":true`) {
		t.Errorf("%v", e)
	}
	if e := w.ok("sessions", "show", id); !strings.Contains(e.stdout, "held by "+owner) {
		t.Errorf("%v", e)
	}
	s.Release("go")
	if e := p.wait(); e.code != 0 || e.stdout != "done\n" {
		t.Errorf("%v", e)
	}
	if e := w.run("resume", string(children[0].Header.ID)); e.code == 0 || !strings.Contains(e.stderr, "resume its root instead") || !strings.Contains(e.stderr, id) {
		t.Errorf("%v", e)
	}
	w.followUp(root.Header.ID)
}

// TestDeadOwner: a process that was killed holds nothing up.
func TestDeadOwner(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	p := w.start("run", "[[fake:stall]]")
	if err := s.WaitInFlight(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	if e := p.wait(); e.code != killed {
		t.Errorf("%v", e)
	}
	root, _ := w.tree()
	w.followUp(root.Header.ID)
	root, _ = w.tree()
	if diff := cmp.Diff([]string{"interrupted", "completed"}, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
}

// TestKillDemo: a demo run that was killed among its children goes on.
func TestKillDemo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.project()
	w.killAt("body@child", "run", "Map this repository", "--quiet")
	w.verify()
	before := w.logs()
	root, children := w.tree()
	if len(children) == 0 {
		t.Error("no child is stored")
	}
	id := string(root.Header.ID)
	if e := w.ok("resume", id); !strings.Contains(e.stderr, "owes nothing") {
		t.Errorf("%v", e)
	}
	if e := w.ok("resume", id, "again", "--quiet"); !strings.Contains(e.stdout, "demo model") || !strings.Contains(e.stdout, "- web/: 6 folders and 85 files") {
		t.Errorf("%v", e)
	}
	w.grew(before)
	w.verify()
	root, _ = w.tree()
	if diff := cmp.Diff([]string{"interrupted", "completed"}, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
}
