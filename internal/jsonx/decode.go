package jsonx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxSafe is the largest integer that every reader of the log can hold, 2^53−1.
const MaxSafe = 1<<53 - 1

// MaxDepth bounds the nesting of arrays and objects.
const MaxDepth = 512

// SyntaxError says what is wrong with a JSON text and where.
type SyntaxError struct {
	Offset int // bytes from the beginning of the text
	Msg    string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("json: %s at byte %d", e.Msg, e.Offset) }

// Validate reports whether data is exactly one lossless JSON value: the first
// offence, as a *SyntaxError.
func Validate(data []byte) error {
	d := decoder{data: data}
	if err := d.skip(0); err != nil {
		return err
	}
	return d.end()
}

// Compact returns data without insignificant white space after validating it.
// The result does not alias data.
func Compact(data []byte) ([]byte, error) {
	if err := Validate(data); err != nil {
		return nil, err
	}
	return AppendRaw(make([]byte, 0, len(data)), data), nil
}

// decoder walks one JSON text and checks every byte it passes.
type decoder struct {
	data []byte
	pos  int
}

func (d *decoder) errorf(format string, args ...any) error {
	return &SyntaxError{Offset: d.pos, Msg: fmt.Sprintf(format, args...)}
}

func (d *decoder) space() {
	for d.pos < len(d.data) {
		switch d.data[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

func (d *decoder) end() error {
	d.space()
	if d.pos != len(d.data) {
		return d.errorf("data behind the value")
	}
	return nil
}

// skip walks one value and validates it.
func (d *decoder) skip(depth int) error {
	if depth > MaxDepth {
		return d.errorf("nested deeper than %d", MaxDepth)
	}
	d.space()
	if d.pos >= len(d.data) {
		return d.errorf("unexpected end")
	}
	switch c := d.data[d.pos]; c {
	case '{':
		return d.members(depth, nil)
	case '[':
		return d.elements(depth, nil)
	case '"':
		return d.skipString()
	case 't':
		return d.literal("true")
	case 'f':
		return d.literal("false")
	case 'n':
		return d.literal("null")
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return d.number()
		}
		return d.errorf("unexpected %q", c)
	}
}

func (d *decoder) literal(word string) error {
	if len(d.data)-d.pos < len(word) || string(d.data[d.pos:d.pos+len(word)]) != word {
		return d.errorf("expected %s", word)
	}
	d.pos += len(word)
	return nil
}

// members walks an object. fn, if not nil, gets each key and the bytes of its value.
func (d *decoder) members(depth int, fn func(key string, raw []byte) error) error {
	d.pos++ // {
	d.space()
	if d.pos < len(d.data) && d.data[d.pos] == '}' {
		d.pos++
		return nil
	}
	var seen keySet
	for {
		d.space()
		if d.pos >= len(d.data) || d.data[d.pos] != '"' {
			return d.errorf("expected a key")
		}
		at := d.pos
		key, err := d.str()
		if err != nil {
			return err
		}
		if !seen.add(key) {
			return &SyntaxError{Offset: at, Msg: fmt.Sprintf("duplicate key %q", key)}
		}
		d.space()
		if d.pos >= len(d.data) || d.data[d.pos] != ':' {
			return d.errorf("expected a colon")
		}
		d.pos++
		d.space()
		start := d.pos
		if err := d.skip(depth + 1); err != nil {
			return err
		}
		if fn != nil {
			if err := fn(intern(key), d.data[start:d.pos]); err != nil {
				return err
			}
		}
		d.space()
		if d.pos >= len(d.data) {
			return d.errorf("unexpected end")
		}
		switch d.data[d.pos] {
		case ',':
			d.pos++
		case '}':
			d.pos++
			return nil
		default:
			return d.errorf("expected a comma or a closing brace")
		}
	}
}

func (d *decoder) elements(depth int, fn func(raw []byte) error) error {
	d.pos++ // [
	d.space()
	if d.pos < len(d.data) && d.data[d.pos] == ']' {
		d.pos++
		return nil
	}
	for {
		d.space()
		start := d.pos
		if err := d.skip(depth + 1); err != nil {
			return err
		}
		if fn != nil {
			if err := fn(d.data[start:d.pos]); err != nil {
				return err
			}
		}
		d.space()
		if d.pos >= len(d.data) {
			return d.errorf("unexpected end")
		}
		switch d.data[d.pos] {
		case ',':
			d.pos++
		case ']':
			d.pos++
			return nil
		default:
			return d.errorf("expected a comma or a closing bracket")
		}
	}
}

// intern returns the key as a string without an allocation for those that occur in
// nearly every event, of which a log has several in each, and for those of headers and
// checkpoints, of which a listing has one in each row.
func intern(key []byte) string {
	switch string(key) {
	case "type":
		return "type"
	case "seq":
		return "seq"
	case "time":
		return "time"
	case "data":
		return "data"
	case "surfaceOp":
		return "surfaceOp"
	case "turn":
		return "turn"
	case "step":
		return "step"
	case "message":
		return "message"
	case "id":
		return "id"
	case "role":
		return "role"
	case "content":
		return "content"
	case "source":
		return "source"
	case "kind":
		return "kind"
	case "text":
		return "text"
	case "provider":
		return "provider"
	case "model":
		return "model"
	case "name":
		return "name"
	case "arguments":
		return "arguments"
	case "callId":
		return "callId"
	case "toolCallId":
		return "toolCallId"
	case "target":
		return "target"
	case "start":
		return "start"
	case "inserted":
		return "inserted"
	case "removedCount":
		return "removedCount"
	case "usage":
		return "usage"
	case "inputTokens":
		return "inputTokens"
	case "outputTokens":
		return "outputTokens"
	case "cacheReadTokens":
		return "cacheReadTokens"
	case "cacheWriteTokens":
		return "cacheWriteTokens"
	case "reasoningTokens":
		return "reasoningTokens"
	case "sourceEventSeqs":
		return "sourceEventSeqs"
	case "isError":
		return "isError"
	case "plugin":
		return "plugin"
	case "form":
		return "form"
	case "summary":
		return "summary"
	case "meta":
		return "meta"
	case "senderSessionId":
		return "senderSessionId"
	case "replayState":
		return "replayState"
	case "version":
		return "version"
	case "createdAt":
		return "createdAt"
	case "cwd":
		return "cwd"
	case "parentSession":
		return "parentSession"
	case "seedLength":
		return "seedLength"
	case "origin":
		return "origin"
	case "delegationDepth":
		return "delegationDepth"
	case "mode":
		return "mode"
	case "label":
		return "label"
	case "state":
		return "state"
	case "reason":
		return "reason"
	case "queued":
		return "queued"
	case "settledMs":
		return "settledMs"
	case "title":
		return "title"
	case "derived":
		return "derived"
	case "input":
		return "input"
	case "output":
		return "output"
	case "cacheRead":
		return "cacheRead"
	case "cacheWrite":
		return "cacheWrite"
	case "reasoning":
		return "reasoning"
	case "requests":
		return "requests"
	case "last":
		return "last"
	}
	return string(key)
}

// Plain reports whether data stands for itself between the quotes of a JSON string:
// printable ASCII without quotes and escapes.
func Plain(data []byte) bool {
	for _, c := range data {
		if c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// plain reports whether none of the eight bytes in w ends a string, escapes, is a
// control character or belongs to a rune of several bytes.
func plain(w uint64) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^ones*'"', w^ones*'\\'
	return (w|(w-ones*0x20)|(quote-ones)|(slash-ones))&highs == 0
}

// keySet remembers the keys of one object: a scan while they are few, a map
// beyond, so that an object with very many keys stays linear.
type keySet struct {
	few  [12][]byte
	n    int
	many map[string]struct{}
}

func (k *keySet) add(key []byte) bool {
	if k.many == nil {
		for i := 0; i < k.n; i++ {
			if bytes.Equal(k.few[i], key) {
				return false
			}
		}
		if k.n < len(k.few) {
			k.few[k.n] = key
			k.n++
			return true
		}
		k.many = make(map[string]struct{}, 4*len(k.few))
		for _, f := range k.few {
			k.many[string(f)] = struct{}{}
		}
	}
	if _, dup := k.many[string(key)]; dup {
		return false
	}
	k.many[string(key)] = struct{}{}
	return true
}

// skipString validates a string and moves past it.
func (d *decoder) skipString() error {
	i := d.pos + 1
	data := d.data
	for i < len(data) {
		if len(data)-i >= 8 && plain(binary.LittleEndian.Uint64(data[i:])) {
			i += 8
			continue
		}
		c := data[i]
		switch {
		case c == '"':
			d.pos = i + 1
			return nil
		case c == '\\':
			n, err := d.escape(i)
			if err != nil {
				return err
			}
			i += n
		case c < 0x20:
			d.pos = i
			return d.errorf("control character in a string")
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && size == 1 {
				d.pos = i
				return d.errorf("invalid UTF-8")
			}
			i += size
		}
	}
	d.pos = i
	return d.errorf("unterminated string")
}

// escape checks the escape sequence at i and returns its length; a surrogate
// pair counts as one.
func (d *decoder) escape(i int) (int, error) {
	data := d.data
	fail := func(msg string) (int, error) { return 0, &SyntaxError{Offset: i, Msg: msg} }
	if i+1 >= len(data) {
		return fail("unterminated escape")
	}
	switch data[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, nil
	case 'u':
		r, ok := hex4(data, i+2)
		if !ok {
			return fail("bad \\u escape")
		}
		if !utf16.IsSurrogate(r) {
			return 6, nil
		}
		if i+7 < len(data) && data[i+6] == '\\' && data[i+7] == 'u' {
			if r2, ok := hex4(data, i+8); ok && utf16.DecodeRune(r, r2) != utf8.RuneError {
				return 12, nil
			}
		}
		return fail("unpaired surrogate")
	default:
		return fail("unknown escape")
	}
}

func hex4(data []byte, i int) (rune, bool) {
	if i+4 > len(data) {
		return 0, false
	}
	var r rune
	for _, c := range data[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// str reads a string. The result aliases the input where nothing was escaped.
func (d *decoder) str() ([]byte, error) {
	start := d.pos
	if err := d.skipString(); err != nil {
		return nil, err
	}
	raw := d.data[start+1 : d.pos-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw, nil
	}
	return unescape(raw), nil
}

// unescape decodes the escapes of a validated string body.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		plain := bytes.IndexByte(raw[i:], '\\')
		if plain < 0 {
			return append(out, raw[i:]...)
		}
		out = append(out, raw[i:i+plain]...)
		if i += plain; i+1 == len(raw) {
			return out // not validated, see WalkString
		}
		switch raw[i+1] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(raw, i+2)
			if utf16.IsSurrogate(r) {
				r2, _ := hex4(raw, i+8)
				r = utf16.DecodeRune(r, r2)
				i += 6
			}
			out = utf8.AppendRune(out, r)
			i += 4
		default:
			out = append(out, raw[i+1])
		}
		i += 2
	}
	return out
}

func (d *decoder) number() error {
	start := d.pos
	i := d.pos
	data := d.data
	if data[i] == '-' {
		i++
	}
	digits := func() int {
		n := 0
		for i < len(data) && data[i] >= '0' && data[i] <= '9' {
			i++
			n++
		}
		return n
	}
	intStart := i
	n := digits()
	if n == 0 || n > 1 && data[intStart] == '0' {
		return d.errorf("malformed number")
	}
	isInt := true
	if i < len(data) && data[i] == '.' {
		isInt = false
		i++
		if digits() == 0 {
			return d.errorf("malformed number")
		}
	}
	if i < len(data) && (data[i] == 'e' || data[i] == 'E') {
		isInt = false
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		if digits() == 0 {
			return d.errorf("malformed number")
		}
	}
	if isInt && n < 16 {
		if data[start] == '-' && n == 1 && data[intStart] == '0' {
			return d.errorf("negative zero")
		}
		d.pos = i
		return nil
	}
	f, err := strconv.ParseFloat(string(data[start:i]), 64)
	if err != nil || math.IsInf(f, 0) {
		return d.errorf("number out of range")
	}
	if f == 0 && data[start] == '-' {
		return d.errorf("negative zero")
	}
	if f == math.Trunc(f) && math.Abs(f) > MaxSafe {
		return d.errorf("integer beyond ±(2^53−1)")
	}
	d.pos = i
	return nil
}

// ReadObject calls fn for each member of the object data, in order, with the
// unescaped key and the value's bytes, which alias data. It fails if data is not
// one lossless JSON object, or with fn's first error.
func ReadObject(data []byte, fn func(key string, raw []byte) error) error {
	d := decoder{data: data}
	d.space()
	if d.pos >= len(data) || data[d.pos] != '{' {
		return d.errorf("expected an object")
	}
	if err := d.members(0, fn); err != nil {
		return err
	}
	return d.end()
}

// ReadArray calls fn for each element of the array data, like ReadObject.
func ReadArray(data []byte, fn func(raw []byte) error) error {
	d := decoder{data: data}
	d.space()
	if d.pos >= len(data) || data[d.pos] != '[' {
		return d.errorf("expected an array")
	}
	if err := d.elements(0, fn); err != nil {
		return err
	}
	return d.end()
}

// String reads raw as a JSON string.
func String(raw []byte) (string, error) {
	d := decoder{data: raw}
	d.space()
	if d.pos >= len(raw) || raw[d.pos] != '"' {
		return "", d.errorf("expected a string")
	}
	s, err := d.str()
	if err != nil {
		return "", err
	}
	if err := d.end(); err != nil {
		return "", err
	}
	return string(s), nil
}

// StringLen returns the length in bytes of the string that raw, a validated JSON
// text, encodes, without building it.
func StringLen(raw []byte) (int, error) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return 0, &SyntaxError{Msg: fmt.Sprintf("expected a string, not %s", clip(raw))}
	}
	raw = raw[1 : len(raw)-1]
	n := len(raw)
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return n, nil
		}
		size := 2
		if raw[i+1] == 'u' {
			r, _ := hex4(raw, i+2)
			size = 6
			if utf16.IsSurrogate(r) {
				r2, _ := hex4(raw, i+8)
				r = utf16.DecodeRune(r, r2)
				size = 12
			}
			n += utf8.RuneLen(r)
		} else {
			n++
		}
		n -= size
		raw = raw[min(i+size, len(raw)):]
	}
}

