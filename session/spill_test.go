package session_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
)

// spillOf returns the spill at a seq of a log that was read back.
func spillOf(t *testing.T, reg *session.Registry, e session.Event) *session.ToolSpill {
	t.Helper()
	p, err := reg.PayloadOf(e)
	if err != nil {
		t.Fatal(err)
	}
	sp, ok := p.(*session.ToolSpill)
	if !ok {
		t.Fatalf("event %d is a %s", e.Seq, e.Type)
	}
	return sp
}

// core D45: a spill holds every byte of a text, live and read back; it stands in the
// log and not on the surface, and is inherited like any other event.
func TestSpill_D45(t *testing.T) {
	whole := []string{strings.Repeat("ä\n\"\x00\\", 1<<16), "", "tail"}
	want := strings.Join(whole, "")
	reg := newRegistry(t, session.Config{})
	s := prepare(t, reg, session.New{ID: "s"})
	mustAppend(t, s, script(t, "T1 S1.1 a1.1:c c1.1:c")...)
	mustAppend(t, s, spill(1, 1, "c", int64(len(want)), 0, whole...))
	mustAppend(t, s, script(t, "r1.1:c s1.1 t1")...)
	back := rawEvents(t, s)
	if p := spillOf(t, reg, back[4]); p.Turn != 1 || p.Step != 1 || p.CallID != "c" || p.Session != "s" || p.Bytes != int64(len(want)) || p.Omitted != 0 || !back[4].Ignorable {
		t.Errorf("read back as %+v", p)
	}
	heir := prepare(t, reg, session.New{ID: "heir", Seed: &session.Seed{Prefix: s.Prefix()}})
	copied := prepare(t, reg, session.New{ID: "copied", Seed: &session.Seed{Events: back}})
	for name, e := range map[string]session.Event{"live": at(t, s, 4), "read back": back[4], "inherited": at(t, heir, 4), "copied": at(t, copied, 4)} {
		if got, err := spillOf(t, reg, e).Text(); err != nil || got != want {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(want), err)
		}
	}
	msgs, _ := s.History()
	if diff := cmp.Diff([]string{"m2:", "r-c:"}, texts(msgs)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	verify(t, s)
}

func at(t *testing.T, s *session.Session, seq int64) session.Event {
	t.Helper()
	e, ok := s.Event(seq)
	if !ok {
		t.Fatalf("session %s has no event %d", s.ID(), seq)
	}
	return e
}

// core S25, G1: a spill whose numbers or texts are wrong is refused when it is
// written and when it is read, and leaves nothing behind.
func TestSpillRefused_S25(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, script(t, "T1 S1.1 a1.1:c c1.1:c")...)
	before := export(s)
	for name, p := range map[string]*session.ToolSpill{
		"made by hand":          {Turn: 1, Step: 1, CallID: "c"},
		"another session's":     session.NewToolSpill(session.ToolSpill{Session: "x", Turn: 1, Step: 1, CallID: "c", Bytes: 3}, []string{"abc"}),
		"nobody's":              session.NewToolSpill(session.ToolSpill{Turn: 1, Step: 1, CallID: "c", Bytes: 3}, []string{"abc"}),
		"no texts":              spill(1, 1, "c", 0, 0),
		"more than it says":     spill(1, 1, "c", 2, 0, "abc"),
		"less than it says":     spill(1, 1, "c", 4, 0, "abc"),
		"less than is kept":     spill(1, 1, "c", 9, 5, "abc"),
		"lacks more than it is": spill(1, 1, "c", 3, 4, "abc"),
		"a negative size":       spill(1, 1, "c", -1, 0, "abc"),
		"a negative omission":   spill(1, 1, "c", 3, -1, "abc"),
		"no UTF-8":              spill(1, 1, "c", 2, 0, "a\xff"),
	} {
		if _, err := s.Append(drafts(p)...); err == nil || export(s) != before {
			t.Errorf("%s: error %v, log\n%s", name, err, strings.TrimPrefix(export(s), before))
		}
	}
	for name, data := range map[string]string{
		"no texts":          `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":0}`,
		"empty texts":       `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":0,"texts":[]}`,
		"one text":          `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":3,"texts":"abc"}`,
		"texts of numbers":  `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":3,"texts":[123]}`,
		"texts of texts":    `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":3,"texts":[["abc"]]}`,
		"no size":           `{"turn":1,"step":1,"callId":"c","sessionId":"s","texts":["abc"]}`,
		"wrong size":        `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":5,"texts":["abc"]}`,
		"escapes count one": `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":6,"texts":["\u0061bc"]}`,
		"no session":        `{"turn":1,"step":1,"callId":"c","bytes":3,"texts":["abc"]}`,
		"an empty session":  `{"turn":1,"step":1,"callId":"c","sessionId":"","bytes":3,"texts":["abc"]}`,
		"another key":       `{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":3,"texts":["abc"],"text":"abc"}`,
		"a surface event":   `"surface"`,
	} {
		line := `{"type":"tool/spill","seq":4,"time":0,"ignorable":true,"data":` + data + `}`
		if data == `"surface"` {
			line = `{"type":"tool/spill","seq":4,"time":0,"ignorable":true,"surfaceOp":"append","data":{"turn":1,"step":1,"callId":"c","sessionId":"s","bytes":3,"texts":["abc"]}}`
		}
		events := append(rawEvents(t, s), parseLog(t, line)...)
		events[4].Seq = 4
		_, err := newRegistry(t, session.Config{}).Verify(recordOf(s, 5), sequence(events))
		var corrupt *session.CorruptError
		var invariant *session.InvariantError
		var unsupported *session.UnsupportedError // of a build that knows more
		if !errors.As(err, &corrupt) && !errors.As(err, &invariant) && (name != "another key" || !errors.As(err, &unsupported)) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	mustAppend(t, s, spill(1, 1, "c", 3, 0, "abc")) // it was none of them
}

