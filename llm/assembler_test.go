package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

func start(i int, t message.BlockType) llm.Chunk {
	return llm.Chunk{Kind: llm.ChunkBlockStart, Index: i, BlockType: t}
}
func text(i int, s string) llm.Chunk {
	return llm.Chunk{Kind: llm.ChunkTextDelta, Index: i, Text: s}
}
func reason(i int, s string) llm.Chunk {
	return llm.Chunk{Kind: llm.ChunkReasoningDelta, Index: i, Text: s}
}
func call(i int, id, name, args string) llm.Chunk {
	return llm.Chunk{Kind: llm.ChunkToolCallDelta, Index: i, ID: id, Name: name, Arguments: args}
}
func end(i int, b message.Block) llm.Chunk {
	return llm.Chunk{Kind: llm.ChunkBlockEnd, Index: i, Block: &b}
}
func usage(u message.Usage) llm.Chunk { return llm.Chunk{Kind: llm.ChunkUsage, Usage: &u} }
func finish(k llm.FinishKind, replay ...string) llm.Chunk {
	f := &llm.Finish{Kind: k}
	if replay != nil {
		f.Replay = &llm.Replay{Response: []byte(`"r"`), Blocks: make([][]byte, len(replay))}
		for i, r := range replay {
			f.Replay.Blocks[i] = []byte(r)
		}
	}
	return llm.Chunk{Kind: llm.ChunkFinish, Finish: f}
}

