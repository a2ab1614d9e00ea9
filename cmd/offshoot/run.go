package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/tool"
)

// runFlags are the flags of run and resume.
type runFlags struct {
	model      string
	persona    string
	permission string
	maxDepth   int
	maxTokens  int
	timeout    time.Duration
	json       bool
	quiet      bool
}

func (f *runFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", "the model, as ROUTE:MODEL; the route ends at the first colon")
	fs.StringVar(&f.persona, "persona", "", "the persona of the root agent")
	fs.StringVar(&f.permission, "permission", "", "what tools may do: ask, allow, deny or read-only (default: ask on a terminal, else read-only)")
	fs.IntVar(&f.maxDepth, "max-depth", 0, "how deep agents may delegate; 0 forbids it")
	fs.IntVar(&f.maxTokens, "max-tokens", 0, "the most tokens that one model call may produce")
	fs.DurationVar(&f.timeout, "timeout", 0, "give up after this long, e.g. 90s; 0 is never")
	fs.BoolVar(&f.json, "json", false, "write one JSON object a line to stdout: events once they are stored, live chunks, the result")
	fs.BoolVar(&f.quiet, "quiet", false, "show no progress")
}

// flags returns what was really given, for the configuration.
func (f *runFlags) flags(cmd *cobra.Command) config.Flags {
	var c config.Flags
	changed := cmd.Flags().Changed
	if changed("model") {
		c.Model = &f.model
	}
	if changed("persona") {
		c.Persona = &f.persona
	}
	if changed("permission") {
		c.Permission = &f.permission
	}
	if changed("max-depth") {
		c.MaxDepth = &f.maxDepth
	}
	if changed("max-tokens") {
		c.MaxTokens = &f.maxTokens
	}
	return c
}

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [PROMPT | -]",
		Short: "Give an agent a task and watch it delegate",
		Long: "Run starts a fresh agent in the working directory, gives it the prompt, and prints its last answer.\n" +
			"A prompt of - is read from standard input. Everything is logged; see offshoot sessions.\n\n" +
			"Exit codes: 0 the turn completed; 1 it ended any other way; 2 a mistake in the call or the configuration;\n" +
			"130 interrupted, 143 terminated.",
		Args: cobra.MaximumNArgs(1), // an empty prompt is named by what reads it
		RunE: func(cmd *cobra.Command, args []string) error {
			prompt, err := a.prompt(args)
			if err != nil {
				return err
			}
			return a.run(cmd.Context(), cmd, &f, prompt)
		},
	}
	f.register(cmd)
	return cmd
}

// prompt reads the task: the argument, or standard input for "-" and for no
// argument when something is piped in.
func (a *app) prompt(args []string) (string, error) {
	text := ""
	switch {
	case len(args) == 1 && args[0] != "-":
		text = args[0]
	case len(args) == 0 && a.isTerminal(a.stdin):
		return "", usagef("run: a prompt is required: offshoot run \"what to do\", or - to read it from standard input")
	default:
		data, err := io.ReadAll(a.stdin)
		if err != nil {
			return "", fmt.Errorf("read the prompt: %w", err)
		}
		text = string(data)
	}
	if strings.TrimSpace(text) == "" {
		return "", usagef("the prompt is empty")
	}
	return strings.ToValidUTF8(text, "\uFFFD"), nil
}

func (a *app) run(ctx context.Context, cmd *cobra.Command, f *runFlags, prompt string) error {
	eff, err := a.load(cmd, f.flags(cmd), "")
	if err != nil {
		return err
	}
	choice, err := config.ChooseModel(eff, a.env)
	if err != nil {
		return err
	}
	r, err := a.newRunner(ctx, f, eff, choice)
	if err != nil {
		return err
	}
	return r.drive(ctx, func(ctx context.Context) (*agent.Handle, error) {
		return r.h.NewRoot(ctx, eff.Cwd, choice)
	}, func(ctx context.Context, root *agent.Agent) (bool, error) {
		return true, root.Accept(ctx, agent.UserText(prompt), session.NextTurn)
	})
}

// runner is one run of a tree, from the opening of the system to its result.
type runner struct {
	app    *app
	flags  *runFlags
	eff    *config.Effective
	choice config.Choice
	h      *harness.Harness
	prog   *progress
	tally  *tally
	lines  *lineWriter
	notes  *remarks

	rootID session.ID
	root   *agent.Agent
}

