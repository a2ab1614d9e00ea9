package session_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// seam DES-06, DES-13…DES-16, DES-28.
func TestParseDescriptor_DES14(t *testing.T) {
	const oneShot, continuable = `{"version":2,"mode":"one-shot","provider":"p"`, `{"version":2,"mode":"continuable","provider":"p","label":"l"`
	valid := []string{
		oneShot + `}`,
		oneShot + `,"label":""}`,
		continuable + `}`,
		continuable + `,"agentProvider":"a","agentModel":"m","persona":"","toolFilter":{"allow":[]}}`,
		continuable + `,"toolFilter":{"deny":["x"]}}`,
		continuable + `,"toolFilter":{"allow":["a"],"deny":["b"]}}`,
	}
	for _, text := range valid {
		d, err := session.ParseDescriptor([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := string(d.AppendJSON(nil)); got != text {
			t.Errorf("DES-16: %s is written again as %s", text, got)
		}
		p, err := session.NewDescriptor(d)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(d, p.Descriptor); diff != "" {
			t.Errorf("%s (-parsed +new):\n%s", text, diff)
		}
	}
	malformed := []string{
		`"x"`, `null`, `[]`, ``, `{`,
		`{}`, `{"version":"2"}`, `{"version":2.5}`, `{"version":null}`,
		`{"version":2,"provider":"p"}`, `{"version":2,"mode":"odd","provider":"p"}`, `{"version":2,"mode":1,"provider":"p"}`,
		`{"version":2,"mode":"one-shot"}`, `{"version":2,"mode":"one-shot","provider":1}`, `{"version":2,"mode":"one-shot","provider":null}`,
		oneShot + `,"persona":"x"}`, oneShot + `,"agentModel":"x"}`, oneShot + `,"agentProvider":"x"}`, oneShot + `,"toolFilter":{"allow":[]}}`,
		oneShot + `,"depth":1}`, oneShot + `,"label":1}`, oneShot + `,"label":null}`,
		continuable + `,"outputSchema":{}}`, continuable + `,"Persona":"x"}`, `{"version":2,"mode":"continuable","provider":"p"}`,
		`{"version":2,"mode":"continuable","provider":"p","label":7}`,
		continuable + `,"agentProvider":1}`, continuable + `,"agentModel":[]}`, continuable + `,"persona":{}}`,
		continuable + `,"toolFilter":[]}`, continuable + `,"toolFilter":null}`, continuable + `,"toolFilter":{}}`,
		continuable + `,"toolFilter":{"only":[]}}`, continuable + `,"toolFilter":{"allow":[],"only":[]}}`,
		continuable + `,"toolFilter":{"allow":"x"}}`, continuable + `,"toolFilter":{"deny":null}}`, continuable + `,"toolFilter":{"allow":[1]}}`,
		oneShot + `,"provider":"q"}`,
	}
	for _, text := range malformed {
		if d, err := session.ParseDescriptor([]byte(text)); err == nil || errors.Is(err, session.ErrDescriptorVersion) {
			t.Errorf("DES-14: %s gives %+v, %v", text, d, err)
		}
	}
	for _, text := range []string{`{"version":1}`, `{"version":3,"mode":7}`, `{"x":0,"version":0}`, `{"version":-1}`} {
		if _, err := session.ParseDescriptor([]byte(text)); !errors.Is(err, session.ErrDescriptorVersion) {
			t.Errorf("DES-15: %s gives %v", text, err)
		}
	}
}

// seam DES-11; core D32: a descriptor is detached, and a damaged one does not make
// its log unreadable.
func TestDescriptorEvent_DES11(t *testing.T) {
	allow, label := []string{"read"}, "l"
	p, err := session.NewDescriptor(session.Descriptor{Version: 9, Mode: session.ModeContinuable, Provider: "p", Label: &label, ToolFilter: &session.ToolFilter{Allow: allow}})
	if err != nil {
		t.Fatal(err)
	}
	allow[0], label = "bash", "changed"
	s := newSession(t)
	mustAppend(t, s, p)
	if got := export(s); !strings.Contains(got, `"label":"l","toolFilter":{"allow":["read"]}`) {
		t.Errorf("written as %s", got)
	}
	if s.Descriptor() != p || p.Descriptor.ToolFilter.Allow[0] != "read" || *p.Descriptor.Label != "l" || p.Descriptor.Version != session.DescriptorVersion {
		t.Errorf("descriptor %+v", p.Descriptor)
	}
	for _, bad := range []session.Descriptor{{}, {Mode: session.ModeContinuable, Provider: "p"}, {Mode: session.ModeOneShot, Persona: &label}, {Mode: session.ModeContinuable, Label: &label, ToolFilter: &session.ToolFilter{}}} {
		if _, err := session.NewDescriptor(bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	invalid := "\xff"
	if _, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "p", Label: &invalid}); err == nil {
		t.Error("DES-10: invalid UTF-8 was taken")
	}

	events := parseLog(t, `{"type":"subagent/descriptor","seq":0,"time":0,"data":{"version":2,"mode":"one-shot","provider":"spawn"}}
{"type":"subagent/descriptor","seq":1,"time":0,"data":{"version":7}}
{"type":"subagent/descriptor","seq":2,"time":0,"data":"odd"}`)
	reg := newRegistry(t, session.Config{})
	for n, check := range []func(d *session.DescriptorEvent) bool{
		func(d *session.DescriptorEvent) bool { return d == nil },
		func(d *session.DescriptorEvent) bool { return d.Err == nil && d.Descriptor.Provider == "spawn" },
		func(d *session.DescriptorEvent) bool { return errors.Is(d.Err, session.ErrDescriptorVersion) },
		func(d *session.DescriptorEvent) bool {
			return d.Err != nil && !errors.Is(d.Err, session.ErrDescriptorVersion)
		},
	} {
		s, err := reg.Restore(session.Record{Header: session.Header{ID: "s"}, Head: int64(n)}, sequence(events[:n]))
		if err != nil {
			t.Fatal(err)
		}
		if !check(s.Descriptor()) {
			t.Errorf("after %d descriptors: %+v", n, s.Descriptor())
		}
		// D32: an ancestor's is not one's own.
		heir, err := reg.Restore(session.Record{Header: session.Header{ID: "s", SeedLength: int64(n)}, Head: int64(n)}, sequence(events[:n]))
		if err != nil {
			t.Fatal(err)
		}
		if heir.Descriptor() != nil {
			t.Errorf("an inherited descriptor counts as own: %+v", heir.Descriptor())
		}
	}
}
