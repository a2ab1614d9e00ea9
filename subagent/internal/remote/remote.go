// Package remote drives one-shot children that live in other processes: what the
// providers of external products have in common. A provider adds how its product is
// started and a [Talk], the conversation in its protocol.
//
// A start checks everything that can be checked before it starts a process: the prompt,
// the folder, its trust, what the product may do, the program. It then starts the process,
// waits for the handshake, and publishes the run. A start that fails or is cancelled
// returns when nothing of the process is left.
//
// What a person, a model or a log is told of a failure is made of fixed words, numbers, the
// system's words for its errors, and the names that a protocol defines: never of what a
// product wrote, of prompts, of the environment (seam OOPX-27). Floor 6.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/prompt"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/structured"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
)

// Product is one provider's part. Its fields are not changed after the first start.
type Product struct {
	// Config has passed Check; Name, Command, EOFGrace and Grace are set.
	Config external.Config
	// Install says in a sentence how to get the program.
	Install string
	// Model is the configured model, which personas may name; "" is the product's own.
	Model string
	// Command returns what to start for a child. An error refuses the start: it is a
	// *subagent.Error, or becomes a failed start. ctx is the caller's.
	Command func(ctx context.Context, c *Child) (Command, error)
	// Open makes the handshake with a started process and returns the conversation, which
	// is then ready for its prompt. ctx bounds it. On error it leaves nothing of its own
	// behind; the process is ended by the caller. It must not keep ctx.
	Open func(ctx context.Context, c *Child, link Link) (Talk, error)
	// Launch starts processes; nil is [proc.Start].
	Launch func(proc.Config) (Link, error)

	mu      sync.Mutex // guards following
	links   map[Link]struct{}
	aborted bool
}

// Command is what is started beside the configured program.
type Command struct {
	Args []string
	// Env is laid below the configured environment.
	Env map[string]string
}

// Link is a started process.
type Link interface {
	Stdin() io.WriteCloser
	Stdout() io.ReadCloser
	// Wait waits for the end of the whole tree.
	Wait(ctx context.Context) (proc.Exit, error)
	// Done is closed at the end of the whole tree.
	Done() <-chan struct{}
	// Kill ends the tree at once, and Close in an orderly way; see [proc.Process].
	Kill() error
	Close(ctx context.Context) error
}

// Talk is one conversation, which has one prompt. Turn is called once; the other methods
// may be called at any time, beside it and beside one another.
type Talk interface {
	// Turn sends the prompt and returns how the turn ended. When ctx ends it returns soon,
	// whatever the product does. An error says that no end was seen: the connection broke, or
	// the product did not keep to the protocol; see Words for what becomes of it.
	Turn(ctx context.Context) (Outcome, error)
	// Said returns the text of the answer so far. It does not wait.
	Said() string
	// Interrupt asks the product to stop a turn that is open, and returns when it was asked.
	// ErrNoInterrupt says that the protocol has no such request.
	Interrupt(ctx context.Context) error
	// About is the product's name and version as it gave them, or "".
	About() string
	// Close ends the conversation and returns when nothing of it runs. The process has
	// ended by then.
	Close() error
}

// ErrNoInterrupt says that a product cannot be asked to stop a turn: its end is that of its
// process.
var ErrNoInterrupt = errors.New("the protocol has no interrupt")

// Leaver is a Talk whose product is told that it will be closed, before its input ends.
type Leaver interface {
	Leave(ctx context.Context) error
}

// MaxAnswer bounds, in bytes, what a Talk keeps of all that a product says in a turn. One
// that says more has failed, with ErrTooMuch.
const MaxAnswer = 64 << 20

// ErrTooMuch says that a product did not stop to talk.
var ErrTooMuch = Faultf("the agent said more than can be kept")

// Outcome is how a turn ended.
type Outcome struct {
	Reason subagent.StopReason
	// Text is the answer, and Structured the one in the form of the request's schema, as the
	// product gave it; it is checked against the schema.
	Text       string
	Structured []byte
	// Diagnostic is fixed words about a turn that did not complete.
	Diagnostic string
}