func (a *app) newRunner(ctx context.Context, f *runFlags, eff *config.Effective, choice config.Choice) (*runner, error) {
	if f.timeout < 0 {
		return nil, usagef("flag --timeout: %s is no time to wait", f.timeout)
	}
	r := &runner{app: a, flags: f, eff: eff, choice: choice, tally: &tally{}, notes: &remarks{}}
	live := a.isTerminal(a.stderr)
	r.prog = newProgress(a.stderr, live, f.quiet, a.terminalSize)
	mode := eff.Config.Permissions.Mode
	asks := a.isTerminal(a.stdin) && live
	if mode == "" {
		mode = config.PermissionReadOnly
		if asks {
			mode = config.PermissionAsk
		}
	}
	o := harness.Options{Config: eff, Env: a.env, Permission: mode, UserAgent: userAgent(), DemoPace: scripted.DefaultPace, Logger: slog.New(&remarkHandler{to: r.notes})}
	if mode == config.PermissionAsk && asks {
		var approver tool.Approver = newTerminalApprover(r.prog.pause)
		o.Approver = approver
	}
	if a.configure != nil {
		a.configure(&o)
	}
	h, err := harness.Open(ctx, o)
	if err != nil {
		r.prog.stop()
		r.notes.tell(a.stderr, err)
		return nil, err
	}
	r.h = h
	if a.opened != nil {
		a.opened(h)
	}
	return r, nil
}

// drive makes the root, starts it, waits until its tree has settled, and reports.
// start says whether there was anything to do.
func (r *runner) drive(ctx context.Context, open func(context.Context) (*agent.Handle, error), start func(context.Context, *agent.Agent) (bool, error)) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	// A reader that is gone is a failed write, not the end of the process: the tree
	// must still be settled and stored. Nobody reads the channel. (To ignore the
	// signal would be inherited by what tools start.)
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	r.lines = &lineWriter{w: r.app.stdout, failed: func(error) { r.cancel(session.Cause{Kind: session.CauseHook, Reason: "the output cannot be written"}) }}
	stopObserver := r.h.Agents.Observe(4096, r.prog.observe)
	r.h.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
		r.tally.watch(func() session.ID { return r.rootID }, a)
		return nil
	}})
	r.h.Subagents.AddHooks(subagent.Hooks{Started: r.prog.started}, nil)
	if r.flags.json {
		r.streamEvents()
	}
	handle, err := open(ctx)
	if err == nil {
		r.root = handle.Agent()
		outcome := &session.Outcome{}
		with, _ := r.root.Session().Watch(outcome)
		err = r.settle(ctx, signals, start, outcome, with)
	}
	// What is queued stays queued: this is the end of the process, not of the work.
	closed := make(chan struct{})
	var impatient sync.WaitGroup
	impatient.Go(func() { r.obey(signals, closed, err) })
	closeErr := r.h.Close(ctx)
	close(closed)
	impatient.Wait()
	stopObserver()
	r.prog.stop()
	err = r.report(err, novel(closeErr, err))
	r.notes.tell(r.app.stderr, err)
	return err
}

// obey lets a second signal end the process while the system is being closed.
func (r *runner) obey(signals <-chan os.Signal, closed <-chan struct{}, err error) {
	var end *ending
	again := errors.As(err, &end) && end.signal != nil
	for {
		select {
		case s := <-signals:
			if again {
				os.Exit(exitCodeOf(s))
			}
			again = true
			r.prog.note("offshoot: %v: everything is being closed; once more stops at once", s)
		case <-closed:
			return
		}
	}
}

// novel returns what of an error has causes that told does not have: a store that
// fails does so again when the run is closed, and is worth one line.
func novel(err, told error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok && joined(err.Error(), list.Unwrap()) {
		var rest []error
		for _, part := range list.Unwrap() {
			if part = novel(part, errors.Join(told, errors.Join(rest...))); part != nil {
				rest = append(rest, part)
			}
		}
		return errors.Join(rest...)
	}
	known, causes := map[string]bool{}, map[string]bool{}
	innermost(told, known)
	innermost(err, causes)
	for cause := range causes {
		if !known[cause] {
			return err
		}
	}
	return nil
}

// innermost collects the texts of the causes that an error ends in.
func innermost(err error, texts map[string]bool) {
	switch e := err.(type) { //nolint:errorlint // each level is looked at
	case nil:
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			innermost(part, texts)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			innermost(inner, texts)
			return
		}
		texts[err.Error()] = true
	default:
		texts[err.Error()] = true
	}
}

// errNothing says that a resumed session owes nothing.
var errNothing = errors.New("nothing to do")

// ending is how a run ended, for the exit code.
type ending struct {
	stopReason string
	signal     os.Signal
	timedOut   bool
	failure    string
}

func (e *ending) Error() string { return e.failure }

