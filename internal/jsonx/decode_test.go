package jsonx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// core S3, G1, G3: what lossless JSON is.
var texts = []struct {
	name, text string
	ok         bool
}{
	{"object", `{}`, true},
	{"array", `[]`, true},
	{"white space", " \t\r\n{ \"a\" : [ 1 , 2 ] } \n", true},
	{"literals", `[true,false,null]`, true},
	{"scalar", `"x"`, true},
	{"escapes", `"\"\\\/\b\f\n\r\t\u00e9"`, true},
	{"surrogate pair", `"\ud83d\ude00"`, true},
	{"raw rune", `"é😀"`, true},
	{"replacement character", `"�"`, true},
	{"line separator", "\"\u2028\"", true},
	{"integer bounds", `[9007199254740991,-9007199254740991]`, true},
	{"zero", `[0,0.0,0e5,1e-400]`, true},
	{"fractions", `[1.5,-2.25e-3,1E+2]`, true},
	{"deep", strings.Repeat("[", jsonx.MaxDepth) + strings.Repeat("]", jsonx.MaxDepth), true},
	{"key by case", `{"a":1,"A":2}`, true},
	{"same key at two levels", `{"a":{"a":1}}`, true},
	{"empty key", `{"":1}`, true},
	{"thirteen keys", keys(13), true},

	{"nothing", ``, false},
	{"white space alone", ` `, false},
	{"two values", `{}{}`, false},
	{"data behind", `{} x`, false},
	{"byte order mark", "\ufeff{}", false},
	{"trailing comma", `[1,]`, false},
	{"trailing comma in an object", `{"a":1,}`, false},
	{"no comma", `[1 2]`, false},
	{"no colon", `{"a" 1}`, false},
	{"no value", `{"a":}`, false},
	{"unquoted key", `{a:1}`, false},
	{"single quotes", `{'a':1}`, false},
	{"comment", `{/**/}`, false},
	{"unterminated object", `{"a":1`, false},
	{"unterminated array", `[1`, false},
	{"unterminated string", `"a`, false},
	{"closed by another", `[1}`, false},
	{"duplicate key", `{"a":1,"a":1}`, false},
	{"duplicate key, escaped", `{"a":1,"\u0061":1}`, false},
	{"duplicate key among many", strings.Replace(keys(40), `"k39"`, `"k3"`, 1), false},
	{"duplicate key deep down", `[{"x":{"b":1,"b":2}}]`, false},
	{"control character", "\"a\x01\"", false},
	{"line break in a string", "\"a\nb\"", false},
	{"unknown escape", `"\x41"`, false},
	{"short escape", `"\u12"`, false},
	{"bad hex", `"\u12g4"`, false},
	{"high surrogate alone", `"\ud83d"`, false},
	{"low surrogate alone", `"\ude00"`, false},
	{"surrogates in the wrong order", `"\ude00\ud83d"`, false},
	{"high surrogate and a letter", `"\ud83d\u0041"`, false},
	{"invalid UTF-8", "\"\xff\"", false},
	{"invalid UTF-8 behind eight good bytes", "\"abcdefgh\xff\"", false},
	{"cut rune", "\"\xc3\"", false},
	{"overlong", "\"\xc0\xaf\"", false},
	{"raw surrogate", "\"\xed\xa0\x80\"", false},
	{"minus zero", `-0`, false},
	{"minus zero with a fraction", `-0.0`, false},
	{"minus zero by underflow", `-1e-400`, false},
	{"leading zero", `01`, false},
	{"plus", `+1`, false},
	{"lone minus", `-`, false},
	{"point without digits", `1.`, false},
	{"point first", `.5`, false},
	{"exponent without digits", `1e`, false},
	{"unsafe integer", `9007199254740992`, false},
	{"unsafe negative integer", `-9007199254740992`, false},
	{"unsafe integer as an exponent", `1e16`, false},
	{"overflow", `1e400`, false},
	{"NaN", `NaN`, false},
	{"Infinity", `Infinity`, false},
	{"capital literal", `True`, false},
	{"cut literal", `tru`, false},
	{"too deep", strings.Repeat("[", jsonx.MaxDepth+2) + strings.Repeat("]", jsonx.MaxDepth+2), false},
}

