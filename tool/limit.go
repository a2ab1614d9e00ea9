package tool

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/message"
)

// DefaultLimit is the bound on the model-visible text of one result in bytes.
const DefaultLimit = 64 << 10

// Bounds of the text that is kept of a result that was cut, in bytes. A log holds it
// in memory as long as its session lives, and each window that is read of it costs a
// pass over the whole: the default is about what a machine does not notice. JSON may
// take six bytes for one, and a store takes an event as one value: the most stays far
// below what the stores can take (1 GB).
const (
	DefaultSpill = 16 << 20
	MaxSpill     = 64 << 20
)

// MaxSpilled bounds what one session's log keeps of all its cut results together, in
// encoded bytes: beyond, a result is cut as ever, and the rest of it is lost, which
// the line in it says (design § 4, Bounded).
const MaxSpilled = 256 << 20

// markerRoom is what the line that stands for the omitted middle takes, or more.
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
// bytes of text. If that took text away, whole holds it.
func materialize(content []message.Block, limit int) (final []message.Block, whole *Cut) {
	out := make([]message.Block, len(content))
	total := 0
	for i, b := range content {
		if hasText(&b) {
			b.Text = strings.ToValidUTF8(b.Text, "\uFFFD")
			total += len(b.Text)
		}
		out[i] = b
	}
	if limit <= 0 || total <= limit {
		return out, nil
	}
	final, _ = cut(out, total, limit, OmittedLine)
	return final, &Cut{content: out, size: total, limit: limit}
}

func hasText(b *message.Block) bool {
	return b.Type == message.BlockText || b.Type == message.BlockReasoning
}

// Cut is what a tool gave where the model reads less. It is immutable.
type Cut struct {
	content []message.Block // valid UTF-8
	size    int             // bytes of text in it
	limit   int
}

// Size returns how many bytes of text the tool gave.
func (c *Cut) Size() int { return c.size }

// Texts returns the text of each text block, in order, at most most bytes of them
// together; 0 or less is no bound. If they are more, a line stands for what is
// missing in the middle, and lost is how many bytes that is.
func (c *Cut) Texts(most int) (texts []string, lost int) {
	content := c.content
	if most > 0 && c.size > most {
		content, lost = cut(content, c.size, most, func(n int) string {
			return fmt.Sprintf("\n[... %d bytes left out here: no more than %d bytes are kept of one result ...]\n", n, most)
		})
	}
	for i := range content {
		if hasText(&content[i]) {
			texts = append(texts, content[i].Text)
		}
	}
	return texts, lost
}

// ReadName is the name of the tool that reads what was cut (package tool/files).
const ReadName = "read"

// Content returns what the model reads when the whole text, or all but lost bytes
// of it, can be read at path with the tool read. It is as Result.Content but for
// the line between head and tail, and within the same bound.
func (c *Cut) Content(path string, lost int) []message.Block {
	// A tool may have lost some of it before (the shell does), and its word on that may
	// stand in what is cut here.
	all := "what was kept of it"
	if lost > 0 {
		all = fmt.Sprintf("all but %d bytes of it", lost)
	}
	content, _ := cut(c.content, c.size, c.limit, func(n int) string {
		return fmt.Sprintf("\n[... %d bytes left out here: the result was too long; the tool %s shows %s at the path %s ...]\n", n, ReadName, all, path)
	})
	return content
}

// cut returns content, which has total bytes of text, with at most limit of them,
// and how many are missing; line makes the line that says so. Where several text
// blocks exceed the bound together, the first ones keep their head and the last
// ones their tail. Blocks of other types stay. What it returns shares nothing with
// texts that were cut.
func cut(content []message.Block, total, limit int, line func(n int) string) (kept []message.Block, omitted int) {
	keep := max(limit-max(markerRoom, len(line(total))), 0)
	headLeft, tailFrom := keep-keep/3, total-keep/3
	kept = make([]message.Block, 0, len(content))
	pos := 0
	marked, markHead, markTail := -1, "", "" // the block that gets the line
	for _, b := range content {
		if !hasText(&b) {
			kept = append(kept, b)
			continue
		}
		text := b.Text
		head := headRunes(text, max(min(headLeft-pos, len(text)), 0))
		tail := tailRunes(text[len(head):], max(min(pos+len(text)-tailFrom, len(text)-len(head)), 0))
		pos += len(text)
		missing := len(text) - len(head) - len(tail)
		omitted += missing
		switch {
		case missing == 0:
			kept = append(kept, b)
		case marked < 0:
			marked, markHead, markTail = len(kept), head, tail
			kept = append(kept, b)
		case tail != "" || head != "":
			b.Text = strings.Clone(head + tail)
			kept = append(kept, b)
		}
	}
	if marked >= 0 {
		kept[marked].Text = markHead + line(omitted) + markTail
	}
	return kept, omitted
}
