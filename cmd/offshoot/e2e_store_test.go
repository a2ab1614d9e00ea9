package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// A relative --store or OFFSHOOT_STORE means a file beside the caller, also for a
// session of another folder in which there is a store of that name too.
func TestResumeInTheStoreThatWasNamed(t *testing.T) {
	t.Parallel()
	for _, byFlag := range []bool{true, false} {
		w, _ := newModelWorld(t, fakemodel.OpenAI)
		run := func(args ...string) string {
			t.Helper()
			if byFlag {
				return w.ok(append([]string{"--store", "./x.db"}, args...)...).stdout
			}
			w.env["OFFSHOOT_STORE"] = "./x.db"
			return w.ok(args...).stdout
		}
		run("run", "[[fake:reply one]]")
		var row struct{ ID string }
		if err := json.Unmarshal([]byte(run("sessions", "list", "--json")), &row); err != nil {
			t.Fatal(err)
		}
		first, second := w.cwd, t.TempDir()
		if err := os.CopyFS(second, os.DirFS(first)); err != nil {
			t.Fatal(err)
		}
		w.cwd = second
		run("resume", row.ID, "[[fake:reply three]]")
		for dir, want := range map[string]bool{first: false, second: true} {
			w.cwd = dir
			if got := strings.Contains(run("sessions", "show", row.ID), "three"); got != want {
				t.Errorf("by flag %v: the answer is in the store of %s: %v", byFlag, dir, got)
			}
		}
	}
}
