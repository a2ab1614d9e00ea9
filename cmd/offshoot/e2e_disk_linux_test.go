package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// mountHome makes the home a small file system in memory. The caller keeps its
// configuration outside.
func mountHome(t *testing.T, w *world, options string) {
	t.Helper()
	if err := os.MkdirAll(w.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", w.home, "tmpfs", 0, "mode=700,"+options); err != nil {
		t.Skipf("mounting a small tmpfs needs privileges that are missing here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(w.home, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func remount(t *testing.T, w *world, flags uintptr, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", w.home, "tmpfs", syscall.MS_REMOUNT|flags, options); err != nil {
		t.Skipf("remounting needs privileges that are missing here: %v", err)
	}
}

// outside is a world whose configuration does not lie in its home, and its model.
func outside(t *testing.T, options string) (*world, *fakemodel.Server) {
	t.Helper()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.Rename(filepath.Join(w.home, "config.yaml"), file); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mountHome(t, w, options)
	w.write(filepath.Join(w.home, "config.yaml"), string(data))
	return w, s
}

// TestReadOnlyHome: nothing can be written. One line says so, and nothing runs.
func TestReadOnlyHome(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{true, false} {
		w, s := outside(t, "size=8m")
		if !fresh {
			w.ok("run", "[[fake:reply one]]")
		}
		before := s.Total()
		remount(t, w, syscall.MS_RDONLY, "")
		e := w.run("run", "[[fake:reply two]]")
		if e.code != 1 || e.stdout != "" || s.Total() != before {
			t.Errorf("%v", e)
		}
		wantLine(t, e, "read-only", nil)
		if e := w.run("trust"); e.code != 1 || e.stdout != "" || len(lines(e.stderr)) != 1 {
			t.Errorf("%v", e)
		}
		remount(t, w, 0, "")
		if fresh {
			w.holds("config.yaml")
		}
		w.ok("run", "[[fake:reply three]]")
		w.verify()
		w.modes()
	}
}

// TestFullDiskFromTheStart: there is no room for a store.
func TestFullDiskFromTheStart(t *testing.T) {
	t.Parallel()
	w, s := outside(t, "size=16k")
	e := w.run("run", "[[fake:reply one]]")
	if e.code != 1 || e.stdout != "" || s.Total() != 0 {
		t.Errorf("%v", e)
	}
	wantLine(t, e, "the disk is full", nil)
	remount(t, w, 0, "size=8m")
	w.ok("run", "[[fake:reply two]]")
	w.verify()
	w.tree() // exactly one
}

// TestFullDiskInTheMiddle: the answer does not fit. The run ends and says why;
// what was stored is whole, and goes on when there is room.
func TestFullDiskInTheMiddle(t *testing.T) {
	t.Parallel()
	w, _ := outside(t, "size=2m")
	e := w.run("run", "[[fake:big 4000000 20]]", "--quiet")
	if e.code != 1 {
		t.Errorf("%v", e)
	}
	got := lines(e.stderr)
	if n := strings.Count(e.stderr, "the disk is full"); len(got) != 1 || n != 1 {
		t.Errorf("want one line that says it once: %v", e)
	}
	w.verify()
	before := w.logs()
	root, _ := w.tree()
	if len(root.lines) < 7 {
		t.Errorf("only %d events are stored", len(root.lines))
	}
	remount(t, w, 0, "size=32m")
	if e := w.ok("resume", string(root.Header.ID)); !strings.Contains(e.stderr, "owes nothing") {
		t.Errorf("%v", e)
	}
	w.grew(before)
	root, _ = w.tree()
	if diff := cmp.Diff([]string{"interrupted"}, ends(t, root)); diff != "" {
		t.Errorf("turn ends (-want +got):\n%s", diff)
	}
	w.followUp(root.Header.ID)
}

// TestFullDiskAtAcceptance: the message itself does not fit, so nothing ran and
// nothing is there.
func TestFullDiskAtAcceptance(t *testing.T) {
	t.Parallel()
	w, s := outside(t, "size=2m")
	w.write("prompt.txt", "[[fake:reply one]]"+strings.Repeat(" and a long story", 250000))
	prompt, err := os.Open(filepath.Join(w.cwd, "prompt.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = prompt.Close() }() // only read
	p := w.prepare("run", "-", "--quiet")
	p.cmd.Stdin = prompt
	e := p.begin().wait()
	if e.code != 1 || e.stdout != "" || s.Total() != 0 {
		t.Errorf("%v", e)
	}
	wantLine(t, e, "the disk is full", nil)
	if logs := w.logs(); len(logs) != 0 {
		t.Errorf("%d sessions are stored", len(logs))
	}
	w.ok("run", "[[fake:reply fits]]")
	w.verify()
}
