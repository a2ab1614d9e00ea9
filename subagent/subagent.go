// Package subagent is the seam over which an agent delegates work to a child
// agent: one Service with many named providers.
//
// Callers use Service: Start runs a one-shot child, a delegation with one result.
// It checks what the request needs against what the named provider can do before
// anything exists; a request that needs more is refused, never accepted and then
// ignored.
//
// Implementers write a Provider, one transport for children: in this process
// (subagent/spawn) or in another one. A provider's Start returns a published Run;
// whatever fails later belongs to that run's result.
//
// The service owns neither prompts nor tools. It keeps no goroutine but one for each
// run in another process that is not settled, joined by Close. Floor 5.
package subagent

import (
	"context"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent/internal/compose"
)

// Capabilities are the start-time features of a provider; each guards one field
// of a Request (seam CAP-01). They say nothing about continuable children.
type Capabilities struct {
	OutputSchema bool // Request.OutputSchema
	DepthLimit   bool // Request.MaxDepth
	ToolFilter   bool // Request.ToolFilter
	Persona      bool // Request.Persona
}

// StopReason says why a run ended. The set is open: a reason that is not
// StopCompleted counts as failure, known or not (seam RUN-07).
type StopReason string

// The known stop reasons.
const (
	StopCompleted StopReason = "completed"
	StopAborted   StopReason = "aborted"
	StopError     StopReason = "error"
	StopMaxTokens StopReason = "max-tokens"
	StopRefusal   StopReason = "refusal"
)

// Model overrides the model options that a child inherits from its parent; zero
// fields inherit (seam COMP-05).
type Model = compose.Model

// Persona is a child's persona. Its text is a template with strict
// interpolation, unless Literal.
type Persona = compose.Persona

// Request is what a caller asks for when it starts a one-shot child. Absent is
// nil: a present zero value counts (seam CAP-03).
type Request struct {
	// Label is a short name for people, stored with the child.
	Label *string
	// Prompt becomes the child's user message.
	Prompt []message.Block
	// Parent is the live agent that delegates; it is mandatory. Workspace, lineage
	// and depth come from it.
	Parent *agent.Agent
	// Model overrides what the child inherits.
	Model Model
	// OutputSchema is the JSON Schema of the wanted result: an object, within the
	// subset that package structured enforces.
	OutputSchema []byte
	// MaxDepth is an absolute cap: the child's depth must not exceed it.
	MaxDepth *int64
	// ToolFilter narrows the tools that the child inherits.
	ToolFilter *session.ToolFilter
	// Persona replaces the deployment's for this child alone.
	Persona *Persona
}

// ResolvedRequest is what a provider gets: the request, copied where a caller
// could change it afterwards, and the descriptor that a session-backed child
// carries in its log.
type ResolvedRequest struct {
	Request
	Descriptor *session.DescriptorEvent
	// Schema is OutputSchema, parsed; nil exactly if that is. A provider that
	// advertises OutputSchema has the child answer in its form and validates the
	// answer against it.
	Schema *structured.Schema
}

// Provider is one transport for child agents. Implementations are trusted
// collaborators in this process and safe for concurrent use; what they hand out
// is passed on as it is and must be treated as immutable (seam REG-18, REG-19).
type Provider interface {
	// Name is the provider's registry name. It is read at registration and must not
	// change while the provider is registered.
	Name() string
	// Capabilities are constant.
	Capabilities() Capabilities
	// InheritsParentContext says whether a child sees the parent's completed turns.
	// It only describes: tools word themselves by it (seam CAP-09).
	InheritsParentContext() bool
	// Start establishes a one-shot child and returns its published run. The service
	// has checked the request. ctx is the run's cancellation until its result
	// settles: ended before publication, Start cleans up and fails with its cause;
	// ended afterwards, the run's remaining work is cancelled and the result
	// settles as aborted. An error means that nothing is left.
	Start(ctx context.Context, req *ResolvedRequest) (Run, error)
}

