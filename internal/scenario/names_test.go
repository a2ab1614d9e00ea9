package scenario_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
)

// names replace what differs from run to run: ids of sessions, runs and messages.
type names struct {
	of     map[string]string // id → name
	counts map[string]int
}

func newNames() names { return names{of: map[string]string{}, counts: map[string]int{}} }

// id matches the ids of sessions, runs, and messages, and those of remote children.
var id = regexp.MustCompile(`(remote-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// next returns a new name of a kind: child-1, child-2, …
func (n *names) next(kind string) string {
	n.counts[kind]++
	return fmt.Sprintf("%s-%d", kind, n.counts[kind])
}

// normal replaces the ids in a line. One that nobody named is numbered as it comes.
func (n *names) normal(line string) string {
	return id.ReplaceAllStringFunc(line, func(id string) string {
		if n.of[id] == "" {
			n.of[id] = n.next("id")
		}
		return n.of[id]
	})
}

// name returns the name of a session, or its id.
func (n *names) name(id session.ID) string {
	return cmp.Or(n.of[string(id)], string(id))
}

// told is what happened to one child. Lines are made when the child has its name.
type told struct {
	child  session.ID
	parent session.ID
	kind   string // the kind of name that the child gets: "child", or its provider
	label  string
	runID  string
	late   int // 0 but for what nobody orders: the end of a run and of its child
	line   func(n *names) string
}

// tell notes something about a child. The world's lock is held.
func (w *world) tell(t *told) {
	w.follow(t.child)
	if w.lasting[t.child] {
		t.late = 0 // all of it has its order
	}
	w.told = append(w.told, t)
}

func (w *world) created(child, parent session.ID, again bool) {
	w.tell(&told{child: child, parent: parent, kind: "child", line: func(n *names) string {
		if again {
			return fmt.Sprintf("%s is opened again under %s", n.name(child), n.name(parent))
		}
		return fmt.Sprintf("%s is created under %s", n.name(child), n.name(parent))
	}})
}

func (w *world) disposed(child, parent session.ID, how string) {
	w.tell(&told{child: child, parent: parent, kind: "child", late: 2, line: func(n *names) string {
		return n.name(child) + how
	}})
}

func (w *world) started(e subagent.StartEdge, live, late bool) {
	kind := "child"
	if !e.Local {
		kind = e.Provider
	}
	if e.Epoch > 0 {
		w.lasting[e.ID] = true
	}
	w.tell(&told{child: e.ID, parent: parentOf(&e), kind: kind, label: e.Label, runID: e.RunID, line: func(n *names) string {
		who := "nobody who is live"
		if e.Parent != nil {
			who = n.name(e.Parent.ID())
		}
		line := fmt.Sprintf("subagent/start %s: %s on %s for %s", n.name(session.ID(e.RunID)), n.name(e.ID), e.Provider, who)
		if e.Label != "" {
			line += fmt.Sprintf(", label %q", e.Label)
		}
		switch {
		case e.Local && live:
			line += ", local and live"
		case e.Local:
			line += ", local and gone"
		case live:
			line += ", remote and yet live"
		default:
			line += ", remote"
		}
		if e.Epoch > 0 {
			line += fmt.Sprintf(", epoch %d", e.Epoch)
		}
		if late {
			line += ", told after Start had returned"
		}
		return line
	}})
}

// parentOf returns the id of the agent that delegated, or "".
func parentOf(e *subagent.StartEdge) session.ID {
	if e.Parent == nil {
		return ""
	}
	return e.Parent.ID()
}

func (w *world) settled(e subagent.EndEdge) {
	w.tell(&told{child: e.ID, parent: parentOf(&e.StartEdge), kind: "child", runID: e.RunID, late: 1, line: func(n *names) string {
		line := fmt.Sprintf("subagent/end %s: %s", n.name(session.ID(e.RunID)), e.StopReason)
		if e.Output != nil {
			line += " " + blocks(e.Output)
		}
		if e.Failure != nil {
			line += fmt.Sprintf(", failure %s: %s", e.Failure.Code, strings.ReplaceAll(e.Failure.Text, "\n", " / "))
		}
		return line
	}})
}

// nameChildren gives a name to each child that was heard of since the last time: level
// by level, and below one parent in the order of its calls, so that children which came
// to be at the same time have the same names in every run. The lock is held.
func (w *world) nameChildren() {
	var fresh []*told
	for _, t := range w.told {
		i := slices.IndexFunc(fresh, func(f *told) bool { return f.child == t.child })
		switch {
		case w.names.of[string(t.child)] != "":
		case i < 0:
			first := *t
			fresh = append(fresh, &first)
		default:
			fresh[i].label = cmp.Or(fresh[i].label, t.label)
		}
	}
	for len(fresh) > 0 {
		ripe, rest := split(fresh, func(t *told) bool { return w.names.of[string(t.parent)] != "" })
		if len(ripe) == 0 {
			ripe, rest = fresh, nil // a parent that the story knows nothing of
		}
		slices.SortStableFunc(ripe, func(a, b *told) int {
			return cmp.Or(compareNames(w.names.of[string(a.parent)], w.names.of[string(b.parent)]), cmp.Compare(w.callOf(a), w.callOf(b)))
		})
		for _, t := range ripe {
			w.names.of[string(t.child)] = w.names.next(t.kind)
		}
		fresh = rest
	}
	for _, t := range w.told {
		if a := w.born[t.child]; a != nil {
			w.agents[w.names.of[string(t.child)]] = a
		}
	}
}

// callOf returns where in its parent's log a child was called for, or a place behind
// all others.
func (w *world) callOf(t *told) int64 {
	if a := w.agents[w.names.of[string(t.parent)]]; a != nil && t.label != "" {
		for e := range a.Session().Events(0) {
			if p, ok := e.Payload().(*session.ToolCall); ok && description(p.Arguments) == t.label {
				return e.Seq
			}
		}
	}
	return 1 << 40
}

// description returns the member of that name of a call's arguments, or "".
func description(args string) string {
	// Arguments that are no JSON belong to no child.
	var call struct{ Description string }
	_ = json.Unmarshal([]byte(args), &call)
	return call.Description
}

// lanes returns the lines about children, child by child. The lock is held.
func (w *world) lanes() (lines []string) {
	list := w.told
	w.told = nil
	slices.SortStableFunc(list, func(a, b *told) int {
		return cmp.Or(compareNames(w.names.of[string(a.child)], w.names.of[string(b.child)]), cmp.Compare(a.late, b.late))
	})
	for _, t := range list {
		if t.runID != "" && w.names.of[t.runID] == "" {
			w.names.of[t.runID] = w.names.next("run")
		}
		lines = append(lines, t.line(&w.names))
	}
	return lines
}

// compareNames orders child-2 before child-10.
func compareNames(a, b string) int {
	kindA, numberA := cutNumber(a)
	kindB, numberB := cutNumber(b)
	return cmp.Or(strings.Compare(kindA, kindB), cmp.Compare(numberA, numberB))
}

func cutNumber(name string) (kind string, number int) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name, 0
	}
	if _, err := fmt.Sscanf(name[i:], "-%d", &number); err != nil {
		return name, 0
	}
	return name[:i], number
}

func split[T any](list []T, first func(T) bool) (yes, no []T) {
	for _, v := range list {
		if first(v) {
			yes = append(yes, v)
		} else {
			no = append(no, v)
		}
	}
	return yes, no
}

// sorted returns the names in a map in order.
func sorted[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), compareNames)
}
