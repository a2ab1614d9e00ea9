package rpcconn

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// W2, W4.
func TestDecode(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, tt := range []struct {
		in    string
		want  message
		fault FaultKind
	}{
		{in: `{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[1]}}`, want: message{kind: request, id: raw(`7`), key: `7`, method: "m", params: raw(`{"a":[1]}`)}},
		{in: `{"id":"x","method":"m"}`, want: message{kind: request, id: raw(`"x"`), key: `"x`, method: "m"}},
		{in: `{"id":"\u0078","method":"m"}`, want: message{kind: request, id: raw(`"\u0078"`), key: `"x`, method: "m"}},
		{in: `{"id":12345678901234567890123,"method":"m"}`, want: message{kind: request, id: raw(`12345678901234567890123`), key: `12345678901234567890123`, method: "m"}},
		{in: `{"id":null,"method":"m","emittedAtMs":1}`, want: message{kind: notification, method: "m"}},
		{in: `{"method":"m","params":[1]}`, want: message{kind: notification, method: "m", params: raw(`[1]`)}},
		{in: `{"method":"m","params":null}`, want: message{kind: notification, method: "m", params: raw(`null`)}},
		{in: `{"id":-1,"result":{"b":2}}`, want: message{kind: response, id: raw(`-1`), key: `-1`, result: raw(`{"b":2}`)}},
		{in: `{"id":1,"result":1,"error":null}`, want: message{kind: response, id: raw(`1`), key: `1`, result: raw(`1`)}},
		{in: `{"id":1}`, want: message{kind: response, id: raw(`1`), key: `1`}},
		{in: `{"id":1,"error":{"code":-32000,"message":"no","data":{"x":1}}}`, want: message{kind: response, id: raw(`1`), key: `1`, err: &Error{Code: -32000, Message: "no", Data: raw(`{"x":1}`)}}},
		{in: `{"id":1,"result":1,"error":{}}`, want: message{kind: response, id: raw(`1`), key: `1`, err: &Error{Message: errorFallback}}},
		{in: `{"id":1,"error":"no"}`, want: message{kind: response, id: raw(`1`), key: `1`, err: &Error{Message: errorFallback}}},
		{in: `{"id":1,"error":{"code":"E","message":5}}`, want: message{kind: response, id: raw(`1`), key: `1`, err: &Error{Message: errorFallback}}},
		{in: `{"ID":1,"Method":"m","method":"n"}`, want: message{kind: notification, method: "n"}},
		{in: "{\"method\":\"m\",\"params\":\"a\xffb\"}", want: message{kind: notification, method: "m", params: raw("\"a\uFFFDb\"")}},
		{in: `{"method":"m","params":"\ud83d"}`, want: message{kind: notification, method: "m", params: raw(`"\ud83d"`)}},
		{in: `warning: no`, fault: FaultSyntax},
		{in: `{"method":"m"`, fault: FaultSyntax},
		{in: `{"method":"m"}{}`, fault: FaultSyntax},
		{in: `[{"method":"m"}]`, fault: FaultSyntax},
		{in: `null`, fault: FaultSyntax},
		{in: `{}`, fault: FaultShape},
		{in: `{"id":null,"error":{"code":-32700,"message":"parse error"}}`, fault: FaultShape},
		{in: `{"id":true,"method":"m"}`, fault: FaultShape},
		{in: `{"id":{},"result":1}`, fault: FaultShape},
		{in: `{"id":1,"method":2}`, fault: FaultShape},
	} {
		got, fault := decode([]byte(tt.in))
		if tt.fault != "" {
			if fault == nil || fault.Kind != tt.fault || fault.Size != len(tt.in) || fault.Excerpt != tt.in {
				t.Errorf("%s: %+v", tt.in, fault)
			}
			continue
		}
		if fault != nil {
			t.Errorf("%s: %v", tt.in, fault)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(message{})); diff != "" {
			t.Errorf("%s: %s", tt.in, diff)
		}
	}
	long := strings.Repeat("secret", 1000)
	if _, fault := decode([]byte(long)); len(fault.Excerpt) != 1<<10 || strings.Contains(fault.Error(), "secret") {
		t.Errorf("%v, with an excerpt of %d bytes", fault, len(fault.Excerpt))
	}
}

// W3.
func TestObject(t *testing.T) {
	for in, want := range map[string]string{"": "{}", "null": "{}", "[1]": "{}", "3": "{}", `"{"`: "{}", `{"a":1}`: `{"a":1}`} {
		if got := Object(json.RawMessage(in)); string(got) != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}

// FuzzDecode feeds any line to the decoder. What it takes for a request is answered
// with the very id that came, on one line that the decoder takes for that answer.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":7,"method":"m","params":{}}`, `{"id":"a\n\u0062","method":"m"}`, `{"id":1e3,"error":{"code":1,"message":"x"}}`,
		`{"method":"m","params":[1,"\ud800"]}`, `[]`, "{\"id\":\"\xff\",\"method\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, fault := decode(line)
		if fault != nil {
			if fault.Size != len(line) || len(fault.Excerpt) > faultExcerpt {
				t.Errorf("fault %+v", fault)
			}
			return
		}
		if (m.id == nil) != (m.kind == notification) {
			t.Errorf("decoded %+v", m)
		}
		if m.kind != request {
			return
		}
		for _, dialect := range []Dialect{JSONRPC, Bare} {
			out, err := dialect.answer(m.id, m.params, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasSuffix(out, []byte("}\n")) || bytes.Count(out, []byte("\n")) != 1 || !bytes.Contains(out, m.id) {
				t.Errorf("answer %q", out)
			}
			back, fault := decode(out)
			if fault != nil || back.kind != response || back.key != m.key || !bytes.Equal(back.id, m.id) {
				t.Errorf("answer %q is read as %+v, %v", out, back, fault)
			}
		}
	})
}
