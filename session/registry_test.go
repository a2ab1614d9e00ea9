package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// journal notes what hooks are told, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

func (j *journal) hooks(name string) session.Hooks {
	return session.Hooks{
		Created:  func(s *session.Session) error { j.note("%s created %s", name, s.ID()); return nil },
		Disposed: func(s *session.Session) { j.note("%s disposed %s", name, s.ID()) },
	}
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// core S27, S28: a prepared session is nobody's business; an entered one is.
func TestPrepareAndEnter_S27(t *testing.T) {
	var j journal
	reg := newRegistry(t, session.Config{})
	reg.AddHooks(j.hooks("a"))
	s := prepare(t, reg, session.New{ID: "s"})
	mustAppend(t, s, &session.Title{Title: "setup"})
	if _, ok := reg.Get("s"); ok || len(reg.List()) != 0 {
		t.Error("a prepared session can be found")
	}
	if err := reg.Announce(s); !errors.Is(err, session.ErrNotLive) {
		t.Errorf("announcing a prepared session: %v", err)
	}
	if _, err := reg.Flush(t.Context(), s); !errors.Is(err, session.ErrNotLive) {
		t.Errorf("S30: flushing a prepared session: %v", err)
	}
	if _, err := reg.Prepare(t.Context(), session.New{ID: "s"}); !errors.Is(err, session.ErrExists) {
		t.Errorf("preparing the same id: %v", err)
	}
	detach := enter(t, reg, s)
	if got, ok := reg.Get("s"); !ok || got != s {
		t.Error("an entered session cannot be found")
	}
	if _, err := reg.Enter(s); !errors.Is(err, session.ErrExists) {
		t.Errorf("entering twice: %v", err)
	}
	if err := detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "a session that was never announced", j.take())

	// S28: a stale detach does not evict the session that has the id now.
	next := prepare(t, reg, session.New{ID: "s"})
	leave := enter(t, reg, next)
	if err := detach(t.Context()); err != nil {
		t.Error(err)
	}
	if got, _ := reg.Get("s"); got != next {
		t.Error("a stale detach evicted another session")
	}
	defer end(t, leave)
	if _, err := reg.Enter(s); !errors.Is(err, session.ErrExists) {
		t.Errorf("entering a session that ended: %v", err)
	}

	// H10: what is given up leaves no residue.
	if err := reg.Abandon(t.Context(), prepare(t, reg, session.New{ID: "x"})); err != nil {
		t.Error(err)
	}
	if _, err := reg.Prepare(t.Context(), session.New{ID: "x", Cwd: "relative"}); err == nil {
		t.Error("prepared with a relative cwd")
	}
	if err := reg.Abandon(t.Context(), prepare(t, reg, session.New{ID: "x"})); err != nil {
		t.Error(err)
	}
}

