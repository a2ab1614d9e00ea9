package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/session"
)

func newTreeCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tree [ID]",
		Short: "Show who delegated to whom",
		Long: "Shows the tree that a session belongs to, from its root down: that of ID, or of the newest\n" +
			"session that a person started. Children stand below their parent in the order in which\n" +
			"they were created. MODE names the provider of a delegated session too: a fork began with\n" +
			"the completed turns of its parent, and its tokens are its own alone. STOP is how the last\n" +
			"turn ended, LASTED the time from a session's creation to the last write to its log; of an\n" +
			"imported session it is not known.\n\n" +
			"--json writes one object a line: what sessions list --json tells, with mode root for the\n" +
			"root, stopReason, durationMs, level (0 is the root) and, where a session hangs on nothing\n" +
			"that is stored, adrift.",
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				top, err := s.rootOf(ctx, args)
				switch {
				case err != nil:
					return err
				case top == nil && s.store == nil:
					return a.say(s.why)
				case top == nil:
					return a.say("no sessions yet")
				}
				all, err := s.tree(ctx, *top)
				if err != nil {
					return err
				}
				return a.writeTree(ctx, s, all, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object a line")
	return cmd
}

// resolve is find without the log. Unlike find it also returns a session whose
// record cannot be read, as a listing does: with Err set.
func (s *shelf) resolve(ctx context.Context, name string) (session.Record, error) {
	rec, _, err := s.find(ctx, name)
	id := session.ID("")
	var corrupt *session.CorruptError
	var unsupported *session.UnsupportedError
	switch {
	case err == nil:
		return rec, nil
	case errors.As(err, &corrupt):
		id = corrupt.ID
	case errors.As(err, &unsupported):
		id = unsupported.ID
	}
	if id == "" {
		return rec, err
	}
	return session.Record{Header: session.Header{ID: id}, Err: err}, nil
}

// rootOf returns the root of the session that args names, or the newest one; nil
// when there is none. A session whose root is not stored stands for it.
func (s *shelf) rootOf(ctx context.Context, args []string) (*session.Record, error) {
	if len(args) == 0 {
		if s.store == nil {
			return nil, nil
		}
		l, err := s.store.List(ctx, session.Filter{Top: true}, session.Page{Limit: 1, Newest: true})
		if err != nil || len(l.Records) == 0 {
			return nil, err
		}
		return &l.Records[0], nil
	}
	rec, err := s.resolve(ctx, args[0])
	if err != nil {
		return nil, err
	}
	root := rec.Meta.Root
	if root == "" || root == rec.Header.ID {
		return &rec, nil
	}
	stored, err := s.store.Exists(ctx, root)
	if err != nil || !stored {
		return &rec, err
	}
	top, err := s.resolve(ctx, string(root))
	return &top, err
}

// member is one session of a tree.
type member struct {
	rec    session.Record
	parent session.ID // whose child it was found as; "" for the top
	level  int
	// adrift says that the session belongs to the tree but hangs on nothing: its
	// parent is not stored, or is below it.
	adrift bool
}

