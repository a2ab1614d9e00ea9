package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// epoch is when the logs of these tests begin, in ms: 2023-11-14 22:13:20 UTC.
const epoch = 1_700_000_000_000

// The sessions of library.
const (
	rootID  = "018b-root"
	childID = "018b-root-child"
	otherID = "018c-other"
)

// archive writes logs into the store of a home.
type archive struct {
	t     *testing.T
	store *sqlite.Store
	reg   *session.Registry
	clock time.Time
}

func openArchive(t *testing.T, h *home) *archive {
	t.Helper()
	a := &archive{t: t, clock: time.UnixMilli(epoch)}
	var err error
	if a.store, err = sqlite.Open(t.Context(), filepath.Join(h.dir, "offshoot.db"), sqlite.Options{Synchronous: sqlite.Normal}); err != nil {
		t.Fatal(err)
	}
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		t.Fatal(err)
	}
	a.reg, err = session.NewRegistry(t.Context(), session.Config{
		Store: a.store, NewCells: units.NewCells,
		Now: func() time.Time { a.clock = a.clock.Add(250 * time.Millisecond); return a.clock },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.close)
	return a
}

func (a *archive) close() {
	if err := a.store.Close(a.t.Context()); err != nil {
		a.t.Error(err)
	}
}

// write stores a session whose log the drafts make, and gives it up.
func (a *archive) write(n session.New, drafts ...session.Draft) {
	a.t.Helper()
	s, err := a.reg.Prepare(a.t.Context(), n)
	if err != nil {
		a.t.Fatal(err)
	}
	a.fill(s, drafts)
}

// reopen goes on with a stored session.
func (a *archive) reopen(id session.ID, drafts ...session.Draft) {
	a.t.Helper()
	s, err := a.reg.PrepareStored(a.t.Context(), id)
	if err != nil {
		a.t.Fatal(err)
	}
	a.fill(s, drafts)
}

func (a *archive) fill(s *session.Session, drafts []session.Draft) {
	a.t.Helper()
	detach, err := a.reg.Enter(s)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, d := range drafts {
		if _, err := s.Append(d); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := detach(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
}

// raw stores a session as it is, whatever the rules say.
func (a *archive) raw(h session.Header, root session.ID, cells []session.Checkpoint, events ...session.Event) {
	a.t.Helper()
	for i := range events {
		events[i].Seq, events[i].Time = int64(i), epoch
	}
	w, err := a.store.Create(a.t.Context(), h, session.Meta{Root: root}, events, cells)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := w.Close(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
}

func rawEvent(typ session.Type, data string) session.Event {
	return session.RawEvent(session.Event{Type: typ}, []byte(data))
}

func draft(p session.Payload) session.Draft { return session.Draft{Payload: p} }

func user(id, text string, src message.Source) session.Draft {
	return draft(&session.UserMessage{Message: message.Message{
		ID: message.ID(id), Role: message.RoleUser, Content: []message.Block{message.Text(text)}, Source: src,
	}})
}

func says(turn, step int64, id string, usage *message.Usage, blocks ...message.Block) session.Draft {
	return draft(&session.AssistantMessage{Turn: turn, Step: step, Usage: usage, Message: message.Message{
		ID: message.ID(id), Role: message.RoleAssistant, Content: blocks,
		Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "openai", Model: "gpt-x"}),
	}})
}

func toolResult(turn, step int64, callID, text, code string, meta []byte) session.Draft {
	name := ""
	if code != "" {
		name = "ToolError"
	}
	return draft(&session.ToolResult{Turn: turn, Step: step, ErrorName: name, ErrorCode: code, Meta: meta, Message: message.Message{
		ID: message.ID("result-" + callID), Role: message.RoleUser,
		Content: []message.Block{message.ToolResult(callID, []message.Block{message.Text(text)}, code != "")},
		Source:  message.NewSource(message.SourceTool, message.SourceDetails{CallID: callID}),
	}})
}

func descriptor(t *testing.T, label string) session.Draft {
	t.Helper()
	d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "spawn", Label: &label})
	if err != nil {
		t.Fatal(err)
	}
	return draft(d)
}

func header(model string) session.Draft {
	return draft(session.NewRequestHeader(session.RequestHeader{
		Config: session.CallConfig{Provider: "openai", Model: model}, System: "Be brief.", Reason: session.HeaderInitial,
	}))
}

