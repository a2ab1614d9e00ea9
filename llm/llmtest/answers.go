package llmtest

import (
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// odd is text that encoders and decoders like to change.
const odd = "a\u2028<&>\"\\ \t\U0001F600 é, done."

// answerRow is a case of one call that is answered.
type answerRow struct {
	name   string
	needs  []Kind
	answer Answer
	kind   llm.FinishKind
	blocks []message.Block
}

func answerRows() []answerRow {
	calls := []ToolCall{{"read", `{"path":"a","n":1.50}`}, {"list", `{}`}}
	called := []message.Block{message.ToolCall("", "read", `{"path":"a","n":1.50}`), message.ToolCall("", "list", `{}`)}
	said := message.Text(odd)
	return []answerRow{
		{"reply (M3, M25)", []Kind{Say}, Answer{{Kind: Say, Text: odd, Pieces: 5}}, llm.FinishStop, []message.Block{said}},
		{"reasoning (M25)", []Kind{Think}, Answer{{Kind: Think, Text: odd, Pieces: 3}, {Kind: Say, Text: "42"}}, llm.FinishStop,
			[]message.Block{message.Reasoning(odd), message.Text("42")}},
		{"parallel calls with split arguments (M25)", []Kind{Call}, Answer{{Kind: Call, Calls: calls, Pieces: 7}}, llm.FinishToolCalls, called},
		{"text before calls", []Kind{Call}, Answer{{Kind: Say, Text: odd}, {Kind: Call, Calls: calls}}, llm.FinishToolCalls, append([]message.Block{said}, called...)},
		{"length (M8, M26)", []Kind{Length}, Answer{{Kind: Say, Text: odd}, {Kind: Length}}, llm.FinishMaxTokens, []message.Block{said}},
		{"length amid a call (M8)", []Kind{Length, Call}, Answer{{Kind: Say, Text: odd}, {Kind: Call, Calls: []ToolCall{{"read", `{"path":"a`}}}, {Kind: Length}},
			llm.FinishMaxTokens, []message.Block{said}},
		{"refusal keeps its text (P31)", []Kind{Refuse}, Answer{{Kind: Refuse, Text: "I will not."}}, llm.FinishRefusal, []message.Block{message.Text("I will not.")}},
		{"content of unknown kinds", []Kind{Foreign, Call}, Answer{{Kind: Foreign}, {Kind: Say, Text: "x"}, {Kind: Foreign}, {Kind: Call, Calls: calls}, {Kind: Foreign}},
			llm.FinishToolCalls, append([]message.Block{message.Text("x")}, called...)},
	}
}

func answerCases() []suiteCase {
	var cases []suiteCase
	for _, row := range answerRows() {
		cases = append(cases, suiteCase{row.name, row.needs, func(t *testing.T, f Factory) {
			s := f.Open(t, Options{}, row.answer)
			s.call(t, t.Context(), s.ask("hi")).want(t, row.kind, row.blocks...)
		}})
	}
	return append(cases,
		suiteCase{"usage is disjoint (M5, M27)", []Kind{Report}, testUsage},
		suiteCase{"calls do not share state", []Kind{Say}, testConcurrent},
		suiteCase{"the same sequence is another call", []Kind{Say}, testTwice},
	)
}

func testUsage(t *testing.T, f Factory) {
	report := Usage{Prompt: 100, Cached: 60, Completion: 20, Reasoning: 5}
	s := f.Open(t, Options{}, Answer{{Kind: Report, Usage: report}, {Kind: Say, Text: "x"}})
	r := s.call(t, t.Context(), s.ask("hi"))
	r.want(t, llm.FinishStop, message.Text("x"))
	if r.usage == nil {
		t.Fatal("no usage")
	}
	u := *r.usage
	if u.InputTokens+u.CacheReadTokens+u.CacheWriteTokens != 100 || u.OutputTokens != 20 || u.Total() != 120 {
		t.Errorf("the counters do not add up: %+v", u)
	}
	if u.HasCacheRead && u.CacheReadTokens != 60 {
		t.Errorf("%d tokens read from the cache, want 60", u.CacheReadTokens)
	}
	if u.HasReasoning && u.ReasoningTokens != 5 {
		t.Errorf("%d tokens of reasoning, want 5", u.ReasoningTokens)
	}
}

func testConcurrent(t *testing.T, f Factory) {
	const n = 8
	var answers []Answer
	for range n {
		answers = append(answers, Answer{{Kind: Say, Text: odd, Pieces: 20}})
	}
	s := f.Open(t, Options{}, answers...)
	t.Run("all", func(t *testing.T) {
		for range n {
			t.Run("one", func(t *testing.T) {
				t.Parallel()
				s.call(t, t.Context(), s.ask("hi")).want(t, llm.FinishStop, message.Text(odd))
			})
		}
	})
}

func testTwice(t *testing.T, f Factory) {
	s := f.Open(t, Options{}, Answer{{Kind: Say, Text: "one"}}, Answer{{Kind: Say, Text: "one"}})
	sequence := s.Adapter.Stream(t.Context(), s.ask("hi"))
	for range 2 {
		var last llm.Chunk
		for c, err := range sequence {
			if err != nil {
				t.Fatal(err)
			}
			last = c
		}
		if last.Finish == nil || last.Finish.Kind != llm.FinishStop {
			t.Errorf("the last chunk is %+v", last)
		}
	}
}
