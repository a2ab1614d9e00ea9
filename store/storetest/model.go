package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
)

// modelSession is what the naive model knows of a session: it copies whole logs
// and knows nothing of prefixes.
type modelSession struct {
	at     int64
	root   session.ID
	log    []session.Event
	writer session.Writer
}

// model runs random operations on a store and on the model.
type model struct {
	r        *rig
	cwd      string
	serial   int
	sessions map[session.ID]*modelSession
}

// testModel compares a store with a naive model under random operations. One
// store serves all runs; each has a folder of its own.
func testModel(t *testing.T, f Factory) {
	r := open(t, f)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		m := &model{r: r, cwd: fmt.Sprintf("/run/%d", runs), sessions: map[session.ID]*modelSession{}}
		rt.Repeat(map[string]func(*rapid.T){
			"create": m.create,
			"append": m.append,
			"open":   m.open,
			"close":  m.close,
			"delete": m.delete,
			"read":   m.read,
			"list":   m.list,
		})
		for _, id := range m.ids() {
			m.check(rt, id, 0)
		}
	})
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

func (m *model) events(first, n int64) []session.Event {
	out := make([]session.Event, 0, n)
	for seq := first; seq < first+n; seq++ {
		m.serial++
		out = append(out, event(seq, fmt.Sprintf(`{"serial":%d}`, m.serial)))
	}
	return out
}

func (m *model) create(t *rapid.T) {
	m.serial++
	id := session.ID(fmt.Sprintf("m%s/%d", m.cwd, m.serial))
	s := &modelSession{at: rapid.Int64Range(0, 5).Draw(t, "at"), root: id}
	h := header(id, s.at)
	h.Cwd = m.cwd
	meta := session.Meta{Root: id}
	if len(m.sessions) > 0 && rapid.Bool().Draw(t, "fork") {
		of, base := m.pick(t)
		length := rapid.IntRange(0, len(base.log)+1).Draw(t, "length")
		meta.Prefix = session.PrefixRef{ID: of, Len: int64(length)}
		if length > len(base.log) {
			_, err := m.r.Create(m.r.ctx, h, meta, nil, nil)
			var e *session.PrefixError
			if !errors.As(err, &e) {
				t.Fatalf("a prefix beyond the log: %v", err)
			}
			return
		}
		s.log = slices.Clone(base.log[:length])
	}
	if len(m.sessions) > 0 && rapid.Bool().Draw(t, "child") {
		_, parent := m.pick(t)
		s.root, meta.Root = parent.root, parent.root
	}
	own := m.events(int64(len(s.log)), rapid.Int64Range(0, 3).Draw(t, "n"))
	w, err := m.r.Create(m.r.ctx, h, meta, own, nil)
	if err != nil {
		t.Fatalf("create %s: %v", id, err)
	}
	s.log, s.writer = append(s.log, own...), w
	m.sessions[id] = s
}

func (m *model) append(t *rapid.T) {
	id, s := m.pick(t)
	if s.writer == nil {
		t.Skip("not held")
	}
	head := int64(len(s.log))
	off := rapid.SampledFrom([]int64{0, 0, 0, 0, 1, -1}).Draw(t, "off")
	batch := m.events(head+off, rapid.Int64Range(0, 4).Draw(t, "n"))
	err := s.writer.Append(m.r.ctx, head+off, batch, nil)
	if off != 0 {
		var e *session.ConflictError
		if !errors.As(err, &e) || e.Head != head {
			t.Fatalf("append to %s at %d of %d: %v", id, head+off, head, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("append to %s: %v", id, err)
	}
	s.log = append(s.log, batch...)
}

func (m *model) open(t *rapid.T) {
	id, s := m.pick(t)
	w, err := m.r.Open(m.r.ctx, id)
	if s.writer != nil {
		if !errors.Is(err, session.ErrExists) {
			t.Fatalf("open %s twice: %v", id, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("open %s: %v", id, err)
	}
	s.writer = w
}

func (m *model) close(t *rapid.T) {
	id, s := m.pick(t)
	if s.writer == nil {
		t.Skip("not held")
	}
	if err := s.writer.Close(m.r.ctx); err != nil {
		t.Fatalf("close %s: %v", id, err)
	}
	s.writer = nil
}

func (m *model) delete(t *rapid.T) {
	id, s := m.pick(t)
	inUse := false
	for _, o := range m.sessions {
		inUse = inUse || (o.root == s.root && o.writer != nil)
	}
	err := m.r.Delete(m.r.ctx, id)
	if inUse {
		if !errors.Is(err, session.ErrInUse) {
			t.Fatalf("delete %s in use: %v", id, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("delete %s: %v", id, err)
	}
	delete(m.sessions, id)
}

func (m *model) read(t *rapid.T) {
	id, s := m.pick(t)
	m.check(t, id, rapid.IntRange(0, len(s.log)).Draw(t, "from"))
}

func (m *model) check(t *rapid.T, id session.ID, from int) {
	var got []session.Event
	for e, err := range m.r.ReadFrom(m.r.ctx, id, int64(from)) {
		if err != nil {
			t.Fatalf("read %s from %d: %v", id, from, err)
		}
		got = append(got, e)
	}
	if diff := gocmp.Diff(lines(m.sessions[id].log[from:]), lines(got)); diff != "" {
		t.Fatalf("%s from %d (-want +got):\n%s", id, from, diff)
	}
}

func (m *model) list(t *rapid.T) {
	p := session.Page{Limit: rapid.IntRange(1, 4).Draw(t, "limit"), Newest: rapid.Bool().Draw(t, "newest")}
	var got []session.ID
	for {
		l, err := m.r.List(m.r.ctx, session.Filter{Cwd: m.cwd}, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range l.Records {
			got = append(got, rec.Header.ID)
			s := m.sessions[rec.Header.ID]
			if s == nil || rec.Head != int64(len(s.log)) || (rec.Owner != nil) != (s.writer != nil) || rec.Meta.Root != s.root {
				t.Fatalf("listed %+v, the model has %+v", rec, s)
			}
		}
		if p.After = l.Next; p.After == "" {
			break
		}
	}
	want := m.ids()
	if p.Newest {
		slices.Reverse(want)
	}
	if !slices.Equal(want, got) {
		t.Fatalf("listed %v, want %v", got, want)
	}
}
