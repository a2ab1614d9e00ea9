package session_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// told is what a log says of epochs and settlements, in words.
func told(s *session.Session) string {
	e := s.Epochs()
	end, seq := s.LastEnd()
	text := fmt.Sprintf("%d settled, the last at %d", e.Settled, e.LastSeq)
	if e.Last != nil {
		text += fmt.Sprintf(" as %s of epoch %d", e.Last.StopReason, e.Last.Epoch)
	}
	text += fmt.Sprintf(", worked %v, last end at %d", e.Worked, seq)
	if end != nil {
		text += fmt.Sprintf(" of turn %d", end.Turn)
	}
	return text
}

// naive says the same from the events alone, and which settlements were claimed.
func naive(s *session.Session) (text string, claimed []message.ID) {
	var last *session.Settled
	var end *session.TurnEnd
	settled, lastSeq, endSeq, worked := 0, int64(-1), int64(-1), false
	lists := map[session.Target][]message.ID{}
	for e := range s.Events(s.Header().SeedLength) {
		switch p := e.Payload().(type) {
		case *session.TurnStart:
			worked = true
		case *session.TurnEnd:
			end, endSeq = p, e.Seq
		case *session.Settled:
			settled, last, lastSeq, worked = settled+1, p, e.Seq, false
		case *session.InboxSpliced:
			list := lists[p.Target]
			if !p.Canceled {
				claimed = append(claimed, list[p.Start:p.Start+p.Removed]...)
			}
			var add []message.ID
			for _, m := range p.Inserted {
				add = append(add, m.ID)
			}
			lists[p.Target] = slices.Concat(list[:p.Start], add, list[p.Start+p.Removed:])
		}
	}
	text = fmt.Sprintf("%d settled, the last at %d", settled, lastSeq)
	if last != nil {
		text += fmt.Sprintf(" as %s of epoch %d", last.StopReason, last.Epoch)
	}
	text += fmt.Sprintf(", worked %v, last end at %d", worked, endSeq)
	if end != nil {
		text += fmt.Sprintf(" of turn %d", end.Turn)
	}
	return text, slices.DeleteFunc(claimed, func(id message.ID) bool { return !strings.HasPrefix(string(id), "settled:") })
}

