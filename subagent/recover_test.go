package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/memory"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// cut says whether a process ends at a write.
type cut int

const (
	goOn   cut = iota
	before     // the write is not stored
	behind     // it is stored, and nobody learns of it
)

// cutStore is the store of a process that ends at a write, as a process that is killed
// does: nothing that it writes afterwards is stored.
type cutStore struct {
	session.Store
	inner *memory.Store
	// looked, if not nil, runs when a log was read.
	looked func(ctx context.Context, id session.ID)
	// list, if not nil, is what comes of listing; listed runs before it.
	list   error
	listed func()

	mu     sync.Mutex // guards following
	at     func(n int, id session.ID, events []session.Event) cut
	writes int
	dead   bool
}

func (c *cutStore) write(id session.ID, events []session.Event, fn func() error) error {
	fenced := &session.FencedError{ID: id}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return fenced
	}
	how := goOn
	if c.at != nil {
		how = c.at(c.writes, id, events)
	}
	c.writes++
	if how != goOn {
		c.dead = true
		defer c.inner.Kill()
	}
	if how == before {
		return fenced
	}
	if err := fn(); err != nil || how == goOn {
		return err
	}
	return fenced
}

// kill ends the process now.
func (c *cutStore) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	c.inner.Kill()
}

func (c *cutStore) Create(ctx context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (w session.Writer, err error) {
	err = c.write(h.ID, first, func() (err error) {
		w, err = c.Store.Create(ctx, h, m, first, cells)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &cutWriter{w, c, h.ID}, nil
}

func (c *cutStore) Open(ctx context.Context, id session.ID) (w session.Writer, err error) {
	err = c.write(id, nil, func() (err error) {
		w, err = c.Store.Open(ctx, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &cutWriter{w, c, id}, nil
}

func (c *cutStore) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	rec, events, err := c.Store.Inspect(ctx, id)
	if c.looked != nil {
		c.looked(ctx, id)
	}
	return rec, events, err
}

func (c *cutStore) List(ctx context.Context, f session.Filter, p session.Page) (session.Listing, error) {
	if c.listed != nil {
		c.listed()
	}
	if c.list != nil {
		return session.Listing{}, c.list
	}
	return c.Store.List(ctx, f, p)
}

type cutWriter struct {
	session.Writer
	c  *cutStore
	id session.ID
}

func (w *cutWriter) Append(ctx context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	return w.c.write(w.id, events, func() error { return w.Writer.Append(ctx, head, events, cells) })
}

func (w *cutWriter) Discard(ctx context.Context) error {
	return w.c.write(w.id, nil, func() error { return w.Writer.Discard(ctx) })
}

func (w *cutWriter) Close(ctx context.Context) error {
	err := w.Writer.Close(ctx)
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.dead {
		return nil // what a dead process holds is the taker's matter
	}
	return err
}

// machine is where processes follow each other over one store.
type machine struct {
	t    *testing.T
	back *memory.Backend
	root session.ID
	// plain leaves the checkpoints of logs out.
	plain bool
}

// process is one of them. parent is the live root.
type process struct {
	nest
	m      *machine
	cut    *cutStore
	ending atomic.Bool // it is being stopped
}

func onMachine(t *testing.T, fn func(t *testing.T, m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, &machine{t: t, back: memory.NewBackend(), root: "root"}) })
}

// boot starts a process and creates or resumes the root, as far as that can be.
func (m *machine) boot(o subagenttest.Options, at func(n int, id session.ID, events []session.Event) cut) *process {
	m.t.Helper()
	inner := m.back.Open()
	p := &process{m: m, cut: &cutStore{Store: inner, inner: inner, at: at}}
	p.t, p.store = m.t, inner
	o.Store, o.CheckpointFrom = p.cut, 1
	if o.Projections == nil && !m.plain {
		o.Projections = units(m.t)
	}
	var sys *subagenttest.System
	o.Tools = append(o.Tools, delegation(func() *subagent.Service { return sys.Service }))
	sys = subagenttest.NewSystem(m.t, o)
	p.System = sys
	p.Register(m.t, spawn.New(""))
	p.Otherwise(scripted.Step{scripted.SayLiteral("noted")})
	ctx := context.WithoutCancel(m.t.Context())
	found, err := inner.Exists(ctx, m.root)
	if err != nil {
		m.t.Fatal(err)
	}
	var h *agent.Handle
	if found {
		h, err = p.Agents.Resume(ctx, agent.Resume{ID: m.root, Options: subagenttest.ParentOptions()})
	} else {
		h, err = p.Agents.Create(ctx, agent.Create{Session: session.New{ID: m.root}, Options: subagenttest.ParentOptions()})
	}
	if err != nil {
		if !p.dead() {
			m.t.Fatalf("open the root: %v", err)
		}
		return p
	}
	p.parent = h.Agent()
	if !found {
		// A session without events is not stored.
		if _, err := p.parent.Session().Append(session.Draft{Payload: &session.Title{Title: "root"}}); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := p.parent.Session().Flush(ctx); err != nil && !p.dead() {
		m.t.Fatalf("store the root: %v", err)
	}
	return p
}

func (p *process) dead() bool {
	p.cut.mu.Lock()
	defer p.cut.mu.Unlock()
	return p.cut.dead
}

// crash ends the process as a kill does, if it has not ended already.
func (p *process) crash() {
	p.Crashed()
	p.cut.kill()
}

// stop ends the process as a signal does: roots stop first, children end first.
func (p *process) stop() {
	p.t.Helper()
	p.Service.CloseAdmission()
	p.parent.CloseAdmission(true)
	if err := p.Service.Close(p.t.Context()); err != nil {
		p.t.Errorf("close the service: %v", err)
	}
	if err := p.parent.Dispose(p.t.Context(), true); err != nil {
		p.t.Errorf("dispose the root: %v", err)
	}
	if err := p.Agents.Close(p.t.Context()); err != nil {
		p.t.Errorf("close the agents: %v", err)
	}
	if err := p.cut.inner.Close(p.t.Context()); err != nil {
		p.t.Errorf("close the store: %v", err)
	}
}

func (p *process) recover() subagent.Recovered {
	p.t.Helper()
	r, err := p.Host.Recover(p.t.Context(), p.parent)
	if err != nil {
		p.t.Errorf("recover: %v", err)
	}
	for _, s := range r.Skipped {
		p.t.Errorf("%s was skipped: %v", s.ID, s.Err)
	}
	return r
}

// delegation is a tool by which a model starts a continuable child.
func delegation(svc func() *subagent.Service) tool.Definition {
	return tool.Definition{
		Name: "delegate", Description: "delegates", Parameters: []byte(`{"type":"object"}`),
		Execute: func(ctx context.Context, c *tool.Call) (any, error) {
			a := c.Caller.(*agent.Agent)
			acc, err := svc().StartContinuable(ctx, spawn.DefaultName, subagent.ContinuableRequest{
				ID: a.ID() + "-child", Label: "below", Prompt: say("dig"), Parent: a,
			})
			return string(acc.Child), err
		},
	}
}

// stored reads a log as it is stored.
func (m *machine) stored(id session.ID) *session.Session {
	m.t.Helper()
	ctx := context.WithoutCancel(m.t.Context())
	rec, events, err := m.back.Open().Inspect(ctx, id)
	if err != nil {
		m.t.Fatalf("inspect %s: %v", id, err)
	}
	reg, err := session.NewRegistry(ctx, session.Config{})
	if err != nil {
		m.t.Fatal(err)
	}
	s, err := reg.Restore(rec, events)
	if err != nil {
		m.t.Fatalf("read %s: %v", id, err)
	}
	return s
}

// said is what said returns of a log as it is stored.
func (m *machine) said(id session.ID) []string {
	m.t.Helper()
	reg, err := session.NewRegistry(context.WithoutCancel(m.t.Context()), session.Config{Store: m.back.Open()})
	if err != nil {
		m.t.Fatal(err)
	}
	return said(m.t, reg, id)
}

// children lists what is stored below a session, at any depth.
func (m *machine) children() (ids []session.ID) {
	m.t.Helper()
	l, err := m.back.Open().List(context.WithoutCancel(m.t.Context()), session.Filter{Origin: session.OriginSubagent}, session.Page{})
	if err != nil {
		m.t.Fatal(err)
	}
	for i := range l.Records {
		ids = append(ids, l.Records[i].Header.ID)
	}
	return ids
}

// entered counts how often a message entered a conversation.
func entered(s *session.Session) map[message.ID]int {
	n := map[message.ID]int{}
	for e := range s.Events(s.Header().SeedLength) {
		if p, ok := e.Payload().(*session.UserMessage); ok {
			n[p.Message.ID]++
		}
	}
	return n
}

// atRest checks what holds whenever a tree has come to rest: every child has settled,
// every accepted message was taken up once, and each parent has heard of every
// settlement exactly once (design § 4).
func (m *machine) atRest(accepted ...subagent.Accepted) {
	m.t.Helper()
	for _, acc := range accepted {
		if n := entered(m.stored(acc.Child))[acc.Message]; n != 1 {
			m.t.Errorf("message %s entered the conversation of %s %d times", acc.Message, acc.Child, n)
		}
	}
	for _, id := range m.children() {
		s := m.stored(id)
		e := s.Epochs()
		if e.Settled == 0 || e.Worked {
			m.t.Errorf("%s has not settled: %+v", id, e)
		}
		for _, t := range []session.Target{session.NextTurn, session.NextStep} {
			if n := len(s.Inbox(t)); n > 0 {
				m.t.Errorf("%d messages wait in %s of %s", n, t, id)
			}
		}
		heard := entered(m.stored(s.Header().ParentSession))
		for epoch := int64(1); epoch <= e.Settled; epoch++ {
			if n := heard[session.SettlementID(id, epoch)]; n != 1 {
				m.t.Errorf("%s heard of epoch %d of %s %d times", s.Header().ParentSession, epoch, id, n)
			}
		}
	}
}

// quiet checks that a further process finds nothing to do.
func (m *machine) quiet() {
	m.t.Helper()
	p := m.boot(subagenttest.Options{}, nil)
	before := p.parent.Session().Head()
	if r := p.recover(); r.Reopened != nil || r.Notices != 0 {
		m.t.Errorf("another recovery found %+v", r)
	}
	if p.parent.Wake() {
		m.t.Error("something was left for the root")
	}
	synctest.Wait()
	p.stop()
	if after := m.stored(m.root).Head(); after != before {
		m.t.Errorf("another recovery wrote %d events", after-before)
	}
}

// work is a story whose end is cut everywhere: the root starts a child that starts
// another, and gives it a second task while it works.
func (p *process) work() (accepted []subagent.Accepted) {
	p.Answer("lead", scripted.Step{scripted.CallLiteral("delegate", "{}")}, scripted.Step{scripted.SayLiteral("led")})
	acc, err := p.Service.StartContinuable(p.t.Context(), spawn.DefaultName, subagent.ContinuableRequest{ID: "a", Label: "lead", Prompt: say("lead"), Parent: p.parent})
	if err == nil {
		accepted = append(accepted, acc)
		id, ferr := p.Service.Followup(p.t.Context(), p.parent, acc.Child, say("more"), message.UserSource())
		if err = ferr; err == nil {
			accepted = append(accepted, subagent.Accepted{Child: acc.Child, Message: id})
		}
	}
	if err != nil && !p.dead() && !p.ending.Load() {
		p.t.Errorf("work: %v", err)
	}
	synctest.Wait()
	return accepted
}

// design § 4 (Settlement is derived; Accepted means durable), amendments (who goes on after
// a crash), P17, NOTE-03, NOTE-18, B-07, B-13, B-14, SET-09, TEAR-12: wherever a process is
// killed, the next one brings the whole tree to rest, nothing that was accepted is lost or
// done twice, and every parent hears of every settlement exactly once.
func TestRecoverAnywhere(t *testing.T) {
	writes := 0
	onMachine(t, func(_ *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		accepted := p.work()
		writes = p.cut.writes
		p.stop()
		m.atRest(accepted...)
		m.quiet()
	})
	if writes < 12 {
		t.Fatalf("the story has only %d writes", writes)
	}
	for n := range writes {
		for name, how := range map[string]cut{"before": before, "behind": behind} {
			t.Run(fmt.Sprintf("%s write %d", name, n), func(t *testing.T) {
				onMachine(t, func(t *testing.T, m *machine) {
					p := m.boot(subagenttest.Options{}, func(i int, _ session.ID, _ []session.Event) cut {
						if i == n {
							return how
						}
						return goOn
					})
					var accepted []subagent.Accepted
					if p.parent != nil {
						accepted = p.work()
					}
					p.crash()
					q := m.boot(subagenttest.Options{}, nil)
					q.recover()
					q.parent.Wake()
					synctest.Wait()
					q.stop()
					m.atRest(accepted...)
					m.quiet()
				})
			})
		}
	}
}

// The same where the process is told to end at a write (design § 4, What teardown does to
// the queue): what was accepted is kept, and goes on in the next one.
func TestRecoverStopped(t *testing.T) {
	for n := range 24 {
		onMachine(t, func(t *testing.T, m *machine) {
			stop, stopped := make(chan struct{}), make(chan struct{})
			var p *process
			end := sync.OnceFunc(func() { p.ending.Store(true); close(stop) })
			p = m.boot(subagenttest.Options{}, func(i int, _ session.ID, _ []session.Event) cut {
				if i == n+1 { // the first write is the root's own
					end()
				}
				return goOn
			})
			go func() {
				defer close(stopped)
				<-stop
				p.stop()
			}()
			accepted := p.work()
			end()
			<-stopped
			q := m.boot(subagenttest.Options{}, nil)
			q.recover()
			q.parent.Wake()
			synctest.Wait()
			if slices.Contains(m.children(), "a") {
				// It may have ended with the process, beside its child: nothing opens it for
				// what that came to, and it hears when it is next opened.
				q.followup("a", "go on")
				synctest.Wait()
			}
			q.stop()
			m.atRest(accepted...)
			m.quiet()
		})
	}
}

// The end of the caller's ctx ends a recovery; what was opened by then goes on.
func TestRecoverCancelled(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		p.Answer("long", scripted.Step{scripted.Hang()})
		one := p.start("one", "long")
		synctest.Wait()
		two := p.start("two", "long")
		synctest.Wait()
		p.crash()
		q := m.boot(subagenttest.Options{}, nil)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		// All are read before the first is opened, and each once more when its turn comes.
		var seen []session.ID
		q.cut.looked = func(_ context.Context, id session.ID) {
			if len(seen) > 0 && id != seen[0] && slices.Contains(seen, id) {
				cancel(cause)
			}
			seen = append(seen, id)
		}
		r, err := q.Host.Recover(ctx, q.parent)
		q.cut.looked = nil
		if !errors.Is(err, cause) || len(r.Reopened) != 1 || r.Skipped != nil {
			t.Errorf("recovered %+v, %v", r, err)
		}
		if err := q.Host.Settled(t.Context(), "root"); err != nil {
			t.Error(err)
		}
		if r := q.recover(); len(r.Reopened) != 1 {
			t.Errorf("recovered %+v", r)
		}
		synctest.Wait()
		q.stop()
		m.atRest(one, two)
		m.quiet()
	})
}

func holds(events []session.Event, is func(session.Payload) bool) bool {
	return slices.ContainsFunc(events, func(e session.Event) bool { return is(e.Payload()) })
}

func splices(how func(p *session.InboxSpliced) bool) func(session.Payload) bool {
	return func(p session.Payload) bool {
		s, ok := p.(*session.InboxSpliced)
		return ok && how(s)
	}
}

func isSettled(p session.Payload) bool { _, ok := p.(*session.Settled); return ok }

func isNotice(id message.ID) bool { return strings.HasPrefix(string(id), "settled:") }

// The points at which a settlement can be cut, one by one: what the next process finds,
// and what the root has heard in the end (design § 4; NOTE-01, NOTE-03, NOTE-18).
func TestRecoverSettlement(t *testing.T) {
	inserts := splices(func(p *session.InboxSpliced) bool { return len(p.Inserted) > 0 && isNotice(p.Inserted[0].ID) })
	takes := func(p session.Payload) bool {
		u, ok := p.(*session.UserMessage)
		return ok && isNotice(u.Message.ID)
	}
	turns := func(p session.Payload) bool { _, ok := p.(*session.StepStart); return ok }
	accepts := splices(func(p *session.InboxSpliced) bool { return len(p.Inserted) > 0 })
	for _, tc := range []struct {
		name     string
		log      session.ID
		is       func(session.Payload) bool
		how      cut
		reopened int
		notices  int
		says     string
	}{
		{"the prompt is accepted", "a", accepts, behind, 1, 0, "has finished.\nIts closing message:done"},
		{"in its turn", "a", turns, behind, 1, 0, "was stopped before it was done.\nIt left no closing message."},
		// Its turn is part of the same write.
		{"before it has settled", "a", isSettled, before, 1, 0, "was stopped before it was done.\nIt left no closing message."},
		{"settled", "a", isSettled, behind, 0, 1, "has finished.\nIts closing message:done"},
		{"before the notice", "root", inserts, before, 0, 1, "has finished.\nIts closing message:done"},
		{"the notice waits", "root", inserts, behind, 0, 0, "has finished.\nIts closing message:done"},
		{"before it is claimed", "root", takes, before, 0, 0, "has finished.\nIts closing message:done"},
		{"it is claimed", "root", takes, behind, 0, 0, "has finished.\nIts closing message:done"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				p := m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
					if id == tc.log && holds(events, tc.is) {
						return tc.how
					}
					return goOn
				})
				p.Answer("go", scripted.Step{scripted.SayLiteral("done")})
				acc, err := p.Service.StartContinuable(t.Context(), spawn.DefaultName, subagent.ContinuableRequest{ID: "a", Label: "one", Prompt: say("go"), Parent: p.parent})
				if err != nil && tc.name != "the prompt is accepted" {
					t.Fatal(err)
				}
				synctest.Wait()
				if !p.dead() {
					t.Fatal("the process was not cut")
				}
				p.crash()
				q := m.boot(subagenttest.Options{}, nil)
				q.Answer("go", scripted.Step{scripted.SayLiteral("done")})
				r := q.recover()
				if len(r.Reopened) != tc.reopened || r.Notices != tc.notices {
					t.Errorf("recovered %+v", r)
				}
				q.parent.Wake()
				synctest.Wait()
				q.stop()
				if err == nil {
					m.atRest(acc)
				}
				m.atRest()
				if n := m.stored("a").Epochs().Settled; n != 1 {
					t.Errorf("%d epochs", n)
				}
				text := `subagent-settled: Subagent "one" (a) ` + tc.says
				if got := m.said("root"); !slices.Contains(got, text) {
					t.Errorf("the root's log: %q, want %q", got, text)
				}
				m.quiet()
			})
		})
	}
}

