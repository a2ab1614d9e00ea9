package scenario_test

import (
	"context"
	"errors"
	"slices"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
)

func parseProvider(a *args) action {
	name := a.word("a name")
	a.literal("is")
	kind := a.literal("spawn", "fork", "remote", "seeding")
	remote := &subagenttest.Scripted{ProviderName: name}
	var gate, failing, preparing string
	var deaf bool
	a.options(func(word string) bool {
		switch word {
		case "preparing":
			a.literal("at")
			preparing = a.word("a gate")
			return kind != "remote"
		case "deaf":
			deaf = true
			return preparing != ""
		case "able":
			remote.Caps = capabilities(a)
		case "inheriting":
			remote.Inherits = true
		case "publishing":
			a.literal("at")
			gate = a.word("a gate")
		case "failing":
			if failing = a.text("a text"); kind != "remote" {
				return true
			}
		default:
			return false
		}
		if kind != "remote" {
			a.fail("%s is for remote providers", word)
		}
		return true
	})
	var seed []session.Event
	if kind == "seeding" {
		a.lines(func(l *args) {
			e := session.Event{Type: session.Type(l.word("an event type")), Seq: int64(len(seed))}
			data := []byte(l.json("a payload"))
			switch e.Type {
			case session.TypeUserMessage, session.TypeAssistantMessage, session.TypeToolResult:
				e.Op = session.OpAppend
			}
			if l.peek("at") {
				e.Seq = l.number("a number")
			}
			seed = append(seed, session.RawEvent(e, data))
		})
	}
	return func(w *world) {
		p := &provider{plays: map[string]subagenttest.Play{}, preparing: preparing, deaf: deaf, seed: slices.Clone(seed)}
		if kind != "remote" {
			p.prepFailing = failing
		}
		if preparing != "" {
			w.gate(preparing)
		}
		var impl subagent.Provider
		own := name
		if name == "default" {
			own = "" // which is the kind's own name
		}
		switch kind {
		case "spawn", "seeding":
			impl = spawn.New(own)
		case "fork":
			impl = fork.New(own)
		case "remote":
			p.remote, impl = remote, remote
			remote.Play = func(req *subagent.ResolvedRequest) subagenttest.Play { return p.plays[message.JoinText(req.Prompt)] }
			if gate != "" {
				open := w.gate(gate)
				remote.Publishing = func(ctx context.Context) error {
					select {
					case <-open:
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
			}
			if failing != "" {
				remote.Publishing = func(context.Context) error { return errors.New(failing) }
			}
		}
		var watched subagent.Provider = &recorder{impl, w}
		if _, ok := impl.(subagent.ContinuablePreparer); ok {
			watched = &preparer{watched, impl.(subagent.ContinuablePreparer), w, p}
		}
		unregister, err := w.system().Service.Register(watched)
		if err != nil {
			w.say("refused, %s", failure(err))
			return
		}
		p.unregister = unregister
		w.providers[impl.Name()] = p
	}
}

// recorder notes the runs that a provider made, so that the story can tell them from
// others.
type recorder struct {
	subagent.Provider
	w *world
}

// Start implements subagent.Provider.
func (r *recorder) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	run, err := r.Provider.Start(ctx, req)
	if err == nil {
		r.w.mu.Lock()
		defer r.w.mu.Unlock()
		r.w.made[run.ID()] = run
	}
	return run, err
}

func parseDelegate(a *args) action {
	cfg := delegate.Config{ToolName: a.word("a tool")}
	a.literal("to")
	cfg.Provider = a.word("a provider")
	var filter session.ToolFilter
	a.options(func(word string) bool {
		switch word {
		case "about":
			cfg.Description = a.text("a text")
		case "model":
			cfg.Model.Model = a.word("a model")
		case "persona":
			cfg.Persona = &subagent.Persona{Text: a.text("a text")}
		case "allow":
			filter.Allow, cfg.ToolFilter = a.list("tools"), &filter
		case "deny":
			filter.Deny, cfg.ToolFilter = a.list("tools"), &filter
		case "cap":
			n := a.number("a number")
			cfg.MaxDepth = &n
		case "schema":
			cfg.OutputSchema = []byte(a.json("a schema"))
		case "uncapped":
			cfg.ProviderManaged = true
		case "continuable":
			cfg.Continuable = true
		case "background":
			cfg.Background = true
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		unmount, err := delegate.Mount(w.system().Service, w.sys.Tools.Root(), cfg, func(err error) { w.say("fault: %v", err) })
		if err != nil {
			w.say("refused, %s", failure(err))
			return
		}
		w.mounts[cfg.ToolName] = unmount
	}
}
