//go:build unix

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// summaryOf returns the lines of the summary without its heading; times are T and ids
// are ID, of which it returns all.
func summaryOf(t *testing.T, stderr string) (rows, ids []string) {
	t.Helper()
	all := lines(stderr)
	from := slices.IndexFunc(all, func(line string) bool { return strings.HasPrefix(line, "CHILD ") })
	if from < 0 {
		return nil, nil
	}
	form := regexp.MustCompile(`^( *\S.*?)  +(\S+)  +(\S+)  +(\S+)  +(\d+)  +(\d+)  +\d+\.\ds  +([0-9a-f-]{36})$`)
	for _, line := range all[from+1:] {
		m := form.FindStringSubmatch(line)
		if m == nil {
			break
		}
		rows = append(rows, strings.Join(m[1:7], "|"))
		ids = append(ids, m[7])
	}
	return rows, ids
}

// TestSummary: at the end each child has a line, at any depth, whatever became of
// it, and sessions show takes the id in it.
func TestSummary(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.write("a.txt", "alpha\n")
	usage := "[[fake:usage prompt=30 completion=4]]"
	deep := delegation("deep \x1b[31m\u009b", "[[fake:usage prompt=5 completion=1]] [[fake:reply from below]]")
	prompt := delegation("first", usage+`[[fake:tool read {"path":"a.txt"}]] `+deep+usage+"[[fake:reply the first]]") +
		delegation("broken", "[[fake:fail bad-request]]") +
		delegation("cut", usage+"[[fake:length half of it]]") +
		delegation("unwilling", usage+"[[fake:refusal not that]]") +
		"[[fake:next]]" + inBackground("a job", usage+"[[fake:reply done]]") +
		"[[fake:reply I saw it all]] [[fake:next]] [[fake:reply I saw it all]]"
	e := w.ok("run", prompt, "--max-depth", "2")
	if e.stdout != "I saw it all\n" || strings.ContainsAny(e.stderr, "\x1b\u009b") {
		t.Errorf("%v", e)
	}
	rows, ids := summaryOf(t, e.stderr)
	root, children := w.tree()
	if len(rows) != 6 || len(children) != 6 {
		t.Fatalf("%d lines, %d children: %v", len(rows), len(children), e)
	}
	// The order is that in which they were created, children behind their parent.
	sorted := slices.Clone(rows)
	slices.Sort(sorted)
	const m = "openai:fake-model"
	if diff := cmp.Diff([]string{
		"  deep \uFFFD[31m\uFFFD|spawn|" + m + "|completed|6|0",
		"a job|spawn|" + m + "|completed|34|0",
		"broken|spawn|" + m + "|error|0|0",
		"cut|spawn|" + m + "|max-tokens|34|0",
		"first|spawn|" + m + "|completed|68|2",
		"unwilling|spawn|" + m + "|refusal|34|0",
	}, sorted); diff != "" {
		t.Errorf("(-want +got):\n%s\n%v", diff, e)
	}
	if i := slices.Index(rows, "first|spawn|"+m+"|completed|68|2"); i < 0 || i+1 == len(rows) || !strings.HasPrefix(rows[i+1], "  deep") {
		t.Errorf("the grandchild is not below its parent: %q", rows)
	}
	for i, id := range ids {
		label, _, _ := strings.Cut(strings.TrimSpace(rows[i]), "|")
		if show := w.ok("sessions", "show", id); !strings.Contains(show.stdout, label) {
			t.Errorf("%s shows no %q: %v", id, label, show)
		}
	}
	w.verify()
	w.followUp(root.Header.ID)
}

