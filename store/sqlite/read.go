package sqlite

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/offshoot-dev/offshoot/session"
)

// pieceBytes is how much of a log is read at a time.
const pieceBytes = 1 << 20

const (
	sqlHead   = `SELECT num, head FROM sessions WHERE id=?`
	sqlLink   = `SELECT num, prefix_id, prefix_len, head FROM sessions WHERE id=?`
	sqlCells  = `SELECT key, version, seq, value FROM checkpoints WHERE session=? ORDER BY key`
	sqlEvents = `SELECT first_seq, count, data FROM batches
		WHERE session=?1 AND first_seq < ?3
		AND first_seq >= coalesce((SELECT max(first_seq) FROM batches WHERE session=?1 AND first_seq<=?2), ?2)
		ORDER BY first_seq`
)

// Exists implements session.Store. After a write whose outcome is unknown it settles
// that first.
func (s *Store) Exists(ctx context.Context, id session.ID) (found bool, err error) {
	if !s.enter() {
		return false, session.ErrClosed
	}
	defer s.leave()
	if err := s.settle(ctx); err != nil {
		return false, err
	}
	err = s.read(ctx, func(ctx context.Context, c *readConn) error {
		var one int
		found, err = c.row(ctx, sqlExists, []any{string(id)}, []any{&one})
		return err
	})
	return found, s.wrap("look up session "+string(id), err)
}

// QuickCheck has the engine look through the whole file for damage: pages out of
// place, rows that are not in their indexes. It reads everything and changes
// nothing. Damage is a *FormatError that names the first fault.
func (s *Store) QuickCheck(ctx context.Context) error {
	if !s.enter() {
		return session.ErrClosed
	}
	defer s.leave()
	fault := ""
	err := s.read(ctx, func(ctx context.Context, c *readConn) error {
		_, err := c.row(ctx, "PRAGMA quick_check(1)", nil, []any{&fault})
		return err
	})
	if err == nil && fault != "ok" {
		return &FormatError{Path: s.path, Msg: "the file is damaged: " + fault}
	}
	return s.wrap("check", err)
}

// Inspect implements session.Store. Beyond what a listing has, the record holds
// every checkpoint.
func (s *Store) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	if !s.enter() {
		return session.Record{}, nil, session.ErrClosed
	}
	defer s.leave()
	var r session.Record
	var num int64
	err := s.read(ctx, func(ctx context.Context, c *readConn) (err error) {
		r, num, err = s.record(ctx, c, id)
		return err
	})
	if err == nil {
		err = r.Err
	}
	if err != nil {
		return session.Record{}, nil, s.wrapRead("inspect session "+string(id), err)
	}
	return r, s.events(ctx, id, num, 0, r.Head), nil
}

// ReadFrom implements session.Store.
func (s *Store) ReadFrom(ctx context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	var num, head int64
	err := session.ErrClosed
	if s.enter() {
		num, head, err = s.lookup(ctx, id)
		s.leave()
	}
	if err != nil {
		err = s.wrapRead("read session "+string(id), err)
		return func(yield func(session.Event, error) bool) { yield(session.Event{}, err) }
	}
	return s.events(ctx, id, num, max(seq, 0), head)
}

func (s *Store) lookup(ctx context.Context, id session.ID) (num, head int64, err error) {
	err = s.read(ctx, func(ctx context.Context, c *readConn) error {
		found, err := c.row(ctx, sqlHead, []any{string(id)}, []any{&num, &head})
		if err == nil && !found {
			err = session.ErrNotFound
		}
		return err
	})
	return num, head, err
}

// head is Writer.Head.
func (s *Store) head(ctx context.Context, id session.ID, num int64) (int64, error) {
	if !s.enter() {
		return 0, session.ErrClosed
	}
	defer s.leave()
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	got, head, err := s.lookup(ctx, id)
	if err == nil && got != num {
		err = session.ErrNotFound // deleted, and made anew
	}
	return head, s.wrapRead("read the head of session "+string(id), err)
}

