package archtest_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// small is a house of the same kind as the real one, with every kind of row once.
func small() policy {
	return policy{
		floors: []floor{
			{name: "0", packages: []string{"message"}},
			{name: "1", packages: []string{"session", "session/projection"}},
			{name: "2", packages: []string{"llm"}},
			{name: "5", packages: []string{"subagent"}},
			{name: "6", adapters: true, packages: []string{"llm/openai", "store/disk", "subagent/spawn"}},
			{name: "9", packages: []string{"cmd/app"}},
			{name: floorT, packages: []string{"store/storetest"}},
		},
		sameFloor: []edge{{"session/projection", "session", "folds"}},
		dependencies: []dependency{
			{module: "example.org/sdk", only: []string{"llm/openai"}},
			{module: "example.org/cmp", testOnly: true},
			{module: "example.org/any"},
		},
		documented: []string{"session"},
	}
}

// A firing is a small module that breaks a rule, or nearly does, and what the rule says to it.
type firing struct {
	rule  string
	name  string
	files map[string]string
	adapt func(*policy)
	want  []string
}

func firings() []firing {
	return slices.Concat(importFirings(), commentFirings(), banFirings(), stateFirings(), ledgerFirings())
}

func importFirings() []firing {
	return []firing{
		{
			rule: "known packages", name: "a package on no floor, at the root and below",
			files: map[string]string{"a.go": "package app", "message/m.go": "package message", "job/j.go": "package job"},
			want:  []string{`package "" is on no floor`, `package "job" is on no floor`},
		},
		{
			rule: "floors", name: "upward, also from a file for another system",
			files: map[string]string{
				"message/m.go":         "package message\nimport _ \"app/session\"",
				"session/s_windows.go": "//go:build windows\n\npackage session\nimport _ \"app/llm\"",
			},
			want: []string{
				"message/m.go:2: message (floor 0) imports session (floor 1) above it",
				"session/s_windows.go:4: session (floor 1) imports llm (floor 2) above it",
			},
		},
		{
			rule: "floors", name: "same floor: siblings, adapters, the wrong way round, and the permitted edge",
			files: map[string]string{
				"session/s.go":             "package session\nimport _ \"app/session/projection\"",
				"session/projection/p.go":  "package projection\nimport _ \"app/session\"",
				"subagent/spawn/p.go":      "package spawn\nimport _ \"app/store/disk\"",
				"subagent/spawn/p_test.go": "package spawn_test\nimport _ \"app/store/disk\"",
			},
			want: []string{
				"session/s.go:2: session imports session/projection on the same floor 1",
				"subagent/spawn/p.go:2: subagent/spawn imports store/disk: adapters on one floor never import each other",
			},
		},
		{
			rule: "floors", name: "suites may import anything, and only tests import suites",
			files: map[string]string{
				"store/storetest/s.go": "package storetest\nimport _ \"app/store/disk\"",
				"store/disk/d.go":      "package disk\nimport _ \"app/store/storetest\"",
				"store/disk/d_test.go": "package disk_test\nimport _ \"app/store/storetest\"",
			},
			want: []string{"store/disk/d.go:2: store/disk (floor 6) imports store/storetest (floor T): only tests do"},
		},
		{
			rule: "the seam stays optional", name: "a store, a model and a low floor on the seam",
			files: map[string]string{
				"store/disk/d.go":      "package disk\nimport _ \"app/subagent\"",
				"store/disk/d_test.go": "package disk\nimport _ \"app/subagent\"",
				"llm/openai/o.go":      "package openai\nimport _ \"app/subagent/internal/x\"",
				"session/s.go":         "package session\nimport _ \"app/subagent\"",
				"subagent/spawn/s.go":  "package spawn\nimport _ \"app/subagent\"",
				"cmd/app/main.go":      "package main\nimport _ \"app/subagent\"",
			},
			want: []string{
				"llm/openai/o.go:2: llm/openai imports subagent/internal/x",
				"session/s.go:2: session imports subagent",
				"store/disk/d.go:2: store/disk imports subagent",
			},
		},
		{
			rule: "dependencies", name: "outside the adapter, outside tests, outside the table",
			files: map[string]string{
				"llm/openai/o.go":      "package openai\nimport (\n\t_ \"example.org/sdk/v3\"\n\t_ \"example.org/any\"\n\t_ \"net/http\"\n)",
				"llm/l_test.go":        "package llm\nimport (\n\t_ \"example.org/sdk/v3/option\"\n\t_ \"example.org/cmp\"\n)",
				"store/storetest/s.go": "package storetest\nimport _ \"example.org/cmp/opts\"",
				"session/s.go":         "package session\nimport (\n\t_ \"example.org/cmp\"\n\t_ \"example.org/sdkother\"\n)",
			},
			want: []string{
				"llm/l_test.go:3: llm/l_test.go imports example.org/sdk/v3/option: only llm/openai may",
				"session/s.go:3: session/s.go imports example.org/cmp: it is for tests only",
				"session/s.go:4: session/s.go imports example.org/sdkother: the module is in no row of the dependency table",
			},
		},
		{
			rule: "package names", name: "folder and package clause",
			files: map[string]string{
				"util/u.go":         "package strs",
				"llm/models/m.go":   "package models",
				"session/s.go":      "package helpers",
				"utility/u.go":      "package utility",
				"utility/u_test.go": "package utility_test",
			},
			want: []string{
				`llm/models: the folder name "models" is forbidden`,
				`util: the folder name "util" is forbidden`,
				`llm/models/m.go:1: the package name "models" is forbidden`,
				`session/s.go:1: the package name "helpers" is forbidden`,
			},
		},
	}
}

