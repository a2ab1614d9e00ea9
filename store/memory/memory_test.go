package memory_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
)

func factory() storetest.Factory {
	return storetest.Factory{
		Open: func(testing.TB) session.Store { return memory.New() },
		Second: func(_ testing.TB, s session.Store) session.Store {
			return s.(*memory.Store).Backend().Open()
		},
		Kill: func(_ testing.TB, s session.Store) { s.(*memory.Store).Kill() },
		Age:  func(_ testing.TB, s session.Store, d time.Duration) { s.(*memory.Store).Age(d) },
		Damage: func(_ testing.TB, s session.Store, id session.ID) {
			s.(*memory.Store).Backend().Damage(id, &session.CorruptError{ID: id, Seq: -1, Err: errors.New("damaged")})
		},
		Dump: dump,
	}
}

// dump tells what readers can see; the package has nothing else.
func dump(t testing.TB, s session.Store) string {
	l, err := s.List(t.Context(), session.Filter{}, session.Page{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range l.Records {
		r.Owner = nil // its heartbeat is the clock's
		fmt.Fprintf(&b, "%+v\n", r)
	}
	return b.String()
}

// D22: the suite that every store passes.
func TestConformance(t *testing.T) { storetest.Run(t, factory()) }

// Of an event its bytes are kept, not what it was made from.
func TestKeepsBytesAlone(t *testing.T) {
	s := memory.New()
	r, err := session.NewRegistry(t.Context(), session.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	log, err := r.Prepare(t.Context(), session.New{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(session.Draft{Payload: &session.Title{Title: "t"}}); err != nil {
		t.Fatal(err)
	}
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range s.ReadFrom(t.Context(), "s", 0) {
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.PayloadOf(e)
		if title, ok := p.(*session.Title); err != nil || !ok || title.Title != "t" || e.Payload() != nil {
			t.Errorf("event %d holds %v and says %v, %v", e.Seq, e.Payload(), p, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d events are stored", n)
	}
}

// A one-shot child's row: create with two events, one append, close.
func BenchmarkOneShot(b *testing.B) {
	s := memory.New()
	batch := make([]session.Event, 10)
	for i := range batch {
		batch[i] = session.RawEvent(session.Event{Type: "turn/start", Seq: int64(i), Time: 1}, []byte(`{"turn":1}`))
	}
	root := session.ID("root")
	if _, err := s.Create(b.Context(), session.Header{ID: root}, session.Meta{Root: root}, nil, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		id := session.ID(fmt.Sprintf("c%09d", n))
		w, err := s.Create(b.Context(), session.Header{ID: id, CreatedAt: int64(n)}, session.Meta{Root: root}, batch[:2], nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := w.Append(b.Context(), 2, batch[2:], nil); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
