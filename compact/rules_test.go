package compact_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

func ok(*llm.Request) ([]message.Block, error) { return say("ok"), nil }

// core D38: where the part begins that stays: what fits, to the token, from where it may
// be cut; and in any case what the model has not answered, with the calls that it answers.
func TestWhatStays_D38(t *testing.T) {
	user := func(bytes int) session.Node {
		return session.Node{Message: &message.Message{Role: message.RoleUser, Content: say(strings.Repeat("x", bytes))}}
	}
	answer := func(b ...message.Block) session.Node {
		return session.Node{Message: &message.Message{Role: message.RoleAssistant, Content: b}}
	}
	result := func(id string) session.Node {
		return session.Node{Message: &message.Message{Role: message.RoleUser, Content: []message.Block{message.ToolResult(id, say("r"), false)}}}
	}
	pair := []session.Node{user(40), answer(message.Text("a")), user(40), answer(calls("1", "n", 1)), result("1"), user(40)}
	for _, tc := range []struct {
		name  string
		nodes []session.Node
		want  int
	}{
		{"nothing was answered", []session.Node{user(1), user(1)}, 0},
		{"all was answered", []session.Node{user(1), answer(message.Text("a"))}, 2},
		{"a prompt", []session.Node{user(1), answer(message.Text("a")), user(1)}, 2},
		{"results and their calls", pair, 3},
		{"an empty answer answers nothing", []session.Node{user(1), {}, user(1)}, 0},
	} {
		if got := compact.Unread(tc.nodes); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	list := []session.Node{user(40), user(40), user(40)} // 14 tokens each
	for keep, want := range map[int64]int{0: 3, 13: 3, 14: 2, 27: 2, 28: 1, 42: 0, 1 << 40: 0} {
		if got := compact.Tail(list, keep); got != want {
			t.Errorf("of three within %d tokens %d stay, want %d", keep, 3-got, 3-want)
		}
	}
	if got := compact.Tail(pair, 20); got != 5 {
		t.Errorf("a call is parted from its result at %d", got)
	}
	content := []message.Block{message.Text(strings.Repeat("x", 9000)), {Type: message.BlockImage, Raw: []byte("{}")}}
	if got := compact.ShortenContent(content); len(got) != 2 || got[1].Type != message.BlockImage {
		t.Errorf("a shortened result lost what is no text: %d blocks", len(got))
	}
}

// What the vendor reported counts with the last answer that was complete, not after a
// replacement, and not when it is too long ago; what came since is estimated.
func TestReported_D41(t *testing.T) {
	reg, err := session.NewRegistry(t.Context(), session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	usage := &message.Usage{InputTokens: 70, OutputTokens: 20, CacheReadTokens: 7, CacheWriteTokens: 3, ReasoningTokens: 5}
	answer := func(u *message.Usage, cut bool) session.Draft {
		return session.Draft{Payload: &session.AssistantMessage{Turn: 1, Step: 1, Usage: u, Interrupted: cut, Message: message.Message{
			ID: agent.NewMessageID(), Role: message.RoleAssistant, Content: []message.Block{calls("c", "n", 1)}, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "p", Model: "m"}),
		}}}
	}
	thought := func(state []byte, b ...message.Block) session.Draft {
		d := answer(usage, false)
		p, _ := d.Payload.(*session.AssistantMessage)
		p.Message.Content = append(b, p.Message.Content...)
		p.Message.Source = p.Message.Source.With(func(d *message.SourceDetails) { d.ReplayState = state })
		return d
	}
	said := session.Draft{Payload: &session.UserMessage{Message: agent.UserText(strings.Repeat("x", 40))}}
	call := session.Draft{Payload: &session.ToolCall{Turn: 1, Step: 1, CallID: "c", Name: "look", Arguments: "{}"}}
	result := session.Draft{Payload: &session.ToolResult{Turn: 1, Step: 1, Message: message.Message{
		ID: agent.NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.ToolResult("c", say(strings.Repeat("x", 400)), false)}, Source: message.NewSource(message.SourceTool, message.SourceDetails{CallID: "c"}),
	}}}
	result.Sources = []int64{4}
	todo := session.Draft{Payload: &session.TodoWrite{}}
	for _, tc := range []struct {
		name           string
		then           []session.Draft
		counted, since int64
		known          bool
	}{
		{"nothing said", nil, 0, 14, false},
		{"not reported", []session.Draft{answer(nil, false)}, 0, 28, false},
		{"reported", []session.Draft{answer(usage, false)}, 95, 0, true},
		{"with thoughts that are sent again", []session.Draft{thought(nil, message.Reasoning("hm"))}, 100, 0, true},
		{"with something that stands for them", []session.Draft{thought([]byte("{}"))}, 100, 0, true},
		{"cut", []session.Draft{answer(usage, true)}, 0, 28, false},
		{"and since", []session.Draft{answer(usage, false), call, result, said}, 95, 104 + 14, true},
		{"replaced", []session.Draft{answer(usage, false), {Payload: said.Payload, Op: session.SurfaceOp{Kind: session.OpReplace, Start: 2, End: 2}, Sources: []int64{2}}}, 100, 0, false},
		{"long ago", append([]session.Draft{answer(usage, false)}, many(todo, 600)...), 0, 0, false},
		{"not so long ago", append([]session.Draft{answer(usage, false)}, many(todo, 500)...), 95, 0, true},
	} {
		s, err := reg.Prepare(t.Context(), session.New{})
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range append([]session.Draft{{Payload: &session.TurnStart{Turn: 1}}, {Payload: &session.StepStart{Turn: 1, Step: 1}}, said}, tc.then...) {
			if _, err := s.Append(d); err != nil {
				t.Fatalf("%s: event %d: %v", tc.name, i, err)
			}
		}
		g := &compact.Gauge{}
		counted, since, known := g.Follow(s)
		if known != tc.known || known && (counted != tc.counted || since != tc.since) {
			t.Errorf("%s: %d and %d since, %v; want %d and %d, %v", tc.name, counted, since, known, tc.counted, tc.since, tc.known)
		}
		if _, err := s.Append(many(todo, 600)...); err != nil {
			t.Fatal(err)
		}
		if _, _, known := g.Follow(s); known {
			t.Errorf("%s: still known after 600 events that were not read", tc.name)
		}
		if err := reg.Abandon(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func many(d session.Draft, n int) (list []session.Draft) {
	for range n {
		list = append(list, d)
	}
	return list
}

// core D38, D41: the limit leaves room for the answer, but not less than half the window;
// what the vendor adds to a short conversation is added to every request, and what it
// counts more of a long one makes every estimate larger, up to a token for every byte.
func TestMeasures_D38(t *testing.T) {
	for _, tc := range []struct {
		name    string
		m       *model
		turns   int
		limit   int64
		scale   float64
		atLeast int64
	}{
		{"a small bound", &model{told: 20_000}, 1, 16_000, 1, 0},
		{"a large bound", &model{told: 20_000, answers: 8_000}, 1, 12_000, 1, 0},
		{"a bound that is nearly all", &model{told: 20_000, answers: 19_000}, 1, 10_000, 1, 0},
		{"what the vendor adds", &model{told: 20_000, added: 5_000}, 1, 16_000, 1, 5_000},
		{"what it adds to a long one", &model{told: 20_000, added: 4_000}, 4, 16_000, 2, 4_000},
		{"what it counts of every byte", &model{told: 20_000, perByte: 3}, 4, 16_000, 4, 0},
	} {
		tc.m.window, tc.m.answer = 1<<40, ok
		in(t, tc.m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
			a := w.Parent(t)
			w.talk(a, tc.turns, 4000)
			got := w.c.Measure(t.Context(), a)
			if got.Limit != tc.limit || got.Scale < tc.scale*0.9 || got.Scale > tc.scale*1.1 || got.Size < tc.atLeast {
				t.Errorf("%s: %+v", tc.name, got)
			}
			last := w.model.requests[len(w.model.requests)-1]
			rest := len(last.System) + len(last.Tools[0].Name) + len(last.Tools[0].Description) + len(last.Tools[0].Parameters)
			if tc.m.added == 0 && got.Fixed != int64(rest)/4 {
				t.Errorf("%s: what every request holds is estimated as %d tokens, and has %d bytes", tc.name, got.Fixed, rest)
			}
			if tc.m.perByte == 0 && (got.Size < last.size+tc.m.added || got.Size > (last.size+tc.m.added)*11/10+20) {
				t.Errorf("%s: the next request is estimated as %d tokens, the last one had %d", tc.name, got.Size, last.size+tc.m.added)
			}
		})
	}
}

// core D40: where nobody knows the window, a step that is too long makes room as often
// as a turn has such steps, in as small parts as the endpoint takes; so does Compact.
func TestWindowThatNobodyKnows_D40(t *testing.T) {
	for _, manual := range []bool{false, true} {
		m := &model{window: 1 << 40, mute: true, answer: ok}
		in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{Manual: manual}, func(t *testing.T, w *world) {
			a := w.Parent(t)
			w.talk(a, 24, 4000)
			m.window = 9_000
			before := len(m.requests)
			if manual {
				res, err := w.c.Compact(t.Context(), a)
				if err != nil || res.After > 6_500 || res.Window != 0 {
					t.Fatalf("%+v, %v", res, err)
				}
				if first := m.requests[before]; first.MaxTokens != compact.MaxSummary {
					t.Errorf("at first a summary of at most %d tokens is asked for", first.MaxTokens)
				}
				if nodes, _ := a.Session().Surface(); len(nodes) != 1+7 { // the newest 16 % of 24,000 tokens
					t.Errorf("%d messages stand on the surface", len(nodes))
				}
				return
			}
			n := 0
			m.answer = func(*llm.Request) ([]message.Block, error) {
				if n++; n < 30 {
					return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", 3000)}, nil
				}
				return say("done"), nil
			}
			w.prompt(a, "go on")
			if e := end(a); e.Kind != session.EndCompleted || len(w.sums) < 2 {
				t.Fatalf("ended %s: %+v after %d compactions in %d requests", e.Kind, e.Failure, len(w.sums), len(m.requests)-before)
			}
			w.verify(a)
		})
	}
}

