package remote_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/offshoot-dev/offshoot/agent"
	"github.com/offshoot-dev/offshoot/internal/proc"
	"github.com/offshoot-dev/offshoot/internal/rpcconn"
	"github.com/offshoot-dev/offshoot/message"
	"github.com/offshoot-dev/offshoot/session"
	"github.com/offshoot-dev/offshoot/subagent"
	"github.com/offshoot-dev/offshoot/subagent/external"
	"github.com/offshoot-dev/offshoot/subagent/internal/remote"
	"github.com/offshoot-dev/offshoot/subagent/subagenttest"
	"github.com/offshoot-dev/offshoot/tool"
)

// plug is a product without a process: its turn is a function.
type plug struct {
	remote.Product
	starts  int
	child   *remote.Child
	turn    func(ctx context.Context) (remote.Outcome, error)
	open    func(ctx context.Context) error
	closing error
	said    string
	saying  func() // called by Said
	link    *link
}

// link is a process that ends when it is closed.
type link struct {
	io.WriteCloser
	io.ReadCloser
	done chan struct{}
	exit proc.Exit
	err  error
}

func (l *link) Stdin() io.WriteCloser       { return nil }
func (l *link) Stdout() io.ReadCloser       { return nil }
func (l *link) Done() <-chan struct{}       { return l.done }
func (l *link) Close(context.Context) error { return l.Kill() }

func (l *link) end() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
}

func (l *link) Kill() error {
	l.end()
	return l.err
}

func (l *link) Wait(ctx context.Context) (proc.Exit, error) {
	select {
	case <-l.done:
		return l.exit, nil
	case <-ctx.Done():
		return proc.Exit{}, context.Cause(ctx)
	}
}

func newPlug(t testing.TB, cfg external.Config) *plug {
	t.Helper()
	cfg.Name, cfg.Command = "plug", "sh"
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg, err := cfg.Check()
	if err != nil {
		t.Fatal(err)
	}
	p := &plug{turn: func(context.Context) (remote.Outcome, error) {
		return remote.Outcome{Reason: "completed", Text: "done"}, nil
	}}
	p.Config = cfg
	p.Command = func(_ context.Context, c *remote.Child) (remote.Command, error) {
		p.child = c
		return remote.Command{}, nil
	}
	p.Launch = func(proc.Config) (remote.Link, error) {
		p.starts++
		p.link = &link{done: make(chan struct{}), err: p.closing}
		return p.link, nil
	}
	p.Open = func(ctx context.Context, _ *remote.Child, _ remote.Link) (remote.Talk, error) {
		if p.open != nil {
			if err := p.open(ctx); err != nil {
				return nil, err
			}
		}
		return p, nil
	}
	return p
}

func (p *plug) Name() string { return "plug" }
func (p *plug) Capabilities() subagent.Capabilities {
	return subagent.Capabilities{OutputSchema: true, Persona: true}
}
func (p *plug) InheritsParentContext() bool { return false }

func (p *plug) Turn(ctx context.Context) (remote.Outcome, error) { return p.turn(ctx) }
func (p *plug) Said() string {
	if p.saying != nil {
		p.saying()
	}
	return p.said
}
func (p *plug) Interrupt(context.Context) error { return remote.ErrNoInterrupt }
func (p *plug) About() string                   { return "plug 1" }
func (p *plug) Close() error                    { return nil }

// in runs a test in a bubble with a system that has the plug.
func in(t *testing.T, cfg external.Config, fn func(t *testing.T, s *subagenttest.System, p *plug)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := subagenttest.NewSystem(t, subagenttest.Options{})
		p := newPlug(t, cfg)
		s.Register(t, p)
		fn(t, s, p)
		if n := p.Active(); n != 0 {
			t.Errorf("%d children hold a process", n)
		}
	})
}

