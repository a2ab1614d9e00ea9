package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// live returns a live session over a scripted store. It is ended, and must end
// without an error unless the test says otherwise, when the test ends.
func live(t *testing.T, f *fake, n session.New) (*session.Registry, *session.Session, func(context.Context) error) {
	t.Helper()
	reg := newRegistry(t, session.Config{Store: f, Now: time.Now})
	if n.ID == "" {
		n.ID = "s"
	}
	s := prepare(t, reg, n)
	return reg, s, enter(t, reg, s)
}

func end(t *testing.T, detach func(context.Context) error) {
	t.Helper()
	if err := detach(t.Context()); err != nil {
		t.Errorf("detach: %v", err)
	}
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func failing(op string, v verdict) func(string) verdict {
	return func(o string) verdict {
		if o == op {
			return v
		}
		return verdict{}
	}
}

// core D3: the first pending event arms one fixed window.
func TestWriteWindow_D3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, s, detach := live(t, f, session.New{})
		after(time.Hour)
		same(t, "nothing pending", f.written())
		mustAppend(t, s, say("a", ""))
		after(session.WriteDelay / 2)
		mustAppend(t, s, say("b", ""))
		after(session.WriteDelay/2 - 1)
		same(t, "before the window ends", f.written())
		after(1)
		same(t, "a later event does not move the window", f.written(), "create 0..2")
		mustAppend(t, s, say("c", ""))
		if s.Durable() != 2 || s.Head() != 3 {
			t.Errorf("durable %d, head %d", s.Durable(), s.Head())
		}
		after(session.WriteDelay)
		same(t, "the next window", f.written(), "create 0..2", "append 2..3")
		after(time.Hour)
		mustAppend(t, s, say("d", ""), say("e", ""))
		if err := s.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		same(t, "a flush goes at once", f.written(), "create 0..2", "append 2..3", "append 3..5")
		after(time.Hour)
		same(t, "and leaves nothing to do", f.written(), "create 0..2", "append 2..3", "append 3..5")
		if err := s.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if len(f.written()) != 3 {
			t.Error("an idle flush wrote")
		}
		end(t, detach)
		if f.row("s").held {
			t.Error("ownership was kept")
		}
	})
}

// core D3: what is appended during a write waits for its own window.
func TestSlowWrite_D3(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		gate := make(chan struct{})
		_, s, detach := live(t, f, session.New{})
		f.setHook(func(op string) verdict {
			if op == "create" {
				<-gate
			}
			return verdict{}
		})
		mustAppend(t, s, say("a", ""))
		after(session.WriteDelay)
		mustAppend(t, s, say("b", ""), say("c", ""))
		after(time.Hour)
		same(t, "one write at a time", f.written())

		// D4: a flush is a barrier over what was appended before it.
		flushed := make(chan error, 1)
		go func() { flushed <- s.Flush(t.Context()) }()
		impatient := errors.New("impatient")
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- s.Flush(ctx) }()
		synctest.Wait()
		cancel(impatient)
		if err := <-gone; !errors.Is(err, impatient) {
			t.Errorf("a caller that gave up: %v", err)
		}
		select {
		case err := <-flushed:
			t.Errorf("the flush did not wait: %v", err)
		default:
		}
		close(gate)
		if err := <-flushed; err != nil {
			t.Error(err)
		}
		same(t, "two writes", f.written(), "create 0..1", "append 1..3")
		mustAppend(t, s, say("d", ""))
		after(session.WriteDelay)
		same(t, "the window works on", f.written(), "create 0..1", "append 1..3", "append 3..4")
		end(t, detach)
	})
}

