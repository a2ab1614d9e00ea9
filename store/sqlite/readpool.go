package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// readers is how many connections read at once. A reader holds one only while a
// page or a piece of a log is read, never while its caller works on that.
const readers = 4

// readConn is a connection that cannot write, with its statements prepared.
type readConn struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

// readPool hands out readConns. Each of readers places is either a connection that
// nobody uses, or leave to make one: who reads one thing after another needs one.
type readPool struct {
	ctx   context.Context
	db    *sql.DB
	err   error // why there is no db
	idle  chan *readConn
	leave chan struct{}
}

func newReadPool(ctx context.Context, path, mode string, busy time.Duration) *readPool {
	p := &readPool{ctx: ctx, idle: make(chan *readConn, readers), leave: make(chan struct{}, readers)}
	p.db, p.err = openDB(dsn(path, mode, pragmas(busy, "query_only(1)", "cache_size(-2048)")))
	if p.err == nil {
		p.db.SetMaxOpenConns(readers)
		p.db.SetMaxIdleConns(readers)
	}
	for range readers {
		p.leave <- struct{}{}
	}
	return p
}

// get waits for a connection; put must follow.
func (p *readPool) get(ctx context.Context) (*readConn, error) {
	select {
	case c := <-p.idle:
		return c, nil
	default:
	}
	select {
	case c := <-p.idle:
		return c, nil
	case <-p.leave:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err := p.err
	var conn *sql.Conn
	if err == nil {
		conn, err = p.db.Conn(p.ctx)
	}
	if err != nil {
		p.leave <- struct{}{}
		return nil, err
	}
	return &readConn{conn: conn, stmts: map[string]*sql.Stmt{}}, nil
}

// put gives a connection back. One that met an error is closed. c may be nil,
// after a get that failed.
func (p *readPool) put(c *readConn, err error) {
	if c == nil {
		return
	}
	if err != nil {
		discard(c.conn, c.stmts)
		p.leave <- struct{}{}
		return
	}
	p.idle <- c
}

// close waits for the readers and closes their connections.
func (p *readPool) close() error {
	var errs []error
	for range readers {
		select {
		case c := <-p.idle:
			closeStmts(c.stmts)
			errs = append(errs, c.conn.Close())
		case <-p.leave:
		}
	}
	if p.db != nil {
		errs = append(errs, p.db.Close())
	}
	return errors.Join(errs...)
}

// stmt returns the prepared statement of a fixed text.
func (c *readConn) stmt(ctx context.Context, text string) (*sql.Stmt, error) {
	if st, ok := c.stmts[text]; ok {
		return st, nil
	}
	st, err := c.conn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	c.stmts[text] = st
	return st, nil
}

// row reads one row and reports whether there was one.
func (c *readConn) row(ctx context.Context, text string, args, dest []any) (bool, error) {
	st, err := c.stmt(ctx, text)
	if err != nil {
		return false, err
	}
	err = st.QueryRowContext(ctx, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// rows calls fn for each row until it says stop or fails.
func (c *readConn) rows(ctx context.Context, fn func(scan func(...any) error) (more bool, err error), text string, args ...any) (err error) {
	st, err := c.stmt(ctx, text)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if more, err := fn(rows.Scan); err != nil || !more {
			return err
		}
	}
	return rows.Err()
}

// read runs fn on one snapshot of the store. Statements get a context without an
// end, which the engine watches at no cost; fn looks at ctx between rows.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, c *readConn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := s.reads.get(ctx)
	if err != nil {
		return err
	}
	inner := s.ctx
	begin, err := c.stmt(inner, "BEGIN")
	if err == nil {
		_, err = begin.ExecContext(inner)
	}
	if err != nil {
		s.reads.put(c, err)
		return err
	}
	err = fn(inner, c)
	end, broken := c.stmt(inner, "COMMIT")
	if broken == nil {
		_, broken = end.ExecContext(inner)
	}
	s.reads.put(c, broken)
	return errors.Join(err, broken)
}