func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestValidate_S3(t *testing.T) {
	for _, tc := range texts {
		t.Run(tc.name, func(t *testing.T) {
			err := jsonx.Validate([]byte(tc.text))
			var syntax *jsonx.SyntaxError
			switch {
			case tc.ok && err != nil:
				t.Error(err)
			case !tc.ok && !errors.As(err, &syntax):
				t.Errorf("error %v", err)
			case !tc.ok && (syntax.Offset < 0 || syntax.Offset > len(tc.text)):
				t.Errorf("offset %d", syntax.Offset)
			}
			compact, err := jsonx.Compact([]byte(tc.text))
			if tc.ok != (err == nil) {
				t.Fatalf("compact: %v", err)
			}
			if !tc.ok {
				return
			}
			var want bytes.Buffer
			if err := json.Compact(&want, []byte(tc.text)); err != nil {
				t.Fatal(err)
			}
			if want.String() != string(compact) {
				t.Errorf("compact %s, want %s", compact, want.String())
			}
		})
	}
}

// Members come in order, unescaped, with the bytes of their values; strict and
// walking readers agree on what is valid.
func TestReadObject(t *testing.T) {
	const text = " {\"a\":1, \"\\u0062\\n\" : [ {\"}\":\"\\\\\\\"]\"} , 2 ], \"c\":\"x\\\\\" , \"\":{} } "
	want := []string{`a=1`, "b\n=[ {\"}\":\"\\\\\\\"]\"} , 2 ]", `c="x\\"`, `={}`}
	for name, read := range map[string]func([]byte, func(string, []byte) error) error{"read": jsonx.ReadObject, "walk": jsonx.WalkObject} {
		var got []string
		if err := read([]byte(text), func(key string, raw []byte) error {
			got = append(got, key+"="+string(raw))
			return nil
		}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		stop := errors.New("stop")
		if err := read([]byte(text), func(string, []byte) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("%s: the callback's error became %v", name, err)
		}
		for _, bad := range []string{``, `[]`, `1`, `{"a"}`, `{"a":`, `{1:2}`, `{"a":"`} {
			if err := read([]byte(bad), func(string, []byte) error { return nil }); err == nil {
				t.Errorf("%s: %s was taken", name, bad)
			}
		}
	}
	if err := jsonx.ReadObject([]byte(`{"a":1}{`), nil); err == nil {
		t.Error("data behind the object was taken")
	}
}

func TestReadArray(t *testing.T) {
	const text = " [1, \"a,]\" , [2,3] ,{}, null ] "
	want := []string{`1`, `"a,]"`, `[2,3]`, `{}`, `null`}
	for name, read := range map[string]func([]byte, func([]byte) error) error{"read": jsonx.ReadArray, "walk": jsonx.WalkArray} {
		var got []string
		if err := read([]byte(text), func(raw []byte) error {
			got = append(got, string(raw))
			return nil
		}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		for _, bad := range []string{``, `{}`, `1`, `["a`} {
			if err := read([]byte(bad), func([]byte) error { return nil }); err == nil {
				t.Errorf("%s: %s was taken", name, bad)
			}
		}
	}
}

func TestScalars(t *testing.T) {
	for text, want := range map[string]string{`"a"`: "a", ` "\ud83d\ude00\n" `: "😀\n", `""`: ""} {
		if got, err := jsonx.String([]byte(text)); err != nil || got != want {
			t.Errorf("String(%s) = %q, %v", text, got, err)
		}
	}
	for text, want := range map[string]int64{`0`: 0, ` -7 `: -7, `9007199254740991`: jsonx.MaxSafe} {
		if got, err := jsonx.Int([]byte(text)); err != nil || got != want {
			t.Errorf("Int(%s) = %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]bool{`true`: true, ` false `: false} {
		if got, err := jsonx.Bool([]byte(text)); err != nil || got != want {
			t.Errorf("Bool(%s) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{``, `1`, `null`, `"a" "b"`, `"a`} {
		if got, err := jsonx.String([]byte(text)); err == nil {
			t.Errorf("String(%s) = %q", text, got)
		}
	}
	for _, text := range []string{``, `"1"`, `1.0`, `1e2`, `null`, `9007199254740992`, `-0`, `01`} {
		if got, err := jsonx.Int([]byte(text)); err == nil {
			t.Errorf("Int(%s) = %d", text, got)
		}
	}
	for _, text := range []string{`-1`, `1.5`} {
		if got, err := jsonx.Natural([]byte(text)); err == nil {
			t.Errorf("Natural(%s) = %d", text, got)
		}
	}
	for _, text := range []string{``, `1`, `null`, `"true"`} {
		if got, err := jsonx.Bool([]byte(text)); err == nil {
			t.Errorf("Bool(%s) = %v", text, got)
		}
	}
	if err := jsonx.UnknownKey("x"); !errors.Is(err, jsonx.ErrUnknownKey) {
		t.Errorf("UnknownKey: %v", err)
	}
}

// core G1: encoders escape what JSON requires and nothing else.
func TestAppendString_G1(t *testing.T) {
	for in, want := range map[string]string{
		"":                    `""`,
		"<b>&amp;</b>":        `"<b>&amp;</b>"`,
		"a\"b\\c/":            `"a\"b\\c/"`,
		"\x00\x1f\b\f\n\r\t":  `"\u0000\u001f\b\f\n\r\t"`,
		"é\u2028😀\x7f":        "\"é\u2028😀\x7f\"",
		"12345678\"12345678":  `"12345678\"12345678"`,
		"1234567\n12345678\\": `"1234567\n12345678\\"`,
	} {
		got := string(jsonx.AppendString(nil, in))
		if got != want {
			t.Errorf("%q is written as %s, want %s", in, got, want)
		}
		if back, err := jsonx.String([]byte(got)); err != nil || back != in {
			t.Errorf("%s reads back as %q, %v", got, back, err)
		}
		if n, err := jsonx.StringLen([]byte(got)); err != nil || n != len(in) || jsonx.StringSize(in) != len(want) {
			t.Errorf("%s counts as %d bytes, %v; %q as %d encoded", got, n, err, in, jsonx.StringSize(in))
		}
	}
}

func TestAppendFields(t *testing.T) {
	buf := []byte("{")
	buf = jsonx.AppendIntField(buf, "seq", 0)
	buf = jsonx.AppendStringField(buf, "s", "x")
	buf = jsonx.AppendTrueField(buf, "t")
	buf = jsonx.AppendRawField(buf, "raw", []byte("{ \"a b\" : \"\\\" \\\\\" ,\n\t\"c\" : [ 1 ] }\r\n"))
	buf = append(buf, '}')
	if want := `{"seq":0,"s":"x","t":true,"raw":{"a b":"\" \\","c":[1]}}`; string(buf) != want {
		t.Errorf("written as %s, want %s", buf, want)
	}
}

// Whatever is accepted, encoding/json accepts too and understands alike; the
// walking readers see the same members as the strict ones.
func FuzzValidate(f *testing.F) {
	for _, tc := range texts {
		f.Add([]byte(tc.text))
	}
	f.Add([]byte(`{"\u`)) // cut inside a key's escape
	f.Add([]byte(`{"\u":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		walked := func(strict bool) (out []string) {
			object, array := jsonx.WalkObject, jsonx.WalkArray
			if strict {
				object, array = jsonx.ReadObject, jsonx.ReadArray
			}
			err := object(data, func(key string, raw []byte) error {
				out = append(out, key, string(raw))
				return nil
			})
			if err != nil {
				out = nil
				err = array(data, func(raw []byte) error {
					out = append(out, string(raw))
					return nil
				})
			}
			if err != nil {
				return nil
			}
			return out
		}
		loose := walked(false) // must not panic, whatever the text
		text, walkErr := jsonx.WalkString(data)
		if err := jsonx.Validate(data); err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q is not JSON", data)
		}
		if compact := jsonx.AppendRaw(nil, data); jsonx.Tight(data) != bytes.Equal(data, compact) {
			t.Fatalf("%q is said to be tight: %v", data, jsonx.Tight(data))
		}
		if s, err := jsonx.String(data); err == nil && data[0] == '"' && data[len(data)-1] == '"' && (walkErr != nil || s != text) {
			t.Fatalf("%q: read %q, walked %q (%v)", data, s, text, walkErr)
		}
		if strict := walked(true); !slices.Equal(strict, loose) {
			t.Fatalf("%q: read %q, walked %q", data, strict, loose)
		}
		compact, err := jsonx.Compact(data)
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		if err := json.Compact(&want, data); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want.Bytes(), compact) {
			t.Fatalf("%q: compact %q, want %q", data, compact, want.Bytes())
		}
		if s, err := jsonx.String(data); err == nil {
			var same string
			if err := json.Unmarshal(data, &same); err != nil || same != s {
				t.Fatalf("%q: string %q, encoding/json says %q, %v", data, s, same, err)
			}
			written := jsonx.AppendString(nil, s)
			if again, err := jsonx.String(written); err != nil || again != s {
				t.Fatalf("%q is written as what reads back as %q, %v", s, again, err)
			}
			if n := jsonx.StringSize(s); n != len(written) {
				t.Fatalf("%q is written in %d bytes, counted as %d", s, len(written), n)
			}
			if n, err := jsonx.StringLen(bytes.TrimSpace(data)); err != nil || n != len(s) {
				t.Fatalf("%q holds %d bytes, counted as %d, %v", data, len(s), n, err)
			}
		}
	})
}
