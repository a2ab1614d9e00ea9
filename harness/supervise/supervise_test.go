package supervise_test

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"github.com/offshoot-dev/offshoot/harness/supervise"
	"github.com/offshoot-dev/offshoot/internal/proc"
)

// TestMain is a program that calls Main first, or one that never does.
func TestMain(m *testing.M) {
	if os.Getenv("SUPERVISE_TEST_WITHOUT") == "" {
		supervise.Main()
	}
	os.Exit(m.Run())
}

// The parent of a process is a supervisor in the one and the program in the other.
func TestMainDecides(t *testing.T) {
	with := os.Getenv("SUPERVISE_TEST_WITHOUT") == ""
	if want := with && runtime.GOOS == "linux"; supervise.Active() != want {
		t.Errorf("active: %v, want %v", supervise.Active(), want)
	}
	if runtime.GOOS != "windows" {
		if got := parentIsThisProgram(t); got == supervise.Active() {
			t.Errorf("the process is this program's own child: %v", got)
		}
	}
	if !with {
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	without := exec.Command(self, "-test.run=^TestMainDecides$")
	without.Env = append(os.Environ(), "SUPERVISE_TEST_WITHOUT=1")
	if out, err := without.CombinedOutput(); err != nil {
		t.Errorf("a program without the call: %v\n%s", err, out)
	}
}

func parentIsThisProgram(t *testing.T) bool {
	t.Helper()
	p, err := proc.Start(proc.Config{Path: "sh", Args: []string{"-c", `[ $PPID = "$1" ]`, "sh", strconv.Itoa(os.Getpid())}})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return exit.Code == 0
}
