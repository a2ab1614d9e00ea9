package sqlite

import (
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
)

const (
	sqlExists   = `SELECT 1 FROM sessions WHERE id=?`
	sqlKey      = `SELECT num, root, owner FROM sessions WHERE id=?`
	sqlFence1   = `SELECT owner, epoch, head FROM sessions WHERE num=?`
	sqlPrefixOf = `SELECT prefix_id, prefix_len, head FROM sessions WHERE id=?`
	sqlInsert   = `INSERT INTO sessions(id, header, created_at, parent, root, origin, cwd, prefix_id, prefix_len,
		head, owner, epoch, updated_at, cp_identity, cp_usage, cp_title, cp_state, state)
		VALUES(?,?,?,?,?,?,?,?,?,?,?,1,?,?,?,?,?,?)`
	sqlTake       = `UPDATE sessions SET owner=?, epoch=epoch+1 WHERE num=? RETURNING epoch`
	sqlAppend     = `UPDATE sessions SET head=?1, updated_at=CASE head WHEN ?1 THEN updated_at ELSE ?2 END WHERE num=?3 AND owner=?4 AND epoch=?5 AND head=?6`
	sqlAppendCell = `UPDATE sessions SET head=?1, updated_at=CASE head WHEN ?1 THEN updated_at ELSE ?2 END,
		cp_identity=coalesce(?7, cp_identity), cp_usage=coalesce(?8, cp_usage), cp_title=coalesce(?9, cp_title),
		cp_state=coalesce(?10, cp_state), state=coalesce(?11, state)
		WHERE num=?3 AND owner=?4 AND epoch=?5 AND head=?6`
	sqlBatch = `INSERT INTO batches(session, first_seq, count, data) VALUES(?,?,?,?)`
	sqlCell  = `INSERT INTO checkpoints(session, key, version, seq, value) VALUES(?,?,?,?,?)
		ON CONFLICT(session, key) DO UPDATE SET version=excluded.version, seq=excluded.seq, value=excluded.value`
)

// Create implements session.Store.
func (s *Store) Create(ctx context.Context, h session.Header, meta session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	if h.ID == "" {
		return nil, fmt.Errorf("create session: the header has no id")
	}
	if meta.Root == "" {
		meta.Root = h.ID
	}
	if meta.Prefix.Len == 0 {
		meta.Prefix.ID = ""
	}
	if meta.Prefix.Len < 0 || (meta.Prefix.Len > 0 && meta.Prefix.ID == "") {
		return nil, fmt.Errorf("create session %s: prefix of %d events of %q makes no sense", h.ID, meta.Prefix.Len, meta.Prefix.ID)
	}
	if err := contiguous(h.ID, meta.Prefix.Len, first); err != nil {
		return nil, err
	}
	head := meta.Prefix.Len + int64(len(first))
	op := &createOp{
		w: &Writer{s: s, id: h.ID, epoch: 1}, h: &h, meta: meta, head: head,
		header: h.AppendJSON(nil), events: encodeRows(first), cells: splitCells(cells, head),
	}
	if err := s.submit(ctx, op.w.name("create"), &request{op: op, durable: true, owns: true}); err != nil {
		return nil, err
	}
	return op.w, nil
}

type createOp struct {
	w      *Writer
	h      *session.Header
	meta   session.Meta
	head   int64
	header []byte
	events eventRows
	cells  rowCells
}

func (op *createOp) run(t *tx) (refusal, failure error) {
	id := op.h.ID
	var one int
	if found, err := t.row(sqlExists, []any{string(id)}, []any{&one}); err != nil {
		return nil, err
	} else if found {
		return fmt.Errorf("create session %s: %w", id, session.ErrExists), nil
	}
	prefix, refusal, err := t.resolve(id, op.meta.Prefix)
	if refusal != nil || err != nil {
		return refusal, err
	}
	if refusal, err := t.claimTree(id, op.meta.Root); refusal != nil || err != nil {
		return refusal, err
	}
	state, _ := op.cells.state.(string)
	st, err := t.stmt(sqlInsert)
	if err != nil {
		return nil, err
	}
	parent := op.h.ParentSession
	if op.meta.Root == id {
		parent = "" // lineage alone; see session.Filter
	}
	res, err := st.ExecContext(t.ctx, string(id), op.header, op.h.CreatedAt, string(parent), string(op.meta.Root),
		op.h.Origin, op.h.Cwd, string(prefix.ID), prefix.Len, op.head, t.s.owner.ID, t.now.UnixMilli(),
		op.cells.cols[0], op.cells.cols[1], op.cells.cols[2], op.cells.cols[3], state)
	if err != nil {
		return nil, err
	}
	if op.w.num, err = res.LastInsertId(); err != nil {
		return nil, err
	}
	if err := t.insert(op.w.num, &op.events, op.cells.other); err != nil {
		return nil, err
	}
	t.hold(op.w.num, op.w)
	return nil, nil
}

