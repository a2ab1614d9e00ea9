package sqlite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/offshoot-dev/offshoot/session"
)

// defaultLimit is the size of a page that names none.
const defaultLimit = 1000

// fieldSep stands between the fields of a packed row. Neither JSON nor, as a rule, an
// id holds it.
const fieldSep = "\x1f"

const (
	// sqlChild is a child of the row's session, or ''. The first condition is one probe
	// of the index, and most sessions have none; the query behind it costs several times
	// as much.
	sqlChild = `CASE WHEN id IN (SELECT parent FROM sessions) THEN ifnull((SELECT c.id FROM sessions c
		WHERE c.parent=sessions.id AND c.origin='` + session.OriginSubagent + `' AND c.id<>sessions.id LIMIT 1), '') ELSE '' END`
	sqlPlace = `SELECT created_at, parent, origin FROM sessions WHERE num=?`
)

// packedRow is the expression for what a record is made of, in one value for
// recordRow.unpack: a column of its own costs more than what is in it, since the engine
// takes a mutex several times for each.
func packedRow(sep, child string) string {
	return `CAST(concat_ws('` + sep + `', num, prefix_len, head, updated_at, id, root, prefix_id, owner, ` + child + `, header,
		ifnull(cp_identity, ''), ifnull(cp_usage, ''), ifnull(cp_title, ''), ifnull(cp_state, '')) AS BLOB)`
}

