package jsonl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
	"github.com/offshoot-dev/offshoot/session/projection"
)

// A tree in two files, children first: it is stored whole, with what listings
// show, each log as it was with the mark behind it, and what is exported of that
// imports elsewhere to the same bytes.
func TestImport(t *testing.T) {
	s := newShop(t)
	root, kid, grandkid := whole("root", "", 0, 2), whole("kid", "root", 1, 1), whole("grandkid", "kid", 2, 1)
	other := file(head("other", "", 0), turn) + end[:30]
	logs, err := s.load(text("one", grandkid+kid+other), text("two", root))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range logs {
		line := fmt.Sprintf("%s:%d %s of %s, %d events, %d turns", l.Name, l.Line, l.Header.ID, l.Root, l.Report.Events, l.Report.Turns)
		if l.Report.OpenTurn != 0 {
			line += fmt.Sprintf(", turn %d open", l.Report.OpenTurn)
		}
		if l.Torn != nil {
			line += fmt.Sprintf(", torn at %d", l.Torn.Line)
		}
		got = append(got, line)
	}
	want := []string{
		"one:21 other of other, 1 events, 1 turns, turn 1 open, torn at 23",
		"two:1 root of root, 16 events, 2 turns", "one:11 kid of root, 9 events, 1 turns", "one:1 grandkid of root, 9 events, 1 turns",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("imported (-want +got):\n%s", diff)
	}
	if got := s.ids(); got != "other root kid grandkid" {
		t.Errorf("stored: %s", got)
	}
	for id, root := range map[session.ID]session.ID{"root": "root", "kid": "root", "grandkid": "root", "other": "other"} {
		rec := s.record(id)
		title, ok1 := projection.TitleOf(&rec)
		usage, ok2 := projection.UsageOf(&rec)
		state, ok3 := projection.StateOf(&rec)
		if rec.Meta.Root != root || !ok1 || !ok2 || !ok3 || !state.Imported {
			t.Errorf("%s: root %s, cells %v %v %v", id, rec.Meta.Root, ok1, ok2, ok3)
		}
		if id == "root" && (title.Text != "ask 1" || usage.Requests != 2 || usage.Tokens.Total() != 14 || state.State != projection.Idle || state.Turn != 2) {
			t.Errorf("root is listed as %+v, %+v, %+v", title, usage, state)
		}
		if id == "other" && state.Activity(false) != projection.Interrupted {
			t.Errorf("other is %+v", state)
		}
	}
	// The originals, and the mark behind them.
	for id, original := range map[session.ID]string{
		"root": root, "kid": kid, "grandkid": grandkid, "other": file(head("other", "", 0), turn),
	} {
		want := canonical(t, original) + fmt.Sprintf(mark, strings.Count(original, "\n")-1) + "\n"
		if diff := cmp.Diff(want, s.export(id)); diff != "" {
			t.Errorf("%s is exported as (-want +got):\n%s", id, diff)
		}
	}
	// Elsewhere.
	all := s.export("grandkid") + s.export("kid") + s.export("root") + s.export("other")
	there := newShop(t)
	if _, err := there.load(text("all", all)); err != nil {
		t.Fatal(err)
	}
	again := there.export("grandkid") + there.export("kid") + there.export("root") + there.export("other")
	if diff := cmp.Diff(all, again); diff != "" {
		t.Errorf("exported again (-first +second):\n%s", diff)
	}
}

// canonical writes a log as this product writes it.
func canonical(t *testing.T, text string) string {
	t.Helper()
	logs, err := read(text)
	if err != nil || len(logs) != 1 {
		t.Fatal(err)
	}
	return file(append([]string{string(jsonl.AppendHeader(nil, &logs[0].Header))}, logs[0].Events...)...)
}

