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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/llm"
	"github.com/offshoot-dev/offshoot/llm/scripted"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/tool"
)

// runFlags are the flags of run and resume.
type runFlags struct {
	model      string
	persona    string
	permission string
	delegate   string
	maxDepth   int
	maxTokens  int
	timeout    time.Duration
	schema     string
	json       bool
	quiet      bool
	verbose    bool
}

func (f *runFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", "the model, as ROUTE:MODEL; the route ends at the first colon")
	fs.StringVar(&f.persona, "persona", "", "the persona of the root agent")
	fs.StringVar(&f.permission, "permission", "", "what tools may do: ask, allow, deny or read-only (default: ask on a terminal, else read-only)")
	fs.StringVar(&f.delegate, "delegate", "", "what the subagent tool starts: spawn, fresh agents, or fork, agents that begin with\nthe completed turns of the conversation (default: what the configuration says, else spawn)")
	fs.IntVar(&f.maxDepth, "max-depth", 0, "how deep agents may delegate; 0 forbids it")
	fs.IntVar(&f.maxTokens, "max-tokens", 0, "the most tokens that one model call may produce")
	fs.DurationVar(&f.timeout, "timeout", 0, "give up after this long, e.g. 90s; 0 is never")
	fs.StringVar(&f.schema, "output-schema", "", "answer with JSON that satisfies the JSON Schema in `FILE`")
	fs.BoolVar(&f.json, "json", false, "write one JSON object a line to stdout: events once they are stored, live chunks, the result last")
	fs.BoolVar(&f.quiet, "quiet", false, "show no progress, no summary and no notes")
	fs.BoolVar(&f.verbose, "verbose", false, "show what each child says too, line by line under its label, on stderr")
	cmd.MarkFlagsMutuallyExclusive("quiet", "verbose")
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
	if changed("delegate") {
		c.Delegate = &f.delegate
	}
	if changed("max-depth") {
		c.MaxDepth = &f.maxDepth
	}
	if changed("max-tokens") {
		c.MaxTokens = &f.maxTokens
	}
	return c
}

const jsonHelp = "With --json the last line is the result, also when the session could not go on. Its stopReason is completed,\n" +
	"nothing (a resumed session owed nothing), parked (what came in an imported session's queue waits for a prompt),\n" +
	"refusal, aborted, error, or how else the turn ended. Live chunks that a slow reader left no room for are told by a\n" +
	"line of type assistant.chunk.dropped with their count; events never are.\n" +
	"An answer in the form of --output-schema is the result's member structured; look at the stopReason first."

const delegateHelp = "With --delegate fork a subagent begins with the completed turns of the agent that delegates, and with nothing\n" +
	"while that is in its first turn. Its requests begin as that agent's do, so a model's prompt cache serves both."

const continuableHelp = "A continuable child (backgroundMode: continuable in the configuration) outlives its task and the process: when\n" +
	"something ends the run early, what was accepted stays queued and resume goes on with it; what has settled takes\n" +
	"more by offshoot agents send."

// exitHelp tells the exit codes of run and resume but 0.
const exitHelp = "1 it ended any other way; 2 a mistake in the call or the configuration; 130 interrupted, 143 terminated."

