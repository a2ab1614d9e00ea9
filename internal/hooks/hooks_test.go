package hooks_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/hooks"
)

func values(list []*int) []int {
	var out []int
	for _, p := range list {
		out = append(out, *p)
	}
	return out
}

// What was read stays as it was, whatever is added and removed meanwhile.
func TestList(t *testing.T) {
	var l hooks.List[int]
	if got := l.All(); len(got) != 0 {
		t.Fatalf("the zero list has %d hooks", len(got))
	}
	one, two, three := 1, 2, 3
	l.Add(&one)
	removeTwo := l.Add(&two)
	before := l.All()
	l.Add(&three)
	removeTwo()
	removeTwo()
	if got := values(before); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("what was read before is %v now", got)
	}
	if got := values(l.All()); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("the list is %v", got)
	}
}

// Hooks that come and go at the same time disturb neither each other nor readers.
func TestListConcurrently(t *testing.T) {
	var l hooks.List[int]
	stays := 0
	l.Add(&stays)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for range 200 {
				remove := l.Add(&i)
				if all := l.All(); all[0] != &stays || !slices.Contains(all, &i) {
					t.Errorf("a reader sees %v", values(all))
				}
				remove()
			}
		})
	}
	work.Wait()
	if got := l.All(); len(got) != 1 {
		t.Errorf("%d hooks are left", len(got))
	}
}
