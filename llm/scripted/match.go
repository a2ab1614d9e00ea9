package scripted

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// Matcher reports whether a conversation answers a request. It must not modify
// the request and must be safe for concurrent use.
type Matcher func(*llm.Request) bool

// Pattern is what a matcher looks for: a string that the text contains, or a
// regular expression that it matches.
type Pattern interface{ string | *regexp.Regexp }

func find[P Pattern](pattern P) func(string) bool {
	switch p := any(pattern).(type) {
	case *regexp.Regexp:
		return p.MatchString
	case string:
		return func(text string) bool { return strings.Contains(text, p) }
	default:
		return func(string) bool { return false }
	}
}

// System matches the system prompt.
func System[P Pattern](pattern P) Matcher {
	match := find(pattern)
	return func(req *llm.Request) bool { return match(req.System) }
}

// FirstPrompt matches the text of the first prompt. It is false for a request
// without one. For a forked child this is its parent's.
func FirstPrompt[P Pattern](pattern P) Matcher {
	match := find(pattern)
	return func(req *llm.Request) bool {
		for i := range req.Messages {
			if m := &req.Messages[i]; isPrompt(m) {
				return match(message.JoinText(m.Content))
			}
		}
		return false
	}
}

// LastPrompt matches the text of the last prompt. It is false for a request
// without one.
func LastPrompt[P Pattern](pattern P) Matcher {
	match := find(pattern)
	return func(req *llm.Request) bool {
		i := promptIndex(req)
		return i >= 0 && match(message.JoinText(req.Messages[i].Content))
	}
}

// AnyText matches one of the texts of the request: the system prompt and the text
// of each message, whoever wrote it, tool results among them.
func AnyText[P Pattern](pattern P) Matcher {
	match := find(pattern)
	return func(req *llm.Request) bool {
		for i := range req.Messages {
			if match(messageText(&req.Messages[i])) {
				return true
			}
		}
		return match(req.System)
	}
}

// HasTool matches requests that offer a tool of this name.
func HasTool(name string) Matcher {
	return func(req *llm.Request) bool { return toolNamed(req, name) != nil }
}

// All matches what every one of the matchers accepts.
func All(matchers ...Matcher) Matcher {
	return func(req *llm.Request) bool {
		for _, m := range matchers {
			if !m(req) {
				return false
			}
		}
		return true
	}
}

// Not matches what the matcher refuses.
func Not(m Matcher) Matcher { return func(req *llm.Request) bool { return !m(req) } }

// Position returns the number of assistant messages in the request: the place of
// the answer in its conversation.
func Position(req *llm.Request) int { return countAssistant(req.Messages) }

// Turn returns the messages after the last prompt, or all of them where there is
// none. They are the request's own.
func Turn(req *llm.Request) []message.Message { return req.Messages[promptIndex(req)+1:] }

// PromptText returns the text of the last prompt, or "".
func PromptText(req *llm.Request) string {
	i := promptIndex(req)
	if i < 0 {
		return ""
	}
	return message.JoinText(req.Messages[i].Content)
}

// Result is a tool call with what it returned.
type Result struct {
	// Call is the tool-call block.
	Call message.Block
	// Text joins the text blocks of the result. Found is false for a call that has
	// no result in the messages.
	Text    string
	IsError bool
	Found   bool
}

// Results returns the tool calls of the messages in the order in which they were
// made, each with its result.
func Results(messages []message.Message) []Result {
	var results []Result
	// open is where the calls begin that may still be answered: a call id may be
	// used again by a later answer.
	open := 0
	for i := range messages {
		m := &messages[i]
		if m.Role == message.RoleAssistant {
			open = len(results)
		}
		for j := range m.Content {
			switch b := &m.Content[j]; b.Type {
			case message.BlockToolCall:
				results = append(results, Result{Call: *b})
			case message.BlockToolResult:
				for k := open; k < len(results); k++ {
					if r := &results[k]; !r.Found && r.Call.ID == b.ToolCallID {
						r.Text, r.IsError, r.Found = message.JoinText(b.Content), b.IsError, true
						break
					}
				}
			}
		}
	}
	return results
}

// LastResults returns the results of the last answer that called tools, in the
// order of its calls.
func LastResults(req *llm.Request) []Result {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		m := &req.Messages[i]
		if m.Role != message.RoleAssistant {
			continue
		}
		for j := range m.Content {
			if m.Content[j].Type == message.BlockToolCall {
				return Results(req.Messages[i:])
			}
		}
	}
	return nil
}

func countAssistant(messages []message.Message) int {
	n := 0
	for i := range messages {
		if messages[i].Role == message.RoleAssistant {
			n++
		}
	}
	return n
}

// isPrompt reports whether a user or another agent asks something here. Messages
// built by hand often have no source and are taken as prompts, tool results not.
func isPrompt(m *message.Message) bool {
	if m.Role != message.RoleUser {
		return false
	}
	switch m.Source.Kind {
	case message.SourceUser, message.SourceCoordinator:
		return true
	case "":
		for i := range m.Content {
			if m.Content[i].Type == message.BlockToolResult {
				return false
			}
		}
		return true
	default:
		return false
	}
}

func promptIndex(req *llm.Request) int {
	for i := len(req.Messages) - 1; i >= 0; i-- {
		if isPrompt(&req.Messages[i]) {
			return i
		}
	}
	return -1
}

// messageText joins the texts of a message, those in tool results among them.
func messageText(m *message.Message) string {
	if len(m.Content) == 1 && m.Content[0].Type == message.BlockText {
		return m.Content[0].Text
	}
	var text strings.Builder
	for i := range m.Content {
		switch b := &m.Content[i]; b.Type {
		case message.BlockText:
			text.WriteString(b.Text)
		case message.BlockToolResult:
			text.WriteString(message.JoinText(b.Content))
		}
	}
	return text.String()
}

func toolNamed(req *llm.Request, name string) *llm.ToolSpec {
	for i := range req.Tools {
		if req.Tools[i].Name == name {
			return &req.Tools[i]
		}
	}
	return nil
}

// agent is how a FirstCall conversation knows its agent again.
type agent struct {
	prompt  message.ID
	session string
}

func agentOf(req *llm.Request) agent {
	who := agent{session: req.SessionID}
	for i := range req.Messages {
		if m := &req.Messages[i]; isPrompt(m) {
			who.prompt = m.ID
			break
		}
	}
	return who
}

func (a agent) same(b agent) bool {
	if a == (agent{}) || b == (agent{}) {
		return a == b
	}
	return (a.prompt != "" && a.prompt == b.prompt) || (a.session != "" && a.session == b.session)
}

// describe says what a request asks, in one bounded line.
func describe(req *llm.Request) string {
	purpose := ""
	if req.Purpose != "" {
		purpose = fmt.Sprintf(" for %s", req.Purpose)
	}
	return fmt.Sprintf("a request%s of session %q to %s:%s with %d messages, %d of them the assistant's; last prompt %q; system prompt %q",
		purpose, req.SessionID, req.Provider, req.Model, len(req.Messages), Position(req), clip(PromptText(req), 200), clip(req.System, 80))
}

// clip bounds a text to about n bytes, at a rune boundary, and marks the cut.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
