package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/tool"
)

const (
	route = "scripted"
	model = "model-1"
)

// rig is the fixed fixture: seven tools, a system prompt of 1.5 KB, and a model
// that gives one text answer, composed as the product composes it.
type rig struct {
	store    session.Store
	sessions *session.Registry
	agents   *agent.Registry
	tools    *tool.Registry
	service  *subagent.Service
	host     *subagent.Host
}

// newSessions is the log as the product runs it, checkpoints included.
func newSessions(ctx context.Context, store session.Store) (*session.Registry, error) {
	return newSessionsFrom(ctx, store, 0)
}

// newSessionsFrom is newSessions with another session.Config.CheckpointFrom.
func newSessionsFrom(ctx context.Context, store session.Store, from int64) (*session.Registry, error) {
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		return nil, err
	}
	return session.NewRegistry(ctx, session.Config{Store: store, NewCells: units.NewCells, CheckpointFrom: from})
}

// newRig composes the fixture on a store, which it closes with itself, or on none.
func newRig(ctx context.Context, store session.Store) (*rig, error) {
	return newRigFrom(ctx, store, 0)
}

// newRigFrom is newRig with another session.Config.CheckpointFrom.
func newRigFrom(ctx context.Context, store session.Store, from int64) (*rig, error) {
	sessions, err := newSessionsFrom(ctx, store, from)
	if err != nil {
		return nil, err
	}
	answer := scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.SayLiteral("The answer is 42.")}}}}
	return newRigOn(ctx, store, sessions, answer, 0)
}

// newRigOf is newRig with another script and bound on the tools of one step.
func newRigOf(ctx context.Context, store session.Store, script scripted.Script, parallel int) (*rig, error) {
	sessions, err := newSessions(ctx, store)
	if err != nil {
		return nil, err
	}
	return newRigOn(ctx, store, sessions, script, parallel)
}

func newRigOn(ctx context.Context, store session.Store, sessions *session.Registry, script scripted.Script, parallel int) (*rig, error) {
	r := &rig{store: store, sessions: sessions, tools: tool.New(), host: &subagent.Host{}}
	var err error
	models := &llm.Registry{}
	if _, err := models.Register(scripted.New(script, scripted.Options{Record: -1}), route); err != nil {
		return nil, err
	}
	prompts := prompt.New()
	for i := range 7 {
		if _, err := r.tools.Root().Register(tool.Definition{
			Name: fmt.Sprintf("tool_%d", i), Description: strings.Repeat("It does what its name says. ", 4),
			Parameters: []byte(`{"type":"object","properties":{"path":{"type":"string","description":"Where."},"limit":{"type":"integer"}},"required":["path"],"additionalProperties":false}`),
			Execute:    func(context.Context, *tool.Call) (any, error) { return "", nil },
		}); err != nil {
			return nil, err
		}
	}
	for _, section := range []prompt.Section{prompt.Identity(strings.Repeat("You are careful. ", 1500/17)), prompt.Persona("", false)} {
		if _, err := prompts.Root().Add(section); err != nil {
			return nil, err
		}
	}
	if r.agents, err = agent.NewRegistry(ctx, agent.Config{Sessions: r.sessions, Models: models, Tools: r.tools, Prompts: prompts, MaxParallelTools: parallel}); err != nil {
		return nil, err
	}
	if r.service, err = subagent.New(ctx, subagent.Config{Agents: r.agents, Host: r.host}); err != nil {
		return nil, err
	}
	for _, p := range []subagent.Provider{spawn.New(""), fork.New("")} {
		if _, err := r.service.Register(p); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// close ends everything, the store last.
func (r *rig) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	r.service.CloseAdmission()
	for _, a := range r.agents.Roots() {
		if a.Root() {
			a.CloseAdmission(true)
		}
	}
	err := errors.Join(r.service.Close(ctx), r.agents.Close(ctx))
	if r.store != nil {
		err = errors.Join(err, r.store.Close(ctx))
	}
	return err
}

func (r *rig) newAgent(ctx context.Context) (*agent.Agent, error) {
	h, err := r.agents.Create(ctx, agent.Create{Options: agent.Options{Provider: route, Model: model}})
	if err != nil {
		return nil, err
	}
	return h.Agent(), nil
}

// turn is one turn of one step, as a follow-up. With a store, its end is durable.
func turn(ctx context.Context, a *agent.Agent) error {
	if err := a.Followup(agent.UserText("What is the answer?")); err != nil {
		return err
	}
	if err := a.WhenIdle(ctx); err != nil {
		return err
	}
	return a.Session().Flush(ctx)
}

// request asks for a one-shot child of parent.
func request(parent *agent.Agent) subagent.Request {
	label := "find the answer"
	return subagent.Request{Label: &label, Parent: parent, Prompt: []message.Block{message.Text("What is the answer?")}}
}

// oneShot is one fresh child from its start until nothing of it is left but its log.
func (r *rig) oneShot(ctx context.Context, req subagent.Request) error {
	return r.child(ctx, spawn.DefaultName, req)
}

// oneShotsAlive is so many fresh children, all of which are there before the first is
// waited for, and the first of which ends when all have answered.
func (r *rig) oneShotsAlive(ctx context.Context, n int, req subagent.Request) error {
	runs := make([]subagent.Run, n)
	for i := range runs {
		var err error
		if runs[i], err = r.service.Start(ctx, spawn.DefaultName, req); err != nil {
			return err
		}
	}
	for _, run := range runs {
		if err := completed(ctx, run); err != nil {
			return err
		}
	}
	for _, run := range runs {
		if err := run.Close(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) child(ctx context.Context, provider string, req subagent.Request) error {
	run, err := r.service.Start(ctx, provider, req)
	if err != nil {
		return err
	}
	if err := completed(ctx, run); err != nil {
		return err
	}
	return run.Close(context.WithoutCancel(ctx))
}

// completed waits for an answer.
func completed(ctx context.Context, run subagent.Run) error {
	res, err := run.Wait(ctx)
	if err != nil {
		return err
	}
	if res.StopReason != subagent.StopCompleted {
		return fmt.Errorf("child ended as %s: %s", res.StopReason, res.Diagnostic)
	}
	return nil
}
