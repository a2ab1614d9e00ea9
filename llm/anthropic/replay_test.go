package anthropic_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/fakemodel"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/anthropic"
	"github.com/offshoot-dev/offshoot/message"
)

// fake starts a fakemodel server, which checks signatures and plays the vendor's
// cache, and an adapter for it.
func fake(t *testing.T, script fakemodel.Script) (*fakemodel.Server, *anthropic.Adapter) {
	t.Helper()
	server, err := fakemodel.Open(fakemodel.Options{Key: testKey, Script: script})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	a, err := anthropic.New(anthropic.Config{BaseURL: server.Origin(), APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.CloseIdleConnections)
	return server, a
}

type wireBlock struct {
	Type, Thinking, Signature, Data, Text string
	Cache                                 *struct{ Type string } `json:"cache_control"`
}

// sent returns the blocks of the assistant messages of the nth request.
func sent(t *testing.T, server *fakemodel.Server, n int) []wireBlock {
	t.Helper()
	var wire struct {
		Messages []struct {
			Role    string
			Content []wireBlock
		}
	}
	if err := json.Unmarshal(server.Requests()[n-1].Body, &wire); err != nil {
		t.Fatal(err)
	}
	var blocks []wireBlock
	for _, m := range wire.Messages {
		if m.Role == "assistant" {
			blocks = append(blocks, m.Content...)
		}
	}
	return blocks
}

const thought = "a\u2028<&>\"\\ \x01 \U0001F600 trailing \n"

// Thinking goes back byte for byte with its signature, in its place among the
// other blocks; the server refuses anything else.
func TestThinkingIsReplayedByteExact(t *testing.T) { // M8, M24
	server, a := fake(t, fakemodel.ByPosition(
		fakemodel.Reply{fakemodel.Split(3, fakemodel.Reasoning(thought)), fakemodel.Redacted("ZGF0YQ=="), fakemodel.Text("I look."), fakemodel.Parallel(fakemodel.ToolCall{ID: "c1", Name: "read", Arguments: `{"a":1}`}, fakemodel.ToolCall{ID: "c2", Name: "read", Arguments: `{}`})},
		fakemodel.Reply{fakemodel.Reasoning(""), fakemodel.Text("done")},
		fakemodel.Reply{fakemodel.Text("bye")},
	))
	req := ask("go")
	req.Tools = []llm.ToolSpec{{Name: "read", Parameters: []byte(schema)}}
	first := collect(t, t.Context(), a, req)
	want := []message.Block{message.Reasoning(thought), message.Reasoning(""), message.Text("I look."), message.ToolCall("c1", "read", `{"a":1}`), message.ToolCall("c2", "read", `{}`)}
	if diff := cmp.Diff(want, first.Blocks); diff != "" {
		t.Fatalf("blocks (-want +got):\n%s\n%+v", diff, first.Finish.Failure)
	}
	req.Messages = append(req.Messages, answered(first), user(message.ToolResult("c1", nil, false)), user(message.ToolResult("c2", nil, true)))
	second := collect(t, t.Context(), a, req)
	// The model's thoughts were withheld: the block is empty and still goes back.
	if diff := cmp.Diff([]message.Block{message.Reasoning(""), message.Text("done")}, second.Blocks); diff != "" {
		t.Fatalf("blocks (-want +got):\n%s\n%+v", diff, second.Finish.Failure)
	}
	req.Messages = append(req.Messages, answered(second), user(message.Text("and now?")))
	third := collect(t, t.Context(), a, req)
	if third.Text != "bye" {
		t.Fatalf("%+v", third.Finish.Failure)
	}
	blocks := sent(t, server, 3)
	var kinds []string
	for _, b := range blocks {
		kinds = append(kinds, b.Type)
	}
	if diff := cmp.Diff([]string{"thinking", "redacted_thinking", "text", "tool_use", "tool_use", "thinking", "text"}, kinds); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	if blocks[0].Thinking != thought || blocks[0].Signature == "" || blocks[1].Data != "ZGF0YQ==" || blocks[5].Thinking != "" || blocks[5].Signature == "" {
		t.Errorf("sent %+v", blocks)
	}
}

// Where the model guards its thinking, an agent whose tools, prompt or history
// changed sends none of what came before the change, and goes on.
func TestThinkingIsDroppedWhenItsPrefixChanged(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*llm.Request)
		model  string
		want   int // thinking blocks sent
	}{
		"nothing":           {func(*llm.Request) {}, "claude-opus-5-5", 2},
		"the system prompt": {func(r *llm.Request) { r.System = "You are somebody else." }, "claude-opus-5-5", 0},
		"the tools":         {func(r *llm.Request) { r.Tools = r.Tools[:1] }, "claude-sonnet-5-5", 0},
		"a newer model":     {func(r *llm.Request) { r.System = "x" }, "claude-quantum-7", 0},
		"a message between": {func(r *llm.Request) { r.Messages[2] = user(message.Text("pruned")) }, "claude-opus-5-5", 1},
		"another route": {func(r *llm.Request) {
			r.Messages[1].Source = r.Messages[1].Source.With(func(d *message.SourceDetails) { d.Provider = "other" })
		}, "claude-opus-5-5", 0},
		"only the marks and turns": {func(r *llm.Request) { r.Messages = append(r.Messages, user(message.Text("more"))) }, "claude-opus-5-5", 2},
	} {
		t.Run(name, func(t *testing.T) {
			server, a := fake(t, fakemodel.Always(fakemodel.Reasoning(thought), fakemodel.Text("ok")))
			req := ask("go")
			req.Model, req.System = tt.model, "Be brief."
			req.Tools = []llm.ToolSpec{{Name: "read"}, {Name: "list"}}
			for _, next := range []string{"two", "three"} {
				r := collect(t, t.Context(), a, req)
				if r.Finish.Kind != llm.FinishStop {
					t.Fatalf("%+v", r.Finish.Failure)
				}
				req.Messages = append(req.Messages, answered(r), user(message.Text(next)))
			}
			tt.change(req)
			if r := collect(t, t.Context(), a, req); r.Finish.Kind != llm.FinishStop {
				t.Fatalf("%+v", r.Finish.Failure)
			}
			got := 0
			for _, b := range sent(t, server, 3) {
				if b.Type == "thinking" {
					got++
				}
			}
			if got != tt.want {
				t.Errorf("%d thinking blocks went out, want %d", got, tt.want)
			}
		})
	}
}

