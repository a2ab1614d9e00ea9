package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
)

// What is exported from one home is in another one what it was in the first: by a pipe
// and by a folder, to the byte, with the mark of the import behind it (core D13, D14).
func TestExportImport(t *testing.T) {
	from := newHome(t)
	library(t, from)
	piped := from.must("sessions", "export", rootID, "--tree") + from.must("sessions", "export", otherID)
	const root, kid = "--srv-project--/018b-root/session.jsonl", "--srv-project--/018b-root-child/session.jsonl"
	for _, args := range [][]string{{"--tree", "-o", "-"}, {"--tree", "--out=-"}} {
		before := snapshot(t, from.work)
		if got := from.must(append([]string{"sessions", "export", rootID}, args...)...); !strings.HasPrefix(piped, got) || strings.Count(got, `"type":"session"`) != 2 || snapshot(t, from.work) != before {
			t.Errorf("%v wrote %q", args, got)
		}
	}
	if got := from.must("sessions", "export", rootID, "--tree", "-o", "logs"); got != "exported 2 sessions to logs\n" {
		t.Errorf("said %q", got)
	}
	if got := from.must("sessions", "export", "018c", "--out", "other.jsonl"); got != "exported 1 session to other.jsonl\n" {
		t.Errorf("said %q", got)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(from.work, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := read("logs/"+root) + read("logs/"+kid) + read("other.jsonl"); got != piped {
		t.Errorf("the files hold (-pipe +files):\n%s", cmp.Diff(piped, got))
	}

	for name, paths := range map[string][]string{
		"by a pipe": {"-"}, "by files": {filepath.Join(from.work, "other.jsonl"), filepath.Join(from.work, "logs")},
	} {
		t.Run(name, func(t *testing.T) {
			to := newHome(t)
			to.stdin = piped
			o := to.run(append([]string{"sessions", "import"}, paths...)...)
			want := []string{
				"imported session 018b-root: 38 events, 3 turns", "imported session 018c-other: 2 events, 0 turns", "imported session 018b-root-child: 9 events, 1 turn",
				"offshoot: session 018b-root: turn 3 is open; it is closed when the session is resumed",
				"offshoot: session 018c-other: 1 message in its queue, to run first once you send it something",
			}
			got := lines(o.out + o.errOut)
			if len(paths) == 2 { // the other one came first
				want[0], want[1], want[3], want[4] = want[1], want[0], want[4], want[3]
			}
			if diff := cmp.Diff(want, got); diff != "" || o.code != exitOK {
				t.Errorf("import: %d (-want +got):\n%s", o.code, diff)
			}
			for _, id := range []string{rootID, childID, otherID} {
				n := strings.Count(from.must("sessions", "show", id, "--events", "--json"), "\n")
				want := from.must("sessions", "show", id, "--events", "--json")
				got := to.must("sessions", "show", id, "--events", "--json")
				rest, ok := strings.CutPrefix(got, want)
				if !ok || !strings.HasPrefix(rest, fmt.Sprintf(`{"type":"session/imported","seq":%d,`, n)) || strings.Count(rest, "\n") != 1 {
					t.Errorf("%s is there (-want +got):\n%s", id, cmp.Diff(want, got))
				}
			}
			// What listings tell, but for what the mark and the queue change.
			mask := strings.NewReplacer(`"events":39`, `"events":38`, `"events":10`, `"events":9`, `"events":3,`, `"events":2,`, `"parked"`, `"queued"`)
			here := mask.Replace(maskUpdated(to.must("sessions", "list", "--all", "--json")))
			if diff := cmp.Diff(maskUpdated(from.must("sessions", "list", "--all", "--json")), here); diff != "" {
				t.Errorf("list (-from +to):\n%s", diff)
			}
			tree := to.must("sessions", "tree", rootID)
			for _, want := range []string{"How many files?", "└─ Count the <files>              one-shot spawn  idle         completed  23      -"} {
				if !strings.Contains(tree, want) {
					t.Errorf("tree lacks %q:\n%s", want, tree)
				}
			}
			if got := to.must("sessions", "verify"); !strings.Contains(got, "no fault") {
				t.Errorf("verify: %s", got)
			}
			if got := to.must("sessions", "show", otherID); !strings.Contains(got, "imported: what stands above was written elsewhere") {
				t.Errorf("show: %s", got)
			}
			if again := to.must("sessions", "export", rootID); !strings.HasPrefix(again, strings.SplitAfter(piped, "\n")[0]) {
				t.Errorf("the header has changed: %.200s", again)
			}
		})
	}
}

// What cannot be done is refused, and nothing is done.
func TestExportImportRefuse(t *testing.T) {
	h := newHome(t)
	library(t, h)
	h.write(filepath.Join(h.work, "there"), "mine")
	h.must("sessions", "export", rootID, "--tree", "-o", "logs")
	before := snapshot(t, filepath.Dir(h.work))
	for _, tt := range []struct {
		args, stdin string
		code        int
		want        string
	}{
		{"export nope", "", exitFailure, "not found"},
		{"export 018b", "", exitFailure, "ambiguous"},
		{"export 018b-root -o there", "", exitFailure, "file already exists; nothing was exported"},
		{"export 018b-root -o logs", "", exitUsage, "is a folder"},
		{"export 018b-root -o none/out", "", exitFailure, "no such file"},
		{"export 018b-root --tree -o logs", "", exitFailure, "file already exists; nothing was exported"},
		{"export 018b-root --tree -o there", "", exitFailure, "not a directory"},
		{"export 018b-root -o", "", exitUsage, "needs an argument"},
		{"export", "", exitUsage, "an argument is missing"},

		{"import", "", exitUsage, "an argument is missing"},
		{"import none", "", exitFailure, "no such file"},
		{"import logs", "", exitFailure, "session.jsonl:1: session 018b-root: session exists already; nothing was imported"},
		{"import -", "", exitFailure, "standard input: the log is corrupt: there is no header; nothing was imported"},
		{"import -", "{}\n", exitFailure, "standard input:1: "},
		{"import -", `{"type":"session","version":9,"id":"x"}` + "\n", exitFailure, "produced by a newer build"},
		{"import -", `{"type":"session","version":0,"id":"x","createdAt":1,"parentSession":"018b-root","origin":"subagent","delegationDepth":1}` + "\n",
			exitFailure, "parent 018b-root: its parent session is stored here already"},
		{"import there", "", exitFailure, "there:1: "},
		{"--store memory sessions import -", "x", exitUsage, "the store is memory"},
	} {
		h.stdin = tt.stdin
		args := strings.Fields(tt.args)
		if args[0] != "--store" {
			args = append([]string{"sessions"}, args...)
		}
		if o := h.run(args...); o.code != tt.code || !strings.Contains(o.errOut, tt.want) || strings.Count(o.errOut, "\n") != 1 {
			t.Errorf("%s: %d, %s%swant %d and %q", tt.args, o.code, o.out, o.errOut, tt.code, tt.want)
		}
	}
	after := snapshot(t, filepath.Dir(h.work))
	if o := h.must("sessions", "list", "--all", "--json"); strings.Count(o, "\n") != 3 {
		t.Errorf("there is:\n%s", o)
	}
	// Opening a store to write to it, as an import does, is not nothing to the file.
	db := func(s string) string {
		var keep []string
		for line := range strings.Lines(s) {
			if !strings.Contains(line, "offshoot.db") && !strings.HasPrefix(line, h.dir+" ") {
				keep = append(keep, line)
			}
		}
		return strings.Join(keep, "")
	}
	if diff := cmp.Diff(db(before), db(after)); diff != "" {
		t.Errorf("files changed:\n%.2000s", diff)
	}
}

// fromElsewhere is a log that another program wrote: a turn in which a person asked
// and a model answered, behind some events.
func fromElsewhere(id, cwd string, events ...string) string {
	h := session.Header{ID: session.ID(id), CreatedAt: epoch, Cwd: cwd}
	var b strings.Builder
	b.Write(append(jsonl.AppendHeader(nil, &h), '\n'))
	seq := 0
	add := func(typ, more, data string) {
		fmt.Fprintf(&b, `{"type":%q,"seq":%d,"time":%d,"data":%s%s}`+"\n", typ, seq, epoch+seq, data, more)
		seq++
	}
	add("turn/start", "", `{"turn":1}`)
	add("step/start", "", `{"turn":1,"step":1}`)
	add("user/message", `,"surfaceOp":"append"`, `{"content":[{"text":"Remember blue.","type":"text"}],"source":{"kind":"user"},"role":"user","id":"m1"}`)
	add("request/header", "", `{"header":{"config":{"provider":"elsewhere","model":"m"}},"reason":"initial"}`)
	add("assistant/message", `,"sourceEventSeqs":[],"surfaceOp":"append"`, `{"turn":1,"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"Blue it is."}],"source":{"kind":"model","provider":"elsewhere","model":"m"},"id":"a1"},"usage":{"inputTokens":1,"outputTokens":1}}`)
	add("step/end", "", `{"turn":1,"step":1}`)
	add("turn/end", "", `{"turn":1,"reason":{"kind":"completed"}}`)
	for _, e := range events {
		typ, data, _ := strings.Cut(e, " ")
		add(typ, "", data)
	}
	return b.String()
}

func queuedLine(n int, text string) string {
	return fmt.Sprintf(`agent/inbox/spliced {"target":"next-turn","start":%d,"inserted":[{"content":[{"text":"%s","type":"text"}],"source":{"kind":"user"},"role":"user","id":"q%d"}]}`, n, text, n)
}

// abroad is a home with an imported session, and a model that is scripted.
type abroad struct {
	*home
	model *scripted.Adapter
}

func newAbroad(t *testing.T, script scripted.Script, log string) *abroad {
	t.Helper()
	a := &abroad{newHome(t), scripted.New(script, scripted.Options{})}
	a.env["OPENAI_API_KEY"], a.env["OFFSHOOT_MODEL"] = "sk-test", "openai:m"
	a.stdin = strings.ReplaceAll(log, "WORK", a.work)
	if o := a.run("sessions", "import", "-"); log != "" && o.code != exitOK {
		t.Fatalf("import: %s", o.errOut)
	}
	return a
}

func (a *abroad) resume(args ...string) output {
	a.t.Helper()
	app, out, errOut := a.app()
	app.configure = func(o *harness.Options) {
		o.Adapters = func(r *llm.Registry) error { _, err := r.Register(a.model, "openai"); return err }
	}
	code := app.execute(a.t.Context(), append([]string{"resume"}, args...))
	return output{code, out.String(), errOut.String()}
}

// The follow-up to an imported session carries what the session held, and the policy
// events of its log never widen what the command allows, and narrow it.
func TestResumeImported_COMP23(t *testing.T) {
	const write = `{"path":"made","content":"x"}`
	for _, tt := range []struct {
		permission, event string
		made              bool
		want              string // of the tool's result
	}{
		{"allow", "", true, ""},
		{"allow", `sandbox/mode {"mode":"danger-full-access"}`, true, ""},
		{"allow", `sandbox/mode {"mode":"read-only"}`, false, "read-only"},
		{"allow", `sandbox/mode {"mode":"workspace-write"}`, false, "nobody is there who could give it"},
		{"allow", `sandbox/mode {"mode":"of-another-build"}`, false, "read-only"},
		{"ask", `approval/policy {"policy":"never"}`, false, "every approval is refused"},
		{"read-only", `sandbox/mode {"mode":"danger-full-access"}`, false, "read-only"},
		{"deny", `sandbox/mode {"mode":"danger-full-access"}`, false, "denies"},
		{"deny", `approval/policy {"policy":"ask"}`, false, "denies"},
	} {
		t.Run(tt.permission+" "+tt.event, func(t *testing.T) {
			var events []string
			if tt.event != "" {
				events = []string{tt.event}
			}
			a := newAbroad(t, scripted.Script{{Steps: []scripted.Step{
				{scripted.Say("unused")}, {scripted.Call("write", write)}, {scripted.Say("done")},
			}}}, fromElsewhere("s", "WORK", events...))
			o := a.resume("s", "What was it?", "--permission", tt.permission)
			if o.code != exitOK || o.out != "done\n" {
				t.Fatalf("%d %s%s", o.code, o.out, o.errOut)
			}
			calls := a.model.Calls()
			var said []string
			for _, m := range calls[0].Request.Messages {
				if text := message.JoinText(m.Content); m.Source.Kind != message.SourcePlugin {
					said = append(said, text)
				}
			}
			if diff := cmp.Diff([]string{"Remember blue.", "Blue it is.", "What was it?"}, said); diff != "" {
				t.Errorf("the model was sent (-want +got):\n%s", diff)
			}
			_, err := os.Stat(filepath.Join(a.work, "made"))
			last := calls[len(calls)-1].Request.Messages
			result := message.JoinText(last[len(last)-1].Content[0].Content)
			if (err == nil) != tt.made || !strings.Contains(result, tt.want) {
				t.Errorf("made: %v, the tool said %q, want %v and %q", err == nil, result, tt.made, tt.want)
			}
			a.must("sessions", "verify")
		})
	}
}

// What came in the queue runs neither at the import nor at a bare resume, which says
// what waits; a prompt lets it run first.
func TestResumeParked(t *testing.T) {
	a := newAbroad(t, scripted.Script{{Steps: []scripted.Step{
		{scripted.Say("unused")}, {scripted.Say("one")}, {scripted.Say("two")}, {scripted.Say("three")},
	}}}, fromElsewhere("s", "WORK", queuedLine(0, `Do \u001b[31mthis\u001b[0m.`), queuedLine(1, "And this.")))
	for range 2 { // also when it is opened again
		o := a.resume("s")
		if want := "with 2 messages in its queue"; o.code != exitOK || o.out != "" || !strings.Contains(o.errOut, want) ||
			!strings.Contains(o.errOut, "\n  queued: Do \uFFFD[31mthis\uFFFD[0m.\n  queued: And this.\n") {
			t.Errorf("bare: %d %s%s", o.code, o.out, o.errOut)
		}
	}
	if o := a.resume("s", "--json"); !strings.Contains(o.out, `"stopReason":"parked"`) {
		t.Errorf("as JSON: %s", o.out)
	}
	if got := a.must("sessions", "list"); !strings.Contains(got, " parked ") || a.model.Started() != 0 {
		t.Errorf("listed:\n%s%d requests", got, a.model.Started())
	}
	o := a.resume("s", "Go on.")
	if o.code != exitOK || o.out != "three\n" || !strings.Contains(o.errOut, "2 queued messages that came with the imported session run first") {
		t.Errorf("with a prompt: %d %s%s", o.code, o.out, o.errOut)
	}
	var said []string
	for _, call := range a.model.Calls() {
		m := call.Request.Messages
		said = append(said, message.JoinText(m[len(m)-1].Content))
	}
	if diff := cmp.Diff([]string{"Do \x1b[31mthis\x1b[0m.", "And this.", "Go on."}, said); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}
	if o := a.resume("s"); !strings.Contains(o.errOut, "has nothing queued") {
		t.Errorf("afterwards: %s", o.errOut)
	}
}

// A session that was imported may be resumed in a folder of this machine and on a
// route that is known here; one that was not, only in its own and on its own.
func TestResumeElsewhere(t *testing.T) {
	a := newAbroad(t, scripted.Script{{Steps: []scripted.Step{
		{scripted.Say("unused")}, {scripted.Call("list", `{"path":"."}`)}, {scripted.Say("seen")},
	}}}, fromElsewhere("s", "/nowhere/at/all"))
	delete(a.env, "OFFSHOOT_MODEL")
	a.write(filepath.Join(a.dir, "config.yaml"), "model: openai:m\n")
	if o := a.resume("s", "Look."); o.code != exitUsage || !strings.Contains(o.errOut, "its folder is /nowhere/at/all, which is not this one") || !strings.Contains(o.errOut, "--cwd") {
		t.Errorf("in its own folder: %d %s", o.code, o.errOut)
	}
	a.write(filepath.Join(a.work, "here"), "x")
	o := a.resume("s", "Look.", "--cwd", a.work)
	if o.code != exitOK || o.out != "seen\n" || !strings.Contains(o.errOut, "route elsewhere is none of this configuration, so openai:m goes on") {
		t.Fatalf("in another: %d %s%s", o.code, o.out, o.errOut)
	}
	calls := a.model.Calls()
	last := calls[len(calls)-1].Request.Messages
	if got := message.JoinText(last[len(last)-1].Content[0].Content); !strings.Contains(got, "here") {
		t.Errorf("the tool saw %q", got)
	}
	// A folder that is there is no better: the log's word is not the person's.
	b := newAbroad(t, scripted.Script{}, fromElsewhere("s", t.TempDir()))
	if o := b.resume("s", "Look."); o.code != exitUsage || !strings.Contains(o.errOut, "--cwd") || len(b.model.Calls()) != 0 {
		t.Errorf("in another folder of this machine: %d %s", o.code, o.errOut)
	}
	own := newHome(t)
	library(t, own)
	if o := own.run("resume", rootID, "x", "--cwd", own.work); o.code != exitUsage || !strings.Contains(o.errOut, "its own folder") {
		t.Errorf("a session of this machine: %d %s", o.code, o.errOut)
	}
}

// A session whose parent did not come with it is listed, shown and resumed as a root.
func TestImportedOrphan(t *testing.T) {
	from := newHome(t)
	library(t, from)
	a := newAbroad(t, scripted.Script{{Steps: []scripted.Step{{scripted.Say("unused")}, {scripted.Say("43 files")}}}}, "")
	a.stdin = strings.ReplaceAll(from.must("sessions", "export", childID), "/srv/project", a.work)
	o := a.run("sessions", "import", "-")
	if o.code != exitOK || !strings.Contains(o.errOut, "its parent 018b-root is not stored; it is the root of its own tree") {
		t.Fatalf("%d %s", o.code, o.errOut)
	}
	if got := a.must("sessions", "list"); !strings.Contains(got, childID) {
		t.Errorf("list:\n%s", got)
	}
	if o := a.resume("018b-root-c", "Count again."); o.code != exitOK || o.out != "43 files\n" {
		t.Errorf("resume: %d %s%s", o.code, o.out, o.errOut)
	}
	a.must("sessions", "verify")
	// Now the parent comes, and does not get the child.
	a.stdin = from.must("sessions", "export", rootID)
	if o := a.run("sessions", "import", "-"); o.code != exitOK {
		t.Fatalf("%d %s", o.code, o.errOut)
	}
	if got := a.must("sessions", "tree", rootID); strings.Contains(got, childID) {
		t.Errorf("tree:\n%s", got)
	}
	a.must("sessions", "verify")
}

// Nor does such a session need an identity: whatever import takes, verify passes.
func TestImportedOrphanWithoutIdentity(t *testing.T) {
	h := newHome(t)
	h.stdin = `{"type":"session","version":0,"id":"c","createdAt":1,"parentSession":"gone","origin":"subagent","delegationDepth":1}` + "\n" +
		`{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}` + "\n" + `{"type":"turn/end","seq":1,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}` + "\n"
	if o := h.run("sessions", "import", "-"); o.code != exitOK {
		t.Fatalf("%d %s", o.code, o.errOut)
	}
	if o := h.run("sessions", "verify"); o.code != exitOK || !strings.Contains(o.out, "no fault") {
		t.Errorf("%d %s%s", o.code, o.out, o.errOut)
	}
}

// An export that cannot be read to its end leaves no file.
func TestExportDamaged(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	a.raw(session.Header{ID: "ok", CreatedAt: epoch}, "ok", nil, rawEvent(session.TypeTurnStart, `{"turn":1}`))
	a.raw(session.Header{ID: "newer", Version: 7, CreatedAt: epoch, ParentSession: "ok"}, "ok", nil)
	a.close()
	before := snapshot(t, h.work)
	for _, args := range [][]string{{"newer"}, {"ok", "--tree"}, {"ok", "--tree", "-o", "logs"}} {
		if o := h.run(append([]string{"sessions", "export"}, args...)...); o.code != exitFailure || o.out != "" || !strings.Contains(o.errOut, "newer build") {
			t.Errorf("%v: %d %s%s", args, o.code, o.out, o.errOut)
		}
	}
	if snapshot(t, h.work) != before {
		t.Error("something was written")
	}
}

// An import lets little garbage gather, unless the person has said how much.
func TestImportCollects(t *testing.T) {
	for gogc, want := range map[string]int{"": 33, "100": 0} {
		h := newHome(t)
		library(t, h)
		file := filepath.Join(t.TempDir(), "log.jsonl")
		h.must("sessions", "export", otherID, "--out", file)
		to := newHome(t)
		to.env["GOGC"] = gogc
		a, _, errOut := to.app()
		got := 0
		a.collect = func(percent int) int { got = percent; return 100 }
		if code := a.execute(t.Context(), []string{"sessions", "import", file}); code != exitOK || got != want {
			t.Errorf("GOGC=%s: exit code %d, percent %d, want %d\n%s", gogc, code, got, want, errOut)
		}
	}
}
