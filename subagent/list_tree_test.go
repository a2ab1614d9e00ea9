package subagent_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

func (l *lab) wantTree(t *testing.T, what string, root session.ID, lines ...string) {
	t.Helper()
	rows, err := l.ListDescendants(t.Context(), root)
	wantRows(t, what, rows, err, lines...)
}

// TREE-01, TREE-02, TREE-03, TREE-04, TREE-05, TREE-08, TREE-10: the tree in
// pre-order, with live and stored sessions anywhere in it. What has no row, being
// ordinary or in the making, and what is a diagnostic do not hide what is below.
func TestListDescendants(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		state := "inactive"
		if l.store == nil {
			state = "running"
		}
		one := func(id, parent string) { l.cold(childOf(id, parent), worked(session.ModeOneShot, id)...) }
		one("c", "root")
		l.live(childOf("a", "root"), descriptorOf(session.ModeContinuable, "a"))
		one("b", "root")
		one("a2", "a")
		l.live(childOf("a1", "a"), descriptorOf(session.ModeOneShot, "a1"))
		l.live(childOf("making", "root"))
		one("m1", "making")
		l.cold(ordinary("plain", "root"), worked(session.ModeOneShot, "no subagent")...)
		one("p1", "plain")
		one("p2", "p1")
		l.cold(ordinary("plainer", "p2"), &session.Title{Title: "no subagent"})
		one("q", "plainer")
		one("elsewhere", "other")
		lines := []string{
			`child c one-shot ` + state + ` "c" 1<root`,
			`child a continuable running "a" + 1<root`,
			`child a2 one-shot ` + state + ` "a2" 2<a`,
			`child a1 one-shot running "a1" 2<a`,
			`child b one-shot ` + state + ` "b" 1<root`,
			`child m1 one-shot ` + state + ` "m1" 2<making`,
			`child p1 one-shot ` + state + ` "p1" + 2<plain`,
			`child p2 one-shot ` + state + ` "p2" 3<p1`,
			`child q one-shot ` + state + ` "q" 5<plainer`,
		}
		if l.store != nil {
			l.raw(session.Header{ID: "bad", ParentSession: "root"}, nil, turnStart)
			one("bad1", "bad")
			l.raw(session.Header{ID: "worse", ParentSession: "bad1"}, nil, turnStart)
			lines = append(lines, `diagnostic bad corrupt 1<root`, `child bad1 one-shot inactive "bad1" + 2<bad`, `diagnostic worse corrupt 3<bad1`)
		}
		l.wantTree(t, "the whole", "root", lines...)
		l.wantTree(t, "from within", "plain",
			`child p1 one-shot `+state+` "p1" + 1<plain`, `child p2 one-shot `+state+` "p2" 2<p1`, `child q one-shot `+state+` "q" 4<plainer`)
		l.wantTree(t, "TREE-08 a leaf", "q")
		l.wantTree(t, "TREE-08 nobody", "nobody")
	})
}

// TREE-04, TREE-05, LIST-24: a row that cannot be read keeps its place.
func TestListDescendantsOfDamagedRow(t *testing.T) {
	for _, kind := range []string{"memory", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			l := newLab(t, t.Context(), openStore(t, kind))
			for i, parent := range []string{"root", "a", "b"} {
				id := string(rune('a' + i))
				l.cold(childOf(id, parent), worked(session.ModeOneShot, id)...)
			}
			l.store.Store = damaged{l.store.Store, map[session.ID]error{"b": &session.CorruptError{ID: "b"}}}
			l.wantTree(t, "the whole", "root",
				`child a one-shot inactive "a" + 1<root`, `diagnostic b unavailable 2<a`, `child c one-shot inactive "c" 3<b`)
		})
	}
}

