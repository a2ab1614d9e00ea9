package scenario_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// page is where every clause of the seeds has its row.
const page = "../../docs/seam.md"

var numbers = regexp.MustCompile(`C(\d{3})(?:[-–]C(\d{3}))?`)

// clausesIn returns the clauses in a text, ranges written out.
func clausesIn(t *testing.T, text string) (list []string) {
	t.Helper()
	for _, m := range numbers.FindAllStringSubmatch(text, -1) {
		first, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		last := first
		if m[2] != "" {
			if last, err = strconv.Atoi(m[2]); err != nil || last <= first {
				t.Fatalf("%s is no range", m[0])
			}
		}
		for n := first; n <= last; n++ {
			list = append(list, fmt.Sprintf("C%03d", n))
		}
	}
	return list
}

// known returns the clauses that the page counts: those of its last table.
func known(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(data), "## The seeds, clause by clause")
	if !ok {
		t.Fatalf("%s has no table of clauses", page)
	}
	all := map[string]bool{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| C") {
			continue
		}
		cell, _, _ := strings.Cut(line[2:], "|")
		for _, c := range clausesIn(t, cell) {
			all[c] = true
		}
	}
	return all
}

// sorting returns what is to become of each clause: "told" or "later".
func sorting(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("testdata/clauses")
	if err != nil {
		t.Fatal(err)
	}
	sort := map[string]string{}
	group, n := "", 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimSpace(line)
		word, why, _ := strings.Cut(line, " ")
		switch {
		case line == "" || word == "#":
		case word == "told" || word == "later":
			if group = word; why == "" {
				t.Errorf("testdata/clauses:%d: the group says nothing of itself", n)
			}
		case group == "" || numbers.ReplaceAllString(strings.ReplaceAll(line, " ", ""), "") != "":
			t.Errorf("testdata/clauses:%d: %q is neither a group nor clauses", n, line)
		default:
			for _, c := range clausesIn(t, line) {
				if sort[c] != "" {
					t.Errorf("testdata/clauses:%d: %s stands here twice", n, c)
				}
				sort[c] = group
			}
		}
	}
	return sort
}

// Every clause of the seeds is sorted, each that is to be told has a story, and no story
// names one that is not there or that waits.
func TestClauses(t *testing.T) {
	all, sort := known(t), sorting(t)
	for _, c := range sorted(all) {
		if sort[c] == "" {
			t.Errorf("%s stands in %s and not in testdata/clauses", c, page)
		}
	}
	told := map[string][]string{}
	for _, path := range stories(t) {
		s, err := load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, c := range s.clauses {
			told[c] = append(told[c], path)
		}
	}
	for _, c := range sorted(sort) {
		switch {
		case !all[c]:
			t.Errorf("testdata/clauses: %s stands in no row of %s", c, page)
		case sort[c] == "told" && told[c] == nil:
			t.Errorf("no story tells %s", c)
		case sort[c] == "later" && told[c] != nil:
			t.Errorf("testdata/clauses: %s waits, and %s tells it", c, strings.Join(told[c], ", "))
		}
	}
	for _, c := range sorted(told) {
		if sort[c] == "" {
			t.Errorf("%s tells %s, which is no clause", strings.Join(told[c], ", "), c)
		}
	}
}

// The package comment is the reference of the format: it has every directive.
func TestReference(t *testing.T) {
	data, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for line := range strings.Lines(string(data)) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "//"))...)
	}
	text := strings.Join(words, " ")
	names := sorted(directives())
	for _, name := range names {
		if d := directives()[name]; !strings.Contains(text, d.usage) {
			t.Errorf("doc.go does not say: %s", d.usage)
		}
	}
	if !slices.Contains(names, "left") {
		t.Error("there are no directives")
	}
}
