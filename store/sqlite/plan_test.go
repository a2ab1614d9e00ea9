package sqlite_test

import (
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// No statement but a listing of everything reads sessions or events that it is not
// about, and none sorts what an index has in order: with 100,000 sessions each costs
// what it costs with ten (design § 7).
func TestEveryStatementUsesAnIndex(t *testing.T) {
	s := mustOpen(t, newPath(t), sqlite.Options{})
	plans, err := s.Plans(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, plan := range plans {
		for _, table := range []string{"sessions", "batches", "checkpoints"} {
			for step := range strings.SplitSeq(plan, "; ") {
				if strings.HasPrefix(step, "SCAN "+table) && !strings.HasPrefix(step, "SCAN sessions USING INDEX sessions_created") {
					t.Errorf("%s: %s", name, plan)
				}
			}
		}
		// Few sessions have one beginning, or share one prefix; the children of several
		// parents are in order for each of them.
		if strings.Contains(plan, "TEMP B-TREE") && !strings.HasPrefix(name, "find") && !strings.HasPrefix(name, "several") && name != "heir" {
			t.Errorf("%s sorts: %s", name, plan)
		}
	}
}
