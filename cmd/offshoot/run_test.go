package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

func TestJudge(t *testing.T) {
	r := &runner{stop: newStopper(t.Context(), 0, t.Logf)}
	defer r.stop.end()
	missing := errors.New("it only talked")
	for _, tt := range []struct {
		turn                *session.TurnEnd
		missing             error
		stopReason, failure string
	}{
		{nil, nil, "error", "the agent made no turn"},
		{&session.TurnEnd{Kind: session.EndCompleted}, nil, "completed", ""},
		{&session.TurnEnd{Kind: session.EndCompleted}, missing, "error", "it only talked"},
		{&session.TurnEnd{Kind: session.EndRefusal}, missing, "refusal", "the model declined the task"},
		{&session.TurnEnd{Kind: session.EndBlocked}, nil, "refusal", "the input was rejected before the model was asked"},
		{&session.TurnEnd{Kind: session.EndAborted}, missing, "aborted", "the turn ended as aborted"},
	} {
		if end := r.judge(tt.turn, tt.missing); end.stopReason != tt.stopReason || end.failure != tt.failure {
			t.Errorf("%+v: %+v", tt.turn, end)
		}
	}
}

// A run of many agents keeps a bounded picture of those that are gone, and still
// counts all of them.
func TestProgressForgets(t *testing.T) {
	var b strings.Builder
	p := newProgress(&b, display{})
	defer p.stop()
	p.add("root", "")
	const groups, kids = 100, 40
	for i := range groups {
		group := session.ID(fmt.Sprint("g", i))
		n := p.add(group, "root")
		p.started(subagent.StartEdge{ID: group, Local: true, Label: string(group)})
		if n.label != string(group) {
			t.Fatalf("label %q", n.label)
		}
		for j := range kids {
			id := session.ID(fmt.Sprint(group, "-", j))
			k := p.add(id, group)
			k.tokens, k.disposed = 1, true
			p.settle(id, k)
		}
		n.disposed = true
		p.settle(group, n)
		if len(p.nodes) != 2 {
			t.Fatalf("%d entries before the parent was told", len(p.nodes))
		}
		p.ended(subagent.EndEdge{StartEdge: subagent.StartEdge{ID: group, Local: true}})
	}
	var walk func(n *node) (nodes, folded int, tokens int64)
	walk = func(n *node) (nodes, folded int, tokens int64) {
		nodes, folded, tokens = 1, n.folded, n.spent+n.tokens
		for _, k := range n.kids {
			a, b, c := walk(k)
			nodes, folded, tokens = nodes+a, folded+b, tokens+c
		}
		return nodes, folded, tokens
	}
	nodes, folded, tokens := walk(p.root)
	if nodes > maxNodes || nodes+folded != 1+groups*(1+kids) || tokens != groups*kids || len(p.nodes) != 1 {
		t.Errorf("%d nodes are kept, %d folded, %d tokens, %d entries", nodes, folded, tokens, len(p.nodes))
	}
	var lines []string
	if p.render(p.root, "", "", 0, &lines); !strings.Contains(lines[1], "more, finished") {
		t.Errorf("drawn: %q", lines[1])
	}
}

// An agent that has not begun is not drawn as one that finished long ago.
func TestProgressNotBegun(t *testing.T) {
	p := newProgress(&strings.Builder{}, display{})
	defer p.stop()
	n := p.add("root", "")
	for _, tt := range []struct {
		change func()
		want   string
	}{
		{func() {}, "○ agent · 0 tokens · 0 calls · 0.0s"},
		{func() { n.running, n.started = true, p.now() }, "⠋ agent · 0 tokens · 0 calls · 0.0s"},
		{func() { n.running, n.end, n.ended = false, session.EndCompleted, n.started.Add(90*time.Second) }, "✓ agent · 0 tokens · 0 calls · 1m30s"},
	} {
		tt.change()
		var lines []string
		if p.render(p.root, "", "", 0, &lines); !strings.HasPrefix(lines[0], tt.want) {
			t.Errorf("drawn %q, want %q", lines[0], tt.want)
		}
	}
}

