package compact

import (
	"strings"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// cuts reports for every index of a surface, its end included, whether it may be
// parted there: no result stands behind it whose call stands before it (core D39). A
// result belongs to the last call of its id before it. Calls without a result keep
// nothing together, nor do results without a call, as foreign logs have them.
func cuts(nodes []session.Node) []bool {
	change := make([]int, len(nodes)+1) // of the number of pairs that a cut would part
	called := map[string]int{}          // index of the last call of each id
	for i := range nodes {
		m := nodes[i].Message
		if m == nil {
			continue
		}
		for j := range m.Content {
			switch b := &m.Content[j]; b.Type {
			case message.BlockToolCall:
				called[b.ID] = i
			case message.BlockToolResult:
				if at, ok := called[b.ToolCallID]; ok {
					change[at+1]++
					change[i+1]--
				}
			}
		}
	}
	legal, parted := make([]bool, len(nodes)+1), 0
	for i := range change {
		parted += change[i]
		legal[i] = parted == 0
	}
	return legal
}

// last returns the index of the last node with a message of that role, or -1.
func last(nodes []session.Node, role message.Role) int {
	for i := len(nodes) - 1; i >= 0; i-- {
		if m := nodes[i].Message; m != nil && m.Role == role {
			return i
		}
	}
	return -1
}

// unread returns where the part begins that the model has not answered yet: behind its
// last answer, or at it if that answer's calls are what the part answers.
func unread(nodes []session.Node, legal []bool) int {
	i := last(nodes, message.RoleAssistant) + 1
	for i > 0 && !legal[i] {
		i--
	}
	return i
}

// tail returns the first index behind which everything fits into keep tokens.
func tail(nodes []session.Node, legal []bool, keep int64) int {
	at, n := len(nodes), int64(0)
	for i := len(nodes) - 1; i >= 0; i-- {
		if m := nodes[i].Message; m != nil {
			n += tokens(m)
		}
		if n > keep {
			break
		}
		if legal[i] {
			at = i
		}
	}
	return at
}

// head returns the greatest index before and up to limit which everything fits into
// most tokens; 0 if there is none.
func head(nodes []session.Node, legal []bool, limit int, most int64) (at int) {
	n := int64(0)
	for i := 0; i < limit; i++ {
		if m := nodes[i].Message; m != nil {
			n += tokens(m)
		}
		if n > most {
			break
		}
		if legal[i+1] {
			at = i + 1
		}
	}
	return at
}

// shorten returns the content of a tool's result without the middle of its text, and
// false if it is short enough. The head and the tail that stay are counted in code
// points (core D38); marker makes the line between them.
func shorten(content []message.Block, over, first, rest int, marker func(runes int) string) ([]message.Block, bool) {
	var text strings.Builder
	var others []message.Block
	for i := range content {
		if content[i].Type == message.BlockText {
			text.WriteString(content[i].Text)
		} else {
			others = append(others, content[i])
		}
	}
	s := text.String()
	if len(s) <= over { // no code point is shorter than a byte
		return nil, false
	}
	n := utf8.RuneCountInString(s)
	if n <= over {
		return nil, false
	}
	from, to := 0, len(s)
	for range first {
		_, size := utf8.DecodeRuneInString(s[from:])
		from += size
	}
	for range rest {
		_, size := utf8.DecodeLastRuneInString(s[:to])
		to -= size
	}
	return append([]message.Block{message.Text(s[:from] + marker(n-first-rest) + s[to:])}, others...), true
}
