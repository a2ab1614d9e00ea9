package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	config  = `{"config":{"protocol_version":"v1.0.0","scan_level":"symbol"}}`
	sbom    = `{"SBOM":{"go_version":"go1.26.8","modules":[{"path":"example.org/app"},{"path":"example.org/lib"}]}}`
	report  = `{"osv":{"id":"GO-1","summary":"It breaks"}}`
	known   = `{"finding":{"osv":"GO-1","fixed_version":"v1.2.0","trace":[{"module":"example.org/lib","version":"v1.1.0"}]}}`
	uses    = `{"finding":{"osv":"GO-1","fixed_version":"v1.2.0","trace":[{"module":"example.org/lib","version":"v1.1.0","package":"example.org/lib/a"}]}}`
	calls   = `{"finding":{"osv":"GO-1","fixed_version":"v1.2.0","trace":[{"module":"example.org/lib","version":"v1.1.0","package":"example.org/lib/a","receiver":"*T","function":"Break"},{"module":"example.org/app","package":"example.org/app","function":"main","position":{"filename":"main.go","line":7}}]}}`
	goUses  = `{"finding":{"osv":"GO-2","fixed_version":"v1.26.9","trace":[{"module":"stdlib","version":"v1.26.8","package":"net/http"}]}}`
	goCalls = `{"finding":{"osv":"GO-2","fixed_version":"v1.26.9","trace":[{"module":"stdlib","version":"v1.26.8","package":"net/http","function":"Get"}]}}`
	command = `{"finding":{"osv":"GO-3","trace":[{"module":"toolchain","version":"v1.26.8","package":"cmd/go","function":"main"}]}}`
)

// TestJudge: what fails is what another module brings and is called, and nothing else.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name     string
		stream   []string
		others   int
		called   int
		says     string
		standard string
	}{
		{name: "nothing"},
		{name: "a module that is required", stream: []string{report, known}},
		{
			name: "a package that is imported", stream: []string{report, known, uses}, others: 1,
			says: "imported, and not called: GO-1 example.org/lib/a of example.org/lib v1.1.0, v1.2.0 mends it: It breaks",
		},
		{
			name: "a function that is called", stream: []string{report, known, uses, calls, calls}, others: 1, called: 1,
			says: "    example.org/app.main, main.go:7\n    example.org/lib/a.*T.Break\n",
		},
		{name: "the standard library, imported", stream: []string{goUses}},
		{name: "the standard library, called", stream: []string{goUses, goCalls}, standard: "GO-2"},
		{name: "the toolchain", stream: []string{command}, standard: "GO-3"},
		{name: "both", stream: []string{goCalls, calls, command}, others: 1, called: 1, says: "CALLED: GO-1", standard: "GO-2 GO-3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream := strings.Join(append([]string{config, sbom}, c.stream...), "\n")
			r, err := decode(strings.NewReader(stream), "symbol")
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if got := r.report(&out); got != c.called || r.others() != c.others {
				t.Errorf("%d called and %d imported, want %d and %d", got, r.others(), c.called, c.others)
			}
			if !strings.Contains(out.String(), c.says) || (c.says == "") != (out.Len() == 0) {
				t.Errorf("the report is %q, want %q", out.String(), c.says)
			}
			if got := strings.Join(slices.Sorted(maps.Keys(r.standard())), " "); got != c.standard {
				t.Errorf("Go itself: %q, want %q", got, c.standard)
			}
		})
	}
}

// TestImportedStandard: a scan that does not look for calls tells of what is imported.
func TestImportedStandard(t *testing.T) {
	r, err := decode(strings.NewReader(strings.Replace(config, "symbol", "package", 1)+sbom+goUses), "package")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.standard()["GO-2"]; !strings.Contains(got, "net/http of stdlib v1.26.8, v1.26.9 mends it") {
		t.Errorf("the line is %q", got)
	}
}

// TestSilence: a scan that did not happen is no good news.
func TestSilence(t *testing.T) {
	for name, stream := range map[string]string{
		"nothing at all":    "",
		"no modules":        config,
		"another level":     strings.Replace(config, "symbol", "module", 1) + sbom,
		"cut":               config + sbom + calls[:40],
		"a finding nowhere": config + sbom + `{"finding":{"osv":"GO-1"}}`,
	} {
		if _, err := decode(strings.NewReader(stream), "symbol"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := reports(t.TempDir(), databaseSum); err == nil {
		t.Error("a database without reports: no error")
	}
	if _, err := reports(t.TempDir(), "h1:x"); err == nil || !strings.Contains(err.Error(), "h1:x") {
		t.Errorf("a database with other content: %v", err)
	}
}

// TestGate runs the whole command on a module that requires a version of golang.org/x/text with a known vulnerability
// (GO-2021-0113: language.Parse reads out of bounds), and calls it, or only imports its package.
func TestGate(t *testing.T) {
	for _, c := range []struct{ name, body, says, err string }{
		{
			name: "called", body: "language.Parse(os.Args[1])",
			says: "CALLED: GO-2021-0113 golang.org/x/text/language of golang.org/x/text v0.3.5, v0.3.7 mends it",
			err:  "vulnerabilities that are called: 1",
		},
		{name: "imported", body: "println(language.Und.IsRoot(), os.Args)", says: "imported, and not called: GO-2021-0113"},
		{name: "unused", body: "println(os.Args)", says: ": 3 modules\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			source := "package main\n\nimport (\n\t\"os\"\n\n\t\"golang.org/x/text/language\"\n)\n\nfunc main() { " + c.body + " }\n"
			if c.name == "unused" {
				source = strings.Replace(source, "language", "width", 1)
				source = strings.Replace(source, "println(", "println(width.Narrow, ", 1)
			}
			for name, text := range map[string]string{
				"go.mod": "module example.org/app\n\ngo 1.26\n\nrequire golang.org/x/text v0.3.5\n",
				"go.sum": "golang.org/x/text v0.3.5 h1:i6eZZ+zk0SOf0xgBpEpPD18qWcJda6q1sxt3S0kzyUQ=\n" +
					"golang.org/x/text v0.3.5/go.mod h1:5Zoc/QRtKVWzQhOtBMvqHzDpF6irO9z98xDceosuGiQ=\n",
				"main.go": source,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			err := run(t.Context(), &out, []string{dir})
			if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("the error is %v, want %q", err, c.err)
			}
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("the report lacks %q:\n%s", c.says, out.String())
			}
			if c.name == "unused" && strings.Contains(out.String(), "GO-2021-0113") {
				t.Errorf("what is not even imported is reported:\n%s", out.String())
			}
		})
	}
}
