package fork_test

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/llm/openai"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// body is a request as it went over the wire: its members byte for byte.
type body struct {
	members  map[string]string // but for the messages
	messages []string
}

func bodyOf(t *testing.T, r fakemodel.Request) body {
	t.Helper()
	var all map[string]json.RawMessage
	var messages []json.RawMessage
	if err := json.Unmarshal(r.Body, &all); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(all["messages"], &messages); err != nil {
		t.Fatal(err)
	}
	b := body{members: map[string]string{}}
	for name, raw := range all {
		if name != "messages" {
			b.members[name] = string(raw)
		}
	}
	for _, m := range messages {
		b.messages = append(b.messages, string(m))
	}
	return b
}

// unmarked leaves out where a request wants the vendor to keep its prefix: that is no
// part of what is kept.
func (b body) unmarked() body {
	const mark = `,"cache_control":{"type":"ephemeral"}`
	c := body{members: map[string]string{}}
	for name, raw := range b.members {
		c.members[name] = strings.ReplaceAll(raw, mark, "")
	}
	for _, m := range b.messages {
		c.messages = append(c.messages, strings.ReplaceAll(m, mark, ""))
	}
	return c
}

// wantPrefix checks that got begins as want does: everything but the messages, and n
// messages.
func wantPrefix(t *testing.T, what string, want, got body, n int) {
	t.Helper()
	if len(got.members) != len(want.members) {
		t.Errorf("%s: %d members, want %d", what, len(got.members), len(want.members))
	}
	for name, raw := range want.members {
		if got.members[name] != raw {
			t.Errorf("%s: %s is\n%s\nwant\n%s", what, name, got.members[name], raw)
		}
	}
	if len(got.messages) < n || len(want.messages) < n {
		t.Fatalf("%s: %d and %d messages, want %d at least", what, len(got.messages), len(want.messages), n)
	}
	for i := range n {
		if got.messages[i] != want.messages[i] {
			t.Errorf("%s: message %d is\n%s\nwant\n%s", what, i, got.messages[i], want.messages[i])
		}
	}
}

