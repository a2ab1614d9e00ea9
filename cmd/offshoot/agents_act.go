package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/offshoot-dev/offshoot/harness"
	"github.com/offshoot-dev/offshoot/harness/config"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/session/projection"
	"github.com/offshoot-dev/offshoot/subagent"
)

// actFlags are the flags of the commands on one continuable child.
type actFlags struct {
	permission                   string
	timeout                      time.Duration
	detach, json, quiet, verbose bool
}

// works registers what a command takes under which the child may work.
func (f *actFlags) works(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.permission, "permission", "", "what tools may do: ask, allow, deny or read-only (default: ask on a terminal, else read-only)")
	fs.DurationVar(&f.timeout, "timeout", 0, "give up after this long, e.g. 90s; 0 is never")
	fs.BoolVar(&f.quiet, "quiet", false, "show no progress and no notes")
	fs.BoolVar(&f.verbose, "verbose", false, "show what each child below it says too, line by line under its label, on stderr")
	cmd.MarkFlagsMutuallyExclusive("quiet", "verbose")
	f.tells(cmd)
}

func (f *actFlags) tells(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "write one JSON object")
}

const (
	actHelp = "CHILD is the id of a continuable child, or the beginning of one that fits no other (see offshoot agents children,\n" +
		"offshoot sessions tree). Its tree must be held by no other live process."
	actJSON = "--json writes one object: childId, parentId, rootId and label of the child, and "
	// outcomeJSON is what send and wait tell.
	outcomeJSON = "epoch,\n" +
		"stopReason (completed, max-tokens, aborted, refusal or error; pending: the command ended before the child, which\n" +
		"goes on with its queue when it is next opened), text, and where there is any, failure and unread (messages that\n" +
		"it did not take up)."
	outcomeExit = "Exit codes: 0 it completed; 1 it ended any other way, or the time limit was reached; 2 a mistake in the call or the\n" +
		"configuration; 130 interrupted, 143 terminated."
)

func newAgentsSendCommand(a *app) *cobra.Command {
	var f actFlags
	cmd := &cobra.Command{
		Use:   "send CHILD [MESSAGE | -]",
		Short: "Give a continuable child more work, and print its answer",
		Long: "Send gives the child a message of yours: one turn of its own, behind what waits in its queue. When it is accepted,\n" +
			"it is stored, and nothing loses it. The child is opened from its log, works, and settles; its last answer is\n" +
			"printed. A message of - is read from standard input.\n\n" +
			actHelp + "\n\nThe parent is not opened: it is told what the child came to when its tree is next resumed. What ends\n" +
			"the command early ends the turn that the child is in, and keeps its queue.\n\n" +
			"With --detach nothing runs: the message is accepted and waits in the child's queue, for the next resume of the\n" +
			"tree's root, the next send to the child, or agents wait.\n\n" +
			actJSON + "messageId, " + outcomeJSON + " With\n" +
			"--detach queued in the place of those behind messageId: the messages that wait now.\n\n" + outcomeExit,
		Args: arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && a.isTerminal(a.stdin) {
				return usagef("a message is required: offshoot agents send %s \"what to do\", or - to read it from standard input", printable(args[0]))
			}
			text, err := a.prompt(args[1:])
			if err != nil {
				return err
			}
			return a.onChild(cmd, &f, args[0], func(ctx context.Context, c *ward) error { return c.send(ctx, text) })
		},
	}
	f.works(cmd)
	cmd.Flags().BoolVar(&f.detach, "detach", false, "leave the message in the child's queue and run nothing")
	return cmd
}

func newAgentsWaitCommand(a *app) *cobra.Command {
	var f actFlags
	cmd := &cobra.Command{
		Use:   "wait CHILD",
		Short: "Let a continuable child finish what it has, and print its answer",
		Long: "Wait prints the answer of the child's last epoch. A child whose work something cut, or that has messages queued,\n" +
			"is opened for it and finishes first. What an import or an interrupt left in its queue stays there until you send\n" +
			"it something.\n\n" + actHelp + "\n\n" +
			actJSON + outcomeJSON + "\n\n" + outcomeExit,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onChild(cmd, &f, args[0], func(ctx context.Context, c *ward) error { return c.wait(ctx, "") })
		},
	}
	f.works(cmd)
	return cmd
}

