package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strconv"
	"time"

	driver "modernc.org/sqlite"
)

// The file's marks. applicationID is "OfSh"; there are no migrations between versions yet, so any
// other version is refused (core D20).
const (
	applicationID = 0x4f665368
	schemaVersion = 1
)

// schema. Numbers of sessions are never used twice (AUTOINCREMENT): a writer or
// a reader that holds a number means that one session for ever.
//
// parent is the header's parentSession where that makes the session somebody's child:
// it is empty for the root of a tree, whatever the header names.
//
// There is no index on origin: nearly all sessions share one. The index on cwd
// covers sessions without a parent, which is what people look up by folder; the
// one on owner holds only sessions that a process has open.
const schema = `
CREATE TABLE owners(
  id        TEXT PRIMARY KEY,
  host      TEXT NOT NULL,
  pid       INTEGER NOT NULL,
  started   TEXT NOT NULL,
  socket    TEXT NOT NULL,
  heartbeat INTEGER NOT NULL,
  uptime    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE sessions(
  num         INTEGER PRIMARY KEY AUTOINCREMENT,
  id          TEXT NOT NULL UNIQUE,
  header      BLOB NOT NULL,
  created_at  INTEGER NOT NULL,
  parent      TEXT NOT NULL,
  root        TEXT NOT NULL,
  origin      TEXT NOT NULL,
  cwd         TEXT NOT NULL,
  prefix_id   TEXT NOT NULL,
  prefix_len  INTEGER NOT NULL,
  head        INTEGER NOT NULL,
  owner       TEXT NOT NULL,
  epoch       INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  cp_identity BLOB,
  cp_usage    BLOB,
  cp_title    BLOB,
  cp_state    BLOB,
  state       TEXT NOT NULL
) STRICT;
CREATE INDEX sessions_created ON sessions(created_at, id);
CREATE INDEX sessions_parent ON sessions(parent, created_at, id);
CREATE INDEX sessions_root ON sessions(root, created_at, id);
CREATE INDEX sessions_cwd ON sessions(cwd, created_at, id) WHERE parent = '';
CREATE INDEX sessions_owner ON sessions(owner, root) WHERE owner > '';
CREATE INDEX sessions_prefix ON sessions(prefix_id) WHERE prefix_id > '';
CREATE TABLE batches(
  session   INTEGER NOT NULL,
  first_seq INTEGER NOT NULL,
  count     INTEGER NOT NULL,
  data      BLOB NOT NULL,
  UNIQUE(session, first_seq)
) STRICT;
CREATE TABLE checkpoints(
  session INTEGER NOT NULL,
  key     TEXT NOT NULL,
  version INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  value   BLOB NOT NULL,
  PRIMARY KEY(session, key)
) STRICT, WITHOUT ROWID;
`

func pragmas(busy time.Duration, more ...string) url.Values {
	return url.Values{
		"_pragma":    append([]string{"busy_timeout(" + strconv.FormatInt(busy.Milliseconds(), 10) + ")", "trusted_schema(0)"}, more...),
		"_defensive": {"1"},
		"_dqs":       {"0"},
	}
}

// openDB makes a handle whose connections are made on demand.
func openDB(dsn string) (*sql.DB, error) {
	connector, err := driver.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// initialise makes the tables in a new file, or checks those of an existing one.
// It runs inside an immediate transaction, since two processes may find the same
// new file.
func initialise(ctx context.Context, conn *sql.Conn, path string) (err error) {
	// A look first: opening an existing store takes no lock.
	fresh, err := isFresh(ctx, conn)
	if err != nil {
		return err
	}
	if !fresh {
		if err := verifyFormat(ctx, conn, path); err != nil {
			return err
		}
		return addUptime(ctx, conn)
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if fresh, err = isFresh(ctx, conn); err == nil && fresh {
		_, err = conn.ExecContext(ctx, schema+
			fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d;", applicationID, schemaVersion))
	}
	if err != nil {
		_, _ = conn.ExecContext(ctx, "ROLLBACK") // the connection is closed on this path anyway
		return err
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	return verifyFormat(ctx, conn, path)
}

// addUptime brings a file up to date that was made when owners had no uptime. Builds
// of that time go on working with it, so its version stays.
func addUptime(ctx context.Context, conn *sql.Conn) error {
	has, err := hasUptime(ctx, conn)
	if err != nil || has {
		return err
	}
	_, err = conn.ExecContext(ctx, "ALTER TABLE owners ADD COLUMN uptime INTEGER NOT NULL DEFAULT 0")
	if err != nil {
		// Another process may have done the same meanwhile.
		if has, again := hasUptime(ctx, conn); again == nil && has {
			return nil
		}
	}
	return err
}

func hasUptime(ctx context.Context, conn *sql.Conn) (has bool, err error) {
	err = conn.QueryRowContext(ctx, "SELECT count(*) FROM pragma_table_info('owners') WHERE name='uptime'").Scan(&has)
	return has, err
}

// isFresh reports whether the file is still empty of everything.
func isFresh(ctx context.Context, conn *sql.Conn) (bool, error) {
	var app, version, tables int64
	err := conn.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&app, &version, &tables)
	return app == 0 && version == 0 && tables == 0, err
}

// verifyFormat checks the file's marks.
func verifyFormat(ctx context.Context, conn *sql.Conn, path string) error {
	var app, version int64
	if err := conn.QueryRowContext(ctx, "PRAGMA application_id").Scan(&app); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch {
	case app != applicationID:
		return &FormatError{Path: path, Msg: fmt.Sprintf("not an Offshoot store (application id %#x)", app)}
	case version > schemaVersion:
		return &FormatError{Path: path, Msg: fmt.Sprintf("version %d was written by a newer build (this one reads %d)", version, schemaVersion)}
	case version != schemaVersion:
		return &FormatError{Path: path, Msg: fmt.Sprintf("version %d has no migration path to %d", version, schemaVersion)}
	}
	return nil
}
