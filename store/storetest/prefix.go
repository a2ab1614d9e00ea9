package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// forked returns the log of a fork: the prefix, then n own events that differ
// from what the original has there.
func forked(prefix []session.Event, by string, n int64) []session.Event {
	out := append([]session.Event(nil), prefix...)
	for range n {
		seq := int64(len(out))
		out = append(out, event(seq, fmt.Sprintf(`{"by":%q,"n":%d}`, by, seq)))
	}
	return out
}

// fork creates a session that shares the first length events of another and has
// n of its own, and returns its whole log.
func (r *rig) fork(id, of session.ID, length, n int64) []session.Event {
	r.Helper()
	_, base := r.log(of)
	want := forked(base[:length], string(id), n)
	h := header(id, 2)
	h.SeedLength = length
	m := session.Meta{Root: id, Prefix: session.PrefixRef{ID: of, Len: length}}
	w, err := r.Create(r.ctx, h, m, want[length:], nil)
	if err != nil {
		r.Fatalf("fork %s: %v", id, err)
	}
	r.close(w)
	r.wantLog(id, want)
	return want
}

func (r *rig) wantPrefix(id session.ID, want session.PrefixRef) {
	r.Helper()
	if rec, _ := r.log(id); rec.Meta.Prefix != want {
		r.Fatalf("prefix of %s is %+v, want %+v", id, rec.Meta.Prefix, want)
	}
}

