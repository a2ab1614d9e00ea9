package fakemodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// check refuses what the real endpoints refuse, in words close to theirs: a history whose calls and results do not
// match, missing contents, tools they would not take. A harness that sends it has a log that is not legal for the
// next request.
func (s *Server) check(req Request) error {
	if req.Model == "" {
		return errors.New("you must provide a model parameter")
	}
	if len(req.Messages) == 0 {
		return errors.New("'messages' must not be empty")
	}
	if err := checkHistory(req.Messages); err != nil {
		return err
	}
	if s.opts.Dialect == DeepSeek {
		if err := s.checkThoughts(req.Messages); err != nil {
			return err
		}
	}
	if err := checkNames(req.Messages); err != nil {
		return err
	}
	return checkTools(req.Tools)
}

func checkHistory(messages []Message) error {
	var open []string // calls of the last assistant message without a result so far
	for i, m := range messages {
		if m.Role != "tool" && len(open) > 0 {
			return unanswered(open)
		}
		absent := len(m.Content) == 0 || string(m.Content) == "null"
		switch m.Role {
		case "system", "developer", "user":
			if absent {
				return fmt.Errorf("invalid value for 'messages[%d].content': expected a string or a list, got null", i)
			}
		case "assistant":
			if absent && len(m.ToolCalls) == 0 {
				return fmt.Errorf("invalid assistant message 'messages[%d]': content or tool_calls must be set", i)
			}
			for _, c := range m.ToolCalls {
				if c.ID == "" || c.Name == "" {
					return fmt.Errorf("invalid 'messages[%d].tool_calls': id and function.name must be set", i)
				}
				if slices.Contains(open, c.ID) {
					return fmt.Errorf("invalid 'messages[%d].tool_calls': the id %q occurs twice", i, c.ID)
				}
				open = append(open, c.ID)
			}
		case "tool":
			at := slices.Index(open, m.ToolCallID)
			if at < 0 {
				return fmt.Errorf("messages with role 'tool' must be a response to a preceding message with 'tool_calls': 'messages[%d]' answers %q", i, m.ToolCallID)
			}
			if absent {
				return fmt.Errorf("invalid value for 'messages[%d].content': expected a string, got null", i)
			}
			open = slices.Delete(open, at, at+1)
		default:
			return fmt.Errorf("invalid value %q for 'messages[%d].role'", m.Role, i)
		}
	}
	if len(open) > 0 {
		return unanswered(open)
	}
	return nil
}

func unanswered(ids []string) error {
	return fmt.Errorf("an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'; these had none: %s", strings.Join(ids, ", "))
}

// checkThoughts requires of DeepSeek's clients that a tool-call turn come back with exactly the reasoning that was
// streamed before it (core M24). Only calls whose ids this server made are known to it.
func (s *Server) checkThoughts(messages []Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range messages {
		for _, c := range m.ToolCalls {
			if want, ok := s.thoughts[c.ID]; ok && want != m.Reasoning {
				return fmt.Errorf("the reasoning_content of a thinking turn must be passed back: 'messages[%d]' has %.60q, sent was %.60q", i, m.Reasoning, want)
			}
		}
	}
	return nil
}

// toolName is what vendors require of a tool's name, in the list and in the history alike.
const toolName = `^[a-zA-Z0-9_-]{1,64}$`

func checkNames(messages []Message) error {
	name := regexp.MustCompile(toolName)
	for i, m := range messages {
		for j, c := range m.ToolCalls {
			if !name.MatchString(c.Name) {
				return fmt.Errorf("invalid 'messages[%d].tool_calls[%d].function.name' %q: it must match %s", i, j, c.Name, name)
			}
		}
	}
	return nil
}

func checkTools(tools []Tool) error {
	name := regexp.MustCompile(toolName)
	seen := map[string]bool{}
	for i, t := range tools {
		if !name.MatchString(t.Name) {
			return fmt.Errorf("invalid 'tools[%d].function.name' %q: it must match %s", i, t.Name, name)
		}
		if seen[t.Name] {
			return fmt.Errorf("invalid 'tools[%d].function.name': %q occurs twice", i, t.Name)
		}
		seen[t.Name] = true
		if len(t.Parameters) == 0 {
			continue
		}
		var schema struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(t.Parameters, &schema); err != nil || schema.Type != "object" {
			return fmt.Errorf("invalid schema for function %q: schema must be of type \"object\", got %q", t.Name, schema.Type)
		}
	}
	return nil
}
