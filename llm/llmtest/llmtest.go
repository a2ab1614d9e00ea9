// Package llmtest is the conformance suite of llm.Adapter: what every adapter must
// do, in the words of the contract (core M1-M5, M8, M12, M15, M24-M28, amendment
// P31, invariant I10). It is an ordinary package, so that adapters from elsewhere
// can run it. It imports no adapter.
//
// The suite says what an endpoint shall do, as Answers; a Factory makes an endpoint
// do it. What an endpoint or an adapter has no notion of is listed in
// Factory.Lacks, and the cases that need it are skipped and say so. Floor T.
package llmtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/offshoot-dev/offshoot/llm"
)

// Kind is what a Step does. The kinds are the capability switches too.
type Kind string

// The kinds of steps. A step that ends the answer stands last; an answer without
// one ends as the endpoint ends an answer, after tool calls as one that calls tools.
const (
	// Say is text: Text, in Pieces deltas.
	Say Kind = "say"
	// Think is reasoning that the client sees: Text, in Pieces deltas.
	Think Kind = "think"
	// Withhold is reasoning that the client gets only in a form that it cannot read,
	// to be sent back: Text.
	Withhold Kind = "withhold"
	// Call calls the tools of Calls in parallel, their arguments in Pieces deltas.
	Call Kind = "call"
	// Foreign is content of a kind that no client knows.
	Foreign Kind = "foreign"
	// Report sets the usage of the answer: Usage. It stands first.
	Report Kind = "report"
	// Do calls Func on a goroutine of the endpoint's.
	Do Kind = "do"

	// Length ends the answer as cut by its bound.
	Length Kind = "length"
	// Refuse says Text and ends the answer as declined.
	Refuse Kind = "refuse"
	// Empty is the answer that says nothing.
	Empty Kind = "empty"
	// Reject answers with a status instead of a stream: Reason, RetryAfter.
	Reject Kind = "reject"
	// Break is an error in the middle of the stream: Text.
	Break Kind = "break"
	// Cut closes the connection.
	Cut Kind = "cut"
	// End ends the response in good order before the answer is complete.
	End Kind = "end"
	// Garbage is an event that cannot be read.
	Garbage Kind = "garbage"
	// Stall is silence until the client leaves.
	Stall Kind = "stall"
)

// Features that are no steps.
const (
	// Leaving: the endpoint sees a client leave.
	Leaving Kind = "leaving"
	// IdleTimeout: Options.IdleTimeout is obeyed.
	IdleTimeout Kind = "idle-timeout"
	// Images: the adapter sends images. One that does not must refuse them.
	Images Kind = "images"
)

// Reason says why a request is rejected.
type Reason string

// The reasons, each in the endpoint's own status and words.
const (
	BadRequest    Reason = "bad-request"
	ContextLength Reason = "context-length"
	Unauthorized  Reason = "unauthorized"
	Forbidden     Reason = "forbidden"
	Quota         Reason = "quota"
	TooLarge      Reason = "too-large"
	RateLimited   Reason = "rate-limited"
	ServerError   Reason = "server-error"
	Overloaded    Reason = "overloaded"
)

// ToolCall is one call of a Call step. The endpoint gives it an id.
type ToolCall struct{ Name, Arguments string }

// Usage is what a Report step reports.
type Usage struct {
	// Prompt is the whole prompt, Cached included; Completion is the whole output,
	// Reasoning included.
	Prompt, Cached, Completion, Reasoning int
}

// Step is one thing that an endpoint does. Kind says which other fields count.
type Step struct {
	Kind       Kind
	Text       string
	Pieces     int // 0 is 1
	Calls      []ToolCall
	Usage      Usage
	Func       func()
	Reason     Reason
	RetryAfter string // a header value, or ""
}

// Answer is what the endpoint does with one call.
type Answer []Step

// Options are what a case asks of its adapter.
type Options struct {
	// IdleTimeout bounds each read from the network; 0 is the adapter's default.
	IdleTimeout time.Duration
}

// Subject is an adapter before an endpoint that obeys the case.
type Subject struct {
	Adapter llm.Adapter
	// Provider and Model are what requests name.
	Provider, Model string
	// Secret, where it is not empty, must not occur in any failure.
	Secret string
	// Calls returns how many calls have reached the endpoint. nil skips the checks.
	Calls func() int
	// Left blocks until the endpoint has seen the client of the nth call (from 1)
	// leave. It may be nil where Leaving is lacking.
	Left func(ctx context.Context, n int) error
}

// Factory makes the subjects.
type Factory struct {
	// Open starts an endpoint that answers the nth call with the nth answer and that
	// refuses a history which the real one would refuse, and an adapter for it. Both
	// end with the test that t belongs to.
	Open func(t testing.TB, options Options, answers ...Answer) Subject
	// Lacks lists what there is no notion of.
	Lacks []Kind
}

// suiteCase is one case of the suite.
type suiteCase struct {
	name  string
	needs []Kind
	run   func(t *testing.T, f Factory)
}

// Run runs the suite. No case leaves a goroutine behind, which can be checked only
// while nothing else in the process starts any: Run must not be called from a
// parallel test.
func Run(t *testing.T, f Factory) {
	for _, c := range slices.Concat(answerCases(), failureCases(), historyCases(), cancelCases(), sizeCases()) {
		before := goleak.IgnoreCurrent()
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range c.needs {
				if slices.Contains(f.Lacks, kind) {
					t.Skipf("the subject has no notion of %q", kind)
				}
			}
			c.run(t, f)
		})
		if err := goleak.Find(before); err != nil {
			t.Errorf("%s: goroutines were left behind: %v", c.name, err)
		}
	}
}