// core D4: a failed batch is kept, automatic retry pauses until a new event or a
// flush, and the flush's caller sees the error.
func TestFailedBatchIsKept_D4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, s, detach := live(t, f, session.New{})
		f.setHook(failing("create", verdict{skip: true, err: errDisk}))
		mustAppend(t, s, say("a", ""))
		after(session.WriteDelay)
		same(t, "the first attempt", f.written(), "create 0..1")
		after(time.Hour)
		same(t, "no attempt without a new event", f.written(), "create 0..1")
		if err := s.Flush(t.Context()); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "session s: storing events 0 to 0") {
			t.Errorf("flush: %v", err)
		}
		mustAppend(t, s, say("b", ""))
		after(session.WriteDelay)
		same(t, "a new event tries again, with the whole batch", f.written(), "create 0..1", "create 0..1", "create 0..2")
		if s.Durable() != 0 {
			t.Errorf("durable %d", s.Durable())
		}
		f.setHook(nil)
		if err := s.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if f.head("s") != 2 || s.Durable() != 2 {
			t.Errorf("stored %d, durable %d", f.head("s"), s.Durable())
		}

		// An event that came while the failing write was under way counts as new.
		gate := make(chan struct{})
		f.setHook(func(op string) verdict {
			if op == "append" {
				<-gate
				return verdict{skip: true, err: errDisk}
			}
			return verdict{}
		})
		mustAppend(t, s, say("c", ""))
		after(session.WriteDelay)
		mustAppend(t, s, say("d", ""))
		gate <- struct{}{}
		synctest.Wait()
		f.setHook(nil)
		after(session.WriteDelay)
		if f.head("s") != 4 {
			t.Errorf("stored %d of 4", f.head("s"))
		}
		end(t, detach)
	})
}

// A session that is lost while a write runs: what the write did decides, and if
// nobody can tell, the error says so, also later.
func TestLossDuringAWrite(t *testing.T) {
	for _, tc := range []struct {
		name    string
		write   verdict
		unknown bool
	}{
		{"stored", verdict{}, false},
		{"not stored", verdict{skip: true, err: &session.FencedError{ID: "s"}}, false},
		{"nobody knows", verdict{err: errDisk}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				_, s, detach := live(t, f, session.New{})
				mustAppend(t, s, say("a", ""))
				if err := s.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				gate := make(chan struct{})
				f.setHook(func(op string) verdict {
					switch op {
					case "append":
						<-gate
						return tc.write
					case "check", "head":
						return verdict{skip: true, err: &session.FencedError{ID: "s"}}
					}
					return verdict{}
				})
				mustAppend(t, s, say("b", ""))
				first, second := make(chan error, 1), make(chan error, 1)
				go func() { first <- s.Flush(t.Context()) }()
				synctest.Wait()
				if err := s.CheckOwner(t.Context()); err == nil {
					t.Error("the session is not lost")
				}
				go func() { second <- s.FlushTo(t.Context(), 2) }()
				synctest.Wait()
				if len(second) != 0 {
					t.Errorf("a flush said %v before the write was over", <-second)
				}
				close(gate)
				stored := tc.write.err == nil
				for _, err := range []error{<-first, <-second, s.Flush(t.Context())} {
					if stored != (err == nil) || tc.unknown != errors.Is(err, session.ErrUnknownOutcome) {
						t.Errorf("flush: %v", err)
					}
				}
				if err := detach(t.Context()); stored != (err == nil) {
					t.Errorf("detach: %v", err)
				}
			})
		})
	}
}

// design § 4, Accepted means durable: an unknown outcome is settled by reading the
// head back before any retry.
func TestUnknownOutcome(t *testing.T) {
	unknown := errors.New("connection lost")
	for _, tc := range []struct {
		name   string
		stored bool // the failing write took effect
		heads  int  // how many reads of the head fail
		fails  bool // whether the flush that wrote reports an error
	}{
		{"stored, and the head says so", true, 0, false},
		{"not stored, and the head says so", false, 0, true},
		{"stored, and the head is unknown at first", true, 1, true},
		{"not stored, and the head is unknown at first", false, 1, true},
	} {
		for _, op := range []string{"create", "append"} {
			t.Run(op+" "+tc.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					reg, s, detach := live(t, f, session.New{})
					var stored []string
					reg.AddHooks(session.Hooks{Stored: func(_ *session.Session, from, to int64) { stored = append(stored, fmt.Sprint(from, "..", to)) }})
					n := 0
					if op == "append" {
						mustAppend(t, s, say("first", ""))
						if err := s.Flush(t.Context()); err != nil {
							t.Fatal(err)
						}
						n = 1
					}
					failures, heads := 1, tc.heads
					f.setHook(func(o string) verdict {
						switch {
						case o == op && failures > 0:
							failures--
							return verdict{skip: !tc.stored, err: unknown}
						case (o == "head" || o == "exists") && heads > 0:
							heads--
							return verdict{err: errDisk}
						}
						return verdict{}
					})
					mustAppend(t, s, say("a", ""), say("b", ""))
					err := s.Flush(t.Context())
					if tc.fails != (err != nil) || err != nil && !errors.Is(err, unknown) {
						t.Fatalf("flush: %v", err)
					}
					if unsure := tc.heads > 0; unsure != errors.Is(err, errDisk) || unsure != errors.Is(err, session.ErrUnknownOutcome) {
						t.Errorf("the error does not say whether the outcome is unknown: %v", err)
					}
					mustAppend(t, s, say("c", ""))
					if err := s.Flush(t.Context()); err != nil {
						t.Fatalf("the next flush: %v", err)
					}
					row := f.row("s")
					if len(row.events) != n+3 {
						t.Errorf("%d events are stored", len(row.events))
					}
					for i, e := range row.events {
						if e.Seq != int64(i) {
							t.Errorf("event %d has seq %d", i, e.Seq)
						}
					}
					if last := stored[len(stored)-1]; !strings.HasSuffix(last, fmt.Sprint("..", n+3)) {
						t.Errorf("stored hooks %q", stored)
					}
					next := 0
					for _, r := range stored {
						var from, to int
						if _, err := fmt.Sscanf(r, "%d..%d", &from, &to); err != nil || from != next || to <= from {
							t.Errorf("stored hooks %q, %v", stored, err)
						}
						next = to
					}
					end(t, detach)
					if f.row("s").held {
						t.Error("ownership was kept")
					}
				})
			})
		}
	}
}

