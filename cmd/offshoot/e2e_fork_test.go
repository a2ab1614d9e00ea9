//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/session"
)

// forkConfig gives the root agent a persona and a filter of its own.
const forkConfig = "agents:\n  default: {persona: 'You count in {{cwd}}.', tools: {deny: [bash]}}\n"

// newForkWorld is a world with a fake endpoint of the wire of a route.
func newForkWorld(t *testing.T, route string) (*world, *fakemodel.Server) {
	t.Helper()
	s, err := fakemodel.Open(fakemodel.Options{Key: secretKey, Models: []string{"fake-model"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := newWorld(t)
	w.use(s, route)
	if route == "anthropic" {
		w = w.with("ANTHROPIC_BASE_URL", s.Origin())
	}
	w.route(fakemodel.Dialect(route), "maxRetries: 0")
	w.write("offshoot.yaml", forkConfig)
	w.write("a.txt", "seven doors\n")
	return w, s
}

// members are the parts of a request's body, the messages one by one, without the
// marks by which a request asks for its prefix to be kept.
func members(t *testing.T, r fakemodel.Request) (rest map[string]string, messages []string) {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal(r.Body, &all); err != nil {
		t.Fatal(err)
	}
	plain := func(raw []byte) string {
		return strings.ReplaceAll(string(raw), `,"cache_control":{"type":"ephemeral"}`, "")
	}
	var list []json.RawMessage
	if err := json.Unmarshal(all["messages"], &list); err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		messages = append(messages, plain(m))
	}
	rest = map[string]string{}
	for name, raw := range all {
		if name != "messages" {
			rest[name] = plain(raw)
		}
	}
	return rest, messages
}

// TestFork: --delegate fork, over two processes. In the root's first turn there is
// nothing to inherit; in its second the child's first request begins as the root's
// does, byte for byte, although the root has a persona and a filter of its own. What
// sessions show of it is its own, and what it began with is told apart (FORK-01…05,
// P40, LIST-14).
func TestFork(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"openai", "anthropic"} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			w, s := newForkWorld(t, route)
			w.ok("run", `[[fake:tool read {"path":"a.txt"}]]`+delegation("too early", "[[fake:reply nothing yet]]")+"[[fake:reply seven]]", "--delegate", "fork")
			first, early := w.tree()
			if len(early) != 1 || early[0].Header.SeedLength != 0 || early[0].Meta.Prefix.Len != 0 {
				t.Fatalf("the children of the first turn: %+v", early[0].Record)
			}
			before := s.Total()
			e := w.ok("resume", string(first.Header.ID), delegation("count on", "[[fake:reply eight]]")+"[[fake:reply {{match:eight}}]]", "--delegate", "fork", "--json")
			root, children := w.tree()
			child := children[1]
			cut := first.Head
			if child.Header.SeedLength != cut || child.Meta.Prefix != (session.PrefixRef{ID: root.Header.ID, Len: cut}) ||
				!slices.Equal(child.lines[:cut], root.lines[:cut]) {
				t.Errorf("the fork's record %+v, and the root had %d events", child.Record, cut)
			}
			if diff := cmp.Diff(child.lines[cut:], streamed(parseOutput(t, e.stdout))[child.Header.ID]); diff != "" {
				t.Errorf("the stream of the fork (-stored +streamed):\n%s", diff)
			}

			all := s.Requests()[before:]
			want, wantMessages := members(t, all[0])
			got, gotMessages := members(t, all[1])
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the rest of the request (-root +fork):\n%s", diff)
			}
			n := len(wantMessages) - 1 // all but what the root was told in this turn
			if n < 4 || len(gotMessages) <= n || !slices.Equal(gotMessages[:n], wantMessages[:n]) {
				t.Errorf("the messages (-root +fork):\n%s", cmp.Diff(wantMessages, gotMessages))
			}
			if text := got["system"] + gotMessages[0]; !strings.Contains(text, "You count in ") {
				t.Errorf("the root's persona is not in %s", text)
			}

			w.verify()
			id := string(child.Header.ID)
			tree := w.here("sessions", "tree").stdout
			if strings.Count(tree, "one-shot fork") != 2 || strings.Count(tree, "count on") != 1 {
				t.Errorf("the tree:\n%s", tree)
			}
			list := w.here("sessions", "list", "--all").stdout
			if own := fmt.Sprintf("%d+%d", child.Head-cut, cut); strings.Count(list, own) != 1 {
				t.Errorf("want the size %s in the list:\n%s", own, list)
			}
			var row struct {
				Events, SeedLength, Requests, Tokens int64
				Label, Provider, Mode                string
			}
			show := w.here("sessions", "show", id, "--json").stdout
			if err := json.Unmarshal([]byte(show), &row); err != nil {
				t.Fatal(err)
			}
			used := payloads[*session.AssistantMessage](t, child)
			if u := used[len(used)-1].Usage; row.Requests != 1 || row.Tokens != u.Total() {
				t.Errorf("the usage of its own is %+v, and it is told %+v", u, row)
			}
			if row.Events != child.Head || row.SeedLength != cut || row.Label != "count on" || row.Provider != "fork" || row.Mode != "one-shot" {
				t.Errorf("the row %+v", row)
			}
			text := w.here("sessions", "show", id).stdout
			for _, part := range []string{
				fmt.Sprintf("inherits the first %d events of %s", cut, root.Header.ID), fmt.Sprintf("%d events of its own", child.Head-cut),
				"mode     one-shot fork", "── inherited up to here ──", "subagent of provider fork: count on",
			} {
				if !strings.Contains(text, part) {
					t.Errorf("sessions show lacks %q:\n%s", part, text)
				}
			}
			w.ok("sessions", "rm", id, "--yes")
			w.verify()
			w.ok("sessions", "rm", string(root.Header.ID), "--tree", "--yes")
			w.verify()
		})
	}
}

// TestForkKilled: a crash while a fork is at work. Its log is legal, it is never run
// again, and the root goes on.
func TestForkKilled(t *testing.T) {
	t.Parallel()
	w, _ := newForkWorld(t, "openai")
	w.ok("run", "[[fake:reply seven]]")
	first, _ := w.tree()
	w.killAt("after:step/start@child", "resume", string(first.Header.ID), delegation("count on", "[[fake:reply eight]]"), "--delegate", "fork")
	w.verify()
	before := w.logs()
	root, children := w.tree()
	if len(children) != 1 || children[0].Header.SeedLength != first.Head || children[0].Head <= first.Head {
		t.Fatalf("%d children at death", len(children))
	}
	if tree := w.here("sessions", "tree").stdout; strings.Count(tree, "interrupted") != 2 || !strings.Contains(tree, "count on") {
		t.Errorf("the tree:\n%s", tree)
	}
	w.followUp(root.Header.ID)
	w.grew(before)
	if _, after := w.tree(); len(after) != 1 || after[0].Head != children[0].Head {
		t.Error("the fork went on after the crash")
	}
}
