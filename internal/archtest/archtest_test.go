package archtest_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A found folder is described by go list.
type listed struct {
	Dir        string
	ImportPath string
	Module     struct{ Dir, Path string }
}

// list asks the go command for the module's packages.
func list(t *testing.T, patterns ...string) []listed {
	t.Helper()
	args := append([]string{"list", "-e", "-json=Dir,ImportPath,Module"}, patterns...)
	command := exec.CommandContext(t.Context(), "go", args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var one listed
		if err := decoder.Decode(&one); err != nil {
			t.Fatalf("decode go list: %v", err)
		}
		packages = append(packages, one)
	}
	return packages
}

func TestHouse(t *testing.T) {
	self := list(t, ".")[0]
	house, module := house(), self.Module
	tree, err := readModule(module.Dir, module.Path)
	if err != nil {
		t.Error(err) // the files that parse are still checked
	}

	t.Run("every listed package is read", func(t *testing.T) {
		read := tree.packages()
		for _, pkg := range list(t, module.Path+"/...") {
			rel, err := filepath.Rel(module.Dir, pkg.Dir)
			if err != nil {
				t.Fatal(err)
			}
			if rel = filepath.ToSlash(rel); rel == "." {
				rel = ""
			}
			if !slices.Contains(read, rel) {
				t.Errorf("go list knows %s, the rules do not", pkg.ImportPath)
			}
		}
	})
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			for _, finding := range rule.check(tree, house) {
				t.Errorf("%s\n\twhy: %s", finding, rule.why)
			}
		})
	}
}

// The tables themselves: an edge or a dependency that names a package on no floor permits nothing.
func TestTables(t *testing.T) {
	house := house()
	seen := map[string]string{}
	for _, f := range house.floors {
		for _, pkg := range f.packages {
			if other, ok := seen[pkg]; ok {
				t.Errorf("%s is on floor %s and on floor %s", pkg, other, f.name)
			}
			seen[pkg] = f.name
		}
	}
	for _, e := range house.sameFloor {
		if seen[e.from] == "" || seen[e.from] != seen[e.to] || e.why == "" {
			t.Errorf("same-floor row %+v: both must be on one floor, and it needs a reason", e)
		}
	}
	for _, d := range house.dependencies {
		for _, pkg := range d.only {
			if seen[pkg] == "" {
				t.Errorf("dependency %s names %s, which is on no floor", d.module, pkg)
			}
		}
	}
	for _, pkg := range house.documented {
		if seen[pkg] == "" {
			t.Errorf("documented package %s is on no floor", pkg)
		}
	}
}
