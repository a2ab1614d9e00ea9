package acp

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
)

// The version of the protocol. A later one is another protocol: its answer to a prompt does
// not end the turn.
const version = 1

// The methods of the protocol that are used.
const (
	methodInitialize = "initialize"
	methodNew        = "session/new"
	methodSetMode    = "session/set_mode"
	methodSetOption  = "session/set_config_option"
	methodPrompt     = "session/prompt"
	methodCancel     = "session/cancel"
	methodUpdate     = "session/update"
	methodPermission = "session/request_permission"
)

// codeLogin is the protocol's error for an agent that has no account to work with, and
// codeParams JSON-RPC's for a request that makes no sense.
const (
	codeLogin  = -32000
	codeParams = -32602
)

type object = map[string]any

// initialized is the answer to initialize.
type initialized struct {
	about string
}

func decodeInitialized(raw json.RawMessage) (initialized, error) {
	var a struct {
		ProtocolVersion *int64          `json:"protocolVersion"`
		AgentInfo       json.RawMessage `json:"agentInfo"`
	}
	if json.Unmarshal(rpcconn.Object(raw), &a) != nil || a.ProtocolVersion == nil {
		return initialized{}, remote.Faultf("the answer to initialize names no version of the protocol")
	}
	if *a.ProtocolVersion != version {
		return initialized{}, remote.Faultf("the agent speaks version %d of the protocol, not %d", *a.ProtocolVersion, version)
	}
	var info struct{ Name, Version string }
	if json.Unmarshal(rpcconn.Object(a.AgentInfo), &info) != nil { // who it is changes nothing
		return initialized{}, nil
	}
	return initialized{remote.Clean(info.Name + " " + info.Version)}, nil
}

// opened is the answer to session/new.
type opened struct {
	session string
	// modes are the ids of the modes that are offered. option is the id of the configuration
	// option that they are the values of, or "" if they are modes by name.
	modes  []string
	option string
}

func decodeOpened(raw json.RawMessage) (opened, error) {
	var a struct {
		SessionID string          `json:"sessionId"`
		Modes     json.RawMessage `json:"modes"`
		Options   json.RawMessage `json:"configOptions"`
	}
	if json.Unmarshal(rpcconn.Object(raw), &a) != nil || a.SessionID == "" {
		return opened{}, remote.Faultf("the answer to session/new names no session")
	}
	o := opened{session: a.SessionID}
	var modes struct {
		AvailableModes []struct{ ID string }
	}
	if json.Unmarshal(rpcconn.Object(a.Modes), &modes) == nil {
		for _, m := range modes.AvailableModes {
			o.modes = append(o.modes, m.ID)
		}
	}
	if o.modes == nil { // the newer form of the same
		if choice, ok := decodeModeOption(a.Options); ok {
			o.option, o.modes = choice.ID, choice.values()
		}
	}
	return o, nil
}

func (o opened) offers(mode string) bool { return slices.Contains(o.modes, mode) }

// modeOption is the configuration option for a session's mode.
type modeOption struct {
	ID           string
	Category     string
	CurrentValue string
	Options      []struct {
		Value   string
		Options []struct{ Value string } // of a group
	}
}

// decodeModeOption finds the option of the mode among all; the others need not make sense.
func decodeModeOption(raw json.RawMessage) (modeOption, bool) {
	var all []json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return modeOption{}, false
	}
	for _, one := range all {
		var m modeOption
		if json.Unmarshal(one, &m) == nil && m.Category == "mode" && m.ID != "" {
			return m, true
		}
	}
	return modeOption{}, false
}

// decodeMode returns the mode in which a session is by what holds its options, or "".
func decodeMode(raw json.RawMessage) string {
	var m struct{ ConfigOptions json.RawMessage }
	if json.Unmarshal(rpcconn.Object(raw), &m) != nil {
		return ""
	}
	choice, _ := decodeModeOption(m.ConfigOptions)
	return choice.CurrentValue
}

func (m modeOption) values() (ids []string) {
	for _, o := range m.Options {
		if o.Options == nil {
			ids = append(ids, o.Value)
		}
		for _, grouped := range o.Options {
			ids = append(ids, grouped.Value)
		}
	}
	return ids
}

// update is what a session/update says, as far as it is of use; the zero value is none.
type update struct {
	session string
	chunk   *chunk
	tool    *toolCall
	mode    string // the one that the session is in now
}

// chunk is a piece of the answer. message is the id of the message that it belongs to, if
// the agent gives them ids.
type chunk struct{ message, text string }

// toolCall is what is known of a use of a tool. What is "" or nil is not said.
type toolCall struct {
	id, kind, title string
	input           json.RawMessage
	over            bool
}