// core S29: created and disposed come in pairs, whatever happens in between.
func TestAnnounce_S29(t *testing.T) {
	veto := errors.New("no")
	open := func(t *testing.T, reg *session.Registry) (*session.Session, func(context.Context) error) {
		s := prepare(t, reg, session.New{ID: "s"})
		return s, enter(t, reg, s)
	}
	t.Run("in order", func(t *testing.T) {
		var j journal
		reg := newRegistry(t, session.Config{})
		reg.AddHooks(j.hooks("a"))
		remove := reg.AddHooks(j.hooks("b"))
		s, detach := open(t, reg)
		if err := reg.Announce(s); err != nil {
			t.Fatal(err)
		}
		same(t, "announced", j.take(), "a created s", "b created s")
		remove()
		if err := errors.Join(detach(t.Context()), detach(t.Context())); err != nil {
			t.Fatal(err)
		}
		same(t, "detached twice", j.take(), "a disposed s")
	})
	t.Run("veto", func(t *testing.T) {
		var j journal
		reg := newRegistry(t, session.Config{})
		reg.AddHooks(j.hooks("a"))
		reg.AddHooks(session.Hooks{Created: func(*session.Session) error { return veto }})
		reg.AddHooks(j.hooks("c"))
		s, detach := open(t, reg)
		if err := reg.Announce(s); !errors.Is(err, veto) {
			t.Fatalf("announce: %v", err)
		}
		if err := detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, "vetoed", j.take(), "a created s", "a disposed s", "c disposed s")
	})
	t.Run("a panic is a veto and is contained", func(t *testing.T) {
		reg := newRegistry(t, session.Config{})
		reg.AddHooks(session.Hooks{
			Created:  func(*session.Session) error { panic("boom") },
			Disposed: func(*session.Session) { panic("boom") },
		})
		s, detach := open(t, reg)
		if err := reg.Announce(s); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("announce: %v", err)
		}
		if err := detach(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("detached by a hook", func(t *testing.T) {
		var j journal
		reg := newRegistry(t, session.Config{})
		var detach func(context.Context) error
		reg.AddHooks(session.Hooks{Created: func(*session.Session) error { return detach(t.Context()) }})
		reg.AddHooks(j.hooks("b"))
		var s *session.Session
		s, detach = open(t, reg)
		if err := reg.Announce(s); !errors.Is(err, session.ErrNotLive) {
			t.Errorf("announce: %v", err)
		}
		same(t, "the pair is in order", j.take(), "b created s", "b disposed s")
		if _, err := reg.Prepare(t.Context(), session.New{ID: "s"}); err != nil {
			t.Errorf("the id is not free: %v", err)
		}
	})
}

// core S30, D5: what a flush answers.
func TestRegistryFlush_S30(t *testing.T) {
	refused := errors.New("refused")
	for _, tc := range []struct {
		name  string
		store bool
		hooks []error // one Flush hook each
		fail  bool
		took  bool
		want  error
	}{
		{"nobody takes part", false, nil, false, false, nil},
		{"a hook takes part", false, []error{nil}, false, true, nil},
		{"a store takes part", true, nil, false, true, nil},
		{"the first failure of a hook, after all were asked", true, []error{refused, errors.New("later")}, false, true, refused},
		{"the store's failure", true, []error{nil}, true, true, errDisk},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake()
			cfg := session.Config{}
			if tc.store {
				cfg.Store = f
			}
			reg := newRegistry(t, cfg)
			asked := 0
			for _, err := range tc.hooks {
				reg.AddHooks(session.Hooks{Flush: func(context.Context, *session.Session) error { asked++; return err }})
			}
			s := prepare(t, reg, session.New{ID: "s"})
			detach := enter(t, reg, s)
			mustAppend(t, s, say("a", "a"))
			if tc.fail {
				f.setHook(func(string) verdict { return verdict{skip: true, err: errDisk} })
			}
			took, err := reg.Flush(t.Context(), s)
			if took != tc.took || !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
				t.Errorf("flush: %v, %v", took, err)
			}
			if asked != len(tc.hooks) {
				t.Errorf("%d of %d hooks were asked", asked, len(tc.hooks))
			}
			if tc.store && !tc.fail && f.head("s") != 1 {
				t.Errorf("%d events are stored", f.head("s"))
			}
			f.setHook(nil)
			if err := detach(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := reg.Flush(t.Context(), s); !errors.Is(err, session.ErrNotLive) {
				t.Errorf("flushing a session that ended: %v", err)
			}
		})
	}
}

// seam GO-08: the order of the living.
func TestListOrder(t *testing.T) {
	now := int64(100)
	reg := newRegistry(t, session.Config{Now: func() time.Time { return time.UnixMilli(now) }})
	for _, id := range []session.ID{"b", "a", "c"} {
		if id == "c" {
			now = 50
		}
		defer end(t, enter(t, reg, prepare(t, reg, session.New{ID: id})))
	}
	var ids []string
	for _, s := range reg.List() {
		ids = append(ids, string(s.ID()))
	}
	if !slices.Equal(ids, []string{"c", "a", "b"}) {
		t.Errorf("listed as %q", ids)
	}
}