func newAgentsInterruptCommand(a *app) *cobra.Command {
	var f actFlags
	cmd := &cobra.Command{
		Use:   "interrupt CHILD",
		Short: "Stop the turn that a continuable child is in",
		Long: "An interrupt stops a turn and keeps the queue. A child works only while a process has opened its tree, and only\n" +
			"that process can stop it: if there is one, it is named. Else nothing is at work, which is said with the messages\n" +
			"that wait; agents close discards those.\n\n" + actHelp + "\n\n" +
			actJSON + "interrupted\n(false) and queued, the messages that wait.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
				c, err := a.ward(ctx, s, args[0])
				if err != nil {
					return err
				}
				c.flags = &f
				if err := c.interrupt(); err != nil {
					return err
				}
				_, err = io.WriteString(a.stdout, c.out)
				return err
			})
		},
	}
	f.tells(cmd)
	return cmd
}

func newAgentsCloseCommand(a *app) *cobra.Command {
	var f actFlags
	cmd := &cobra.Command{
		Use:   "close CHILD",
		Short: "End a continuable child's work: discard what it and all below it have queued",
		Long: "Close ends what the child and the continuable children below it still have to do: work that something cut does not\n" +
			"go on, and queued messages are discarded. The logs stay, and agents send gives the child new work.\n\n" + actHelp + "\n\n" +
			actJSON + "closed, how\nmany children had work to end, and discarded, how many messages of theirs.",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onChild(cmd, &f, args[0], func(ctx context.Context, c *ward) error { return c.end(ctx) })
		},
	}
	f.tells(cmd)
	return cmd
}

// ward is the continuable child that a command acts on.
type ward struct {
	app   *app
	flags *actFlags
	rec   session.Record
	label string
	sum   summary
	h     *harness.Harness // nil: nothing is opened
	stop  *stopper
	prog  *progress
	out   string // for stdout, once the display has ended
}

// ward finds the child that a name means.
func (a *app) ward(ctx context.Context, s *shelf, name string) (*ward, error) {
	rec, _, err := s.findAmong(ctx, name, session.Filter{Origin: session.OriginSubagent})
	if errors.Is(err, session.ErrNotFound) && s.store != nil {
		if other, _, found := s.find(ctx, name); found == nil {
			rec, err = other, nil
		}
	}
	if err != nil {
		return nil, err
	}
	h := rec.Header
	if h.Origin != session.OriginSubagent || h.ParentSession == "" || rec.Meta.Root == h.ID {
		return nil, usagef("session %s is no child of an agent: go on with it by offshoot resume %[1]s", h.ID)
	}
	c := &ward{app: a, rec: rec}
	if c.sum, err = s.summarize(ctx, rec); err != nil {
		return nil, fmt.Errorf("subagent %s cannot be read: %w; offshoot sessions verify %[1]s tells what is wrong with its log", h.ID, err)
	}
	switch id := c.sum.ident; {
	case id == nil:
		return nil, fmt.Errorf("subagent %s cannot be acted on: its log does not say what it is; see offshoot sessions verify %[1]s", h.ID)
	case id.Mode != session.ModeContinuable:
		return nil, fmt.Errorf("subagent %s was started for one task and takes no further message: go on with the root of its tree by offshoot resume %s", h.ID, rec.Meta.Root)
	case id.Label != nil:
		c.label = *id.Label
	}
	return c, nil
}