// Several epochs may be owed, and each is told with what it came to; also from logs without
// checkpoints.
func TestRecoverSeveralEpochs(t *testing.T) {
	t.Run("checkpoints", func(t *testing.T) { severalEpochs(t, false) })
	t.Run("none", func(t *testing.T) { severalEpochs(t, true) })
}

func severalEpochs(t *testing.T, plain bool) {
	onMachine(t, func(t *testing.T, m *machine) {
		// Nobody is told in the first process.
		m.plain = plain
		p := m.boot(subagenttest.Options{NoNotices: true}, nil)
		p.Answer("one", scripted.Step{scripted.SayLiteral("1")})
		p.Answer("two", scripted.Step{scripted.Fail("SERVER_ERROR", "broke")})
		p.Answer("three", scripted.Step{scripted.MaxTokens()})
		acc := p.start("worker", "one")
		synctest.Wait()
		p.followup(acc.Child, "two")
		synctest.Wait()
		p.followup(acc.Child, "three")
		synctest.Wait()
		p.crash()
		m.plain = false
		q := m.boot(subagenttest.Options{}, nil)
		if r := q.recover(); r.Notices != 3 || r.Reopened != nil {
			t.Errorf("recovered %+v", r)
		}
		synctest.Wait()
		name := `subagent-settled: Subagent "worker" (` + string(acc.Child) + `) `
		want := []string{
			name + "has finished.\nIts closing message:1",
			name + "failed: SERVER_ERROR: broke\nIt left no closing message.",
			name + "ran out of room: its answer reached the token limit and is not complete.\nIt left no closing message.",
			"answer: noted",
		}
		if d := cmp.Diff(want, q.said("root")); d != "" {
			t.Errorf("the root's log:\n%s", d)
		}
		q.stop()
		m.atRest()
		m.quiet()
	})
}