// No other failure of a call makes room.
func TestOtherFailures_D40(t *testing.T) {
	m := &model{window: 1 << 40, mute: true, answer: ok}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 6, 4000)
		m.answer = func(*llm.Request) ([]message.Block, error) {
			return nil, &llm.Error{Failure: message.Failure{Code: llm.CodeAuth, Message: "no key"}}
		}
		w.prompt(a, "go on")
		if e := end(a); e.Kind != session.EndError || m.summaries() > 0 || len(w.done) > 0 {
			t.Errorf("ended %s after %d summaries", e.Kind, m.summaries())
		}
	})
}

// A task that still stands on the surface is not said twice, and what a child inherited
// is not taken for its task.
func TestTaskOnTheSurface_D42(t *testing.T) {
	m := &model{window: 1 << 40, mute: true, answer: ok}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		if _, err := w.Service.Register(fork.New("")); err != nil {
			t.Fatal(err)
		}
		parent := w.Parent(t)
		w.talk(parent, 10, 4000)
		m.window = 8_000
		label := "count"
		run, err := w.Service.Start(t.Context(), "fork", subagent.Request{Parent: parent, Label: &label, Prompt: say("Count the things.")})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := run.Wait(t.Context()); err != nil || res.StopReason != subagent.StopCompleted {
			t.Fatalf("%s, %v, %v", res.StopReason, err, w.done)
		}
		body := text(&m.requests[len(m.requests)-1].Request)
		if strings.Count(body, "Count the things.") != 1 || strings.Contains(body, "<task>") || strings.Contains(body, "<request>") {
			t.Errorf("the last request is %.600s", body)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Of many messages in the open turn the newest are kept, as far as there is room, and
// nothing that no person and no agent said.
func TestManyMessagesOfAnOpenTurn_D39(t *testing.T) {
	m := &model{window: 16_000, told: 16_000}
	var a *agent.Agent
	m.answer = func(*llm.Request) ([]message.Block, error) {
		n := len(m.requests) - m.summaries()
		if n > 90 {
			return say("done"), nil
		}
		if n <= 10 {
			note := agent.UserText("a notice of a plugin")
			note.Source = message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: "notes", Form: message.FormNotice})
			if err := errors.Join(a.Steer(agent.UserText(fill(fmt.Sprintf("wish%d", n), 2000))), a.Inject(note)); err != nil {
				return nil, err
			}
		}
		return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", 1500)}, nil
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{}, func(t *testing.T, w *world) {
		a = w.Parent(t)
		w.prompt(a, "begin")
		if e := end(a); e.Kind != session.EndCompleted || m.summaries() < 2 {
			t.Fatalf("ended %s: %+v after %d summaries", e.Kind, e.Failure, m.summaries())
		}
		body := text(&m.requests[len(m.requests)-1].Request)
		if n := strings.Count(body, "<request>"); n < 2 || n > 4 { // an eighth of the window is 2,000 tokens
			t.Errorf("%d messages are kept", n)
		}
		if !strings.Contains(body, "wish10 ") || strings.Contains(body, "wish5 ") || strings.Contains(body, "a notice of a plugin") {
			t.Errorf("the last request is %.600s", body)
		}
		w.verify(a)
	})
}

