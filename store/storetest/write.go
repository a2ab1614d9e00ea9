package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

func testCreate(t *testing.T, f Factory) {
	t.Run("D1 row, events and ownership at once", func(t *testing.T) {
		r := open(t, f)
		h := session.Header{
			Version: session.FormatVersion, ID: "s", CreatedAt: 42, Cwd: "/home/ü", ParentSession: "p", SeedLength: 3,
			Origin: session.OriginSubagent, DelegationDepth: 2, AgentPreset: "scout",
		}
		if ok, err := r.Exists(r.ctx, "s"); err != nil || ok {
			t.Fatalf("exists before creation: %v, %v", ok, err)
		}
		w := r.createMeta(h, session.Meta{Root: "root"}, 3)
		rec, got := r.log("s")
		if diff := cmp.Diff(h, rec.Header); diff != "" {
			t.Errorf("header (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(lines(events(0, 3)), lines(got)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if rec.Meta.Root != "root" || rec.Meta.Prefix != (session.PrefixRef{}) || rec.Head != 3 || rec.UpdatedAt == 0 {
			t.Errorf("record is %+v", rec)
		}
		if rec.Owner == nil || rec.Owner.ID == "" || !rec.Live {
			t.Errorf("owner is %v, live %v", rec.Owner, rec.Live)
		}
		if ok, err := r.Exists(r.ctx, "s"); err != nil || !ok {
			t.Errorf("exists after creation: %v, %v", ok, err)
		}
		if head, err := w.Head(r.ctx); err != nil || head != 3 {
			t.Errorf("head is %d, %v", head, err)
		}
	})
	t.Run("a session without events", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 0)
		r.wantLog("s", nil)
		r.append(w, 0, 2)
		r.wantLog("s", events(0, 2))
	})
	t.Run("an existing id is refused and stays as it was", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 2)
		_, err := r.Create(r.ctx, header("s", 9), session.Meta{Root: "s"}, events(0, 5), nil)
		wantIs(t, "create again", err, session.ErrExists)
		r.wantLog("s", events(0, 2))
		r.append(w, 2, 1)
		r.close(w)
		_, err = r.Create(r.ctx, header("s", 9), session.Meta{Root: "s"}, nil, nil)
		wantIs(t, "create again when stored only", err, session.ErrExists)
	})
	t.Run("events that do not start at the prefix are refused", func(t *testing.T) {
		r := open(t, f)
		if _, err := r.Create(r.ctx, header("s", 1), session.Meta{Root: "s"}, events(1, 2), nil); err == nil {
			t.Fatal("created with a gap")
		}
		if ok, _ := r.Exists(r.ctx, "s"); ok {
			t.Fatal("a refused creation left a row")
		}
	})
}

