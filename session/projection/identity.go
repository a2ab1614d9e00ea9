package projection

import (
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
	case id.Mode == "":
		err = errIncomplete
	case id.Seq < h.SeedLength:
		// An ancestor's descriptor proves nothing (core D32, seam LIST-14).
		err = fmt.Errorf("identity stands at seq %d, which is inherited", id.Seq)
	}
	return id, err
}

// IdentityOf returns the identity that a record's checkpoint holds. false means
// that the checkpoint does not tell; Registry.Read decides then.
func IdentityOf(rec session.Record) (Identity, bool) { return value(identityOf(&rec)) }

func identityOf(rec *session.Record) *Identity {
	return of(rec, session.CellIdentity, parseIdentity)
}
