package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// injector stands between this process and its disk: the kernel asks it about each
// system call that changes a file (seccomp user notification), and it lets the call
// through, delays it, or answers in its place. That is how a test makes the n-th
// write or sync of the engine fail, whatever the engine does above. It needs no
// privilege. It cannot be taken away again: a process that has one runs nothing else.
type injector struct {
	fd  int
	mem *os.File // of this process

	mu    sync.Mutex // guards following
	n     int
	plan  func(call diskCall) diskFault
	trace []diskCall
}

// diskCall is one system call that changes a file.
type diskCall struct {
	N    int    // how many came before since the last arm
	Name string // pwrite, sync, truncate, unlink
	File string // the file's base name
}

func (c diskCall) String() string { return fmt.Sprintf("%s %s (call %d)", c.Name, c.File, c.N) }

// diskFault is what becomes of a call; the zero value lets it through.
type diskFault struct {
	Err   unix.Errno
	Torn  bool            // half of a write is on the disk all the same
	After bool            // all of it is
	Wait  <-chan struct{} // before anything else
	Kill  bool            // the process is killed instead
}

// A filter program over struct seccomp_data: the number of the call stands first.
const (
	seccompModeFilter = 1
	filterTsync       = 1 << 0
	filterListener    = 1 << 3
	filterTsyncErrno  = 1 << 4
	filterKillable    = 1 << 5
	retAllow          = 0x7fff0000
	retNotify         = 0x7fc00000
	notifyRecv        = 0xc0502100
	notifySend        = 0xc0182101
	notifyContinue    = 1
)

type seccompNotice struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type seccompAnswer struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// watched are the calls by which the engine changes files, but for opening them.
func watched() map[int32]string {
	return map[int32]string{
		unix.SYS_PWRITE64: "pwrite", unix.SYS_FSYNC: "sync", unix.SYS_FDATASYNC: "sync",
		unix.SYS_FTRUNCATE: "truncate", unix.SYS_FALLOCATE: "allocate",
	}
}

// newInjector starts to watch this process. The goroutine that answers lives as long
// as the process.
func newInjector() (*injector, error) {
	var prog []unix.SockFilter
	stmt := func(code uint16, k uint32) { prog = append(prog, unix.SockFilter{Code: code, K: k}) }
	stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0)
	for nr := range watched() {
		prog = append(prog, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: uint32(nr)})
		stmt(unix.BPF_RET|unix.BPF_K, retNotify)
	}
	stmt(unix.BPF_RET|unix.BPF_K, retAllow)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}

	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompModeFilter, filterTsync|filterTsyncErrno|filterListener|filterKillable, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return nil, errors.Join(fmt.Errorf("seccomp: %w", errno), mem.Close())
	}
	in := &injector{fd: int(fd), mem: mem}
	go in.serve()
	return in, nil
}

func (in *injector) serve() {
	runtime.LockOSThread()
	for {
		var notice seccompNotice
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(in.fd), notifyRecv, uintptr(unsafe.Pointer(&notice)))
		if errno == unix.EINTR || errno == unix.ENOENT {
			continue
		}
		if errno != 0 {
			panic(fmt.Sprintf("receive a notification: %v", errno))
		}
		go in.decide(notice) // a slow sync must not hold up other files
	}
}

func (in *injector) decide(notice seccompNotice) {
	call := diskCall{Name: watched()[notice.nr], File: fileOf(notice.args[0])}
	in.mu.Lock()
	plan := in.plan
	if plan != nil {
		call.N = in.n
		in.n++
		in.trace = append(in.trace, call)
	}
	in.mu.Unlock()
	var f diskFault
	if plan != nil {
		f = plan(call)
	}
	if f.Wait != nil {
		<-f.Wait
	}
	if f.Kill {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // it does not fail for this process
		select {}
	}
	answer := seccompAnswer{id: notice.id, flags: notifyContinue}
	if f.Err != 0 {
		if f.Torn || f.After {
			in.write(notice, f.Torn)
		}
		answer.flags, answer.errno = 0, -int32(f.Err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(in.fd), notifySend, uintptr(unsafe.Pointer(&answer))); errno != 0 && errno != unix.ENOENT {
		panic(fmt.Sprintf("answer a notification: %v", errno))
	}
}

// write does a watched write in the caller's place, or half of it.
func (in *injector) write(notice seccompNotice, half bool) {
	if notice.nr != unix.SYS_PWRITE64 {
		return // what a sync would have written lies in the page cache, which only the machine can lose
	}
	size := notice.args[2]
	if half {
		size /= 2
	}
	buf := make([]byte, size)
	if _, err := in.mem.ReadAt(buf, int64(notice.args[1])); err != nil {
		panic(fmt.Sprintf("read what is to be written: %v", err))
	}
	// pwritev is not watched.
	if _, err := unix.Pwritev(int(notice.args[0]), [][]byte{buf}, int64(notice.args[3])); err != nil {
		panic(fmt.Sprintf("write in the caller's place: %v", err))
	}
}

func fileOf(fd uint64) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "?"
	}
	return filepath.Base(strings.TrimSuffix(path, " (deleted)"))
}

// arm replaces the plan, counts from 0 again, and returns the calls so far.
func (in *injector) arm(plan func(diskCall) diskFault) []diskCall {
	in.mu.Lock()
	defer in.mu.Unlock()
	trace := in.trace
	in.n, in.trace, in.plan = 0, nil, plan
	return trace
}
