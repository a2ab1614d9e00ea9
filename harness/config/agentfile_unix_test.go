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
	p.o.AgentFiles = []string{p.long("$WORK/.offshoot/agents/pipe.md")} // is told once all the same
	want[0], want[1] = want[1], want[0]
	if diff := cmp.Diff(want, p.faults()); diff != "" {
		t.Error(diff)
	}
}

// TestClaudeFileUnreadable: whatever lies in Claude Code's folder stops no start, and is told by its name; one that was named
// to be checked must be there.
func TestClaudeFileUnreadable(t *testing.T) {
	const dir = "$WORK/.claude/agents/"
	p := newPlace(t).user("agents: {claude: true}\n").file(dir+"good.md", "---\nname: good\n---\nHelp.").file(dir+"locked.md", "---\nname: locked\n---\n").file(dir+"folder.md/x", "")
	for name, target := range map[string]string{"dangling.md": "gone", "loop.md": "loop.md"} {
		if err := os.Symlink(target, p.long(dir+name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(p.long(dir+"pipe.md"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{
		dir + "dangling.md: is not taken: cannot be read: no such file or directory",
		dir + "folder.md: is not taken: is not a regular file",
	}
	if os.Getuid() != 0 { // who may read everything
		if err := os.Chmod(p.long(dir+"locked.md"), 0); err != nil {
			t.Fatal(err)
		}
		want = append(want, dir+"locked.md: is not taken: cannot be read: permission denied")
	}
	want = append(want,
		dir+"loop.md: is not taken: cannot be read: too many levels of symbolic links",
		dir+"pipe.md: is not taken: is not a regular file",
	)
	for _, trusted := range []bool{false, true} {
		p.o.Trusted = &trusted
		if diff := cmp.Diff(want, p.notes()); diff != "" {
			t.Errorf("trusted %v: %s", trusted, diff)
		}
	}
	if agents := p.load().Config.Agents; agents["good"].Persona == nil || *agents["good"].Persona != "Help." {
		t.Errorf("%+v", agents)
	}
	p.o.AgentFiles = []string{p.long(dir + "dangling.md")}
	if diff := cmp.Diff([]string{"config " + dir + "dangling.md: cannot be read: no such file or directory"}, p.faults()); diff != "" {
		t.Error(diff)
	}
}