// core D7: a closed registry takes nothing new and names what still lives.
func TestRegistryClose_D7(t *testing.T) {
	f := newFake()
	reg := newRegistry(t, session.Config{Store: f})
	s := prepare(t, reg, session.New{ID: "s"})
	detach := enter(t, reg, s)
	pending := prepare(t, reg, session.New{ID: "p"})
	if left := reg.Close(); len(left) != 1 || left[0] != s {
		t.Errorf("left: %v", left)
	}
	if _, err := reg.Enter(pending); !errors.Is(err, session.ErrClosed) {
		t.Errorf("enter: %v", err)
	}
	if _, err := reg.Prepare(t.Context(), session.New{}); !errors.Is(err, session.ErrClosed) {
		t.Errorf("prepare: %v", err)
	}
	if _, err := reg.PrepareStored(t.Context(), "x"); !errors.Is(err, session.ErrClosed) {
		t.Errorf("prepare stored: %v", err)
	}
	mustAppend(t, s, say("a", "a"))
	if err := errors.Join(detach(t.Context()), reg.Abandon(t.Context(), pending)); err != nil {
		t.Error(err)
	}
	if f.head("s") != 1 || f.row("s").held {
		t.Error("the last events were not stored, or ownership was kept")
	}
}

// seedStore stores a log under id, as another process left it.
func seedStore(t *testing.T, f *fake, id session.ID, log string) {
	t.Helper()
	reg := newRegistry(t, session.Config{Store: f})
	s := prepare(t, reg, session.New{ID: id})
	detach := enter(t, reg, s)
	mustAppend(t, s, script(t, log)...)
	if err := detach(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// core D8: preparing a stored session.
func TestPrepareStored_D8(t *testing.T) {
	f := newFake()
	seedStore(t, f, "s", "i u T1 S1.1 a1.1 s1.1 t1")
	reg := newRegistry(t, session.Config{Store: f})
	s, err := reg.PrepareStored(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if s.FirstLive() != 7 || s.Head() != 8 || len(s.Inbox(session.NextTurn)) != 1 || s.Durable() != 7 {
		t.Errorf("firstLive %d, head %d, durable %d, %d queued", s.FirstLive(), s.Head(), s.Durable(), len(s.Inbox(session.NextTurn)))
	}
	if err := reg.Abandon(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if f.row("s").held || f.head("s") != 7 {
		t.Error("what was abandoned is still owned, or was written to")
	}
	if _, err := reg.PrepareStored(t.Context(), "nobody"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("unknown id: %v", err)
	}
	if _, err := newRegistry(t, session.Config{}).PrepareStored(t.Context(), "s"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("without a store: %v", err)
	}
	if _, err := reg.Prepare(t.Context(), session.New{ID: "s"}); !errors.Is(err, session.ErrExists) {
		t.Errorf("S28: a stored id was taken for a new session: %v", err)
	}
	owned := &session.OwnedError{ID: "s", Owner: session.Owner{ID: "o", PID: 7}}
	f.setHook(func(op string) verdict {
		if op == "open" {
			return verdict{err: owned}
		}
		return verdict{}
	})
	var got *session.OwnedError
	if _, err := reg.PrepareStored(t.Context(), "s"); !errors.As(err, &got) || got.Owner.PID != 7 {
		t.Errorf("owned elsewhere: %v", err)
	}
	f.setHook(nil)
	// A log that cannot be read gives up ownership again.
	f.rows["s"].events[3] = session.RawEvent(f.rows["s"].events[3], []byte(`{"turn":9,"step":9}`))
	var broken *session.InvariantError
	if _, err := reg.PrepareStored(t.Context(), "s"); !errors.As(err, &broken) || broken.Seq != 3 {
		t.Errorf("illegal log: %v", err)
	}
	if f.row("s").held {
		t.Error("a failed preparation kept ownership")
	}
}

// core D6, D8: a second preparation waits for the first, and for a retirement.
func TestPrepareStoredWaits_D8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		seedStore(t, f, "s", "u T1 t1")
		reg := newRegistry(t, session.Config{Store: f})
		first, err := reg.PrepareStored(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		type prepared struct {
			s   *session.Session
			err error
		}
		wait := func(ctx context.Context) chan prepared {
			ch := make(chan prepared, 1)
			go func() {
				s, err := reg.PrepareStored(ctx, "s")
				ch <- prepared{s, err}
			}()
			synctest.Wait()
			select {
			case p := <-ch:
				t.Fatalf("did not wait: %+v", p)
			default:
			}
			return ch
		}
		impatient := errors.New("impatient")
		ctx, cancel := context.WithCancelCause(t.Context())
		ch := wait(ctx)
		cancel(impatient)
		if p := <-ch; !errors.Is(p.err, impatient) {
			t.Errorf("cancelled: %v", p.err)
		}
		ch = wait(t.Context())
		if err := reg.Abandon(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		p := <-ch
		if p.err != nil {
			t.Fatalf("after the first was abandoned: %v", p.err)
		}
		ch = wait(t.Context())
		detach := enter(t, reg, p.s)
		if q := <-ch; !errors.Is(q.err, session.ErrExists) {
			t.Errorf("after the first was published: %v", q.err)
		}
		if _, err := reg.PrepareStored(t.Context(), "s"); !errors.Is(err, session.ErrExists) {
			t.Errorf("live: %v", err)
		}

		// D6: until the last batch is stored and ownership given up, the id is taken.
		gate := make(chan struct{})
		f.setHook(func(op string) verdict {
			if op == "append" || op == "close" {
				<-gate
			}
			return verdict{}
		})
		mustAppend(t, p.s, say("last", "last"))
		left := make(chan error, 1)
		go func() { left <- detach(t.Context()) }()
		synctest.Wait()
		if _, ok := reg.Get("s"); ok {
			t.Error("a retiring session can be found")
		}
		ch = wait(t.Context())
		gate <- struct{}{} // the batch
		synctest.Wait()
		select {
		case <-ch:
			t.Error("prepared before ownership was given up")
		default:
		}
		close(gate)
		if err := <-left; err != nil {
			t.Error(err)
		}
		q := <-ch
		if q.err != nil {
			t.Fatal(q.err)
		}
		if !strings.Contains(export(q.s), `"id":"last"`) {
			t.Error("the last event is missing")
		}
		if err := reg.Abandon(t.Context(), q.s); err != nil {
			t.Error(err)
		}
	})
}

// Giving a prepared session up waits for a write that is under way, so that its
// ownership is not lost sight of.
func TestAbandonJoinsTheWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		gate := make(chan struct{})
		f.setHook(func(op string) verdict {
			if op == "create" {
				<-gate
			}
			return verdict{}
		})
		reg := newRegistry(t, session.Config{Store: f})
		s := prepare(t, reg, session.New{ID: "s"})
		mustAppend(t, s, say("a", "a"))
		time.Sleep(session.WriteDelay) // the window ends and the write begins
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- reg.Abandon(t.Context(), s) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("did not wait for the write (%v)", err)
		default:
		}
		close(gate)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if row := f.row("s"); row == nil || row.held {
			t.Errorf("row %+v", row)
		}
	})
}

