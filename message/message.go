// Package message holds the vocabulary that every floor shares: content blocks,
// messages, their provenance, and token usage. It has no logic beyond small
// constructors and no encoding: the log's codecs live in package session.
//
// Values are immutable by convention: whoever receives a Message, a Block slice
// or a Source must not modify it, and whoever keeps one past a call copies it
// first if the giver may change it. Floor 0.
package message

import "reflect"

// ID identifies one message. Ids are unique over all sessions and are minted by
// whoever writes the message, before it is sent (core L8).
type ID string

// Role says who speaks.
type Role string

// The two roles of a conversation. System text is no message (see package prompt).
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// BlockType discriminates a Block (core M1).
type BlockType string

// The known block types. A block of another type read from a foreign log is kept
// verbatim in Block.Raw and is never shown to a model.
const (
	BlockText       BlockType = "text"
	BlockReasoning  BlockType = "reasoning"
	BlockImage      BlockType = "image"
	BlockToolCall   BlockType = "tool-call"
	BlockToolResult BlockType = "tool-result"
)

// Block is one piece of content. Type says which of the other fields count.
type Block struct {
	Type BlockType

	// Text is the content of text and reasoning blocks.
	Text string

	// ID and Name identify a tool call. ID is the model's call id.
	ID   string
	Name string
	// Arguments is a tool call's argument text exactly as the model wrote it; it
	// may be blank or not JSON at all.
	Arguments string

	// ToolCallID, Content and IsError make up a tool result.
	ToolCallID string
	Content    []Block
	IsError    bool

	// Raw is the lossless JSON of an image's attachment reference, or the whole
	// object of a block whose type this build does not know.
	Raw []byte
}

// Text returns a text block.
func Text(s string) Block { return Block{Type: BlockText, Text: s} }

// Reasoning returns a reasoning block.
func Reasoning(s string) Block { return Block{Type: BlockReasoning, Text: s} }

// ToolCall returns a tool-call block. args is raw argument text.
func ToolCall(id, name, args string) Block {
	return Block{Type: BlockToolCall, ID: id, Name: name, Arguments: args}
}

// ToolResult returns a tool-result block.
func ToolResult(callID string, content []Block, isError bool) Block {
	return Block{Type: BlockToolResult, ToolCallID: callID, Content: content, IsError: isError}
}

// SourceKind discriminates a Source (core M2, amendment P12).
type SourceKind string

// The known source kinds. Others are preserved verbatim.
const (
	SourceUser            SourceKind = "user"
	SourcePlugin          SourceKind = "plugin"
	SourceTool            SourceKind = "tool"
	SourceModel           SourceKind = "model"
	SourceCoordinator     SourceKind = "coordinator"
	SourceSubagentReport  SourceKind = "subagent-report"
	SourceSubagentSettled SourceKind = "subagent-settled"
)

// Form says how context that no person typed is to be read (core M2).
type Form string

// The context forms.
const (
	FormSnapshot     Form = "snapshot"
	FormNotice       Form = "notice"
	FormInstructions Form = "instructions"
	FormCatalog      Form = "catalog"
	FormRelay        Form = "relay"
	FormRecall       Form = "recall"
)

// Source is a message's durable provenance. It is never authority: no code may
// decide on it who is allowed to do what.
type Source struct {
	Kind SourceKind

	details *SourceDetails // nil where there are none; shared by copies, never modified
}

// SourceDetails is what a source says beyond its kind.
type SourceDetails struct {
	// Plugin names the writer of a plugin message; Form its form.
	Plugin string
	Form   Form
	// Summary is the one-line text of a notice, at most 120 characters.
	Summary string
	// Sections lists what a snapshot consists of.
	Sections []SnapshotSection

	// CallID names the call that a tool message answers.
	CallID string

	// Provider and Model are the route that produced an assistant message.
	Provider string
	Model    string
	// ReplayState is lossless JSON that the adapter of that route needs back to
	// replay the message byte for byte, or nil.
	ReplayState []byte

	// SenderSessionID names the session behind a coordinator, subagent-report or
	// subagent-settled message.
	SenderSessionID string

	// Raw is the whole object of a source whose kind this build does not know, and of
	// a plugin's that has members beside those above; the log then holds Raw.
	Raw []byte
}

