package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// recorder keeps what hooks were told, for the rules that hold in every scenario.
type recorder struct {
	t  testing.TB
	mu sync.Mutex // guards following
	// all sessions that were ever live, also after a restart
	seen []*session.Session
	told map[*agent.Agent]*told
	// sessions: created minus disposed
	live map[*session.Session]int
	// what the observer saw
	observed map[*agent.Agent][]agent.EventKind
	stops    []func()
}

type told struct {
	created, disposed int
	status            []agent.Status
	inbox             []string
	failed            []error
}

func (r *recorder) of(a *agent.Agent) *told {
	if r.told == nil {
		r.told, r.live, r.observed = map[*agent.Agent]*told{}, map[*session.Session]int{}, map[*agent.Agent][]agent.EventKind{}
	}
	if r.told[a] == nil {
		r.told[a] = &told{}
	}
	return r.told[a]
}

func (r *recorder) attach(reg *agent.Registry, sessions *session.Registry) {
	note := func(a *agent.Agent, fn func(*told)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		t := r.of(a)
		if t.disposed > 0 {
			r.t.Errorf("I7: %s is told of after its disposal", a.ID())
		}
		fn(t)
	}
	r.of(nil)
	sessions.AddHooks(session.Hooks{
		Created: func(s *session.Session) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.seen = append(r.seen, s)
			r.live[s]++
			return nil
		},
		Disposed: func(s *session.Session) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.live[s]--
		},
	})
	reg.AddHooks(agent.Hooks{
		Created: func(a *agent.Agent) error {
			note(a, func(t *told) { t.created++ })
			if live, ok := reg.Live(a); !ok || live != a {
				r.t.Errorf("L40: %s is announced, but not live", a.ID())
			}
			return nil
		},
		Status: func(a *agent.Agent, s agent.Status) {
			note(a, func(t *told) {
				last := agent.Idle
				if n := len(t.status); n > 0 {
					last = t.status[n-1]
				}
				if s == last {
					r.t.Errorf("L3, I7: %s is told %s twice in a row", a.ID(), s)
				}
				t.status = append(t.status, s)
			})
		},
		Inbox: func(a *agent.Agent, e agent.InboxEvent) {
			note(a, func(t *told) { t.inbox = append(t.inbox, inboxLine(e.Change, e.Target, e.Message.ID)) })
		},
		Failed:   func(a *agent.Agent, err error) { note(a, func(t *told) { t.failed = append(t.failed, err) }) },
		Disposed: func(a *agent.Agent) { note(a, func(*told) {}); r.mu.Lock(); r.of(a).disposed++; r.mu.Unlock() },
	})
	r.stops = append(r.stops, reg.Observe(1<<20, func(e agent.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.observed[e.Agent] = append(r.observed[e.Agent], e.Kind)
	}))
}

func inboxLine(c agent.InboxChange, t session.Target, id message.ID) string {
	return fmt.Sprintf("%s %s %s", strings.TrimPrefix(string(c), "agent/inbox/"), t, id)
}

// finish ends the world and checks what holds after every scenario.
func (w *world) finish() {
	w.Helper()
	if err := w.reg.Close(w.ctx); err != nil && (w.store == nil || w.store.before == nil) {
		w.Errorf("close: %v", err)
	}
	for _, stop := range w.rec.stops {
		stop()
	}
	if live := w.sessions.Close(); len(live) != 0 {
		w.Errorf("%d sessions are live after the registry was closed", len(live))
	}
	if n := len(w.reg.List()); n != 0 {
		w.Errorf("%d agents are live after the registry was closed", n)
	}
	w.rec.check(w)
	w.checkRequests()
	for _, s := range w.rec.seen {
		w.verify(s)
	}
}

func (r *recorder) check(w *world) {
	w.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, n := range r.live {
		if n != 0 {
			w.Errorf("S29: session %s: created and disposed do not pair (%d)", s.ID(), n)
		}
	}
	for a, t := range r.told {
		if a == nil {
			continue
		}
		if t.created != 1 || t.disposed != 1 {
			w.Errorf("I7: %s: %d created, %d disposed", a.ID(), t.created, t.disposed)
		}
		if n := len(t.status); n > 0 && t.status[n-1] != agent.Idle {
			w.Errorf("%s is left %s", a.ID(), t.status[n-1])
		}
		w.checkInbox(a, t)
	}
	for a, kinds := range r.observed {
		if a != nil && (kinds[0] != agent.EventCreated || kinds[len(kinds)-1] != agent.EventDisposed) {
			w.Errorf("I7: the observer saw %v of %s", kinds, a.ID())
		}
	}
}

