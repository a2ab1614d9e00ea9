package openai

import (
	"encoding/json"

	"github.com/openai/openai-go/v3"

	"github.com/offshoot-dev/offshoot/llm"
)

// effortStyle says how a reasoning effort is sent.
type effortStyle int

const (
	// effortField: reasoning_effort, "off" as "none".
	effortField effortStyle = iota
	// effortThinking: thinking.type, and reasoning_effort unless off (core M22).
	effortThinking
	// effortObject: reasoning.effort, "off" as "none".
	effortObject
	// effortTemplate: reasoning_effort for models that have levels; "off" is an
	// argument of the chat template.
	effortTemplate
)

// dialect is one row of the table: all that differs between the servers.
type dialect struct {
	name        string
	baseURL     string
	keyRequired bool
	// reasoningIn are the delta fields that carry reasoning, the first non-empty
	// counts. reasoningOut is the field of an assistant message that carries it back,
	// or "" where the server takes none.
	reasoningIn  []string
	reasoningOut string
	effort       effortStyle
	// efforts are the efforts of every model of the dialect; nil means not known.
	efforts []string
	// maxTokensOld selects max_tokens over max_completion_tokens. A call without a
	// bound sends neither, which every dialect accepts.
	maxTokensOld bool
	includeUsage bool
	systemRole   string
	// strictArguments marks servers that parse the argument text of earlier tool
	// calls and refuse the whole request when it is no JSON object.
	strictArguments bool
	models          map[string]llm.ModelInfo
}

// Dialects returns the names of the known dialects.
func Dialects() []string {
	rows := dialects()
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row.name
	}
	return names
}

func dialectNamed(name string) (dialect, bool) {
	for _, row := range dialects() {
		if row.name == name {
			return row, true
		}
	}
	return dialect{}, false
}

func dialects() []dialect {
	deepseekEfforts := []string{"low", "high", "max"}
	deepseekModel := llm.ModelInfo{ContextWindow: 1_000_000, DefaultMaxTokens: 256_000, Efforts: deepseekEfforts} // core M23
	return []dialect{
		{
			name: "openai", baseURL: "https://api.openai.com/v1", keyRequired: true,
			effort: effortField, includeUsage: true, systemRole: "system",
		},
		{
			name: "deepseek", baseURL: "https://api.deepseek.com", keyRequired: true,
			reasoningIn: []string{"reasoning_content"}, reasoningOut: "reasoning_content",
			effort: effortThinking, efforts: deepseekEfforts, maxTokensOld: true, includeUsage: true, systemRole: "system",
			models: map[string]llm.ModelInfo{"deepseek-v4-flash": deepseekModel, "deepseek-v4-pro": deepseekModel},
		},
		{
			name: "openrouter", baseURL: "https://openrouter.ai/api/v1", keyRequired: true,
			reasoningIn: []string{"reasoning", "reasoning_content"}, reasoningOut: "reasoning",
			effort: effortObject, maxTokensOld: true, includeUsage: true, systemRole: "system",
		},
		{
			name: "ollama", baseURL: "http://localhost:11434/v1",
			reasoningIn: []string{"reasoning", "reasoning_content"}, reasoningOut: "reasoning",
			effort: effortField, maxTokensOld: true, includeUsage: true, systemRole: "system", strictArguments: true,
		},
		{
			name: "vllm", baseURL: "http://localhost:8000/v1",
			reasoningIn: []string{"reasoning_content", "reasoning"}, reasoningOut: "reasoning",
			effort: effortTemplate, maxTokensOld: true, includeUsage: true, systemRole: "system", strictArguments: true,
		},
		{
			name: "llamacpp", baseURL: "http://localhost:8080/v1",
			reasoningIn: []string{"reasoning_content", "reasoning"}, reasoningOut: "reasoning_content",
			effort: effortTemplate, maxTokensOld: true, includeUsage: true, systemRole: "system", strictArguments: true,
		},
	}
}

// setEffort writes a reasoning effort into the parameters; "" leaves the server's
// default. Fields that the SDK does not know go into extra.
func (d *dialect) setEffort(effort string, p *openai.ChatCompletionNewParams, extra map[string]any) {
	if effort == "" {
		return
	}
	off := effort == "off"
	level := effort
	if off {
		level = "none"
	}
	switch d.effort {
	case effortThinking:
		if off {
			extra["thinking"] = json.RawMessage(`{"type":"disabled"}`)
			return
		}
		extra["thinking"] = json.RawMessage(`{"type":"enabled"}`)
		p.ReasoningEffort = openai.ReasoningEffort(level)
	case effortObject:
		extra["reasoning"] = map[string]string{"effort": level}
	case effortTemplate:
		if off {
			extra["chat_template_kwargs"] = json.RawMessage(`{"enable_thinking":false}`)
			return
		}
		p.ReasoningEffort = openai.ReasoningEffort(level)
	default:
		p.ReasoningEffort = openai.ReasoningEffort(level)
	}
}
