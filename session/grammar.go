package session

import (
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/message"
)

// grammar is the state that the rules of the log need (core S12, S13, I4–I6, I11,
// I14). It is a value: a batch is checked on a copy, which replaces the original
// when the whole batch is legal. What a slice in it holds is therefore never changed.
type grammar struct {
	head int64 // the seq that the next event must have
	// replay is set while a stored or foreign log is read: a scheduler fault of
	// another writer may have left a call without a result there (core S13).
	replay bool

	turn     int64 // the last turn that was opened
	turnOpen bool
	step     int64 // the last step of the open turn
	stepOpen bool

	// A copy that is thrown away may have appended to these; what it wrote lies behind
	// the length that counts.
	model []string // tool-call ids of the open step's assistant message
	calls []call   // calls whose dispatch was logged in the open step
	done  []string // ids that have a result in the open step
	// spilled are the ids whose result's whole text stands in the open step.
	spilled []string

	retryID      string // the announced retry that has not started yet
	retryAttempt int64
	retryStep    int64  // counters are per turn, step, provider and policy key
	retryKey     string // provider and policy key of the last retry

	compaction     string // id of the open bracket
	compactionTurn int64
	summarised     bool // in the open bracket
}

type call struct {
	id  string
	seq int64
}

// balanced reports whether no turn is open.
func (g *grammar) balanced() bool { return !g.turnOpen }

// next checks e and moves on. surf is the surface before the batch.
func (g *grammar) next(e *Event, info *typeInfo, surf *surface) (rule, msg string) {
	if e.Seq != g.head {
		return "I4", fmt.Sprintf("expected seq %d", g.head)
	}
	if rule, msg = g.checkSurface(e, info, surf); rule != "" {
		return rule, msg
	}
	if rule, msg = g.checkOrder(e); rule != "" {
		return rule, msg
	}
	g.head++
	return "", ""
}

func (g *grammar) checkOrder(e *Event) (rule, msg string) {
	switch p := e.payload.(type) {
	case *TurnStart:
		switch {
		case g.turnOpen:
			return "I4", fmt.Sprintf("turn %d is still open", g.turn)
		case p.Turn != g.turn+1:
			return "I4", fmt.Sprintf("turn %d follows turn %d", p.Turn, g.turn)
		}
		g.turn, g.turnOpen, g.step = p.Turn, true, 0
	case *TurnEnd:
		switch {
		case !g.turnOpen || p.Turn != g.turn:
			return "I4", fmt.Sprintf("turn %d is not open", p.Turn)
		case g.stepOpen:
			return "I4", fmt.Sprintf("step %d is still open", g.step)
		case g.compaction != "" && g.compactionTurn == g.turn && p.Kind != EndInterrupted:
			// A repair closes the turn and leaves the bracket, which is stale then (core S38).
			return "I14", fmt.Sprintf("compaction %s crosses the end of its turn", g.compaction)
		}
		g.turnOpen = false
	case *StepStart:
		switch {
		case !g.turnOpen || p.Turn != g.turn:
			return "I4", fmt.Sprintf("turn %d is not open", p.Turn)
		case g.stepOpen:
			return "I4", fmt.Sprintf("step %d is still open", g.step)
		case p.Step != g.step+1:
			return "I4", fmt.Sprintf("step %d follows step %d", p.Step, g.step)
		}
		g.step, g.stepOpen = p.Step, true
		g.model, g.calls, g.done, g.spilled = nil, nil, nil, nil
	case *StepEnd:
		if r, m := g.inStep(p.Turn, p.Step); r != "" {
			return "I4", m
		}
		for _, id := range g.model {
			if !g.replay && !slices.Contains(g.done, id) {
				return "S13", fmt.Sprintf("tool call %q has no result", id)
			}
		}
		g.stepOpen, g.retryID = false, ""
	case *AssistantChunk:
		return g.inStep(p.Turn, p.Step)
	case *AssistantMessage:
		return g.assistant(e, p)
	case *ToolCall:
		if r, m := g.inStep(p.Turn, p.Step); r != "" {
			return r, m
		}
		for _, c := range g.calls {
			if c.id == p.CallID {
				return "I5", fmt.Sprintf("call %q was dispatched already", p.CallID)
			}
		}
		g.calls = append(g.calls, call{p.CallID, e.Seq})
	case *ToolSpill:
		return g.spill(p)
	case *ToolResult:
		return g.result(e, p)
	case *TodoWrite, *RequestHeader, *RequestContext:
		if !g.turnOpen {
			return "I5", "no turn is open"
		}
	case *Retry, *RetryStarted:
		return g.retry(e)
	case *CompactionStart, *CompactionSummary, *CompactionEnd, *EndSeed:
		return g.bracket(e)
	}
	return "", ""
}

func (g *grammar) inStep(turn, step int64) (rule, msg string) {
	if !g.stepOpen || turn != g.turn || step != g.step {
		return "I5", fmt.Sprintf("step %d of turn %d is not open", step, turn)
	}
	return "", ""
}

func (g *grammar) assistant(e *Event, p *AssistantMessage) (rule, msg string) {
	if e.Op == OpReplace {
		return "", ""
	}
	if r, m := g.inStep(p.Turn, p.Step); r != "" {
		return r, m
	}
	var ids []string
	for i := range p.Message.Content {
		if b := &p.Message.Content[i]; b.Type == message.BlockToolCall {
			if slices.Contains(ids, b.ID) {
				return "I5", fmt.Sprintf("tool call id %q stands twice in one message", b.ID)
			}
			ids = append(ids, b.ID)
		}
	}
	g.model = append(slices.Clip(g.model), ids...)
	return "", ""
}

