package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

func drafts(payloads ...session.Payload) []session.Draft {
	out := make([]session.Draft, len(payloads))
	for i, p := range payloads {
		out[i].Payload = p
	}
	return out
}

func user(id, text string) message.Message {
	return message.Message{ID: message.ID(id), Role: message.RoleUser, Content: []message.Block{message.Text(text)}, Source: message.UserSource()}
}

func answer(turn, step int64, id string, blocks ...message.Block) *session.AssistantMessage {
	return &session.AssistantMessage{Turn: turn, Step: step, Usage: &message.Usage{InputTokens: 1200, OutputTokens: 80, CacheReadTokens: 1000, HasCacheRead: true}, Message: message.Message{
		ID: message.ID(id), Role: message.RoleAssistant, Content: blocks,
		Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: route, Model: model}),
	}}
}

// turnEvents is a turn of two steps that uses a tool: 13 events.
func turnEvents(turn int64) []session.Draft {
	text := strings.Repeat("some text of an ordinary length. ", 8)
	id := fmt.Sprint(turn)
	prompt := user("m"+id, text)
	return drafts(
		&session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{prompt}}, &session.TurnStart{Turn: turn},
		&session.InboxSpliced{Target: session.NextTurn, Removed: 1}, &session.StepStart{Turn: turn, Step: 1}, &session.UserMessage{Message: prompt},
		answer(turn, 1, "a"+id, message.Text(text), message.ToolCall("c"+id, "tool_0", `{"path":"a/b/c.go"}`)),
		&session.ToolCall{Turn: turn, Step: 1, CallID: "c" + id, Name: "tool_0", Arguments: `{"path":"a/b/c.go"}`},
		&session.ToolResult{Turn: turn, Step: 1, Message: message.Message{
			ID: message.ID("r" + id), Role: message.RoleUser,
			Content: []message.Block{message.ToolResult("c"+id, []message.Block{message.Text(text)}, false)},
			Source:  message.NewSource(message.SourceTool, message.SourceDetails{CallID: "c" + id}),
		}},
		&session.StepEnd{Turn: turn, Step: 1}, &session.StepStart{Turn: turn, Step: 2}, answer(turn, 2, "b"+id, message.Text(text)),
		&session.StepEnd{Turn: turn, Step: 2}, &session.TurnEnd{Turn: turn, Kind: session.EndCompleted},
	)
}

