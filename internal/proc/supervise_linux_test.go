package proc_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/offshoot-dev/offshoot/internal/proc"
)

// startHelper runs a helper with a script that opens the named pipe before it says a
// line, which is returned with the other end of the pipe.
func startHelper(t *testing.T, kind, script, pipe string) (h *exec.Cmd, held *os.File, said string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h = exec.Command(self, script)
	h.Env = append(os.Environ(), helperVar+"="+kind)
	h.Stderr = os.Stderr
	out, err := h.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.Process.Kill() // most tests have done that
		_ = h.Wait()
	})
	held = open(t, pipe)
	line := make([]byte, 100)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return h, held, strings.TrimSpace(string(line[:n]))
}

// awaitGone waits until nobody has the pipe open for writing: each process that a
// script starts after "exec 9>PIPE" has.
func awaitGone(t *testing.T, pipe *os.File) {
	t.Helper()
	if err := pipe.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(pipe); err != nil {
		t.Errorf("something holds the pipe still: %v", err)
	}
}

// awaitEnd waits for the end of any process.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // read only
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("process %d goes on: %v", pid, err)
		}
		return
	}
}

// devious is a script of processes that leave their group, their session, their
// parent and their environment, and do not obey. alive lists those that live.
func devious(t *testing.T, pipe string) (script string, alive func() []string) {
	t.Helper()
	script, alive = linger(t, "SLEEP")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	first := strings.Fields(script)[1] // of linger's arguments
	base, _, _ := strings.Cut(first, ".")
	hidden := `(trap "" TERM HUP INT; setsid env -i ` + sleep + ` ` + base + `.9 & )`
	deaf := `(setsid sh -c 'trap "" TERM; while :; do sleep ` + base + `.8; done' & )`
	return "exec 9>" + pipe + "; " + hidden + "; " + deaf + "; " + script, alive
}

// open opens the reading end of a named pipe. It returns when the other end is open.
func open(t *testing.T, pipe string) *os.File {
	t.Helper()
	f, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // read only
	return f
}

// Whatever a process did, it is gone when Close returns, and when Done is closed.
func TestNothingEscapesASupervisor(t *testing.T) {
	mode{supervised: true}.set(t)
	t.Run("close", func(t *testing.T) {
		pipe := fifo(t)
		script, alive := devious(t, pipe)
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: 50 * time.Millisecond}, script)
		held := open(t, pipe)
		<-ready.ch
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
		awaitGone(t, held)
	})
	t.Run("exit", func(t *testing.T) {
		pipe := fifo(t)
		script, alive := devious(t, pipe)
		p := shell(t, proc.Config{}, strings.Replace(script, "echo ready", "exit 3", 1))
		held := open(t, pipe)
		if got := wait(t, p); got.Code != 3 || got.Left < 2 {
			t.Errorf("exit %+v", got)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
		awaitGone(t, held)
	})
	t.Run("kill", func(t *testing.T) {
		pipe := fifo(t)
		script, alive := devious(t, pipe)
		ready := newLatch()
		p := shell(t, proc.Config{Stdout: ready, Grace: time.Hour}, script)
		open(t, pipe)
		<-ready.ch
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
	})
}

// The death of this process, without a chance to do anything, is the end of the trees too.
func TestTreeEndsWithTheProgram(t *testing.T) {
	pipe := fifo(t)
	script, alive := devious(t, pipe)
	h, held, said := startHelper(t, "supervised", strings.Replace(script, "echo ready", "echo $PPID", 1), pipe)
	supervisor, err := strconv.Atoi(said)
	if err != nil || supervisor == h.Process.Pid {
		t.Fatalf("said %q: %v", said, err)
	}
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, held)
	awaitEnd(t, supervisor)
	if left := alive(); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
}

// A program that does not call Supervise is never executed again: its processes are
// its own children, and the first one dies with it.
func TestNoSupervisorWithoutTheCall(t *testing.T) {
	pipe := fifo(t)
	h, held, said := startHelper(t, "plain", "exec 9>"+pipe+"; echo $PPID; exec sleep 1000", pipe)
	if said != strconv.Itoa(h.Process.Pid) {
		t.Errorf("the parent is %s, want %d", said, h.Process.Pid)
	}
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, held)
}

