package sqlite_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
)

// inMemory makes the other backend.
func inMemory() storetest.Factory {
	return storetest.Factory{
		Open:   func(testing.TB) session.Store { return memory.New() },
		Second: func(_ testing.TB, s session.Store) session.Store { return s.(*memory.Store).Backend().Open() },
		Kill:   func(_ testing.TB, s session.Store) { s.(*memory.Store).Kill() },
		Age:    func(_ testing.TB, s session.Store, d time.Duration) { s.(*memory.Store).Age(d) },
	}
}

// D22: the two backends do the same, operation by operation, and both what a naive
// model does.
func TestPair(t *testing.T) {
	var done int64
	if !soak {
		rapid.Check(t, storetest.Walk(t, &done, inMemory(), factory()))
		return
	}
	storetest.Long(t, 3, 10_000, func(t *testing.T, done *int64) func(*rapid.T) {
		return storetest.Walk(t, done, inMemory(), factory())
	})
}
