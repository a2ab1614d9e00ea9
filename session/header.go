package session

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// ID identifies a session and the agent that lives on it.
type ID string

// FormatVersion is the version of the log's format (core S7).
const FormatVersion = 0

// OriginSubagent marks a session that was created by delegation (core S22).
const OriginSubagent = "subagent"

// Header is what is known of a session before its first event. It is separate
// from the log and never changes (core S20). Zero values of the optional fields
// mean absent.
type Header struct {
	Version   int64
	ID        ID
	CreatedAt int64 // ms since the epoch
	Cwd       string
	// ParentSession is lineage: who delegated. It grants nothing (core S21).
	ParentSession ID
	// SeedLength counts the events inherited at creation (core S24).
	SeedLength int64
	Origin     string
	// DelegationDepth is 0 for a session that nobody delegated to.
	DelegationDepth int64
	AgentPreset     string
}

// AppendJSON appends the header as a JSON object.
func (h *Header) AppendJSON(buf []byte) []byte {
	buf = append(buf, '{')
	buf = jsonx.AppendIntField(buf, "version", h.Version)
	buf = jsonx.AppendStringField(buf, "id", string(h.ID))
	buf = jsonx.AppendIntField(buf, "createdAt", h.CreatedAt)
	if h.Cwd != "" {
		buf = jsonx.AppendStringField(buf, "cwd", h.Cwd)
	}
	if h.ParentSession != "" {
		buf = jsonx.AppendStringField(buf, "parentSession", string(h.ParentSession))
	}
	if h.SeedLength != 0 {
		buf = jsonx.AppendIntField(buf, "seedLength", h.SeedLength)
	}
	if h.Origin != "" {
		buf = jsonx.AppendStringField(buf, "origin", h.Origin)
	}
	if h.DelegationDepth != 0 {
		buf = jsonx.AppendIntField(buf, "delegationDepth", h.DelegationDepth)
	}
	if h.AgentPreset != "" {
		buf = jsonx.AppendStringField(buf, "agentPreset", h.AgentPreset)
	}
	return append(buf, '}')
}

// ParseHeader reads a header strictly. A version other than FormatVersion is an
// *UnsupportedError, whatever else is in the header: another format need not look
// like this one (core S7). Anything that is wrong at this version is a *CorruptError.
func ParseHeader(data []byte) (Header, error) {
	var p HeaderParser
	return p.Parse(data)
}

// HeaderParser reads the headers of a listing: a text that one has in common with the
// one before is one string. The zero value is ready to use. It is not safe for
// concurrent use.
type HeaderParser struct {
	last Header
	rest []byte // what followed on the creation time in the text of last, or nil
}

// Parse is ParseHeader.
func (p *HeaderParser) Parse(data []byte) (Header, error) {
	id, at, rest, usual := cutHeader(data)
	if usual && p.rest != nil && bytes.Equal(rest, p.rest) {
		// Siblings differ in these two alone, and the rest was looked at once.
		h := p.last
		h.ID, h.CreatedAt = ID(id), at
		return h, nil
	}
	h, err := p.parse(data)
	if err != nil {
		return h, err
	}
	p.last, p.rest = h, nil
	if usual {
		p.rest = bytes.Clone(rest)
	}
	return h, nil
}

// cutHeader takes a header apart that begins as AppendJSON writes it and whose id is
// plain ASCII. What the rest is worth is not its business.
func cutHeader(data []byte) (id []byte, at int64, rest []byte, ok bool) {
	const open, middle = `{"version":0,"id":"`, `","createdAt":`
	data, ok = bytes.CutPrefix(data, []byte(open))
	n := bytes.IndexByte(data, '"')
	if !ok || n <= 0 || !jsonx.Plain(data[:n]) {
		return nil, 0, nil, false
	}
	id = data[:n]
	if rest, ok = bytes.CutPrefix(data[n:], []byte(middle)); !ok {
		return nil, 0, nil, false
	}
	n = 0
	for n < len(rest) && n < 16 && '0' <= rest[n] && rest[n] <= '9' {
		at = at*10 + int64(rest[n]-'0')
		n++
	}
	if n == 0 || n > 1 && rest[0] == '0' || at > jsonx.MaxSafe || n == len(rest) || rest[n] != ',' && rest[n] != '}' {
		return nil, 0, nil, false
	}
	return id, at, rest[n:], true
}

