package rpcconn

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Dialect is how JSON-RPC is written. What is read may be either.
type Dialect int

const (
	// JSONRPC has the member jsonrpc with the value "2.0".
	JSONRPC Dialect = iota
	// Bare has no such member.
	Bare
)

// message is one decoded line.
type message struct {
	kind   kind
	id     json.RawMessage // as it came; nil for a notification
	key    string          // of id: the same for two spellings of one string
	method string
	params json.RawMessage // nil if absent
	result json.RawMessage // nil if absent
	err    *Error
}

type kind int

const (
	notification kind = iota
	request
	response
)

// decode reads one line. Names are matched exactly and a repeated one counts as
// often as JSON.parse would: the last wins. Bytes that are not UTF-8 become U+FFFD,
// as in the decoders that these protocols come from.
func decode(line []byte) (message, *Fault) {
	fault := func(kind FaultKind) (message, *Fault) { return message{}, faultOf(kind, line) }
	text := line
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte(string(utf8.RuneError)))
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return fault(FaultSyntax)
	}
	var m message
	id, ok := member(members, "id")
	if ok {
		if m.key, ok = idKey(id); !ok {
			return fault(FaultShape)
		}
		m.id = id
	}
	method, named := member(members, "method")
	if named {
		if method[0] != '"' || json.Unmarshal(method, &m.method) != nil {
			return fault(FaultShape)
		}
	}
	m.params = members["params"]
	switch {
	case named && m.id != nil:
		m.kind = request
	case named:
		m.kind = notification
	case m.id != nil:
		m.kind = response
		m.result = members["result"]
		if raw, failed := member(members, "error"); failed {
			m.err, m.result = decodeError(raw), nil
		}
	default:
		return fault(FaultShape)
	}
	return m, nil
}

// member returns a member that is there and not null.
func member(members map[string]json.RawMessage, name string) (json.RawMessage, bool) {
	raw, ok := members[name]
	return raw, ok && string(raw) != "null"
}

// idKey reports whether raw is an id, a string or a number, and what it is filed under.
func idKey(raw json.RawMessage) (string, bool) {
	switch c := raw[0]; {
	case c == '"':
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return "", false
		}
		return `"` + s, true
	case c == '-' || c >= '0' && c <= '9':
		return string(raw), true
	}
	return "", false
}

// decodeError takes what it can from a failure: that it is one is certain.
func decodeError(raw json.RawMessage) *Error {
	e := &Error{Message: errorFallback}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return e
	}
	if code, err := strconv.ParseInt(string(members["code"]), 10, 64); err == nil {
		e.Code = code
	}
	var text string
	if json.Unmarshal(members["message"], &text) == nil && text != "" {
		e.Message = text
	}
	e.Data = members["data"]
	return e
}

func faultOf(kind FaultKind, line []byte) *Fault {
	return &Fault{Kind: kind, Size: len(line), Excerpt: string(line[:min(len(line), faultExcerpt)])}
}

// Object returns params if it is an object, and an empty object if it is anything
// else or absent.
func Object(params json.RawMessage) json.RawMessage {
	if trimmed := bytes.TrimLeft(params, jsonSpace); len(trimmed) > 0 && trimmed[0] == '{' {
		return params
	}
	return json.RawMessage("{}")
}

// begin appends the opening of a message.
func (d Dialect) begin(buf []byte) []byte {
	if d == Bare {
		return append(buf, '{')
	}
	return append(buf, `{"jsonrpc":"2.0",`...)
}

// outgoing encodes a call or, without an id, a notification, with its terminator.
// params that are nil are left out.
func (d Dialect) outgoing(id json.RawMessage, method string, params any) ([]byte, error) {
	name, err := encode(method)
	if err != nil {
		return nil, err
	}
	buf := d.begin(nil)
	if id != nil {
		buf = append(append(append(buf, `"id":`...), id...), ',')
	}
	buf = append(append(buf, `"method":`...), name...)
	if params != nil {
		body, err := encode(params)
		if err != nil {
			return nil, err
		}
		buf = append(append(buf, `,"params":`...), body...)
	}
	return append(buf, "}\n"...), nil
}

// answer encodes the answer to a request, with its terminator.
func (d Dialect) answer(id json.RawMessage, result any, failure *Error) ([]byte, error) {
	buf := append(append(d.begin(nil), `"id":`...), id...)
	if failure == nil {
		body, err := encode(result)
		if err != nil {
			return nil, err
		}
		return append(append(append(buf, `,"result":`...), body...), "}\n"...), nil
	}
	body, err := encode(struct {
		Code    int64           `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data,omitempty"`
	}{failure.Code, failure.Message, failure.Data})
	if err != nil {
		return nil, err
	}
	return append(append(append(buf, `,"error":`...), body...), "}\n"...), nil
}

// encode returns v as JSON on one line, and with <, > and & as they are.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