// A summary that comes as no vendor should send it is made fit for the log; one that was
// declined is none.
func TestSummaryAsItComes_D41(t *testing.T) {
	for _, tc := range []struct {
		name string
		m    *model
		sum  []message.Block
		err  error
		want string // in the error of the bracket
	}{
		{"bytes that are no text, a call and far too much", &model{}, []message.Block{
			message.Reasoning("\xff"), message.Text("good \xff" + strings.Repeat("long ", 30_000)), message.ToolCall("", "", "{"),
		}, nil, ""},
		{"declined", &model{ends: llm.FinishRefusal}, say("I cannot help with that."), nil, "declined"},
		{"an error that is no text", &model{}, nil, &llm.Error{Failure: message.Failure{Code: llm.CodeInvalidRequest, Message: "no \xff"}}, "no \uFFFD"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.m.window, tc.m.told, tc.m.answer = 1<<40, 40_000, ok
			tc.m.summary = func(int, *llm.Request) ([]message.Block, error) { return tc.sum, tc.err }
			in(t, tc.m, subagenttest.Options{}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
				w.Agents.AddHooks(agent.Hooks{Request: func(_ context.Context, _ *agent.Agent, c *llm.CallConfig) error {
					c.Stop = []string{"END"}
					return nil
				}})
				a := w.Parent(t)
				w.talk(a, 30, 4000)
				_, err := w.c.Compact(t.Context(), a)
				if (err == nil) != (tc.want == "") || err != nil && tc.want != "" && !strings.Contains(strings.ToValidUTF8(err.Error(), "\uFFFD"), tc.want) {
					t.Fatalf("error %v, want %q", err, tc.want)
				}
				if r := w.model.requests[len(w.model.requests)-1]; len(r.Stop) > 0 {
					t.Errorf("a summary ends at %q", r.Stop)
				}
				for e := range a.Session().Events(0) {
					switch p := e.Payload().(type) {
					case *session.CompactionSummary:
						if len(p.RawOutput) != 2 || p.RawOutput[0].Text != "\uFFFD" || !strings.HasPrefix(p.RawOutput[1].Text, "good \uFFFDlong") || len(p.RawOutput[1].Text) < 150_000 {
							t.Errorf("the log keeps %d blocks of the answer", len(p.RawOutput))
						}
						if s := message.JoinText(p.Summary); !strings.HasPrefix(s, "good \uFFFDlong") || int64(len(s)) > 8*p.MaxTokens {
							t.Errorf("a summary of %d bytes, where %d tokens were asked for", len(s), p.MaxTokens)
						}
					case *session.CompactionEnd:
						if !strings.Contains(p.Error, tc.want) {
							t.Errorf("the bracket ends with %q", p.Error)
						}
					}
				}
				w.verify(a)
			})
		})
	}
}

