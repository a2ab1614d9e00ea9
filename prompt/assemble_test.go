package prompt_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/offshoot-dev/offshoot/prompt"
)

// P5: one assembly asks each function once, whatever uses it, and never one that is shadowed.
func TestP5EachFunctionOncePerAssembly(t *testing.T) {
	root := prompt.New().Root()
	calls := make(map[string]int)
	if _, err := root.AddVariable("tick", func() (string, bool) {
		calls["tick"]++
		return fmt.Sprint(calls["tick"]), true
	}); err != nil {
		t.Fatal(err)
	}
	counting := func(name, result string) func(prompt.RenderContext) (string, error) {
		return func(rc prompt.RenderContext) (string, error) {
			calls[name]++
			tick, _ := rc.Vars("tick")
			return result + tick, nil
		}
	}
	add(t, root, text("fixed", 0, "{{tick}} {{tick}}"),
		prompt.Section{Name: "shadowed", Order: 1, Render: counting("shadowed", "")})
	child := root.Child()
	add(t, child, prompt.Section{Name: "shadowed", Order: 1, Render: counting("child", "child {{tick}} ")})
	if _, err := child.AddContext(prompt.Context{Name: "c", Render: counting("context", "context ")}); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 2; n++ {
		a := assemble(t, child)
		if want := fmt.Sprintf("%d %d\n\nchild %d %d", n, n, n, n); a.System != want {
			t.Errorf("assembly %d: got %q, want %q", n, a.System, want)
		}
		if want := fmt.Sprintf("context %d", n); a.Contexts[0].Text != want {
			t.Errorf("assembly %d: context %q, want %q", n, a.Contexts[0].Text, want)
		}
	}
	if diff := cmp.Diff(map[string]int{"tick": 2, "child": 2, "context": 2}, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// P5: what did not change is the same memory, so that a caller may hold on to many.
func TestP5UnchangedPartsAreShared(t *testing.T) {
	root := prompt.New().Root()
	state := "one"
	add(t, root, text("a", 0, "in {{cwd}}"))
	if _, err := root.AddContext(prompt.Context{
		Name: "state", Render: func(prompt.RenderContext) (string, error) { return state, nil },
	}); err != nil {
		t.Fatal(err)
	}
	first, second := assemble(t, root), assemble(t, root.Child())
	if &first.Sections[0] != &second.Sections[0] || &first.Contexts[0] != &second.Contexts[0] {
		t.Error("an unchanged assembly was made anew")
	}
	state = "two"
	third := assemble(t, root)
	if &first.Sections[0] != &third.Sections[0] {
		t.Error("unchanged sections were made anew")
	}
	if first.Contexts[0].Text != "one" || third.Contexts[0].Text != "two" {
		t.Errorf("contexts: %q, then %q", first.Contexts[0].Text, third.Contexts[0].Text)
	}
}

// P5: what says the same in the same words is not the same section, or context, if it has
// another place or another meaning.
func TestP5SameTextOtherPart(t *testing.T) {
	root := prompt.New().Root()
	for _, sec := range []prompt.Section{
		{Name: "a", Order: 1, Text: "same"}, {Name: "a", Order: 2, Text: "same"}, {Name: "a", Order: 2, Text: "same", Complete: true},
		{Name: "b", Order: 2, Text: "same", Complete: true}, {Name: "b", Order: 2, Text: "same"},
	} {
		child := root.Child()
		add(t, child, sec)
		if _, err := child.AddContext(prompt.Context{Name: sec.Name, Order: sec.Order, Text: "same"}); err != nil {
			t.Fatal(err)
		}
		a := assemble(t, child)
		want := prompt.Assembly{
			System:   "same",
			Sections: []prompt.RenderedSection{{Name: sec.Name, Order: sec.Order, Text: "same", Complete: sec.Complete}},
			Contexts: []prompt.RenderedContext{{Name: sec.Name, Order: sec.Order, Text: "same"}},
		}
		if diff := cmp.Diff(want, a, cmpopts.IgnoreUnexported(prompt.Assembly{})); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", sec, diff)
		}
		child.Close()
	}
}

// P5: same length, same names, other values: nothing stale.
func TestP5NothingStale(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 0, "{{model}}"), text("b", 1, "{{cwd}}"))
	for _, cwd := range []string{"/a", "/b", "/a", "/abc"} {
		a, err := root.Assemble(map[string]string{"model": "m", "cwd": cwd}, prompt.AssembleOptions{})
		if err != nil || a.System != "m\n\n"+cwd || a.Sections[1].Text != cwd {
			t.Errorf("%s: got %+v, %v", cwd, a, err)
		}
	}
	// The same whole text cut in another place.
	for _, m := range []string{"x", "x\n\ny"} {
		cwd := strings.TrimPrefix("x\n\ny\n\nz", m+"\n\n")
		a, err := root.Assemble(map[string]string{"model": m, "cwd": cwd}, prompt.AssembleOptions{})
		if err != nil || a.Sections[0].Text != m || a.Sections[1].Text != cwd {
			t.Errorf("%q: got %+v, %v", m, a, err)
		}
	}
}