// What is refused is refused with nothing stored, and the error is of its kind and
// names file and line.
func TestImportRefuses_D11(t *testing.T) {
	good := whole("good", "", 0, 1)
	broken := func(line string) string { return file(head("bad", "", 0), turn, line, end) }
	for _, tt := range []struct {
		name, text string
		line       int
		want       string
		kind       any // pointer to an error of the kind, or a sentinel
	}{
		{"stored already", whole("here", "", 0, 1), 1, "session here: session exists already", session.ErrExists},
		{"the same twice", whole("good", "", 0, 1), 1, "(also good:1)", jsonl.ErrTwice},
		{"its parent is stored", whole("bad", "here", 1, 1), 1, "parent here", jsonl.ErrParentStored},
		{"its own parent", whole("bad", "bad", 1, 1), 1, "delegation depth 1 is not below its parent's, 1", new(*session.CorruptError)},
		{"parents in a circle", file(`{"type":"session","version":0,"id":"a","createdAt":1,"parentSession":"b","delegationDepth":0}`) +
			file(`{"type":"session","version":0,"id":"b","createdAt":1,"parentSession":"a","delegationDepth":0}`), 1, "round in a circle", new(*session.CorruptError)},
		{"it does not say which child it is", file(append([]string{head("bad", "good", 1)}, dialogue(1, 10)...)...), 1, "no descriptor of its own; without its parent it can be imported", jsonl.ErrNoIdentity},
		{"not below its parent", whole("bad", "good", 0, 1), 1, "delegation depth 0", new(*session.CorruptError)},
		{"an unknown type", broken(`{"type":"x/y","seq":1,"time":1,"data":{}}`), 3, `event type "x/y" is unknown`, new(*session.UnsupportedError)},
		{"an unknown member", broken(`{"type":"step/start","seq":1,"time":1,"data":{"turn":1,"step":1,"note":"n"}}`), 3, `unknown key "note"`, new(*session.UnsupportedError)},
		{"a payload that is none", broken(`{"type":"step/start","seq":1,"time":1,"data":{"turn":1}}`), 3, `"step" is missing`, new(*session.CorruptError)},
		{"a broken rule", broken(`{"type":"turn/start","seq":1,"time":1,"data":{"turn":2}}`), 3, "turn 1 is still open", new(*session.InvariantError)},
		{"a splice of nothing", broken(`{"type":"agent/inbox/spliced","seq":1,"time":1,"data":{"target":"next-turn","start":0,"removedCount":1,"inserted":[]}}`), 3, "breaks L14", new(*session.InvariantError)},
		{"a seed that is not there", file(`{"type":"session","version":0,"id":"bad","createdAt":1,"seedLength":5,"delegationDepth":0}`, turn, end), 3, "seedLength is 5", new(*session.CorruptError)},
		{"an unreadable line", broken("{}"), 3, "event has no type", new(*session.CorruptError)},
		{"S7 a newer format", file(`{"type":"session","version":1,"id":"bad","createdAt":1,"delegationDepth":0}`, `what ever`), 1, "newer build", new(*session.UnsupportedError)},
		{"nothing", "", 0, "no header", new(*session.CorruptError)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newShop(t)
			if _, err := s.load(text("here", whole("here", "", 0, 1))); err != nil {
				t.Fatal(err)
			}
			writes := s.store.writes
			_, err := s.load(text("good", good), text("bad", tt.text))
			var where *jsonl.Error
			if !errors.As(err, &where) || where.Name != "bad" || where.Line != tt.line || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want bad:%d and %q", err, tt.line, tt.want)
			}
			if sentinel, ok := tt.kind.(error); ok && !errors.Is(err, sentinel) || !ok && !errors.As(err, tt.kind) {
				t.Errorf("%v is not of the kind %T", err, tt.kind)
			}
			if s.store.writes != writes || s.ids() != "here" {
				t.Errorf("%d writes, stored: %s", s.store.writes-writes, s.ids())
			}
		})
	}
}

