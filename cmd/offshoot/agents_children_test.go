package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// household fills a home with a tree in which every kind of row comes up.
func household(t *testing.T, h *home) {
	library(t, h)
	a := openArchive(t, h)
	a.clock = a.clock.Add(20 * time.Second)
	below := func(id, parent string) session.New {
		return session.New{ID: session.ID(id), ParentSession: session.ID(parent), Root: rootID, Origin: session.OriginSubagent, DelegationDepth: 2}
	}
	continuable, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeContinuable, Provider: "spawn", Label: new(string)})
	if err != nil {
		t.Fatal(err)
	}
	a.write(below("grand", childID),
		draft(&session.TurnStart{Turn: 1}), descriptor(t, "Count\n\x1b[31mtwice"), draft(&session.StepStart{Turn: 1, Step: 1}),
		says(1, 1, "g1", &message.Usage{InputTokens: 7, OutputTokens: 1}, message.Text("twice")),
		draft(&session.StepEnd{Turn: 1, Step: 1}), draft(&session.TurnEnd{Turn: 1, Kind: session.EndMaxTokens}))
	a.write(below("waits", rootID), draft(&session.TurnStart{Turn: 1}), draft(continuable), user("w1", "Wait for <news> & more.", message.UserSource()), draft(&session.TurnEnd{Turn: 1, Kind: session.EndAborted}))
	a.write(below("nameless", rootID), draft(&session.Title{Title: "no identity"}))
	plain := below("plain", rootID)
	plain.Origin = ""
	a.write(plain, draft(&session.Title{Title: "nobody delegated it"}))
	a.write(below("under-plain", "plain"), draft(&session.TurnStart{Turn: 1}), descriptor(t, "below a session without a line"), draft(&session.TurnEnd{Turn: 1, Kind: session.EndError, Failure: &message.Failure{Code: "X", Message: "x"}}))
	a.raw(session.Header{ID: "newer", Version: 7, CreatedAt: epoch + 60_000, ParentSession: rootID, Origin: session.OriginSubagent}, rootID, nil)
	a.close()
}

// LIST-11, LIST-19, LIST-37, LIST-47, LIST-48, TREE-01…05: what people and programs get
// to see of what an agent delegated.
func TestChildrenGolden(t *testing.T) {
	h := newHome(t)
	household(t, h)
	for name, args := range map[string][]string{
		"children.txt":      {rootID},
		"children.jsonl":    {rootID, "--json"},
		"descendants.txt":   {rootID, "--descendants"},
		"descendants.jsonl": {rootID, "--descendants", "--json"},
	} {
		t.Run(name, func(t *testing.T) {
			got := h.must(append([]string{"agents", "children"}, args...)...)
			if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' && r != '\n' }) {
				t.Errorf("control characters reach the terminal: %q", got)
			}
			golden(t, name, got)
			if strings.HasSuffix(name, "jsonl") {
				for line := range strings.Lines(got) {
					if !json.Valid([]byte(line)) {
						t.Errorf("no JSON: %s", line)
					}
				}
			}
		})
	}
}

// childLines runs children --json and returns the ids, and the position of the next page.
func childLines(t *testing.T, h *home, args ...string) (ids []string, after string) {
	t.Helper()
	for line := range strings.Lines(h.must(append([]string{"agents", "children", "--json"}, args...)...)) {
		var c struct{ Kind, ID, After string }
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if after != "" {
			t.Errorf("a line behind the end of the page: %s", line)
		}
		if after = c.After; c.Kind != "more" {
			ids = append(ids, c.ID)
		}
	}
	return ids, after
}