// childOf is the expression for the child in a packed row.
func childOf(p session.Page) string {
	if p.Children {
		return sqlChild
	}
	return "''"
}

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
		var row recordRow
		sep := []byte(fieldSep)
		again := map[int]int64{} // numbers of the rows that want another look
		for rows.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			if more = len(l.Records) == limit; more {
				break
			}
			var data blob
			if err := rows.Scan(&data); err != nil {
				return err
			}
			if n := len(l.Records); n == cap(l.Records) {
				// Records are big: copy few times, but allocate for what is there.
				l.Records = slices.Grow(l.Records, min(limit, 16*n)-n)
			}
			plain, err := row.unpack(data, sep)
			if err != nil {
				return err
			}
			l.Records = append(l.Records, session.Record{})
			rec := &l.Records[len(l.Records)-1]
			if plain {
				row.record(rec, owners)
			}
			if !plain || rec.Err != nil {
				again[len(l.Records)-1] = row.num
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for i, num := range again {
			if l.Records[i], err = s.lookAgain(inner, c, num, childOf(p), owners); err != nil {
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

// lookAgain reads the record of a row that a listing could not: one of whose fields
// holds fieldSep, or that is damaged.
func (s *Store) lookAgain(ctx context.Context, c *readConn, num int64, child string, owners map[string]ownerEntry) (r session.Record, err error) {
	row, found, err := c.recordRow(ctx, child, "num", num)
	if err == nil && !found {
		err = fmt.Errorf("row %d is gone within one snapshot", num)
	}
	if err != nil {
		return r, err
	}
	if row.record(&r, owners); r.Err != nil {
		err = place(ctx, c, num, &r.Header)
	}
	return r, err
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
	text := "SELECT " + packedRow(fieldSep, childOf(p)) + " FROM " + from
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
	row, found, err := c.recordRow(ctx, "''", "id", string(id))
	if err == nil && !found {
		err = session.ErrNotFound
	}
	if err != nil {
		return r, 0, err
	}
	owners, err := s.ownerTable(ctx, c)
	if err != nil {
		return r, 0, err
	}
	if row.record(&r, owners); r.Err != nil {
		return r, row.num, nil
	}
	err = c.rows(ctx, func(scan func(...any) error) (bool, error) {
		var cell session.Checkpoint
		err := scan(&cell.Key, &cell.Version, &cell.Seq, &cell.Value)
		r.Cells = append(r.Cells, cell)
		return true, err
	}, sqlCells, row.num)
	return r, row.num, err
}

// recordRow is a row of sessions. The zero value is ready to unpack one row after the
// other.
type recordRow struct {
	num, prefixLen, head, updated int64

	// Parts of the packed row.
	id, child, header []byte
	cells             [len(rowKeys)][]byte

	// Many rows have these in common; equal ones that follow on each other are one string.
	root, prefix, owner string
	headers             session.HeaderParser
}

// recordRow reads the row of one session, whatever its fields hold: there are more
// separators than they can hold, and none overlaps with itself.
func (c *readConn) recordRow(ctx context.Context, child, key string, value any) (row *recordRow, found bool, err error) {
	row = &recordRow{}
	for sep := fieldSep; ; sep += "-" {
		var data blob
		if found, err = c.row(ctx, recordQuery(sep, child, key), []any{value}, []any{&data}); err != nil || !found {
			return nil, false, err
		}
		if plain, err := row.unpack(data, []byte(sep)); plain || err != nil {
			return row, true, err
		}
	}
}

func recordQuery(sep, child, key string) string {
	return "SELECT " + packedRow(sep, child) + " FROM sessions WHERE " + key + "=?"
}

// unpack takes a packed row apart, of which it keeps parts. plain is false where one of
// the fields holds the separator; num is right all the same. An error says that it is
// no packed row.
func (r *recordRow) unpack(data, sep []byte) (plain bool, err error) {
	for i, n := range []*int64{&r.num, &r.prefixLen, &r.head, &r.updated} {
		var text []byte
		text, data, _ = bytes.Cut(data, sep)
		if *n, err = integer(text); err != nil {
			return false, fmt.Errorf("number %d of a session's row: %w", i, err)
		}
	}
	var root, prefix, owner []byte
	more := true
	for _, field := range []*[]byte{&r.id, &root, &prefix, &owner, &r.child, &r.header, &r.cells[0], &r.cells[1], &r.cells[2], &r.cells[3]} {
		if !more {
			return false, errors.New("a session's row lacks a field")
		}
		*field, data, more = bytes.Cut(data, sep)
	}
	if more {
		return false, nil
	}
	share(&r.root, root)
	share(&r.prefix, prefix)
	share(&r.owner, owner)
	return true, nil
}

// share makes a text that of a field, unless it is already.
func share(text *string, field []byte) {
	if *text != string(field) {
		*text = string(field)
	}
}

// record turns the row into a record, which was empty; one that cannot be read carries
// Err (core D11).
func (r *recordRow) record(rec *session.Record, owners map[string]ownerEntry) {
	h, err := r.headers.Parse(r.header)
	if err == nil && string(h.ID) != string(r.id) {
		err = fmt.Errorf("its header names session %q", h.ID)
	}
	if err != nil {
		id := session.ID(r.id)
		var unsupported *session.UnsupportedError
		if !errors.As(err, &unsupported) {
			var corrupt *session.CorruptError
			if errors.As(err, &corrupt) {
				err = corrupt.Err
			}
			err = &session.CorruptError{ID: id, Seq: -1, Err: err}
		}
		rec.Header.ID, rec.Child, rec.Err = id, session.ID(r.child), err
		return
	}
	rec.Header, rec.Child = h, session.ID(r.child)
	rec.Meta = session.Meta{Root: session.ID(r.root), Prefix: session.PrefixRef{ID: session.ID(r.prefix), Len: r.prefixLen}}
	rec.Head, rec.UpdatedAt = r.head, r.updated
	n := 0
	for _, data := range r.cells {
		if len(data) > 0 {
			n++
		}
	}
	if n > 0 {
		rec.Cells = make([]session.Checkpoint, 0, n)
		for i, data := range r.cells {
			if c, ok := parseCell(rowKeys[i], data); ok {
				rec.Cells = append(rec.Cells, c)
			}
		}
	}
	if r.owner != "" {
		o, ok := owners[r.owner]
		if !ok {
			o.owner = session.Owner{ID: r.owner}
		}
		rec.Owner, rec.Live = &o.owner, o.live
	}
}
