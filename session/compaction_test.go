package session_test

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
)

// core S10: no member that a compaction event must have may be missing.
func TestCompactionMembers_S10(t *testing.T) {
	const shadow = `"shadowedRange":{"start":4,"end":2},"shadowedSeqs":[4,3,2],"shadowedTokenCount":9`
	reg := newRegistry(t, session.Config{})
	for typ, data := range map[session.Type]string{
		session.TypeCompactionStart: `{"compactionId":"k","turn":1}`,
		session.TypeCompactionEnd:   `{"compactionId":"k"}`,
		session.TypeCompactionRequest: `{"compactionId":"k","start":1,"end":2,"config":{"provider":"p","model":"m"},` +
			`"message":{"id":"u","role":"user","content":[],"source":{"kind":"user"}}}`,
		session.TypeCompactionSummary: `{` + shadow + `,"provider":"p","model":"m"}`,
		session.TypeCompactionPrune:   `{` + shadow + `}`,
	} {
		read := func(data string) error {
			e, err := session.ParseEnvelope([]byte(`{"type":"` + string(typ) + `","seq":0,"time":1,"data":` + data + `}`))
			if err != nil {
				t.Fatal(err)
			}
			_, err = reg.PayloadOf(e)
			return err
		}
		if err := read(data); err != nil {
			t.Errorf("%s: %v", typ, err)
		}
		var keys, values []string
		if err := jsonx.ReadObject([]byte(data), func(key string, raw []byte) error {
			keys, values = append(keys, key), append(values, string(raw))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for leave := range keys {
			var rest []string
			for i := range keys {
				if i != leave {
					rest = append(rest, fmt.Sprintf("%q:%s", keys[i], values[i]))
				}
			}
			if err := read("{" + strings.Join(rest, ",") + "}"); err == nil || !strings.Contains(err.Error(), keys[leave]) {
				t.Errorf("%s without %s: error %v", typ, keys[leave], err)
			}
		}
	}
	for _, tc := range []struct{ name, typ, data, fault string }{
		{"range without an end", "compaction/prune", `{"shadowedRange":{"start":4},"shadowedSeqs":[4],"shadowedTokenCount":9}`, "end"},
		{"range that begins elsewhere", "compaction/summary", `{"shadowedRange":{"start":3,"end":2},"shadowedSeqs":[4,3,2],"shadowedTokenCount":9,"provider":"p","model":"m"}`, "shadowedRange is 3 to 2"},
		{"range that ends elsewhere", "compaction/summary", `{"shadowedRange":{"start":4,"end":3},"shadowedSeqs":[4,3,2],"shadowedTokenCount":9,"provider":"p","model":"m"}`, "shadowedRange is 4 to 3"},
		{"request with a message of no role", "compaction/request", `{"compactionId":"k","start":1,"end":2,"config":{"provider":"p","model":"m"},"message":{"id":"","role":"user","content":[],"source":{"kind":"user"}}}`, "id"},
	} {
		e, err := session.ParseEnvelope([]byte(`{"type":"` + tc.typ + `","seq":0,"time":1,"data":` + tc.data + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reg.PayloadOf(e); err == nil || !strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: error %v, want one that names %q", tc.name, err, tc.fault)
		}
	}
	// A foreign writer's error that is no text is kept as it stands.
	e, err := session.ParseEnvelope([]byte(`{"type":"compaction/end","seq":0,"time":1,"data":{"compactionId":"k","error":{"code":"busy"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := reg.PayloadOf(e)
	if end, ok := p.(*session.CompactionEnd); err != nil || !ok || end.Error != `{"code":"busy"}` {
		t.Errorf("%+v, %v", p, err)
	}
}

// What this program writes of a compaction is held against the same rules.
func TestCompactionWrites_S10(t *testing.T) {
	shadow := session.Shadowed{Seqs: []int64{0}}
	bad := []message.Block{{}}
	for name, p := range map[string]session.Payload{
		"summary of nothing":      &session.CompactionSummary{CompactionID: "k"},
		"summary with bad usage":  &session.CompactionSummary{CompactionID: "k", Shadowed: shadow, Usage: &message.Usage{InputTokens: -1}},
		"summary with bad blocks": &session.CompactionSummary{CompactionID: "k", Shadowed: shadow, Summary: bad},
		"summary with bad output": &session.CompactionSummary{CompactionID: "k", Shadowed: shadow, RawOutput: bad},
		"summary of -1 tokens":    &session.CompactionSummary{CompactionID: "k", Shadowed: session.Shadowed{Seqs: []int64{0}, Tokens: -1}},
		"prune of nothing":        &session.CompactionPrune{},
		"prune of -1 tokens":      &session.CompactionPrune{Shadowed: session.Shadowed{Seqs: []int64{0}, Tokens: -1}},
		"request without message": &session.CompactionRequest{CompactionID: "k"},
	} {
		s := newSession(t)
		if _, err := s.Append(session.Draft{Payload: &session.CompactionStart{CompactionID: "k"}}); err != nil {
			t.Fatal(err)
		}
		var inv *session.InvariantError
		if _, err := s.Append(session.Draft{Payload: p}); err == nil || errors.As(err, &inv) || s.Head() != 1 {
			t.Errorf("%s: error %v, head %d", name, err, s.Head())
		}
	}
}

// core I14: brackets that this program writes, and those of earlier writers, which left
// out ids of summaries and turns of ends: they are read, and none is written.
func TestCompactionBrackets_I14(t *testing.T) {
	turn, start := `"turn/start":{"turn":1}`, `"compaction/start":{"compactionId":"k","turn":1}`
	again := `"compaction/start":{"compactionId":"l","turn":1}`
	sum := func(id string) string {
		return `"compaction/summary":{` + id + `"shadowedRange":{"start":0,"end":0},"shadowedSeqs":[0],"shadowedTokenCount":1,"provider":"p","model":"m"}`
	}
	reg := newRegistry(t, session.Config{})
	for _, tc := range []struct {
		name        string
		read, write bool // legal
		events      []string
	}{
		{"two in a row", true, true, []string{turn, start, sum(`"compactionId":"k",`), `"compaction/end":{"compactionId":"k","turn":1}`, again, sum(`"compactionId":"l",`), `"compaction/end":{"compactionId":"l","turn":1}`}},
		{"an end without its turn", true, false, []string{turn, start, `"compaction/end":{"compactionId":"k"}`}},
		{"an end of another turn", false, false, []string{turn, start, `"compaction/end":{"compactionId":"k","turn":2}`}},
		{"an end of a bracket without a turn", false, false, []string{turn, `"compaction/start":{"compactionId":"k","turn":null}`, `"compaction/end":{"compactionId":"k","turn":1}`}},
		{"an end without an id where none is open", false, false, []string{turn, `"compaction/end":{"compactionId":""}`}},
		{"a summary without an id", true, false, []string{turn, sum("")}},
		{"a summary without an id in a bracket", true, false, []string{turn, start, sum(""), `"compaction/end":{"compactionId":"k","turn":1}`}},
		{"a second summary", false, false, []string{turn, start, sum(`"compactionId":"k",`), sum(`"compactionId":"k",`)}},
		{"a summary behind its end", false, false, []string{turn, start, `"compaction/end":{"compactionId":"k","turn":1}`, sum(`"compactionId":"k",`)}},
	} {
		var events []session.Event
		for i, e := range tc.events {
			typ, data, _ := strings.Cut(e, ":")
			ev, err := session.ParseEnvelope(fmt.Appendf(nil, `{"type":%s,"seq":%d,"time":1,"data":%s}`, typ, i, data))
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, ev)
		}
		check := func(how string, legal bool, err error) {
			t.Helper()
			var inv *session.InvariantError
			if legal && err != nil || !legal && (!errors.As(err, &inv) || inv.Rule != "I14") {
				t.Errorf("%s, %s: error %v, legal %v", tc.name, how, err, legal)
			}
		}
		_, err := reg.Verify(session.Record{Header: session.Header{ID: "x"}, Head: int64(len(events))}, seqOf(events))
		check("read", tc.read, err)
		s := newSession(t)
		err = nil
		for i := range events {
			p, perr := reg.PayloadOf(events[i])
			if perr != nil {
				t.Fatal(perr)
			}
			if err == nil {
				_, err = s.Append(session.Draft{Payload: p})
			}
		}
		check("written", tc.write, err)
	}
}

func seqOf(events []session.Event) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}
