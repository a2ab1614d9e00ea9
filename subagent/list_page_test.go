package subagent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
)

// inPages collects a listing a page at a time; between is called between two pages.
func inPages(list func(subagent.ListPage) (subagent.RowPage, error), limit int, between func()) (all []subagent.Row, sizes []int, err error) {
	p := subagent.ListPage{Limit: limit}
	for {
		got, err := list(p)
		if err != nil {
			return nil, nil, err
		}
		all, sizes = append(all, got.Rows...), append(sizes, len(got.Rows))
		if p.After = got.Next; p.After == "" {
			return all, sizes, nil
		}
		between()
	}
}

// LIST-43: pages of every size, put together, are the whole, for both operations and
// every kind of store.
func TestListPages(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		for i := range 7 {
			id := fmt.Sprint("c", i)
			if i%3 == 0 {
				l.live(childOf(id, "p"), worked(session.ModeOneShot, id)...)
			} else {
				l.cold(childOf(id, "p"), worked(session.ModeContinuable, id)...)
			}
			l.cold(childOf(id+"x", id), worked(session.ModeOneShot)...)
		}
		l.live(childOf("making", "p"))
		for name, op := range map[string]struct {
			whole func() ([]subagent.Row, error)
			page  func(subagent.ListPage) (subagent.RowPage, error)
		}{
			"children": {
				func() ([]subagent.Row, error) { return l.ListChildren(t.Context(), "p") },
				func(p subagent.ListPage) (subagent.RowPage, error) { return l.PageChildren(t.Context(), "p", p) },
			},
			"descendants": {
				func() ([]subagent.Row, error) { return l.ListDescendants(t.Context(), "p") },
				func(p subagent.ListPage) (subagent.RowPage, error) { return l.PageDescendants(t.Context(), "p", p) },
			},
		} {
			rows, err := op.whole()
			if err != nil || len(rows) < 7 {
				t.Fatalf("%s: %d rows, %v", name, len(rows), err)
			}
			for limit := range len(rows) + 3 {
				got, sizes, err := inPages(op.page, limit, func() {})
				if err != nil || !slices.Equal(rowLines(got), rowLines(rows)) {
					t.Errorf("%s by %d: %q, %v", name, limit, rowLines(got), err)
				}
				for _, n := range sizes {
					if limit > 0 && n > limit {
						t.Errorf("%s by %d: a page of %d", name, limit, n)
					}
				}
			}
		}
	})
}

