package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/internal/wire"
	"github.com/offshoot-dev/offshoot/message"
)

// noOutput stands for the text of an empty tool result (core M24).
const noOutput = "(no output)"

// encodeRequest maps a request to the SDK's parameters (core M24 by analogy). The
// SDK adds "stream": true. prefix is the print of all that the answer's thinking
// will depend on.
func encodeRequest(req *llm.Request) (params *sdk.MessageNewParams, prefix string, err error) {
	m := modelNamed(req.Model)
	p := &sdk.MessageNewParams{Model: req.Model, MaxTokens: m.maxTokensFor(req), StopSequences: req.Stop}
	if err := m.setThinking(req.ReasoningEffort, p); err != nil {
		return nil, "", err
	}
	// The API refuses the field even at its default, which is 1.
	if t := req.Temperature; t != nil && *t != 1 {
		return nil, "", wire.Fail(llm.CodeInvalidRequest, fmt.Sprintf("temperature %v cannot be sent: the API has no such parameter any more", *t))
	}
	e := encoder{params: p, model: m, provider: req.Provider, print: newPrint()}
	if err := e.tools(req.Tools); err != nil {
		return nil, "", err
	}
	e.system(req.System)
	for i := range req.Messages {
		if err := e.message(&req.Messages[i]); err != nil {
			return nil, "", wire.Fail(llm.CodeInvalidRequest, fmt.Sprintf("message %d: %v", i, err))
		}
	}
	e.flush()
	e.markBoundaries()
	return p, e.print.sum(), nil
}

// encoder builds the parameters of one request.
type encoder struct {
	params   *sdk.MessageNewParams
	model    model
	provider string
	print    *fingerprint
	// results and texts are the user message in the making. The API wants the
	// results of a step together and before everything else.
	results, texts []sdk.ContentBlockParamUnion
	// boundaries are the last blocks of the user messages so far.
	boundaries []sdk.ContentBlockParamUnion
}

// tool is a tool on the wire. The SDK's own type holds the schema in a map, which
// would reorder it.
type tool struct {
	Name         string                          `json:"name"`
	Description  string                          `json:"description,omitempty"`
	InputSchema  json.RawMessage                 `json:"input_schema"`
	CacheControl *sdk.CacheControlEphemeralParam `json:"cache_control,omitempty"`
}

// tools passes the schemas as raw JSON, so that keyword order and number spelling
// survive; the SDK drops insignificant white space and spells <, > and & as
// escapes. The tools come first in what the vendor caches, so that the last of
// them ends a prefix that agents with different system prompts share.
func (e *encoder) tools(specs []llm.ToolSpec) error {
	for i, spec := range specs {
		schema := json.RawMessage(spec.Parameters)
		if len(bytes.TrimSpace(schema)) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		if !json.Valid(schema) {
			return wire.Fail(llm.CodeInvalidRequest, fmt.Sprintf("tool %q: its parameters are not JSON", spec.Name))
		}
		t := &tool{Name: spec.Name, Description: spec.Description, InputSchema: schema}
		if i == len(specs)-1 {
			mark := sdk.NewCacheControlEphemeralParam()
			t.CacheControl = &mark
		}
		raw := param.Override[sdk.ToolParam](t)
		e.params.Tools = append(e.params.Tools, sdk.ToolUnionParam{OfTool: &raw})
		e.print.add("tool", spec.Name, spec.Description, string(schema))
	}
	return nil
}

func (e *encoder) system(text string) {
	if blank(text) {
		return
	}
	e.params.System = []sdk.TextBlockParam{{Text: text, CacheControl: sdk.NewCacheControlEphemeralParam()}}
	e.print.add("system", text)
}

// blank reports whether a text block would be refused.
func blank(text string) bool { return strings.TrimSpace(text) == "" }

