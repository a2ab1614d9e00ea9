//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

// guarded is a world in which a root has had a continuable child that has settled.
func guarded(t *testing.T) (w *world, s *fakemodel.Server, root, child string) {
	t.Helper()
	w, s = newLastingWorld(t)
	w.ok("run", delegation("count", "[[fake:reply seven]]")+"[[fake:reply fine]] [[fake:next]] [[fake:reply fine]]")
	l, children := w.tree()
	return w, s, string(l.Header.ID), string(children[0].Header.ID)
}

// What is left with --detach is accepted and does not run; agents wait runs it, a resume
// of the root does, and agents close discards it (P07; design § 4, what teardown does to
// the queue).
func TestDetached(t *testing.T) {
	t.Parallel()
	w, s, root, child := guarded(t)
	before := s.Total()
	e := w.ok("agents", "send", child, "--detach", "--quiet", "later [[fake:reply done later]]")
	if !strings.Contains(e.stdout, "offshoot agents wait "+child) || e.stderr != "" || s.Total() != before {
		t.Errorf("%v", e)
	}
	w.verify()
	_, children := w.tree()
	if diff := cmp.Diff([]string{"completed"}, ends(t, children[0])); diff != "" {
		t.Errorf("turns: %s", diff)
	}
	for args, want := range map[string]string{
		"interrupt":        "is not at work, so there is no turn to stop; 1 message waits in its queue",
		"interrupt --json": `"queued":1,"interrupted":false}`,
	} {
		if e := w.ok(append([]string{"agents", "interrupt", child}, strings.Fields(args)[1:]...)...); !strings.Contains(e.stdout, want) {
			t.Errorf("%v", e)
		}
	}
	if e := w.ok("agents", "wait", child); e.stdout != "done later\n" {
		t.Errorf("%v", e)
	}
	if e := w.ok("agents", "wait", child, "--json"); !strings.Contains(e.stdout, `"epoch":2,"stopReason":"completed","text":"done later"}`) || strings.Contains(e.stdout, "messageId") {
		t.Errorf("%v", e)
	}

	w.ok("agents", "send", child, "--detach", "--json", "for the root [[fake:reply done by the root]]")
	if e := w.ok("resume", root, "go on [[fake:reply ok]] [[fake:next]] [[fake:reply ok]]"); !strings.Contains(e.stderr, "(goes on with 1 queued message)") {
		t.Errorf("%v", e)
	}
	for _, text := range []string{"not [[fake:reply never]]", "this [[fake:reply never]]"} {
		w.ok("agents", "send", child, "--detach", text)
	}
	if e := w.ok("agents", "close", child); !strings.Contains(e.stdout, "1 agent had work, and 2 messages were discarded") {
		t.Errorf("%v", e)
	}
	if e := w.ok("agents", "close", child, "--json"); !strings.Contains(e.stdout, `"closed":0,"discarded":0}`) {
		t.Errorf("%v", e)
	}
	l, children := w.tree()
	if diff := cmp.Diff([]string{"1 completed", "2 completed", "3 completed", "4 aborted"}, settlements(t, children[0])); diff != "" {
		t.Errorf("settled (-want +got):\n%s", diff)
	}
	if strings.Contains(strings.Join(children[0].lines, "\n"), `"text":"never"`) {
		t.Error("what was discarded ran")
	}
	w.followUp(l.Header.ID)
	l, _ = w.tree()
	got := told(t, l)
	if last := got[len(got)-2:]; last[0] != "subagent stopped: count" {
		t.Errorf("the root was told %q", got)
	}
}