// checkInbox compares what the Inbox hooks were told with the log (amendment
// P09): the same changes in the same order, each id enqueued once and dequeued or
// discarded once.
func (w *world) checkInbox(a *agent.Agent, t *told) {
	w.Helper()
	s := a.Session()
	want := []string{}
	var lists = map[session.Target][]message.ID{}
	for e := range s.Events(s.Header().SeedLength) {
		p, ok := e.Payload().(*session.InboxSpliced)
		if !ok {
			continue
		}
		l := lists[p.Target]
		change := agent.InboxDequeue
		if p.Canceled {
			change = agent.InboxDiscard
		}
		live := e.Seq >= s.FirstLive()
		for _, id := range l[p.Start : p.Start+p.Removed] {
			if live {
				want = append(want, inboxLine(change, p.Target, id))
			}
		}
		ins := []message.ID{}
		for _, m := range p.Inserted {
			ins = append(ins, m.ID)
			if live {
				want = append(want, inboxLine(agent.InboxEnqueue, p.Target, m.ID))
			}
		}
		lists[p.Target] = slices.Concat(l[:p.Start], ins, l[p.Start+p.Removed:])
	}
	got := t.inbox
	if got == nil {
		got = []string{}
	}
	if d := cmp.Diff(want, got); d != "" {
		w.Errorf("P09: inbox notifications of %s (-log +told):\n%s", a.ID(), d)
	}
}

// raw strips the decoded payloads, so that what is checked is what would be read back.
func raw(s *session.Session, from int64) []session.Event {
	var events []session.Event
	for e := range s.Events(from) {
		events = append(events, session.RawEvent(e, e.Data()))
	}
	return events
}

func record(s *session.Session, events []session.Event) session.Record {
	return session.Record{Header: s.Header(), Meta: s.Meta(), Head: int64(len(events))}
}

