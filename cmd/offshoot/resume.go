package main

import (
	"context"
	"fmt"

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
			"--model names another. SESSION may be the beginning of an id.\n\n" + delegateHelp + "\n\n" + schemaHelp + "\n" +
			"It concerns what runs now: an earlier answer of the session is in its log.\n\n" + jsonHelp,
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
	if cmd.Flags().Changed("cwd") {
		return usagef("flag --cwd: a session is resumed in its own folder")
	}
	flags := f.flags(cmd)
	rec, err := a.find(ctx, cmd, flags, name)
	if err != nil {
		return err
	}
	// The session's own folder decides: its project file, its trust.
	eff, err := a.load(cmd, flags, rec.Header.Cwd)
	if err != nil {
		return err
	}
	choice, err := a.modelOf(eff, rec, flags)
	if err != nil {
		return err
	}
	r, err := a.newRunner(f, schema, eff, choice)
	if err != nil {
		return err
	}
	r.rootID = rec.Header.ID
	return r.drive(ctx, func(ctx context.Context) (*agent.Handle, error) {
		return r.h.ResumeRoot(ctx, rec.Header.ID, choice, r.answer.setup()...)
	}, func(ctx context.Context, root *agent.Agent) (bool, error) {
		if prompt == "" {
			return root.Wake(), nil
		}
		return true, root.Accept(ctx, agent.UserText(prompt), session.NextTurn)
	})
}

// modelOf chooses the model of a resumed session: a flag or the environment, else
// that of its last request, else what the configuration says.
func (a *app) modelOf(eff *config.Effective, rec session.Record, flags config.Flags) (config.Choice, error) {
	_, fromEnv := a.env(config.EnvModel)
	u, told := projection.UsageOf(rec)
	if flags.Model != nil || fromEnv || !told || u.Provider == "" {
		return config.ChooseModel(eff, a.env)
	}
	c, err := eff.Resolve(config.ModelRef{Route: u.Provider, Model: u.Model}, "model", a.env)
	if err != nil {
		return c, fmt.Errorf("the session's own model: %w", err)
	}
	return c, nil
}
