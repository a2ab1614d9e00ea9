package session_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
)

const resumeKey = "resume"

// someTurns is a log that has something for every fold.
func someTurns(t testing.TB) []session.Payload {
	t.Helper()
	label := "label"
	d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeContinuable, Provider: "p", Label: &label})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(
		[]session.Payload{d, &session.Persona{Literal: true}, &session.ApprovalPolicy{Policy: "never"}, &session.SandboxMode{Mode: "read-only"}, &session.Title{Title: "one"}},
		script(t, "i T1 q S1.1 u h1.1 x1.1 a1.1:x c1.1:x z1.1:x r1.1:x s1.1 S1.2 a1.2 s1.2 t1"),
		[]session.Payload{&session.Settled{Epoch: 1, StopReason: "completed", OutputSeq: -1}, insert(session.NextStep, 0, "waits")},
	)
}

// cellOf returns the checkpoint that a stored session is opened from.
func cellOf(t testing.TB, st session.Store, id session.ID) (c session.Checkpoint, ok bool) {
	t.Helper()
	rec, _, err := st.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Cell(resumeKey)
}

// setCell changes the checkpoints of a record as it is read.
func setCell(key string, change func(*session.Checkpoint)) func(*session.Record) {
	return func(r *session.Record) {
		for i := range r.Cells {
			if r.Cells[i].Key == key {
				change(&r.Cells[i])
			}
		}
	}
}

