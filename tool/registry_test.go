package tool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/tool"
)

// def returns a tool that answers with its own name.
func def(name string) tool.Definition {
	return tool.Definition{
		Name: name, Description: "about " + name,
		Parameters: []byte(`{"type":"object"}`),
		Execute:    func(context.Context, *tool.Call) (any, error) { return name, nil },
	}
}

func register(t *testing.T, s *tool.Scope, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := s.Register(def(n)); err != nil {
			t.Fatal(err)
		}
	}
}

func names(s *tool.Scope) string {
	var out []string
	for _, d := range s.Visible() {
		out = append(out, d.Name)
	}
	return strings.Join(out, " ")
}

func list(names ...string) *[]string { return &names }

func text(r tool.Result) string { return message.JoinText(r.Content) }

func run(t *testing.T, s *tool.Scope, name, args string) tool.Result {
	t.Helper()
	return s.Execute(t.Context(), tool.CallInput{ID: "c1", Name: name, Args: args}, tool.ExecOptions{})
}

func TestCompileRefusesT1(t *testing.T) {
	tests := []struct {
		name   string
		change func(*tool.Definition)
		want   string
	}{
		{"no name", func(d *tool.Definition) { d.Name = "" }, "no name"},
		{"non-ASCII name", func(d *tool.Definition) { d.Name = "größe" }, "name"},
		{"space in name", func(d *tool.Definition) { d.Name = "a b" }, `' '`},
		{"leading dash", func(d *tool.Definition) { d.Name = "-a" }, `'-'`},
		{"long name", func(d *tool.Definition) { d.Name = strings.Repeat("a", 65) }, "longer than 64"},
		{"no Execute", func(d *tool.Definition) { d.Execute = nil }, "no Execute"},
		{"negative timeout", func(d *tool.Definition) { d.Timeout = -time.Second }, "negative timeout"},
		{"no schema", func(d *tool.Definition) { d.Parameters = nil }, "parameters"},
		{"schema not JSON", func(d *tool.Definition) { d.Parameters = []byte(`{"type":`) }, "parameters"},
		{"schema with duplicate keys", func(d *tool.Definition) { d.Parameters = []byte(`{"type":"object","type":"object"}`) }, "duplicate key"},
		{"not an object schema", func(d *tool.Definition) { d.Parameters = []byte(`{"type":"string"}`) }, `not "object"`},
		{"malformed keyword", func(d *tool.Definition) {
			d.Parameters = []byte(`{"type":"object","properties":{"a":{"type":"strnig"}}}`)
		}, "parameters"},
		{"reference to a file", func(d *tool.Definition) {
			d.Parameters = []byte(`{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`)
		}, "self-contained"},
		{"malformed output schema", func(d *tool.Definition) { d.Output.Schema = []byte(`{"type":7}`) }, "output schema"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := def("ok")
			tt.change(&d)
			s := tool.New().Root()
			_, err := s.Register(d)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error = %v, want one with %q", err, tt.want)
			}
			if got := names(s); got != "" {
				t.Errorf("visible after refusal: %q", got)
			}
		})
	}
}

func TestSpecsCarryOnlyTheAllowlistT2(t *testing.T) {
	s := tool.New().Root()
	register(t, s, "b", "a")
	want := []tool.Spec{
		{Name: "a", Description: "about a", Parameters: []byte(`{"type":"object"}`)},
		{Name: "b", Description: "about b", Parameters: []byte(`{"type":"object"}`)},
	}
	if diff := cmp.Diff(want, s.Specs()); diff != "" {
		t.Error(diff)
	}
}

func TestLayersT4T9(t *testing.T) {
	root := tool.New().Root()
	register(t, root, "read", "bash")
	parent := root.Child()
	shadow := def("read")
	shadow.Execute = func(context.Context, *tool.Call) (any, error) { return "parent's", nil }
	unregister, err := parent.Register(shadow)
	if err != nil {
		t.Fatal(err)
	}
	register(t, parent, "private")
	if _, err := parent.Register(def("private")); err == nil {
		t.Error("a second tool of one name in one layer was accepted")
	}
	if got := text(run(t, parent, "read", "")); got != "parent's" {
		t.Errorf("nearest layer: got %q", got)
	}
	sibling := root.Child() // what a child agent gets
	if got, want := names(sibling), "bash read"; got != want {
		t.Errorf("flat child sees %q, want %q", got, want)
	}
	if got, want := names(parent.Child()), "bash private read"; got != want {
		t.Errorf("nested scope sees %q, want %q", got, want)
	}
	unregister()
	unregister()
	if got := text(run(t, parent, "read", "")); got != "read" {
		t.Errorf("after unregister: got %q", got)
	}
}

func TestUnregisterRemovesOnlyItsOwnRegistration(t *testing.T) {
	c, err := tool.Compile(def("a"))
	if err != nil {
		t.Fatal(err)
	}
	s := tool.New().Root()
	first, err := s.RegisterCompiled(c)
	if err != nil {
		t.Fatal(err)
	}
	first()
	if _, err := s.RegisterCompiled(c); err != nil {
		t.Fatal(err)
	}
	first()
	if got := names(s); got != "a" {
		t.Errorf("visible: %q", got)
	}
}

