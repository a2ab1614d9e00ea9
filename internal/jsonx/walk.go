package jsonx

import (
	"bytes"
	"unsafe"
)

// WalkObject is ReadObject for a text that was validated already, as a whole or as
// a part of another: it looks for structure only, at a fraction of the cost. On
// any other text it fails or calls fn with parts that mean nothing; it does not
// panic.
func WalkObject(data []byte, fn func(key string, raw []byte) error) error {
	w := walker{decoder{data: data}}
	if !w.open('{') {
		return w.errorf("expected an object")
	}
	for !w.close('}') {
		start := w.pos
		if !w.skipString() {
			return w.errorf("expected a key")
		}
		key := data[start+1 : w.pos-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = unescape(key)
		}
		if w.space(); !w.accept(':') {
			return w.errorf("expected a colon")
		}
		raw, err := w.value()
		if err != nil {
			return err
		}
		if err := fn(intern(key), raw); err != nil {
			return err
		}
	}
	return nil
}

// WalkArray is ReadArray for a text that was validated already, like WalkObject.
func WalkArray(data []byte, fn func(raw []byte) error) error {
	w := walker{decoder{data: data}}
	if !w.open('[') {
		return w.errorf("expected an array")
	}
	for !w.close(']') {
		raw, err := w.value()
		if err != nil {
			return err
		}
		if err := fn(raw); err != nil {
			return err
		}
	}
	return nil
}

// WalkString reads raw as a JSON string for a text that was validated already, like
// WalkObject. Where nothing is escaped, nothing is copied: the string is raw's own
// memory, which must not be modified from then on.
func WalkString(raw []byte) (string, error) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", (&decoder{data: raw}).errorf("expected a string")
	}
	body := raw[1 : len(raw)-1]
	if bytes.IndexByte(body, '\\') >= 0 {
		body = unescape(body)
	}
	return unsafe.String(unsafe.SliceData(body), len(body)), nil
}

// walker moves over validated text.
type walker struct{ decoder }

func (w *walker) accept(c byte) bool {
	if w.pos < len(w.data) && w.data[w.pos] == c {
		w.pos++
		return true
	}
	return false
}

func (w *walker) open(c byte) bool {
	w.space()
	return w.accept(c)
}

// close reports whether the next thing is the closing bracket c, and moves behind
// it or behind a comma. At the end of the text there is nothing left to close.
func (w *walker) close(c byte) bool {
	w.space()
	if w.pos >= len(w.data) || w.accept(c) {
		return true
	}
	w.accept(',')
	w.space()
	return false
}

// value returns the next value's bytes.
func (w *walker) value() ([]byte, error) {
	w.space()
	start := w.pos
	depth := 0
	for w.pos < len(w.data) {
		switch w.data[w.pos] {
		case '"':
			if !w.skipString() {
				return nil, w.errorf("unterminated string")
			}
		case '{', '[':
			depth++
			w.pos++
		case '}', ']':
			depth--
			w.pos++
		case ',', ':', ' ', '\t', '\n', '\r':
			w.pos++
			continue
		default:
			w.scalar()
		}
		if depth <= 0 {
			return w.data[start:w.pos], nil
		}
	}
	return nil, w.errorf("unexpected end")
}

// scalar moves behind a number or a literal, of which it consumes one byte at least.
func (w *walker) scalar() {
	for w.pos++; w.pos < len(w.data); w.pos++ {
		switch w.data[w.pos] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return
		}
	}
}

// skipString moves behind a string.
func (w *walker) skipString() bool {
	if !w.accept('"') {
		return false
	}
	for i := w.pos; ; {
		n := bytes.IndexByte(w.data[i:], '"')
		if n < 0 {
			return false
		}
		i += n + 1
		// An odd number of backslashes escapes the quote.
		escapes := 0
		for k := i - 2; k >= w.pos && w.data[k] == '\\'; k-- {
			escapes++
		}
		if escapes%2 == 0 {
			w.pos = i
			return true
		}
	}
}
