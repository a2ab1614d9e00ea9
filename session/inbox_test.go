package session_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

func inboxText(s *session.Session) string {
	list := func(t session.Target) (out []string) {
		for _, q := range s.Inbox(t) {
			mark := ""
			if !q.Wake {
				mark = "-"
			}
			out = append(out, fmt.Sprintf("%s%s@%d", q.Message.ID, mark, q.Seq))
		}
		return out
	}
	return fmt.Sprint(list(session.NextTurn), list(session.NextStep))
}

// core L6, L9, L10: splices and what is refused.
func TestInbox_L10(t *testing.T) {
	quiet := insert(session.NextStep, 0, "q")
	quiet.NoWake = true
	replaced := insert(session.NextTurn, 0, "b2")
	replaced.Removed, replaced.Canceled = 1, true
	s := newSession(t)
	for _, step := range []struct {
		payload *session.InboxSpliced
		want    string // "" for a refusal
	}{
		{insert(session.NextTurn, 0, "a", "b"), "[a@0 b@0] []"},
		{quiet, "[a@0 b@0] [q-@1]"},
		{insert(session.NextTurn, 1, "c"), "[a@0 c@2 b@0] [q-@1]"},
		{insert(session.NextTurn, 4, "x"), ""}, // behind the end
		{insert(session.NextStep, 0, "a"), ""}, // pending already, in the other list
		{insert(session.NextTurn, 0, "x", "x"), ""},
		{&session.InboxSpliced{Target: session.NextTurn, Start: 2, Removed: 2}, ""},
		{&session.InboxSpliced{Target: session.NextTurn, Start: 1}, ""},  // without effect
		{&session.InboxSpliced{Target: session.NextStep, Start: 1}, ""},  // without effect
		{&session.InboxSpliced{Target: session.NextStep, Start: -1}, ""}, // nowhere
		{&session.InboxSpliced{Target: session.NextTurn, Removed: 2}, "[b@0] [q-@1]"},
		{replaced, "[b2@4] [q-@1]"},
		{insert(session.NextTurn, 1, "a"), "[b2@4 a@5] [q-@1]"}, // pending no more, so it may come again
		{&session.InboxSpliced{Target: session.NextStep, Removed: 1, Canceled: true}, "[b2@4 a@5] []"},
		{&session.InboxSpliced{Target: session.NextTurn, Removed: 2}, "[] []"},
	} {
		before := inboxText(s)
		_, err := s.Append(session.Draft{Payload: step.payload})
		var broken *session.InvariantError
		switch {
		case step.want == "" && err == nil:
			t.Errorf("%+v was accepted", step.payload)
		case step.want == "" && step.payload.Start >= 0 && (!errors.As(err, &broken) || broken.Rule != "L10"):
			t.Errorf("%+v: %v", step.payload, err)
		case step.want == "":
			if got := inboxText(s); got != before {
				t.Errorf("a refused splice left %s", got)
			}
		case err != nil:
			t.Errorf("%+v: %v", step.payload, err)
		default:
			if got := inboxText(s); got != step.want {
				t.Errorf("after %+v: %s, want %s", step.payload, got, step.want)
			}
		}
	}
	verify(t, s)
	// Within one hold, too.
	if _, err := s.Append(drafts(insert(session.NextTurn, 0, "y"), insert(session.NextStep, 0, "y"))...); err == nil {
		t.Error("a hold queued one message twice")
	}
	if got := inboxText(s); got != "[] []" {
		t.Errorf("a refused hold left %s", got)
	}
}

// core L14: only a session's own splices count, and a bad one names its seq.
func TestInboxIsRebuiltFromItsOwnSplices_L14(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, insert(session.NextTurn, 0, "inherited"), &session.TurnStart{Turn: 1}, &session.TurnEnd{Turn: 1, Kind: session.EndCompleted})
	child := prepare(t, newRegistry(t, session.Config{}), session.New{ID: "child", Seed: &session.Seed{Prefix: s.Prefix()}})
	mustAppend(t, child, insert(session.NextTurn, 0, "own"), insert(session.NextStep, 0, "inherited"))
	want := inboxText(child)
	if want != "[own@4] [inherited@5]" {
		t.Errorf("inbox %s", want)
	}
	rec := recordOf(child, child.Head())
	back, err := newRegistry(t, session.Config{}).Restore(rec, sequence(rawEvents(t, child)))
	if err != nil {
		t.Fatal(err)
	}
	if got := inboxText(back); got != want {
		t.Errorf("rebuilt %s, want %s", got, want)
	}
	rec.Header.SeedLength = 5 // now the second splice claims to be the first
	events := rawEvents(t, child)
	bad := session.RawEvent(events[5], []byte(`{"target":"next-turn","start":1,"inserted":[]}`))
	events[5] = bad
	var broken *session.InvariantError
	if _, err := newRegistry(t, session.Config{}).Restore(rec, sequence(events)); !errors.As(err, &broken) || broken.Rule != "L14" || broken.Seq != 5 {
		t.Errorf("error %v", err)
	}
}