const showHelp = "Stderr shows each agent's label, model, tokens, tool calls and time: a tree on a terminal, else lines about what\n" +
	"happens. At the end each child of this run has a line there: its label, mode, model, how it ended, tokens, tool calls,\n" +
	"time and session (of more than 500 the oldest are counted; offshoot sessions tree shows all). With --verbose whole\n" +
	"lines of what children say come between, as LABEL │ TEXT; that is for people: with --json, stdout has every child's\n" +
	"text as events and chunks already, and is the same with and without it. Stdout gets the answer alone."

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [PROMPT | -]",
		Short: "Give an agent a task and watch it delegate",
		Long: "Run starts a fresh agent in the working directory, gives it the prompt, and prints its last answer.\n" +
			"A prompt of - is read from standard input. Everything is logged; see offshoot sessions.\n" +
			"It ends when the agent is idle, no background job of it is left and every continuable child below it has\n" +
			"settled, with the turns that their notices wake.\n\n" + continuableHelp + "\n\n" +
			showHelp + "\n\n" + delegateHelp + "\n\n" + schemaHelp + "\n\n" + jsonHelp + "\n\n" +
			"Exit codes: 0 the turn completed, with the answer that was asked for;\n" + exitHelp,
		Args: cobra.MaximumNArgs(1), // an empty prompt is named by what reads it
		RunE: func(cmd *cobra.Command, args []string) error {
			schema, err := readSchema(cmd, f.schema)
			if err != nil {
				return err
			}
			prompt, err := a.prompt(args)
			if err != nil {
				return err
			}
			return a.run(cmd.Context(), cmd, &f, schema, prompt)
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

func (a *app) run(ctx context.Context, cmd *cobra.Command, f *runFlags, schema *structured.Schema, prompt string) error {
	eff, err := a.load(cmd, f.flags(cmd), "")
	if err != nil {
		return err
	}
	choice, err := config.ChooseModel(eff, a.env)
	if err != nil {
		return err
	}
	r, err := a.newRunner(f, schema, eff, choice)
	if err != nil {
		return err
	}
	r.fallback = choice.Ref.Route == config.DemoRoute && choice.Source.Kind == config.FromDefault
	return r.drive(ctx, func(ctx context.Context) (*agent.Handle, error) {
		return r.h.NewRoot(ctx, eff.Cwd, choice, r.answer.setup()...)
	}, func(ctx context.Context, root *agent.Agent) (bool, error) {
		return true, root.Accept(ctx, agent.UserText(prompt), session.NextTurn)
	})
}

// runner is one run of a tree, from the opening of the system to its result. Only
// the goroutine that calls drive reads and writes its fields.
type runner struct {
	app     *app
	flags   *runFlags
	eff     *config.Effective
	choice  config.Choice
	options harness.Options
	h       *harness.Harness
	prog    *progress
	tally   *tally
	out     *lineWriter
	stop    *stopper
	notes   *remarks
	answer  *answer // nil: the answer is text

	fallback bool       // the demo runs because nothing else was chosen
	remark   string     // on the choice of the model, or ""
	cut      string     // how a crash cut the resumed session's last turn
	parked   []string   // what waits in an imported session's queue for a prompt
	reopened int        // continuable children that resume went on with
	unseen   int        // notices that wait for a turn which something else opens
	rootID   session.ID // "" until it is known
	root     *agent.Agent
}

// newRunner returns a runner that has opened nothing yet; drive is to follow.
func (a *app) newRunner(f *runFlags, schema *structured.Schema, eff *config.Effective, choice config.Choice) (*runner, error) {
	if f.timeout < 0 {
		return nil, usagef("flag --timeout: %s is no time to wait", f.timeout)
	}
	r := &runner{app: a, flags: f, eff: eff, choice: choice, tally: &tally{}, notes: &remarks{}}
	var err error
	if r.answer, err = newAnswer(schema, choice); err != nil {
		return nil, err
	}
	r.prog = a.progress(f.quiet, f.verbose)
	r.options = a.options(eff, r.prog, r.notes)
	return r, nil
}

// progress returns a display on stderr.
func (a *app) progress(quiet, verbose bool) *progress {
	dumb := false
	if term, ok := a.env("TERM"); ok {
		dumb = term == "dumb"
	}
	tty := a.isTerminal(a.stderr)
	return newProgress(a.stderr, display{live: tty && !dumb, tty: tty, quiet: quiet, verbose: verbose, size: a.terminalSize})
}

// options are those of a system whose agents work.
func (a *app) options(eff *config.Effective, prog *progress, notes *remarks) harness.Options {
	mode := eff.Config.Permissions.Mode
	asks := a.isTerminal(a.stdin) && a.isTerminal(a.stderr)
	if mode == "" {
		mode = config.PermissionReadOnly
		if asks {
			mode = config.PermissionAsk
		}
	}
	o := harness.Options{
		Config: eff, Env: a.env, Permission: mode, UserAgent: userAgent(), DemoPace: scripted.DefaultPace,
		Compacted: prog.compacted, Logger: slog.New(&remarkHandler{to: notes}),
	}
	if mode == config.PermissionAsk && asks {
		var approver tool.Approver = newTerminalApprover(prog.pause)
		o.Approver = approver
	}
	return o
}

// drive opens the system, makes the root, starts it, waits until its tree has
// settled, and reports. start says whether there was anything to do. The contexts
// of open and start end with whatever ends the run.
func (r *runner) drive(ctx context.Context, open func(context.Context) (*agent.Handle, error), start func(context.Context, *agent.Agent) (bool, error)) error {
	// A reader that is gone is a failed write, not the end of the process: the tree
	// must still be settled and stored. Nobody reads the channel. (To ignore the
	// signal would be inherited by what tools start.)
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	r.stop = newStopper(ctx, r.flags.timeout, r.prog.note)
	defer r.stop.end()
	r.out = newLineWriter(r.app.stdout, r.filter(), r.stop.broken)
	err, closeErr := r.work(ctx, open, start)
	r.prog.stop()
	err = r.report(err, novel(closeErr, err))
	r.notes.tell(r.app.stderr, err)
	return err
}

// filter makes what a model says unable to command a terminal; a pipe or a file
// gets the bytes as they are.
func (r *runner) filter() func(string) string {
	switch {
	case !r.app.isTerminal(r.app.stdout):
		return nil
	case r.flags.json || r.answer != nil:
		return escapeInvisible
	}
	return legible
}

// work returns how the run ended, and what went wrong when it was taken apart.
func (r *runner) work(ctx context.Context, open func(context.Context) (*agent.Handle, error), start func(context.Context, *agent.Agent) (bool, error)) (err, closeErr error) {
	if r.app.configure != nil {
		r.app.configure(&r.options)
	}
	if r.h, err = harness.Open(r.stop.ctx, r.options); err != nil {
		return r.unstarted(err), nil
	}
	r.stop.onExit(r.h.Abort)
	if r.app.opened != nil {
		r.app.opened(r.h)
	}
	stopObserver := r.prog.watch(r.h.Agents, r.h.Subagents)
	r.h.Agents.AddHooks(agent.Hooks{Created: func(a *agent.Agent) error {
		r.tally.watch(a)
		return nil
	}})
	if r.flags.json {
		r.streamEvents()
	}
	handle, err := open(r.stop.ctx)
	if err == nil {
		r.root = handle.Agent()
		r.rootID = r.root.ID()
		if r.answer != nil {
			// One answer is asked for: it has seen what it waited for.
			err = r.h.Jobs.Hold(r.root)
			r.h.Subagents.Hold(r.root)
		}
		if err == nil {
			err = r.settle(ctx, start)
		}
	} else {
		err = r.unstarted(err)
	}
	// What is queued stays queued: this is the end of the process, not of the work.
	closeErr = r.h.Close(ctx)
	stopObserver()
	return err, closeErr
}

// unstarted words why nothing was started: err, unless it only follows from what
// ended the run.
func (r *runner) unstarted(err error) error {
	cause := context.Cause(r.stop.ctx)
	if cause == nil {
		return err
	}
	end := &ending{stopReason: "aborted", failure: cause.Error()}
	end.signal, end.timedOut = r.stop.reasons()
	if errors.Is(err, cause) || errors.Is(err, context.Canceled) {
		return end
	}
	return errors.Join(end, err)
}

// errNothing says that a resumed session owes nothing.
var errNothing = errors.New("nothing to do")

// ending is how a run ended, for the exit code.
type ending struct {
	stopReason string
	signal     os.Signal
	timedOut   bool
	unanswered bool // it completed without the answer that was asked for
	failure    string
}

// maxNotes is how many notes on agent files a run begins with.
const maxNotes = 5

func (e *ending) Error() string { return e.failure }

// settle starts the root and waits until it is idle and its background jobs are
// over, with what their notices woke. It returns nil for a completed turn, else what
// went wrong.
func (r *runner) settle(ctx context.Context, start func(context.Context, *agent.Agent) (bool, error)) error {
	for i, n := range r.eff.Notes {
		if i == maxNotes {
			r.prog.note("offshoot: %d more agent files say what has no counterpart here; see offshoot agents list", len(r.eff.Notes)-i)
			break
		}
		r.prog.note("offshoot: %s", n)
	}
	if r.fallback {
		r.prog.note("offshoot: no model is configured, so the embedded demo model runs; it makes no model call (see offshoot config)")
	}
	if r.remark != "" {
		r.prog.note("%s", r.remark)
	}
	if err := context.Cause(r.stop.ctx); err != nil {
		return r.unstarted(err)
	}
	outcome := &session.Outcome{}
	with, _ := r.root.Session().Watch(outcome)
	something, err := start(r.stop.ctx, r.root)
	if err != nil {
		return r.unstarted(err)
	}
	if !something {
		s := r.root.Session()
		if err := s.Load(r.stop.ctx); err != nil {
			return r.unstarted(err)
		}
		r.cut = cutShort(s)
		if s.Parked() {
			for _, q := range queued(s) {
				r.parked = append(r.parked, first(message.JoinText(q.Message.Content), 120))
			}
		} else {
			r.unseen = len(s.Inbox(session.NextStep))
		}
		return errNothing
	}
	err = r.quiet()
	if r.stop.ctx.Err() != nil {
		// From here on no notice wakes it any more; closing the system ends the jobs and
		// the children.
		r.h.Jobs.CloseAdmission()
		r.tellStopped()
		if err := r.root.Seal(r.stop.cause(), true); err != nil {
			r.prog.note("offshoot: cancel: %v", err)
		}
		err = r.root.WhenIdle(context.WithoutCancel(ctx))
	}
	if err != nil {
		return err
	}
	var turn *session.TurnEnd
	if n := len(r.root.Session().Inbox(session.NextStep)); n > 0 && r.stop.ctx.Err() == nil {
		r.prog.note("offshoot: %s for the agent's next turn: offshoot resume %s \"go on\"", plural(int64(n), "notice"), r.rootID)
	}
	with(func() { turn = outcome.End() })
	missing, err := r.answer.settle()
	if err != nil {
		return err
	}
	return r.judge(turn, missing)
}

// quiet returns when the root is idle, its jobs are over, no continuable child is at work
// any more, and what their notices woke has run too.
func (r *runner) quiet() error {
	for {
		before, _, _ := r.root.Session().LastTurn()
		// A root that is idle while jobs of it run is woken when they are over.
		if err := r.h.Jobs.WhenQuiet(r.stop.ctx, r.root); err != nil {
			return err
		}
		if err := r.h.Host.Settled(r.stop.ctx, r.root.Session().Root()); err != nil {
			return err
		}
		// A child is gone only when its notice is in the root's inbox, which wakes it.
		if after, open, _ := r.root.Session().LastTurn(); after == before && !open && r.root.Quiescent() {
			return nil
		}
	}
}

// tellStopped says that children are stopped which can go on.
func (r *runner) tellStopped() {
	n := 0
	for _, a := range r.h.Agents.List() {
		if a.Owner() == nil && !a.Root() {
			n++
		}
	}
	what := "1 continuable child is"
	if n > 1 {
		what = fmt.Sprintf("%d continuable children are", n)
	}
	if n > 0 {
		r.prog.note("offshoot: %s stopped; offshoot resume %s tells the agent so, and goes on with what is queued", what, r.rootID)
	}
}

// judge words how the root's last accounting turn ended; nil is no turn. missing says
// why there is no answer in the form that was asked for.
func (r *runner) judge(turn *session.TurnEnd, missing error) *ending {
	end := &ending{}
	end.signal, end.timedOut = r.stop.reasons()
	end.stopReason = "error"
	switch {
	case turn == nil && r.reopened == 0:
		end.failure = "the agent made no turn"
	// Without a turn only its children had work, and it was not told.
	case (turn == nil || turn.Kind == session.EndCompleted) && end.signal == nil && !end.timedOut:
		if missing != nil {
			end.failure, end.unanswered = missing.Error(), true
			return end
		}
		end.stopReason = "completed"
		return end
	case turn == nil:
	case turn.Kind == session.EndBlocked:
		end.stopReason, end.failure = "refusal", "the input was rejected before the model was asked"
	case turn.Kind == session.EndRefusal:
		end.stopReason, end.failure = "refusal", "the model declined the task"
	case turn.Kind == session.EndError && turn.Failure != nil:
		end.failure = fmt.Sprintf("%s: %s", turn.Failure.Code, turn.Failure.Message)
		if ofModel(turn.Failure) {
			end.failure = r.where() + ": " + end.failure
		}
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
			end.failure += "; the model was " + r.where()
		}
	case end.signal != nil:
		end.stopReason, end.failure = "aborted", "stopped by "+end.signal.String()
	}
	return end
}

