package products

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestLookUp(t *testing.T) {
	sep := string(filepath.ListSeparator)
	for _, c := range []struct{ name, list, dir, skip, err string }{
		{name: "not asked for", skip: `"harness": run make test PRODUCTS=1`},
		{name: "installed", list: "codex=/c" + sep + "harness=/h", dir: "/h"},
		{name: "not for this system", list: "harness" + sep + "codex=/c", skip: "cannot be had on this system"},
		{name: "missing", list: "codex=/c", err: `"codex=/c" has no product set "harness"`},
		{name: "missing beside a longer name", list: "harness2=/c", err: "has no product set"},
		{name: "not absolute", list: "harness=h", err: `is not absolute: "h"`},
		{name: "empty", list: "harness=", err: `is not absolute: ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, skip, err := lookUp(c.list, "harness")
			if dir != c.dir {
				t.Errorf("dir %q, want %q", dir, c.dir)
			}
			if !strings.Contains(skip, c.skip) || (skip == "") != (c.skip == "") {
				t.Errorf("skip %q, want %q", skip, c.skip)
			}
			if got := errText(err); !strings.Contains(got, c.err) || (got == "") != (c.err == "") {
				t.Errorf("error %q, want %q", got, c.err)
			}
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
