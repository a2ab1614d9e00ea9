package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/session"
)

// defaultLimit is the size of a page that names none.
const defaultLimit = 1000

const recordColumns = `num, id, header, root, prefix_id, prefix_len, head, owner, updated_at,
	cp_identity, cp_usage, cp_title, cp_state`

const (
	sqlRecord = `SELECT ` + recordColumns + `, NULL FROM sessions WHERE id=?`
	// sqlChild is one probe of the index for each row.
	sqlChild = `(SELECT c.id FROM sessions c WHERE c.parent=sessions.id AND c.origin='` + session.OriginSubagent + `' AND c.id<>sessions.id LIMIT 1)`
	sqlPlace = `SELECT created_at, parent, origin FROM sessions WHERE num=?`
)

// List implements session.Store. The records hold the checkpoints that stand in
// the session's own row (identity, usage, title, state); Inspect has the others
// too. A listing looks at one snapshot per page.
func (s *Store) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	if !s.enter() {
		return session.Listing{}, session.ErrClosed
	}
	defer s.leave()
	limit := p.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	text, args, err := listQuery(f, p, limit+1)
	if err != nil {
		return session.Listing{}, fmt.Errorf("list sessions: %w", err)
	}
	var l session.Listing
	more := false
	err = s.read(ctx, func(inner context.Context, c *readConn) error {
		owners, err := s.ownerTable(inner, c)
		if err != nil {
			return err
		}
		l.Records = make([]session.Record, 0, min(limit, 64))
		rows, err := c.conn.QueryContext(inner, text, args...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
		row := newRecordRow()
		damaged := map[int]int64{} // numbers of the rows that cannot be read
		for rows.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			if more = len(l.Records) == limit; more {
				break
			}
			if err := row.scan(rows.Scan); err != nil {
				return err
			}
			if n := len(l.Records); n == cap(l.Records) {
				// Records are big: copy few times, but allocate for what is there.
				l.Records = slices.Grow(l.Records, min(limit, 16*n)-n)
			}
			rec := row.record(owners)
			if rec.Err != nil {
				damaged[len(l.Records)] = row.num
			}
			l.Records = append(l.Records, rec)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for i, num := range damaged {
			if err := place(inner, c, num, &l.Records[i].Header); err != nil {
				return err
			}
		}
		if more {
			last := &l.Records[limit-1].Header
			l.Next = session.Position(last.CreatedAt, last.ID)
		}
		return nil
	})
	if err != nil {
		return session.Listing{}, s.wrap("list sessions", err)
	}
	return l, nil
}

// place fills in what a damaged row's own columns tell of its header.
func place(ctx context.Context, c *readConn, num int64, h *session.Header) error {
	var parent string
	found, err := c.row(ctx, sqlPlace, []any{num}, []any{&h.CreatedAt, &parent, &h.Origin})
	if err == nil && !found {
		err = fmt.Errorf("row %d of session %s is gone within one snapshot", num, h.ID)
	}
	h.ParentSession = session.ID(parent)
	return err
}

// listQuery builds the query of a page. Every condition on the position is on
// the pair that the indexes are ordered by.
func listQuery(f session.Filter, p session.Page, limit int) (string, []any, error) {
	var where []string
	var args []any
	cond := func(text string, values ...any) {
		where = append(where, text)
		args = append(args, values...)
	}
	if f.Parent != "" {
		cond("parent=?", string(f.Parent))
	}
	if f.Parents != nil {
		ids, err := json.Marshal(f.Parents)
		if err != nil {
			return "", nil, err
		}
		// One argument, so that the number of parents has no bound.
		cond("parent IN (SELECT value FROM json_each(?))", string(ids))
	}
	if f.Top {
		cond("parent=''")
	}
	if f.Root != "" {
		cond("root=?", string(f.Root))
	}
	if f.Origin != "" {
		cond("origin=?", f.Origin)
	}
	if f.Cwd != "" {
		cond("cwd=?", f.Cwd)
	}
	if f.State != "" {
		cond("state=?", f.State)
	}
	from, order := "sessions", "created_at"
	if f.IDPrefix != "" {
		// The unique index on id is the one to use, whatever else is asked.
		from, order = "sessions INDEXED BY sqlite_autoindex_sessions_1", "+created_at"
		cond("id>=? AND id<?", f.IDPrefix, after(f.IDPrefix))
	}
	op, dir := ">", ""
	if p.Newest {
		op, dir = "<", " DESC"
	}
	if p.After != "" {
		at, id, err := session.ParsePosition(p.After)
		if err != nil {
			return "", nil, err
		}
		cond("(created_at, id) "+op+" (?, ?)", at, string(id))
	}
	child := "NULL"
	if p.Children {
		child = sqlChild
	}
	text := "SELECT " + recordColumns + ", " + child + " FROM " + from
	if len(where) > 0 {
		text += " WHERE " + strings.Join(where, " AND ")
	}
	return text + " ORDER BY " + order + dir + ", id" + dir + " LIMIT ?", append(args, limit), nil
}

