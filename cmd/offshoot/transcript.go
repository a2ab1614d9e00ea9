package main

import (
	"bufio"
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// showTranscript writes what people want to know of a log, in append order (core
// S19). It holds one event at a time.
func (a *app) showTranscript(ctx context.Context, s *shelf, w *bufio.Writer, rec session.Record, log iter.Seq2[session.Event, error]) error {
	_, plain := a.env("NO_COLOR")
	p := &paper{w: w, dims: a.isTerminal(a.stdout) && !plain}
	r := s.row(ctx, rec)
	var kids []row
	for kid, err := range s.records(ctx, session.Filter{Parent: rec.Header.ID}, session.Page{}) {
		if err != nil {
			return err
		}
		kids = append(kids, s.row(ctx, kid))
	}
	showHead(p, &r, rec, a.now())
	t := &transcript{paper: p, now: a.now(), header: rec.Header, calls: map[string]call{}, kids: map[string]*row{}}
	for i := range kids {
		t.kids[string(kids[i].ID)] = &kids[i]
	}
	for e, err := range log {
		if err != nil {
			return err
		}
		payload, err := s.reg.PayloadOf(e)
		if err != nil {
			return &session.CorruptError{ID: rec.Header.ID, Seq: e.Seq, Err: err}
		}
		t.event(&e, payload)
		if p.err != nil {
			return p.err
		}
	}
	t.end(&r, kids)
	return p.err
}

func showHead(p *paper, r *row, rec session.Record, now time.Time) {
	p.line("session %s", printable(string(r.ID)))
	for _, f := range []struct{ name, text string }{
		{"title", r.Title}, {"label", r.Label}, {"model", r.Model}, {"cwd", r.Cwd},
		{"created", fmt.Sprintf("%s (%s ago)", moment(now, r.CreatedAt), age(now, r.CreatedAt))},
		{"parent", string(r.ParentSession)}, {"mode", strings.TrimSpace(r.Mode + " " + r.Provider)},
	} {
		if f.text != "" {
			p.line("  %-8s %s", f.name, printable(f.text))
		}
	}
	if r.ParentSession != "" && r.Root != r.ParentSession {
		p.line("  %-8s %s", "root", printable(string(r.Root)))
	}
	if n := rec.Header.SeedLength; n > 0 {
		what := plural(n, "event")
		if from := forkedFrom(rec); from != "" {
			what = "the first " + what + " of " + printable(string(from))
		}
		p.line("  %-8s %s", "inherits", what)
	}
	state := r.State
	if rec.Live && rec.Owner != nil {
		state += fmt.Sprintf(", held by process %d", rec.Owner.PID)
	}
	if r.Error != "" {
		state += ": " + printable(r.Error)
	}
	p.line("  %-8s %s", "state", state)
	p.line("  %-8s %s, %s in %s", "size", r.sizeInWords(), plural(r.Tokens, "token"), plural(r.Requests, "answer"))
}

// forkedFrom names the session whose events a log began with: the one that stores
// them or, where a removal has moved them, the parent.
func forkedFrom(rec session.Record) session.ID {
	if ref := rec.Meta.Prefix; ref.Len == rec.Header.SeedLength {
		return ref.ID
	}
	return rec.Header.ParentSession
}

// transcript words the events of one log.
type transcript struct {
	*paper
	now    time.Time
	header session.Header
	kids   map[string]*row
	calls  map[string]call // calls without a result, by id
	made   int             // how many calls were made
	model  string          // of the last request
	turn   int64           // the open turn, or 0
}

// call is one tool call; numbers tell the calls of one step apart.
type call struct {
	number int
	name   string
}

func (c call) String() string { return fmt.Sprintf("#%d %s", c.number, printable(c.name)) }

// note writes one line about something that nobody said.
func (t *transcript) note(format string, args ...any) { t.line("· %s", fmt.Sprintf(format, args...)) }

func (t *transcript) event(e *session.Event, payload session.Payload) {
	switch p := payload.(type) {
	case *session.TurnStart:
		t.turn = p.Turn
		t.line("\n── turn %d · %s ──", p.Turn, moment(t.now, e.Time))
	case *session.TurnEnd:
		t.turn = 0
		t.line("── turn %d %s ──", p.Turn, howEnded(p))
	case *session.EndSeed:
		if t.header.SeedLength > 0 && e.Seq == t.header.SeedLength {
			t.line("\n── inherited up to here ──")
		} else {
			t.line("\n── opened again · %s ──", moment(t.now, e.Time))
		}
	case *session.UserMessage:
		t.line("%s%s", speaker(&p.Message.Source), replaced(e))
		t.blocks(p.Message.Content)
	case *session.AssistantMessage:
		t.assistant(e, p)
	case *session.ToolCall:
		if _, known := t.calls[p.CallID]; !known {
			t.call(p.CallID, p.Name, p.Arguments)
		}
	case *session.ToolSpill:
		t.spill(e, p)
	case *session.ToolResult:
		t.result(e, p)
	case *session.RequestHeader:
		if m := p.Config.Provider + ":" + p.Config.Model; m != t.model {
			t.model = m
			t.faint("· model %s", printable(m))
		}
	default:
		t.aside(payload)
	}
}

// aside words the events that are neither a turn nor a message.
func (t *transcript) aside(payload session.Payload) {
	switch p := payload.(type) {
	case *session.Retry:
		limit := ""
		if !p.Always {
			limit = fmt.Sprintf(" of %d", p.MaxRetries)
		}
		t.note("retry %d%s in %s: %s", p.Attempt, limit, time.Duration(p.DelayMS)*time.Millisecond, failure(&p.Failure))
	case *session.InboxSpliced:
		if p.Canceled {
			t.note("%s discarded", plural(p.Removed, "queued message"))
		}
	case *session.ApprovalAsked:
		t.note("approval asked for %s%s", printable(p.ToolName), because(p.Reason))
	case *session.ApprovalDecided:
		t.note("approval %s", printable(p.Outcome))
	case *session.ApprovalPolicy:
		t.note("approval policy %s%s", printable(p.Policy), delegated(p.Delegated))
	case *session.SandboxMode:
		t.note("sandbox mode %s%s", printable(p.Mode), delegated(p.Delegated))
	case *session.Title:
		t.note("title %s", printable(p.Title))
	case *session.TodoWrite:
		t.note("plan")
		for _, todo := range p.Todos {
			t.block("    ", todo.Status+": "+todo.Content, resultLines, false)
		}
	case *session.DescriptorEvent:
		t.descriptor(p)
	case *session.Settled:
		t.note("settled: epoch %d, %s", p.Epoch, printable(p.StopReason))
	case *session.Imported:
		t.note("imported: what stands above was written elsewhere")
	case *session.CompactionPrune:
		t.note("a long result is shortened for the model")
	case *session.CompactionSummary:
		t.note("%s, about %s tokens, summed up by %s", plural(int64(len(p.Shadowed.Seqs)), "message"), thousands(p.Shadowed.Tokens), printable(p.Provider+":"+p.Model))
	case *session.CompactionEnd:
		if p.Error != "" {
			t.note("compaction failed: %s", first(p.Error, lineRunes))
		}
	}
}

func (t *transcript) descriptor(p *session.DescriptorEvent) {
	if p.Err != nil {
		t.note("subagent, but its descriptor cannot be read: %s", first(p.Err.Error(), lineRunes))
		return
	}
	d := &p.Descriptor
	label := ""
	if d.Label != nil {
		label = ": " + first(*d.Label, 80)
	}
	t.note("%s subagent of provider %s%s", printable(d.Mode), printable(d.Provider), label)
}

func (t *transcript) assistant(e *session.Event, p *session.AssistantMessage) {
	note := replaced(e)
	if p.Interrupted {
		note += " (interrupted)"
	}
	t.line("assistant%s", note)
	t.blocks(p.Message.Content)
	if len(p.Message.Content) == 0 {
		t.faint("  (nothing)")
	}
	if u := p.Usage; u != nil {
		t.faint("  [%s in, %s out]", thousands(u.InputTokens+u.CacheReadTokens+u.CacheWriteTokens), thousands(u.OutputTokens))
	}
}

func (t *transcript) blocks(blocks []message.Block) {
	for i := range blocks {
		b := &blocks[i]
		switch b.Type {
		case message.BlockText:
			t.block("  ", b.Text, 0, false)
		case message.BlockReasoning:
			t.block("  ~ ", b.Text, 0, true)
		case message.BlockToolCall:
			t.call(b.ID, b.Name, b.Arguments)
		case message.BlockToolResult:
			t.block("    ", message.JoinText(b.Content), resultLines, false)
		default:
			t.line("  (%s block)", printable(string(b.Type)))
		}
	}
}

// argumentRunes bounds what is shown of a call's arguments.
const argumentRunes = 160

func (t *transcript) call(id, name, arguments string) {
	t.made++
	c := call{t.made, name}
	t.calls[id] = c
	t.line("  → %s %s", c, first(arguments, argumentRunes))
}

func (t *transcript) result(e *session.Event, p *session.ToolResult) {
	id := p.Message.Source.Details().CallID
	c, known := t.calls[id]
	delete(t.calls, id)
	name := c.String()
	if !known {
		name = "call " + printable(id)
	}
	note := replaced(e)
	if p.ErrorCode != "" {
		note += " " + printable(p.ErrorCode)
	}
	if run := runOf(p.Meta); run != "" {
		what := "run"
		if t.kids[run] != nil {
			what = "child"
		}
		note += fmt.Sprintf(" (%s %s)", what, printable(run))
	}
	t.line("  ← %s%s", name, note)
	t.blocks(p.Message.Content)
}

// runOf returns the run that a delegation tool's result came from, or "". For a
// child in this process it is the id of its session.
func runOf(meta []byte) (run string) {
	if meta == nil {
		return ""
	}
	err := jsonx.ReadObject(meta, func(key string, raw []byte) (err error) {
		if key == "runId" {
			run, err = jsonx.String(raw)
		}
		return err
	})
	if err != nil {
		return "" // another tool's meta, in a form of its own
	}
	return run
}

// end writes what the log leaves open, and the children.
func (t *transcript) end(r *row, kids []row) {
	if t.turn != 0 {
		t.line("── turn %d is open: %s ──", t.turn, r.State)
	}
	if r.State == projection.Queued {
		t.line("\nwork is queued that no turn has taken up")
	}
	if len(kids) == 0 {
		return
	}
	t.line("\nchildren")
	table := newTable(writerFunc(func(b []byte) (int, error) {
		t.put(string(b))
		return len(b), t.err
	}))
	for i := range kids {
		k := &kids[i]
		what := k.Label
		if what == "" {
			what = k.Title
		}
		if k.Error != "" {
			what = k.Error
		}
		if err := cells(table, "  "+string(k.ID), k.State, k.sizeInWords(), clip(what, 60)); err != nil {
			t.err = err
		}
	}
	if err := table.Flush(); err != nil {
		t.err = err
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// speaker names who a message came from.
func speaker(s *message.Source) string {
	switch s.Kind {
	case message.SourceUser:
		return "user"
	case message.SourcePlugin:
		return strings.TrimSpace("context " + printable(s.Details().Plugin))
	case message.SourceCoordinator:
		return "coordinator " + printable(s.Details().SenderSessionID)
	case message.SourceSubagentReport:
		return "report of child " + printable(s.Details().SenderSessionID)
	case message.SourceSubagentSettled:
		return "settlement of child " + printable(s.Details().SenderSessionID)
	}
	return printable(string(s.Kind))
}

// howEnded words how a turn ended.
func howEnded(p *session.TurnEnd) string {
	switch p.Kind {
	case session.EndAborted:
		return printable(p.Cause.Error())
	case session.EndError:
		if p.Failure != nil {
			return "failed: " + failure(p.Failure)
		}
		return "failed"
	}
	return printable(string(p.Kind))
}

func failure(f *message.Failure) string {
	return printable(f.Code) + ": " + first(f.Message, lineRunes)
}

func replaced(e *session.Event) string {
	if e.Op != session.OpReplace {
		return ""
	}
	start, end := e.Replaces()
	if start == end {
		return fmt.Sprintf(" (in place of event %d)", start)
	}
	return fmt.Sprintf(" (in place of events %d to %d)", start, end)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + first(reason, lineRunes)
}

func delegated(yes bool) string {
	if yes {
		return " (by delegation)"
	}
	return ""
}