// shared reads a string that the header before may have had too.
func shared(raw []byte, before string) (string, error) {
	if n := len(raw) - 2; n == len(before) && n >= 0 && raw[0] == '"' && string(raw[1:n+1]) == before && strings.IndexByte(before, '\\') < 0 {
		return before, nil // raw is known to be a JSON value: a string, and without escapes
	}
	return jsonx.String(raw)
}

func (p *HeaderParser) parse(data []byte) (Header, error) {
	var h Header
	hasVersion, hasCreated := false, false
	var wrong error // the first field that this version does not know or read
	err := jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		switch key {
		case "version":
			hasVersion = true
			h.Version, err = jsonx.Int(raw)
		case "id":
			var s string
			s, err = jsonx.String(raw)
			h.ID = ID(s)
		case "createdAt":
			hasCreated = true
			h.CreatedAt, err = jsonx.Natural(raw)
		case "cwd":
			h.Cwd, err = shared(raw, p.last.Cwd)
		case "parentSession":
			var s string
			s, err = shared(raw, string(p.last.ParentSession))
			h.ParentSession = ID(s)
		case "seedLength":
			h.SeedLength, err = jsonx.Natural(raw)
		case "origin":
			h.Origin, err = shared(raw, p.last.Origin)
		case "delegationDepth":
			h.DelegationDepth, err = jsonx.Natural(raw)
		case "agentPreset":
			h.AgentPreset, err = jsonx.String(raw)
		default:
			err = jsonx.UnknownKey(key)
		}
		if err != nil && wrong == nil {
			wrong = fmt.Errorf("header field %q: %w", key, err)
		}
		return nil
	})
	if err == nil && hasVersion && h.Version != FormatVersion {
		return h, versionError(h.ID, h.Version)
	}
	if err == nil {
		err = wrong
	}
	switch {
	case err != nil:
	case !hasVersion:
		err = fmt.Errorf("header has no version")
	case !hasCreated:
		err = fmt.Errorf("header has no createdAt")
	default:
		err = h.check()
	}
	if err != nil {
		return h, &CorruptError{ID: h.ID, Seq: -1, Err: err}
	}
	return h, nil
}

// check validates the fields' domains.
func (h *Header) check() error {
	switch {
	case h.Version != FormatVersion:
		return versionError(h.ID, h.Version)
	case h.ID == "":
		return fmt.Errorf("header has no id")
	case !jsonx.ValidString(string(h.ID)) || !jsonx.ValidString(h.Cwd) ||
		!jsonx.ValidString(string(h.ParentSession)) || !jsonx.ValidString(h.AgentPreset):
		return fmt.Errorf("header holds invalid UTF-8")
	case h.CreatedAt < 0 || h.CreatedAt > jsonx.MaxSafe:
		return fmt.Errorf("header createdAt %d is out of range", h.CreatedAt)
	case h.Cwd != "" && !filepath.IsAbs(h.Cwd) && !isForeignAbs(h.Cwd):
		return fmt.Errorf("header cwd %q is not absolute", h.Cwd)
	case h.SeedLength < 0 || h.SeedLength > jsonx.MaxSafe:
		return fmt.Errorf("header seedLength %d is out of range", h.SeedLength)
	case h.DelegationDepth < 0 || h.DelegationDepth > jsonx.MaxSafe:
		return fmt.Errorf("header delegationDepth %d is out of range", h.DelegationDepth)
	case h.Origin != "" && h.Origin != OriginSubagent:
		return fmt.Errorf("header origin %q is unknown", h.Origin)
	}
	return nil
}

// isForeignAbs accepts absolute paths of the other path style, so that a log
// written on another platform can be read here.
func isForeignAbs(p string) bool {
	if p[0] == '/' || p[0] == '\\' {
		return true
	}
	return len(p) > 2 && p[1] == ':' && (p[2] == '\\' || p[2] == '/')
}

func versionError(id ID, v int64) error {
	if v > FormatVersion {
		return &UnsupportedError{ID: id, Seq: -1, Msg: fmt.Sprintf("format version %d was produced by a newer build (this one reads %d)", v, FormatVersion)}
	}
	return &UnsupportedError{ID: id, Seq: -1, Msg: fmt.Sprintf("format version %d has no migration path to %d", v, FormatVersion)}
}