// tree returns a session and what descends from it: parents before what is below
// them, children in order of creation, each once, so that parents that go round
// in a circle end. Of a root these are also the sessions that are adrift.
func (s *shelf) tree(ctx context.Context, top session.Record) ([]member, error) {
	seen := map[session.ID]bool{}
	var all []member
	// No recursion: a log is data, and how deep it says that it is has no bound.
	grow := func(m member) error {
		seen[m.rec.Header.ID] = true
		open := []member{m}
		for len(open) > 0 {
			m := open[len(open)-1]
			open = open[:len(open)-1]
			all = append(all, m)
			kids, err := s.children(ctx, m, seen)
			if err != nil {
				return fmt.Errorf("children of session %s: %w", m.rec.Header.ID, err)
			}
			for i := len(kids) - 1; i >= 0; i-- {
				open = append(open, kids[i])
			}
		}
		return nil
	}
	if err := grow(member{rec: top}); err != nil {
		return nil, err
	}
	var loose []session.Record
	left := map[session.ID]bool{}
	for rec, err := range s.records(ctx, session.Filter{Root: top.Header.ID}, session.Page{}) {
		if err != nil {
			return nil, err
		}
		if id := rec.Header.ID; !seen[id] {
			loose, left[id] = append(loose, rec), true
		}
	}
	// First those that stand above others, then those that go round in a circle.
	for _, circle := range []bool{false, true} {
		for _, rec := range loose {
			h := rec.Header
			if seen[h.ID] || !circle && left[h.ParentSession] && h.ParentSession != h.ID {
				continue
			}
			if err := grow(member{rec: rec, parent: h.ParentSession, level: 1, adrift: true}); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// children returns the children of a session that were not seen yet.
func (s *shelf) children(ctx context.Context, m member, seen map[session.ID]bool) ([]member, error) {
	var kids []member
	id := m.rec.Header.ID
	for rec, err := range s.records(ctx, session.Filter{Parent: id}, session.Page{}) {
		if err != nil {
			return nil, err
		}
		if seen[rec.Header.ID] {
			continue
		}
		seen[rec.Header.ID] = true
		kids = append(kids, member{rec: rec, parent: id, level: m.level + 1})
	}
	return kids, nil
}

// twig is one session of a shown tree, and its form in JSON.
type twig struct {
	row
	StopReason string `json:"stopReason,omitempty"`
	DurationMS int64  `json:"durationMs"`
	Level      int    `json:"level"`
	Adrift     bool   `json:"adrift,omitempty"`
}

func (s *shelf) twig(ctx context.Context, m member) twig {
	t := twig{row: s.row(ctx, m.rec), Level: m.level, Adrift: m.adrift}
	t.ParentSession = m.parent
	if t.Mode == "" && m.rec.Err == nil && (m.rec.Header.ParentSession == "" || m.rec.Meta.Root == m.rec.Header.ID) {
		t.Mode = "root"
	}
	if t.Error != "" {
		return t
	}
	t.DurationMS = max(0, t.UpdatedAt-t.CreatedAt)
	if sum, err := s.summarize(ctx, m.rec); err == nil {
		t.StopReason = string(sum.state.Reason)
		if sum.state.Imported {
			t.DurationMS = 0 // the last write was the import, or later
		}
	}
	return t
}

func (a *app) writeTree(ctx context.Context, s *shelf, all []member, asJSON bool) error {
	w := bufio.NewWriter(a.stdout)
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		for _, m := range all {
			if err := enc.Encode(s.twig(ctx, m)); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	table := newTable(w)
	if err := cells(table, "SESSION", "MODE", "STATE", "STOP", "TOKENS", "LASTED", "ID"); err != nil {
		return err
	}
	levels := make([]int, len(all))
	for i, m := range all {
		levels[i] = m.level
	}
	lines := branches(levels)
	for i, m := range all {
		t := s.twig(ctx, m)
		tokens, took := count(t.Tokens), lasted(t.DurationMS)
		if t.Error != "" {
			tokens, took = "", ""
		}
		if err := cells(table, lines[i]+t.name(), strings.TrimSpace(t.Mode+" "+t.Provider), t.State, t.StopReason, tokens, took, string(t.ID)); err != nil {
			return err
		}
	}
	return errors.Join(table.Flush(), w.Flush())
}

// name is what the session is called in the tree.
func (t *twig) name() string {
	name := "untitled"
	switch {
	case t.Error != "":
		name = t.Error
	case t.Label != "":
		name = t.Label
	case t.Title != "":
		name = t.Title
	}
	name = clip(oneLine(name), 60)
	if t.Adrift {
		parent := "unknown"
		if t.ParentSession != "" {
			parent = string(t.ParentSession)
		}
		name += " (adrift: its parent is " + parent + ")"
	}
	return name
}

// maxIndent is the level below which a tree is not indented any further.
const maxIndent = 24

// branches draws the lines that lead to each member of a tree whose members stand
// behind their parents at these levels.
func branches(levels []int) []string {
	lines := make([]string, len(levels))
	var more [maxIndent + 1]bool // at a level, another session follows below the same parent
	for i := len(levels) - 1; i >= 0; i-- {
		level := min(levels[i], maxIndent)
		if level == 0 {
			continue
		}
		var b strings.Builder
		for l := 1; l < level; l++ {
			if more[l] {
				b.WriteString("│  ")
			} else {
				b.WriteString("   ")
			}
		}
		if more[level] {
			b.WriteString("├─ ")
		} else {
			b.WriteString("└─ ")
		}
		lines[i] = b.String()
		more[level] = true
		clear(more[level+1:])
	}
	return lines
}

// lasted tells a duration for people.
func lasted(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms <= 0:
		return ""
	case d < time.Second:
		return fmt.Sprintf("%dms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