// NewSource returns a source with details. What they refer to must not be modified
// afterwards.
func NewSource(kind SourceKind, d SourceDetails) Source { return Source{kind, &d} }

// Details returns what the source says beyond its kind. What they refer to must not be
// modified.
func (s Source) Details() SourceDetails {
	if s.details == nil {
		return SourceDetails{}
	}
	return *s.details
}

// With returns a source whose details are those of s but for what change sets.
func (s Source) With(change func(*SourceDetails)) Source {
	d := s.Details()
	change(&d)
	return Source{s.Kind, &d}
}

// Equal reports whether two sources say the same.
func (s Source) Equal(t Source) bool {
	return s.Kind == t.Kind && reflect.DeepEqual(s.Details(), t.Details())
}

// SnapshotSection is one named part of a snapshot message.
type SnapshotSection struct {
	Name string
	Text string
}

// UserSource returns the provenance of what a person or an embedding program typed.
func UserSource() Source { return Source{Kind: SourceUser} }

// Message is one entry of a conversation.
type Message struct {
	ID      ID
	Role    Role
	Content []Block
	Source  Source
}

// Usage counts the tokens of one model call. The counters are disjoint except
// ReasoningTokens, which is a part of OutputTokens (core M5). InputTokens are the
// uncached ones.
type Usage struct {
	InputTokens      int64
	OutputTokens     int64
	CacheReadTokens  int64
	CacheWriteTokens int64
	ReasoningTokens  int64
	// Optional counters say whether the vendor reported them, so that a reported
	// zero and an absent counter stay distinct in the log.
	HasCacheRead, HasCacheWrite, HasReasoning bool
}

// Total returns all tokens that the call moved, cached or not.
func (u Usage) Total() int64 {
	return u.InputTokens + u.OutputTokens + u.CacheReadTokens + u.CacheWriteTokens
}

// Add returns the sum of two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		InputTokens:      u.InputTokens + v.InputTokens,
		OutputTokens:     u.OutputTokens + v.OutputTokens,
		CacheReadTokens:  u.CacheReadTokens + v.CacheReadTokens,
		CacheWriteTokens: u.CacheWriteTokens + v.CacheWriteTokens,
		ReasoningTokens:  u.ReasoningTokens + v.ReasoningTokens,
		HasCacheRead:     u.HasCacheRead || v.HasCacheRead,
		HasCacheWrite:    u.HasCacheWrite || v.HasCacheWrite,
		HasReasoning:     u.HasReasoning || v.HasReasoning,
	}
}

// Failure is what a model call can tell of its failure (core M4).
type Failure struct {
	// Message is one line for people.
	Message string
	// Code is stable, upper-case, and decides what is retried (core M16, M28).
	Code string
	// Status is the HTTP status, or 0.
	Status int
	// RetryAfterMS is the delay that the vendor asked for in milliseconds, or 0.
	RetryAfterMS int64
	// RequestID is the vendor's id of the request, or "".
	RequestID string
}

// JoinText returns the text blocks of content, joined without a separator.
func JoinText(content []Block) string {
	switch len(content) {
	case 0:
		return ""
	case 1:
		if content[0].Type == BlockText {
			return content[0].Text
		}
		return ""
	}
	n := 0
	for i := range content {
		if content[i].Type == BlockText {
			n += len(content[i].Text)
		}
	}
	buf := make([]byte, 0, n)
	for i := range content {
		if content[i].Type == BlockText {
			buf = append(buf, content[i].Text...)
		}
	}
	return string(buf)
}
