package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/store/storetest"
)

// walker does random things to the sessions of one process after another: each dies
// or closes, and the next goes on with what is stored. The account holds no more
// than lines: what each log is, and how much of it was promised to be stored.
type walker struct {
	ctx    context.Context
	store  *storetest.Faulty
	inner  *memory.Store
	reg    *session.Registry
	serial int
	logs   map[session.ID]*walked
	done   *int64
}

// broke ends a walk, with what is wrong. It is told outside the bubble, so that rapid
// sees one and the same place for all.
func broke(format string, args ...any) { panic(breach(fmt.Sprintf(format, args...))) }

type breach string

// walked is the account of one session.
type walked struct {
	root     session.ID
	lines    []string // its log
	promised int      // so many of them are stored
	s        *session.Session
	detach   func(context.Context) error
	deferred bool
	created  bool // by the process that has it
}

func (w *walker) boot(t *rapid.T) {
	w.inner = w.inner.Backend().Open()
	w.store = storetest.NewFaulty(w.inner)
	var err error
	if w.reg, err = session.NewRegistry(w.ctx, session.Config{Store: w.store, Now: time.Now, CheckpointFrom: rapid.SampledFrom([]int64{1, 12, -1}).Draw(t, "checkpoint")}); err != nil {
		broke("%v", err)
	}
}

