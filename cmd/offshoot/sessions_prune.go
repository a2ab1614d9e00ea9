package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/session"
)

func newPruneCommand(a *app) *cobra.Command {
	var older string
	var yes, dry bool
	cmd := &cobra.Command{
		Use:   "prune --older-than AGE",
		Short: "Remove the trees that nothing was written to for long",
		Long: "Removes whole trees: a session that a person started with all that descends from it, when\n" +
			"the last write to any of them is older than AGE, such as 12h, 30d, 2w or 1d12h. Trees that\n" +
			"a live process holds are left alone, and so are those with a session that cannot be read.\n" +
			"It asks on a terminal and needs --yes elsewhere.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if older == "" {
				return usagef("sessions prune: say how old by --older-than AGE, such as 30d")
			}
			age, err := parseAge(older)
			if err != nil {
				return usagef("flag --older-than: %w", err)
			}
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			return a.prune(cmd.Context(), eff.Config.Store, age, dry, yes)
		},
	}
	cmd.Flags().StringVar(&older, "older-than", "", "the `AGE` of the last write from which a tree is removed")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only show what would be removed")
	return cmd
}

// parseAge reads a duration that may begin with weeks and days, which are 24 hours.
func parseAge(text string) (time.Duration, error) {
	var total time.Duration
	rest := text
	for _, unit := range []struct {
		letter byte
		size   time.Duration
	}{{'w', 7 * 24 * time.Hour}, {'d', 24 * time.Hour}} {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits == len(rest) || rest[digits] != unit.letter {
			continue
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil || n > int64((math.MaxInt64-total)/unit.size) {
			return 0, fmt.Errorf("%q is too long", text)
		}
		total += time.Duration(n) * unit.size
		rest = rest[digits+1:]
	}
	if rest != "" || text == "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || rest[0] == '+' {
			return 0, fmt.Errorf("%q is no age such as 12h, 30d or 1d12h", text)
		}
		if d > math.MaxInt64-total {
			return 0, fmt.Errorf("%q is too long", text)
		}
		total += d
	}
	return total, nil
}

// grove is one tree, as far as its age goes.
type grove struct {
	root     session.ID
	title    string
	sessions int64
	updated  int64 // of the newest
	live     bool
	broken   bool // not all of it can be read
}

// add counts one session in.
func (g *grove) add(rec session.Record) {
	g.sessions++
	if rec.Err != nil {
		g.broken = true
		return
	}
	g.updated = max(g.updated, rec.UpdatedAt)
	g.live = g.live || rec.Live
}

// pruning is what prune found, and what it did.
type pruning struct {
	before int64 // ms since the epoch
	old    []*grove
	live   []*grove
	broken []*grove
	// unread counts sessions that cannot be read.
	unread int64

	trees, sessions int64 // removed
}

// survey looks for trees that are old enough.
func (s *shelf) survey(ctx context.Context, before int64) (*pruning, error) {
	p := &pruning{before: before}
	groves := map[session.ID]*grove{}
	var order []*grove
	for rec, err := range s.records(ctx, session.Filter{}, session.Page{}) {
		if err != nil {
			return nil, err
		}
		if rec.Err != nil {
			p.unread++ // whose it is only its tree can tell
			continue
		}
		root := rec.Meta.Root
		g := groves[root]
		if g == nil {
			g = &grove{root: root}
			groves[root], order = g, append(order, g)
		}
		g.add(rec)
		if rec.Header.ID == root {
			if sum, err := s.summarize(ctx, rec); err == nil {
				g.title = sum.title.Text
			}
		}
	}
	for _, g := range order {
		if g.updated >= before {
			continue
		}
		if p.unread > 0 {
			again, _, err := s.grove(ctx, g.root)
			if err != nil {
				return nil, err
			}
			g.broken = again.broken
		}
		p.sort(g)
	}
	return p, nil
}

func (p *pruning) sort(g *grove) {
	switch {
	case g.live:
		p.live = append(p.live, g)
	case g.broken:
		p.broken = append(p.broken, g)
	default:
		p.old = append(p.old, g)
	}
}

