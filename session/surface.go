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
const fewMessages = 4

type node struct {
	seq int64
	typ Type
	msg *message.Message // nil for an assistant message without content, and in a log that is only checked
	res *outcome         // of a tool result in a log that is only checked
}

// outcome is what a later replacement of a tool result is checked against.
type outcome struct {
	call   string
	failed bool
}

// outcome returns it for a tool result.
func (n *node) outcome() (outcome, bool) {
	switch {
	case n.typ != TypeToolResult:
		return outcome{}, false
	case n.res != nil:
		return *n.res, true
	}
	return outcomeOf(n.msg), true
}

func outcomeOf(m *message.Message) outcome {
	return outcome{call: m.Source.CallID, failed: m.Content[0].IsError}
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
	start, end := s.position(e.Op.Start), s.position(e.Op.End)
	switch {
	case start < 0:
		return "I6", fmt.Sprintf("event %d does not stand on the surface", e.Op.Start)
	case end < 0:
		return "I6", fmt.Sprintf("event %d does not stand on the surface", e.Op.End)
	case start > end:
		return "I6", fmt.Sprintf("event %d stands behind event %d", e.Op.Start, e.Op.End)
	}
	for _, n := range s.nodes[start : end+1] {
		if !slices.Contains(e.Sources, n.seq) {
			return "I6", fmt.Sprintf("event %d is shadowed but not cited", n.seq)
		}
	}
	p, ok := e.payload.(*ToolResult)
	if !ok {
		return "", ""
	}
	if old, ok := s.nodes[start].outcome(); start != end || !ok || old != outcomeOf(&p.Message) {
		return "I6", "a tool result may only replace one tool result of the same call, changing its content alone"
	}
	return "", ""
}

// trace is apply without the messages: a node keeps only what a later
// replacement is checked against.
func (s *surface) trace(e *Event) {
	n := node{seq: e.Seq, typ: e.Type}
	switch p := e.payload.(type) {
	case *ToolResult:
		res := outcomeOf(&p.Message)
		res.call = strings.Clone(res.call) // what was read shares the memory of the whole event
		n.res = &res
	case *UserMessage, *AssistantMessage:
	default:
		return
	}
	s.place(e, n)
}

// place appends a node or puts it where it replaces others.
func (s *surface) place(e *Event, n node) {
	if e.Op.Kind == OpAppend {
		if s.nodes == nil {
			s.nodes = make([]node, 0, fewMessages)
		}
		s.nodes = append(s.nodes, n)
		return
	}
	start, end := s.position(e.Op.Start), s.position(e.Op.End)
	nodes := make([]node, 0, len(s.nodes)-(end-start))
	s.nodes = append(append(append(nodes, s.nodes[:start]...), n), s.nodes[end+1:]...)
}

// apply puts a checked surface event in its place.
func (s *surface) apply(e *Event) {
	n := node{seq: e.Seq, typ: e.Type}
	switch p := e.payload.(type) {
	case *UserMessage:
		n.msg = &p.Message
	case *AssistantMessage:
		if len(p.Message.Content) > 0 {
			n.msg = &p.Message
		}
	case *ToolResult:
		n.msg = &p.Message
	default:
		return
	}
	s.place(e, n)
	if e.Op.Kind == OpAppend {
		if n.msg != nil {
			if s.msgs == nil {
				s.msgs = make([]message.Message, 0, fewMessages)
			}
			s.msgs = append(s.msgs, *n.msg)
		}
		return
	}
	msgs := make([]message.Message, 0, len(s.nodes))
	for i := range s.nodes {
		if s.nodes[i].msg != nil {
			msgs = append(msgs, *s.nodes[i].msg)
		}
	}
	s.msgs = msgs
	s.gen++
}
