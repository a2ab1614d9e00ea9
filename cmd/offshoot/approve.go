package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/tool"
)

// terminalApprover asks the person at the terminal, one question at a time.
type terminalApprover struct {
	tty   string
	pause func() (resume func()) // keeps the progress display quiet meanwhile
	turn  chan struct{}          // holds one token: whoever has it may ask
}

func newTerminalApprover(pause func() func()) *terminalApprover {
	a := &terminalApprover{tty: "/dev/tty", pause: pause, turn: make(chan struct{}, 1)}
	a.turn <- struct{}{}
	return a
}

// Approve implements tool.Approver.
func (a *terminalApprover) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	select {
	case <-a.turn:
	case <-ctx.Done():
		return tool.ApprovalCancelled, nil
	}
	defer func() { a.turn <- struct{}{} }()
	resume := a.pause()
	defer resume()
	tty, err := os.OpenFile(a.tty, os.O_RDWR, 0)
	if err != nil {
		return tool.ApprovalUnavailable, fmt.Errorf("ask: %w", err)
	}
	defer func() { _ = tty.Close() }() // nothing is buffered in it
	if _, err := fmt.Fprintf(tty, "\n%s\nAllow this once? [y/N] ", describeRequest(req)); err != nil {
		return tool.ApprovalUnavailable, fmt.Errorf("ask: %w", err)
	}
	// A terminal's read can only be ended through its deadline.
	stop := context.AfterFunc(ctx, func() { _ = tty.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(tty).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return tool.ApprovalCancelled, nil
	case err != nil:
		return tool.ApprovalUnavailable, fmt.Errorf("ask: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return tool.ApprovalAllowedOnce, nil
	}
	return tool.ApprovalRejected, nil
}

// describeRequest words a question. Control characters of a model's arguments
// must not reach the terminal.
func describeRequest(req *tool.ApprovalRequest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The agent wants to call %s", req.Tool)
	if req.Cwd != "" {
		fmt.Fprintf(&b, " in %s", req.Cwd)
	}
	b.WriteString(":\n  ")
	if req.Summary != "" {
		b.WriteString(printable(req.Summary) + "\n  ")
	}
	b.WriteString(printable(clip(string(req.Args), 2000)))
	if req.Reason != "" {
		b.WriteString("\n(" + printable(req.Reason) + ")")
	}
	return b.String()
}

// printable replaces control characters, so that text from a model or a file
// cannot command the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < 0x20 || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069':
			return '\uFFFD'
		}
		return r
	}, s)
}

// clip cuts a text to at most n runes.
func clip(s string, n int) string {
	count := 0
	for i := range s {
		if count == n {
			return s[:i] + "…"
		}
		count++
	}
	return s
}