// Run is a published one-shot child. Whoever got it from Start owns it and must
// Close it on every path. It cannot be steered or resumed (seam RUN-01).
type Run interface {
	// ID is the child's session id for a local run, and otherwise an id that is
	// unique among the parent's children.
	ID() session.ID
	// Local returns the exact child agent of a run in this process.
	Local() (*agent.Agent, bool)
	// Wait returns the result once it settled: the same to every caller, before and
	// after Close, and even if ctx has ended by then. A child's failure is a result;
	// the error is for what no stop reason can carry, or the cause of ctx's end, which
	// changes nothing about the run (seam RUN-06, RUN-19).
	Wait(ctx context.Context) (Result, error)
	// Close cancels what is left, waits until nothing of the child runs, and
	// releases it; a result that was not settled settles as aborted (seam DSP-07). It
	// is memoised: every caller gets the same completion and error. ctx bounds only
	// the wait. Its error is about the release alone (seam RUN-09, RUN-10, DSP-01).
	Close(ctx context.Context) error
}

// Result is how a run ended. Look at StopReason first: with any other reason
// than StopCompleted, Output and Structured are partial.
type Result struct {
	// Output is the final output (seam OUT); it is not nil and must not be modified.
	Output []message.Block
	// Structured is the answer to a request with an OutputSchema: compact JSON that
	// satisfies it, or nil where none was captured. A completed result has it; beside
	// another reason it is there only if it was captured before that happened, and is
	// no success (seam SO-21). It must not be modified.
	Structured []byte
	StopReason StopReason
	// Diagnostic is the provider's own word on a failure, at most 4,096 bytes; it is
	// no output of the child (seam RUN-13).
	Diagnostic string
}

// Failure is an infrastructure failure on an end edge (amendment P34).
type Failure struct {
	Code string
	Text string
}

// StartEdge opens the pair of lifecycle events of a run: subagent/start. Both
// edges of a run hold the same values (seam EVT-04, EVT-31).
type StartEdge struct {
	RunID    string // fresh for each run
	Provider string // provenance only
	ID       session.ID
	Local    bool
	// Parent is the agent that delegated. Label is the request's, or "".
	Parent *agent.Agent
	Label  string
	// Epoch counts the residencies of a continuable child, from 1; 0 is a one-shot run.
	// Parent is nil where a person resumed the child and its parent was not live.
	Epoch int64
}

// EndEdge closes the pair: subagent/end.
type EndEdge struct {
	StartEdge
	StopReason StopReason
	// Output is the listener's own copy of the final output; nil where there was none.
	Output []message.Block
	// Failure is set when the result could not be had (amendment P34).
	Failure *Failure
}

// Hooks observe the service synchronously, in the order of their registration,
// with panics contained; they may call non-blocking operations. Only
// ProviderAdded can fail something.
type Hooks struct {
	// ProviderAdded runs when a provider can be resolved already; an error undoes
	// the registration (seam REG-09, REG-10). Neither it nor ProviderRemoved may
	// register a provider: changes are told one after another.
	ProviderAdded func(Provider) error
	// ProviderRemoved runs when the name does not resolve any more (seam REG-12).
	ProviderRemoved func(name string)
	// Started runs after publication and before Start returns: the agent registry
	// resolves a local child meanwhile (seam EVT-32).
	Started func(StartEdge)
	// Ended runs when the result settled.
	Ended func(EndEdge)
}

// maxDiagnostic bounds a diagnostic, in bytes (seam RUN-13).
const maxDiagnostic = 4096

// Diagnostic cuts a provider's word on a failure to at most 4,096 bytes on a rune
// boundary, with a marker where something was left out.
func Diagnostic(s string) string {
	if len(s) <= maxDiagnostic {
		return s
	}
	const marker = " […cut]"
	n := maxDiagnostic - len(marker)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + marker
}