// core D38, D45: a shortened result says where the whole is: at its spill where it has
// one, in the log itself where not, and nowhere where no tool could read it. Outside a
// turn results are left alone.
func TestWhereTheWholeIs_D45(t *testing.T) {
	reads := tool.Definition{
		Name: tool.ReadName, Description: "Reads.", ReadOnly: true, Parameters: []byte(`{"type":"object"}`),
		Execute: func(context.Context, *tool.Call) (any, error) { return "", errors.New("not called") },
	}
	for _, tc := range []struct {
		name  string
		tools []tool.Definition
		bytes int
	}{{"a spill", []tool.Definition{look(), reads}, 100_000}, {"the log", []tool.Definition{look(), reads}, 40_000}, {"nowhere", []tool.Definition{look()}, 40_000}} {
		m := &model{window: 1 << 40, told: 1 << 40}
		m.answer = func(*llm.Request) ([]message.Block, error) {
			if len(m.requests) == 1 {
				return []message.Block{calls("c", "thing", tc.bytes)}, nil
			}
			return say("ok"), nil
		}
		in(t, m, subagenttest.Options{Tools: tc.tools}, compact.Config{}, func(t *testing.T, w *world) {
			a := w.Parent(t)
			w.prompt(a, "look")
			w.talk(a, 14, 2000)
			m.told = 16_000
			w.prompt(a, "go on")
			if len(w.sums) != 1 || w.sums[0].Summed > 0 || w.sums[0].After > w.sums[0].Before-8_000 {
				t.Errorf("%s: %+v, %v", tc.name, w.sums, w.done)
			}
			var refs []string
			for e := range a.Session().Events(0) {
				p, ok := e.Payload().(*session.ToolResult)
				if !ok || e.Op != session.OpReplace {
					continue
				}
				body := message.JoinText(p.Message.Content[0].Content)
				_, at, found := strings.Cut(body, "the whole text at the path ")
				if found == (tc.name == "nowhere") {
					t.Errorf("%s: %s", tc.name, body[4000:4300])
				}
				if !found {
					if !strings.Contains(body, "call the tool again") {
						t.Errorf("%s: %s", tc.name, body[4000:4300])
					}
					refs = append(refs, "")
					continue
				}
				name, _, _ := strings.Cut(at, " ")
				refs = append(refs, name)
				start, _ := e.Replaces()
				want := session.SpillRef{Session: a.ID(), Seq: start}
				if tc.name == "a spill" {
					want.Seq--
				}
				whole, err := w.Agents.ReadSpill(t.Context(), a, want)
				if name != want.String() || err != nil || whole != fill("thing", tc.bytes) {
					t.Errorf("%s: at %s, want %s, stand %d bytes, %v", tc.name, name, want, len(whole), err)
				}
			}
			if len(refs) != 1 {
				t.Errorf("%s: %d shortened results, %v", tc.name, len(refs), w.done)
			}
			w.verify(a)
		})
	}
	m := &model{window: 1 << 40, told: 1 << 40}
	m.answer = func(*llm.Request) ([]message.Block, error) {
		if len(m.requests) == 1 {
			return []message.Block{calls("c", "thing", 40_000)}, nil
		}
		return say("ok"), nil
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.prompt(a, "look")
		w.talk(a, 3, 8000)
		m.told = 20_000
		if res, err := w.c.Compact(t.Context(), a); err != nil || res.Pruned != 0 || res.Summed == 0 {
			t.Errorf("outside a turn: %+v, %v", res, err)
		}
	})
}

