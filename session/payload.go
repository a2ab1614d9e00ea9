package session

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
)

// Payload is the typed content of an event. The implementations are the pointer
// types of this package; a payload must not be modified once it was appended.
// Foreign event types travel as *Opaque.
type Payload interface {
	// EventType is the type of the event that carries the payload.
	EventType() Type
	appendJSON(buf []byte) []byte
}

// checker is implemented by payloads whose Go value can be invalid.
type checker interface{ check() error }

// The core event vocabulary (core S9) and the types that other parts of the
// product use.
const (
	TypeTurnStart        Type = "turn/start"
	TypeTurnEnd          Type = "turn/end"
	TypeStepStart        Type = "step/start"
	TypeStepEnd          Type = "step/end"
	TypeUserMessage      Type = "user/message"
	TypeAssistantChunk   Type = "assistant/chunk"
	TypeAssistantMessage Type = "assistant/message"
	TypeToolCall         Type = "tool/call"
	TypeToolResult       Type = "tool/result"
	TypeTodoWrite        Type = "todo/write"
	TypeRequestHeader    Type = "request/header"
	TypeRequestContext   Type = "request/context"
	TypeEndSeed          Type = "session/end-seed"
	TypeInboxSpliced     Type = "agent/inbox/spliced"
	TypeDescriptor       Type = "subagent/descriptor"

	TypeRetry             Type = "llm/retry"
	TypeRetryStarted      Type = "llm/retry-started"
	TypeCompactionStart   Type = "compaction/start"
	TypeCompactionSummary Type = "compaction/summary"
	TypeCompactionPrune   Type = "compaction/prune"
	TypeCompactionEnd     Type = "compaction/end"
	TypeApprovalAsked     Type = "approval/asked"
	TypeApprovalDecided   Type = "approval/decided"
	TypeApprovalPolicy    Type = "approval/policy"
	TypeSandboxMode       Type = "sandbox/mode"
	TypeTitle             Type = "session/title"

	// Types of ours that the upstream lacks; all are ignorable.
	TypeSettled   Type = "subagent/settled"
	TypePersona   Type = "subagent/persona"
	TypeToolSpill Type = "tool/spill"
	TypeImported  Type = "session/imported"

	TypeCompactionRequest Type = "compaction/request"
)

// typeInfo is what the log knows of an event type.
type typeInfo struct {
	typ       Type
	surface   bool // lives on the surface (core S16)
	ignorable bool // of ours: a reader that lacks it may skip it
	decode    func([]byte) (Payload, error)
}

