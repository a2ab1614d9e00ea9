package session_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// oneTurn is a turn with one call, of a message that waits in next-turn.
func oneTurn(turn int64, id string) []session.Payload {
	return []session.Payload{
		&session.TurnStart{Turn: turn}, &session.InboxSpliced{Target: session.NextTurn, Removed: 1},
		&session.StepStart{Turn: turn, Step: 1}, say(id, "look around"),
		session.NewRequestHeader(session.RequestHeader{Config: session.CallConfig{Provider: "p", Model: id}, Reason: session.HeaderChange}),
		reply(turn, 1, "a"+id, message.ToolCall("c"+id, "tool", "{}")),
		&session.ToolCall{Turn: turn, Step: 1, CallID: "c" + id, Name: "tool", Arguments: "{}"},
		session.NewToolSpill(session.ToolSpill{Session: "s", Turn: turn, Step: 1, CallID: "c" + id, Bytes: 3}, []string{"all"}),
		outcome(turn, 1, "c"+id, "ok", ""), &session.StepEnd{Turn: turn, Step: 1},
	}
}

// design § 7: a log that is quiet and at rest holds no message twice and no room for more,
// and nobody can tell: not who reads it, nor who has begun to.
func TestQuietLogIsLean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, st, u := library(t, session.Config{})
		s := prepare(t, r, session.New{ID: "s"})
		enter(t, r, s)
		quiet := func(decoded bool) {
			t.Helper()
			if s.Decoded() == 0 || s.Spare() == 0 {
				t.Fatal("nothing is there to let go of")
			}
			before, events := export(s), s.Events(0)
			after(2 * session.WriteDelay)
			if n, spare := s.Decoded(), s.Spare(); (n > 0) != decoded || (spare > 0) != decoded {
				t.Errorf("%d messages are decoded, and %d bytes kept", n, spare)
			}
			if diff := cmp.Diff(before, export(s)); diff != "" {
				t.Errorf("the log (-before +when it was quiet):\n%s", diff)
			}
			n := int64(0)
			for e := range events {
				if e.Seq != n || e.Payload() == nil {
					t.Errorf("event %d is read as %d, %T", n, e.Seq, e.Payload())
				}
				n++
			}
		}
		mustAppend(t, s, insert(session.NextTurn, 0, "m1"))
		mustAppend(t, s, oneTurn(1, "m1")...)
		quiet(true) // the turn is open
		mustAppend(t, s, &session.TurnEnd{Turn: 1, Kind: session.EndCompleted})
		quiet(false)
		mustAppend(t, s, insert(session.NextTurn, 0, "m2"))
		mustAppend(t, s, append(oneTurn(2, "m2"), &session.TurnEnd{Turn: 2, Kind: session.EndCompleted})...)
		quiet(false)
		if diff := cmp.Diff(inWhole(t, u, replayed(t, r, st, "s")), inWhole(t, u, s)); diff != "" {
			t.Errorf("the log (-as it is stored +when it was quiet):\n%s", diff)
		}
	})
}

// What a fork shares with the log is not copied when that is quiet.
func TestQuietLogIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := library(t, session.Config{})
		s := prepare(t, r, session.New{ID: "s"})
		enter(t, r, s)
		mustAppend(t, s, insert(session.NextTurn, 0, "m1"))
		mustAppend(t, s, append(oneTurn(1, "m1"), &session.TurnEnd{Turn: 1, Kind: session.EndCompleted})...)
		fork := prepare(t, r, session.New{ID: "fork", Seed: &session.Seed{Prefix: s.Prefix()}})
		mustAppend(t, s, insert(session.NextStep, 0, "m2"), &session.Title{Title: "one more"})
		after(2 * session.WriteDelay)
		if fork.Header().SeedLength == 0 {
			t.Fatal("the fork inherits nothing")
		}
		for e := range fork.Events(0) {
			if e.Seq >= fork.Header().SeedLength {
				break
			}
			if own, _ := s.Event(e.Seq); &own.Data()[0] != &e.Data()[0] {
				t.Errorf("event %d is there twice", e.Seq)
			}
		}
	})
}

// What came to a log that nobody has read is part of it when it is read, however long that
// takes.
func TestQuietLogIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, st, u := library(t, session.Config{})
		shelve(t, r, "s", insert(session.NextTurn, 0, "m1"), say("m0", "hello"))
		s := reopen(t, r, "s")
		enter(t, r, s)
		mustAppend(t, s, insert(session.NextStep, 0, string(session.SettlementID("c", 1))))
		mustAppend(t, s, &session.InboxSpliced{Target: session.NextStep, Removed: 1}, &session.InboxSpliced{Target: session.NextTurn, Removed: 1, Canceled: true})
		after(2 * session.WriteDelay)
		if !s.Cold() || s.Decoded() != 0 {
			t.Fatalf("the log was read: %v, or %d messages are decoded", !s.Cold(), s.Decoded())
		}
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		stored := replayed(t, r, st, "s")
		if diff := cmp.Diff(atOnce(t, u, stored)+inWhole(t, u, stored), atOnce(t, u, s)+inWhole(t, u, s)); diff != "" {
			t.Errorf("the log (-as it is stored +loaded):\n%s", diff)
		}
	})
}
