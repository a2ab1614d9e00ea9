package projection

import (
	"bytes"
	"fmt"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/session"
)

// Identity says what kind of subagent a session is: what its last own descriptor
// states (core D32, amendments P22, P23; seam PROJ-01…03).
type Identity struct {
	Mode     string
	Provider string
	Label    *string // nil when the descriptor has none
	// Seq is the descriptor's.
	Seq int64
}

// IdentityUnit folds subagent/descriptor: the last one of the session's own
// suffix wins, valid or not, and one that is malformed or of an unknown version
// gives no identity, a nil *Identity, encoded as null.
func IdentityUnit() Unit {
	return Unit{
		Key: session.CellIdentity, Version: cellVersion,
		Types: []session.Type{session.TypeDescriptor},
		Init:  func(*session.Header) Value { return (*Identity)(nil) },
		Apply: func(_ Value, e *session.Event, p session.Payload) Value {
			d, ok := p.(*session.DescriptorEvent)
			if !ok || d.Err != nil {
				return (*Identity)(nil)
			}
			return &Identity{Mode: d.Descriptor.Mode, Provider: d.Descriptor.Provider, Label: d.Descriptor.Label, Seq: e.Seq}
		},
		Append: func(buf []byte, v Value) []byte {
			id, ok := v.(*Identity)
			if !ok || id == nil {
				return append(buf, "null"...)
			}
			buf = jsonx.AppendStringField(append(buf, '{'), "mode", id.Mode)
			buf = jsonx.AppendStringField(buf, "provider", id.Provider)
			if id.Label != nil {
				buf = jsonx.AppendStringField(buf, "label", *id.Label)
			}
			return append(jsonx.AppendIntField(buf, "seq", id.Seq), '}')
		},
		Parse: parser(parseIdentity),
		// A later descriptor travels with the cell that it changes, so a stored
		// identity is the last as of the record's head.
		Final: func(_ *session.Header, v Value) bool {
			id, ok := v.(*Identity)
			return ok && id != nil
		},
	}
}

func parseIdentity(h *session.Header, data []byte) (*Identity, error) {
	id := &Identity{Seq: -1}
	if id.readPlain(data) && id.Mode != "" && id.Seq >= h.SeedLength {
		return id, nil
	}
	*id = Identity{Seq: -1}
	err := jsonx.ReadObject(data, func(key string, raw []byte) error {
		switch key {
		case "mode":
			return setString(&id.Mode, raw)
		case "provider":
			return setString(&id.Provider, raw)
		case "seq":
			return setInt(&id.Seq, raw)
		case "label":
			id.Label = new(string)
			return setString(id.Label, raw)
		}
		return jsonx.UnknownKey(key)
	})
	switch {
	case err != nil:
	case id.Mode == "" || id.Seq < 0:
		err = errIncomplete
	case id.Seq < h.SeedLength:
		// An ancestor's descriptor proves nothing (core D32, seam LIST-14).
		err = fmt.Errorf("identity stands at seq %d, which is inherited", id.Seq)
	}
	return id, err
}

// readPlain reads what the unit's Append wrote of texts without escapes, which is what
// a listing reads tens of thousands of. It takes nothing that ReadObject would not.
func (id *Identity) readPlain(data []byte) bool {
	mode, rest, ok := plainField(data, `{"mode":"`)
	if !ok {
		return false
	}
	provider, rest, ok := plainField(rest, `,"provider":"`)
	if !ok {
		return false
	}
	if label, after, has := plainField(rest, `,"label":"`); has {
		text := string(label)
		id.Label, rest = &text, after
	}
	rest, ok = bytes.CutPrefix(rest, []byte(`,"seq":`))
	number, end := bytes.CutSuffix(rest, []byte("}"))
	if !ok || !end {
		return false
	}
	seq, err := jsonx.Natural(number)
	if err != nil {
		return false
	}
	id.Seq = seq
	switch string(mode) {
	case session.ModeOneShot:
		id.Mode = session.ModeOneShot
	case session.ModeContinuable:
		id.Mode = session.ModeContinuable
	default:
		id.Mode = string(mode)
	}
	id.Provider = string(provider)
	return true
}

// plainField reads the text behind a prefix up to its closing quote.
func plainField(data []byte, prefix string) (text, rest []byte, ok bool) {
	data, ok = bytes.CutPrefix(data, []byte(prefix))
	n := bytes.IndexByte(data, '"')
	if !ok || n < 0 || !jsonx.Plain(data[:n]) {
		return nil, nil, false
	}
	return data[:n], data[n+1:], true
}

// IdentityOf returns the identity that a record's checkpoint holds. false means
// that the checkpoint does not tell; Registry.Read decides then.
func IdentityOf(rec *session.Record) (Identity, bool) { return value(identityOf(rec)) }

func identityOf(rec *session.Record) *Identity {
	return of(rec, session.CellIdentity, parseIdentity)
}
