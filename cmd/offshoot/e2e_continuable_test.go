//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// newLastingWorld is a model world whose delegation tool starts continuable children.
func newLastingWorld(t *testing.T, more ...string) (*world, *fakemodel.Server) {
	t.Helper()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	text := "version: 1\nmodel: openai:fake-model\nroutes: {openai: {model: fake-model, maxRetries: 0}}\n" +
		"providers: {main: {provider: spawn, backgroundMode: continuable}}\n" + strings.Join(more, "\n") + "\n"
	w.write(filepath.Join(w.home, "config.yaml"), text)
	return w, s
}

// told lists what entered a log's history, in words that name nobody by an id.
func told(t *testing.T, l *storedLog) []string {
	t.Helper()
	var all []string
	for _, m := range payloads[*session.UserMessage](t, l) {
		switch s := m.Message.Source; {
		case s.Details().Summary != "":
			all = append(all, s.Details().Summary)
		case s.Kind == message.SourceSubagentReport, s.Kind == message.SourceCoordinator:
			all = append(all, string(s.Kind)+": "+m.Message.Content[len(m.Message.Content)-1].Text)
		case s.Kind == message.SourceUser:
			all = append(all, "user")
		}
	}
	return all
}

// settlements lists the settled events of a log.
func settlements(t *testing.T, l *storedLog) []string {
	t.Helper()
	var all []string
	for _, p := range payloads[*session.Settled](t, l) {
		all = append(all, fmt.Sprintf("%d %s", p.Epoch, p.StopReason))
	}
	return all
}

// further is a directive that sends a message to the child that was started last.
func further(text string) string {
	args, err := json.Marshal(map[string]string{"subagent_id": "{{match:started subagent ([0-9a-f-]+)}}", "message": text})
	if err != nil {
		panic(err) // two strings
	}
	return "[[fake:tool send_message " + string(args) + "]]"
}

