package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
)

// modelSession is what the naive model knows of a session: it copies whole logs
// and knows nothing of prefixes.
type modelSession struct {
	at    int64
	root  session.ID
	up    session.ID // whose child it is
	log   []session.Event
	cells map[string]string // key to value and seq, as of a listing
	// owner is the process that holds it, or -1; writers are its writers, one a store.
	owner   int
	writers []session.Writer
}

// model runs the same random operations on several backends and on the model. Each
// backend is used by two processes; one that dies is replaced by another.
type model struct {
	factories []Factory
	rigs      [][2]*rig // of each backend
	cwd       string
	serial    int
	sessions  map[session.ID]*modelSession
	// lost are writers of processes that died or were taken from: they must never
	// store anything again.
	lost [][]session.Writer
}

// Walk compares backends with each other and with a naive model under random
// operations of two processes: creations with and without a prefix, appends at the
// right and at a wrong head, openings, deletions, listings, the death of a process.
// It counts in *done.
func Walk(t *testing.T, done *int64, factories ...Factory) func(rt *rapid.T) {
	// One backend of each serves all runs; each run has a folder of its own.
	m := &model{factories: factories}
	for _, f := range factories {
		first := open(t, f)
		both := [2]*rig{first, first}
		if f.Second != nil {
			both[1] = first.second(f)
		}
		m.rigs = append(m.rigs, both)
	}
	runs := 0
	return func(rt *rapid.T) {
		runs++
		m.cwd, m.sessions, m.lost = fmt.Sprintf("/run/%d", runs), map[session.ID]*modelSession{}, nil
		count := func(fn func(*rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) {
				fn(t)
				*done++
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create":   count(m.create),
			"append":   count(m.append),
			"append 2": count(m.append), // more often than the others
			"open":     count(m.open),
			"close":    count(m.close),
			"delete":   count(m.delete),
			"discard":  count(m.discard),
			"read":     count(m.read),
			"list":     count(m.list),
			"die":      count(m.die),
			"lost":     count(m.late),
		})
		for _, id := range m.ids() {
			m.check(rt, id, 0)
			m.release(rt, m.sessions[id])
		}
	}
}

// testModel is a short walk over one backend.
func testModel(t *testing.T, f Factory) {
	var done int64
	rapid.Check(t, Walk(t, &done, f))
}

func (m *model) ids() []session.ID {
	out := make([]session.ID, 0, len(m.sessions))
	for id := range m.sessions {
		out = append(out, id)
	}
	slices.SortFunc(out, func(a, b session.ID) int {
		return cmp.Or(cmp.Compare(m.sessions[a].at, m.sessions[b].at), cmp.Compare(a, b))
	})
	return out
}

// pick draws a stored session, or skips the step.
func (m *model) pick(t *rapid.T) (session.ID, *modelSession) {
	if len(m.sessions) == 0 {
		t.Skip("nothing stored")
	}
	id := rapid.SampledFrom(m.ids()).Draw(t, "id")
	return id, m.sessions[id]
}

// process draws one of the two.
func (m *model) process(t *rapid.T) int { return rapid.IntRange(0, 1).Draw(t, "process") }

// other reports whether the model's second process is another one than the first.
func (m *model) other() bool { return m.rigs[0][0] != m.rigs[0][1] }

// refuses reports whether a process may not work in a tree, because the other does.
func (m *model) refuses(root session.ID, p int) bool {
	for _, s := range m.sessions {
		if s.root == root && s.owner >= 0 && s.owner != p && m.other() {
			return true
		}
	}
	return false
}

func (m *model) events(first, n int64) []session.Event {
	out := make([]session.Event, 0, n)
	for seq := first; seq < first+n; seq++ {
		m.serial++
		out = append(out, event(seq, fmt.Sprintf(`{"serial":%d}`, m.serial)))
	}
	return out
}

