package products_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/internal/products"
)

// A line is what any line of a session file may say.
type line struct {
	Type string `json:"type"`
	Seq  *int64 `json:"seq"`

	// The header's.
	ID            string `json:"id"`
	Version       *int   `json:"version"`
	Cwd           string `json:"cwd"`
	ParentSession string `json:"parentSession"`
	SeedLength    int    `json:"seedLength"`

	// A packed row's.
	Seq0 int64 `json:"seq0"`
	Data struct {
		Texts []string `json:"texts"`
		Args  []string `json:"args"`
		Chunk struct {
			Text           string `json:"text"`
			ArgumentsDelta string `json:"argumentsDelta"`
		} `json:"chunk"`
		Reason struct {
			Kind  string `json:"kind"`
			Error struct {
				Code string `json:"code"`
			} `json:"error"`
		} `json:"reason"`
	} `json:"data"`
}

func parse(t *testing.T, raw []byte) line {
	t.Helper()
	var l line
	// An event's reason may be a plain word; then there is nothing in it that is looked at.
	if err := json.Unmarshal(raw, &l); err != nil && !strings.Contains(err.Error(), "data.reason") {
		t.Fatalf("%v in %.300s", err, raw)
	}
	return l
}

// wants is what is in the file of each scenario's first session: how its turns ended, and how many there are of some
// types, where it matters; and how many sessions there are.
var wants = map[string]struct {
	ends     string
	counts   map[string]int
	sessions int
}{
	"reply":          {ends: "completed", counts: map[string]int{"assistant/message": 1}},
	"turns":          {ends: "completed completed completed", sessions: 2},
	"reasoning":      {ends: "completed"},
	"queued":         {ends: "completed completed", counts: map[string]int{"agent/inbox/spliced": 4}},
	"tool":           {ends: "completed", counts: map[string]int{"tool/call": 1, "tool/result": 1, "step/end": 2}},
	"parallel-tools": {ends: "completed", counts: map[string]int{"tool/call": 2, "tool/result": 2, "step/end": 2}},
	"tool-errors":    {ends: "completed", counts: map[string]int{"tool/call": 4, "tool/result": 4, "step/end": 5}},
	"tool-output":    {ends: "completed", counts: map[string]int{"tool/result": 1}},
	"max-tokens":     {ends: "max-tokens"},
	"refused":        {ends: "error:INVALID_REQUEST completed", counts: map[string]int{"assistant/message": 1, "llm/retry": 0}},
	"filtered":       {ends: "error:CONTENT_FILTER", counts: map[string]int{"llm/retry": 0}},
	"retried":        {ends: "completed", counts: map[string]int{"llm/retry": 2, "llm/retry-started": 2, "assistant/message": 1}},
	"exhausted":      {ends: "error:EMPTY_RESPONSE", counts: map[string]int{"llm/retry": 5}},
	"killed-stream":  {ends: "completed", counts: map[string]int{"assistant/message": 1}},
	"killed-call":    {counts: map[string]int{"assistant/message": 0, "tool/call": 0}},
	"killed-tool":    {counts: map[string]int{"tool/call": 2, "tool/result": 1}},
	"killed-queued":  {counts: map[string]int{"agent/inbox/spliced": 4}},
	"killed-child":   {counts: map[string]int{"tool/call": 1, "tool/result": 0}, sessions: 2},
	"terminated":     {counts: map[string]int{"assistant/message": 0}},
	"long":           {ends: "completed", counts: map[string]int{"assistant/message": 1}},
	"unpacked":       {ends: "completed", counts: map[string]int{"text-chunks": 0, "reasoning-chunks": 0}},
	"compressed":     {},
	"names":          {ends: "completed", sessions: 4},
	"child":          {ends: "completed", counts: map[string]int{"tool/result": 1}, sessions: 2},
	"tree":           {ends: "completed", counts: map[string]int{"tool/result": 2}, sessions: 4},
	"fork":           {ends: "completed completed", sessions: 2},
	"background":     {ends: "completed completed", counts: map[string]int{"agent/inbox/spliced": 4, "tool/result": 1}, sessions: 2},
	"child-fails":    {ends: "completed", sessions: 2},
}

// TestScenarios runs the upstream runtime through every scenario and checks that the logs are what they claim to be, and
// that each holds what the runtime said while it ran.
func TestScenarios(t *testing.T) {
	h := products.FindHarness(t)
	t.Logf("the harness set is %s", h.Dir)
	ran, packed := map[string]bool{}, packedRows{}
	t.Run("all", func(t *testing.T) {
		for _, sc := range products.Scenarios() {
			ran[sc.Name] = true
			t.Run(sc.Name, func(t *testing.T) {
				t.Parallel()
				want, ok := wants[sc.Name]
				if !ok {
					t.Fatal("nothing is said about this scenario")
				}
				logs := sc.Run(t, h)
				if got := len(logs.Sessions); got != max(want.sessions, 1) {
					t.Errorf("%d sessions, want %d", got, max(want.sessions, 1))
				}
				if sc.Persistence.Compressed {
					checkCompressed(t, logs.Sessions[0])
					return
				}
				for i, log := range logs.Sessions {
					lines := readLog(t, logs, log)
					checkEvents(t, sc, log, lines)
					packed.count(t, lines)
					if i == 0 {
						checkCounts(t, sc, lines, want.ends, want.counts)
					}
				}
			})
		}
	})
	for _, typ := range []string{"text-chunks", "reasoning-chunks", "tool-call-chunks"} {
		if packed.rows[typ] == 0 {
			t.Errorf("no log holds a packed row of the type %s", typ)
		}
	}
	for name := range wants {
		if !ran[name] {
			t.Errorf("there is no scenario %s", name)
		}
	}
}

