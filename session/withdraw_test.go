package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
)

func established(t *testing.T, s *session.Session) {
	t.Helper()
	prompt := insert(session.NextTurn, 0, fmt.Sprintf("prompt-%d", s.Head()))
	if _, err := s.AppendEstablish(drafts(prompt)...); err != nil {
		t.Fatal(err)
	}
}

// silent checks that a withdrawn session stores nothing more and says so.
func silent(t *testing.T, s *session.Session) {
	t.Helper()
	mustAppend(t, s, say(fmt.Sprintf("late-%d", s.Head()), "x"))
	if err := s.FlushTo(t.Context(), s.Head()); !errors.Is(err, session.ErrWithdrawn) || !strings.Contains(err.Error(), string(s.ID())) {
		t.Errorf("flush to the head: %v", err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Errorf("flush: %v", err)
	}
	if err := s.CheckOwner(t.Context()); !errors.Is(err, session.ErrWithdrawn) {
		t.Errorf("check the owner: %v", err)
	}
	if err := s.Wait(t.Context(), s.Head()-1, true); !errors.Is(err, session.ErrWithdrawn) {
		t.Errorf("wait for what is never stored: %v", err)
	}
	if n := s.Durable(); n != s.Meta().Prefix.Len {
		t.Errorf("%d events count as stored", n)
	}
	after(time.Hour)
}

// seam RB-19: a creation that failed after its row was made leaves no row, and nothing
// of it is written again; the rest of the tree goes on, and the id is free.
func TestWithdraw_RB19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		reg := newRegistry(t, session.Config{Store: store, Now: time.Now})
		root := prepare(t, reg, session.New{ID: "root"})
		leave := enter(t, reg, root)
		mustAppend(t, root, script(t, "T1 t1")...)
		for name, seed := range map[string]*session.Seed{"fresh": nil, "forked": {Prefix: root.Prefix()}} {
			n := session.New{ID: session.ID(name), Root: "root", ParentSession: "root", Deferred: true, Seed: seed}
			s := prepare(t, reg, n)
			detach := enter(t, reg, s)
			established(t, s)
			if err := s.FlushTo(t.Context(), s.Head()); err != nil {
				t.Fatal(err)
			}
			if found, _ := store.Exists(t.Context(), n.ID); !found {
				t.Fatal("there is no row to withdraw")
			}
			// Its caller may be gone: this is how it cleans up.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Withdraw(ctx); err != nil {
				t.Fatal(err)
			}
			silent(t, s)
			if err := s.Withdraw(t.Context()); err != nil {
				t.Errorf("again: %v", err)
			}
			end(t, detach)
			if found, err := store.Exists(t.Context(), n.ID); found || err != nil {
				t.Errorf("%s is stored: %v, %v", name, found, err)
			}
			mustAppend(t, root, say("for-"+name, "x"))
			if err := errors.Join(root.CheckOwner(t.Context()), root.Flush(t.Context())); err != nil {
				t.Errorf("the tree: %v", err)
			}
			next := prepare(t, reg, n)
			detach = enter(t, reg, next)
			established(t, next)
			end(t, detach)
			if rec, _, err := store.Inspect(t.Context(), n.ID); err != nil || rec.Head != next.Head() {
				t.Errorf("created anew, %d of %d events are stored: %v", rec.Head, next.Head(), err)
			}
		}
		end(t, leave)
	})
}

// Before the row was made there is nothing to delete, and the store is not asked.
func TestWithdrawBeforeTheRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, before := range map[string]func(*session.Session){
			"deferred":                   func(*session.Session) {},
			"established":                func(s *session.Session) { established(t, s) },
			"the creation is not stored": func(s *session.Session) { established(t, s) },
		} {
			f := newFake()
			_, s, detach := live(t, f, session.New{Deferred: true})
			before(s)
			asked := []string{"exists"}
			if name == "the creation is not stored" {
				f.setHook(failing("create", verdict{skip: true, err: errDisk}))
				if err := s.Flush(t.Context()); !errors.Is(err, errDisk) {
					t.Fatal(err)
				}
				f.setHook(nil)
				asked = []string{"exists", "create", "exists"} // of the prepare, and of the failed creation
			}
			if err := s.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
			silent(t, s)
			if s.Deferred() {
				established(t, s) // too late
				silent(t, s)
			}
			end(t, detach)
			if !slices.Equal(f.ops, asked) || f.row("s") != nil {
				t.Errorf("%s: the store was asked for %q, stored is %v", name, f.ops, f.row("s"))
			}
		}
	})
}