// cells returns some checkpoints for a write that leaves the log at head.
func (m *model) cells(t *rapid.T, s *modelSession, head int64) (cells []session.Checkpoint) {
	for _, key := range []string{session.CellTitle, session.CellState} {
		if !rapid.Bool().Draw(t, key) {
			continue
		}
		m.serial++
		c := session.Checkpoint{Key: key, Version: 1, Seq: head - 1 + rapid.SampledFrom([]int64{0, 0, 0, 1}).Draw(t, "ahead"), Value: fmt.Appendf(nil, `{"state":"s%d"}`, m.serial)}
		cells = append(cells, c)
		if c.Seq < head && c.Seq >= 0 {
			s.cells[key] = fmt.Sprintf("%d %s", c.Seq, c.Value)
		}
	}
	return cells
}

// each runs an operation on every backend; whoever fails where the model does not,
// or the other way round, fails the test.
func (m *model) each(t *rapid.T, what string, p int, fn func(i int, r *rig) error, want func(error) bool) {
	for i := range m.rigs {
		if err := fn(i, m.rigs[i][p]); !want(err) {
			t.Fatalf("backend %d: %s by process %d: %v", i, what, p, err)
		}
	}
}

func fine(err error) bool { return err == nil }

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func (m *model) create(t *rapid.T) {
	m.serial++
	p := m.process(t)
	id := session.ID(fmt.Sprintf("m%s/%d", m.cwd, m.serial))
	s := &modelSession{at: rapid.Int64Range(0, 5).Draw(t, "at"), root: id, owner: p, cells: map[string]string{}}
	h := header(id, s.at)
	h.Cwd = m.cwd
	meta := session.Meta{Root: id}
	want := fine
	if len(m.sessions) > 0 && rapid.Bool().Draw(t, "fork") {
		of, base := m.pick(t)
		length := rapid.IntRange(0, len(base.log)+1).Draw(t, "length")
		meta.Prefix = session.PrefixRef{ID: of, Len: int64(length)}
		if length > len(base.log) {
			want = as[*session.PrefixError]
		} else {
			s.log = slices.Clone(base.log[:length])
		}
	}
	if len(m.sessions) > 0 && rapid.Bool().Draw(t, "child") {
		of, parent := m.pick(t)
		s.root, meta.Root = parent.root, parent.root
		s.up, h.ParentSession = of, of
	}
	if m.refuses(s.root, p) {
		missing := want
		want = func(err error) bool {
			return as[*session.OwnedError](err) || missing(err) && err != nil
		}
	}
	if old, stored := m.taken(t); stored {
		// An id that exists is refused, whoever asks.
		h.ID, want = old, func(err error) bool { return err != nil }
	}
	head := int64(len(s.log))
	own := m.events(meta.Prefix.Len, rapid.Int64Range(0, 3).Draw(t, "n"))
	cells := m.cells(t, s, head+int64(len(own)))
	failed := false
	m.each(t, "create "+string(h.ID), p, func(_ int, r *rig) error {
		w, err := r.Create(r.ctx, h, meta, own, cells)
		s.writers = append(s.writers, w)
		failed = err != nil
		return err
	}, want)
	if failed {
		return
	}
	s.log = append(s.log, own...)
	m.sessions[id] = s
}

// taken draws, now and then, the id of a stored session.
func (m *model) taken(t *rapid.T) (session.ID, bool) {
	if len(m.sessions) == 0 || rapid.IntRange(0, 9).Draw(t, "taken") > 0 {
		return "", false
	}
	id, _ := m.pick(t)
	return id, true
}

func (m *model) append(t *rapid.T) {
	id, s := m.pick(t)
	if s.owner < 0 {
		t.Skip("not held")
	}
	head := int64(len(s.log))
	off := rapid.SampledFrom([]int64{0, 0, 0, 0, 1, -1}).Draw(t, "off")
	batch := m.events(head+off, rapid.Int64Range(0, 4).Draw(t, "n"))
	want := fine
	var cells []session.Checkpoint
	if off != 0 {
		want = func(err error) bool {
			var e *session.ConflictError
			return errors.As(err, &e) && e.Head == head
		}
	} else {
		cells = m.cells(t, s, head+int64(len(batch)))
	}
	m.each(t, "append to "+string(id), s.owner, func(i int, r *rig) error {
		return s.writers[i].Append(r.ctx, head+off, batch, cells)
	}, want)
	if off == 0 {
		s.log = append(s.log, batch...)
	}
}