// decodeUpdate reads an update. What the protocol may have grown is none; an error is a
// piece of the answer that cannot be read, for then the answer would lack it.
func decodeUpdate(params json.RawMessage) (update, error) {
	var p struct {
		SessionID string          `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}
	var kind struct {
		SessionUpdate string `json:"sessionUpdate"`
	}
	if json.Unmarshal(rpcconn.Object(params), &p) != nil || json.Unmarshal(rpcconn.Object(p.Update), &kind) != nil {
		return update{}, nil
	}
	u := update{session: p.SessionID}
	switch kind.SessionUpdate {
	case "agent_message_chunk":
		c, err := decodeChunk(p.Update)
		if err != nil {
			return u, err
		}
		u.chunk = c
	case "tool_call", "tool_call_update":
		if call, ok := decodeToolCall(p.Update); ok {
			u.tool = &call
		}
	case "current_mode_update":
		var m struct{ CurrentModeID string }
		if json.Unmarshal(p.Update, &m) == nil {
			u.mode = m.CurrentModeID
		}
	case "config_option_update":
		u.mode = decodeMode(p.Update)
	}
	return u, nil
}

// decodeChunk returns nil for a piece that is no text.
func decodeChunk(raw json.RawMessage) (*chunk, error) {
	var c struct {
		Content   json.RawMessage
		MessageID *string
	}
	var content struct {
		Type string
		Text *string
	}
	malformed := remote.Faultf("the agent sent a piece of its answer that its protocol has no place for")
	if json.Unmarshal(raw, &c) != nil || json.Unmarshal(c.Content, &content) != nil || content.Type == "" {
		return nil, malformed
	}
	if content.Type != "text" {
		return nil, nil
	}
	if content.Text == nil {
		return nil, malformed
	}
	out := &chunk{text: *content.Text}
	if c.MessageID != nil {
		out.message = *c.MessageID
	}
	return out, nil
}

// decodeToolCall reads what a person is shown of a use of a tool. Members that make no
// sense are not said.
func decodeToolCall(raw json.RawMessage) (toolCall, bool) {
	var c struct {
		ToolCallID                    string
		Kind, Title, Status, RawInput json.RawMessage
	}
	if json.Unmarshal(rpcconn.Object(raw), &c) != nil || c.ToolCallID == "" {
		return toolCall{}, false
	}
	word := func(raw json.RawMessage) string {
		var s string
		_ = json.Unmarshal(raw, &s) // else it stays ""
		return s
	}
	call := toolCall{id: c.ToolCallID, kind: word(c.Kind), title: word(c.Title), input: c.RawInput}
	if string(call.input) == "null" {
		call.input = nil
	}
	if status := word(c.Status); status == "completed" || status == "failed" {
		call.over = true
	}
	return call, true
}

// with lays what is newer over a call.
func (c toolCall) with(newer toolCall) toolCall {
	if c.id = newer.id; newer.kind != "" {
		c.kind = newer.kind
	}
	if newer.title != "" {
		c.title = newer.title
	}
	if newer.input != nil {
		c.input = newer.input
	}
	return c
}

// toolKinds are the protocol's words for what a tool does.
var toolKinds = [...]string{"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}

// question is what a person is asked, or the log told.
func (c toolCall) question() remote.Question {
	q := remote.Question{Tool: "unknown", CallID: remote.Clean(c.id), Args: c.input, Summary: remote.Clean(c.title)}
	if slices.Contains(toolKinds[:], c.kind) {
		q.Tool = c.kind
	}
	if q.Args == nil && c.title != "" { // else who decides would be shown nothing
		q.Args, _ = json.Marshal(object{"title": c.title}) // a string always encodes
	}
	if q.Summary == "" {
		q.Summary = "the agent does not say what it is for"
	}
	return q
}

// permission is a request for leave.
type permission struct {
	session string
	call    toolCall
	options []option
}

type option struct {
	ID   string `json:"optionId"`
	Kind string `json:"kind"`
}

func decodePermission(params json.RawMessage) (permission, bool) {
	var p struct {
		SessionID string          `json:"sessionId"`
		ToolCall  json.RawMessage `json:"toolCall"`
		Options   []option        `json:"options"`
	}
	if json.Unmarshal(rpcconn.Object(params), &p) != nil {
		return permission{}, false
	}
	call, ok := decodeToolCall(p.ToolCall)
	return permission{p.SessionID, call, p.Options}, ok
}

// choose returns the first kind of option that is offered.
func (p permission) choose(kinds ...string) (id string, ok bool) {
	for _, kind := range kinds {
		for _, o := range p.options {
			if o.Kind == kind && o.ID != "" {
				return o.ID, true
			}
		}
	}
	return "", false
}

// decodeStop maps the end of a turn (seam OOPX-13).
func decodeStop(raw json.RawMessage) (subagent.StopReason, string, error) {
	var a struct{ StopReason string }
	if json.Unmarshal(rpcconn.Object(raw), &a) != nil || a.StopReason == "" {
		return "", "", remote.Faultf("the answer to the prompt does not say how the turn ended")
	}
	word := a.StopReason
	var reason subagent.StopReason
	switch word {
	case "end_turn":
		reason = subagent.StopCompleted
	case "max_tokens":
		reason = subagent.StopMaxTokens
	case "refusal":
		reason = subagent.StopRefusal
	case "cancelled":
		reason = subagent.StopAborted
	case "max_turn_requests":
		reason = subagent.StopError
	default:
		reason, word = subagent.StopError, "unknown"
	}
	return reason, "the agent's turn ended with the stop reason " + word, nil
}

// answer is what the agent said in a turn. Agents that give messages ids mean the last one;
// the others say their answer and nothing else (external agents § 5).
type answer struct {
	room     int // in bytes
	plain    strings.Builder
	messages map[string]*strings.Builder
	last     string // the id of the last message that is not blank
}

// add takes a piece and reports whether there is room for it.
func (a *answer) add(c chunk) bool {
	if a.room -= len(c.text); a.messages[c.message] == nil {
		a.room -= len(c.message) // also messages without a text are kept
	}
	if a.room < 0 {
		return false
	}
	if c.message == "" {
		if a.messages == nil {
			a.plain.WriteString(c.text)
		}
		return true
	}
	if a.messages == nil {
		a.messages = map[string]*strings.Builder{}
	}
	m := a.messages[c.message]
	if m == nil {
		m = &strings.Builder{}
		a.messages[c.message] = m
	}
	m.WriteString(c.text)
	if strings.TrimSpace(c.text) != "" {
		a.last = c.message
	}
	return true
}

func (a *answer) text() string {
	if a.messages == nil {
		return a.plain.String()
	}
	if m := a.messages[a.last]; m != nil {
		return m.String()
	}
	return ""
}