// vocabulary lists every type that this build knows (core S7). A type without a
// decoder is carried as *Opaque: any JSON object.
func vocabulary() []typeInfo {
	return []typeInfo{
		{typ: TypeTurnStart, decode: dec(decodeTurnStart)},
		{typ: TypeTurnEnd, decode: dec(decodeTurnEnd)},
		{typ: TypeStepStart, decode: dec(decodeStepStart)},
		{typ: TypeStepEnd, decode: dec(decodeStepEnd)},
		{typ: TypeUserMessage, surface: true, decode: dec(decodeUserMessage)},
		{typ: TypeAssistantChunk, decode: dec(decodeAssistantChunk)},
		{typ: TypeAssistantMessage, surface: true, decode: dec(decodeAssistantMessage)},
		{typ: TypeToolCall, decode: dec(decodeToolCall)},
		{typ: TypeToolResult, surface: true, decode: dec(decodeToolResult)},
		{typ: TypeTodoWrite, decode: dec(decodeTodoWrite)},
		{typ: TypeRequestHeader, decode: dec(decodeRequestHeader)},
		{typ: TypeRequestContext, decode: dec(decodeRequestContext)},
		{typ: TypeEndSeed, decode: dec(decodeEndSeed)},
		{typ: TypeInboxSpliced, decode: dec(decodeInboxSpliced)},
		{typ: TypeDescriptor, decode: dec(decodeDescriptorEvent)},
		{typ: TypeRetry, decode: dec(decodeRetry)},
		{typ: TypeRetryStarted, decode: dec(decodeRetryStarted)},
		{typ: TypeCompactionStart, decode: dec(decodeCompactionStart)},
		{typ: TypeCompactionSummary, decode: dec(decodeCompactionSummary)},
		{typ: TypeCompactionPrune, decode: dec(decodeCompactionPrune)},
		{typ: TypeCompactionEnd, decode: dec(decodeCompactionEnd)},
		{typ: TypeApprovalAsked, decode: dec(decodeApprovalAsked)},
		{typ: TypeApprovalDecided, decode: dec(decodeApprovalDecided)},
		{typ: TypeApprovalPolicy, decode: dec(decodeApprovalPolicy)},
		{typ: TypeSandboxMode, decode: dec(decodeSandboxMode)},
		{typ: TypeTitle, decode: dec(decodeTitle)},
		{typ: TypeSettled, ignorable: true, decode: dec(decodeSettled)},
		{typ: TypePersona, ignorable: true, decode: dec(decodePersona)},
		{typ: TypeToolSpill, ignorable: true, decode: dec(decodeToolSpill)},
		{typ: TypeImported, ignorable: true, decode: dec(decodeImported)},
		{typ: TypeCompactionRequest, ignorable: true, decode: dec(decodeCompactionRequest)},

		{typ: "agent-preset/selected"}, {typ: "command/done"}, {typ: "command/run"},
		{typ: "feedback/record"}, {typ: "goal/change"}, {typ: "hook/invoked"},
		{typ: "hook/result"}, {typ: "permission/preset"}, {typ: "plan/mode"},
		{typ: "schedule/change"}, {typ: "session/title-llm-request"}, {typ: "team/member"},
		{typ: "team/message/delivered"}, {typ: "team/message/queued"}, {typ: "team/task"},
		{typ: "tool-workflow/agent-end"}, {typ: "tool-workflow/agent-start"},
		{typ: "tool-workflow/run-end"}, {typ: "tool-workflow/run-start"},
		{typ: "tool/code-dispatch"}, {typ: "tool/code-dispatch-start"},
		{typ: "web/deepseek-search-llm-request"},
	}
}

