package fakemodel

import (
	"fmt"
	"net/http"
	"time"
)

func (s steps) play(st *stream) error {
	for _, step := range s {
		if err := st.play(step); err != nil {
			return err
		}
	}
	return nil
}

func (r repeat) play(st *stream) error {
	for range r.n {
		if err := r.body.play(st); err != nil {
			return err
		}
	}
	return nil
}

func (t Text) play(st *stream) error {
	st.outBytes += len(t)
	if st.own != nil {
		return st.own.text(string(t))
	}
	return st.delta(st.d.textDelta(string(t)))
}

func (r Reasoning) play(st *stream) error {
	st.thought.WriteString(string(r))
	if st.own != nil {
		return st.own.thinking(string(r))
	}
	if st.reasoningField == "" {
		return st.begin()
	}
	return st.delta(st.d.reasoningDelta(st.reasoningField, string(r)))
}

func (r Refusal) play(st *stream) error {
	st.refused = true
	st.outBytes += len(r)
	if st.own != nil {
		return st.own.refusal(string(r))
	}
	return st.delta(st.d.refusalDelta(string(r)))
}

func (c ToolCall) play(st *stream) error { return parallel{c}.play(st) }

func (p parallel) play(st *stream) error {
	if st.own != nil {
		return st.own.calls(p)
	}
	first := st.calls
	queues := make([][]string, len(p))
	for i, call := range p {
		if call.ID == "" {
			call.ID = st.callID(st.calls)
		}
		st.calls++
		st.outBytes += len(call.Name) + len(call.Arguments)
		opening := ""
		if st.d.wholeToolCalls() {
			opening = call.Arguments
		} else {
			n := call.Deltas
			if n == 0 {
				n = 3
			}
			queues[i] = pieces(call.Arguments, n)
		}
		if err := st.delta(st.d.callOpening(first+i, call.ID, call.Name, opening)); err != nil {
			return err
		}
	}
	for more := true; more; {
		more = false
		for i := range queues {
			if len(queues[i]) == 0 {
				continue
			}
			piece := queues[i][0]
			queues[i] = queues[i][1:]
			more = true
			if err := st.delta(st.d.callPiece(first+i, piece)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f Finish) play(st *stream) error {
	st.finished = true
	if st.own != nil {
		return st.own.finish(f)
	}
	if f == "" {
		return st.begin()
	}
	if err := st.begin(); err != nil {
		return err
	}
	var usage object
	if st.wantsUsage() && st.d.usageWithFinish() {
		usage = st.d.usage(st.counts())
		st.usageSent = true
	}
	return st.chunk(st.d.finishChoice(string(f)), usage)
}

func (u Usage) play(st *stream) error {
	st.usage = &u
	if st.finished {
		return st.sendUsage()
	}
	return nil
}

func (Headers) play(st *stream) error { return st.open() }

func (c Comment) play(st *stream) error { return st.write([]byte(": " + string(c) + "\n\n")) }

func (r Raw) play(st *stream) error { return st.write([]byte(r)) }

func (f Fragment) play(st *stream) error {
	st.fragment = int(f)
	return nil
}

func (Done) play(st *stream) error {
	if st.own != nil {
		return st.own.done()
	}
	if err := st.write([]byte(doneEvent)); err != nil {
		return err
	}
	return errEnd
}

func (CleanEOF) play(st *stream) error {
	if err := st.open(); err != nil {
		return err
	}
	return errEnd
}

func (c Cut) play(st *stream) error {
	if c.Reset {
		if err := st.reset(); err != nil {
			return err
		}
	}
	return errCut
}

func (s Stall) play(st *stream) error { return st.wait(s.Until) }

func (g Gate) play(st *stream) error { return st.wait(st.s.gate(string(g))) }

func (d Delay) play(st *stream) error {
	timer := time.NewTimer(time.Duration(d))
	defer timer.Stop()
	elapsed := make(chan struct{})
	select {
	case <-timer.C:
		close(elapsed)
	case <-st.ctx.Done():
	case <-st.s.closed:
	}
	return st.wait(elapsed)
}

func (d Do) play(st *stream) error {
	d(st.ctx)
	return nil
}

func (s Status) play(st *stream) error {
	if st.opened {
		return st.mistake(fmt.Sprintf("status %d comes after the stream was opened", s.Code))
	}
	body := s.Body
	if body == "" {
		body = string(appendJSON(nil, st.d.failureFor(s.Code).body(st.d, st.req.Model)))
	}
	return st.plain(s.Code, s.Header, body)
}

func (e ErrorChunk) play(st *stream) error {
	if err := st.open(); err != nil {
		return err
	}
	if st.own != nil {
		return st.own.fail(e)
	}
	if err := st.event(st.d.errorChunk(st.envelope(), e)); err != nil {
		return err
	}
	if st.d.doneAfterError() {
		return Done{}.play(st)
	}
	return errEnd
}

// plain sends a whole HTTP response that is no stream, and ends the exchange.
func (st *stream) plain(code int, header map[string]string, body string) error {
	h := st.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(st.d.requestIDHeader(), st.requestID())
	for name, value := range header {
		h.Set(name, value)
	}
	st.opened = true
	st.w.WriteHeader(code)
	if code == http.StatusNoContent || code == http.StatusNotModified {
		return errEnd
	}
	if err := st.push([]byte(body)); err != nil {
		return err
	}
	return errEnd
}
