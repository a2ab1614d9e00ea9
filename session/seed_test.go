package session_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/offshoot-dev/offshoot/session"
)

// core S20, S22, S23, S7.
func TestHeader_S20(t *testing.T) {
	full := session.Header{
		ID: "a", CreatedAt: 5, Cwd: "/x", ParentSession: "p", SeedLength: 3, Origin: session.OriginSubagent, DelegationDepth: 2, AgentPreset: "reader",
	}
	const text = `{"version":0,"id":"a","createdAt":5,"cwd":"/x","parentSession":"p","seedLength":3,"origin":"subagent","delegationDepth":2,"agentPreset":"reader"}`
	if got := string(full.AppendJSON(nil)); got != text {
		t.Errorf("written as %s", got)
	}
	if got, err := session.ParseHeader([]byte(text)); err != nil || got != full {
		t.Errorf("read as %+v, %v", got, err)
	}
	for _, tc := range []struct {
		name, text  string
		unsupported string // what the error says; "" for a corrupt header
		ok          bool
	}{
		{"least", `{"version":0,"id":"a","createdAt":0}`, "", true},
		{"absolute elsewhere", `{"version":0,"id":"a","createdAt":0,"cwd":"C:\\x"}`, "", true},
		{"S7 newer", `{"version":1,"id":"a","createdAt":0}`, "newer build", false},
		{"S7 newer, whatever else", `{"id":"a","kind":{"x":1},"createdAt":"soon","version":1}`, "newer build", false},
		{"S7 older", `{"version":-1,"id":"a","createdAt":0}`, "no migration path", false},
		{"no version", `{"id":"a","createdAt":0}`, "", false},
		{"no id", `{"version":0,"createdAt":0}`, "", false},
		{"empty id", `{"version":0,"id":"","createdAt":0}`, "", false},
		{"no createdAt", `{"version":0,"id":"a"}`, "", false},
		{"negative createdAt", `{"version":0,"id":"a","createdAt":-1}`, "", false},
		{"relative cwd", `{"version":0,"id":"a","createdAt":0,"cwd":"x"}`, "", false},
		{"another origin", `{"version":0,"id":"a","createdAt":0,"origin":"user"}`, "", false},
		{"S23 depth beyond safe integers", `{"version":0,"id":"a","createdAt":0,"delegationDepth":9007199254740992}`, "", false},
		{"S23 negative depth", `{"version":0,"id":"a","createdAt":0,"delegationDepth":-1}`, "", false},
		{"cwd of two digits", `{"version":0,"id":"a","createdAt":0,"cwd":12}`, "", false},
		{"an empty list as parent", `{"version":0,"id":"a","createdAt":0,"parentSession":[]}`, "", false},
		{"an empty object as origin", `{"version":0,"id":"a","createdAt":0,"origin":{}}`, "", false},
		{"another key", `{"version":0,"id":"a","createdAt":0,"ID":"b"}`, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := session.ParseHeader([]byte(tc.text))
			var unsupported *session.UnsupportedError
			var corrupt *session.CorruptError
			switch {
			case tc.ok:
				if err != nil {
					t.Error(err)
				}
			case tc.unsupported != "":
				if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), tc.unsupported) {
					t.Errorf("error %v", err)
				}
			case !errors.As(err, &corrupt):
				t.Errorf("error %v", err)
			}
		})
	}
	reg := newRegistry(t, session.Config{})
	for name, n := range map[string]session.New{
		"relative cwd": {Cwd: "x"}, "origin": {Origin: "odd"}, "depth": {DelegationDepth: -1},
		"invalid UTF-8": {AgentPreset: "\xff"}, "invalid lineage": {ParentSession: "\xff"},
	} {
		if _, err := reg.Prepare(t.Context(), n); err == nil {
			t.Errorf("%s: prepared", name)
		}
	}
	if len(reg.List()) != 0 {
		t.Error("a failed preparation is listed")
	}
}

// core S31: minted ids are unique, lower case, and sort by time of creation.
func TestNewID_S31(t *testing.T) {
	last := session.ID("")
	for range 1000 {
		id := session.NewID()
		if id <= last || strings.ToLower(string(id)) != string(id) {
			t.Fatalf("%q follows %q", id, last)
		}
		last = id
	}
}