// TREE-06: headers that go round end the way, and nobody is listed twice, the root
// not at all. HasChildren goes by headers alone, so here it is always true.
func TestListDescendantsCycles(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		state := "inactive"
		if l.store == nil {
			state = "running"
		}
		for id, parent := range map[string]string{"r": "c", "a": "r", "b": "a", "c": "b", "self": "self", "x": "y", "y": "x"} {
			l.cold(childOf(id, parent), worked(session.ModeOneShot, id)...)
		}
		row := func(id, parent string, depth int) string {
			return fmt.Sprintf(`child %s one-shot %s %q + %d<%s`, id, state, id, depth, parent)
		}
		l.wantTree(t, "from r", "r", row("a", "r", 1), row("b", "a", 2), row("c", "b", 3))
		l.wantTree(t, "from b", "b", row("c", "b", 1), row("r", "c", 2), row("a", "r", 3))
		l.wantTree(t, "its own parent", "self")
		l.wantTree(t, "two of each other", "x", row("y", "x", 1))
		l.wantChildren(t, "one edge of it", "c", fmt.Sprintf(`child r one-shot %s "r" +`, state))
	})
}

// TREE-07: how deep a tree is has no bound.
func TestListDescendantsDeep(t *testing.T) {
	for kind, depth := range map[string]int{"live only": 10_000, "memory": 10_000, "sqlite": 1000} {
		t.Run(kind, func(t *testing.T) {
			l := newLab(t, t.Context(), openStore(t, kind))
			parent := "root"
			for i := range depth {
				id := fmt.Sprintf("n%05d", i)
				if l.cold(childOf(id, parent), descriptorOf(session.ModeOneShot)) {
					delete(l.ends, session.ID(id)) // ten thousand cleanups are not what this is about
				}
				parent = id
			}
			rows, err := l.ListDescendants(t.Context(), "root")
			if err != nil || len(rows) != depth {
				t.Fatalf("%d rows of %d, %v", len(rows), depth, err)
			}
			for i, r := range rows {
				if r.Depth != i+1 || r.ID != session.ID(fmt.Sprintf("n%05d", i)) || r.HasChildren != (i < depth-1) {
					t.Fatalf("row %d: %s at depth %d, has children: %v", i, r.ID, r.Depth, r.HasChildren)
				}
			}
		})
	}
}

// LIST-02: a live session takes the place of the stored one of its id, header and
// all: what the stored header says counts nowhere.
func TestListLiveReplacesStored(t *testing.T) {
	for _, kind := range []string{"memory", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			l := newLab(t, t.Context(), openStore(t, kind))
			l.raw(session.Header{ID: "a", ParentSession: "p"}, nil, oneShot)
			l.raw(session.Header{ID: "b", ParentSession: "p"}, nil, oneShot)
			// Another process of the same store has sessions of the same ids live, with
			// other parents.
			both := newLab(t, t.Context(), pretending{l.store})
			for _, id := range []string{"b", "x"} {
				n := childOf(id, "q")
				n.Deferred = true // nothing of them is to be stored
				both.live(n, descriptorOf(session.ModeContinuable, "live"))
			}
			l.raw(session.Header{ID: "x", ParentSession: "a"}, nil, oneShot)
			l.wantChildren(t, "the store by itself", "p", `child a one-shot inactive "raw" +`, `child b one-shot inactive "raw"`)
			rows, err := both.ListChildren(t.Context(), "p")
			wantRows(t, "of the stored parent", rows, err, `child a one-shot inactive "raw"`)
			rows, err = both.ListChildren(t.Context(), "q")
			wantRows(t, "of the live parent", rows, err, `child b continuable running "live"`, `child x continuable running "live"`)
			rows, err = both.ListDescendants(t.Context(), "p")
			wantRows(t, "tree of the stored parent", rows, err, `child a one-shot inactive "raw" 1<p`)
			rows, err = both.ListDescendants(t.Context(), "q")
			wantRows(t, "tree of the live parent", rows, err, `child b continuable running "live" 1<q`, `child x continuable running "live" 1<q`)

			l.raw(session.Header{ID: "b1", ParentSession: "b"}, nil, oneShot)
			rows, err = both.ListChildren(t.Context(), "q")
			wantRows(t, "a stored child of one that only lives elsewhere", rows, err, `child b continuable running "live" +`, `child x continuable running "live"`)
		})
	}
}

// pretending is a store that says it knows no id, so that one can be used twice.
type pretending struct{ session.Store }

func (pretending) Exists(context.Context, session.ID) (bool, error) { return false, nil }
