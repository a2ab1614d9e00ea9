package agent_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// oneAnswer is a model that says one text and costs next to nothing itself.
type oneAnswer struct {
	block message.Block
	usage message.Usage
	fin   llm.Finish
}

func (o *oneAnswer) Model(string, string) llm.ModelInfo { return llm.ModelInfo{} }

func (o *oneAnswer) Stream(context.Context, *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		_ = yield(llm.Chunk{Kind: llm.ChunkBlockStart, BlockType: message.BlockText}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkTextDelta, Text: o.block.Text}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkBlockEnd, Block: &o.block}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkUsage, Usage: &o.usage}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkFinish, Finish: &o.fin}, nil)
	}
}

// fixture is the composition that the design's cost table speaks of: seven tools, a
// system prompt of 1.5 KB, one text answer, everything logged, in memory.
func fixture(b *testing.B) *agent.Registry {
	ok := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	sessions, err := session.NewRegistry(b.Context(), session.Config{})
	ok(err)
	models := &llm.Registry{}
	answer := &oneAnswer{block: message.Text("The answer is forty-two, as it was before."), usage: message.Usage{InputTokens: 900, OutputTokens: 12}, fin: llm.Finish{Kind: llm.FinishStop}}
	_, err = models.Register(answer, "test")
	ok(err)
	tools, prompts := tool.New(), prompt.New()
	for i := range 7 {
		_, err = tools.Root().Register(tool.Definition{
			Name: fmt.Sprintf("tool_%d", i), Description: "Does one of the seven things that this fixture can do.",
			Parameters: []byte(`{"type":"object","properties":{"path":{"type":"string","description":"Where to look."},"limit":{"type":"integer"}},"required":["path"]}`),
			Execute:    func(context.Context, *tool.Call) (any, error) { return "ok", nil },
		})
		ok(err)
	}
	_, err = prompts.Root().Add(prompt.Identity("You are {{model}}. " + strings.Repeat("Work carefully and say what you did. ", 38)))
	ok(err)
	_, err = prompts.Root().Add(prompt.Persona("", false))
	ok(err)
	reg, err := agent.NewRegistry(b.Context(), agent.Config{Sessions: sessions, Models: models, Tools: tools, Prompts: prompts})
	ok(err)
	b.Cleanup(func() { ok(reg.Close(context.Background())) })
	return reg
}

// BenchmarkTurn is a follow-up to a resident agent: one turn of one step.
func BenchmarkTurn(b *testing.B) {
	reg := fixture(b)
	b.ReportAllocs()
	var a *agent.Agent
	n := 0
	for b.Loop() {
		if n%64 == 0 { // the history stays short
			b.StopTimer()
			if a != nil {
				if err := a.Dispose(b.Context(), false); err != nil {
					b.Fatal(err)
				}
			}
			h, err := reg.Create(b.Context(), agent.Create{Options: options()})
			if err != nil {
				b.Fatal(err)
			}
			a = h.Agent()
			b.StartTimer()
		}
		n++
		if err := a.Followup(agent.UserText("What is the answer?")); err != nil {
			b.Fatal(err)
		}
		if err := a.WhenIdle(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOneShot is a whole one-shot agent: created, asked, answered, disposed.
func BenchmarkOneShot(b *testing.B) {
	reg := fixture(b)
	h, err := reg.Create(b.Context(), agent.Create{Options: options()})
	if err != nil {
		b.Fatal(err)
	}
	owner := h.Agent()
	b.ReportAllocs()
	for b.Loop() {
		h, err := reg.Create(b.Context(), agent.Create{
			Owner: owner, Options: options(),
			Session: session.New{ParentSession: owner.ID(), Root: owner.ID(), Origin: session.OriginSubagent, DelegationDepth: 1, Deferred: true},
		})
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Agent().Followup(agent.UserText("What is the answer?")); err != nil {
			b.Fatal(err)
		}
		if err := h.Agent().WhenIdle(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := h.Dispose(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// oneCall is a model that calls a tool and then says one text.
type oneCall struct {
	oneAnswer
	call message.Block
	used llm.Finish
}

func (o *oneCall) Stream(ctx context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	if last := req.Messages[len(req.Messages)-1]; last.Source.Kind == message.SourceTool {
		return o.oneAnswer.Stream(ctx, req)
	}
	return func(yield func(llm.Chunk, error) bool) {
		_ = yield(llm.Chunk{Kind: llm.ChunkBlockStart, BlockType: message.BlockToolCall}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkToolCallDelta, ID: o.call.ID, Name: o.call.Name, Arguments: o.call.Arguments}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkBlockEnd, Block: &o.call}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkUsage, Usage: &o.usage}, nil) &&
			yield(llm.Chunk{Kind: llm.ChunkFinish, Finish: &o.used}, nil)
	}
}

// BenchmarkToolResult is an agent of two steps, from its creation to its disposal, whose
// tool returns a text of the given size (core D45: what is not cut costs no more).
func BenchmarkToolResult(b *testing.B) {
	for _, size := range []int{100, 64 << 10, 5 << 20} {
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			reg := fixture(b)
			text := strings.Repeat("a line of output, as long as lines of output are\n", size/49+1)[:size]
			_, err := reg.Tools().Root().Register(tool.Definition{
				Name: "big", Description: "d", Parameters: []byte(`{"type":"object"}`),
				Execute: func(context.Context, *tool.Call) (any, error) { return text, nil },
			})
			if err != nil {
				b.Fatal(err)
			}
			m := &oneCall{
				oneAnswer: oneAnswer{block: message.Text("Done."), usage: message.Usage{InputTokens: 900, OutputTokens: 12}, fin: llm.Finish{Kind: llm.FinishStop}},
				call:      message.ToolCall("c1", "big", "{}"), used: llm.Finish{Kind: llm.FinishToolCalls},
			}
			if _, err := reg.Models().Register(m, "calls"); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				h, err := reg.Create(b.Context(), agent.Create{Options: agent.Options{Provider: "calls", Model: "m1"}})
				if err != nil {
					b.Fatal(err)
				}
				if err := h.Agent().Followup(agent.UserText("Use it.")); err != nil {
					b.Fatal(err)
				}
				if err := h.Agent().WhenIdle(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := h.Dispose(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
