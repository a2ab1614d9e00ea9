package prompt_test

import (
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/prompt"
)

// fixture registers a prompt of about 1.5 KB: identity, persona, and the guidance of seven tools.
func fixture(b *testing.B) *prompt.Scope {
	b.Helper()
	root := prompt.New().Root()
	sections := []prompt.Section{prompt.Identity(prompt.DefaultIdentity), prompt.Persona("You run on {{provider}} {{model}}.", false)}
	for i, name := range strings.Fields("bash read list write edit search report") {
		sections = append(sections, text(prompt.SectionToolPrefix+name, prompt.OrderToolGuidance+float64(i), strings.Repeat("Guidance. ", 15)))
	}
	for _, sec := range sections {
		if _, err := root.Add(sec); err != nil {
			b.Fatal(err)
		}
	}
	return root
}

func benchmarkAssemble(b *testing.B, scope func() *prompt.Scope) {
	b.ReportAllocs()
	for b.Loop() {
		a, err := scope().Assemble(vars, prompt.AssembleOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if len(a.System) < 1400 {
			b.Fatalf("%d bytes", len(a.System))
		}
	}
}

// One more step of an agent whose prompt has not changed.
func BenchmarkAssembleUnchanged(b *testing.B) {
	child := fixture(b).Child()
	benchmarkAssemble(b, func() *prompt.Scope { return child })
}

// The same with one section that a function renders.
func BenchmarkAssembleRendered(b *testing.B) {
	root := fixture(b)
	if _, err := root.Add(prompt.Section{Name: "tool:subagent", Order: 116.5, Render: func(rc prompt.RenderContext) (string, error) {
		if rc.ToolVisible("subagent") {
			return "Guidance.", nil
		}
		return "", nil
	}}); err != nil {
		b.Fatal(err)
	}
	benchmarkAssemble(b, func() *prompt.Scope { return root })
}

// A new child that shares everything with its siblings.
func BenchmarkAssembleNewChild(b *testing.B) {
	root := fixture(b)
	benchmarkAssemble(b, root.Child)
}

// A new child with a persona of its own.
func BenchmarkAssembleNewChildWithPersona(b *testing.B) {
	root := fixture(b)
	benchmarkAssemble(b, func() *prompt.Scope {
		child := root.Child()
		if _, err := child.Add(prompt.Persona("You review on {{model}}.", false)); err != nil {
			b.Fatal(err)
		}
		return child
	})
}
