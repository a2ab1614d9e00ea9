// Package proc runs one child process and ends it with everything it started.
//
// A Process has a scrubbed environment, a session and process group of its own,
// pipes that belong to this package, and output that is captured within a bound.
// When its first process exits, or when it is closed, whatever is left of its tree
// is ended too, and nothing of this package runs on after that.
//
// How much of the tree can be found depends on the program and the system:
//
// On Linux, in a program that calls [Supervise] first of all, each Process has a
// supervisor: the program itself, executed again, which adopts every orphan of the
// tree. The tree is then every process that descends from the first one, whatever
// it did to its session, its parents or its environment. It is ended too when this
// process dies, of SIGKILL even. Work that is handed to a process outside, such as a
// service manager, is not part of it, and a process that changed its user may not be
// killed.
//
// On Linux in any other program, and when a supervisor itself is killed, the tree
// is every process in the group or session of the first one, every descendant of it
// that has not been orphaned, and every process that carries the mark that Start
// puts in the environment: a double-forked daemon is found by the mark. What leaves
// the group, is orphaned, and clears its environment escapes, and so may one that
// replaces itself by a new process all the time. If this process dies, the first
// process is killed and nothing else.
//
// On other Unix systems the tree is the process group, which is killed once its
// first process has ended; what leaves the group escapes, and everything goes on if
// this process dies. Windows is not supported. Floor 0.
package proc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// DefaultGrace is the time between the request to end and the killing.
const DefaultGrace = 2 * time.Second

// killBound is how long killed processes may take to vanish before that is an
// error: a process can hang in the kernel, out of reach of every signal.
const killBound = 5 * time.Second

// drainBound is how long the output may stay open after the tree has ended.
const drainBound = time.Second

// Config describes a process. Start does not keep it.
type Config struct {
	// Path is the program, looked up in PATH if it has no separator; Args are its
	// arguments without the program itself.
	Path string
	Args []string
	// Dir is the working directory; "" is this process's.
	Dir string
	// Environ is what to inherit from, as "NAME=value"; nil is this process's
	// environment. It is scrubbed (see Scrub); Env is merged afterwards, unscrubbed.
	Environ []string
	Env     map[string]string
	// StdinPipe asks for Process.Stdin; otherwise reading yields the end at once.
	StdinPipe bool
	// StdoutPipe asks for Process.Stdout; Stdout must then be nil.
	StdoutPipe bool
	// Stdout and Stderr take the output and must not block. They are written to from
	// one goroutine each, or from a single one if they are equal, so their types must be
	// comparable. nil discards.
	Stdout, Stderr io.Writer
	// EOFGrace is the time that the first process gets, when it is closed, to end by
	// itself because its input has ended, before the request to end; 0 is none. It needs
	// StdinPipe.
	EOFGrace time.Duration
	// Grace is the time between the request to end and the killing when the process
	// is closed; 0 is DefaultGrace, negative is none.
	Grace time.Duration
}

// Exit says how the first process ended.
type Exit struct {
	// Code is the exit code, or -1 when a signal ended it.
	Code int
	// Signal is the name of that signal, or "".
	Signal string
	// Left is how many other processes of the tree were still there and were killed.
	Left int
}

// Process is a started process. All methods may be called concurrently.
type Process struct {
	cmd      *exec.Cmd // of the first process, or of its supervisor
	orders   *os.File  // to the supervisor; nil if there is none
	pid      int
	birth    uint64 // of pid, see member; 0 where there is no /proc
	mark     string
	eofGrace time.Duration
	grace    time.Duration
	patience time.Duration // for killed processes to vanish
	asked    asker
	stdin    *os.File
	stdout   *os.File

	closing   chan struct{} // closed when Close is first called
	hurry     chan struct{} // closed when the grace is over
	hurryOnce sync.Once
	exited    chan struct{} // closed when the first process has ended
	done      chan struct{} // closed when the tree has ended and the output is drained
	closed    chan struct{} // closed when closeErr stands

	closeOnce sync.Once
	closeErr  error // before closed is closed

	exit    Exit  // before done is closed
	exitErr error // before done is closed
}