// interrupted reports whether a session's last turn was closed by the repair of a crash.
func interrupted(s *session.Session) (yes bool) {
	for e := range s.Events(0) {
		if p, ok := e.Payload().(*session.TurnEnd); ok {
			yes = p.Kind == session.EndInterrupted
		}
	}
	return yes
}

// ofModel tells a failure of the endpoint from one of this program: of its store,
// its limits, its prompt.
func ofModel(f *message.Failure) bool {
	return f.Status != 0 || f.Code != llm.CodeUnknown && f.Code != "LIMIT_REACHED"
}

// where names the model and the host that were asked.
func (r *runner) where() string {
	where := r.model()
	if u, err := url.Parse(r.eff.Config.Routes[r.choice.Ref.Route].BaseURL); err == nil && u.Host != "" {
		where += " at " + u.Host
	}
	return where
}

func (r *runner) model() string { return r.choice.Ref.Route + ":" + r.choice.Ref.Model }

// streamEvents writes every event of every session once it is stored, and the
// live chunks between them.
func (r *runner) streamEvents() {
	r.h.Sessions.AddHooks(session.Hooks{Stored: r.out.stored})
	r.h.Agents.AddHooks(agent.Hooks{Chunk: func(a *agent.Agent, c chunk) {
		r.out.chunk(a.ID(), append(chunkLine(nil, a.ID(), &c), '\n'))
	}})
}

