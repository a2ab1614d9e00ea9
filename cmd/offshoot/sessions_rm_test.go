package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

// stored lists the ids in a home's store.
func stored(t *testing.T, h *home) []string {
	t.Helper()
	store, err := sqlite.OpenReadOnly(t.Context(), filepath.Join(h.dir, "offshoot.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := store.List(t.Context(), session.Filter{}, session.Page{})
	if err = errors.Join(err, store.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, rec := range l.Records {
		ids = append(ids, string(rec.Header.ID))
	}
	slices.Sort(ids)
	return ids
}

// What rm refuses, with the store untouched, and what it removes.
func TestRemove(t *testing.T) {
	all := []string{rootID, childID, otherID}
	for _, c := range []struct {
		args string
		code int
		says string // on stdout when the code is 0, else on stderr
		left []string
	}{
		{"", 2, "an argument is missing", all},
		{"nope --yes", 1, `session "nope": session not found`, all},
		{"018b --yes", 1, "ambiguous", all},
		{otherID, 2, "--yes", all},
		{rootID + " --tree", 2, "--yes", all},
		{rootID + " --yes", 2, "session " + rootID + " has 1 session below it; remove them with it by --tree", all},
		{"018c --yes", 0, "removed session " + otherID + "\n", []string{rootID, childID}},
		{childID + " --yes", 0, "removed session " + childID + "\n", []string{rootID, otherID}},
		{childID + " --yes --tree", 0, "removed session " + childID + "\n", []string{rootID, otherID}},
		{rootID + " --yes --tree", 0, "removed session " + rootID + " and the 1 session below it\n", []string{otherID}},
	} {
		t.Run(c.args, func(t *testing.T) {
			h := newHome(t)
			library(t, h)
			before := snapshot(t, h.dir)
			o := h.run(append([]string{"sessions", "rm"}, strings.Fields(c.args)...)...)
			said := o.out
			if c.code != 0 {
				said = o.errOut
			}
			if o.code != c.code || !strings.Contains(said, c.says) {
				t.Errorf("%d, %s%s", o.code, o.out, o.errOut)
			}
			if c.code != 0 && snapshot(t, h.dir) != before {
				t.Error("a refusal changed files")
			}
			if diff := cmp.Diff(c.left, stored(t, h)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// D18, D23: nothing of a tree is removed while a live process holds any of it,
// be it above what is to go.
func TestRemoveInUse(t *testing.T) {
	h := newHome(t)
	library(t, h)
	a := openArchive(t, h)
	s, err := a.reg.PrepareStored(t.Context(), rootID)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{rootID, "--tree"}, {childID}} {
		o := h.run(append([]string{"sessions", "rm", "--yes"}, args...)...)
		if o.code != 1 || !strings.Contains(o.errOut, "session "+rootID+": session tree is in use by a live process: process ") {
			t.Errorf("%v: %d, %s%s", args, o.code, o.out, o.errOut)
		}
	}
	h.now = time.Now().Add(1000 * time.Hour)
	if out := h.must("sessions", "prune", "--older-than", "1h", "--yes"); !strings.Contains(out, "removed 1 tree (1 session)") || !strings.Contains(out, "kept 1 tree, because a live process holds a session of it: "+rootID) {
		t.Errorf("prune: %s", out)
	}
	if err := a.reg.Abandon(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	a.close()
	if diff := cmp.Diff([]string{rootID, childID}, stored(t, h)); diff != "" {
		t.Error(diff)
	}
}

// D22: what another session began with stays with it.
func TestRemoveKeepsWhatOthersReference(t *testing.T) {
	h := newHome(t)
	library(t, h)
	a := openArchive(t, h)
	w, err := a.store.Create(t.Context(), session.Header{ID: "fork", CreatedAt: epoch, SeedLength: 2},
		session.Meta{Root: "fork", Prefix: session.PrefixRef{ID: otherID, Len: 2}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.close()
	before := h.must("sessions", "show", "fork", "--events")
	h.must("sessions", "rm", otherID, "--yes")
	if after := h.must("sessions", "show", "fork", "--events"); after != before || strings.Count(after, "\n") != 2 {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
}

// D11: what cannot be read can be removed, and is never pruned by its age.
func TestRemoveUnreadable(t *testing.T) {
	h := newHome(t)
	a := openArchive(t, h)
	a.plant("good", "", "good")
	a.raw(session.Header{ID: "good-bad", Version: 7, CreatedAt: epoch, ParentSession: "good"}, "good", nil)
	a.raw(session.Header{ID: "worse", Version: 7, CreatedAt: epoch}, "worse", nil)
	a.close()
	h.now = time.Now().Add(1000 * time.Hour)
	out := h.must("sessions", "prune", "--older-than", "1h", "--yes")
	if !strings.Contains(out, "kept 1 tree, because not all of it can be read: good\n2 sessions cannot be read and stay") {
		t.Errorf("prune: %s", out)
	}
	for _, id := range []string{"worse", "good"} {
		h.must("sessions", "rm", id, "--tree", "--yes")
	}
	if left := stored(t, h); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// stubborn is a store that deletes so many sessions and no more.
type stubborn struct {
	session.Store
	deletes int
}

var errStubborn = errors.New("no more")

func (s *stubborn) Delete(context.Context, session.ID) error {
	if s.deletes--; s.deletes < 0 {
		return errStubborn
	}
	return nil
}

func TestRemovePartly(t *testing.T) {
	s := &shelf{store: &stubborn{deletes: 1}}
	n, err := s.remove(t.Context(), []session.ID{"a", "b", "c"})
	if n != 1 || !errors.Is(err, errStubborn) || !strings.HasSuffix(err.Error(), "; 1 of 3 sessions removed, left: b, c") {
		t.Errorf("%d, %v", n, err)
	}
}

// Whole trees go by their newest session.
func TestPrune(t *testing.T) {
	now := time.Now()
	fill := func(t *testing.T) *home {
		h := newHome(t)
		h.now = now
		for _, one := range []struct {
			days             int
			id, parent, root string
		}{
			{40, "old", "", "old"}, {35, "old-kid", "old", "old"},
			{50, "mixed", "", "mixed"}, {2, "mixed-kid", "mixed", "mixed"},
			{60, "orphan", "gone", "gone"}, {0, "new", "", "new"},
		} {
			store, err := sqlite.Open(t.Context(), filepath.Join(h.dir, "offshoot.db"), sqlite.Options{
				Synchronous: sqlite.Normal, Now: func() time.Time { return now.AddDate(0, 0, -one.days) },
			})
			if err != nil {
				t.Fatal(err)
			}
			a := &archive{t: t, store: store}
			a.plant(one.id, one.parent, one.root)
			a.close()
		}
		return h
	}
	all := []string{"mixed", "mixed-kid", "new", "old", "old-kid", "orphan"}
	for _, c := range []struct {
		args string
		code int
		says string
		left []string
	}{
		{"", 2, "--older-than AGE", all},
		{"--older-than soon --yes", 2, `"soon" is no age such as`, all},
		{"--older-than 30d", 2, "--yes", all},
		{"--older-than 30d --dry-run", 0, "would remove 2 trees (3 sessions) not written to since", all},
		{"--older-than 100d", 0, "removed 0 trees (0 sessions)", all},
		{"--older-than 30d --yes", 0, "removed 2 trees (3 sessions) not written to since", []string{"mixed", "mixed-kid", "new"}},
		{"--older-than 1d12h --yes", 0, "removed 3 trees (5 sessions)", []string{"new"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			h := fill(t)
			before := snapshot(t, h.dir)
			o := h.run(append([]string{"sessions", "prune"}, strings.Fields(c.args)...)...)
			if o.code != c.code || !strings.Contains(o.out+o.errOut, c.says) {
				t.Errorf("%d, %s%s", o.code, o.out, o.errOut)
			}
			if diff := cmp.Diff(c.left, stored(t, h)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if len(c.left) == len(all) && snapshot(t, h.dir) != before {
				t.Error("files changed")
			}
		})
	}
}

func TestParseAge(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"30d": 30 * day, "12h": 12 * time.Hour, "2w": 14 * day, "1w1d1h30m": 8*day + 90*time.Minute, "90m": 90 * time.Minute, "0s": 0,
		"": -1, "d": -1, "30": -1, "-3d": -1, "-3h": -1, "+3h": -1, "3x": -1, "1h1d": -1, "1d1w": -1, "1d ": -1, "106751d23h59m": -1, // just beyond what a duration holds
		"200000d": -1, "99999999999999999999d": -1,
	} {
		got, err := parseAge(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}
