package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/delegate"
	"github.com/offshoot-dev/offshoot/tool"
)

// parseSetup registers a contribution to every continuable child: a tool of its name, in
// the child's own scope.
func parseSetup(a *args) action {
	name := a.word("a name")
	var gate, failing, stuck string
	a.options(func(word string) bool {
		switch word {
		case "at":
			gate = a.word("a gate")
		case "failing":
			failing = a.text("a text")
		case "sticking":
			stuck = a.text("a text")
		default:
			return false
		}
		return true
	})
	return func(w *world) {
		if gate != "" {
			w.gate(gate)
		}
		w.contribute(name, func(ctx context.Context, child *agent.Agent) (func() error, error) {
			if stuck != "" {
				w.sys.Failing()
			}
			if gate != "" {
				select {
				case <-w.gate(gate):
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			if failing != "" {
				return nil, errors.New(failing)
			}
			remove, err := child.Tools().Register(tool.Definition{
				Name: name, Description: "Does " + name + ".", Parameters: []byte(`{"type":"object"}`),
				Execute: func(context.Context, *tool.Call) (any, error) { return name + " ran", nil },
			})
			if err != nil {
				return nil, err
			}
			return func() error {
				remove()
				if stuck != "" {
					return errors.New(stuck)
				}
				return nil
			}, nil
		})
	}
}

// contribute registers a contribution and tells of each installation.
func (w *world) contribute(name string, fn subagent.SetupFunc) {
	s := w.system()
	w.setups[name] = s.Service.AddSetup(func(ctx context.Context, child *agent.Agent) (func() error, error) {
		release, err := fn(ctx, child)
		_, seen := s.Agents.Get(child.ID())
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			w.aside(child, func(n *names) string {
				return fmt.Sprintf("%s cannot be installed in %s: %v", name, n.name(child.ID()), err)
			})
			return nil, err
		}
		line := "%s is installed in %s, which nobody can see yet"
		if seen {
			line = "%s is installed in %s, which is published already"
		}
		w.aside(child, func(n *names) string { return fmt.Sprintf(line, name, n.name(child.ID())) })
		return func() error {
			w.mu.Lock()
			w.aside(child, func(n *names) string { return fmt.Sprintf("%s is released from %s", name, n.name(child.ID())) })
			w.mu.Unlock()
			return release()
		}, nil
	})
}

func parseWithdraw(a *args) action {
	name := a.word("a contribution")
	return func(w *world) {
		if w.setups[name] == nil {
			w.fatal("no contribution is named %q", name)
		}
		w.ended("the withdrawal of "+name, w.setups[name])
	}
}

// parseOffer registers one of the tools through which models deal with children.
func parseOffer(a *args) action {
	name := a.literal(delegate.SendTool, delegate.InterruptTool, delegate.ListTool, delegate.ReportTool)
	how := subagent.Delivery("")
	if name == delegate.ReportTool && a.more() {
		how = subagent.Delivery(a.word("a delivery"))
	}
	return func(w *world) {
		s := w.system()
		var def tool.Definition
		switch name {
		case delegate.ReportTool:
			fn, err := delegate.Report(s.Service, how)
			if err != nil {
				w.say("refused, %s", failure(err))
				return
			}
			w.contribute(name, fn)
			return
		case delegate.ListTool:
			def = delegate.List(s.Service)[0]
		case delegate.InterruptTool:
			def = delegate.Control(s.Service, subagent.NewInterrupter(s.Service))[1]
		case delegate.SendTool:
			def = delegate.Control(s.Service, nil)[0]
		}
		unregister, err := s.Tools.Root().Register(def)
		w.check(err)
		w.tools[name] = unregister
	}
}

// parseCompact sums up an agent's conversation.
func parseCompact(a *args) action {
	name := a.word("an agent")
	return func(w *world) {
		s, target := w.system(), w.agent(name)
		w.ended("the compaction of "+name, func() error {
			c, err := compact.New(compact.Config{Agents: s.Agents, Models: s.Models, Manual: true})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Compact(context.WithoutCancel(w.t.Context()), target)
			return err
		})
	}
}

// faultLog is where what nobody can be told otherwise goes.
type faultLog struct {
	slog.Handler
	w *world
}

func (h faultLog) Enabled(context.Context, slog.Level) bool { return h.w.hearing.Load() }

func (h faultLog) Handle(_ context.Context, r slog.Record) error {
	line := "logged: " + r.Message
	r.Attrs(func(at slog.Attr) bool {
		if at.Key != "stack" {
			line += fmt.Sprintf(", %s %s", at.Key, strings.ReplaceAll(fmt.Sprint(at.Value.Any()), "\n", " / "))
		}
		return true
	})
	h.w.say("%s", line)
	return nil
}

// parseMend takes back what was refused.
func parseMend(*args) action {
	return func(w *world) {
		w.faults.set(func(f *faults) { f.write, f.refuse, f.read = nil, nil, nil })
	}
}

// preparer is a provider under which continuable children can begin, watched by the
// story.
type preparer struct {
	subagent.Provider
	own subagent.ContinuablePreparer
	w   *world
	p   *provider
}

// PrepareContinuable implements subagent.ContinuablePreparer.
func (r *preparer) PrepareContinuable(ctx context.Context, prep subagent.Preparation) (*session.Seed, error) {
	p, w := r.p, r.w
	w.mu.Lock()
	p.prepared = append(p.prepared, preparation{ctx, prep})
	var gate chan struct{}
	if p.preparing != "" {
		gate = w.gates[p.preparing]
	}
	w.mu.Unlock()
	if gate != nil {
		ended := ctx.Done()
		if p.deaf {
			ended = nil
		}
		select {
		case <-gate:
		case <-ended:
			return nil, context.Cause(ctx)
		}
	}
	switch {
	case p.prepFailing != "":
		return nil, errors.New(p.prepFailing)
	case p.seed != nil:
		return &session.Seed{Events: p.seed}, nil
	}
	return r.own.PrepareContinuable(ctx, prep)
}

// preparation is what a provider was asked for.
type preparation struct {
	ctx  context.Context
	prep subagent.Preparation
}