// A summary is never made of a summary alone, however long what follows is.
func TestNoSummaryOfASummary(t *testing.T) {
	m := &model{window: 1 << 40, told: 12_000, answer: ok}
	m.summary = func(_ int, req *llm.Request) ([]message.Block, error) {
		return say(strings.Repeat("s", 4*int(req.MaxTokens))), nil
	}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 12, 4000)
		w.prompt(a, fill("huge", 30_000))
		w.talk(a, 4, 4000)
		if m.summaries() < 3 {
			t.Fatalf("%d summaries", m.summaries())
		}
		for i, r := range m.requests {
			if r.Purpose != "" && len(r.Messages) < 3 && strings.Contains(text(&r.Request), "<compacted-summary>") {
				t.Errorf("request %d sums up a summary alone", i)
			}
		}
		w.verify(a)
	})
}

// What is registered is said again where other words of it stand, and not where the same
// do; after its registration ended, or the compactor's, nothing happens any more.
func TestRegistrations(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, answer: ok}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		said := "one job"
		unregister := w.c.Register("jobs", func(*agent.Agent) string { return said })
		a := w.Parent(t)
		count := func() (n int) {
			for e := range a.Session().Events(0) {
				if p, ok := e.Payload().(*session.UserMessage); ok && p.Message.Source.Details().Plugin == "jobs" {
					n++
				}
			}
			return n
		}
		compactNow := func(turns, bytes, want int) {
			t.Helper()
			w.talk(a, turns, bytes)
			if _, err := w.c.Compact(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			if got := count(); got != want {
				t.Errorf("said %d times, want %d", got, want)
			}
		}
		compactNow(6, 6000, 1) // two turns of 1,500 tokens stay
		said = "two jobs"
		compactNow(1, 4000, 2) // the first notice stays
		compactNow(1, 4000, 2) // the second does
		unregister()
		compactNow(3, 6000, 2)
		w.c.Close()
		sums := len(w.sums)
		w.talk(a, 20, 4000)
		if len(w.sums) != sums {
			t.Error("a compactor that was closed goes on")
		}
		if w.c.Gauges() != 1 {
			t.Errorf("%d agents are followed", w.c.Gauges())
		}
	})
}