// What came in with an import waits for a person: neither wait nor interrupt promises more.
func TestParked(t *testing.T) {
	t.Parallel()
	w, s, root, child := guarded(t)
	w.ok("agents", "send", child, "--detach", "later [[fake:reply done later]]")
	tree := w.ok("sessions", "export", root, "--tree").stdout
	w.ok("sessions", "rm", root, "--tree", "--yes")
	p := w.prepare("sessions", "import", "-")
	p.cmd.Stdin = strings.NewReader(tree)
	p.begin()
	if e := p.wait(); e.code != 0 {
		t.Fatalf("%v", e)
	}
	before := s.Total()
	if e := w.ok("agents", "wait", child); e.stdout != "seven\n" || !strings.Contains(e.stderr, "1 message waits in its queue, and nothing runs before you send it something: offshoot agents send "+child) {
		t.Errorf("%v", e)
	}
	if e := w.ok("agents", "interrupt", child); !strings.Contains(e.stdout, "offshoot agents send "+child+" runs it first") {
		t.Errorf("%v", e)
	}
	if s.Total() != before {
		t.Error("what an import brought ran")
	}
	if e := w.ok("agents", "send", child, "now [[fake:reply now]]"); e.stdout != "now\n" {
		t.Errorf("%v", e)
	}
	if e := w.ok("agents", "wait", child); e.stdout != "now\n" || e.stderr != "" {
		t.Errorf("%v", e)
	}
}

// Close reaches what is below the child, resident or not.
func TestCloseDeep(t *testing.T) {
	t.Parallel()
	w, s := newLastingWorld(t)
	deep := delegation("deep", "[[fake:stall]]") + "[[fake:reply I wait]]"
	p := w.prepare("run", delegation("middle", deep)+"[[fake:reply I wait]]")
	stderr := p.pipeStderr()
	p.begin()
	for range 2 { // the root and the middle one, whichever is first
		stderr.until("idle")
	}
	if _, err := s.WaitRequest(bounded(t), 5); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	p.wait()
	root, children := w.tree()
	for _, c := range children {
		w.ok("agents", "send", string(c.Header.ID), "--detach", "more [[fake:reply never]]")
	}
	middle := children[0]
	if middle.Header.ParentSession != root.Header.ID {
		middle = children[1]
	}
	if e := w.ok("agents", "close", string(middle.Header.ID)); !strings.Contains(e.stdout, "2 agents had work, and 2 messages were discarded") {
		t.Errorf("%v", e)
	}
	before := s.Total()
	w.ok("resume", string(root.Header.ID), "go on [[fake:reply ok]] [[fake:next]] [[fake:reply ok]]")
	for _, r := range s.Requests()[before:] {
		if strings.Contains(string(r.Body), "more [[") {
			t.Error("what was discarded ran")
		}
	}
	w.verify()
}

// Every refusal says what to do next; what another process holds is left to that one, which
// is named (ERR-02, P27).
func TestWardRefused(t *testing.T) {
	t.Parallel()
	w, s, root, child := guarded(t)
	const nobody = "01000000-0000-7000-8000-000000000000"
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"send " + root + " hi", 2, "is no child of an agent: go on with it by offshoot resume " + root},
		{"wait " + nobody, 1, "session not found"},
		{"close " + nobody, 1, "session not found"},
		{"send " + child, 2, "the prompt is empty"},
		{"send", 2, "an argument is missing"},
		{"send " + child + " hi --timeout -1s", 2, "is no time to wait"},
		{"send " + child + " hi --permission maybe", 2, "unknown value"},
		{"send " + child + " hi --cwd /", 2, "resumed in its own folder"},
		{"send " + child + " hi --store memory", 1, "the store is memory"},
		{"close " + child + " --detach", 2, "unknown flag"},
	} {
		e := w.run(append([]string{"agents"}, strings.Fields(tt.args)...)...)
		if e.code != tt.code || !strings.Contains(e.stderr, tt.want) || e.stdout != "" {
			t.Errorf("want exit %d and %q: %v", tt.code, tt.want, e)
		}
	}
	// What failed is told with what the model said of it.
	if e := w.run("agents", "send", child, "--json", "[[fake:refusal]]"); e.code != 1 || !strings.Contains(e.stdout, `"stopReason":"refusal"`) || !strings.Contains(e.stderr, "it ended as refusal") {
		t.Errorf("%v", e)
	}
	if e := w.run("agents", "send", child, "[[fake:status 400]]"); e.code != 1 || !strings.Contains(e.stderr, "it ended as error: ") {
		t.Errorf("%v", e)
	}

	p := w.start("agents", "send", child, "[[fake:gate go]] [[fake:reply went]]")
	if err := s.WaitInFlight(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	owner := fmt.Sprintf("process %d", p.cmd.Process.Pid)
	for _, args := range [][]string{{"send", child, "hi"}, {"send", child, "hi", "--detach"}, {"wait", child}, {"close", child}, {"interrupt", child}} {
		e := w.run(append([]string{"agents"}, args...)...)
		if e.code != 1 || e.stdout != "" || !strings.Contains(e.stderr, owner) || !strings.Contains(e.stderr, "try again") && args[0] != "interrupt" {
			t.Errorf("%v", e)
		}
	}
	if e := w.run("resume", root); e.code != 1 || !strings.Contains(e.stderr, owner) || !strings.Contains(e.stderr, "try again") {
		t.Errorf("%v", e)
	}
	s.Release("go")
	if e := p.wait(); e.code != 0 || e.stdout != "went\n" {
		t.Errorf("%v", e)
	}
	w.verify()

	// Children of one task take no further message.
	w.write("offshoot.yaml", "providers: {main: {provider: spawn, backgroundMode: one-shot}}\n")
	w.ok("resume", root, delegation("once", "[[fake:reply done]]")+"[[fake:reply fine]]")
	_, children := w.tree()
	once := string(children[1].Header.ID)
	if e := w.run("agents", "send", once, "hi"); e.code != 1 || !strings.Contains(e.stderr, "was started for one task") || !strings.Contains(e.stderr, "offshoot resume "+root) {
		t.Errorf("%v", e)
	}
}

