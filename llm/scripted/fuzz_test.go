package scripted_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
)

// FuzzTemplate: whatever a script's text refers to and whatever the request holds,
// the answer is a legal stream or one failure, never a panic (core I10, Q8).
func FuzzTemplate(f *testing.F) {
	for _, text := range []string{
		`{{result:1}}`, `{{result:read:a.0.b}}`, `{"id":"{{match:id=(\w+)}}"}`, `{{request:(a{2})}}`, `{{result:`, `{{{{match:}}}}`, `{{match:(}}`,
		`{{result:-1}}`, `{{result:1:}}`, `"\"{{result:1}}`, `{{request:\}}`, `a {{b}} c`,
	} {
		f.Add(text, `{"a":[{"b":"id=7"}]}`, "id=9 aa")
	}
	f.Fuzz(func(t *testing.T, text, tool, prompt string) {
		for _, part := range []scripted.Part{scripted.Say(text), scripted.Call("read", text)} {
			a := scripted.New(scripted.Script{{Steps: []scripted.Step{{scripted.SayLiteral("first")}, {part}}}}, scripted.Options{})
			r := ask(t, t.Context(), a, &llm.Request{Messages: []message.Message{
				user("m1", prompt), assistant(message.ToolCall("c1", "read", "{}")), result("c1", tool),
			}})
			if r.Code == "" && len(r.Blocks) > 1 {
				t.Errorf("one part became %d blocks", len(r.Blocks))
			}
		}
	})
}