func TestP6ContextSnapshot(t *testing.T) {
	root := prompt.New().Root()
	if got := assemble(t, root).ContextText(); got != "" {
		t.Errorf("no contexts: %q", got)
	}
	state := "branch main"
	if _, err := root.AddContext(prompt.Context{
		Name: "git", Order: 200, Render: func(prompt.RenderContext) (string, error) { return state, nil },
	}); err != nil {
		t.Fatal(err)
	}
	removePlace, err := root.AddContext(prompt.Context{Name: "place", Order: 1, Text: "on {{model}}"})
	if err != nil {
		t.Fatal(err)
	}
	add(t, root, text("s", 0, "system"))

	a := assemble(t, root)
	if a.System != "system" {
		t.Errorf("contexts leaked into the system prompt: %q", a.System)
	}
	first := a.ContextText()
	if !strings.Contains(first, "replaces all") || !strings.HasSuffix(first, "\n\non m-1\n\nbranch main") {
		t.Errorf("snapshot: %q", first)
	}
	if made := (prompt.Assembly{Contexts: a.Contexts}).ContextText(); made != first {
		t.Errorf("an assembly put together by hand: %q", made)
	}

	next := func(retained, wantText string, wantSend bool) string {
		t.Helper()
		text, send := assemble(t, root).NextContext(retained)
		if send != wantSend || (send && wantText != "" && text != wantText) {
			t.Errorf("got %q, %v, want %q, %v", text, send, wantText, wantSend)
		}
		return text
	}
	next("", first, true)  // never sent, or compaction removed it
	next(first, "", false) // unchanged
	state = "branch fix"   // changed
	second := next(first, "", true)
	if second == first || !strings.Contains(second, "branch fix") {
		t.Errorf("changed snapshot: %q", second)
	}
	removePlace()
	state = ""
	next(second, prompt.NoContext, true) // emptied: the marker, once
	next(prompt.NoContext, "", false)
	next("", "", false) // nothing retained that needs taking back
	state = "branch fix"
	next(prompt.NoContext, "", true)
}

func TestP7CompleteSectionReplacesTheOthers(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 0, "a"), text("broken", 1, "{{nobody}}"))
	if _, err := root.AddContext(prompt.Delegation()); err != nil {
		t.Fatal(err)
	}
	child := root.Child()
	on := true
	add(t, child, prompt.Section{Name: "whole", Order: 50, Complete: true, Render: func(prompt.RenderContext) (string, error) {
		if on {
			return "whole on {{model}}", nil
		}
		return "", nil
	}})
	a := assemble(t, child) // nothing else is even rendered
	want := []prompt.RenderedSection{{Name: "whole", Order: 50, Text: "whole on m-1", Complete: true}}
	if diff := cmp.Diff(want, a.Sections); diff != "" || a.System != "whole on m-1" || len(a.Contexts) != 1 {
		t.Errorf("got %+v\n%s", a, diff)
	}
	on = false
	if _, err := child.Assemble(vars, prompt.AssembleOptions{}); !errors.Is(err, prompt.ErrUnknownVariable) {
		t.Errorf("a blank complete section replaces nothing: %v", err)
	}

	grandchild := child.Child()
	remove, err := grandchild.Add(prompt.Section{Name: "other", Text: "x", Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = grandchild.Assemble(vars, prompt.AssembleOptions{})
	if !errors.Is(err, prompt.ErrTwoComplete) || !strings.Contains(err.Error(), `"whole"`) || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("two complete sections: %v", err)
	}
	remove()
	add(t, grandchild, prompt.Section{Name: "whole", Text: "nearer", Complete: true}) // shadows: still one
	wantSystem(t, grandchild, "nearer")
}

