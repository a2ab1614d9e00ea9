package subagent

import (
	"fmt"
	"slices"

	"github.com/offshoot-dev/offshoot/session"
)

// Rests says in one line each what the manager of continuable children still holds.
func (s *Service) Rests() []string {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	var left []string
	for id := range m.entries {
		left = append(left, fmt.Sprintf("an entry for %s", id))
	}
	if n := m.graph.Len(); n != len(m.resident) || n > 0 {
		left = append(left, fmt.Sprintf("%d Activations in the graph, %d resident", n, len(m.resident)))
	}
	for id, n := range m.children {
		left = append(left, fmt.Sprintf("%d children counted of %s", n, id))
	}
	for id, n := range m.trees {
		left = append(left, fmt.Sprintf("%d children counted in the tree of %s", n, id))
	}
	slices.Sort(left)
	return left
}

// Parents counts what the manager remembers of agents that have children.
func (s *Service) Parents() int {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return len(s.m.parents)
}

// Entry reports whether there is an Activation of a session, or one in the making.
func (s *Service) Entry(id session.ID) bool { return s.m.managed(id) }

// OwnedBy returns the ids of what the Activation of a session owns.
func (s *Service) OwnedBy(id session.ID) (owned []session.ID) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	act := m.entries[id]
	if act == nil || act.handle == nil {
		return nil
	}
	for _, k := range m.graph.Owned(act.key) {
		owned = append(owned, m.resident[k].id)
	}
	slices.Sort(owned)
	return owned
}
