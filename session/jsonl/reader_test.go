package jsonl_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
)

const (
	header = `{"type":"session","version":0,"id":"s","createdAt":5,"cwd":"/p","delegationDepth":0}`
	turn   = `{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}`
	end    = `{"type":"turn/end","seq":1,"time":2,"data":{"turn":1,"reason":{"kind":"completed"}}}`
)

func file(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

// log is what a Reader made of one log.
type log struct {
	Header session.Header
	Events []string
	Torn   *jsonl.Torn
	Start  int64
}

// readAll reads a stream to its end or its first fault.
func readAll(r *jsonl.Reader) (logs []log, err error) {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return logs, nil
		}
		if err != nil {
			return logs, err
		}
		l := log{Header: h, Start: r.Start()}
		for e, eerr := range r.Events() {
			if err = eerr; err == nil {
				l.Events = append(l.Events, string(e.AppendEnvelope(nil)))
			}
		}
		l.Torn = r.Torn()
		logs = append(logs, l)
		if err != nil {
			return logs, err
		}
	}
}

func read(text string) ([]log, error) { return readAll(jsonl.NewReader(strings.NewReader(text), "f")) }

// golden is the log of every payload there is.
func golden(t testing.TB) []string {
	data, err := os.ReadFile(filepath.Join("..", "testdata", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// core D14, S1: what is written is one header line and the envelopes as they are,
// and reads back to the same.
func TestWriteRead_D14(t *testing.T) {
	lines := golden(t)
	full := session.Header{
		ID: "s/1", CreatedAt: 5, Cwd: "/p", ParentSession: "p", SeedLength: 3,
		Origin: session.OriginSubagent, DelegationDepth: 2, AgentPreset: "reader",
	}
	for _, tt := range []struct {
		h    session.Header
		want string
	}{
		{session.Header{ID: "s", CreatedAt: 0}, `{"type":"session","version":0,"id":"s","createdAt":0,"delegationDepth":0}`},
		{full, `{"type":"session","version":0,"id":"s/1","createdAt":5,"cwd":"/p","parentSession":"p","seedLength":3,"origin":"subagent","delegationDepth":2,"agentPreset":"reader"}`},
	} {
		var buf bytes.Buffer
		w := jsonl.NewWriter(&buf)
		for range 2 { // one behind the other
			if err := errors.Join(w.Write(&tt.h, parse(t, lines)), w.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		text := file(append([]string{tt.want}, lines...)...)
		if diff := cmp.Diff(text+text, buf.String()); diff != "" {
			t.Fatalf("written (-want +got):\n%s", diff)
		}
		logs, err := read(buf.String())
		want := []log{{Header: tt.h, Events: lines}, {Header: tt.h, Events: lines, Start: int64(len(text))}}
		if diff := cmp.Diff(want, logs); diff != "" || err != nil {
			t.Errorf("read back %v (-want +got):\n%s", err, diff)
		}
	}
	// What cannot be read cannot be written as if it ended there.
	boom := errors.New("boom")
	err := jsonl.NewWriter(io.Discard).Write(&full, func(yield func(session.Event, error) bool) { yield(session.Event{}, boom) })
	if !errors.Is(err, boom) {
		t.Errorf("a log that breaks off is written: %v", err)
	}
}

func parse(t testing.TB, lines []string) iter.Seq2[session.Event, error] {
	return func(yield func(session.Event, error) bool) {
		for _, line := range lines {
			e, err := session.ParseEnvelope([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func chunk(seq, time int, chunk string) string {
	return fmt.Sprintf(`{"type":"assistant/chunk","seq":%d,"time":%d,"data":{"turn":1,"step":2,"chunk":%s}}`, seq, time, chunk)
}

// core D14: packed rows are read as the events that they pack.
func TestRows_D14(t *testing.T) {
	text := file(header, turn,
		`{"type":"reasoning-chunks","seq0":1,"time0":100,"data":{"turn":1,"step":2,"index":0,"dt":[0,-5,7],"texts":["a\n","","\u00e9\ud83d\ude00","<b>"]}}`,
		`{"type":"text-chunks","seq0":5,"time0":-3,"data":{"turn":1,"step":2,"index":1,"dt":[1,1],"texts":["x","y","z"]}}`,
		// White space, another order, and a run of one, as other writers may have it.
		` { "data" : { "texts" : [ "w" ] , "dt" : [ ] , "index":1,"step":2, "turn":1 } , "time0":4, "seq0":8, "type" : "text-chunks" } `+"\r",
		`{"type":"tool-call-chunks","seq0":9,"time0":5,"data":{"turn":1,"step":2,"index":2,"dt":[0, 10 ],"id":"c\"1","name":"bash","args":["","{\"a\"",":1}"]}}`,
		`{"type":"tool-call-chunks","seq0":12,"time0":6,"data":{"turn":1,"step":2,"index":3,"dt":[0,0],"id":"c2","args":["1","2","3"]}}`,
		`{"type":"turn/end","seq":15,"time":2,"data":{"turn":1,"reason":{"kind":"completed"}}}`)
	want := []string{turn,
		chunk(1, 100, `{"type":"reasoning-delta","index":0,"text":"a\n"}`),
		chunk(2, 100, `{"type":"reasoning-delta","index":0,"text":""}`),
		chunk(3, 95, `{"type":"reasoning-delta","index":0,"text":"\u00e9\ud83d\ude00"}`),
		chunk(4, 102, `{"type":"reasoning-delta","index":0,"text":"<b>"}`),
		chunk(5, -3, `{"type":"text-delta","index":1,"text":"x"}`),
		chunk(6, -2, `{"type":"text-delta","index":1,"text":"y"}`),
		chunk(7, -1, `{"type":"text-delta","index":1,"text":"z"}`),
		chunk(8, 4, `{"type":"text-delta","index":1,"text":"w"}`),
		chunk(9, 5, `{"type":"tool-call-delta","index":2,"id":"c\"1","name":"bash","argumentsDelta":""}`),
		chunk(10, 5, `{"type":"tool-call-delta","index":2,"id":"c\"1","name":"bash","argumentsDelta":"{\"a\""}`),
		chunk(11, 15, `{"type":"tool-call-delta","index":2,"id":"c\"1","name":"bash","argumentsDelta":":1}"}`),
		chunk(12, 6, `{"type":"tool-call-delta","index":3,"id":"c2","argumentsDelta":"1"}`),
		chunk(13, 6, `{"type":"tool-call-delta","index":3,"id":"c2","argumentsDelta":"2"}`),
		chunk(14, 6, `{"type":"tool-call-delta","index":3,"id":"c2","argumentsDelta":"3"}`),
		`{"type":"turn/end","seq":15,"time":2,"data":{"turn":1,"reason":{"kind":"completed"}}}`,
	}
	logs, err := read(text)
	if err != nil || len(logs) != 1 {
		t.Fatal(len(logs), err)
	}
	if diff := cmp.Diff(want, logs[0].Events); diff != "" {
		t.Errorf("expanded (-want +got):\n%s", diff)
	}
}

// core D11, D16, S1, S7: what a reader makes of a file that is not as it should be:
// which error, at which line, behind how many events.
func TestFaults_D16(t *testing.T) {
	row := func(data string) string {
		return `{"type":"text-chunks","seq0":1,"time0":1,"data":` + data + `}`
	}
	const newer = `{"type":"session","version":3,"identity":{"id":"s"},"id":"s"}`
	for _, tt := range []struct {
		name, text string
		events     int
		line       int    // of the error; 0 for none
		want       string // in the error
		torn       int64  // bytes
	}{
		{"whole", file(header, turn, end), 2, 0, "", 0},
		{"no events", file(header), 0, 0, "", 0},
		{"the last line is whole but for its line feed", header + "\n" + turn, 1, 0, "", 0},
		{"a torn last line", file(header, turn) + end[:20], 1, 0, "", 20},
		{"torn in a string", file(header, turn) + `{"type":"turn/e`, 1, 0, "", 15},
		{"torn in a row", file(header, turn) + row(`{"turn":1,"texts":["a`), 1, 0, "", 70},
		{"torn, and the file system filled it", file(header, turn) + strings.Repeat("\x00", 40), 1, 0, "", 40},
		{"torn, with a line feed", file(header, turn, end[:20]), 1, 0, "", 21},
		{"torn in a number", file(header, turn) + `{"type":"turn/end","seq":1`, 1, 0, "", 26},
		{"an empty last line", file(header, turn, ""), 1, 0, "", 1},

		{"torn in the middle", file(header, turn, end[:20], end), 1, 3, "corrupt at seq 1", 0},
		{"torn, and another log behind it", file(header, turn, end[:20], header), 1, 3, "corrupt at seq 1", 0},
		{"nothing that was cut, at the end", file(header, turn) + end[5:], 1, 3, "corrupt at seq 1", 0},
		{"zeroes that were overwritten, at the end", file(header, turn) + end[:20] + "\x00\x00" + end[22:], 1, 3, "corrupt at seq 1", 0},
		{"an empty line in the middle", file(header, turn, "", end), 1, 3, "corrupt at seq 1", 0},
		{"two events on a line", file(header, turn+end), 0, 2, "data behind the value", 0},
		{"a line of another kind, at the end", file(header, turn, `[1]`), 1, 3, "expected an object", 0},
		{"lossy at the end", file(header, turn, `{"type":"x/y","seq":1,"time":1,"ignorable":true,"data":{"n":-0}}`), 1, 3, "negative zero", 0},
		{"half a surrogate pair", file(header, turn, `{"type":"x/y","seq":1,"time":1,"ignorable":true,"data":{"n":"\ud83d"}}`), 1, 3, "surrogate", 0},
		{"a gap", file(header, end), 0, 2, "expected seq 0, found 1", 0},
		{"a repetition", file(header, turn, turn), 1, 3, "expected seq 1, found 0", 0},
		{"a gap at a row", file(header, row(`{"turn":1,"step":1,"index":0,"dt":[0],"texts":["a","b"]}`)), 0, 2, "expected seq 0, found 1", 0},
		{"S1 another member", file(header, `{"type":"turn/start","seq":0,"time":1,"data":{"turn":1},"note":1}`), 0, 2, `unknown key "note"`, 0},
		{"S1 no time", file(header, `{"type":"turn/start","seq":0,"data":{"turn":1}}`), 0, 2, "no time", 0},
		{"a type that is no string", file(header, `{"type":7,"seq":0,"time":1,"data":{}}`), 0, 2, "expected a string", 0},
		{"a row tag on an event", file(header, `{"type":"text-chunks","seq":0,"time":1,"data":{}}`), 0, 2, "no type of an event", 0},
		{"a header tag on an event", file(header, `{"type":"session","seq":0,"time":1,"data":{}}`), 0, 2, "no type of an event", 0},

		{"an unknown member in a row", file(header, turn, `{"type":"text-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]},"x":1}`, end), 1, 3, `unknown key "x"`, 0},
		{"an unknown member in a row's data", file(header, turn, row(`{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"],"id":"c"}`)), 1, 3, `unknown key "id"`, 0},
		{"a row without its call", file(header, turn, `{"type":"tool-call-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"args":["a"]}}`), 1, 3, `"id" is missing`, 0},
		{"an empty row", file(header, turn, row(`{"turn":1,"step":1,"index":0,"dt":[],"texts":[]}`)), 1, 3, "packs nothing", 0},
		{"too few gaps", file(header, turn, row(`{"turn":1,"step":1,"index":0,"dt":[],"texts":["a","b"]}`)), 1, 3, "0 gaps lie between 2 pieces", 0},
		{"a gap that is none", file(header, turn, row(`{"turn":1,"step":1,"index":0,"dt":[1.5],"texts":["a","b"]}`)), 1, 3, "expected an integer", 0},
		{"a time out of range", file(header, turn, row(`{"turn":1,"step":1,"index":0,"dt":[9007199254740991],"texts":["a","b"]}`)), 1, 3, "out of range", 0},
		{"a seq out of range", file(header, turn, `{"type":"text-chunks","seq0":9007199254740991,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[0],"texts":["a","b"]}}`), 1, 3, "out of range", 0},
		{"a piece that is no text", file(header, turn, row(`{"turn":1,"step":1,"index":0,"dt":[0],"texts":["a",2]}`)), 1, 3, "no string", 0},

		{"no header", file(turn), -1, 1, `its type is "turn/start"`, 0},
		{"a torn header", header[:30], -1, 1, "no header", 0},
		{"an unknown member in the header", file(`{"type":"session","version":0,"id":"s","createdAt":5,"sandboxMode":"x"}`), -1, 1, `unknown key "sandboxMode"`, 0},
		{"no version", file(`{"type":"session","id":"s","createdAt":5}`), -1, 1, "no version", 0},
		{"S7 a newer format, whatever it looks like", file(newer), -1, 1, "not supported: format version 3 was produced by a newer build", 0},
		{"S7 an older one", file(`{"type":"session","version":-1,"id":"s"}`), -1, 1, "no migration path", 0},
		{"a second log is no log", file(header, turn, end, newer), 2, 4, "newer build", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			logs, err := read(tt.text)
			events := -1
			if len(logs) > 0 {
				events = len(logs[0].Events)
			}
			if events != tt.events {
				t.Errorf("%d events, want %d", events, tt.events)
			}
			if tt.line == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if got := logs[0].Torn; (got == nil) != (tt.torn == 0) || got != nil && (got.Bytes != tt.torn || got.Line != tt.events+2) {
					t.Errorf("torn: %+v, want %d bytes in line %d", got, tt.torn, tt.events+2)
				}
				return
			}
			var where *jsonl.Error
			if !errors.As(err, &where) || where.Line != tt.line || where.Name != "f" || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want line %d and %q", err, tt.line, tt.want)
			}
			var corrupt *session.CorruptError
			var unsupported *session.UnsupportedError
			if isVersion := strings.Contains(tt.name, "S7") || strings.Contains(tt.want, "newer"); errors.As(err, &unsupported) != isVersion || errors.As(err, &corrupt) == isVersion {
				t.Errorf("the error is of the wrong kind: %v", err)
			}
		})
	}
}

// A Reader takes the longest line and no longer one, whatever it is.
func TestLongLine(t *testing.T) {
	if jsonl.MaxLine < 64<<20*6 {
		t.Error("the longest event that the product writes does not fit")
	}
	const most = 200_000 // beyond any buffer
	event := func(n int64) io.Reader {
		const head, tail = `{"type":"x/y","seq":0,"time":1,"ignorable":true,"data":{"n":"`, `"}}` + "\n"
		n -= int64(len(head) + len(tail) - 1)
		return io.MultiReader(strings.NewReader(header+"\n"+head), io.LimitReader(letters{}, n), strings.NewReader(tail))
	}
	count := func(r io.Reader) (n int, err error) {
		rd := jsonl.NewReader(r, "f")
		jsonl.Limit(rd, most)
		if _, err := rd.Next(); err != nil {
			return 0, err
		}
		for _, eerr := range rd.Events() {
			if err = eerr; err == nil {
				n++
			}
		}
		return n, err
	}
	if n, err := count(event(most)); n != 1 || err != nil {
		t.Errorf("the longest line: %d events, %v", n, err)
	}
	var unsupported *session.UnsupportedError
	var where *jsonl.Error
	for _, r := range []io.Reader{event(most + 1), io.MultiReader(strings.NewReader(header+"\n"), letters{})} {
		if n, err := count(r); n != 0 || !errors.As(err, &unsupported) || !errors.As(err, &where) || where.Line != 2 {
			t.Errorf("a line too long: %d events, %v", n, err)
		}
	}
	if _, err := jsonl.NewReader(letters{}, "f").Next(); !errors.As(err, &unsupported) {
		t.Errorf("a header without end: %v", err)
	}
}

// letters is a file without an end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// A disk that fails is no corruption.
func TestReadFails(t *testing.T) {
	boom := errors.New("boom")
	r := io.MultiReader(strings.NewReader(file(header, turn)), failing{boom})
	logs, err := readAll(jsonl.NewReader(r, "f"))
	var corrupt *session.CorruptError
	if !errors.Is(err, boom) || errors.As(err, &corrupt) || len(logs) != 1 {
		t.Errorf("%d logs, %v", len(logs), err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// What a Reader accepts, a Writer writes to what reads back to the same bytes, and
// nothing makes it panic or go on for ever.
func FuzzReader(f *testing.F) {
	lines := golden(f)
	f.Add([]byte(file(append([]string{header}, lines...)...)))
	f.Add([]byte(file(header, turn, end, header, turn) + end[:30]))
	f.Add([]byte(file(header, turn,
		`{"type":"reasoning-chunks","seq0":1,"time0":100,"data":{"turn":1,"step":2,"index":0,"dt":[0,-5],"texts":["a\n","","\u00e9"]}}`,
		`{"type":"tool-call-chunks","seq0":4,"time0":5,"data":{"turn":1,"step":2,"index":2,"dt":[0,1],"id":"c","name":"n","args":["","{",":1}"]}}`)))
	f.Add([]byte(header))
	f.Fuzz(func(t *testing.T, data []byte) {
		logs, err := readAll(jsonl.NewReader(bytes.NewReader(data), "f"))
		if err != nil {
			return
		}
		var once, twice bytes.Buffer
		write := func(to *bytes.Buffer, logs []log) {
			w := jsonl.NewWriter(to)
			for i := range logs {
				if err := w.Write(&logs[i].Header, parse(t, logs[i].Events)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		write(&once, logs)
		again, err := readAll(jsonl.NewReader(bytes.NewReader(once.Bytes()), "f"))
		if err != nil {
			t.Fatalf("%s\n%v", once.Bytes(), err)
		}
		write(&twice, again)
		if !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Fatalf("%s\n%s", once.Bytes(), twice.Bytes())
		}
	})
}

// Long lines are not copied, and short ones are: either way an event is what its line
// was, also when more lines were read.
func TestLongLinesAreKept(t *testing.T) {
	var lines, want []string
	for i, size := range []int{10, 300_000, 10, 300_000, 300_040, 70_000, 1 << 20, 66_000, 66_000, 10, 1 << 20, 65_000} {
		text := strings.Repeat(string(rune('a'+i)), size)
		line := fmt.Sprintf(`{"type":"x/note","seq":%d,"time":1,"ignorable":true,"data":{"text":"%s"}}`, i, text)
		want = append(want, line)
		if i%3 == 0 {
			line = strings.Replace(line, `{"text":`, "{ \"text\":\t", 1)
		}
		lines = append(lines, line)
	}
	r := jsonl.NewReader(strings.NewReader(file(append([]string{header}, lines...)...)), "f")
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	var events []session.Event
	for e, err := range r.Events() {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	if len(events) != len(want) {
		t.Fatalf("%d events", len(events))
	}
	for i, e := range events {
		if got := string(e.AppendEnvelope(nil)); got != want[i] {
			t.Errorf("event %d has %d bytes and begins %.90s; want %d and %.90s", i, len(got), got, len(want[i]), want[i])
		}
	}
}
