//go:build unix

package main

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// outputLine is one line of --json.
type outputLine struct {
	Type       string          `json:"type"`
	SessionID  session.ID      `json:"sessionId"`
	Event      json.RawMessage `json:"event"`
	Chunk      json.RawMessage `json:"chunk"`
	StopReason string          `json:"stopReason"`
	Text       *string         `json:"text"`
	Model      string          `json:"model"`
	Count      int             `json:"count"`
	Usage      map[string]int64
}

func parseOutput(t *testing.T, stdout string) []outputLine {
	t.Helper()
	var all []outputLine
	for _, text := range lines(stdout) {
		var l outputLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		all = append(all, l)
	}
	return all
}

// streamed returns the events of each session, in the order of the lines.
func streamed(all []outputLine) map[session.ID][]string {
	events := map[session.ID][]string{}
	for _, l := range all {
		if l.Type == "session.event" {
			events[l.SessionID] = append(events[l.SessionID], string(l.Event))
		}
	}
	return events
}

// TestJSON: stdout is the log of the whole tree, each event once, in order, byte
// for byte as it is stored, and the result behind everything.
func TestJSON(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.DeepSeek)
	w.write("a.txt", "alpha <one> & \u2028 é\n")
	child := `[[fake:think look]] [[fake:tool read {"path":"a.txt"}]] [[fake:reply I read it]]`
	prompt := `[[fake:tool read {"path":"a.txt"}]] [[fake:think delegate]]` + delegation("one", child) + delegation("two", child) + delegation("bad", "[[fake:fail bad-request]]") +
		"[[fake:reply both <did> {{match:I read.*}} & \u2028 é]] [[fake:usage prompt=10 completion=2]]"
	e := w.ok("run", prompt, "--json", "--quiet")
	if e.stderr != "" {
		t.Errorf("want nothing on stderr: %v", e)
	}
	all := parseOutput(t, e.stdout)
	events := streamed(all)
	logs := w.logs()
	if len(events) != 4 || len(logs) != 4 {
		t.Errorf("%d sessions were streamed, %d are stored", len(events), len(logs))
	}
	var usage message.Usage
	for _, l := range logs {
		if diff := cmp.Diff(l.lines, events[l.Header.ID]); diff != "" {
			t.Errorf("session %s (-stored +streamed):\n%s", l.Header.ID, diff)
		}
		for _, m := range payloads[*session.AssistantMessage](t, l) {
			if m.Usage != nil {
				usage = usage.Add(*m.Usage)
			}
		}
	}
	root, _ := w.tree()
	last := all[len(all)-1]
	want := "both <did> I read it & \u2028 é"
	if last.Type != "result" || last.SessionID != root.Header.ID || last.StopReason != "completed" || last.Text == nil || *last.Text != want || last.Model != "deepseek:fake-model" {
		t.Errorf("the result: %+v", last)
	}
	if last.Usage["inputTokens"] != usage.InputTokens || last.Usage["outputTokens"] != usage.OutputTokens || usage.OutputTokens == 0 {
		t.Errorf("usage %v, stored is %+v", last.Usage, usage)
	}
	if n := len(slices.DeleteFunc(all, func(l outputLine) bool { return l.Type != "result" })); n != 1 {
		t.Errorf("%d results", n)
	}
	// A raw export is the same bytes.
	export := w.ok("sessions", "show", string(root.Header.ID), "--events", "--json")
	if diff := cmp.Diff(root.lines, lines(export.stdout)); diff != "" {
		t.Errorf("export (-stored +shown):\n%s", diff)
	}
}

// TestJSONChunks: the chunks between the events make up what the message says.
func TestJSONChunks(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	e := w.ok("run", "[[fake:reply an answer in pieces]]", "--json")
	var text strings.Builder
	var kinds []string
	for _, l := range parseOutput(t, e.stdout) {
		if l.Type != "assistant.chunk" {
			continue
		}
		var c struct{ Type, Text string }
		if err := json.Unmarshal(l.Chunk, &c); err != nil {
			t.Fatal(err)
		}
		text.WriteString(c.Text)
		if len(kinds) == 0 || kinds[len(kinds)-1] != c.Type {
			kinds = append(kinds, c.Type)
		}
	}
	if text.String() != "an answer in pieces" {
		t.Errorf("the chunks say %q", text.String())
	}
	if diff := cmp.Diff([]string{"block-start", "text-delta", "block-end", "usage", "finish"}, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// TestJSONIsDurable: an event that was shown is on disk, whenever the process dies.
func TestJSONIsDurable(t *testing.T) {
	t.Parallel()
	const prompt = `[[fake:tool list {}]] [[fake:tool list {}]] [[fake:reply done]]`
	for _, shown := range []string{
		`"turn/start"`, `"user/message"`, `"request/context"`, `"tool/call"`, `"tool/result"`, `"step/end"`, `"turn/end"`,
	} {
		t.Run(strings.Trim(shown, `"`), func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			p := w.prepare("run", prompt, "--json")
			stdout := p.pipeStdout()
			p.begin()
			stdout.until(shown)
			p.signal(syscall.SIGKILL)
			e := p.wait()
			whole := e.stdout[:strings.LastIndex(e.stdout, "\n")+1]
			root, _ := w.tree()
			events := streamed(parseOutput(t, whole))[root.Header.ID]
			if len(events) > len(root.lines) || !slices.Equal(events, root.lines[:len(events)]) {
				t.Errorf("%d events were shown, %d are stored", len(events), len(root.lines))
			}
			w.ok("resume", string(root.Header.ID))
			w.followUp(root.Header.ID)
		})
	}
}

// TestClosedOutput: nobody reads stdout any more. The run ends by itself, in good
// order, and says why.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, prompt string
		args         []string
		kind         string // of the turn's end
	}{
		{"a stream", "[[fake:reply half an answer]] [[fake:gate go]] [[fake:reply and more]] [[fake:stall]]", []string{"--json"}, "aborted"},
		{"an answer", "[[fake:gate go]] [[fake:reply an answer]]", nil, "completed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, s := newModelWorld(t, fakemodel.OpenAI)
			p := w.prepare(append([]string{"run", tt.prompt}, tt.args...)...)
			p.cmd.Stdout = nil
			r, err := p.cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			p.begin()
			if err := s.WaitInFlight(bounded(t), 1); err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			s.Release("go")
			e := p.wait()
			got := lines(e.stderr)
			if e.code != 1 || len(got) == 0 || !strings.Contains(got[len(got)-1], "write the answer: ") {
				t.Errorf("%v", e)
			}
			w.verify()
			root, _ := w.tree()
			if diff := cmp.Diff([]string{tt.kind}, ends(t, root)); diff != "" {
				t.Errorf("turn ends (-want +got):\n%s", diff)
			}
			w.followUp(root.Header.ID)
		})
	}
}
