package fakemodel

import (
	"context"
	"net/http"
	"time"
)

// Step is one thing that an answer does. The types of this package are all there are.
//
// The response opens (status 200, headers) with the first step that sends something into the stream, so a [Stall]
// that stands first is silence before the headers. When the steps end and none of them ended the exchange, the
// server sends what is still missing: the finish reason (tool_calls after a tool call, else stop), the usage, [DONE].
type Step interface {
	play(*stream) error
}

// Text is visible text, sent as one delta.
type Text string

// Reasoning is reasoning, sent as one delta in the dialect's own field. The OpenAI dialect keeps it secret, as
// OpenAI does: it is counted in the usage and not sent (unless Options.ReasoningField names a field for it).
type Reasoning string

// Refusal is the model's own refusal: delta.refusal in the OpenAI dialect (which ends with finish reason stop), plain
// text and a content_filter finish in the others.
type Refusal string

// ToolCall is one tool call, streamed as the dialect does: a first delta with index, id and name, then the arguments
// in pieces that carry only the index. Ollama sends it whole.
type ToolCall struct {
	// ID is the call's id. Empty makes one that is the same for the same attempt at the same request and differs
	// from all others.
	ID   string
	Name string
	// Arguments is sent as it is, valid JSON or not; with Finish(Length) behind it, a prefix is a cut call.
	Arguments string
	// Deltas is how many pieces the arguments are sent in; 0 means 3. It never exceeds the number of characters.
	Deltas int
}

// Finish sends the finish reason, known or not. Finish("") sends none and none will be implied.
type Finish string

// The finish reasons of the wire.
const (
	Stop          Finish = "stop"
	Length        Finish = "length"
	CallsTools    Finish = "tool_calls"
	ContentFilter Finish = "content_filter"
)

// Usage sets the token counts of the answer; without it they are estimated from the bytes that went either way, and
// llama.cpp sends none. They are sent where the dialect puts them, and only if the request asked for usage (OpenRouter
// always sends it). Behind a Finish it is sent at once, but for DeepSeek, where it belongs before the Finish and goes
// out with it.
type Usage struct {
	// Prompt is the whole prompt, Cached included (core M27).
	Prompt int
	// Cached is how much of Prompt came from the vendor's cache.
	Cached int
	// Completion is the whole output, Reasoning included.
	Completion int
	// Reasoning is how much of Completion was reasoning.
	Reasoning int
	// Written is how much of Prompt was written to the vendor's cache. Only the Messages wire says so.
	Written int
	// Omit makes the answer carry no usage at all.
	Omit bool
}

// Headers sends the status and the headers and nothing else.
type Headers struct{}

// Comment sends an SSE comment, a keep-alive that is no event.
type Comment string

// Raw sends its bytes as they are and flushes, for framing that no other step makes.
type Raw string

// Garbage is an event whose data is not JSON: a chunk that breaks off in the middle of a string.
const Garbage Raw = "data: {\"id\":\"chatcmpl-fake\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half\n\n"

// Fragment makes every later write of this answer go out in pieces of that many bytes, each flushed by itself: it
// cuts events, lines and multi-byte characters. 0 turns it off.
type Fragment int

// Done sends [DONE] and ends the exchange at once.
type Done struct{}

// CleanEOF ends the response body in good order where it stands, without [DONE]. As the first step it makes the
// answer an empty body with status 200.
type CleanEOF struct{}

// Cut closes the connection where it stands: the client sees an unexpected end, or as the first step a connection
// that closes without an answer.
type Cut struct {
	// Reset ends the connection with a TCP reset; what was sent just before may then be lost too.
	Reset bool
}

// Stall is silence. It ends when the client leaves or the server closes, or when Until is closed.
type Stall struct {
	Until <-chan struct{}
}

// Gate is silence until [Server.Release] is called with its name, or the client leaves, or the server closes.
type Gate string

// Delay is silence for that long, or until the client leaves or the server closes. Tests that can use a gate should.
type Delay time.Duration

// Do calls a function on the goroutine of the request, with the request's context, which ends when the client leaves
// or the server closes. The function must return then.
type Do func(ctx context.Context)

// Status answers with a plain HTTP response instead of a stream and ends the exchange. It must come before anything
// was sent.
type Status struct {
	Code int
	// Header is added to the response; the content type is application/json unless it says otherwise.
	Header map[string]string
	// Body is sent as it is; empty means the dialect's error body for the code.
	Body string
}

// ErrorChunk is an error in the middle of the stream, in the dialect's form, and ends the exchange as the dialect
// does. Empty fields get the dialect's words for a failing upstream.
type ErrorChunk struct {
	Code    string
	Type    string
	Message string
}

// NotAStream answers with status 200 and a web page, as a proxy or a captive portal does.
func NotAStream() Step {
	return Status{
		Code:   http.StatusOK,
		Header: map[string]string{"Content-Type": "text/html; charset=utf-8"},
		Body:   "<!doctype html><title>Sign in</title><p>Sign in to reach the network.</p>\n",
	}
}

// steps plays its members as if they stood in its place.
type steps []Step

// Repeat plays the steps n times.
func Repeat(n int, body ...Step) Step { return repeat{n: n, body: body} }

type repeat struct {
	n    int
	body steps
}

// Split sends a Text, Reasoning or Refusal in n deltas of about the same length, cut between characters.
func Split[S interface{ Text | Reasoning | Refusal }](n int, text S) Step {
	var all steps
	for _, piece := range pieces(string(text), n) {
		all = append(all, any(S(piece)).(Step))
	}
	return all
}

// Parallel sends several tool calls at once: first every opening, then the argument pieces of all of them in turn.
// Tool calls that simply follow one another in a Reply are sent one after the other, each under its own index.
func Parallel(calls ...ToolCall) Step { return parallel(calls) }

type parallel []ToolCall

// pieces cuts text into at most n parts of about the same number of characters, never within one. Empty text has
// none.
func pieces(text string, n int) []string {
	runes := []rune(text)
	n = min(max(n, 1), len(runes))
	parts := make([]string, 0, n)
	for i := range n {
		parts = append(parts, string(runes[i*len(runes)/n:(i+1)*len(runes)/n]))
	}
	return parts
}
