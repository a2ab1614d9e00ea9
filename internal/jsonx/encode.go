package jsonx

import "strconv"

const hex = "0123456789abcdef"

// AppendString appends s as a JSON string. It escapes only what JSON requires
// (quote, backslash, control characters), so <, > and & survive byte for byte.
// Bytes that are not valid UTF-8 are copied as they are: whoever finishes a text
// checks it once with utf8.Valid, which costs less than a check per string.
func AppendString(buf []byte, s string) []byte {
	buf = append(buf, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		if len(s)-i > 8 && plain(load8(s[i:])) {
			i += 7
			continue
		}
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		buf = append(buf, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			buf = append(buf, '\\', c)
		case '\n':
			buf = append(buf, '\\', 'n')
		case '\r':
			buf = append(buf, '\\', 'r')
		case '\t':
			buf = append(buf, '\\', 't')
		case '\b':
			buf = append(buf, '\\', 'b')
		case '\f':
			buf = append(buf, '\\', 'f')
		default:
			buf = append(buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	buf = append(buf, s[start:]...)
	return append(buf, '"')
}

// StringSize returns how many bytes AppendString appends for s.
func StringSize(s string) int {
	n := len(s) + 2
	for i := 0; i < len(s); i++ {
		if len(s)-i > 8 && plain(load8(s[i:])) {
			i += 7
			continue
		}
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f':
			n++
		case c < 0x20:
			n += 5
		}
	}
	return n
}

// load8 returns the first eight bytes of s as binary.LittleEndian would.
func load8(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// AppendKey appends `"key":`, preceded by a comma unless the last byte of buf
// opens an object. key must need no escaping.
func AppendKey(buf []byte, key string) []byte {
	if n := len(buf); n > 0 && buf[n-1] != '{' {
		buf = append(buf, ',')
	}
	buf = append(buf, '"')
	buf = append(buf, key...)
	return append(buf, '"', ':')
}

// AppendStringField appends `"key":"value"` with a separating comma if needed.
func AppendStringField(buf []byte, key, value string) []byte {
	return AppendString(AppendKey(buf, key), value)
}

// AppendIntField appends `"key":n` with a separating comma if needed.
func AppendIntField(buf []byte, key string, n int64) []byte {
	return strconv.AppendInt(AppendKey(buf, key), n, 10)
}

// AppendTrueField appends `"key":true` with a separating comma if needed.
func AppendTrueField(buf []byte, key string) []byte {
	return append(AppendKey(buf, key), "true"...)
}

// AppendRaw appends a JSON text without its insignificant white space, so that
// what was written with line breaks elsewhere stays on one line. raw must be valid
// JSON.
func AppendRaw(buf, raw []byte) []byte {
	inString := false
	start := 0
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && (c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			buf = append(buf, raw[start:i]...)
			start = i + 1
		}
	}
	return append(buf, raw[start:]...)
}

// Tight reports whether AppendRaw would copy raw, valid JSON, as it is.
func Tight(raw []byte) bool {
	inString := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && (c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			return false
		}
	}
	return true
}

// AppendRawField appends `"key":raw` with a separating comma if needed, raw as
// AppendRaw does.
func AppendRawField(buf []byte, key string, raw []byte) []byte {
	return AppendRaw(AppendKey(buf, key), raw)
}
