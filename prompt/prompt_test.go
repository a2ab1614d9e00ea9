package prompt_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/prompt"
)

var vars = map[string]string{"provider": "acme", "model": "m-1", "cwd": "/home"}

func add(t *testing.T, s *prompt.Scope, sections ...prompt.Section) {
	t.Helper()
	for _, sec := range sections {
		if _, err := s.Add(sec); err != nil {
			t.Fatal(err)
		}
	}
}

func text(name string, order float64, text string) prompt.Section {
	return prompt.Section{Name: name, Order: order, Text: text}
}

func assemble(t *testing.T, s *prompt.Scope) prompt.Assembly {
	t.Helper()
	a, err := s.Assemble(vars, prompt.AssembleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func wantSystem(t *testing.T, s *prompt.Scope, want string) {
	t.Helper()
	if diff := cmp.Diff(want, assemble(t, s).System); diff != "" {
		t.Errorf("system prompt (-want +got):\n%s", diff)
	}
}

func TestP1SectionsAreSortedDroppedAndJoined(t *testing.T) {
	root := prompt.New().Root()
	add(t, root,
		text("last", 10, "last"),
		text("tie-1", 5, "tie 1"),
		text("tie-2", 5, "tie 2"),
		text("empty", -1, ""),
		text("blank", 6, " \n\t"),
		text("first", -2.5, "first\nof two lines"),
		prompt.Section{Name: "nothing", Order: 7, Render: func(prompt.RenderContext) (string, error) { return "", nil }},
	)
	a := assemble(t, root)
	if want := "first\nof two lines\n\ntie 1\n\ntie 2\n\nlast"; a.System != want {
		t.Errorf("got %q, want %q", a.System, want)
	}
	want := []prompt.RenderedSection{
		{Name: "first", Order: -2.5, Text: "first\nof two lines"},
		{Name: "tie-1", Order: 5, Text: "tie 1"},
		{Name: "tie-2", Order: 5, Text: "tie 2"},
		{Name: "last", Order: 10, Text: "last"},
	}
	if diff := cmp.Diff(want, a.Sections); diff != "" {
		t.Errorf("sections (-want +got):\n%s", diff)
	}
	if a := assemble(t, prompt.New().Root()); a.System != "" || a.Sections != nil {
		t.Errorf("an empty registry gives %+v", a)
	}
}

func TestP1NearerLayerShadowsByName(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 1, "root a"), text("b", 2, "root b"))
	child, sibling := root.Child(), root.Child()
	add(t, child, text("a", 3, "child a")) // moves too: its own order counts
	grandchild := child.Child()
	add(t, grandchild, text("b", 2, "grandchild b"))

	wantSystem(t, root, "root a\n\nroot b")
	wantSystem(t, sibling, "root a\n\nroot b")
	wantSystem(t, child, "root b\n\nchild a")
	wantSystem(t, grandchild, "grandchild b\n\nchild a")

	// The view is live: a later registration above is seen below, and shadowed where shadowed.
	add(t, root, text("c", 9, "root c"))
	wantSystem(t, grandchild, "grandchild b\n\nchild a\n\nroot c")
	wantSystem(t, sibling, "root a\n\nroot b\n\nroot c")
}

func TestP1RegistrationErrors(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 0, "x"))
	for name, tc := range map[string]struct {
		section prompt.Section
		want    error
	}{
		"duplicate in the layer": {text("a", 5, "y"), prompt.ErrDuplicate},
		"no name":                {text("", 0, "y"), prompt.ErrInvalid},
		"order not a number":     {text("n", math.NaN(), "y"), prompt.ErrInvalid},
	} {
		if _, err := root.Add(tc.section); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	if _, err := root.AddTransform(nil); !errors.Is(err, prompt.ErrInvalid) {
		t.Errorf("nil transform: got %v", err)
	}
	wantSystem(t, root, "x")
}