// library fills a home: a root that delegated, was opened again after a failure
// and was cut by a crash; its child; and another root with a queued message.
func library(t *testing.T, h *home) {
	a := openArchive(t, h)
	a.write(session.New{ID: rootID, Cwd: "/srv/project"}, rootLog(t)...)
	a.write(session.New{ID: childID, Cwd: "/srv/project", ParentSession: rootID, Root: rootID, Origin: session.OriginSubagent, DelegationDepth: 1},
		draft(&session.TurnStart{Turn: 1}), descriptor(t, "Count the <files>"), draft(&session.ApprovalPolicy{Policy: "never", Delegated: true}),
		draft(&session.StepStart{Turn: 1, Step: 1}), user("c1", "Count the files.", message.UserSource()), header("gpt-x"),
		says(1, 1, "c2", &message.Usage{InputTokens: 20, OutputTokens: 3}, message.Text("42 files")),
		draft(&session.StepEnd{Turn: 1, Step: 1}), draft(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}))
	a.reopen(rootID,
		draft(&session.TurnStart{Turn: 3}), draft(&session.StepStart{Turn: 3, Step: 1}),
		user("u3", "Go on.", message.UserSource()),
		says(3, 1, "a4", nil, message.ToolCall("k9", "bash", `{"command":"make"}`)),
		draft(&session.ToolCall{Turn: 3, Step: 1, CallID: "k9", Name: "bash", Arguments: `{"command":"make"}`}))
	a.write(session.New{ID: otherID, Cwd: "/srv/other"},
		draft(&session.Title{Title: "Something else"}),
		draft(&session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{{
			ID: "q1", Role: message.RoleUser, Content: []message.Block{message.Text("later")}, Source: message.UserSource(),
		}}}))
	a.close()
}

func rootLog(t *testing.T) []session.Draft {
	t.Helper()
	failed := message.Failure{Code: "RATE_LIMITED", Message: "slow down\nplease", Status: 429}
	return []session.Draft{
		draft(&session.TurnStart{Turn: 1}), draft(&session.StepStart{Turn: 1, Step: 1}),
		user("u1", "How many files?\n\tAnd \x1b[31mwhy\x1b[0m?", message.UserSource()),
		user("u2", "It is Tuesday.", message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: "runtime-context", Form: message.FormSnapshot})),
		header("gpt-x"),
		draft(&session.Retry{RetryID: "r1", Turn: 1, Step: 1, Provider: "openai", PolicyKey: "openai", Attempt: 1, MaxRetries: 5, DelayMS: 1500, Failure: failed}),
		draft(&session.RetryStarted{RetryID: "r1", Turn: 1, Step: 1, Attempt: 1}),
		says(1, 1, "a1", &message.Usage{InputTokens: 1200, OutputTokens: 40, CacheReadTokens: 300, HasCacheRead: true},
			message.Reasoning("I could count.\nOr delegate."), message.Text("I ask somebody."),
			message.ToolCall("k1", "subagent", `{"description":"Count the <files>","prompt":"Count the files."}`),
			message.ToolCall("k2", "bash", `{"command":"ls"}`), message.ToolCall("k3", "bash", `{"command":"rm -r /"}`)),
		draft(&session.ToolCall{Turn: 1, Step: 1, CallID: "k1", Name: "subagent", Arguments: `{"description":"Count the <files>","prompt":"Count the files."}`}),
		draft(&session.ToolCall{Turn: 1, Step: 1, CallID: "k2", Name: "bash", Arguments: `{"command":"ls"}`}),
		draft(&session.ToolCall{Turn: 1, Step: 1, CallID: "k3", Name: "bash", Arguments: `{"command":"rm -r /"}`}),
		draft(&session.ApprovalAsked{ID: "p1", ToolName: "bash", CallID: "k3", Reason: "it changes files"}),
		draft(&session.ApprovalDecided{ID: "p1", Outcome: "rejected"}),
		toolResult(1, 1, "k2", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n", "", nil),
		toolResult(1, 1, "k3", "The person refused.", "DENIED", nil),
		toolResult(1, 1, "k1", "42 files", "", []byte(`{"kind":"foreground","runId":"`+childID+`","stopReason":"completed"}`)),
		draft(&session.StepEnd{Turn: 1, Step: 1}), draft(&session.StepStart{Turn: 1, Step: 2}),
		header("gpt-y"),
		says(1, 2, "a2", &message.Usage{InputTokens: 60, OutputTokens: 5}, message.Text("There are 42.")),
		draft(&session.StepEnd{Turn: 1, Step: 2}), draft(&session.TurnEnd{Turn: 1, Kind: session.EndCompleted}),
		draft(&session.CompactionStart{CompactionID: "z1"}),
		{Payload: user("z2", "They counted files.", message.NewSource(message.SourcePlugin, message.SourceDetails{Plugin: "compaction"})).Payload,
			Op: session.SurfaceOp{Kind: session.OpReplace, Start: 2, End: 3}, Sources: []int64{2, 3}},
		draft(&session.CompactionEnd{CompactionID: "z1"}),
		draft(&session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{{
			ID: "q0", Role: message.RoleUser, Content: []message.Block{message.Text("never mind")}, Source: message.UserSource(),
		}}}),
		draft(&session.InboxSpliced{Target: session.NextTurn, Removed: 1, Canceled: true}),
		draft(&session.TurnStart{Turn: 2}), draft(&session.StepStart{Turn: 2, Step: 1}),
		draft(&session.AssistantMessage{Turn: 2, Step: 1, Interrupted: true, Message: message.Message{
			ID: "a3", Role: message.RoleAssistant, Content: []message.Block{}, Source: message.NewSource(message.SourceModel, message.SourceDetails{Provider: "openai", Model: "gpt-y"}),
		}}),
		draft(&session.StepEnd{Turn: 2, Step: 1}),
		draft(&session.TurnEnd{Turn: 2, Kind: session.EndError, Failure: &failed}),
	}
}
