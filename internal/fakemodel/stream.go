package fakemodel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
)

const doneEvent = "data: [DONE]\n\n"

// created is the time in every chunk: answers are the same on every run.
const created = 1767225600

// How a reply can end before its last step.
var (
	errEnd  = errors.New("the step ended the exchange")
	errCut  = errors.New("the step cuts the connection")
	errGone = errors.New("the client left, or the server closes")
)

// serveModels answers GET /models.
func (s *Server) serveModels(w http.ResponseWriter, r *http.Request) {
	st := &stream{s: s, d: s.opts.Dialect, ctx: r.Context(), w: w, rc: http.NewResponseController(w)}
	if !s.authorized(r) {
		s.conclude(st, st.play(Unauthorized))
		return
	}
	models := s.opts.Models
	if len(models) == 0 {
		models = []string{"fake-model"}
	}
	var list []object
	for _, id := range models {
		list = append(list, object{{"id", id}, {"object", "model"}, {"created", created}, {"owned_by", "fakemodel"}})
	}
	body := appendJSON(nil, object{{"object", "list"}, {"data", list}})
	s.conclude(st, st.plain(http.StatusOK, nil, string(body)))
}

// serveChat answers POST /chat/completions.
func (s *Server) serveChat(w http.ResponseWriter, r *http.Request) {
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	req := newRequest(r, body)
	if readErr != nil {
		req.Err = fmt.Errorf("read the body: %w", readErr)
	}
	script := s.begin(&req)
	defer s.end(req)
	st := &stream{
		s: s, d: s.opts.Dialect, req: req,
		ctx: r.Context(), w: w, rc: http.NewResponseController(w),
		reasoningField: s.opts.ReasoningField,
	}
	if st.reasoningField == "" {
		st.reasoningField = st.d.reasoningField()
	}
	s.conclude(st, st.answer(s.decide(r, st, script)))
}

// decide returns the reply to a request: the server's own refusal, or else what the script says.
func (s *Server) decide(r *http.Request, st *stream, script Script) Reply {
	req := st.req
	var tooLarge *http.MaxBytesError
	switch {
	case !s.authorized(r):
		return Reply{Unauthorized}
	case errors.As(req.Err, &tooLarge):
		return Reply{TooLarge}
	case req.Err != nil:
		return Reply{refuse(st.d, req.Err.Error())}
	case len(s.opts.Models) > 0 && !slices.Contains(s.opts.Models, req.Model):
		return Reply{UnknownModel}
	case !req.Stream:
		return Reply{refuse(st.d, "fakemodel: only stream: true is served")}
	}
	if !s.opts.Lenient {
		check := s.check
		if st.own != nil {
			check = func(Request) error { return st.own.check() }
		}
		if err := check(req); err != nil {
			return Reply{refuse(st.d, err.Error())}
		}
	}
	return script(req)
}

func (s *Server) authorized(r *http.Request) bool {
	return s.opts.Key == "" || r.Header.Get("Authorization") == "Bearer "+s.opts.Key ||
		strings.HasSuffix(r.URL.Path, "/messages") && r.Header.Get("X-Api-Key") == s.opts.Key
}

// conclude turns the way a reply ended into the way the HTTP exchange ends.
func (s *Server) conclude(st *stream, err error) {
	switch {
	case err == nil, errors.Is(err, errEnd):
	case errors.Is(err, errCut):
		// net/http closes the connection without ending the body; it is its documented way.
		panic(http.ErrAbortHandler)
	case errors.Is(err, errGone):
		if st.req.exchange != nil && !s.closing() {
			close(st.req.exchange.gone)
		}
		panic(http.ErrAbortHandler)
	default:
		panic(err) // a step that could not be played; net/http logs it and cuts the connection
	}
}

// ownWire is one answer being given on a wire that is not the chat wire.
type ownWire interface {
	// check refuses what the real endpoint refuses.
	check() error
	// begin sends what comes before the first content; the others send what their names say, in the wire's form.
	begin() error
	text(piece string) error
	refusal(piece string) error
	thinking(piece string) error
	calls(p parallel) error
	finish(f Finish) error
	done() error
	fail(e ErrorChunk) error
}

// stream is one answer being given. It belongs to the goroutine of its request.
type stream struct {
	s   *Server
	d   Dialect
	req Request
	ctx context.Context
	w   http.ResponseWriter
	rc  *http.ResponseController

	own            ownWire // set where the answer does not go out on the chat wire
	reasoningField string
	fragment       int

	opened    bool // the headers are out
	begun     bool // the dialect's opening is out
	finished  bool // the finish reason is out, or given up
	usageSent bool
	refused   bool
	calls     int
	usage     *Usage
	thought   strings.Builder
	outBytes  int // visible output, for the estimate of its tokens
}

// answer plays a reply and closes it as the dialect does.
func (st *stream) answer(reply Reply) error {
	if st.own != nil {
		st.usage = findUsage(reply) // it goes out before the first content
	}
	if err := steps(reply).play(st); err != nil {
		return err
	}
	if !st.finished {
		reason := Stop
		switch {
		case st.calls > 0:
			reason = CallsTools
		case st.refused && !st.d.refuses():
			reason = ContentFilter
		}
		if err := st.play(reason); err != nil {
			return err
		}
	}
	if err := st.sendUsage(); err != nil {
		return err
	}
	return st.play(Done{})
}

