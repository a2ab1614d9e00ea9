package shell

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/tool"
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
	begin := time.Now()
	p, err := proc.Start(proc.Config{
		Path: l.shell(), Args: []string{"-c", spec.Command}, Dir: spec.Dir, Env: l.Env,
		Stdout: capture, Stderr: capture, Grace: grace,
	})
	if err != nil {
		return Outcome{Code: -1}, err
	}
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
		return Outcome{Code: -1, Output: capture.Text(tool.OmittedLine), Total: capture.Total()}, err
	}
	exit, err := p.Wait(ctx) // closed, so it answers at once
	out = Outcome{
		Output: capture.Text(tool.OmittedLine), Total: capture.Total(), Took: time.Since(begin),
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
