package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// stopper hears what ends a run early, from before anything is opened until the
// last line is written: a signal, the time limit, an output that cannot be written.
// The second signal ends the process at once.
type stopper struct {
	// ctx ends with the first reason.
	ctx context.Context

	limit   time.Duration
	cancel  context.CancelCauseFunc
	note    func(format string, args ...any)
	signals chan os.Signal
	quit    chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex // guards following
	signal   os.Signal  // the first one
	timedOut bool
	abort    func() error // ends what must not outlive the process, or nil
}

// abortBound is how long an exit at once may take to end the commands that run.
const abortBound = 2 * time.Second

// onExit has abort called before the process exits at once.
func (s *stopper) onExit(abort func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abort = abort
}

// exit ends the process now. Commands that agents run do not outlive it.
func (s *stopper) exit(code int) {
	s.mu.Lock()
	abort := s.abort
	s.mu.Unlock()
	if abort != nil {
		// A command that cannot be ended must not keep the process either.
		time.AfterFunc(abortBound, func() { os.Exit(code) })
		if err := abort(); err != nil {
			s.note("offshoot: %v", err)
		}
	}
	os.Exit(code)
}

// newStopper begins to listen; limit 0 is none. end is to follow.
func newStopper(ctx context.Context, limit time.Duration, note func(string, ...any)) *stopper {
	s := &stopper{limit: limit, note: note, signals: make(chan os.Signal, 4), quit: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	signal.Notify(s.signals, os.Interrupt, syscall.SIGTERM)
	s.running.Go(s.run)
	return s
}

func (s *stopper) end() {
	signal.Stop(s.signals)
	close(s.quit)
	s.running.Wait()
	s.cancel(nil)
}

func (s *stopper) run() {
	var timeout <-chan time.Time
	if s.limit > 0 {
		t := time.NewTimer(s.limit)
		defer t.Stop()
		timeout = t.C
	}
	for {
		select {
		case sig := <-s.signals:
			if first, _ := s.reasons(); first != nil {
				s.exit(exitCodeOf(sig))
			}
			s.mu.Lock()
			s.signal = sig
			s.mu.Unlock()
			s.cancel(fmt.Errorf("stopped by %v", sig))
			// Where nobody reads stderr this waits, and the second signal must be heard.
			s.running.Go(func() { s.note("offshoot: %v: everything is being stopped; once more stops at once", sig) })
		case <-timeout:
			s.mu.Lock()
			s.timedOut = true
			s.mu.Unlock()
			s.cancel(fmt.Errorf("timed out after %s", s.limit))
		case <-s.quit:
			return
		}
	}
}

// broken says that the output cannot be written.
func (s *stopper) broken() { s.cancel(errBroken) }

var errBroken = errors.New("the output cannot be written")

// reasons returns the first signal, or nil, and whether the time limit was reached.
func (s *stopper) reasons() (sig os.Signal, timedOut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signal, s.timedOut
}

// cause is what the agents are cancelled with.
func (s *stopper) cause() session.Cause {
	sig, timedOut := s.reasons()
	switch {
	case sig != nil:
		return session.Cause{Kind: session.CauseUser}
	case timedOut:
		return session.Cause{Kind: session.CauseHook, Reason: "the time limit was reached"}
	}
	return session.Cause{Kind: session.CauseHook, Reason: errBroken.Error()}
}