// A batch that turns out to be stored stays known as stored, even if what followed
// it in the same attempt failed.
func TestSettledBatchIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, s, detach := live(t, f, session.New{})
		mustAppend(t, s, say("a", ""))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		heads := 1
		f.setHook(func(op string) verdict {
			switch {
			case op == "append":
				return verdict{err: errDisk} // stored all the same
			case op == "head" && heads > 0:
				heads--
				return verdict{err: errDisk}
			}
			return verdict{}
		})
		mustAppend(t, s, say("b", ""))
		if err := s.Flush(t.Context()); err == nil {
			t.Fatal("flushed")
		}
		f.setHook(failing("append", verdict{skip: true, err: errDisk}))
		mustAppend(t, s, say("c", ""))
		if err := s.Flush(t.Context()); err == nil {
			t.Fatal("flushed")
		}
		if s.Durable() != 2 {
			t.Errorf("durable %d, want 2", s.Durable())
		}
		f.setHook(nil)
		if err := s.Flush(t.Context()); err != nil {
			t.Errorf("the store recovered: %v", err)
		}
		if f.head("s") != 3 {
			t.Errorf("stored %d of 3", f.head("s"))
		}
		end(t, detach)
	})
}

// design § 4, Ownership: a fenced session never writes again and says so once.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg, s, detach := live(t, f, session.New{})
		told := 0
		reg.AddHooks(session.Hooks{Fenced: func(got *session.Session) {
			told++
			if got != s {
				t.Error("another session was fenced")
			}
		}})
		mustAppend(t, s, say("a", ""))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.CheckOwner(t.Context()); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.rows["s"].fenced = true
		f.mu.Unlock()
		mustAppend(t, s, say("b", ""))
		after(session.WriteDelay)
		var fenced *session.FencedError
		if err := s.Flush(t.Context()); !errors.As(err, &fenced) {
			t.Errorf("flush: %v", err)
		}
		if err := s.CheckOwner(t.Context()); !errors.As(err, &fenced) {
			t.Errorf("check: %v", err)
		}
		mustAppend(t, s, say("c", ""))
		after(time.Hour)
		if n := f.count("append"); n != 1 || told != 1 {
			t.Errorf("%d appends, told %d times", n, told)
		}
		if err := detach(t.Context()); !errors.As(err, &fenced) {
			t.Errorf("detach: %v", err)
		}
		if f.row("s").held {
			t.Error("the writer was not closed")
		}
	})
}

