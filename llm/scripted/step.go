package scripted

import (
	"context"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
)

// Step is one answer of the model: its parts are played in order. It ends with
// finish "tool-calls" if it called a tool, else with "stop", unless a part ends it
// in another way. A step without parts fails with CodeInvalid; Empty is the answer
// that says nothing.
type Step []Part

// Part is one thing that an answer does. The functions of this package make them;
// a Part keeps no state and may stand in any number of steps. The zero Part is
// invalid.
type Part struct {
	play func(*player)
	// ends says that nothing may follow in the step.
	ends bool
	// err says why the part cannot be played.
	err error
}

// Say says text. Texts that follow each other are one block, whatever waits
// between them; Break separates them. The text may hold templates:
//
//	{{result:read}}          what the latest call of the tool read returned
//	{{result:2}}             what the second call of the last answer with calls returned
//	{{result:2:items.0.id}}  a member of it, where the result is JSON
//	{{match:id=(\w+)}}       group 1, or the match, in the results of the last answer with calls
//	{{request:id=(\w+)}}     the same in all messages, newest first, then the system prompt
//
// A brace within a regular expression is balanced or escaped. Every other "{{" is
// text. A reference that finds nothing fails the call with CodeCapture.
func Say(text string) Part { return textPart(message.BlockText, text) }

// Reason is Say for reasoning.
func Reason(text string) Part { return textPart(message.BlockReasoning, text) }

func textPart(typ message.BlockType, text string) Part {
	t, err := parseTemplate(text, false)
	if err != nil {
		return Part{err: err}
	}
	return Part{play: func(p *player) {
		if s, ok := p.expand(t); ok {
			p.text(typ, s)
		}
	}}
}

// SayLiteral is Say without templates.
func SayLiteral(text string) Part {
	return Part{play: func(p *player) { p.text(message.BlockText, text) }}
}

// Break ends the current block, so that the next text is a block of its own.
func Break() Part { return Part{play: (*player).closeBlock} }

// Call calls a tool. args is the argument text and may hold the templates of Say:
// a reference within a JSON string is escaped for it, any other is inserted as it
// is. Several calls in one step are parallel calls.
func Call(tool, args string) Part {
	t, err := parseTemplate(args, true)
	if err != nil {
		return Part{err: err}
	}
	return Part{play: func(p *player) {
		if s, ok := p.expand(t); ok {
			p.call("", tool, s)
		}
	}}
}

// CallLiteral is Call without templates: args goes out byte for byte, whatever it
// is.
func CallLiteral(tool, args string) Part {
	return Part{play: func(p *player) { p.call("", tool, args) }}
}

// CallFunc is Call with an argument text that fn makes from the request. An error
// fails the call like one of Func.
func CallFunc(tool string, fn func(*llm.Request) (string, error)) Part {
	return Part{play: func(p *player) {
		args, err := fn(p.req)
		if err != nil {
			p.failWith(err)
			return
		}
		p.call("", tool, args)
	}}
}

// Func plays the step that fn makes of the request, in place. fn runs on the
// ranging goroutine and returns soon after ctx ends; it must not modify the
// request. An error fails the call: an *llm.Error with its code, any other with
// UNKNOWN (core M12).
func Func(fn func(ctx context.Context, req *llm.Request) (Step, error)) Part {
	return Part{play: func(p *player) {
		step, err := fn(p.ctx, p.req)
		if err != nil {
			p.failWith(err)
			return
		}
		p.play(step)
	}}
}

// Usage sets what the answer reports as its usage. Without it the counters are
// estimated from the lengths of the texts, four bytes a token, and nothing counts
// as cached.
func Usage(u message.Usage) Part {
	return Part{play: func(p *player) { p.usage, p.usageSet, p.usageOff = u, true, false }}
}

// NoUsage makes the answer report no usage.
func NoUsage() Part {
	return Part{play: func(p *player) { p.usageSet, p.usageOff = false, true }}
}

// Split makes each later text and argument text of the step arrive in n deltas of
// about the same size, fewer where it has fewer characters.
func Split(n int) Part { return Part{play: func(p *player) { p.split = n }} }

// StallUntil stays silent until the gate is open. The end of ctx ends the call as
// aborted.
func StallUntil(g *Gate) Part {
	return Part{play: func(p *player) {
		if g.Wait(p.ctx) != nil {
			p.abort()
		}
	}}
}

