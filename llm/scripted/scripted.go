// Package scripted answers model calls from a script instead of a model, so that
// everything above the llm seam can be driven without a key (core M30, Q9).
//
// A Script is a list of conversations. The first one whose matcher accepts a
// request answers it, and the number of assistant messages in the request says
// with which step: the adapter keeps no place of its own, so a script goes on
// where it was after a restart, and any number of agents can follow the same
// conversation at once. A request that no conversation or step answers fails
// with a message that names what was asked; it never stops silently.
//
// Demo is a ready script: the embedded model of the route "demo". Floor 6.
package scripted

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// Failure codes of the script itself. None of them is retryable.
const (
	// CodeUnmatched is a request that no conversation answers.
	CodeUnmatched = "SCRIPT_UNMATCHED"
	// CodeExhausted is a request past the last step of its conversation.
	CodeExhausted = "SCRIPT_EXHAUSTED"
	// CodeCapture is a template that refers to what the request does not hold.
	CodeCapture = "SCRIPT_CAPTURE"
	// CodeInvalid is a step that cannot be played: an empty one, a malformed
	// template, parts behind one that ends the answer, a Delay without Sleep.
	CodeInvalid = "SCRIPT_INVALID"
)

// Script is what an Adapter answers. New copies the list; the steps and their
// functions are shared and must not be modified afterwards.
type Script []Conversation

// Conversation is one line of answers.
//
// Which conversation answers is decided anew for every request: those with a
// Match are tried first, in order; then those with FirstCall; then those that
// take everything.
type Conversation struct {
	// Name is for error messages and Calls; empty means its number.
	Name string
	// Match accepts or refuses a request; nil accepts all. It may be called from
	// several goroutines at once.
	Match Matcher
	// Purpose is the purpose of the requests that this conversation answers; the
	// zero value is an agent's own steps.
	Purpose llm.Purpose
	// FirstCall gives the conversation to the first agent that calls and that no
	// conversation with a matcher answers: to one agent only, known by its first
	// prompt's message id or its session id. This is for roots, whose calls come in
	// an order that the test decides; parallel children race, so match on what they
	// were asked. The claim lives in the Adapter and does not survive a restart.
	FirstCall bool
	// SincePrompt counts the position from the last prompt on, where a prompt is
	// what a user or a coordinating agent wrote. The default is the position in the
	// whole request, so that follow-ups are further steps; with SincePrompt each
	// follow-up can be a conversation of its own, matched by LastPrompt, and a
	// forked child is not ahead by its parent's messages. An assistant message that
	// a compaction took out of the request counts in neither.
	SincePrompt bool
	// Repeat makes the last step answer every position after it too.
	Repeat bool
	// Optional steps need not be played: Unused and Done pass over them.
	Optional bool
	Steps    []Step
}

// Options tune an Adapter. The zero value is ready for tests.
type Options struct {
	// Record is how many of the latest calls Calls returns: 0 means 1,000, a
	// negative number none.
	Record int
	// Split is in how many deltas a text or an argument text arrives when its step
	// does not say; less than 2 means one.
	Split int
	// Sleep waits for d or until ctx ends, and returns the cause in that case. It
	// is what Delay and Pace wait with; the package's Sleep is one. A script that
	// waits without it fails with CodeInvalid.
	Sleep func(ctx context.Context, d time.Duration) error
	// Pace is waited before every delta; 0 is no wait.
	Pace time.Duration
	// Info is what Model answers for every model.
	Info llm.ModelInfo
	// CallID names the nth tool call, from 0, of an answer at a position of the
	// whole request. nil is "call-<position>-<n>": the same request gets the same
	// ids, and no two calls of a request's history share one, unless a compaction
	// shortened it.
	CallID func(req *llm.Request, position, n int) string
}

// DefaultRecord is how many calls an Adapter remembers by default.
const DefaultRecord = 1000

// Sleep waits for d, or until ctx ends and returns context.Cause(ctx).
func Sleep(ctx context.Context, d time.Duration) error { return llm.Sleep(ctx, d) }

// Adapter is an llm.Adapter that plays a Script. It starts no goroutines and is
// safe for concurrent use. It must not be copied.
type Adapter struct {
	script  Script
	options Options
	// order lists the conversations in the order in which they are tried.
	order []int

	book book
}

var _ llm.Adapter = (*Adapter)(nil)

// New returns an adapter for a script. It never fails: what is wrong with a step
// fails the call that plays it.
func New(script Script, options Options) *Adapter {
	if options.Record == 0 {
		options.Record = DefaultRecord
	}
	a := &Adapter{script: append(Script(nil), script...), options: options}
	rank := func(c *Conversation) int {
		switch {
		case c.FirstCall:
			return 1
		case c.Match != nil:
			return 0
		default:
			return 2
		}
	}
	for want := range 3 {
		for i := range a.script {
			if rank(&a.script[i]) == want {
				a.order = append(a.order, i)
			}
		}
	}
	a.book.init(a.script, options.Record)
	return a
}

// Model returns Options.Info whatever the model is.
func (a *Adapter) Model(provider, model string) llm.ModelInfo { return a.options.Info }

// Stream plays the step that answers the request. What it yields obeys the stream
// grammar (core I10) unless the script breaks it on purpose with Raw or Cut. The
// sequence may be ranged over again: that is another call.
func (a *Adapter) Stream(ctx context.Context, req *llm.Request) iter.Seq2[llm.Chunk, error] {
	return func(yield func(llm.Chunk, error) bool) {
		c, position, failure := a.pick(req)
		step := a.stepIndex(c, position)
		p := &player{adapter: a, ctx: ctx, req: req, yield: yield, conversation: c, position: position, split: a.options.Split}
		a.book.begin(Record{Request: req, Conversation: a.name(c), Position: position}, c, step)
		defer a.book.end()
		if failure != nil {
			p.fault(failure.Code, "%s", failure.Message)
			return
		}
		p.play(a.script[c].Steps[step])
		p.complete()
	}
}

// pick chooses the conversation of a request, -1 for none, and the position in it.
func (a *Adapter) pick(req *llm.Request) (conversation, position int, failure *message.Failure) {
	for _, i := range a.order {
		c := &a.script[i]
		if c.Purpose != req.Purpose || (c.Match != nil && !c.Match(req)) {
			continue
		}
		if c.FirstCall && !a.book.claim(i, agentOf(req)) {
			continue
		}
		position = Position(req)
		if c.SincePrompt {
			position = countAssistant(Turn(req))
		}
		if a.stepIndex(i, position) < 0 {
			return i, position, &message.Failure{Code: CodeExhausted, Message: fmt.Sprintf(
				"scripted model: conversation %q has %d steps and was asked for number %d: %s", a.name(i), len(c.Steps), position+1, describe(req))}
		}
		return i, position, nil
	}
	return -1, Position(req), &message.Failure{Code: CodeUnmatched, Message: "scripted model: no conversation answers " + describe(req)}
}

// stepIndex returns the step that answers a position, or -1.
func (a *Adapter) stepIndex(conversation, position int) int {
	if conversation < 0 {
		return -1
	}
	c := &a.script[conversation]
	switch n := len(c.Steps); {
	case position < n:
		return position
	case n > 0 && c.Repeat:
		return n - 1
	default:
		return -1
	}
}

func (a *Adapter) name(conversation int) string {
	if conversation < 0 {
		return ""
	}
	return a.book.names[conversation]
}
