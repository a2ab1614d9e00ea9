package storetest

import (
	"fmt"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

func testList(t *testing.T, f Factory) {
	r := open(t, f)
	for i, s := range []struct {
		id, parent, root session.ID
		at               int64
		cwd, state       string
	}{
		{"a", "", "a", 30, "/x", "idle"},
		{"b", "a", "a", 10, "/x", "running"},
		{"c", "a", "a", 20, "/y", ""},
		{"d", "", "d", 20, "/y", "idle"},
		{"e", "b", "a", 20, "/x", "running"},
	} {
		h := header(s.id, s.at)
		h.Cwd, h.ParentSession = s.cwd, s.parent
		if s.parent != "" {
			h.Origin = session.OriginSubagent
		}
		var cells []session.Checkpoint
		if s.state != "" {
			cells = append(cells, session.Checkpoint{Key: session.CellState, Value: fmt.Appendf(nil, `{"state":%q}`, s.state)})
		}
		cells = append(cells, session.Checkpoint{Key: session.CellTitle, Version: i, Value: []byte(`"t"`)})
		w, err := r.Create(r.ctx, h, session.Meta{Root: s.root}, events(0, int64(i)+1), cells)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			r.close(w)
		}
	}

	t.Run("filters, in order of creation then id", func(t *testing.T) {
		for _, tt := range []struct {
			f            session.Filter
			want, newest string
		}{
			{session.Filter{}, "b c d e a", "a e d c b"},
			{session.Filter{Parent: "a"}, "b c", "c b"},
			{session.Filter{Root: "a"}, "b c e a", "a e c b"},
			{session.Filter{Top: true}, "d a", "a d"},
			{session.Filter{Origin: session.OriginSubagent}, "b c e", "e c b"},
			{session.Filter{Cwd: "/x"}, "b e a", "a e b"},
			{session.Filter{Cwd: "/x", Top: true}, "a", "a"},
			{session.Filter{State: "running"}, "b e", "e b"},
			{session.Filter{State: "running", Parent: "b"}, "e", "e"},
			{session.Filter{Root: "none"}, "", ""},
			{session.Filter{IDPrefix: "c"}, "c", "c"},
			{session.Filter{IDPrefix: "cc"}, "", ""},
			{session.Filter{IDPrefix: "a", Top: true}, "a", "a"},
			{session.Filter{IDPrefix: "b", Top: true}, "", ""},
			{session.Filter{Parents: []session.ID{"b", "none", "a", "b"}}, "b c e", "e c b"},
			{session.Filter{Parents: []session.ID{"b"}}, "e", "e"},
			{session.Filter{Parents: []session.ID{"a", "b"}, State: "running"}, "b e", "e b"},
			{session.Filter{Parents: []session.ID{"a", "b"}, Parent: "a"}, "b c", "c b"},
			{session.Filter{Parents: []session.ID{"b"}, Parent: "a"}, "", ""},
			{session.Filter{Parents: []session.ID{}}, "", ""},
		} {
			for newest, want := range map[bool]string{false: tt.want, true: tt.newest} {
				l, err := r.List(r.ctx, tt.f, session.Page{Newest: newest})
				if err != nil {
					t.Fatal(err)
				}
				if got := ids(l.Records); got != want || l.Next != "" {
					t.Errorf("%+v newest %v: %q next %q, want %q", tt.f, newest, got, l.Next, want)
				}
			}
		}
	})
	t.Run("a root that names a parent is nobody's child", func(t *testing.T) {
		r := open(t, f)
		h := header("orphan", 1)
		h.ParentSession, h.Origin, h.DelegationDepth = "p", session.OriginSubagent, 1
		r.close(r.createMeta(h, session.Meta{Root: "orphan"}, 1))
		r.close(r.create("p", 1)) // it comes to be later
		h.ID = "child"
		r.close(r.createMeta(h, session.Meta{Root: "p"}, 1))
		for _, tt := range []struct {
			f    session.Filter
			want string
		}{
			{session.Filter{Parent: "p"}, "child"}, {session.Filter{Root: "p"}, "child p"}, {session.Filter{Top: true}, "orphan p"},
		} {
			l, err := r.List(r.ctx, tt.f, session.Page{})
			if err != nil {
				t.Fatal(err)
			}
			if got := ids(l.Records); got != tt.want {
				t.Errorf("%+v lists %q, want %q", tt.f, got, tt.want)
			}
		}
		if rec, _ := r.log("orphan"); rec.Header.ParentSession != "p" {
			t.Errorf("the lineage was lost: %+v", rec.Header)
		}
	})
	t.Run("pages of every size", func(t *testing.T) {
		for _, newest := range []bool{false, true} {
			want := "b c d e a"
			if newest {
				want = "a e d c b"
			}
			for limit := 1; limit <= 6; limit++ {
				var all []session.Record
				p := session.Page{Limit: limit, Newest: newest}
				for {
					l, err := r.List(r.ctx, session.Filter{}, p)
					if err != nil {
						t.Fatal(err)
					}
					if len(l.Records) > limit || (len(l.Records) < limit && l.Next != "") {
						t.Fatalf("limit %d: a page of %d, next %q", limit, len(l.Records), l.Next)
					}
					all = append(all, l.Records...)
					if p.After = l.Next; p.After == "" {
						break
					}
				}
				if got := ids(all); got != want {
					t.Fatalf("limit %d newest %v: %q, want %q", limit, newest, got, want)
				}
			}
		}
	})
	t.Run("a page goes on where it stopped, whatever came or went", func(t *testing.T) {
		l, err := r.List(r.ctx, session.Filter{}, session.Page{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		r.close(r.createMeta(header("a0", 10), session.Meta{Root: "a0"}, 0)) // before the position
		r.close(r.createMeta(header("cc", 20), session.Meta{Root: "cc"}, 0)) // behind it
		rest, err := r.List(r.ctx, session.Filter{}, session.Page{After: l.Next})
		if err != nil {
			t.Fatal(err)
		}
		if got := ids(l.Records) + " " + ids(rest.Records); got != "b c cc d e a" {
			t.Fatalf("listed %q", got)
		}
		r.delete("a0")
		r.delete("cc")
		if _, err := r.List(r.ctx, session.Filter{}, session.Page{After: "nonsense"}); err == nil {
			t.Fatal("a malformed position was accepted")
		}
	})
	t.Run("a position need not be a session's", func(t *testing.T) {
		for at, want := range map[int64]string{5: "b c d e a", 15: "c d e a", 25: "a", 35: ""} {
			l, err := r.List(r.ctx, session.Filter{}, session.Page{After: session.Position(at, "nobody")})
			if err != nil {
				t.Fatal(err)
			}
			if got := ids(l.Records); got != want {
				t.Errorf("behind %d: %q, want %q", at, got, want)
			}
		}
		l, err := r.List(r.ctx, session.Filter{Parents: []session.ID{"a", "b"}}, session.Page{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		if l.Next != session.Position(20, "c") {
			t.Errorf("the next page begins at %q", l.Next)
		}
		rest, err := r.List(r.ctx, session.Filter{Parents: []session.ID{"a", "b"}}, session.Page{Limit: 2, After: l.Next})
		if err != nil {
			t.Fatal(err)
		}
		if got := ids(l.Records) + " " + ids(rest.Records); got != "b c e" || rest.Next != "" {
			t.Errorf("pages of children: %q, next %q", got, rest.Next)
		}
	})
	t.Run("a listing tells of children when it is asked", func(t *testing.T) {
		fork := header("c-fork", 40) // shares a parent, but was not delegated to
		fork.ParentSession = "c"
		self := header("d-self", 40)
		self.ParentSession, self.Origin = "d-self", session.OriginSubagent
		for _, h := range []session.Header{fork, self} {
			r.close(r.createMeta(h, session.Meta{Root: "other"}, 0))
		}
		for _, asked := range []bool{false, true} {
			l, err := r.List(r.ctx, session.Filter{}, session.Page{Children: asked})
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range l.Records {
				some, none := map[session.ID]bool{"b": true, "c": true}, rec.Child == ""
				switch id := rec.Header.ID; {
				case !asked, id != "a" && id != "b":
					if !none {
						t.Errorf("asked %v: %s has the child %q", asked, id, rec.Child)
					}
				case id == "a" && !some[rec.Child], id == "b" && rec.Child != "e":
					t.Errorf("%s has the child %q", id, rec.Child)
				}
			}
		}
		r.delete("c-fork")
		r.delete("d-self")
	})
	t.Run("records hold what a listing shows", func(t *testing.T) {
		l, err := r.List(r.ctx, session.Filter{}, session.Page{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.Records {
			rec := &l.Records[i]
			full, _ := r.log(rec.Header.ID)
			if rec.Header != full.Header || rec.Meta != full.Meta || rec.Head != full.Head || rec.UpdatedAt != full.UpdatedAt {
				t.Errorf("listed %+v, inspected %+v", rec, full)
			}
			if c, ok := rec.Cell(session.CellTitle); !ok || string(c.Value) != `"t"` {
				t.Errorf("%s: title %+v", rec.Header.ID, c)
			}
			held := rec.Header.ID == "b" || rec.Header.ID == "d"
			if (rec.Owner != nil) != held || rec.Live != held {
				t.Errorf("%s: owner %v live %v", rec.Header.ID, rec.Owner, rec.Live)
			}
		}
	})
	t.Run("D11 a damaged row is one record, and the listing goes on", func(t *testing.T) {
		if f.Damage == nil {
			t.Skip("the factory cannot damage a row")
		}
		f.Damage(t, r.Store, "c")
		l, err := r.List(r.ctx, session.Filter{}, session.Page{})
		if err != nil {
			t.Fatal(err)
		}
		if got := ids(l.Records); got != "b c d e a" {
			t.Fatalf("listed %q", got)
		}
		for _, rec := range l.Records {
			if rec.Header.ID != "c" {
				if rec.Err != nil {
					t.Errorf("%s: %v", rec.Header.ID, rec.Err)
				}
				continue
			}
			refused[*session.CorruptError](t, "the damaged row", rec.Err)
			place := session.Header{ID: "c", CreatedAt: 20, ParentSession: "a", Origin: session.OriginSubagent}
			if rec.Header != place {
				t.Errorf("the damaged row stands at %+v, want %+v", rec.Header, place)
			}
		}
		if l, err = r.List(r.ctx, session.Filter{Parent: "a"}, session.Page{}); err != nil || ids(l.Records) != "b c" {
			t.Errorf("the damaged row is no child any more: %q, %v", ids(l.Records), err)
		}
		_, _, err = r.Inspect(r.ctx, "c")
		refused[*session.CorruptError](t, "inspecting the damaged row", err)
	})
}