// Hang stays silent until ctx ends.
func Hang() Part { return StallUntil(new(Gate)) }

// Delay waits with Options.Sleep. The end of ctx ends the call as aborted.
func Delay(d time.Duration) Part { return Part{play: func(p *player) { p.sleep(d) }} }

// Fail ends the call with a failure. What was said before stays in the stream, its
// block open.
func Fail(code, text string) Part { return FailWith(message.Failure{Code: code, Message: text}) }

// FailWith is Fail with all that a failure can tell, such as a status and the
// delay that the vendor asks for.
func FailWith(f message.Failure) Part {
	return Part{ends: true, play: func(p *player) { p.fail(f) }}
}

// FailTimes fails the first n attempts at this position in a session and then lets
// the step go on: the retries of one call. Several in a step follow each other.
// The attempts are counted in the Adapter, so a restart begins again; those of the
// oldest of more than 4,096 positions are forgotten.
func FailTimes(n int, f message.Failure) Part {
	return Part{play: func(p *player) {
		k := attemptKey{session: p.req.SessionID, conversation: p.conversation, position: Position(p.req), ordinal: p.failTimes}
		p.failTimes++
		if k.session == "" {
			k.session = string(agentOf(p.req).prompt)
		}
		if p.adapter.book.attempt(k) < n {
			p.fail(f)
		}
	}}
}

// Cut breaks the stream off: it ends without a finish, as a connection does that
// the other side closed, and yields an *llm.Error with code STREAM_CLOSED.
func Cut() Part {
	return Part{ends: true, play: func(p *player) {
		p.failWith(&llm.Error{Failure: message.Failure{Code: llm.CodeStreamClosed, Message: "scripted model: the stream was cut"}})
	}}
}

// EndSilently ends the stream without a finish and without an error, which is
// against the grammar (core I10).
func EndSilently() Part { return Part{ends: true, play: func(p *player) { p.over = true }} }

// MaxTokens ends the answer as cut by the token limit.
func MaxTokens() Part {
	return Part{ends: true, play: func(p *player) { p.finish(llm.FinishMaxTokens) }}
}

// Refuse says text, without templates, and ends the answer as declined (amendment
// P31).
func Refuse(text string) Part {
	return Part{ends: true, play: func(p *player) {
		if text != "" {
			p.text(message.BlockText, text)
		}
		p.finish(llm.FinishRefusal)
	}}
}

// Empty says nothing: the answer is a "stop" without a block. A vendor's adapter
// reports such an answer as a failure, which is Fail with llm.CodeEmptyResponse.
func Empty() Part {
	return Part{ends: true, play: func(p *player) { p.finish(llm.FinishStop) }}
}

// ReplayState makes the finish carry a replay state (core M8). It must not be
// modified afterwards.
func ReplayState(r *llm.Replay) Part { return Part{play: func(p *player) { p.end.Replay = r }} }

// Raw yields chunks as they are, legal or not. A finish among them ends the step;
// block indexes go on after the highest of theirs.
func Raw(chunks ...llm.Chunk) Part {
	return Part{play: func(p *player) {
		for i := range chunks {
			p.raw(chunks[i])
		}
	}}
}

// Panic panics with v, on the ranging goroutine, as a broken adapter would.
func Panic(v any) Part { return Part{ends: true, play: func(*player) { panic(v) }} }

// Recorded returns the steps that say again what the assistant messages among the
// given ones said, with the same call ids: the script of a recorded session (core
// Q13). Blocks other than text, reasoning and tool calls are left out.
func Recorded(messages []message.Message) []Step {
	var steps []Step
	for i := range messages {
		if messages[i].Role != message.RoleAssistant {
			continue
		}
		var step Step
		for _, b := range messages[i].Content {
			switch b.Type {
			case message.BlockText, message.BlockReasoning:
				step = append(step, Break(), Part{play: func(p *player) { p.text(b.Type, b.Text) }})
			case message.BlockToolCall:
				step = append(step, Part{play: func(p *player) { p.call(b.ID, b.Name, b.Arguments) }})
			}
		}
		if step == nil {
			step = Step{Empty()}
		}
		steps = append(steps, step)
	}
	return steps
}