// design § 4, Bounded: the one text form of a spill's name, and nothing else.
func TestSpillRef(t *testing.T) {
	for text, want := range map[string]session.SpillRef{
		"spill:018f-2a/0":          {Session: "018f-2a"},
		"spill:a%2Fb%20%5Dc%0A/17": {Session: "a/b ]c\n", Seq: 17},
	} {
		if got := want.String(); got != text {
			t.Errorf("%+v is written as %q, want %q", want, got, text)
		}
		if got, err := session.ParseSpillRef(text); err != nil || got != want {
			t.Errorf("%q is read as %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "spill:", "spill:a", "spill:a/", "spill:/1", "spill:a/-1", "spill:a/01", "spill:a/+1", "spill:a/1/", "spill:a/b/1", "spill:a/9223372036854775808", "spill:%zz/1", "spill:%61/1", "Spill:a/1", " spill:a/1", "a/1"} {
		if got, err := session.ParseSpillRef(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func FuzzParseSpillRef(f *testing.F) {
	for _, s := range []string{"spill:018f-2a/0", "spill:a%2Fb/17", "spill:a/9223372036854775807", "spill:%/1", "spill:a/b/1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := session.ParseSpillRef(text); err == nil && (r.String() != text || r.Session == "" || r.Seq < 0) {
			t.Fatalf("%q is read as %+v", text, r)
		}
		r := session.SpillRef{Session: session.ID("s" + text), Seq: int64(len(text))}
		if back, err := session.ParseSpillRef(r.String()); err != nil || back != r {
			t.Fatalf("%+v is written as %q and read as %+v, %v", r, r, back, err)
		}
	})
}

// core S4: what is built under the lock is told where it will stand, whoever else
// appends; a refusal leaves nothing, as everywhere.
func TestAppendFunc_S4(t *testing.T) {
	s := newSession(t)
	mustAppend(t, s, script(t, "T1 S1.1 a1.1:c,d c1.1:c c1.1:d")...)
	done := make(chan error)
	go func() {
		var err error
		for range 200 {
			_, appendErr := s.Append(drafts(say("x", "x"))...)
			err = errors.Join(err, appendErr)
		}
		done <- err
	}()
	for range 200 {
		first, err := s.AppendFunc(func(first int64) []session.Draft {
			return drafts(&session.Title{Title: session.SpillRef{Session: "s", Seq: first}.String()}, say("y", "y"))
		})
		if err != nil {
			t.Fatal(err)
		}
		p, ok := payloadAt(t, s, first).(*session.Title)
		if !ok || p.Title != (session.SpillRef{Session: "s", Seq: first}).String() {
			t.Fatalf("event %d says %+v", first, p)
		}
		if _, ok := payloadAt(t, s, first+1).(*session.UserMessage); !ok {
			t.Fatalf("something stands between the events of the hold at %d", first)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	before := export(s)
	_, err := s.AppendFunc(func(int64) []session.Draft {
		return append(drafts(spill(1, 1, "c", 3, 0, "abc")), drafts(script(t, "r1.1:e")...)...)
	})
	if err == nil || export(s) != before {
		t.Errorf("error %v; a refused hold left %q", err, strings.TrimPrefix(export(s), before))
	}
}

func payloadAt(t *testing.T, s *session.Session, seq int64) session.Payload {
	t.Helper()
	e := at(t, s, seq)
	return e.Payload()
}

// BenchmarkSpill is one result of 5 MiB: encoded, appended with its result, and read
// back for its text.
func BenchmarkSpill(b *testing.B) {
	text := strings.Repeat("a line of the length that a line of output has, more or less\n", 5<<20/61)
	reg := newRegistry(b, session.Config{})
	b.Run("append", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			s := prepare(b, reg, session.New{ID: "s"})
			mustAppend(b, s, script(b, "T1 S1.1 a1.1:c c1.1:c")...)
			mustAppend(b, s, spill(1, 1, "c", int64(len(text)), 0, text), outcome(1, 1, "c", "short", ""))
			if err := reg.Abandon(b.Context(), s); err != nil {
				b.Fatal(err)
			}
		}
	})
	s := newSession(b)
	mustAppend(b, s, script(b, "T1 S1.1 a1.1:c c1.1:c")...)
	mustAppend(b, s, spill(1, 1, "c", int64(len(text)), 0, text), outcome(1, 1, "c", "short", ""))
	stored := rawEvents(b, s)
	b.Run("replay", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := reg.Verify(recordOf(s, s.Head()), sequence(stored)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("text", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		e, _ := s.Event(4)
		p, ok := e.Payload().(*session.ToolSpill)
		for b.Loop() {
			got, err := p.Text()
			if !ok || err != nil || len(got) != len(text) {
				b.Fatal(ok, err)
			}
		}
	})
}
