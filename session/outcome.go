package session

import (
	"strings"

	"github.com/offshoot-dev/offshoot/message"
)

// Fold is a state that follows a log event by event. Apply is called in seq
// order, under the log's lock: it must be quick and must not call back.
type Fold interface {
	Apply(e *Event)
}

// Outcome folds a suffix of a log into what a delegation ends with: the turn that
// accounts for the work, whether accepted work was dropped unrun, and the output
// (core L35–L38; seam OUT, EVT-24…28). The zero value is ready to use. It is not
// safe for concurrent use by itself; Session.Watch guards it with the log's lock.
type Outcome struct {
	end     *TurnEnd // the last turn that accounts for consumed work
	dropped bool

	turnOpen bool
	stepped  bool
	claimed  bool

	output    []message.Block
	outputSeq int64
	hasOutput bool
	streamed  strings.Builder
}

// Apply implements Fold.
func (o *Outcome) Apply(e *Event) {
	switch p := e.payload.(type) {
	case *TurnStart:
		o.turnOpen, o.stepped, o.claimed = true, false, false
	case *StepStart:
		o.stepped = true
	case *InboxSpliced:
		switch {
		case p.Removed == 0:
		case p.Canceled:
			if len(p.Inserted) == 0 {
				o.dropped = true
			}
		case o.turnOpen:
			o.claimed = true
		}
	case *TurnEnd:
		o.turnOpen = false
		if o.stepped || o.claimed && p.Kind != EndCompleted {
			o.end, o.dropped = p, false
		}
	case *AssistantMessage:
		if len(p.Message.Content) > 0 && e.Op != OpReplace {
			o.output, o.outputSeq, o.hasOutput = p.Message.Content, e.Seq, true
		}
	case *AssistantChunk:
		o.streamed.WriteString(chunkText(p.Chunk))
	case *RetryStarted:
		o.streamed.Reset()
	}
}

// AddText adds streamed text that no message holds yet; ResetText forgets it when
// a new attempt begins (design § 4: the fallback lives in memory, per attempt).
func (o *Outcome) AddText(s string) { o.streamed.WriteString(s) }

// ResetText forgets the streamed text.
func (o *Outcome) ResetText() { o.streamed.Reset() }

// End returns the last turn that accounts for consumed work, or nil.
func (o *Outcome) End() *TurnEnd { return o.end }

// DroppedUnrun reports whether accepted work was cancelled unrun after that turn.
func (o *Outcome) DroppedUnrun() bool { return o.dropped }

// Output selects the final output: the content of the last assistant message
// with any block, else the streamed text as one block, else nil with ok false.
// seq is the message's, or -1. The blocks must not be modified.
func (o *Outcome) Output() (blocks []message.Block, seq int64, ok bool) {
	if o.hasOutput {
		return o.output, o.outputSeq, true
	}
	if o.streamed.Len() > 0 {
		return []message.Block{message.Text(o.streamed.String())}, -1, true
	}
	return nil, -1, false
}

// chunkText returns the text of a stored text-delta, or "".
func chunkText(chunk []byte) string {
	var kind, text string
	err := fields(chunk, nil, func(key string, raw []byte) error {
		switch key {
		case "type":
			return setString(&kind, raw)
		case "text":
			return setString(&text, raw)
		}
		return nil
	})
	if err != nil || kind != "text-delta" {
		return ""
	}
	return text
}
