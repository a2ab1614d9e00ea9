package fork_test

import (
	"context"
	"fmt"
	"log"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/tool"
)

// A child that goes on from its parent's conversation: it knows the completed turns,
// and its prompt need not repeat them.
func Example() {
	ctx := context.Background()
	models := &llm.Registry{}
	model := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{{scripted.Func(answer)}}}}, scripted.Options{})
	if _, err := models.Register(model, "scripted"); err != nil {
		log.Fatal(err)
	}
	sessions, err := session.NewRegistry(ctx, session.Config{}) // without a store
	if err != nil {
		log.Fatal(err)
	}
	agents, err := agent.NewRegistry(ctx, agent.Config{Sessions: sessions, Models: models, Tools: tool.New(), Prompts: prompt.New()})
	if err != nil {
		log.Fatal(err)
	}
	service, err := subagent.New(ctx, subagent.Config{Agents: agents})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := service.Register(fork.New("")); err != nil {
		log.Fatal(err)
	}

	root, err := agents.Create(ctx, agent.Create{Options: agent.Options{Provider: "scripted", Model: "any"}})
	if err != nil {
		log.Fatal(err)
	}
	parent := root.Agent()
	if err := parent.Followup(agent.UserText("The house has seven doors.")); err != nil {
		log.Fatal(err)
	}
	if err := parent.WhenIdle(ctx); err != nil {
		log.Fatal(err)
	}

	run, err := service.Start(ctx, fork.DefaultName, subagent.Request{
		Parent: parent, Prompt: []message.Block{message.Text("How many doors?")},
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := run.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	child, _ := run.Local()
	inherited := child.Session().Header().SeedLength
	fmt.Printf("%s: %s\n", result.StopReason, message.JoinText(result.Output))
	fmt.Println("inherits the whole turn:", inherited == parent.Session().Head())
	if err := run.Close(ctx); err != nil {
		log.Fatal(err)
	}
	if err := agents.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// completed: I was told 2 times: The house has seven doors. How many doors?
	// inherits the whole turn: true
}

// answer stands for a model: it repeats what people told it.
func answer(_ context.Context, req *llm.Request) (scripted.Step, error) {
	told, n := "", 0
	for _, m := range req.Messages {
		if m.Source.Kind == message.SourceUser {
			told += " " + message.JoinText(m.Content)
			n++
		}
	}
	return scripted.Step{scripted.SayLiteral(fmt.Sprintf("I was told %d times:%s", n, told))}, nil
}
