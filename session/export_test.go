package session

// Encoded returns the bytes that an append of the payload would store, or why it
// would be refused.
func Encoded(p Payload) ([]byte, error) {
	if c, ok := p.(checker); ok {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	return p.appendJSON(nil), nil
}

// Types lists the vocabulary.
func Types() []Type {
	var out []Type
	for _, info := range vocabulary() {
		out = append(out, info.typ)
	}
	return out
}

// Quiet calls fn between two writes of the session, none of which begins before fn has
// returned: with how many events are known to be stored, and whether there may be more.
// fn uses no method of the session that takes its lock.
func (s *Session) Quiet(fn func(durable int64, uncertain bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idleLocked()
	fn(s.durableLocked(), s.uncertain)
}

// KeepsTook reports whether the session keeps anything of settlements that were taken.
func (s *Session) KeepsTook() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.took != nil || s.box.claims != nil
}

// PendingClaims returns how many claimed settlements the log did not note yet.
func (s *Session) PendingClaims() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.box.claims)
}

// Cold reports whether the session was opened without its log, and has not loaded it.
func (s *Session) Cold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cold != nil
}

// Decoded returns how many messages the log holds decoded beside the surface.
func (s *Session) Decoded() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		switch s.events[i].payload.(type) {
		case *InboxSpliced, *UserMessage, *AssistantMessage, *ToolCall, *ToolResult, *ToolSpill:
			n++
		}
	}
	return n
}

// Spare returns how many bytes are kept for events to come.
func (s *Session) Spare() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cap(s.arena) - len(s.arena)
}
