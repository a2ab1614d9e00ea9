package structured_test

import (
	"context"
	"errors"
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
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
)

const doors = `{
	"type": "object",
	"properties": {"doors": {"type": "integer"}, "open": {"type": "array", "items": {"type": "string"}}},
	"required": ["doors"],
	"additionalProperties": false
}`

// open returns a system whose model first hands in what does not fit.
func open(ctx context.Context) (*harness.Harness, config.Choice) {
	model := scripted.New(scripted.Script{{Repeat: true, Steps: []scripted.Step{
		{scripted.Call(structured.ToolName, `{"doors": "seven"}`)},
		{scripted.Call(structured.ToolName, `{"doors": 7, "open": ["the front door"]}`)},
	}}}, scripted.Options{})
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
	return h, config.Choice{Ref: config.ModelRef{Route: "script", Model: "any"}}
}

// A child whose result is JSON of a given schema. Look at the stop reason first: only
// a completed run has the answer that was asked for.
func Example() {
	ctx := context.Background()
	h, model := open(ctx)
	defer func() { _ = h.Close(ctx) }()
	root, err := h.NewRoot(ctx, "/", model)
	if err != nil {
		log.Fatal(err)
	}
	request := subagent.Request{
		Parent: root.Agent(), Prompt: []message.Block{message.Text("Which doors are there?")}, OutputSchema: []byte(doors),
	}
	run, err := h.Subagents.Start(ctx, spawn.DefaultName, request)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = run.Close(ctx) }()
	result, err := run.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.StopReason, string(result.Structured))

	// What cannot be enforced starts nothing.
	request.OutputSchema = []byte(`{"type": "object", "properties": {"doors": {"minimum": 1}}, "maxProperties": 3}`)
	_, err = h.Subagents.Start(ctx, spawn.DefaultName, request)
	var refused *structured.SchemaError
	if errors.Is(err, subagent.ErrUnsupportedSchema) && errors.As(err, &refused) {
		for _, fault := range refused.Faults {
			fmt.Println(fault)
		}
	}
	// Output:
	// completed {"doors":7,"open":["the front door"]}
	// at /properties/doors/minimum: the keyword is not supported
	// at /maxProperties: the keyword is not supported
}

// A root agent that answers in the form of a schema: the same, without a delegation.
func ExampleAttach() {
	ctx := context.Background()
	h, model := open(ctx)
	defer func() { _ = h.Close(ctx) }()
	schema, err := structured.Parse([]byte(doors))
	if err != nil {
		log.Fatal(err)
	}
	var answer *structured.Output
	root, err := h.NewRoot(ctx, "/", model, func(_ context.Context, a *agent.Agent) (err error) {
		answer, err = structured.Attach(a, schema)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := root.Agent().Accept(ctx, agent.UserText("Which doors are there?"), session.NextTurn); err != nil {
		log.Fatal(err)
	}
	if err := root.Agent().WhenIdle(ctx); err != nil {
		log.Fatal(err)
	}
	if err := answer.Missing(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer.Value()))
	// Output: {"doors":7,"open":["the front door"]}
}