// The fold against a list that is spliced naively; lists that were handed out stay
// as they were.
func TestInboxMatchesOracle_L10(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSession(t)
		lists := map[session.Target][]string{}
		id := 0
		type snapshot struct {
			got  []session.Queued
			want []string
		}
		var snapshots []snapshot
		for range rapid.IntRange(1, 40).Draw(rt, "splices") {
			target := rapid.SampledFrom([]session.Target{session.NextTurn, session.NextStep}).Draw(rt, "target")
			list := lists[target]
			p := &session.InboxSpliced{Target: target, Start: rapid.Int64Range(0, int64(len(list))+1).Draw(rt, "start"), Removed: rapid.Int64Range(0, 3).Draw(rt, "removed")}
			var ids []string
			for range rapid.IntRange(0, 2).Draw(rt, "inserted") {
				id++
				ids = append(ids, fmt.Sprint(id))
				p.Inserted = append(p.Inserted, userMessage(ids[len(ids)-1], ""))
			}
			legal := p.Start+p.Removed <= int64(len(list)) && p.Removed+int64(len(ids)) > 0
			if _, err := s.Append(session.Draft{Payload: p}); (err == nil) != legal {
				rt.Fatalf("%+v on %q: %v", p, list, err)
			}
			if legal {
				lists[target] = slices.Concat(list[:p.Start], ids, list[p.Start+p.Removed:])
			}
			var got []string
			for _, q := range s.Inbox(target) {
				got = append(got, string(q.Message.ID))
			}
			if !slices.Equal(got, lists[target]) {
				rt.Fatalf("list %q, want %q", got, lists[target])
			}
			snapshots = append(snapshots, snapshot{s.Inbox(target), got})
		}
		for _, snap := range snapshots {
			for i, q := range snap.got {
				if string(q.Message.ID) != snap.want[i] {
					rt.Fatal("a list that was handed out changed")
				}
			}
		}
	})
}

