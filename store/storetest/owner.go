package storetest

import (
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/session"
)

// Ages around the take-over age of 15 s and the owner's own deadline of 10 s.
const (
	lateAge  = 12 * time.Second
	staleAge = 20 * time.Second
)

func testOwnership(t *testing.T, f Factory) {
	if f.Second == nil {
		t.Skip("the factory has no second owner")
	}
	// tree makes root r with child c, both held, and a stored-only child d.
	tree := func(r *rig) (root, child session.Writer) {
		root = r.create("r", 2)
		h := header("c", 2)
		h.ParentSession = "r"
		child = r.createMeta(h, session.Meta{Root: "r"}, 1)
		h.ID = "d"
		r.close(r.createMeta(h, session.Meta{Root: "r"}, 1))
		return root, child
	}

	t.Run("D18 a tree has one live owner", func(t *testing.T) {
		a := open(t, f)
		root, _ := tree(a)
		b := a.second(f)
		for _, id := range []session.ID{"r", "c", "d"} {
			_, err := b.Open(b.ctx, id)
			if e := wantAs[*session.OwnedError](t, "open "+string(id), err); e.ID != id || e.Owner.ID == "" || e.Owner.PID == 0 {
				t.Fatalf("error is %+v", e)
			}
		}
		_, err := b.Create(b.ctx, header("e", 3), session.Meta{Root: "r"}, nil, nil)
		refused[*session.OwnedError](t, "create under an owned root", err)
		if ok, _ := b.Exists(b.ctx, "e"); ok {
			t.Fatal("a refused creation left a row")
		}
		b.close(b.create("unrelated", 1))
		a.append(root, 2, 1)
		b.wantLog("r", events(0, 3))
		rec, _ := b.log("r")
		if rec.Owner == nil || !rec.Live {
			t.Fatalf("the other sees owner %v, live %v", rec.Owner, rec.Live)
		}
	})
	t.Run("D18 given up is free", func(t *testing.T) {
		a := open(t, f)
		root, child := tree(a)
		b := a.second(f)
		a.close(root)
		_, err := b.Open(b.ctx, "r")
		refused[*session.OwnedError](t, "open while the child is held", err)
		a.close(child)
		w := b.open("r")
		b.append(w, 2, 1)
		_, err = a.Open(a.ctx, "c")
		refused[*session.OwnedError](t, "open by the former owner", err)
		wantIs(t, "append by the former writer", root.Append(a.ctx, 3, events(3, 1), nil), session.ErrClosed)
	})
	t.Run("D18 closing a store frees its trees", func(t *testing.T) {
		a := open(t, f)
		tree(a)
		if err := a.Close(a.ctx); err != nil {
			t.Fatal(err)
		}
		b := a.second(f)
		b.append(b.open("r"), 2, 1)
		b.append(b.open("c"), 1, 1)
	})
	// takeOver checks what a taker gets and what the former owner may do.
	takeOver := func(t *testing.T, a, b *rig, root, child session.Writer) {
		t.Helper()
		if rec, _ := b.log("r"); rec.Owner == nil || rec.Live {
			t.Fatalf("the dead owner is seen as %v, live %v", rec.Owner, rec.Live)
		}
		wc := b.open("c")
		b.append(wc, 1, 1)
		// The whole tree was taken, not only the session that was opened.
		for _, w := range []session.Writer{root, child} {
			head := int64(2)
			if e := wantAs[*session.FencedError](t, "append by the former owner", w.Append(a.ctx, head, events(head, 1), nil)); e.ID == "" {
				t.Fatalf("error is %+v", e)
			}
			refused[*session.FencedError](t, "check by the former owner", w.Check(a.ctx))
		}
		_, err := a.Create(a.ctx, header("e", 3), session.Meta{Root: "r"}, nil, nil)
		refused[*session.OwnedError](t, "create by the former owner", err)
		_, err = a.Open(a.ctx, "d")
		refused[*session.OwnedError](t, "open by the former owner", err)
		// What the former owner gives up is not its to give.
		a.close(root)
		a.close(child)
		b.append(wc, 2, 1)
		b.append(b.open("r"), 2, 1)
		b.wantLog("r", events(0, 3))
		b.wantLog("c", events(0, 3))
	}
	t.Run("a dead owner is taken over at once", func(t *testing.T) {
		if f.Kill == nil {
			t.Skip("the factory cannot simulate a dead process")
		}
		a := open(t, f)
		root, child := tree(a)
		b := a.second(f)
		f.Kill(t, a.Store)
		takeOver(t, a, b, root, child)
	})
	t.Run("a paused owner is taken over and fenced out", func(t *testing.T) {
		if f.Age == nil {
			t.Skip("the factory cannot age a heartbeat")
		}
		a := open(t, f)
		root, child := tree(a)
		b := a.second(f)
		f.Age(t, a.Store, lateAge)
		_, err := b.Open(b.ctx, "c")
		refused[*session.OwnedError](t, "open before the take-over age", err)
		f.Age(t, a.Store, staleAge)
		takeOver(t, a, b, root, child)
	})
	t.Run("a late owner renews before it goes on", func(t *testing.T) {
		if f.Age == nil {
			t.Skip("the factory cannot age a heartbeat")
		}
		a := open(t, f)
		root, child := tree(a)
		b := a.second(f)
		f.Age(t, a.Store, staleAge)
		if err := root.Check(a.ctx); err != nil {
			t.Fatal(err)
		}
		_, err := b.Open(b.ctx, "r")
		refused[*session.OwnedError](t, "open after the renewal", err)

		t.Log("a renewal finds what was taken meanwhile, whoever asks")
		f.Age(t, a.Store, staleAge)
		taken := b.open("d")
		b.close(taken)
		refused[*session.FencedError](t, "check", root.Check(a.ctx))
		refused[*session.FencedError](t, "check", child.Check(a.ctx))
	})
	t.Run("creation in a dead owner's tree takes it", func(t *testing.T) {
		if f.Kill == nil {
			t.Skip("the factory cannot simulate a dead process")
		}
		a := open(t, f)
		root, _ := tree(a)
		b := a.second(f)
		f.Kill(t, a.Store)
		b.createMeta(header("e", 3), session.Meta{Root: "r"}, 1)
		refused[*session.FencedError](t, "append by the former owner", root.Append(a.ctx, 2, events(2, 1), nil))
	})
}

func testReadersChangeNothing(t *testing.T, f Factory) {
	if f.Dump == nil {
		t.Skip("the factory cannot dump its backend")
	}
	r := open(t, f)
	r.create("held", 3)
	r.close(r.create("free", 3))
	m := session.Meta{Root: "fork", Prefix: session.PrefixRef{ID: "free", Len: 2}}
	r.close(r.createMeta(header("fork", 2), m, 2))
	if f.Damage != nil {
		r.close(r.create("bad", 1))
		f.Damage(t, r.Store, "bad")
	}
	before := f.Dump(t, r.Store)
	for _, id := range []session.ID{"held", "free", "fork"} {
		r.log(id)
		r.collect(r.ReadFrom(r.ctx, id, 1))
		if _, err := r.Exists(r.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for _, newest := range []bool{false, true} {
		if _, err := r.List(r.ctx, session.Filter{}, session.Page{Newest: newest}); err != nil {
			t.Fatal(err)
		}
	}
	if after := f.Dump(t, r.Store); after != before {
		t.Fatalf("D12: a reader changed the backend\nbefore: %s\nafter:  %s", before, after)
	}
}
