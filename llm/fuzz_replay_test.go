package llm_test

import (
	"bytes"
	"testing"

	"github.com/offshoot-dev/offshoot/llm"
)

// FuzzDecodeReplay: replay state comes back from a log that anybody may have
// written; what is taken encodes to something that reads the same (M8).
func FuzzDecodeReplay(f *testing.F) {
	for _, seed := range []string{`{"response":{"a":1},"blocks":[null,{"b":"c"}]}`, `{"response":null}`, `{"blocks":[]}`, `{}`, `null`, `[`, `{"x":1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := llm.DecodeReplay(data)
		if err != nil || r == nil {
			return
		}
		again, err := llm.DecodeReplay(r.Encode())
		if err != nil {
			t.Fatalf("%s encodes to %s: %v", data, r.Encode(), err)
		}
		if !bytes.Equal(again.Encode(), r.Encode()) {
			t.Errorf("%s reads as %s, then as %s", data, r.Encode(), again.Encode())
		}
	})
}
