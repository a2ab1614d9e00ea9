package main

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/store/memory"
)

func newAgentsListCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the agents that are defined, with the tools that start them",
		Long: "Lists every agent definition but that of the root agent: its name, its tool, its model,\n" +
			"what it is for, and where it is defined.\n\n" +
			"--json writes one object a line: name, tool, provider, model (ROUTE:MODEL; absent: its\n" +
			"parent's), source (kind, file, line) and description.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			return errors.Join(a.notes(eff), a.listAgents(eff, definitions(eff), asJSON))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object a line")
	return cmd
}

func newAgentsShowCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show all of one definition and where each part comes from",
		Long: "Prints every value of an agent's definition with its source, the tools that the agent would\n" +
			"see, and its persona as it is written. NAME default is the root agent.\n\n" +
			"--json writes one object: name, tool, source, values (key, value, source), tools, persona,\n" +
			"personaSource and personaLiteral (nothing in it is interpolated).",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			eff, err := a.load(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			src, _ := eff.Source("agents." + args[0])
			return errors.Join(a.notes(eff, src.File), a.showAgent(cmd.Context(), eff, args[0], asJSON))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object")
	return cmd
}

func newAgentsCheckCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE…]",
		Short: "Check every definition without running anything",
		Long: "Checks what a run would check before it starts: the configuration, every agent file, the\n" +
			"models, providers and tools that they name. Each fault has a line with its file and line.\n" +
			"FILEs are checked with all others, and the agents that they take part in are listed. One\n" +
			"below the working directory stands in the place of the project's file of that name, any\n" +
			"other in the place of yours; one in a folder .claude/agents is read as Claude Code's.\n\n" +
			"Exit codes: 0 all is well; 2 something is wrong; 1 something cannot be read.",
		Args: arguments(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := a.loadOptions(cmd, config.Flags{}, "")
			if err != nil {
				return err
			}
			for i, file := range args {
				if file, err = a.within(file); err != nil {
					return err
				}
				args[i] = filepath.Clean(file)
			}
			o.AgentFiles = args
			eff, err := config.LoadPartial(o)
			if eff == nil {
				return err
			}
			more := a.assemble(cmd.Context(), eff, func(*harness.Harness) error { return nil })
			if err != nil || more != nil {
				return errors.Join(a.notes(eff), once(err, more))
			}
			names := definitions(eff)
			if len(args) > 0 {
				// Of an agent that two sides define, the entry has the source of the upper one.
				names = nil
				for _, f := range eff.Agents {
					if slices.Contains(args, f.Path) && !slices.Contains(names, f.Agent) {
						names = append(names, f.Agent)
					}
				}
				slices.Sort(names)
			}
			return errors.Join(a.notes(eff), a.listAgents(eff, names, false))
		},
	}
}

// once joins two errors, but for faults of the second that stand where one of the first does.
func once(first, second error) error {
	type spot struct {
		file, key string
		line      int
	}
	at := func(e *config.Error) spot { return spot{e.File, e.Key, e.Line} }
	known := map[spot]bool{}
	for _, e := range config.Faults(first) {
		known[at(e)] = true
	}
	if first == nil {
		return second
	}
	all := []error{first}
	for _, err := range leaves(second) {
		if e, ok := errors.AsType[*config.Error](err); !ok || !known[at(e)] {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// leaves takes joined errors apart.
func leaves(err error) []error {
	var list interface{ Unwrap() []error }
	if !errors.As(err, &list) {
		if err == nil {
			return nil
		}
		return []error{err}
	}
	var all []error
	for _, one := range list.Unwrap() {
		all = append(all, leaves(one)...)
	}
	return all
}

// definitions lists the agents that have a tool, by name.
func definitions(eff *config.Effective) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(eff.Config.Agents)), func(name string) bool { return name == config.DefaultAgent })
}

// notes tells what was left out of files that nothing is wrong with: of all, or of those
// that are named.
func (a *app) notes(eff *config.Effective, files ...string) error {
	var errs []error
	for _, n := range eff.Notes {
		if len(files) > 0 && !slices.Contains(files, n.File) {
			continue
		}
		errs = append(errs, a.say(printable(n.String())))
	}
	return errors.Join(errs...)
}

// definition is one agent of a listing, and its form in JSON.
type definition struct {
	Name        string        `json:"name"`
	Tool        string        `json:"tool"`
	Provider    string        `json:"provider"`
	Model       string        `json:"model,omitempty"`
	Source      config.Source `json:"source"`
	Description string        `json:"description,omitempty"`
}

// maxDescription is how much of a description a line of a listing shows.
const maxDescription = 80

