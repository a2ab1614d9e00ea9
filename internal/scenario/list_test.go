package scenario_test

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// session returns the id of an agent, be it of an ended process, or else of a session
// of that name.
func (w *world) session(name string) session.ID {
	switch {
	case w.agents[name] != nil:
		return w.agents[name].ID()
	case w.gone[name] != nil:
		return w.gone[name].ID()
	}
	return session.ID(name)
}

func parseList(a *args) action {
	ask := listing(a)
	return func(w *world) {
		w.system()
		w.call("the listing", func() []string { return ask(w) })
	}
}

// listing parses a listing; the function that it returns makes it.
func listing(a *args) func(*world) []string {
	list := subagent.Lister.ListChildren
	if a.literal("children", "descendants") == "descendants" {
		list = subagent.Lister.ListDescendants
	}
	a.literal("of")
	of := a.word("a session")
	without := map[string]bool{}
	a.options(func(word string) bool {
		if word != "without" {
			return false
		}
		without[a.literal("projections", "sessions")] = true
		return true
	})
	return func(w *world) []string {
		l := w.sys.Service.Lister()
		if without["projections"] {
			l.Projections = nil
		}
		if without["sessions"] {
			l.Sessions = nil
		}
		id := w.session(of)
		w.faults.set(func(f *faults) { f.reads = 0 })
		rows, err := list(l, context.WithoutCancel(w.t.Context()), id)
		if err != nil {
			return []string{"no listing, " + failure(err)}
		}
		var lines []string
		for i := range rows {
			lines = append(lines, listed(&rows[i]))
		}
		if lines == nil {
			lines = []string{"nobody"}
		}
		reads := 0
		w.faults.set(func(f *faults) { reads = f.reads })
		return append(lines, fmt.Sprintf("%d logs were read", reads))
	}
}

// listed writes a row of a listing.
func listed(r *subagent.Row) string {
	s := string(r.ID)
	if r.Depth > 0 {
		s = fmt.Sprintf("%d %s, of %s", r.Depth, r.ID, r.Parent)
	}
	if r.Kind == subagent.RowDiagnostic {
		return s + ": " + string(r.Reason)
	}
	s += fmt.Sprintf(": %s, %s", r.Mode, r.Activity)
	if r.Label != nil {
		s += fmt.Sprintf(", label %q", *r.Label)
	}
	if r.HasChildren {
		s += ", has children"
	}
	return s
}

// parseReaders tells how many logs are being read.
func parseReaders(*args) action {
	return func(w *world) { w.faults.set(func(f *faults) { w.say("%d logs are being read", f.readers) }) }
}
