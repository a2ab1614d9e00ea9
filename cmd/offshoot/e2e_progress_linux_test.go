package main

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
)

// TestTreeOnTerminal: while they work the tree shows label, model, tokens, tool calls and
// time of each agent; at the end the summary stands in its place. Nothing is wider than
// the terminal, and no model commands it.
func TestTreeOnTerminal(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	c := newTerminal(t)
	const most = 78
	size := struct{ rows, cols, x, y uint16 }{rows: 50, cols: most}
	ioctl(t, c.master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	long := "a \x1b[2Jlong " + strings.Repeat("label ", 20)
	child := `[[fake:usage prompt=30 completion=4]][[fake:tool list {}]]` + delegation("deeper", "[[fake:reply said below\nand]] [[fake:gate below]] [[fake:reply ok]]") + "[[fake:reply ok]]"
	p := w.prepare("run", delegation(long, child)+"[[fake:reply done]]", "--max-depth", "2", "--permission", "read-only", "--verbose")
	c.begin(p)
	c.until("    deeper │ said below\r\n")
	for _, want := range []string{
		`. agent · openai:fake-model · \d+ tokens · 1 call · \d+\.\ds.*\n`,
		`└─ . a .*… · openai:\S* · 34 tokens · 2 calls · \d+\.\ds\x1b`,
		`   └─ . deeper · openai:fake-model · 0 tokens · 0 calls · \d+\.\ds · writing\x1b`,
	} {
		from := c.seen.Len()
		for !regexp.MustCompile(want).MatchString(c.seen.String()[from:]) {
			c.until("\n")
		}
	}
	s.Release("below")
	c.until("")
	e := p.wait()
	seen := c.seen.String()
	if e.code != 0 || e.stdout != "done\n" {
		t.Errorf("%v\nterminal: %q", e, seen)
	}
	end := seen[strings.LastIndex(seen, "\x1b[J")+len("\x1b[J"):]
	got := strings.Split(strings.TrimSuffix(end, "\r\n"), "\r\n")
	if len(got) != 4 || !strings.HasPrefix(got[0], "✓ agent · openai:fake-model · ") || !strings.HasPrefix(got[1], "CHILD ") ||
		!strings.HasPrefix(got[2], "a \uFFFD[2Jlong") || !strings.HasPrefix(got[3], "  deeper ") || strings.ContainsAny(end, spinner) {
		t.Errorf("at the end: %q", got)
	}
	for _, line := range got[2:] {
		fields := strings.Fields(line)
		if show := w.ok("sessions", "show", fields[len(fields)-1]); !strings.Contains(show.stdout, "one-shot") {
			t.Errorf("%v", show)
		}
	}
	escapes := regexp.MustCompile(`\x1b\[(\?7[lh]|\d*[AJK])`)
	for line := range strings.SplitSeq(seen, "\n") {
		line = strings.Trim(escapes.ReplaceAllString(line, ""), "\r")
		if n := columns(line); n > most || strings.Contains(line, "\x1b") {
			t.Errorf("%d cells: %q", n, line)
		}
	}
	// What is said stands above the tree, on a line of its own.
	if !regexp.MustCompile(`(^|\n|\x1b\[J)    deeper │ said below\r\n`).MatchString(seen) {
		t.Errorf("terminal: %q", seen)
	}
}

// TestVerboseWaitsForAnswer: what a child says while a person is asked comes behind
// the answer.
func TestVerboseWaitsForAnswer(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	c := newTerminal(t)
	child := "[[fake:gate asked]] [[fake:reply said meanwhile]] [[fake:tool list {}]] [[fake:reply and more]]"
	p := w.prepare("run", inBackground("child", child)+`[[fake:tool bash {"command":"echo ran >> ran.txt"}]] [[fake:reply done]] [[fake:next]] [[fake:reply done]]`, "--verbose")
	c.begin(p)
	c.until(question)
	s.Release("asked")
	// The child is asked again: it has said it.
	if _, err := s.WaitRequest(bounded(t), 4); err != nil {
		t.Fatal(err)
	}
	c.enter("y\n")
	c.until("")
	seen := c.seen.String()
	if e := p.wait(); e.code != 0 || w.count("ran.txt") != 1 {
		t.Errorf("%v\nterminal: %q", e, seen)
	}
	_, answered, _ := strings.Cut(seen, question)
	if !strings.HasPrefix(answered, "y\r\n") || strings.Count(answered, "child │ said meanwhile\r\n") != 1 || !strings.Contains(answered, "child │ and more\r\n") {
		t.Errorf("terminal: %q", seen)
	}
}
