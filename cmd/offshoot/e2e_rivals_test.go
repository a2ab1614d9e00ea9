//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// TestRivals: two processes resume one session at the same time, one of them is
// killed now and then, a third lists and verifies, a fourth tries to remove it. Who
// loses is told who won, in one line; every prompt that was answered stands in the
// log once, nothing that was stored changes, and whoever comes next goes on (design § 4).
func TestRivals(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.ok("run", "[[fake:reply ready]]")
	root, _ := w.tree()
	id := string(root.Header.ID)
	before := w.logs()
	answered := map[string]bool{}
	for round := range 8 {
		var rivals []*process
		var texts []string
		for side := range 2 {
			text := fmt.Sprintf("round %d side %d", round, side)
			texts = append(texts, text)
			rivals = append(rivals, w.start("resume", id, text+" [[fake:reply done]]", "--quiet"))
		}
		remove := w.start("sessions", "rm", id, "--tree", "--yes")
		if round%3 == 2 {
			rivals[round%2].signal(syscall.SIGKILL)
		}
		won := 0
		for side, p := range rivals {
			switch e := p.wait(); {
			case e.code == 0 && e.stdout == "done\n":
				answered[texts[side]] = true
				won++
			case e.code == 1 && len(lines(e.stderr)) == 1 && strings.Contains(e.stderr, "owned by process"):
			case e.code == killed && round%3 == 2 && side == round%2:
			case e.code != 0 && strings.Contains(e.stderr, "not found"):
				// It was removed before this one could open it.
			default:
				t.Errorf("round %d: %v", round, e)
			}
		}
		if e := remove.wait(); e.code == 0 {
			if won > 0 {
				// Between two turns nobody owns it, and it may go; the next round needs one.
				t.Logf("round %d: removed beside %d turns", round, won)
			}
			if logs := w.logs(); len(logs) != 0 {
				t.Fatalf("round %d: removed, and %d sessions are stored", round, len(logs))
			}
			w.ok("run", "[[fake:reply ready]]")
			root, _ = w.tree()
			id, before, answered = string(root.Header.ID), w.logs(), map[string]bool{}
			continue
		} else if !strings.Contains(e.stderr, "in use") && !strings.Contains(e.stderr, "live process") {
			t.Errorf("round %d: %v", round, e)
		}
		w.verify()
		before = w.grew(before)
		root, _ = w.tree()
		for text := range answered {
			if n := said(t, root, text+" [[fake:reply done]]"); n != 1 {
				t.Errorf("%q stands in the log %d times", text, n)
			}
		}
	}
	w.followUp(root.Header.ID)
}
