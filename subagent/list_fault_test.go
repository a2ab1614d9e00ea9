package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
)

// LIST-21, LIST-22, LIST-24, LIST-25, LIST-26, LIST-37, LIST-42, PROJ-08, P23; D11:
// every kind of damage is one diagnostic that tells nothing of what the log holds, and
// the healthy children beside it stay.
func TestListDiagnostics(t *testing.T) {
	for _, kind := range []string{"memory", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			l := newLab(t, t.Context(), openStore(t, kind), failing("foreign", session.TypeSandboxMode))
			raw := func(id string, lines ...string) {
				l.raw(session.Header{ID: session.ID(id), ParentSession: "p"}, nil, lines...)
			}
			raw("a", turnStart, oneShot)
			raw("b-none", turnStart)
			raw("c-malformed", malformed)
			raw("d-newer", newer)
			raw("e-then-malformed", oneShot, malformed)
			raw("f-then-newer", oneShot, newer)
			raw("g-mended", malformed, oneShot)
			raw("h-no-json", oneShot, `turn/start {"turn":"one"}`)
			raw("i-foreign-unit", oneShot, `sandbox/mode {"mode":"x"}`)
			raw("j-row")
			raw("k-log", oneShot)
			raw("l-empty")
			raw("m-newer-build", oneShot)
			raw("n", oneShot)
			l.store.alter = func(rec *session.Record, events *iter.Seq2[session.Event, error]) {
				if rec.Header.ID == "k-log" {
					*events = func(yield func(session.Event, error) bool) {
						yield(session.Event{}, &session.CorruptError{ID: "k-log", Seq: 0, Err: errors.New("no batch")})
					}
				}
			}
			l.store.Store = damaged{l.store.Store, map[session.ID]error{
				"j-row":         &session.CorruptError{ID: "j-row", Seq: -1, Err: errors.New("no header")},
				"m-newer-build": &session.UnsupportedError{ID: "m-newer-build", Seq: -1, Msg: "version 7"},
			}}
			for range 2 {
				l.wantChildren(t, "children", "p",
					`child a one-shot inactive "raw"`,
					`diagnostic b-none corrupt`,
					`diagnostic c-malformed corrupt`,
					`diagnostic d-newer corrupt`,
					`diagnostic e-then-malformed corrupt`,
					`diagnostic f-then-newer corrupt`,
					`child g-mended one-shot inactive "raw"`,
					`diagnostic h-no-json corrupt`,
					`diagnostic i-foreign-unit corrupt`,
					`diagnostic j-row unavailable`,
					`diagnostic k-log unavailable`,
					`diagnostic l-empty corrupt`,
					`diagnostic m-newer-build unavailable`,
					`child n one-shot inactive "raw"`,
				)
			}
			l.store.alter = nil
			rows, err := l.ListChildren(t.Context(), "p")
			if err != nil || !slices.Contains(rowLines(rows), `child k-log one-shot inactive "raw"`) {
				t.Errorf("LIST-24: the next listing does not try again: %q, %v", rowLines(rows), err)
			}
		})
	}
	// The same two on the live rung, where PROJ-08 leaves a child out.
	l := newLab(t, t.Context(), nil, failing("foreign", session.TypeSandboxMode))
	l.live(childOf("a", "p"), descriptorOf(session.ModeOneShot, "good"))
	l.live(childOf("b", "p"), append(worked(session.ModeOneShot, "good"), &session.SandboxMode{Mode: "x"})...)
	l.wantChildren(t, "LIST-26 live", "p", `child a one-shot running "good"`, `diagnostic b corrupt`)
}

