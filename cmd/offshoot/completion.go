package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent/fork"
	"github.com/offshoot-dev/offshoot/subagent/spawn"
)

// complete adds the library's completion command, whose scripts ask this program
// for what may follow: a session's id from the store where a command takes one,
// and the routes for --model wherever it is.
func (a *app) complete(root *cobra.Command) {
	// The library would add the command by itself, but one that takes a shell that
	// it does not know for no question at all. Its scripts go to the output of now.
	root.SetOut(a.stdout)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			group(cmd)
		}
		for _, sub := range append([]*cobra.Command{cmd}, cmd.Commands()...) {
			switch strings.TrimPrefix(sub.CommandPath(), root.Name()+" ") {
			case "sessions show", "sessions verify", "sessions tree", "sessions export", "sessions rm", "agents children":
				sub.ValidArgsFunction = a.sessionIDs(session.Filter{})
			case "resume":
				sub.ValidArgsFunction = a.sessionIDs(session.Filter{Top: true})
			case "agents send", "agents wait", "agents interrupt", "agents close":
				sub.ValidArgsFunction = a.sessionIDs(session.Filter{Origin: session.OriginSubagent})
			case "agents show":
				sub.ValidArgsFunction = a.agentNames
			}
			if sub.LocalFlags().Lookup("model") != nil {
				// The only error is a flag that is not there.
				_ = sub.RegisterFlagCompletionFunc("model", a.models)
			}
			if sub.LocalFlags().Lookup("delegate") != nil {
				_ = sub.RegisterFlagCompletionFunc("delegate", cobra.FixedCompletions([]cobra.Completion{
					cobra.CompletionWithDesc(spawn.DefaultName, "fresh agents"),
					cobra.CompletionWithDesc(fork.DefaultName, "agents that begin with the completed turns"),
				}, cobra.ShellCompDirectiveNoFileComp))
			}
		}
	}
}

// maxCompletions bounds what a shell is offered.
const maxCompletions = 200

// sessionIDs completes the first argument of a command from what a filter
// selects, the newest first. Whatever goes wrong, a shell is told nothing.
func (a *app) sessionIDs(f session.Filter) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []cobra.Completion
		err := a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
			if s.store == nil {
				return nil
			}
			f.IDPrefix = begun
			for rec, err := range s.records(ctx, f, session.Page{Newest: true, Limit: maxCompletions}) {
				if err != nil {
					return err
				}
				ids = append(ids, cobra.CompletionWithDesc(string(rec.Header.ID), s.describe(ctx, rec)))
				if len(ids) == maxCompletions {
					break
				}
			}
			return nil
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// describe tells sessions apart in a few words.
func (s *shelf) describe(ctx context.Context, rec session.Record) string {
	r := s.row(ctx, rec)
	if r.Error != "" {
		return r.State
	}
	name := r.Title
	if r.Label != "" {
		name = r.Label
	}
	return strings.TrimSpace(r.State + " " + first(name, 50))
}

// models completes a value of --model: each route with its default model.
func (a *app) models(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	eff, err := a.load(cmd, config.Flags{}, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var refs []cobra.Completion
	for _, name := range eff.RouteNames() {
		view := a.route(eff, eff.Config.Routes[name])
		ref := name + ":" + view.Model
		if !strings.HasPrefix(ref, begun) {
			continue
		}
		about := "key " + view.Key
		if name == config.DemoRoute {
			about = "embedded"
		}
		refs = append(refs, cobra.CompletionWithDesc(ref, about))
	}
	// Behind a route any model may follow, so no space does.
	return refs, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveKeepOrder
}
