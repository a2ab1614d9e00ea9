package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/compact"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/internal/jsonx"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
)

func newCompactCommand(a *app) *cobra.Command {
	var model string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compact ID",
		Short: "Sum up the conversation of a stored session now",
		Long: "Has the model write a summary that takes the place of all but the newest part of what the\n" +
			"next request of the session would hold. It happens by itself when a conversation comes near\n" +
			"its model's window (compaction.auto); this is for doing it before. Nothing is lost: the log\n" +
			"keeps what was said, and \"sessions show\" shows it. Queued messages stay queued.\n\n" +
			"The model is that of the session's last request unless --model names another.\n\n" +
			"--json writes one object: {\"sessionId\",\"messages\",\"before\",\"after\",\"window\",\"model\",\"usage\"} with\n" +
			"the number of messages that were summed up (0: there was nothing to leave out), and about how\n" +
			"many tokens the next request takes.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var f config.Flags
			if cmd.Flags().Changed("model") {
				f.Model = &model
			}
			return a.compact(cmd.Context(), cmd, f, args[0], asJSON)
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "the model that sums up, as ROUTE:MODEL")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object")
	return cmd
}

func (a *app) compact(ctx context.Context, cmd *cobra.Command, f config.Flags, name string, asJSON bool) error {
	rec, store, err := a.find(ctx, cmd, f, name)
	if err != nil {
		return err
	}
	state, _ := projection.StateOf(&rec)
	cwd := rec.Header.Cwd
	if state.Imported { // somebody else's word, and nothing is done in it
		cwd = ""
	}
	f.Store = &store
	eff, err := a.load(cmd, f, cwd)
	if err != nil {
		return err
	}
	choice, note, err := a.modelOf(eff, rec, f, state.Imported)
	if err != nil {
		return err
	}
	if note != "" {
		if _, err := fmt.Fprintln(a.stderr, note); err != nil {
			return err
		}
	}
	o := harness.Options{Config: eff, Env: a.env, NoServers: true, UserAgent: userAgent(), DemoPace: scripted.DefaultPace, Logger: a.logger()}
	if a.configure != nil {
		a.configure(&o)
	}
	h, err := harness.Open(ctx, o)
	if err != nil {
		return err
	}
	res, why, err := compactStored(ctx, h, rec.Header.ID, choice)
	if err = errors.Join(err, h.Close(ctx)); err != nil {
		return err
	}
	return a.tellCompacted(rec.Header.ID, choice.Ref, res, why, asJSON)
}

// compactStored opens a session, a root or a delegated one, for nothing but that. why
// says why nothing was summed up, which is no error.
func compactStored(ctx context.Context, h *harness.Harness, id session.ID, choice config.Choice) (res compact.Result, why string, err error) {
	handle, err := h.Agents.Resume(ctx, agent.Resume{ID: id, Options: agent.Options{Provider: choice.Ref.Route, Model: choice.Ref.Model}})
	if err != nil {
		return res, "", err
	}
	res, err = h.Compactor.Compact(ctx, handle.Agent())
	var cerr *compact.Error
	if errors.As(err, &cerr) && cerr.Code == compact.CodeNothing {
		why, err = cerr.Err.Error(), nil
	}
	return res, why, errors.Join(err, handle.Release(ctx))
}

func (a *app) tellCompacted(id session.ID, model config.ModelRef, r compact.Result, why string, asJSON bool) error {
	if asJSON {
		buf := jsonx.AppendStringField([]byte{'{'}, "sessionId", string(id))
		buf = jsonx.AppendIntField(buf, "messages", int64(r.Summed))
		buf = jsonx.AppendIntField(buf, "before", r.Before)
		buf = jsonx.AppendIntField(buf, "after", r.After)
		buf = jsonx.AppendIntField(buf, "window", r.Window)
		buf = jsonx.AppendStringField(buf, "model", model.String())
		buf = append(appendUsage(jsonx.AppendKey(buf, "usage"), r.Usage), '}', '\n')
		_, err := a.stdout.Write(buf)
		return err
	}
	window := ""
	if r.Window > 0 {
		window = fmt.Sprintf(", of %s", thousands(r.Window))
	}
	if r.Summed == 0 {
		_, err := fmt.Fprintf(a.stdout, "session %s: %s; the next request takes about %s tokens%s\n", id, why, thousands(r.Before), window)
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "session %s: %s summed up by %s; the next request takes about %s tokens, before %s%s\n",
		id, plural(int64(r.Summed), "message"), printable(model.String()), thousands(r.After), thousands(r.Before), window)
	return err
}
