package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/openai/openai-go/v3/option"

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

// exchange is one HTTP request and its response. It is used by one goroutine.
type exchange struct {
	adapter   *Adapter
	ctx       context.Context // ends with errIdle as its cause when the peer is silent
	watch     *watchdog
	res       *http.Response
	body      *streamBody
	requestID string
}

// roundTrip is a middleware for the SDK: it guards the wait for the
// response, turns refusals into errors of ours, and puts the watched body in place.
func (c *exchange) roundTrip(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	c.ctx = ctx
	c.watch = &watchdog{limit: c.adapter.config.IdleTimeout, cancel: cancel}
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
	c.requestID = requestID(res.Header)
	if res.StatusCode >= 400 || !streams(res.Header) {
		defer func() { _ = res.Body.Close() }() // its content is read, or the call failed anyway
		data, err := c.readAll(res.Body)
		if err != nil {
			return nil, err
		}
		return nil, c.adapter.refusal(res, data)
	}
	c.body = &streamBody{rc: res.Body, watch: c.watch}
	res.Body = c.body
	c.res = res
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
func (c *exchange) readAll(r io.Reader) ([]byte, error) {
	var buf bytes.Buffer
	_, err := io.Copy(&buf, io.LimitReader(&watchedReader{r: r, watch: c.watch}, errorBodyLimit))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // what arrived of an error response has to do
	}
	return buf.Bytes(), err
}

// close releases the connection: for later use after a complete answer, by tearing
// it down otherwise.
func (c *exchange) close() {
	if c.body != nil {
		c.body.finish()
	}
	if c.watch != nil {
		c.watch.disarm()
		c.watch.cancel(nil)
	}
}

// explain turns an error of the exchange into one with a code (core M28).
func (c *exchange) explain(err error) error {
	host := c.adapter.base.Host
	if c.ctx != nil && errors.Is(context.Cause(c.ctx), errIdle) {
		return fail(llm.CodeTimeout, fmt.Sprintf("%s sent nothing for %v", host, c.adapter.config.IdleTimeout))
	}
	var coded *llm.Error
	if errors.As(err, &coded) {
		return err
	}
	if c.body == nil {
		return fail(llm.CodeTransport, fmt.Sprintf("cannot reach %s: %s", host, networkReason(err)))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fail(llm.CodeStreamClosed, fmt.Sprintf("%s closed the stream before the answer was complete", host))
	}
	return fail(llm.CodeTransport, fmt.Sprintf("the connection to %s broke: %s", host, networkReason(err)))
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

// streamBody is the body of an event stream. At its end it supplies the blank line
// that dispatches a last event whose terminator is missing, so that a bare
// "data: [DONE]" counts, and it remembers that the end was reached.
type streamBody struct {
	rc    io.ReadCloser
	watch *watchdog
	// ended says that the peer closed the stream properly.
	ended bool
	// torn says that it ended within an event.
	torn bool
	// done says that the answer was complete.
	done bool
	last [4]byte // the last bytes read
	tail string
}

func (b *streamBody) Read(p []byte) (int, error) {
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
func (b *streamBody) Close() error { return b.rc.Close() }

// finish closes the body. After a complete answer it first takes the end of the
// response, which is normally there already.
func (b *streamBody) finish() {
	if b.done && !b.ended {
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
