package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/internal/products"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
)

// The upstream writes its logs, and they travel: what it wrote is imported, listed,
// shown, verified and resumed, and what is exported again is event for event what it
// wrote (core D13–D16).
func TestUpstreamLogs_D14(t *testing.T) {
	h := products.FindHarness(t)
	for _, sc := range products.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			logs := sc.Run(t, h)
			if sc.Persistence.Compressed {
				home := newHome(t)
				if o := home.run("sessions", "import", logs.Root); o.code != exitFailure || !strings.Contains(o.errOut, logs.Sessions[0].Path) || !strings.Contains(o.errOut, "zstd -d") {
					t.Errorf("a compressed log: %d, %s", o.code, o.errOut)
				}
				return
			}
			var written []upstreamLog
			for _, log := range logs.Sessions {
				data, err := os.ReadFile(log.Path)
				if err != nil {
					t.Fatal(err)
				}
				written = append(written, parseUpstream(t, log.ID, data))
				if !sc.Open {
					written[len(written)-1].saidAs(t, log.Events)
				}
			}
			travel(t, written, logs.Root)
			cutTail(t, logs.Sessions[0])
		})
	}
}

// upstreamLog is what the upstream wrote of one session, decoded without any help of
// the package under test.
type upstreamLog struct {
	id     string
	header map[string]any
	events []any // each decoded; rows expanded
	// history is what a model is to be sent of it, and queued what waits behind it.
	history, queued []string
	open            bool
}

// cwd is the folder that the log names; no person stands in it here.
func (l *upstreamLog) cwd() string {
	cwd, _ := l.header["cwd"].(string)
	return cwd
}

func decode(t *testing.T, line []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return v
}

func parseUpstream(t *testing.T, id string, data []byte) upstreamLog {
	t.Helper()
	l := upstreamLog{id: id}
	for line := range bytes.Lines(data) {
		v := decode(t, line)
		if l.header == nil {
			l.header = v
			continue
		}
		l.events = append(l.events, expanded(t, v)...)
	}
	seed := 0
	if n, ok := l.header["seedLength"].(json.Number); ok {
		seed = number(t, n)
	}
	for i, v := range l.events {
		e := v.(map[string]any)
		data := e["data"].(map[string]any)
		switch e["type"] {
		case "turn/start":
			l.open = true
		case "turn/end":
			l.open = false
		case "user/message":
			l.history = append(l.history, text(data["content"]))
		case "assistant/message", "tool/result":
			if content := data["message"].(map[string]any)["content"].([]any); len(content) > 0 {
				l.history = append(l.history, text(content))
			}
		case "agent/inbox/spliced":
			if i < seed {
				continue
			}
			start, removed := number(t, data["start"]), 0
			if n, ok := data["removedCount"]; ok {
				removed = number(t, n)
			}
			var add []string
			for _, m := range data["inserted"].([]any) {
				add = append(add, text(m.(map[string]any)["content"]))
			}
			l.queued = slices.Replace(l.queued, start, start+removed, add...)
		}
	}
	return l
}

