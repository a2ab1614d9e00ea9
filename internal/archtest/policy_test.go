package archtest_test

import (
	"fmt"
	"slices"
)

const (
	floorT   = "T"
	seamPage = "docs/seam.md"
)

// A policy is every table that the rules read.
type policy struct {
	floors       []floor
	sameFloor    []edge
	dependencies []dependency
	documented   []string // packages whose exported symbols all carry a doc comment
	catalogue    []section

	background, panics, sleeps, state, ledger []row
}

// A floor is a name and the packages on it, lowest floor first in the policy; floorT stands beside the house.
type floor struct {
	name     string
	packages []string
	adapters bool // its packages are siblings behind contracts of lower floors
}

// An edge is a permitted import between two packages of one floor.
type edge struct{ from, to, why string }

// A dependency is a module, or a prefix of module paths, that the module may import.
type dependency struct {
	module   string
	only     []string // the packages that may import it; none: all
	testOnly bool     // in tests and on floorT only
}

// A row names a place and says why it may be there.
type row struct{ place, why string }

// floorOf returns the index of the package's floor and the floor; the index is -1 where the package is in no row.
func (p policy) floorOf(pkg string) (int, floor) {
	for i, f := range p.floors {
		if slices.Contains(f.packages, pkg) {
			return i, f
		}
	}
	return -1, floor{}
}

// A rule is one check. Its why is printed under each finding.
type rule struct {
	name  string
	why   string
	check func(tree, policy) []string
}

func rules() []rule {
	return []rule{
		{"known packages", "Every package has a floor; one that stands nowhere is a decision nobody took.", knownPackages},
		{"floors", "A package imports only packages on lower floors, so that each can be read, tested and replaced without those above it.", floorEdges},
		{"the seam stays optional", "A harness without delegation is complete: floors 0-4, stores, models and tools know nothing of the seam.", seamOptional},
		{"dependencies", "A driver, an SDK or a user interface is known to its adapter alone; a new module is argued for in docs/decisions.", dependencies},
		{"package comments", "The package comment says what a package is for and where it stands; two of them disagree sooner or later.", packageComments},
		{"package names", "A package is named after what it provides; a name that fits everything collects everything.", packageNames},
		{"no detached context", "A context begun in the middle of the stack outlives its caller; use context.WithoutCancel for cleanup.", noBackground},
		{"no init", "Registries are values, filled by the composition root; importing a package has no effect.", noInit},
		{"no package state", "State has one owner that can close it; a package-level variable has none.", noState},
		{"no sleep", "A sleep is either too short or too long: use testing/synctest, a gate or a timer that the context can end.", noSleep},
		{"no panic", "Errors are returned; a panic in a library takes the whole tree of agents down.", noPanic},
		{"goroutine ledger", "Whoever starts a goroutine joins it in its own Close; the ledger says who that is.", goroutineLedger},
		{"doc comments", "The contracts are the product: what is passed, who owns it, when it may be called.", docComments},
		{"catalogue", "A behaviour that has no row was forgotten; one that is open in a section that is built was promised and not done.", catalogue},
		{"documented tests", "docs/seam.md maps clauses to tests; a test that does not exist checks nothing.", documentedTests},
	}
}

// weigh matches places where something was found against the rows that permit it: a place without a row is a finding,
// and so is a row without a place, because it would permit the next one unseen.
func weigh(table string, permitted []row, found map[string][]string) []string {
	var out []string
	for _, r := range permitted {
		if _, ok := found[r.place]; !ok {
			out = append(out, fmt.Sprintf("%s: the row in the %s table is stale: nothing there needs it", r.place, table))
		}
		if r.why == "" {
			out = append(out, fmt.Sprintf("%s: the row in the %s table gives no reason", r.place, table))
		}
		delete(found, r.place)
	}
	for _, findings := range found {
		out = append(out, findings...)
	}
	slices.Sort(out)
	return out
}