// dec adapts a decoder of a concrete payload type.
func dec[P Payload](f func([]byte) (P, error)) func([]byte) (Payload, error) {
	return func(data []byte) (Payload, error) {
		p, err := f(data)
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}

// typeTable indexes a vocabulary. It is built once per Registry and shared by
// its sessions, so that an embedding program can add types (core S8).
type typeTable map[Type]*typeInfo

func newTypeTable(extra []ExtraType) (typeTable, error) {
	list := vocabulary()
	t := make(typeTable, len(list)+len(extra))
	for i := range list {
		t[list[i].typ] = &list[i]
	}
	for _, x := range extra {
		if x.Type == "" || t[x.Type] != nil {
			return nil, fmt.Errorf("session: extra event type %q is empty or known already", x.Type)
		}
		t[x.Type] = &typeInfo{typ: x.Type, ignorable: x.Ignorable}
	}
	return t, nil
}

// ExtraType is an event type that an embedding program adds.
type ExtraType struct {
	Type      Type
	Ignorable bool
}

// Opaque is the payload of a type that the product itself does not interpret:
// one of a plugin, or one that a foreign log marks as ignorable.
type Opaque struct {
	Type Type
	Data []byte // lossless JSON, an object
	// Skip marks the event as ignorable for readers that do not know Type.
	Skip bool
}

// EventType implements Payload.
func (p *Opaque) EventType() Type              { return p.Type }
func (p *Opaque) appendJSON(buf []byte) []byte { return jsonx.AppendRaw(buf, p.Data) }
func (p *Opaque) check() error                 { return jsonx.ReadObject(p.Data, nil) }

// TurnStart opens a turn (core S9a).
type TurnStart struct{ Turn int64 }

// StepStart opens a step (core S9c).
type StepStart struct{ Turn, Step int64 }

// StepEnd closes a step (core S9d).
type StepEnd struct{ Turn, Step int64 }

// EndKind discriminates a TurnEnd's reason (core S11).
type EndKind string

// The kinds of turn end. Unknown kinds are kept and count as failure.
const (
	EndCompleted   EndKind = "completed"
	EndAborted     EndKind = "aborted"
	EndBlocked     EndKind = "blocked"
	EndError       EndKind = "error"
	EndMaxTokens   EndKind = "max-tokens"
	EndRefusal     EndKind = "refusal"
	EndInterrupted EndKind = "interrupted"
)

// CauseKind says who cancelled.
type CauseKind string

// The cancel causes.
const (
	CauseUser     CauseKind = "user"
	CauseParent   CauseKind = "parent"
	CauseHook     CauseKind = "hook"
	CauseDisposed CauseKind = "disposed"
	CauseLegacy   CauseKind = "legacy"
)

// Cause is why an activity was cancelled. Reason belongs to CauseHook.
type Cause struct {
	Kind   CauseKind
	Reason string
}

func (c Cause) Error() string {
	if c.Reason != "" {
		return "cancelled by " + string(c.Kind) + ": " + c.Reason
	}
	return "cancelled by " + string(c.Kind)
}

// TurnEnd closes a turn (core S9b).
type TurnEnd struct {
	Turn    int64
	Kind    EndKind
	Cause   Cause            // for EndAborted
	Failure *message.Failure // for EndError
}

// UserMessage is everything that enters a conversation other than what the model
// and its tools say (core S9e).
type UserMessage struct{ Message message.Message }

// AssistantChunk is a stored stream chunk of a foreign log. This product never
// writes one (design § 4); it carries the chunk as it is.
type AssistantChunk struct {
	Turn, Step int64
	Chunk      []byte
}

// AssistantMessage is what a model said in one call (core S9g).
type AssistantMessage struct {
	Turn, Step  int64
	Message     message.Message
	Usage       *message.Usage
	Interrupted bool
}

// ToolCall records that the dispatch of a call began (core S9h).
type ToolCall struct {
	Turn, Step   int64
	CallID, Name string
	Arguments    string
}

// ToolResult is the outcome of a call: a message with exactly one tool-result
// block (core S9i).
type ToolResult struct {
	Turn, Step int64
	Message    message.Message
	// ErrorName and ErrorCode are set on failures.
	ErrorName, ErrorCode string
	// Meta is lossless JSON for readers other than the model, or nil.
	Meta []byte
}

// Todo is one item of a TodoWrite.
type Todo struct {
	Content string
	Status  string // pending, in_progress, completed
}

// TodoWrite replaces the whole list (core S9j).
type TodoWrite struct{ Todos []Todo }

// CallConfig is the model call configuration of a request header.
type CallConfig struct {
	Provider, Model string
	ReasoningEffort string
	Temperature     *float64
	MaxTokens       int64
	Stop            []string
}

// ToolSpec is a tool as the model saw it.
type ToolSpec struct {
	Name, Description string
	Parameters        []byte
}

// HeaderReason says why a request header was logged.
type HeaderReason string

// The reasons of a request header.
const (
	HeaderInitial HeaderReason = "initial"
	HeaderResume  HeaderReason = "resume"
	HeaderChange  HeaderReason = "change"
)

// RequestHeader proves what a request consisted of beside its messages (core
// S9k). Build one with NewRequestHeader, which encodes it once, and share it
// between sessions whose headers are equal.
type RequestHeader struct {
	Config CallConfig
	// DefaultEffort and DefaultMaxTokens mark fields of Config that the adapter
	// filled in.
	DefaultEffort, DefaultMaxTokens bool
	System                          string
	Tools                           []ToolSpec
	Reason                          HeaderReason

	encoded []byte
	invalid error // what is wrong with encoded
}

// RequestContext is logged when the route or its window changed (core S9l).
type RequestContext struct {
	Provider, Model string
	ContextWindow   int64
}

// EndSeed marks the end of what a session inherited (core S9m).
type EndSeed struct{}

// Target names one of the two inbox lists (core L6).
type Target string

// The inbox lists.
const (
	NextTurn Target = "next-turn"
	NextStep Target = "next-step"
)

// InboxSpliced is one change of an inbox list (core S9n).
type InboxSpliced struct {
	Target  Target
	Start   int64
	Removed int64
	// Inserted holds the new messages; it must not be modified.
	Inserted []message.Message
	// Canceled marks a removal that is no claim.
	Canceled bool
	// NoWake marks an insertion that wakes nobody (amendment P43).
	NoWake bool
}

// Retry announces a wait before another attempt (core S10, M19).
type Retry struct {
	RetryID    string
	Turn, Step int64
	Provider   string
	Always     bool
	PolicyKey  string
	Attempt    int64 // 1 for the first retry
	MaxRetries int64 // meaningful unless Always
	DelayMS    int64
	Failure    message.Failure
}

// RetryStarted says that the wait of a Retry is over.
type RetryStarted struct {
	RetryID    string
	Turn, Step int64
	Attempt    int64
}

// CompactionStart opens a compaction bracket.
type CompactionStart struct {
	CompactionID    string
	SourceCommandID string
	Turn            int64 // 0 outside a turn
}

// CompactionEnd closes a compaction bracket. A compaction without Error has one
// CompactionSummary, at least if this program wrote it.
type CompactionEnd struct {
	CompactionID    string
	SourceCommandID string
	Turn            int64 // as in its start
	Error           string
}

// CompactionRequest tells what the model was asked for a summary with, so that the
// request can be rebuilt: the messages from Start to End, which are seqs of surface
// nodes at that moment, then Message; system prompt and tools as in the last request
// header.
type CompactionRequest struct {
	CompactionID string
	Start, End   int64
	Config       CallConfig
	Message      message.Message
}

// Shadowed names what a replacement takes the place of.
type Shadowed struct {
	// Seqs are those of the surface nodes, in the order of the surface; at least one.
	Seqs []int64
	// Tokens is about how many tokens they take (core D41).
	Tokens int64
}

// CompactionSummary is what a compaction replaces Shadowed with. The user/message
// that does so follows at once (core D39).
type CompactionSummary struct {
	CompactionID    string
	SourceCommandID string
	Summary         []message.Block
	Shadowed        Shadowed
	Provider, Model string // of the call
	MaxTokens       int64  // its bound, or 0
	Usage           *message.Usage
	// RawOutput is all that the model answered, if that is more than Summary.
	RawOutput []message.Block
	// ModelCall says that one model call made the summary, RawOutput being its answer.
	ModelCall bool
}

// CompactionPrune stands before a tool/result that replaces a longer one (core D38).
type CompactionPrune struct{ Shadowed Shadowed }

// ApprovalAsked records that an approval was asked for.
type ApprovalAsked struct{ ID, ToolName, CallID, Reason string }

// ApprovalDecided records the answer: allowed-once, rejected, cancelled or unavailable.
type ApprovalDecided struct{ ID, Outcome string }

// ApprovalPolicy records the policy in force from here on. Delegated marks one
// that a delegation pinned.
type ApprovalPolicy struct {
	Policy    string
	Delegated bool
}

// SandboxMode records a sandbox mode. Delegated as in ApprovalPolicy.
type SandboxMode struct {
	Mode      string
	Delegated bool
}

// Title names a session for people.
type Title struct{ Title string }

// Settled is the end of a residency epoch, in the child's own log (design § 4).
type Settled struct {
	Epoch      int64
	StopReason string
	OutputSeq  int64 // -1: no output
}

// Persona marks the descriptor's persona as literal text (amendment P42).
type Persona struct{ Literal bool }

// Imported marks where a log came into this store from elsewhere: everything
// before it was written by somebody else. What was queued there is parked (see
// Session.Parked). Registry.Import appends it; the last one counts.
type Imported struct{}