// Int reads raw as an integer within ±(2^53−1), written without fraction or exponent.
func Int(raw []byte) (int64, error) {
	if err := Validate(raw); err != nil {
		return 0, err
	}
	raw = bytes.TrimSpace(raw)
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, &SyntaxError{Msg: fmt.Sprintf("expected an integer, not %s", clip(raw))}
	}
	return n, nil
}

// Natural reads raw as an integer from 0 to 2^53−1.
func Natural(raw []byte) (int64, error) {
	n, err := Int(raw)
	if err == nil && n < 0 {
		return 0, &SyntaxError{Msg: fmt.Sprintf("expected a non-negative integer, not %d", n)}
	}
	return n, err
}

// Bool reads raw as a boolean.
func Bool(raw []byte) (bool, error) {
	switch string(bytes.TrimSpace(raw)) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, &SyntaxError{Msg: fmt.Sprintf("expected a boolean, not %s", clip(raw))}
}

// ErrUnknownKey is wrapped by UnknownKey.
var ErrUnknownKey = errors.New("unknown key")

// UnknownKey returns the error for a key that a closed object does not have.
func UnknownKey(key string) error { return fmt.Errorf("%w %q", ErrUnknownKey, key) }

// ValidString reports whether s is valid UTF-8 and so survives encoding unchanged.
func ValidString(s string) bool { return utf8.ValidString(s) }

func clip(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "…"
	}
	return string(raw)
}
