package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/tool"
)

// program is what one process composes on a store.
type program struct {
	store   session.Store
	agents  *agent.Registry
	service *subagent.Service
	host    *subagent.Host
}

// open composes a process with a model that answers from a script.
func open(ctx context.Context, store session.Store, script scripted.Script) (*program, error) {
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		return nil, err
	}
	sessions, err := session.NewRegistry(ctx, session.Config{Store: store, NewCells: units.NewCells})
	if err != nil {
		return nil, err
	}
	models := &llm.Registry{}
	if _, err := models.Register(scripted.New(script, scripted.Options{}), "script"); err != nil {
		return nil, err
	}
	p := &program{store: store, host: &subagent.Host{}}
	if p.agents, err = agent.NewRegistry(ctx, agent.Config{Sessions: sessions, Models: models, Tools: tool.New(), Prompts: prompt.New()}); err != nil {
		return nil, err
	}
	if p.service, err = subagent.New(ctx, subagent.Config{Agents: p.agents, Projections: units, Host: p.host}); err != nil {
		return nil, err
	}
	_, err = p.service.Register(spawn.New("helper"))
	return p, err
}

// close ends continuable children before anything else: what waits for them is kept. The
// store comes last.
func (p *program) close(ctx context.Context) error {
	return errors.Join(p.service.Close(ctx), p.agents.Close(ctx), p.store.Close(ctx))
}

// A continuable child outlives the process that started it: another one opens its parent
// again and follows up. What the child comes to reaches the parent as a message.
func ExampleService_Followup() {
	ctx := context.Background()
	backend := memory.NewBackend()
	script := scripted.Script{
		{Match: scripted.LastPrompt("How many doors are there?"), SincePrompt: true, Steps: []scripted.Step{{scripted.Say("Seven.")}}},
		{Match: scripted.LastPrompt("And how many of them are locked?"), SincePrompt: true, Steps: []scripted.Step{{scripted.Say("Of the seven, two.")}}},
		{Repeat: true, Steps: []scripted.Step{{scripted.Say("I see.")}}},
	}
	options := agent.Options{Provider: "script", Model: "any"}

	first, err := open(ctx, backend.Open(), script)
	if err != nil {
		log.Fatal(err)
	}
	parent, err := first.agents.Create(ctx, agent.Create{Options: options})
	if err != nil {
		log.Fatal(err)
	}
	started, err := first.service.StartContinuable(ctx, "helper", subagent.ContinuableRequest{
		Label: "count the doors", Prompt: []message.Block{message.Text("How many doors are there?")}, Parent: parent.Agent(),
	})
	if err != nil {
		log.Fatal(err) // no child is left
	}
	settlement, err := first.host.Wait(ctx, parent.Agent().ID(), started.Child)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(settlement.StopReason, "-", message.JoinText(settlement.Output))
	if err := parent.Agent().WhenIdle(ctx); err != nil { // it reads the notice
		log.Fatal(err)
	}
	if err := first.close(ctx); err != nil {
		log.Fatal(err)
	}

	second, err := open(ctx, backend.Open(), script)
	if err != nil {
		log.Fatal(err)
	}
	parent, err = second.agents.Resume(ctx, agent.Resume{ID: parent.Agent().ID(), Options: options})
	if err != nil {
		log.Fatal(err)
	}
	source := message.NewSource(message.SourceCoordinator, message.SourceDetails{Form: message.FormRelay, SenderSessionID: string(parent.Agent().ID())})
	if _, err := second.service.Followup(ctx, parent.Agent(), started.Child, []message.Block{message.Text("And how many of them are locked?")}, source); err != nil {
		log.Fatal(err) // the message was not accepted
	}
	if settlement, err = second.host.Wait(ctx, parent.Agent().ID(), started.Child); err != nil {
		log.Fatal(err)
	}
	fmt.Println(settlement.StopReason, "-", message.JoinText(settlement.Output), "- epoch", settlement.Epoch)
	if err := second.close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// completed - Seven.
	// completed - Of the seven, two. - epoch 2
}

// A child reports to its parent while it works. A tool of the child would do this (see
// delegate.Report); here its own code does.
func ExampleService_Report() {
	ctx := context.Background()
	p, err := open(ctx, memory.New(), scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.Say("I see.")}}}})
	if err != nil {
		log.Fatal(err)
	}
	parent, err := p.agents.Create(ctx, agent.Create{Options: agent.Options{Provider: "script", Model: "any"}})
	if err != nil {
		log.Fatal(err)
	}
	reported := make(chan error, 1)
	remove := p.service.AddSetup(func(_ context.Context, child *agent.Agent) (func() error, error) {
		child.AddHooks(agent.Hooks{PreStep: func(ctx context.Context, _ *agent.PreStep) error {
			_, err := p.service.Report(ctx, child, []message.Block{message.Text("The cellar is flooded.")}, subagent.DeliverQuiet)
			reported <- err
			return nil
		}})
		return nil, nil
	})
	_, err = p.service.StartContinuable(ctx, "helper", subagent.ContinuableRequest{
		Label: "look around", Prompt: []message.Block{message.Text("Look around.")}, Parent: parent.Agent(),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := <-reported; err != nil {
		log.Fatal(err)
	}
	// The report is in the parent's inbox, and in its log with the next turn.
	if err := p.host.Settled(ctx, parent.Agent().ID()); err != nil {
		log.Fatal(err)
	}
	if err := parent.Agent().WhenIdle(ctx); err != nil {
		log.Fatal(err)
	}
	for e := range parent.Agent().Session().Events(0) {
		if m, ok := e.Payload().(*session.UserMessage); ok && m.Message.Source.Kind == message.SourceSubagentReport {
			fmt.Println(message.JoinText(m.Message.Content[1:]))
		}
	}
	if err := remove(); err != nil {
		log.Fatal(err)
	}
	if err := p.close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: The cellar is flooded.
}
