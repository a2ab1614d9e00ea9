package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/memory"
)

// shelf is a store on which a test changes what is read, behind the back of the log.
type shelf struct {
	*memory.Store
	record func(*session.Record)                      // of Inspect
	event  func(session.Event) (session.Event, error) // of ReadFrom
	reads  atomic.Int64                               // calls of ReadFrom
	gate   func(context.Context)
}

func (s *shelf) Inspect(ctx context.Context, id session.ID) (session.Record, iter.Seq2[session.Event, error], error) {
	rec, events, err := s.Store.Inspect(ctx, id)
	if err == nil && s.record != nil {
		rec.Cells = slices.Clone(rec.Cells)
		s.record(&rec)
	}
	return rec, events, err
}

func (s *shelf) ReadFrom(ctx context.Context, id session.ID, seq int64) iter.Seq2[session.Event, error] {
	s.reads.Add(1)
	if s.gate != nil {
		s.gate(ctx)
	}
	events := s.Store.ReadFrom(ctx, id, seq)
	if s.event == nil {
		return events
	}
	return func(yield func(session.Event, error) bool) {
		for e, err := range events {
			if err == nil {
				e, err = s.event(e)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func units(t testing.TB) *projection.Registry {
	t.Helper()
	r, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// library returns a registry whose sessions leave a checkpoint whatever their length, its
// store, and the units of its cells.
func library(t testing.TB, cfg session.Config) (*session.Registry, *shelf, *projection.Registry) {
	t.Helper()
	u := units(t)
	st := &shelf{Store: memory.New()}
	cfg.Store, cfg.NewCells = st, u.NewCells
	if cfg.CheckpointFrom == 0 {
		cfg.CheckpointFrom = 1
	}
	return newRegistry(t, cfg), st, u
}

// shelve makes a session of a script, and ends it.
func shelve(t testing.TB, r *session.Registry, id session.ID, payloads ...session.Payload) {
	t.Helper()
	s := prepare(t, r, session.New{ID: id})
	detach := enter(t, r, s)
	mustAppend(t, s, payloads...)
	if err := detach(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func reopen(t testing.TB, r *session.Registry, id session.ID) *session.Session {
	t.Helper()
	s, err := r.PrepareStored(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// replayed rebuilds a session from what a store holds of it.
func replayed(t testing.TB, r *session.Registry, st session.Store, id session.ID) *session.Session {
	t.Helper()
	rec, events, err := st.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Restore(rec, events)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// atOnce is what a session tells that needs no log.
func atOnce(t testing.TB, u *projection.Registry, s *session.Session) string {
	t.Helper()
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	turn, open, _ := s.LastTurn()
	say("head %d, turn %d %v", s.Head(), turn, open)
	for _, target := range []session.Target{session.NextTurn, session.NextStep} {
		for _, q := range s.Inbox(target) {
			say("%s: %s at %d, wake %v", target, session.AppendMessage(nil, &q.Message), q.Seq, q.Wake)
		}
	}
	say("parked %v, imported %v, adopted %v", s.Parked(), s.Imported(), s.Adopted())
	payload := func(name string, p session.Payload) {
		text, err := session.Encoded(p)
		say("%s %s, %v", name, text, err)
	}
	if d := s.Descriptor(); d != nil {
		payload("descriptor", d)
		say("%+v", d.Err)
	}
	first, persona := s.Composition()
	if first != nil {
		payload("first descriptor", first)
	}
	if persona != nil {
		payload("persona", persona)
	}
	approval, sandbox := s.Policies()
	say("policies %q, %q; title %q; spilled %d", approval, sandbox, s.Title(), s.Spilled())
	say("%s", told(s))
	if end, _ := s.LastEnd(); end != nil {
		payload("end", end)
	}
	if e := s.Epochs(); e.Last != nil {
		payload("settled", e.Last)
	}
	for n := range int64(12) {
		if id := session.SettlementID("c", n); s.Took(id) {
			say("took %s", id)
		}
	}
	sum, err := u.Live(t.Context(), s)
	text, jerr := json.Marshal(sum)
	say("cells %s, %v, %v", text, err, jerr)
	return b.String()
}

// inWhole is what a session tells of its log.
func inWhole(t testing.TB, u *projection.Registry, s *session.Session) string {
	t.Helper()
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("%s", export(s))
	for seq := int64(-1); seq <= s.Head(); seq++ {
		if e, ok := s.Event(seq); ok {
			say("%d %s %T", seq, e.Type, e.Payload())
		}
	}
	msgs, gen := s.History()
	for i := range msgs {
		say("%s", session.AppendMessage(nil, &msgs[i]))
	}
	nodes, _ := s.Surface()
	for _, n := range nodes {
		say("node %d %v", n.Seq, n.Message != nil)
	}
	say("generation %d", gen)
	if h := s.RequestHeader(); h != nil {
		text, err := session.Encoded(h)
		say("header %s, %v", text, err)
	}
	if c := s.RequestContext(); c != nil {
		say("context %+v", *c)
	}
	p := s.Prefix()
	say("prefix %d", p.Len())
	if p != nil {
		heir := prepare(t, newRegistry(t, session.Config{}), session.New{ID: "heir", Seed: &session.Seed{Prefix: p}})
		msgs, _ := heir.History()
		approval, sandbox := heir.Policies()
		say("%s\n%q %q %q %q", export(heir), texts(msgs), approval, sandbox, heir.Title())
	}
	for _, unit := range u.Units() {
		snap, err := u.Fold(t.Context(), s, unit.Key)
		say("%s %s, %v", unit.Key, snap.AppendJSON(nil), err)
	}
	return b.String()
}

// grow appends random events, most of which are legal.
func grow(rt *rapid.T, t testing.TB, s *session.Session, n int, serial *int) {
	one, two := "label", int64(0)
	for range n {
		*serial++
		id := fmt.Sprintf("m%d", *serial)
		if rapid.IntRange(0, 2).Draw(rt, "notice") == 0 {
			id = string(session.SettlementID("c", int64(*serial%12)))
		}
		turn, open, step := s.LastTurn()
		target := rapid.SampledFrom([]session.Target{session.NextTurn, session.NextStep}).Draw(rt, "target")
		waits := int64(len(s.Inbox(target)))
		call := fmt.Sprintf("call%d", *serial)
		d, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeContinuable, Provider: "p" + id, Label: &one})
		if err != nil {
			t.Fatal(err)
		}
		sent := insert(target, waits, id)
		sent.NoWake = rapid.Bool().Draw(rt, "quiet")
		list := [][]session.Payload{
			{sent}, {&session.Title{Title: id}}, {d}, {&session.Persona{Literal: true}}, {&session.Imported{}},
			{&session.ApprovalPolicy{Policy: "p" + id, Delegated: true}}, {&session.SandboxMode{Mode: "s" + id}},
			{&session.Settled{Epoch: int64(*serial), StopReason: "completed", OutputSeq: two - 1}},
			{say(id, "text of "+id)}, {&session.Opaque{Type: "x/y", Data: []byte(`{"a":1}`), Skip: true}},
			{&session.CompactionStart{CompactionID: id}, &session.CompactionEnd{CompactionID: id, Error: "no"}}, {&session.EndSeed{}},
		}
		if waits > 0 {
			at := rapid.Int64Range(0, waits-1).Draw(rt, "at")
			list = append(list, []session.Payload{&session.InboxSpliced{Target: target, Start: at, Removed: 1, Canceled: rapid.Bool().Draw(rt, "canceled")}})
		}
		if open {
			result := outcome(turn, step, call, "ok", "")
			if rapid.Bool().Draw(rt, "carries") {
				result.Meta = session.SettledMeta(session.SettlementID("c", int64(*serial%12)))
			}
			spilled := session.NewToolSpill(session.ToolSpill{Session: s.ID(), Turn: turn, Step: step, CallID: call, Bytes: 3}, []string{"all"})
			list = append(list,
				[]session.Payload{&session.StepStart{Turn: turn, Step: step + 1}}, []session.Payload{&session.StepEnd{Turn: turn, Step: step}},
				[]session.Payload{reply(turn, step, id, message.ToolCall(call, "tool", "{}")), &session.ToolCall{Turn: turn, Step: step, CallID: call, Name: "tool", Arguments: "{}"}, spilled, result},
				[]session.Payload{&session.TurnEnd{Turn: turn, Kind: session.EndError, Failure: &message.Failure{Message: "m" + id, Code: "c"}}},
				[]session.Payload{session.NewRequestHeader(session.RequestHeader{Config: session.CallConfig{Provider: "p", Model: id}, Reason: session.HeaderChange})},
				[]session.Payload{&session.RequestContext{Provider: "p", Model: id}},
				[]session.Payload{&session.StepEnd{Turn: turn, Step: step}, &session.TurnEnd{Turn: turn, Kind: session.EndAborted, Cause: session.Cause{Kind: session.CauseHook, Reason: id}}},
			)
		} else {
			list = append(list, []session.Payload{&session.TurnStart{Turn: turn + 1}}, []session.Payload{&session.TurnStart{Turn: turn + 1}, &session.StepStart{Turn: turn + 1, Step: 1}})
		}
		hold := drafts(rapid.SampledFrom(list).Draw(rt, "events")...)
		if p, ok := hold[0].Payload.(*session.UserMessage); ok && rapid.Bool().Draw(rt, "replace") {
			if nodes, _ := s.Surface(); len(nodes) > 0 {
				p.Message.ID += "!"
				hold[0].Op = session.SurfaceOp{Kind: session.OpReplace, Start: nodes[0].Seq, End: nodes[len(nodes)-1].Seq}
				for _, n := range nodes {
					hold[0].Sources = append(hold[0].Sources, n.Seq)
				}
			}
		}
		var broken *session.InvariantError
		if _, err := s.Append(hold...); err != nil && !errors.As(err, &broken) {
			rt.Fatal(err)
		}
	}
}

// settleDown closes what is open.
func settleDown(t testing.TB, s *session.Session) {
	t.Helper()
	turn, open, step := s.LastTurn()
	if !open {
		return
	}
	end := session.Draft{Payload: &session.TurnEnd{Turn: turn, Kind: session.EndCompleted}}
	if _, err := s.Append(end); err == nil {
		return
	}
	if _, err := s.Append(append(s.Unanswered(), session.Draft{Payload: &session.StepEnd{Turn: turn, Step: step}}, end)...); err != nil {
		t.Fatal(err)
	}
}

// A session that is opened from a checkpoint is the one that its log makes: before it is
// loaded in all that needs no log, afterwards in everything.
func TestColdIsTheLog(t *testing.T) {
	loaded, untouched := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		reg, st, u := library(t, session.Config{})
		serial := 0
		n := session.New{ID: "s"}
		if rapid.Bool().Draw(rt, "heir") {
			parent := prepare(t, reg, session.New{ID: "parent"})
			detach := enter(t, reg, parent)
			grow(rt, t, parent, rapid.IntRange(0, 12).Draw(rt, "inherited"), &serial)
			settleDown(t, parent)
			if rapid.Bool().Draw(rt, "raw") {
				n.Seed = &session.Seed{Events: rawEvents(t, parent)}
			} else if p := parent.Prefix(); p != nil {
				n.Seed = &session.Seed{Prefix: p}
			}
			defer func() {
				if err := detach(t.Context()); err != nil {
					rt.Fatal(err)
				}
			}()
		}
		s := prepare(t, reg, n)
		for range rapid.IntRange(1, 3).Draw(rt, "lives") {
			detach := enter(t, reg, s)
			grow(rt, t, s, rapid.IntRange(0, 15).Draw(rt, "events"), &serial)
			settleDown(t, s)
			if rapid.Bool().Draw(rt, "flushed") {
				if err := s.Flush(t.Context()); err != nil {
					rt.Fatal(err)
				}
			}
			end, _ := s.LastEnd()
			cold := s.Meta().Prefix.Len == 0 || end != nil
			atRest := s.Head() > 0
			if err := detach(t.Context()); err != nil {
				rt.Fatal(err)
			}
			if !atRest {
				return
			}
			if s = reopen(t, reg, "s"); s.Cold() != cold {
				rt.Fatalf("cold %v at the opening:\n%s", s.Cold(), export(s))
			}
			if err := s.Flush(t.Context()); err != nil {
				rt.Fatal(err)
			}
			reads := st.reads.Load()
			want := replayed(t, reg, st, "s")
			if diff := cmp.Diff(atOnce(t, u, want), atOnce(t, u, s)); diff != "" {
				rt.Fatalf("without the log (-replayed +cold):\n%s", diff)
			}
			if got := st.reads.Load(); got != reads {
				rt.Fatal("the log was read for what needs none")
			}
			switch rapid.IntRange(0, 2).Draw(rt, "then") {
			case 0: // goes on as it is; what needs the log loads it
				if grow(rt, t, s, rapid.IntRange(0, 3).Draw(rt, "cold events"), &serial); s.Cold() {
					untouched++
				}
			case 1:
				loaded++
				if err := s.Load(t.Context()); err != nil {
					rt.Fatal(err)
				}
				fallthrough
			default:
				if diff := cmp.Diff(inWhole(t, u, want), inWhole(t, u, s)); diff != "" {
					rt.Fatalf("with the log (-replayed +loaded):\n%s", diff)
				}
				if s.Cold() || cold && st.reads.Load() != reads+1 {
					rt.Fatalf("cold %v, the log was read %d times", s.Cold(), st.reads.Load()-reads)
				}
			}
			if err := s.Flush(t.Context()); err != nil {
				rt.Fatal(err)
			}
			want = replayed(t, reg, st, "s")
			if diff := cmp.Diff(atOnce(t, u, want), atOnce(t, u, s)); diff != "" {
				rt.Fatalf("later (-replayed +cold):\n%s", diff)
			}
		}
		want := replayed(t, reg, st, "s")
		if diff := cmp.Diff(inWhole(t, u, want), inWhole(t, u, s)); diff != "" {
			rt.Fatalf("at last (-replayed +loaded):\n%s", diff)
		}
		if err := reg.Abandon(t.Context(), s); err != nil {
			rt.Fatal(err)
		}
	})
	if loaded == 0 || untouched == 0 {
		t.Errorf("%d were loaded, %d went on without", loaded, untouched)
	}
}
