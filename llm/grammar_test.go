package llm_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

func failed(k llm.FinishKind) llm.Chunk {
	c := finish(k)
	c.Finish.Failure = &message.Failure{Code: llm.CodeServer, Message: "x"}
	return c
}

// I10: legal order, indexes, one usage, finish last.
func TestGrammar(t *testing.T) {
	whole := []llm.Chunk{start(0, message.BlockText), text(0, "a"), end(0, message.Text("a"))}
	with := func(more ...llm.Chunk) []llm.Chunk { return append(append([]llm.Chunk{}, whole...), more...) }
	tests := []struct {
		name   string
		chunks []llm.Chunk
		bad    int // index of the offending chunk, len(chunks) for the end, -1 for legal
	}{
		{"legal", with(usage(message.Usage{}), finish(llm.FinishStop)), -1},
		{"legal without blocks", []llm.Chunk{finish(llm.FinishStop)}, -1},
		{"legal interleaved", []llm.Chunk{
			start(0, message.BlockReasoning), start(1, message.BlockToolCall), reason(0, "r"), call(1, "c", "n", "{}"),
			end(1, message.ToolCall("c", "n", "{}")), end(0, message.Reasoning("r")), finish(llm.FinishToolCalls, "0", "1"),
		}, -1},
		{"legal failure with an open block", []llm.Chunk{start(0, message.BlockText), text(0, "a"), failed(llm.FinishError)}, -1},
		{"legal foreign block", []llm.Chunk{start(0, "foreign"), end(0, message.Block{Type: "foreign"}), finish(llm.FinishStop)}, -1},
		{"no finish", whole, 3},
		{"delta before start", []llm.Chunk{text(0, "a")}, 0},
		{"skipped index", []llm.Chunk{start(1, message.BlockText)}, 0},
		{"start twice", with(start(0, message.BlockText)), 3},
		{"start without type", []llm.Chunk{start(0, "")}, 0},
		{"delta of another type", []llm.Chunk{start(0, message.BlockText), reason(0, "a")}, 1},
		{"delta after end", with(text(0, "a")), 3},
		{"end twice", with(end(0, message.Text("a"))), 3},
		{"end without block", []llm.Chunk{start(0, message.BlockText), {Kind: llm.ChunkBlockEnd}}, 1},
		{"end of another type", []llm.Chunk{start(0, message.BlockText), end(0, message.Reasoning("a"))}, 1},
		{"two usages", with(usage(message.Usage{}), usage(message.Usage{})), 4},
		{"usage without usage", []llm.Chunk{{Kind: llm.ChunkUsage}}, 0},
		{"usage after finish", with(finish(llm.FinishStop), usage(message.Usage{})), 4},
		{"two finishes", with(finish(llm.FinishStop), finish(llm.FinishStop)), 4},
		{"finish while a block is open", []llm.Chunk{start(0, message.BlockText), finish(llm.FinishStop)}, 1},
		{"finish without finish", []llm.Chunk{{Kind: llm.ChunkFinish}}, 0},
		{"unknown finish", []llm.Chunk{finish("gone")}, 0},
		{"error without failure", []llm.Chunk{finish(llm.FinishError)}, 0},
		{"stop with failure", []llm.Chunk{failed(llm.FinishStop)}, 0},
		{"replay not aligned (M8)", with(finish(llm.FinishStop, "0", "1")), 3},
		{"unknown chunk", []llm.Chunk{{Kind: "gremlin"}}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var g llm.Grammar
			bad := -1
			for i, c := range tt.chunks {
				if err := g.Add(c); err != nil {
					if llm.CodeOf(err) != llm.CodeStreamGrammar {
						t.Errorf("code %q of %v", llm.CodeOf(err), err)
					}
					bad = i
					break
				}
			}
			if err := g.End(); err != nil && bad < 0 {
				bad = len(tt.chunks)
			}
			if bad != tt.bad {
				t.Errorf("fault at chunk %d, want %d (%v)", bad, tt.bad, g.End())
			}
		})
	}
}