func number(t *testing.T, v any) int {
	t.Helper()
	n, err := v.(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// text is what a list of blocks says: texts, and those of tools.
func text(content any) string {
	var b strings.Builder
	for _, block := range content.([]any) {
		switch v := block.(map[string]any); v["type"] {
		case "text":
			b.WriteString(v["text"].(string))
		case "tool-result":
			b.WriteString(text(v["content"]))
		}
	}
	return b.String()
}

// expanded returns the events that a line stands for.
func expanded(t *testing.T, v map[string]any) []any {
	t.Helper()
	kind, packed := strings.CutSuffix(v["type"].(string), "-chunks")
	if !packed {
		return []any{v}
	}
	data := v["data"].(map[string]any)
	list, name := data["texts"], "text"
	if kind == "tool-call" {
		list, name = data["args"], "argumentsDelta"
	}
	var events []any
	seq, at := number(t, v["seq0"]), number(t, v["time0"])
	for i, piece := range list.([]any) {
		if i > 0 {
			at += number(t, data["dt"].([]any)[i-1])
		}
		chunk := map[string]any{"type": kind + "-delta", "index": data["index"], name: piece}
		for _, key := range []string{"id", "name"} {
			if x, ok := data[key]; ok {
				chunk[key] = x
			}
		}
		events = append(events, map[string]any{
			"type": "assistant/chunk", "seq": json.Number(fmt.Sprint(seq + i)), "time": json.Number(fmt.Sprint(at)),
			"data": map[string]any{"turn": data["turn"], "step": data["step"], "chunk": chunk},
		})
	}
	return events
}

// saidAs checks this test's own reading of the file against what the runtime sent
// while it ran, which lacks only what a child was born with.
func (l *upstreamLog) saidAs(t *testing.T, events []json.RawMessage) {
	t.Helper()
	var said []any
	for _, raw := range events {
		said = append(said, decode(t, raw))
	}
	if len(said) > len(l.events) {
		t.Fatalf("session %s: %d events were sent, %d are in the file", l.id, len(said), len(l.events))
	}
	if diff := cmp.Diff(said, l.events[len(l.events)-len(said):]); diff != "" {
		t.Fatalf("session %s: sent, and in the file:\n%s", l.id, diff)
	}
}

// travel takes logs through a store and out of it again.
func travel(t *testing.T, written []upstreamLog, root string) {
	home := newAbroad(t, scripted.Script{{Steps: slices.Repeat([]scripted.Step{{scripted.Say("So it is.")}}, 50)}}, "")
	o := home.run("sessions", "import", root)
	if o.code != exitOK || strings.Count(o.out, "\n") != len(written) {
		t.Fatalf("import: %d, %s%s", o.code, o.out, o.errOut)
	}
	var all strings.Builder
	for i := range written {
		l := &written[i]
		out := home.must("sessions", "export", l.id)
		all.WriteString(out)
		l.equals(t, out)
		if got := home.must("sessions", "show", l.id); !strings.Contains(got, "session "+l.id+"\n") {
			t.Errorf("show %s:\n%s", l.id, got)
		}
		if l.open != strings.Contains(o.errOut, "session "+l.id+": turn ") {
			t.Errorf("session %s ends in an open turn: %v, and the import said:\n%s", l.id, l.open, o.errOut)
		}
		if l.header["parentSession"] == nil {
			l.hasTree(t, home.home, written)
		}
	}
	if got := home.must("sessions", "list", "--all", "--json"); strings.Count(got, "\n") != len(written) || strings.Contains(got, "unreadable") {
		t.Errorf("list:\n%s", got)
	}
	if got := home.must("sessions", "verify"); !strings.Contains(got, "no fault") {
		t.Errorf("verify: %s", got)
	}
	// Once more, into nothing.
	again := newHome(t)
	again.stdin = all.String()
	if o := again.run("sessions", "import", "-"); o.code != exitOK {
		t.Fatalf("import of what was exported: %d, %s", o.code, o.errOut)
	}
	var twice strings.Builder
	for _, l := range written {
		twice.WriteString(again.must("sessions", "export", l.id))
	}
	if diff := cmp.Diff(all.String(), twice.String()); diff != "" {
		t.Errorf("exported twice (-first +second):\n%s", diff)
	}
	for _, l := range written {
		if l.header["parentSession"] == nil {
			l.resumes(t, home)
		}
	}
	if got := home.must("sessions", "verify"); !strings.Contains(got, "no fault") {
		t.Errorf("verify after resume: %s", got)
	}
}

// equals compares what was exported with what was written: the header, every event,
// and the mark of the import behind them.
func (l *upstreamLog) equals(t *testing.T, out string) {
	t.Helper()
	var got []any
	for line := range strings.Lines(out) {
		got = append(got, decode(t, []byte(line)))
	}
	last := got[len(got)-1].(map[string]any)
	if last["type"] != "session/imported" || last["ignorable"] != true || number(t, last["seq"]) != len(l.events) {
		t.Errorf("session %s ends in %v", l.id, last)
	}
	want := append([]any{l.header}, l.events...)
	if diff := cmp.Diff(want, got[:len(got)-1]); diff != "" {
		t.Errorf("session %s (-written +exported):\n%s", l.id, diff)
	}
}

func (l *upstreamLog) hasTree(t *testing.T, home *home, written []upstreamLog) {
	t.Helper()
	want := 1
	for _, other := range written {
		for up := other.header["parentSession"]; up != nil; {
			i := slices.IndexFunc(written, func(o upstreamLog) bool { return o.id == up })
			if up == l.id {
				want++
				break
			}
			up = written[i].header["parentSession"]
		}
	}
	if got := home.must("sessions", "tree", l.id, "--json"); strings.Count(got, "\n") != want || strings.Contains(got, `"adrift"`) {
		t.Errorf("the tree of %s has not %d sessions:\n%s", l.id, want, got)
	}
}

// resumes says something to a session: the model is sent what the log holds, then what
// was queued in it, then that.
func (l *upstreamLog) resumes(t *testing.T, home *abroad) {
	t.Helper()
	before := len(home.model.Calls())
	if len(l.queued) > 0 {
		if o := home.resume(l.id, "--cwd", l.cwd()); o.code != exitOK || !strings.Contains(o.errOut, l.queued[0]) || len(home.model.Calls()) != before {
			t.Errorf("a bare resume of %s: %d, %s", l.id, o.code, o.errOut)
		}
	}
	o := home.resume(l.id, "Go on.", "--cwd", l.cwd())
	if o.code != exitOK || o.out != "So it is.\n" {
		t.Fatalf("resume %s: %d, %s%s", l.id, o.code, o.out, o.errOut)
	}
	calls := home.model.Calls()[before:]
	if len(calls) != len(l.queued)+1 {
		t.Fatalf("resume %s: %d requests, %d were queued", l.id, len(calls), len(l.queued))
	}
	var history []string
	for _, m := range calls[0].Request.Messages {
		history = append(history, textOf(m.Content))
	}
	if len(history) < len(l.history) || !slices.Equal(history[:len(l.history)], l.history) {
		t.Errorf("session %s: the model was sent\n%q\nand the log holds\n%q", l.id, history, l.history)
	}
	for i, want := range append(slices.Clone(l.queued), "Go on.") {
		m := calls[i].Request.Messages
		if j := slices.IndexFunc(m, func(m message.Message) bool { return textOf(m.Content) == want }); j < 0 {
			t.Errorf("session %s: request %d lacks %q", l.id, i, want)
		}
	}
}

func textOf(content []message.Block) string {
	text := message.JoinText(content)
	if len(content) > 1 {
		text = ""
		for _, b := range content {
			text += message.JoinText([]message.Block{b})
		}
	}
	for _, b := range content {
		text += textOf(b.Content)
	}
	return text
}

// cutTail cuts the last line of a log, as a writer that died within it would have
// left it: the import leaves that out and says so.
func cutTail(t *testing.T, log products.Log) {
	data, err := os.ReadFile(log.Path)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	home := newHome(t)
	path := filepath.Join(home.work, "cut.jsonl")
	home.write(path, string(data[:cut+(len(data)-cut)/2]))
	o := home.run("sessions", "import", path)
	if want := fmt.Sprintf("the last line was cut and is left out: %s:%d", path, bytes.Count(data, []byte("\n"))); log.Parent == "" &&
		(o.code != exitOK || !strings.Contains(o.errOut, want)) {
		t.Fatalf("import of a cut log: %d, %s, want %q", o.code, o.errOut, want)
	}
	rest := parseUpstream(t, log.ID, data[:cut])
	rest.equals(t, home.must("sessions", "export", log.ID))
}

// What is exported the upstream's own persistence lists and opens, event for event as
// it is here: a run of ours with delegated sessions, and one that came from elsewhere
// and went on here. It skips the types that it lacks, since they are ignorable.
func TestUpstreamReadsExports_S8(t *testing.T) {
	set := products.FindHarness(t)
	home := newHome(t)
	home.write(filepath.Join(home.work, "src", "a.go"), "package a\n")
	a, out, errOut := home.app()
	a.configure = func(o *harness.Options) { o.DemoPace = 0 }
	if code := a.execute(t.Context(), []string{"run", "Map this"}); code != exitOK {
		t.Fatalf("run: %d, %s%s", code, out, errOut)
	}
	other := newAbroad(t, scripted.Script{{Steps: []scripted.Step{{scripted.Say("unused")}, {scripted.Say("one")}, {scripted.Say("two")}}}},
		fromElsewhere("a/b", "WORK", queuedLine(0, "Do this.")))
	if o := other.resume("a/b", "Go on."); o.code != exitOK || o.out != "two\n" {
		t.Fatalf("resume: %d, %s%s", o.code, o.out, o.errOut)
	}
	var root row
	if err := json.Unmarshal([]byte(home.must("sessions", "list", "--json")), &root); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(t.TempDir(), "logs")
	home.must("sessions", "export", string(root.ID), "--tree", "-o", logs)
	other.must("sessions", "export", "a/b", "--tree", "-o", logs)
	want := map[string][]any{}
	for name, from := range map[string]func(...string) string{string(root.ID): home.must, "a/b": other.must} {
		id := ""
		for line := range strings.Lines(from("sessions", "export", name, "--tree")) {
			v := decode(t, []byte(line))
			if v["type"] == "session" {
				id = v["id"].(string)
				want[id] = nil
				continue
			}
			want[id] = append(want[id], v)
		}
	}
	cmd := exec.CommandContext(t.Context(), set.Node, filepath.Join("testdata", "upstream_reads.mjs"), set.Dir, logs)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, printed, &stderr)
	}
	got := map[string][]any{}
	for line := range bytes.Lines(printed) {
		v := decode(t, line)
		id := v["id"].(string)
		got[id] = v["events"].([]any)
		// Opening it marks the end of what was there.
		if n := number(t, v["grown"]); n != len(got[id])+1 {
			t.Errorf("session %s has %d events when it is opened, of %d", id, n, len(got[id]))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exported, and read by the upstream:\n%s", diff)
	}
	if len(want) < 3 {
		t.Errorf("only %d sessions were exported", len(want))
	}
}