// What waits because of an interrupt stays parked over a restart, what waits because the
// process ended does not (P43, INT-04, INT-05; amendments: who goes on after a crash).
func TestRecoverParked(t *testing.T) {
	for name, tc := range map[string]struct {
		interrupt bool
		stop      func(*process)
	}{
		"an interrupt, a crash":              {true, (*process).crash},
		"an interrupt, the end of a process": {true, (*process).stop},
		"a crash":                            {false, (*process).crash},
		"the end of a process":               {false, (*process).stop},
	} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				p := m.boot(subagenttest.Options{}, nil)
				p.Answer("long", scripted.Step{scripted.Hang()})
				acc := p.start("worker", "long")
				synctest.Wait()
				second := p.followup(acc.Child, "second")
				if tc.interrupt {
					if err := p.Host.Interrupt("root", acc.Child); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				tc.stop(p)

				q := m.boot(subagenttest.Options{}, nil)
				r := q.recover()
				q.parent.Wake()
				synctest.Wait()
				ran := entered(m.stored(acc.Child))[second] == 1
				if ran == tc.interrupt || (len(r.Reopened) == 1) == tc.interrupt {
					t.Errorf("the second message ran: %v; recovered %+v", ran, r)
				}
				if _, live := q.Agents.Get(acc.Child); live {
					t.Error("the child did not settle")
				}
				// A wake runs what waits first.
				third := q.followup(acc.Child, "third")
				synctest.Wait()
				got := q.said(acc.Child)
				i, j := slices.Index(got, "coordinator: second"), slices.Index(got, "coordinator: third")
				if i < 0 || j < i {
					t.Errorf("the child's log: %q", got)
				}
				q.stop()
				m.atRest(acc, subagent.Accepted{Child: acc.Child, Message: second}, subagent.Accepted{Child: acc.Child, Message: third})
				m.quiet()
			})
		})
	}
}