// What is there and cannot be run is not called missing, and the system's reason is told.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain, script, text := write("plain", "x", 0o600), write("script", "#!/no/such\n", 0o700), write("text", "x", 0o700)
	for command, want := range map[string]string{
		"no-such-program": `find the program: "no-such-program" is not installed, or not in PATH. Get one.`,
		dir + "/none":     `find the program: "` + dir + `/none" is not installed, or not in PATH. Get one.`,
		dir:               `find the program: "` + dir + `" cannot be run: it is a folder. Get one.`,
		plain:             `find the program: "` + plain + `" cannot be run: it may not be executed. Get one.`,
		script:            "start the program: the system says: no such file or directory",
		text:              "start the program: the system says: exec format error",
	} {
		p := newPlug(t, external.Config{})
		p.Config.Command, p.Install, p.Launch = command, "Get one.", nil
		_, err := p.Probe(t.Context(), dir)
		if !errors.Is(err, subagent.ErrStartFailed) || !strings.HasSuffix(err.Error(), "plug: "+want) {
			t.Errorf("%v, want %s", err, want)
		}
		if got, want := errors.Is(err, external.ErrNotFound), strings.Contains(want, "not installed"); got != want {
			t.Errorf("%s: ErrNotFound: %v, want %v", command, got, want)
		}
	}
}

// OOPX-01, OOPX-02, OOPX-03, OOPX-14, OOPX-16, OOPX-32: what is refused before anything is
// started.
func TestRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	untrusted := errors.New("not trusted: run offshoot trust")
	for name, c := range map[string]struct {
		cfg    external.Config
		noDir  bool
		cwd    string
		prompt []message.Block
		code   error
		want   string
	}{
		"no folder":       {noDir: true, code: subagent.ErrStartFailed, want: "the parent works in no folder, and none is configured"},
		"relative":        {noDir: true, cwd: "sub", code: subagent.ErrStartFailed, want: "the parent's folder is not absolute: sub"},
		"no such folder":  {noDir: true, cwd: "/no/such/folder", code: subagent.ErrStartFailed, want: "no such file"},
		"a file":          {noDir: true, cwd: file, code: subagent.ErrStartFailed, want: "is no folder: " + file},
		"not trusted":     {cfg: external.Config{Trust: func(string) error { return untrusted }}, code: subagent.ErrUntrustedFolder, want: "run offshoot trust"},
		"blank":           {prompt: []message.Block{message.Text(" \n")}, code: subagent.ErrInvalidRequest, want: "the prompt is blank"},
		"not only text":   {prompt: []message.Block{message.Text("x"), {Type: message.BlockReasoning, Text: "y"}}, code: subagent.ErrInvalidRequest, want: `a block of the type "reasoning"`},
		"own folder wins": {cwd: "/no/such/folder"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, c.cfg, func(t *testing.T, s *subagenttest.System, p *plug) {
				if c.noDir {
					p.Config.Dir = ""
				}
				options := subagenttest.ParentOptions()
				options.Cwd = c.cwd
				parent := s.NewAgent(t, agent.Create{Options: options})
				req := subagenttest.Request(parent, "x")
				if c.prompt != nil {
					req.Prompt = c.prompt
				}
				run, err := s.Service.Start(t.Context(), "plug", req)
				if c.code == nil {
					if err != nil {
						t.Fatal(err)
					}
					subagenttest.Await(t, run)
					return
				}
				if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				if p.starts != 0 {
					t.Error("a process was started")
				}
			})
		})
	}
}

