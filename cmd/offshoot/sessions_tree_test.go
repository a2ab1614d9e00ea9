package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// twigs runs tree --json.
func twigs(t *testing.T, h *home, args ...string) []twig {
	t.Helper()
	var all []twig
	for line := range strings.Lines(h.must(append([]string{"sessions", "tree", "--json"}, args...)...)) {
		var one twig
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, one)
	}
	return all
}

// outline tells the shape of a tree: level, id and parent of each line.
func outline(all []twig) []string {
	var lines []string
	for _, one := range all {
		line := fmt.Sprintf("%d %s<%s", one.Level, one.ID, one.ParentSession)
		if one.Adrift {
			line += " adrift"
		}
		lines = append(lines, line)
	}
	return lines
}

// D32: what a tree tells of each of its sessions, and that telling it changes nothing.
func TestTree(t *testing.T) {
	h := newHome(t)
	library(t, h)
	before := snapshot(t, h.dir)
	all := twigs(t, h, childID) // any session of it names a tree
	if diff := cmp.Diff([]string{"0 " + rootID + "<", "1 " + childID + "<" + rootID}, outline(all)); diff != "" {
		t.Fatal(diff)
	}
	root, kid := all[0], all[1]
	if root.Mode != "root" || root.State != "interrupted" || root.StopReason != "error" || root.Tokens != 1605 {
		t.Errorf("root %+v", root)
	}
	if kid.Mode != "one-shot" || kid.State != "idle" || kid.StopReason != "completed" || kid.Label != "Count the <files>" || kid.Tokens != 23 || kid.DurationMS != kid.UpdatedAt-kid.CreatedAt {
		t.Errorf("child %+v", kid)
	}
	if got := outline(twigs(t, h)); !slices.Equal(got, []string{"0 " + otherID + "<"}) {
		t.Errorf("the newest root: %v", got)
	}
	text := h.must("sessions", "tree", rootID)
	for _, want := range []string{"SESSION", "└─ Count the <files>", rootID + "\n", childID + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if snapshot(t, h.dir) != before {
		t.Error("files changed")
	}
	if o := h.run("sessions", "tree", "nope"); o.code != 1 || !strings.Contains(o.errOut, "not found") {
		t.Errorf("%d, %s", o.code, o.errOut)
	}
	if o := newHome(t).run("sessions", "tree"); o.code != 0 || o.out != "" || !strings.Contains(o.errOut, "no sessions yet") {
		t.Errorf("no store: %+v", o)
	}
}

// plant stores a bare session.
func (a *archive) plant(id, parent, root string) {
	a.raw(session.Header{ID: session.ID(id), CreatedAt: epoch, ParentSession: session.ID(parent)}, session.ID(root), nil)
}

// D11: a tree whose logs contradict each other is shown, each session once.
func TestTreeDamaged(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	a.plant("r", "", "r")
	a.plant("r-a", "r", "r")
	a.plant("r-b", "r", "r")
	a.plant("r-a-a", "r-a", "r")
	a.plant("self", "self", "r") // is its own parent
	a.plant("x", "y", "r")       // x and y are each other's
	a.plant("y", "x", "r")
	a.plant("z", "gone", "r")
	a.plant("z-a", "z", "r")
	a.raw(session.Header{ID: "r-c", Version: 7, CreatedAt: epoch, ParentSession: "r"}, "r", nil)
	a.close()
	all := twigs(t, h, "r")
	want := []string{
		"0 r<", "1 r-a<r", "2 r-a-a<r-a", "1 r-b<r", "1 r-c<r",
		"1 self<self adrift", "1 z<gone adrift", "2 z-a<z", "1 x<y adrift", "2 y<x",
	}
	if diff := cmp.Diff(want, outline(all)); diff != "" {
		t.Error(diff)
	}
	if broken := all[4]; broken.State != unreadable || broken.Error == "" {
		t.Errorf("unreadable: %+v", broken)
	}
	text := h.must("sessions", "tree", "r")
	for _, want := range []string{"├─ untitled", "│  └─ untitled", "session r-c is not supported", "(adrift: its parent is gone)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// One that cannot be read is a tree of its own.
	if got := outline(twigs(t, h, "r-c")); !slices.Equal(got, []string{"0 r-c<"}) {
		t.Error(got)
	}
}

// A tree deeper than anybody indents.
func TestTreeDeep(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	a.plant("n0000", "", "n0000")
	for i := 1; i < 200; i++ {
		a.plant(fmt.Sprintf("n%04d", i), fmt.Sprintf("n%04d", i-1), "n0000")
	}
	a.close()
	lines := strings.Split(strings.TrimSpace(h.must("sessions", "tree", "n0000")), "\n")
	if len(lines) != 201 || !strings.HasSuffix(lines[200], "n0199") || len([]rune(lines[200])) > 200 {
		t.Errorf("%d lines, the last: %q", len(lines), lines[len(lines)-1])
	}
}

func TestLasted(t *testing.T) {
	for ms, want := range map[int64]string{
		-5: "", 0: "", 850: "850ms", 3_240: "3.2s", 245_000: "4m05s", 11_520_000: "3h12m", 5 * 86_400_000: "5d",
	} {
		if got := lasted(ms); got != want {
			t.Errorf("%d: %q, want %q", ms, got, want)
		}
	}
}
