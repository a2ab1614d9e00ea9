//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

var spillPath = regexp.MustCompile(` at the path (spill:\S+) \.\.\.\]\n`)

// calling is a reply that calls tools, each given by its name and its arguments.
func calling(pairs ...any) fakemodel.Reply {
	var reply fakemodel.Reply
	for i := 0; i < len(pairs); i += 2 {
		args, err := json.Marshal(pairs[i+1])
		if err != nil {
			panic(err) // maps of strings and numbers
		}
		reply = append(reply, fakemodel.ToolCall{Name: fmt.Sprint(pairs[i]), Arguments: string(args)})
	}
	return reply
}

type with map[string]any

// asked is what a conversation began with; a child's goes on with its context.
func asked(r fakemodel.Request) string {
	i := slices.IndexFunc(r.Messages, func(m fakemodel.Message) bool { return m.Role == "user" })
	return r.Messages[i].Text
}

// TestLargeResults: a command prints 5 MiB. The model reads 64 KiB of it and the name
// of the rest, and reads there; so does a child, whose long answer takes the same way
// into its parent's log; its parent may read the child's, a stranger may not. Nothing
// is lost, and no request carries it (core D45).
func TestLargeResults(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	const long = "seq -f %010.0f 1 476630 | head -c 5242880" // 11 bytes a line
	answer := strings.Repeat("what the child found out\n", 4000)
	results := func(r fakemodel.Request) (texts []string) {
		for _, m := range r.ToolResults() {
			if len(m.Text) > tool.DefaultLimit {
				t.Errorf("the model reads %d bytes", len(m.Text))
			}
			texts = append(texts, m.Text)
		}
		return texts
	}
	named := func(text string) string {
		m := spillPath.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("no path in %d bytes: %.200q", len(text), text)
			return "spill:none/0"
		}
		return m[1]
	}
	var own, child string // of the first results of root and child
	s.SetScript(func(r fakemodel.Request) fakemodel.Reply {
		got := results(r)
		task, _, _ := strings.Cut(asked(r), ":")
		switch fmt.Sprint(task, r.Position()) {
		case "root0", "child0":
			return calling("bash", with{"command": long})
		case "root1":
			own = named(got[0])
			return calling("read", with{"path": own, "offset": 300_000, "limit": 2})
		case "root2":
			if want := "[lines 300000 to 300001 of 476626; go on with offset 300002]\n0000300000\n0000300001\n"; got[0] != want {
				t.Errorf("root reads %.300q, want %q", got[0], want)
			}
			return calling("subagent", with{"description": "child", "prompt": "child:"}, "subagent", with{"description": "stranger", "prompt": "stranger:" + own})
		case "child1":
			child = named(got[0])
			return calling("read", with{"path": child, "offset": 476_625})
		case "child2":
			if want := "[lines 476625 to 476626 of 476626]\n0000476625\n00004"; got[0] != want {
				t.Errorf("the child reads %.300q, want %q", got[0], want)
			}
			return fakemodel.Reply{fakemodel.Text(answer)}
		case "stranger0":
			return calling("read", with{"path": own})
		case "stranger1":
			return fakemodel.Reply{fakemodel.Text(got[0])}
		case "root3":
			if want := "Error: read: there is no " + own + " that this agent may read"; got[1] != want {
				t.Errorf("the stranger reads %q, want %q", got[1], want)
			}
			return calling("read", with{"path": named(got[0]), "offset": 3999}, "read", with{"path": child, "limit": 1}, "read", with{"path": own + "1"})
		case "root4":
			want := []string{
				"[lines 3999 to 4000 of 4000]\n" + answer[:50], "[lines 1 to 1 of 476626; go on with offset 2]\n0000000001\n",
				"Error: read: there is no " + own + "1 that this agent may read",
			}
			if !slices.Equal(got, want) {
				t.Errorf("root reads %.300q, want %q", got, want)
			}
			return fakemodel.Reply{fakemodel.Text("done")}
		}
		t.Errorf("request %d of %q is not foreseen", r.Position(), task)
		return fakemodel.Reply{fakemodel.Text("?")}
	})
	if e := w.ok("run", "root:", "--permission", "allow", "--quiet"); e.stdout != "done\n" {
		t.Fatalf("%v", e)
	}
	for _, r := range s.Requests() {
		if len(r.Body) > 600_000 {
			t.Errorf("a request of %d bytes", len(r.Body))
		}
	}
	w.verify()
	var kept []string
	var printed string
	for _, l := range w.logs() {
		for _, p := range payloads[*session.ToolSpill](t, l) {
			text, err := p.Text()
			if err != nil || int64(len(text)) != p.Bytes || p.Omitted != 0 {
				t.Errorf("%d of %d bytes, %v", len(text), p.Bytes, err)
			}
			kept = append(kept, fmt.Sprint(l.child(), p.Bytes))
			if p.Bytes == 5<<20 {
				if printed == "" {
					printed = text
				}
				if text != printed || !strings.HasPrefix(text, "0000000001\n0000000002\n") {
					t.Error("the logs hold something else than what was printed")
				}
			}
		}
	}
	slices.Sort(kept)
	if want := []string{"false 100000", "false 5242880", "true 5242880"}; !slices.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	ref, err := session.ParseSpillRef(own)
	if err != nil {
		t.Fatal(err)
	}
	id := string(ref.Session)
	if e := w.ok("sessions", "show", id, "--event", fmt.Sprint(ref.Seq)); e.stdout != printed {
		t.Errorf("the person sees %d of %d bytes", len(e.stdout), len(printed))
	}
	if e := w.ok("sessions", "show", id); strings.Count(e.stdout, "\n· #1 bash was cut for the model; all its 5,242,880 bytes: "+own+"\n") != 1 {
		t.Errorf("%v", e)
	}
	w.ok("sessions", "tree", id)
}