// grove reads one tree as it is now, and its sessions, the newest first: children
// come before their parents so.
func (s *shelf) grove(ctx context.Context, root session.ID) (*grove, []session.ID, error) {
	g := &grove{root: root}
	var ids []session.ID
	for rec, err := range s.records(ctx, session.Filter{Root: root}, session.Page{Newest: true}) {
		if err != nil {
			return nil, nil, err
		}
		g.add(rec)
		ids = append(ids, rec.Header.ID)
	}
	return g, ids, nil
}

func (a *app) prune(ctx context.Context, c config.Store, age time.Duration, dry, yes bool) error {
	s, err := openShelf(ctx, c)
	if err != nil {
		return err
	}
	if s.store == nil {
		return a.say(s.why)
	}
	p, err := s.survey(ctx, a.now().Add(-age).UnixMilli())
	if err = s.close(ctx, err); err != nil {
		return err
	}
	for _, g := range p.old {
		p.trees++
		p.sessions += g.sessions
	}
	if dry {
		return errors.Join(a.listGroves(p.old), a.writePruning(p, "would remove"))
	}
	if p.trees > 0 {
		question := fmt.Sprintf("Remove %s not written to since %s?", p.amount(), moment(a.now(), p.before))
		if err := a.confirm("prune", question, yes); err != nil {
			return err
		}
		if err := a.cut(ctx, c, p); err != nil {
			return err
		}
	}
	return a.writePruning(p, "removed")
}

// cut removes the old trees that still are.
func (a *app) cut(ctx context.Context, c config.Store, p *pruning) error {
	s, err := openShelfToDelete(ctx, c)
	if err != nil {
		return err
	}
	old := p.old
	p.old, p.trees, p.sessions = nil, 0, 0
	for _, g := range old {
		now, ids, err := s.grove(ctx, g.root)
		if err == nil && (now.updated >= p.before || now.sessions == 0) {
			continue // somebody went on with it, or was here first
		}
		if err == nil && (now.live || now.broken) {
			p.sort(now)
			continue
		}
		var n int
		if err == nil {
			n, err = s.remove(ctx, ids)
			p.sessions += int64(n)
		}
		switch {
		case err == nil:
			p.trees++
		case n == 0 && errors.Is(err, session.ErrInUse):
			p.live = append(p.live, g)
		default:
			return s.close(ctx, fmt.Errorf("prune: %s removed; tree of session %s: %w", p.amount(), g.root, err))
		}
	}
	return s.close(ctx, nil)
}

// amount words what is removed.
func (p *pruning) amount() string {
	return fmt.Sprintf("%s (%s)", plural(p.trees, "tree"), plural(p.sessions, "session"))
}

// listGroves shows trees for people.
func (a *app) listGroves(groves []*grove) error {
	if len(groves) == 0 {
		return nil
	}
	t := newTable(a.stdout)
	errs := []error{cells(t, "ROOT", "WRITTEN", "SESSIONS", "TITLE")}
	for _, g := range groves {
		errs = append(errs, cells(t, string(g.root), moment(a.now(), g.updated), strconv.FormatInt(g.sessions, 10), clip(g.title, 60)))
	}
	return errors.Join(append(errs, t.Flush())...)
}

func (a *app) writePruning(p *pruning, did string) error {
	out := &paper{w: a.stdout}
	out.line("%s %s not written to since %s", did, p.amount(), moment(a.now(), p.before))
	for _, kept := range []struct {
		groves []*grove
		why    string
	}{{p.live, "a live process holds a session of it"}, {p.broken, "not all of it can be read"}} {
		if n := len(kept.groves); n > 0 {
			ids := make([]session.ID, n)
			for i, g := range kept.groves {
				ids[i] = g.root
			}
			out.line("kept %s, because %s: %s", plural(int64(n), "tree"), kept.why, printable(names(ids)))
		}
	}
	if p.unread > 0 {
		out.line("%s cannot be read and stay; see offshoot sessions verify", plural(p.unread, "session"))
	}
	return out.err
}
