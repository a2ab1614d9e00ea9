package session

import "context"

// Load makes the whole log readable: who needs what was stored before the session was
// opened calls it first, since the readers of a log (History, Surface, Event, Events,
// Prefix, RequestHeader, RequestContext) cannot say that it could not be read. Of a log
// that is in memory it returns nil at once.
func (s *Session) Load(context.Context) error { return nil }