// OOPX-02, OOPX-04: what a configuration cannot mean.
func TestConfig(t *testing.T) {
	locked := filepath.Join(t.TempDir(), "locked")
	if err := os.Mkdir(locked, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]external.Config{
		`permission "all"`:              {Permission: "all"},
		"StartTimeout is negative":      {StartTimeout: -1},
		"ApprovalTimeout is negative":   {ApprovalTimeout: -1},
		"EOFGrace is negative":          {EOFGrace: -1},
		"Grace is negative":             {Grace: -1},
		"no such file or directory":     {Dir: "/no/such/folder"},
		"the folder to work in cannot ": {Dir: locked},
	} {
		if os.Getuid() == 0 && cfg.Dir == locked {
			continue // nothing is closed to root
		}
		if _, err := cfg.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	args, env := []string{"a"}, map[string]string{"A": "1"}
	kept, err := external.Config{Args: args, Env: env}.Check()
	if args[0], env["A"] = "b", "2"; err != nil || kept.Args[0] != "a" || kept.Env["A"] != "1" {
		t.Errorf("%v, %v, %v: a later change of the caller's reaches the provider", kept.Args, kept.Env, err)
	}
	c, err := external.Config{Dir: "."}.Check()
	wd, _ := os.Getwd()
	if err != nil || c.Dir != wd || c.Permission != external.Deny || c.StartTimeout != time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
}

// The policy in force is a ceiling over what is configured, and so is what the parent's log
// pins (design § 4, Trust).
func TestAccess(t *testing.T) {
	read := remote.Access{ReadOnly: true, Permission: external.Deny}
	perm := func(p external.Permission) remote.Access { return remote.Access{Permission: p} }
	for _, c := range []struct {
		policy            tool.Policy
		approval, sandbox string
		configured        external.Permission
		want              remote.Access
	}{
		{tool.PolicyAllow, "", "", external.Allow, perm(external.Allow)},
		{tool.PolicyAllow, "", "", external.Ask, perm(external.Ask)},
		{tool.PolicyAllow, "", "", external.Deny, perm(external.Deny)},
		{tool.PolicyAsk, "", "", external.Allow, perm(external.Ask)},
		{tool.PolicyAsk, "", "", external.Ask, perm(external.Ask)},
		{tool.PolicyAsk, "", "", external.Deny, perm(external.Deny)},
		{tool.PolicyDeny, "", "", external.Allow, read},
		{tool.PolicyReadOnly, "", "", external.Allow, read},
		{tool.PolicyNever, "", "", external.Allow, read},
		{"who knows", "", "", external.Allow, read},
		{tool.PolicyAllow, "never", "", external.Ask, perm(external.Deny)},
		{tool.PolicyAllow, "never", "", external.Allow, perm(external.Allow)},
		{tool.PolicyAsk, "never", "", external.Allow, read},
		{tool.PolicyAllow, "", "workspace-write", external.Allow, perm(external.Ask)},
		{tool.PolicyAllow, "", "read-only", external.Allow, read},
	} {
		in(t, external.Config{Permission: c.configured, Policy: func(*agent.Agent) tool.Policy { return c.policy }}, func(t *testing.T, s *subagenttest.System, p *plug) {
			parent := s.Parent(t)
			var drafts []session.Draft
			if c.approval != "" {
				drafts = append(drafts, session.Draft{Payload: &session.ApprovalPolicy{Policy: c.approval}})
			}
			if c.sandbox != "" {
				drafts = append(drafts, session.Draft{Payload: &session.SandboxMode{Mode: c.sandbox}})
			}
			if drafts != nil {
				if _, err := parent.Session().Append(drafts...); err != nil {
					t.Fatal(err)
				}
			}
			subagenttest.Await(t, s.Start(t, t.Context(), "plug", subagenttest.Request(parent, "x")))
			if p.child.Access != c.want {
				t.Errorf("%s, log %q %q, configured %s: %+v, want %+v", c.policy, c.approval, c.sandbox, c.configured, p.child.Access, c.want)
			}
		})
	}
}

// SO-01, RUN-12, OOPX-25: an answer counts in the form that was asked for, and a success
// without one is none.
func TestOutcome(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	for name, c := range map[string]struct {
		schema     bool
		out        remote.Outcome
		reason     subagent.StopReason
		structured string
		diagnostic string
	}{
		"text":            {out: remote.Outcome{Reason: "completed", Text: "x", Diagnostic: "not shown"}, reason: "completed"},
		"blank":           {out: remote.Outcome{Reason: "completed", Text: " \n"}, reason: "error", diagnostic: "the agent ended without an answer"},
		"form":            {schema: true, out: remote.Outcome{Reason: "completed", Structured: []byte(` {"n" : 1} `)}, reason: "completed", structured: `{"n":1}`},
		"wrong form":      {schema: true, out: remote.Outcome{Reason: "completed", Text: "x", Structured: []byte(`{"n":"secret"}`)}, reason: "error", diagnostic: "the answer does not have the form that was asked for"},
		"no JSON":         {schema: true, out: remote.Outcome{Reason: "completed", Text: "x", Structured: []byte(`{`)}, reason: "error", diagnostic: "the answer does not have the form that was asked for"},
		"no form":         {schema: true, out: remote.Outcome{Reason: "completed", Text: "x"}, reason: "error", diagnostic: "there is no answer in the form that was asked for"},
		"not asked for":   {out: remote.Outcome{Reason: "completed", Text: "x", Structured: []byte(`{"n":1}`)}, reason: "completed"},
		"form, then stop": {schema: true, out: remote.Outcome{Reason: "max-tokens", Structured: []byte(`{"n":1}`)}, reason: "max-tokens", structured: `{"n":1}`},
		"refusal":         {out: remote.Outcome{Reason: "refusal", Text: "no"}, reason: "refusal"},
		"long word":       {out: remote.Outcome{Reason: "error", Diagnostic: strings.Repeat("é", 4000)}, reason: "error", diagnostic: strings.Repeat("é", 2043) + " […cut]"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, external.Config{}, func(t *testing.T, s *subagenttest.System, p *plug) {
				p.turn = func(context.Context) (remote.Outcome, error) { return c.out, nil }
				req := subagenttest.Request(s.Parent(t), "x")
				if c.schema {
					req.OutputSchema = []byte(schema)
				}
				res := subagenttest.Await(t, s.Start(t, t.Context(), "plug", req))
				if res.StopReason != c.reason || string(res.Structured) != c.structured || res.Diagnostic != c.diagnostic {
					t.Errorf("%+v", res)
				}
			})
		})
	}
}