func TestP7TransformsRunInOrder(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("a", 0, "a"), text("b", 1, "b"))
	child := root.Child()
	addTransform(t, child, func(a *prompt.Assembly) error {
		a.Sections[0].Text += "-child"
		return nil
	})
	remove := addTransform(t, root, func(a *prompt.Assembly) error {
		if a.System != "a\n\nb" {
			t.Errorf("first transform sees %q", a.System)
		}
		a.Sections[0].Text = "a-root"
		a.Sections[1].Text = ""
		a.Sections = append(a.Sections, prompt.RenderedSection{Name: "new", Text: "new"})
		a.Contexts = append(a.Contexts, prompt.RenderedContext{Name: "c", Text: "told"})
		return nil
	})
	a := assemble(t, child)
	if want := "a-root-child\n\nnew"; a.System != want || len(a.Sections) != 2 {
		t.Errorf("got %q, want %q", a.System, want)
	}
	if !strings.HasSuffix(a.ContextText(), "\n\ntold") {
		t.Errorf("snapshot: %q", a.ContextText())
	}
	wantSystem(t, root, "a-root\n\nnew") // and what a child's transform did stayed there
	remove()
	wantSystem(t, root, "a\n\nb")
}

func TestP7TransformErrors(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		apply func(*prompt.Assembly) error
		want  string
	}{
		"edits the complete text": {func(a *prompt.Assembly) error { a.Sections[0].Text += "!"; return nil }, ""},
		"adds beside it": {func(a *prompt.Assembly) error {
			a.Sections = append(a.Sections, prompt.RenderedSection{Name: "n", Text: "n"})
			return nil
		}, ""},
		"drops it":           {func(a *prompt.Assembly) error { a.Sections = nil; return nil }, `lost the complete section "whole"`},
		"empties it":         {func(a *prompt.Assembly) error { a.Sections[0].Text = "\n"; return nil }, `lost the complete section "whole"`},
		"takes its mark":     {func(a *prompt.Assembly) error { a.Sections[0].Complete = false; return nil }, "lost the complete section"},
		"renames it":         {func(a *prompt.Assembly) error { a.Sections[0].Name = "x"; return nil }, "lost the complete section"},
		"replaces wholesale": {func(a *prompt.Assembly) error { *a = prompt.Assembly{System: "mine"}; return nil }, "lost the complete section"},
		"edits System":       {func(a *prompt.Assembly) error { a.System = "mine"; return nil }, "edited System"},
		"a second complete": {func(a *prompt.Assembly) error {
			a.Sections = append(a.Sections, prompt.RenderedSection{Name: "n", Text: "n", Complete: true})
			return nil
		}, "more than one complete"},
		"fails":  {func(*prompt.Assembly) error { return boom }, "transform 0: boom"},
		"panics": {func(*prompt.Assembly) error { panic(boom) }, "panic: boom"},
	} {
		t.Run(name, func(t *testing.T) {
			root := prompt.New().Root()
			add(t, root, prompt.Section{Name: "whole", Text: "whole", Complete: true})
			addTransform(t, root, tc.apply)
			a, err := root.Assemble(vars, prompt.AssembleOptions{})
			if tc.want == "" {
				if err != nil || !strings.HasPrefix(a.System, "whole") || a.System == "whole" {
					t.Errorf("got %q, %v", a.System, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || a.System != "" {
				t.Errorf("got %q, %v, want %q", a.System, err, tc.want)
			}
			if strings.Contains(tc.want, "boom") && !errors.Is(err, boom) {
				t.Errorf("cause lost: %v", err)
			}
		})
	}
	root := prompt.New().Root()
	add(t, root, text("a", 0, "a"))
	addTransform(t, root, func(a *prompt.Assembly) error { a.Sections[0].Complete = true; return nil })
	if _, err := root.Assemble(vars, prompt.AssembleOptions{}); err == nil || !strings.Contains(err.Error(), `made section "a" complete`) {
		t.Errorf("got %v", err)
	}
}

func addTransform(t *testing.T, s *prompt.Scope, apply func(*prompt.Assembly) error) (remove func()) {
	t.Helper()
	remove, err := s.AddTransform(apply)
	if err != nil {
		t.Fatal(err)
	}
	return remove
}

// P9, COMP-22: fixed text, a context and no part of the system prompt.
func TestP9DelegationContext(t *testing.T) {
	root := prompt.New().Root()
	delegated := root.Child()
	if _, err := delegated.AddContext(prompt.Delegation()); err != nil {
		t.Fatal(err)
	}
	a, err := delegated.Child().Assemble(nil, prompt.AssembleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []prompt.RenderedContext{{Name: "subagent:delegation", Order: 120, Text: prompt.DelegationContext}}
	if diff := cmp.Diff(want, a.Contexts); diff != "" || a.System != "" {
		t.Errorf("system %q, contexts (-want +got):\n%s", a.System, diff)
	}
	if got := assemble(t, root).ContextText(); got != "" {
		t.Errorf("the root is told: %q", got)
	}
}

// P10: a persona set up before any model is known is filled with the values of the agent it
// is assembled for, also where agents share one prepared view.
func TestP10VariablesAreTheChilds(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, prompt.Persona("{{provider}}/{{model}} in {{cwd}}", false))
	for _, child := range []map[string]string{
		{"provider": "p", "model": "parent", "cwd": "/parent"},
		{"provider": "q", "model": "child", "cwd": "/child"},
		{"provider": "p", "model": "parent", "cwd": "/parent"},
	} {
		a, err := root.Child().Assemble(child, prompt.AssembleOptions{})
		if want := child["provider"] + "/" + child["model"] + " in " + child["cwd"]; err != nil || a.System != want {
			t.Errorf("got %q, %v, want %q", a.System, err, want)
		}
	}
}

func TestFailingFunctionsFailTheAssemblyOnly(t *testing.T) {
	boom := errors.New("boom")
	root := prompt.New().Root()
	add(t, root, text("a", 0, "fine"))
	if _, err := root.AddVariable("bad", func() (string, bool) { panic(boom) }); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		section  prompt.Section
		panicked bool
	}{
		"render fails":    {prompt.Section{Name: "x", Render: func(prompt.RenderContext) (string, error) { return "half", boom }}, false},
		"render panics":   {prompt.Section{Name: "x", Render: func(prompt.RenderContext) (string, error) { panic(boom) }}, true},
		"variable panics": {text("x", 0, "{{bad}}"), true},
	} {
		child := root.Child()
		add(t, child, tc.section)
		a, err := child.Assemble(vars, prompt.AssembleOptions{})
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), `section "x"`) || a.System != "" {
			t.Errorf("%s: got %q, %v", name, a.System, err)
		}
		var pe *prompt.PanicError
		if errors.As(err, &pe) != tc.panicked || (tc.panicked && len(pe.Stack) == 0) {
			t.Errorf("%s: got %#v", name, err)
		}
		wantSystem(t, root, "fine")
	}
}

