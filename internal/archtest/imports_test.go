package archtest_test

import (
	"fmt"
	"slices"
	"strings"
)

func knownPackages(t tree, p policy) []string {
	var out []string
	for _, pkg := range t.packages() {
		if at, _ := p.floorOf(pkg); at < 0 {
			out = append(out, fmt.Sprintf("package %q is on no floor", pkg))
		}
	}
	return out
}

// productImports calls visit for each import of this module that a non-test file makes.
func productImports(t tree, visit func(from source, to string, place func(string, ...any) string)) {
	for _, file := range t.files {
		if file.test {
			continue
		}
		for _, spec := range file.ast.Imports {
			if to, ok := t.inside(imported(spec)); ok {
				visit(file, to, func(format string, args ...any) string { return t.at(spec, format, args...) })
			}
		}
	}
}

func floorEdges(t tree, p policy) []string {
	var out []string
	productImports(t, func(from source, to string, place func(string, ...any) string) {
		i, above := p.floorOf(from.dir)
		j, below := p.floorOf(to)
		switch {
		case i < 0 || j < 0: // knownPackages names it
		case above.name == floorT: // suites and fakes may stand on anything
		case below.name == floorT:
			out = append(out, place("%s (floor %s) imports %s (floor T): only tests do", from.dir, above.name, to))
		case j < i:
		case j > i:
			out = append(out, place("%s (floor %s) imports %s (floor %s) above it", from.dir, above.name, to, below.name))
		case slices.ContainsFunc(p.sameFloor, func(e edge) bool { return e.from == from.dir && e.to == to && e.why != "" }):
		case above.adapters:
			out = append(out, place("%s imports %s: adapters on one floor never import each other", from.dir, to))
		default:
			out = append(out, place("%s imports %s on the same floor %s", from.dir, to, above.name))
		}
	})
	return out
}

func seamOptional(t tree, p policy) []string {
	var out []string
	productImports(t, func(from source, to string, place func(string, ...any) string) {
		if !under(to, "subagent") || under(from.dir, "subagent") {
			return
		}
		below := under(from.dir, "store") || under(from.dir, "llm") || under(from.dir, "tool")
		if _, f := p.floorOf(from.dir); len(f.name) == 1 && strings.Contains("01234", f.name) {
			below = true
		}
		if below {
			out = append(out, place("%s imports %s", from.dir, to))
		}
	})
	return out
}

func dependencies(t tree, p policy) []string {
	var out []string
	for _, file := range t.files {
		for _, spec := range file.ast.Imports {
			name := imported(spec)
			if _, ok := t.inside(name); ok || standard(name) {
				continue
			}
			if fault := judge(p, file, name); fault != "" {
				out = append(out, t.at(spec, "%s imports %s: %s", file.path, name, fault))
			}
		}
	}
	return out
}

// judge says what is wrong with a file's import of another module, if anything. The first row that matches decides.
func judge(p policy, file source, name string) string {
	i := slices.IndexFunc(p.dependencies, func(d dependency) bool { return under(name, d.module) })
	if i < 0 {
		return "the module is in no row of the dependency table"
	}
	d := p.dependencies[i]
	_, f := p.floorOf(file.dir)
	switch {
	case d.testOnly && !file.test && f.name != floorT:
		return "it is for tests only"
	case len(d.only) > 0 && !slices.Contains(d.only, file.dir):
		return "only " + strings.Join(d.only, ", ") + " may"
	}
	return ""
}

// forbiddenNames fit everything and so say nothing.
const forbiddenNames = " util utils common types helpers helper models base manager pkg "

func packageNames(t tree, _ policy) []string {
	var out []string
	for _, pkg := range t.packages() {
		for element := range strings.SplitSeq(pkg, "/") {
			if strings.Contains(forbiddenNames, " "+element+" ") {
				out = append(out, fmt.Sprintf("%s: the folder name %q is forbidden", pkg, element))
			}
		}
	}
	for _, file := range t.files {
		name := strings.TrimSuffix(file.ast.Name.Name, "_test")
		if strings.Contains(forbiddenNames, " "+name+" ") {
			out = append(out, t.at(file.ast.Name, "the package name %q is forbidden", name))
		}
	}
	return out
}