// Start starts a process. The caller must Close it, also after it has exited.
func Start(cfg Config) (*Process, error) {
	p := &Process{
		mark: rand.Text(), eofGrace: cfg.EOFGrace, grace: cfg.Grace, patience: 2*killBound + drainBound,
		closing: make(chan struct{}), hurry: make(chan struct{}),
		exited: make(chan struct{}), done: make(chan struct{}), closed: make(chan struct{}),
	}
	if p.grace == 0 {
		p.grace = DefaultGrace
	}
	fail := func(err error) (*Process, error) { return nil, fmt.Errorf("start %s: %w", cfg.Path, err) }
	switch {
	case !supported:
		return fail(errors.ErrUnsupported)
	case cfg.StdoutPipe && cfg.Stdout != nil:
		return fail(errors.New("both a pipe and a writer for the output"))
	case cfg.EOFGrace > 0 && !cfg.StdinPipe:
		return fail(errors.New("a grace for the end of the input, and no input"))
	}
	p.cmd = exec.Command(cfg.Path, cfg.Args...)
	if p.cmd.Err != nil {
		return fail(p.cmd.Err)
	}
	p.cmd.Dir = cfg.Dir
	inherited := cfg.Environ
	if inherited == nil {
		inherited = os.Environ()
	}
	p.cmd.Env = environ(inherited, cfg.Env, p.mark)
	pl, err := p.plumb(&cfg)
	if err != nil {
		return fail(err)
	}
	run := p.runAlone
	if Supervised() {
		run = p.runSupervised
	}
	started := make(chan error, 1)
	go run(pl, started)
	if err := <-started; err != nil {
		return fail(err)
	}
	return p, nil
}

// runAlone starts the process, waits for it, ends what it left, and reaps it. It is
// the one goroutine of a Process beside one for each writer, which it joins. It
// keeps its thread, because the kernel's signal at the death of the parent means the
// thread that started the child.
func (p *Process) runAlone(pl *plumbing, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	isolate(p.cmd)
	err := p.cmd.Start()
	pl.close(pl.child...)
	if err != nil {
		pl.close(pl.ours...)
		started <- err
		return
	}
	p.pid = p.cmd.Process.Pid
	p.birth = birthOf(p.pid)
	pl.copy()
	started <- nil

	waitErr := awaitExit(p.pid)
	if seesExit {
		close(p.exited)
	}
	p.giveGrace()
	left, sweepErr := p.sweep()
	state, err := p.cmd.Process.Wait()
	afterReap(p.pid)
	if err == nil {
		p.exit = exitOf(state)
	}
	p.exit.Left = left
	p.exitErr = errors.Join(waitErr, sweepErr, err)
	if !seesExit {
		close(p.exited)
	}
	pl.drain()
	close(p.done)
}

// giveGrace lets the rest of a tree that is being closed end by itself, after the
// first process has ended.
func (p *Process) giveGrace() {
	select {
	case <-p.closing:
	default:
		return
	}
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left, _ := p.members()
		if len(left) == 0 {
			return
		}
		p.signalLate(left)
		select {
		case <-p.hurry:
			return
		case <-time.After(pause):
		}
	}
}

// sweep kills every process of the tree until none is left, and counts them. A first
// process that is not reaped is left to its parent's Wait.
func (p *Process) sweep() (int, error) {
	killed := map[int]bool{}
	deadline := time.Now().Add(killBound)
	unsure := 0
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left, sure := p.members()
		if len(left) == 0 {
			// Not to be told for three passes is no exec but an empty environment.
			if unsure++; sure || unsure > 3 {
				break
			}
		}
		if len(left) > 0 && time.Now().After(deadline) {
			pids := make([]int, len(left))
			for i, m := range left {
				pids[i] = m.pid
			}
			return len(killed), stillThere(p.pid, pids)
		}
		for _, m := range left {
			m.kill()
			killed[m.pid] = true
		}
		<-time.After(pause)
	}
	for pid := range killed {
		reapAdopted(pid)
	}
	delete(killed, p.pid) // it counts as the first one, not as what it left
	return len(killed), nil
}