func (a *app) listAgents(eff *config.Effective, names []string, asJSON bool) error {
	if len(names) == 0 {
		return a.say("no agent is defined")
	}
	table, enc := newTable(a.stdout), json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	if !asJSON {
		if err := cells(table, "NAME", "TOOL", "MODEL", "DESCRIPTION", "DEFINED BY"); err != nil {
			return err
		}
	}
	for _, name := range names {
		def := eff.Config.Agents[name]
		d := definition{Name: name, Tool: def.ToolName(), Provider: def.Provider}
		d.Source, _ = eff.Source("agents." + name)
		if def.Model != nil {
			d.Model = def.Model.String()
		}
		if def.Description != nil {
			d.Description = *def.Description
		}
		var err error
		if asJSON {
			err = enc.Encode(d)
		} else {
			err = cells(table, d.Name, d.Tool, d.Model, clip(d.Description, maxDescription), d.Source.String())
		}
		if err != nil {
			return err
		}
	}
	return table.Flush()
}

// assemble makes a system of a configuration and hands it to fn. Nothing is kept of
// it, and nothing of it runs.
func (a *app) assemble(ctx context.Context, eff *config.Effective, fn func(*harness.Harness) error) error {
	h, err := harness.Open(ctx, harness.Options{Config: eff, Env: a.env, Store: memory.New(), NoServers: true, Logger: a.logger()})
	if err != nil {
		return err
	}
	return errors.Join(fn(h), h.Close(ctx))
}

// definitionView is all of one agent, in its form for JSON.
type definitionView struct {
	Name    string         `json:"name"`
	Tool    string         `json:"tool,omitempty"`    // empty for the root
	Product string         `json:"product,omitempty"` // the kind of product that plays it; empty for an agent of this program
	Source  config.Source  `json:"source"`
	Values  []config.Value `json:"values"`
	Tools   []string       `json:"tools"` // empty for a product, which has its own
	Persona *string        `json:"persona,omitempty"`
	From    *config.Source `json:"personaSource,omitempty"`
	Literal bool           `json:"personaLiteral"`
}

func (a *app) showAgent(ctx context.Context, eff *config.Effective, name string, asJSON bool) error {
	if _, ok := eff.Config.Agents[name]; !ok {
		return usagef("no agent is named %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(eff.Config.Agents)), ", "))
	}
	def, personaKey := eff.Config.Subagent(name)
	v := definitionView{Name: name, Persona: def.Persona, Values: []config.Value{}}
	if name != config.DefaultAgent {
		v.Tool = def.ToolName()
	}
	v.Source, _ = eff.Source("agents." + name)
	for _, value := range eff.Values {
		if strings.HasPrefix(value.Key, "agents."+name+".") && value.Key != personaKey {
			v.Values = append(v.Values, value)
		}
	}
	err := a.assemble(ctx, eff, func(h *harness.Harness) (err error) {
		if def.Persona != nil {
			src, _ := eff.Source(personaKey)
			v.From, v.Literal = &src, h.Literal(personaKey)
		}
		if v.Product = eff.Config.Products()[def.Provider].Provider; v.Product != "" {
			v.Tools = []string{}
			return nil
		}
		v.Tools, err = visible(h, def.Tools)
		return err
	})
	if err != nil {
		return err
	}
	if asJSON {
		line, err := encode(v)
		if err == nil {
			_, err = a.stdout.Write(append(line, '\n'))
		}
		return err
	}
	return a.writeDefinition(v)
}

func (a *app) writeDefinition(v definitionView) error {
	p := &paper{w: a.stdout}
	tool, tools := v.Tool, strings.Join(v.Tools, ", ")
	if tool == "" {
		tool = "none: it is the root agent"
	}
	switch {
	case v.Product != "":
		tools = "the tools of its product (" + v.Product + ")"
	case tools == "":
		tools = "none"
	}
	p.line("agent     %s", printable(v.Name))
	p.line("tool      %s", printable(tool))
	p.line("defined   by %s", printable(v.Source.String()))
	p.line("sees      %s", printable(tools))
	for _, value := range v.Values {
		p.line("%s: %s  # %s", strings.TrimPrefix(value.Key, "agents."+v.Name+"."), printable(value.Text), printable(value.Source.String()))
	}
	if v.Persona == nil {
		p.line("persona: none")
		return p.err
	}
	kind := "template"
	if v.Literal {
		kind = "literal"
	}
	p.line("persona: %s  # %s\n", kind, printable(v.From.String()))
	p.put(legible(*v.Persona) + "\n")
	return p.err
}

// agentNames completes the name of an agent. Whatever goes wrong, a shell is told
// nothing.
func (a *app) agentNames(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	eff, err := a.load(cmd, config.Flags{}, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	for _, name := range slices.Sorted(maps.Keys(eff.Config.Agents)) {
		if strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
