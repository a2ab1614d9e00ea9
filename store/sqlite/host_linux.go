package sqlite

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hostID names the boot of this machine and the PID namespace: only within both
// does a process number mean the same process. Where /proc does not tell, the
// answer is unique, and owners are judged by their heartbeat alone.
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, nsErr := os.Readlink("/proc/self/ns/pid")
	if err != nil || nsErr != nil || processStart() == "" {
		return "unknown-" + rand.Text()
	}
	return strings.TrimSpace(string(boot)) + "/" + ns
}

// processStart returns the start time of this process in clock ticks since the
// boot, or "" if /proc belongs to another PID namespace or is not there.
func processStart() string {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil || !bytes.HasPrefix(stat, []byte(strconv.Itoa(os.Getpid())+" ")) {
		return ""
	}
	_, started, ok := parseStat(stat)
	if !ok {
		return ""
	}
	return started
}

// hostUptime is the time since the boot, that which the machine slept included.
// Nobody can set it, and all processes of a host share it. 0 is not known.
func hostUptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// writable returns why a file cannot be written to, without opening it (see createEmpty).
func writable(path string) error { return unix.Access(path, unix.W_OK) }

// gone reports whether a process of this host provably ended: it is not there,
// is a zombie, or another process has its number.
func gone(pid int, started string) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		// /proc may hide the processes of other users.
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	if err != nil {
		return false
	}
	state, start, ok := parseStat(stat)
	return ok && (state == "Z" || state == "X" || start != started)
}

// parseStat reads the state and the start time. The command's name stands in
// parentheses and may hold anything, so fields count from the last one.
func parseStat(stat []byte) (state, started string, ok bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return "", "", false
	}
	fields := strings.Fields(string(stat[i+1:]))
	if len(fields) < 20 {
		return "", "", false
	}
	return fields[0], fields[19], true
}