// A word of a product about itself cannot command a terminal, nor turn what stands beside it.
func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"Claude Code 2.1":            "Claude Code 2.1",
		" a\r\n\tb\x00c ":            "a b c",
		"\x1b[31mred\u009b0m\u0085x": "[31mred 0m x",
		"a\u202egnp.exe\u2066\u200b": "a gnp.exe",
		"a\u2028b\xff\ufffdc":        "a b c",
		"größer 日本":                  "größer 日本",
		strings.Repeat("x", 120):     strings.Repeat("x", 120),
		strings.Repeat("x", 121):     strings.Repeat("x", 120),
		strings.Repeat("é", 100):     strings.Repeat("é", 60),
	} {
		if got := remote.Clean(in); got != want {
			t.Errorf("%q is cleaned to %q, want %q", in, got, want)
		}
	}
}

// OOPX-05, OOPX-27, OOPX-30: what broke is told in fixed words, also where the log or the
// close fails; the error itself goes to the logger.
func TestBroken(t *testing.T) {
	secret := errors.New("the secret")
	for want, err := range map[string]error{
		"it failed for a reason that is in the program's log alone":               secret,
		"the product answered with the error -32000":                              &rpcconn.Error{Code: -32000, Message: "the secret"},
		"the product sent a line of more than 9 bytes":                            &rpcconn.ClosedError{Cause: &rpcconn.LineTooLongError{Max: 9}},
		"the product closed the connection":                                       &rpcconn.ClosedError{Cause: io.EOF},
		"what the product sent could not be handled":                              &rpcconn.ClosedError{Cause: &rpcconn.PanicError{Value: "the secret"}},
		"the product sent a line that its protocol has no place for (no message)": &rpcconn.ClosedError{Cause: &rpcconn.Fault{Kind: rpcconn.FaultShape, Excerpt: "the secret"}},
		"the provider's own word":                                                 &remote.Fault{Msg: "the provider's own word", Err: secret},
	} {
		var logged strings.Builder
		in(t, external.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, func(t *testing.T, s *subagenttest.System, p *plug) {
			s.Failing()
			p.said, p.closing = "part", secret
			p.turn = func(context.Context) (remote.Outcome, error) { return remote.Outcome{}, err }
			run := s.Start(t, t.Context(), "plug", subagenttest.Request(s.Parent(t), "x"))
			res, waitErr := run.Wait(t.Context())
			if waitErr != nil || res.StopReason != subagent.StopError || res.Diagnostic != want || message.JoinText(res.Output) != "part" {
				t.Errorf("%+v, %v; want %s", res, waitErr, want)
			}
			closeErr := run.Close(t.Context())
			if closeErr == nil || strings.Contains(closeErr.Error(), "secret") {
				t.Errorf("close: %v, want an error in fixed words", closeErr)
			}
		})
		if !strings.Contains(logged.String(), "stage=turn") || !strings.Contains(logged.String(), "the secret") {
			t.Errorf("the log lacks what broke:\n%s", logged.String())
		}
	}
	in(t, external.Config{Logger: slog.New(broken{})}, func(t *testing.T, s *subagenttest.System, p *plug) {
		p.turn = func(context.Context) (remote.Outcome, error) { return remote.Outcome{}, secret }
		if res := subagenttest.Await(t, s.Start(t, t.Context(), "plug", subagenttest.Request(s.Parent(t), "x"))); res.StopReason != subagent.StopError {
			t.Errorf("%+v", res)
		}
	})
}