// Models that do not guard it need their thinking whatever changed.
func TestThinkingIsKeptWhereItIsNotGuarded(t *testing.T) {
	req := ask("go")
	req.Model = "claude-sonnet-4-5"
	req.Messages = history()
	if got := string(body(t, anthropic.Config{}, req)); !strings.Contains(got, `"signature":"c2ln"`) || !strings.Contains(got, `"data":"ZGF0YQ=="`) {
		t.Errorf("body %s", got)
	}
}

// A growing history and a fork pay for what is new: every request reads the whole
// prefix that an earlier one wrote, whatever the number of blocks between.
func TestCacheIsReused(t *testing.T) {
	server, a := fake(t, func(r fakemodel.Request) fakemodel.Reply {
		if len(r.ToolResults()) > 0 || strings.Contains(r.LastUserText(), "fork") {
			return fakemodel.Reply{fakemodel.Text("ok")}
		}
		var calls []fakemodel.ToolCall
		for range 15 { // with their results more than the cache looks back
			calls = append(calls, fakemodel.ToolCall{Name: "read", Arguments: `{"path":"` + strings.Repeat("x", 200) + `"}`})
		}
		return fakemodel.Reply{fakemodel.Reasoning("hm"), fakemodel.Parallel(calls...)}
	})
	req := ask("go " + strings.Repeat("long ", 500))
	req.System = strings.Repeat("Be brief. ", 500)
	req.Tools = []llm.ToolSpec{{Name: "read", Parameters: []byte(schema)}}
	var stored int64 // by the previous request
	for turn := range 4 {
		r := collect(t, t.Context(), a, req)
		if r.Usage == nil {
			t.Fatalf("%+v", r.Finish.Failure)
		}
		if r.Usage.CacheReadTokens != stored || r.Usage.InputTokens != 0 {
			t.Errorf("turn %d: read %d of %d stored tokens; %d were not cached", turn, r.Usage.CacheReadTokens, stored, r.Usage.InputTokens)
		}
		stored = r.Usage.CacheReadTokens + r.Usage.CacheWriteTokens
		req.Messages = append(req.Messages, answered(r))
		var results []message.Block
		for _, b := range r.Blocks {
			if b.Type == message.BlockToolCall {
				results = append(results, message.ToolResult(b.ID, []message.Block{message.Text(strings.Repeat("out ", 50))}, false))
			}
		}
		if results == nil {
			results = append(results, message.Text("next"))
		}
		req.Messages = append(req.Messages, user(results...))
	}
	// Forks share the history up to the end of a turn and go on with their own words.
	for _, words := range []string{"fork one", "fork two"} {
		fork := *req
		fork.Messages = append(slices.Clone(req.Messages[:len(req.Messages)-1]), user(message.Text(words)))
		if r := collect(t, t.Context(), a, &fork); r.Usage == nil || r.Usage.CacheReadTokens != stored {
			t.Errorf("%s read %+v, want all %d tokens that its parent stored: %+v", words, r.Usage, stored, r.Finish.Failure)
		}
	}
	// An agent with a system prompt of its own shares the tools.
	other := ask("fork")
	other.System, other.Tools = "Somebody else.", req.Tools
	if r := collect(t, t.Context(), a, other); r.Usage == nil || r.Usage.CacheReadTokens == 0 {
		t.Errorf("the tools were not shared: %+v", r.Usage)
	}
	if n := server.Total(); n != 7 {
		t.Errorf("%d requests", n)
	}
}