// imported makes of stored sessions what an import would have stored.
func (m *machine) imported(ids ...session.ID) {
	t := m.t
	t.Helper()
	store := m.back.Open()
	reg, err := session.NewRegistry(t.Context(), session.Config{Store: store, NewCells: units(t).NewCells})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		s, err := reg.PrepareStored(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(session.Draft{Payload: &session.Imported{}}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Flush(t.Context()), reg.Abandon(t.Context(), s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What came in with an import stays parked, whatever epoch was cut and whatever is owed:
// nothing of it runs before a person sends something.
func TestRecoverImported(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{NoNotices: true}, nil)
		done := p.start("done", "go")
		synctest.Wait()
		p.Answer("long", scripted.Step{scripted.Hang()})
		acc := p.start("worker", "long")
		synctest.Wait()
		second := p.followup(acc.Child, "second")
		if err := p.parent.Accept(t.Context(), agent.UserText("long"), session.NextTurn); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := p.parent.Accept(t.Context(), agent.UserText("for the root"), session.NextTurn); err != nil {
			t.Fatal(err)
		}
		p.crash()
		m.imported("root", acc.Child)

		q := m.boot(subagenttest.Options{}, nil)
		if r := q.recover(); r.Reopened != nil || r.Notices != 1 {
			t.Errorf("recovered %+v", r)
		}
		if q.parent.Wake() {
			t.Error("the root was woken")
		}
		synctest.Wait()
		if n := q.Adapter.Started(); n != 0 {
			t.Errorf("%d model calls", n)
		}
		third, err := q.Host.Send(t.Context(), "root", acc.Child, say("third"))
		if err != nil {
			t.Fatal(err)
		}
		if err := q.parent.Followup(agent.UserText("go on")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		q.stop()
		m.atRest(done, acc, subagent.Accepted{Child: acc.Child, Message: second}, subagent.Accepted{Child: acc.Child, Message: third})
		m.quiet()
	})
}

// A turn that was cut elsewhere is over: what an import brings of it is told, and wakes
// nobody before a person sends something. What is delegated here does.
func TestRecoverImportedCut(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		p.Answer("long", scripted.Step{scripted.Hang()})
		acc := p.start("worker", "long")
		synctest.Wait()
		p.crash()
		m.imported("root", acc.Child)

		q := m.boot(subagenttest.Options{}, nil)
		if r := q.recover(); len(r.Reopened) != 1 {
			t.Errorf("recovered %+v", r)
		}
		synctest.Wait()
		if q.parent.Wake() || q.Adapter.Started() != 0 {
			t.Errorf("%d model calls", q.Adapter.Started())
		}
		// Nobody has sent the root anything yet, and a child that ran here wakes it.
		second := q.followup(acc.Child, "second")
		synctest.Wait()
		said := q.said("root")
		if n := len(said); n < 3 || !strings.HasPrefix(said[n-3], "subagent-settled: ") || !strings.HasPrefix(said[n-2], "subagent-settled: ") || said[n-1] != "answer: noted" {
			t.Errorf("the root's log: %q", said)
		}
		q.stop()
		m.atRest(acc, subagent.Accepted{Child: acc.Child, Message: second})
		m.quiet()
	})
}