// broken is a handler that panics.
type broken struct{ slog.Handler }

func (broken) Enabled(context.Context, slog.Level) bool { panic("broken") }

// A program that is told to end at once leaves nothing that was just being started.
func TestAbortedStart(t *testing.T) {
	in(t, external.Config{}, func(t *testing.T, s *subagenttest.System, p *plug) {
		launch := p.Launch
		p.Launch = func(cfg proc.Config) (remote.Link, error) {
			if err := p.Abort(); err != nil { // before anybody knows of the process
				t.Error(err)
			}
			return launch(cfg)
		}
		p.open = func(context.Context) error {
			select {
			case <-p.link.Done():
				return io.EOF
			default:
				return nil
			}
		}
		if run, err := s.Service.Start(t.Context(), "plug", subagenttest.Request(s.Parent(t), "x")); err == nil {
			t.Error("the process runs on")
			subagenttest.Await(t, run)
		}
	})
}

// DSP-07, OWN: the run of a parent that is disposed ends with it, whoever holds it.
func TestParentGone(t *testing.T) {
	in(t, external.Config{}, func(t *testing.T, s *subagenttest.System, p *plug) {
		p.said = "part"
		p.turn = func(ctx context.Context) (remote.Outcome, error) {
			<-ctx.Done()
			return remote.Outcome{}, context.Cause(ctx)
		}
		parent := s.Parent(t)
		run := s.Start(t, t.Context(), "plug", subagenttest.Request(parent, "x"))
		if err := parent.Dispose(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if n := p.Active(); n != 0 {
			t.Errorf("%d processes are left behind the parent", n)
		}
		res, err := run.Wait(t.Context())
		if err != nil || res.StopReason != subagent.StopAborted || message.JoinText(res.Output) != "part" {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// OOPX-06, OOPX-07: a cancel is what happened, whatever breaks behind it.
func TestCancelThenBroken(t *testing.T) {
	in(t, external.Config{}, func(t *testing.T, s *subagenttest.System, p *plug) {
		p.turn = func(ctx context.Context) (remote.Outcome, error) {
			<-ctx.Done()
			return remote.Outcome{}, &rpcconn.ClosedError{Cause: io.ErrUnexpectedEOF}
		}
		ctx, cancel := context.WithCancel(t.Context())
		run := s.Start(t, ctx, "plug", subagenttest.Request(s.Parent(t), "x"))
		cancel()
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted || res.Diagnostic != "" {
			t.Errorf("%+v", res)
		}
	})
}

// OOPX-06: also where what broke is told before the cancel is.
func TestBrokenByCancel(t *testing.T) {
	in(t, external.Config{}, func(t *testing.T, s *subagenttest.System, p *plug) {
		seen, told := make(chan struct{}), make(chan struct{})
		var once sync.Once
		p.saying = func() {
			once.Do(func() { // whoever settles for the cancel
				close(seen)
				<-told
			})
		}
		p.turn = func(context.Context) (remote.Outcome, error) {
			<-seen
			return remote.Outcome{Reason: "completed", Text: "x"}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		run := s.Start(t, ctx, "plug", subagenttest.Request(s.Parent(t), "x"))
		cancel()
		res, err := run.Wait(t.Context())
		close(told)
		if err != nil || res.StopReason != subagent.StopAborted || res.Diagnostic != "" {
			t.Errorf("%+v, %v", res, err)
		}
		if err := run.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// COMP-36: a persona is a template, unless it is literal; the variables are the child's.
func TestPersona(t *testing.T) {
	for _, c := range []struct {
		persona subagent.Persona
		want    string // "" is a refusal
	}{
		{subagent.Persona{Text: "You are {{model}}."}, "You are its-model."},
		{subagent.Persona{Text: "You work in {{cwd}} for {{provider}}."}, "You work in DIR for plug."},
		{subagent.Persona{Text: "You are {{cwd}}.", Literal: true}, "You are {{cwd}}."},
		{subagent.Persona{Text: "You are {{nobody}}."}, ""},
	} {
		in(t, external.Config{}, func(t *testing.T, s *subagenttest.System, p *plug) {
			p.Model = "its-model"
			req := subagenttest.Request(s.Parent(t), "x")
			req.Persona = &c.persona
			run, err := s.Service.Start(t.Context(), "plug", req)
			if c.want == "" {
				if !errors.Is(err, subagent.ErrInvalidRequest) || p.starts != 0 {
					t.Errorf("%v; %d starts", err, p.starts)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			subagenttest.Await(t, run)
			if got := strings.ReplaceAll(*p.child.Persona, p.Config.Dir, "DIR"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// OOPX-30, AUTH: a question is decided as Access says, with the whole path of agents and a
// deadline, and stands in the parent's log with its decision.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []*tool.ApprovalRequest
		hold := make(chan struct{})
		s := subagenttest.NewSystem(t, subagenttest.Options{Approver: approve(func(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
			asked = append(asked, req)
			select {
			case <-hold:
				return tool.ApprovalAllowedOnce, nil
			case <-ctx.Done():
				return tool.ApprovalCancelled, nil
			}
		})})
		p := newPlug(t, external.Config{Permission: external.Ask, ApprovalTimeout: time.Minute})
		s.Register(t, p)
		q := remote.Question{Tool: "exec", CallID: "c1", Args: []byte(`{"command":"ls"}`), Summary: "ls"}
		var got []remote.Verdict
		p.turn = func(ctx context.Context) (remote.Outcome, error) {
			got = append(got, p.child.Ask(ctx, q)) // lapses
			close(hold)
			got = append(got, p.child.Ask(ctx, q))
			hold = make(chan struct{})
			got = append(got, p.child.Ask(ctx, q)) // until the cancel
			got = append(got, p.child.Ask(ctx, q)) // behind it
			return remote.Outcome{Reason: "completed", Text: "x"}, nil
		}
		parent := s.Parent(t)
		ctx, cancel := context.WithCancel(t.Context())
		run := s.Start(t, ctx, "plug", subagenttest.Request(parent, "x"))
		time.AfterFunc(90*time.Second, cancel)
		began := time.Now()
		if res := subagenttest.Await(t, run); res.StopReason != subagent.StopAborted {
			t.Errorf("%+v", res)
		}
		if len(got) != 4 || got[0] != remote.Rejected || got[1] != remote.Allowed || got[2] != remote.Cancelled || got[3] != remote.Cancelled {
			t.Errorf("verdicts %v", got)
		}
		if len(asked) != 3 {
			t.Fatalf("%d questions reached a person", len(asked))
		}
		first := asked[0]
		if strings.Join(first.Path, " ") != string(parent.ID())+" "+string(run.ID()) || first.Tool != "plug:exec" || first.CallID != "c1" ||
			string(first.Args) != `{"command":"ls"}` || first.Cwd != p.Config.Dir || !first.Deadline.Equal(began.Add(time.Minute)) {
			t.Errorf("%+v", first)
		}
		var log []string
		for e := range parent.Session().Events(0) {
			switch e := e.Payload().(type) {
			case *session.ApprovalAsked:
				log = append(log, "asked "+e.ToolName)
			case *session.ApprovalDecided:
				log = append(log, e.Outcome)
			}
		}
		if got, want := strings.Join(log, ", "), "asked plug:exec, unavailable, asked plug:exec, allowed-once, asked plug:exec, cancelled, asked plug:exec, cancelled"; got != want {
			t.Errorf("the log holds %s, want %s", got, want)
		}
	})
}

// OOPX-16: a probe has nobody to ask, and no log: what a product asks for in the handshake is
// refused.
func TestProbeAsks(t *testing.T) {
	for _, permission := range []external.Permission{external.Deny, external.Ask, external.Allow} {
		p := newPlug(t, external.Config{Permission: permission})
		var got remote.Verdict = -1
		p.open = func(ctx context.Context) error {
			p.child.Refused(ctx, remote.Question{Tool: "exec"})
			got = p.child.Ask(ctx, remote.Question{Tool: "exec"})
			return nil
		}
		if _, err := p.Probe(t.Context(), t.TempDir()); err != nil || got != remote.Rejected {
			t.Errorf("%s: verdict %d, %v", permission, got, err)
		}
	}
}

// What a product says of itself in a question is one bounded line that a terminal does not
// obey, for a person and in the log.
func TestAskIsLegible(t *testing.T) {
	long := strings.Repeat("long ", 1000)
	for name, c := range map[string]struct{ said, want string }{
		"commands":     {"a\x1b[2J\u009b2Jb\nc\u202egpj", "a [2J 2Jb c gpj"},
		"no UTF-8":     {"a\xffb", "a b"},
		"long":         {long, long[:120]},
		"in letters":   {"été 東京", "été 東京"},
		"one too many": {"x" + strings.Repeat("é", 60), "x" + strings.Repeat("é", 59)},
	} {
		t.Run(name, func(t *testing.T) {
			var got *tool.ApprovalRequest
			s := subagenttest.NewSystem(t, subagenttest.Options{Approver: approve(func(_ context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
				got = req
				return tool.ApprovalRejected, nil
			})})
			p := newPlug(t, external.Config{Permission: external.Ask})
			s.Register(t, p)
			p.turn = func(ctx context.Context) (remote.Outcome, error) {
				p.child.Ask(ctx, remote.Question{Tool: c.said, CallID: c.said, Summary: c.said})
				return remote.Outcome{Reason: "completed", Text: "x"}, nil
			}
			parent := s.Parent(t)
			subagenttest.Await(t, s.Start(t, t.Context(), "plug", subagenttest.Request(parent, "x")))
			if got == nil || got.Tool != "plug:"+c.want || got.CallID != c.want || got.Summary != c.want {
				t.Errorf("asked %+v, want %q", got, c.want)
			}
			for e := range parent.Session().Events(0) {
				if e, ok := e.Payload().(*session.ApprovalAsked); ok && (e.ToolName != "plug:"+c.want || e.CallID != c.want) {
					t.Errorf("on record %+v, want %q", e, c.want)
				}
			}
		})
	}
}

// OOPX-31: the program that was found is the one that is started, wherever it works.
func TestRelativeCommand(t *testing.T) {
	here := t.TempDir()
	if err := os.WriteFile(filepath.Join(here, "agent"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	p := newPlug(t, external.Config{})
	p.Config.Command = "./agent"
	var started string
	p.Launch = func(cfg proc.Config) (remote.Link, error) {
		started = cfg.Path
		return &link{done: make(chan struct{})}, nil
	}
	r, err := p.Probe(t.Context(), t.TempDir())
	if want := filepath.Join(here, "agent"); err != nil || started != want || r.Path != want {
		t.Errorf("found %q, started %q, %v; want %q", r.Path, started, err, want)
	}
}

type approve func(context.Context, *tool.ApprovalRequest) (tool.ApprovalOutcome, error)

func (f approve) Approve(ctx context.Context, req *tool.ApprovalRequest) (tool.ApprovalOutcome, error) {
	return f(ctx, req)
}

// W29, OOPX-09: also where nobody looked before, a start that was cancelled starts nothing.
func TestCancelledBefore(t *testing.T) {
	p := newPlug(t, external.Config{})
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := p.Start(ctx, &subagent.ResolvedRequest{}); !errors.Is(err, stop) || p.starts != 0 {
		t.Errorf("%v; %d starts", err, p.starts)
	}
}
