package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/jsonl"
)

func newExportCommand(a *app) *cobra.Command {
	var whole bool
	var out string
	cmd := &cobra.Command{
		Use:   "export ID",
		Short: "Write a stored session as JSONL, for another store or another program",
		Long: "Writes a session's whole log, what it inherited included, in the upstream runtime's format:\n" +
			"a header line, then one event a line. With --tree what descends from it comes too, parents\n" +
			"first. Without --out, or with --out -, it goes to standard output, several sessions one\n" +
			"behind the other, which offshoot sessions import - reads.\n\n" +
			"--out writes a file; with --tree a folder, which holds each session in\n" +
			"--PROJECT--/ID/session.jsonl as the upstream keeps them, all of them or none. Nothing that\n" +
			"is there already is overwritten, and what is made is readable by its owner only.\n\n" +
			"The store is only read. Of a session that runs the export holds what was stored by then.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("out") && out == "" {
				return usagef("flag --out: the path is empty")
			}
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				return a.export(ctx, s, args[0], out, whole)
			})
		},
	}
	cmd.Flags().BoolVar(&whole, "tree", false, "export what descends from it too")
	cmd.Flags().StringVarP(&out, "out", "o", "", "write to this `PATH`: a file, or with --tree a folder")
	return cmd
}

func (a *app) export(ctx context.Context, s *shelf, name, out string, whole bool) error {
	rec, _, err := s.find(ctx, name)
	if err != nil {
		return err
	}
	all := []member{{rec: rec}}
	if whole {
		if all, err = s.tree(ctx, rec); err != nil {
			return err
		}
	}
	var entries []jsonl.Entry
	for _, m := range all {
		if m.rec.Err != nil {
			return m.rec.Err
		}
		entries = append(entries, jsonl.Entry{Header: m.rec.Header, Events: func() (iter.Seq2[session.Event, error], error) {
			rec, events, err := s.store.Inspect(ctx, m.rec.Header.ID)
			if err == nil {
				err = rec.Incomplete() // a log without its end would pass for a whole one
			}
			return events, err
		}})
	}
	if out == "" || out == "-" {
		return writeEntries(jsonl.NewWriter(a.stdout), entries)
	}
	path, err := a.within(out)
	if err != nil {
		return err
	}
	if whole {
		err = jsonl.WriteFolder(path, entries)
	} else {
		if info, serr := os.Stat(path); serr == nil && info.IsDir() {
			return usagef("flag --out: %s is a folder; name a file, or give --tree", out)
		}
		err = jsonl.WriteFile(path, func(w *jsonl.Writer) error { return writeEntries(w, entries) })
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was exported", err)
	}
	_, err = fmt.Fprintf(a.stdout, "exported %s to %s\n", plural(int64(len(entries)), "session"), printable(out))
	return err
}

// writeEntries writes logs one behind the other.
func writeEntries(w *jsonl.Writer, entries []jsonl.Entry) error {
	for i := range entries {
		events, err := entries[i].Events()
		if err == nil {
			err = w.Write(&entries[i].Header, events)
		}
		if err != nil {
			return errors.Join(err, w.Flush())
		}
	}
	return w.Flush()
}