// A parent in the middle of the tree was cut while it waited for its child, whose
// settlement it has not heard of: it is woken by it, before it settles itself.
func TestRecoverMiddle(t *testing.T) {
	for _, how := range []cut{before, behind} {
		onMachine(t, func(t *testing.T, m *machine) {
			p := m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
				if id == "a-child" && holds(events, isSettled) {
					return how
				}
				return goOn
			})
			p.work()
			p.crash()
			q := m.boot(subagenttest.Options{}, nil)
			r := q.recover()
			want := []session.ID{"a"}
			if how == before {
				want = append(want, "a-child")
			}
			if d := cmp.Diff(want, r.Reopened); d != "" {
				t.Errorf("reopened, parents first:\n%s", d)
			}
			synctest.Wait()
			q.stop()
			m.atRest()
			got := m.said("a")
			i := slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, "subagent-settled: ") })
			if i < 0 || !slices.Contains(got[i:], "answer: noted") {
				t.Errorf("the log in the middle: %q", got)
			}
			m.quiet()
		})
	}
}

// Recover may be called twice at once, and beside a follow-up to a child that it opens.
func TestRecoverTwiceAtOnce(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
			if id == "a-child" && holds(events, isSettled) {
				return before
			}
			return goOn
		})
		accepted := p.work()
		p.crash()
		q := m.boot(subagenttest.Options{}, nil)
		var wg sync.WaitGroup
		opened := make([][]session.ID, 2)
		for i := range opened {
			wg.Go(func() { opened[i] = q.recover().Reopened })
		}
		var id message.ID
		wg.Go(func() { id = q.followup("a", "and this") })
		wg.Wait()
		synctest.Wait()
		for _, child := range []session.ID{"a", "a-child"} {
			if slices.Contains(opened[0], child) && slices.Contains(opened[1], child) {
				t.Errorf("%s was opened twice: %v", child, opened)
			}
		}
		// If the follow-up was so early that a had settled before its child was back, a
		// finds out now.
		last := q.followup("a", "and that")
		synctest.Wait()
		q.stop()
		m.atRest(append(accepted, subagent.Accepted{Child: "a", Message: id}, subagent.Accepted{Child: "a", Message: last})...)
		m.quiet()
	})
}

