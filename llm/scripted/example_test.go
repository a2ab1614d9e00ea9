package scripted_test

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
)

// A parent that delegates twice in one step and a child that both of its runs
// follow.
func ExampleNew() {
	model := scripted.New(scripted.Script{
		{Name: "child", Match: scripted.FirstPrompt("count the files"), Steps: []scripted.Step{
			{scripted.Call("list", `{"path":"."}`)},
			{scripted.Say("I found: {{result:list}}")},
		}},
		{Name: "parent", Steps: []scripted.Step{
			{scripted.Say("Let me ask."), scripted.Call("subagent", `{"description":"a","prompt":"count the files in a"}`),
				scripted.Call("subagent", `{"description":"b","prompt":"count the files in b"}`)},
			{scripted.Say("First: {{result:1}}\nSecond: {{result:2}}")},
		}},
	}, scripted.Options{})

	prompt := message.Message{Role: message.RoleUser, Content: []message.Block{message.Text("How many files?")}, Source: message.UserSource()}
	req := &llm.Request{Provider: "scripted", Model: "any", Messages: []message.Message{prompt}}
	for chunk, err := range model.Stream(context.Background(), req) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if chunk.Kind == llm.ChunkBlockEnd {
			fmt.Printf("%s: %s%s%s\n", chunk.Block.Type, chunk.Block.Text, chunk.Block.Name, chunk.Block.Arguments)
		}
	}
	// Output:
	// text: Let me ask.
	// tool-call: subagent{"description":"a","prompt":"count the files in a"}
	// tool-call: subagent{"description":"b","prompt":"count the files in b"}
}
