package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/llm"
)

const (
	// errorBodyLimit bounds how much of an error response is read.
	errorBodyLimit = 64 << 10
	// drainTime bounds the wait for the end of a response whose last event is here,
	// so that its connection can be used again.
	drainTime = 50 * time.Millisecond
)

var errIdle = errors.New("nothing was received within the idle timeout")

// Exchange is one HTTP request and its streamed response. Its zero value with an
// Endpoint is ready. It is used by one goroutine and starts none that outlives
// Close.
type Exchange struct {
	Endpoint *Endpoint
	// Response and Body are set once the response is an event stream; Body is the
	// response's body too.
	Response *http.Response
	Body     *Body
	// RequestID is the vendor's id of the request, as soon as it is known.
	RequestID string

	ctx   context.Context // ends with errIdle as its cause when the peer is silent
	watch *watchdog
}

// RoundTrip is a middleware for the vendors' SDKs: it guards the wait for the
// response, turns refusals into errors with a code, and puts the watched body in
// place.
func (c *Exchange) RoundTrip(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	c.ctx = ctx
	c.watch = &watchdog{limit: c.Endpoint.Idle, cancel: cancel}
	req = req.WithContext(ctx)
	for name := range req.Header {
		// They tell the vendor about this machine and nothing that it needs.
		if strings.HasPrefix(name, "X-Stainless-") {
			req.Header.Del(name)
		}
	}
	req.Header.Set("Accept", "text/event-stream")
	c.watch.arm()
	res, err := next(req)
	c.watch.disarm()
	if err != nil {
		return nil, err
	}
	c.RequestID = requestID(res.Header)
	if res.StatusCode >= 400 || !streams(res.Header) {
		defer func() { _ = res.Body.Close() }() // its content is read, or the call failed anyway
		data, err := c.readAll(res.Body)
		if err != nil {
			return nil, err
		}
		return nil, c.Endpoint.refusal(res, data)
	}
	c.Body = &Body{rc: res.Body, watch: c.watch}
	res.Body = c.Body
	c.Response = res
	return res, nil
}

// streams reports whether a response can be an event stream. Servers that forget
// the type get the benefit of the doubt.
func streams(h http.Header) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err != nil || (media != "text/html" && media != "application/json")
}

func requestID(h http.Header) string {
	for _, name := range []string{"X-Request-Id", "Request-Id", "X-Ds-Trace-Id", "Cf-Ray"} {
		if id := h.Get(name); id != "" {
			return id
		}
	}
	return ""
}

// readAll reads a short body under the watchdog.
func (c *Exchange) readAll(r io.Reader) ([]byte, error) {
	var buf bytes.Buffer
	_, err := io.Copy(&buf, io.LimitReader(&watchedReader{r: r, watch: c.watch}, errorBodyLimit))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // what arrived of an error response has to do
	}
	return buf.Bytes(), err
}

// Close releases the connection: for later use after a complete answer, by tearing
// it down otherwise.
func (c *Exchange) Close() {
	if c.Body != nil {
		c.Body.finish()
	}
	if c.watch != nil {
		c.watch.disarm()
		c.watch.cancel(nil)
	}
}

// Explain turns an error of the exchange into one with a code (core M28).
func (c *Exchange) Explain(err error) error {
	host := c.Endpoint.Host
	if c.ctx != nil && errors.Is(context.Cause(c.ctx), errIdle) {
		return Fail(llm.CodeTimeout, fmt.Sprintf("%s sent nothing for %v", host, c.Endpoint.Idle))
	}
	var coded *llm.Error
	if errors.As(err, &coded) {
		return err
	}
	if c.Body == nil {
		return Fail(llm.CodeTransport, fmt.Sprintf("cannot reach %s: %s", host, networkReason(err)))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return Fail(llm.CodeStreamClosed, fmt.Sprintf("%s closed the stream before the answer was complete", host))
	}
	return Fail(llm.CodeTransport, fmt.Sprintf("the connection to %s broke: %s", host, networkReason(err)))
}

