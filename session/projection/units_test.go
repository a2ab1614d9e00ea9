package projection_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

type line struct {
	typ  session.Type
	data string
}

func logOf(lines ...line) *log {
	l := &log{}
	for _, x := range lines {
		l.add(x.typ, "%s", x.data)
	}
	return l
}

func user(source, text string) line {
	return line{session.TypeUserMessage, `{"id":"m","role":"user","content":[{"type":"text","text":"` + text + `"}],"source":` + source + `}`}
}

func answer(turn, usage string) line {
	return line{session.TypeAssistantMessage, `{` + turn + `,"message":{"id":"a","role":"assistant","content":[],"source":{"kind":"model","provider":"p","model":"m2"}}` + usage + `}`}
}

// core D32, P22, P23; seam PROJ-01, PROJ-02, PROJ-03, PROJ-08.
func TestIdentityUnit(t *testing.T) {
	descriptor := func(data string) line { return line{session.TypeDescriptor, data} }
	for _, tc := range []struct {
		name string
		seed int64
		log  *log
		want string
	}{
		{"PROJ-04 none", 0, logOf(line{session.TypeTurnStart, `{"turn":1}`}), `null`},
		{"PROJ-03 own", 0, logOf(line{session.TypeEndSeed, `{}`}, descriptor(goodDescriptor)), `{"mode":"one-shot","provider":"spawn","label":"look","seq":1}`},
		{"no label", 0, logOf(descriptor(`{"version":2,"mode":"one-shot","provider":"p"}`)), `{"mode":"one-shot","provider":"p","seq":0}`},
		{"PROJ-01 last wins", 0, logOf(descriptor(goodDescriptor), descriptor(`{"version":2,"mode":"continuable","provider":"q","label":""}`)), `{"mode":"continuable","provider":"q","label":"","seq":1}`},
		{"PROJ-08 malformed last", 0, logOf(descriptor(goodDescriptor), descriptor(`{"version":2,"mode":"odd","provider":"q"}`)), `null`},
		{"P23 unknown version last", 0, logOf(descriptor(goodDescriptor), descriptor(`{"version":3}`)), `null`},
		{"P23 good after malformed", 0, logOf(descriptor(`{"version":2}`), descriptor(goodDescriptor)), `{"mode":"one-shot","provider":"spawn","label":"look","seq":1}`},
		{"P22 ancestor's only", 1, logOf(descriptor(goodDescriptor), line{session.TypeEndSeed, `{}`}), `null`},
		{"P22 own after ancestor's", 1, logOf(descriptor(`{"version":2,"mode":"one-shot","provider":"q"}`), descriptor(goodDescriptor)), `{"mode":"one-shot","provider":"spawn","label":"look","seq":1}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := readJSON(t, tc.log, tc.seed, session.CellIdentity); got != tc.want {
				t.Errorf("identity %s, want %s", got, tc.want)
			}
		})
	}
}

// core D33.
func TestUsageUnit(t *testing.T) {
	const used = `,"usage":{"inputTokens":10,"outputTokens":5,"cacheReadTokens":3,"cacheWriteTokens":2,"reasoningTokens":1}`
	header := line{session.TypeRequestHeader, `{"header":{"config":{"provider":"p","model":"m1"}},"reason":"initial"}`}
	replaced := logOf(answer(`"turn":1,"step":1`, used), answer(`"turn":1,"step":1`, used))
	replaced.events[1].Op = session.OpReplace
	for _, tc := range []struct {
		name string
		log  *log
		want string
	}{
		{"nothing", logOf(line{session.TypeTurnStart, `{"turn":1}`}), `{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"reasoning":0,"requests":0}`},
		{"the route is known once a request went out", logOf(header), `{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"reasoning":0,"requests":0,"provider":"p","model":"m1"}`},
		{"steps add up", logOf(header, answer(`"turn":1,"step":1`, used), answer(`"turn":1,"step":2`, used)), `{"input":20,"output":10,"cacheRead":6,"cacheWrite":4,"reasoning":2,"requests":2,"provider":"p","model":"m2","last":{"turn":1,"step":2,"input":10,"output":5,"cacheRead":3,"cacheWrite":2,"reasoning":1}}`},
		{"a retried step counts once", logOf(answer(`"turn":1,"step":1`, used), answer(`"turn":1,"step":1`, `,"usage":{"inputTokens":1,"outputTokens":1}`)), `{"input":1,"output":1,"cacheRead":0,"cacheWrite":0,"reasoning":0,"requests":1,"provider":"p","model":"m2","last":{"turn":1,"step":1,"input":1,"output":1}}`},
		{"no usage reported", logOf(answer(`"turn":2,"step":1`, ``)), `{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"reasoning":0,"requests":1,"provider":"p","model":"m2","last":{"turn":2,"step":1}}`},
		{"a rewritten message is no answer", replaced, `{"input":10,"output":5,"cacheRead":3,"cacheWrite":2,"reasoning":1,"requests":1,"provider":"p","model":"m2","last":{"turn":1,"step":1,"input":10,"output":5,"cacheRead":3,"cacheWrite":2,"reasoning":1}}`},
		{"a summary costs too, and is no step", logOf(answer(`"turn":1,"step":1`, used), line{session.TypeCompactionSummary, `{"compactionId":"","shadowedRange":{"start":0,"end":0},"shadowedSeqs":[0],"shadowedTokenCount":1,"provider":"q","model":"s"` + used + `}`}, answer(`"turn":1,"step":1`, `,"usage":{"inputTokens":1,"outputTokens":1}`)), `{"input":11,"output":6,"cacheRead":3,"cacheWrite":2,"reasoning":1,"requests":1,"provider":"p","model":"m2","last":{"turn":1,"step":1,"input":1,"output":1}}`},
		{"the sum stays a safe integer", logOf(answer(`"turn":1,"step":1`, `,"usage":{"inputTokens":9007199254740991,"outputTokens":0}`), answer(`"turn":1,"step":2`, used)), `{"input":9007199254740991,"output":5,"cacheRead":3,"cacheWrite":2,"reasoning":1,"requests":2,"provider":"p","model":"m2","last":{"turn":1,"step":2,"input":10,"output":5,"cacheRead":3,"cacheWrite":2,"reasoning":1}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := readJSON(t, tc.log, 0, session.CellUsage); got != tc.want {
				t.Errorf("usage %s,\nwant  %s", got, tc.want)
			}
		})
	}
}

