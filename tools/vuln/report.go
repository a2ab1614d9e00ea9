package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// report writes what other modules are vulnerable to, and returns how many of it is called.
func (r result) report(out *strings.Builder) int {
	called := 0
	for _, key := range slices.Sorted(maps.Keys(r.hits)) {
		switch h := r.hits[key]; {
		case h.standard():
		case h.calls == nil:
			fmt.Fprintf(out, "  imported, and not called: %s\n", r.line(*h))
		default:
			called++
			fmt.Fprintf(out, "  CALLED: %s\n", r.line(*h))
			for _, f := range slices.Backward(h.calls) {
				fmt.Fprintf(out, "    %s\n", f)
			}
		}
	}
	return called
}

// standard returns a line for each vulnerability of Go itself, by id: of those that are called, if calls were looked
// for, and else of those in imported packages.
func (r result) standard() map[string]string {
	lines := map[string]string{}
	for _, h := range r.hits {
		if h.standard() && (h.calls != nil || !r.symbols) {
			lines[h.id] = r.line(*h)
		}
	}
	return lines
}

func (r result) line(h hit) string {
	fixed := "nothing mends it yet"
	if h.fixed != "" {
		fixed = h.fixed + " mends it"
	}
	packages := strings.Join(slices.Sorted(maps.Keys(h.packages)), ", ")
	return fmt.Sprintf("%s %s of %s %s, %s: %s", h.id, packages, h.module, h.version, fixed, r.summaries[h.id])
}

func (f frame) String() string {
	name := f.Function
	if f.Receiver != "" {
		name = f.Receiver + "." + name
	}
	if f.Position == nil {
		return f.Package + "." + name
	}
	return fmt.Sprintf("%s.%s, %s:%d", f.Package, name, f.Position.Filename, f.Position.Line)
}
