package structured

import "github.com/offshoot-dev/offshoot/session"

// Recorded returns the answer that the newest turn of a log holds, as Output.Value
// does, or nil. It reads the whole log: it serves to tell what a process that is gone
// had come to.
func Recorded(s *session.Session) []byte {
	f := fold{call: -1}
	for e := range s.Events(0) {
		f.Apply(&e)
	}
	return f.value
}