func (m *model) open(t *rapid.T) {
	id, s := m.pick(t)
	p := m.process(t)
	want := fine
	switch {
	case s.owner >= 0 && (s.owner == p || !m.other()):
		want = is(session.ErrExists)
	case m.refuses(s.root, p):
		want = as[*session.OwnedError]
	}
	writers := make([]session.Writer, len(m.rigs))
	m.each(t, "open "+string(id), p, func(i int, r *rig) (err error) {
		writers[i], err = r.Open(r.ctx, id)
		return err
	}, want)
	if writers[0] != nil {
		s.owner, s.writers = p, writers
	}
}

func (m *model) close(t *rapid.T) {
	_, s := m.pick(t)
	if s.owner < 0 {
		t.Skip("not held")
	}
	m.release(t, s)
}

func (m *model) release(t *rapid.T, s *modelSession) {
	if s.owner < 0 {
		return
	}
	m.each(t, "close", s.owner, func(i int, r *rig) error { return s.writers[i].Close(r.ctx) }, fine)
	s.owner, s.writers = -1, nil
}

func (m *model) delete(t *rapid.T) {
	id, s := m.pick(t)
	p := m.process(t)
	inUse := false
	for _, o := range m.sessions {
		inUse = inUse || (o.root == s.root && o.owner >= 0)
	}
	want := fine
	if inUse {
		want = is(session.ErrInUse)
	}
	m.each(t, "delete "+string(id), p, func(_ int, r *rig) error { return r.Delete(r.ctx, id) }, want)
	if inUse {
		return
	}
	m.gone(t, id, p)
}

// gone takes a session out of the model, and checks that the backends have none.
func (m *model) gone(t *rapid.T, id session.ID, p int) {
	delete(m.sessions, id)
	m.each(t, "look for "+string(id), p, func(_ int, r *rig) error {
		if found, err := r.Exists(r.ctx, id); err != nil || found {
			return fmt.Errorf("%v, %w", found, err)
		}
		return nil
	}, fine)
}

// discard has a session's writer delete it.
func (m *model) discard(t *rapid.T) {
	id, s := m.pick(t)
	if s.owner < 0 {
		t.Skip("not held")
	}
	want := fine
	for other, o := range m.sessions {
		rec, _ := m.rigs[0][0].log(other) // what a prefix names is the store's to say
		if o.up == id || rec.Meta.Prefix.ID == id {
			want = is(session.ErrInUse)
		}
	}
	failed := false
	m.each(t, "discard "+string(id), s.owner, func(i int, r *rig) error {
		err := s.writers[i].Discard(r.ctx)
		failed = err != nil
		return err
	}, want)
	if failed {
		return
	}
	m.each(t, "append behind the end", s.owner, func(i int, r *rig) error {
		return s.writers[i].Append(r.ctx, int64(len(s.log)), m.events(int64(len(s.log)), 1), nil)
	}, is(session.ErrClosed))
	m.gone(t, id, s.owner)
}

// die ends the second process without a word, and begins another.
func (m *model) die(t *rapid.T) {
	if !m.other() || m.factories[0].Kill == nil || rapid.IntRange(0, 4).Draw(t, "rarely") > 0 {
		t.Skip("nobody dies")
	}
	for i, f := range m.factories {
		dead := m.rigs[i][1]
		f.Kill(dead.TB, dead.Store)
		m.rigs[i][1] = dead.second(f)
	}
	for _, id := range m.ids() {
		if s := m.sessions[id]; s.owner == 1 {
			m.lost = append(m.lost, s.writers)
			s.owner, s.writers = -1, nil
		}
	}
}