// Child is one child, as a provider sees it. It is not changed after the start.
type Child struct {
	ID session.ID
	// Dir is the folder to work in, absolute.
	Dir string
	// Prompt is the text of the request's prompt.
	Prompt string
	// Persona is the request's, with its variables filled in; nil if there is none.
	Persona *string
	// Schema is the form of the answer; nil is text.
	Schema *structured.Schema
	Access Access
	// Probe: there is no prompt and no parent, only a handshake; see Product.Probe. Nothing is
	// asked then.
	Probe bool

	product *Product
	req     *subagent.ResolvedRequest
	// cancelled ends with the run, or with its cancel; see Ask.
	cancelled context.Context
	cancel    context.CancelCauseFunc
}

// Active returns how many children hold a process.
func (p *Product) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Abort kills every process that was started, without any grace: for a program that is told
// to end at once. The runs end as after any other death of their process, and what is being
// started at the same moment or later is killed too.
func (p *Product) Abort() error {
	p.mu.Lock()
	p.aborted = true
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Kill())
	}
	return errors.Join(errs...)
}

// Start starts a child; see [subagent.Provider]. The Talk's turn begins before it returns.
func (p *Product) Start(ctx context.Context, req *subagent.ResolvedRequest) (subagent.Run, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	c, err := p.child(ctx, req)
	if err != nil {
		return nil, err
	}
	link, talk, err := p.open(ctx, c)
	if err != nil {
		c.cancel(err)
		return nil, err
	}
	r := &run{
		child: c, link: link, talk: talk,
		driven: make(chan struct{}), settled: make(chan struct{}), over: make(chan struct{}),
	}
	if err := r.bind(ctx); err != nil {
		c.cancel(err)
		return nil, errors.Join(err, p.end(ctx, link, talk, false))
	}
	return r, nil
}

// child checks a request and makes the child of it.
func (p *Product) child(ctx context.Context, req *subagent.ResolvedRequest) (*Child, error) {
	c := &Child{ID: session.NewID(), Schema: req.Schema, product: p, req: req}
	if req.Schema == nil && req.OutputSchema != nil {
		return nil, errors.New("the request's output schema was not parsed: children are started through the service")
	}
	var err error
	if c.Prompt, err = text(req.Prompt); err != nil {
		return nil, &subagent.Error{Code: subagent.CodeInvalidRequest, Msg: p.Config.Name, Err: err}
	}
	if c.Dir, err = p.dir(req); err != nil {
		return nil, &subagent.Error{Code: subagent.CodeStartFailed, Msg: p.Config.Name, Err: err}
	}
	if p.Config.Trust != nil {
		if err := p.Config.Trust(c.Dir); err != nil {
			return nil, &subagent.Error{Code: subagent.CodeUntrustedFolder, Msg: p.Config.Name, Err: err}
		}
	}
	if c.Persona, err = p.persona(req.Persona, c.Dir, req.Model); err != nil {
		return nil, &subagent.Error{Code: subagent.CodeInvalidRequest, Msg: p.Config.Name + ": the persona", Err: err}
	}
	c.Access = p.access(req.Parent)
	c.cancelled, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return c, nil
}

// text is that of a prompt, which has nothing else (seam OOPX-14, OOPX-16).
func text(blocks []message.Block) (string, error) {
	for _, b := range blocks {
		if b.Type != message.BlockText {
			return "", fmt.Errorf("the prompt holds a block of the type %q, and only text reaches an agent in another process", b.Type)
		}
	}
	s := message.JoinText(blocks)
	if strings.TrimSpace(s) == "" {
		return "", errors.New("the prompt is blank")
	}
	return s, nil
}