// Nothing is kept of an agent that is gone, and it is not compacted.
func TestGone_D41(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, answer: ok}
	in(t, m, subagenttest.Options{Store: memory.New()}, compact.Config{}, func(t *testing.T, w *world) {
		h, err := w.Agents.Create(t.Context(), agent.Create{Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		w.talk(h.Agent(), 6, 4000)
		// What waits waits on.
		if err := h.Agent().Inject(agent.UserText("later")); err != nil {
			t.Fatal(err)
		}
		turn, _, _ := h.Agent().Session().LastTurn()
		if _, err := w.c.Compact(t.Context(), h.Agent()); err != nil || w.c.Gauges() != 1 {
			t.Fatalf("%v, %d agents are followed", err, w.c.Gauges())
		}
		if now, _, _ := h.Agent().Session().LastTurn(); now != turn || len(h.Agent().Session().Inbox(session.NextStep)) != 1 {
			t.Errorf("turn %d follows turn %d", now, turn)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.c.Gauges(); n != 0 {
			t.Errorf("%d agents are followed", n)
		}
		var cerr *compact.Error
		if _, err := w.c.Compact(t.Context(), h.Agent()); !errors.As(err, &cerr) || cerr.Code != compact.CodeBusy || !errors.Is(err, agent.ErrDisposed) {
			t.Errorf("error %v", err)
		}
	})
}

// A short conversation costs a step nothing that counts.
func TestStepDueAllocatesNothing(t *testing.T) {
	m := &model{window: 20_000, told: 20_000, answer: ok}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.prompt(a, "hello")
		if n := testing.AllocsPerRun(100, func() { _ = w.c.StepDue(t.Context(), a, 1, nil) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// What is summed up in parts is so without a summary of a summary alone, also where the
// next message has no room beside it.
func TestPartsOfACompaction(t *testing.T) {
	m := &model{window: 1 << 40, told: 12_000, answer: ok}
	m.summary = func(_ int, req *llm.Request) ([]message.Block, error) {
		return say(strings.Repeat("s", 4*int(req.MaxTokens))), nil
	}
	in(t, m, subagenttest.Options{}, compact.Config{Manual: true}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.talk(a, 6, 4000)
		if _, err := w.c.Compact(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		w.prompt(a, fill("huge", 30_000))
		w.talk(a, 3, 4000)
		from := len(m.requests)
		res, err := w.c.Compact(t.Context(), a)
		if err != nil || res.Summed < 4 || res.After > 7_000 {
			t.Fatalf("%+v, %v", res, err)
		}
		for i, r := range m.requests[from:] {
			if len(r.Messages) < 3 {
				t.Errorf("part %d sums up a summary alone", i)
			}
		}
		w.verify(a)
	})
}

// How much stays is a part of the window as the vendor counts.
func TestWhatStaysIsCountedByTheVendor_D38(t *testing.T) {
	m := &model{window: 1 << 40, told: 40_000, perByte: 1, answer: ok}
	in(t, m, subagenttest.Options{}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		for len(w.sums) == 0 && len(m.requests) < 100 {
			w.prompt(a, fill("said", 1500))
		}
		last := m.requests[len(m.requests)-1]
		if len(w.sums) != 1 || last.size > 10_000 || last.size < 5_000 {
			t.Errorf("after %d compactions a request has %d tokens", len(w.sums), last.size)
		}
	})
}

// A result that the model has not read yet is shortened where it takes half the window.
// What was asked in a turn that is over is left to the summary.
func TestLongUnreadResult_D38(t *testing.T) {
	m := &model{window: 20_000, told: 20_000}
	m.answer = func(*llm.Request) ([]message.Block, error) {
		switch n := len(m.requests) - m.summaries(); {
		case n == 1:
			return []message.Block{calls("c1", "huge", 64_000)}, nil
		case n < 6:
			return []message.Block{calls(fmt.Sprintf("c%d", n), "thing", 6000)}, nil
		}
		return say("ok"), nil
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.prompt(a, "look at it")
		if e := end(a); e.Kind != session.EndCompleted || m.refused > 0 {
			t.Fatalf("ended %s: %+v", e.Kind, e.Failure)
		}
		if len(w.sums) != 1 || w.sums[0].Pruned != 1 || w.sums[0].Summed != 0 || m.requests[1].size > 3_000 {
			t.Errorf("%+v, %v", w.sums, w.done)
		}
		if _, err := w.c.Compact(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		nodes, _ := a.Session().Surface()
		if body := message.JoinText(nodes[0].Message.Content); strings.Contains(body, "look at it") {
			t.Errorf("kept of a turn that is over: %s", body)
		}
		w.verify(a)
	})
}

// core D40: after a request that was too long, shortened results alone are not trusted to
// be enough: the step is made once more, and not twice.
func TestTooLongWithLongResults_D40(t *testing.T) {
	m := &model{window: 1 << 40, mute: true}
	m.answer = func(*llm.Request) ([]message.Block, error) {
		if len(m.requests) == 1 {
			return []message.Block{calls("c", "thing", 36_000)}, nil
		}
		return say("ok"), nil
	}
	in(t, m, subagenttest.Options{Tools: []tool.Definition{look()}}, compact.Config{}, func(t *testing.T, w *world) {
		a := w.Parent(t)
		w.prompt(a, "look")
		w.talk(a, 10, 4000)
		m.window = 9_000
		w.prompt(a, "go on")
		if e := end(a); e.Kind != session.EndCompleted || len(w.sums) != 1 || w.sums[0].Pruned != 1 || w.sums[0].Summed == 0 {
			t.Errorf("ended %s: %+v, %+v", e.Kind, e.Failure, w.sums)
		}
		w.verify(a)
	})
}
