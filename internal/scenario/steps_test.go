package scenario_test

import (
	"context"
	"fmt"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

func parseStart(a *args) action {
	name := a.word("a run")
	a.literal("on")
	provider := a.word("a provider")
	a.literal("for")
	parent := a.word("an agent")
	req := subagent.Request{}
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
			label := a.text("a text")
			req.Label = &label
		case "cap":
			n := a.number("a number")
			req.MaxDepth = &n
		case "allow":
			filter.Allow, req.ToolFilter = a.list("tools"), &filter
		case "deny":
			filter.Deny, req.ToolFilter = a.list("tools"), &filter
		case "filter":
			a.literal("without")
			a.literal("lists")
			req.ToolFilter = &filter
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
		case "schema":
			if a.more() && a.tokens[a.at].kind == textToken {
				req.OutputSchema = []byte(a.text("a schema"))
			} else {
				req.OutputSchema = []byte(a.json("a schema"))
			}
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		if w.runs[name] != nil {
			w.fatal("there is a run %q already", name)
		}
		s := w.system()
		req := req
		if parent != "nobody" {
			req.Parent = w.agent(parent)
		}
		r := &run{name: name, req: req}
		var ctx context.Context
		ctx, r.cancel = context.WithCancelCause(w.t.Context())
		w.runs[name] = r
		if cancelled {
			r.cancel(errStory)
		}
		w.call("start of "+name, func() []string {
			got, err := s.Service.Start(ctx, provider, req)
			if err != nil {
				return []string{fmt.Sprintf("%s: refused, %s", name, failure(err))}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			r.run = got
			w.returned[got.ID()] = true
			line := fmt.Sprintf("%s: is %s", name, got.ID())
			if w.made[got.ID()] != got {
				line += ", not the run that the provider made"
			}
			return []string{line}
		})
	}
}

// parseChange has the caller of a start scribble over everything that it handed over.
func parseChange(a *args) action {
	if a.literal("request", "seed") == "seed" {
		a.literal("of")
		name := a.word("a provider")
		return func(w *world) {
			if w.providers[name] == nil || w.providers[name].seed == nil {
				w.fatal("no provider %q seeds", name)
			}
			for i := range w.providers[name].seed {
				w.providers[name].seed[i] = session.Event{}
			}
		}
	}
	a.literal("of")
	name := a.word("a run or a call")
	return func(w *world) {
		if c := w.calls[name]; c != nil && c.req != nil {
			scribble(c.req.Prompt, nil, c.req.Persona, c.req.ToolFilter, c.req.MaxDepth)
			return
		}
		r := w.runs[name]
		if r == nil {
			w.fatal("no run is named %q", name)
		}
		scribble(r.req.Prompt, r.req.Label, r.req.Persona, r.req.ToolFilter, r.req.MaxDepth)
		for i := range r.req.OutputSchema {
			r.req.OutputSchema[i] = 'x'
		}
	}
}

func parseCancel(a *args) action {
	name := a.word("a run or a call")
	return func(w *world) { w.canceller(name)(errStory) }
}

// scribble changes what the parts of a request hold.
func scribble(prompt []message.Block, label *string, p *subagent.Persona, f *session.ToolFilter, depth *int64) {
	prompt[0] = message.Text("changed")
	if label != nil {
		*label = "changed"
	}
	if p != nil {
		p.Text = "changed"
	}
	if f != nil {
		for _, names := range [][]string{f.Allow, f.Deny} {
			for i := range names {
				names[i] = "changed"
			}
		}
	}
	if depth != nil {
		*depth = 99
	}
}

// canceller returns what ends the context of a run's start, or of a call.
func (w *world) canceller(name string) context.CancelCauseFunc {
	w.t.Helper()
	switch {
	case w.runs[name] != nil:
		return w.runs[name].cancel
	case w.calls[name] == nil:
		w.fatal("no run and no call is named %q", name)
	}
	return w.calls[name].cancel
}

// several parses what wait and close have in common.
func several(a *args) (name string, times int, briefly bool) {
	name, times = a.word("a run"), 1
	a.options(func(word string) bool {
		switch word {
		case "times":
			times = int(a.number("a number"))
		case "briefly":
			briefly = true
		default:
			return false
		}
		return true
	})
	return name, times, briefly
}

// impatient is a context that has ended already.
func (w *world) impatient() context.Context {
	ctx, cancel := context.WithCancelCause(w.t.Context())
	cancel(fmt.Errorf("the caller does not wait"))
	return ctx
}

func parseWait(a *args) action {
	name, times, briefly := several(a)
	return func(w *world) {
		r := w.startedRun(name)
		ctx := w.t.Context()
		if briefly {
			ctx = w.impatient()
		}
		for range times {
			w.call("wait for "+name, func() []string {
				res, err := r.run.Wait(ctx)
				if err != nil {
					return []string{fmt.Sprintf("%s: no result, %s", name, failure(err))}
				}
				return []string{name + ": " + result(res)}
			})
		}
	}
}

func parseClose(a *args) action {
	name, times, briefly := several(a)
	return func(w *world) {
		r := w.startedRun(name)
		ctx := w.t.Context()
		if briefly {
			ctx = w.impatient()
		}
		for range times {
			w.call("close of "+name, func() []string {
				err := r.run.Close(ctx)
				w.mu.Lock()
				defer w.mu.Unlock()
				r.closed = r.closed || err == nil || !briefly
				if err != nil {
					return []string{fmt.Sprintf("%s: closing failed, %s", name, failure(err))}
				}
				return []string{name + ": closed"}
			})
		}
	}
}

// sending parses a message to an agent.
func sending(a *args, send func(*agent.Agent, message.Message) error) action {
	name, prompt := a.word("an agent"), a.text("a text")
	return func(w *world) { w.check(send(w.agent(name), agent.UserText(prompt))) }
}

func parsePrompt(a *args) action { return sending(a, (*agent.Agent).Followup) }
func parseInject(a *args) action { return sending(a, (*agent.Agent).Inject) }

func parseSwitch(a *args) action {
	name := a.word("an agent")
	a.literal("sandbox")
	mode := a.word("a mode")
	return func(w *world) {
		_, err := w.agent(name).Session().Append(session.Draft{Payload: &session.SandboxMode{Mode: mode}})
		w.check(err)
	}
}

func parseDispose(a *args) action {
	name := a.word("an agent")
	return func(w *world) {
		w.agent(name)
		w.call("disposal of "+name, func() []string {
			if err := w.agents[name].Dispose(w.t.Context(), false); err != nil {
				return []string{fmt.Sprintf("%s: disposed, with an error: %s", name, failure(err))}
			}
			return nil
		})
	}
}

func parseOpen(a *args) action {
	name := a.word("a gate")
	return func(w *world) {
		if w.gates[name] == nil {
			w.fatal("nothing waits at a gate %q", name)
		}
		close(w.gates[name])
	}
}

func parseHold(a *args) action {
	what, of := a.literal("writes", "readers", "turns"), ""
	if what == "turns" {
		a.literal("of")
		of = a.word("a child or subagents")
	}
	a.literal("at")
	gate := a.word("a gate")
	return func(w *world) {
		open := w.gate(gate)
		if what == "turns" {
			id := w.session(of)
			w.system().Agents.AddHooks(agent.Hooks{TurnOpen: func(a *agent.Agent, _ int64) ([]session.Draft, error) {
				if a.ID() == id || of == "subagents" && a.Session().Header().Origin == session.OriginSubagent {
					<-open
				}
				return nil, nil
			}})
			return
		}
		w.faults.set(func(f *faults) {
			if what == "writes" {
				f.gate = open
			} else {
				f.readGate = open
			}
		})
	}
}

func parsePass(a *args) action {
	d, err := time.ParseDuration(a.word("a duration"))
	if err != nil {
		a.fail("%v", err)
	}
	return func(w *world) { <-time.After(d) }
}

func parseUnregister(a *args) action {
	name := a.word("a provider")
	return func(w *world) {
		if w.providers[name] == nil {
			w.fatal("no provider is named %q", name)
		}
		w.providers[name].unregister()
	}
}

func parseUnmount(a *args) action {
	name := a.word("a tool")
	return func(w *world) {
		if w.mounts[name] == nil {
			w.fatal("no delegation tool is named %q", name)
		}
		w.mounts[name]()
	}
}

// parseEnd ends the process gracefully: the next step that needs a system makes a new
// one over the same store.
func parseEnd(a *args) action {
	a.literal("the")
	a.literal("process")
	return func(w *world) {
		s, ctx := w.system(), context.WithoutCancel(w.t.Context())
		s.Service.CloseAdmission()
		var roots []*agent.Agent
		for _, a := range s.Agents.Roots() {
			if a.Root() {
				roots = append(roots, a)
				a.CloseAdmission(true)
			}
		}
		if err := s.Service.Close(ctx); err != nil {
			w.say("closing the service: %s", failure(err))
		}
		for _, a := range roots {
			if err := a.Dispose(ctx, true); err != nil {
				w.say("closing %s: %s", a.ID(), failure(err))
			}
		}
		if err := s.Agents.Close(ctx); err != nil {
			w.say("closing the agents: %s", failure(err))
		}
		for _, live := range s.Sessions.Close() {
			w.say("session %s is still live", live.ID())
		}
		w.check(w.inner.Close(ctx))
		w.forget()
	}
}

// parseCrash ends the process as a kill does, for everybody but itself: what it still
// does reaches no store.
func parseCrash(a *args) action {
	return func(w *world) {
		dead, ok := w.inner.(interface{ Kill() })
		if !ok {
			w.fatal("a crash needs the memory store")
		}
		w.system().Crashed()
		dead.Kill()
		w.forget()
	}
}

// forget makes the next step make a new system. What ran in the old one is nobody's.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sys = nil
	w.era++
	w.runs, w.providers, w.mounts, w.tools = map[string]*run{}, map[string]*provider{}, map[string]func(){}, map[string]func(){}
	w.setups = map[string]func() error{}
	w.gone, w.agents = w.agents, map[string]*agent.Agent{}
	w.ops = nil
}

func parseResume(a *args) action {
	name := a.word("an agent")
	o := agent.Options{}
	a.options(func(word string) bool {
		if word != "runtime-depth" {
			return false
		}
		depth := a.number("a number")
		o.Depth = &depth
		return true
	})
	return func(w *world) {
		old := w.gone[name]
		if a := w.agents[name]; a != nil {
			// It was disposed in this process.
			if w.gone == nil {
				w.gone = map[string]*agent.Agent{}
			}
			old, w.gone[name] = a, a
		}
		if old == nil {
			w.fatal("no agent %q was there before", name)
		}
		depth := o.Depth
		o := old.Options()
		o.Depth = depth
		h, err := w.system().Agents.Resume(w.t.Context(), agent.Resume{ID: old.ID(), Options: o})
		if err != nil {
			w.say("refused, %s", failure(err))
			return
		}
		w.mu.Lock()
		w.agents[name] = h.Agent()
		w.heads[h.Agent()] = h.Agent().Session().Head()
		w.mu.Unlock()
	}
}
