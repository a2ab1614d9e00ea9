package projection_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// FuzzCell: a checkpoint that anybody may have written is read without a panic;
// what is taken is written to what reads the same, stays in the range that it
// states, and goes on over events without a panic (core D28).
func FuzzCell(f *testing.F) {
	units := projection.BuiltIn()
	for _, seed := range []struct {
		unit  uint8
		value string
	}{
		{0, `{"mode":"one-shot","provider":"spawn","label":"l","seq":3}`},
		{0, `null`},
		{1, `{"input":1,"output":2,"cacheRead":3,"cacheWrite":4,"reasoning":5,"requests":2,"provider":"p","model":"m","last":{"turn":1,"step":2,"input":1}}`},
		{1, `{"input":9007199254740991,"output":0,"cacheRead":0,"cacheWrite":0,"reasoning":0,"requests":1}`},
		{2, `{"title":"t","derived":true}`},
		{3, `{"state":"queued","turn":3,"reason":"completed","queued":2,"nextTurn":"w","nextStep":"-"}`},
		{3, `{"state":"running","turn":1,"queued":0}`},
		{3, `{"state":"idle","turn":2,"reason":"completed","queued":0,"epoch":2,"settled":"completed"}`},
		{3, `{"state":"idle","turn":3,"reason":"interrupted","queued":0,"epoch":2,"unsettled":true}`},
		{3, `{"state":"idle","turn":0,"queued":0,"epoch":9007199254740991}`},
	} {
		f.Add(seed.unit, int64(0), []byte(seed.value))
	}
	f.Fuzz(func(t *testing.T, n uint8, seedLength int64, data []byte) {
		u := units[int(n)%len(units)]
		h := &session.Header{ID: "s", SeedLength: seedLength}
		v, err := u.Parse(h, data)
		rec := session.Record{Header: *h, Head: 1 << 40, Cells: []session.Checkpoint{{Key: u.Key, Version: u.Version, Seq: 1 << 39, Value: data}}}
		switch n % 4 { // the readers of records, whatever the cell holds
		case 0:
			projection.IdentityOf(&rec)
		case 1:
			projection.UsageOf(&rec)
		case 2:
			projection.TitleOf(&rec)
		case 3:
			if s, ok := projection.StateOf(&rec); ok && s.Waking > s.Waiting {
				t.Fatalf("%s: %d of %d wake", data, s.Waking, s.Waiting)
			}
		}
		if err != nil {
			return
		}
		once := u.Append(nil, v)
		again, err := u.Parse(h, once)
		if err != nil {
			t.Fatalf("%s: %s is written as %s: %v", u.Key, data, once, err)
		}
		if twice := u.Append(nil, again); string(once) != string(twice) {
			t.Fatalf("%s: %s is written as %s, then as %s", u.Key, data, once, twice)
		}
		for _, p := range []session.Payload{
			&session.TurnStart{Turn: 9}, &session.AssistantMessage{Turn: 9, Step: 1}, &session.InboxSpliced{Target: session.NextTurn, Start: 1, Removed: 5}, &session.TurnEnd{Turn: 9, Kind: session.EndCompleted},
			&session.Settled{Epoch: 1, StopReason: "completed", OutputSeq: -1},
		} {
			v = u.Apply(v, &session.Event{Type: p.EventType(), Seq: 1 << 39}, p)
		}
		// null is a value that no reader takes: whoever wants it folds the log.
		moved := u.Append(nil, v)
		if _, err := u.Parse(h, moved); err != nil && string(moved) != "null" {
			t.Fatalf("%s: %s, moved on, is written as %s: %v", u.Key, data, moved, err)
		}
	})
}

// FuzzIdentityText: the short way to read an identity takes nothing that the long one
// does not, and reads the same; a blank in front leads the long way.
func FuzzIdentityText(f *testing.F) {
	for _, seed := range []string{
		`{"mode":"one-shot","provider":"spawn","label":"l","seq":3}`, `{"mode":"continuable","provider":"p","seq":0}`,
		`{"mode":"odd","provider":"","label":"","seq":12}`, `{"mode":"","provider":"p","seq":1}`, `{"mode":"one-shot","provider":"p","seq":01}`,
		`{"mode":"one-shot","provider":"p","seq":1}}`, `{"mode":"one-shot","provider":"p","label":"a\\"b","seq":1}`, `{"mode":"one-shot","provider":"p","seq":1,"seq":2}`,
		`{"mode":"one-shot","provider":"p","label":"ü","seq":1}`, `{"mode":"one-shot","provider":"p","seq":-1}`, `{"mode":"one-shot"}`,
	} {
		f.Add(int64(0), []byte(seed))
		f.Add(int64(2), []byte(seed))
	}
	u := projection.IdentityUnit()
	f.Fuzz(func(t *testing.T, seedLength int64, data []byte) {
		h := &session.Header{ID: "s", SeedLength: seedLength}
		got, err := u.Parse(h, data)
		want, wantErr := u.Parse(h, append([]byte(" "), data...))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%s: %v one way, %v the other", data, err, wantErr)
		}
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			t.Fatalf("%s (-long +short):\n%s", data, diff)
		}
	})
}
