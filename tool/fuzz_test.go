package tool_test

import (
	"testing"

	"github.com/offshoot-dev/offshoot/tool"
)

// FuzzCompile: no schema makes a definition panic, and one that is taken judges any
// arguments by a result, never by a panic (core T1, T13).
func FuzzCompile(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"type":"object"}`, `{}`},
		{`{"type":"object","properties":{"a":{"type":"integer","minimum":1e400}},"required":["a"]}`, `{"a":1}`},
		{`{"type":"object","$ref":"file:///etc/passwd"}`, `{}`},
		{`{"type":"object","$ref":"#"}`, `{"a":{"a":{}}}`},
		{`{"type":"object","properties":{"a":{"pattern":"(a+)+$"}}}`, `{"a":"aaaaaaaaaaaaaaaaaaaaaaaa!"}`},
		{`{"type":"object","properties":{"a":{"multipleOf":0.1}}}`, `{"a":1e300}`},
	} {
		f.Add([]byte(seed[0]), seed[1])
	}
	f.Fuzz(func(t *testing.T, schema []byte, args string) {
		d := def("x")
		d.Parameters = schema
		s := tool.New().Root()
		if _, err := s.Register(d); err != nil {
			return
		}
		r := run(t, s, "x", args)
		if r.IsError && r.Code != tool.CodeInvalidArgs || len(r.Content) == 0 {
			t.Errorf("schema %s with %s: %+v", schema, args, r)
		}
	})
}