// dir is where the child works (seam OOPX-01…03).
func (p *Product) dir(req *subagent.ResolvedRequest) (string, error) {
	dir := p.Config.Dir
	if dir == "" {
		dir = req.Parent.Cwd()
	}
	switch {
	case dir == "":
		return "", errors.New("the parent works in no folder, and none is configured")
	case !filepath.IsAbs(dir):
		return "", fmt.Errorf("the parent's folder is not absolute: %s", dir)
	}
	return dir, external.Enterable(dir)
}

// persona fills in the variables of a persona.
func (p *Product) persona(of *subagent.Persona, dir string, model subagent.Model) (*string, error) {
	if of == nil {
		return nil, nil
	}
	scope := prompt.New().Root()
	if _, err := scope.Add(prompt.Persona(of.Text, of.Literal)); err != nil {
		return nil, err
	}
	vars := map[string]string{prompt.VarCwd: dir, prompt.VarProvider: p.Config.Name}
	if name := cmp.Or(model.Model, p.Model); name != "" {
		vars[prompt.VarModel] = name
	}
	assembled, err := scope.Assemble(vars, prompt.AssembleOptions{})
	if err != nil {
		return nil, err
	}
	return &assembled.System, nil
}

// open starts the process and makes the handshake.
func (p *Product) open(ctx context.Context, c *Child) (Link, Talk, error) {
	path, err := p.Find()
	if err != nil {
		return nil, nil, p.failed("find the program", err)
	}
	cmd, err := p.Command(ctx, c)
	if err != nil {
		var refusal *subagent.Error
		if errors.As(err, &refusal) {
			return nil, nil, err
		}
		return nil, nil, p.failed("make the command", err)
	}
	if p.Config.Args != nil {
		cmd.Args = p.Config.Args
	}
	env := cmd.Env
	if env == nil {
		env = map[string]string{}
	}
	for name, value := range p.Config.Env {
		env[name] = value
	}
	launch := p.Launch
	if launch == nil {
		launch = start
	}
	link, err := launch(proc.Config{
		Path: path, Args: cmd.Args, Dir: c.Dir, Env: env, StdinPipe: true, StdoutPipe: true,
		EOFGrace: p.Config.EOFGrace, Grace: p.Config.Grace,
	})
	if err != nil {
		return nil, nil, p.failed("start the program", err)
	}
	p.mu.Lock()
	if p.links == nil {
		p.links = map[Link]struct{}{}
	}
	p.links[link] = struct{}{}
	aborted := p.aborted
	p.mu.Unlock()
	if aborted {
		if err := link.Kill(); err != nil {
			p.log("abort", err) // its close tells it to the caller
		}
	}
	bounded, stop := context.WithTimeoutCause(ctx, p.Config.StartTimeout, errStartTimeout)
	defer stop()
	talk, err := p.Open(bounded, c, link)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return link, talk, nil
	}
	exit, ended := exited(ctx, link, err)
	err = errors.Join(err, p.end(ctx, link, talk, false))
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case ended:
		err = &Fault{Msg: "the program ended: " + exitWords(exit), Err: err}
	case errors.Is(err, errStartTimeout):
		err = &Fault{Msg: fmt.Sprintf("it was not ready within %s", p.Config.StartTimeout), Err: err}
	}
	return nil, nil, p.failed("handshake", err)
}

func start(cfg proc.Config) (Link, error) { return proc.Start(cfg) }

var errStartTimeout = errors.New("not ready in time")

// exited tells how the process ended, if that is what broke a conversation: its pipes
// close a moment before its end is known.
func exited(ctx context.Context, link Link, broken error) (proc.Exit, bool) {
	var write *rpcconn.WriteError
	if !errors.Is(broken, io.EOF) && !errors.Is(broken, io.ErrUnexpectedEOF) && !errors.As(broken, &write) {
		return proc.Exit{}, false
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), exitPatience)
	defer stop()
	exit, err := link.Wait(ctx)
	return exit, err == nil
}

// exitPatience is how long the end of a process may come after that of its pipes.
const exitPatience = 250 * time.Millisecond

