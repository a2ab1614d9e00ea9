package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

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
	about, hidden := describeRequest(req)
	if _, err := fmt.Fprintf(tty, "\n%s\n", about); err != nil {
		return tool.ApprovalUnavailable, fmt.Errorf("ask: %w", err)
	}
	// What was typed before the question was there is no answer to it.
	if err := flushTerminal(tty); err != nil {
		return tool.ApprovalUnavailable, fmt.Errorf("ask: %w", err)
	}
	if _, err := io.WriteString(tty, prompting(req, hidden)); err != nil {
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
	if allows(line, hidden) {
		return tool.ApprovalAllowedOnce, nil
	}
	return tool.ApprovalRejected, nil
}

func flushTerminal(tty *os.File) error {
	conn, err := tty.SyscallConn() // Fd would end the deadlines
	if err != nil {
		return err
	}
	var flushErr error
	if err := conn.Control(func(fd uintptr) { flushErr = flushInput(int(fd)) }); err != nil {
		return err
	}
	return flushErr
}

// prompting is what is asked when so many characters are not shown. It says what a yes
// means, which for some products is more than once.
func prompting(req *tool.ApprovalRequest, hidden int) string {
	yes := "Allow this once"
	for _, o := range req.Options {
		if o.Outcome == tool.ApprovalAllowedOnce {
			yes = printable(o.Label)
		}
	}
	if hidden == 0 {
		return yes + "? [y/N] "
	}
	return fmt.Sprintf("%s? %s of this call are NOT shown. Type yes in full to allow it all the same: ", yes, plural(int64(hidden), "character"))
}

// allows reads the answer to it.
func allows(line string, hidden int) bool {
	line = strings.ToLower(strings.TrimSpace(line))
	return line == "yes" || line == "y" && hidden == 0
}

// describeRequest words a question and counts the characters that it does not
// show. It shows what will run, not the tool's summary, which need not say all.
func describeRequest(req *tool.ApprovalRequest) (text string, hidden int) {
	var b strings.Builder
	fmt.Fprintf(&b, "The agent wants to call %s", escapeInvisible(req.Tool))
	if req.Cwd != "" {
		fmt.Fprintf(&b, " in %s", printable(req.Cwd))
	}
	args, hidden := unfold(string(req.Args))
	b.WriteString(":\n  " + args)
	if len(req.Path) > 1 {
		b.WriteString("\n(for the agent " + printable(strings.Join(req.Path, " > ")) + ")")
	}
	if req.Reason != "" {
		b.WriteString("\n(" + printable(req.Reason) + ")")
	}
	return b.String(), hidden
}

// What a person can be expected to read before an answer.
const (
	maxAskedLines = 200
	maxAskedBytes = 16 << 10
	askedColumns  = 80
)

// unfold shows JSON as it is, so that different arguments never look the same:
// invisible characters are escapes, and after an escaped line break the line ends
// as well. It returns how many characters are beyond what a person can read.
func unfold(args string) (text string, hidden int) {
	var b strings.Builder
	lines, column, escaped := 1, 0, false
	for i, c := range args {
		if lines > maxAskedLines || b.Len() > maxAskedBytes {
			return b.String(), utf8.RuneCountInString(args[i:])
		}
		breaks := c == '\n' || escaped && c == 'n'
		switch c {
		case '\n':
		case '\t', '\r':
			b.WriteByte(' ') // between values: in a string they are escapes
		default:
			b.WriteString(escapeRune(c))
		}
		escaped = c == '\\' && !escaped
		if column++; breaks {
			b.WriteString("\n    ")
		}
		if breaks || column == askedColumns {
			lines, column = lines+1, 0
		}
	}
	return b.String(), 0
}

// escapeInvisible makes JSON fit for a terminal, with the same meaning.
func escapeInvisible(s string) string {
	var b strings.Builder
	for _, c := range s {
		if c == '\n' { // between the lines
			b.WriteByte('\n')
			continue
		}
		b.WriteString(escapeRune(c))
	}
	return b.String()
}

func escapeRune(c rune) string {
	switch {
	case unicode.IsPrint(c):
		return string(c)
	case c > 0xffff:
		high, low := utf16.EncodeRune(c)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, c)
}

// legible is printable for a text of several lines: it keeps those and the tabs.
func legible(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j, cell := range cells {
			cells[j] = printable(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
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