// core S24, S26, S33: what a child inherits through a Prefix.
func TestPrefix_S33(t *testing.T) {
	reg := newRegistry(t, session.Config{})
	parent := prepare(t, reg, session.New{ID: "parent"})
	if parent.Prefix() != nil {
		t.Fatal("a session without a completed turn has a prefix")
	}
	mustAppend(t, parent, script(t, "u T1 S1.1 h x a1.1 s1.1")...)
	if parent.Prefix() != nil {
		t.Fatal("a session with only an open turn has a prefix")
	}
	mustAppend(t, parent, &session.Title{Title: "kept"}, &session.ApprovalPolicy{Policy: "never"}, &session.SandboxMode{Mode: "ro"})
	mustAppend(t, parent, script(t, "t1")...)
	// Behind the cut: an open turn with a dangling call, queued work, newer folds.
	mustAppend(t, parent, &session.Title{Title: "newer"}, &session.ApprovalPolicy{Policy: "ask"})
	mustAppend(t, parent, script(t, "i u T2 S2.1 a2.1:c c2.1:c")...)

	p := parent.Prefix()
	if p.Len() != 11 || p.Owner() != "parent" {
		t.Fatalf("prefix of %d events of %q", p.Len(), p.Owner())
	}
	child := prepare(t, reg, session.New{ID: "child", ParentSession: "parent", Root: "parent", Seed: &session.Seed{Prefix: p}})
	if h := child.Header(); h.SeedLength != 11 || child.FirstLive() != 12 || child.Head() != 12 {
		t.Errorf("S24: seedLength %d, firstLive %d, head %d", h.SeedLength, child.FirstLive(), child.Head())
	}
	if e, _ := child.Event(11); e.Type != session.TypeEndSeed {
		t.Errorf("S26: the seed ends in %s", e.Type)
	}
	if m := child.Meta(); m.Root != "parent" || m.Prefix != (session.PrefixRef{ID: "parent", Len: 11}) {
		t.Errorf("meta %+v", m)
	}
	if approval, sandbox := child.Policies(); approval != "never" || sandbox != "ro" || child.Title() != "kept" {
		t.Errorf("inherited policies %q, %q, title %q", approval, sandbox, child.Title())
	}
	if child.RequestHeader() != parent.RequestHeader() || child.RequestContext() == nil {
		t.Error("the request header is not inherited")
	}
	if n := len(child.Inbox(session.NextTurn)); n != 0 {
		t.Errorf("L14: the child inherited %d queued messages", n)
	}
	if turn, open, _ := child.LastTurn(); turn != 1 || open {
		t.Errorf("DES-25: last turn %d, open %v", turn, open)
	}
	mustAppend(t, child, script(t, "T2 S2.1 a2.1 s2.1 t2")...)
	if !strings.HasPrefix(export(child), export(parent)[:strings.Index(export(parent), `{"type":"session/title","seq":11`)]) {
		t.Error("the child's log does not begin with the parent's")
	}

	// A cut of the child names the child; one within its own prefix names its owner.
	if q := child.Prefix(); q.Owner() != "child" || q.Len() != 17 {
		t.Errorf("prefix of %d events of %q", q.Len(), q.Owner())
	}
	fresh := prepare(t, reg, session.New{ID: "fresh", Seed: &session.Seed{Prefix: p}})
	if q := fresh.Prefix(); q.Owner() != "parent" || q.Len() != 11 {
		t.Errorf("prefix of %d events of %q", q.Len(), q.Owner())
	}
	grand := prepare(t, reg, session.New{ID: "grand", Seed: &session.Seed{Prefix: child.Prefix()}})
	mustAppend(t, grand, script(t, "T3 t3")...)
	got := export(grand)
	if !strings.HasPrefix(got, export(child)) || len(rawEvents(t, grand)) != 20 {
		t.Errorf("the grandchild's log:\n%s", got)
	}
	for _, s := range []*session.Session{parent, child, grand} {
		verify(t, s)
	}
}

