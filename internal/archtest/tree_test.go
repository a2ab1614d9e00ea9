package archtest_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A tree is the parsed module, or a small fake of one.
type tree struct {
	module string
	fset   *token.FileSet
	files  []source          // sorted by path
	texts  map[string]string // documents that rules read, by path
}

// A source is one Go file, whatever its build constraints.
type source struct {
	path string // slash-separated, relative to the module
	dir  string // the package's path in the module, "" for its root
	test bool
	ast  *ast.File
}

// readModule reads the module at root. It walks the folders itself instead of asking go list for the files: that way
// files for other systems and tags are seen too, and the test cache notices a new folder.
func readModule(root, module string) (tree, error) {
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return enter(root, name)
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !strings.HasSuffix(rel, ".go") && rel != seamPage {
			return nil
		}
		text, err := os.ReadFile(name)
		texts[rel] = string(text)
		return err
	})
	if err != nil {
		return tree{}, fmt.Errorf("read module: %w", err)
	}
	return parse(module, texts)
}

// enter reports whether a folder belongs to the module, with the go command's own rules.
func enter(root, dir string) error {
	base := filepath.Base(dir)
	switch {
	case dir == root:
		return nil
	case base == "testdata", base == "vendor", strings.HasPrefix(base, "."), strings.HasPrefix(base, "_"):
		return filepath.SkipDir
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	switch {
	case err == nil:
		return filepath.SkipDir
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// parse makes a tree from file texts by path. A file that does not parse is an error, beside the tree of the others.
func parse(module string, texts map[string]string) (tree, error) {
	t := tree{module: module, fset: token.NewFileSet(), texts: map[string]string{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if !strings.HasSuffix(name, ".go") {
			t.texts[name] = texts[name]
			continue
		}
		file, err := parser.ParseFile(t.fset, name, texts[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			errs = append(errs, fmt.Errorf("parse: %w", err))
			continue
		}
		dir := path.Dir(name)
		if dir == "." {
			dir = ""
		}
		t.files = append(t.files, source{path: name, dir: dir, test: strings.HasSuffix(name, "_test.go"), ast: file})
	}
	return t, errors.Join(errs...)
}

// packages returns the folders that hold Go files, sorted.
func (t tree) packages() []string {
	var dirs []string
	for _, file := range t.files {
		dirs = append(dirs, file.dir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// at formats a finding with its place.
func (t tree) at(node ast.Node, format string, args ...any) string {
	pos := t.fset.Position(node.Pos())
	return fmt.Sprintf("%s:%d: %s", pos.Filename, pos.Line, fmt.Sprintf(format, args...))
}

// inside returns the package's path in the module, and whether the import is of this module at all.
func (t tree) inside(importPath string) (string, bool) {
	if importPath == t.module {
		return "", true
	}
	return strings.CutPrefix(importPath, t.module+"/")
}

// standard reports whether the import is of the standard library: its first element has no dot.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// under reports whether name is folder or lies below it.
func under(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, folder+"/")
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// importName returns the name under which a file sees an import that it does not rename.
func importName(importPath string) string {
	base := path.Base(importPath)
	if majorVersion.MatchString(base) {
		base = path.Base(path.Dir(importPath))
	}
	return base
}

// imported returns the import path of a spec.
func imported(spec *ast.ImportSpec) string {
	name, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // the parser has checked it; an unknown path fails its rule by name
	}
	return name
}

// uses returns the places where the file names a member of a standard package, as in context.Background. A local
// variable that hides the package is taken for it: rename the variable.
func (s source) uses(importPath string, members ...string) []*ast.SelectorExpr {
	local := ""
	for _, spec := range s.ast.Imports {
		if imported(spec) != importPath {
			continue
		}
		local = importName(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	if local == "" {
		return nil
	}
	var found []*ast.SelectorExpr
	ast.Inspect(s.ast, func(node ast.Node) bool {
		sel, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == local && slices.Contains(members, sel.Sel.Name) {
			found = append(found, sel)
		}
		return true
	})
	return found
}

// encloses reports whether outer holds the whole of inner.
func encloses(outer, inner ast.Node) bool {
	return outer.Pos() <= inner.Pos() && inner.End() <= outer.End()
}