func seq2(events []session.Event) func(func(session.Event, error) bool) {
	return func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// checkRequests rebuilds every model request from the log of its session, cut
// where the request was made, and compares (core L39, I9).
func (w *world) checkRequests() {
	w.Helper()
	plain, err := session.NewRegistry(w.ctx, session.Config{})
	w.ok(err)
	for i, r := range w.model.requests {
		at := slices.IndexFunc(w.rec.seen, func(s *session.Session) bool { return string(s.ID()) == r.req.SessionID })
		if at < 0 {
			w.Errorf("request %d of an unknown session %s", i, r.req.SessionID)
			continue
		}
		s := w.rec.seen[at]
		// After a resume the newest instance holds the whole log.
		for _, t := range w.rec.seen[at+1:] {
			if t.ID() == s.ID() {
				s = t
			}
		}
		events := raw(s, 0)[:r.head]
		old, err := plain.Restore(record(s, events), seq2(events))
		if err != nil {
			w.Errorf("L39: request %d cannot be rebuilt: %v", i, err)
			continue
		}
		if d := cmp.Diff(encode(rebuild(old)), encode(r.req)); d != "" {
			w.Errorf("L39: request %d differs from its log (-log +sent):\n%s", i, d)
		}
	}
}

// rebuild makes a request from nothing but a log.
func rebuild(s *session.Session) *llm.Request {
	h := s.RequestHeader()
	msgs, _ := s.History()
	req := &llm.Request{
		Provider: h.Config.Provider, Model: h.Config.Model, ReasoningEffort: h.Config.ReasoningEffort, System: h.System,
		Temperature: h.Config.Temperature, MaxTokens: h.Config.MaxTokens, Stop: h.Config.Stop, Messages: msgs, SessionID: string(s.ID()),
	}
	for _, t := range h.Tools {
		req.Tools = append(req.Tools, llm.ToolSpec{Name: t.Name, Description: t.Description, Parameters: t.Parameters})
	}
	return req
}

// encode gives the bytes of a request, one part a line.
func encode(r *llm.Request) string {
	var b strings.Builder
	temp := "unset"
	if r.Temperature != nil {
		temp = fmt.Sprint(*r.Temperature)
	}
	fmt.Fprintf(&b, "%s %s %s %s %d %q %s %s\nsystem %q\n", r.Provider, r.Model, r.ReasoningEffort, temp, r.MaxTokens, r.Stop, r.SessionID, r.Purpose, r.System)
	for i := range r.Tools {
		fmt.Fprintf(&b, "tool %s %q %s\n", r.Tools[i].Name, r.Tools[i].Description, r.Tools[i].Parameters)
	}
	for i := range r.Messages {
		fmt.Fprintf(&b, "%s\n", session.AppendMessage(nil, &r.Messages[i]))
	}
	return b.String()
}

// verify replays a log through every rule (I4–I6, I11, I14) and, where there is a
// healthy store, compares it with what is stored.
func (w *world) verify(s *session.Session) {
	w.Helper()
	plain, err := session.NewRegistry(w.ctx, session.Config{})
	w.ok(err)
	events := raw(s, 0)
	rep, err := plain.Verify(record(s, events), seq2(events))
	if err != nil {
		w.Errorf("the log of %s is not legal: %v\n%s", s.ID(), err, strings.Join(trace(s), "\n"))
	}
	if rep.OpenTurn != 0 {
		w.Errorf("turn %d of %s is left open:\n%s", rep.OpenTurn, s.ID(), strings.Join(trace(s), "\n"))
	}
	if w.store == nil || w.store.before != nil || w.store.after != nil || w.lossy[s.ID()] {
		return
	}
	var have []string
	for e, err := range w.store.ReadFrom(w.ctx, s.ID(), 0) {
		if err != nil {
			if s.Head() > s.Header().SeedLength && !s.Deferred() {
				w.Errorf("reading %s back: %v", s.ID(), err)
			}
			return
		}
		have = append(have, string(e.AppendEnvelope(nil)))
	}
	if int64(len(have)) < s.Head() {
		w.Errorf("%d events of %s are stored, of %d", len(have), s.ID(), s.Head())
	}
	for i, e := range events {
		if got, want := have[i], string(e.AppendEnvelope(nil)); got != want {
			w.Errorf("event %d of %s is stored as\n%s\nnot as\n%s", i, s.ID(), got, want)
		}
	}
}

// trace renders a log as one readable line an event.
func trace(s *session.Session) []string {
	lines := []string{}
	for e := range s.Events(0) {
		lines = append(lines, line(e))
	}
	return lines
}

func line(e session.Event) string { return lineOf(&e, e.Payload()) }

func lineOf(e *session.Event, p session.Payload) string {
	switch p := p.(type) {
	case *session.TurnStart:
		return fmt.Sprintf("turn %d", p.Turn)
	case *session.TurnEnd:
		s := fmt.Sprintf("end %d %s", p.Turn, p.Kind)
		if p.Kind == session.EndAborted {
			s += " " + string(p.Cause.Kind)
		}
		if p.Failure != nil {
			s += " " + p.Failure.Code
		}
		return s
	case *session.StepStart:
		return fmt.Sprintf("step %d.%d", p.Turn, p.Step)
	case *session.StepEnd:
		return fmt.Sprintf("step-end %d.%d", p.Turn, p.Step)
	case *session.UserMessage:
		if p.Message.Source.Kind == message.SourcePlugin {
			return "context"
		}
		return "user " + string(p.Message.ID)
	case *session.AssistantMessage:
		s := "assistant"
		for _, b := range p.Message.Content {
			switch b.Type {
			case message.BlockToolCall:
				s += fmt.Sprintf(" %s(%s)", b.Name, b.ID)
			default:
				s += fmt.Sprintf(" %q", b.Text)
			}
		}
		if p.Interrupted {
			s += " interrupted"
		}
		return s
	case *session.ToolCall:
		return fmt.Sprintf("call %s %s", p.CallID, p.Name)
	case *session.ToolResult:
		s := fmt.Sprintf("result %s", p.Message.Source.Details().CallID)
		if p.ErrorCode != "" {
			s += " " + p.ErrorCode
		}
		return s
	case *session.InboxSpliced:
		list := map[session.Target]string{session.NextTurn: "turn", session.NextStep: "step"}[p.Target]
		s := "inbox " + list
		if p.Removed > 0 {
			s += fmt.Sprintf(" -%d@%d", p.Removed, p.Start)
		}
		for _, m := range p.Inserted {
			s += " +" + string(m.ID)
		}
		if p.Canceled {
			s += " canceled"
		}
		if p.NoWake {
			s += " nowake"
		}
		return s
	case *session.RequestHeader:
		return fmt.Sprintf("header %s %s:%s", p.Reason, p.Config.Provider, p.Config.Model)
	case *session.RequestContext:
		return "request-context"
	case *session.Retry:
		return fmt.Sprintf("retry %d %s %dms", p.Attempt, p.Failure.Code, p.DelayMS)
	case *session.RetryStarted:
		return fmt.Sprintf("retry-started %d", p.Attempt)
	case *session.ApprovalAsked:
		return "asked " + p.ToolName
	case *session.ApprovalDecided:
		return "decided " + p.Outcome
	case *session.EndSeed:
		return "end-seed"
	}
	return string(e.Type)
}

// logged compares a log, from its nth event on, with the lines of a golden trace.
func (w *world) logged(a *agent.Agent, from int, want ...string) {
	w.Helper()
	got := trace(a.Session())
	if d := cmp.Diff(append([]string{}, want...), got[min(from, len(got)):]); d != "" {
		w.Errorf("log of %s (-want +got):\n%s", a.ID(), d)
	}
}

// lines returns the lines of a log that begin with one of the prefixes.
func lines(a *agent.Agent, prefixes ...string) []string {
	out := []string{}
	for _, l := range trace(a.Session()) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(l, p) }) {
			out = append(out, l)
		}
	}
	return out
}

func (w *world) same(what string, want, got any) {
	w.Helper()
	if d := cmp.Diff(want, got); d != "" {
		w.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func (r *recorder) failures(a *agent.Agent) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.of(a).failed)
}

func (r *recorder) statuses(a *agent.Agent) []agent.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.of(a).status)
}
