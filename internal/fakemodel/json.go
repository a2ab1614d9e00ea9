package fakemodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// object is a JSON object whose members keep their order, so that the bytes on the wire look like the vendor's.
type object []member

type member struct {
	name  string
	value any
}

// appendJSON encodes nil, bool, int, string, object and []object. Strings are not HTML-escaped: the vendors do not.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case string:
		return appendString(b, v)
	case object:
		b = append(b, '{')
		for i, m := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, m.name)
			b = append(b, ':')
			b = appendJSON(b, m.value)
		}
		return append(b, '}')
	case []object:
		b = append(b, '[')
		for i, o := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, o)
		}
		return append(b, ']')
	default:
		panic(fmt.Sprintf("fakemodel: cannot encode a %T", v))
	}
}

func appendString(b []byte, s string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(fmt.Sprintf("fakemodel: encode a string: %v", err)) // no string fails to encode
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}
