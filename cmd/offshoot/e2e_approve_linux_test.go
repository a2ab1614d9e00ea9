package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

// terminal is a pseudo terminal: what a person sees and types.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	r      *bufio.Reader
	seen   strings.Builder
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() }) // nothing is buffered in it
	var unlock, n int32
	ioctl(t, master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	ioctl(t, master, syscall.TIOCGPTN, unsafe.Pointer(&n))
	size := struct{ rows, cols, x, y uint16 }{rows: 50, cols: 200}
	ioctl(t, master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := master.SetReadDeadline(time.Now().Add(processBound)); err != nil {
		t.Fatal(err)
	}
	return &terminal{t: t, master: master, slave: slave, r: bufio.NewReader(master)}
}

func ioctl(t *testing.T, f *os.File, request uintptr, arg unsafe.Pointer) {
	t.Helper()
	conn, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var errno syscall.Errno
	if err := conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	}); err != nil || errno != 0 {
		t.Fatalf("ioctl %x: %v, %v", request, err, errno)
	}
}

// begin starts a process that has this terminal as its own, with stdin and stderr.
func (c *terminal) begin(p *process) {
	c.t.Helper()
	p.cmd.Stdin, p.cmd.Stderr = c.slave, c.slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.begin()
	// From now on the end of the process is the end of what can be read.
	if err := c.slave.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// until reads up to text; "" reads to the end.
func (c *terminal) until(text string) {
	c.t.Helper()
	from := c.seen.Len()
	for {
		b, err := c.r.ReadByte()
		switch {
		case errors.Is(err, syscall.EIO) && text == "":
			return
		case err != nil:
			c.t.Fatalf("waiting for %q: %v after %q", text, err, c.seen.String())
		}
		c.seen.WriteByte(b)
		if text != "" && strings.HasSuffix(c.seen.String()[from:], text) {
			return
		}
	}
}

func (c *terminal) enter(text string) {
	c.t.Helper()
	if _, err := c.master.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
}

const question = "Allow this once? [y/N] "

// TestApproval: at a terminal a person is asked before a command runs; the
// question and the answer are on record (core T13, T33).
func TestApproval(t *testing.T) {
	t.Parallel()
	const prompt = `[[fake:tool bash {"command":"echo \u001b[31mran >> ran.txt"}]] [[fake:tool read {"path":"a.txt"}]] [[fake:reply went on]]`
	for _, tt := range []struct {
		answer, outcome string
		ran             int
	}{
		{"y\n", "allowed-once", 1}, {"YES\n", "allowed-once", 1}, {"n\n", "rejected", 0}, {"\n", "rejected", 0}, {"sure\n", "rejected", 0},
	} {
		t.Run(strings.TrimSpace(tt.answer), func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.write("a.txt", "alpha\n")
			c := newTerminal(t)
			p := w.prepare("run", prompt)
			c.begin(p)
			c.until(question)
			c.enter(tt.answer)
			c.until("")
			e := p.wait()
			if e.code != 0 || e.stdout != "went on\n" {
				t.Errorf("%v\nterminal: %q", e, c.seen.String())
			}
			if seen := c.seen.String(); !strings.Contains(seen, "The agent wants to call bash in "+w.cwd) || strings.Contains(seen, "\x1b[31m") || strings.Count(seen, question) != 1 {
				t.Errorf("terminal: %q", seen)
			}
			if n := w.count("ran.txt"); n != tt.ran {
				t.Errorf("the command ran %d times", n)
			}
			w.verify()
			root, _ := w.tree()
			asked := payloads[*session.ApprovalAsked](t, root)
			decided := payloads[*session.ApprovalDecided](t, root)
			if len(asked) != 1 || len(decided) != 1 || asked[0].ToolName != "bash" || decided[0].ID != asked[0].ID || decided[0].Outcome != tt.outcome {
				t.Errorf("asked %+v, decided %+v", asked, decided)
			}
			var want []string
			if tt.ran == 0 {
				want = []string{"DENIED"}
			}
			if diff := cmp.Diff(want, codes(t, root)); diff != "" {
				t.Errorf("codes (-want +got):\n%s", diff)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// TestApprovalOfWhatIsSeen: what was typed before the question does not answer it,
// and one key does not allow what is not shown.
func TestApprovalOfWhatIsSeen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, ahead, pad, asked, answer string
		ran                             int
	}{
		{name: "typed ahead", ahead: "y\ny\n", asked: question, answer: "n\n"},
		{name: "one key", pad: strings.Repeat("x", 20_000), asked: "all the same: ", answer: "y\n"},
		{name: "in full", pad: strings.Repeat("x", 20_000), asked: "all the same: ", answer: "yes\n", ran: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			c := newTerminal(t)
			p := w.prepare("run", `[[fake:tool bash {"command":"echo ran >> ran.txt # `+tt.pad+`"}]] [[fake:reply went on]]`)
			c.enter(tt.ahead)
			c.begin(p)
			c.until(tt.asked)
			c.enter(tt.answer)
			c.until("")
			if e := p.wait(); e.code != 0 || w.count("ran.txt") != tt.ran {
				t.Errorf("%v\nterminal: %q", e, c.seen.String())
			}
		})
	}
}

// TestAnswerOnTerminal: a model's answer cannot command the terminal.
func TestAnswerOnTerminal(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--json"}} {
		w, _ := newModelWorld(t, fakemodel.OpenAI)
		c := newTerminal(t)
		p := w.prepare(append([]string{"run", "[[fake:reply a \x1b]0;t\x07 \u009b31m\tb\nc]]", "--quiet"}, args...)...)
		p.cmd.Stdout = c.slave
		c.begin(p)
		c.until("")
		seen := c.seen.String()
		if e := p.wait(); e.code != 0 || strings.ContainsAny(seen, "\x1b\x07\u009b") || args == nil && !strings.Contains(seen, "\uFFFD31m\tb\r\nc\r\n") {
			t.Errorf("%v\nterminal: %q", e, seen)
		}
	}
}

// TestApprovalInterrupted: an interrupt dismisses the question.
func TestApprovalInterrupted(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	c := newTerminal(t)
	p := w.prepare("run", `[[fake:tool bash {"command":"echo ran >> ran.txt"}]]`)
	c.begin(p)
	c.until(question)
	c.enter("\x03") // the terminal makes a signal of it
	c.until("")
	if e := p.wait(); e.code != 130 || e.stdout != "" || w.count("ran.txt") != 0 {
		t.Errorf("%v\nterminal: %q", e, c.seen.String())
	}
	root, _ := w.tree()
	if d := payloads[*session.ApprovalDecided](t, root); len(d) != 1 || d[0].Outcome != "cancelled" {
		t.Errorf("decided %+v", d)
	}
	w.followUp(root.Header.ID)
}

// TestApprovalOfChildren: nobody is asked below the root (seam COMP-24).
func TestApprovalOfChildren(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	c := newTerminal(t)
	p := w.prepare("run", delegation("a child", `[[fake:tool bash {"command":"echo ran >> ran.txt"}]] [[fake:reply I tried]]`)+"[[fake:reply done]]")
	c.begin(p)
	// Delegation itself changes nothing, or is asked for once.
	c.until("tokens")
	if strings.Contains(c.seen.String(), question) {
		c.enter("y\n")
	}
	c.until("")
	e := p.wait()
	if e.code != 0 || e.stdout != "done\n" || w.count("ran.txt") != 0 {
		t.Errorf("%v\nterminal: %q", e, c.seen.String())
	}
	w.verify()
	_, children := w.tree()
	if len(children) != 1 {
		t.Fatalf("%d children", len(children))
	}
	if got := codes(t, children[0]); len(got) != 1 || got[0] != "DENIED" {
		t.Errorf("codes of the child: %v", got)
	}
	if policies := payloads[*session.ApprovalPolicy](t, children[0]); len(policies) != 1 || policies[0].Policy != "never" || !policies[0].Delegated {
		t.Errorf("policies %+v", policies)
	}
}

// TestPermissions: what tools may do without a terminal.
func TestPermissions(t *testing.T) {
	t.Parallel()
	const prompt = `[[fake:tool bash {"command":"echo ran >> ran.txt"}]] [[fake:tool write {"path":"new.txt","content":"new\n"}]]` +
		`[[fake:tool edit {"path":"a.txt","old":"alpha","new":"omega"}]] [[fake:tool read {"path":"a.txt"}]] [[fake:reply it says {{match:alpha|omega}}]]`
	for _, tt := range []struct {
		permission string
		says       string
		denied     int
	}{
		{"", "alpha", 3}, {"read-only", "alpha", 3}, {"deny", "alpha", 3}, {"ask", "alpha", 3}, {"allow", "omega", 0},
	} {
		t.Run(tt.permission, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.write("a.txt", "alpha\n")
			args := []string{"run", prompt}
			if tt.permission != "" {
				args = append(args, "--permission", tt.permission)
			}
			if e := w.ok(args...); e.stdout != "it says "+tt.says+"\n" {
				t.Errorf("%v", e)
			}
			root, _ := w.tree()
			if got := codes(t, root); len(got) != tt.denied {
				t.Errorf("codes %v, want %d", got, tt.denied)
			}
			if done := tt.denied == 0; w.count("ran.txt") == 1 != done || w.count("new.txt") == 1 != done {
				t.Error("what ran is not what was permitted")
			}
			if asked := payloads[*session.ApprovalAsked](t, root); (len(asked) > 0) != (tt.permission == "ask") {
				t.Errorf("asked %+v", asked)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// A turn that was stopped is not drawn as one that was finished.
func TestStoppedTurnOnTerminal(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	c := newTerminal(t)
	p := w.prepare("run", "[[fake:stall]]")
	c.begin(p)
	if _, err := s.WaitRequest(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGINT)
	c.until("")
	if e := p.wait(); e.code != 130 {
		t.Errorf("%v", e)
	}
	if seen := c.seen.String(); !strings.Contains(seen, "■ agent") || strings.Contains(seen, "✓") {
		t.Errorf("terminal: %q", seen)
	}
}
