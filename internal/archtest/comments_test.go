package archtest_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

func packageComments(t tree, p policy) []string {
	var out []string
	for _, pkg := range t.packages() {
		var commented []source
		product := false
		for _, file := range t.files {
			if file.dir != pkg || file.test {
				continue
			}
			product = true
			if file.ast.Doc != nil {
				commented = append(commented, file)
			}
		}
		switch {
		case !product: // tests alone need no comment
		case len(commented) == 0:
			out = append(out, fmt.Sprintf("package %q has no package comment", pkg))
		case len(commented) > 1:
			out = append(out, t.at(commented[1].ast.Doc, "package %q has a second package comment (the first is in %s)", pkg, commented[0].path))
		default:
			out = append(out, commentFaults(t, p, commented[0])...)
		}
	}
	return out
}

// commentFaults says what is wrong with the text of a package comment.
func commentFaults(t tree, p policy, file source) []string {
	var out []string
	text := strings.Join(strings.Fields(file.ast.Doc.Text()), " ")
	opening := "Package " + file.ast.Name.Name + " "
	if file.ast.Name.Name == "main" {
		opening = "Command "
	}
	if !strings.HasPrefix(text, opening) {
		out = append(out, t.at(file.ast.Doc, "the package comment does not begin with %q", opening))
	}
	if at, f := p.floorOf(file.dir); at >= 0 && !strings.HasSuffix(text, " Floor "+f.name+".") {
		out = append(out, t.at(file.ast.Doc, "the last sentence of the package comment is not %q", "Floor "+f.name+"."))
	}
	return out
}

func docComments(t tree, p policy) []string {
	var out []string
	for _, file := range t.files {
		if file.test || !slices.Contains(p.documented, file.dir) {
			continue
		}
		for _, decl := range file.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Doc == nil && decl.Name.IsExported() && exportedReceiver(decl) && !plainMethod(decl) {
					out = append(out, t.at(decl, "%s has no doc comment", decl.Name.Name))
				}
			case *ast.GenDecl:
				out = append(out, undocumented(t, decl)...)
			}
		}
	}
	return out
}

// plainMethod reports whether a method is one of the few whose whole contract the standard library states.
func plainMethod(fn *ast.FuncDecl) bool {
	return fn.Recv != nil && slices.Contains([]string{"Error", "Is", "String", "Unwrap"}, fn.Name.Name)
}

// exportedReceiver reports whether a function is no method, or a method of an exported type.
func exportedReceiver(fn *ast.FuncDecl) bool {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return true
	}
	name := ""
	ast.Inspect(fn.Recv.List[0].Type, func(node ast.Node) bool {
		if id, ok := node.(*ast.Ident); ok && name == "" {
			name = id.Name // the first identifier is the type, what follows are its parameters
		}
		return name == ""
	})
	return ast.IsExported(name)
}

// undocumented returns the exported names of a declaration that neither they nor their group document.
func undocumented(t tree, decl *ast.GenDecl) []string {
	if decl.Tok == token.IMPORT || decl.Doc != nil {
		return nil
	}
	var out []string
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Doc == nil && spec.Comment == nil && spec.Name.IsExported() {
				out = append(out, t.at(spec, "%s has no doc comment", spec.Name.Name))
			}
		case *ast.ValueSpec:
			if spec.Doc != nil || spec.Comment != nil {
				continue
			}
			for _, name := range spec.Names {
				if name.IsExported() {
					out = append(out, t.at(name, "%s has no doc comment", name.Name))
				}
			}
		}
	}
	return out
}

// testWord matches what go test would run by name. The word after the prefix does not begin with a small letter, so
// that "Tests" in a sentence is none.
var testWord = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z0-9_][A-Za-z0-9_]*`)

func documentedTests(t tree, p policy) []string {
	declared := map[string]bool{}
	for _, file := range t.files {
		_, f := p.floorOf(file.dir)
		if !file.test && f.name != floorT {
			continue // beside tests only the suites on floor T hold them
		}
		for _, decl := range file.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				declared[fn.Name.Name] = true
			}
		}
	}
	var out []string
	line := 0
	for text := range strings.Lines(t.texts[seamPage]) {
		line++
		for _, word := range testWord.FindAllString(text, -1) {
			if !declared[word] {
				out = append(out, fmt.Sprintf("%s:%d: no test is named %s", seamPage, line, word))
			}
		}
	}
	return out
}