func testAppend(t *testing.T, f Factory) {
	t.Run("D21 batches follow one another", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		for head := int64(1); head < 20; head += head {
			r.append(w, head, head)
		}
		r.wantLog("s", events(0, 32))
	})
	t.Run("every field of an event survives", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 0)
		in := []session.Event{
			session.RawEvent(session.Event{Type: "user/message", Time: -1, Op: session.OpAppend}, []byte(`{"text":"\u0000 \n \" 𝄞 </script>","n":-9007199254740991,"z":0.5}`)),
			session.RawEvent(session.Event{Type: "user/message", Seq: 1, Time: 5}.Surface(session.SurfaceOp{Kind: session.OpReplace, Start: 0, End: 0}, []int64{0}), []byte(`{"a":[],"b":{},"c":null}`)),
			session.RawEvent(session.Event{Type: "x-unknown/type", Seq: 2, Time: 7, Ignorable: true}.Surface(session.SurfaceOp{}, []int64{}), []byte(`{}`)),
		}
		if err := w.Append(r.ctx, 0, in, nil); err != nil {
			t.Fatal(err)
		}
		_, got := r.log("s")
		if diff := cmp.Diff(lines(in), lines(got)); diff != "" {
			t.Fatalf("events (-want +got):\n%s", diff)
		}
		if got[1].Op != in[1].Op || len(got[1].Sources()) != 1 || got[2].Sources() == nil || !got[2].Ignorable {
			t.Fatalf("fields were lost: %+v", got)
		}
	})
	t.Run("D21 a wrong head is a conflict and stores nothing", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 3)
		for _, head := range []int64{0, 2, 4} {
			err := w.Append(r.ctx, head, events(head, 1), []session.Checkpoint{{Key: "k", Seq: 0, Value: []byte(`1`)}})
			if c := wantAs[*session.ConflictError](t, "append", err); c.Want != head || c.Head != 3 || c.ID != "s" {
				t.Fatalf("conflict is %+v", c)
			}
		}
		r.wantLog("s", events(0, 3))
		if rec, _ := r.log("s"); len(rec.Cells) != 0 {
			t.Fatalf("a refused append left cells: %v", rec.Cells)
		}
		r.append(w, 3, 1)
	})
	t.Run("events with a gap are refused", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		if err := w.Append(r.ctx, 1, []session.Event{event(1, `{}`), event(3, `{}`)}, nil); err == nil {
			t.Fatal("appended with a gap")
		}
		r.wantLog("s", events(0, 1))
	})
	t.Run("a batch of 5 MB", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		big := []session.Event{event(1, `{}`), event(2, `{"text":"`+strings.Repeat("x", 5<<20)+`"}`), event(3, `{}`)}
		if err := w.Append(r.ctx, 1, big, nil); err != nil {
			t.Fatal(err)
		}
		r.append(w, 4, 1)
		_, got := r.log("s")
		if len(got) != 5 || !bytes.Equal(got[2].Data(), big[1].Data()) || got[4].Seq != 4 {
			t.Fatalf("read back %d events", len(got))
		}
	})
	t.Run("a ctx that ended stores nothing", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		wantIs(t, "append", w.Append(ctx, 1, events(1, 1), nil), context.Canceled)
		_, err := r.Create(ctx, header("t", 1), session.Meta{Root: "t"}, nil, nil)
		wantIs(t, "create", err, context.Canceled)
		wantIs(t, "delete", r.Delete(ctx, "s"), context.Canceled)
		r.wantLog("s", events(0, 1))
		r.append(w, 1, 1)
	})
	t.Run("what lies behind the slice of events stays the caller's", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 0)
		log := append(make([]session.Event, 0, 8), events(0, 2)...)
		for _, cut := range []int{0, 1} {
			if err := w.Append(r.ctx, int64(cut), log[cut:cut+1], nil); err != nil {
				t.Fatal(err)
			}
			log = append(log[:cut+1], event(int64(cut)+1, `{"other":true}`))
		}
		r.wantLog("s", []session.Event{events(0, 1)[0], event(1, `{"other":true}`)})
	})
}

