package main

import (
	"strings"
	"testing"
)

// On a terminal rm and prune ask, and only a yes removes anything.
func TestRemoveAsks(t *testing.T) {
	for _, args := range [][]string{{"rm", otherID}, {"prune", "--older-than", "0s"}} {
		for answer, removes := range map[string]bool{"y\n": true, " YES \n": true, "n\n": false, "\n": false, "\x04": false} {
			h := newHome(t)
			library(t, h)
			h.now = h.now.AddDate(200, 0, 0)
			tty := newTerminal(t)
			if _, err := tty.master.WriteString(answer); err != nil {
				t.Fatal(err)
			}
			a, out, errOut := h.app()
			a.stdin = tty.slave
			code := a.execute(t.Context(), append([]string{"sessions"}, args...))
			if !strings.Contains(errOut.String(), "? [y/N] ") {
				t.Errorf("%v: no question: %s", args, errOut)
			}
			gone := len(stored(t, h)) < 3
			if gone != removes || removes != (code == 0) || !removes && !strings.HasSuffix(errOut.String(), "offshoot: nothing was removed\n") {
				t.Errorf("%v, %q: %d, removed %v, %s%s", args, answer, code, gone, out, errOut)
			}
			if err := tty.slave.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
