package subagent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
)

// Plugin is the source of what the service says again after a summary (core M2).
const Plugin = "subagent"

// maxRestated bounds a label that is said again, in runes.
const maxRestated = 80

// Restate says which continuable children of a have not settled, for whoever sums up a's
// conversation and must not let them be forgotten; "" if there are none. Their notices and
// reports come as ever. Any agent may be asked about; it calls nobody and is quick.
func (s *Service) Restate(a *agent.Agent) string {
	type line struct{ id, label, state string }
	var lines []line
	m := s.m
	m.mu.Lock()
	for _, act := range m.entries {
		if act.parent != a.ID() || act.handle == nil {
			continue
		}
		l := line{id: string(act.id), label: act.label, state: "running"}
		if act.agent.Quiescent() {
			l.state = "idle, for subagents of its own are at work"
		}
		lines = append(lines, l)
	}
	m.mu.Unlock()
	if lines == nil {
		return ""
	}
	// Ids begin with the time.
	slices.SortFunc(lines, func(x, y line) int { return strings.Compare(x.id, y.id) })
	var b strings.Builder
	b.WriteString("Subagents that you started and that have not settled:\n")
	for _, l := range lines {
		fmt.Fprintf(&b, "- %s (%s): %s\n", l.id, oneLine(l.label, maxRestated), l.state)
	}
	if s.cfg.NoNotices {
		return strings.TrimSuffix(b.String(), "\n")
	}
	b.WriteString("You get a message when one of them settles.")
	return b.String()
}

// oneLine makes a text of one line with at most n runes.
func oneLine(text string, n int) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}