// design § 4: a deferred session leaves nothing behind until it is established.
func TestDeferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg, s, detach := live(t, f, session.New{Deferred: true})
		mustAppend(t, s, say("a", ""))
		after(time.Hour)
		if took, err := reg.Flush(t.Context(), s); err != nil || !took {
			t.Errorf("flush: %v, %v", took, err)
		}
		if err := s.Wait(t.Context(), 0, true); err != nil {
			t.Errorf("wait: %v", err)
		}
		if !s.Deferred() || s.Durable() != s.Head() || f.row("s") != nil || len(f.written()) != 0 {
			t.Error("something of a deferred session was stored")
		}
		// A refused hold does not establish it.
		if _, err := s.AppendEstablish(drafts(&session.TurnEnd{Turn: 1})...); err == nil || !s.Deferred() {
			t.Errorf("established by a refused hold: %v", err)
		}
		if _, err := s.AppendEstablish(drafts(say("b", ""), say("c", ""))...); err != nil {
			t.Fatal(err)
		}
		if s.Deferred() || s.Durable() != 0 {
			t.Errorf("durable %d", s.Durable())
		}
		mustAppend(t, s, say("d", ""))
		after(session.WriteDelay)
		same(t, "the whole of it in one batch", f.written(), "create 0..4")
		end(t, detach)

		// Never established: nothing at all.
		_, never, leave := live(t, newFake(), session.New{ID: "never", Deferred: true})
		mustAppend(t, never, say("a", ""))
		end(t, leave)
		if n := len(f.written()); n != 1 {
			t.Errorf("%d writes", n)
		}
	})
}

// design § 4: a stored heir names its prefix, whose owner is flushed first.
func TestStoredPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg, parent, detach := live(t, f, session.New{ID: "parent"})
		mustAppend(t, parent, script(t, "u T1 t1 u")...)
		heir := session.New{ID: "child", Root: "parent", Seed: &session.Seed{Prefix: parent.Prefix()}}
		f.setHook(failing("create", verdict{skip: true, err: errDisk}))
		if _, err := reg.Prepare(t.Context(), heir); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "seed") {
			t.Errorf("prepared while the parent cannot be stored: %v", err)
		}
		f.setHook(nil)
		child := prepare(t, reg, heir)
		if parent.Durable() != 4 {
			t.Errorf("the creator left the parent stored to %d", parent.Durable())
		}
		leave := enter(t, reg, child)
		if err := child.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		row := f.row("child")
		if row.meta != (session.Meta{Root: "parent", Prefix: session.PrefixRef{ID: "parent", Len: 3}}) || len(row.events) != 4 {
			t.Errorf("meta %+v, %d events", row.meta, len(row.events))
		}
		same(t, "only its own events", f.written(), "create 0..4", "create 0..4", "create 3..4")

		// Nobody stores what an owner that nothing is stored of inherited as raw events.
		other, unborn, leaveUnborn := live(t, newFake(), session.New{ID: "unborn", Deferred: true})
		mustAppend(t, unborn, script(t, "u T1 t1")...)
		if _, err := other.Prepare(t.Context(), session.New{ID: "heir", Seed: &session.Seed{Prefix: unborn.Prefix()}}); err == nil || !strings.Contains(err.Error(), "unborn") {
			t.Errorf("an heir of a session of which nothing is stored: %v", err)
		}
		end(t, leaveUnborn)

		raw := prepare(t, reg, session.New{ID: "raw", Deferred: true, Seed: &session.Seed{Events: rawEvents(t, parent)[:3]}})
		quit := enter(t, reg, raw)
		if _, err := reg.Prepare(t.Context(), session.New{Seed: &session.Seed{Prefix: raw.Prefix()}}); err == nil || !strings.Contains(err.Error(), "raw") {
			t.Errorf("prepared on a session that is not stored: %v", err)
		}
		end(t, quit)
		gone := prepare(t, reg, session.New{ID: "orphan", Seed: &session.Seed{Prefix: raw.Prefix()}})
		vanish := enter(t, reg, gone)
		var missing *session.PrefixError
		if err := gone.Flush(t.Context()); !errors.As(err, &missing) {
			t.Errorf("an owner that is gone and was never stored: %v", err)
		}
		if err := vanish(t.Context()); !errors.As(err, &missing) {
			t.Errorf("its end: %v", err)
		}
		end(t, leave)
		end(t, detach)
		back, err := reg.PrepareStored(t.Context(), "child")
		if err != nil {
			t.Fatal(err)
		}
		if back.Header().SeedLength != 3 || back.FirstLive() != 4 || back.Head() != 4 {
			t.Errorf("S24: seedLength %d, firstLive %d, head %d", back.Header().SeedLength, back.FirstLive(), back.Head())
		}
		if err := reg.Abandon(t.Context(), back); err != nil {
			t.Error(err)
		}
	})
}