func commentFirings() []firing {
	return []firing{
		{
			rule: "package comments", name: "none, two, wrong floor, wrong beginning, floor not last",
			files: map[string]string{
				"message/m.go":            "package message",
				"message/m_test.go":       "// Package message_test is no package comment. Floor 0.\npackage message_test",
				"session/a.go":            "// Package session is the log. Floor 1.\npackage session",
				"session/b.go":            "// Package session is the log. Floor 1.\npackage session",
				"session/projection/p.go": "// Package projection folds. Floor 2.\npackage projection",
				"llm/l.go":                "// The models. Floor 2.\npackage llm",
				"subagent/s.go":           "// Package subagent is on\n// Floor 5. It says more.\npackage subagent",
				"llm/openai/only_test.go": "package openai_test",
				"subagent/spawn/s.go":     "// Package spawn starts children.\n//\n// Floor\n// 6.\npackage spawn",
				"cmd/app/main.go":         "// Command app runs. Floor 9.\npackage main",
				"store/storetest/s.go":    "// A detached comment is none.\n\n// Package storetest is the suite. Floor T.\npackage storetest",
			},
			want: []string{
				`llm/l.go:1: the package comment does not begin with "Package llm "`,
				`package "message" has no package comment`,
				`session/b.go:1: package "session" has a second package comment (the first is in session/a.go)`,
				`session/projection/p.go:1: the last sentence of the package comment is not "Floor 1."`,
				`subagent/s.go:1: the last sentence of the package comment is not "Floor 5."`,
			},
		},
		{
			rule: "doc comments", name: "each kind of declaration, in documented packages only",
			files: map[string]string{
				"session/s.go": "package session\ntype T struct{}\nfunc (t *T) M() {}\nfunc (T) Error() string { return \"\" }\n" +
					"func F() {}\nvar V, w = 1, 2\nconst (\n\tC = 1\n\t// D is said.\n\tD = 2\n\tE = 3 // said\n)\n" +
					"// G says it for all.\nconst (\n\tG = 1\n\tH = 2\n)\ntype u struct{}\nfunc (u) M() {}\nfunc g() {}\ntype P[K any] struct{}\nfunc (*P[K]) N() {}",
				"session/s_test.go": "package session\nfunc TestX() {}",
				"llm/l.go":          "package llm\nfunc F() {}",
			},
			want: []string{
				"session/s.go:2: T has no doc comment",
				"session/s.go:3: M has no doc comment",
				"session/s.go:5: F has no doc comment",
				"session/s.go:6: V has no doc comment",
				"session/s.go:8: C has no doc comment",
				"session/s.go:21: P has no doc comment",
				"session/s.go:22: N has no doc comment",
			},
		},
		{
			rule: "documented tests", name: "a test that is gone, one that is a method, one in product code",
			files: map[string]string{
				seamPage:               "Tests of the seam.\n| S1 | session/s_test.go | TestHere |\n| S2 | session/s_test.go | TestGone |\n| S3 | x | `FuzzGone`, BenchmarkHere, TestMethod, TestProduct, TestSuite/sub |",
				"session/s_test.go":    "package session\nfunc TestHere() {}\nfunc BenchmarkHere() {}\nfunc (t T) TestMethod() {}",
				"session/s.go":         "package session\nfunc TestProduct() {}",
				"store/storetest/s.go": "package storetest\nfunc TestSuite() {}",
			},
			want: []string{
				"docs/seam.md:3: no test is named TestGone",
				"docs/seam.md:4: no test is named FuzzGone",
				"docs/seam.md:4: no test is named TestMethod",
				"docs/seam.md:4: no test is named TestProduct",
			},
		},
		{
			rule: "catalogue", name: "missing, twice, open in a built section, not open any more; spans and lists",
			files: map[string]string{
				seamPage: "| id | where | test | note |\n| A-01 | a.go | TestA | |\n| A-02–A-03, A-05 | | | open |\n| A-01 | | | |\n| B-01 | | | open: later |\n" +
					"| C001–C002 | A-01 | tested |\n| C1 | | | a command |\n| X-01 | | | |",
			},
			adapt: func(p *policy) {
				p.catalogue = []section{{prefix: "A", last: 5, done: true, open: []int{1, 3}}, {prefix: "B", last: 1}, {prefix: clausePrefix, last: 3}}
			},
			want: []string{
				"docs/seam.md:4: A-01 has a second row",
				"the catalogue lets A-01 be open, and it is not",
				"docs/seam.md: A-02 is open, and its section is built",
				"docs/seam.md: A-04 has no row",
				"docs/seam.md: A-05 is open, and its section is built",
				"docs/seam.md: C003 has no row",
			},
		},
	}
}

