package proc

import (
	"sync"
	"unicode/utf8"
)

// Capture is a writer that keeps the head and the tail of what is written to it
// and never uses more memory than that. It may be used concurrently.
type Capture struct {
	headMax, tailMax int

	mu sync.Mutex // guards following

	head  []byte
	tail  []byte // a ring once it has tailMax bytes
	next  int    // where the ring's next byte goes, which is its oldest
	total int64
}

// NewCapture returns a Capture that keeps the first head and the last tail bytes.
func NewCapture(head, tail int) *Capture { return &Capture{headMax: head, tailMax: tail} }

// Write takes everything and never fails.
func (c *Capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	c.total += int64(n)
	if room := c.headMax - len(c.head); room > 0 {
		k := min(room, len(b))
		c.head = append(c.head, b[:k]...)
		b = b[k:]
	}
	if len(b) > c.tailMax {
		b = b[len(b)-c.tailMax:]
	}
	if room := c.tailMax - len(c.tail); room > 0 {
		k := min(room, len(b))
		c.tail = append(c.tail, b[:k]...)
		b = b[k:]
	}
	for len(b) > 0 {
		k := copy(c.tail[c.next:], b)
		c.next = (c.next + k) % c.tailMax
		b = b[k:]
	}
	return n, nil
}

// Total returns how many bytes were written.
func (c *Capture) Total() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// Text returns what was kept. If something is missing, what omitted returns for
// the number of missing bytes stands between head and tail, and both are cut
// between runes.
func (c *Capture) Text(omitted func(n int) string) string {
	c.mu.Lock()
	head := string(c.head)
	tail := string(c.tail[c.next:]) + string(c.tail[:c.next])
	total := c.total
	c.mu.Unlock()
	if int64(len(head)+len(tail)) == total {
		return head + tail
	}
	head, tail = trimEnd(head), trimStart(tail)
	return head + omitted(int(total)-len(head)-len(tail)) + tail
}

// trimEnd drops an incomplete rune at the end of s.
func trimEnd(s string) string {
	for i := len(s) - 1; i >= 0 && i >= len(s)-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			if !utf8.FullRuneInString(s[i:]) {
				return s[:i]
			}
			break
		}
	}
	return s
}

// trimStart drops the rest of a rune at the beginning of s.
func trimStart(s string) string {
	for i := 0; i < len(s) && i < utf8.UTFMax; i++ {
		if utf8.RuneStart(s[i]) {
			return s[i:]
		}
	}
	return s
}
