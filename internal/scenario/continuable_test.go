package scenario_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// call is an operation on a continuable child that the story made: its caller's context
// and, of a start, what was asked for.
type call struct {
	cancel context.CancelCauseFunc
	req    *subagent.ContinuableRequest
}

// newCall names an operation and returns its caller's context.
func (w *world) newCall(name string, cancelled bool) (context.Context, *call) {
	w.t.Helper()
	if w.calls[name] != nil {
		w.fatal("there is a call %q already", name)
	}
	ctx, cancel := context.WithCancelCause(w.t.Context())
	if cancelled {
		cancel(errStory)
	}
	w.calls[name] = &call{cancel: cancel}
	return ctx, w.calls[name]
}

// nameMessages names the accepted messages in the lines of a call: in the order of the
// calls, whichever of them returned first. The lock is held.
func (w *world) nameMessages(lines []string) {
	for _, line := range lines {
		for _, found := range id.FindAllString(line, -1) {
			if w.taken[found] {
				w.messageName(message.ID(found))
			}
		}
	}
}

// messageName names a message by its id, if it has no name yet. The lock is held.
func (w *world) messageName(id message.ID) string {
	if w.names.of[string(id)] == "" && !strings.Contains(string(id), ":") {
		w.names.of[string(id)] = w.names.next("message")
	}
	return w.names.name(session.ID(id))
}

