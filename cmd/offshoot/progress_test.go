package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// still is a display whose clock stands.
func still(t *testing.T, d display) (p *progress, shown *strings.Builder) {
	t.Helper()
	shown = &strings.Builder{}
	p = newProgress(shown, d)
	p.now = func() time.Time { return time.UnixMilli(epoch) }
	return p, shown
}

// A child that runs elsewhere is known by the edges of its run alone: it has a line
// all the same, and what it said at the end is shown.
func TestProgressOfRemoteRun(t *testing.T) {
	p, shown := still(t, display{verbose: true})
	p.add("root", "")
	start := subagent.StartEdge{RunID: "r1", Provider: "acp\x1b[2J", ID: "s1", Label: "Fix\x1b]0;t\x07 it"}
	p.mu.Lock()
	p.nodes[""] = p.root // the edge of this test has no parent
	p.mu.Unlock()
	p.started(start)
	p.ended(subagent.EndEdge{StartEdge: start, StopReason: subagent.StopMaxTokens, Output: []message.Block{{Type: message.BlockText, Text: "half\r\nof\x1b[31m it"}}})
	p.stop()
	want := "  Fix\uFFFD]0;t\uFFFD it │ half\n  Fix\uFFFD]0;t\uFFFD it │ of\uFFFD[31m it\n" +
		"CHILD         MODE     MODEL  STOP        TOKENS  CALLS  LASTED  ID\n" +
		"Fix\uFFFD]0;t\uFFFD it  acp\uFFFD[2J  -      max-tokens  0       0      0.0s    -\n"
	if diff := cmp.Diff(want, shown.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// family is a display of many children with long names of wide characters, one
// below the other.
func family(t *testing.T, d display) (*progress, *strings.Builder) {
	t.Helper()
	p, shown := still(t, d)
	p.mu.Lock()
	defer p.mu.Unlock()
	owner := session.ID("root")
	p.add(owner, "").id = owner
	for i := range 30 {
		id := session.ID(fmt.Sprintf("01a22d75-71ef-7%03d-85ca-33d84bfe14a7", i))
		n := p.add(id, owner)
		n.id, n.provider, n.end, n.tokens, n.calls = id, "spawn", session.EndCompleted, 123_456, 12
		n.asked("openrouter", "a-vendor/a-model-with-a-long-name")
		n.started, n.ended = p.now(), p.now().Add(100*time.Second)
		p.name(n, strings.Repeat("漢字 ", 30))
		owner = id
	}
	return p, shown
}

// No line of the summary or the tree is wider than the terminal, and while there is room
// for it an id that is cut is still the id of one child.
func TestProgressFits(t *testing.T) {
	for _, most := range []int{20, 40, 66, 80, 100, 120, 200} {
		p, shown := family(t, display{tty: true, size: func() (int, int) { return most, 24 }})
		var tree []string
		p.mu.Lock()
		p.render(p.root, "", "", most, &tree)
		p.mu.Unlock()
		p.stop()
		got := textLines(shown.String())
		if len(got) != 31 || len(tree) != 31 {
			t.Fatalf("%d lines, %d in the tree", len(got), len(tree))
		}
		ids := map[string]bool{}
		for _, line := range append(got, tree...) {
			if n := columns(line); n > most {
				t.Errorf("%d cells of %d: %s", n, most, line)
			}
		}
		for _, line := range got[1:] {
			fields := strings.Fields(line)
			ids[fields[len(fields)-1]] = true
		}
		if most >= 66 && len(ids) != 30 {
			t.Errorf("at %d the ids tell %d children apart:\n%s", most, len(ids), shown)
		}
		if most >= 80 && !strings.Contains(tree[1], "123k tokens · 12 calls · 1m40s") {
			t.Errorf("at %d the figures are cut: %s", most, tree[1])
		}
	}
	p, shown := family(t, display{})
	p.stop()
	if !strings.Contains(shown.String(), "  01a22d75-71ef-7029-85ca-33d84bfe14a7\n") {
		t.Errorf("where no width is known the ids are whole:\n%s", shown)
	}
}

// What stands for folded children says where all of them are.
func TestSummaryCountsFolded(t *testing.T) {
	p, shown := still(t, display{})
	p.add("root", "").id = "root"
	for i := range maxNodes + 10 {
		id := session.ID(fmt.Sprint("k", i))
		n := p.add(id, "root")
		n.tokens, n.disposed = 1, true
		p.settle(id, n)
	}
	p.stop()
	got := textLines(shown.String())
	if last := got[len(got)-1]; len(got) != maxNodes+1 || last != "… 11 more, finished · 11 tokens · offshoot sessions tree root" {
		t.Errorf("%d lines, the last one %q", len(got), last)
	}
}

// Children of the same label are told apart.
func TestLabelsAreToldApart(t *testing.T) {
	p, _ := still(t, display{})
	defer p.stop()
	p.add("root", "")
	var got []string
	for i, label := range []string{"Explore", "Explore", "Other", "Explore", " "} {
		n := p.add(session.ID(fmt.Sprint(i)), "root")
		p.name(n, label)
		p.name(n, label) // its log and its edge both tell it
		got = append(got, n.label)
	}
	if diff := cmp.Diff([]string{"Explore", "Explore (2)", "Other", "Explore (3)", "subagent"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A child that was vetoed has done nothing and is none.
func TestVetoedChildIsNone(t *testing.T) {
	h := newHome(t)
	h.write(h.work+"/a/x.txt", "x\n")
	h.write(h.work+"/b/x.txt", "x\n")
	a, out, errOut := h.app()
	a.opened = func(sys *harness.Harness) {
		sys.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
			if !a.Root() {
				a.AddHooks(agent.Hooks{Created: func(*agent.Agent) error { return errors.New("not today") }})
			}
			return nil
		}})
	}
	if code := a.execute(t.Context(), []string{"run", "--model", "demo", "look"}); code != 0 || !strings.Contains(errOut.String(), "Survey a/ failed") {
		t.Fatalf("%d\n%s%s", code, out, errOut)
	}
	if strings.Contains(errOut.String(), "CHILD") {
		t.Errorf("%s", errOut)
	}
}

// A quiet display follows nothing.
func TestProgressQuiet(t *testing.T) {
	h := newHome(t)
	h.write(h.work+"/a/x.txt", "x\n")
	if o := h.run("run", "--model", "demo", "look", "--quiet"); o.code != 0 || o.errOut != "" {
		t.Errorf("%d, %q", o.code, o.errOut)
	}
	if o := h.run("run", "--model", "demo", "look", "--quiet", "--verbose"); o.code != exitUsage || o.out != "" || !strings.Contains(o.errOut, "quiet verbose") {
		t.Errorf("%d, %q, %q", o.code, o.out, o.errOut)
	}
}

// A line that is shown before it ends is not cut within a character.
func TestVoiceCutsBetweenCharacters(t *testing.T) {
	var v voice
	v.say(strings.Repeat("x", maxVoiceLine-1) + "é"[:1])
	first := v.take()
	v.say("é"[1:] + "\nrest")
	second := v.take()
	if len(first.text) != maxVoiceLine-1 || second.text != "é\n" || string(v.buf) != "rest" {
		t.Errorf("%d bytes, then %q, then %q", len(first.text), second.text, v.buf)
	}
}

// An answer that broke off while nobody read is in no log: what of it found no room
// is counted, and the next one is whole.
func TestVoiceCountsWhatBrokeOff(t *testing.T) {
	var v voice
	v.say(strings.Repeat("x", maxVoice))
	v.say("more")
	v.say("and more")
	v.brokeOff()
	b := v.take()
	if b.missed != len("moreand more") || b.text != strings.Repeat("x", maxVoice)+"\n" {
		t.Errorf("%d missed, %d bytes", b.missed, len(b.text))
	}
	v.say("again")
	v.brokeOff()
	if b := v.take(); b.missed != 0 || b.text != "again\n" {
		t.Errorf("then %d missed, %q", b.missed, b.text)
	}
}

// An answer that was not streamed is shown when it is logged.
func TestVoiceOfUnstreamedAnswer(t *testing.T) {
	reg, err := session.NewRegistry(t.Context(), session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := reg.Prepare(t.Context(), session.New{ID: "child"})
	if err != nil {
		t.Fatal(err)
	}
	p, shown := still(t, display{verbose: true})
	p.mu.Lock()
	p.add("root", "")
	n := p.add("child", "root")
	p.mu.Unlock()
	s.Watch(&follower{p: p, n: n, s: s})
	answer := message.Message{ID: "m1", Role: message.RoleAssistant, Source: message.Source{Kind: message.SourceModel}, Content: []message.Block{{Type: message.BlockText, Text: "all\nat once"}}}
	for _, payload := range []session.Payload{&session.TurnStart{Turn: 1}, &session.StepStart{Turn: 1, Step: 1}, &session.AssistantMessage{Turn: 1, Step: 1, Message: answer}} {
		if _, err := s.Append(session.Draft{Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	p.stop()
	if got := uttered(shown.String(), "subagent"); got != "all\nat once\n" {
		t.Errorf("shown %q of\n%s", got, shown)
	}
}

// A line that a child is in when all is over is shown, also where its log tells of no
// end.
func TestVoiceOfChildWithoutEnd(t *testing.T) {
	p, shown := still(t, display{verbose: true})
	p.mu.Lock()
	p.add("root", "")
	p.add("child", "root").voice.say("half a line")
	p.mu.Unlock()
	p.stop()
	if !strings.HasPrefix(shown.String(), "  subagent │ half a line\nCHILD ") {
		t.Errorf("%s", shown)
	}
}

// Characters take as many cells as a terminal gives them.
func TestColumns(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "é": 1, "e\u0301": 1, "漢字": 4, "ｱ": 1, "Ａ": 2, "🙂": 2, "└─ ✓ …": 6, "\u200d": 0} {
		if got := columns(text); got != want {
			t.Errorf("%q takes %d cells, want %d", text, got, want)
		}
	}
	for most, want := range map[int]string{0: "漢字ab", 6: "漢字ab", 5: "漢字…", 4: "漢…", 3: "漢…", 2: "…", 1: "…"} {
		if got := fit("漢字ab", most); got != want {
			t.Errorf("in %d cells: %q, want %q", most, got, want)
		}
	}
}

func textLines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }

// uttered returns what stderr shows that a child said.
func uttered(stderr, label string) string {
	var b strings.Builder
	for _, line := range textLines(stderr) {
		who, what, found := strings.Cut(strings.TrimLeft(line, " "), " │")
		if found && who == label {
			b.WriteString(strings.TrimPrefix(what, " ") + "\n")
		}
	}
	return b.String()
}