func testRead(t *testing.T, f Factory) {
	r := open(t, f)
	w := r.create("s", 4)
	r.append(w, 4, 3)
	r.append(w, 7, 5)
	all := events(0, 12)
	t.Run("D1 ReadFrom starts anywhere", func(t *testing.T) {
		for seq := int64(0); seq <= 13; seq++ {
			got := r.collect(r.ReadFrom(r.ctx, "s", seq))
			if diff := cmp.Diff(lines(all[min(seq, 12):]), lines(got)); diff != "" {
				t.Fatalf("from %d (-want +got):\n%s", seq, diff)
			}
		}
	})
	t.Run("a reader sees the log as of its call", func(t *testing.T) {
		_, early, err := r.Inspect(r.ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		from := r.ReadFrom(r.ctx, "s", 11)
		r.append(w, 12, 2)
		if got := r.collect(early); len(got) != 12 {
			t.Errorf("Inspect saw %d events", len(got))
		}
		if got := r.collect(from); len(got) != 1 {
			t.Errorf("ReadFrom saw %d events", len(got))
		}
	})
	t.Run("a reader may stop and may write meanwhile", func(t *testing.T) {
		n := int64(0)
		for e, err := range r.ReadFrom(r.ctx, "s", 0) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; e.Seq == 3 {
				break
			}
			r.append(w, 13+n, 1)
		}
		if n != 4 {
			t.Fatalf("stopped after %d", n)
		}
	})
	t.Run("a missing session is ErrNotFound", func(t *testing.T) {
		_, _, err := r.Inspect(r.ctx, "none")
		wantIs(t, "inspect", err, session.ErrNotFound)
		_, err = r.Open(r.ctx, "none")
		wantIs(t, "open", err, session.ErrNotFound)
		wantIs(t, "delete", r.Delete(r.ctx, "none"), session.ErrNotFound)
		n := 0
		for _, err := range r.ReadFrom(r.ctx, "none", 0) {
			n++
			wantIs(t, "read", err, session.ErrNotFound)
		}
		if n != 1 {
			t.Fatalf("ReadFrom yielded %d times", n)
		}
	})
	t.Run("a ctx that ended ends a reader with its cause", func(t *testing.T) {
		ctx, cancel := context.WithCancel(r.ctx)
		_, seq, err := r.Inspect(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		for _, err := range seq {
			wantIs(t, "read", err, context.Canceled)
		}
	})
}

func testCells(t *testing.T, f Factory) {
	r := open(t, f)
	cells := []session.Checkpoint{
		{Key: session.CellTitle, Version: 2, Seq: 1, Value: []byte(`"a title"`)},
		{Key: session.CellState, Version: 1, Seq: 0, Value: []byte(`{"n":1,"state":"running"}`)},
		{Key: "inbox", Version: 3, Seq: 1, Value: []byte(`[1,2]`)},
	}
	w, err := r.Create(r.ctx, header("s", 1), session.Meta{Root: "s"}, events(0, 2), cells)
	if err != nil {
		t.Fatal(err)
	}
	check := func(want ...session.Checkpoint) {
		t.Helper()
		rec, _ := r.log("s")
		for _, c := range want {
			got, ok := rec.Cell(c.Key)
			if diff := cmp.Diff(c, got); !ok || diff != "" {
				t.Fatalf("cell %s, found %v (-want +got):\n%s", c.Key, ok, diff)
			}
		}
		if len(rec.Cells) != len(want) {
			t.Fatalf("%d cells, want %d: %v", len(rec.Cells), len(want), rec.Cells)
		}
	}
	check(cells...)

	t.Log("an append replaces what it brings and leaves the rest")
	cells[0] = session.Checkpoint{Key: session.CellTitle, Version: 3, Seq: 2, Value: []byte(`null`)}
	cells[2] = session.Checkpoint{Key: "inbox", Version: 3, Seq: 2, Value: []byte(`[]`)}
	usage := session.Checkpoint{Key: session.CellUsage, Version: 1, Seq: 2, Value: []byte(`{"input":12}`)}
	if err := w.Append(r.ctx, 2, events(2, 1), []session.Checkpoint{cells[0], cells[2], usage}); err != nil {
		t.Fatal(err)
	}
	cells = append(cells, usage)
	check(cells...)

	t.Log("cells alone need no events")
	identity := session.Checkpoint{Key: session.CellIdentity, Version: 1, Seq: 2, Value: []byte(`{"id":"x"}`)}
	if err := w.Append(r.ctx, 3, nil, []session.Checkpoint{identity}); err != nil {
		t.Fatal(err)
	}
	cells = append(cells, identity)
	check(cells...)

	t.Log("a cell ahead of the head counts for nothing, in no reader")
	ahead := []session.Checkpoint{
		{Key: session.CellState, Version: 9, Seq: 4, Value: []byte(`{"state":"ahead"}`)},
		{Key: "other", Version: 9, Seq: 4, Value: []byte(`1`)},
	}
	if err := w.Append(r.ctx, 3, events(3, 1), ahead); err != nil {
		t.Fatal(err)
	}
	rec, _ := r.log("s")
	for _, c := range ahead {
		if got, ok := rec.Cell(c.Key); ok && got.Version == 9 {
			t.Fatalf("cell %s is ahead and was told", c.Key)
		}
	}
	for state, want := range map[string]int{"ahead": 0, "idle": 0} {
		l, err := r.List(r.ctx, session.Filter{State: state}, session.Page{})
		if err != nil || len(l.Records) != want {
			t.Fatalf("state %s lists %d, %v", state, len(l.Records), err)
		}
	}

	t.Log("D12 a conflict changes no cell")
	err = w.Append(r.ctx, 1, nil, []session.Checkpoint{{Key: session.CellTitle, Version: 7, Seq: 0, Value: []byte(`7`)}})
	refused[*session.ConflictError](t, "append", err)
	if rec, _ := r.log("s"); len(rec.Cells) == 0 {
		t.Fatal("cells are gone")
	} else if c, _ := rec.Cell(session.CellTitle); c.Version != 3 {
		t.Fatalf("title is %+v", c)
	}
}

func testLifetime(t *testing.T, f Factory) {
	t.Run("D6 a closed writer is done, and the session free", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		_, err := r.Open(r.ctx, "s")
		wantIs(t, "open while held", err, session.ErrExists)
		r.close(w)
		r.close(w)
		wantIs(t, "append", w.Append(r.ctx, 1, events(1, 1), nil), session.ErrClosed)
		wantIs(t, "check", w.Check(r.ctx), session.ErrClosed)
		_, err = w.Head(r.ctx)
		wantIs(t, "head", err, session.ErrClosed)
		if rec, _ := r.log("s"); rec.Owner != nil {
			t.Fatalf("owner is %v", rec.Owner)
		}
		w2 := r.open("s")
		r.append(w2, 1, 1)
		r.close(w)
		wantIs(t, "append by the old writer", w.Append(r.ctx, 2, events(2, 1), nil), session.ErrClosed)
		r.append(w2, 2, 1)
	})
	t.Run("closing a writer needs no live ctx", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := w.Close(ctx); err != nil {
			t.Fatal(err)
		}
		r.close(r.open("s"))
	})
	t.Run("D7 closing the store ends everything, twice alike", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		_, seq, err := r.Inspect(r.ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.Close(r.ctx); err != nil {
				t.Fatal(err)
			}
		}
		_, err = r.Create(r.ctx, header("t", 1), session.Meta{Root: "t"}, nil, nil)
		wantIs(t, "create", err, session.ErrClosed)
		_, err = r.Open(r.ctx, "s")
		wantIs(t, "open", err, session.ErrClosed)
		_, err = r.Exists(r.ctx, "s")
		wantIs(t, "exists", err, session.ErrClosed)
		_, err = r.List(r.ctx, session.Filter{}, session.Page{})
		wantIs(t, "list", err, session.ErrClosed)
		_, _, err = r.Inspect(r.ctx, "s")
		wantIs(t, "inspect", err, session.ErrClosed)
		for _, err := range r.ReadFrom(r.ctx, "s", 0) {
			wantIs(t, "read", err, session.ErrClosed)
		}
		wantIs(t, "delete", r.Delete(r.ctx, "s"), session.ErrClosed)
		wantIs(t, "append", w.Append(r.ctx, 1, events(1, 1), nil), session.ErrClosed)
		wantIs(t, "check", w.Check(r.ctx), session.ErrClosed)
		if err := w.Close(r.ctx); err != nil {
			t.Fatalf("close writer: %v", err)
		}
		for _, err := range seq { // a reader that was under way
			if err != nil && !errors.Is(err, session.ErrClosed) {
				t.Fatal(err)
			}
		}
		other := r.second(f)
		other.wantLog("s", events(0, 1))
		other.close(other.open("s"))
	})
}