// The question shows all that will run, so that nothing can hide in it, and wants
// more than one key where it cannot.
func TestApprovalShowsAll(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		name, args, shown string
	}{
		{"plain", `{"command":"ls"}`, `{"command":"ls"}`},
		{"long", `{"command":"` + long + `; rm -rf /"}`, long + "; rm -rf /"},
		{"lines", `{"command":"echo a\nrm b","c":"\\n"}`, "echo a\\n\n    rm b\",\"c\":\"\\\\n\""},
		{"invisible", "{\"command\":\"a\u202eb\u009bc\x7f\u00a0\U000e0001\"}", `a\u202eb\u009bc\u007f\u00a0\udb40\udc01`},
		{"too many lines", `{"command":"` + strings.Repeat(`\n`, 300) + `rm"}`, "\\n\n"},
		{"too long", `{"command":"` + strings.Repeat("é", 20_000) + `"}`, "éé"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, hidden := describeRequest(&tool.ApprovalRequest{Tool: "bash", Cwd: "/w", Args: []byte(tt.args), Summary: "harmless"})
			if !strings.Contains(text, tt.shown) || strings.Contains(text, "harmless") {
				t.Errorf("shown: %q", text)
			}
			if big := strings.HasPrefix(tt.name, "too"); big != (hidden > 0) || big && hidden == len(tt.args) {
				t.Errorf("%d characters are hidden", hidden)
			}
			if hidden > 0 != strings.Contains(prompting(&tool.ApprovalRequest{}, hidden), "Type yes in full") {
				t.Errorf("asked: %q", prompting(&tool.ApprovalRequest{}, hidden))
			}
			if !allows("Yes\n", hidden) || allows("y\n", hidden) != (hidden == 0) || allows("\n", hidden) || allows("yes please\n", hidden) {
				t.Error("the answer is misread")
			}
		})
	}
}

// Whoever is asked for an agent below another sees the way down to it.
func TestApprovalShowsTheWay(t *testing.T) {
	text, _ := describeRequest(&tool.ApprovalRequest{Tool: "codex:command", Args: []byte("{}"), Path: []string{"root", "mid\x1b", "far"}, Reason: "the agent codex asks for it"})
	if want := "The agent wants to call codex:command:\n  {}\n(for the agent root > mid\uFFFD > far)\n(the agent codex asks for it)"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if text, _ := describeRequest(&tool.ApprovalRequest{Tool: "bash", Args: []byte("{}"), Path: []string{"root"}}); strings.Contains(text, "root") {
		t.Errorf("%q", text)
	}
}

func TestLegible(t *testing.T) {
	const text = "a\tb\r\nc \x1b]0;t\x07\rd\u202e\n\n"
	if diff := cmp.Diff("a\tb\nc \uFFFD]0;t\uFFFD\uFFFDd\uFFFD\n\n", legible(text)); diff != "" {
		t.Error(diff)
	}
}

// A store or a limit is not the endpoint's fault, and is not told as such.
func TestFailuresOfTheProgramAreNotBlamedOnTheModel(t *testing.T) {
	for code, want := range map[string]bool{"UNKNOWN": false, "LIMIT_REACHED": false, "TRANSPORT": true, "AUTH": true} {
		if got := ofModel(&message.Failure{Code: code}); got != want {
			t.Errorf("%s: %t", code, got)
		}
	}
	if !ofModel(&message.Failure{Code: "UNKNOWN", Status: 500}) {
		t.Error("an answer with a status is the endpoint's")
	}
}

// A person who is asked reads what a yes means.
func TestApprovalSaysHowLong(t *testing.T) {
	for label, want := range map[string]string{"Allow this once": "Allow this once? [y/N] ", "Allow for\x1b good": "Allow for\uFFFD good? [y/N] "} {
		req := &tool.ApprovalRequest{Options: []tool.ApprovalOption{{Label: "Reject", Outcome: tool.ApprovalRejected}, {Label: label, Outcome: tool.ApprovalAllowedOnce}}}
		if got := prompting(req, 0); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
