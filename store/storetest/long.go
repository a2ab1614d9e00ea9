package storetest

import (
	"flag"
	"fmt"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// Long runs a random walk (rapid.T.Repeat) for each of the seeds from 1 on, until it
// has done the given number of actions, which the walk counts in *done. It is for
// soak tests: rapid's own small budget is rapid.Check's.
//
// It sets the flags of rapid for its duration, so no other test may run meanwhile.
func Long(t *testing.T, seeds int, actions int64, walk func(t *testing.T, done *int64) func(*rapid.T)) {
	t.Helper()
	for _, f := range []struct{ name, value string }{
		{"rapid.checks", "1"}, {"rapid.steps", strconv.FormatInt(actions, 10)},
	} {
		set(t, f.name, f.value)
	}
	for seed := 1; seed <= seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			var done int64
			check := walk(t, &done)
			for part := 0; done < actions && !t.Failed(); part++ {
				set(t, "rapid.seed", strconv.Itoa(seed*1_000_000+part))
				rapid.Check(t, check)
			}
			t.Logf("%d actions", done)
		})
	}
}

func set(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	if f == nil {
		t.Fatalf("rapid has no flag %s", name)
	}
	old := f.Value.String()
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := flag.Set(name, old); err != nil {
			t.Error(err)
		}
	})
}