// Ending is the finish for an error of the exchange: "aborted" when ctx ended,
// whatever that made the network report.
func (c *Exchange) Ending(ctx context.Context, err error, key string) *llm.Finish {
	if ctx.Err() != nil {
		return llm.Aborted(ctx)
	}
	f := c.Endpoint.Failure(c.Explain(err), key)
	if f.RequestID == "" {
		f.RequestID = c.RequestID
	}
	return llm.Failed(f)
}

// networkReason is the innermost useful text of a network error. The URL that the
// HTTP client puts before it is left out.
func networkReason(err error) string {
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}

// watchdog cancels the exchange when one read takes longer than limit. A limit
// that is not positive disables it.
type watchdog struct {
	limit  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (w *watchdog) arm() { w.armFor(w.limit) }

func (w *watchdog) armFor(d time.Duration) {
	switch {
	case d <= 0:
	case w.timer == nil:
		w.timer = time.AfterFunc(d, func() { w.cancel(errIdle) })
	default:
		w.timer.Reset(d)
	}
}

func (w *watchdog) disarm() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// watchedReader runs the watchdog while a read is outstanding, and only then: a
// slow consumer is no silent peer.
type watchedReader struct {
	r     io.Reader
	watch *watchdog
}

func (r *watchedReader) Read(p []byte) (int, error) {
	r.watch.arm()
	n, err := r.r.Read(p)
	r.watch.disarm()
	return n, err
}

// Body is the body of an event stream. At its end it supplies the blank line that
// dispatches a last event whose terminator is missing, so that a bare last event
// counts, and it remembers that the end was reached.
type Body struct {
	rc    io.ReadCloser
	watch *watchdog
	// ended says that the peer closed the stream properly.
	ended bool
	// torn says that it ended within an event.
	torn bool
	// complete says that the answer was complete.
	complete bool
	last     [4]byte // the last bytes read
	tail     string
}

// Read is io.Reader. Each call to the network is guarded by the idle timeout.
func (b *Body) Read(p []byte) (int, error) {
	if b.ended {
		if b.tail == "" || len(p) == 0 {
			return 0, io.EOF
		}
		n := copy(p, b.tail)
		b.tail = b.tail[n:]
		return n, nil
	}
	b.watch.arm()
	n, err := b.rc.Read(p)
	b.watch.disarm()
	for _, c := range p[max(0, n-len(b.last)):n] {
		copy(b.last[:], b.last[1:])
		b.last[len(b.last)-1] = c
	}
	if errors.Is(err, io.EOF) {
		b.ended = true
		if !bytes.HasSuffix(b.last[:], []byte("\n\n")) && !bytes.HasSuffix(b.last[:], []byte("\n\r\n")) {
			b.torn = true
			b.tail = "\n\n"
		}
		err = nil
	}
	return n, err
}

// Close makes a pending or later Read fail.
func (b *Body) Close() error { return b.rc.Close() }

// Complete says that the last event of the answer was read: what follows is not
// waited for.
func (b *Body) Complete() { b.complete = true }

// Judge corrects the error of an event that could not be read: one that is the
// last and that the peer did not finish is an early end, not a malformed event.
func (b *Body) Judge(err error) error {
	// The tail is read only when nothing else is left, so an event that comes after
	// it is the one that the peer did not finish.
	if b.torn && b.tail == "" && llm.CodeOf(err) == llm.CodeMalformedResponse {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Ended is the error of a stream whose decoder has nothing more, with the error
// that the decoder reports: however properly the connection was closed, a stream
// without its last event ended early.
func (b *Body) Ended(err error) error {
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return Fail(llm.CodeMalformedResponse, "the server sent a line that is too long")
	case err != nil:
		return err
	default:
		return io.ErrUnexpectedEOF
	}
}

// finish closes the body. After a complete answer it first takes the end of the
// response, which is normally there already.
func (b *Body) finish() {
	if b.complete && !b.ended {
		buf := make([]byte, 512)
		b.watch.armFor(drainTime)
		for range 4 {
			if _, err := b.rc.Read(buf); err != nil {
				break
			}
		}
		b.watch.disarm()
	}
	_ = b.rc.Close() // nothing depends on how the connection ends
}