func TestTitleUnit(t *testing.T) {
	const person = `{"kind":"user"}`
	title := func(s string) line { return line{session.TypeTitle, `{"title":"` + s + `"}`} }
	for _, tc := range []struct {
		name string
		log  *log
		want string
	}{
		{"nothing said", logOf(line{session.TypeTurnStart, `{"turn":1}`}), `{"title":""}`},
		{"first message", logOf(user(person, "one"), user(person, "two")), `{"title":"one","derived":true}`},
		{"on one line", logOf(user(person, `  a\n\n b\tc  `)), `{"title":"a b c","derived":true}`},
		{"blank is passed over", logOf(user(person, `  \n`), user(person, "two")), `{"title":"two","derived":true}`},
		{"context is nobody's wish", logOf(user(`{"kind":"plugin","plugin":"env","form":"snapshot"}`, "cwd"), user(`{"kind":"subagent-settled","form":"notice","senderSessionId":"c"}`, "done"), user(`{"kind":"coordinator","form":"relay","senderSessionId":"p"}`, "do it")), `{"title":"do it","derived":true}`},
		{"given", logOf(user(person, "one"), title("T")), `{"title":"T"}`},
		{"given first", logOf(title("T"), user(person, "one")), `{"title":"T"}`},
		{"given the same as derived", logOf(user(person, "one"), title("one")), `{"title":"one"}`},
		{"given again", logOf(title("T"), title("U")), `{"title":"U"}`},
		{"80 runes fit", logOf(user(person, strings.Repeat("é", 80))), `{"title":"` + strings.Repeat("é", 80) + `","derived":true}`},
		{"81 are cut", logOf(user(person, strings.Repeat("é", 81))), `{"title":"` + strings.Repeat("é", 79) + `…","derived":true}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := readJSON(t, tc.log, 0, session.CellTitle)
			if got != tc.want {
				t.Errorf("title %s, want %s", got, tc.want)
			}
			if n := utf8.RuneCountInString(got); n > projection.TitleRunes+len(`{"title":"","derived":true}`) {
				t.Errorf("title has %d runes", n)
			}
		})
	}
}

func TestStateUnit(t *testing.T) {
	const m = `{"id":"%","role":"user","content":[],"source":{"kind":"user"}}`
	insert := func(target, id, more string) line {
		return line{session.TypeInboxSpliced, `{"target":"` + target + `","start":0,"inserted":[` + strings.Replace(m, "%", id, 1) + `]` + more + `}`}
	}
	remove := func(target, more string) line {
		return line{session.TypeInboxSpliced, `{"target":"` + target + `","start":0,"removedCount":1,"inserted":[]` + more + `}`}
	}
	start, end := line{session.TypeTurnStart, `{"turn":1}`}, line{session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"completed"}}`}
	again, settled := line{session.TypeTurnStart, `{"turn":2}`}, line{session.TypeSettled, `{"epoch":1,"stopReason":"completed"}`}
	for _, tc := range []struct {
		name string
		log  *log
		want string
	}{
		{"fresh", logOf(line{session.TypeEndSeed, `{}`}), `{"state":"idle","turn":0,"queued":0}`},
		{"accepted", logOf(insert("next-turn", "a", ``)), `{"state":"queued","turn":0,"queued":1,"nextTurn":"w"}`},
		{"quiet input does not queue", logOf(insert("next-step", "a", `,"wake":false`)), `{"state":"idle","turn":0,"queued":1,"nextStep":"-"}`},
		{"open turn", logOf(insert("next-turn", "a", ``), start), `{"state":"running","turn":1,"queued":1,"nextTurn":"w","since":1}`},
		{"claimed", logOf(insert("next-turn", "a", ``), start, remove("next-turn", ``)), `{"state":"running","turn":1,"queued":0,"since":1}`},
		{"ended", logOf(insert("next-turn", "a", ``), start, remove("next-turn", ``), end), `{"state":"idle","turn":1,"reason":"completed","queued":0}`},
		{"parked behind a failed turn", logOf(insert("next-turn", "a", ``), start, line{session.TypeTurnEnd, `{"turn":1,"reason":{"kind":"error"}}`}), `{"state":"queued","turn":1,"reason":"error","queued":1,"nextTurn":"w"}`},
		{"settled", logOf(start, end, settled), `{"state":"idle","turn":1,"reason":"completed","queued":0,"epoch":1,"settled":"completed"}`},
		{"settled without a turn", logOf(settled), `{"state":"idle","turn":0,"queued":0,"epoch":1,"settled":"completed"}`},
		{"worked since", logOf(start, end, settled, again), `{"state":"running","turn":2,"reason":"completed","queued":0,"since":1,"epoch":1,"settled":"completed","unsettled":true}`},
		{"settled again", logOf(start, end, settled, again, line{session.TypeTurnEnd, `{"turn":2,"reason":{"kind":"completed"}}`}, line{session.TypeSettled, `{"epoch":2,"stopReason":"aborted","outputSeq":1}`}), `{"state":"idle","turn":2,"reason":"completed","queued":0,"epoch":2,"settled":"aborted"}`},
		{"discarded", logOf(insert("next-turn", "a", ``), remove("next-turn", `,"outcome":"canceled"`)), `{"state":"idle","turn":0,"queued":0}`},
		{"the waking one left, the quiet one stays", logOf(insert("next-step", "a", `,"wake":false`), insert("next-step", "b", ``), remove("next-step", ``)), `{"state":"idle","turn":0,"queued":1,"nextStep":"-"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := readJSON(t, tc.log, 0, session.CellState); got != tc.want {
				t.Errorf("state %s, want %s", got, tc.want)
			}
		})
	}
	if got := (projection.State{State: projection.Running}).Activity(false); got != projection.Interrupted {
		t.Errorf("a running session without an owner is %q", got)
	}
	if got := (projection.State{State: projection.Queued}).Activity(false); got != projection.Queued {
		t.Errorf("a queued session without an owner is %q", got)
	}
}

// design § 4, Settlement is derived: a listing tells from the checkpoint alone which
// epoch a child is in and how the last one ended. A cell without an epoch tells of the
// first one, also one that a build wrote which knew of none.
func TestStateOfEpochs(t *testing.T) {
	for _, tc := range []struct {
		cell string
		want projection.State // of the fields below
		ok   bool
	}{
		{`{"state":"idle","turn":0,"queued":0}`, projection.State{}, true},
		{`{"state":"idle","turn":1,"reason":"completed","queued":0}`, projection.State{Unsettled: true}, true},
		{`{"state":"idle","turn":1,"queued":0,"epoch":1,"settled":"error"}`, projection.State{Epoch: 1, Settled: "error"}, true},
		{`{"state":"running","turn":2,"queued":0,"epoch":1,"settled":"error","unsettled":true}`, projection.State{Epoch: 1, Settled: "error", Unsettled: true}, true},
		{`{"state":"idle","turn":1,"queued":0,"settled":"error"}`, projection.State{}, false},
		{`{"state":"idle","turn":1,"queued":0,"unsettled":true}`, projection.State{}, false},
		{`{"state":"idle","turn":1,"queued":0,"epoch":-1}`, projection.State{}, false},
		{`{"state":"idle","turn":1,"queued":0,"epoch":1,"settled":2}`, projection.State{}, false},
	} {
		u := projection.StateUnit()
		rec := session.Record{Header: session.Header{ID: "s"}, Head: 9, Cells: []session.Checkpoint{{Key: u.Key, Version: u.Version, Seq: 8, Value: []byte(tc.cell)}}}
		got, ok := projection.StateOf(&rec)
		if ok != tc.ok || ok && (got.Epoch != tc.want.Epoch || got.Settled != tc.want.Settled || got.Unsettled != tc.want.Unsettled) {
			t.Errorf("%s: %+v, %v", tc.cell, got, ok)
		}
	}
}