// CONT-01, NOTE-09, RT-09, P07: run goes on until a continuable child has settled and its
// parent has read what it came to; then a person gives the child more, and the parent is
// told of that when its tree goes on.
func TestContinuableRun(t *testing.T) {
	t.Parallel()
	w, s := newLastingWorld(t)
	child := `[[fake:gate a]] [[fake:tool report {"output":"half of it"}]] [[fake:reply seven doors]]`
	p := w.prepare("run", delegation("count doors", child)+"[[fake:reply I wait]] [[fake:next]] [[fake:reply so far]] [[fake:next]] [[fake:reply at last]] [[fake:next]] [[fake:reply more of it]]")
	stderr := p.pipeStderr()
	p.begin()
	stderr.until("agent: idle")
	s.Release("a")
	e := p.wait()
	row := []string{"count", "doors", "continuable", "spawn", "openai:fake-model", "completed"}
	table := lines(e.stderr)
	if got := strings.Fields(table[len(table)-1]); e.code != 0 || !slices.Equal(got[:min(len(row), len(got))], row) {
		t.Errorf("%v", e)
	}
	w.verify()
	root, children := w.tree()
	want := []string{"user", "subagent-report: half of it", "subagent finished: count doors"}
	// A report and the notice that follow each other closely may share a turn.
	if diff := cmp.Diff(want, told(t, root)); diff != "" || e.stdout != "at last\n" && e.stdout != "so far\n" {
		t.Errorf("%v\nmessages (-want +got):\n%s", e, diff)
	}
	id := string(children[0].Header.ID)

	// The beginning of its id is enough. Its parent is not opened for it.
	before := len(root.events)
	e = w.ok("agents", "send", id[:len(id)-1], "and the windows? [[fake:reply nine windows]]")
	if e.stdout != "nine windows\n" || !strings.Contains(e.stderr, "offshoot resume "+string(root.Header.ID)) {
		t.Errorf("%v", e)
	}
	e = w.ok("agents", "send", id, "--quiet", "--json", "and [[fake:reply <two> doors]]")
	var got actJSONLine
	if err := json.Unmarshal([]byte(e.stdout), &got); err != nil || strings.Count(e.stdout, "\n") != 1 || e.stderr != "" {
		t.Fatalf("%v: %v", err, e)
	}
	if got.Child != session.ID(id) || got.Parent != root.Header.ID || got.Root != root.Header.ID || got.Label != "count doors" || got.Message == "" ||
		got.Epoch != 3 || got.StopReason != "completed" || got.Text == nil || *got.Text != "<two> doors" {
		t.Errorf("%+v", got)
	}
	root, children = w.tree()
	if diff := cmp.Diff([]string{"1 completed", "2 completed", "3 completed"}, settlements(t, children[0])); diff != "" || len(root.events) != before {
		t.Errorf("the root has %d events, before %d; settled %s", len(root.events), before, diff)
	}
	e = w.ok("resume", string(root.Header.ID))
	if !strings.Contains(e.stderr, "1 continuable child below session "+string(root.Header.ID)) || !strings.Contains(e.stderr, "  "+id+"  count doors  (ready)\n") {
		t.Errorf("%v", e)
	}
	root, _ = w.tree()
	want = append(want, "subagent finished: count doors", "subagent finished: count doors")
	if diff := cmp.Diff(want, told(t, root)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if e := w.ok("resume", string(root.Header.ID)); !strings.Contains(e.stderr, "owes nothing") {
		t.Errorf("%v", e)
	}
	if e := w.run("resume", id); e.code != 1 || !strings.Contains(e.stderr, "resume its root instead") || !strings.Contains(e.stderr, "offshoot agents send "+id) {
		t.Errorf("%v", e)
	}
	w.followUp(root.Header.ID)
}

// CAN-17, SET-14, design § 4 (what teardown does to the queue; settlement): whatever ends
// the run while a child is in a turn, what waits behind that turn is kept and runs when
// the root is resumed, in the same epoch, and the root is told once.
func TestContinuableStopped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		flags  []string
		code   int
		cut    string // how the turn ended
	}{
		{name: "interrupt", signal: syscall.SIGINT, code: 130, cut: "aborted"},
		{name: "terminate", signal: syscall.SIGTERM, code: 143, cut: "aborted"},
		{name: "time limit", flags: []string{"--timeout", "3s"}, code: 1, cut: "aborted"},
		{name: "kill", signal: syscall.SIGKILL, code: killed, cut: "interrupted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, s := newLastingWorld(t)
			prompt := delegation("count", "[[fake:stall]]") + "[[fake:next]]" + further("again [[fake:reply counted]]") +
				"[[fake:reply I wait]] [[fake:next]] [[fake:reply so it is]]"
			p := w.prepare(append([]string{"run", prompt}, tt.flags...)...)
			stderr := p.pipeStderr()
			p.begin()
			stderr.until("agent: idle")
			// The child is in its turn, with the second message behind it.
			if err := s.WaitInFlight(bounded(t), 1); err != nil {
				t.Fatal(err)
			}
			if tt.signal != 0 {
				p.signal(tt.signal)
			}
			e := p.wait()
			if e.code != tt.code || tt.code != killed && !strings.Contains(e.stderr, "1 continuable child is stopped; offshoot resume") {
				t.Errorf("want exit %d: %v", tt.code, e)
			}
			root, children := w.tree()
			if got := settlements(t, children[0]); got != nil {
				t.Errorf("settled %q, and its queue is not empty", got)
			}
			w.verify()
			id := string(root.Header.ID)
			e = w.ok("resume", id)
			// What a killed process had not stored yet of its last turn is asked for again.
			if e.stdout != "so it is\n" && (tt.code != killed || e.stdout != "I wait\n") || !strings.Contains(e.stderr, "(goes on with 1 queued message)") {
				t.Errorf("%v", e)
			}
			root, children = w.tree()
			if diff := cmp.Diff([]string{tt.cut, "completed"}, ends(t, children[0])); diff != "" {
				t.Errorf("the child's turns (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"1 completed"}, settlements(t, children[0])); diff != "" {
				t.Errorf("settled (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"user", "subagent finished: count"}, told(t, root)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			w.followUp(root.Header.ID)
			if e := w.ok("resume", id); !strings.Contains(e.stderr, "owes nothing") || !strings.Contains(e.stderr, "(ready)") {
				t.Errorf("%v", e)
			}
		})
	}
}

// A child that is opened because one below it goes on was not cut, and is not said to be.
func TestContinuableAbove(t *testing.T) {
	t.Parallel()
	w, _ := newLastingWorld(t)
	deep := delegation("deep", "[[fake:reply deep]]") + "[[fake:reply I wait]] [[fake:next]] [[fake:reply it is done]] [[fake:next]] [[fake:reply again]]"
	w.ok("run", delegation("middle", deep)+"[[fake:reply I wait]] [[fake:next]] [[fake:reply done]] [[fake:next]] [[fake:reply done again]]")
	root, children := w.tree()
	i := slices.IndexFunc(children, func(l *storedLog) bool { return l.Header.ParentSession != root.Header.ID })
	w.ok("agents", "send", string(children[i].Header.ID), "--detach", "more [[fake:reply more]]")
	e := w.ok("resume", string(root.Header.ID))
	if e.stdout != "done again\n" || !strings.Contains(e.stderr, "middle  (hears what its own children come to)") || !strings.Contains(e.stderr, "deep  (goes on with 1 queued message)") {
		t.Errorf("%v", e)
	}
}

// A child whose turn a crash cut has nothing left to run: it settles as aborted when the
// root is resumed, and the root is told in the turn of the prompt.
func TestContinuableCut(t *testing.T) {
	t.Parallel()
	w, s := newLastingWorld(t)
	p := w.start("run", delegation("count", "[[fake:stall]]")+"[[fake:stall]]")
	if err := s.WaitInFlight(bounded(t), 2); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	p.wait()
	root, _ := w.tree()
	e := w.ok("resume", string(root.Header.ID), "go on [[fake:reply fine]]")
	if e.stdout != "fine\n" || !strings.Contains(e.stderr, "(was cut off in its work)") {
		t.Errorf("%v", e)
	}
	root, children := w.tree()
	if diff := cmp.Diff([]string{"1 aborted"}, settlements(t, children[0])); diff != "" {
		t.Errorf("settled (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"user", "subagent stopped: count", "user"}, told(t, root)); diff != "" || len(ends(t, root)) != 2 {
		t.Errorf("turns %q, messages (-want +got):\n%s", ends(t, root), diff)
	}
	w.verify()
}

// A child that cannot be opened is named and left out, and the others go on.
func TestContinuableSkipped(t *testing.T) {
	t.Parallel()
	w, s := newLastingWorld(t)
	p := w.start("run", delegation("one", "[[fake:stall]]")+delegation("two", "[[fake:stall]]")+"[[fake:stall]]")
	if err := s.WaitInFlight(bounded(t), 3); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	p.wait()
	root, children := w.tree()
	w.write("offshoot.yaml", "limits: {maxLive: 2}\n")
	e := w.ok("resume", string(root.Header.ID), "go on [[fake:reply fine]]")
	skipped := slices.IndexFunc(children, func(l *storedLog) bool {
		return strings.Contains(e.stderr, "offshoot: subagent "+string(l.Header.ID)+" is left out: limit reached: 2 agents are live")
	})
	if skipped < 0 || strings.Count(e.stderr, "is left out") != 1 || strings.Count(e.stderr, "(was cut off in its work)") != 1 {
		t.Errorf("%v", e)
	}
	w.write("offshoot.yaml", "version: 1\n")
	e = w.run("agents", "wait", string(children[max(skipped, 0)].Header.ID), "--json")
	if e.code != 1 || !strings.Contains(e.stdout, `"epoch":1,"stopReason":"aborted","text":""}`) {
		t.Errorf("%v", e)
	}
}

// A child that comes back in the same run has one line of the summary, with what all its
// epochs took, and what it says stands under its label each time.
func TestContinuableComesBack(t *testing.T) {
	t.Parallel()
	w, s := newLastingWorld(t)
	// The root learns the id from the result of its first call, in the same turn.
	p := w.prepare("run", "--verbose", delegation("count", "[[fake:reply seven]]")+"[[fake:next]] [[fake:gate go]]"+further("again [[fake:reply eight]]")+
		"[[fake:reply I wait]] [[fake:next]] [[fake:reply fine]]")
	stderr := p.pipeStderr()
	p.begin()
	stderr.until("count: idle")
	// The first epoch is over when its end is stored.
	for settled := false; !settled; {
		_, children := w.tree()
		settled = len(children) == 1 && len(settlements(t, children[0])) == 1
	}
	s.Release("go")
	e := p.wait()
	_, children := w.tree()
	if diff := cmp.Diff([]string{"1 completed", "2 completed"}, settlements(t, children[0])); diff != "" {
		t.Fatalf("settled (-want +got):\n%s", diff)
	}
	tokens := int64(0)
	for _, m := range payloads[*session.AssistantMessage](t, children[0]) {
		tokens += m.Usage.Total()
	}
	table := lines(e.stderr)
	row := strings.Fields(table[len(table)-1])
	if e.code != 0 || !strings.HasPrefix(table[len(table)-2], "CHILD ") || len(row) != 8+1 || row[4] != "completed" || row[5] != count(tokens) {
		t.Errorf("want %s tokens in one line: %v", count(tokens), e)
	}
	for _, want := range []string{"  count │ seven\n", "  count │ eight\n"} {
		if strings.Count(e.stderr, want) != 1 {
			t.Errorf("%q is not there once: %v", want, e)
		}
	}
}