// A write under way is waited for, and what waits for that write learns what became of
// the session; the end of the caller's ctx changes nothing.
func TestWithdrawDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		gate := make(chan struct{})
		f.setHook(func(op string) verdict {
			if op == "create" {
				<-gate
			}
			return verdict{}
		})
		_, s, detach := live(t, f, session.New{Deferred: true})
		established(t, s)
		target := s.Head()
		flushed, waited, withdrawn := make(chan error, 2), make(chan error, 1), make(chan error, 1)
		for range 2 { // the one that writes, and one that waits for it
			go func() { flushed <- s.FlushTo(t.Context(), target) }()
		}
		go func() { waited <- s.Wait(t.Context(), target-1, true) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		go func() { withdrawn <- s.Withdraw(ctx) }()
		synctest.Wait()
		if err := <-waited; !errors.Is(err, session.ErrWithdrawn) {
			t.Errorf("a waiter: %v", err)
		}
		select {
		case err := <-withdrawn:
			t.Fatalf("it did not wait for the write: %v", err)
		default:
		}
		close(gate)
		for range 2 {
			if err := <-flushed; !errors.Is(err, session.ErrWithdrawn) {
				t.Errorf("a flush: %v", err)
			}
		}
		if err := <-withdrawn; err != nil {
			t.Error(err)
		}
		silent(t, s)
		end(t, detach)
		if row := f.row("s"); row != nil {
			t.Errorf("stored is %v", row)
		}
		same(t, "written", f.written(), "create 0..1")
	})
}

// Nobody knows whether the creation was stored: it is found out, and undone. A session
// of that id that somebody else made is none of its business.
func TestWithdrawAfterAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name     string
			stored   bool // the creation took effect
			namesake bool
		}{{"stored", true, false}, {"not stored", false, false}, {"a namesake", false, true}} {
			f := newFake()
			_, s, detach := live(t, f, session.New{Deferred: true})
			established(t, s)
			f.setHook(func(op string) verdict {
				if op == "create" {
					return verdict{skip: !tc.stored, err: errDisk}
				}
				return verdict{err: errDisk}
			})
			if err := s.Flush(t.Context()); !errors.Is(err, session.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			if tc.namesake {
				h := s.Header()
				h.CreatedAt++
				f.rows["s"] = &fakeRow{header: h}
			}
			if err := s.Withdraw(t.Context()); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "session s: ") {
				t.Errorf("%s: while the store tells nothing: %v", tc.name, err)
			}
			f.setHook(nil)
			silent(t, s)
			if err := s.Withdraw(t.Context()); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			asked := len(f.ops)
			if err := s.Withdraw(t.Context()); err != nil || len(f.ops) != asked {
				t.Errorf("%s: once more: %v, and the store was asked for %q", tc.name, err, f.ops[asked:])
			}
			end(t, detach)
			if row := f.row("s"); (row != nil) != tc.namesake {
				t.Errorf("%s: stored is %v", tc.name, row)
			}
		}
	})
}

// The deletion fails: the error says so, nothing is written all the same, the ownership
// goes with the session, and a further call can succeed.
func TestWithdrawFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name string
			v    verdict
			gone bool // at the first call
		}{
			{"refused", verdict{skip: true, err: fmt.Errorf("no: %w", session.ErrInUse)}, false},
			{"failed", verdict{skip: true, err: errDisk}, false},
			{"failed afterwards", verdict{err: errDisk}, true},
		} {
			for _, retry := range []bool{false, true} {
				f := newFake()
				_, s, detach := live(t, f, session.New{Deferred: true})
				established(t, s)
				if err := s.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				f.setHook(failing("discard", tc.v))
				err := s.Withdraw(t.Context())
				if tc.gone != (err == nil) || err != nil && (!errors.Is(err, tc.v.err) || !strings.Contains(err.Error(), "session s: ")) {
					t.Errorf("%s: %v", tc.name, err)
				}
				silent(t, s)
				if n := f.count("close"); (n > 0) != tc.gone {
					t.Errorf("%s: the writer was closed %d times", tc.name, n)
				}
				gone := tc.gone || retry
				if retry {
					f.setHook(nil)
					if err := s.Withdraw(t.Context()); err != nil {
						t.Errorf("%s: again: %v", tc.name, err)
					}
				}
				end(t, detach)
				row := f.row("s")
				if (row == nil) != gone || row != nil && (row.held || len(row.events) != 1) {
					t.Errorf("%s, retry %v: stored is %+v", tc.name, retry, row)
				}
			}
		}
	})
}

