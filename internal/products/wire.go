package products

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// lineMax bounds a line of the wire, in bytes.
const lineMax = 64 << 20

// answer is the response to one request.
type answer struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// incoming is any line of the server: an answer, or a notification.
type incoming struct {
	ID     *int64 `json:"id"`
	Method string `json:"method"`
	Params struct {
		SessionID string          `json:"sessionId"`
		Status    string          `json:"status"`
		Event     json.RawMessage `json:"event"`
		ParentID  string          `json:"parentSessionId"`
		ChildID   string          `json:"childSessionId"`
	} `json:"params"`
	answer
}

// call sends a request and waits for its answer.
func (s *Server) call(ctx context.Context, method string, params, result any) error {
	received := make(chan answer, 1)
	s.mu.Lock()
	s.requests++
	id := s.requests
	s.pending[id] = received
	s.mu.Unlock()
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	s.write.Lock()
	_, err = s.process.Stdin().Write(append(line, '\n'))
	s.write.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", method, err, s.said())
	}
	var a answer
	select {
	case a = <-received:
	case <-s.read:
		// What came before the end counts, whichever of the two is seen first.
		select {
		case a = <-received:
		default:
			return fmt.Errorf("%s: the SDK server ended: %w\n%s", method, s.readErr, s.said())
		}
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer: %w\n%s", method, context.Cause(ctx), s.said())
	}
	switch {
	case a.Error != nil:
		return fmt.Errorf("%s: error %d: %s", method, a.Error.Code, a.Error.Message)
	case result != nil:
		return json.Unmarshal(a.Result, result)
	}
	return nil
}

// wait calls ready under the lock, at once and with every notification, until it is true.
func (s *Server) wait(ctx context.Context, what string, ready func() bool) error {
	for {
		s.mu.Lock()
		ok, changed := ready(), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-s.read:
			s.mu.Lock()
			ok = ready()
			s.mu.Unlock()
			if ok {
				return nil
			}
			return fmt.Errorf("wait for %s: the SDK server ended: %w\n%s", what, s.readErr, s.said())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w\n%s", what, context.Cause(ctx), s.said())
		}
	}
}

// readAll takes the server's lines until there are no more, or one cannot be understood.
func (s *Server) readAll() {
	defer close(s.read)
	lines := bufio.NewScanner(s.process.Stdout())
	lines.Buffer(nil, lineMax)
	for lines.Scan() {
		if err := s.take(lines.Bytes()); err != nil {
			s.readErr = err
			return
		}
	}
	s.readErr = errors.Join(lines.Err(), io.EOF)
}

func (s *Server) take(line []byte) error {
	var m incoming
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("the SDK server wrote %.200q: %w", line, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Method {
	case "":
		if m.ID == nil || s.pending[*m.ID] == nil {
			return fmt.Errorf("the SDK server answered what nobody asked: %.200q", line)
		}
		s.pending[*m.ID] <- m.answer
		delete(s.pending, *m.ID)
	case "session.event":
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(m.Params.Event, &head); err != nil {
			return fmt.Errorf("the SDK server sent the event %.200q: %w", m.Params.Event, err)
		}
		s.events = append(s.events, Event{Session: m.Params.SessionID, Type: head.Type, Raw: m.Params.Event})
	case "session.status":
		s.status[m.Params.SessionID] = m.Params.Status
	case "subagent.started":
		s.children = append(s.children, m.Params.ChildID)
		s.parents[m.Params.ChildID] = m.Params.ParentID
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// inserts reports whether the event puts the message into the inbox.
func (e Event) inserts(message string) bool {
	var event struct {
		Data struct {
			Inserted []struct {
				ID string `json:"id"`
			} `json:"inserted"`
		} `json:"data"`
	}
	if e.Type != "agent/inbox/spliced" || json.Unmarshal(e.Raw, &event) != nil {
		return false
	}
	for _, m := range event.Data.Inserted {
		if m.ID == message {
			return true
		}
	}
	return false
}

// isMessage reports whether the event is that message in the session's history.
func (e Event) isMessage(message string) bool {
	var event struct {
		Data struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	return e.Type == "user/message" && json.Unmarshal(e.Raw, &event) == nil && event.Data.ID == message
}
