package shell_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/tool/shell"
)

// A program that ends at once leaves no process of its commands behind, not even
// those that ignore requests to end.
func TestAbortLeavesNoProcess(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "pid")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	local := &shell.Local{}
	done := make(chan shell.Outcome, 1)
	go func() {
		out, err := local.Run(t.Context(), shell.Spec{
			Command: "trap : INT TERM; sleep 61 & echo $! >" + fifo + "; sleep 62; sleep 63", Timeout: time.Minute, MaxOutput: 1000,
		})
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	data, err := os.ReadFile(fifo) // there is a pid once the command writes it
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := local.Abort(); err != nil {
		t.Fatal(err)
	}
	// A zombie waits for whoever adopted it; it runs no more.
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("process %d still runs: %s", pid, stat)
	}
	if out := <-done; out.Signal == "" && out.Code == 0 {
		t.Errorf("outcome %+v", out)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, err := local.Run(t.Context(), shell.Spec{Command: "true", Timeout: time.Minute, MaxOutput: 10}); err == nil {
		t.Error("a command was started after the abort")
	}
}
