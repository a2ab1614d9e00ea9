package subagent_test

import (
	"context"
	"slices"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
)

// LIST-01, LIST-03, LIST-04, LIST-09, LIST-10, LIST-11, LIST-19, LIST-20, LIST-28,
// LIST-29, LIST-35, LIST-38, LIST-45, LIST-48; D34, OBS-13: what is listed, in which
// order, and what a row says. No parent exists at all, and no provider either.
func TestListChildren(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		inactive := "inactive"
		if l.cold(childOf("a", "p"), worked(session.ModeOneShot)...) {
			inactive = "running"
		}
		l.cold(childOf("b", "p"), worked(session.ModeOneShot, "labelled")...)
		l.live(childOf("c", "p"), descriptorOf(session.ModeContinuable, "waits"))
		l.cold(childOf("d", "p"), worked(session.ModeContinuable, "")...)
		l.cold(ordinary("fork", "p"), worked(session.ModeOneShot, "a fork is no child")...)
		l.cold(childOf("other", "q"), worked(session.ModeOneShot, "of another parent")...)
		stranger := childOf("stranger", "p")
		stranger.Root = "" // a tree of its own, whose header names a parent from elsewhere
		l.cold(stranger, worked(session.ModeOneShot, "imported")...)
		l.cold(childOf("p", "p"), worked(session.ModeOneShot, "its own parent")...)
		l.cold(childOf("e", "p"), append(worked(session.ModeOneShot, "first"), descriptorOf(session.ModeContinuable, "last"))...)
		// Created in one moment: by id. The clock stands still for them.
		l.clock--
		l.live(childOf("g", "p"), descriptorOf(session.ModeOneShot, "same time"))
		l.clock -= 2
		l.live(childOf("f", "p"), descriptorOf(session.ModeOneShot, "same time"))

		l.live(childOf("a1", "a"))                                       // in the making
		l.cold(childOf("b1", "b"), &session.Title{Title: "no identity"}) // a diagnostic of b
		l.cold(ordinary("d1", "d"))                                      // no subagent
		l.cold(childOf("f1", "f"), worked(session.ModeOneShot)...)       // a child of a live one

		l.wantChildren(t, "children", "p",
			`child a one-shot `+inactive+` +`,
			`child b one-shot `+inactive+` "labelled" +`,
			`child c continuable running "waits"`,
			`child d continuable `+inactive+` ""`,
			`child e continuable `+inactive+` "last"`,
			`child f one-shot running "same time" +`,
			`child g one-shot running "same time"`,
		)
		l.wantChildren(t, "LIST-10 a childless session", "c")
		l.wantChildren(t, "LIST-10 nobody", "nobody")
		if l.store != nil {
			l.wantChildren(t, "LIST-29 the grandchild is a diagnostic where it is listed itself", "b", "diagnostic b1 corrupt")
		}
		l.wantChildren(t, "LIST-03 an ordinary session is nobody's subagent", "d")
	})
}