func TestAssembler(t *testing.T) {
	aligned := func(entries ...string) *llm.Replay { return finish("", entries...).Finish.Replay }
	tests := []struct {
		name        string
		chunks      []llm.Chunk
		blocks      []message.Block
		interrupted []message.Block
		text        string
		finish      llm.Finish
	}{
		{name: "nothing at all is a stop without content (M7)", finish: llm.Finish{Kind: llm.FinishStop}},
		{
			name: "deltas without start, end or finish (M7)",
			chunks: []llm.Chunk{
				reason(0, "let me "), text(1, "Hel"), reason(0, "see"), text(1, "lo"), call(2, "c1", "read", `{"pa`), call(2, "", "", `th":1}`),
			},
			blocks:      []message.Block{message.Reasoning("let me see"), message.Text("Hello"), message.ToolCall("c1", "read", `{"path":1}`)},
			interrupted: []message.Block{message.Reasoning("let me see"), message.Text("Hello")},
			text:        "Hello",
			finish:      llm.Finish{Kind: llm.FinishStop},
		},
		{
			name:        "a block-end is authoritative, later deltas do not count (M7)",
			chunks:      []llm.Chunk{start(0, message.BlockText), text(0, "streamed"), end(0, message.Text("final")), text(0, "late"), finish(llm.FinishStop)},
			blocks:      []message.Block{message.Text("final")},
			interrupted: []message.Block{message.Text("final")},
			text:        "streamed",
			finish:      llm.Finish{Kind: llm.FinishStop},
		},
		{
			name: "blocks come by index, streamed text by arrival (OUT-05)",
			chunks: []llm.Chunk{
				text(2, "a"), text(0, "b"), text(2, "c"), text(2, "d"), text(0, "e"), finish(llm.FinishStop, "0", "2"),
			},
			blocks:      []message.Block{message.Text("be"), message.Text("acd")},
			interrupted: []message.Block{message.Text("be"), message.Text("acd")},
			text:        "abcde",
			finish:      llm.Finish{Kind: llm.FinishStop, Replay: aligned("0", "2")},
		},
		{
			name: "max-tokens drops tool calls and their replay entries (M8)",
			chunks: []llm.Chunk{
				reason(0, "r"), call(1, "c1", "x", "{"), text(2, "t"), end(3, message.ToolCall("c2", "y", "{}")), finish(llm.FinishMaxTokens, "0", "1", "2", "3"),
			},
			blocks:      []message.Block{message.Reasoning("r"), message.Text("t")},
			interrupted: []message.Block{message.Reasoning("r"), message.Text("t")},
			text:        "t",
			finish:      llm.Finish{Kind: llm.FinishMaxTokens, Replay: aligned("0", "2")},
		},
		{
			name:        "a started block that stayed empty goes with its replay entry (M8)",
			chunks:      []llm.Chunk{start(0, message.BlockReasoning), start(1, message.BlockText), text(1, "t"), finish(llm.FinishStop, "0", "1")},
			blocks:      []message.Block{message.Text("t")},
			interrupted: []message.Block{message.Text("t")},
			text:        "t",
			finish:      llm.Finish{Kind: llm.FinishStop, Replay: aligned("1")},
		},
		{
			name:        "replay entries that cannot be aligned are dropped (M8)",
			chunks:      []llm.Chunk{text(0, "t"), finish(llm.FinishStop, "0", "1")},
			blocks:      []message.Block{message.Text("t")},
			interrupted: []message.Block{message.Text("t")},
			text:        "t",
			finish:      llm.Finish{Kind: llm.FinishStop},
		},
		{
			name:   "blank text is not worth keeping of an interrupted answer (M9)",
			chunks: []llm.Chunk{reason(0, " \n"), text(1, "\t"), call(2, "c", "x", "{}")},
			blocks: []message.Block{message.Reasoning(" \n"), message.Text("\t"), message.ToolCall("c", "x", "{}")},
			text:   "\t",
			finish: llm.Finish{Kind: llm.FinishStop},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var a llm.Assembler
			for _, c := range tt.chunks {
				if err := a.Add(c); err != nil {
					t.Fatalf("Add(%+v): %v", c, err)
				}
			}
			if diff := cmp.Diff(tt.blocks, a.Blocks()); diff != "" {
				t.Errorf("Blocks (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.interrupted, a.Interrupted()); diff != "" {
				t.Errorf("Interrupted (-want +got):\n%s", diff)
			}
			if got := a.Text(); got != tt.text {
				t.Errorf("Text = %q, want %q", got, tt.text)
			}
			if diff := cmp.Diff(tt.finish, a.Finish()); diff != "" {
				t.Errorf("Finish (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAssemblerUsage(t *testing.T) {
	var a llm.Assembler
	if _, ok := a.Usage(); ok {
		t.Fatal("usage before any was reported")
	}
	want := message.Usage{InputTokens: 3, OutputTokens: 4}
	if err := a.Add(usage(want)); err != nil {
		t.Fatal(err)
	}
	if got, ok := a.Usage(); !ok || got != want {
		t.Errorf("Usage = %+v, %v, want %+v", got, ok, want)
	}
}

func TestAssemblerRefuses(t *testing.T) {
	tests := map[string][]llm.Chunk{
		"unknown kind":           {{Kind: "gremlin"}},
		"negative index":         {text(-1, "x")},
		"delta of another type":  {start(0, message.BlockText), reason(0, "x")},
		"end of another type":    {text(0, "x"), end(0, message.Reasoning("x"))},
		"two ends":               {end(0, message.Text("x")), end(0, message.Text("x"))},
		"anything after finish":  {finish(llm.FinishStop), text(0, "x")},
		"second finish":          {finish(llm.FinishStop), finish(llm.FinishStop)},
		"usage after the finish": {finish(llm.FinishStop), usage(message.Usage{})},
	}
	for name, chunks := range tests {
		t.Run(name, func(t *testing.T) {
			var a llm.Assembler
			for i, c := range chunks {
				err := a.Add(c)
				if last := i == len(chunks)-1; (err != nil) != last {
					t.Fatalf("Add %d: %v", i, err)
				} else if last && llm.CodeOf(err) != llm.CodeMalformedResponse {
					t.Errorf("code = %q", llm.CodeOf(err))
				}
			}
		})
	}
}

func TestAssemblerSmallAnswerAllocations(t *testing.T) {
	chunks := []llm.Chunk{start(0, message.BlockText), text(0, "hello"), end(0, message.Text("hello")), finish(llm.FinishStop)}
	got := testing.AllocsPerRun(100, func() {
		var a llm.Assembler
		for _, c := range chunks {
			_ = a.Add(c)
		}
		if len(a.Blocks()) != 1 || a.Text() != "hello" || a.Finish().Kind != llm.FinishStop {
			t.Error("wrong answer")
		}
	})
	if got > 3 {
		t.Errorf("a one-delta answer costs %v allocations, want at most 3", got)
	}
}

// A stream of ten times the deltas must not cost a hundred times the work: the
// allocations grow with the logarithm of the size and the bytes with the size.
func TestAssemblerIsLinear(t *testing.T) {
	piece := strings.Repeat("x", 500)
	run := func(n int) float64 {
		return testing.AllocsPerRun(1, func() {
			var a llm.Assembler
			for i := range n {
				_ = a.Add(text(i%2, piece))
			}
			if got := len(a.Text()); got != n*len(piece) {
				t.Errorf("%d bytes of text, want %d", got, n*len(piece))
			}
		})
	}
	if small, large := run(1_000), run(10_000); large > small+60 {
		t.Errorf("%v allocations for 1,000 deltas, %v for 10,000", small, large)
	}
}

func BenchmarkAssembler(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		piece := strings.Repeat("x", 512)
		b.Run(fmt.Sprintf("deltas=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(n * len(piece)))
			for b.Loop() {
				var a llm.Assembler
				for range n {
					_ = a.Add(text(0, piece))
				}
				_ = a.Add(finish(llm.FinishStop))
				_ = a.Blocks()
			}
		})
	}
}

// FuzzAssembler feeds arbitrary chunk sequences. The assembler must not panic, its
// replay entries stay aligned (M8), and what Grammar calls legal it never refuses.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x00\x04\x00\x06\x00"))
	f.Add([]byte("\x01\x02\x02\x01\x03\x00\x05\x00\x06\x02\x01\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a llm.Assembler
		var g llm.Grammar
		types := []message.BlockType{message.BlockText, message.BlockReasoning, message.BlockToolCall, "foreign", ""}
		kinds := []llm.FinishKind{llm.FinishStop, llm.FinishToolCalls, llm.FinishMaxTokens, llm.FinishRefusal, llm.FinishError}
		var streamed strings.Builder
		for i := 0; i+1 < len(data); i += 2 {
			op, arg := data[i], data[i+1]
			index, word := int(arg%8)-1, fmt.Sprint(i)
			var c llm.Chunk
			switch op % 8 {
			case 0:
				c = start(index, types[arg%5])
			case 1:
				c = text(index, word)
			case 2:
				c = reason(index, word)
			case 3:
				c = call(index, word, "n", word)
			case 4:
				c = end(index, message.Block{Type: types[arg/8%5], Text: word})
			case 5:
				c = usage(message.Usage{InputTokens: int64(arg)})
			case 6:
				c = finish(kinds[arg%5], make([]string, arg/8)...)
				if c.Finish.Kind == llm.FinishError {
					c.Finish.Failure = &message.Failure{Code: llm.CodeServer}
				}
			default:
				c = llm.Chunk{Kind: llm.ChunkKind(word), Index: index}
			}
			before := a.Text()
			legal, err := g.Add(c) == nil, a.Add(c)
			if legal && err != nil {
				t.Fatalf("legal chunk %+v refused: %v", c, err)
			}
			if after := a.Text(); after != before {
				streamed.WriteString(word)
			}
		}
		if got := a.Text(); got != streamed.String() {
			t.Errorf("Text = %q, want %q", got, streamed.String())
		}
		blocks, fin := a.Blocks(), a.Finish()
		if fin.Replay != nil && fin.Replay.Blocks != nil && len(fin.Replay.Blocks) != len(blocks) {
			t.Errorf("%d replay entries for %d blocks", len(fin.Replay.Blocks), len(blocks))
		}
		for _, b := range blocks {
			if fin.Kind == llm.FinishMaxTokens && b.Type == message.BlockToolCall {
				t.Errorf("tool call %+v of a cut answer", b)
			}
		}
		for _, b := range a.Interrupted() {
			if strings.TrimSpace(b.Text) == "" || (b.Type != message.BlockText && b.Type != message.BlockReasoning) {
				t.Errorf("interrupted block %+v", b)
			}
		}
	})
}

// An answer without end is a fault of its endpoint and costs no more memory than
// the bound; one that is just as long as may be is an answer.
func TestAssemblerBoundsAnAnswer(t *testing.T) {
	piece := strings.Repeat("x", 1<<20)
	var a llm.Assembler
	for i := range llm.MaxAnswer >> 20 {
		chunk := text(0, piece)
		if i%2 == 1 {
			chunk = call(1, "c", "t", piece)
		}
		if err := a.Add(chunk); err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
	}
	if err := a.Add(reason(2, "x")); llm.CodeOf(err) != llm.CodeMalformedResponse {
		t.Errorf("one byte more: %v", err)
	}
}

// Counters that no model can mean do not cost the answer that they came with: they
// are brought into the range of the log (M5, G3).
func TestAssemblerTamesUsage(t *testing.T) {
	var a llm.Assembler
	if err := a.Add(usage(message.Usage{InputTokens: -5, OutputTokens: 1 << 62, CacheReadTokens: 7, ReasoningTokens: -1})); err != nil {
		t.Fatal(err)
	}
	got, ok := a.Usage()
	if diff := cmp.Diff(message.Usage{OutputTokens: 1<<53 - 1, CacheReadTokens: 7}, got); !ok || diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}
