package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
	"github.com/offshoot-dev/offshoot/session/projection"
)

func newImportCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "import PATH...",
		Short: "Store sessions that were exported here or written by the upstream runtime",
		Long: "Reads logs in the format of sessions export: files, folders of logs, or standard input for -,\n" +
			"and stores all of them or none. Every log is held against the rules of the log first.\n\n" +
			"An import is data. A session whose id is stored already is refused, and so is one whose\n" +
			"parent is stored here and does not come with it; one whose parent is nowhere becomes the\n" +
			"root of its own tree; one that comes with its parent must say in its log which child it is.\n" +
			"What was queued in a session waits until you send it something, and runs first then. Its\n" +
			"policies narrow what it may do here and widen nothing.\n\n" +
			"A last line that was cut is left out, and that is said. A log that ends in an open turn is\n" +
			"closed when the session is resumed.",
		Args: arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			return a.importLogs(cmd.Context(), eff.Config.Store, args)
		},
	}
}

func (a *app) importLogs(ctx context.Context, c config.Store, paths []string) (err error) {
	if c.Driver == config.DriverMemory {
		return usagef("sessions import: the store is memory, which keeps no session beyond its process")
	}
	if gogc, _ := a.env("GOGC"); a.collect != nil && gogc == "" {
		// What it holds is a few copies of one event: nothing to collect at length, and
		// as much again in wait for that would be most of its memory.
		a.collect(33)
	}
	// Until here nothing is stored, and a signal ends a wait for input by ending the
	// process.
	sources, remove, err := a.sources(ctx, paths)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	// What a signal finds stored is taken back.
	stop := newStopper(ctx, 0, func(string, ...any) {})
	defer func() {
		stop.end()
		if sig, _ := stop.reasons(); sig != nil && err != nil {
			err = &exitError{code: exitCodeOf(sig), err: err}
		}
	}()
	ctx = stop.ctx
	units, err := projection.NewRegistry(projection.BuiltIn()...)
	if err != nil {
		return err
	}
	store, err := harness.OpenStore(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close(context.WithoutCancel(ctx))) }()
	reg, err := session.NewRegistry(ctx, session.Config{Store: store, NewCells: units.NewCells})
	if err != nil {
		return err
	}
	logs, err := jsonl.Import(ctx, reg, sources)
	var undo *jsonl.UndoError
	switch {
	case errors.As(err, &undo):
		return err
	case err != nil && logs == nil:
		return fmt.Errorf("%w; nothing was imported", err)
	}
	return errors.Join(a.tellImported(logs), err)
}

// sources opens what a command line names. remove takes temporary files away, also
// after an error.
func (a *app) sources(ctx context.Context, paths []string) (list []jsonl.Source, remove func() error, err error) {
	var temps []func() error
	remove = func() error {
		var errs []error
		for _, fn := range temps {
			errs = append(errs, fn())
		}
		return errors.Join(errs...)
	}
	spool := func(r io.Reader, name string) error {
		src, rm, err := jsonl.Spool(ctx, r, name)
		if err == nil {
			list, temps = append(list, src), append(temps, rm)
		}
		return err
	}
	for _, name := range paths {
		if name == "-" {
			if err := spool(a.stdin, "standard input"); err != nil {
				return nil, remove, err
			}
			continue
		}
		path, err := a.within(name)
		if err != nil {
			return nil, remove, err
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
		case info.IsDir():
			var more []jsonl.Source
			more, err = jsonl.Folder(path)
			list = append(list, more...)
		case info.Mode().IsRegular():
			list = append(list, jsonl.File(path))
		default: // a pipe
			var f *os.File
			if f, err = os.Open(path); err == nil {
				err = errors.Join(spool(f, name), f.Close())
			}
		}
		if err != nil {
			return nil, remove, err
		}
	}
	return list, remove, nil
}

// tellImported says what there is now, and what is odd about it.
func (a *app) tellImported(logs []*jsonl.Log) error {
	w, notes := bufio.NewWriter(a.stdout), bufio.NewWriter(a.stderr)
	out, odd := &paper{w: w}, &paper{w: notes}
	for _, l := range logs {
		id := printable(string(l.Header.ID))
		out.line("imported session %s: %s, %s", id, plural(l.Report.Events, "event"), plural(l.Report.Turns, "turn"))
		note := func(format string, args ...any) {
			odd.line("offshoot: session %s: %s", id, fmt.Sprintf(format, args...))
		}
		if t := l.Torn; t != nil {
			note("the last line was cut and is left out: %s:%d, %s", printable(l.Name), t.Line, plural(t.Bytes, "byte"))
		}
		if l.Report.OpenTurn != 0 {
			note("turn %d is open; it is closed when the session is resumed", l.Report.OpenTurn)
		}
		if n := l.Report.Queued; n > 0 {
			note("%s in its queue, to run first once you send it something", plural(int64(n), "message"))
		}
		if p := l.Header.ParentSession; p != "" && l.Root == l.Header.ID {
			note("its parent %s is not stored; it is the root of its own tree", printable(string(p)))
		}
	}
	return errors.Join(out.err, w.Flush(), odd.err, notes.Flush())
}
