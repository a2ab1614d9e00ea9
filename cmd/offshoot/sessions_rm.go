package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

func newRemoveCommand(a *app) *cobra.Command {
	var whole, yes bool
	cmd := &cobra.Command{
		Use:   "rm ID",
		Short: "Remove a stored session",
		Long: "Removes a session for good; with --tree what descends from it too, children first. It asks\n" +
			"on a terminal and needs --yes elsewhere. A tree that a live process holds is left alone.\n" +
			"What other sessions began with stays with them.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			return a.remove(cmd.Context(), eff.Config.Store, args[0], whole, yes)
		},
	}
	cmd.Flags().BoolVar(&whole, "tree", false, "remove what descends from it too")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) remove(ctx context.Context, c config.Store, name string, whole, yes bool) error {
	s, err := openShelf(ctx, c)
	if err != nil {
		return err
	}
	doomed, what, err := s.doomed(ctx, name, whole)
	if err = s.close(ctx, err); err != nil {
		return err
	}
	if err := a.confirm("rm", "Remove "+what+"?", yes); err != nil {
		return err
	}
	s, err = openShelfToDelete(ctx, c)
	if err != nil {
		return err
	}
	// A person may have thought for long: look again at what there is.
	now, _, err := s.doomed(ctx, string(doomed[0]), whole)
	switch {
	case err != nil:
	case !slices.Equal(now, doomed):
		err = fmt.Errorf("the tree of session %s has changed meanwhile; nothing was removed", doomed[0])
	default:
		slices.Reverse(doomed)
		_, err = s.remove(ctx, doomed)
	}
	if err = s.close(ctx, err); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, "removed "+what)
	return err
}

// openShelfToDelete opens an existing store for writing.
func openShelfToDelete(ctx context.Context, c config.Store) (*shelf, error) {
	opt := sqlite.Options{}
	if c.Synchronous == "normal" {
		opt.Synchronous = sqlite.Normal
	}
	store, err := sqlite.Open(ctx, c.Path, opt)
	if err != nil {
		return nil, err
	}
	return &shelf{store: store}, nil
}

// doomed returns what the removal of a session removes, the session first and
// parents before children, and words it. It is refused for a tree that is in use
// and, without whole, for a session with children.
func (s *shelf) doomed(ctx context.Context, name string, whole bool) (ids []session.ID, what string, err error) {
	rec, err := s.resolve(ctx, name)
	if err != nil {
		return nil, "", err
	}
	id := rec.Header.ID
	all, err := s.tree(ctx, rec)
	if err != nil {
		return nil, "", err
	}
	if !whole && len(all) > 1 {
		return nil, "", usagef("session %s has %s below it; remove them with it by --tree", id, plural(int64(len(all)-1), "session"))
	}
	if err := s.idle(ctx, rec.Meta.Root, all); err != nil {
		return nil, "", err
	}
	for _, m := range all {
		ids = append(ids, m.rec.Header.ID)
	}
	what = "session " + printable(string(id))
	if n := len(ids) - 1; n > 0 {
		what += " and the " + plural(int64(n), "session") + " below it"
	}
	return ids, what, nil
}

// idle refuses a tree of which a live process holds a session: any of those that
// are named, or of the root's.
func (s *shelf) idle(ctx context.Context, root session.ID, all []member) error {
	for _, m := range all {
		if m.rec.Live {
			return inUse(m.rec)
		}
	}
	if root == "" {
		return nil
	}
	for rec, err := range s.records(ctx, session.Filter{Root: root}, session.Page{}) {
		if err != nil {
			return err
		}
		if rec.Live {
			return inUse(rec)
		}
	}
	return nil
}

func inUse(rec session.Record) error {
	return fmt.Errorf("session %s: %w: %s; nothing was removed", rec.Header.ID, session.ErrInUse, rec.Owner)
}

// remove deletes sessions in the order given, and names what is left when it
// cannot go on. A session that is gone already is no fault.
func (s *shelf) remove(ctx context.Context, ids []session.ID) (removed int, err error) {
	for i, id := range ids {
		switch err := s.store.Delete(ctx, id); {
		case err == nil:
			removed++
		case errors.Is(err, session.ErrNotFound):
		default:
			return removed, fmt.Errorf("%w; %d of %s removed, left: %s", err, removed, plural(int64(len(ids)), "session"), names(ids[i:]))
		}
	}
	return removed, nil
}

// names lists sessions, not too many.
func names(ids []session.ID) string {
	var b strings.Builder
	for i, id := range ids {
		if i == maxCandidates {
			return fmt.Sprintf("%s and %d more", b.String(), len(ids)-i)
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(id))
	}
	return b.String()
}

// confirm asks the person at the terminal. Without one, or when the answer is not
// yes, it returns the error that ends the command.
func (a *app) confirm(cmd, question string, yes bool) error {
	if yes {
		return nil
	}
	if !a.isTerminal(a.stdin) {
		return usagef("sessions %s: standard input is no terminal to ask on; give --yes", cmd)
	}
	if _, err := fmt.Fprint(a.stderr, question+" [y/N] "); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	line, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("ask: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was removed")
}
