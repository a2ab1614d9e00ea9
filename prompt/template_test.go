package prompt_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/prompt"
)

func TestP4Interpolation(t *testing.T) {
	supplied := map[string]string{"provider": "acme", "model": "{{cwd}}", "cwd": "/w"} // has no value for "gone"
	for _, tc := range []struct {
		name, text, want string
		variable         string
		problem          error
	}{
		{name: "plain", text: "no group", want: "no group"},
		{name: "several", text: "{{provider}}{{cwd}}-{{cwd}}", want: "acme/w-/w"},
		{name: "registered", text: "<{{extra_1}}>", want: "<more>"},
		{name: "empty value is a value", text: "<{{nil_text}}>", want: "<>"},
		{name: "no rescan", text: "{{model}}", want: "{{cwd}}"},
		{name: "no rescan across the seam", text: "{{half}}cwd}}", want: "{{cwd}}"},
		{name: "open without close", text: "{{cwd}} and {{ then", want: "/w and {{ then"},
		{name: "close before open", text: "}} {{", want: "}} {{"},
		{name: "close alone", text: "a }} b {{cwd}}", want: "a }} b /w"},
		{name: "single braces", text: "{cwd} { {", want: "{cwd} { {"},

		{name: "unknown", text: "{{cwd}} {{customer}}", variable: "customer", problem: prompt.ErrUnknownVariable},
		{name: "no value now", text: "{{gone}}", variable: "gone", problem: prompt.ErrUndefinedVariable},
		{name: "empty group", text: "{{}}", variable: "", problem: prompt.ErrMalformedGroup},
		{name: "spaces", text: "{{ cwd }}", variable: " cwd ", problem: prompt.ErrMalformedGroup},
		{name: "upper case", text: "{{Cwd}}", variable: "Cwd", problem: prompt.ErrMalformedGroup},
		{name: "digit first", text: "{{1a}}", variable: "1a", problem: prompt.ErrMalformedGroup},
		{name: "underscore first", text: "{{_a}}", variable: "_a", problem: prompt.ErrMalformedGroup},
		{name: "nested", text: "{{a{{cwd}}", variable: "a{{cwd", problem: prompt.ErrMalformedGroup},
		{name: "three braces", text: "{{{cwd}}}", variable: "{cwd", problem: prompt.ErrMalformedGroup},
		{name: "no escape", text: `\{{nobody}}`, variable: "nobody", problem: prompt.ErrUnknownVariable},
		{name: "over lines", text: "{{a\nb}}", variable: "a\nb", problem: prompt.ErrMalformedGroup},
		{
			name: "long", text: "{{" + strings.Repeat("é ", 50) + "}}", problem: prompt.ErrMalformedGroup,
			variable: strings.Repeat("é ", 20) + "…",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := prompt.New().Root()
			for name, value := range map[string]string{"extra_1": "more", "nil_text": "", "half": "{{", "gone": "-"} {
				if _, err := root.AddVariable(name, func() (string, bool) { return value, name != "gone" }); err != nil {
					t.Fatal(err)
				}
			}
			// The same rules for fixed text and for what a function renders, in sections and contexts.
			render := func(prompt.RenderContext) (string, error) { return tc.text, nil }
			fixed, rendered, context := root.Child(), root.Child(), root.Child()
			add(t, fixed, text("here", 0, tc.text))
			add(t, rendered, prompt.Section{Name: "here", Render: render})
			if _, err := context.AddContext(prompt.Context{Name: "here", Text: tc.text}); err != nil {
				t.Fatal(err)
			}
			checkAs(t, root, tc.text, tc.variable, tc.problem)
			for _, s := range []*prompt.Scope{fixed, rendered, context} {
				a, err := s.Assemble(supplied, prompt.AssembleOptions{})
				got := a.System
				if len(a.Contexts) > 0 {
					got = a.Contexts[0].Text
				}
				if got != tc.want || !errors.Is(err, tc.problem) {
					t.Fatalf("got %q, %v, want %q, %v", got, err, tc.want, tc.problem)
				}
				if tc.problem == nil {
					continue
				}
				var ve *prompt.VariableError
				if !errors.As(err, &ve) || ve.Name != "here" || ve.Variable != tc.variable {
					t.Fatalf("got %#v, want variable %q", err, tc.variable)
				}
				if s == context != (ve.Kind == "context") || !strings.Contains(err.Error(), `"here"`) {
					t.Errorf("message: %v", err)
				}
			}
		})
	}
}

