package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/store/sqlite"
)

func newSessionsCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "sessions",
		Short: "Look at stored sessions, move them between stores, and remove them",
		Long: "The stored logs, read without changing anything but by import, rm and prune. ID is a\n" +
			"session's id or the beginning of one that fits no other.",
	})
	cmd.AddCommand(newListCommand(a), newShowCommand(a), newTreeCommand(a), newVerifyCommand(a), newExportCommand(a), newImportCommand(a), newCompactCommand(a), newRemoveCommand(a), newPruneCommand(a))
	return cmd
}

// shelf is a store opened for reading, with what it takes to understand it.
type shelf struct {
	store session.Store // nil: there is none
	why   string        // why there is none
	units *projection.Registry
	reg   *session.Registry
}

// openShelf opens the configured store for reading (core C4, D12). A store that
// does not exist yet, or that no other process can have put something into, is a
// shelf without one.
func openShelf(ctx context.Context, c config.Store) (*shelf, error) {
	s := &shelf{}
	var err error
	if s.units, err = projection.NewRegistry(projection.BuiltIn()...); err != nil {
		return nil, err
	}
	if s.reg, err = session.NewRegistry(ctx, session.Config{}); err != nil {
		return nil, err
	}
	if c.Driver == config.DriverMemory {
		s.why = "the store is memory, which keeps no session beyond its process"
		return s, nil
	}
	store, err := sqlite.OpenReadOnly(ctx, c.Path, sqlite.Options{})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.why = "no sessions yet in " + c.Path
		return s, nil
	case err != nil:
		return nil, err
	}
	s.store = store
	return s, nil
}

// close adds a failure to close to the error of the work.
func (s *shelf) close(ctx context.Context, err error) error {
	if s.store == nil {
		return err
	}
	return errors.Join(err, s.store.Close(context.WithoutCancel(ctx)))
}

// withShelf loads the configuration, opens the store and runs fn on it.
func (a *app) withShelf(cmd *cobra.Command, fn func(context.Context, *shelf) error) error {
	eff, err := a.load(cmd, config.Flags{}, "")
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	s, err := openShelf(ctx, eff.Config.Store)
	if err != nil {
		return err
	}
	return s.close(ctx, fn(ctx, s))
}

// find returns the record of the session that name means, and where it is stored, as
// the flag --store says it.
func (a *app) find(ctx context.Context, cmd *cobra.Command, f config.Flags, name string) (_ session.Record, store string, err error) {
	eff, err := a.load(cmd, f, "")
	if err != nil {
		return session.Record{}, "", err
	}
	s, err := openShelf(ctx, eff.Config.Store)
	if err != nil {
		return session.Record{}, "", err
	}
	// Only a root can be resumed, and the beginning of its id is often its children's too.
	rec, _, err := s.findAmong(ctx, name, session.Filter{Top: true})
	if errors.Is(err, session.ErrNotFound) {
		rec, _, err = s.find(ctx, name)
	}
	return rec, config.DriverSQLite + ":" + eff.Config.Store.Path, s.close(ctx, err)
}

// maxCandidates is how many sessions an ambiguous name is answered with.
const maxCandidates = 8

// find returns the session of that id, or the only one whose id begins so, with
// its log, which is read as it is ranged over.
func (s *shelf) find(ctx context.Context, name string) (session.Record, iter.Seq2[session.Event, error], error) {
	return s.findAmong(ctx, name, session.Filter{})
}

// findAmong is find for the beginning of an id that only sessions which f selects
// may have.
func (s *shelf) findAmong(ctx context.Context, name string, f session.Filter) (session.Record, iter.Seq2[session.Event, error], error) {
	fail := func(format string, args ...any) (session.Record, iter.Seq2[session.Event, error], error) {
		return session.Record{}, nil, fmt.Errorf(format, args...)
	}
	if s.store == nil {
		return fail("session %q: %w: %s", name, session.ErrNotFound, s.why)
	}
	rec, events, err := s.store.Inspect(ctx, session.ID(name))
	if !errors.Is(err, session.ErrNotFound) {
		return rec, events, err
	}
	f.IDPrefix = name
	var fit []string
	for rec, err := range s.records(ctx, f, session.Page{Newest: true}) {
		if err != nil {
			return fail("look up session %q: %w", name, err)
		}
		fit = append(fit, string(rec.Header.ID))
	}
	switch len(fit) {
	case 0:
		return fail("session %q: %w", name, session.ErrNotFound)
	case 1:
		return s.store.Inspect(ctx, session.ID(fit[0]))
	}
	more := ""
	if n := len(fit) - maxCandidates; n > 0 {
		fit, more = fit[:maxCandidates], fmt.Sprintf(" and %d more", n)
	}
	return fail("session %q is ambiguous: it may be %s%s", name, strings.Join(fit, ", "), more)
}

// records yields what a filter selects, one page after another from p on.
func (s *shelf) records(ctx context.Context, f session.Filter, p session.Page) iter.Seq2[session.Record, error] {
	return func(yield func(session.Record, error) bool) {
		for p := p; ; {
			l, err := s.store.List(ctx, f, p)
			if err != nil {
				yield(session.Record{}, err)
				return
			}
			for _, rec := range l.Records {
				if !yield(rec, nil) {
					return
				}
			}
			if p.After = l.Next; p.After == "" {
				return
			}
		}
	}
}

// summary is what a record tells of a session without its log.
type summary struct {
	title projection.Title
	usage projection.Usage
	state projection.State
	ident *projection.Identity // nil for a root, and where a log does not tell
}

// summarize reads the record's checkpoints, and the log where one is missing.
func (s *shelf) summarize(ctx context.Context, rec session.Record) (sum summary, err error) {
	if rec.Err != nil {
		return sum, rec.Err
	}
	if id, ok := projection.IdentityOf(&rec); ok {
		sum.ident = &id
	}
	var told bool
	if sum.title, told = projection.TitleOf(&rec); !told {
		if err = readUnit(ctx, s, rec, session.CellTitle, &sum.title); err != nil {
			return sum, err
		}
	}
	if sum.usage, told = projection.UsageOf(&rec); !told {
		if err = readUnit(ctx, s, rec, session.CellUsage, &sum.usage); err != nil {
			return sum, err
		}
	}
	if sum.state, told = projection.StateOf(&rec); !told {
		err = readUnit(ctx, s, rec, session.CellState, &sum.state)
	}
	return sum, err
}

func readUnit[T any](ctx context.Context, s *shelf, rec session.Record, key string, dst *T) error {
	snap, err := s.units.Read(ctx, s.store, rec, key)
	if err != nil {
		return err
	}
	if v, ok := snap.Value.(*T); ok && v != nil {
		*dst = *v
	}
	return nil
}

// model is the route and model of the last request as --model takes it, or "".
func (s *summary) model() string {
	if s.usage.Model == "" {
		return s.usage.Provider
	}
	return s.usage.Provider + ":" + s.usage.Model
}