// onChild opens the system that the child of a name belongs to, without any agent in it,
// and runs fn. ctx ends with a signal and with the time limit.
func (a *app) onChild(cmd *cobra.Command, f *actFlags, name string, fn func(context.Context, *ward) error) (err error) {
	if f.timeout < 0 {
		return usagef("flag --timeout: %s is no time to wait", f.timeout)
	}
	var c *ward
	var flags config.Flags
	err = a.withShelf(cmd, func(ctx context.Context, s *shelf) error {
		c, err = a.ward(ctx, s, name)
		return err
	})
	if err != nil {
		return err
	}
	c.flags = f
	cwd, moved, err := a.folderOf(cmd, c.rec, c.sum.state.Imported)
	if err != nil {
		return err
	}
	if moved != "" && moved != c.rec.Header.Cwd {
		return usagef("flag --cwd: a child works where its parent does: go on with the root of its tree by offshoot resume %s --cwd %s", c.rec.Meta.Root, moved)
	}
	eff, err := a.load(cmd, flags, "")
	if err != nil {
		return err
	}
	// As for resume: the folder of the session decides, but not where the session is.
	store := config.DriverSQLite + ":" + eff.Config.Store.Path
	flags.Store = &store
	if cmd.Flags().Changed("permission") {
		flags.Permission = &f.permission
	}
	if eff, err = a.load(cmd, flags, cwd); err != nil {
		return err
	}
	notes := &remarks{}
	c.prog = a.progress(f.quiet, f.verbose)
	c.stop = newStopper(cmd.Context(), f.timeout, c.prog.note)
	defer c.stop.end()
	err, closeErr := c.work(cmd.Context(), eff, notes, fn)
	c.prog.stop()
	if _, werr := io.WriteString(a.stdout, c.out); werr != nil {
		closeErr = errors.Join(closeErr, fmt.Errorf("write the answer: %w", werr))
	}
	// One that has its own exit code keeps it.
	var exit *exitError
	if rest := novel(closeErr, err); rest != nil && errors.As(err, &exit) {
		err = &exitError{code: exit.code, err: errors.Join(exit.err, rest)}
	} else {
		err = errors.Join(err, rest)
	}
	notes.tell(a.stderr, err)
	return err
}

// work returns what fn came to, and what went wrong when the system was taken apart.
func (c *ward) work(ctx context.Context, eff *config.Effective, notes *remarks, fn func(context.Context, *ward) error) (err, closeErr error) {
	o := c.app.options(eff, c.prog, notes)
	if c.app.configure != nil {
		c.app.configure(&o)
	}
	if c.h, err = harness.Open(c.stop.ctx, o); err != nil {
		return err, nil
	}
	c.stop.onExit(c.h.Abort)
	if c.app.opened != nil {
		c.app.opened(c.h)
	}
	stopObserver := c.prog.watch(c.h.Agents, c.h.Subagents)
	err = fn(c.stop.ctx, c)
	// What is queued stays queued.
	closeErr = c.h.Close(ctx)
	stopObserver()
	return err, closeErr
}

func (c *ward) id() session.ID     { return c.rec.Header.ID }
func (c *ward) parent() session.ID { return c.rec.Header.ParentSession }

// name is what people know the child by.
func (c *ward) name() string {
	if c.label == "" {
		return fmt.Sprintf("subagent %s", c.id())
	}
	return fmt.Sprintf("subagent %q (%s)", first(c.label, maxLabel), c.id())
}

// actJSONLine is the object of --json.
type actJSONLine struct {
	Child       session.ID `json:"childId"`
	Parent      session.ID `json:"parentId"`
	Root        session.ID `json:"rootId"`
	Label       string     `json:"label"`
	Message     message.ID `json:"messageId,omitempty"`
	Epoch       int64      `json:"epoch,omitempty"`
	StopReason  string     `json:"stopReason,omitempty"`
	Text        *string    `json:"text,omitempty"`
	Failure     string     `json:"failure,omitempty"`
	Unread      int        `json:"unread,omitempty"`
	Queued      *int64     `json:"queued,omitempty"`
	Interrupted *bool      `json:"interrupted,omitempty"`
	Closed      *int       `json:"closed,omitempty"`
	Discarded   *int64     `json:"discarded,omitempty"`
}

func (c *ward) object() actJSONLine {
	return actJSONLine{Child: c.id(), Parent: c.parent(), Root: c.rec.Meta.Root, Label: c.label}
}

func (c *ward) write(v actJSONLine) error {
	line, err := encode(v)
	if err != nil {
		return err
	}
	c.out = string(line) + "\n"
	if c.app.isTerminal(c.app.stdout) {
		c.out = escapeInvisible(c.out)
	}
	return nil
}

// say is write for people.
func (c *ward) say(format string, args ...any) { c.out = fmt.Sprintf(format, args...) + "\n" }

func (c *ward) send(ctx context.Context, text string) error {
	content := []message.Block{message.Text(text)}
	if c.flags.detach {
		id, err := c.h.Host.Leave(ctx, c.parent(), c.id(), content)
		if err != nil {
			return c.advise("the message was not accepted", err)
		}
		queued := c.sum.state.Waiting + 1
		if c.flags.json {
			v := c.object()
			v.Message, v.Queued = id, &queued
			return c.write(v)
		}
		c.say("message %s waits in the queue of %s: offshoot agents wait %s, or offshoot resume %s, goes on with it",
			id, printable(c.name()), c.id(), c.rec.Meta.Root)
		return nil
	}
	id, err := c.h.Host.Send(ctx, c.parent(), c.id(), content)
	if err != nil {
		return c.advise("the message was not accepted", err)
	}
	return c.wait(ctx, id)
}

