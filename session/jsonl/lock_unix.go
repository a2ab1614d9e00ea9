//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package jsonl

import (
	"errors"
	"os"
	"syscall"
)

// canLock tells whether there is a way to lock files.
const canLock = true

// lock locks an open file until it is closed, and tells whether it could: not where
// another descriptor has it locked, unless wait is set, nor where files cannot be locked.
func lock(f *os.File, wait bool) bool {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		// Fd leaves the file as it is: one on a disk is never polled.
		if err := syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err == nil
		}
	}
}