// LIST-12, LIST-13, LIST-14, LIST-15, LIST-16, LIST-44; D30: which rung answers, and
// what it costs. Nothing is written whatever is read.
func TestListRungs(t *testing.T) {
	cell := func(version int, seq int64, value string) []session.Checkpoint {
		return []session.Checkpoint{{Key: session.CellIdentity, Version: version, Seq: seq, Value: []byte(value)}}
	}
	const good = `{"mode":"continuable","provider":"spawn","label":"cached","seq":1}`
	for _, kind := range []string{"memory", "sqlite"} {
		for _, tc := range []struct {
			name  string
			seed  int64
			cells []session.Checkpoint
			read  bool
			want  string
		}{
			{"LIST-13 an identity in the row", 0, cell(1, 2, good), false, `child x continuable inactive "cached"`},
			{"LIST-14 of the own suffix", 1, cell(1, 2, good), false, `child x continuable inactive "cached"`},
			{"LIST-14 inherited", 2, cell(1, 2, good), true, `diagnostic x corrupt`},
			{"LIST-15 no row of it", 0, nil, true, `child x one-shot inactive "raw"`},
			{"LIST-15 another key", 0, []session.Checkpoint{{Key: session.CellTitle, Version: 1, Seq: 2, Value: []byte(`{"title":"T"}`)}}, true, `child x one-shot inactive "raw"`},
			{"LIST-15 null", 0, cell(1, 2, `null`), true, `child x one-shot inactive "raw"`},
			{"LIST-15 another version", 0, cell(9, 2, good), true, `child x one-shot inactive "raw"`},
			{"LIST-15 damaged", 0, cell(1, 2, `{"mode":`), true, `child x one-shot inactive "raw"`},
			{"LIST-15 incomplete", 0, cell(1, 2, `{"provider":"spawn","seq":1}`), true, `child x one-shot inactive "raw"`},
			{"LIST-15 ahead of the log", 0, cell(1, 3, good), true, `child x one-shot inactive "raw"`},
		} {
			t.Run(kind+"/"+tc.name, func(t *testing.T) {
				l := newLab(t, t.Context(), openStore(t, kind))
				l.raw(session.Header{ID: "x", ParentSession: "p", SeedLength: tc.seed}, tc.cells, turnStart, oneShot, turnEnd)
				for range 2 { // the second listing finds what the first found
					l.store.reset()
					before, _, err := l.store.Store.Inspect(t.Context(), "x")
					if err != nil {
						t.Fatal(err)
					}
					l.wantChildren(t, "children", "p", tc.want)
					var read []session.ID
					if tc.read {
						read = []session.ID{"x"}
					}
					if !slices.Equal(l.store.inspects, read) || l.store.reads != 0 {
						t.Errorf("LIST-16: inspected %v and read %d logs, want %v and none", l.store.inspects, l.store.reads, read)
					}
					after, _, err := l.store.Store.Inspect(t.Context(), "x")
					if err != nil {
						t.Fatal(err)
					}
					if after.UpdatedAt != before.UpdatedAt || after.Owner != nil || len(after.Cells) != len(before.Cells) || after.Head != 3 {
						t.Errorf("LIST-44: the record changed from %+v to %+v", before, after)
					}
				}
			})
		}
		t.Run(kind+"/LIST-12 live", func(t *testing.T) {
			l := newLab(t, t.Context(), openStore(t, kind))
			s := l.live(childOf("x", "p"), worked(session.ModeOneShot, "live")...)
			for _, stored := range []bool{false, true} {
				if stored {
					if err := s.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				l.store.reset()
				l.wantChildren(t, "children", "p", `child x one-shot running "live"`)
				if len(l.store.inspects) != 0 || l.store.reads != 0 {
					t.Errorf("inspected %v, read %d logs", l.store.inspects, l.store.reads)
				}
			}
		})
	}
}

// LIST-12, D25: a unit that came later than the session is folded over the log in
// memory, on that session alone.
func TestListLateUnit(t *testing.T) {
	l := newLab(t, t.Context(), nil)
	l.live(childOf("a", "p"), worked(session.ModeOneShot, "before")...)
	if _, err := l.units.Register(failing("late", session.TypeSandboxMode)); err != nil {
		t.Fatal(err)
	}
	l.live(childOf("b", "p"), worked(session.ModeOneShot, "after")...)
	l.live(childOf("c", "p"), append(worked(session.ModeOneShot, "after"), &session.SandboxMode{Mode: "x"})...)
	l.wantChildren(t, "children", "p",
		`child a one-shot running "before"`, `child b one-shot running "after"`, `diagnostic c corrupt`)
	a, ok := l.reg.Get("a")
	if !ok {
		t.Fatal("a is not live")
	}
	l.append(a, &session.SandboxMode{Mode: "x"})
	l.wantChildren(t, "the late unit fails", "p",
		`diagnostic a corrupt`, `child b one-shot running "after"`, `diagnostic c corrupt`)
}

// failing is a unit of somebody else that panics at events of a type.
func failing(key string, at session.Type) projection.Unit {
	return projection.Unit{
		Key: key, Version: 1, Types: []session.Type{at},
		Init:   func(*session.Header) projection.Value { return 0 },
		Apply:  func(projection.Value, *session.Event, session.Payload) projection.Value { panic("boom") },
		Append: func(buf []byte, _ projection.Value) []byte { return append(buf, '0') },
		Parse:  func(*session.Header, []byte) (projection.Value, error) { return 0, nil },
	}
}

// LIST-23, LIST-40, LIST-41, P22, DES-19, OBS-06: on no rung does an inherited
// descriptor make a child. Running, the child is in the making; inactive, it is
// damaged; with a descriptor of its own it is itself.
func TestListOwnSuffix(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		ancestor := l.live(childOf("ancestor", "p"), worked(session.ModeContinuable, "ancestor")...)
		if l.store != nil {
			if err := ancestor.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		fork := func(id string) session.New {
			n := childOf(id, "ancestor")
			n.Seed = &session.Seed{Prefix: ancestor.Prefix()}
			return n
		}
		own := []session.Payload{&session.TurnStart{Turn: 2}, descriptorOf(session.ModeOneShot, "own")}
		l.live(fork("a-making"))
		l.live(fork("b-live"), own...)
		inactive := []string{`diagnostic c-cold corrupt`, `child d-cold one-shot inactive "own"`}
		if l.cold(fork("c-cold")) {
			inactive = []string{`child d-cold one-shot running "own"`}
		}
		l.cold(fork("d-cold"), own...)
		l.wantChildren(t, "forks", "ancestor", append([]string{`child b-live one-shot running "own"`}, inactive...)...)
		if l.store == nil {
			return
		}
		// The rows tell the first three rungs apart; these have none to tell from.
		for _, tc := range []struct{ id, line, want string }{
			{"e-raw", turnEnd, `diagnostic e-raw corrupt`},
			{"f-raw", oneShot, `child f-raw one-shot inactive "raw"`},
		} {
			l.raw(session.Header{ID: session.ID(tc.id), ParentSession: "raws", SeedLength: 2}, nil,
				`turn/start {"turn":1}`, `subagent/descriptor {"version":2,"mode":"one-shot","provider":"spawn","label":"inherited"}`, tc.line)
		}
		l.wantChildren(t, "read anew", "raws", `diagnostic e-raw corrupt`, `child f-raw one-shot inactive "raw"`)
	})
}

