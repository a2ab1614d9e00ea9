package shell

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/offshoot-dev/offshoot/internal/proc"
)

// grace is what a command gets between the request to end and the killing.
const grace = time.Second

// Local runs commands on this machine, as this user, without a sandbox. Their
// environment is this process's without secrets (core W34).
type Local struct {
	// Shell is the program that is given "-c" and the command; "" is bash, or sh
	// where there is no bash.
	Shell string
	// Env is merged into the scrubbed environment. It must not be modified afterwards.
	Env map[string]string

	mu      sync.Mutex // guards following
	running map[*proc.Process]struct{}
	aborted bool
}

// Abort kills every command that runs, with its whole process tree and without any
// grace, and refuses new ones: for a program that ends at once.
func (l *Local) Abort() error {
	l.mu.Lock()
	l.aborted = true
	running := make([]*proc.Process, 0, len(l.running))
	for p := range l.running {
		running = append(running, p)
	}
	l.mu.Unlock()
	var errs []error
	for _, p := range running {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// start starts a command unless the executor was aborted.
func (l *Local) start(c proc.Config) (*proc.Process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aborted {
		return nil, errors.New("the program is ending")
	}
	p, err := proc.Start(c)
	if err != nil {
		return nil, err
	}
	if l.running == nil {
		l.running = map[*proc.Process]struct{}{}
	}
	l.running[p] = struct{}{}
	return p, nil
}

func (l *Local) ended(p *proc.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, p)
}

var _ Executor = (*Local)(nil)

// Name returns "local".
func (l *Local) Name() string { return "local" }

func (l *Local) shell() string {
	if l.Shell != "" {
		return l.Shell
	}
	if path, err := exec.LookPath("bash"); err == nil {
		return path
	}
	return "sh"
}

// Run runs a command with no input. See Executor.
func (l *Local) Run(ctx context.Context, spec Spec) (out Outcome, err error) {
	if err := ctx.Err(); err != nil {
		return Outcome{Code: -1}, context.Cause(ctx)
	}
	head := spec.MaxOutput - spec.MaxOutput/3
	capture := proc.NewCapture(head, spec.MaxOutput-head)
	dropped := func(n int) string { return DroppedLine(n, spec.MaxOutput) }
	begin := time.Now()
	p, err := l.start(proc.Config{
		Path: l.shell(), Args: []string{"-c", spec.Command}, Dir: spec.Dir, Env: l.Env,
		Stdout: capture, Stderr: capture, Grace: grace,
	})
	if err != nil {
		return Outcome{Code: -1}, err
	}
	defer l.ended(p)
	timed, cancel := context.WithTimeout(ctx, spec.Timeout)
	defer cancel()
	select {
	case <-p.Done():
	case <-timed.Done():
	}
	cut := false
	select {
	case <-p.Done(): // it ended by itself, even if its time ended in the same moment
	default:
		cut = true
	}
	// The grace must not be cut short by the very end that this acts on.
	if err := p.Close(context.WithoutCancel(ctx)); err != nil {
		return Outcome{Code: -1, Output: capture.Text(dropped), Total: capture.Total()}, err
	}
	exit, err := p.Wait(ctx) // closed, so it answers at once
	out = Outcome{
		Output: capture.Text(dropped), Total: capture.Total(), Took: time.Since(begin),
		Code: exit.Code, Signal: exit.Signal, Ended: exit.Left,
	}
	switch {
	case err != nil:
		return out, err
	case cut && ctx.Err() != nil:
		return out, fmt.Errorf("the command was cancelled: %w", context.Cause(ctx))
	}
	out.TimedOut = cut
	return out, nil
}