func TestP1RemoveConcernsOneRegistration(t *testing.T) {
	root := prompt.New().Root()
	remove, err := root.Add(text("a", 0, "old"))
	if err != nil {
		t.Fatal(err)
	}
	wantSystem(t, root, "old")
	remove()
	wantSystem(t, root, "")
	add(t, root, text("a", 0, "new"))
	remove() // again: must not take the new one of the same name
	wantSystem(t, root, "new")
}

func TestScopeClose(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 0, "root"))
	child := root.Child()
	add(t, child, text("a", 0, "child"))
	remove, err := child.AddVariable("v", func() (string, bool) { return "", true })
	if err != nil {
		t.Fatal(err)
	}
	below := child.Child()
	wantSystem(t, below, "child")
	child.Close()
	child.Close()
	remove() // after Close: nothing to do

	wantSystem(t, root, "root")
	for name, s := range map[string]*prompt.Scope{"closed": child, "below": below, "opened below later": child.Child()} {
		if _, err := s.Add(text("b", 0, "")); !errors.Is(err, prompt.ErrClosed) {
			t.Errorf("%s: Add: %v", name, err)
		}
		if _, err := s.AddContext(prompt.Context{Name: "b"}); !errors.Is(err, prompt.ErrClosed) {
			t.Errorf("%s: AddContext: %v", name, err)
		}
		if _, err := s.AddVariable("w", func() (string, bool) { return "", true }); !errors.Is(err, prompt.ErrClosed) {
			t.Errorf("%s: AddVariable: %v", name, err)
		}
		if _, err := s.AddTransform(func(*prompt.Assembly) error { return nil }); !errors.Is(err, prompt.ErrClosed) {
			t.Errorf("%s: AddTransform: %v", name, err)
		}
		if _, err := s.Assemble(vars, prompt.AssembleOptions{}); !errors.Is(err, prompt.ErrClosed) {
			t.Errorf("%s: Assemble: %v", name, err)
		}
	}
	// The name of its variable is free again.
	if _, err := root.AddVariable("v", func() (string, bool) { return "", true }); err != nil {
		t.Error(err)
	}
}

// P2, SO-04: the well-known places, and that what stands above 190 still follows it.
func TestP2WellKnownOrders(t *testing.T) {
	root := prompt.New().Root()
	add(t, root,
		text("tool:later", 195, "later"),
		text(prompt.SectionStructuredOutput, prompt.OrderStructuredOutput, "structured"),
		text(prompt.SectionToolPrefix+"bash", prompt.OrderToolGuidance, "guidance"),
		prompt.Persona("persona", false),
		prompt.Identity("identity"),
	)
	wantSystem(t, root, "identity\n\npersona\n\nguidance\n\nstructured\n\nlater")
	var got []string
	for _, s := range assemble(t, root).Sections {
		got = append(got, s.Name)
	}
	want := []string{"harness:identity", "deployment:persona", "tool:bash", "tool:structured_output", "tool:later"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// P3, COMP-08, COMP-09, COMP-10: a persona of one child alone.
func TestP3PersonaShadowsOneSlot(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, prompt.Identity("identity"), prompt.Persona("deployed on {{model}}", false))
	inherits, own, none := root.Child(), root.Child(), root.Child()
	add(t, own, prompt.Persona("reviewer on {{model}}", false))
	add(t, none, prompt.Persona("", false))

	wantSystem(t, inherits, "identity\n\ndeployed on m-1")
	wantSystem(t, own, "identity\n\nreviewer on m-1")
	wantSystem(t, none, "identity")
	wantSystem(t, root, "identity\n\ndeployed on m-1")

	// Strict on the child's path as well: the child's assembly fails, the parent's does not.
	broken := root.Child()
	add(t, broken, prompt.Persona("for {{customer}}", false))
	_, err := broken.Assemble(vars, prompt.AssembleOptions{})
	var ve *prompt.VariableError
	if !errors.As(err, &ve) || ve.Name != prompt.SectionPersona || ve.Variable != "customer" {
		t.Errorf("got %v", err)
	}
	wantSystem(t, root, "identity\n\ndeployed on m-1")
}

// P3: an empty configuration still registers the slot; nothing of it reaches the prompt.
func TestP3EmptyPersonaSlot(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, prompt.Identity("identity"), prompt.Persona("", false))
	if _, err := root.Add(prompt.Persona("second", false)); !errors.Is(err, prompt.ErrDuplicate) {
		t.Errorf("a second persona in the slot: %v", err)
	}
	child := root.Child()
	add(t, child, prompt.Persona("child", false))
	wantSystem(t, root, "identity")
	wantSystem(t, child, "identity\n\nchild")
}