// wrapRead passes what the contract knows and names the operation of the rest.
func (s *Store) wrapRead(op string, err error) error {
	var corrupt *session.CorruptError
	var unsupported *session.UnsupportedError
	switch {
	case err == nil, errors.As(err, &corrupt), errors.As(err, &unsupported):
		return err
	case errors.Is(err, session.ErrNotFound), errors.Is(err, session.ErrClosed):
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.wrap(op, err)
}

// events yields a session's events from seq on up to head. It reads one piece at
// a time and holds neither a connection nor a snapshot while its caller works on
// it: what is stored below head never changes, wherever a deletion moves it.
func (s *Store) events(ctx context.Context, id session.ID, num, seq, head int64) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		var buf []session.Event
		for seq < head {
			if !s.enter() {
				yield(session.Event{}, fmt.Errorf("read session %s: %w", id, session.ErrClosed))
				return
			}
			var p piece
			err := s.read(ctx, func(ctx context.Context, c *readConn) (err error) {
				p, err = readPiece(ctx, c, id, num, seq, head)
				return err
			})
			s.leave()
			if err != nil {
				yield(session.Event{}, s.wrapRead("read session "+string(id), err))
				return
			}
			for i := range p.batches {
				b := &p.batches[i]
				if buf, err = b.parse(buf[:0], id, seq); err != nil {
					yield(session.Event{}, err)
					return
				}
				for _, e := range buf {
					if e.Seq >= p.end {
						break
					}
					if !yield(e, nil) {
						return
					}
				}
				seq = min(b.first+b.count, p.end)
				// What was taken must not stay in memory while the next is read.
				*b = batch{}
				clear(buf)
			}
		}
	}
}

// piece is some consecutive batches. Events at or past end belong to others.
type piece struct {
	batches []batch
	end     int64
}

type batch struct {
	first, count int64
	data         blob
}

// blob is a value of which the driver's copy is kept. database/sql makes a second one
// for a plain slice, since it allows drivers to use their memory again; this one never
// does (TestBlobIsKept), and a batch may be megabytes.
type blob []byte

// Scan implements sql.Scanner.
func (b *blob) Scan(src any) error {
	data, ok := src.([]byte)
	if !ok && src != nil {
		return fmt.Errorf("a batch is stored as %T", src)
	}
	*b = data
	return nil
}

// parse decodes the batch's events from seq on; the batch must hold seq.
func (b *batch) parse(dst []session.Event, id session.ID, seq int64) ([]session.Event, error) {
	if b.first > seq || b.count < 1 || b.first+b.count <= seq {
		return dst, &session.CorruptError{ID: id, Seq: seq, Err: fmt.Errorf("no batch holds the event")}
	}
	dst, err := session.ParseBatch(dst, id, b.data, b.first, seq)
	if err == nil && b.first+b.count != seq+int64(len(dst)) {
		err = &session.CorruptError{ID: id, Seq: b.first, Err: fmt.Errorf("batch says it holds %d events but holds %d", b.count, seq+int64(len(dst))-b.first)}
	}
	return dst, err
}

// readPiece finds the session in the prefix chain whose own event seq is, and
// reads its batches from there on.
func readPiece(ctx context.Context, c *readConn, id session.ID, num, seq, head int64) (piece, error) {
	cur, curHead, err := link(ctx, c, id)
	if err != nil {
		return piece{}, err
	}
	if cur.num != num {
		return piece{}, session.ErrNotFound // deleted meanwhile, and made anew
	}
	if curHead < head {
		return piece{}, &session.CorruptError{ID: id, Seq: curHead, Err: fmt.Errorf("the log shrank from %d events to %d", head, curHead)}
	}
	end := head
	for seq < cur.prefix.Len {
		end = cur.prefix.Len
		up, upHead, err := link(ctx, c, cur.prefix.ID)
		if errors.Is(err, session.ErrNotFound) {
			return piece{}, &session.CorruptError{ID: id, Seq: seq, Err: fmt.Errorf("its prefix's owner %s is not stored", cur.prefix.ID)}
		}
		if err != nil {
			return piece{}, err
		}
		if upHead < end || up.prefix.Len >= end {
			return piece{}, &session.CorruptError{ID: id, Seq: seq, Err: fmt.Errorf("its prefix's owner %s does not own seq %d", cur.prefix.ID, end-1)}
		}
		cur = up
	}
	p := piece{end: end}
	size := 0
	err = c.rows(ctx, func(scan func(...any) error) (bool, error) {
		var b batch
		err := scan(&b.first, &b.count, &b.data)
		p.batches = append(p.batches, b)
		size += len(b.data)
		return size < pieceBytes, err
	}, sqlEvents, cur.num, seq, end)
	if err == nil && len(p.batches) == 0 {
		err = &session.CorruptError{ID: id, Seq: seq, Err: fmt.Errorf("no batch holds the event")}
	}
	return p, err
}

// chainLink is one session of a prefix chain.
type chainLink struct {
	num    int64
	prefix session.PrefixRef
}

func link(ctx context.Context, c *readConn, id session.ID) (l chainLink, head int64, err error) {
	var up string
	found, err := c.row(ctx, sqlLink, []any{string(id)}, []any{&l.num, &up, &l.prefix.Len, &head})
	l.prefix.ID = session.ID(up)
	if err == nil && !found {
		err = session.ErrNotFound
	}
	return l, head, err
}
