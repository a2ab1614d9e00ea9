package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/offshoot-dev/offshoot/session"
)

const (
	sqlDoomed    = `SELECT num, root, prefix_id, prefix_len FROM sessions WHERE id=?`
	sqlOwnInTree = `SELECT num FROM sessions WHERE owner=? AND owner>'' AND root=?`
	sqlHeir      = `SELECT num, id, prefix_len FROM sessions WHERE prefix_id=? AND prefix_id>'' ORDER BY prefix_len DESC, num LIMIT 1`
	sqlHeld      = `SELECT head FROM sessions WHERE num=? AND owner=? AND epoch=?`
	sqlHasHeir   = `SELECT 1 FROM sessions WHERE prefix_id=? AND prefix_id>'' LIMIT 1`
	sqlHasChild  = `SELECT 1 FROM sessions WHERE parent=? LIMIT 1`
	sqlInherit   = `UPDATE sessions SET prefix_id=?, prefix_len=? WHERE num=?`
	sqlRefer     = `UPDATE sessions SET prefix_id=? WHERE prefix_id=? AND prefix_id>''`
	sqlMove      = `UPDATE batches SET session=? WHERE session=? AND first_seq<?`
	sqlStraddle  = `SELECT rowid, first_seq, data FROM batches WHERE session=?1 AND first_seq<?2 AND first_seq+count>?2`
	sqlCut       = `UPDATE batches SET count=?, data=? WHERE rowid=?`
)

// Delete implements session.Store.
func (s *Store) Delete(ctx context.Context, id session.ID) error {
	return s.submit(ctx, "delete session "+string(id), &request{op: &deleteOp{id: id}, durable: true})
}

type deleteOp struct{ id session.ID }

func (op *deleteOp) run(t *tx) (refusal, failure error) {
	var num, prefixLen int64
	var root, prefixID string
	found, err := t.row(sqlDoomed, []any{string(op.id)}, []any{&num, &root, &prefixID, &prefixLen})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return fmt.Errorf("delete session %s: %w", op.id, session.ErrNotFound), nil
	}
	if refusal, err := op.inUse(t, root); refusal != nil || err != nil {
		return refusal, err
	}
	if err := op.bequeath(t, num, prefixID, prefixLen); err != nil {
		return nil, err
	}
	// A writer that holds it was closed, and could not give it up.
	return nil, t.erase(num)
}

// erase deletes a session that nothing refers to, and who holds it.
func (t *tx) erase(num int64) error {
	for _, text := range []string{
		`DELETE FROM batches WHERE session=?`,
		`DELETE FROM checkpoints WHERE session=?`,
		`DELETE FROM sessions WHERE num=?`,
	} {
		if _, err := t.exec(text, num); err != nil {
			return err
		}
	}
	if t.holder(num) != nil {
		t.hold(num, nil)
	}
	return nil
}

// discardOp deletes the session that a writer holds.
type discardOp struct{ w *Writer }

func (op *discardOp) run(t *tx) (refusal, failure error) {
	w := op.w
	var head int64
	found, err := t.row(sqlHeld, []any{w.num, t.s.owner.ID, w.epoch}, []any{&head})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return t.whyNot(w, head)
	}
	for _, need := range []struct{ query, what string }{{sqlHasHeir, "it is the prefix of another"}, {sqlHasChild, "it has children"}} {
		var one int
		switch found, err := t.row(need.query, []any{string(w.id)}, []any{&one}); {
		case err != nil:
			return nil, err
		case found:
			return fmt.Errorf("discard session %s: %w: %s", w.id, session.ErrInUse, need.what), nil
		}
	}
	return nil, t.erase(w.num)
}

// inUse refuses the deletion while a live process owns a session of the tree. A
// row that bears this process's name without a writer stems from a creation
// whose outcome was unknown, and protects nothing.
func (op *deleteOp) inUse(t *tx, root string) (refusal, failure error) {
	held := false
	err := t.rows(func(scan func(...any) error) error {
		var num int64
		err := scan(&num)
		held = held || t.user(num) != nil
		return err
	}, sqlOwnInTree, t.s.owner.ID, root)
	if err != nil {
		return nil, err
	}
	if held {
		return fmt.Errorf("delete session %s: %w (this one)", op.id, session.ErrInUse), nil
	}
	owners, err := t.owners(sqlOthers, t.s.owner.ID, root)
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		if t.s.alive(o, t.now) {
			return fmt.Errorf("delete session %s: %w (%s)", op.id, session.ErrInUse, o.Owner), nil
		}
	}
	return nil, nil
}

// bequeath moves the events that other sessions refer to. The referrer with the
// longest prefix takes them and the deleted session's own prefix over, and the
// others refer to it from then on: one copy, wherever it lies.
func (op *deleteOp) bequeath(t *tx, num int64, prefixID string, prefixLen int64) error {
	var heir, length int64
	var heirID string
	found, err := t.row(sqlHeir, []any{string(op.id)}, []any{&heir, &heirID, &length})
	if err != nil || !found {
		return err
	}
	if err := t.cut(num, length); err != nil {
		return err
	}
	if _, err := t.exec(sqlMove, heir, num, length); err != nil {
		return err
	}
	if _, err := t.exec(sqlInherit, prefixID, prefixLen, heir); err != nil {
		return err
	}
	_, err = t.exec(sqlRefer, heirID, string(op.id))
	return err
}

// cut shortens the batch in the middle of which a length falls.
func (t *tx) cut(num, length int64) error {
	var rowid, first int64
	var data []byte
	found, err := t.row(sqlStraddle, []any{num, length}, []any{&rowid, &first, &data})
	if err != nil || !found {
		return err
	}
	keep := length - first
	end := 0
	for range keep {
		i := bytes.IndexByte(data[end:], '\n')
		if i < 0 {
			return fmt.Errorf("batch at seq %d holds fewer events than it says", first)
		}
		end += i + 1
	}
	_, err = t.exec(sqlCut, keep, data[:end], rowid)
	return err
}