// resolve finds whose own events the last one of a prefix is: a cut within the
// prefix of the session that was named belongs to that prefix's owner.
func (t *tx) resolve(id session.ID, p session.PrefixRef) (_ session.PrefixRef, refusal, failure error) {
	asked := p
	for p.Len > 0 {
		var up string
		var upLen, head int64
		found, err := t.row(sqlPrefixOf, []any{string(p.ID)}, []any{&up, &upLen, &head})
		if err != nil {
			return p, nil, err
		}
		if !found {
			head = -1
		}
		if head < p.Len {
			return p, &session.PrefixError{ID: id, Prefix: asked, Head: head}, nil
		}
		if p.Len > upLen || up == "" {
			break
		}
		p.ID = session.ID(up)
	}
	return p, nil, nil
}

// rowBytes is where a batch is cut into rows: only a single event makes a longer one.
// A row is one value, which SQLite bounds, and is read as a whole.
const rowBytes = 1 << 20

// eventRows are the events of one write as they are stored: in one row, but for long
// ones. They stand in one transaction either way.
type eventRows struct {
	batch
	more []batch
}

func encodeRows(events []session.Event) (rows eventRows) {
	for begin := 0; begin < len(events); {
		end, size := begin, 0
		for end < len(events) && (end == begin || size+len(events[end].Data()) <= rowBytes) {
			size += len(events[end].Data())
			end++
		}
		b := batch{first: events[begin].Seq, count: int64(end - begin), data: session.AppendBatch(nil, events[begin:end])}
		if begin == 0 {
			rows.batch = b
		} else {
			rows.more = append(rows.more, b)
		}
		begin = end
	}
	return rows
}

// insert stores events and the checkpoints that have no column.
func (t *tx) insert(num int64, rows *eventRows, cells []session.Checkpoint) error {
	if rows.count > 0 {
		if _, err := t.exec(sqlBatch, num, rows.first, rows.count, rows.data); err != nil {
			return err
		}
	}
	for i := range rows.more {
		if _, err := t.exec(sqlBatch, num, rows.more[i].first, rows.more[i].count, rows.more[i].data); err != nil {
			return err
		}
	}
	for _, c := range cells {
		if _, err := t.exec(sqlCell, num, c.Key, c.Version, c.Seq, c.Value); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) hold(num int64, w *Writer) {
	if t.held == nil {
		t.held = map[int64]*Writer{}
	}
	t.held[num] = w
}

// Open implements session.Store (core D18).
func (s *Store) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	op := &openOp{w: &Writer{s: s, id: id}}
	if err := s.submit(ctx, op.w.name("open"), &request{op: op, durable: true, owns: true}); err != nil {
		return nil, err
	}
	return op.w, nil
}

type openOp struct{ w *Writer }

func (op *openOp) run(t *tx) (refusal, failure error) {
	w := op.w
	var root, owner string
	found, err := t.row(sqlKey, []any{string(w.id)}, []any{&w.num, &root, &owner})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return fmt.Errorf("open session %s: %w", w.id, session.ErrNotFound), nil
	case owner == t.s.owner.ID && t.user(w.num) != nil:
		return fmt.Errorf("open session %s: this process has it open: %w", w.id, session.ErrExists), nil
	}
	if refusal, err := t.claimTree(w.id, session.ID(root)); refusal != nil || err != nil {
		return refusal, err
	}
	if _, err := t.row(sqlTake, []any{t.s.owner.ID, w.num}, []any{&w.epoch}); err != nil {
		return nil, err
	}
	t.hold(w.num, w)
	return nil, nil
}

type appendOp struct {
	w      *Writer
	head   int64
	count  int64
	events eventRows
	cells  rowCells
}

func (op *appendOp) run(t *tx) (refusal, failure error) {
	w := op.w
	args := make([]any, 6, 11)
	args[0], args[1], args[2], args[3], args[4], args[5] = op.head+op.count, t.now.UnixMilli(), w.num, t.s.owner.ID, w.epoch, op.head
	text := sqlAppend
	if op.cells.any {
		text = sqlAppendCell
		args = append(append(args, op.cells.cols[:]...), op.cells.state)
	}
	n, err := t.exec(text, args...)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return t.whyNot(w, op.head)
	}
	return nil, t.insert(w.num, &op.events, op.cells.other)
}

// whyNot tells why a fenced append met no row.
func (t *tx) whyNot(w *Writer, want int64) (refusal, failure error) {
	var owner string
	var epoch, head int64
	found, err := t.row(sqlFence1, []any{w.num}, []any{&owner, &epoch, &head})
	switch {
	case err != nil:
		return nil, err
	case found && owner == t.s.owner.ID && epoch == w.epoch:
		return &session.ConflictError{ID: w.id, Want: want, Head: head}, nil
	case t.holder(w.num) != w:
		// Given up by its own Close, which was queued before.
		if w.closed.Load() || t.gaveUp(w.num) {
			return fmt.Errorf("session %s: writer: %w", w.id, session.ErrClosed), nil
		}
	}
	t.fenced = append(t.fenced, w)
	return &session.FencedError{ID: w.id}, nil
}

// gaveUp reports whether this transaction gave a session up.
func (t *tx) gaveUp(num int64) bool {
	w, ok := t.held[num]
	return ok && w == nil
}

type closeOp struct{ w *Writer }

func (op *closeOp) run(t *tx) (refusal, failure error) {
	w := op.w
	if _, err := t.exec(sqlRelease, w.num, t.s.owner.ID, w.epoch); err != nil {
		return nil, err
	}
	if t.holder(w.num) == w {
		t.hold(w.num, nil)
	}
	return nil, nil
}
