package sqlite_test

import (
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// clocked opens a file twice, as two processes would, on a host whose wall clock is off
// by shift and that has been up for up, an hour at first.
func clocked(t *testing.T, shift, up *atomic.Int64) (a, b *sqlite.Store) {
	t.Helper()
	path := newPath(t)
	up.Store(int64(time.Hour))
	o := sqlite.Options{
		Synchronous: sqlite.Normal, Heartbeat: time.Hour,
		Now: func() time.Time { return time.Now().Add(time.Duration(shift.Load())) },
	}.WithUptime(func() time.Duration { return time.Duration(up.Load()) })
	return mustOpen(t, path, o), mustOpen(t, path, o)
}

// The wall clock of the machine is set by hours, forward and back, while a process
// holds a session: nobody can take it, and it goes on. Only when the machine itself
// has been up for the take-over age without a heartbeat may another have it, and
// then the owner is fenced out, wherever the wall clock stands (design § 4, Ownership).
func TestClockStepTakesNothing(t *testing.T) {
	var shift, up atomic.Int64
	a, b := clocked(t, &shift, &up)
	w := create(t, a, "s", 1)
	head := int64(1)
	for _, step := range []time.Duration{3 * time.Hour, -9 * time.Hour, 365 * 24 * time.Hour, 0, -16 * time.Second, 16 * time.Second} {
		shift.Store(int64(step))
		var owned *session.OwnedError
		if _, err := b.Open(t.Context(), "s"); !errors.As(err, &owned) {
			t.Errorf("after a step of %v another process has it: %v", step, err)
		}
		if err := b.Delete(t.Context(), "s"); !errors.Is(err, session.ErrInUse) {
			t.Errorf("after a step of %v: delete: %v", step, err)
		}
		if rec, _, err := b.Inspect(t.Context(), "s"); err != nil || !rec.Live {
			t.Errorf("after a step of %v: live %v, %v", step, rec.Live, err)
		}
		if err := errors.Join(w.Check(t.Context()), w.Append(t.Context(), head, events(head, 1, 0), nil)); err != nil {
			t.Errorf("after a step of %v the owner cannot go on: %v", step, err)
		}
		head++
	}
	up.Add(int64(14 * time.Second))
	var owned *session.OwnedError
	if _, err := b.Open(t.Context(), "s"); !errors.As(err, &owned) {
		t.Errorf("before the take-over age: %v", err)
	}
	shift.Store(int64(-5 * time.Hour))
	up.Add(int64(2 * time.Second))
	taken, err := b.Open(t.Context(), "s")
	if err != nil {
		t.Fatalf("after 16 s without a heartbeat: %v", err)
	}
	var fenced *session.FencedError
	if err := w.Append(t.Context(), head, events(head, 1, 0), nil); !errors.As(err, &fenced) {
		t.Errorf("append by the former owner: %v", err)
	}
	if err := taken.Append(t.Context(), head, events(head, 1, 0), nil); err != nil {
		t.Error(err)
	}
	if n := length(t, b, "s"); n != head+1 {
		t.Errorf("%d events, want %d", n, head+1)
	}
}

// How long the host was up is stored with every heartbeat, so that an owner that lives
// for long does not look old; and it decides only where it can: a host that was started
// again since, or that does not tell, leaves it to the clock (design § 4, Ownership).
func TestUptimeOfAnOwner(t *testing.T) {
	var shift, up atomic.Int64
	a, b := clocked(t, &shift, &up)
	w := create(t, a, "s", 1)
	for head := range int64(3) {
		up.Add(int64(10 * time.Second))
		a.Age(8 * time.Second)
		if err := w.Append(t.Context(), 1+head, events(1+head, 1, 0), nil); err != nil {
			t.Fatal(err)
		}
	}
	last := up.Load()
	for _, step := range []struct {
		name      string
		up, shift time.Duration
		live      bool
	}{
		{"as it was", time.Duration(last), 0, true},
		{"the clock alone went on", time.Duration(last), time.Hour, true},
		{"measured a little earlier", time.Duration(last) - time.Second/2, time.Hour, true},
		{"the host alone went on", time.Duration(last) + 16*time.Second, 0, false},
		{"started again, just now", 5 * time.Second, 0, true},
		{"started again, long ago", 5 * time.Second, time.Hour, false},
		{"not told, just now", 0, 0, true},
		{"not told, long ago", 0, time.Hour, false},
	} {
		up.Store(int64(step.up))
		shift.Store(int64(step.shift))
		if rec, _, err := b.Inspect(t.Context(), "s"); err != nil || rec.Live != step.live {
			t.Errorf("%s: live %v, %v; want %v", step.name, rec.Live, err, step.live)
		}
	}
}

// A file of the time before owners told how long their host was up can be read as
// it is and is brought up to date by who writes.
func TestOlderOwnerTable(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, normal)
	if err := create(t, s, "s", 2).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	change(t, path, `ALTER TABLE owners DROP COLUMN uptime`)
	ro, err := sqlite.OpenReadOnly(t.Context(), path, normal)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := ro.List(t.Context(), session.Filter{}, session.Page{}); err != nil || len(l.Records) != 1 {
		t.Errorf("list: %d records, %v", len(l.Records), err)
	}
	if n := length(t, ro, "s"); n != 2 {
		t.Errorf("%d events", n)
	}
	w, err := mustOpen(t, path, normal).Open(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(t.Context(), 2, events(2, 1, 0), nil); err != nil {
		t.Error(err)
	}
	// The reader from before goes on, and so does a build that knows no such column.
	if rec, _, err := ro.Inspect(t.Context(), "s"); err != nil || rec.Owner == nil || !rec.Live {
		t.Errorf("inspect: %+v, %v", rec, err)
	}
	if err := ro.Close(t.Context()); err != nil {
		t.Error(err)
	}
	raw(t, path, func(db *sql.DB) error {
		_, err := db.ExecContext(t.Context(), `INSERT INTO owners(id, host, pid, started, socket, heartbeat) VALUES('old','h',1,'','',1)`)
		return err
	})
}

// Checkpoints alone are no work of a session: the time of its last write stays.
func TestCheckpointsAloneKeepTheTime(t *testing.T) {
	var shift, up atomic.Int64
	a, _ := clocked(t, &shift, &up)
	w := create(t, a, "s", 1)
	updated := func() int64 {
		rec, _, err := a.Inspect(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		return rec.UpdatedAt
	}
	first := updated()
	for _, key := range []string{"other", session.CellTitle} { // in a table of its own, and in a column
		shift.Add(int64(time.Hour))
		if err := w.Append(t.Context(), 1, nil, []session.Checkpoint{{Key: key, Version: 1, Seq: 0, Value: []byte("null")}}); err != nil {
			t.Fatal(err)
		}
		if now := updated(); now != first {
			t.Errorf("%s moved it from %d to %d", key, first, now)
		}
	}
	if err := w.Append(t.Context(), 1, events(1, 1, 0), nil); err != nil {
		t.Fatal(err)
	}
	if now := updated(); now < first+2*time.Hour.Milliseconds() {
		t.Errorf("an event moved it from %d to %d", first, now)
	}
}