func testPrefix(t *testing.T, f Factory) {
	t.Run("a prefix is read through and names the session it lies in", func(t *testing.T) {
		r := open(t, f)
		w := r.create("a", 4)
		r.append(w, 4, 4)
		b := r.fork("b", "a", 6, 3) // ends inside a's second batch
		r.wantPrefix("b", session.PrefixRef{ID: "a", Len: 6})
		c := r.fork("c", "b", 8, 1) // reaches into b's own events
		r.wantPrefix("c", session.PrefixRef{ID: "b", Len: 8})
		d := r.fork("d", "c", 6, 2) // lies wholly in what c and b have from a
		r.wantPrefix("d", session.PrefixRef{ID: "a", Len: 6})
		e := r.fork("e", "c", 7, 0) // has no event of its own, ends in b
		r.wantPrefix("e", session.PrefixRef{ID: "b", Len: 7})
		for id, log := range map[session.ID][]session.Event{"b": b, "c": c, "d": d, "e": e} {
			r.wantLog(id, log)
			for seq := range len(log) {
				got := r.collect(r.ReadFrom(r.ctx, id, int64(seq)))
				if diff := cmp.Diff(lines(log[seq:]), lines(got)); diff != "" {
					t.Fatalf("%s from %d (-want +got):\n%s", id, seq, diff)
				}
			}
		}

		t.Log("the original grows on, and so do the forks")
		r.append(w, 8, 2)
		wb := r.open("b")
		r.append(wb, 9, 1)
		r.wantLog("b", append(b, events(9, 1)...))
		r.wantLog("c", c)
		r.wantLog("a", events(0, 10))
	})
	t.Run("long events in one write, read and inherited from anywhere", func(t *testing.T) {
		r := open(t, f)
		log := events(0, 1)
		for _, size := range []int{1<<20 + 1, 10, 400_000, 700_000, 2 << 20, 10} {
			seq := int64(len(log))
			log = append(log, event(seq, fmt.Sprintf(`{"n":%d,"text":%q}`, seq, strings.Repeat("line\n", size/5))))
		}
		w, err := r.Create(r.ctx, header("a", 1), session.Meta{Root: "a"}, log[:3], nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(r.ctx, 3, log[3:], nil); err != nil {
			t.Fatal(err)
		}
		r.close(w)
		same := func(what string, want, got []session.Event) {
			t.Helper()
			if !slices.Equal(lines(want), lines(got)) {
				t.Fatalf("%s: %d events, not the %d that were stored", what, len(got), len(want))
			}
		}
		for seq := range len(log) {
			same(fmt.Sprintf("from %d", seq), log[seq:], r.collect(r.ReadFrom(r.ctx, "a", int64(seq))))
		}
		heirs := map[session.ID][]session.Event{}
		for cut := 1; cut < len(log); cut++ {
			id := session.ID(fmt.Sprintf("cut-%d", cut))
			heirs[id] = r.fork(id, "a", int64(cut), 1)
		}
		r.delete("a")
		for id, want := range heirs {
			_, got := r.log(id)
			same(string(id), want, got)
		}
	})
	t.Run("a prefix that is not stored is refused", func(t *testing.T) {
		r := open(t, f)
		r.create("a", 3)
		for _, tt := range []struct {
			ref  session.PrefixRef
			head int64
		}{
			{session.PrefixRef{ID: "a", Len: 4}, 3},
			{session.PrefixRef{ID: "none", Len: 1}, -1},
			{session.PrefixRef{ID: "b", Len: 1}, -1}, // itself
		} {
			_, err := r.Create(r.ctx, header("b", 1), session.Meta{Root: "b", Prefix: tt.ref}, events(tt.ref.Len, 1), nil)
			want := session.PrefixError{ID: "b", Prefix: tt.ref, Head: tt.head}
			if diff := cmp.Diff(want, *wantAs[*session.PrefixError](t, "create", err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
		}
		if ok, _ := r.Exists(r.ctx, "b"); ok {
			t.Fatal("a refused creation left a row")
		}
	})
	t.Run("events start behind the prefix", func(t *testing.T) {
		r := open(t, f)
		r.create("a", 3)
		m := session.Meta{Root: "b", Prefix: session.PrefixRef{ID: "a", Len: 2}}
		if _, err := r.Create(r.ctx, header("b", 1), m, events(0, 3), nil); err == nil {
			t.Fatal("created with the prefix's events stored again")
		}
	})
}

func testDelete(t *testing.T, f Factory) {
	t.Run("a session goes with all that is its own", func(t *testing.T) {
		r := open(t, f)
		w, err := r.Create(r.ctx, header("s", 1), session.Meta{Root: "s"}, events(0, 3), []session.Checkpoint{{Key: "k", Value: []byte(`1`)}})
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, "delete while held", r.Delete(r.ctx, "s"), session.ErrInUse)
		r.close(w)
		r.delete("s")
		if ok, _ := r.Exists(r.ctx, "s"); ok {
			t.Fatal("it is still there")
		}
		_, err = r.Open(r.ctx, "s")
		wantIs(t, "open", err, session.ErrNotFound)

		t.Log("the id is free, and starts from nothing")
		r.create("s", 1)
		r.wantLog("s", events(0, 1))
		if rec, _ := r.log("s"); len(rec.Cells) != 0 {
			t.Fatalf("cells of its namesake: %v", rec.Cells)
		}
	})
	t.Run("a tree in use is left alone", func(t *testing.T) {
		r := open(t, f)
		r.close(r.create("r", 1))
		child := r.createMeta(header("c", 2), session.Meta{Root: "r"}, 1)
		wantIs(t, "delete the root of a held child", r.Delete(r.ctx, "r"), session.ErrInUse)
		o := r.second(f)
		wantIs(t, "delete by another process", o.Delete(o.ctx, "r"), session.ErrInUse)
		r.close(child)
		o.delete("r")
		o.wantLog("c", events(0, 1))
	})
	t.Run("the longest referrer takes the events over", func(t *testing.T) {
		r := open(t, f)
		w := r.create("a", 4)
		r.append(w, 4, 6) // one batch that the cut at 7 falls into
		r.close(w)
		short := r.fork("short", "a", 2, 1)
		long := r.fork("long", "a", 7, 2)
		mid := r.fork("mid", "a", 5, 0)
		onLong := r.fork("onlong", "long", 8, 1)
		r.delete("a")
		r.wantPrefix("long", session.PrefixRef{})
		r.wantPrefix("short", session.PrefixRef{ID: "long", Len: 2})
		r.wantPrefix("mid", session.PrefixRef{ID: "long", Len: 5})
		r.wantPrefix("onlong", session.PrefixRef{ID: "long", Len: 8})
		for id, log := range map[session.ID][]session.Event{"short": short, "long": long, "mid": mid, "onlong": onLong} {
			r.wantLog(id, log)
		}

		t.Log("and so on, down a chain, in any order")
		r.delete("long") // onlong reaches furthest
		r.wantPrefix("onlong", session.PrefixRef{})
		r.wantPrefix("mid", session.PrefixRef{ID: "onlong", Len: 5})
		r.wantLog("short", short)
		r.wantLog("mid", mid)
		r.wantLog("onlong", onLong)
		r.delete("onlong")
		r.wantPrefix("mid", session.PrefixRef{})
		r.wantPrefix("short", session.PrefixRef{ID: "mid", Len: 2})
		r.wantLog("short", short)
		r.wantLog("mid", mid)
		r.delete("mid")
		r.wantLog("short", short)
		wm := r.open("short")
		r.append(wm, 3, 1)
		r.wantLog("short", append(short, events(3, 1)...))
	})
	t.Run("the middle of a chain hands its own prefix on", func(t *testing.T) {
		r := open(t, f)
		r.close(r.create("a", 5))
		r.fork("b", "a", 3, 4)
		c := r.fork("c", "b", 6, 1)
		r.delete("b")
		r.wantPrefix("c", session.PrefixRef{ID: "a", Len: 3})
		r.wantLog("c", c)
		r.wantLog("a", events(0, 5))
		r.delete("c")
		r.wantLog("a", events(0, 5))
	})
	t.Run("a live referrer in another tree goes on", func(t *testing.T) {
		r := open(t, f)
		r.close(r.create("a", 5))
		w := r.createMeta(header("b", 2), session.Meta{Root: "b", Prefix: session.PrefixRef{ID: "a", Len: 4}}, 1)
		_, early, err := r.Inspect(r.ctx, "b")
		if err != nil {
			t.Fatal(err)
		}
		r.delete("a")
		r.append(w, 5, 1)
		r.wantLog("b", events(0, 6))
		if diff := cmp.Diff(lines(events(0, 5)), lines(r.collect(early))); diff != "" {
			t.Fatalf("a reader from before (-want +got):\n%s", diff)
		}
	})
}
