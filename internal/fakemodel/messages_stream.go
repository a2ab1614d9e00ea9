package fakemodel

import "strings"

// messages is one answer being given on the Messages wire.
type messages struct {
	st   *stream
	wire messagesRequest

	index   int    // of the next block
	open    string // the type of the block that is open: text, thinking or none
	thought strings.Builder
	counts  Usage
}

// event sends one named event.
func (m *messages) event(name string, rest ...member) error {
	body := append(object{{"type", name}}, rest...)
	b := appendJSON([]byte("event: "+name+"\ndata: "), body)
	return m.st.write(append(b, "\n\n"...))
}

// begin sends what comes before all content: the message without content, the counts of its prompt, a ping.
func (m *messages) begin() error {
	m.counts = m.st.s.cache(m.wire)
	if u := m.st.usage; u != nil {
		m.counts = *u
	}
	message := object{
		{"id", "msg_" + m.st.requestID()}, {"type", "message"}, {"role", "assistant"}, {"model", m.st.req.Model},
		{"content", []object{}}, {"stop_reason", nil}, {"stop_sequence", nil},
	}
	if !m.counts.Omit {
		message = append(message, member{"usage", object{
			{"input_tokens", m.counts.Prompt - m.counts.Cached - m.counts.Written},
			{"cache_creation_input_tokens", m.counts.Written}, {"cache_read_input_tokens", m.counts.Cached},
			{"output_tokens", 1}, {"service_tier", "standard"},
		}})
	}
	if err := m.event("message_start", member{"message", message}); err != nil {
		return err
	}
	return m.event("ping")
}

func (m *messages) start(index int, block object) error {
	return m.event("content_block_start", member{"index", index}, member{"content_block", block})
}

func (m *messages) delta(index int, delta object) error {
	return m.event("content_block_delta", member{"index", index}, member{"delta", delta})
}

func (m *messages) stop(index int) error {
	return m.event("content_block_stop", member{"index", index})
}

// enter makes a block of that type the open one.
func (m *messages) enter(kind string, block object) error {
	if err := m.st.begin(); err != nil || m.open == kind {
		return err
	}
	if err := m.leave(); err != nil {
		return err
	}
	m.open = kind
	return m.start(m.index, block)
}

// leave closes the open block; thinking is signed first.
func (m *messages) leave() error {
	if m.open == "" {
		return nil
	}
	if m.open == "thinking" {
		signed := m.wire.sign(m.thought.String())
		m.thought.Reset()
		if err := m.delta(m.index, object{{"type", "signature_delta"}, {"signature", signed}}); err != nil {
			return err
		}
	}
	m.open = ""
	m.index++
	return m.stop(m.index - 1)
}

func (m *messages) text(s string) error {
	if err := m.enter("text", object{{"type", "text"}, {"text", ""}}); err != nil {
		return err
	}
	return m.delta(m.index, object{{"type", "text_delta"}, {"text", s}})
}

// refusal is text on this wire; the stop reason tells.
func (m *messages) refusal(s string) error { return m.text(s) }

func (m *messages) thinking(s string) error {
	if err := m.enter("thinking", object{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}); err != nil {
		return err
	}
	m.thought.WriteString(s)
	if s == "" {
		return nil // thinking that is not shown: only its signature follows
	}
	return m.delta(m.index, object{{"type", "thinking_delta"}, {"thinking", s}})
}

// calls sends tool calls: first every opening, then the pieces of all in turn.
func (m *messages) calls(p parallel) error {
	st := m.st
	if err := st.begin(); err != nil {
		return err
	}
	if err := m.leave(); err != nil {
		return err
	}
	first := m.index
	queues := make([][]string, len(p))
	for i, call := range p {
		if call.ID == "" {
			call.ID = st.callID(st.calls)
		}
		st.calls++
		st.outBytes += len(call.Name) + len(call.Arguments)
		n := call.Deltas
		if n == 0 {
			n = 3
		}
		queues[i] = append([]string{""}, pieces(call.Arguments, n)...)
		block := object{{"type", "tool_use"}, {"id", call.ID}, {"name", call.Name}, {"input", object{}}}
		if err := m.start(first+i, block); err != nil {
			return err
		}
	}
	m.index += len(p)
	for more := true; more; {
		more = false
		for i := range queues {
			if len(queues[i]) == 0 {
				continue
			}
			piece := queues[i][0]
			queues[i], more = queues[i][1:], true
			if err := m.delta(first+i, object{{"type", "input_json_delta"}, {"partial_json", piece}}); err != nil {
				return err
			}
		}
	}
	for i := range p {
		if err := m.stop(first + i); err != nil {
			return err
		}
	}
	return nil
}

