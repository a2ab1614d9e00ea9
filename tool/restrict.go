package tool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Filter names the inherited tools that a scope admits. Presence counts: a nil
// list says nothing, an empty Allow admits no inherited tool at all. Allow is
// applied before Deny.
type Filter struct {
	Allow *[]string
	Deny  *[]string
}

// UnknownToolsError says that a filter names tools that its scope does not inherit.
type UnknownToolsError struct {
	// Names are the unknown names, Known the names that would be right. Both are sorted.
	Names []string
	Known []string
}

func (e *UnknownToolsError) Error() string {
	known := strings.Join(e.Known, ", ")
	if known == "" {
		known = "none"
	}
	return fmt.Sprintf("unknown tools: %s (known: %s)", strings.Join(e.Names, ", "), known)
}

// filter is a Filter with its lists copied.
type filter struct {
	allow, deny       []string
	hasAllow, hasDeny bool
}

func (f *filter) admits(name string) bool {
	if f.hasAllow && !slices.Contains(f.allow, name) {
		return false
	}
	return !f.hasDeny || !slices.Contains(f.deny, name)
}

func (s *Scope) admitsLocked(name string) bool {
	for i := range s.filters {
		if !s.filters[i].admits(name) {
			return false
		}
	}
	return true
}

// Restrict narrows what this scope inherits; its own tools are never affected
// (core T6). Several restrictions intersect, and they are live: a tool registered
// later above passes a deny list that does not name it and no allow list (core T7).
//
// It is an error on the global scope, for a filter with neither list, and for a
// name that the scope does not inherit: that one is an *UnknownToolsError
// (core T5). Names are looked up in what the scope inherits before its own
// restrictions, so the order of several restrictions does not matter. The filter's
// lists are copied.
func (s *Scope) Restrict(f Filter) error {
	if s.parent == nil {
		return errors.New("restrict tools: the global scope inherits nothing to restrict")
	}
	if f.Allow == nil && f.Deny == nil {
		return errors.New("restrict tools: the filter has neither an allow nor a deny list")
	}
	var own filter
	if f.Allow != nil {
		own.allow, own.hasAllow = slices.Clone(*f.Allow), true
	}
	if f.Deny != nil {
		own.deny, own.hasDeny = slices.Clone(*f.Deny), true
	}
	inherited := s.parent.Toolset()
	var unknown []string
	for _, name := range slices.Concat(own.allow, own.deny) {
		if inherited.lookup(name) == nil {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("restrict tools: %w", &UnknownToolsError{Names: slices.Compact(unknown), Known: inherited.names()})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("restrict tools: %w", ErrClosed)
	}
	s.filters = append(slices.Clip(s.filters), own)
	s.tools = nil
	return nil
}
