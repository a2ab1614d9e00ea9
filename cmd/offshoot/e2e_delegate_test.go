//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// delegation is a directive that calls the subagent tool.
func delegation(description, prompt string) string {
	args, err := json.Marshal(map[string]string{"description": description, "prompt": prompt})
	if err != nil {
		panic(err) // two strings
	}
	return "[[fake:tool subagent " + string(args) + "]]"
}

// results are the texts of a log's tool results.
func results(t *testing.T, l *storedLog) []string {
	t.Helper()
	var texts []string
	for _, r := range payloads[*session.ToolResult](t, l) {
		for _, b := range r.Message.Content {
			texts = append(texts, message.JoinText(b.Content))
		}
	}
	return texts
}

// TestDelegation: three children work at the same time, and their answers come
// back in the order of the calls, whoever is done first.
func TestDelegation(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.DeepSeek)
	w.write("a.txt", "alpha one\n")
	prompt := delegation("first", "[[fake:gate third]] [[fake:reply the first]]") +
		delegation("second", `[[fake:think so]] [[fake:gate second]] [[fake:tool read {"path":"a.txt"}]] [[fake:reply the second]]`) +
		delegation("third", "[[fake:gate second]] [[fake:gate third]] [[fake:reply the third]]") +
		`[[fake:reply {{match:the first}}, {{match:the second}}, {{match:the third}}]]`
	p := w.start("run", prompt)
	if err := s.WaitInFlight(bounded(t), 3); err != nil {
		t.Fatal(err)
	}
	s.Release("second")
	// The second child is done with its first request: it reads, and asks again.
	if _, err := s.WaitRequest(bounded(t), 5); err != nil {
		t.Fatal(err)
	}
	s.Release("third")
	e := p.wait()
	if e.code != 0 || e.stdout != "the first, the second, the third\n" {
		t.Errorf("%v", e)
	}
	if s.MaxInFlight() < 3 {
		t.Errorf("at most %d requests at a time", s.MaxInFlight())
	}
	for _, label := range []string{"first", "second", "third"} {
		if !strings.Contains(e.stderr, label) {
			t.Errorf("the child %s is not shown: %v", label, e)
		}
	}
	w.verify()
	root, children := w.tree()
	if diff := cmp.Diff([]string{"the first", "the second", "the third"}, results(t, root)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	var labels []string
	for _, c := range children {
		d := payloads[*session.DescriptorEvent](t, c)
		if len(d) != 1 || d[0].Descriptor.Mode != session.ModeOneShot || c.Header.ParentSession != root.Header.ID ||
			c.Header.DelegationDepth != 1 || c.Header.Cwd != w.cwd || c.Meta.Root != root.Header.ID {
			t.Errorf("child %+v, descriptors %d", c.Header, len(d))
			continue
		}
		labels = append(labels, *d[0].Descriptor.Label)
		if got := ends(t, c); !slices.Equal(got, []string{"completed"}) {
			t.Errorf("turn ends of %s: %v", labels[len(labels)-1], got)
		}
	}
	slices.Sort(labels)
	if diff := cmp.Diff([]string{"first", "second", "third"}, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	w.followUp(root.Header.ID)
}

// TestDelegationFails: whatever becomes of a child, its parent reads it as the
// result of its call and goes on (seam TOOL-13…19).
func TestDelegationFails(t *testing.T) {
	t.Parallel()
	w, s := newModelWorld(t, fakemodel.OpenAI)
	prompt := delegation("broken", "[[fake:fail bad-request]]") +
		delegation("cut", "[[fake:length half of it]]") +
		delegation("unwilling", "[[fake:refusal not that]]") +
		delegation("silent", `[[fake:tool list {}]] [[fake:usage completion=1]] [[fake:reply  ]]`) +
		delegation("fine", "[[fake:reply it is done]]") +
		delegation("blank", " ") +
		"[[fake:reply I saw it all]]"
	e := w.ok("run", prompt)
	if e.stdout != "I saw it all\n" {
		t.Errorf("%v", e)
	}
	w.verify()
	root, children := w.tree()
	got := results(t, root)
	want := []string{
		"the subagent failed\nDiagnostic: ", "the subagent hit its token limit before it was done\nPartial output:\nhalf of it",
		"the subagent declined the task", "the subagent failed\nDiagnostic: EMPTY_RESPONSE: ", "it is done", "the prompt is blank",
	}
	if len(got) != len(want) {
		t.Fatalf("results %q", got)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("result %d is %q, want %q", i, got[i], want[i])
		}
	}
	if len(children) != 5 || s.Total() < 7 {
		t.Errorf("%d children, %d requests", len(children), s.Total())
	}
	w.followUp(root.Header.ID)
}

// TestDelegationDepth: the bound holds on every level, and the model reads why
// (seam DEP; amendment P35).
func TestDelegationDepth(t *testing.T) {
	t.Parallel()
	// Each level asks for the next one, down to level 0, and quotes what it got.
	script := func(r fakemodel.Request) fakemodel.Reply {
		level := 0
		for _, m := range r.Messages {
			if text, ok := strings.CutPrefix(m.Text, "level "); ok && m.Role == "user" {
				level, _ = strconv.Atoi(text) // a text of this test
			}
		}
		if level == 0 {
			return fakemodel.Reply{fakemodel.Text("at the bottom")}
		}
		if r.Position() > 0 {
			return fakemodel.Reply{fakemodel.Text("below: " + r.ToolResults()[0].Text)}
		}
		return fakemodel.Reply{fakemodel.ToolCall{Name: "subagent", Arguments: fmt.Sprintf(`{"description":"deeper","prompt":"level %d"}`, level-1)}}
	}
	for _, tt := range []struct {
		most, tries int
		refused     bool
	}{
		{0, 1, true}, {1, 1, false}, {1, 2, true}, {2, 2, false}, {2, 3, true},
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.tries, tt.most), func(t *testing.T) {
			t.Parallel()
			w, s := newModelWorld(t, fakemodel.OpenAI)
			s.SetScript(script)
			e := w.ok("run", fmt.Sprintf("level %d", tt.tries), "--max-depth", fmt.Sprint(tt.most))
			want := strings.Repeat("below: ", tt.tries) + "at the bottom\n"
			if refused := strings.Contains(e.stdout, "do this work yourself") || strings.Contains(e.stdout, "limit reached"); refused != tt.refused || !refused && e.stdout != want {
				t.Errorf("%v", e)
			}
			w.verify()
			root, children := w.tree()
			if want := min(tt.most, tt.tries); len(children) != want {
				t.Errorf("%d children are stored, want %d", len(children), want)
			}
			for i, c := range children {
				if c.Header.DelegationDepth != int64(i+1) || c.Meta.Root != root.Header.ID {
					t.Errorf("child %d: %+v", i, c.Header)
				}
			}
			if refused := codes(t, slices.Concat([]*storedLog{root}, children)[len(children)]); tt.refused != slices.Contains(refused, "LIMIT_REACHED") {
				t.Errorf("codes of the last one: %v", refused)
			}
		})
	}
}
