package fakemodel

import (
	"fmt"
	"slices"
	"strings"
)

// Dialect is whose variant of the wire is imitated.
type Dialect string

// The dialects. What sets each apart on the wire:
const (
	// OpenAI: an opening delta with role and empty content, usage in a last chunk without choices and null before,
	// refusals in delta.refusal, reasoning counted and never sent.
	OpenAI Dialect = "openai"
	// DeepSeek: the opening delta has reasoning_content "" and null content; every delta carries both, one of them
	// null; usage comes with the finish reason and counts cache hits and misses; quota is 402, an unknown model 400.
	DeepSeek Dialect = "deepseek"
	// OpenRouter: comments while upstream works, role in every delta, reasoning with details, usage always and beside
	// an empty delta, numeric error codes, errors in the middle of a stream beside a finish reason "error".
	OpenRouter Dialect = "openrouter"
	// Ollama: role and content in every delta, reasoning, whole tool calls, bare usage.
	Ollama Dialect = "ollama"
	// VLLM: reasoning_content (by Options.ReasoningField reasoning, as later versions), stop_reason in every choice,
	// an error body that is a bare string for a wrong key, [DONE] after an error in the stream.
	VLLM Dialect = "vllm"
	// LlamaCpp: null content in the opening delta, reasoning_content, no usage unless a script sets it.
	LlamaCpp Dialect = "llamacpp"
)

// Dialects returns all dialects.
func Dialects() []Dialect {
	return []Dialect{OpenAI, DeepSeek, OpenRouter, Ollama, VLLM, LlamaCpp}
}

// ParseDialect returns the dialect of that name; "" is [OpenAI].
func ParseDialect(name string) (Dialect, error) {
	if name == "" {
		return OpenAI, nil
	}
	if d := Dialect(name); slices.Contains(Dialects(), d) {
		return d, nil
	}
	return "", fmt.Errorf("fakemodel: unknown dialect %q (known: %s)", name, strings.Trim(fmt.Sprint(Dialects()), "[]"))
}

func (d Dialect) contentType() string {
	switch d {
	case OpenAI, DeepSeek, VLLM, messagesWire, responsesWire:
		return "text/event-stream; charset=utf-8"
	default:
		return "text/event-stream"
	}
}

// reasoningField is the name of the reasoning delta; "" means that reasoning stays secret.
func (d Dialect) reasoningField() string {
	switch d {
	case DeepSeek, VLLM, LlamaCpp:
		return "reasoning_content"
	case OpenRouter, Ollama:
		return "reasoning"
	default:
		return ""
	}
}

func (d Dialect) openingComment() (string, bool) {
	return "OPENROUTER PROCESSING", d == OpenRouter
}

// opening is the delta before all content; nil where the dialect has none.
func (d Dialect) opening() object {
	switch d {
	case OpenAI:
		return object{{"role", "assistant"}, {"content", ""}, {"refusal", nil}}
	case DeepSeek:
		return object{{"role", "assistant"}, {"content", nil}, {"reasoning_content", ""}}
	case VLLM:
		return object{{"role", "assistant"}, {"content", ""}}
	case LlamaCpp:
		return object{{"role", "assistant"}, {"content", nil}}
	default:
		return nil
	}
}

func (d Dialect) textDelta(text string) object {
	switch d {
	case DeepSeek:
		return object{{"content", text}, {"reasoning_content", nil}}
	case OpenRouter, Ollama:
		return object{{"role", "assistant"}, {"content", text}}
	default:
		return object{{"content", text}}
	}
}

func (d Dialect) reasoningDelta(field, text string) object {
	switch d {
	case DeepSeek:
		return object{{"content", nil}, {field, text}}
	case OpenRouter:
		details := []object{{{"type", "reasoning.text"}, {"text", text}, {"format", "unknown"}, {"index", 0}}}
		return object{{"role", "assistant"}, {"content", ""}, {field, text}, {"reasoning_details", details}}
	case Ollama:
		return object{{"role", "assistant"}, {"content", ""}, {field, text}}
	default:
		return object{{field, text}}
	}
}

// refuses says whether the dialect has refusals of its own.
func (d Dialect) refuses() bool { return d == OpenAI || d == responsesWire }

func (d Dialect) refusalDelta(text string) object {
	if d.refuses() {
		return object{{"refusal", text}}
	}
	return d.textDelta(text)
}

func (d Dialect) wholeToolCalls() bool { return d == Ollama }

func (d Dialect) callOpening(index int, id, name, arguments string) object {
	call := object{
		{"index", index}, {"id", id}, {"type", "function"},
		{"function", object{{"name", name}, {"arguments", arguments}}},
	}
	return d.callDelta(call)
}

func (d Dialect) callPiece(index int, arguments string) object {
	return d.callDelta(object{{"index", index}, {"function", object{{"arguments", arguments}}}})
}

func (d Dialect) callDelta(call object) object {
	calls := member{"tool_calls", []object{call}}
	switch d {
	case OpenRouter:
		return object{{"role", "assistant"}, {"content", nil}, calls}
	case Ollama:
		return object{{"role", "assistant"}, {"content", ""}, calls}
	default:
		return object{calls}
	}
}

func (d Dialect) callIDPrefix() string {
	switch d {
	case messagesWire:
		return "toolu_"
	case VLLM:
		return "chatcmpl-tool-"
	case LlamaCpp:
		return ""
	default:
		return "call_"
	}
}