// A supervisor that is killed takes its first process with it, the marks lead to
// the rest, and the owner is told.
func TestSupervisorIsKilled(t *testing.T) {
	mode{supervised: true}.set(t)
	script, alive := linger(t, "SLEEP")
	p := shell2(t, proc.Config{StdoutPipe: true}, strings.Replace(script, "echo ready", "echo $PPID", 1))
	supervisor := readPid(t, p.Stdout())
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err == nil || !strings.Contains(err.Error(), "supervisor") || exit.Code != -1 || exit.Left < 2 {
		t.Errorf("exit %+v, %v", exit, err)
	}
	select {
	case <-p.Exited():
	default:
		t.Error("its exit is not told")
	}
	if closeErr := p.Close(t.Context()); closeErr == nil {
		t.Error("Close does not say that the end could not be established")
	}
	if left := alive(); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
}

// The first process ends with its supervisor even if nobody is left to sweep.
func TestFirstProcessEndsWithItsSupervisor(t *testing.T) {
	pipe := fifo(t)
	h, held, said := startHelper(t, "supervised", "exec 9>"+pipe+"; echo $PPID; exec sleep 1000", pipe)
	supervisor, err := strconv.Atoi(said)
	if err != nil || supervisor == h.Process.Pid {
		t.Fatalf("said %q: %v", said, err)
	}
	if err := h.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, held)
}