// tally is a cell that counts its session's own events.
type tally struct {
	n, taken int
	untaken  int
}

func (c *tally) Apply(*session.Event) { c.n++ }
func (c *tally) Take(head int64) []session.Checkpoint {
	c.taken++
	return []session.Checkpoint{{Key: "n", Version: 1, Seq: head - 1, Value: fmt.Append(nil, c.n)}}
}
func (c *tally) Untake() { c.untaken++ }

// core D25, D28, D29: cells travel with the batch whose events they count, see
// own events only, and are given back when the batch failed.
func TestCellsTravelWithTheBatch_D29(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		cells := map[session.ID]*tally{}
		reg := newRegistry(t, session.Config{Store: f, NewCells: func(h *session.Header) session.Cells {
			cells[h.ID] = &tally{}
			return cells[h.ID]
		}})
		s := prepare(t, reg, session.New{ID: "s"})
		detach := enter(t, reg, s)
		mustAppend(t, s, script(t, "T1 t1")...)
		f.setHook(failing("create", verdict{skip: true, err: errDisk}))
		if err := s.Flush(t.Context()); err == nil {
			t.Fatal("flushed")
		}
		f.setHook(nil)
		mustAppend(t, s, say("a", ""))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := f.row("s").cells
		if len(got) != 1 || got[0].Seq != 2 || string(got[0].Value) != "3" {
			t.Errorf("cells %+v", got)
		}
		if c := cells["s"]; c.taken != 2 || c.untaken != 1 {
			t.Errorf("taken %d times, given back %d times", c.taken, c.untaken)
		}
		child := prepare(t, reg, session.New{ID: "child", Seed: &session.Seed{Prefix: s.Prefix()}})
		if n := cells["child"].n; n != 1 { // the marker
			t.Errorf("the child's cell counts %d events", n)
		}
		if err := reg.Abandon(t.Context(), child); err != nil {
			t.Error(err)
		}
		end(t, detach)
		back, err := reg.PrepareStored(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		if n := cells["s"].n; n != 4 {
			t.Errorf("the reopened session's cell counts %d events", n)
		}
		if err := reg.Abandon(t.Context(), back); err != nil {
			t.Error(err)
		}
	})
}

// Session.Wait: the head, the durable head, the end of the session, the caller's.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, s, detach := live(t, f, session.New{})
		wait := func(seq int64, stored bool) chan error {
			ch := make(chan error, 1)
			go func() { ch <- s.Wait(t.Context(), seq, stored) }()
			synctest.Wait()
			return ch
		}
		done := func(ch chan error) bool {
			synctest.Wait()
			return len(ch) == 1
		}
		head, durable, beyond := wait(0, false), wait(0, true), wait(1, false)
		mustAppend(t, s, say("a", ""))
		if !done(head) || done(durable) || done(beyond) {
			t.Errorf("after an append: head %v, durable %v, beyond %v", done(head), done(durable), done(beyond))
		}
		after(session.WriteDelay)
		if !done(durable) || done(beyond) {
			t.Errorf("after the write: durable %v, beyond %v", done(durable), done(beyond))
		}
		impatient := errors.New("impatient")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(impatient)
		if err := s.Wait(ctx, 9, false); !errors.Is(err, impatient) {
			t.Errorf("cancelled: %v", err)
		}
		end(t, detach)
		if err := errors.Join(<-head, <-durable); err != nil {
			t.Error(err)
		}
		if err := <-beyond; !errors.Is(err, session.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// core D6: every caller of detach gets the same result, and the last batch's
// failure is not swallowed.
func TestDetachIsMemoised_D6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		gate := make(chan struct{})
		_, s, detach := live(t, f, session.New{})
		f.setHook(func(op string) verdict {
			if op == "create" {
				<-gate
				return verdict{skip: true, err: errDisk}
			}
			return verdict{}
		})
		mustAppend(t, s, say("a", ""))
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // its end does not matter
		results := make(chan error, 3)
		for range 3 {
			go func() { results <- detach(ctx) }()
		}
		synctest.Wait()
		if len(results) != 0 {
			t.Error("a caller did not wait for the last batch")
		}
		close(gate)
		for range 3 {
			if err := <-results; !errors.Is(err, errDisk) {
				t.Errorf("detach: %v", err)
			}
		}
		if n := f.count("create"); n != 1 {
			t.Errorf("%d attempts", n)
		}
	})
}
