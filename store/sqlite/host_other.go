//go:build !linux

package sqlite

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"
)

// hostID is a constant here: the engine's shared memory does not reach beyond
// one machine, so all processes that have a file open run on one.
func hostID() string { return "local-" + runtime.GOOS }

// processStart is not known here; an owner whose process number was given to
// another process is judged by its heartbeat.
func processStart() string { return "" }

// hostUptime is not known here.
func hostUptime() time.Duration { return 0 }

// writable is not looked at here: the first write tells.
func writable(string) error { return nil }

// gone reports whether a process of this host provably ended.
func gone(pid int, _ string) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return true
	}
	defer func() { _ = p.Release() }() // frees the handle; nothing depends on it
	if runtime.GOOS == "windows" {
		return false
	}
	err = p.Signal(syscall.Signal(0))
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH)
}
