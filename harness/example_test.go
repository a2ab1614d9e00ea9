package harness_test

import (
	"context"
	"fmt"
	"log"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// A program that embeds Offshoot: one root agent delegates to a child, and every
// word of both is in their logs. The model is a script here; a route of the
// configuration takes its place in earnest.
func Example() {
	ctx := context.Background()
	model := scripted.New(scripted.Script{
		{Name: "child", Match: scripted.FirstPrompt("How many"), Steps: []scripted.Step{
			{scripted.Say("There are seven.")},
		}},
		{Name: "root", Steps: []scripted.Step{
			{scripted.Call("subagent", `{"description":"Count the doors","prompt":"How many doors are there?"}`)},
			{scripted.Say("The child says: {{result:subagent}}")},
		}},
	}, scripted.Options{})

	eff, err := config.Load(config.LoadOptions{Cwd: "/", DataDir: "/nonexistent", Env: config.MapEnviron(map[string]string{"OFFSHOOT_HOME": "/nonexistent"})})
	if err != nil {
		log.Fatal(err)
	}
	h, err := harness.Open(ctx, harness.Options{
		Config: eff, Store: memory.New(),
		Adapters: func(r *llm.Registry) error { _, err := r.Register(model, "script"); return err },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := h.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}()

	root, err := h.NewRoot(ctx, "/", config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}})
	if err != nil {
		log.Fatal(err)
	}
	// Accepted means durable: from here on nothing can lose the message.
	if err := root.Agent().Accept(ctx, agent.UserText("Count the doors."), session.NextTurn); err != nil {
		log.Fatal(err)
	}
	if err := root.Agent().WhenIdle(ctx); err != nil {
		log.Fatal(err)
	}
	history, _ := root.Agent().Session().History()
	fmt.Println(message.JoinText(history[len(history)-1].Content))
	// What was delegated stands in the store, and in no agent that would have to live.
	children, err := h.Subagents.ListChildren(ctx, root.Agent().ID())
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range children {
		fmt.Println(*c.Label, c.Mode, c.Activity, c.Summary().State.Reason)
	}
	// Output:
	// The child says: There are seven.
	// Count the doors one-shot inactive completed
}