// A parent that is neither stored nor in the import is lineage: the session is the
// root of its own tree, and stays it when that parent comes later.
func TestImportOrphan(t *testing.T) {
	s := newShop(t)
	if _, err := s.load(text("kid", whole("kid", "p", 3, 1))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load(text("p", whole("p", "", 0, 1))); err != nil {
		t.Fatal(err)
	}
	rec := s.record("kid")
	if rec.Header.ParentSession != "p" || rec.Meta.Root != "kid" {
		t.Errorf("the orphan is %+v", rec)
	}
	for _, f := range []session.Filter{{Parent: "p"}, {Root: "p"}, {Top: true}} {
		l, err := s.store.List(t.Context(), f, session.Page{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.Records {
			if orphan := r.Header.ID == "kid"; orphan != f.Top && r.Header.ID != "p" {
				t.Errorf("%+v lists %s", f, r.Header.ID)
			}
		}
	}
	if !strings.Contains(s.export("kid"), `"parentSession":"p"`) {
		t.Error("the lineage is not exported")
	}
}

// large is a log that takes several writes.
func large(id, parent string, depth int) string {
	return chat(id, parent, depth, 6, 250<<10)
}

// Whatever write fails: nothing of the import is left. Meanwhile nobody can open what
// is stored of it.
func TestImportFails(t *testing.T) {
	boom := errors.New("disk full")
	for at := 0; ; at++ {
		s := newShop(t)
		s.store.failAt, s.store.fail = at, boom
		s.store.onCreate = func(id session.ID) {
			if id != "kid" {
				return
			}
			if _, err := s.store.Open(t.Context(), "root"); !errors.Is(err, session.ErrExists) {
				t.Errorf("the root of a tree that is being stored can be opened: %v", err)
			}
			if _, err := s.reg.PrepareStored(expired(t), "root"); !errors.Is(err, context.Canceled) {
				t.Errorf("… and prepared: %v", err)
			}
		}
		_, err := s.load(text("f", large("root", "", 0)+large("kid", "root", 1)+whole("other", "", 0, 1)))
		if err == nil {
			if at < 6 || s.ids() != "other root kid" {
				t.Fatalf("%d writes, stored: %s", at, s.ids())
			}
			return
		}
		var where *jsonl.Error
		if !errors.Is(err, boom) || !errors.As(err, &where) || where.Name != "f" || s.ids() != "" {
			t.Fatalf("write %d failed: %v; stored: %s", at, err, s.ids())
		}
		// It can be done again at once.
		if _, err := s.load(text("f", large("root", "", 0)+large("kid", "root", 1))); err != nil || s.ids() != "root kid" {
			t.Fatalf("again: %v; stored: %s", err, s.ids())
		}
	}
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// An import that was cut short and could not be taken back, as one whose process
// died: nothing opens what is left, it says what it is, and can be deleted.
func TestImportIncomplete(t *testing.T) {
	s := newShop(t)
	boom := errors.New("disk full")
	s.store.failAt, s.store.fail, s.store.failDelete = 2, boom, errors.New("no more")
	_, err := s.load(text("f", large("root", "", 0)))
	var undo *jsonl.UndoError
	if !errors.As(err, &undo) || !errors.Is(err, boom) || !errors.Is(err, s.store.failDelete) || fmt.Sprint(undo.Left) != "[root]" {
		t.Fatalf("%v", err)
	}
	if _, err := s.reg.PrepareStored(t.Context(), "root"); !errors.Is(err, session.ErrIncomplete) {
		t.Errorf("half a log can be opened: %v", err)
	}
	rec, events, err := s.store.Inspect(t.Context(), "root")
	if err != nil {
		t.Fatal(err)
	}
	var corrupt *session.CorruptError
	if _, err := s.reg.Verify(rec, events); !errors.As(err, &corrupt) || !errors.Is(err, session.ErrIncomplete) {
		t.Errorf("half a log is verified: %v", err)
	}
	s.store.failDelete = nil
	if err := s.store.Delete(t.Context(), "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load(text("f", large("root", "", 0))); err != nil {
		t.Fatal(err)
	}
	opened, err := s.reg.PrepareStored(t.Context(), "root")
	if err != nil {
		t.Fatalf("a whole log cannot be opened: %v", err)
	}
	if err := s.reg.Abandon(t.Context(), opened); err != nil {
		t.Error(err)
	}
}

// A file that is another one when it is read for the second time is not stored.
func TestImportChanged(t *testing.T) {
	first := file(append([]string{head("s", "", 0)}, dialogue(2, 10)...)...)
	for name, second := range map[string]string{
		"another header": strings.Replace(first, `"cwd":"/p"`, `"cwd":"/q"`, 1),
		"fewer events":   whole("s", "", 0, 1),
		"more events":    whole("s", "", 0, 3),
		"a broken rule":  strings.Replace(first, `"turn":2`, `"turn":3`, 1),
		"nothing":        "",
	} {
		s := newShop(t)
		opens := 0
		src := jsonl.Source{Name: "f", Open: func() (io.ReadSeekCloser, error) {
			if opens++; opens > 1 {
				return closable{strings.NewReader(second)}, nil
			}
			return closable{strings.NewReader(first)}, nil
		}}
		if _, err := s.load(src); err == nil || s.ids() != "" {
			t.Errorf("%s: %v, stored: %s", name, err, s.ids())
		}
	}
}

// A cancelled import stores nothing, wherever the cancel meets it.
func TestImportCancelled(t *testing.T) {
	s := newShop(t)
	cause := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	s.store.onCreate = func(session.ID) { cancel(cause) }
	for range 2 {
		if _, err := jsonl.Import(ctx, s.reg, []jsonl.Source{text("f", large("s", "", 0))}); !errors.Is(err, cause) || s.ids() != "" {
			t.Errorf("%v, stored: %s", err, s.ids())
		}
	}
}

// Without a store there is nothing to import into.
func TestImportWithoutStore(t *testing.T) {
	reg, err := session.NewRegistry(t.Context(), session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jsonl.Import(t.Context(), reg, []jsonl.Source{text("f", whole("s", "", 0, 1))}); err == nil {
		t.Error("imported into nothing")
	}
}

// core S24, S32; design § 4, A seed is a Prefix: what a session shares with another is in
// its export, and stands in its own log where it is imported, inherited as before.
func TestExportPrefix(t *testing.T) {
	s := newShop(t)
	store := func(n session.New, drafts ...session.Draft) *session.Session {
		t.Helper()
		made, err := s.reg.Prepare(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := made.Append(drafts...); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(made.Flush(t.Context()), s.reg.Abandon(t.Context(), made)); err != nil {
			t.Fatal(err)
		}
		return made
	}
	ask := message.Message{ID: "q", Role: message.RoleUser, Content: []message.Block{message.Text("later")}, Source: message.UserSource()}
	turn := []session.Draft{
		{Payload: &session.InboxSpliced{Target: session.NextTurn, Inserted: []message.Message{ask}}},
		{Payload: &session.TurnStart{Turn: 1}}, {Payload: &session.TurnEnd{Turn: 1, Kind: session.EndCompleted}}, {Payload: &session.Title{Title: "Mine"}},
	}
	parent := store(session.New{ID: "parent", Cwd: "/p"}, turn...)
	child, err := session.NewDescriptor(session.Descriptor{Mode: session.ModeOneShot, Provider: "fork"})
	if err != nil {
		t.Fatal(err)
	}
	store(session.New{ID: "kid", ParentSession: "parent", Root: "parent", Origin: session.OriginSubagent, DelegationDepth: 1, Seed: &session.Seed{Prefix: parent.Prefix()}},
		session.Draft{Payload: child}, session.Draft{Payload: &session.TurnStart{Turn: 2}}, session.Draft{Payload: &session.TurnEnd{Turn: 2, Kind: session.EndCompleted}})
	if rec := s.record("kid"); rec.Meta.Prefix.Len != 3 {
		t.Fatalf("the child shares %+v", rec.Meta.Prefix)
	}
	exported := s.export("parent") + s.export("kid")
	there := newShop(t)
	logs, err := there.load(text("f", exported))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(exported, "\n"+`{"type":"session","version":0,"id":"kid"`, "\n"+fmt.Sprintf(mark, 4)+"\n"+`{"type":"session","version":0,"id":"kid"`, 1) + fmt.Sprintf(mark, 7) + "\n"
	if diff := cmp.Diff(want, there.export("parent")+there.export("kid")); diff != "" {
		t.Errorf("there (-want +got):\n%s", diff)
	}
	rec := there.record("kid")
	if rec.Meta.Prefix != (session.PrefixRef{}) || rec.Header.SeedLength != 3 || logs[1].Report.Queued != 0 || logs[0].Report.Queued != 1 {
		t.Errorf("the child is %+v, %+v", rec.Meta, logs[1].Report)
	}
	if title, _ := projection.TitleOf(&rec); title.Text != "" {
		t.Errorf("the child bears its parent's title %q", title.Text)
	}
}