// settle starts the root and waits until it is idle. It returns nil for a
// completed turn, else what went wrong.
func (r *runner) settle(ctx context.Context, signals <-chan os.Signal, start func(context.Context, *agent.Agent) (bool, error), outcome *session.Outcome, with func(func())) error {
	r.rootID = r.root.ID()
	if r.choice.Ref.Route == config.DemoRoute {
		r.prog.note("offshoot: no model is configured, so the embedded demo model runs; it makes no model call (see offshoot config)")
	}
	something, err := start(ctx, r.root)
	if err != nil {
		return err
	}
	if !something {
		return errNothing
	}
	idle := make(chan error, 1)
	go func() { idle <- r.root.WhenIdle(context.WithoutCancel(ctx)) }()
	var timeout <-chan time.Time
	if r.flags.timeout > 0 {
		t := time.NewTimer(r.flags.timeout)
		defer t.Stop()
		timeout = t.C
	}
	end := &ending{}
	for {
		select {
		case err := <-idle:
			if err != nil {
				return err
			}
			return r.judge(end, outcome, with)
		case s := <-signals:
			if end.signal != nil {
				os.Exit(exitCodeOf(s))
			}
			end.signal = s
			r.prog.note("offshoot: %v: stopping the agents; once more stops at once", s)
			r.cancel(session.Cause{Kind: session.CauseUser})
		case <-timeout:
			end.timedOut = true
			r.cancel(session.Cause{Kind: session.CauseHook, Reason: "the time limit was reached"})
		}
	}
}

func (r *runner) cancel(cause session.Cause) {
	if r.root == nil {
		return
	}
	if err := r.root.Cancel(cause, true); err != nil {
		r.prog.note("offshoot: cancel: %v", err)
	}
}

// judge reads the root's last accounting turn.
func (r *runner) judge(end *ending, outcome *session.Outcome, with func(func())) error {
	var turn *session.TurnEnd
	with(func() { turn = outcome.End() })
	end.stopReason = "error"
	switch {
	case turn == nil:
		end.failure = "the agent made no turn"
	case turn.Kind == session.EndCompleted && end.signal == nil && !end.timedOut:
		end.stopReason = "completed"
		return end
	case turn.Kind == session.EndBlocked || turn.Kind == session.EndRefusal:
		end.stopReason, end.failure = "refusal", "the model declined the task"
	case turn.Kind == session.EndError && turn.Failure != nil:
		end.failure = fmt.Sprintf("%s: %s: %s", r.where(), turn.Failure.Code, turn.Failure.Message)
	default:
		end.stopReason, end.failure = string(turn.Kind), "the turn ended as "+string(turn.Kind)
	}
	switch {
	case end.timedOut:
		end.stopReason = "aborted"
		end.failure = fmt.Sprintf("timed out after %s", r.flags.timeout)
		if f := r.prog.failure(); f != nil {
			end.failure += fmt.Sprintf("; the last model failure was %s: %s: %s", r.where(), f.Code, f.Message)
		} else {
			end.failure += " while waiting for " + r.where()
		}
	case end.signal != nil:
		end.stopReason, end.failure = "aborted", "stopped by "+end.signal.String()
	}
	return end
}

// where names the model and the host that were asked.
func (r *runner) where() string {
	ref := r.root.Options()
	where := ref.Provider + ":" + ref.Model
	if u, err := url.Parse(r.eff.Config.Routes[ref.Provider].BaseURL); err == nil && u.Host != "" {
		where += " at " + u.Host
	}
	return where
}

// streamEvents writes every event of every session once it is stored, and the
// live chunks between them.
func (r *runner) streamEvents() {
	r.h.Sessions.AddHooks(session.Hooks{Stored: func(s *session.Session, from, to int64) {
		for e := range s.Events(from) {
			if e.Seq >= to {
				return
			}
			r.lines.write(func(buf []byte) []byte { return eventLine(buf, s.ID(), &e) })
		}
	}})
	r.h.Agents.AddHooks(agent.Hooks{Chunk: func(a *agent.Agent, c chunk) {
		r.lines.write(func(buf []byte) []byte { return chunkLine(buf, a.ID(), &c) })
	}})
}

// report prints the answer or the result line and turns how it ended into an error.
func (r *runner) report(err, closeErr error) error {
	if errors.Is(err, errNothing) {
		if closeErr != nil {
			return closeErr
		}
		_, werr := fmt.Fprintf(r.app.stderr, "offshoot: session %s owes nothing and has nothing queued\n", r.rootID)
		return werr
	}
	var end *ending
	if !errors.As(err, &end) {
		return errors.Join(err, closeErr)
	}
	usage, text := r.tally.read()
	res := &result{sessionID: r.rootID, stopReason: end.stopReason, text: text, model: r.root.Options().Provider + ":" + r.root.Options().Model, usage: usage}
	var werr error
	if r.flags.json {
		r.lines.write(func(buf []byte) []byte { return resultLine(buf, res) })
		werr = r.lines.failure()
	} else if text != "" {
		_, werr = fmt.Fprintln(r.app.stdout, strings.TrimRight(text, "\n"))
	}
	if werr != nil {
		werr = fmt.Errorf("write the answer: %w", werr)
	}
	switch {
	case end.signal != nil:
		return &exitError{code: exitCodeOf(end.signal), err: errors.Join(end, closeErr, werr)}
	case end.stopReason != "completed":
		return &exitError{code: 1, err: errors.Join(end, closeErr, werr)}
	}
	return errors.Join(closeErr, werr)
}

// exitCodeOf maps a signal to the exit code that shells expect.
func exitCodeOf(s os.Signal) int {
	if s == syscall.SIGTERM {
		return 143
	}
	return 130
}