// COMP-36: literal text reaches the prompt unchanged, also when a function renders it.
func TestLiteralTextIsNotInterpolated(t *testing.T) {
	const body = "Use {{cwd}}, {{ 1 + 1 }} and {{nobody}} as they are.\n"
	root := prompt.New().Root()
	add(t, root, prompt.Persona("deployment", false))
	child := root.Child()
	add(t, child, prompt.Persona(body, true))
	wantSystem(t, child, body)
	rendered := root.Child()
	add(t, rendered, prompt.Section{
		Name: prompt.SectionPersona, Literal: true,
		Render: func(prompt.RenderContext) (string, error) { return body, nil },
	})
	wantSystem(t, rendered, body)
	if _, err := child.AddContext(prompt.Context{Name: "c", Text: "{{x}}", Literal: true}); err != nil {
		t.Fatal(err)
	}
	if got := assemble(t, child).Contexts[0].Text; got != "{{x}}" {
		t.Errorf("context: %q", got)
	}
}

// What a section's function keeps says what it said, whoever's prompt is made later.
func TestVariablesThatAreKept(t *testing.T) {
	root := prompt.New().Root()
	var kept []func(string) (string, bool)
	add(t, root, prompt.Section{Name: "keeps", Order: 1, Render: func(rc prompt.RenderContext) (string, error) {
		kept = append(kept, rc.Vars)
		return "text", nil
	}})
	for _, model := range []string{"m-1", "m-2"} {
		if _, err := root.Assemble(map[string]string{prompt.VarModel: model}, prompt.AssembleOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"m-1", "m-2"} {
		if got, ok := kept[i](prompt.VarModel); got != want || !ok {
			t.Errorf("assembly %d has the model %q, %v, want %q", i, got, ok, want)
		}
	}
}

// TOOL-33: guidance follows what the agent can see.
func TestRenderSeesToolsScopeAndVariables(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, prompt.Section{
		Name: "tool:subagent", Order: 116.5,
		Render: func(rc prompt.RenderContext) (string, error) {
			if !rc.ToolVisible("subagent") {
				return "", nil
			}
			_, known := rc.Vars("nobody")
			cwd, _ := rc.Vars("cwd")
			if known || cwd != "/home" {
				t.Errorf("Vars: nobody %v, cwd %q", known, cwd)
			}
			return "guidance for " + rc.Scope.(string) + " on {{model}}", nil
		},
	})
	sees := prompt.AssembleOptions{Scope: "agent-1", ToolVisible: func(name string) bool { return name == "subagent" }}
	for _, tc := range []struct {
		opts prompt.AssembleOptions
		want string
	}{{sees, "guidance for agent-1 on m-1"}, {prompt.AssembleOptions{}, ""}, {sees, "guidance for agent-1 on m-1"}} {
		a, err := root.Assemble(vars, tc.opts)
		if err != nil || a.System != tc.want {
			t.Errorf("got %q, %v, want %q", a.System, err, tc.want)
		}
	}
}

func TestDefaultTexts(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, prompt.Identity(prompt.DefaultIdentity))
	if a := assemble(t, root); !strings.Contains(a.System, "directory /home;") || strings.Contains(a.System, "{{") {
		t.Errorf("identity: %q", a.System)
	}
	if strings.TrimSpace(prompt.DelegationContext) != prompt.DelegationContext {
		t.Error("delegation text has space around it")
	}
}
