//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// storedLog is one session as it lies in the store.
type storedLog struct {
	session.Record
	events []session.Event
	lines  []string
}

// child says that the session was delegated.
func (l *storedLog) child() bool { return l.Header.ParentSession != "" }

// types are the types of the events, in order.
func (l *storedLog) types() []string {
	var types []string
	for i := range l.events {
		types = append(types, string(l.events[i].Type))
	}
	return types
}

// payloads decodes the events of one type.
func payloads[P session.Payload](t *testing.T, l *storedLog) []P {
	t.Helper()
	reg, err := session.NewRegistry(t.Context(), session.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var all []P
	for _, e := range l.events {
		p, err := reg.PayloadOf(e)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := p.(P); ok {
			all = append(all, p)
		}
	}
	return all
}

// said returns how often a text entered the conversation as a message of a person
// or a parent.
func said(t *testing.T, l *storedLog, text string) int {
	t.Helper()
	n := 0
	for _, m := range payloads[*session.UserMessage](t, l) {
		if message.JoinText(m.Message.Content) == text {
			n++
		}
	}
	return n
}

// ends returns the kinds of the turn ends.
func ends(t *testing.T, l *storedLog) []string {
	t.Helper()
	var kinds []string
	for _, e := range payloads[*session.TurnEnd](t, l) {
		kinds = append(kinds, string(e.Kind))
	}
	return kinds
}

// logs reads every stored session, oldest first; none where there is no store.
func (w *world) logs() []*storedLog {
	w.t.Helper()
	ctx := w.t.Context()
	s, err := sqlite.OpenReadOnly(ctx, filepath.Join(w.home, "offshoot.db"), sqlite.Options{})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.WithoutCancel(ctx)); err != nil {
			w.t.Error(err)
		}
	}()
	list, err := s.List(ctx, session.Filter{}, session.Page{})
	if err != nil {
		w.t.Fatal(err)
	}
	var logs []*storedLog
	for _, rec := range list.Records {
		rec, events, err := s.Inspect(ctx, rec.Header.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		l := &storedLog{Record: rec}
		for e, err := range events {
			if err != nil {
				w.t.Fatal(err)
			}
			l.events = append(l.events, e)
			l.lines = append(l.lines, string(e.AppendEnvelope(nil)))
		}
		logs = append(logs, l)
	}
	return logs
}

// root returns the only root session and its children.
func (w *world) tree() (root *storedLog, children []*storedLog) {
	w.t.Helper()
	for _, l := range w.logs() {
		switch {
		case l.child():
			children = append(children, l)
		case root != nil:
			w.t.Fatalf("a second root: %s and %s", root.Header.ID, l.Header.ID)
		default:
			root = l
		}
	}
	if root == nil {
		w.t.Fatal("no root session is stored")
	}
	return root, children
}

// here runs a command that only reads, in this process: it is asked so often that
// another process each time would take too long.
func (w *world) here(args ...string) ended {
	w.t.Helper()
	var out, errOut bytes.Buffer
	a := &app{
		stdin: strings.NewReader(""), stdout: &out, stderr: &errOut,
		env: config.MapEnviron(w.env), getwd: func() (string, error) { return w.cwd, nil }, now: time.Now,
		build: func() (*debug.BuildInfo, bool) { return nil, false },
	}
	code := a.execute(w.t.Context(), args)
	return ended{args: args, code: code, stdout: out.String(), stderr: errOut.String()}
}

// verify has the command check everything that is stored.
func (w *world) verify() {
	w.t.Helper()
	if e := w.here("sessions", "verify"); e.code != 0 {
		w.t.Errorf("%v", e)
	}
}

// followUp proves that the log is legal for the next request: a strict endpoint
// takes it.
func (w *world) followUp(id session.ID) {
	w.t.Helper()
	e := w.run("resume", string(id), "[[fake:reply still here]]", "--quiet")
	if e.code != 0 || e.stdout != "still here\n" {
		w.t.Errorf("follow-up: %v", e)
	}
	w.verify()
}

// grew checks that every log of before is the beginning of the same log now, byte
// for byte: nothing that was stored is ever lost or changed.
func (w *world) grew(before []*storedLog) []*storedLog {
	w.t.Helper()
	after := w.logs()
	for _, old := range before {
		i := slices.IndexFunc(after, func(l *storedLog) bool { return l.Header.ID == old.Header.ID })
		switch {
		case i < 0:
			w.t.Errorf("session %s is gone", old.Header.ID)
		case len(after[i].lines) < len(old.lines) || !slices.Equal(after[i].lines[:len(old.lines)], old.lines):
			w.t.Errorf("session %s changed:\n%s\nwas\n%s", old.Header.ID, strings.Join(after[i].lines, "\n"), strings.Join(old.lines, "\n"))
		}
	}
	return after
}