// stopReason is the wire's word for a finish reason; what is none of ours goes out as it is.
func (m *messages) stopReason(f Finish) string {
	switch f {
	case Stop:
		if m.st.refused {
			return "refusal"
		}
		return "end_turn"
	case Length:
		return "max_tokens"
	case CallsTools:
		return "tool_use"
	case ContentFilter:
		return "refusal"
	default:
		return string(f)
	}
}

// finish sends the stop reason and the final counts.
func (m *messages) finish(f Finish) error {
	if err := m.st.begin(); err != nil {
		return err
	}
	if err := m.leave(); err != nil || f == "" {
		return err
	}
	rest := []member{{"delta", object{{"stop_reason", m.stopReason(f)}, {"stop_sequence", nil}}}}
	if !m.counts.Omit {
		out, thinking := m.counts.Completion, m.counts.Reasoning
		if m.st.usage == nil {
			thinking = (m.st.thought.Len() + 3) / 4
			out = (m.st.outBytes+3)/4 + thinking
		}
		rest = append(rest, member{"usage", object{{"output_tokens", out}, {"output_tokens_details", object{{"thinking_tokens", thinking}}}}})
	}
	return m.event("message_delta", rest...)
}

func (m *messages) done() error {
	if err := m.event("message_stop"); err != nil {
		return err
	}
	return errEnd
}

// fail sends an error in the middle of the stream.
func (m *messages) fail(e ErrorChunk) error {
	if e.Message == "" {
		e.Message = "Overloaded"
	}
	if e.Type == "" {
		e.Type = "overloaded_error"
	}
	if err := m.event("error", member{"error", object{{"type", e.Type}, {"message", e.Message}}}); err != nil {
		return err
	}
	return errEnd
}

// Redacted is thinking that the vendor encrypted: data is what comes back with the next request. Only the Messages
// wire has it; elsewhere it is not sent.
type Redacted string

func (r Redacted) play(st *stream) error {
	m, ok := st.own.(*messages)
	if err := st.begin(); err != nil || !ok {
		return err
	}
	if err := m.leave(); err != nil {
		return err
	}
	m.index++
	if err := m.start(m.index-1, object{{"type", "redacted_thinking"}, {"data", string(r)}}); err != nil {
		return err
	}
	return m.stop(m.index - 1)
}

// Ping sends the wire's sign of life: an event of the Messages wire, a comment elsewhere.
type Ping struct{}

func (Ping) play(st *stream) error {
	m, ok := st.own.(*messages)
	if !ok {
		return Comment("ping").play(st)
	}
	if err := st.begin(); err != nil {
		return err
	}
	return m.event("ping")
}

// Foreign sends content of a kind that no client knows: a block and an event of the Messages wire, a delta elsewhere.
type Foreign struct{}

func (Foreign) play(st *stream) error {
	hologram := object{{"depth", 3}}
	if st.own == nil {
		return st.delta(object{{"hologram", hologram}})
	}
	if err := st.begin(); err != nil {
		return err
	}
	switch own := st.own.(type) {
	case *responses:
		return own.event("response.hologram.delta", member{"hologram", hologram})
	case *messages:
		return own.foreign(hologram)
	}
	return nil
}

func (m *messages) foreign(hologram object) error {
	if err := m.leave(); err != nil {
		return err
	}
	m.index++
	if err := m.start(m.index-1, object{{"type", "hologram"}, {"hologram", hologram}}); err != nil {
		return err
	}
	if err := m.delta(m.index-1, object{{"type", "hologram_delta"}, {"hologram", hologram}}); err != nil {
		return err
	}
	if err := m.stop(m.index - 1); err != nil {
		return err
	}
	return m.event("hologram_update", member{"hologram", hologram})
}
