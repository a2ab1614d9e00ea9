package session

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// fields walks the object data, which was validated as JSON by whoever got it from
// outside, once for all levels. Every required key must be there, and set must
// know every key that is.
func fields(data []byte, required []string, set func(key string, raw []byte) error) error {
	var seen uint32
	err := jsonx.WalkObject(data, func(key string, raw []byte) error {
		for i, r := range required {
			if r == key {
				seen |= 1 << i
			}
		}
		if err := set(key, raw); err != nil {
			return fmt.Errorf("field %q: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, r := range required {
		if seen&(1<<i) == 0 {
			return fmt.Errorf("field %q is missing", r)
		}
	}
	return nil
}

func setInt(dst *int64, raw []byte) (err error) {
	*dst, err = jsonx.Natural(raw)
	return err
}

// setMillis reads a length of time, which other writers compute and do not round.
func setMillis(dst *int64, raw []byte) error {
	n, err := jsonx.Natural(raw)
	if err != nil {
		f, ferr := strconv.ParseFloat(string(raw), 64)
		if ferr != nil || f < 0 || f > jsonx.MaxSafe {
			return err
		}
		n = int64(math.Round(f))
	}
	*dst = n
	return nil
}

// checkNatural refuses what setInt would not read back.
func checkNatural(name string, n int64) error {
	if n < 0 || n > jsonx.MaxSafe {
		return fmt.Errorf("%s %d is out of range", name, n)
	}
	return nil
}

func setString[S ~string](dst *S, raw []byte) error {
	s, err := jsonx.WalkString(raw)
	*dst = S(s)
	return err
}

func setBool(dst *bool, raw []byte) (err error) {
	*dst, err = jsonx.Bool(raw)
	return err
}

// setTrue reads a marker that is either absent or true.
func setTrue(dst *bool, raw []byte) error {
	if err := setBool(dst, raw); err != nil {
		return err
	}
	if !*dst {
		return errors.New("may only be true")
	}
	return nil
}

func setRaw(dst *[]byte, raw []byte) error {
	*dst = raw
	return nil
}

func setStrings(dst *[]string, raw []byte) error {
	*dst = []string{}
	return jsonx.WalkArray(raw, func(raw []byte) error {
		s, err := jsonx.WalkString(raw)
		*dst = append(*dst, s)
		return err
	})
}

func setFloat(dst **float64, raw []byte) error {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return fmt.Errorf("expected a number, not %s", raw)
	}
	*dst = &f
	return nil
}

func appendStrings(buf []byte, list []string) []byte {
	buf = append(buf, '[')
	for i, s := range list {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = jsonx.AppendString(buf, s)
	}
	return append(buf, ']')
}

// --- turns and steps ---

// EventType implements Payload.
func (p *TurnStart) EventType() Type { return TypeTurnStart }
func (p *TurnStart) appendJSON(buf []byte) []byte {
	return append(jsonx.AppendIntField(append(buf, '{'), "turn", p.Turn), '}')
}

func decodeTurnStart(data []byte) (*TurnStart, error) {
	p := &TurnStart{}
	return p, fields(data, []string{"turn"}, func(key string, raw []byte) error {
		if key == "turn" {
			return setInt(&p.Turn, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

func appendStep(buf []byte, turn, step int64) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "turn", turn)
	return jsonx.AppendIntField(buf, "step", step)
}

func checkStep(turn, step int64) error {
	if err := checkNatural("turn", turn); err != nil {
		return err
	}
	return checkNatural("step", step)
}

func stepKey(key string, raw []byte, turn, step *int64) error {
	switch key {
	case "turn":
		return setInt(turn, raw)
	case "step":
		return setInt(step, raw)
	}
	return jsonx.UnknownKey(key)
}

// EventType implements Payload.
func (p *StepStart) EventType() Type { return TypeStepStart }
func (p *StepStart) appendJSON(buf []byte) []byte {
	return append(appendStep(buf, p.Turn, p.Step), '}')
}

func decodeStepStart(data []byte) (*StepStart, error) {
	p := &StepStart{}
	return p, fields(data, []string{"turn", "step"}, func(key string, raw []byte) error {
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
}

// EventType implements Payload.
func (p *StepEnd) EventType() Type { return TypeStepEnd }
func (p *StepEnd) appendJSON(buf []byte) []byte {
	return append(appendStep(buf, p.Turn, p.Step), '}')
}

func decodeStepEnd(data []byte) (*StepEnd, error) {
	p := &StepEnd{}
	return p, fields(data, []string{"turn", "step"}, func(key string, raw []byte) error {
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
}

// EventType implements Payload.
func (p *TurnEnd) EventType() Type { return TypeTurnEnd }
func (p *TurnEnd) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "turn", p.Turn)
	buf = jsonx.AppendStringField(append(jsonx.AppendKey(buf, "reason"), '{'), "kind", string(p.Kind))
	if p.Kind == EndAborted {
		buf = jsonx.AppendStringField(append(jsonx.AppendKey(buf, "reason"), '{'), "kind", string(p.Cause.Kind))
		if p.Cause.Kind == CauseHook {
			buf = jsonx.AppendStringField(buf, "reason", p.Cause.Reason)
		}
		buf = append(buf, '}')
	}
	if p.Failure != nil {
		buf = appendFailure(jsonx.AppendKey(buf, "error"), p.Failure)
	}
	return append(buf, '}', '}')
}

func (p *TurnEnd) check() error { return checkFailure(p.Failure) }

func decodeTurnEnd(data []byte) (*TurnEnd, error) {
	p := &TurnEnd{}
	return p, fields(data, []string{"turn", "reason"}, func(key string, raw []byte) error {
		switch key {
		case "turn":
			return setInt(&p.Turn, raw)
		case "reason":
			return fields(raw, []string{"kind"}, func(key string, raw []byte) error {
				switch key {
				case "kind":
					return setString(&p.Kind, raw)
				case "error":
					p.Failure = &message.Failure{}
					return decodeFailure(p.Failure, raw)
				case "reason":
					return fields(raw, []string{"kind"}, func(key string, raw []byte) error {
						switch key {
						case "kind":
							return setString(&p.Cause.Kind, raw)
						case "reason":
							return setString(&p.Cause.Reason, raw)
						}
						return jsonx.UnknownKey(key)
					})
				}
				return jsonx.UnknownKey(key)
			})
		}
		return jsonx.UnknownKey(key)
	})
}

func appendFailure(buf []byte, f *message.Failure) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "message", f.Message)
	buf = jsonx.AppendStringField(buf, "code", f.Code)
	if f.Status != 0 {
		buf = jsonx.AppendIntField(buf, "status", int64(f.Status))
	}
	if f.RetryAfterMS != 0 {
		buf = jsonx.AppendIntField(buf, "providerRetryAfterMs", f.RetryAfterMS)
	}
	if f.RequestID != "" {
		buf = jsonx.AppendStringField(buf, "requestId", f.RequestID)
	}
	return append(buf, '}')
}

func checkFailure(f *message.Failure) error {
	if f == nil {
		return nil
	}
	return errors.Join(checkNatural("failure status", int64(f.Status)), checkNatural("failure retry delay", f.RetryAfterMS))
}

func decodeFailure(f *message.Failure, data []byte) error {
	return fields(data, []string{"message", "code"}, func(key string, raw []byte) error {
		switch key {
		case "message":
			return setString(&f.Message, raw)
		case "code":
			return setString(&f.Code, raw)
		case "status":
			n, err := jsonx.Natural(raw)
			f.Status = int(n)
			return err
		case "providerRetryAfterMs":
			return setMillis(&f.RetryAfterMS, raw)
		case "requestId":
			return setString(&f.RequestID, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// --- messages ---

// EventType implements Payload.
func (p *UserMessage) EventType() Type              { return TypeUserMessage }
func (p *UserMessage) appendJSON(buf []byte) []byte { return AppendMessage(buf, &p.Message) }
func (p *UserMessage) check() error {
	if p.Message.Role != message.RoleUser {
		return fmt.Errorf("a user message has role %q", p.Message.Role)
	}
	return checkMessage(&p.Message)
}

func decodeUserMessage(data []byte) (*UserMessage, error) {
	p := &UserMessage{}
	if err := decodeMessage(&p.Message, data); err != nil {
		return nil, err
	}
	return p, p.check()
}

// EventType implements Payload.
func (p *AssistantChunk) EventType() Type { return TypeAssistantChunk }
func (p *AssistantChunk) appendJSON(buf []byte) []byte {
	return append(jsonx.AppendRawField(appendStep(buf, p.Turn, p.Step), "chunk", p.Chunk), '}')
}
func (p *AssistantChunk) check() error { return jsonx.ReadObject(p.Chunk, nil) }

func decodeAssistantChunk(data []byte) (*AssistantChunk, error) {
	p := &AssistantChunk{}
	return p, fields(data, []string{"turn", "step", "chunk"}, func(key string, raw []byte) error {
		if key == "chunk" {
			return setRaw(&p.Chunk, raw)
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
}

// EventType implements Payload.
func (p *AssistantMessage) EventType() Type { return TypeAssistantMessage }
func (p *AssistantMessage) appendJSON(buf []byte) []byte {
	buf = appendStep(buf, p.Turn, p.Step)
	buf = AppendMessage(jsonx.AppendKey(buf, "message"), &p.Message)
	if p.Usage != nil {
		buf = appendUsage(jsonx.AppendKey(buf, "usage"), p.Usage)
	}
	if p.Interrupted {
		buf = jsonx.AppendTrueField(buf, "interrupted")
	}
	return append(buf, '}')
}

func (p *AssistantMessage) check() error {
	if p.Message.Role != message.RoleAssistant || p.Message.Source.Kind != message.SourceModel {
		return fmt.Errorf("an assistant message has role %q and source %q", p.Message.Role, p.Message.Source.Kind)
	}
	if err := checkStep(p.Turn, p.Step); err != nil {
		return err
	}
	if err := checkUsage(p.Usage); err != nil {
		return err
	}
	return checkMessage(&p.Message)
}

// checkUsage checks what vendors report: not all of them can count.
func checkUsage(u *message.Usage) error {
	if u == nil {
		return nil
	}
	for _, n := range [...]int64{u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.ReasoningTokens} {
		if err := checkNatural("token count", n); err != nil {
			return err
		}
	}
	return nil
}

func decodeAssistantMessage(data []byte) (*AssistantMessage, error) {
	p := &AssistantMessage{}
	err := fields(data, []string{"turn", "step", "message"}, func(key string, raw []byte) error {
		switch key {
		case "message":
			return decodeMessage(&p.Message, raw)
		case "usage":
			p.Usage = &message.Usage{}
			return decodeUsage(p.Usage, raw)
		case "interrupted":
			return setTrue(&p.Interrupted, raw)
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

func appendUsage(buf []byte, u *message.Usage) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "inputTokens", u.InputTokens)
	buf = jsonx.AppendIntField(buf, "outputTokens", u.OutputTokens)
	if u.HasCacheRead {
		buf = jsonx.AppendIntField(buf, "cacheReadTokens", u.CacheReadTokens)
	}
	if u.HasCacheWrite {
		buf = jsonx.AppendIntField(buf, "cacheWriteTokens", u.CacheWriteTokens)
	}
	if u.HasReasoning {
		buf = jsonx.AppendIntField(buf, "reasoningTokens", u.ReasoningTokens)
	}
	return append(buf, '}')
}

func decodeUsage(u *message.Usage, data []byte) error {
	return fields(data, []string{"inputTokens", "outputTokens"}, func(key string, raw []byte) error {
		switch key {
		case "inputTokens":
			return setInt(&u.InputTokens, raw)
		case "outputTokens":
			return setInt(&u.OutputTokens, raw)
		case "cacheReadTokens":
			u.HasCacheRead = true
			return setInt(&u.CacheReadTokens, raw)
		case "cacheWriteTokens":
			u.HasCacheWrite = true
			return setInt(&u.CacheWriteTokens, raw)
		case "reasoningTokens":
			u.HasReasoning = true
			return setInt(&u.ReasoningTokens, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// --- tools ---

// EventType implements Payload.
func (p *ToolCall) EventType() Type { return TypeToolCall }
func (p *ToolCall) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(appendStep(buf, p.Turn, p.Step), "callId", p.CallID)
	buf = jsonx.AppendStringField(buf, "name", p.Name)
	return append(jsonx.AppendStringField(buf, "arguments", p.Arguments), '}')
}

func decodeToolCall(data []byte) (*ToolCall, error) {
	p := &ToolCall{}
	return p, fields(data, []string{"turn", "step", "callId", "name", "arguments"}, func(key string, raw []byte) error {
		switch key {
		case "callId":
			return setString(&p.CallID, raw)
		case "name":
			return setString(&p.Name, raw)
		case "arguments":
			return setString(&p.Arguments, raw)
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
}

// EventType implements Payload.
func (p *ToolResult) EventType() Type { return TypeToolResult }
func (p *ToolResult) appendJSON(buf []byte) []byte {
	buf = AppendMessage(jsonx.AppendKey(appendStep(buf, p.Turn, p.Step), "message"), &p.Message)
	if p.ErrorCode != "" || p.ErrorName != "" {
		buf = jsonx.AppendStringField(append(jsonx.AppendKey(buf, "error"), '{'), "name", p.ErrorName)
		buf = append(jsonx.AppendStringField(buf, "code", p.ErrorCode), '}')
	}
	if p.Meta != nil {
		buf = jsonx.AppendRawField(buf, "meta", p.Meta)
	}
	return append(buf, '}')
}

func (p *ToolResult) check() error {
	m := &p.Message
	if m.Role != message.RoleUser || m.Source.Kind != message.SourceTool {
		return fmt.Errorf("a tool result has role %q and source %q", m.Role, m.Source.Kind)
	}
	if err := checkStep(p.Turn, p.Step); err != nil {
		return err
	}
	if len(m.Content) != 1 || m.Content[0].Type != message.BlockToolResult {
		return errors.New("a tool result needs exactly one tool-result block")
	}
	if call := m.Source.Details().CallID; m.Content[0].ToolCallID != call {
		return fmt.Errorf("a tool result for call %q cites call %q", m.Content[0].ToolCallID, call)
	}
	if p.Meta != nil {
		if err := jsonx.Validate(p.Meta); err != nil {
			return fmt.Errorf("meta: %w", err)
		}
	}
	return checkMessage(m)
}

func decodeToolResult(data []byte) (*ToolResult, error) {
	p := &ToolResult{}
	err := fields(data, []string{"turn", "step", "message"}, func(key string, raw []byte) error {
		switch key {
		case "message":
			return decodeMessage(&p.Message, raw)
		case "meta":
			return setRaw(&p.Meta, raw)
		case "error":
			return fields(raw, []string{"name", "code"}, func(key string, raw []byte) error {
				switch key {
				case "name":
					return setString(&p.ErrorName, raw)
				case "code":
					return setString(&p.ErrorCode, raw)
				}
				return jsonx.UnknownKey(key)
			})
		}
		return stepKey(key, raw, &p.Turn, &p.Step)
	})
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

// EventType implements Payload.
func (p *TodoWrite) EventType() Type { return TypeTodoWrite }
func (p *TodoWrite) appendJSON(buf []byte) []byte {
	buf = append(jsonx.AppendKey(append(buf, '{'), "todos"), '[')
	for i, t := range p.Todos {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = jsonx.AppendStringField(append(buf, '{'), "content", t.Content)
		buf = append(jsonx.AppendStringField(buf, "status", t.Status), '}')
	}
	return append(buf, ']', '}')
}

func (p *TodoWrite) check() error {
	for _, t := range p.Todos {
		switch t.Status {
		case "pending", "in_progress", "completed":
		default:
			return fmt.Errorf("todo status %q is unknown", t.Status)
		}
	}
	return nil
}

func decodeTodoWrite(data []byte) (*TodoWrite, error) {
	p := &TodoWrite{}
	err := fields(data, []string{"todos"}, func(key string, raw []byte) error {
		if key != "todos" {
			return jsonx.UnknownKey(key)
		}
		return jsonx.WalkArray(raw, func(raw []byte) error {
			var t Todo
			err := fields(raw, []string{"content", "status"}, func(key string, raw []byte) error {
				switch key {
				case "content":
					return setString(&t.Content, raw)
				case "status":
					return setString(&t.Status, raw)
				}
				return jsonx.UnknownKey(key)
			})
			p.Todos = append(p.Todos, t)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return p, p.check()
}

// --- requests ---

// NewRequestHeader returns a header whose encoding is done once, however many
// logs it is appended to. The arguments must not be modified afterwards. One that
// cannot be read back is refused by the log that it is appended to.
func NewRequestHeader(h RequestHeader) *RequestHeader {
	h.encoded = nil
	// As they read back, so that Equal holds between what is sent and what was logged.
	h.Tools = slices.Clone(h.Tools)
	for i := range h.Tools {
		h.Tools[i].Parameters = jsonx.AppendRaw(nil, h.Tools[i].Parameters)
	}
	data := h.appendJSON(nil)
	h.invalid = h.checkEncoded(data)
	h.encoded = data
	return &h
}

// Equal reports whether two headers prove the same request, whatever their reasons.
func (p *RequestHeader) Equal(q *RequestHeader) bool {
	if p == q {
		return true
	}
	if p == nil || q == nil || p.DefaultEffort != q.DefaultEffort || p.DefaultMaxTokens != q.DefaultMaxTokens ||
		p.System != q.System || !p.Config.Equal(&q.Config) || len(p.Tools) != len(q.Tools) {
		return false
	}
	for i := range p.Tools {
		a, b := &p.Tools[i], &q.Tools[i]
		if a.Name != b.Name || a.Description != b.Description || string(a.Parameters) != string(b.Parameters) {
			return false
		}
	}
	return true
}

// Equal reports whether two call configurations are the same.
func (c *CallConfig) Equal(d *CallConfig) bool {
	if c.Provider != d.Provider || c.Model != d.Model || c.ReasoningEffort != d.ReasoningEffort ||
		c.MaxTokens != d.MaxTokens || len(c.Stop) != len(d.Stop) || (c.Temperature == nil) != (d.Temperature == nil) {
		return false
	}
	for i := range c.Stop {
		if c.Stop[i] != d.Stop[i] {
			return false
		}
	}
	return c.Temperature == nil || *c.Temperature == *d.Temperature
}

// EventType implements Payload.
func (p *RequestHeader) EventType() Type { return TypeRequestHeader }
func (p *RequestHeader) appendJSON(buf []byte) []byte {
	if p.encoded != nil {
		return append(buf, p.encoded...)
	}
	buf = append(jsonx.AppendKey(append(buf, '{'), "header"), '{')
	buf = appendConfig(jsonx.AppendKey(buf, "config"), &p.Config)
	if p.DefaultEffort || p.DefaultMaxTokens {
		buf = append(jsonx.AppendKey(buf, "adapterDefaults"), '{')
		if p.DefaultEffort {
			buf = jsonx.AppendTrueField(buf, "reasoningEffort")
		}
		if p.DefaultMaxTokens {
			buf = jsonx.AppendTrueField(buf, "maxTokens")
		}
		buf = append(buf, '}')
	}
	if p.System != "" {
		buf = jsonx.AppendStringField(buf, "system", p.System)
	}
	if len(p.Tools) > 0 {
		buf = append(jsonx.AppendKey(buf, "tools"), '[')
		for i := range p.Tools {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = jsonx.AppendStringField(append(buf, '{'), "name", p.Tools[i].Name)
			buf = jsonx.AppendStringField(buf, "description", p.Tools[i].Description)
			buf = append(jsonx.AppendRawField(buf, "parameters", p.Tools[i].Parameters), '}')
		}
		buf = append(buf, ']')
	}
	return append(jsonx.AppendStringField(append(buf, '}'), "reason", string(p.Reason)), '}')
}

func (p *RequestHeader) check() error {
	if p.encoded == nil {
		return p.checkEncoded(p.appendJSON(nil))
	}
	return p.invalid
}

// checkEncoded checks that what the header was encoded to reads back.
func (p *RequestHeader) checkEncoded(data []byte) error {
	for i := range p.Tools {
		if err := jsonx.ReadObject(p.Tools[i].Parameters, nil); err != nil {
			return fmt.Errorf("parameters of tool %q: %w", p.Tools[i].Name, err)
		}
	}
	if err := jsonx.Validate(data); err != nil {
		return err
	}
	_, err := decodeRequestHeader(data)
	return err
}

func appendConfig(buf []byte, c *CallConfig) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "provider", c.Provider)
	buf = jsonx.AppendStringField(buf, "model", c.Model)
	if c.ReasoningEffort != "" {
		buf = jsonx.AppendStringField(buf, "reasoningEffort", c.ReasoningEffort)
	}
	if c.Temperature != nil {
		buf = strconv.AppendFloat(jsonx.AppendKey(buf, "temperature"), *c.Temperature, 'g', -1, 64)
	}
	if c.MaxTokens != 0 {
		buf = jsonx.AppendIntField(buf, "maxTokens", c.MaxTokens)
	}
	if c.Stop != nil {
		buf = appendStrings(jsonx.AppendKey(buf, "stop"), c.Stop)
	}
	return append(buf, '}')
}

func decodeConfig(c *CallConfig, data []byte) error {
	return fields(data, []string{"provider", "model"}, func(key string, raw []byte) error {
		switch key {
		case "provider":
			return setString(&c.Provider, raw)
		case "model":
			return setString(&c.Model, raw)
		case "reasoningEffort":
			return setString(&c.ReasoningEffort, raw)
		case "temperature":
			return setFloat(&c.Temperature, raw)
		case "maxTokens":
			return setInt(&c.MaxTokens, raw)
		case "stop":
			return setStrings(&c.Stop, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

func decodeRequestHeader(data []byte) (*RequestHeader, error) {
	p := &RequestHeader{}
	return p, fields(data, []string{"header", "reason"}, func(key string, raw []byte) error {
		switch key {
		case "reason":
			return setString(&p.Reason, raw)
		case "header":
			return fields(raw, []string{"config"}, func(key string, raw []byte) error {
				switch key {
				case "config":
					return decodeConfig(&p.Config, raw)
				case "adapterDefaults":
					return fields(raw, nil, func(key string, raw []byte) error {
						switch key {
						case "reasoningEffort":
							return setTrue(&p.DefaultEffort, raw)
						case "maxTokens":
							return setTrue(&p.DefaultMaxTokens, raw)
						}
						return jsonx.UnknownKey(key)
					})
				case "system":
					return setString(&p.System, raw)
				case "tools":
					return jsonx.WalkArray(raw, func(raw []byte) error { return decodeToolSpec(&p.Tools, raw) })
				}
				return jsonx.UnknownKey(key)
			})
		}
		return jsonx.UnknownKey(key)
	})
}

func decodeToolSpec(list *[]ToolSpec, data []byte) error {
	var t ToolSpec
	err := fields(data, []string{"name", "description", "parameters"}, func(key string, raw []byte) error {
		switch key {
		case "name":
			return setString(&t.Name, raw)
		case "description":
			return setString(&t.Description, raw)
		case "parameters":
			return setRaw(&t.Parameters, raw)
		}
		return jsonx.UnknownKey(key)
	})
	*list = append(*list, t)
	return err
}

// EventType implements Payload.
func (p *RequestContext) EventType() Type { return TypeRequestContext }
func (p *RequestContext) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "provider", p.Provider)
	buf = jsonx.AppendStringField(buf, "model", p.Model)
	if p.ContextWindow != 0 {
		buf = jsonx.AppendIntField(buf, "contextWindow", p.ContextWindow)
	}
	return append(buf, '}')
}

func (p *RequestContext) check() error { return checkNatural("context window", p.ContextWindow) }

func decodeRequestContext(data []byte) (*RequestContext, error) {
	p := &RequestContext{}
	return p, fields(data, []string{"provider", "model"}, func(key string, raw []byte) error {
		switch key {
		case "provider":
			return setString(&p.Provider, raw)
		case "model":
			return setString(&p.Model, raw)
		case "contextWindow":
			return setInt(&p.ContextWindow, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// EventType implements Payload.
func (p *EndSeed) EventType() Type              { return TypeEndSeed }
func (p *EndSeed) appendJSON(buf []byte) []byte { return append(buf, '{', '}') }

func decodeEndSeed(data []byte) (*EndSeed, error) {
	return &EndSeed{}, fields(data, nil, func(key string, _ []byte) error { return jsonx.UnknownKey(key) })
}

// --- inbox ---

// EventType implements Payload.
func (p *InboxSpliced) EventType() Type { return TypeInboxSpliced }
func (p *InboxSpliced) appendJSON(buf []byte) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "target", string(p.Target))
	buf = jsonx.AppendIntField(buf, "start", p.Start)
	if p.Removed != 0 {
		buf = jsonx.AppendIntField(buf, "removedCount", p.Removed)
	}
	buf = append(jsonx.AppendKey(buf, "inserted"), '[')
	for i := range p.Inserted {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = AppendMessage(buf, &p.Inserted[i])
	}
	buf = append(buf, ']')
	if p.Canceled {
		buf = jsonx.AppendStringField(buf, "outcome", "canceled")
	}
	if p.NoWake {
		buf = append(jsonx.AppendKey(buf, "wake"), "false"...)
	}
	return append(buf, '}')
}

func (p *InboxSpliced) check() error {
	if p.Target != NextTurn && p.Target != NextStep {
		return fmt.Errorf("inbox list %q is unknown", p.Target)
	}
	if err := errors.Join(checkNatural("start", p.Start), checkNatural("removed count", p.Removed)); err != nil {
		return err
	}
	for i := range p.Inserted {
		if p.Inserted[i].Role != message.RoleUser {
			return fmt.Errorf("inbox message %q has role %q", p.Inserted[i].ID, p.Inserted[i].Role)
		}
		if err := checkMessage(&p.Inserted[i]); err != nil {
			return err
		}
	}
	return nil
}

func decodeInboxSpliced(data []byte) (*InboxSpliced, error) {
	p := &InboxSpliced{}
	err := fields(data, []string{"target", "start", "inserted"}, func(key string, raw []byte) error {
		switch key {
		case "target":
			return setString(&p.Target, raw)
		case "start":
			return setInt(&p.Start, raw)
		case "removedCount":
			return setInt(&p.Removed, raw)
		case "inserted":
			return jsonx.WalkArray(raw, func(raw []byte) error {
				var m message.Message
				err := decodeMessage(&m, raw)
				p.Inserted = append(p.Inserted, m)
				return err
			})
		case "outcome":
			s, err := jsonx.WalkString(raw)
			if err == nil && s != "canceled" {
				err = fmt.Errorf("outcome %q is unknown", s)
			}
			p.Canceled = true
			return err
		case "wake":
			var wake bool
			err := setBool(&wake, raw)
			p.NoWake = !wake
			return err
		}
		return jsonx.UnknownKey(key)
	})
	if err != nil {
		return nil, err
	}
	return p, p.check()
}