// checkAs checks a text as the assemblies judge it, but for what a variable has to say.
func checkAs(t *testing.T, s *prompt.Scope, text, variable string, problem error) {
	t.Helper()
	if errors.Is(problem, prompt.ErrUndefinedVariable) {
		problem = nil
	}
	err := s.Check(prompt.Section{Name: "here", Text: text})
	var ve *prompt.VariableError
	switch {
	case !errors.Is(err, problem):
		t.Errorf("check: got %v, want %v", err, problem)
	case problem != nil && (!errors.As(err, &ve) || ve.Name != "here" || ve.Variable != variable):
		t.Errorf("check: got %#v, want variable %q", err, variable)
	}
	if err := s.Check(prompt.Persona(text, true)); err != nil {
		t.Errorf("check of literal text: %v", err)
	}
	child := s.Child() // knows what those above it do
	if err := child.Check(prompt.Section{Name: "here", Text: text}); !errors.Is(err, problem) {
		t.Errorf("check from below: got %v, want %v", err, problem)
	}
	child.Close()
	if err := child.Check(prompt.Persona("", true)); !errors.Is(err, prompt.ErrClosed) {
		t.Errorf("check of a closed scope: %v", err)
	}
}

// P4: what the agent loop supplies may be absent (a child without a directory), which is another
// mistake than a name nobody knows.
func TestP4AbsentSuppliedVariable(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 0, "in {{cwd}}"))
	_, err := root.Assemble(map[string]string{"model": "m"}, prompt.AssembleOptions{})
	if !errors.Is(err, prompt.ErrUndefinedVariable) {
		t.Errorf("got %v", err)
	}
	wantSystem(t, root, "in /home") // the next assembly is not the worse for it
}

func TestP4VariableNames(t *testing.T) {
	root := prompt.New().Root()
	value := func() (string, bool) { return "v", true }
	child, sibling := root.Child(), root.Child()
	remove, err := child.AddVariable("mine", value)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		scope *prompt.Scope
		value func() (string, bool)
		want  error
	}{
		{"mine", child, value, prompt.ErrDuplicate},
		{"mine", root, value, prompt.ErrDuplicate},          // would be there twice for child
		{"mine", child.Child(), value, prompt.ErrDuplicate}, // no shadowing
		{"mine", sibling, value, nil},                       // another chain
		{"cwd", child, value, prompt.ErrDuplicate},
		{"model", root, value, prompt.ErrDuplicate},
		{"Upper", root, value, prompt.ErrInvalid},
		{"", root, value, prompt.ErrInvalid},
		{"no-dash", root, value, prompt.ErrInvalid},
		{"nothing", root, nil, prompt.ErrInvalid},
	} {
		if _, err := tc.scope.AddVariable(tc.name, tc.value); !errors.Is(err, tc.want) {
			t.Errorf("%q: got %v, want %v", tc.name, err, tc.want)
		}
	}
	sibling.Close()
	remove()
	if _, err := root.AddVariable("mine", value); err != nil {
		t.Errorf("a freed name: %v", err)
	}
	_, err = root.Assemble(map[string]string{"mine": "x"}, prompt.AssembleOptions{})
	if !errors.Is(err, prompt.ErrDuplicate) || !strings.Contains(err.Error(), `"mine"`) {
		t.Errorf("supplied and registered: %v", err)
	}
}

// The oracle says the rules of P4 in another way: the leftmost shortest groups.
func FuzzInterpolate(f *testing.F) {
	for _, seed := range []string{"", "{{cwd}}", "{{ cwd }}", "a{{b}}c{{cwd", "{{{cwd}}}", "}}{{", "{{a{{b}}}}", "{{model}}{{cwd}}"} {
		f.Add(seed, "v")
	}
	f.Add("{{cwd}}cwd}}", "{{")
	group := regexp.MustCompile(`(?s)\{\{(.*?)\}\}`)
	name := regexp.MustCompile(`\A[a-z][a-z0-9_]*\z`)
	f.Fuzz(func(t *testing.T, text, value string) {
		supplied := map[string]string{"cwd": value, "model": "m"}
		var problem error
		want := group.ReplaceAllStringFunc(text, func(g string) string {
			inside := g[2 : len(g)-2]
			replacement, ok := supplied[inside]
			switch {
			case problem != nil || ok:
			case !name.MatchString(inside):
				problem = prompt.ErrMalformedGroup
			case inside == "provider":
				problem = prompt.ErrUndefinedVariable
			default:
				problem = prompt.ErrUnknownVariable
			}
			return replacement
		})
		if strings.TrimSpace(want) == "" {
			want = ""
		}
		root := prompt.New().Root()
		if _, err := root.Add(prompt.Section{Name: "fuzz", Text: text}); err != nil {
			t.Fatal(err)
		}
		a, err := root.Assemble(supplied, prompt.AssembleOptions{})
		if problem != nil {
			// A malformed group anywhere hides the other problems of its text.
			if !errors.Is(err, problem) && !errors.Is(err, prompt.ErrMalformedGroup) || a.System != "" {
				t.Fatalf("%q: got %q, %v, want %v", text, a.System, err, problem)
			}
			return
		}
		if err != nil || a.System != want {
			t.Fatalf("%q: got %q, %v, want %q", text, a.System, err, want)
		}
	})
}