// PROJ-08, P23, LIST-23: a running child whose last descriptor cannot be read is left
// out, and listed corrupt once it is not running.
func TestListBadDescriptorWhileRunning(t *testing.T) {
	store := memory.New()
	l := newLab(t, t.Context(), store)
	l.raw(session.Header{ID: "x", ParentSession: "p"}, nil, oneShot, malformed)
	s, err := l.reg.PrepareStored(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	l.wantChildren(t, "held, not live yet", "p")
	end, err := l.reg.Enter(s)
	if err != nil {
		t.Fatal(err)
	}
	l.wantChildren(t, "live", "p")
	if err := end(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.wantChildren(t, "stored", "p", `diagnostic x corrupt`)
}

// damaged is a store some of whose rows cannot be read.
type damaged struct {
	session.Store
	rows map[session.ID]error
}

func (d damaged) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	l, err := d.Store.List(ctx, f, p)
	for i := range l.Records {
		h := &l.Records[i].Header
		if bad := d.rows[h.ID]; bad != nil {
			h = &session.Header{ID: h.ID, CreatedAt: h.CreatedAt, ParentSession: h.ParentSession, Origin: h.Origin}
			l.Records[i] = session.Record{Header: *h, Err: bad}
		}
	}
	return l, err
}

// LIST-18, OBS-12: what was read must be the session that was listed, in every field
// of its header.
func TestListWitness(t *testing.T) {
	l := newLab(t, t.Context(), memory.New())
	l.raw(session.Header{ID: "x", ParentSession: "p"}, nil, oneShot)
	for field, change := range map[string]func(*session.Header){
		"version": func(h *session.Header) { h.Version++ }, "id": func(h *session.Header) { h.ID = "y" },
		"createdAt": func(h *session.Header) { h.CreatedAt++ }, "cwd": func(h *session.Header) { h.Cwd = "/y" },
		"parentSession": func(h *session.Header) { h.ParentSession = "q" }, "seedLength": func(h *session.Header) { h.SeedLength++ },
		"delegationDepth": func(h *session.Header) { h.DelegationDepth++ }, "origin": func(h *session.Header) { h.Origin = "" },
		"agentPreset": func(h *session.Header) { h.AgentPreset = "y" },
	} {
		l.store.alter = func(rec *session.Record, _ *iter.Seq2[session.Event, error]) { change(&rec.Header) }
		l.wantChildren(t, field, "p", "diagnostic x corrupt")
	}
	l.store.alter = nil
	l.wantChildren(t, "unchanged", "p", `child x one-shot inactive "raw"`)
}

// LIST-17, D31: at most projection.ReadLimit logs are read at once, and that many are.
func TestListReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, t.Context(), memory.New())
		var all []string
		for i := range 3*projection.ReadLimit + 1 {
			id := session.ID(fmt.Sprintf("c%02d", i))
			l.raw(session.Header{ID: id, ParentSession: "p"}, nil, oneShot)
			all = append(all, fmt.Sprintf(`child %s one-shot inactive "raw"`, id))
		}
		var reading atomic.Int64
		gate := make(chan struct{})
		l.store.before = func(op string, _ session.ID) error {
			if op == "inspect" {
				reading.Add(1)
				<-gate
				reading.Add(-1)
			}
			return nil
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.wantChildren(t, "children", "p", all...)
		}()
		for left := len(all); left > 0; left -= projection.ReadLimit {
			synctest.Wait()
			if n := reading.Load(); n != int64(min(left, projection.ReadLimit)) {
				t.Errorf("%d logs are read at once with %d to go", n, left)
			}
			for range min(left, projection.ReadLimit) {
				gate <- struct{}{}
			}
		}
		<-done
	})
}

// LIST-27, LIST-24: a store that cannot be listed fails the call with its own error;
// one that cannot be read, or panics, costs one row.
func TestListStoreFails(t *testing.T) {
	l := newLab(t, t.Context(), memory.New())
	l.raw(session.Header{ID: "a", ParentSession: "p"}, nil, oneShot)
	l.cold(childOf("b", "p"), worked(session.ModeOneShot, "cached")...)
	l.cold(childOf("b1", "b"), worked(session.ModeOneShot, "below")...)
	broken := errors.New("the disk is gone")
	for _, how := range []string{"fails", "panics"} {
		fail := func(op string) func(string, session.ID) error {
			return func(got string, id session.ID) error {
				switch {
				case got != op:
					return nil
				case how == "panics":
					panic(broken)
				}
				return broken
			}
		}
		l.store.before = fail("list")
		for _, err := range allListings(l.Lister, t.Context(), "p", subagent.ListPage{}) {
			if err == nil || how == "fails" && !errors.Is(err, broken) || !strings.Contains(err.Error(), "the disk is gone") {
				t.Errorf("the store %s: %v", how, err)
			}
			if errors.Is(err, subagent.ErrCancelled) {
				t.Errorf("the store %s: reported as cancelled: %v", how, err)
			}
		}
		l.store.before = fail("inspect")
		l.wantChildren(t, "an inspection "+how, "p", `diagnostic a unavailable`, `child b one-shot inactive "cached" +`)
		rows, err := l.ListDescendants(t.Context(), "p")
		wantRows(t, "an inspection "+how, rows, err,
			`diagnostic a unavailable 1<p`, `child b one-shot inactive "cached" + 1<p`, `child b1 one-shot inactive "below" 2<b`)
		l.store.before = nil
	}
	// Failing behind the first page, too.
	n := 0
	l.store.Store = onePage{l.store.Store}
	l.store.before = func(op string, _ session.ID) error {
		if n++; op == "list" && n > 1 {
			return broken
		}
		return nil
	}
	if _, err := l.ListChildren(t.Context(), "p"); !errors.Is(err, broken) {
		t.Errorf("the second page fails: %v", err)
	}
}

// onePage is a store that lists one record at a time.
type onePage struct{ session.Store }

func (o onePage) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	p.Limit = 1
	return o.Store.List(ctx, f, p)
}

