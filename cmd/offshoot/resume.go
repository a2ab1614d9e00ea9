package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/structured"
)

type chunk = llm.Chunk

func newResumeCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "resume SESSION [PROMPT | -]",
		Short: "Go on with a stored session, also one that crashed",
		Long: "Resume opens a root session, repairs what a crash left, and gives it the prompt. Without one it goes on with what\n" +
			"is owed and queued, and says so when that is nothing. The model is that of the session's last request unless\n" +
			"--model names another. SESSION may be the beginning of an id.\n\n" +
			"What came in the queue of an imported session waits until you give a prompt, and runs first then. Such a session\n" +
			"works in the folder that you are in if that is its own, else in the one that --cwd names, and on the configured\n" +
			"model where its own route is unknown.\n\n" +
			showHelp + "\n\n" + delegateHelp + "\n\n" + schemaHelp + "\n" +
			"It concerns what runs now: an earlier answer of the session is in its log.\n\n" + jsonHelp + "\n\n" +
			"Exit codes: 0 the turn completed, with the answer that was asked for, or there was nothing to do;\n" + exitHelp,
		Args: arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			schema, err := readSchema(cmd, f.schema)
			if err != nil {
				return err
			}
			prompt := ""
			if len(args) == 2 {
				if prompt, err = a.prompt(args[1:]); err != nil {
					return err
				}
			}
			return a.resume(cmd.Context(), cmd, &f, schema, args[0], prompt)
		},
	}
	f.register(cmd)
	return cmd
}

func (a *app) resume(ctx context.Context, cmd *cobra.Command, f *runFlags, schema *structured.Schema, name, prompt string) error {
	flags := f.flags(cmd)
	rec, store, err := a.find(ctx, cmd, flags, name)
	if err != nil {
		return err
	}
	state, _ := projection.StateOf(rec)
	cwd, moved, err := a.folderOf(cmd, rec, state.Imported)
	if err != nil {
		return err
	}
	// The session's own folder decides: its project file, its trust. But not where the
	// session is, and a relative path in it would mean another file there.
	flags.Store = &store
	eff, err := a.load(cmd, flags, cwd)
	if err != nil {
		return err
	}
	choice, note, err := a.modelOf(eff, rec, flags, state.Imported)
	if err != nil {
		return err
	}
	r, err := a.newRunner(f, schema, eff, choice)
	if err != nil {
		return err
	}
	r.rootID, r.remark = rec.Header.ID, note
	return r.drive(ctx, func(ctx context.Context) (*agent.Handle, error) {
		return r.h.ResumeRootIn(ctx, rec.Header.ID, moved, choice, r.answer.setup()...)
	}, func(ctx context.Context, root *agent.Agent) (bool, error) {
		// What it was promised by a process that is gone it must not wait for.
		wake := prompt == "" && !root.Session().Parked()
		lost, err := r.h.Jobs.Recover(root, wake)
		if err != nil {
			return false, err
		}
		if prompt == "" {
			return root.Wake() || wake && lost > 0, nil
		}
		if n := int64(len(queued(root.Session()))); root.Session().Parked() {
			r.prog.note("offshoot: %s that came with the imported session run first", plural(n, "queued message"))
		}
		return true, root.Accept(ctx, agent.UserText(prompt), session.NextTurn)
	})
}

// folderOf returns the folder that a session is resumed in: its own. A folder in an
// imported log is somebody else's word, and tools and trust follow it: unless the
// person stands in it, --cwd names the one to work in, which moved is then.
func (a *app) folderOf(cmd *cobra.Command, rec session.Record, imported bool) (cwd, moved string, err error) {
	if cmd.Flags().Changed("cwd") {
		if !imported {
			return "", "", usagef("flag --cwd: a session is resumed in its own folder")
		}
		moved, err = a.folder(cmd)
		return moved, moved, err
	}
	if !imported {
		return rec.Header.Cwd, "", nil
	}
	here, err := a.folder(cmd)
	if err == nil && rec.Header.Cwd != "" && here != rec.Header.Cwd {
		err = usagef("session %s was imported, and its folder is %s, which is not this one: name the one to work in with --cwd", rec.Header.ID, printable(rec.Header.Cwd))
	}
	return here, here, err
}

// queued returns what waits in a session's inbox, in the order in which it is taken.
func queued(s *session.Session) []session.Queued {
	return slices.Concat(s.Inbox(session.NextStep), s.Inbox(session.NextTurn))
}

// modelOf chooses the model of a resumed session: a flag or the environment, else
// that of its last request, else what the configuration says. So it does for a
// session that was imported from where there were other routes, with a note.
func (a *app) modelOf(eff *config.Effective, rec session.Record, flags config.Flags, imported bool) (c config.Choice, note string, err error) {
	_, fromEnv := a.env(config.EnvModel)
	u, told := projection.UsageOf(rec)
	if flags.Model != nil || fromEnv || !told || u.Provider == "" {
		c, err = config.ChooseModel(eff, a.env)
		return c, "", err
	}
	if _, known := eff.Config.Routes[u.Provider]; imported && !known {
		if c, err = config.ChooseModel(eff, a.env); err == nil {
			note = fmt.Sprintf("offshoot: the imported session's route %s is none of this configuration, so %s:%s goes on (--model chooses another)",
				printable(u.Provider), c.Ref.Route, c.Ref.Model)
		}
		return c, note, err
	}
	if c, err = eff.Resolve(config.ModelRef{Route: u.Provider, Model: u.Model}, "model", a.env); err != nil {
		return c, "", fmt.Errorf("the session's own model: %w", err)
	}
	return c, "", nil
}
