package sqlite_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// step is what an agent's step appends: 8 events of about 500 bytes.
const step = 8

func benchStore(b *testing.B, sync sqlite.Sync) *sqlite.Store {
	return mustOpen(b, filepath.Join(b.TempDir(), "s.db"), sqlite.Options{Synchronous: sync})
}

// BenchmarkAppend appends steps by several sessions at once; an operation is one
// step of one session.
func BenchmarkAppend(b *testing.B) {
	for name, mode := range map[string]sqlite.Sync{"full": sqlite.Full, "normal": sqlite.Normal} {
		for _, writers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/writers=%d", name, writers), func(b *testing.B) {
				s := benchStore(b, mode)
				ws := make([]session.Writer, writers)
				heads := make([]int64, writers)
				for i := range ws {
					ws[i] = create(b, s, session.ID(fmt.Sprint("s", i)), 0)
				}
				before := s.Stats()
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					if n++; n%writers != 0 {
						continue // one round does an operation of each writer
					}
					var g sync.WaitGroup
					for i, w := range ws {
						g.Go(func() {
							batch := events(heads[i], step, 500)
							if err := w.Append(b.Context(), heads[i], batch, nil); err != nil {
								b.Error(err)
							}
							heads[i] += step
						})
					}
					g.Wait()
				}
				st := s.Stats()
				if requests := st.Requests - before.Requests; requests > 0 {
					b.ReportMetric(float64(st.Commits-before.Commits)/float64(requests), "commits/step")
				}
			})
		}
	}
}

// BenchmarkChild is what a one-shot child costs the store: a creation, one step,
// and the end.
func BenchmarkChild(b *testing.B) {
	for _, children := range []int{1, 100} {
		b.Run(fmt.Sprintf("at once=%d", children), func(b *testing.B) {
			s := benchStore(b, sqlite.Full)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if n++; n%children != 0 {
					continue
				}
				var g sync.WaitGroup
				for i := range children {
					g.Go(func() {
						h := header(session.ID(fmt.Sprintf("c%d-%d", n, i)), int64(n))
						h.ParentSession = "root"
						w, err := s.Create(b.Context(), h, session.Meta{Root: "root"}, events(0, 4, 500), nil)
						if err == nil {
							err = w.Append(b.Context(), 4, events(4, step, 500), nil)
						}
						if err == nil {
							err = w.Close(b.Context())
						}
						if err != nil {
							b.Error(err)
						}
					})
				}
				g.Wait()
			}
		})
	}
}

// BenchmarkInspect reads a log of 10,000 events of about 500 bytes.
func BenchmarkInspect(b *testing.B) {
	s := benchStore(b, sqlite.Normal)
	w := create(b, s, "s", 0)
	for head := int64(0); head < 10_000; head += step {
		if err := w.Append(b.Context(), head, events(head, step, 500), nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if n := readLog(b, s, "s"); n != 10_000 {
			b.Fatalf("%d events", n)
		}
	}
}

func readLog(b *testing.B, s session.Store, id session.ID) (n int) {
	_, seq, err := s.Inspect(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	for _, err := range seq {
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
	return n
}

// BenchmarkList lists 10,000 children with their checkpoints in one page.
func BenchmarkList(b *testing.B) {
	s := benchStore(b, sqlite.Normal)
	fillChildren(b, s, 10_000)
	list := func(b *testing.B, s session.Store) {
		l, err := s.List(b.Context(), session.Filter{Parent: "root"}, session.Page{Limit: 10_000})
		if err != nil || len(l.Records) != 10_000 {
			b.Fatalf("%d records, %v", len(l.Records), err)
		}
	}
	b.Run("open store", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			list(b, s)
		}
	})
	b.Run("opened for it", func(b *testing.B) {
		for b.Loop() {
			r, err := sqlite.OpenReadOnly(b.Context(), s.Path(), sqlite.Options{})
			if err != nil {
				b.Fatal(err)
			}
			list(b, r)
			if err := r.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func fillChildren(b *testing.B, s session.Store, n int) {
	var g sync.WaitGroup
	for part := range 8 {
		g.Go(func() {
			for i := part; i < n; i += 8 {
				h := header(session.ID(fmt.Sprintf("child-%05d", i)), int64(1700000000000+i))
				h.ParentSession, h.Origin, h.DelegationDepth, h.SeedLength = "root", session.OriginSubagent, 1, 0
				w, err := s.Create(b.Context(), h, session.Meta{Root: "root"}, events(0, 2, 500), []session.Checkpoint{
					{Key: session.CellIdentity, Version: 2, Seq: 1, Value: []byte(`{"seq":1,"mode":"continuable","label":"look at the tests","provider":"spawn"}`)},
					{Key: session.CellTitle, Version: 1, Seq: 1, Value: []byte(`"look at the tests of the parser"`)},
					{Key: session.CellUsage, Version: 1, Seq: 1, Value: []byte(`{"input":1200,"output":300,"cached":900}`)},
					{Key: session.CellState, Version: 1, Seq: 1, Value: []byte(`{"state":"idle","turns":1}`)},
				})
				if err == nil {
					err = w.Close(b.Context())
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	g.Wait()
}

// BenchmarkOpen opens and closes a store.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "s.db")
	for b.Loop() {
		s, err := sqlite.Open(b.Context(), path, sqlite.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLongEvent stores one event of 5 MiB between two short ones, as a spill and
// its result are, and reads it back alone.
func BenchmarkLongEvent(b *testing.B) {
	for name, mode := range map[string]sqlite.Sync{"full": sqlite.Full, "normal": sqlite.Normal} {
		s := benchStore(b, mode)
		w := create(b, s, "s", 0)
		var head int64
		long := events(0, 3, 500)
		long[1] = events(1, 1, 5<<20)[0]
		b.Run(name+"/append", func(b *testing.B) {
			b.SetBytes(5 << 20)
			b.ReportAllocs()
			for b.Loop() {
				for i := range long {
					long[i].Seq = head + int64(i)
				}
				if err := w.Append(b.Context(), head, long, nil); err != nil {
					b.Fatal(err)
				}
				head += 3
			}
		})
		b.Run(name+"/read", func(b *testing.B) {
			b.SetBytes(5 << 20)
			b.ReportAllocs()
			for b.Loop() {
				for e, err := range s.ReadFrom(b.Context(), "s", 1) {
					if err != nil || len(e.Data()) < 5<<20-200 {
						b.Fatal(len(e.Data()), err)
					}
					break
				}
			}
		})
	}
}