func (e *encoder) message(m *message.Message) error {
	if image := findImage(m.Content); image != nil {
		return fmt.Errorf("image attachment %s cannot be sent: this adapter takes text only", wire.Shorten(string(image.Raw), 80))
	}
	if m.Role == message.RoleAssistant {
		e.assistant(m)
		return nil
	}
	e.user(m)
	return nil
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

// user adds to the user message in the making. Blocks of unknown types are left
// out, and so is blank text, which the API refuses.
func (e *encoder) user(m *message.Message) {
	for i := range m.Content {
		b := &m.Content[i]
		switch b.Type {
		case message.BlockText:
			if !blank(b.Text) {
				e.texts = append(e.texts, sdk.NewTextBlock(b.Text))
			}
		case message.BlockToolResult:
			text := plainText(b.Content)
			if blank(text) {
				text = noOutput
			}
			result := sdk.NewToolResultBlock(wire.StrictID(b.ToolCallID), text, b.IsError)
			if !b.IsError {
				result.OfToolResult.IsError = param.Opt[bool]{}
			}
			e.results = append(e.results, result)
		}
	}
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

// flush adds the user message in the making, to the one before it where the answer
// between them had nothing that could be sent.
func (e *encoder) flush() {
	blocks := append(e.results, e.texts...)
	e.results, e.texts = nil, nil
	if len(blocks) == 0 {
		return
	}
	for _, b := range blocks {
		if r := b.OfToolResult; r != nil {
			e.print.add("result", r.ToolUseID, r.Content[0].OfText.Text, fmt.Sprint(r.IsError.Value))
		} else {
			e.print.add("user", b.OfText.Text)
		}
	}
	e.boundaries = append(e.boundaries, blocks[len(blocks)-1])
	if n := len(e.params.Messages); n > 0 && e.params.Messages[n-1].OfUser != nil {
		last := e.params.Messages[n-1].OfUser
		last.Content = append(last.Content, blocks...)
		return
	}
	e.params.Messages = append(e.params.Messages, sdk.NewUserMessage(blocks...))
}

// assistant replays an answer of a model; consecutive ones become one message.
// Reasoning goes out only as what the vendor signed, byte for byte.
func (e *encoder) assistant(m *message.Message) {
	e.flush()
	thoughts := e.thoughts(m)
	var blocks []sdk.ContentBlockParamUnion
	for i := range m.Content {
		b := &m.Content[i]
		switch b.Type {
		case message.BlockText:
			if !blank(b.Text) {
				blocks = append(blocks, sdk.NewTextBlock(b.Text))
				e.print.add("text", b.Text)
			}
		case message.BlockReasoning:
			if thoughts != nil && thoughts[i] != nil {
				raw := param.Override[sdk.ThinkingBlockParam](json.RawMessage(thoughts[i]))
				blocks = append(blocks, sdk.ContentBlockParamUnion{OfThinking: &raw})
				e.print.add("thinking", string(thoughts[i]))
			}
		case message.BlockToolCall:
			input := inputOf(b.Arguments)
			blocks = append(blocks, sdk.NewToolUseBlock(wire.StrictID(b.ID), input, wire.Name(b.Name)))
			e.print.add("call", b.ID, b.Name, string(input))
		}
	}
	if len(blocks) == 0 {
		return
	}
	if n := len(e.params.Messages); n > 0 && e.params.Messages[n-1].OfAssistant != nil {
		last := e.params.Messages[n-1].OfAssistant
		last.Content = append(last.Content, blocks...)
		return
	}
	e.params.Messages = append(e.params.Messages, sdk.NewAssistantMessage(blocks...))
}

// inputOf returns the argument text of an earlier call as the object that the API
// requires. Blank text is an empty object, which is what it meant; other text that
// is no object is wrapped, because it would make the API refuse every later
// request.
func inputOf(args string) json.RawMessage {
	trimmed := strings.TrimSpace(args)
	if trimmed == "" {
		return json.RawMessage("{}")
	}
	if trimmed[0] == '{' && json.Valid([]byte(trimmed)) {
		return json.RawMessage(trimmed)
	}
	var wrapped bytes.Buffer
	enc := json.NewEncoder(&wrapped)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{"unparsed": args}); err != nil {
		return json.RawMessage("{}")
	}
	return bytes.TrimSpace(wrapped.Bytes())
}

// markBoundaries sets the breakpoints of the vendor's cache in the conversation,
// beside those behind the tools and the system prompt; four are allowed. The last
// block of the last user message is where this request's prefix is stored. The one
// before it is where the previous request stored its own: a growing history finds
// it there however many blocks one step added, and so does a fork, whose last user
// message is its own and whose one before is its parent's.
func (e *encoder) markBoundaries() {
	for _, b := range e.boundaries[max(0, len(e.boundaries)-2):] {
		if mark := b.GetCacheControl(); mark != nil {
			*mark = sdk.NewCacheControlEphemeralParam()
		}
	}
}