// LIST-43, LIST-16: a page costs what is on it, and nothing of what was passed.
func TestListPageReadsItself(t *testing.T) {
	l := newLab(t, t.Context(), memory.New())
	for i := range 9 {
		l.raw(session.Header{ID: session.ID(fmt.Sprint("c", i)), ParentSession: "p"}, nil, oneShot)
	}
	for name, list := range map[string]func(subagent.ListPage) (subagent.RowPage, error){
		"children":    func(p subagent.ListPage) (subagent.RowPage, error) { return l.PageChildren(t.Context(), "p", p) },
		"descendants": func(p subagent.ListPage) (subagent.RowPage, error) { return l.PageDescendants(t.Context(), "p", p) },
	} {
		after := ""
		for _, want := range [][]session.ID{{"c0", "c1"}, {"c2", "c3"}} {
			l.store.reset()
			got, err := list(subagent.ListPage{Limit: 2, After: after})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(l.store.inspects)
			if after = got.Next; !slices.Equal(l.store.inspects, want) {
				t.Errorf("%s: inspected %v, want %v", name, l.store.inspects, want)
			}
		}
	}
	// A position that is gone: among children it stands for its place, in a tree for
	// nothing.
	page, err := l.PageChildren(t.Context(), "p", subagent.ListPage{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.store.Delete(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	rest, err := l.PageChildren(t.Context(), "p", subagent.ListPage{Limit: 1, After: page.Next})
	wantRows(t, "behind one that is gone", rest.Rows, err, `child c2 one-shot inactive "raw"`)
	_, err = l.PageDescendants(t.Context(), "p", subagent.ListPage{After: page.Next})
	wantCode(t, err, subagent.CodeInvalidRequest)
}

// world drives a lab at random: it creates children, lets them go, takes them up
// again, and removes them.
type world struct {
	*lab
	draw    func(n int) int // a number below n
	n       int
	removed map[session.ID]bool
}

// names are the children that there are, and where.
func (w *world) names() (live, cold []session.ID) {
	for id := range w.ends {
		live = append(live, id)
	}
	slices.Sort(live)
	l, err := w.store.Store.List(w.ctx, session.Filter{}, session.Page{})
	if err != nil {
		w.Fatal(err)
	}
	for _, rec := range l.Records {
		if w.ends[rec.Header.ID] == nil {
			cold = append(cold, rec.Header.ID)
		}
	}
	return live, cold
}

func (w *world) step() {
	live, cold := w.names()
	switch w.draw(6) {
	case 0, 1:
		w.n++
		parent := "p"
		if all := append(live, cold...); len(all) > 0 && w.draw(2) == 0 {
			parent = string(all[w.draw(len(all))])
		}
		w.clock -= int64(w.draw(3)) // several in one moment, and a clock that is set back
		w.live(childOf(fmt.Sprintf("c%d-%d", w.draw(3), w.n), parent), worked(session.ModeOneShot, "x")...)
	case 2:
		if len(live) > 0 {
			w.end(live[w.draw(len(live))])
		}
	case 3:
		if len(live) > 0 {
			if s, ok := w.reg.Get(live[w.draw(len(live))]); ok {
				if err := s.Flush(w.ctx); err != nil {
					w.Fatal(err)
				}
			}
		}
	case 4:
		if len(cold) > 0 {
			s, err := w.reg.PrepareStored(w.ctx, cold[w.draw(len(cold))])
			if err != nil {
				w.Fatal(err)
			}
			end, err := w.reg.Enter(s)
			if err != nil {
				w.Fatal(err)
			}
			w.ends[s.ID()] = end
		}
	case 5:
		if len(cold) > 0 && len(live) == 0 {
			id := cold[w.draw(len(cold))]
			if err := w.store.Delete(w.ctx, id); err != nil {
				w.Fatal(err)
			}
			w.removed[id] = true
		}
	}
}

// direct are the children of p that there are.
func (w *world) direct() []session.ID {
	var ids []session.ID
	for id := range w.ends {
		if s, ok := w.reg.Get(id); ok && s.Header().ParentSession == "p" {
			ids = append(ids, id)
		}
	}
	l, err := w.store.Store.List(w.ctx, session.Filter{Parent: "p"}, session.Page{})
	if err != nil {
		w.Fatal(err)
	}
	for _, rec := range l.Records {
		if w.ends[rec.Header.ID] == nil {
			ids = append(ids, rec.Header.ID)
		}
	}
	return ids
}

// judge checks what a listing may say, given what was there when it began: nobody
// twice, in order, and everybody who was there and is not removed.
func (w *world) judge(rows []subagent.Row, before []session.ID, ordered bool) {
	w.Helper()
	seen := map[session.ID]int{}
	for _, r := range rows {
		if seen[r.ID]++; seen[r.ID] > 1 {
			w.Fatalf("D37: %s is listed %d times in %q", r.ID, seen[r.ID], rowLines(rows))
		}
	}
	for _, id := range before {
		if seen[id] == 0 && !w.removed[id] {
			w.Fatalf("%s was there all the time and is not in %q", id, rowLines(rows))
		}
	}
	if !ordered {
		return
	}
	at := func(r subagent.Row) int64 {
		if s, ok := w.reg.Get(r.ID); ok {
			return s.Header().CreatedAt
		}
		rec, _, err := w.store.Store.Inspect(w.ctx, r.ID)
		if err != nil {
			return -1 // removed since
		}
		return rec.Header.CreatedAt
	}
	for i := 1; i < len(rows); i++ {
		a, b := at(rows[i-1]), at(rows[i])
		if a >= 0 && b >= 0 && (a > b || a == b && rows[i-1].ID > rows[i].ID) {
			w.Fatalf("LIST-11: %s stands before %s", rows[i-1].ID, rows[i].ID)
		}
	}
}

// D37, LIST-02, LIST-43, core G8: whatever is created, released, resumed and removed
// between any two reads of a listing, or between two pages, nobody is listed twice and
// nobody who stays is missed.
func TestListAgainstChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// Drawn beforehand: what happens inside of a read must not be rapid's to stop.
		script := rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(rt, "script")
		draw := func(n int) (number int) {
			if len(script) > 0 {
				number, script = int(script[0])%n, script[1:]
			}
			return number
		}
		w := &world{lab: newLab(rt, t.Context(), memory.New()), removed: map[session.ID]bool{}, draw: draw}
		w.store.Store = onePage{w.store.Store}
		for range draw(12) {
			w.step()
		}
		changing, left := false, 0
		change := func(string, session.ID) error {
			if !changing {
				return nil
			}
			changing = false // what the change itself reads is not part of it
			n := draw(min(left, 3) + 1)
			for range n {
				w.step()
			}
			changing, left = true, left-n
			return nil
		}
		w.store.before, w.store.after = change, change
		run := func(list func() ([]subagent.Row, error), ordered bool) {
			before := w.direct()
			changing, left = true, 12 // or a listing would go on for ever
			rows, err := list()
			changing = false
			if err != nil {
				rt.Fatal(err)
			}
			w.judge(rows, before, ordered)
		}
		run(func() ([]subagent.Row, error) { return w.ListChildren(t.Context(), "p") }, true)
		run(func() ([]subagent.Row, error) { return w.ListDescendants(t.Context(), "p") }, false)
		limit := 1 + draw(4)
		run(func() ([]subagent.Row, error) {
			all, _, err := inPages(func(p subagent.ListPage) (subagent.RowPage, error) { return w.PageChildren(t.Context(), "p", p) }, limit, func() {})
			return all, err
		}, true)
		run(func() ([]subagent.Row, error) {
			all, _, err := inPages(func(p subagent.ListPage) (subagent.RowPage, error) { return w.PageDescendants(t.Context(), "p", p) }, limit, func() {})
			if len(w.removed) > 0 && err != nil && strings.Contains(err.Error(), "is not below p any more") {
				rt.Skip("the position of a page was removed")
			}
			return all, err
		}, false)
		for id := range w.ends {
			w.end(id)
		}
	})
}

