package scenario_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the outcomes in the scripts")

// stories returns the paths of all scripts.
func stories(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	return paths
}

// Each script is played in a bubble of its own; what happens is compared with the
// outcomes that it states.
func TestStories(t *testing.T) {
	for _, path := range stories(t) {
		name := filepath.Base(path)
		t.Run(name[:len(name)-len(".txt")], func(t *testing.T) {
			t.Parallel()
			s, err := load(path)
			if err != nil {
				t.Fatal(err)
			}
			var got [][]string
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				for _, st := range s.steps {
					got = append(got, w.play(path, st))
				}
				w.end()
			})
			if *update && !t.Failed() {
				if err := os.WriteFile(path, []byte(s.rewrite(got)), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			for i, st := range s.steps {
				if diff := cmp.Diff(st.want, got[i]); diff != "" && (len(st.want) > 0 || len(got[i]) > 0) {
					t.Errorf("%s:%d: %s\n(- the script, + what happened; -update rewrites)\n%s", path, st.line, st.text, diff)
				}
			}
		})
	}
}
