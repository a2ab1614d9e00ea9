package session

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
)

// DescriptorVersion is the version that this build writes (seam DES-02).
const DescriptorVersion = 2

// The descriptor modes.
const (
	ModeOneShot     = "one-shot"
	ModeContinuable = "continuable"
)

// ToolFilter restricts which tools a child sees. A nil list is absent, which differs
// from an empty one: an empty Allow hides everything inherited (seam COMP-13, DES-16).
type ToolFilter struct {
	Allow, Deny []string
}

// Descriptor is the durable identity of a session-backed subagent (seam DES). A
// nil pointer is an absent field. The key set of a version is closed.
type Descriptor struct {
	Version  int64
	Mode     string
	Provider string
	// Label is required when Mode is continuable.
	Label *string
	// The remaining fields belong to continuable children only.
	AgentProvider *string
	AgentModel    *string
	Persona       *string
	ToolFilter    *ToolFilter
}

// ErrDescriptorVersion says that a descriptor's version cannot be classified by
// this build (seam DES-13, DES-15): it is no corruption.
var ErrDescriptorVersion = errors.New("descriptor version is not supported")

// AppendJSON appends the descriptor as a JSON object.
func (d *Descriptor) AppendJSON(buf []byte) []byte {
	buf = jsonx.AppendIntField(append(buf, '{'), "version", d.Version)
	buf = jsonx.AppendStringField(buf, "mode", d.Mode)
	buf = jsonx.AppendStringField(buf, "provider", d.Provider)
	for _, f := range []struct {
		key   string
		value *string
	}{{"label", d.Label}, {"agentProvider", d.AgentProvider}, {"agentModel", d.AgentModel}, {"persona", d.Persona}} {
		if f.value != nil {
			buf = jsonx.AppendStringField(buf, f.key, *f.value)
		}
	}
	if d.ToolFilter != nil {
		buf = append(jsonx.AppendKey(buf, "toolFilter"), '{')
		if d.ToolFilter.Allow != nil {
			buf = appendStrings(jsonx.AppendKey(buf, "allow"), d.ToolFilter.Allow)
		}
		if d.ToolFilter.Deny != nil {
			buf = appendStrings(jsonx.AppendKey(buf, "deny"), d.ToolFilter.Deny)
		}
		buf = append(buf, '}')
	}
	return append(buf, '}')
}

// ParseDescriptor reads a descriptor payload. An unknown version is
// ErrDescriptorVersion, whatever else is wrong; anything malformed at the
// current version is another error (seam DES-13…DES-15).
func ParseDescriptor(data []byte) (Descriptor, error) {
	var d Descriptor
	hasVersion := false
	err := jsonx.ReadObject(data, func(key string, raw []byte) (err error) {
		if key == "version" {
			hasVersion = true
			d.Version, err = jsonx.Int(raw)
		}
		return err
	})
	switch {
	case err != nil:
		return d, fmt.Errorf("descriptor: %w", err)
	case !hasVersion:
		return d, errors.New("descriptor: field \"version\" is missing")
	case d.Version != DescriptorVersion:
		return d, fmt.Errorf("%w: %d", ErrDescriptorVersion, d.Version)
	}
	str := func(dst **string, raw []byte) error {
		s, err := jsonx.String(raw)
		*dst = &s
		return err
	}
	err = fields(data, []string{"version", "mode", "provider"}, func(key string, raw []byte) error {
		switch key {
		case "version":
			return nil
		case "mode":
			return setString(&d.Mode, raw)
		case "provider":
			return setString(&d.Provider, raw)
		case "label":
			return str(&d.Label, raw)
		case "agentProvider":
			return str(&d.AgentProvider, raw)
		case "agentModel":
			return str(&d.AgentModel, raw)
		case "persona":
			return str(&d.Persona, raw)
		case "toolFilter":
			d.ToolFilter = &ToolFilter{}
			return fields(raw, nil, func(key string, raw []byte) error {
				switch key {
				case "allow":
					return setStrings(&d.ToolFilter.Allow, raw)
				case "deny":
					return setStrings(&d.ToolFilter.Deny, raw)
				}
				return jsonx.UnknownKey(key)
			})
		}
		return jsonx.UnknownKey(key)
	})
	if err == nil {
		err = d.check()
	}
	if err != nil {
		return d, fmt.Errorf("descriptor: %w", err)
	}
	return d, nil
}

func (d *Descriptor) check() error {
	switch {
	case d.Version != DescriptorVersion:
		return fmt.Errorf("%w: %d", ErrDescriptorVersion, d.Version)
	case d.Mode != ModeOneShot && d.Mode != ModeContinuable:
		return fmt.Errorf("mode %q is unknown", d.Mode)
	case d.Mode == ModeContinuable && d.Label == nil:
		return errors.New("a continuable descriptor needs a label")
	case d.Mode == ModeOneShot && (d.AgentProvider != nil || d.AgentModel != nil || d.Persona != nil || d.ToolFilter != nil):
		return errors.New("a one-shot descriptor holds only version, mode, provider and label")
	case d.ToolFilter != nil && d.ToolFilter.Allow == nil && d.ToolFilter.Deny == nil:
		return errors.New("a tool filter needs allow or deny")
	}
	return nil
}

// DescriptorEvent is the payload of a subagent/descriptor event. A log takes a
// malformed or foreign one as it is, since a damaged identity must not make the
// conversation unreadable: Err says what is wrong with it then.
type DescriptorEvent struct {
	Descriptor Descriptor
	Err        error
	raw        []byte
}

// NewDescriptor returns the payload for a descriptor after checking it. The
// descriptor is encoded here, so later changes to what it points to have no
// effect (seam DES-11).
func NewDescriptor(d Descriptor) (*DescriptorEvent, error) {
	d.Version = DescriptorVersion
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("descriptor: %w", err)
	}
	raw := d.AppendJSON(make([]byte, 0, 160)) // most fit
	if !utf8.Valid(raw) {
		return nil, errors.New("descriptor: text is not valid UTF-8")
	}
	return &DescriptorEvent{Descriptor: d.clone(), raw: raw}, nil
}

// clone returns a descriptor that shares nothing that can change.
func (d *Descriptor) clone() Descriptor {
	c := *d
	for _, field := range []**string{&c.Label, &c.AgentProvider, &c.AgentModel, &c.Persona} {
		if *field != nil {
			text := **field
			*field = &text
		}
	}
	if d.ToolFilter != nil {
		c.ToolFilter = &ToolFilter{Allow: slices.Clone(d.ToolFilter.Allow), Deny: slices.Clone(d.ToolFilter.Deny)}
	}
	return c
}

// EventType implements Payload.
func (p *DescriptorEvent) EventType() Type              { return TypeDescriptor }
func (p *DescriptorEvent) appendJSON(buf []byte) []byte { return append(buf, p.raw...) }

func decodeDescriptorEvent(data []byte) (*DescriptorEvent, error) {
	p := &DescriptorEvent{raw: data}
	p.Descriptor, p.Err = ParseDescriptor(data)
	return p, nil
}