// fill appends turns until the log has at least n events. Each turn is stored as a
// batch of its own, as a turn of an agent would be.
func fill(ctx context.Context, s *session.Session, n int64) error {
	for turn := int64(1); s.Head() < n; turn++ {
		if _, err := s.Append(turnEvents(turn)...); err != nil {
			return err
		}
		if err := s.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// storeSession makes a session and leaves it stored.
func storeSession(ctx context.Context, reg *session.Registry, n session.New, work func(*session.Session) error) error {
	s, err := reg.Prepare(ctx, n)
	if err != nil {
		return err
	}
	detach, err := reg.Enter(s)
	if err != nil {
		return err
	}
	return errors.Join(work(s), detach(ctx))
}

// dbName is the name of a database in the folder of its own that a fixture has:
// the companions of the file stay with it.
const dbName = "sessions.db"

// fixture returns the folder of a database that is made once for all rounds.
func (b *bench) fixture(ctx context.Context, name string, fn func(*session.Registry) error) (string, error) {
	dir := filepath.Join(b.dir, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	making := dir + ".making"
	db, err := sqlite.Open(ctx, filepath.Join(making, dbName), sqlite.Options{Synchronous: sqlite.Normal})
	if err != nil {
		return "", err
	}
	reg, err := newSessions(ctx, db)
	if err == nil {
		err = fn(reg)
	}
	if err := errors.Join(err, db.Close(context.WithoutCancel(ctx))); err != nil {
		return "", fmt.Errorf("make the database %s: %w", name, err)
	}
	return dir, os.Rename(making, dir)
}

func (b *bench) longLogs(ctx context.Context, events int64, copies int) (string, error) {
	return b.fixture(ctx, fmt.Sprintf("log-%d", events), func(reg *session.Registry) error {
		for i := range copies {
			if err := storeSession(ctx, reg, session.New{ID: logID(i)}, func(s *session.Session) error { return fill(ctx, s, events) }); err != nil {
				return err
			}
		}
		return nil
	})
}

func logID(i int) session.ID { return session.ID(fmt.Sprintf("log-%02d", i)) }

const (
	workEvent   = "append, validate and fold an event (of a one-shot child's 11)"
	workOpen    = "open a log of 10,000 events: parse, validate, fold, no store"
	workInspect = "inspect a log of 10,000 events in an open store"
	workFollow  = "follow-up to a resident child in memory: one loop step"
	workIdle    = "waiting child after one turn, heap beyond its log (1,000)"
)

func resumeWork(events int) string {
	return fmt.Sprintf("cold resume to acceptance, %s events", thousands(events))
}

func thawWork(events int) string { return resumeWork(events) + ", a checkpoint at the head" }

// appendEvents measures the log alone: the events of a one-shot child.
func appendEvents(ctx context.Context, b *bench) error {
	reg, err := newSessions(ctx, nil)
	if err != nil {
		return err
	}
	descriptor, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn"})
	if err != nil {
		return err
	}
	h := session.RequestHeader{Config: session.CallConfig{Provider: route, Model: model}, System: strings.Repeat("You are careful. ", 88), Reason: session.HeaderInitial}
	for i := range 7 {
		h.Tools = append(h.Tools, session.ToolSpec{Name: fmt.Sprint("tool_", i), Description: strings.Repeat("It does what its name says. ", 4), Parameters: []byte(`{"type":"object","properties":{"path":{"type":"string","description":"Where."},"limit":{"type":"integer"}},"required":["path"],"additionalProperties":false}`)})
	}
	prompt := user("m1", "What is the answer?")
	holds := [][]session.Draft{
		drafts(&session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{prompt}}),
		drafts(&session.TurnStart{Turn: 1}, descriptor),
		drafts(&session.InboxSpliced{Target: session.NextTurn, Removed: 1}, &session.StepStart{Turn: 1, Step: 1}, &session.UserMessage{Message: prompt}),
		drafts(session.NewRequestHeader(h), &session.RequestContext{Provider: route, Model: model, ContextWindow: 128000}),
		drafts(answer(1, 1, "a1", message.Text("The answer is 42."))),
		drafts(&session.StepEnd{Turn: 1, Step: 1}), drafts(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}),
	}
	events := len(slices.Concat(holds...))
	return b.measure(workEvent, 32*events, func(*probe) error {
		for range 32 {
			s, err := reg.Prepare(ctx, session.New{})
			if err != nil {
				return err
			}
			for _, hold := range holds {
				if _, err := s.Append(hold...); err != nil {
					return err
				}
			}
			if err := reg.Abandon(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// openLog measures the rebuilding of a log from the bytes of its events.
func openLog(ctx context.Context, b *bench) error {
	reg, err := newSessions(ctx, nil)
	if err != nil {
		return err
	}
	s, err := reg.Prepare(ctx, session.New{ID: "log"})
	if err != nil {
		return err
	}
	if err := fill(ctx, s, 10_000); err != nil {
		return err
	}
	data := session.AppendBatch(nil, slices.Collect(s.Events(0)))
	rec := session.Record{Header: s.Header(), Meta: s.Meta(), Head: s.Head()}
	return b.measure(workOpen, 1, func(*probe) error {
		events, err := session.ParseBatch(make([]session.Event, 0, rec.Head), "log", data, 0, 0)
		if err != nil {
			return err
		}
		_, err = reg.Restore(rec, sequence(events))
		return err
	})
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

func inspect(ctx context.Context, b *bench) (err error) {
	dir, err := b.longLogs(ctx, 10_000, 2)
	if err != nil {
		return err
	}
	db, err := sqlite.OpenReadOnly(ctx, filepath.Join(dir, dbName), sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	return b.measure(workInspect, 1, func(*probe) error {
		rec, events, err := db.Inspect(ctx, logID(0))
		if err != nil {
			return err
		}
		n := int64(0)
		for _, err := range events {
			if err != nil {
				return err
			}
			n++
		}
		if n != rec.Head || n < 10_000 {
			return fmt.Errorf("the log has %d events of %d", n, rec.Head)
		}
		return nil
	})
}

// resumes measures from the call that resumes a stored session to the moment at
// which a message to it is accepted for good. The turn that follows is not measured, and
// with it the reading of a log that was opened from a checkpoint.
func resumes(events int64, copies int, thawed bool) func(context.Context, *bench) error {
	return func(ctx context.Context, b *bench) error {
		// One that a process left which was killed, or a turn had open: no checkpoint
		// stands at its head.
		err := b.resumed(ctx, resumeWork(int(events)), events, copies, -1)
		if err == nil && thawed {
			err = b.resumed(ctx, thawWork(int(events)), events, copies, 0)
		}
		return err
	}
}

func (b *bench) resumed(ctx context.Context, work string, events int64, copies int, from int64) (err error) {
	dir, err := b.longLogs(ctx, events, copies)
	if err != nil {
		return err
	}
	own := filepath.Join(b.dir, fmt.Sprintf("resume-%d-%d-%d", events, pid(), b.files.Add(1)))
	if err := os.CopyFS(own, os.DirFS(dir)); err != nil { // resumed logs grow
		return err
	}
	db, err := sqlite.Open(ctx, filepath.Join(own, dbName), sqlite.Options{})
	if err != nil {
		return err
	}
	r, err := newRigFrom(ctx, db, from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	resume := func(i int) (*agent.Handle, error) {
		return r.agents.Resume(ctx, agent.Resume{ID: logID(i % copies), Options: agent.Options{Provider: route, Model: model}})
	}
	for i := range copies {
		// The logs were left with a checkpoint; behind this it stands at the head again, or
		// nowhere.
		h, err := resume(i)
		if err == nil {
			err = h.Dispose(ctx)
		}
		if err != nil {
			return err
		}
	}
	i := 0
	return b.measure(work, 1, func(p *probe) error {
		i++
		h, err := resume(i)
		if err != nil {
			return err
		}
		err = h.Agent().Accept(ctx, agent.UserText("And now?"), session.NextTurn)
		p.pause()
		if err == nil {
			err = h.Agent().WhenIdle(ctx)
		}
		return errors.Join(err, h.Dispose(ctx))
	})
}

// followUp measures turns of one step by a resident agent. Its history is kept
// short, so that the row is about the step.
func followUp(ctx context.Context, b *bench) (err error) {
	r, err := newRig(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	return b.measure(workFollow, 64, func(p *probe) error {
		p.pause()
		a, err := r.newAgent(ctx)
		if err != nil {
			return err
		}
		if err := turn(ctx, a); err != nil {
			return err
		}
		p.start()
		if err := turns(ctx, a, 64); err != nil {
			return err
		}
		p.pause()
		return a.Dispose(ctx, false)
	})
}

// waiting measures what a resident agent holds between two turns.
func waiting(ctx context.Context, b *bench) error {
	const n = 1_000
	for range b.samples {
		s, err := waitingSample(ctx, n)
		if err != nil {
			return err
		}
		if err := b.out.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

func waitingSample(ctx context.Context, n int) (_ sample, err error) {
	r, err := newRig(ctx, nil)
	if err != nil {
		return sample{}, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	parent, err := r.newAgent(ctx)
	if err != nil {
		return sample{}, err
	}
	heap, goroutines := settled()
	began, log := time.Now(), 0
	for range n {
		h, err := r.agents.Create(ctx, agent.Create{
			Owner: parent, Options: agent.Options{Provider: route, Model: model},
			Session: session.New{ParentSession: parent.ID(), Root: parent.ID(), Origin: session.OriginSubagent, DelegationDepth: 1, Deferred: true},
		})
		if err != nil {
			return sample{}, err
		}
		if err := turn(ctx, h.Agent()); err != nil {
			return sample{}, err
		}
		for e := range h.Agent().Session().Events(0) {
			log += len(e.Data())
		}
	}
	took := time.Since(began)
	heapAfter, goroutinesAfter := settled()
	return sample{
		Work: workIdle, Wall: float64(took) / float64(n), Bytes: (heapAfter - heap - float64(log)) / float64(n),
		Values: map[string]float64{"B of log": float64(log) / float64(n), "goroutines": (goroutinesAfter - goroutines) / float64(n)},
	}, nil
}