// A store that cannot be listed fails the call with its own error, which says what was
// asked for: the children of one session or of several at once.
func TestListFails(t *testing.T) {
	boom := errors.New("disk on fire")
	for kids, want := range map[int]string{0: "list the children of session p: ", 1: "list the children of session k00: ", 3: "list the children of sessions k00 k01 k02: ", 12: "k08 k09 and 2 more: "} {
		l := newLab(t, t.Context(), memory.New())
		for i := range kids {
			l.cold(childOf(fmt.Sprintf("k%02d", i), "p"), worked(session.ModeOneShot, "c")...)
		}
		reads := 0
		l.store.before = func(string, session.ID) error {
			if reads++; reads == 2 || kids == 0 {
				return boom
			}
			return nil
		}
		if _, err := l.ListDescendants(t.Context(), "p"); !errors.Is(err, boom) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d children: %v, want %q", kids, err, want)
		}
	}
}

// LIST-30…34, TREE-09: ctx ending at any point of a listing, before or behind any
// read, gives CANCELLED with its cause: neither a success nor a row nor the error of
// a store that was made to stop.
func TestListCancelled(t *testing.T) {
	why := errors.New("enough")
	calls := map[string]func(l *lab, ctx context.Context) error{
		"ListChildren":    func(l *lab, ctx context.Context) error { _, err := l.ListChildren(ctx, "p"); return err },
		"ListDescendants": func(l *lab, ctx context.Context) error { _, err := l.ListDescendants(ctx, "p"); return err },
		"PageChildren": func(l *lab, ctx context.Context) error {
			_, err := l.PageChildren(ctx, "p", subagent.ListPage{Limit: 2})
			return err
		},
		"PageDescendants": func(l *lab, ctx context.Context) error {
			_, err := l.PageDescendants(ctx, "p", subagent.ListPage{Limit: 2})
			return err
		},
	}
	for name, list := range calls {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, t.Context(), memory.New())
			l.store.Store = onePage{l.store.Store} // many reads
			for i := range 3 {
				l.raw(session.Header{ID: session.ID(fmt.Sprint("raw", i)), ParentSession: "p"}, nil, oneShot)
				l.cold(childOf(fmt.Sprint("cold", i), "p"), worked(session.ModeOneShot, "c")...)
			}
			l.live(childOf("live", "p"), descriptorOf(session.ModeOneShot, "l"))
			var ops atomic.Int64
			count := func(string, session.ID) error { ops.Add(1); return nil }
			l.store.before, l.store.after = count, count
			if err := list(l, t.Context()); err != nil {
				t.Fatal(err)
			}
			total := ops.Load()
			if total < 6 {
				t.Fatalf("only %d points to end at", total)
			}
			gone, end := context.WithCancelCause(t.Context())
			end(why)
			l.store.reset()
			err := list(l, gone)
			wantCode(t, err, subagent.CodeCancelled)
			if l.store.lists != 0 || !errors.Is(err, why) {
				t.Errorf("LIST-30: %d reads, %v", l.store.lists, err)
			}
			for _, stops := range []bool{false, true} {
				for at := int64(1); at <= total; at++ {
					ctx, end := context.WithCancelCause(t.Context())
					ops.Store(0)
					step := func(string, session.ID) error {
						if ops.Add(1) == at {
							end(why)
						}
						if stops && ctx.Err() != nil {
							return fmt.Errorf("read stopped: %w", ctx.Err())
						}
						return nil
					}
					l.store.before, l.store.after = step, step
					err := list(l, ctx)
					end(nil)
					if !errors.Is(err, subagent.ErrCancelled) || !errors.Is(err, why) {
						t.Errorf("ended at point %d of %d, the store stops: %v; error %v", at, total, stops, err)
					}
				}
			}
		})
	}
}

// D37: a child that leaves the live sessions while a store still takes it down is in
// neither by itself; it is listed all the same, once.
func TestListWhileRetiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowStore{Store: memory.New(), gate: make(chan struct{})}
		l := newLab(t, t.Context(), slow)
		l.live(childOf("x", "p"), worked(session.ModeOneShot, "x")...)
		ended := make(chan error)
		go func() { ended <- l.ends["x"](t.Context()) }()
		synctest.Wait()
		if _, live := l.reg.Get("x"); live || slow.created {
			t.Fatal("the child is not between the two")
		}
		l.wantChildren(t, "retiring", "p", `child x one-shot running "x"`)
		close(slow.gate)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		l.wantChildren(t, "stored", "p", `child x one-shot inactive "x"`)
		if len(l.reg.Resident()) != 0 {
			t.Error("the child is still resident")
		}
	})
}

// slowStore waits before it creates.
type slowStore struct {
	session.Store
	gate    chan struct{}
	created bool
}

func (s *slowStore) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	<-s.gate
	s.created = true
	return s.Store.Create(ctx, h, m, first, cells)
}