// TestLongPrompts: prompts of 64 KiB and more arrive whole, as an argument, from
// standard input, and as what a child is asked; the log has them.
func TestLongPrompts(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	for _, how := range []string{"argument", "stdin", "child"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w, s := newModelWorld(t, fakemodel.OpenAI)
			prompt := strings.Repeat("Long is the task, <b>\"ü\"</b>\n", size/40)
			prompt += strings.Repeat("x", size-len(prompt)-4) + "end."
			s.SetScript(func(r fakemodel.Request) fakemodel.Reply {
				switch text := asked(r); {
				case text == "delegate" && r.Position() == 0:
					return calling("subagent", with{"description": "long", "prompt": prompt})
				case text == "delegate":
					return fakemodel.Reply{fakemodel.Text(r.ToolResults()[0].Text)}
				default:
					return fakemodel.Reply{fakemodel.Text(fmt.Sprint("it has ", len(text), " bytes, as asked: ", text == prompt))}
				}
			})
			args := map[string][]string{"argument": {"run", prompt}, "stdin": {"run", "-"}, "child": {"run", "delegate"}}[how]
			p := w.prepare(args...)
			if how == "stdin" {
				p.cmd.Stdin = strings.NewReader(prompt)
			}
			e := p.begin().wait()
			if want := fmt.Sprintf("it has %d bytes, as asked: true\n", size); e.code != 0 || e.stdout != want {
				t.Errorf("want %q: %v", want, e)
			}
			w.verify()
			n := 0
			for _, l := range w.logs() {
				if l.child() == (how == "child") {
					n += said(t, l, prompt)
				}
			}
			if n != 1 {
				t.Errorf("the prompt stands %d times in the logs", n)
			}
		})
	}
}

// TestKillAtSpill: a process that dies around the batch that holds a spill leaves it
// with its result or neither (core S36, S39; D45).
func TestKillAtSpill(t *testing.T) {
	t.Parallel()
	for kill, want := range map[string]struct{ spills, results int }{"lose:tool/spill": {0, 0}, "after:tool/spill": {1, 1}} {
		t.Run(kill, func(t *testing.T) {
			t.Parallel()
			w, _ := newModelWorld(t, fakemodel.OpenAI)
			w.killAt(kill, "run", `[[fake:tool bash {"command":"yes | head -c 300000"}]] [[fake:reply done]]`, "--permission", "allow")
			w.verify()
			root, _ := w.tree()
			if n, m := len(payloads[*session.ToolSpill](t, root)), len(payloads[*session.ToolResult](t, root)); n != want.spills || m != want.results {
				t.Errorf("at death the log holds %d spills and %d results", n, m)
			}
			w.run("resume", string(root.Header.ID), "--permission", "allow")
			w.verify()
			root, _ = w.tree()
			unknown := slices.Contains(codes(t, root), session.CodeToolOutcomeUnknown)
			if n := len(payloads[*session.ToolSpill](t, root)); n != want.spills || unknown != (want.results == 0) {
				t.Errorf("repaired, the log holds %d spills; outcome unknown: %v", n, unknown)
			}
			w.followUp(root.Header.ID)
		})
	}
}

// TestForkReadsSpill: a fork reads the results that it began with under the names that
// it finds in them; over two processes, so out of a log that was read back (core D45).
func TestForkReadsSpill(t *testing.T) {
	t.Parallel()
	w, _ := newModelWorld(t, fakemodel.OpenAI)
	w.ok("run", `[[fake:tool bash {"command":"seq 100000"}]] [[fake:reply that is much]]`, "--permission", "allow")
	root, _ := w.tree()
	at := slices.Index(root.types(), string(session.TypeToolSpill))
	ref := session.SpillRef{Session: root.Header.ID, Seq: int64(at)}
	w.ok("resume", string(root.Header.ID), "--delegate", "fork",
		delegation("look again", fmt.Sprintf(`[[fake:tool read {"path":"%s","offset":70000,"limit":1}]] [[fake:reply seen]]`, ref))+"[[fake:reply good]]")
	w.verify()
	_, forks := w.tree()
	if len(forks) != 1 || forks[0].Header.SeedLength <= ref.Seq {
		t.Fatalf("%d forks", len(forks))
	}
	read := results(t, forks[0])
	if got, want := read[len(read)-1], "[lines 70000 to 70000 of 100000; go on with offset 70001]\n70000\n"; got != want {
		t.Errorf("the fork reads %.300q, want %q", got, want)
	}
}