// A signal or the time limit ends what the child does; what waits behind it is kept, and
// the object says which of the two became of the message.
func TestWardStopped(t *testing.T) {
	t.Parallel()
	w, s, _, child := guarded(t)
	begin := func(args ...string) *process {
		p := w.start(append([]string{"agents", "send", child, "--json"}, args...)...)
		if err := s.WaitInFlight(bounded(t), 1); err != nil {
			t.Fatal(err)
		}
		return p
	}
	object := func(e ended) (got actJSONLine) {
		t.Helper()
		if err := json.Unmarshal([]byte(e.stdout), &got); err != nil {
			t.Fatalf("%v: %v", err, e)
		}
		return got
	}
	p := begin("[[fake:stall]]")
	p.signal(syscall.SIGTERM)
	e := p.wait()
	if got := object(e); e.code != 143 || got.StopReason != "aborted" || got.Epoch != 2 || !strings.Contains(e.stderr, "stopped by terminated") {
		t.Errorf("%v", e)
	}
	w.ok("agents", "send", child, "--detach", "[[fake:stall]]")
	e = begin("behind it [[fake:reply at last]]", "--timeout", "2s").wait()
	if got := object(e); e.code != 1 || got.StopReason != "pending" || got.Message == "" || !strings.Contains(e.stderr, "timed out after 2s") {
		t.Errorf("%v", e)
	}
	if e := w.ok("agents", "wait", child); e.stdout != "at last\n" {
		t.Errorf("%v", e)
	}
	w.verify()
}

// An answer in a form is asked for when the children have settled (Service.Hold).
func TestContinuableBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w, _ := newLastingWorld(t)
	w.write("s.json", `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	prompt := delegation("count", "[[fake:delay 300ms]] [[fake:reply 42]]") + "[[fake:reply I wait]] [[fake:next]]" + `[[fake:tool structured_output {"n":42}]]`
	e := w.ok("run", prompt, "--output-schema", "s.json")
	root, _ := w.tree()
	if diff := cmp.Diff([]string{"user", "subagent finished: count"}, told(t, root)); diff != "" || e.stdout != "{\"n\":42}\n" || len(ends(t, root)) != 1 {
		t.Errorf("%v\nmessages (-want +got):\n%s", e, diff)
	}
	for _, m := range payloads[*session.UserMessage](t, root) {
		if m.Message.Source.Details().Plugin == "structured-output" {
			t.Error("it was reminded while its child was at work")
		}
	}
	w.verify()
}
