package scripted

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/llm"
)

// template is a text with references into the request.
type template struct {
	pieces []piece
}

// piece is a literal followed by a reference, the latter absent in the last one.
type piece struct {
	literal string
	ref     *reference
	// quoted says that the reference stands within a JSON string.
	quoted bool
}

type referenceKind int

const (
	refResult referenceKind = iota
	refMatch
	refRequest
)

type reference struct {
	// source is the whole reference with its braces, for error messages.
	source string
	kind   referenceKind
	// A result is that of a tool, or of the nth call, from 1.
	tool string
	n    int
	path []string
	re   *regexp.Regexp
}

// parseTemplate reads a text with references. json says that it is JSON text once
// they are filled in.
func parseTemplate(text string, json bool) (template, error) {
	var t template
	literal, quoted := 0, false
	for at := 0; ; {
		i := strings.Index(text[at:], "{{")
		if i < 0 {
			t.pieces = append(t.pieces, piece{literal: text[literal:]})
			return t, nil
		}
		start := at + i
		kind, body, ok := referenceHead(text[start+2:])
		if !ok {
			at = start + 1
			continue
		}
		n := referenceEnd(body)
		if n < 0 {
			return template{}, fmt.Errorf("template: %q has no end", clip(text[start:], 60))
		}
		end := len(text) - len(body) + n + 2
		ref, err := parseReference(kind, body[:n], text[start:end])
		if err != nil {
			return template{}, err
		}
		if json {
			quoted = inString(text[literal:start], quoted)
		}
		t.pieces = append(t.pieces, piece{literal: text[literal:start], ref: ref, quoted: quoted})
		at, literal = end, end
	}
}

func referenceHead(s string) (kind referenceKind, body string, ok bool) {
	for k, word := range [...]string{refResult: "result:", refMatch: "match:", refRequest: "request:"} {
		if body, ok = strings.CutPrefix(s, word); ok {
			return referenceKind(k), body, true
		}
	}
	return 0, "", false
}

// referenceEnd returns where the closing braces begin. Braces of a regular
// expression are balanced, or escaped.
func referenceEnd(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth == 0 {
				if strings.HasPrefix(s[i:], "}}") {
					return i
				}
				continue
			}
			depth--
		}
	}
	return -1
}

func parseReference(kind referenceKind, body, source string) (*reference, error) {
	ref := &reference{source: source, kind: kind}
	if kind == refResult {
		name, path, hasPath := strings.Cut(body, ":")
		if name == "" || (hasPath && path == "") {
			return nil, fmt.Errorf("template: %s names no result", source)
		}
		if n, err := strconv.Atoi(name); err == nil {
			if n < 1 {
				return nil, fmt.Errorf("template: %s: results are counted from 1", source)
			}
			ref.n = n
		} else {
			ref.tool = name
		}
		if hasPath {
			ref.path = strings.Split(path, ".")
		}
		return ref, nil
	}
	re, err := regexp.Compile(body)
	if err != nil {
		return nil, fmt.Errorf("template: %s: %w", source, err)
	}
	ref.re = re
	return ref, nil
}

// inString reports whether JSON text ends within a string, given how it began.
func inString(s string, in bool) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			in = !in
		case '\\':
			if in {
				i++
			}
		}
	}
	return in
}

func (t template) expand(req *llm.Request) (string, error) {
	if len(t.pieces) == 1 && t.pieces[0].ref == nil {
		return t.pieces[0].literal, nil
	}
	var out []byte
	for i := range t.pieces {
		p := &t.pieces[i]
		out = append(out, p.literal...)
		if p.ref == nil {
			continue
		}
		value, err := p.ref.resolve(req)
		if err != nil {
			return "", err
		}
		if !p.quoted {
			out = append(out, value...)
			continue
		}
		escaped := jsonx.AppendString(nil, value)
		out = append(out, escaped[1:len(escaped)-1]...)
	}
	return string(out), nil
}

func (r *reference) resolve(req *llm.Request) (string, error) {
	switch r.kind {
	case refResult:
		return r.result(req)
	case refMatch:
		for _, result := range LastResults(req) {
			if s, ok := capture(r.re, result.Text); ok {
				return s, nil
			}
		}
		return "", fmt.Errorf("%s matches none of the last tool results", r.source)
	default:
		for i := len(req.Messages) - 1; i >= 0; i-- {
			if s, ok := capture(r.re, messageText(&req.Messages[i])); ok {
				return s, nil
			}
		}
		if s, ok := capture(r.re, req.System); ok {
			return s, nil
		}
		return "", fmt.Errorf("%s matches nothing in the request", r.source)
	}
}

func capture(re *regexp.Regexp, text string) (string, bool) {
	m := re.FindStringSubmatchIndex(text)
	switch {
	case m == nil:
		return "", false
	case len(m) >= 4 && m[2] >= 0:
		return text[m[2]:m[3]], true
	case len(m) >= 4:
		return "", true
	default:
		return text[m[0]:m[1]], true
	}
}

func (r *reference) result(req *llm.Request) (string, error) {
	text, found := "", false
	if r.tool != "" {
		text, found = latestResult(req, r.tool)
	} else if last := LastResults(req); r.n <= len(last) {
		text, found = last[r.n-1].Text, last[r.n-1].Found
	}
	if !found {
		return "", fmt.Errorf("%s: the request holds no such tool result", r.source)
	}
	if r.path == nil {
		return text, nil
	}
	value, err := member(json.RawMessage(text), r.path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.source, err)
	}
	return value, nil
}

func latestResult(req *llm.Request, tool string) (string, bool) {
	all := Results(req.Messages)
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Found && all[i].Call.Name == tool {
			return all[i].Text, true
		}
	}
	return "", false
}

// member walks down JSON by keys and array indexes. A string is returned without
// its quotes, everything else as its JSON.
func member(raw json.RawMessage, path []string) (string, error) {
	for i, key := range path {
		where := strings.Join(path[:i+1], ".")
		trimmed := strings.TrimSpace(string(raw))
		if strings.HasPrefix(trimmed, "[") {
			var list []json.RawMessage
			if err := json.Unmarshal(raw, &list); err != nil {
				return "", fmt.Errorf("the result is not JSON at %q: %w", where, err)
			}
			n, err := strconv.Atoi(key)
			if err != nil || n < 0 || n >= len(list) {
				return "", fmt.Errorf("the result has no %q: an array of %d", where, len(list))
			}
			raw = list[n]
			continue
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return "", fmt.Errorf("the result is no JSON object at %q: %w", where, err)
		}
		next, ok := object[key]
		if !ok {
			return "", fmt.Errorf("the result has no %q", where)
		}
		raw = next
	}
	var s string
	if json.Unmarshal(raw, &s) == nil && strings.HasPrefix(strings.TrimSpace(string(raw)), `"`) {
		return s, nil
	}
	return strings.TrimSpace(string(raw)), nil
}