// core S24–S26, amendments P20, P21; seam FORK-13: raw events as a seed.
func TestRawSeed_S25(t *testing.T) {
	reg := newRegistry(t, session.Config{})
	source := newSession(t)
	mustAppend(t, source, script(t, "i u T1 S1.1 a1.1:c c1.1:c r1.1:c s1.1 t1")...)
	events := rawEvents(t, source)
	seeded := func(events []session.Event) (*session.Session, error) {
		return reg.Prepare(t.Context(), session.New{Seed: &session.Seed{Events: events}})
	}
	want := export(source)

	s, err := seeded(events)
	if err != nil {
		t.Fatal(err)
	}
	if s.Header().SeedLength != 9 || s.FirstLive() != 10 || len(s.Inbox(session.NextTurn)) != 0 {
		t.Errorf("seedLength %d, firstLive %d, %d queued", s.Header().SeedLength, s.FirstLive(), len(s.Inbox(session.NextTurn)))
	}
	if got := export(s); !strings.HasPrefix(got, want) || !strings.Contains(got, `"session/end-seed","seq":9`) {
		t.Errorf("the seeded log:\n%s", got)
	}
	if s.Meta().Prefix.Len != 0 {
		t.Error("a raw seed names a prefix")
	}

	// P21: detached from the slice and from the bytes.
	for i := range events {
		data := events[i].Data()
		for j := range data {
			data[j] = 'x'
		}
		if cited := events[i].Sources(); len(cited) > 0 {
			cited[0] = 99
		}
		events[i] = session.Event{}
	}
	if got := export(s); !strings.HasPrefix(got, want) {
		t.Error("the seeded log changed with the caller's events")
	}

	// S26: an empty seed ends in a marker too, one that ends in a marker gets no
	// other, and no seed gets none.
	if s, err := seeded(nil); err != nil || s.Head() != 1 || s.Header().SeedLength != 0 || s.FirstLive() != 1 {
		t.Errorf("empty seed: head %d, %v", s.Head(), err)
	}
	mustAppend(t, source, &session.EndSeed{})
	if s, err := seeded(rawEvents(t, source)); err != nil || s.Head() != 10 || s.Header().SeedLength != 10 {
		t.Errorf("marked seed: head %d, %v", s.Head(), err)
	}
	if s := prepare(t, reg, session.New{}); s.Head() != 0 {
		t.Errorf("no seed: head %d", s.Head())
	}

	// What is written with line breaks stays one line.
	e := session.RawEvent(session.Event{Type: session.TypeTitle}, []byte("{\n \"title\": \"a b\"\n}"))
	if s, err := seeded([]session.Event{e}); err != nil || !strings.HasPrefix(export(s), `{"type":"session/title","seq":0,"time":0,"data":{"title":"a b"}}`+"\n") {
		t.Errorf("indented payload: %v", err)
	}

	base := rawEvents(t, source)
	raw := func(i int, change func(*session.Event), data string) []session.Event {
		list := slices.Clone(base)
		e := list[i]
		if change != nil {
			change(&e)
		}
		if data == "" {
			data = string(e.Data())
		}
		list[i] = session.RawEvent(e, []byte(data))
		return list
	}
	live, _ := source.Event(2)
	live.Type = session.TypeTurnEnd
	for name, bad := range map[string][]session.Event{
		"P20 inside a turn":      base[:7],
		"P20 inside a step":      base[:6],
		"not from 0":             base[1:],
		"a gap":                  slices.Delete(slices.Clone(base), 1, 2),
		"not JSON":               raw(1, nil, `{`),
		"lossy JSON":             raw(1, nil, `{"id":"m","role":"user","content":[],"source":{"kind":"user","summary":"\ud800"}}`),
		"a malformed payload":    raw(2, nil, `{"turn":"1"}`),
		"no payload":             raw(2, func(e *session.Event) { e.Type = "" }, `{}`),
		"an unknown type":        raw(2, func(e *session.Event) { e.Type = "odd" }, ``),
		"a surface op too few":   raw(1, func(e *session.Event) { *e = e.Surface(session.SurfaceOp{}, nil) }, ``),
		"a surface op too many":  raw(2, func(e *session.Event) { e.Op = session.OpAppend }, ``),
		"an unsafe time":         raw(2, func(e *session.Event) { e.Time = 1 << 53 }, ``),
		"a live event relabeled": {base[0], base[1], live},
	} {
		if _, err := seeded(bad); err == nil {
			t.Errorf("%s: the seed was taken", name)
		} else if !strings.Contains(err.Error(), "seed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var broken *session.InvariantError
	if _, err := seeded(base[:7]); !errors.As(err, &broken) || broken.Rule != "S25" || broken.Seq != 7 {
		t.Errorf("P20: %v", err)
	}
}

// design § 4, A seed is a Prefix: nothing of a prefix is copied or changed by its heirs.
func TestHeirsDoNotTouchThePrefix(t *testing.T) {
	reg := newRegistry(t, session.Config{})
	parent := prepare(t, reg, session.New{ID: "parent"})
	mustAppend(t, parent, script(t, "u T1 S1.1 a1.1 s1.1 t1")...)
	want := export(parent)
	done := make(chan error)
	for i := range 4 {
		p := parent.Prefix()
		go func() {
			s, err := reg.Prepare(t.Context(), session.New{Seed: &session.Seed{Prefix: p}})
			for n := 0; err == nil && n < 50; n++ {
				_, err = s.Append(drafts(say(fmt.Sprint(i, n), "x"))...)
			}
			if err == nil {
				_, err = s.Append(session.Draft{Payload: say("r", "r"), Op: session.SurfaceOp{Kind: session.OpReplace, Start: 0, End: 0}, Sources: []int64{0}})
			}
			done <- err
		}()
	}
	for n := range 50 {
		mustAppend(t, parent, say(fmt.Sprint("p", n), "x"))
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if !strings.HasPrefix(export(parent), want) {
		t.Error("the parent's log changed")
	}
	msgs, gen := parent.History()
	if len(msgs) != 51 || gen != 0 || msgs[0].ID != "m0" {
		t.Errorf("the parent's history has %d messages, generation %d", len(msgs), gen)
	}
}
