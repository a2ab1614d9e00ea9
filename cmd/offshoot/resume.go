package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
)

type chunk = llm.Chunk

func newResumeCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "resume SESSION [PROMPT | -]",
		Short: "Go on with a stored session, also one that crashed",
		Long: "Resume opens a root session, repairs what a crash left, and gives it the prompt. Without one it goes on with what\n" +
			"is owed and queued, and says so when that is nothing. Continuable children that something cut go on too, and are\n" +
			"waited for; each child is named with what it does. The model is that of the session's last request unless\n" +
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
	if id, ok := projection.IdentityOf(&rec); ok && id.Mode == session.ModeContinuable && rec.Meta.Root != rec.Header.ID {
		return fmt.Errorf("resume session %s: %w (%s), or give this one more work: offshoot agents send %[1]s \"what to do\"", rec.Header.ID, harness.ErrNotRoot, rec.Meta.Root)
	}
	state, _ := projection.StateOf(&rec)
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
		h, err := r.h.ResumeRootIn(ctx, rec.Header.ID, moved, choice, r.answer.setup()...)
		var owned *session.OwnedError
		if errors.As(err, &owned) {
			err = fmt.Errorf("%w; %s", err, adviceOwned)
		}
		return h, err
	}, func(ctx context.Context, root *agent.Agent) (bool, error) {
		return r.goOn(ctx, root, prompt)
	})
}

// goOn lets the tree of a resumed root go on, with a prompt or with what is owed and
// queued. It reports whether anything is at work then.
func (r *runner) goOn(ctx context.Context, root *agent.Agent, prompt string) (something bool, err error) {
	parked, owed := root.Session().Parked(), 0
	// All that it is told, and the prompt, become one turn.
	err = root.RunMaintenance(ctx, func(context.Context) error {
		// What it was promised by a process that is gone it must not wait for.
		lost, err := r.h.Jobs.Recover(root, prompt == "" && !parked)
		if err != nil {
			return err
		}
		rows, err := r.h.Subagents.ListDescendants(ctx, root.ID())
		if err != nil {
			return err
		}
		found, err := r.h.Host.Recover(ctx, root)
		if err != nil {
			return err
		}
		r.reopened, owed = len(found.Reopened), lost+found.Notices
		r.showChildren(rows, &found)
		if err := r.settleCut(ctx, rows, &found); err != nil {
			return err
		}
		if prompt == "" {
			return nil
		}
		if n := int64(len(queued(root.Session()))); parked {
			r.prog.note("offshoot: %s that came with the imported session run first", plural(n, "queued message"))
		}
		return root.Accept(ctx, agent.UserText(prompt), session.NextTurn)
	})
	if err != nil {
		return false, err
	}
	woken := root.Wake() || owed > 0
	return prompt != "" || woken && !parked || r.reopened > 0, nil
}

// settleCut waits for the reopened children that have nothing to run, they and all below
// them: the root is told of them in the same turn as of everything else.
func (r *runner) settleCut(ctx context.Context, rows []subagent.Row, found *subagent.Recovered) error {
	busy := map[session.ID]bool{}
	for i := range slices.Backward(rows) { // parents come first in it
		row := &rows[i]
		sum := row.Summary()
		switch {
		case !slices.Contains(found.Reopened, row.ID):
		case busy[row.ID] || sum.State == nil || sum.State.Waiting > 0:
			busy[row.Parent] = true
		default:
			_, err := r.h.Host.Wait(ctx, row.Parent, row.ID)
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if err != nil {
				r.prog.note("offshoot: what subagent %s came to is not known: %v", row.ID, err)
			}
		}
	}
	return nil
}

// maxShown is how many children resume shows.
const maxShown = 20

// showChildren tells of the continuable children below a resumed root: what each was doing
// when it was found, and which of them could not be opened.
func (r *runner) showChildren(rows []subagent.Row, found *subagent.Recovered) {
	for _, s := range found.Skipped {
		r.prog.note("offshoot: subagent %s is left out: %v", s.ID, s.Err)
	}
	rows = slices.DeleteFunc(rows, func(row subagent.Row) bool {
		return row.Kind != subagent.RowChild || row.Mode != session.ModeContinuable
	})
	if len(rows) == 0 {
		return
	}
	many := "1 continuable child"
	if n := int64(len(rows)); n > 1 {
		many = thousands(n) + " continuable children"
	}
	r.prog.note("offshoot: %s below session %s:", many, r.rootID)
	for i := range rows {
		if i == maxShown {
			r.prog.note("  and %d more: offshoot agents children %s --descendants", len(rows)-i, r.rootID)
			break
		}
		label := "untitled"
		if l := rows[i].Label; l != nil {
			label = clip(oneLine(*l), maxLabel)
		}
		r.prog.note("  %s  %s  (%s)", rows[i].ID, label, fate(&rows[i], found))
	}
}

// fate says what became of a continuable child.
func fate(row *subagent.Row, found *subagent.Recovered) string {
	queued, cut := int64(0), true
	if sum := row.Summary(); sum.State != nil {
		queued, cut = sum.State.Waiting, sum.State.Unsettled
	}
	switch {
	case slices.ContainsFunc(found.Skipped, func(s subagent.Skipped) bool { return s.ID == row.ID }):
		return "left out"
	case slices.Contains(found.Reopened, row.ID) && queued > 0:
		return "goes on with " + plural(queued, "queued message")
	case slices.Contains(found.Reopened, row.ID) && !cut:
		return "hears what its own children come to"
	case slices.Contains(found.Reopened, row.ID):
		return "was cut off in its work"
	case queued > 0:
		return "ready; " + waiting(queued) + " in its queue"
	}
	return "ready"
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
	u, told := projection.UsageOf(&rec)
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
