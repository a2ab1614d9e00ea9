// Package structured has an agent answer with JSON of a given schema instead of
// with text. Parse checks the schema; Attach, in an agent's setup, gives that agent
// alone a tool that takes the answer as its arguments, and the instruction to finish
// with it. It serves delegated children and roots alike and knows of no delegation.
//
// An answer counts when the log holds the call and a result that is no error: what
// the model is told and what is captured cannot differ. It concludes the turn, and
// every later call of that turn is refused. An agent that ends its turn without an
// answer is told once, in the same turn, that one is due. Floor 4.
package structured

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/tool"
)

// ToolName is what the model calls to hand in its answer.
const ToolName = "structured_output"

// Plugin is the source of the reminder, which is a message of the agent's log.
const Plugin = "structured-output"

//go:embed tool.md
var toolText string

//go:embed instruction.md
var instruction string

//go:embed reminder.md
var reminder string

// Output is the answer of one agent that was given a schema. It belongs to the turn
// that captured it: the first step of another turn opens the capture anew. Its
// methods may be called from any goroutine, but not from a session.Fold.
type Output struct {
	agent *agent.Agent
	with  func(func()) // guards fold
	fold  fold
}

// fold follows the log of the agent. The log's lock guards it.
type fold struct {
	turn  int64 // the turn that the rest belongs to
	call  int64 // the seq of the newest call of the tool
	args  string
	value []byte

	said     string // the newest text
	before   string // what said was when it was reminded
	reminded bool
	reminder message.ID // "" while there was none
	err      error      // what went wrong besides
}

// Attach makes a answer in the form of s. It belongs in the agent's setup, before
// anybody can see the agent (core L41); what it registers goes with the agent. It
// fails if the agent's own scopes have a tool or a section of that name, or are
// closed.
func Attach(a *agent.Agent, s *Schema) (*Output, error) {
	o := &Output{agent: a, fold: fold{call: -1}}
	if _, err := a.Tools().RegisterCompiled(s.tool); err != nil {
		return nil, err
	}
	if _, err := a.Prompts().Add(prompt.Section{
		Name: prompt.SectionStructuredOutput, Order: prompt.OrderStructuredOutput, Text: strings.TrimSpace(instruction), Literal: true,
	}); err != nil {
		return nil, err
	}
	a.Tools().AddPreExecute(o.guard)
	o.with, _ = a.Session().Watch(&o.fold)
	a.AddHooks(agent.Hooks{TurnStopping: o.stopping})
	return o, nil
}

// Apply implements session.Fold. Calls of the tool overlap no other call, so the
// newest one is the only one that can still succeed (seam SO-09, SO-12).
func (f *fold) Apply(e *session.Event) {
	switch p := e.Payload().(type) {
	case *session.StepStart:
		if p.Turn != f.turn {
			*f = fold{turn: p.Turn, call: -1}
		}
	case *session.AssistantMessage:
		if text := message.JoinText(p.Message.Content); strings.TrimSpace(text) != "" {
			f.said = text
		}
	case *session.UserMessage:
		if p.Message.Source.Details().Plugin == Plugin {
			f.before = f.said
		}
	case *session.ToolCall:
		if p.Name == ToolName {
			f.call, f.args = e.Seq, p.Arguments
		}
	case *session.ToolResult:
		if len(e.Sources()) != 1 || e.Sources()[0] != f.call || p.Message.Content[0].IsError {
			return
		}
		if strings.TrimSpace(f.args) == "" {
			f.args = "{}" // as the pipeline reads it
		}
		value, err := jsonx.Compact([]byte(f.args))
		if err != nil {
			// The pipeline lets no such arguments pass.
			f.err = fmt.Errorf("the answer cannot be read: %w", err)
			return
		}
		f.value, f.call, f.args = value, -1, ""
	}
}

// Value returns the answer as compact JSON, every key and number as the model wrote
// it, or nil if there is none. It must not be modified.
func (o *Output) Value() (value []byte) {
	o.with(func() { value = o.fold.value })
	return value
}

// Missing says why there is no answer, as an error for people; nil if there is one.
func (o *Output) Missing() error {
	var f fold
	o.with(func() { f = o.fold })
	switch {
	case f.value != nil:
		return nil
	case f.err != nil:
		return f.err
	case f.reminded:
		return fmt.Errorf("the agent ended without calling %s, also after it was told to", ToolName)
	}
	return fmt.Errorf("the agent ended without calling %s", ToolName)
}

// Instead returns what the agent said instead of handing in an answer: last, its last
// message, behind what it said before it was reminded, unless that is the same.
func (o *Output) Instead(last []message.Block) []message.Block {
	var before string
	o.with(func() { before = o.fold.before })
	if before == "" || before == message.JoinText(last) {
		return last
	}
	return append([]message.Block{message.Text(strings.TrimRight(before, "\n") + "\n\n")}, last...)
}

// Settle drops a reminder that the agent was stopped before reading, so that it
// does not wait for the next turn. The agent is idle.
func (o *Output) Settle() error {
	var id message.ID
	o.with(func() { id = o.fold.reminder })
	if id == "" {
		return nil
	}
	if err := o.agent.Discard(id); err != nil && !errors.Is(err, agent.ErrNotPending) {
		return err
	}
	return nil
}

// guard refuses every call behind an accepted answer (seam SO-15). One refusal decides,
// whatever other hooks permit (SO-16), and no person is asked first; the calls of a
// step are looked at one after another, behind what the capture alone has come to.
func (o *Output) guard(context.Context, *tool.Call) tool.Decision {
	if o.Value() == nil {
		return tool.Allow()
	}
	return tool.Deny("the answer is handed in, and nothing is run after it")
}

// stopping reminds an agent that is about to end without an answer: once, within
// the turn, and only if the end would be a success (seam SO-18, SO-19).
func (o *Output) stopping(ctx context.Context, a *agent.Agent, end session.EndKind) {
	if end != session.EndCompleted || ctx.Err() != nil {
		return
	}
	if len(a.Session().Inbox(session.NextStep)) > 0 {
		return // it does not end: something that waits makes another step
	}
	due := false
	o.with(func() {
		due = o.fold.value == nil && !o.fold.reminded
		o.fold.reminded = o.fold.reminded || due
	})
	if !due {
		return
	}
	m := message.Message{
		ID: agent.NewMessageID(), Role: message.RoleUser, Content: []message.Block{message.Text(strings.TrimSpace(reminder))},
		Source: message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: Plugin, Form: message.FormInstructions}),
	}
	o.with(func() { o.fold.reminder = m.ID })
	// Not a waking send: one that a cancel overtakes would begin another turn.
	if err := a.Inject(m); err != nil {
		err = fmt.Errorf("the agent ended without calling %s and could not be told to: %w", ToolName, err)
		o.with(func() { o.fold.err = err })
	}
}
