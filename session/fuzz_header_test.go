package session_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

// FuzzParseHeader: no header makes the parser panic, and one that it takes comes
// back the same from its own encoding (S20, G1).
func FuzzParseHeader(f *testing.F) {
	for _, seed := range []string{
		`{"version":0,"id":"a","createdAt":1}`,
		`{"version":0,"id":"a","createdAt":1,"cwd":"/","parentSession":"b","seedLength":3,"origin":"subagent","delegationDepth":2,"agentPreset":"p"}`,
		`{"version":0,"id":"a","createdAt":1,"cwd":"C:\\x"}`,
		`{"version":1,"id":"a","createdAt":1}`, `{"version":0,"id":"","createdAt":-1}`, `[]`, `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := session.ParseHeader(data)
		if err != nil {
			return
		}
		again, err := session.ParseHeader(h.AppendJSON(nil))
		if err != nil || again != h {
			t.Errorf("%s became %+v, then %+v, %v", data, h, again, err)
		}
	})
}
