package tool

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/message"
)

// DefaultLimit is the bound on the model-visible text of one result in bytes.
const DefaultLimit = 64 << 10

// markerRoom is what the line that stands for the omitted middle may take.
const markerRoom = 96

// Clip returns s unchanged if it has at most limit bytes, else its head and its
// tail with a line between them that says how many bytes are missing. The cuts
// lie between runes. The result has at most limit bytes, as long as limit leaves
// room for that line. A limit of 0 or less means no bound.
func Clip(s string, limit int) string {
	if limit <= 0 || len(s) <= limit {
		return s
	}
	keep := max(limit-markerRoom, 0)
	head := headRunes(s, keep-keep/3)
	tail := tailRunes(s, keep/3)
	return head + OmittedLine(len(s)-len(head)-len(tail)) + tail
}

// OmittedLine is the line that stands for n bytes left out of the middle of a text.
func OmittedLine(n int) string {
	return fmt.Sprintf("\n[... %d bytes left out here: the result was too long ...]\n", n)
}

// headRunes returns the longest prefix of s with at most n bytes that ends between runes.
func headRunes(s string, n int) string {
	if n >= len(s) {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// tailRunes returns the longest suffix of s with at most n bytes that begins between runes.
func tailRunes(s string, n int) string {
	if n >= len(s) {
		return s
	}
	i := len(s) - n
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return s[i:]
}

// materialize makes content final: never nil, valid UTF-8, and with at most limit
// bytes of text. Where several text blocks exceed the bound together, the first
// ones keep their head and the last ones their tail. Blocks of other types stay.
func materialize(content []message.Block, limit int) []message.Block {
	out := make([]message.Block, len(content))
	total := 0
	for i, b := range content {
		if b.Type == message.BlockText || b.Type == message.BlockReasoning {
			b.Text = strings.ToValidUTF8(b.Text, "\uFFFD")
			total += len(b.Text)
		}
		out[i] = b
	}
	if limit <= 0 || total <= limit {
		return out
	}
	keep := max(limit-markerRoom, 0)
	headLeft, tailFrom := keep-keep/3, total-keep/3
	kept, pos, omitted := out[:0], 0, 0
	marked, markHead, markTail := -1, "", "" // the block that gets the line
	for _, b := range out {
		if b.Type != message.BlockText && b.Type != message.BlockReasoning {
			kept = append(kept, b)
			continue
		}
		text := b.Text
		head := headRunes(text, max(min(headLeft-pos, len(text)), 0))
		tail := tailRunes(text[len(head):], max(min(pos+len(text)-tailFrom, len(text)-len(head)), 0))
		pos += len(text)
		cut := len(text) - len(head) - len(tail)
		omitted += cut
		switch {
		case cut == 0:
			kept = append(kept, b)
		case marked < 0:
			marked, markHead, markTail = len(kept), head, tail
			kept = append(kept, b)
		case tail != "" || head != "":
			b.Text = head + tail
			kept = append(kept, b)
		}
	}
	if marked >= 0 {
		kept[marked].Text = markHead + OmittedLine(omitted) + markTail
	}
	return kept
}
