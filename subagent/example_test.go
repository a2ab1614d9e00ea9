package subagent_test

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
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/tool"
)

// The seam by itself, without the harness: compose the floors below it, register a
// provider, start a run, wait, and close it on every path.
func Example() {
	ctx := context.Background()
	models := &llm.Registry{}
	script := scripted.Script{{Steps: []scripted.Step{{scripted.Say("There are seven doors.")}}}}
	if _, err := models.Register(scripted.New(script, scripted.Options{}), "script"); err != nil {
		log.Fatal(err)
	}
	sessions, err := session.NewRegistry(ctx, session.Config{})
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
	unregister, err := service.Register(spawn.New("helper"))
	if err != nil {
		log.Fatal(err)
	}
	defer unregister()
	parent, err := agents.Create(ctx, agent.Create{Options: agent.Options{Provider: "script", Model: "any"}})
	if err != nil {
		log.Fatal(err)
	}

	run, err := service.Start(ctx, "helper", subagent.Request{
		Parent: parent.Agent(), Prompt: []message.Block{message.Text("How many doors are there?")},
	})
	if err != nil {
		log.Fatal(err) // nothing is left of it
	}
	result, err := run.Wait(ctx)
	if err := run.Close(ctx); err != nil {
		log.Print(err) // about the release alone
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.StopReason, "-", message.JoinText(result.Output))

	if err := agents.Close(ctx); err != nil {
		log.Fatal(err)
	}
	if err := service.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: completed - There are seven doors.
}