// choice wraps a delta. The finish reason is a string or nil.
func (d Dialect) choice(delta object, finish any) object {
	c := object{{"index", 0}, {"delta", delta}}
	switch d {
	case OpenAI, DeepSeek, VLLM:
		c = append(c, member{"logprobs", nil})
	case OpenRouter, Ollama, LlamaCpp:
	}
	c = append(c, member{"finish_reason", finish})
	switch d {
	case OpenRouter:
		c = append(c, member{"native_finish_reason", finish}, member{"logprobs", nil})
	case VLLM:
		if finish != nil {
			c = append(c, member{"stop_reason", nil})
		}
	case OpenAI, DeepSeek, Ollama, LlamaCpp:
	}
	return c
}

func (d Dialect) finishChoice(reason string) object {
	switch d {
	case DeepSeek:
		return d.choice(object{{"content", ""}, {"reasoning_content", nil}}, reason)
	case OpenRouter, Ollama:
		return d.choice(object{{"role", "assistant"}, {"content", ""}}, reason)
	case VLLM:
		return d.choice(object{{"content", ""}}, reason)
	default:
		return d.choice(object{}, reason)
	}
}

// envelope returns the members that every chunk of answer n begins with.
func (d Dialect) envelope(n int, model string) object {
	id := member{"id", fmt.Sprintf("chatcmpl-fake-%d", n)}
	rest := object{{"object", "chat.completion.chunk"}, {"created", created}, {"model", model}}
	switch d {
	case OpenRouter:
		id.value = fmt.Sprintf("gen-fake-%d", n)
		return append(object{id, {"provider", "Fake"}}, rest...)
	case OpenAI:
		rest = append(rest, member{"service_tier", "default"}, member{"system_fingerprint", "fp_fake"})
	case DeepSeek, LlamaCpp:
		rest = append(rest, member{"system_fingerprint", "fp_fake"})
	case Ollama:
		rest = append(rest, member{"system_fingerprint", "fp_ollama"})
	case VLLM:
	}
	return append(object{id}, rest...)
}

// nullUsage says whether chunks without usage say so.
func (d Dialect) nullUsage() bool { return d == OpenAI || d == DeepSeek }

// usageUnasked says whether usage comes without being asked for.
func (d Dialect) usageUnasked() bool { return d == OpenRouter }

// omitsUsage says whether an answer has no usage unless its script sets one.
func (d Dialect) omitsUsage() bool { return d == LlamaCpp }

// usageWithFinish says whether the chunk with the finish reason carries the usage.
func (d Dialect) usageWithFinish() bool { return d == DeepSeek }

// usageChoice is the choice beside a usage that has a chunk of its own; nil means no choice.
func (d Dialect) usageChoice() object {
	if d == OpenRouter {
		return d.choice(object{{"role", "assistant"}, {"content", ""}}, nil)
	}
	return nil
}

func (d Dialect) usage(u Usage) object {
	o := object{
		{"prompt_tokens", u.Prompt},
		{"completion_tokens", u.Completion},
		{"total_tokens", u.Prompt + u.Completion},
	}
	cached := object{{"cached_tokens", u.Cached}}
	reasoning := object{{"reasoning_tokens", u.Reasoning}}
	switch d {
	case OpenAI:
		cached = append(cached, member{"audio_tokens", 0})
		reasoning = append(reasoning, member{"audio_tokens", 0},
			member{"accepted_prediction_tokens", 0}, member{"rejected_prediction_tokens", 0})
		return append(o, member{"prompt_tokens_details", cached}, member{"completion_tokens_details", reasoning})
	case DeepSeek:
		return append(o, member{"prompt_tokens_details", cached}, member{"completion_tokens_details", reasoning},
			member{"prompt_cache_hit_tokens", u.Cached}, member{"prompt_cache_miss_tokens", u.Prompt - u.Cached})
	case OpenRouter:
		return append(o, member{"cost", 0}, member{"is_byok", false},
			member{"prompt_tokens_details", cached}, member{"completion_tokens_details", reasoning})
	case VLLM, LlamaCpp:
		if u.Cached > 0 {
			return append(o, member{"prompt_tokens_details", cached})
		}
	case Ollama:
	}
	return o
}

// errorChunk is an error in the middle of a stream.
func (d Dialect) errorChunk(envelope object, e ErrorChunk) object {
	if e.Message == "" {
		e.Message = "The upstream model stopped unexpectedly while it was answering."
	}
	if e.Type == "" {
		e.Type = "server_error"
	}
	var code any = e.Code
	switch d {
	case OpenRouter:
		if e.Code == "" {
			code = "server_error"
		}
		choice := d.choice(object{{"content", ""}}, "error")
		return append(envelope, member{"error", object{{"code", code}, {"message", e.Message}}},
			member{"choices", []object{choice}})
	case VLLM, LlamaCpp:
		if e.Code == "" {
			code = 500
		}
	default:
		if e.Code == "" {
			code = nil
		}
	}
	return object{{"error", object{{"message", e.Message}, {"type", e.Type}, {"param", nil}, {"code", code}}}}
}

// doneAfterError says whether [DONE] follows an error in the stream.
func (d Dialect) doneAfterError() bool { return d == VLLM || d == OpenRouter }
