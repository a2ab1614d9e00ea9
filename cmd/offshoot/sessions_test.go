package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// C4, S19: what people and programs get to see of stored sessions.
func TestSessionsGolden(t *testing.T) {
	h := newHome(t)
	library(t, h)
	for name, args := range map[string][]string{
		"list.txt":         {"sessions", "list"},
		"list-all.txt":     {"sessions", "list", "--all"},
		"list.jsonl":       {"sessions", "list", "--all", "--json"},
		"show-root.txt":    {"sessions", "show", rootID},
		"show-child.txt":   {"sessions", "show", childID[:len(childID)-1]},
		"show-other.txt":   {"sessions", "show", "018c"},
		"show-root.json":   {"sessions", "show", rootID, "--json"},
		"show-events.txt":  {"sessions", "show", rootID, "--events"},
		"verify.txt":       {"sessions", "verify"},
		"verify.jsonl":     {"sessions", "verify", "--json"},
		"verify-child.txt": {"sessions", "verify", childID},
	} {
		t.Run(name, func(t *testing.T) {
			got := h.must(args...)
			// When a session was stored is the store's own clock.
			got = maskUpdated(got)
			if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' && r != '\n' }) {
				t.Errorf("control characters reach the terminal: %q", got)
			}
			golden(t, name, got)
			if strings.Contains(name, "json") {
				for line := range strings.Lines(got) {
					if !json.Valid([]byte(line)) {
						t.Errorf("no JSON: %s", line)
					}
				}
			}
		})
	}
}

func maskUpdated(text string) string {
	const key = `"updatedAt":`
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, key)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString(key + "0")
		text = strings.TrimLeft(after, "0123456789")
	}
}

// S1: the raw log is what is stored, byte for byte.
func TestShowEnvelopes(t *testing.T) {
	h := newHome(t)
	library(t, h)
	got := h.must("sessions", "show", rootID, "--events", "--json")
	store, err := sqlite.OpenReadOnly(t.Context(), filepath.Join(h.dir, "offshoot.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for e, err := range store.ReadFrom(t.Context(), rootID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		want = append(e.AppendEnvelope(want), '\n')
	}
	if err := store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" || len(want) == 0 {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	for line := range strings.Lines(got) {
		if _, err := session.ParseEnvelope([]byte(strings.TrimSpace(line))); err != nil {
			t.Error(err)
		}
	}
}

func TestListLimit(t *testing.T) {
	h := newHome(t)
	library(t, h)
	for limit, want := range map[string][]string{
		"0": {otherID, childID, rootID}, "1": {otherID}, "2": {otherID, childID}, "9": {otherID, childID, rootID},
	} {
		var ids []string
		for line := range strings.Lines(h.must("sessions", "list", "--json", "--all", "--limit", limit)) {
			var r row
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, string(r.ID))
		}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Errorf("limit %s (-want +got):\n%s", limit, diff)
		}
	}
}

// reads are the command lines that must not change anything.
func reads() [][]string {
	var all [][]string
	for _, args := range [][]string{
		{"list"}, {"list", "--all"}, {"show", rootID}, {"show", rootID, "--events"}, {"verify"}, {"verify", rootID},
	} {
		all = append(all, append([]string{"sessions"}, args...), append(append([]string{"sessions"}, args...), "--json"))
	}
	for _, args := range [][]string{{rootID}, {rootID, "--descendants"}, {rootID, "--limit", "1"}} {
		args = append([]string{"agents", "children"}, args...)
		all = append(all, args, append(slices.Clone(args), "--json"))
	}
	return all
}