// report prints the answer or the result line and turns how it ended into an error.
func (r *runner) report(err, closeErr error) error {
	nothing := errors.Is(err, errNothing)
	stopReason := "error"
	var end *ending
	switch {
	case nothing:
		stopReason, err = "nothing", nil
		if r.parked != nil {
			stopReason = "parked"
		}
		text := r.idleness()
		switch {
		case r.answer != nil:
			err = errNoAnswer(text)
		case !r.flags.quiet && closeErr == nil:
			_, err = io.WriteString(r.app.stderr, "offshoot: "+text+"\n")
		}
	case errors.As(err, &end):
		stopReason = end.stopReason
	}
	usage, text := r.tally.read()
	var last []byte
	switch {
	case r.flags.json && r.rootID != "":
		last = resultLine(nil, &result{sessionID: r.rootID, stopReason: stopReason, text: text, structured: r.answer.structured(), model: r.model(), usage: usage})
		last = append(last, '\n')
	case r.answer != nil && stopReason == "completed":
		last = append(slices.Clone(r.answer.value), '\n')
	case r.answer != nil && !r.flags.json && text != "":
		// Not what was asked for, and all there is.
		if _, serr := io.WriteString(r.app.stderr, "offshoot: the agent said:\n"+r.answer.said(text, end != nil && end.unanswered)); serr != nil {
			err = errors.Join(err, serr)
		}
	case r.answer != nil:
	case !r.flags.json && end != nil && text != "":
		last = []byte(strings.TrimRight(text, "\n") + "\n")
	}
	werr := r.out.finish(last, r.stop.ctx.Done())
	stalled := errors.Is(werr, errStalled)
	if werr != nil {
		werr = fmt.Errorf("write the answer: %w", werr)
	}
	if end == nil || end.stopReason == "completed" {
		if end != nil {
			err = nil
		}
		err = errors.Join(err, closeErr, werr)
		if sig, _ := r.stop.reasons(); stalled && sig != nil {
			return &exitError{code: exitCodeOf(sig), err: err}
		}
		return err
	}
	code := exitFailure
	if end.signal != nil {
		code = exitCodeOf(end.signal)
	}
	return &exitError{code: code, err: errors.Join(err, closeErr, werr)}
}