// LIST-43: pages put together are the whole, and people are told how to go on.
func TestChildrenPages(t *testing.T) {
	h := newHome(t)
	household(t, h)
	for _, more := range [][]string{{rootID}, {rootID, "--descendants"}} {
		whole, _ := childLines(t, h, more...)
		var got []string
		args := append(slices.Clone(more), "--limit", "2")
		for {
			ids, after := childLines(t, h, args...)
			if got = append(got, ids...); after == "" {
				break
			}
			args = append(slices.Clone(more), "--limit", "2", "--after", after)
		}
		if diff := cmp.Diff(whole, got); diff != "" || len(whole) < 4 {
			t.Errorf("%v (-whole +pages):\n%s", more, diff)
		}
	}
	o := h.run("agents", "children", rootID, "--limit", "1")
	_, after, found := strings.Cut(o.errOut, "--after ")
	if o.code != 0 || !found || strings.Count(o.out, "\n") != 2 {
		t.Fatalf("%+v", o)
	}
	if rest := h.must("agents", "children", rootID, "--limit", "9", "--after", strings.TrimSpace(after)); strings.Contains(rest, childID) || !strings.Contains(rest, "waits") {
		t.Errorf("behind the first:\n%s", rest)
	}
}

// What is asked wrongly, and what is not there.
func TestChildrenMistakes(t *testing.T) {
	h := newHome(t)
	household(t, h)
	for _, c := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{}, exitUsage, "an argument is missing"},
		{[]string{"a", "b"}, exitUsage, "unexpected argument"},
		{[]string{rootID, "--limit", "-1"}, exitUsage, "not -1"},
		{[]string{rootID, "--limit", "1001"}, exitUsage, "from 1 to 1000 rows, not 1001"},
		{[]string{rootID, "--after", "nonsense"}, exitUsage, `position "nonsense" in a listing is malformed`},
		{[]string{rootID, "--descendants", "--after", "1:gone"}, exitUsage, "session gone, behind which the page begins, is not below"},
		{[]string{"nope"}, exitFailure, `session "nope": session not found`},
		{[]string{"018b"}, exitFailure, "is ambiguous"},
		{[]string{"waits"}, exitOK, "no agents below waits"},
	} {
		o := h.run(append([]string{"agents", "children"}, c.args...)...)
		if o.code != c.code || o.out != "" || !strings.Contains(o.errOut, c.err) {
			t.Errorf("%v: %+v", c.args, o)
		}
	}
	if o := newHome(t).run("agents", "children", "x"); o.code != exitFailure || !strings.Contains(o.errOut, "no sessions yet") {
		t.Errorf("no store: %+v", o)
	}
	// One that cannot be read may have children, and so may one that was removed.
	a := openArchive(t, h)
	a.write(session.New{ID: "below-newer", ParentSession: "newer", Root: "other", Origin: session.OriginSubagent}, descriptor(t, "of a newer build's"))
	a.write(session.New{ID: "orphan", ParentSession: "removed", Root: "other", Origin: session.OriginSubagent}, descriptor(t, "left over"))
	a.close()
	for parent, want := range map[string]string{"newer": "below-newer", "removed": "orphan"} {
		if got, _ := childLines(t, h, parent); !slices.Equal(got, []string{want}) {
			t.Errorf("children of %s: %v", parent, got)
		}
	}
}

// LIST-20: another process's child is running while that process holds it.
func TestChildrenAtWork(t *testing.T) {
	h := newHome(t)
	library(t, h)
	a := openArchive(t, h)
	s, err := a.reg.PrepareStored(t.Context(), childID)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.must("agents", "children", rootID); !strings.Contains(got, "running") || !strings.Contains(got, " 2.0s ") {
		t.Errorf("held:\n%s", got)
	}
	start, err := s.Append(draft(&session.TurnStart{Turn: 2}))
	if err == nil {
		err = s.Flush(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	e, _ := s.Event(start)
	h.now = time.UnixMilli(e.Time).Add(7 * time.Minute)
	if got := h.must("agents", "children", rootID); !strings.Contains(got, " 7m02s ") {
		t.Errorf("its turn began seven minutes ago:\n%s", got)
	}
	if err := a.reg.Abandon(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := h.must("agents", "children", rootID); !strings.Contains(got, "inactive") {
		t.Errorf("given up:\n%s", got)
	}
}