// TestSummaryOfForks: a fork has its own figures alone, not those of what it began
// with, with resume too, and children of an earlier run have no line.
func TestSummaryOfForks(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.write("a.txt", "alpha\n")
	w.ok("run", `[[fake:usage prompt=1000 completion=1]][[fake:tool read {"path":"a.txt"}]]`+delegation("old", "[[fake:reply old]]")+"[[fake:reply one]]")
	root, _ := w.tree()
	e := w.ok("resume", string(root.Header.ID), delegation("a fork", "[[fake:usage prompt=20 completion=2]] [[fake:reply two]]")+"[[fake:reply three]]", "--delegate", "fork")
	rows, _ := summaryOf(t, e.stderr)
	if diff := cmp.Diff([]string{"a fork|fork|openai:fake-model|completed|22|0"}, rows); diff != "" || e.stdout != "three\n" {
		t.Errorf("(-want +got):\n%s\n%v", diff, e)
	}
}

// TestVerbose: what parallel children say comes line by line under their labels
// while they say it, and stdout is what it is without.
func TestVerbose(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	prompt := delegation("first", "[[fake:reply one\r\n\ntwo ha]] [[fake:gate a]] [[fake:reply lf\n\tthree \x1b]0;t\x07]] [[fake:tool list {}]] [[fake:reply four]]") +
		delegation("second", "[[fake:reply uno\ndos me]] [[fake:gate b]] [[fake:reply dia]]") +
		"[[fake:reply The answer\tis \x1b[1m42\n\n]]"
	p := w.prepare("run", prompt, "--verbose")
	stderr := p.pipeStderr()
	p.begin()
	// Both are in the middle of a line.
	for seen := ""; !strings.Contains(seen, "first │ one") || !strings.Contains(seen, "second │ uno"); {
		seen += stderr.until(" │ ")
	}
	s.Release("b")
	stderr.until("  second │ dos media\n")
	s.Release("a")
	e := p.wait()
	if got, want := uttered(e.stderr, "first"), "one\n\ntwo half\n    three \uFFFD]0;t\uFFFD\nfour\n"; got != want {
		t.Errorf("first: %q, want %q", got, want)
	}
	if got, want := uttered(e.stderr, "second"), "uno\ndos media\n"; got != want {
		t.Errorf("second: %q, want %q", got, want)
	}
	if said, did := strings.Index(e.stderr, "first │     three"), strings.Index(e.stderr, "first: list"); did < said {
		t.Errorf("what was done stands before what was said: %v", e)
	}
	// The root's own bytes go to stdout as they are, and nowhere else.
	if e.code != 0 || e.stdout != "The answer\tis \x1b[1m42\n" || strings.Contains(e.stderr, "The answer") {
		t.Errorf("%v", e)
	}
	if rows, _ := summaryOf(t, e.stderr); len(rows) != 2 {
		t.Errorf("%v", e)
	}
}

// TestVerboseJSON: the stream on stdout holds the children's text already; stderr
// has it for people, and they are the same.
func TestVerboseJSON(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	prompt := delegation("only", "[[fake:reply one\ntwo]]") + "[[fake:reply done]]"
	e := w.ok("run", prompt, "--verbose", "--json")
	all := parseOutput(t, e.stdout)
	if last := all[len(all)-1]; last.Type != "result" || *last.Text != "done" || strings.Contains(e.stdout, "│") {
		t.Errorf("%v", e)
	}
	root, children := w.tree()
	if diff := cmp.Diff(root.lines, streamed(all)[root.Header.ID]); diff != "" {
		t.Errorf("events (-stored +streamed):\n%s", brief(diff))
	}
	if said := answers(t, children[0]); said != "one\ntwo" || uttered(e.stderr, "only") != said+"\n" {
		t.Errorf("logged %q: %v", said, e)
	}
}

// answers joins what an agent said.
func answers(t *testing.T, l *storedLog) string {
	t.Helper()
	var b strings.Builder
	for _, a := range payloads[*session.AssistantMessage](t, l) {
		b.WriteString(message.JoinText(a.Message.Content))
	}
	return b.String()
}