func banFirings() []firing {
	return []firing{
		{
			rule: "no detached context", name: "renamed too; commands and tests may; rows permit and go stale",
			files: map[string]string{
				"session/s.go":      "package session\nimport \"context\"\nvar _ = context.Background()",
				"session/t.go":      "package session\nimport c \"context\"\nvar _ = c.TODO()",
				"session/u.go":      "package session\nimport \"context\"\nvar _ = context.Background()",
				"session/v.go":      "package session\nimport \"context\"\nvar _ = context.WithoutCancel(nil)",
				"session/s_test.go": "package session\nimport \"context\"\nvar _ = context.Background()",
				"cmd/app/main.go":   "package main\nimport \"context\"\nvar _ = context.Background()",
			},
			adapt: func(p *policy) { p.background = []row{{"session/u.go", "why"}, {"session/v.go", "why"}} },
			want: []string{
				"session/s.go:3: context.Background",
				"session/t.go:3: context.TODO",
				"session/v.go: the row in the background table is stale: nothing there needs it",
			},
		},
		{
			rule: "no init", name: "in product and tests, not a method",
			files: map[string]string{
				"session/s.go":      "package session\nfunc init() {}\nfunc (T) init() {}",
				"session/s_test.go": "package session\nfunc init() {}",
			},
			want: []string{"session/s.go:2: func init", "session/s_test.go:2: func init"},
		},
		{
			rule: "no panic", name: "product only; a row needs a reason",
			files: map[string]string{
				"session/s.go":      "package session\nfunc f() { panic(1) }",
				"session/t.go":      "package session\nfunc g() { defer func() { panic(recover()) }() }",
				"session/u.go":      "package session\nimport \"net/http\"\nfunc i() { panic(http.ErrAbortHandler) }\nfunc j() { panic(http.ErrBodyNotAllowed) }",
				"session/s_test.go": "package session\nfunc h() { panic(1) }",
			},
			adapt: func(p *policy) { p.panics = []row{{"session/t.go", ""}} },
			want: []string{
				"session/s.go:2: panic",
				"session/t.go: the row in the panics table gives no reason",
				"session/u.go:4: panic",
			},
		},
		{
			rule: "no sleep", name: "anywhere but in a bubble",
			files: map[string]string{
				"session/s.go": "package session\nimport \"time\"\nfunc f() { time.Sleep(1) }",
				"session/s_test.go": "package session\nimport (\n\t\"testing/synctest\"\n\t\"time\"\n)\n" +
					"func TestIn() { synctest.Test(nil, func() { time.Sleep(1) }) }\n" +
					"func TestOut() { time.Sleep(1); synctest.Test(nil, func() {}) }\n" +
					"func advance() { time.Sleep(1); synctest.Wait() }\n" +
					"func TestByName() { synctest.Test(nil, byName) }",
				"session/t_test.go": "package session\nimport \"time\"\nfunc byName() { time.Sleep(1) }\nfunc TestBare() { time.Sleep(1) }",
			},
			want: []string{
				"session/s.go:3: time.Sleep on the real clock",
				"session/s_test.go:7: time.Sleep on the real clock",
				"session/t_test.go:4: time.Sleep on the real clock",
			},
		},
	}
}

