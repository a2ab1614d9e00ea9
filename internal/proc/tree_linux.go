package proc

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const supported = true

// seesExit says that awaitExit returns with the exit and before the reaping.
const seesExit = true

// isolate gives the child a session of its own, and with it a process group: a
// signal to the group never reaches this process, and a prompt on the terminal
// fails instead of stopping the child.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when pid has exited, without reaping it: until it is reaped
// neither its id nor its group's can be given to another process.
func awaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("waitid", err)
		}
	}
}

// member is a living process of the tree.
type member struct {
	pid   int
	start uint64 // in clock ticks since boot; with pid it names one process for good
}

// signal sends sig unless the process ended meanwhile.
func (m member) signal(sig syscall.Signal) {
	// FindProcess holds a pidfd, so what is compared is what gets the signal.
	proc, err := os.FindProcess(m.pid)
	if err != nil {
		return
	}
	if st, ok := readStat(m.pid); ok && st.start == m.start {
		_ = proc.Signal(sig) // a process that is gone is what we want
	}
	_ = proc.Release() // cannot fail on Unix
}

// end asks it to end, also if it is stopped.
func (m member) end() {
	m.signal(syscall.SIGTERM)
	m.signal(syscall.SIGCONT)
}

func (m member) kill() { m.signal(syscall.SIGKILL) }

// stat is what /proc/PID/stat says.
type stat struct {
	state               byte
	ppid, pgrp, session int
	start               uint64
}

func (s *stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (stat, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	// The second field is the name in parentheses and may hold anything.
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return stat{}, false
	}
	f := strings.Fields(string(data[i+1:]))
	if len(f) < 20 {
		return stat{}, false
	}
	var s stat
	var errs [4]error
	s.state = f[0][0]
	s.ppid, errs[0] = strconv.Atoi(f[1])
	s.pgrp, errs[1] = strconv.Atoi(f[2])
	s.session, errs[2] = strconv.Atoi(f[3])
	s.start, errs[3] = strconv.ParseUint(f[19], 10, 64)
	return s, errors.Join(errs[:]...) == nil
}

// members returns the living processes of the tree. sure is false if there is a
// process that cannot be told at the moment. Only a living member can start another
// one, so an empty list that is sure is final, unless one replaced itself between
// the listing and the look at it. The oldest come first: a shell
// that is killed before its children cannot remark on their end in the output.
func (p *Process) members() (out []member, sure bool) {
	table := processTable()
	if p.birth == 0 {
		return nil, true // without /proc
	}
	first, ok := table[p.pid]
	known := ok && first.start == p.birth
	reused := ok && !known // then nothing of the group was left when the id was given anew
	sure = true
	// in holds the verdict on every process seen so far; a chain of parents is
	// followed up to the first one.
	in := map[int]bool{p.pid: known, 1: false, 0: false}
	var belongs func(pid, depth int) bool
	belongs = func(pid, depth int) bool {
		verdict, known := in[pid]
		st, exists := table[pid]
		if known || !exists || depth > len(table) {
			return verdict
		}
		verdict = !reused && (st.pgrp == p.pid || st.session == p.pid) || belongs(st.ppid, depth+1)
		if !verdict && st.start >= p.birth && !st.dead() {
			env := environment(pid)
			verdict = bytes.Contains(env, []byte(p.mark))
			// In the middle of an exec there is no environment. A kernel thread never
			// has one.
			if len(env) == 0 && env != nil && st.ppid != kthreadd {
				sure = false
			}
		}
		in[pid] = verdict
		return verdict
	}
	for pid, st := range table {
		if !st.dead() && belongs(pid, 0) {
			out = append(out, member{pid, st.start})
		}
	}
	sortByAge(out)
	return out, sure
}

// sortByAge puts the oldest first.
func sortByAge(members []member) {
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid))
	})
}

// birthOf returns when a process that is not reaped began, see member, or 0.
func birthOf(pid int) uint64 {
	st, _ := readStat(pid)
	return st.start
}

// kthreadd is the parent of all kernel threads.
const kthreadd = 2

// environment returns nil for a process that is gone or another user's.
func environment(pid int) []byte {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil
	}
	return env
}

func processTable() map[int]stat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }() // read only
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	table := make(map[int]stat, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if st, ok := readStat(pid); ok {
			table[pid] = st
		}
	}
	return table
}

// signalEnd asks a tree without a supervisor to end.
func (p *Process) signalEnd() {
	if p.birth == 0 { // without /proc
		_ = syscall.Kill(-p.pid, syscall.SIGTERM) // fails only if the group is gone
		_ = syscall.Kill(-p.pid, syscall.SIGCONT)
	}
	left, _ := p.members()
	p.asked.all(left)
}

// signalLate asks those whom signalEnd missed.
func (p *Process) signalLate(left []member) { p.asked.orphans(left) }

// asker asks processes to end, each of them once. It may be used concurrently.
type asker struct {
	mu    sync.Mutex // guards following
	asked map[member]bool
}

func (a *asker) ask(m member) {
	if a.asked == nil {
		a.asked = map[member]bool{}
	}
	if !a.asked[m] {
		a.asked[m] = true
		m.end()
	}
}

// all asks all of them.
func (a *asker) all(members []member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range members {
		a.ask(m)
	}
}

// orphans asks those that no process above has been asked for: one that began
// while the others were listed, and lost its parent since. What a process that was
// asked starts in order to end well is left alone. Before the first all it does nothing.
func (a *asker) orphans(members []member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range members {
		if a.asked != nil && !a.above(m.pid) {
			a.ask(m)
		}
	}
}

func (a *asker) above(pid int) bool {
	for st, ok := readStat(pid); ok && st.ppid > 1; st, ok = readStat(pid) {
		pid = st.ppid
		if up, ok := readStat(pid); ok && a.asked[member{pid, up.start}] {
			return true
		}
	}
	return false
}

// afterReap has nothing to do: the tree ended before.
func afterReap(int) {}

// reapAdopted takes away the remains of a killed process that became this
// process's child (this process is pid 1 or a subreaper). It never waits for any
// child, which would steal the status of others.
func reapAdopted(pid int) {
	if st, ok := readStat(pid); ok && st.dead() && st.ppid == os.Getpid() {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it is gone either way
	}
}