// TestVerboseSlowReader: whoever reads stderr slowly holds up no child and misses
// nothing, although little is kept for them: a line that does not end comes in pieces.
func TestVerboseSlowReader(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	child := "[[fake:big 1000000 500]] [[fake:tool list {}]] [[fake:reply \nthe end]]"
	p := w.prepare("run", delegation("loud", child)+delegation("louder", child)+"[[fake:reply done]]", "--verbose")
	p.pipeStderr()
	p.begin()
	// The root's two requests, and two of each child: nothing was read by then.
	if _, err := s.WaitRequest(bounded(t), 6); err != nil {
		t.Fatal(err)
	}
	e := p.wait()
	if e.code != 0 || e.stdout != "done\n" {
		t.Fatalf("%v", e)
	}
	_, children := w.tree()
	for _, c := range children {
		label := *payloads[*session.DescriptorEvent](t, c)[0].Descriptor.Label
		want := strings.Join(strings.Fields(answers(t, c)), "")
		got := uttered(e.stderr, label)
		if joined := strings.Join(strings.Fields(got), ""); joined != want {
			t.Errorf("%s: %d bytes are shown of %d", label, len(joined), len(want))
		}
		for _, line := range lines(got) {
			if len(line) > maxVoiceLine {
				t.Errorf("%s: a line of %d bytes", label, len(line))
			}
		}
	}
}

// TestVerboseStopped: what children had said when the run was stopped is shown,
// also the line that they were in, and how they ended.
func TestVerboseStopped(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	prompt := delegation("first", "[[fake:reply one\nI beg]] [[fake:stall]]") + delegation("second", fmt.Sprintf("[[fake:reply %s]] [[fake:stall]]", strings.Repeat("x", maxVoiceLine+1)))
	p := w.prepare("run", prompt, "--verbose")
	stderr := p.pipeStderr()
	p.begin()
	if err := s.WaitInFlight(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	for seen := ""; !strings.Contains(seen, "first │ one") || !strings.Contains(seen, "second │ x"); {
		seen += stderr.until(" │ ")
	}
	p.signal(syscall.SIGINT)
	e := p.wait()
	_, children := w.tree()
	if len(children) != 2 {
		t.Fatalf("%d children", len(children))
	}
	for _, c := range children {
		label := *payloads[*session.DescriptorEvent](t, c)[0].Descriptor.Label
		if got := strings.ReplaceAll(uttered(e.stderr, label), "\n", ""); got == "" || got != strings.ReplaceAll(answers(t, c), "\n", "") {
			t.Errorf("%s: shown %q, logged %q", label, got, answers(t, c))
		}
	}
	rows, _ := summaryOf(t, e.stderr)
	slices.Sort(rows)
	if diff := cmp.Diff([]string{"first|spawn|openai:fake-model|aborted|0|0", "second|spawn|openai:fake-model|aborted|0|0"}, rows); diff != "" || e.code != 130 {
		t.Errorf("(-want +got):\n%s\n%v", diff, e)
	}
	if !strings.HasSuffix(e.stderr, "offshoot: stopped by interrupt\n") {
		t.Errorf("%v", e)
	}
	w.verify()
}

// TestStuckReaderIsLeft: where nobody reads stderr any more, the second signal ends
// the process all the same.
func TestStuckReaderIsLeft(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	p := w.prepare("run", delegation("loud", "[[fake:big 1000000 500]] [[fake:tool list {}]] [[fake:stall]]"), "--verbose")
	r, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() }) // nothing is read from it
	p.cmd.Stderr = stderr
	p.begin()
	if err := stderr.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitRequest(bounded(t), 3); err != nil {
		t.Fatal(err)
	}
	// Two of one kind could be taken for one.
	p.signal(syscall.SIGINT)
	p.signal(syscall.SIGTERM)
	if e := p.wait(); e.code != 130 && e.code != 143 {
		t.Errorf("%v", e)
	}
	w.verify()
}
