package scenario_test

import (
	"context"
	"errors"
	"slices"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
	"github.com/offshoot-dev/offshoot/tool/shell"
)

func parseApprover(a *args) action {
	p := &approver{outcome: tool.ApprovalAllowedOnce}
	if a.literal("allows", "rejects") == "rejects" {
		p.outcome = tool.ApprovalRejected
	}
	if a.peek("at") {
		p.gate = a.word("a gate")
	}
	return before("approver", func(w *world) {
		p.w = w
		if p.gate != "" {
			w.gate(p.gate)
		}
		w.opts.Approver = p
	})
}

func parseRoute(a *args) action {
	name := a.word("a name")
	return func(w *world) {
		_, err := w.system().Models.Register(w.sys.Adapter, name)
		w.check(err)
	}
}

func parseAgent(a *args) action {
	name := a.word("a name")
	o := subagenttest.ParentOptions()
	n := session.New{}
	var heirOf string
	var raw bool
	a.options(func(word string) bool {
		switch word {
		case "from":
			raw = a.literal("log", "turns") == "log"
			a.literal("of")
			heirOf = a.word("an agent")
		case "cwd":
			n.Cwd = a.word("a path")
		case "route":
			o.Provider = a.word("a route")
		case "model":
			o.Model = a.word("a model")
		case "effort":
			o.ReasoningEffort = a.word("an effort")
		case "max-tokens":
			o.MaxTokens = a.number("a number")
		case "runtime-depth":
			depth := a.number("a number")
			o.Depth = &depth
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		if w.agents[name] != nil {
			w.fatal("there is an agent %q already", name)
		}
		n := n
		if heirOf != "" {
			n.Seed = seedOf(w.agent(heirOf).Session(), raw)
		}
		h, err := w.system().Agents.Create(w.t.Context(), agent.Create{Session: n, Options: o})
		if err != nil {
			w.say("refused, %s", failure(err))
			return
		}
		w.agents[name] = h.Agent()
		w.names.of[h.Agent().SessionID()] = name
		w.heads[h.Agent()] = h.Agent().Session().Head()
	}
}

// seedOf returns what an heir of a session is made from: its raw events, all of
// them, or its completed turns.
func seedOf(s *session.Session, raw bool) *session.Seed {
	if !raw {
		if p := s.Prefix(); p != nil {
			return &session.Seed{Prefix: p}
		}
		return nil
	}
	return &session.Seed{Events: slices.Collect(s.Events(0))}
}

func parseTool(a *args) action {
	name := a.word("a name")
	var owner, reason, gate string
	a.options(func(word string) bool {
		switch word {
		case "of":
			owner = a.word("an agent")
		case "asking":
			reason = a.text("a reason")
		case "until":
			gate = a.word("a gate")
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		var wait chan struct{} // nobody who waits here hears of a cancel
		if gate != "" {
			wait = w.gate(gate)
		}
		def := tool.Definition{
			Name: name, Description: "Does " + name + ".", Parameters: []byte(`{"type":"object"}`),
			Execute: func(context.Context, *tool.Call) (any, error) {
				if wait != nil {
					<-wait
				}
				return name + " ran", nil
			},
		}
		scope := w.system().Tools.Root()
		if owner != "" {
			scope = w.agent(owner).Tools()
		}
		unregister, err := scope.Register(def)
		w.check(err)
		w.tools[name] = unregister
		if reason != "" {
			w.mu.Lock()
			w.asking[name] = reason
			w.mu.Unlock()
		}
	}
}

func parseDrop(a *args) action {
	name := a.word("a tool")
	return func(w *world) {
		if w.tools[name] == nil {
			w.fatal("no tool is named %q", name)
		}
		w.tools[name]()
		delete(w.tools, name)
	}
}

func parseRefuse(a *args) action {
	what, of := a.word("an event type"), ""
	if what == "reading" {
		of = a.word("a session")
	}
	reason := a.text("a text")
	err := errors.New(reason)
	switch what {
	case "reading":
		return func(w *world) {
			w.faults.set(func(f *faults) {
				if f.read == nil {
					f.read = map[session.ID]error{}
				}
				f.read[w.session(of)] = err
			})
		}
	case "writes":
		return func(w *world) { w.faults.set(func(f *faults) { f.write = err }) }
	case "prompt":
		return func(w *world) {
			w.system().Agents.AddHooks(agent.Hooks{PreStep: func(_ context.Context, p *agent.PreStep) error {
				for _, m := range p.Messages {
					if message.JoinText(m.Content) == reason {
						p.Reject()
					}
				}
				return nil
			}})
		}
	}
	if a.err == nil && !isType(what) {
		a.fail("no event type is named %q", what)
	}
	return func(w *world) {
		w.faults.set(func(f *faults) {
			if f.refuse == nil {
				f.refuse = map[session.Type]error{}
			}
			f.refuse[session.Type(what)] = err
		})
	}
}

// isType reports whether a log knows an event type that a story can name.
func isType(name string) bool {
	switch session.Type(name) {
	case session.TypeTurnStart, session.TypeTurnEnd, session.TypeStepStart, session.TypeStepEnd, session.TypeUserMessage,
		session.TypeAssistantMessage, session.TypeToolCall, session.TypeToolResult, session.TypeRequestHeader, session.TypeRequestContext,
		session.TypeEndSeed, session.TypeInboxSpliced, session.TypeDescriptor, session.TypeApprovalAsked, session.TypeApprovalDecided,
		session.TypeApprovalPolicy, session.TypeSandboxMode:
		return true
	}
	return false
}

func (f *faults) set(fn func(*faults)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
}

// parseHook adds hooks that misbehave; those of the world itself come after them.
func parseHook(a *args) action {
	kind := a.literal("fails", "edits", "vetoes")
	return func(w *world) {
		h := subagent.Hooks{}
		switch kind {
		case "fails":
			h.Started = func(subagent.StartEdge) { panic("a hook failed at subagent/start") }
			h.Ended = func(subagent.EndEdge) { panic("a hook failed at subagent/end") }
			h.ProviderRemoved = func(string) { panic("a hook failed at the removal") }
		case "edits":
			h.Ended = func(e subagent.EndEdge) {
				if len(e.Output) > 0 {
					e.Output[0].Text = "edited by a hook"
				}
			}
		case "vetoes":
			h.ProviderAdded = func(p subagent.Provider) error { return errors.New("a hook wants no provider " + p.Name()) }
		}
		w.system().Service.AddHooks(h, nil)
	}
}

func parseOn(a *args) action {
	a.literal("creation")
	what := a.literal("cancel", "dispose", "drain", "list")
	var name string
	var ask func(*world) []string
	if what == "list" {
		ask = listing(a)
	} else {
		if what == "drain" {
			a.literal("below")
		}
		name = a.word("a name")
	}
	return func(w *world) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.triggers = append(w.triggers, trigger{"created", func() {
			switch what {
			case "cancel":
				w.canceller(name)(errStory)
			case "drain":
				wait := w.sys.Service.DrainDescendants(w.agents[name])
				w.ended("the drain below "+name, func() error { return wait(context.WithoutCancel(w.t.Context())) })
			case "dispose":
				w.agents[name].CloseAdmission(false)
			case "list":
				for _, line := range ask(w) {
					w.say("%s", line)
				}
			}
		}})
	}
}

func parseMountShell(a *args) action {
	a.literal("shell")
	name := a.text("a name")
	return func(w *world) {
		if _, err := w.shells.Mount(namedShell(name)); err != nil {
			w.say("refused, %v", err)
			return
		}
		w.say("mounted %s", name)
	}
}

// namedShell is a shell executor that only has a name.
type namedShell string

func (n namedShell) Name() string { return string(n) }

func (n namedShell) Run(context.Context, shell.Spec) (shell.Outcome, error) {
	return shell.Outcome{}, errors.New("this executor runs nothing")
}

var _ shell.Executor = namedShell("")

// parseForeign stores a session as another build might have written it.
func parseForeign(a *args) action {
	name := a.word("a name")
	a.literal("below")
	parent, origin := a.word("an agent"), session.OriginSubagent
	var cells []session.Checkpoint
	a.options(func(word string) bool {
		switch word {
		case "ordinary":
			origin = ""
		case "checkpoint":
			cells = []session.Checkpoint{{Key: session.CellIdentity, Version: 1, Value: []byte(a.text("a text"))}}
		default:
			return false
		}
		return true
	})
	var events []session.Event
	a.lines(func(l *args) {
		typ := l.word("an event type")
		events = append(events, session.RawEvent(session.Event{Type: session.Type(typ), Seq: int64(len(events))}, []byte(l.json("a payload"))))
	})
	return func(w *world) {
		w.system()
		h := session.Header{Version: session.FormatVersion, ID: session.ID(name), ParentSession: w.session(parent), Origin: origin, DelegationDepth: 1}
		ctx := w.t.Context()
		wr, err := w.inner.Create(ctx, h, session.Meta{Root: h.ParentSession}, events, cells)
		w.check(err)
		w.check(wr.Close(ctx))
	}
}
