package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	sqlite "modernc.org/sqlite"
)

// writeConn is the one connection that writes, with its statements prepared.
// Only one goroutine uses it at a time.
type writeConn struct {
	ctx    context.Context // without an end: what was begun is finished
	db     *sql.DB
	conn   *sql.Conn
	full   Sync // what a durable commit needs
	cur    Sync // what is in force
	broken bool // its state is unknown; it must be replaced

	begin, commit, rollback *sql.Stmt
	stmts                   map[string]*sql.Stmt
}

// openWrite opens the write connection and makes or checks the tables.
func (s *Store) openWrite() (*writeConn, error) {
	c, err := newWriteConn(s.ctx, s.path, s.opt)
	if err != nil {
		return nil, openError(s.path, err)
	}
	return c, nil
}

func newWriteConn(ctx context.Context, path string, opt Options) (_ *writeConn, err error) {
	params := pragmas(opt.BusyTimeout, "journal_size_limit(67108864)")
	params.Set("_txlock", "immediate")
	c := &writeConn{ctx: ctx, full: opt.Synchronous, cur: opt.Synchronous, stmts: map[string]*sql.Stmt{}}
	if c.db, err = openDB(dsn(path, "rw", params)); err != nil {
		return nil, err
	}
	c.db.SetMaxOpenConns(1)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.conn, err = c.db.Conn(ctx); err != nil {
		return nil, err
	}
	if err = c.setUp(path, opt); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{{&c.begin, "BEGIN IMMEDIATE"}, {&c.commit, "COMMIT"}, {&c.rollback, "ROLLBACK"}} {
		if *p.stmt, err = c.conn.PrepareContext(ctx, p.text); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// setUp brings the connection and the file into the state that the store
// promises, and reads back what decides on durability (core D20).
func (c *writeConn) setUp(path string, opt Options) error {
	if err := c.keepWAL(); err != nil {
		return err
	}
	if err := c.walMode(opt.BusyTimeout); err != nil {
		return err
	}
	if err := c.setSync(c.full); err != nil {
		return err
	}
	return initialise(c.ctx, c.conn, path)
}

// keepWAL leaves the companions beside the file, folded in, when the last connection
// closes: whoever reads a store that nobody has open finds them and makes nothing.
func (c *writeConn) keepWAL() error {
	return c.conn.Raw(func(conn any) error {
		control, ok := conn.(sqlite.FileControl)
		if !ok {
			return errors.New("the engine's driver controls no files")
		}
		_, err := control.FileControlPersistWAL("main", 1)
		return err
	})
}

// walMode turns the write-ahead log on. While another process does the same, the
// engine reports the file as locked without waiting, so the wait is here.
func (c *writeConn) walMode(wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	retry := time.NewTicker(5 * time.Millisecond)
	defer retry.Stop()
	for {
		var mode string
		err := c.conn.QueryRowContext(c.ctx, "PRAGMA journal_mode=WAL").Scan(&mode)
		if err == nil && mode != "wal" {
			return fmt.Errorf("the file system does not allow a write-ahead log (journal mode is %s)", mode)
		}
		if code(err) != codeBusy {
			return err
		}
		select {
		case <-retry.C:
		case <-deadline.C:
			return err
		}
	}
}

// fold moves the write-ahead log into the file, so that the file alone is the
// whole store when nobody has it open. While another process reads or writes, it
// does not happen: the log stays, and nothing depends on it being gone.
func (c *writeConn) fold() {
	if _, err := c.conn.ExecContext(c.ctx, "PRAGMA busy_timeout=0"); err != nil {
		return
	}
	_, _ = c.conn.ExecContext(c.ctx, "PRAGMA wal_checkpoint(TRUNCATE)") // see above
}

// setSync chooses when commits sync, and reads the setting back.
func (c *writeConn) setSync(to Sync) error {
	want := int64(2)
	if to == Normal {
		want = 1
	}
	if _, err := c.conn.ExecContext(c.ctx, fmt.Sprintf("PRAGMA synchronous=%d", want)); err != nil {
		return err
	}
	var got int64
	if err := c.conn.QueryRowContext(c.ctx, "PRAGMA synchronous").Scan(&got); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the engine refused synchronous=%d (it is %d)", want, got)
	}
	c.cur = to
	return nil
}

// beginTx starts a transaction whose commit syncs if durable.
func (c *writeConn) beginTx(durable bool) error {
	want := Normal
	if durable {
		want = c.full
	}
	if c.cur != want {
		if err := c.setSync(want); err != nil {
			c.broken = true
			return err
		}
	}
	_, err := c.begin.ExecContext(c.ctx)
	return err
}

// commitTx ends the transaction. If that fails, it is rolled back.
func (c *writeConn) commitTx() error {
	_, err := c.commit.ExecContext(c.ctx)
	if err != nil {
		c.rollbackTx()
	}
	return err
}

// rollbackTx ends the transaction without a trace. The engine may have done so
// by itself, and then the statement fails; either way a connection whose state
// is not certain is replaced.
func (c *writeConn) rollbackTx() {
	if _, err := c.rollback.ExecContext(c.ctx); err != nil {
		c.broken = true
	}
}

// stmt returns the prepared statement of a text.
func (c *writeConn) stmt(text string) (*sql.Stmt, error) {
	if st, ok := c.stmts[text]; ok {
		return st, nil
	}
	st, err := c.conn.PrepareContext(c.ctx, text)
	if err != nil {
		return nil, err
	}
	c.stmts[text] = st
	return st, nil
}

// exec runs a statement and returns how many rows it changed.
func (c *writeConn) exec(text string, args ...any) (int64, error) {
	st, err := c.stmt(text)
	if err != nil {
		return 0, err
	}
	res, err := st.ExecContext(c.ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// row reads one row into dest and reports whether there was one.
func (c *writeConn) row(text string, args, dest []any) (bool, error) {
	st, err := c.stmt(text)
	if err != nil {
		return false, err
	}
	err = st.QueryRowContext(c.ctx, args...).Scan(dest...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// rows calls fn for each row of a query; scan reads the current one.
func (c *writeConn) rows(fn func(scan func(...any) error) error, text string, args ...any) (err error) {
	st, err := c.stmt(text)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(c.ctx, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// close closes the connection, whatever its state.
func (c *writeConn) close() error {
	if c.conn == nil {
		return c.db.Close()
	}
	for name, st := range map[string]*sql.Stmt{"begin": c.begin, "commit": c.commit, "rollback": c.rollback} {
		if st != nil {
			c.stmts[name] = st
		}
	}
	if c.broken {
		discard(c.conn, c.stmts)
		return c.db.Close()
	}
	closeStmts(c.stmts)
	return errors.Join(c.conn.Close(), c.db.Close())
}

// closeStmts ends the statements of a connection that is to be closed: the engine
// keeps its files open while there is one.
func closeStmts(stmts map[string]*sql.Stmt) {
	for _, st := range stmts {
		_ = st.Close() // it tells again what the statement's last run told
	}
	clear(stmts)
}

// discard makes the pool throw a connection away.
func discard(conn *sql.Conn, stmts map[string]*sql.Stmt) {
	closeStmts(stmts)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // the error is the request
}