func testConcurrent(t *testing.T, f Factory) {
	t.Run("D2 sessions in parallel", func(t *testing.T) {
		r := open(t, f)
		const sessions, batches = 64, 12
		var g sync.WaitGroup
		errs := make([]error, sessions)
		for i := range sessions {
			g.Go(func() {
				id := session.ID(fmt.Sprintf("s%02d", i))
				w, err := r.Create(r.ctx, header(id, int64(i)), session.Meta{Root: "root"}, events(0, 1), nil)
				for b := int64(0); b < batches && err == nil; b++ {
					err = w.Append(r.ctx, 1+2*b, events(1+2*b, 2), []session.Checkpoint{{Key: "n", Seq: 2 * b, Value: fmt.Append(nil, b)}})
				}
				if err == nil && i%2 == 0 {
					err = w.Close(r.ctx)
				}
				errs[i] = err
			})
		}
		g.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for i := range sessions {
			r.wantLog(session.ID(fmt.Sprintf("s%02d", i)), events(0, 1+2*batches))
		}
	})
	t.Run("one of many appends at a head wins", func(t *testing.T) {
		r := open(t, f)
		w := r.create("s", 1)
		var g sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			g.Go(func() { errs[i] = w.Append(r.ctx, 1, []session.Event{event(1, fmt.Sprintf(`{"by":%d}`, i))}, nil) })
		}
		g.Wait()
		winner := -1
		for i, err := range errs {
			if err != nil {
				refused[*session.ConflictError](t, "append", err)
				continue
			}
			if winner >= 0 {
				t.Fatal("two appends at one head")
			}
			winner = i
		}
		if winner < 0 {
			t.Fatal("no append won")
		}
		r.wantLog("s", append(events(0, 1), event(1, fmt.Sprintf(`{"by":%d}`, winner))))
	})
	t.Run("one of many creations of an id wins", func(t *testing.T) {
		r := open(t, f)
		var g sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			g.Go(func() {
				_, errs[i] = r.Create(r.ctx, header("s", 1), session.Meta{Root: "s"}, events(0, 1), nil)
			})
		}
		g.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
				continue
			}
			wantIs(t, "create", err, session.ErrExists)
		}
		if won != 1 {
			t.Fatalf("%d creations won", won)
		}
	})
}