// FuzzReplayState: an answer's replay state comes out of a log that anybody may have
// written. Whatever it is, the request is one that the API can take: the answer's
// blocks are text, or thinking that it signed (core M8).
func FuzzReplayState(f *testing.F) {
	for _, seed := range []string{
		`{"response":{"prefix":"p"},"blocks":[{"type":"thinking","thinking":"t","signature":"s"},null]}`,
		`{"response":{"prefix":"p"},"blocks":[{"type":"redacted_thinking","data":"d"},null]}`,
		`{"response":{"prefix":"p"},"blocks":[5,"x"]}`, `{"response":[],"blocks":[[[]],{}]}`, `{"blocks":null}`, `{`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, state []byte) {
		var sent []byte
		a, err := anthropic.New(anthropic.Config{APIKey: testKey, HTTPClient: &http.Client{Transport: tapTransport(func(body []byte) { sent = body })}})
		if err != nil {
			t.Fatal(err)
		}
		req := ask("hi")
		// An older model is not bound to what it was sent before: the state counts whatever its print.
		req.Model = "claude-opus-4-5"
		req.Messages = append(req.Messages, message.Message{Role: message.RoleAssistant, Content: []message.Block{
			{Type: message.BlockReasoning, Text: "t"}, message.Text("said"),
		}, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "route", Model: req.Model, ReplayState: state})}, user(message.Text("more")))
		r := collect(t, t.Context(), a, req)
		if sent == nil {
			if r.Finish.Kind != llm.FinishError {
				t.Fatalf("nothing was sent, and it ended as %q", r.Finish.Kind)
			}
			return
		}
		var body struct {
			Messages []struct {
				Content []struct{ Type, Text, Signature, Data string }
			}
		}
		if err := json.Unmarshal(sent, &body); err != nil || len(body.Messages) != 3 {
			t.Fatalf("%s went out as %s: %v", state, sent, err)
		}
		answer := body.Messages[1].Content
		if len(answer) == 2 {
			if b := answer[0]; b.Type != "thinking" && b.Type != "redacted_thinking" || b.Signature == "" && b.Data == "" {
				t.Errorf("%s went out as %+v", state, b)
			}
		}
		if answer[len(answer)-1].Text != "said" || len(answer) > 2 {
			t.Errorf("the answer went out as %+v", answer)
		}
	})
}

// tapTransport keeps what is sent and answers with an empty stream.
type tapTransport func([]byte)

func (tap tapTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	tap(body)
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}