func stateFirings() []firing {
	return []firing{
		{
			rule: "no package state", name: "types that are or hold state",
			files: map[string]string{
				"session/s.go": "package session\nimport \"sync\"\nvar a = map[string]int{}\nvar b chan int\nvar c sync.Mutex\nvar d = make(map[int]int)\n" +
					"type cache struct { mu sync.RWMutex; n int }\nvar e = &cache{}\nvar f [2]cache\nvar g struct{ m map[int]int }\nvar h table\n" +
					"var k = []string{\"fixed\"}\nvar l = sync.OnceValue(func() int { return 1 })\nvar _ = map[int]int{}\n" +
					"type failure struct { of *cache }\nvar Err = &failure{}\nfunc local() { m := map[int]int{}; m[1] = 1 }",
				"session/t.go":      "package session\ntype table map[string]int",
				"session/s_test.go": "package session\nvar cases = map[string]int{}",
			},
			want: []string{
				"session/s.go:3: variable a is or holds a map",
				"session/s.go:4: variable b is or holds a channel",
				"session/s.go:5: variable c is or holds a sync.Mutex",
				"session/s.go:6: variable d is or holds a map",
				"session/s.go:8: variable e is or holds a sync.RWMutex",
				"session/s.go:9: variable f is or holds a sync.RWMutex",
				"session/s.go:10: variable g is or holds a map",
				"session/s.go:11: variable h is or holds a map",
			},
		},
		{
			rule: "no package state", name: "assignments, from any file, a test's included; locals of the same name are none",
			files: map[string]string{
				"session/s.go":      "package session\nvar list = []int{1}\nvar count int\nvar now = func() int { return 0 }\nvar fixed = []int{1}\nvar kept int",
				"session/t.go":      "package session\nfunc f() {\n\tlist[0] = 2\n\tcount++\n\tkept = 1\n\tfixed := fixed\n\tfixed = nil\n}\nfunc g(count int) { count = 2 }",
				"session/s_test.go": "package session\nfunc TestNow() { now = nil }",
				"session/x_test.go": "package session_test\nvar list int\nfunc TestX() { list = 1 }",
			},
			adapt: func(p *policy) { p.state = []row{{"session.kept", "why"}, {"session.gone", "why"}} },
			want: []string{
				"session.gone: the row in the state table is stale: nothing there needs it",
				"session/s_test.go:2: variable now is assigned to",
				"session/t.go:3: variable list is assigned to",
				"session/t.go:4: variable count is assigned to",
			},
		},
	}
}

func ledgerFirings() []firing {
	return []firing{{
		rule: "goroutine ledger", name: "every way to start one, in product files",
		files: map[string]string{
			"session/a.go":      "package session\nfunc f() { go f() }",
			"session/b.go":      "package session\nfunc g() { w.Go(nil); w.TryGo(nil) }",
			"session/c.go":      "package session\nimport (\n\t\"context\"\n\t\"time\"\n)\nfunc h() { time.AfterFunc(1, nil); context.AfterFunc(nil, nil) }",
			"session/d.go":      "package session\nfunc i() { go i() }",
			"session/e.go":      "package session\nfunc j() {}",
			"session/s_test.go": "package session\nfunc k() { go k() }",
		},
		adapt: func(p *policy) { p.ledger = []row{{"session/d.go", "its Close"}, {"session/e.go", "its Close"}} },
		want: []string{
			"session/a.go:2: go statement starts a goroutine",
			"session/b.go:2: method Go starts a goroutine",
			"session/b.go:2: method TryGo starts a goroutine",
			"session/c.go:6: context.AfterFunc starts a goroutine",
			"session/c.go:6: time.AfterFunc starts a goroutine",
			"session/e.go: the row in the ledger table is stale: nothing there needs it",
		},
	}}
}

// Each rule is seen to fire on the smallest module that breaks it, and to leave its neighbours alone.
func TestRulesFire(t *testing.T) {
	checks := map[string]rule{}
	for _, rule := range rules() {
		checks[rule.name] = rule
	}
	unfired := maps.Clone(checks)
	for _, f := range firings() {
		t.Run(f.rule+"/"+f.name, func(t *testing.T) {
			tree, err := parse("app", f.files)
			if err != nil {
				t.Fatal(err)
			}
			p := small()
			if f.adapt != nil {
				f.adapt(&p)
			}
			rule, ok := checks[f.rule]
			if !ok {
				t.Fatalf("no rule is named %q", f.rule)
			}
			got, want := rule.check(tree, p), slices.Clone(f.want)
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if len(got) > 0 {
				delete(unfired, f.rule)
			}
		})
	}
	for name := range unfired {
		t.Errorf("rule %q never fires here", name)
	}
}

// A file that does not parse hides nothing of the others.
func TestParseFaultKeepsTheRest(t *testing.T) {
	tree, err := parse("app", map[string]string{"a/a.go": "package a", "b/b.go": "package"})
	if err == nil {
		t.Error("no error for b/b.go")
	}
	if diff := cmp.Diff([]string{"a"}, tree.packages()); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}