// C4, D12, LIST-44: list, show, verify and children change nothing: not a store that was closed,
// not one that a crash left, not one that a process writes to.
func TestReadingChangesNothing(t *testing.T) {
	closed := newHome(t)
	library(t, closed)
	written := newHome(t)
	library(t, written)
	a := openArchive(t, written)
	s, err := a.reg.PrepareStored(t.Context(), otherID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(draft(&session.TurnStart{Turn: 1})); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	crashed := newHome(t)
	for _, ext := range []string{"", "-wal", "-shm"} {
		data, err := os.ReadFile(filepath.Join(written.dir, "offshoot.db"+ext))
		if err != nil {
			t.Fatal(err)
		}
		crashed.write(filepath.Join(crashed.dir, "offshoot.db"+ext), string(data))
	}
	for name, h := range map[string]*home{"closed": closed, "crashed": crashed, "written to": written} {
		t.Run(name, func(t *testing.T) {
			before := snapshot(t, h.dir)
			for _, args := range append(reads(), []string{"sessions", "export", rootID, "--tree"}) {
				h.must(args...)
			}
			if after := snapshot(t, h.dir); after != before {
				t.Errorf("files changed\nbefore: %.500s\nafter:  %.500s", before, after)
			}
		})
	}
	// The owner that the crashed copy names is this very process, which lives.
	if got := written.must("sessions", "list"); !strings.Contains(got, "running") {
		t.Errorf("no session is running:\n%s", got)
	}
	if err := a.reg.Abandon(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// Without a store there is nothing, and nothing is made.
func TestNoStore(t *testing.T) {
	for _, args := range [][]string{nil, {"--store", "memory"}, {"--store", "not/there.db"}} {
		h := newHome(t)
		for _, c := range []struct {
			args []string
			code int
			out  string
			err  string
		}{
			{[]string{"list"}, 0, "", "sessions"},
			{[]string{"list", "--json"}, 0, "", "sessions"},
			{[]string{"verify"}, 0, "0 sessions, 0 events, 0 turns: no fault; 0 open turns, 0 queued messages\n", "sessions"},
			{[]string{"verify", "x"}, 1, "", "not found"},
			{[]string{"show", "x"}, 1, "", "not found"},
		} {
			o := h.run(append(append([]string{"sessions"}, c.args...), args...)...)
			if o.code != c.code || o.out != c.out || strings.Count(o.errOut, "\n") != 1 || !strings.Contains(o.errOut, c.err) && !strings.Contains(o.errOut, "memory") {
				t.Errorf("sessions %v %v: %d, %q, %q", c.args, args, o.code, o.out, o.errOut)
			}
		}
		if _, err := os.Stat(h.dir); !os.IsNotExist(err) {
			t.Errorf("%v: the home was made: %v", args, err)
		}
	}
}

func TestFind(t *testing.T) {
	h := newHome(t)
	library(t, h)
	for name, want := range map[string]string{
		rootID:  "", // exact, though it begins another
		"018c":  "",
		"018b":  `session "018b" is ambiguous: it may be ` + childID + ", " + rootID,
		"018d":  `session "018d": session not found`,
		"oot":   `session "oot": session not found`,
		"018B-": `session "018B-": session not found`,
	} {
		o := h.run("sessions", "show", name)
		if want == "" && o.code == 0 || want != "" && o.code == 1 && o.errOut == "offshoot: "+want+"\n" && o.out == "" {
			continue
		}
		t.Errorf("%s: %d, %q", name, o.code, o.errOut)
	}
	a := openArchive(t, h)
	for i := range 20 {
		a.write(session.New{ID: session.ID(fmt.Sprintf("many-%02d", i))}, draft(&session.Title{Title: "one"}))
	}
	if o := h.run("sessions", "verify", "many"); o.code != 1 || !strings.HasSuffix(o.errOut, " and 12 more\n") {
		t.Errorf("%d, %q", o.code, o.errOut)
	}
}

// I4–I6, D11, D32, S21, S23: each kind of fault is found, all are told, the first
// is named, and the healthy sessions beside it are still counted.
func TestVerifyFaults(t *testing.T) {
	child := func(id, parent string, depth int64) session.Header {
		return session.Header{ID: session.ID(id), CreatedAt: epoch + 1, ParentSession: session.ID(parent), Origin: session.OriginSubagent, DelegationDepth: depth}
	}
	start, end := rawEvent(session.TypeTurnStart, `{"turn":1}`), rawEvent(session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"completed"}}`)
	title := func(seq int64, value string) []session.Checkpoint {
		return []session.Checkpoint{{Key: session.CellTitle, Version: 1, Seq: seq, Value: []byte(value)}}
	}
	root := session.Header{ID: "bad", CreatedAt: epoch + 1}
	ident := rawEvent(session.TypeDescriptor, `{"version":2,"mode":"one-shot","provider":"spawn"}`)
	for _, c := range []struct {
		name string
		fill func(*archive)
		want []string
	}{
		{"grammar", func(a *archive) { a.raw(root, "bad", nil, start, start) },
			[]string{"session bad: turn/start at seq 1 breaks I4: turn 1 is still open"}},
		{"payload", func(a *archive) { a.raw(root, "bad", nil, rawEvent(session.TypeTurnStart, `{"turn":"one"}`)) },
			[]string{"session bad is corrupt at seq 0: turn/start: "}},
		{"type", func(a *archive) { a.raw(root, "bad", nil, rawEvent("future/thing", `{}`)) },
			[]string{`session bad is not supported at seq 0: event type "future/thing" is unknown and not ignorable`}},
		{"newer build", func(a *archive) { a.raw(session.Header{ID: "bad", Version: 7, CreatedAt: epoch + 1}, "bad", nil) },
			[]string{"session bad is not supported: format version 7 was produced by a newer build"}},
		{"orphan", func(a *archive) { a.raw(child("bad", "gone", 1), "gone", nil) },
			[]string{"session bad: its parent session gone is not stored"}},
		{"root", func(a *archive) { a.raw(child("bad", "good", 1), "elsewhere", nil) },
			[]string{"session bad: its root is elsewhere, but that of its parent good is good"}},
		{"depth", func(a *archive) { a.raw(child("bad", "good", 0), "good", nil) },
			[]string{"session bad: its delegation depth 0 is not below its parent's, 0"}},
		{"no descriptor", func(a *archive) { a.raw(child("bad", "good", 1), "good", nil, start, end) },
			[]string{"session bad: it was delegated and has run, but its log holds no descriptor of its own"}},
		{"damaged descriptor", func(a *archive) {
			a.raw(child("bad", "good", 1), "good", nil, start, rawEvent(session.TypeDescriptor, `{"version":2}`), end)
		}, []string{"session bad: descriptor: "}},
		{"no turn, no descriptor needed", func(a *archive) { a.raw(child("bad", "good", 1), "good", nil) }, nil},
		{"descriptor", func(a *archive) { a.raw(child("bad", "good", 1), "good", nil, start, ident, end) }, nil},
		{"checkpoint", func(a *archive) { a.raw(root, "bad", title(1, `{"title":"wrong"}`), start, end) },
			[]string{`session bad is corrupt at seq 1: checkpoint "title" says {"title":"wrong"} where the log says {"title":""}`}},
		{"checkpoint left behind", func(a *archive) {
			a.raw(root, "bad", title(0, `{"title":""}`), start, rawEvent(session.TypeTitle, `{"title":"new"}`))
		}, []string{`session bad is corrupt at seq 0: checkpoint "title" is older than what changed it: it says {"title":""} where the log says {"title":"new"}`}},
		{"checkpoint of another build", func(a *archive) {
			a.raw(root, "bad", []session.Checkpoint{{Key: session.CellTitle, Version: 9, Seq: 1, Value: []byte(`"odd"`)}, {Key: "other", Version: 1, Seq: 1, Value: []byte(`1`)}}, start, end)
		}, nil},
		{"several", func(a *archive) {
			a.raw(child("bad", "gone", 1), "gone", title(1, `{"title":"wrong"}`), start, end)
			a.raw(session.Header{ID: "worse", CreatedAt: epoch + 2}, "worse", nil, end)
		}, []string{`session bad is corrupt at seq 1: checkpoint`, "session bad: it was delegated", "session bad: its parent session gone", "session worse: turn/end at seq 0 breaks I4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHome(t)
			a := openArchive(t, h)
			a.write(session.New{ID: "good"}, draft(&session.TurnStart{Turn: 1}), draft(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}))
			c.fill(a)
			a.close()
			o := h.run("sessions", "verify")
			checkFaults(t, o, c.want)
			o = h.run("sessions", "verify", "--json")
			lines := strings.Split(strings.TrimSpace(o.out), "\n")
			var sum totals
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil || sum.Faults != int64(len(c.want)) || sum.Sessions != int64(len(lines)-1) {
				t.Errorf("summary %+v of %d lines, %v", sum, len(lines), err)
			}
			if one := h.run("sessions", "verify", "bad"); (one.code == 1) != (len(c.want) > 0) {
				t.Errorf("alone: %d, %s%s", one.code, one.out, one.errOut)
			}
			if one := h.run("sessions", "verify", "good"); one.code != 0 {
				t.Errorf("the other: %d, %s%s", one.code, one.out, one.errOut)
			}
			// A list shows what it can, and a transcript what it can reach.
			if l := h.must("sessions", "list", "--all"); !strings.Contains(l, "good ") || !strings.Contains(l, "bad ") {
				t.Errorf("list:\n%s", l)
			}
		})
	}
}

func checkFaults(t *testing.T, o output, want []string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(o.out) {
		if fault, ok := strings.CutPrefix(line, "FAULT "); ok {
			got = append(got, strings.TrimSpace(fault))
		}
	}
	same := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		same = same && strings.HasPrefix(got[i], want[i])
	}
	if !same {
		t.Errorf("faults (-want +got):\n%s", cmp.Diff(want, got))
	}
	switch {
	case len(want) == 0 && (o.code != 0 || o.errOut != ""):
		t.Errorf("exit code %d, %s", o.code, o.errOut)
	case len(want) > 0 && (o.code != 1 || strings.Count(o.errOut, "\n") != 1 || !strings.Contains(o.errOut, "; the first: "+got[0])):
		t.Errorf("exit code %d, %s", o.code, o.errOut)
	}
}

// A log that ends in nonsense is shown up to there, as JSON too.
func TestShowDamaged(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	a.raw(session.Header{ID: "bad", CreatedAt: epoch}, "bad", nil,
		rawEvent(session.TypeTurnStart, `{"turn":1}`), rawEvent(session.TypeTurnEnd, `{"turn":[]}`))
	a.close()
	o := h.run("sessions", "show", "bad")
	if o.code != 1 || !strings.Contains(o.out, "── turn 1 ·") || !strings.Contains(o.errOut, "session bad is corrupt at seq 1") {
		t.Errorf("%d, %s%s", o.code, o.out, o.errOut)
	}
	for _, args := range [][]string{{"--json"}, {"--events"}, {"--events", "--json"}} {
		o := h.run(append([]string{"sessions", "show", "bad"}, args...)...)
		if o.code != 0 || args[0] == "--json" && !json.Valid([]byte(o.out)) {
			t.Errorf("%v: %d, %s%s", args, o.code, o.out, o.errOut)
		}
	}
}

// The whole way with the demo model: what a run leaves lists, shows and verifies.
func TestAfterARun(t *testing.T) {
	h := newHome(t)
	for _, f := range []string{"README.md", "src/a.go", "docs/b.md"} {
		h.write(filepath.Join(h.work, f), "one\ntwo\n")
	}
	a, out, errOut := h.app()
	a.configure = func(o *harness.Options) { o.DemoPace = 0 }
	if code := a.execute(t.Context(), []string{"run", "Map this"}); code != 0 {
		t.Fatalf("run: %d, %s%s", code, out, errOut)
	}
	before := snapshot(t, h.dir)
	var rows []row
	for line := range strings.Lines(h.must("sessions", "list", "--all", "--json")) {
		var r row
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	root := rows[len(rows)-1]
	if len(rows) < 3 || root.Model != "demo:demo" || root.Title != "Map this" || root.State != "idle" || root.Tokens == 0 || root.Cwd != h.work {
		t.Fatalf("rows %+v", rows)
	}
	text := h.must("sessions", "show", string(root.ID))
	for _, kid := range rows[:len(rows)-1] {
		if kid.ParentSession != root.ID || kid.Label == "" || !strings.Contains(text, "(child "+string(kid.ID)+")") {
			t.Errorf("child %+v in\n%s", kid, text)
		}
	}
	h.must("sessions", "verify")
	if snapshot(t, h.dir) != before {
		t.Error("reading changed files")
	}
}
