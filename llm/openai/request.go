package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared/constant"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
	"github.com/offshoot-dev/offshoot/message"
)

// noOutput stands for the text of an empty tool result (core M24).
const noOutput = "(no output)"

// encodeRequest maps a request to the SDK's parameters (core M21-M24, M29). The
// SDK adds "stream": true.
func encodeRequest(d *dialect, req *llm.Request) (*openai.ChatCompletionNewParams, error) {
	p := &openai.ChatCompletionNewParams{Model: req.Model}
	if req.System != "" {
		p.Messages = append(p.Messages, openai.ChatCompletionMessageParamUnion{OfSystem: &openai.ChatCompletionSystemMessageParam{
			Content: openai.ChatCompletionSystemMessageParamContentUnion{OfString: openai.String(req.System)},
			Role:    constant.System(d.systemRole),
		}})
	}
	for i := range req.Messages {
		mapped, err := d.encodeMessage(&req.Messages[i])
		if err != nil {
			return nil, wire.Fail(llm.CodeInvalidRequest, fmt.Sprintf("message %d: %v", i, err))
		}
		p.Messages = append(p.Messages, mapped...)
	}
	for _, spec := range req.Tools {
		tool, err := encodeTool(spec)
		if err != nil {
			return nil, err
		}
		p.Tools = append(p.Tools, openai.ChatCompletionToolUnionParam{OfFunction: tool})
	}
	if d.includeUsage {
		p.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	if req.Temperature != nil {
		p.Temperature = openai.Float(*req.Temperature)
	}
	if len(req.Stop) > 0 {
		p.Stop.OfStringArray = req.Stop
	}
	if req.MaxTokens > 0 {
		if d.maxTokensOld {
			p.MaxTokens = openai.Int(req.MaxTokens)
		} else {
			p.MaxCompletionTokens = openai.Int(req.MaxTokens)
		}
	}
	extra := map[string]any{}
	d.setEffort(req.ReasoningEffort, p, extra)
	if len(extra) > 0 {
		p.SetExtraFields(extra)
	}
	return p, nil
}

// encodeTool passes the schema as raw JSON, so that keyword order and number
// spelling survive; the SDK drops insignificant white space and nothing else. The
// function is not "strict": arguments are checked by whoever runs the tool (core
// M29).
func encodeTool(spec llm.ToolSpec) (*openai.ChatCompletionFunctionToolParam, error) {
	schema := json.RawMessage(spec.Parameters)
	if len(bytes.TrimSpace(schema)) == 0 {
		schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	if !json.Valid(schema) {
		return nil, wire.Fail(llm.CodeInvalidRequest, fmt.Sprintf("tool %q: its parameters are not JSON", spec.Name))
	}
	var tool functionTool
	tool.Type = "function"
	tool.Function.Name = spec.Name
	tool.Function.Description = spec.Description
	tool.Function.Parameters = schema
	raw := param.Override[openai.ChatCompletionFunctionToolParam](&tool)
	return &raw, nil
}

// functionTool is a tool on the wire. The SDK's own type holds the schema in a
// map, which would reorder it.
type functionTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

func (d *dialect) encodeMessage(m *message.Message) ([]openai.ChatCompletionMessageParamUnion, error) {
	if image := findImage(m.Content); image != nil {
		return nil, fmt.Errorf("image attachment %s cannot be sent: this adapter takes text only", wire.Shorten(string(image.Raw), 80))
	}
	if m.Role == message.RoleAssistant {
		return d.encodeAssistant(m), nil
	}
	return encodeUser(m), nil
}

func findImage(content []message.Block) *message.Block {
	for i := range content {
		if content[i].Type == message.BlockImage {
			return &content[i]
		}
		if image := findImage(content[i].Content); image != nil {
			return image
		}
	}
	return nil
}

// encodeUser sends the text of a user message first and then each tool result as
// a message of its own (core M24). Blocks of unknown types are left out.
func encodeUser(m *message.Message) []openai.ChatCompletionMessageParamUnion {
	out := make([]openai.ChatCompletionMessageParamUnion, 0, 1)
	if text := plainText(m.Content); text != "" {
		out = append(out, openai.UserMessage(text))
	}
	for i := range m.Content {
		b := &m.Content[i]
		if b.Type != message.BlockToolResult {
			continue
		}
		text := plainText(b.Content)
		if text == "" {
			text = noOutput
		}
		out = append(out, openai.ToolMessage(text, wire.PrintableID(b.ToolCallID)))
	}
	return out
}

// plainText joins text blocks by line breaks.
func plainText(content []message.Block) string {
	var parts []string
	for i := range content {
		if content[i].Type == message.BlockText && content[i].Text != "" {
			parts = append(parts, content[i].Text)
		}
	}
	return strings.Join(parts, "\n")
}

// encodeAssistant replays an answer of a model: its text and reasoning byte for
// byte, and "" rather than null where it has no text, because a null content is
// refused and the message would be in the log for good (core M24).
func (d *dialect) encodeAssistant(m *message.Message) []openai.ChatCompletionMessageParamUnion {
	var reasoning strings.Builder
	known := false
	p := &openai.ChatCompletionAssistantMessageParam{}
	p.Content.OfString = openai.String(message.JoinText(m.Content))
	for i := range m.Content {
		b := &m.Content[i]
		switch b.Type {
		case message.BlockText:
			known = true
		case message.BlockReasoning:
			known = true
			reasoning.WriteString(b.Text)
		case message.BlockToolCall:
			known = true
			p.ToolCalls = append(p.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
					ID:       wire.PrintableID(b.ID),
					Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: wire.Name(b.Name), Arguments: d.argumentText(b.Arguments)},
				},
			})
		}
	}
	if !known {
		return nil
	}
	if d.reasoningOut != "" && reasoning.Len() > 0 {
		p.SetExtraFields(map[string]any{d.reasoningOut: reasoning.String()})
	}
	return []openai.ChatCompletionMessageParamUnion{{OfAssistant: p}}
}

// argumentText returns the argument text of an earlier call as it is sent. Blank
// text is an empty object, which is what it meant; other text that is no object is
// wrapped for the servers that would refuse every later request because of it.
func (d *dialect) argumentText(args string) string {
	trimmed := strings.TrimSpace(args)
	if trimmed == "" {
		return "{}"
	}
	if !d.strictArguments || (trimmed[0] == '{' && json.Valid([]byte(trimmed))) {
		return args
	}
	var wrapped bytes.Buffer
	enc := json.NewEncoder(&wrapped)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{"unparsed": args}); err != nil {
		return "{}"
	}
	return strings.TrimSpace(wrapped.String())
}