// idleness says why there was nothing to do, and what waits, a line for each.
func (r *runner) idleness() string {
	id := printable(string(r.rootID))
	if r.parked == nil {
		queue := "has nothing queued"
		if r.unseen > 0 {
			queue = fmt.Sprintf("has %s for its next turn", plural(int64(r.unseen), "notice"))
		}
		text := fmt.Sprintf("session %s owes nothing and %s%s", id, queue, r.cut)
		if r.cut != "" || r.unseen > 0 {
			text += fmt.Sprintf(": say how to go on, e.g. offshoot resume %s \"go on\"", id)
		}
		return text
	}
	var b strings.Builder
	fmt.Fprintf(&b, "session %s was imported with %s in its queue, to run first once you send it something, e.g. offshoot resume %[1]s \"go on\"",
		id, plural(int64(len(r.parked)), "message"))
	for i, text := range r.parked {
		if i == maxCandidates {
			fmt.Fprintf(&b, "\n  and %d more", len(r.parked)-i)
			break
		}
		fmt.Fprintf(&b, "\n  queued: %s", text)
	}
	return b.String()
}

// exitCodeOf maps a signal to the exit code that shells expect.
func exitCodeOf(s os.Signal) int {
	if s == syscall.SIGTERM {
		return 143
	}
	return 130
}