// core L35, L36, L38; seam OUT-01…08, EVT-24…28.
func TestOutcome_L35(t *testing.T) {
	queue, claim := insert(session.NextTurn, 0, "q"), &session.InboxSpliced{Target: session.NextTurn, Removed: 1}
	cancel := &session.InboxSpliced{Target: session.NextTurn, Removed: 1, Canceled: true}
	swap := insert(session.NextTurn, 0, "q2")
	swap.Removed, swap.Canceled = 1, true
	end := func(turn int64, kind session.EndKind) *session.TurnEnd {
		return &session.TurnEnd{Turn: turn, Kind: kind}
	}
	start := func(turn int64) *session.TurnStart { return &session.TurnStart{Turn: turn} }
	step := func(turn int64, a ...*session.AssistantMessage) []session.Payload {
		out := []session.Payload{&session.StepStart{Turn: turn, Step: 1}}
		for _, p := range a {
			out = append(out, p)
		}
		return append(out, &session.StepEnd{Turn: turn, Step: 1})
	}
	log := func(parts ...any) (out []session.Payload) {
		for _, p := range parts {
			switch p := p.(type) {
			case session.Payload:
				out = append(out, p)
			case []session.Payload:
				out = append(out, p...)
			}
		}
		return out
	}
	delta := func(text string) *session.AssistantChunk {
		return &session.AssistantChunk{Turn: 1, Step: 1, Chunk: fmt.Appendf(nil, `{"type":"text-delta","index":0,"text":%q}`, text)}
	}
	thought := &session.AssistantChunk{Turn: 1, Step: 1, Chunk: []byte(`{"type":"reasoning-delta","index":0,"text":"hm"}`)}
	retry := []session.Payload{
		&session.Retry{RetryID: "y", Turn: 1, Step: 1, Provider: "p", PolicyKey: "k", Attempt: 1, Failure: message.Failure{}},
		&session.RetryStarted{RetryID: "y", Turn: 1, Step: 1, Attempt: 1},
	}
	text := func(s string) *session.AssistantMessage { return reply(1, 1, "a-"+s, message.Text(s)) }
	open := []session.Payload{start(1), &session.StepStart{Turn: 1, Step: 1}}

	for _, tc := range []struct {
		name    string
		log     []session.Payload
		end     session.EndKind // "" for none
		dropped bool
		output  string // "-" for none
	}{
		{"nothing", nil, "", false, "-"},
		{"EVT-26 queued only", log(queue), "", false, "-"},
		{"EVT-24 completed", log(queue, start(1), claim, step(1, text("done")), end(1, session.EndCompleted)), session.EndCompleted, false, "done"},
		{"EVT-24 ceiling", log(start(1), step(1), end(1, session.EndMaxTokens)), session.EndMaxTokens, false, "-"},
		{"EVT-28 a turn over nothing does not account", log(start(1), end(1, session.EndBlocked)), "", false, "-"},
		{"EVT-28 blocked over claimed input", log(queue, start(1), claim, end(1, session.EndBlocked)), session.EndBlocked, false, "-"},
		{"EVT-28 completed over claimed input that led to no step", log(queue, start(1), claim, end(1, session.EndCompleted)), "", false, "-"},
		{"EVT-28 the last accounting turn decides", log(start(1), step(1, text("x")), end(1, session.EndError), start(2), end(2, session.EndBlocked)), session.EndError, false, "x"},
		{"L36 dropped unrun", log(queue, cancel), "", true, "-"},
		{"EVT-25 dropped behind a clean turn", log(start(1), step(1), end(1, session.EndCompleted), queue, cancel), session.EndCompleted, true, "-"},
		{"EVT-28 absorbed by the turn that closes over it", log(queue, start(1), cancel, step(1), end(1, session.EndCompleted)), session.EndCompleted, false, "-"},
		{"EVT-28 a replacement drops nothing", log(queue, swap), "", false, "-"},
		{"L35 a claim outside a turn is no claim", log(queue, claim, start(1), end(1, session.EndBlocked)), "", false, "-"},
		{"an open turn does not account", log(open, text("x")), "", false, "x"},

		{"OUT-02 an empty last message is skipped", log(open, text("x"), reply(1, 1, "e")), "", false, "x"},
		{"OUT-03 blocks count, not text", log(open, text("x"), reply(1, 1, "e", message.Reasoning("r"))), "", false, ""},
		{"OUT-04 a message wins over streamed text", log(open, delta("a"), text("x"), delta("b")), "", false, "x"},
		{"OUT-05 text deltas alone", log(open, delta("a"), thought, delta("b")), "", false, "ab"},
		{"L38 a new attempt begins anew", log(open, delta("a"), retry, delta("b")), "", false, "b"},
		{"OUT-06 neither", log(open, thought), "", false, "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			var live session.Outcome
			with, stop := s.Watch(&live)
			defer stop()
			if len(tc.log) > 0 {
				mustAppend(t, s, tc.log...)
			}
			var again session.Outcome // OUT-10: over the events of a log, not only live
			for e := range s.Events(0) {
				again.Apply(&e)
			}
			check := func(o *session.Outcome) {
				t.Helper()
				kind := session.EndKind("")
				if e := o.End(); e != nil {
					kind = e.Kind
				}
				blocks, seq, ok := o.Output()
				out := "-"
				if ok {
					out = message.JoinText(blocks)
				}
				if kind != tc.end || o.DroppedUnrun() != tc.dropped || out != tc.output {
					t.Errorf("end %q, dropped %v, output %q", kind, o.DroppedUnrun(), out)
				}
				if e, found := s.Event(seq); found && e.Type != session.TypeAssistantMessage {
					t.Errorf("the output's seq %d is a %s", seq, e.Type)
				}
			}
			stop()
			mustAppend(t, s, &session.Title{Title: "not watched any more"})
			check(&live)
			check(&again)
			with(func() {}) // still legal
		})
	}
	t.Run("OUT-07 raw text", func(t *testing.T) {
		var o session.Outcome
		o.AddText("a")
		o.AddText("")
		o.AddText("b")
		blocks, seq, ok := o.Output()
		if diff := cmp.Diff([]message.Block{message.Text("ab")}, blocks); !ok || seq != -1 || diff != "" {
			t.Errorf("output %v, %d, %v", blocks, seq, ok)
		}
		o.ResetText()
		o.AddText("")
		if _, _, ok := o.Output(); ok {
			t.Error("text is left after a reset")
		}
	})
	t.Run("a rewritten message is no output", func(t *testing.T) {
		s := newSession(t)
		mustAppend(t, s, log(open, text("x"))...)
		_, err := s.Append(session.Draft{Payload: text("pruned"), Op: session.SurfaceOp{Kind: session.OpReplace, Start: 2, End: 2}, Sources: []int64{2}})
		if err != nil {
			t.Fatal(err)
		}
		var o session.Outcome
		for e := range s.Events(0) {
			o.Apply(&e)
		}
		if blocks, _, _ := o.Output(); message.JoinText(blocks) != "x" {
			t.Errorf("output %v", blocks)
		}
	})
}