// wait waits for the child and tells what it came to; id is the message that was sent.
func (c *ward) wait(ctx context.Context, id message.ID) error {
	set, err := c.h.Host.Wait(ctx, c.parent(), c.id())
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return c.cut(id)
	}
	if err != nil {
		return c.advise("there is no answer", err)
	}
	said := message.JoinText(set.Output)
	if c.flags.json {
		v := c.object()
		v.Message, v.Epoch, v.StopReason, v.Text, v.Failure, v.Unread = id, set.Epoch, string(set.StopReason), &said, set.Failure, set.Unread
		if err := c.write(v); err != nil {
			return err
		}
	} else if said != "" {
		if c.out = strings.TrimRight(said, "\n") + "\n"; c.app.isTerminal(c.app.stdout) {
			c.out = legible(c.out)
		}
	}
	if n := c.sum.state.Waiting; id == "" && n > 0 && set.Epoch == c.sum.state.Epoch {
		// An import or an interrupt parked it.
		c.prog.note("offshoot: %s in its queue, and nothing runs before you send it something: offshoot agents send %s", waiting(n), c.id())
	}
	if id != "" && c.h.Subagents.Notices() {
		c.prog.note("offshoot: its parent is told when the tree goes on: offshoot resume %s", c.rec.Meta.Root)
	}
	if set.StopReason == subagent.StopCompleted {
		return nil
	}
	why := "it ended as " + string(set.StopReason)
	if set.Failure != "" {
		why += ": " + set.Failure
	}
	if set.Unread > 0 {
		why += fmt.Sprintf("; %s it did not take up", plural(int64(set.Unread), "message"))
	}
	return &exitError{code: exitFailure, err: fmt.Errorf("%s: %s", c.name(), why)}
}

// cut ends the child because something ended the wait for it, and tells what is left: the
// work that it was doing is over, and what waited behind it is kept.
func (c *ward) cut(id message.ID) error {
	sig, timedOut := c.stop.reasons()
	why, code := "the wait was cut", exitFailure
	switch {
	case sig != nil:
		why, code = "stopped by "+sig.String(), exitCodeOf(sig)
	case timedOut:
		why = fmt.Sprintf("timed out after %s", c.flags.timeout)
	}
	ctx := context.WithoutCancel(c.stop.ctx)
	err := c.h.Subagents.Close(ctx)
	var set subagent.Settlement
	if err == nil {
		set, err = c.h.Host.Wait(ctx, c.parent(), c.id())
	}
	v := c.object()
	v.Message, v.StopReason = id, "pending"
	text := fmt.Sprintf("%s: %s before it was done; what is queued is kept: offshoot agents wait %s, or offshoot resume %s, goes on", why, c.name(), c.id(), c.rec.Meta.Root)
	switch {
	case err == nil:
		said := message.JoinText(set.Output)
		v.Epoch, v.StopReason, v.Text, v.Failure, v.Unread = set.Epoch, string(set.StopReason), &said, set.Failure, set.Unread
		text = fmt.Sprintf("%s: %s in its work; offshoot agents send %s gives it more", why, c.name(), c.id())
	case !errors.Is(err, subagent.ErrDraining):
		return &exitError{code: code, err: errors.Join(errors.New(text), err)}
	}
	if c.flags.json {
		if err := c.write(v); err != nil {
			return err
		}
	}
	return &exitError{code: code, err: errors.New(text)}
}

// interrupt tells why there is nothing to interrupt: this process has just begun.
func (c *ward) interrupt() error {
	if c.rec.Live && c.rec.Owner != nil {
		return fmt.Errorf("%s belongs to process %d, and only that one can stop it: send it SIGINT (^C), which stops all that it does and keeps what is queued", c.name(), c.rec.Owner.PID)
	}
	queued := c.sum.state.Waiting
	if c.flags.json {
		v := c.object()
		v.Interrupted, v.Queued = new(bool), &queued
		return c.write(v)
	}
	text := fmt.Sprintf("%s is not at work, so there is no turn to stop", printable(c.name()))
	if queued > 0 {
		on := "wait %s goes on with it"
		if c.sum.state.State == projection.Parked {
			on = "send %s runs it first"
		}
		text += fmt.Sprintf("; %s in its queue: offshoot agents "+on+", offshoot agents close %[2]s discards it", waiting(queued), c.id())
	}
	c.say("%s", text)
	return nil
}