// LIST-20, LIST-23, AMB-28: a session that another process holds is running, and
// without an identity it is in the making; when that process is gone it is not.
func TestListHeldElsewhere(t *testing.T) {
	store := memory.New()
	other := store.Backend().Open()
	defer func() { _ = other.Close(t.Context()) }()
	l := newLab(t, t.Context(), store)
	for id, lines := range map[string][]string{"a-named": {turnStart, oneShot}, "b-making": {turnStart}} {
		var events []session.Event
		for i, line := range lines {
			events = append(events, rawEvent(int64(i), 1, line))
		}
		h := session.Header{ID: session.ID(id), ParentSession: "p", Origin: session.OriginSubagent}
		if _, err := other.Create(t.Context(), h, session.Meta{Root: "root"}, events, nil); err != nil {
			t.Fatal(err)
		}
	}
	l.wantChildren(t, "held", "p", `child a-named one-shot running "raw"`)
	other.Kill()
	l.wantChildren(t, "after a crash", "p", `child a-named one-shot inactive "raw"`, `diagnostic b-making corrupt`)
}

// LIST-47: what else a row tells comes at no further read, from each rung, and no
// field of the row itself encodes it.
func TestListSummary(t *testing.T) {
	labs(t, func(t *testing.T, l *lab) {
		log := []session.Payload{
			&session.TurnStart{Turn: 1}, descriptorOf(session.ModeContinuable, "c"), &session.Title{Title: "T"},
			&session.TurnEnd{Turn: 1, Kind: session.EndMaxTokens},
		}
		l.live(childOf("a", "p"), log...)
		l.cold(childOf("b", "p"), log...)
		if l.store != nil {
			l.raw(session.Header{ID: "c", ParentSession: "p"}, nil, turnStart, oneShot, `session/title {"title":"T"}`, `turn/end {"turn":1,"reason":{"kind":"max-tokens"}}`)
			l.store.reset()
		}
		rows, err := l.ListChildren(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		if l.store != nil {
			read = len(l.store.inspects)
		}
		for _, r := range rows {
			sum := r.Summary()
			if sum.Identity == nil || sum.Title == nil || sum.Title.Text != "T" || sum.State == nil || sum.State.Reason != session.EndMaxTokens || sum.Usage == nil {
				t.Errorf("%s: summary %+v", r.ID, sum)
			}
			if took := sum.Timing(); r.ID != "c" && took != (projection.Timing{Settled: 3}) {
				t.Errorf("%s: timing %+v", r.ID, took)
			}
		}
		if l.store != nil && (len(rows) != 3 || len(l.store.inspects) != read || l.store.reads != 0) {
			t.Errorf("%d rows; inspected %v, read %d logs", len(rows), l.store.inspects, l.store.reads)
		}
	})
}

// LIST-05, LIST-06, LIST-07, D35: what a listing needs is checked before anything is
// read, for both operations and for pages of them; TREE-09.
func TestListPreconditions(t *testing.T) {
	l := newLab(t, t.Context(), memory.New())
	bare, err := projection.NewRegistry(projection.TitleUnit())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		lister subagent.Lister
		code   subagent.Code
	}{
		{"LIST-05 no projections", subagent.Lister{Sessions: l.reg}, subagent.CodeProjectionsUnavailable},
		{"LIST-05 no identity unit", subagent.Lister{Sessions: l.reg, Projections: bare}, subagent.CodeProjectionsUnavailable},
		{"LIST-06 no sessions", subagent.Lister{Projections: l.units}, subagent.CodeSessionStoreUnavailable},
		{"LIST-07 neither", subagent.Lister{}, subagent.CodeProjectionsUnavailable},
		{"LIST-07 neither, no identity unit", subagent.Lister{Projections: bare}, subagent.CodeProjectionsUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// What is asked makes no difference then.
			for _, err := range allListings(tc.lister, t.Context(), "nobody", subagent.ListPage{}) {
				wantCode(t, err, tc.code)
			}
			for _, err := range allListings(tc.lister, t.Context(), "", subagent.ListPage{Limit: -1}) {
				wantCode(t, err, tc.code)
			}
		})
	}
	gone, end := context.WithCancel(t.Context())
	end()
	for _, err := range allListings(l.Lister, gone, "", subagent.ListPage{}) {
		wantCode(t, err, subagent.CodeInvalidRequest)
	}
	_, err = l.PageChildren(gone, "p", subagent.ListPage{Limit: -1})
	wantCode(t, err, subagent.CodeInvalidRequest)
	_, err = l.PageDescendants(gone, "p", subagent.ListPage{After: "nonsense"})
	wantCode(t, err, subagent.CodeInvalidRequest)
	for _, err := range allListings(l.Lister, t.Context(), "", subagent.ListPage{}) {
		wantCode(t, err, subagent.CodeInvalidRequest)
	}
	for _, p := range []subagent.ListPage{{Limit: -1}, {Limit: subagent.MaxPageLimit + 1}, {After: "nonsense"}, {After: "12:"}, {After: "x:y"}} {
		_, err := l.PageChildren(t.Context(), "p", p)
		wantCode(t, err, subagent.CodeInvalidRequest)
		_, err = l.PageDescendants(t.Context(), "p", p)
		wantCode(t, err, subagent.CodeInvalidRequest)
	}
	if l.store.lists != 0 {
		t.Errorf("the store was read %d times", l.store.lists)
	}
}