// tattler is a store whose writers tell of a loss when the test says so.
type tattler struct {
	*fake
	lost func()
}

func (t *tattler) Open(ctx context.Context, id session.ID) (session.Writer, error) {
	w, err := t.fake.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return tattling{w, t}, nil
}

type tattling struct {
	session.Writer
	t *tattler
}

func (w tattling) OnLost(fn func()) { w.t.lost = fn }

// A stored session that could not be opened is nobody's afterwards: what its store tells
// of it later reaches no hook, and nothing of its repair is stored.
func TestOpenFailsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &tattler{fake: newFake()}
		var fenced []session.ID
		reg := newRegistry(t, session.Config{Store: f, Now: time.Now})
		reg.AddHooks(session.Hooks{Fenced: func(s *session.Session) { fenced = append(fenced, s.ID()) }})
		s := prepare(t, reg, session.New{ID: "s"})
		mustAppend(t, s, script(t, "u T1")...)
		if err := errors.Join(s.Flush(t.Context()), reg.Abandon(t.Context(), s)); err != nil {
			t.Fatal(err)
		}
		f.setHook(func(op string) verdict {
			if op == "append" {
				return verdict{skip: true, err: errDisk}
			}
			return verdict{}
		})
		if _, err := reg.PrepareStored(t.Context(), "s"); !errors.Is(err, errDisk) {
			t.Fatalf("opened without its repair: %v", err)
		}
		f.setHook(nil)
		f.lost()
		after(time.Hour)
		if len(fenced) != 0 || f.head("s") != 2 || f.row("s").held {
			t.Errorf("told that %v were taken over; row %+v", fenced, f.row("s"))
		}
		s, err := reg.PrepareStored(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		f.lost()
		after(time.Hour)
		if len(fenced) != 1 {
			t.Errorf("an open session's loss was told %d times", len(fenced))
		}
		if err := reg.Abandon(t.Context(), s); err != nil {
			t.Error(err)
		}
	})
}