// after returns the least string above all that begin with a prefix, as bytes go; no
// byte of UTF-8 is the greatest there is.
func after(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string([]byte{prefix[last] + 1})
}

// ownerEntry is an owner as a record tells it.
type ownerEntry struct {
	owner session.Owner
	live  bool
}

// ownerTable reads all owners: there is one for each process, not for each session.
func (s *Store) ownerTable(ctx context.Context, c *readConn) (map[string]ownerEntry, error) {
	now := s.opt.Now()
	owners := map[string]ownerEntry{}
	text := sqlOwners
	if s.noUptime {
		text = sqlOldOwners
	}
	err := c.rows(ctx, func(scan func(...any) error) (bool, error) {
		o, err := scanOwner(scan)
		if err == nil {
			owners[o.ID] = ownerEntry{owner: o.Owner, live: s.alive(o, now)}
		}
		return true, err
	}, text)
	return owners, err
}

// record reads one session's record with every checkpoint.
func (s *Store) record(ctx context.Context, c *readConn, id session.ID) (r session.Record, num int64, err error) {
	st, err := c.stmt(ctx, sqlRecord)
	if err != nil {
		return r, 0, err
	}
	rows, err := st.QueryContext(ctx, string(id))
	if err != nil {
		return r, 0, err
	}
	row := newRecordRow()
	found := rows.Next()
	if found {
		err = row.scan(rows.Scan)
	}
	if err = errors.Join(err, rows.Err()); err == nil && !found {
		err = session.ErrNotFound
	}
	if err != nil {
		return r, 0, errors.Join(err, rows.Close())
	}
	owners, err := s.ownerTable(ctx, c)
	if err != nil {
		return r, 0, errors.Join(err, rows.Close())
	}
	r = row.record(owners)
	if err := rows.Close(); err != nil || r.Err != nil {
		return r, row.num, err
	}
	err = c.rows(ctx, func(scan func(...any) error) (bool, error) {
		var cell session.Checkpoint
		err := scan(&cell.Key, &cell.Version, &cell.Seq, &cell.Value)
		r.Cells = append(r.Cells, cell)
		return true, err
	}, sqlCells, row.num)
	return r, row.num, err
}

// recordRow is a row of sessions as it comes from the engine. The raw fields are
// the engine's until the next row.
type recordRow struct {
	num, prefixLen, head, updated int64

	id                  string
	root, prefix, owner shared
	header              sql.RawBytes
	cells               [len(rowKeys)]sql.RawBytes
	child               sql.NullString

	headers session.HeaderParser
	fields  []any // where the columns go
}

func newRecordRow() *recordRow {
	r := &recordRow{}
	r.fields = []any{
		&r.num, &r.id, &r.header, &r.root, &r.prefix, &r.prefixLen, &r.head, &r.owner, &r.updated,
		&r.cells[0], &r.cells[1], &r.cells[2], &r.cells[3], &r.child,
	}
	return r
}

func (r *recordRow) scan(scan func(...any) error) error { return scan(r.fields...) }

// shared is a text that many rows have in common; equal ones that follow on each
// other are one string.
type shared string

// Scan implements sql.Scanner.
func (s *shared) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("column holds a %T instead of text", v)
	}
	if text != string(*s) {
		*s = shared(text)
	}
	return nil
}

// record turns the row into a record; one that cannot be read carries Err (core D11).
func (r *recordRow) record(owners map[string]ownerEntry) session.Record {
	id := session.ID(r.id)
	h, err := r.headers.Parse(r.header)
	if err == nil && h.ID != id {
		err = fmt.Errorf("its header names session %q", h.ID)
	}
	if err != nil {
		var unsupported *session.UnsupportedError
		if !errors.As(err, &unsupported) {
			var corrupt *session.CorruptError
			if errors.As(err, &corrupt) {
				err = corrupt.Err
			}
			err = &session.CorruptError{ID: id, Seq: -1, Err: err}
		}
		return session.Record{Header: session.Header{ID: id}, Child: session.ID(r.child.String), Err: err}
	}
	rec := session.Record{
		Header:    h,
		Child:     session.ID(r.child.String),
		Meta:      session.Meta{Root: session.ID(r.root), Prefix: session.PrefixRef{ID: session.ID(r.prefix), Len: r.prefixLen}},
		Head:      r.head,
		UpdatedAt: r.updated,
	}
	size := 0
	for _, data := range r.cells {
		size += len(data)
	}
	if size > 0 {
		rec.Cells = make([]session.Checkpoint, 0, len(r.cells))
		values := make([]byte, 0, size) // of all cells
		for i, data := range r.cells {
			c, ok := parseCell(rowKeys[i], data)
			if !ok {
				continue
			}
			from := len(values)
			values = append(values, c.Value...)
			c.Value = values[from:len(values):len(values)]
			rec.Cells = append(rec.Cells, c)
		}
	}
	if r.owner != "" {
		o, ok := owners[string(r.owner)]
		if !ok {
			o.owner = session.Owner{ID: string(r.owner)}
		}
		rec.Owner, rec.Live = &o.owner, o.live
	}
	return rec
}
