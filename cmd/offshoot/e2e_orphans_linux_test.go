package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// TestKillEndsCommands: whatever a command left behind, in a session of its own, orphaned and without its environment,
// ends with the program that is killed.
func TestKillEndsCommands(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	up := w.fifo()
	if err := syscall.Mkfifo(filepath.Join(w.cwd, "held"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := w.start("run", `[[fake:tool bash {"command":"exec 9>held; sleep=$(command -v sleep); (setsid env -i $sleep 300 &); setsid $sleep 300 & echo up > fifo; sleep 300"}]]`,
		"--permission", "allow")
	held, err := os.Open(filepath.Join(w.cwd, "held")) // waits for the command
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }() // read only
	up()
	p.signal(syscall.SIGKILL)
	if e := p.wait(); e.code != killed {
		t.Errorf("%v", e)
	}
	// Each of them has the pipe open.
	if err := held.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(held); err != nil {
		t.Errorf("something goes on: %v", err)
	}
}
