package fakeagent

import (
	"context"
	"io"
	"sync"

	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

// Link is an agent that runs as a goroutine and looks like a process.
type Link struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	done   chan struct{}
	status int
	agent  *Agent
}

// Launch starts an agent as a goroutine, with the arguments that a program would get.
func Launch(cfg proc.Config, p Protocol, play func(string) (Play, error), faults Faults) *Link {
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	l := &Link{stdin: stdin, stdout: stdout, done: make(chan struct{})}
	a := New(play, faults, cfg.Args, in, out)
	l.agent = a
	go func() { // ends with the agent, which Close waits for
		l.status = a.Serve(p)
		_ = out.Close()
		_ = in.Close()
		close(l.done)
	}()
	return l
}

// Stdin is the agent's input.
func (l *Link) Stdin() io.WriteCloser { return l.stdin }

// Stdout is the agent's output.
func (l *Link) Stdout() io.ReadCloser { return l.stdout }

// Done is closed when the agent has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// Wait waits for the agent's end.
func (l *Link) Wait(ctx context.Context) (proc.Exit, error) {
	select {
	case <-l.done:
		return proc.Exit{Code: l.status}, nil
	case <-ctx.Done():
		return proc.Exit{}, context.Cause(ctx)
	}
}

// Kill has the agent quit as if by a signal.
func (l *Link) Kill() error {
	l.agent.Quit(137)
	return nil
}

// Close ends the agent's input and waits for its end: a goroutine cannot be killed.
func (l *Link) Close(context.Context) error {
	err := l.stdin.Close()
	<-l.done
	return err
}

// Desk is where agents that run as goroutines look up what they do. It is safe for
// concurrent use.
type Desk struct {
	mu    sync.Mutex
	plays map[string]Play
}

// Script says what is done with a prompt, by its exact text.
func (d *Desk) Script(prompt string, c subagenttest.Child) {
	p := Play{Text: c.Text, Structured: c.Structured, Hold: c.Hold, Deaf: c.Deaf, End: string(c.End)}
	if c.Panic {
		p.Exit = 134
	}
	if c.End == subagent.StopCompleted {
		p.End = ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plays == nil {
		d.plays = map[string]Play{}
	}
	d.plays[prompt] = p
}

// Play looks a prompt up; one that is not there is played as its directives say.
func (d *Desk) Play(prompt string) (Play, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, ok := d.plays[prompt]; ok {
		return p, nil
	}
	return Parse(prompt)
}
