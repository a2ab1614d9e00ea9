package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// Age makes this process believe that its last heartbeat lies d in the past.
func (s *Store) Age(d time.Duration) {
	t := s.opt.Now().Add(-d)
	s.lastBeat.Store(&t)
}

// WithUptime returns the options with a clock of the host that a test moves.
func (o Options) WithUptime(fn func() time.Duration) Options {
	o.uptime = fn
	return o
}

// Synchronous reads the setting in force on the write connection. Only a store
// that is at rest may be asked.
func (s *Store) Synchronous() (n int, err error) {
	_, err = s.write.row("PRAGMA synchronous", nil, []any{&n})
	return n, err
}

// BreakWriter makes the store believe that the state of its write connection is
// unknown. Only a store that is at rest may be told.
func (s *Store) BreakWriter() { s.write.broken = true }

// Waiting returns how many requests wait in the queue.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// Place looks for what the columns of a row tell of a header.
func (s *Store) Place(ctx context.Context, num int64, h *session.Header) error {
	return s.read(ctx, func(inner context.Context, c *readConn) error { return place(inner, c, num, h) })
}

// HostUptime is how long the host is up.
func HostUptime() time.Duration { return hostUptime() }

// Plans returns what the engine does for the statements whose cost must not grow
// with the number of stored sessions.
func (s *Store) Plans(ctx context.Context) (map[string]string, error) {
	texts := map[string]string{
		"renew": sqlRenew, "idle owners": sqlIdleOwners, "drop owner": sqlDropOwner, "others": sqlOthers, "own": sqlOwn,
		"fence": sqlFence, "release": sqlRelease, "release all": sqlReleaseAll,
		"exists": sqlExists, "key": sqlKey, "fence1": sqlFence1, "prefix of": sqlPrefixOf, "take": sqlTake, "append": sqlAppend, "append cell": sqlAppendCell,
		"doomed": sqlDoomed, "held": sqlHeld, "has heir": sqlHasHeir, "has child": sqlHasChild, "own in tree": sqlOwnInTree, "heir": sqlHeir, "inherit": sqlInherit, "refer": sqlRefer, "move": sqlMove, "straddle": sqlStraddle, "cut": sqlCut,
		"head": sqlHead, "link": sqlLink, "cells": sqlCells, "events": sqlEvents, "record": recordQuery(fieldSep, "''", "id"), "child": recordQuery(fieldSep, sqlChild, "num"), "place": sqlPlace,
		"delete batches": `DELETE FROM batches WHERE session=?`, "delete checkpoints": `DELETE FROM checkpoints WHERE session=?`, "delete session": `DELETE FROM sessions WHERE num=?`,
	}
	for name, f := range map[string]session.Filter{
		"list all": {}, "list top": {Top: true}, "list children": {Parent: "p"}, "list tree": {Root: "r"}, "list folder": {Top: true, Cwd: "/"},
		"find": {IDPrefix: "a"}, "find top": {IDPrefix: "a", Top: true}, "find in tree": {IDPrefix: "a", Root: "r"},
		"list subagents": {Parent: "p", Origin: session.OriginSubagent}, "several parents": {Parents: []session.ID{"p", "q"}},
	} {
		for _, newest := range []bool{false, true} {
			for _, after := range []string{"", "1:a"} {
				for _, children := range []bool{false, true} {
					text, _, err := listQuery(f, session.Page{Newest: newest, After: after, Children: children}, 10)
					if err != nil {
						return nil, err
					}
					texts[fmt.Sprintf("%s, newest %v, after %q, with children %v", name, newest, after, children)] = text
				}
			}
		}
	}
	plans := map[string]string{}
	for name, text := range texts {
		var plan []string
		rows, err := s.write.conn.QueryContext(ctx, "EXPLAIN QUERY PLAN "+text, make([]any, strings.Count(text, "?"))...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				return nil, err
			}
			plan = append(plan, detail)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
		plans[name] = strings.Join(plan, "; ")
	}
	return plans, nil
}

// Blob is what a batch is read into.
type Blob = blob
