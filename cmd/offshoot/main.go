// Command offshoot gives an agent a task and watches the tree of agents that it
// grows: run, resume, and what one needs to look at what they left. Floor 9.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/harness/supervise"
)

// app is what the commands stand on: everything that they reach outside of their
// arguments. A test fills it with its own.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	env   config.Environ
	getwd func() (string, error)
	now   func() time.Time // its location is the one that times are told in
	build func() (*debug.BuildInfo, bool)
	// collect is debug.SetGCPercent, or nil where the process is not this command's.
	collect func(percent int) int

	// configure may change what a run opens; opened gets to see what it opened.
	// Both may be nil.
	configure func(*harness.Options)
	opened    func(*harness.Harness)

	global globalFlags
}

// globalFlags are the values of the flags that every command has; see app.load.
type globalFlags struct{ config, store, cwd string }

func main() {
	supervise.Main()
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		env: config.OSEnviron, getwd: os.Getwd, now: time.Now, build: debug.ReadBuildInfo, collect: debug.SetGCPercent,
	}
	os.Exit(a.execute(context.Background(), os.Args[1:]))
}

// execute runs one command line and returns the exit code. What went wrong is on
// stderr then.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.newRootCommand()
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetArgs(append([]string{}, args...)) // nil would mean the process's own
	started := false
	announce(root, &started)
	err := root.ExecuteContext(ctx)
	if err != nil && !started {
		// No command ran: the command line itself was at fault.
		err = &exitError{code: exitUsage, err: err}
	}
	return a.report(err)
}

// announce makes every command below cmd say that it was started.
func announce(cmd *cobra.Command, started *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		announce(sub, started)
	}
}

// isTerminal reports whether a stream is a terminal.
func (a *app) isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalSize is the size of the terminal that stderr is, in cells.
func (a *app) terminalSize() (width, height int) {
	if f, ok := a.stderr.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return w, h
		}
	}
	return 80, 24
}

// logger takes what the parts can tell nobody else.
func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (a *app) newRootCommand() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "offshoot",
		Short: "Agents that delegate, with nothing lost",
		Long: "Offshoot gives an agent a task, lets it delegate to agents of its own, and keeps a\n" +
			"durable log of each of them.\n\n" +
			"Exit codes: 0 when the work was completed, 1 when it was not or something failed,\n" +
			"2 for what was asked wrongly (arguments, configuration, a missing key or folder),\n" +
			"130 and 143 after SIGINT and SIGTERM.",
		Version:       a.version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	})
	root.SetVersionTemplate("offshoot {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (see %q)", err, cmd.CommandPath()+" --help")
	})
	f := root.PersistentFlags()
	f.StringVar(&a.global.config, "config", "", "read this `FILE` in the place of the user's configuration file and agent files")
	f.StringVar(&a.global.store, "store", "", "where sessions are kept: the path of an SQLite `STORE`, sqlite:PATH, sqlite or memory")
	f.StringVar(&a.global.cwd, "cwd", "", "work in this `DIR` (default: here)")
	root.AddCommand(
		newRunCommand(a), newResumeCommand(a), newSessionsCommand(a), newAgentsCommand(a),
		newConfigCommand(a), newTrustCommand(a), newDoctorCommand(a), newVersionCommand(a),
	)
	a.complete(root)
	root.SetHelpCommand(newHelpCommand(root))
	return root
}

// group makes a command that only holds others: alone it prints its help, and
// an argument that names none of them is a usage error.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	return cmd
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := fmt.Sprintf("see %q", cmd.CommandPath()+" --help")
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef("unknown command %q for %q (%s)", name, cmd.CommandPath(), hint)
}

// newHelpCommand replaces the library's, which ends in 0 for a command that does
// not exist.
func newHelpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				if cmd == nil {
					cmd = root
				}
				return unknownCommand(cmd, strings.Join(rest, " "))
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// arguments checks the number of a command's arguments; most < 0 is no limit.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		use := fmt.Sprintf("usage: %s", cmd.UseLine())
		switch {
		case len(args) < least:
			return usagef("an argument is missing (%s)", use)
		case most >= 0 && len(args) > most:
			return usagef("unexpected argument %q (%s)", args[most], use)
		}
		for _, arg := range args {
			if arg == "" {
				return usagef("an argument is empty (%s)", use)
			}
		}
		return nil
	}
}
