// Package proc runs one child process and ends it with everything it started.
//
// A Process has a scrubbed environment, a session and process group of its own,
// and output that is captured within a bound. When its first process exits, or
// when it is closed, whatever is left of its tree is ended too, and nothing of
// this package runs on after that.
//
// On Linux the tree is every process in the group or session of the first one,
// every descendant of it, and every process that carries the mark that Start puts
// in the environment: a double-forked daemon is found by the mark after it has
// left both. Only a process that leaves the group, is orphaned, and clears its
// environment escapes. Elsewhere the tree is the process group. The first process
// is also killed when this one dies. Windows is not supported. Floor 0.
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
	cmd    *exec.Cmd
	pid    int
	mark   string
	grace  time.Duration
	stdin  *os.File
	stdout *os.File

	closing   chan struct{} // closed when Close is first called
	hurry     chan struct{} // closed when the grace is over
	hurryOnce sync.Once
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
		mark: rand.Text(), grace: cfg.Grace,
		closing: make(chan struct{}), hurry: make(chan struct{}),
		done: make(chan struct{}), closed: make(chan struct{}),
	}
	if p.grace == 0 {
		p.grace = DefaultGrace
	}
	fail := func(err error) (*Process, error) { return nil, fmt.Errorf("start %s: %w", cfg.Path, err) }
	if !supported {
		return fail(errors.ErrUnsupported)
	}
	if cfg.StdoutPipe && cfg.Stdout != nil {
		return fail(errors.New("both a pipe and a writer for the output"))
	}
	p.cmd = exec.Command(cfg.Path, cfg.Args...)
	p.cmd.Dir = cfg.Dir
	inherited := cfg.Environ
	if inherited == nil {
		inherited = os.Environ()
	}
	p.cmd.Env = environ(inherited, cfg.Env, p.mark)
	isolate(p.cmd)
	pl, err := p.plumb(&cfg)
	if err != nil {
		return fail(err)
	}
	started := make(chan error, 1)
	go p.supervise(pl, started)
	if err := <-started; err != nil {
		return fail(err)
	}
	return p, nil
}

// plumbing is the pipes of one process.
type plumbing struct {
	child  []*os.File // the child's ends, closed once it runs
	ours   []*os.File // our ends, closed if it never runs
	copies []copying
}

type copying struct {
	from *os.File
	to   io.Writer
}

func (pl *plumbing) close(files ...*os.File) {
	for _, f := range files {
		_ = f.Close() // a pipe that was never used: there is nothing to lose
	}
}

func (p *Process) plumb(cfg *Config) (pl *plumbing, err error) {
	pl = &plumbing{}
	defer func() {
		if err != nil {
			pl.close(pl.child...)
			pl.close(pl.ours...)
		}
	}()
	outlet := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err == nil {
			pl.child, pl.ours = append(pl.child, w), append(pl.ours, r)
		}
		return r, w, err
	}
	if cfg.StdinPipe {
		r, w, err := os.Pipe()
		if err != nil {
			return pl, err
		}
		pl.child, pl.ours = append(pl.child, r), append(pl.ours, w)
		p.cmd.Stdin, p.stdin = r, w
	}
	if cfg.StdoutPipe || cfg.Stdout != nil {
		r, w, err := outlet()
		if err != nil {
			return pl, err
		}
		p.cmd.Stdout = w
		if cfg.StdoutPipe {
			p.stdout = r
		} else {
			pl.copies = append(pl.copies, copying{r, cfg.Stdout})
		}
	}
	switch cfg.Stderr {
	case nil:
	case cfg.Stdout:
		p.cmd.Stderr = p.cmd.Stdout // one pipe keeps the order of the lines
	default:
		r, w, err := outlet()
		if err != nil {
			return pl, err
		}
		p.cmd.Stderr = w
		pl.copies = append(pl.copies, copying{r, cfg.Stderr})
	}
	return pl, nil
}

// supervise starts the process, waits for it, ends what it left, and reaps it. It
// is the one goroutine of a Process beside one for each writer, which it joins.
// It keeps its thread, because the kernel's signal at the death of the parent
// means the thread that started the child.
func (p *Process) supervise(pl *plumbing, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	pl.close(pl.child...)
	if err != nil {
		pl.close(pl.ours...)
		started <- err
		return
	}
	p.pid = p.cmd.Process.Pid
	var copies sync.WaitGroup
	for _, c := range pl.copies {
		copies.Go(func() {
			// Reading ends with the tree, or with the deadline below. An error of the
			// writer must not block the child, so the rest is read and dropped.
			if _, err := io.Copy(c.to, c.from); err != nil {
				_, _ = io.Copy(io.Discard, c.from)
			}
		})
	}
	started <- nil

	waitErr := awaitExit(p.pid)
	p.giveGrace()
	left, sweepErr := p.sweep()
	state, err := p.cmd.Process.Wait()
	afterReap(p.pid)
	if err == nil {
		p.exit = exitOf(state)
	}
	p.exit.Left = left
	p.exitErr = errors.Join(waitErr, sweepErr, err)

	for _, c := range pl.copies {
		_ = c.from.SetReadDeadline(time.Now().Add(drainBound)) // pipes take deadlines
	}
	copies.Wait()
	for _, c := range pl.copies {
		_ = c.from.Close() // read to the end
	}
	close(p.done)
}

// giveGrace lets the rest of a tree that was asked to end do so, after the first
// process has ended.
func (p *Process) giveGrace() {
	select {
	case <-p.closing:
	default:
		return
	}
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if left, _ := p.members(); len(left) == 0 {
			return
		}
		select {
		case <-p.hurry:
			return
		case <-time.After(pause):
		}
	}
}

// sweep kills every process of the tree until none is left, and counts them. The
// first process is left to be reaped by its parent's Wait.
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
			return len(killed), fmt.Errorf("end process tree %d: still there %v after they were killed: %v", p.pid, killBound, pids)
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
	return len(killed), nil
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

// Close ends the process: it closes the input, asks the whole tree to end, gives it
// the grace, and kills what is left. It returns when nothing of the tree and of
// this package runs any more, or with an error naming processes that cannot be
// killed. The end of ctx only cuts the grace short. Close is memoised; after the
// process has exited it only releases what is left.
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
	select {
	case <-p.done:
	default:
		if p.grace > 0 && ctx.Err() == nil {
			p.requestEnd()
			grace := time.NewTimer(p.grace)
			defer grace.Stop()
			select {
			case <-p.done:
			case <-grace.C:
			case <-ctx.Done():
			case <-p.hurry:
			}
		}
	}
	p.hurryOnce.Do(func() { close(p.hurry) })
	err := p.kill()
	if p.stdout != nil {
		_ = p.stdout.Close() // whoever read it saw the end already
	}
	return err
}

// kill kills the tree and waits for supervise. The first process is killed first,
// so that a shell does not start the next command of its list.
func (p *Process) kill() error {
	select {
	case <-p.done:
		return p.exitErr
	default:
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end process %d: %w", p.pid, err)
	}
	bound := time.NewTimer(2*killBound + drainBound)
	defer bound.Stop()
	select {
	case <-p.done:
		return p.exitErr
	case <-bound.C:
		return fmt.Errorf("end process %d: it does not end although it was killed", p.pid)
	}
}
