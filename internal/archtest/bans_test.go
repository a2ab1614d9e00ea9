package archtest_test

import (
	"go/ast"
	"slices"
	"strings"
)

func noBackground(t tree, p policy) []string {
	found := map[string][]string{}
	for _, file := range t.files {
		if file.test || under(file.dir, "cmd") || under(file.dir, "internal/fakemodel/cmd") {
			continue
		}
		for _, sel := range file.uses("context", "Background", "TODO") {
			found[file.path] = append(found[file.path], t.at(sel, "context.%s", sel.Sel.Name))
		}
	}
	return weigh("background", p.background, found)
}

func noInit(t tree, _ policy) []string {
	var out []string
	for _, file := range t.files {
		for _, decl := range file.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, t.at(fn, "func init"))
			}
		}
	}
	return out
}

// noPanic lets a handler abort its response with http.ErrAbortHandler: net/http knows no other way.
func noPanic(t tree, p policy) []string {
	found := map[string][]string{}
	for _, file := range t.files {
		if file.test {
			continue
		}
		aborts := file.uses("net/http", "ErrAbortHandler")
		ast.Inspect(file.ast, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" && !isOneOf(call.Args[0], aborts) {
					found[file.path] = append(found[file.path], t.at(call, "panic"))
				}
			}
			return true
		})
	}
	return weigh("panics", p.panics, found)
}

// noSleep lets a test sleep where the clock is virtual: inside the function given to synctest.Test, in a function
// that the folder passes to it by name, and in one that calls synctest.Wait, which panics anywhere else.
func noSleep(t tree, p policy) []string {
	found := map[string][]string{}
	passed := bubbleNames(t)
	for _, file := range t.files {
		for _, sleep := range file.uses("time", "Sleep") {
			if !file.virtual(sleep, passed[file.dir]) {
				found[file.path] = append(found[file.path], t.at(sleep, "time.Sleep on the real clock"))
			}
		}
	}
	return weigh("sleeps", p.sleeps, found)
}

// isOneOf reports whether the expression itself is one of the selectors.
func isOneOf(expr ast.Expr, selectors []*ast.SelectorExpr) bool {
	sel, ok := expr.(*ast.SelectorExpr)
	return ok && slices.Contains(selectors, sel)
}

// bubbleCalls returns the file's calls of synctest.Test.
func (s source) bubbleCalls() []*ast.CallExpr {
	starts := s.uses("testing/synctest", "Test")
	var calls []*ast.CallExpr
	ast.Inspect(s.ast, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok {
			if isOneOf(call.Fun, starts) {
				calls = append(calls, call)
			}
		}
		return true
	})
	return calls
}

// bubbleNames returns, for each folder, the functions that are passed to synctest.Test by name.
func bubbleNames(t tree) map[string]map[string]bool {
	names := map[string]map[string]bool{}
	for _, file := range t.files {
		for _, call := range file.bubbleCalls() {
			for _, arg := range call.Args {
				if id, ok := arg.(*ast.Ident); ok {
					if names[file.dir] == nil {
						names[file.dir] = map[string]bool{}
					}
					names[file.dir][id.Name] = true
				}
			}
		}
	}
	return names
}

func (s source) virtual(sleep ast.Node, passed map[string]bool) bool {
	for _, call := range s.bubbleCalls() {
		if encloses(call, sleep) {
			return true
		}
	}
	for _, decl := range s.ast.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || !encloses(fn, sleep) {
			continue
		}
		if fn.Recv == nil && passed[fn.Name.Name] {
			return true
		}
		for _, wait := range s.uses("testing/synctest", "Wait") {
			if encloses(fn, wait) {
				return true
			}
		}
	}
	return false
}

// goroutineLedger finds what starts a goroutine: go statements, the Go methods of sync.WaitGroup and errgroup.Group
// (any method of that name counts), and the AfterFunc of time and context.
func goroutineLedger(t tree, p policy) []string {
	found := map[string][]string{}
	for _, file := range t.files {
		if file.test {
			continue
		}
		note := func(node ast.Node, what string) {
			found[file.path] = append(found[file.path], t.at(node, "%s starts a goroutine", what))
		}
		for _, name := range []string{"time", "context"} {
			for _, sel := range file.uses(name, "AfterFunc") {
				note(sel, name+".AfterFunc")
			}
		}
		ast.Inspect(file.ast, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.GoStmt:
				note(node, "go statement")
			case *ast.CallExpr:
				if sel, ok := node.Fun.(*ast.SelectorExpr); ok && strings.TrimPrefix(sel.Sel.Name, "Try") == "Go" {
					note(node, "method "+sel.Sel.Name)
				}
			}
			return true
		})
	}
	return weigh("ledger", p.ledger, found)
}
