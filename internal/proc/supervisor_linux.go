package proc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supervise makes processes of this program supervised. It must be called first in
// main: it does not return in a process that was executed as a supervisor, which
// must not do what main does. In all others it returns at once.
func Supervise() {
	if len(os.Args) > 1 && os.Args[1] == supervisorArg {
		// Not os.Exit, which lets a race detector rest for a second.
		syscall.Exit(runSupervisor())
	}
	if _, err := os.Stat("/proc/self/exe"); err == nil {
		armed.Store(true)
	}
}

// supervisor is the state of a process that was executed as one. It has one
// goroutine beside the one that reads its orders.
type supervisor struct {
	status *os.File
	self   int
	first  int // the first process

	asked    asker
	ending   bool
	killing  bool
	orphaned bool // nobody gives orders any more
	deadline time.Time
	killed   map[member]bool
}

// runSupervisor starts the process that the orders tell of, adopts what it leaves
// orphaned, and returns when nothing of it is left. It returns the exit code.
func runSupervisor() int {
	// The kernel's signal at the death of a parent means the thread.
	runtime.LockOSThread()
	var mode unix.Stat_t
	for _, fd := range []int{ordersFD, statusFD} {
		if err := unix.Fstat(fd, &mode); err != nil || mode.Mode&unix.S_IFMT != unix.S_IFIFO {
			fmt.Fprintf(os.Stderr, "%s is how this program runs itself as the supervisor of a process; it is not for people\n", supervisorArg)
			return 2
		}
	}
	// Whatever this process has open is not for its child.
	if err := unix.CloseRange(ordersFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		unix.CloseOnExec(ordersFD)
		unix.CloseOnExec(statusFD)
	}
	s := &supervisor{status: os.NewFile(statusFD, "status"), self: os.Getpid(), killed: map[member]bool{}}
	orders := bufio.NewReader(os.NewFile(ordersFD, "orders"))

	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	ignore()
	if err := s.start(orders); err != nil {
		s.say(status{Failed: failure(err)})
		return 1
	}
	given := make(chan byte)
	go func() {
		defer close(given)
		for {
			o, err := orders.ReadByte()
			if err != nil {
				return // whoever gave orders is gone
			}
			given <- o
		}
	}()
	for pause := time.Millisecond; s.reap(); {
		var again <-chan time.Time
		switch {
		case s.killing && !s.orphaned && time.Now().After(s.deadline):
			s.say(status{Gone: &gone{Left: s.left(), Stuck: pids(s.descendants())}})
			return 0
		case s.killing:
			s.kill()
		case s.ending:
			s.asked.orphans(s.descendants())
		}
		if s.killing || s.ending {
			again = time.After(pause)
			pause = min(2*pause, 50*time.Millisecond)
		}
		select {
		case <-children:
		case <-again:
		case o, ok := <-given:
			switch {
			case !ok:
				s.orphaned, given = true, nil
				s.beginKilling()
				pause = time.Millisecond
			case o == orderKill:
				s.beginKilling()
				pause = time.Millisecond
			case o == orderEnd:
				s.asked.all(s.descendants())
				s.ending = true
			}
		}
	}
	s.say(status{Gone: &gone{Left: s.left()}})
	return 0
}

// ignore makes the signals harmless that would end this process, without passing
// that on: a caught signal is the child's own again, an ignored one stays ignored.
func ignore() {
	caught := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(caught, sig) // nobody reads it
		}
	}
}

// start reads what to start and starts it.
func (s *supervisor) start(orders *bufio.Reader) error {
	line, err := orders.ReadBytes('\n')
	if err != nil {
		return err
	}
	var sp spec
	if err := json.Unmarshal(line, &sp); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	child, err := os.StartProcess(string(sp.Path), toStrings(sp.Args), &os.ProcAttr{
		Dir: string(sp.Dir), Env: toStrings(sp.Env), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return err
	}
	// The input and output are the tree's alone: they end with it, not with this process.
	for fd := range 3 {
		err = errors.Join(err, unix.Dup3(int(null.Fd()), fd, 0))
	}
	if err != nil {
		return errors.Join(err, child.Kill())
	}
	s.first = child.Pid
	s.say(status{Started: &started{Pid: s.first, Birth: birthOf(s.first)}})
	return child.Release() // reap waits for it
}

func failure(err error) *failed {
	var path *os.PathError
	var errno syscall.Errno
	if errors.As(err, &path) && errors.As(path.Err, &errno) {
		return &failed{Op: path.Op, Path: []byte(path.Path), Errno: errno}
	}
	return &failed{Text: err.Error()}
}

// say tells something to whoever gave the orders. If nobody is there, nobody misses it.
func (s *supervisor) say(st status) {
	line, err := json.Marshal(st)
	if err == nil {
		_, _ = s.status.Write(append(line, '\n'))
	}
}

// reap takes away what has ended and reports whether anything is left. Whatever
// lives of the tree is below a child of this process, since it adopts the orphans.
func (s *supervisor) reap() bool {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			return false
		case pid == 0:
			return true
		case pid == s.first:
			exit := Exit{Code: ws.ExitStatus()}
			if ws.Signaled() {
				exit = Exit{Code: -1, Signal: unix.SignalName(ws.Signal())}
			}
			s.say(status{Exit: &exit})
		}
	}
}

func (s *supervisor) beginKilling() {
	if !s.killing {
		s.killing, s.deadline = true, time.Now().Add(killBound)
	}
}

// kill kills all that there is at the moment.
func (s *supervisor) kill() {
	for _, m := range s.descendants() {
		m.kill()
		s.killed[m] = true
	}
}

// left counts what was killed beside the first process.
func (s *supervisor) left() int {
	n := 0
	for m := range s.killed {
		if m.pid != s.first {
			n++
		}
	}
	return n
}

// descendants returns the living processes below this one, the oldest first.
func (s *supervisor) descendants() (out []member) {
	table := processTable()
	below := map[int][]int{}
	for pid, st := range table {
		below[st.ppid] = append(below[st.ppid], pid)
	}
	for todo := below[s.self]; len(todo) > 0; {
		pid := todo[0]
		todo = append(todo[1:], below[pid]...)
		if st := table[pid]; !st.dead() {
			out = append(out, member{pid, st.start})
		}
	}
	sortByAge(out)
	return out
}

func pids(members []member) []int {
	out := make([]int, len(members))
	for i, m := range members {
		out[i] = m.pid
	}
	return out
}