// A child whose parent is just being released comes back when that is done.
func TestRecoverBelowWhoSettles(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, func(_ int, id session.ID, events []session.Event) cut {
			if id == "a-child" && holds(events, isSettled) {
				return before
			}
			return goOn
		})
		accepted := p.work()
		p.crash()
		q := m.boot(subagenttest.Options{}, nil)
		gate := make(chan struct{})
		q.Service.AddSetup(func(_ context.Context, a *agent.Agent) (func() error, error) {
			if a.ID() != "a" {
				return nil, nil
			}
			return func() error { <-gate; return nil }, nil
		})
		q.followup("a", "and this") // it settles, and is held up
		synctest.Wait()
		recovered := make(chan subagent.Recovered, 1)
		go func() { recovered <- q.recover() }()
		synctest.Wait()
		close(gate)
		if r := <-recovered; !slices.Contains(r.Reopened, "a-child") {
			t.Errorf("recovered %+v", r)
		}
		synctest.Wait()
		q.followup("a", "and that")
		synctest.Wait()
		q.stop()
		m.atRest(accepted...)
		m.quiet()
	})
}

// A child that somebody else has brought to rest, since its log was read, is not opened.
func TestRecoverLate(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		p.Answer("long", scripted.Step{scripted.Hang()})
		acc := p.start("worker", "long")
		synctest.Wait()
		p.crash()
		q := m.boot(subagenttest.Options{}, nil)
		type slow struct{}
		gate := make(chan struct{})
		q.cut.looked = func(ctx context.Context, id session.ID) {
			if id == acc.Child && ctx.Value(slow{}) != nil {
				<-gate
			}
		}
		var late subagent.Recovered
		var wg sync.WaitGroup
		wg.Go(func() {
			var err error
			if late, err = q.Host.Recover(context.WithValue(t.Context(), slow{}, true), q.parent); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		// The slow one is let go only as far as its next look.
		gate <- struct{}{}
		synctest.Wait()
		if r := q.recover(); len(r.Reopened) != 1 {
			t.Errorf("recovered %+v", r)
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		synctest.Wait()
		if late.Reopened != nil || late.Skipped != nil || late.Notices != 0 {
			t.Errorf("the slow one recovered %+v", late)
		}
		q.stop()
		m.atRest(acc)
		if n := m.stored(acc.Child).Epochs().Settled; n != 1 {
			t.Errorf("%d epochs", n)
		}
	})
}

// Nobody's authority is needed but that of a live root; a child that cannot be opened is
// named and the others go on; one-shot children stay what they were.
func TestRecoverRefusals(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		if _, err := new(subagent.Host).Recover(t.Context(), nil); !errors.Is(err, subagent.ErrContinuationUnavailable) {
			t.Errorf("an unbound host: %v", err)
		}
		p := m.boot(subagenttest.Options{}, nil)
		p.Answer("long", scripted.Step{scripted.Hang()})
		bad, good := p.start("bad", "long"), p.start("good", "long")
		run := p.Start(t, t.Context(), spawn.DefaultName, subagenttest.Request(p.parent, "long"))
		synctest.Wait()
		if a, _ := p.Agents.Get(run.ID()); a.Session().Flush(t.Context()) != nil {
			t.Fatal("the one-shot child is not stored")
		}
		p.crash()
		m.back.Damage(bad.Child, &session.CorruptError{ID: bad.Child, Err: errors.New("damaged")})

		q := m.boot(subagenttest.Options{}, nil)
		stranger, err := q.Agents.Create(t.Context(), agent.Create{Options: subagenttest.ParentOptions()})
		if err != nil {
			t.Fatal(err)
		}
		if err := stranger.Dispose(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = q.Host.Recover(t.Context(), stranger.Agent())
		wantCode(t, err, subagent.CodeUnauthorized)
		r, err := q.Host.Recover(t.Context(), q.parent)
		if err != nil || len(r.Reopened) != 1 || r.Reopened[0] != good.Child {
			t.Errorf("recovered %+v, %v", r, err)
		}
		synctest.Wait()
		if s := m.stored(run.ID()); s.Head() == 0 || s.Epochs().Settled != 0 {
			t.Error("the one-shot child was touched")
		}
		// The damaged child keeps nobody from its other children.
		if _, err := q.Service.Followup(t.Context(), q.parent, good.Child, say("more"), message.UserSource()); err != nil {
			t.Errorf("follow up: %v", err)
		}
		synctest.Wait()
		q.stop()
		if err := run.Close(t.Context()); err != nil {
			t.Logf("the run of the dead process: %v", err)
		}
	})
}