// D37, LIST-01: the same without any order, for the race detector: children come and
// go in several goroutines while others list.
func TestListConcurrently(t *testing.T) {
	store := memory.New()
	l := newLab(t, t.Context(), store)
	l.Sessions = sessionsOf(t, l, store)
	for i := range 20 {
		l.raw(session.Header{ID: session.ID(fmt.Sprintf("fixed%02d", i)), ParentSession: "p"}, nil, oneShot)
	}
	var work, watch sync.WaitGroup
	stop := make(chan struct{})
	for part := range 3 {
		work.Go(func() {
			for i := range 60 {
				if err := oneChild(t.Context(), l.Sessions, fmt.Sprintf("new%d-%02d", part, i), i%2 == 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		watch.Go(func() {
			for done := false; !done; {
				select {
				case <-stop:
					done = true
				default:
				}
				for name, list := range map[string]func(context.Context, session.ID) ([]subagent.Row, error){"children": l.ListChildren, "descendants": l.ListDescendants} {
					rows, err := list(t.Context(), "p")
					if err != nil {
						t.Error(err)
						return
					}
					seen, fixed := map[session.ID]bool{}, 0
					for _, r := range rows {
						if seen[r.ID] {
							t.Errorf("%s: %s is listed twice", name, r.ID)
						}
						if seen[r.ID] = true; strings.HasPrefix(string(r.ID), "fixed") {
							fixed++
						}
						if r.Kind != subagent.RowChild {
							t.Errorf("%s: %q", name, rowLines([]subagent.Row{r}))
						}
					}
					if done && len(rows) != 200 || fixed != 20 {
						t.Errorf("%s: %d rows, %d of the fixed", name, len(rows), fixed)
					}
				}
			}
		})
	}
	work.Wait()
	close(stop)
	watch.Wait()
}

// sessionsOf is a registry with a clock that several may read at once.
func sessionsOf(t *testing.T, l *lab, store session.Store) *session.Registry {
	t.Helper()
	reg, err := session.NewRegistry(t.Context(), session.Config{Store: store, NewCells: l.units.NewCells})
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// oneChild is a child from its creation to its end; a late one has its row only then.
func oneChild(ctx context.Context, reg *session.Registry, id string, late bool) error {
	s, err := reg.Prepare(ctx, childOf(id, "p"))
	if err != nil {
		return err
	}
	end, err := reg.Enter(s)
	if err != nil {
		return err
	}
	for _, p := range worked(session.ModeOneShot, id) {
		if _, err := s.Append(session.Draft{Payload: p}); err != nil {
			return err
		}
		if !late && rand.IntN(2) == 0 {
			if err := s.Flush(ctx); err != nil {
				return err
			}
		}
	}
	return end(ctx)
}
