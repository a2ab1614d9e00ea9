// Package hooks holds lists that are read far more often than they change: at every
// point where something is told. Floor 0.
package hooks

import (
	"slices"
	"sync"
	"sync/atomic"
)

// List is a list of hooks, or of who else is told, in the order of their registration. The zero List is empty.
// It is safe for concurrent use, and reading it takes no lock.
type List[H any] struct {
	mu   sync.Mutex // held while list is replaced
	list atomic.Pointer[[]*H]
}

// Add puts h, which is kept as it is, behind the others. remove takes it out again; what
// was read before still has it.
func (l *List[H]) Add(h *H) (remove func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := append(slices.Clip(l.All()), h)
	l.list.Store(&list)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		list := slices.DeleteFunc(slices.Clone(l.All()), func(other *H) bool { return other == h })
		l.list.Store(&list)
	}
}

// All returns the hooks of this moment. The slice must not be modified.
func (l *List[H]) All() []*H {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}
