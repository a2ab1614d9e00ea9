package storetest

import (
	"context"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

// testDiscard: the writer of a session takes it back (seam RB-19).
func testDiscard(t *testing.T, f Factory) {
	// family makes root r with child c, both held. c has two batches and checkpoints of
	// both kinds.
	family := func(r *rig) (root, child session.Writer) {
		root = r.create("r", 2)
		h := header("c", 2)
		h.ParentSession = "r"
		child = r.createMeta(h, session.Meta{Root: "r"}, 2)
		cells := []session.Checkpoint{{Key: session.CellState, Seq: 2, Value: []byte(`{"state":"x"}`)}, {Key: "k", Seq: 2, Value: []byte(`1`)}}
		if err := child.Append(r.ctx, 2, events(2, 1), cells); err != nil {
			r.Fatal(err)
		}
		return root, child
	}
	discard := func(r *rig, w session.Writer) {
		r.Helper()
		if err := w.Discard(r.ctx); err != nil {
			r.Fatalf("discard: %v", err)
		}
	}
	gone := func(r *rig, id session.ID, left string) {
		r.Helper()
		if ok, err := r.Exists(r.ctx, id); ok || err != nil {
			r.Fatalf("%s exists: %v, %v", id, ok, err)
		}
		_, _, err := r.Inspect(r.ctx, id)
		wantIs(r, "inspect", err, session.ErrNotFound)
		for _, err := range r.ReadFrom(r.ctx, id, 0) {
			wantIs(r, "read", err, session.ErrNotFound)
		}
		_, err = r.Open(r.ctx, id)
		wantIs(r, "open", err, session.ErrNotFound)
		l, err := r.List(r.ctx, session.Filter{}, session.Page{})
		if err != nil {
			r.Fatal(err)
		}
		if got := ids(l.Records); got != left {
			r.Fatalf("listed are %q, want %q", got, left)
		}
	}

	t.Run("it goes with all that is its own, and the tree stays owned", func(t *testing.T) {
		r := open(t, f)
		root, child := family(r)
		discard(r, child)
		gone(r, "c", "r")
		wantIs(t, "append", child.Append(r.ctx, 3, events(3, 1), nil), session.ErrClosed)
		wantIs(t, "check", child.Check(r.ctx), session.ErrClosed)
		_, err := child.Head(r.ctx)
		wantIs(t, "head", err, session.ErrClosed)
		wantIs(t, "discard again", child.Discard(r.ctx), session.ErrClosed)
		r.close(child)
		r.append(root, 2, 1)
		if err := root.Check(r.ctx); err != nil {
			t.Fatal(err)
		}

		t.Log("the id is free, and starts from nothing")
		h := header("c", 3)
		h.ParentSession = "r"
		again := r.createMeta(h, session.Meta{Root: "r"}, 1)
		r.wantLog("c", events(0, 1))
		if rec, _ := r.log("c"); len(rec.Cells) != 0 {
			t.Fatalf("cells of its namesake: %v", rec.Cells)
		}
		if l, err := r.List(r.ctx, session.Filter{State: "x"}, session.Page{}); err != nil || len(l.Records) != 0 {
			t.Fatalf("found by the state of its namesake: %v, %v", l.Records, err)
		}
		wantIs(t, "discard by the writer of its namesake", child.Discard(r.ctx), session.ErrClosed)
		r.append(again, 1, 1)
		r.wantLog("r", events(0, 3))
	})
	t.Run("another process finds the tree owned, and then free", func(t *testing.T) {
		r := open(t, f)
		root, child := family(r)
		o := r.second(f)
		discard(r, child)
		_, err := o.Open(o.ctx, "r")
		refused[*session.OwnedError](t, "open", err)
		_, err = o.Create(o.ctx, header("c", 1), session.Meta{Root: "r"}, nil, nil)
		refused[*session.OwnedError](t, "create", err)
		discard(r, root)
		gone(o, "r", "")
		o.append(o.create("r", 1), 1, 1)
	})
	t.Run("one that another needs is left alone", func(t *testing.T) {
		r := open(t, f)
		root, child := family(r)
		m := session.Meta{Root: "fork", Prefix: session.PrefixRef{ID: "c", Len: 2}}
		fork := r.createMeta(header("fork", 3), m, 1)
		wantIs(t, "discard a parent", root.Discard(r.ctx), session.ErrInUse)
		wantIs(t, "discard a prefix", child.Discard(r.ctx), session.ErrInUse)
		r.append(root, 2, 1)
		r.append(child, 3, 1)
		r.append(fork, 3, 1)
		r.wantLog("r", events(0, 3))
		r.wantLog("c", events(0, 4))
		r.wantLog("fork", events(0, 4))

		t.Log("until it is needed no more")
		discard(r, fork)
		discard(r, child)
		discard(r, root)
		gone(r, "r", "")
	})
	t.Run("what it shares stays", func(t *testing.T) {
		r := open(t, f)
		root := r.create("r", 4)
		h := header("c", 2)
		h.ParentSession = "r"
		discard(r, r.createMeta(h, session.Meta{Root: "r", Prefix: session.PrefixRef{ID: "r", Len: 3}}, 2))
		gone(r, "c", "r")
		r.wantLog("r", events(0, 4))
		discard(r, root)
		gone(r, "r", "")
	})
	t.Run("lineage alone needs nobody", func(t *testing.T) {
		r := open(t, f)
		w := r.create("r", 1)
		h := header("i", 2)
		h.ParentSession = "r" // imported without its parent
		r.createMeta(h, session.Meta{Root: "i"}, 1)
		discard(r, w)
		gone(r, "r", "i")
	})
	t.Run("a writer that was closed or whose caller is gone deletes nothing", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 2)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		wantIs(t, "discard", w.Discard(ctx), context.Canceled)
		r.append(w, 2, 1)
		r.close(w)
		wantIs(t, "discard", w.Discard(r.ctx), session.ErrClosed)
		r.wantLog("s", events(0, 3))
		r.append(r.open("s"), 3, 1)
	})
	t.Run("a writer that was fenced out deletes nothing", func(t *testing.T) {
		if f.Kill == nil {
			t.Skip("the factory cannot simulate a dead process")
		}
		r := open(t, f)
		root, child := family(r)
		o := r.second(f)
		f.Kill(t, r.Store)
		taken := o.open("r")
		for _, w := range []session.Writer{child, root} {
			refused[*session.FencedError](t, "discard", w.Discard(r.ctx))
		}
		o.append(taken, 2, 1)
		o.append(o.open("c"), 3, 1)
		o.wantLog("c", events(0, 4))
		if rec, _ := o.log("c"); len(rec.Cells) != 2 {
			t.Fatalf("its cells are %v", rec.Cells)
		}
	})
}