// Who inherits from a session that is on its way out waits until what is inherited is
// stored: it is not live any more, and the store does not have all of it yet (core S24).
func TestInheritWhileRetiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg, parent, detach := live(t, f, session.New{ID: "p"})
		mustAppend(t, parent, script(t, "u T1 t1")...)
		gate := make(chan struct{})
		f.setHook(func(op string) verdict {
			if op == "create" {
				<-gate
			}
			return verdict{}
		})
		left := make(chan error, 1)
		go func() { left <- detach(t.Context()) }()
		synctest.Wait()
		made := make(chan *session.Session, 1)
		go func() {
			defer close(made)
			s, err := reg.Prepare(t.Context(), session.New{ID: "c", Root: "p", ParentSession: "p", Seed: &session.Seed{Prefix: parent.Prefix()}})
			if err != nil {
				t.Error(err)
				return
			}
			made <- s
		}()
		synctest.Wait()
		select {
		case <-made:
			t.Error("prepared before its prefix was stored")
		default:
		}
		close(gate)
		if err := <-left; err != nil {
			t.Error(err)
		}
		s := <-made
		if s == nil {
			t.Fatal("not prepared")
		}
		mustAppend(t, s, say("mine", "mine"))
		if err := errors.Join(s.Flush(t.Context()), reg.Abandon(t.Context(), s)); err != nil {
			t.Error(err)
		}
		if f.head("c") != int(s.Head()) {
			t.Errorf("%d of %d events are stored", f.head("c"), s.Head())
		}
	})
}

// Whoever ends a session's life while another does waits for the same end and gets the
// same result, as does whoever comes afterwards (core S28).
func TestLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reg := newRegistry(t, session.Config{Store: f})
		s := prepare(t, reg, session.New{ID: "s"})
		detach := enter(t, reg, s)
		mustAppend(t, s, say("m", "m"))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		gate, failure := make(chan struct{}), errors.New("the disk is gone")
		f.setHook(func(op string) verdict {
			if op == "close" {
				<-gate
				return verdict{err: failure}
			}
			return verdict{}
		})
		const callers = 3
		left := make(chan error, callers)
		for range callers {
			go func() { left <- detach(t.Context()) }()
		}
		synctest.Wait()
		if len(left) > 0 {
			t.Error("one left before the session has")
		}
		close(gate)
		for range callers {
			if err := <-left; !errors.Is(err, failure) {
				t.Errorf("left with %v", err)
			}
		}
		if err := detach(t.Context()); !errors.Is(err, failure) || f.count("close") != 1 {
			t.Errorf("afterwards %v, and closed %d times", err, f.count("close"))
		}
	})
}
