package prompt

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"
)

// UnlistedTools stands in a tool order for all tools that the order does not name.
const UnlistedTools = "<unlisted-tools>"

// OrderTools sorts the tools of a request (core P8). names are all tools that are known
// before any restriction, so that an order written for the deployment is right for a
// restricted child too; the caller drops what the agent may not see from the result.
// order names tools and holds UnlistedTools exactly once, where the others go in code-unit
// order; empty, it means all in that order. A name that is unknown or stands twice is an
// error. Neither slice is modified or kept.
func OrderTools(names []string, order []string) ([]string, error) {
	rest := slices.SortedFunc(slices.Values(names), compareCodeUnits)
	for i := 1; i < len(rest); i++ {
		if rest[i] == rest[i-1] {
			return nil, fmt.Errorf("order tools: tool %q is there twice", rest[i])
		}
	}
	if slices.Contains(rest, UnlistedTools) {
		return nil, fmt.Errorf("order tools: %q cannot be the name of a tool", UnlistedTools)
	}
	if len(order) == 0 {
		return rest, nil
	}
	placeholder := -1
	listed := make(map[string]bool, len(order))
	for i, name := range order {
		if listed[name] {
			return nil, fmt.Errorf("order tools: %q is listed twice", name)
		}
		listed[name] = true
		if name == UnlistedTools {
			placeholder = i
		} else if !slices.Contains(names, name) {
			return nil, fmt.Errorf("order tools: unknown tool %q", name)
		}
	}
	if placeholder < 0 {
		return nil, fmt.Errorf("order tools: %q is missing", UnlistedTools)
	}
	rest = slices.DeleteFunc(rest, func(name string) bool { return listed[name] })
	return slices.Concat(order[:placeholder], rest, order[placeholder+1:]), nil
}

// compareCodeUnits orders as comparing UTF-16 code units does. It differs from the order of
// bytes only above the basic plane, whose characters sort by their surrogates.
func compareCodeUnits(a, b string) int {
	for a != "" && b != "" {
		x, n := utf8.DecodeRuneInString(a)
		y, m := utf8.DecodeRuneInString(b)
		if x != y {
			const supplementary, surrogates = 0x10000, 0xD800
			switch {
			case x >= supplementary && y < supplementary:
				return cmp.Compare(surrogates, y)
			case y >= supplementary && x < supplementary:
				return cmp.Compare(x, surrogates)
			}
			return cmp.Compare(x, y)
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}
