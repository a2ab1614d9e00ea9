package message_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/message"
)

func TestJoinText(t *testing.T) {
	for _, tc := range []struct {
		name   string
		blocks []message.Block
		want   string
	}{
		{"none", nil, ""},
		{"one", []message.Block{message.Text("a")}, "a"},
		{"one of another type", []message.Block{message.Reasoning("a")}, ""},
		{"texts among others", []message.Block{message.Text("a"), message.Reasoning("x"), message.ToolCall("c", "n", "{}"), message.Text("b")}, "ab"},
		{"a result's texts are its own", []message.Block{message.ToolResult("c", []message.Block{message.Text("x")}, false), message.Text("b")}, "b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := message.JoinText(tc.blocks); got != tc.want {
				t.Errorf("text %q, want %q", got, tc.want)
			}
		})
	}
}

// Copies of a source share what is beyond its kind, and none of them changes it.
func TestSource(t *testing.T) {
	user := message.UserSource()
	if d := user.Details(); d.Plugin != "" || !user.Equal(message.NewSource(message.SourceUser, message.SourceDetails{})) {
		t.Errorf("a user's source says %+v", d)
	}
	model := message.NewSource(message.SourceModel, message.SourceDetails{Provider: "p", Model: "m", ReplayState: []byte("{}")})
	other := model.With(func(d *message.SourceDetails) { d.Model = "n" })
	if a, b := model.Details(), other.Details(); a.Model != "m" || b.Model != "n" || b.Provider != "p" || string(b.ReplayState) != "{}" {
		t.Errorf("%+v became %+v", a, b)
	}
	back := other.With(func(d *message.SourceDetails) { d.Model = "m" })
	if model.Equal(other) || !model.Equal(back) || model.Equal(message.NewSource(message.SourceTool, model.Details())) {
		t.Error("sources are equal that say different things, or the other way round")
	}
}

// core M5: reasoning tokens are a part of the output, and a reported zero is kept.
func TestUsage_M5(t *testing.T) {
	a := message.Usage{InputTokens: 1, OutputTokens: 2, CacheReadTokens: 3, HasCacheRead: true}
	b := message.Usage{InputTokens: 10, OutputTokens: 20, CacheWriteTokens: 40, ReasoningTokens: 5, HasCacheWrite: true, HasReasoning: true}
	sum := a.Add(b)
	want := message.Usage{
		InputTokens: 11, OutputTokens: 22, CacheReadTokens: 3, CacheWriteTokens: 40, ReasoningTokens: 5,
		HasCacheRead: true, HasCacheWrite: true, HasReasoning: true,
	}
	if sum != want || sum != b.Add(a) {
		t.Errorf("sum %+v, want %+v", sum, want)
	}
	if sum.Total() != 76 {
		t.Errorf("total %d, want 76", sum.Total())
	}
}
