package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// defaultLimit is the size of a page that names none.
const defaultLimit = 1000

// List implements session.Store. The records hold the identity, usage, title and
// state checkpoints; Inspect has the others too.
func (s *Store) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	var at int64
	var id session.ID
	if p.After != "" {
		var err error
		if at, id, err = session.ParsePosition(p.After); err != nil {
			return session.Listing{}, fmt.Errorf("list sessions: %w", err)
		}
	}
	if err := s.begin(ctx); err != nil {
		return session.Listing{}, err
	}
	defer s.b.mu.Unlock()
	limit := p.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	order := s.b.among(f)
	// rows go from next in steps of dir while they are inside order.
	dir, next := 1, 0
	if p.After != "" {
		next = search(order, at, id)
	}
	switch {
	case p.Newest && p.After == "":
		dir, next = -1, len(order)-1
	case p.Newest:
		dir, next = -1, next-1
	case next < len(order) && p.After != "" && order[next].compare(at, id) == 0:
		next++
	}
	now := s.now()
	l := session.Listing{Records: []session.Record{}}
	var last *row
	for ; next >= 0 && next < len(order); next += dir {
		r := order[next]
		if !r.matches(f) {
			continue
		}
		if len(l.Records) == limit {
			l.Next = session.Position(last.header.CreatedAt, last.id())
			break
		}
		rec := r.record(now, false)
		if p.Children {
			rec.Child = s.b.child(r.id())
		}
		l.Records = append(l.Records, rec)
		last = r
	}
	return l, nil
}

// among returns rows, in order, that hold all those which a filter selects: the
// children alone where it names parents. The caller holds the mutex.
func (b *Backend) among(f session.Filter) []*row {
	switch {
	case f.Parent != "":
		return b.children[f.Parent]
	case f.Parents == nil:
		return b.order
	case len(f.Parents) == 1:
		return b.children[f.Parents[0]]
	}
	var rows []*row
	seen := make(map[session.ID]bool, len(f.Parents))
	for _, id := range f.Parents {
		if !seen[id] {
			seen[id] = true
			rows = append(rows, b.children[id]...)
		}
	}
	slices.SortFunc(rows, func(r, o *row) int { return r.compare(o.header.CreatedAt, o.id()) })
	return rows
}

// child returns a session that was delegated to by another, or "".
func (b *Backend) child(id session.ID) session.ID {
	for _, r := range b.children[id] {
		if r.header.Origin == session.OriginSubagent && r.id() != id {
			return r.id()
		}
	}
	return ""
}

// compare orders by creation time, then id.
func (r *row) compare(at int64, id session.ID) int {
	return cmp.Or(cmp.Compare(r.header.CreatedAt, at), cmp.Compare(r.id(), id))
}

// matches reports whether a row that among returned is selected.
func (r *row) matches(f session.Filter) bool {
	h := &r.header
	return (f.Parent == "" || r.parent() == f.Parent) &&
		(f.Parents == nil || f.Parent == "" || slices.Contains(f.Parents, f.Parent)) &&
		(!f.Top || r.parent() == "") &&
		(f.Root == "" || r.root == f.Root) &&
		(f.Origin == "" || h.Origin == f.Origin) &&
		(f.Cwd == "" || h.Cwd == f.Cwd) &&
		strings.HasPrefix(string(h.ID), f.IDPrefix) &&
		(f.State == "" || r.state == f.State)
}

// record returns the row as a record, with the checkpoints of a listing or all.
func (r *row) record(now time.Time, all bool) session.Record {
	if r.damaged != nil {
		h := &r.header
		return session.Record{Header: session.Header{ID: h.ID, CreatedAt: h.CreatedAt, ParentSession: h.ParentSession, Origin: h.Origin}, Err: r.damaged}
	}
	rec := session.Record{Header: r.header, Meta: session.Meta{Root: r.root}, Head: r.head(), UpdatedAt: r.updated}
	if r.prefix != nil {
		rec.Meta.Prefix = session.PrefixRef{ID: r.prefix.id(), Len: r.prefixLen}
	}
	if r.owner != nil {
		o := r.owner.snapshot(now)
		rec.Owner, rec.Live = &o, r.owner.alive(now)
	}
	for _, c := range r.cells {
		switch c.Key {
		case session.CellIdentity, session.CellUsage, session.CellTitle, session.CellState:
			rec.Cells = append(rec.Cells, c)
		default:
			if all {
				rec.Cells = append(rec.Cells, c)
			}
		}
	}
	return rec
}