func TestRestrictT5T6T7T8(t *testing.T) {
	root := tool.New().Root()
	register(t, root, "read", "list", "bash", "write")

	t.Run("T5 refusals", func(t *testing.T) {
		if err := root.Restrict(tool.Filter{Deny: list("read")}); err == nil {
			t.Error("restricted the global scope")
		}
		s := root.Child()
		if err := s.Restrict(tool.Filter{}); err == nil {
			t.Error("accepted an empty filter")
		}
		err := s.Restrict(tool.Filter{Allow: list("read", "raed"), Deny: list("bahs")})
		var unknown *tool.UnknownToolsError
		if !errors.As(err, &unknown) {
			t.Fatalf("error = %v", err)
		}
		want := &tool.UnknownToolsError{Names: []string{"bahs", "raed"}, Known: []string{"bash", "list", "read", "write"}}
		if diff := cmp.Diff(want, unknown); diff != "" {
			t.Error(diff)
		}
		if got := names(s); got != "bash list read write" {
			t.Errorf("a refused filter took effect: %q", got)
		}
	})
	t.Run("T6 own tools survive, T7 intersect and order", func(t *testing.T) {
		s := root.Child()
		register(t, s, "structured_output")
		for _, f := range []tool.Filter{{Allow: list("read")}, {Allow: list("bash", "read")}, {Deny: list("bash")}} {
			if err := s.Restrict(f); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := names(s), "read structured_output"; got != want {
			t.Errorf("visible %q, want %q", got, want)
		}
		// A scope below inherits the restricted view and cannot name what is hidden.
		if err := s.Child().Restrict(tool.Filter{Allow: list("bash")}); err == nil {
			t.Error("a nested scope named a tool that is hidden from it")
		}
	})
	t.Run("COMP-13 allow of nothing", func(t *testing.T) {
		s := root.Child()
		if err := s.Restrict(tool.Filter{Allow: list()}); err != nil {
			t.Fatal(err)
		}
		if got := names(s); got != "" {
			t.Errorf("visible %q", got)
		}
	})
	t.Run("T7 live", func(t *testing.T) {
		r := tool.New().Root()
		register(t, r, "a", "b")
		deny, allow := r.Child(), r.Child()
		names0 := []string{"a"}
		if err := deny.Restrict(tool.Filter{Deny: &names0}); err != nil {
			t.Fatal(err)
		}
		if err := allow.Restrict(tool.Filter{Allow: list("a")}); err != nil {
			t.Fatal(err)
		}
		names0[0] = "b" // the lists were copied (H6)
		register(t, r, "c")
		if got := names(deny); got != "b c" {
			t.Errorf("deny-only sees %q", got)
		}
		if got := names(allow); got != "a" {
			t.Errorf("allow-list sees %q", got)
		}
	})
	t.Run("T8 hidden is unknown", func(t *testing.T) {
		s := root.Child()
		if err := s.Restrict(tool.Filter{Deny: list("bash")}); err != nil {
			t.Fatal(err)
		}
		hidden, never := run(t, s, "bash", "{}"), run(t, s, "bsah", "{}")
		if hidden.Code != tool.CodeUnknownTool || !hidden.IsError {
			t.Errorf("result %+v", hidden)
		}
		if got, want := strings.ReplaceAll(text(hidden), "bash", "X"), strings.ReplaceAll(text(never), "bsah", "X"); got != want {
			t.Errorf("texts differ: %q, %q", got, want)
		}
	})
}

func TestCloseL51(t *testing.T) {
	root := tool.New().Root()
	register(t, root, "a")
	s := root.Child()
	register(t, s, "own")
	s.Close()
	s.Close()
	if _, err := s.Register(def("late")); !errors.Is(err, tool.ErrClosed) {
		t.Errorf("register: %v", err)
	}
	if err := s.Restrict(tool.Filter{Allow: list("a")}); !errors.Is(err, tool.ErrClosed) {
		t.Errorf("restrict: %v", err)
	}
	if r := run(t, s, "a", ""); r.Code != tool.CodeAbortedBeforeDispatch {
		t.Errorf("call in a closed scope: %+v", r)
	}
	if r := run(t, s.Child(), "a", ""); r.Code != tool.CodeAbortedBeforeDispatch {
		t.Errorf("call below a closed scope: %+v", r)
	}
	if got := names(root); got != "a" {
		t.Errorf("the layer above changed: %q", got)
	}
}

func TestToolsetIsSharedAndFree(t *testing.T) {
	root := tool.New().Root()
	register(t, root, "a", "b")
	plain, own := root.Child(), root.Child()
	register(t, own, "c")
	if plain.Toolset() != root.Toolset() {
		t.Error("a plain child has a list of its own")
	}
	before := own.Toolset()
	if n := testing.AllocsPerRun(100, func() { _, _ = own.Specs(), own.Visible() }); n != 0 {
		t.Errorf("an unchanged list costs %v allocations", n)
	}
	if own.Toolset() != before {
		t.Error("unchanged, but another Toolset")
	}
	remove, err := root.Register(def("d"))
	if err != nil {
		t.Fatal(err)
	}
	if own.Toolset() == before || names(own) != "a b c d" {
		t.Errorf("a change above was missed: %q", names(own))
	}
	remove()
	if names(own) != "a b c" {
		t.Errorf("a removal above was missed: %q", names(own))
	}
	if n := testing.AllocsPerRun(100, func() { _ = root.Child() }); n > 1 {
		t.Errorf("a child scope costs %v allocations", n)
	}
}

func TestRegistryConcurrently(t *testing.T) {
	root := tool.New().Root()
	register(t, root, "base")
	s := root.Child()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				name := fmt.Sprintf("t%d_%d", i, j)
				unregister, err := root.Register(def(name))
				if err != nil {
					t.Error(err)
					return
				}
				if got := text(run(t, s, name, "")); got != name {
					t.Errorf("call of %s: %q", name, got)
				}
				remove := s.AddGuard(func(context.Context, *tool.Call) error { return nil })
				_ = s.Specs()
				remove()
				unregister()
			}
		})
	}
	wg.Wait()
	if got := names(s); got != "base" {
		t.Errorf("left over: %q", got)
	}
}