// A checkpoint that is stale, of another version, place, log or build, or damaged is left
// alone: the log is read instead, as without one.
func TestCheckpointNotTrusted(t *testing.T) {
	value := func(change func(string) string) func(*session.Record) {
		return setCell(resumeKey, func(c *session.Checkpoint) { c.Value = []byte(change(string(c.Value))) })
	}
	swap := func(old, with string) func(*session.Record) {
		return value(func(s string) string {
			if !strings.Contains(s, old) {
				t.Fatalf("the checkpoint %s has no %s", s, old)
			}
			return strings.Replace(s, old, with, 1)
		})
	}
	for name, c := range map[string]struct {
		record func(*session.Record)
		warns  bool
		says   string
	}{
		"stale":                   {record: setCell(resumeKey, func(c *session.Checkpoint) { c.Seq-- })},
		"ahead":                   {record: setCell(resumeKey, func(c *session.Checkpoint) { c.Seq++ })},
		"another version":         {record: setCell(resumeKey, func(c *session.Checkpoint) { c.Version++ })},
		"no JSON":                 {record: swap(`{"sum"`, `{sum`), warns: true},
		"cut off":                 {record: value(func(s string) string { return s[:len(s)/2] }), warns: true},
		"empty":                   {record: value(func(string) string { return "" }), warns: true},
		"null":                    {record: value(func(string) string { return "null" }), warns: true},
		"a key more":              {record: swap(`"sum"`, `"more":1,"sum"`), warns: true},
		"a key of the state more": {record: swap(`"head"`, `"more":1,"head"`), warns: true},
		"a key less":              {record: swap(`"turn":1,`, ``), warns: true},
		"a number changed":        {record: swap(`"turn":1`, `"turn":2`), warns: true},
		"a text changed":          {record: swap(`"one"`, `"two"`), warns: true},
		"of another session": {record: value(func(s string) string {
			return reseal(t, strings.Replace(s, `"session":"s"`, `"session":"x"`, 1))
		}), warns: true, says: "that of session x"},
		"of another head": {record: value(func(s string) string {
			return reseal(t, strings.Replace(s, `"head":`, `"head":1`, 1))
		}), warns: true, says: "that of session s with 1"},
		"a cell is missing": {record: func(r *session.Record) {
			r.Cells = slices.DeleteFunc(r.Cells, func(c session.Checkpoint) bool { return c.Key == session.CellUsage })
		}},
		"a cell is stale":              {record: setCell(session.CellUsage, func(c *session.Checkpoint) { c.Seq-- })},
		"a cell is of another version": {record: setCell(session.CellState, func(c *session.Checkpoint) { c.Version++ })},
		"a cell is damaged":            {record: setCell(session.CellState, func(c *session.Checkpoint) { c.Value = []byte(`{"x"`) })},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			reg, st, u := library(t, session.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
			shelve(t, reg, "s", someTurns(t)...)
			st.record = c.record
			s := reopen(t, reg, "s")
			st.record = nil
			if s.Cold() {
				t.Error("it was opened from the checkpoint")
			}
			if warned := strings.Contains(said.String(), resumeKey); warned != c.warns || !strings.Contains(said.String(), c.says) {
				t.Errorf("warned: %v: %s", warned, said.String())
			}
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := replayed(t, reg, st, "s")
			if diff := cmp.Diff(atOnce(t, u, want)+inWhole(t, u, want), atOnce(t, u, s)+inWhole(t, u, s)); diff != "" {
				t.Errorf("(-replayed +opened):\n%s", diff)
			}
		})
	}
	t.Run("a build with fewer event types", func(t *testing.T) {
		reg, st, u := library(t, session.Config{ExtraTypes: []session.ExtraType{{Type: "x/needed"}}})
		shelve(t, reg, "s", append(someTurns(t), &session.Opaque{Type: "x/needed", Data: []byte("{}")})...)
		var said strings.Builder
		other := newRegistry(t, session.Config{Store: st, NewCells: u.NewCells, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		var unsupported *session.UnsupportedError
		if _, err := other.PrepareStored(t.Context(), "s"); !errors.As(err, &unsupported) {
			t.Errorf("opened: %v", err)
		}
		if s := reopen(t, reg, "s"); !s.Cold() || said.Len() > 0 {
			t.Errorf("cold %v, logged: %s", s.Cold(), said.String())
		}
	})
	t.Run("a build with more cells", func(t *testing.T) {
		reg, st, u := library(t, session.Config{})
		shelve(t, reg, "s", someTurns(t)...)
		if _, err := u.Register(projection.Unit{
			Key: "more", Version: 1, Init: func(*session.Header) projection.Value { return 0 },
			Apply:  func(v projection.Value, _ *session.Event, _ session.Payload) projection.Value { return v.(int) + 1 },
			Append: func(buf []byte, v projection.Value) []byte { return fmt.Append(buf, v) },
			Parse: func(_ *session.Header, data []byte) (v projection.Value, err error) {
				n := 0
				_, err = fmt.Sscan(string(data), &n)
				return n, err
			},
		}); err != nil {
			t.Fatal(err)
		}
		s := reopen(t, reg, "s")
		if s.Cold() {
			t.Error("it was opened without the value of the new cell")
		}
		detach := enter(t, reg, s)
		if err := detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s = reopen(t, reg, "s"); !s.Cold() {
			t.Error("the new cell was not stored with the checkpoint")
		}
		if snap, err := u.Read(t.Context(), st, recordAt(t, st, "s"), "more"); err != nil || snap.Value != int(s.FirstLive()) {
			t.Errorf("the cell says %v, %v of %d events", snap.Value, err, s.FirstLive())
		}
	})
}

func recordAt(t testing.TB, st session.Store, id session.ID) session.Record {
	t.Helper()
	rec, _, err := st.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// reseal makes the sum of a checkpoint fit its state.
func reseal(t testing.TB, value string) string {
	t.Helper()
	_, state, ok := strings.Cut(value, `"state":`)
	if !ok {
		t.Fatalf("the checkpoint is %s", value)
	}
	state = strings.TrimSuffix(state, "}")
	return fmt.Sprintf(`{"sum":%d,"state":%s}`, crc32.ChecksumIEEE([]byte(state)), state)
}

// What a checkpoint says and the log does not bear out is a corruption, told when the log
// is loaded, always the same.
func TestCheckpointLies(t *testing.T) {
	for name, lie := range map[string][2]string{
		"title":   {`"title":"one"`, `"title":"two"`},
		"epoch":   {`"settled":1`, `"settled":2`},
		"inbox":   {`"text":"text of waits"`, `"text":"text of another"`},
		"turn":    {`"turn":1,"descriptor"`, `"turn":7,"descriptor"`},
		"policy":  {`"policy":"never"`, `"policy":"always"`},
		"spilled": {`"spilled":`, `"spilled":1`},
	} {
		t.Run(name, func(t *testing.T) {
			reg, st, _ := library(t, session.Config{})
			shelve(t, reg, "s", someTurns(t)...)
			honest, _ := cellOf(t, st, "s")
			st.record = setCell(resumeKey, func(c *session.Checkpoint) {
				if !strings.Contains(string(c.Value), lie[0]) {
					t.Fatalf("the checkpoint is %s", c.Value)
				}
				c.Value = []byte(reseal(t, strings.Replace(string(c.Value), lie[0], lie[1], 1)))
			})
			s := reopen(t, reg, "s")
			if !s.Cold() {
				t.Fatal("it was not opened from the checkpoint")
			}
			detach := enter(t, reg, s)
			var corrupt *session.CorruptError
			first := s.Load(t.Context())
			if !errors.As(first, &corrupt) || !strings.Contains(first.Error(), resumeKey) {
				t.Fatalf("loaded: %v", first)
			}
			if err := s.Load(t.Context()); !errors.Is(err, first) || st.reads.Load() != 1 {
				t.Errorf("loaded again: %v, read %d times", err, st.reads.Load())
			}
			if err := detach(t.Context()); err != nil {
				t.Error(err)
			}
			st.record = nil
			if left, _ := cellOf(t, st, "s"); left.Seq != honest.Seq {
				t.Errorf("it left a checkpoint at %d", left.Seq)
			}
			// What was appended since makes the lie stale: the log is what counts.
			if s = reopen(t, reg, "s"); s.Cold() || s.Title() != "one" {
				t.Errorf("cold %v, title %q", s.Cold(), s.Title())
			}
		})
	}
}

// A cell of a projection that says something else than the log is told apart by nobody
// who has not read it; whoever loads the log goes on with what the log says, and stores it.
func TestCellsFollowTheLoadedLog(t *testing.T) {
	reg, st, u := library(t, session.Config{})
	shelve(t, reg, "s", someTurns(t)...)
	honest, _ := u.Live(t.Context(), replayed(t, reg, st, "s"))
	st.record = setCell(session.CellTitle, func(c *session.Checkpoint) {
		c.Value = []byte(strings.Replace(string(c.Value), "one", "two", 1))
	})
	s := reopen(t, reg, "s")
	st.record = nil
	detach := enter(t, reg, s)
	title := func() string {
		sum, err := u.Live(t.Context(), s)
		if err != nil || sum.Title == nil {
			t.Fatalf("%+v, %v", sum, err)
		}
		return fmt.Sprintf("%+v", *sum.Title)
	}
	if said := title(); !s.Cold() || !strings.Contains(said, "two") {
		t.Fatalf("cold %v, %s", s.Cold(), said)
	}
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := title(); said != fmt.Sprintf("%+v", *honest.Title) {
		t.Errorf("loaded, it says %s", said)
	}
	mustAppend(t, s, insert(session.NextTurn, 0, "more"))
	if err := detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	rec := recordAt(t, st, "s")
	if c, ok := rec.Cell(session.CellTitle); !ok || c.Seq != rec.Head-1 || !strings.Contains(string(c.Value), "one") {
		t.Errorf("stored is %s at %d", c.Value, c.Seq)
	}
}

// seam DES-17, amendment P42: what a session is made of is what it says first of it, and
// the mark of its persona that stands before its first turn behind that. What it inherited
// is the ancestor's.
func TestComposition(t *testing.T) {
	describe := func(provider string) *session.DescriptorEvent {
		d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: provider})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	is := func(s *session.Session, want string) {
		t.Helper()
		for _, s := range []*session.Session{s, again(t, s)} {
			got := "nothing"
			if d, p := s.Composition(); d != nil || p != nil {
				got = fmt.Sprint(d != nil && d.Descriptor.Provider == "first", p != nil && p.Literal)
			}
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	}
	s := newSession(t)
	is(s, "nothing")
	mustAppend(t, s, script(t, "T1 t1")...)
	mustAppend(t, s, &session.Persona{}, describe("first"))
	is(s, "true false")
	mustAppend(t, s, &session.Persona{Literal: true}, describe("second"))
	is(s, "true true")
	mustAppend(t, s, script(t, "T2")...)
	mustAppend(t, s, &session.Persona{}, describe("third"))
	is(s, "true true")
	mustAppend(t, s, script(t, "t2")...)
	reg := newRegistry(t, session.Config{})
	is(prepare(t, reg, session.New{ID: "raw", Seed: &session.Seed{Events: rawEvents(t, s)}}), "nothing")
	if d, p := prepare(t, reg, session.New{ID: "heir", Seed: &session.Seed{Prefix: s.Prefix()}}).Composition(); d != nil || p != nil {
		t.Errorf("an heir is composed of %v, %v", d, p)
	}
}

var errRead = errors.New("read failure")

// damage makes the event at a seq one that no log takes.
func damage(at int64) func(session.Event) (session.Event, error) {
	return func(e session.Event) (session.Event, error) {
		if e.Seq == at {
			e = session.RawEvent(e, []byte(`{"turn":"none"}`))
		}
		return e, nil
	}
}

// A log that is damaged in its middle is opened from its checkpoint, and accepts; nothing
// that needs the log goes on, each with the same typed error.
func TestColdLogIsDamaged(t *testing.T) {
	reg, st, _ := library(t, session.Config{})
	shelve(t, reg, "s", someTurns(t)...)
	st.event = damage(6) // turn/start
	s := reopen(t, reg, "s")
	detach := enter(t, reg, s)
	mustAppend(t, s, insert(session.NextTurn, 0, "more"))
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	head := s.Head()
	calls := map[string]func() error{
		"load":      func() error { return s.Load(t.Context()) },
		"turn":      func() error { _, err := s.Append(drafts(&session.TurnStart{Turn: 2})...); return err },
		"surface":   func() error { _, err := s.Append(drafts(say("x", "text"))...); return err },
		"establish": func() error { _, err := s.AppendEstablish(drafts(&session.TurnStart{Turn: 2})...); return err },
		"built": func() error {
			_, err := s.AppendFunc(func(int64) []session.Draft { return drafts(say("x", "text")) })
			return err
		},
		"units":  func() error { _, err := units(t).Fold(t.Context(), s, session.CellUsage); return err },
		"follow": func() error { _, err := units(t).Follow(t.Context(), s); return err },
	}
	for name, call := range calls {
		var corrupt *session.CorruptError
		if err := call(); !errors.As(err, &corrupt) || corrupt.Seq != 6 || corrupt.ID != "s" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Head() != head || !s.Cold() || st.reads.Load() != 1 {
		t.Errorf("the head is %d, cold %v, read %d times", s.Head(), s.Cold(), st.reads.Load())
	}
	// What needs no log goes on: the end of what was accepted is told.
	mustAppend(t, s, &session.InboxSpliced{Target: session.NextTurn, Removed: 1, Canceled: true}, &session.Settled{Epoch: 2, StopReason: "error", OutputSeq: -1})
	if err := errors.Join(s.CheckOwner(t.Context()), s.Flush(t.Context()), detach(t.Context())); err != nil {
		t.Error(err)
	}
	if c, _ := cellOf(t, st, "s"); c.Seq >= head-1 {
		t.Errorf("a damaged log left a checkpoint at %d", c.Seq)
	}
}

// A reader that has no error to return, and is asked before anybody loaded the log, loads
// it; where that fails, the session can neither ask a model nor store anything any more.
func TestReadersOfAColdLog(t *testing.T) {
	readers := map[string]func(*session.Session) bool{
		"History":        func(s *session.Session) bool { msgs, _ := s.History(); return len(msgs) > 0 },
		"Surface":        func(s *session.Session) bool { nodes, _ := s.Surface(); return len(nodes) > 0 },
		"Event":          func(s *session.Session) bool { _, ok := s.Event(3); return ok },
		"Events":         func(s *session.Session) bool { return export(s) != "" },
		"Prefix":         func(s *session.Session) bool { return s.Prefix() != nil },
		"RequestHeader":  func(s *session.Session) bool { return s.RequestHeader() != nil },
		"RequestContext": func(s *session.Session) bool { return s.RequestContext() != nil },
	}
	for name, read := range readers {
		for _, failure := range []string{"", "damaged", "unread"} {
			t.Run(name+" "+failure, func(t *testing.T) {
				var said strings.Builder
				reg, st, _ := library(t, session.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
				shelve(t, reg, "s", someTurns(t)...)
				switch failure {
				case "damaged":
					st.event = damage(6)
				case "unread":
					st.event = func(session.Event) (session.Event, error) { return session.Event{}, errRead }
				}
				s := reopen(t, reg, "s")
				detach := enter(t, reg, s)
				if _, ok := s.Event(s.FirstLive()); !ok || !s.Cold() {
					t.Fatal("what was appended since is not there, or the log was read for it")
				}
				if err := s.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := read(s); got != (failure == "") {
					t.Errorf("it returned something: %v", got)
				}
				if failure == "" {
					if err := errors.Join(s.CheckOwner(t.Context()), detach(t.Context())); err != nil || s.Cold() {
						t.Errorf("cold %v, %v", s.Cold(), err)
					}
					return
				}
				mustAppend(t, s, &session.Title{Title: "late"})
				var corrupt *session.CorruptError
				for what, err := range map[string]error{"owner": s.CheckOwner(t.Context()), "flush": s.Flush(t.Context())} {
					if failure == "damaged" && !errors.As(err, &corrupt) || failure == "unread" && !errors.Is(err, errRead) {
						t.Errorf("%s: %v", what, err)
					}
				}
				var unsaved *session.UnsavedError
				if err := detach(t.Context()); !errors.As(err, &unsaved) {
					t.Errorf("detached: %v", err)
				}
				if !strings.Contains(said.String(), "cannot be read") {
					t.Errorf("logged: %s", said.String())
				}
			})
		}
	}
}

// A store that fails once does not spoil the log: the next one loads it.
func TestLoadTriesAgain(t *testing.T) {
	reg, st, u := library(t, session.Config{})
	shelve(t, reg, "s", someTurns(t)...)
	s := reopen(t, reg, "s")
	st.event = func(session.Event) (session.Event, error) { return session.Event{}, errRead }
	if err := s.Load(t.Context()); !errors.Is(err, errRead) {
		t.Fatalf("loaded: %v", err)
	}
	st.event = func(session.Event) (session.Event, error) { panic("no disk") }
	if err := s.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Fatalf("loaded: %v", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	st.event = func(session.Event) (session.Event, error) {
		cancel(cause)
		return session.Event{}, ctx.Err()
	}
	if err := s.Load(ctx); err != cause { //nolint:errorlint // the very cause
		t.Fatalf("loaded: %v", err)
	}
	st.event = nil
	if err := errors.Join(s.Load(t.Context()), s.CheckOwner(t.Context()), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	want := replayed(t, reg, st, "s")
	if diff := cmp.Diff(inWhole(t, u, want), inWhole(t, u, s)); diff != "" {
		t.Errorf("(-replayed +loaded):\n%s", diff)
	}
}

// Those who need a log at the same time read it once, and what is appended and stored
// meanwhile stays.
func TestLoadTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg, st, u := library(t, session.Config{})
		shelve(t, reg, "s", someTurns(t)...)
		s := reopen(t, reg, "s")
		detach := enter(t, reg, s)
		gate := make(chan struct{})
		st.gate = func(context.Context) { <-gate }
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				if i%2 == 0 {
					if err := s.Load(t.Context()); err != nil {
						t.Error(err)
					}
				} else if msgs, _ := s.History(); len(msgs) == 0 {
					t.Error("the history is empty")
				}
			})
		}
		synctest.Wait()
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		all.Go(func() {
			if err := s.Load(ctx); err != cause { //nolint:errorlint // the very cause
				t.Errorf("loaded: %v", err)
			}
		})
		synctest.Wait()
		mustAppend(t, s, insert(session.NextTurn, 0, "meanwhile"), &session.Title{Title: "two"})
		if err := s.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		mustAppend(t, s, &session.Title{Title: "three"})
		cancel(cause)
		synctest.Wait()
		close(gate)
		all.Wait()
		if st.reads.Load() != 1 || s.Cold() {
			t.Errorf("the log was read %d times, cold %v", st.reads.Load(), s.Cold())
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		want := replayed(t, reg, st, "s")
		if diff := cmp.Diff(atOnce(t, u, want)+inWhole(t, u, want), atOnce(t, u, s)+inWhole(t, u, s)); diff != "" {
			t.Errorf("(-replayed +loaded):\n%s", diff)
		}
		if err := detach(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What is built for a log that has to be loaded first is built again for where it stands.
func TestAppendFuncLoads(t *testing.T) {
	reg, st, _ := library(t, session.Config{})
	shelve(t, reg, "s", someTurns(t)...)
	s := reopen(t, reg, "s")
	defer func() {
		if err := reg.Abandon(t.Context(), s); err != nil {
			t.Error(err)
		}
	}()
	st.gate = func(context.Context) { mustAppend(t, s, &session.Title{Title: "meanwhile"}) }
	var seqs []int64
	first, err := s.AppendFunc(func(first int64) []session.Draft {
		seqs = append(seqs, first)
		return drafts(say(fmt.Sprint(first), "text"))
	})
	if err != nil || len(seqs) != 2 || first != seqs[1] || seqs[1] != seqs[0]+1 {
		t.Errorf("built for %v, appended at %d, %v", seqs, first, err)
	}
	if msgs, _ := s.History(); string(msgs[len(msgs)-1].ID) != fmt.Sprint(first) {
		t.Errorf("the history is %q", texts(msgs))
	}
}

// A process that goes before the session was closed leaves the checkpoint behind the log,
// and one that goes in a turn leaves a turn to be repaired: the log is read then.
func TestCheckpointBehindACrash(t *testing.T) {
	for _, log := range []string{"i", "T2 S2.1 a2.1:y c2.1:y"} {
		t.Run(log, func(t *testing.T) {
			reg, st, u := library(t, session.Config{})
			shelve(t, reg, "s", someTurns(t)...)
			s := reopen(t, reg, "s")
			mustAppend(t, s, script(t, log)...)
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			st.Kill()
			if err := reg.Abandon(t.Context(), s); err != nil && !errors.Is(err, session.ErrClosed) {
				t.Fatal(err)
			}
			st.Store = st.Backend().Open()
			if s = reopen(t, newRegistry(t, session.Config{Store: st, NewCells: u.NewCells}), "s"); s.Cold() {
				t.Error("a checkpoint was trusted that the log has left behind")
			}
			if _, open, _ := s.LastTurn(); open {
				t.Error("the turn is open")
			}
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := replayed(t, reg, st, "s")
			if diff := cmp.Diff(atOnce(t, u, want)+inWhole(t, u, want), atOnce(t, u, s)+inWhole(t, u, s)); diff != "" {
				t.Errorf("(-replayed +opened):\n%s", diff)
			}
		})
	}
}

// Only a session that ends at rest leaves a checkpoint, once, and only a long one.
func TestWhoLeavesACheckpoint(t *testing.T) {
	long := func(n int) []session.Payload {
		out := make([]session.Payload, n)
		for i := range out {
			out[i] = &session.TodoWrite{}
		}
		return slices.Concat(script(t, "T1"), out[2:], script(t, "t1"))
	}
	once, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from     int64
		payloads []session.Payload
		leaves   bool
	}{
		"long":            {payloads: long(session.CheckpointFrom), leaves: true},
		"short":           {payloads: long(session.CheckpointFrom - 1)},
		"never":           {from: -1, payloads: long(2 * session.CheckpointFrom)},
		"in a turn":       {from: 1, payloads: script(t, "u T1")},
		"in a compaction": {from: 1, payloads: script(t, "u P0:c")},
		"for one task":    {from: 1, payloads: append(script(t, "u T1 t1"), once)},
		"behind it":       {from: 1, payloads: script(t, "u P0:c m0:c p0:c"), leaves: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			reg := newRegistry(t, session.Config{Store: f, CheckpointFrom: c.from})
			s := prepare(t, reg, session.New{ID: "s"})
			detach := enter(t, reg, s)
			mustAppend(t, s, c.payloads[:1]...)
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, s, c.payloads[1:]...)
			if err := detach(t.Context()); err != nil {
				t.Fatal(err)
			}
			row, head := f.row("s"), s.Head()
			want := []string{"create 0..1", fmt.Sprintf("append 1..%d", head)}
			left := 0
			for _, cell := range row.cells {
				if cell.Key == resumeKey {
					left++
				}
			}
			if !slices.Equal(f.written(), want) || left > 1 || (left == 1) != c.leaves {
				t.Errorf("written %v, %d checkpoints", f.written(), left)
			}
			if !c.leaves {
				return
			}
			// Who only looks at it leaves it as it is but for the mark of its opening, and
			// that of the second is there already.
			for i, writes := range []int{3, 3} {
				s := reopen(t, reg, "s")
				if err := enter(t, reg, s)(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := len(f.written()); !s.Cold() || n != writes {
					t.Errorf("opening %d: cold %v, %v", i, s.Cold(), f.written())
				}
			}
		})
	}
	t.Run("and changes nothing else", func(t *testing.T) {
		now := clock()
		st := memory.New(memory.WithClock(func() time.Time { return now }))
		reg := newRegistry(t, session.Config{Store: st, CheckpointFrom: 1})
		s := prepare(t, reg, session.New{ID: "s"})
		detach := enter(t, reg, s)
		mustAppend(t, s, script(t, "u T1 t1")...)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := recordAt(t, st, "s")
		now = now.Add(time.Hour)
		if err := detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := recordAt(t, st, "s")
		if _, left := after.Cell(resumeKey); !left || after.UpdatedAt != before.UpdatedAt || after.Head != before.Head {
			t.Errorf("it was %+v and is %+v", before, after)
		}
	})
	t.Run("behind its last flush", func(t *testing.T) {
		f := newFake()
		reg := newRegistry(t, session.Config{Store: f, CheckpointFrom: 1})
		s := prepare(t, reg, session.New{ID: "s"})
		detach := enter(t, reg, s)
		mustAppend(t, s, script(t, "u T1 t1")...)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"create 0..3", "append 3..3"}; !slices.Equal(f.written(), want) {
			t.Errorf("written %v", f.written())
		}
	})
	t.Run("and cannot", func(t *testing.T) {
		var said strings.Builder
		f := newFake()
		reg := newRegistry(t, session.Config{Store: f, CheckpointFrom: 1, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		s := prepare(t, reg, session.New{ID: "s"})
		detach := enter(t, reg, s)
		mustAppend(t, s, script(t, "u T1 t1")...)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.setHook(func(op string) verdict {
			return verdict{skip: op == "append", err: map[bool]error{true: errDisk}[op == "append"]}
		})
		if err := detach(t.Context()); err != nil {
			t.Errorf("all of it is stored, and the end says %v", err)
		}
		if !strings.Contains(said.String(), errDisk.Error()) {
			t.Errorf("logged: %s", said.String())
		}
	})
	t.Run("lost", func(t *testing.T) {
		f := newFake()
		reg := newRegistry(t, session.Config{Store: f, CheckpointFrom: 1})
		s := prepare(t, reg, session.New{ID: "s"})
		detach := enter(t, reg, s)
		mustAppend(t, s, script(t, "u T1 t1")...)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.setHook(func(op string) verdict {
			return verdict{err: map[bool]error{true: &session.FencedError{ID: "s"}}[op == "check"]}
		})
		var fenced *session.FencedError
		if err := s.CheckOwner(t.Context()); !errors.As(err, &fenced) {
			t.Fatal(err)
		}
		if err := detach(t.Context()); err != nil {
			t.Error(err)
		}
		if len(f.written()) != 1 {
			t.Errorf("who was taken over wrote %v", f.written())
		}
	})
}

// A child that is forked from a log which was opened without its events shares them.
func TestForkOfAColdLog(t *testing.T) {
	reg, st, _ := library(t, session.Config{})
	shelve(t, reg, "s", someTurns(t)...)
	s := reopen(t, reg, "s")
	detach := enter(t, reg, s)
	p := s.Prefix()
	heir := prepare(t, reg, session.New{ID: "heir", Root: "s", ParentSession: "s", Seed: &session.Seed{Prefix: p}})
	end := enter(t, reg, heir)
	mustAppend(t, heir, script(t, "T2 u t2")...)
	mustAppend(t, s, script(t, "T2 u t2")...)
	if err := errors.Join(end(t.Context()), detach(t.Context())); err != nil {
		t.Fatal(err)
	}
	idle := prepare(t, reg, session.New{ID: "idle", Root: "s", ParentSession: "s", Seed: &session.Seed{Prefix: p}})
	if err := enter(t, reg, idle)(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, left := cellOf(t, st, "idle"); left {
		t.Errorf("a fork that did nothing leaves %s", c.Value)
	}
	for _, id := range []session.ID{"s", "heir"} {
		s := reopen(t, reg, id)
		if !s.Cold() {
			t.Errorf("%s: the log was read", id)
		}
		if msgs, _ := s.History(); len(msgs) != 4 {
			t.Errorf("%s: the history is %q", id, texts(msgs))
		}
		if err := reg.Abandon(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	if meta := recordAt(t, st, "heir").Meta; meta.Prefix != (session.PrefixRef{ID: "s", Len: p.Len()}) {
		t.Errorf("the heir's prefix is %+v", meta.Prefix)
	}
}

// A compaction outside a turn is the first that needs the log.
func TestCompactionOfAColdLog(t *testing.T) {
	reg, st, u := library(t, session.Config{})
	shelve(t, reg, "s", someTurns(t)...)
	before := replayed(t, reg, st, "s")
	nodes, _ := before.Surface()
	d := session.Draft{Payload: say("sum", "summary"), Op: session.SurfaceOp{Kind: session.OpReplace, Start: nodes[0].Seq, End: nodes[len(nodes)-1].Seq}}
	for _, n := range nodes {
		d.Sources = append(d.Sources, n.Seq)
	}
	s := reopen(t, reg, "s")
	detach := enter(t, reg, s)
	hold := append(drafts(script(t, "P0:c m0:c")...), d, drafts(script(t, "p0:c")...)[0])
	if _, err := s.Append(hold...); err != nil {
		t.Fatal(err)
	}
	if msgs, _ := s.History(); len(msgs) != 1 || msgs[0].ID != "sum" {
		t.Errorf("the history is %q", texts(msgs))
	}
	if err := detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s = reopen(t, reg, "s"); !s.Cold() {
		t.Error("the log was read")
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := replayed(t, reg, st, "s")
	if diff := cmp.Diff(inWhole(t, u, want), inWhole(t, u, s)); diff != "" {
		t.Errorf("(-replayed +loaded):\n%s", diff)
	}
}

// Whatever stands where a checkpoint should, the session is opened; it is that of the log,
// or it says so when it is loaded.
func FuzzCheckpoint(f *testing.F) {
	reg, st, u := library(f, session.Config{})
	shelve(f, reg, "s", someTurns(f)...)
	honest, _ := cellOf(f, st, "s")
	_, state, _ := strings.Cut(strings.TrimSuffix(string(honest.Value), "}"), `"state":`)
	for _, seed := range []string{
		state, "", "null", "{}", strings.Replace(state, `"seq":`, `"seq":9`, 1), strings.Replace(state, `"wake":true,`, "", 1),
		strings.Replace(state, `"turn":1`, `"turn":4`, 1), strings.Replace(state, `"mark":0`, `"mark":9`, 1), strings.Replace(state, `"worked":true`, `"took":["a","a"]`, 1),
	} {
		f.Add([]byte(seed))
	}
	want := replayed(f, reg, st, "s")
	f.Fuzz(func(t *testing.T, state []byte) {
		st.record = setCell(resumeKey, func(c *session.Checkpoint) {
			c.Value = fmt.Appendf(nil, `{"sum":%d,"state":%s}`, crc32.ChecksumIEEE(state), state)
		})
		s := reopen(t, reg, "s")
		st.record = nil
		defer func() {
			if err := reg.Abandon(t.Context(), s); err != nil {
				t.Error(err)
			}
		}()
		told := atOnce(t, u, s)
		var corrupt *session.CorruptError
		switch err := s.Load(t.Context()); {
		case errors.As(err, &corrupt):
		case err != nil:
			t.Error(err)
		case s.FirstLive() != want.Head():
			t.Errorf("it was opened at %d of %d events", s.FirstLive(), want.Head())
		default:
			if again := atOnce(t, u, s); again != told {
				t.Errorf("it was\n%s\nand is\n%s", told, again)
			}
			if msgs, _ := s.History(); len(msgs) == 0 {
				t.Error("it has no history")
			}
		}
	})
}