// panicky is a logger that breaks down on one message, once.
type panicky struct {
	slog.Handler
	on   string
	done *atomic.Bool
}

func (h panicky) Enabled(context.Context, slog.Level) bool { return true }

func (h panicky) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.on) && !h.done.Swap(true) {
		panic("logger")
	}
	return nil
}

// Whoever breaks down while the logs of children are read holds up nobody who asks again.
func TestRecoverPanics(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		p := m.boot(subagenttest.Options{}, nil)
		p.Answer("long", scripted.Step{scripted.Hang()})
		bad := p.start("bad", "long")
		synctest.Wait()
		p.crash()
		m.back.Damage(bad.Child, &session.CorruptError{ID: bad.Child, Err: errors.New("damaged")})

		h := panicky{slog.DiscardHandler, "what a subagent came to cannot be read", new(atomic.Bool)}
		q := m.boot(subagenttest.Options{Logger: slog.New(h)}, nil)
		_, err := q.Service.StartContinuable(t.Context(), spawn.DefaultName, q.request("other", "go"))
		if err == nil || !h.done.Load() {
			t.Errorf("started, and the logger broke down: %v, %v", h.done.Load(), err)
		}
		acc := q.start("other", "go")
		synctest.Wait()
		q.stop()
		if got := m.said(acc.Child); got[len(got)-1] != "settled: completed" {
			t.Errorf("the child's log: %q", got)
		}
	})
}

// What a turn was about to take up when the process ended is neither lost nor done twice: a
// child's prompt, and a notice on its way into the root (design § 4, Accepted means durable).
func TestRecoverStoppedBeforeAStep(t *testing.T) {
	for _, who := range []string{"child", "root"} {
		t.Run(who, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				p := m.boot(subagenttest.Options{}, nil)
				p.Agents.AddHooks(agent.Hooks{PreStep: func(ctx context.Context, s *agent.PreStep) error {
					if (s.Agent == p.parent) == (who == "root") {
						<-ctx.Done()
					}
					return nil
				}})
				acc := p.start("worker", "go")
				synctest.Wait()
				p.stop()
				q := m.boot(subagenttest.Options{}, nil)
				if r := q.recover(); (len(r.Reopened) == 1) != (who == "child") || r.Notices != 0 {
					t.Errorf("recovered %+v", r)
				}
				q.parent.Wake()
				synctest.Wait()
				q.stop()
				m.atRest(acc)
				if n := m.stored(acc.Child).Epochs().Settled; n != 1 {
					t.Errorf("%d epochs", n)
				}
				m.quiet()
			})
		})
	}
}