func (w *walker) ids() []session.ID {
	var out []session.ID
	for id := range w.logs {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

func (w *walker) pick(t *rapid.T, want func(*walked) bool) (session.ID, *walked) {
	ids := slices.DeleteFunc(w.ids(), func(id session.ID) bool { return !want(w.logs[id]) })
	if len(ids) == 0 {
		t.Skip("no such session")
	}
	id := rapid.SampledFrom(ids).Draw(t, "id")
	return id, w.logs[id]
}

func isLive(l *walked) bool         { return l.s != nil }
func isStored(l *walked) bool       { return l.s == nil }
func lineOf(e session.Event) string { return string(e.AppendEnvelope(nil)) }

// sync takes over what an accepted operation made of a log.
func (w *walker) sync(t *rapid.T, id session.ID, l *walked) {
	var got []string
	for e := range l.s.Events(0) {
		got = append(got, lineOf(e))
	}
	if n := len(l.lines); len(got) < n || !slices.Equal(got[:n], l.lines) {
		broke("the log of %s was\n%s\nand is\n%s", id, strings.Join(l.lines, "\n"), strings.Join(got, "\n"))
	}
	l.lines = got
}

func (w *walker) live(t *rapid.T, id session.ID, l *walked, s *session.Session) {
	detach, err := w.reg.Enter(s)
	if err != nil {
		broke("%v", err)
	}
	if err := w.reg.Announce(s); err != nil {
		broke("%v", err)
	}
	l.s, l.detach, l.deferred = s, detach, s.Deferred()
	w.sync(t, id, l)
}

func (w *walker) create(t *rapid.T) {
	if len(w.logs) >= 12 {
		t.Skip("enough")
	}
	w.serial++
	id := session.ID(fmt.Sprintf("s%d", w.serial))
	n := session.New{ID: id, Deferred: rapid.Bool().Draw(t, "deferred")}
	l := &walked{root: id}
	if rapid.Bool().Draw(t, "heir") {
		_, parent := w.pick(t, isLive)
		p := parent.s.Prefix()
		switch {
		case p == nil:
			t.Skip("no turn was completed")
		case rapid.Bool().Draw(t, "raw"):
			var events []session.Event
			for e := range parent.s.Events(0) {
				if e.Seq < p.Len() {
					events = append(events, session.RawEvent(e, e.Data()))
				}
			}
			n.Seed = &session.Seed{Events: events}
		default:
			if parent.deferred {
				t.Skip("the owner of a prefix is stored") // else it is refused: see TestStoredPrefix
			}
			n.Seed, n.Root = &session.Seed{Prefix: p}, parent.s.Root()
			l.root = parent.s.Root()
			// The creator flushes the owner first (design § 4).
			if err := parent.s.Flush(w.ctx); err != nil {
				return
			}
			parent.promised = len(parent.lines)
		}
	}
	s, err := w.reg.Prepare(w.ctx, n)
	if err != nil {
		if !faulty(err) {
			broke("prepare %s: %v", id, err)
		}
		return
	}
	w.logs[id], l.created = l, true
	w.live(t, id, l, s)
}

func faulty(err error) bool {
	return errors.Is(err, errFault) || strings.Contains(err.Error(), errFault.Error())
}

// append appends one to three events, legal ones and others.
func (w *walker) append(t *rapid.T) {
	id, l := w.pick(t, isLive)
	var list []session.Payload
	for range rapid.IntRange(1, 3).Draw(t, "n") {
		list = append(list, w.payload(t, l.s))
	}
	head := l.s.Head()
	first, err := l.s.Append(drafts(list...)...)
	if err != nil {
		var broken *session.InvariantError
		if !errors.As(err, &broken) || l.s.Head() != head {
			broke("append to %s: %v; its head was %d and is %d", id, err, head, l.s.Head())
		}
		w.sync(t, id, l)
		return
	}
	if first != head || l.s.Head() != head+int64(len(list)) {
		broke("%d events of %s went to %d, its head was %d and is %d", len(list), id, first, head, l.s.Head())
	}
	w.sync(t, id, l)
}

// payload draws an event that fits now, more often than not.
func (w *walker) payload(t *rapid.T, s *session.Session) session.Payload {
	turn, open, step := s.LastTurn()
	w.serial++
	id := fmt.Sprintf("m%d", w.serial)
	if rapid.IntRange(0, 3).Draw(t, "notice") == 0 {
		id = string(session.SettlementID("c", int64(w.serial)))
	}
	target := rapid.SampledFrom([]session.Target{session.NextTurn, session.NextStep}).Draw(t, "target")
	waits := int64(len(s.Inbox(target)))
	fitting := []session.Payload{say(id, "text"), insert(target, waits, id), &session.Title{Title: id}, &session.TodoWrite{},
		&session.Settled{Epoch: int64(w.serial), StopReason: "completed", OutputSeq: -1}}
	if waits > 0 {
		at := rapid.Int64Range(0, waits-1).Draw(t, "at")
		fitting = append(fitting, &session.InboxSpliced{Target: target, Start: at, Removed: 1, Canceled: rapid.Bool().Draw(t, "canceled")})
	}
	if open {
		fitting = append(fitting,
			&session.StepStart{Turn: turn, Step: step + 1}, &session.StepEnd{Turn: turn, Step: step},
			reply(turn, step, id), &session.TurnEnd{Turn: turn, Kind: session.EndCompleted}, &session.TurnEnd{Turn: turn, Kind: session.EndCompleted},
		)
	} else {
		fitting = append(fitting, &session.TurnStart{Turn: turn + 1}, &session.TurnStart{Turn: turn + 1})
	}
	odd := []session.Payload{
		&session.TurnStart{Turn: turn}, &session.TurnEnd{Turn: turn + 1, Kind: session.EndCompleted}, &session.StepEnd{Turn: turn, Step: step + 2},
		insert(target, waits+3, id), &session.InboxSpliced{Target: target, Start: 0, Removed: waits + 1},
	}
	if rapid.IntRange(0, 7).Draw(t, "odd") == 0 {
		return rapid.SampledFrom(odd).Draw(t, "payload")
	}
	return rapid.SampledFrom(fitting).Draw(t, "payload")
}

func (w *walker) establish(t *rapid.T) {
	id, l := w.pick(t, func(l *walked) bool { return l.s != nil && l.deferred })
	if _, err := l.s.AppendEstablish(); err != nil {
		broke("establish %s: %v", id, err)
	}
	l.deferred = false
}

func (w *walker) flush(t *rapid.T) {
	id, l := w.pick(t, isLive)
	switch err := l.s.Flush(w.ctx); {
	case err == nil && !l.deferred:
		l.promised = len(l.lines)
	case err != nil && !faulty(err) && !lacksPrefix(err):
		broke("flush %s: %v", id, err)
	}
}

// lacksPrefix: what the heir shares is not stored, since a fault kept it from that.
func lacksPrefix(err error) bool {
	var missing *session.PrefixError
	return errors.As(err, &missing)
}

func (w *walker) detach(t *rapid.T) {
	id, l := w.pick(t, isLive)
	deferred := l.deferred
	err := l.detach(w.ctx)
	l.s, l.detach = nil, nil
	switch {
	case deferred:
	case err == nil:
		l.promised = len(l.lines)
	case !faulty(err) && !lacksPrefix(err):
		broke("detach %s: %v", id, err)
	}
	w.settle(t, id, l)
}

// withdraw takes a session back, and detaches it. One that was stored before stays.
func (w *walker) withdraw(t *rapid.T) {
	id, l := w.pick(t, isLive)
	err := l.s.Withdraw(w.ctx)
	switch {
	case !l.created:
		if !errors.Is(err, session.ErrExists) {
			broke("withdraw %s, which was stored before: %v", id, err)
		}
		return
	case err != nil && !faulty(err) && !errors.Is(err, session.ErrInUse):
		broke("withdraw %s: %v", id, err)
	}
	_, aerr := l.s.Append(drafts(&session.Title{Title: "late"})...)
	if ferr := l.s.Flush(w.ctx); aerr != nil || ferr != nil {
		broke("behind the withdrawal of %s: %v, %v", id, aerr, ferr)
	}
	after(session.WriteDelay)
	if derr := l.detach(w.ctx); derr != nil && (err == nil || !faulty(derr)) {
		broke("detach %s: %v", id, derr)
	}
	l.s, l.detach, l.promised = nil, nil, 0 // what was promised is taken back
	w.settle(t, id, l)
	if err == nil && w.logs[id] != nil {
		broke("%s was withdrawn, and stored is\n%s", id, strings.Join(l.lines, "\n"))
	}
}

// settle finds out what is stored of a session that is not live.
func (w *walker) settle(t *rapid.T, id session.ID, l *walked) {
	rec, events, err := w.inner.Inspect(w.ctx, id)
	if errors.Is(err, session.ErrNotFound) {
		if l.promised > 0 {
			broke("%d events of %s were promised, and there is no row", l.promised, id)
		}
		delete(w.logs, id)
		return
	}
	if err != nil {
		broke("%v", err)
	}
	var got []string
	var raw []session.Event
	for e, err := range events {
		if err != nil {
			broke("%v", err)
		}
		got, raw = append(got, lineOf(e)), append(raw, e)
	}
	if len(got) < l.promised || len(got) > len(l.lines) || !slices.Equal(got, l.lines[:len(got)]) {
		broke("%d events of %s were promised; stored are\n%s\nits log was\n%s", l.promised, id, strings.Join(got, "\n"), strings.Join(l.lines, "\n"))
	}
	if _, err := w.reg.Verify(rec, sequence(raw)); err != nil {
		broke("verify %s: %v", id, err)
	}
	l.lines, l.promised, l.deferred = got, len(got), false
}

func (w *walker) resume(t *rapid.T) {
	id, l := w.pick(t, isStored)
	s, err := w.reg.PrepareStored(w.ctx, id)
	if err != nil {
		if !faulty(err) {
			broke("resume %s: %v", id, err)
		}
		// A repair may have been stored before the fault.
		w.repaired(t, id, l)
		return
	}
	l.created = false
	if err := s.Load(w.ctx); err != nil {
		if !faulty(err) {
			broke("load %s: %v", id, err)
		}
		if err := w.reg.Abandon(w.ctx, s); err != nil && !faulty(err) {
			broke("abandon %s: %v", id, err)
		}
		w.repaired(t, id, l)
		return
	}
	w.live(t, id, l, s)
	l.promised = len(l.lines) - 1 // the end of the seed is behind the repair
	if last := l.lines[len(l.lines)-1]; !strings.Contains(last, `"session/end-seed"`) {
		broke("%s was resumed and ends in %s", id, last)
	}
	if _, open, _ := s.LastTurn(); open {
		broke("%s was resumed with an open turn", id)
	}
}

// visit opens a session for something that needs no log, and lets it go.
func (w *walker) visit(t *rapid.T) {
	id, l := w.pick(t, isStored)
	s, err := w.reg.PrepareStored(w.ctx, id)
	if err != nil {
		if !faulty(err) {
			broke("resume %s: %v", id, err)
		}
		w.repaired(t, id, l)
		return
	}
	if !s.Cold() {
		if err := w.reg.Abandon(w.ctx, s); err != nil && !faulty(err) {
			broke("abandon %s: %v", id, err)
		}
		w.repaired(t, id, l)
		t.Skip("it was read")
	}
	detach, err := w.reg.Enter(s)
	if err != nil {
		broke("%v", err)
	}
	l.created = false
	w.serial++
	name := fmt.Sprintf("m%d", w.serial)
	if _, err := s.Append(drafts(insert(session.NextTurn, int64(len(s.Inbox(session.NextTurn))), name), &session.Title{Title: name})...); err != nil {
		broke("append to %s: %v", id, err)
	}
	for e := range s.Events(s.FirstLive()) {
		l.lines = append(l.lines, lineOf(e))
	}
	if !s.Cold() {
		broke("%s was read for a message to its inbox", id)
	}
	switch err := detach(w.ctx); {
	case err == nil:
		l.promised = len(l.lines)
	case !faulty(err):
		broke("detach %s: %v", id, err)
	}
	w.settle(t, id, l)
}

// repaired takes over what a resumption that failed has stored.
func (w *walker) repaired(t *rapid.T, id session.ID, l *walked) {
	var got []string
	for e, err := range w.inner.ReadFrom(w.ctx, id, 0) {
		if err != nil {
			broke("%v", err)
		}
		got = append(got, lineOf(e))
	}
	if len(got) < len(l.lines) || !slices.Equal(got[:len(l.lines)], l.lines) {
		broke("%s was\n%s\nand is, after a failed resumption\n%s", id, strings.Join(l.lines, "\n"), strings.Join(got, "\n"))
	}
	l.lines, l.promised = got, len(got)
}

// crash ends the process: nothing of what it still does reaches the store.
func (w *walker) crash(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
		t.Skip("not now")
	}
	w.inner.Kill()
	w.store.Plan(func(storetest.Point) storetest.Fault { return storetest.Fault{Err: errFault} })
	for _, id := range w.ids() {
		l := w.logs[id]
		if l.detach != nil {
			_ = l.detach(w.ctx) // the process is dead; only its goroutines have to end
		}
		l.s, l.detach = nil, nil
	}
	w.boot(t)
	for _, id := range w.ids() {
		w.settle(t, id, w.logs[id])
	}
}

func (w *walker) delete(t *rapid.T) {
	id, l := w.pick(t, isStored)
	inUse := false
	for _, o := range w.logs {
		inUse = inUse || o.root == l.root && o.s != nil && !o.deferred
	}
	err := w.remove(id)
	switch {
	case err == nil && !inUse:
		delete(w.logs, id)
	case errors.Is(err, session.ErrInUse) && inUse:
	case err != nil && faulty(err):
		if found, err := w.inner.Exists(w.ctx, id); err != nil {
			broke("%v", err)
		} else if !found {
			delete(w.logs, id)
		}
	case errors.Is(err, session.ErrInUse):
		broke("delete %s: nobody uses its tree: %v", id, err)
	case err == nil:
		// Nothing of the live ones of its tree is stored yet, so none is owned.
		delete(w.logs, id)
	default:
		broke("delete %s: %v", id, err)
	}
}

func (w *walker) remove(id session.ID) (err error) {
	defer func() {
		if recover() != nil {
			err = errFault
		}
	}()
	return w.store.Delete(w.ctx, id)
}

// wait lets write-behind do its work.
func (w *walker) wait(t *rapid.T) {
	after(rapid.SampledFrom([]time.Duration{time.Millisecond, session.WriteDelay, time.Hour}).Draw(t, "wait"))
	for _, id := range w.ids() {
		l := w.logs[id]
		if l.s == nil || l.deferred {
			continue
		}
		// What is inherited is its owner's promise.
		if d := l.s.Durable(); d > l.s.Meta().Prefix.Len {
			l.promised = max(l.promised, int(d))
		}
	}
}

// fault has the next operations of the store fail.
func (w *walker) fault(t *rapid.T) {
	from := rapid.IntRange(0, 2).Draw(t, "from")
	to := from + rapid.IntRange(1, 3).Draw(t, "count")
	f := rapid.SampledFrom([]storetest.Fault{
		{Err: errFault}, {Err: errFault, After: true}, {Panic: errFault}, {Panic: errFault, After: true},
	}).Draw(t, "fault")
	w.store.Plan(func(p storetest.Point) storetest.Fault {
		if p.N >= from && p.N < to {
			return f
		}
		return storetest.Fault{}
	})
}

// compare rebuilds a live session from its own bytes.
func (w *walker) compare(t *rapid.T) {
	id, l := w.pick(t, isLive)
	var raw []session.Event
	for e := range l.s.Events(0) {
		raw = append(raw, session.RawEvent(e, e.Data()))
	}
	again, err := w.reg.Restore(recordOf(l.s, int64(len(raw))), sequence(raw))
	if err != nil {
		broke("restore %s: %v", id, err)
	}
	want, _ := l.s.History()
	got, _ := again.History()
	a, ao, as := l.s.LastTurn()
	b, bo, bs := again.LastTurn()
	if !slices.Equal(texts(want), texts(got)) || a != b || ao != bo || ao && as != bs || l.s.Title() != again.Title() {
		broke("%s is %q, turn %d %v %d; rebuilt %q, turn %d %v %d", id, texts(want), a, ao, as, texts(got), b, bo, bs)
	}
	account, claimed := naive(l.s)
	for _, s := range []*session.Session{l.s, again} {
		if got := told(s); got != account {
			broke("%s: %s; its events say %s", id, got, account)
		}
		for n := range w.serial {
			notice := session.SettlementID("c", int64(n+1))
			if took := s.Took(notice); took != slices.Contains(claimed, notice) {
				broke("%s took %s: %v; claimed are %v", id, notice, took, claimed)
			}
		}
	}
	for _, target := range []session.Target{session.NextTurn, session.NextStep} {
		var queues [2][]string
		for i, s := range []*session.Session{l.s, again} {
			for _, q := range s.Inbox(target) {
				queues[i] = append(queues[i], fmt.Sprint(q.Message.ID, q.Seq, q.Wake))
			}
		}
		if !slices.Equal(queues[0], queues[1]) {
			broke("%s: %s is %q, rebuilt %q", id, target, queues[0], queues[1])
		}
	}
}

// walk is one run in a bubble of its own.
func walk(t *testing.T, done *int64) func(*rapid.T) {
	return func(rt *rapid.T) {
		var failure any
		synctest.Test(t, func(t *testing.T) {
			defer func() { failure = recover() }()
			w := &walker{ctx: t.Context(), inner: memory.New(), logs: map[session.ID]*walked{}, done: done}
			w.boot(rt)
			defer func() {
				for _, l := range w.logs {
					if l.detach != nil {
						_ = l.detach(w.ctx) // what matters was checked
					}
				}
			}()
			count := func(fn func(*rapid.T)) func(*rapid.T) {
				return func(t *rapid.T) {
					fn(t)
					*done++
				}
			}
			rt.Repeat(map[string]func(*rapid.T){
				"create": count(w.create), "append": count(w.append), "append 2": count(w.append), "append 3": count(w.append),
				"establish": count(w.establish), "flush": count(w.flush), "detach": count(w.detach), "resume": count(w.resume),
				"crash": count(w.crash), "delete": count(w.delete), "wait": count(w.wait), "fault": count(w.fault), "compare": count(w.compare), "withdraw": count(w.withdraw), "visit": count(w.visit),
			})
			w.store.Plan(nil)
			for _, id := range w.ids() {
				if l := w.logs[id]; l.s != nil {
					w.settleLive(rt, id, l)
				}
			}
		})
		switch f := failure.(type) {
		case nil:
		case breach:
			rt.Fatalf("%s", string(f))
		default:
			panic(f)
		}
	}
}

// settleLive ends a session on a store that works.
func (w *walker) settleLive(t *rapid.T, id session.ID, l *walked) {
	deferred := l.deferred
	err := l.detach(w.ctx)
	if err != nil && !lacksPrefix(err) {
		broke("detach %s: %v", id, err)
	}
	if err == nil && !deferred {
		l.promised = len(l.lines)
	}
	l.s, l.detach = nil, nil
	w.settle(t, id, l)
}

// Random operations on the sessions of processes that die: append, flush, fault,
// crash, resume, fork, withdraw, delete. After each of them the logs are what they were and
// what was added; what was promised is stored; a log that is rebuilt from its bytes
// is the same (D2–D8, S3, S13, S19, S25, S33, S35–S39).
func TestWalk(t *testing.T) {
	if soak {
		storetest.Long(t, 100, 10_000, walk)
		return
	}
	var done int64
	rapid.Check(t, walk(t, &done))
}
