package session_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// clock is a fixed clock, so that logs are the same bytes every time.
func clock() time.Time { return time.UnixMilli(1_700_000_000_000) }

func newRegistry(t testing.TB, cfg session.Config) *session.Registry {
	t.Helper()
	if cfg.Now == nil {
		cfg.Now = clock
	}
	r, err := session.NewRegistry(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func prepare(t testing.TB, r *session.Registry, n session.New) *session.Session {
	t.Helper()
	s, err := r.Prepare(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newSession(t testing.TB) *session.Session {
	t.Helper()
	return prepare(t, newRegistry(t, session.Config{}), session.New{ID: "s"})
}

// enter makes a prepared session live and returns the function that ends it.
func enter(t testing.TB, r *session.Registry, s *session.Session) func(context.Context) error {
	t.Helper()
	detach, err := r.Enter(s)
	if err != nil {
		t.Fatal(err)
	}
	return detach
}

func mustAppend(t testing.TB, s *session.Session, payloads ...session.Payload) {
	t.Helper()
	if _, err := s.Append(drafts(payloads...)...); err != nil {
		t.Fatal(err)
	}
}

func drafts(payloads ...session.Payload) []session.Draft {
	out := make([]session.Draft, len(payloads))
	for i, p := range payloads {
		out[i].Payload = p
	}
	return out
}

func say(id, text string) *session.UserMessage {
	return &session.UserMessage{Message: userMessage(id, text)}
}

func userMessage(id, text string) message.Message {
	return message.Message{ID: message.ID(id), Role: message.RoleUser, Content: []message.Block{message.Text(text)}, Source: message.UserSource()}
}

func reply(turn, step int64, id string, blocks ...message.Block) *session.AssistantMessage {
	return &session.AssistantMessage{Turn: turn, Step: step, Message: message.Message{
		ID: message.ID(id), Role: message.RoleAssistant, Content: blocks,
		Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "p", Model: "m"}),
	}}
}

func outcome(turn, step int64, call, text, code string) *session.ToolResult {
	name := ""
	if code != "" {
		name = "Failed"
	}
	return &session.ToolResult{Turn: turn, Step: step, ErrorName: name, ErrorCode: code, Message: message.Message{
		ID: message.ID("r-" + call), Role: message.RoleUser,
		Content: []message.Block{message.ToolResult(call, []message.Block{message.Text(text)}, code != "")},
		Source:  message.NewSource(message.SourceTool, message.SourceDetails{CallID: call}),
	}}
}

// spill is a spill of size bytes in the log of session s, omitted of which are lost.
func spill(turn, step int64, call string, size, omitted int64, texts ...string) *session.ToolSpill {
	return session.NewToolSpill(session.ToolSpill{Session: "s", Turn: turn, Step: step, CallID: call, Bytes: size, Omitted: omitted}, texts)
}

func insert(target session.Target, start int64, ids ...string) *session.InboxSpliced {
	p := &session.InboxSpliced{Target: target, Start: start}
	for _, id := range ids {
		p.Inserted = append(p.Inserted, userMessage(id, "text of "+id))
	}
	return p
}

// script reads a log in shorthand, an event a word. A number after the letter is
// the turn, or turn.step; what follows a colon belongs to the letter:
//
//	T t ti   turn start, end, end as interrupted    S s     step start, end
//	u        user message                           a       assistant message: calls
//	c        tool call: id                          r n     result, never-started result: id
//	z        spill: id
//	k h x w  chunk, request header, context, todos  E       end of the seed
//	y        retry: id,attempt,provider             Y       retry started: id,attempt
//	P m p    compaction start, summary, end: id     i q     splice in, claim all of next-turn
func script(t testing.TB, text string) []session.Payload {
	t.Helper()
	var out []session.Payload
	for i, word := range strings.Fields(text) {
		head, arg, _ := strings.Cut(word, ":")
		letters := strings.TrimRight(head, "0123456789.")
		turnText, stepText, _ := strings.Cut(head[len(letters):], ".")
		turn, _ := strconv.ParseInt(turnText, 10, 64)
		step, _ := strconv.ParseInt(stepText, 10, 64)
		args := strings.Split(arg, ",")
		id := fmt.Sprintf("m%d", i)
		number := func(i int) int64 {
			n, err := strconv.ParseInt(args[i], 10, 64)
			if err != nil {
				t.Fatalf("script: %s: %v", word, err)
			}
			return n
		}
		var p session.Payload
		switch letters {
		case "T":
			p = &session.TurnStart{Turn: turn}
		case "t":
			p = &session.TurnEnd{Turn: turn, Kind: session.EndCompleted}
		case "ti":
			p = &session.TurnEnd{Turn: turn, Kind: session.EndInterrupted}
		case "S":
			p = &session.StepStart{Turn: turn, Step: step}
		case "s":
			p = &session.StepEnd{Turn: turn, Step: step}
		case "u":
			p = say(id, "text "+id)
		case "a":
			a := reply(turn, step, id)
			for _, c := range args {
				if c != "" {
					a.Message.Content = append(a.Message.Content, message.ToolCall(c, "tool", "{}"))
				}
			}
			p = a
		case "c":
			p = &session.ToolCall{Turn: turn, Step: step, CallID: arg, Name: "tool", Arguments: "{}"}
		case "z":
			p = spill(turn, step, arg, 3, 0, "all")
		case "r":
			p = outcome(turn, step, arg, "ok", "")
		case "n":
			p = outcome(turn, step, arg, "no", session.CodeToolNotStarted)
		case "k":
			p = &session.AssistantChunk{Turn: turn, Step: step, Chunk: []byte(`{"type":"text-delta","index":0,"text":"x"}`)}
		case "h":
			p = session.NewRequestHeader(session.RequestHeader{Config: session.CallConfig{Provider: "p", Model: "m"}, Reason: session.HeaderInitial})
		case "x":
			p = &session.RequestContext{Provider: "p", Model: "m"}
		case "w":
			p = &session.TodoWrite{}
		case "E":
			p = &session.EndSeed{}
		case "y":
			p = &session.Retry{RetryID: args[0], Turn: turn, Step: step, Attempt: number(1), Provider: args[2], PolicyKey: "k", MaxRetries: 5, Failure: message.Failure{Message: "busy", Code: "RATE_LIMIT"}}
		case "Y":
			p = &session.RetryStarted{RetryID: args[0], Turn: turn, Step: step, Attempt: number(1)}
		case "P":
			p = &session.CompactionStart{CompactionID: arg, Turn: turn}
		case "m":
			p = &session.CompactionSummary{CompactionID: arg, Provider: "p", Model: "m", Shadowed: session.Shadowed{Seqs: []int64{0}}}
		case "p":
			p = &session.CompactionEnd{CompactionID: arg, Turn: turn}
		case "i":
			p = insert(session.NextTurn, 0, id)
		case "q":
			p = &session.InboxSpliced{Target: session.NextTurn, Removed: 1}
		default:
			t.Fatalf("script: unknown word %q", word)
		}
		out = append(out, p)
	}
	return out
}

// rawEvents returns a session's events as a store yields them.
func rawEvents(t testing.TB, s *session.Session) []session.Event {
	t.Helper()
	var all []session.Event
	for e := range s.Events(0) {
		all = append(all, e)
	}
	out, err := session.ParseBatch(nil, s.ID(), session.AppendBatch(nil, all), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sequence(events []session.Event) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func recordOf(s *session.Session, head int64) session.Record {
	return session.Record{Header: s.Header(), Meta: s.Meta(), Head: head}
}

func export(s *session.Session) string {
	var buf []byte
	for e := range s.Events(0) {
		buf = append(e.AppendEnvelope(buf), '\n')
	}
	return string(buf)
}

func texts(msgs []message.Message) []string {
	var out []string
	for _, m := range msgs {
		out = append(out, string(m.ID)+":"+message.JoinText(m.Content))
	}
	return out
}

// verdict is what a scripted operation of a fake store does: whether it takes
// effect, and what it returns.
type verdict struct {
	skip bool
	err  error
}

var errDisk = errors.New("disk failure")

// fake is a store whose operations a test scripts. hook, if set, runs before each
// of create, append, head, open, exists, check and close, outside the lock; it
// may block.
type fake struct {
	hook func(op string) verdict

	mu     sync.Mutex
	rows   map[session.ID]*fakeRow
	writes []string // create and append calls: their op and the seqs they carried
	ops    []string
}

type fakeRow struct {
	header session.Header
	meta   session.Meta
	events []session.Event // with those of the prefix
	cells  []session.Checkpoint
	held   bool
	fenced bool
}

func newFake() *fake { return &fake{rows: map[session.ID]*fakeRow{}} }

func (f *fake) begin(op string) verdict {
	f.mu.Lock()
	f.ops = append(f.ops, op)
	hook := f.hook
	f.mu.Unlock()
	if hook == nil {
		return verdict{}
	}
	return hook(op)
}

func (f *fake) setHook(hook func(string) verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *fake) count(op string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.ops {
		if o == op {
			n++
		}
	}
	return n
}

func (f *fake) written() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writes)
}

func (f *fake) row(id session.ID) *fakeRow {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.rows[id]; r != nil {
		c := *r
		return &c
	}
	return nil
}

func (f *fake) head(id session.ID) int {
	r := f.row(id)
	if r == nil {
		return -1
	}
	return len(r.events)
}

func (f *fake) logWrite(op string, from, n int) {
	f.writes = append(f.writes, fmt.Sprintf("%s %d..%d", op, from, from+n))
}

func (f *fake) Create(_ context.Context, h session.Header, m session.Meta, first []session.Event, cells []session.Checkpoint) (session.Writer, error) {
	v := f.begin("create")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logWrite("create", int(m.Prefix.Len), len(first))
	if f.rows[h.ID] != nil {
		return nil, session.ErrExists
	}
	if !v.skip {
		row := &fakeRow{header: h, meta: m, cells: cells, held: v.err == nil}
		if m.Prefix.Len > 0 {
			owner := f.rows[m.Prefix.ID]
			if owner == nil || int64(len(owner.events)) < m.Prefix.Len {
				return nil, &session.PrefixError{ID: h.ID, Prefix: m.Prefix, Head: -1}
			}
			row.events = slices.Clone(owner.events[:m.Prefix.Len])
		}
		row.events = append(row.events, stored(first)...)
		f.rows[h.ID] = row
	}
	if v.err != nil {
		return nil, v.err
	}
	return &fakeWriter{f, h.ID}, nil
}

// stored returns events as they come back from a disk.
func stored(events []session.Event) []session.Event {
	if len(events) == 0 {
		return nil
	}
	out, err := session.ParseBatch(nil, "x", session.AppendBatch(nil, events), events[0].Seq, 0)
	if err != nil {
		panic(err)
	}
	return out
}

func (f *fake) Open(_ context.Context, id session.ID) (session.Writer, error) {
	v := f.begin("open")
	if v.err != nil {
		return nil, v.err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	row := f.rows[id]
	switch {
	case row == nil:
		return nil, session.ErrNotFound
	case row.held:
		return nil, session.ErrExists
	}
	row.held = true
	return &fakeWriter{f, id}, nil
}

func (f *fake) Inspect(_ context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	row := f.row(id)
	if row == nil {
		return session.Record{}, nil, session.ErrNotFound
	}
	cells := slices.Clone(row.cells)
	slices.Reverse(cells) // the newest of a key is the one that counts
	return session.Record{Header: row.header, Meta: row.meta, Head: int64(len(row.events)), Cells: cells}, sequence(row.events), nil
}

func (f *fake) ReadFrom(_ context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	return sequence(f.row(id).events[seq:])
}

func (f *fake) Exists(_ context.Context, id session.ID) (bool, error) {
	v := f.begin("exists")
	return f.row(id) != nil, v.err
}

func (f *fake) List(context.Context, session.Filter, session.Page) (session.Listing, error) {
	return session.Listing{}, errors.ErrUnsupported
}
func (f *fake) Delete(context.Context, session.ID) error { return errors.ErrUnsupported }
func (f *fake) Close(context.Context) error              { return nil }

type fakeWriter struct {
	f  *fake
	id session.ID
}

func (w *fakeWriter) Append(_ context.Context, head int64, events []session.Event, cells []session.Checkpoint) error {
	v := w.f.begin("append")
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.logWrite("append", int(head), len(events))
	row := w.f.rows[w.id]
	switch {
	case row.fenced:
		return &session.FencedError{ID: w.id}
	case int64(len(row.events)) != head:
		return &session.ConflictError{ID: w.id, Want: head, Head: int64(len(row.events))}
	}
	if !v.skip {
		row.events = append(row.events, stored(events)...)
		row.cells = append(row.cells, cells...)
	}
	return v.err
}

func (w *fakeWriter) Head(context.Context) (int64, error) {
	v := w.f.begin("head")
	return int64(w.f.head(w.id)), v.err
}

func (w *fakeWriter) Check(context.Context) error { return w.f.begin("check").err }

func (w *fakeWriter) Discard(context.Context) error {
	v := w.f.begin("discard")
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if row := w.f.rows[w.id]; row != nil && row.fenced {
		return &session.FencedError{ID: w.id}
	}
	if !v.skip {
		delete(w.f.rows, w.id)
	}
	return v.err
}

func (w *fakeWriter) Close(context.Context) error {
	v := w.f.begin("close")
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if row := w.f.rows[w.id]; row != nil {
		row.held = false
	}
	return v.err
}
