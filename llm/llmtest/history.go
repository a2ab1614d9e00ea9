package llmtest

import (
	"fmt"
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

func historyCases() []suiteCase {
	return []suiteCase{
		{"replay of reasoning with calls (M8, M24)", []Kind{Think, Call}, func(t *testing.T, f Factory) {
			testReplay(t, f, Step{Kind: Think, Text: odd, Pieces: 4}, Step{Kind: Say, Text: "I look."})
		}},
		{"replay of reasoning that is withheld (M8)", []Kind{Withhold, Call}, func(t *testing.T, f Factory) {
			testReplay(t, f, Step{Kind: Withhold, Text: "b64=="}, Step{Kind: Think, Text: ""})
		}},
		{"replay of calls (M24)", []Kind{Call}, func(t *testing.T, f Factory) { testReplay(t, f) }},
		{"a history with every shape (M24)", []Kind{Say}, testHistory},
		{"what was cut is replayed without its calls (M8)", []Kind{Think, Length, Call}, testReplayCut},
		{"an image is refused by name", []Kind{Say}, testImage},
	}
}

// testReplay drives a conversation whose answers begin with those steps: the
// endpoint refuses a history that is not what it sent. The results of a step come
// back in one message or in one each.
func testReplay(t *testing.T, f Factory, begin ...Step) {
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("results apart %v", apart), func(t *testing.T) {
			calls := Step{Kind: Call, Calls: []ToolCall{{"read", `{"path":"a"}`}, {"list", `{}`}}}
			step := append(append(Answer{}, begin...), calls)
			s := f.Open(t, Options{}, step, step, Answer{{Kind: Say, Text: "done"}}, Answer{{Kind: Say, Text: "again"}})
			req := s.ask("go")
			for turn := range 2 {
				r := s.call(t, t.Context(), req)
				if r.finish.Kind != llm.FinishToolCalls || len(r.toolCalls()) != 2 {
					t.Fatalf("turn %d: finish %q: %+v", turn, r.finish.Kind, r.finish.Failure)
				}
				req.Messages = append(req.Messages, s.answered(message.ID(fmt.Sprint("a", turn)), r))
				var results []message.Block
				for i, c := range r.toolCalls() {
					results = append(results, message.ToolResult(c.ID, []message.Block{message.Text("out")}, i == 1))
				}
				if !apart {
					req.Messages = append(req.Messages, user(message.ID(fmt.Sprint("r", turn)), results...))
					continue
				}
				for i, result := range results {
					req.Messages = append(req.Messages, user(message.ID(fmt.Sprint("r", turn, i)), result))
				}
			}
			r := s.call(t, t.Context(), req)
			r.want(t, llm.FinishStop, message.Text("done"))
			req.Messages = append(req.Messages, s.answered("a3", r), user("u3", message.Text("once more")))
			s.call(t, t.Context(), req).want(t, llm.FinishStop, message.Text("again"))
		})
	}
}

func testReplayCut(t *testing.T, f Factory) {
	s := f.Open(t, Options{},
		Answer{{Kind: Think, Text: odd}, {Kind: Say, Text: "I"}, {Kind: Call, Calls: []ToolCall{{"read", `{"pa`}}}, {Kind: Length}},
		Answer{{Kind: Say, Text: "on"}})
	req := s.ask("go")
	r := s.call(t, t.Context(), req)
	if r.finish.Kind != llm.FinishMaxTokens || len(r.toolCalls()) != 0 {
		t.Fatalf("finish %q with %+v: %+v", r.finish.Kind, r.blocks, r.finish.Failure)
	}
	req.Messages = append(req.Messages, s.answered("a1", r), user("u2", message.Text("go on")))
	s.call(t, t.Context(), req).want(t, llm.FinishStop, message.Text("on"))
}

// testHistory sends what a session can hold: other models' reasoning, calls whose
// arguments are blank or no JSON, results that are empty or failed, an interrupted
// answer, blank text, messages of one role that follow each other, unknown blocks.
func testHistory(t *testing.T, f Factory) {
	s := f.Open(t, Options{}, Answer{{Kind: Say, Text: "fine"}})
	model := func(id message.ID, content ...message.Block) message.Message {
		return message.Message{ID: id, Role: message.RoleAssistant, Content: content, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "other", Model: "m"})}
	}
	foreign := message.Block{Type: "hologram", Raw: []byte(`{"type":"hologram"}`)}
	strange := model("a4", message.Reasoning("theirs"), message.Text("so"))
	strange.Source = message.NewSource(message.SourceModel, message.SourceDetails{Provider: s.Provider, Model: "m", ReplayState: []byte(
		`{"response":{"of":"another adapter"},"blocks":[{"type":"thinking","thinking":"x","signature":"y"},null]}`)})
	req := s.ask("first")
	req.Messages = append(req.Messages,
		user("u2", foreign, message.Text("second")),
		model("a1", message.Reasoning("I think <b> & \u2028"), message.Text("Looking."), message.ToolCall("c1", "read", `{"path": "a", "n": 1.50}`), message.ToolCall("c2", "list", " ")),
		user("r1", message.ToolResult("c1", []message.Block{message.Text("line 1"), foreign, message.Text("line 2")}, false)),
		user("r2", message.ToolResult("c2", nil, true)), user("u2b", message.Text("a note behind the results")),
		model("a2", message.ToolCall("c3", "read", `{"cut`)),
		user("r3", message.ToolResult("c3", []message.Block{message.Text("the arguments are no JSON")}, true)),
		model("a3", message.Reasoning("only reasoning")),
		user("u3", message.Text("go on")),
		user("u4", foreign), model("a5", foreign), user("u5", message.Text("")),
		strange,
		user("u6", message.Text("and?")),
	)
	s.call(t, t.Context(), req).want(t, llm.FinishStop, message.Text("fine"))
}

// testImage: an attachment that cannot be sent is an error that names it, not a
// message with a hole.
func testImage(t *testing.T, f Factory) {
	for _, kind := range f.Lacks {
		if kind != Images {
			continue
		}
		s := f.Open(t, Options{}, Answer{{Kind: Say, Text: "fine"}})
		image := message.Block{Type: message.BlockImage, Raw: []byte(`{"attachment":"img-9"}`)}
		for _, content := range [][]message.Block{{image}, {message.ToolResult("c", []message.Block{image}, false)}} {
			req := s.ask("look")
			req.Messages = append(req.Messages, user("u2", content...))
			s.wantFailure(t, s.call(t, t.Context(), req), llm.CodeInvalidRequest)
		}
		if s.Calls != nil && s.Calls() != 0 {
			t.Error("a request was sent")
		}
		return
	}
	t.Skip("the subject sends images")
}
