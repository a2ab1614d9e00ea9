package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

const (
	sqlRenew = `INSERT INTO owners(id, host, pid, started, socket, heartbeat, uptime) VALUES(?,?,?,?,?,?,?)
		ON CONFLICT(id) DO UPDATE SET heartbeat=excluded.heartbeat, uptime=excluded.uptime`
	sqlOwners    = `SELECT id, host, pid, started, socket, heartbeat, uptime FROM owners`
	sqlOldOwners = `SELECT id, host, pid, started, socket, heartbeat, 0 FROM owners`
	// The index on owner holds only sessions that have one, so each condition on it
	// says so: without that the engine reads every session there is.
	//
	// Owners without sessions, which only crashed processes leave behind.
	sqlIdleOwners = sqlOwners + ` WHERE id<>? AND NOT EXISTS(SELECT 1 FROM sessions WHERE owner=owners.id AND owner>'')`
	sqlDropOwner  = `DELETE FROM owners WHERE id=?`
	sqlOthers     = sqlOwners + ` WHERE id<>? AND EXISTS(SELECT 1 FROM sessions WHERE owner=owners.id AND owner>'' AND root=?)`
	sqlOwn        = `SELECT num, epoch FROM sessions WHERE owner=? AND owner>''`
	sqlFence      = `UPDATE sessions SET owner='', epoch=epoch+1 WHERE owner=? AND owner>'' AND root=?`
	sqlRelease    = `UPDATE sessions SET owner='' WHERE num=? AND owner=? AND epoch=?`
	sqlReleaseAll = `UPDATE sessions SET owner='' WHERE owner=? AND owner>''`
)

// beatDue reports whether the owner row should be renewed: at half the interval
// already, so that two heartbeats never lie further apart than one and a half. A
// transaction that happens anyway renews in time even where the interval is too
// long.
func (s *Store) beatDue(now time.Time) bool {
	last := s.lastBeat.Load()
	return last == nil || elapsed(*last, now) >= min(s.opt.Heartbeat, s.opt.TakeoverAge/3)/2
}

// owning reports whether the owner's own deadline has not passed.
func (s *Store) owning(now time.Time) bool {
	last := s.lastBeat.Load()
	return last != nil && elapsed(*last, now) < s.opt.TakeoverAge*2/3
}

// elapsed is the longer of what the two clocks say: the monotonic one stands
// still while the machine sleeps, the other one, which takers compare, can be
// set. A wall clock that went back tells nothing and counts as long.
func elapsed(since, now time.Time) time.Duration {
	mono, wall := now.Sub(since), now.Round(0).Sub(since.Round(0))
	if wall < 0 {
		return 1<<63 - 1
	}
	return max(mono, wall)
}

// renew stores a heartbeat and looks whether every session held is still owned.
// It must come before anything else in its transaction.
func (t *tx) renew() error {
	o := &t.s.owner
	if _, err := t.exec(sqlRenew, o.ID, o.Host, o.PID, o.Started, o.Socket, t.now.UnixMilli(), t.s.opt.uptime().Milliseconds()); err != nil {
		return err
	}
	t.beat = true
	if t.s.lastBeat.Load() == nil {
		if err := t.dropDeadOwners(); err != nil {
			return err
		}
	}
	return t.verifyHeld()
}

// verifyHeld finds the sessions that were taken while this process was paused, and
// gives up those that bear its name although nobody here works on them: what a
// failed Close left, or a Create or Open whose outcome was unknown.
func (t *tx) verifyHeld() error {
	epochs := make(map[int64]int64, len(t.s.held))
	err := t.rows(func(scan func(...any) error) error {
		var num, epoch int64
		err := scan(&num, &epoch)
		epochs[num] = epoch
		return err
	}, sqlOwn, t.s.owner.ID)
	for num, w := range t.s.held {
		if epoch, ok := epochs[num]; !ok || epoch != w.epoch {
			t.fenced = append(t.fenced, w)
		}
	}
	for num, epoch := range epochs {
		if err != nil {
			return err
		}
		if t.user(num) == nil {
			_, err = t.exec(sqlRelease, num, t.s.owner.ID, epoch)
			t.hold(num, nil)
		}
	}
	return err
}

func (t *tx) dropDeadOwners() error {
	owners, err := t.owners(sqlIdleOwners, t.s.owner.ID)
	for _, o := range owners {
		if err == nil && !t.s.alive(o, t.now) {
			_, err = t.exec(sqlDropOwner, o.ID)
		}
	}
	return err
}

