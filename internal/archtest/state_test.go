package archtest_test

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// noState finds package-level variables that are state: those whose type is or holds a map, a channel or something of
// sync, and those that the package assigns to after their declaration.
//
// The packages are type-checked alone, with empty stand-ins for what they import: enough to tell a local name from the
// package's own and to see through its own types, and quick.
func noState(t tree, p policy) []string {
	found := map[string][]string{}
	for _, dir := range t.packages() {
		var files []*ast.File
		product := map[string]bool{}
		for _, file := range t.files {
			if file.dir == dir && !strings.HasSuffix(file.ast.Name.Name, "_test") {
				files = append(files, file.ast)
				product[file.path] = !file.test
			}
		}
		info := types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
		config := types.Config{Importer: stubs{}, Error: func(error) {}}
		// Errors are expected: nothing imported has members. The build reports those that are real.
		pkg, _ := config.Check(dir, t.fset, files, &info)
		note := func(v *types.Var, at ast.Node, what string) {
			if product[t.fset.Position(v.Pos()).Filename] {
				place := dir + "." + v.Name()
				found[place] = append(found[place], t.at(at, "variable %s %s", v.Name(), what))
			}
		}
		for id, object := range info.Defs {
			if v, ok := object.(*types.Var); ok && v.Parent() == pkg.Scope() && id.Name != "_" {
				if kind := stateful(v.Type(), map[types.Type]bool{}); kind != "" {
					note(v, id, "is or holds a "+kind)
				}
			}
		}
		for _, file := range files {
			assignments(file, func(target ast.Expr) {
				if v, ok := info.Uses[root(target)].(*types.Var); ok && v.Parent() == pkg.Scope() {
					note(v, target, "is assigned to")
				}
			})
		}
	}
	return weigh("state", p.state, found)
}

// assignments visits what a file assigns to, definitions of new variables aside.
func assignments(file *ast.File, visit func(ast.Expr)) {
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.AssignStmt:
			for _, target := range node.Lhs {
				visit(target) // in a := the new names are definitions, no uses, and fall away
			}
		case *ast.IncDecStmt:
			visit(node.X)
		case *ast.RangeStmt:
			if node.Tok == token.ASSIGN {
				visit(node.Key)
				if node.Value != nil {
					visit(node.Value)
				}
			}
		}
		return true
	})
}

// root returns the variable that an assignment changes: v in v, v[i], v.f, *v. It is nil where there is none.
func root(target ast.Expr) *ast.Ident {
	for {
		switch expr := target.(type) {
		case *ast.Ident:
			return expr
		case *ast.IndexExpr:
			target = expr.X
		case *ast.SelectorExpr:
			target = expr.X
		case *ast.StarExpr:
			target = expr.X
		case *ast.ParenExpr:
			target = expr.X
		default:
			return nil
		}
	}
}

// stateful names the kind of state that a variable of the type is or holds, "" for none.
func stateful(typ types.Type, seen map[types.Type]bool) string {
	if seen[typ] {
		return ""
	}
	seen[typ] = true
	if named, ok := types.Unalias(typ).(*types.Named); ok && named.Obj().Pkg() != nil {
		if _, ok := syncTypes()[named.Obj().Pkg().Path()]; ok {
			return named.Obj().Pkg().Path() + "." + named.Obj().Name()
		}
	}
	switch under := typ.Underlying().(type) {
	case *types.Map:
		return "map"
	case *types.Chan:
		return "channel"
	case *types.Array:
		return stateful(under.Elem(), seen)
	case *types.Pointer:
		return stateful(under.Elem(), seen)
	case *types.Struct:
		for field := range under.Fields() {
			if _, ok := field.Type().Underlying().(*types.Pointer); ok {
				continue // what a field points at is shared by whoever was given it
			}
			if kind := stateful(field.Type(), seen); kind != "" {
				return kind
			}
		}
	}
	return ""
}

// stubs imports a package that has no members, but for the types of sync.
type stubs struct{}

func (stubs) Import(importPath string) (*types.Package, error) {
	pkg := types.NewPackage(importPath, importName(importPath))
	for _, name := range syncTypes()[importPath] {
		object := types.NewTypeName(token.NoPos, pkg, name, nil)
		types.NewNamed(object, types.NewStruct(nil, nil), nil)
		pkg.Scope().Insert(object)
	}
	pkg.MarkComplete()
	return pkg, nil
}

func syncTypes() map[string][]string {
	return map[string][]string{
		"sync":        {"Cond", "Map", "Mutex", "Once", "Pool", "RWMutex", "WaitGroup"},
		"sync/atomic": {"Bool", "Int32", "Int64", "Pointer", "Uint32", "Uint64", "Uintptr", "Value"},
	}
}
