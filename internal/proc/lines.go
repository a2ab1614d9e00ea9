package proc

import (
	"bytes"
	"sync"
)

// Lines is a writer that keeps the last lines of what is written to it that are not
// blank, each within a bound. It may be used concurrently.
type Lines struct {
	max, width int

	mu    sync.Mutex // guards following
	ended []string   // a ring once it has max lines
	next  int        // where the ring's next line goes, which is its oldest
	rest  []byte     // of the line that has not ended, at most width
}

// NewLines returns a Lines that keeps the last max lines, and of each the first
// width bytes.
func NewLines(max, width int) *Lines { return &Lines{max: max, width: width} }

// Write takes everything and never fails.
func (l *Lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for {
		part, after, ended := bytes.Cut(b, []byte("\n"))
		l.rest = append(l.rest, part[:min(len(part), l.width-len(l.rest))]...)
		if !ended {
			return n, nil
		}
		if line, ok := l.line(); ok {
			if len(l.ended) < l.max {
				l.ended = append(l.ended, line)
			} else {
				l.ended[l.next] = line
				l.next = (l.next + 1) % l.max
			}
		}
		l.rest, b = l.rest[:0], after
	}
}

// line returns the line that is being written, if it is not blank.
func (l *Lines) line() (string, bool) {
	text := trimEnd(string(bytes.TrimSpace(l.rest)))
	return text, text != ""
}

// Lines returns what was kept, the oldest line first. One that has not ended counts.
func (l *Lines) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	out = append(append(out, l.ended[l.next:]...), l.ended[:l.next]...)
	if line, ok := l.line(); ok {
		if len(out) == l.max {
			out = out[1:]
		}
		out = append(out, line)
	}
	return out
}