// A render function may use the registry: nothing is held while it runs.
func TestRenderMayRegister(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, prompt.Section{Name: "a", Render: func(prompt.RenderContext) (string, error) {
		sub := root.Child()
		defer sub.Close()
		if _, err := sub.Add(prompt.Section{Name: "a", Text: "inner {{model}}"}); err != nil {
			return "", err
		}
		inner, err := sub.Assemble(vars, prompt.AssembleOptions{})
		return "outer " + inner.System, err
	}})
	wantSystem(t, root, "outer inner m-1")
}

// Registration, assembly and closing at once: every assembly sees a whole state.
func TestConcurrentUse(t *testing.T) {
	root := prompt.New().Root()
	add(t, root, text("base", 0, "base {{cwd}}"))
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 200 {
				child := root.Child()
				if _, err := child.Add(text("own", 10, fmt.Sprint("own ", worker))); err != nil {
					t.Error(err)
				}
				if _, err := child.AddVariable("v", func() (string, bool) { return "x", true }); err != nil {
					t.Error(err)
				}
				remove, err := root.Add(text(fmt.Sprint("shared ", worker), 5, "shared"))
				if err != nil {
					t.Error(err)
				}
				cwd := fmt.Sprint("/", i%3)
				a, err := child.Assemble(map[string]string{"cwd": cwd}, prompt.AssembleOptions{})
				if err != nil || !strings.HasPrefix(a.System, "base "+cwd+"\n\nshared") ||
					!strings.HasSuffix(a.System, fmt.Sprint("\n\nown ", worker)) {
					t.Errorf("got %q, %v", a.System, err)
				}
				remove()
				child.Close()
				if _, err := child.Assemble(nil, prompt.AssembleOptions{}); !errors.Is(err, prompt.ErrClosed) {
					t.Errorf("closed: %v", err)
				}
			}
		})
	}
	wg.Wait()
	wantSystem(t, root, "base /home")
}