// again rebuilds a session from its stored bytes.
func again(t *testing.T, s *session.Session) *session.Session {
	t.Helper()
	out, err := newRegistry(t, session.Config{}).Restore(recordOf(s, s.Head()), sequence(rawEvents(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSettlementID(t *testing.T) {
	if id := session.SettlementID("c-1", 12); id != "settled:c-1:12" {
		t.Errorf("the id is %q", id)
	}
	if meta := string(session.SettledMeta(`settled:"c":1`)); meta != `{"settled":"settled:\"c\":1"}` {
		t.Errorf("the meta is %s", meta)
	}
}

// design § 4, Settlement is derived: an epoch is one more than the own settled events,
// and one that a crash cut shows by the turns behind the last of them.
func TestEpochs(t *testing.T) {
	settled := func(n int64, reason string) *session.Settled {
		return &session.Settled{Epoch: n, StopReason: reason, OutputSeq: -1}
	}
	s := newSession(t)
	for _, step := range []struct {
		payloads []session.Payload
		want     string
	}{
		{nil, "0 settled, the last at -1, worked false, last end at -1"},
		{script(t, "i u"), "0 settled, the last at -1, worked false, last end at -1"},
		{script(t, "T1"), "0 settled, the last at -1, worked true, last end at -1"},
		{script(t, "t1"), "0 settled, the last at -1, worked true, last end at 3 of turn 1"},
		{[]session.Payload{settled(1, "completed")}, "1 settled, the last at 4 as completed of epoch 1, worked false, last end at 3 of turn 1"},
		{script(t, "T2 S2.1 s2.1"), "1 settled, the last at 4 as completed of epoch 1, worked true, last end at 3 of turn 1"},
		{script(t, "ti2"), "1 settled, the last at 4 as completed of epoch 1, worked true, last end at 8 of turn 2"},
		{append([]session.Payload{settled(2, "aborted")}, script(t, "T3")...), "2 settled, the last at 9 as aborted of epoch 2, worked true, last end at 8 of turn 2"},
		// Like every event that only the log sees, it may stand in a turn.
		{[]session.Payload{settled(3, "error")}, "3 settled, the last at 11 as error of epoch 3, worked false, last end at 8 of turn 2"},
	} {
		mustAppend(t, s, step.payloads...)
		live, rebuilt := told(s), told(again(t, s))
		if live != step.want || rebuilt != step.want {
			t.Errorf("live:    %s\nrebuilt: %s\nwant:    %s", live, rebuilt, step.want)
		}
	}
	verify(t, s)

	before := told(s)
	if _, err := s.Append(drafts(settled(4, "completed"), &session.TurnStart{Turn: 9})...); err == nil {
		t.Fatal("an illegal batch was taken")
	}
	if got := told(s); got != before {
		t.Errorf("a refused batch left %s", got)
	}
}

// What was inherited is the ancestor's (design § 5.4): its epochs, its last turn, and
// what it took.
func TestInheritedSettlements(t *testing.T) {
	reg := newRegistry(t, session.Config{})
	parent := prepare(t, reg, session.New{ID: "parent"})
	claim := &session.InboxSpliced{Target: session.NextTurn, Removed: 1}
	mustAppend(t, parent, insert(session.NextTurn, 0, "settled:c:1"), claim, &session.Settled{Epoch: 1, StopReason: "completed", OutputSeq: -1})
	mustAppend(t, parent, script(t, "T1 S1.1 a1.1:x c1.1:x")...)
	result := outcome(1, 1, "x", "ok", "")
	result.Meta = session.SettledMeta("settled:c:2")
	mustAppend(t, parent, result)
	mustAppend(t, parent, script(t, "s1.1 t1")...)
	if !parent.Took("settled:c:1") || !parent.Took("settled:c:2") {
		t.Fatal("the parent took nothing")
	}
	for name, seed := range map[string]*session.Seed{"prefix": {Prefix: parent.Prefix()}, "raw": {Events: rawEvents(t, parent)}} {
		s := prepare(t, reg, session.New{ID: session.ID(name), Seed: seed})
		for _, s := range []*session.Session{s, again(t, s)} {
			if got, want := told(s), "0 settled, the last at -1, worked false, last end at -1"; got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
			if s.Took("settled:c:1") || s.Took("settled:c:2") {
				t.Errorf("%s: the heir took what its ancestor took", name)
			}
		}
		mustAppend(t, s, insert(session.NextTurn, 0, "settled:c:3"), claim, &session.Settled{Epoch: 1, StopReason: "error", OutputSeq: -1})
		for _, s := range []*session.Session{s, again(t, s)} {
			if e := s.Epochs(); e.Settled != 1 || !s.Took("settled:c:3") {
				t.Errorf("%s: of its own it has %+v, took %v", name, e, s.Took("settled:c:3"))
			}
		}
	}
}

// A settlement is taken when it was claimed or a tool result carries it; discarded it is
// owed again (design § 4).
func TestTook(t *testing.T) {
	claim := func(target session.Target, at, n int64) *session.InboxSpliced {
		return &session.InboxSpliced{Target: target, Start: at, Removed: n}
	}
	discard := claim(session.NextTurn, 0, 1)
	discard.Canceled = true
	replace := insert(session.NextTurn, 0, "settled:c:1")
	replace.Removed = 1
	swap := insert(session.NextTurn, 0, "other")
	swap.Removed = 1
	in := func(ids ...string) *session.InboxSpliced { return insert(session.NextTurn, 0, ids...) }
	for _, tc := range []struct {
		name  string
		holds [][]session.Payload
		want  bool // of settled:c:1
	}{
		{"waits", [][]session.Payload{{in("settled:c:1")}}, false},
		{"claimed", [][]session.Payload{{in("settled:c:1")}, {claim(session.NextTurn, 0, 1)}}, true},
		{"claimed among others", [][]session.Payload{{in("a", "settled:c:1", "b")}, {claim(session.NextTurn, 0, 3)}}, true},
		{"claimed between steps", [][]session.Payload{{insert(session.NextStep, 0, "settled:c:1")}, {claim(session.NextStep, 0, 1)}}, true},
		{"queued and claimed in one hold", [][]session.Payload{{in("settled:c:1"), claim(session.NextTurn, 0, 1)}}, true},
		{"its neighbour was claimed", [][]session.Payload{{in("a", "settled:c:1", "b")}, {claim(session.NextTurn, 2, 1)}, {claim(session.NextTurn, 0, 1)}}, false},
		{"the other list was claimed", [][]session.Payload{{in("settled:c:1"), insert(session.NextStep, 0, "a")}, {claim(session.NextStep, 0, 1)}}, false},
		{"discarded", [][]session.Payload{{in("settled:c:1")}, {discard}}, false},
		{"discarded, told again and claimed", [][]session.Payload{{in("settled:c:1")}, {discard}, {in("settled:c:1")}, {claim(session.NextTurn, 0, 1)}}, true},
		{"claimed, told again and discarded", [][]session.Payload{{in("settled:c:1")}, {claim(session.NextTurn, 0, 1)}, {in("settled:c:1")}, {discard}}, true},
		{"put back by the same splice", [][]session.Payload{{in("settled:c:1")}, {replace}}, false},
		{"claimed by a splice that adds another", [][]session.Payload{{in("settled:c:1")}, {swap}}, true},
		{"another epoch", [][]session.Payload{{in("settled:c:2")}, {claim(session.NextTurn, 0, 1)}}, false},
		{"another prefix", [][]session.Payload{{in("unsaved:c:1")}, {claim(session.NextTurn, 0, 1)}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSession(t)
			for _, hold := range tc.holds {
				mustAppend(t, s, hold...)
			}
			live, rebuilt := s.Took("settled:c:1"), again(t, s).Took("settled:c:1")
			if live != tc.want || rebuilt != tc.want {
				t.Errorf("took: live %v, rebuilt %v, want %v", live, rebuilt, tc.want)
			}
			if n := s.PendingClaims(); n > 0 {
				t.Errorf("%d claims are kept twice", n)
			}
			if s.Took("unsaved:c:1") || s.Took("a") || s.Took("") {
				t.Error("it took what is no settlement")
			}
		})
	}
}

// A tool result carries an outcome with the id in its meta.
func TestTookByAResult(t *testing.T) {
	for _, tc := range []struct {
		meta string
		want string // which of settled:c:1 and settled:c:2
	}{
		{string(session.SettledMeta("settled:c:1")), "1"},
		{`{"settled":["settled:c:1","settled:c:2"]}`, "12"},
		{`{ "a" : {"settled":"settled:c:2"}, "settled" : [ "settled:c:2" ] }`, "2"},
		{`{"settled":["settled:c:1","of another kind"]}`, "1"},
		{`{"settled":"of another kind","x":"settled:c:1"}`, ""},
		{`{"Settled":"settled:c:1"}`, ""},
		{`{"other":"settled:c:1"}`, ""},
		{`{"settled":{"id":"settled:c:1"}}`, ""},
		{`{"settled":["settled:c:1",2]}`, ""},
		{`{"settled":[["settled:c:1"]]}`, ""},
		{`{"settled":null,"x":"settled:"}`, ""},
		{`{"settled":[]}`, ""},
		{`["settled","settled:c:1"]`, ""},
		{`"settled:c:1"`, ""},
		{``, ""},
	} {
		s := newSession(t)
		mustAppend(t, s, script(t, "T1 S1.1 a1.1:x c1.1:x")...)
		result := outcome(1, 1, "x", "ok", "")
		if tc.meta != "" {
			result.Meta = []byte(tc.meta)
		}
		mustAppend(t, s, result)
		for name, s := range map[string]*session.Session{"live": s, "rebuilt": again(t, s)} {
			got := ""
			for _, n := range []string{"1", "2"} {
				if s.Took(message.ID("settled:c:" + n)) {
					got += n
				}
			}
			if got != tc.want {
				t.Errorf("%s, %s: took %q, want %q", tc.meta, name, got, tc.want)
			}
		}
		// One without any costs nothing.
		if s.KeepsTook() != (tc.want != "") {
			t.Errorf("%s: something is kept: %v", tc.meta, s.KeepsTook())
		}
	}
}

// Nothing of a batch that is refused counts, whatever refused it.
func TestTookNothingOfARefusedBatch(t *testing.T) {
	var veto error
	reg := newRegistry(t, session.Config{Validators: []session.Validator{func(_ *session.Header, e session.Event) error {
		if e.Type == session.TypeTitle {
			return veto
		}
		return nil
	}}})
	s := prepare(t, reg, session.New{ID: "s"})
	claim := &session.InboxSpliced{Target: session.NextTurn, Removed: 1}
	mustAppend(t, s, insert(session.NextTurn, 0, "settled:c:1", "a"))
	veto = errors.New("no")
	for _, last := range []session.Payload{&session.Title{Title: "x"}, &session.TurnEnd{Turn: 7, Kind: session.EndCompleted}} {
		if _, err := s.Append(drafts(claim, last)...); err == nil {
			t.Fatalf("%T was taken", last)
		}
		mustAppend(t, s, insert(session.NextStep, 0, "b-"+string(last.EventType()))) // a splice that is taken
		if s.Took("settled:c:1") || s.KeepsTook() {
			t.Errorf("%T: the claim of a refused batch counts", last)
		}
	}
	mustAppend(t, s, claim)
	if !s.Took("settled:c:1") {
		t.Error("the claim does not count")
	}
}

// core S13, L10: where subagent/settled may stand is where any event of the log alone may.
func TestSettledStandsAnywhere(t *testing.T) {
	s := newSession(t)
	for i, text := range []string{"", "T1", "S1.1", "a1.1:x c1.1:x", "r1.1:x s1.1", "t1"} {
		mustAppend(t, s, append(script(t, text), &session.Settled{Epoch: int64(i + 1), StopReason: "completed", OutputSeq: -1})...)
	}
	verify(t, s)
	if n := s.Epochs().Settled; n != 6 {
		t.Errorf("%d epochs", n)
	}
}