func (g *grammar) result(e *Event, p *ToolResult) (rule, msg string) {
	id := p.Message.Source.Details().CallID
	if e.Op == OpReplace {
		if !g.turnOpen {
			return "I5", "a tool result is replaced outside a turn"
		}
		return "", ""
	}
	if r, m := g.inStep(p.Turn, p.Step); r != "" {
		return r, m
	}
	if slices.Contains(g.done, id) {
		return "I5", fmt.Sprintf("call %q has a result already", id)
	}
	called := slices.ContainsFunc(g.calls, func(c call) bool { return c.id == id })
	if !called && (p.ErrorCode != codeNotStarted || !slices.Contains(g.model, id)) {
		return "I5", fmt.Sprintf("result for call %q that was not dispatched", id)
	}
	g.done = append(g.done, id)
	return "", ""
}

// spill checks where a ToolSpill stands.
func (g *grammar) spill(p *ToolSpill) (rule, msg string) {
	if r, m := g.inStep(p.Turn, p.Step); r != "" {
		return r, m
	}
	switch {
	case !slices.ContainsFunc(g.calls, func(c call) bool { return c.id == p.CallID }):
		return "I5", fmt.Sprintf("spill of call %q that was not dispatched", p.CallID)
	case slices.Contains(g.done, p.CallID):
		return "I5", fmt.Sprintf("spill of call %q, which has a result already", p.CallID)
	case slices.Contains(g.spilled, p.CallID):
		return "I5", fmt.Sprintf("a second spill of call %q", p.CallID)
	}
	g.spilled = append(g.spilled, p.CallID)
	return "", ""
}

func (g *grammar) retry(e *Event) (rule, msg string) {
	switch p := e.payload.(type) {
	case *Retry:
		if r, m := g.inStep(p.Turn, p.Step); r != "" {
			return "I11", m
		}
		key := fmt.Sprintf("%d\x00%s\x00%s", p.Turn, p.Provider, p.PolicyKey)
		if key == g.retryKey && p.Step == g.retryStep {
			if p.Attempt != g.retryAttempt+1 {
				return "I11", fmt.Sprintf("retry %d follows retry %d", p.Attempt, g.retryAttempt)
			}
		} else if p.Attempt != 1 {
			return "I11", fmt.Sprintf("the first retry has the number %d", p.Attempt)
		}
		g.retryID, g.retryAttempt, g.retryKey, g.retryStep = p.RetryID, p.Attempt, key, p.Step
	case *RetryStarted:
		if r, m := g.inStep(p.Turn, p.Step); r != "" {
			return "I11", m
		}
		if p.RetryID != g.retryID || p.Attempt != g.retryAttempt {
			return "I11", fmt.Sprintf("retry %q was not announced", p.RetryID)
		}
		g.retryID = ""
	}
	return "", ""
}

func (g *grammar) bracket(e *Event) (rule, msg string) {
	switch p := e.payload.(type) {
	case *CompactionStart:
		if g.compaction != "" {
			return "I14", fmt.Sprintf("compaction %s is still open", g.compaction)
		}
		if p.Turn != 0 && (!g.turnOpen || p.Turn != g.turn) {
			return "I14", fmt.Sprintf("turn %d is not open", p.Turn)
		}
		g.compaction, g.compactionTurn, g.summarised = p.CompactionID, p.Turn, false
	case *CompactionSummary:
		switch {
		case p.CompactionID == "" && g.replay: // of an earlier writer
		case g.compaction == "" || p.CompactionID != g.compaction:
			return "I14", fmt.Sprintf("compaction %s is not open", p.CompactionID)
		case g.summarised:
			return "I14", fmt.Sprintf("compaction %s has a summary already", p.CompactionID)
		}
		g.summarised = true
	case *CompactionEnd:
		switch {
		case g.compaction == "" || p.CompactionID != g.compaction:
			return "I14", fmt.Sprintf("compaction %s is not open", p.CompactionID)
		case p.Turn != g.compactionTurn && (!g.replay || p.Turn != 0):
			return "I14", fmt.Sprintf("compaction %s of turn %d ends in turn %d", p.CompactionID, g.compactionTurn, p.Turn)
		}
		g.compaction = ""
	case *EndSeed:
		// A bracket that a crash left open is stale behind this point (core S38).
		g.compaction = ""
	}
	return "", ""
}

// checkSurface checks S16–S18 (I6).
func (g *grammar) checkSurface(e *Event, info *typeInfo, surf *surface) (rule, msg string) {
	if !info.surface {
		if e.Op != OpNone || e.cites != nil {
			return "I6", "not a surface event, but it carries a surface operation or sources"
		}
		return "", ""
	}
	if e.Op == OpNone {
		return "I6", "a surface event needs a surface operation"
	}
	sources := e.Sources()
	if sources != nil && len(sources) == 0 && e.Type != TypeAssistantMessage {
		return "I6", "the list of sources is empty"
	}
	last := int64(-1)
	for i, s := range sources {
		if s < 0 || s >= e.Seq {
			return "I6", fmt.Sprintf("source %d is not earlier", s)
		}
		// They ascend, as a rule; foreign messages cite thousands of chunks.
		if s <= last && slices.Contains(sources[:i], s) {
			return "I6", fmt.Sprintf("source %d is named twice", s)
		}
		last = max(last, s)
	}
	if e.Op == OpReplace {
		return surf.checkReplace(e)
	}
	return "", ""
}

const codeNotStarted = "TOOL_NOT_STARTED"