// accepted writes what came of a message.
func (w *world) accepted(name, by string, id message.ID, err error) []string {
	if err != nil {
		return []string{fmt.Sprintf("%s: refused, %s", name, failure(err))}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken[string(id)] = true
	return []string{fmt.Sprintf("%s: %s has accepted %s", name, by, id)}
}

func parseBegin(a *args) action {
	name := a.word("a call")
	a.literal("on")
	provider := a.word("a provider")
	a.literal("for")
	who := caller(a)
	req := subagent.ContinuableRequest{Label: "work"}
	if prompt := a.text("a prompt"); prompt != "" {
		req.Prompt = text(prompt)
	}
	var filter session.ToolFilter
	var cancelled bool
	a.options(func(word string) bool {
		switch word {
		case "cancelled":
			cancelled = true
		case "label":
			req.Label = a.text("a text")
		case "reserving":
			req.ID = session.ID(a.word("an id"))
		case "cap":
			n := a.number("a number")
			req.MaxDepth = &n
		case "allow":
			filter.Allow, req.ToolFilter = a.list("tools"), &filter
		case "deny":
			filter.Deny, req.ToolFilter = a.list("tools"), &filter
		case "persona":
			req.Persona = &subagent.Persona{Text: a.text("a text")}
		case "literal":
			req.Persona = &subagent.Persona{Text: a.text("a text"), Literal: true}
		case "route":
			req.Model.Provider = a.word("a route")
		case "model":
			req.Model.Model = a.word("a model")
		case "max-tokens":
			req.Model.MaxTokens = a.number("a number")
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		s := w.system()
		req := req
		req.Parent = who(w)
		if req.ID != "" {
			w.names.of[string(req.ID)] = string(req.ID)
		}
		ctx, c := w.newCall(name, cancelled)
		c.req = &req
		w.call("begin of "+name, func() []string {
			acc, err := s.Service.StartContinuable(ctx, provider, req)
			return w.accepted(name, string(acc.Child), acc.Message, err)
		})
	}
}

// caller parses whose authority an operation has: an agent, the object of that name
// before the last restart, or nobody.
func caller(a *args) func(w *world) *agent.Agent {
	former := a.peek("former")
	name := a.word("an agent")
	return func(w *world) *agent.Agent {
		switch {
		case name == "nobody":
			return nil
		case former && w.gone[name] == nil:
			w.fatal("no agent %q was there before", name)
		case former:
			return w.gone[name]
		}
		return w.agent(name)
	}
}

func parseFollowup(a *args) action {
	name := a.word("a call")
	a.literal("for")
	who := caller(a)
	a.literal("to")
	child, prompt := a.word("a child"), a.text("a text")
	var claiming string
	var cancelled, person bool
	a.options(func(word string) bool {
		switch word {
		case "cancelled":
			cancelled = true
		case "claiming":
			if person = a.peek("a-person"); !person {
				claiming = a.word("an agent")
			}
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		parent, s := who(w), w.system()
		relay := message.SourceDetails{Form: message.FormRelay}
		switch {
		case claiming != "":
			relay.SenderSessionID = string(w.session(claiming))
		case parent != nil:
			relay.SenderSessionID = parent.SessionID()
		}
		source := message.NewSource(message.SourceCoordinator, relay)
		if person {
			source = message.UserSource()
		}
		var content []message.Block
		if prompt != "" {
			content = text(prompt)
		}
		id := w.session(child)
		ctx, _ := w.newCall(name, cancelled)
		w.call("follow-up "+name, func() []string {
			msg, err := s.Service.Followup(ctx, parent, id, content, source)
			return w.accepted(name, string(id), msg, err)
		})
	}
}

func parseReport(a *args) action {
	name := a.word("a call")
	a.literal("of")
	who := caller(a)
	content, how := a.text("a text"), a.word("a delivery")
	cancelled := a.peek("cancelled")
	return func(w *world) {
		child, s := who(w), w.system()
		how := subagent.Delivery(how)
		if how == "unsaid" {
			how = ""
		}
		var blocks []message.Block
		if content != "" {
			blocks = text(content)
		}
		ctx, _ := w.newCall(name, cancelled)
		w.call("report "+name, func() []string {
			msg, err := s.Service.Report(ctx, child, blocks, how)
			return w.accepted(name, "the parent", msg, err)
		})
	}
}

// parseDrain ends children from outside: those below agents, some of one agent, or all.
func parseDrain(a *args) action {
	switch a.literal("below", "children", "everything") {
	case "below":
		names := a.list("agents")
		return func(w *world) {
			s := w.system()
			var roots []*agent.Agent
			for _, name := range names {
				roots = append(roots, w.anyAgent(name))
			}
			wait := s.Service.DrainDescendants(roots...)
			w.ended("the drain below "+strings.Join(names, " and "), func() error { return wait(context.WithoutCancel(w.t.Context())) })
		}
	case "children":
		names := a.list("children")
		a.literal("of")
		who := caller(a)
		return func(w *world) {
			parent, s := who(w), w.system()
			var ids []session.ID
			for _, name := range names {
				ids = append(ids, w.session(name))
			}
			w.ended("the drain of "+strings.Join(names, " and "), func() error {
				return subagent.NewChildDrainer(s.Service).Drain(context.WithoutCancel(w.t.Context()), parent, ids...)
			})
		}
	}
	return func(w *world) {
		s := w.system()
		w.ended("the drain of everything", func() error { return s.Service.Close(context.WithoutCancel(w.t.Context())) })
	}
}

// ended calls what returns when something is over, and tells so.
func (w *world) ended(name string, fn func() error) {
	w.call(name, func() []string {
		if err := fn(); err != nil {
			return []string{fmt.Sprintf("%s: failed, %s", name, failure(err))}
		}
		return []string{name + ": done"}
	})
}

// parseHost is what a person does who names a child by its parent's id and its own.
func parseHost(a *args) action {
	what := a.literal("sends", "interrupts", "closes", "waits", "recovers")
	if what == "recovers" {
		name := a.word("an agent")
		return func(w *world) { w.recover(name) }
	}
	var name, prompt string
	switch what {
	case "sends":
		name = a.word("a call")
		a.literal("to")
	case "waits":
		a.literal("for")
	}
	child := a.word("a child")
	a.literal("of")
	parent := a.word("a session")
	var cancelled bool
	if what == "sends" {
		prompt = a.text("a text")
		cancelled = a.peek("cancelled")
	}
	return func(w *world) {
		s := w.system()
		ctx, parent, id := context.WithoutCancel(w.t.Context()), w.session(parent), w.session(child)
		switch what {
		case "sends":
			ctx, _ := w.newCall(name, cancelled)
			w.call("message "+name, func() []string {
				msg, err := s.Host.Send(ctx, parent, id, text(prompt))
				return w.accepted(name, string(id), msg, err)
			})
		case "interrupts":
			if err := s.Host.Interrupt(parent, id); err != nil {
				w.say("refused, %s", failure(err))
			}
		case "closes":
			w.ended("the closing of "+child, func() error { return s.Host.Close(ctx, parent, id) })
		case "waits":
			w.call("the wait for "+child, func() []string {
				set, err := s.Host.Wait(ctx, parent, id)
				if err != nil {
					return []string{fmt.Sprintf("%s: no outcome, %s", child, failure(err))}
				}
				return []string{fmt.Sprintf("%s: epoch %d ended %s, %s", child, set.Epoch, set.StopReason, blocks(set.Output))}
			})
		}
	}
}

// recover lets a tree go on, and wakes its root, as a program does that opens it again.
func (w *world) recover(name string) {
	root, s := w.agent(name), w.system()
	w.call("the recovery of "+name, func() []string {
		r, err := s.Host.Recover(context.WithoutCancel(w.t.Context()), root)
		if err != nil {
			return []string{"recovery: failed, " + failure(err)}
		}
		root.Wake()
		ids := make([]string, len(r.Reopened))
		for i, id := range r.Reopened {
			ids[i] = string(id)
		}
		lines := []string{fmt.Sprintf("recovery: %s reopened, %d notices", list(ids), r.Notices)}
		for _, sk := range r.Skipped {
			lines = append(lines, fmt.Sprintf("recovery: %s is skipped, %s", sk.ID, failure(sk.Err)))
		}
		return lines
	})
}

// parseInterrupt stops an agent's turn: a person who drops what waits, or an agent above
// it.
func parseInterrupt(a *args) action {
	name := a.word("an agent")
	if !a.peek("by") {
		return func(w *world) { w.check(w.agent(name).Cancel(session.Cause{Kind: session.CauseUser}, false)) }
	}
	who := caller(a)
	return func(w *world) {
		by := who(w)
		if err := subagent.NewInterrupter(w.system().Service).Interrupt(by, w.session(name)); err != nil {
			w.say("refused, %s", failure(err))
		}
	}
}

// parseHear makes the story tell what it keeps to itself otherwise.
func parseHear(a *args) action {
	what := a.literal("faults", "inboxes")
	return func(w *world) {
		if what == "faults" {
			w.hearing.Store(true)
			return
		}
		s := w.system()
		w.mu.Lock()
		era := w.era
		w.mu.Unlock()
		s.Agents.AddHooks(agent.Hooks{Inbox: func(to *agent.Agent, e agent.InboxEvent) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.era != era {
				return
			}
			msg := w.messageName(e.Message.ID)
			w.news = append(w.news, fmt.Sprintf("%s in %s: %s", e.Change, to.ID(), msg))
		}})
	}
}

// aside notes something about an agent, be it a child or not. The lock is held.
func (w *world) aside(a *agent.Agent, line func(n *names) string) {
	h := a.Session().Header()
	if h.Origin != session.OriginSubagent {
		w.news = append(w.news, line(&w.names))
		return
	}
	w.tell(&told{child: a.ID(), parent: h.ParentSession, kind: "child", line: line})
}

// follow tells the turns of a continuable child that ended since it was last asked, ahead
// of what is told of it next. The lock is held.
func (w *world) follow(id session.ID) {
	a := w.born[id]
	if a == nil || !w.lasting[id] {
		return
	}
	for _, turn := range w.ends(a) {
		w.told = append(w.told, &told{child: id, parent: a.Session().Header().ParentSession, kind: "child", line: func(n *names) string {
			return n.name(id) + " ends " + turn
		}})
	}
}

// fill replaces the names of agents in a call's arguments by their ids.
func (w *world) fill(args string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, name := range w.names.of {
		args = strings.ReplaceAll(args, `"`+name+`"`, `"`+id+`"`)
	}
	return args
}

// byName returns ids in the order of their names.
func byName(w *world, ids map[session.ID]bool) []session.ID {
	list := make([]session.ID, 0, len(ids))
	for id := range ids {
		list = append(list, id)
	}
	slices.SortFunc(list, func(a, b session.ID) int {
		return cmp.Or(compareNames(w.names.of[string(a)], w.names.of[string(b)]), strings.Compare(string(a), string(b)))
	})
	return list
}