// late has a writer of a dead process append. While nobody has taken its session,
// that is not known to anybody but the test; so it is taken first.
func (m *model) late(t *rapid.T) {
	if len(m.lost) == 0 {
		t.Skip("nobody died")
	}
	writers := m.lost[0]
	m.lost = m.lost[1:]
	for _, id := range m.ids() {
		if s := m.sessions[id]; s.owner < 0 && !m.refuses(s.root, 0) {
			s.writers = make([]session.Writer, len(m.rigs))
			m.each(t, "take "+string(id), 0, func(i int, r *rig) (err error) {
				s.writers[i], err = r.Open(r.ctx, id)
				return err
			}, fine)
			s.owner = 0
			m.release(t, s)
		}
	}
	m.each(t, "discard by the dead", 0, func(i int, r *rig) error { return writers[i].Discard(r.ctx) }, func(err error) bool { return err != nil })
	m.each(t, "append by the dead", 0, func(i int, r *rig) error {
		head, err := writers[i].Head(r.ctx)
		if err != nil {
			head = 0
		}
		return writers[i].Append(r.ctx, head, nil, nil)
	}, func(err error) bool { return err != nil })
}

func (m *model) read(t *rapid.T) {
	id, s := m.pick(t)
	m.check(t, id, rapid.IntRange(0, len(s.log)).Draw(t, "from"))
}

func (m *model) check(t *rapid.T, id session.ID, from int) {
	for i := range m.rigs {
		r := m.rigs[i][m.process(t)]
		var got []session.Event
		for e, err := range r.ReadFrom(r.ctx, id, int64(from)) {
			if err != nil {
				t.Fatalf("backend %d: read %s from %d: %v", i, id, from, err)
			}
			got = append(got, e)
		}
		if diff := gocmp.Diff(lines(m.sessions[id].log[from:]), lines(got)); diff != "" {
			t.Fatalf("backend %d: %s from %d (-want +got):\n%s", i, id, from, diff)
		}
	}
}

func (m *model) list(t *rapid.T) {
	p := session.Page{Limit: rapid.IntRange(1, 4).Draw(t, "limit"), Newest: rapid.Bool().Draw(t, "newest")}
	f := session.Filter{Cwd: m.cwd}
	if len(m.sessions) > 0 && rapid.Bool().Draw(t, "of a tree") {
		_, s := m.pick(t)
		f.Root = s.root
	}
	var want []session.ID
	for _, id := range m.ids() {
		if f.Root == "" || m.sessions[id].root == f.Root {
			want = append(want, id)
		}
	}
	if p.Newest {
		slices.Reverse(want)
	}
	for i := range m.rigs {
		m.listed(t, i, f, p, want)
	}
}

func (m *model) listed(t *rapid.T, i int, f session.Filter, p session.Page, want []session.ID) {
	r := m.rigs[i][m.process(t)]
	var got []session.ID
	for {
		l, err := r.List(r.ctx, f, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range l.Records {
			got = append(got, rec.Header.ID)
			s := m.sessions[rec.Header.ID]
			if s == nil || rec.Head != int64(len(s.log)) || rec.Live != (s.owner >= 0) || rec.Meta.Root != s.root {
				t.Fatalf("backend %d: listed %+v, the model has %+v", i, rec, s)
			}
			for key, cell := range s.cells {
				if c, ok := rec.Cell(key); !ok || fmt.Sprintf("%d %s", c.Seq, c.Value) != cell {
					t.Fatalf("backend %d: %s: checkpoint %+v, the model has %s", i, rec.Header.ID, c, cell)
				}
			}
		}
		if p.After = l.Next; p.After == "" {
			break
		}
	}
	if !slices.Equal(want, got) {
		t.Fatalf("backend %d: listed %s, want %s", i, strings.Join(strs(got), " "), strings.Join(strs(want), " "))
	}
}

func strs(ids []session.ID) (out []string) {
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}
