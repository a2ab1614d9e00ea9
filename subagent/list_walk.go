package subagent

import (
	"cmp"
	"context"
	"slices"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

const (
	// storedPage is how many records a listing reads at once, each page on a snapshot
	// of its own.
	storedPage = 5000
	// parentsAtOnce is for the children of how many sessions a store is asked at once.
	parentsAtOnce = 500
)

// walk is one listing. Nothing but its caller uses it.
type walk struct {
	ctx   context.Context
	units *projection.Registry
	store session.Store // nil: there is none

	// The live sessions as they were at the beginning, by id, and by the parent that
	// their headers name.
	live map[session.ID]*session.Session
	kids map[session.ID][]*session.Session
}

// place is where a session stands among its siblings.
type place struct {
	at int64 // ms since the epoch
	id session.ID
}

func (p place) compare(o place) int {
	if c := cmp.Compare(p.at, o.at); c != 0 {
		return c
	}
	return cmp.Compare(p.id, o.id)
}

// candidate is one session of the merged material: either live or a record.
type candidate struct {
	place
	parent      session.ID
	seed        int64 // how many events it inherited
	depth       int
	subagent    bool
	hasChildren bool

	live *session.Session
	rec  *session.Record
}

// look takes the live sessions down.
func (w *walk) look(sessions *session.Registry) {
	all := sessions.Resident()
	w.kids = make(map[session.ID][]*session.Session)
	if w.store != nil {
		w.live = make(map[session.ID]*session.Session, len(all))
	}
	for _, s := range all {
		if w.store != nil {
			w.live[s.ID()] = s
		}
		// The root of a tree is nobody's child, whatever its header names.
		if h := s.Header(); h.ParentSession != "" && s.Root() != h.ID {
			w.kids[h.ParentSession] = append(w.kids[h.ParentSession], s)
		}
	}
}

func liveCandidate(s *session.Session) candidate {
	h := s.Header()
	return candidate{
		place: place{h.CreatedAt, h.ID}, parent: h.ParentSession, seed: h.SeedLength, subagent: h.Origin == session.OriginSubagent, live: s,
	}
}

func storedCandidate(rec *session.Record) candidate {
	h := &rec.Header
	return candidate{
		place: place{h.CreatedAt, h.ID}, parent: h.ParentSession, seed: h.SeedLength, subagent: h.Origin == session.OriginSubagent, rec: rec,
	}
}

// children returns the children of a session behind a place, in order; at most limit
// of them unless that is 0, and whether there are more.
func (w *walk) children(parent session.ID, after place, limit int) (found []*candidate, more bool, err error) {
	all := make([]candidate, 0, len(w.kids[parent]))
	for _, s := range w.kids[parent] {
		if c := liveCandidate(s); c.subagent && c.id != parent && c.compare(after) > 0 {
			all = append(all, c)
		}
	}
	listed, stored, err := w.storedChildren(parent, after, limit)
	if err != nil {
		return nil, false, err
	}
	all = append(all, stored...)
	found = make([]*candidate, len(all))
	for i := range all {
		found[i] = &all[i]
	}
	slices.SortFunc(found, func(a, b *candidate) int { return a.compare(b.place) })
	if limit > 0 && len(found) > limit {
		found, more = found[:limit], true
	}
	return found, more, w.tellChildren(found, listed)
}

// storedChildren returns those children that are not live, more than limit if there
// are and that is not 0, and, of the rows of live ones, a stored child or "".
func (w *walk) storedChildren(parent session.ID, after place, limit int) (listed map[session.ID]session.ID, found []candidate, err error) {
	if w.store == nil {
		return nil, nil, nil
	}
	listed = map[session.ID]session.ID{}
	p := session.Page{Limit: storedPage, Children: true}
	if limit > 0 {
		p.Limit = limit + 1
	}
	if after != (place{}) {
		p.After = session.Position(after.at, after.id)
	}
	err = w.records(session.Filter{Parent: parent, Origin: session.OriginSubagent}, p, func(recs []session.Record) bool {
		found = slices.Grow(found, len(recs))
		for i := range recs {
			switch id := recs[i].Header.ID; {
			case w.live[id] != nil:
				listed[id] = recs[i].Child
			case id != parent:
				found = append(found, storedCandidate(&recs[i]))
			}
		}
		return limit == 0 || len(found) <= limit
	})
	if err != nil {
		return nil, nil, w.fail("children", []session.ID{parent}, err)
	}
	return listed, found, nil
}

// tellChildren decides who has children. listed names a stored child of each live
// session whose row was seen, or "".
func (w *walk) tellChildren(found []*candidate, listed map[session.ID]session.ID) error {
	var ask []session.ID
	for _, c := range found {
		for _, s := range w.kids[c.id] {
			if h := s.Header(); h.Origin == session.OriginSubagent && h.ID != c.id {
				c.hasChildren = true
				break
			}
		}
		child, told := listed[c.id]
		if c.rec != nil {
			child, told = c.rec.Child, true
		}
		switch {
		case c.hasChildren || w.store == nil || told && child == "":
		case told && w.live[child] == nil:
			c.hasChildren = true
		default:
			// A live session that the store does not have below the parent; or the child
			// is live, and its header names somebody else now.
			ask = append(ask, c.id)
		}
	}
	has := map[session.ID]bool{}
	err := w.childrenOf(ask, session.OriginSubagent, func(rec *session.Record) {
		if id := rec.Header.ID; w.live[id] == nil && id != rec.Header.ParentSession {
			has[rec.Header.ParentSession] = true
		}
	})
	if err != nil {
		return err
	}
	for _, c := range found {
		c.hasChildren = c.hasChildren || has[c.id]
	}
	return nil
}

// childrenOf yields the stored children of several sessions.
func (w *walk) childrenOf(parents []session.ID, origin string, yield func(*session.Record)) error {
	for some := range slices.Chunk(parents, parentsAtOnce) {
		err := w.records(session.Filter{Parents: some, Origin: origin}, session.Page{Limit: storedPage}, func(recs []session.Record) bool {
			for i := range recs {
				yield(&recs[i])
			}
			return true
		})
		if err != nil {
			return w.fail("children", some, err)
		}
	}
	return nil
}

// records yields the pages of what a filter selects, until it is told to stop.
func (w *walk) records(f session.Filter, p session.Page, yield func([]session.Record) bool) error {
	for {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		var l session.Listing
		err := contain(func() (err error) {
			l, err = w.store.List(w.ctx, f, p)
			return err
		})
		if err != nil {
			return err
		}
		if p.After = l.Next; !yield(l.Records) || p.After == "" {
			return nil
		}
	}
}

// tree returns the subagents below a session, parents first (seam TREE-01). There is
// no recursion: how deep a tree is says a log, which is data (seam TREE-07).
func (w *walk) tree(root session.ID) ([]*candidate, error) {
	below := map[session.ID][]*candidate{}
	seen, parents := map[session.ID]bool{root: true}, map[session.ID]bool{}
	for level := []session.ID{root}; len(level) > 0; {
		var next []session.ID
		add := func(c candidate) {
			if c.subagent && c.id != c.parent {
				parents[c.parent] = true
			}
			if !seen[c.id] {
				seen[c.id] = true
				below[c.parent] = append(below[c.parent], &c)
				next = append(next, c.id)
			}
		}
		for _, id := range level {
			for _, s := range w.kids[id] {
				add(liveCandidate(s))
			}
		}
		if w.store != nil {
			err := w.childrenOf(level, "", func(rec *session.Record) {
				if w.live[rec.Header.ID] == nil {
					add(storedCandidate(rec))
				}
			})
			if err != nil {
				return nil, err
			}
		}
		level = next
	}
	var found []*candidate
	open := []*candidate{{place: place{id: root}}}
	for len(open) > 0 {
		c := open[len(open)-1]
		open = open[:len(open)-1]
		if c.subagent {
			c.hasChildren = parents[c.id]
			found = append(found, c)
		}
		kids := below[c.id]
		slices.SortFunc(kids, func(a, b *candidate) int { return b.compare(a.place) })
		for _, k := range kids {
			k.depth = c.depth + 1
		}
		open = append(open, kids...)
	}
	return found, nil
}
