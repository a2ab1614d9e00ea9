package session_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

// Many goroutines append, flush, wait and read one session at once, over a store
// that fails now and then: holds stay whole, every event is stored once and in
// order, and hooks are told in order (core G5, G6, D2).
func TestConcurrentUse_G5(t *testing.T) {
	const writers, holds = 8, 40
	f := newFake()
	reg := newRegistry(t, session.Config{Store: f, WriteDelay: 1})
	var mu sync.Mutex
	var told int64
	reg.AddHooks(session.Hooks{Stored: func(_ *session.Session, from, to int64) {
		mu.Lock()
		defer mu.Unlock()
		if from != told || to <= from {
			t.Errorf("told of %d..%d behind %d", from, to, told)
		}
		told = to
	}})
	n := 0
	f.setHook(func(op string) verdict {
		mu.Lock()
		defer mu.Unlock()
		if n++; op == "append" && n%7 == 0 {
			return verdict{skip: n%2 == 0, err: errDisk}
		}
		return verdict{}
	})
	s := prepare(t, reg, session.New{ID: "s"})
	detach := enter(t, reg, s)
	count := &tally{}
	with, stop := s.Watch(count)
	defer stop()

	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for h := range holds {
				id := fmt.Sprintf("%d-%d", w, h)
				first, err := s.Append(drafts(say(id+"a", id), say(id+"b", id))...)
				if err != nil {
					t.Error(err)
					return
				}
				a, _ := s.Event(first)
				b, _ := s.Event(first + 1)
				if string(a.Payload().(*session.UserMessage).Message.ID) != id+"a" || string(b.Payload().(*session.UserMessage).Message.ID) != id+"b" {
					t.Errorf("hold %s was cut apart", id)
				}
				if h%5 == 0 {
					if err := s.Flush(t.Context()); err != nil && !errors.Is(err, errDisk) {
						t.Error(err)
					}
				}
				if h%9 == 0 {
					if err := s.Wait(t.Context(), first, false); err != nil {
						t.Error(err)
					}
				}
			}
		})
		wg.Go(func() {
			for range holds {
				if _, ok := reg.Get("s"); !ok || len(reg.List()) != 1 {
					t.Error("the session is not live")
				}
				last := int64(-1)
				for e := range s.Events(0) {
					if e.Seq != last+1 {
						t.Errorf("seq %d follows %d", e.Seq, last)
					}
					last = e.Seq
				}
				msgs, _ := s.History()
				if int64(len(msgs)) < last || s.Durable() > s.Head() {
					t.Error("the folds contradict each other")
				}
				s.LastTurn()
				s.Inbox(session.NextTurn)
				s.Policies()
				s.Prefix()
			}
		})
	}
	wg.Wait()
	f.setHook(nil)
	const want = writers * holds * 2
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context(), want-1, true); err != nil {
		t.Error(err)
	}
	with(func() {
		if count.n != want {
			t.Errorf("the watching fold counted %d events", count.n)
		}
	})
	if err := detach(t.Context()); err != nil {
		t.Error(err)
	}
	row := f.row("s")
	if len(row.events) != want || told != want || row.held {
		t.Errorf("%d events are stored, told of %d", len(row.events), told)
	}
	for i, e := range row.events {
		if e.Seq != int64(i) {
			t.Fatalf("stored event %d has seq %d", i, e.Seq)
		}
	}
}

// Many sessions of one registry come and go at once; each id is live at most once.
func TestConcurrentLifecycles_S28(t *testing.T) {
	f := newFake()
	reg := newRegistry(t, session.Config{Store: f})
	var created, disposed sync.Map
	reg.AddHooks(session.Hooks{
		Created: func(s *session.Session) error {
			if _, twice := created.LoadOrStore(s, true); twice {
				t.Error("created twice")
			}
			return nil
		},
		Disposed: func(s *session.Session) {
			if _, ok := created.Load(s); !ok {
				t.Error("disposed before it was created")
			}
			if _, twice := disposed.LoadOrStore(s, true); twice {
				t.Error("disposed twice")
			}
		},
	})
	seedStore(t, f, "shared", "u T1 t1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				s, err := reg.PrepareStored(t.Context(), "shared")
				if errors.Is(err, session.ErrExists) {
					continue // another has it
				}
				if err != nil {
					t.Error(err)
					return
				}
				detach, err := reg.Enter(s)
				if err != nil {
					t.Error(err)
					return
				}
				if err := reg.Announce(s); err != nil {
					t.Error(err)
				}
				if _, err := s.Append(drafts(say(string(session.NewID()), "x"))...); err != nil {
					t.Error(err)
				}
				var both sync.WaitGroup
				for range 2 {
					both.Go(func() {
						if err := detach(context.WithoutCancel(t.Context())); err != nil {
							t.Error(err)
						}
					})
				}
				both.Wait()
			}
		})
	}
	wg.Wait()
	created.Range(func(s, _ any) bool {
		if _, ok := disposed.Load(s); !ok {
			t.Error("a pair is not closed")
		}
		return true
	})
	if f.row("shared").held || len(reg.List()) != 0 {
		t.Error("something is left")
	}
	rec, events, err := f.Inspect(t.Context(), "shared")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reg.Verify(rec, events); err != nil {
		t.Error(err)
	}
}