func stillThere(pid int, left []int) error {
	return fmt.Errorf("end process tree %d: still there %v after they were killed: %v", pid, killBound, left)
}

// Pid returns the id of the first process, which is also its group's.
func (p *Process) Pid() int { return p.pid }

// Stdin returns the process's standard input if Config.StdinPipe asked for it.
// Closing it is how most programs are told to end.
func (p *Process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// Stdout returns the process's standard output if Config.StdoutPipe asked for it.
// The caller reads it to its end, which comes with the end of the tree at the
// latest. Close closes it.
func (p *Process) Stdout() io.ReadCloser {
	if p.stdout == nil {
		return nil
	}
	return p.stdout
}

// Exited is closed when the first process has ended. What it left may still run, and
// output may still come.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Done is closed when the whole tree has ended and the output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the whole tree and returns how the first process
// ended. The end of ctx ends the waiting, not the process. An error that is not
// ctx's says that the end could not be established.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.exitErr
	default:
	}
	select {
	case <-p.done:
		return p.exit, p.exitErr
	case <-ctx.Done():
		return Exit{Code: -1}, context.Cause(ctx)
	}
}

// Close ends the process. It closes the input and gives the first process EOFGrace
// to end because of that; then it asks the whole tree to end and gives it Grace;
// then it kills what is left. A step that has nothing left to wait for is over at
// once. It returns when nothing of the tree and of this package runs any more, or
// with an error naming processes that cannot be killed. The end of ctx only cuts
// the graces short. Close is memoised; after the process has exited it only
// releases what is left.
func (p *Process) Close(ctx context.Context) error {
	p.closeOnce.Do(func() {
		p.closeErr = p.end(ctx)
		close(p.closed)
	})
	<-p.closed
	return p.closeErr
}

// Kill ends the whole tree without any grace, also while a Close is giving it one,
// and returns when it is gone. The process must still be closed.
func (p *Process) Kill() error {
	p.hurryOnce.Do(func() { close(p.hurry) })
	return p.kill()
}

func (p *Process) end(ctx context.Context) error {
	close(p.closing)
	if p.stdin != nil {
		_ = p.stdin.Close() // the child may have closed its end long ago
	}
	if p.eofGrace > 0 {
		p.await(ctx, p.eofGrace, p.exited)
	}
	if p.grace > 0 && !p.over(ctx) {
		p.requestEnd()
		p.await(ctx, p.grace, p.done)
	}
	p.hurryOnce.Do(func() { close(p.hurry) })
	err := p.kill()
	if p.stdout != nil {
		_ = p.stdout.Close() // whoever read it saw the end already
	}
	return err
}

// over reports whether no grace is to be given.
func (p *Process) over(ctx context.Context) bool {
	select {
	case <-p.done:
	case <-p.hurry:
	case <-ctx.Done():
	default:
		return false
	}
	return true
}

// await waits for event within a grace.
func (p *Process) await(ctx context.Context, grace time.Duration, event <-chan struct{}) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-event:
	case <-timer.C:
	case <-ctx.Done():
	case <-p.hurry:
	}
}

// requestEnd asks the whole tree to end. Stopped processes are woken for it.
func (p *Process) requestEnd() {
	if p.orders != nil {
		p.order(orderEnd)
		return
	}
	p.signalEnd()
}

// kill kills the tree and waits until it is gone. The first process is killed first,
// so that a shell does not start the next command of its list.
func (p *Process) kill() error {
	select {
	case <-p.done:
		return p.exitErr
	default:
	}
	bound := time.NewTimer(p.patience)
	defer bound.Stop()
	if p.orders != nil {
		p.order(orderKill)
		select {
		case <-p.done:
			return p.exitErr
		case <-bound.C:
		}
		// A supervisor that does not obey is stuck: what it kept is swept
		// without it.
		bound.Reset(2*killBound + drainBound)
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end process %d: %w", p.pid, err)
	}
	select {
	case <-p.done:
		return p.exitErr
	case <-bound.C:
		return fmt.Errorf("end process %d: it does not end although it was killed", p.pid)
	}
}
