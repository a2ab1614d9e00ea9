package sqlite

import "time"

// Age makes this process believe that its last heartbeat lies d in the past.
func (s *Store) Age(d time.Duration) {
	t := s.opt.Now().Add(-d)
	s.lastBeat.Store(&t)
}

// WithUptime returns the options with a clock of the host that a test moves.
func (o Options) WithUptime(fn func() time.Duration) Options {
	o.uptime = fn
	return o
}

// Synchronous reads the setting in force on the write connection. Only a store
// that is at rest may be asked.
func (s *Store) Synchronous() (n int, err error) {
	_, err = s.write.row("PRAGMA synchronous", nil, []any{&n})
	return n, err
}

// BreakWriter makes the store believe that the state of its write connection is
// unknown. Only a store that is at rest may be told.
func (s *Store) BreakWriter() { s.write.broken = true }

// Waiting returns how many requests wait in the queue.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// HostUptime is how long the host is up.
func HostUptime() time.Duration { return hostUptime() }