// Find returns the absolute path of the program.
func (p *Product) Find() (string, error) {
	path, err := exec.LookPath(p.Config.Command)
	if err == nil {
		// What is found from here is started elsewhere, in the child's folder.
		path, err = filepath.Abs(path)
	}
	switch {
	case err == nil:
	case !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrNotExist):
		why := "it is no program"
		switch {
		case errors.Is(err, syscall.EISDIR):
			why = "it is a folder"
		case errors.Is(err, fs.ErrPermission):
			why = "it may not be executed"
		}
		return "", &Fault{Msg: fmt.Sprintf("%q cannot be run: %s. %s", p.Config.Command, why, p.Install), Err: err}
	default:
		return "", &Fault{Msg: fmt.Sprintf("%q is not installed, or not in PATH. %s", p.Config.Command, p.Install), Err: errors.Join(external.ErrNotFound, err)}
	}
	return path, nil
}

// failed is a start that failed at a stage.
func (p *Product) failed(stage string, err error) error {
	p.log(stage, err)
	return &subagent.Error{Code: subagent.CodeStartFailed, Msg: p.Config.Name, Err: &StartError{Stage: stage, Outcome: Words(err), cause: err}}
}

// StartError says at which stage a start failed, and what was seen there, in fixed words.
type StartError struct {
	Stage, Outcome string

	cause error
}

func (e *StartError) Error() string { return e.Stage + ": " + e.Outcome }

// Is finds a program that is not installed, and nothing else of the cause: its text is not
// for everybody.
func (e *StartError) Is(target error) bool {
	return target == external.ErrNotFound && errors.Is(e.cause, target)
}

// end ends a process: the product is told, if there is time, its input ends, and what does
// not go is killed.
func (p *Product) end(ctx context.Context, link Link, talk Talk, leave bool) error {
	ctx = context.WithoutCancel(ctx)
	if l, ok := talk.(Leaver); ok && leave {
		bounded, stop := context.WithTimeout(ctx, leaveBound)
		if err := l.Leave(bounded); err != nil {
			p.log("leave", err)
		}
		stop()
	}
	err := link.Close(ctx)
	if talk != nil {
		err = errors.Join(err, talk.Close())
	}
	p.mu.Lock()
	delete(p.links, link)
	p.mu.Unlock()
	if err != nil {
		p.log("close", err)
		err = &Fault{Msg: p.Config.Name + ": the product's processes could not be ended", Err: err}
	}
	return err
}

// leaveBound is how long a product may take to be told that it will be closed.
const leaveBound = time.Second

// Probe starts the product, waits for the handshake and ends it: for whoever looks for
// faults. dir is the folder to start it in. The report holds what was found up to the error.
func (p *Product) Probe(ctx context.Context, dir string) (external.Report, error) {
	var r external.Report
	var err error
	if r.Path, err = p.Find(); err != nil {
		return r, p.failed("find the program", err)
	}
	if p.Config.Dir != "" {
		dir = p.Config.Dir
	}
	if p.Config.Trust != nil {
		if err := p.Config.Trust(dir); err != nil {
			return r, &subagent.Error{Code: subagent.CodeUntrustedFolder, Msg: p.Config.Name, Err: err}
		}
	}
	c := &Child{ID: session.NewID(), Dir: dir, Probe: true, product: p, Access: Access{Permission: external.Deny}}
	c.cancelled, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	began := time.Now()
	link, talk, err := p.open(ctx, c)
	if err != nil {
		return r, err
	}
	r.Ready, r.About = time.Since(began), talk.About()
	return r, p.end(ctx, link, talk, true)
}

// Clean makes a product's word about itself fit to be shown: one line of printable
// characters, at most 120 bytes.
func Clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar { // nor what turns the direction of a line
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	fits := 0
	for i := range s {
		if i > maxClean {
			return s[:fits]
		}
		fits = i
	}
	if len(s) > maxClean {
		s = s[:fits]
	}
	return s
}

const maxClean = 120

// Model is what the request overrides of the model.
func (c *Child) Model() subagent.Model {
	if c.req == nil {
		return subagent.Model{}
	}
	return c.req.Model
}