// play plays one step, unless nobody is there any more.
func (st *stream) play(step Step) error {
	if st.ctx.Err() != nil || st.s.closing() {
		return errGone
	}
	return step.play(st)
}

// open sends status and headers, once.
func (st *stream) open() error {
	if st.opened {
		return nil
	}
	st.opened = true
	h := st.w.Header()
	h.Set("Content-Type", st.d.contentType())
	h.Set("Cache-Control", "no-cache")
	h.Set(st.d.requestIDHeader(), st.requestID())
	st.w.WriteHeader(http.StatusOK)
	return st.flush()
}

// begin sends what the dialect sends before the first content, once.
func (st *stream) begin() error {
	if err := st.open(); err != nil || st.begun {
		return err
	}
	st.begun = true
	if st.own != nil {
		return st.own.begin()
	}
	if comment, ok := st.d.openingComment(); ok {
		if err := st.play(Comment(comment)); err != nil {
			return err
		}
	}
	if delta := st.d.opening(); delta != nil {
		return st.chunk(st.d.choice(delta, nil), nil)
	}
	return nil
}

// delta sends one chunk with that delta.
func (st *stream) delta(delta object) error {
	if err := st.begin(); err != nil {
		return err
	}
	return st.chunk(st.d.choice(delta, nil), nil)
}

// chunk sends one chunk. A nil choice means an empty list of choices, nil usage the dialect's absence of usage.
func (st *stream) chunk(choice, usage object) error {
	choices := []object{}
	if choice != nil {
		choices = append(choices, choice)
	}
	body := append(st.envelope(), member{"choices", choices})
	switch {
	case usage != nil:
		body = append(body, member{"usage", usage})
	case st.req.IncludeUsage && st.d.nullUsage():
		body = append(body, member{"usage", nil})
	}
	return st.event(body)
}

// envelope returns the members that every chunk of the answer begins with.
func (st *stream) envelope() object { return st.d.envelope(st.req.N, st.req.Model) }

func (st *stream) event(body object) error {
	b := appendJSON([]byte("data: "), body)
	return st.write(append(b, "\n\n"...))
}

// sendUsage sends the usage in a chunk of its own, if it is wanted and still missing.
func (st *stream) sendUsage() error {
	if st.own != nil || !st.wantsUsage() || st.usageSent {
		return nil
	}
	st.usageSent = true
	return st.chunk(st.d.usageChoice(), st.d.usage(st.counts()))
}

func (st *stream) wantsUsage() bool {
	if st.usage == nil && st.d.omitsUsage() || st.usage != nil && st.usage.Omit {
		return false
	}
	return st.req.IncludeUsage || st.d.usageUnasked()
}

// counts returns the scripted usage, or an estimate: four bytes to a token.
func (st *stream) counts() Usage {
	if st.usage != nil {
		return *st.usage
	}
	reasoning := (st.thought.Len() + 3) / 4
	return Usage{
		Prompt:     (len(st.req.Body) + 3) / 4,
		Completion: (st.outBytes+3)/4 + reasoning,
		Reasoning:  reasoning,
	}
}

// callID makes the id of a generated tool call and remembers what reasoning led to it.
func (st *stream) callID(index int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%x/%d/%d", st.req.print, st.req.Attempt, index))
	id := st.d.callIDPrefix() + hex.EncodeToString(sum[:8])
	if st.thought.Len() > 0 {
		st.s.mu.Lock()
		st.s.thoughts[id] = st.thought.String()
		st.s.mu.Unlock()
	}
	return id
}

func (st *stream) requestID() string { return fmt.Sprintf("req_fake_%d", st.req.N) }

// wait is silence until the channel is closed. A nil channel never is.
func (st *stream) wait(until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	case <-st.ctx.Done():
	case <-st.s.closed:
	}
	return errGone
}

// mistake tells the client that the script is wrong, in a stream that is open already.
func (st *stream) mistake(text string) error {
	return st.play(ErrorChunk{Code: "fakemodel", Type: "fakemodel_error", Message: "fakemodel: " + text})
}

// write sends bytes into the stream, opening it first, and flushes.
func (st *stream) write(b []byte) error {
	if err := st.open(); err != nil {
		return err
	}
	return st.push(b)
}

func (st *stream) push(b []byte) error {
	size := len(b)
	if st.fragment > 0 {
		size = st.fragment
	}
	for piece := range slices.Chunk(b, max(size, 1)) {
		if _, err := st.w.Write(piece); err != nil {
			return fmt.Errorf("%w: %w", errGone, err)
		}
		if err := st.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (st *stream) flush() error {
	if err := st.rc.Flush(); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// connKey finds the connection of a request in its context.
type connKey struct{}

// reset makes the closing of the connection a TCP reset.
func (st *stream) reset() error {
	conn, ok := st.ctx.Value(connKey{}).(*net.TCPConn)
	if !ok {
		return errors.New("fakemodel: reset: the connection is not TCP")
	}
	if err := conn.SetLinger(0); err != nil {
		return fmt.Errorf("fakemodel: reset: %w", err)
	}
	return nil
}
