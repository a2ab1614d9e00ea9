package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// blocks writes content in one line.
func blocks(content []message.Block) string {
	if len(content) == 0 {
		return "nothing"
	}
	parts := make([]string, len(content))
	for i := range content {
		switch b := &content[i]; b.Type {
		case message.BlockText:
			parts[i] = fmt.Sprintf("%q", b.Text)
		case message.BlockReasoning:
			parts[i] = fmt.Sprintf("(thinking %q)", b.Text)
		case message.BlockToolCall:
			parts[i] = fmt.Sprintf("(%s calls %s %s)", b.ID, b.Name, b.Arguments)
		case message.BlockToolResult:
			parts[i] = fmt.Sprintf("(%s returns %s)", b.ToolCallID, blocks(b.Content))
		default:
			parts[i] = fmt.Sprintf("(%s %s)", b.Type, b.Raw)
		}
	}
	return strings.Join(parts, " ")
}

// result writes how a run ended.
func result(res subagent.Result) string {
	s := fmt.Sprintf("%s, %s", res.StopReason, blocks(res.Output))
	if res.Output == nil {
		s = fmt.Sprintf("%s, no output at all", res.StopReason)
	}
	if res.Structured != nil {
		s += ", structured " + string(res.Structured)
	}
	if res.Diagnostic != "" {
		s += fmt.Sprintf(", diagnostic %q", res.Diagnostic)
	}
	return s
}

// failure writes an error with what a program would decide by.
func failure(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", " / ")
	var se *subagent.Error
	var depth *subagent.DepthError
	var span *subagent.DepthRangeError
	var typ *subagent.DepthTypeError
	var unknown *tool.UnknownToolsError
	var limit *agent.LimitError
	var rule *session.InvariantError
	switch {
	case errors.As(err, &se):
		return fmt.Sprintf("%s: %s", se.Code, text)
	case errors.As(err, &depth):
		return fmt.Sprintf("DepthError{%d, cap %d}: %s", depth.Depth, depth.Cap, text)
	case errors.As(err, &span):
		return "DepthRangeError: " + text
	case errors.As(err, &typ):
		return "DepthTypeError: " + text
	case errors.As(err, &unknown):
		return fmt.Sprintf("UnknownToolsError%v: %s", unknown.Names, text)
	case errors.As(err, &limit):
		return "LimitError: " + text
	case errors.As(err, &rule):
		return fmt.Sprintf("InvariantError{%s, seq %d}: %s", rule.Rule, rule.Seq, text)
	case llm.CodeOf(err) != "":
		return fmt.Sprintf("%s: %s", llm.CodeOf(err), text)
	case errors.Is(err, agent.ErrDisposed):
		return "ErrDisposed: " + text
	case errors.Is(err, context.Canceled):
		return "Canceled: " + text
	}
	return text
}

func turnEnd(p *session.TurnEnd) string {
	switch {
	case p.Kind == session.EndAborted:
		return "aborted, " + p.Cause.Error()
	case p.Failure != nil:
		return fmt.Sprintf("%s, %s: %s", p.Kind, p.Failure.Code, p.Failure.Message)
	}
	return string(p.Kind)
}

func source(s message.Source) string {
	words := []string{string(s.Kind)}
	if s.Details().Plugin != "" {
		words = append(words, s.Details().Plugin)
	}
	if s.Details().Form != "" {
		words = append(words, string(s.Details().Form))
	}
	for _, sec := range s.Details().Sections {
		words = append(words, sec.Name)
	}
	if s.Details().SenderSessionID != "" {
		words = append(words, "from "+s.Details().SenderSessionID)
	}
	return strings.Join(words, " ")
}

// said writes a message: context that no person typed by its name alone.
func said(m message.Message) string {
	if m.Source.Kind == message.SourcePlugin {
		return source(m.Source)
	}
	return source(m.Source) + " " + blocks(m.Content)
}

// event writes one event of a log: its type and what matters of it.
func event(e session.Event, p session.Payload) string {
	line := fmt.Sprintf("%3d %s", e.Seq, e.Type)
	detail := ""
	switch p := p.(type) {
	case *session.TurnStart:
		detail = fmt.Sprint(p.Turn)
	case *session.TurnEnd:
		detail = fmt.Sprintf("%d %s", p.Turn, turnEnd(p))
	case *session.StepStart:
		detail = fmt.Sprintf("%d.%d", p.Turn, p.Step)
	case *session.StepEnd:
		detail = fmt.Sprintf("%d.%d", p.Turn, p.Step)
	case *session.UserMessage:
		detail = said(p.Message)
	case *session.AssistantMessage:
		if detail = blocks(p.Message.Content); p.Interrupted {
			detail += ", interrupted"
		}
	case *session.ToolCall:
		detail = fmt.Sprintf("%s %s %s", p.CallID, p.Name, p.Arguments)
	case *session.ToolResult:
		detail = toolResult(p)
	case *session.RequestHeader:
		detail = fmt.Sprintf("%s, %s:%s, tools %s", p.Reason, p.Config.Provider, p.Config.Model, toolNames(p.Tools))
	case *session.RequestContext:
		detail = fmt.Sprintf("%s:%s", p.Provider, p.Model)
	case *session.InboxSpliced:
		detail = spliced(p)
	case *session.DescriptorEvent:
		detail = descriptor(p)
	case *session.EndSeed:
	case *session.ApprovalAsked:
		detail = fmt.Sprintf("%s %s, %s", p.CallID, p.ToolName, p.Reason)
	case *session.ApprovalDecided:
		detail = p.Outcome
	case *session.ApprovalPolicy:
		detail = delegated(p.Policy, p.Delegated)
	case *session.SandboxMode:
		detail = delegated(p.Mode, p.Delegated)
	default:
		detail = string(e.Data())
	}
	return strings.TrimRight(line+" "+detail, " ")
}

func delegated(value string, by bool) string {
	if by {
		return value + ", delegated"
	}
	return value
}

func toolResult(p *session.ToolResult) string {
	b := p.Message.Content[0]
	s := fmt.Sprintf("%s %s", b.ToolCallID, strings.ReplaceAll(blocks(b.Content), `\n`, " / "))
	if b.IsError {
		s += fmt.Sprintf(", error %s", p.ErrorCode)
	}
	if p.Meta != nil {
		s += fmt.Sprintf(", meta %s", p.Meta)
	}
	return s
}

func toolNames(tools []session.ToolSpec) string {
	names := make([]string, len(tools))
	for i := range tools {
		names[i] = tools[i].Name
	}
	return list(names)
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func spliced(p *session.InboxSpliced) string {
	var parts []string
	for _, m := range p.Inserted {
		part := "+ " + said(m)
		if p.NoWake {
			part += ", waking nobody"
		}
		parts = append(parts, part)
	}
	switch {
	case p.Removed > 0 && p.Canceled:
		parts = append(parts, fmt.Sprintf("- %d cancelled", p.Removed))
	case p.Removed > 0:
		parts = append(parts, fmt.Sprintf("- %d claimed", p.Removed))
	}
	return fmt.Sprintf("%s %s", p.Target, strings.Join(parts, ", "))
}

func descriptor(p *session.DescriptorEvent) string {
	if p.Err != nil {
		return fmt.Sprintf("unreadable: %v", p.Err)
	}
	return string(p.Descriptor.AppendJSON(nil))
}
