package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Value is one value of an effective configuration as it may be shown: keys, header values and passwords are not in it.
type Value struct {
	Key    string // dotted
	Text   string // as YAML writes it, in one line
	Source Source

	raw any // for JSON
}

// MarshalJSON renders key, value and source.
func (v Value) MarshalJSON() ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		Key    string `json:"key"`
		Value  any    `json:"value"`
		Source Source `json:"source"`
	}{v.Key, v.raw, v.Source})
	return bytes.TrimRight(buf.Bytes(), "\n"), err
}

// explain lists every value with its source. Beside the keys of the files it has "routes.NAME.key", "mcp.NAME.key" and "KEY.value"
// of a value that is another variable's: they say whether the variable is set.
func explain(tree *place, m settings, env Environ) []Value {
	m = maps.Clone(m)
	m.fill(tree, "model", unset("(not set)"))
	m.fill(tree, "permissions.mode", unset("(ask on a terminal, read-only elsewhere)"))
	list := m.sorted()
	var values []Value
	show := func(key string, raw any, src Source) {
		values = append(values, Value{Key: key, Text: render(raw), Source: src, raw: plain(raw)})
	}
	for i, s := range list {
		if s.isSection() {
			if empty := i+1 == len(list) || !strings.HasPrefix(list[i+1].rank, s.rank+"/"); empty {
				show(s.key, section{}, s.source)
			}
			continue
		}
		show(s.key, s.value, s.source)
		name, key := "", strings.TrimSuffix(s.key, "keyEnv")+"key"
		switch v := s.value.(type) {
		case string:
			if (strings.HasPrefix(s.key, "routes.") || strings.HasPrefix(s.key, "mcp.")) && strings.HasSuffix(s.key, ".keyEnv") {
				name = v
			}
		case variable:
			name, key = string(v), s.key+".value"
		}
		if name != "" {
			state := "not set"
			if _, set := env.get(name); set {
				state = "set"
			}
			show(key, note(state), Source{Kind: FromEnv, Name: name})
		}
	}
	return values
}

// What is shown without being a value of a file.
type (
	section struct{}
	unset   string // what happens then
	note    string
)

// render writes a value in one line, as YAML would.
func render(v any) string {
	switch v := v.(type) {
	case section:
		return "{}"
	case unset:
		return string(v)
	case note:
		return string(v)
	case secret:
		return "(hidden)"
	case endpoint:
		return quote(redact(string(v)))
	case string:
		return quote(v)
	case program:
		return quote(string(v))
	case variable:
		return quote(string(v))
	case arguments:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = strconv.Quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case ModelRef:
		return quote(v.String())
	case time.Duration:
		return shortDuration(v)
	case []string:
		return "[" + strings.Join(v, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// plain is the value's form in JSON.
func plain(v any) any {
	switch v := v.(type) {
	case section:
		return struct{}{}
	case unset:
		return nil
	case secret:
		return "(hidden)"
	case endpoint:
		return redact(string(v))
	case note:
		return string(v)
	case program:
		return string(v)
	case variable:
		return string(v)
	case arguments:
		return []string(v)
	case ModelRef:
		return v.String()
	case time.Duration:
		return shortDuration(v)
	case jsonText:
		return json.RawMessage(v)
	case Depth:
		if v.Managed {
			return ProviderManaged
		}
		return v.Max
	}
	return v
}

// shortDuration is time.Duration's form without its trailing zero parts: 2m, not 2m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// redact hides the user and password of a URL that has passed parseBaseURL.
func redact(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "(hidden)"
	}
	if u.User != nil {
		u.User = url.User("hidden")
	}
	return u.String()
}

// quote leaves a string as it is where YAML would read the same, and quotes it otherwise; nothing that a terminal would act
// on gets through.
func quote(s string) string {
	first, _ := utf8.DecodeRuneInString(s)
	unsafe := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./:@+~[] ", r)
	}
	switch {
	case !unicode.IsLetter(first) && first != '/',
		strings.HasSuffix(s, ":"), strings.HasSuffix(s, " "), strings.Contains(s, ": "), strings.ContainsFunc(s, unsafe),
		slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}, strings.ToLower(s)):
		return strconv.Quote(s)
	}
	return s
}

// Text is the effective configuration as lines of "KEY: VALUE  # SOURCE".
func (e *Effective) Text() string {
	var b strings.Builder
	for _, v := range e.Values {
		fmt.Fprintf(&b, "%s: %s  # %s\n", v.Key, v.Text, v.Source)
	}
	return b.String()
}

// Source tells where the value or section under a dotted key came from; ok is false when it has none.
func (e *Effective) Source(key string) (src Source, ok bool) {
	if src, ok = e.sources[key]; ok {
		return src, true
	}
	for _, v := range e.Values {
		if v.Key == key {
			return v.Source, true
		}
	}
	return Source{}, false
}

// Fault is a usage *Error that stands where the value under key was written: for faults that only the assembled system can
// see, such as a filter that names an unknown tool.
func (e *Effective) Fault(key, format string, args ...any) *Error {
	src, _ := e.Source(key)
	return src.fault(key, fmt.Sprintf(format, args...))
}

// MarshalJSON renders the files, the notes, the folders and every value with its source, in the order of Values.
func (e *Effective) MarshalJSON() ([]byte, error) {
	out := struct {
		DataDir string      `json:"dataDir"`
		Cwd     string      `json:"cwd"`
		Trusted bool        `json:"trusted"`
		Files   []File      `json:"files"`
		Agents  []AgentFile `json:"agentFiles,omitempty"`
		Notes   []Note      `json:"notes,omitempty"`
		Values  []Value     `json:"values"`
	}{e.DataDir, e.Cwd, e.Trusted, e.Files, e.Agents, e.Notes, e.Values}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