func waiting(n int64) string {
	if n == 1 {
		return "1 message waits"
	}
	return plural(n, "message") + " wait"
}

// end closes the child and all below it, the deepest first.
func (c *ward) end(ctx context.Context) error {
	rows, err := c.h.Subagents.ListDescendants(ctx, c.id())
	if err != nil {
		return c.advise("nothing was closed", err)
	}
	type target struct {
		waiting int64
		work    bool
	}
	self := c.sum.state
	all := []target{{self.Waiting, self.Waiting > 0 || self.Unsettled}}
	for i := range rows {
		row := &rows[i]
		if row.Kind != subagent.RowChild || row.Mode != session.ModeContinuable {
			continue
		}
		t := target{work: true}
		if sum := row.Summary(); sum.State != nil {
			t.waiting, t.work = sum.State.Waiting, sum.State.Waiting > 0 || sum.State.Unsettled
		}
		all = append(all, t)
	}
	closed, discarded := 0, int64(0)
	if err := c.h.Host.Close(ctx, c.parent(), c.id()); err != nil {
		return c.advise(fmt.Sprintf("subagent %s was not closed, or not all below it", c.id()), err)
	}
	for _, t := range all {
		if t.work {
			closed++
			discarded += t.waiting
		}
	}
	if c.flags.json {
		v := c.object()
		v.Closed, v.Discarded = &closed, &discarded
		return c.write(v)
	}
	text := fmt.Sprintf("%s has nothing to do, and nothing below it has", printable(c.name()))
	if closed > 0 {
		text = fmt.Sprintf("%s is closed: %s had work, and %s discarded; its log stays, and offshoot agents send %s gives it more",
			printable(c.name()), plural(int64(closed), "agent"), discardedMessages(discarded), c.id())
	}
	c.say("%s", text)
	return nil
}

func discardedMessages(n int64) string {
	if n == 1 {
		return "1 message was"
	}
	return plural(n, "message") + " were"
}

// adviceOwned is what to do about what another process holds.
const adviceOwned = "wait until that process has ended, or end it, and try again"

// advise adds to a failure of the seam what can be done about it.
func (c *ward) advise(what string, err error) error {
	if cause := context.Cause(c.stop.ctx); cause != nil && errors.Is(err, cause) {
		sig, _ := c.stop.reasons()
		code := exitFailure
		if sig != nil {
			code = exitCodeOf(sig)
		}
		return &exitError{code: code, err: fmt.Errorf("%s: %w", what, err)}
	}
	advice := ""
	var e *subagent.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch e.Code {
	case subagent.CodeOwnedElsewhere:
		advice = adviceOwned
		var owned *session.OwnedError
		if errors.As(err, &owned) && owned.Owner.PID == os.Getpid() {
			advice = "try again"
		}
	case subagent.CodeNotResumable:
		advice = fmt.Sprintf("offshoot sessions verify %s tells whether its log is whole, offshoot sessions show %[1]s what it holds", c.id())
	case subagent.CodeUnauthorized:
		advice = fmt.Sprintf("offshoot agents children %s lists whose children there are", c.rec.Meta.Root)
	case subagent.CodePersistenceUnavailable:
		advice = "choose a store that keeps sessions with --store"
	case subagent.CodeLimitReached:
		advice = "raise limits.maxLive, limits.maxChildren or limits.maxDepth in the configuration, see offshoot config"
	case subagent.CodeActivationClosing, subagent.CodeDraining, subagent.CodeOwnershipConflict, subagent.CodeCancelled:
		advice = "try again"
	case subagent.CodeActivationTeardownFailed, subagent.CodeActivationReleaseFailed, subagent.CodeActivationSetupRevoked:
		advice = fmt.Sprintf("offshoot sessions verify %s tells whether its log is whole", c.id())
	}
	if advice == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w; %s", what, err, advice)
}
