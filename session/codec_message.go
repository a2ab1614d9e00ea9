package session

import (
	"errors"
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// AppendMessage appends a message as the JSON object that the log holds.
func AppendMessage(buf []byte, m *message.Message) []byte {
	buf = jsonx.AppendStringField(append(buf, '{'), "id", string(m.ID))
	buf = jsonx.AppendStringField(buf, "role", string(m.Role))
	buf = AppendBlocks(jsonx.AppendKey(buf, "content"), m.Content)
	return append(appendSource(jsonx.AppendKey(buf, "source"), &m.Source), '}')
}

// AppendBlocks appends content blocks as a JSON array.
func AppendBlocks(buf []byte, blocks []message.Block) []byte {
	buf = append(buf, '[')
	for i := range blocks {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = appendBlock(buf, &blocks[i])
	}
	return append(buf, ']')
}

func appendBlock(buf []byte, b *message.Block) []byte {
	switch b.Type {
	case message.BlockText, message.BlockReasoning:
		buf = jsonx.AppendStringField(append(buf, '{'), "type", string(b.Type))
		buf = jsonx.AppendStringField(buf, "text", b.Text)
	case message.BlockImage:
		buf = jsonx.AppendStringField(append(buf, '{'), "type", string(b.Type))
		buf = jsonx.AppendRawField(buf, "attachment", b.Raw)
	case message.BlockToolCall:
		buf = jsonx.AppendStringField(append(buf, '{'), "type", string(b.Type))
		buf = jsonx.AppendStringField(buf, "id", b.ID)
		buf = jsonx.AppendStringField(buf, "name", b.Name)
		buf = jsonx.AppendStringField(buf, "arguments", b.Arguments)
	case message.BlockToolResult:
		buf = jsonx.AppendStringField(append(buf, '{'), "type", string(b.Type))
		buf = jsonx.AppendStringField(buf, "toolCallId", b.ToolCallID)
		buf = AppendBlocks(jsonx.AppendKey(buf, "content"), b.Content)
		if b.IsError {
			buf = jsonx.AppendTrueField(buf, "isError")
		}
	default:
		return jsonx.AppendRaw(buf, b.Raw)
	}
	return append(buf, '}')
}

func appendSource(buf []byte, s *message.Source) []byte {
	d := s.Details()
	if d.Raw != nil {
		return jsonx.AppendRaw(buf, d.Raw)
	}
	buf = jsonx.AppendStringField(append(buf, '{'), "kind", string(s.Kind))
	switch s.Kind {
	case message.SourcePlugin:
		buf = jsonx.AppendStringField(buf, "plugin", d.Plugin)
	case message.SourceTool:
		buf = jsonx.AppendStringField(buf, "callId", d.CallID)
	case message.SourceModel:
		buf = jsonx.AppendStringField(buf, "provider", d.Provider)
		buf = jsonx.AppendStringField(buf, "model", d.Model)
		if d.ReplayState != nil {
			buf = jsonx.AppendRawField(buf, "replayState", d.ReplayState)
		}
	}
	if d.Form != "" {
		buf = jsonx.AppendStringField(buf, "form", string(d.Form))
	}
	if d.SenderSessionID != "" {
		buf = jsonx.AppendStringField(buf, "senderSessionId", d.SenderSessionID)
	}
	if d.Summary != "" {
		buf = jsonx.AppendStringField(buf, "summary", d.Summary)
	}
	if d.Sections != nil {
		buf = append(jsonx.AppendKey(buf, "sections"), '[')
		for i := range d.Sections {
			if i > 0 {
				buf = append(buf, ',')
			}
			buf = jsonx.AppendStringField(append(buf, '{'), "name", d.Sections[i].Name)
			buf = append(jsonx.AppendStringField(buf, "text", d.Sections[i].Text), '}')
		}
		buf = append(buf, ']')
	}
	return append(buf, '}')
}

// DecodeMessage reads a message strictly. Raw parts alias data.
func DecodeMessage(data []byte) (message.Message, error) {
	var m message.Message
	err := jsonx.Validate(data)
	if err == nil {
		err = decodeMessage(&m, data)
	}
	if err == nil {
		err = checkMessage(&m)
	}
	return m, err
}

func decodeMessage(m *message.Message, data []byte) error {
	return fields(data, []string{"id", "role", "content", "source"}, func(key string, raw []byte) (err error) {
		switch key {
		case "id":
			return setString(&m.ID, raw)
		case "role":
			return setString(&m.Role, raw)
		case "content":
			m.Content, err = decodeBlocks(raw)
			return err
		case "source":
			return decodeSource(&m.Source, raw)
		}
		return jsonx.UnknownKey(key)
	})
}

// DecodeBlocks reads content blocks strictly; a block of a type that this build
// does not know is kept whole in its Raw field. Raw parts alias data.
func DecodeBlocks(data []byte) ([]message.Block, error) {
	if err := jsonx.Validate(data); err != nil {
		return nil, err
	}
	return decodeBlocks(data)
}

func decodeBlocks(data []byte) ([]message.Block, error) {
	blocks := []message.Block{}
	err := jsonx.WalkArray(data, func(raw []byte) error {
		b, err := decodeBlock(raw)
		if err != nil {
			return fmt.Errorf("block %d: %w", len(blocks), err)
		}
		blocks = append(blocks, b)
		return nil
	})
	return blocks, err
}

func decodeBlock(data []byte) (message.Block, error) {
	var b message.Block
	if err := typeOf(data, "type", &b.Type); err != nil {
		return b, err
	}
	var required []string
	switch b.Type {
	case message.BlockText, message.BlockReasoning:
		required = []string{"text"}
	case message.BlockImage:
		required = []string{"attachment"}
	case message.BlockToolCall:
		required = []string{"id", "name", "arguments"}
	case message.BlockToolResult:
		required = []string{"toolCallId", "content"}
	default:
		b.Raw = data
		return b, nil
	}
	return b, fields(data, required, func(key string, raw []byte) (err error) {
		switch {
		case key == "type":
			return nil
		case key == "text" && len(required) == 1:
			return setString(&b.Text, raw)
		case key == "attachment" && b.Type == message.BlockImage:
			return setRaw(&b.Raw, raw)
		case b.Type == message.BlockToolCall:
			switch key {
			case "id":
				return setString(&b.ID, raw)
			case "name":
				return setString(&b.Name, raw)
			case "arguments":
				return setString(&b.Arguments, raw)
			}
		case b.Type == message.BlockToolResult:
			switch key {
			case "toolCallId":
				return setString(&b.ToolCallID, raw)
			case "content":
				b.Content, err = decodeBlocks(raw)
				return err
			case "isError":
				return setBool(&b.IsError, raw)
			}
		}
		return jsonx.UnknownKey(key)
	})
}

// typeOf reads the discriminating string member of an object.
func typeOf[S ~string](data []byte, name string, dst *S) error {
	return fields(data, []string{name}, func(key string, raw []byte) error {
		if key == name {
			return setString(dst, raw)
		}
		return nil
	})
}

func decodeSource(s *message.Source, data []byte) error {
	if err := typeOf(data, "kind", &s.Kind); err != nil {
		return err
	}
	var required []string
	switch s.Kind {
	case message.SourceUser:
	case message.SourcePlugin:
		required = []string{"plugin"}
	case message.SourceTool:
		required = []string{"callId"}
	case message.SourceModel:
		required = []string{"provider", "model"}
	case message.SourceCoordinator, message.SourceSubagentReport, message.SourceSubagentSettled:
		required = []string{"senderSessionId"}
	default:
		*s = message.NewSource(s.Kind, message.SourceDetails{Raw: data})
		return nil
	}
	var d message.SourceDetails
	more := false
	err := fields(data, required, func(key string, raw []byte) error {
		if key == "kind" {
			return nil
		}
		more = true
		switch key {
		case "plugin":
			return setString(&d.Plugin, raw)
		case "callId":
			return setString(&d.CallID, raw)
		case "provider":
			return setString(&d.Provider, raw)
		case "model":
			return setString(&d.Model, raw)
		case "replayState":
			return setRaw(&d.ReplayState, raw)
		case "form":
			return setString(&d.Form, raw)
		case "senderSessionId":
			return setString(&d.SenderSessionID, raw)
		case "summary":
			return setString(&d.Summary, raw)
		case "sections":
			d.Sections = []message.SnapshotSection{}
			return jsonx.WalkArray(raw, func(raw []byte) error {
				var sec message.SnapshotSection
				err := fields(raw, []string{"name", "text"}, func(key string, raw []byte) error {
					switch key {
					case "name":
						return setString(&sec.Name, raw)
					case "text":
						return setString(&sec.Text, raw)
					}
					return jsonx.UnknownKey(key)
				})
				d.Sections = append(d.Sections, sec)
				return err
			})
		}
		if s.Kind == message.SourcePlugin {
			d.Raw = data // plugins add members of their own: the whole object is kept
			return nil
		}
		return jsonx.UnknownKey(key)
	})
	if err == nil && more {
		*s = message.NewSource(s.Kind, d)
	}
	return err
}

// CheckMessage refuses a message that no event may hold: one that lacks what it must have,
// or that could be written and not be read back.
func CheckMessage(m *message.Message) error { return checkMessage(m) }

// checkMessage validates what a message's Go value can get wrong.
func checkMessage(m *message.Message) error {
	if m.ID == "" {
		return errors.New("message has no id")
	}
	if m.Role != message.RoleUser && m.Role != message.RoleAssistant {
		return fmt.Errorf("message %q has role %q", m.ID, m.Role)
	}
	if m.Source.Kind == "" {
		return fmt.Errorf("message %q has no source", m.ID)
	}
	if err := checkSource(&m.Source); err != nil {
		return fmt.Errorf("source of message %q: %w", m.ID, err)
	}
	if state := m.Source.Details().ReplayState; state != nil {
		if err := jsonx.Validate(state); err != nil {
			return fmt.Errorf("replay state of message %q: %w", m.ID, err)
		}
	}
	if err := checkBlocks(m.Content); err != nil {
		return fmt.Errorf("message %q: %w", m.ID, err)
	}
	return nil
}

// checkSource refuses what could be written and not be read back.
func checkSource(s *message.Source) error {
	d := s.Details()
	if d.Raw != nil {
		return checkRawSource(s.Kind, d.Raw)
	}
	switch s.Kind {
	case message.SourceCoordinator, message.SourceSubagentReport, message.SourceSubagentSettled:
		if d.SenderSessionID == "" {
			return fmt.Errorf("kind %q without the session that sent it", s.Kind)
		}
	}
	return nil
}

func checkRawSource(kind message.SourceKind, raw []byte) error {
	if err := jsonx.ReadObject(raw, nil); err != nil {
		return err
	}
	var held message.Source
	if err := decodeSource(&held, raw); err != nil {
		return err
	}
	if held.Kind != kind {
		return fmt.Errorf("it is of kind %q, and its object says %q", kind, held.Kind)
	}
	return nil
}

func checkBlocks(blocks []message.Block) error {
	for i := range blocks {
		b := &blocks[i]
		switch b.Type {
		case message.BlockText, message.BlockReasoning:
		case message.BlockToolCall:
			if b.ID == "" || b.Name == "" {
				return fmt.Errorf("block %d: tool call without id or name", i)
			}
		case message.BlockToolResult:
			if err := checkBlocks(b.Content); err != nil {
				return err
			}
		default:
			if err := checkObject(i, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkObject checks a block whose content is an object in Raw.
func checkObject(i int, b *message.Block) error {
	if b.Type == "" {
		return fmt.Errorf("block %d has no type", i)
	}
	if err := jsonx.ReadObject(b.Raw, nil); err != nil {
		return fmt.Errorf("block %d of type %q: %w", i, b.Type, err)
	}
	if b.Type == message.BlockImage {
		return nil // Raw is its attachment
	}
	held, err := decodeBlock(b.Raw)
	if err != nil {
		return fmt.Errorf("block %d of type %q: %w", i, b.Type, err)
	}
	if held.Type != b.Type {
		return fmt.Errorf("block %d is of type %q, and its object says %q", i, b.Type, held.Type)
	}
	return nil
}