// ownerRow is an owner as it stands in the table.
type ownerRow struct {
	session.Owner
	// uptime is how long its host was up at the heartbeat; 0 is not known.
	uptime time.Duration
}

func (t *tx) owners(text string, args ...any) (owners []ownerRow, err error) {
	err = t.rows(func(scan func(...any) error) error {
		o, err := scanOwner(scan)
		owners = append(owners, o)
		return err
	}, text, args...)
	return owners, err
}

func scanOwner(scan func(...any) error) (ownerRow, error) {
	var o ownerRow
	var ms, up int64
	err := scan(&o.ID, &o.Host, &o.PID, &o.Started, &o.Socket, &ms, &up)
	o.Heartbeat, o.uptime = time.UnixMilli(ms), time.Duration(up)*time.Millisecond
	return o, err
}

// alive reports whether an owner still counts: dead at once if its process on
// this host is gone, a zombie or another one by now; otherwise dead when its
// heartbeat is as old as the take-over age. On one host that age is told by how long
// the host is up: setting the clock takes nothing from an owner that lives. Elsewhere
// the clock has to do; a heartbeat in its future says that it was set, and counts as
// old too. A live owner renews.
func (s *Store) alive(o ownerRow, now time.Time) bool {
	if o.ID == s.owner.ID {
		return true
	}
	if o.Host == s.owner.Host {
		if gone(o.PID, o.Started) {
			return false
		}
		if up := s.opt.uptime(); up > 0 && o.uptime > 0 && up >= o.uptime-time.Second {
			return up-o.uptime < s.opt.TakeoverAge
		}
	}
	return now.Sub(o.Heartbeat).Abs() < s.opt.TakeoverAge
}

// claimTree makes sure that no other live process owns a session of a tree. It
// takes the tree from dead ones: the epoch of each session that they held goes
// up, so that they can append to none of them.
func (t *tx) claimTree(id, root session.ID) (refusal, failure error) {
	owners, err := t.owners(sqlOthers, t.s.owner.ID, string(root))
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		if t.s.alive(o, t.now) {
			return &session.OwnedError{ID: id, Owner: o.Owner}, nil
		}
	}
	for _, o := range owners {
		if _, err := t.exec(sqlFence, o.ID, string(root)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// renewOp renews the owner row. The transaction does that before it runs
// anything, if another one has not done it meanwhile, so nothing is left to do.
type renewOp struct{}

func (renewOp) run(*tx) (refusal, failure error) { return nil, nil }

// settle makes sure that what readers see is what a crash would leave. A commit that
// failed at its sync may lie in the write-ahead log as a whole: no reader counts it,
// but the recovery after a crash would. The next commit that succeeds overwrites it;
// if there is none, the outcome stays unknown, and the error says why.
func (s *Store) settle(ctx context.Context) error {
	if !s.doubt.Load() {
		return nil
	}
	return s.submit(ctx, "settle a failed write", &request{op: beatOp{}, durable: true})
}

// beatOp stores a heartbeat, due or not: the least that a transaction can write.
type beatOp struct{}

func (beatOp) run(t *tx) (refusal, failure error) {
	if t.beat {
		return nil, nil // this transaction has one already
	}
	return nil, t.renew()
}

// check implements Writer.Check above the queue.
func (s *Store) check(ctx context.Context, w *Writer) error {
	if !s.owning(s.opt.Now()) {
		if err := s.submit(ctx, fmt.Sprintf("renew ownership of session %s", w.id), &request{op: renewOp{}, owns: true}); err != nil {
			return err
		}
	}
	return w.usable()
}

// releaseAll gives up everything at the end. The worker has ended.
func (s *Store) releaseAll() error {
	if s.write == nil || s.write.broken {
		if err := s.reopen(); err != nil {
			return err
		}
	}
	c := s.write
	if err := c.beginTx(false); err != nil {
		return err
	}
	_, err := c.exec(sqlReleaseAll, s.owner.ID)
	if err == nil {
		_, err = c.exec(sqlDropOwner, s.owner.ID)
	}
	if err != nil {
		c.rollbackTx()
		return err
	}
	if err := c.commitTx(); err != nil {
		return err
	}
	s.unsynced.Add(1)
	return nil
}
