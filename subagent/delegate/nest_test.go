package delegate_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// nest is a system with a store, a continuable delegation tool, the tools beside it, and
// a parent.
type nest struct {
	*subagenttest.System
	t      *testing.T
	parent *agent.Agent
}

// inNest runs fn in a bubble. What has no answer of its own is noted.
func inNest(t *testing.T, o subagenttest.Options, cfg delegate.Config, fn func(t *testing.T, n *nest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if o.Store == nil {
			o.Store = memory.New()
		}
		n := newNest(t, o, cfg)
		n.parent = n.Parent(t)
		fn(t, n)
	})
}

func newNest(t *testing.T, o subagenttest.Options, cfg delegate.Config) *nest {
	t.Helper()
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		t.Fatal(err)
	}
	o.Projections = units
	n := &nest{System: subagenttest.NewSystem(t, o), t: t}
	n.Register(t, spawn.New(""))
	n.Otherwise(scripted.Step{scripted.SayLiteral("noted")})
	cfg.Provider, cfg.Continuable = spawn.DefaultName, true
	mount(t, n.System, cfg)
	n.add(delegate.Control(n.Service, subagent.NewInterrupter(n.Service))...)
	n.add(delegate.List(n.Service)...)
	return n
}

func (n *nest) add(defs ...tool.Definition) {
	n.t.Helper()
	for _, d := range defs {
		if _, err := n.Tools.Root().Register(d); err != nil {
			n.t.Fatal(err)
		}
	}
}

// late lets everybody else come to rest before the answer goes on.
func late() scripted.Part {
	return scripted.Func(func(ctx context.Context, _ *llm.Request) (scripted.Step, error) {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return scripted.Step{scripted.Split(1)}, nil
	})
}

// starts is a call of the delegation tool that does not say whether it waits.
func starts(label, prompt string) scripted.Part {
	return scripted.CallLiteral("subagent", fmt.Sprintf(`{"description":%q,"prompt":%q}`, label, prompt))
}

// awaits is a call that does.
func awaits(label, prompt string) scripted.Part {
	return scripted.CallLiteral("subagent", fmt.Sprintf(`{"description":%q,"prompt":%q,"run_in_background":false}`, label, prompt))
}

// calls is a call with the ids of children in place of "#label".
func (n *nest) calls(name, args string) scripted.Part {
	return scripted.CallFunc(name, func(*llm.Request) (string, error) {
		for _, row := range n.rows() {
			if row.Label != nil {
				args = strings.ReplaceAll(args, "#"+*row.Label, string(row.ID))
			}
		}
		return args, nil
	})
}

// say is the content of a message.
func say(s string) []message.Block { return []message.Block{message.Text(s)} }

func (n *nest) rows() []subagent.Row {
	n.t.Helper()
	rows, err := n.Service.ListDescendants(context.WithoutCancel(n.t.Context()), n.parent.ID())
	if err != nil {
		n.t.Fatal(err)
	}
	return rows
}

// child returns the id of the child of a label.
func (n *nest) child(label string) session.ID {
	n.t.Helper()
	for _, row := range n.rows() {
		if row.Label != nil && *row.Label == label {
			return row.ID
		}
	}
	n.t.Fatalf("there is no child %q", label)
	return ""
}

// tell gives a prompt to the parent and waits until all are at rest, those that are late too.
func (n *nest) tell(prompt string) {
	n.t.Helper()
	if err := n.parent.Followup(agent.UserText(prompt)); err != nil {
		n.t.Fatal(err)
	}
	synctest.Wait()
	<-time.After(time.Minute)
	synctest.Wait()
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// plain puts names for ids: those of children are "#label", that of the parent PARENT.
func (n *nest) plain(text string) string {
	n.t.Helper()
	for _, row := range n.rows() {
		if row.Label != nil {
			text = strings.ReplaceAll(text, string(row.ID), "#"+*row.Label)
		}
	}
	text = strings.ReplaceAll(text, string(n.parent.ID()), "PARENT")
	return uuids.ReplaceAllString(text, "ID")
}

// log returns what a log says, one line each: messages, answers, results with their codes
// and metas, and ends that are not ordinary.
func (n *nest) log(id session.ID) []string {
	n.t.Helper()
	reg := n.Agents.Sessions()
	s, live := reg.Get(id)
	if !live {
		rec, events, err := reg.Store().Inspect(context.WithoutCancel(n.t.Context()), id)
		if err != nil {
			n.t.Fatal(err)
		}
		if s, err = reg.Restore(rec, events); err != nil {
			n.t.Fatal(err)
		}
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, n.plain(fmt.Sprintf(format, args...))) }
	for e := range s.Events(s.Header().SeedLength) {
		switch p := e.Payload().(type) {
		case *session.UserMessage:
			if p.Message.Source.Kind != message.SourcePlugin {
				add("%s: %s", p.Message.Source.Kind, message.JoinText(p.Message.Content))
			}
		case *session.AssistantMessage:
			if text := message.JoinText(p.Message.Content); text != "" {
				add("says: %s", text)
			}
		case *session.ToolResult:
			add("result %s%s: %s", p.ErrorCode, p.Meta, message.JoinText(p.Message.Content[0].Content))
		case *session.TurnEnd:
			if p.Kind != session.EndCompleted {
				add("end: %s", p.Kind)
			}
		case *session.Settled:
			add("settled: %s", p.StopReason)
		}
	}
	return lines
}
