// Package llm is the seam between an agent and the models it talks to: the
// request and stream vocabulary, the registry of adapters, the assembler that
// turns a stream into one message, and the retry policy.
//
// A caller builds a Request, prepares it against a Registry, and ranges over the
// stream. An implementer writes an Adapter. Adapters live in sibling packages
// (llm/openai, llm/scripted) and know nothing of agents or logs. Floor 2.
package llm

import (
	"context"
	"iter"

	"github.com/offshoot-dev/offshoot/message"
)

// Purpose says what a request is for when it is not an agent's own step.
type Purpose string

// The purposes (core M6).
const (
	PurposeStep       Purpose = ""
	PurposeCompaction Purpose = "compaction"
	PurposeTitle      Purpose = "session-title"
)

// ToolSpec is the model-visible part of a tool: these three fields and nothing
// else (core T2). Parameters is a JSON Schema.
type ToolSpec struct {
	Name        string
	Description string
	Parameters  []byte
}

// Request is one model call. It is immutable once it was handed to a stream:
// neither the adapter nor the caller may change it or what it points to. It can
// be rebuilt from the log of the session that made it (core L39).
type Request struct {
	// Provider names the route, for instance "openai". Model is the model's id on
	// that route; it may contain colons and slashes.
	Provider string
	Model    string
	// ReasoningEffort is empty for the route's default, or one of the efforts of
	// the model, or "off".
	ReasoningEffort string
	Messages        []message.Message
	System          string
	Tools           []ToolSpec
	Temperature     *float64
	// MaxTokens bounds the output of this call; 0 leaves it to the adapter.
	MaxTokens int64
	Stop      []string
	// SessionID is the session that asks, or "".
	SessionID string
	Purpose   Purpose
}

// FinishKind says how a stream ended (core M4, amendment P31).
type FinishKind string

// The finish kinds. FinishRefusal is a model that declined: its text is kept and
// it is not an error.
const (
	FinishStop      FinishKind = "stop"
	FinishToolCalls FinishKind = "tool-calls"
	FinishMaxTokens FinishKind = "max-tokens"
	FinishRefusal   FinishKind = "refusal"
	FinishAborted   FinishKind = "aborted"
	FinishError     FinishKind = "error"
)

// Finish is the last thing in a stream. Failure is set for aborted and error.
type Finish struct {
	Kind    FinishKind
	Failure *message.Failure
	// Replay is what the adapter needs back, as lossless JSON, to replay this
	// answer byte for byte: Response belongs to the whole answer, Blocks holds one
	// entry per block in block order (core M8). Both may be nil.
	Replay *Replay
}

// Replay is an adapter's replay state.
type Replay struct {
	Response []byte
	Blocks   [][]byte
}

// ChunkKind discriminates a Chunk (core M3).
type ChunkKind string

// The chunk kinds.
const (
	ChunkBlockStart     ChunkKind = "block-start"
	ChunkTextDelta      ChunkKind = "text-delta"
	ChunkReasoningDelta ChunkKind = "reasoning-delta"
	ChunkToolCallDelta  ChunkKind = "tool-call-delta"
	ChunkBlockEnd       ChunkKind = "block-end"
	ChunkUsage          ChunkKind = "usage"
	ChunkFinish         ChunkKind = "finish"
)

// Chunk is one piece of a stream. Index is a block index; blocks may interleave.
// At most one usage chunk, before the finish; the finish is last (core M5, I10).
type Chunk struct {
	Kind  ChunkKind
	Index int

	BlockType message.BlockType // block-start
	Text      string            // text-delta, reasoning-delta
	ID        string            // tool-call-delta
	Name      string            // tool-call-delta, on the first of a call
	Arguments string            // tool-call-delta: the next piece of the argument text
	Block     *message.Block    // block-end: authoritative content
	Usage     *message.Usage    // usage
	Finish    *Finish           // finish
}

// Adapter speaks to one or several routes. Implementations are safe for
// concurrent use.
type Adapter interface {
	// Stream performs one call and yields its chunks in order.
	//
	// The call happens on the ranging goroutine; an adapter that starts
	// goroutines joins them before the sequence returns. When ctx ends, or when
	// the consumer stops ranging, the adapter stops reading from the network at
	// once and returns (core M15). A failure is either a finish chunk of kind
	// error or a yielded error; an error becomes such a finish with code UNKNOWN
	// unless it is an *Error (core M12). An end of ctx is the finish "aborted"
	// with code ABORTED.
	Stream(ctx context.Context, req *Request) iter.Seq2[Chunk, error]
	// Model describes a model of a route. A model that the adapter does not know
	// is answered with what holds for the route in general: its id is the
	// endpoint's to refuse.
	Model(provider, model string) ModelInfo
}

// ModelInfo is what an adapter knows of a model (core M13). Zero values mean
// "not known".
type ModelInfo struct {
	ContextWindow    int64
	DefaultMaxTokens int64
	// Efforts lists the reasoning efforts that the model takes; nil means that
	// none is refused here.
	Efforts       []string
	DefaultEffort string
}

// Error is a failed model call as a Go error.
type Error struct {
	Failure message.Failure
	Err     error
}

func (e *Error) Error() string {
	if e.Failure.Message != "" {
		return e.Failure.Message
	}
	if e.Err != nil {
		return e.Err.Error()
	}
	return e.Failure.Code
}

func (e *Error) Unwrap() error { return e.Err }

// Failure codes (core M16, M28).
const (
	CodeAuth              = "AUTH"
	CodeQuota             = "QUOTA"
	CodeRateLimit         = "RATE_LIMIT"
	CodeContextWindow     = "CONTEXT_WINDOW_EXCEEDED"
	CodeInvalidRequest    = "INVALID_REQUEST"
	CodeServer            = "SERVER"
	CodeTransport         = "TRANSPORT"
	CodeTimeout           = "TIMEOUT"
	CodeStreamClosed      = "STREAM_CLOSED"
	CodeMalformedResponse = "MALFORMED_RESPONSE"
	CodeEmptyResponse     = "EMPTY_RESPONSE"
	CodeMissingCredential = "MISSING_CREDENTIAL"
	CodeInvalidCredential = "INVALID_CREDENTIAL"
	CodeAborted           = "ABORTED"
	CodeNoAdapter         = "NO_ADAPTER"
	CodeUnknown           = "UNKNOWN"
)