// Another process took the session over: its row is not ours to delete, and the tree's
// driver is told.
func TestWithdrawFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg, s, detach := live(t, f, session.New{Deferred: true})
		fenced := 0
		reg.AddHooks(session.Hooks{Fenced: func(*session.Session) { fenced++ }})
		established(t, s)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.rows["s"].fenced = true
		var e *session.FencedError
		if err := s.Withdraw(t.Context()); !errors.As(err, &e) {
			t.Errorf("withdraw: %v", err)
		}
		if f.row("s") == nil || fenced != 1 {
			t.Errorf("stored is %v, told %d times", f.row("s"), fenced)
		}
		end(t, detach)
	})
}

// Only a creation can be withdrawn: a session that was stored before is never deleted.
func TestWithdrawOfAStoredSession(t *testing.T) {
	store := memory.New()
	reg := newRegistry(t, session.Config{Store: store})
	s := prepare(t, reg, session.New{ID: "s"})
	mustAppend(t, s, script(t, "u T1 t1")...)
	end(t, enter(t, reg, s))
	s, err := reg.PrepareStored(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	detach := enter(t, reg, s)
	if err := s.Withdraw(t.Context()); !errors.Is(err, session.ErrExists) {
		t.Errorf("withdraw: %v", err)
	}
	mustAppend(t, s, say("more", "x"))
	if err := s.FlushTo(t.Context(), s.Head()); err != nil {
		t.Error(err)
	}
	end(t, detach)
	if rec, _, err := store.Inspect(t.Context(), "s"); err != nil || rec.Head != s.Head() {
		t.Errorf("%d of %d events are stored: %v", rec.Head, s.Head(), err)
	}
}

// A prepared session that was not entered, one without a store, and the heir of one.
func TestWithdrawElsewhere(t *testing.T) {
	store := memory.New()
	reg := newRegistry(t, session.Config{Store: store})
	s := prepare(t, reg, session.New{ID: "s", Deferred: true})
	established(t, s)
	mustAppend(t, s, script(t, "T1 t1")...)
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Withdraw(t.Context()), reg.Abandon(t.Context(), s)); err != nil {
		t.Error(err)
	}
	if found, err := store.Exists(t.Context(), "s"); found || err != nil {
		t.Errorf("abandoned, and stored: %v, %v", found, err)
	}

	s = prepare(t, reg, session.New{ID: "s"})
	detach := enter(t, reg, s)
	mustAppend(t, s, script(t, "T1 t1")...)
	if err := s.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := reg.Prepare(t.Context(), session.New{ID: "heir", Seed: &session.Seed{Prefix: s.Prefix()}}); !errors.Is(err, session.ErrWithdrawn) {
		t.Errorf("an heir: %v", err)
	}
	end(t, detach)

	live := newSession(t)
	if err := live.Withdraw(t.Context()); err != nil {
		t.Errorf("without a store: %v", err)
	}
	mustAppend(t, live, say("m", "x"))
	if err := live.FlushTo(t.Context(), live.Head()); err != nil {
		t.Errorf("without a store: %v", err)
	}
}

// A session that was detached before its creation turned out to have failed is taken back
// all the same; one that somebody else made under its id since is not touched.
func TestWithdrawAfterItLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		reg := newRegistry(t, session.Config{Store: store, Now: time.Now})
		for _, namesake := range []bool{false, true} {
			s := prepare(t, reg, session.New{ID: "s", Deferred: true})
			detach := enter(t, reg, s)
			established(t, s)
			end(t, detach)
			if namesake {
				if err := store.Delete(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
				after(time.Minute)
				other := prepare(t, reg, session.New{ID: "s"})
				leave := enter(t, reg, other)
				mustAppend(t, other, say("m", "x"))
				end(t, leave)
			}
			for range 2 {
				if err := s.Withdraw(t.Context()); err != nil {
					t.Errorf("namesake %v: %v", namesake, err)
				}
			}
			if found, err := store.Exists(t.Context(), "s"); found != namesake || err != nil {
				t.Errorf("namesake %v: stored is %v, %v", namesake, found, err)
			}
		}
	})
}
