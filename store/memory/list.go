package memory

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// defaultLimit is the size of a page that names none.
const defaultLimit = 1000

// List implements session.Store. The records hold the identity, usage, title and
// state checkpoints; Inspect has the others too.
func (s *Store) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	at, id, err := position(p.After)
	if err != nil {
		return session.Listing{}, fmt.Errorf("list sessions: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		return session.Listing{}, err
	}
	defer s.b.mu.Unlock()
	limit := p.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	// rows go from next in steps of dir while they are inside order.
	dir, next := 1, 0
	if p.After != "" {
		next = s.b.search(at, id)
	}
	switch {
	case p.Newest && p.After == "":
		dir, next = -1, len(s.b.order)-1
	case p.Newest:
		dir, next = -1, next-1
	case next < len(s.b.order) && p.After != "" && s.b.order[next].compare(at, id) == 0:
		next++
	}
	now := s.now()
	l := session.Listing{Records: []session.Record{}}
	var last *row
	for ; next >= 0 && next < len(s.b.order); next += dir {
		r := s.b.order[next]
		if !r.matches(f) {
			continue
		}
		if len(l.Records) == limit {
			l.Next = strconv.FormatInt(last.header.CreatedAt, 10) + ":" + string(last.id())
			break
		}
		l.Records = append(l.Records, r.record(now, false))
		last = r
	}
	return l, nil
}

// position reads a page token.
func position(token string) (at int64, id session.ID, err error) {
	if token == "" {
		return 0, "", nil
	}
	ms, rest, ok := strings.Cut(token, ":")
	at, err = strconv.ParseInt(ms, 10, 64)
	if !ok || err != nil {
		return 0, "", fmt.Errorf("page token %q is malformed", token)
	}
	return at, session.ID(rest), nil
}

// compare orders by creation time, then id.
func (r *row) compare(at int64, id session.ID) int {
	return cmp.Or(cmp.Compare(r.header.CreatedAt, at), cmp.Compare(r.id(), id))
}

func (r *row) matches(f session.Filter) bool {
	h := &r.header
	top := h.ParentSession == "" || r.root == h.ID
	return (f.Parent == "" || !top && h.ParentSession == f.Parent) &&
		(!f.Top || top) &&
		(f.Root == "" || r.root == f.Root) &&
		(f.Origin == "" || h.Origin == f.Origin) &&
		(f.Cwd == "" || h.Cwd == f.Cwd) &&
		strings.HasPrefix(string(h.ID), f.IDPrefix) &&
		(f.State == "" || r.state == f.State)
}

// record returns the row as a record, with the checkpoints of a listing or all.
func (r *row) record(now time.Time, all bool) session.Record {
	if r.damaged != nil {
		return session.Record{Header: session.Header{ID: r.id()}, Err: r.damaged}
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