// A supervisor that is stopped is woken, and does its work.
func TestStoppedSupervisorIsWoken(t *testing.T) {
	t.Run("close", func(t *testing.T) {
		mode{supervised: true}.set(t)
		script, alive := linger(t, "SLEEP")
		p := shell2(t, proc.Config{StdoutPipe: true, Grace: -1}, strings.Replace(script, "echo ready", "echo $PPID", 1))
		if err := syscall.Kill(readPid(t, p.Stdout()), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if left := alive(); len(left) > 0 {
			t.Errorf("left alive: %v", left)
		}
	})
	t.Run("the program is killed", func(t *testing.T) {
		pipe := fifo(t)
		h, held, said := startHelper(t, "supervised", "exec 9>"+pipe+"; echo $PPID; exec sleep 1000", pipe)
		supervisor, err := strconv.Atoi(said)
		if err != nil || supervisor == h.Process.Pid {
			t.Fatalf("said %q: %v", said, err)
		}
		t.Cleanup(func() { _ = syscall.Kill(supervisor, syscall.SIGCONT) }) // it ought to be gone
		if err := syscall.Kill(supervisor, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := h.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		awaitGone(t, held)
	})
}

// A supervisor that does not obey is killed, and what it kept is swept.
func TestSupervisorIsDeaf(t *testing.T) {
	mode{supervised: true}.set(t)
	script, alive := linger(t, "SLEEP")
	p := shell2(t, proc.Config{StdoutPipe: true, Grace: -1}, strings.Replace(script, "echo ready", "echo $PPID", 1))
	proc.SetPatience(p, 50*time.Millisecond)
	supervisor := readPid(t, p.Stdout())
	deafen(t, p)
	if err := p.Close(t.Context()); err == nil {
		t.Error("Close does not say that the end could not be established")
	}
	awaitEnd(t, supervisor)
	if left := alive(); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
}

// deafen has the orders for a supervisor end in a pipe that nobody reads.
func deafen(t *testing.T, p *proc.Process) {
	t.Helper()
	nobody, into, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := proc.Orders(p).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	kept := -1 // the supervisor is not to see the end of its orders
	t.Cleanup(func() {
		if err := errors.Join(unix.Close(kept), nobody.Close(), into.Close()); err != nil {
			t.Error(err)
		}
	})
	var dupErr error
	if err := conn.Control(func(fd uintptr) {
		if kept, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
			dupErr = unix.Dup3(int(into.Fd()), int(fd), unix.O_CLOEXEC)
		}
	}); err != nil || dupErr != nil {
		t.Fatal(err, dupErr)
	}
}

// shell2 starts a script and leaves the closing to the test.
func shell2(t *testing.T, cfg proc.Config, script string) *proc.Process {
	t.Helper()
	cfg.Path, cfg.Args = "sh", []string{"-c", script}
	p, err := proc.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func readPid(t *testing.T, r io.Reader) int {
	t.Helper()
	line := make([]byte, 20)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func openFiles(t *testing.T, pid string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/" + pid + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	slices.Sort(files)
	return files
}

// A child has its input and its output and nothing else, and this process keeps nothing.
func TestNoDescriptorLeaks(t *testing.T) {
	inModes(t, func(t *testing.T) {
		want := []string{"0", "1", "2"}
		if proc.Supervised() {
			inherited, err := unix.Dup(0) // without close-on-exec, as from whoever started this program
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(inherited) }() // of no use
		} else { // what whoever started this program leaves open goes on to its children
			for _, name := range openFiles(t, "self") {
				fd, err := strconv.Atoi(name)
				if err != nil {
					t.Fatal(err)
				}
				flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
				if err == nil && fd > 2 && flags&unix.FD_CLOEXEC == 0 {
					want = append(want, name)
				}
			}
			slices.Sort(want)
		}
		run := func() {
			p := shell(t, proc.Config{StdinPipe: true, StdoutPipe: true, Stderr: io.Discard}, "echo $PPID; exec cat")
			parent := readPid(t, p.Stdout())
			if _, err := io.WriteString(p.Stdin(), "x\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(p.Stdout(), make([]byte, 2)); err != nil { // it is cat now
				t.Fatal(err)
			}
			if got := openFiles(t, strconv.Itoa(p.Pid())); !slices.Equal(got, want) {
				t.Errorf("the child has %v, want %v", got, want)
			}
			if proc.Supervised() {
				for fd := range 3 {
					if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", parent, fd)); to != "/dev/null" {
						t.Errorf("the supervisor holds %s, %v", to, err)
					}
				}
				environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", parent))
				if err != nil || bytes.Contains(environ, []byte("hunter2")) {
					t.Errorf("the supervisor's environment has a secret: %v", err)
				}
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, cfg := range []proc.Config{{Path: "/nonexistent/program"}, {Path: "sh", Dir: "/nonexistent"}} {
				cfg.StdinPipe, cfg.StdoutPipe, cfg.Stderr = true, true, io.Discard
				if _, err := proc.Start(cfg); err == nil {
					t.Error("it started")
				}
			}
		}
		t.Setenv("MY_PASSWORD", "hunter2")
		run()
		before := openFiles(t, "self")
		for range 3 {
			run()
		}
		if after := openFiles(t, "self"); len(after) != len(before) {
			t.Errorf("%d open files before, %d after: %v", len(before), len(after), after)
		}
	})
}

// Arguments and environment beyond what a pipe holds reach the child.
func TestLargeStart(t *testing.T) {
	inModes(t, func(t *testing.T) {
		args := []string{"-c", `echo ${#1} ${#2} ${#BIG}`, "sh", strings.Repeat("ä", 50_000), strings.Repeat("x\n", 50_000)}
		out := proc.NewCapture(100, 0)
		p, err := proc.Start(proc.Config{Path: "bash", Args: args, Stdout: out, Env: map[string]string{"BIG": strings.Repeat("b", 100_000), "LC_ALL": "C"}})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, p)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := out.Text(noMark); got != "100000 100000 100000\n" {
			t.Errorf("output %q", got)
		}
	})
}

// Bytes that are not UTF-8 in a path, an argument or the environment are the child's as they are.
func TestBytesAreKept(t *testing.T) {
	inModes(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "d\xffr")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		out := proc.NewCapture(1000, 0)
		p, err := proc.Start(proc.Config{Path: "sh", Args: []string{"-c", `pwd -P; echo "$1 $V"`, "sh", "a\xfeb"}, Dir: dir, Stdout: out, Env: map[string]string{"V": "c\xfdd"}})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, p)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := out.Text(noMark); !strings.HasSuffix(got, "/d\xffr\na\xfeb c\xfdd\n") {
			t.Errorf("output %q", got)
		}
	})
}

// The hidden argument does nothing for a person.
func TestSupervisorByHand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := exec.Command(self, "offshoot-supervise-process", "sh")
	out, err := h.CombinedOutput()
	if h.ProcessState.ExitCode() != 2 || !bytes.Contains(out, []byte("not for people")) {
		t.Errorf("%v, said %q", err, out)
	}
}
