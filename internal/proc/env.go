package proc

import (
	"maps"
	"slices"
	"strings"
)

// markVar holds the marks of the process trees that a process belongs to, the
// outermost first.
const markVar = "OFFSHOOT_PROC"

// Scrub returns environ without what a child must not inherit (core W34): every
// name that contains KEY, PASSWORD, SECRET or TOKEN in any case, and every name
// that begins with DSH_ or OFFSHOOT_. Entries without a name are dropped.
func Scrub(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, entry := range environ {
		if name, _, ok := strings.Cut(entry, "="); ok && name != "" && !secret(name) {
			kept = append(kept, entry)
		}
	}
	return kept
}

func secret(name string) bool {
	name = strings.ToUpper(name)
	for _, word := range []string{"KEY", "PASSWORD", "SECRET", "TOKEN"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return strings.HasPrefix(name, "DSH_") || strings.HasPrefix(name, "OFFSHOOT_")
}

// environ returns a child's environment, sorted by name.
func environ(inherited []string, explicit map[string]string, mark string) []string {
	merged := map[string]string{}
	for _, entry := range Scrub(inherited) {
		name, value, _ := strings.Cut(entry, "=")
		merged[name] = value
	}
	maps.Copy(merged, explicit)
	marks := mark
	for _, entry := range inherited {
		// A tree inside a tree stays attributed to the outer one too.
		if outer, ok := strings.CutPrefix(entry, markVar+"="); ok && outer != "" {
			marks = outer + ":" + mark
		}
	}
	merged[markVar] = marks
	out := make([]string, 0, len(merged))
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		out = append(out, name+"="+merged[name])
	}
	return out
}
