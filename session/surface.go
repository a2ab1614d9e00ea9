package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/message"
)

// surface is the ordered list of nodes that make up what a model sees (core
// S16–S19), together with the messages derived from it. Both slices only grow,
// but for a replacement, which builds new ones: a snapshot stays valid for ever.
type surface struct {
	nodes []node
	msgs  []message.Message
	gen   int64 // bumps on every replacement
}

// fewMessages is how many a one-shot child's log holds: task, context, one answer.
const fewMessages = 3

type node struct {
	seq int64
	// msg is the index of the message among msgs, -1 for an assistant message without
	// content and where a log is only checked.
	msg  int
	tool *outcome // of a tool's result
}

// outcome is what a tool's result must have in common with the one that replaces it.
type outcome struct {
	call   string
	failed bool
}

func outcomeOf(p *ToolResult) *outcome {
	// A string of a log that was read back is a part of a whole batch, which it would keep.
	return &outcome{strings.Clone(p.Message.Source.Details().CallID), p.Message.Content[0].IsError}
}

// expect makes room for the messages of a log of that many events.
func (s *surface) expect(events int64) {
	n := min(max(events/4, fewMessages), 1<<12) // of the 13 events of a turn with one tool call, 4 are messages
	s.nodes, s.msgs = make([]node, 0, n), make([]message.Message, 0, n)
}

// snapshot returns a surface that shares the nodes up to now.
func (s *surface) snapshot() surface {
	return surface{nodes: slices.Clip(s.nodes), msgs: slices.Clip(s.msgs), gen: s.gen}
}

func (s *surface) position(seq int64) int {
	// Nodes lie in seq order but where a replacement put a late one early; most
	// lookups are near the end.
	for i := len(s.nodes) - 1; i >= 0; i-- {
		if s.nodes[i].seq == seq {
			return i
		}
	}
	return -1
}

func (s *surface) checkReplace(e *Event) (rule, msg string) {
	first, last := e.Replaces()
	start, end := s.position(first), s.position(last)
	switch {
	case start < 0:
		return "I6", fmt.Sprintf("event %d does not stand on the surface", first)
	case end < 0:
		return "I6", fmt.Sprintf("event %d does not stand on the surface", last)
	case start > end:
		return "I6", fmt.Sprintf("event %d stands behind event %d", first, last)
	}
	sources := e.Sources()
	cited := func(seq int64) bool { return slices.Contains(sources, seq) }
	if slices.IsSorted(sources) { // a compaction cites thousands
		cited = func(seq int64) bool { _, ok := slices.BinarySearch(sources, seq); return ok }
	}
	for _, n := range s.nodes[start : end+1] {
		if !cited(n.seq) {
			return "I6", fmt.Sprintf("event %d is shadowed but not cited", n.seq)
		}
	}
	p, ok := e.payload.(*ToolResult)
	if !ok {
		return "", ""
	}
	old := s.nodes[start].tool
	if start != end || old == nil || old.call != p.Message.Source.Details().CallID || old.failed != p.Message.Content[0].IsError {
		return "I6", "a tool result may only replace one tool result of the same call, changing its content alone"
	}
	return "", ""
}

// trace is apply without the messages: a node keeps only what a later
// replacement is checked against.
func (s *surface) trace(e *Event) {
	n := node{seq: e.Seq, msg: -1}
	switch p := e.payload.(type) {
	case *ToolResult:
		n.tool = outcomeOf(p)
	case *UserMessage, *AssistantMessage:
	default:
		return
	}
	s.place(e, n)
}

// place appends a node or puts it where it replaces others.
func (s *surface) place(e *Event, n node) {
	if e.Op == OpAppend {
		if s.nodes == nil {
			s.nodes = make([]node, 0, fewMessages)
		}
		s.nodes = append(s.nodes, n)
		return
	}
	first, last := e.Replaces()
	start, end := s.position(first), s.position(last)
	nodes := make([]node, 0, len(s.nodes)-(end-start))
	s.nodes = append(append(append(nodes, s.nodes[:start]...), n), s.nodes[end+1:]...)
}

// apply puts a checked surface event in its place.
func (s *surface) apply(e *Event) {
	n := node{seq: e.Seq, msg: -1}
	var msg *message.Message
	switch p := e.payload.(type) {
	case *UserMessage:
		msg = &p.Message
	case *AssistantMessage:
		if len(p.Message.Content) > 0 {
			msg = &p.Message
		}
	case *ToolResult:
		n.tool, msg = outcomeOf(p), &p.Message
	default:
		return
	}
	if e.Op == OpAppend {
		if msg != nil {
			if s.msgs == nil {
				s.msgs = make([]message.Message, 0, fewMessages)
			}
			n.msg = len(s.msgs)
			s.msgs = append(s.msgs, *msg)
		}
		s.place(e, n)
		return
	}
	s.place(e, n) // makes nodes anew
	msgs := make([]message.Message, 0, len(s.nodes))
	for i := range s.nodes {
		n := &s.nodes[i]
		switch {
		case n.seq == e.Seq && msg != nil:
			msgs = append(msgs, *msg)
		case n.msg >= 0:
			msgs = append(msgs, s.msgs[n.msg])
		default:
			continue
		}
		n.msg = len(msgs) - 1
	}
	s.msgs = msgs
	s.gen++
}