// packedRows counts packed rows by type, over all logs: what of one stream is written in
// one go, and so becomes a row, is a matter of time.
type packedRows struct {
	mu   sync.Mutex // guards following
	rows map[string]int
}

func (p *packedRows) count(t *testing.T, lines [][]byte) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rows == nil {
		p.rows = map[string]int{}
	}
	for _, raw := range lines {
		p.rows[parse(t, raw).Type]++
	}
}

// readLog checks the header of a log and returns the lines behind it and behind what the session was born with.
func readLog(t *testing.T, logs products.Logs, log products.Log) [][]byte {
	t.Helper()
	data, err := os.ReadFile(log.Path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	header := parse(t, lines[0])
	if header.Type != "session" || header.Version == nil || header.ID != log.ID || header.Cwd != logs.Cwd ||
		header.ParentSession != log.Parent {
		t.Errorf("session %s, a child of %q, in %s has the header %s", log.ID, log.Parent, logs.Cwd, lines[0])
	}
	if log.Parent != "" {
		found := false
		for _, other := range logs.Sessions {
			found = found || other.ID == log.Parent
			if other.ID == log.ID && !found {
				t.Errorf("session %s stands before its parent", log.ID)
			}
		}
	}
	for i, raw := range lines {
		if l := parse(t, raw); l.Type == "session/end-seed" {
			return lines[i+1:]
		}
	}
	if header.SeedLength > 0 {
		t.Errorf("session %s is seeded with %d events and there is no end of them", log.ID, header.SeedLength)
	}
	return lines[1:]
}

// checkEvents compares the lines with what the runtime said: a plain line is the event to the byte, a packed row
// stands for as many events as it has pieces, in which the pieces are.
func checkEvents(t *testing.T, sc products.Scenario, log products.Log, lines [][]byte) {
	t.Helper()
	events := log.Events
	for _, raw := range lines {
		l := parse(t, raw)
		pieces := append(l.Data.Texts, l.Data.Args...)
		if n := max(len(pieces), 1); len(events) < n {
			if !sc.Open {
				t.Errorf("session %s: the file goes on behind the last event with %.300s", log.ID, raw)
			}
			return
		}
		if len(pieces) == 0 {
			if diff := cmp.Diff(string(events[0]), string(raw)); diff != "" {
				t.Fatalf("session %s (-said +written):\n%s", log.ID, diff)
			}
			events = events[1:]
			continue
		}
		for i, piece := range pieces {
			said := parse(t, events[i])
			if *said.Seq != l.Seq0+int64(i) || said.Data.Chunk.Text+said.Data.Chunk.ArgumentsDelta != piece {
				t.Fatalf("session %s: piece %d of the row %.300s was said as %s", log.ID, i, raw, events[i])
			}
		}
		events = events[len(pieces):]
	}
	if len(events) > 0 && !sc.Open {
		t.Errorf("session %s: the file ends before %.300s", log.ID, events[0])
	}
}

func checkCounts(t *testing.T, sc products.Scenario, lines [][]byte, ends string, counts map[string]int) {
	t.Helper()
	got, said := map[string]int{}, []string{}
	for _, raw := range lines {
		l := parse(t, raw)
		got[l.Type]++
		if l.Type == "turn/end" {
			end := l.Data.Reason.Kind
			if code := l.Data.Reason.Error.Code; code != "" {
				end += ":" + code
			}
			said = append(said, end)
		}
	}
	if strings.Join(said, " ") != ends {
		t.Errorf("the turns end %q, want %q", said, ends)
	}
	if open := got["turn/start"] > got["turn/end"]; open != sc.Open {
		t.Errorf("%d turns begin, %d end; Open is %t", got["turn/start"], got["turn/end"], sc.Open)
	}
	for kind, want := range counts {
		if got[kind] != want {
			t.Errorf("%d lines of type %s, want %d", got[kind], kind, want)
		}
	}
}

// checkCompressed wants a file of the right name that begins as a Zstandard frame does (RFC 8878, 3.1.1).
func checkCompressed(t *testing.T, log products.Log) {
	t.Helper()
	data, err := os.ReadFile(log.Path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(log.Path) != "session.jsonl.zstd" || !bytes.HasPrefix(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		t.Errorf("%s begins with % x", log.Path, data[:min(len(data), 8)])
	}
	if len(log.Events) < 2500 {
		t.Errorf("%d events were said", len(log.Events))
	}
}
