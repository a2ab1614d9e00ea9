//go:build unix

package config_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAgentFileUnreadable: what is there but cannot be read is an error that names it, never an agent that is missing.
func TestAgentFileUnreadable(t *testing.T) {
	p := newPlace(t).file("$WORK/.offshoot/agents", "a file")
	if diff := cmp.Diff([]string{"config $WORK/.offshoot/agents: is not a folder"}, p.faults()); diff != "" {
		t.Error(diff)
	}
	p = newPlace(t).file(projectFile, "---\n---\n")
	if err := os.Symlink("gone", p.long("$WORK/.offshoot/agents/dangling.md")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(p.long("$WORK/.offshoot/agents/pipe.md"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"config $WORK/.offshoot/agents/dangling.md: cannot be read: no such file or directory",
		"config $WORK/.offshoot/agents/pipe.md: is not a regular file",
	}
	if os.Getuid() != 0 { // who may read everything
		if err := os.Chmod(p.long(projectFile), 0); err != nil {
			t.Fatal(err)
		}
		want = append(want, "config "+projectFile+": cannot be read: permission denied")
	}
	if diff := cmp.Diff(want, p.faults()); diff != "" {
		t.Error(diff)
	}
}