// wire is a system with a real adapter on a loopback endpoint, and the tools of a
// deployment: one of its own, and the delegation to a provider.
func wire(t *testing.T, provider subagent.Provider, anthropicWire bool, depth int64) (*subagenttest.System, *fakemodel.Server, *agent.Agent) {
	t.Helper()
	server, err := fakemodel.Open(fakemodel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	var adapter interface {
		llm.Adapter
		CloseIdleConnections()
	}
	if anthropicWire {
		adapter, err = anthropic.New(anthropic.Config{BaseURL: server.Origin(), NoKey: true})
	} else {
		adapter, err = openai.New(openai.Config{Dialect: "openai", BaseURL: server.URL(), NoKey: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(adapter.CloseIdleConnections)
	s := subagenttest.NewSystem(t, subagenttest.Options{
		Adapter: adapter, Identity: "You are {{model}} in {{cwd}}.", Persona: "You count.",
		Tools: []tool.Definition{{
			Name: "look", Description: "Looks.", Parameters: []byte(`{"type":"object"}`),
			Execute: func(context.Context, *tool.Call) (any, error) { return "seven doors", nil },
		}},
	})
	s.Register(t, provider)
	if _, err := delegate.Mount(s.Service, s.Tools.Root(), delegate.Config{Provider: provider.Name(), MaxDepth: &depth}, nil); err != nil {
		t.Fatal(err)
	}
	parent := s.NewAgent(t, agent.Create{
		Session: session.New{Cwd: "/work"},
		Options: agent.Options{Provider: subagenttest.Route, Model: "claude-opus-5-5", MaxTokens: 4000},
	})
	return s, server, parent
}

// conversation is one turn with a tool, and one in whose second step a child is
// started, at the depth cap. It returns the requests of the second turn's two steps
// and the child's.
func conversation(t *testing.T, server *fakemodel.Server, parent *agent.Agent) (first, second, child body) {
	t.Helper()
	turn(t, parent, "[[fake:think Let me see.]] [[fake:tool look {}]] [[fake:reply There are seven.]]")
	turn(t, parent, `[[fake:tool look {}]] [[fake:next]] [[fake:tool subagent {"description":"count","prompt":"Count on. [[fake:reply Eight.]]"}]] [[fake:reply Thank you.]]`)
	all := server.Requests()
	if len(all) != 6 {
		t.Fatalf("%d requests, want 2 of the first turn, 3 of the second and the child's", len(all))
	}
	at := slices.IndexFunc(all, func(r fakemodel.Request) bool {
		return bytes.Contains(r.Body, []byte("Another agent delegated this work"))
	})
	if at != 4 {
		t.Fatalf("the child's request is number %d", at)
	}
	return bodyOf(t, all[2]), bodyOf(t, all[3]), bodyOf(t, all[4])
}

// cached returns what the endpoint found in its cache for the first answer of a
// session's own.
func cached(t *testing.T, s *session.Session) int64 {
	t.Helper()
	for e := range s.Events(s.Header().SeedLength) {
		if p, ok := e.Payload().(*session.AssistantMessage); ok && p.Usage != nil {
			return p.Usage.CacheReadTokens
		}
	}
	t.Fatalf("session %s has no answer that tells its usage", s.ID())
	return 0
}

// childLog catches the log of the next child.
func childLog(s *subagenttest.System) func() *session.Session {
	var log *session.Session
	s.Service.AddHooks(subagent.Hooks{Started: func(e subagent.StartEdge) {
		if a, ok := s.Agents.Get(e.ID); ok {
			log = a.Session()
		}
	}}, nil)
	return func() *session.Session { return log }
}

// The prompt cache on the wire, chat completions: the body of a fork's first request
// begins as its parent's does. The vendor keeps prefixes by itself.
func TestPromptCacheOpenAI(t *testing.T) {
	_, server, parent := wire(t, fork.New(""), false, 1)
	first, second, child := conversation(t, server, parent)
	const cut = 5 // system, user, assistant with the call, result, assistant
	wantPrefix(t, "the step before", first, child, cut)
	wantPrefix(t, "the step that delegated", second, child, cut)
	if len(child.messages) != cut+2 || !strings.Contains(child.messages[cut], "Count on.") || !strings.Contains(child.messages[cut+1], "Another agent delegated") {
		t.Errorf("behind the cut stands %q", child.messages[cut:])
	}
	if !strings.Contains(child.members["tools"], `"subagent"`) {
		t.Error("DEP-12: a child at the cap lost its delegation tool")
	}
	// The endpoint sees bytes, not members: up to the first message behind the cut
	// they are the same.
	all := server.Requests()
	at := bytes.Index(all[4].Body, []byte(`{"content":"Count on.`))
	if at < 0 || !bytes.HasPrefix(all[2].Body, all[4].Body[:at]) {
		t.Errorf("the bodies do not begin alike:\n%s\n%s", all[2].Body, all[4].Body)
	}
}

// The prompt cache on the wire, Messages: the same, and the request asks for the
// place where the parent's last completed turn had its prefix kept.
func TestPromptCacheAnthropic(t *testing.T) {
	s, server, parent := wire(t, fork.New(""), true, 1)
	log := childLog(s)
	first, second, child := conversation(t, server, parent)
	const cut = 4 // user, assistant with the call, result, assistant
	wantPrefix(t, "the step before, marks and all", first, child, cut)
	wantPrefix(t, "the step that delegated", second.unmarked(), child.unmarked(), cut)
	if len(child.messages) != cut+1 || !strings.Contains(child.messages[cut], "Count on.") || !strings.Contains(child.messages[cut], "Another agent delegated") {
		t.Errorf("behind the cut stands %q", child.messages[cut:])
	}
	marks := func(b body) (at []int) {
		for i, m := range b.messages {
			if strings.Contains(m, `"cache_control"`) {
				at = append(at, i)
			}
		}
		return at
	}
	for _, name := range []string{"tools", "system"} {
		if strings.Count(child.members[name], `"cache_control"`) != 1 {
			t.Errorf("%s carry no mark: %s", name, child.members[name])
		}
	}
	if got := marks(child); !slices.Equal(got, []int{2, 4}) {
		t.Errorf("messages %v are marked, want the last of the parent's completed turn and the child's own", got)
	}
	if !slices.Contains(marks(first), 2) {
		t.Errorf("the parent marked %v", marks(first))
	}

	// The endpoint found it: all that the parent's own next step found, which is more
	// than the tools and the system prompt, that a fresh child shares too.
	got := cached(t, log())
	var own []int64
	for e := range parent.Session().Events(0) {
		if p, ok := e.Payload().(*session.AssistantMessage); ok {
			own = append(own, p.Usage.CacheReadTokens)
		}
	}
	if got == 0 || got != own[2] {
		t.Errorf("the child read %d tokens from the cache, its parent's steps %v", got, own)
	}
	s, server, parent = wire(t, spawn.New(""), true, 1)
	log = childLog(s)
	conversation(t, server, parent)
	if fresh := cached(t, log()); fresh == 0 || fresh >= got {
		t.Errorf("a fresh child read %d tokens from the cache, the fork %d", fresh, got)
	}
}

// What ends the equality, and where: a request's own persona, filter or model. The
// messages up to the cut stay what they are.
func TestPromptCacheBroken(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*subagent.Request)
		differs []string // the members that are not the parent's
	}{
		{"the same", func(*subagent.Request) {}, nil},
		{"persona", func(r *subagent.Request) { r.Persona = &subagent.Persona{Text: "You doubt."} }, []string{"system"}},
		{"the same persona in words", func(r *subagent.Request) { r.Persona = &subagent.Persona{Text: "You count."} }, nil},
		{"filter", func(r *subagent.Request) { r.ToolFilter = &session.ToolFilter{Deny: []string{"look"}} }, []string{"tools"}},
		{"model", func(r *subagent.Request) { r.Model.Model = "claude-sonnet-5-5" }, []string{"model", "system"}}, // which names it
	} {
		t.Run(c.name, func(t *testing.T) {
			s, server, parent := wire(t, fork.New(""), true, 1)
			turn(t, parent, "[[fake:reply There are seven.]]")
			req := subagenttest.Request(parent, "[[fake:reply Eight.]]")
			c.change(&req)
			subagenttest.Await(t, s.Start(t, t.Context(), fork.DefaultName, req))
			all := server.Requests()
			want, got := bodyOf(t, all[0]).unmarked(), bodyOf(t, all[1]).unmarked()
			for name, raw := range want.members {
				if differs := got.members[name] != raw; differs != slices.Contains(c.differs, name) {
					t.Errorf("%s differs: %v", name, differs)
				}
			}
			if got.messages[0] != want.messages[0] {
				t.Errorf("the first message is %s", got.messages[0])
			}
		})
	}
}
