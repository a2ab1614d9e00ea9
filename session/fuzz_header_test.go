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

// FuzzHeaderParser: what a parser makes of a header does not depend on the one that it
// read before.
func FuzzHeaderParser(f *testing.F) {
	const tail = `,"cwd":"/","parentSession":"b","origin":"subagent","delegationDepth":1}`
	for _, pair := range [][2]string{
		{`{"version":0,"id":"a","createdAt":1` + tail, `{"version":0,"id":"c","createdAt":23` + tail},
		{`{"version":0,"id":"a","createdAt":1` + tail, `{"version":0,"id":"c","createdAt":023` + tail},
		{`{"version":0,"id":"a","createdAt":1` + tail, `{"version":0,"id":"c\u0041","createdAt":2` + tail},
		{`{"version":0,"id":"a","createdAt":1` + tail, `{"version":0,"id":"","createdAt":2` + tail},
		{`{"version":0,"id":"a","createdAt":1` + tail, `{"version":0,"id":"c","createdAt":9007199254740992` + tail},
		{`{"version":0,"id":"a","createdAt":1` + tail, `{"version":0,"id":"c","createdAt":2,"cwd":"/","parentSession":"other"}`},
		{`{"version":0,"id":"a","createdAt":1,"cwd":"C:\\x"}`, `{"version":0,"id":"b","createdAt":1,"cwd":"C:\\x"}`},
		{`{"version":0,"id":"a","createdAt":1}`, `{"version":0,"id":"b","createdAt":1,"id":"c"}`},
		{`{"version":0,"id":"a","createdAt":1,"id":"c"}`, `{"version":0,"id":"b","createdAt":1,"id":"c"}`},
		{`{"version":0,"id":"a","createdAt":1,"parentSession":"12"}`, `{"version":0,"id":"b","createdAt":1,"parentSession":[12]}`},
		{`{"version":0,"id":"a","createdAt":1,"cwd":"/\\u0041"}`, `{"version":0,"id":"b","createdAt":1,"cwd":"/\\u0041","origin":"subagent"}`},
		{`{"version":1,"id":"a","createdAt":1}`, `{"version":0,"id":"b","createdAt":1}`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, before, data []byte) {
		var p session.HeaderParser
		if _, err := p.Parse(before); err != nil {
			t.Skip("nothing to have in common")
		}
		for range 2 {
			want, wantErr := session.ParseHeader(data)
			got, err := p.Parse(data)
			if (err == nil) != (wantErr == nil) || err == nil && got != want {
				t.Errorf("behind %s, %s is %+v, %v, and by itself %+v, %v", before, data, got, err, want, wantErr)
			}
		}
	})
}
